"""The built-in families whose calls are tagged parameters, pairs of key and value, or Gemma's grammar, one row each.

Formats: the chat templates that the families publish (2025 and 2026), and what vLLM 0.33's tool parsers of the same
names accept (Apache-2.0; facts only).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["DEEPSEEK", "TAGGED_ROWS"]

Row = Mapping[str, Any]

_TAGS: Final[Row] = {
    "body": "tagged",
    "open": "<function=",
    "name_close": ">",
    "close": "</function>",
    "key_open": "<parameter=",
    "key_close": ">",
    "value_close": "</parameter>",
    "trim": "newline",
    "values": "scalars",
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
    "name_pad": "\n",
    "between": "\n",
}
_CLOSED_PAIRS: Final[Row] = {**_PAIRS, "name_pad": "", "between": ""}
_GLM: Final[Row] = {
    "begin": "[gMASK]<sop>",
    "turn": "<|{role}|>\n{content}",
    "result": "<tool_response>\n{content}\n</tool_response>",
    "result_role": "observation",
}
_IN_TOOL_CALL: Final[Row] = {
    "section_open": "<tool_call>",
    "section_close": "</tool_call>",
    "section_each": True,
    "section_pad": "\n",
}
_TAG_OFFERS: Final = ["open_parameters", "open_tags", "bare_calls", "open_calls"]
# A prompt that opens a block of thinking: a call in a block that is not closed is not meant. vLLM's parsers run it.
_OPEN: Final[Row] = {"thinking_open": True}
_TIGHT_THINKING: Final[Row] = {"open": "<think>", "close": "</think>", "written": "<think>{thinking}</think>"}


DEEPSEEK: Final[Row] = {
    "begin": "<｜begin▁of▁sentence｜>",
    "turn": "<｜{role}｜>{content}",
    "roles": {"user": "User"},
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
_GEMMA: Final[Row] = {
    "begin": "<bos>",
    "turn": "<start_of_turn>{role}\n{content}<end_of_turn>\n",
    "roles": {"assistant": "model", "system": "developer"},
    "result": "<start_function_response>response:{name}{value:<escape>{content}<escape>}<end_function_response>",
    "result_role": "user",
    "results_joined": "",
    "strips": True,
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
            "value_open": {' string="true">': "text", ' string="false">': "json", ">": "json"},
            "value_close": f"{end}parameter>",
            "name_pad": "\n",
            "between": "\n",
        },
        "section_open": f"<｜DSML｜{section}>",
        "section_close": f"</｜DSML｜{section}>",
        "section_pad": "\n",
        "chat": DEEPSEEK,
        "offers": ["unwrap", "schema_over_mark", "bare_calls", "open_calls", "python_literals"],
    }


TAGGED_ROWS: Final[Mapping[str, Row]] = {
    # Tags around each parameter, values typed by the tool's schema.
    "qwen3_coder": {
        **_IN_TOOL_CALL,
        "calls": _TAGS,
        "chat": {"results_joined": "\n", "calls_behind": "\n\n"},
        "offers": _TAG_OFFERS,
    },
    # Qwen3.5, 3.6 and 3.8. Turn thinking off with `thinking: false`.
    "qwen3_5": {
        **_IN_TOOL_CALL,
        **_OPEN,
        "calls": _TAGS,
        "chat": {"results_joined": "\n", "calls_behind": "\n\n", "drops_thinking": False},
        "offers": [*_TAG_OFFERS, "open_thinking"],
    },
    "nemotron_3": {
        **_IN_TOOL_CALL,
        **_OPEN,
        "calls": _TAGS,
        "thinking_marks": {"open": "<think>", "close": "</think>", "written": "<think>\n{thinking}\n</think>\n"},
        "chat": {"results_joined": "\n", "drops_thinking": False},
        "offers": [*_TAG_OFFERS, "open_thinking"],
    },
    "step3p5": {
        **_IN_TOOL_CALL,
        **_OPEN,
        "calls": {**_TAGS, "between": ""},
        "thinking_marks": {"open": "<think>", "close": "</think>", "written": "<think>\n{thinking}\n</think>\n"},
        "chat": {"calls_behind": "", "drops_thinking": False},
        "offers": [*_TAG_OFFERS, "open_thinking"],
    },
    "step5": {
        **_IN_TOOL_CALL,
        **_OPEN,
        "calls": _TAGS,
        "thinking_marks": {"open": "<think>", "close": "</think>", "written": "<think>\n{thinking}\n</think>\n"},
        "chat": {"turn": "<|BOT|>{role}\n{content}<|EOT|>", "drops_thinking": False},
        "offers": [*_TAG_OFFERS, "open_thinking"],
    },
    "mimo": {
        **_IN_TOOL_CALL,
        "calls": {**_TAGS, "trim": "nothing", "value_pad": ""},
        "offers": _TAG_OFFERS,
    },
    "seed_oss": {
        "calls": {**_TAGS, "trim": "lines", "value_pad": "", "values": "python"},
        "section_open": "<seed:tool_call>",
        "section_close": "</seed:tool_call>",
        "section_each": True,
        "section_pad": "\n",
        "thinking_marks": {
            "open": "<seed:think>",
            "close": "</seed:think>",
            "written": "<seed:think>{thinking}</seed:think>\n",
        },
        "chat": {
            "turn": "<seed:bos>{role}\n{content}<seed:eos>",
            "result": "{content}",
            "result_role": "tool",
            "results_joined": None,
            "calls_behind": "\n\n",
        },
        "offers": _TAG_OFFERS,
    },
    "minimax_m2": {
        **_OPEN,
        "calls": {
            "body": "tagged",
            "open": '<invoke name="',
            "name_close": '">',
            "close": "</invoke>",
            "key_open": '<parameter name="',
            "key_close": '">',
            "value_close": "</parameter>",
            "name_pad": "\n",
            "between": "\n",
        },
        "section_open": "<minimax:tool_call>",
        "section_close": "</minimax:tool_call>",
        "section_pad": "\n",
        "chat": {
            "turn": "]~b]{role}\n{content}[e~[\n",
            "roles": {"assistant": "ai"},
            "result": "<response>{content}</response>",
            "result_role": "tool",
            "drops_thinking": False,
        },
        "offers": ["open_parameters", "bare_calls", "open_calls", "open_thinking"],
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
            "untyped": "json",
            "values": "python",
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
            {"open": "<dots_function_call>", "close": "</dots_function_call>", "shape": "either"},
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
            "nested": True,
            "between": "\n",
        },
        "section_open": "]<]minimax[>[<tool_call>",
        "section_close": "]<]minimax[>[</tool_call>",
        "section_pad": "\n",
        "thinking_marks": {"open": "<mm:think>", "close": "</mm:think>", "written": "<mm:think>{thinking}</mm:think>"},
        "chat": {
            "turn": "]~b]{role}\n{content}[e~[\n",
            "roles": {"assistant": "ai"},
            "result": "<response>{content}</response>",
            "result_role": "tool",
            "calls_behind": "",
        },
        "offers": ["repeated_tags"],
    },
    # Pairs of key and value.
    "glm45": {
        "calls": {**_PAIRS, "known": "tools"},
        "thinking_marks": {"open": "<think>", "close": "</think>", "written": "\n<think>{thinking}</think>\n"},
        "chat": _GLM,
    },
    "glm47": {
        **_OPEN,
        "calls": {**_CLOSED_PAIRS, "known": "tools"},
        "thinking_marks": _TIGHT_THINKING,
        "chat": {**_GLM, "turn": "<|{role}|>{content}", "calls_behind": "", "drops_thinking": False},
        "offers": ["open_thinking"],
    },
    "ling3": {
        **_OPEN,
        "calls": _PAIRS,
        "thinking_marks": _TIGHT_THINKING,
        "chat": {"drops_thinking": False},
        "offers": ["open_thinking"],
    },
    "poolside_v1": {"calls": {**_CLOSED_PAIRS, "untyped": "json"}, "thinking_marks": _TIGHT_THINKING},
    # Tencent's open release writes the suffix, its parser in vLLM takes the one of the tokenizer.
    "hy_v3": {
        "calls": {**_PAIRS, "name_close": "<tool_sep>"},
        "section_open": "<tool_calls>",
        "section_close": "</tool_calls>",
        "section_pad": "\n",
        "suffixes": [":opensource", ""],
        "thinking_marks": _TIGHT_THINKING,
        "chat": {"calls_behind": ""},
    },
    "hy_v4": {
        "calls": _CLOSED_PAIRS,
        "section_open": "<tool_calls>",
        "section_close": "</tool_calls>",
        "suffixes": ["", ":opensource"],
        "thinking_marks": _TIGHT_THINKING,
        "chat": {"calls_behind": ""},
    },
    "k2_horizon": {
        "calls": [
            {
                "open": "<ifm|tool_call>",
                "close": "</ifm|tool_call>",
                "starts": "{",
                "known": "tools",
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
                "known": "tools",
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
        "thinking_marks": {
            "open": "<|channel>thought\n",
            "close": "<channel|>",
            "written": "<|channel>thought\n{thinking}\n<channel|>",
        },
        "offers": ["spellings", "missing_arguments", "open_calls", "open_bodies", "typed_strings"],
    },
    "functiongemma": {
        "calls": {
            "body": "gemma",
            "open": "<start_function_call>",
            "close": "<end_function_call>",
            "before_name": "call:",
            "quote": "<escape>",
            "values": "python",
        },
        "chat": _GEMMA,
        "thinking_marks": {"open": "", "close": "", "written": ""},
        "offers": ["open_calls", "open_bodies", "missing_arguments"],
    },
}
