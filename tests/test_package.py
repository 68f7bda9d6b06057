"""What the wheel and the source distribution hold."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import rlenv

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str], str]:
    """The names in the wheel, those in the source distribution, and the wheel's metadata."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"rlenv-{rlenv.__version__}.dist-info/METADATA").decode()
    with tarfile.open(source) as tarball:
        return names, {name.partition("/")[2] for name in tarball.getnames()}, metadata


OURS = ("rlenv_hosts", "rlenv_inspect", "rlenv_train", "rlenv_trl", "rlenv_verifiers", "rlenv_verl")
PACKAGES = [f"trainers/{name}" for name in OURS]


def kept(*folders: str) -> set[str]:
    """The files of the repository below these folders."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no clone")
    return set(listed.stdout.splitlines())


def test_a_name_that_is_gone_says_the_new_one() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Sampling'; it is rlenv\.SamplingSpec now"):
        rlenv.Sampling  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'Samplin'$"):
        rlenv.Samplin  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trainers/rlenv_verifiers/__init__.py", ["RlenvHarness", "RlenvTaskset"]),
        ("rlenv/hosts/folders/verifiers.txt", ["RlenvHarness", "SpecTaskset"]),
    ],
)
def test_what_verifiers_loads_lists_its_taskset_and_its_harness(name: str, expected: list[str]) -> None:
    """It takes a package's classes from `__all__` alone, and refuses a package without it."""
    tree = ast.parse((ROOT / name).read_text())
    lists = [one for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"]
    assert [ast.literal_eval(one.value) for one in lists] == [expected]
    assert set(expected) - {"RlenvHarness"} <= {one.name for one in tree.body if isinstance(one, ast.ClassDef)}


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_the_shipped_specs_and_nothing_else(
    built: tuple[set[str], set[str], str],
) -> None:
    names, _, _ = built
    packages = {name.removeprefix("trainers/") for name in kept("rlenv", *PACKAGES)}
    specs = {f"rlenv/{name}" for name in kept("specs")}
    assert {name for name in names if ".dist-info/" not in name} == packages | specs


@pytest.mark.slow
def test_the_source_distribution_holds_what_the_tests_need(built: tuple[set[str], set[str], str]) -> None:
    _, names, _ = built
    assert kept("rlenv", "trainers", "specs", "schemas", "tests", "docs", "examples", "requirements") <= names
    assert {"Makefile", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"} <= names


@pytest.mark.slow
def test_the_metadata_has_the_version_of_the_module(built: tuple[set[str], set[str], str]) -> None:
    _, _, metadata = built
    assert f"\nVersion: {rlenv.__version__}\n" in metadata
