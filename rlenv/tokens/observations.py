"""The ids of what answers a turn, by the layout that the chat template has for it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlenv._base.bounded import drop_oldest
from rlenv.dialects.base import SameTurn
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens.images import ProcessorImages
from rlenv.tokens.layouts import TRANSFORMS, Layout, Slot
from rlenv.tokens.program import Program
from rlenv.tokens.prompt_ids import CHECKS, call_id
from rlenv.tokens.slots import Deriver
from rlenv.tokens.vocabulary import Vocabulary, encode

__all__ = ["MAX_MESSAGES", "Observations"]

MAX_MESSAGES: Final = 256
"""The most messages that may answer one turn; a policy decides how many calls it writes."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Derives layouts and makes programs of them, each once; shared by all trajectories of a process."""

    deriver: Deriver
    vocabulary: Vocabulary
    images: ProcessorImages | None
    same_turn: SameTurn | None
    kept: dict[Layout, Program | UnsupportedTemplate] = field(default_factory=dict)

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
        stop = self.deriver.layout(("user",)).stop
        return _going_on(roles, self.same_turn, stop)

    def program(self, layout: Layout) -> Program:
        """The program of a layout; images stand as their placeholders.

        Raises:
            UnsupportedTemplate: contents cannot be encoded apart from its structure.
        """
        found = self.kept.get(layout)
        if found is None:
            try:
                found = Program.of(_with_places(layout, None, self.deriver.place), self.vocabulary, self._plain)
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
            program = Program.of(_with_places(layout, places, self.deriver.place), self.vocabulary, self._plain)
        plain = self.images.plain if self.images is not None else str

        def value(slot: Slot) -> str:
            message = messages[slot.index]
            if slot.field == "content":
                return slot.transform(message.content)
            if slot.field == "name":
                return plain(message.name or "tool")
            return plain(message.tool_call_id or call_id(slot.index))

        return program.encode(value, self._plain)

    def _plain(self, text: str) -> list[int]:
        return encode(self.vocabulary.plain, text)

    def _check(self, layout: Layout, program: Program) -> None:
        """Harmless contents must encode to what the whole tokenizer makes of the rendered text."""
        name = self.deriver.template.name
        if layout.stop not in self.vocabulary.added:
            raise UnsupportedTemplate(f"chat template {name} ends a turn with {layout.stop}, which is no single token")
        for content in CHECKS:

            def value(slot: Slot, content: str = content) -> str:
                if slot.field == "image":
                    return self.deriver.place
                return slot.transform(content) if slot.field == "content" else "name00000"

            whole = encode(self.vocabulary.full, layout.stop + layout.text(value))
            made = [self.vocabulary.added[layout.stop], *program.encode(value, self._plain)]
            if whole != made:
                at = next((i for i, (a, b) in enumerate(zip(whole, made, strict=False)) if a != b), 0)
                near = self.vocabulary.full.decode(whole[max(at - 3, 0) : at + 3], skip_special_tokens=False)
                raise UnsupportedTemplate(
                    f"chat template {name}: content cannot be encoded apart from its structure near {near!r}"
                )


def _going_on(roles: Sequence[str], same_turn: SameTurn, stop: str) -> Layout:
    """The layout of messages that stand in the assistant's turn, each between the texts that its role has."""
    parts: list[str | Slot] = []
    for index, role in enumerate(roles):
        before, behind = same_turn.around(role)
        parts += [before, Slot("content", index, TRANSFORMS["as it is"]), behind]
    return Layout(stop, tuple(part for part in parts if part))


def _with_places(layout: Layout, places: Sequence[str] | None, place: str) -> list[str | Slot]:
    """The parts of a layout with text in the place of every image."""
    return [
        (place if places is None else places[part.index]) if isinstance(part, Slot) and part.field == "image" else part
        for part in layout.parts
    ]
