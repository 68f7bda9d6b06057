"""Tasks from datasets in the layout of the Hugging Face hub, and of reasoning-gym where it is not installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.cli.main import main
from rlenv.errors import Fault, MissingExtra, SpecError
from rlenv.language.loader import load_spec
from rlenv.tasks.hub import DatasetFault, dataset_files, dataset_folder
from rlenv.tasks.rows import Tasks, load_tasks

SPEC = """
rlenv: 1
name: small
tasks:
  train: {source}
prompt: {{user: "{{{{ task.question }}}}"}}
rewards:
  correct: {{kind: rule, rule: exact_match, expect: "{{{{ task.answer }}}}"}}
oracle: [{{say: "<answer>{{{{ task.answer }}}}</answer>"}}]
"""


def rows(file: Path, *answers: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"question": f"q{one}", "answer": one}) + "\n" for one in answers))


def tasks_of(folder: Path, source: str) -> Tasks:
    file = folder / "spec.yaml"
    file.write_text(SPEC.format(source=source), encoding="utf-8")
    return load_tasks(load_spec(file), "train")


def answers(tasks: Tasks) -> list[Any]:
    return [row["answer"] for row in tasks]


def fault_of(folder: Path, source: str) -> Fault:
    with pytest.raises(SpecError) as caught:
        tasks_of(folder, source)
    (fault,) = caught.value.faults
    return fault


def names(folder: Path, **options: Any) -> list[str]:
    found = dataset_files(folder, config=options.get("config"), split=options.get("split", "train"))
    return [path.relative_to(folder).as_posix() for path in found]


def test_files_called_like_their_split_are_found_and_joined_in_order(tmp_path: Path) -> None:
    rows(tmp_path / "sums" / "data" / "train-00000-of-00002.jsonl", "a", "b")
    rows(tmp_path / "sums" / "data" / "train-00001-of-00002.jsonl", "c")
    rows(tmp_path / "sums" / "data" / "test-00000-of-00001.jsonl", "z")
    tasks = tasks_of(tmp_path, "{hf: {path: sums}}")
    assert answers(tasks) == ["a", "b", "c"]
    assert tasks[-1]["answer"] == "c"
    assert answers(tasks_of(tmp_path, "{hf: {path: sums, split: test}}")) == ["z"]
    assert answers(tasks_of(tmp_path, "{hf: {path: sums}, shuffle: 1, limit: 2}")) == ["a", "b"]


@pytest.mark.parametrize(
    ("files", "split", "expected"),
    [
        (["rows.jsonl"], "train", ["rows.jsonl"]),
        (["train.csv", "dev.csv"], "validation", ["dev.csv"]),
        (["train/a.jsonl", "train/b.jsonl", "test/a.jsonl"], "train", ["train/a.jsonl", "train/b.jsonl"]),
        (["data/hard-00000-of-00001.parquet"], "hard", ["data/hard-00000-of-00001.parquet"]),
        (["my-train-file.jsonl", "eval.jsonl"], "test", ["eval.jsonl"]),
        ([".cache/train.jsonl", "train.jsonl"], "train", ["train.jsonl"]),
    ],
)
def test_splits_are_read_from_names_as_the_hub_does(
    tmp_path: Path, files: list[str], split: str, expected: list[str]
) -> None:
    for name in files:
        rows(tmp_path / name, "a")
    assert names(tmp_path, split=split) == expected


def test_configurations_are_those_that_the_readme_lists(tmp_path: Path) -> None:
    for name in ("main/train-0.jsonl", "main/test-0.jsonl", "socratic/train-0.jsonl", "extra/deep/x.jsonl"):
        rows(tmp_path / name, name)
    (tmp_path / "README.md").write_text(
        "---\nlicense: mit\nconfigs:\n"
        "- config_name: main\n  data_files:\n"
        "  - {split: train, path: main/train-*}\n  - {split: test, path: [main/test-*]}\n"
        "- config_name: socratic\n  data_dir: socratic\n  data_files: '*.jsonl'\n"
        "- config_name: deep\n  data_files: 'extra/**/*.jsonl'\n---\n# A dataset\n"
    )
    assert names(tmp_path, config="main", split="test") == ["main/test-0.jsonl"]
    assert names(tmp_path, config="socratic") == ["socratic/train-0.jsonl"]
    assert names(tmp_path, config="deep") == ["extra/deep/x.jsonl"]
    with pytest.raises(DatasetFault, match="several configurations: main, socratic, deep"):
        names(tmp_path)
    with pytest.raises(DatasetFault, match="no configuration 'man'") as caught:
        names(tmp_path, config="man")
    assert caught.value.hint == "did you mean 'main'?"


@pytest.mark.parametrize("files", ["[]", "[{split: train, path: []}]", "gone.jsonl"])
def test_a_configuration_may_have_no_files(tmp_path: Path, files: str) -> None:
    rows(tmp_path / "train.jsonl", "a")
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files: {files}\n---\n")
    assert names(tmp_path, config="main") == []


def test_without_a_readme_folders_are_configurations(tmp_path: Path) -> None:
    rows(tmp_path / "main" / "train.jsonl", "a")
    rows(tmp_path / "hard" / "train.jsonl", "b")
    assert names(tmp_path, config="hard") == ["hard/train.jsonl"]
    with pytest.raises(DatasetFault, match="several configurations: hard, main"):
        names(tmp_path)


def test_columns_are_renamed_and_the_rest_is_left_out(tmp_path: Path) -> None:
    rows(tmp_path / "sums" / "train.jsonl", "a")
    source = "{hf: {path: sums, columns: {problem: question, answer: answer}}}"
    assert list(tasks_of(tmp_path, source)) == [{"problem": "qa", "answer": "a"}]


@pytest.mark.parametrize(
    ("source", "path", "message", "hint"),
    [
        ("{hf: {path: sums, split: tset}}", "hf.split", "no split 'tset'; there are test, train", "mean 'test'"),
        ("{hf: {path: sums, name: main}}", "hf.name", "the dataset has none", "leave it out"),
        ("{hf: {path: ./sms}}", "hf.path", "there is no folder './sms'", "organisation/name"),
        (
            "{hf: {path: sums, columns: {question: qestion}}}",
            "hf.columns.question",
            "no column 'qestion'",
            "mean 'question'",
        ),
    ],
)
def test_what_a_dataset_lacks_is_told_at_its_key_with_the_nearest_fix(
    tmp_path: Path, source: str, path: str, message: str, hint: str
) -> None:
    rows(tmp_path / "sums" / "train.jsonl", "a")
    rows(tmp_path / "sums" / "test.jsonl", "b")
    fault = fault_of(tmp_path, source)
    assert fault.path == f"tasks.train.{path}"
    assert message in fault.message
    assert hint in fault.hint
    assert fault.line == 5


def test_a_split_that_is_named_by_the_spec_alone_is_told_at_the_dataset(tmp_path: Path) -> None:
    rows(tmp_path / "sums" / "test.jsonl", "b")
    fault = fault_of(tmp_path, "{hf: {path: sums}}")
    assert (fault.path, fault.hint) == ("tasks.train.hf.path", "write 'split: test'")


def test_a_dataset_that_is_a_script_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / "sums.py").write_text("raise SystemExit('run')")
    fault = fault_of(tmp_path, "{hf: {path: sums}}")
    assert "only a script (sums.py), which is not run" in fault.message
    assert "refs/convert/parquet" in fault.hint


@pytest.mark.parametrize("wrong", ["{hf: {path: sums}, path: rows.jsonl}", "{hf: {name: sums}}"])
def test_a_source_is_one_thing_with_known_keys(tmp_path: Path, wrong: str) -> None:
    rows(tmp_path / "sums" / "train.jsonl", "a")
    with pytest.raises(SpecError):
        tasks_of(tmp_path, wrong)


def test_a_whole_spec_over_a_dataset_validates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows(tmp_path / "sums" / "train.jsonl", "a")
    (tmp_path / "spec.yaml").write_text(SPEC.format(source='{hf: {path: "{{ vars.data }}"}}') + "vars: {data: sums}\n")
    assert main(["validate", str(tmp_path / "spec.yaml")]) == 0
    assert main(["validate", str(tmp_path / "spec.yaml"), "--set", f"vars.data={tmp_path / 'smus'}"]) == 1
    assert "there is no folder" in capsys.readouterr().out


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, without a network."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is missing (extra: hub)")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_dataset_in_the_hubs_cache_is_read_without_a_network(tmp_path: Path, offline: Path) -> None:
    stored = offline / "datasets--someone--sums"
    commit = "a" * 40
    rows(stored / "snapshots" / commit / "data" / "train-00000-of-00001.jsonl", "a", "b")
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(commit)
    assert answers(tasks_of(tmp_path, "{hf: {path: someone/sums}}")) == ["a", "b"]
    assert answers(tasks_of(tmp_path, f"{{hf: {{path: someone/sums, revision: {commit}}}}}")) == ["a", "b"]
    assert tasks_of(tmp_path, "{hf: {path: someone/sums}}").revision == commit
    rows(tmp_path / "own" / "train.jsonl", "a")
    assert tasks_of(tmp_path, "{hf: {path: own}}").revision == ""
    fault = fault_of(tmp_path, "{hf: {path: someone/sums, revision: v2}}")
    assert "'someone/sums' at revision 'v2' is not in the hub's cache, and HF_HUB_OFFLINE is set" in fault.message


def test_a_dataset_that_is_not_there_says_how_to_get_it(tmp_path: Path, offline: Path) -> None:
    fault = fault_of(tmp_path, "{hf: {path: someone/sums}}")
    assert "not in the hub's cache" in fault.message
    assert "hf download someone/sums --repo-type dataset" in fault.hint


def test_a_hub_that_cannot_be_reached_is_told_like_being_offline(
    tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hf_api.api, "endpoint", "http://127.0.0.1:9")  # where nothing listens
    fault = fault_of(tmp_path, "{hf: {path: someone/sums}}")
    assert "the hub cannot be reached (ConnectError: " in fault.message


def test_a_cache_that_is_there_and_cannot_be_read_says_why(tmp_path: Path, offline: Path) -> None:
    refs = offline / "datasets--someone--sums" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_bytes(b"\xff\xfe\xff")
    fault = fault_of(tmp_path, "{hf: {path: someone/sums}}")
    assert "cannot be read from the hub's cache (UnicodeDecodeError: " in fault.message


@pytest.mark.parametrize("is_offline", [True, False])
def test_a_bug_is_no_hub_that_cannot_be_reached(
    tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch, is_offline: bool
) -> None:
    import huggingface_hub

    def wrong(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword argument")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", is_offline)
    for name in ("list_repo_files", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, wrong)
    with pytest.raises(TypeError):
        dataset_folder("someone/sums", base=tmp_path, revision=None)


GENERATED = """
rlenv: 1
name: generated
tasks: {train: {reasoning_gym: {name: chain_sum, limit: 3}}}
prompt: {user: "{{ task.question }}"}
rewards: {right: {kind: rule, rule: exact_match}}
"""


@pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is not None, reason="reasoning-gym is installed")
@pytest.mark.parametrize("rule", ["exact_match", "reasoning_gym"])
def test_the_library_that_is_missing_is_named(rule: str, tmp_path: Path) -> None:
    path = tmp_path / "generated.yaml"
    path.write_text(GENERATED.replace("exact_match", rule), encoding="utf-8")
    with pytest.raises((MissingExtra, rlenv.SpecError), match="reasoning-gym"):
        rlenv.load(path).tasks("train")
