"""Names what a run waits for: each process writes it down while something takes long, and anyone can read it.

On an episode's way the cost is two attribute writes a wait. A daemon thread looks every few seconds, so that it still
speaks where the event loop itself is held up.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

__all__ = ["Activity", "Wait", "Watch", "read_waits", "wait_line"]

AFTER_S = 10.0
"""A wait is written down once it is longer than this."""

EVERY_S = 2.0
"""How often a process looks."""

STALE_S = 30.0
"""A file that was not written again for this long belongs to a process that is gone."""


class _Waiting(Protocol):
    def waited_for(self) -> Mapping[str, list[float]]: ...


@dataclass(slots=True, eq=False)
class Activity:
    """The present wait of one running episode. `what` is "" while it waits for nothing worth a name."""

    environment: str
    what: str = "start"
    since: float = field(default_factory=time.monotonic)

    def waits_for(self, what: str) -> None:
        """Says what is waited for from now on."""
        self.what = what
        self.since = time.monotonic()


STEP = "environment"
"""The activity of an episode whose environment takes a step; told apart by tool and reward term where possible."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that is waited for: by how many, and for how long already by the one that waits longest."""

    what: str
    count: int
    longest_s: float


@dataclass(slots=True, eq=False)
class Watch:
    """The episodes of this process, and the file that says what they wait for.

    The file stands as long as anything waits for more than `after_s` seconds; it holds everything that is waited for.
    """

    folder: Path
    after_s: float = AFTER_S
    _activities: set[Activity] = field(default_factory=set)
    _sources: dict[str, tuple[str, _Waiting]] = field(default_factory=dict)

    def begin(self, activity: Activity) -> None:
        """A new episode, to be ended with `end`."""
        self._activities.add(activity)

    def end(self, activity: Activity) -> None:
        """The episode has ended."""
        self._activities.discard(activity)

    def look_at(self, environment: str, *, tools: _Waiting, rewards: _Waiting) -> None:
        """Names an environment's executor and scorer, which know the calls that run; again is harmless."""
        self._sources[f"{environment} tools"] = ("tool", tools)
        self._sources[f"{environment} rewards"] = ("reward", rewards)

    @property
    def file(self) -> Path:
        """The file of this process."""
        return self.folder / f"{os.getpid()}.json"

    def waits(self, now: float) -> list[Wait]:
        """The waits at `now` (`time.monotonic`), longest first."""
        begun: dict[str, list[float]] = {}
        for activity in list(self._activities):
            if activity.what != STEP:
                begun.setdefault(activity.what, []).append(activity.since)
        named = 0
        for kind, source in list(self._sources.values()):
            for name, since in source.waited_for().items():
                begun.setdefault(f"{kind} {name}", []).extend(since)
                named += len(since)
        steps = [activity.since for activity in list(self._activities) if activity.what == STEP]
        if steps and not named:  # a step that waits for no call: an inline tool, an observation that is encoded
            begun[STEP] = steps
        found = [Wait(what, len(since), max(0.0, now - min(since))) for what, since in begun.items() if since]
        return sorted(found, key=lambda wait: -wait.longest_s)

    def look(self) -> None:
        """Writes the file where something has waited for long, and takes it away where nothing has."""
        waits = self.waits(time.monotonic())
        if not waits or waits[0].longest_s < self.after_s:
            self.file.unlink(missing_ok=True)
            return
        entry = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "at": time.time(),
            "waits": [{"what": w.what, "count": w.count, "longest_s": round(w.longest_s, 1)} for w in waits],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.file.with_suffix(".part")
        part.write_bytes(orjson.dumps(entry))
        part.replace(self.file)  # a reader sees the whole file or none

    def keep_looking(self, *, every_s: float = EVERY_S) -> None:
        """Looks every `every_s` seconds, in a daemon thread that ends with the process."""

        def loop() -> None:
            while True:
                time.sleep(every_s)
                # A full disk or a folder that was removed must not end the watch; the next look may succeed.
                with contextlib.suppress(OSError):
                    self.look()

        threading.Thread(target=loop, name="rlenv-watch", daemon=True).start()


def read_waits(folder: Path, *, now: float | None = None) -> list[Wait]:
    """The waits of all processes of a run, the same ones added up, longest first; empty while nothing takes long.

    Args:
        folder: the run's `watch_dir`.
        now: seconds of the system's clock; files of processes that are gone are left out by it.
    """
    now = time.time() if now is None else now
    counts: dict[str, int] = {}
    longest: dict[str, float] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            entry: Mapping[str, Any] = orjson.loads(file.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):  # taken away meanwhile
            continue
        age = now - float(entry["at"])
        if age > STALE_S:
            continue
        for item in entry["waits"]:
            what = str(item["what"])
            counts[what] = counts.get(what, 0) + int(item["count"])
            longest[what] = max(longest.get(what, 0.0), float(item["longest_s"]) + max(0.0, age))
    found = [Wait(what, counts[what], longest[what]) for what in counts]
    return sorted(found, key=lambda wait: -wait.longest_s)


def wait_line(waits: Iterable[Wait]) -> str:
    """One line for people, such as `waits 62 s: tool search (3 calls, longest 58 s), generation (12)`; "" for none."""
    found = sorted(waits, key=lambda wait: -wait.longest_s)
    if not found:
        return ""
    parts = []
    for wait in found:
        if wait.what.startswith(("tool ", "reward ")):
            unit = "call" if wait.what.startswith("tool ") else "measurement"
            plural = "s" if wait.count != 1 else ""
            parts.append(f"{wait.what} ({wait.count} {unit}{plural}, longest {wait.longest_s:.0f} s)")
        else:
            parts.append(f"{wait.what} ({wait.count}, longest {wait.longest_s:.0f} s)")
    return f"waits {found[0].longest_s:.0f} s: {', '.join(parts)}"
