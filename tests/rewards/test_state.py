"""What an episode leaves, held against what the row's gold calls leave."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import enum
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rlenv._base.paths import remove
from rlenv.checks.validate import validate
from rlenv.concurrency.deadline import Countdown, running_under
from rlenv.episodes.environment import Environment
from rlenv.errors import RewardError, SpecError
from rlenv.resources import CopiedDict, Lent, copy_of, lent
from rlenv.resources.base import Folder
from rlenv.resources.sql import Rows
from rlenv.rewards.state import _dump, _dump_rows, _find_difference, snapshot
from rlenv.trajectory import TermResult, Trajectory

FUNCTIONS = '''
import random

from rlenv.errors import EpisodeError, ToolFailed


class Shop:
    def __init__(self, task, seed):
        self.orders = {one: "open" for one in task["orders"]}
        self.log, self.dice, self._tags = [], random.Random(seed), {("a", 1)}
        self.me = self if task.get("circle") else None


def cancel(order: str, shop: Shop) -> str:
    """Cancels."""
    if order == "down":
        raise EpisodeError("the shop is down", reason="shop")
    if order in ("ended", "worker", "busy", "stalled", "crashed"):
        if not shop.log and order == "ended":
            raise ToolFailed("it was ended", reason="worker", details={"process": "by signal 9"})
        if not shop.log:
            raise ToolFailed("it is not available", reason=order)
        order = "a"
    if order == "lost":
        raise EpisodeError("the shop is lost", reason="shop")
    if order not in shop.orders:
        raise ToolFailed("there is no such order")
    shop.orders[order] = "cancelled"
    return "cancelled"


def note(text: str, shop: Shop) -> str:
    """Notes."""
    shop.log.append(text)
    return "noted"


def orders(shop: Shop):
    return sorted(shop.orders.items())
'''

SPEC = """
rlenv: 1
name: shop
tasks: {train: {rows: [{n: 0}]}}
prompt: {user: "Do it."}
resources: {shop: {kind: python, function: "tools.py:Shop"}}
tools:
  cancel: {kind: python, function: "tools.py:cancel", inject: [shop], mutates: true}
  note: {kind: python, function: "tools.py:note", inject: [shop], mutates: true}
limits: {invalid_actions: 9}
rewards: {books: {kind: state%s}}
"""


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def run(environment: Environment, actions: list[str], **row: Any) -> Trajectory:
    async def main() -> Trajectory:
        async with environment.start(task={"orders": ["a", "b"], **row}) as episode:
            for action in [*actions, "Done."]:
                await episode.step(action)
            return episode.trajectory

    return asyncio.run(main())


def books(environment: Environment, actions: list[str], gold: Any, **row: Any) -> TermResult:
    return run(environment, actions, gold=gold, **row).reward.terms["books"]


CANCEL = {"name": "cancel", "arguments": {"order": "a"}}


@pytest.mark.parametrize(
    ("actions", "gold", "value"),
    [
        ([call("cancel", order="a")], [CANCEL], 1),
        ([call("cancel", order="a")], json.dumps([CANCEL]), 1),
        ([call("cancel", order="a"), call("cancel", order="b")], [CANCEL], 0),
        ([], [CANCEL], 0),
        ([], [], 1),
        ([call("cancel", order="z"), call("cancel", order="a")], [CANCEL], 1),
        ([call("cancel", order="a")], ["cancel(order='z')", "cancel(order='a')"], 1),
        ([call("note", text="\ud800")], [{"note": {"text": "?"}}], 0),
    ],
)
@pytest.mark.parametrize("circle", [False, True])
def test_the_state_is_that_after_the_gold_calls(
    make_environment: Any, actions: list[str], gold: Any, value: float, circle: bool
) -> None:
    environment = make_environment(SPEC % "", tools=FUNCTIONS)
    assert books(environment, actions, gold, circle=circle).value == value


@pytest.mark.parametrize("keys", [", of: [shop.orders]", ', by: "tools.py:orders"'])
def test_a_part_alone_may_be_compared(make_environment: Any, keys: str) -> None:
    environment = make_environment(SPEC % keys, tools=FUNCTIONS)
    noted = [call("note", text="x"), call("cancel", order="a")]
    assert books(environment, noted, [CANCEL]).value == 1
    assert books(environment, [call("cancel", order="b")], [CANCEL]).value == 0
    assert books(make_environment(SPEC % "", tools=FUNCTIONS), noted, [CANCEL]).value == 0


@pytest.mark.parametrize(
    ("keys", "gold", "error"),
    [
        ("", [{"name": "cancel", "arguments": {"order": "down"}}], "the shop is down"),
        ("", 7, "the gold calls cannot be read"),
        (", of: [shop.gone]", [], "there is no 'gone'"),
    ],
)
def test_what_cannot_be_known_is_invalid_and_no_number(make_environment: Any, keys: str, gold: Any, error: str) -> None:
    result = books(make_environment(SPEC % keys, tools=FUNCTIONS), [], gold)
    assert (result.status, result.value) == ("invalid", None)
    assert error in result.error


FOLDER = """
rlenv: 1
name: files
tasks: {train: {rows: [{n: 0}]}}
prompt: {user: "Do it."}
resources: {box: {kind: tempdir}}
tools:
  put: {kind: python, function: "tools.py:put", inject: [box], mutates: true}
  drop: {kind: python, function: "tools.py:drop", inject: [box], mutates: true}
