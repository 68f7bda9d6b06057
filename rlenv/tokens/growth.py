"""The test that a chat template only grows: made-up conversations of the shape of the one that is played are rendered.

The law, for each observation: the text of the conversation before the turn, its generation prompt included, is the
beginning of the text behind it; there follow, in order and once, the turn's thinking, text and calls as they were
sampled, the stop mark, and what the layout of these answers writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from rlenv._base.bounded import drop_oldest
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens import dummies
from rlenv.tokens.grown import AnsweredTurn, Grown, Voice
from rlenv.tokens.layouts import Layout
from rlenv.tokens.shapes import Reader, Story, shorter, words_of
from rlenv.tokens.vocabulary import ChatTemplate

__all__ = ["LONG", "AnsweredTurn", "Growth"]

_KEPT: Final = 4096
_WORD: Final = re.compile(rf'\{{"x": "qza\d+v\d+zq"\}}|{dummies.ANY_MARK.pattern}')
LONG: Final = 10
"""The turns of one shape that a template is tried with, for what it writes otherwise in longer conversations."""
_First = Sequence[Mapping[str, Any]]
Derive = Callable[[tuple[str, ...], tuple[int, ...], _First | None, _First], Layout]


class Growth:
    """Looks conversations up by shape, and renders one of each new shape; shared by all trajectories of a process.

    Args:
        derive: the layout of roles and images, for first messages and tools (None: made-up ones).
        thinking: pairs of marks that the policy may write around thinking.
        place: the placeholder of an image.
    """

    def __init__(
        self,
        template: ChatTemplate,
        derive: Derive,
        *,
        added: Mapping[str, int],
        thinking: Sequence[tuple[str, str]],
        place: str = "",
    ) -> None:
        marks = dummies.Marks(tuple(added))
        self._added = added
        self._derive = derive
        self._marks = marks
        self._findings: dict[Any, AnsweredTurn] = {}
        self._opens: dict[Any, bool] = {}
        self._layouts: dict[Any, Layout | UnsupportedTemplate] = {}
        self._told_apart: dict[Any, None] = {}
        self._skeletons: dict[dummies.TurnShape, str] = {}
        self.way, pairs, header = dummies.thinking_of(template, marks, thinking)
        self.reader = Reader(pairs, header=header)
        self._voice = Voice(template, self.way, self.reader, place)
        self._calls: Reader | None = None

    def read(
        self,
        story: Story,
        text: str,
        roles: tuple[str, ...],
        images: tuple[int, ...],
        said: Message | None,
        *,
        is_open: bool,
        ids: Callable[[], Collection[int]],
    ) -> dummies.TurnShape:
        """The shape of a turn of this text that messages of these roles answer.

        Args:
            said: how it was read, which says whether text stands beside its calls; None: found by the template's marks.
            is_open: whether its prompt ends inside a block of thinking.
            ids: what was sampled: a mark that is a token and was only spelled is text.
        """
        if self._calls is None and "tool" in roles:
            layout = self.layout(story, dummies.TurnShape("none", "", ("tool",)))
            self._calls = replace(self.reader, opener=layout.opener, closer=layout.closer)
        reader = self._calls or self.reader
        if reader.thinks(text):
            reader = self._without_spelled(reader, text, ids)
        turn = reader.turn(text, roles, images, is_open=is_open)
        if said is not None and turn.calls and bool(said.content.strip()) != bool(turn.text):
            turn = turn._replace(text="before" if said.content.strip() else "")
        return turn

    def _without_spelled(self, reader: Reader, text: str, ids: Callable[[], Collection[int]]) -> Reader:
        """A reader that does not know the marks which are tokens and were only spelled."""
        spelled = [pair for pair in reader.thinking if (pair[0] in text or pair[1] in text) and self._mark_ids(pair)]
        if spelled:
            sampled = ids()
            if spelled := [pair for pair in spelled if not any(number in sampled for number in self._mark_ids(pair))]:
                left = tuple(pair for pair in reader.thinking if pair not in spelled)
                return replace(reader, thinking=left)
        return reader

    def _mark_ids(self, pair: tuple[str, str]) -> list[int]:
        return [self._added[mark] for mark in pair if mark in self._added]

    def opens(self, story: Story) -> bool:
        """True if the prompt of a conversation ends inside a block of thinking."""
        key = story.of_prompt()
        found = self._opens.get(key)
        if found is None:
            found = self._opens[key] = self.reader.is_left_open(self._voice.render(story, story.messages))
            drop_oldest(self._opens, most=_KEPT)
        return found

    def is_plain(self, story: Story) -> bool:
        """True if the template knows no calls, so that they are content as they were sampled."""
        try:
            return self.layout(story, dummies.TurnShape("none", "", ("tool",))).form.is_plain
        except UnsupportedTemplate:
            return False

    def closes(self, story: Story) -> bool:
        """True if the prompt of a conversation ends behind a block of thinking that it opens and closes itself."""
        end = self._voice.render(story, story.messages)[-200:].rstrip()
        for open, close in self.reader.thinking:
            _, mark, inside = end.removesuffix(close).rpartition(open)
            if close and open and end.endswith(close) and mark and not inside.strip():
                return True
        return False

    def key(self, story: Story, turn: dummies.TurnShape) -> Any:
        """The key under which findings are kept."""
        prompt = story.of_prompt()
        if prompt in self._told_apart:
            return prompt, tuple(story.turns), turn
        return prompt, story.history, _shorten(turn)

    def knows(self, story: Story, turn: dummies.TurnShape) -> bool:
        """True if a conversation of this shape was looked at before."""
        return self.key(story, turn) in self._findings

    def look(self, story: Story, turn: dummies.TurnShape) -> AnsweredTurn:
        """The template's rendering of a conversation that goes on by a turn and its answers.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for these answers at all.
        """
        key = self.key(story, turn)
        found = self._findings.get(key)
        if found is None:
            found = self._look(story, turn)
            if self._tells_apart(story, turn, found):
                key = self.key(story, turn)
                found = self._look(story, turn)
            self._findings[key] = found
            drop_oldest(self._findings, most=_KEPT)
        if len(turn.roles) != len(found.layout_roles):
            return replace(found, layout=self.layout(story, turn), layout_roles=turn.roles)
        return found

    def last_end(self, story: Story, turn: dummies.TurnShape, ends: Collection[str]) -> str:
        """The first of some marks that the template writes behind a turn that is the last; "" where there is none."""
        try:
            said = dummies.turn_message(self.layout(story, turn).form, self.way, turn, 0, 0)
            text = self._voice.render(story, [*story.messages, said], add_generation_prompt=False)
        except UnsupportedTemplate:
            return ""
        places = [text.rfind(word) + len(word) for word in turn.words(0) if word in text]
        found = [(text.find(mark, max(places, default=len(text))), mark) for mark in ends]
        return min((one for one in found if one[0] >= 0), default=(-1, ""))[1]

    def sampled(
        self, turn: dummies.TurnShape, ends: Collection[str], *, said: Message | None = None, is_last: bool = True
    ) -> str:
        """A first turn as the template writes it behind its prompt, without its end mark; "" where it does not.

        Args:
            said: what it says, whose tools, ids and texts stand there; None: marks do.
            is_last: whether nothing answers it, which some templates write otherwise.
        """
        try:
            layout = self.layout(Story([dummies.USER], (), datetime(2000, 1, 1)), turn)
        except UnsupportedTemplate:
            return ""
        for form in (layout.form, replace(layout.form, joins=True)):
            story = Story([dummies.USER], (dummies.TOOL,) if form.has_tools or turn.calls else (), datetime(2000, 1, 1))
            message = dummies.turn_message(form, self.way, turn, 0, 0) if said is None else self._told(said, form)
            contents = [dummies.content_mark(index) for index in range(len(turn.roles))]
            answers = [] if is_last else dummies.answer_messages(form, turn, contents, 0)
            with suppress(UnsupportedTemplate):
                prompt = self._voice.render(story, story.messages)
                messages = [*story.messages, message, *answers]
                whole = self._voice.render(story, messages, add_generation_prompt=not is_last)
                return self._own_words(turn, said, layout, prompt, whole, ends, is_last=is_last)
        return ""

    def _own_words(
        self,
        turn: dummies.TurnShape,
        said: Message | None,
        layout: Layout,
        prompt: str,
        whole: str,
        ends: Collection[str],
        *,
        is_last: bool,
    ) -> str:
        """A turn out of a rendering behind its prompt; "" where it cannot be told apart there."""
        shared = dummies.shared_marks(prompt, whole)
        blocks = {mark for pair in self.reader.thinking for mark in pair}
        text = whole[len(shared) :].partition(dummies.content_mark(0))[0]
        words = turn.words(0) if said is None else ([said.thinking] if said.thinking else [])
        if prompt[len(shared) :].strip() not in {"", *blocks} or any(text.count(word) != 1 for word in words):
            return ""
        if turn.calls and layout.form.is_plain:
            return ""
        if not is_last:
            return text.rpartition(layout.stop)[0]
        # An end mark that names what the call began with closes it, too.
        last = max(text.find(word) + len(word) for word in words)
        kept = words_of(layout.opener) if turn.calls else set()
        found = [at + len(mark) * bool(kept & words_of(mark)) for mark in ends if (at := text.find(mark, last)) >= 0]
        return text[: min(found, default=len(text))]

    def _told(self, said: Message, form: dummies.CallForm) -> dict[str, Any]:
        """The assistant message in the form that the template takes calls and thinking in."""
        if form.joins and said.tool_calls and said.thinking and said.content:
            said = replace(said, thinking=f"{said.thinking}\n\n{said.content}", content="")
        told = replace(said, thinking="").as_dict() | ({self.way.key: said.thinking} if said.thinking else {})
        return dummies.with_arguments(told, as_text=form.arguments_as_text) | {"content": said.content or form.content}

    def respells(self, text: str, said: Message, roles: tuple[str, ...]) -> bool:
        """True if a turn of this text is written otherwise by the template, its thinking aside.

        False where that is not known: a call that could not be read, thinking that the template does not write.
        """
        turn = dummies.TurnShape("some" if said.thinking else "none", "before" if said.content else "", roles)
        if turn.calls != len(said.tool_calls) or (said.thinking and not self.way.key):
            return False
        if turn not in self._skeletons:
            self._skeletons[turn] = self.sampled(turn, (), is_last=False)
            drop_oldest(self._skeletons, most=_KEPT)
        found = self._skeletons[turn]
        if not found:
            return False
        # Most templates write arguments as this JSON, and need not be asked again.
        words = {dummies.said_mark(0): said.content, dummies.thought_mark(0): said.thinking}
        for index, call in enumerate(said.tool_calls):
            words[dummies.tool_mark(index)] = call.name or ""
            given = json.dumps(getattr(call, "arguments", None), ensure_ascii=False)
            words[f'{{"x": "{dummies.argument_mark(0, index)}"}}'] = given
        found = _WORD.sub(lambda match: words.get(match[0], match[0]), found)
        if _text_behind(found, said.thinking) == _text_behind(text, said.thinking):
            return False
        found = self.sampled(turn, (), said=said, is_last=False)
        return bool(found) and _text_behind(found, said.thinking) != _text_behind(text, said.thinking)

    def marks_of_turns(self) -> tuple[frozenset[str], frozenset[str]]:
        """The marks that an assistant's turn begins with behind its prompt, and those inside turns."""
        begins: set[str] = set()
        inside: set[str] = set()
        for thinking in ("none", "some"):
            for turn in (dummies.TurnShape(thinking, "before", ("user",)), dummies.TurnShape(thinking, "", ("tool",))):
                grown = self._grown_text(turn)
                words = [place for word in turn.words(0) if (place := grown.find(word)) >= 0]
                found = self._marks.find(grown[: max(words)]) if words else []
                if thinking == "none":
                    begins |= {mark for at, mark in found if not grown[:at].strip()}
                inside |= {mark for _, mark in found}
        return frozenset(begins), frozenset(inside)

    def untold_end(self) -> list[str]:
        """The text that the template writes behind a last answer, where it has any and no token stands in it."""
        story = Story([dummies.USER], (), datetime(2000, 1, 1))
        answer = {"role": "assistant", "content": dummies.said_mark(0)}
        with suppress(UnsupportedTemplate):
            text = self._voice.render(story, [dummies.USER, answer], add_generation_prompt=False)
            behind = text.rpartition(dummies.said_mark(0))[2].strip()
            return [behind[:60]] if behind and dummies.said_mark(0) in text and not self._marks.find(behind) else []
        return []

    def _grown_text(self, turn: dummies.TurnShape) -> str:
        """The template's text of a first turn behind its prompt; "" where it takes no such turn."""
        story = Story([dummies.USER], (), datetime(2000, 1, 1))
        try:
            form = self.layout(story, turn).form
            if form.has_tools:
                story = Story([dummies.USER], (dummies.TOOL,), story.now)
            before = self._voice.render(story, story.messages)
            said = dummies.turn_message(form, self.way, turn, 0, 0)
            answers = dummies.answer_messages(form, turn, ["r"] * len(turn.roles), 0)
            after = self._voice.render(story, [*story.messages, said, *answers])
        except UnsupportedTemplate:
            return ""
        return after[len(dummies.shared_marks(before, after)) :]

    # -- one shape -----------------------------------------------------------------------------------------------

    def _look(self, story: Story, turn: dummies.TurnShape, *, behind: int = 0) -> AnsweredTurn:
        """The finding; `behind` further turns of this shape stand before it."""
        is_whole = story.of_prompt() in self._told_apart
        if not is_whole:
            turn = _shorten(turn)
        layout = self.layout(story, turn)
        told = [*(story.turns if is_whole else story.told()), *[turn] * behind]
        forms = [layout.form]
        if not layout.form.is_plain:
            forms.append(replace(layout.form, arguments_as_text=not layout.form.arguments_as_text))
        if any(one.calls and one.text and one.thinking == "some" for one in (turn, *told)):
            forms.append(replace(layout.form, joins=True))
        refused: UnsupportedTemplate | None = None
        for form in forms:
            try:
                return Grown(self._voice, story, told, turn, layout, form).finding()
            except UnsupportedTemplate as error:
                refused = refused if refused is not None else error
        return AnsweredTurn(str(refused), layout, turn.roles, is_refused=True)

    def _tells_apart(self, story: Story, turn: dummies.TurnShape, found: AnsweredTurn) -> bool:
        """True if a template was just seen to write answers, or turns, otherwise in a longer conversation.

        It may count calls or turns, or keep the last of them alone, so that shapes alone do not tell its conversations
        apart: from now on each conversation of this prompt is looked at by itself.
        """
        prompt = story.of_prompt()
        if prompt in self._told_apart or (found.fault and not found.needs_ids):
            return False
        if found.layout.parts == self.layout(story, _shorten(turn)).parts:
            later = self._look(story, turn, behind=LONG)
            if not later.fault and later.layout.parts == found.layout.parts and self._begins_alike(story, turn, found):
                return False
        self._told_apart[prompt] = None
        drop_oldest(self._told_apart, most=_KEPT)
        return True

    def _begins_alike(self, story: Story, turn: dummies.TurnShape, found: AnsweredTurn) -> bool:
        """True if a long conversation begins as the short one does."""
        turn, told, form = _shorten(turn), story.told(), found.layout.form
        short, long = (
            Grown(self._voice, story, [*told, *[turn] * more], turn, found.layout, form) for more in (0, LONG)
        )
        with suppress(UnsupportedTemplate):
            return long.prompt().startswith(short.prompt())
        return False

    def layout(self, story: Story, turn: dummies.TurnShape) -> Layout:
        """The layout of the answers, derived for a short conversation, or for this prompt where that is refused.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for them.
        """
        key = (turn.roles, turn.images)
        found = self._layouts.get(key)
        if found is None:
            found = self._keep(key, lambda: self._derive(turn.roles, turn.images, None, ()))
        if isinstance(found, UnsupportedTemplate):
            own = (story.of_prompt(), *key)
            refused, found = found, self._layouts.get(own)
            if found is None:
                found = self._keep(own, lambda: self._derive(turn.roles, turn.images, story.messages, story.tools))
            if isinstance(found, UnsupportedTemplate):
                raise UnsupportedTemplate(str(refused)) from found
        return found

    def _keep(self, key: Any, derive: Callable[[], Layout]) -> Layout | UnsupportedTemplate:
        found: Layout | UnsupportedTemplate
        try:
            found = derive()
        except UnsupportedTemplate as error:
            found = error
        self._layouts[key] = found
        drop_oldest(self._layouts, most=_KEPT)
        return found


def _text_behind(text: str, thinking: str) -> str:
    return text.partition(thinking)[2] if thinking else text


def _shorten(turn: dummies.TurnShape) -> dummies.TurnShape:
    return turn if turn.images else shorter(turn)
