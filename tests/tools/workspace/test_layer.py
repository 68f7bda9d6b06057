"""Layers: what an episode changed, and its files as a tar that is put back elsewhere."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rlenv._base.paths import remove, run_on
from rlenv.cli.main import main
from rlenv.runs.recorded import machines_of, recorded
from rlenv.tools.workspace.images import read_in
from rlenv.tools.workspace.layer import (
    compare,
    copy_kept,
    copy_tree,
    duplicate,
    is_beyond,
    pack_layer,
    take_out,
    unlink_hidden,
    unpack_layer,
    written_to,
)
from rlenv.tools.workspace.machine import RowTests
from rlenv.tools.workspace.resource import Workspace
from tests.support.machines import SOLVE, killed_at_first, opened, reachable, written  # noqa: F401 - a fixture

pytestmark = pytest.mark.sandbox
MOST = 10_000_000
ACTS = r"""
echo new > new; printf 'one\nTWO\nthree\n' > kept; rm gone; ln -s /etc/passwd link; mkdir -p deep/er; mkfifo pipe
printf '\0\1' > binary; echo new > touched; touch -d 2000-01-01 touched; cp -p same other; mv other same
ln new hard; chmod 4755 new; mkdir closed; echo x > closed/x; chmod 0 closed; printf x > "$(printf 'na\377me')"
mkdir /srv/mine; rm -rf /mnt; mkdir /mnt; echo 1 > /mnt/a; rmdir /home; ln -s / /home
"""


def began(folder: Path) -> dict[str, Any]:
    (folder / "data").mkdir()
    for name, text in {"kept": "one\ntwo\nthree\n", "gone": "", "touched": "was\n", "same": "same\n"}.items():
        (folder / "data" / name).write_text(text)
    return {"path": "data"}


def test_what_an_episode_changed_is_listed(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        assert [one["path"] for one in await untouched(workspace)] == []
        assert (await workspace.run(ACTS, 30)).code == 0
        at = [("/app", workspace.source or Path()), ("", workspace.image.folder)]
        found = {one["path"]: one for one in compare(workspace.layer, at, shows=True)}
        kinds = {path.removeprefix("/app/"): one["kind"] for path, one in found.items()}
        assert kinds.pop("closed/x", "file") == "file"  # as another user nobody looks into it
        assert kinds.pop("closed") == ("other" if os.geteuid() else "folder")
        assert {key: kinds[key] for key in kinds if not key.startswith("na")} == {
            "new": "file", "kept": "file", "gone": "gone", "link": "link", "deep": "folder", "deep/er": "folder",
            "pipe": "other", "binary": "file", "touched": "file", "hard": "file",
            "/srv/mine": "folder", "/mnt/a": "file", "/home": "link",
        }  # fmt: skip
        assert found["/app/new"]["sha256"] == "7aa7a5359173d05b63cfd682e3c38487f3cb4f7f1d60659fe59fab1505977d4c"
        assert "-two\n+TWO\n" in found["/app/kept"]["diff"]
        assert "differ" in found["/app/binary"]["diff"]
        assert "root" not in json.dumps([one.get("diff") for one in found.values()])  # no link is followed

    async def untouched(workspace: Workspace) -> Any:
        await workspace.run("ls", 30)
        return await workspace.list_changes("machine")

    opened(reachable, work, **began(reachable))


def test_a_packed_layer_is_put_back_as_it_was(reachable: Path) -> None:  # noqa: F811
    def look(layer: Path) -> dict[str, Any]:
        found = {}
        for path in sorted(layer.rglob("*")):
            status = path.lstat()
            data = path.read_bytes() if stat.S_ISREG(status.st_mode) else os.readlink(path) if path.is_symlink() else ""
            marks = [one for one in os.listxattr(path, follow_symlinks=False) if "opaque" in one]
            found[str(path.relative_to(layer))] = (status.st_mode, status.st_uid, status.st_rdev, data, marks)
        return found

    async def work(workspace: Workspace) -> None:
        await workspace.run(ACTS.replace("chmod 0 closed", "chmod 500 closed"), 30)
        await workspace.freeze()
        target = reachable / "again"
        target.mkdir()
        unpack_layer(pack_layer(workspace.layer, MOST), target, MOST)
        assert look(target) == look(workspace.layer)
        assert (target / "app" / "new").stat().st_ino == (target / "app" / "hard").stat().st_ino

    opened(reachable, work, **began(reachable))


def a_tar(*members: tuple[str, bytes, dict[str, Any]]) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as tar:
        for name, data, fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in fields.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    return into.getvalue()


LINK = {"type": tarfile.SYMTYPE, "linkname": "../../outside"}


@pytest.mark.parametrize(
    "data",
    [
        a_tar(("../out", b"x", {})),
        a_tar(("a/../../out", b"x", {})),
        a_tar(("way", b"", LINK), ("way/out", b"x", {})),
        a_tar(("way", b"", {**LINK, "linkname": "/tmp"}), ("way/out", b"x", {})),
        a_tar(("big", b"x" * 2000, {})),
        b"no tar",
        b"",
    ],
    ids=["above", "above from inside", "by a link", "by an absolute link", "too large", "no tar", "nothing"],
)
def test_a_tar_that_leads_out_or_is_too_large_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "inner" / "layer").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    with pytest.raises((OSError, ValueError, tarfile.TarError)):
        unpack_layer(data, tmp_path / "inner" / "layer", 1_000)
    assert not list(tmp_path.rglob("out"))


def test_a_tar_brings_no_devices(tmp_path: Path) -> None:
    disk = {"type": tarfile.BLKTYPE, "devmajor": 8, "devminor": 0}
    unpack_layer(a_tar(("disk", b"", disk), ("a", b"x", {})), tmp_path, 1_000)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_looked_at_is_bounded(tmp_path: Path) -> None:
    layer, image = tmp_path / "layer", tmp_path / "image"
    image.mkdir()
    (layer / "many").mkdir(parents=True)
    for number in range(700):
        (layer / "many" / str(number)).touch()
    with open(layer / "sparse", "wb") as file:
        file.truncate(1 << 40)
    began = time.process_time()
    found = compare(layer, [("", image)], shows=True)
    assert (len(found), found[-1]["kind"]) == (501, "more")
    assert next(one for one in found if one["path"] == "/sparse")["sha256"] == ""
    with pytest.raises(ValueError, match="too large"):
        pack_layer(layer, MOST)
    assert time.process_time() - began < 5


def test_a_copy_is_of_the_same_files_and_of_so_many_folders_within_each_other(tmp_path: Path) -> None:
    app = tmp_path / "layer" / "app"
    at = app
    for _ in range(250):
        at = at / "d"
    at.mkdir(parents=True)
    (app / "a").write_text("1")
    (app / "link").symlink_to("/etc/passwd")
    os.mkfifo(app / "pipe")
    os.setxattr(app / "d", "user.overlay.opaque", b"y")
    (app / "d").chmod(0o2750)
    os.utime(app / "d", (1, 1))
    copy = copy_kept(tmp_path / "copy", ["/app"], tmp_path / "layer") / "app"
    for name in ("a", "link", "pipe"):
        assert os.lstat(copy / name).st_ino == os.lstat(app / name).st_ino
    of, was = os.lstat(copy / "d"), os.lstat(app / "d")
    assert (of.st_mode, of.st_uid, of.st_mtime) == (was.st_mode, was.st_uid, 1)
    assert os.getxattr(copy / "d", "user.overlay.opaque") == b"y"
    assert len([*copy.rglob("d")]) == 199


@pytest.mark.parametrize(("number", "is_ours"), [(errno.ENOSPC, True), (errno.EMFILE, True), (errno.EMLINK, False)])
def test_nothing_is_scored_without_files_that_this_machine_could_not_copy(
    tmp_path: Path, number: int, is_ours: bool
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "a").write_text("1")

    def fails(_: str) -> bool:
        raise OSError(number, "not copied")

    with pytest.raises(OSError, match="not copied") if is_ours else contextlib.nullcontext():
        copy_tree(tmp_path / "app", tmp_path / "copy", fails)
    assert [*(tmp_path / "copy").iterdir()] == []


def test_what_is_not_kept_stays_however_deep_and_nothing_is_taken_out_beyond_a_link(tmp_path: Path) -> None:
    app, outside = tmp_path / "first" / "app", tmp_path / "outside"
    deep = app.joinpath(*["d"] * 300)
    for folder in (deep, app / "src", app / "kept", outside):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    (app / "way").symlink_to(outside)
    (app / "inner").symlink_to("src")
    keep = ["/app/kept/", "/app/way/file", "/app/inner/file", "/app/../../outside", "/none/x", "/app/inner/../kept"]
    take_out(tmp_path / "first", keep)
    assert [(one / "file").exists() for one in (deep, app / "src", outside, app / "kept")] == [True, True, True, False]
    take_out(tmp_path / "first", ["/app/way"])
    assert ((app / "way").exists(), (outside / "file").exists()) == (False, True)


def test_no_link_on_the_way_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "way").symlink_to("a")
    (tmp_path / "end").symlink_to("a/file")
    os.mkfifo(tmp_path / "pipe")
    assert read_in(tmp_path, "a/file") == b"x"
    assert [read_in(tmp_path, name) for name in ("way/file", "end", "pipe", "a", "none/x")] == [None] * 5


def the_run(folder: Path, *options: str, then: str = "echo done", **keys: Any) -> Path:
    """A recorded run of one episode that solves its task."""
    spec = written(folder, **keys)
    held = json.loads(spec.read_text(encoding="utf-8"))
    held["oracle"] = [{"call": {"bash": {"command": f"{SOLVE}; {then}"}}}, {"say": "Done."}]
    spec.write_text(json.dumps(held), encoding="utf-8")
    assert main(["eval", str(spec), "--policy", "oracle", "-o", str(folder / "run"), *options]) == 0
    return spec


def rescored(folder: Path, spec: Path) -> Any:
    main(["rescore", str(folder / "run"), "--spec", str(spec), "-o", str(folder / "again"), "--max-invalid", "1"])
    (again,) = recorded(folder / "again")
    return again.reward.terms["solved"]


def test_a_recorded_machine_is_verified_again_without_its_commands(
    reachable: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = the_run(reachable, "--record", then="date +%N > /app/clock; cat clock")
    assert rescored(reachable, spec).value == 1.0
    spec.write_text(spec.read_text(encoding="utf-8").replace('"tests": "tests"', '"tests": "others"'), encoding="utf-8")
    (reachable / "others").mkdir()
    (reachable / "others" / "test.sh").write_text("[ -s /app/clock ] && echo 0.25 > /logs/verifier/reward.txt")
    capsys.readouterr()
    main(["rescore", str(reachable / "run"), "--spec", str(spec), "--json"])
    assert json.loads(capsys.readouterr().out)["reward"] == [1.0, 0.25]


def test_one_that_was_not_recorded_is_invalid_and_says_so(reachable: Path) -> None:  # noqa: F811
    spec = the_run(reachable)
    term = rescored(reachable, spec)
    assert (term.value, "files of the machine 'machine' were not recorded" in term.error) == (None, True)


def test_one_that_is_no_tar_any_more_is_no_number(reachable: Path) -> None:  # noqa: F811
    spec = the_run(reachable, "--record")
    for blob in (reachable / "run" / "blobs").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"x")
    main(["rescore", str(reachable / "run"), "--spec", str(spec), "-o", str(reachable / "again"), "--max-invalid", "1"])
    (again,) = recorded(reachable / "again")
    assert (again.reward.total, again.failure is not None) == (None, True)


def test_a_replay_runs_the_commands_again_and_names_what_came_out_otherwise(
    reachable: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = the_run(reachable, "--record", then="date +%N > /app/clock")
    capsys.readouterr()
    assert main(["replay", str(reachable / "run"), "--spec", str(spec)]) == 0
    assert (
        "files of machines that came out otherwise, and in how many episodes: /app/clock (1)" in capsys.readouterr().out
    )
    assert main(["replay", str(reachable / "run"), "--spec", str(spec), "--all-tools"]) == 0
    assert "otherwise" not in capsys.readouterr().out


def test_the_record_has_each_command_and_what_changed(reachable: Path) -> None:  # noqa: F811
    the_run(reachable, "--record")
    (one,) = recorded(reachable / "run")
    assert one.turns[0].results[0].details == {"status": 0, "bytes": 5}
    (changed,) = one.reward.terms["solved"].details["changed"]
    assert (changed["path"], changed["kind"], "+import sys" in changed["diff"]) == ("/app/total.py", "file", True)
    assert set(machines_of(reachable / "run")(0)) == {"machine"}


def test_a_command_that_was_cut_stays_so_where_its_files_are_put_back(reachable: Path) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        await workspace.run("echo 1 > a", 30)
        workspace.is_cut = True
        held = await workspace.pack()
        workspace.is_cut = False
        await workspace.put_back(held)
        assert (workspace.is_cut, (await workspace.run("cat a", 30)).output) == (True, b"1\n")

    opened(reachable, work)


def test_what_is_killed_half_way_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, target = tmp_path / "layer", tmp_path / "kept"
    (layer / "app").mkdir(parents=True)
    (layer / "app" / "file").write_text("content")
    killed_at_first(tmp_path, monkeypatch, "rm", "cp")
    assert (copy_kept(target, ["/app"], layer) / "app" / "file").read_text() == "content"
    remove(layer)
    assert not layer.exists()


@pytest.mark.parametrize("closed", ["/app", "/"])
def test_what_the_policy_closes_is_seen_by_the_tests_all_the_same(reachable: Path, closed: str) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        await workspace.run(f"echo x > /app/forbidden; chmod 000 /app/forbidden {closed}", 30)
        verified = await workspace.run_tests(RowTests("test -s /app/forbidden", keep=("/app",)))
        assert verified.ran.code == 0

    opened(reachable, work)


def test_what_is_excluded_is_not_kept_and_stays_in_the_layer(tmp_path: Path) -> None:
    for name in ("app/a", "app/b.o", "app/d/c.o", "app/d/x/y", "tmp/b.o"):
        (tmp_path / "layer" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "layer" / name).write_text(name)
    (tmp_path / "layer" / "app" / "l.o").symlink_to("a")
    out = ["/app/*.o", "/app/*/*.o", "/app/d/x"]
    for number, keep in enumerate((["/app"], ["/"])):
        kept = copy_kept(tmp_path / f"kept-{number}", keep, tmp_path / "layer", out)
        assert sorted(path.name for path in (kept / "app").rglob("*")) == ["a", "d"]
        assert (kept / "tmp" / "b.o").exists() == (keep == ["/"])
    assert list(copy_kept(tmp_path / "above", ["/app/d"], tmp_path / "layer", ["/app"]).iterdir()) == []
    assert list(copy_kept(tmp_path / "all", ["/"], tmp_path / "layer", ["*"]).iterdir()) == []
    assert (tmp_path / "layer" / "app" / "d" / "x" / "y").exists()


@pytest.mark.parametrize("ends", ["kill -9 $$", "exit 137"])
def test_what_is_killed_half_way_is_run_once_more(tmp_path: Path, ends: str) -> None:
    assert run_on("sh", "-c", f"mkdir mark && {ends}; echo again", at=tmp_path).stdout == b"again\n"


@pytest.mark.parametrize("is_live", [True, False])
def test_a_duplicate_has_second_names_holes_and_marks_and_no_link_is_followed(tmp_path: Path, is_live: bool) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    for folder in (source, copy):
        (folder / "d").mkdir(parents=True)
    (source / "a").write_text("1")
    os.link(source / "a", source / "b")
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "pipe")
    os.mkfifo(copy / "pipe")  # of a copy that was killed half-way
    os.truncate(os.open(source / "large", os.O_CREAT | os.O_WRONLY), 1 << 30)
    os.setxattr(source / "d", "user.overlay.opaque", b"y")
    assert duplicate(source, copy, is_live=is_live) == ""
    assert ((copy / "a").stat().st_ino, (copy / "a").read_text()) == ((copy / "b").stat().st_ino, "1")
    assert (os.readlink(copy / "link"), (copy / "large").stat().st_blocks < 100) == ("/etc/passwd", True)
    assert os.getxattr(copy / "d", "user.overlay.opaque") == b"y"


def test_a_duplicate_that_cannot_be_whole_says_so(tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("no folder")
    (tmp_path / "source").mkdir()
    assert "copy" in duplicate(tmp_path / "source", tmp_path / "copy")


def test_marks_that_have_no_room_in_another_order_are_no_full_disk(tmp_path: Path) -> None:
    """A list of who may read goes into a file's own room here, and behind its other marks in a copy."""
    (source := tmp_path / "source").mkdir()
    (source / "a").write_text("1")
    (tmp_path / "copy").mkdir()
    named = [(1, -1), *((2, user) for user in range(1, 5)), (4, -1), (16, -1), (32, -1)]
    readers = b"".join(struct.pack("<HHi", tag, 7, user) for tag, user in named)
    os.setxattr(source / "a", "system.posix_acl_access", struct.pack("<I", 2) + readers)
    for number in range(40):
        os.setxattr(source / "a", f"user.a{number:02}", b"x" * 28)
    for size in range(4_000, 0, -4):
        with contextlib.suppress(OSError):
            os.setxattr(source / "a", "user.z", b"x" * size)
            break
    duplicate(source, tmp_path / "copy")  # whole or not
    assert (tmp_path / "copy" / "a").read_text() == "1"


