"""A spec with a judge and a group term: it validates, and its mistakes are found at their place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import rlenv
from rlenv.checks.validate import validate
from rlenv.cli.main import main as command
from rlenv.runs.recorded import recorded
from rlenv.testing.endpoint import FakeEndpoint

SPEC = """
rlenv: 1
name: judged
endpoints:
  writer: {base_url: "URL", model: m, retries: 0}
tasks: {train: {rows: [{question: "Why?", answer: "42"}]}}
prompt: {user: "{{ task.question }}"}
rewards:
  correct: {kind: rule, rule: exact_match}
  clarity:
    kind: judge
    endpoint: writer
    prompt: "{{ task.question }} {{ answer }} {{ message }} {{ transcript }}"
    rubric: ["5: clear", "1: not"]
    weight: 0.5
    required: false
    gate: correct >= 1
  best: {kind: group, of: clarity, by: best, weight: 0.25}
oracle:
  - say: "<answer>{{ task.answer }}</answer>"
"""


def write(folder: Path, text: str = SPEC, url: str = "http://127.0.0.1:9/v1") -> Path:
    path = folder / "env.yaml"
    path.write_text(text.replace("URL", url))
    return path


def test_it_validates(tmp_path: Path) -> None:
    report = validate([write(tmp_path)])
    assert [str(fault) for fault in report.faults] == []


def test_mistakes_are_found_at_their_place(tmp_path: Path) -> None:
    for old, new, place in (
        ("endpoint: writer", "endpoint: wirter", "rewards.clarity"),
        ("{{ transcript }}", "{{ trancsript }}", "rewards.clarity.prompt"),
        ("of: clarity", "of: clarty", "rewards"),
    ):
        faults = validate([write(tmp_path, SPEC.replace(old, new))]).faults
        assert faults, new
        assert all(fault.path.startswith(place) and fault.line for fault in faults), faults


@pytest.mark.parametrize("works", [True, False])
def test_a_whole_episode_is_judged_or_left_without_the_judge(tmp_path: Path, works: bool) -> None:
    async def main() -> tuple[float | None, str]:
        reply = json.dumps({"reasoning": "clear", "score": 5}) if works else "no idea"
        async with (
            FakeEndpoint([reply]) as server,
            rlenv.load(write(tmp_path, url=server.base_url)) as environment,
            environment.start() as episode,
        ):
            await episode.step("<answer>42</answer>")
            reward = episode.trajectory.reward
            assert reward.terms["best"].status == "skipped"
            return reward.total, reward.terms["clarity"].status

    assert asyncio.run(main()) == ((1.5, "valid") if works else (1.0, "invalid"))


def test_eval_with_several_samples_fills_in_what_compares_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SPEC.replace("of: clarity", "of: correct").replace("gate: correct >= 1", "gate: correct < 0")
    arguments = [
        "eval",
        str(write(tmp_path, text)),
        "--policy",
        "oracle",
        "-k",
        "3",
        "--json",
        "-o",
        str(tmp_path / "o"),
    ]
    assert command(arguments) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["terms"]["best"] == 1.0
    assert figures["reward_mean"] == 1.25
    terms = [one.reward.terms["best"] for one in recorded(tmp_path / "o")]
    assert [term.value for term in terms] == [1.0, 1.0, 1.0]
