"""A compiled spec, shared by all episodes of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlenv._base.bounded import plain
from rlenv._base.paths import RefusedPath, finder
from rlenv._base.strict_json import value_fault
from rlenv.calls.executor import Executor
from rlenv.calls.toolsets import ToolSet, ToolSets
from rlenv.concurrency.scope import Scope
from rlenv.dialects.base import Cut, SameTurn, cut_chars, first_calls, shower
from rlenv.dialects.built_in import broken_message, find_mark
from rlenv.episodes.compile import Parts, compile_parts, messages_of
from rlenv.episodes.episode import Episode
from rlenv.episodes.players import Seat, Seated, opponent_of, seat_players
from rlenv.errors import EpisodeError, SpecError, UsageError
from rlenv.images import UnreadableImage, image_of, listed
from rlenv.language.expressions import EpisodeLimits
from rlenv.language.kinds import kind_of
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.language.spec import EnvSpec
from rlenv.language.templates import TemplateError
from rlenv.messages import Image, MalformedCall, Message, ParsedAction, ToolCall
from rlenv.policies.base import Policy
from rlenv.policies.scripted import OraclePolicy
from rlenv.resources.base import Resource, ResourceContext
from rlenv.rewards import answer as answers
from rlenv.rewards.group import OnAsked, ask_groups
from rlenv.tasks.rows import Tasks, load_tasks, seed_of, spread
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory
from rlenv.users.kinds import Players

_MAX_SHOWN = 10_000
MAX_ACTION, MAX_CALLS = 1_000_000, 1_000
_OPENING = "(The user's first message.)"


def load(path: str | Path, *, set: Mapping[str, Any] | None = None) -> Environment:
    """Loads and compiles a spec.

    Args:
        path: the YAML file, or the name of an environment that ships with rlenv (`arithmetic`).
        set: values that replace keys of the file, by dotted path (`{"tasks.test.path": "rows.jsonl"}`).

    Raises:
        SpecError: with every fault at once, each with file, line and column.
    """
    from rlenv.language.shipped import find  # found late: only a name needs the folder of shipped specs

    return Environment(load_spec(find(path), set=set))


class Environment:
    """Starts episodes. Safe to share between all tasks of one event loop; holds no state of any episode.

    Use it as an async context manager, or call `aclose`, where the spec has resources of scope `process`.
    """

    def __init__(self, loaded: LoadedSpec, *, parts: Parts | None = None) -> None:
        self.loaded = loaded
        self.spec: EnvSpec = loaded.spec
        self.address = ""
        """The server that plays its episodes; "" where this process does."""
        self.parts: Parts = compile_parts(loaded, type(self)) if parts is None else parts
        self.use_tools(self.parts.tools, Executor(self.parts.tools, calls=self.spec.calls))
        self.limits: EpisodeLimits = self.parts.limits.usual
        """As the spec writes them; where rows give one, its default. An episode's own are `Episode.limits`."""
        self.same_turn: SameTurn | None = getattr(self.parts.dialect, "same_turn", None)
        """How observations go on in the assistant's own turn; None where they have turns of their own."""
        self.answer, self.keeps_images = self.spec.answer, self.spec.observation.images == "keep"
        self.answer_is_explicit = answers.is_explicit(self.spec.answer)
        self.players = self.parts.simulated if isinstance(self.parts.simulated, Players) else None
        """The players of an episode, where it has several."""
        self.opponent = None if self.players is None else opponent_of(self)
        """Who plays the others; None where whoever plays the first does."""
        self.has_ends = bool(self.parts.row_tools or self.players)
        self.has_ends = self.has_ends or any(tool.ends for tool in self.parts.tools.values())
        """True where a call may end the episode."""
        self.show = shower(self.spec.observation, self.parts.observation, self.spec.vars)
        self._cut = cut_chars(self.spec.observation)
        self._tasks: dict[str, Tasks] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._shared: dict[str, asyncio.Future[Any]] = {}
        self._stack = AsyncExitStack()
        self._scope: Scope | None = None

    def use_tools(
        self, tools: Mapping[str, Tool], executor: Executor, of_rows: Callable[[Tool], Tool] | None = None
    ) -> None:
        """Lets episodes that start from now on call these, in place of the spec's own, by that executor; `of_rows`
        changes each tool that a row declares."""
        self.parts = replace(self.parts, tools=tools)
        self.executor = executor
        self.toolsets = ToolSets(self.loaded, tools, self.parts.row_tools, executor, of_rows)
        self.has_tools = bool(tools or self.parts.row_tools)
        self._tool_schemas: tuple[Mapping[str, Any], ...] | None = None

    @property
    def tool_schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that some row may have, and of those that rows declare the first row's, as JSON schemas.

        An episode's own are `Episode.tool_schemas`.
        """
        if self._tool_schemas is None:
            self._tool_schemas = self.toolsets.all.schemas
            if self.parts.row_tools and (rows := self.tasks(next(iter(self.spec.tasks)))):
                self._tool_schemas += self.toolsets.of(rows[0]).schemas
        return self._tool_schemas

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts behind the first of which an action ends though no end token was sampled. Often there is none.

        They close a call, or the answer where `answer.from` is `tag`.
        """
        if self.same_turn is None:
            return ()
        answer = self.spec.answer
        return (*self.same_turn.stops, *((f"</{answer.tag}>",) if answer.from_ == "tag" else ()))

    @property
    def turn_ends(self) -> tuple[str, ...]:
        """The marks that the dialect writes behind an assistant's turn: where a completion of raw text ends.

        A server stops at the end tokens that its model's configuration names, which are not always the template's. ()
        where turns go on, or the dialect names none.
        """
        return () if self.same_turn is not None else tuple(getattr(self.parts.dialect, "turn_ends", ()))

    @property
    def prompt_is_whole(self) -> bool:
        """True where the prompt's raw text starts with what its model's tokenizer would put before it (`<s>`, `<bos>`).

        It does where the dialect says how a conversation begins, or is a chat template's own text. Otherwise the
        tokenizer of whoever reads it knows whether there is such a mark.
        """
        return bool(getattr(self.parts.dialect, "begins", False))

    def oracle(self) -> OraclePolicy:
        """The policy that plays the oracle of the spec.

        Raises:
            UsageError: as `OraclePolicy`.
        """
        base, sets = self.loaded.base_of("oracle.function"), self.toolsets
        later = (lambda task, replies: sets.of(task, replies).schemas) if sets.changes else None
        return OraclePolicy(self.spec, self.parts.dialect, base=base, tools=later)

    @property
    def id(self) -> str:
        """The name it is registered under: rlenv/NAME-vVERSION."""
        return f"rlenv/{self.spec.name}-v{self.spec.version}"

    async def __aenter__(self) -> Environment:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes what episodes share: resources of scope `process`, what is kept beside. May be called twice."""
        self._shared.clear()
        scope, self._scope = self._scope, None
        try:
            if scope is not None:
                await scope.aclose()
        finally:
            for resource in self.parts.resources.values():
                self._stack.callback(getattr(resource, "forget", lambda: None))  # each whatever the others do
            with closing(self.executor):
                await self._stack.aclose()

    def scope(self) -> Scope:
        """Things that tools keep for as long as the environment; closed with it."""
        if self._scope is None:
            self._scope = Scope()
        return self._scope

    def tasks(self, split: str) -> Tasks:
        """The rows of a split, loaded once.

        Raises:
            UsageError: no such split.
            SpecError: a row cannot be read.
        """
        rows = self._tasks.get(split)
        if rows is None:
            if split not in self.spec.tasks:
                raise UsageError(f"no split '{split}' in {self.spec.name}", hint=f"it has {', '.join(self.spec.tasks)}")
            rows = self._tasks[split] = load_tasks(self.loaded, split)
        return rows

    def groups(self, split: str, most: int | None = None) -> tuple[str, ...] | None:
        """The value of the split's `report_by` for each task, as text; None where the split has no such key.

        Args:
            most: of a split without an end, so many tasks; those of one pass by default.

        Raises:
            SpecError: a row without that column.
        """
        column = self.spec.tasks[split].report_by if split in self.spec.tasks else None
        rows = self.tasks(split)
        if column is None:
            return None
        count = most if most is not None and rows.is_endless else len(rows)
        if len(self._groups.get(split, ())) < count:
            found = []
            for index, row in enumerate(map(rows.__getitem__, range(count))):
                if column not in row:
                    where = f"tasks.{split}.report_by"
                    message = f"row {index} has no column '{column}'; it has {', '.join(row)}"
                    raise SpecError([self.loaded.document.fault(where, message, "name one of them")])
                found.append(str(row[column]))
            self._groups[split] = tuple(found)
        return self._groups[split]

    def part(self, split: str, count: int | None) -> list[int]:
        """The indices of `count` tasks: the first ones, or evenly over the groups of `report_by`; all for None.

        All of a split without an end are those of one pass (`rlenv.tasks.rows.PASS`).

        Raises:
            UsageError: no such split.
            SpecError: a row cannot be read.
        """
        size = len(rows := self.tasks(split))
        if count is None or count >= size:
            return list(range(count if count is not None and rows.is_endless else size))
        groups = self.groups(split)
        return list(range(count)) if groups is None else spread(groups, count)

    def start(
        self,
        *,
        task: int | Mapping[str, Any] = 0,
        split: str | None = None,
        seed: int | None = None,
        cut: Cut | None = None,
        opening: str | None = None,
        others: Policy | Seat | None = None,
    ) -> Episode:
        """A new episode; enter it with `async with`.

        Args:
            task: the row's index in the split (0-based), or a row of its own.
            split: which split; by default the first of the spec.
            seed: equal seeds give equal episodes for equal actions. By default that of the task's first sample in a
                run of seed 0 (`rlenv.tasks.rows.seed_of`), and 0 for a row of its own.
            cut: how long results are cut, such as by a bound tokenizer's tokens; by characters otherwise.
            opening: the words of a user who speaks first, where they are known; the user is asked otherwise.
            others: who plays the other players, where there are several: a policy, or what plays an episode to its end.
                By default the spec's opponent does, and chance where it has none.

        Raises:
            UsageError: no such split or row. The episode of a row that cannot be read fails as it opens.
        """
        split = split if split is not None else next(iter(self.spec.tasks))
        if isinstance(task, int):
            rows = self.tasks(split)
            if not rows.has(task):
                raise UsageError(f"split '{split}' of {self.spec.name} has tasks 0 to {len(rows) - 1}, not {task}")
            seed = seed_of(0, split, task) if seed is None else seed
            try:
                row = rows[task]
            except SpecError as error:  # the others are played all the same
                return Episode(self, {}, split, task, seed, cut or self._cut, refused=str(error))
        else:
            row, task, seed = task, -1, seed or 0
        self.parts.check_rows((row,))
        if self.players is not None:
            return seat_players(Seated(self, row, split, task, seed, cut or self._cut, opening=opening), others)
        return Episode(self, row, split, task, seed, cut or self._cut, opening=opening)

    async def score_groups(
        self,
        trajectories: Sequence[Trajectory],
        *,
        groups: Sequence[Hashable] | None = None,
        on_asked: OnAsked | None = None,
    ) -> list[Trajectory]:
        """The trajectories with the terms that compare all answers to one task, in the same order.

        Groups are those of `rlenv.rewards.group.score_groups`. A term that asks models does so within
        `limits.reward_s` for each group, and what it asks for is added to `usage`.

        Args:
            groups: what tells apart, for each of them, groups of one task.
            on_asked: told what each group has asked models for, as soon as that is known.

        Raises:
            InvalidReward: a term with `on_invalid: raise` could not be measured.
        """
        return await ask_groups(
            self.parts.scorer,
            trajectories,
            vars=self.spec.vars,
            shared=self.scope,
            limit_s=lambda task: self.parts.limits.of(task).reward_s,
            groups=groups,
            on_asked=on_asked,
        )

    def is_text_only(self, cut: Cut) -> bool:
        """True where no tokenizer is bound, so that token limits are measured in characters."""
        return cut is self._cut

    def prompt(self, task: Mapping[str, Any], resources: Mapping[str, Any]) -> tuple[Message, ...]:
        """The first messages of an episode.

        Raises:
            EpisodeError: an image of the prompt is not there (`reason` is "image"), or the row does not fill a template
                ("prompt").
        """
        values = {"task": task, "resources": resources, "vars": self.spec.vars}
        images = self._prompt_images(values) if self.parts.images else ()
        found: list[Message] = []
        for one in self.parts.prompt:
            found += messages_of(one, values, images if one.path == "prompt.user" else ())
        return tuple(found)

    def speaks_first(self, messages: Sequence[Message]) -> bool:
        """True where the simulated user says the last message of a prompt, behind these.

        Raises:
            EpisodeError: there is none, and the prompt ends with no message that a policy could answer.
        """
        is_whole = bool(messages) and messages[-1].role in ("user", "tool")
        if not is_whole and self.parts.simulated is None:
            found = f"with a message of the {messages[-1].role}" if messages else "before it begins"
            raise EpisodeError(f"the prompt ends {found}; expected the user's", reason="prompt")
        return not is_whole

    @property
    def unasked_opening(self) -> str | None:
        """What stands for the words of a user who speaks first, where nobody shall be asked; None where none is."""
        user = self.spec.user
        asks = user is not None and (self.players is not None or kind_of("users", user).asks_models)
        return _OPENING if asks else None

    def _prompt_images(self, values: Mapping[str, Any]) -> tuple[Image, ...]:
        found: list[Image] = []
        for index, template in enumerate(self.parts.images):
            base = self.loaded.base_of(f"prompt.images.{index}")
            try:
                value = template.value(**values)
                find = finder(template, base=base, roots=self.loaded.roots, **values)
                found += [image_of(one, file=find) for one in listed(value)]
            except (UnreadableImage, RefusedPath, TemplateError) as error:
                message = f"prompt.images.{index} ({template.source.strip()}): {error}"
                raise EpisodeError(message, reason="image") from error
        return tuple(found)

    def prompt_text(self, messages: Sequence[Message], tools: ToolSet | None = None) -> str:
        """The prompt as a policy of raw text sees it: no text but the author's own spells a control token.

        Args:
            tools: the episode's (`Episode.toolset`); those that some row may have otherwise.
        """
        shown = (tools or self.toolsets.all).plain_schemas
        return self.parts.dialect.render_prompt([broken_message(one) for one in messages], shown)

    def observation_text(self, messages: Sequence[Message]) -> str:
        """The text that follows an action, as a policy of raw text sees it: no content spells a control token."""
        for message in messages:
            if find_mark(message.content if message.name is None else message.content + message.name):
                break
        else:
            return self.parts.dialect.render_observation(messages)
        return self.parts.dialect.render_observation([broken_message(one) for one in messages])

    def parse(self, action: str | Message, toolset: ToolSet | None = None) -> tuple[str, ParsedAction]:
        """The action's text and its reading; never raises for what a policy wrote.

        Families that write arguments without types read them by the schemas of `toolset`, the episode's. Of a text
        beyond 1,000,000 characters the first are taken, as if the sampler had stopped there. Of more calls than
        `MAX_CALLS`, and than may be run in a turn, the first are kept; those beyond 10,000 values are malformed.
        """
        dialect, tools = self.parts.dialect, (toolset or self.toolsets.all).tools
        if isinstance(action, str):
            action = action[:MAX_ACTION]
        elif len(action.content) > MAX_ACTION:
            action = replace(action, content=action.content[:MAX_ACTION])
        most = max(MAX_CALLS, self.limits.calls_per_turn)
        if isinstance(action, str):
            read = dialect.parse(action, tools)
            kept = first_calls(read.calls, most) if len(action) > MAX_CALLS else read.calls
            return action, read if kept is read.calls else replace(read, calls=kept)
        # The server has split thinking off: what a family's prompt leaves open is closed before the content is read.
        content = dialect.render_action(Message("assistant", action.content))
        read = dialect.parse(content, tools)
        if action.thinking and not read.thinking:
            read = replace(read, thinking=action.thinking)
        if not action.tool_calls:
            return content, read
        # Structured calls win over text that looks like a call: the server has already split the two.
        calls = tuple(map(sound_call, first_calls(action.tool_calls, most)))
        text = dialect.render_action(replace(action, tool_calls=calls))
        # Where the family writes calls in front, the content stands elsewhere than where it was read.
        places = read.content_at if text.startswith(content) else ()
        return text, ParsedAction(read.content, read.thinking, calls, read.is_cut, (), places)

    async def open_resource(self, resource: Resource, context: ResourceContext, stack: AsyncExitStack) -> Any:
        """The handle of a resource, entered on `stack` or, for scope `process`, once for the environment."""
        if resource.scope == "episode":
            return await stack.enter_async_context(resource.open(context))
        while (future := self._shared.get(resource.name)) is not None:
            is_open, handle = await asyncio.shield(future)
            if is_open:
                return handle
        future = self._shared[resource.name] = asyncio.get_running_loop().create_future()
        try:
            shared = ResourceContext({}, context.vars, 0)
            handle = await self._stack.enter_async_context(resource.open(shared))
        except BaseException as error:
            del self._shared[resource.name]  # the next episode tries again
            if isinstance(error, Exception):
                future.set_exception(error)
                future.exception()
            else:  # one episode was cancelled; those that wait for the same resource are not
                future.set_result((False, None))
            raise
        future.set_result((True, handle))
        return handle


def sound_call(call: ToolCall | MalformedCall) -> ToolCall | MalformedCall:
    """A call that came as data, malformed where its name or arguments are none: the guarantee of one that is read."""
    if isinstance(call, MalformedCall):
        return call
    name, arguments = call.name, call.arguments
    if not isinstance(name, str):
        name, reason = None, f"the name is {type(name).__name__}; expected text"
    elif arguments is None:  # as servers give a call without arguments
        return replace(call, arguments={})
    elif not isinstance(arguments, Mapping):
        reason = f"the arguments are {type(arguments).__name__}; expected an object"
    elif fault := value_fault(dict(arguments)):
        reason = f"the arguments are not JSON: {fault}"
    else:
        return call
    return MalformedCall(repr(plain(arguments))[:_MAX_SHOWN], reason, name=name, id=call.id)
