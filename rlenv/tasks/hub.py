"""Rows that others made: datasets in the layout of the Hugging Face hub, and tasks that reasoning-gym generates.

The layout is the hub's own (https://huggingface.co/docs/hub/datasets-data-files-configuration): a README.md whose
front matter lists `configs` with their `data_files`, or else files and folders that are called like their split. Files
are .parquet, .jsonl or .csv. A dataset that is a script is not run.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, Final

from rlenv._base.bounded import encodable, grouped, plain
from rlenv._base.paths import is_file, leads_out, read_file
from rlenv._base.text import did_you_mean
from rlenv.errors import MissingExtra, SpecError, UsageError, told_as
from rlenv.language.functions import failure
from rlenv.language.loader import LoadedSpec
from rlenv.language.spec import ReasoningGymSpec
from rlenv.language.yamltree import Node, parse_text
from rlenv.tasks.files import Row

_KINDS = (".parquet", ".jsonl", ".csv")
_MAX_README = 4_000_000
_MAX_PATTERNS = 1_000
_MAX_NAME = 1_000
_KEPT: Final = 4_096
# The hub takes these words for each other where files are called by them.
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


class DatasetFault(UsageError):
    """A dataset that cannot be read as asked; `key` is the one of `hf` that is wrong."""


def dataset_folder(name: str, *, base: Path, revision: str | None) -> Path:
    """The folder of a dataset: the one that `name` says, or the hub's, downloaded where it is not in the cache.

    Args:
        name: a folder relative to `base`, or `organisation/name`.
        revision: of the hub's; None is its main branch.

    Raises:
        DatasetFault: there is none, or the hub cannot be reached and the cache does not have it.
        MissingExtra: huggingface_hub is not installed.
    """
    local = base / name
    if local.is_dir():
        return local
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise DatasetFault(
            f"there is no folder '{name}'",
            key="path",
            hint="name a folder, or a dataset of the hub as organisation/name",
        )
    with told_as(MissingExtra, "tasks from the Hugging Face hub", ImportError, extra="hub"):
        import huggingface_hub as hub
        from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        return _cached_folder(name, revision, "HF_HUB_OFFLINE is set")
    try:
        files = hub.list_repo_files(name, repo_type="dataset", revision=revision)
        kept = [file for file in files if file.endswith(_KINDS) or file == "README.md"]
        return Path(hub.snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=kept))
    except errors.RevisionNotFoundError as error:
        raise DatasetFault(
            f"'{name}' has no revision '{revision}'", key="revision", hint="leave it out for main"
        ) from error
    except errors.RepositoryNotFoundError as error:
        hint = "check the name; a private one needs HF_TOKEN"
        raise DatasetFault(f"the hub has no dataset '{name}'", key="path", hint=hint) from error
    except errors.HFValidationError as error:
        raise DatasetFault(f"'{name}' is no name of a dataset", key="path", hint="write organisation/name") from error
    except _failures() as error:
        return _cached_folder(name, revision, f"the hub cannot be reached ({failure(error)})")


def _cached_folder(name: str, revision: str | None, why: str) -> Path:
    """The dataset's folder in the cache; `why` says why it is looked for there alone."""
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        return Path(hub.snapshot_download(name, repo_type="dataset", revision=revision, local_files_only=True))
    except _failures() as error:
        what = f"'{name}'" + (f" at revision '{revision}'" if revision else "")
        found = "is not in the hub's cache"
        if not isinstance(error, errors.LocalEntryNotFoundError):
            found = f"cannot be read from the hub's cache ({failure(error)})"
        hint = f"download it where there is a network: hf download {name} --repo-type dataset"
        raise DatasetFault(f"{what} {found}, and {why}", key="path", hint=hint) from error


def _failures() -> tuple[type[Exception], ...]:
    """Exceptions of the hub's client where it has no answer: its own, its transport's and its storage's, and what is no
    JSON. Anything else is a bug."""
    import httpx  # what huggingface_hub speaks with; its errors come through
    from huggingface_hub import errors

    return (*_exceptions(errors), *_exceptions(httpx), OSError, json.JSONDecodeError, UnicodeDecodeError)


def _exceptions(module: ModuleType) -> tuple[type[Exception], ...]:
    """Those that a module of a library gives out, so that a release of it may add one."""
    found = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Exception))
    return tuple(found)


