"""Calls whose values stand between tags, as pairs or in Gemma's grammar: written as each family's own template does,
whatever the values, and read back in the types of the tool's schema."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
import pytest
from pydantic import BaseModel

from rlenv import dialects
from rlenv.dialects.built_in import row_of
from rlenv.dialects.engine import TextDialect
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall
from rlenv.tokens.vocabulary import ChatTemplate
from tests.support import real

# What each family's chat template writes for the calls of a message, in our own words. Filters: `text` strings bare and
# all else as JSON; `scalar` as Jinja prints it, lists and objects as JSON; `repr` as Jinja prints it; `quoted` Gemma's.
QWEN = (
    "{% for c in calls %}<tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments.items() %}<parameter={{ k }}>"
    "\n{{ v | scalar }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{{ '' if loop.last else '\n' }}{% endfor %}"
)
PAIRS = (
    "{% for c in calls %}<tool_call>{{ c.name }}{% for k, v in c.arguments.items() %}<arg_key>{{ k }}</arg_key>"
    "<arg_value>{{ v | text }}</arg_value>{% endfor %}</tool_call>{% endfor %}"
)
LINES = PAIRS.replace("</arg_key>", "</arg_key>\n").replace("{{ c.name }}", "{{ c.name }}\n")
DSML = (
    '<｜DSML｜SECTION>\n{% for c in calls %}<｜DSML｜invoke name="{{ c.name }}">\n{% for k, v in c.arguments.items() %}'
    "<｜DSML｜parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">{{ v | text }}"
    "</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n{% endfor %}</｜DSML｜SECTION>"
)
GEMMA = (
    "{% for c in calls %}<|tool_call>call:{{ c.name }}{{ '{' }}{% for k, v in c.arguments | dictsort %}{{ k }}:"
    "{{ v | quoted }}{{ '' if loop.last else ',' }}{% endfor %}{{ '}' }}<tool_call|>{% endfor %}"
)
HY = (
    "<tool_calls>\n{% for c in calls %}<tool_call>{{ c.name }}<tool_sep>\n{% for k, v in c.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v | text }}</arg_value>\n{% endfor %}</tool_call>\n{% endfor %}"
    "</tool_calls>"
)
FORMS: Mapping[str, str] = {
    "qwen3_coder": QWEN,
    "qwen3_5": QWEN,
    "nemotron_3": QWEN,
    "step3p5": QWEN,
    "step5": QWEN,
    "mimo": QWEN.replace("\n{{ v | scalar }}\n", "{{ v | scalar }}"),
    "seed_oss": QWEN.replace("tool_call>", "seed:tool_call>").replace("\n{{ v | scalar }}\n", "{{ v | repr }}"),
    "minicpm5": (
        '{% for c in calls %}<function name="{{ c.name }}">{% for k, v in c.arguments.items() %}<param name="{{ k }}">'
        "{% if v is string and ('<' in v or '&' in v or '\n' in v) %}<![CDATA[{{ v }}]]>{% else %}{{ v | repr }}"
        "{% endif %}</param>{% endfor %}</function>{% endfor %}"
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n{% for c in calls %}<invoke name="{{ c.name }}">\n{% for k, v in c.arguments.items() %}'
        '<parameter name="{{ k }}">{{ v | text }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>'
    ),
    "minimax_m3": (
        '{% set m = "]<]minimax[>[" %}{% macro inner(v) %}{% if v is mapping %}{% for k, i in v.items() %}{{ m }}'
        "<{{ k }}>{{ inner(i) }}{{ m }}</{{ k }}>{% endfor %}"
        "{% elif v is sequence and v is not string %}{% for i in v %}"
        "{{ m }}"
        "<item>{{ inner(i) }}{{ m }}</item>{% endfor %}{% else %}{{ v | text }}{% endif %}{% endmacro %}{{ m }}"
        '<tool_call>\n{% for c in calls %}{{ m }}<invoke name="{{ c.name }}">{{ inner(c.arguments) }}{{ m }}</invoke>'
        "\n{% endfor %}{{ m }}</tool_call>"
    ),
    "glm45": LINES,
    "glm47": PAIRS,
    "ling3": LINES,
    "poolside_v1": PAIRS,
    "hy_v3": HY.replace("call>", "call:opensource>").replace("calls>", "calls:opensource>")
    .replace("sep>", "sep:opensource>").replace("key>", "key:opensource>").replace("value>", "value:opensource>"),
    "hy_v4": "<tool_calls>" + PAIRS + "</tool_calls>",
    "deepseek_v32": DSML.replace("SECTION", "function_calls"),
    "deepseek_v4": DSML.replace("SECTION", "tool_calls"),
    "gemma4": GEMMA,
    "functiongemma": GEMMA.replace("|tool_call>", "start_function_call>").replace("tool_call|>", "end_function_call>"),
}  # fmt: skip
TAGGED = sorted(FORMS)
OTHERS = ("deepseek_v41", "step3", "dots", "k2_horizon", "xml")
TEXTS = (
    "", "a", "two words", " before", "behind ", "\nline", "line\n", "\n\nlines\n\n", "5", "-3.5", "true", "None",
    "null", "[1, 2]", '{"a": 1}', 'say "hi"', "it's", "a < b & c > d", "<b>x</b>", "\\n", "é 世界 🎉", "a\tb", "{x}",
    "{{ y }}", "a,b:c", "[", "}", "#!/bin/sh\necho 1\n", "  \n ", "\u2028", "a" * 300, "&amp;", "q=1;--",
    "about <tool_call>",
    "<arg_key>", "<think>hm</think>", "f(x=1)",
)  # fmt: skip


def built_in(name: str, **options: Any) -> TextDialect:
    dialect = dialects.get(name, **options)
    assert isinstance(dialect, TextDialect)
    return dialect


def quoted(value: Any, mark: str) -> str:
    if isinstance(value, str):
        return mark + value + mark
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{quoted(item, mark)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(quoted(item, mark) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def padded(name: str, value: Any) -> bool:
    """Whether Seed-OSS's value needs line breaks around it, as its prompt shows for texts of several lines: a pair of
    them is none of the value's."""
    return name == "seed_oss" and isinstance(value, str) and value[:1] == value[-1:] == "\n"


