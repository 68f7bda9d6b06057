"""The verdict and the run agree: what is judged exact is never refused, and what is refused was named."""

from __future__ import annotations

from typing import Any

import pytest

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Observation
from rlenv.tokens import TokenTrajectory
from rlenv.tokens.verdict import Played, Verdict, judge
from tests.tokens.kinds import KINDS, Oracle, Said, bound, dialogues


def judged(name: str, with_users: bool) -> Any:
    """The verdict for a prompt, with how its turns think, each looked at once."""
    encoder, oracle, found = bound(KINDS[name]), Oracle(KINDS[name]), {}

    def verdict(prompt: list[Any], tools: list[Any], turns: list[Said]) -> Verdict:
        thinks = {
            "some" if turn.said.thinking else "empty" if "<think>" in oracle.said(turn.turn()) else "none"
            for turn in turns
        }
        if encoder.growth.opens(encoder.story(prompt, tools)):
            thinks = {"empty" if kind == "none" else kind for kind in thinks}
        key = (len(prompt), bool(tools), frozenset(thinks))
        if key not in found:
            answers = [("tool",), ("tool",) * 2, ("tool",) * 3, *([("user",)] if with_users else [])]
            found[key] = judge(encoder, Played(prompt, tools, answers=answers, thinks=sorted(thinks)))
        return found[key]

    return encoder, verdict


def said_alike(detail: str, error: str) -> bool:
    """Whether a situation's words are those of a refusal, but for the texts and marks that they show."""
    return any(
        detail in error or (detail.startswith(start) and start in error)
        for start in ("it ends this turn with", "after turn")
    )


def refused(trajectory: TokenTrajectory, turn: Said) -> str:
    """Why a run refuses what answers a turn; "" where it does not."""
    try:
        assert trajectory.add_observation(Observation(turn.answers))
    except UnsupportedTemplate as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("with_users", [True, False], ids=["users", "tools"])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_judged_exact_is_not_refused_and_what_is_refused_is_named(name: str, with_users: bool) -> None:
    encoder, verdict = judged(name, with_users)
    oracle = Oracle(KINDS[name])
    for prompt, tools, turns in dialogues(25, f"agreement {name}", with_users=with_users):
        seen = verdict(prompt, tools, turns)
        trajectory = encoder.start(prompt, tools=tools)
        before, conversation = oracle.text(prompt, tools), list(prompt)
        for turn in turns:
            said = oracle.said(turn.turn())
            conversation += [turn.turn(), *(answer.as_dict() for answer in turn.answers)]
            after = oracle.text(conversation, tools)
            trajectory.add_sampled(oracle.ids(before + said)[len(oracle.ids(before)) :])
            if error := refused(trajectory, turn):
                assert not seen.is_exact, (seen, error, before, said)
                named = [one for one in seen.situations if one.status != "grows"]
                assert any(said_alike(one.detail, error) for one in named), (error, named)
                break
            before = after
