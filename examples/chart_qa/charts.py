"""A report of bar charts, drawn while it is read: nothing of it is stored but the numbers of a task."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from PIL import Image as Pictures
from PIL import ImageDraw, ImageFont

from rlenv.errors import ToolFailed
from rlenv.messages import Image
from rlenv.tools.base import ToolOutput

_WIDTH, _HEIGHT, _MARGIN = 336, 224, 28
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug".split()
_THINGS = {"Rain": "mm", "Sun": "hours", "Visitors": "people", "Snow": "cm", "Sales": "tons", "Wind": "km/h"}
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0")


def _rows(split: str, count: int) -> Iterator[dict[str, Any]]:
    for index in range(count):
        dice = random.Random(f"{split} {index}")
        titles = dice.sample(sorted(_THINGS), dice.randint(2, 3))
        months = dice.sample(_MONTHS, 4)
        pages = [{"title": title, "bars": {month: dice.randint(11, 99) for month in months}} for title in titles]
        number = dice.randrange(len(pages))
        chart = pages[number]
        title, unit = chart["title"], _THINGS[str(chart["title"])]
        one, other = dice.sample(months, 2)
        values: Mapping[str, int] = chart["bars"]  # type: ignore[assignment]
        if index % 2:
            question, answer = f"How many {unit} does the page {title} show for {one}?", values[one]
            bars = [one]
        else:
            question = f"By how many {unit} do {one} and {other} differ on the page {title}?"
            answer, bars = abs(values[one] - values[other]), [one, other]
        yield {"question": question, "answer": answer, "bars": bars, "on_page": number + 1, "pages": pages}


def train() -> Iterator[dict[str, Any]]:
    """200 reports with a question each."""
    return _rows("train", 200)


def test() -> Iterator[dict[str, Any]]:
    """40 reports that are not among those of training."""
    return _rows("test", 40)


class Report:
    """The pages of one task."""

    def __init__(self, pages: list[Mapping[str, Any]]) -> None:
        self.pages = pages

    @cached_property
    def first(self) -> Image:
        """The first page, which the prompt shows."""
        return self.draw(1)

    def chart(self, number: int) -> Mapping[str, Any]:
        """The numbers of a page, counted from 1."""
        if not 1 <= number <= len(self.pages):
            raise ToolFailed(f"there is no page {number}; the report has pages 1 to {len(self.pages)}")
        return self.pages[number - 1]

    def draw(self, number: int) -> Image:
        """A page with its bars; their numbers are too small to be printed."""
        chart = self.chart(number)
        page = Pictures.new("RGB", (_WIDTH, _HEIGHT), "white")
        pen = ImageDraw.Draw(page)
        pen.text((_MARGIN, 6), f"{number}. {chart['title']} ({_THINGS[chart['title']]})", "black", _font(15))
        floor, room = _HEIGHT - _MARGIN, _HEIGHT - 3 * _MARGIN
        for mark in range(0, 101, 25):
            height = floor - room * mark // 100
            pen.line((_MARGIN, height, _WIDTH - 8, height), "#dddddd")
            pen.text((4, height - 6), str(mark), "#666666", _font(10))
        step = (_WIDTH - _MARGIN - 8) // len(chart["bars"])
        for place, (label, value) in enumerate(chart["bars"].items()):
            left = _MARGIN + place * step + step // 5
            pen.rectangle((left, floor - room * value // 100, left + step * 3 // 5, floor), _COLOURS[place % 4])
            pen.text((left, floor + 6), label, "black", _font(13))
        return _png(page)

    def draw_bar(self, number: int, bar: str) -> Image:
        """One bar with its number."""
        bars = self.chart(number)["bars"]
        if bar not in bars:
            raise ToolFailed(f"page {number} has no bar {bar!r}; its bars are {', '.join(bars)}")
        close = Pictures.new("RGB", (112, 112), "white")
        pen = ImageDraw.Draw(close)
        pen.rectangle((28, 96 - bars[bar] // 2, 84, 96), _COLOURS[list(bars).index(bar) % 4])
        pen.text((36, 6), str(bars[bar]), "black", _font(30))
        pen.text((40, 97), bar, "black", _font(13))
        return _png(close)


def open_report(task: Mapping[str, Any]) -> Report:
    """The report of a task."""
    return Report(task["pages"])


def page(report: Report, number: int) -> ToolOutput:
    """Show a page of the report.

    Args:
        number: the page's number, from 1.
    """
    drawn = report.draw(number)
    return ToolOutput(f"Page {number} of {len(report.pages)}:", images=(drawn,))


def zoom(report: Report, page: int, bar: str) -> ToolOutput:
    """Show one bar of a page from near, with its number.

    Args:
        page: the page's number, from 1.
        bar: the label under the bar, such as May.
    """
    return ToolOutput(f"{bar} on page {page}:", images=(report.draw_bar(page, bar),))


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _png(picture: Any) -> Image:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return Image.of(file.getvalue())
