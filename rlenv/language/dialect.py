"""A dialect as data: how a model family writes calls, thinking and turns. Built-in families are rows of this class.

What every class of the language is made of: a frozen mapping without unknown keys, and types without coercion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

# YAML 1.2 has real types, so nothing is coerced: "3" is not a number and yes is not a boolean.
Text = Annotated[str, Strict()]
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]


def _template(value: Any) -> Any:
    if isinstance(value, str) and "{{" in value:
        return value
    raise PydanticCustomError("by_row", "expected a template")


# A number that rows give, where the number itself does not stand.
ByRow = Annotated[str, BeforeValidator(_template), WithJsonSchema({"type": "string", "pattern": r"\{\{"})]
_FILE = {
    "type": "object",
    "properties": {"file": {"type": "string"}},
    "required": ["file"],
    "additionalProperties": False,
}
# A text of some length, which may stand in a file of its own; the document has it in place of the mapping.
Prose = Annotated[str, Strict(), WithJsonSchema({"anyOf": [{"type": "string"}, _FILE]})]


class Spec(BaseModel):
    """A mapping of the language: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


Marks = Text | tuple[Text, ...]
Leniency = Literal[
    "arguments_as_text",
    "bare_calls",
    "extra_parameters",
    "inner_quotes",
    "missing_arguments",
    "open_bodies",
    "open_calls",
    "open_parameters",
    "open_tags",
    "open_thinking",
    "python_literals",
    "raw_strings",
    "repeated_tags",
    "schema_over_mark",
    "sets_as_lists",
    "spellings",
    "typed_strings",
    "unwrap",
]
"""What reading may accept beyond the form of a family. All are off unless a dialect's `lenient` names them."""


