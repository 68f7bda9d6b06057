"""`rlenv play`: an episode by hand.

The options that name a policy, for the commands that play episodes.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from rich.markup import escape
from rich.panel import Panel

from rlenv.cli.console import Console, WithPrices, show_spending
from rlenv.cli.options import Option, Options, WithOut, WithRecord, WithSpec, fields, given, option, options_of
from rlenv.cli.terminal import say
from rlenv.concurrency.lanes import entered
from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.episodes.rollout import advance, context_of
from rlenv.errors import UsageError
from rlenv.messages import Message, Sampled
from rlenv.policies.base import Policy, PolicyContext, PolicySession, SessionAround
from rlenv.runs.stage import KEY_VARIABLE, NAMES, Actor, PolicyChoice, Stage, actor_of
from rlenv.runs.usage import spending_of
from rlenv.trajectory import Trajectory

_KINDS: Final = ("you", "oracle", "random", "script", "openai", "hf")
_openai = partial(option, group="--policy openai")
_hf = partial(option, group="--policy hf:MODEL")
_sampled = partial(option, group="--policy openai and hf:MODEL")


@dataclass
class WithPolicy(Options):
    """A command that takes a policy. The group of an option names the kinds of policies that take it."""

    policy: str = option(NAMES, default="oracle")
    base_url: str | None = _openai("such as http://127.0.0.1:8000/v1")
    policy_model: str | None = _openai("the model's name at the server", "--model")
    api_key_env: str | None = _openai("the key's variable; by default OPENAI_API_KEY", metavar="NAME")
    mode: Literal["tools", "text"] | None = _openai("the server's own tool calls (the default), or raw text")
    extra: list[str] = _openai(
        "another field of each request, such as repetition_penalty=1; null leaves a field out",
        default=[],
        metavar="KEY=VALUE",
    )
    request_timeout: float | None = _openai("120 by default", metavar="SECONDS")
    retries: int | None = _openai("of a request that failed in passing; 3 by default")
    policy_chat_template: str | None = _hf(
        "instead of the model's own: a file, or chatml", "--chat-template", metavar="FILE|NAME"
    )
    max_tokens: int | None = _sampled("of one action; of hf 256 by default")
    temperature: float | None = _sampled("0 is greedy")
    top_p: float | None = _sampled("the share of the likeliest tokens that is sampled from")

    @classmethod
    def policy_options(cls) -> list[Option]:
        """The options that some kinds of policies take."""
        return [one for one in options_of(cls) if one.group.startswith("--policy ")]

    def given_to_policy(self) -> list[Option]:
        """Those of them that were given."""
        return [one for one in self.policy_options() if getattr(self, one.name) not in (None, [])]

    def check_policy(self) -> None:
        """Refuses what the named policy would not look at: who gives `--temperature 1` believes that it was sampled.

        Raises:
            UsageError: with the options that are another policy's, or with credentials in two places.
        """
        kind = self.policy.partition(":")[0]
        if kind not in _KINDS:
            return  # a name that is misspelled is the fault to tell
        for one in self.given_to_policy():
            if kind not in one.group.replace(":", " ").split():
                hint = f"--policy {kind} does nothing with it: leave it out"
                raise UsageError(f"{one.flag} is for {one.group}", hint=hint)
        if kind == "openai" and self.base_url:
            from rlenv.endpoints.account import TWO_LOGINS, two_logins

            variable = self.api_key_env or KEY_VARIABLE
            if two_logins(self.base_url, {"Authorization": ""} if os.environ.get(variable) else {}):
                hint = f"leave one out: {variable} is set, and --api-key-env names another variable"
                raise UsageError(f"--base-url: {TWO_LOGINS}", hint=hint)

    @property
    def choice(self) -> PolicyChoice:
        """The policy that the options name.

        Raises:
            UsageError: an option is given that it does not take.
        """
        self.check_policy()
        names = ("mode", "base_url", "api_key_env", "max_tokens", "request_timeout", "retries", "temperature", "top_p")
        given = {name: getattr(self, name) for name in names}
        own: dict[str, Any] = {"model": self.policy_model, "chat_template": self.policy_chat_template}
        return PolicyChoice(self.policy, extra=fields(self.extra), **own, **given)


@dataclass
class PlayCommand(WithSpec, WithPolicy, WithOut, WithRecord, WithPrices):
    """`rlenv play`."""

    policy: str = option(f"you, {NAMES}", default="you")
    split: str | None = option("which tasks; the first split by default")
    task: int = option("the row's index, from 0", default=0, metavar="I")
    seed: int | None = option("of the episode; by default that of the task's first in `rlenv eval`")
    out: str | None = option("keep the episode there, as a run", "-o", "--out", metavar="DIR", writes=True)

    def execute(self) -> int:
        """Plays one episode: you write the actions, or watch a policy."""
        choice = self.choice
        keep = given(self, "out", "overwrite", "record")
        stage = Stage(kind="play", prices=self.prices, set=self.overrides, say=say, **keep)
        environment, console = stage.load(self.spec), Console()
        # A task that is none begins no run.
        episode = environment.start(task=self.task, split=self.split, seed=self.seed)
        by_hand = self.policy == "you"
        actor = Actor(_Hand(console), "you", {"kind": "you"}) if by_hand else actor_of(choice, environment, say=say)
        return asyncio.run(_run(self, stage, environment, actor, episode, console))


async def _run(
    args: PlayCommand, stage: Stage, environment: Environment, actor: Actor, episode: Episode, console: Console
) -> int:
    facts, lane = {"split": episode.split, "task": args.task}, stage.lane
    with stage.open(environment, actor, facts, seed=episode.seed) as out, entered(lane and lane(0)):
        trajectory = await stage.run_stoppable(_play(actor.policy, environment, episode, console))
        show_spending(console, spending_of([trajectory], prices=stage.costs))
        if out is not None:
            id = out.append(trajectory, stage.facts_of(trajectory, mode=actor.mode))
            if id:
                console.say(f"rlenv view {shlex.quote(args.out or '')} {id}")
    return 1 if out is not None and out.lost else 0


async def _play(policy: Policy, environment: Environment, episode: Episode, console: Console) -> Trajectory:
    async with aclosing(policy), environment, episode:
        prompt, title = (episode.prompt_text, f"{environment.id} · task {episode.task_index}")
        console.print(Panel(escape(prompt), title=title, title_align="left"))
        messages, session = list(episode.messages), policy.start(context_of(episode))
        if not isinstance(policy, _Hand):
            session = _show_actions(session, environment, console)
        while not episode.is_ended:
            try:
                step = await advance(episode, session, messages)
            except EOFError:
                await episode.truncate("left")
                break
            if step.observation.messages:
                shown = "\n".join(message.content for message in step.observation.messages)
                console.print(Panel(escape(shown), title="observation", title_align="left", border_style="green"))
        _report_end(console, episode.trajectory)
    return episode.trajectory


class _Hand(Policy):
    """You, as a policy: what you type is the next action. EOFError once you leave."""

    name = "you"

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self, context: PolicyContext) -> _Hand:
        self._console.print("[dim]Write an action and end it with an empty line; Ctrl-D leaves.[/dim]")
        return self

    async def act(self, messages: Sequence[Message]) -> str:
        action = _read(self._console)
        if action is None:
            raise EOFError
        return action


def _show_actions(session: PolicySession, environment: Environment, console: Console) -> PolicySession:
    """A policy's session, of which each action is shown before it is taken."""

    async def act(session: PolicySession, messages: Sequence[Message]) -> str | Message | Sampled:
        action = await session.act(messages)
        said = action.action if isinstance(action, Sampled) else action
        message = said if isinstance(said, Message) else Message("assistant", said)
        text = environment.parts.dialect.render_action(message)
        console.print(Panel(escape(text), title="policy", title_align="left", border_style="cyan"))
        return action

    return SessionAround(session, act)


def _read(console: Console) -> str | None:
    console.print("[cyan]>[/cyan] ", end="")
    lines: list[str] = []
    for line in sys.stdin:
        if line.strip() == "" and lines:
            break
        lines.append(line.rstrip("\n"))
    return "\n".join(lines) if lines else None


def _report_end(console: Console, trajectory: Trajectory) -> None:
    state = "terminated" if trajectory.terminated else "truncated"
    total = trajectory.reward.total
    console.print(f"{state}: {escape(trajectory.reason)}; answer: {escape(repr(trajectory.answer))}")
    console.print(f"reward: {'invalid' if total is None else f'{total:g}'}; success: {trajectory.success}")
    for name, term in trajectory.reward.terms.items():
        value = term.status if term.value is None else f"{term.value:g}"
        notes = escape(term.error or term.evidence)
        console.print(f"  {escape(name)}: {value} × {term.weight:g}  [dim]{notes}[/dim]")
    if trajectory.failure is not None:
        console.print(f"[red]{escape(trajectory.failure.message)}[/red]")
