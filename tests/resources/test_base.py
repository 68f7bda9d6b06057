"""Resources that a function makes: opened by name, closed whatever happens."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import ResourceError, SpecError, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.resources import CopiedDict, copy_of, lent
from rlenv.resources.base import TEMPDIR as KIND
from rlenv.resources.base import ResourceContext, TempdirResource, TempdirSpec

FUNCTIONS = '''
import asyncio
import json
import threading
from contextlib import asynccontextmanager, contextmanager

import anyio

LOG = []
OPENING = threading.Event()
GO = threading.Event()
CLOSED = threading.Event()


def value(task, seed, vars):
    """A plain value."""
    return {"task": task["question"], "seed": seed, "vars": vars["a"]}


async def later(seed):
    return [seed]


def first():
    LOG.append("open first")
    yield "first"
    LOG.append("close first")


async def second():
    async with anyio.create_task_group():
        LOG.append("open second")
        try:
            yield "second"
        finally:
            LOG.append("close second")


@contextmanager
def third():
    LOG.append("open third")
    try:
        yield "third"
    finally:
        LOG.append("close third")


class Fourth:
    async def __aenter__(self):
        LOG.append("open fourth")
        return "fourth"

    async def __aexit__(self, *error):
        LOG.append("close fourth")


def broken():
    raise OSError("no such world")


def fragile():
    yield "fragile"
    raise OSError("cannot leave")


def slow():
    OPENING.set()
    GO.wait(20)
    LOG.append("open slow")
    try:
        yield "slow"
    finally:
        LOG.append("close slow")
        CLOSED.set()


class Slowly:
    def __enter__(self):
        OPENING.set()
        GO.wait(20)
        LOG.append("open slow")

    def __exit__(self, *error):
        LOG.append("close slow")
        CLOSED.set()


def odd(speed):
    return speed


def needs_task(task):
    return task


LOADED = []


def data():
    LOADED.append(1)
    return {"orders": {str(n): {"items": [{"n": n}], "state": "open"} for n in range(40)}, "n": 1}


def odd_data():
    return {"orders": {"a": {1, 2}}}


def cancel(order: str, data) -> str:
    """Cancels."""
    data["orders"][order]["items"].append({"n": -1})
    return json.dumps(data["orders"])


def see(first, third) -> str:
    """Sees resources."""
    return f"{first} {third}"
'''

SPEC = """
rlenv: 1
name: worlds
vars: {{a: 1}}
tasks: {{train: {{rows: [{{question: a}}, {{question: b}}]}}}}
prompt: {{user: "{{{{ task.question }}}}"}}
resources: {{{resources}}}
{tools}
rewards: {{answered: {{kind: rule, rule: answered}}}}
"""

Make = Callable[..., Any]


def made(make_environment: Make, *entries: str, tools: str = "", **overrides: Any) -> Any:
    named = (entry.split(":", 1) if ":" in entry else (entry, "") for entry in entries)
    resources = ", ".join(f'{name}: {{kind: python, function: "tools.py:{name}"{more}}}' for name, more in named)
    return make_environment(SPEC.format(resources=resources, tools=tools), tools=FUNCTIONS, **overrides)


def module(environment: Any, name: str) -> dict[str, Any]:
    function = environment.parts.resources[name].function
    return getattr(function, "__wrapped__", function).__globals__


def test_task_seed_and_constants_are_given_by_name(make_environment: Make) -> None:
    async def main() -> None:
        environment = made(make_environment, "value", "later")
        async with environment.start(task=1, seed=4) as episode:
            assert episode.resources == {"value": {"task": "b", "seed": 4, "vars": 1}, "later": [4]}

    asyncio.run(main())


@pytest.mark.parametrize("run_in", ["thread", "loop"])
def test_resources_are_closed_in_reverse_order(make_environment: Make, run_in: str) -> None:
    environment = made(make_environment, f"first:, run_in: {run_in}", "second", f"third:, run_in: {run_in}", "Fourth")
    log = module(environment, "first")["LOG"]

    async def main() -> None:
        async with environment.start() as episode:
            assert list(episode.resources.values()) == ["first", "second", "third", "fourth"]

    asyncio.run(main())
    names = ["first", "second", "third", "fourth"]
    assert log == [f"open {name}" for name in names] + [f"close {name}" for name in reversed(names)]


def test_resources_are_closed_where_the_episode_is_cancelled_or_fails(make_environment: Make) -> None:
    environment = made(make_environment, "first", "second", "third")
    log = module(environment, "first")["LOG"]

    async def cancelled() -> None:
        is_open = asyncio.Event()

        async def play() -> None:
            async with environment.start():
                is_open.set()
                await asyncio.Event().wait()

        playing = asyncio.create_task(play())
        await is_open.wait()
        playing.cancel()
        await playing

    async def failed() -> None:
        async with environment.start():
            raise KeyError("the caller's own")

    for work, error in ((cancelled, asyncio.CancelledError), (failed, KeyError)):
        log.clear()
        with pytest.raises(error):
            asyncio.run(work())
        assert log[3:] == ["close third", "close second", "close first"]


@pytest.mark.parametrize("name", ["slow", "Slowly"])
def test_what_is_opened_while_the_episode_is_cancelled_is_closed_too(make_environment: Make, name: str) -> None:
    environment = made(make_environment, "first", name)
    state = module(environment, "first")

    async def main() -> None:
        opening = asyncio.ensure_future(environment.start().open())
        await asyncio.to_thread(state["OPENING"].wait, 20)
        opening.cancel()
        await asyncio.sleep(0)
        state["GO"].set()
        await asyncio.wait((opening,), timeout=20)
        assert opening.cancelled()

    asyncio.run(main())
    assert state["LOG"] == ["open first", "open slow", "close slow", "close first"]


@pytest.mark.parametrize("name", ["slow", "Slowly"])
def test_one_that_hangs_while_it_opens_costs_the_episode_its_time_and_is_closed_once_it_goes_on(
    make_environment: Make, name: str
) -> None:
    environment = made(make_environment, "first", name, limits__episode_s=0.1)
    state = module(environment, "first")

    async def main() -> Any:
        async with environment.start() as episode:
            return episode.trajectory

    trajectory = asyncio.run(main())
    assert trajectory.reward.total is None
    assert "did not open within 0.1 s" in trajectory.failure.message
    assert state["LOG"] == ["open first", "close first"]
    state["GO"].set()
    assert state["CLOSED"].wait(20)
    assert state["LOG"][2:] == ["open slow", "close slow"]


def test_one_that_cannot_be_opened_makes_the_reward_invalid_and_the_others_are_closed(make_environment: Make) -> None:
    environment = made(make_environment, "first", "broken")

    async def main() -> Any:
        async with environment.start() as episode:
            return episode.trajectory

    trajectory = asyncio.run(main())
    assert trajectory.reward.total is None
    assert trajectory.failure.reason == "resource"
    assert "the resource 'broken' cannot be opened: OSError: no such world" in trajectory.failure.message
    assert module(environment, "first")["LOG"] == ["open first", "close first"]


def test_one_that_cannot_be_closed_is_logged_and_the_reward_stands(
    make_environment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    environment = made(make_environment, "first", "fragile")

    async def main() -> Any:
        async with environment.start() as episode:
            await episode.step("<answer>x</answer>")
            return episode.trajectory

    with caplog.at_level(logging.WARNING, logger="rlenv.resources"):
        trajectory = asyncio.run(main())
    assert trajectory.reward.total == 1.0
    assert "resource 'fragile' cannot be closed" in caplog.text
    assert module(environment, "first")["LOG"] == ["open first", "close first"]


def test_one_of_scope_process_is_made_once_and_closed_with_the_environment(make_environment: Make) -> None:
    environment = made(make_environment, "first:, scope: process", "third")
    log = module(environment, "first")["LOG"]

    async def main() -> None:
        async def episode() -> None:
            async with environment.start() as started:
                assert started.resources == {"first": "first", "third": "third"}

        async with environment:
            await asyncio.gather(*(episode() for _ in range(8)))
            assert log.count("open first") == 1
            assert "close first" not in log
        assert log[-1] == "close first"

    asyncio.run(main())


def test_an_episode_that_is_cancelled_while_it_opens_for_all_cancels_no_other(make_environment: Make) -> None:
    environment = made(make_environment, "slow:, scope: process")
    state = module(environment, "slow")

    async def main() -> None:
        async with environment:
            first = asyncio.ensure_future(environment.start().open())
            await asyncio.to_thread(state["OPENING"].wait, 20)
            other = environment.start()
            waiting = asyncio.ensure_future(other.open())
            await asyncio.sleep(0)
            first.cancel()
            state["GO"].set()
            await asyncio.wait((first,), timeout=20)
            await asyncio.wait_for(waiting, 20)
            assert other.resources == {"slow": "slow"}
            await other.aclose()

    asyncio.run(main())
    assert state["LOG"] == ["open slow", "close slow"] * 2


def test_tools_are_given_what_was_made(make_environment: Make) -> None:
    tools = 'tools: {see: {kind: python, function: "tools.py:see", inject: [first, third]}}'
    environment = made(make_environment, "first", "third", tools=tools)

    async def main() -> str:
        async with environment.start() as episode:
            step = await episode.step('<tool_call>\n{"name": "see", "arguments": {}}\n</tool_call>')
            return step.observation.messages[0].content

    assert asyncio.run(main()) == "first third"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("odd", "nothing gives 'speed'; it may take: task, seed, vars"),
        ("needs_task:, scope: process", "has no task; use scope: episode"),
        ("gone", "has no function 'gone'"),
    ],
)
def test_an_authors_mistake_says_what_to_change(make_environment: Make, entry: str, says: str) -> None:
    with pytest.raises(SpecError) as failed:
        made(make_environment, entry)
    assert says in str(failed.value)


# Folders that are gone when the episode is


def test_each_episode_has_a_private_copy_of_data_that_is_loaded_once(make_environment: Make) -> None:
    tools = """
