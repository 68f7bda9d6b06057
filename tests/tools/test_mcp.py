"""Tools of MCP servers: what the model sees, and what happens when a server misbehaves."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")

from rlenv.concurrency.scope import Scope
from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext
from rlenv.messages import Image, ToolResult
from rlenv.resources.base import Folder
from rlenv.testing.tools import call, check_tool, context, kept
from rlenv.tools._mcp import SPOILT, TOO_LARGE, too_long
from rlenv.tools.base import Tool, ToolContext, asked_again
from rlenv.tools.mcp import KIND, McpSpec
from tests.support.mcp import come

SERVERS = Path(__file__).parent / "servers"
# Two processors under load start a server in seconds, not in half a second.
SLOW: dict[str, Any] = {"timeout_s": 100.0, "start_timeout_s": 90.0}
Make = Callable[[], ToolContext]

pytestmark = pytest.mark.timeout(240)


def lab(*flags: str, **keys: Any) -> dict[str, Tool]:
    spec = McpSpec(kind="mcp", **{"command": ("python", "lab.py", *flags), **SLOW, **keys})
    return {tool.name: tool for tool in KIND.factory("lab", spec, CompileContext(base=SERVERS))}


def within(work: Callable[[Make], Awaitable[Any]]) -> Any:
    """What `work` gives, in one environment that is closed afterwards."""

    async def main() -> Any:
        async with kept(lambda: context(seconds=120)) as make:
            return await work(make)

    return asyncio.run(asyncio.wait_for(main(), 200))


def results(tools: Mapping[str, Tool], *calls: tuple[str, dict[str, Any]]) -> list[ToolResult]:
    async def work(make: Make) -> list[ToolResult]:
        return [await call(tools[name], arguments, within=make()) for name, arguments in calls]

    found: list[ToolResult] = within(work)
    return found


def one(name: str, **arguments: Any) -> ToolResult:
    (result,) = results(lab(), (name, arguments))
    return result


async def process_of(tools: Mapping[str, Tool], make: Make) -> int:
    result = await call(tools["place"], {}, within=make())
    assert result.outcome == "ok", result
    return int(result.text.split()[-1])


def _watchers() -> list[str]:
    """The threads in which asyncio waits for the end of children."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("waitpid-")]


def is_alive(pid: int) -> bool:
    try:
        return (Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]) != "Z"
    except OSError:
        return False


async def until(holds: Callable[[], bool], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.01)


# What a server has


@pytest.mark.slow
def test_one_entry_brings_all_tools_with_the_servers_words() -> None:
    tools = lab()
    assert {"echo", "add", "mixed"} <= set(tools)
    assert tools["echo"].description == "Give the text back."
    assert tools["add"].parameters["required"] == ["a", "b"]
    assert tools["add"].parameters["type"] == "object"


@pytest.mark.slow
@pytest.mark.parametrize(("scope", "shares"), [("process", True), ("pool", True), ("episode", False)])
def test_a_server_of_several_episodes_keeps_what_none_of_them_left_alone(scope: str, shares: bool) -> None:
    assert all(bool(tool.shares) is shares for tool in lab(scope=scope).values())


def test_what_the_server_says_about_its_tools_decides_what_may_be_repeated() -> None:
    tools = lab()
    assert (tools["echo"].idempotent, tools["echo"].mutates) == (True, False)
    assert (tools["add"].idempotent, tools["add"].mutates) == (True, True)
    assert (tools["count"].idempotent, tools["count"].mutates) == (False, True)
    assert (tools["wait"].idempotent, tools["wait"].mutates) == (False, False)
    said = lab(mutates=False, idempotent=True)["count"]
    assert (said.idempotent, said.mutates) == (True, False)
    assert [one.may_write for one in (tools["echo"], tools["add"], said)] == [False, True, False]


