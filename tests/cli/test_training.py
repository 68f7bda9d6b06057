"""`rlenv train --preflight`: what a run would meet, with the settings that `rlenv train` would have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from tests.support.lengths import FORGETS, model, spec

pytest.importorskip("psutil", reason="the verl extra is not installed")

__all__ = ["model", "spec"]
ROOT = Path(__file__).resolve().parents[2]
REPLIES = 'user: {kind: scripted, replies: ["fox fox"]}\n'


def report(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = main(["train", "--preflight", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_that_can_start_shows_its_figures(
    spec: Callable[..., Path], model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(spec()), "--model", str(model(has_weights=True)), "--preset", "gpu", "--device-gb", "80"]
    assert main(["train", "--preflight", *argv]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "the run can start, and training is exact"
    assert "lengths, train: 4 tasks measured" in said
    assert "limit   4,096: 0 of 4 over it" in said
    assert "a step: 1,024 episodes" in said
    assert "parameters (from " in said
    code, made = report(capsys, *argv)
    assert (code, made["is_ready"]) == (0, True)
    assert {split["split"] for split in made["splits"]} == {"train", "test"}
    assert made["exactness"]["lengths"]["will_run"] is True


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_folder_without_weights_is_no_run_that_can_start(
    spec: Callable[..., Path], model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--preflight", str(spec()), "--model", str(model()), "--preset", "gpu"]) == 1
    said = capsys.readouterr().out
    assert "error: the model's weights" in said
    assert said.splitlines()[-1] == "the run would not do"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_prompts_that_never_fit_stop_it_with_the_key_that_mends_it(
    spec: Callable[..., Path], model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(spec()), "--model", str(model(has_weights=True)), "--preset", "gpu"]
    code, made = report(capsys, *argv, "run.max_prompt_length=20")
    assert code == 1
    (finding,) = [one for one in made["findings"] if one["level"] == "error"]
    assert "all 4 of 4 prompts are longer than the 20 tokens of run.max_prompt_length" in finding["message"]
    setting = finding["message"].partition("set ")[2].partition(",")[0]
    assert report(capsys, *argv, setting)[0] == 0
    # An override of veRL's own key wins over the preset's, so that it is the one to change.
    code, made = report(capsys, *argv, "data.max_prompt_length=20")
    (finding,) = [one for one in made["findings"] if one["level"] == "error"]
    assert (code, "set data.max_prompt_length=" in finding["message"]) == (1, True)
    assert report(capsys, *argv, "run.max_prompt_length=20", "data.max_prompt_length=900")[0] == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_oracles_responses_are_held_against_the_budget_of_the_preset(
    spec: Callable[..., Path], model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(spec(train=(1, 90, 90, 1))), "--model", str(model(has_weights=True))]
    code, made = report(capsys, *argv, "run.turn_tokens=null")
    (found,) = [split for split in made["splits"] if split["split"] == "train"]
    assert found["responses"]["limit"] == 96  # the cpu preset's
    assert found["responses"]["over"] == 2
    assert found["falling_out"] == 2
    assert code == 0
    code, made = report(capsys, *argv, "run.turn_tokens=5")
    assert code == 1
    assert any("run.turn_tokens=" in one["message"] for one in made["findings"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_sample_is_said_to_be_one(
    spec: Callable[..., Path], model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(model(has_weights=True))
    assert main(["train", "--preflight", str(spec(train=(1,) * 30)), "--model", folder, "--sample", "7"]) == 0
    assert "lengths, train: 7 of 30 tasks measured" in capsys.readouterr().out
    assert main(["train", "--preflight", str(spec()), "--model", str(model(has_weights=True)), "--sample", "0"]) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_template_that_rewrites_dialogues_is_told_with_the_choice(
    spec: Callable[..., Path], model: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(spec(more=REPLIES)), "--model", str(model(template=FORGETS, has_weights=True)), "--preset", "gpu"]
    code, made = report(capsys, *argv)
    assert code == 1
    (finding,) = [one for one in made["findings"] if one["level"] == "error"]
    assert "choose run.history: rows" in finding["message"]
    assert made["exactness"]["lengths"]["will_run"] is False
    # Lengths are known all the same.
    assert all(split["responses"]["count"] for split in made["splits"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name the spec to look at"),
        (["{spec}", "--preset", "gpuu"], "no preset 'gpuu'; did you mean 'gpu'"),
        (["{spec}", "run.max_promt_length=3"], "did you mean 'run.max_prompt_length'"),
        (["{spec}", "data.max_promt_length=3"], "max_promt_length"),
        (["{spec}", "run.train_split=tran"], "no split 'tran' in lengths; it has train"),
        (["{spec}", "run.validation_split=tst"], "name one by run.validation_split=NAME, or add tasks.tst"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_wrong_use_is_told(
    spec: Callable[..., Path],
    model: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    message: str,
) -> None:
    given = [word.format(spec=spec()) for word in argv]
    assert main(["train", "--preflight", *given, "--model", str(model(has_weights=True))]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_is_needed_and_has_to_hold_a_tokenizer(
    spec: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--preflight", str(spec())])
    assert ended.value.code == 2
    capsys.readouterr()
    assert main(["train", "--preflight", str(spec()), "--model", str(tmp_path)]) == 2
    assert "holds no tokenizer" in capsys.readouterr().err


@pytest.mark.slow
def test_neither_verl_nor_torch_is_needed(spec: Callable[..., Path], model: Callable[..., Path]) -> None:
    folder = str(model(has_weights=True))
    argv = ["train", "--preflight", str(spec()), "--model", folder, "--preset", "gpu", "data.max_response_length=9"]
    code = f"""
import sys

for name in ("verl", "torch", "transformers", "ray", "hydra", "omegaconf", "pyarrow"):
    sys.modules[name] = None
from rlenv.cli.main import main
sys.exit(main({argv!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'trainers'}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "veRL is not installed here" in done.stdout
    assert "the 9 tokens of data.max_response_length" in done.stdout


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--preflight", "--help"])
    assert "--sample N" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_memory_of_a_known_model_needs_no_file_of_it(
    spec: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    argv = [str(spec()), "--model", "nobody/Qwen3-1.7B-Instruct", "--preset", "gpu"]
    code, made = report(capsys, *argv, "--card", "80")
    assert code == 0
    memory = made["memory"]
    assert made["model"]["parameters"] == 1_720_574_976
    assert memory["training"] == 16 * 1_720_574_976
    (unknown,) = made["findings"]
    assert unknown["level"] == "unknown"
    assert "lengths and exactness were not looked at" in unknown["message"]
    # On a smaller card the update does not fit, and the message says what of it is logits.
    code, made = report(capsys, *argv, "--card", "40")
    said = " ".join(one["message"] for one in made["findings"])
    assert (code, "10.0 GB of it for logits; a device has 40.0 GB" in said) == (0, True)
    code, made = report(capsys, *argv, "--card", "24")
    assert (code, made["is_ready"]) == (1, False)


@pytest.mark.filterwarnings("ignore")
def test_without_a_gpu_the_card_of_the_presets_is_assumed_and_said(
    spec: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setenv("PATH", "")  # nothing there that tells of a GPU
    assert main(["train", "--preflight", str(spec()), "--model", "nobody/Qwen2.5-7B", "--preset", "search-r1"]) == 0
    said = capsys.readouterr().out
    assert "at most of 80.0 GB (assumed: there is none here)" in said
    assert "in an update of 12,288 tokens (11.2 GB logits)" in said
