"""The chat template that a spec's dialect names: read, bound to what it needs, and tried out."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from rlenv._base.paths import names_in, read_file
from rlenv._base.text import did_you_mean, nearest
from rlenv.dialects.base import Dialect, RowFault, listed, shown
from rlenv.dialects.json_body import marks_of
from rlenv.errors import UnsupportedTemplate
from rlenv.language.dialect import ChatTemplateSpec, DialectSpec
from rlenv.messages import Message, ParsedAction, ToolCall
from rlenv.tokens.images import as_template_reads
from rlenv.tokens.layouts import STOPS, ContentsLost, Deriver, Layout, NoStopMark, values_of
from rlenv.tokens.vocabulary import ChatTemplate, names_read

if TYPE_CHECKING:
    from rlenv.language.loader import LoadedSpec


class TemplatedDialect:
    """A dialect whose conversations are a chat template's own text; calls are read and written by the dialect inside.

    Prompts are rendered; what follows an assistant's turn is derived from the template once for each sequence of
    roles, as token-exact observations are.

    Args:
        values: names that the template reads beside the conversation, such as `bos_token`.
        stop: the mark, or the marks, that end an assistant's turn, where the template's is not a common one.

    Raises:
        UnsupportedTemplate: a syntax error in the template.
    """

    begins: Final = True
    """A chat server, too, puts nothing before what the template writes."""

    def __init__(
        self,
        dialect: Dialect,
        source: str,
        *,
        name: str = "of this dialect",
        values: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> None:
        self.name = dialect.name
        self._dialect = dialect
        self._template = ChatTemplate(source, name=name, values={"bos_token": "", "eos_token": "", **(values or {})})
        eos = str((values or {}).get("eos_token", ""))
        named = (stop,) if isinstance(stop, str) else tuple(stop or ())
        self._stops = tuple(mark for mark in (*named, eos) if mark)
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._refused: set[tuple[str, ...]] = set()

    @property
    def turn_ends(self) -> tuple[str, ...]:
        """The marks that end an assistant's turn: those that are named, else the template's; () where it has none."""
        for roles in (("user",), ("tool",)) if not self._stops else ():
            try:
                layout = self._layout(roles)
            except UnsupportedTemplate:
                continue
            return (layout.stop.strip(),) if layout.ends_turns and layout.stop.strip() else ()
        return self._stops

    def parse(self, text: str, tools: Mapping[str, Any] | None = None) -> ParsedAction:
        """The action as the dialect inside reads it."""
        return self._dialect.parse(text, tools)

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """The template's rendering with its generation prompt.

        Raises:
            UnsupportedTemplate: the template refuses the messages.
        """
        return self._template.render(list(map(as_template_reads, messages)), tools=tools)

    def render_action(self, message: Message) -> str:
        """The text as the dialect inside writes it."""
        return self._dialect.render_action(message)

    def render_observation(self, messages: Sequence[Message]) -> str:
        """The stop mark of the assistant's turn and what the template writes behind it.

        How many calls a turn holds is the policy's choice: a template that refuses several results is given them as
        one, a line break between them.

        Raises:
            UnsupportedTemplate: it changes contents in a way that is not known.
        """
        roles = tuple(message.role for message in messages)
        if roles in self._refused:
            return self.render_observation(_as_one(messages))
        try:
            layout = self._layout(roles)
        except UnsupportedTemplate:
            if len(roles) == 1 or set(roles) != {"tool"}:
                raise
            self._refused.add(roles)
            return self.render_observation(_as_one(messages))
        return layout.stop + layout.text(values_of(messages))

    def _layout(self, roles: tuple[str, ...]) -> Layout:
        layout = self._layouts.get(roles)
        if layout is None:
            layout = Deriver(self._template, self._stops).layout(roles)
            self._check_stop(layout)
            self._layouts[roles] = layout
        return layout

    def _check_stop(self, layout: Layout) -> None:
        """Refuses a guess that may be wrong: without a tokenizer, any tag in front of the next message looks like a
        stop mark, also the one that closes a call."""
        if layout.stop in (*self._stops, *STOPS):
            return
        said = "\ue000said\ue000"
        answer = [{"role": "user", "content": "u"}, {"role": "assistant", "content": said}]
        behind = self._template.render(answer, add_generation_prompt=False).rpartition(said)[2].strip()
        if behind and not behind.startswith(layout.stop):
            raise NoStopMark(self._template.name, behind)


def _as_one(results: Sequence[Message]) -> tuple[Message, ...]:
    """Several results as one message, under the name and the id of the first."""
    return (replace(results[0], content="\n".join(message.content for message in results)),)


_GIVEN: Final = ("messages", "tools", "documents", "add_generation_prompt")
"""What every rendering is given."""
_TOKENS: Final = ("bos_token", "eos_token")
_LINE: Final = re.compile(r", line (\d+):")


class Declared:
    """A spec's chat template: its source with what was given beside it, and where its keys stand.

    `findings` are the faults that the text alone shows: a file that cannot be read, a syntax error, a special token
    that the template writes and the spec does not give, a name that the template does not read. `dialect` is None
    where the template cannot be compiled.
    """

    def __init__(self, loaded: LoadedSpec, given: ChatTemplateSpec, inside: Dialect, *, is_mapping: bool) -> None:
        self.given = given
        self.findings: list[RowFault] = []
        self.dialect: TemplatedDialect | None = None
        self._is_mapping = is_mapping
        self.place: tuple[str, ...] = ("chat_template", "file") if is_mapping else ("chat_template",)
        path = loaded.base_of(".".join(("dialect", *self.place))) / given.file
        self.name = path.name
        try:
            self.source = read_file(path).decode()
        except (OSError, ValueError) as error:
            message = f"chat_template {path} cannot be read ({type(error).__name__})"
            close = nearest(path.name, names_in(path.parent))
            hint = f"did you mean '{given.file.removesuffix(path.name)}{close}'?" if close else "give a .jinja file"
            self.findings.append(RowFault(self.place, message, hint))
            return
        values = {key: value for key in _TOKENS if (value := getattr(given, key)) is not None}
        try:
            self.dialect = TemplatedDialect(
                inside, self.source, name=self.name, values={**given.vars, **values}, stop=marks_of(given.stop)
            )
        except UnsupportedTemplate as error:
            message, hint = str(error).removeprefix("chat template "), "mend that line of the template"
            self.findings.append(RowFault(self.place, message, hint))
            return
        self.findings += self._names()

    def _names(self) -> Iterator[RowFault]:
        """Names that the template reads and lacks, and names that are given and that it does not read."""
        reads = names_read(self.source)
        lacking = [token for token in _TOKENS if token in reads and getattr(self.given, token) is None]
        if lacking:
            lines = listed([f"{token} (line {_line_of(self.source, token)})" for token in lacking])
            message = f"{self.name} reads {lines}, which {'are' if len(lacking) > 1 else 'is'} not given"
            keys = ", ".join(f'{token}: "…"' for token in lacking)
            hint = f"add {keys}" if self._is_mapping else f"write {{file: {self.given.file}, {keys}}}"
            yield RowFault(("chat_template",), message, f'{hint}, with "" where the tokenizer has none', self._at)
        if self.given.bos_token and "bos_token" not in reads:
            message = f"{self.name} does not read bos_token, so that no prompt starts with it"
            yield RowFault(("chat_template", "bos_token"), message, "remove it, or let the template write it", "key")
        for name in self.given.vars:
            place = ("chat_template", "vars", name)
            if name in _GIVEN:
                yield RowFault(place, f"'{name}' is given by the conversation itself", "remove it", "key")
            elif name in _TOKENS:
                yield RowFault(place, f"'{name}' has a key of its own", f"write {name} beside 'vars'", "key")
            elif name not in reads:
                own = sorted(reads - {*_TOKENS})
                hint = did_you_mean(name, own, otherwise=f"it reads: {', '.join(own) or 'no other name'}")
                yield RowFault(place, f"{self.name} reads no '{name}'", hint, "key")

    @property
    def _at(self) -> Literal["key", "value"]:
        return "key" if self._is_mapping else "value"

    def answered(self, roles: Sequence[tuple[str, ...]]) -> Iterator[RowFault]:
        """The faults of observations: those messages that cannot answer an assistant's turn as the template writes it.

        Args:
            roles: sequences of roles that answer, such as ("tool", "tool").
        """
        assert self.dialect is not None
        said: set[str] = set()
        for sequence in roles:
            messages = [
                Message(role, f"answer {index}", name="tool" if role == "tool" else None)  # type: ignore[arg-type]
                for index, role in enumerate(sequence)
            ]
            try:
                text = self.dialect.render_observation(messages)
            except UnsupportedTemplate as error:
                finding = self._refusal_fault(error, sequence)
                if finding.message not in said:
                    said.add(finding.message)
                    yield finding
                continue
            yield from self._stop(text, said)

    def _stop(self, text: str, said: set[str]) -> Iterator[RowFault]:
        """A mark of `stop` that the template never writes ends nothing."""
        wanted = marks_of(self.given.stop)
        if not wanted or text.startswith(wanted) or "stop" in said:
            return
        said.add("stop")
        message = f"{self.name} does not end an assistant's turn with {' or '.join(map(shown, wanted))}"
        yield RowFault(
            ("chat_template", "stop"), message, f"name the mark in front of what follows: {shown(text[:40])}"
        )

    def _refusal_fault(self, error: UnsupportedTemplate, roles: tuple[str, ...]) -> RowFault:
        if isinstance(error, ContentsLost):
            what = "a tool's result" if roles[0] == "tool" else "a user's reply"
            message = f"{self.name} does not write {what} once, as it is: the model would not see it"
            return RowFault(self.place, message, f"let it write message.content where message.role is '{roles[0]}'")
        if isinstance(error, NoStopMark):
            if marks_of(self.given.stop):
                wanted = " or ".join(map(shown, marks_of(self.given.stop)))
                message = f"{self.name} does not end an assistant's turn with {wanted}; what follows is {error.near!r}"
                return RowFault(("chat_template", "stop"), message, "name the mark that stands there")
            hint = f'write {{file: {self.given.file}, stop: "…"}} with the mark that ends the turn'
            if self._is_mapping:
                hint = 'add stop: "…" with the mark that ends the turn'
            message = f"{self.name} ends an assistant's turn with no known stop mark: {error.near!r}"
            return RowFault(("chat_template",), message, hint, self._at)
        return RowFault(self.place, _with_line(error), "mend the template, or describe the family by 'chat'")


def declared_template(loaded: LoadedSpec, inside: Dialect) -> Declared | None:
    """The chat template of a spec's dialect, None where it names none."""
    given: str | DialectSpec = loaded.spec.dialect
    if isinstance(given, str) or given.chat_template is None:
        return None
    template = given.chat_template
    if isinstance(template, str):
        return Declared(loaded, ChatTemplateSpec(file=template), inside, is_mapping=False)
    return Declared(loaded, template, inside, is_mapping=True)


