"""An episode as a page shows it: its messages, calls, reward and token rows."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlenv._base.bounded import encodable, plain, stretches
from rlenv.errors import RlenvError, UsageError, told_as
from rlenv.images import bare_image
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.tools import MOST, asked_in, group_of, members
from rlenv.runs.files import Body, nested
from rlenv.runs.recorded import expected_of
from rlenv.runs.schema import Tokens
from rlenv.runs.usage import spending_of_usage
from rlenv.runs.usage import spending_page as words
from rlenv.trajectory import Trajectory
from rlenv.web.shelf import OpenRun

CUT_CHARS: Final = 20_000
_MAX_PLACES: Final = 5
_MOST_SAID: Final = 64
_MIN_EVIDENCE: Final = 3
_MIMES: Final = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}
_MOST_PIXELS: Final = 50_000_000
"""Of an image that a page is given: a browser takes four bytes for each, however small the file is."""
_BLOBS: Final = 64
_BLOB_BYTES: Final = 64_000_000
_NAMED: Final = 100_000


@dataclass(slots=True, eq=False)
class ImageCache:
    """Images of records by the SHA-256 of their bytes; those of the episodes that were looked at."""

    _places: OrderedDict[tuple[str, str], tuple[str, str]] = field(default_factory=OrderedDict)
    _held: OrderedDict[str, bytes] = field(default_factory=OrderedDict)

    def name(self, run: str, id: str, path: str, image: Mapping[str, Any]) -> dict[str, str]:
        """The value in the image's place: its media type and its name."""
        data = _decode_image(image)
        sha = hashlib.sha256(data).hexdigest()
        self._places[run, sha] = (id, path)
        self._hold_image(sha, data)
        while len(self._places) > _NAMED:
            self._places.popitem(last=False)
        return {"mime": str(image.get("mime", ""))[:100], "sha": sha}

    def _hold_image(self, sha: str, data: bytes) -> None:
        self._held[sha] = data
        while len(self._held) > _BLOBS or sum(map(len, self._held.values())) > _BLOB_BYTES:
            self._held.popitem(last=False)

    def image(self, run: OpenRun, sha: str) -> tuple[str, bytes]:
        """The media type and the bytes of an image, without all that a picture does not need.

        Raises:
            UsageError: no record that was looked at has it, or its bytes are no image, or one of too many pixels.
        """
        place = self._places.get((run.key, sha))
        if place is None:
            raise UsageError("no such image was looked at", hint="open its episode first")
        data = self._held.get(sha)
        if data is None:
            data = _decode_image(_value_at(run.episodes.body(place[0]).as_json(), place[1]))
            if hashlib.sha256(data).hexdigest() != sha:
                raise UsageError("the image is not there any more")
            self._hold_image(sha, data)
        found = bare_image(data)
        if found is None:
            raise UsageError("it is no PNG, JPEG, WebP or GIF")
        width, height = found.size
        if width * height > _MOST_PIXELS:
            raise UsageError(f"the image has {width} × {height} pixels, and more than {_MOST_PIXELS:,} are not shown")
        return _MIMES[found.form], found.data


def _decode_image(image: Mapping[str, Any]) -> bytes:
    try:
        return base64.b64decode(image["base64"], validate=True)
    except (binascii.Error, ValueError, TypeError):
        return b""


def _value_at(value: Any, path: str) -> Any:
    """The value at a dotted path. Raises UsageError: nothing does."""
    for part in path.split(".") if path else ():
        with told_as(UsageError, f"the record has nothing at '{path[:200]}'", LookupError, ValueError, TypeError):
            value = value[int(part)] if isinstance(value, list) else value[part.replace("~1", ".")]
    return value


def text_at(record: Any, path: str) -> str:
    """A text of a record in full.

    Raises:
        UsageError: there is none at the path.
    """
    found = _value_at(record, path)
    if not isinstance(found, str):
        raise UsageError(f"'{path[:200]}' is no text of the record", hint="such as turns.3.results.0.text")
    return found


def show_record(run: OpenRun, id: str, record: Any, blobs: ImageCache) -> tuple[Any, dict[str, int]]:
    """A record for a page: images as `{"mime", "sha"}`, long texts cut and "…" behind them; and by the path of each
    text that is cut how many characters are left out."""
    cuts: dict[str, int] = {}

    def shorten(value: Any, path: str) -> Any:
        if isinstance(value, str):
            if len(value) <= CUT_CHARS:
                return value
            cuts[path] = len(value) - CUT_CHARS
            return value[:CUT_CHARS] + "…"
        if isinstance(value, dict):
            if isinstance(value.get("base64"), str) and "mime" in value:
                return blobs.name(run.key, id, path, value)
            below = path + "." if path else ""
            return {key: shorten(item, f"{below}{key.replace('.', '~1')}") for key, item in value.items()}
        if isinstance(value, list):
            if len(value) > CUT_CHARS:
                cuts[path] = len(value) - CUT_CHARS
                value = value[:CUT_CHARS]
            return [shorten(item, f"{path}.{index}") for index, item in enumerate(value)]
        return value

    return shorten(record, ""), cuts


