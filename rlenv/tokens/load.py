"""A tokenizer and its chat template from files, without transformers."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv.errors import MissingExtra, UsageError

__all__ = ["LoadedTokenizer", "end_ids_of", "load_tokenizer", "vocab_size_of"]

_CONFIGS = ("generation_config.json", "config.json")


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """What `TokenEncoder` reads of a tokenizer; the names are those of transformers."""

    backend_tokenizer: Any
    chat_template: str | None
    special_tokens_map: Mapping[str, str]
    eos_token: str | None
    name_or_path: str
    end_ids: tuple[int, ...] = ()
    """The ids that end a turn by the model's `generation_config.json`, or by its `config.json`; () without both."""


def load_tokenizer(place: str, *, template: str | None = None) -> LoadedTokenizer:
    """The tokenizer of a folder (`tokenizer.json` and `tokenizer_config.json`), of a file, or of a model by its name.

    A `generation_config.json` (or `config.json`) beside them names the ids that end a turn. A file that ends in .gz is
    unpacked. The chat template is `template` (a file), else `chat_template.jinja` beside it, else that of the
    configuration. A model's name is looked up in the Hugging Face hub, or in its cache.

    Raises:
        MissingExtra: `tokenizers` is not installed.
        UsageError: there is no such file, or it cannot be read.
    """
    try:
        from tokenizers import Tokenizer  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("token-exact trajectories", extra="tokens") from error
    path = Path(place)
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        names = ("tokenizer.json", "tokenizer.json.gz")
        found = next((folder / name for name in names if (folder / name).is_file()), None)
        if found is None:
            raise UsageError(f"{path} holds no tokenizer; expected {' or '.join(names)} in it")
        path = found
    elif not path.is_file():
        if "/" not in place or place.count("/") > 1 or place.startswith((".", "/")):
            raise UsageError(
                f"there is no tokenizer at {place}", hint="give a folder, a tokenizer.json, or a model's name"
            )
        folder = _fetched(place)
        path = folder / "tokenizer.json"
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        tokenizer = Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # tokenizers raises bare Exception on bad content
        raise UsageError(f"{path} is no tokenizer: {str(error)[:200]}") from error
    config: Mapping[str, Any] = {}
    beside = folder / "tokenizer_config.json"
    if beside.is_file():
        try:
            config = json.loads(beside.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UsageError(f"{beside} is not JSON: {error}") from error
    special = {key: _content(config[key]) for key in config if key.endswith("_token") and _content(config[key])}
    source = _read(template) if template else _template(config, folder)
    return LoadedTokenizer(tokenizer, source, special, special.get("eos_token"), place, end_ids_of(str(folder)))


def end_ids_of(*places: str) -> tuple[int, ...]:
    """The ids that end a turn by a model's `generation_config.json`, or by its `config.json` where that names none.

    Samplers stop at these, whatever the tokenizer's own end token is: Llama 3.1 has three, Qwen3 two.

    Args:
        places: folders, or names on the hub, looked up in its local cache alone; the first that names ids is taken.

    Raises:
        UsageError: a file is not JSON, or names what is no id.
    """
    for place in places:
        for name in _CONFIGS:
            found, inner, path = _config(place, name)
            ids = found.get("eos_token_id", inner.get("eos_token_id"))
            ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
            if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in ids):
                raise UsageError(f"{path}: eos_token_id is {ids!r}; expected an id or a list of ids")
            if ids:
                return tuple(ids)
    return ()


def vocab_size_of(*places: str) -> int | None:
    """The number of ids that a model may sample by its `config.json`, as its output layer is mostly padded beyond the
    tokenizer's; None where no place says. The places are those of `end_ids_of`."""
    for place in places:
        for found in _config(place, "config.json")[:2]:
            if isinstance(size := found.get("vocab_size"), int):
                return size
    return None


def _config(place: str, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any], Path]:
    """A configuration of a model, what it says of the part that writes text, and its file."""
    path = Path(place) / name
    if place and not path.is_file() and place.count("/") < 2 and not Path(place).exists():
        try:
            from huggingface_hub import try_to_load_from_cache

            path = Path(str(try_to_load_from_cache(place, name)))
        except (ImportError, ValueError):  # no name that the hub takes
            return {}, {}, path
    if not place or not path.is_file():
        return {}, {}, path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    config = config if isinstance(config, Mapping) else {}
    inner = config.get("text_config")
    return config, inner if isinstance(inner, Mapping) else {}, path


def _fetched(place: str) -> Path:
    """The folder in which the hub's client keeps the files of a model."""
    from huggingface_hub import hf_hub_download  # comes with tokenizers

    try:
        found = Path(hf_hub_download(place, "tokenizer.json"))
    except Exception as error:  # the hub's client raises errors of many libraries
        raise UsageError(f"the tokenizer of {place} cannot be fetched: {str(error)[:200]}") from error
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json", "config.json"):
        with contextlib.suppress(Exception):  # a model need not have them all
            hf_hub_download(place, name)
    return found.parent


def _content(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template(config: Mapping[str, Any], folder: Path) -> str | None:
    """The template of a file of its own, which wins as with transformers, or of the configuration."""
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return _read(str(beside))
    own = config.get("chat_template")
    if isinstance(own, list):
        by_name = {str(entry.get("name")): entry.get("template") for entry in own if isinstance(entry, Mapping)}
        own = by_name.get("tool_use", by_name.get("default"))
    return own if isinstance(own, str) else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the chat template {path} cannot be read: {error}") from error
