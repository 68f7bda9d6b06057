"""BM25 over a corpus: what is found, in which order, and where the index is kept."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import MissingExtra, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.testing.tools import call, check_tool
from rlenv.tools import search as bm25
from rlenv.tools.base import Tool
from rlenv.tools.search import KIND, SearchSpec
from tests.support import data

try:
    bm25._import_bm25()
except MissingExtra as error:
    pytest.skip(str(error), allow_module_level=True)

DOCUMENTS = [
    {"id": "a", "title": "Kite", "text": "A kite flies in the wind."},
    {"id": "b", "title": "Ball", "text": "A ball rolls and bounces."},
    {"id": "c", "title": "", "text": "Wind moves the mill."},
    {"id": "d", "title": "Twin", "text": "Exactly the same words."},
    {"id": "e", "title": "Twin", "text": "Exactly the same words."},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bm25._loaded.clear()  # as in a new process
    write(tmp_path / "corpus.jsonl", DOCUMENTS)
    return tmp_path


def write(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def compiled(folder: Path, **keys: Any) -> Tool:
    keys = {"path": "corpus.jsonl", "index": "cache", **keys}
    (tool,) = KIND.factory("search", SearchSpec(kind="search", **keys), CompileContext(base=folder))
    assert isinstance(tool, Tool)
    return tool


def found(tool: Tool, query: str) -> list[str]:
    return [one["id"] for one in asyncio.run(call(tool, {"query": query})).value]


def test_the_search_tool_keeps_the_laws_of_tools(folder: Path) -> None:
    check_tool(
        compiled(folder),
        good=[{"query": "wind"}, {"query": ""}, {"query": "☃"}, {"query": "wind " * 10_000}],
        bad=[{}, {"query": 1}, {"query": "wind", "k": 3}],
    )


def test_the_best_documents_are_shown_with_titles_and_numbers(folder: Path) -> None:
    result = asyncio.run(call(compiled(folder), {"query": "what does the WIND move?"}))
    assert result.text == "[1] Wind moves the mill.\n\n[2] Kite\nA kite flies in the wind."
    first = result.value[0]
    assert (first["id"], first["title"], first["text"]) == ("c", "", "Wind moves the mill.")
    assert first["score"] > result.value[1]["score"] > 0


def test_titles_are_searched_too(folder: Path) -> None:
    assert found(compiled(folder), "ball")[0] == "b"


def test_equal_scores_stand_in_the_corpuss_order(folder: Path) -> None:
    assert found(compiled(folder), "exactly same words") == ["d", "e"]
    assert found(compiled(folder, top_k=1), "exactly same words") == ["d"]


def test_a_search_without_a_match_says_so(folder: Path) -> None:
    result = asyncio.run(call(compiled(folder), {"query": "zebra"}))
    assert (result.text, result.value) == ("no documents match", [])


def test_long_documents_are_cut_where_they_are_shown_and_whole_as_value(folder: Path) -> None:
    write(folder / "corpus.jsonl", [{"title": "Long", "text": "long " * 1_000}, {"title": "x", "text": "y"}])
    result = asyncio.run(call(compiled(folder, max_chars=20), {"query": "long"}))
    assert result.text == "[1] Long\nlong long long long…"
    assert (result.value[0]["id"], len(result.value[0]["text"])) == ("1", 5_000)


def test_columns_may_have_other_names(folder: Path) -> None:
    write(
        folder / "corpus.jsonl", [{"key": "k", "name": "Kite", "body": "wind"}, {"key": "l", "name": "x", "body": "y"}]
    )
    assert found(compiled(folder, columns={"id": "key", "title": "name", "text": "body"}), "wind") == ["k"]


def test_the_index_is_kept_for_the_next_process_and_follows_the_content(folder: Path) -> None:
    first = found(compiled(folder), "wind")
    (kept,) = (folder / "cache").iterdir()
    bm25._loaded.clear()
    assert found(compiled(folder), "wind") == first
    write(folder / "corpus.jsonl", DOCUMENTS[:2])
    assert found(compiled(folder), "wind") == ["a"]
    assert kept in (folder / "cache").iterdir()
    assert len(list((folder / "cache").iterdir())) == 2


def test_a_broken_or_unwritable_cache_only_costs_time(folder: Path) -> None:
    first = found(compiled(folder), "wind")
    (kept,) = (folder / "cache").iterdir()
    for path in kept.iterdir():
        path.write_bytes(b"")
    bm25._loaded.clear()
    assert found(compiled(folder), "wind") == first
    shutil.rmtree(folder / "cache")
    (folder / "cache").write_text("a file where a folder should be", encoding="utf-8")
    bm25._loaded.clear()
    assert found(compiled(folder), "wind") == first


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no documents"),
        ('{"text": "a"}\nnot json\n', "corpus.jsonl:2: not JSON"),
        ('{"title": "a"}\n', "corpus.jsonl:1: expected an object with a text under 'text'"),
        ("[1]\n", "corpus.jsonl:1"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_the_authors_mistake(folder: Path, content: str, says: str) -> None:
    (folder / "corpus.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        compiled(folder)


def test_a_missing_corpus_is_the_authors_mistake(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        compiled(folder, path="gone.jsonl")


@pytest.mark.shared_data
def test_it_finds_the_supporting_articles_of_real_questions(tmp_path: Path) -> None:
    place = data.find("hotpot_search")
    tool = compiled(place, index=str(tmp_path))
    questions = [json.loads(line) for line in (place / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    hits = [
        title in {one["title"] for one in asyncio.run(call(tool, {"query": question["question"]})).value}
        for question in questions
        for title in question["sup"]
    ]
    assert sum(hits) / len(hits) > 0.6
