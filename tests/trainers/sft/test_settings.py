"""The presets of `rlenv sft`, and what follows from data and arguments; nothing is started."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlenv.collect import read_data
from rlenv.errors import UsageError
from rlenv.runs.folder import read_info
from rlenv_train.launch import Ending
from rlenv_verl.settings import sft_preset_names
from rlenv_verl.settings.presets import load_sft_preset
from rlenv_verl.sft import HELD_OUT, RowsDataset, SftRun, compose_sft, read_steps
from rlenv_verl.sft.command import finish_run, main
from tests.support.kept import everything, keep


@pytest.fixture(scope="module")
def data(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rlenv.cli.main import main as rlenv

    out = tmp_path_factory.mktemp("data") / "rows"
    assert rlenv(["collect", "arithmetic", "--model", str(tiny_folder), "-n", "20", "-o", str(out)]) == 0
    return out


def planned(data: Path, model: Path, out: Path, *more: str) -> SftRun:
    assert main([str(data), "--model", str(model), "-o", str(out), "--dry-run", *more]) == 0
    path = out / "config.yaml"
    assert path.is_file()
    return SftRun.load(out)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sft_preset_names())
def test_every_preset_is_a_configuration_that_verl_accepts(verl: Any, tiny_folder: Path, name: str) -> None:
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    config = compose_sft([*load_sft_preset(name).overrides(), f"model.path={tiny_folder}"])
    for section in ("engine", "optim", "checkpoint"):
        assert omega_conf_to_dataclass(OmegaConf.create(config[section]))
    assert config["data"]["train_batch_size"] % config["trainer"]["n_gpus_per_node"] == 0


@pytest.mark.slow
def test_a_dry_run_says_the_command_and_starts_nothing(
    data: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = planned(data, tiny_folder, tmp_path / "out", "--epochs", "2", "optim.weight_decay=0.5", "run.threads=3")
    told = capsys.readouterr().out
    assert "20 rows, 4 steps of 8: 2 passes" in told
    assert "-m verl.trainer.sft_trainer" in told
    assert "torch.distributed.run" not in told
    assert (run.steps, run.steps_an_epoch, run.environment["OMP_NUM_THREADS"]) == (4, 2, "3")
    assert run.overrides[-1] == "optim.weight_decay=0.5"
    assert not (tmp_path / "out" / "verl.log").exists()


@pytest.mark.slow
def test_run_json_says_what_any_runs_does_and_gives_the_run_back(
    data: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = planned(data, tiny_folder, tmp_path / "out").begin_attempt(0)
    assert SftRun.load(run.folder) == run
    info = read_info(run.folder)
    assert info is not None
    assert (info.kind, info.state, info.policy) == ("sft", "running", str(tiny_folder))
    assert (info.environment, info.command[:2]) == (read_data(data).manifest.environment, ("rlenv", "sft"))
    assert (info.attempts[0].number, info.facts["rows"]) == (1, 20)
    finish_run(run, Ending("interrupted", 130, 1.0))
    info = read_info(run.folder)
    assert info is not None
    assert info.state == "stopped"
    assert info.ended > 0


@pytest.mark.slow
def test_a_supervised_run_is_not_listed_and_said_to_be_one(
    data: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlenv.cli.main import main as rlenv

    planned(data, tiny_folder, tmp_path / "out")
    assert rlenv(["runs", "list", str(tmp_path)]) == 1
    assert rlenv(["runs", "show", str(tmp_path / "out")]) == 2
    assert "is a supervised run (stopped), which keeps no episodes" in capsys.readouterr().err


@pytest.mark.slow
def test_several_gpus_are_started_by_torchrun(
    data: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = planned(data, tiny_folder, tmp_path / "out", "--preset", "node", "--batch", "16", "--lora", "32")
    assert "torch.distributed.run --standalone --nnodes 1 --nproc-per-node 8" in capsys.readouterr().out
    assert {"model.lora_rank=32", "model.lora_alpha=64", "checkpoint.save_contents=[model]"} <= set(run.overrides)
    with pytest.raises(SystemExit):
        main(["--resume", str(tmp_path), "--lora", "x"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--batch", "64"], "20 rows give no batch of 64; collect more, or give --batch 20"),
        (["--preset", "node", "--batch", "12"], "cannot be shared among 8 processes"),
        (["--max-length", "40"], "rows are never cut"),
        (["run.thread=2"], "did you mean 'run.threads'?"),
        (["optim.learning_rate=1"], "veRL's configuration does not take these settings"),
        (["--lora", "0"], "a rank is at least 1"),
        (["trainer.logger=[console]"], "has to keep 'file'"),
        (["nowhere"], "holds no supervised data"),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_starts(
    data: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], told: str
) -> None:
    assert main([str(data), "--model", str(tiny_folder), "-o", str(tmp_path / "out"), *more]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out" / "verl.log").exists()


@pytest.mark.slow
def test_longer_rows_are_left_out_where_that_is_asked_for(data: Path, tiny_folder: Path, tmp_path: Path) -> None:
    lengths = [len(json.loads(line)["input_ids"]) for line in (data / "rows.jsonl").read_text().splitlines()]
    most = max(lengths) - 1
    left = [length for length in lengths if length <= most]
    run = planned(data, tiny_folder, tmp_path, "--max-length", str(most), "--skip-long", "--batch", "2")
    assert (run.rows, run.skipped) == (len(left), len(lengths) - len(left))
    config = SimpleNamespace(max_length=most, rlenv_skip_long=True, rlenv_seed=0, train_batch_size=2)
    rows = RowsDataset(str(data / "rows.jsonl"), None, config)
    assert sorted(len(rows[index]["input_ids"]) for index in range(len(rows))) == sorted(left)
    config.rlenv_skip_long = False
    with pytest.raises(UsageError, match="a row has"):
        RowsDataset(str(data / "rows.jsonl"), None, config)


@pytest.mark.slow
def test_rows_come_as_they_were_written_in_an_order_of_the_seed(data: Path) -> None:
    path = str(data / "rows.jsonl")
    written = [json.loads(line) for line in Path(path).read_text().splitlines()]

    def read(seed: int, name: str = path) -> list[tuple[list[int], list[int], list[int]]]:
        config = SimpleNamespace(max_length=4096, rlenv_skip_long=False, rlenv_seed=seed, train_batch_size=8)
        rows = RowsDataset([name], None, config)
        return [
            tuple(rows[index][key].tolist() for key in ("input_ids", "loss_mask", "position_ids"))  # type: ignore[misc]
            for index in range(len(rows))
        ]

    expected = [(row["input_ids"], row["loss_mask"], list(range(len(row["input_ids"])))) for row in written]
    assert sorted(read(0)) == sorted(expected)
    assert read(0) == read(0) != read(1)
    held_out = read(0, f"{HELD_OUT}{path}")
    assert held_out[:20] == expected
    assert [sum(mask) for _, mask, _ in held_out[20:]] == [0] * 4


@pytest.mark.slow
def test_another_models_rows_and_another_templates_are_refused(
    data: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlenv.tokens.bound import load_tokenizer

    template = tmp_path / "template.jinja"
    template.write_text(str(load_tokenizer(str(tiny_folder)).chat_template) + " ")
    out = tmp_path / "out"
    assert main([str(data), "--model", str(tiny_folder), "--chat-template", str(template), "-o", str(out)]) == 2
    assert "another chat template" in capsys.readouterr().err
    rows = data / "rows.jsonl"
    kept = rows.read_bytes()
    try:
        rows.write_bytes(kept[:-10])
        with pytest.raises(UsageError, match="is not what its manifest speaks of"):
            read_data(data)
    finally:
        rows.write_bytes(kept)


def test_figures_are_read_while_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_steps(path) == []
    one = {"step": 1, "data": {"train/loss": 2.0, "train/grad_norm": 1.0, "train/lr": 0.1, "train/global_tokens": 7}}
    path.write_text(json.dumps(one) + "\n" + json.dumps({"step": 1, "data": {"val/loss": 3.0}}) + '\n{"step": 2')
    (step,) = read_steps(path)
    assert (step.number, step.loss, step.tokens, step.val) == (1, 2.0, 7, 3.0)


@pytest.mark.slow
def test_a_run_goes_on_from_its_last_whole_checkpoint(
    data: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    planned(data, tiny_folder, out, "--save-every", "2", "--steps", "4")
    resume = ["--resume", str(out), "--dry-run"]
    assert main(resume) == 2
    assert "has no whole checkpoint to go on from; start it again" in " ".join(capsys.readouterr().err.split())
    for step in (2, 4):  # the later one was cut while it was written
        folder = out / "checkpoints" / f"global_step_{step}"
        folder.mkdir(parents=True)
        (folder / "fsdp_config.json").write_text('{"world_size": 1}')
        (folder / "model_world_size_1_rank_0.pt").touch()
    (out / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("2")
    assert main([*resume, "--steps", "2"]) == 2
    assert "has taken 2 steps already" in capsys.readouterr().err
    assert main([*resume, "--lr", "0.1", str(data)]) == 2
    assert "leave out --lr" in capsys.readouterr().err
    before = everything(out)
    assert main([*resume, "--steps", "6"]) == 0
    assert everything(out) == before  # of a run that is there a dry run changes nothing
    told = capsys.readouterr().out
    assert f"trainer.resume_from_path={out / 'checkpoints' / 'global_step_2'}" in told
    assert "trainer.total_training_steps=6" in told
    assert "trainer.total_epochs=3" in told


@pytest.mark.slow
def test_a_run_that_is_refused_says_that_it_has_failed(data: Path, tiny_folder: Path, tmp_path: Path) -> None:
    """The last thing that is looked at: whether one machine can start it."""
    argv = [str(data), "--model", str(tiny_folder), "-o", str(tmp_path / "out"), "trainer.nnodes=2"]
    assert main(argv) == 2
    info = read_info(tmp_path / "out")
    assert info is not None
    assert (info.kind, info.state, len(info.attempts)) == ("sft", "failed", 1)


def test_no_run_is_begun_among_anothers_own_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path, 1)
    assert main(["DATA", "--model", "MODEL", "-o", str(tmp_path / "bodies" / "new")]) == 2
    assert "is among the run's own files" in capsys.readouterr().err
    assert not (tmp_path / "bodies" / "new").exists()
