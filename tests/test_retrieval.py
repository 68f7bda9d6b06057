"""The retrieval server on its wire: what Search-R1's clients send and read, and what it says to the rest."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rlenv.errors import MissingExtra
from rlenv.hosts.workers import address_of, listen, serve
from rlenv.language.kinds import CompileContext
from rlenv.retrieval import Retriever, ScoredDocument, application
from rlenv.testing.tools import call, kept
from rlenv.tools import search as bm25
from rlenv.tools.http import KIND, HttpSpec

try:
    bm25._import_bm25()
except MissingExtra as error:
    pytest.skip(str(error), allow_module_level=True)

from rlenv.retrieval import Bm25Retriever
from tests.support import data

DOCUMENTS = [
    {"id": "0", "contents": '"Kite"\nA kite flies in the wind.'},
    {"id": "1", "contents": '"Ball"\nA ball rolls and bounces.'},
    {"id": "2", "contents": '"Mill"\nWind moves the mill.\nIts sails turn.'},
]


@pytest.fixture
def retriever(tmp_path: Path) -> Bm25Retriever:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in DOCUMENTS), encoding="utf-8")
    return Bm25Retriever(corpus, index=tmp_path / "index")


@asynccontextmanager
async def served(retriever: Retriever, *, default_top_k: int = 3) -> AsyncIterator[str]:
    stopped, ready, bound = asyncio.Event(), asyncio.Event(), listen("127.0.0.1", 0)
    app = application(retriever, default_top_k=default_top_k)
    task = asyncio.create_task(serve(app, bound, stopped=stopped, on_ready=ready.set, grace_s=10.0))
    await asyncio.wait_for(ready.wait(), 10)
    try:
        yield address_of(bound)
    finally:
        stopped.set()
        await asyncio.wait_for(task, 10)


def ask(retriever: Retriever, body: Any, *, path: str = "/retrieve", method: str = "POST", **options: Any) -> Any:
    async def play() -> tuple[int, Any]:
        async with served(retriever, **options) as url, aiohttp.ClientSession() as session:
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            async with session.request(method, url + path, data=sent) as response:
                return response.status, await response.json()

    return asyncio.run(play())


def test_scored_documents_come_in_the_originals_form(retriever: Bm25Retriever) -> None:
    status, answer = ask(retriever, {"queries": ["wind kite", "ball"], "topk": 2, "return_scores": True})
    assert status == 200
    first, second = answer["result"]
    assert [one["document"] for one in first] == [DOCUMENTS[0], DOCUMENTS[2]]
    assert [one["document"] for one in second] == [DOCUMENTS[1]]
    assert first[0]["score"] > first[1]["score"] > 0


def test_documents_come_bare_without_scores(retriever: Bm25Retriever) -> None:
    status, answer = ask(retriever, {"queries": ["mill"], "topk": 1})
    assert (status, answer) == (200, {"result": [[DOCUMENTS[2]]]})


@pytest.mark.parametrize(
    "body", [{"queries": ["wind"]}, {"queries": ["wind"], "topk": None}, {"queries": ["wind"], "topk": 0}]
)
def test_a_request_without_topk_gets_the_servers_own(retriever: Bm25Retriever, body: Any) -> None:
    _, answer = ask(retriever, body, default_top_k=1)
    assert [len(row) for row in answer["result"]] == [1]


def test_a_query_that_nothing_matches_gets_an_empty_list_and_no_query_none(retriever: Bm25Retriever) -> None:
    assert ask(retriever, {"queries": ["zzz", ""], "return_scores": True})[1] == {"result": [[], []]}
    assert ask(retriever, {"queries": []})[1] == {"result": []}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 422, "expected"),
        ({"topk": 3}, 422, "queries"),
        ({"queries": "wind"}, 422, "queries"),
        ({"queries": [1]}, 422, "queries.0"),
        ({"queries": ["a"], "topk": -1}, 422, "topk"),
        ({"queries": ["a"], "topk": 1.5}, 422, "topk"),
        ({"queries": ["a"], "return_scores": "no"}, 422, "return_scores"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_with_what_was_wrong(
    retriever: Bm25Retriever, body: Any, status: int, words: str
) -> None:
    found, answer = ask(retriever, body)
    assert found == status
    assert words in answer["detail"]


def test_unknown_paths_and_methods_are_refused_as_json(retriever: Bm25Retriever) -> None:
    assert ask(retriever, {}, path="/search")[0] == 404
    status, answer = ask(retriever, {}, method="PUT")
    assert (status, "PUT /retrieve" in answer["detail"]) == (405, True)


def test_health_says_what_is_served(retriever: Bm25Retriever) -> None:
    status, answer = ask(retriever, b"", path="/health", method="GET")
    assert (status, answer) == (200, {"status": "ok", "retriever": "bm25", "documents": 3, "queries": 0, "waiting": 0})


class Broken:
    name, documents = "broken", 0

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredDocument]]:
        raise RuntimeError("the disk is gone")


def test_a_search_that_fails_is_a_500_without_its_innards(caplog: pytest.LogCaptureFixture) -> None:
    status, answer = ask(Broken(), {"queries": ["x"]})
    assert status == 500
    assert "disk" not in answer["detail"]
    assert "the disk is gone" in caplog.text


class Slow:
    """Holds its first search until it is let go, and notes how many queries each search had."""

    name, documents = "slow", 1

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.batches: list[tuple[int, int]] = []

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[ScoredDocument]]:
        self.batches.append((len(queries), top_k))
        self.begun.set()
        assert self.let_go.wait(10)
        return [[ScoredDocument({"id": query, "contents": query}, 1.0)] for query in queries]


def test_requests_that_wait_are_searched_as_one_batch_and_each_gets_its_own() -> None:
    slow = Slow()

    async def play() -> list[Any]:
        async with served(slow) as url, aiohttp.ClientSession() as session:

            async def retrieve(queries: list[str], topk: int) -> Any:
                async with session.post(url + "/retrieve", json={"queries": queries, "topk": topk}) as response:
                    return [row[0]["id"] for row in (await response.json())["result"]]

            first = asyncio.create_task(retrieve(["a"], 3))
            await asyncio.to_thread(slow.begun.wait, 10)
            rest = [asyncio.create_task(retrieve([f"b{i}", f"c{i}"], 3 if i else 5)) for i in range(4)]
            async with asyncio.timeout(10):
                while await health(session, url) < 4:
                    pass
            slow.let_go.set()
            return await asyncio.wait_for(asyncio.gather(first, *rest), 10)

    found = asyncio.run(play())
    assert found == [["a"], ["b0", "c0"], ["b1", "c1"], ["b2", "c2"], ["b3", "c3"]]
    assert slow.batches[0] == (1, 3)
    assert sorted(slow.batches[1:]) == [(2, 5), (6, 3)]


async def health(session: aiohttp.ClientSession, url: str) -> int:
    """How many requests wait; the loop answers while a search runs."""
    async with session.get(url + "/health") as response:
        return int((await response.json())["waiting"])


def test_a_client_that_leaves_takes_nobody_with_it() -> None:
    slow = Slow()

    async def play() -> Any:
        async with served(slow) as url, aiohttp.ClientSession() as session:
            leaving = asyncio.create_task(session.post(url + "/retrieve", json={"queries": ["a"]}))
            await asyncio.to_thread(slow.begun.wait, 10)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            slow.let_go.set()
            async with session.post(url + "/retrieve", json={"queries": ["b"]}) as response:
                return await response.json()

    assert asyncio.run(play()) == {"result": [[{"id": "b", "contents": "b"}]]}


def test_the_http_tools_preset_reads_it(retriever: Bm25Retriever) -> None:
    async def play() -> str:
        async with served(retriever) as url, kept() as within_one:
            spec = HttpSpec.model_validate(
                {"kind": "http", "preset": "search-r1", "url": f"{url}/retrieve", "top_k": 2}
            )
            (tool,) = KIND.factory("search", spec, CompileContext(base=Path(), vars={}))
            return (await call(tool, {"query": "wind kite"}, within=within_one())).text

    assert asyncio.run(play()) == (
        'Doc 1(Title: "Kite") A kite flies in the wind.\nDoc 2(Title: "Mill") Wind moves the mill.\nIts sails turn.'
    )


def test_a_corpus_of_titles_and_texts_is_served_too(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "x", "title": "Kite", "text": "It flies."}\n', encoding="utf-8")
    retriever = Bm25Retriever(corpus, index=tmp_path / "index")
    assert retriever.search(["flies"], top_k=1)[0][0].document == {"id": "x", "contents": "Kite\nIt flies."}


@pytest.mark.shared_data
def test_gold_passages_of_real_questions_are_found(tmp_path: Path) -> None:
    place = data.find("hotpot_search")
    retriever = Bm25Retriever(place / "corpus.jsonl", index=tmp_path)
    rows = [json.loads(line) for line in (place / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    found = retriever.search([title for row in rows for title in row["sup"]], top_k=3)
    titles = [title for row in rows for title in row["sup"]]
    hits = sum(
        any(one.document["contents"].startswith(title + "\n") for one in row)
        for title, row in zip(titles, found, strict=True)
    )
    assert hits / len(titles) > 0.9
