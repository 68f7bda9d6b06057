"""What `run.json` says of a run, whoever wrote it, and what of a run counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.runs.folder import Attempt, KeptRun, Kind, RunInfo, open_run, write_info
from rlenv.runs.recorded import recorded
from rlenv.runs.schema import Facts
from tests.support.kept import episode, keep


@pytest.mark.parametrize("kind", ["eval", "rescore"])
def test_a_run_that_went_on_counts_what_it_had(tmp_path: Path, kind: Kind) -> None:
    """Only training throws steps away, where it goes on from a checkpoint before them."""
    info = RunInfo(kind)
    for attempt in range(3):
        with KeptRun(tmp_path, info, resume=attempt > 0) as run:
            run.append(episode(attempt), Facts(mode="sampled"))
    assert sorted(open_run(tmp_path).table["task"].to_pylist()) == [0, 1, 2]
    assert [one.task_index for one in recorded(tmp_path)] == [0, 1, 2]


def test_what_training_threw_away_does_not_count(tmp_path: Path) -> None:
    keep(tmp_path, 2, attempt=0, facts=Facts(step=5, mode="train"))
    write_info(tmp_path, RunInfo("train", attempts=(Attempt(0), Attempt(1, from_step=4))))
    assert len(open_run(tmp_path).table) == 0
