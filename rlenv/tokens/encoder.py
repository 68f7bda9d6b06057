"""A tokenizer and a chat template, bound together once a process: exact token ids for prompts and observations."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import orjson

from rlenv.errors import EpisodeError, UnsupportedTemplate, UsageError
from rlenv.messages import Message
from rlenv.tokens.chat_template import ChatTemplate
from rlenv.tokens.cut import Keep, token_cut
from rlenv.tokens.program import Program
from rlenv.tokens.rows import TokenRows
from rlenv.tokens.slots import TRANSFORMS, Layout, Slot, derive
from rlenv.tokens.trajectory import TokenTrajectory
from rlenv.tokens.vocabulary import Vocabulary, encode, fast_tokenizer

__all__ = ["TokenEncoder"]

_CACHED = 256
_MARK = "\ue000c0\ue000"
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
        stop: the token that ends an assistant's turn; found from the tokenizer and the template where it is None.
        history: what to do where a template would drop earlier thinking (Qwen3 at a new user turn): "refuse" raises
            UnsupportedTemplate, "keep" goes on with the ids as they were sampled.

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
        stop: str | None = None,
        history: Literal["refuse", "keep"] = "refuse",
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
        self.history = history
        self.vocabulary = Vocabulary(backend)
        self.template = ChatTemplate(source, name=name, values={**special, **(template_kwargs or {})})
        eos = getattr(tokenizer, "eos_token", None) or self.template.values.get("eos_token")
        self._stops = tuple(mark for mark in (stop, eos) if mark)
        self._programs: dict[tuple[str, ...], tuple[Layout, Program] | UnsupportedTemplate] = {}
        self._prompts: dict[bytes, Program] = {}
        leaks = self.vocabulary.leaks()
        if leaks:
            raise UnsupportedTemplate(
                f"tokenizer {name}: plain text makes the control tokens {', '.join(map(repr, leaks[:5]))}; content"
                " could not be told from structure"
            )
        try:
            layout = self._program(("tool",))[0]
        except UnsupportedTemplate:
            layout = self._program(("user",))[0]
        self.stop = layout.stop
        self.stop_id = self.vocabulary.added[layout.stop]
        eos_id = self.vocabulary.added.get(str(eos))
        self.end_ids = frozenset({self.stop_id} | ({eos_id} if eos_id is not None else set()))

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
        return token_cut(self.vocabulary.plain, max_tokens=max_tokens, keep=keep)

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
                `max_total_tokens` (`reason` is "total_tokens").
        """
        return self._trajectory(
            self.encode_prompt(messages, tools=tools),
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
        return self._trajectory(self._encode_history(messages, said, tools), **limits)

    def _encode_history(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        said: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> array[int]:
        """The ids of a conversation in which the environment's later contents are text, whatever they hold."""
        first = [m.as_dict() if isinstance(m, Message) else dict(m) for m in messages]
        later = [message.as_dict() for message in said]
        open_slots = [index for index, message in enumerate(said) if message.role != "assistant"]
        marked = [
            {**message, "content": f"{_MARK}{index}{_MARK}"} if index in open_slots else message
            for index, message in enumerate(later)
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
                program = Program.of(parts, self.vocabulary, self.encode_content)
                return program.encode(lambda slot: slot.transform(said[slot.index].content), self.encode_content)
        raise UnsupportedTemplate(
            f"chat template {self.template.name} changes the contents of a conversation in a way that is not known"
        )

    def _trajectory(
        self,
        ids: array[int],
        *,
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
            max_response_tokens=max_response_tokens,
            max_total_tokens=max_total_tokens,
            max_observation_tokens=max_observation_tokens,
            keep=keep,
        )

    def encode_prompt(
        self, messages: Sequence[Message | Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> array[int]:
        """The ids of the template's rendering, generation prompt included, as an array of type q.

        Prompts that differ in their last user message only share the work for all that stands before it.
        """
        given = [m.as_dict() if isinstance(m, Message) else dict(m) for m in messages]
        last = given[-1] if given else {}
        content = last.get("content")
        if last.get("role") != "user" or not isinstance(content, str):
            return array("q", self.encode_text(self.template.render(given, tools=tools)))
        try:
            key = orjson.dumps((given[:-1], {**last, "content": None}, tools))
        except TypeError:
            return array("q", self.encode_text(self.template.render(given, tools=tools)))
        program = self._prompts.get(key)
        if program is None:
            program = self._prompt_program(given, last, tools)
            if len(self._prompts) >= _CACHED:
                self._prompts.pop(next(iter(self._prompts)))
            self._prompts[key] = program
        if not program.pieces:
            return array("q", self.encode_text(self.template.render(given, tools=tools)))
        return program.encode(lambda slot: slot.transform(content), self.encode_text)

    def _prompt_program(
        self, given: list[dict[str, Any]], last: dict[str, Any], tools: Sequence[Mapping[str, Any]]
    ) -> Program:
        """The program of a prompt with a slot for its last content; an empty one where the template has no such."""

        def render(content: str) -> str:
            return self.template.render([*given[:-1], {**last, "content": content}], tools=tools)

        try:
            text = render(_MARK)
            before, mark, after = text.partition(_MARK)
            for probe in (*_CHECKS, "", "  \n ", "<think>x</think>", "<tool_response>\nx\n</tool_response>"):
                if not mark or render(probe) != before + probe + after:
                    return Program(())
        except UnsupportedTemplate:
            return Program(())
        program = Program.of(
            (before, Slot("content", 0, lambda content: content), after), self.vocabulary, self.encode_text
        )
        for probe in _CHECKS:
            whole = self.encode_text(render(probe))
            if program.encode(lambda _, probe=probe: probe, self.encode_text).tolist() != whole:  # type: ignore[misc]
                return Program(())
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
        if fault and self.history == "refuse":
            raise UnsupportedTemplate(
                f"chat template {self.template.name} rewrites what was sampled before a message of {', '.join(roles)}: "
                f'{fault}; start a new row there (start_rows), or go on with the sampled ids by history="keep"'
            )

    def rewrites(self, roles: Sequence[str], *, after_thinking: bool = False) -> str:
        """How the template changes earlier turns once messages of `roles` follow, "" where it only grows.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for messages of these roles.
        """
        layout = self._program(tuple(roles))[0]
        if not layout.rewrites and after_thinking and layout.drops_thinking:
            return "it drops the thinking of earlier turns once these messages follow"
        return layout.rewrites

    def encode_messages(self, messages: Sequence[Message]) -> array[int]:
        """The ids between an assistant's stop mark and the next sampled token, for messages that answer a turn.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for messages of these roles.
        """
        _, program = self._program(tuple(message.role for message in messages))

        def value(slot: Slot) -> str:
            message = messages[slot.index]
            if slot.field == "content":
                return slot.transform(message.content)
            if slot.field == "name":
                return message.name or "tool"
            return message.tool_call_id or f"call{slot.index:05d}"

        return program.encode(value, self.encode_content)

    def _program(self, roles: tuple[str, ...]) -> tuple[Layout, Program]:
        found = self._programs.get(roles)
        if found is None:
            try:
                layout = derive(self.template, roles, self._stops)
                program = Program.of(layout.parts, self.vocabulary, self.encode_content)
                self._check(layout, program)
                found = (layout, program)
            except UnsupportedTemplate as error:
                found = error
            self._programs[roles] = found
        if isinstance(found, UnsupportedTemplate):
            raise UnsupportedTemplate(str(found)) from found
        return found

    def _check(self, layout: Layout, program: Program) -> None:
        """Harmless contents must encode to what the whole tokenizer makes of the rendered text."""
        name = self.template.name
        if layout.stop not in self.vocabulary.added:
            raise UnsupportedTemplate(f"chat template {name} ends a turn with {layout.stop}, which is no single token")
        for content in _CHECKS:

            def value(slot: Slot, content: str = content) -> str:
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
