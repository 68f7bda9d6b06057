"""The laws of policies: each is broken by a policy that breaks it alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from rlenv.errors import EndpointError, PolicyError
from rlenv.messages import Message, Sampled
from rlenv.policies.base import PolicyContext
from rlenv.testing import check_policy_async, policies
from tests.support.clock import run_skipping
from tests.support.environments import Make
from tests.support.laws import not_broken, rule_of

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1 + 1"}}\n</tool_call>'


class Fine:
    """Calls a tool, and answers."""

    name: Any = "fine"
    closed = 0
    turn: Any
    context: PolicyContext

    def start(self, context: PolicyContext) -> Fine:
        session = type(self)()
        session.turn, session.context = itertools.count(), context
        return session

    async def act(self, messages: list[Message]) -> Any:
        await asyncio.sleep(0)
        return self.says(messages, next(self.turn))

    def says(self, messages: list[Message], turn: int) -> Any:
        return Sampled([CALL, "<answer>5</answer>"][turn], "stop", (1, 2))

    async def aclose(self) -> None:
        self.closed += 1


class Nameless(Fine):
    name = ""


class Unseeded(Fine):
    count = itertools.count()

    def says(self, messages: list[Message], turn: int) -> Any:
        return Sampled(f"<answer>{next(self.count)}</answer>", "stop")


class Shared(Fine):
    now: dict[str, int] = {}  # noqa: RUF012

    async def act(self, messages: list[Message]) -> Any:
        self.now["running"] = self.now.get("running", 0) + 1
        try:
            await asyncio.sleep(0)
            return Sampled(f"<answer>{self.now['running']}</answer>", "stop")
        finally:
            self.now["running"] -= 1


class GivesUp(Fine):
    def says(self, messages: list[Message], turn: int) -> Any:
        raise PolicyError("nothing comes to mind")


class Bug(Fine):
    def says(self, messages: list[Message], turn: int) -> Any:
        raise KeyError("a bug")


class Late(Fine):
    async def act(self, messages: list[Message]) -> Any:
        await asyncio.Event().wait()


class OfItsEndpoint(Fine):
    def says(self, messages: list[Message], turn: int) -> Any:
        raise EndpointError("the server is down")


class Asserts(Fine):
    def says(self, messages: list[Message], turn: int) -> Any:
        raise AssertionError("the author's own, which is no law")


class ChangingTask(Fine):
    def start(self, context: PolicyContext) -> Fine:
        context.task["seen"] = True  # type: ignore[index]
        return super().start(context)


class Editing(Fine):
    def says(self, messages: list[Message], turn: int) -> Any:
        messages.append(Message("assistant", "mine"))
        return super().says(messages, turn)


class OfTheUser(Fine):
    def says(self, messages: list[Message], turn: int) -> Any:
        return Sampled(Message("user", "<answer>5</answer>"), "stop")


class Silent(Fine):
    def says(self, messages: list[Message], turn: int) -> Any:
        return "<answer>5</answer>"


class TooLong(Fine):
    def says(self, messages: list[Message], turn: int) -> Any:
        return Sampled("<answer>5</answer>", "stop", (1,) * 9)


class Swallows(Fine):
    async def act(self, messages: list[Message]) -> Any:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return "<answer>none</answer>"
        return Sampled("<answer>5</answer>", "stop")


class GoesOn(Fine):
    async def act(self, messages: list[Message]) -> Any:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.Event().wait()
        return Sampled("<answer>5</answer>", "stop")


class LateToClose(Fine):
    async def aclose(self) -> None:
        await asyncio.Event().wait()


class DownAndLateToClose(GivesUp):
    async def aclose(self) -> None:
        await asyncio.Event().wait()


class DownAndFailsToClose(GivesUp):
    async def aclose(self) -> None:
        raise OSError("it is gone")


class FailsToClose(Fine):
    async def aclose(self) -> None:
        raise OSError("it is gone")


class ClosesOnce(Fine):
    async def aclose(self) -> None:
        self.closed += 1
        if self.closed > 1:
            raise RuntimeError("it is closed")


BROKEN: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
    ("a policy has a name", Nameless, {}),
    ("equal seeds give equal actions", Unseeded, {}),
    ("episodes side by side get the actions of one alone", Shared, {}),
    ("a policy acts until the episode ends", GivesUp, {}),
    ("a policy that cannot act raises PolicyError", Bug, {}),
    ("a policy that cannot act raises PolicyError", Asserts, {}),
    ("a policy acts in time", Late, {}),
    ("a policy leaves the task as it is", ChangingTask, {}),
    ("a policy leaves the conversation as it is", Editing, {}),
    ("an action is a text, an assistant's message, or Sampled of one", OfTheUser, {}),
    ("a policy with a limit of tokens says why each action ended (Sampled.finish_reason)", Silent, {}),
    ("an action has at most 8 tokens", TooLong, {}),
    ("an action that the limit has cut says so (finish_reason is length)", Fine, {"is_cut": True}),
    ("an action that is cancelled raises CancelledError", Swallows, {}),
    ("an action that is cancelled ends", GoesOn, {}),
    ("a policy whose endpoint is down raises PolicyError", Fine, {"failing": Fine()}),
    ("a policy whose endpoint is down raises PolicyError", Fine, {"failing": Bug()}),
    ("a policy whose endpoint is down raises PolicyError", Fine, {"failing": OfItsEndpoint()}),
    ("a policy whose endpoint is down says so in time", Fine, {"failing": Late()}),
    ("a policy whose endpoint is down closes without an error", Fine, {"failing": DownAndFailsToClose()}),
    ("a policy closes in time", Fine, {"failing": DownAndLateToClose()}),
    ("a policy closes in time", LateToClose, {}),
    ("a policy closes without an error", FailsToClose, {}),
    ("a policy closes without an error, and may be closed again", ClosesOnce, {}),
]


def keeps(made: Any, make_environment: Make, **keys: Any) -> None:
    run_skipping(check_policy_async(made, make_environment(), **{"max_tokens": 8, **keys}))


def test_a_policy_that_keeps_the_laws_passes(make_environment: Make) -> None:
    made = Fine()
    keeps(made, make_environment, failing=GivesUp())
    assert made.closed == 2


def test_a_server_that_promises_no_seed_is_not_asked_twice(make_environment: Make) -> None:
    keeps(Unseeded(), make_environment, is_seeded=False)


@pytest.mark.parametrize(("rule", "made", "keys"), BROKEN, ids=lambda part: part if isinstance(part, str) else "")
def test_each_law_is_broken_by_a_policy_that_breaks_it_alone(
    rule: str, made: Callable[[], Any], keys: dict[str, Any], make_environment: Make
) -> None:
    with pytest.raises(AssertionError) as found:
        keeps(made(), make_environment, **keys)
    assert rule_of(found.value) == rule


def test_every_law_of_policies_has_a_policy_that_breaks_it() -> None:
    assert not_broken(policies, [rule for rule, _, _ in BROKEN]) == []