def in_form(name: str, calls: list[ToolCall]) -> str:
    """The calls as the family's own template writes them."""
    environment = jinja2.Environment(keep_trailing_newline=True)
    environment.filters["text"] = lambda value: (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )
    environment.filters["repr"] = lambda value: f"\n{value}\n" if padded(name, value) else str(value)
    environment.filters["scalar"] = lambda value: (
        json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else str(value)
    )
    environment.filters["quoted"] = lambda value: quoted(value, "<escape>" if name == "functiongemma" else '<|"|>')
    return environment.from_string(FORMS[name]).render(calls=calls)


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.choice("sssifbnlo" if depth < 3 else "sif")
    if kind == "l":
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind == "o":
        return {f"{rng.choice(('key', 'x-y', 'é'))}{i}": value(rng, depth + 1) for i in range(rng.randint(0, 3))}
    number = rng.choice((0, 5, -3, 10**12, 2**70)), rng.choice((0.5, -2.25, 1e-7, 1e20))
    return {"s": rng.choice(TEXTS), "i": number[0], "f": number[1], "b": rng.random() < 0.5, "n": None}[kind]


def schema(rng: random.Random, given: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """A schema of a value in one of the ways in which schemas are written."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    if isinstance(given, dict):
        found: dict[str, Any] = {"type": "object", "properties": {k: schema(rng, v, defs) for k, v in given.items()}}
    elif isinstance(given, list):
        found = {"type": "array", "prefixItems": [schema(rng, item, defs) for item in given]}
    else:
        found = {"type": kinds[type(given)]}
    # A text that says null is null where the schema allows both: these formats have no sign for texts.
    may_be_null = given is not None and not (isinstance(given, str) and given.lower() in ("null", "none"))
    way = rng.randint(0, 6)
    if way == 0:
        name = f"D{len(defs)}"
        defs[name] = found
        return {"$ref": f"#/$defs/{name}", "description": "d"}
    if way == 1:
        return {"anyOf": [found, {"type": "null"}], "default": None} if may_be_null else found
    if way == 2 and isinstance(given, (str, int, float)) and not isinstance(given, bool):
        return {"enum": [given]} if rng.random() < 0.5 else {"const": given}
    if way == 3 and len(found) == 1 and may_be_null:
        return {"type": [found["type"], "null"]}
    return {"allOf": [found], "title": "T"} if way == 4 else found


def random_calls(rng: random.Random, count: int) -> tuple[list[ToolCall], list[dict[str, Any]]]:
    """Calls, and the tools that they call as OpenAI's interface lists them."""
    calls, tools = [], []
    for number in range(count):
        arguments = {f"p{index}": value(rng) for index in range(rng.randint(0, 4))}
        defs: dict[str, Any] = {}
        parameters = {
            "type": "object",
            "properties": {k: schema(rng, v, defs) for k, v in arguments.items()},
            "$defs": defs,
        }
        calls.append(ToolCall(f"tool_{number}", arguments))
        tools.append({"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}})
    return calls, tools


def said(action: ParsedAction) -> list[Any]:
    return [(call.name, call.arguments) if isinstance(call, ToolCall) else call.reason for call in action.calls]


def played(name: str, seed: int) -> Iterator[tuple[list[ToolCall], list[dict[str, Any]], random.Random]]:
    rng = random.Random(f"{name} {seed}")
    for _ in range(40):
        calls, tools = random_calls(rng, rng.randint(1, 3))
        yield calls, tools, rng


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", TAGGED)
def test_what_the_familys_template_writes_is_read_back(name: str) -> None:
    dialect = built_in(name)
    marks = row_of(name).thinking_marks
    for calls, tools, rng in played(name, 1):
        content, thinking = rng.choice(("", "I look it up.")), rng.choice(("", "Let me see.\nYes."))
        block = marks.written.replace("{thinking}", thinking) if thinking and marks.open else ""
        if row_of(name).suffixes:
            block = block.replace("think>", f"think{row_of(name).suffixes[0]}>")
        if dialect.spec.thinking_open:  # the prompt has opened the block
            block = marks.written.replace("{thinking}", thinking).partition(marks.open)[2]
        read = dialect.parse(f"{block}{content}\n{in_form(name, calls)}", tools)
        assert said(read) == [(call.name, call.arguments) for call in calls]
        assert read.content == content
        assert read.thinking == (thinking if block else "")
        assert read.leniencies == ()


@pytest.mark.parametrize("name", [*TAGGED, *OTHERS])
def test_what_a_row_writes_is_read_back(name: str) -> None:
    dialect = built_in(name)
    for calls, tools, rng in played(name, 2):
        content = rng.choice(("", "I look it up."))
        read = dialect.parse(dialect.render_action(Message("assistant", content, tuple(calls))), tools)
        assert said(read) == [(call.name, call.arguments) for call in calls]
        assert read.content == content


@pytest.mark.parametrize("name", [*TAGGED, *OTHERS, "search_r1"])
def test_a_text_that_the_format_cannot_hold_is_never_read_as_another_call(name: str) -> None:
    dialect = built_in(name)
    row = dialect.spec
    calls = (row.calls,) if not isinstance(row.calls, tuple) else row.calls
    marks = {row.section_open, row.section_close, row.thinking_marks.open, row.thinking_marks.close}
    for form in calls:
        for written_as in (
            form.open,
            form.close,
            form.key_open,
            form.key_close,
            form.value_close,
            form.quote,
            *form.value_open,
        ):
            marks |= {written_as} if isinstance(written_as, str) else set(written_as)
    whole = dialect.render_action(Message("assistant", "", (ToolCall("look", {"query": "x"}),)))
    texts = [f"a{mark}b" for mark in sorted(marks) if mark] + [whole, whole[:-3], "x]]>y<![CDATA["]
    for text in texts:
        asked: list[dict[str, Any]] = [{"query": text}, {"query": {"k": [text]}}, {"query": {text: 1}}, {text: "x"}]
        for given in asked:
            call = ToolCall("look", given)
            written = dialect.render_action(Message("assistant", "", (call,)))
            types: dict[str, dict[str, Any]] = {
                "query": {"type": "object" if isinstance(given.get("query"), dict) else "string"}
            }
            if isinstance(given.get("query"), dict):
                types["query"]["properties"] = {
                    "k": {"type": "array", "items": {"type": "string"}},
                    text: {"type": "integer"},
                }
            tools = [
                {"name": "look", "parameters": {"type": "object", "properties": {**types, text: {"type": "string"}}}}
            ]
            (read,) = dialect.parse(written, tools).calls
            if not isinstance(read, MalformedCall):
                assert name == "search_r1" or read == ToolCall("look", given, None, read.start, read.end)


# Schemas


def typed_value(schema: Any, text: str, name: str = "qwen3_coder", defs: Any = None) -> Any:
    """What a value is read as that a parameter of the schema has."""
    parameters = {"type": "object", "properties": {"p": schema}, **({"$defs": defs} if defs else {})}
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    written = {
        "qwen3_coder": f"<tool_call>\n<function=look>\n<parameter=p>\n{text}\n</parameter>\n</function>\n</tool_call>",
        "deepseek_v4": '<｜DSML｜tool_calls><｜DSML｜invoke name="look"><｜DSML｜parameter name="p" string="false">'
        f"{text}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>",
        "gemma4": f"<|tool_call>call:look{{p:{text}}}<tool_call|>",
        "glm45": f"<tool_call>look<arg_key>p</arg_key><arg_value>{text}</arg_value></tool_call>",
    }[name]
    (call,) = built_in(name).parse(written, tools).calls
    assert isinstance(call, ToolCall), call
    return call.arguments["p"]


DEFS: Mapping[str, Any] = {
    "Point": {"type": "object", "properties": {"x": {"type": "integer"}, "next": {"$ref": "#/$defs/Point"}}},
    "Loop": {"$ref": "#/$defs/Back"},
    "Back": {"anyOf": [{"$ref": "#/$defs/Loop"}]},
    "a/b": {"type": "integer"},
}


@pytest.mark.parametrize("name", ["qwen3_coder", "deepseek_v4", "gemma4", "glm45"])
@pytest.mark.parametrize(
    ("schema", "text", "read"),
    [
        ({"$ref": "#/$defs/Point"}, '{"x": 1}', {"x": 1}),
        ({"$ref": "#/$defs/a~1b"}, "5", 5),
        ({"$ref": "#/properties/p/$defs/Own", "$defs": {"Own": {"type": "array"}}}, "[1, [2]]", [1, [2]]),
        ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, '{"x": 1}', {"x": 1}),
        ({"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}, "null", None),
        ({"allOf": [{"$ref": "#/$defs/Point"}], "description": "d"}, '{"x": 2}', {"x": 2}),
        ({"oneOf": [{"type": "boolean"}, {"enum": [1, 2]}]}, "2", 2),
        ({"type": ["null", "integer"]}, "7", 7),
        ({"enum": [1.5, 2.5]}, "1.5", 1.5),
        ({"const": True}, "true", True),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"properties": {"x": {}}}, '{"x": 1}', {"x": 1}),
        ({"items": {"type": "string"}}, '["a"]' , ["a"]),
        ({"type": "float"}, "2.5", 2.5),
        ({"type": "int"}, "3", 3),
        ({"type": "bool"}, "false", False),
        ({"type": "dict"}, '{"a": 1}', {"a": 1}),
        ({"type": "list"}, "[1]", [1]),
        ({"type": "OBJECT"}, '{"a": 1}', {"a": 1}),
    ],
)  # fmt: skip
def test_a_value_has_the_type_of_its_schema(name: str, schema: Any, text: str, read: Any) -> None:
    given = text.replace('"x"', "x").replace('"a": ', "a:").replace('"a"', '<|"|>a<|"|>') if name == "gemma4" else text
    assert typed_value(schema, given, name, defs=DEFS) == read


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/none"}, {"$ref": "other.json"}, {"$ref": 5}, {"type": 5}, True, None,
     [], {"anyOf": 5}, {"enum": 3}, {"properties": 3}, {"type": "str"}, {"const": "5"}, {"pattern": "5"}],
)  # fmt: skip
def test_a_schema_that_gives_no_other_type_leaves_a_text(schema: Any) -> None:
    assert typed_value(schema, "5", defs=DEFS) == "5"


