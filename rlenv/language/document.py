"""YAML text to plain data that remembers where every key and value stands.

The text is read by the YAML 1.2 core schema: `on` and `12:30` are text, `010` is ten, `1e3` is a float. Parts of YAML
that surprise (duplicate keys, merge keys, tags, several documents) are refused at their place. A document may stand
on another one (`extends`) and be overridden key by key; each value keeps the file that it came from.
"""

from __future__ import annotations

import copy
import functools
import operator
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from rlenv._base.bounded import abridged
from rlenv._base.paths import is_file, is_folder, leads_out, names_in, read_file
from rlenv._base.text import KeyPath, did_you_mean
from rlenv.errors import Finding, SpecError
from rlenv.language.shipped import harbor_splits, of_harbor
from rlenv.language.yamltree import MAX_DEPTH, Node, Span, parse_text, text_span
from rlenv.language.yamlwords import rename

__all__ = ["SourceDocument", "Span", "override_value", "parse_source", "read_source"]

PathLike = str | KeyPath

_MAX_EXTENDS = 64
_MAX_WORDS = 2_000
_OVERRIDE = "--set "
_PROSE = re.compile(
    r"prompt\.(?:system|user|messages\.\d+\.content)|user\.prompt|observation\.template"
    r"|tools\.[^.]+\.(?:prompt|system)|rewards\.[^.]+\.(?:judges\.\d+\.)?prompt"
)
_ALLOWED = re.compile(r"#\s*rlenv:\s*allow\s+([\w\s-]+)$")
_LEADING_VAR = re.compile(r"\s*\{\{-?\s*(vars(?:\.\w+)+)")


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """Plain data with the place of every key and value.

    `data` holds dicts, lists, texts, numbers, booleans and None; keys are text. A place is asked for by the dotted
    path (`tools.add.timeout_s`, `oracle.0.say`) or by a tuple of keys. `files` are the files that were read, the
    document's own first.
    """

    path: Path
    data: Mapping[str, Any]
    files: tuple[Path, ...] = ()
    _keys: Mapping[KeyPath, Span] = field(default_factory=dict, repr=False)
    _values: Mapping[KeyPath, Span] = field(default_factory=dict, repr=False)
    _dotted: Mapping[str, KeyPath] = field(default_factory=dict, repr=False)

    def has(self, path: PathLike) -> bool:
        """True where the document holds a value at `path`."""
        return self._resolve(path) in self._values

    def get(self, path: PathLike) -> Any:
        """The value at `path`, None where there is none."""
        value: Any = self.data
        keys = self._resolve(path)
        if keys not in self._values:
            return None
        for key in keys:
            value = value[key]
        return value

    @property
    def overridden(self) -> tuple[str, ...]:
        """The dotted paths that overrides have replaced, sorted; one under another that came later is not told."""
        return tuple(sorted(".".join(map(str, keys)) for keys, span in self._values.items() if _is_set(keys, span)))

    def written(self) -> dict[str, Any]:
        """The data with each key by the name that its file gives it."""
        former = sorted((keys for keys, span in self._keys.items() if span.was), key=len, reverse=True)
        data = copy.deepcopy(dict(self.data)) if former else dict(self.data)
        for keys in former:
            holder: Any = functools.reduce(operator.getitem, keys[:-1], cast(Any, data))
            holder[self._keys[keys].was] = holder.pop(keys[-1])
        return data

    def former(self) -> list[Finding]:
        """A warning for each key that is written by a name that it had."""
        found = [(keys, span.was, str(keys[-1])) for keys, span in self._keys.items() if span.was]
        return [
            self.warning(keys, f"'{was}' is called '{name}' now", f"write '{name}'", "former-name", at="key")
            for keys, was, name in found
        ]

    def key_span(self, path: PathLike) -> Span:
        """The place of the key at `path`, or else of the nearest parent that exists."""
        keys = self._resolve(path)
        while keys and keys not in self._values:
            keys = keys[:-1]
        return self._keys.get(keys) or self._values[keys]

    def value_span(self, path: PathLike) -> Span:
        """The place of the value at `path`, or else of the key of the nearest parent that exists."""
        keys = self._resolve(path)
        return self._values[keys] if keys in self._values else self.key_span(keys)

    def base_of(self, path: PathLike) -> Path:
        """The folder that a relative path under the key `path` refers to.

        It is the folder of the file that holds the value, and the current working directory for an override. A value
        that starts with `{{ vars.NAME }}` takes the base of that constant.
        """
        keys = self._resolve(path)
        value = self.get(keys)
        if isinstance(value, str) and (match := _LEADING_VAR.match(value)) and self.has(match[1]):
            return self.value_span(match[1]).base
        return self.value_span(keys).base

    def fault(
        self,
        path: PathLike,
        message: str,
        hint: str = "",
        *,
        at: str = "value",
        find: str = "",
        line: int = 1,
        shown: str | None = None,
    ) -> Finding:
        """A fault at the place of `path`.

        Args:
            at: `value` or `key`: which of the two is at fault.
            find: a text inside the value (a name in a template, say) to point at; its first occurrence is taken.
            line: the 1-based line inside a multi-line value, where `find` is not given or does not occur.
            shown: the dotted path to print, where it is not that of the place (a key that is missing).
        """
        keys = self._resolve(path)
        span = self.key_span(keys) if at == "key" else self.value_span(keys)
        number, column = span.inside(find, line) if at == "value" else (span.line, span.column)
        dotted = ".".join(map(str, keys)) if shown is None else shown
        dotted, message, hint = (abridged(text, _MAX_WORDS) for text in (dotted, message, hint))
        return span.fault(dotted, message, hint, at=(number, column))

    def warning(
        self, path: PathLike, message: str, hint: str, code: str, *, at: str = "value", find: str = ""
    ) -> Finding:
        """A warning at the place of `path`; see `fault`. `code` is the stable word for what it warns of."""
        return replace(self.fault(path, message, hint, at=at, find=find), level="warning", code=code)

    def allows(self, fault: Finding) -> bool:
        """True where the line of a warning, or that of its key, ends in `# rlenv: allow CODE`."""
        key = self.key_span(fault.path)
        lines = (fault.quote, key.quote(key.line))
        return any(fault.code in found[1].split() for line in lines if (found := _ALLOWED.search(line)))

    def without(self, paths: Iterable[KeyPath], data: Mapping[str, Any]) -> SourceDocument:
        """This document with `data`, in which nothing stands at or below `paths` any more."""
        gone = tuple(paths)

        def stays(keys: KeyPath) -> bool:
            return not any(keys[: len(path)] == path for path in gone)

        values = {keys: span for keys, span in self._values.items() if stays(keys)}
        names = {keys: span for keys, span in self._keys.items() if stays(keys)}
        dotted = {text: keys for text, keys in self._dotted.items() if stays(keys)}
        return SourceDocument(self.path, data, self.files, names, values, dotted)

    def with_values(self, values: Mapping[str, Any]) -> SourceDocument:
        """This document with `values` at its top, standing where the document does."""
        span = self._values[()]
        fresh = _flatten(_build(values, span), self.path, self.files)
        return SourceDocument(
            self.path,
            {**self.data, **fresh.data},
            self.files,
            {**self._keys, **{keys: span for keys, span in fresh._keys.items() if keys}},
            {**self._values, **{keys: span for keys, span in fresh._values.items() if keys}},
            {**self._dotted, **{text: keys for text, keys in fresh._dotted.items() if keys}},
        )

    def _resolve(self, path: PathLike) -> KeyPath:
        if isinstance(path, tuple):
            return path
        found = self._dotted.get(path)
        if found is not None:
            return found
        head, _, tail = path.rpartition(".")
        return (*self._resolve(head), tail) if head else (path,) if path else ()


