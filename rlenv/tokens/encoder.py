"""A tokenizer and a chat template, bound together once a process: exact token ids for prompts and observations."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson

from rlenv.control import Spans
from rlenv.dialects.base import SameTurn
from rlenv.errors import EpisodeError, UnsupportedTemplate, UsageError
from rlenv.messages import Message
from rlenv.tokens.chat_template import ChatTemplate
from rlenv.tokens.cut import Keep, token_cut
from rlenv.tokens.images import ProcessorImages, Shown, as_template_reads, fill_places
from rlenv.tokens.program import Program
from rlenv.tokens.prompts import Part, encode_parts, written_parts
from rlenv.tokens.rows import TokenRows
from rlenv.tokens.slots import TRANSFORMS, Layout, Slot, TextSlot, derive
from rlenv.tokens.trajectory import TokenTrajectory
from rlenv.tokens.vocabulary import Vocabulary, encode, fast_tokenizer

__all__ = ["HISTORIES", "MAX_MESSAGES", "History", "TokenEncoder"]

History = Literal["grow", "keep", "rows"]
HISTORIES: tuple[History, ...] = ("grow", "keep", "rows")
_CACHED = 256
MAX_MESSAGES = 256
"""The most messages that may answer one turn; a policy decides how many calls it writes."""
_MARK = "\ue000c0\ue000"
_Shape = tuple[tuple[str, ...], tuple[int, ...]]  # roles, and how many images each message has; () where none has any
_CHECKS = ("x", " Héllo\n\n世界 🎉  ", "a\r\n\tb 12345")


class TokenEncoder:
    """Encodes what an environment says, exactly as the chat template and its tokenizer would.

    Observation ids are derived from the template, once for each sequence of roles: fixed ids for its structure and
    one encoding pass for each run of text that holds content. Content never becomes an added token. The prompt is
    rendered by the template and encoded with all its tokens, as serving does. Stateless after that, and shared by
    all trajectories of a process.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, or any object with `backend_tokenizer`, as transformers' fast ones have.
        chat_template: the template's text; by default the tokenizer's own.
        template_kwargs: names for the template, such as `enable_thinking=False`; over a tokenizer's special tokens.
        stop: the token, or the tokens, that end an assistant's turn; found from the tokenizer and the template where it
            is None.
        end_ids: further ids that end an assistant's turn, as a model's `generation_config` names them; those of a
            tokenizer that has `end_ids` (`rlenv.tokens.load`) are taken too.
        vocab_size: how many ids the model can sample, where its embeddings have more rows than the tokenizer has
            tokens; None: the tokenizer's.
        same_turn: what is written around contents that go on in the assistant's own turn, for an environment whose
            dialect has it (`Environment.same_turn`). The template then writes the prompt alone and is not told of
            tools, whose calls it would explain in its own way; no end mark is added behind what was sampled.
        images: what the policy's processor makes of images (`ProcessorImages`); None for a policy that reads text
            alone, which messages with images are refused for.
        history: what to do where the template would write earlier turns otherwise (Qwen3 drops thinking at a new user
            turn): "grow" refuses the template there, "keep" goes on with the ids as they were sampled and says so in
            `TokenTrajectory.differences`, "rows" starts a new row (`start_rows`).
        thinking: the marks around thinking that the policy writes, beside those that the template shows.

    Raises:
        UnsupportedTemplate: exact ids for tool results cannot be promised, and neither for user messages; the message
            names the template and the place. A template that supports one of the two is refused at the other only.
        UsageError: there is no template, or the tokenizer is not a fast one.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] | None = None,
        end_ids: Sequence[int] = (),
        vocab_size: int | None = None,
        same_turn: SameTurn | None = None,
        images: ProcessorImages | None = None,
        history: History = "grow",
        thinking: Sequence[tuple[str, str]] = (("<think>", "</think>"),),
    ) -> None:
        backend = fast_tokenizer(tokenizer)
        own = getattr(tokenizer, "chat_template", None)
        if isinstance(own, Mapping):
            own = own.get("tool_use", own.get("default"))
        source = chat_template if chat_template is not None else own
        if source is None:
            raise UsageError("the tokenizer has no chat template; give one as chat_template")
        special = {
            key: str(value)
            for key, value in (getattr(tokenizer, "special_tokens_map", None) or {}).items()
            if isinstance(value, str) or hasattr(value, "content")
        }
        name = str(getattr(tokenizer, "name_or_path", "") or "of this tokenizer")
        if history not in HISTORIES:
            raise UsageError(f"history is {history!r}; expected one of {', '.join(HISTORIES)}")
        self.history: History = history
        self.thinking = tuple(thinking)
        self.same_turn = same_turn
        self.images = images
        self.vocabulary = Vocabulary(backend, size=vocab_size)
        if images is not None and images.place not in self.vocabulary.added:
            raise UnsupportedTemplate(f"tokenizer {name}: the processor's {images.place} is no token of it")
        self.template = ChatTemplate(source, name=name, values={**special, **(template_kwargs or {})})
        eos = getattr(tokenizer, "eos_token", None) or self.template.values.get("eos_token")
        named = (stop,) if isinstance(stop, str) else tuple(stop or ())
        self._stops = tuple(mark for mark in (*named, eos) if mark)
        self._programs: dict[_Shape, tuple[Layout, Program] | UnsupportedTemplate] = {}
        self._prompts: dict[bytes, Program] = {}
        leaks = self.vocabulary.leaks()
        if leaks:
            raise UnsupportedTemplate(
                f"tokenizer {name}: plain text makes the control tokens {', '.join(map(repr, leaks[:5]))}; content"
                " could not be told from structure"
            )
        if same_turn is not None:
            self.stop = derive(self.template, ("user",), self._stops).stop
        else:
            try:
                layout = self._program((("tool",), ()))[0]
            except UnsupportedTemplate:
                layout = self._program((("user",), ()))[0]
            self.stop = layout.stop
        self.stop_id = self.vocabulary.added[self.stop]
        eos_id = self.vocabulary.added.get(str(eos))
        more = (*end_ids, *getattr(tokenizer, "end_ids", ()), *(self.vocabulary.added.get(mark) for mark in named))
        self.end_ids = frozenset({self.stop_id, *(number for number in (eos_id, *more) if number is not None)})
        """Every id that ends an assistant's turn."""

    @property
    def stop_token_ids(self) -> list[int]:
        """The ids that generation has to stop at, in order; what a sampler is given."""
        return sorted(self.end_ids)

    def encode_content(self, text: str) -> list[int]:
        """The ids of plain content; no added token comes of it. The GIL is released while it is encoded."""
        return encode(self.vocabulary.plain, text)

    def encode_text(self, text: str) -> list[int]:
        """The ids of templated text, in which added tokens are tokens. The GIL is released while it is encoded."""
        return encode(self.vocabulary.full, text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, added tokens included.

        Raises:
            UsageError: an id is negative or far out of range.
        """
        try:
            return self.vocabulary.full.decode(ids, skip_special_tokens=False)
        except OverflowError as error:
            raise UsageError("a token id is negative or beyond 32 bits; expected ids of the tokenizer") from error

    def cut(self, *, max_tokens: int, keep: Keep = "head_tail") -> Callable[[str], str]:
        """A function that shortens a content to at most `max_tokens` tokens; see `rlenv.tokens.cut.token_cut`."""
        cut = token_cut(self.vocabulary.plain, max_tokens=max_tokens, keep=keep)
        images = self.images
        return cut if images is None else lambda text: cut(images.plain(text))

    def show(self, messages: Sequence[Message]) -> Shown:
        """Messages of the environment as this policy sees them: images decoded, or a note where one cannot be.

        A policy that reads text alone is told of each message's images, and shown none: what a tool's server answers
        may end nobody's run.
        """
        if self.images is not None:
            return self.images.show(messages)
        return Shown(tuple(_told_of_images(message) if message.images else message for message in messages))

    def _refuse_images(self, messages: Sequence[Message | Mapping[str, Any]]) -> None:
        for index, message in enumerate(messages):
            if isinstance(message, Message) and message.images:
                who = f"{message.role} {message.name}" if message.name else message.role
                raise UnsupportedTemplate(
                    f"message {index + 1} ({who}) has {len(message.images)} images, and the policy of chat template"
                    f" {self.template.name} reads text alone; leave out prompt.images, or train a model whose processor"
                    " takes images (TokenEncoder(images=ProcessorImages(processor)))"
                )

    def _show_prompt(self, messages: Sequence[Message | Mapping[str, Any]]) -> Shown:
        if self.images is not None:
            return self.images.show_prompt(messages)
        self._refuse_images(messages)
        return Shown(())

    def start(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_prompt_tokens: int | None = None,
        max_response_tokens: int | None = None,
        max_total_tokens: int | None = None,
        max_observation_tokens: int | None = None,
        keep: Keep = "head_tail",
    ) -> TokenTrajectory:
        """A trajectory whose prompt is the template's rendering of `messages`, generation prompt included.

        Args:
            tools: schemas, in the form that the template shall write.
            max_prompt_tokens: a longer prompt is an error, never cut.
            max_response_tokens: the room for sampled turns and observations together; None: no limit.
            max_total_tokens: the room for prompt and response together; None: no limit.
            max_observation_tokens: each message of an observation is cut to this many tokens of content.
            keep: which part of a content stays when it is cut.

        Raises:
            UnsupportedTemplate: the template refuses the messages.
            EpisodeError: the prompt is longer than `max_prompt_tokens` (`reason` is "prompt_tokens"), or fills
                `max_total_tokens` (`reason` is "total_tokens"), or an image of it cannot be read (`reason` is "image").
        """
        shown = self._show_prompt(messages)
        return self._trajectory(
            self.encode_prompt(messages, tools=tools, places=shown.places),
            images=shown.images,
            max_prompt_tokens=max_prompt_tokens,
            max_response_tokens=max_response_tokens,
            max_total_tokens=max_total_tokens,
            max_observation_tokens=max_observation_tokens,
            keep=keep,
        )

    def start_rows(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        **limits: Any,
    ) -> TokenRows:
        """A rollout that goes on in a new row where the template rewrites history; `limits` are those of `start`.

        They hold for each row: what stood before becomes part of the next row's prompt.
        """
        return TokenRows(self, messages, tools=tools, **limits)

    def start_after(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        said: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        **limits: Any,
    ) -> TokenTrajectory:
        """A trajectory that goes on after `said`, what a policy and the environment said after the first `messages`.

        Raises:
            UnsupportedTemplate: the template changes contents in a way that is not known.
            EpisodeError: as for `start`.
        """
        shown = self._show_prompt((*messages, *said))
        return self._trajectory(
            self._encode_history(messages, said, tools, shown.places), images=shown.images, **limits
        )

    def _encode_history(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        said: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        places: Sequence[str],
    ) -> array[int]:
        """The ids of a conversation in which the environment's later contents are text, whatever they hold."""
        first = list(map(as_template_reads, messages))
        later = list(map(as_template_reads, said))
        open_slots = [index for index, message in enumerate(said) if message.role != "assistant"]
        marked = [
            as_template_reads(replace(message, content=f"{_MARK}{index}{_MARK}") if index in open_slots else message)
            for index, message in enumerate(said)
        ]
        text = self.template.render([*first, *marked], tools=tools)
        whole = self.template.render([*first, *later], tools=tools)
        for transform in TRANSFORMS.values():
            parts: list[str | Slot] = []
            rest = text
            for index in open_slots:
                before, mark, rest = rest.partition(f"{_MARK}{index}{_MARK}")
                if not mark:
                    raise UnsupportedTemplate(
                        f"chat template {self.template.name} leaves out the content of message {len(first) + index + 1}"
                    )
                parts += [before, Slot("content", index, transform)]
            parts.append(rest)
            filled = "".join(part if isinstance(part, str) else transform(said[part.index].content) for part in parts)
            if filled == whole:
                program = Program.of(self._place_all(parts, places), self.vocabulary, self.encode_content)
                return program.encode(lambda slot: slot.transform(said[slot.index].content), self.encode_content)
        raise UnsupportedTemplate(
            f"chat template {self.template.name} changes the contents of a conversation in a way that is not known"
        )

    def _place_all(self, parts: Sequence[str | Slot], places: Sequence[str]) -> list[str | Slot]:
        """The literal texts of a conversation with its placeholders filled."""
        if self.images is None:
            return list(parts)
        mark = self.images.place
        counts = [part.count(mark) if isinstance(part, str) else 0 for part in parts]
        if sum(counts) != len(places):  # refused with the same words as a prompt
            fill_places("".join(p for p in parts if isinstance(p, str)), place=mark, places=places, where="the history")
        at = 0
        out: list[str | Slot] = []
        for part, count in zip(parts, counts, strict=True):
            if isinstance(part, str) and count:
                part = fill_places(part, place=mark, places=places[at : at + count], where="the history")
                at += count
            out.append(part)
        return out

    def _trajectory(
        self,
        ids: array[int],
        *,
        images: Sequence[Any] = (),
        max_prompt_tokens: int | None = None,
        max_response_tokens: int | None = None,
        max_total_tokens: int | None = None,
        max_observation_tokens: int | None = None,
        keep: Keep = "head_tail",
    ) -> TokenTrajectory:
        if max_prompt_tokens is not None and len(ids) > max_prompt_tokens:
            raise EpisodeError(
                f"the prompt has {len(ids)} tokens; expected at most {max_prompt_tokens} (max_prompt_tokens)",
                reason="prompt_tokens",
            )
        if max_total_tokens is not None and len(ids) >= max_total_tokens:
            raise EpisodeError(
                f"the prompt has {len(ids)} tokens; expected fewer than {max_total_tokens} (max_total_tokens)",
                reason="total_tokens",
            )
        return TokenTrajectory(
            self,
            ids,
            images=images,
            max_response_tokens=max_response_tokens,
            max_total_tokens=max_total_tokens,
            max_observation_tokens=max_observation_tokens,
            keep=keep,
        )

    def encode_prompt(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        places: Sequence[str] = (),
    ) -> array[int]:
        """The ids of the template's rendering, generation prompt included, as an array of type q.

        No text of a message or a tool becomes a control token, but where the spec's author wrote it
        (`Message.authored`). Prompts that differ in their last user message only share the work for what stands before.

        Args:
            places: what the processor writes for each image of the messages (see `Shown`).

        Raises:
            EpisodeError: a text of the prompt holds the placeholder of an image (`reason` is "image").
        """
        if self.same_turn is not None:
            tools = ()
        given = list(map(as_template_reads, messages))
        authored = [message.authored if isinstance(message, Message) else () for message in messages]
        if self.images is not None:
            text = self.template.render(given, tools=tools)
            stray = next((word for word in self.images.reserved[1:] if word in text), None)
            if stray is not None:
                raise EpisodeError(f"the prompt holds {stray}, which stands for something else", reason="image")
            fill_places(text, place=self.images.place, places=places, where="the prompt")
            return self._encode_given(given, authored, tools, places)
        last = given[-1] if given else {}
        content = last.get("content")
        if last.get("role") != "user" or not isinstance(content, str) or authored[-1]:
            return self._encode_given(given, authored, tools)
        try:
            key = orjson.dumps((given[:-1], authored[:-1], {**last, "content": None}, tools))
        except TypeError:
            return self._encode_given(given, authored, tools)
        program = self._prompts.get(key)
        if program is None:
            program = self._prompt_program(given, authored, tools)
            if len(self._prompts) >= _CACHED:
                self._prompts.pop(next(iter(self._prompts)))
            self._prompts[key] = program
        if not program.pieces:
            return self._encode_given(given, authored, tools)
        return program.encode(lambda slot: slot.transform(content), self.encode_content)

    def _encode_given(
        self,
        given: list[dict[str, Any]],
        authored: Sequence[Spans],
        tools: Sequence[Mapping[str, Any]],
        places: Sequence[str] = (),
    ) -> array[int]:
        """The ids of the template's rendering, in which no content has become a control token.

        They are those of the whole tokenizer for the whole text wherever the template alone writes control tokens.
        """
        written = written_parts(self.template, given, authored, tools, self.vocabulary.signs)
        place = self.images.place if self.images is not None else ""
        parts = self._place_written(written.parts, places) if place else written.parts
        ids = encode_parts(parts, self.vocabulary, encode_text=self.encode_text, encode_content=self.encode_content)
        text = fill_places(written.text, place=place, places=places, where="the prompt") if place else written.text
        whole = self.encode_text(text)
        if ids.tolist() == whole or self._controls(ids) == self._controls(whole):
            return array("q", whole)
        return ids

    def _controls(self, ids: Sequence[int]) -> list[int]:
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

    def _prompt_program(
        self, given: list[dict[str, Any]], authored: Sequence[Spans], tools: Sequence[Mapping[str, Any]]
    ) -> Program:
        """The program of a prompt with a slot for its last content; an empty one where the template has no such."""
        last = given[-1]

        def with_content(content: str) -> list[dict[str, Any]]:
            return [*given[:-1], {**last, "content": content}]

        def render(content: str) -> str:
            return self.template.render(with_content(content), tools=tools)

        try:
            text = render(_MARK)
            before, mark, after = text.partition(_MARK)
            left = dict(TRANSFORMS)
            for probe in (*_CHECKS, "", "  \n ", '"q"', "<think>x</think>", "<tool_response>\nx\n</tool_response>"):
                shown = render(probe)
                left = {name: change for name, change in left.items() if shown == before + change(probe) + after}
                if not mark or not left:
                    return Program(())
            # The mark stays as it is, as an author's word would, so that it is found again.
            spans = [*authored[:-1], ((0, len(_MARK)),)]
            written = written_parts(self.template, with_content(_MARK), spans, tools, self.vocabulary.signs)
        except UnsupportedTemplate:
            return Program(())
        transform = next(iter(left.values()))
        slotted: list[str | Slot | TextSlot] = []
        for is_own, piece in written.parts:
            if not is_own:
                slotted.append(TextSlot(piece))
                continue
            head, mark, tail = piece.partition(_MARK)
            slotted += [head, Slot("content", 0, transform), tail] if mark else [piece]
        is_same = "".join(piece for _, piece in written.parts) == text
        if not is_same or sum(isinstance(part, Slot) for part in slotted) != 1:
            return Program(())
        program = Program.of(slotted, self.vocabulary, self.encode_content)
        for probe in _CHECKS:
            whole = self.encode_text(render(probe))
            ids = program.encode(lambda _, probe=probe: transform(probe), self.encode_content)  # type: ignore[misc]
            if ids.tolist() != whole and self._controls(ids) == self._controls(whole):
                return Program(())  # the template alone writes its control tokens, and its ids are others
        return program

    def require(self, roles: Sequence[str], *, after_thinking: bool = False) -> None:
        """Passes where messages of `roles` can answer an assistant's turn with exact ids; to be called at binding.

        Args:
            roles: such as `["tool"]`, or `["user"]` where an environment answers in words.
            after_thinking: whether the policy may have written thinking before.

        Raises:
            UnsupportedTemplate: the message names the template and the place.
        """
        fault = self.rewrites(roles, after_thinking=after_thinking)
        if fault and self.history == "grow":
            raise UnsupportedTemplate(self.refusal(roles, fault))

    def refusal(self, roles: Sequence[str], fault: str) -> str:
        """What is said where a history would be rewritten and may not be."""
        return (
            f"chat template {self.template.name} rewrites what was sampled before a message of {', '.join(roles)}: "
            f"{fault}; choose what to do: history rows (a new training row there) or keep (go on with the sampled ids)"
        )

    def rewrites(self, roles: Sequence[str], *, after_thinking: bool = False) -> str:
        """How the template changes earlier turns once messages of `roles` follow, "" where it only grows.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for messages of these roles.
        """
        layout = self._program((tuple(roles), ()))[0]
        if not layout.rewrites and after_thinking and layout.drops_thinking:
            return "it drops the thinking of earlier turns once these messages follow"
        return layout.rewrites

    def encode_messages(self, messages: Sequence[Message], *, places: Sequence[str] = ()) -> array[int]:
        """The ids between an assistant's stop mark and the next sampled token, for messages that answer a turn.

        Args:
            places: what the processor writes for each image of the messages (see `show`).

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for messages of these roles.
        """
        counts = tuple(len(message.images) for message in messages) if places else ()
        layout, program = self._program((tuple(message.role for message in messages), counts))
        if places:
            program = Program.of(_with_places(layout, places), self.vocabulary, self.encode_content)
        plain = self.images.plain if self.images is not None else str

        def value(slot: Slot) -> str:
            message = messages[slot.index]
            if slot.field == "content":
                return slot.transform(message.content)
            if slot.field == "name":
                return plain(message.name or "tool")
            return plain(message.tool_call_id or f"call{slot.index:05d}")

        return program.encode(value, self.encode_content)

    def knows(self, messages: Sequence[Message]) -> bool:
        """Whether messages of these roles were encoded before; the first ones take longer."""
        roles = tuple(message.role for message in messages)
        return (roles, ()) in self._programs or len(roles) > MAX_MESSAGES

    def _program(self, shape: _Shape) -> tuple[Layout, Program]:
        found = self._programs.get(shape)
        if found is None:
            roles, counts = shape
            if len(roles) > MAX_MESSAGES:
                raise UnsupportedTemplate(
                    f"{len(roles)} messages answer one turn; token ids are made for at most {MAX_MESSAGES}"
                )
            if len(self._programs) >= _CACHED:
                self._programs.pop(next(iter(self._programs)))
            place = self.images.place if self.images is not None else ""
            try:
                if self.same_turn is not None and counts:
                    raise UnsupportedTemplate("a dialect that goes on in the assistant's own turn shows no images")
                if self.same_turn is not None:
                    layout = _going_on(roles, self.same_turn, self.stop)
                else:
                    layout = derive(self.template, roles, self._stops, images=counts, place=place)
                program = Program.of(_with_places(layout, [place] * sum(counts)), self.vocabulary, self.encode_content)
                if self.same_turn is None:
                    self._check(layout, program, place)
                found = (layout, program)
            except UnsupportedTemplate as error:
                found = error
            self._programs[shape] = found
        if isinstance(found, UnsupportedTemplate):
            raise UnsupportedTemplate(str(found)) from found
        return found

    def _check(self, layout: Layout, program: Program, place: str) -> None:
        """Harmless contents must encode to what the whole tokenizer makes of the rendered text."""
        name = self.template.name
        if layout.stop not in self.vocabulary.added:
            raise UnsupportedTemplate(f"chat template {name} ends a turn with {layout.stop}, which is no single token")
        for content in _CHECKS:

            def value(slot: Slot, content: str = content) -> str:
                if slot.field == "image":
                    return place
                return slot.transform(content) if slot.field == "content" else "name00000"

            text = layout.stop + "".join(part if isinstance(part, str) else value(part) for part in layout.parts)
            whole = self.encode_text(text)
            made = [self.vocabulary.added[layout.stop], *program.encode(value, self.encode_content)]
            if whole != made:
                at = next((i for i, (a, b) in enumerate(zip(whole, made, strict=False)) if a != b), 0)
                raise UnsupportedTemplate(
                    f"chat template {name}: content cannot be encoded apart from its structure near "
                    f"{self.decode(whole[max(at - 3, 0) : at + 3])!r}"
                )


def _told_of_images(message: Message) -> Message:
    count = len(message.images)
    note = "1 image is not shown: it" if count == 1 else f"{count} images are not shown: they"
    note = f"[{note} cannot be seen here]"
    return replace(message, content=f"{message.content}\n{note}" if message.content else note, images=())


def _going_on(roles: Sequence[str], same_turn: SameTurn, stop: str) -> Layout:
    """The layout of messages that stand in the assistant's turn, each between the texts that its role has."""
    parts: list[str | Slot] = []
    for index, role in enumerate(roles):
        before, behind = same_turn.around(role)
        parts += [before, Slot("content", index, TRANSFORMS["as it is"]), behind]
    return Layout(stop, tuple(part for part in parts if part), drops_thinking=False, rewrites="")


def _with_places(layout: Layout, places: Sequence[str]) -> list[str | Slot]:
    """The parts of a layout with text in the place of every image."""
    return [places[part.index] if isinstance(part, Slot) and part.field == "image" else part for part in layout.parts]
