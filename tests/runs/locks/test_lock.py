"""The lock of a run: whatever makes an episode changes its hash, each in its own section, and nothing else does."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.episodes.environment import load
from rlenv.episodes.rollout import Job, rollout
from rlenv.errors import UsageError
from rlenv.policies.scripted import OraclePolicy
from rlenv.runs.folder import KeptRun, RunInfo, open_run
from rlenv.runs.locks.files import UNREADABLE
from rlenv.runs.locks.lock import SECTIONS, Lock, LockEntry, diff, lock_of, locks_of, read_lock
from rlenv.runs.schema import Facts
from rlenv.tokens.bound import LoadedTokenizer
from rlenv.tools._mcp.listing import ListedTool, Listing, write_pin

BASE = """
rlenv: 1
name: locked
tasks:
  train: {path: rows.jsonl}
  other: {rows: [{question: "3 + 4", answer: 1, db: one}]}
prompt:
  user: "{{ task.question }} {{ resources.db.schema }}"
resources:
  db: {kind: sqlite, path: "{{ task.db }}.sqlite"}
  made: {kind: python, function: "resources.py:make"}
tools:
  add: {kind: python, function: "tools.py:add"}
  ask: {kind: sql, resource: db}
endpoints:
  judge: {base_url: "http://me:secret@judge.example:8000/v1?key=abc", model: large}
  keyed: {base_url: "http://keyed.example/v1", model: small, api_key: "${env:LOCK_TEST_KEY}"}
user: {kind: python, function: "users.py:reply"}
rewards:
  correct: {kind: rule, rule: numeric_match}
  own: {kind: rule, rule: python, function: "rewards.py:own"}
  good: {kind: judge, endpoint: judge, prompt: Judge it}