def roles_that_answer(*, has_tools: bool, has_user: bool) -> list[tuple[str, ...]]:
    """The messages that an environment answers an assistant's turn with."""
    single: list[tuple[str, ...]] = [("tool",)] * has_tools
    return single + [("user",)] * has_user


def rendering_findings(
    declared: Declared, prompts: Sequence[Sequence[Message]], tools: Sequence[Any]
) -> Iterator[RowFault]:
    """The faults of the environment's own prompts as the template writes them."""
    assert declared.dialect is not None
    for messages in prompts:
        try:
            text = declared.dialect.render_prompt(messages, tools)
        except UnsupportedTemplate as error:
            yield RowFault(declared.place, _with_line(error), "mend the template, or the prompt that it refuses")
            return
        for message in messages:
            lacking = message.content.strip() not in text
            if lacking and message.content.strip():
                what = f"{declared.name} does not write the {message.role}'s message into the prompt"
                yield RowFault(declared.place, what, "write message.content for that role")
                return
        lost = next((name for tool in tools if (name := _name_of(tool)) and name not in text), None)
        if lost is not None:
            what = f"{declared.name} does not show the tool '{lost}', so that the model knows of none"
            yield RowFault(declared.place, what, "let the template write `tools`, or leave them to the prompt")
            return


