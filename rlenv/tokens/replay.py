"""Plays dialogues with an encoder and compares each step with the template's own rendering, encoded independently.

The policy of a dialogue samples the text that the template itself would write for its turn, with thinking or an empty
block of it where the dialogue says so. Each observation is then one of

- `exact`: the template's rendering goes on behind the context, and every id is that of the independent encoding;
- `rewritten`: it does not, and the encoder did what its history promises: refused, counted, or a new row that is exact;
- `needless`: it does, and the encoder refused it, counted it or began a row all the same;
- `refused`: the encoder cannot encode it whatever the history;
- `taken out`: the template itself takes no such conversation;
- `failed`: ids are not the template's, or a rewritten history was accepted in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rlenv._base.text import changed_outside, shared_length, texts_in, with_texts
from rlenv.dialects.built_in import Spans
from rlenv.errors import EpisodeError, UnsupportedTemplate
from rlenv.messages import Message, Observation
from rlenv.tokens.dialogues import Dialogue, PlayedTurn, Speaker, Spoken
from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.rows import TokenRows
from rlenv.tokens.vocabulary import Vocabulary, encode

_OPEN, _CLOSE = "\U000f0000", "\U000f0001"
_NAMES: Final = 0xF0100
_HIDDEN: Final = 0xF8000


class Independent:
    """Encodes what a template wrote, in which the contents of the environment are text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from tokenizers import AddedToken  # type: ignore[import-untyped]

        full: Any = vocabulary.full
        self._vocabulary = vocabulary
        self._clone: Any = type(full)(full.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(full, part) is not None:
                setattr(self._clone, part, getattr(full, part))
        self._names: dict[str, str] = {}
        self._hidden: dict[str, str] = {}
        added, blank = [], []
        for number, token in enumerate(full.get_added_tokens_decoder().values()):
            if token.content in vocabulary.added and not token.content.strip():
                blank.append(token)
                continue
            name = f"{_OPEN}{chr(_NAMES + number)}{_CLOSE}"
            self._names[token.content] = name
            self._hidden[token.content] = f"{_OPEN}{chr(_HIDDEN + number)}{_CLOSE}"
            flags = {flag: getattr(token, flag) for flag in ("special", "lstrip", "rstrip", "single_word")}
            added.append(AddedToken(name, normalized=False, **flags))
        self._clone.add_tokens([*blank, *added])
        self._back = {self._clone.token_to_id(name): vocabulary.added[mark] for mark, name in self._names.items()}

    def hide(self, value: Any, authored: Spans = ()) -> Any:
        """A JSON-like value in whose texts no control token is spelled, but in what the spec's author wrote."""
        if isinstance(value, str):
            return changed_outside(value, authored, self._without)
        return with_texts(value, self._without)

    def _without(self, text: str) -> str:
        parts = self._vocabulary.split(text)
        return "".join(self._hidden[part] if place % 2 else part for place, part in enumerate(parts))

    def ids(self, text: str, hidden: str | None = None) -> list[int] | None:
        """The ids of a rendering.

        Args:
            hidden: the same of contents that `hide` changed; None where they spell nothing.

        Returns:
            None where the two are not the same but for that: the template looks into contents.
        """
        if hidden is None:
            hidden = text
        elif self._shown(hidden) != text:
            return None
        parts = self._vocabulary.split(hidden)
        named = "".join(self._names[part] if place % 2 else part for place, part in enumerate(parts))
        made = encode(self._clone, self._shown(named))
        return [self._back.get(number, number) for number in made]

    def _shown(self, text: str) -> str:
        if _OPEN not in text and "\\udb80" not in text:
            return text
        for mark, hidden in self._hidden.items():
            text = text.replace(hidden, mark)
            text = text.replace(json.dumps(hidden)[1:-1], json.dumps(mark)[1:-1])
        return text


def spells(vocabulary: Vocabulary, values: Sequence[Any]) -> bool:
    """True if a text of JSON-like values spells a control token."""
    return any(len(vocabulary.split(text)) > 1 for text in texts_in(values))


Status = Literal["exact", "rewritten", "needless", "refused", "taken out", "failed"]
_AROUND: Final = 4  # ids shown before and behind a difference


@dataclass(frozen=True, slots=True)
class IdDifference:
    """The first place where two lists of ids part: the ids around it, and their texts, side by side."""

    at: int
    expected: tuple[tuple[int, str], ...]
    found: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The outcome of one observation, or of a prompt (`turn` is -1)."""

    status: Status
    turn: int
    detail: str = ""
    difference: IdDifference | None = None


def compare(encoder: TokenEncoder, expected: Sequence[int], found: Sequence[int]) -> IdDifference | None:
    """The first difference of two lists of ids, None where they are equal."""
    if list(expected) == list(found):
        return None
    at = shared_length(list(expected), list(found))

    def shown(ids: Sequence[int]) -> tuple[tuple[int, str], ...]:
        return tuple((number, encoder.decode([number])) for number in ids[max(at - _AROUND, 0) : at + _AROUND + 1])

    return IdDifference(at, shown(expected), shown(found))


class _Ended(Exception):
    """A dialogue goes no further; carries the last outcome, None where it was told already."""

    def __init__(self, outcome: ReplayOutcome | None = None) -> None:
        self.outcome = outcome
        super().__init__()


class Replay:
    """Plays dialogues with one encoder."""

    def __init__(self, encoder: TokenEncoder) -> None:
        self.encoder = encoder
        self.independent = Independent(encoder.vocabulary)
        self.speaker = Speaker(encoder)

    def play(self, dialogue: Dialogue) -> Iterator[ReplayOutcome]:
        """The outcomes of a dialogue's prompt and of its observations, up to where it cannot go on."""
        try:
            yield from _Played(self, dialogue).outcomes()
        except _Ended as ended:
            if ended.outcome is not None:
                yield ended.outcome


class _Played:
    """One dialogue on its way."""

    def __init__(self, replay: Replay, dialogue: Dialogue) -> None:
        self.encoder, self.independent, self.speaker = replay.encoder, replay.independent, replay.speaker
        self.dialogue = dialogue
        said = [turn.message.content for turn in dialogue.turns]
        told = [message.content for turn in dialogue.turns for message in turn.answers]
        first = [message.content for message in dialogue.messages]
        # Contents that spell nothing need no second rendering.
        self.spells = spells(self.encoder.vocabulary, [*said, *told, *first, *dialogue.tools])
        self.number = -1

    def outcomes(self) -> Iterator[ReplayOutcome]:
        rows = self._start()
        conversation = [(message, self.speaker.of(message)) for message in self.dialogue.messages]
        yield self._prompt(rows, conversation)
        for number, turn in enumerate(self.dialogue.turns):
            self.number = number
            conversation, outcome, goes_on = self._turn(rows, conversation, turn)
            yield outcome
            if not goes_on:
                return

    def _end(self, status: Status, detail: str, difference: IdDifference | None = None) -> _Ended:
        return _Ended(ReplayOutcome(status, self.number, detail, difference))

    def _start(self) -> TokenRows:
        try:
            return self.encoder.start_rows(self.dialogue.messages, tools=self.dialogue.tools)
        except (UnsupportedTemplate, EpisodeError) as error:
            self._render([(message, self.speaker.of(message)) for message in self.dialogue.messages])
            raise self._end("refused", str(error)) from error

    def _render(self, conversation: Sequence[tuple[Message, dict[str, Any]]], now: Any = None) -> str:
        try:
            return self.encoder.template.render([told for _, told in conversation], tools=self.dialogue.tools, now=now)
        except UnsupportedTemplate as error:
            raise self._end("taken out", str(error)) from error

    def _ids(
        self, conversation: Sequence[tuple[Message, dict[str, Any]]], text: str, now: Any, *, is_prompt: bool
    ) -> list[int]:
        """The independent ids of a rendering; what the policy says is text too where it became part of a prompt."""
        hidden = None
        said = [told.get("content") for message, told in conversation if is_prompt and message.role == "assistant"]
        if self.spells or spells(self.encoder.vocabulary, said):
            messages = [self._hidden(message, told, is_prompt) for message, told in conversation]
            try:
                tools = self.independent.hide(self.dialogue.tools)
                hidden = self.encoder.template.render(messages, tools=tools, now=now)
            except UnsupportedTemplate as error:
                raise self._end("taken out", str(error)) from error
        ids = self.independent.ids(text, hidden)
        if ids is None:
            raise self._end("taken out", "the template looks into contents that spell control tokens")
        return ids

    def _hidden(self, message: Message, told: dict[str, Any], is_prompt: bool) -> dict[str, Any]:
        if message.role == "assistant":
            if not is_prompt:
                return told
            # The marks around thinking that stands in the content are the policy's own still.
            content = told.get("content")
            kept = len(content) - len(message.content) if isinstance(content, str) and message.thinking else 0
            return {**told, "content": self.independent.hide(content, ((0, kept),) if kept > 0 else ())}
        shown = {key: item if key == "role" else self.independent.hide(item) for key, item in told.items()}
        return {**shown, "content": self.independent.hide(told["content"], message.authored)}

    def _prompt(self, rows: TokenRows, conversation: list[tuple[Message, dict[str, Any]]]) -> ReplayOutcome:
        now = rows.last.story.now
        text = self._render(conversation, now)
        expected = self._ids(conversation, text, now, is_prompt=True)
        difference = compare(self.encoder, expected, rows.last.prompt_ids)
        if difference is not None:
            raise self._end("failed", "the prompt's ids are not the rendering's", difference)
        return ReplayOutcome("exact", -1)

    def _turn(
        self, rows: TokenRows, conversation: list[tuple[Message, dict[str, Any]]], turn: PlayedTurn
    ) -> tuple[list[tuple[Message, dict[str, Any]]], ReplayOutcome, bool]:
        now = rows.last.story.now
        text = self._render(conversation, now)
        try:
            spoken = self.speaker.speak([told for _, told in conversation], turn, self.dialogue.tools, now=now)
        except UnsupportedTemplate as error:
            raise self._end("taken out", str(error)) from error
        answers = [(message, self.speaker.of(message)) for message in turn.answers]
        longer = [*conversation, (spoken.message, spoken.told), *answers]
        after = self._render(longer, now)
        end = self._end_of_turn(after, spoken, len(text) if after.startswith(text) else 0)
        whole = self._ids(longer, after, now, is_prompt=False)
        tail = self._tail(longer, after, end, now, whole)
        context = rows.last.context_ids
        stop_id = self.encoder.vocabulary.added[end[1]]
        sampled = self._sampled(whole, context, spoken.text, stop_id, after, text)
        rows.add_sampled(sampled, [-0.5] * len(sampled))
        grows = after.startswith(text + spoken.text + end[1])
        counted, before = len(rows.differences), len(rows.rows)
        try:
            fits = rows.add_observation(Observation(turn.answers), said=spoken.message)
        except UnsupportedTemplate as error:
            raise self._refused(str(error), grows) from error
        assert fits  # there is no budget
        self._check_mask(rows)
        if len(rows.rows) > before:
            return longer, self._new_row(rows, longer, after, now, grows), True
        if not grows and self.encoder.history != "keep":
            raise self._end("failed", self._parting(after, text + spoken.text + end[1]))
        # What was sampled stays with "keep"; behind it the template would write something else in any case.
        known = [*context, *sampled, *tail] if grows else rows.last.context_ids[: len(context) + len(sampled)]
        if not grows and known != [*context, *sampled]:
            raise self._end("failed", "what was sampled has changed")
        difference = compare(self.encoder, known, rows.last.context_ids) if grows else None
        if difference is not None:
            raise self._end("failed", "the observation's ids are not the rendering's", difference)
        if len(rows.differences) > counted:
            return longer, ReplayOutcome("needless" if grows else "rewritten", self.number, rows.differences[-1]), False
        if not grows:
            raise self._end("failed", "not counted: " + self._parting(after, text + spoken.text + end[1]))
        return longer, ReplayOutcome("exact", self.number), True

    def _refused(self, why: str, grows: bool) -> _Ended:
        if not grows and self.encoder.history == "grow":
            return self._end("rewritten", why)
        return self._end("needless" if grows and self.encoder.history == "grow" else "refused", why)

    def _new_row(
        self, rows: TokenRows, longer: list[tuple[Message, dict[str, Any]]], after: str, now: Any, grows: bool
    ) -> ReplayOutcome:
        difference = None
        found_text = self.encoder.decode(rows.last.prompt_ids)
        has_blocks = any(turn.thinks == "empty" for turn in self.dialogue.turns[: self.number + 1])
        for told in self.speaker.forms_of(longer):
            form = [(message, one) for (message, _), one in zip(longer, told, strict=True)]
            # What the policy has said may be its own marks still, or text.
            for is_prompt in (True, False):
                try:
                    expected = self._ids(form, self._render(form, now), now, is_prompt=is_prompt)
                except _Ended:
                    continue
                found = compare(self.encoder, expected, rows.last.prompt_ids)
                # An empty block is written or not, by who reads the policy's text: templates are told of it or not.
                if found is not None and has_blocks:
                    expected_text = self.encoder.decode(expected)
                    if self.speaker.is_the_same_but_for_blocks(expected_text, found_text):
                        found = None
                if found is None:
                    return ReplayOutcome("needless" if grows else "rewritten", self.number, "a new row")
                if difference is None or found.at > difference.at:
                    difference = found
        raise self._end("failed", "the new row's prompt is not the rendering's", difference)

    def _end_of_turn(self, after: str, spoken: Spoken, begin: int) -> tuple[int, str]:
        """The position in a rendering of the mark that ends the turn, and the mark."""
        at = begin
        for sign in spoken.signs:
            # Behind the context the first is the turn's own; in a history that is written anew, the last is likeliest.
            found = after.find(sign, at) if begin else after.rfind(sign)
            at = max(at, found + len(sign)) if found >= 0 else at
        marks = [(after.find(mark, at), mark) for mark in self.speaker.ends]
        place, mark = min(((place, mark) for place, mark in marks if place >= 0), default=(-1, ""))
        if place < 0:
            raise self._end("taken out", "the template writes no mark behind the turn")
        return place, mark

    def _tail(
        self, longer: list[tuple[Message, dict[str, Any]]], after: str, end: tuple[int, str], now: Any, whole: list[int]
    ) -> list[int]:
        """The ids behind the turn's end mark: of the whole, since no text merges over a mark."""
        stop_id = self.encoder.vocabulary.added[end[1]]
        count = len(re.findall(re.escape(end[1]), after[: end[0]]))  # marks in contents are counted, and left out below
        behind = len(re.findall(re.escape(end[1]), after[end[0] :]))
        places = [index for index, number in enumerate(whole) if number == stop_id]
        if len(places) == count + behind:
            return whole[places[count] + 1 :]
        # Contents spell the mark: those behind it do not count either.
        told = [message.content for message, _ in longer[len(longer) - len(self.dialogue.turns[self.number].answers) :]]
        spelled = sum(text.count(end[1]) for text in told)
        return whole[places[len(places) - (behind - spelled)] + 1 :]

    def _sampled(
        self, whole: list[int], context: list[int], text: str, stop_id: int, after: str, so_far: str
    ) -> list[int]:
        """The ids of a turn: of the whole rendering where that goes on behind the context, else of the text alone."""
        if after.startswith(so_far + text) and whole[: len(context)] == context:
            own = self.encoder.encode_text(text)
            ids = whole[len(context) : len(context) + len(own)]
            if ids == own:
                return [*ids, stop_id]
        return [*self.encoder.encode_text(text), stop_id]

    def _check_mask(self, rows: TokenRows) -> None:
        for row in rows.rows:
            if not len(row.mask) == len(row.response_ids) == len(row.logprobs):
                raise self._end("failed", "mask, ids and log-probabilities differ in length")
            if sum(row.mask) != sum(end - start for start, end in row.turn_spans):
                raise self._end("failed", "the mask covers more or less than the sampled turns")

    def _parting(self, after: str, context: str) -> str:
        at = shared_length(after, context)
        return (
            f"accepted, although the template writes {after[max(at - 20, 0) : at + 20]!r} where"
            f" {context[max(at - 20, 0) : at + 20]!r} was sampled"
        )
