"""The kinds of simulated users: `model`, another model; `python`, a function; `scripted`, replies in order."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import Field

from rlenv._base.text import without_thinking
from rlenv.concurrency.threads import ThreadPool
from rlenv.dialects.built_in import broken
from rlenv.endpoints import Endpoint
from rlenv.endpoints.account import Completion, asks
from rlenv.errors import EndpointError, EpisodeError, RewardError, UnknownEntry, UsageError, told_as, under
from rlenv.language.functions import FailureLog, failure, import_function, named_parameters
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Prose, SamplingSpec, Spec, Text, UserSpec
from rlenv.language.templates import Template, TemplateError, template_of
from rlenv.messages import MalformedCall, Message, Role, ToolCall
from rlenv.rewards.answer import SEARCHED_CHARS, Pattern, compile_pattern
from rlenv.rewards.asking_again import Answered, HeldUp, InLine, Refused, Untold
from rlenv.rewards.asking_models import Pace, at_once, failed, if_felled, in_time, line_of
from rlenv.secrets import redact
from rlenv.tools.base import Tool
from rlenv.tools.model import endpoint_of
from rlenv.users.base import UserContext, heard, spoken, stops_of

__all__ = ["MODEL", "PLAYERS", "PYTHON", "SCRIPTED", "ModelUserSpec", "Players", "PlayersSpec", "PythonUserSpec"]
__all__ += ["ScriptedUserSpec"]

PlayerName = Annotated[Text, Field(pattern=r"^\w[\w-]*$")]
_PROMPT_NAMES = frozenset(("task", "vars"))
_SHARE = 0.9
"""Of the time that an episode has left, for a reply: it ends before the episode is late."""
_ROUNDS = 10
"""How often the model gives no reply to what the policy said, and one without it, before it has nothing left to say."""
_MOST_CALLS = 16
"""How often the model may call tools before one reply."""
_FLIPPED: dict[Role, Role] = {"user": "assistant", "assistant": "user"}


class ModelUserSpec(UserSpec):
    """Asks a model what the user says next; it sees the dialogue from the user's side."""

    kind: Literal["model"]
    endpoint: Text
    """The name of an entry under `endpoints`."""
    prompt: Prose
    """The model's system message: who the user is, what they want, and when to write the stop text; a template over
    `task` and `vars`."""
    sampling: SamplingSpec = SamplingSpec()
    """Fields that are set replace the endpoint's own."""
    tools: tuple[Text, ...] = ()
    """Names of tools that the user may call, on the same resources; with `offered: false` they are the user's alone."""


@dataclass(frozen=True, slots=True)
class _Model:
    stop: tuple[str, ...]
    hears: str
    endpoint: Endpoint
    prompt: Template
    sampling: SamplingSpec
    tools: Mapping[str, Tool]

    @property
    def reply_s(self) -> float:
        return self.endpoint.timeout_s

    def start(self, context: UserContext) -> _ModelSession:
        return _ModelSession(self, context)


