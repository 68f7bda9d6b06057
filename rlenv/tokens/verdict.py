"""The verdict on a chat template: if training with it will run, and if every history will be the template's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from rlenv import dialects
from rlenv.dialects.base import Dialect
from rlenv.dialects.built_in import FAMILIES
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message, ToolCall
from rlenv.tokens.dummies import SLOT, TOOL, USER, TurnShape, argument_mark, said_mark, thought_mark
from rlenv.tokens.encoder import History, TokenEncoder
from rlenv.tokens.grown import RESPELLS
from rlenv.tokens.growth import LONG
from rlenv.tokens.shapes import Story

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

__all__ = ["Played", "Prompts", "Situation", "Verdict", "answers_of", "judge", "misread", "opened_prompts"]
__all__ += ["verdict_of"]

Status = Literal["grows", "rewritten", "refused"]
_THINKING: Final = {
    "none": "without thinking",
    "empty": "with an empty block of thinking",
    "some": "with thinking",
    "cut": "that does not close its thinking",
    "closed": "with the mark alone that closes thinking",
    "stray": "that closes thinking which no mark has opened",
    "left": "that does not close the prompt's block of thinking",
}
_TEXT: Final = {"": "", "before": " and with text beside its calls"}
_CUT: Final = ("rewritten", "grow")
_NUMBERS: Final = {1: "one", 2: "two", 3: "three", 4: "four"}


@dataclass(frozen=True, slots=True)
class Played:
    """The first messages and tools of an episode, and the messages that may answer a turn.

    Attributes:
        messages: a first prompt of the environment.
        tools: their schemas, in the form that the template is given.
        answers: the roles of the messages that may answer one turn, each as a tuple: `("tool",)` for one result,
            `("tool", "tool")` where a turn may have several calls, `("user",)` for a simulated user.
        thinks: whether the policy may think; or the kinds of thinking to expect, of "none", "empty" and "some". True
            expects some and, where the prompt opens no block, none; an empty block is looked at as well, but what a
            policy does of itself against its template stops no run.
        images: whether results and replies may show images.
    """

    messages: Sequence[Message | Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    answers: Sequence[tuple[str, ...]] = (("tool",),)
    thinks: bool | Sequence[str] = True
    images: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """One kind of history that an environment can come to, and what the template does there.

    `is_rare`: only a policy that leaves its template's ways comes to it (an empty block of thinking, calls or text that
    the template takes none of). The episode ends there as truncated; it stops no run.
    """

    name: str
    status: Status
    detail: str = ""
    is_rare: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a chat template with an environment.

    `will_run`: training with this `history` will not fail for the template's sake. `is_exact`: and every history that
    is trained will be the template's own. `message` says in words what to do ("" where it runs and is exact).
    `remarks` are about end marks (`TokenEncoder.remarks`), and about what the dialect reads otherwise than it is meant.
    """

    name: str
    history: History
    will_run: bool
    is_exact: bool
    situations: tuple[Situation, ...]
    message: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The verdict in one line: whether training with this history will run and be exact, and the way out where
        not.
        """
        if self.is_exact:
            rare = [one for one in self.situations if one.status == "refused" or (one.status, self.history) == _CUT]
            odd = f"; an episode that comes to {rare[0].name} ends as truncated" if rare else ""
            return f"history {self.history}: training will run and be exact{odd}"
        what = "run and not be exact" if self.will_run else "not run"
        return f"history {self.history}: training will {what}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON-like values."""
        return {**asdict(self), "situations": list(map(asdict, self.situations)), "remarks": list(self.remarks)}


def judge(encoder: TokenEncoder | UnsupportedTemplate, *played: Played) -> Verdict:
    """The verdict for what an environment plays; never raises for a template's sake.

    What it calls grown is what trajectories accept, and what they refuse it names: both look the same shapes up.

    Args:
        encoder: as it will train, or why there is none: a template that is refused is a verdict.
        played: one for each kind of first prompt that the environment has.
    """
    if not isinstance(encoder, TokenEncoder):
        refused = str(encoder)
        return Verdict("", "grow", False, False, (Situation("binding", "refused", refused),), refused)
    situations = tuple(dict.fromkeys(situation for one in played for situation in _situations_of(encoder, one)))
    verdict = _verdict_of(encoder, situations)
    if not verdict.will_run and (hint := _other_way(encoder, played)):
        verdict = replace(verdict, message=f"{verdict.message}; or {hint}")
    return verdict