def _is_set(keys: KeyPath, span: Span) -> bool:
    """True where an override has put the value itself, rather than what is around or in it."""
    return span.line == 0 and span.file.startswith(_OVERRIDE) and len(keys) == span.file.count(".") + 1


def _flatten(root: Node, path: Path, files: tuple[Path, ...]) -> SourceDocument:
    keys: dict[KeyPath, Span] = {}
    values: dict[KeyPath, Span] = {}

    def visit(node: Node, at: KeyPath) -> Any:
        values[at] = node.span
        if node.key is not None:
            keys[at] = node.key
        if isinstance(node.value, dict):
            return {key: visit(child, (*at, key)) for key, child in node.value.items()}
        if isinstance(node.value, list):
            return [visit(child, (*at, index)) for index, child in enumerate(node.value)]
        return node.value

    data = visit(root, ())
    dotted = {".".join(map(str, at)): at for at in reversed(values)}
    return SourceDocument(path, data, files, keys, values, dotted)


def _fault_at(span: Span, path: str, message: str, hint: str = "") -> SpecError:
    return SpecError([span.fault(path, abridged(message, _MAX_WORDS), hint)])


def _of_file(shown: str, message: str, hint: str = "", line: int = 1, column: int = 1) -> Finding:
    return Finding("fault", message, hint, file=shown, line=line, column=column)


