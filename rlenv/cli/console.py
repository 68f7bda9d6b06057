"""The console of the commands, on which no text of a model, a tool, a server, a row or a record acts.

What was asked of models, as commands show it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import rich.console
from rich.errors import MarkupError
from rich.markup import escape
from rich.measure import Measurement
from rich.panel import Panel
from rich.segment import Segment
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from rlenv._base.text import visible
from rlenv.cli.options import Options, option
from rlenv.cli.terminal import say
from rlenv.errors import UnknownEntry, UsageError
from rlenv.runs import usage
from rlenv.runs.usage import Prices, Spending, as_prices, money, notes_of, spending_line, tokens_text

__all__ = ["Console", "WithPrices", "WithReader", "counting", "endpoint_at", "show_spending", "show_spending_line"]

if TYPE_CHECKING:
    from rlenv.endpoints import Endpoint
    from rlenv.language.loader import LoadedSpec
    from rlenv.language.spec import EndpointSpec

_SEEN: Final = Style(conceal=False, blink=False, blink2=False)
_WHOLE: Final = 1_000_000
"""The columns of a pipe or a file: as many as any line needs."""
_FOLDED: Final = 16
"""The least columns for text that may be broken anywhere."""


class Console(rich.console.Console):
    """A console on which only its own styles act, and which cuts nothing.

    Control characters are shown as escapes, text that is no markup is shown as it stands, and markup in texts of others
    makes no links and hides nothing. Lines are not broken, so that paths and commands in them can be pasted. In a pipe
    or a file tables are as wide as their texts, with a line for each row, and boxes are a heading above their text; the
    variable `COLUMNS` sets another width.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        is_sized = "width" in options or os.environ.get("COLUMNS", "").isdigit()
        self._is_whole = not is_sized and not self.is_terminal
        if self._is_whole:
            self.width = _WHOLE

    def print(self, *objects: Any, **options: Any) -> None:
        """See the class."""
        if len(objects) == 1 and isinstance(objects[0], Table):
            self.show(objects[0])
        elif len(objects) == 1 and isinstance(objects[0], Panel) and self._is_whole:
            super().print(f"— {objects[0].title} —", soft_wrap=True)
            self.print(objects[0].renderable)
        elif len(objects) == 1 and isinstance(objects[0], rich.console.Group):
            for one in objects[0].renderables:
                self.print(one)
        else:
            is_text = all(isinstance(one, str | Text) for one in objects)
            super().print(*objects, **{**({"soft_wrap": True} if is_text else {}), **options})

    def say(self, *lines: str) -> None:
        """Prints each line as it stands: no markup is read in it."""
        for line in lines:
            self.print(line, markup=False)

    def show(self, table: Table, *, spare: Sequence[str] = ()) -> None:
        """Prints a table of which no word is cut.

        Where it is too wide, columns headed by `spare` are left out, the first ones first, and named below. Where that
        is not enough each row is a block: its first cell, and below it the others.
        """
        whole = list(table.columns)
        kept = [column for column in whole if column.header not in spare]
        if not self._fit(table, kept):
            self._show_blocks(table, whole)
            return
        for name in reversed(spare):
            more = [column for column in whole if column in kept or column.header == name]
            kept = more if self._fit(table, more) else kept
        self._fit(table, kept)
        super().print(table)
        if left := [str(column.header) for column in whole if column not in kept]:
            self.print(f"[dim]too narrow for {', '.join(left)}: a pipe and --json have them[/dim]")

    def _fit(self, table: Table, columns: list[Column]) -> bool:
        """Gives a table these columns and their widths; false where one would be too narrow for its words."""
        table.columns = columns
        options = self.options.update(width=_WHOLE)
        sizes = [self._size(table, column) for column in table.columns]
        for column, (_, most) in zip(table.columns, sizes, strict=True):
            column.width = most
        around = Measurement.get(self, options, table).maximum - sum(most for _, most in sizes)
        room = left = self.width - around - sum(least for least, _ in sizes)
        # What is short gets all that it has a use for: prose wraps before a figure does.
        for place, at in enumerate(sorted(range(len(sizes)), key=lambda at: sizes[at][1] - sizes[at][0])):
            least, most = sizes[at]
            more = max(0, min(most - least, left // (len(sizes) - place)))
            columns[at].width = least + more
            left -= more
        return room >= 0

    def _size(self, table: Table, column: Column) -> tuple[int, int]:
        """The least columns that a column's words need, and the most that it has a use for."""
        cells = [*column.cells, *([column.header] if table.show_header else [])]
        sizes = [Measurement.get(self, self.options.update(width=_WHOLE), cell) for cell in cells]
        least, most = (max((size[end] for size in sizes), default=0) for end in (0, 1))
        if column.overflow == "fold":
            least = min(least, _FOLDED)
        return most if column.no_wrap else least, most

    def _show_blocks(self, table: Table, columns: list[Column]) -> None:
        if table.title:
            self.print(table.title)
        heads = [column.header if table.show_header else "" for column in columns]
        for row in zip(*(column.cells for column in columns), strict=True):
            cells = [self._text(cell) for cell in row]
            if table.show_header:
                self.print(cells[0])
            elif len(cells) > 1:
                cells[1] = Text(" ").join(cells[:2])
            cells[0] = Text() if len(cells) > 1 else cells[0]
            line = Text()
            for head, cell in zip(heads, cells, strict=True):
                said = Text(" ").join([*([self._text(head)] if head else []), cell]) if cell.plain.strip() else Text()
                if line and said and line.cell_len + said.cell_len > self.width - 5:
                    self.print(Text("  ") + line)
                    line = Text()
                line = Text(" · " if line and said else "").join([line, said])
            self.print(Text("  ") + line)

    def _text(self, cell: Any) -> Text:
        return cell if isinstance(cell, Text) else self.render_str(str(cell))

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of `renderable`; rich's own control segments stay as they are."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control is not None:
                yield segment
                continue
            if style is not None and (style.link or style.conceal or style.blink or style.blink2):
                style = style.update_link(None) + _SEEN
            lines = [visible(line) for line in text.split("\n")]
            yield Segment("\n".join(lines), style, None)

    def on_broken_pipe(self) -> None:
        """The reader went away (`| head`), which `rlenv.cli.main` ends on; rich would end the program by itself."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """`text` with its markup, or as it stands where that is broken."""
        try:
            return super().render_str(text, **options)
        except MarkupError:
            return Text(text)


@dataclass
class WithPrices(Options):
    """A command that says what tokens cost."""

    prices: str | None = option("YAML of what a million tokens cost by model: cost is shown", metavar="FILE")


@dataclass
class WithReader(Options):
    """A command for which a model may read the spec."""

    reader: str | None = option(
        "a model reads the spec too: an entry under endpoints:, or an address ending in /v1", metavar="ENDPOINT"
    )
    reader_model: str | None = option(
        "with --reader: the model at that address, whose key is OPENAI_API_KEY", metavar="NAME"
    )

    def reader_of(self, loaded: LoadedSpec) -> Endpoint | None:
        """The endpoint of the reader, None without `--reader`.

        Raises UsageError: a model without `--reader`, or no such endpoint.
        """
        if self.reader is None:
            if self.reader_model is not None:
                raise UsageError("--reader-model is for --reader ENDPOINT", hint="give --reader too, or leave it out")
            return None
        entries, key = loaded.spec.endpoints, os.environ.get("OPENAI_API_KEY")
        return endpoint_at(self.reader, entries, option="--reader", model=self.reader_model, api_key=key)


_LONG_S: Final = 600.0
"""What a model that thinks at length may take for one reply."""


def endpoint_at(
    name: str, entries: Mapping[str, EndpointSpec], *, option: str, model: str | None = None, api_key: str | None = None
) -> Endpoint:
    """The endpoint that `option` of a command names: an entry under `endpoints:`, or an address with a model.

    `model` takes the place of an entry's own.

    Raises:
        UsageError: there is no such entry, or an address without a model.
    """
    from rlenv.endpoints import Endpoint, compile_endpoint

    if name.startswith(("http://", "https://")):
        if not model:
            raise UsageError(f"{option} with an address needs {option}-model", hint="name the model at the server")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        rest: Any = {"base_url": name.rstrip("/"), "model": model, "headers": headers, "timeout_s": _LONG_S}
        return Endpoint(name=option.strip("-"), **rest)
    if name not in entries:
        raise UnknownEntry("endpoints", name, entries, key=option)
    endpoint = compile_endpoint(name, entries[name])
    return endpoint if model is None else replace(endpoint, model=model)


def counting(prices: str | Prices | None = None) -> AbstractContextManager[Callable[[], Spending]]:
    """Counts what the block asks of models (`rlenv.runs.usage.count_spending`), and says it where the block raises."""
    return usage.count_spending(as_prices(prices), say)


def show_spending(console: Console, spending: Spending) -> None:
    """A table by role and model with a line of sums below it; nothing where nothing was asked."""
    if not spending.roles:
        return
    notes = ["note"] if any(notes_of(one) for one in spending.roles) else []
    table = Table("asked by", "model", "requests", "failed", "prompt", "completion", "seconds", "cost", *notes)
    for column in table.columns[:8]:
        column.no_wrap = True
    for one in spending.roles:
        tokens = [tokens_text(count) for count in (one.prompt_tokens, one.completion_tokens)]
        counts = [f"{one.requests:,}", f"{one.failed:,}", *tokens]
        name, model = escape(one.role), escape(one.model)
        table.add_row(
            name, model, *counts, f"{one.seconds:.1f}", money(one.cost), *[", ".join(notes_of(one)) for _ in notes]
        )
    console.show(table, spare=("seconds", "failed"))
    show_spending_line(console, spending)


def show_spending_line(console: Console, spending: Spending) -> None:
    """The sums alone; nothing where nothing was asked."""
    if line := spending_line(spending):
        console.say(line)
