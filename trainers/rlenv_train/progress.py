"""The progress of a run for people: its stage, what it waits for, a time limit, and its curves."""

from __future__ import annotations

import signal
import string
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlenv.cli.console import Console
from rlenv_train.keeping import KeptEpisodes
from rlenv_train.waits import read_waits, wait_line

__all__ = ["Stage", "TimeIsUp", "Underway", "plot_png", "plot_text", "time_is_up_at"]


_PATIENCE_S = 10.0
_MOST_PATIENCE_S = 60.0


class TimeIsUp(KeyboardInterrupt):
    """The time limit was reached. It leaves an event loop as Ctrl-C does; another exception does not."""


@contextmanager
def time_is_up_at(deadline: float | None) -> Iterator[None]:
    """Raises TimeIsUp in the block at `deadline` (on the clock of `time.monotonic()`), whatever it does.

    None is never. Only the main thread has an alarm; elsewhere nothing is raised.
    """
    if (
        deadline is None
        or threading.current_thread() is not threading.main_thread()
        or not hasattr(signal, "setitimer")
    ):
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 0.001))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Underway:
    """Shows what a command does now: in the status line, and without a terminal as a line after a while of silence.

    The first such line comes after ten seconds, the next ones after twice as long each, up to a minute, until `told`
    says that something else was printed.
    """

    def __init__(
        self, console: Console, update: Callable[[str], object], *, clock: Callable[[], float] = time.monotonic
    ):
        self._console = console
        self._update = update
        self._clock = clock
        self._begun = clock()
        self.told()

    def told(self) -> None:
        """Something else was printed."""
        self._last, self._patience = self._clock(), _PATIENCE_S

    def show(self, line: str) -> None:
        """What is under way at this moment."""
        now = self._clock()
        line = f"{line}, {now - self._begun:.0f} s"
        self._update(line)
        if not self._console.is_terminal and now - self._last >= self._patience:
            self._last, self._patience = now, min(2 * self._patience, _MOST_PATIENCE_S)
            self._console.print(line, markup=False)


@dataclass(slots=True)
class Stage:
    """What veRL is at, by the episodes that it has kept and what they wait for.

    `train_split` is what the run trains on; episodes of any other split are a validation's. `a_step` are the training
    episodes of a step.
    """

    episodes: KeptEpisodes
    watch: Path
    train_split: str
    a_step: int
    _counts: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    _line: str = "veRL is starting: Ray, its workers and the policy"

    def line(self) -> str:
        """A few words; the episodes are counted anew."""
        counts = self.episodes.by("step", "split")
        for step, split in sorted(counts.keys(), reverse=True):
            if (count := counts[step, split]) == self._counts[step, split]:
                continue
            is_training = split == self.train_split
            what = f"step {step}" if is_training else f"validation at step {step}"
            of = f" of {self.a_step:,}" if is_training and count <= self.a_step else ""
            self._line = f"{what}: {count:,}{of} episodes"
            break
        self._counts = counts
        waits = wait_line(read_waits(self.watch))
        return f"{self._line}; {waits}" if waits else self._line


_HEIGHT = 11
_LETTERS = string.ascii_letters + string.digits


def plot_text(curves: Mapping[str, Sequence[tuple[int, float]]], *, width: int = 64) -> str:
    """The curves as text; each has its own letter (from the 63rd on a star), and a legend stands below.

    Empty without any points.
    """
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    last = max(step for step, _ in points) or 1
    low, high = min(0.0, *(value for _, value in points)), max(1.0, *(value for _, value in points))
    grid = [[" "] * (width + 1) for _ in range(_HEIGHT)]
    letters = {}
    taken: set[str] = set()
    for name in curves:
        letter = next((sign for sign in (name.split(", ")[-1][0], *_LETTERS) if sign not in taken), "*")
        taken.add(letter)
        letters[name] = letter
    # What is measured most often is drawn first, so that the rarer held-out points stand on top of it.
    for name in sorted(curves, key=lambda name: -len(curves[name])):
        for step, value in curves[name]:
            row = round((high - value) / (high - low) * (_HEIGHT - 1))
            grid[row][round(step / last * width)] = letters[name]
    lines = []
    for row, cells in enumerate(grid):
        label = f"{high - row * (high - low) / (_HEIGHT - 1):5.2f}" if row % 2 == 0 else "     "
        lines.append(f"{label} |{''.join(cells).rstrip()}")
    lines.append("      +" + "-" * (width + 1))
    lines.append(f"       0{'step ' + str(last):>{width}}")
    lines += [f"       {letter}  {name}" for name, letter in letters.items()]
    return "\n".join(lines)


def plot_png(curves: Mapping[str, Sequence[tuple[int, float]]], path: Path, *, title: str) -> None:
    """Write the curves as PNG; those whose names agree before the comma share an axis, which is called so."""
    # The object interface: pyplot would choose a backend and keep the figure for the whole process.
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    first = figure.add_subplot()
    axes: dict[str, Axes] = {}
    for index, (name, curve) in enumerate(curves.items()):
        what = name.partition(",")[0]
        axis = axes[what] = axes.get(what) or (first.twinx() if axes else first)
        steps, values = [step for step, _ in curve], [value for _, value in curve]
        is_dense = len(curve) > 12
        marker, alpha = (None, 0.6) if is_dense else ("o", 1.0)
        axis.plot(steps, values, label=name, marker=marker, alpha=alpha, color=f"C{index}")
    for what, axis in axes.items():
        axis.set_ylabel(what)
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    first.set_xlabel("step")
    first.xaxis.set_major_locator(MaxNLocator(integer=True))
    first.grid(alpha=0.3)
    first.set_title(title)
    lines = [line for axis in axes.values() for line in axis.lines]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines))
    figure.savefig(path, dpi=144)