def evidence_places(record: Mapping[str, Any]) -> dict[str, list[dict[str, int]] | None]:
    """By term, where its evidence stands: spans of characters in messages, by their index; None where it is not found.

    Messages are counted as they were said: the prompt's, then of each turn its action and what was observed. What the
    term says itself counts (`where`), as far as there are such places; else the evidence is looked for, from the last
    message on.
    """
    messages = [str(message.get("content", "")) for message in record.get("messages", ())]
    for turn in record.get("turns", ()):
        observed = (turn.get("observation") or {}).get("messages", ())
        messages += [str(turn.get("action", "")), *(str(message.get("content", "")) for message in observed)]
    found: dict[str, list[dict[str, int]] | None] = {}
    for name, term in record["reward"]["terms"].items():
        if said := term.get("where"):
            found[name] = [
                {"message": message, "start": start, "end": end}
                for message, start, end in said[:_MOST_SAID]
                if 0 <= message < len(messages) and 0 <= start < end <= len(messages[message])
            ] or None
            continue
        evidence = str(term.get("evidence") or "").removesuffix("…").strip()
        places: list[dict[str, int]] = []
        for index in reversed(range(len(messages))) if len(evidence) >= _MIN_EVIDENCE else ():
            start = messages[index].find(evidence)
            if start >= 0:
                places.append({"message": index, "start": start, "end": start + len(evidence)})
        found[name] = places[:_MAX_PLACES] or None
    return found


def nested_episodes(trajectory: Trajectory, at: str = "") -> dict[str, Trajectory]:
    """By the path of its call's result, each episode that an agent played in a call and that was kept whole, at any
    depth; the outer one first.

    What else a tool has put in the place of one is left out.
    """
    found: dict[str, Trajectory] = {}
    for turn, calls in enumerate(trajectory.turns):
        for index, result in enumerate(calls.results):
            path = f"{at}turns.{turn}.results.{index}"
            with suppress(UsageError):
                if (inside := nested(result)) is not None:
                    found |= {path: inside, **nested_episodes(inside, f"{path}.details.trajectory.")}
    return found


def _open_nested(body: Body, whole: Any) -> list[str]:
    """The paths of the nested episodes of a record, in which they are written out: a page then reads every field."""
    found = nested_episodes(body.trajectory()) if b'"trajectory"' in body.record else {}
    for path, inside in found.items():
        _value_at(whole, path)["details"]["trajectory"] = plain(inside)
    return list(found)


def episode_page(run: OpenRun, id: str, blobs: ImageCache, *, query: str = "", sort: str = "") -> dict[str, Any]:
    """All that the page of one episode shows; its neighbours are those of the list with this query and order.

    Raises:
        UsageError: there is no such episode.
    """
    rows = run.rows()
    place = rows.place(id)
    if place is None:
        raise UsageError(f"'{id[:100]}' is no episode of this run")
    (row,) = rows.rows([place])
    record: Any = None
    cuts: dict[str, int] = {}
    where: dict[str, Any] = {}
    expected: dict[str, str] = {}
    inside: list[str] = []
    missing = ""
    try:
        body = run.episodes.body(id)
        whole = body.as_json()
        inside = _open_nested(body, whole)
        where = evidence_places(whole)
        expected = expected_of(run.folder, row["lock"], whole["task"])
        record, cuts = show_record(run, id, whole, blobs)
    except UsageError as error:
        missing = str(error)
    late = {name: row.get(name) for name in ("fate", "why", "advantage", "staleness")}
    return {
        "row": row,
        "record": record,
        "missing": missing,
        "cuts": cuts,
        "where": where,
        "expected": expected,
        "nested": inside,
        "late": late,
        "neighbours": _neighbours(run, place, query, sort),
        "group": _group_figures(rows, place, row),
        "calls": rows.calls_of(id),
        "spending": words(spending_of_usage(asked_in([{"usage": rows.usage_of(id)}]), prices=run.prices)),
        "lock": row["lock"],
    }


