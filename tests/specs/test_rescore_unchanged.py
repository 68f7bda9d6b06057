"""Rescoring with the unchanged spec changes nothing, for every spec and example that runs without a network."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rlenv.episodes.environment import load
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.oracle import OraclePolicy
from rlenv.policies.scripted import RandomPolicy
from rlenv.runs.rescore import compare, rescore
from rlenv.trajectory import Trajectory

_EXAMPLES = ("chart_qa", "code", "command", "customer", "first", "humaneval", "mbpp", "mcp_clock", "python_tool")
SPECS = (
    *("arithmetic", "gsm8k", "nl2sql", "search-qa"),
    *(f"examples/{name}/env.yaml" for name in _EXAMPLES),
    *("examples/curves/nl2sql-toy.yaml", "examples/curves/search-qa-toy.yaml"),
)


@pytest.mark.parametrize("name", SPECS)
def test_the_unchanged_spec_changes_nothing(name: str, root: Path) -> None:
    path = root / name if "/" in name else name

    async def played() -> list[Trajectory]:
        async with load(path) as environment:
            spec, dialect = environment.spec, environment.parts.dialect
            jobs = [Job(split, task) for split in spec.tasks for task in environment.part(split, 2)]
            found = await rollout(environment, OraclePolicy(spec, dialect), jobs)
            return found + await rollout(environment, RandomPolicy(dialect, spec.answer), jobs)

    async def main() -> None:
        before = await played()
        async with load(path) as environment:
            found = compare(before, await rescore(environment, before))
        assert found.changes == ()
        assert found.invalid == (0, 0)
        assert found.reward[0] is not None

    asyncio.run(main())
