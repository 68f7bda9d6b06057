"""Plays dialogues through rlenv's token layer, and says of each turn whether what it did is what the template does.

Classes of a turn's observation:

- `equal`: accepted, and the ids are the template's for the whole conversation (`edge`: but for one merge across the
  edge between the generation prompt and what was sampled, which no policy could sample);
- `unequal`: accepted, though the template writes the conversation otherwise (the sin);
- `right`: refused, and the template does rewrite (or refuses) what was sampled;
- `needless`: refused, though the template only adds to it.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from rlenv.errors import EpisodeError, UnsupportedTemplate
from rlenv.messages import Message, Observation, ToolCall
from rlenv.tokens import TokenEncoder
from tests.real.oracle import Family, Oracle
from tests.real.stage import Dialogue, Turn

__all__ = ["SINS", "Finding", "Player", "Spoken", "kwargs_of", "seen"]

SINS = ("unequal", "prompt unequal", "error")

_NAMES = ("look_up", "order")
_HAS_THINKING = any(item.name == "thinking" for item in fields(Message))
_TAKES = inspect.signature(TokenEncoder.__init__).parameters
_THOUGHT = "k9z"
_KEYS = ("reasoning_content", "reasoning", "thinking", "inline")


@dataclass(frozen=True)
class Finding:
    """One turn that was not as it must be, with all that is needed to see it again."""

    family: str
    world: str
    mode: str
    kind: str
    number: int
    turn: int
    context: str
    sampled: str
    wanted: str
    found: str

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON-like values."""
        return asdict(self)


@dataclass(frozen=True)
class Spoken:
    """What the policy samples in a turn, and the conversations that the template may mean by it."""

    text: str  # protected, its end mark included
    after: tuple[str, ...]  # the template's renderings of the conversation with the answers, protected
    meant: tuple[dict[str, Any], ...]  # the assistant's message of each of them
    messages: tuple[dict[str, Any], ...]  # the assistant's message and the answers, as the first of them has it
    is_blind: bool


