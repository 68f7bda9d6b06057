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
from datetime import datetime
from typing import Any, Final, Literal

from rlenv._base.text import changed_outside, shared_length, texts_in, with_texts
from rlenv.dialects.built_in import Spans
from rlenv.errors import EpisodeError, UnsupportedTemplate
from rlenv.messages import Message, Observation
from rlenv.tokens.dialogues import Dialogue, PlayedTurn, Speaker, Spoken, Told
from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.rows import TokenRows
from rlenv.tokens.vocabulary import Vocabulary, encode, without_added

_OPEN, _CLOSE = "\U000f0000", "\U000f0001"
_NAMES: Final = 0xF0100
_HIDDEN: Final = 0xF8000


class Independent:
    """Encodes what a template wrote, in which the contents of the environment are text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from tokenizers import AddedToken  # type: ignore[import-untyped]

        self._vocabulary = vocabulary
        self._clone: Any = without_added(vocabulary.full)
        self._names: dict[str, str] = {}
        self._hidden: dict[str, str] = {}
        added, blank = [], []
        for number, token in enumerate(vocabulary.full.get_added_tokens_decoder().values()):
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
            return changed_outside(value, authored, self._hide_controls)
        return with_texts(value, self._hide_controls)

    def _hide_controls(self, text: str) -> str:
        parts = self._vocabulary.split(text)
        return "".join(self._hidden[part] if place % 2 else part for place, part in enumerate(parts))

    def ids(self, hidden: str) -> list[int]:
        """The ids of a rendering, or of its end from a control token on, of contents that `hide` changed."""
        parts = self._vocabulary.split(hidden)
        named = "".join(self._names[part] if place % 2 else part for place, part in enumerate(parts))
        made = encode(self._clone, self.unhide(named))
        return [self._back.get(number, number) for number in made]

    def unhide(self, text: str) -> str:
        """A text with its contents as they were before `hide`."""
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
    """The outcome of one observation, or of a prompt that is not exact (`turn` is -1)."""

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
    """A dialogue goes no further: its argument is the last outcome."""


class Replay:
    """Plays dialogues with one encoder."""

    def __init__(self, encoder: TokenEncoder) -> None:
        self.encoder = encoder
        self.independent = Independent(encoder.vocabulary)
        self.speaker = Speaker(encoder)

    def play(self, dialogue: Dialogue) -> Iterator[ReplayOutcome]:
        """The outcomes of a dialogue's observations up to where it cannot go on, and of a prompt that is not exact."""
        played = _Played(self, dialogue)
        try:
            yield from played.outcomes()
        except UnsupportedTemplate as error:
            yield ReplayOutcome("taken out", played.number, str(error))
        except _Ended as ended:
            yield ended.args[0]