class _ModelSession:
    def __init__(self, user: _Model, context: UserContext) -> None:
        self._user = user
        self._context = context
        self._made: dict[int, list[Message]] = {}
        """The user's calls with their results, by how often it had spoken before."""

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str | None:
        user, context = self._user, self._context
        self._spoken = sum(message.role == "user" for message in dialogue)
        self._made.pop(self._spoken, None)
        with told_as(EpisodeError, "the user's prompt cannot be written:", TemplateError, reason="task"):
            system = broken(*user.prompt.written(task=context.task, vars=context.vars))
        opening = [Message("system", system), Message("user", "(The conversation begins.)")]
        if dialogue and dialogue[0].role == "assistant":
            del opening[1]  # the policy has begun it
        messages = opening + self._flip_dialogue(heard(dialogue))
        attempts = count()

        async def very() -> Answered[str] | Refused | Untold:
            return await self._try_ask(messages, next(attempts), deadline, opening)

        # What the policy said may keep a user from a reply. One who has one without it has nothing left to say to it.
        known = partial(self._try_ask, opening, 0, deadline)
        found = await very()
        if isinstance(found, HeldUp):
            return None
        if isinstance(found, Refused):
            with suppress(RewardError):
                line = line_of(await user.endpoint.client(context.shared()), context.shared())
                turns = InLine(known, very, line)
                text = await turns.given(lambda: deadline - time.monotonic(), most=_ROUNDS)
                return None if text is None else spoken(text)
        if not isinstance(found, Answered):
            raise EpisodeError(found.why, reason="user")
        return spoken(found.value)

    def _flip_dialogue(self, dialogue: Sequence[Message]) -> list[Message]:
        """The dialogue from the user's side, its own calls and results before what it has said then."""
        found: list[Message] = []
        own = self._spoken
        for message in reversed(dialogue):  # the first ones may have been left out
            found.append(Message(_FLIPPED[message.role], message.content))
            if message.role == "user":
                own -= 1
                found += reversed(self._made.get(own, ()))
        return found[::-1]

    async def _try_ask(
        self, messages: Sequence[Message], attempt: int, deadline: float, opening: Sequence[Message] = ()
    ) -> Answered[str] | Refused | Untold:
        try:
            text = await self._ask(messages, attempt, deadline, opening)
        except EndpointError as error:
            return failed("the simulated user", error, is_harmless=not opening)
        return Answered(text) if text else Refused("the simulated user gave no reply")

    async def _ask(self, messages: Sequence[Message], attempt: int, deadline: float, opening: Sequence[Message]) -> str:
        user, context = self._user, self._context
        sampling = user.sampling
        if sampling.seed is None and user.endpoint.sampling.seed is None:
            sampling = sampling.model_copy(update={"seed": context.seed + attempt})
        client = await user.endpoint.client(context.shared())
        schemas = [user.tools[name].schema for name in user.tools]
        ask = partial(client.chat, tools=schemas, sampling=sampling, deadline=deadline)

        async def known(**keys: Any) -> Answered[Completion] | Untold:
            try:
                return Answered(await ask(opening, **keys))
            except EndpointError as error:
                return Untold(str(error))

        async def around(request: Callable[..., Awaitable[Completion]]) -> Completion:
            scope, until = context.shared(), _SHARE * deadline + (1 - _SHARE) * time.monotonic()
            pace, within_s = Pace.of(scope, user.endpoint), until - time.monotonic()
            request = partial(request, retries=0) if attempt else request
            try:
                return await in_time(known, request, most=_ROUNDS, within_s=within_s, pace=pace)
            except EndpointError as error:
                if attempt:
                    raise
                once, within_s = partial(known, around=at_once), until - time.monotonic()
                return await if_felled(once, request, error, client, scope, most=_ROUNDS, within_s=within_s)

        with asks("user"):
            made = self._made.setdefault(self._spoken, [])  # what a try before this one has called is done
            while True:
                answer = await (ask([*messages, *made], around=around) if opening else ask(messages, around=at_once))
                calls, text = schemas and answer.message.tool_calls, without_thinking(answer.message.content)
                if calls and not opening:
                    return "(a call)"  # asked beside the dialogue: no part of the episode, and nothing of it changes
                if not calls or sum(message.role == "assistant" for message in made) == _MOST_CALLS:
                    break
                made += [answer.message, *[await self._run_call(call, deadline) for call in calls]]
            if not text.strip():
                client.unread(answer)
                return ""
        return text

    async def _run_call(self, call: ToolCall | MalformedCall, deadline: float) -> Message:
        """The result of a call of the user's, as its model reads it."""
        text = "there is no such tool"
        if isinstance(call, MalformedCall):
            text = call.reason
        elif call.name in self._user.tools and self._context.call is not None:
            text = (await self._context.call(call.name, call.arguments, deadline)).text
        return Message("tool", broken(redact(spoken(text))), name=call.name, tool_call_id=call.id)


def compile_model(spec: ModelUserSpec, context: CompileContext) -> _Model:
    """The user of one spec.

    Raises:
        UsageError: the endpoint or the prompt does not fit.
    """
    prompt = template_of(spec.prompt, key="prompt", names=_PROMPT_NAMES)
    for index, name in enumerate(spec.tools):
        if name not in context.tools:
            raise UnknownEntry("tools", name, tuple(context.tools), key=f"tools.{index}")
    tools = {name: context.tools[name] for name in spec.tools}
    return _Model(stops_of(spec), spec.hears, endpoint_of(spec.endpoint, context), prompt, spec.sampling, tools)


MODEL = Kind(ModelUserSpec, compile_model, asks_models=True)


_threads: Final = ThreadPool(size=64)
_OFFERED: Final = ("message", "dialogue", "task", "vars", "seed", "turn", "resources")


