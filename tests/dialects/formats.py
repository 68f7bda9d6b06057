"""The formats of families whose calls are JSON, a name and JSON, or Python, stated apart from the rows.

A format says how calls are written: `each` is one call, with the name at @NAME, its arguments at @ARGS and its number
at @I; `between` parts calls and `around` stands around all, with the calls at @CALLS.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Arguments = Mapping[str, Any]
Where = Literal["before", "behind", ""]


def as_json(rng: random.Random, arguments: Arguments) -> str:
    """JSON as templates and models write it: escaped or not, tight or not, over several lines or not."""
    separators = rng.choice([None, (",", ":")])
    indent = rng.choice([None, None, 2])
    return json.dumps(arguments, ensure_ascii=rng.random() < 0.3, separators=separators, indent=indent)


def as_python(rng: random.Random, arguments: Arguments) -> str:
    """Python's own way of writing arguments by name."""
    return rng.choice([", ", ","]).join(f"{key}={value!r}" for key, value in arguments.items())


def as_xtml(rng: random.Random, arguments: Arguments) -> str:
    kinds = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}
    parts = []
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        kind = kinds.get(type(value), "null")
        parts.append(f'<|open|>argument key="{key}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>')
    return "".join(parts)


def as_atem(rng: random.Random, arguments: Arguments) -> str:
    parts = []
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        parts.append(f'<atem:parameter name="{key}">{text}</atem:parameter>\n')
    return "".join(parts)


@dataclass(frozen=True)
class Format:
    """How one family writes calls; `content` is where text may stand beside them, `most` how many a message has."""

    each: str
    between: str = ""
    around: str = "@CALLS"
    arguments: Callable[[random.Random, Arguments], str] = as_json
    content: Where = "before"
    most: int = 3
    escapes: bool = True  # values may hold the family's own marks

    def write(self, rng: random.Random, calls: Sequence[tuple[str, Arguments]]) -> str:
        texts = []
        for number, (name, given) in enumerate(calls):
            text = self.each.replace("@I", str(number)).replace("@NAME", name)
            texts.append(text.replace("@ARGS", self.arguments(rng, given)))
        return self.around.replace("@CALLS", self.between.join(texts))


_CALL: Final = '{"name": "@NAME", "arguments": @ARGS}'
_LLAMA: Final = '{"name": "@NAME", "parameters": @ARGS}'
_HERMES: Final = Format(f"<tool_call>\n{_CALL}\n</tool_call>", between="\n")
_DEEPSEEK: Final = "<｜tool▁calls▁begin｜>@CALLS<｜tool▁calls▁end｜>"
_PLAMO: Final = "<|plamo:begin_tool_requests:plamo|>@CALLS<|plamo:end_tool_requests:plamo|>"
_COHERE: Final = Format(
    '{"tool_call_id": "@I", "tool_name": "@NAME", "parameters": @ARGS}',
    ",\n    ",
    "<|START_ACTION|>[\n    @CALLS\n]<|END_ACTION|>",
)

