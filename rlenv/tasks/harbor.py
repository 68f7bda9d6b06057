"""Tasks in the Harbor format (schema 1.4): a folder for each, with task.toml, instructions, an environment and tests.

Every key of a task.toml is honoured, refused at its place, or told by `oddities`. `harbor.yaml` has the schema.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any, Final

import jsonschema_rs

from rlenv._base.paths import is_file, is_folder, leads_out, names_in, read_file
from rlenv._base.text import KeyPath
from rlenv.errors import Finding, ResourceError, SpecError, UsageError
from rlenv.language.templates import compile_value
from rlenv.language.yamltree import parse_text
from rlenv.secrets import resolve
from rlenv.tools.workspace.images import ENGINE, MachineImage, pack, prepare_image, user_in

_MOST_PACKED: Final = 4_000_000
"""Bytes of a packed folder that is sent through a shell."""
_AGENT_S: Final = 3_600.0
_MEMORY_MB: Final = 4_096
_DISK_MB: Final = 10_240
_PUBLIC: Final = "a machine has no network, and network_mode is public here, as where it is not written"
_UNKNOWN: Final = "unknown key"
_LIVE: Final = "the tests name their own machine's address, and only bubblewrap lets a server of the episode's live on"
_ASK: Final = (
    "take bubblewrap, start it in the tests, or let a [[verifier.collect]] hook ask it and keep the answer in a file"
)
_UNSET: Final = "the environment variable {} is not set, or empty; set it, or write ${{NAME:-default}}"
_OWN_ADDRESS: Final = re.compile(rb"localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\]")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_]\w*)(?::-(.*))?\}", re.DOTALL)
_CANARY: Final = re.compile(r"\A(?:[ \t]*(?:<!--.*canary.*-->|#.*canary.*)[ \t]*(?:\r?\n|\Z))+\s*", re.IGNORECASE)
_HEALTH: Final = {"interval_sec": 5, "timeout_sec": 30, "start_period_sec": 0, "start_interval_sec": 5, "retries": 3}


class HarborTasks(Sequence[Mapping[str, Any]]):
    """The rows of task folders, each read when it is asked for.

    Args:
        folder: one task, or several, with a dataset.toml or not; or a registry.json that names folders beside it.
        base: the folder from which rows name their files.

    Raises:
        SpecError: a list of tasks cannot be read, or names one that is not here.
    """

    def __init__(self, folder: Path, *, base: Path) -> None:
        self._base = base
        self._folders = _folders(folder)

    def __len__(self) -> int:
        return len(self._folders)

    def __getitem__(self, index: Any) -> Any:
        """A row. Raises SpecError with each of its faults; they name FILE:LINE:COLUMN."""
        return _Task(self._folders[index], self._base).row()

    def oddities(self, *, is_live: bool = True) -> Iterator[Finding]:
        """Warnings of what is read and has no effect, each once, at the first task that has it.

        Args:
            is_live: the spec's machines can live on while their tests run.
        """
        found: dict[tuple[Any, str], list[Callable[[], Finding]]] = {}
        for folder in self._folders:
            with contextlib.suppress(SpecError):  # told by its row
                task = _Task(folder, self._base)
                for path, message in task.odd:
                    found.setdefault((path[-1], message), []).append(partial(task.finding, path, message, "warning"))
                task.row()
                for one in () if is_live else task.asking:
                    found.setdefault(("", _LIVE), []).append(partial(replace, one))
        for places in found.values():
            one, more = places[0](), f" ({len(places)} tasks)" if len(places) > 1 else ""
            yield replace(one, message=one.message + more)


class _Task:
    """One folder; `faults` are those found so far. Raises SpecError where its task.toml cannot be read."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.folder, self._base, self._file = folder, base, folder / "task.toml"
        self._text = _read_text(self._file, folder)
        try:
            # Dates are texts from here on, as in the rows that are kept.
            self.data = json.loads(json.dumps(tomllib.loads(self._text), default=str))
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"line (\d+), column (\d+)", str(error))
            line, column = (int(at[1]), int(at[2])) if at else (self._text.count("\n") + 1, 1)
            raise _refused(self._file, f"not TOML: {str(error).partition(' (at')[0]}", line, column) from error
        schema, _, known = _read_rules()
        self.odd: list[tuple[KeyPath, str]] = []
        self.faults: list[Finding] = []
        self.asking: list[Finding] = []
        for wrong in known.iter_errors(self.data):
            path, of = tuple(wrong.instance_path), dict[Any, Any](schema)
            for part in wrong.schema_path[:-1]:
                of = of[part]
            names = getattr(wrong.kind, "unexpected", ())
            self.odd += [((*path, name), _UNKNOWN) for name in names]
            if not names:
                self.faults.append(self.finding(path, of.get("why") or wrong.message))
        if self.faults:
            return
        self._note_idle_keys(self.data, ())
        if not {"network_mode", "allow_internet"} & self.at("environment", {}).keys():
            self.odd.append((("environment",), _PUBLIC))

    def _note_idle_keys(self, value: Any, path: KeyPath) -> None:
        """Notes the keys without effect; what stands under `env` and `metadata` is the task's own."""
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            at, why = (*path, key), _read_rules()[1]["no_effect"].get(key)
            if why or (key == "network_mode" and item == "public") or (key == "allow_internet" and item):
                self.odd.append((at, why or _PUBLIC))
            if key == "schema_version" and not re.fullmatch(r"1\.[0-4]", item):
                self.odd.append((at, "it is read as schema 1.4"))
            if isinstance(item, (dict, list)) and key not in ("env", "metadata"):
                self._note_idle_keys(item, at)

    def finding(self, path: KeyPath, message: str, level: Any = "fault") -> Finding:
        """A finding at a key, or at the nearest above it that is there."""
        code = "" if level == "fault" else "unknown-key" if message == _UNKNOWN else "no-effect"
        (line, column), where, file = _place(self._text, path), ".".join(map(str, path)), str(self._file)
        quote = self._text.split("\n")[line - 1].rstrip()
        return Finding(level, message, code=code, where=where, file=file, line=line, column=column, quote=quote)

    def at(self, path: str, default: Any = None) -> Any:
        """The value of a dotted key."""
        return _value_at(self.data, path.split("."), default)

    def _read(self, read: Callable[[], Any], default: Any) -> Any:
        """What is read; where that cannot be, `default`, and its faults are kept, so that all are told at once."""
        try:
            return read()
        except SpecError as error:
            self.faults += error.faults
        except (TypeError, ValueError, LookupError, AttributeError):
            if not self.faults:  # otherwise it rests on what is a fault already
                raise
        return default

    def _asks_network(self, folders: Sequence[Path]) -> bool:
        """True where tests name their machine's own address: they may ask what the episode left running."""
        for path in sorted(path for folder in folders for path in folder.rglob("*")):
            with contextlib.suppress(OSError, ValueError):
                if found := _OWN_ADDRESS.search(text := read_file(path)):
                    line = text[: found.start()].count(b"\n") + 1
                    self.asking = [Finding("warning", _LIVE, _ASK, code="no-effect", file=str(path), line=line)]
                    return True
        return False

    def row(self) -> dict[str, Any]:
        """The columns. Raises SpecError with all faults of the task, one at each place."""
        columns: dict[str, Any] = self._read(self._columns, {})
        if self.faults:
            raise SpecError(list({(one.file, one.line, one.column): one for one in self.faults[::-1]}.values())[::-1])
        return columns

    def _columns(self) -> dict[str, Any]:
        """Those of a step stand under `steps` too, and are the first step's at first."""
        if (earlier := self.folder / "trajectory.json").exists():
            self.faults += _refused(earlier, "an earlier context of the agent is not read; take it out").faults
        held, steps = self.at("environment", {}), [f"steps.{index}." for index in range(len(self.at("steps", ())))]
        image, env = self._image(self.folder / "environment", held), self._env_values("environment.env")
        parts = [self._read(partial(self._part_columns, step), {}) for step in steps or [""]]
        seconds = sum(one["agent_s"] + one["time_s"] * bool(steps) for one in parts)
        return {
            "id": self.folder.name, **parts[0], "steps": parts if steps else [],
            "strategy": self.at("multi_step_reward_strategy", "mean"), "solution": [one["solution"] for one in parts],
            "image": image, "workdir": held.get("workdir", ""), "env": env,
            "limits": {"episode_s": seconds, "memory_mb": max(_megabytes(held, "memory", 0), _MEMORY_MB),
                       "disk_mb": _megabytes(held, "storage", _DISK_MB)},
            "metadata": {**self.at("task", {}), **self.at("metadata", {})}, "source": self.at("source", ""),
        }  # fmt: skip

    def _part_columns(self, step: str) -> dict[str, Any]:
        """The columns of the task, or of one step: `steps.0.` is the first."""
        folder = self.folder / "steps" / self.at(f"{step}name") if step else self.folder
        if not is_folder(folder):
            self._keep_fault(f"{step}name", f"there is no folder 'steps/{folder.name}'")
            return {}
        user, files, least = self._value(step, "agent.user", ""), folder / "workdir", self.at(f"{step}min_reward", {})
        setup = [_health(self.at("environment.healthcheck"))] if step in ("", "steps.0.") else []
        setup.append("bash ./setup.sh" if step and is_file(files / "setup.sh") else "")
        setup.append(_health(self.at(f"{step}healthcheck")) if step else "")
        own, env = folder / "solution", _env_text(self._env_values("solution.env"))
        own = own if is_folder(own) else self.folder / "solution"
        said = self._read(lambda: _read_text(folder / "instruction.md", self.folder), "")
        solve = self._read(lambda: _shell("solve", data=_pack(own), env=env), "") if is_file(own / "solve.sh") else ""
        return {
            "instruction": _CANARY.sub("", said).strip("\n"),
            "user": "" if user in (0, "root") else str(user),
            "files": self._named(files) if step and is_folder(files) else "",
            "setup": " && ".join(filter(None, setup)), "collect": self._collect(step, user),
            "min_reward": least if isinstance(least, dict) else {"reward": least},
            "solution": solve, "agent_s": self._value(step, "agent.timeout_sec", _AGENT_S),
            **self._read(lambda: self._tests_columns(step, folder), {}),
        }  # fmt: skip

    def _tests_columns(self, step: str, folder: Path) -> dict[str, Any]:
        """The columns of the tests of the task, or of one step: a step's own settings come before the task's."""
        places = [(f"{one}verifier", where / "tests") for one, where in {step: folder, "": self.folder}.items()]
        is_own = False
        for at, _ in reversed(places):
            mode, has_own = self.at(f"{at}.environment_mode"), self.at(f"{at}.environment") is not None
            if mode == "shared" and has_own:
                self._keep_fault(f"{at}.environment_mode", "shared tests have no environment of their own")
            is_own = mode == "separate" or (mode is None and (has_own or is_own))
        images = [self._image(tests, self.at(f"{at}.environment", {})) for at, tests in places if is_own]
        image = next(filter(None, images), "")
        tests = [one for _, one in reversed(places) if is_folder(one) and not image]
        if not image and not any(is_file(one / "test.sh") for one in tests):
            self.faults += _refused(places[0][1] / "test.sh", "there is no such file").faults
        kept = [*self.at("artifacts", ()), *(self.at(f"{step}artifacts", ()) if step else ())]
        own = self._value(step, "verifier.environment", {}) if is_own else {}
        env = dict(own and self._env_values("verifier.environment.env"))
        for at, _ in reversed(places):
            env |= self._env_values(f"{at}.env")
        user = self._value(step, "verifier.user", "")
        with_out = [one for one in kept if isinstance(one, dict) and is_own]
        out = [at for one in with_out for name in one.get("exclude", ()) for at in _left_out(one["source"], name)]
        words = {"env": _env_text(env)}
        words["workdir"] = shlex.quote(own["workdir"]) if "workdir" in own else ""
        words["user"] = "" if user in (0, "root", "") else shlex.quote(str(user))
        words["also"] = _pack(tests[0]) if len(tests) > 1 else ""  # the task's, under those of the step
        return {
            "tests": self._named(tests[-1]) if tests else "", "tests_image": image, "run": _shell("run", **words),
            "keep": [*(one if isinstance(one, str) else one["source"] for one in kept), "/logs/artifacts"] if is_own
            else ["/"],
            "exclude": out, "live": not is_own and self._asks_network([one for _, one in places]),
            "time_s": self._value(step, "verifier.timeout_sec", 600.0),
        }  # fmt: skip

    def _value(self, step: str, key: str, default: Any) -> Any:
        """The value of a step's key, else of the task's."""
        return self.at(f"{step}{key}", self.at(key, default))

    def _keep_fault(self, path: str, message: str) -> None:
        """Keeps a fault at a dotted key."""
        place = tuple(int(one) if one.isdigit() else one for one in path.split("."))
        self.faults.append(self.finding(place, message))

    def _named(self, path: Path) -> str:
        if leads_out(path, [self.folder]):
            self.faults += _refused(path, "it leads out of the task's folder").faults
        return os.path.relpath(path, self._base)

    def _image(self, folder: Path, held: Mapping[str, Any]) -> str:
        """The image's name, its folder to build, or "" for this machine's own programs."""
        if (file := folder / "docker-compose.yaml").exists():
            self.faults += _refused(file, "a task has one machine; services beside it are not started").faults
        if held.get("docker_image"):
            return f"podman:{held['docker_image']}"
        return self._named(folder) if is_file(folder / "Dockerfile") else ""

    def _env_values(self, path: str) -> dict[str, str]:
        """Variables, those of this machine filled in."""
        filled: dict[str, str] = {}
        for name, text in self.at(path, {}).items():
            found = _VARIABLE.fullmatch(text)
            is_set = found is not None and os.environ.get(found[1], "").strip()
            otherwise = (found[2] or "") if found else text
            filled[name] = resolve(f"${{env:{found[1]}}}") if found and is_set else otherwise
            if found and found[2] is None and not is_set:  # also where a check leaves variables of the spec open
                self._keep_fault(f"{path}.{name}", _UNSET.format(found[1]))
        return filled

    def _own_image(self) -> MachineImage | None:
        """The image that the task names; None where it is not on this machine yet: no run begins without it."""
        image = self._image(self.folder / "environment", self.at("environment", {}))
        with contextlib.suppress(UsageError, ResourceError):
            return prepare_image(image if image.startswith(ENGINE) else self._base / image) if image else None
        return None

    def _collect(self, step: str, user: Any) -> str:
        """Commands that run in the agent's machine before anything is taken from it."""
        places, commands = [f"{at}verifier.collect" for at in dict.fromkeys(("", step))], []
        for place, index, hook in ((at, *one) for at in places for one in enumerate(self.at(at, ()))):
            image = self._own_image() if "user" in hook else None
            user = user or (image.user.partition(":")[0] if image else "")
            who = hook.get("user", user)
            try:
                if who != user and user not in ("", 0, "0", "root"):
                    raise ResourceError(f"a hook is run by the agent's user, here '{user}', unless that is root")
                if image is not None:
                    user_in(image.folder, str(who or 0))
            except ResourceError as error:
                self._keep_fault(f"{place}.{index}.user", str(error))
            held = {**hook, "user": "" if who == user else str(who)}
            words = {key: shlex.quote(held[key]) if held[key] else "" for key in ("command", "user")}
            commands.append(_shell("hook", timeout_sec=hook.get("timeout_sec", 60), **words))
        return "; ".join(commands)


