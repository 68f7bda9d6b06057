"""What `rlenv sft` says of a run that did not finish; nothing is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlenv.cli.console import Console
from rlenv_train.launch import Ending
from rlenv_verl.sft import command


def test_what_an_earlier_attempt_wrote_explains_no_later_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "verl.log"
    log.write_text("CUDA out of memory\ntorch/distributed/elastic: ChildFailedError\n")
    since = log.stat().st_size
    with log.open("a") as file:
        file.write("the disk is full\ntorch/distributed/elastic: ChildFailedError\n")
    run: Any = SimpleNamespace(folder=tmp_path, keeps=True)
    command._explain_end(Ending("failed", 1, 3.0, since), run, Console(highlight=False, soft_wrap=True))
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:] == ["  the disk is full", f"go on with: rlenv sft --resume {tmp_path}"]
