"""The failure policy of a run, and the outcome of an episode under it: token ids, mask, reward and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from rlenv.errors import UsageError, all_known
from rlenv.tokens import TokenTrajectory
from rlenv.trajectory import Trajectory

Choice = Literal["mask", "keep", "zero"]
"""`mask`: in no loss, in no group's mean, and no number. `keep`: trained on with the reward that was measured.
`zero`: trained on with the reward 0.0, and counted as zeroed."""

CRASH = "crash"
"""The reason of an episode that ended with an exception nobody declared, such as a bug of a tool's author."""

STRAGGLER = "straggler"
"""The reason of an episode that was cut because most of its group had ended."""

FAULTS = (
    *"reward resource endpoint user tools ends tool_hangs worker sandbox code policy refused".split(),
    *"prompt_tokens total_tokens image task prompt remote client aborted".split(),
    *(CRASH, "infrastructure"),
)
"""Reasons of episodes without a reward; docs/training/failures.md says what each of them means."""

TRUNCATIONS = (*"turns invalid_actions response_tokens turn_tokens time image_token template".split(), STRAGGLER)
"""Reasons of episodes that a limit cut; they have a reward."""

_ALL = ("faults", "truncations")
_CHOICES = ("mask", "keep", "zero")


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The choice for each reason. Made by `failure_policy`; `faults` and `truncations` hold for what is not named."""

    named: Mapping[str, Choice]
    faults: Choice = "mask"
    truncations: Choice = "keep"

    def choice(self, trajectory: Trajectory) -> Choice:
        """The fate of a sample; `keep` where the task ended. Never `keep` where there is no reward to keep."""
        if trajectory.failure is not None:
            choice = self.named.get(trajectory.failure.reason, self.faults)
            # A cut episode that could not even be scored: its limit's `keep` has no number to keep.
            return "mask" if choice == "keep" else choice
        if trajectory.truncated:
            return self.named.get(trajectory.reason, self.truncations)
        return "keep"


SAFE = FailurePolicy({})
"""Faults are masked, truncations kept."""


def failure_policy(given: Mapping[str, str] | None) -> FailurePolicy:
    """The policy that a run's `failures:` section describes.

    Args:
        given: reason to choice. A reason is one of `FAULTS` or `TRUNCATIONS`, or `faults` or `truncations` for all
            that are not named (a plug-in's own reasons among the faults). What is not given is masked (faults) or
            kept (truncations).

    Raises:
        UsageError: no such reason or choice, or `keep` for a fault.
    """
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"expected reason: choice, such as {{turns: mask}}, not {given!r:.80}", key="failures")
    choices: dict[str, Choice] = {}
    for reason, choice in (given or {}).items():
        if reason not in _ALL and reason not in FAULTS and reason not in TRUNCATIONS:
            hint = all_known(str(reason), [*_ALL, *FAULTS, *TRUNCATIONS], "known:")
            raise UsageError("no episode ends for this reason", key=f"failures.{reason}", hint=hint)
        if choice not in _CHOICES:
            raise UsageError(f"'{choice}' is none of {', '.join(_CHOICES)}", key=f"failures.{reason}")
        if choice == "keep" and (reason == "faults" or reason in FAULTS):
            raise UsageError(
                "keep needs a reward, and such an episode has none",
                key=f"failures.{reason}",
                hint="say mask to leave its sample out, or zero to train on it with reward 0",
            )
        choices[reason] = cast(Choice, choice)
    faults, truncations = choices.pop("faults", SAFE.faults), choices.pop("truncations", SAFE.truncations)
    return FailurePolicy(choices, faults, truncations)


@dataclass(frozen=True, slots=True)
class Row:
    """One training row. `len(mask) == len(response_ids) == len(logprobs)`.

    `mask` is 1 where the policy sampled; `logprobs` are 0.0 for tokens that were not sampled. `turn_spans` are first
    token and the one behind the last of each sampled turn in the response.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    mask: Sequence[int]
    logprobs: Sequence[float]
    turn_spans: Sequence[tuple[int, int]] = ()
    images: Sequence[Any] = ()
    """Those of its prompt and response, decoded, in the order of their placeholders."""
    token_rewards: tuple[float, ...] = ()
    """One a response token, summing to what is earned from the row's start on: each turn's reward on its last token,
    and on the last sampled token `carried`, which is earned in later rows. () where nothing is known or wanted."""
    carried: float = 0.0

    @classmethod
    def of(cls, tokens: TokenTrajectory, *, length: int, images: int) -> Row:
        """The first `length` response tokens of what was played, with the turns and images that are whole in them."""
        return cls(
            prompt_ids=tokens.prompt_ids,
            response_ids=tokens.response_ids[:length],
            mask=tokens.mask[:length],
            logprobs=tokens.logprobs[:length],
            turn_spans=[span for span in tokens.turn_spans if span[1] <= length],
            images=tokens.images[:images],
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One episode as veRL's `AgentLoopOutput`s take it: `rows` are one or several, in their order.

    A row has at least one response token, since veRL puts the score on the last one. `reward` of a masked sample is a
    placeholder: it is one row whose mask is all zeros, `info["masked"]` is 1, and rlenv's advantages leave it out of
    its group. `info["invalid"]` is 1 where no reward could be measured. `info` always has the same keys for one spec,
    and a value that could not be measured is None there, which veRL's validation figures leave out of their means.

    `ended` is why the episode ended; `masked` and `zeroed` repeat it where the failure policy chose that.
    """

    rows: tuple[Row, ...]
    reward: float
    info: Mapping[str, float | None]
    turn_rewards: tuple[float, ...] = ()
    ended: str = ""
    masked: str = ""
    zeroed: str = ""


def place_rewards(rows: Sequence[Row], turn_rewards: Sequence[float], *, total: float) -> tuple[Row, ...]:
    """The rows with the rewards of their turns on their tokens.

    Each turn's reward stands on its last token; what is left of `total` (a turn that sampled nothing, rounding) on the
    last sampled one of the last row. What later rows earn stands on each row's last sampled token: the first row's sum
    is `total`, and with the outcome's reward alone every row's is. Rows without a sampled turn stay as they are.

    Args:
        rows: of one episode, in their order.
        turn_rewards: one a turn over all rows, as `RewardBreakdown.turn_rewards`.
    """
    placed = [[0.0] * len(row.response_ids) for row in rows]
    turns = [(at, start, end) for at, row in enumerate(rows) for start, end in row.turn_spans]
    sampled = [(at, end - 1) for at, start, end in turns if end > start]
    if not sampled:
        return tuple(rows)
    if len(turn_rewards) == len(turns):
        for (at, start, end), reward in zip(turns, turn_rewards, strict=True):
            if end > start:
                placed[at][end - 1] += reward
    at, last = sampled[-1]
    placed[at][last] += total - math.fsum(value for row in placed for value in row)
    out = []
    for at, (row, own) in enumerate(zip(rows, placed, strict=True)):
        carried = math.fsum(value for later in placed[at + 1 :] for value in later)
        ends = [end for start, end in row.turn_spans if end > start]
        if not ends:
            out.append(row)
            continue
        own[ends[-1] - 1] += carried
        out.append(replace(row, token_rewards=tuple(own), carried=carried))
    return tuple(out)


def outcome_of(
    trajectory: Trajectory,
    *,
    terms: Sequence[str],
    rows: Sequence[Row],
    filler_id: int,
    differences: int = 0,
    respelled: int = 0,
    policy: FailurePolicy = SAFE,
) -> Outcome:
    """The outcome of an episode that ended, valid or not.

    Args:
        terms: the spec's reward terms; each becomes a key of `info`.
        rows: what was sampled and observed; empty where the episode failed before it had a prompt.
        filler_id: the masked token that stands where there is none.
        differences: how many observations the chat template would have written with another history.
        respelled: how many turns it writes in other words than were sampled.
        policy: what becomes of a sample that failed or was cut. One in which nothing was sampled is masked whatever
            the policy says: it has no token to train on.
    """
    # A row that begins with the template's new history and in which nothing was sampled then.
    sampled = [row for row in rows if any(row.mask)]
    choice = policy.choice(trajectory) if sampled else "mask"
    total = 0.0 if choice == "zero" else trajectory.reward.total
    is_kept = choice != "mask" and total is not None
    reason = trajectory.failure.reason if trajectory.failure is not None else trajectory.reason
    info: dict[str, float | None] = {
        "success": None if trajectory.success is None else float(trajectory.success),
        "invalid": float(trajectory.reward.total is None),
        "masked": float(not is_kept),
        "truncated": float(trajectory.truncated),
        "turns": float(len(trajectory.turns)),
        "calls": float(trajectory.calls),
        "calls_malformed": float(sum(turn.calls_malformed for turn in trajectory.turns)),
        "rows": float(max(1, len(sampled))),
        "differences": float(differences),
        "respelled": float(respelled),
    }
    for name in terms:
        term = trajectory.reward.terms.get(name)
        info[f"term_{name}"] = None if term is None else term.value
    turn_rewards = trajectory.reward.turn_rewards if is_kept and choice != "zero" else (0.0,) * len(trajectory.turns)
    if is_kept and total is not None:
        kept = tuple(row for row in place_rewards(rows, turn_rewards, total=total) if any(row.mask))
    else:
        kept = (_masked_row(rows[0] if rows else None, filler_id),)
    return Outcome(
        rows=kept,
        reward=total if is_kept and total is not None else 0.0,
        info=info,
        turn_rewards=turn_rewards,
        ended=reason,
        masked="" if is_kept else reason,
        zeroed=reason if choice == "zero" else "",
    )


def _masked_row(row: Row | None, filler_id: int) -> Row:
    """The one row of an episode that is left out; it needs a prompt and a token."""
    row = row or Row((), (), (), ())
    prompt, response = tuple(row.prompt_ids) or (filler_id,), tuple(row.response_ids) or (filler_id,)
    return Row(prompt, response, (0,) * len(response), tuple(row.logprobs) or (0.0,), images=row.images)


def failed_outcome(*, terms: Sequence[str], filler_id: int, reason: str = CRASH) -> Outcome:
    """The outcome where not even a record of an episode exists: one masked token."""
    keys = ("truncated", "turns", "calls", "calls_malformed")
    info: dict[str, float | None] = {"success": None, "invalid": 1.0, "masked": 1.0} | dict.fromkeys(keys, 0.0)
    info |= {"rows": 1.0, "differences": 0.0, "respelled": 0.0}
    info |= {f"term_{name}": None for name in terms}
    return Outcome((_masked_row(None, filler_id),), 0.0, info, ended=reason, masked=reason)