class PythonUserSpec(UserSpec):
    """Calls a function at every message that is meant for the user.

    Its parameters are given by name: `message` (the policy's last; empty where the user begins), `dialogue` (all, as
    `{role, content}`), `task`, `vars`, `seed`, `turn` (0-based), `resources`, and each of these by its name. It returns
    the reply, or None to end the episode.
    """

    kind: Literal["python"]
    function: Text
    """`file.py:function`, relative to the spec, or `package.module:function`; sync or async."""


@dataclass(slots=True, eq=False)
class _Python:
    stop: tuple[str, ...]
    hears: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    is_async: bool
    log: FailureLog = field(default_factory=lambda: FailureLog("rlenv.users"))

    def start(self, context: UserContext) -> _PythonSession:
        return _PythonSession(self, context)


class _PythonSession:
    def __init__(self, user: _Python, context: UserContext) -> None:
        self._user = user
        self._context = context
        self._turn = 0

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str | None:
        context, user = self._context, self._user
        known: dict[str, Any] = {
            **context.resources,
            "resources": context.resources,
            "message": dialogue[-1].content if dialogue else "",
            "dialogue": [{"role": message.role, "content": message.content} for message in dialogue],
            "task": context.task,
            "vars": context.vars,
            "seed": context.seed,
            "turn": self._turn,
        }
        self._turn += 1
        given = {name: known[name] for name in user.parameters}
        try:
            if user.is_async:
                said = await user.function(**given)
            else:  # it may block, and a hanging one must not hold the loop
                said = await _threads.run(partial(user.function, **given))
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:  # an author's function may fail in any way
            self._user.log.add("the user's function", error)
            raise EpisodeError(f"the user's function failed: {failure(error)}", reason="user") from error
        if said is not None and not isinstance(said, str):
            found = type(said).__name__
            raise EpisodeError(f"the user's function gave a {found}; expected a text or None", reason="user")
        return None if said is None else spoken(said)


def compile_python(spec: PythonUserSpec, context: CompileContext) -> _Python:
    """The user of one spec.

    Raises:
        UsageError: there is no such function, or it takes what nothing gives.
    """
    with under("function"):
        function = import_function(spec.function, base=context.bases.get("function", context.base))
    names = named_parameters(function, key="function", offered=(*_OFFERED, *context.resources))
    return _Python(stops_of(spec), spec.hears, function, names, inspect.iscoroutinefunction(function))


PYTHON = Kind(PythonUserSpec, compile_python)


_REPLY_NAMES = frozenset(("task", "vars", "message", "turn"))


class CueSpec(Spec):
    """A reply to certain words."""

    pattern: Text
    """A regular expression, in the language of RE2, that is searched in the policy's message; case does not count."""
    say: Text
    """The reply, a template over `task`, `vars`, `message` and `turn`."""


class ScriptedUserSpec(UserSpec):
    """Says what the spec says: the first cue whose words are in the policy's message, else the next of the replies."""

    kind: Literal["scripted"]
    cues: tuple[CueSpec, ...] = ()
    """Looked at in order, at every message."""
    replies: tuple[Text, ...] = ()
    """Said in order where no cue fits, each once; after the last one the user has nothing left to say. One that is an
    expression and gives a list, such as `{{ task.turns }}`, is as many replies."""


@dataclass(frozen=True, slots=True)
class _Scripted:
    stop: tuple[str, ...]
    hears: str
    cues: tuple[tuple[Pattern, Template], ...]
    replies: tuple[Template, ...]

    def start(self, context: UserContext) -> _ScriptedSession:
        return _ScriptedSession(self, context)


class _ScriptedSession:
    def __init__(self, user: _Scripted, context: UserContext) -> None:
        self._user = user
        self._context = context
        self._replies: Iterator[Template | str] = iter(user.replies)
        self._turn = 0

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str | None:
        message = dialogue[-1].content[-SEARCHED_CHARS:] if dialogue else ""
        turn, self._turn = self._turn, self._turn + 1
        found = next((say for when, say in self._user.cues if dialogue and when.search(message)), None)
        template = next(self._replies, None) if found is None else found
        values = {"task": self._context.task, "vars": self._context.vars, "message": message, "turn": turn}
        try:
            while isinstance(template, Template) and isinstance(said := template.value(**values), (list, tuple)):
                self._replies = chain(map(str, said), self._replies)
                template = next(self._replies, None)
            return (
                None if template is None else spoken(template if isinstance(template, str) else template.text(**values))
            )
        except TemplateError as error:
            if isinstance(template, Template) and "message" in template.names:
                return None  # the policy's words may have done it, and must not leave out its own sample
            raise EpisodeError(f"the user's reply cannot be written: {error}", reason="task") from error


