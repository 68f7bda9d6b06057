"""The built-in model families, one row each. A row is data of `DialectSpec`; nothing here runs.

Formats: the chat templates that the families publish, and what vLLM 0.33's tool parsers of the same names accept
(Apache-2.0; facts only). What a row offers as leniency is what that parser reads beyond the family's own format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ROWS"]

Row = Mapping[str, Any]

# Pieces that several families share.
_TAGS: Final[Row] = {
    "body": "tagged",
    "open": "<function=",
    "name_close": ">",
    "close": "</function>",
    "key_open": "<parameter=",
    "key_close": ">",
    "value_close": "</parameter>",
    "trim": "newline",
    "name_pad": "\n",
    "value_pad": "\n",
    "between": "\n",
}
_PAIRS: Final[Row] = {
    "body": "tagged",
    "open": "<tool_call>",
    "close": "</tool_call>",
    "key_open": "<arg_key>",
    "key_close": "</arg_key>",
    "value_open": {"<arg_value>": "schema"},
    "value_close": "</arg_value>",
    "untyped": "json",
    "name_pad": "\n",
    "between": "\n",
}


def _dsml(section: str, space: str = "") -> Row:
    """DeepSeek's markup from V3.2 on: the mark before each name, and whether a value is a string beside it."""
    tag = f"<｜DSML｜{space}"
    end = f"</｜DSML｜{space}"
    return {
        "calls": {
            "body": "tagged",
            "open": f'{tag}invoke name="',
            "name_close": '">',
            "close": f"{end}invoke>",
            "key_open": f'{tag}parameter name="',
            "key_close": '"',
            "value_open": {' string="true">': "text", ' string="false">': "json", ">": "schema"},
            "value_close": f"{end}parameter>",
            "name_pad": "\n",
            "between": "\n",
        },
        "section_open": f"<｜DSML｜{section}>",
        "section_close": f"</｜DSML｜{section}>",
        "section_pad": "\n",
        "chat": _DEEPSEEK,
        "offers": ["unwrap", "schema_over_mark", "bare_calls", "open_calls", "python_literals"],
    }