def test_a_reference_that_comes_back_ends() -> None:
    deep: dict[str, Any] = {"x": 1}
    for _ in range(60):
        deep = {"x": 2, "next": deep}
    assert typed_value({"$ref": "#/$defs/Point"}, json.dumps(deep), defs=DEFS) == deep
    wide: dict[str, Any] = {"type": "integer"}
    for _ in range(5000):
        wide = {"anyOf": [wide]}
    assert typed_value(wide, "5") == "5"
    every = {f"D{i}": {"anyOf": [{"$ref": f"#/$defs/D{j}"} for j in range(40)]} for i in range(40)}
    assert typed_value({"$ref": "#/$defs/D0"}, "5", defs=every) == "5"


def test_a_parameter_that_is_a_model_can_be_given() -> None:
    class Inner(BaseModel):
        k: int

    class Outer(BaseModel):
        inner: Inner
        several: list[Inner] | None = None

    parameters = Outer.model_json_schema()
    arguments = {"inner": {"k": 1}, "several": [{"k": 2}]}
    call = ToolCall("look", arguments)
    for name in TAGGED:
        dialect = built_in(name)
        text = dialect.render_action(Message("assistant", "", (call,)))
        assert said(dialect.parse(text, {"look": {"parameters": parameters}})) == [("look", arguments)]


