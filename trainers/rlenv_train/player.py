"""Samples for trainers that take token ids and give token ids: an episode each, in lock step or one by one.

A trainer's adapter asks `Player.start` for a sample by its address, feeds it what the trainer sampled, and takes its
training row from `Player.outcomes`. What an episode's end means for the row is `rlenv_train.fate`'s.
"""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from rlenv.concurrency.lanes import entered
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.token_episode import TokenEpisode
from rlenv.errors import InvalidReward, UnsupportedTemplate, UsageError, all_known
from rlenv.hosts.session import require_alone
from rlenv.messages import Message
from rlenv.runs.schema import ending_of
from rlenv.tasks.rows import seed_of
from rlenv.tokens.bound import bind
from rlenv.tokens.encoder import History, TokenEncoder
from rlenv.tokens.verdict import form_of, verdict_of
from rlenv_train.fate import CRASH, Outcome, Row, failure_policy, outcome_of
from rlenv_train.keeping import Activity, Keeper
from rlenv_train.samples import EpisodeFigures, Play, SampleTask, figures_of

Sampler = Callable[..., Awaitable[tuple[Sequence[int], Sequence[float] | None]]]
"""`await sample(context_ids, max_tokens=, stop_token_ids=, …)`: ids and log-probabilities of the next turn. The keys
are those of `TokenEpisode.sampling`."""