def _verdict_of(encoder: TokenEncoder, situations: tuple[Situation, ...]) -> Verdict:
    met = [one for one in situations if not one.is_rare]
    rewritten = [one for one in met if one.status == "rewritten"]
    refused = [one for one in met if one.status == "refused"]
    history, name = encoder.history, encoder.template.name
    will_run = not refused and (history != "grow" or not rewritten)
    is_exact = will_run and (history != "keep" or all(one.status == "grows" for one in situations))
    message = ""
    if refused:
        message = f"{refused[0].name}: {refused[0].detail}"
    elif rewritten and history == "grow":
        message = (
            f"chat template {name} rewrites history: {rewritten[0].name}, {rewritten[0].detail}; choose run.history:"
            " rows (a new training row there) or keep (go on with the sampled ids)"
        )
    elif history == "keep" and not is_exact:
        what = next(one for one in situations if one.status != "grows")
        message = f"history is kept where chat template {name} would write it otherwise: {what.name}, {what.detail}"
    return Verdict(name, history, will_run, is_exact, situations, message, encoder.remarks)


def _other_way(encoder: TokenEncoder, played: Sequence[Played]) -> str:
    """Another value of enable_thinking under which it would run; "" where there is none."""
    if "enable_thinking" not in encoder.template.source:
        return ""
    value = not encoder.template.values.get("enable_thinking", True)
    with suppress(UnsupportedTemplate):
        other = encoder.with_values(enable_thinking=value)
        if all(_verdict_of(other, tuple(_situations_of(other, one))).will_run for one in played):
            return f"template_kwargs: {{enable_thinking: {str(value).lower()}}}"
    return ""


def _situations_of(encoder: TokenEncoder, played: Played) -> Iterator[Situation]:
    tools = played.tools
    story = encoder.story(played.messages, () if encoder.same_turn is not None else tools)
    try:
        kinds = _thinking_kinds(encoder, story, played)
    except UnsupportedTemplate as error:
        yield Situation("the first prompt", "refused", str(error))
        return
    turns = list(_turns_of(encoder, played, kinds))
    first: dict[TurnShape, Situation] = {}
    for turn, is_rare in turns:
        first[turn] = _situation_of(encoder, story, turn, _turn_words(turn), is_rare=is_rare)
        yield first[turn]
    if encoder.same_turn is not None:
        return
    if played.thinks and any(turn.thinking in ("some", "empty") for turn, _ in turns):
        # A policy that thinks and does not close it, and that is answered in words all the same.
        kind = "left" if encoder.growth.opens(story) else "cut"
        for roles in dict.fromkeys(turn.roles for turn, _ in turns if not turn.calls):
            turn = TurnShape(kind, "", roles)
            yield _situation_of(encoder, story, turn, _turn_words(turn), is_rare=True)
    for before, before_rare in turns:
        if first[before].status == "refused" or (first[before].status != "grows" and encoder.history == "grow"):
            continue  # nothing comes behind it
        for turn, is_rare in turns:
            found = _later_situation(encoder, story.after(before), before, turn, before_rare, is_rare)
            if found.status != first[turn].status and found.status != "grows":
                yield found


def _later_situation(
    encoder: TokenEncoder, story: Story, before: TurnShape, turn: TurnShape, before_rare: bool, is_rare: bool
) -> Situation:
    """The situation of a turn behind another one, up to the third turn."""
    name = f"{_turn_words(turn)}, behind {_turn_words(before)}"
    found = _situation_of(encoder, story, turn, name, is_rare=before_rare or is_rare)
    if found.status == "grows":
        found = _situation_of(encoder, story.after(turn), turn, f"{name}, twice", is_rare=before_rare or is_rare)
    if found.status == "grows" and turn == before:
        for _ in range(LONG):
            story = story.after(turn)
        found = _situation_of(encoder, story, turn, f"{_turn_words(turn)}, behind {LONG + 1} like it", is_rare=is_rare)
    return found


def _situation_of(encoder: TokenEncoder, story: Story, turn: TurnShape, name: str, *, is_rare: bool) -> Situation:
    try:
        finding = encoder.look(story, turn)
        encoder.check_layout(finding.layout)
    except UnsupportedTemplate as error:
        return Situation(name, "refused", str(error), is_rare or _is_choice(turn))
    if finding.is_refused:
        return Situation(name, "refused", finding.fault, is_rare or _is_choice(turn))
    fault = finding.fault or (RESPELLS if finding.spelled is not None else "")
    if not fault and encoder.vocabulary.added.get(finding.layout.stop) not in encoder.end_ids:
        fault = f"it ends such a turn with {finding.layout.stop}, which no generation ends with"
    if not fault and encoder.same_turn is None and len(encoder.end_ids) > 1 and not story.turns:
        last = encoder.growth.last_end(story, turn, encoder.vocabulary.texts(encoder.end_ids))
        if last not in ("", finding.layout.stop):  # what a policy has learned to end it with
            fault = f"it ends this turn with {finding.layout.stop}, and with {last} while it is the last"
    return Situation(name, "rewritten" if fault else "grows", fault, is_rare)


