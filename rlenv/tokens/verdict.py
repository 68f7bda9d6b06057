"""Whether training with a chat template will run, and whether every history will be the template's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens.encoder import History, TokenEncoder

__all__ = ["Played", "Situation", "Verdict", "judge"]

Status = Literal["grows", "rewritten", "refused"]


@dataclass(frozen=True, slots=True)
class Played:
    """What an environment plays: the first messages and tools of an episode, and what may answer a turn.

    Attributes:
        messages: a first prompt of the environment.
        tools: their schemas, in the form that the template is given.
        answers: the roles of the messages that may answer one turn, each as a tuple: `("tool",)` for one result,
            `("tool", "tool")` where a turn may have several calls, `("user",)` for a simulated user.
        thinks: whether the policy may think.
        images: whether results or replies may show images.
    """

    messages: Sequence[Message | Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    answers: Sequence[tuple[str, ...]] = (("tool",),)
    thinks: bool = True
    images: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """One kind of history that an environment can come to, and what the template does there."""

    name: str
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a chat template does with an environment.

    `will_run`: training with this `history` will not fail for the template's sake. `is_exact`: and every history
    will be the template's own. `message` says in words what to do ("" where it runs and is exact).
    """

    name: str
    history: History
    will_run: bool
    is_exact: bool
    situations: tuple[Situation, ...]
    message: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON-like values."""
        return {
            "name": self.name,
            "history": self.history,
            "will_run": self.will_run,
            "is_exact": self.is_exact,
            "situations": [{"name": one.name, "status": one.status, "detail": one.detail} for one in self.situations],
            "message": self.message,
        }


def judge(encoder: TokenEncoder | Callable[[], TokenEncoder], *played: Played) -> Verdict:
    """The verdict for what an environment plays; never raises for a template's sake.

    Args:
        encoder: as it will train, or what makes it: a template that it refuses is a verdict.
        played: one for each kind of first prompt that the environment has.
    """
    if not isinstance(encoder, TokenEncoder):
        try:
            encoder = encoder()
        except UnsupportedTemplate as error:
            situation = Situation("binding", "refused", str(error))
            return Verdict("", "grow", False, False, (situation,), str(error))
    situations = tuple(situation for one in played for situation in _situations(encoder, one))
    bad = [one for one in situations if one.status != "grows"]
    rewritten = [one for one in bad if one.status == "rewritten"]
    refused = [one for one in bad if one.status == "refused"]
    will_run = not refused and (encoder.history != "grow" or not rewritten)
    is_exact = will_run and (encoder.history != "keep" or not rewritten)
    message = ""
    if refused:
        message = refused[0].detail
    elif rewritten and encoder.history == "grow":
        message = (
            f"chat template {encoder.template.name} rewrites history ({rewritten[0].name}: {rewritten[0].detail});"
            " choose run.history: keep or rows"
        )
    return Verdict(encoder.template.name, encoder.history, will_run, is_exact, situations, message)


def _situations(encoder: TokenEncoder, played: Played) -> Iterator[Situation]:
    for roles in played.answers:
        for after_thinking in (False, True) if played.thinks else (False,):
            name = f"{', '.join(roles)} after {'thinking' if after_thinking else 'a turn without thinking'}"
            try:
                fault = encoder.rewrites(roles, after_thinking=after_thinking)
            except UnsupportedTemplate as error:
                yield Situation(name, "refused", str(error))
                continue
            yield Situation(name, "rewritten" if fault else "grows", fault)
