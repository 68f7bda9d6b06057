"""Which places of a planted environment show golds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import rlenv
from rlenv.audit.leaks import find_leaks
from rlenv.audit.play import ScriptPlayer
from rlenv.audit.subject import AuditSubject, aim_of
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.scripted import OraclePolicy
from tests.support.planted import Row, plant, product, rows_of

__all__ = ["FAILURE", "LOOK", "looked", "shown_in"]

TRAIN = "train"
LOOK = "tools: {look: {kind: python, function: 'tools.py:look', inject: [task], run_in: loop}}"
RESULT = 'def look(about: str, task: dict) -> str:\n    """Looks something up."""\n    return f"{expression}"\n'
FAILURE = (
    "from rlenv.errors import ToolFailed\n\n\n"
    'def look(about: str, task: dict) -> str:\n    """Looks up."""\n    raise ToolFailed(f"{expression}")\n'
)


def shown_in(folder: Path, rows: Sequence[Row], **written: str) -> list[str]:
    """The places that show golds: what kind of place each is."""
    path = plant(folder, {TRAIN: rows}, **written)

    async def main() -> list[str]:
        async with rlenv.load(path) as environment:
            oracle = OraclePolicy(environment.spec, environment.parts.dialect)
            golds = await rollout(environment, oracle, [Job(TRAIN, index, 0) for index in range(len(rows))])
            options = [gold.answer or "" for gold in golds]
            player = ScriptPlayer(environment, concurrency=8, seen=lambda ended: None)
            subjects = [AuditSubject(environment, gold, options) for gold in golds]
            aim = aim_of(subjects)
            assert aim is not None
            leaks, _ = await find_leaks(player, subjects, aim)
            return [leak.where.partition(" ")[0] for leak in leaks]

    return asyncio.run(main())


def looked(folder: Path, expression: str, *, head: str = RESULT, call: str = "", rows: Sequence[Row] = ()) -> list[str]:
    # A folder of its own for each: a python file is imported once.
    folder = folder / str(len(list(folder.iterdir())))
    folder.mkdir()
    return shown_in(
        folder, rows or rows_of(40, product), more=LOOK, tools=head.replace("{expression}", expression), call=call
    )