class CallSpec(Spec):
    """One way of writing a call: the marks around it and the grammar of what stands between them."""

    body: Literal["json", "name_json", "pythonic", "tagged", "gemma", "text"] = "json"
    """`json`: an object with name and arguments; `name_json`: a name, then JSON; `pythonic`: f(x=1); `tagged`:
    parameters in tags or as key and value; `gemma`: f{x:1}; `text`: the whole text is one argument."""
    open: Marks = ()
    """The opening mark, or several."""
    close: Marks = ()
    """The closing mark, or several; without one the call ends with its body."""
    close_is_optional: Bool = False
    """With `json`, `name_json` and `pythonic`: the message's end, or the next call, may stand for the closing mark."""
    starts: Text = ""
    """With `json`, `name_json`, `pythonic` and `tagged`: one of these characters has to follow the opening mark (white
    space aside), or it is no call."""
    at_start: Bool = False
    """With `json` and `pythonic`: a call without marks, where the message (thinking aside) starts with one."""
    anywhere: Bool = False
    """With `json` and `pythonic`: a call as `at_start` has it may also stand behind text, and one behind another."""
    spellings: tuple[Text, ...] = ()
    """With `json`, `name_json`, `pythonic` and `tagged`: other opening marks, with the leniency `spellings`."""
    name_key: Text = "name"
    """With `json`: the key of the tool's name."""
    arguments_key: Marks = "arguments"
    """With `json`: the key of the arguments, or several of which the first is written."""
    shape: Literal["object", "list", "either"] = "object"
    """With `json`: one call, or a list of calls, between the marks."""
    by_name: Bool = False
    """With `json`: {name: arguments}."""
    id_key: Text = ""
    """With `json`: the key of the call's id, where the family gives one; it is written where the call has one."""
    id_first: Bool = False
    """With `json`: the id stands before the name, and a call without one is given its number in the message."""
    separator: Text = ""
    """With `json`, `name_json` and `pythonic`: what stands between calls where no closing mark ends each; with
    `pythonic` a line break, for a call a line."""
    before_name: Text = ""
    """With `name_json`, `tagged` and `gemma`: what stands before the name."""
    after_name: Marks = ()
    """With `name_json`: what ends the name; "{" where the arguments follow at once."""
    id_mark: Text = ""
    """With `name_json`: stands between the name and the call's id."""
    id_close: Text = ""
    """With `name_json`: the call's id stands before the name, and this mark behind it."""
    skip_to: Text = ""
    """With `name_json` or `tagged`: what stands between the mark behind the name and this one is left out."""
    skipped: Text = ""
    """With `name_json` or `tagged`: what is written before `skip_to`; `{index}` is the call's number, from 1."""
    indexed: Bool = False
    """With `name_json`: the name ends with a colon and a number, and with `before_name` it is the call's id."""
    before_arguments: Text = ""
    """With `name_json`: what may stand before the arguments."""
    after_arguments: Text = ""
    """With `name_json`: what may stand behind the arguments."""
    plain: Bool = False
    """With `name_json`: text that is no JSON object is the value of the tool's only required parameter."""
    name_close: Text = ""
    """With `tagged`: what ends the name; without it the first key, the closing mark or a line break does."""
    key_open: Marks = ()
    """With `tagged`: what stands before a parameter's key."""
    key_spellings: tuple[Text, ...] = ()
    """With `tagged`: other forms of `key_open`, with the leniency `spellings`."""
    key_close: Text = ""
    """With `tagged`: what ends the key."""
    type_open: Text = ""
    """With `tagged`: stands before the name of a value's type, where one is given."""
    type_close: Text = ""
    """With `tagged`: what ends it."""
    value_open: Mapping[Text, Literal["schema", "text", "json"]] = Field(default_factory=dict)
    """With `tagged`: marks between key and value, and how the value is read behind each."""
    value_close: Text = ""
    """With `tagged`: what ends the value; `{key}` stands for the key."""
    untyped: Literal["text", "json"] = "text"
    """With `tagged`: how a value is read for which the tool's schema has no type."""
    trim: Literal["nothing", "newline", "lines", "space"] = "nothing"
    """With `tagged`: what is cut from both ends of a value: a line break from each, a line break from each where both
    have one, or all white space."""
    cdata: Bool = False
    """With `tagged`: a value may stand in a CDATA section."""
    values: Literal["json", "scalars", "python"] = "json"
    """With `tagged`: how what is no text is written: as JSON; as JSON but for True, False and None; or as Python's
    `repr`. With `gemma`: `python` where numbers, lists and objects may stand between quote marks."""
    nested: Bool = False
    """With `tagged`: objects are written as tags inside the value's tag, lists as tags called `item`; `value_close` has
    `{key}`."""
    quote: Text = ""
    """With `gemma`: the mark around strings."""
    tool: Text = ""
    """With `text`: the tool that is called."""
    argument: Text = ""
    """With `text`: the argument that the text is; the tool's only required parameter where it is empty."""
    known: Literal["anything", "tools", "parameters"] = "anything"
    """With `json`, `name_json` and `tagged`: what has to exist for the text to be a call: nothing, the tool, or (with
    `tagged`) its parameters too, required ones given."""
    pad: Text = ""
    """Written inside the marks, at both ends."""
    name_pad: Text = ""
    """With `tagged`: written behind the name and behind each parameter."""
    value_pad: Text = ""
    """With `tagged`: written around each value."""
    between: Text = ""
    """Written between calls."""


