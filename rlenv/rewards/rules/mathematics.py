"""Rules for answers of mathematics: `math_equal`, the scoring of verl and SkyRL, and that of reasoning-gym.

Expressions are compared in processes that can be killed, and what goes wrong is told apart by whose it is. An answer
that uses up its processor time or memory, or that brings its process down, is a wrong one. An accepted answer that does
so is a fault of the data. A process that has no processor (stopped, starved) or that somebody ends says nothing about
the answer: the comparison is made again in another process, and where that does not go either, nothing is known.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rlenv._base.text import last_box
from rlenv.concurrency.deadline import Expired
from rlenv.concurrency.pool import Pool
from rlenv.concurrency.processes import Gone, Program, StartFailed
from rlenv.concurrency.served import ENDED_FULL
from rlenv.errors import MissingExtra, RewardError
from rlenv.language.kinds import Kind
from rlenv.language.spec import Float
from rlenv.rewards._math_text import bare, plain_number
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.normalise import boxed_in_braces, hendrycks_equal, minerva
from rlenv.rewards.rule import RuleSpec, UnfitGold, compile_accepted, gold_text, where_answer
from rlenv.rewards.rules.text import Expected

_TRIES: Final = 3
# How long a process may be without an answer beside the processor time that it may use: the machine is busy.
_STALL_S: Final = 30.0
_STALL_FACTOR: Final = 8.0
_CRASHES: Final = 2
"""Once may be anything; what ends its process again does so itself."""


@dataclass(frozen=True, slots=True)
class Equality:
    """The equality of an answer with an accepted one, and the reason where mathematics does not decide it."""

    is_equal: bool
    note: str = ""


class MathWorkers:
    """A few processes that compare expressions; started when needed, ended with the interpreter or by `pool.close`.

    Args:
        size: how many at once; as many as there are processors where it is not given, two at least.
        stall_s: how many seconds a process may give no answer beside the processor time that it may use.
        program: what compares; see `_math_worker`.

    Raises:
        MissingExtra: the library is not installed.
    """

    def __init__(
        self, *, size: int | None = None, stall_s: float = _STALL_S, program: str = "rlenv.rewards._math_worker:serve"
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra("the rule math_equal", extra="math")
        self.pool = Pool(Program(program, is_bare=True), limit=size)
        self._stall_s = stall_s

    async def compare(self, mine: str | None, golds: Sequence[str], *, limit_s: float) -> Equality:
        """Compares in a process; where there is no answer (None) the accepted ones are only read.

        An answer that cannot be read, or that takes more than `limit_s` seconds of processor time or more memory than
        a process has, is not equal.

        Raises:
            RewardError: an accepted answer cannot be read within the same limits, or nothing became known because
                the process was stopped, starved or ended from outside.
        """
        patience_s = self._stall_s + _STALL_FACTOR * limit_s
        asked = {"golds": list(golds), "mine": mine, "cpu_s": limit_s, "wall_s": patience_s}

        error: Exception | None = None
        crashes = 0
        for _ in range(_TRIES):
            try:
                said = await self.pool.run(lambda process: process.ask_json(asked, patience_s=patience_s))
            except Expired as late:
                raise RewardError(
                    f"the process that compares expressions gave no answer for {patience_s:g} s and had "
                    "not used up its processor time: the machine stopped or starved it"
                ) from late
            except StartFailed as failed:
                raise RewardError(f"the process that compares expressions did not start: {failed}") from failed
            except Gone as gone:
                error = gone
                crashes += gone.cause in ("crash", "exit")
                ends = {"used_up": gone.cause == "processor", "memory": gone.status == ENDED_FULL}
                ends["crash"] = crashes >= _CRASHES
                if not any(ends.values()):
                    continue
                if mine is not None:  # by itself, or the accepted answers did it
                    await self.compare(None, golds, limit_s=limit_s)
                said = {"of_gold" if mine is None else "of_mine": ends}
            _refuse(said.get("of_gold", {}), golds, limit_s)
            return _verdict(said.get("of_mine", {}), limit_s)
        raise RewardError(f"the process that compares expressions was ended from outside: {error}") from error

    def check(self, golds: Sequence[str], *, limit_s: float) -> None:
        """Reads accepted answers, from any thread; an event loop that runs in it waits.

        Raises:
            RewardError: one of them cannot be read within `limit_s` seconds of processor time.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="rlenv-math") as thread:
            thread.submit(asyncio.run, self.compare(None, golds, limit_s=limit_s)).result()


_ENDS: Final = {
    "used_up": "takes more than {:g} s of processor time",
    "memory": "takes more memory than there is",
    "crash": "brings down the process that reads it",
}


def _ended(said: Mapping[str, Any], limit_s: float) -> str:
    return next((why.format(limit_s) for key, why in _ENDS.items() if said.get(key)), "")