@pytest.mark.parametrize("name", [*TAGGED, *OTHERS, "search_r1", "react"])
def test_tools_come_by_name_or_as_a_list(name: str) -> None:
    dialect = built_in(name)
    properties = {"query": {"type": "string"}, "limit": {"type": "integer"}}
    function = {"name": "search", "parameters": {"type": "object", "properties": properties, "required": ["query"]}}
    call = ToolCall("search", {"query": "5"} if name == "search_r1" else {"query": "5", "limit": 5})
    text = dialect.render_action(Message("assistant", "", (call,)))
    as_list = dialect.parse(text, [{"type": "function", "function": function}])
    assert said(as_list) == [("search", call.arguments)]
    assert dialect.parse(text, [function]) == dialect.parse(text, {"search": function}) == as_list
    lists: list[Any] = [[None], ["search"], [{}], [{"function": None}], [{"name": 5}], "search", 5]
    by_name: list[Any] = [None, {"parameters": 5}, {"parameters": {"properties": 5}}, [1]]
    for odd in lists + [{"search": tool} for tool in by_name]:
        dialect.parse(text, odd)


def test_without_a_type_a_value_is_what_the_family_makes_of_it() -> None:
    tools = {"look": {"parameters": {"type": "object", "properties": {"x": {}}}}}
    for name in TAGGED:
        text = in_form(name, [ToolCall("look", {"x": 5})])
        dialect = built_in(name)
        (call,) = dialect.parse(dialect.writer.closing + text, tools).calls
        assert isinstance(call, ToolCall)
        marked = name.startswith("deepseek") or "gemma" in name  # the text says what is a string
        assert call.arguments == {"x": 5 if marked or name in ("minicpm5", "poolside_v1") else "5"}, name


