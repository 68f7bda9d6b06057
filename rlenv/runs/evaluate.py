"""Many episodes with a policy, their figures, and the run that keeps them: `rlenv eval` as a function."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlenv._base.bounded import plain
from rlenv.concurrency.threads import run_sync
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, rollout
from rlenv.errors import UsageError
from rlenv.policies.base import Policy
from rlenv.policies.scripted import Act
from rlenv.runs.folder import KeptRun, open_run, read_info
from rlenv.runs.locks.files import Say
from rlenv.runs.stage import Actor, PolicyChoice, Stage, actor_of, log
from rlenv.runs.summary import Summary, success_width, summarise
from rlenv.runs.usage import Prices
from rlenv.tasks.rows import SEEDS, seed_of
from rlenv.trajectory import Trajectory

__all__ = ["MOST_SAMPLES", "Evaluation", "evaluate", "evaluate_async"]

MOST_SAMPLES: Final = 1_000_000
_LOOK_TASKS: Final = 20
OnEnd = Callable[[Trajectory, int, int], None]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of an evaluation and their figures.

    `ids` are those of the episodes in the run's `folder`, in the order of `trajectories`, "" of one that could not be
    written; () without a folder. `figures` are those of `summary.json`: with a folder `not_kept` counts the writes that
    failed.
    """

    environment: Environment
    split: str
    trajectories: tuple[Trajectory, ...]
    summary: Summary
    figures: Mapping[str, Any]
    folder: Path | None = None
    ids: tuple[str, ...] = ()


def evaluate(
    spec: str | Path | Environment, policy: str | PolicyChoice | Policy | Act = "oracle", **options: Any
) -> Evaluation:
    """Plays many episodes of a spec and sums them up, with the arguments of `evaluate_async`.

    Inside of a running event loop the episodes are played on that of `run_sync`.
    """
    is_inside = False
    with contextlib.suppress(RuntimeError):  # nothing is played in its handler: what tools raise would name it
        is_inside = asyncio.get_running_loop() is not None
    if is_inside:
        return run_sync(evaluate_async, spec, policy, **options)
    return asyncio.run(evaluate_async(spec, policy, **options))


async def evaluate_async(
    spec: str | Path | Environment,
    policy: str | PolicyChoice | Policy | Act = "oracle",
    *,
    opponent: str | PolicyChoice | Policy | Act | None = None,
    split: str | None = None,
    n: int | None = None,
    k: int = 1,
    seed: int = 0,
    concurrency: int = 64,
    until_width: float | None = None,
    set: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    record: bool = False,
    tape: str | Path | None = None,
    prices: str | Path | Prices | None = None,
    max_cost: float | None = None,
    on_end: OnEnd = lambda trajectory, done, total: None,
    say: Say = log,
) -> Evaluation:
    """Plays many episodes of a spec with a policy and sums them up; with `out` the run is kept as by `rlenv eval`.

    Args:
        spec: a YAML file, the name of a shipped environment, or an environment, which is closed at the end.
        policy: a name as `--policy` takes it, a `PolicyChoice` with what that needs, a `Policy` (closed at the end),
            or an async function of the messages so far that gives the next action.
        opponent: who plays the other players, as `policy`; by default whom the spec names.
        split: the tasks; by default `test` where there is one, else the first split.
        n: how many tasks; None for all. Of each `k` samples are played.
        seed: of the run; each sample has its own, made of it.
        until_width: play tasks in an order drawn by `seed`, and end once the 95 % interval of success is so narrow.
        set: values that replace keys of the spec, by dotted path.
        out: the folder of the run; `resume` plays what it lacks and what is invalid, `overwrite` replaces it.
        record: keep also what tools of this process give, for `rlenv replay --all-tools`. What leaves the process is
            kept with every episode.
        tape: a recorded run that answers tools and models, but not the policy.
        prices: what tokens cost, or the file that says it; `max_cost` ends the run once it has cost more.
        on_end: called with each episode as it ends, the number of those that have ended, and of all.
        say: is told what a person should know meanwhile, line by line; by default the log `rlenv.runs`.

    Raises:
        UsageError: arguments that do not go together, no such policy or split, or a folder that cannot be taken.
        SpecError: the spec or the prices have faults.
        RunStopped: the file `stop` in the run's folder, or `max_cost`, has ended the run.
    """
    _check(n=n, k=k, concurrency=concurrency, until_width=until_width)
    keep: dict[str, Any] = {"out": out, "resume": resume, "overwrite": overwrite, "record": record, "tape": tape}
    stage = Stage(kind="eval", prices=prices, max_cost=max_cost, set=set or {}, say=say, **keep)
    plan = _Plan(split, n, k, seed, concurrency, until_width, on_end)
    return await plan.evaluate(stage, stage.load(spec), policy, opponent)


