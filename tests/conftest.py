"""What tests of whole environments share."""

from __future__ import annotations

import gc
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rlenv import secrets
from rlenv.concurrency.deadline import paused_for
from rlenv.episodes.environment import Environment, load
from tests.support import data
from tests.support.environments import BASE, Make
from tests.support.suites import first_of_many

# The same examples in every run, and no clock in the verdict.
settings.register_profile("rlenv", deadline=None, derandomize=True)
settings.load_profile("rlenv")


PLAYED_BY = {
    "browser": "make test-browser",
    "peers": "make test-peers",
    "real_data": "make test-real",
    "sandbox": "make test-sandbox",
    "servers": "make test-servers",
    "shared_data": "make test-data",
    "slow": "make test-all",
    "verl_runs": "make test-verl",
    "vllm": "make test-vllm",
}
"""The suites of other make targets, by their marks: `-m` has to name the mark of a test, or it is left out."""
_SUITES = {"real": "real_data", "verl_runs": "verl_runs", "vllm_runs": "vllm", "vllm_serve": "vllm"}
"""Folders whose conftest imports what most environments lack, and the marks that ask for them."""


def _marks(config: pytest.Config) -> set[str]:
    """The marks that -m names."""
    return set(re.findall(r"\w+", config.option.markexpr))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the suites of other make targets unless -m names them: to collect them is to import a trainer."""
    is_suite = collection_path.parent == Path(__file__).parent and collection_path.name in _SUITES
    return True if is_suite and _SUITES[collection_path.name] not in _marks(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the suites of other make targets out unless -m names them; `_left_out` are their tests by mark."""
    named = PLAYED_BY.keys() & _marks(config)
    kept = first_of_many(items) if "slow" not in named else set()
    for mark in sorted(PLAYED_BY.keys() - named):
        others = [item for item in items if item.get_closest_marker(mark) and not (mark == "slow" and item in kept)]
        if mark == "slow":  # what needs a program and is slow too is played by the suite that has the program
            others = [item for item in others if not any(item.get_closest_marker(one) for one in named)]
        if others:
            config.hook.pytest_deselected(items=others)
            config.stash.setdefault(_left_out, {})[mark] = len(others)
            gone = set(others)
            items[:] = [item for item in items if item not in gone]


_left_out = pytest.StashKey[dict[str, int]]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells what it has left out; all have left out the same."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(_left_out, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker has told."""
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get("left_out", {})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Names what was left out, and the command that plays it."""
    for mark, count in config.stash.get(_left_out, {}).items():
        terminalreporter.write_line(f"left out: {count} tests of the suite {mark}; play them with `{PLAYED_BY[mark]}`")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lets tests with the mark, and no others, read what lies outside of the checkout."""
    data.let(is_let=item.get_closest_marker("shared_data") is not None)


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has given out is redacted for its life; a test sees its own values alone, in whatever order."""
    monkeypatch.setattr(secrets, "_known", secrets._Known())


@pytest.fixture(autouse=True)
def _short_pauses() -> Iterator[None]:
    """A server that is asked again and again is asked without long pauses."""
    with paused_for(0.02):
        yield


@pytest.fixture
def whole_pauses(_short_pauses: None) -> Iterator[None]:
    """Pauses between tries as they are outside of tests."""
    with paused_for(1.0):
        yield


@pytest.fixture
def make_environment(tmp_path: Path) -> Make:
    """Compiles a spec: the base above, another text, functions in tools.py, overrides."""

    def make(text: str = BASE, *, tools: str = "", **overrides: Any) -> Environment:
        (tmp_path / "spec.yaml").write_text(textwrap.dedent(text), encoding="utf-8")
        if tools:
            (tmp_path / "tools.py").write_text(textwrap.dedent(tools), encoding="utf-8")
        return load(tmp_path / "spec.yaml", set={key.replace("__", "."): value for key, value in overrides.items()})

    return make


def pytest_configure() -> None:
    """Collecting makes a million objects, of which hardly any is garbage: looking for it took a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Takes what collecting has made out of the garbage collector's sight.

    Ten thousand tests are a million objects, and each full collection walks them all: half a second of CPU time in
    the middle of a test that measures its own.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> Iterator[None]:
    """The same after each file of tests, for what they have imported and keep in caches."""
    yield
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Gives it back, so that what other libraries count at the end is freed."""
    gc.unfreeze()