# Single families


def test_values_of_pairs_keep_their_white_space() -> None:
    code = "  def f():\n    return 1\n"
    text = f"<tool_call>look<arg_key>x</arg_key><arg_value>{code}</arg_value></tool_call>"
    tools = [{"name": "look", "parameters": {"properties": {"x": {"type": "string"}}}}]
    for name in ("glm45", "ling3", "poolside_v1", "glm47"):
        dialect = built_in(name)
        assert said(dialect.parse(dialect.writer.closing + text, tools)) == [("look", {"x": code})]


@pytest.mark.parametrize("suffix", ["", ":opensource"])
@pytest.mark.parametrize("name", ["hy_v3", "hy_v4"])
def test_marks_may_have_a_suffix(name: str, suffix: str) -> None:
    sep = "<tool_sep>" if name == "hy_v3" else ""
    text = (f"<think>t</think>a<tool_calls><tool_call>look{sep}<arg_key>x</arg_key><arg_value><tool_call></arg_value>"
            "</tool_call></tool_calls>").replace(">", f"{suffix}>")  # fmt: skip
    read = built_in(name).parse(text, {"look": {"parameters": {"properties": {"x": {"type": "string"}}}}})
    assert (said(read), read.thinking, read.content) == ([("look", {"x": f"<tool_call{suffix}>"})], "t", "a")


