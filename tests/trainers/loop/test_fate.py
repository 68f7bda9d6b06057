"""What becomes of a sample, by the reason its episode ended."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import UsageError
from rlenv.messages import ParsedAction
from rlenv.trajectory import Failure, RewardBreakdown, Trajectory, Turn
from rlenv_train.fate import FAULTS, SAFE, TRUNCATIONS, Outcome, Row, failure_policy, outcome_of

DONE = Trajectory(
    "toy-v0", "train", 0, 0, {}, (), (), "42", True, False, "answer", RewardBreakdown(1.0, {}), True
)  # fmt: skip


def cut(reason: str, reward: float | None = 0.25) -> Trajectory:
    breakdown = RewardBreakdown(reward, {})
    return replace(DONE, terminated=False, truncated=True, reason=reason, reward=breakdown, success=False)


def fault(reason: str) -> Trajectory:
    return replace(cut(reason, None), success=None, failure=Failure(reason, "no"))


def outcome(
    trajectory: Trajectory, given: dict[str, str] | None = None, *, mask: tuple[int, ...] = (1, 0, 1)
) -> Outcome:
    return outcome_of(
        trajectory,
        terms=(),
        rows=[Row((5,), (1, 2, 3)[: len(mask)], mask, (-0.5, 0.0, -0.5)[: len(mask)])] if mask else [],
        filler_id=0,
        policy=failure_policy(given),
    )


@pytest.mark.parametrize("reason", FAULTS)
def test_faults_are_masked_by_default(reason: str) -> None:
    found = outcome(fault(reason))
    assert (found.rows[0].mask, found.reward, found.masked, found.zeroed) == ((0, 0, 0), 0.0, reason, "")
    assert (found.info["masked"], found.info["invalid"]) == (1.0, 1.0)


@pytest.mark.parametrize("reason", TRUNCATIONS)
def test_truncations_are_kept_by_default(reason: str) -> None:
    found = outcome(cut(reason))
    assert (found.rows[0].mask, found.reward, found.masked, found.ended) == ((1, 0, 1), 0.25, "", reason)
    assert (found.info["masked"], found.info["invalid"]) == (0.0, 0.0)


@pytest.mark.parametrize("reason", [*FAULTS, *TRUNCATIONS])
def test_zero_trains_on_the_tokens_with_reward_zero_and_says_so(reason: str) -> None:
    trajectory = fault(reason) if reason in FAULTS else cut(reason)
    found = outcome(trajectory, {reason: "zero"})
    assert (found.rows[0].mask, found.reward, found.masked, found.zeroed) == ((1, 0, 1), 0.0, "", reason)
    assert found.info["masked"] == 0.0
    assert found.info["invalid"] == float(reason in FAULTS)


@pytest.mark.parametrize(("choice", "earned"), [("keep", (0.25,)), ("zero", (0.0,)), ("mask", (0.0,))])
def test_turns_earn_nothing_in_a_sample_that_is_not_kept(choice: str, earned: tuple[float, ...]) -> None:
    turns = (Turn(0, "", ParsedAction(""), ()),)
    trajectory = replace(cut("turns"), turns=turns, reward=RewardBreakdown(0.25, {}, (0.25,)))
    assert outcome(trajectory, {"turns": choice}).turn_rewards == earned


@pytest.mark.parametrize("reason", TRUNCATIONS)
def test_a_masked_truncation_has_no_number(reason: str) -> None:
    found = outcome(cut(reason), {reason: "mask"})
    assert (found.rows[0].mask, found.reward, found.masked) == ((0, 0, 0), 0.0, reason)
    assert found.info["invalid"] == 0.0


def test_what_is_not_named_goes_by_its_kind_and_a_name_wins() -> None:
    policy = failure_policy({"faults": "zero", "resource": "mask", "truncations": "mask", "turns": "keep"})
    assert [policy.choice(fault(reason)) for reason in ("resource", "reward", "a_plugins_own")] == [
        "mask",
        "zero",
        "zero",
    ]
    assert [policy.choice(cut(reason)) for reason in ("turns", "time")] == ["keep", "mask"]
    assert policy.choice(DONE) == "keep"


def test_a_cut_episode_without_a_reward_is_not_kept() -> None:
    assert failure_policy({"straggler": "keep"}).choice(fault("straggler")) == "mask"


def test_a_sample_in_which_nothing_was_sampled_is_masked() -> None:
    found = outcome(cut("straggler"), mask=(0, 0, 0))
    assert (found.masked, found.reward) == ("straggler", 0.0)
    assert outcome(cut("response_tokens"), {"response_tokens": "zero"}, mask=()).zeroed == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"resorce": "mask"}, r"failures\.resorce: no episode ends for this reason; did you mean 'resource'\? known: "),
        ({"fault": "mask"}, "did you mean 'faults'"),
        ({"turns": "drop"}, r"failures\.turns: 'drop' is none of mask, keep, zero"),
        ({"reward": "keep"}, r"failures\.reward: keep needs a reward.* say mask .* or zero"),
        ({"faults": "keep"}, r"failures\.faults: keep needs a reward"),
        ("mask", r"failures: expected reason: choice, such as \{turns: mask\}, not 'mask'"),
    ],
)
def test_mistakes_are_named_with_the_nearest_fix(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        failure_policy(given)


def test_an_empty_section_is_the_safe_policy() -> None:
    assert failure_policy(None) == failure_policy({}) == SAFE


def test_every_reason_that_the_source_gives_can_be_named() -> None:
    root = Path(__file__).resolve().parents[3]
    errors = {"EpisodeError", "ResourceError", "RewardError", "EndpointError", "PolicyError"}
    found = set()
    for file in [*root.glob("rlenv/**/*.py"), *root.glob("trainers/**/*.py")]:
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(name in text for name in errors) else ():
            if isinstance(node, ast.ClassDef) and node.name in errors:
                found |= {
                    item.value.value
                    for item in node.body
                    if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant)
                }
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in errors:
                found |= {
                    keyword.value.value
                    for keyword in node.keywords
                    if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant)
                }
    assert len(found) > 8
    assert found <= set(FAULTS), "name these in rlenv_train.fate.FAULTS"
    page = (root / "docs" / "training" / "failures.md").read_text(encoding="utf-8")
    assert [reason for reason in (*FAULTS, *TRUNCATIONS) if f"`{reason}`" not in page] == []
