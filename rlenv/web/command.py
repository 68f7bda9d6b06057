"""`rlenv view`: runs in the browser, or recorded episodes in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlenv._base.bounded import cut_end
from rlenv._base.text import figure
from rlenv.cli.console import Console, WithPrices
from rlenv.cli.options import argument, option
from rlenv.cli.terminal import write, write_error
from rlenv.errors import MissingExtra, UsageError
from rlenv.messages import Image, ToolCall
from rlenv.runs.figures.query import order_places, parse
from rlenv.runs.figures.snapshot import Episodes, Snapshot
from rlenv.runs.folder import is_run, read_info
from rlenv.runs.recorded import LinesReader, episodes_with_ids, expected_of, reader_of
from rlenv.runs.usage import as_prices
from rlenv.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from rlenv.web.guard import Guard
    from rlenv.web.shelf import Shelf


_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_ANY: Final = ("0.0.0.0", "::")
_TEXT: Final = ("line", "failed", "wrong", "n", "full")
_WEB: Final = ("host", "port", "allow_host", "no_open", "prices", "read_only")
_PICK: Final = ("where", "sort", "line", "failed", "wrong", "n")
"""Options that pick episodes of a run."""


_terminal = partial(option, group="in the terminal")
_browser = partial(option, group="in the browser")


@dataclass
class ViewCommand(WithPrices):
    """`rlenv view`."""

    names: list[str] = argument(
        "run folders, .jsonl files, or folders below which runs are looked for (the current one); "
        "behind a run also ids of its episodes",
        metavar="RUN",
        nargs="*",
    )
    where: str | None = option("only episodes that match: 'success:false errors>0'", metavar="QUERY")
    sort: str = option("such as --sort=-reward,step; - is the largest first", default="", metavar="COLUMNS")
    text: bool = option("in the terminal; a .jsonl file always is, without --web", one_of="how")
    web: bool = option("in the browser, a .jsonl file too", one_of="how")
    line: int | None = _terminal("one episode by its line in the file, from 1", metavar="N")
    failed: bool = _terminal("only episodes whose reward is invalid", one_of="which")
    wrong: bool = _terminal("only episodes that are valid and no success", one_of="which")
    n: int | None = _terminal("at most N episodes (5)", metavar="N", least=1)
    full: bool = _terminal("do not cut long texts")
    host: str | None = _browser("127.0.0.1 by default; another makes it open to a network, see --allow-host too")
    port: int | None = _browser("8765 by default, or the next free one; 0 takes any")
    allow_host: list[str] = _browser(
        "a name or address that it may be called by beside that of --host: a proxy's, or this machine's",
        default=[],
        metavar="NAME",
    )
    no_open: bool = _browser("print the address and do not open a browser")
    prices: str | None = _browser("YAML of what a million tokens cost by model: cost is shown", metavar="FILE")
    read_only: bool = _browser("without what writes, runs or stops something")

    def __post_init__(self) -> None:
        self.runs = [name for name in self.names if _is_path(name)]
        self.ids = [name for name in self.names if not _is_path(name)]
        if self.ids and not self.runs:
            self.runs, self.ids = self.names, []  # told as paths that are not there

    def execute(self) -> int:
        """Shows episodes in the terminal, or serves until SIGINT or SIGTERM comes; exit code 2 where it cannot."""
        is_file = len(self.runs) == 1 and not Path(self.runs[0]).is_dir()
        is_web = self.web or not (self.text or is_file or _given_options(self, _TEXT))
        if other := _given_options(self, _TEXT if is_web else _WEB):
            where, hint = ("terminal", "leave --web out") if is_web else ("browser", "add --web, or leave it out")
            raise UsageError(f"{other[0]} is for the {where}", hint=hint)
        if self.ids and (other := _given_options(self, _PICK)):
            raise UsageError(
                f"{other[0]} picks episodes, and {self.ids[0]} is named already", hint="leave one of them out"
            )
        if self.line is not None and (other := _given_options(self, ("sort", "n"))):
            raise UsageError(f"{other[0]} is for a list, and --line is one episode", hint="leave one of them out")
        if is_web:
            return _serve(self)

        return show(self)


def _given_options(args: ViewCommand, names: Iterable[str]) -> list[str]:
    """Of some options those that were given."""
    given = [name for name in names if (value := getattr(args, name)) or (value == 0 and value is not False)]
    return ["-n" if name == "n" else f"--{name.replace('_', '-')}" for name in given]


def _is_path(name: str) -> bool:
    """True if a word names a run; one with a number at its end that is no path is an episode's id."""
    return os.path.exists(name) or not name.rpartition("-")[2].isdecimal() or "/" in name


