"""The report: one file, every text of a run as text, the figures of the run, and which episodes to read first."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rlenv.cli.main import main
from rlenv.runs.figures.report import Line, Row, interval_chart, line_chart, reading_list, report
from rlenv.runs.folder import KeptRun, RunInfo
from rlenv.runs.schema import Facts
from rlenv.runs.usage import Prices, PriceSpec
from rlenv.trajectory import ModelUsage
from tests.support.kept import episode
from tests.support.runs import row, snapshot

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e</pre>{{ 7 * 7 }}"


class Seen(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, set[str | None]] = {}
        self.text = ""
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "line", "br"):
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "line", "br"):
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def kept(path: Path, rewards: list[float], *, steps: int = 1, **keys: str) -> Path:
    with KeptRun(path, RunInfo("eval", environment="toy-v0", policy="p")) as run:
        for step in range(steps):
            for number, reward in enumerate(rewards):
                run.append(episode(number, reward=reward, **keys), Facts(step=step, mode="greedy"))
    return path


def test_a_report_needs_nothing_but_itself_and_shows_text_as_text(tmp_path: Path) -> None:
    run = kept(tmp_path / HOSTILE.replace("/", "")[:40], [1.0, 0.0], steps=3, text=HOSTILE)
    page = report([run], title=HOSTILE)
    seen = Seen(page)
    assert not seen.open
    assert not {"script", "img", "link", "iframe", "object", "form"} & set(seen.tags)
    assert not {"src", "href", "onerror", "onclick", "style"} & seen.attributes.keys()
    assert "default-src 'none'" in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert r"\x1b[31m\u202e" in seen.text
    assert "<script>alert(1)</script>" in seen.text
    assert "{{ 7 * 7 }}" in seen.text


def test_a_report_has_the_figures_of_its_runs(tmp_path: Path) -> None:
    runs = [kept(tmp_path / "a", [0.0, 0.0, 1.0, 0.0]), kept(tmp_path / "b", [1.0, 1.0, 1.0, 0.0])]
    seen = Seen(report(runs, title="Two"))
    words = " ".join(seen.text.split())
    assert "a eval toy-v0 p ended 0 4 25.0 %" in words
    assert "b eval toy-v0 p ended 0 4 75.0 %" in words
    assert "4 episodes that both played" in words
    assert "success 0.250 0.750 0.500" in words
    assert "2 fixed, 0 broken, 2 the same; p by sign flips of tasks = 0.500." in words
    assert "correct 1.000 0.250 4 0 0" in words
    assert "search 4 0 500.0 ms 500.0 ms 500.0 ms" in words


def test_curves_are_drawn_and_stand_as_numbers_too(tmp_path: Path) -> None:
    seen = Seen(report([kept(tmp_path / "a", [1.0, 0.0], steps=4)], title="One"))
    assert seen.tags.count("polyline") >= 2
    assert "3 0.500" in " ".join(seen.text.split())


def test_an_empty_run_has_a_report(tmp_path: Path) -> None:
    assert "0" in Seen(report([kept(tmp_path / "a", [])], title="None")).text


def test_the_command_writes_a_file_and_never_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = kept(tmp_path / "a", [1.0]), tmp_path / "r.html"
    assert main(["runs", "report", str(run), "-o", str(out), "--episodes", "0"]) == 0
    assert "Episodes to read first" not in out.read_text()
    assert main(["runs", "report", str(run), "-o", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["runs", "report", str(run), "-o", str(out), "--overwrite", "--title", "Mine"]) == 0
    assert "<h1>Mine</h1>" in out.read_text()
    assert "worst: train/0, seed 0" in out.read_text()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "r.html"]
    linked = tmp_path / "linked.html"
    linked.symlink_to(out)
    assert main(["runs", "report", str(run), "-o", str(linked), "--overwrite", "--title", "Again"]) == 0
    assert linked.is_symlink()
    assert "<h1>Again</h1>" in out.read_text()
    assert main(["runs", "report", str(tmp_path / "no"), "-o", str(out)]) == 2
    assert "there is no run at" in capsys.readouterr().err
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for more in ([], ["--overwrite"]):
        assert main(["runs", "report", str(run), "-o", str(tmp_path / "link"), *more]) == 2
        assert "leads nowhere" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = kept(tmp_path / "a", [1.0]), tmp_path / ("r" * 250)
    out.write_text("old")  # beside it no longer name fits
    assert main(["runs", "report", str(run), "-o", str(out), "--overwrite"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert out.read_text() == "old"
    assert main(["runs", "report", str(run), "-o", "/dev/null", "--overwrite"]) == 2
    assert "/dev/null is no file" in capsys.readouterr().err


def test_a_report_says_what_each_role_asked_by_the_run_s_prices_or_others(tmp_path: Path) -> None:
    asked = ModelUsage("judge <b>", "m", 2, 1, prompt_tokens=1_000, completion_tokens=10)
    facts = {"prices": {"currency": "EUR", "models": {"m": {"input": 2, "output": 100}}}}
    with KeptRun(tmp_path / "run", RunInfo("eval", facts=facts)) as run:
        run.append(episode(0, usage=(asked,)), Facts())
        run.append(episode(1, usage=(asked,)), Facts())
    said = "models: 4 requests (2 failed), 2,000 prompt and 20 completion tokens; cost"
    seen = Seen(report([run.path], title="x"))
    assert "judge <b>" in seen.text
    assert f"{said} 0.006 EUR" in seen.text
    others = Prices("USD", {"m": PriceSpec(input=0, output=1e6)})
    assert f"{said} 20.000 USD" in Seen(report([run.path], title="x", prices=others)).text
    assert "Asked of models" not in Seen(report([kept(tmp_path / "none", [1.0])], title="x")).text


# Charts: well-formed, escaped, and with a gap where nothing is known

SVG = "{http://www.w3.org/2000/svg}"


def parsed(chart: str) -> ElementTree.Element:
    chart = chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    return ElementTree.fromstring(f"<div>{chart}</div>")


def test_a_chart_is_well_formed_and_names_itself() -> None:
    found = parsed(line_chart('a <b> & "c"', [0, 5, 10], [Line("x", [0.0, 0.5, 1.0], [0, 0.4, 0.9], [0.1, 0.6, 1.0])]))
    svg = found.find(f"{SVG}svg")
    assert svg is not None
    assert svg.get("aria-label") == 'a <b> & "c"'
    (line,) = found.iter(f"{SVG}polyline")
    points = [tuple(map(float, point.split(","))) for point in (line.get("points") or "").split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)  # up is smaller
    assert len(list(found.iter(f"{SVG}polygon"))) == 1


def test_what_is_not_known_leaves_a_gap() -> None:
    found = parsed(line_chart("t", list(range(6)), [Line("x", [1, 2, None, 3, None, 4])]))
    assert len(list(found.iter(f"{SVG}polyline"))) == 1
    assert len(list(found.iter(f"{SVG}circle"))) == 2


def test_several_lines_have_a_legend_and_differ_by_more_than_colour() -> None:
    found = parsed(line_chart("t", [0, 1], [Line("one", [0, 1]), Line("<two>", [1, 0])]))
    assert [entry.text or (entry[0].tail) for entry in found.iter("li")] == ["one", "<two>"]
    dashes = {line.get("stroke-dasharray") for line in found.iter(f"{SVG}polyline")}
    assert len(dashes) == 2


@pytest.mark.parametrize(("steps", "lines"), [([], []), ([0], []), ([0, 1], [Line("x", [None, None])])])
def test_nothing_gives_no_chart(steps: list[int], lines: list[Line]) -> None:
    assert line_chart("t", steps, lines) == ""


@pytest.mark.parametrize("values", [[5.0, 5.0], [-1e9, 1e9], [0.0, 0.0], [1e-12, 2e-12]])
def test_any_range_is_within_the_picture(values: list[float]) -> None:
    found = parsed(line_chart("t", [0, 1], [Line("x", values)]))
    (line,) = found.iter(f"{SVG}polyline")
    for point in (line.get("points") or "").split():
        x, y = map(float, point.split(","))
        assert 0 <= x <= 640
        assert 0 <= y <= 240


def test_an_interval_chart_is_a_file_of_its_own_with_its_text_escaped() -> None:
    drawn = interval_chart("a < b", [Row("x & y", 0.5, 0.25, 0.75), Row("none", None)])
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "x &amp; y" in drawn
    assert drawn.count('class="dot"') == 1
    assert drawn.count('class="bar"') == 1
    assert interval_chart("nothing", [Row("x", None)]) == ""


def test_it_names_the_worst_the_best_the_failures_and_the_widest_group() -> None:
    rows = [
        row(number, task=number // 2, group=f"g{number // 2}", reward=reward, success=reward >= 1.0)
        for number, reward in enumerate([0.0, 1.0, 0.5, 0.8, 0.1, 0.2, 0.7, 0.7])
    ]
    rows.append(row(8, reward=1.5, success=False, group="g9"))
    rows.append(row(9, reward=None, success=None, failure="judge"))
    found = reading_list(snapshot(*rows))
    by: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        by.setdefault(one["why"], []).append(one)
    assert [one["id"] for one in by["worst"]] == ["e-0", "e-4", "e-2"]
    assert by["best"][0]["id"] == "e-8"
    assert [one["id"] for one in by["reward without success"]] == ["e-8"]
    assert [one["id"] for one in by["failure"]] == ["e-9"]
    assert [one["group"] for one in by["widest group"]] == ["g0", "g1", "g2"]


def test_the_newest_failures_come_first() -> None:
    rows = snapshot(*(row(step, step=step, reward=None, success=None, failure="judge") for step in range(9)))
    assert [one["step"] for one in reading_list(rows)] == [8, 7, 6]


def test_no_list_names_two_samples_of_a_task() -> None:
    rows = [
        row(number, step=9, task=number % 4, sample=number // 4, reward=reward, success=success, failure=failure)
        for number, (reward, success, failure) in enumerate(
            [(0.0, False, None)] * 12 + [(2.0, False, None)] * 12 + [(None, None, "judge")] * 12
        )
    ]
    for why in ("worst", "best", "reward without success", "failure"):
        of_kind = [one["id"] for one in reading_list(snapshot(*rows)) if one["why"] == why]
        assert len({int(id[2:]) % 4 for id in of_kind}) == len(of_kind) == 3, why


def test_where_validation_plays_a_task_once_the_groups_are_those_of_training() -> None:
    rows = [row(number, step=1, task=0, group="g", mode="train", reward=float(number)) for number in range(4)]
    rows += [row(9 + number, step=2, task=number, mode="greedy", reward=float(number)) for number in range(2)]
    assert [one["group"] for one in reading_list(snapshot(*rows)) if one["why"] == "widest group"] == ["g"]


def test_of_one_episode_nothing_is_told_twice_as_best_and_worst() -> None:
    assert [one["why"] for one in reading_list(snapshot(row(0)))] == ["worst"]
    assert reading_list(snapshot()) == []


def test_tasks_without_a_number_are_no_group() -> None:
    rows = snapshot(*(row(number, task=-1, reward=float(number)) for number in range(4)))
    assert not [one for one in reading_list(rows) if one["why"] == "widest group"]
