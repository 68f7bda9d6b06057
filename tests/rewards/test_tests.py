# ruff: noqa: E501 - a table of cases reads best with one a row
"""The reward kind tests: what honest code earns in each form of tests, and what the spec refuses."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.concurrency.scope import Scope
from rlenv.errors import RewardError, UsageError
from rlenv.rewards.base import Measured
from rlenv.rewards.scorer import Scorer
from rlenv.rewards.tests import last_block, read_calls, same_output
from rlenv.testing.rewards import reward_context
from rlenv.tools._exchange import MAX_ITEMS, Unfit, encode_value
from rlenv.tools.trials import TrialVerdict
from tests.support.trials import graded, grades, reward

CALLS = [{"args": [1, 2], "expected": 3}, {"args": [5], "kwargs": {"b": 5}, "expected": 10}]
ADD = "def add(a, b):\n    return a + b"


@pytest.mark.sandbox
def test_a_share_of_the_tests_that_pass_is_the_value() -> None:
    found = graded("def add(a, b):\n    return 3", calls=CALLS, entry="add")
    assert found.value == 0.5
    assert found.details["passed"] == 1
    assert found.details["total"] == 2
    assert [failed["test"] for failed in found.details["failed"]] == ["2"]
    assert found.evidence == "1 of 2 tests; first failed: 2"  # what was expected stands in the details alone


def test_an_iterator_is_sent_with_as_many_items_as_it_may_have_and_no_more() -> None:
    assert len(encode_value(iter(range(MAX_ITEMS)))) == 1 + MAX_ITEMS
    with pytest.raises(Unfit, match="more than"):
        encode_value(iter(range(MAX_ITEMS + 1)))


@pytest.mark.sandbox
def test_all_or_nothing() -> None:
    assert graded("def add(a, b):\n    return 3", calls=CALLS, entry="add", credit="all").value == 0
    assert graded(ADD, calls=CALLS, entry="add", credit="all").value == 1


@pytest.mark.sandbox
def test_the_last_fenced_block_is_the_code() -> None:
    text = f"First:\n```python\nnonsense(\n```\nNo, this:\n~~~py\n{ADD}\n~~~\nDone."
    assert graded(text, calls=CALLS, entry="add").value == 1
    assert graded(text, calls=CALLS, entry="add", block="none").value == 0
    assert last_block("a ```python b``` c") == "a ```python b``` c"
    assert last_block("````\n```\nx\n```\n````") == "```\nx\n```\n"
    assert last_block("```\nopen") == "```\nopen"
    assert last_block("```\n```") == ""


VALUES: list[tuple[str, Any, dict[str, Any], float]] = [
    ("def f(): return (1, [2, 3])", [1, [2, 3]], {}, 1),
    ("def f(): return (1, 2)", [1, 2], {"compare": "exact"}, 0),
    ("def f(): return [1, 2]", [1, 2], {"compare": "exact"}, 1),
    ("def f(): return 1.0", 1, {}, 1),
    ("def f(): return 1.0", 1, {"compare": "exact"}, 0),
    ("def f(): return 1", True, {}, 0),
    ("def f(): return True", 1, {}, 0),
    ("def f(): return [3, 1, 2]", [1, 2, 3], {}, 0),
    ("def f(): return [3, 1, 2]", [1, 2, 3], {"compare": "unordered"}, 1),
    ("def f(): return [3, 1, 1]", [1, 3, 3], {"compare": "unordered"}, 0),
    ("def f(): return [1, True, (2, 'a'), {3}, None]", [None, [2.0, "a"], {3}, True, 1.0], {"compare": "unordered"}, 1),
    ("def f(): return [1, 1, float('nan')]", [True, 1, 1], {"compare": "unordered"}, 0),
    ("def f(): return list(range(100_000))[::-1]", list(range(100_000)), {"compare": "unordered"}, 1),
    ("def f(): return 0.1 + 0.2", 0.3, {}, 0),
    ("def f(): return [{'x': 0.1 + 0.2}]", [{"x": 0.3}], {"tolerance": 1e-9}, 1),
    ("def f(): return 1001", 1000, {"relative_tolerance": 0.01}, 1),
    ("def f(): return 1001", 1000, {"relative_tolerance": 0.0001}, 0),
    ("def f(): return float('nan')", 1, {"tolerance": 1e9}, 0),
    ("def f(): return float('inf')", 1, {"tolerance": 1e9}, 0),
    ("def f(): return 10 ** 400", 1, {"tolerance": 1.0}, 0),
    ("def f(): return 5", float("inf"), {"relative_tolerance": 1e-6}, 0),
    ("def f(): return float('inf')", float("inf"), {"relative_tolerance": 1e-6}, 1),
    ("def f(): return {True: 'a', 2: 'b'}", {1: "a", 2: "b"}, {}, 0),
    ("def f(): return {1.0: 'a', 2: 'b'}", {1: "a", 2: "b"}, {}, 1),
    ("def f(): return {False}", {0}, {}, 0),
    ("def f(): return (x for x in (1, 2))", [1, 2], {}, 1),
    ("from collections import Counter\ndef f(): return Counter('aab')", {"a": 2, "b": 1}, {}, 1),
    ("def f(): return None", None, {}, 1),
    ("def f(): return 2 ** 2000", 2**2000, {}, 1),
    ("class Solution:\n    def f(self): return 'ok'", "ok", {"entry": "Solution().f"}, 1),
]


@pytest.mark.sandbox
def test_values_are_compared_as_the_spec_says() -> None:
    cases = [
        (code, {"entry": "f", "calls": [{"args": [], "expected": gold}], **keys}) for code, gold, keys, _ in VALUES
    ]
    for found, (code, expected, keys, value) in zip(grades(*cases), VALUES, strict=True):
        assert found.value == value, (code, expected, keys, found)


@pytest.mark.sandbox
def test_calls_are_read_in_the_forms_of_the_data_sets() -> None:
    for calls in (
        {"inputs": [[1, 2], [3, 4]], "outputs": [3, 7]},
        json.dumps({"inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}),
        json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    ):
        assert graded(ADD, calls=calls, entry="add").value == 1


_PRIVATE = [{"input": "5\n6", "output": "11", "testtype": "functional"}]


def _packed(pickled: bytes) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickled)).decode()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_packed_tests_are_read_behind_the_public_ones(protocol: int) -> None:
    public = json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}])
    both = [public, _packed(pickle.dumps(json.dumps(_PRIVATE), protocol))]
    assert read_calls(both, "add") == read_calls([*json.loads(public), *_PRIVATE], "add")


class _Runs:
    """What its pickle does when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("pickle-was-run",)


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (_packed(pickle.dumps(_Runs())), "more than a text (they ask for"),
        (_packed(b"cos\nsystem\n(S'mkdir pickle-was-run'\ntR."), "more than a text (they ask for GLOBAL)"),
        (_packed(pickle.dumps(["[]"])), "more than a text"),
        (_packed(pickle.dumps(b"[]")), "more than a text"),
        (_packed(b"\x8c\x02[]\x8c\x02[]."), "more than a text"),
        (_packed(b"\x8c\xff[]"), "cannot be read"),
        (_packed(b"."), "is no JSON"),
        (_packed(pickle.dumps("no json")), "is no JSON"),
        (base64.b64encode(b"not packed").decode(), "neither JSON nor packed"),
        ("neither", "neither JSON nor packed"),
    ],
)
def test_a_pickle_is_read_for_one_text_and_never_run(
    packed: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RewardError) as raised:
        read_calls(packed, "add")
    assert said in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # it unpacks 256 MB
