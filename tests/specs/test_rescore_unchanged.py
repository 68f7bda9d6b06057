"""Rescoring with the unchanged spec changes nothing, for every spec and example that ships, with faults and without."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import load
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.scripted import RandomPolicy
from rlenv.runs.replay import rescore
from rlenv.runs.summary import compare
from rlenv.trajectory import Trajectory

_ROOT = Path(__file__).resolve().parents[2]
_NOBODY = "http://127.0.0.1:9/v1"
FAULTS = {"calls.faults": {"error": 0.3, "garble": 0.2}}
SPECS = (
    *(
        path.stem
        for path in sorted((_ROOT / "specs").glob("*.yaml"))
        if "kind: workspace" not in path.read_text("utf-8")
    ),
    *(
        str(path.relative_to(_ROOT))
        for path in sorted((_ROOT / "examples").glob("**/*.yaml"))
        if path.parent.name != "search_r1"  # its rows and its passages have to be made first
        and any(f"\n{key}:" in path.read_text("utf-8") for key in ("rewards", "extends"))
        and "kind: workspace" not in path.read_text("utf-8")  # what a machine held is there in a recorded run alone
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("faults", [{}, FAULTS], ids=["well", "faults"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.sandbox)
        if name.startswith(("examples/humaneval/", "examples/mbpp/", "code-tests", "shell", "repository"))
        else name
        for name in SPECS
    ],
)
def test_the_unchanged_spec_changes_nothing(
    name: str, faults: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Examples that ask a server find nobody there: such an episode fails, or its calls do, then and now.
    monkeypatch.setenv("RESEARCH_URL", _NOBODY)
    path = root / name if "/" in name else name

    async def played() -> list[Trajectory]:
        async with load(path, set=faults) as environment:
            spec, dialect = environment.spec, environment.parts.dialect
            rows = [(split, task) for split in spec.tasks for task in environment.part(split, 2)]
            jobs = [Job(split, task, seed=seed) for split, task in rows for seed in range(2)]
            found = await rollout(environment, environment.oracle(), jobs) if spec.oracle else []
            return found + await rollout(environment, RandomPolicy(dialect, spec.answer), jobs)

    async def main() -> None:
        before = await played()
        async with load(path, set=faults) as environment:
            found = compare(before, await rescore(environment, before))
            is_game = environment.spec.user is not None and environment.spec.user.kind == "players"
        if is_game:  # where their calls led is not there again: nothing is a number, and the reason is said
            assert {change.after for change in found.changes} == {None}
            assert all("the other players' calls are not taken again" in change.error for change in found.changes)
            return
        assert found.changes == ()
        assert found.invalid[0] == found.invalid[1]

    asyncio.run(main())