def compile_scripted(spec: ScriptedUserSpec, context: CompileContext) -> _Scripted:
    """The user of one spec.

    Raises:
        UsageError: nothing to say, a pattern that is none, or a template that reads an unknown name.
    """
    if not spec.cues and not spec.replies:
        raise UsageError(
            "the user has nothing to say", hint="add 'replies: [TEXT]', or 'cues: [{pattern: WORDS, say: TEXT}]'"
        )
    cues: list[tuple[Pattern, Template]] = []
    for index, cue in enumerate(spec.cues):
        with under(f"cues.{index}.pattern"):
            pattern = compile_pattern(cue.pattern, dot_all=False, ignore_case=True)
        cues.append((pattern, template_of(cue.say, key=f"cues.{index}.say", names=_REPLY_NAMES)))
    replies = [template_of(text, key=f"replies.{index}", names=_REPLY_NAMES) for index, text in enumerate(spec.replies)]
    return _Scripted(stops_of(spec), spec.hears, tuple(cues), tuple(replies))


SCRIPTED = Kind(ScriptedUserSpec, compile_scripted)


_SEEN_NAMES = frozenset(("task", "vars", "resources", "player", "said"))


class PlayersSpec(UserSpec):
    """Several players in one episode, each with its own conversation on the same resources; one policy may play all.

    Each row is a task for every role: with the role's columns, and with its name as `player`.
    """

    kind: Literal["players"]
    roles: Mapping[PlayerName, Mapping[str, Any]]
    """The players in their order, each with the columns that its row has beside those of the split."""
    next: Text | None = None
    """A template over `resources` and `vars` that names the player whose turn it is, asked after every action; nothing
    ends the episode. By default a message without a call passes the turn on to the next role."""
    sees: Prose | None = None
    """A template for what a player reads of the others once it is its turn again, over `said` (a list of `player` and
    `text`), `player`, `task`, `vars` and `resources`; by default what they said, by name."""
    opponent: Literal["self", "random", "oracle"] = "self"
    """Who plays the other players: whoever plays the first (`self`), chance, or the oracle of the spec."""


@dataclass(frozen=True, slots=True)
class Players:
    """The players of a spec, by name, with their columns. Their episodes ask each other (`rlenv.episodes.rollout`)."""

    stop: tuple[str, ...]
    hears: str
    roles: Mapping[str, Mapping[str, Any]]
    next: Template | None
    sees: Template | None

    def start(self, context: UserContext) -> NoReturn:
        """Raises EpisodeError: other players are no user who could be asked by itself."""
        raise EpisodeError("the other players cannot be asked outside of their episode", reason="user")


def compile_players(spec: PlayersSpec, context: CompileContext) -> Players:
    """The players of one spec.

    Raises:
        UsageError: fewer than two roles, one with other columns than the first, or a template that reads an unknown
            name.
    """
    if len(spec.roles) < 2:
        hint = "add another role, or write another kind of user"
        raise UsageError(f"found {len(spec.roles)} roles; expected two or more", key="roles", hint=hint)
    first, columns = next(iter(spec.roles.items()))
    for name, role in spec.roles.items():
        for other in (*role.keys() - columns.keys(), *columns.keys() - role.keys()):
            lacks = name if other in columns else first
            key = f"roles.{name if other in role else first}.{other}"
            raise UsageError(f"player '{lacks}' has no '{other}'", key=key, hint=f"add it under roles.{lacks}")
        if "player" in role:
            raise UsageError("'player' is the name of the role itself", key=f"roles.{name}.player", hint="rename it")
    turn = None if spec.next is None else template_of(spec.next, key="next", names={"resources", "vars"})
    sees = None if spec.sees is None else template_of(spec.sees, key="sees", names=_SEEN_NAMES)
    return Players(stops_of(spec), spec.hears, spec.roles, turn, sees)


PLAYERS = Kind(PlayersSpec, compile_players)
