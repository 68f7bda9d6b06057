"""Things that a model lacks before it can be trained or served in an environment, and the way out of each."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rlenv.episodes.environment import Environment
from rlenv.errors import RlenvError, UsageError
from rlenv.messages import Message
from rlenv.models.architecture import Looked, config_in, judge_architecture, number_in, weights_in
from rlenv.models.chat_templates import judge_marks, judge_template, judge_tools
from rlenv.models.local import local_model, local_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import LoadedTokenizer
from rlenv.tokens.verdict import opened_prompts

__all__ = ["first_prompts", "lacks", "looked_at"]

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
        chat_template: as for `local_model`.
        template_kwargs: what the chat template is given, such as `enable_thinking`.
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
        if adapter := _adapter(folder):
            return [adapter]
        config, more = config_in(folder)
        found += [replace(one, stops=needs_weights) for one in more]
        if not more:
            found += judge_architecture(config)
        weights = weights_in(folder)
        rows = weights.rows
        found.append(_judge_weights(weights.fault, weights.dtypes, needs_weights=needs_weights))
    tokenizer = _tokenizer(place, chat_template)
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
        limit = response_tokens if response_tokens is not None else environment.spec.limits.response_tokens
        found += _judge_context(encoder, environment, config, prompts, limit)
    return found


def _adapter(folder: Path) -> Looked | None:
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


def _tokenizer(place: str, chat_template: str | Path | None) -> LoadedTokenizer | Looked:
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
    named = number_in(config, "vocab_size")
    count = rows if rows is not None and "text_config" not in config else named
    if count is None:
        return []
    # A model of several has tables of its other parts too.
    if rows is not None and named is not None and rows != named and "text_config" not in config:
        way = f'write "vocab_size": {rows} into config.json'
        return [Looked("embeddings", f"the weights have {rows:,} rows, and config.json says {named:,}", way)]
    backend = tokenizer.backend_tokenizer
    ids = backend.get_vocab(True).values()
    most = max(ids, default=-1) + 1
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
    positions = number_in(config, "max_position_embeddings", "n_positions")
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
