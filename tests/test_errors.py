"""Errors: what they carry is what they say, and the tree that errors.py draws is the tree of the classes."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
import re
from pathlib import Path
from typing import get_args

import pytest

import rlenv
from rlenv import errors
from rlenv._base.text import all_known, did_you_mean
from rlenv.errors import WHOSE, Fault, ToolFailed, UnknownEntry, UsageError, Whose, told_as, under, whose_failure
from rlenv.messages import Outcome

_NODE = re.compile(r"^(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+)\b")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UsageError("it is wrong"), "it is wrong"),
        (UsageError("it is wrong", hint="mend it"), "it is wrong; mend it"),
        (UsageError("it is wrong", key="a.b"), "a.b: it is wrong"),
        (UsageError("found 1; expected 2", key="a", hint="write 2"), "a: found 1; expected 2; write 2"),
    ],
)
def test_a_usage_error_reads_as_its_key_its_message_and_its_hint(error: UsageError, text: str) -> None:
    assert str(error) == text


def test_a_key_is_put_before_that_of_an_error_from_within() -> None:
    with pytest.raises(UnknownEntry) as outer, under("judges"), under("0"):
        raise UnknownEntry("endpoints", "writr", ["writer"], key="endpoint")
    assert outer.value.key == "judges.0.endpoint"
    with pytest.raises(UsageError, match=r"^parameters: it is wrong$"), under("parameters"):
        raise UsageError("it is wrong")


@pytest.mark.parametrize(
    ("what", "message"), [("", "no such file"), ("it cannot be read:", "it cannot be read: no such file"), ("no", "no")]
)
def test_an_error_of_others_is_told_in_our_words_with_its_own_behind_a_colon(what: str, message: str) -> None:
    with pytest.raises(UsageError) as raised, told_as(UsageError, what, OSError, KeyError, hint="name another"):
        raise FileNotFoundError("no such file")
    assert (raised.value.message, raised.value.hint) == (message, "name another")
    assert isinstance(raised.value.__cause__, FileNotFoundError)
    with pytest.raises(ValueError, match="a bug"), told_as(UsageError, what, OSError):
        raise ValueError("a bug")


def test_an_unknown_entry_names_the_nearest_known_one() -> None:
    error = UnknownEntry("tools", "ad", ["find"], key="tool")
    assert (error.message, error.hint) == ("there is no tool 'ad'", "tools: find")
    assert error.knowing(["add"]).hint == "did you mean 'add'?"
    assert UnknownEntry("tools", "ad", [], key="tool", message="none", hint="own").knowing(["add"]).hint == "own"


def test_a_hint_names_what_is_near_and_else_what_is_known() -> None:
    assert did_you_mean("ad", ["add", "find"], "tools", prefix="args.") == "did you mean 'args.add'?"
    assert did_you_mean("zzz", ["add", "find"], "tools") == "tools: add, find"
    assert did_you_mean("zzz", [], "tools") == "tools: none"
    assert did_you_mean("zzz", ["add"], "tools", otherwise="leave it out") == "leave it out"
    assert did_you_mean("zzz", ["add"]) == ""
    assert all_known("ad", ["add", "find"]) == "did you mean 'add'? there are add, find"
    assert all_known("zzz", ["add"], "known:") == "known: add"


def drawn() -> dict[str, str]:
    """Each class of the drawing with the one that it hangs on; "" for the root."""
    assert errors.__doc__ is not None
    above: list[tuple[int, str]] = []
    found: dict[str, str] = {}
    for line in errors.__doc__.splitlines():
        match = _NODE.match(line)
        if match is None or (not match["indent"] and found):
            continue
        if not match["indent"] and match["name"] != "RlenvError":
            continue
        depth = len(match["indent"])
        while above and above[-1][0] >= depth:
            above.pop()
        found[match["name"]] = above[-1][1] if above else ""
        above.append((depth, match["name"]))
    return found


def classes() -> list[type[errors.RlenvError]]:
    """Each exception that rlenv raises on purpose, wherever it is defined; the root first."""
    for module in pkgutil.walk_packages(rlenv.__path__, "rlenv."):
        if not module.name.startswith(("rlenv.testing.", "rlenv.__main__")):
            try:
                importlib.import_module(module.name)
            except ImportError:  # an extra that is not installed
                continue
    found = [errors.RlenvError]
    for kind in found:  # which grows below
        found.extend(one for one in kind.__subclasses__() if one.__module__.split(".")[0] == "rlenv")
    return found


def test_every_exception_stands_in_the_drawing_under_its_base() -> None:
    bases = {kind.__name__: getattr(kind.__base__, "__name__", "") for kind in classes()}
    assert drawn() == {**bases, "RlenvError": ""}


def test_every_exception_is_copied_and_pickled_with_what_it_carries() -> None:
    of_its_kind = {
        "faults": [Fault("fault", "it is wrong", file="a.yaml", line=1, column=1)],
        "known": ["a"],
        "line": 2,
        "position": 3,
    }
    for kind in classes():
        takes = inspect.signature(kind.__init__).parameters.keys() - {"self", "args", "kwargs"}
        error = kind(**{name: of_its_kind.get(name, name) for name in takes}) if takes else kind("said")
        for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
            assert type(again) is kind
            assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_the_module_gives_out_its_own_exceptions() -> None:
    own = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert set(errors.__all__) == own | {"all_known", "did_you_mean", "under"}  # functions


def test_a_fault_in_the_order_of_older_versions_is_refused() -> None:
    with pytest.raises(TypeError, match="positional"):
        Fault("a.yaml", 3, 5, "tools.add", "it is wrong")  # type: ignore[call-arg, arg-type]


PAGE = Path(__file__).resolve().parent.parent / "docs" / "training" / "failures.md"
ROWS = {"the policy's": "policy", "the infrastructure's": "infrastructure", "unclear": "unclear"}


def test_the_page_on_failures_lists_every_reason_under_whose_it_is() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Reasons: why a call failed")[2].partition("\n## ")[0]
    told = {
        reason: ROWS[head.strip()]
        for head, words in re.findall(r"^\| ([^|`]+) \| (`.*) \|$", section, re.MULTILINE)
        for reason in re.findall(r"`(\w+)`", words)
    }
    assert told == WHOSE


def test_whatever_keeps_a_call_from_its_tool_is_the_policys() -> None:
    refusals = set(get_args(Outcome)) - {"ok"}
    assert {WHOSE[outcome] for outcome in refusals} == {"policy"}
    assert set(WHOSE.values()) == set(get_args(Whose))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "policy"),
        ({"reason": "breaker_open"}, "infrastructure"),
        ({"reason": "late"}, "unclear"),
        ({"reason": "quota"}, "policy"),
        ({"reason": "quota", "retryable": True}, "infrastructure"),
        ({"reason": "failed", "whose": "infrastructure"}, "infrastructure"),
    ],
)
def test_a_tools_failure_says_whose_it_is(arguments: dict[str, object], expected: str) -> None:
    assert ToolFailed("no", **arguments).whose == expected  # type: ignore[arg-type]


def test_what_would_have_gone_well_a_little_later_is_never_the_policys() -> None:
    assert {whose_failure(reason, retryable=True) for reason in [*WHOSE, "quota"]} == {"infrastructure", "unclear"}
