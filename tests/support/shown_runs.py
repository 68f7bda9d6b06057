"""Runs for tests of the viewer's page: trained ones that learn, and one with hostile texts. No chance, no clock."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlenv._base.bounded import plain
from rlenv.messages import Image, MalformedCall, Message, Observation, ParsedAction, ToolCall, ToolResult
from rlenv.runs.folder import KeptRun, RunInfo
from rlenv.runs.locks.lock import Lock
from rlenv.runs.schema import Facts, Tokens
from rlenv.trajectory import Failure, ModelUsage, RewardBreakdown, TermResult, Trajectory, Turn

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "</div></main><style>*{display:none}</style>",
    "a\u202egnp.exe\u2066b\u2069 \u200f",
    "bell\x07 escape\x1b[31mred\x1b[0m nul\x00 \x9b",
    "<svg onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "{{constructor.constructor('document.title=1')()}}",
    "\ud800 alone",
    "Z" + "\u0301" * 5000,
    "data:text/html,<script>document.title='owned'</script>",
    "x" * 1_200_000,
    "\u200b\u2060" * 3000,
)
"""Texts that would change a page that took them for anything but text."""

_PRICES = {"currency": "EUR", "models": {"judge-*": {"input": 2.0, "output": 100.0}}}
_FACTS = {"lr": 1e-6, "k": 4, "prices": _PRICES}
_CITIES = ("Oslo", "Lima", "Quito", "Turin", "Perth", "Kyoto", "Dakar", "Tunis")


def picture(width: int = 240, height: int = 120) -> Image:
    """A PNG with bars."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    bars = [30, 70, 45, 95, 60, 20, 80, 50]
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        for x in range(width):
            inside = x % 30 > 5 and height - y < bars[x // 30 % 8]
            rows += b"\x42\x57\xd0" if inside else b"\xf4\xf5\xf8"
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")
    return Image.of(b"\x89PNG\r\n\x1a\n" + body)


def _call(name: str, text: str, seconds: float, outcome: Any = "ok", **more: Any) -> ToolResult:
    if outcome == "timeout":
        more |= {"reason": "timeout", "whose": "infrastructure"}
    return ToolResult(name, text, outcome, seconds=seconds, **more)


def _turn(index: int, thinking: str, content: str, calls: Sequence[Any], results: Sequence[ToolResult]) -> Turn:
    written = "".join(f"\n<tool_call>{call!r}</tool_call>" for call in calls)
    action = f"<think>{thinking}</think>{content}{written}"
    seen = tuple(Message("tool", result.text, name=result.name) for result in results)
    observation = Observation(seen, "\n".join(one.content for one in seen)) if results else None
    parsed = ParsedAction(content, thinking, tuple(calls))
    bad = sum(isinstance(call, MalformedCall) for call in calls)
    seconds = 0.4 + sum(result.seconds for result in results)
    return Turn(index, action, parsed, tuple(results), observation, bad, seconds)


def episode(task: int, sample: int, step: int) -> Trajectory:
    """An episode whose samples differ, and which more often succeeds at later steps."""
    city, year = _CITIES[task % len(_CITIES)], 1900 + 7 * task
    luck = (task * 31 + sample * 17 + step * 7) % 100
    is_right, answer = luck < 25 + 3 * step, 1000 + 13 * task
    said = answer if is_right else answer + 1 + sample
    found = _call(
        "search", f"{city} had {answer} bridges in {year}, by the census.\n\n[2] See also: harbours.", 0.31, started=0.5
    )
    slow = _call("chart", "the bars of the census", 1.2 + 0.1 * sample, images=(picture(),), started=0.5, waited=0.4)
    late = _call("search", "the search took longer than 2 s", 2.0, "timeout", started=2.6)
    sums = _call("calculator", str(answer), 0.004, started=5.1)
    search = ToolCall("search", {"query": f"bridges of {city} {year}", "k": 3})
    chart = ToolCall("chart", {"page": 2, "title": f"Bridges of {city}"})
    turns = [
        _turn(
            0,
            f"I need the census.\nThe year is {year}.\nA chart may help.",
            "I look it up.",
            (search, chart),
            (found, slow),
        )
    ]
    if sample % 2:
        again = ToolCall("search", {"query": f"{city} bridges after {year}"})
        turns.append(_turn(1, "The first page is old.", "", (again,), (late,)))
    if sample == 3:
        broken = MalformedCall('{"name": "calculator", "arguments": {', "the JSON ends early", 40, 77, "calculator")
        wrong = _call("calculator", "the call is not JSON: it ends early", 0.0, "malformed")
        turns.append(_turn(len(turns), "", "Let me count.", (broken,), (wrong,)))
    add = ToolCall("calculator", {"expression": f"{answer - 10} + 10"})
    turns.append(_turn(len(turns), "Now the sum.", "", (add,), (sums,)))
    turns.append(_turn(len(turns), "", f"{city} had <answer>{said}</answer> bridges.", (), ()))
    record: dict[str, Any] = {
        "environment": "bridges-v1",
        "split": "train",
        "task_index": task,
        "seed": 40 + task,
        "task": {"city": city, "year": year, "answer": answer},
        "messages": (
            Message("system", "Answer questions about bridges. Use the tools; write the number in <answer>."),
            Message("user", f"How many bridges did {city} have in {year}? The chart of the census helps."),
        ),
        "turns": tuple(turns),
        "answer": str(said),
        "seconds": sum(turn.seconds for turn in turns),
        "usage": (
            ModelUsage("judge clear", "judge-small", 2, 1, prompt_tokens=1_000, completion_tokens=50, seconds=0.5),
        ),
    }
    return _scored(record, is_right, str(said), sample=sample, luck=luck)


def _scored(record: Any, is_right: bool, said: str, *, sample: int, luck: int) -> Trajectory:
    count = len(record["turns"])
    told = {"judges": [{"judge": "judge-small", "score": 1 + luck % 5}], "scale": [1, 5]}
    judge = TermResult.valid("clear", value=0.2 + 0.006 * luck, weight=0.3, evidence=said, details=told)
    if luck % 23 == 7:
        judge = TermResult.invalid("clear", error="the judge did not answer within 30 s", weight=0.3)
    terms = [
        TermResult.valid("correct", value=float(is_right), weight=1.0, evidence=said, seconds=0.0004),
        TermResult.valid("calls", value=-0.1 * count, weight=0.5, evidence="", seconds=0.0001),
        judge if sample != 2 else TermResult.skipped("clear", why="only where the answer is right", weight=0.3),
    ]
    named = {term.name: term for term in terms}
    if any(term.status == "invalid" for term in terms):
        reward = RewardBreakdown.invalid(named, turns=count)
        return Trajectory.failed(failure=Failure("judge", terms[2].error), reward=reward, **record)
    shares = [term.value * term.weight for term in terms if term.value is not None]
    total = round(math.fsum(shares), 6)
    reward = RewardBreakdown(total, named, (*([0.0] * (count - 1)), total))
    return Trajectory.ended(record, terminated=True, reason="answer", reward=reward, success=is_right)


def tokens_of(trajectory: Trajectory) -> Tokens:
    """Ids of the episode's letters: the turns are trained on, what tools said is not."""
    prompt = [ord(letter) % 256 for message in trajectory.messages for letter in message.content]
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    turns: list[tuple[int, int]] = []
    for turn in trajectory.turns:
        start = len(ids)
        action = [ord(letter) % 256 for letter in turn.action]
        ids += action
        mask += [1] * len(action)
        logprobs += [-0.05 - (index * 7 % 31) / 10 for index in range(len(action))]
        turns.append((start, len(ids)))
        seen = [ord(letter) % 256 for letter in turn.observation.text] if turn.observation else []
        ids += seen
        mask += [0] * len(seen)
        logprobs += [0.0] * len(seen)
    return Tokens(prompt, ids, mask, logprobs, turns)


def facts_of(trajectory: Trajectory, step: int, sample: int) -> Facts:
    """What a training run knows of the episode."""
    group = f"g{trajectory.task_index}"
    started = 1_790_000_000.0 + 60 * step
    return Facts(step, sample, "train", group, started, (tokens_of(trajectory),))


def kept(folder: Path, *, steps: int = 12, tasks: int = 4, shift: int = 0, policy: str = "qwen-4b") -> KeptRun:
    """A run with four samples of each task a step; it is still running, and whoever asked for it closes it."""
    info = RunInfo("train", ("rlenv", "train"), "specs/bridges.yaml", "bridges-v1", policy, facts=_FACTS)
    lock = Lock(
        rlenv={"version": "0.1.0"},
        spec={"id": "bridges-v1", "digest": "5d41402abc4b" if not shift else "7d793037a076"},
        rewards={"correct": {"kind": "rule", "weight": 1.0}, "clear": {"kind": "judge", "model": "judge-small"}},
        policy={"model": policy, "temperature": 1.0},
        packages={"rlenv": "0.1.0", "aiohttp": "3.14.5"},
    )
    run = KeptRun(folder, info, lock=lock)
    for step in range(steps):
        for task in range(tasks):
            append_group(run, task + (step % 2) * tasks, step, shift)
    return run


def append_group(run: KeptRun, task: int, step: int, shift: int = 0) -> None:
    """Four samples of a task, with the advantages that they get."""
    samples = [episode(task, sample, step + shift) for sample in range(4)]
    known = [one.reward.total for one in samples if one.reward.total is not None]
    mean = sum(known) / len(known) if known else 0.0
    for sample, one in enumerate(samples):
        id = run.append(one, facts_of(one, step, sample))
        if one.reward.total is None:
            run.writer.append_late(id, {"fate": "masked", "why": "its reward is invalid"})
        else:
            run.writer.append_late(id, {"fate": "trained", "advantage": one.reward.total - mean})


def nesting(folder: Path) -> Trajectory:
    """A run of one episode, which is returned: its first call is an agent's, whose first call is an agent's, too.

    Its second call is of a tool that puts something else in the episode's place.
    """
    played = episode(2, 0, 0)
    asked = _asked(played, "asks the second", inner=_asked(played, "answers"))
    whole = _asked(played, "asks the first", inner=asked)
    with KeptRun(folder, RunInfo("eval", (), "specs/bridges.yaml", "bridges-v1", "qwen-4b")) as run:
        run.append(whole, Facts(group="g"))
    return whole


def _asked(whole: Trajectory, content: str, *, inner: Trajectory | None = None) -> Trajectory:
    first, *rest = whole.turns
    results = first.results
    if inner is not None:
        agent = replace(results[0], name="agent", text=content, details={"trajectory": plain(inner), "attempts": 1})
        results = (agent, replace(results[1], details={"trajectory": {"turns": [1]}}))
    said = replace(first, parsed=replace(first.parsed, content=content), results=results, observation=None)
    return replace(whole, turns=(said, *rest))


def hostile(folder: Path) -> None:
    """A run in which every text that comes from outside is one of `HOSTILE`."""
    info = RunInfo("eval", (), "specs/<b>hostile</b>.yaml", HOSTILE[0], HOSTILE[4], facts={HOSTILE[4]: HOSTILE[0]})
    with KeptRun(folder, info) as run:
        for index, text in enumerate(HOSTILE):
            word = text.encode("utf-8", "replace").decode()  # what is the environment's own word can be encoded
            whole = episode(index, 1, 0)
            result = ToolResult(text[:200], text, "failed", images=(Image("image/svg+xml", "PHN2Zy8+"),))
            call = ToolCall(text[:200], {text[:50]: text})
            turn = _turn(0, text, text, (call, MalformedCall(text, text[:500])), (result,))
            term = TermResult.valid(word[:60], value=1.0, weight=1.0, evidence=text[:1000])
            made = replace(
                whole,
                environment=HOSTILE[0],
                task={text[:80]: text},
                messages=(Message("system", text), Message("user", text)),
                turns=(replace(turn, action=text),),
                answer=text,
                reward=RewardBreakdown(1.0, {term.name: term}, (1.0,)),
                reason=word[:40],
                failure=None,
                success=True,
            )
            run.append(made, Facts(group=word[:60]))
