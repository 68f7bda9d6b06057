"""A judge is held to labels: agreement, bias on constructed pairs, drift; failures are counted and never scores."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.agreement import accuracy, bootstrap, kappa, mean, spearman
from rlenv.audit.judge import Anchor, JudgeReport, audit_judge, read_anchors
from rlenv.cli.main import main as command
from rlenv.errors import UsageError
from rlenv.testing.endpoint import FakeEndpoint

SPEC = """
rlenv: 1
name: judged
endpoints: {{writer: {{base_url: "{url}", model: m, retries: 0}}}}
tasks: {{train: {{rows: [{{question: "why?"}}]}}}}
prompt: {{user: "{{{{ task.question }}}}"}}
rewards:
  clarity: {{kind: judge, endpoint: writer, retries: 0, prompt: "{{{{ task.question }}}}: {{{{ message }}}}"}}
"""
ANCHORS = [Anchor({"question": f"why {index}?"}, f"Quality {1 + index % 5}.", 1.0 + index % 5) for index in range(20)]
Judge = Callable[[str], float]


def quality(material: str) -> float:
    return float(re.search(r"Quality (\d)", material)[1])  # type: ignore[index]


def held(folder: Path, judge: Judge, **keys: Any) -> JudgeReport:
    def answer(body: Mapping[str, Any]) -> str:
        material = re.search(r'>(".*")</', body["messages"][-1]["content"])
        assert material is not None
        score = judge(json.loads(material[1]))
        return json.dumps({"reasoning": "r", "score": min(5.0, max(1.0, score))}) if score else "no idea"

    async def main() -> JudgeReport:
        async with FakeEndpoint(answer) as server:
            (folder / "env.yaml").write_text(SPEC.format(url=server.base_url))
            async with rlenv.load(folder / "env.yaml") as environment:
                return await audit_judge(environment, ANCHORS, **keys)

    return asyncio.run(main())


def test_a_judge_that_agrees_with_the_labels_passes(tmp_path: Path) -> None:
    report = held(tmp_path, quality)
    assert report.findings == ()
    assert (report.accuracy.value, report.kappa.value) == (1.0, 1.0)
    assert report.spearman.value == pytest.approx(1.0)
    assert {name: estimate.value for name, estimate in report.bias.items()} == {
        "position": 0.0,
        "length": 0.0,
        "style": 0.0,
    }
    assert len(report.prompt_sha256) == 1
    assert report.scores[:5] == (1.0, 2.0, 3.0, 4.0, 5.0)


@pytest.mark.parametrize(
    ("name", "judge"),
    [
        ("length", lambda text: quality(text) + (2 if len(text) > 1500 else 0)),
        ("style", lambda text: quality(text) + (2 if "**" in text else 0)),
        ("position", lambda text: quality(text) - (2 if text.startswith("This paragraph") else 0)),
    ],
)
def test_a_bias_is_found_by_name_and_no_other(tmp_path: Path, name: str, judge: Judge) -> None:
    report = held(tmp_path, judge)
    (finding,) = report.findings
    assert finding.startswith(f"bias: {name} ")
    assert report.bias[name].excludes(0.0)


def test_a_judge_that_says_the_same_to_all_does_not_agree(tmp_path: Path) -> None:
    report = held(tmp_path, lambda text: 3.0)
    assert report.kappa.value == pytest.approx(0.0)
    assert report.spearman.value is None
    assert any(finding.startswith("agreement: ") for finding in report.findings)


def test_replies_that_cannot_be_read_are_counted_and_are_no_scores(tmp_path: Path) -> None:
    report = held(tmp_path, lambda text: 0.0 if "Quality 2" in text else quality(text))
    assert report.invalid == 4
    assert report.scores[1] is None
    assert report.accuracy.value == 1.0
    assert report.findings[0].startswith("invalid: 4 of 20")


def test_drift_is_found_beyond_its_interval(tmp_path: Path) -> None:
    earlier = held(tmp_path, quality).as_dict()
    same = held(tmp_path, quality, before=earlier)
    assert same.drift is not None
    assert (same.drift.value, same.findings) == (0.0, ())
    stricter = held(tmp_path, lambda text: quality(text) - 1, before=earlier)
    assert any(finding.startswith("drift: ") for finding in stricter.findings)
    with pytest.raises(UsageError, match="other anchors"):
        held(tmp_path, quality, before={"scores": [1.0]})


def test_figures_are_those_worked_by_hand() -> None:
    pairs = [(1.0, 1.0), (2.0, 2.0), (1.0, 2.0), (2.0, 1.0)]
    assert accuracy(pairs) == 0.5
    # Half differ by one; by chance half would: 1 - 0.5 / 0.5.
    assert kappa(pairs) == 0.0
    assert kappa([(1.0, 1.0), (3.0, 3.0)]) == 1.0
    assert kappa([(1.0, 1.0)]) is None
    assert mean(pairs) == 0.0
    # Ranks 1, 2, 3 against 1, 3, 2: 1 - 6 · (0 + 1 + 1) / (3 · 8).
    assert spearman([(10.0, 1.0), (20.0, 3.0), (30.0, 2.0)]) == pytest.approx(0.5)
    assert spearman([(1.0, 2.0), (1.0, 3.0)]) is None
    assert spearman([(1.0, 1.0), (1.0, 1.0), (2.0, 5.0)]) == pytest.approx(1.0)
    assert accuracy([]) is kappa([]) is spearman([]) is None


def test_an_interval_is_the_same_for_equal_seeds_and_holds_the_value() -> None:
    pairs = [(0.0, float(index % 3)) for index in range(30)]
    found = bootstrap(pairs, mean, seed=3)
    assert found == bootstrap(pairs, mean, seed=3)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.0 < found.high
    assert found.excludes(0.0)
    assert bootstrap([], mean).value is None


@pytest.mark.parametrize(
    "line", ["{}", '{"message": "x"}', '{"message": 1, "label": 2}', "no", '{"message": "x", "label": true}']
)
def test_anchors_that_do_not_fit_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "anchors.jsonl"
    path.write_text(f'{{"task": {{}}, "message": "a", "label": 1}}\n{line}\n')
    with pytest.raises(UsageError, match=r"anchors.jsonl:2: expected an object"):
        read_anchors(path)


def test_the_command_wants_anchors_and_names_the_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "env.yaml").write_text(SPEC.format(url="http://127.0.0.1:9/v1"))
    path = str(tmp_path / "env.yaml")
    assert command(["audit", path, "--judge"]) == 2
    assert "--anchors" in capsys.readouterr().err
    (tmp_path / "a.jsonl").write_text('{"message": "a", "label": 1}\n{"message": "b", "label": 2}\n')
    assert command(["audit", path, "--judge", "--anchors", str(tmp_path / "a.jsonl"), "--term", "nosuch"]) == 2
    # Nobody listens at that port: no score, two invalid anchors, and a finding.
    assert command(["audit", path, "--judge", "--anchors", str(tmp_path / "a.jsonl"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["invalid"] == 2
