"""What the wheel and the source distribution hold."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import tomllib
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


THEIRS = {"RlenvTask.data", "RlenvTaskset.config"}
"""Attributes of classes of ours that their base has."""


def _taken_in_vain(text: str, unknown: set[str]) -> set[str]:
    """Attributes taken of classes with a base of `unknown` packages that they do not have, as `CLASS.NAME`.

    Of `self`, of the class, and of variables that the module asks to be instances.
    """
    nodes = list(ast.walk(ast.parse(text)))
    bases = {
        alias.asname or alias.name.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if ((node.module or "") if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0] in unknown
    }
    found: set[str] = set()
    for made in nodes:
        if not isinstance(made, ast.ClassDef) or not bases & {
            name.id for base in made.bases for name in ast.walk(base) if isinstance(name, ast.Name)
        }:
            continue
        inside = [node for node in ast.walk(made) if isinstance(node, ast.Attribute)]
        known = {node.attr for node in inside if isinstance(node.ctx, ast.Store)} | {"__dict__"}
        for node in made.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
            known |= {str(getattr(target, "id", getattr(target, "name", ""))) for target in targets}
        calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"]
        names = {made.name, *(ast.unparse(call.args[0]) for call in calls if ast.unparse(call.args[1]) == made.name)}
        taken = [node for node in inside if ast.unparse(node.value) == "self"]
        taken += [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names]
        found |= {f"{made.name}.{node.attr}" for node in taken if node.attr not in known}
    return found


def test_classes_with_a_base_of_another_package_have_what_our_code_takes_of_them() -> None:
    """mypy does not know the base, and lets every name pass."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    unknown = {
        name.partition(".")[0] for entry in overrides if "ignore_missing_imports" in entry for name in entry["module"]
    }
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in sorted(kept("trainers")) if name.endswith(".py")]
    assert {one for text in texts for one in _taken_in_vain(text, unknown)} == THEIRS
    (group,) = [text for text in texts if "class RlenvGroup(" in text]
    renamed = group.replace("def add_late_reward(", "def late_reward(").replace("def _total(", "def _sum(")
    assert _taken_in_vain(renamed, unknown) == {"RlenvEnv.add_late_reward", "RlenvEnv._total"}