def _check(*, n: int | None, k: int, concurrency: int, until_width: float | None) -> None:
    if k < 1 or concurrency < 1 or (n is not None and n < 1):
        raise UsageError("-n, -k and --concurrency are at least 1")
    if k > MOST_SAMPLES:
        raise UsageError(f"-k is at most {MOST_SAMPLES:,}")
    if until_width is not None and not 0 < until_width < 1:
        raise UsageError("--until-width is between 0 and 1", hint="0.1 is five points to both sides")


@dataclass(frozen=True, slots=True)
class _Plan:
    """The episodes of an evaluation, as they were asked for."""

    split: str | None
    n: int | None
    k: int
    seed: int
    concurrency: int
    until_width: float | None
    on_end: OnEnd

    async def evaluate(
        self,
        stage: Stage,
        environment: Environment,
        policy: str | PolicyChoice | Policy | Act,
        opponent: str | PolicyChoice | Policy | Act | None,
    ) -> Evaluation:
        splits = list(environment.spec.tasks)
        split = self.split or ("test" if "test" in splits else splits[0])
        tasks = environment.part(split, self.n)
        if self.until_width is not None:  # the first ones alone would be no sample of the split
            random.Random(self.seed).shuffle(tasks)
        _check_seeds(stage)
        facts = {"split": split, "seeds": SEEDS}
        jobs = [Job(split, task, seed_of(self.seed, split, task, at)) for task in tasks for at in range(self.k)]
        players = [policy] if opponent is None else [policy, opponent]
        actors = [actor_of(one, environment, concurrency=self.concurrency, say=stage.say) for one in players]
        try:
            actor = actors[0] if opponent is None else actors[0].with_opponent(actors[1], environment)
            with stage.open(environment, actor, facts, seed=self.seed, seeds=SEEDS, k=self.k) as out:
                run = _Run(stage, environment, actor, jobs, self.k, out)
                begun = time.monotonic()
                trajectories = await stage.run_stoppable(run.play(self))
                by = environment.spec.tasks[split].report_by
                summary = summarise(trajectories, seconds=time.monotonic() - begun, by=by, prices=stage.costs)
                figures = {
                    "environment": environment.id,
                    "spec": environment.address or str(environment.loaded.path),
                    "digest": environment.loaded.digest,
                    "policy": actor.name,
                    "split": split,
                    "tasks": len(trajectories) // self.k,
                    "samples": self.k,
                    "seed": self.seed,
                    "seeds": SEEDS,
                    **({} if self.until_width is None else {"until_width": self.until_width, "tasks_most": len(tasks)}),
                    **plain(summary),
                }
                if out is not None:
                    figures["not_kept"] = out.lost
                    out.write_summary(json.dumps(figures, indent=2) + "\n")
        finally:
            for one in actors:
                await one.policy.aclose()
        if out is not None:
            figures["not_kept"] = out.lost  # the summary may be what does not fit
        folder = None if out is None else out.path
        return Evaluation(environment, split, tuple(trajectories), summary, figures, folder, tuple(run.ids))

    def batches(self, jobs: int) -> list[range]:
        """The jobs between two looks at the interval: whole tasks, at least as many as are played at once; all by
        default.

        At least 20 tasks: a look at fewer would end at a chance agreement of the first ones.
        """
        if self.until_width is None:
            return [range(jobs)]
        size = max(_LOOK_TASKS, -(-self.concurrency // self.k)) * self.k
        return [range(start, min(start + size, jobs)) for start in range(0, jobs, size)]


def _check_seeds(stage: Stage) -> None:
    """Raises unless a run that goes on began with the rule by which seeds of episodes are made now."""
    info = read_info(stage.out) if stage.resume and stage.out else None
    if info is not None and info.kind == "eval" and info.facts.get("seeds") != SEEDS:
        raise UsageError(f"{stage.out} has seeds that another version of rlenv makes", hint="start a new run")


class _Run:
    """The episodes that are played and kept as they end, and those that an earlier attempt has kept."""

    def __init__(
        self, stage: Stage, environment: Environment, actor: Actor, jobs: list[Job], k: int, out: KeptRun | None
    ) -> None:
        self._stage, self._environment, self._actor = stage, environment, actor
        self._jobs, self._k, self._out = jobs, k, out
        self._ids: dict[int, str] = {}
        self._before: dict[int, str] = {}
        self._spoiled: list[str] = []
        self._stop = len(jobs)
        if out is not None and stage.resume:
            # By the seed too: it may be another one than the run began with.
            places = {(job.split, job.task, index % k, job.seed): index for index, job in enumerate(jobs)}
            self._reader = open_run(out.path)
            for row in self._reader.rows():
                index = places.get((row["split"], row["task"], row["sample"], row["seed"]))
                if index is not None and row["has_body"] and self._reader.is_counted(row):
                    self._before[index] = row["id"]
            self._leave_out_invalid()

    def _leave_out_invalid(self) -> None:
        """Has what is invalid played again; it stays in the run, and counts until the new episode is there."""
        table = self._reader.table
        failed = {id for id, why in zip(*(table[name].to_pylist() for name in ("id", "failure")), strict=True) if why}
        invalid = {index: id for index, id in self._before.items() if id in failed}
        if invalid:
            self._stage.say(f"{len(invalid)} episodes of the run are invalid; they are played again")
        self._spoiled = list(invalid.values())
        self._before = {index: id for index, id in self._before.items() if index not in invalid}

    async def play(self, plan: _Plan) -> list[Trajectory]:
        """The episodes of all jobs, or of those that were played until the interval was narrow enough."""
        stage, environment, budget, total = self._stage, self._environment, self._stage.budget, len(self._jobs)
        missing = [index for index in range(total) if index not in self._before]
        left, found = len(missing), list[Trajectory]()
        if stage.max_cost is not None:  # what an earlier attempt has cost counts too, of what is played again as well
            for id in (*self._before.values(), *self._spoiled):
                budget.add_episode(self._reader.body(id).trajectory(), left=left)
        async with environment:
            for batch in plan.batches(total):
                todo = [index for index in missing if index in batch]

                def on_end(at: int, trajectory: Trajectory, *, todo: list[int] = todo) -> None:
                    nonlocal left
                    left -= 1
                    self._append(todo[at], trajectory)
                    plan.on_end(trajectory, total - left, total)
                    budget.add_episode(trajectory, left=left)

                jobs, many = [self._jobs[index] for index in todo], plan.concurrency
                policy = self._actor.policy
                ran = await rollout(environment, policy, jobs, concurrency=many, on_end=on_end, lane=stage.lane)
                whole = self._episodes_of(dict(zip(todo, ran, strict=True)), batch)  # a batch has whole tasks
                found += await environment.score_groups(whole, on_asked=budget.add_usage)
                if plan.until_width is not None and success_width(found) <= plan.until_width:
                    break
            if self._out is not None and environment.parts.scorer.has_group_terms:
                self._out.keep_endings(self.ids, found)
        return found

    def _append(self, index: int, trajectory: Trajectory) -> None:
        """Keeps an episode as it ends, so that a run that is cut off keeps what it has."""
        self._stage.keep_asked()
        if self._out is not None:
            job, k = self._jobs[index], self._k
            group = f"{job.split}/{job.task}" if k > 1 else ""
            facts = self._stage.facts_of(trajectory, mode=self._actor.mode, sample=index % k, group=group)
            self._ids[index] = self._out.append(trajectory, facts)

    def _episodes_of(self, played: dict[int, Trajectory], batch: range) -> list[Trajectory]:
        """The episodes of these jobs, in their order."""
        self._stop = batch.stop
        before = {index: self._reader.body(id).trajectory() for index, id in self._before.items() if index in batch}
        return [trajectory for _, trajectory in sorted((before | played).items())]

    @property
    def ids(self) -> list[str]:
        """The ids of all episodes that were played, "" of one that could not be written; empty where none is kept."""
        return [id for index, id in sorted((self._before | self._ids).items()) if index < self._stop]