@pytest.mark.slow
def test_tools_are_chosen_and_renamed() -> None:
    chosen = lab(include=("e*", "add", "wait"), exclude=("environment",), rename={"wait": "sleep"}, prefix="lab_")
    assert list(chosen) == ["lab_echo", "lab_add", "sleep"]
    assert results(chosen, ("lab_add", {"a": 1, "b": 2}))[0].text == "3"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"include": ("ecko",)}, "include: the server 'lab' has no tool 'ecko'; did you mean 'echo'?"),
        ({"exclude": ("zzz*",)}, "exclude: the server 'lab' has no tool 'zzz*'; it has: echo,"),
        ({"exclude": ("*",)}, "no tool of the server 'lab' is left"),
        ({"rename": {"echo": "say it"}}, "'say it' is no name that models can call"),
        ({"description": "Does things."}, "description: the entry gives 20 tools"),
        ({"workers": 3}, "workers: it is read only with 'scope: pool'"),
        ({"headers": {"a": "b"}}, "headers: it is read only with 'url'"),
        ({"url": "http://127.0.0.1:1/mcp"}, "either 'command' or 'url', and here are both"),
        ({"command": None}, "either 'command' or 'url', and here are neither"),
        ({"env": {"A": "{{ task.a }}"}}, "env.A: 'task' is not known here; known names: vars"),
        ({"pin": "none.json"}, "pin: there is no file 'none.json'"),
    ],
)
def test_what_does_not_fit_together_is_the_authors_fault(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        lab(**keys)
    assert message in str(raised.value)


@pytest.mark.slow
def test_a_server_that_does_not_start_is_the_authors_fault_with_its_last_words() -> None:
    with pytest.raises(UsageError, match=r"does not start: .*\(exit code 1\); it wrote: the lab is closed today"):
        lab("--refuse")


def test_a_program_that_does_not_exist_is_the_authors_fault() -> None:
    with pytest.raises(UsageError, match="there is no program 'no-such-program'"):
        KIND.factory("lab", McpSpec(kind="mcp", command=("no-such-program",)), CompileContext(base=SERVERS))


@pytest.mark.slow
def test_a_server_that_is_too_slow_to_start_is_the_authors_fault() -> None:
    with pytest.raises(UsageError, match=r"no answer within 0\.2 s"):
        lab("--delay", "600", start_timeout_s=0.2)


def test_a_server_that_nobody_listens_for_is_the_authors_fault() -> None:
    spec = McpSpec(kind="mcp", url="http://127.0.0.1:9/mcp")
    with pytest.raises(UsageError, match=r"the MCP server 'far' .* cannot be reached"):
        KIND.factory("far", spec, CompileContext(base=SERVERS))


@pytest.mark.slow
def test_a_spec_can_be_compiled_inside_a_running_loop() -> None:
    async def main() -> set[str]:
        return set(lab("--delay", "0.01"))

    assert "echo" in asyncio.run(main())


# What the model sees


@pytest.mark.slow
def test_it_keeps_the_laws_of_tools() -> None:
    check_tool(lab()["echo"], good=[{"text": "a"}, {"text": ""}, {"text": "ü\n\u2028"}], bad=[{"text": 3}, {}])


@pytest.mark.slow
def test_parts_of_every_kind_become_text_images_and_a_value() -> None:
    result = one("mixed")
    assert result.text.splitlines() == [
        "first",
        "a note",
        "[application/zip resource lab://pack]",
        "[resource report at lab://report: the long one]",
        "[audio/wav]",
        "last",
    ]
    assert [image.mime for image in result.images] == ["image/png", "image/jpeg"]
    assert result.value == {"parts": 8}


@pytest.mark.slow
def test_an_image_alone_and_nothing_at_all_have_a_text() -> None:
    picture, nothing = results(lab(), ("picture", {}), ("nothing", {}))
    assert picture.text == "(1 image)"
    assert isinstance(picture.images[0], Image)
    assert nothing.text == "(no text)"


@pytest.mark.slow
def test_a_failure_that_the_server_declares_is_shown() -> None:
    result = one("refuse", why="the shelf is empty")
    assert (result.outcome, result.reason, result.text) == ("failed", "refused", "the shelf is empty")


@pytest.mark.slow
def test_noise_progress_requests_and_changes_disturb_no_call() -> None:
    tools = lab("--noise")
    found = results(
        tools,
        ("noise", {"lines": 50}),
        ("progress", {"steps": 20}),
        ("ask", {}),
        ("change", {}),
        ("large", {"size": 3_000_000}),
        ("echo", {"text": "still here"}),
    )
    assert [result.outcome for result in found] == ["ok"] * 6
    assert found[-1].text == "still here"


@pytest.mark.slow
def test_the_server_sees_no_environment_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_SECRET", "correct-horse-battery")
    monkeypatch.setenv("OTHER_SECRET", "never-to-be-seen")
    (result,) = results(lab(env={"TOKEN": "${env:LAB_SECRET}", "PLAIN": "seen"}), ("environment", {}))
    names = {line.partition("=")[0] for line in result.text.splitlines()}
    assert names - {"LC_CTYPE", "RLENV_CALL"} == {"PATH", "TOKEN", "PLAIN"}
    assert "correct-horse-battery" not in result.text
    assert "TOKEN=${env:LAB_SECRET}" in result.text


@pytest.mark.slow
def test_constants_and_secrets_fill_what_starts_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_PASSWORD", "{{ hunter }} two")
    spec = McpSpec(
        kind="mcp",
        command=("python", "{{ vars.file }}.py"),
        env={"WHO": "{{ vars.who }}", "PASS": "${env:LAB_PASSWORD}"},
        **SLOW,
    )
    where = CompileContext(base=SERVERS, vars={"file": "lab", "who": "Ann"})
    tools = {tool.name: tool for tool in KIND.factory("lab", spec, where)}
    (result,) = results(tools, ("environment", {}))
    assert "WHO=Ann" in result.text.splitlines()
    assert "PASS=${env:LAB_PASSWORD}" in result.text.splitlines()


@pytest.mark.slow
def test_a_server_of_an_episode_is_told_its_task_and_its_resources(tmp_path: Path) -> None:
    spec = McpSpec(
        kind="mcp",
        command=(sys.executable, str(SERVERS / "lab.py")),
        cwd="{{ resources.work.path }}",
        env={"ORDER": "{{ task.n }}", "AT": "{{ resources.work }}/x"},
        scope="episode",
        **SLOW,
    )
    where = CompileContext(base=SERVERS, resources={"work": None}, row=lambda: {"n": 0})
    tools = {tool.name: tool for tool in KIND.factory("lab", spec, where)}
    made = [Folder(tmp_path / str(n)) for n in (1, 2)]

    async def shown(make: Make, n: int) -> list[str]:
        made[n - 1].path.mkdir()
        episode = Scope()
        try:
            told = replace(make(), task={"n": n}, resources={"work": made[n - 1]}, scope=lambda: episode)
            environment = await call(tools["environment"], {}, within=told)
            return [*environment.text.splitlines(), (await call(tools["place"], {}, within=told)).text]
        finally:
            await episode.aclose()

    async def work(make: Make) -> list[list[str]]:
        return [await shown(make, n) for n in (1, 2)]

    for n, lines in enumerate(within(work), 1):
        assert {f"ORDER={n}", f"AT={tmp_path / str(n)}/x"} <= set(lines)
        assert lines[-1].startswith(f"{tmp_path / str(n)} ")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"env": {"ORDER": "{{ task.n }}"}}, "'task' is not known here"),
        ({"env": {"ORDER": "{{ resources.lost }}"}, "scope": "episode"}, "lost"),
        ({"cwd": "gone", "command": None, "url": "http://127.0.0.1:9/mcp"}, "read only with 'command'"),
    ],
)
def test_what_no_server_can_be_told_is_the_authors_fault(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        lab(**keys)


# Sessions


@pytest.mark.slow
def test_the_start_of_a_server_is_waiting_of_the_call_that_needs_it() -> None:
    first, second = results(lab(), ("count", {}), ("count", {}))
    assert 0 < first.waited <= first.seconds
    assert second.waited == 0


@pytest.mark.slow
def test_all_episodes_share_a_session_unless_each_asks_for_its_own() -> None:
    async def counts(tools: Mapping[str, Tool], make: Make) -> list[str]:
        found = []
        for _ in range(2):
            episode = Scope()
            try:
                for _ in range(2):
                    result = await call(tools["count"], {}, within=replace(make(), scope=lambda: episode))  # noqa: B023
                    found.append(result.text)
            finally:
                await episode.aclose()
        return found

    assert within(lambda make: counts(lab(), make)) == ["1", "2", "3", "4"]
    assert within(lambda make: counts(lab(scope="episode"), make)) == ["1", "2", "1", "2"]


@pytest.mark.slow
def test_a_pool_starts_no_more_servers_than_its_size(tmp_path: Path) -> None:
    tools = lab("--marks", str(tmp_path / "marks"), scope="pool", workers=2)
    (tmp_path / "marks").unlink()

    async def work(make: Make) -> list[ToolResult]:
        return await asyncio.gather(*(call(tools["wait"], {"seconds": 0.2}, within=make()) for _ in range(8)))

    assert {result.outcome for result in within(work)} == {"ok"}
    assert len((tmp_path / "marks").read_text().split()) == 2


@pytest.mark.slow
def test_calls_at_once_share_one_session_without_waiting_for_each_other() -> None:
    tools = lab()

    async def work(make: Make) -> list[ToolResult]:
        # One after the other, the first would wait for the others for ever.
        return await asyncio.gather(*(call(tools["meet"], {"count": 50}, within=make()) for _ in range(50)))

    assert {result.text for result in within(work)} == {"met"}


# What goes wrong


@pytest.mark.slow
def test_a_call_that_is_too_slow_times_out_and_the_session_lives_on() -> None:
    tools = lab()

    async def work(make: Make) -> tuple[int, ToolResult, int]:
        before = await process_of(tools, make)
        slow = await call(replace(tools["wait"], timeout_s=0.2), {"seconds": 600}, within=make())
        return before, slow, await process_of(tools, make)

    before, slow, after = within(work)
    assert slow.outcome == "timeout"
    assert before == after


@pytest.mark.slow
def test_a_server_that_answers_nobody_any_more_is_replaced() -> None:
    tools = lab()

    async def work(make: Make) -> tuple[int, ToolResult, int]:
        before = await process_of(tools, make)
        frozen = await call(replace(tools["freeze"], timeout_s=0.2), {}, within=make())
        await until(lambda: not is_alive(before))
        return before, frozen, await process_of(tools, make)

    before, frozen, after = within(work)
    assert frozen.outcome == "timeout"
    assert before != after


@pytest.mark.slow
def test_a_call_that_a_replaced_server_had_is_asked_again_where_no_other_call_is() -> None:
    """What such a server held is gone, as that of one that died; what a call only waited for is not."""
    tools = lab()

    async def work(make: Make) -> tuple[int, int, int]:
        first = await process_of(tools, make)
        await call(replace(tools["freeze"], timeout_s=0.2), {}, within=make())
        await until(lambda: not is_alive(first))
        shared, token = await process_of(tools, make), asked_again.set("late")
        other = Scope()
        try:
            beside = await process_of(tools, lambda: replace(make(), scope=lambda: other))
            return shared, beside, await process_of(tools, make)
        finally:
            asked_again.reset(token)

    shared, beside, again = within(work)
    assert (beside == shared, again == shared) == (True, False)


@pytest.mark.slow
def test_a_reward_asks_a_server_that_cannot_be_started_until_it_is_back(tmp_path: Path) -> None:
    from rlenv.errors import ResourceError

    program = tmp_path / "lab.py"
    copyfile(SERVERS / "lab.py", program)
    tools = lab(cwd=str(tmp_path))

    async def work(make: Make) -> tuple[set[tuple[str, str]], str]:
        program.unlink()
        token = asked_again.set("crashed")  # so that nobody waits between two starts
        try:
            for _ in range(3):
                await call(tools["place"], {}, within=replace(make(), turn=0))
            with pytest.raises(ResourceError, match="several times in a row"):
                await call(tools["place"], {}, within=replace(make(), turn=0))
            found = [await call(tools["place"], {}, within=replace(make(), turn=-1)) for _ in range(8)]
            copyfile(SERVERS / "lab.py", program)
            back = await call(tools["echo"], {"text": "back"}, within=make())
            return {(one.reason, one.whose) for one in found}, back.text
        finally:
            asked_again.reset(token)

    assert within(work) == ({("server_down", "infrastructure")}, "back")


@pytest.mark.slow
def test_an_episode_whose_call_felled_a_server_that_stays_away_goes_on(tmp_path: Path) -> None:
    from rlenv.errors import ResourceError

    program = tmp_path / "lab.py"
    copyfile(SERVERS / "lab.py", program)
    tools, others = lab(cwd=str(tmp_path)), Scope()

    async def work(make: Make) -> set[str | None]:
        token = asked_again.set("crashed")  # so that nobody waits between two starts
        try:
            await process_of(tools, make)
            program.unlink()
            found = [await call(tools["die"], {"code": 3}, within=replace(make(), turn=0))]
            found += [await call(tools["place"], {}, within=replace(make(), turn=0)) for _ in range(8)]
            one = replace(make(), turn=0, scope=lambda: others)
            with pytest.raises(ResourceError, match="several times in a row"):
                found += [await call(tools["place"], {}, within=one) for _ in range(4)]
            return {one.reason for one in found}
        finally:
            asked_again.reset(token)

    assert within(work) == {"crashed", "server_down"}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{"code": 3}, {"code": -9}])