def test_a_look_at_a_few_files_is_short_however_many_there_are(tmp_path: Path) -> None:
    for number in range(3_000):
        (tmp_path / f"{number}").touch()
    tracemalloc.start()
    try:
        assert written_to(tmp_path, 1_000_000_000, looks=16) > 1_000_000_000
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()
    assert written_to(tmp_path, 1_000_000_000) >= 3_000_000


SIZES = {
    "small files": "for i in 1 2 3; do : > $i; done",
    "a large one": "head -c 50000 /dev/zero > large",
    "a hole": "truncate -s 1G hole; head -c 9000 /dev/zero > full",
    "second names": "head -c 70000 /dev/zero > a; ln a b; ln a c; ln -s a d; ln ../outside e",
    "names of all kinds": "mkdir -p 'x y/-z'; : > 'x y/-z/1f 2 3'; : > '$(a)'; touch 'new\nline' \"quo'te\"",
    "what is no file": "mkfifo p; ln -s /etc/passwd l",
}


@pytest.mark.parametrize("made", SIZES)
def test_programs_count_what_this_process_counts(tmp_path: Path, made: str) -> None:
    (folder := tmp_path / "layer").mkdir()
    (tmp_path / "outside").write_text("x" * 20_000)
    subprocess.run(["sh", "-ec", SIZES[made]], cwd=folder, check=True)
    size = written_to(folder, 1_000_000_000)
    assert [is_beyond(folder, most) for most in (size, size - 1)] == [False, True]


