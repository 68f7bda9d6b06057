"""The citing tool of the research agent."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from rlenv.errors import ToolFailed


@cache
def _papers() -> dict[str, str]:
    lines = (Path(__file__).parent / "data" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    return {paper["title"]: paper["id"] for paper in map(json.loads, lines)}


def cite(title: str) -> str:
    """Gives the reference of a paper.

    Args:
        title: the paper's title, as the search shows it.
    """
    found = _papers().get(title.strip())
    if found is None:
        raise ToolFailed(f"no paper is called '{title}'; give the title as the search shows it")
    return f"[{found}]"