class _Played:
    """One dialogue on its way. Where the template itself takes it no further, its methods raise UnsupportedTemplate."""

    rows: TokenRows
    text: str  # what the template writes of the conversation so far

    def __init__(self, replay: Replay, dialogue: Dialogue) -> None:
        self.encoder, self.independent, self.speaker = replay.encoder, replay.independent, replay.speaker
        self.dialogue = dialogue
        self.conversation: list[Told] = [(message, message.as_dict()) for message in dialogue.messages]
        said = [turn.message.content for turn in dialogue.turns]
        told = [message.content for turn in dialogue.turns for message in turn.answers]
        first = [message.content for message in dialogue.messages]
        # Contents that spell nothing need no second rendering.
        self.spells = spells(self.encoder.vocabulary, [*said, *told, *first, *dialogue.tools])
        self.number = -1
        self.now: datetime | None = None

    def outcomes(self) -> Iterator[ReplayOutcome]:
        try:
            self.rows = self.encoder.start_rows(self.dialogue.messages, tools=self.dialogue.tools)
        except (UnsupportedTemplate, EpisodeError) as error:
            self._render(self.conversation)
            raise self._end("refused", str(error)) from error
        self.now = self.rows.last.story.now
        self.text = self._render(self.conversation)
        expected = self.independent.ids(self._hide_contents(self.conversation, self.text, is_prompt=True))
        difference = compare(self.encoder, expected, self.rows.last.prompt_ids)
        if difference is not None:
            raise self._end("failed", "the prompt's ids are not the rendering's", difference)
        for turn in self.dialogue.turns:
            self.number += 1
            yield self._play_turn(turn)

    def _end(self, status: Status, detail: str, difference: IdDifference | None = None) -> _Ended:
        return _Ended(ReplayOutcome(status, self.number, detail, difference))

    def _render(self, conversation: Sequence[Told]) -> str:
        told = [one for _, one in conversation]
        return self.encoder.template.render(told, tools=self.dialogue.tools, now=self.now)

    def _hide_contents(self, conversation: Sequence[Told], text: str, *, is_prompt: bool) -> str:
        """A rendering of `text` whose contents spell no control token.

        What the policy says is text too where it became part of a prompt.
        """
        said = [told.get("content") for message, told in conversation if is_prompt and message.role == "assistant"]
        if not self.spells and not spells(self.encoder.vocabulary, said):
            return text
        messages = [self._told_message(message, told, is_prompt) for message, told in conversation]
        tools = self.independent.hide(self.dialogue.tools)
        hidden = self.encoder.template.render(messages, tools=tools, now=self.now)
        if self.independent.unhide(hidden) != text:
            raise UnsupportedTemplate("the template looks into contents that spell control tokens")
        return hidden

    def _told_message(self, message: Message, told: dict[str, Any], is_prompt: bool) -> dict[str, Any]:
        if message.role == "assistant":
            if not is_prompt:
                return told
            # The marks around thinking that stands in the content are the policy's own still.
            content = told.get("content")
            kept = len(content) - len(message.content) if isinstance(content, str) and message.thinking else 0
            return {**told, "content": self.independent.hide(content, ((0, kept),) if kept > 0 else ())}
        shown = {key: item if key == "role" else self.independent.hide(item) for key, item in told.items()}
        return {**shown, "content": self.independent.hide(told["content"], message.authored)}

    def _play_turn(self, turn: PlayedTurn) -> ReplayOutcome:
        rows, text, context = self.rows, self.text, self.rows.last.context_ids
        said = [told for _, told in self.conversation]
        spoken = self.speaker.speak(said, turn, self.dialogue.tools, now=self.now)
        self.conversation.append((spoken.message, spoken.told))
        self.conversation += [(message, message.as_dict()) for message in turn.answers]
        after = self.text = self._render(self.conversation)
        mark, (stop_id, *tail) = self._find_tail(spoken, len(text) if after.startswith(text) else 0)
        sampled = [*self.encoder.encode_text(spoken.text), stop_id]
        rows.add_sampled(sampled, [-0.5] * len(sampled))
        whole = text + spoken.text + mark
        grows = after.startswith(whole)
        counted, before = len(rows.differences), len(rows.rows)
        try:
            fits = rows.add_observation(Observation(turn.answers), said=spoken.message)
        except UnsupportedTemplate as error:
            is_change = self.encoder.history == "grow"
            raise self._end(_other_status(grows) if is_change else "refused", str(error)) from error
        assert fits  # there is no budget
        self._check_mask(rows)
        if len(rows.rows) > before:
            self._check_new_row()
            return ReplayOutcome(_other_status(grows), self.number, "a new row")
        found = rows.last.context_ids
        if grows:
            difference = compare(self.encoder, [*context, *sampled, *tail], found)
            if difference is not None:
                raise self._end("failed", "the observation's ids are not the rendering's", difference)
        elif self.encoder.history != "keep":
            raise self._end("failed", _parting_text(after, whole))
        elif found[: len(context) + len(sampled)] != [*context, *sampled]:
            # Behind it the template would write something else in any case.
            raise self._end("failed", "what was sampled has changed")
        if len(rows.differences) > counted:
            raise self._end(_other_status(grows), rows.differences[-1])
        if not grows:
            raise self._end("failed", "not counted: " + _parting_text(after, whole))
        return ReplayOutcome("exact", self.number)

    def _check_new_row(self) -> None:
        """The new row's prompt is the rendering in one of the forms in which a server may be given its turns."""
        difference = None
        prompt_ids = self.rows.last.prompt_ids
        text = self.encoder.decode(prompt_ids)
        has_blocks = any(turn.thinks == "empty" for turn in self.dialogue.turns[: self.number + 1])
        for told in self.speaker.forms_of(self.conversation):
            form = [(message, one) for (message, _), one in zip(self.conversation, told, strict=True)]
            # What the policy has said may be its own marks still, or text.
            for is_prompt in (True, False):
                try:
                    expected = self.independent.ids(self._hide_contents(form, self._render(form), is_prompt=is_prompt))
                except UnsupportedTemplate:
                    continue
                found = compare(self.encoder, expected, prompt_ids)
                # An empty block is written or not, by who reads the policy's text: templates are told of it or not.
                if found is None or (
                    has_blocks and self.speaker.is_the_same_but_for_blocks(self.encoder.decode(expected), text)
                ):
                    return
                if difference is None or found.at > difference.at:
                    difference = found
        raise self._end("failed", "the new row's prompt is not the rendering's", difference)

    def _find_tail(self, spoken: Spoken, begin: int) -> tuple[str, list[int]]:
        """The mark that ends the turn, and the ids from it on: no text merges over a mark.

        `begin` is the end of a context that was not written anew.
        """
        at = begin
        for sign in spoken.signs:
            # Behind the context the first is the turn's own; in a history that is written anew, the last is likeliest.
            found = self.text.find(sign, at) if begin else self.text.rfind(sign)
            at = max(at, found + len(sign)) if found >= 0 else at
        places = [(place, mark) for mark in self.speaker.ends if (place := self.text.find(mark, at)) >= 0]
        if places:
            place, mark = min(places)
            hidden = self._hide_contents(self.conversation, self.text, is_prompt=False)
            for match in re.finditer(re.escape(mark), hidden):  # in contents it is hidden
                end = hidden[match.start() :]
                if self.independent.unhide(end) == self.text[place:]:
                    return mark, self.independent.ids(end)
        raise UnsupportedTemplate("the template writes no mark behind the turn")

    def _check_mask(self, rows: TokenRows) -> None:
        for row in rows.rows:
            if not len(row.mask) == len(row.response_ids) == len(row.logprobs):
                raise self._end("failed", "mask, ids and log-probabilities differ in length")
            if sum(row.mask) != sum(end - start for start, end in row.turn_spans):
                raise self._end("failed", "the mask covers more or less than the sampled turns")


def _other_status(grows: bool) -> Status:
    """The status of a conversation that does not go on as one text that grows."""
    return "needless" if grows else "rewritten"


def _parting_text(after: str, context: str) -> str:
    at = shared_length(after, context)
    return (
        f"accepted, although the template writes {after[max(at - 20, 0) : at + 20]!r} where"
        f" {context[max(at - 20, 0) : at + 20]!r} was sampled"
    )