def _group_figures(rows: Snapshot, place: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """The group of an episode: how many it has, and the ids of those next to it by reward, its own among them."""
    group = group_of(row)
    places = members(rows, row["step"], group)
    first = max(0, int(np.argmax(places == place)) - MOST // 2)
    ids = rows.table["id"].take(places[first : first + MOST]).to_pylist()
    return {"step": row["step"], "group": group, "samples": len(places), "ids": ids}


def _neighbours(run: OpenRun, place: int, query: str, sort: str) -> dict[str, str | None]:
    rows = run.rows()
    places = run.places(query, sort)
    at = np.nonzero(places == place)[0]
    if not len(at):
        return {"prev": None, "next": None}
    index, ids = int(at[0]), rows.table["id"]
    before = ids[int(places[index - 1])].as_py() if index else None
    after = ids[int(places[index + 1])].as_py() if index + 1 < len(places) else None
    return {"prev": before, "next": after}


_NAMED_TOKENS: Final = ("tokenizer", "model", "model_path")
"""Facts of a run that may name a folder with a tokenizer."""
_OWN: Final = "model"
"""Where `rlenv train` keeps the policy that it begins with, in the run's own folder."""

Pieces = Callable[[Sequence[int]], list[str]]


def token_rows(run: OpenRun, id: str) -> dict[str, Any]:
    """The rows of ids of an episode, prompt and response in one; `pieces` are the ids as text without a tokenizer.

    In each row `pieces`, `ids`, `mask` and `logprobs` (null for the prompt; the whole null where none are known) align.

    Raises:
        UsageError: there is no such episode, or its body was not kept.
    """
    body = run.episodes.body(id)
    pieces = _pieces_of(run)
    place = run.rows().place(id)
    advantage = None if place is None else run.rows().table["advantage"][place].as_py()
    rows = [_token_row(row, pieces) for row in body.tokens]
    return {"rows": rows, "advantage": advantage, "tokenizer": pieces is not None}


def _token_row(row: Tokens, pieces: Pieces | None) -> dict[str, Any]:
    prompt, ids = [int(one) for one in row.prompt_ids], [int(one) for one in row.ids]
    whole = prompt + ids
    mask = "".join("1" if one else "0" for one in row.mask)
    logprobs: list[float | None] | None = None
    if len(row.logprobs):
        logprobs = [None] * len(prompt) + [float(one) for one in row.logprobs]
    return {
        "n": len(whole),
        "prompt": len(prompt),
        "runs": spans(len(prompt), len(ids), row.turns, row.mask),
        "pieces": pieces(whole) if pieces else [str(one) for one in whole],
        "ids": whole,
        "logprobs": logprobs,
        "mask": "0" * len(prompt) + mask,
    }


def spans(prompt: int, response: int, turns: Sequence[tuple[int, int]], mask: Sequence[int]) -> list[dict[str, Any]]:
    """Stretches of a row by where its tokens come from, in order and without a gap: `start`, `end` (exclusive), `kind`.

    What was sampled is told by the spans of turns, and by the mask where there are none.
    """
    found: list[tuple[int, int, str]] = [(0, prompt, "prompt")]
    sampled = list(turns) if len(turns) else stretches(mask)
    at = 0
    for start, end in sorted(sampled):
        found += [(prompt + at, prompt + start, "observation"), (prompt + start, prompt + end, "sampled")]
        at = max(at, end)
    found.append((prompt + at, prompt + response, "observation"))
    return [{"start": start, "end": end, "kind": kind} for start, end, kind in found if end > start]


def _pieces_of(run: OpenRun) -> Pieces | None:
    """A function that turns ids into texts, None where the run names no tokenizer that is on this machine."""
    info = run.info
    named = [*(info.facts.get(name) for name in _NAMED_TOKENS), info.policy, info.model] if info else []
    # The run's own copy comes last: `run.json` names it where it was made, and the folder may have been moved since.
    for place in (*named, str(run.folder / _OWN)):
        if isinstance(place, str) and place and Path(place).exists():  # a name alone would be asked for at its hub
            found = _load_pieces(place)
            if found is not None:
                return found
    return None


@lru_cache(maxsize=4)
def _load_pieces(place: str) -> Pieces | None:
    from rlenv.tokens.bound import load_tokenizer

    try:
        tokenizer = load_tokenizer(place).backend_tokenizer
    except RlenvError:
        return None
    known: dict[int, str] = {}

    def pieces(ids: Sequence[int]) -> list[str]:
        for one in set(ids) - known.keys():
            text = tokenizer.decode([one], skip_special_tokens=False)
            # A part of a letter decodes to a replacement mark: it is shown by the name that its vocabulary has.
            name = tokenizer.id_to_token(one)
            known[one] = encodable(name if "\ufffd" in text and name else text or name or str(one))
        return [known[one] for one in ids]

    return pieces