def _read_text(path: Path, shown: str) -> str:
    try:
        raw = read_file(path)
    except FileNotFoundError:
        raise SpecError([_of_file(shown, "there is no such file", _near_file(path))]) from None
    except (OSError, ValueError) as error:
        if is_folder(path):
            raise SpecError([_of_file(shown, "found a folder; expected a YAML file")]) from None
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError([_of_file(shown, f"the file cannot be read: {reason}")]) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8-sig", errors="replace")
        number = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        found = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise SpecError([_of_file(shown, found, "save the file as UTF-8", number, column)]) from error


def _near_file(path: Path) -> str:
    return did_you_mean(path.name, names_in(path.parent))


def parse_source(text: str, *, file: str = "<text>", base: Path | None = None) -> SourceDocument:
    """Text to a document, without following `extends`.

    Raises:
        SpecError: the text is not YAML of the kind described above; nothing else is ever raised.
    """
    folder = Path.cwd() if base is None else base
    return _flatten(parse_text(text, file=file, base=folder), Path(file), ())


def override_value(path: str, text: str) -> Any:
    """The text of an override as data: a YAML scalar, or a list or mapping in brackets.

    Text that only YAML's block style would read as a mapping (`Task: add`) stays text, and so does a template.

    Raises:
        SpecError: an opening bracket or quote that is never closed, and the like.
    """
    bare = text.strip()
    if not bare:
        return ""
    if bare.startswith(("{{", "{%")) or (bare[0] not in "[{\"'" and "\n" in text):
        return text
    try:
        value = parse_text(bare, file=f"--set {path}", base=Path.cwd(), is_override=True).plain()
    except SpecError:
        if bare[0] in "[{\"'":
            raise
        return text
    return text if isinstance(value, (dict, list)) and bare[0] not in "[{" else value


def read_source(
    path: str | os.PathLike[str], *, set: Mapping[str, Any] | None = None, text: str | None = None
) -> SourceDocument:
    """A file to a document: `extends` is followed, then the overrides in `set` are laid over it.

    Args:
        text: what stands at `path` in an editor that has not saved it; the file is not read then, and need not be
            there. What it extends is read from its file.
        set: values by dotted path (`tasks.test.path`); texts are read by `override_value`. Relative paths in them
            refer to the working directory.

    Raises:
        SpecError: a file cannot be read as described above, or an override does not fit.
    """
    file = Path(path)
    files: list[Path] = []
    root = _read_tree(file, chain=(), files=files, shown=os.fspath(path), text=text)
    for key, value in (set or {}).items():
        _override(root, key, override_value(key, value) if isinstance(value, str) else value)
        rename(root)
    root = _below_it(root)
    _write_out(root, "", files)
    return _flatten(root, file, tuple(files))


def _below_it(root: Node) -> Node:
    """The tree with what follows from task folders of Harbor's, below what the spec says itself."""
    held: Any = root.value
    for split in harbor_splits(root.plain())[:1]:
        span = held["tasks"].value[split].value["harbor"].span
        found = of_harbor(root.plain(), split, span.base)
        held = {**_merge(_build(found, span), root, ()).value, "roots": _build(found["roots"], span)}  # type: ignore[dict-item]
    return Node(held, root.span, root.key)


def _write_out(node: Node, path: str, files: list[Path]) -> None:
    """Puts the text of a file in the place of each `{file: NAME}` that stands for a prompt."""
    held: Any = node.value
    for key in list(held) if isinstance(held, dict) else range(len(held) if isinstance(held, list) else 0):
        at, child = f"{path}.{key}".lstrip("."), held[key]
        if isinstance(child.value, dict) and list(child.value) == ["file"] and _PROSE.fullmatch(at):
            held[key] = _text_of(child.value["file"], child, at, files)
        elif at.count(".") < 4 and not at.startswith("tasks"):
            _write_out(child, at, files)


def _text_of(named: Node, node: Node, path: str, files: list[Path]) -> Node:
    span = named.span
    if not isinstance(named.value, str) or not named.value:
        raise _fault_at(span, path, "expected the name of a file", "write {file: system.md}")
    place = span.base / named.value
    if not is_file(place):
        raise _fault_at(span, path, f"there is no file '{named.value[:200]}'", _near_file(place))
    if leads_out(place, [span.base]):
        raise _fault_at(span, path, f"'{named.value[:200]}' leads out of the folder of the spec", "copy it there")
    files.append(place)
    text = _read_text(place, os.fspath(place))
    return Node(text, text_span(text, file=os.fspath(place), base=span.base), node.key)


