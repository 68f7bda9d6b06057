"""`rlenv serve-search`: a retrieval server over a corpus, with the wire of Search-R1."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path

from rlenv.cli.terminal import write
from rlenv.errors import UsageError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv serve-search`."""
    parser.add_argument("corpus", type=Path, help='one JSON object a line: {"id": …, "contents": "Title\\ntext"}')
    parser.add_argument("--host", default="127.0.0.1", help="127.0.0.1 by default; 0.0.0.0 for other machines too")
    parser.add_argument("--port", type=int, default=8000, help="8000 by default; 0 takes a free one")
    parser.add_argument("--top-k", type=int, default=3, metavar="K", help="documents where a request names no topk")
    parser.add_argument("--index", type=Path, metavar="DIR", help="where the index is kept; the user's cache folder")


def run(args: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM comes; exit code 0 then, 2 where it cannot start."""
    from rlenv.retrieval.bm25 import Bm25Retriever
    from rlenv.retrieval.server import application, serve

    if not 1 <= args.top_k <= 1_000 or not 0 <= args.port <= 65_535:
        raise UsageError("--top-k is 1 to 1000, --port 0 to 65535")
    if not args.corpus.is_file():
        raise UsageError(f"there is no file {args.corpus}; expected a corpus with one JSON object a line")
    begun = time.monotonic()
    retriever = Bm25Retriever(args.corpus, index=args.index)
    took = time.monotonic() - begun

    def ready(host: str, port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        write(f"{retriever.documents} documents ({retriever.name}, {took:.1f} s) at http://{shown}:{port}/retrieve\n")
        sys.stdout.flush()

    async def main() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stopped.set)
        app = application(retriever, default_top_k=args.top_k)
        await serve(app, host=args.host, port=args.port, stopped=stopped, on_ready=ready)

    try:
        asyncio.run(main())
    except OSError as error:
        raise UsageError(
            f"--port {args.port}: cannot listen at {args.host}: {error.strerror}",
            hint="choose another, or 0 for a free one",
        ) from error
    return 0
