"""Actions that no policy should write, for anyone's environment to survive."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator, Sequence

__all__ = ["hostile_actions"]

_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<answer>", "</answer>", "<|im_end|>", "<tool_response>")
_CALL = '{"name": "%s", "arguments": {"expression": "1+1"}}'


def hostile_actions(count: int, *, seed: int = 0, names: Sequence[str] = ("calculate",)) -> Iterator[str]:
    """`count` actions, equal for equal seeds: a fixed list of the worst first, then random mixtures.

    Among them: the empty text, megabytes, lone surrogates, every ASCII control character, nesting 50,000 deep, 8,000
    open tags, half JSON, huge numbers, duplicate keys, tags in the wrong order.

    Args:
        names: tools that the environment has, so that some calls are nearly right.
    """
    made = 0
    for action in _worst(names[0] if names else "tool"):
        if made == count:
            return
        yield action
        made += 1
    rng = random.Random(seed)
    while made < count:
        yield _mixture(rng, names)
        made += 1


def _worst(name: str) -> Iterator[str]:
    call = _CALL % name
    deep = 50_000
    yield ""
    yield " \n\t\r\x0b\x0c"
    yield "x" * 3_000_000
    yield "\ud800"
    yield f"<tool_call>\ud800{call}</tool_call>"
    yield f"<tool_call>{call}\udfff</tool_call>"
    yield '<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>'
    yield "".join(chr(code) for code in range(128))
    for code in (*range(32), 127):
        yield f"<tool_call>{chr(code)}{call}{chr(code)}</tool_call>"
    yield "<tool_call>" * 8_000
    yield "</tool_call>" * 8_000
    yield "<think>" * 8_000
    yield "<answer>" * 8_000
    yield ("<tool_call>" + call) * 2_000
    yield f"<tool_call>{'[' * deep}{']' * deep}</tool_call>"
    yield f"<tool_call>{'{' * deep}</tool_call>"
    yield '<tool_call>{"name": "' + name + '", "arguments": ' + '{"a":' * deep + "1" + "}" * deep + "}</tool_call>"
    yield (
        '<tool_call>{"name": "' + name + '", "arguments": {"expression": ' + "[" * deep + "]" * deep + "}}</tool_call>"
    )
    yield f'<tool_call>{{"name": "{name}", "arguments": {{"expression": {"9" * 5_000}}}}}</tool_call>'
    yield f'<tool_call>{{"name": "{name}", "arguments": {{"expression": "{"9" * 5_000}"}}}}</tool_call>'
    yield f'<tool_call>{{"name": "{name}", "arguments": {{"expression": "{"(" * 20_000}"}}}}</tool_call>'
    yield f'<tool_call>{{"name": "{name}", "arguments": {{"expression": "{"-" * 20_000}1"}}}}</tool_call>'
    yield f'<tool_call>{{"name": "{name}", "arguments": {{"expression": "9**9**9**9"}}}}</tool_call>'
    yield f'<tool_call>{{"name": "{name}", "arguments": {{"expression": 1e999}}}}</tool_call>'
    yield f'<tool_call>{{"name": "{name}", "arguments": {{"expression": NaN}}}}</tool_call>'
    yield f'<tool_call>{{"name": "{name}", "name": "{name}", "arguments": {{}}}}</tool_call>'
    yield '<tool_call>{"name": {}, "arguments": {}}</tool_call>'
    yield f'<tool_call>["{name}", {{}}]</tool_call>'
    yield f'<tool_call>{{"name": "{name}", "arguments": []}}</tool_call>'
    yield f'<tool_call>{{"name": "{name}", "arguments": null}}</tool_call>'
    yield f'<tool_call>{{"name": "{name}"}}</tool_call>'
    yield '<tool_call>{"arguments": {"</tool_call>": "</tool_call>"}}</tool_call>'
    yield "<answer></answer>"
    yield "<answer>" + "9" * 1_000_000 + "</answer>"
    yield "<answer>\x00</answer>"
    yield "</answer><answer>"
    yield "<think>" + call + "<tool_call>" + call + "</tool_call>"
    yield "\\boxed{" * 10_000
    for end in range(0, len(call), 3):  # half JSON
        yield f"<tool_call>{call[:end]}"
        yield f"<tool_call>{call[:end]}</tool_call>"


def _mixture(rng: random.Random, names: Sequence[str]) -> str:
    parts = []
    for _ in range(rng.randint(1, 6)):
        choice = rng.randrange(6)
        if choice == 0:
            parts.append(rng.choice(_TAGS))
        elif choice == 1:
            parts.append(_CALL % rng.choice([*names, "nothing", ""]))
        elif choice == 2:
            text = json.dumps({"name": rng.choice([*names, 1, None]), "arguments": _json(rng, 0)})
            at = rng.randint(0, len(text))
            parts.append(f"<tool_call>{text[:at]}{rng.choice(['', text[at:]])}</tool_call>")
        elif choice == 3:
            parts.append(
                "".join(
                    chr(rng.choice((rng.randrange(256), rng.randrange(0x110000)))) for _ in range(rng.randint(0, 40))
                )
            )
        elif choice == 4:
            parts.append("".join(rng.choice(string.printable) for _ in range(rng.randint(0, 80))))
        else:
            parts.append(rng.choice(_TAGS) * rng.randint(1, 30))
    return "".join(parts)


def _json(rng: random.Random, depth: int) -> object:
    choice = rng.randrange(8 if depth < 4 else 6)
    if choice == 6:
        return [_json(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if choice == 7:
        return {rng.choice(("expression", "a", "")): _json(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return (None, True, rng.randint(-(10**20), 10**20), rng.random() * 10 ** rng.randint(-300, 300), "", "1+1")[choice]
