"""A judge is held to labels: agreement, bias on constructed pairs, drift; failures are counted and never scores."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.agreement import accuracy, bootstrap, mean, spearman
from rlenv.audit.judge import Anchor, JudgeReport, audit_judge, read_anchors
from rlenv.cli.main import main as command
from rlenv.errors import UsageError
from rlenv.runs.figures.rewards import kappa
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
INVALID = -1e9


def quality(material: str) -> float:
    return float(re.search(r"Quality (\d)", material)[1])  # type: ignore[index]


def held(
    folder: Path,
    judge: Judge,
    *,
    anchors: list[Anchor] = ANCHORS,
    scale: tuple[float, float] = (1.0, 5.0),
    prompt: str = "message",
    **keys: Any,
) -> JudgeReport:
    low, high = scale

    def answer(body: Mapping[str, Any]) -> str:
        material = re.search(r'>(".*")</', body["messages"][-1]["content"])
        assert material is not None
        score = judge(json.loads(material[1]))
        return json.dumps({"reasoning": "r", "score": min(high, max(low, score))}) if score != INVALID else "no idea"

    async def main() -> JudgeReport:
        async with FakeEndpoint(answer) as server:
            text = SPEC.format(url=server.base_url).replace(
                "retries: 0, prompt", f"retries: 0, scale: {list(scale)}, prompt"
            )
            (folder / "env.yaml").write_text(text.replace("{{ message }}", f"{{{{ {prompt} }}}}"))
            async with rlenv.load(folder / "env.yaml") as environment:
                return await audit_judge(environment, anchors, **keys)

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


@pytest.mark.slow(but=1)
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


@pytest.mark.slow
def test_replies_that_cannot_be_read_are_counted_and_are_no_scores(tmp_path: Path) -> None:
    report = held(tmp_path, lambda text: INVALID if "Quality 2" in text else quality(text))
    assert report.invalid == 4
    assert report.scores[1] is None
    assert report.accuracy.value == 1.0
    assert report.findings[0].startswith("invalid: 4 of 20 anchors got no score (4 times: no reply of m could be read")
    assert list(report.invalid_reasons.values()) == [4]


@pytest.mark.slow
def test_drift_is_found_beyond_its_interval(tmp_path: Path) -> None:
    earlier = held(tmp_path, quality).as_dict()
    same = held(tmp_path, quality, before=earlier)
    assert same.drift is not None
    assert (same.drift.value, same.findings) == (0.0, ())
    stricter = held(tmp_path, lambda text: quality(text) - 1, before=earlier)
    assert any(finding.startswith("drift: ") for finding in stricter.findings)
    with pytest.raises(UsageError, match="other anchors"):
        held(tmp_path, quality, before={"scores": [1.0]})


def test_an_earlier_report_of_another_judge_is_refused(tmp_path: Path) -> None:
    earlier = held(tmp_path, quality).as_dict()
    with pytest.raises(UsageError, match=r"of the scale \[1.0, 5.0\], and this judge's is \[1.0, 10.0\]"):
        held(tmp_path, quality, scale=(1.0, 10.0), before=earlier)
    with pytest.raises(UsageError, match="of another prompt"):
        held(tmp_path, quality, prompt="message | trim", before=earlier)
    for scores in ([7.0] * 20, ["1"] * 20, [True] * 20, [float("nan")] * 20):
        with pytest.raises(UsageError, match="the earlier report has the score"):
            held(tmp_path, quality, before={**earlier, "scores": scores})


@pytest.mark.slow
def test_an_earlier_report_of_another_model_or_other_anchors_is_refused(tmp_path: Path) -> None:
    earlier = held(tmp_path, quality).as_dict()
    assert earlier["models"] == ["m"]
    with pytest.raises(UsageError, match=r"of the models \['other'\]"):
        held(tmp_path, quality, before={**earlier, "models": ["other"]})
    changed = [Anchor(one.task, f"{one.message} Truly.", one.label) for one in ANCHORS]
    with pytest.raises(UsageError, match="anchors_sha256 differs"):
        held(tmp_path, quality, anchors=changed, before=earlier)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["scale", "models", "panel", "anchors_sha256", "prompt_sha256"])
def test_an_earlier_report_that_does_not_say_of_which_judge_it_is_is_refused(tmp_path: Path, key: str) -> None:
    earlier = held(tmp_path, quality).as_dict()
    with pytest.raises(UsageError, match="the earlier report is of"):
        held(tmp_path, quality, before={name: value for name, value in earlier.items() if name != key})


@pytest.mark.slow
def test_scores_that_become_one_in_another_way_are_another_judges(tmp_path: Path) -> None:
    def report(judge: str, sampling: str = "{}", **keys: Any) -> JudgeReport:
        async def main() -> JudgeReport:
            async with FakeEndpoint(lambda body: json.dumps({"reasoning": "r", key: score})) as server:
                text = SPEC.format(url=server.base_url).replace("endpoint: writer, retries: 0", judge)
                text = text.replace("model: m,", f"model: m, sampling: {sampling},")
                (tmp_path / "env.yaml").write_text(text.replace("{{ message }}", ""))
                async with rlenv.load(tmp_path / "env.yaml") as environment:
                    return await audit_judge(environment, anchors, **keys)

        key, score = ("better", "tie") if "pairwise" in judge else ("score", 3)
        anchors = [replace(one, label=one.label / 5) for one in ANCHORS] if "pairwise" in judge else ANCHORS
        return asyncio.run(main())

    panel = "judges: [{endpoint: writer}, {endpoint: writer, weight: 2}]"
    pair = "endpoint: writer, pairwise: {with: gold}"
    for first, second, says in (
        ((f"{panel}, combine: mean",), (f"{panel}, combine: median",), "panel"),
        ((panel,), (panel.replace("weight: 2", "weight: 3"),), "panel"),
        ((panel,), (f"{panel}, quorum: 1",), "panel"),
        ((pair,), (pair.replace("gold", "silver"),), "another prompt"),
        (("endpoint: writer",), ("endpoint: writer", "{top_p: 0.5}"), "another prompt"),
    ):
        earlier = report(*first).as_dict()
        assert report(*first, before=earlier).drift is not None
        with pytest.raises(UsageError, match=says):
            report(*second, before=earlier)


PANEL = """judges: [{endpoint: writer}, {endpoint: writer, prompt: "As a lawyer: {{ message }}"}], kind"""


@pytest.mark.slow
def test_each_judge_of_a_panel_has_figures_of_its_own(tmp_path: Path) -> None:
    def answer(body: Mapping[str, Any]) -> str:
        asked = body["messages"][-1]["content"]
        is_biased = "As a lawyer" in asked and len(asked) > 1500
        score = float(re.search(r"Quality (\d)", asked)[1])  # type: ignore[index]
        return json.dumps({"reasoning": "r", "score": min(5, score + (1 if is_biased else 0))})

    async def main() -> JudgeReport:
        async with FakeEndpoint(answer) as server:
            text = SPEC.format(url=server.base_url).replace("kind: judge, endpoint: writer", f"{PANEL}: judge")
            (tmp_path / "env.yaml").write_text(text)
            async with rlenv.load(tmp_path / "env.yaml") as environment:
                return await audit_judge(environment, ANCHORS)

    report = asyncio.run(main())
    fair, biased = report.members
    assert fair.bias["length"].value == 0.0
    assert biased.bias["length"].value == pytest.approx(0.2)  # a quarter of the scale, but of those at its end
    assert fair.prompt_sha256 != biased.prompt_sha256
    assert (fair.kappa.value, biased.kappa.value, report.members_alpha) == (1.0, 1.0, 1.0)
    # The panel's own bias is half of that: it would pass, and hide the judge.
    assert report.findings == ("bias: length moves the score of judges.1 (writer) by +0.20 of the scale",)


@pytest.mark.slow
def test_labels_off_the_steps_have_an_error_and_a_curve_on_any_scale(tmp_path: Path) -> None:
    anchors = [Anchor(one.task, one.message, 0.2 * one.label - 0.13) for one in ANCHORS]
    report = held(tmp_path, lambda text: 0.2 * quality(text) - 0.1, anchors=anchors, scale=(0.0, 1.0))
    assert report.error.value == pytest.approx(0.03)
    assert report.calibration.error == pytest.approx(0.03)
    assert report.calibration.line is not None
    assert list(report.calibration.line) == pytest.approx([-0.03, 1.0])
    assert [one.count for one in report.calibration.bins] == [4] * 5
    assert report.accuracy.value == 1.0


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 100.0), (-1.0, 1.0), (1.0, 5.0)])
def test_a_judge_that_agrees_does_so_on_any_scale(tmp_path: Path, low: float, high: float) -> None:
    def on_scale(label: float) -> float:
        return low + (label - 1) / 4 * (high - low)

    anchors = [Anchor(one.task, one.message, on_scale(one.label)) for one in ANCHORS]
    report = held(tmp_path, lambda text: on_scale(quality(text)), anchors=anchors, scale=(low, high))
    assert report.findings == ()
    assert (report.accuracy.value, report.kappa.value, report.scale) == (1.0, 1.0, (low, high))


def test_scores_between_the_labels_go_to_the_nearest_and_halves_up(tmp_path: Path) -> None:
    anchors = [Anchor({"question": "?"}, f"Quality {label}.", float(label)) for label in (2, 3, 4, 5)]
    # 1.5, 2.5, 3.5 and 4.5 are 2, 3, 4 and 5, and none goes to the even number.
    assert held(tmp_path, lambda text: quality(text) - 0.5, anchors=anchors).accuracy.value == 1.0


def test_a_label_outside_of_the_scale_is_refused(tmp_path: Path) -> None:
    anchors = [*ANCHORS[:2], Anchor({}, "Quality 1.", 6.0)]
    with pytest.raises(UsageError, match="the label 6 of anchor 3 is outside of the scale of 'clarity', 1 to 5"):
        held(tmp_path, quality, anchors=anchors)


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
    "line",
    [
        "{}",
        '{"message": "x"}',
        '{"message": 1, "label": 2}',
        "no",
        '{"message": "x", "label": true}',
        '{"message": "x", "label": NaN}',
        '{"message": "x", "label": 1e999}',
        '{"message": "x", "task": ' + "[" * 9_999,
    ],
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
    task = '{"task": {"question": "?"}, '
    (tmp_path / "a.jsonl").write_text(f'{task}"message": "a", "label": 1}}\n{task}"message": "b", "label": 2}}\n')
    assert command(["audit", path, "--judge", "--anchors", str(tmp_path / "a.jsonl"), "--term", "nosuch"]) == 2
    # Nobody listens at that port: no score, two invalid anchors, and a finding.
    assert command(["audit", path, "--judge", "--anchors", str(tmp_path / "a.jsonl"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["invalid"] == 2
    assert "the judge did not answer" in report["findings"][0]
    limited = ["audit", path, "--judge", "--anchors", str(tmp_path / "a.jsonl"), "--time-limit", "1e-9"]
    assert command(limited) == 2
    assert "has not scored all anchors within 1e-09 s" in capsys.readouterr().err
    for text in ("[]", "no", "[" * 100_000):
        (tmp_path / "before.json").write_text(text)
        arguments = ["--anchors", str(tmp_path / "a.jsonl"), "--before", str(tmp_path / "before.json")]
        assert command(["audit", path, "--judge", *arguments]) == 2
