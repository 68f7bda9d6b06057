"""A model where people have it, as the folder that transformers, veRL and vLLM load.

`local_model` takes what `--model` takes; `lacks` says before anything starts what such a model is missing. Importing
this loads no heavy library: transformers, torch and gguf are imported where a GGUF file is dequantised.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rlenv._base.text import did_you_mean
from rlenv.episodes.environment import Environment
from rlenv.errors import MissingExtra, RlenvError, UsageError, told_as
from rlenv.messages import Message
from rlenv.models import architecture
from rlenv.models.architecture import Looked, quiet, weights_in
from rlenv.models.chat_templates import judge_marks, judge_template, judge_tools, marks_in
from rlenv.models.gguf import dequantised, found_in_package, gguf_in, is_package
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import LoadedTokenizer, load_tokenizer
from rlenv.tokens.verdict import opened_prompts

__all__ = ["Looked", "first_prompts", "lacks", "local_model", "local_tokenizer", "looked_at", "quiet"]
__all__ += ["shipped_templates", "template_text", "weights_in"]

_FORM: Final = 1
_OWN: Final = frozenset(
    {"tokenizer_config.json", "generation_config.json", "chat_template.jinja", "chat_template.json"}
)
"""Files that hold a template or the marks that end its turns: written anew, not linked."""
_OWN_FOLDERS: Final = frozenset({"additional_chat_templates"})


def shipped_templates() -> tuple[str, ...]:
    """The names of the chat templates that ship with rlenv."""
    inside = (resources.files(__package__) / "templates").iterdir()
    return tuple(sorted(item.name.removesuffix(".jinja") for item in inside if item.name.endswith(".jinja")))


def template_text(given: str | Path) -> str:
    """The text of a chat template: of a file, or of one that ships, by its name. A file of that name goes first.

    Raises:
        UsageError: there is neither, or the file cannot be read.
    """
    path = Path(given)
    if path.is_file():
        with told_as(UsageError, f"the chat template {path} cannot be read:", OSError, UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise UsageError(f"the chat template {path} is empty")
        return text
    known = shipped_templates()
    if str(given) in known:
        return (resources.files(__package__) / "templates" / f"{given}.jinja").read_text(encoding="utf-8")
    hint = did_you_mean(str(given), known, otherwise=f"give a file, or one that ships: {', '.join(known)}")
    raise UsageError(f"there is no chat template {given}", hint=hint)


def with_template(place: str, given: str | Path, keep: Path | None = None) -> Path:
    """The model at `place`, a folder or a hub name, with the chat template `given`.

    Weights and all else are links to the model's files. `chat_template.jinja` is the template; the tokenizer's end and
    padding marks are those of `chat_templates` for it, and `generation_config.json` has all ids that end a turn.

    Args:
        keep: where the folder lies; in the user's cache where None.

    Raises:
        UsageError: no such model or template, or `keep` holds something else.
        UnsupportedTemplate: the text is no template.
    """
    source = template_text(given)
    # A mistake in the template is told here, and not by a server.
    from rlenv.tokens.vocabulary import ChatTemplate

    ChatTemplate(source, name=str(given), values={})
    folder = _folder_of(place)
    digest = _digest(folder, source)
    if keep is None:
        stem = architecture.named_after(folder.name)
        return architecture.made_once(
            architecture.cache_folder() / f"{stem}-templated-{digest[:12]}",
            lambda new: _make_folder(folder, source, new, digest),
        )
    keep = keep.absolute()
    if architecture.read_manifest(keep).get("digest") != digest:
        if keep.exists() and (not keep.is_dir() or any(keep.iterdir())) and not architecture.read_manifest(keep):
            raise UsageError(
                f"{keep} holds something else already", hint="the model with its template needs a new folder"
            )
        (keep / "rlenv_model.json").unlink(missing_ok=True)
    elif architecture.is_whole(keep):
        return keep
    return architecture.made_once(keep, lambda new: _make_folder(folder, source, new, digest))


def with_tokenizer_template(tokenizer: LoadedTokenizer, source: str) -> LoadedTokenizer:
    """A tokenizer with another chat template, and the marks that `with_template` would write for it."""
    marks = marks_in(tokenizer, source)[0]
    special = dict(tokenizer.special_tokens_map)
    special |= {f"{name}_token": text for name, text in (("eos", marks.eos), ("pad", marks.pad)) if text is not None}
    return replace(
        tokenizer,
        chat_template=source,
        special_tokens_map=special,
        eos_token=marks.eos or tokenizer.eos_token,
        end_ids=marks.ends or tokenizer.end_ids,
    )


def _folder_of(place: str) -> Path:
    path = Path(place).expanduser()
    if path.is_dir():
        return path.absolute()
    with told_as(MissingExtra, f"a model of the hub ({place})", ImportError, extra="hub"):
        from huggingface_hub import snapshot_download
    try:
        ignored = ["*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.pth", "original/*"]
        return Path(snapshot_download(place, ignore_patterns=ignored))
    except Exception as error:  # the hub's client raises errors of many libraries
        raise UsageError(f"{place} is no folder, and cannot be had from the hub: {str(error)[:200]}") from error


def _digest(folder: Path, source: str) -> str:
    """Of the template, and of the model's files by name, size and time of change."""
    seen: list[Any] = [_FORM, source, str(folder)]
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            seen.append([str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(json.dumps(seen).encode("utf-8", "surrogatepass")).hexdigest()


def _make_folder(folder: Path, source: str, new: Path, digest: str) -> dict[str, Any]:
    for path in sorted(folder.iterdir()):
        if path.name in _OWN or path.name in _OWN_FOLDERS or path.name == "rlenv_model.json":
            continue
        (new / path.name).symlink_to(path.resolve(), target_is_directory=path.is_dir())
    tokenizer = load_tokenizer(str(folder))
    marks = marks_in(tokenizer, source)[0]
    (new / "chat_template.jinja").write_text(source, encoding="utf-8")
    config = {name: value for name, value in _json(folder / "tokenizer_config.json").items() if name != "chat_template"}
    config |= {f"{name}_token": text for name, text in (("eos", marks.eos), ("pad", marks.pad)) if text is not None}
    architecture.write_json(new / "tokenizer_config.json", config)
    generation = _json(folder / "generation_config.json")
    if marks.ends:
        generation["eos_token_id"] = list(marks.ends)
    if marks.pad is not None:
        generation["pad_token_id"] = tokenizer.backend_tokenizer.token_to_id(marks.pad)
    architecture.write_json(new / "generation_config.json", generation)
    return {"made_of": str(folder), "digest": digest, "changed": list(marks.changed)}


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with told_as(UsageError, f"{path} is not JSON:", ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no JSON object")
    return found


def local_model(given: str, *, chat_template: str | Path | None = None, keep: Path | None = None) -> str:
    """The argument of `from_pretrained` for a model that is given as people have it.

    A folder is taken as it is (its absolute path, links unresolved), and what is no path is the name of a model on the
    hub, as it is. A `.gguf` file, a folder that holds nothing else, and `package:NAME` (a distribution that is
    installed here and carries one model; `package:NAME/FILE` for one of several) become a folder in the user's cache:
    float32 weights as safetensors, the configuration, and a tokenizer whose end and padding marks are those of the
    file's own metadata and of its chat template. It is made once for a content, by one process, and appears when it
    is whole.

    Args:
        chat_template: a file, or the name of one that ships with rlenv (`chatml`). The result is then a folder of its
            own: the model's files linked, and the template replaced.
        keep: where that folder lies; in the user's cache where None. It is made anew where it is not for this model
            and template. Without `chat_template` nothing is written there.

    Raises:
        UsageError: there is no such file, folder, distribution or template, or the file is no model that can be read.
        MissingExtra: dequantising needs packages that are not installed.
    """
    place = str(found_in_package(given)) if is_package(given) else given
    file = gguf_in(place, given_as=given)
    if file is not None:
        place = str(dequantised(file))
    elif Path(place).expanduser().is_dir():
        place = str(Path(place).expanduser().absolute())
    return place if chat_template is None else str(with_template(place, chat_template, keep))


def local_tokenizer(given: str, *, chat_template: str | Path | None = None) -> LoadedTokenizer:
    """The tokenizer of a model that is given as `local_model` takes it, or of a `tokenizer.json` alone.

    `chat_template` stands in the place of its own, with the end marks that `local_model` would write for it.

    Raises:
        UsageError: as `local_model` does, or there is no tokenizer.
        MissingExtra: packages are not installed that reading it needs.
    """
    is_file = Path(given).is_file() and Path(given).suffix in (".json", ".gz")
    tokenizer = load_tokenizer(given if is_file else local_model(given))
    return tokenizer if chat_template is None else with_tokenizer_template(tokenizer, template_text(chat_template))


_OPENED: Final = 32
"""Episodes of each split that are opened for their prompts."""
_ADAPTER: Final = "adapter_config.json"
_TRAINED: Final = frozenset({"F64", "F32", "F16", "BF16", "I64", "I32", "BOOL", "U8", "None"})
"""Dtypes of tensors that are weights, or buffers beside them."""


def first_prompts(environment: Environment) -> tuple[tuple[tuple[Message, ...], ...], str]:
    """The first messages of episodes of every split, the longest of each form, and why one did not open, if any."""
    prompts, why = asyncio.run(opened_prompts(environment, most=_OPENED))
    return tuple(prompts), why


def lacks(model: str, environment: Environment | None = None, **options: Any) -> list[Looked]:
    """Things that `model` lacks for an environment, in the order in which it would be met; [] where nothing is lacking.

    `model` is what `local_model` takes, or has given; `options` are those of `looked_at`.
    """
    return [one for one in looked_at(model, environment, **options) if one.lacks]


def looked_at(
    model: str,
    environment: Environment | None = None,
    *,
    chat_template: str | Path | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    prompts: Sequence[Sequence[Message]] = (),
    response_tokens: int | None = None,
    needs_weights: bool = True,
) -> list[Looked]:
    """All that was looked at, what is well too. No weights are loaded, and the hub is asked for small files only.

    Args:
        prompts: first messages of the environment's episodes: whether they fit into the model's context is said.
        response_tokens: the most tokens of a response; the spec's own limit where None.
        needs_weights: False where nothing starts here: that weights or their configuration are not there stops
            nothing then.
    """

    try:
        place = local_model(model)
    except UsageError as error:
        return [Looked("model", str(error))]
    folder = Path(place)
    found: list[Looked] = []
    config: Mapping[str, Any] = {}
    rows: int | None = None
    if folder.is_dir():
        if adapter := _judge_adapter(folder):
            return [adapter]
        config, more = architecture.config_in(folder)
        found += [replace(one, stops=needs_weights) for one in more]
        if not more:
            found += architecture.judge_architecture(config)
        weights = weights_in(folder)
        rows = weights.rows
        found.append(_judge_weights(weights.fault, weights.dtypes, needs_weights=needs_weights))
    tokenizer = _load_tokenizer(place, chat_template)
    if isinstance(tokenizer, Looked):
        return [*found, tokenizer]
    found.append(Looked("tokenizer"))
    found += _judge_embeddings(tokenizer, config, rows)
    template, encoder = judge_template(tokenizer, environment, template_kwargs)
    found.append(template)
    if template.lacks:
        return found
    if environment is not None:
        found += judge_tools(tokenizer, environment, template_kwargs, prompts)
    found += judge_marks(tokenizer, encoder)
    if environment is not None and encoder is not None:
        limit = response_tokens if response_tokens is not None else environment.limits.response_tokens
        found += _judge_context(encoder, environment, config, prompts, limit)
    return found


def _judge_adapter(folder: Path) -> Looked | None:
    """The judgement where a folder holds an adapter of peft and no model."""
    path = folder / _ADAPTER
    if not path.is_file() or (folder / "config.json").is_file():
        return None
    try:
        base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, OSError, AttributeError):
        base = None
    of = f" of {base}" if base else ""
    way = (
        "merge it into its model: peft.AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload()"
        ".save_pretrained(OUT), and save the tokenizer there; `rlenv runs export-policy RUN` writes a merged model"
    )
    return Looked("weights", f"{folder} holds an adapter{of} and no model", way)


def _judge_weights(fault: str, dtypes: frozenset[str], *, needs_weights: bool) -> Looked:
    if fault:
        return Looked("weights", fault, "fetch the model's files anew", stops=needs_weights)
    if other := sorted(dtypes - _TRAINED):
        return Looked("weights", f"tensors are stored as {', '.join(other)}", "take the model in bfloat16 or float32")
    return Looked("weights")


def _load_tokenizer(place: str, chat_template: str | Path | None) -> LoadedTokenizer | Looked:
    """The model's tokenizer, or why it has none."""

    folder = Path(place)
    try:
        return local_tokenizer(place, chat_template=chat_template)
    except RlenvError as error:
        # Importing transformers takes seconds, which a name that the hub does not give is not worth.
        may_ask = folder.is_dir() or "transformers" in sys.modules
        other = _through_transformers(place) if may_ask else None
        return other if other is not None else _no_tokenizer(place, folder, error)


def _no_tokenizer(place: str, folder: Path, error: RlenvError) -> Looked:
    if not folder.is_dir():
        way = f"download it where there is a network (hf download {place}), and give its folder"
        return Looked("model", f"{place} is no folder here, and {error}", way)
    slow = [name for name in ("tokenizer.model", "vocab.json", "spiece.model") if (folder / name).is_file()]
    if slow:
        way = f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r}) writes tokenizer.json"
        return Looked("tokenizer", f"there is {slow[0]} and no tokenizer.json", way)
    return Looked(
        "tokenizer", str(error), "copy the tokenizer's files of the model it was trained from into the folder"
    )