def _verdict(said: Mapping[str, Any], limit_s: float) -> Equality:
    unread = "cannot be read as one expression" if said.get("unreadable") else ""
    return Equality(bool(said.get("equal")), _ended(said, limit_s) or said.get("error") or unread)


def _refuse(said: Mapping[str, Any], golds: Sequence[str], limit_s: float) -> None:
    """Raises RewardError where an accepted answer cannot be compared with."""
    gold = said.get("gold", golds[0] if golds else "")
    if why := _ended(said, limit_s):
        raise UnfitGold(f"expect: reading the gold value {gold!r:.80} {why}")
    if said.get("unreadable"):
        raise UnfitGold(f"expect: the gold value {gold!r:.80} cannot be read as mathematics")


@lru_cache(maxsize=1)
def shared_workers() -> MathWorkers:
    """The workers of this process.

    Raises:
        MissingExtra: the library is not installed.
    """
    return MathWorkers()


_MAX_CHARS = 2_000


class MathEqualSpec(RuleSpec):
    """1 if the answer equals an accepted one as mathematics, 0 otherwise (extra `math`).

    The answer as a whole has to be one expression. Plain numbers are compared exactly; fractions, expressions,
    equations, sets, intervals and tuples are read from LaTeX or plain text by the library math-verify: `0.5` is
    `\\frac{1}{2}`, `x^2+2x+1` is `(x+1)^2`. It runs in a process of its own, with bounded processor time and memory.
    """

    rule: Literal["math_equal"]
    expect: Expected = "{{ task.answer }}"
    """The accepted answer, or several, as LaTeX or plain text; a template may give a list."""
    cpu_s: Annotated[Float, Field(gt=0, le=60)] = 5.0
    """Seconds of processor time. An answer that takes more to read and compare is wrong; a gold value is invalid."""


def _math_equal(name: str, spec: MathEqualSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)
    workers = shared_workers()

    def golds_of(context: RewardContext) -> list[str]:
        return [gold_text(value).strip() for value in accepted(context)]

    def check(context: RewardContext) -> None:
        golds = golds_of(context)
        if any(plain_number(bare(gold)) is None for gold in golds):
            workers.check(golds, limit_s=spec.cpu_s)

    async def measure(context: RewardContext) -> Measured:
        golds = golds_of(context)
        answer = context.answer
        if answer is None:
            return Measured(0.0, "no answer")
        if len(answer) > _MAX_CHARS:
            return Measured(0.0, f"longer than the {_MAX_CHARS} characters that an expression may have")
        is_equal = _as_numbers(answer, golds)
        if is_equal is not None:
            return Measured(float(is_equal), answer)
        verdict = await workers.compare(answer, golds, limit_s=spec.cpu_s)
        return Measured(float(verdict.is_equal), answer, {"note": verdict.note} if verdict.note else {})

    return Term(name=name, spec=spec, measure_async=measure, check_gold=check, where=where_answer)


def _as_numbers(answer: str, golds: list[str]) -> bool | None:
    """True if an answer is one of the accepted ones where all of them are plain numbers; None otherwise."""
    expected = [plain_number(bare(gold)) for gold in golds if len(gold) <= _MAX_CHARS]
    if len(expected) < len(golds) or any(number is None for number in expected):
        return None
    mine = plain_number(bare(answer))
    return None if mine is None else mine in expected


MATH_EQUAL = Kind(MathEqualSpec, _math_equal, values=(0, 1), gold="expect", reads_answer=True, several=True)


_CLIP_CHARS = 300
_BOX_CHARS = 100
_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_LINE_TO_TAG = re.compile(r"(?i)Answer\s*:\s*([^\n<]+)")
_INVALID = "[INVALID]"


class VerlMathSpec(RuleSpec):
    """MATH as verl 0.9.1 scores it: 1 if the last box of the last message holds the gold answer, 0 otherwise.

    `answer:` plays no part. Texts are compared after normalisation; nothing is computed.
    """

    rule: Literal["verl_math"]
    expect: Expected = "{{ task.answer }}"
    """The gold answer as LaTeX, or several."""


class VerlDapoSpec(RuleSpec):
    """DAPO's reward as verl 0.9.1 scores it: 1 if right, -1 otherwise.

    The answer is what follows the last `Answer:` on its line, normalised as in Minerva; without one, the last box in
    the last 100 characters, as it stands.
    """

    rule: Literal["verl_dapo"]
    expect: Expected = "{{ task.answer }}"
    """The gold answer as LaTeX, or several."""


class SkyrlAimeSpec(RuleSpec):
    """AIME as skyrl-gym 0.4.0 scores it: as verl_dapo without the box, and the answer's line ends at a `<`."""

    rule: Literal["skyrl_aime"]
    expect: Expected = "{{ task.answer }}"
    """The gold answer as LaTeX, or several."""


def read_minerva(text: str, *, to_tag: bool = False) -> str:
    """The normalised answer after the last `Answer:` in the last 300 characters, `[INVALID]` where there is none."""
    found = (_LINE_TO_TAG if to_tag else _LINE).findall(text[-_CLIP_CHARS:])
    return minerva(found[-1]) if found else _INVALID


