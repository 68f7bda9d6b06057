"""The files of a model's folder: configuration, known or not to transformers, weights; and folders that are made."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlenv._base.paths import draft_of, user_cache
from rlenv.errors import UsageError


@dataclass(frozen=True, slots=True)
class Looked:
    """One thing that was looked at. `lacks` says what is wrong, "" where all is well; `way_out` what to do.

    `stops`: a run cannot start without it, or would learn nothing; else something works around it.
    """

    what: str
    lacks: str = ""
    way_out: str = ""
    stops: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.said}"

    @property
    def said(self) -> str:
        """The thing that is lacking, with the way out, "" where nothing is."""
        return f"{self.lacks}; {self.way_out}" if self.way_out else self.lacks


_HEADER_MOST: Final = 100_000_000  # safetensors refuses a longer header
_TABLES: Final = tuple(
    f"{name}.weight" for name in ("embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings")
)
_POINTER: Final = b"version https://git-lfs"
_INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE: Final = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The weights in a folder. `fault` says what is wrong with the files, "" where nothing is.

    `rows` is how many ids the embeddings have, None where the headers do not tell. `dtypes` are those of the tensors
    as safetensors names them.
    """

    fault: str = ""
    rows: int | None = None
    dtypes: frozenset[str] = field(default_factory=frozenset)


def weights_in(folder: Path) -> ModelWeights:
    """The weights in a folder of transformers; no tensor is read."""
    names, fault = _weight_files(folder)
    if fault:
        return ModelWeights(fault)
    rows: int | None = None
    dtypes: set[str] = set()
    for name in names:
        header, fault = _safetensors_header(folder / name)
        if fault:
            return ModelWeights(fault)
        for tensor, entry in header.items():
            shape = entry.get("shape")
            if tensor.endswith(_TABLES) and isinstance(shape, list) and len(shape) == 2:
                rows = int(shape[0])
            dtypes.add(str(entry.get("dtype")))
    return ModelWeights("", rows, frozenset(dtypes))


def _weight_files(folder: Path) -> tuple[list[str], str]:
    """The files that hold weights, as transformers chooses them, and what is wrong."""
    for single, index in zip(_SINGLE, _INDEXES, strict=True):
        if (folder / single).is_file():
            return [single], ""
        if (folder / index).is_file():
            try:
                shards = sorted(set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()))
            except (ValueError, LookupError, AttributeError, TypeError) as error:
                return [], f"{index} cannot be read: {error}"
            missing = [shard for shard in shards if not (folder / shard).is_file()]
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                return [], f"{missing[0]}{more} of the {len(shards)} files in {index} are not there"
            return shards, ""
        if (folder / single).is_symlink():
            return [], f"{single} is a link to {(folder / single).readlink()}, which is not there"
    other = sorted(path.name for path in folder.glob("*.safetensors"))
    hint = f" (there is {other[0]}, which no index names)" if other else ""
    return [], f"there is neither {_SINGLE[0]} nor {_INDEXES[0]}{hint}"


def _safetensors_header(path: Path) -> tuple[Mapping[str, Any], str]:
    """The header of a file of safetensors, {} of another kind, and what is wrong with the file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
            if start.startswith(_POINTER):
                return {}, f"{path.name} is a pointer of Git LFS and holds no weights; git lfs pull fetches them"
            if path.suffix != ".safetensors":
                return {}, "" if size else f"{path.name} is empty"
            length = int.from_bytes(start[:8], "little")
            if len(start) < 8 or not 0 < length <= min(_HEADER_MOST, size - 8):
                return {}, f"{path.name} is cut or no file of safetensors"
            file.seek(8)
            header = json.loads(file.read(length))
    except (OSError, ValueError) as error:
        return {}, f"{path.name} cannot be read: {str(error)[:100]}"
    if not isinstance(header, dict):
        return {}, f"{path.name} is no file of safetensors"
    header.pop("__metadata__", None)
    ends = [one["data_offsets"][1] for one in header.values() if isinstance(one, dict) and "data_offsets" in one]
    whole = 8 + length + max(ends, default=0)
    if whole > size:
        return {}, f"{path.name} is cut: it has {size:,} of {whole:,} bytes"
    return {name: entry for name, entry in header.items() if isinstance(entry, dict)}, ""


_DTYPES: Final = ("float32", "float16", "bfloat16", "float64", "auto")


def config_in(folder: Path) -> tuple[Mapping[str, Any], list[Looked]]:
    """The `config.json` of a folder, and what is wrong with it."""
    path = folder / "config.json"
    if not path.is_file():
        inside = sorted(str(item.parent) for item in folder.glob("*/config.json"))
        way = f"did you mean {inside[0]}?" if inside else "give a folder that from_pretrained loads"
        return {}, [Looked("configuration", f"{folder} holds no policy (there is no config.json in it)", way)]
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        return {}, [Looked("configuration", f"{path} cannot be read: {str(error)[:200]}", "take the model's own file")]
    if not isinstance(config, Mapping):
        return {}, [Looked("configuration", f"{path} holds no JSON object", "take the model's own file")]
    return config, []


def number_in(config: Mapping[str, Any], *names: str) -> int | None:
    """A positive whole number of a configuration, or of its text model's; None where neither says."""
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        for name in names:
            value = part.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def judge_architecture(config: Mapping[str, Any]) -> list[Looked]:
    """Judgements: does the installed transformers have the architecture and the dtype, and can the weights be trained?

    Without transformers the architecture is not judged.
    """
    found = [_judge_dtype(config), _judge_quantisation(config)]
    if importlib.util.find_spec("transformers") is not None:
        found.insert(0, _judge_class(config))
    return [one for one in found if one is not None]