def test_packed_tests_are_unpacked_within_a_bound() -> None:
    with pytest.raises(RewardError, match="more than 256000000 bytes"):
        read_calls(_packed(bytes(257_000_000)), "add")


@pytest.mark.sandbox
def test_a_task_may_be_a_function_or_a_program_by_its_tests() -> None:
    program = [{"input": "3 4\n", "output": "7\n", "testtype": "stdin"}]
    keys = {"calls": [json.dumps(program), _packed(pickle.dumps(json.dumps(program)))], "entry": "Solution()."}
    assert graded("print(sum(map(int, input().split())))", **keys).value == 1
    assert graded("print(8)", **keys).value == 0


@pytest.mark.sandbox
def test_programs_are_compared_by_what_they_print() -> None:
    tests = [{"input": "3 4\n", "output": "7\n"}, {"input": ["1 1"], "output": ["2"]}]
    code = "import sys\na, b = map(int, input().split())\nprint(a + b, '')\nprint('x', file=sys.stderr)\nsys.exit(0)"
    assert graded(code, stdin=tests).value == 1
    assert graded(code, stdin=tests, compare="exact").value == 0
    assert graded("print(7)", stdin={"inputs": ["3 4", "1 1"], "outputs": ["7", "2"]}).value == 0.5
    assert graded("print(7)\nraise SystemExit(3)", stdin=tests).value == 0
    assert (
        graded("if __name__ == '__main__':\n    print(sum(map(int, open(0).read().split())))", stdin=tests).value == 1
    )


