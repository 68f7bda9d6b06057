"""`rlenv init`: a new environment that validates and runs, also out of one that ships or over servers of others.

`rlenv init --export`: a spec as the folder that another host wants.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlenv._base.paths import is_file, is_folder, read_file
from rlenv._base.text import did_you_mean
from rlenv.cli.options import Options, argument, option
from rlenv.cli.terminal import write
from rlenv.errors import UsageError, told_as
from rlenv.language.shipped import parts_of, shipped

# No number is the answer twice in a split: one that is right often could be earned without counting.
_TRAIN = (
    *("giraffe g", "committee e", "strawberry r", "mississippi s", "abracadabra a"),
    *("possessiveness s", "indivisibilities i"),
)
_TEST = ("raspberry b", "hippopotamus o", "anagram a", "assess s", "impossibilities i")
_MOST_NAMED = 6


@dataclass
class InitCommand(Options):
    """`rlenv init`."""

    folder: str = argument("the folder to make; its name becomes the environment's")
    source: str | None = option(
        "start from an environment that ships, from a folder of tasks in Harbor's format, or from the MCP servers of "
        "a JSON file with mcpServers, or of RL-Factory's mcp_tools.pydata",
        "--from",
        metavar="NAME|FOLDER|FILE",
    )

    def execute(self) -> int:
        """Writes the folder; never overwrites a file."""
        folder = Path(self.folder)
        name = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-")
        if not name:
            raise UsageError(f"'{self.folder}' gives no name", hint="use letters and digits")
        files = _starter_files(name) if self.source is None else _files_from(name, self.source, folder)
        _write_new(folder, files)
        spec = folder / f"{name}.yaml"
        more = f" and {len(files) - _MOST_NAMED} more files" * (len(files) > _MOST_NAMED)
        write(
            f"wrote {', '.join(str(folder / file) for file in [*files][:_MOST_NAMED])}{more}\n"
            f"next:  rlenv validate {spec}\n"
            f"       rlenv eval {spec} --policy oracle\n"
            f"       rlenv play {spec}\n"
        )
        return 0


@dataclass
class HostExportCommand(Options):
    """`rlenv init --export`."""

    host: str = argument("the host: openenv, nemo-gym or verifiers", choices=("openenv", "nemo-gym", "verifiers"))
    spec: str = argument("a YAML file, or the name of a shipped environment")
    folder: Path = argument("the folder to make", writes=True)

    def execute(self) -> int:
        """Writes the folder; never overwrites a file."""
        from rlenv.episodes.environment import load
        from rlenv.hosts.export import FORMS

        files = FORMS[self.host](load(self.spec))
        _write_new(self.folder, files)
        write(f"wrote {', '.join(str(self.folder / name) for name in files)}\n")
        return 0


def _write_new(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Writes files into a folder, which is made where it is missing; raises UsageError where one of them is there."""
    if taken := [name for name in files if (folder / name).exists()]:
        raise UsageError(f"{folder / taken[0]} exists already", hint="choose another folder")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _fill_starter(which: str, **words: str) -> str:
    """A file to start from, with words in the place of their names behind "@"."""
    text = (Path(__file__).parent / "starters" / which).read_text(encoding="utf-8")
    for name, word in words.items():
        text = text.replace(f"@{name}", word)
    return text


def _starter_files(name: str) -> dict[str, str | bytes]:
    return {
        f"{name}.yaml": _fill_starter("words.yaml", NAME=name),
        "tools.py": _fill_starter("tools.txt"),
        "train.jsonl": _rows(_TRAIN),
        "test.jsonl": _rows(_TEST),
    }


