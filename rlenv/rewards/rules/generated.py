"""The rule `reasoning_gym`: the library's own scoring of an answer to a task that it has generated."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rlenv.concurrency.deadline import Expired
from rlenv.concurrency.pool import Pool
from rlenv.concurrency.processes import Gone, Program, StartFailed
from rlenv.errors import MissingExtra, RewardError
from rlenv.language.kinds import Kind
from rlenv.language.spec import Float
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.rule import RuleSpec, where_answer

__all__ = ["REASONING_GYM", "ReasoningGymRuleSpec"]

_TRIES: Final = 3
_STALL_S: Final = 60.0
_MOST_CHARS: Final = 20_000
_FIELDS: Final = {"name": str, "size": int, "seed": int, "config": Mapping, "index": int}


class ReasoningGymRuleSpec(RuleSpec):
    """What reasoning-gym's own `score_answer` gives for the answer, from 0 to 1; for tasks of `reasoning_gym`.

    It runs in a process of its own, with bounded processor time and memory, where no answer is evaluated as a program.
    """

    rule: Literal["reasoning_gym"]
    cpu_s: Annotated[Float, Field(gt=0, le=60)] = 10.0
    """Seconds of processor time. An answer that takes more is worth 0."""


@lru_cache(maxsize=1)
def _pool() -> Pool:
    return Pool(Program("rlenv.rewards._reasoning_gym:serve"), limit=2)


async def _asked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the process says: `score`, `error` of the library's, or `ended` where the answer has brought it down."""
    patience_s = asked["wall_s"] + _STALL_S

    cause: Exception | None = None
    for _ in range(_TRIES):
        try:
            return await _pool().run(lambda process: process.ask_json(asked, patience_s=patience_s))
        except Expired as late:
            raise RewardError(f"reasoning-gym gave no score within {patience_s:g} s") from late
        except StartFailed as failed:
            raise RewardError(f"the process of reasoning-gym did not start: {failed}") from failed
        except Gone as gone:
            cause = gone
            if gone.cause in ("processor", "time"):
                return {"ended": "it takes more than its time to score"}
    return {"ended": f"it ends the process that scores it ({cause})"}


def _compile(name: str, spec: ReasoningGymRuleSpec, context: TermCompileContext) -> Term:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise MissingExtra("the rule reasoning_gym", extra="reasoning-gym")

    async def score(task: Mapping[str, Any], answer: str | None) -> dict[str, Any]:
        limits = {"cpu_s": spec.cpu_s, "wall_s": 4 * spec.cpu_s}
        return await _asked({**_of(task), "answer": answer, **limits})

    async def measure(context: RewardContext) -> Measured:
        answer = context.answer
        if answer is None:
            return Measured(0.0, "no answer")
        if len(answer) > _MOST_CHARS:
            return Measured(0.0, f"longer than {_MOST_CHARS} characters")
        said = await score(context.task, answer)
        if "score" in said:
            return Measured(said["score"], answer)
        # Whose fault it is: the library's, if it cannot score its own answer either.
        own = await score(context.task, None)
        if "score" not in own:
            raise RewardError(f"reasoning-gym cannot score this task: {own.get('error') or own.get('ended')}")
        return Measured(0.0, answer, {"note": said.get("error") or said["ended"]})

    return Term(name=name, spec=spec, measure_async=measure, where=where_answer)


def _of(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the row says of how it was generated."""
    made = task.get("reasoning_gym")
    if not isinstance(made, Mapping) or not all(isinstance(made.get(key), kind) for key, kind in _FIELDS.items()):
        raise RewardError(
            "the row is none of reasoning_gym's: it has no column 'reasoning_gym' that says how it was made"
        )
    return {key: made[key] for key in _FIELDS}


REASONING_GYM = Kind(ReasoningGymRuleSpec, _compile, values=(0, 1), reads_answer=True)
