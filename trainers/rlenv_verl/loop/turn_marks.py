"""What neither tokenizer nor chat template say of a policy: which ids it has, and what ends its turns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = ["end_ids_of", "vocab_size_of"]

_ANY: Final = 2**31 - 1
_FILES = ("generation_config.json", "config.json")


@cache
def end_ids_of(*places: str) -> tuple[int, ...]:
    """The ids that end a turn by a model's `generation_config.json`, or by its `config.json` where that names none.

    Samplers stop at these, whatever the tokenizer's own end token is: Llama 3.1 has three, Qwen3 two.

    Args:
        places: folders or names on the hub; the first that names ids is taken. A name is looked up in the hub's local
            cache alone: whoever trains or samples has loaded the model already.

    Returns:
        Sorted; () where no place names any.
    """
    for place in places:
        for name in _FILES:
            config = _config(place, name)
            if config is not None and (ids := _ids(config)):
                return tuple(sorted(ids))
    return ()


@cache
def vocab_size_of(*places: str) -> int:
    """How many ids a model may sample by its `config.json`: its output layer is mostly padded beyond the tokenizer's.

    Args:
        places: as for `end_ids_of`.

    Returns:
        `_ANY` where no place says: what a model sampled is its own, whatever the tokenizer knows, and no policy may end
        its own sample by an id.
    """
    for place in places:
        config = _config(place, "config.json") or {}
        inner = config.get("text_config")
        for found in (config, inner if isinstance(inner, Mapping) else {}):
            if isinstance(size := found.get("vocab_size"), int):
                return size
    return _ANY


def _config(place: str, name: str) -> Mapping[str, Any] | None:
    path = Path(place) / name
    if not place:
        return None
    if not path.is_file():
        from transformers.utils.hub import cached_file

        if Path(place).exists():
            return None
        try:
            at = cached_file(place, name, local_files_only=True, _raise_exceptions_for_missing_entries=False)
        except (OSError, ValueError):  # no model of this name was loaded here
            return None
        if at is None:
            return None
        path = Path(at)
    config = json.loads(path.read_text(encoding="utf-8"))
    return config if isinstance(config, Mapping) else None


def _ids(config: Mapping[str, Any]) -> set[int]:
    inner = config.get("text_config")
    found = config.get("eos_token_id")
    if found is None and isinstance(inner, Mapping):
        found = inner.get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    return {number for number in ids if isinstance(number, int) and not isinstance(number, bool)}
