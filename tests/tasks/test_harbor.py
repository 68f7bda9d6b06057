"""Harbor folders as rows: every key of schema 1.4 is honoured, told, or refused at its place."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import SpecError
from rlenv.tasks.harbor import HarborTasks
from rlenv.tools.workspace.images import prepare_image

QUIET = 'schema_version = "1.4"\n[environment]\nnetwork_mode = "no-network"\n'


def folder_of(base: Path, toml: str = QUIET, **files: str) -> Path:
    """A task folder `base/tasks/one`; `files` are by path, __ for a slash and _D_ for a dot."""
    task = base / "tasks" / "one"
    (task / "tests").mkdir(parents=True, exist_ok=True)
    (task / "task.toml").write_text(toml, encoding="utf-8")
    (task / "instruction.md").write_text("Do it.\n", encoding="utf-8")
    (task / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n", encoding="utf-8")
    for name, text in files.items():
        path = task / name.replace("__", "/").replace("_D_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return base / "tasks"


def row_of(base: Path, toml: str = QUIET, **files: str) -> Mapping[str, Any]:
    row: Mapping[str, Any] = HarborTasks(folder_of(base, toml, **files), base=base)[0]
    return row


STEPS = {"steps__a__instruction_D_md": "First.", "steps__b__instruction_D_md": "Then."}
TABLE = "steps = [{name = 'a'}, {name = 'b'}]\n"

# Each key with a value of its own, and what of the row shows it. `...`: it is read, and told to have no effect.
HONOURED: list[tuple[str, Any, Any]] = [
    ('schema_version = "1.4"', "id", "one"),
    ('version = "1.0"', "id", "one"),
    ('source = "hub"', "source", "hub"),
    ('artifacts = ["/out"]\nverifier.environment_mode = "separate"', "keep", ["/out", "/logs/artifacts"]),
    ('artifacts = [{source = "/a"}]\nverifier.environment_mode = "separate"', "keep.0", "/a"),
    ('artifacts = [{source = "/a", service = "main"}]', "keep", ["/"]),
    (TABLE, "steps.1.instruction", "Then."),
    (TABLE + 'multi_step_reward_strategy = "final"', "strategy", "final"),
    (TABLE, "strategy", "mean"),
    ('task.name = "org/one"', "metadata.name", "org/one"),
    ('task = {name = "o/n", version = "2"}', "metadata.version", "2"),
    ('task = {name = "o/n", description = "d"}', "metadata.description", "d"),
    ('task = {name = "o/n", authors = [{name = "A", email = "a@b.c"}]}', "metadata.authors.0.email", "a@b.c"),
    ('task = {name = "o/n", keywords = ["k"]}', "metadata.keywords", ["k"]),
    ('metadata = {level = 3, day = 2026-01-02}', "metadata", {"level": 3, "day": "2026-01-02"}),
    ("environment.build_timeout_sec = 60.0", ..., "environment.build_timeout_sec"),
    ('environment.docker_image = "debian:12"', "image", "podman:debian:12"),
    ('environment.os = "Linux"', "id", "one"),
    ("environment.cpus = 2", ..., "environment.cpus"),
    ("environment.memory_mb = 8192", "limits.memory_mb", 8192),
    ("environment.memory_mb = 512", "limits.memory_mb", 4096),
    ('environment.memory = "8G"', "limits.memory_mb", 8192),
    ("environment.storage_mb = 77", "limits.disk_mb", 77),
    ('environment.storage = "2G"', "limits.disk_mb", 2048),
    ("environment.gpus = 0", "id", "one"),
    ("environment.gpu_types = []", "id", "one"),
    ('environment.env = {A = "1", B = "${RLENV_NO_SUCH:-two}"}', "env", {"A": "1", "B": "two"}),
    ("environment.mcp_servers = []", "id", "one"),
    ('environment.skills_dir = ""', "id", "one"),
    ('environment.workdir = "/srv"', "workdir", "/srv"),
    ('environment.healthcheck = {command = "ls /a"}', "setup", re.compile("timeout 30 sh -c 'ls /a'")),
    ('environment.healthcheck = {command = "x", interval_sec = 7}', "setup", re.compile("sleep 7; done")),
    ('environment.healthcheck = {command = "x", timeout_sec = 9}', "setup", re.compile("timeout 9 ")),
    ('environment.healthcheck = {command = "x", start_period_sec = 8}', "setup", re.compile(r"\+ 8 ")),
    ('environment.healthcheck = {command = "x", start_interval_sec = 4}', "setup", re.compile("sleep 4;")),
    ('environment.healthcheck = {command = "x", retries = 6}', "setup", re.compile("-lt 6 ")),
    ('environment.network_mode = "no-network"', "id", "one"),
    ('environment.network_mode = "public"', ..., "environment.network_mode"),
    ("environment.allowed_hosts = []", "id", "one"),
    ("environment.allow_internet = false", "id", "one"),
    ("environment.allow_internet = true", ..., "environment.allow_internet"),
    ("agent.timeout_sec = 90", "limits.episode_s", 90),
    ('agent.user = "dev"', "user", "dev"),
    ("agent.user = 1000", "user", "1000"),
    ('agent.user = "root"', "user", ""),
    ('agent.network_mode = "public"', ..., "agent.network_mode"),
    ("agent.allowed_hosts = []", "id", "one"),
    ("verifier.timeout_sec = 30", "time_s", 30),
    ('verifier.env = {KEY = "a b"}', "run", re.compile("export KEY='a b'")),
    ("verifier.user = 7", "run", re.compile("setpriv --reuid 7 ")),
    ('verifier.network_mode = "no-network"', "id", "one"),
    ("verifier.allowed_hosts = []", "id", "one"),
    ('verifier.environment_mode = "shared"', "keep", ["/"]),
    ('verifier.environment_mode = "separate"', "keep", ["/logs/artifacts"]),
    ('verifier.environment = {docker_image = "tests:1"}', "tests_image", "podman:tests:1"),
    ('verifier.environment = {workdir = "/w"}', "run", re.compile("cd /w")),
    ('verifier.environment = {env = {V = "1"}}', "run", re.compile("export V=1")),
    ('verifier.collect = [{command = "dump > /d"}]', "collect", "timeout 60 sh -c 'dump > /d'"),
    ('verifier.collect = [{command = "x", timeout_sec = 5, service = "main"}]', "collect", "timeout 5 sh -c x"),
    ('agent.user = "u"\nverifier.collect = [{command = "x", user = "u"}]', "collect", "timeout 60 sh -c x"),
    ('solution.env = {S = "1"}', "solution.0", re.compile("S=1")),
    ("steps = [{name = 'a', agent = {timeout_sec = 5}, verifier = {timeout_sec = 6}}]", "limits.episode_s", 11),
    ("steps = [{name = 'a', agent = {user = 'u'}}]", "steps.0.user", "u"),
    ("steps = [{name = 'a', verifier = {env = {E = '2'}}}]", "run", re.compile("export E=2")),
    ("steps = [{name = 'a', min_reward = 0.5}]", "steps.0.min_reward", {"reward": 0.5}),
    ("steps = [{name = 'a', min_reward = {lint = 1}}]", "steps.0.min_reward", {"lint": 1}),
    ("steps = [{name = 'a', healthcheck = {command = 'x'}}]", "steps.0.setup", re.compile("sh -c x")),
    (
        "steps = [{name = 'a', artifacts = ['/s'], verifier = {environment_mode = 'separate'}}]",
        "steps.0.keep", ["/s", "/logs/artifacts"],
    ),
    (
        'artifacts = [{source = "/a", exclude = ["*.o", "a/b"]}]\nverifier.environment_mode = "separate"',
        "exclude", ["/a/*.o", "/a/*/*.o", "/a/a/b", "/a/*/a/b", "/a/b"],
    ),
    (
        'artifacts = [{source = "/[a]", exclude = ["b"]}]\nverifier.environment_mode = "separate"',
        "exclude", ["/[[]a]/b", "/[[]a]/*/b"],
    ),
    ('verifier.collect = [{command = "x", user = "u"}]', "collect", re.compile(r"setpriv --reuid u .* 60 \$as x")),
    ('artifacts = [{source = "/a", destination = "b"}]', ..., "artifacts.0.destination"),
    ("colour = 1", ..., "colour"),
    ("environment.colour = 1", ..., "environment.colour"),
]  # fmt: skip


@pytest.mark.parametrize(("toml", "path", "expected"), HONOURED)
def test_a_key_is_honoured_or_told(tmp_path: Path, toml: str, path: Any, expected: Any) -> None:
    tasks = HarborTasks(folder_of(tmp_path, toml, **STEPS, solution__solve_D_sh="true\n"), base=tmp_path)
    value: Any = tasks[0]
    if path is ...:
        (found,) = [one for one in tasks.oddities() if one.where == expected]
        key = str(expected).rpartition(".")[2]
        assert (found.level, found.quote[found.column - 1 :][: len(key)]) == ("warning", key)
        return
    for part in path.split("."):
        value = value[int(part) if part.isdigit() else part]
    assert expected.search(value) if isinstance(expected, re.Pattern) else value == expected
    unsaid = {"environment", "network_mode", "allow_internet"}
    assert {one.where for one in tasks.oddities()} <= unsaid


@pytest.mark.parametrize(("toml", "place"), [("", ("test_it.py", 2)), ('verifier.environment_mode = "separate"', None)])
def test_shared_tests_that_may_ask_a_live_server_are_told(tmp_path: Path, toml: str, place: Any) -> None:
    ask = "import socket\nsocket.create_connection(('localhost', 8000))\n"
    # What an image is built of is no test of the task's.
    folder_of(tmp_path, f"{toml}\n{QUIET}", tests__test_it_D_py=ask, environment__tests__a_D_py=ask)
    shutil.copytree(tmp_path / "tasks" / "one", tmp_path / "tasks" / "two")
    tasks = HarborTasks(tmp_path / "tasks", base=tmp_path)
    assert tasks[0]["live"] is (place is not None)
    assert not [one for one in tasks.oddities() if "live on" in one.message]
    found = [one for one in tasks.oddities(is_live=False) if "live on" in one.message]
    assert [(Path(one.file).name, one.line) for one in found] == ([place] if place else [])
    assert all(one.message.endswith("(2 tasks)") for one in found)


REFUSED = [
    ("environment.os = 'windows'", "machines run Linux"),
    ("environment.gpus = 1", "no GPU"),
    ("environment.gpu_types = ['H100']", "no GPU"),
    ("environment.tpu = {type = 'v6e', topology = '2x2'}", "no TPU"),
    ("environment.mcp_servers = [{name = 'a', url = 'http://a'}]", "servers"),
    ("environment.skills_dir = '/skills'", "skills"),
    ("environment.network_mode = 'allowlist'", "no network"),
    ("environment.allowed_hosts = ['a.org']", "no network"),
    ("agent.network_mode = 'allowlist'", "no network"),
    ("verifier.allowed_hosts = ['a.org']", "no network"),
    ("verifier.environment.gpus = 1", "no GPU"),
    ("verifier.collect = [{command = 'x', service = 'db'}]", "one machine"),
    ("artifacts = [{source = '/a', service = 'db'}]", "one machine"),
    ("verifier.collect = [{timeout_sec = 3}]", "command"),
    ("artifacts = ['/a/../b']", "without .."),
    ("agent.timeout_sec = 'long'", "number"),
    ("agent.timeout_sec = -1", "minimum"),
    ("environment.memory_mb = 'much'", "integer"),
    ("environment.env = {A = 1}", "string"),
    ("environment.env = {A = '${RLENV_NO_SUCH}'}", "RLENV_NO_SUCH"),
    ("environment.workdir = 'app'", "^/"),
    ("task.name = 'plain'", "ORGANISATION/NAME"),
    ("multi_step_reward_strategy = 'best'", "final"),
    ("steps = [{name = 'a/b'}]", "like its folder"),
    ("steps = [{name = 'gone'}]", "no folder 'steps/gone'"),
    ("verifier = {environment_mode = 'shared', environment = {}}", "environment of their own"),
]


@pytest.mark.parametrize(("toml", "says"), REFUSED)
def test_what_a_machine_has_not_is_refused_at_its_line(tmp_path: Path, toml: str, says: str) -> None:
    before = 'schema_version = "1.4"  # environment = 1\n# gpus = 1\nsource = """\ngpus = 3\n"""\n\n'
    with pytest.raises(SpecError) as failed:
        row_of(tmp_path, before + toml + "\n")
    (fault,) = failed.value.faults
    assert says in fault.message
    assert (Path(fault.file).name, fault.line, fault.quote) == ("task.toml", 7, toml)
    assert fault.quote[fault.column - 1 :].startswith(fault.where.rstrip(".0123456789").rpartition(".")[2])


@pytest.mark.parametrize(
    ("header", "line", "column"),
    [
        ("[environment]\ncpus = 1\n\ngpus = 2\n", 4, 1),
        ("[environment.env]\n\n'A' = 1\n", 3, 1),
        ("[[steps]]\nname = 'a'\n[[steps]]\nname = 'x/y'\n", 4, 1),
        ("[[steps]]\nname = 'a'\n[steps.agent]\ntimeout_sec = 'x'\n", 4, 1),
        ("artifacts = [\n  '/a',\n  '../b',\n]\n", 1, 1),
        ("[verifier]\n[[verifier.collect]]\ntimeout_sec = 1\n", 2, 12),
    ],
)
def test_a_place_is_told_in_every_form_of_toml(tmp_path: Path, header: str, line: int, column: int) -> None:
    with pytest.raises(SpecError) as failed:
        row_of(tmp_path, header, **STEPS)
    assert [(one.line, one.column) for one in failed.value.faults] == [(line, column)]


def test_files_make_the_row(tmp_path: Path) -> None:
    row = row_of(
        tmp_path, environment__Dockerfile="FROM x\n", solution__solve_D_sh="echo é\n", solution__data_D_txt="1",
        instruction_D_md="<!-- BIG-Bench CANARY 1 -->\n# canary 2\n\nDo # canary it.\n",
    )  # fmt: skip
    assert (row["instruction"], row["image"]) == ("Do # canary it.", "tasks/one/environment")
    assert row["tests"] == "tasks/one/tests"
    packed = re.search(r"echo (\S+) \| base64", row["solution"][0])
    assert packed is not None
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed[1]))) as tar:
        assert {"./solve.sh", "./data.txt"} < {*tar.getnames()}


def test_steps_have_their_own_files_before_those_of_the_task(tmp_path: Path) -> None:
    own = {"steps__b__tests__test_D_sh": "x", "steps__b__solution__solve_D_sh": "own", "steps__b__workdir__f": "1"}
    toml = TABLE + "[verifier]\nenv = {A = '1'}\n"
    row = row_of(tmp_path, toml, **STEPS, **own, solution__solve_D_sh="all", steps__b__workdir__setup_D_sh="true")
    first, second = row["steps"]
    assert (first["tests"], second["tests"]) == ("tasks/one/tests", "tasks/one/steps/b/tests")
    assert ("-C /tests" in first["run"], "-C /tests" in second["run"]) == (False, True)
    assert (first["files"], second["files"]) == ("", "tasks/one/steps/b/workdir")
    assert (first["setup"], second["setup"]) == ("", "bash ./setup.sh")
    assert first["solution"] != second["solution"]
    assert row["instruction"] == "First."
    assert "export A=1" in second["run"]


def test_tests_with_an_image_of_their_own_bring_their_tests(tmp_path: Path) -> None:
    toml = QUIET + '[verifier]\nenvironment_mode = "separate"\n'
    row = row_of(tmp_path, toml, tests__Dockerfile="FROM x\n")
    assert (row["tests_image"], row["tests"]) == ("tasks/one/tests", "")


@pytest.mark.parametrize(
    ("name", "text", "gone"),
    [
        ("instruction.md", None, "instruction.md"),
        ("tests/test.sh", None, "test.sh"),
        ("task.toml", None, "task.toml"),
        ("task.toml", "a = 1\nb = = 2\n", "task.toml"),
        ("environment/docker-compose.yaml", "services: {}\n", "docker-compose.yaml"),
        ("trajectory.json", "{}", "trajectory.json"),
        ("steps/b/instruction.md", None, "instruction.md"),
    ],
)
def test_a_missing_or_unfit_file_is_a_fault_of_that_file(
    tmp_path: Path, name: str, text: str | None, gone: str
) -> None:
    task = folder_of(tmp_path, (TABLE if "steps" in name else "") + QUIET, **STEPS) / "one"
    (task / name).parent.mkdir(exist_ok=True)
    (task / name).unlink() if text is None else (task / name).write_text(text)
    with pytest.raises(SpecError) as failed:
        HarborTasks(tmp_path / "tasks", base=tmp_path)[0]
    (fault,) = failed.value.faults
    assert Path(fault.file).name == gone
    assert fault.line == (2 if text and "=" in text else 1)


PODMAN = """#!/bin/sh
case $1 in
  images | create) echo one;;
  image) echo 'sha256:one {"User": "USER"}';;
  export) cp "FILES" "$3";;
