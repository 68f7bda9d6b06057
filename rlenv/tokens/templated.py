"""Raw text exactly as a chat template writes it, for policies without a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rlenv.dialects.base import Dialect
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message, ParsedAction
from rlenv.tokens.chat_template import ChatTemplate
from rlenv.tokens.images import as_template_reads
from rlenv.tokens.layouts import Layout, NoStopMark, Slot
from rlenv.tokens.slots import STOPS, Deriver

__all__ = ["TemplatedDialect"]


class TemplatedDialect:
    """A dialect whose conversations are a chat template's own text; calls are read and written by the dialect inside.

    Prompts are rendered; what follows an assistant's turn is derived from the template once for each sequence of
    roles, as token-exact observations are.

    Args:
        dialect: reads and writes calls.
        source: the template's Jinja text.
        name: how errors call the template.
        values: names that the template reads beside the conversation, such as `bos_token`.
        stop: the mark, or the marks, that end an assistant's turn, where the template's is not a common one.

    Raises:
        UnsupportedTemplate: a syntax error in the template.
    """

    begins: Final = True
    """A chat server, too, puts nothing before what the template writes."""

    def __init__(
        self,
        dialect: Dialect,
        source: str,
        *,
        name: str = "of this dialect",
        values: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> None:
        self.name = dialect.name
        self._dialect = dialect
        self._template = ChatTemplate(source, name=name, values={"bos_token": "", "eos_token": "", **(values or {})})
        eos = str((values or {}).get("eos_token", ""))
        named = (stop,) if isinstance(stop, str) else tuple(stop or ())
        self._stops = tuple(mark for mark in (*named, eos) if mark)
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._refused: set[tuple[str, ...]] = set()

    @property
    def turn_ends(self) -> tuple[str, ...]:
        """The marks that end an assistant's turn: those that are named, else the template's; () where it has none."""
        for roles in (("user",), ("tool",)) if not self._stops else ():
            try:
                layout = self._layout(roles)
            except UnsupportedTemplate:
                continue
            return (layout.stop.strip(),) if layout.ends_turns and layout.stop.strip() else ()
        return self._stops

    def parse(self, text: str, tools: Mapping[str, Any] | None = None) -> ParsedAction:
        """What the dialect inside reads."""
        return self._dialect.parse(text, tools)

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """The template's rendering with its generation prompt.

        Raises:
            UnsupportedTemplate: the template refuses the messages.
        """
        return self._template.render(list(map(as_template_reads, messages)), tools=tools)

    def render_action(self, message: Message) -> str:
        """What the dialect inside writes."""
        return self._dialect.render_action(message)

    def render_observation(self, messages: Sequence[Message]) -> str:
        """The stop mark of the assistant's turn and what the template writes behind it.

        How many calls a turn holds is the policy's choice: a template that refuses several results is given them as
        one, a line break between them.

        Raises:
            UnsupportedTemplate: it changes contents in a way that is not known.
        """
        roles = tuple(message.role for message in messages)
        if roles in self._refused:
            return self.render_observation(_as_one(messages))
        try:
            layout = self._layout(roles)
        except UnsupportedTemplate:
            if len(roles) == 1 or set(roles) != {"tool"}:
                raise
            self._refused.add(roles)
            return self.render_observation(_as_one(messages))

        def value(part: str | Slot) -> str:
            if isinstance(part, str):
                return part
            message = messages[part.index]
            if part.field == "content":
                return part.transform(message.content)
            return message.name or "tool" if part.field == "name" else message.tool_call_id or f"call{part.index:05d}"

        return layout.stop + "".join(map(value, layout.parts))

    def _layout(self, roles: tuple[str, ...]) -> Layout:
        layout = self._layouts.get(roles)
        if layout is None:
            layout = Deriver(self._template, self._stops).layout(roles)
            self._check_stop(layout)
            self._layouts[roles] = layout
        return layout

    def _check_stop(self, layout: Layout) -> None:
        """Refuses a guess that may be wrong: without a tokenizer, any tag in front of the next message looks like a
        stop mark, also the one that closes a call."""
        if layout.stop in (*self._stops, *STOPS):
            return
        said = "\ue000said\ue000"
        answer = [{"role": "user", "content": "u"}, {"role": "assistant", "content": said}]
        behind = self._template.render(answer, add_generation_prompt=False).rpartition(said)[2].strip()
        if behind and not behind.startswith(layout.stop):
            raise NoStopMark(self._template.name, behind)


def _as_one(results: Sequence[Message]) -> tuple[Message, ...]:
    """Several results as one message, under the name and the id of the first."""
    return (replace(results[0], content="\n".join(message.content for message in results)),)