@dataclass(frozen=True, slots=True)
class Address:
    """The episode that a row of a trainer's data set stands for: by numbers, never by its text.

    `seed` is the run's; the episode's own follows from it, the task and the step, so that the samples of one group
    differ in nothing but what was sampled.
    """

    spec: str
    split: str
    task: int
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The address as JSON."""
        return {"rlenv": self.spec, "split": self.split, "task": self.task, "seed": self.seed}

    def as_prompt(self) -> list[dict[str, str]]:
        """The address as the one message of a prompt, for trainers that hand on nothing but that."""
        return [{"role": "user", "content": json.dumps(self.as_dict())}]

    @classmethod
    def of(cls, given: Any) -> Address:
        """The address in a mapping, in a JSON text, or in the last message of a prompt.

        Raises:
            UsageError: it is none.
        """
        held = given
        with suppress(ValueError, LookupError, TypeError):
            if isinstance(held, Sequence) and not isinstance(held, str):
                held = held[-1]["content"]
            held = json.loads(held) if isinstance(held, str) else held
            return cls(str(held["rlenv"]), str(held["split"]), int(held["task"]), int(held.get("seed", 0)))
        hint = "a row has rlenv, split and task, as `addresses` makes it"
        raise UsageError(f"{given!r:.200} is no address of an episode", hint=hint)


def addresses(
    environment: Environment, split: str, *, seed: int = 0, count: int | None = None, place: str | None = None
) -> list[Address]:
    """The addresses of a split's tasks, in their order.

    Args:
        count: so many tasks, spread evenly over the groups; all for None.
        place: the path by which a worker loads the spec; by default its name, which is one where it ships.

    Raises:
        UsageError: no such split.
    """
    spec = environment.spec.name if place is None else place
    return [Address(spec, split, task, seed) for task in environment.part(split, count)]


class Sample:
    """One sample: open it, then feed it until `is_ended`. Made by `Player.start`.

    A fault of the environment ends it with an invalid reward; what the sampler raises is the caller's.
    """

    def __init__(self, player: Player, environment: Environment, task: SampleTask, played: TokenEpisode) -> None:
        self.player, self.environment, self.task, self.played = player, environment, task, played
        self.play = Play(Activity(environment.spec.name), policy=player.policy)
        if player.keeper is not None:
            self.play.lane = player.keeper.recorder.lane()

    @property
    def is_ended(self) -> bool:
        """True once nothing more is to be sampled."""
        return self.played.is_ended

    @property
    def context_ids(self) -> list[int]:
        """The ids that the policy continues."""
        return self.played.context_ids

    async def open(self) -> None:
        """Opens the episode.

        Raises:
            UnsupportedTemplate: the chat template cannot go on behind what the environment answers; all samples alike
                are concerned.
        """
        await self._run_in_lane(self.played.open)
        self.play.tokens = self.played.tokens
        if not self.is_ended:
            encoder = self.player.encoder(self.environment)
            self.player.required.check(self.environment, encoder, self.played.episode.messages)

    async def feed(
        self, ids: Sequence[int], logprobs: Sequence[float] | None = None, *, finish_reason: str | None = None
    ) -> None:
        """Takes what was sampled behind `context_ids`, as far as this sample takes it.

        What stands behind the first end token, behind a text at which the environment's turns stop, or behind the
        turn's limit is left out, as samplers cannot all stop there.
        """
        length = self._taken_length(ids)
        ids = list(ids[:length])
        logprobs = None if logprobs is None else list(logprobs[:length])
        await self._run_in_lane(lambda: self.played.step(ids, logprobs, finish_reason=finish_reason))

    def _taken_length(self, ids: Sequence[int]) -> int:
        most = self.played.max_tokens
        length = len(ids) if most is None else min(most, len(ids))
        ends = set(self.played.sampling["stop_token_ids"])
        length = next((at + 1 for at, token in enumerate(ids[:length]) if token in ends), length)
        if stops := self.environment.stops:
            decode, mark = self.player.encoder(self.environment).decode, re.compile("|".join(map(re.escape, stops)))
            if mark.search(decode(ids[:length])):  # where it first stands: each look decodes all before it
                length = 1 + bisect_left(
                    range(1, length), True, key=lambda at: mark.search(decode(ids[:at])) is not None
                )
        return length

    async def _run_in_lane(self, work: Callable[[], Awaitable[object]]) -> None:
        with entered(self.play.lane):
            try:
                await work()
            except (UnsupportedTemplate, InvalidReward, UsageError):
                raise
            except Exception as error:  # the episode's boundary: one sample's fault is not its group's
                self.played.episode.fail(CRASH, f"{type(error).__name__}: {error}")


class Player:
    """Plays the samples of one or several specs for one policy.

    Args:
        environments: their names are those of the addresses.
        tokenizer: the policy's, as `rlenv.bind` takes it.
        model: the policy's folder or name; see `rlenv.bind`.
        history: what becomes of turns that the chat template would write otherwise later. Not `rows`: a sample is one
            row here.
        turn_tokens: the most tokens of a turn.
        failures: what becomes of a sample, by the reason its episode ended (`rlenv_train.fate`).
        keeper: keeps the episodes; None keeps none.
        limits: those of `rlenv.TokenEpisode`.

    Raises:
        UsageError: the history is `rows`, the failures are none, or a spec has other players and no opponent.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        tokenizer: Any,
        *,
        model: str = "",
        history: History = "grow",
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        failures: Mapping[str, str] | None = None,
        keeper: Keeper | None = None,
        **limits: Any,
    ) -> None:
        if history == "rows":
            raise UsageError("a sample is one training row here", key="history", hint="say keep, or train with veRL")
        self.environments = {environment.spec.name: environment for environment in environments}
        self.policy, self.keeper, self._limits = failure_policy(failures), keeper, limits
        self._tokenizer, self._encoders = tokenizer, dict[str, TokenEncoder]()
        self._binding: dict[str, Any] = {
            "model": model,
            "history": history,
            "chat_template": chat_template,
            "template_kwargs": template_kwargs,
        }
        self.required = Required()
        for environment in environments:
            self.encoder(environment)

    def environment(self, name: str) -> Environment:
        """The environment of that name.

        Raises:
            UsageError: there is none.
        """
        if name not in self.environments:
            raise UsageError(f"no spec of this run is called '{name}'", hint=all_known(name, self.environments))
        return self.environments[name]

    def encoder(self, environment: Environment) -> TokenEncoder:
        """The encoder of the environment's samples.

        Raises:
            UsageError: the environment has other players and no opponent; or see `rlenv.bind`.
            UnsupportedTemplate: see `rlenv.bind`.
        """
        name = environment.spec.name
        if name not in self._encoders:
            if environment.players is not None and environment.opponent is None:
                raise UsageError(f"{name} has several players, and nobody plays the others", hint="give it an opponent")
            self._encoders[name] = bind(self._tokenizer, environment, **self._binding)
        return self._encoders[name]

    def start(
        self, address: Address, *, step: int = 0, sample: int = 0, group: str = "", is_validation: bool = False
    ) -> Sample:
        """A new sample, to be opened.

        Args:
            step: of the training; it changes the episode's seed, which a validation's step does not.
            sample: its place in its group, and `group` that one's name.

        Raises:
            UsageError: no such spec, split or task.
        """
        environment = self.environment(address.spec)
        task = SampleTask(address.split, address.task, step, is_validation, False, sample, group)
        seed = seed_of(address.seed, address.split, address.task, -1 if is_validation else step)
        played = TokenEpisode(
            environment,
            self.encoder(environment),
            task=address.task,
            split=address.split,
            seed=seed,
            others=environment.opponent,
            **self._limits,
        )
        return Sample(self, environment, task, played)

    async def play(self, address: Address, sampler: Sampler, **facts: Any) -> tuple[Outcome, EpisodeFigures]:
        """Plays a sample of its own to its end, for trainers that ask for one at a time; `facts` are those of `start`.

        Raises:
            UsageError: see `start`; or terms of the spec compare the samples of a group.
        """
        environment = self.environment(address.spec)
        require_alone(environment, "this trainer scores each sample", "leave them out, or train by TRL or veRL")
        made = self.start(address, **facts)
        try:
            await made.open()
            while not made.is_ended:
                await made.feed(*await sampler(made.context_ids, **made.played.sampling))
        finally:
            await made.played.aclose()
        return (await self.outcomes([made]))[0]

    async def outcomes(self, group: Sequence[Sample]) -> list[tuple[Outcome, EpisodeFigures]]:
        """The training row and the figures of each sample of one group; all have ended. They are kept and closed.

        `Outcome.rows` is one row with one id at least. Where `figures.reward` is None there is nothing to train on: the
        mask is all zeros then.
        """
        for made in group:
            await made.played.aclose()
            made.play.metrics["tool_calls"] = made.played.step_s
            if made.play.tokens is not None:
                made.play.rows = [Row.of(row, length=len(row), images=len(row.images)) for row in made.played.rows]
            if self.keeper is not None:
                made.play.id = self.keeper.keep(made.played.trajectory, made.play.facts(made.task), made.play.lane)
        records = [made.played.trajectory for made in group]
        counted = [at for at, made in enumerate(group) if self._is_counted(made)]
        if counted and group[0].environment.parts.scorer.has_group_terms:
            scored = await group[0].environment.score_groups([records[at] for at in counted])
            for at, record in zip(counted, scored, strict=True):
                records[at] = record
                if self.keeper is not None:
                    self.keeper.append_late(group[at].play.id, **ending_of(record))
        return [self._outcome_of(made, record) for made, record in zip(group, records, strict=True)]

    def _is_counted(self, made: Sample) -> bool:
        record = made.played.trajectory
        return record.failure is None and made.play.sampled > 0 and made.play.policy.choice(record) != "mask"

    def _outcome_of(self, made: Sample, record: Any) -> tuple[Outcome, EpisodeFigures]:
        environment, play = made.environment, made.play
        terms, encoder = tuple(environment.spec.rewards), self.encoder(environment)
        differences = len(play.tokens.differences) if play.tokens is not None else 0
        outcome = outcome_of(
            record, terms=terms, rows=play.rows, filler_id=encoder.stop_id, differences=differences, policy=play.policy
        )
        figures = figures_of(
            environment.spec.name, made.task, outcome, play, terms=terms, stops="", is_kept=self.keeper is not None
        )
        return outcome, figures


