"""The `search` tool: BM25 over a corpus of one JSON object a line.

The text shows the best documents, best first, with a blank line between them:

    [1] Title
    text

    [2] Another title
    text

A corpus and its BM25 index, built once for each content and shared between processes through a folder on disk.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import Field

from rlenv._base.bounded import cut_end
from rlenv._base.paths import names_in, read_file, user_cache
from rlenv._base.text import did_you_mean
from rlenv.errors import MissingExtra, UsageError, told_as
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Int, Spec, Text, ToolSpec
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common

_MAX_INDEX_QUERY: Final = 10_000
"""Characters of a query that are read; a longer one finds nothing better and takes longer."""
_WORD: Final = re.compile(r"\b\w\w+\b")
_LINE: Final = "write one JSON object a line"
_FORMAT: Final = "1"  # raise it whenever the words or the parameters of the index change
_MAX_CORPUS: Final = 20_000_000_000
_lock = threading.Lock()
_loaded: dict[str, Index] = {}


@dataclass(frozen=True, slots=True)
class Document:
    """One line of a corpus; `title` is "" where it has none."""

    id: str
    title: str
    text: str


class Index:
    """BM25 over documents, as bm25s computes it (the Lucene variant with k1 = 1.5, b = 0.75, English stop words)."""

    __slots__ = ("_numpy", "_scorer", "_stop", "digest", "documents")

    def __init__(self, documents: Sequence[Document], scorer: Any, stop: frozenset[str], *, digest: str = "") -> None:
        self.digest = digest
        self.documents = documents
        self._scorer = scorer
        self._stop = stop
        self._numpy: Any = importlib.import_module("numpy")

    def search(self, query: str, *, top_k: int) -> list[tuple[Document, float]]:
        """The best documents with their scores, best first; equal scores in the corpus's order; none that scores 0."""
        words = _split_words(query[:_MAX_INDEX_QUERY], self._stop)
        if not words:
            return []
        scores = self._scorer.get_scores(words)
        found = self._numpy.flatnonzero(scores > 0)
        if len(found) > top_k:
            # All that tie with the last one stay in, so that the order decides and not the partition.
            least = self._numpy.partition(scores[found], len(found) - top_k)[len(found) - top_k]
            found = found[scores[found] >= least]
        order = self._numpy.argsort(-scores[found], kind="stable")[:top_k]
        return [(self.documents[place], round(float(scores[place]), 4)) for place in found[order].tolist()]


def _split_words(text: str, stop: frozenset[str]) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in stop]


def _import_bm25() -> Any:
    with told_as(MissingExtra, "the search tool", ImportError, extra="search"):
        return importlib.import_module("bm25s")


def load_index(corpus: Path, *, fields: Mapping[str, str], cache: Path | None = None) -> Index:
    """The index of a JSON Lines file, from the process or the folder where it was built before.

    Args:
        fields: the names of the columns `id`, `title` and `text`; only the text has to be there.
        cache: the folder that processes share; the user's cache folder by default.

    Raises:
        MissingExtra: bm25s is not installed.
        UsageError: the corpus cannot be read; the message names the line.
    """
    library = _import_bm25()
    try:
        content = read_file(corpus, most=_MAX_CORPUS)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        hint = did_you_mean(corpus.name, names_in(corpus.parent), otherwise="name a file that is there")
        raise UsageError(f"cannot read {corpus}: {why}", key="path", hint=hint) from error
    parts = [_FORMAT, str(library.__version__), *(f"{key}={fields[key]}" for key in sorted(fields))]
    digest = hashlib.sha256(content + "\0".join(parts).encode()).hexdigest()[:32]
    with _lock:
        if digest not in _loaded:
            documents = _parse_documents(content, corpus, fields)
            stop = frozenset(importlib.import_module("bm25s.stopwords").STOPWORDS_EN)
            folder = (cache or user_cache()) / f"bm25-{digest}"
            scorer = _load_index(library, folder) or _build_index(library, folder, documents, stop)
            _loaded[digest] = Index(documents, scorer, stop, digest=digest)
        return _loaded[digest]


