"""The Makefile takes the Python that it is told to, and its demo a folder that is free."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLACES = sorted(set(re.findall(r"^(\w*VENV) \?= ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)))
OF_MAKE = {"PYTHON", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
"""What a `make test` that runs these tests has set."""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(
    place: str, folder: Path, *words: str, is_ready: bool = True, **asked: str
) -> subprocess.CompletedProcess[str]:
    """Asks make for the environment in `folder`, and says that its Python is 3.1; its pip installs nothing."""
    (folder / "bin").mkdir(exist_ok=True)
    pip = folder / "bin" / "pip"
    pip.write_text("#!/bin/sh\n", encoding="utf-8")
    pip.chmod(0o755)
    python = folder / "bin" / "python"
    python.write_text("#!/bin/sh\necho 3.1\n", encoding="utf-8")
    python.chmod(0o755)
    if is_ready:
        (folder / ".ready").touch()
    environment = {name: value for name, value in os.environ.items() if name not in OF_MAKE} | asked
    command = ["make", "-C", str(ROOT), f"{folder}/.ready", f"{place}={folder}", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_there_are_four_environments() -> None:
    assert PLACES == ["CORE_VENV", "DOCS_VENV", "VENV", "VLLM_VENV"]


@pytest.mark.parametrize("place", PLACES)
def test_an_environment_of_another_python_than_the_one_asked_for_is_refused(place: str, tmp_path: Path) -> None:
    of_this = f"{sys.version_info.major}.{sys.version_info.minor}"
    said = f"{tmp_path} was made with Python 3.1, and PYTHON={sys.executable} is {of_this}; remove it"
    for done in (
        make(place, tmp_path, f"PYTHON={sys.executable}"),
        make(place, tmp_path, PYTHON=sys.executable),
    ):
        assert done.returncode != 0
        assert said in done.stdout


@pytest.mark.parametrize("place", PLACES)
def test_an_environment_of_the_python_asked_for_is_taken_as_it_is(place: str, tmp_path: Path) -> None:
    assert make(place, tmp_path).returncode == 0
    assert make(place, tmp_path, f"PYTHON={tmp_path}/bin/python").returncode == 0


@pytest.mark.parametrize("place", PLACES)
def test_an_environment_keeps_its_python_when_the_pins_change(place: str, tmp_path: Path) -> None:
    done = make(place, tmp_path, is_ready=False)
    assert (done.returncode, (tmp_path / ".ready").exists()) == (0, True), done.stderr
    assert (tmp_path / "bin" / "python").read_text(encoding="utf-8").endswith("echo 3.1\n")
    assert not (tmp_path / "pyvenv.cfg").exists()


def test_a_python_that_is_not_there_is_not_passed_over(tmp_path: Path) -> None:
    assert make("VENV", tmp_path, f"PYTHON={tmp_path}/none").returncode != 0


def test_a_demo_may_be_run_again(tmp_path: Path) -> None:
    free = runpy.run_path(str(ROOT / "examples" / "demo.py"))["free"]
    for name in ("demo", "demo-2", "demo-3"):
        assert free(tmp_path / "demo") == tmp_path / name
        (tmp_path / name).mkdir()
