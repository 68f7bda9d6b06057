"""Runs the attack tests once more as a user without any rights, where the present one is root.

    python tests/attack/as_user.py [pytest's arguments]

What holds for root need not hold for anybody else, nor the other way round: sandboxes are set up in another way, files
of root cannot be read, and no limit is lifted. The tests run from a copy of the checkout that the user can read and
not write, with a home and a folder for temporary files of the user's own. An interpreter that the user cannot reach (a
clone below a closed folder) is copied too, without the packages of the trainers. Nothing is mounted, nothing outside
of one fresh folder is written, and that folder is left where it is if anything is mounted in it. The exit code is
pytest's.
"""

# ruff: noqa: T201 - a command, which says what it does

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
USER = 65534  # `nobody` on every system, whether it has an entry for it or not
PARTS = ("benchmarks", "docs", "examples", "rlenv", "schemas", "specs", "tests", "trainers", "pyproject.toml")
NEEDED = "import pytest, pydantic, jinja2, yaml"
TRAINERS = ("nvidia", "ray", "torch", "torchgen", "triton", "verl", "vllm", "wandb")
PROBE_S = 60


def opened(path: Path) -> Path:
    """A new folder that everybody can read and only the present user can write."""
    path.mkdir(exist_ok=True)
    path.chmod(0o755)
    return path


def owned(path: Path) -> Path:
    """A new folder of the other user's."""
    path.mkdir()
    os.chown(path, USER, USER)
    return path


def copy(source: Path, target: Path, *, without: Iterable[str] = ()) -> None:
    """Copies a file or a folder so that everybody can read it."""
    left_out = shutil.ignore_patterns("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", *without)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=left_out, copy_function=shutil.copy)
    elif source.exists():
        shutil.copy(source, target)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink() and path.exists():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))


def as_user(argv: list[str], folder: Path, environment: Mapping[str, str], **options: Any) -> int:
    """The exit code of a program that the other user runs; -1 where it cannot even be started."""
    try:
        return subprocess.run(
            argv, cwd=folder, env=environment, user=USER, group=USER, extra_groups=[], umask=0o022,
            stdin=subprocess.DEVNULL, check=False, **options,
        ).returncode  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the other user cannot run {argv[0]}: {error}", flush=True)
        return -1


def environment_of(own: Path, checkout: Path) -> dict[str, str]:
    """Variables that name nothing of the present user's."""
    folders = {"HOME": "home", "TMPDIR": "tmp", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config",
               "XDG_DATA_HOME": "data", "XDG_RUNTIME_DIR": "runtime", "XDG_STATE_HOME": "state"}  # fmt: skip
    return {
        **{name: str(owned(own / folder)) for name, folder in folders.items()},
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "USER": "nobody",
        "LOGNAME": "nobody",
        "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'trainers'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def interpreter(folder: Path, checkout: Path, environment: Mapping[str, str]) -> str:
    """An interpreter with the packages that the other user can run: the present one, or a copy; "" without one."""

    def runs(python: str) -> bool:
        return as_user([python, "-c", NEEDED], checkout, environment, timeout=PROBE_S) == 0

    if runs(sys.executable):
        return sys.executable
    prefix = folder / "venv"
    print(f"the other user cannot run {sys.executable}: copying {sys.prefix}", flush=True)
    copy(Path(sys.prefix), prefix, without=TRAINERS)
    copied = str(prefix / Path(sys.executable).relative_to(sys.prefix))
    return copied if sys.prefix != sys.base_prefix and runs(copied) else ""


def is_mounted_on(folder: Path) -> bool:
    """Whether anything is mounted in `folder`."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    return any(Path(mount).is_relative_to(folder) for mount in mounts)


def main(arguments: list[str]) -> int:
    """Runs the tests as the other user."""
    if os.geteuid() != 0:
        print("attack tests as another user: left out, the present user is not root", flush=True)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    try:
        checkout = opened(opened(folder) / "checkout")
        for part in PARTS:
            copy(ROOT / part, checkout / part)
        environment = environment_of(opened(folder / "own"), checkout)
        python = interpreter(folder, checkout, environment)
        if not python:
            print(
                f"\nATTACK TESTS AS ANOTHER USER: SKIPPED. The user {USER} can run neither {sys.executable} nor a copy "
                f"of it; its base {sys.base_prefix} must be readable for everybody.\n",
                flush=True,
            )
            return 0
        print(f"attack tests as the user {USER}, by {python}", flush=True)
        return as_user(
            [python, "-m", "pytest", "-p", "no:cacheprovider", "tests/attack", *arguments], checkout, environment
        )
    finally:
        if is_mounted_on(folder):
            print(f"something is mounted in {folder}: left where it is", flush=True)
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