def _parse_documents(content: bytes, corpus: Path, fields: Mapping[str, str]) -> list[Document]:
    found: list[Document] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UsageError(f"{corpus.name}:{number}: not JSON: {error}", key="path", hint=_LINE) from error
        text = row.get(fields["text"]) if isinstance(row, dict) else None
        if not isinstance(text, str):
            message = f"{corpus.name}:{number}: expected an object with a text under '{fields['text']}'"
            raise UsageError(message, key="path", hint=_LINE)
        title = row.get(fields["title"])
        found.append(Document(str(row.get(fields["id"], number)), title if isinstance(title, str) else "", text))
    if not found:
        raise UsageError(f"{corpus.name} has no documents", key="path", hint=_LINE)
    return found


def _load_index(library: Any, folder: Path) -> Any:
    if not folder.is_dir():
        return None
    try:
        return library.BM25.load(str(folder), mmap=True)
    except (OSError, ValueError, KeyError, EOFError):  # a broken cache is built again
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _build_index(library: Any, folder: Path, documents: Sequence[Document], stop: frozenset[str]) -> Any:
    scorer = library.BM25()
    scorer.index([_split_words(f"{one.title}\n{one.text}", stop) for one in documents], show_progress=False)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="bm25-new-") as made:
            built = Path(made) / "index"
            scorer.save(str(built), show_progress=False)
            built.rename(folder)  # all of it or nothing; another process may have been quicker
    except OSError:
        pass  # without a cache the next process builds it again
    return scorer


_INLINE_DOCUMENTS = 10_000
_MAX_QUERY = 2_000


class SearchFields(Spec):
    """The keys of a line that hold id, title and text."""

    id: Text = "id"
    """The document's name in values; the line's number where it is missing."""
    title: Text = "title"
    """The title, shown and searched; none where it is missing."""
    text: Text = "text"
    """The text."""


class SearchSpec(ToolSpec):
    """Searches a corpus by words (BM25)."""

    kind: Literal["search"]
    path: Text
    """A .jsonl file, relative to the spec: one document a line."""
    top_k: Annotated[Int, Field(ge=1, le=100)] = 3
    """How many documents a search gives."""
    columns: SearchFields = SearchFields()
    """The names of the keys in the corpus."""
    max_chars: Annotated[Int, Field(ge=16)] = 2_000
    """A document's text is cut to this many characters where it is shown."""
    index: Text | None = None
    """A folder for the index, relative to the spec; the user's cache folder otherwise."""


def compile_search(name: str, spec: SearchSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool with the argument `query`; its value is a list of `{id, title, text, score}`.

    The index is built here, or read from the cache.

    Raises:
        MissingExtra: bm25s is not installed.
        UsageError: the corpus cannot be read.
    """
    index = load_index(
        context.path("path", spec.path),
        fields=spec.columns.model_dump(),
        cache=context.path("index", spec.index) if spec.index is not None else None,
    )
    top_k, max_chars = spec.top_k, spec.max_chars

    def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        found = index.search(arguments["query"][:_MAX_QUERY], top_k=top_k)
        if not found:
            return ToolOutput("no documents match", [])
        shown = []
        for number, (document, _) in enumerate(found, start=1):
            text = cut_end(document.text, max_chars)
            shown.append(f"[{number}] {document.title}\n{text}" if document.title else f"[{number}] {text}")
        value = [
            {"id": document.id, "title": document.title, "text": document.text, "score": score}
            for document, score in found
        ]
        return ToolOutput("\n\n".join(shown), value)

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "Words to look for."}},
        "required": ["query"],
    }
    return (
        Tool(
            name=name,
            description=spec.description or "Search documents by words; the best matches are shown.",
            parameters=parameters,
            run=run,
            mode="inline" if len(index.documents) <= _INLINE_DOCUMENTS else "thread",
            depends_on="arguments",
            identity=index.digest,
            **common(spec, idempotent=True),
        ),
    )


KIND = Kind(SearchSpec, compile_search, is_local=True)