def _files_from(name: str, source: str, folder: Path) -> dict[str, str | bytes]:
    if is_folder(Path(source)) and [*Path(source).glob("task.toml"), *Path(source).glob("*/task.toml")]:
        place = os.path.relpath(source, folder)
        return {f"{name}.yaml": _fill_starter("harbor.yaml", NAME=name, FOLDER=place)}
    if not is_file(Path(source)) and source not in shipped():
        hint = did_you_mean(source, shipped(), otherwise=f"shipped: {', '.join(shipped())}")
        raise UsageError(f"'{source[:200]}' is neither a file nor an environment that ships", hint=hint)
    if is_file(Path(source)):
        return {f"{name}.yaml": spec_text(name, read_servers(Path(source), folder=folder))}
    spec, *parts = parts_of(source)
    text = re.sub(r"(?m)^name: .*$", f"name: {name}", read_file(spec).decode(), count=1)
    beside = [path for part in parts for path in ([part] if part.is_file() else sorted(part.rglob("*")))]
    kept = {path.relative_to(spec.parent).as_posix(): read_file(path) for path in beside if path.is_file()}
    return {f"{name}.yaml": text, **kept}


def _rows(pairs: tuple[str, ...]) -> str:
    rows = [pair.split() for pair in pairs]
    return "".join(
        f'{{"word": "{word}", "letter": "{letter}", "answer": {word.count(letter)}}}\n' for word, letter in rows
    )