@dataclass
class Player:
    """Plays dialogues of one family, and counts."""

    family: Family
    history: str = "grow"
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # mode, world, class
    findings: list[Finding] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    unplayed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.family)
        self._keys: dict[bool, str | None] = {}
        self.bind_error = ""
        self.encoder: TokenEncoder | None = None
        try:
            self.encoder = self.bind(self.history)
        except UnsupportedTemplate as error:
            self.bind_error = str(error)

    def bind(self, history: str) -> TokenEncoder:
        """The encoder under test."""
        more: dict[str, Any] = {}
        if history not in ("grow", "rows") or "end_ids" in _TAKES:
            more["history"] = history
        if "end_ids" in _TAKES:
            ids = (self.family.tokenizer.token_to_id(end) for end in self.family.ends)
            more["end_ids"] = tuple(number for number in ids if number is not None)
        return TokenEncoder(self.family, template_kwargs=self.family.kwargs or None, **more)

    def total(self, kind: str) -> int:
        """How many turns were of a kind, in all worlds."""
        return sum(count for (_, _, one), count in self.counts.items() if one == kind)

    # what the policy says

    def _message(
        self, turn: Turn, index: int, content: Any, as_text: bool, key: str | None, thought: str | None
    ) -> Any:
        out: dict[str, Any] = {"role": "assistant", "content": turn.text or content}
        if thought is not None and key == "inline":
            out["content"] = f"<think>\n{thought}\n</think>\n\n{turn.text}"
        elif thought is not None and key is not None:
            out[key] = thought
        if turn.calls:
            out["tool_calls"] = [
                {
                    "id": _id(index, number),
                    "type": "function",
                    "function": {
                        "name": _NAMES[number % 2],
                        "arguments": f'{{"x": "{value}"}}' if as_text else {"x": value},
                    },
                }
                for number, value in enumerate(turn.calls)
            ]
        return out

    def _answers(self, turn: Turn, index: int) -> list[dict[str, Any]]:
        if not turn.calls:
            return [{"role": "user", "content": turn.answers[0]}]
        return [
            {"role": "tool", "content": text, "name": _NAMES[number % 2], "tool_call_id": _id(index, number)}
            for number, text in enumerate(turn.answers)
        ]

    def _signs(self, turn: Turn, thought: str | None) -> list[str]:
        """What a rendering of the turn must show, or the template does not write it."""
        signs = [value.split()[0] for value in turn.calls]
        signs += [word for word in turn.text.split() if word.startswith("c") and word.endswith("z")]
        return signs + ([thought.split()[-1]] if thought else [])

    def _forms(self, turn: Turn, index: int, thought: str | None) -> Iterator[tuple[str | None, dict[str, Any]]]:
        keys: Sequence[str | None] = _KEYS if thought is not None else (None,)
        for key in keys:
            for as_text in (False, True):
                for content in ("", None) if not turn.text else ("",):
                    yield key, self._message(turn, index, content, as_text, key, thought)
        takes_text = turn.calls and "tool_calls" not in self.family.source
        for key in keys if takes_text else ():  # templates that take calls as the text that was sampled
            message = self._message(turn, index, "", False, key, thought)
            calls = message.pop("tool_calls")
            message["content"] += "\n".join(f"<call>{call['function']}</call>" for call in calls)
            yield key, message

    def speak(self, said: list[dict[str, Any]], context: str, dialogue: Dialogue, index: int) -> list[Spoken] | str:
        """What the policy may sample in turn `index`, first what grows; a text where the template takes none."""
        turn, tools = dialogue.turns[index], dialogue.tools
        thought = {"": _THOUGHT}.get(turn.thinking, turn.thinking) if turn.thinking is not None else None
        signs, answers = self._signs(turn, thought), self._answers(turn, index)
        why = "the template does not write such a turn"
        for key, message in self._forms(turn, index, thought):
            try:
                alone = self.oracle.render([*said, message], tools, generate=False)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                continue
            if not all(sign in alone for sign in signs):
                continue
            return self._spoken(said, context, dialogue, index, message, key, alone, signs, answers)
        return why

    def _spoken(
        self,
        said: list[dict[str, Any]],
        context: str,
        dialogue: Dialogue,
        index: int,
        message: dict[str, Any],
        key: str | None,
        alone: str,
        signs: list[str],
        answers: list[dict[str, Any]],
    ) -> list[Spoken]:
        turn, tools = dialogue.turns[index], dialogue.tools
        meant = [message]
        if turn.thinking == "":
            bare = {name: value for name, value in message.items() if name != key}
            bare["content"] = turn.text or message["content"]
            if key == "inline":
                # Whoever reads the policy's text leaves an empty block in the content, or takes it for thinking.
                kept = message["content"].replace(_THOUGHT, "")
                meant = [{**message, "content": kept}, {**message, "content": turn.text}]
            else:
                meant = [{**bare, str(key): ""}, bare]
        elif key == "inline":  # or it is read as thinking, which a template may write nowhere
            meant.append({**message, "content": turn.text})
        after, taken = [], []
        for one in meant:
            try:
                after.append(self.oracle.render([*said, one, *answers], tools))
                taken.append(one)
            except Exception:
                continue
        first = (taken or meant)[0]
        blind = True
        if after:
            blind = self.oracle.is_blind([*said, first, *answers], tools, after[0])
        texts = []
        if turn.thinking != "":
            for whole in after:
                texts.append(self._grown(context, whole, signs))
        try:
            ended = self.oracle.render(said, tools, generate=False)
        except Exception:
            ended = context
        texts.append(self._canonical(context, ended, alone, signs, after))
        if turn.thinking == "":
            texts = [text and text.replace(_THOUGHT, "", 1) for text in texts]
        out = []
        for text in dict.fromkeys(text for text in texts if text):
            out.append(Spoken(text, tuple(after), tuple(taken), (first, *answers), blind))
        return out

    def _end_of(self, text: str, signs: list[str], start: int) -> int:
        """Behind the last sign of the turn; -1 where one is missing."""
        places = [text.find(sign, start) for sign in signs]
        if any(place < 0 for place in places):
            return -1
        return max(place + len(sign) for place, sign in zip(places, signs, strict=True))

    def _is_torn(self, text: str, start: int, behind: int) -> bool:
        """Whether the template writes a part of the turn behind its results, as Gemma 4 does with text beside calls."""
        return any(0 <= text.find(mark, start) < behind for mark in ("<|tool_response>", "<start_function_response>"))

    def _grown(self, context: str, whole: str, signs: list[str]) -> str:
        """The turn as it stands in the grown conversation, "" where the conversation does not grow."""
        if not whole.startswith(context):
            return ""
        behind = self._end_of(whole, signs, len(context))
        end = self.oracle.first_end(whole, behind) if behind >= 0 else None
        if self._is_torn(whole, len(context), behind):
            return ""
        return whole[len(context) : end[1]] if end is not None else ""

    def _begin(self, context: str, bare: str, alone: str, signs: list[str]) -> int:
        """Where the turn begins in a conversation that it ends, also where what stood before is changed."""
        if alone.startswith(context):
            return len(context)
        same = next((i for i, (a, b) in enumerate(zip(alone, context, strict=False)) if a != b), len(alone))
        # Only the generation prompt is another, or its last block, which some write without being asked to.
        if same >= len(bare) or (bare == context and not self.oracle.without_marks(context[same:]).strip()):
            return min(self.oracle.mark_at(text, same) for text in (alone, context))  # no mark is cut in two
        first = min((place for sign in signs if (place := alone.find(sign)) >= 0), default=len(alone))
        for length in range(30, 5, -1):
            place = alone.rfind(context[-length:], 0, first)
            if place >= 0:
                return place + length
        return self.oracle.mark_at(alone, same)

    def _canonical(self, context: str, bare: str, alone: str, signs: list[str], after: Sequence[str]) -> str:
        """The turn as the template writes it while it is the last one."""
        start = self._begin(context, bare, alone, signs)
        behind = self._end_of(alone, signs, start)
        if behind < 0 or self._is_torn(alone, start, behind):
            return ""
        end = self.oracle.first_end(alone, behind)
        if end is not None:
            return alone[start : end[1]]
        for whole in after:  # the next turn's first mark ends this one
            place = whole.rfind(alone[behind - 8 : behind])
            mark = self.oracle.first_end(whole, place + 8) if place >= 0 else None
            if mark is not None:
                return alone[start:].rstrip("\n") + whole[slice(*mark)]
        return alone[start:].rstrip("\n") + (self.family.ends[0] if self.family.ends else "")

    # what rlenv makes of it

    def play(self, dialogue: Dialogue, number: int) -> None:
        """One dialogue in each way that the policy may write it, in one row."""
        if self._play(dialogue, number, first=True):
            self._play(dialogue, number, first=False)

    def _first(self, dialogue: Dialogue) -> tuple[list[dict[str, Any]], str] | None:
        said = [{"role": "system", "content": dialogue.system}] if dialogue.system is not None else []
        said.append({"role": "user", "content": dialogue.question})
        try:
            return said, self.oracle.render(said, dialogue.tools)
        except Exception:
            return None

    def _play(self, dialogue: Dialogue, number: int, *, first: bool) -> bool:
        """Whether there is another way of writing the turns."""
        self.oracle.now = datetime.now()
        opening = self._first(dialogue)
        mode, world = self.history, dialogue.world
        if opening is None:
            self.counts[mode, world, "unplayed"] += 1
            self.unplayed[f"{world}: the template refuses the prompt"] += 1
            return False
        said, context = opening
        given = [Message(message["role"], message["content"]) for message in said]

        def note(kind: str, turn: int, *texts: str) -> None:
            self.counts[mode, world, kind] += 1
            if kind in ("unequal", "needless", "prompt unequal", "prompt needless", "silent", "error"):
                self.findings.append(Finding(self.family.name, world, mode, kind, number, turn, *texts))

        trajectory = None
        if self.encoder is not None:
            try:
                trajectory = self.encoder.start(given, tools=list(dialogue.tools))
                self.oracle.now = trajectory.story.now
                said, context = self._first(dialogue) or opening
                if trajectory.prompt_ids == self.oracle.ids(context):
                    self.counts[mode, world, "prompt equal"] += 1
                elif not self.oracle.is_blind(said, dialogue.tools, context):
                    self.counts[mode, world, "prompt reads marks"] += 1
                else:
                    note(
                        "prompt unequal", -1, context, "", *self._apart(self.oracle.ids(context), trajectory.prompt_ids)
                    )
            except (UnsupportedTemplate, EpisodeError) as error:
                note("prompt needless", -1, context, "", "", str(error))
                return False
        is_other = False
        for index in range(len(dialogue.turns)):
            options = self.speak(said, context, dialogue, index)
            if isinstance(options, str) or not options:
                self.counts[mode, world, "unplayed"] += 1
                self.unplayed[f"{world}: {options or 'no end of the turn'}"[:160]] += 1
                return is_other
            is_other = is_other or len(options) > 1
            spoken = options[0] if first else options[-1]
            full = context + spoken.text
            grown = [whole for whole in spoken.after if whole.startswith(full)]
            answers = Observation(tuple(_told(message) for message in spoken.messages[1:]))
            refusal = self.bind_error
            sampled: list[int] = []
            before: list[int] = []
            if trajectory is not None:
                before = trajectory.context_ids
                whole_ids = self.oracle.ids(full)
                sampled = (
                    whole_ids[len(before) :] if whole_ids[: len(before)] == before else self.oracle.ids(spoken.text)
                )
                try:
                    trajectory.add_sampled(sampled)
                    trajectory.add_observation(answers)
                except UnsupportedTemplate as fault:
                    refusal = str(fault)
                except Exception as fault:
                    note("error", index, context[-400:], spoken.text, "", f"{type(fault).__name__}: {fault}")
                    return is_other
            if refusal:
                if not grown:
                    note("right", index)
                    self.refusals[refusal[:300]] += 1
                else:
                    note("needless", index, context[-600:], spoken.text, grown[0][len(full) :], refusal)
                return is_other
            assert trajectory is not None
            found = trajectory.context_ids
            if not grown:
                told = len(getattr(trajectory, "differences", ()))
                kind = "unequal" if mode != "keep" else "told" if told else "silent"
                note(kind, index, context[-600:], spoken.text, *_parting(spoken.after, full))
                return is_other
            if mode == "keep" and getattr(trajectory, "differences", None):
                note("needless", index, context[-600:], spoken.text, grown[0][len(full) :],
                     "differences: " + str(trajectory.differences[-1]))  # fmt: skip
                return is_other
            kind = self._judged(grown, full, before, sampled, found, spoken)
            if kind == "unequal":
                wanted = [*before, *sampled, *self.oracle.ids(grown[0][len(full) :])]
                note("unequal", index, context[-600:], spoken.text, *self._apart(wanted, found))
                return is_other
            note(kind, index)
            context = next(whole for whole in grown)
            said = [*said, *spoken.messages]
        return is_other

    def _judged(
        self, grown: list[str], full: str, before: list[int], sampled: list[int], found: list[int], spoken: Spoken
    ) -> str:
        for whole in grown:
            if found == self.oracle.ids(whole):
                return "equal"
        for whole in grown:
            if found == [*before, *sampled, *self.oracle.ids(whole[len(full) :])]:
                return "edge"
        if not spoken.is_blind:
            return "reads marks"
        return "unequal"

    def _apart(self, wanted: Sequence[int], found: Sequence[int]) -> tuple[str, str]:
        at = next(
            (i for i, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), min(len(wanted), len(found))
        )
        lo = max(at - 12, 0)
        return tuple(
            f"…at {at} of {len(ids)}: {self.oracle.decode(ids[lo:at])!r} | {self.oracle.decode(ids[at : at + 24])!r}"
            f" {list(ids[at : at + 6])}"
            for ids in (wanted, found)
        )  # type: ignore[return-value]

    def play_rows(self, dialogue: Dialogue, number: int) -> None:
        """One dialogue as training rows: every row's prompt is the template's rendering of the conversation."""
        opening, encoder = self._first(dialogue), self.encoder
        if opening is None or encoder is None:
            return
        said, context = opening
        world = dialogue.world

        def note(kind: str, turn: int, *texts: str) -> None:
            self.counts["rows", world, kind] += 1
            if kind in ("unequal", "needless", "error", "masks"):
                self.findings.append(Finding(self.family.name, world, "rows", kind, number, turn, *texts))

        try:
            rows = encoder.start_rows([Message(m["role"], m["content"]) for m in said], tools=list(dialogue.tools))
            self.oracle.now = rows.last.story.now
            said, context = self._first(dialogue) or opening
        except (UnsupportedTemplate, EpisodeError):
            return
        total = 0
        for index in range(len(dialogue.turns)):
            options = self.speak(said, context, dialogue, index)
            if isinstance(options, str) or not options:
                break
            spoken = options[-1]
            full = context + spoken.text
            grown = [whole for whole in spoken.after if whole.startswith(full)]
            before = rows.last.context_ids
            whole_ids = self.oracle.ids(full)
            sampled = whole_ids[len(before) :] if whole_ids[: len(before)] == before else self.oracle.ids(spoken.text)
            count = len(rows.rows)
            total += len(sampled)
            try:
                rows.add_sampled(sampled)
                fits = rows.add_observation(
                    Observation(tuple(_told(m) for m in spoken.messages[1:])),
                    said=_said(spoken.messages[0], dialogue.turns[index], index),
                )
            except UnsupportedTemplate as fault:
                kind = "right" if not spoken.after else "needless"
                note(kind, index, context[-600:], spoken.text, (*spoken.after, "")[0][-600:], str(fault))
                break
            except Exception as fault:
                note("error", index, context[-600:], spoken.text, "", f"{type(fault).__name__}: {fault}")
                break
            if not fits:
                note("error", index, context[-600:], spoken.text, "", rows.reason)
                break
            found = rows.last.context_ids
            if len(rows.rows) > count:
                if any(found == self.oracle.ids(whole) for whole in spoken.after):
                    note("new row" if not grown else "new row, needless", index)
                elif not spoken.is_blind:
                    note("reads marks", index)
                else:
                    wanted = self.oracle.ids(spoken.after[0]) if spoken.after else []
                    note("unequal", index, context[-600:], spoken.text, *self._apart(wanted, found))
                    break
                read = next((i for i, w in enumerate(spoken.after) if found == self.oracle.ids(w)), 0)
                context = (*spoken.after, "")[read]
                said = [*said, *spoken.meant[read : read + 1], *spoken.messages[1:]]
            else:
                kind = self._judged(grown, full, before, sampled, found, spoken) if grown else "unequal"
                if kind == "unequal":
                    wanted = self.oracle.ids((*grown, *spoken.after, "")[0])
                    note("unequal", index, context[-600:], spoken.text, *self._apart(wanted, found))
                    break
                note(kind, index)
                context = grown[0]
                said = [*said, *spoken.messages]
        else:
            if sum(sum(row.mask) for row in rows.rows) != total:
                note("masks", -1, "", "", str(total), str([sum(row.mask) for row in rows.rows]))


