"""A model that reads a spec as a colleague would, and says what is odd by its meaning, which no rule can see.

It is shown what an author has in mind when looking for a mistake: the files, the meaning of the keys, rows, prompts and
tools as the policy gets them, and what scripted episodes earn. It is asked once, and only says: nothing of its reply is
run.
"""

from __future__ import annotations

import json
import sqlite3
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from rlenv._base.bounded import cut_end, cut_middle, encodable, grouped
from rlenv._base.paths import is_file, leads_out, real
from rlenv._base.strict_json import object_in
from rlenv._base.text import KeyPath, strings_in
from rlenv.checks.editor.shape import description_of, fields, shapes_at
from rlenv.checks.odd_play import TriedPlays
from rlenv.checks.subject import ReadSplit, Subject
from rlenv.checks.surface import first_prompts
from rlenv.concurrency.threads import run_sync
from rlenv.dialects.built_in import broken_message
from rlenv.endpoints import Client, Endpoint
from rlenv.endpoints.account import asks
from rlenv.errors import EndpointError, Finding
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Message
from rlenv.secrets import redact
from rlenv.trajectory import Trajectory

_PART: Final = 24_000
_VIEW: Final = 120_000
_LEAST: Final = 4_000
_ROW, _ROWS, _OF_ROWS, _FILES, _LISTED, _WALKED = 1_200, 8, 6_000, 24, 40, 2_000
_MAX_TOKENS: Final = 16_384
_PROMPTS: Final = 2
_SETTINGS: Final = ("limits", "answer", "calls", "observation", "tools", "resources", "rewards", "user")
_SURE: Final = 0.7
"""What the model is less sure of is not said."""