def _value_at(value: Any, path: Sequence[Any], default: Any = None) -> Any:
    for key in path:
        listed = enumerate(value) if isinstance(value, list) else ()
        value = (value if isinstance(value, dict) else {str(at): one for at, one in listed}).get(str(key))
    return default if value is None else value


def _place(text: str, path: KeyPath) -> tuple[int, int]:
    """The line and column of a key, or of the nearest above it. It stands in the first lines with which the text can be
    read and has it; so TOML's own reader finds it."""
    lines, begun = text.split("\n"), 0
    for end in range(1, len(lines) + 1):
        with contextlib.suppress(tomllib.TOMLDecodeError):  # within a value of several lines
            if _value_at(tomllib.loads("\n".join(lines[:end])), path) is not None and path:
                name = next((one for one in reversed(path) if isinstance(one, str)), "")
                pattern = re.compile(rf"(?<![\w-])[\"']?{re.escape(name)}[\"']?\s*[.=\]]")
                hits = ((number, pattern.search(lines[number])) for number in range(begun, end))
                return next(((number + 1, hit.start() + 1) for number, hit in hits if hit), (begun + 1, 1))
            begun = end
    return _place(text, path[:-1]) if path else (1, 1)


@lru_cache(maxsize=1)
def _read_rules() -> tuple[Mapping[str, Any], Mapping[str, Any], jsonschema_rs.Validator]:
    file = Path(__file__).with_suffix(".yaml")
    rules = parse_text(file.read_text(encoding="utf-8"), file=file.name, base=file.parent).plain()
    return rules["schema"], rules, jsonschema_rs.validator_for(rules["schema"])