def test_without_programs_that_count_this_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "programs").mkdir()
    for name in ("sh", "unshare"):
        (tmp_path / "programs" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    (folder := tmp_path / "layer").mkdir()
    size = written_to(folder, 1_000_000_000)
    assert [is_beyond(folder, most) for most in (size, size - 1)] == [False, True]


def test_what_leads_to_the_tests_is_taken_out_of_closed_folders_too(reachable: Path) -> None:  # noqa: F811
    """Who is not root is held by the modes of the policy's folders."""
    left, aside, user = reachable / "left", reachable / "aside", os.geteuid()
    (left / "app" / "d").mkdir(parents=True)
    (left / "app" / "d" / "answer").symlink_to("/tests/expected")
    (left / "app" / "other").symlink_to("d")
    os.makedirs(left / "app" / "deep" / "/".join(["x" * 250] * 15))
    deep = os.open(left / "app" / "deep" / "/".join(["x" * 250] * 15), os.O_RDONLY)
    os.mkdir("y" * 250, dir_fd=deep)
    os.close(deep)
    for path in (reachable, left, *left.rglob("*")):
        os.chown(path, 65534 if user == 0 else user, -1, follow_symlinks=False)
    (left / "app" / "d").chmod(0o555)
    (left / "app").chmod(0o555)
    try:
        os.seteuid(65534 if user == 0 else user)
        unlink_hidden([left, reachable], [], aside)
    finally:
        os.seteuid(user)
    assert not os.path.lexists(left / "app" / "d" / "answer")
    assert os.readlink(left / "app" / "other") == "d"
    assert [stat.S_IMODE((left / one).stat().st_mode) for one in ("app", "app/d")] == [0o555, 0o555]
    assert len(list(aside.iterdir())) == 2
    for path in (left / "app", left / "app" / "d"):
        path.chmod(0o755)