class ThinkingSpec(Spec):
    """The marks of a thinking block."""

    open: Text = "<think>"
    """What opens it; empty where the family does not think."""
    close: Text = "</think>"
    """What closes it."""
    written: Text = "<think>\n{thinking}\n</think>\n\n"
    """How a block is written before an answer, with `{thinking}`; by default between its marks, each on a line."""
    also: Mapping[Text, Text] = Field(default_factory=dict)
    """Other marks that open thinking, with those that close it: read, never written."""

    @model_validator(mode="before")
    @classmethod
    def _written_with_its_marks(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "written" in given or not given.keys() & {"open", "close"}:
            return given
        opened, closed = given.get("open", "<think>"), given.get("close", "</think>")
        if not (isinstance(opened, str) and isinstance(closed, str)):
            return given
        line = "" if opened.endswith("\n") else "\n"
        return {**given, "written": f"{opened}{line}{{thinking}}\n{closed}\n\n" if opened else ""}


class ChatSpec(Spec):
    """The raw text of a conversation."""

    begin: Text = ""
    """What the conversation starts with."""
    turn: Text = "<|im_start|>{role}\n{content}<|im_end|>\n"
    """A turn, with `{role}` and `{content}`; `{{`, `}}` and other braces are plain text."""
    generation: Text | None = None
    """What a new assistant's turn starts with; by default the turn up to its content."""
    roles: Mapping[Text, Text] = Field(default_factory=dict)
    """Other names of roles, such as {assistant: model}."""
    turns: Mapping[Text, Text] = Field(default_factory=dict)
    """Turns of single roles that are written otherwise."""
    system: Text = ""
    """The system message where there is none."""
    tools: Text | None = None
    """How tools are shown, with `{tools}` and `{example}`, behind the system message; by default a short text."""
    tools_alone: Text | None = None
    """The same where there is no system message; by default as `tools`."""
    tools_role: Literal["system", "user"] = "system"
    """The turn that shows the tools: the system's, or the first of the user."""
    result: Text = "<tool_response>\n{content}\n</tool_response>"
    """A result, with `{content}`, `{name}` and `{id}`."""
    result_role: Text = "user"
    """The role of the turn that shows results."""
    results_joined: Text | None = "\n"
    """What stands between results that share a turn; nothing (null) where each has a turn of its own."""
    same_turn: Bool = False
    """Results and replies go on in the assistant's own turn as plain text: no turn ends and none begins. What tools
    there are is then for the prompt to say, and an action ends where its call or its answer is closed."""
    reply: Text = "{content}"
    """With `same_turn`: how a user's reply is written, with `{content}`; results are written as `result` says."""
    calls_behind: Text = "\n"
    """What stands between content and the first call."""
    content_behind: Bool = False
    """Content stands behind the calls: the family reads calls only where a message starts with them."""
    said: Text = "{content}"
    """How content is written that an assistant's turn ends with."""
    said_before: Text | None = None
    """How content is written before calls; by default as `said`."""
    drops_thinking: Bool = True
    """Thinking before the last user message is left out of the prompt."""
    trim: Bool = False
    """Contents are written without white space at their ends."""


class ChatTemplateSpec(Spec):
    """A chat template with what a tokenizer would bring beside it."""

    file: Text
    """The template (a .jinja file)."""
    stop: Marks = ()
    """The mark that ends an assistant's turn, or several; found in the template where it is a common one."""
    bos_token: Text | None = None
    """What the template writes for `bos_token`; needed where it reads it, "" where the family has none."""
    eos_token: Text | None = None
    """What the template writes for `eos_token`; needed where it reads it."""
    vars: Mapping[Text, Any] = Field(default_factory=dict)
    """Other names that the template reads, such as {enable_thinking: false}."""


class DialectSpec(Spec):
    """A model's format of calls and results; keys that are left out come from `base`."""

    base: Text | None = "hermes"
    """The built-in dialect that fills what is left out; null where none does, and each key has its own default."""
    calls: Annotated[tuple[CallSpec, ...], Field(min_length=1)] | CallSpec = CallSpec(
        open="<tool_call>", close="</tool_call>"
    )
    """How calls are written; a list where the family has several ways. The first is the one that is written."""
    section_open: Text = ""
    """Opens the part of a message that holds calls, for families that have one."""
    section_close: Text = ""
    """Closes it."""
    section_each: Bool = False
    """Each call is written in a section of its own."""
    section_head: Text = ""
    """Written before a section, with `{name}` for the name of its first call."""
    section_must_close: Bool = False
    """A section that is not closed is one malformed call, whatever it holds."""
    section_pad: Text = ""
    """Written inside the section's marks."""
    suffixes: tuple[Text, ...] = ()
    """What stands behind the name in each mark, as :opensource in <tool_call:opensource>, where checkpoints of a family
    differ; the first is written, each is read. "" stands for none."""
    drop: tuple[Text, ...] = ()
    """Marks that are neither calls nor content."""
    headers: Mapping[Text, Text] = Field(default_factory=dict)
    """Marks that open a header of at most 128 characters of one line, with the mark that closes it; all of it is
    neither call nor content."""
    thinking_marks: ThinkingSpec = ThinkingSpec()
    chat: ChatSpec = ChatSpec()
    chat_template: Text | ChatTemplateSpec | None = None
    """A chat template that writes the conversation instead of `chat`: a .jinja file, or a mapping with all it needs."""
    offers: tuple[Leniency, ...] = ()
    """The leniencies that fit the family."""
    lenient: tuple[Leniency, ...] = ()
    """The leniencies that are on. Each use is counted: a policy should not learn that a broken call is fine."""
    thinking_open: Bool | None = None
    """Whether the generation prompt has opened a thinking block; by default it has where a message closes one."""
    thinking: Bool = True
    """False writes an empty thinking block into the generation prompt, which turns thinking off in Qwen3."""
    tools: Literal["as_given", "bare", "wrapped"] = "as_given"
    """How tools are listed: as they are, as bare functions, or as {"type": "function", "function": …}."""