def rewritten_history(
    declared: Declared, prompts: Sequence[Sequence[Message]], tools: Sequence[Any], roles: Sequence[tuple[str, ...]]
) -> str:
    """The difference in an environment's earlier turns once messages answer; "" where the history only grows.

    A policy of raw text reads one text that grows, in which they stay as they were.
    """
    assert declared.dialect is not None
    render = declared.dialect.render_prompt
    name = _name_of(tools[0]) if tools else "tool"
    said = {"tool": Message("assistant", "", (ToolCall(name, {}, "call00000"),)), "user": Message("assistant", "Well.")}
    for start, sequence in itertools.product(prompts, roles):
        role = sequence[0]
        answer = Message(role, "7", name=name if role == "tool" else None, tool_call_id="call00000")  # type: ignore[arg-type]
        found = ""
        for thought in ("", "Hm."):  # a prompt that opens a thought goes on with one
            turn = replace(said[role], thinking=thought)
            try:
                texts = [render([*start, *(turn, answer) * count], tools) for count in range(3)]
            except UnsupportedTemplate:
                continue
            shorter = next((text for text, whole in itertools.pairwise(texts) if not whole.startswith(text)), None)
            if shorter is None:
                found = ""
                break
            found = found or f"{declared.name} writes earlier turns otherwise once {_WHO[role]} answers"
        if found:
            return found
    return ""


_WHO: Final = {"tool": "a tool", "user": "a user"}


def _name_of(tool: Any) -> str:
    return str(tool.get("function", tool).get("name", ""))


def _with_line(error: UnsupportedTemplate) -> str:
    """The message with the template's line, where the failure has one."""
    message = str(error).removeprefix("chat template ")
    line = 0
    cause: BaseException | None = error
    while cause is not None and not line:
        trace = cause.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<template>":
                line = trace.tb_lineno
            trace = trace.tb_next
        cause = cause.__cause__
    if not line or _LINE.search(message):
        return message
    name, _, rest = message.partition(" ")
    return f"{name}, line {line}: {rest}"


def _line_of(source: str, name: str) -> int:
    """The line of a template that first holds a name."""
    match = re.search(rf"\b{name}\b", source)
    return source.count("\n", 0, match.start()) + 1 if match is not None else 1