def dataset_files(folder: Path, *, config: str | None, split: str) -> list[Path]:
    """The files of one split, in the order of their names.

    Raises:
        DatasetFault: no such configuration or split; the message names those that there are.
    """
    listed = sorted(
        str(path.relative_to(folder).as_posix())
        for path in folder.rglob("*")
        if path.suffix in _KINDS
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not listed:
        scripts = [path.name for path in folder.glob("*.py")]
        hint = "the hub keeps a converted copy of many: add 'revision: refs/convert/parquet'"
        what = f"only a script ({scripts[0]}), which is not run" if scripts else "no data files"
        raise DatasetFault(f"'{folder.name}' has {what}; expected {', '.join(_KINDS)}", key="path", hint=hint)
    configs = _configs(folder)
    splits = _declared(configs, config, listed) if configs else _by_name(listed, config)
    if split not in splits:
        hint = did_you_mean(split, splits, otherwise=f"write 'split: {next(iter(splits), 'NAME')}'")
        raise DatasetFault(
            f"there is no split '{split}'; there are {', '.join(splits) or 'none'}", key="split", hint=hint
        )
    allowed = _folders(folder)
    for name in splits[split]:
        if leads_out(folder / name, allowed):
            raise DatasetFault(
                f"its file '{name}' is a link that leads out of it", key="path", hint="copy the file there"
            )
    return [folder / name for name in splits[split]]


def _folders(folder: Path) -> list[Path]:
    """Folders where a dataset's files may lie: its own, and the blobs of the hub's cache, which it links to."""
    root = folder.resolve()
    return [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]


@dataclass(frozen=True, slots=True)
class _Config:
    """One configuration: the patterns of each split's files."""

    name: str
    is_default: bool
    splits: Mapping[str, Sequence[str]]


def _configs(folder: Path) -> list[_Config]:
    """The configurations that README.md lists with their files; empty where it lists none.

    Raises DatasetFault: it lists some, and not as the hub's layout says.
    """
    text = _front_matter(folder)
    try:
        tree = parse_text(text, file="README.md", base=folder) if text.strip() else None
    except SpecError as error:
        if not re.search(r"^configs[ \t]*:", text, re.MULTILINE):
            return []  # what is broken there is none of ours
        raise _unreadable(error.faults[0].message) from error
    node = tree.value.get("configs") if tree is not None and isinstance(tree.value, dict) else None
    entries = node.value if node is not None and isinstance(node.value, list) else []
    return [_config(index, entry.value) for index, entry in enumerate(entries) if _has_files(entry.value)]


def _unreadable(why: str) -> DatasetFault:
    return DatasetFault(f"its README.md cannot be read: {why}", key="path", hint="mend the list under 'configs:' in it")


def _front_matter(folder: Path) -> str:
    readme = folder / "README.md"
    if not is_file(readme):
        return ""
    if leads_out(readme, _folders(folder)):
        raise _unreadable("it is a link that leads out of the dataset")
    try:
        lines = read_file(readme, most=_MAX_README).decode("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:  # bytes that are no UTF-8 too
        raise _unreadable(str(error)) from error
    if lines[0].rstrip() != "---":
        return ""
    end = next((index for index, line in enumerate(lines[1:], 1) if line.startswith("---")), None)
    return "\n".join(lines[1:end]) if end is not None else ""


def _has_files(value: Any) -> bool:
    return isinstance(value, dict) and "data_files" in value


def _config(index: int, value: Mapping[str, Node]) -> _Config:
    place = f"configs.{index}"
    inside = PurePosixPath(_as_text(value.get("data_dir"), f"{place}.data_dir", default=""))
    files = value["data_files"].value
    named = isinstance(files, list) and bool(files) and all(isinstance(item.value, dict) for item in files)
    splits: dict[str, Sequence[str]] = {}
    for number, item in enumerate(files if named else ()):
        at = f"{place}.data_files.{number}"
        split = _as_text(item.value.get("split"), f"{at}.split", default="train")
        splits[split] = _patterns(item.value.get("path"), inside, f"{at}.path")
    if not named:
        splits["train"] = _patterns(value["data_files"], inside, f"{place}.data_files")
    default = value.get("default")
    name = _as_text(value.get("config_name"), f"{place}.config_name", default="default")
    return _Config(name, default is not None and default.value is True, splits)


def _patterns(node: Node | None, inside: PurePosixPath, place: str) -> Sequence[str]:
    value = node.value if node is not None else None
    found = [_as_text(item, place) for item in value] if isinstance(value, list) else [_as_text(node, place)]
    if len(found) > _MAX_PATTERNS:
        raise _unreadable(f"{place} has {len(found)} patterns; expected at most {_MAX_PATTERNS}")
    return [str(inside / glob) for glob in found]


def _as_text(node: Node | None, place: str, *, default: str | None = None) -> str:
    value = node.value if node is not None else default
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)  # a configuration called 2024
    if not isinstance(value, str) or len(value) > _MAX_NAME:
        raise _unreadable(f"{place} is no short text")
    return value


def _declared(configs: Iterable[_Config], config: str | None, listed: list[str]) -> dict[str, list[str]]:
    by_name = {one.name: one for one in configs}
    chosen = _choose_split(list(by_name), config, default=[one.name for one in by_name.values() if one.is_default])
    splits: dict[str, list[str]] = {}
    for split, patterns in by_name[chosen].splits.items():
        globs = [Glob(pattern) for pattern in patterns]
        splits[split] = [name for name in listed if any(glob.matches(name) for glob in globs)]
    return splits


_GLOB: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|.", re.DOTALL)
_WILD: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class Glob:
    """A pattern as the hub's: `*` stays within a folder, `**` does not, `[ab]` is one of these characters.

    Matching takes at most the pattern's length times the name's, whatever either says.
    """

    def __init__(self, pattern: str) -> None:
        re2: Any = importlib.import_module("re2")  # few datasets have patterns
        # One character, or a set as the standard library writes it, of which RE2 has no word for the empty one.
        parts = (_WILD.get(part) or fnmatch.translate(part)[4:-3] for part in _GLOB.findall(encodable(pattern)))
        self._text = pattern
        self._regexp = re2.compile("(?s:" + "".join(parts).replace("(?!)", r"[^\x00-\x{10FFFF}]") + ")")

    def matches(self, name: str) -> bool:
        """True where the whole of `name` fits."""
        return name == self._text or self._regexp.fullmatch(encodable(name)) is not None


def _by_name(listed: list[str], config: str | None) -> dict[str, list[str]]:
    """Splits by the words in the names of files and folders; a configuration is a folder at the top."""
    folders = list(dict.fromkeys(name.partition("/")[0] for name in listed if "/" in name))
    subsets = [name for name in folders if name != "data" and not _split_of(name)]
    if config is not None or len(subsets) > 1:
        chosen = _choose_split(subsets, config, default=[])
        listed = [name for name in listed if name.startswith(f"{chosen}/")]
    return grouped((_split_of(name) or "train", name) for name in listed)


def _split_of(name: str) -> str | None:
    """The split that a path is called by: the last of its parts that is one, or the shards' own form NAME-0-of-9."""
    for part in reversed(PurePosixPath(name).parts):
        shards = re.match(r"(\w+)-\d+-of-\d+", part)
        if shards:
            return next((split for split, words in _WORDS.items() if shards[1] in words), shards[1])
        for word in re.split(r"[^A-Za-z0-9]+", part):
            for split, words in _WORDS.items():
                if word in words:
                    return split
    return None


def _choose_split(names: list[str], config: str | None, *, default: list[str]) -> str:
    if config is None:
        if len(names) == 1:
            return names[0]
        named = [*default, *(name for name in names if name == "default")]
        if named:
            return named[0]
        hint = f"write 'config: {names[0]}'" if names else "leave it out"
        raise DatasetFault(f"the dataset has several configurations: {', '.join(names)}", key="path", hint=hint)
    if config in names:
        return config
    hint = did_you_mean(config, names, otherwise="leave it out")
    shown = f"there are {', '.join(names)}" if names else "the dataset has none"
    raise DatasetFault(f"there is no configuration '{config}'; {shown}", key="name", hint=hint)


def open_generated(loaded: LoadedSpec, key: str, spec: ReasoningGymSpec) -> tuple[Callable[[int], Row], int]:
    """A reader of the rows by their numbers, and how many there are.

    A row has the generator's `question`, `answer` (None where many are right) and `metadata`, its name as `source`, and
    `reasoning_gym`: how it was made, which the rule of that name makes it again by.

    Raises:
        SpecError: there is no such generator, or it does not take its settings.
        MissingExtra: the library is not installed.
    """
    with told_as(MissingExtra, "tasks of reasoning-gym", ImportError, extra="reasoning-gym"):
        from reasoning_gym import create_dataset  # type: ignore[import-not-found, unused-ignore]
        from reasoning_gym.factory import DATASETS  # type: ignore[import-not-found, unused-ignore]
    names, made = spec.names, list[tuple[str, int, Mapping[str, Any], Any]]()
    for place, name in enumerate(names):
        at = f"{key}.name" if isinstance(spec.name, str) else f"{key}.name.{place}"
        if name not in DATASETS:
            hint = did_you_mean(name, DATASETS, otherwise="reasoning_gym.factory.DATASETS lists them")
            raise SpecError([loaded.document.fault(at, f"reasoning-gym has no generator '{name}'", hint)])
        config = spec.config if len(names) == 1 else spec.config.get(name, {})
        size = -(-(spec.limit - place) // len(names))
        try:
            made.append((name, size, plain(config), create_dataset(name, size=size, seed=spec.seed, **config)))
        except Exception as error:  # its settings are checked by assertions, among others
            told = f"the generator '{name}' does not take its settings: {failure(error)}"
            raise SpecError([loaded.document.fault(f"{key}.config" if config else at, told)]) from error
    if unknown := sorted(spec.config.keys() - set(names)) if len(names) > 1 else []:
        hint = "with several generators its keys are their names"
        raise SpecError([loaded.document.fault(f"{key}.config.{unknown[0]}", f"no generator '{unknown[0]}'", hint)])

    @lru_cache(maxsize=_KEPT)
    def read(number: int) -> Row:
        name, size, config, dataset = made[number % len(made)]
        index = number // len(made)
        try:
            entry = dataset[index]
        except Exception as error:  # a library's function may fail in any way
            told = f"the generator '{name}' failed at task {index}: {failure(error)}"
            raise SpecError([loaded.document.fault(key, told)]) from error
        how = {"name": name, "size": size, "seed": spec.seed, "config": config, "index": index}
        return {**plain(entry), "source": name, "reasoning_gym": how}

    return read, spec.limit
