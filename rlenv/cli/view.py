"""`rlenv view`: runs in the browser, or episodes in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from rlenv.cli.spending import add_prices
from rlenv.cli.terminal import write, write_error
from rlenv.errors import UsageError
from rlenv.runs.prices import as_prices

if TYPE_CHECKING:
    from rlenv.web.guard import Guard
    from rlenv.web.shelf import Shelf

__all__ = ["add_arguments", "run"]

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_ANY: Final = ("0.0.0.0", "::")
_TEXT: Final = ("line", "failed", "wrong", "n", "full")
_WEB: Final = ("host", "port", "allow_host", "no_open", "prices", "read_only")
_PICK: Final = ("where", "sort", "line", "failed", "wrong", "n")
"""Options that pick episodes of a run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv view`."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="RUN",
        help="run folders, .jsonl files, or folders below which runs are looked for (the current one); "
        "behind a run also ids of its episodes",
    )
    parser.add_argument("--where", metavar="QUERY", help="only episodes that match: 'success:false errors>0'")
    parser.add_argument(
        "--sort", default="", metavar="COLUMNS", help="such as --sort=-reward,step; - is the largest first"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--text", action="store_true", help="in the terminal; a .jsonl file always is, without --web")
    how.add_argument("--web", action="store_true", help="in the browser, a .jsonl file too")
    text = parser.add_argument_group("in the terminal")
    text.add_argument("--line", type=int, metavar="N", help="one episode by its line in the file, from 1")
    which = text.add_mutually_exclusive_group()
    which.add_argument("--failed", action="store_true", help="only episodes whose reward is invalid")
    which.add_argument("--wrong", action="store_true", help="only episodes that are valid and no success")
    text.add_argument("-n", type=int, metavar="N", help="at most N episodes (5)")
    text.add_argument("--full", action="store_true", help="do not cut long texts")
    web = parser.add_argument_group("in the browser")
    web.add_argument("--host", help="127.0.0.1 by default; another makes it open to a network, see --allow-host too")
    web.add_argument("--port", type=int, help="8765 by default, or the next free one; 0 takes any")
    web.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name or address that it may be called by beside that of --host: a proxy's, or this machine's",
    )
    web.add_argument("--no-open", action="store_true", help="print the address and do not open a browser")
    add_prices(web)
    web.add_argument("--read-only", action="store_true", help="without what writes, runs or stops something")


def run(args: argparse.Namespace) -> int:
    """Shows episodes in the terminal, or serves until SIGINT or SIGTERM comes; exit code 2 where it cannot."""
    args.runs = [name for name in args.names if _is_path(name)]
    args.ids = [name for name in args.names if not _is_path(name)]
    if args.ids and not args.runs:
        args.runs, args.ids = args.names, []  # told as paths that are not there
    is_file = len(args.runs) == 1 and not Path(args.runs[0]).is_dir()
    is_web = args.web or not (args.text or is_file or _given(args, _TEXT))
    if other := _given(args, _TEXT if is_web else _WEB):
        where, hint = ("terminal", "leave --web out") if is_web else ("browser", "add --web, or leave it out")
        raise UsageError(f"{other[0]} is for the {where}", hint=hint)
    if args.ids and (other := _given(args, _PICK)):
        raise UsageError(f"{other[0]} picks episodes, and {args.ids[0]} is named already", hint="leave one of them out")
    if args.line is not None and (other := _given(args, ("sort", "n"))):
        raise UsageError(f"{other[0]} is for a list, and --line is one episode", hint="leave one of them out")
    if args.n is not None and args.n < 1:
        raise UsageError("-n is at least 1")
    if is_web:
        return _serve(args)
    from rlenv.cli.view_text import show

    return show(args)


def _given(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Of some options those that were given."""
    given = [name for name in names if (value := getattr(args, name)) or (value == 0 and value is not False)]
    return ["-n" if name == "n" else f"--{name.replace('_', '-')}" for name in given]


def _is_path(name: str) -> bool:
    """Whether a word names a run; one with a number at its end that is no path is an episode's id."""
    return os.path.exists(name) or not name.rpartition("-")[2].isdecimal() or "/" in name


def _serve(args: argparse.Namespace) -> int:
    from rlenv.runs.columns import arrow
    from rlenv.web.shelf import Shelf

    host, wanted = args.host or "127.0.0.1", 8765 if args.port is None else args.port
    if not 0 <= wanted <= 65_535:
        raise UsageError("--port is 0 to 65535")
    if len(args.ids) > 1:
        raise UsageError("the browser begins with one episode", hint="name one, or add --text")
    arrow()
    roots = [Path(name) for name in args.runs or ["."]]
    for root in roots:
        if not root.exists():
            raise UsageError(f"there is no run at {root}")
    shelf = Shelf(roots, prices=as_prices(args.prices))
    found = shelf.found()
    if not found and args.read_only:
        raise UsageError(f"there is no run below {', '.join(map(str, roots))}", hint="`rlenv eval … -o RUN` makes one")
    if len(found) != 1 and (other := args.ids or _given(args, _PICK)):
        raise UsageError(f"{other[0]} is of one run, and there are {len(found)}", hint="name the run")
    if len(found) == 1:
        # Its rows are read while the server is made: both take a second where there are a million of them.
        threading.Thread(target=_warm, args=(shelf, found[0]), name="rlenv-warm", daemon=True).start()
    from rlenv.web.app import application, serve
    from rlenv.web.guard import Guard

    if host not in _LOOPBACK:
        write_error(f"rlenv: {host} is open to its network: whoever has the link sees and runs what you can\n")
    if host in _ANY and not args.allow_host:
        said = (
            "rlenv: it answers to the names of this machine's loopback alone: add --allow-host NAME for each name or "
        )
        write_error(f"{said}address that others call it by\n")
    own = () if host in (*_ANY, *_LOOPBACK) else (host,)
    guard = Guard(hosts=tuple(_in_url(name.lower()) for name in (*own, *args.allow_host)))
    app = application(shelf, guard=guard, read_only=args.read_only)
    place = _place(args, found)

    async def main(port: int) -> None:
        stopped = asyncio.Event()
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, stopped.set)
        ready = _Ready(guard, place, is_opened=not args.no_open)
        await serve(app, host=host, port=port, stopped=stopped, on_ready=ready)

    asyncio.run(main(_free(host, wanted)))
    return 0


def _in_url(host: str) -> str:
    """A name or an address as requests name it."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _warm(shelf: Shelf, key: str) -> None:
    with contextlib.suppress(UsageError, OSError):  # told to whoever asks for the run
        run = shelf.open(key)
        with run.lock:
            run.rows()


def _place(args: argparse.Namespace, keys: list[str]) -> str:
    """Where the browser begins: the one run that was named, its episodes where some were asked for."""
    if len(keys) != 1:
        return "/"
    run = f"/r/{quote(keys[0], safe='')}"
    if args.ids:
        return f"{run}/e/{quote(args.ids[0], safe='')}"
    if args.where or args.sort:
        pairs = (("q", args.where), ("sort", args.sort))
        return f"{run}/episodes?{'&'.join(f'{key}={quote(value)}' for key, value in pairs if value)}"
    return run


def _free(host: str, port: int) -> int:
    """The port, or the next of a few that is free: a second viewer beside the first is no mistake.

    Raises:
        UsageError: the address is not this machine's, or none is free.
    """
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for one in range(port, min(port + 20, 65_536)) if port else (0,):
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, one))
            return one
        except OSError as error:
            reason = error.strerror or str(error)
    raise UsageError(f"--port {port}: cannot listen at {host}: {reason}", hint="choose another, or 0 for a free one")


class _Ready:
    """Says where the viewer is, and opens it."""

    def __init__(self, guard: Guard, place: str, *, is_opened: bool) -> None:
        self._guard, self._place, self._is_opened = guard, place, is_opened

    def __call__(self, host: str, port: int) -> None:
        shown = "127.0.0.1" if host in _ANY else _in_url(host)
        sign = "&" if "?" in self._place else "?"
        base = f"http://{shown}:{port}{self._place}{sign}token="
        write(f"{base}{self._guard.token}\n")
        sys.stdout.flush()
        has_screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
        if self._is_opened and has_screen:
            webbrowser.open(base + self._guard.ticket())