SYSTEM: Final[str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["system"]


def check_meaning(endpoint: Endpoint, known: Sequence[Finding], subject: Subject) -> Iterator[Finding]:
    """Warnings (`read`) of what a model finds odd in a sound spec; `not-read` where it gives no reply that can be read.

    One request; where the server's context has no room for all, it is asked again with less.
    """
    view = spec_text(subject, known)
    try:
        listed = object_in(run_sync(_ask_reader, endpoint, view)).get("findings")
        if not isinstance(listed, list):
            raise ValueError("the object has no list 'findings'")
    except (EndpointError, ValueError) as error:
        message = f"{endpoint.model} did not read the spec: {error}"
        yield subject.document.warning((), message, "what was not read is no pass: ask again", "not-read", at="key")
        return
    for entry in listed:
        if not (isinstance(entry, Mapping) and isinstance(entry.get("what"), str) and entry["what"].strip()):
            continue
        sure = entry.get("sure", 1.0)
        if not isinstance(sure, (int, float)) or sure >= _SURE:
            what, fix = (" ".join(str(entry.get(key) or "").split()) for key in ("what", "fix"))
            message = f"{endpoint.model} reads: {cut_end(what, 1_000)}"
            yield subject.document.warning(_place_of(subject, entry.get("where")), message, cut_end(fix, 500), "read")


def _place_of(subject: Subject, where: object) -> KeyPath | str:
    """The place that a reply names, or the nearest one around it that the spec has."""
    keys = [*str(where or "").replace("[", ".").replace("]", "").split(".")]
    while keys and not subject.document.has(".".join(keys)):
        keys.pop()
    return ".".join(keys) if keys else ()


async def _ask_reader(endpoint: Endpoint, view: str) -> str:
    """The reply. Raises EndpointError: the server failed; ValueError: a limit of tokens has cut it."""
    most = SamplingSpec(max_tokens=endpoint.sampling.max_tokens or _MAX_TOKENS)
    size = _VIEW
    async with aclosing(Client(endpoint)) as client:
        while True:
            shown = broken_message(Message("user", encodable(cut_middle(view, size))))
            try:
                with asks("reader"):
                    completion = await client.chat([Message("system", SYSTEM), shown], sampling=most, is_fitted=True)
            except EndpointError as error:
                size = min(size, len(view)) * 2 // 3
                if not error.is_full or size < _LEAST:
                    raise
                continue
            if completion.finish_reason == "length":
                raise ValueError("its reply was cut at its limit of tokens; raise `sampling: {max_tokens: …}`")
            return completion.message.content


def spec_text(subject: Subject, known: Sequence[Finding]) -> str:
    """The spec as text: its files, the meaning of its keys, rows, prompts, tools, plays, and what is said already."""
    spec = subject.loaded.spec
    effect = {name: _settings_text(getattr(spec, name)) for name in _SETTINGS}
    parts = {
        "The spec": "\n\n".join(f"## {file.name}\n{_file_text(file)}" for file in subject.document.files),
        "What its keys mean": "\n".join(_key_meanings(subject)),
        "Settings as they hold, with defaults": _dump(effect),
        "Rows": "\n\n".join(_rows_text(subject, split) for split in subject.splits.values()),
        "Prompts, as the policy gets them": _dump(_first_prompts(subject)),
        "Tools, as the policy gets them": _dump([tool.schema for tool in subject.tools.values()]),
        "Files that the spec names": "\n\n".join(_files_text(subject)),
        "Played": "\n\n".join(_plays_text(subject)),
        "Said already": "\n".join(f"{one.where}: {one.message}" for one in known),
    }
    return redact("\n\n".join(f"# {name}\n{cut_middle(text, _PART)}" for name, text in parts.items() if text))


def _dump(value: Any, indent: int | None = 1) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


def _settings_text(part: Any) -> Any:
    """A part of the spec with its defaults."""
    if isinstance(part, Mapping):
        return {name: _settings_text(entry) for name, entry in part.items()}
    return part.model_dump(mode="json", by_alias=True, exclude_none=True) if isinstance(part, BaseModel) else part


def _first_prompts(subject: Subject) -> list[list[dict[str, str]]]:
    """The first prompts: of episodes that were played, else as far as they can be told without one."""
    plays = subject.made.get("plays")
    ways = [plays.oracle, *plays.ways.values()] if isinstance(plays, TriedPlays) else []
    played = next((list(got.values())[:_PROMPTS] for got in ways if got), [])
    said = [got.messages for got in played] or first_prompts(subject)
    return [[{message.role: cut_middle(message.content, _ROW * 2)} for message in one] for one in said]


def _file_text(file: Path) -> str:
    """The first part of a file's text; of an SQLite database its tables with some rows."""
    try:
        with open(file, "rb") as opened:  # it may be of any size
            head = opened.read(4 * _PART)
        if head.startswith(b"SQLite format 3"):
            with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as base:
                made = base.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
                rows = [base.execute(f'SELECT * FROM "{name}" LIMIT 4').fetchall() for name, _ in made]
            return "\n".join(f"{sql}\n{some}" for (_, sql), some in zip(made, rows, strict=True))
        return "(no text)" if b"\0" in head else head.decode(errors="replace")
    except (OSError, sqlite3.Error) as error:
        return f"(it cannot be read: {error})"


def _key_meanings(subject: Subject) -> Iterator[str]:
    """The descriptions of the keys that are written, each once, and of the kinds of entries."""
    data, told = subject.document.data, set[str]()

    def walk(value: Any, path: KeyPath) -> Iterator[str]:
        kind, rule = (value.get(key) if isinstance(value, Mapping) else None for key in ("kind", "rule"))
        if len(path) == 2 and isinstance(kind, str):
            said = description_of("rules", str(rule)) if kind == "rule" else description_of(str(path[0]), kind)
            yield f"- {path[0]} of kind {kind}{f' {rule}' if rule else ''}: {said}"
        known = fields(shapes_at(data, path)) if isinstance(value, Mapping) else {}
        for key in value if isinstance(value, Mapping) else range(len(value) if isinstance(value, list) else 0):
            said = known[key][0].get("description", "") if key in known else ""
            if said:
                yield f"- {key}: {said}"
            if key not in ("rows", "parameters", "vars") and len(path) < 6:
                yield from walk(value[key], (*path, key))

    for line in walk(data, ()):
        if line not in told:
            told.add(line)
            yield line


def _rows_text(subject: Subject, split: ReadSplit) -> str:
    """The rows of a split, spread evenly where there are many, and how its columns vary."""
    rows = split.rows
    size = sum(len(_dump(row, None)) for row in rows[:_ROWS]) // min(len(rows), _ROWS)
    most = max(_ROWS, min(_OF_ROWS // max(size, 1), len(rows)))  # all of them, where they are few and short
    different = len({_dump(row, None) for row in rows})
    shown = sorted({index * (len(rows) - 1) // (most - 1) for index in range(most)})
    lines = [f"{index}: {cut_middle(_dump(rows[index], None), _ROW)}" for index in shown]
    values = {name: len({str(row.get(name)) for row in rows}) for name in split.columns}
    columns = [f"{name}: in {count} rows, {values[name]} different" for name, count in split.columns.items()]
    return "\n".join([f"## {split.name}: {len(rows)} rows, {different} different. " + "; ".join(columns), *lines])


def _files_text(subject: Subject) -> Iterator[str]:
    """The files that the spec names below its own folder, of folders too: text whole or cut.

    What lies elsewhere is not shown: a path may be one inside of a machine, as `keep: [/etc]` is, and this computer's
    file of that name is no business of a server's. Nor are hidden files, such as `.env`.
    """
    own = {file.resolve() for file in subject.document.files}
    named: dict[Path, None] = {}
    for path, text in strings_in(subject.document.data, ()):
        is_data = path[0] == "tasks" and ".py" not in text  # its rows are shown
        if is_data or len(text) > 300 or "\n" in text:
            continue
        with suppress(OSError, ValueError):
            base = subject.document.base_of(path)
            place = base / text.partition(".py:")[0]
            place = place if place.exists() else place.with_name(f"{place.name}.py")
            at = f"/{real(place).relative_to(real(base))}"  # of the base itself "/.", as if it were hidden
            if not leads_out(place, [base]) and real(place) not in own and "/." not in at:
                named[place] = None
    for place in [*named][:_FILES]:
        inside = [place] if place.is_file() else sorted(islice(place.rglob("*"), _WALKED))
        below = [(file, f"{place.name}/{file.relative_to(place)}".removesuffix("/.")) for file in inside]
        shown = [one for one in below if is_file(one[0]) and not one[0].is_symlink() and "/." not in f"/{one[1]}"]
        for file, name in shown[:_LISTED]:
            most = _PART // 2 if file is place else _ROW
            yield f"## {name} ({file.stat().st_size} bytes)\n{cut_middle(_file_text(file), most)}"


def _plays_text(subject: Subject) -> Iterator[str]:
    """The oracle's first episode of each split, and what each way of playing earns."""
    plays = subject.made.get("plays")
    if not isinstance(plays, TriedPlays):
        return
    if plays.unknown:
        yield f"Not measured, since a model or a program would have to be asked: {', '.join(sorted(plays.unknown))}"
    right = "the oracle, or the row's gold fed back (no proof that the gold is right)"
    for way, episodes in {right: plays.oracle, **plays.ways}.items():
        earned = grouped((_earned_text(got), f"{split}/{row}") for (split, row), got in episodes.items())
        yield f"## {way}\n" + "\n".join(f"{', '.join(rows)}: {what}" for what, rows in earned.items())
    for (split, row), got in plays.oracle.items():
        if row == 0:
            yield f"## The oracle's episode {split}/{row}\n{_transcript(got)}"


def _earned_text(got: Trajectory) -> str:
    terms = ", ".join(f"{name} {term.value}" for name, term in got.reward.terms.items() if term.value is not None)
    failed = f", failed: {got.failure.message}" if got.failure is not None else ""
    calls = sum(len(turn.parsed.calls) for turn in got.turns)
    spent = f"{len(got.turns)} turns, {calls} calls, ended by {got.reason}{failed}"
    return f"reward {got.reward.total} ({terms or 'no term was measured'}), success {got.success}, {spent}"


def _transcript(got: Trajectory) -> str:
    lines = []
    for turn in got.turns:
        lines.append(f"policy: {cut_middle(turn.action, _ROW)}")
        said = turn.observation.messages if turn.observation is not None else ()
        lines += [f"{message.role}: {cut_middle(message.content, _ROW)}" for message in said]
    return "\n".join(lines)
