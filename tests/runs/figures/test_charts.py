"""Charts: well-formed, escaped, and with a gap where nothing is known."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from rlenv.runs.figures.charts import Line, Row, interval_chart, line_chart

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
