"""pass@k and pass^k: that one of k samples of a task succeeds, and that all do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rlenv.runs.statistics.intervals import clustered_counts, score_interval

__all__ = ["PassAtK", "pass_at", "pass_curve", "pass_hat"]

_ALL: Final = 256
"""Up to so many samples of a task there is a figure for each k; beyond, for powers of two."""
Kind = Literal["at", "hat"]


@dataclass(frozen=True, slots=True)
class PassAtK:
    """A chance over k samples of a task, as `pass_at` or `pass_hat` estimates it: the mean over tasks.

    `tasks` are those with k valid samples or more. `left_out` had fewer, and are no part of `value`, which is None
    where no task is left. `interval` is one of 95 % for tasks like these (`score_interval` on [0, 1]).
    """

    value: float | None
    tasks: int
    left_out: int
    interval: tuple[float, float] | None = None


def pass_at(k: int, *, samples: int, successes: int) -> float:
    """The chance that k of `samples`, drawn without replacement, hold a success: 1 - C(n-c, k) / C(n, k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1. `k` is at most `samples`.
    """
    return 1 - math.comb(samples - successes, k) / math.comb(samples, k)


def pass_hat(k: int, *, samples: int, successes: int) -> float:
    """The chance that k of `samples`, drawn without replacement, all succeed: C(c, k) / C(n, k).

    Source: Yao et al. 2024, "τ-bench", section 5 (pass^k). `k` is at most `samples`.
    """
    return math.comb(successes, k) / math.comb(samples, k)


def pass_curve(kind: Kind, tasks: Sequence[tuple[int, int]], *, samples: int) -> dict[int, PassAtK]:
    """pass@k ("at") or pass^k ("hat") by k, of each task's successes and valid samples.

    For each k up to `samples`, which is how often tasks were played; beyond 256 for powers of two and `samples`.
    """
    wanted = range(1, samples + 1) if samples <= _ALL else _powers(samples)
    values: dict[int, list[tuple[float, int]]] = {k: [] for k in wanted}
    for (won, valid), count in Counter(tasks).items():
        for k, all_alike in _shares(won if kind == "hat" else valid - won, valid):
            if k in values:
                values[k].append((all_alike if kind == "hat" else 1 - all_alike, count))
    return {k: _figure(k, known, tasks) for k, known in values.items()}


def _powers(samples: int) -> list[int]:
    return sorted({*(2**power for power in range(samples.bit_length())), samples})


def _shares(alike: int, valid: int) -> Iterator[tuple[int, float]]:
    """C(alike, k) / C(valid, k) for k = 1, 2, …: whole numbers until the one division, so that it is exact."""
    above, below = 1, 1
    for k in range(1, valid + 1):
        above = above * (alike - k + 1) // k if k <= alike else 0
        below = below * (valid - k + 1) // k
        yield k, above / below


def _figure(k: int, known: Sequence[tuple[float, int]], tasks: Sequence[tuple[int, int]]) -> PassAtK:
    count = sum(number for _, number in known)
    if not count:
        return PassAtK(None, 0, len(tasks))
    value = math.fsum(one * number for one, number in known) / count
    held = [task for task in tasks if task[1] >= k]
    if k == 1 and len({valid for _, valid in held}) == 1:
        interval = clustered_counts(held)  # a share of samples: pass@1 and the success rate are one figure
    else:
        clusters = [(one, 1) for one, number in known for _ in range(number)]
        # A mean over all choices of k samples of n varies by k / n of what one choice varies, at most (Hoeffding 1948).
        # Near 0 and 1, where few tasks show how much, the variance between tasks alone is too small too often.
        interval = score_interval(clusters, 0.0, 1.0, most=sum(valid for _, valid in held) / k)
    return PassAtK(value, count, len(tasks) - count, interval)