_WORKSPACE = re.compile(r"\$\{(?:env:)?(?:workspaceFolder|workspaceRoot|projectRoot|CLAUDE_PROJECT_DIR)\}")
_INPUT = re.compile(r"\$\{input:([^{}]+)\}")
_DEFAULTED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*):-([^{}]*)\}")
_HTTP = frozenset(("http", "streamable-http", "streamable_http", "streamablehttp"))
_REFERENCE = re.compile(r"\$\{(?!env:)([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(r"key|token|secret|password|passwd|authorization|credential", re.IGNORECASE)


def read_servers(path: Path, *, folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """The entries by name, as a spec writes them, in the file's order.

    Args:
        folder: where the spec will stand; what the file names beside itself is named from there. As written if None.

    Raises:
        UsageError: the file cannot be read, or an entry in it is no server.
    """
    with told_as(UsageError, f"{path} cannot be read:", OSError, ValueError):
        text = read_file(path).decode("utf-8-sig")
    found: dict[str, dict[str, Any]] = {}
    for name, server in _find_servers(_parse_config(path, text), path):
        found[_free_name(re.sub(r"[^a-zA-Z0-9_-]+", "_", name)[:64].strip("_") or "server", found)] = _tool_entry(
            server, f"{path}: {name}"
        )
    for entry in found.values():
        cwd = entry.pop("cwd", "")
        if folder is not None:
            _move_files(entry, path, folder, cwd)
    if not found:
        raise UsageError(f"{path} names no servers; expected a mapping 'mcpServers'")
    return found


def spec_text(name: str, servers: Mapping[str, Mapping[str, Any]]) -> str:
    """A spec over these entries that validates as it stands."""
    tools = yaml.safe_dump({"tools": dict(servers)}, sort_keys=False, allow_unicode=True, default_flow_style=None)
    return _fill_starter("servers.yaml", NAME=name, SERVERS=", ".join(servers), TOOLS=tools)


def _parse_config(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as json_error:
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise UsageError(f"{path} is neither JSON ({json_error}) nor a Python literal ({error})") from error


def _find_servers(content: Any, path: Path) -> Iterator[tuple[str, Any]]:
    for block in content if isinstance(content, (list, tuple)) else [content]:
        if isinstance(block, str):
            continue  # the name of a tool that is built into the program that the file is for
        if not isinstance(block, Mapping):
            raise UsageError(f"{path}: found a {type(block).__name__}; expected mappings with the key 'mcpServers'")
        servers = block.get("mcpServers", block.get("servers"))
        if servers is None:
            raise UsageError(f"{path}: a mapping has {', '.join(map(str, block)) or 'no keys'}; expected 'mcpServers'")
        if not isinstance(servers, Mapping):
            raise UsageError(f"{path}: 'mcpServers' is a {type(servers).__name__}; expected a mapping by name")
        yield from ((str(name), server) for name, server in servers.items())


def _tool_entry(server: Any, where: str) -> dict[str, Any]:
    if not isinstance(server, Mapping):
        raise UsageError(f"{where}: found a {type(server).__name__}; expected a mapping with 'command' or 'url'")
    entry: dict[str, Any] = {"kind": "mcp"}
    if "url" in server or "serverUrl" in server:
        entry["url"] = _text(server.get("url", server.get("serverUrl")), where)
        kind = str(server.get("type", server.get("transport", ""))).lower()
        if kind == "sse" or (kind not in _HTTP and entry["url"].rstrip("/").endswith("/sse")):
            entry["transport"] = "sse"
        extra = "headers"
    elif "command" in server:
        command = server["command"]
        words = list(command) if isinstance(command, (list, tuple)) else [command]
        more = server.get("args") or ()
        if not isinstance(more, (list, tuple)):
            raise UsageError(f"{where}: 'args' is a {type(more).__name__}; expected a list")
        entry["command"] = [_text(word, where) for word in (*words, *more)]
        if isinstance(server.get("cwd"), str):
            entry["cwd"] = _REFERENCE.sub(r"${env:\1}", server["cwd"])
        extra = "env"
    else:
        raise UsageError(f"{where}: found {', '.join(map(str, server)) or 'no keys'}; expected 'command' or 'url'")
    given = server.get(extra)
    if given and not isinstance(given, Mapping):
        raise UsageError(f"{where}: '{extra}' is a {type(given).__name__}; expected a mapping by name")
    if given:
        entry[extra] = {str(key): _hide_secret(str(key), _text(value, where)) for key, value in given.items()}
    seconds = server.get("sse_read_timeout") if "url" in entry else server.get("timeout")
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds <= 3600:
        entry["timeout_s"] = float(seconds)
    return entry


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UsageError(f"{where}: found a {type(value).__name__} where a text is expected")
    # What other clients fill from their environment, or ask for.
    text = _INPUT.sub(lambda one: "${env:%s}" % _variable(one[1]), str(value))  # noqa: UP031  (braces on both sides)
    return _REFERENCE.sub(r"${env:\1}", _DEFAULTED.sub(r"\2", text))


def _hide_secret(key: str, value: str) -> str:
    """A value that looks like a secret does not belong into a spec: it is read from the environment."""
    if _SECRET.search(key) and value and "${env:" not in value:
        return "${env:%s}" % _variable(key)  # noqa: UP031  (braces on both sides)
    return value


def _variable(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).upper().strip("_") or "INPUT"


def _move_files(entry: dict[str, Any], file: Path, folder: Path, cwd: str) -> None:
    """Names files of an entry from the spec's folder, where its server will be started."""
    # Editors keep the file in a folder of their own (.vscode, .cursor), and start servers in the one above.
    root = file.parent.absolute()
    root = root.parent if root.name.startswith(".") else root
    bases = [root / _WORKSPACE.sub(lambda _: str(root), cwd), file.parent.absolute(), root]

    def move_word(word: str) -> str:
        word = _WORKSPACE.sub(lambda _: str(root), word)
        option, equals, name = word.partition("=") if word.startswith("-") else ("", "", word)
        if name.startswith("~/"):
            return f"{option}{equals}{Path(name).expanduser()}"
        # A bare word may be a command's own, such as `run`.
        is_named = name and not Path(name).is_absolute() and ("/" in name or "." in name) and "://" not in name
        places = [base / name for base in bases] if is_named else []
        found = next((place for place in places if is_file(place) or is_folder(place)), None)
        return word if found is None else f"{option}{equals}{os.path.relpath(found, folder.absolute())}"

    if "command" in entry:
        program, *words = entry["command"]
        named = move_word(program)
        # One without a slash is looked for on the path.
        named = f"./{named}" if named != program and "/" not in named else named
        entry["command"] = [named, *map(move_word, words)]
    if "env" in entry:
        entry["env"] = {key: move_word(value) for key, value in entry["env"].items()}


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 2, name
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free
