"""A chat template of a spec: with its stop, tokens and names, tried out before a run, told of without a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.checks.validate import validate
from rlenv.cli.main import main
from rlenv.messages import Message
from rlenv.tokens.vocabulary import ChatTemplate, names_read
from tests.support import real
from tests.support.families import end_of

ZORB = """\
{{- bos_token }}
{%- if tools %}[tools]{{ tools | tojson }}[/tools]{% endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}[zorb]{{ message.content }}
        {%- for call in message.tool_calls or [] %}<run>{{ call.function | tojson }}</run>{% endfor %}[over]
    {%- else %}[{{ message.role }}]{{ message.content | trim }}[/{{ message.role }}]{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}[zorb]{% if quiet %}[hush]{% endif %}{% endif %}
"""
# One call a turn, as Llama 3.1's template demands.
SINGLE = ZORB.replace(
    "[zorb]{{ message.content }}",
    "{% if (message.tool_calls or []) | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "[zorb]{{ message.content }}",
)
# One result a turn as well.
STRICT = SINGLE.replace(
    "{%- else %}[",
    "{%- elif message.role == 'tool' and messages[loop.index0 - 1].role == 'tool' %}{{ raise_exception('one result') }}"
    "{%- else %}[",
)
SPEC = """
rlenv: 1
name: zorb
tasks: {{train: {{rows: [{{question: "What is 2 + 3?", answer: "5"}}]}}}}
prompt: {{system: "Be brief.", user: "{{{{ task.question }}}}"}}
dialect:
  calls: {{open: "<run>", close: "</run>"}}
  chat_template: {template}
tools: {{calculate: {{kind: calculator}}}}
rewards: {{correct: {{kind: rule, rule: numeric_match, expect: "{{{{ task.answer }}}}"}}}}
oracle:
  - call: {{calculate: {{expression: "2 + 3"}}}}
  - say: "<answer>5</answer>"
