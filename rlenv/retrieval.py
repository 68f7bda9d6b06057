r"""A retrieval server with the wire of Search-R1, for environments whose search tool asks over HTTP.

    POST /retrieve  {"queries": ["…"], "topk": 3, "return_scores": true}
    200             {"result": [[{"document": {"id": "7", "contents": "Title\ntext"}, "score": 1.5}]]}

Without `return_scores` the lists hold the documents themselves; without `topk` the server's default counts. Source:
github.com/PeterGriffinJin/Search-R1, search_r1/search/retrieval_server.py. There a request without scores and with any
number of queries but two fails (the result is unpacked into two names); here it works. `GET /health` says that the
server is ready, and what it serves.

`Retriever` is the seam to a search of one's own; `Bm25Retriever` has the index of the tool `search`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from rlenv._base.strict_json import read_json
from rlenv.tools.search import Index, load_index


@dataclass(frozen=True, slots=True)
class ScoredDocument:
    """One document that was found: what the server answers as `document`, with the `score` of the retriever.

    Higher scores are better; they compare within one query only.
    """

    document: Mapping[str, Any]
    score: float


class Retriever(Protocol):
    """Finds documents; used by one thread at a time.

    `name` says how it searches, `documents` how many there are.
    """

    @property
    def name(self) -> str: ...

    @property
    def documents(self) -> int: ...

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredDocument]]:
        """For each query at most `top_k` documents, best first; `len(result) == len(queries)`."""
        ...


_LOGGER: Final = logging.getLogger("rlenv.retrieval")
_MAX_BODY: Final = 16 << 20
_MAX_QUERIES: Final = 10_000
_MAX_WANTED: Final = 100_000
"""Of one request: queries times documents for each."""
_MAX_WAITING: Final = 1_000
"""Requests that wait; one more is told to come back."""
_MAX_ANSWER: Final = 64_000_000


class _Asked(BaseModel):
    """The body of a request; keys that are not known are left alone, as the original does."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    queries: Annotated[list[Annotated[StrictStr, Field(max_length=10_000)]], Field(max_length=_MAX_QUERIES)]
    topk: Annotated[StrictInt, Field(ge=0, le=1_000)] | None = None
    return_scores: StrictBool = False


