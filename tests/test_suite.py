"""The rules of the tests themselves: where they stand, what they import, what they read, what they wait for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.suites import first_of_many

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
FILES = sorted(path for path in TESTS.rglob("*.py") if "servers" not in path.parts)
NAMES = [str(path.relative_to(TESTS)) for path in FILES]


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """All nodes of a file; to walk and to unparse the tests' million of them takes seconds each time."""
    return tuple(ast.walk(ast.parse((TESTS / name).read_text(encoding="utf-8"))))


def dotted(node: ast.AST) -> str:
    """`a.b.c` of such a name, and "" of what is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (holder := dotted(node.value)):
        return f"{holder}.{node.attr}"
    return ""


def imported(name: str) -> Iterator[str]:
    """The modules of tests/ that a file imports, as paths."""
    for node in nodes(name):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
            folder = (node.module or "").split(".")[1:]
            for alias in node.names:
                whole = [*folder, alias.name]
                is_module = (TESTS / Path(*whole)).with_suffix(".py").is_file()
                yield "/".join(whole if is_module else folder) + ".py"
        elif isinstance(node, ast.Import):
            yield from (one.name.replace(".", "/")[6:] + ".py" for one in node.names if one.name.startswith("tests."))


# Nothing outside of the checkout


def _outside(name: str) -> Iterator[str]:
    depth = len(Path("tests", name).parts) - 1
    for node in nodes(name):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
            index = node.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, int) and index.value > depth:
                yield f"{name}:{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Attribute) and node.attr == "parent":
            inner = ast.unparse(node.value)
            if inner == "ROOT" or inner.endswith(f".parents[{depth}]"):
                yield f"{name}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.slow
def test_no_file_names_a_place_outside_of_the_checkout() -> None:
    """What others made is asked for by `tests.support.data`, under a mark."""
    assert [place for name in NAMES for place in _outside(name)] == []


def test_what_lies_outside_is_read_by_its_own_suite_alone() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-m shared_data" in makefile
    readers = {name for name in NAMES if "RLENV_DATA" in (TESTS / name).read_text(encoding="utf-8")}
    assert readers == {
        "support/data.py", "support/real.py", "real/test_templates.py", "specs/test_benchmarks.py", "test_suite.py",
        "verl_runs/qwen3.py", "verl_runs/test_histories.py",
    }  # fmt: skip


# Tests import no tests

IMPORTS_TESTS = {
    "trainers/estimators/test_episode_rows.py",
    "trainers/loop/test_partial_rollouts.py",
    "trainers/run/test_history_key.py",
}
IMPORTS_CONFTEST = {
    "attack/test_self_masking.py",
    "trainers/charts.py",
    "trainers/cpu/test_vision.py",
    "trainers/export/test_checkpoints.py",
    "trainers/export/test_lora.py",
    "trainers/hf/test_policy.py",
    "trainers/loop/test_agent_loop.py",
    "trainers/loop/test_history.py",
    "trainers/loop/test_images.py",
    "trainers/loop/test_partial_rollouts.py",
    "trainers/loops.py",
    "trainers/rehearse/test_command.py",
    "trainers/rehearse/test_loop.py",
    "trainers/run/test_prompts.py",
    "trainers/runs.py",
    "trainers/settings/test_masking.py",
    "vllm_serve/test_agreement.py",
    "vllm_serve/test_askers.py",
    "vllm_serve/test_defaults.py",
    "vllm_serve/test_faults.py",
}
"""What is left: these two lists only get shorter. A helper that two files use belongs in tests/support."""


def test_tests_import_no_tests() -> None:
    found = {name for name in NAMES for one in imported(name) if Path(one).name.startswith("test_")}
    assert found == IMPORTS_TESTS


def test_tests_import_no_conftest() -> None:
    found = {name for name in NAMES for one in imported(name) if Path(one).name == "conftest.py"}
    assert found == IMPORTS_CONFTEST


# Nothing of our own is replaced

REPLACED = {
    "conftest.py": "what a process has given out is forgotten between two tests, and by nobody else",
    "attack/test_hub.py": "a million rows, gigabytes of text and ten minutes are what it takes to reach the limits",
    "attack/test_sql_episodes.py": "the share of a call's time that a statement has of the CPU, which is seconds",
    "attack/test_terminal.py": "no command can be brought to raise each kind of error",
}
"""What is left, and why: this list only gets shorter. Other code takes what it stands on as an argument."""
_OURS = {"rlenv", "rlenv_hosts", "rlenv_inspect", "rlenv_train", "rlenv_trl", "rlenv_verifiers", "rlenv_verl"}
_PATCHES = {"setattr", "setitem", "delattr", "delitem", "patch"}


def _last(node: ast.AST) -> str:
    """The last part of a dotted name, of whatever it is an attribute of."""
    return node.attr if isinstance(node, ast.Attribute) else dotted(node)


def _patches(node: ast.AST) -> bool:
    """True for `patch.object` and its like."""
    return isinstance(node, ast.Attribute) and _last(node.value) == "patch"


def _replaced(name: str) -> Iterator[str]:
    """Where an attribute of a module or a class of ours is set or taken away."""
    ours: set[str] = set()
    for node in nodes(name):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _OURS:
            ours |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            known = (alias for alias in node.names if alias.name.split(".")[0] in _OURS)
            ours |= {alias.asname or alias.name.split(".")[0] for alias in known}
    for node in nodes(name):
        if isinstance(node, ast.Call) and (_last(node.func) in _PATCHES or _patches(node.func)):
            holders = node.args[:1]
        elif isinstance(node, ast.Assign):
            holders = [one.value for one in node.targets if isinstance(one, ast.Attribute)]
        else:
            continue
        for holder in holders:
            text = holder.value if isinstance(holder, ast.Constant) else None
            names, whole = (_OURS, text) if isinstance(text, str) else (ours, ast.unparse(holder))
            if whole.split(".")[0] in names:
                yield f"{name}:{node.lineno}: {ast.unparse(node)}"


def test_our_own_code_is_not_replaced() -> None:
    """A test that replaces a part of ours says nothing of it, and no longer of the whole once the part has moved."""
    found = {name: list(_replaced(name)) for name in NAMES}
    wrong = [place for name, places in found.items() if name not in REPLACED for place in places]
    assert wrong == []
    assert {name for name, places in found.items() if places} == REPLACED.keys()


# The tests of rlenv/X/Y.py stand in tests/X/test_Y.py, those of a folder's own file in tests/X/test_X.py


def _modules() -> set[str]:
    found = (path.relative_to(ROOT / "rlenv") for path in (ROOT / "rlenv").rglob("*.py"))
    named = (path.with_name(f"{path.parent.name}.py") if path.name == "__init__.py" else path for path in found)
    return {str(path.with_name(path.name.lstrip("_"))) for path in named if path.name != "__main__.py"}


def test_every_test_file_has_a_module_of_its_name_or_stands_in_the_list() -> None:
    """A reader of rlenv/X/Y.py finds its tests in tests/X/test_Y.py; the folder that X is split over counts too."""
    modules = _modules()
    packages = {str(Path(one).parent) for one in modules}
    odd = set()
    for name in NAMES:
        path = Path(name)
        if not path.name.startswith("test_") or path.parts[0] in SUITES or name in RULES:
            continue
        of = str(path.with_name(path.name.removeprefix("test_")))
        if of not in modules and str(Path(of).with_suffix("")) not in packages:
            odd.add(name)
    left = {str(Path(one).with_name(f"test_{Path(one).name}.py")) for one in WITHOUT_MODULE}
    assert odd == left, "WITHOUT_MODULE only gets shorter"


SUITES = {"attack", "peers", "real", "specs", "trainers", "verl_runs", "vllm_runs", "vllm_serve"}
"""Folders that follow another order: attacks, shipped specs, the adapter and its runs."""
RULES = {
    "test_contributing.py",
    "test_docs.py",
    "test_layers.py",
    "test_makefile.py",
    "test_new_family.py",
    "test_package.py",
    "test_security_page.py",
    "test_sizes.py",
    "test_suite.py",
    "test_third_party.py",
    "web/test_browser.py",
}
"""What is said of the repository and not of a module, or of what is not Python: the viewer's page."""
WITHOUT_MODULE = """
    audit/judge_audit calls/parts calls/policies calls/tape_options
    cut_turns dialects/broken_calls dialects/chat_template dialects/contract dialects/cut_calls dialects/documented
    dialects/formats dialects/hermes_parse dialects/hermes_render dialects/idle_keys dialects/inline
    dialects/own_templates dialects/prompt_examples dialects/recorded_cases dialects/refused_values dialects/same_turn
    dialects/tagged_families dialects/templates dialects/total endings hosts/every_face models/places policies/raw_text
    report_by resources/isolation resources/sql/databases rewards/adversaries rewards/composition rewards/math_and_sql
    rewards/own_functions rewards/presets rewards/search_presets rewards/skyrl_synsql search_r1 structured_calls
    testing/built_in tokens/agreement tokens/exactness tokens/families tokens/identity tokens/renderers
    tokens/same_turn tools/hostile_code tools/mcp_http tools/mcp_pin tools/mcp_real tools/python_process
""".split()


