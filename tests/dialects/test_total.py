"""Reading never raises, whatever the text and whatever is given as the tools."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.dialects.built_in import row_of
from rlenv.testing.dialects import check_reading, pieces
from tests.dialects.written import NAMES, TOOLS, dialect, written


class Odd:
    """A tool with a schema that is none."""

    parameters: Any = 7


FUNCTION = TOOLS["search"]
ODD_TOOLS: list[Any] = [
    None,
    {},
    {"search": None},
    {"search": 7},
    {"search": []},
    {"search": Odd()},
    {"search": {"parameters": None}},
    {"search": {"parameters": [1]}},
    {"search": {"parameters": {"properties": None}}},
    {"search": {"parameters": {"properties": [1, 2], "required": 3}}},
    {"search": {"parameters": {"properties": {"query": None, "n": 7, "o": [], "l": {"type": 3}}}}},
    {"search": {"parameters": {"properties": {"query": {"type": [None, {}]}, "n": {"anyOf": 3, "enum": 5}}}}},
    {"search": {"parameters": {"properties": {"query": {"anyOf": [None, 1, {"type": "number"}]}}, "required": [3]}}},
    {"search": {"function": {"parameters": {"function": {"parameters": 1}}}}},
    {3: FUNCTION, "search": {"parameters": {"required": [[]]}}},
    [],
    [{"type": "function", "function": FUNCTION}],
    [FUNCTION],
    [None, 7, "search", {"function": None}, {"function": {"name": 3}}, {"name": ["search"]}],
    (FUNCTION,),
    "search",
    7,
    Odd(),
]


@pytest.mark.slow(but=12)
@pytest.mark.parametrize("name", NAMES)
def test_odd_tools_are_no_reason_to_raise(name: str) -> None:
    for lenient in {(), row_of(name).offers}:
        reader = dialect(name, lenient=lenient)
        texts = [one.text for one in written(name)][:4]
        texts += [text[:-9] for text in texts]
        for tools in ODD_TOOLS:
            for text in texts:
                check_reading(reader, text, tools)


@pytest.mark.slow(but=30)
@pytest.mark.parametrize("tools", [[{"type": "function", "function": FUNCTION}], [FUNCTION], (FUNCTION,)])
@pytest.mark.parametrize("name", NAMES)
def test_tools_may_be_a_list_as_chat_templates_take_it(name: str, tools: Any) -> None:
    for one in written(name):
        assert dialect(name).parse(one.text, tools) == dialect(name).parse(one.text, TOOLS)


MARKS = sorted({part for name in NAMES for part in dialect(name).marks})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(MARKS) | st.text(max_size=6) | st.sampled_from('{}[]"\\,:\n('), max_size=20), st.data())
def test_any_text_is_read(parts: list[str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    for options in ({}, {"lenient": row_of(name).offers}, {"thinking_open": True}):
        check_reading(dialect(name, **options), "".join(parts), TOOLS)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_quick_path_reads_a_message_as_the_general_one_does(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    # One mark more, which stands in no text, and the quick path is not taken.
    quick, general = dialect(name), dialect(name, drop=(*row_of(name).drop, "⟦never⟧"))
    calls = [one.text for one in written(name)]
    parts = st.sampled_from([*calls, *pieces(quick), "text ", " ", "\n"])
    text = "".join(data.draw(st.lists(parts, max_size=6)))
    assert quick.parse(text, TOOLS) == general.parse(text, TOOLS)


@pytest.mark.slow(but=12)
@pytest.mark.parametrize("name", NAMES)
def test_texts_of_a_dialects_own_pieces_keep_the_laws(name: str) -> None:
    rng = random.Random(name)
    readers = [dialect(name), dialect(name, lenient=row_of(name).offers), dialect(name, thinking_open=True)]
    parts = [*pieces(readers[0]), *readers[0].marks, "<think>", "\ud800", "NaN", "1e400", "9" * 400]
    for _ in range(60):
        text = "".join(rng.choices(parts, k=rng.randint(1, 25)))
        for reader in readers:
            check_reading(reader, text, TOOLS)