def _shell(name: str, **values: Any) -> str:
    """A command of `harbor.yaml`, filled in."""
    return str(compile_value(_read_rules()[1]["shell"][name])(**values)).strip()


def _megabytes(held: Mapping[str, Any], key: str, default: int) -> int:
    """Megabytes, also in the old form: `memory = "2G"`."""
    digits, unit = re.fullmatch(r"([\d.]*) ?([gmk]?)b?", held.get(key, "").lower()).groups()  # type: ignore[union-attr]
    old = float(digits) * {"g": 1024, "m": 1, "k": 1 / 1024}[unit] if digits else default
    return int(held.get(f"{key}_mb", old))


def _health(held: Mapping[str, Any] | None) -> str:
    return "" if held is None else _shell("health", **{**_HEALTH, **held, "command": shlex.quote(held["command"])})


def _left_out(source: str, name: str) -> Iterator[str]:
    """Patterns of what a name leaves out of an artifact: at any depth, or from the artifact's own name on, like tar."""
    tail, place = name.removeprefix(PurePosixPath(source).name), escape(source.rstrip("/"))
    yield from (f"{place}{at}" for at in (f"/{name}", f"/*/{name}", tail) if at.startswith("/"))


def _env_text(env: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())


def _pack(folder: Path) -> str:
    """A folder packed for a shell. Raises SpecError: it is too large for one."""
    if len(data := pack(folder)) > _MOST_PACKED:
        raise _refused(folder, f"it has more than {_MOST_PACKED // 1_000_000} MB, packed; put large files in the image")
    return data


