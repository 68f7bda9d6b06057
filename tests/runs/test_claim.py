"""One attempt at a time writes a run, and only one that plays the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv.runs.folder import KeptRun, RunInfo, open_run, read_info
from rlenv.runs.schema import Facts
from tests.support.kept import episode

_HOLDS = """
import sys
from rlenv.runs.folder import KeptRun, RunInfo
KeptRun(sys.argv[1], RunInfo("eval"))
print("begun", flush=True)
sys.stdin.read()
"""


def test_nobody_goes_on_with_a_run_that_is_written_and_anybody_once_its_process_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"begun\n"
        for resume, overwrite in ((True, False), (False, True), (False, False)):
            with pytest.raises(UsageError, match="is still running"):
                KeptRun(tmp_path, RunInfo("eval"), resume=resume, overwrite=overwrite)
        other.send_signal(signal.SIGKILL)
    with KeptRun(tmp_path, RunInfo("eval"), resume=True) as run:
        assert [one.number for one in run.info.attempts] == [0, 1]


def test_of_several_that_begin_at_once_one_does(tmp_path: Path) -> None:
    with KeptRun(tmp_path, RunInfo("eval")) as run:
        run.append(episode(0), Facts())
    begun, refused, all_there = [], [], threading.Barrier(8)

    def go_on() -> None:
        all_there.wait()
        try:
            begun.append(KeptRun(tmp_path, RunInfo("eval"), resume=True))
        except UsageError as error:
            refused.append(error)

    threads = [threading.Thread(target=go_on) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(begun), len(refused)) == (1, 7)
    begun[0].close()
    info = read_info(tmp_path)
    assert info is not None
    assert len(info.attempts) == 2


def test_a_run_that_was_refused_is_free_again(tmp_path: Path) -> None:
    with KeptRun(tmp_path, RunInfo("rescore")):
        pass
    for _ in range(2):
        with pytest.raises(UsageError, match="holds a run of kind rescore") as refused:
            KeptRun(tmp_path, RunInfo("eval"), resume=True)
        assert refused.value.hint == "name another folder, or add --overwrite"


_SPEC = """
rlenv: 1
name: {name}
tasks: {{test: {{rows: [{{q: a, answer: {answer}}}, {{q: b, answer: y}}]}}}}
prompt: {{user: "{{{{ task.q }}}}"}}
oracle: [{{say: "<answer>{{{{ task.answer }}}}</answer>"}}]
rewards:
  correct: {{kind: rule, rule: exact_match}}
  rel: {{kind: group, of: correct, by: rank, weight: {weight}}}
"""


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"name": "b"}, "episodes of rlenv/a-v0, not of rlenv/b-v0"),
        ({"answer": "z"}, "other rows (data.test.sha256"),
        ({"weight": 0.5}, "other rewards (rewards.rel"),
    ],
)
def test_a_run_goes_on_with_its_own_rows_and_rewards_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, object], said: str
) -> None:
    held = {"name": "a", "answer": "x", "weight": 0.1}
    spec, changed, run = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "run"
    spec.write_text(_SPEC.format(**held))
    changed.write_text(_SPEC.format(**{**held, **other}))
    assert main(["eval", str(spec), "-o", str(run), "-n", "1", "--json"]) == 0
    before = json.dumps(list(open_run(run).rows()))
    capsys.readouterr()
    assert main(["eval", str(changed), "-o", str(run), "--resume", "--json"]) == 2
    assert said in capsys.readouterr().err
    assert json.dumps(list(open_run(run).rows())) == before
    assert main(["eval", str(spec), "-o", str(run), "--resume", "--json", "--set", "limits.turns=7"]) == 0
    assert "rlenv runs lock diff" in capsys.readouterr().err
