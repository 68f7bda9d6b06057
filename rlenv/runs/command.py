"""A command as it is kept and shown: without what looks like a secret, as a lock is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import yaml

from rlenv.runs.locks.files import kept

__all__ = ["kept_command", "kept_settings"]

_NOT_SHOWN = "(not shown)"


def kept_command(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line with the values of keys that hold secrets, credentials and queries of addresses, and
    what has the form of a key taken out.

    `KEY=VALUE` is read wherever it stands, also behind an option's name: `--set endpoints.w.api_key=…`,
    `--extra='metadata={"api_key": "…"}'`.
    """
    return tuple(map(_word, words))


def kept_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings of `--set` as they are kept; those whose values hold a secret are left out, as nobody could set them
    again."""
    shown = {key: _value(key, str(value)) for key, value in settings.items()}
    return {key: value for key, value in shown.items() if _NOT_SHOWN not in value}


def _word(word: str) -> str:
    option, sign, rest = word.partition("=")
    if not sign:
        return str(kept(word))
    if word.startswith("-") and "=" in rest and rest[:1].isalpha() and "://" not in rest.partition("=")[0]:
        return f"{option}={_word(rest)}"
    if "://" in option:
        return str(kept(word))
    return f"{kept(option)}={_value(option.lstrip('-+').replace('-', '_'), rest)}"


def _value(key: str, text: str) -> str:
    held: Any = text
    if text.lstrip()[:1] in ("{", "["):  # --set reads YAML, --extra JSON, which is YAML too
        try:
            held = yaml.safe_load(text)
        except yaml.YAMLError:
            held = text
    if not isinstance(held, (dict, list)):
        return str(kept({key: text}, hides=True).get(key, text))
    shown = kept({key: held}, hides=True).get(key, held)
    if shown == held:
        return text
    return shown if isinstance(shown, str) else orjson.dumps(shown, default=str).decode()
