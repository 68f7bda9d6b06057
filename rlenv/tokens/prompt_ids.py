"""The ids of prompts, conversations and observations: the template's own, in which no content is a control token."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import orjson

from rlenv._base.bounded import drop_oldest
from rlenv.dialects.base import SameTurn
from rlenv.dialects.built_in import Spans
from rlenv.errors import EpisodeError, UnsupportedTemplate
from rlenv.messages import MalformedCall, Message
from rlenv.tokens.dummies import Way, with_arguments
from rlenv.tokens.images import ProcessorImages, as_template_reads, fill_places
from rlenv.tokens.layouts import TRANSFORMS, Deriver, Layout, MessageSlot, TextSlot, call_id, transform_of, values_of
from rlenv.tokens.prompts import Part, PromptProgram, Written, encode_parts, written_parts
from rlenv.tokens.shapes import Story
from rlenv.tokens.vocabulary import ChatTemplate, Signs, Vocabulary, encode

_MARK = "\ue000c0\ue000"
CHECKS = ("x", " Héllo\n\n世界 🎉  ", "a\r\n\tb 12345")
"""Harmless contents that bring out what a tokenizer merges."""
_PROBES = (*CHECKS, "", "  \n ", '"q"', "<think>x</think>", "<tool_response>\nx\n</tool_response>")


@dataclass(frozen=True, slots=True)
class _Prompt:
    """Messages as templates take them, and what is rendered with them; the arguments of `written_parts`."""

    given: Sequence[Mapping[str, Any]]
    authored: Sequence[Spans]
    tools: Sequence[Mapping[str, Any]]
    now: datetime

    def parts(self, template: ChatTemplate, signs: Signs, *, hides: int | None = None) -> Written:
        return written_parts(template, self.given, self.authored, self.tools, signs, now=self.now, hides=hides)


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Encodes what a template writes of conversations; shared by all trajectories of a process.

    Prompts that differ in their last user message only share the work for what stands before (`kept`).
    """

    template: ChatTemplate
    vocabulary: Vocabulary
    images: ProcessorImages | None
    kept: dict[Any, PromptProgram]

    def of_prompt(
        self, messages: Sequence[Message | Mapping[str, Any]], story: Story, places: Sequence[str]
    ) -> array[int]:
        """The ids of the template's rendering, generation prompt included.

        Raises:
            EpisodeError: a text of the prompt holds the placeholder of an image (`reason` is "image").
        """
        given, tools, now = story.messages, story.tools, story.now
        authored = [message.authored if isinstance(message, Message) else () for message in messages]
        prompt = _Prompt(given, authored, tools, now)
        if self.images is not None:
            text = self.template.render(given, tools=tools, now=now)
            stray = next((word for word in self.images.reserved[1:] if word in text), None)
            if stray is not None:
                raise EpisodeError(f"the prompt holds {stray}, which stands for something else", reason="image")
            fill_places(text, place=self.images.place, places=places)
            return self.encode(prompt, places=places)
        last = given[-1] if given else {}
        content = last.get("content")
        if last.get("role") != "user" or not isinstance(content, str) or authored[-1]:
            return self.encode(prompt)
        stamp = self.template.stamp(now)
        try:
            key = (orjson.dumps((given[:-1], authored[:-1], {**last, "content": None}, tools)), stamp)
        except TypeError:
            return self.encode(prompt)
        program = self.kept.get(key)
        if program is None:
            program = self._make_program(prompt)
            self.kept[key[0], self.template.stamp(now)] = program
            drop_oldest(self.kept, most=256)
        if not program.pieces:
            return self.encode(prompt)
        return program.encode(lambda slot: slot.transform(content), self.vocabulary)

    def of_history(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        said: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        places: Sequence[str],
        now: datetime,
        way: Way,
    ) -> array[int]:
        """The ids of a conversation in which every content is text, what the policy said before included.

        Raises:
            UnsupportedTemplate: the template refuses it, or leaves a call out, in each form of calls.
        """
        first = list(map(as_template_reads, messages))
        authored: list[Spans] = [message.authored if isinstance(message, Message) else () for message in messages]
        refused: UnsupportedTemplate | None = None
        for later in _forms_of(said):
            spans = [_written_marks(message, way) for message in later]
            given = [*first, *_told_messages(later, way)]
            for form in _calls_as_text(given, len(first)):
                try:
                    prompt = _Prompt(form, [*authored, *spans], tools, now)
                    ids = self.encode(prompt, places=places, hides=len(first))
                    self._check_calls(prompt, len(first))
                    return ids
                except UnsupportedTemplate as error:
                    refused = refused if refused is not None else error
        assert refused is not None
        raise refused

    def _check_calls(self, prompt: _Prompt, first: int) -> None:
        text = self.template.render(prompt.given, tools=prompt.tools, now=prompt.now)
        for message in prompt.given[first:]:
            for call in message.get("tool_calls") or ():
                name = call["function"]["name"]
                if name and name not in text:
                    raise UnsupportedTemplate(f"chat template {self.template.name} leaves out a call of {name}")

    def encode(self, prompt: _Prompt, *, places: Sequence[str] = (), hides: int | None = None) -> array[int]:
        """The ids of the template's rendering, in which no content has become a control token.

        They are those of the whole tokenizer for the whole text wherever the template alone writes control tokens.

        Args:
            hides: the first message from which on an assistant's words are text too; None: they are its own.
        """
        written = prompt.parts(self.template, self.vocabulary.signs, hides=hides)
        place = self.images.place if self.images is not None else ""
        parts = self._place_written(written.parts, places) if place else written.parts
        ids = encode_parts(parts, self.vocabulary)
        text = fill_places(written.text, place=place, places=places) if place else written.text
        whole = self._encode_full(text)
        return array("q", whole) if ids.tolist() == whole or self._control_ids(ids) == self._control_ids(whole) else ids

    def _encode_full(self, text: str) -> list[int]:
        return encode(self.vocabulary.full, text)

    def _control_ids(self, ids: Sequence[int]) -> list[int]:
        control = self.vocabulary.control_ids
        return [number for number in ids if number in control]

    def _place_written(self, parts: Sequence[Part], places: Sequence[str]) -> list[Part]:
        """The template's own text with its placeholders filled; those of contents are text."""
        assert self.images is not None
        left = iter(places)
        out: list[Part] = []
        for is_own, text in parts:
            if is_own and self.images.place in text:
                pieces = text.split(self.images.place)
                text = pieces[0] + "".join(next(left, "") + piece for piece in pieces[1:])
            out.append((is_own, text))
        return out

    def _make_program(self, prompt: _Prompt) -> PromptProgram:
        """The program of a prompt with a slot for its last content; an empty one where the template has no such."""
        *earlier, last = prompt.given

        def with_content(content: str) -> list[Mapping[str, Any]]:
            return [*earlier, {**last, "content": content}]

        def render(content: str) -> str:
            return self.template.render(with_content(content), tools=prompt.tools, now=prompt.now)

        try:
            text = render(_MARK)
            transform = transform_of(text.partition(_MARK)[::2], render, _PROBES)
            if _MARK not in text or isinstance(transform, tuple):
                return PromptProgram(())
            # The mark stays as it is, as an author's word would, so that it is found again.
            spans = [*prompt.authored[:-1], ((0, len(_MARK)),)]
            marked = replace(prompt, given=with_content(_MARK), authored=spans)
            written = marked.parts(self.template, self.vocabulary.signs)
        except UnsupportedTemplate:
            return PromptProgram(())
        slotted: list[str | MessageSlot | TextSlot] = []
        for is_own, piece in written.parts:
            if not is_own:
                slotted.append(TextSlot(piece))
                continue
            head, mark, tail = piece.partition(_MARK)
            slotted += [head, MessageSlot("content", 0, transform), tail] if mark else [piece]
        is_same = "".join(piece for _, piece in written.parts) == text
        if not is_same or sum(isinstance(part, MessageSlot) for part in slotted) != 1:
            return PromptProgram(())
        program = PromptProgram.of(slotted, self.vocabulary)
        for probe in CHECKS:
            whole = self._encode_full(render(probe))
            ids = program.encode(lambda _, probe=probe: transform(probe), self.vocabulary)  # type: ignore[misc]
            if ids.tolist() != whole and self._control_ids(ids) == self._control_ids(whole):
                return PromptProgram(())  # the template alone writes its control tokens, and its ids are others
        return program