def _verl_math(name: str, spec: VerlMathSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)

    def measure(context: RewardContext) -> Measured:
        golds = [gold_text(value) for value in accepted(context)]
        found = last_box(context.final_text)
        if found is None:
            return Measured(0.0, "no box")
        return Measured(float(any(hendrycks_equal(found, gold) for gold in golds)), found)

    return Term(name=name, spec=spec, measure=measure, where=RewardContext.where_final)


def _dapo(name: str, spec: VerlDapoSpec | SkyrlAimeSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)
    reads_box = isinstance(spec, VerlDapoSpec)

    def measure(context: RewardContext) -> Measured:
        golds = [gold_text(value) for value in accepted(context)]
        text = context.final_text[-_CLIP_CHARS:]
        found = read_minerva(text, to_tag=not reads_box)
        is_right = any(found == minerva(gold) for gold in golds)
        if found == _INVALID and reads_box:
            boxed = boxed_in_braces(text[-_BOX_CHARS:])
            if boxed is not None:
                found, is_right = boxed, boxed in golds
        return Measured(1.0 if is_right else -1.0, found, {"pred": found})

    return Term(name=name, spec=spec, measure=measure, where=RewardContext.where_final)


VERL_MATH = Kind(VerlMathSpec, _verl_math, gold="expect")
VERL_DAPO = Kind(VerlDapoSpec, _dapo, gold="expect")
SKYRL_AIME = Kind(SkyrlAimeSpec, _dapo, gold="expect")


_GYM_STALL_S: Final = 60.0
_GYM_CHARS: Final = 20_000
_FIELDS: Final = {"name": str, "size": int, "seed": int, "config": Mapping, "index": int}


class ReasoningGymRuleSpec(RuleSpec):
    """What reasoning-gym's own `score_answer` gives for the answer, from 0 to 1; for tasks of `reasoning_gym`.

    It runs in a process of its own, with bounded processor time and memory, where no answer is evaluated as a program.
    """

    rule: Literal["reasoning_gym"]
    cpu_s: Annotated[Float, Field(gt=0, le=60)] = 10.0
    """Seconds of processor time. An answer that takes more is worth 0."""


@lru_cache(maxsize=1)
def _gym() -> Pool:
    return Pool(Program("rlenv.rewards._reasoning_gym:serve"), limit=2)


async def _scored(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the process says: `score`, `error` of the library's, or `ended` where the answer has brought it down."""
    patience_s = asked["wall_s"] + _GYM_STALL_S

    cause: Exception | None = None
    for _ in range(_TRIES):
        try:
            return await _gym().run(lambda process: process.ask_json(asked, patience_s=patience_s))
        except Expired as late:
            raise RewardError(f"reasoning-gym gave no score within {patience_s:g} s") from late
        except StartFailed as failed:
            raise RewardError(f"the process of reasoning-gym did not start: {failed}") from failed
        except Gone as gone:
            cause = gone
            if gone.cause in ("processor", "time"):
                return {"ended": "it takes more than its time to score"}
    return {"ended": f"it ends the process that scores it ({cause})"}


def _reasoning_gym(name: str, spec: ReasoningGymRuleSpec, context: TermCompileContext) -> Term:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise MissingExtra("the rule reasoning_gym", extra="reasoning-gym")

    async def score(task: Mapping[str, Any], answer: str | None) -> dict[str, Any]:
        limits = {"cpu_s": spec.cpu_s, "wall_s": 4 * spec.cpu_s}
        return await _scored({**_made(task), "answer": answer, **limits})

    async def measure(context: RewardContext) -> Measured:
        answer = context.answer
        if answer is None:
            return Measured(0.0, "no answer")
        if len(answer) > _GYM_CHARS:
            return Measured(0.0, f"longer than {_GYM_CHARS} characters")
        said = await score(context.task, answer)
        if "score" in said:
            return Measured(said["score"], answer)
        # Whose fault it is: the library's, if it cannot score its own answer either.
        own = await score(context.task, None)
        if "score" not in own:
            raise RewardError(f"reasoning-gym cannot score this task: {own.get('error') or own.get('ended')}")
        return Measured(0.0, answer, {"note": said.get("error") or said["ended"]})

    return Term(name=name, spec=spec, measure_async=measure, where=where_answer)


def _made(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the row says of how it was generated."""
    made = task.get("reasoning_gym")
    if not isinstance(made, Mapping) or not all(isinstance(made.get(key), kind) for key, kind in _FIELDS.items()):
        raise RewardError(
            "the row is none of reasoning_gym's: it has no column 'reasoning_gym' that says how it was made"
        )
    return {key: made[key] for key in _FIELDS}


REASONING_GYM = Kind(ReasoningGymRuleSpec, _reasoning_gym, values=(0, 1), reads_answer=True)
