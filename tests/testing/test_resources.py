"""The laws of resources: each is broken by a resource that breaks it alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from rlenv.errors import EndpointError, ResourceError
from rlenv.resources.base import ResourceContext
from rlenv.testing import check_resource_async, resources
from tests.support.clock import run_skipping
from tests.support.laws import not_broken, rule_of


class Box:
    """A handle: numbers that tools put into it."""

    def __init__(self, held: list[int] | None = None) -> None:
        self.held = held if held is not None else []

    def put(self) -> None:
        self.held.append(len(self.held))


class Fine:
    """Opens an empty box for each episode."""

    name = "box"
    scope: Any = "episode"

    def __init__(self) -> None:
        self.opened = 0

    @asynccontextmanager
    async def open(self, context: ResourceContext) -> AsyncIterator[Box]:
        self.opened += 1
        async with self.held(context) as box:
            yield box

    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        await asyncio.sleep(0)
        if context.task.get("down"):
            raise ResourceError("the box is down")
        yield Box()


class Nameless(Fine):
    name = ""


class OddScope(Fine):
    scope = "forever"


class OneBox(Fine):
    """Empties one box for each episode, and gives it to all."""

    box = Box()

    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        self.box.held.clear()
        yield self.box


class NeverEmptied(Fine):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[int] = []

    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        box = Box(list(self.kept))
        yield box
        self.kept = box.held


class Changing(Fine):
    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        context.task["seen"] = True  # type: ignore[index]
        yield Box()


class Bug(Fine):
    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        raise KeyError("a bug")
        yield Box()


class Late(Fine):
    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        await asyncio.Event().wait()
        yield Box()


class LateToClose(Fine):
    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        yield Box()
        await asyncio.Event().wait()


class Swallows(Fine):
    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        with suppress(Exception):
            yield Box()


class Replaces(Fine):
    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        try:
            yield Box()
        except Exception as error:
            raise RuntimeError("something happened") from error


class FailsToClose(Fine):
    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        yield Box()
        raise OSError("it is gone")


class _Once:
    """A manager that may be left once."""

    def __init__(self) -> None:
        self.is_open = False

    async def __aenter__(self) -> Box:
        self.is_open = True
        return Box()

    async def __aexit__(self, *_: object) -> None:
        if not self.is_open:
            raise RuntimeError("it is not open")
        self.is_open = False


class ClosedOnce(Fine):
    def open(self, context: ResourceContext) -> Any:
        return _Once()


class Stays(Fine):
    """Takes no notice of being cancelled."""

    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.Event().wait()
        yield Box()


class Answers(Fine):
    """Says something else of being cancelled."""

    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            raise ResourceError("it was cancelled") from error
        yield Box()


class Spoiled(Fine):
    """Has something in it once an episode has raised."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[int] = []

    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        try:
            yield Box(list(self.first))
        except Exception:
            self.first = [7]
            raise


class LateAfterAnError(Fine):
    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        try:
            yield Box()
        except Exception:
            await asyncio.Event().wait()
            raise


class OfAnEndpoint(Fine):
    """Says with another error that it cannot be had."""

    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        if context.task.get("down"):
            raise EndpointError("the server is down")
        yield Box()


async def never(box: Box) -> None:
    await asyncio.Event().wait()


class OneAtATime(Fine):
    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Semaphore(1)

    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        async with self.lock:
            yield Box()


class Numbered(Fine):
    """Differs where others are open."""

    now = 0

    @asynccontextmanager
    async def held(self, context: ResourceContext) -> AsyncIterator[Box]:
        self.now += 1
        try:
            yield Box([self.now])
        finally:
            self.now -= 1


BROKEN: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
    ("a resource has a name", Nameless, {}),
    ("a resource's scope is episode or process", OddScope, {}),
    ("a resource opens in time", Late, {}),
    ("a resource closes in time", LateToClose, {}),
    ("a resource opens in time", OneAtATime, {}),
    ("a resource closes after an error in time", LateAfterAnError, {}),
    ("a resource is looked at in time", Fine, {"look": never}),
    ("a resource is changed in time", Fine, {"change": never}),
    ("what keeps a resource from opening is a ResourceError", OfAnEndpoint, {"failing": [{"down": True}]}),
    ("what keeps a resource from opening is a ResourceError", Bug, {}),
    ("a resource leaves the task as it is", Changing, {}),
    ("a resource closes without an error", FailsToClose, {}),
    ("a resource that is closed may be closed again", ClosedOnce, {}),
    ("what is changed is seen", Fine, {"change": lambda box: None}),
    ("a resource opens as it was, whatever an earlier episode did", NeverEmptied, {}),
    ("what an episode raises comes out as it was", Swallows, {}),
    ("what an episode raises comes out as it was", Replaces, {}),
    ("a resource's opening that is cancelled ends", Stays, {}),
    ("a resource's opening that is cancelled raises CancelledError", Answers, {}),
    ("a resource opens as it was after an error", Spoiled, {}),
    ("episodes that open at once see the same", Numbered, {}),
    ("one episode's changes are not seen in another", OneBox, {}),
    ("a resource whose infrastructure fails raises ResourceError", Fine, {"failing": [{}]}),
]


def keeps(made: Any, **keys: Any) -> None:
    given: dict[str, Any] = {"look": lambda box: box.held, "change": Box.put, "tasks": [{"id": 1}]}
    run_skipping(check_resource_async(made, **{**given, **keys}))


def test_a_resource_that_keeps_the_laws_passes() -> None:
    made = Fine()
    keeps(made, failing=[{"down": True}])
    assert made.opened > 8


def test_what_all_episodes_share_may_be_changed() -> None:
    made = OneBox()
    made.scope = "process"
    keeps(made)


@pytest.mark.parametrize(("rule", "made", "keys"), BROKEN, ids=lambda part: part if isinstance(part, str) else "")
def test_each_law_is_broken_by_a_resource_that_breaks_it_alone(
    rule: str, made: Callable[[], Any], keys: dict[str, Any]
) -> None:
    with pytest.raises(AssertionError) as found:
        keeps(made(), **keys)
    assert rule_of(found.value) == rule


def test_every_law_of_resources_has_a_resource_that_breaks_it() -> None:
    assert not_broken(resources, [rule for rule, _, _ in BROKEN]) == []
