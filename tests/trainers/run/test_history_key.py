"""`run.history` on the command line: what is written of it, and what is refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rlenv.errors import UsageError
from rlenv_verl.run import Run
from rlenv_verl.run.prepare import history_of
from rlenv_verl.run.train import main
from rlenv_verl.settings import preset_names
from rlenv_verl.settings.presets import load_preset, with_run_keys
from tests.trainers.settings.test_specs import write


def dry(tmp_path: Path, *given: str) -> int:
    return main([write(tmp_path, "toy", 4), "--dry-run", "-o", str(tmp_path / "run"), *given])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_keeps_its_history_in_its_file_and_its_loops(tmp_path: Path) -> None:
    assert dry(tmp_path, "run.history=rows") == 0
    (loop,) = yaml.safe_load((tmp_path / "run/agent_loop.yaml").read_text())
    assert loop["history"] == "rows"
    run = Run.load(tmp_path / "run")
    assert run.history == "rows"
    assert run.validation_tasks == 4, "the preset asks for more, and the split has no more"
    # A run that an earlier version began has none in its file.
    path = tmp_path / "run/run.json"
    fields = json.loads(path.read_text())
    assert fields.pop("history") == "rows"
    path.write_text(json.dumps(fields))
    assert Run.load(tmp_path / "run").history == "grow"


@pytest.mark.filterwarnings("ignore")
def test_rows_are_refused_with_what_counts_them_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry(tmp_path, "run.history=rows", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean") == 2
    assert "use token-mean or token-sum" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run/run.json").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rosw", "run.history: no history 'rosw'; did you mean 'rows'?"),
        ("refuse", "run.history: no history 'refuse'; there are grow, keep, rows"),
        (3, "run.history: no history '3'; there are grow, keep, rows"),
    ],
)
def test_a_typo_is_told_with_the_nearest_choice(given: object, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        history_of(given)
    assert str(raised.value) == message


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_refuses_a_rewritten_history_unless_told(name: str) -> None:
    preset = load_preset(name)
    assert history_of(preset.run.get("history")) == "grow"
    told, others = with_run_keys(preset, ["run.history=keep"])
    assert (history_of(told.run["history"]), others) == ("keep", [])
