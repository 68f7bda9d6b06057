"""`rlenv serve-search`: a retrieval server over a corpus, with the wire of Search-R1."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rlenv.cli.options import Options, argument, option
from rlenv.cli.terminal import write
from rlenv.errors import UsageError

__all__ = ["ServeSearchCommand"]


@dataclass
class ServeSearchCommand(Options):
    """`rlenv serve-search`."""

    corpus: Path = argument('one JSON object a line: {"id": …, "contents": "Title\\ntext"}')
    host: str = option("127.0.0.1 by default; 0.0.0.0 for other machines too", default="127.0.0.1")
    port: int = option("8000 by default; 0 takes a free one", default=8000)
    top_k: int = option("documents where a request names no topk", default=3, metavar="K")
    index: Path | None = option("where the index is kept; the user's cache folder", metavar="DIR", writes=True)

    def execute(self) -> int:
        """Serves until SIGINT or SIGTERM comes; exit code 0 then, 2 where it cannot start."""
        from rlenv.retrieval.bm25 import Bm25Retriever
        from rlenv.retrieval.server import application, serve

        if not 1 <= self.top_k <= 1_000 or not 0 <= self.port <= 65_535:
            raise UsageError("--top-k is 1 to 1000, --port 0 to 65535")
        if not self.corpus.is_file():
            raise UsageError(f"there is no file {self.corpus}; expected a corpus with one JSON object a line")
        begun = time.monotonic()
        retriever = Bm25Retriever(self.corpus, index=self.index)
        took = time.monotonic() - begun

        def ready(host: str, port: int) -> None:
            shown = f"[{host}]" if ":" in host else host
            write(
                f"{retriever.documents} documents ({retriever.name}, {took:.1f} s) at http://{shown}:{port}/retrieve\n"
            )
            sys.stdout.flush()

        async def main() -> None:
            stopped = asyncio.Event()
            loop = asyncio.get_running_loop()
            for name in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(name, stopped.set)
            app = application(retriever, default_top_k=self.top_k)
            await serve(app, host=self.host, port=self.port, stopped=stopped, on_ready=ready)

        try:
            asyncio.run(main())
        except OSError as error:
            raise UsageError(
                f"--port {self.port}: cannot listen at {self.host}: {error.strerror}",
                hint="choose another, or 0 for a free one",
            ) from error
        return 0
