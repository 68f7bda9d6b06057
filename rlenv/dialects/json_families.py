"""More built-in families whose calls are JSON or stand in messages of their own; see `families`.

Formats: the chat templates that the families publish (facts only).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["JSON_ROWS"]

Row = Mapping[str, Any]

_OFF: Final[Row] = {"open": "", "close": "", "written": ""}
_LLAMA4: Final[Row] = {
    "begin": "<|begin_of_text|>",
    "turn": "<|header_start|>{role}<|header_end|>\n\n{content}<|eot|>",
    "roles": {"tool": "ipython"},
    "result": "{content}",
    "result_role": "tool",
    "results_joined": None,
    "strips": True,
    "tools_role": "user",
    "calls_behind": "",
}


def _cohere(said: str) -> Row:
    """Command R7B and Command A, and the generation behind them, which writes its answers in other marks."""
    ends = said.replace("START", "END")
    return {
        "calls": {
            "open": "<|START_ACTION|>",
            "close": "<|END_ACTION|>",
            "shape": "list",
            "name_key": "tool_name",
            "arguments_key": "parameters",
            "id_key": "tool_call_id",
            "id_first": True,
        },
        "drop": ["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        "thinking_marks": {
            "open": "<|START_THINKING|>",
            "close": "<|END_THINKING|>",
            "written": "<|START_THINKING|>{thinking}<|END_THINKING|>",
        },
        "chat": {
            "begin": "<BOS_TOKEN>",
            "turn": "<|START_OF_TURN_TOKEN|><|{role}_TOKEN|>{content}<|END_OF_TURN_TOKEN|>",
            "roles": {"system": "SYSTEM", "user": "USER", "assistant": "CHATBOT", "tool": "SYSTEM"},
            "result": "<|START_TOOL_RESULT|>{content}<|END_TOOL_RESULT|>",
            "result_role": "tool",
            "results_joined": "",
            "said": f"{said}{{content}}{ends}",
            "said_before": "{content}",
            "calls_behind": "",
        },
    }


JSON_ROWS: Final[Mapping[str, Row]] = {
    # Each message has a channel and perhaps a recipient in its header; the generation prompt is its beginning. Source:
    # chat_template.jinja of openai/gpt-oss-120b (August 2025).
    "gpt_oss": {
        "calls": {
            "body": "name_json",
            "open": [
                "<|channel|>commentary to=functions.",
                "<|channel|>analysis to=functions.",
                "<|start|>assistant to=functions.",
                " to=functions.",
            ],
            "close": ["<|call|>", "<|end|>"],
            "close_is_optional": True,
            "after_name": ["<|channel|>", "<|constrain|>", "<|message|>", " "],
            "skip_to": "<|message|>",
            "skipped": " <|constrain|>json",
            "between": "<|start|>assistant",
        },
        "drop": [
            "<|channel|>commentary<|message|>",
            "<|channel|>final <|constrain|>json<|message|>",
            "<|channel|>final<|message|>",
            "<|start|>assistant",
            "<|call|>",
            "<|end|>",
            "<|return|>",
        ],
        "thinking_marks": {
            "open": "<|channel|>analysis<|message|>",
            "close": "<|end|>",
            "written": "<|channel|>analysis<|message|>{thinking}<|end|><|start|>assistant",
        },
        "thinking_open": False,
        "chat": {
            "turn": "<|start|>{role}<|message|>{content}<|end|>",
            "roles": {"system": "developer"},
            "turns": {"assistant": "<|start|>assistant{content}", "tool": "{content}"},
            "result": "<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{content}<|end|>",
            "result_role": "tool",
            "results_joined": None,
            "said": "<|channel|>final<|message|>{content}<|end|>",
            "said_before": "<|channel|>commentary<|message|>{content}<|end|><|start|>assistant",
            "calls_behind": "",
        },
    },
    # Source: templates of c4ai-command-r7b-12-2024 and of the Cohere2-MoE models.
    "cohere_command3": _cohere("<|START_RESPONSE|>"),
    "cohere_command4": _cohere("<|START_TEXT|>"),
    # Source: tool-use template of c4ai-command-r-plus (2024).
    "command_r_plus": {
        "calls": {
            "open": ["Action:\n```json", "Action: ```json"],
            "close": "```",
            "shape": "list",
            "name_key": "tool_name",
            "arguments_key": "parameters",
            "pad": "\n",
        },
        "thinking_marks": _OFF,
        "chat": {
            "begin": "<BOS_TOKEN>",
            "turn": "<|START_OF_TURN_TOKEN|><|{role}_TOKEN|>{content}<|END_OF_TURN_TOKEN|>",
            "roles": {"system": "SYSTEM", "user": "USER", "assistant": "CHATBOT", "tool": "SYSTEM"},
            "result": "<results>\n{content}</results>",
            "result_role": "tool",
            "results_joined": "",
            "calls_behind": "\n",
        },
    },
    # Source: template of NVIDIA-Nemotron-Nano-9B-v2; Llama-Nemotron writes its calls in the same marks.
    "nemotron": {
        "calls": {"open": "<TOOLCALL>", "close": "</TOOLCALL>", "shape": "list"},
        "chat": {
            "turn": "<SPECIAL_11>{role}\n{content}\n<SPECIAL_12>\n",
            "roles": {"assistant": "Assistant"},
            "turns": {"system": "<SPECIAL_10>System\n{content}\n", "user": "<SPECIAL_11>User\n{content}\n"},
            "result": "{content}",
            "result_role": "user",
            "results_joined": ", ",
            "calls_behind": "\n",
        },
    },
    # Source: template of Solar-Open-100B. A call's id stands before its name.
    "solar_open": {
        "calls": {
            "body": "name_json",
            "open": "<|tool_call:begin|>",
            "close": "<|tool_call:end|>",
            "id_close": "<|tool_call:name|>",
            "after_name": "<|tool_call:args|>",
        },
        "section_open": "<|tool_calls|>",
        "section_close": "<|calls|>",
        "drop": ["<|begin|>assistant", "<|content|>", "<|end|>"],
        "thinking_marks": {
            "open": "<|think|>",
            "close": "<|end|>",
            "written": "<|think|>{thinking}<|end|><|begin|>assistant",
        },
        "thinking_open": False,
        "chat": {
            "turn": "<|begin|>{role}<|content|>{content}<|end|>",
            "turns": {
                "assistant": "<|begin|>assistant{content}",
                "tool": "<|begin|>tool<|tool_response|>{content}<|end|>",
            },
            "result": "<|tool_response:begin|>{id}<|tool_response:name|>{name}<|tool_response:result|>{content}"
            "<|tool_response:end|>",
            "result_role": "tool",
            "results_joined": "",
            "said": "<|content|>{content}<|end|>",
            "said_before": "<|content|>{content}<|end|><|begin|>assistant",
            "calls_behind": "",
        },
    },
    # Source: template of Apriel-1.6-15b-Thinker. Its generation prompt opens the reasoning with a sentence.
    "apriel": {
        "calls": {"open": "<tool_calls>", "close": "</tool_calls>", "shape": "list", "id_key": "id"},
        "drop": ["[END FINAL RESPONSE]", "[BEGIN FINAL RESPONSE]"],
        "thinking_marks": {
            "open": "Here are my reasoning steps:\n",
            "close": "[BEGIN FINAL RESPONSE]",
            "written": "Here are my reasoning steps:\n{thinking}\n[BEGIN FINAL RESPONSE]\n",
        },
        "chat": {
            "turn": "<|begin_{role}|>\n{content}\n",
            "turns": {"assistant": "<|begin_assistant|>\n{content}\n<|end|>\n"},
            "result": "{content}",
            "result_role": "tool_result",
            "results_joined": None,
        },
    },
    # Source: template of functionary-medium-v3.1.
    "functionary_v31": {
        "calls": {"body": "name_json", "open": "<function=", "after_name": ">", "close": "</function>"},
        "thinking_marks": _OFF,
        "chat": {
            "begin": "<|begin_of_text|>",
            "turn": "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
            "roles": {"tool": "ipython"},
            "result": "{content}",
            "result_role": "tool",
            "results_joined": None,
            "calls_behind": "",
        },
    },
    # Calls follow each other at once. Source: template that vLLM ships for Llama 4 with JSON.
    "llama4_json": {
        "calls": [
            {"at_start": True, "anywhere": True, "arguments_key": ["parameters", "arguments"]},
            {"open": "<|python_tag|>", "arguments_key": ["parameters", "arguments"], "separator": ";"},
        ],
        "drop": ["<|python_start|>", "<|python_end|>"],
        "thinking_marks": _OFF,
        "chat": _LLAMA4,
    },
    # XTML: marks of one form for messages, calls and arguments. Source: template of Kimi-K3 (2026).
    "kimi_k3": {
        "calls": {
            "body": "tagged",
            "open": '<|open|>call tool="',
            "name_close": '"',
            "skip_to": "<|sep|>",
            "skipped": ' index="{index}"',
            "close": "<|close|>call<|sep|>",
            "key_open": '<|open|>argument key="',
            "key_close": '" type="',
            "value_open": {
                'string"<|sep|>': "text",
                'number"<|sep|>': "json",
                'integer"<|sep|>': "json",
                'boolean"<|sep|>': "json",
                'null"<|sep|>': "json",
                'object"<|sep|>': "json",
                'array"<|sep|>': "json",
            },
            "value_close": "<|close|>argument<|sep|>",
        },
        "section_open": "<|open|>tools<|sep|>",
        "section_close": "<|close|>tools<|sep|>",
        "drop": [
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ],
        "thinking_marks": {
            "open": "<|open|>think<|sep|>",
            "close": "<|close|>think<|sep|>",
            "written": "<|open|>think<|sep|>{thinking}<|close|>think<|sep|>",
        },
        "chat": {
            "turn": '<|open|>message role="{role}"<|sep|>{content}<|close|>message<|sep|><|end_of_msg|>',
            "turns": {"tool": '<|open|>message role="tool" {content}<|close|>message<|sep|><|end_of_msg|>'},
            "result": 'tool="{name}"<|sep|>{content}',
            "result_role": "tool",
            "results_joined": None,
            "said": "<|open|>response<|sep|>{content}<|close|>response<|sep|>",
            "calls_behind": "",
        },
    },
    # ATEM: one call a message, each message with its recipient in its header. Source: template of Muse Glimmer (2026).
    "muse": {
        "calls": {
            "body": "tagged",
            "open": '<atem:invoke name="',
            "name_close": '">',
            "close": "</atem:invoke>",
            "key_open": '<atem:parameter name="',
            "key_close": '">',
            "value_close": "</atem:parameter>",
            "name_pad": "\n",
            "between": "<|eom|><|start|>assistant",
            "untyped": "json",
        },
        "section_open": "<atem:function_calls>",
        "section_close": "</atem:function_calls>",
        "section_each": True,
        "section_pad": "\n",
        "section_head": " to={name}<|message|>",
        "headers": {" to=": "<|message|>", "<|start|>assistant": "<|message|>"},
        "drop": ["<|message|>", "<|eom|>", "<|eot|>"],
        "thinking_marks": {
            "open": " to=self<|message|>",
            "close": "<|eom|>",
            "written": " to=self<|message|>{thinking}<|eom|><|start|>assistant",
        },
        "thinking_open": False,
        "chat": {
            "turn": "<|start|>{role}<|message|>{content}<|eot|>",
            "turns": {"assistant": "<|start|>assistant{content}<|eot|>"},
            "result": '<tool_output name="{name}">\n{content}\n</tool_output>',
            "result_role": "tool",
            "results_joined": None,
            "said": " to=user<|message|>{content}",
            "said_before": " to=user<|message|>{content}<|eom|><|start|>assistant",
            "calls_behind": "",
        },
    },
}
