"""The laws of environments: each is broken by a spec, a policy or a record that breaks it alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.messages import Message, ParsedAction
from rlenv.policies.base import PolicyContext
from rlenv.secrets import resolve
from rlenv.testing import check_environment, check_environment_async, check_trajectory, environments
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.trajectory import Failure, RewardBreakdown, Step, TermResult, Trajectory, Turn
from tests.support.clock import run_skipping
from tests.support.environments import BASE, Make
from tests.support.laws import not_broken, rule_of

SPEC = BASE.replace("calculate: {kind: calculator}", 'calculate: {kind: python, function: "tools.py:calculate"}')
FINE = "def calculate(expression: str) -> str:\n    'Calculates.'\n    return '2'\n"
COUNTS = """
import itertools
count = itertools.count()
def calculate(expression: str) -> str:
    'Calculates.'
    return {}
"""
LEAVES = """
import asyncio
left = []
async def calculate(expression: str) -> str:
    'Calculates.'
    left.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))
    return '2'
"""
BESIDE = """
import asyncio
running = 0
async def calculate(expression: str) -> str:
    'Calculates.'
    global running
    running += 1
    try:
        await asyncio.sleep(0)
        return str(running)
    finally:
        running -= 1
"""


class Said:
    """A policy of one answer, which may do something to the task."""

    name = "said"

    def __init__(self, action: Any = "<answer>5</answer>", does: Callable[[Any], Any] = lambda task: None) -> None:
        self._action = action
        self._does = does

    def start(self, context: PolicyContext) -> Said:
        self._does(context.task)
        return self

    async def act(self, messages: Any) -> Any:
        return self._action

    async def aclose(self) -> None: ...


class Silent(Said):
    async def act(self, messages: Any) -> Any:
        await asyncio.Event().wait()


class FailsToClose(Said):
    async def aclose(self) -> None:
        raise OSError("it is gone")


class LateEpisodes(Environment):
    """One whose episodes do not end any more, from a certain one on."""

    def __init__(self, loaded: LoadedSpec, first: int) -> None:
        super().__init__(loaded)
        self.count = itertools.count()
        self.first = first

    @asynccontextmanager
    async def start(self, **where: Any) -> AsyncIterator[Episode]:  # type: ignore[override]
        async with super().start(**where) as episode:
            yield episode
        if next(self.count) >= self.first:
            await asyncio.Event().wait()


class LateToClose(Environment):
    async def aclose(self) -> None:
        await asyncio.Event().wait()


LATE: list[tuple[str, Callable[[LoadedSpec], Environment], type[Said]]] = [
    ("a policy acts in time", Environment, Silent),
    ("a policy closes without an error", Environment, FailsToClose),
    ("an episode ends in time", lambda loaded: LateEpisodes(loaded, 0), Said),
    ("episodes side by side end in time", lambda loaded: LateEpisodes(loaded, 1), Said),
    ("records replay in time", lambda loaded: LateEpisodes(loaded, 3), Said),
    ("an environment closes in time", LateToClose, Said),
]


def said(*args: Any) -> dict[str, Any]:
    return {"policies": lambda environment: [Said(*args)]}


WITH_IDS = {"tokenizer": small_tokenizer, "chat_template": CHAT_TEMPLATE}
BROKEN: list[tuple[str, str, str, dict[str, Any]]] = [
    ("an episode leaves its task as it is", BASE, "", said("<answer>5</answer>", lambda task: task.update(answer=5.5))),
    (
        "no action makes its own reward invalid",
        BASE.replace("{kind: rule, rule: numeric_match}", '{kind: rule, rule: python, function: "tools.py:score"}'),
        "def score(answer):\n    raise KeyError(answer)\n",
        said(),
    ),
    ("the oracle succeeds", BASE.replace("{{ task.answer }}</answer>", "1</answer>"), "", {}),
    ("episodes side by side are what each is alone", SPEC, BESIDE, {"tasks": 2}),
    (
        "a record replays to the same episode and reward",
        SPEC,
        COUNTS.format("'first' if next(count) < 6 else 'later'"),
        {"tasks": 2, "policies": lambda environment: environments._players_of(environment)[:1]},
    ),
    ("no secret stands in a record", BASE, "", said(Message("assistant", "correct-horse-battery"))),
    ("a closed environment leaves no task behind", SPEC, LEAVES, {"limit_s": 0.05}),
    ("ids are looked at for a policy that gives texts", BASE, "",
     {**WITH_IDS, **said(Message("assistant", "<answer>5</answer>"))}),
]  # fmt: skip

TURN = Turn(0, "5", ParsedAction("5"))
RECORD = Trajectory(
    "toy-v0", "train", 0, 0, {}, (), (TURN,), "5", True, False, "answer",
    RewardBreakdown(1.0, {"right": TermResult("right", "valid", 1.0, 1.0)}, (1.0,)), True,
)  # fmt: skip
NAN = float("nan")
BROKEN_RECORDS: list[tuple[str, Trajectory]] = [
    ("an episode that has ended is either terminated or truncated", replace(RECORD, truncated=True)),
    ("an episode's end has a reason", replace(RECORD, reason="")),
    ("turns are numbered from 0", replace(RECORD, turns=(replace(TURN, index=1),))),
    ("there is one reward a turn", replace(RECORD, reward=RewardBreakdown(1.0, {}, ()))),
    ("rewards are finite", replace(RECORD, reward=RewardBreakdown(NAN, {}, (NAN,)))),
    (
        "rewards are finite",
        replace(RECORD, reward=RewardBreakdown(1.0, {"a": TermResult("a", "valid", NAN, 1.0)}, (1.0,))),
    ),
    (
        "a term has a value exactly where it is valid",
        replace(RECORD, reward=RewardBreakdown(1.0, {"a": TermResult("a", "invalid", 0.0, 1.0)}, (1.0,))),
    ),
    ("a reward is invalid exactly where something failed", replace(RECORD, failure=Failure("tool", "gone"))),
    ("success is unknown exactly where the reward is invalid", replace(RECORD, success=None)),
    ("the rewards of the turns sum to the total", replace(RECORD, reward=RewardBreakdown(1.0, {}, (0.5,)))),
]  # fmt: skip
PAID = "the rewards of the steps sum to the total"
KEPT_BY_THE_FRAMEWORK = {
    "a record is read back as it was",
    "there is one entry of the mask for each id",
    "the mask has 0 and 1 alone",
    "the mask marks what was sampled, and nothing else",
}


def test_an_environment_that_keeps_the_laws_passes(make_environment: Make) -> None:
    check_environment(make_environment())
    check_environment(make_environment(SPEC, tools=FINE))


def test_the_ids_and_masks_of_an_environment_keep_the_laws(make_environment: Make) -> None:
    pytest.importorskip("tokenizers")
    check_environment(make_environment(), tokenizer=small_tokenizer(), chat_template=CHAT_TEMPLATE)


def test_an_environment_is_checked_in_a_loop_that_runs(make_environment: Make) -> None:
    asyncio.run(check_environment_async(make_environment(), tasks=1))


def test_one_that_promises_nothing_is_not_compared(make_environment: Make) -> None:
    counts = COUNTS.format("str(next(count))")
    check_environment(make_environment(SPEC, tools=counts), is_deterministic=False)


def test_a_secret_in_a_row_is_in_no_record_and_the_record_replays(
    make_environment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLENV_TEST_KEY", "correct-horse-battery")
    resolve("${env:RLENV_TEST_KEY}")
    check_environment(make_environment(BASE.replace("answer: 5}", "answer: 5, note: correct-horse-battery}")))


@pytest.mark.parametrize(("rule", "spec", "tools", "keys"), BROKEN, ids=[row[0] for row in BROKEN])
def test_each_law_is_broken_by_a_spec_that_breaks_it_alone(
    rule: str,
    spec: str,
    tools: str,
    keys: dict[str, Any],
    make_environment: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL")
    monkeypatch.setenv("RLENV_TEST_KEY", "correct-horse-battery")
    resolve("${env:RLENV_TEST_KEY}")
    if "tokenizer" in keys:
        pytest.importorskip("tokenizers")
        keys = {**keys, "tokenizer": small_tokenizer()}
    with pytest.raises(AssertionError) as found:
        check_environment(make_environment(spec, tools=tools), **keys)
    assert rule_of(found.value) == rule


@pytest.mark.parametrize(("rule", "made", "policy"), LATE, ids=[row[0] for row in LATE])
def test_what_hangs_in_an_environment_breaks_a_law(
    rule: str, made: Callable[[LoadedSpec], Environment], policy: type[Said], make_environment: Make
) -> None:
    environment = made(make_environment().loaded)
    with pytest.raises(AssertionError) as found:
        run_skipping(check_environment_async(environment, tasks=1, policies=lambda environment: [policy()]))
    assert rule_of(found.value) == rule


class Overpaid(Environment):
    """Pays more at each step than its episodes record."""

    def start(self, **keys: Any) -> Any:
        return OverpaidEpisode(super().start(**keys))


class OverpaidEpisode:
    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    async def __aenter__(self) -> OverpaidEpisode:
        await self._episode.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._episode.__aexit__(*raised)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._episode, name)

    async def step(self, action: Any) -> Step:
        step = await self._episode.step(action)
        return replace(step, reward=(step.reward or 0.0) + 1)


def test_the_law_of_rewards_is_broken_by_an_environment_that_pays_more_than_it_records(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text(BASE, encoding="utf-8")
    with pytest.raises(AssertionError) as found:
        check_environment(Overpaid(load_spec(tmp_path / "env.yaml")))
    assert rule_of(found.value) == PAID


@pytest.mark.parametrize(("rule", "trajectory"), BROKEN_RECORDS, ids=[row[0] for row in BROKEN_RECORDS])
def test_each_law_of_records_is_broken_by_one_that_breaks_it_alone(rule: str, trajectory: Trajectory) -> None:
    check_trajectory(RECORD)
    with pytest.raises(AssertionError) as found:
        check_trajectory(trajectory)
    assert rule_of(found.value) == rule


def test_every_law_of_environments_has_something_that_breaks_it() -> None:
    names = [row[0] for table in (BROKEN, LATE, BROKEN_RECORDS) for row in table]
    broken = {PAID, *names}
    assert not_broken(environments, broken | KEPT_BY_THE_FRAMEWORK) == []
