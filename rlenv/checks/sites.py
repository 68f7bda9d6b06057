"""Templates: they compile, what they read exists, they render for every row, and none stands where nothing fills it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlenv._base.text import KeyPath, did_you_mean, nearest, strings_in
from rlenv.checks.subject import (
    PATTERNS,
    ReadSplit,
    Subject,
    calls_in,
    fixed_text,
    gold_columns,
    is_condition,
    prompt_texts,
)
from rlenv.errors import Finding
from rlenv.language.expressions import expected_of, open_on
from rlenv.language.kinds import gold_in, gold_key, kind_of
from rlenv.language.spec import Spec
from rlenv.language.templates import Template, TemplateError, UnfitTemplate, template_of
from rlenv.language.type_faults import describe
from rlenv.rewards.answer import compile_pattern
from rlenv.secrets import LITERAL, names_in

_MARK = re.compile(r"\{\{|\{%")
# Text that is shown or matched as it stands, and never rendered.
_LITERAL = frozenset(("kind", "description", "pattern", "function", "rule", "gate", "scope", "when", "stop"))
_DICT_METHODS = frozenset(dir(dict))
_PROMPT = ("task", "resources", "vars")
_OBSERVATION = ("result", "tool", "is_error", "task", "turn", "vars")
_REWARD = ("task", "resources", "vars", "answer", "item", "turn", "said")
_JUDGE = ("task", "vars", "answer", "message", "transcript", "first", "second")
_ROW = ("task", "vars")
_WORLD = ("observation", "info", "render", "task", "vars")
_OFFERED = ("task", "vars", "user_turn")
_ENDS = ("resources", "task", "vars", "tool", "result")
_USER = ("task", "vars", "message", "turn")
_PLAYERS = {"next": ("resources", "vars"), "sees": ("said", "player", "task", "resources", "vars"), "roles": ()}
_ORACLE = ("task", "vars", "results", "item")


class Stub:
    """Stands for a value that is known only while an episode runs; any attribute or item of it is one too."""

    def __getattr__(self, name: str) -> Stub:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key: object) -> Stub:
        return self

    def __iter__(self) -> Iterator[Stub]:
        return iter(())  # Python would ask for one item after the other, without end

    def __str__(self) -> str:
        return "…"


@dataclass(frozen=True, slots=True)
class Site:
    """One template: where it stands, what it may read, and stand-ins for what only an episode knows."""

    path: KeyPath
    source: str
    names: tuple[str, ...]
    stand_ins: Mapping[str, Any]


def names_hint(options: tuple[str, ...] | list[str]) -> str:
    """Options for a hint."""
    return ", ".join(options) if options else "none"


def names_at(path: KeyPath, *, kind: str = "") -> tuple[str, ...]:
    """The names that a template at `path` may read, () where none may stand; `kind` is that of its entry."""
    if path[-1] in _LITERAL:
        return ()
    if path[0] == "rewards" and path[2:] == ("weight",):
        return _ROW
    places: dict[str | int, tuple[str, ...]] = {
        "prompt": _PROMPT,
        "observation": _OBSERVATION,
        "resources": _WORLD if kind in ("gymnasium", "openenv") and path[-1] == "text" else _ROW,
        "rewards": _JUDGE if kind == "judge" else _REWARD,
        "tools": _ROW,  # and what its kind adds
        "user": _PLAYERS.get(str(path[1]), _USER) if path[1:] else _USER,
        "oracle": _ORACLE,
        "limits": _ROW,
        "tasks": {"when": _ROW, "order": ("task", "vars", "measured")}.get(str(path[-1]), ("vars",)),
    }
    return places.get(path[0], ())


def check_templates(subject: Subject) -> Iterator[Finding]:
    """Faults of all templates outside the oracle."""
    for site in _find_sites(subject):
        yield from check_site(subject, site)


def _find_sites(subject: Subject) -> Iterator[Site]:
    spec, document = subject.loaded.spec, subject.document
    stubs: dict[str, Any] = {"resources": dict.fromkeys(spec.resources, Stub())}
    for at, text in prompt_texts(spec.prompt):
        yield Site(at, text, _PROMPT, stubs)
    for index, text in enumerate(spec.prompt.images):
        yield Site(("prompt", "images", index), text, _PROMPT, stubs)
    if spec.observation.template is not None:
        shown = {"result": "text", "tool": "tool", "is_error": False, "turn": 1}
        yield Site(("observation", "template"), spec.observation.template, _OBSERVATION, shown)
    entries: list[tuple[str, Mapping[str, Spec], dict[str, Any]]] = [
        ("resources", spec.resources, {"observation": Stub(), "info": Stub(), "render": "text"}),
        ("rewards", spec.rewards, {**stubs, "answer": "1", "item": Stub(), "turn": 0, "said": ""}),
    ]
    for group, section, stand_ins in entries:
        for name, entry in section.items():
            kind = getattr(entry, "kind", "")
            of_judge = ("message", "transcript", "first", "second") if (group, kind) == ("rewards", "judge") else ()
            shown = {**stand_ins, **dict.fromkeys(of_judge, "text")}
            for path, text in _template_texts(document.get((group, name)), (group, name)):
                yield Site(path, text, names_at(path, kind=kind), shown)
    for path, text in _template_texts(document.get("limits"), ("limits",)):
        yield Site(path, text, _ROW, {})
    said = {**stubs, "message": "text", "turn": 1, "player": "", "said": Stub()}
    for path, text in _template_texts(document.get("user"), ("user",)):
        if path[1] != "roles":  # columns are no templates
            yield Site(path, text, names_at(path), said)
    for name in spec.tools:
        for path, text in _template_texts(document.get(("tools", name)), ("tools", name)):
            if path[2] == "ends":
                yield Site(path, text, _ENDS, {**stubs, "tool": name, "result": Stub()})
            else:
                # What others may read depends on the tool's kind, which checks it: constants alone are looked at here.
                by_row = path[2] in ("offered", "tools")
                yield Site(path, text, _OFFERED if by_row else (), {"user_turn": 0} if by_row else {})


def _template_texts(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    for at, text in strings_in(value, path):
        if _MARK.search(text) and at[-1] not in _LITERAL:
            yield at, text


def check_site(
    subject: Subject, site: Site, is_filled: Callable[[Mapping[str, Any]], bool] | None = None
) -> Iterator[Finding]:
    """Faults of one template; none where it does not compile in its entry, which is reported.

    Args:
        is_filled: whether it is filled for a row. A reward's is where its gate may be open.
    """
    document = subject.document
    if subject.does_not_compile(site.path):
        return
    try:
        template = template_of(site.source, key="")
    except UnfitTemplate as error:
        yield document.fault(site.path, error.message, error.hint, line=error.line)
        return
    if any(_is_lost(subject, path) for path in template.paths):
        return  # it reads what is at fault itself
    broken = [*_unknown_names(subject, site, template), *_check_constants(subject, template, site)]
    yield from broken
    if broken:
        return
    if site.names and "task" in site.names:
        if is_filled is None:
            is_filled = open_on(subject.loaded.spec.rewards[str(site.path[1])].gate if _is_reward(site) else None)
        for split in subject.splits.values():
            rows = [(index, row) for index, row in enumerate(split.rows) if is_filled(row)]
            yield from _check_rows(subject, site, template, split, rows)


def _is_reward(site: Site) -> bool:
    return site.path[0] == "rewards"


def _is_lost(subject: Subject, path: tuple[str, ...]) -> bool:
    spec = subject.loaded.spec
    known: dict[str, Mapping[str, Any]] = {"vars": spec.vars, "resources": spec.resources}
    return path[0] in known and len(path) > 1 and path[1] not in known[path[0]] and subject.lacks(path[0], path[1])


def _unknown_names(subject: Subject, site: Site, template: Template) -> Iterator[Finding]:
    if not site.names:
        return
    for name in sorted(template.names - set(site.names)):
        columns = [column for split in subject.splits.values() for column in split.columns]
        close = nearest(name, site.names)
        if close:
            hint = f"did you mean '{close}'?"
        elif name in columns and "task" in site.names:
            hint = f"did you mean 'task.{name}'?"
        elif name in subject.loaded.spec.vars:
            hint = f"did you mean 'vars.{name}'?"
        else:
            hint = f"known names: {names_hint(site.names)}"
        yield subject.document.fault(site.path, f"'{name}' is not known here", hint, find=name)


def _check_constants(subject: Subject, template: Template, site: Site) -> Iterator[Finding]:
    spec = subject.loaded.spec
    known: dict[str, tuple[Mapping[str, Any], str]] = {
        "vars": (spec.vars, "constant"),
        "resources": (spec.resources, "resource"),
    }
    for path in sorted(template.paths):
        if path[0] not in known or len(path) < 2:
            continue
        options, word = known[path[0]]
        if path[1] not in options:
            named = f"known: {names_hint(list(options))}" if options else f"add it under '{path[0]}:'"
            hint = did_you_mean(path[1], options, prefix=f"{path[0]}.", otherwise=named)
            found = ".".join(path[:2])
            yield subject.document.fault(site.path, f"there is no {word} '{path[1]}'", hint, find=found)
            continue
        published = getattr(subject.resources.get(path[1]), "template_attributes", None)
        if path[0] == "resources" and published is not None and len(path) > 2 and path[2] not in published:
            hint = did_you_mean(path[2], published, otherwise=f"it has: {names_hint(sorted(published))}")
            message = f"the resource '{path[1]}' shows no '{path[2]}'"
            yield subject.document.fault(site.path, message, hint, find=".".join(path[:3]))


def _check_rows(
    subject: Subject, site: Site, template: Template, split: ReadSplit, rows: Sequence[tuple[int, Mapping[str, Any]]]
) -> Iterator[Finding]:
    document, rewards = subject.document, subject.loaded.spec.rewards
    is_gold = _is_reward(site) and gold_key(rewards[str(site.path[1])]) in site.path[2:]
    is_number = site.path[0] == "limits" or (_is_reward(site) and site.path[2:] in (("weight",), ("time_s",)))
    render: Callable[..., Any] = template.value if _is_reward(site) or is_number else template.text
    constants = {"vars": subject.loaded.spec.vars, **site.stand_ins}
    for index, row in rows:
        try:
            value = render(task=row, **constants)
        except TemplateError as error:
            faults = list(_check_columns(subject, site, template, split, rows))
            if faults:
                yield from faults
            elif not _needs_episode(template):
                where = f"row {index + 1} of split '{split.name}'"
                yield document.fault(site.path, f"the template fails for {where}: {error}", "guard it with {% if %}")
            return
        if is_number and (expected := expected_of(str(site.path[-1]), value)):
            message = f"row {index + 1} of split '{split.name}' gives {describe(value)}; expected {expected}"
            hint = "a lone {{ … }} keeps its type; add a filter such as |int" if isinstance(value, str) else ""
            yield document.fault(site.path, message, hint or "mend the row")
            break
        if is_gold and not _needs_episode(template) and _is_empty(value, rewards[str(site.path[1])]):
            shown = "an empty list" if value is not None else "null"
            message = f"row {index + 1} of split '{split.name}' gives {shown}; expected a gold value"
            yield document.fault(site.path, message, "drop such rows, fill the column, or add a gate")
            break
    yield from _check_shadowed(subject, site, template, split)


def _is_empty(value: Any, reward: Spec) -> bool:
    """True for no gold value; where a list is one value, and not several, it may be empty."""
    return value is None or (value in ([], ()) and kind_of("rewards", reward).several)


def _needs_episode(template: Template) -> bool:
    return bool(template.names & {"resources", "answer", "item", "said", "result", "results", "observation", "info"})


def _check_columns(
    subject: Subject, site: Site, template: Template, split: ReadSplit, rows: Sequence[tuple[int, Mapping[str, Any]]]
) -> Iterator[Finding]:
    """Columns that the template reads and that some row lacks which it is filled for."""
    total = len(split.rows)
    for path in sorted(template.paths):
        lacking = [index for index, row in rows if path[0] == "task" and len(path) > 1 and path[1] not in row]
        if not lacking:
            continue
        if path[1] not in split.columns:
            message = f"split '{split.name}' has no column '{path[1]}'"
            known = f"its columns: {names_hint(list(split.columns))}"
            lists = [name for name, value in split.rows[0].items() if isinstance(value, list)]
            if total == 1 and lists and subject.loaded.spec.tasks[split.name].paths:  # a file that is one object
                known += f"; where '{lists[0]}' holds the rows, add 'key: {lists[0]}'"
            hint = did_you_mean(path[1], split.columns, prefix="task.", otherwise=known)
            close = nearest(path[1], split.columns)
            if close is not None and not close.isidentifier():  # such as ' answer' of a .csv file with spaces
                hint = f"there is {close!r}: rename it, or write task[{close!r}]"
        else:
            message = f"{len(lacking)} of {len(rows)} rows of split '{split.name}' lack the column '{path[1]}'"
            message += f" (first: row {lacking[0] + 1})"
            hint = f"add it, or guard it: {{% if task.{path[1]} is defined %}}"
        yield subject.document.fault(site.path, message, hint, find=f"task.{path[1]}")


def _check_shadowed(subject: Subject, site: Site, template: Template, split: ReadSplit) -> Iterator[Finding]:
    """`task.items` is the method of the mapping, not the column of that name."""
    for path in sorted(template.paths):
        if path[0] != "task" or len(path) < 2 or path[1] not in _DICT_METHODS or path[1] not in split.columns:
            continue
        dotted = ".".join(path[:2])
        if re.search(rf"\b{re.escape(dotted)}\b(?!\()", site.source):
            message = f"'{dotted}' is a method of every mapping, not the column of split '{split.name}'"
            yield subject.document.fault(site.path, message, f"write task['{path[1]}']", find=dotted)


_SHORTEST_KEY: Final = 20
_SENT: Final = frozenset(("endpoints", "tools", "resources", "rewards", "calls", "tasks"))
_SHOWN: Final = frozenset(("prompt", "system", "description"))
_HINT: Final = "name it where it is sent: under endpoints, in headers, in the environment of a command"
_BRACES: Final = re.compile(r"\{\{-?\s*([A-Za-z_]\w*)|\{%-?\s*([a-z]+)")
_SHELL: Final = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_SHELLS: Final = frozenset(("bash", "sh", "zsh", "dash", "ksh"))
_NAMES: Final = frozenset((*_PROMPT, *_OBSERVATION, *_REWARD, *_JUDGE, *_USER, *_ORACLE, "args", "env"))


def check_filled(subject: Subject) -> Iterator[Finding]:
    """Faults of `${env:NAME}`, `${NAME}` and `{{ … }}` where nothing fills them in, and of secrets in plain text.

    Whoever fills a text notes it while the spec is compiled (`rlenv.secrets.watched`): there is no list of keys.
    """
    document, data = subject.document, subject.document.data
    for section in ("endpoints", "tools", "resources", "vars", "calls"):
        yield from _check_secrets(subject, section)
    for path, text in strings_in(data, ()):
        if path[0] == "dialect" or (path[0] == "tasks" and "rows" in path) or _is_broken(subject, path):
            continue
        is_sent = path[0] in _SENT and path[-1] not in _SHOWN and text in subject.filled.secrets
        for name in () if is_sent else names_in(text):
            reference = f"${{env:{name}}}"
            yield document.fault(path, f"{reference} is not filled in here", _HINT, find=reference)
        for found in _SHELL.finditer(text) if is_sent and not _is_of_a_shell(document.get(path[:2]), path) else ():
            yield document.fault(path, f"nothing fills in {found[0]}", f"write ${{env:{found[1]}}}", find=found[0])
        is_filled = path[0] != "vars" and path[-1] != "description" and text in subject.filled.templates
        if path[0] not in ("prompt", "oracle") and not is_filled:
            yield from _check_unfilled(subject, path, text)


def _is_broken(subject: Subject, path: KeyPath) -> bool:
    """True in an entry that does not compile: whoever would have filled its texts may not have come to them."""
    dotted = ".".join(map(str, path[:2]))
    return any(one in (dotted, path[0]) or one.startswith(f"{dotted}.") for one in subject.compiled.broken)


def _is_of_a_shell(entry: Any, path: KeyPath) -> bool:
    """True for a word of a command that a shell reads: it fills in its own variables."""
    words = entry.get(path[2]) if isinstance(entry, Mapping) and len(path) == 4 else None
    return isinstance(words, list) and any(str(word).rpartition("/")[2] in _SHELLS for word in words)


def _check_unfilled(subject: Subject, path: KeyPath, text: str) -> Iterator[Finding]:
    for found in _BRACES.finditer(text):
        if found[1] in _NAMES or found[2] in ("if", "for", "set"):
            message = f"nothing fills in '{found[0]} …' here: the text is taken as it stands"
            yield subject.document.fault(path, message, "write the text out", find=found[0])
            return
        if path[-1] == "description" and found[1]:
            message = f"'{found[0]} …' is shown to the model as it stands: nothing fills it in here"
            hint = "write the text out"
            yield subject.document.warning(path, message, hint, "literal-braces", find=found[0])
            return


def _check_secrets(subject: Subject, section: str) -> Iterator[Finding]:
    """Values that look like secrets: a spec is kept and shown, recorded with its runs and shipped."""
    for path, value in strings_in(subject.document.get(section), (section,)):
        is_key = path[-1] == "api_key" and "${env:" not in value and len(value) >= _SHORTEST_KEY
        if (secret := LITERAL.search(value)) is not None or is_key:
            shown = (secret[0] if secret is not None else value)[:6]
            hint = "write ${env:NAME}, and set the variable where the spec runs"
            fault = subject.document.fault(path, f"found what looks like a secret ('{shown}…')", hint)
            yield dataclasses.replace(fault, quote="")  # the line holds it


_EXPRESSIONS: Final = frozenset("gate success for_each report_by function path pattern when".split())


def check_braces(subject: Subject) -> Iterator[Finding]:
    """`{task.question}`, `$question` and `task.answer` are texts; a template has two braces on each side."""
    spec, columns = subject.loaded.spec, {column for split in subject.splits.values() for column in split.columns}
    known: dict[str, Collection[str]] = {"task": columns, "vars": spec.vars, "resources": spec.resources}
    # Nobody means to fill in what is right: {answer} is where the model's own goes.
    shown = columns - {one for reward in spec.rewards.values() for one in gold_columns(reward)}
    for path, text in strings_in(subject.document.data, ()):
        if path[0] in ("tasks", "dialect", "name") or path[-1] in _EXPRESSIONS or "parameters" in path:
            continue
        if (lone := PATTERNS.lone.fullmatch(text)) and lone[2] in known[lone[1]]:
            yield subject.say("no-braces/name", path, text)
            continue
        text = PATTERNS.filled.sub(" ", text)
        for found in PATTERNS.single.finditer(text):
            name = found[1].removeprefix("task.")
            is_known = found[1].startswith(("task.", "vars."))
            is_closed = name in shown and found[0][-1] in "}])>" and found[0][0] != "$"
            if is_known or is_closed or (name in shown and path[0] == "prompt" and found[0][0] == "$"):
                whole = found[1] if "." in found[1] else f"task.{found[1]}"
                yield subject.say("single-braces/name", path, found[0].strip(), whole, find=found[0])
                break


def check_shown(subject: Subject) -> Iterator[Finding]:
    """Warnings of right answers in what the policy reads, and in what a search is given."""
    spec, prompt = subject.loaded.spec, prompt_texts(subject.loaded.spec.prompt)
    read = [*prompt]
    for place in (("observation", "template"), ("user", "cues"), ("user", "replies")):
        read += strings_in(subject.document.get(place), place)
    # What a gold call is given has to be told.
    golds = {column: name for name, reward in spec.rewards.items() for column in gold_columns(reward)
             if not is_condition(subject, name)
             and (reward.kind != "verify" or re.search(r"\b(answer|message|said)\b", reward.model_dump_json()))
             and (not kind_of("rewards", reward).of_calls or isinstance(gold_in(reward), str))}  # fmt: skip
    # What shows nothing else of the row is to be copied.
    is_all = {column for _, text in prompt for column in re.findall(r"\btask\.(\w+)", text)} <= {*golds}
    echoed = [column for _, text in prompt for column in PATTERNS.plainly.findall(text) if column in golds]
    if is_all and echoed and not PATTERNS.echo.search(fixed_text(subject)):
        yield subject.say("gold-in-prompt/echo", f"rewards.{golds[echoed[0]]}", echoed[0], at="key")
    for path, text in read:
        shown = [column for column in PATTERNS.plainly.findall(text) if column in golds]
        if shown and not (is_all and path[0] == "prompt") and not _is_asked(subject, path):
            column = shown[0]
            yield subject.say("gold-in-prompt/column", path, column, golds[column], find=f"task.{column}")
            return
    made_of = {name: {*re.findall(r"\btask\.(\w+)", str(gold_in(one)))} for name, one in spec.rewards.items()
               if kind_of("rewards", one).reads_answer}  # who has to act may be told all of it  # fmt: skip
    for path, text in [one for one in read if one[0][0] == "user"]:
        told = {*re.findall(r"\btask\.(\w+)", text)}
        for name in [name for name, columns in made_of.items() if len(columns) > 1 and columns <= told][:1]:
            yield subject.say("gold-in-prompt/told", path, ", ".join(sorted(made_of[name])), name)
    for index, step in enumerate(spec.steps):
        for _, tool, given in calls_in(step):
            made, told = subject.tools.get(tool), set(re.findall(r"\btask\.(\w+)", str(given)))
            if made is not None and made.kind in ("calculator", "search") and (lost := sorted(told & {*golds})):
                yield subject.say("wrong-oracle/given-gold", ("oracle", index, "call"), lost[0])
                return


def _is_asked(subject: Subject, path: Sequence[str | int]) -> bool:
    """True for what a scripted user tells whom the oracle asks for it, or who is shown nothing of the row else."""
    user: Any = subject.loaded.spec.user
    said = [step.say for step in subject.loaded.spec.steps if step.say]
    if path[0] != "user" or not PATTERNS.reads_task.search(str(prompt_texts(subject.loaded.spec.prompt))):
        return path[0] == "user"
    cue = compile_pattern(user.cues[path[2]].pattern, ignore_case=True) if path[1] == "cues" else None
    return cue is not None and (not said or any(cue.search(text) for text in said))
