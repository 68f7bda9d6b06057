"""An episode's tokens for its page: what the policy saw, what it sampled, what was trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rlenv._base.bounded import encodable
from rlenv.errors import RlenvError
from rlenv.runs.schema import Tokens
from rlenv.web.shelf import OpenRun

__all__ = ["spans", "token_rows"]

_NAMED: Final = ("tokenizer", "model", "model_path")
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
    rows = [_row(row, pieces) for row in body.tokens]
    return {"rows": rows, "advantage": advantage, "tokenizer": pieces is not None}


def _row(row: Tokens, pieces: Pieces | None) -> dict[str, Any]:
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
    sampled = list(turns) if len(turns) else _stretches(mask)
    at = 0
    for start, end in sorted(sampled):
        found += [(prompt + at, prompt + start, "observation"), (prompt + start, prompt + end, "sampled")]
        at = max(at, end)
    found.append((prompt + at, prompt + response, "observation"))
    return [{"start": start, "end": end, "kind": kind} for start, end, kind in found if end > start]


def _stretches(mask: Sequence[int]) -> list[tuple[int, int]]:
    found, start = [], -1
    for at, one in enumerate([*mask, 0]):
        if one and start < 0:
            start = at
        elif not one and start >= 0:
            found.append((start, at))
            start = -1
    return found


def _pieces_of(run: OpenRun) -> Pieces | None:
    """What turns ids into texts, None where the run names no tokenizer that is on this machine."""
    info = run.info
    named = [*(info.facts.get(name) for name in _NAMED), info.policy, info.model] if info else []
    # The run's own copy comes last: `run.json` names it where it was made, and the folder may have been moved since.
    for place in (*named, str(run.folder / _OWN)):
        if isinstance(place, str) and place and Path(place).exists():  # a name alone would be asked for at its hub
            found = _loaded(place)
            if found is not None:
                return found
    return None


@lru_cache(maxsize=4)
def _loaded(place: str) -> Pieces | None:
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
