"""Processes for SQL: what goes wrong in one is told to whoever has to mend it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlenv.concurrency.deadline import begin
from rlenv.resources.sql.resource import EngineRaised, SqlWorkers, StatementRequest, limits_for
from tests.resources.sql.engines import run

WHERE = {"may_write": False, "memory": 512_000_000}
BROKEN = """
class Engine:
    holds = ""

    def run(self, asked, fd):
        raise KeyError("a bug of the engine's")
"""


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("broken_engine:Engine", 'KeyError: "a bug of the engine\'s"'),
        ("no_such_engine:Engine", "No module named 'no_such_engine'"),
    ],
)
def test_a_bug_of_an_engine_comes_out_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, says: str
) -> None:
    (tmp_path / "broken_engine.py").write_text(BROKEN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    workers = SqlWorkers(engine)
    limits = limits_for(time.monotonic() + 50, cpu_s=None, max_rows=1, max_size=100)
    try:
        with pytest.raises(EngineRaised, match="Traceback") as found:
            run(workers.run(StatementRequest("SELECT 1", limits, WHERE)))
        assert says in str(found.value)
    finally:
        workers.pool.close()


def test_a_statement_that_came_late_may_use_as_much_of_the_processor_as_one_that_came_at_once() -> None:
    """Or it would look as if it had used its time up, which is the policy's own doing."""

    async def work() -> float:
        begin().append(3e6)  # its call has waited for a place
        return limits_for(time.monotonic() + 1e6, cpu_s=None, max_rows=1, max_size=100).cpu_s

    assert run(work()) == pytest.approx(1e6, rel=1e-3)
