"""A process that a run waits for and that died is noticed, and no answer is waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from rlenv_verl.lost import LostWorker, Watched, watched_of


class Died(Exception):
    """In place of Ray's error, whose base class is replaced too."""


@dataclass
class Rays:
    """Ray as far as it is asked: `answers` holds what each question brought, "waits" where it is still open."""

    answers: dict[str, Any] = field(default_factory=dict)
    exceptions = SimpleNamespace(RayError=Died)
    asked: int = 0

    def actor(self, name: str) -> Any:
        def remote() -> str:
            self.asked += 1
            return name

        return SimpleNamespace(__ray_ready__=SimpleNamespace(remote=remote))

    def wait(self, refs: Sequence[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        assert timeout == 0, "a run does not stand still to ask whether its workers live"
        assert num_returns == len(refs)
        ready = [one for one in refs if self.answers.get(one, True) != "waits"]
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
    monkeypatch.setitem(sys.modules, "ray", rays)  # type: ignore[arg-type]
    return rays


def watched(rays: Rays, *names: str) -> tuple[Watched, list[float]]:
    now = [0.0]

    def actors() -> Iterator[tuple[str, Any]]:
        for name in names:
            yield name, rays.actor(name)

    return Watched(actors, clock=lambda: now[0]), now


def test_the_one_that_died_is_named_with_the_reason(rays: Rays) -> None:
    watch, now = watched(rays, "one", "other")
    watch.check()
    rays.answers["other"] = Died("killed by the memory monitor")
    now[0] = 60.0
    with pytest.raises(LostWorker, match=r"other died.*killed by the memory monitor"):
        watch.check()


def test_one_that_is_busy_is_asked_once_and_never_waited_for(rays: Rays) -> None:
    watch, now = watched(rays, "busy")
    rays.answers["busy"] = "waits"
    for seconds in range(0, 600, 20):
        now[0] = seconds
        watch.check()
    assert rays.asked == 1


def test_who_answers_is_asked_again_but_not_at_each_look(rays: Rays) -> None:
    watch, now = watched(rays, "one")
    for tenths in range(200):
        now[0] = tenths / 10
        watch.check()
    assert 3 <= rays.asked <= 5


def test_what_was_answered_can_be_looked_at_at_once(rays: Rays) -> None:
    watch, _ = watched(rays, "one")
    watch.check()
    rays.answers["one"] = Died("gone")
    watch.check()
    with pytest.raises(LostWorker):
        watch.check(at_once=True)


def test_the_actors_are_those_of_the_trainer_that_the_buffer_is_handed() -> None:
    class Trainer:
        agent_loop_manager = SimpleNamespace(agent_loop_workers=["first", "second"])
        llm_server_manager = SimpleNamespace(server_handles=["server"])

        def refill(self, count: int) -> None: ...

    found = list(watched_of(Trainer().refill).actors())
    assert [actor for _, actor in found] == ["first", "second", "server"]
    assert len({name for name, _ in found}) == 3
    assert list(watched_of(None).actors()) == []
