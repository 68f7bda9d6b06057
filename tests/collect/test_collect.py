"""`rlenv collect`: what is kept, what is said of the rest, and that nothing half is left."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.collect import read_data
from rlenv.collect.data import Candidate, Identity, Keep, Manifest, choose, files_of, rows_of
from rlenv.errors import UsageError
from rlenv.messages import Message, Sampled, ToolCall, ToolResult
from rlenv.runs import files as record
from rlenv.testing.endpoint import FakeEndpoint, Reply
from rlenv.testing.rewards import turn
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens.bound import load_tokenizer
from rlenv.trajectory import RewardBreakdown, Trajectory

SPEC = """
rlenv: 1
name: toy
tasks:
  train:
    rows:
      - {question: "What is 2 + 3?", expr: "2 + 3", says: "<answer>5</answer>", kind: small}
      - {question: "What is 4 + 4?", expr: "4 + 4", says: "<answer>9</answer>", kind: small}
      - {question: "What is 9 * 9?", expr: "9 * 9", says: "<answer>81</answer>", kind: large}
      - {question: "What is 7 * 9?", expr: "7 * 9", says: "<answer>63</answer>", kind: small}
  test:
    rows: [{question: "What is 1 + 1?", expr: "1 + 1", says: "<answer>2</answer>", kind: small}]
prompt: {user: "{{ task.question }}"}
tools:
  calculate: {kind: calculator}
limits: {turns: 4}
rewards:
  correct: {kind: rule, rule: numeric_match, expect: "{{ vars.right[task.expr] }}"}
  short: {kind: rule, rule: answered, weight: 0.1}
vars:
  right: {"2 + 3": 5, "4 + 4": 8, "9 * 9": 81, "7 * 9": 63, "1 + 1": 2}
oracle:
  - call: {calculate: {expression: "{{ task.expr }}"}}
  - say: "{{ task.says }}"