def test_a_suffix_of_ones_own_is_written_and_read() -> None:
    dialect = built_in("hy_v3", suffixes=(":6124c78e",))
    call = ToolCall("look", {"x": "v"})
    text = dialect.render_action(Message("assistant", "", (call,)))
    assert text.startswith("<tool_calls:6124c78e>")
    assert said(dialect.parse(text)) == [("look", {"x": "v"})]
    assert dialect.parse(text.replace(":6124c78e", "")).calls == ()


def test_a_tag_that_stands_twice_is_a_list_only_where_that_is_allowed() -> None:
    mark = "]<]minimax[>["
    tags = "".join(f"{mark}<tag>{i}{mark}</tag>" for i in "ab")
    text = f'{mark}<tool_call>{mark}<invoke name="look">{mark}<x>{tags}{mark}</x>{mark}</invoke>{mark}</tool_call>'
    (call,) = built_in("minimax_m3").parse(text).calls
    assert isinstance(call, MalformedCall)
    assert "twice" in call.reason
    read = built_in("minimax_m3", lenient=("repeated_tags",)).parse(text)
    assert said(read) == [("look", {"x": {"tag": ["a", "b"]}})]
    assert read.leniencies == ("repeated_tags",)


@pytest.mark.parametrize(
    ("inside", "reason"),
    [("text{m}<k>1{m}</k>", "beside tags"), ("{m}<k>1", "not closed"), ("{m}<k>1{m}</j>", "not closed"),
     ("{m}<a\nb>1{m}</a\nb>", "no name"), ("{m}<k>" * 200 + "{m}</k>" * 200, "nested more than")],
)  # fmt: skip
def test_broken_tags_inside_a_value_are_told(inside: str, reason: str) -> None:
    mark = "]<]minimax[>["
    inside = inside.replace("{m}", mark)
    text = f'{mark}<tool_call>{mark}<invoke name="look">{mark}<x>{inside}{mark}</x>{mark}</invoke>{mark}</tool_call>'
    call = built_in("minimax_m3").parse(text).calls[0]
    assert isinstance(call, MalformedCall)
    assert reason in call.reason


def test_minicpm5_wants_known_parameters_and_required_ones() -> None:
    parameters = {"properties": {"city": {"type": "string"}, "day": {"type": "string"}}, "required": ["city"]}
    tools = {"look": {"parameters": parameters}}
    extra = '<function name="look"><param name="city">a</param><param name="more">b</param></function>'
    lacking = '<function name="look"><param name="day">a</param><param name="more">b</param></function>'
    strict, lenient = built_in("minicpm5"), built_in("minicpm5", lenient=row_of("minicpm5").offers)
    assert isinstance(strict.parse(extra, tools).calls[0], MalformedCall)
    assert said(lenient.parse(extra, tools)) == [("look", {"city": "a"})]
    assert lenient.parse(extra, tools).leniencies == ("extra_parameters",)
    for dialect in (strict, lenient):
        assert isinstance(dialect.parse(lacking, tools).calls[0], MalformedCall)


def test_other_spellings_are_counted() -> None:
    dialect = built_in("minicpm5", lenient=("spellings",))
    read = dialect.parse('<functionname="look"><paramname="city">a</param></function>')
    assert said(read) == [("look", {"city": "a"})]
    assert set(read.leniencies) == {"spellings"}


def test_a_value_may_speak_of_a_mark_and_a_lost_end_is_still_told() -> None:
    dialect = built_in("glm45")
    call = "<tool_call>look<arg_key>x</arg_key><arg_value>{}</arg_value></tool_call>"
    tools = {"look": {"parameters": {"properties": {"x": {"type": "string"}}}}}
    assert said(dialect.parse(call.format("write <tool_call> first"), tools)) == [
        ("look", {"x": "write <tool_call> first"})
    ]
    first, second = dialect.parse(
        call.format("a").replace("</arg_value></tool_call>", "") + call.format("b"), tools
    ).calls
    assert isinstance(first, MalformedCall)
    assert (second.name, getattr(second, "arguments", None)) == ("look", {"x": "b"})


