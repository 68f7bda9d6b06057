"""Observation ids are the rendering's own for the chat templates of many families."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message
from rlenv.tokens import TokenEncoder
from tests.support import real
from tests.support.families import bound

CONTENTS = ('{"ok": true, "n": [1,2]}', "", "\n\n lead trail \n", "héllo 世界 🎉", 'plain "q" \\ <b>&', "5", "[1, 2]")
TOOL = {
    "type": "function",
    "function": {"name": "fn", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
FAMILIES = real.families()
# These change earlier turns in a tool loop; their ids are exact, their history is not the sampled one.
REWRITING = ("deepseekv3", "deepseekv31", "granite_20b_fc", "hermes")


def rendering(encoder: TokenEncoder, contents: tuple[str, ...]) -> str | None:
    """A dialogue in the first form that the template takes and writes whole, None where it takes none."""
    for content in ("", None):
        for as_text in (False, True):
            for tools in ([], [TOOL]):
                calls: list[dict[str, Any]] = []
                for number in range(len(contents)):
                    given = {"x": f"v{number}"}
                    function = {"name": "fn", "arguments": json.dumps(given) if as_text else given}
                    calls.append({"id": f"abcdefgh{number}", "type": "function", "function": function})
                results = [
                    {"role": "tool", "tool_call_id": f"abcdefgh{number}", "name": "fn", "content": result}
                    for number, result in enumerate(contents)
                ]
                assistant = {"role": "assistant", "content": content, "tool_calls": calls}
                try:
                    text = encoder.template.render(
                        [{"role": "user", "content": "hi"}, assistant, *results], tools=tools
                    )
                except UnsupportedTemplate:
                    continue
                if f"v{len(contents) - 1}" in text:
                    return text
    return None


@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_the_templates_own_ids(family: str) -> None:
    encoder = bound(family)
    compared = 0
    for count in (1, 2, 3):
        for start in range(len(CONTENTS)):
            contents = tuple(CONTENTS[(start + i) % len(CONTENTS)] for i in range(count))
            text = rendering(encoder, contents)
            if text is None:
                continue
            messages = [
                Message("tool", content, name="fn", tool_call_id=f"abcdefgh{number}")
                for number, content in enumerate(contents)
            ]
            ids = encoder.encode_messages(messages).tolist()
            stop = text.index(encoder.stop, text.rindex(f"v{count - 1}")) + len(encoder.stop)
            assert encoder.encode_text(text)[len(encoder.encode_text(text[:stop])) :] == ids
            compared += 1
    assert compared >= len(CONTENTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_templates_that_rewrite_a_tool_loop_are_refused(family: str) -> None:
    encoder = bound(family)
    if family.removeprefix("tool_chat_template_") in REWRITING:
        with pytest.raises(UnsupportedTemplate, match="rewrites what was sampled"):
            encoder.require(["tool"])
    else:
        encoder.require(["tool"])
