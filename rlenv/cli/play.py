"""`rlenv play`: an episode by hand."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.panel import Panel

from rlenv.cli.console import Console
from rlenv.cli.options import WithOut, WithRecord, WithSpec, given, option
from rlenv.cli.policies import WithPolicy
from rlenv.cli.spending import WithPrices, show_spending
from rlenv.cli.terminal import say
from rlenv.concurrency.lanes import entered
from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.episodes.rollout import advance, context_of
from rlenv.messages import Message, Sampled
from rlenv.policies.base import Policy, PolicyContext, PolicySession
from rlenv.runs.policies import NAMES, Actor, actor_of
from rlenv.runs.stage import Stage
from rlenv.runs.usage import spent
from rlenv.trajectory import Trajectory

__all__ = ["PlayCommand"]


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
        trajectory = await stage.stoppable(_play(actor.policy, environment, episode, console))
        show_spending(console, spent([trajectory], prices=stage.costs))
        if out is not None:
            id = out.append(trajectory, stage.facts_of(trajectory, mode=actor.mode))
            if id:
                console.print(f"rlenv view {shlex.quote(args.out or '')} {id}", markup=False, soft_wrap=True)
    return 1 if out is not None and out.lost else 0


async def _play(policy: Policy, environment: Environment, episode: Episode, console: Console) -> Trajectory:
    try:
        async with environment, episode:
            prompt, title = environment.prompt_text(episode.messages), f"{environment.id} · task {episode.task_index}"
            console.print(Panel(escape(prompt), title=title, title_align="left"))
            messages, session = list(episode.messages), policy.start(context_of(episode))
            if not isinstance(policy, _Hand):
                session = _Shown(session, environment, console)
            while not episode.is_ended:
                try:
                    step = await advance(episode, session, messages)
                except EOFError:
                    await episode.truncate("left")
                    break
                if step.observation.messages:
                    shown = "\n".join(message.content for message in step.observation.messages)
                    console.print(Panel(escape(shown), title="observation", title_align="left", border_style="green"))
            _report(console, episode.trajectory)
    finally:
        await policy.aclose()
    return episode.trajectory


class _Hand:
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

    async def aclose(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A policy's session, of which each action is shown before it is taken."""

    session: PolicySession
    environment: Environment
    console: Console

    async def act(self, messages: Sequence[Message]) -> str | Message | Sampled:
        action = await self.session.act(messages)
        said = action.action if isinstance(action, Sampled) else action
        message = said if isinstance(said, Message) else Message("assistant", said)
        text = self.environment.parts.dialect.render_action(message)
        self.console.print(Panel(escape(text), title="policy", title_align="left", border_style="cyan"))
        return action


def _read(console: Console) -> str | None:
    console.print("[cyan]>[/cyan] ", end="")
    lines: list[str] = []
    for line in sys.stdin:
        if line.strip() == "" and lines:
            break
        lines.append(line.rstrip("\n"))
    return "\n".join(lines) if lines else None


def _report(console: Console, trajectory: Trajectory) -> None:
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
