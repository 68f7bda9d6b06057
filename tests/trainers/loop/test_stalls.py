"""What a run waits for, as its processes write it down."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from rlenv_train.keeping import STEP, Activity, Wait, Watch, read_waits, wait_line
from tests.trainers.groups import ALONE, RIGHT, STUCK, TOOLS, play_group
from tests.trainers.loops import hangs, own_process


class Source:
    """Calls or measurements that run."""

    def __init__(self, **began: list[float]) -> None:
        self.began = began

    def waited_for(self) -> dict[str, list[float]]:
        return dict(self.began)


def test_waits_are_named_by_tool_and_term_and_added_up(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.look_at("toy", tools=Source(search=[40.0, 90.0]), rewards=Source(judge=[70.0]))
    for what, since in [("generation", 95.0), ("generation", 60.0), (STEP, 40.0), (STEP, 70.0), ("siblings", 99.0)]:
        activity = Activity("toy")
        activity.what, activity.since = what, since
        watch.begin(activity)
    assert watch.waits(100.0) == [
        Wait("tool search", 2, 60.0),
        Wait("generation", 2, 40.0),
        Wait("reward judge", 1, 30.0),
        Wait("siblings", 1, 1.0),
    ]


def test_a_step_that_waits_for_no_call_is_named_as_such(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    activity = Activity("toy")
    watch.begin(activity)
    activity.waits_for(STEP)
    (wait,) = watch.waits(activity.since + 5)
    assert (wait.what, wait.count) == ("environment", 1)
    assert wait.longest_s == pytest.approx(5)
    watch.end(activity)
    assert watch.waits(activity.since + 5) == []


def test_a_file_stands_only_while_something_takes_long(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "watch", after_s=0.0)
    activity = Activity("toy", "generation")
    watch.look()
    assert not watch.file.exists()
    watch.begin(activity)
    watch.look()
    assert [wait.what for wait in read_waits(tmp_path / "watch")] == ["generation"]
    watch.end(activity)
    watch.look()
    assert not watch.file.exists()
    watch.begin(Activity("toy", "generation"))
    Watch(tmp_path / "watch", after_s=3600.0, _activities=watch._activities).look()
    assert not watch.file.exists()


def test_a_short_wait_is_not_written_down(tmp_path: Path) -> None:
    watch = Watch(tmp_path, after_s=60.0)
    watch.begin(Activity("toy", "generation"))
    watch.look()
    assert list(tmp_path.iterdir()) == []


def write(folder: Path, name: str, at: float, *waits: tuple[str, int, float]) -> None:
    entries = [{"what": what, "count": count, "longest_s": longest} for what, count, longest in waits]
    (folder / name).write_text(json.dumps({"pid": 1, "host": "h", "at": at, "waits": entries}))


def test_the_processes_of_a_run_are_added_up(tmp_path: Path) -> None:
    write(tmp_path, "1.json", 100.0, ("tool search", 2, 58.0), ("generation", 8, 3.0))
    write(tmp_path, "2.json", 99.0, ("tool search", 1, 12.0), ("generation", 4, 20.0))
    write(tmp_path, "3.json", 40.0, ("siblings", 1, 500.0))
    waits = read_waits(tmp_path, now=100.0)
    assert waits == [Wait("tool search", 3, 58.0), Wait("generation", 12, 21.0)]
    assert wait_line(waits) == "waits 58 s: tool search (3 calls, longest 58 s), generation (12, longest 21 s)"


def test_nothing_to_say_is_an_empty_line(tmp_path: Path) -> None:
    assert read_waits(tmp_path / "missing") == []
    assert wait_line([]) == ""
    assert wait_line([Wait("reward judge", 1, 12.3)]) == "waits 12 s: reward judge (1 measurement, longest 12 s)"


def test_the_agent_loop_says_what_its_episodes_wait_for(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    process = own_process()
    seen: list[Wait] = []

    async def look(tasks: list[asyncio.Task[Any]]) -> None:
        await asyncio.wait(tasks[:1], timeout=20)
        for _ in range(100):
            await asyncio.sleep(0)
        made = process.watch(str(tmp_path / "watch"))
        seen.extend(made.waits(time.monotonic() + 60))
        made.after_s = 0.0
        made.look()
        for task in tasks:
            task.cancel()

    play_group(
        tmp_path,
        tokenizer,
        [[RIGHT], [STUCK], [hangs], [hangs]],
        spec=ALONE,
        files={"tools.py": TOOLS},
        watch_dir=str(tmp_path / "watch"),
        process=process,
        on_start=look,
    )
    assert {(wait.what, wait.count) for wait in seen} == {("tool stuck", 1), ("generation", 2)}
    assert {wait.what for wait in read_waits(tmp_path / "watch")} == {"tool stuck", "generation"}
    assert process.watch(str(tmp_path / "watch")).waits(time.monotonic()) == []