def _read_tree(path: Path, *, chain: tuple[Path, ...], files: list[Path], shown: str, text: str | None = None) -> Node:
    files.append(path)
    try:
        real = path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, a circle of links
        raise SpecError([_of_file(shown, f"the file cannot be read: {error}")]) from error
    root = parse_text(_read_text(path, shown) if text is None else text, file=shown, base=path.parent)
    assert isinstance(root.value, dict)
    extends = root.value.get("extends")
    if extends is None or extends.value is None:
        rename(root)
        return root
    parents = extends.value if isinstance(extends.value, list) else [extends]
    below = Node({}, root.span)
    for parent in parents:
        one = _parent(parent, path, (*chain, real), files)
        assert isinstance(one.value, dict)
        one.value.pop("extends", None)
        below = _merge(below, one, ())
    merged = _merge(below, root, ())
    rename(merged)
    return merged


def _parent(named: Node, path: Path, seen: tuple[Path, ...], files: list[Path]) -> Node:
    """The tree of one spec that the one at `path`, the last of those `seen`, names under `extends`."""
    if not isinstance(named.value, str) or not named.value:
        raise _fault_at(named.span, "extends", "expected the path of another spec", "write extends: ./base.yaml")
    target = path.parent / named.value
    if not is_file(target):
        hint = _near_file(target) or "the path is relative to this file"
        raise _fault_at(named.span, "extends", f"there is no file '{named.value[:200]}'", hint)
    if target.resolve() in seen:
        names = [*(item.name for item in seen[seen.index(target.resolve()) :]), target.name]
        message = f"the specs extend each other in a circle: {' -> '.join(names)}"
        raise _fault_at(named.span, "extends", message, "remove one of the 'extends'")
    if len(seen) > _MAX_EXTENDS or len(files) > _MAX_EXTENDS**2:
        found = f"more than {_MAX_EXTENDS} specs extend each other"
        raise _fault_at(named.span, "extends", found, "merge some of them")
    return _read_tree(target, chain=seen, files=files, shown=os.path.normpath(target))


def _merge(below: Node, above: Node, path: tuple[str, ...]) -> Node:
    """`above` over `below`, key by key; an entry of another `kind` replaces the one below as a whole, and so does a
    mapping with `extends: null`. A mapping under a null is taken out, but for constants, which may be null."""
    if not isinstance(above.value, dict):
        return above
    held = dict(above.value)
    if path and "extends" in held and held["extends"].value is None:
        del held["extends"]
        return Node(held, above.span, above.key)
    under = below.value if isinstance(below.value, dict) else {}
    kind, other = under.get("kind"), held.get("kind")
    if other is not None and (kind is None or kind.value != other.value):
        return above
    merged = dict(under)
    for key, child in held.items():
        was = merged.get(key, Node(None, child.span))
        if child.value is None and isinstance(was.value, dict) and path[:1] != ("vars",):
            del merged[key]
        else:
            merged[key] = _merge(was, child, (*path, key))
    return Node(merged, above.span, above.key)


def _override(root: Node, path: str, value: Any) -> None:
    span = Span(f"{_OVERRIDE}{path}", 0, 0, Path.cwd())

    def refuse(message: str, hint: str = "") -> SpecError:
        return SpecError([Finding("fault", message, hint, where=path, file=span.file)])

    parts = path.split(".")
    if not all(parts):
        raise refuse("found an empty key; expected keys joined by dots", "for example: limits.turns")
    if path == "extends":
        raise refuse("'extends' cannot be overridden", "write a small spec that extends the other file")
    if len(parts) > MAX_DEPTH:
        raise refuse(f"nested deeper than {MAX_DEPTH} levels", "for example: limits.turns")
    node = root
    for depth, part in enumerate(parts):
        is_last = depth == len(parts) - 1
        fresh = _build(value, span) if is_last else Node({}, span, span)
        if isinstance(node.value, dict):
            child = node.value.get(part)
            if is_last and value is None and child and isinstance(child.value, dict) and parts[0] != "vars":
                del node.value[part]  # as null does over what a spec extends
            elif child is None or is_last or child.value is None:
                node.value[part] = child = fresh
        elif isinstance(node.value, list):
            if not part.isdecimal() or int(part) >= len(node.value):
                raise refuse(f"'{part}' is not an index of a list of {len(node.value)}", "indices start at 0")
            child = node.value[int(part)]
            if is_last:
                node.value[int(part)] = child = fresh
        else:
            above = ".".join(parts[:depth])
            raise refuse(f"'{above}' is no mapping, so it has no key '{part}'")
        node = child


def _build(value: Any, span: Span) -> Node:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, Mapping):
        return Node({str(key): _build(item, span) for key, item in value.items()}, span, span)
    if isinstance(value, (list, tuple)):
        return Node([_build(item, span) for item in value], span, span)
    return Node(value, span, span)
