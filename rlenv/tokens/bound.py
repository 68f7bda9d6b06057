"""A model's tokenizer, loaded from its folder, and bound to an environment."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlenv.dialects.base import Cut, cut_chars
from rlenv.errors import MissingExtra, UsageError, told_as
from rlenv.messages import Message, ParsedAction, ToolCall
from rlenv.tokens.encoder import History, TokenEncoder
from rlenv.tokens.images import ProcessorImages

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

__all__ = ["LoadedTokenizer", "bind", "cut_of", "end_ids_of", "load_tokenizer", "said_of", "thinking_of"]
__all__ += ["vocab_size_of"]

_ANY: Final = 2**31 - 1


def bind(
    tokenizer: Any,
    environment: Environment,
    *,
    history: History = "grow",
    chat_template: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    stop: str | Sequence[str] | None = None,
    images: ProcessorImages | None = None,
    model: str = "",
) -> TokenEncoder:
    """The encoder with which an environment's episodes are played: its dialect says where turns go on and think.

    Args:
        tokenizer: a fast tokenizer of transformers, or what `TokenEncoder` takes beside.
        model: the folder or the name on the hub of the model that samples; by default the tokenizer's own. Its
            configuration says which ids end a turn, and how many there are: with a `model` whose configuration does
            not say it, an id that no token has is the policy's own.

    Raises:
        UnsupportedTemplate: as `TokenEncoder` does.
        UsageError: as `TokenEncoder` does.
    """
    places = [place for place in (model, str(getattr(tokenizer, "name_or_path", ""))) if place]
    return TokenEncoder(
        tokenizer,
        chat_template=chat_template,
        template_kwargs=template_kwargs,
        stop=stop,
        end_ids=end_ids_of(*places),
        vocab_size=vocab_size_of(*places) or (_ANY if model else None),
        same_turn=environment.same_turn,
        images=images,
        history=history,
        thinking=thinking_of(environment),
    )


def thinking_of(environment: Environment) -> tuple[tuple[str, str], ...]:
    """The marks around thinking in the environment's dialect; () where it has none.

    A dialect of a plug-in need not say; `<think>` and `</think>` are taken then.
    """
    marks = getattr(getattr(environment.parts.dialect, "spec", None), "thinking_marks", None)
    if marks is None:
        return (("<think>", "</think>"),)
    return tuple((open, close) for open, close in ((marks.open, marks.close), *marks.also.items()) if open and close)


def cut_of(environment: Environment, encoder: TokenEncoder) -> Cut:
    """The cut of results: by the spec's characters, and by its tokens as the policy's tokenizer counts them."""
    spec = environment.spec.observation
    by_chars = cut_chars(spec.model_copy(update={"max_tokens": None}))
    if spec.max_tokens is None:
        return lambda text: by_chars(text)  # a cut of the caller's own: limits are then counted in tokens
    by_tokens = encoder.cut(max_tokens=spec.max_tokens, keep=spec.keep)
    return lambda text: by_tokens(by_chars(text))


def said_of(text: str, parsed: ParsedAction, *, thinking: Sequence[tuple[str, str]]) -> Message:
    """The assistant's message of an action, as a server that reads the family's text would give it back.

    Content, thinking and calls are what the dialect read. A call that cannot be read has no structured form: the whole
    text behind the thinking is the content then, as it is with such a server.
    """
    if all(isinstance(call, ToolCall) for call in parsed.calls):
        return parsed.said
    if parsed.thinking:
        for _, close in thinking:
            text = text.partition(close)[2] or text
    return Message("assistant", text.strip(), thinking=parsed.thinking)


_CONFIGS = ("generation_config.json", "config.json")


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """The part of a tokenizer that `TokenEncoder` reads; the names are those of transformers."""

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
    with told_as(MissingExtra, "token-exact trajectories", ImportError, extra="tokens"):
        from tokenizers import Tokenizer  # type: ignore[import-untyped]
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
        folder = _hub_folder(place)
        path = folder / "tokenizer.json"
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        tokenizer = Tokenizer.from_str(raw.decode("utf-8"))
    except Exception as error:  # tokenizers raises bare Exception on bad content
        raise UsageError(f"{path} is no tokenizer: {str(error)[:200]}") from error
    config: Mapping[str, Any] = {}
    beside = folder / "tokenizer_config.json"
    if beside.is_file():
        with told_as(UsageError, f"{beside} is not JSON:", ValueError):
            config = json.loads(beside.read_text(encoding="utf-8"))
    special = {key: _token_text(config[key]) for key in config if key.endswith("_token") and _token_text(config[key])}
    source = _read(template) if template else _find_template(config, folder)
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
            found, inner, path = _read_config(place, name)
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
        for found in _read_config(place, "config.json")[:2]:
            if isinstance(size := found.get("vocab_size"), int):
                return size
    return None


def _read_config(place: str, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any], Path]:
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
    with told_as(UsageError, f"{path} is not JSON:", ValueError):
        config = json.loads(path.read_text(encoding="utf-8"))
    config = config if isinstance(config, Mapping) else {}
    inner = config.get("text_config")
    return config, inner if isinstance(inner, Mapping) else {}, path


def _hub_folder(place: str) -> Path:
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


def _token_text(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _find_template(config: Mapping[str, Any], folder: Path) -> str | None:
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
    with told_as(UsageError, f"the chat template {path} cannot be read:", OSError, UnicodeDecodeError):
        return Path(path).read_text(encoding="utf-8")