def _forms_of(said: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The messages with their calls; and as some templates need them: text beside calls as the end of the thinking, or
    calls that could not be read as text.
    """
    yield said
    if any(message.thinking and message.content and message.tool_calls for message in said):
        yield [
            replace(one, thinking=f"{one.thinking}\n\n{one.content}", content="") if one.tool_calls and one.thinking
            else one for one in said
        ]  # fmt: skip
    if any(isinstance(call, MalformedCall) for message in said for call in message.tool_calls):
        yield [_plain_message(message) for message in said]


def _plain_message(message: Message) -> Message:
    broken = [call.text for call in message.tool_calls if isinstance(call, MalformedCall)]
    read = tuple(call for call in message.tool_calls if not isinstance(call, MalformedCall))
    content = "\n".join(text for text in (message.content, *broken) if text)
    return replace(message, content=content, tool_calls=read) if broken else message


def _told_messages(said: Sequence[Message], way: Way) -> list[dict[str, Any]]:
    """Messages as the template reads them: thinking in its way, and an id for each call and each result."""
    out: list[dict[str, Any]] = []
    results = 0
    for message in said:
        told = as_template_reads(message)
        if message.role == "assistant":
            results = 0
            told.pop("reasoning_content", None)
            told = way.write(told, "some" if message.thinking else "none", message.thinking)
            calls = told.get("tool_calls") or ()
            told |= {"tool_calls": [{"id": call_id(i), **call} for i, call in enumerate(calls)]} if calls else {}
        else:
            if message.role == "tool":
                told = {"name": "tool", "tool_call_id": call_id(results), **told}
            results += 1
        out.append(told)
    return out


def _written_marks(message: Message, way: Way) -> Spans:
    """The parts of a message's content that are no text: what its author wrote, and marks around its thinking."""
    if message.role != "assistant" or way.key or not message.thinking:
        return message.authored
    block = len(way.write({"content": ""}, "some", message.thinking)["content"])
    close = block - len(way.close) - 2
    moved = [(first + block, last + block) for first, last in message.authored]
    return [(0, len(way.open)), (close, close + len(way.close)), *moved]


def _calls_as_text(given: list[dict[str, Any]], first: int) -> Iterator[list[dict[str, Any]]]:
    """A conversation with its calls' arguments as data, and as JSON text."""
    yield given
    if any(message.get("tool_calls") for message in given[first:]):
        yield [*given[:first], *(with_arguments(message, as_text=True) for message in given[first:])]


MAX_MESSAGES: Final = 256
"""The most messages that may answer one turn; a policy decides how many calls it writes."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Derives layouts and makes programs of them, each once; shared by all trajectories of a process."""

    deriver: Deriver
    vocabulary: Vocabulary
    images: ProcessorImages | None
    same_turn: SameTurn | None
    kept: dict[Layout, PromptProgram | UnsupportedTemplate] = field(default_factory=dict)

    def derive(
        self,
        roles: tuple[str, ...],
        counts: tuple[int, ...],
        before: Sequence[Mapping[str, Any]] | None,
        tools: Sequence[Mapping[str, Any]],
    ) -> Layout:
        """The layout of messages of `roles` with so many images, behind the first messages `before`.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for these messages.
        """
        if len(roles) > MAX_MESSAGES:
            raise UnsupportedTemplate(
                f"{len(roles)} messages answer one turn; token ids are made for at most {MAX_MESSAGES}"
            )
        if self.same_turn is None:
            return self.deriver.layout(roles, images=counts, before=before, tools=tools)
        if counts:
            raise UnsupportedTemplate("a dialect that goes on in the assistant's own turn shows no images")
        return _going_on(roles, self.same_turn, self.deriver.layout(("user",)).stop)

    def program(self, layout: Layout) -> PromptProgram:
        """The program of a layout; images stand as their placeholders.

        Raises:
            UnsupportedTemplate: contents cannot be encoded apart from its structure.
        """
        found = self.kept.get(layout)
        if found is None:
            try:
                found = PromptProgram.of(_with_places(layout, None, self.deriver.place), self.vocabulary)
                if self.same_turn is None:
                    self._check(layout, found)
            except UnsupportedTemplate as error:
                found = error
            self.kept[layout] = found
            drop_oldest(self.kept, most=1024)
        if isinstance(found, UnsupportedTemplate):
            raise UnsupportedTemplate(str(found)) from found
        return found

    def encode(self, messages: Sequence[Message], places: Sequence[str], layout: Layout) -> array[int]:
        """The ids of messages behind the stop mark; `places` is what the processor writes for each of their images.

        Raises:
            UnsupportedTemplate: contents cannot be encoded apart from the structure.
        """
        program = self.program(layout)
        if places:
            program = PromptProgram.of(_with_places(layout, places, self.deriver.place), self.vocabulary)
        plain = self.images.plain if self.images is not None else str
        return program.encode(values_of(messages, plain), self.vocabulary)

    def _check(self, layout: Layout, program: PromptProgram) -> None:
        """Harmless contents must encode to what the whole tokenizer makes of the rendered text."""
        name = self.deriver.template.name
        if layout.stop not in self.vocabulary.added:
            raise UnsupportedTemplate(f"chat template {name} ends a turn with {layout.stop}, which is no single token")
        for content in CHECKS:

            def value(slot: MessageSlot, content: str = content) -> str:
                if slot.field == "image":
                    return self.deriver.place
                return slot.transform(content) if slot.field == "content" else "name00000"

            whole = encode(self.vocabulary.full, layout.stop + layout.text(value))
            made = [self.vocabulary.added[layout.stop], *program.encode(value, self.vocabulary)]
            if whole != made:
                at = next((i for i, (a, b) in enumerate(zip(whole, made, strict=False)) if a != b), 0)
                near = self.vocabulary.full.decode(whole[max(at - 3, 0) : at + 3], skip_special_tokens=False)
                raise UnsupportedTemplate(
                    f"chat template {name}: content cannot be encoded apart from its structure near {near!r}"
                )


def _going_on(roles: Sequence[str], same_turn: SameTurn, stop: str) -> Layout:
    """The layout of messages that stand in the assistant's turn, each between the texts that its role has."""
    parts: list[str | MessageSlot] = []
    for index, role in enumerate(roles):
        before, behind = same_turn.around(role)
        parts += [before, MessageSlot("content", index, TRANSFORMS["as it is"]), behind]
    return Layout(stop, tuple(part for part in parts if part))


def _with_places(layout: Layout, places: Sequence[str] | None, place: str) -> list[str | MessageSlot]:
    """The parts of a layout with text in the place of every image."""
    return [
        (place if places is None else places[part.index])
        if isinstance(part, MessageSlot) and part.field == "image"
        else part
        for part in layout.parts
    ]
