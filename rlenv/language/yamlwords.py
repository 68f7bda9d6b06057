"""Words that are not the language's own: PyYAML's errors, converted here alone."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import yaml

WORDS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""What is said of faults, as data."""


def explain(error: yaml.MarkedYAMLError) -> tuple[str, str, yaml.Mark | None]:
    """The found and the expected text, the nearest fix, and the place."""
    problem = error.problem or "the text cannot be read as YAML"
    mark = error.problem_mark or error.context_mark
    for told in WORDS["problem"]:
        if match := re.search(told["pattern"], problem):
            message = told["found"]
            # A quote or bracket that is never closed is best shown where it opens.
            if "end of stream" in problem and error.context_mark is not None:
                mark = error.context_mark
            if "not closed" in message and "<stream end>" in problem and error.context_mark is not None:
                mark = error.context_mark
            return message.format(*match.groups()), told["fix"].format(), mark
    context = f" ({error.context})" if error.context else ""
    return f"this is not YAML: {problem}{context}", "check the indentation and the quotes here", mark