success: correct >= 1
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(textwrap.dedent(SPEC))
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer, which is all that collecting reads of a model."""
    return model_at(tmp_path_factory.mktemp("model"), CHAT_TEMPLATE)


def model_at(folder: Path, template: str) -> Path:
    small_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": template}))
    return folder


def collected(spec: Path, model: Path, out: Path, *more: str) -> dict[str, Any]:
    assert main(["collect", str(spec), "--model", str(model), "-o", str(out), *more]) == 0
    found: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    return found


def written(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def test_successes_become_rows_with_all_that_people_want_beside_them(spec: Path, model: Path, tmp_path: Path) -> None:
    manifest = collected(spec, model, tmp_path / "data")
    assert (manifest["episodes"], manifest["kept"], manifest["rejected"]) == (4, 3, {"keep: false": 1})
    rows = written(tmp_path / "data")
    assert [(row["task"], row["split"], row["success"], row["source"]) for row in rows] == [
        (task, "train", True, "oracle") for task in (0, 2, 3)
    ]
    assert rows[0]["messages"][0] == {"role": "user", "content": "What is 2 + 3?"}
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant", "tool", "assistant"]
    data = read_data(tmp_path / "data")
    assert [list(row.input_ids) for row in rows_of([data.file])] == [row["input_ids"] for row in rows]
    assert manifest["tokens"] == sum(len(row["input_ids"]) for row in rows)
    assert manifest["tokens_trained"] == sum(sum(row["loss_mask"]) for row in rows)
    assert manifest["turns_anew"] == 6
    assert len(list(record.read(tmp_path / "data" / "trajectories.jsonl"))) == 4


@pytest.mark.slow
def test_what_is_kept_is_compared_and_what_is_rejected_is_said(
    spec: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = collected(spec, model, tmp_path / "a", "--keep", "not success and turns == 2 and short >= 1")
    assert (manifest["kept"], manifest["rejected"]) == (1, {"keep: false": 3})
    assert "rejected       3  keep: false" in capsys.readouterr().out
    manifest = collected(spec, model, tmp_path / "b", "--balance", "kind")
    assert manifest["kinds"] == {"large": 1, "small": 1}
    assert manifest["rejected"] == {"balance": 1, "keep: false": 1}
    manifest = collected(spec, model, tmp_path / "c", "-k", "3", "--keep", "reward >= 0", "--per-task", "2")
    assert (manifest["kept"], manifest["rejected"]) == (4, {"duplicate": 8})
    assert "split 'test'" not in capsys.readouterr().out
    collected(spec, model, tmp_path / "d", "--split", "test")
    assert "the split 'test', on which `rlenv train` validates" in capsys.readouterr().out


@pytest.mark.slow(but=4)
@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--keep", "sucess"], "did you mean 'success'?"),
        (["--keep", "corect >= 1"], "did you mean 'correct'?"),
        (["--keep", "reward"], "expected a comparison"),
        (["--keep", "reward > 99"], "no episode was kept of 4: keep: false 4"),
        (["--balance", "kinds"], "no column 'kinds'; did you mean 'kind'?"),
        (["--from", "nowhere.jsonl"], "there are no recorded episodes"),
        (["--per-task", "0"], "at least 1"),
        (["--from", "x.jsonl", "-k", "2", "--policy", "oracle"], "leave out --policy, -k"),
        (["--from", "x.jsonl", "--policy-chat-template", "chatml"], "leave out --policy-chat-template"),
        (["--from", "x.jsonl", "--extra", "top_k=1"], "leave out --extra"),
        (["--policy", "openai", "--base-url", "http://127.0.0.1:9/v1"], "needs --base-url and --policy-model"),
        (["--split", "trian"], "no split 'trian'"),
    ],
)
def test_mistakes_are_told_with_the_nearest_fix(
    spec: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], told: str
) -> None:
    out = tmp_path / "data"
    assert main(["collect", str(spec), "--model", str(model), "-o", str(out), *more]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (out / "rows.jsonl").exists()
    assert not (out / "manifest.json").exists()


@pytest.mark.slow
def test_data_is_not_overwritten_and_what_is_not_whole_is_not_read(
    spec: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data"
    collected(spec, model, out)
    assert main(["collect", str(spec), "--model", str(model), "-o", str(out)]) == 2
    assert "holds data already" in capsys.readouterr().err
    (out / "manifest.json").unlink()
    with pytest.raises(UsageError, match="is not whole"):
        read_data(out)
    # What a killed run has played is kept, but for a line that was cut.
    lines = (out / "trajectories.jsonl").read_bytes().splitlines(keepends=True)
    (out / "trajectories.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:200])
    manifest = collected(spec, model, tmp_path / "again", "--from", str(out))
    assert manifest["episodes"] == 3
    assert {row["source"] for row in written(tmp_path / "again")} == {"record:trajectories.jsonl"}


@pytest.mark.slow
def test_equal_seeds_give_equal_rows_however_many_are_played_at_once(spec: Path, model: Path, tmp_path: Path) -> None:
    more = ("-k", "2", "--keep", "reward >= 0", "--balance", "kind", "--seed", "7")
    found = [
        collected(spec, model, tmp_path / str(count), "--concurrency", str(count), *more)["rows_sha256"]
        for count in (1, 8)
    ]
    assert found[0] == found[1]
    played = collected(spec, model, tmp_path / "from", "--from", str(tmp_path / "8"), *more[2:])
    assert [row["input_ids"] for row in written(tmp_path / "from")] == [
        row["input_ids"] for row in written(tmp_path / "8")
    ]
    assert played["source"] == "record"


@pytest.mark.slow
def test_invalid_rewards_and_cut_turns_are_kept_only_where_that_is_asked_for(
    spec: Path, model: Path, tmp_path: Path
) -> None:
    collected(spec, model, tmp_path / "whole", "--keep", "reward >= 0")
    (first, second, *_) = [
        json.loads(line) for line in (tmp_path / "whole" / "trajectories.jsonl").read_text().splitlines()
    ]
    first["turns"][1]["finish_reason"] = "length"
    second["reward"]["total"], second["success"] = None, None
    path = tmp_path / "edited.jsonl"
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    base = ("--from", str(path), "--keep", "turns >= 1")
    assert main(["collect", str(spec), "--model", str(model), "-o", str(tmp_path / "none"), *base]) == 2
    cut = collected(spec, model, tmp_path / "cut", *base, "--keep-cut")
    assert cut["rejected"] == {"invalid reward": 1}
    both = collected(spec, model, tmp_path / "both", *base, "--keep-cut", "--keep-invalid")
    assert both["kept"] == 2
    # A turn that a limit cut has no end that the policy chose.
    ended = [row["input_ids"][-1] for row in written(tmp_path / "both")]
    stop = load_tokenizer(str(model)).backend_tokenizer.token_to_id("<|im_end|>")
    assert [number == stop for number in ended] == [False, True]


def test_a_template_that_cannot_hold_the_episodes_is_refused_with_its_verdict(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model_at(folder, CHAT_TEMPLATE.replace("message.role == 'tool'", "message.role == 'never'"))
    assert main(["collect", str(spec), "--model", str(folder), "-o", str(tmp_path / "data")]) == 2
    assert "one result after a turn without thinking" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_records_of_another_environment_are_refused(
    spec: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collected(spec, model, tmp_path / "data")
    other = tmp_path / "other.yaml"
    other.write_text(spec.read_text().replace("name: toy", "name: other"))
    out = str(tmp_path / "again")
    assert main(["collect", str(other), "--model", str(model), "--from", str(tmp_path / "data"), "-o", out]) == 2
    assert "holds episodes of toy-v0, and the spec is rlenv/other-v0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"input_ids": [1, 2], "loss_mask": [0]}, "lists of one length"),
        ({"input_ids": [1, 2], "loss_mask": [1, 1]}, "not the first"),
        ({"input_ids": [1, 2], "loss_mask": [0, 0]}, "some id has to be trained"),
        ({"input_ids": [1, -2], "loss_mask": [0, 1]}, "input_ids are ids"),
        ({"input_ids": [1, 2], "loss_mask": [0, 0.5]}, "loss_mask is 0 or 1"),
        ({"loss_mask": [0, 1]}, "input_ids"),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, row: dict[str, Any], told: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"input_ids": [1, 2], "loss_mask": [0, 1]}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(UsageError, match=told) as raised:
        list(rows_of([path]))
    assert f"{path}:2" in str(raised.value)


def test_what_is_drawn_does_not_depend_on_the_order_in_which_episodes_ended() -> None:
    many = [
        Candidate("train", task, sample, str(task % 2), bytes([task, sample]), 0, 100 * task + sample)
        for task in range(6)
        for sample in range(4 if task % 2 else 2)
    ]
    found = choose(many, per_task=3, balances=True, seed=1)
    assert choose(many[::-1], per_task=3, balances=True, seed=1) == found
    assert found.kinds == {"0": 6, "1": 6}
    assert dict(found.left_out) == {"per task": 3, "balance": 3}
    assert choose(many, per_task=1, balances=False, seed=1) != choose(many, per_task=1, balances=False, seed=2)


@pytest.mark.slow
def test_samples_that_a_term_compares_are_scored_together(spec: Path, model: Path, tmp_path: Path) -> None:
    spec.write_text(
        spec.read_text().replace(
            "  short: {kind: rule, rule: answered, weight: 0.1}",
            "  short: {kind: rule, rule: answered, weight: 0.1}\n  best: {kind: group, of: correct, by: centred}",
        )
    )
    manifest = collected(spec, model, tmp_path / "data", "-k", "2", "--keep", "best == 0 and success")
    assert manifest["kept"] == 3
    alone = ("-k", "1", "--keep", "best == 0")
    assert main(["collect", str(spec), "--model", str(model), "-o", str(tmp_path / "alone"), *alone]) == 2
    assert len(list(record.read(tmp_path / "data" / "trajectories.jsonl"))) == 8


@contextmanager
def served(answers: Callable[[Mapping[str, Any]], Any]) -> Iterator[FakeEndpoint]:
    """An endpoint in a thread of its own: the command runs an event loop of its own."""
    server = FakeEndpoint(answers)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@pytest.mark.slow
def test_an_endpoints_successes_are_kept_and_its_cut_and_failed_episodes_are_not(
    spec: Path, model: Path, tmp_path: Path
) -> None:
    def answer(request: Mapping[str, Any]) -> Any:
        question = next(one["content"] for one in request["messages"] if one["role"] == "user")
        if "9 * 9" in question:
            return Reply(status=404)
        if "4 + 4" in question:
            return Sampled("It is <answer>8</ans", "length")
        if request["messages"][-1]["role"] == "tool":
            return f"So it is <answer>{request['messages'][-1]['content']}</answer>"
        expression = question.removeprefix("What is ").removesuffix("?")
        return Message("assistant", "", (ToolCall("calculate", {"expression": expression}, "call_1"),))

    with served(answer) as server:
        more = ("--policy", "openai", "--base-url", server.base_url, "--policy-model", "strong")
        manifest = collected(spec, model, tmp_path / "data", *more)
    assert {request["model"] for request in server.requests} == {"strong"}
    assert (manifest["kept"], manifest["rejected"]) == (2, {"cut turn": 1, "invalid reward": 1})
    assert manifest["model"] == str(model)
    decode = load_tokenizer(str(model)).backend_tokenizer.decode
    row = written(tmp_path / "data")[0]
    said = [number for number, flag in zip(row["input_ids"], row["loss_mask"], strict=True) if flag]
    assert decode(said, skip_special_tokens=False) == (
        '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2 + 3"}}\n</tool_call><|im_end|>'
        "So it is <answer>5</answer><|im_end|>"
    )


def manifest(**changes: Any) -> Manifest:
    given: dict[str, Any] = {
        "environment": "toy", "spec": "spec.yaml", "digest": "d", "set": {}, "source": "s", "splits": ("train",),
        "keep": "success", "per_task": None, "balance": None, "seed": 0, "model": "m",
        "identity": Identity("t", "c"), "history": "append", "template_kwargs": {}, "episodes": 1, "kept": 1,
        "rejected": {}, "kinds": {}, "tasks": 1, "rows": 1, "tokens": 2, "tokens_trained": 1, "longest": 2,
        "turns_recorded": 0, "turns_anew": 1, "differences": 0, "rows_sha256": "", "versions": {"rlenv": "1"},
    }  # fmt: skip
    return Manifest(**{**given, **changes})


def data_at(folder: Path, **changes: Any) -> None:
    (folder / "rows.jsonl").write_text("{}\n")
    sha256 = hashlib.sha256(b"{}\n").hexdigest()
    manifest(**{"rows_sha256": sha256, **changes}).write(folder)


def test_a_manifest_reads_back_as_it_was_and_leaves_no_draft(tmp_path: Path) -> None:
    manifest(splits=("a", "b")).write(tmp_path)
    assert Manifest.load(tmp_path) == manifest(splits=("a", "b"))
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda held: held.pop("format"), "written by another version"),
        (lambda held: held.update(format=2), "written by another version"),
        (lambda held: held.pop("kept"), "is no manifest"),
        (lambda held: held.update(identity=None), "is no manifest"),
        (lambda held: held.update(identity={"tokenizer": "t"}), "is no manifest"),
        (lambda held: held.update(splits=3), "is no manifest"),
        (lambda held: held.update(more=1), "is no manifest"),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], Any], says: str) -> None:
    data_at(tmp_path)
    held = json.loads((tmp_path / "manifest.json").read_text())
    change(held)
    (tmp_path / "manifest.json").write_text(json.dumps(held))
    with pytest.raises(UsageError, match=says):
        read_data(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(UsageError, match="is no manifest"):
        read_data(tmp_path)


def test_data_is_read_where_it_is_whole_and_of_the_model(tmp_path: Path) -> None:
    data_at(tmp_path)
    assert read_data(tmp_path).file == tmp_path / "rows.jsonl"
    assert read_data(tmp_path, identity=Identity("t", "c")).manifest.kept == 1
    with pytest.raises(UsageError, match="another tokenizer"):
        read_data(tmp_path, identity=Identity("other", "c"))
    with pytest.raises(UsageError, match="another chat template"):
        read_data(tmp_path, identity=Identity("t", "other"))
    (tmp_path / "rows.jsonl").write_text("{}\n{}\n")
    with pytest.raises(UsageError, match="is not what its manifest speaks of"):
        read_data(tmp_path)
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(UsageError, match="is not what its manifest speaks of"):
        read_data(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(UsageError, match="holds no supervised data"):
        read_data(tmp_path)
    (tmp_path / "trajectories.jsonl").touch()
    with pytest.raises(UsageError, match="is not whole"):
        read_data(tmp_path)


def candidates(*rows: tuple[str, int, int, str, str]) -> list[Candidate]:
    return [
        Candidate(split, task, seed, kind, content.encode(), 0, at)
        for at, (split, task, seed, kind, content) in enumerate(rows)
    ]


def test_of_equal_episodes_of_a_task_the_first_is_taken() -> None:
    many = candidates(
        ("b", 0, 0, "", "same"), ("a", 1, 5, "", "same"), ("a", 1, 3, "", "same"), ("a", 1, 4, "", "other"),
        ("a", 0, 9, "", "same"), ("a", 1, 3, "", "same"),
    )  # fmt: skip
    found = choose(many, per_task=None, balances=False, seed=0)
    assert [(one.split, one.task, one.seed, one.at) for one in found.taken] == [
        ("a", 0, 9, 4), ("a", 1, 3, 2), ("a", 1, 4, 3), ("b", 0, 0, 0)
    ]  # fmt: skip
    assert dict(found.left_out) == {"duplicate": 2}


@pytest.mark.parametrize(
    ("per_task", "balances", "taken", "left_out"),
    [
        (None, False, {"x": 5, "y": 2}, {}),
        (3, False, {"x": 5, "y": 2}, {}),
        (2, False, {"x": 4, "y": 2}, {"per task": 1}),
        (1, False, {"x": 2, "y": 1}, {"per task": 4}),
        (None, True, {"x": 2, "y": 2}, {"balance": 3}),
        (1, True, {"x": 1, "y": 1}, {"per task": 4, "balance": 1}),
    ],
)
def test_no_task_and_no_kind_has_more_than_is_asked_for(
    per_task: int | None, balances: bool, taken: dict[str, int], left_out: dict[str, int]
) -> None:
    rows = [("a", 0, seed, "x", f"{seed}") for seed in range(3)] + [("a", 1, seed, "x", f"{seed}") for seed in range(2)]
    found = choose(candidates(*rows, *(("a", 2, seed, "y", f"{seed}") for seed in range(2))),
                   per_task=per_task, balances=balances, seed=3)  # fmt: skip
    assert (dict(found.kinds), dict(found.left_out), len(found.taken)) == (taken, left_out, sum(taken.values()))
    assert list(found.taken) == sorted(found.taken, key=lambda one: (one.task, one.seed))
    assert choose([], per_task=per_task, balances=balances, seed=3).taken == ()


def test_records_are_named_by_their_file_or_by_the_folder_that_holds_them(tmp_path: Path) -> None:
    (tmp_path / "some" / "trajectories").mkdir(parents=True)
    for name in ("step-2.jsonl", "step-1.jsonl", "other.jsonl"):
        (tmp_path / "some" / "trajectories" / name).touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "trajectories.jsonl").touch()
    places = [tmp_path / "some", tmp_path / "data", tmp_path / "some" / "trajectories" / "other.jsonl"]
    assert [str(path.relative_to(tmp_path)) for path in files_of([str(path) for path in places])] == [
        "some/trajectories/step-1.jsonl",
        "some/trajectories/step-2.jsonl",
        "data/trajectories.jsonl",
        "some/trajectories/other.jsonl",
    ]
    with pytest.raises(UsageError, match=r"there are no recorded episodes at .*dota") as told:
        files_of([str(tmp_path / "dota")])
    assert told.value.hint == f"did you mean {tmp_path / 'data'}?"
    with pytest.raises(UsageError) as told:
        files_of([str(tmp_path / "nothing like it")])
    assert told.value.hint == ""


@pytest.mark.parametrize(
    ("expression", "changes", "keys", "reason"),
    [
        ("success", {}, {}, ""),
        ("turns <= 2 and turns >= 2", {}, {}, ""),
        ("turns < 2", {}, {}, "keep: false"),
        ("calls == 1 and calls_failed == 1 and calls_malformed == 0 and chars == 5", {}, {}, ""),
        ("answered and terminated and not truncated and not cut and not invalid", {}, {}, ""),
        ("reward >= 0.5", {}, {}, ""),
        ("success", {"success": None}, {}, "keep: unknown"),
        ("turns >= 1", {"reason": "turn_tokens"}, {}, "cut turn"),
        ("cut", {"reason": "turn_tokens"}, {"keeps_cut": True}, ""),
        ("turns >= 1", {"reward": RewardBreakdown.invalid({}, turns=2)}, {}, "invalid reward"),
        ("invalid", {"reward": RewardBreakdown.invalid({}, turns=2)}, {"keeps_invalid": True}, ""),
        ("reward >= 0", {"reward": RewardBreakdown.invalid({}, turns=2)}, {"keeps_invalid": True}, "keep: unknown"),
    ],
)
def test_an_episode_is_kept_or_there_is_one_reason_against_it(
    expression: str, changes: dict[str, Any], keys: dict[str, Any], reason: str
) -> None:
    call = ToolCall("t", {})
    failed = ToolResult("t", "no", "failed")
    made = Trajectory(
        environment="e", split="train", task_index=0, seed=0, task={}, messages=(), answer="a", terminated=True,
        turns=(turn("abc", calls=[call], results=[failed]), turn("de", index=1)), truncated=False, reason="answer",
        reward=RewardBreakdown(0.5, {}, (0.0, 0.5)), success=True,
    )  # fmt: skip
    keep = Keep.of(expression, terms=(), **keys)
    assert keep.reason_against(dataclasses.replace(made, **changes)) == reason


def test_a_term_that_is_called_as_a_figure_cannot_be_asked_for() -> None:
    assert Keep.of("turns >= 1", terms=["calls"]).expression is not None
    with pytest.raises(UsageError, match="'calls' is a figure of every episode and a reward term"):
        Keep.of("calls >= 1", terms=["calls"])