def test_output_within_a_tolerance() -> None:
    assert same_output("1.0000001 a\n", "1 a", "equal", 1e-6, 0.0)
    assert not same_output("1.1 a\n", "1 a", "equal", 1e-6, 0.0)
    assert same_output("1.1", "1.0", "equal", 0.1, 0.0)  # exactly so far apart, which floats are not
    for odd in ("nan", "sNaN", "inf", "1e999999", "1e9999999999999999999", "a"):
        assert not same_output(odd, "1", "equal", 1e9, 1.0)
        assert not same_output("1", odd, "equal", 1e9, 0.5)
    assert not same_output("1\n1", "1 1", "equal", 1e-6, 0.0)


PROGRAMS = [
    ("def f(x):\n    raise ValueError('no')", "try:\n    f(1)\nexcept ValueError as e:\n    assert str(e) == 'no'\nelse:\n    assert 0"),
    ("class Odd(Exception): pass\ndef f():\n    raise Odd", "try:\n    f()\nexcept Exception as e:\n    assert type(e).__name__ == 'Odd'\nelse:\n    assert 0"),
    ("def f(): yield from range(3)", "assert list(f()) == [0, 1, 2]"),
    ("def f(x): return x", "for v in (b'a', {1: (2, {3})}, 1j, range(3), frozenset({1}), 2**70, -0.0, '\\ud800'):\n    assert f(v) == v and type(f(v)) is type(v)"),
    ("class P:\n    def __init__(self, a): self.a = a\ndef f(ps): return sum(p.a for p in ps)", "assert f([P(1), P(2)]) == 3"),
    ("def sum(a, b): return a + b + 1", "assert sum(1, 2) == 4"),
    ("def f(x, kind): return isinstance(x, kind)", "assert f('a', str) and not f('a', int)"),
    ("def f(x): return 5", "assert math.sqrt(25) == f(0)"),
    ("def bisect(xs, x): return xs.index(x)", "assert bisect([1, 2], 2) == 1"),
    ("class queue:\n    def __init__(self): self.size = 2", "q = queue()\nassert q.size == 2 and math.floor(2.5) == q.size"),
    ("def f(x): return 4", "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 4)\nunittest.main()"),
    ("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)", "def check(g):\n    assert g(10) == 55\ncheck(f)"),
]  # fmt: skip


@pytest.mark.sandbox
def test_programs_see_what_honest_code_gives() -> None:
    nothing = "def f(*args, **more): return None\nsum = bisect = queue = f"
    for found, (code, program) in zip(grades(*((c, {"programs": p}) for c, p in PROGRAMS)), PROGRAMS, strict=True):
        assert found.value == 1, (code, program, found)
    for found, (code, program) in zip(
        grades(*((nothing, {"programs": p}) for _, p in PROGRAMS)), PROGRAMS, strict=True
    ):
        assert found.value == 0, (code, program, found)


