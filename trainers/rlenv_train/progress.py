"""The progress of a run for people: its stage, what it waits for, a time limit, and its curves.

What any run of veRL's trainers keeps in its folder: its starts, the end of each, and files that are written whole or
not at all. The order of tasks that follows what was measured of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import string
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import orjson

from rlenv.cli.console import Console
from rlenv.errors import UsageError
from rlenv.runs.folder import STOP, Attempt, RunInfo, State, write_info
from rlenv.runs.locks.files import kept_command
from rlenv.runs.locks.lock import Lock
from rlenv_train.keeping import KeptEpisodes, read_waits, wait_line
from rlenv_train.launch import STATES, How

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

    The first such line comes after ten seconds, the next ones after twice as long each, up to a minute, until `reset`
    says that something else was printed.
    """

    def __init__(
        self, console: Console, update: Callable[[str], object], *, clock: Callable[[], float] = time.monotonic
    ):
        self._console = console
        self._update = update
        self._clock = clock
        self._begun = clock()
        self.reset()

    def reset(self) -> None:
        """Waits anew, since something else was printed."""
        self._last, self._patience = self._clock(), _PATIENCE_S

    def show(self, line: str) -> None:
        """Shows the present work."""
        now = self._clock()
        line = f"{line}, {now - self._begun:.0f} s"
        self._update(line)
        if not self._console.is_terminal and now - self._last >= self._patience:
            self._last, self._patience = now, min(2 * self._patience, _MOST_PATIENCE_S)
            self._console.say(line)