def _through_transformers(place: str) -> LoadedTokenizer | None:
    """The tokenizer as transformers makes it of files that `tokenizers` does not read; None where it cannot."""
    try:
        from transformers import AutoTokenizer

        made: Any = AutoTokenizer.from_pretrained(place)  # type: ignore[no-untyped-call,unused-ignore]
        special = {name: str(text) for name, text in made.special_tokens_map.items() if isinstance(text, str)}
        ends = () if made.eos_token_id is None else (int(made.eos_token_id),)
        return LoadedTokenizer(made.backend_tokenizer, made.chat_template, special, made.eos_token, place, ends)
    except Exception:  # whatever it raises, there is no tokenizer of it
        return None


def _judge_embeddings(tokenizer: LoadedTokenizer, config: Mapping[str, Any], rows: int | None) -> list[Looked]:
    """A judgement: has each id of the tokenizer a row in the embeddings?"""
    named = architecture.number_in(config, "vocab_size")
    count = rows if rows is not None and "text_config" not in config else named
    if count is None:
        return []
    # A model of several has tables of its other parts too.
    if rows is not None and named is not None and rows != named and "text_config" not in config:
        way = f'write "vocab_size": {rows} into config.json'
        return [Looked("embeddings", f"the weights have {rows:,} rows, and config.json says {named:,}", way)]
    backend = tokenizer.backend_tokenizer
    most = max(backend.get_vocab(True).values(), default=-1) + 1
    if most <= count:
        return [Looked("embeddings")]
    way = f"add rows (model.resize_token_embeddings({most}), save_pretrained), or take the model's own tokenizer"
    return [Looked("embeddings", f"they have {count:,} rows, and the tokenizer has ids up to {most - 1:,}", way)]