@pytest.mark.sandbox
def test_changed_arguments_come_back_where_that_is_asked_for() -> None:
    code, program = "def f(x): x.append(1)", "a = [0]\nf(a)\nassert a == [0, 1]"
    assert graded(code, programs=program, in_place=True).value == 1
    assert graded(code, programs=program).value == 0
    # Otherwise code could change what a test goes on to compare with.
    assert graded("def f(x):\n    x.clear()\n    return []", programs="a = [3, 1]\nassert f(a) == sorted(a)").value == 0


@pytest.mark.sandbox
def test_the_prompts_helpers_are_the_tests_own() -> None:
    prompt = "def helper(x):\n    return x + 1\n\ndef f(x):\n    '''Adds one.'''\n"
    keys = {"before": prompt, "setup": prompt, "names": "f", "programs": "assert f(1) == helper(1)"}
    assert graded("def f(x):\n    return helper(x)", **keys).value == 1
    assert graded("def helper(x): return None\ndef f(x): return None", **keys).value == 0


@pytest.mark.sandbox
def test_a_rows_tests_are_read_beside_the_event_loop_in_whatever_form_they_stand() -> None:
    numbers = list(range(100_000))
    text = json.dumps(numbers)
    term = reward(Path(), calls="{{ task.calls }}", entry="f")

    async def main(test: dict[str, Any]) -> Measured:
        assert term.measure_async is not None
        return await term.measure_async(reward_context(task={"calls": [test] * 10}))

    for test in ({"args": [numbers], "expected": numbers}, {"input": text, "output": text}):
        began = time.thread_time()
        assert asyncio.run(main(test)).value == 0.0
        assert time.thread_time() - began < 0.1


@pytest.mark.sandbox
def test_a_long_answer_is_looked_through_beside_the_event_loop() -> None:
    graded(ADD, calls=CALLS, entry="add")
    all_s, loop_s = time.process_time(), time.thread_time()
    assert graded("```\n" * 300_000 + f"```\n{ADD}\n```", calls=CALLS, entry="add").value == 1
    assert time.thread_time() - loop_s < (time.process_time() - all_s) / 2


@pytest.mark.sandbox
def test_what_prints_much_is_compared_beside_the_event_loop() -> None:
    keys = {"stdin": [{"input": "", "output": "1 " * 90_000}], "tolerance": 1e-6, "max_bytes": 1_000_000}
    grades(("print(1)", keys))
    all_s, loop_s = time.process_time(), time.thread_time()
    assert graded("print('1.0000001 ' * 90_000)", **keys).value == 1
    assert time.thread_time() - loop_s < (time.process_time() - all_s) / 2


@pytest.mark.sandbox
def test_no_code_is_worth_nothing_and_a_task_without_tests_is_invalid() -> None:
    keys = {"calls": CALLS, "entry": "add"}
    for found in grades((None, keys), ("", keys), ("x" * 200_001, keys), ("'\ud800'", keys)):
        assert found.value == 0
    faults: tuple[dict[str, Any], ...] = (
        {"calls": [], "entry": "add"},
        {"calls": [{"args": 3, "expected": 3}], "entry": "add"},
        {"calls": [{"args": [3]}], "entry": "add"},
        {"calls": CALLS, "entry": "a b"},
        {"calls": {"inputs": [1], "outputs": []}, "entry": "add"},
        {"calls": "no json", "entry": "add"},
        {"stdin": [{"input": "x"}]},
        {"programs": "assert ("},
        {"programs": 3},
    )
    for found, keys in zip(grades(*((ADD, keys) for keys in faults)), faults, strict=True):
        assert found.value is None, keys


@pytest.mark.sandbox
def test_a_program_that_asks_nothing_of_the_code_is_no_test_that_it_passes_or_fails() -> None:
    cases = (
        "def test_one():\n    assert add(1, 2) == 3",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(add(1, 2), 3)",
        "assert True",
        "assert 1 == 2\nadd(1, 2)",
        "import a_package_that_is_not_there\nassert add(1, 2) == 3",
    )
    for found in grades(*((ADD, {"programs": program}) for program in cases)):
        assert found.value is None
        assert "without asking anything of the code" in str(found.evidence)
    called = (f"{cases[0]}\ntest_one()", f"{cases[1]}\nunittest.main()")
    assert [found.value for found in grades(*((ADD, {"programs": program}) for program in called))] == [1, 1]