@dataclass(slots=True)
class Stage:
    """The stage of veRL, by the episodes that it has kept and their waits.

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
        counts = self.episodes.count_by("step", "split")
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
    letters: dict[str, str] = {}
    for name in curves:
        signs = (name.split(", ")[-1][0], *_LETTERS)
        letters[name] = next((sign for sign in signs if sign not in letters.values()), "*")
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


@contextlib.contextmanager
def driving(folder: Path, unprepared: RunInfo | None = None, *, attempts: int | None = None) -> Iterator[None]:
    """For as long as this process drives a run in `folder`, which it has locked.

    A wish to stop that is there before the block begins was for somebody else and is forgotten. However the block ends,
    run.json then says what has become of the run, unless it was refused as it was: an attempt that was begun meanwhile,
    and that nobody has said the end of, was stopped by an interrupt, and has failed by anything else.

    Args:
        unprepared: what run.json says of a new run that ends before all is known that starts it again.
        attempts: how many came before; as many as run.json has otherwise.
    """
    (folder / STOP).unlink(missing_ok=True)
    if unprepared is not None:  # what a dry run has left here is prepared again
        (folder / "run.json").unlink(missing_ok=True)
    before = len(_read_fields(folder).get("attempts", ())) if attempts is None else attempts
    state: State = "failed"
    try:
        yield
    except KeyboardInterrupt:
        state = "stopped"
        raise
    finally:
        with contextlib.suppress(OSError):  # a full disk: whatever ended the block is what has to be told
            fields, ended = _read_fields(folder), time.time()
            is_new = len(fields.get("attempts", ())) > before and fields["state"] == "running"
            if unprepared is not None and not fields:
                write_info(folder, dataclasses.replace(unprepared, state=state, ended=ended))
            elif is_new or (unprepared is not None and not fields["attempts"]):
                fields |= {"state": state, "ended": ended}
                _save(folder, fields)


def _read_fields(folder: Path) -> dict[str, Any]:
    """The fields of run.json; none without one."""
    path = folder / "run.json"
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return fields


def _save(folder: Path, fields: Mapping[str, Any]) -> None:
    _write_whole(folder / "run.json", f"{json.dumps(fields, indent=2)}\n".encode())


_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRun(ABC):
    """A run of veRL's trainers in its folder: everything that starts it again. Paths are absolute.

    `overrides` are all of veRL's, as one list in Hydra's syntax, `environment` is the environment variables of its
    processes, and `cwd` where relative paths of the command line are relative to. `command` is the command line of the
    last attempt, `state` what has become of that, and `ended` when, in seconds since the epoch (0.0: it has not).
    """

    MADE_BY: ClassVar[str]
    """The command that makes such runs."""
    KINDS: ClassVar[tuple[str, ...]]
    FACTS: ClassVar[tuple[str, ...]]
    """Of its fields, those that say more of it to whoever lists runs."""

    folder: Path
    preset: str
    model: str
    seed: int
    time_limit_s: float | None
    cwd: str
    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    attempts: tuple[Attempt, ...] = ()
    command: tuple[str, ...] = ()
    state: State = "stopped"
    ended: float = 0.0

    @property
    def metrics(self) -> Path:
        """veRL's figures over all attempts, one line a step and, of supervised rows, one a validation."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """veRL's checkpoints, one folder a step."""
        return self.folder / "checkpoints"

    def metrics_of(self, attempt: Attempt) -> Path:
        """The file of veRL's own metrics: its file logger begins an empty one at each start."""
        return self.folder / "attempts" / f"metrics-{attempt.number}.jsonl"

    def merge_metrics(self) -> None:
        """Write `metrics` from what the attempts logged, without the steps that a later one trained anew."""
        lines: list[bytes] = []
        for index, attempt in enumerate(self.attempts):
            until = min((later.from_step for later in self.attempts[index + 1 :]), default=None)
            lines += _lines_until(self.metrics_of(attempt), until)
        _write_whole(self.metrics, b"".join(lines))

    def begin_attempt(self, from_step: int, *, locks: Mapping[str, Lock] | None = None) -> Self:
        """The run with one more attempt that is running, kept in run.json.

        `locks` are what its episodes are made of, by environment; they are kept in the run's folder.
        """
        hashes = {environment: lock.write(self.folder).stem for environment, lock in (locks or {}).items()}
        attempt = Attempt.begin(len(self.attempts) + 1, from_step, locks=hashes)
        begun = dataclasses.replace(self, attempts=(*self.attempts, attempt), state="running", ended=0.0)
        self.metrics_of(attempt).parent.mkdir(parents=True, exist_ok=True)
        begun.save()
        return begun

    def end_attempt(self, how: How, summary: Mapping[str, Any]) -> None:
        """Write summary.json, and what has become of the run into run.json."""
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        dataclasses.replace(self, state=STATES[how], ended=time.time()).save()

    @abstractmethod
    def save(self) -> None:
        """Write run.json, whole or not at all."""

    def write(self, *, kind: str, specs: Iterable[str], environments: Iterable[str]) -> None:
        """Write run.json: what any run's says (`RunInfo`), and the fields of this run's class.

        The folder is left out, since it may move.
        """
        own = dataclasses.asdict(self)
        del own["folder"]
        # Any run's `environment` is what was played in; the variables have stood under that name here.
        variables = own.pop("environment")
        common = {
            "kind": kind,
            "command": list(kept_command(self.command)),
            "spec": ", ".join(specs),
            "environment": ", ".join(environments),
            "policy": self.model,
            "facts": {name: own[name] for name in self.FACTS},
        }
        _save(self.folder, {"version": _VERSION, **own, **common, "variables": variables})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The run that a folder holds.

        Raises:
            UsageError: it holds none of this command, or one that another version wrote.
        """
        return cls(**cls.read(folder))

    @classmethod
    def read(cls, folder: Path) -> dict[str, Any]:
        """The fields that `write` wrote, lists as tuples, and the folder; raises as `load` does."""
        folder = folder.resolve()
        fields = _read_fields(folder)
        if not fields or fields.pop("kind", cls.KINDS[0]) not in cls.KINDS:
            inside = sorted(str(item.parent.name) for item in folder.glob("*/run.json")) if folder.is_dir() else []
            hint = f"did you mean {folder / inside[-1]}?" if inside else f"give the folder of one of `{cls.MADE_BY}`"
            why = "another command's run.json is in it" if fields else "there is no run.json in it"
            raise UsageError(f"{folder} holds no run of `{cls.MADE_BY}` ({why})", hint=hint)
        version = fields.pop("version", None)
        if version is None and "format" in fields:
            raise UsageError(f"the run in {folder} ended before it was prepared", hint="start it again")
        if version != _VERSION:
            raise UsageError(f"{folder / 'run.json'} was written by another version of rlenv", hint="start a new run")
        fields["environment"] = fields.pop("variables")
        for name in ("spec", "policy", "facts"):
            del fields[name]
        fields["attempts"] = tuple(Attempt(**entry) for entry in fields["attempts"])
        own = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return {**own, "folder": folder}


def entries_of(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of lines, without the rest of one that is being written; none where there is no file."""
    return [json.loads(line) for line in _lines_until(path, None)]