def _is_choice(turn: TurnShape) -> bool:
    """True if a policy can do without what a template refuses: several calls, or text beside calls."""
    return len(turn.roles) > 1 or (turn.calls > 0 and turn.text != "") or turn.thinking not in ("none", "some")


def _thinking_kinds(encoder: TokenEncoder, story: Story, played: Played) -> list[tuple[str, bool]]:
    """The kinds of thinking to look at, and whether only an odd policy comes to each."""
    opens = encoder.growth.opens(story) if encoder.same_turn is None else False
    if not isinstance(played.thinks, bool):
        return [(kind, False) for kind in dict.fromkeys(played.thinks) if not (opens and kind == "none")]
    if encoder.same_turn is not None:
        return [("none", False)]
    if opens:
        return [("some", False), ("empty", True)]
    if not played.thinks or encoder.growth.closes(story):
        return [("none", False)]
    kinds = [*_without_thinking(encoder, story, played), ("some", False)]
    return kinds if ("empty", False) in kinds else [*kinds, ("empty", True)]


def _without_thinking(encoder: TokenEncoder, story: Story, played: Played) -> list[tuple[str, bool]]:
    """The forms of a turn without thinking: bare, or as the template writes it where it rewrites a bare one.

    That is behind a closing mark alone, or behind an empty block (GLM-4.6).
    """
    for roles in dict.fromkeys(map(tuple, played.answers)):
        turns = [TurnShape(kind, "" if "tool" in roles else "before", roles) for kind in ("none", "closed", "empty")]
        found = (turn for turn in turns if _situation_of(encoder, story, turn, "", is_rare=False).status == "grows")
        grown = next(found, turns[0])
        if grown.thinking != "none":
            return [(grown.thinking, False), ("none", True)]
    return [("none", False)]


def _turns_of(
    encoder: TokenEncoder, played: Played, kinds: Sequence[tuple[str, bool]]
) -> Iterator[tuple[TurnShape, bool]]:
    for roles in dict.fromkeys(map(tuple, played.answers)):
        shown = [()] if not played.images or encoder.images is None else [(), (1,) + (0,) * (len(roles) - 1)]
        for images in shown:
            for kind, is_rare in kinds:
                for text in ("", "before") if "tool" in roles else ("before",):
                    yield TurnShape(kind, text, roles, images), is_rare


_ANSWERS = {frozenset(("tool",)): ("result", "results"), frozenset(("user",)): ("reply", "replies")}


def _turn_words(turn: TurnShape) -> str:
    """A turn and what answers it, in words."""
    count = len(turn.roles)
    one, several = _ANSWERS.get(frozenset(turn.roles), ("message", "messages"))
    answers = f"{_NUMBERS.get(count, count)} {one if count == 1 else several}"
    shown = " with an image" if any(turn.images) else ""
    return f"{answers}{shown} after a turn {_THINKING[turn.thinking]}{_TEXT[turn.text] if turn.calls else ''}"


_MOST_PARALLEL = 4
"""The most results of one turn that are looked at one number after the other; beyond them, the spec's limit."""


class Prompts:
    """First messages of an environment's episodes, of which each form is kept once, by its longest text."""

    def __init__(self) -> None:
        self._found: dict[object, tuple[int, tuple[Message, ...]]] = {}

    def add(self, messages: Sequence[Message]) -> None:
        """Takes the first messages of one episode."""
        form = form_of(messages)
        length = sum(len(message.content) for message in messages)
        if form not in self._found or self._found[form][0] < length:
            self._found[form] = (length, tuple(messages))

    def __iter__(self) -> Iterator[tuple[Message, ...]]:
        return iter([messages for _, messages in self._found.values()])


def form_of(messages: Sequence[Message]) -> tuple[tuple[str, bool, int], ...]:
    """What templates branch on in a prompt: its roles, which contents are empty, and where images stand."""
    return tuple((message.role, not message.content.strip(), len(message.images)) for message in messages)


