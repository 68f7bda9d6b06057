"""Processes for SQL: what goes wrong in one is told to whoever has to mend it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlenv.resources.sql.engine import limits_for
from rlenv.resources.sql.resource import EngineRaised, SqlWorkers, StatementRequest
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