def _judge_class(config: Mapping[str, Any]) -> Looked:
    kind = config.get("model_type")
    classes = config.get("architectures")
    name = str(classes[0]) if isinstance(classes, list) and classes else ""
    if not isinstance(kind, str) or not kind:
        way = f"take the config.json that belongs to the model{f' ({name})' if name else ''}"
        return Looked("architecture", "config.json names no model_type, by which transformers finds the model", way)
    what = f"architecture {name or kind}"
    if _stands_in_files(kind, name):
        return Looked(what)
    import transformers
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    if kind not in CONFIG_MAPPING:
        why = f"transformers {transformers.__version__} does not know the model_type '{kind}'"
        if config.get("auto_map"):
            why += ", and code that a model brings along (auto_map) is not run"
        way = "take a model that transformers knows, or install a transformers that knows it (veRL 0.9 wants 5.x)"
        return Looked(what, why, way)
    known: set[str] = set()
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        own = mapping.get(kind)
        known |= {own} if isinstance(own, str) else set(own or ())
    if not known:
        return Looked(what, f"models of the type '{kind}' write no text", "take a causal language model")
    if name and name not in known:
        likely = sorted(known)[0]
        return Looked(what, f"{name} is not the language model of '{kind}'", f"take a model whose class is {likely}")
    return Looked(what)


def _stands_in_files(kind: str, name: str) -> bool:
    """True where a language model of this name lies where transformers mostly has one: importing it takes seconds."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations or not name.endswith(("CausalLM", "ConditionalGeneration")):
        return False
    path = Path(spec.submodule_search_locations[0]) / "models" / kind / f"modeling_{kind}.py"
    try:
        return f"class {name}(" in path.read_text(encoding="utf-8")
    except OSError:
        return False


def _judge_dtype(config: Mapping[str, Any]) -> Looked | None:
    given = config.get("dtype", config.get("torch_dtype"))
    name = str(given).removeprefix("torch.")
    if given is None or name in _DTYPES:
        return None
    way = 'write "dtype": "bfloat16" (or what the weights are stored as) into config.json'
    return Looked("dtype", f"config.json says {name}, which cannot be trained in", way)


def _judge_quantisation(config: Mapping[str, Any]) -> Looked | None:
    given = config.get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    kind = given.get("quant_method", "of an unknown kind")
    way = "take the model that it was made of; a .gguf file is dequantised when it is given"
    return Looked("weights", f"they are quantised ({kind}), and only floating-point weights are trained", way)


# Folders that are made here: once, and whole

MANIFEST: Final = "rlenv_model.json"
"""Written last: what the folder was made of, and the size of each file in it."""


def cache_folder() -> Path:
    """The folder of models that were made here: `rlenv/models` in the user's cache."""
    return user_cache() / "models"


def made_once(target: Path, make: Callable[[Path], dict[str, Any]]) -> Path:
    """`target`, made by `make` where it is not there or not whole any more.

    `make` writes into an empty folder beside it and says what it was made of. Of several processes one makes it, and
    the others wait; a process that is killed leaves nothing that is taken for whole, and what it left is removed by
    the next.

    Raises:
        UsageError: the folder cannot be written.
    """
    if is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _hold_target(target) as is_alone:
            if is_whole(target):  # another process made it meanwhile
                return target
            for stale in target.parent.glob(f".{_escape_glob(target.name)}.partial-*") if is_alone else ():
                shutil.rmtree(stale, ignore_errors=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
            try:
                _mark_whole(draft, make(draft))
                os.chmod(draft, 0o755)
                if target.is_symlink() or target.is_file():
                    target.unlink()
                elif target.exists():  # what lacks a file, or was made of something else
                    shutil.rmtree(target)
                draft.rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise UsageError(
            f"{error.filename or target} cannot be written ({error.strerror or error}), where the model is to be kept",
            hint="XDG_CACHE_HOME names another folder for what is kept",
        ) from error
    return target


def is_whole(folder: Path) -> bool:
    """True where a folder was made to its end, and none of its files has changed its size or gone since."""
    sizes = read_manifest(folder).get("files")
    if not isinstance(sizes, dict) or not sizes:
        return False
    try:
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def read_manifest(folder: Path) -> dict[str, Any]:
    """The sources that a folder was made of; {} where it does not say."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _mark_whole(folder: Path, made_of: dict[str, Any]) -> None:
    """Closes a folder: from here on it is whole."""
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    text = json.dumps({**made_of, "files": sizes}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def named_after(name: str) -> str:
    """The part of a kept folder's name that tells people what it is."""
    return re.sub(r"[^\w.-]+", "-", name)[:80].strip(".-") or "model"


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's content.

    Large files are read once: the digest is kept beside the models, for this path, size and times of change.
    """
    real = path.resolve()
    stat = real.stat()
    seen = [str(real), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    index = cache_folder() / "digests" / f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:24]}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads(index.read_text(encoding="utf-8"))
        if known["seen"] == seen:
            return str(known["sha256"])
    with real.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    with contextlib.suppress(OSError):  # it only saves time
        index.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(index) as draft:
            draft.write_text(json.dumps({"seen": seen, "sha256": found}) + "\n", encoding="utf-8")
    return found


def _escape_glob(name: str) -> str:
    """`name` for a glob that means it letter by letter."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


@contextlib.contextmanager
def _hold_target(target: Path) -> Iterator[bool]:
    """Holds the target for this process; False on a file system without locks, where two may make it at once."""
    descriptor = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        is_alone = False
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_alone = True
        yield is_alone
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """As transformers writes its own."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def quiet() -> Iterator[None]:
    """transformers and peft without progress bars and without warnings about their own future."""
    from transformers.utils import logging

    library: Any = logging
    bars, level = library.is_progress_bar_enabled(), library.get_verbosity()
    library.disable_progress_bar()
    library.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()