rewards: {books: {kind: state, of: [box.out]}}
"""
PUT = """
def put(file: str, box) -> str:
    (box.path / file).write_text("x")
    return "put"


def drop(file: str, box) -> str:
    (box.path / file).unlink()
    return "dropped"
"""


@pytest.mark.parametrize("actions", [[], [call("put", file="out")], [call("put", file="other")]])
@pytest.mark.parametrize(
    ("gold", "value"),
    [
        (["put(file='out')"], "as the policy"),
        (["put(file='other')"], None),
        ([], None),
        (["put(file='out')", "drop(file='out')"], None),
    ],
)
def test_a_part_of_a_folder_that_no_gold_call_makes_is_invalid_whatever_the_policy_does(
    make_environment: Any, actions: list[str], gold: list[str], value: Any
) -> None:
    result = books(make_environment(FOLDER, tools=PUT), actions, gold)
    assert result.status == ("invalid" if value is None else "valid"), result
    assert result.value == (None if value is None else float(actions == [call("put", file="out")]))
    assert value is not None or "there is no 'out' in 'box'" in result.error


def test_a_part_of_a_folder_that_the_gold_calls_remove_is_to_be_removed(make_environment: Any, tmp_path: Path) -> None:
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "out").write_text("x")
    environment = make_environment(FOLDER.replace("tempdir}", "tempdir, path: start}"), tools=PUT)
    for actions, value in (([], 0), ([call("drop", file="out")], 1)):
        assert books(environment, actions, ["drop(file='out')"]).value == value


@pytest.mark.parametrize(
    ("part", "rows", "count"), [("ouut", ["out"], 1), ("out", ["out"], 0), ("out", ["a", "out"], 0)]
)
def test_a_part_that_no_row_makes_is_a_fault_of_the_spec(
    tmp_path: Path, part: str, rows: list[str], count: int
) -> None:
    (tmp_path / "tools.py").write_text(PUT)
    text = FOLDER.replace("box.out", f"box.{part}").replace(
        "{n: 0}", ", ".join(f"{{n: {at}, gold: [\"put(file='{name}')\"]}}" for at, name in enumerate(rows))
    )
    (tmp_path / "files.yaml").write_text(text)
    faults = validate([tmp_path / "files.yaml"]).faults
    assert [one.where for one in faults] == ["rewards.books"] * count, faults


def test_a_call_that_a_process_took_with_it_leaves_no_number_unless_it_went_well_later(make_environment: Any) -> None:
    environment = make_environment(SPEC % ", function: 'tools.py:orders'", tools=FUNCTIONS)
    lost, logged = call("cancel", order="ended"), call("note", text="x")
    found = books(environment, [lost], [CANCEL])
    assert found.error == "a call of 'cancel' was lost with its process, which was ended from outside"
    assert found.value is None
    assert books(environment, [lost, call("cancel", order="b")], [CANCEL]).value is None
    # What differs is the policy's own where the very call went well later, and nothing is lost of what is right.
    assert books(environment, [lost, call("cancel", order="a")], [CANCEL]).value == 1
    assert books(environment, [lost, logged, lost], [CANCEL]).value == 1
    assert books(environment, [lost, logged, lost, call("cancel", order="b")], [CANCEL]).value == 0
    # A policy can bring about the others.
    for reason in ("worker", "busy", "stalled", "crashed"):
        assert books(environment, [call("cancel", order=reason)], [CANCEL]).value == 0


@pytest.mark.parametrize("left", ["[shop.log]", "[0] * 1_000_001", "[open]", "object()"])
def test_a_state_beyond_the_bounds_is_the_policys_whatever_gives_it(make_environment: Any, left: str) -> None:
    """The call has more levels than are compared, and fewer than an argument may have."""
    deep: Any = 0
    for _ in range(125):
        deep = [deep]
    functions = (
        FUNCTIONS.replace("text: str", "text: list") + f"\n\ndef given(shop):\n    return {left} if shop.log else 1\n"
    )
    for keys in (", of: [shop.log]", ", function: 'tools.py:given'"):
        for weight in ("", ", weight: -1"):
            environment = make_environment(SPEC % (keys + weight), tools=functions)
            found = books(environment, [call("note", text=deep)], [])
            is_spared = not weight or "cannot be read" not in found.evidence
            assert (found.status, found.value) == ("valid", 0.0 if is_spared else 1.0), found.error


def test_a_plain_function_of_a_state_is_called_in_a_thread(make_environment: Any) -> None:
    functions = FUNCTIONS.replace("return sorted(", "assert threading.current_thread() is not MAIN\n    return sorted(")
    functions = "import threading\nMAIN = threading.current_thread()\n" + functions
    assert books(make_environment(SPEC % ', by: "tools.py:orders"', tools=functions), [], []).value == 1


def test_faults_that_the_spec_puts_in_spare_the_gold_calls(make_environment: Any) -> None:
    text = SPEC.replace("inject: [shop], mutates: true}", "inject: [shop], mutates: true, faults: {error: 1}}")
    result = books(make_environment(text % "", tools=FUNCTIONS), [], [CANCEL])
    assert (result.status, result.value) == ("valid", 0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (SPEC % ", of: [shpo]", "shpo"),
        (
            (SPEC % "").replace('Shop"', 'Shop", scope: process'),
            "is made once and has no task|no resource is an episode",
        ),
    ],
)
def test_a_state_that_is_nobodys_is_the_authors_fault(make_environment: Any, text: str, error: str) -> None:
    with pytest.raises(SpecError, match=error):
        make_environment(text, tools=FUNCTIONS)


def test_databases_are_compared_by_their_rows_in_any_order(make_environment: Any, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, state TEXT)")
        connection.execute("INSERT INTO orders VALUES (1, 'open'), (2, 'open')")
    connection.close()
    text = SPEC[: SPEC.index("resources:")] + (
        "resources: {db: {kind: sqlite, path: shop.sqlite, access: copy}}\n"
        "tools: {sql: {kind: sql, resource: db}}\n"
        "rewards: {books: {kind: state, of: [db.orders]}}\n"
    )
    environment = make_environment(text)
    gold = [{"sql": {"sql": f"UPDATE orders SET state = 'gone' WHERE id = {id}"}} for id in (1, 2)]
    right = [call("sql", sql="DELETE FROM orders")] + [
        call("sql", sql=f"INSERT INTO orders VALUES ({id}, 'gone')") for id in (2, 1)
    ]
    assert books(environment, right, gold).value == 1
    assert books(environment, right[:-1], gold).value == 0


TABLES = (
    "resources: {db: {kind: sqlite, path: shop.sqlite, access: copy}}\n"
    "tools: {sql: {kind: sql, resource: db}}\n"
    "rewards: {books: {kind: state%s}}\n"
)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE orders",
        "ALTER TABLE orders RENAME TO gone",
        'CREATE TABLE "a""b" (x)',
        "INSERT INTO orders WITH RECURSIVE n(i) AS (SELECT 3 UNION ALL SELECT i + 1 FROM n LIMIT 100001) "
        "SELECT i, '' FROM n",
        "ALTER TABLE orders ADD COLUMN bad AS (json(state))",
        "UPDATE orders SET id = 9e999",
    ],
)
@pytest.mark.parametrize("keys", ["", ", of: [db.orders]"])
def test_what_a_policy_makes_of_its_database_is_no_reason_for_an_invalid_reward(
    make_environment: Any, tmp_path: Path, statement: str, keys: str
) -> None:
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE orders (id, state TEXT)")
        connection.execute("INSERT INTO orders VALUES (NULL, 'open')")
    connection.close()
    environment = make_environment(SPEC[: SPEC.index("resources:")] + TABLES % keys)
    result = books(environment, [call("sql", sql=statement)], [])
    is_beside = "CREATE" in statement and bool(keys)
    assert (result.status, result.value) == ("valid", 1.0 if is_beside else 0.0), result


SCHEMAS = (
    "CREATE SCHEMA shop; CREATE TABLE shop.orders AS SELECT 1 AS id, 'open' AS state; CREATE TABLE orders (id INT)"
)
GONE = "UPDATE store.orders SET state = 'gone'"


@pytest.mark.parametrize("keys", ["", ", of: [db.store.orders]"])
@pytest.mark.parametrize(
    ("statements", "worth", "alone"),
    [
        ((GONE,), 1, 1),
        ((), 0, 0),
        (("INSERT INTO orders VALUES (1)",), 0, 0),
        (("""CREATE TABLE "store.orders" AS SELECT 1 AS id, 'gone' AS state""",), 0, 0),
        ((GONE, "CREATE SCHEMA other", "CREATE TABLE other.orders (id INT)"), 0, 1),
        ((GONE, "CREATE SCHEMA shop", "CREATE TABLE shop.shop.orders (id INT)"), 0, 1),
        ((GONE, "CREATE SCHEMA other", "CREATE TABLE other.gone (id INT)"), 0, 1),
        ((GONE, "DROP TABLE orders"), 0, 1),
    ],
)
def test_tables_of_a_schema_are_its_own(
    make_environment: Any, tmp_path: Path, statements: tuple[str, ...], worth: int, alone: int, keys: str
) -> None:
    duckdb = pytest.importorskip("duckdb", reason="the extra `duckdb` is not installed")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE SCHEMA store; CREATE TABLE store.orders AS SELECT 1 AS id, 'open' AS state")
        connection.execute("CREATE TABLE orders (id INT)")
    text = SPEC[: SPEC.index("resources:")] + TABLES.replace("sqlite", "duckdb") % keys
    environment = make_environment(text)
    result = books(environment, [call("sql", sql=sql) for sql in statements], [{"sql": {"sql": GONE}}])
    assert (result.status, result.value) == ("valid", alone if keys else worth), result


def test_a_table_whose_name_only_resembles_the_engines_own_is_compared(make_environment: Any, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE sqlite3_orders (id INTEGER)")
    connection.close()
    environment = make_environment(SPEC[: SPEC.index("resources:")] + TABLES % "")
    assert books(environment, [call("sql", sql="INSERT INTO sqlite3_orders VALUES (1)")], []).value == 0
    assert books(environment, [], []).value == 1


DEEP = "import os\nfor _ in range(3000): os.mkdir('deep'); os.chdir('deep')"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: os.mkfifo(folder / "pipe"),
        lambda folder: (folder / "link").symlink_to("/tmp"),
        lambda folder: (folder / "file").write_text("other"),
        lambda folder: os.truncate(folder / "file", 2**40),
        lambda folder: (folder / "file").unlink(),
        lambda folder: [(folder / "file").unlink(), (folder / "file").symlink_to("/etc/passwd")],
        lambda folder: subprocess.run([sys.executable, "-I", "-S", "-c", DEEP], cwd=folder, check=True),
    ],
)
@pytest.mark.parametrize("part", ["", "file"])
def test_any_other_content_of_a_folder_is_another_state(tmp_path: Path, change: Any, part: str) -> None:
    def seen(folder: Path) -> bytes:
        try:
            return _dump(asyncio.run(snapshot(Folder(folder), part)))
        except RewardError:
            return b"cannot be read"

    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "file").write_text("x")
    before = seen(folder)
    change(folder)
    is_beside = part and not {"pipe", "link", "deep"}.isdisjoint(os.listdir(folder))
    try:
        assert (seen(folder) == before) is bool(is_beside)
    finally:
        remove(folder)


def test_a_part_behind_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "work" / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(RewardError, match="behind a link"):
        asyncio.run(snapshot(Folder(tmp_path / "work"), "out/file"))
    assert asyncio.run(snapshot(Folder(tmp_path / "work"), "out")) == {".": {"link": str(tmp_path / "secret")}}


def test_a_part_behind_a_circle_of_links_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("out")
    (mark,) = asyncio.run(snapshot(Folder(tmp_path), "out/file")).values()
    assert list(mark) == ["cannot be read"]


@dataclasses.dataclass(eq=False)
class Person:
    name: str
    friends: Any = ()


class Shelf(deque[int]):
    """Has attributes, and holds nothing in them."""


class Colour(enum.Enum):
    RED = "red"


def _friends(count: int, kind: type) -> list[Person]:
    people = [Person(str(index), kind()) for index in range(count)]
    for one in people:
        one.friends = kind(people)
    return people


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (float("nan"), None),
        (float("inf"), None),
        (b"ab", "6162"),
        ({1: "x"}, {"1": "x"}),
        ({1: "x"}, {"(key) 1": "x"}),
        (float("nan"), {"(float)": "nan"}),
        ({1}, [1]),
        (True, 1),
        (10**5_000, 10**5_000 + 1),
        (Decimal("1.5"), Decimal("1.6")),
        (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
        (deque([1, 2]), deque([1, 3])),
        (random.Random(1), random.Random(2)),
        (Shelf([1]), Shelf([2])),
        (ValueError("a"), ValueError("b")),
        (iter([1, 2]), iter([1, 3])),
        (Person("a"), {"name": "a", "friends": []}),
        (Colour.RED, "red"),
        (uuid.UUID(int=7), str(uuid.UUID(int=7))),
        (datetime.date(2026, 1, 1), "2026-01-01"),
        (float("inf"), float("nan")),
        ({"a": 1}, {"a": 1, "b": None}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unequal_values_are_unequal_states(one: Any, other: Any) -> None:
    assert _dump(one) != _dump(other)
    assert _dump([one]) != _dump([other])
    assert _dump(one) == _dump(copy.deepcopy(one))
    assert _find_difference("world", {"x": one, "y": 1}, {"x": other, "y": 1}).startswith("world.x")
    assert _find_difference("world", {"x": one}, {"x": copy.deepcopy(one)}) == ""


def test_equal_values_are_equal_states() -> None:
    assert _dump_rows([[2**70, "a"], [1.0, "\ud800"]]) == _dump_rows([[1, "\ud800"], [2**70, "a"]])
    assert _dump({"a": 1, "b": [2.0]}) == _dump({"b": (2,), "a": 1.0})
    assert _dump(_friends(3, list)) == _dump(_friends(3, list))
    assert _dump(_friends(3, set)) == _dump(_friends(3, set))
    assert _find_difference("world", {"a": 1, "b": {"c": [2.0], "d": 0}}, {"b": {"d": -0.0, "c": (2,)}, "a": 1.0}) == ""


@pytest.mark.parametrize("value", [_friends(12, list), _friends(12, set)])
def test_what_is_too_large_to_be_written_is_said_so(value: Any) -> None:
    with pytest.raises(RewardError, match="more than 10,000 parts"):
        _dump(value, most=10_000)


def test_what_is_nested_too_deep_is_no_equal_state() -> None:
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    with pytest.raises(RewardError, match="nested too deep"):
        _dump(value)


def test_what_has_no_state_that_can_be_seen_is_no_equal_state() -> None:
    class Slotted:
        __slots__ = ("x",)

        def __init__(self, x: int) -> None:
            self.x = x

    assert _dump(Slotted(1)) != _dump(Slotted(2))
    assert _dump({"a": {3, 1}, (1, 2): b"x"}) == _dump({(1, 2): b"x", "a": {1, 3}})
    assert _dump(2**70) != _dump(2**70 + 1)
    with pytest.raises(RewardError, match="give 'function' one"):
        _dump(object())
    with pytest.raises(RewardError, match="give 'function' one"):
        _dump(threading.Lock())
    assert asyncio.run(snapshot({"a": {"b": 1}}, "a.b")) == 1


WIDE = {"orders": {str(n): {"lines": [n], "at": {str(k): {"seats": k} for k in range(20)}} for n in range(30)}}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda own: None, ""),
        (lambda own: [list(own["orders"].values()), own["orders"]["3"]["at"]["4"]], ""),
        (lambda own: own["orders"]["3"]["lines"].append(own["orders"]["3"]["lines"].pop()), ""),
        (lambda own: own["orders"].update({"3": own["orders"].pop("3")}), ""),
        (lambda own: own["orders"]["3"]["at"]["4"].update(seats=4.0), ""),
        (lambda own: own["orders"]["3"]["at"]["4"].update(seats=5), "orders.3"),
        (lambda own: own["orders"]["1"]["at"]["1"].update(seats=True), "orders.1"),
        (lambda own: own["orders"]["3"]["lines"].append(None), "orders.3"),
        (lambda own: own["orders"].pop("3"), "'3'"),
        (lambda own: own["orders"].update({"3": own["orders"]["4"]}), "orders.3"),
        (lambda own: own["orders"]["3"].update(at=own["orders"]["4"]["at"]), ""),
        (lambda own: own["orders"].setdefault("new", 1), "'new'"),
        (lambda own: own["orders"].update({3: 1}), "3"),
        (lambda own: own["orders"].clear(), "orders"),
        (lambda own: own.update(orders=[]), "orders"),
    ],
)
@pytest.mark.parametrize("is_read", [False, True])
def test_copies_are_compared_by_what_differs_in_them_and_equal_where_their_data_is(
    change: Any, where: str, is_read: bool
) -> None:
    shared = lent(WIDE)
    gold, own = copy_of(shared), copy_of(shared)
    if is_read:
        list(gold["orders"].values())
    change(own)
    for one, other in ((gold, own), (own, gold)):
        said = _find_difference("data", one, other)
        assert bool(said) == bool(where)
        assert where in said
        assert bool(said) == (_dump(one) != _dump(other))


@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)])
def test_what_neither_side_has_read_of_a_table_is_not_looked_at(sides: tuple[int, ...]) -> None:
    unread = {str(n): object() for n in range(20)}  # of which nothing says what its state is
    shared = {"a": lent({"n": 1}), "deep": Lent(table=Lent({**unread, "c": lent({"n": 3})}))}
    source = {**shared, **unread}
    both = CopiedDict(source), CopiedDict(source)
    for side in sides:
        both[side]["a"]["n"], both[side]["deep"]["table"]["c"]["n"] = 1, 3
    assert _find_difference("data", *both) == ""


def test_a_table_is_read_in_pieces_each_within_half_of_the_time_that_is_left() -> None:
    """What a policy makes slow to read uses up its own time, and never all that there is."""
    held = [["x" * 1_000, number] for number in range(30_000)]
    seen: list[float] = []

    class Table:
        dialect = "sqlite"

        async def query(self, sql: str, *, deadline: float, max_rows: int, max_size: int, is_urgent: bool) -> Rows:
            seen.append(deadline)
            if "sqlite_master" in sql:
                return Rows(("name",), [["t"]])
            begin = int(sql.rpartition(" ")[2])
            end = begin + min(max_rows, max_size // 1_010)
            assert (sql, max_size <= 4_000_000) == (f'SELECT * FROM "t" LIMIT 100001 OFFSET {begin}', True)
            return Rows(("a", "b"), held[begin:end], truncated=end < len(held))

    async def read() -> Any:
        with running_under(Countdown(10)):
            return await snapshot(Table())

    assert asyncio.run(read()) == {"t": _dump_rows(held)}
    latest = max(seen)
    assert (len(seen) > 7, latest < time.monotonic() + 5) == (True, True)


def test_of_rows_that_are_longer_than_a_piece_one_is_read_at_a_time() -> None:
    """What is parsed holds all else up, so that no more of it comes at once than a row has."""
    held = [["x" * 5_000_000] for _ in range(3)]

    class Table:
        dialect = "sqlite"

        async def query(self, sql: str, *, deadline: float, max_rows: int, max_size: int, is_urgent: bool) -> Rows:
            if "sqlite_master" in sql:
                return Rows(("name",), [["t"]])
            begin = int(sql.rpartition(" ")[2])
            end = begin + min(max_rows, max_size // 5_000_000)
            assert (end - begin <= 1, max_size <= 16_000_000) == (True, True)
            return Rows(("a",), held[begin:end], truncated=end < len(held))

    assert asyncio.run(snapshot(Table())) == {"t": _dump_rows(held)}