async def opened_prompts(environment: Environment, *, most: int) -> tuple[Prompts, str]:
    """The prompts of about `most` episodes of each split, which are opened for it, and why the first did not open.

    The text is "" where all opened.
    """
    prompts, why = Prompts(), ""
    async with environment:
        for split in environment.spec.tasks:
            size = len(environment.tasks(split))
            for task in range(0, size, max(size // most, 1)):
                async with environment.start(task=task, split=split, opening=environment.unasked_opening) as episode:
                    if episode.failure is None:
                        prompts.add(episode.messages)
                    else:
                        why = why or episode.failure.message
    return prompts, why


def answers_of(environment: Environment) -> tuple[tuple[str, ...], ...]:
    """The roles of the messages that may answer one turn of a policy, the single ones first.

    A policy may write more calls than `limits.calls_per_turn`, which are answered too; so two results can always be.
    """
    answers: list[tuple[str, ...]] = []
    if environment.has_tools:
        answers.append(("tool",))
    if environment.parts.simulated is not None:
        answers.append(("user",))
    if environment.has_tools:
        limit = max(environment.limits.calls_per_turn, 2)
        answers += [("tool",) * count for count in sorted({*range(2, min(limit, _MOST_PARALLEL) + 1), limit})]
    return tuple(answers)


def verdict_of(
    environment: Environment, encoder: TokenEncoder | Callable[[], TokenEncoder], prompts: Iterable[Sequence[Message]]
) -> Verdict:
    """The verdict on a chat template for what an environment plays; never raises for a template's sake.

    Args:
        prompts: first messages of its episodes, one for each form (`Prompts`).
    """
    tools, answers = environment.tool_schemas, answers_of(environment)
    if not isinstance(encoder, TokenEncoder):
        try:
            encoder = encoder()
        except UnsupportedTemplate as error:
            return judge(error)
    # Results and replies show images to a policy that sees; another is told of them.
    found = judge(encoder, *(Played(messages, tools, answers=answers, images=True) for messages in prompts))
    return replace(found, remarks=(*found.remarks, *misread(encoder, environment.parts.dialect, has_tools=bool(tools))))


def misread(encoder: TokenEncoder, dialect: Dialect, *, has_tools: bool = True) -> tuple[str, ...]:
    """The parts of a turn that a chat template writes and a dialect reads otherwise, in words with the nearest fix.

    A thought that is read as an answer would be rewarded and its calls run; a call in other marks is never read.
    """
    if encoder.same_turn is not None:
        return ()
    growth, ends = encoder.growth, encoder.vocabulary.texts(encoder.end_ids)
    story = encoder.story([USER], (TOOL,) if has_tools else ())
    try:
        opens, closes = growth.opens(story), growth.closes(story)
    except UnsupportedTemplate:  # of another kind of conversation, which the verdict looks at
        return ()
    thought, answer = thought_mark(0), said_mark(0)
    own = {"n": "look", "i": "functions.look:0"}
    thinks = growth.sampled(TurnShape("some", "before", ("user",)), ends) if growth.way.key and not closes else ""
    says = "" if opens else growth.sampled(TurnShape("none", "before", ("user",)), ends)
    calls = growth.sampled(TurnShape("some" if opens else "none", "", ("tool",)), ends) if has_tools else ""
    calls = SLOT.sub(lambda mark: own.get(mark[1], ""), calls)
    opened = growth.reader.thinking[0] if growth.reader.thinking else ("", "")

    def faults(reader: Dialect) -> Iterator[str]:
        name = reader.name
        if opens and thought in reader.parse(thought).content:
            yield (
                f"the prompt opens a block of thinking, which dialect {name} does not know: a thought that is cut is"
                f" read as an answer; write dialect: {{base: {name}, thinking_open: true}}"
            )
        read = reader.parse(thinks)
        if thinks and (thought in read.content or thought not in read.thinking):
            yield (
                f"the template writes thinking in {opened[0]!r} and {opened[1]!r}, which dialect {name} reads as an"
                f" answer: it would earn, and calls in it run; write thinking_marks: {{open: {opened[0]!r}, close:"
                f" {opened[1]!r}}}"
            )
        if says and answer not in reader.parse(says).content:
            closed = "thinking" if closes else "thinking_open"
            yield (
                f"the prompt opens no block of thinking, as dialect {name} takes it to: every answer is read as"
                f" thinking; write dialect: {{base: {name}, {closed}: false}}"
            )
        call = next(iter(reader.parse(calls, {"look": TOOL}).calls), None)
        if calls and not (isinstance(call, ToolCall) and call.arguments == {"x": argument_mark(0, 0)}):
            shown = calls.rpartition(thought)[2].strip().replace(argument_mark(0, 0), "…")
            yield f"the template writes a call as {shown[:120]!r}, which dialect {name} does not read"

    found = tuple(faults(dialect))
    if not found:
        return ()
    fits = [name for name in FAMILIES if not any(faults(dialects.get(name)))]
    return (*found, f"dialects that read what the template writes: {', '.join(fits)}") if fits else found
