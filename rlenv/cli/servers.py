"""`rlenv editor schema` and `rlenv editor lsp`: the JSON Schema of specs, and the language server.

`rlenv serve --search`: a retrieval server over a corpus, with the wire of Search-R1. `rlenv validate --images`: what
machines are booted over, fetched before a run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

from rlenv import __version__
from rlenv.checks.editor.server import EditorServer, Unreadable, frame, messages
from rlenv.cli.options import Options, argument, option
from rlenv.cli.terminal import say, write, write_error
from rlenv.episodes.environment import Environment, load
from rlenv.errors import ResourceError, RlenvError, UsageError
from rlenv.language.schema import FILE_NAME, is_fresh
from rlenv.language.schema import write as write_schema
from rlenv.resources.base import ResourceContext

_BOOT_S = 60.0


@dataclass
class SchemaCommand(Options):
    """`rlenv editor schema`."""

    folder: str = argument("where it is written (schemas)", default="schemas", metavar="DIR", nargs="?", writes=True)
    check: bool = option("write nothing; exit with 1 where the file is stale")

    def execute(self) -> int:
        """0 where the schema was written or is fresh, 1 where `--check` finds it stale."""
        folder = Path(self.folder)
        if not self.check:
            write(f"wrote {write_schema(folder)}\n")
            return 0
        if is_fresh(folder):
            write(f"{folder / FILE_NAME} is fresh\n")
            return 0
        write_error(f"{folder / FILE_NAME} is stale; run: rlenv editor schema {folder}\n")
        return 1


@dataclass
class LspCommand(Options):
    """`rlenv editor lsp`."""

    # Many clients add it to the command of a server whatever that is.
    stdio: bool = option("over standard input and output, which is the only way")
    pause: float = option("look at the text after a pause", default=0.2, metavar="SECONDS")
    full: float = option("validate after a longer one", default=1.0, metavar="SECONDS")

    def execute(self) -> int:
        """0 where the client has ended the session as the protocol says, 1 otherwise."""
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
        # Nothing but messages may reach the client: what is printed goes to standard error.
        out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        with out:
            return asyncio.run(_serve_editor(Input(sys.stdin.fileno()), out, self.pause, self.full))


class Input:
    """Reads a descriptor. Python's own buffer of standard input is locked while a thread waits in it, and Python cannot
    end then."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = b""

    def read(self, size: int) -> bytes:
        parts = [self._held[:size]]
        self._held = self._held[size:]
        missing = size - len(parts[0])
        while missing and (part := os.read(self._descriptor, min(missing, 1 << 20))):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def readline(self, size: int) -> bytes:
        while b"\n" not in self._held and len(self._held) < size:
            part = os.read(self._descriptor, 1 << 16)
            if not part:
                break
            self._held += part
        end = self._held.find(b"\n", 0, size) + 1 or size
        return self.read(min(end, len(self._held)))


async def _serve_editor(source: Input, out: BinaryIO, pause_s: float, full_s: float) -> int:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[dict[str, Any] | Unreadable | None] = asyncio.Queue()

    def read() -> None:
        try:
            for message in messages(source.readline, source.read):
                loop.call_soon_threadsafe(waiting.put_nowait, message)
            loop.call_soon_threadsafe(waiting.put_nowait, None)
        except (OSError, ValueError, RuntimeError):  # closed while it was read, or the loop has ended
            pass

    def send(message: dict[str, Any]) -> None:
        out.write(frame(message))
        out.flush()

    server = EditorServer(send, version=__version__, pause_s=pause_s, full_s=full_s)
    threading.Thread(target=read, name="rlenv-lsp", daemon=True).start()
    try:
        while server.exit_code is None:
            message = await waiting.get()
            if message is None:
                return 1
            await server.take(message)
        return server.exit_code
    except BrokenPipeError:
        return 1
    finally:
        await server.aclose()


@dataclass
class ServeSearchCommand(Options):
    """`rlenv serve --search`."""

    corpus: Path = argument('one JSON object a line: {"id": …, "contents": "Title\\ntext"}')
    host: str = option("127.0.0.1 by default; 0.0.0.0 for other machines too", default="127.0.0.1")
    port: int = option("8000 by default; 0 takes a free one", default=8000)
    top_k: int = option("documents where a request names no topk", default=3, metavar="K")
    index: Path | None = option("where the index is kept; the user's cache folder", metavar="DIR", writes=True)

    def execute(self) -> int:
        """Serves until SIGINT or SIGTERM comes; exit code 0 then, 2 where it cannot start."""
        from rlenv.hosts import workers
        from rlenv.retrieval import Bm25Retriever, application

        if not 1 <= self.top_k <= 1_000 or not 0 <= self.port <= 65_535:
            raise UsageError("--top-k is 1 to 1000, --port 0 to 65535")
        if not self.corpus.is_file():
            raise UsageError(f"there is no file {self.corpus}; expected a corpus with one JSON object a line")
        begun = time.monotonic()
        retriever = Bm25Retriever(self.corpus, index=self.index)
        took = time.monotonic() - begun

        bound = workers.listen(self.host, self.port)

        def ready() -> None:
            at = f"{workers.address_of(bound)}/retrieve"
            write(f"{retriever.documents} documents ({retriever.name}, {took:.1f} s) at {at}\n")
            sys.stdout.flush()

        app = application(retriever, default_top_k=self.top_k)
        asyncio.run(workers.serve(app, bound, on_ready=ready, grace_s=10.0))
        return 0


@dataclass
class ImagesCommand(Options):
    """`rlenv validate --images`."""

    spec: str = argument("a YAML file, or the name of a shipped environment")

    def execute(self) -> int:
        """0 where a machine boots over each image that the spec or a row of it names, 1 otherwise."""
        return asyncio.run(_try_images(load(self.spec)))


async def _try_images(environment: Environment) -> int:
    constants, seen, ready, wrong = environment.spec.vars, set[object](), 0, 0
    rows = [one for split in environment.spec.tasks for row in environment.tasks(split) for one in _with_steps(row)]
    for machine, row in product(environment.parts.machines, rows):
        name = f"the image of task '{row.get('id')}'"
        try:
            named = tuple(machine.source(key, row, constants) for key in ("image", "tests_image"))
            if named in seen:
                continue
            seen.add(named)
            name = str(named[0] or "the programs of this machine")
            say(f"{machine.name}: {name} …")
            digest = await _boot_image(machine, named, ResourceContext(row, constants))
            write(f"ok    {name} {digest[:12]}\n")
            ready += 1
        except (RlenvError, ValueError) as error:
            write_error(f"lacks {name}: {error}\n")
            wrong += 1
    write(f"{ready} of {ready + wrong} images are ready\n")
    return 1 if wrong else 0


def _with_steps(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row, and the row of each of its steps, whose tests may have images of their own."""
    return [row, *({**row, **step} for step in row.get("steps") or () if isinstance(step, Mapping))]


async def _boot_image(machine: Any, named: Sequence[Any], context: ResourceContext) -> str:
    from rlenv.tools.workspace.images import prepare_image

    image, *_ = [await asyncio.to_thread(prepare_image, one, fetches=True) for one in named if one or one is named[0]]
    async with machine.open(context) as workspace:
        ran = await workspace.run("true", _BOOT_S)
        if ran.code != 0:
            raise ResourceError(f"no shell answers over it {ran.output.decode(errors='replace')}".strip())
    return str(image.digest)