# The suites of other make targets

MARKED = {"real": "real_data", "verl_runs": "verl_runs", "vllm_runs": "vllm", "vllm_serve": "vllm"}


@pytest.mark.parametrize(("folder", "mark"), MARKED.items())
def test_a_suite_is_collected_where_its_mark_is_named_alone(
    folder: str, mark: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its conftest imports a trainer, which the environment of `make core` lacks: deselecting would be too late."""

    def is_left_out(markexpr: str) -> bool:
        monkeypatch.setattr(pytestconfig.option, "markexpr", markexpr)
        return bool(pytestconfig.hook.pytest_ignore_collect(collection_path=TESTS / folder, config=pytestconfig))

    assert [is_left_out(one) for one in ("", "verl", f"{mark}_more", mark, f"verl or {mark}")] == [True] * 3 + [
        False
    ] * 2
    tests = [name for name in NAMES if name.startswith(f"{folder}/test_")]
    assert tests
    assert [name for name in tests if f"mark.{mark}" not in (TESTS / name).read_text(encoding="utf-8")] == []


# Nothing bets on a clock

REAL_RUNS = {"verl_runs/test_judge.py", "verl_runs/test_sft.py", "vllm_serve/test_faults.py"}
"""Suites of their own, which start real trainers and servers and look at how long those take."""
_CLOCK = re.compile(r"time\.(monotonic|time|perf_counter)(_ns)?|.*loop(\(\))?\.time|.*datetime\.now")
_CLOCKS = {"monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "perf_counter_ns", "now"}
"""The last part of what the pattern matches."""
_SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep"}


def _calls(among: Iterable[ast.AST], names: set[str]) -> list[ast.Call]:
    return [one for one in among if isinstance(one, ast.Call) and dotted(one.func) in names]


def _fixed_waits(name: str) -> Iterator[str]:
    loops = (node for node in nodes(name) if isinstance(node, (ast.While, ast.For, ast.AsyncFor)))
    polled = {id(call) for loop in loops for call in _calls(ast.walk(loop), _SLEEPS)}
    for call in _calls(nodes(name), _SLEEPS):
        if id(call) not in polled and ast.unparse(call.args[0]) != "0":
            yield f"{name}:{call.lineno}: {ast.unparse(call)}"


def _tells_time(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or _last(node.func) not in _CLOCKS:
        return False
    return _CLOCK.fullmatch(ast.unparse(node.func)) is not None


def _timed(name: str) -> Iterator[str]:
    """Where a time that the clock told is taken off another, or held against a time to come outside of a loop."""
    told, due = set[str](), set[str]()
    for node in nodes(name):
        if isinstance(node, ast.Assign) and any(map(_tells_time, ast.walk(node.value))):
            kept = told if _tells_time(node.value) else due
            kept.update(ast.unparse(target) for target in node.targets)

    def is_told(node: ast.AST) -> bool:
        return _tells_time(node) or (bool(told) and ast.unparse(node) in told)

    def is_due(node: ast.AST) -> bool:
        return (bool(due) and ast.unparse(node) in due) or (
            isinstance(node, ast.BinOp) and any(map(is_told, ast.walk(node)))
        )

    loops = [node for node in nodes(name) if isinstance(node, (ast.While, ast.For, ast.AsyncFor))]
    polled = {id(one) for loop in loops for one in ast.walk(loop)}
    for node in nodes(name):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            is_bet = any(map(is_told, ast.walk(node)))
        elif isinstance(node, ast.Compare) and id(node) not in polled:
            sides = [node.left, *node.comparators]
            is_bet = any(map(_tells_time, sides)) and any(map(is_due, sides))
        else:
            continue
        if is_bet:
            yield f"{name}:{node.lineno}: {ast.unparse(node)}"


def test_no_test_waits_for_a_fixed_time() -> None:
    """A sleep stands in a loop that ends once something holds; a pass of the loop (`sleep(0)`) is no time."""
    assert [wait for name in NAMES if name not in REAL_RUNS for wait in _fixed_waits(name)] == []


@pytest.mark.slow
def test_no_test_looks_how_long_something_took() -> None:
    """By the wall clock, that is: processor time is the code's own, whatever else the machine does."""
    assert [wait for name in NAMES if name not in REAL_RUNS for wait in _timed(name)] == []


def test_of_a_sweep_the_first_cases_are_played_with_every_change(request: pytest.FixtureRequest) -> None:
    def cases(name: str, count: int, *marks: pytest.MarkDecorator) -> list[pytest.Item]:
        made = [
            pytest.Function.from_parent(
                request.node.parent, name=f"{name}[{n}]", callobj=test_what_lies_outside_is_read_by_its_own_suite_alone
            )
            for n in range(count)
        ]
        for item, mark in ((item, mark) for item in made for mark in marks):
            item.add_marker(mark)
        return list(made)

    sweep = cases("sweep", 3, pytest.mark.slow(but=2))
    others = [*cases("whole", 2, pytest.mark.slow), *cases("quick", 2), *cases("short", 1, pytest.mark.slow(but=4))]
    assert first_of_many([*sweep, *others]) == {*sweep[:2], others[-1]}