_DEEPSEEK: Final[Row] = {
    "begin": "<｜begin▁of▁sentence｜>",
    "turn": "<｜{role}｜>{content}",
    "roles": {"user": "User", "assistant": "Assistant"},
    "turns": {
        "system": "{content}",
        "assistant": "<｜Assistant｜>{content}<｜end▁of▁sentence｜>",
        "tool": "<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>",
    },
    "result": "{content}",
    "result_role": "tool",
    "results_joined": None,
    "calls_behind": "",
}
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
_GEMMA: Final[Row] = {
    "begin": "<bos>",
    "turn": "<start_of_turn>{role}\n{content}<end_of_turn>\n",
    "roles": {"assistant": "model", "system": "developer"},
    "result": "<start_function_response>response:{name}{value:<escape>{content}<escape>}<end_function_response>",
    "result_role": "user",
    "results_joined": "",
    "strips": True,
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
    "result": "{id}[TOOL_CONTENT]{content}",
    "result_role": "tool",
    "results_joined": None,
    "calls_behind": "",
}
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
    "hermes": {"calls": _HERMES_CALL, "chat": {"tools": _QWEN_TOOLS}, "offers": _JSON_OFFERS},
    "qwen2_5": {
        "calls": _HERMES_CALL,
        "chat": {
            "tools": _QWEN_TOOLS,
            "system_default": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
            "drops_thinking": False,
        },
        "thinking_marks": _OFF,
        "offers": _JSON_OFFERS,
    },
    "granite4": {"calls": _HERMES_CALL, "chat": _GRANITE, "thinking_marks": _OFF, "offers": _JSON_OFFERS},
    "ernie45": {"calls": _HERMES_CALL, "offers": _JSON_OFFERS},
    "longcat": {
        "calls": {"open": "<longcat_tool_call>", "close": "</longcat_tool_call>", "between": "\n"},
        "thinking_marks": {"open": "<longcat_think>", "close": "</longcat_think>"},
        "offers": _JSON_OFFERS,
    },
    "jamba": {
        "calls": {"open": "<tool_calls>", "close": "</tool_calls>", "shape": "list"},
        "thinking_marks": _OFF,
        "offers": _JSON_OFFERS,
    },
    "hunyuan_a13b": {
        "calls": {"open": "<tool_calls>", "close": "</tool_calls>", "shape": "list"},
        "offers": _JSON_OFFERS,
    },
    "apertus": {
        "calls": {"open": "<|tools_prefix|>", "close": "<|tools_suffix|>", "shape": "list", "by_name": True},
        "thinking_marks": {"open": "<|inner_prefix|>", "close": "<|inner_suffix|>"},
        "offers": ["open_calls", "open_bodies"],
    },
    "internlm": {
        "calls": {
            "open": "<|action_start|><|plugin|>",
            "close": "<|action_end|>",
            "arguments_key": ["parameters", "arguments"],
        },
        "chat": {"result": "{content}", "result_role": "environment", "results_joined": None},
        "offers": _JSON_OFFERS,
    },
    "inkling": {
        "calls": {
            "open": "<|content_invoke_tool_json|>",
            "close": ["<|end_message|>", "<|content_model_end_sampling|>"],
            "arguments_key": "args",
        },
        "drop": ["<|message_model|>", "<|content_text|>", "<|end_message|>", "<|content_model_end_sampling|>"],
        "thinking_marks": {"open": "<|content_thinking|>", "close": "<|end_message|>"},
        "thinking_open": False,
    },
    # JSON behind a mark; it ends where the JSON ends.
    "granite": {
        "calls": {"open": ["<|tool_call|>", "<tool_call>"], "starts": "[", "shape": "list"},
        "chat": _GRANITE,
        "offers": ["raw_strings"],
    },
    "granite-20b-fc": {
        "calls": {"open": "<function_call>", "pad": " ", "between": "\n"},
        "chat": _GRANITE,
        "thinking_marks": _OFF,
    },
    "phi4_mini_json": {
        "calls": {
            "open": "functools",
            "starts": "[",
            "shape": "list",
            "arguments_key": ["arguments", "parameters"],
        },
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
    },
    "llama3_json": {
        "calls": [
            {"at_start": True, "arguments_key": ["parameters", "arguments"], "separator": "; "},
            {"open": "<|python_tag|>", "arguments_key": ["parameters", "arguments"], "separator": ";", "starts": "{"},
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
            {"open": "[TOOL_CALLS]", "starts": "[{", "shape": "either"},
            {"open": "<tool_call>", "close": "</tool_call>", "starts": "[{", "shape": "either"},
        ],
        "chat": _LLAMA,
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
        "offers": ["bare_calls", "open_calls"],
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
        "offers": ["bare_calls", "open_calls"],
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
        "offers": ["open_calls"],
    },
    "mistral": {
        "calls": [
            {"open": "[TOOL_CALLS]", "starts": "[", "shape": "list"},
            {
                "body": "name_json",
                "open": "[TOOL_CALLS]",
                "after_name": ["[ARGS]", "{"],
                "id_mark": "[CALL_ID]",
            },
        ],
        "chat": _MISTRAL,
        "thinking_marks": {"open": "[THINK]", "close": "[/THINK]", "written": "[THINK]{thinking}[/THINK]"},
        "offers": ["missing_arguments"],
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
        "chat": _LLAMA,
        "thinking_marks": _OFF,
        "offers": ["raw_strings", "sets_as_lists", "inner_quotes"],
    },
    "llama4_pythonic": {
        "calls": [
            {"body": "pythonic", "at_start": True},
            {"body": "pythonic", "open": "<|python_start|>", "close": "<|python_end|>", "close_is_optional": True},
        ],
        "drop": ["<|python_end|>"],
        "chat": _LLAMA4,
        "thinking_marks": _OFF,
        "offers": ["raw_strings", "sets_as_lists", "inner_quotes"],
    },
    "olmo3": {
        "calls": {
            "body": "pythonic",
            "open": "<function_calls>",
            "close": "</function_calls>",
            "separator": "\n",
        },
        "chat": {"result": "{content}", "result_role": "environment"},
        "offers": ["raw_strings", "open_calls"],
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
    # Tags around each parameter, values typed by the tool's schema.
    "qwen3_coder": {
        "calls": _TAGS,
        "section_open": "<tool_call>",
        "section_close": "</tool_call>",
        "section_each": True,
        "section_pad": "\n",
        "chat": {"results_joined": "\n", "calls_behind": "\n"},
        "offers": ["open_parameters", "open_tags", "bare_calls", "open_calls"],
    },
    "step3p5": {
        "calls": _TAGS,
        "section_open": "<tool_call>",
        "section_close": "</tool_call>",
        "section_each": True,
        "section_pad": "\n",
        "offers": ["open_parameters", "open_tags", "bare_calls", "open_calls"],
    },
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v41": _dsml(" calls", " "),
    "minicpm5": {
        "calls": {
            "body": "tagged",
            "open": '<function name="',
            "spellings": ['<functionname="', '<functionĠname="'],
            "name_close": '">',
            "close": "</function>",
            "key_open": '<param name="',
            "key_spellings": ['<paramname="', '<paramĠname="'],
            "key_close": '">',
            "value_close": "</param>",
            "cdata": True,
            "known": "parameters",
            "between": "\n",
        },
        "offers": ["spellings", "unwrap", "python_literals", "extra_parameters"],
    },
    "step3": {
        "calls": {
            "body": "tagged",
            "open": '<steptml:invoke name="',
            "name_close": '">',
            "close": "</steptml:invoke>",
            "key_open": '<steptml:parameter name="',
            "key_close": '">',
            "value_close": "</steptml:parameter>",
        },
        "section_open": "<｜tool_calls_begin｜>",
        "section_close": "<｜tool_calls_end｜>",
        "drop": ["<｜tool_call_begin｜>", "<｜tool_call_end｜>", "function<｜tool_sep｜>"],
        "chat": {
            "begin": "<｜begin▁of▁sentence｜>",
            "turn": "<|BOT|>{role}\n{content}<|EOT|>",
            "result": "<tool_output>\n{content}\n</tool_output>",
            "result_role": "user",
        },
    },
    "dots": {
        "calls": [
            {
                "body": "tagged",
                "open": '<invoke name="',
                "name_close": '">',
                "close": "</invoke>",
                "key_open": '<parameter name="',
                "key_close": '">',
                "value_close": "</parameter>",
                "known": "tools",
            },
            {"open": "<dots_function_call>", "close": "</dots_function_call>", "starts": "[{", "shape": "either"},
        ],
        "section_open": "<dots_function_call>",
        "section_close": "</dots_function_call>",
    },
    "minimax_m3": {
        "calls": {
            "body": "tagged",
            "open": ']<]minimax[>[<invoke name="',
            "name_close": '">',
            "close": "]<]minimax[>[</invoke>",
            "key_open": "]<]minimax[>[<",
            "key_close": ">",
            "value_close": "]<]minimax[>[</{key}>",
            "between": "\n",
        },
        "section_open": "]<]minimax[>[<tool_call>",
        "section_close": "]<]minimax[>[</tool_call>",
        "section_pad": "\n",
    },
    # Pairs of key and value.
    "glm45": {
        "calls": {**_PAIRS, "trim": "space", "known": "tools"},
        "chat": {
            "begin": "[gMASK]<sop>",
            "turn": "<|{role}|>\n{content}",
            "result": "<tool_response>\n{content}\n</tool_response>",
            "result_role": "observation",
        },
    },
    "ling3": {"calls": _PAIRS},
    "poolside_v1": {"calls": _PAIRS},
    "hy_v3": {
        "calls": {**_PAIRS, "name_close": "<tool_sep>"},
        "section_open": "<tool_calls>",
        "section_close": "</tool_calls>",
        "section_pad": "\n",
    },
    "k2_horizon": {
        "calls": [
            {
                "open": "<ifm|tool_call>",
                "close": "</ifm|tool_call>",
                "starts": "{",
            },
            {
                "body": "tagged",
                "open": "<ifm|tool_call>",
                "close": "</ifm|tool_call>",
                "key_open": "<ifm|arg_key>",
                "key_close": "</ifm|arg_key>",
                "type_open": "<ifm|arg_type>",
                "type_close": "</ifm|arg_type>",
                "value_open": {"<ifm|arg_value>": "schema"},
                "value_close": "</ifm|arg_value>",
                "untyped": "json",
                "known": "parameters",
            },
        ],
        "section_open": "<ifm|tool_calls>",
        "section_close": "</ifm|tool_calls>",
        "section_must_close": True,
        "offers": ["typed_strings"],
    },
    # Gemma's own.
    "gemma4": {
        "calls": {
            "body": "gemma",
            "open": "<|tool_call>",
            "close": "<tool_call|>",
            "before_name": "call:",
            "quote": '<|"|>',
        },
        "chat": {
            **_GEMMA,
            "turn": "<|turn>{role}\n{content}<turn|>\n",
            "result": '<|tool_response>response:{name}{value:<|"|>{content}<|"|>}<tool_response|>',
        },
        "thinking_marks": {"open": "<|channel>thought\n", "close": "<channel|>"},
        "offers": ["spellings", "missing_arguments", "open_calls", "open_bodies"],
    },
    "functiongemma": {
        "calls": {
            "body": "gemma",
            "open": "<start_function_call>",
            "close": "<end_function_call>",
            "before_name": "call:",
            "quote": "<escape>",
        },
        "chat": _GEMMA,
        "thinking_marks": _OFF,
        "offers": ["open_calls", "open_bodies", "missing_arguments"],
    },
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
            "after_name": "Action Input:",
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
}