"""
WHOLE = '{file: zorb.jinja, bos_token: "<s>", stop: "[over]"}'


def written(folder: Path, template: str, source: str = ZORB, **more: str) -> Path:
    (folder / "zorb.jinja").write_text(source)
    path = folder / "zorb.yaml"
    path.write_text(SPEC.format(template=template) + "\n".join(f"{key}: {value}" for key, value in more.items()))
    return path


def test_a_family_with_its_own_stop_and_bos_is_written_by_its_template(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    assert validate([path]).faults == ()
    environment = rlenv.load(path)
    prompt = environment.prompt_text([Message("system", "Be brief."), Message("user", " What? ")])
    assert prompt.startswith("<s>[tools][")
    assert prompt.endswith("[/tools][system]Be brief.[/system][user]What?[/user][zorb]")
    assert environment.observation_text([Message("tool", "5\n")]) == "[over][tool]5[/tool][zorb]"
    assert main(["eval", str(path), "--policy", "oracle", "--min-success", "1"]) == 0


def test_names_that_the_template_reads_are_given_by_kwargs(tmp_path: Path) -> None:
    template = '{file: zorb.jinja, bos_token: "", stop: ["[nothing]", "[over]"], vars: {quiet: true}}'
    environment = rlenv.load(written(tmp_path, template))
    assert environment.prompt_text([Message("user", "Q")]).endswith("[user]Q[/user][zorb][hush]")
    assert environment.observation_text([Message("tool", "5")]).startswith("[over][tool]5")


def test_an_end_token_is_a_stop_mark_without_being_named_again(tmp_path: Path) -> None:
    source = ZORB.replace("[over]", "{{ eos_token }}")
    path = written(tmp_path, '{file: zorb.jinja, bos_token: "<s>", eos_token: "⟦end⟧"}', source)
    assert validate([path]).faults == ()
    assert rlenv.load(path).observation_text([Message("tool", "5")]) == "⟦end⟧[tool]5[/tool][zorb]"


def test_a_user_who_answers_is_tried_out_too(tmp_path: Path) -> None:
    source = ZORB.replace("{%- else %}[", "{%- elif message.role != 'user' or loop.index0 < 2 %}[")
    user = "{kind: scripted, replies: [Go on.]}"
    (fault, *_) = validate([written(tmp_path, WHOLE, source, user=user)]).faults
    assert fault.path == "dialect.chat_template.file"
    assert "a user's reply" in fault.message


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (SINGLE, "[over][tool]5\n7[/tool][zorb]"),
        (STRICT, "[over][tool]5\n7[/tool][zorb]"),
    ],
)
def test_a_policy_that_writes_two_calls_ends_no_run_of_a_template_that_takes_one(
    source: str, shown: str, tmp_path: Path
) -> None:
    path = written(tmp_path, WHOLE, source)
    assert validate([path]).faults == ()
    environment = rlenv.load(path)
    results = [Message("tool", "5", name="calculate"), Message("tool", "7", name="calculate")]
    for _ in range(2):  # the first is derived, the second remembered
        assert environment.observation_text(results) == shown
    call = '<run>{"name": "calculate", "arguments": {"expression": "2+3"}}</run>'
    (tmp_path / "two.txt").write_text(f"{call}{call}\n---\n<answer>5</answer>")
    assert main(["eval", str(path), "--policy", f"script:{tmp_path / 'two.txt'}", "--min-success", "1"]) == 0


MISTAKES: dict[str, tuple[str, str, str]] = {
    "no stop": ('{file: zorb.jinja, bos_token: "<s>"}', ZORB, "ends an assistant's turn with no known stop mark"),
    "no bos": ("zorb.jinja", ZORB, "reads bos_token (line 1), which is not given"),
    "another stop": ('{file: zorb.jinja, bos_token: "", stop: "</s>"}', ZORB, "does not end an assistant's turn with"),
    "a name that is not read": (
        '{file: zorb.jinja, bos_token: "", stop: "[over]", vars: {quite: true}}', ZORB, "did you mean 'quiet'?",
    ),
    "broken": (WHOLE, "{% for message in messages %}\n{{ message.content }\n{% endfor %}", "zorb.jinja, line 2: "),
    "not there": ("{file: zorp.jinja}", ZORB, "did you mean 'zorb.jinja'?"),
    "no file": ("{stop: x}", ZORB, "the key 'file' is missing"),
    "shows no result": (WHOLE, ZORB.replace("{%- else %}[", "{%- elif message.role != 'tool' %}["), "a tool's result"),
    "fails on a result": (
        WHOLE, ZORB.replace("message.content | trim", "message.content + message.role * 'x'"), "zorb.jinja, line 6: ",
    ),
}  # fmt: skip


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize(
    "command",
    [["validate"], ["eval", "--policy", "oracle"], ["play", "--policy", "oracle"], ["train", "--dry-run"]],
    ids=lambda words: words[0],
)
def test_a_mistake_in_a_template_is_told_at_its_place_by_every_command(
    name: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template, source, wanted = MISTAKES[name]
    path = written(tmp_path, template, source)
    words = [command[0], str(path), *command[1:]]
    if command[0] == "train":
        pytest.importorskip("psutil", reason="the verl extra is not installed")
        words += ["-o", str(tmp_path / "run")]
    assert main(words) in (1, 2)
    printed = "".join(capsys.readouterr())
    assert wanted in printed
    assert "zorb.yaml:8:" in printed
    assert "Traceback" not in printed
    assert "ExceptionGroup" not in printed


def test_a_prompt_that_the_template_refuses_is_a_fault_with_its_line(tmp_path: Path) -> None:
    source = "{%- if messages[0].role == 'system' %}\n{{- raise_exception('no system here') }}{% endif %}" + ZORB
    (fault,) = validate([written(tmp_path, WHOLE, source)]).faults
    assert "zorb.jinja, line 2: refuses a conversation of system, user" in fault.message
    assert "no system here" in fault.message


def test_a_prompt_that_is_left_out_is_a_fault(tmp_path: Path) -> None:
    source = ZORB.replace("{%- else %}[", "{%- elif message.role != 'system' %}[")
    (fault,) = validate([written(tmp_path, WHOLE, source)]).faults
    assert "does not write the system's message into the prompt" in fault.message


def test_tools_that_are_shown_by_neither_template_nor_prompt_are_a_fault(tmp_path: Path) -> None:
    source = ZORB.replace("{%- if tools %}[tools]{{ tools | tojson }}[/tools]{% endif %}\n", "")
    path = written(tmp_path, WHOLE, source)
    (fault,) = validate([path]).faults
    assert "does not show the tool 'calculate'" in fault.message
    path.write_text(path.read_text().replace("Be brief.", "Be brief. Call calculate."))
    assert validate([path]).faults == ()


@pytest.mark.parametrize(
    ("source", "is_rewritten"),
    [
        (ZORB, False),
        (ZORB.replace("[zorb]{{ message", "[Zorb]{{ message"), True),
        (ZORB.replace("{%- else %}[", "{%- elif message.role != 'tool' or loop.last %}["), True),
        # A prompt that opens a thought goes on with one.
        (
            ZORB.replace("[zorb]{{ message.content }}", "[zorb]{{ '[think]' if message.reasoning_content }}")
            .replace("%}[zorb]{% if quiet", "%}[zorb][think]{% if quiet"),
            False,
        ),
    ],
)  # fmt: skip
def test_a_template_that_rewrites_what_was_said_is_told_of(source: str, is_rewritten: bool, tmp_path: Path) -> None:
    report = validate([written(tmp_path, WHOLE, source)])
    assert report.faults == ()
    notes = [note for note in report.not_checked if "earlier turns otherwise once a tool answers" in note]
    assert bool(notes) == is_rewritten


def test_the_names_of_a_template_are_those_that_it_reads_from_outside() -> None:
    source = "{% set x = 1 %}{{ x }}{{ bos_token }}{{ messages }}{{ strftime_now('%Y') }}{% if quiet %}{% endif %}"
    assert names_read(source) == {"bos_token", "quiet"}


FAMILIES = real.families()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_template_at_hand_can_be_named_by_a_spec(family: str, tmp_path: Path) -> None:
    source = real.template(family)
    reads = names_read(source)
    tokens: dict[str, Any] = {}
    if "bos_token" in reads:
        tokens["bos_token"] = "<s>"
    if "eos_token" in reads:
        tokens["eos_token"] = end_of(family)
    keys = "".join(f", {key}: {value!r}" for key, value in tokens.items())
    path = written(tmp_path, f"{{file: zorb.jinja{keys}}}", source)
    if family.endswith("granite_20b_fc"):  # it refuses system messages
        path.write_text(path.read_text().replace('system: "Be brief.", ', ""))
    assert validate([path]).faults == ()
    environment = rlenv.load(path)
    asked = [Message("user", "What is 2 + 3?")]
    template = ChatTemplate(source, name=family, values={"bos_token": "", "eos_token": "", **tokens})
    tools = [dict(schema) for schema in environment.tool_schemas]
    rendered = template.render([message.as_dict() for message in asked], tools=tools)
    assert environment.parts.dialect.render_prompt(asked, tools) == rendered
    assert ("<s>" in rendered) == ("bos_token" in tokens)
    assert main(["eval", str(path), "--policy", "oracle", "--min-success", "1"]) == 0
