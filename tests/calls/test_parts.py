"""The rate, the breaker, the stores, shared places and faults on purpose, each by itself and on a clock of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.calls.cache import MAX_ENTRY_BYTES, CallCache, DiskStore, MemoryStore, default_path, pack, unpack
from rlenv.calls.executor import coerce
from rlenv.calls.guard import OVERSIZE_CHARS, Injector, Rate
from rlenv.calls.runner import SharedPlaces, shared_places
from rlenv.concurrency.deadline import Breaker, CallSlots
from rlenv.errors import ResourceError
from rlenv.language.spec import DelaySpec, FaultsSpec
from rlenv.messages import Image
from rlenv.tools.arguments import ArgumentCheck
from rlenv.tools.base import ToolContext, ToolOutput


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@settings(max_examples=50, deadline=None)
@given(st.floats(0.5, 500), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_a_rate_is_never_exceeded_over_any_second(per_s: float, gaps: list[float]) -> None:
    clock = Clock()
    rate = Rate(per_s, clock=clock)
    starts: list[float] = []
    for gap in gaps:
        clock.now += gap
        wait = rate.take(until=float("inf"))
        assert wait is not None
        starts.append(clock.now + wait)
    assert starts == sorted(starts)
    for first in starts:
        at_once = max(per_s * 0.1, 1)
        assert sum(first <= start < first + 1 for start in starts) <= per_s + at_once + 1


def test_a_call_that_would_wait_too_long_for_the_rate_takes_nothing() -> None:
    clock = Clock()
    rate = Rate(1, clock=clock)
    assert rate.take(until=clock.now + 0.5) == 0
    assert rate.take(until=clock.now + 0.5) is None
    assert rate.take(until=clock.now + 5) == pytest.approx(1)


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_call_try() -> None:
    clock = Clock()
    breaker = Breaker(failures=3, reset_s=10, clock=clock)
    for _ in range(2):
        breaker.failed()
    breaker.succeeded()
    for _ in range(3):
        assert breaker.admits()
        breaker.failed()
    assert not breaker.admits()
    clock.now += 10
    assert breaker.admits()
    assert not breaker.admits(), "one at a time"
    breaker.failed()
    assert not breaker.admits()
    clock.now += 10
    assert breaker.admits()
    breaker.abandoned()
    assert breaker.admits(), "a call that was cancelled does not keep the next one out"
    breaker.succeeded()
    assert breaker.admits()
    assert breaker.admits()


def test_a_memory_store_forgets_what_is_old_and_what_was_used_longest_ago() -> None:
    clock = Clock()
    store = MemoryStore(max_entries=2, ttl_s=5, clock=clock)
    store.put(b"a", b"1")
    store.put(b"b", b"2")
    assert store.get(b"a") == b"1"
    store.put(b"c", b"3")
    assert (store.get(b"a"), store.get(b"b"), store.get(b"c")) == (b"1", None, b"3")
    clock.now += 5
    assert store.get(b"a") is None


def test_a_memory_store_holds_no_more_bytes_than_it_may() -> None:
    store = MemoryStore(max_entries=9, max_bytes=10)
    for key, size in ((b"a", 4), (b"b", 4), (b"a", 6), (b"c", 2)):
        store.put(key, b"x" * size)
    assert [store.get(key) for key in (b"a", b"b", b"c")] == [b"x" * 6, None, b"xx"]
    store.put(b"d", b"x" * 11)
    assert [store.get(key) for key in (b"a", b"b", b"c", b"d")] == [None] * 4
    store.put(b"e", b"x" * 10)
    assert store.get(b"e") == b"x" * 10


def test_a_disk_store_is_shared_by_its_owners_name_and_forgets_alike(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "folder" / "kept.sqlite"

    def store(owner: str) -> DiskStore:
        return DiskStore(path, owner=owner, max_entries=3, ttl_s=5, clock=clock)

    first, second, other = store("tool"), store("tool"), store("other")
    first.put(b"k", b"1")
    assert second.get(b"k") == b"1"
    assert other.get(b"k") is None
    clock.now += 5
    assert second.get(b"k") is None
    for number in range(200):
        first.put(b"%d" % number, b"x")
        clock.now += 0.001
    assert sum(second.get(b"%d" % number) is not None for number in range(200)) <= 3 + 64
    for one in (first, second, other):
        one.close()
    assert second.get(b"199") == b"x", "a closed store opens again"
    second.close()


def test_a_disk_store_drops_the_oldest_beyond_its_bytes(tmp_path: Path) -> None:
    clock = Clock()
    other = DiskStore(tmp_path / "kept.sqlite", owner="other", max_entries=9, clock=clock)
    other.put(b"0", b"x" * 99)
    store = DiskStore(tmp_path / "kept.sqlite", owner="tool", max_entries=99, max_bytes=20, clock=clock)
    for number in range(65):  # the last one sweeps
        store.put(b"%d" % number, b"x" * 10)
        clock.now += 1
    assert [number for number in range(65) if store.get(b"%d" % number)] == [63, 64]
    assert other.get(b"0") == b"x" * 99
    for one in (store, other):
        one.close()


def test_a_file_that_is_no_cache_costs_the_results_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kept.sqlite").write_bytes(b"this is no database, not at all" * 100)
    store = DiskStore(tmp_path / "kept.sqlite", owner="t", max_entries=3)
    store.put(b"k", b"1")
    assert store.get(b"k") is None
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_many_processes_write_one_cache_and_read_whole_results(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rlenv.calls.cache import DiskStore\n"
        "store = DiskStore(Path(sys.argv[1]), owner='t', max_entries=10_000)\n"
        "for n in range(100):\n"
        "    store.put(b'%d' % n, b'%d ' % n * 500)\n"
        "    found = store.get(b'%d' % (n * 7 % 100))\n"
        "    assert found is None or found == b'%d ' % (n * 7 % 100) * 500\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "kept.sqlite")]) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(), json_values)
def test_a_result_is_kept_as_it_was_or_not_at_all(text: str, value: Any) -> None:
    output = ToolOutput(text, value, (Image("image/png", "AAAA"),), {"tokens": 3})
    packed = pack(output)
    assert packed is None or unpack(packed) == output


@pytest.mark.parametrize("value", [(1, 2), float("nan"), 2**70, object(), {1: 2}, "x" * 5_000_000])
def test_what_json_would_change_is_not_kept(value: Any) -> None:
    assert pack(ToolOutput("text", value)) is None


HOLD = (
    "import sys, time; from pathlib import Path; from rlenv.calls.runner import SharedPlaces\n"
    "places = SharedPlaces(Path(sys.argv[1]), limit=2)\n"
    "print([places.try_take() for _ in range(3)].count(None), flush=True); sys.stdin.read()\n"
)


def test_shared_places_hold_over_processes_and_come_back_when_a_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "places"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "1"
        places = SharedPlaces(path, limit=2)
        assert places.try_take() is None
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(30)
        taken = [places.try_take() for _ in range(3)]
        assert sorted(taken[:2], key=str) == [0, 1]
        assert taken[2] is None
        places.free(0)
        assert places.try_take() == 0
    finally:
        holder.kill()
        holder.communicate()


def test_threads_of_one_process_share_its_places(tmp_path: Path) -> None:
    places = SharedPlaces(tmp_path / "places", limit=4)
    taken: list[int | None] = []
    threads = [threading.Thread(target=lambda: taken.append(places.try_take())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert Counter(taken) == {0: 1, 1: 1, 2: 1, 3: 1, None: 12}


def context(seed: int = 0, turn: int = 0, **task: Any) -> ToolContext:
    return ToolContext(task, {}, 0.0, seed, turn=turn)


SPEC = FaultsSpec(error=0.1, delay_s=DelaySpec(p=0.1, range=(1, 2)), garble=0.05, oversize=0.05, hang=0.1)


def test_faults_come_in_their_shares_and_follow_from_the_seed_alone() -> None:
    injector = Injector("t", SPEC)
    places = [(seed, turn, index) for seed in range(500) for turn in range(4) for index in range(2)]

    def drawn() -> list[Any]:
        return [injector.draw(context(seed, turn, q=1), index=index, attempt=0) for seed, turn, index in places]

    first = drawn()
    assert first == drawn()
    counted = Counter(fault.kind if fault else "none" for fault in first)
    for kind, share in (("error", 0.1), ("delay", 0.1), ("garble", 0.05), ("oversize", 0.05), ("hang", 0.1)):
        assert counted[kind] / len(places) == pytest.approx(share, abs=0.02)
    assert all(1 <= fault.seconds <= 2 for fault in first if fault and fault.kind == "delay")
    reseeded = Injector("t", SPEC.model_copy(update={"seed": 1}))
    assert [reseeded.draw(context(seed, turn, q=1), index=index, attempt=0) for seed, turn, index in places] != first


def test_calls_of_rewards_get_no_faults() -> None:
    injector = Injector("t", FaultsSpec(error=1.0))
    assert injector.draw(context(turn=-1), index=0, attempt=0) is None
    assert injector.draw(context(turn=0), index=0, attempt=0) is not None


def test_spoiled_results_are_no_longer_the_tools() -> None:
    fault = Injector("t", FaultsSpec(garble=1.0)).draw(context(), index=0, attempt=0)
    assert fault is not None
    output = ToolOutput("a plain text of some length", [1])
    assert fault.spoil(output) == fault.spoil(output)
    assert fault.spoil(output).text != output.text
    assert fault.spoil(output).value is None
    large = Injector("t", FaultsSpec(oversize=1.0)).draw(context(), index=0, attempt=0)
    assert large is not None
    assert len(large.spoil(output).text) == OVERSIZE_CHARS
    assert len(large.spoil(ToolOutput("")).text) == OVERSIZE_CHARS


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": ["number", "null"]},
        "on": {"type": "boolean"},
        "text": {"type": "string"},
        "points": {"type": "array", "items": {"type": "object", "properties": {"y": {"type": "number"}}}},
        "least": {"type": "integer", "minimum": 3},
    },
}
ALL = frozenset(("number", "integer", "boolean"))


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"n": "3"}, {"n": 3}),
        ({"n": " -3 "}, {"n": -3}),
        ({"x": "2.5e1"}, {"x": 25.0}),
        ({"x": "7"}, {"x": 7}),
        ({"on": "True", "n": "1"}, {"on": True, "n": 1}),
        ({"points": [{"y": 1}, {"y": "2"}], "text": "3"}, {"points": [{"y": 1}, {"y": 2}], "text": "3"}),
        ({"n": "3.5"}, None),
        ({"n": "three"}, None),
        ({"n": "3", "text": 3}, None),
        ({"n": "9" * 100}, None),
        ({"x": "nan"}, None),
        ({"x": "1e999"}, None),
        ({"on": "yes"}, None),
        ({"least": "2"}, None),
        ({"n": ["3"]}, None),
    ],
)
def test_texts_are_taken_as_declared_types_where_all_then_fits(
    given: dict[str, Any], taken: dict[str, Any] | None
) -> None:
    before = repr(given)
    found = coerce(given, ArgumentCheck(SCHEMA, tool="t"), ALL)
    assert (found.arguments if found is not None else None) == taken
    assert repr(given) == before


def test_only_declared_types_are_coerced() -> None:
    check = ArgumentCheck(SCHEMA, tool="t")
    assert coerce({"n": "3"}, check, frozenset(("boolean",))) is None
    assert coerce({"n": "3"}, check, frozenset(("number",))) is None
    assert coerce({"on": "true"}, check, frozenset(("integer", "number"))) is None


def test_no_caller_alone_opens_a_breaker_by_what_may_be_its_own_doing() -> None:
    clock = Clock()
    breaker = Breaker(failures=3, reset_s=10, clock=clock)
    for _ in range(20):
        breaker.failed("one")
    assert breaker.admits()
    breaker.failed("another")
    assert not breaker.admits()


def test_where_one_failure_is_enough_any_callers_opens_a_breaker() -> None:
    breaker = Breaker(failures=1, reset_s=10, clock=Clock())
    breaker.failed("one")
    assert not breaker.admits()


def test_failures_that_no_call_brings_about_open_a_breaker_whoever_calls() -> None:
    breaker = Breaker(failures=3, reset_s=10, clock=Clock())
    for _ in range(3):
        breaker.failed()
    assert not breaker.admits()


def test_who_is_cancelled_as_it_is_handed_a_place_gives_it_back() -> None:
    async def main() -> None:
        slots = CallSlots(1)
        assert slots.take() is None
        turn = slots.take()
        assert turn is not None
        waiting = asyncio.ensure_future(slots.wait(turn, until=float("inf")))
        await asyncio.sleep(0)
        slots.free()  # handed over, and not yet taken
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert slots.taken == 0

    asyncio.run(main())


def test_a_place_that_is_given_back_where_no_loop_runs_is_handed_over() -> None:
    """As by a task that is thrown away with a loop that never ended it."""

    async def main() -> None:
        slots = CallSlots(1)
        assert slots.take() is None
        turn = slots.take()
        assert turn is not None
        await asyncio.to_thread(slots.free)
        await slots.wait(turn, until=float("inf"))
        assert slots.taken == 1

    asyncio.run(main())


def test_shared_places_are_made_in_no_folder_of_another_and_through_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    victim = tmp_path / "victim"
    (tmp_path / "rlenv").mkdir(mode=0o700)
    (tmp_path / "rlenv" / "places").mkdir(mode=0o700)
    (tmp_path / "rlenv" / "places" / "tool-4").symlink_to(victim)
    with pytest.raises(ResourceError, match="cannot open"):
        shared_places("tool", limit=4)
    assert not victim.exists()
    (tmp_path / "rlenv" / "places").chmod(0o777)
    with pytest.raises(ResourceError, match="only this user can write"):
        shared_places("other", limit=4)


@pytest.mark.parametrize(("per_s", "at_once"), [(1, 1), (10, 1), (20, 2), (100, 10)])
def test_a_tenth_of_a_seconds_calls_may_come_at_once_and_the_next_waits_one_step(per_s: float, at_once: int) -> None:
    clock = Clock()
    rate = Rate(per_s, clock=clock)
    for _ in range(2):  # a long pause saves up no more than that
        waits = [rate.take(until=float("inf")) for _ in range(at_once + 2)]
        assert waits == pytest.approx([0.0] * at_once + [1 / per_s, 2 / per_s], abs=1e-9)
        clock.now += 1_000


@pytest.mark.parametrize(("until", "wait"), [(100.5, None), (101.0, None), (101.5, 1.0)])
def test_a_turn_that_comes_as_the_time_ends_is_not_taken(until: float, wait: float | None) -> None:
    rate = Rate(1, clock=Clock())
    assert rate.take(until=100.0) == 0.0, "who need not wait needs no time"
    assert rate.take(until=until) == wait


def test_only_a_delay_and_a_hang_hold_a_call() -> None:
    delay = DelaySpec(p=0.2, range=(1, 2))
    injector = Injector("t", FaultsSpec(error=0.2, delay_s=delay, garble=0.2, oversize=0.2, hang=0.2))
    drawn = [injector.draw(context(seed), index=0, attempt=0) for seed in range(60)]
    held = {fault.kind: fault.seconds for fault in drawn if fault is not None}
    assert 1 <= held.pop("delay") <= 2
    assert held == {"error": 0.0, "garble": 0.0, "oversize": 0.0, "hang": float("inf")}


def test_a_result_that_grows_begins_as_the_tools_own() -> None:
    fault = Injector("t", FaultsSpec(oversize=1.0)).draw(context(), index=0, attempt=0)
    assert fault is not None
    assert fault.spoil(ToolOutput("abc")).text[:7] == "abcabca"


@pytest.mark.parametrize(("spare", "is_kept"), [(0, True), (-1, True), (1, False)])
def test_a_result_is_kept_up_to_a_size(spare: int, is_kept: bool) -> None:
    around = len(pack(ToolOutput("")) or b"")
    assert (pack(ToolOutput("x" * (MAX_ENTRY_BYTES - around + spare))) is not None) is is_kept


def test_a_disk_store_keeps_the_newest_of_its_owner_after_each_sweep(tmp_path: Path) -> None:
    stores = [DiskStore(tmp_path / "kept", owner=owner, max_entries=3, clock=Clock()) for owner in ("tool", "other")]
    for number in range(65):  # the first and the 65th sweep
        stores[0].put(b"%d" % number, b"x")
        if number < 5:
            stores[1].put(b"%d" % number, b"y")
    assert [number for number in range(65) if stores[0].get(b"%d" % number)] == [62, 63, 64]
    assert [number for number in range(65) if stores[1].get(b"%d" % number)] == [0, 1, 2, 3, 4], "not swept yet"
    for store in stores:
        store.close()


def test_a_result_on_disk_is_kept_until_its_age_is_reached(tmp_path: Path) -> None:
    clock = Clock()
    store = DiskStore(tmp_path / "kept", owner="t", max_entries=3, ttl_s=5, clock=clock)
    store.put(b"k", b"1")
    clock.now += 4.5
    assert store.get(b"k") == b"1"
    clock.now += 0.5
    assert store.get(b"k") is None
    store.close()


def test_what_others_have_written_into_the_file_is_no_result(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "kept", owner="t", max_entries=3)
    store.put(b"k", b"1")
    with closing(sqlite3.connect(tmp_path / "kept")) as raw, raw:
        raw.execute("UPDATE kept SET packed = 'text'")
    assert store.get(b"k") is None
    store.close()


@pytest.mark.parametrize("is_read", [True, False])
def test_a_folder_that_cannot_be_made_costs_the_results_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_read: bool
) -> None:
    (tmp_path / "file").touch()
    store = DiskStore(tmp_path / "file" / "kept", owner="t", max_entries=3)
    for _ in range(2):
        if is_read:
            assert store.get(b"k") is None
        else:
            store.put(b"k", b"1")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("folder", "expected"), [("cache", "cache"), ("", "home/.cache"), (None, "home/.cache")])
def test_results_on_disk_stand_in_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None, expected: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder) if folder else "")
    if folder is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_path() == tmp_path / expected / "rlenv" / "calls.sqlite"


def cached(run: Any, *arguments: dict[str, Any], store: MemoryStore | None = None) -> list[tuple[ToolOutput, bool]]:
    """What equal or other calls get at the same time, and whether it was there already."""

    def make() -> MemoryStore:
        return MemoryStore(max_entries=9)

    async def main() -> list[tuple[ToolOutput, bool]]:
        kept = CallCache(
            "t", store=store or make(), depends_on="arguments", make_store=make, in_thread=asyncio.to_thread
        )
        calls = (kept.get_or_run(one, context(), until=float("inf"), run=run) for one in arguments)
        return list(await asyncio.gather(*calls))

    return asyncio.run(main())


@pytest.mark.parametrize(("keeps", "runs", "was_there"), [("text", 1, [False, True, True]), ("set", 3, [False] * 3)])
def test_who_runs_for_itself_is_not_told_that_the_result_was_there(
    keeps: str, runs: int, was_there: list[bool]
) -> None:
    made: list[int] = []

    async def run() -> ToolOutput:
        made.append(1)
        await asyncio.sleep(0)
        return ToolOutput("a", {1} if keeps == "set" else None)  # no store can hold a set

    assert [one for _, one in cached(run, {}, {}, {})] == was_there
    assert len(made) == runs


def test_calls_without_a_canonical_form_are_each_run() -> None:
    made: list[int] = []

    async def run() -> ToolOutput:
        made.append(1)
        return ToolOutput(f"{len(made)}")

    store = MemoryStore(max_entries=9)
    for number in (1, 2):
        assert cached(run, {"n": object()}, store=store) == [(ToolOutput(f"{number}"), False)]


def test_a_place_is_not_handed_to_who_has_stopped_waiting() -> None:
    async def main() -> None:
        slots = CallSlots(2)
        assert [slots.take(), slots.take()] == [None, None]
        gone, stays = (asyncio.ensure_future(slots.wait(slots.take(), until=float("inf"))) for _ in range(2))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        slots.free()
        await asyncio.wait_for(stays, 30)
        assert slots.taken == 2
        slots.free()
        slots.free()
        assert slots.taken == 0

    asyncio.run(main())


@pytest.mark.parametrize(("text", "taken"), [("1." + "0" * 62, 1.0), ("1." + "0" * 63, None), ("9" * 20, 1e20)])
def test_a_number_is_read_up_to_64_characters_and_an_integer_up_to_19_digits(text: str, taken: float | None) -> None:
    found = coerce({"x": text}, ArgumentCheck(SCHEMA, tool="t"), ALL)
    assert (found.arguments if found is not None else None) == (None if taken is None else {"x": taken})
    if taken == 1e20:
        assert coerce({"n": text}, ArgumentCheck(SCHEMA, tool="t"), ALL) is None


def test_a_text_of_digits_is_an_integer_where_a_number_is_wanted_and_any_other_a_float() -> None:
    read = [coerce({"x": text}, ArgumentCheck(SCHEMA, tool="t"), ALL) for text in ("7", "7.0", "7e0")]
    assert [repr(one and one.arguments["x"]) for one in read] == ["7", "7.0", "7.0"]
