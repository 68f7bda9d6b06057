"""Golds behind a value that a tool's prose says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.leaks_shown import looked
from tests.support.planted import WORDS, Row, rows_of


def stone(index: int) -> Row:
    return {"question": f"Which stone lies in tray {index}?", "answer": f"{WORDS[index % 7]} {WORDS[-1 - index % 7]}"}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("kind", "default", "prose", "value"),
    [
        ("str", "'name'", "what is wanted, or % for every field there is.", "%"),
        ("str", "'name'", "brief or exhaustive.", "exhaustive"),
        ("str", "'name'", "", "all"),
        ("int", "1", "how many levels, -1 for no limit.", -1),
    ],
)
def test_what_one_value_of_an_argument_shows_is_named_where_prose_says_the_value(
    tmp_path: Path, kind: str, default: str, prose: str, value: object
) -> None:
    args = f"\n\n    Args:\n        part: {prose}\n    " if prose else ""
    head = (
        f'def look(about: str, part: {kind} = {default}, *, task: dict) -> str:\n    """Looks up.{args}"""\n'
        f'    return f"{{about}}: " + (task["answer"] if part == {value!r} else "nothing")\n'
    )
    rows = rows_of(40, stone)
    call = "{look: {about: it}}"
    assert looked(tmp_path, "", head=head, rows=rows, call=call) == ["result"]
    # The same tool where no word of the prose does anything.
    idle = head.replace(f"part == {value!r}", "part == 7919")
    assert looked(tmp_path, "", head=idle, rows=rows, call=call) == []