def _read_text(path: Path, folder: Path) -> str:
    """A file's text. Raises SpecError: it is not there, is no text, or leads out of the task's folder."""
    try:
        if leads_out(path, [folder]):
            raise ValueError("it leads out of the task's folder")
        return read_file(path).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        raise _refused(path, "there is no such file" if missing else f"it cannot be read: {error}") from error


def _refused(path: Path, message: str, line: int = 1, column: int = 1) -> SpecError:
    return SpecError([Finding("fault", message, file=str(path), line=line, column=column)])


def _folders(path: Path) -> list[Path]:
    """The task folders that a folder or a registry.json holds or names."""
    if is_file(path / "task.toml"):
        return [path]
    found = [path / name for name in names_in(path) if {"task.toml", "instruction.md"} & {*names_in(path / name)}]
    listed = path if is_file(path) else path / "dataset.toml"
    if not is_file(listed):
        return found
    text = _read_text(listed, listed.parent)
    try:
        held = json.loads(text) if listed.suffix == ".json" else tomllib.loads(text)
        sets = held if isinstance(held, list) else held.get("datasets", [held])
        tasks = [(one.get("path") or one["name"], one.get("git_url")) for held in sets for one in held["tasks"]]
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise _refused(listed, f"it is no list of tasks: {error!r}") from error
    known = {_task_name(one): one for one in found} | {one.name: one for one in found}
    named = []
    for name, url in tasks:
        here = listed.parent / name if listed is path else known.get(name) or known.get(name.rpartition("/")[2])
        if url or here is None or not is_folder(here):
            line = text[: max(text.find(json.dumps(name)), 0)].count("\n") + 1
            raise _refused(listed, f"'{name}' is not here; download it by Harbor", line)
        named.append(here)
    return named


def _task_name(folder: Path) -> str:
    """The name that a task has in lists; its folder's where it says none."""
    with contextlib.suppress(SpecError):
        return str(_Task(folder, folder).at("task.name", folder.name))
    return folder.name
