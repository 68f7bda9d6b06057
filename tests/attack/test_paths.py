"""Paths that rows and models name stay where the spec's author said, at validation, in episodes and when shipping."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlenv._base.paths import RefusedPath, finder, is_file, read_file
from rlenv.checks.validate import validate
from rlenv.episodes.environment import Environment, load
from rlenv.language.templates import compile_template

SPEC = """
rlenv: 1
name: rows
{more}
tasks: {{train: {{path: rows.jsonl}}}}
prompt: {{user: "{{{{ task.question }}}}", images: ["{{{{ task.image }}}}"]}}
resources:
  db: {{kind: sqlite, path: "data/{{{{ task.db }}}}.sqlite"}}
  work: {{kind: tempdir, path: "projects/{{{{ task.project }}}}"}}
tools: {{q: {{kind: sql, resource: db}}}}
rewards: {{correct: {{kind: rule, rule: exact_match}}}}
"""
GOOD: Mapping[str, Any] = {"question": "q", "answer": "1", "db": "good", "project": "good", "image": "images/good.png"}


def _database(path: Path, word: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as raw:
        raw.executescript(f"create table t (x); insert into t values ('{word}')")
    raw.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spec's folder with its own files, and private files beside it."""
    own, private = tmp_path / "project" / "spec", tmp_path / "private"
    for place in (own / "images", own / "projects/good", private / "folder"):
        place.mkdir(parents=True)
    _database(own / "data/good.sqlite", "shared")
    _database(private / "mail.sqlite", "PRIVATE")
    (own / "images/good.png").write_bytes(b"shared image")
    (own / "projects/good/notes.txt").write_text("shared notes")
    (private / "photo.png").write_bytes(b"PRIVATE image")
    (private / "folder/key").write_text("PRIVATE key")
    return own


def _written(folder: Path, row: Mapping[str, Any], more: str = "") -> Path:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    path = folder / "env.yaml"
    path.write_text(SPEC.format(more=more))
    return path


def _opened(environment: Environment) -> tuple[str | None, list[bytes]]:
    """How an episode failed, and all that it let the policy see."""
    return asyncio.run(_played(environment))


def _inside(folder: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()]


async def _played(environment: Environment) -> tuple[str | None, list[bytes]]:
    async with environment, environment.start() as episode:
        if episode.failure is not None:
            return episode.failure.message, []
        seen = [base64.b64decode(image.base64) for message in episode.messages for image in message.images]
        await episode.step('<tool_call>{"name": "q", "arguments": {"sql": "select * from t"}}</tool_call>')
        seen.append(episode.turns[-1].results[0].text.encode())
        return None, seen + _inside(os.fspath(episode.resources["work"]))


def _row(folder: Path, kind: str) -> dict[str, Any]:
    private = folder.parent.parent / "private"
    (folder / "data/link.sqlite").symlink_to(private / "mail.sqlite")
    (folder / "images/link.png").symlink_to(private / "photo.png")
    (folder / "projects/link").symlink_to(private / "folder")
    (folder / "projects/inner").mkdir()
    (folder / "projects/inner/key").symlink_to(private / "folder/key")
    (folder / "projects/deep/er").mkdir(parents=True)
    (folder / "projects/deep/er/all").symlink_to("../../../../../private")
    rows: dict[str, dict[str, Any]] = {
        "db with ..": {"db": "../../../private/mail"},
        "db with .. in the middle": {"db": "good/../../../../private/mail"},
        "db by a link": {"db": "link"},
        "db beside its folder": {"db": "../images/../../spec/../../private/mail"},
        "image with ..": {"image": "../../private/photo.png"},
        "image by an absolute name": {"image": str(private / "photo.png")},
        "image by a link": {"image": "images/link.png"},
        "image in a list": {"image": ["images/good.png", "../../private/photo.png"]},
        "folder with ..": {"project": "../../../private/folder"},
        "folder by a link": {"project": "link"},
        "link in a folder": {"project": "inner"},
        "link to a folder in a folder": {"project": "deep"},
        "the folder above": {"project": ".."},
    }
    return {**GOOD, **rows[kind]}


KINDS = [
    "db with ..",
    "db with .. in the middle",
    "db by a link",
    "db beside its folder",
    "image with ..",
    "image by an absolute name",
    "image by a link",
    "image in a list",
    "folder with ..",
    "folder by a link",
    "link in a folder",
    "link to a folder in a folder",
    "the folder above",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_opens_nothing_outside_and_its_reward_is_invalid(folder: Path, kind: str) -> None:
    message, seen = _opened(load(_written(folder, _row(folder, kind))))
    assert message is not None
    assert "leads out of" in message
    assert not any(b"PRIVATE" in content for content in seen)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("link")])
def test_validation_names_the_row_that_leads_out(folder: Path, kind: str) -> None:
    report = validate([_written(folder, _row(folder, kind))])
    (fault,) = [fault for fault in report.faults if "a row may not name" in fault.message]
    assert "row 1 of split 'train'" in fault.message
    assert "roots" in fault.hint


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_outside_is_shipped_to_a_cluster(folder: Path, kind: str) -> None:
    shipping = pytest.importorskip("rlenv_train.specs")
    named = shipping.named_files(load(_written(folder, _row(folder, kind))))
    private = folder.parent.parent / "private"
    assert not any(path.resolve().is_relative_to(private) for path in named)


