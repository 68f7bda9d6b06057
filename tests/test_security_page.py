"""The page on security names tests that are there, and every attack test stands on it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
# Files that hold the tools of the tests, not a promise to users.
TOOLS = {"test_kit.py", "test_corpus.py"}


def test_every_test_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:tests/[\w/]+/)?(?:tests/)?test_\w+\.py)`", PAGE))
    assert len(named) > 20
    for name in named:
        path = ROOT / name if name.startswith("tests/") else ROOT / "tests" / "attack" / name
        assert path.is_file(), name


def test_every_surface_that_is_attacked_is_promised_something() -> None:
    attacked = {path.name for path in (ROOT / "tests" / "attack").glob("test_*.py")} - TOOLS
    assert attacked == {name for name in attacked if f"`{name}`" in PAGE}


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#\s]+)", PAGE)
    assert links
    for link in links:
        assert (ROOT / link).is_file(), link
