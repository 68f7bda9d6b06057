"""Raw text is what the chat templates write: by rows where a row is exact, by the template itself for every other."""

from __future__ import annotations

from typing import Any

import pytest

from rlenv import dialects
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message, ToolCall
from rlenv.tokens.declared import TemplatedDialect
from rlenv.tokens.vocabulary import ChatTemplate
from tests.support import real
from tests.support.families import end_of

FAMILIES = real.families()
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "é {x}",
            "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "d"}}},
        },
    }
]
CALL = ToolCall("look", {"x": 'é "q"'}, "abcdefgh0")


@pytest.mark.shared_data
@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("with_system", [True, False])
def test_qwen2_5_is_written_by_its_row(tools: list[dict[str, Any]], with_system: bool) -> None:
    template = ChatTemplate(real.template("qwen2_5"), name="qwen2_5", values={})
    dialect = dialects.get("qwen2_5")
    start = [Message("system", "S")] * with_system + [Message("user", "Q")]
    said = Message("assistant", "I look.", (CALL, CALL))
    results = (Message("tool", "R1\n"), Message("tool", "{x}"))
    whole = [*start, said, *results]
    rendered = template.render([message.as_dict() for message in whole], tools=tools)
    assert dialect.render_prompt(whole, tools) == rendered
    parts = dialect.render_prompt(start, tools) + dialect.render_action(said) + dialect.render_observation(results)
    assert parts == rendered


@pytest.mark.parametrize("family", FAMILIES)
def test_every_template_can_write_the_conversation(family: str) -> None:
    values = {"bos_token": "<s>", "eos_token": end_of(family)}
    dialect = TemplatedDialect(dialects.get("hermes"), real.template(family), name=family, values=values)
    template = ChatTemplate(real.template(family), name=family, values=values)
    for results in (["R1"], ["R1", "", " {two}\n"]):
        messages = [Message("tool", text, name="look", tool_call_id=f"abcdefgh{i}") for i, text in enumerate(results)]
        said = Message(
            "assistant", "", tuple(ToolCall("look", {"x": f"v{i}"}, f"abcdefgh{i}") for i in range(len(results)))
        )
        whole = None
        for content in ("", None):
            for tools in (TOOLS, []):
                conversation = [Message("user", "Q").as_dict(), {**said.as_dict(), "content": content}]
                conversation += [message.as_dict() for message in messages]
                try:
                    text = template.render(conversation, tools=tools)
                except UnsupportedTemplate:
                    continue
                whole = whole or (text if f"v{len(results) - 1}" in text else None)
        if whole is None:
            continue  # one call at a time
        assert whole.endswith(dialect.render_observation(messages))
    assert dialect.render_prompt([Message("user", "Q")], TOOLS) == template.render(
        [{"role": "user", "content": "Q"}], tools=TOOLS
    )


PLAIN = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}MARK{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize(
    ("mark", "given", "ends"),
    [
        ("<|im_end|>\n", {}, ("<|im_end|>",)),
        ("<over>", {"stop": "<over>"}, ("<over>",)),
        ("</s>", {"values": {"eos_token": "</s>"}}, ("</s>",)),
        ("", {}, ()),
    ],
    ids=["its own", "named", "the end token", "none"],
)
def test_a_template_says_where_a_turn_of_raw_text_ends(mark: str, given: dict[str, Any], ends: tuple[str, ...]) -> None:
    dialect = TemplatedDialect(dialects.get("hermes"), PLAIN.replace("MARK", mark), **given)
    assert dialect.turn_ends == ends
    assert dialect.turn_ends == ends  # derived once


@pytest.mark.parametrize(("name", "begins"), [("hermes", False), ("llama3_json", True), ("mistral", True)])
def test_a_row_says_whether_it_writes_what_begins_a_conversation(name: str, begins: bool) -> None:
    dialect: Any = dialects.get(name)
    assert dialect.begins is begins


NAMED = (
    "{%- for m in messages %}{%- if m.role == 'tool' %}{{- '<|im_start|>' + m.name + '/' + m.tool_call_id + '\\n'"
    " + m.content + '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
    "{%- for call in m.tool_calls or [] %}{{- '<tool_call>' + call | tojson + '</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@pytest.mark.parametrize(
    ("message", "head"),
    [
        (Message("tool", "R", name="look", tool_call_id="c1"), "look/c1"),
        (Message("tool", "R", tool_call_id="c1"), "tool/c1"),
        (Message("tool", "R", name="look"), "look/call00000"),
    ],
)
def test_a_result_without_a_name_or_an_id_is_written_with_one(message: Message, head: str) -> None:
    dialect = TemplatedDialect(dialects.get("hermes"), NAMED)
    assert dialect.render_observation([message]) == (
        f"<|im_end|>\n<|im_start|>{head}\nR<|im_end|>\n<|im_start|>assistant\n"
    )
