"""A process that a run waits for and that died is noticed, and no answer is waited for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlenv_verl.loop import SAID, LostWorker, Watched, told_at_the_end, watched_of


class Died(Exception):
    """In place of Ray's error, whose base class is replaced too."""


@dataclass
class Rays:
    """Ray as far as it is asked: `answers` holds what each question brought, "waits" where it is still open."""

    answers: dict[str, Any] = field(default_factory=dict)
    later: dict[str, Any] | None = None  # what answers bring to one who waits; None where nobody may
    exceptions = SimpleNamespace(RayError=Died)
    asked: Counter[str] = field(default_factory=Counter)

    def actor(self, name: str) -> Any:
        def remote() -> str:
            self.asked[name] += 1
            return name

        return SimpleNamespace(__ray_ready__=SimpleNamespace(remote=remote))

    def wait(self, refs: Sequence[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        if self.later is None:
            assert timeout == 0, "a run does not stand still to ask whether its workers live"
        ready = [one for one in refs if self.answers.get(one, True) != "waits"]
        if self.later is not None and timeout and len(ready) < num_returns:
            self.answers.update(self.later)
            ready = [one for one in refs if self.answers.get(one, True) != "waits"]
            assert len(ready) >= num_returns, "who hangs is not waited for where another has died"
        ready = ready[:num_returns]
        return ready, [one for one in refs if one not in ready]

    def get(self, ref: str) -> Any:
        answer = self.answers.get(ref, True)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def rays(monkeypatch: pytest.MonkeyPatch) -> Rays:
    import sys

    rays = Rays()
    monkeypatch.setitem(sys.modules, "ray", rays)
    return rays


def watched(rays: Rays, *names: str) -> Watched:
    def actors() -> Iterator[tuple[str, Any]]:
        for name in names:
            yield name, rays.actor(name)

    # Without a way out of its own the thread that `check` begins would end the process of the tests.
    return Watched(actors, leave=lambda error: None)


def test_the_one_that_died_is_named_with_the_reason(rays: Rays) -> None:
    watch = watched(rays, "one", "other")
    watch.look()
    rays.answers["other"] = Died("killed by the memory monitor")
    watch.look()
    with pytest.raises(LostWorker, match=r"other died.*killed by the memory monitor"):
        watch.check()


def test_one_that_is_busy_is_asked_once_and_never_waited_for(rays: Rays) -> None:
    watch = watched(rays, "busy", "quick")
    rays.answers["busy"] = "waits"
    for _ in range(20):
        watch.look()
    assert rays.asked == Counter(busy=1, quick=20)
    assert watch.lost is None


def test_a_trainer_whose_batch_has_failed_waits_for_the_name_of_who_died(rays: Rays) -> None:
    watch = watched(rays, "server", "busy")
    watch.look()
    rays.answers["busy"] = "waits"
    watch.look()
    assert watch.lost is None
    rays.answers["server"] = "waits"
    rays.later = {"server": Died("killed")}
    watch.look(within_s=60.0)
    with pytest.raises(LostWorker, match=r"^server died, and what it had is lost\. killed"):
        watch.check()


def test_one_that_the_trainer_itself_ended_is_not_lost(rays: Rays) -> None:
    watch = watched(rays, "storage")
    rays.answers["storage"] = Died("The actor is dead because it was killed by `ray.kill`.")
    for _ in range(5):
        watch.look()
    assert watch.lost is None
    assert rays.asked["storage"] == 1


def test_a_trainer_that_does_not_ask_is_ended_by_the_thread(rays: Rays) -> None:
    left = threading.Event()
    said: list[LostWorker] = []
    watch = watched(rays, "storage")
    watch.every_s = watch.left_s = 0.01
    watch.leave = lambda error: (said.append(error), left.set())  # type: ignore[func-returns-value, assignment]
    watch.check()
    rays.answers["storage"] = Died("out of memory")
    assert left.wait(60)
    assert "out of memory" in str(said[0])
    with pytest.raises(LostWorker):
        watch.check()


def test_the_actors_are_those_of_the_trainer_that_the_buffer_is_handed(
    verl: Any, monkeypatch: pytest.MonkeyPatch, rays: Rays
) -> None:
    from transfer_queue import interface

    unit = rays.actor("unit")
    monkeypatch.setattr(interface, "_TQ_CONTROLLER", "controller")
    monkeypatch.setattr(interface, "_TQ_STORAGE", {"SimpleStorage": {"#0": unit, "path": "no actor"}, "Other": None})

    class Trainer:
        agent_loop_manager = SimpleNamespace(agent_loop_workers=["first", "second"])
        llm_server_manager = SimpleNamespace(server_handles=["server"], global_load_balancer="router")
        standalone_server_manager = SimpleNamespace(server_handles=["own server"], global_load_balancer="own router")
        reward_loop_manager = SimpleNamespace(reward_loop_workers=["reward"])

        def refill(self, count: int) -> None: ...

    found = list(watched_of(Trainer().refill).actors())
    assert [actor for _, actor in found] == [
        *("first", "second", "reward", "server", "router", "own server", "own router", "controller", unit)
    ]
    assert len({name for name, _ in found}) == len(found)
    assert list(watched_of(None).actors()) == []


def test_where_there_is_nobody_to_watch_no_thread_is_begun() -> None:
    before = threading.active_count()
    watch = watched_of(None)
    watch.check()
    assert threading.active_count() == before


def test_who_died_in_an_earlier_start_is_not_told_again_and_nobody_is_told_twice(tmp_path: Path) -> None:
    log = tmp_path / "verl.log"
    log.write_text(f"{SAID}the rollout server 0 died\n")
    since = log.stat().st_size
    with log.open("a") as file:
        file.write("CUDA out of memory\n")
    assert list(told_at_the_end(log, since=since)) == ["  CUDA out of memory"]
    assert list(told_at_the_end(log)) == [f"  {SAID}the rollout server 0 died", "  CUDA out of memory"]


def test_who_died_stands_below_the_end_of_a_log_that_others_went_on_with(
    verl: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rlenv.cli.console import Console
    from rlenv_train.launch import Ending
    from rlenv_verl.run import train

    said = f"(TaskRunnerV1 pid=7) {SAID}the rollout server 0 died, and what it had is lost. Killed."
    (tmp_path / "verl.log").write_text("\n".join([said, *["    a frame"] * 60, "ActorDiedError: The actor died"]))
    run: Any = SimpleNamespace(folder=tmp_path, validation_only=False)
    train._explain_end(Ending("failed", 1, 3.0), run, Console(highlight=False, soft_wrap=True))
    shown = capsys.readouterr().out.splitlines()
    assert "the rollout server 0 died, and what it had is lost. Killed." in shown
    assert shown[-1].startswith("go on with: rlenv train --resume")