@pytest.mark.sandbox
def test_the_time_of_all_tests_is_bounded() -> None:
    found = graded(
        "def f():\n    while True: pass", calls=[{"args": [], "expected": 1}] * 9, entry="f", time_s=0.2, timeout_s=0.3
    )
    assert found.value == 0
    assert "did not end" in found.details["failed"][0]["why"]
    assert "were used up" in found.details["failed"][-1]["why"]


@dataclass
class SlowProcessor:
    """What runs tests on a machine where each takes `own_s` of its own and `delayed_s` of waiting for a processor."""

    own_s: float
    delayed_s: float

    async def run_test(self, *_sources: Any, **_limits: Any) -> TrialVerdict:
        return TrialVerdict(True, own_s=self.own_s, delayed_s=self.delayed_s)


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("own_s", "delayed_s", "value"),
    [
        (0.01, 0.0, 1.0),
        (0.01, 3.1, 1.0),  # each waits for longer than it may take itself
        (1.0, 0.0, 0.2),  # asleep, it pays
        (9.0, 0.0, 0.1),
        (0.01, 9.0, None),
    ],
)
def test_waiting_for_a_processor_counts_for_no_limit_until_it_makes_the_term_invalid(
    own_s: float, delayed_s: float, value: float | None
) -> None:
    term = reward(Path(), calls=[{"args": [], "expected": 1}] * 10, entry="f", time_s=3.0, timeout_s=2.0, workers=2)

    @asynccontextmanager
    async def slow() -> AsyncIterator[SlowProcessor]:
        yield SlowProcessor(own_s, delayed_s)

    async def main() -> float | None:
        scope = Scope()
        await scope.get(("tests", 2), slow)
        assert term.measure_async is not None
        try:
            return (await term.measure_async(replace(reward_context(answer=ADD), shared=lambda: scope))).value
        except RewardError:
            return None
        finally:
            await scope.aclose()

    assert asyncio.run(main()) == value


@pytest.mark.sandbox
def test_code_that_sleeps_pays_for_it_and_what_it_leaves_running_costs_the_next_test_nothing() -> None:
    asleep = "import time\ndef f():\n    time.sleep(0.3)\n    return 1"
    running = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\ndef f(): return 1"
    keys = {"calls": [{"args": [], "expected": 1}] * 3, "entry": "f", "timeout_s": 0.45}
    assert [found.value for found in grades((asleep, keys), (running, {**keys, "timeout_s": 2.0}))] == [2 / 3, 1]


@pytest.mark.sandbox
def test_the_time_that_tests_take_counts_for_no_limit_of_the_reward() -> None:
    term = reward(Path(), calls=CALLS, entry="add")

    async def main() -> float | None:
        scope = Scope()
        try:
            context = replace(reward_context(answer=ADD), shared=lambda: scope)
            breakdown, _ = await Scorer([term]).score(context, limit_s=0.0)
        finally:
            await scope.aclose()
        return breakdown.total

    assert asyncio.run(main()) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "expected one form of tests, found nothing"),
        ({"calls": CALLS, "entry": "f", "stdin": []}, "found calls and stdin"),
        ({"calls": CALLS}, "it goes with calls"),
        ({"programs": "1", "entry": "f"}, "it goes with calls"),
        ({"calls": CALLS, "entry": "f", "setup": "x = 1"}, "it goes with programs"),
        ({"calls": CALLS, "entry": "f", "in_place": True}, "it goes with programs"),
        ({"programs": "1", "tolerance": 0.1}, "programs compare by themselves"),
        ({"stdin": [], "compare": "unordered"}, "the order of what a program prints counts"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reward(Path(), **keys)