def _serve(args: ViewCommand) -> int:
    from rlenv.runs.columns import arrow
    from rlenv.web.shelf import Shelf

    host, wanted = args.host or "127.0.0.1", 8765 if args.port is None else args.port
    if not 0 <= wanted <= 65_535:
        raise UsageError("--port is 0 to 65535")
    if len(args.ids) > 1:
        raise UsageError("the browser begins with one episode", hint="name one, or add --text")
    arrow()
    roots = [Path(name) for name in args.runs or ["."]]
    if missing := [root for root in roots if not root.exists()]:
        raise UsageError(f"there is no run at {missing[0]}")
    shelf = Shelf(roots, prices=as_prices(args.prices))
    found = shelf.run_keys()
    if not found and args.read_only:
        raise UsageError(f"there is no run below {', '.join(map(str, roots))}", hint="`rlenv eval … -o RUN` makes one")
    if len(found) != 1 and (other := args.ids or _given_options(args, _PICK)):
        raise UsageError(f"{other[0]} is of one run, and there are {len(found)}", hint="name the run")
    if len(found) == 1:
        # Its rows are read while the server is made: both take a second where there are a million of them.
        threading.Thread(target=_warm_up, args=(shelf, found[0]), name="rlenv-warm", daemon=True).start()
    from rlenv.hosts.workers import serve
    from rlenv.web.app import application
    from rlenv.web.guard import Guard

    if host not in _LOOPBACK:
        write_error(f"rlenv: {host} is open to its network: whoever has the link sees and runs what you can\n")
    if host in _ANY and not args.allow_host:
        said = (
            "rlenv: it answers to the names of this machine's loopback alone: add --allow-host NAME for each name or "
        )
        write_error(f"{said}address that others call it by\n")
    own = () if host in (*_ANY, *_LOOPBACK) else (host,)
    guard = Guard(hosts=tuple(_url_host(name.lower()) for name in (*own, *args.allow_host)))
    app = application(shelf, guard=guard, read_only=args.read_only)
    bound = _bind_port(host, wanted)
    ready = partial(_announce, guard, _first_page(args, found), not args.no_open, *bound.getsockname()[:2])
    asyncio.run(serve(app, bound, on_ready=ready))
    return 0


