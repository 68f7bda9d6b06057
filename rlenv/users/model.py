"""The user of kind `model`: another model that plays the customer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlenv.dialects.control_tokens import broken
from rlenv.endpoints import REFUSED, Endpoint
from rlenv.endpoints.account import asks
from rlenv.errors import EndpointError, EpisodeError
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import SamplingSpec, Text, UserSpec
from rlenv.language.templates import Template, TemplateError, template_of
from rlenv.messages import Message, Role
from rlenv.tools.model import endpoint_of
from rlenv.users.base import UserContext, heard, spoken

__all__ = ["KIND", "ModelUserSpec"]

_NAMES = frozenset(("task", "vars"))
_ATTEMPTS = 3
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
        problem = "the simulated user gave an empty reply"
        for attempt in range(_ATTEMPTS):
            try:
                if text := await self._ask(messages, attempt, deadline):
                    return spoken(text)
            except EndpointError as error:
                problem = f"the simulated user: {error}"
                if error.status not in REFUSED:
                    raise EpisodeError(problem, reason="user") from error
                break
        # What the policy said may have done it. A user who can be asked without it has nothing left to say to it.
        try:
            if await self._ask(opening, 0, deadline):
                return None
        except EndpointError:
            pass
        raise EpisodeError(problem, reason="user")

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


KIND = Kind(ModelUserSpec, compile_model)
