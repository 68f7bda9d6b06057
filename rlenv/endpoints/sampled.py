"""The ids and log-probabilities of sampled tokens in answers of OpenAI-compatible servers: read, and written by fakes.

A server gives them where it is asked, each in a form of its own:

    vLLM    return_token_ids                      token_ids in the choice, prompt_token_ids there or in the answer
            logprobs, return_tokens_as_token_ids  logprobs in the choice, whose tokens are "token_id:7"
    SGLang  return_prompt_token_ids               prompt_token_ids in the choice
            logprobs, return_meta_info            meta_info.output_token_logprobs in the choice
    OpenAI  logprobs                              logprobs in the choice

Source: vllm/entrypoints/openai/chat_completion/protocol.py of vLLM 0.27.1; python/sglang/srt/entrypoints/openai/
protocol.py of SGLang 0.5.13; the OpenAI API reference, "Create chat completion" and "Create completion" (2025).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rlenv.messages import Sampled

_T = TypeVar("_T")
_MOST_ID: Final = 2**31
_MOST_FLOAT: Final = 1e308  # an integer may be more than a float holds
_AS_ID: Final = "token_id:"


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What an answer says of its tokens; () where it does not say, or says what is none.

    `len(logprobs) == len(ids)` where both are there: of two lists that do not fit each other the ids are kept.
    """

    ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


def tokens_of(answer: Mapping[str, Any], choice: Mapping[str, Any]) -> SampledTokens | None:
    """The tokens of an answer's choice, in any of the forms above; None where there are none."""
    told, meta = choice.get("logprobs"), choice.get("meta_info")
    triples = [one if isinstance(one, list) else [] for one in _list_at(meta, "output_token_logprobs")]
    named, logprobs = _tokens_told(told)
    ids = _all(_list_at(choice, "token_ids"), _to_id) or _all((one[1] if one[1:] else None for one in triples), _to_id)
    ids = ids or _all(named, _named_id)
    logprobs = [one[0] if one else None for one in triples] or logprobs
    numbers = _all(logprobs, _to_finite)
    prompt = _all(_list_at(choice, "prompt_token_ids") or _list_at(answer, "prompt_token_ids"), _to_id)
    if ids and len(numbers) != len(ids):
        numbers = ()
    return SampledTokens(ids, prompt, numbers) if ids or prompt or numbers else None


def _tokens_told(told: Any) -> tuple[list[Any], list[Any]]:
    """The tokens and the log-probabilities of OpenAI's `logprobs`, of a conversation or of raw text."""
    content = [one if isinstance(one, dict) else {} for one in _list_at(told, "content")]
    if content:
        return [one.get("token") for one in content], [one.get("logprob") for one in content]
    return _list_at(told, "tokens"), _list_at(told, "token_logprobs")


def _list_at(held: Any, key: str) -> list[Any]:
    value = held.get(key) if isinstance(held, Mapping) else None
    return value if isinstance(value, list) else []


def _all(values: Iterable[Any], read: Callable[[Any], _T | None]) -> tuple[_T, ...]:
    """Every value as it is read; () where one is none."""
    read_ones = []
    for value in values:
        if (one := read(value)) is None:
            return ()
        read_ones.append(one)
    return tuple(read_ones)


def _to_id(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST_ID else None


def _named_id(value: Any) -> int | None:
    digits = value.removeprefix(_AS_ID) if isinstance(value, str) and value.startswith(_AS_ID) else ""
    return _to_id(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 12 else None


def _to_finite(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and -_MOST_FLOAT <= value <= _MOST_FLOAT else None


def add_tokens(said: Sampled, body: Mapping[str, Any], answer: dict[str, Any], choice: dict[str, Any]) -> None:
    """Writes what a request's `body` asks for of the tokens of `said` into an answer and its choice."""
    is_chat = "messages" in body
    ids, logprobs = list(said.token_ids), list(said.logprobs)
    if body.get("return_token_ids"):
        choice["token_ids"] = ids
        (answer if is_chat else choice)["prompt_token_ids"] = list(said.prompt_token_ids)
    if body.get("return_prompt_token_ids"):
        choice["prompt_token_ids"] = list(said.prompt_token_ids)
    if not logprobs or not body.get("logprobs"):
        return
    named = ids if body.get("return_tokens_as_token_ids") else ()
    tokens = [f"{_AS_ID}{one}" for one in named] or [""] * len(logprobs)
    told = [{"token": one, "logprob": each, "top_logprobs": []} for one, each in zip(tokens, logprobs, strict=True)]
    choice["logprobs"] = {"content": told} if is_chat else {"tokens": tokens, "token_logprobs": logprobs}
    if body.get("return_meta_info"):
        choice["meta_info"] = {
            "output_token_logprobs": [[lp, one, None] for lp, one in zip(logprobs, ids, strict=True)]
        }