def _url_host(host: str) -> str:
    """A name or an address as requests name it."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _warm_up(shelf: Shelf, key: str) -> None:
    with contextlib.suppress(UsageError, OSError):  # told to whoever asks for the run
        run = shelf.open(key)
        with run.lock:
            run.rows()


def _first_page(args: ViewCommand, keys: list[str]) -> str:
    """The page at which the browser begins: the one run that was named, its episodes where some were asked for."""
    if len(keys) != 1:
        return "/"
    run = f"/r/{quote(keys[0], safe='')}"
    if args.ids:
        return f"{run}/e/{quote(args.ids[0], safe='')}"
    if args.where or args.sort:
        pairs = (("q", args.where), ("sort", args.sort))
        return f"{run}/episodes?{'&'.join(f'{key}={quote(value)}' for key, value in pairs if value)}"
    return run


def _bind_port(host: str, port: int) -> socket.socket:
    """What listens at the port, or at the next of a few that is free: a second viewer beside the first is no mistake.

    Raises UsageError: the address is not this machine's, or none is free.
    """
    from rlenv.hosts.workers import listen

    refused: list[UsageError] = []
    for one in range(port, min(port + 20, 65_536)) if port else (0,):
        try:
            return listen(host, one)
        except UsageError as error:
            refused.append(error)
    raise refused[0]


def _announce(guard: Guard, place: str, is_opened: bool, host: str, port: int) -> None:
    """Says where the viewer is, and opens it."""
    shown = "127.0.0.1" if host in _ANY else _url_host(host)
    base = f"http://{shown}:{port}{place}{'&' if '?' in place else '?'}token="
    write(f"{base}{guard.token}\n")
    sys.stdout.flush()
    has_screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if is_opened and has_screen:
        webbrowser.open(base + guard.ticket())


_SHOWN: Final = 5


def show(args: ViewCommand) -> int:
    """Shows episodes of one run or file in the terminal; exit code 1 where none is as asked.

    Raises:
        UsageError: there is no such run, file, line or episode, or the query is none.
    """
    names, ids = args.runs, args.ids
    if len(names) > 1 and (missing := [one for one in names if not Path(one).exists()]):
        raise UsageError(f"there is no run at {missing[0]}", hint="`rlenv runs list` shows those below this folder")
    if len(names) > 1:
        raise UsageError("the terminal shows one run at a time", hint="leave --text out to open them in the browser")
    name = names[0] if names else "."
    try:
        shown, count = _select_rows(args, name, ids)
    except MissingExtra:
        if args.where or args.sort:
            raise
        shown, count = _select_records(args, name, ids)
    console = Console(highlight=False)
    for title, trajectory, expected in shown:
        console.print(_render(title, trajectory, expected, most=None if args.full else 1500))
    more = "" if len(shown) == count else "; -n shows more"
    console.print(f"{len(shown)} of {count} episodes{more}" if count else "no episode is as asked")
    return 0 if count else 1


_Shown = list[tuple[str, Trajectory, Mapping[str, str]]]
"""What is shown: each episode with its line, its id where it has one, and what its rules expected."""


def _select_rows(args: ViewCommand, name: str, ids: Sequence[str]) -> tuple[_Shown, int]:
    """The episodes to show, and how many there are as asked."""
    source = _open_episodes(name)
    rows = Snapshot(source)
    lines = _numbered_rows(rows, is_file=source.run.is_file())
    matching = parse(_build_query(args)).mask(rows)
    places = order_places(rows, lines[matching[lines]], args.sort)
    if args.line is not None:
        _check_line(args.line, len(lines), source.run)
        places = places[places == lines[args.line - 1]]
    if ids:
        places = np.asarray([_place_of(rows, id, source.run) for id in ids])
    number = {int(place): line for line, place in enumerate(lines, 1)}
    shown: _Shown = []
    for place in places[: _most_shown(args, ids)].tolist():
        id = rows.table["id"][place].as_py()
        line = f"line {number[place]}" if place in number else "without a body"
        title = line if source.run.is_file() else f"{line} · {id}"
        one = source.body(id).trajectory()
        shown.append((title, one, expected_of(source.run, rows.table["lock"][place].as_py() or "", one.task)))
    return shown, len(places)


def _select_records(args: ViewCommand, name: str, ids: Sequence[str]) -> tuple[_Shown, int]:
    """The same without pyarrow, of files and of runs that are still journals: every episode is read."""
    found = [(line, id, one) for line, (id, one) in enumerate(episodes_with_ids(name), 1)]
    if args.line is not None:
        _check_line(args.line, len(found), Path(name))
        found = [found[args.line - 1]]
    if args.failed:
        found = [entry for entry in found if entry[2].reward.total is None]
    if args.wrong:
        found = [entry for entry in found if entry[2].success is False]
    if ids:
        by_id = {entry[1]: entry for entry in found}
        if missing := [id for id in ids if id not in by_id]:
            raise UsageError(f"'{missing[0]}' is no episode of {name}")
        found = [by_id[id] for id in ids]
    info = read_info(name) if is_run(name) else None
    lock = info.lock if info else ""
    shown: _Shown = [
        (f"line {line} · {id}" if id else f"line {line}", one, expected_of(Path(name), lock, one.task))
        for line, id, one in found[: _most_shown(args, ids)]
    ]
    return shown, len(found)


def _most_shown(args: ViewCommand, ids: Sequence[str]) -> int:
    return len(ids) or (_SHOWN if args.n is None else args.n)


def _check_line(line: int, count: int, run: Path) -> None:
    if not 1 <= line <= count:
        raise UsageError(f"{run} has lines 1 to {count}, not {line}")


def _numbered_rows(rows: Snapshot, *, is_file: bool) -> NDArray[np.int64]:
    """The rows whose bodies were kept, in the order in which other commands number them."""
    places = np.nonzero(rows.numbers("has_body") == 1)[0]
    return order_places(rows, places, "" if is_file else "step,mode,split,task,sample,seed")


def _place_of(rows: Snapshot, id: str, run: Path) -> int:
    place = rows.place(id)
    if place is None:
        raise UsageError(f"'{id}' is no episode of {run}")
    return place


def _build_query(args: ViewCommand) -> str:
    parts = [args.where or "", "invalid:true" if args.failed else "", "success:false" if args.wrong else ""]
    return " ".join(part for part in parts if part)


def _open_episodes(name: str) -> Episodes:
    found = reader_of(name)
    if isinstance(found, LinesReader):
        if found.unread_bytes:
            write_error(f"rlenv: {found.run}: the last line is not whole; it is left out\n")
        if not len(found.table):
            raise UsageError(f"{found.run} holds no trajectory")
    return found


def _render(name: str, trajectory: Trajectory, expected: Mapping[str, str], *, most: int | None) -> RenderableType:
    told = trajectory.messages
    box = partial(_render_box, style="dim", most=most)
    parts: list[RenderableType] = [box(one.content, title=one.role, images=one.images) for one in told]
    for turn in trajectory.turns:
        parts += _render_turn(turn, most=most)
    parts.append(_render_end(trajectory, expected))
    title = f"{trajectory.environment} · {trajectory.split}/{trajectory.task_index} · {name}"
    return Panel(Group(*parts), title=escape(title), title_align="left")


def _render_turn(turn: Turn, *, most: int | None) -> Iterator[RenderableType]:
    title = f"turn {turn.index + 1}" + (f", {turn.calls_malformed} malformed" if turn.calls_malformed else "")
    title += ", cut at its limit of tokens" if turn.was_cut else ""
    yield _render_box(turn.action, title=title, style="cyan", most=most)
    calls = list(turn.parsed.calls)
    for index, result in enumerate(turn.results):
        call = calls[index] if index < len(calls) else None
        arguments = json.dumps(call.arguments, ensure_ascii=False) if isinstance(call, ToolCall) else ""
        head = f"{result.name} · {result.outcome} · {result.seconds * 1000:.1f} ms · {arguments}"
        style = "green" if result.outcome == "ok" else "red"
        yield _render_box(result.text, title=cut_end(head, 120), style=style, most=most, images=result.images)
    if turn.observation is not None and not turn.results:
        text = "\n".join(message.content for message in turn.observation.messages)
        shown = [image for message in turn.observation.messages for image in message.images]
        yield _render_box(text, title="observation", style="yellow", most=most, images=shown)


def _render_box(text: str, *, title: str, style: str, most: int | None, images: Sequence[Image] = ()) -> Panel:
    title += f" · images: {len(images)}, which the browser shows" if images else ""
    shown = Text(text if most is None else cut_end(text, most))
    return Panel(shown, title=escape(title), title_align="left", border_style=style)


def _render_end(trajectory: Trajectory, expected: Mapping[str, str]) -> Table:
    how = "terminated" if trajectory.terminated else "truncated"
    title = escape(f"{how}: {trajectory.reason}")
    table = Table("term", "value", "", title=title, title_justify="left", show_header=False)
    table.columns[0].overflow = table.columns[2].overflow = "fold"
    table.columns[1].no_wrap = True
    for name, term in trajectory.reward.terms.items():
        value = figure(term.value)
        note = term.error or term.evidence or ""
        if name in expected and not term.error:
            note = f"expected {cut_end(expected[name], 60)}, found {cut_end(note, 60) or 'nothing'}"
        table.add_row(escape(name), f"{term.status} {value}", escape(cut_end(note, 160)))
    total = trajectory.reward.total
    table.add_row("reward", "invalid" if total is None else figure(total), f"success {trajectory.success}")
    table.add_row("answer", escape(cut_end(str(trajectory.answer), 100)), f"{trajectory.seconds:.2f} s")
    if trajectory.failure is not None:
        table.add_row("failure", escape(trajectory.failure.reason), escape(trajectory.failure.message[:300]))
    return table
