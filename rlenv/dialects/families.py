"""The built-in model families, one row each. A row is data of `DialectSpec`; nothing here runs.

Formats: the chat templates that the families publish, and what vLLM 0.33's tool parsers of the same names accept
(Apache-2.0; facts only). What a row offers as leniency is what that parser reads beyond the family's own format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rlenv.dialects.json_families import JSON_ROWS
from rlenv.dialects.tagged_families import DEEPSEEK as _DEEPSEEK
from rlenv.dialects.tagged_families import TAGGED_ROWS

__all__ = ["ROWS"]

Row = Mapping[str, Any]

# Pieces that several families share.
_LLAMA: Final[Row] = {
    "begin": "<|begin_of_text|>",
    "turn": "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
    "roles": {"tool": "ipython"},
    "result": "{content}",
    "result_role": "tool",
    "results_joined": None,
    "strips": True,
}
_LLAMA4: Final[Row] = {
    **_LLAMA,
    "turn": "<|header_start|>{role}<|header_end|>\n\n{content}<|eot|>",
}
_GRANITE: Final[Row] = {
    "turn": "<|start_of_role|>{role}<|end_of_role|>{content}<|end_of_text|>\n",
    "result": "{content}",
    "result_role": "tool",
    "results_joined": None,
}
_MISTRAL: Final[Row] = {
    "begin": "<s>",
    "turn": "[INST] {content}[/INST]",
    "turns": {
        "system": "[SYSTEM_PROMPT]{content}[/SYSTEM_PROMPT]",
        "assistant": "{content}</s>",
        "tool": "[TOOL_RESULTS]{content}[/TOOL_RESULTS]",
    },
    "result": "{content}",
    "result_role": "tool",
    "results_joined": None,
    "calls_behind": "",
}
_NAMES: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.$"
_MISTRAL_LIST: Final[Row] = {"open": "[TOOL_CALLS]", "starts": "[{", "shape": "either", "id_key": "id"}
_QWEN_TOOLS: Final = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_HERMES_CALL: Final[Row] = {"open": "<tool_call>", "close": "</tool_call>", "pad": "\n", "between": "\n"}
_OFF: Final[Row] = {"open": "", "close": "", "written": ""}
_JSON_OFFERS: Final = ["arguments_as_text", "open_calls", "open_bodies", "python_literals", "raw_strings"]

ROWS: Final[Mapping[str, Row]] = {
    # JSON between marks. Source of the chat: chat_template of Qwen/Qwen3-8B, tokenizer_config.json (April 2025).
    "hermes": {"calls": _HERMES_CALL, "chat": {"tools": _QWEN_TOOLS}, "offers": ["open_calls"]},
    "qwen2_5": {
        "calls": _HERMES_CALL,
        "chat": {
            "tools": _QWEN_TOOLS,
            "system_default": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        },
        "thinking_marks": _OFF,
        "offers": ["open_calls"],
    },
    "granite4": {
        "calls": _HERMES_CALL,
        "chat": _GRANITE,
        "thinking_marks": _OFF,
        "offers": ["arguments_as_text"],
    },
    "ernie45": {"calls": _HERMES_CALL, "offers": ["missing_arguments"]},
    "longcat": {
        "calls": {"open": "<longcat_tool_call>", "close": "</longcat_tool_call>", "between": "\n"},
        "thinking_marks": {
            "open": "<longcat_think>",
            "close": "</longcat_think>",
            "written": "<longcat_think>\n{thinking}\n</longcat_think>\n",
        },
        "offers": ["open_calls"],
    },
    "jamba": {
        "calls": {"open": "<tool_calls>", "close": "</tool_calls>", "shape": "list"},
        "thinking_marks": _OFF,
    },
    "hunyuan_a13b": {
        "calls": {"open": "<tool_calls>", "close": "</tool_calls>", "shape": "list"},
        "offers": ["arguments_as_text"],
    },
    "apertus": {
        "calls": {"open": "<|tools_prefix|>", "close": "<|tools_suffix|>", "shape": "list", "by_name": True},
        "thinking_marks": {
            "open": "<|inner_prefix|>",
            "close": "<|inner_suffix|>",
            "written": "<|inner_prefix|>{thinking}<|inner_suffix|>",
        },
        "offers": ["open_calls", "open_bodies"],
    },
    "internlm": {
        "calls": {
            "open": "<|action_start|><|plugin|>",
            "close": "<|action_end|>",
            "arguments_key": ["parameters", "arguments"],
        },
        "chat": {"result": "{content}", "result_role": "environment", "results_joined": None},
        "offers": ["open_calls"],
    },
    "inkling": {
        "calls": {
            "open": "<|content_invoke_tool_json|>",
            "close": ["<|end_message|>", "<|content_model_end_sampling|>"],
            "arguments_key": "args",
        },
        "drop": ["<|message_model|>", "<|content_text|>", "<|end_message|>", "<|content_model_end_sampling|>"],
        "thinking_marks": {
            "open": "<|content_thinking|>",
            "close": "<|end_message|>",
            "written": "<|content_thinking|>{thinking}<|end_message|>",
        },
        "thinking_open": False,
        "offers": ["arguments_as_text", "open_calls"],
    },
    # JSON behind a mark; it ends where the JSON ends.
    "granite": {
        "calls": {"open": ["<|tool_call|>", "<tool_call>"], "shape": "list"},
        "chat": _GRANITE,
        "offers": ["arguments_as_text", "missing_arguments"],
    },
    "granite-20b-fc": {
        "calls": {"open": "<function_call>", "pad": " ", "between": "\n"},
        "chat": _GRANITE,
        "thinking_marks": _OFF,
    },
    "phi4_mini_json": {
        "calls": [
            {"open": "functools", "starts": "[", "shape": "list", "arguments_key": ["arguments", "parameters"]},
            {
                "open": "<|tool_call|>",
                "close": "<|/tool_call|>",
                "close_is_optional": True,
                "shape": "either",
                "arguments_key": ["arguments", "parameters"],
            },
        ],
        "chat": {"turn": "<|{role}|>{content}<|end|>", "result": "{content}", "result_role": "tool"},
        "thinking_marks": _OFF,
    },
    "gigachat3": {
        "calls": {"open": ["<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>\n"]},
        "chat": {
            "turn": "{role}<|role_sep|>\n{content}<|message_sep|>\n\n",
            "result": "{content}",
            "result_role": "function result",
            "results_joined": None,
            "calls_behind": "",
        },
        "drop": ["</s>"],
        "thinking_marks": _OFF,
        "offers": ["raw_strings"],
    },
    "llama3_json": {
        "calls": [
            {"at_start": True, "anywhere": True, "arguments_key": ["parameters", "arguments"], "separator": "; "},
            {"open": "<|python_tag|>", "arguments_key": ["parameters", "arguments"], "separator": ";"},
        ],
        "chat": {**_LLAMA, "tools_role": "user"},
        "thinking_marks": _OFF,
    },
    "xlam": {
        "calls": [
            {"at_start": True, "shape": "either", "arguments_key": ["arguments", "parameters"]},
            {
                "open": ["```json", "```"],
                "close": "```",
                "starts": "[{",
                "shape": "either",
                "arguments_key": ["arguments", "parameters"],
            },
            {"open": "[TOOL_CALLS]", "shape": "either"},
            {"open": "<tool_call>", "close": "</tool_call>", "shape": "either"},
        ],
        "chat": {**_LLAMA, "content_behind": True},
        "offers": ["arguments_as_text"],
    },
    # A name, then JSON.
    "deepseek_v3": {
        "calls": {
            "body": "name_json",
            "open": "<｜tool▁call▁begin｜>",
            "close": "<｜tool▁call▁end｜>",
            "before_name": "function<｜tool▁sep｜>",
            "after_name": "\n```json\n",
            "after_arguments": "\n```",
            "between": "\n",
        },
        "section_open": "<｜tool▁calls▁begin｜>",
        "section_close": "<｜tool▁calls▁end｜>",
        "chat": _DEEPSEEK,
    },
    "deepseek_v31": {
        "calls": {
            "body": "name_json",
            "open": "<｜tool▁call▁begin｜>",
            "close": "<｜tool▁call▁end｜>",
            "after_name": "<｜tool▁sep｜>",
        },
        "section_open": "<｜tool▁calls▁begin｜>",
        "section_close": "<｜tool▁calls▁end｜>",
        "chat": _DEEPSEEK,
    },
    "kimi_k2": {
        "calls": {
            "body": "name_json",
            "open": "<|tool_call_begin|>",
            "close": "<|tool_call_end|>",
            "before_name": "functions.",
            "after_name": "<|tool_call_argument_begin|>",
            "indexed": True,
        },
        "section_open": "<|tool_calls_section_begin|>",
        "section_close": "<|tool_calls_section_end|>",
        "thinking_marks": {"open": "◁think▷", "close": "◁/think▷", "written": "◁think▷{thinking}◁/think▷"},
        "chat": {
            "turn": "<|im_{role}|>{role}<|im_middle|>{content}<|im_end|>",
            "turns": {"tool": "<|im_system|>tool<|im_middle|>{content}<|im_end|>"},
            "result": "## Return of {id}\n{content}",
            "result_role": "tool",
            "results_joined": None,
            "calls_behind": "",
        },
        "offers": ["open_calls", "missing_arguments"],
    },
    # Tokenizers from v11 on: a name and its arguments behind each mark, up to v13 with an id between.
    "mistral": {
        "calls": [
            {
                "body": "name_json",
                "open": "[TOOL_CALLS]",
                "starts": _NAMES,
                "after_name": ["[ARGS]", "{"],
                "id_mark": "[CALL_ID]",
            },
            _MISTRAL_LIST,
        ],
        "chat": _MISTRAL,
        "thinking_marks": {"open": "[THINK]", "close": "[/THINK]", "written": "[THINK]{thinking}[/THINK]"},
        "offers": ["arguments_as_text", "missing_arguments"],
    },
    # Tokenizers before v11 (7B v0.3, Nemo, Small 3.1): one list of objects, each with its id.
    "mistral_v3": {
        "calls": [
            _MISTRAL_LIST,
            {"body": "name_json", "open": "[TOOL_CALLS]", "after_name": ["[ARGS]", "{"], "id_mark": "[CALL_ID]"},
        ],
        "chat": {**_MISTRAL, "result": '{"content": {content}, "call_id": "{id}"}'},
        "thinking_marks": _OFF,
        "offers": ["arguments_as_text", "missing_arguments"],
    },
    "plamo3": {
        "calls": {
            "body": "name_json",
            "open": "<|plamo:begin_tool_request:plamo|>",
            "close": "<|plamo:end_tool_request:plamo|>",
            "before_name": "<|plamo:begin_tool_name:plamo|>",
            "after_name": "<|plamo:end_tool_name:plamo|>",
            "before_arguments": ("<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"),
            "after_arguments": "<|plamo:end_tool_arguments:plamo|>",
        },
        "section_open": "<|plamo:begin_tool_requests:plamo|>",
        "section_close": "<|plamo:end_tool_requests:plamo|>",
        "offers": ["open_calls", "missing_arguments"],
    },
    # Calls as Python writes them.
    "pythonic": {
        "calls": {"body": "pythonic", "at_start": True},
        # The templates that write content beside calls write it behind them.
        "chat": {**_LLAMA, "content_behind": True},
        "thinking_marks": _OFF,
        "offers": ["sets_as_lists"],
    },
    "llama4_pythonic": {
        "calls": [
            {"body": "pythonic", "at_start": True, "anywhere": True},
            {"body": "pythonic", "open": "<|python_start|>", "close": "<|python_end|>", "close_is_optional": True},
        ],
        "drop": ["<|python_end|>"],
        "chat": _LLAMA4,
        "thinking_marks": _OFF,
        "offers": ["sets_as_lists"],
    },
    "olmo3": {
        "calls": {
            "body": "pythonic",
            "open": "<function_calls>",
            "close": "</function_calls>",
            "separator": "\n",
        },
        "chat": {"result": "{content}", "result_role": "environment"},
        "offers": ["sets_as_lists"],
    },
    "lfm2": {
        "calls": {"body": "pythonic", "open": "<|tool_call_start|>", "close": "<|tool_call_end|>"},
        "chat": {
            "begin": "<|startoftext|>",
            "result": "<|tool_response_start|>{content}<|tool_response_end|>",
            "result_role": "tool",
            "results_joined": None,
        },
        "offers": ["raw_strings", "sets_as_lists", "inner_quotes", "open_calls"],
    },
    **TAGGED_ROWS,
    # Not tied to one model.
    "search_r1": {
        "calls": {"body": "text", "open": "<search>", "close": "</search>", "tool": "search"},
        # Search-R1 continues one text: results and its words on an action without a tag stand in the assistant's turn.
        # Its reading knows no thinking: a tag counts wherever it stands. Source: search_r1/llm_agent/generation.py,
        # execute_predictions and postprocess_predictions.
        "chat": {
            "same_turn": True,
            "result": "\n\n<information>{content}</information>\n\n",
            "reply": "\n{content}\n",
        },
        "thinking_marks": _OFF,
    },
    "react": {
        "calls": {
            "body": "name_json",
            "open": "Action:",
            "before_name": " ",
            "after_name": ["\nAction Input: ", "Action Input:"],
            "plain": True,
            "close": "\nObservation:",
            "close_is_optional": True,
            "between": "\n",
        },
        "chat": {"result": "Observation: {content}"},
        "thinking_marks": {"open": "<think>", "close": "</think>"},
    },
    "xml": {
        "calls": {
            "body": "tagged",
            "open": '<call name="',
            "name_close": '">',
            "close": "</call>",
            "key_open": '<arg name="',
            "key_close": '">',
            "value_close": "</arg>",
            "cdata": True,
            "between": "\n",
        },
        "chat": {"result": "<result>\n{content}\n</result>"},
        "offers": ["open_parameters", "open_calls"],
    },
    "xml_json": {
        "calls": {"open": "<tool>", "close": "</tool>", "pad": "\n", "arguments_key": "args", "between": "\n"},
        "chat": {"result": "<result>\n{content}\n</result>"},
        "offers": _JSON_OFFERS,
    },
    **JSON_ROWS,
}