def _parting(after: Sequence[str], full: str) -> tuple[str, str]:
    """Where the template's rendering leaves what was said."""
    if not after:
        return "(the template refuses this conversation)", "(accepted)"
    at = next((i for i, (a, b) in enumerate(zip(after[0], full, strict=False)) if a != b), 0)
    lo = max(at - 60, 0)
    return tuple(f"…{text[lo:at]!r} | {text[at : at + 160]!r}" for text in (after[0], full))  # type: ignore[return-value]


def _id(index: int, number: int) -> str:
    return f"call{index:02d}{number:03d}"


def _told(message: Mapping[str, Any]) -> Message:
    return Message(
        message["role"], message["content"], name=message.get("name"), tool_call_id=message.get("tool_call_id")
    )


def _said(message: Mapping[str, Any], turn: Turn, index: int) -> Message:
    """The assistant's message as an environment gives it to the rows."""
    calls = tuple(ToolCall(_NAMES[n % 2], {"x": value}, id=_id(index, n)) for n, value in enumerate(turn.calls))
    more: dict[str, Any] = {}
    content = turn.text
    if turn.thinking and _HAS_THINKING:
        more["thinking"] = turn.thinking
    elif turn.thinking:
        content = f"<think>\n{turn.thinking}\n</think>\n\n{content}"
    return Message("assistant", content, calls, **more)


def kwargs_of(source: str) -> list[dict[str, bool]]:
    return [{}, {"enable_thinking": False}] if "enable_thinking" in source else [{}]


def seen(player: Player, *kinds: str) -> str:
    """The first findings of these kinds, as a message."""
    lines = [json.dumps(one.as_dict(), ensure_ascii=False, indent=1) for one in player.findings if one.kind in kinds]
    return f"{len(lines)} turns; the first:\n" + "\n".join(lines[:2])
