"""Random arguments of every type, with texts that are hard to write and to read."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from rlenv.errors import UnsupportedTemplate
from rlenv.tokens.vocabulary import ChatTemplate

PLAIN = (
    "", "plain", " spaces ", "a\nb\n", "\t", '"q" and \'q\'', "it's", "back\\slash\\n", "{", "}{", "[1, 2", "); f(x=1)",
    '{"name": "f", "parameters": {}}', "[f(x=1)]", "5", "true", "null", "é世🙂", "\u2028\u00a0", "a\u0301", "```", "; ",
    "<b>", "\x00\x1f", "'''", '"""',
)  # fmt: skip
TOOLS: Mapping[str, Any] = {
    name: {
        "name": name,
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "ratio": {"type": "number"},
                "flag": {"type": "boolean"},
                "where": {"type": "object"},
                "items": {"type": "array"},
            },
        },
    }
    for name in ("look", "get_it", "a.b-c")
}
KEYS = ("text", "count", "ratio", "flag", "where", "items")


def value(rng: random.Random, key: str, texts: tuple[str, ...], deep: int = 0) -> Any:
    if key == "text":
        return "".join(rng.choices(texts, k=rng.choice([1, 1, 2])))
    if key == "count":
        return rng.choice([0, -1, 42, 10**20])
    if key == "ratio":
        return rng.choice([0.5, -2.25, 1e-7, 3])
    if key == "flag":
        return rng.random() < 0.5
    kinds = KEYS[:4] if deep > 1 else KEYS
    if key == "where":
        inner = {rng.choice(["k", "a b", "x-y", "é", ""]): None for _ in range(rng.randint(0, 3))}
        return {name: value(rng, rng.choice(kinds), texts, deep + 1) for name in inner} | {"none": None}
    return [value(rng, rng.choice(kinds), texts, deep + 1) for _ in range(rng.randint(0, 3))]


ENDS = ("</s>", "<|im_end|>", "<|eot_id|>", "<|eot|>", "<|endoftext|>", "<｜end▁of▁sentence｜>")
SCHEMAS = [{"type": "function", "function": {"description": "d", **tool}} for tool in TOOLS.values()]


def written(template: ChatTemplate, calls: list[tuple[str, dict[str, Any]]], content: str) -> str | None:
    """The assistant's turn behind the generation prompt; None where the template refuses several calls."""
    user = {"role": "user", "content": "Which?"}
    listed = [
        {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": given}}
        for number, (name, given) in enumerate(calls)
    ]
    said = {"role": "assistant", "content": content, "tool_calls": listed}
    prompt = template.render([user], tools=SCHEMAS)
    try:
        whole = template.render([user, said], tools=SCHEMAS, add_generation_prompt=False)
    except UnsupportedTemplate:
        return None
    head, text = prompt[prompt.rindex("Which?") :], whole[whole.rindex("Which?") :]
    same = next((at for at, (one, other) in enumerate(zip(head, text, strict=False)) if one != other), len(head))
    text = text[same:].rstrip()
    return text.removesuffix(next((end for end in ENDS if text.endswith(end)), ""))