tools: {cancel: {kind: python, function: "tools.py:cancel", inject: [data], mutates: true}}
"""
    environment = made(make_environment, "data:, access: copy", tools=tools)
    call = '<tool_call>{"name": "cancel", "arguments": {"order": "3"}}</tool_call>'

    async def left(*actions: str) -> Any:
        async with environment.start(task=0) as episode:
            for action in actions:
                await episode.step(action)
            return copy.deepcopy(episode.resources["data"])

    changed, other = asyncio.run(left(call)), asyncio.run(left())
    assert changed["orders"]["3"]["items"] == [{"n": 3}, {"n": -1}]
    assert other["orders"]["3"]["items"] == [{"n": 3}]
    assert module(environment, "data")["LOADED"] == [1]


SOURCE = {"wide": {str(n): {"deep": {"a": [n]}} for n in range(20)}, "list": [[1], {"b": 2}], "text": "x"}


@pytest.mark.parametrize(
    "reached",
    [
        lambda copied: copied["wide"]["3"],
        lambda copied: copied["wide"].get("3"),
        lambda copied: copied["wide"].setdefault("3", {}),
        lambda copied: copied["wide"].pop("3"),
        lambda copied: dict(copied["wide"])["3"],
        lambda copied: {**copied["wide"]}["3"],
        lambda copied: (lambda **named: named["3"])(**copied["wide"]),
        lambda copied: (copied["wide"] | {})["3"],
        lambda copied: ({} | copied["wide"])["3"],
        lambda copied: copied["wide"].copy()["3"],
        lambda copied: copy.copy(copied["wide"])["3"],
        lambda copied: copy.deepcopy(copied["wide"])["3"],
        lambda copied: pickle.loads(pickle.dumps(copied["wide"]))["3"],
        lambda copied: list(copied["wide"].values())[3],
        lambda copied: dict(copied["wide"].items())["3"],
        lambda copied: dict(reversed(copied["wide"].items()))["3"],
        lambda copied: list(reversed(copied["wide"].values()))[-4],
        lambda copied: [copied["wide"].popitem() for _ in range(17)][-1][1],
    ],
)
def test_nothing_that_is_read_of_a_copy_belongs_to_another(reached: Callable[[Any], Any]) -> None:
    shared = lent(SOURCE)
    copied = copy_of(shared)
    part = reached(copied)
    part["deep"]["a"].append(-1)
    part["new"] = 1
    assert copy_of(shared) == SOURCE
    assert lent(SOURCE) == shared


def test_a_copy_is_a_dict_in_all_else() -> None:
    copied = copy_of(lent(SOURCE))
    wide = copied["wide"]
    assert type(wide) is CopiedDict
    assert wide == SOURCE["wide"]
    assert json.dumps(copied) == json.dumps(SOURCE)
    mine = {"deep": 1}
    wide["3"] = mine
    wide.update({"4": mine})
    wide |= {"5": mine}
    assert wide["3"] is wide["4"] is wide["5"] is mine  # what was put in is what comes out
    del wide["6"]
    assert list(wide) == [str(n) for n in range(20) if n != 6]
    assert "6" not in wide
    assert len(wide) == 19
    wide.clear()
    assert wide == {}
    assert not wide


def test_a_search_copies_what_it_looks_at() -> None:
    shared = lent(SOURCE)
    wide, other = copy_of(shared)["wide"], copy_of(shared)["wide"]
    assert next(key for key, part in wide.items() if part["deep"]["a"] == [2]) == "2"
    assert next(part for part in other.values())["deep"]["a"] == [0]
    assert [key for key in wide if dict.get(wide, key) is not dict.get(shared["wide"], key)] == ["0", "1", "2"]
    other["1"]["deep"]["a"].append(1)
    assert list(wide.touched(other)) == ["0", "1", "2"]
    assert list(other.touched(shared["wide"])) == ["0", "1"]
    assert list(wide.touched(copy_of(lent(SOURCE))["wide"])) == list(SOURCE["wide"])  # of other data


def test_what_reads_past_a_copy_can_change_nothing() -> None:
    shared = lent(SOURCE)
    inside = dict.__getitem__(copy_of(shared)["wide"], "3")
    for change in (
        lambda: inside.update(a=1),
        lambda: inside.__setitem__("a", 1),
        lambda: inside["deep"]["a"].append(1),
        lambda: inside["deep"]["a"].sort(),
        lambda: inside["deep"].pop("a"),
    ):
        with pytest.raises(TypeError, match="shared by all episodes"):
            change()
    assert shared == SOURCE


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("data:, access: copy, scope: process", "use scope: episode"),
        ("value:, access: copy", "without a task and a seed"),
        ("first:, access: copy", "plain function"),
        ("data:, access: read_only", "read_only"),
    ],
)
def test_what_cannot_be_copied_is_the_authors_fault(make_environment: Make, entry: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        made(make_environment, entry)


def test_data_that_json_has_no_word_for_is_named_by_its_place(make_environment: Make) -> None:
    environment = made(make_environment, "odd_data:, access: copy")

    async def main() -> Any:
        async with environment.start(task=0) as episode:
            return episode.trajectory

    failure = asyncio.run(main()).failure
    assert failure is not None
    assert "orders.a is a set" in failure.message


def compiled(base: Path, **keys: Any) -> TempdirResource:
    made = KIND.factory("work", TempdirSpec(kind="tempdir", **keys), CompileContext(base=base))
    assert isinstance(made, TempdirResource)
    return made


def test_each_episode_has_its_own_folder_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    async def main() -> list[Path]:
        resource = compiled(tmp_path)
        async with resource.open(ResourceContext()) as one, resource.open(ResourceContext()) as other:
            (one.path / "a").write_text("1", encoding="utf-8")
            assert one.path != other.path
            assert list(other.path.iterdir()) == []
            return [one.path, other.path]

    assert not any(path.exists() for path in asyncio.run(main()))


def test_it_starts_with_a_copy_that_may_be_changed(tmp_path: Path) -> None:
    (tmp_path / "a1" / "deep").mkdir(parents=True)
    (tmp_path / "a1" / "deep" / "file").write_text("as it was", encoding="utf-8")

    async def main() -> None:
        resource = compiled(tmp_path, path="{{ task.name }}")
        async with resource.open(ResourceContext({"name": "a1"})) as folder:
            assert (folder.path / "deep" / "file").read_text(encoding="utf-8") == "as it was"
            (folder.path / "deep" / "file").write_text("changed", encoding="utf-8")

    asyncio.run(main())
    assert (tmp_path / "a1" / "deep" / "file").read_text(encoding="utf-8") == "as it was"


def test_it_is_removed_where_the_episode_is_cancelled(tmp_path: Path) -> None:
    async def main() -> Path:
        opened: asyncio.Future[Path] = asyncio.get_running_loop().create_future()

        async def play() -> None:
            async with compiled(tmp_path).open(ResourceContext()) as folder:
                opened.set_result(folder.path)
                await asyncio.Event().wait()

        playing = asyncio.create_task(play())
        place = await opened
        assert place.exists()
        playing.cancel()
        await asyncio.wait((playing,))
        return place

    assert not asyncio.run(main()).exists()


def test_whatever_was_made_in_it_is_removed_beside_the_event_loop(tmp_path: Path) -> None:
    script = "import os\nfor n in range(20_000): open(str(n), 'w')\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"

    async def main() -> Path:
        async with compiled(tmp_path).open(ResourceContext()) as folder:
            await asyncio.to_thread(
                subprocess.run, [sys.executable, "-I", "-S", "-c", script], cwd=folder.path, check=True
            )
            began = time.thread_time()
        assert time.thread_time() - began < 0.05
        return folder.path

    assert not asyncio.run(main()).exists()


@pytest.mark.parametrize(("path", "is_filled"), [("a1", True), ("{{ task.name }}", False)])
def test_links_of_a_folder_that_a_row_names_stay_inside(tmp_path: Path, path: str, is_filled: bool) -> None:
    (tmp_path / "specs" / "a1").mkdir(parents=True)
    (tmp_path / "secret").write_text("of another", encoding="utf-8")
    (tmp_path / "specs" / "a1" / "link").symlink_to(tmp_path / "secret")

    async def main() -> str:
        async with compiled(tmp_path / "specs", path=path).open(ResourceContext({"name": "a1"})) as folder:
            return (folder.path / "link").read_text(encoding="utf-8")

    if is_filled:
        assert asyncio.run(main()) == "of another"
    else:
        with pytest.raises(ResourceError, match="cannot be filled"):
            asyncio.run(main())


def test_what_it_starts_with_has_to_be_there(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ResourceError, match="cannot be filled"):
            async with compiled(tmp_path, path="gone").open(ResourceContext()):
                pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"path": "{{ tsk.a }}"}, "'tsk' is not known here"),
        ({"path": "{{ task.a }}", "scope": "process"}, "cannot depend on the task"),
        ({"path": "{{ task.a"}, "path"),
    ],
)
def test_an_authors_mistake_says_what_to_change_in_tempdir(tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compiled(tmp_path, **keys)