FORMATS: Final[Mapping[str, Sequence[Format]]] = {
    "hermes": [_HERMES, Format(f"<tool_call>{_CALL}</tool_call>")],
    "qwen2_5": [_HERMES],
    "granite4": [_HERMES],
    "ernie45": [_HERMES],
    "longcat": [Format(f"<longcat_tool_call>{_CALL}</longcat_tool_call>", "\n")],
    "jamba": [Format(_CALL, ",\n    ", "<tool_calls>[\n    @CALLS\n]</tool_calls>")],
    "hunyuan_a13b": [Format(_CALL, ", ", "<tool_calls>[@CALLS]</tool_calls>")],
    "apriel": [
        Format(_CALL, ", ", "<tool_calls>[@CALLS]</tool_calls>"),
        Format('{"name": "@NAME", "arguments": @ARGS, "id": "call@I"}', ", ", "\n<tool_calls>[@CALLS]</tool_calls>"),
    ],
    "nemotron": [Format(_CALL, ", ", "<TOOLCALL>[@CALLS]</TOOLCALL>")],
    "apertus": [Format('{"@NAME": @ARGS}', ", ", "<|tools_prefix|>[@CALLS]<|tools_suffix|>")],
    "internlm": [
        Format(f"<|action_start|><|plugin|>\n{_CALL}<|action_end|>"),
        Format(f"<|action_start|><|plugin|>\n{_LLAMA}<|action_end|>"),
    ],
    "inkling": [Format('<|content_invoke_tool_json|>{"name": "@NAME", "args": @ARGS}<|end_message|>')],
    "granite": [Format(_CALL, ", ", "<|tool_call|>[@CALLS]"), Format(_CALL, ",\n", "<tool_call> [@CALLS]")],
    "granite-20b-fc": [Format(f"<function_call> {_CALL}", "\n")],
    "phi4_mini_json": [
        Format(_CALL, ", ", " functools[@CALLS]"),
        Format(_LLAMA, ",", "functools[@CALLS]"),
        Format(_CALL, ", ", "<|tool_call|>[@CALLS]<|/tool_call|>"),
    ],
    "gigachat3": [
        Format(f"<|function_call|>{_CALL}", most=1),
        Format(f"<|message_sep|>\n\nfunction call<|role_sep|>\n{_CALL}", most=1),
    ],
    "llama3_json": [
        Format(_LLAMA, "; "),
        Format(_LLAMA, "\n"),
        Format(_LLAMA),
        Format(_CALL, ";"),
        Format('{"type": "function", "name": "@NAME", "parameters": @ARGS}', "; "),
        Format(_LLAMA, ";", "<|python_tag|>@CALLS"),
    ],
    "llama4_json": [Format(_LLAMA), Format(_LLAMA, "\n")],
    "xlam": [
        Format(_CALL, ", ", "[@CALLS]", content="behind"),
        Format(_CALL, ", ", "```json\n[@CALLS]\n```"),
        Format(_CALL, ", ", "<tool_call>[@CALLS]</tool_call>"),
    ],
    "deepseek_v3": [
        Format(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>@NAME\n```json\n@ARGS\n```<｜tool▁call▁end｜>", "\n", _DEEPSEEK
        ),
    ],
    "deepseek_v31": [Format("<｜tool▁call▁begin｜>@NAME<｜tool▁sep｜>@ARGS<｜tool▁call▁end｜>", "", _DEEPSEEK)],
    "kimi_k2": [
        Format(
            "<|tool_call_begin|>functions.@NAME:@I<|tool_call_argument_begin|>@ARGS<|tool_call_end|>",
            around="<|tool_calls_section_begin|>@CALLS<|tool_calls_section_end|>",
        ),
    ],
    "mistral": [
        Format("[TOOL_CALLS]@NAME[ARGS]@ARGS"),
        Format("[TOOL_CALLS]@NAME[CALL_ID]callid00@I[ARGS]@ARGS"),
        Format("[TOOL_CALLS]@NAME@ARGS"),
        Format('{"name": "@NAME", "arguments": @ARGS, "id": "callid00@I"}', ", ", "[TOOL_CALLS] [@CALLS]"),
    ],
    "mistral_v3": [
        Format('{"name": "@NAME", "arguments": @ARGS, "id": "callid00@I"}', ", ", "[TOOL_CALLS] [@CALLS]"),
        Format('{"name": "@NAME", "arguments": @ARGS}', ", ", "[TOOL_CALLS][@CALLS]"),
        Format("[TOOL_CALLS]@NAME[ARGS]@ARGS"),
    ],
    "plamo3": [
        Format(
            "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>@NAME<|plamo:end_tool_name:plamo|>"
            "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>@ARGS"
            "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
            around=_PLAMO,
        ),
    ],
    "gpt_oss": [
        Format(
            "<|channel|>commentary to=functions.@NAME <|constrain|>json<|message|>@ARGS<|call|>", "<|start|>assistant"
        ),
        Format(" to=functions.@NAME<|channel|>commentary json<|message|>@ARGS<|call|>", most=1),
        Format("<|start|>assistant to=functions.@NAME<|channel|>commentary json<|message|>@ARGS<|call|>"),
        Format("<|channel|>commentary to=functions.@NAME<|message|>@ARGS<|call|>", "<|start|>assistant"),
        Format("<|channel|>analysis to=functions.@NAME code<|message|>@ARGS<|call|>", "<|start|>assistant"),
    ],
    "cohere_command3": [_COHERE],
    "cohere_command4": [_COHERE],
    "command_r_plus": [
        Format(
            '    {\n        "tool_name": "@NAME",\n        "parameters": @ARGS\n    }',
            ",\n",
            "\nAction:\n```json\n[\n@CALLS\n]```\n",
        ),
    ],
    "solar_open": [
        Format(
            "<|tool_call:begin|>callid@I<|tool_call:name|>@NAME<|tool_call:args|>@ARGS<|tool_call:end|>",
            around="<|tool_calls|>@CALLS<|calls|>",
        ),
    ],
    "functionary_v31": [Format("<function=@NAME>@ARGS</function>")],
    "pythonic": [Format("@NAME(@ARGS)", ", ", "[@CALLS]", as_python, "behind")],
    "llama4_pythonic": [
        Format("@NAME(@ARGS)", ", ", "[@CALLS]", as_python),
        Format("@NAME(@ARGS)", ", ", "<|python_start|>[@CALLS]<|python_end|>", as_python),
    ],
    "olmo3": [Format("@NAME(@ARGS)", "\n", "<function_calls>@CALLS</function_calls>", as_python)],
    "lfm2": [Format("@NAME(@ARGS)", ", ", "<|tool_call_start|>[@CALLS]<|tool_call_end|>", as_python)],
    "kimi_k3": [
        Format(
            '<|open|>call tool="@NAME" index="@I"<|sep|>@ARGS<|close|>call<|sep|>',
            around="<|open|>tools<|sep|>@CALLS<|close|>tools<|sep|>",
            arguments=as_xtml,
            escapes=False,
        ),
    ],
    "muse": [
        Format(
            ' to=@NAME<|message|><atem:function_calls>\n<atem:invoke name="@NAME">\n@ARGS</atem:invoke>\n'
            "</atem:function_calls>",
            "<|eom|><|start|>assistant",
            arguments=as_atem,
            escapes=False,
        ),
    ],
}
