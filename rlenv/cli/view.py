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
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from rlenv.cli.terminal import write, write_error
from rlenv.errors import UsageError

if TYPE_CHECKING:
    from rlenv.web.guard import Guard
    from rlenv.web.shelf import Shelf

__all__ = ["add_arguments", "run"]

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


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
    web.add_argument("--host", default="127.0.0.1", help="127.0.0.1 by default; another makes it open to a network")
    web.add_argument("--port", type=int, default=8765, help="8765 by default, or the next free one; 0 takes any")
    web.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that it may be called by: a proxy's",
    )
    web.add_argument("--no-open", action="store_true", help="print the address and do not open a browser")
    web.add_argument("--read-only", action="store_true", help="without what writes, runs or stops something")


def run(args: argparse.Namespace) -> int:
    """Shows episodes in the terminal, or serves until SIGINT or SIGTERM comes; exit code 2 where it cannot."""
    args.runs = [name for name in args.names if _is_path(name)]
    args.ids = [name for name in args.names if not _is_path(name)]
    if args.ids and not args.runs:
        args.runs, args.ids = args.names, []  # told as paths that are not there
    asked = args.text or args.line is not None or args.failed or args.wrong or args.full or args.n is not None
    is_file = len(args.runs) == 1 and not Path(args.runs[0]).is_dir()
    if not args.web and (asked or is_file):
        from rlenv.cli.view_text import show

        return show(args)
    if args.web and asked:
        raise UsageError("--line, --failed, --wrong, --full and -n are the terminal's", hint="leave --web out")
    return _serve(args)


def _is_path(name: str) -> bool:
    """Whether a word names a run; one with a number at its end that is no path is an episode's id."""
    return os.path.exists(name) or not name.rpartition("-")[2].isdecimal() or "/" in name


def _serve(args: argparse.Namespace) -> int:
    from rlenv.runs.parts import arrow
    from rlenv.web.shelf import Shelf

    if not 0 <= args.port <= 65_535:
        raise UsageError("--port is 0 to 65535")
    arrow()
    roots = [Path(name) for name in args.runs or ["."]]
    for root in roots:
        if not root.exists():
            raise UsageError(f"there is no run at {root}")
    shelf = Shelf(roots)
    found = shelf.found()
    if not found and args.read_only:
        raise UsageError(f"there is no run below {', '.join(map(str, roots))}", hint="`rlenv eval … -o RUN` makes one")
    if len(found) == 1:
        # Its rows are read while the server is made: both take a second where there are a million of them.
        threading.Thread(target=_warm, args=(shelf, found[0]), name="rlenv-warm", daemon=True).start()
    from rlenv.web.app import application, serve
    from rlenv.web.guard import Guard

    if args.host not in _LOOPBACK:
        write_error(f"rlenv: {args.host} is open to its network: whoever has the link sees and runs what you can\n")
    own = () if args.host in ("0.0.0.0", "::", *_LOOPBACK) else (args.host.lower(),)
    guard = Guard(hosts=(*own, *(name.lower() for name in args.allow_host)))
    app = application(shelf, guard=guard, read_only=args.read_only)
    place = _place(args, found)

    async def main(port: int) -> None:
        stopped = asyncio.Event()
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, stopped.set)
        ready = _Ready(guard, place, is_opened=not args.no_open)
        await serve(app, host=args.host, port=port, stopped=stopped, on_ready=ready)

    asyncio.run(main(_free(args.host, args.port)))
    return 0


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
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        sign = "&" if "?" in self._place else "?"
        base = f"http://{shown}:{port}{self._place}{sign}token="
        write(f"{base}{self._guard.token}\n")
        sys.stdout.flush()
        has_screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
        if self._is_opened and has_screen:
            webbrowser.open(base + self._guard.ticket())
