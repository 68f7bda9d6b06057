"""What a folder of rows was made of: enough to refuse it where its tokens mean something else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlenv.errors import UsageError

__all__ = ["MANIFEST", "ROWS", "TRAJECTORIES", "Identity", "Manifest", "identity_of"]

MANIFEST: Final = "manifest.json"
ROWS: Final = "rows.jsonl"
TRAJECTORIES: Final = "trajectories.jsonl"
_FORMAT: Final = 1

_PROBE: Final = (
    'Hello, wörld!  12,345 + 67 = 12412\n\n\t{"name": "search", "arguments": {"q": ["a\\"b"]}}',
    "<think>\n</think>\n<tool_call>\n</tool_call><answer> 42 </answer>\u2028 \u00e9e\u0301 \u4f60\u597d \U0001f642",
    "    def f(x):\n        return x ** 2  # don't I'll WE'RE  \r\n",
)


@dataclass(frozen=True, slots=True)
class Identity:
    """A tokenizer and a chat template by what they do: SHA-256, hexadecimal.

    `tokenizer` is over its tokens with their ids and over the ids of a probe, so that the same one saved anew by
    another library is the same. `template` is over the template's text and the names that it is given.
    """

    tokenizer: str
    template: str


def identity_of(tokenizer: Any, *, template_kwargs: Mapping[str, Any]) -> Identity:
    """The identity of a tokenizer and its chat template, and of the names that the template is given.

    Args:
        tokenizer: of `rlenv.tokens.load`, or a fast one of transformers.
    """
    backend = tokenizer.backend_tokenizer
    tokens = sorted(backend.get_vocab(with_added_tokens=True).items())
    probed = [backend.encode(text, add_special_tokens=False).ids for text in _PROBE]
    named = sorted(template_kwargs.items())
    return Identity(_digest([tokens, probed]), _digest([tokenizer.chat_template, named]))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one folder. `kept` and `rejected` count episodes, the latter by reason.

    `turns_recorded` and `turns_anew` count the turns of all rows whose ids were the record's, and those encoded from
    text. `rows_sha256` is that of `rows.jsonl`. `versions` are those of what made it.
    """

    environment: str
    spec: str
    digest: str
    set: Mapping[str, Any]
    source: str
    splits: tuple[str, ...]
    keep: str
    per_task: int | None
    balance: str | None
    seed: int
    model: str
    identity: Identity
    history: str
    template_kwargs: Mapping[str, Any]
    episodes: int
    kept: int
    rejected: Mapping[str, int]
    kinds: Mapping[str, int]
    tasks: int
    rows: int
    tokens: int
    tokens_trained: int
    longest: int
    turns_recorded: int
    turns_anew: int
    differences: int
    rows_sha256: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes manifest.json, whole or not at all."""
        fields = {"format": _FORMAT, **dataclasses.asdict(self)}
        draft = folder / f"{MANIFEST}.part"
        draft.write_text(json.dumps(fields, indent=2) + "\n", encoding="ascii")
        os.replace(draft, folder / MANIFEST)

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """The manifest in a folder.

        Raises:
            UsageError: there is none, or one that another version wrote.
        """
        path = folder / MANIFEST
        if not path.is_file():
            if (folder / TRAJECTORIES).is_file():
                raise UsageError(
                    f"{folder} is not whole: its `rlenv collect` was ended before it wrote {MANIFEST}. What it played "
                    "is kept",
                    hint=f"go on with: rlenv collect SPEC --from {folder / TRAJECTORIES} -o ANOTHER",
                )
            raise UsageError(
                f"{folder} holds no supervised data (there is no {MANIFEST})", hint="`rlenv collect -o` makes it"
            )
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields.pop("format", None) != _FORMAT:
                raise UsageError(f"{path} was written by another version of rlenv", hint="collect the data anew")
            fields["identity"] = Identity(**fields["identity"])
            fields["splits"] = tuple(fields["splits"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{path} is no manifest of `rlenv collect`: {error}") from error