@dataclass(slots=True, eq=False)
class _Desk:
    """Answers requests with one retriever, in a thread of its own so that the server stays awake meanwhile.

    Requests that wait for that thread are searched as one batch where they ask for equally many documents.
    """

    retriever: Retriever
    default_top_k: int
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "rlenv-retrieval"))
    served: int = 0
    _waiting: list[tuple[_Asked, asyncio.Future[list[list[ScoredDocument]]]]] = field(default_factory=list)
    _worker: asyncio.Task[None] | None = None

    async def found(self, asked: _Asked) -> list[list[ScoredDocument]]:
        """The retriever's results for one request."""
        answer: asyncio.Future[list[list[ScoredDocument]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            top_k = self._top_k(self._waiting[0][0])
            batch = [one for one in self._waiting if self._top_k(one[0]) == top_k]
            self._waiting = [one for one in self._waiting if self._top_k(one[0]) != top_k]
            queries = [query for asked, _ in batch for query in asked.queries]
            try:
                found = await loop.run_in_executor(self.thread, self._search, queries, top_k)
            except Exception as error:  # the boundary: each request of the batch is answered, none hangs
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            self.served += len(queries)
            start = 0
            for asked, answer in batch:
                if not answer.done():  # a client that left has cancelled it
                    answer.set_result(found[start : start + len(asked.queries)])
                start += len(asked.queries)

    def _search(self, queries: Sequence[str], top_k: int) -> list[list[ScoredDocument]]:
        return self.retriever.search(queries, top_k=top_k)

    def _top_k(self, asked: _Asked) -> int:
        return asked.topk or self.default_top_k

    async def retrieve(self, request: web.Request) -> web.Response:
        """`POST /retrieve`."""
        try:
            raw = await request.read()
            asked = _Asked.model_validate(read_json(raw, max_bytes=_MAX_BODY, max_values=4 * _MAX_QUERIES))
        except ValidationError as error:
            return _refusal(422, _faults(error))
        except ValueError as error:
            return _refusal(400, f"the body is not JSON: {error}")
        wanted = len(asked.queries) * self._top_k(asked)
        if wanted > _MAX_WANTED:
            return _refusal(422, f"queries times topk is {wanted:,}; expected at most {_MAX_WANTED:,}")
        if len(self._waiting) >= _MAX_WAITING:
            return _refusal(503, "too many requests wait; come back later")
        try:
            found = await self.found(asked)
        except Exception:  # whatever a retriever raises is the server's fault, not the client's
            _LOGGER.exception("a search failed")
            return _refusal(500, "the search failed; the server's log says why")
        if sum(len(str(one.document.get("contents", ""))) for row in found for one in row) > _MAX_ANSWER:
            return _refusal(422, f"the answer is longer than {_MAX_ANSWER:,} characters; ask for less at once")
        if asked.return_scores:
            result: list[Any] = [[{"document": one.document, "score": one.score} for one in row] for row in found]
        else:
            result = [[one.document for one in row] for row in found]
        return _json({"result": result})

    async def health(self, request: web.Request) -> web.Response:
        """`GET /health`."""
        retriever = self.retriever
        return _json(
            {
                "status": "ok",
                "retriever": retriever.name,
                "documents": retriever.documents,
                "queries": self.served,
                "waiting": len(self._waiting),
            }
        )

    async def aclose(self, app: web.Application) -> None:
        """Waits for the search that runs; called when the server ends."""
        self.thread.shutdown(wait=True, cancel_futures=True)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _refusal(status: int, message: str) -> web.Response:
    return _json({"detail": message}, status)


def _faults(error: ValidationError) -> str:
    shown = []
    for fault in error.errors()[:5]:
        at = ".".join(str(part) for part in fault["loc"]) or "body"
        shown.append(f"{at}: {fault['msg']}")
    return "; ".join(shown) + '; expected {"queries": ["…"], "topk": 3, "return_scores": true}'


@web.middleware
async def _say(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    """Every refusal is JSON with a `detail`, as the original's framework writes it."""
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _refusal(error.status, f"{error.reason}: {request.method} {request.path}")
    return response


def application(retriever: Retriever, *, default_top_k: int = 3) -> web.Application:
    """The server, to be run by aiohttp.

    Args:
        default_top_k: how many documents a request gets that names no `topk`, or 0.
    """
    desk = _Desk(retriever, default_top_k)
    app = web.Application(client_max_size=_MAX_BODY, middlewares=[_say])
    app.router.add_post("/retrieve", desk.retrieve)
    app.router.add_get("/health", desk.health)
    app.on_cleanup.append(desk.aclose)
    return app


_OFFICIAL: Final = {"id": "id", "title": "", "text": "contents"}


class Bm25Retriever:
    """Searches by words. Documents that share no word with a query are not found.

    Args:
        corpus: one JSON object a line: `{"id": …, "contents": "Title\\ntext"}`, as Search-R1's corpora are written, or
            `{"id": …, "title": …, "text": …}`, as those of the tool `search` are.
        index: the folder that keeps the index; the user's cache folder otherwise.

    Raises:
        MissingExtra: bm25s is not installed.
        UsageError: the corpus cannot be read; the message names the line.
    """

    def __init__(self, corpus: Path, *, index: Path | None = None) -> None:
        self._index: Index = load_index(corpus, fields=fields_of(corpus), cache=index)

    @property
    def name(self) -> str:
        """The name of the search method."""
        return "bm25"

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self._index.documents)

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredDocument]]:
        """For each query at most `top_k` documents, best first."""
        return [
            [
                ScoredDocument({"id": one.id, "contents": f"{one.title}\n{one.text}" if one.title else one.text}, score)
                for one, score in self._index.search(query, top_k=top_k)
            ]
            for query in queries
        ]


def fields_of(corpus: Path) -> dict[str, str]:
    """The columns of a corpus, told by its first line: `contents`, or `title` and `text`."""
    try:
        with corpus.open("rb") as file:
            head = file.readline(1 << 20)
    except OSError:
        return dict(_OFFICIAL)  # whoever loads it says what is wrong with the file
    if b'"contents"' not in head and b'"text"' in head:
        return {"id": "id", "title": "title", "text": "text"}
    return dict(_OFFICIAL)