def test_json_calls_of_a_family_that_knows_its_tools_need_one() -> None:
    text = '<ifm|tool_calls><ifm|tool_call>{"name": "none", "arguments": {}}</ifm|tool_call></ifm|tool_calls>'
    (call,) = built_in("k2_horizon").parse(text, {"look": {"parameters": {}}}).calls
    assert isinstance(call, MalformedCall)
    assert "no tool 'none'" in call.reason
    own = built_in("hermes", calls={"open": "<do>", "close": "</do>", "known": "tools"})
    given = '<do>{"name": "look", "arguments": {}}</do><do>{"name": "none", "arguments": {}}</do>'
    first, second = own.parse(given, [{"name": "look", "parameters": {}}]).calls
    assert isinstance(first, ToolCall)
    assert isinstance(second, MalformedCall)


def test_the_example_of_a_text_dialect_shows_a_call() -> None:
    dialect = built_in("hermes", calls={"body": "text", "open": "<sum>", "close": "</sum>", "tool": "calculate"},
                           chat={"tools": "{tools} {example}"})  # fmt: skip
    prompt = dialect.render_prompt([Message("user", "Q")], [{"name": "calculate", "parameters": {}}])
    assert "<sum>VALUE</sum>" in prompt


# Thinking


OPENED = [name for name in TAGGED if row_of(name).thinking_open]


@pytest.mark.parametrize("name", OPENED)
def test_a_call_in_thinking_that_the_prompt_has_opened_is_none(name: str) -> None:
    dialect = built_in(name)
    assert dialect.render_prompt([Message("user", "Q")], ()).rstrip("\n").endswith(row_of(name).thinking_marks.open)
    call = in_form(name, [ToolCall("look", {})])
    cut = dialect.parse(f"I could write {call} but")
    assert (cut.calls, cut.content, cut.is_cut) == ((), "", True)
    closed = dialect.parse(f"I could write {call} but</think>{call}")
    assert [found.name for found in closed.calls] == ["look"]
    again = dialect.parse(f"<think>hm</think>{call}")
    assert ([found.name for found in again.calls], again.thinking) == (["look"], "hm")
    off = built_in(name, thinking=False)
    assert [found.name for found in off.parse(call).calls] == ["look"]
    lenient = built_in(name, lenient=("open_thinking",)).parse(f"I look.\n{call}")
    assert ([found.name for found in lenient.calls], lenient.thinking) == (["look"], "I look.")
    assert lenient.leniencies == ("open_thinking",)
    said_last = dialect.render_action(Message("assistant", "Done."))
    assert (dialect.parse(said_last).content, dialect.parse(said_last).thinking) == ("Done.", "")


@pytest.mark.parametrize("name", TAGGED)
def test_thinking_is_read_as_it_is_written(name: str) -> None:
    dialect = built_in(name)
    marks = dialect.spec.thinking_marks
    if marks.open:
        read = dialect.parse(marks.written.replace("{thinking}", "Hm, <b>.") + "So.")
        assert (read.thinking, read.content) == ("Hm, <b>.", "So.")


# Templates of others


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("tool_chat_template_qwen3coder", "qwen3_coder"),
        pytest.param("tool_chat_template_functiongemma", "functiongemma", marks=pytest.mark.shared_data),
    ],
)
def test_calls_of_published_templates_are_read_back(template: str, name: str) -> None:
    values = {"bos_token": "<bos>", "eos_token": "<|im_end|>"}
    chat = ChatTemplate(real.template(template), name=template, values=values)
    rng = random.Random(5)
    for _ in range(30):
        calls, tools = random_calls(rng, 2)
        message = Message("assistant", "", tuple(calls)).as_dict()
        text = chat.render([{"role": "user", "content": "Q"}, message], tools=tools)
        text = text[text.rfind("Q") if name == "functiongemma" else text.index("assistant", text.rfind("user")) :]
        assert said(built_in(name).parse(text, tools)) == [(call.name, call.arguments) for call in calls]
