"""Whether training with a chat template will run, and whether every history will be the template's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens.dummies import Turn
from rlenv.tokens.encoder import History, TokenEncoder
from rlenv.tokens.grown import RESPELLS
from rlenv.tokens.growth import LONG
from rlenv.tokens.shapes import Story

__all__ = ["Played", "Situation", "Verdict", "judge"]

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
    """What an environment plays: the first messages and tools of an episode, and what may answer a turn.

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
    """What a chat template does with an environment.

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
        """Whether training with this history will run and be exact, and what to do where not."""
        if self.is_exact:
            rare = [one for one in self.situations if one.status == "refused" or (one.status, self.history) == _CUT]
            odd = f"; an episode that comes to {rare[0].name} ends as truncated" if rare else ""
            return f"history {self.history}: training will run and be exact{odd}"
        what = "run and not be exact" if self.will_run else "not run"
        return f"history {self.history}: training will {what}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON-like values."""
        return {
            "name": self.name,
            "history": self.history,
            "will_run": self.will_run,
            "is_exact": self.is_exact,
            "situations": [
                {"name": one.name, "status": one.status, "detail": one.detail, "is_rare": one.is_rare}
                for one in self.situations
            ],
            "message": self.message,
            "remarks": list(self.remarks),
        }


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
    situations = tuple(dict.fromkeys(situation for one in played for situation in _situations(encoder, one)))
    verdict = _verdict(encoder, situations)
    if not verdict.will_run and (hint := _other_way(encoder, played)):
        verdict = replace(verdict, message=f"{verdict.message}; or {hint}")
    return verdict


def _verdict(encoder: TokenEncoder, situations: tuple[Situation, ...]) -> Verdict:
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
    try:
        other = encoder.with_values(enable_thinking=value)
        if all(_verdict(other, tuple(_situations(other, one))).will_run for one in played):
            return f"template_kwargs: {{enable_thinking: {str(value).lower()}}}"
    except UnsupportedTemplate:
        pass
    return ""


def _situations(encoder: TokenEncoder, played: Played) -> Iterator[Situation]:
    tools = played.tools
    story = encoder.story(played.messages, () if encoder.same_turn is not None else tools)
    try:
        kinds = _kinds(encoder, story, played)
    except UnsupportedTemplate as error:
        yield Situation("the first prompt", "refused", str(error))
        return
    turns = list(_turns(encoder, played, kinds))
    first: dict[Turn, Situation] = {}
    for turn, is_rare in turns:
        first[turn] = _situation(encoder, story, turn, _named(turn), is_rare=is_rare)
        yield first[turn]
    if encoder.same_turn is not None:
        return
    yield from _unclosed(encoder, story, played, turns)
    for before, before_rare in turns:
        if first[before].status == "refused" or (first[before].status != "grows" and encoder.history == "grow"):
            continue  # nothing comes behind it
        yield from _later(encoder, story.after(before), before, turns, first, before_rare)


def _unclosed(
    encoder: TokenEncoder, story: Story, played: Played, turns: Sequence[tuple[Turn, bool]]
) -> Iterator[Situation]:
    """What a policy comes to that thinks and does not close it, and that is answered in words all the same."""
    kind = "left" if encoder.growth.opens(story) else "cut"
    if played.thinks and any(turn.thinking in ("some", "empty") for turn, _ in turns):
        for roles in dict.fromkeys(turn.roles for turn, _ in turns if not turn.calls):
            turn = Turn(kind, "", roles)
            yield _situation(encoder, story, turn, _named(turn), is_rare=True)


def _later(
    encoder: TokenEncoder,
    story: Story,
    before: Turn,
    turns: Sequence[tuple[Turn, bool]],
    first: Mapping[Turn, Situation],
    is_rare: bool,
) -> Iterator[Situation]:
    """What is otherwise behind an earlier turn than it is at the beginning, up to the third turn."""
    for turn, rare in turns:
        name = f"{_named(turn)}, behind {_named(before)}"
        found = _situation(encoder, story, turn, name, is_rare=is_rare or rare)
        if found.status == "grows":
            found = _situation(encoder, story.after(turn), turn, f"{name}, twice", is_rare=is_rare or rare)
        if found.status == "grows" and turn == before:
            long = story
            for _ in range(LONG):
                long = long.after(turn)
            found = _situation(encoder, long, turn, f"{_named(turn)}, behind {LONG + 1} like it", is_rare=rare)
        if found.status != first[turn].status and found.status != "grows":
            yield found


def _situation(encoder: TokenEncoder, story: Story, turn: Turn, name: str, *, is_rare: bool) -> Situation:
    try:
        finding = encoder.look(story, turn)
        encoder.check_layout(finding.layout)
    except UnsupportedTemplate as error:
        return Situation(name, "refused", str(error), is_rare or _is_choice(turn))
    if finding.is_refused:
        return Situation(name, "refused", finding.fault, is_rare or _is_choice(turn))
    fault = finding.fault or (RESPELLS if finding.spelled is not None else "")
    if not fault and encoder.same_turn is None and not encoder.ends_with(finding.layout.stop):
        fault = f"it ends such a turn with {finding.layout.stop}, which no generation ends with"
    if not fault and encoder.same_turn is None and len(encoder.end_ids) > 1 and not story.turns:
        last = encoder.growth.last_end(story, turn, encoder.vocabulary.texts(encoder.end_ids))
        if last not in ("", finding.layout.stop):  # what a policy has learned to end it with
            fault = f"it ends this turn with {finding.layout.stop}, and with {last} while it is the last"
    return Situation(name, "rewritten" if fault else "grows", fault, is_rare)


def _is_choice(turn: Turn) -> bool:
    """Whether a policy can do without what a template refuses: several calls, or text beside calls."""
    return len(turn.roles) > 1 or (turn.calls > 0 and turn.text != "") or turn.thinking not in ("none", "some")


def _kinds(encoder: TokenEncoder, story: Story, played: Played) -> list[tuple[str, bool]]:
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
    """How a turn without thinking looks: bare, or as the template writes it where it rewrites a bare one.

    That is behind a closing mark alone, or behind an empty block (GLM-4.6).
    """
    for roles in dict.fromkeys(map(tuple, played.answers)):
        grows = [
            kind
            for kind in ("none", "closed", "empty")
            if _situation(
                encoder, story, Turn(kind, "" if "tool" in roles else "before", roles), "", is_rare=False
            ).status
            == "grows"
        ]
        if grows and grows[0] != "none":
            return [(grows[0], False), ("none", True)]
    return [("none", False)]


def _turns(encoder: TokenEncoder, played: Played, kinds: Sequence[tuple[str, bool]]) -> Iterator[tuple[Turn, bool]]:
    for roles in dict.fromkeys(map(tuple, played.answers)):
        shown = [()] if not played.images or encoder.images is None else [(), (1,) + (0,) * (len(roles) - 1)]
        for images in shown:
            for kind, is_rare in kinds:
                for text in ("", "before") if "tool" in roles else ("before",):
                    yield Turn(kind, text, roles, images), is_rare


def _named(turn: Turn) -> str:
    """A turn and what answers it, in words."""
    count = len(turn.roles)
    what = "result" if set(turn.roles) == {"tool"} else "reply" if set(turn.roles) == {"user"} else "message"
    answers = f"{_NUMBERS.get(count, count)} {what if count == 1 else 'replies' if what == 'reply' else what + 's'}"
    shown = " with an image" if any(turn.images) else ""
    return f"{answers}{shown} after a turn {_THINKING[turn.thinking]}{_TEXT[turn.text] if turn.calls else ''}"