class Required:
    """The verdict that a run is given before it starts, asked once for each form of prompt."""

    def __init__(self) -> None:
        self._will_run: set[object] = set()

    def check(self, environment: Environment, encoder: TokenEncoder, messages: Sequence[Message]) -> None:
        """Passes where the chat template can go on behind whatever an environment answers to a first prompt.

        Whoever asks keeps environment and encoder for as long as this object.

        Raises:
            UnsupportedTemplate: it cannot with the encoder's history; all samples alike are concerned.
        """
        key = (id(environment), id(encoder), form_of(messages))
        if key not in self._will_run:
            verdict = verdict_of(environment, encoder, [messages])
            if not verdict.will_run:
                raise UnsupportedTemplate(verdict.message)
            self._will_run.add(key)


def environment_of(spec: str, set: Mapping[str, Any] | None = None) -> Environment:
    """The environment of a spec, by path or by the name of one that ships, one a process; raises SpecError.

    Args:
        set: replaces keys of the spec, by dotted path.
    """
    return _load_spec(spec, json.dumps(dict(set or {}), sort_keys=True))


@cache
def _load_spec(spec: str, set: str) -> Environment:
    return load(spec, set=json.loads(set))


class Hosted(Player):
    """A player whose addresses name specs by path, or by the name of one that ships; they are loaded as they come."""

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__((), tokenizer, **options)

    def environment(self, name: str) -> Environment:
        """The environment of that path or name; raises SpecError for the spec's own faults."""
        return environment_of(name)


def placeholder(rewards: Mapping[int, float | None]) -> float:
    """The number for a masked sample where a trainer wants one and averages over its group: the others' mean.

    So the group's mean is the one that the others have by themselves. 0.0 where there are no others; `rewards` are None
    for the masked.
    """
    known = [reward for reward in rewards.values() if reward is not None]
    return sum(known) / len(known) if known else 0.0


async def wait_for_all(works: Sequence[Awaitable[object]]) -> None:
    """Waits for all of them; the first that raises is raised once all have ended."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
