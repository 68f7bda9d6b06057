"""Make a tiny policy for one spec or several: tokenizer, network and warm start, a minute or two a spec on one core."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rlenv.collect.encode import EncodedAction, EncodedRow, encode_steps
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.messages import Message
from rlenv.tasks.rows import seed_of
from rlenv.tokens import TokenEncoder
from rlenv_train.lessons import EDITS_CALLS, Flaw, Gold, Lesson, gold_of, has_room, make_lesson, mixture, without_models
from rlenv_verl.tiny import WarmupReport, build_tokenizer, new_model, save_model, warm_up

DEFAULT_SPLIT = "warmup"

_T = TypeVar("_T")
_Taught = tuple[list[Lesson], list[Lesson]]


@dataclass(frozen=True, slots=True)
class WarmupSettings:
    """The most that the warm start sees of each environment.

    `golds` oracle episodes and `drills` are played; `clean` and `mixed` lessons are drawn from them; `drill_share` of
    the clean ones are drills. Playing ends after `play_s` seconds of wall time, and lessons are then drawn from what
    was played. `at_once` episodes run at a time. `steps` are optimiser steps for each environment.
    """

    steps: int = 460
    clean_share: float = 0.65
    drill_share: float = 0.5
    golds: int = 2000
    drills: int = 1000
    clean: int = 3000
    mixed: int = 3000
    play_s: float = 90.0
    at_once: int = 32

    @classmethod
    def within(cls, limit_s: float | None) -> WarmupSettings:
        """The usual ones for a run with such a time limit, in seconds: a twentieth of it goes to playing."""
        return cls() if limit_s is None else cls(play_s=limit_s / 20)


@dataclass(frozen=True, slots=True)
class TinyReport:
    """The policy that was made. `seconds` is wall time of everything; `longest` the tokens of the longest lesson.

    `cut` says what was not all played within `play_s`, and how much was.
    """

    parameters: int
    vocabulary: int
    lessons: int
    longest: int
    seconds: float
    cut: tuple[str, ...]
    warmup: WarmupReport

    @property
    def lines(self) -> list[str]:
        """The lines that tell people what was made."""
        made = f"{self.parameters:,} parameters, {self.vocabulary} tokens, {self.warmup.steps} steps, loss"
        made = f"{made} {self.warmup.clean_loss:.3f} (clean) {self.warmup.mixed_loss:.3f} (mixed), {self.seconds:.0f} s"
        cut = f"there was time to play {', '.join(self.cut)}; a twentieth of --time-limit is for each spec"
        return [f"warm start  {line}" for line in ((made, cut) if self.cut else (made,))]


def make_tiny_policy(
    environments: Environment | Sequence[Environment],
    folder: Path,
    *,
    seed: int,
    split: str | None = None,
    settings: WarmupSettings = WarmupSettings(),
    threads: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> TinyReport:
    """Write one warm-started policy for all `environments` to `folder`, loadable by `from_pretrained`.

    Equal arguments give equal weights on one machine, as long as playing does not reach its time limit. Several
    environments share one tokenizer and one warm start, in which each has as many lessons and as many steps as it would
    have alone. No model is asked: see `without_models`.

    Args:
        environments: one or several compiled specs, each with an `oracle` and the hermes dialect.
        split: where the lessons' tasks come from; by default `warmup` where a spec has it, else its first split.
        threads: for torch. Two are faster on an idle machine and slower on a busy one.
        progress: called with a line of text after each episode and each optimiser step.

    Raises:
        UsageError: a spec has no oracle, another dialect, or an oracle that fails; or there is no environment.
    """
    import torch

    chosen = _check_teachable(environments)
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    cut: list[str] = []
    taught = [asyncio.run(_collect_lessons(environment, split, settings, rng, progress, cut)) for environment in chosen]
    progress("making a tokenizer")
    tokenizer = _make_tokenizer(chosen, taught, folder)
    progress("encoding the lessons")
    clean, mixed = _to_examples(chosen, taught, TokenEncoder(tokenizer))
    model = new_model(tokenizer)
    total = settings.steps * len(chosen)
    report = warm_up(
        model,
        clean,
        mixed,
        pad_id=int(tokenizer.pad_token_id),
        seed=seed,
        steps=total,
        clean_share=settings.clean_share,
        progress=lambda step, loss: progress(f"step {step} of {total}, loss {loss:.3f}"),
    )
    save_model(model, tokenizer, folder)
    lengths = [len(example.input_ids) for example in (*clean, *mixed)]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    seconds = time.monotonic() - started
    return TinyReport(parameters, len(tokenizer), len(lengths), max(lengths), seconds, tuple(cut), report)


def _check_teachable(environments: Environment | Sequence[Environment]) -> list[Environment]:
    chosen = list(environments) if isinstance(environments, Sequence) else [environments]
    if not chosen:
        raise UsageError("a tiny policy is made for at least one environment; none was given")
    for environment in chosen:
        if environment.spec.dialect != "hermes":
            raise UsageError(
                f"the tiny policy writes calls in the hermes dialect and {environment.spec.name} uses "
                f"'{environment.spec.dialect}'",
                hint="set `dialect: hermes`, or train a model of your own with --model PATH",
            )
    return chosen


def _make_tokenizer(environments: Sequence[Environment], taught: Sequence[_Taught], folder: Path) -> Any:
    """The tokenizer of what is taught: the mixture, and half as many clean lessons."""
    return build_tokenizer(
        [
            (_to_conversation(lesson), lesson.tools)
            for clean, mixed in taught
            for lesson in (*mixed, *clean[: len(mixed) // 2])
        ],
        folder,
        markers=list(dict.fromkeys(marker for environment in environments for marker in _markers(environment))),
    )


def _to_examples(
    environments: Sequence[Environment], taught: Sequence[_Taught], encoder: TokenEncoder
) -> tuple[list[EncodedRow], list[EncodedRow]]:
    """The clean lessons and the mixture of all environments, as rows."""
    clean, mixed = (
        [
            _encode(lesson, encoder, environment)
            for environment, phases in zip(environments, taught, strict=True)
            for lesson in phases[phase]
        ]
        for phase in (0, 1)
    )
    return clean, mixed


def _markers(environment: Environment) -> tuple[str, ...]:
    """The tags around an answer; none where the spec takes its answer from elsewhere."""
    answer = environment.spec.answer
    return (f"<{answer.tag}>", f"</{answer.tag}>") if answer.from_ == "tag" else ()


async def _collect_lessons(
    environment: Environment,
    split: str | None,
    settings: WarmupSettings,
    rng: random.Random,
    progress: Callable[[str], None],
    cut: list[str],
) -> _Taught:
    """The lessons of one environment: clean ones and the mixture; `cut` is told what there was no time for."""
    if split is None:
        split = DEFAULT_SPLIT if DEFAULT_SPLIT in environment.spec.tasks else next(iter(environment.spec.tasks))
    oracle = environment.oracle()
    name = environment.spec.name
    begun = time.monotonic()

    async def run_for_share(what: str, works: Sequence[Callable[[], Awaitable[_T]]], share: float) -> list[_T | None]:
        """The works that end within a share of the time."""
        deadline = begun + share * settings.play_s
        total = f"{len(works):,}"
        results = await _run_until(
            works,
            deadline=deadline,
            at_once=settings.at_once,
            on_end=lambda count: progress(f"{name}: {what} {count:,} of {total}"),
        )
        if None in results and time.monotonic() >= deadline:
            cut.append(f"{name}: {len(works) - results.count(None):,} of {total} {what}")
        return results

    async with environment:
        with without_models(environment) as is_whole:
            tasks = rng.sample(range(rows := len(environment.tasks(split))), min(rows, settings.golds))
            gold = partial(gold_of, environment, oracle, split=split, is_scored=is_whole)
            played = [partial(gold, task=task, seed=seed_of(0, split, task)) for task in tasks]
            golds = [gold for gold in await run_for_share("episodes of the oracle", played, 0.5) if gold is not None]
        if not golds:
            raise UsageError(f"the oracle of {name} never has a turn in '{split}'")

        def planned(gold: Gold, flaw: Flaw | None) -> tuple[Flaw, Callable[[], Awaitable[Lesson | None]]]:
            """A lesson to make, with a flaw that is drawn from the mixture where it is None."""
            other = rng.choice(golds)
            if flaw is None:
                shares = mixture(gold, other=other)
                flaw = rng.choices(list(shares), list(shares.values()))[0]
            own = random.Random(rng.getrandbits(64))  # they run at once, and each writes what it writes alone
            return flaw, partial(make_lesson, environment, oracle, gold, flaw, split=split, rng=own, other=other)

        plan = [planned(rng.choice(golds), None) for _ in range(settings.mixed)]
        drillable = [gold for gold in golds if has_room(Flaw.DRILL, gold, other=gold)]
        drill_plan = [planned(rng.choice(drillable), Flaw.DRILL)[1] for _ in range(settings.drills if drillable else 0)]
        with without_models(environment, is_scored=False):
            gold_lessons = [await make() for make in (planned(gold, Flaw.NONE)[1] for gold in golds)]
            edited = [make for flaw, make in plan if flaw in EDITS_CALLS]
            made = dict(zip(edited, await run_for_share("episodes with edited calls", edited, 0.75), strict=True))
            drills = [one for one in await run_for_share("drills", drill_plan, 1.0) if one is not None]
            mixed = [(flaw, made[make] if make in made else await make()) for flaw, make in plan]
    shown = _ByLength([lesson for lesson in gold_lessons if lesson is not None])
    drilled = _ByLength(drills) if drills else shown
    clean = [(drilled if rng.random() < settings.drill_share else shown).draw(rng) for _ in range(settings.clean)]
    return clean, _fill_gaps(mixed, rng)


async def _run_until(
    works: Sequence[Callable[[], Awaitable[_T]]], *, deadline: float, at_once: int, on_end: Callable[[int], None]
) -> list[_T | None]:
    """The result of each of `works`, None for one that has not ended by `deadline`; the first of all is waited for."""
    results: list[_T | None] = [None] * len(works)
    left, count = iter(enumerate(works)), 0

    async def work() -> None:
        nonlocal count
        for index, make in left:
            results[index] = await make()
            count += 1
            on_end(count)
            if time.monotonic() >= deadline:
                return

    left_s = max(deadline - time.monotonic(), 0.0)
    working = [asyncio.ensure_future(work()) for _ in range(at_once if left_s else 1)]
    try:
        await asyncio.wait(working, timeout=left_s, return_when=asyncio.FIRST_EXCEPTION)
        if not count:
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        for one in working:
            if one.done():
                one.result()
    finally:
        for one in working:
            one.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    return results


def _fill_gaps(lessons: Sequence[tuple[Flaw, Lesson | None]], rng: random.Random) -> list[Lesson]:
    """The lessons, with another one of the same flaw for each that was not played: the shares stay as they are."""
    known: dict[Flaw, list[Lesson]] = {}
    for flaw, lesson in lessons:
        if lesson is not None:
            known.setdefault(flaw, []).append(lesson)
    filled = (rng.choice(known[flaw]) if lesson is None and flaw in known else lesson for flaw, lesson in lessons)
    return [lesson for lesson in filled if lesson is not None]


class _ByLength:
    """Draws lessons so that every length of the final action is as likely as any other.

    A length that few tasks have would hardly be practised otherwise: one in six products of two-digit numbers has
    three digits, and those were what policies miscopied.
    """

    def __init__(self, lessons: Sequence[Lesson]) -> None:
        groups: dict[int, list[Lesson]] = {}
        for lesson in lessons:
            groups.setdefault(len(lesson.turns[-1][0]), []).append(lesson)
        # A rare length is not repeated without end: it gets at most three times its own share.
        self.groups = [groups[length] for length in sorted(groups)]
        self.weights = [min(1 / len(groups), 3 * len(group) / len(lessons)) for group in self.groups]

    def draw(self, rng: random.Random) -> Lesson:
        return rng.choice(rng.choices(self.groups, self.weights)[0])


def _to_conversation(lesson: Lesson) -> list[dict[str, Any]]:
    messages = [message.as_dict() for message in lesson.prompt]
    for action, observation in lesson.turns:
        messages.append(Message("assistant", action).as_dict())
        if observation is not None:
            messages.extend(message.as_dict() for message in observation.messages)
    return messages


def _encode(lesson: Lesson, encoder: TokenEncoder, environment: Environment) -> EncodedRow:
    """The lesson as a row of supervised data, by the code that `rlenv collect` writes them with."""
    steps = [
        EncodedAction(action, observation, calls=len(environment.parse(action)[1].calls), is_trained=is_trained)
        for (action, observation), is_trained in zip(lesson.turns, lesson.trained, strict=True)
    ]
    encoded = encode_steps(encoder, lesson.prompt, steps, tools=lesson.tools, stops=environment.stops)
    return encoded.rows[0]