def _judge_context(
    encoder: TokenEncoder,
    environment: Environment,
    config: Mapping[str, Any],
    prompts: Sequence[Sequence[Message]],
    response_tokens: int | None,
) -> list[Looked]:
    """A judgement: do prompts, and a response behind them, fit into what the model reads?"""
    positions = architecture.number_in(config, "max_position_embeddings", "n_positions")
    if positions is None or not prompts:
        return []
    try:
        lengths = [len(encoder.start(prompt, tools=environment.tool_schemas).prompt_ids) for prompt in prompts]
    except RlenvError:
        return []  # the verdict on the template says it
    longest, response = max(lengths), response_tokens or 0
    if longest + response <= positions and longest < positions:
        return [Looked("context length")]
    what = f"a prompt of {longest:,} tokens" + (f" and a response of {response:,}" if response else "")
    way = "lower limits.response_tokens, shorten the prompts, or take a model that reads more"
    why = f"the model reads {positions:,} tokens (max_position_embeddings), fewer than {what}"
    return [Looked("context length", why, way, stops=longest >= positions)]


def adapter(module: str, *, wanted_by: str) -> Any:
    """A module of `rlenv_verl`.

    Raises:
        MissingExtra: the adapter or what it stands on is not installed; it names `wanted_by`.
    """
    try:
        return importlib.import_module(f"rlenv_verl.{module}")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{wanted_by} ({error.name} is missing)", extra="verl") from error
