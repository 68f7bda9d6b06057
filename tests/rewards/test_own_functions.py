"""Functions of authors: checked for what they are called with, and reported by name and line where they raise."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from rlenv.errors import RewardError, UsageError
from rlenv.language.spec import RewardSpec
from rlenv.rewards.base import Measured, Term, TermCompileContext
from rlenv.rewards.comparators import PythonComparatorSpec, Side, compile_comparator
from rlenv.rewards.group import score_groups
from rlenv.rewards.scorer import Scorer
from rlenv.secrets import resolve
from rlenv.testing.rewards import compile_term, reward_context
from rlenv.tools.base import Tool
from rlenv.trajectory import EVIDENCE_CHARS, RewardBreakdown, Trajectory

TOOL = Tool(name="tool", description="", parameters={}, run=lambda *_: None, mode="inline")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(
        "import sys\n"
        "def two(answer, task): return 1.0\n"
        "def none(): return 1.0\n"
        "def one(context): return 1.0\n"
        "def raises(context):\n"
        "    return 1 / 0\n"
        "def leaves(context):\n"
        "    sys.exit(0)\n"
        "def endless(trajectories):\n"
        "    while True:\n"
        "        yield 1.0\n"
        "def odd(context):\n"
        "    from rlenv.rewards.base import Measured\n"
        "    return Measured(1.0, 5)\n"
        "def much(context):\n"
        "    from rlenv.rewards.base import Measured\n"
        "    return Measured(1.0, 'x', {'seen': ['y' * 1000] * 1000})\n"
        "def cmp_leaves(mine, gold):\n"
        "    sys.exit(3)\n"
        "class Unsayable(Exception):\n"
        "    def __str__(self): raise ValueError\n"
        "def unsayable(context): raise Unsayable\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "keys", "what"),
    [
        ("rule", {"function": "own.py:two"}, "function: .*takes 2 parameters"),
        ("rule", {"function": "own.py:none"}, "function: .*takes no parameters"),
        ("group", {"function": "own.py:none"}, "function: .*takes no parameters"),
        (
            "verify",
            {"tool": "tool", "arguments": {}, "expect": "1", "compare": {"by": "python", "function": "own.py:one"}},
            r"compare\.function: .*takes 1 parameter",
        ),
    ],
)
def test_what_cannot_be_called_as_it_will_be_is_refused_before_anything_runs(
    base: Path, kind: str, keys: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        compile_term(kind, base=base, tools={"tool": TOOL}, **keys)


def test_validation_shows_the_function(base: Path) -> None:
    (base / "env.yaml").write_text(
        "rlenv: 1\nname: own\ntasks: {train: {rows: [{q: a}]}}\nprompt: {user: '{{ task.q }}'}\n"
        "rewards: {correct: {kind: rule, function: 'own.py:two'}}\n"
    )
    (fault,) = validate([base / "env.yaml"]).faults
    assert fault.path == "rewards.correct.function"
    assert "def two(context)" in f"{fault.message} {fault.hint}"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", r"own.py:raises raised ZeroDivisionError: division by zero \(line 6 of own.py\)"),
        ("leaves", r"own.py:leaves raised SystemExit: 0 \(line 8 of own.py\)"),
        ("unsayable", r"own.py:unsayable raised Unsayable \(line"),
        ("odd", "evidence is no text"),
    ],
)
def test_what_a_function_raises_is_said_with_its_line(base: Path, function: str, said: str) -> None:
    term = compile_term(function=f"own.py:{function}", base=base)
    assert term.measure is not None
    with pytest.raises(RewardError, match=said):
        term.measure(reward_context())


def test_details_of_a_function_are_kept_within_bounds(base: Path) -> None:
    term = compile_term(function="own.py:much", base=base)
    assert term.measure is not None
    assert len(str(term.measure(reward_context()).details)) < 100_000


def test_a_comparator_that_ends_the_program_ends_its_term_only(base: Path) -> None:
    compare = compile_comparator(
        PythonComparatorSpec(by="python", function="own.py:cmp_leaves"), TermCompileContext(base)
    )
    with pytest.raises(RewardError, match="SystemExit: 3"):
        compare(Side("1"), Side("1"))


def test_a_group_function_without_end_is_cut(base: Path) -> None:
    term = compile_term("group", function="own.py:endless", base=base)
    assert term.measure_group is not None
    assert len(term.measure_group([trajectory()])) == 2  # one too many, which scoring refuses


def trajectory(terminated: bool = True, reason: str = "answer") -> Trajectory:
    breakdown = RewardBreakdown(1.0, {}, (1.0,))
    return Trajectory("e", "s", 0, 0, {}, (), (), "a", terminated, not terminated, reason, breakdown, True, None, 0.0)


def test_an_invalid_group_term_ends_an_episode_as_any_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLD", "sesame-opens-it")
    secret = resolve("${env:TOLD}")

    def group(trajectories: Any) -> list[Measured]:
        raise ValueError(f"could not reach it with {secret}")

    scorer = Scorer([Term(name="group", spec=RewardSpec(kind="group"), measure_group=group)])
    answered, cut = score_groups(scorer, [trajectory(), trajectory(terminated=False, reason="turns")])
    for found in (answered, cut):
        assert (found.terminated, found.truncated, found.success, found.reward.total) == (False, True, None, None)
        assert found.failure is not None
        assert found.failure.reason == "reward"
        assert "sesame" not in str(dataclasses.asdict(found))
        assert "could not reach it" in found.failure.message
    assert answered.reason == "reward"
    assert cut.reason == "turns"


def test_the_reason_of_an_invalid_term_is_kept_within_bounds() -> None:
    def measure(context: Any) -> Measured:
        raise RewardError("x" * 1_000_000)

    scorer = Scorer([Term(name="a", spec=RewardSpec(kind="rule"), measure=measure)])
    breakdown, _ = asyncio.run(scorer.score(reward_context()))
    assert len(breakdown.terms["a"].error) <= EVIDENCE_CHARS