def cut_after(path: Path, step: int) -> None:
    """Takes out of a file of lines those of later steps, which are done again, and the rest of one that was cut."""
    if path.exists():
        _write_whole(path, b"".join(_lines_until(path, step)))


def _lines_until(path: Path, step: int | None) -> list[bytes]:
    """The whole lines of a file up to a step's, or all."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    whole = [line + b"\n" for line in lines if line.strip()]
    return [line for line in whole if step is None or json.loads(line)["step"] <= step]


def _write_whole(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(content)
    os.replace(draft, path)


Asked = tuple[str, int]
"""A task by the name of its spec and its number."""


class Curriculum:
    """The rows of a training whose `order` reads `measured`: each step asks those that it puts first.

    A pass asks every row once. What a step asks follows from its place in the pass and from the list of trained tasks
    alone, so that a run that is taken up asks what it would have asked.

    Args:
        keys: by spec, what its `order` gives for a task and what was measured of it.
        trained: the file of `trained_tasks`, one entry a line.
    """

    def __init__(
        self,
        rows: Sequence[Asked],
        keys: Mapping[str, Callable[[int, Mapping[str, float]], Any]],
        trained: Path,
        *,
        batch: int,
    ) -> None:
        self._rows, self._keys, self._trained, self._batch = rows, keys, trained, batch
        self._first = {row: place for place, row in reversed([*enumerate(rows)])}
        self._values: dict[tuple[Asked, tuple[float, ...]], Any] = {}

    def next(self, places: Sequence[int]) -> list[int]:
        """The places of the rows that a step asks, where rows in their order would be those at `places`."""
        sums: dict[Asked, Counter[str]] = defaultdict(Counter)
        steps: dict[int, list[Asked]] = defaultdict(list)
        for line in _lines_until(self._trained, None):
            entry = orjson.loads(line)  # the list is long, and read before each step
            row = entry["spec"], entry["task"]
            steps[entry["step"]].append(row)
            sums[row].update({name: entry[name] for name in ("success", "reward", "valid")})
        left = Counter(self._rows)
        begun = places[0] // self._batch  # steps of this pass
        left.subtract(row for step in sorted(steps)[len(steps) - begun :] for row in steps[step])
        ordered = sorted(
            (row for row in self._first if left[row] > 0),
            key=lambda row: (self._value(row, sums[row]), self._first[row]),
        )
        queues: dict[str, deque[Asked]] = defaultdict(deque)
        for row in ordered:
            queues[row[0]].extend([row] * left[row])
        asked = [queue.popleft() if (queue := queues[self._rows[at][0]]) else self._rows[at] for at in places]
        return [self._first[row] for row in asked]

    def _value(self, row: Asked, sums: Mapping[str, float]) -> Any:
        count = sums["valid"]
        means = {name: sums[name] / count if count else 0.0 for name in ("success", "reward")}
        key = row, (*means.values(), count)
        if key not in self._values:
            self._values[key] = self._keys[row[0]](row[1], {**means, "episodes": count})
        return self._values[key]
