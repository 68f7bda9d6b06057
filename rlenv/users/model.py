"""The user of kind `model`: another model that plays the customer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal

from rlenv.dialects.built_in import broken
from rlenv.endpoints import REFUSED, Endpoint
from rlenv.endpoints.account import asks
from rlenv.errors import EndpointError, EpisodeError, RewardError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import SamplingSpec, Text, UserSpec
from rlenv.language.templates import Template, TemplateError, template_of
from rlenv.messages import Message, Role
from rlenv.rewards.asking_again import Answered, Refused, Untold, in_turn
from rlenv.tools.model import endpoint_of
from rlenv.users.base import UserContext, heard, spoken

__all__ = ["KIND", "ModelUserSpec"]

_NAMES = frozenset(("task", "vars"))
_ROUNDS = 10
"""How often the model gives no reply to what the policy said, and one without it, before it has nothing left to say."""
_REFUSALS = frozenset((*REFUSED, 403, 429, 451))
_FLIPPED: dict[Role, Role] = {"user": "assistant", "assistant": "user"}


class ModelUserSpec(UserSpec):
    """Asks a model what the user says next; it sees the dialogue from the user's side."""

    kind: Literal["model"]
    endpoint: Text
    """The name of an entry under `endpoints`."""
    prompt: Text
    """The model's system message: who the user is, what they want, and when to write the stop text; a template over
    `task` and `vars`."""
    sampling: SamplingSpec = SamplingSpec()
    """Fields that are set replace the endpoint's own."""


@dataclass(frozen=True, slots=True)
class _Model:
    stop: str | None
    endpoint: Endpoint
    prompt: Template
    sampling: SamplingSpec

    def start(self, context: UserContext) -> _Session:
        return _Session(self, context)


class _Session:
    def __init__(self, user: _Model, context: UserContext) -> None:
        self._user = user
        self._context = context

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str | None:
        user, context = self._user, self._context
        try:
            system = broken(*user.prompt.written(task=context.task, vars=context.vars))
        except TemplateError as error:
            raise EpisodeError(f"the user's prompt cannot be written: {error}", reason="user") from error
        opening = [Message("system", system), Message("user", "(The conversation begins.)")]
        messages = opening + [Message(_FLIPPED[message.role], message.content) for message in heard(dialogue)]
        attempts = count(1)
        found = await self._tried(messages, 0, deadline)
        if isinstance(found, Refused):
            # What the policy said may have done it. A user who can be asked without it has nothing left to say to it.
            known = partial(self._tried, opening, 0, deadline)
            within_s = deadline - time.monotonic()
            with suppress(RewardError):
                text = await in_turn(
                    known, lambda: self._tried(messages, next(attempts), deadline), most=_ROUNDS, within_s=within_s
                )
                return None if text is None else spoken(text)
        if not isinstance(found, Answered):
            raise EpisodeError(found.why, reason="user")
        return spoken(found.given)

    async def _tried(
        self, messages: Sequence[Message], attempt: int, deadline: float
    ) -> Answered[str] | Refused | Untold:
        try:
            text = await self._ask(messages, attempt, deadline)
        except EndpointError as error:
            why, status = f"the simulated user: {error}", error.status or 0
            is_of_text = status in _REFUSALS or status >= 500 or error.is_garbled
            return Refused(why) if is_of_text else Untold(why, is_last=True)
        return Answered(text) if text else Refused("the simulated user gave an empty reply")

    async def _ask(self, messages: Sequence[Message], attempt: int, deadline: float) -> str:
        user, context = self._user, self._context
        sampling = user.sampling
        if sampling.seed is None and user.endpoint.sampling.seed is None:
            sampling = sampling.model_copy(update={"seed": context.seed + attempt})
        client = await user.endpoint.client(context.shared())
        with asks("user"):
            answer = await client.chat(messages, sampling=sampling, deadline=deadline)
            text = answer.message.content
            if not text.strip():
                client.unread(answer)
                return ""
        return text


def compile_model(spec: ModelUserSpec, context: CompileContext) -> _Model:
    """The user of one spec.

    Raises:
        UsageError: the endpoint or the prompt does not fit.
    """
    prompt = template_of(spec.prompt, key="prompt", names=_NAMES)
    return _Model(spec.stop, endpoint_of(spec.endpoint, context), prompt, spec.sampling)


KIND = Kind(ModelUserSpec, compile_model, asks_models=True)
