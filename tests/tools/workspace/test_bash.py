"""The tool `files`: what each command shows and changes, and its errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.messages import ToolResult
from rlenv.resources.base import ResourceContext
from rlenv.testing.laws import compiled
from rlenv.testing.tools import call, context
from rlenv.tools.workspace.resource import Workspace
from tests.support.machines import reachable  # noqa: F401 - a fixture

pytestmark = pytest.mark.sandbox
Asks = Callable[..., Awaitable[ToolResult]]


def edited(folder: Path, work: Callable[[Asks, Workspace], Awaitable[None]]) -> None:
    async def main() -> None:
        machine = compiled("resources", {"kind": "workspace"}, base=folder)
        (tool,) = compiled("tools", {"kind": "files", "resource": "m"}, base=folder, resources={"m": machine})
        async with machine.open(ResourceContext()) as workspace:

            async def ask(command: str, path: str, **arguments: Any) -> ToolResult:
                given = {"command": command, "path": path, **arguments}
                return await call(tool, given, within=context(resources={"m": workspace}, seconds=120))

            await work(ask, workspace)

    asyncio.run(main())


TEXT = "one\n\ttwo 'x' \"y\" $z `w` \\\né\n"


def test_a_file_is_made_viewed_and_changed(reachable: Path) -> None:  # noqa: F811
    async def work(ask: Asks, workspace: Workspace) -> None:
        assert (await ask("create", "sub/a b.txt", file_text=TEXT)).text == "wrote sub/a b.txt"
        assert (workspace.layer / "app" / "sub" / "a b.txt").read_text(encoding="utf-8") == TEXT
        shown = "     1\tone\n     2\t\ttwo 'x' \"y\" $z `w` \\\n     3\té"
        assert (await ask("view", "sub/a b.txt")).text == shown
        assert (await ask("view", "/app/sub/a b.txt", view_range=[3, -1])).text == "     3\té"
        assert (await ask("view", "sub/a b.txt", view_range=[3.0, -1.0])).text == "     3\té"
        assert (await ask("str_replace", "sub/a b.txt", old_str="two 'x'", new_str="$(id)")).outcome == "ok"
        assert (await ask("insert", "sub/a b.txt", insert_line=0.0, insert_text="first")).outcome == "ok"
        assert (await ask("insert", "sub/a b.txt", insert_line=4, insert_text="last\n")).outcome == "ok"
        expected = "first\n" + TEXT.replace("two 'x'", "$(id)") + "last\n"
        assert (workspace.layer / "app" / "sub" / "a b.txt").read_text(encoding="utf-8") == expected
        assert set((await ask("view", "sub")).text.split("\n")) >= {"a b.txt"}
        assert (await ask("str_replace", "sub/a b.txt", old_str="last\n")).outcome == "ok"  # no new_str takes it out
        assert not list((workspace.layer / "app" / "sub").glob(".*"))
        assert (await ask("create", "none", file_text="")).outcome == "ok"
        assert [(await ask("view", "none", **of)).text for of in ({}, {"view_range": [1, -1]})] == ["(empty)"] * 2

    edited(reachable, work)


def test_a_file_keeps_its_mode_and_may_be_long(reachable: Path) -> None:  # noqa: F811
    async def work(ask: Asks, workspace: Workspace) -> None:
        await workspace.run("echo 'echo a' > run.sh; chmod 755 run.sh; head -c 2000000 /dev/zero > big", 30)
        assert (await ask("str_replace", "run.sh", old_str="a", new_str="b")).outcome == "ok"
        assert (await workspace.run("./run.sh", 30)).output == b"b\n"
        long = "x" * 900_000 + "\n"
        assert (await ask("create", "long", file_text=long)).outcome == "ok"
        assert (await ask("insert", "long", insert_line=1, insert_text="end")).outcome == "ok"
        assert (await workspace.run("wc -c < long", 30)).output == b"900005\n"
        assert (await ask("create", "longer", file_text="x" * 2_000_000)).reason == "too_large"
        assert (await ask("view", "big")).reason == "too_large"

    edited(reachable, work)


@pytest.mark.parametrize(
    ("command", "path", "arguments", "says"),
    [
        ("view", "none", {}, "there is no file 'none'"),
        ("view", "", {}, "path: expected up to 4,096 characters"),
        ("view", "'" * 4_097, {}, "path: expected up to 4,096 characters"),
        ("view", "two", {"view_range": [2, 5]}, "the file has 2 lines; found [2, 5]"),
        ("create", "two", {}, "create needs file_text"),
        ("create", "/app", {"file_text": ""}, "'/app' is a folder"),
        ("create", "/usr/x", {"file_text": ""}, "Read-only"),
        ("str_replace", "two", {"old_str": "x", "new_str": "y"}, "it stands nowhere"),
        ("str_replace", "two", {"old_str": "a", "new_str": "y"}, "it stands at 2 places"),
        ("str_replace", "two", {"old_str": "", "new_str": "y"}, "it stands nowhere"),
        ("str_replace", "/app", {"old_str": "a", "new_str": "y"}, "is a folder"),
        ("insert", "two", {"insert_line": 3, "insert_text": "y"}, "the file has 2 lines; found 3"),
        ("view", "binary", {}, "is no text"),
        ("view", "pipe", {}, "is no text"),
        ("view", "link", {}, "is no text"),
        ("view", "/dev/zero", {}, "is no text"),
        ("create", "pipe", {"file_text": "x"}, "is no text"),
        ("view", "a'b; touch /app/hurt", {}, "there is no file"),
        ("view", "-n", {}, "there is no file"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(
    reachable: Path,  # noqa: F811
    command: str,
    path: str,
    arguments: dict[str, Any],
    says: str,
) -> None:
    async def work(ask: Asks, workspace: Workspace) -> None:
        await workspace.run("printf 'a\\na\\n' > two; printf '\\377\\376' > binary; mkfifo pipe; ln -s pipe link", 30)
        found = await ask(command, path, **arguments)
        assert (found.is_error, says in found.text) == (True, True), found.text
        assert not (workspace.layer / "app" / "hurt").exists()

    edited(reachable, work)


def test_a_file_of_many_lines_is_shown_beside_the_event_loop(reachable: Path) -> None:  # noqa: F811
    async def work(ask: Asks, workspace: Workspace) -> None:
        assert (await workspace.run("head -c 1000000 /dev/zero | tr '\\0' '\\n' > lines", 60)).code == 0
        all_s, loop_s = time.process_time(), time.thread_time()
        assert (await ask("view", "lines")).text.endswith("1000000\t")
        assert time.thread_time() - loop_s < (time.process_time() - all_s) / 2

    edited(reachable, work)