def test_what_the_spec_names_under_roots_is_open_to_rows(folder: Path) -> None:
    row = {**GOOD, "db": "../../../private/mail", "image": "../../private/photo.png", "project": "../../../private"}
    path = _written(folder, row, "roots: [../../private]")
    assert validate([path]).faults == ()
    message, seen = _opened(load(path))
    assert message is None
    assert seen[0] == b"PRIVATE image"
    (fault,) = validate([_written(folder, row, "roots: [../../privat]")]).faults[:1]
    assert "there is no folder '../../privat'" in fault.message
    assert "../../private" in fault.hint


def test_what_the_author_writes_may_lie_anywhere(folder: Path) -> None:
    path = _written(folder, {**GOOD, "db": "mail", "project": "folder"})
    private = folder.parent.parent / "private"
    text = path.read_text().replace("data/{{", "../../private/{{").replace("projects/{{", "{{ vars.place }}/{{")
    path.write_text(text.replace("name: rows", f"name: rows\nvars: {{place: {private}}}"))
    message, seen = _opened(load(path))
    assert message is None
    assert b"PRIVATE key" in seen


HEADS = [
    ("a/b-{{ task.x }}/c", "a/"),
    ("{{ task.x }}", ""),
    ("{{ vars.place }}/{{ task.x }}", "/data/"),
    ("{{ vars['place'] | trim }}/y/{{ task.x }}", "/data/y/"),
    ("{{ vars.place ~ '/in/' ~ task.x }}", "/data/in/"),
    ("{{ vars.place + '/' + task.x }}", "/data/"),
    ("{% if task.x %}/etc/{{ task.x }}{% endif %}", ""),
    ("{{ '/etc/' if task.x else '' }}{{ task.x }}", ""),
    ("{% set y = '/etc' %}{{ y }}/{{ task.x }}", ""),
    ("{{ answer }}", ""),
]


@pytest.mark.parametrize(("source", "head"), HEADS)
def test_a_row_has_its_say_from_the_first_thing_that_is_not_the_specs_own(source: str, head: str) -> None:
    assert compile_template(source).folder(vars={"place": "/data"}, task={"x": "x"}) == head


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "..", "a\0b", "/proc/self/root/etc"])
def test_a_finder_refuses_what_leads_out_and_what_no_file_can_be_called(tmp_path: Path, name: str) -> None:
    find = finder(compile_template("{{ task.x }}"), base=tmp_path)
    with pytest.raises(RefusedPath) as caught:
        find(name)
    assert len(str(caught.value)) < 500


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_and_devices_are_no_files(tmp_path: Path, folder: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero"), tmp_path):
        assert not is_file(path)
        with pytest.raises((OSError, ValueError)):
            read_file(path)
    os.mkfifo(folder / "images/pipe.png")
    message, _ = _opened(load(_written(folder, {**GOOD, "image": "images/pipe.png"})))
    assert message is not None
    assert "no regular file" in message


@pytest.mark.parametrize(
    "statement", ["ATTACH '{out}' AS other", "VACUUM INTO '{out}'", "ATTACH 'file:{out}?mode=rwc' AS o"]
)
def test_a_script_that_a_row_names_reaches_no_other_file(statement: str, tmp_path: Path) -> None:
    out = tmp_path / "written"
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.sql").write_text(f"create table t (x); {statement.format(out=out)};")
    (tmp_path / "env.yaml").write_text(
        "rlenv: 1\nname: script\ntasks: {train: {rows: [{db: a, answer: 1}]}}\nprompt: {user: x}\n"
        "resources: {db: {kind: sqlite, init: 'data/{{ task.db }}.sql'}}\n"
        "rewards: {r: {kind: rule, rule: numeric_match}}\n"
    )

    async def play() -> str:
        async with load(tmp_path / "env.yaml") as environment, environment.start() as episode:
            assert episode.failure is not None
            return episode.failure.reason

    assert asyncio.run(play()) == "resource"
    assert not out.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_folder_with_a_pipe_is_not_copied(folder: Path) -> None:
    os.mkfifo(folder / "projects/good/pipe")
    message, _ = _opened(load(_written(folder, GOOD)))
    assert message is not None
    assert "is no file and no folder" in message


def test_a_resource_gives_the_folder_below_which_a_row_names_an_image(folder: Path) -> None:
    (folder / "projects/good/own.png").write_bytes(b"copied image")
    for name, fits in (("own.png", True), ("../../../../private/photo.png", False), ("/etc/hostname", False)):
        path = _written(folder, {**GOOD, "image": name})
        path.write_text(path.read_text().replace('"{{ task.image }}"', '"{{ resources.work.path }}/{{ task.image }}"'))
        message, seen = _opened(load(path))
        assert (message is None) is fits
        assert (b"copied image" in seen) is fits
        assert not any(b"PRIVATE" in content for content in seen)