esac
"""


@pytest.mark.parametrize(
    ("user", "known", "says"),
    [("dev", "other", "'dev'"), ("other:staff", "other", ""), ("root", "other", ""), ("", "other", ""),
     ("", "dev", "the image has no user 'other'")],
)  # fmt: skip
def test_a_hook_of_another_user_needs_an_image_that_has_it_and_whose_own_is_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, known: str, says: str
) -> None:
    (tmp_path / "passwd").write_text(f"{known}:x:7:7::/:/bin/sh\n")
    with tarfile.open(tmp_path / "files.tar", "w") as tar:
        tar.add(tmp_path / "passwd", "etc/passwd")
    (tmp_path / "podman").write_text(PODMAN.replace("USER", user).replace("FILES", str(tmp_path / "files.tar")))
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hook = 'docker_image = "some"\n[[verifier.collect]]\nuser = "other"\ncommand = "x"\n'
    tasks = HarborTasks(folder_of(tmp_path, QUIET + hook), base=tmp_path)
    assert tasks[0]["id"] == "one"  # an image that is not here yet is fetched before a run, which reads the row again
    prepare_image("podman:some", fetches=True)
    if not says:
        assert ("setpriv" in tasks[0]["collect"]) == (user in ("root", ""))
        return
    with pytest.raises(SpecError) as failed:
        tasks[0]
    (fault,) = failed.value.faults
    assert (fault.line, says in fault.message) == (6, True)


def test_all_faults_of_a_task_are_told_at_once_each_at_its_place(tmp_path: Path) -> None:
    lines = (
        'schema_version = "1.4"', "[environment]", "gpus = 1", 'env = {A = "${RLENV_NO_SUCH}"}', "[agent]",
        'timeout_sec = "long"', 'user = "dev"', "[[verifier.collect]]", 'command = "x"', 'user = "other"',
        "[[steps]]", 'name = "a"', "[[steps]]", 'name = "gone"',
    )  # fmt: skip
    task = folder_of(tmp_path, "\n".join(lines), steps__a__instruction_D_md="First.") / "one"
    (task / "steps/a/instruction.md").unlink()
    (task / "tests/test.sh").unlink()
    (task / "trajectory.json").write_text("{}")
    (task / "environment").mkdir()
    (task / "environment/docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(SpecError) as failed:
        HarborTasks(tmp_path / "tasks", base=tmp_path)[0]
    places = {(str(Path(one.file).relative_to(task)), one.line) for one in failed.value.faults}
    of_files = ("steps/a/instruction.md", "steps/a/tests/test.sh", "trajectory.json", "environment/docker-compose.yaml")
    assert places == {("task.toml", line) for line in (3, 4, 6, 10, 14)} | {(file, 1) for file in of_files}


def test_nothing_of_a_task_leads_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "outside").mkdir()
    task = folder_of(tmp_path) / "one"
    (task / "instruction.md").unlink()
    (task / "instruction.md").symlink_to(tmp_path / "secret")
    with pytest.raises(SpecError, match="leads out"):
        HarborTasks(tmp_path / "tasks", base=tmp_path)[0]


def test_lists_of_tasks_name_folders_that_are_here(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, QUIET + '[task]\nname = "org/first"\n')
    other = folder_of(tmp_path / "other") / "one"
    other.rename(folder / "two")

    def ids(path: Path) -> list[str]:
        return [row["id"] for row in HarborTasks(path, base=tmp_path)]

    assert ids(folder) == ["one", "two"]
    assert ids(folder / "one") == ["one"]
    (folder / "dataset.toml").write_text('[[tasks]]\nname = "org/two"\n[[tasks]]\nname = "org/first"\n')
    assert ids(folder) == ["two", "one"]
    (folder / "dataset.toml").write_text('[[tasks]]\nname = "org/two"\n[[tasks]]\nname = "org/lost"\n')
    with pytest.raises(SpecError, match=r"dataset.toml:4:.*'org/lost' is not here"):
        ids(folder)
    registry = tmp_path / "registry.json"
    registry.write_text('[{"name": "d", "tasks": [{"name": "x", "path": "tasks/two"}]}]')
    assert ids(registry) == ["two"]
    registry.write_text('[{"name": "d", "tasks": [\n{"name": "x", "path": "t", "git_url": "https://a.org/r"}]}]')
    with pytest.raises(SpecError, match=r"registry\.json:2:"):
        ids(registry)


def test_what_has_no_effect_is_told_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "[environment]\ncpus = 2\n")
    folder_of(tmp_path / "other", "[environment]\ncpus = 2\n")
    (tmp_path / "other" / "tasks" / "one").rename(folder / "two")
    found = [*HarborTasks(folder, base=tmp_path).oddities()]
    assert [(one.where, one.line, "(2 tasks)" in one.message) for one in found] == [
        ("environment.cpus", 2, True),
        ("environment", 1, True),
    ]
