"""The Hermes format: JSON calls between `<tool_call>` tags, as Qwen2.5, Qwen3 and the Hermes models write them.

Source: the `chat_template` field of Qwen/Qwen3-8B's tokenizer_config.json (April 2025).
"""

from __future__ import annotations

from typing import Final, Literal

from rlenv.dialects.engine import TextDialect
from rlenv.dialects.format import CallFormat, ChatFormat, ThinkingFormat
from rlenv.registry import Kind
from rlenv.spec import Spec

__all__ = ["KIND", "HermesSpec", "hermes"]

CALL: Final = CallFormat(
    open="<tool_call>",
    close="</tool_call>",
    written='<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>',
)
THINKING: Final = ThinkingFormat("<think>", "</think>", "<think>\n{thinking}\n</think>\n\n")
CHAT: Final = ChatFormat(
    turn_open="<|im_start|>{role}\n",
    turn_close="<|im_end|>\n",
    tools=(
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
    ),
    result="<tool_response>\n{content}\n</tool_response>",
)


class HermesSpec(Spec):
    """Options of the Hermes dialect; the defaults are strict and follow Qwen3's own template."""

    thinking_open: bool | None = None
    """Whether the generation prompt has already opened a thinking block; None: where a message closes one it has not
    opened."""
    thinking: bool = True
    """False writes an empty thinking block into the generation prompt, which turns thinking off in Qwen3."""
    arguments_as_text: bool = False
    """Also accept arguments given as a JSON text instead of an object."""
    tool_schemas: Literal["as_given", "bare", "wrapped"] = "as_given"
    """How tools are listed: as they are given, as bare functions, or as `{"type": "function", "function": …}`."""


def hermes(spec: HermesSpec | None = None) -> TextDialect:
    """The dialect with the options of `spec` (the defaults where it is None)."""
    options = spec if spec is not None else HermesSpec()
    return TextDialect(
        name="hermes",
        call=CALL,
        thinking=THINKING,
        chat=CHAT,
        thinking_open=options.thinking_open,
        thinking_is_on=options.thinking,
        arguments_as_text=options.arguments_as_text,
        tool_schemas=options.tool_schemas,
    )


KIND: Final = Kind(HermesSpec, hermes)