def test_a_server_that_dies_fails_its_calls_at_once_and_is_started_again(arguments: dict[str, Any]) -> None:
    tools = lab()

    async def work(make: Make) -> tuple[list[ToolResult], ToolResult]:
        await process_of(tools, make)
        waiting = asyncio.create_task(call(tools["wait"], {"seconds": 600}, within=make()))
        await asyncio.sleep(0)
        died = await call(tools["die"], arguments, within=make())
        return [died, await waiting], await call(tools["echo"], {"text": "back"}, within=make())

    failed, after = within(work)
    assert [result.outcome for result in failed] == ["failed", "failed"]
    assert failed[0].text == "the server of the tool die stopped during the call"
    assert max(result.seconds for result in failed) < SLOW["timeout_s"]
    assert after.text == "back"


@pytest.mark.slow
def test_a_dead_server_is_noticed_though_a_child_of_it_holds_the_pipes() -> None:
    died, after = results(lab(), ("die_with_child", {}), ("echo", {"text": "back"}))
    assert died.outcome == "failed"
    assert after.text == "back"


@pytest.mark.slow
def test_a_server_that_was_killed_between_calls_is_replaced_without_a_failure() -> None:
    tools = lab()

    async def work(make: Make) -> tuple[int, int]:
        before = await process_of(tools, make)
        os.kill(before, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{before}").exists() and not _watchers())
        # Passes of the loop: it hears of the end, reads the pipes to theirs, and closes the session.
        for _ in range(100):
            await asyncio.sleep(0)
        return before, await process_of(tools, make)

    before, after = within(work)
    assert before != after


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, -1])
def test_what_a_server_of_an_episode_kept_is_lost_where_it_was_killed_between_calls(turn: int) -> None:
    from rlenv.errors import EpisodeError

    tools = lab(scope="episode")

    async def work(make: Make) -> str:
        before = await process_of(tools, make)
        os.kill(before, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{before}").exists() and not _watchers())
        for _ in range(100):
            await asyncio.sleep(0)
        for _ in range(2):  # no later call finds a server that has forgotten the earlier ones either
            with pytest.raises(EpisodeError, match="what it kept is lost") as raised:
                await call(tools["place"], {}, within=replace(make(), turn=turn))
        return raised.value.reason

    assert within(work) == "resource"


@pytest.mark.slow
def test_a_call_that_met_a_dying_server_may_be_tried_again() -> None:
    from rlenv.errors import ToolFailed

    tools = lab()

    async def work(make: Make) -> ToolFailed:
        with pytest.raises(ToolFailed) as raised:
            await tools["die"].run({}, make())
        return raised.value

    failure = within(work)
    assert (failure.reason, failure.retryable) == ("crashed", True)


def test_a_server_that_cannot_live_is_started_less_and_less_often() -> None:
    from rlenv.tools._mcp.link import _Pace

    pace = _Pace()
    waits = []
    for _ in range(8):
        pace.has_ended(0.0)
        waits.append(pace.wait_s)
    assert all(later > earlier for earlier, later in pairwise(waits[:5]))
    assert 5 < waits[-1] <= 10
    pace.has_ended(3600)
    pace.has_ended(0.0)
    assert pace.wait_s < 1


@pytest.mark.parametrize("size", [1, 2])  # calls one after the other take one session, however many there may be
def test_a_server_that_cannot_be_started_any_more_makes_the_reward_invalid(size: int) -> None:
    from rlenv.errors import ResourceError
    from rlenv.tools._mcp.link import open_pool
    from rlenv.tools._mcp.server import Connection, McpServer, ServerDown

    starts = []

    @asynccontextmanager
    async def broken(server: McpServer, **_: Any) -> AsyncIterator[Connection]:
        starts.append(server)
        raise ServerDown("the disk is full")
        yield

    async def main() -> None:
        async with open_pool(McpServer("lab", command=("x",)), size=size, connect=broken, is_trial=True) as pool:
            for _ in range(3):
                with pytest.raises(ServerDown, match="the disk is full"):
                    await pool.call("echo", {}, deadline=0)
            with pytest.raises(ResourceError, match="'lab' could not be started several times in a row"):
                await pool.call("echo", {}, deadline=0)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert len(starts) == 3


# What is left


def _own_children() -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("flags", [(), ("--stubborn",)])
@pytest.mark.parametrize("how", ["closed", "cancelled", "killed"])
def test_nothing_is_left_of_a_server(how: str, flags: tuple[str, ...]) -> None:
    tools = lab(*flags)
    asyncio.run(asyncio.sleep(0))
    gc.collect()  # what other tests left for the collector may not close meanwhile
    children, handles, threads = _own_children(), os.listdir("/proc/self/fd"), threading.active_count()
    seen: list[int] = []

    async def work(make: Make) -> None:
        seen.append(await process_of(tools, make))
        if how == "killed":
            os.kill(seen[0], signal.SIGKILL)
        elif how == "cancelled":
            task = asyncio.create_task(call(tools["wait"], {"seconds": 600}, within=make()))
            await come(tools, 1, make)
            task.cancel()
            await asyncio.wait([task])

    within(work)
    assert not is_alive(seen[0])
    assert _own_children() == children
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(handles)
    assert threading.active_count() <= threads + 1  # a watcher of asyncio may be ending


@pytest.mark.slow
def test_an_environment_can_be_closed_while_its_server_starts() -> None:
    tools = lab("--delay", "0.5")
    children = _own_children()

    async def work(make: Make) -> None:
        task = asyncio.create_task(call(tools["echo"], {"text": "x"}, within=make()))
        await until(lambda: _own_children() != children)
        task.cancel()
        await asyncio.wait([task])

    within(work)
    assert _own_children() == children


@pytest.mark.slow
def test_a_loop_that_ends_without_closing_anything_leaves_no_server() -> None:
    tools = lab()
    children = _own_children()
    shared = Scope()

    async def main() -> None:
        await call(tools["echo"], {"text": "x"}, within=replace(context(seconds=120), shared=lambda: shared))

    asyncio.run(main())
    assert _own_children() == children


@pytest.mark.slow
def test_a_server_is_killed_again_and_again_and_every_call_ends() -> None:
    tools = lab(scope="pool", workers=2)

    async def work(make: Make) -> tuple[list[ToolResult], ToolResult]:
        leave = asyncio.Event()

        async def kill() -> None:
            while not leave.is_set():
                # The one that answers, and not one that starts: a server that never gets there is another failure.
                up = await call(tools["place"], {}, within=make())
                if up.outcome == "ok":
                    with suppress(ProcessLookupError):
                        os.kill(int(up.text.split()[1]), signal.SIGKILL)
                with suppress(TimeoutError):
                    await asyncio.wait_for(leave.wait(), 0.3)

        async def episode() -> list[ToolResult]:
            return [await call(tools["echo"], {"text": str(turn)}, within=make()) for turn in range(4)]

        killer = asyncio.create_task(kill())
        found = await asyncio.gather(*(episode() for _ in range(32)))
        leave.set()
        await killer
        return [result for episode in found for result in episode], await call(
            tools["echo"], {"text": "after"}, within=make()
        )

    found, after = within(work)
    assert len(found) == 128
    assert {result.outcome for result in found} <= {"ok", "failed"}
    assert "ok" in {result.outcome for result in found}
    assert after.outcome in ("ok", "failed")


SPEC = """
rlenv: 1
name: mortal
tasks: {{train: {{rows: [{{question: go, answer: x}}]}}}}
prompt: {{user: "{{{{ task.question }}}}"}}
tools:
  lab:
    {{kind: mcp, command: [{python}, {lab}], start_timeout_s: 90, timeout_s: 100, idempotent: true, retries: {retries}}}
rewards: {{correct: {{kind: rule, rule: answered}}}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("retries", "text"), [(2, "survived"), (0, "the server of the tool die stopped during the call")]
)
def test_a_call_that_met_a_dying_server_is_tried_again_where_the_spec_says_so(
    tmp_path: Path, retries: int, text: str
) -> None:
    import rlenv
    from rlenv.messages import ToolCall

    spec = tmp_path / "mortal.yaml"
    spec.write_text(SPEC.format(python=sys.executable, lab=SERVERS / "lab.py", retries=retries))

    async def main() -> ToolResult:
        async with rlenv.load(spec) as environment, environment.start() as episode:
            limits = ToolContext(
                episode.task, {}, time.monotonic() + 120, scope=episode.tools.scope, shared=environment.scope
            )
            calls = (ToolCall("die", {"mark": str(tmp_path / "mark")}),)
            (result,) = await environment.executor.run(calls, limits)
            return result

    assert asyncio.run(main()).text == text


def test_a_bug_in_a_call_is_told_as_one_and_not_as_the_servers_failure() -> None:
    from rlenv.tools._mcp.link import Link
    from rlenv.tools._mcp.server import Connection, McpServer

    class Client:
        async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
            raise TypeError("a bug")

    @asynccontextmanager
    async def connect(server: McpServer, *, on_end: Any, on_unknown: Any) -> AsyncIterator[Connection]:
        client: Any = Client()
        client.child = None
        yield client

    async def ask() -> None:
        link = Link(McpServer(name="lab", command=("true",)), connect=connect)
        try:
            await link.call("echo", {}, deadline=time.monotonic() + 60)
        finally:
            await link.aclose()

    with pytest.raises(TypeError, match="a bug"):
        asyncio.run(ask())


def test_a_call_behind_which_a_server_knows_no_session_and_opens_none_may_have_done_it() -> None:
    from mcp.shared.exceptions import MCPError

    from rlenv.tools._mcp.http import LOST
    from rlenv.tools._mcp.link import CallFailed, Link
    from rlenv.tools._mcp.server import Connection, McpServer, ServerDown

    opened = list[McpServer]()

    class Client:
        child, calls, is_open, lived_s = None, 0, True, 1.0

        async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
            self.is_open = False
            raise MCPError(LOST, "the server does not know this session")

    @asynccontextmanager
    async def connect(server: McpServer, *, on_end: Any, on_unknown: Any) -> AsyncIterator[Connection]:
        opened.append(server)
        if len(opened) > 1:
            raise ServerDown("404")
        client: Any = Client()
        yield client

    async def ask() -> None:
        link = Link(McpServer(name="lab", url="http://lab"), connect=connect, is_trial=True)
        try:
            await link.call("echo", {}, deadline=time.monotonic() + 60)
        finally:
            await link.aclose()

    with pytest.raises(CallFailed, match="404") as failed:
        asyncio.run(ask())
    assert failed.value.reason == "server_error"


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b'{"result":{"content":[', TOO_LARGE),
        (b' {"jsonrpc":"2.0","id":7,', TOO_LARGE),
        (b"zzzzzz", SPOILT),
        (b"{}", SPOILT),
    ],
)
def test_the_end_of_another_calls_output_is_no_answer_that_is_too_large(head: bytes, code: int) -> None:
    """A line that one call's output never ends takes in the whole answer to another call, which is at its end."""
    failure = too_long(head, b'...{"jsonrpc":"2.0","result":{},"id":7}')
    assert failure is not None
    assert (failure.id, failure.error.code) == (7, code)
