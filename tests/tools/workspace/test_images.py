"""Images: what is unpacked of a folder, a .tar and an image of podman's, and that a run fetches none."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.episodes.environment import load
from rlenv.errors import ResourceError, UsageError
from rlenv.runs.locks.lock import lock_of
from rlenv.tools.workspace.images import digest_of_image, prepare_image, user_in
from rlenv.tools.workspace.starters import OUTSIDE_ROOT
from tests.support.machines import played, reachable  # noqa: F401 - a fixture

PASSWD = "root:x:0:0:root:/root:/bin/sh\njoe:x:1000:1001::/home/joe:/bin/sh\n"


def packed(path: Path, *members: tuple[str, bytes, int, bytes | str]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, kind, mode, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.uid, member.mtime, member.devmajor = kind, mode, 7, 1_000, 1
            if isinstance(content, str):
                member.linkname = content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def test_a_tar_is_unpacked_with_owners_modes_times_and_links(reachable: Path) -> None:  # noqa: F811
    archive = packed(
        reachable / "image.tar",
        ("closed", tarfile.DIRTYPE, 0o555, b""),
        ("closed/file", tarfile.REGTYPE, 0o4755, b"content"),
        ("hard", tarfile.LNKTYPE, 0o644, "closed/file"),
        ("soft", tarfile.SYMTYPE, 0o777, "/etc/none"),
        ("null", tarfile.CHRTYPE, 0o666, b""),
    )
    image = prepare_image(archive)
    file = (image.folder / "closed" / "file").stat()
    assert (file.st_mode & 0o7777, file.st_mtime, file.st_nlink) == (0o4755, 1_000, 2)
    assert (image.folder / "closed").stat().st_mode & 0o7777 == 0o555
    assert os.readlink(image.folder / "soft") == "/etc/none"
    assert not (image.folder / "null").exists()
    assert os.geteuid() != 0 or file.st_uid == OUTSIDE_ROOT + 7
    assert prepare_image(archive) == image


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (("manifest.json", tarfile.REGTYPE, 0o644, b"[]"), "podman load -i"),
        (("oci-layout", tarfile.REGTYPE, 0o644, b"{}"), "podman load -i"),
        (("out", tarfile.LNKTYPE, 0o644, "../../../../../../etc/passwd"), "leads out"),
        (("out", tarfile.LNKTYPE, 0o644, "/etc/passwd"), "leads out"),
        (("../../out", tarfile.REGTYPE, 0o644, b""), "leads out"),
    ],
)
def test_a_tar_that_is_no_image_is_refused(
    reachable: Path,  # noqa: F811
    member: tuple[str, bytes, int, bytes | str],
    says: str,
) -> None:
    with pytest.raises(ResourceError, match=says):
        prepare_image(packed(reachable / "image.tar", member))


def test_a_digest_is_of_the_files_and_not_of_their_place(reachable: Path) -> None:  # noqa: F811
    for name in ("a", "b"):
        (reachable / name / "bin").mkdir(parents=True)
        (reachable / name / "bin" / "sh").write_text("x")
        (reachable / name / "link").symlink_to("/proc/self/mounts")
    assert digest_of_image(reachable / "a") == digest_of_image(reachable / "b") == prepare_image(reachable / "a").digest
    (reachable / "b" / "bin" / "sh").chmod(0o700)
    assert digest_of_image(reachable / "a") != digest_of_image(reachable / "b")


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("0", ("0", "0", "root", "/root")),
        ("joe", ("1000", "1001", "joe", "/home/joe")),
        ("1000", ("1000", "1001", "joe", "/home/joe")),
        ("joe:staff", ("1000", "50", "joe", "/home/joe")),
        ("7:8", ("7", "8", "", "/")),
        ("ann", None),
        ("joe:none", None),
        ("\u00b2", None),
        ("1" * 5000, None),
        ("joe:odd", None),
        ("odd", None),
        ("odder", None),
    ],
)
def test_a_user_is_one_of_the_images(tmp_path: Path, user: str, expected: tuple[str, ...] | None) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text(f"{PASSWD}\nodd:x:7Q:7::/:\nodder:x:7:7Q::/:\n")
    (tmp_path / "etc" / "group").write_text("staff:x:50:\nodd:x:5Q:\n")
    if expected is None:
        with pytest.raises(ResourceError, match="has no user"):
            user_in(tmp_path, user)
    else:
        assert user_in(tmp_path, user) == expected


def test_root_is_there_without_any_list_of_users(tmp_path: Path) -> None:
    assert user_in(tmp_path, "root")[::3] == ("0", "/root")


SPEC = {
    "rlenv": 1,
    "name": "small",
    "tasks": {"test": {"rows": [{"id": "a"}]}},
    "prompt": {"user": "Say who you are."},
    "resources": {"machine": {"kind": "workspace", "image": "images/{{ task.id }}"}},
    "tools": {"bash": {"kind": "bash", "resource": "machine"}},
    "rewards": {"right": {"kind": "workspace", "resource": "machine", "command": "test -e here", "by": "status"}},
}


def written(folder: Path, dockerfile: str) -> Path:
    (folder / "images" / "a").mkdir(parents=True)
    (folder / "images" / "a" / "Dockerfile").write_text(dockerfile)
    (folder / "env.yaml").write_text(json.dumps(SPEC), encoding="utf-8")
    return folder / "env.yaml"


@pytest.mark.sandbox
@pytest.mark.parametrize("command", [["eval", "--policy", "random"], ["validate"]])
def test_a_run_finds_its_images_or_does_not_begin(
    reachable: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    spec = written(reachable, "FROM scratch\n")
    assert main([command[0], str(spec), *command[1:]]) != 0
    said = capsys.readouterr()
    assert "'images/a' has not been built on this machine; fetch and build what the spec names: rlenv images SPEC" in (
        said.err + said.out
    )


@pytest.mark.sandbox
def test_an_image_is_built_once_with_its_folder_user_and_variables(
    reachable: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    busybox = shutil.which("busybox")
    if shutil.which("podman") is None or busybox is None or os.geteuid() != 0:
        pytest.skip("needs podman and busybox-static, as root")
    folder = reachable / "images" / "a"
    spec = written(
        reachable,
        "FROM scratch\nCOPY . /\nCOPY --chown=1000 etc /srv/x\nENV WORD='a b' PATH=/bin\nWORKDIR /srv/x\n"
        'SHELL ["/bin/sh", "-c", "echo -c \\"$0\\" > /said"]\nRUN id\nUSER joe\n',
    )
    (folder / "bin").mkdir()
    shutil.copy2(busybox, folder / "bin" / "busybox")
    for name in ("sh", "echo", "id", "touch", "mkdir", "test", "cat"):
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "etc").mkdir()
    (folder / "etc" / "passwd").write_text(PASSWD)
    assert main(["images", str(spec)]) == 0
    image = prepare_image(folder)
    try:
        assert main(["validate", "--images", str(spec)]) == 0
        assert "1 of 1 images are ready" in capsys.readouterr().out
        trajectory, said = played(spec, ["echo $PWD $WORD $HOME; id; touch /srv/x/here"])
        assert (said, trajectory.reward.total) == (["/srv/x a b /home/joe\nuid=1000(joe) gid=1001 groups=1001"], 1.0)
        assert (image.folder / "said").read_text() == "-c id\n"  # by the image's own SHELL
        assert (image.user, image.workdir, image.env["WORD"]) == ("joe", "/srv/x", "a b")
        assert lock_of(load(spec)).resources["machine"]["files"] == {"images/a": image.digest}
    finally:
        subprocess.run(["podman", "rmi", "--force", image.folder.name[:32]], capture_output=True, check=True)


@pytest.mark.sandbox
def test_a_row_whose_image_may_not_be_read_is_told_and_the_others_go_on(
    reachable: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = written(reachable, "FROM scratch\n")
    rows = [{"id": "b", "image": "../outside"}, {"id": "a", "image": ""}]
    machine = {"kind": "workspace", "image": "{{ task.image }}"}
    held = {**SPEC, "tasks": {"test": {"rows": rows}}, "resources": {"machine": machine}}
    spec.write_text(json.dumps(held), encoding="utf-8")
    assert main(["images", str(spec)]) == 1
    said = capsys.readouterr()
    assert "lacks the image of task 'b': " in said.err
    assert "1 of 2 images are ready" in said.out


def test_what_podman_has_to_fetch_is_no_path() -> None:
    with pytest.raises(UsageError, match="has not been fetched"):
        prepare_image("podman:localhost/none:1")
    assert digest_of_image("podman:localhost/none:1") == "unreadable"
