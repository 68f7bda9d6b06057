"""Whether transformers knows a model's architecture here, from its `config.json`."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rlenv.models.looked import Looked

__all__ = ["config_in", "judge_architecture", "number_in"]

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
    """Whether transformers, as it is installed here, has the architecture, the dtype, and weights that can be trained.

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
    """Whether a language model of this name lies where transformers mostly has one: importing it takes seconds."""
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