"""
FILES = {
    "base.yaml": BASE,
    "spec.yaml": "extends: base.yaml\nlimits: {turns: 3}\n",
    "rows.jsonl": '{"question": "1 + 1", "answer": 2, "db": "one"}\n{"question": "2", "answer": 3, "db": "two"}\n',
    "tools.py": "from helpers import plus\n\ndef add(a: int, b: int) -> int:\n    'Adds.'\n    return plus(a, b)\n",
    "helpers.py": "import deeper\n\ndef plus(a, b):\n    return a + b\n",
    "deeper.py": "SIGN = 1\n",
    "unused.py": "",
    "resources.py": "def make():\n    return 1\n",
    "rewards.py": "def own(context):\n    return 1.0\n",
    "users.py": "def reply(message):\n    return None\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCK_TEST_KEY", "the-key-of-the-judge")
    return made(tmp_path / "spec")


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("one", "two"):
        connection = sqlite3.connect(folder / f"{name}.sqlite")
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
        connection.close()
    return folder


def locked(folder: Path, *, set: dict[str, Any] | None = None, **more: Any) -> Lock:
    more = {"splits": ["train"], "policy": {"kind": "oracle"}, "seed": 0, "k": 1, **more}
    return lock_of(load(folder / "spec.yaml", set=set), **more)


def with_section(lock: Lock, section: str, held: Any) -> Lock:
    fields: dict[str, Any] = {section: held}
    return dataclasses.replace(lock, **fields)


def differences(a: Lock, b: Lock) -> set[str]:
    assert (a.hash12 == b.hash12) is (diff(a, b) == ())
    return {f"{one.section}: {one.key}" for one in diff(a, b)}


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def fill(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        connection = sqlite3.connect(folder / f"{name}.sqlite")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        connection.close()

    return change


# What makes an episode


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (edit("rows.jsonl", '"answer": 3', '"answer": 4'), {"data: train.sha256"}),
        (edit("tools.py", "'Adds.'", "'Adds.'  # two"), {"tools: add.files.tools.py:add", "tools: add.digest"}),
        (edit("helpers.py", "a + b", "b + a"), {"tools: add.files.helpers.py (imported by tools.py)"}),
        (edit("deeper.py", "1", "2"), {"tools: add.files.deeper.py (imported by tools.py)"}),
        (edit("resources.py", "1", "2"), {"resources: made.files.resources.py:make"}),
        (fill("two"), {"resources: db.files.two.sqlite"}),
        (edit("users.py", "None", "'more'"), {"user: files.users.py:reply"}),
        (edit("rewards.py", "1.0", "0.5"), {"rewards: own.files.rewards.py:own"}),
    ],
)
def test_a_file_that_changes_is_named_and_nothing_beside_it(
    folder: Path, change: Callable[[Path], None], found: set[str]
) -> None:
    before = locked(folder)
    clone = shutil.copytree(folder, folder.parent / "changed")  # a process runs a function's file once
    change(clone)
    assert differences(before, locked(clone)) == found


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("{{ task.question }}", "{{  task.question }}", {"prompts: user"}),
        ("{{ task.question }}", "Say: {{ task.question }}", {"prompts: user", "prompts: rendered.train"}),
        ("ask: {kind: sql, ", "ask: {kind: sql, timeout_s: 3, ", {"tools: ask.entry"}),
        (
            "ask: {kind: sql, ",
            "ask: {kind: sql, description: Asks., ",
            {"tools: ask.entry", "tools: ask.schema", "prompts: tools"},
        ),
        ("model: large", "model: larger", {"endpoints: judge.model", "rewards: good.judges.0.model"}),
        ("judge.example", "judge.example.org", {"endpoints: judge.host"}),
        ("me:secret@", "you:other@", set()),
        ("Judge it", "Judge it well", {"rewards: good.digest", "rewards: good.judges.0.prompt"}),
        (
            "prompt: Judge it",
            "prompt: Judge it, sampling: {temperature: 0.5}",
            {"rewards: good.digest", "rewards: good.judges.0.sampling.temperature"},
        ),
        (
            "rule: numeric_match",
            "rule: numeric_match, weight: 2",
            {"rewards: correct.digest", "rewards: correct.weight"},
        ),
        ("name: locked", "name: locked\ncalls: {timeout_s: 3}", {"play: calls"}),
        ("name: locked", "name: locked\nsuccess: correct >= 1", {"play: success"}),
        (
            "{path: rows.jsonl}",
            "{path: rows.jsonl, shuffle: 3}",
            {"play: shuffle.train", "data: train.sha256", "prompts: rendered.train"},
        ),
        ("name: locked", "name: locked\ndialect: qwen3_coder", {"dialect: name", "dialect: digest"}),
        ("reply\"}", "reply\", stop: END}", {"user: digest"}),
    ],
)  # fmt: skip
def test_a_key_of_the_spec_is_named_in_its_own_section(folder: Path, old: str, new: str, found: set[str]) -> None:
    before = locked(folder)
    edit("base.yaml", old, new)(folder)
    assert differences(before, locked(folder)) == found | {"spec: digest", "spec: sources.base.yaml"}


def test_an_override_is_named_with_its_value(folder: Path) -> None:
    found = diff(locked(folder), locked(folder, set={"limits.turns": "4"}))
    assert [(one.section, one.key, one.a, one.b) for one in found if one.key != "digest"] == [
        ("spec", "set.limits.turns", None, 4),
        ("play", "limits.turns", 3, 4),
    ]


def test_what_a_run_adds_is_named(folder: Path) -> None:
    before = locked(folder)
    tokenizer = LoadedTokenizer(_Backend(), "{{ messages }}", {}, None, "nowhere")
    assert differences(before, locked(folder, seed=1)) == {"play: seed"}
    assert differences(before, locked(folder, k=2)) == {"play: k"}
    assert differences(before, locked(folder, policy={"kind": "oracle", "sampling": {"top_p": 1}})) == {
        "policy: sampling.top_p"
    }
    assert differences(before, locked(folder, trainer={"veRL": "0.9"})) == {"trainer: veRL"}
    bound = locked(folder, tokenizer=tokenizer)
    assert differences(before, bound) == {"tokenizer: tokenizer", "tokenizer: chat_template"}
    other = dataclasses.replace(tokenizer, chat_template="{{ tools }}")
    assert differences(bound, locked(folder, tokenizer=other)) == {"tokenizer: chat_template"}
    assert {one.split(".")[0] for one in differences(before, locked(folder, splits=["train", "other"]))} == {
        "data: other",
        "prompts: rendered",
    }


class _Backend:
    def to_str(self) -> str:
        return "{}"


def test_a_tokenizer_counts_by_its_file_wherever_that_lies(folder: Path) -> None:
    def bound(place: Path, text: str) -> Lock:
        place.mkdir()
        (place / "tokenizer.json").write_text(text)
        return locked(folder, tokenizer=LoadedTokenizer(_Backend(), None, {}, None, str(place)))

    first, same, other = (bound(folder / name, text) for name, text in (("a", "1"), ("b", "1"), ("c", "2")))
    assert differences(first, same) == set()
    assert differences(first, other) == {"tokenizer: tokenizer"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("section", SECTIONS)
@settings(max_examples=10)
@given(held=st.dictionaries(st.text(min_size=1), _JSON, max_size=4), key=st.text(min_size=1), value=_JSON)
def test_any_change_of_a_section_changes_the_hash_and_is_found_there_alone(
    section: str, held: dict[str, Any], key: str, value: Any
) -> None:
    lock = with_section(Lock(), section, held)
    other = with_section(lock, section, {**held, key: value})
    is_equal = json.dumps(held, sort_keys=True) == json.dumps({**held, key: value}, sort_keys=True)
    assert (lock.hash12 == other.hash12) is is_equal
    assert {one.section for one in diff(lock, other)} == (set() if is_equal else {section})
    backwards = dict(reversed(held.items()))
    assert with_section(lock, section, backwards).hash12 == lock.hash12


def test_a_pinned_server_is_named_with_its_tools(folder: Path) -> None:
    pytest.importorskip("mcp", reason="needs the extra mcp")
    text = BASE + "  more: {kind: rule, rule: answered}\n"
    entry = "tools:\n  far: {kind: mcp, url: 'http://far.example/mcp', pin: tools.lock.json}"
    (folder / "base.yaml").write_text(text.replace("tools:", entry), encoding="utf-8")

    def pinned(version: str, description: str) -> Lock:
        listed = ListedTool("look", description, {"type": "object", "properties": {}})
        write_pin(folder / "tools.lock.json", {"far": Listing("far server", version, (listed,))})
        return locked(folder)

    lock = pinned("1.0", "Looks.")
    assert lock.tools["look"]["server"] == "far server"
    file = "tools: look.files.tools.lock.json"
    assert differences(lock, pinned("1.1", "Looks.")) == {"tools: look.version", file}
    assert differences(lock, pinned("1.0", "Looks on.")) == {
        "tools: look.pin", "tools: look.schema", "prompts: tools", file,
    }  # fmt: skip


def test_a_script_of_a_server_counts_with_what_it_imports_and_a_cache_does_not(folder: Path) -> None:
    cache = "idempotent: true, cache: {scope: disk, path: cache.sqlite}"
    entry = f"tools:\n  run: {{kind: command, command: [python3, run.py], {cache}}}"
    edit("base.yaml", "tools:", entry)(folder)
    (folder / "run.py").write_text("import deeper\n")
    before = locked(folder)
    (folder / "cache.sqlite").write_text("results")
    assert differences(before, locked(folder)) == set()
    edit("deeper.py", "1", "2")(folder)
    assert "tools: run.files.deeper.py (imported by run.py)" in differences(before, locked(folder))


def test_what_a_function_imports_of_the_installed_counts_by_its_version(folder: Path) -> None:
    before = locked(folder)
    edit("deeper.py", "SIGN", "import hypothesis\nSIGN")(folder)
    found = differences(before, locked(folder))
    assert {"packages: hypothesis", "tools: add.files.deeper.py (imported by tools.py)"} <= found


def test_what_a_database_has_in_its_log_alone_counts(folder: Path) -> None:
    before = locked(folder)
    connection = sqlite3.connect(folder / "two.sqlite")
    connection.execute("PRAGMA journal_mode=wal")
    held = locked(folder)
    connection.execute("INSERT INTO t VALUES (1)")
    connection.commit()
    assert differences(held, locked(folder)) == {"resources: db.files.two.sqlite"}
    assert before.hash12 != held.hash12
    connection.close()


def test_the_images_of_every_row_count(folder: Path) -> None:
    edit("base.yaml", "  user: ", "  images: ['pictures/{{ task.db }}.png']\n  user: ")(folder)
    (folder / "pictures").mkdir()
    for name in ("one", "two"):
        (folder / "pictures" / f"{name}.png").write_bytes(b"\x89PNG")
    before = locked(folder)
    (folder / "pictures" / "two.png").write_bytes(b"\x89PNG other")
    assert differences(before, locked(folder)) == {"prompts: image_files.pictures/two.png"}


def test_the_order_of_parameters_counts_since_the_prompt_shows_it(folder: Path) -> None:
    tool = {"kind": "command", "argv": ["echo"]}
    a, b = ({"tools.say": {**tool, "parameters": {x: "string?", y: "string?"}}} for x, y in ("xy", "yx"))
    assert differences(locked(folder, set=a), locked(folder, set=b)) == {"prompts: tools"}


def test_what_cannot_be_read_is_never_called_equal(folder: Path) -> None:
    held = {"db": {"files": {"db.sqlite": UNREADABLE, "other.sqlite": "1"}}}
    a, b = (with_section(Lock(), "resources", held) for _ in range(2))
    assert diff(a, b) == (LockEntry("resources", "db.files.db.sqlite", UNREADABLE, UNREADABLE),)


# What does not


def test_neither_host_nor_time_nor_the_order_of_keys_counts(folder: Path) -> None:
    lock = locked(folder, policy={"kind": "openai", "model": "m"})
    moved = dataclasses.replace(lock, host={"name": "elsewhere"}, started=1.0)
    again = locked(folder, policy={"model": "m", "kind": "openai"})
    assert lock.hash12 == moved.hash12 == again.hash12
    assert diff(lock, moved) == ()
    assert lock.started > 1


def test_neither_what_lies_beside_the_files_nor_what_was_loaded_before_counts(folder: Path) -> None:
    before = locked(folder)
    (folder / "notes.txt").write_text("new")
    (folder / "correct").write_text("a file that is called as a term")
    (folder / "add").write_text("a file that is called as a tool")
    edit("unused.py", "", "X = 1\n")(folder)
    (folder / "second.yaml").write_text("extends: base.yaml\ntools: {more: {kind: python, function: 'more.py:more'}}\n")
    (folder / "more.py").write_text("import unused\n\ndef more(a: int) -> int:\n    'Does.'\n    return a\n")
    load(folder / "second.yaml")
    assert differences(before, locked(folder)) == set()


def test_the_kind_of_file_that_rows_stand_in_does_not_count_beside_its_name(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    (folder / "same.jsonl").write_text(
        "\n\n".join(json.dumps(dict(reversed(row.items())), indent=None) for row in rows)
    )
    found = differences(locked(folder), locked(folder, set={"tasks.train.path": str(folder / "same.jsonl")}))
    assert found == {"spec: digest", "spec: set.tasks.train.path", "data: train.path"}


@pytest.mark.slow
def test_another_clone_folder_and_process_give_the_same_hash(folder: Path, tmp_path: Path) -> None:
    clone = made(tmp_path / "deep" / "down" / "clone")
    hashes = set()
    for place, seed in ((folder, "1"), (clone, "2")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC-{seed}"}
        command = [sys.executable, "-m", "rlenv", "runs", "lock", "show", "--json"]
        name = "spec.yaml" if seed == "1" else str(place / "spec.yaml")
        cwd = place if seed == "1" else tmp_path
        env["PYTHONPATH"] = os.pathsep.join(str(Path(one or ".").resolve()) for one in sys.path)
        done = subprocess.run([*command, name], cwd=cwd, env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        hashes.add(json.loads(done.stdout)["hash"])
    assert len(hashes) == 1


# Secrets


def test_no_secret_stands_in_a_lock(folder: Path) -> None:
    literal = "sk-abcdefghijklmnop1234567890"
    lock = locked(
        folder,
        set={"endpoints.judge.headers": {"X-Key": "plain-header-value"}, "vars.note": literal},
        policy={"kind": "openai", "extra": {"text": "the-key-of-the-judge", "api_key": "plain-value"}},
        trainer={"overrides": ["a=https://user:pass-word@host/x?token=t0ken"]},
    )
    text = json.dumps(lock.as_dict())
    for secret in (
        "the-key-of-the-judge",
        "plain-header",
        "plain-value",
        literal,
        "me:secret",
        "key=abc",
        "pass-word",
        "t0ken",
    ):
        assert secret not in text
    assert lock.policy["extra"]["text"] == "${env:LOCK_TEST_KEY}"
    assert lock.endpoints["judge"]["host"] == "judge.example:8000"


def test_a_model_that_a_variable_names_counts_without_being_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit("base.yaml", "model: large", "model: '${env:LOCK_MODEL}'")(folder)
    monkeypatch.setenv("LOCK_MODEL", "large-model-one")
    before = locked(folder)
    monkeypatch.setenv("LOCK_MODEL", "large-model-two")
    after = locked(folder)
    assert differences(before, after) == {"endpoints: judge.model_sha256"}
    assert "large-model" not in json.dumps([before.as_dict(), after.as_dict()])


# In a run


def test_the_file_is_named_by_its_content_as_anyone_can_compute_it(folder: Path, tmp_path: Path) -> None:
    lock = locked(folder)
    path = lock.write(tmp_path / "run")
    held = json.loads(path.read_text())
    del held["host"], held["started"]
    text = json.dumps(held, sort_keys=True, separators=(",", ":"))
    assert path.name == hashlib.sha256(text.encode()).hexdigest()[:12] + ".json"
    assert read_lock(path) == lock
    assert dataclasses.replace(lock, started=lock.started + 9).write(tmp_path / "run") == path
    assert locks_of(tmp_path / "run") == {lock.hash12: lock}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_lock_that_was_changed_or_is_none_is_refused(tmp_path: Path) -> None:
    path = Lock(spec={"id": "a"}).write(tmp_path)
    path.write_text(path.read_text().replace('"a"', '"b"'))
    with pytest.raises(UsageError, match="was changed since it was written"):
        read_lock(path)
    wrong = {"{}": "is no lock", "[": "cannot be read", "1e999": "cannot be read"}
    for text, said in (wrong | {'{"format": 9, "spec": {}}': "another version"}).items():
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(UsageError, match=said):
            read_lock(tmp_path / "x.json")
    with pytest.raises(UsageError, match="there is no lock"):
        read_lock(tmp_path / "y.json")


def test_a_kept_run_holds_its_lock_and_stamps_every_row_and_attempt(tmp_path: Path) -> None:
    environment = load("arithmetic")
    lock, other = lock_of(environment, splits=["test"]), lock_of(environment, splits=["test"], seed=1)
    oracle = OraclePolicy(environment.spec, environment.parts.dialect)
    (trajectory,) = asyncio.run(rollout(environment, oracle, [Job("test", 0, 0)]))
    for resumed, one in enumerate((lock, other)):
        with KeptRun(tmp_path / "run", RunInfo(kind="eval"), lock=one, resume=bool(resumed)) as run:
            run.append(trajectory, Facts())
        assert run.info.attempts[-1].lock == one.hash12
    rows = sorted((row["attempt"], row["lock"]) for row in open_run(tmp_path / "run").rows())
    assert rows == [(0, lock.hash12), (1, other.hash12)]
    assert list(locks_of(tmp_path / "run")) == [lock.hash12, other.hash12]


def test_a_system_text_of_no_characters_is_one(folder: Path) -> None:
    assert "prompts: system" in differences(locked(folder), locked(folder, set={"prompt.system": ""}))
