"""Datasets in the layout of the Hugging Face hub: which of their files hold a split.

The layout is the hub's own (https://huggingface.co/docs/hub/datasets-data-files-configuration): a README.md whose
front matter lists `configs` with their `data_files`, or else files and folders that are called like their split. Files
are .parquet, .jsonl or .csv. A dataset that is a script is not run.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rlenv.errors import MissingExtra, UsageError
from rlenv.source import nearest

__all__ = ["DatasetFault", "dataset_files", "dataset_folder"]

_KINDS = (".parquet", ".jsonl", ".csv")
# The hub takes these words for each other where files are called by them.
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


class DatasetFault(UsageError):
    """A dataset that cannot be read as asked. `part` is the key that is wrong; `hint` is the nearest fix."""

    def __init__(self, part: str, message: str, hint: str) -> None:
        self.part = part
        self.hint = hint
        super().__init__(message)


def dataset_folder(name: str, *, base: Path, revision: str | None) -> Path:
    """The folder of a dataset: the one that `name` says, or the hub's, downloaded where it is not in the cache.

    Args:
        name: a folder relative to `base`, or `organisation/name`.
        base: the folder of the spec.
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
            "dataset", f"there is no folder '{name}'", "name a folder, or a dataset of the hub as organisation/name"
        )
    try:
        import httpx  # what huggingface_hub speaks with; its errors come through
        import huggingface_hub as hub
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise MissingExtra("tasks from the Hugging Face hub", extra="hub") from error

    def cached(why: str) -> Path:
        try:
            return Path(hub.snapshot_download(name, repo_type="dataset", revision=revision, local_files_only=True))
        except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError, FileNotFoundError) as error:
            what = f"'{name}'" + (f" at revision '{revision}'" if revision else "")
            hint = f"download it where there is a network: hf download {name} --repo-type dataset"
            raise DatasetFault("dataset", f"{what} is not in the hub's cache, and {why}", hint) from error

    if constants.HF_HUB_OFFLINE:
        return cached("HF_HUB_OFFLINE is set")
    try:
        files = hub.list_repo_files(name, repo_type="dataset", revision=revision)
        kept = [file for file in files if file.endswith(_KINDS) or file == "README.md"]
        return Path(hub.snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=kept))
    except errors.RevisionNotFoundError as error:
        raise DatasetFault("revision", f"'{name}' has no revision '{revision}'", "leave it out for main") from error
    except errors.RepositoryNotFoundError as error:
        hint = "check the name; a private one needs HF_TOKEN"
        raise DatasetFault("dataset", f"the hub has no dataset '{name}'", hint) from error
    except (errors.HfHubHTTPError, httpx.HTTPError, OSError) as error:
        return cached(f"the hub cannot be reached ({type(error).__name__})")


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
        raise DatasetFault("dataset", f"'{folder.name}' has {what}; expected {', '.join(_KINDS)}", hint)
    configs = _configs(folder)
    splits = _declared(configs, config, listed) if configs else _by_name(listed, config)
    if split not in splits:
        close = nearest(split, splits)
        hint = f"did you mean '{close}'?" if close else f"write 'split: {next(iter(splits), 'NAME')}'"
        raise DatasetFault("split", f"there is no split '{split}'; there are {', '.join(splits) or 'none'}", hint)
    return [folder / name for name in splits[split]]


def _configs(folder: Path) -> list[Mapping[str, Any]]:
    """The configurations that README.md lists with their files; empty where it lists none."""
    readme = folder / "README.md"
    if not readme.is_file():
        return []
    import yaml

    found = re.match(r"\ufeff?---\s*\n(.*?)\n---", readme.read_text(encoding="utf-8"), re.DOTALL)
    try:
        data = yaml.safe_load(found[1]) if found else None
    except yaml.YAMLError:
        return []
    configs = data.get("configs") if isinstance(data, dict) else None
    entries = configs if isinstance(configs, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and "data_files" in entry]


def _declared(configs: Iterable[Mapping[str, Any]], config: str | None, listed: list[str]) -> dict[str, list[str]]:
    by_name = {str(entry.get("config_name", "default")): entry for entry in configs}
    chosen = _choose(
        list(by_name), config, default=[str(e["config_name"]) for e in by_name.values() if e.get("default")]
    )
    entry = by_name[chosen]
    inside = str(entry.get("data_dir") or "")
    files = entry["data_files"]
    pairs = (
        [(str(item["split"]), item["path"]) for item in files]
        if isinstance(files, list) and all(isinstance(item, dict) for item in files)
        else [("train", files)]
    )
    splits: dict[str, list[str]] = {}
    for split, globs in pairs:
        patterns = [str(PurePosixPath(inside) / glob) for glob in ([globs] if isinstance(globs, str) else globs)]
        splits[split] = [name for name in listed if any(_matches(name, pattern) for pattern in patterns)]
    return splits


def _matches(name: str, pattern: str) -> bool:
    """As the hub's globs: `*` stays within a folder, `**` does not."""
    loose = "".join(
        {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
        for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    )
    return (
        name == pattern
        or re.fullmatch(loose, name) is not None
        or ("[" in pattern and fnmatch.fnmatchcase(name, pattern))
    )


def _by_name(listed: list[str], config: str | None) -> dict[str, list[str]]:
    """Splits by the words in the names of files and folders; a configuration is a folder at the top."""
    folders = list(dict.fromkeys(name.partition("/")[0] for name in listed if "/" in name))
    subsets = [name for name in folders if name != "data" and not _split_of(name)]
    if config is not None or len(subsets) > 1:
        chosen = _choose(subsets, config, default=[])
        listed = [name for name in listed if name.startswith(f"{chosen}/")]
    splits: dict[str, list[str]] = {}
    for name in listed:
        splits.setdefault(_split_of(name) or "train", []).append(name)
    return splits


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


def _choose(names: list[str], config: str | None, *, default: list[str]) -> str:
    if config is None:
        if len(names) == 1:
            return names[0]
        named = [*default, *(name for name in names if name == "default")]
        if named:
            return named[0]
        hint = f"write 'config: {names[0]}'" if names else "leave it out"
        raise DatasetFault("dataset", f"the dataset has several configurations: {', '.join(names)}", hint)
    if config in names:
        return config
    close = nearest(config, names)
    hint = f"did you mean '{close}'?" if close else "leave it out"
    shown = f"there are {', '.join(names)}" if names else "the dataset has none"
    raise DatasetFault("config", f"there is no configuration '{config}'; {shown}", hint)
