"""Functions of a spec's author: where they are found, what they may import, and whether they can be called."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import UsageError
from rlenv.language.functions import check_positional, failure, import_function, is_outage, named_parameters


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., Path]:
    """Writes files by their name (with `__` for a folder) and gives the folder."""

    def write(**texts: str) -> Path:
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return tmp_path

    return write


def test_a_file_imports_its_neighbours_at_the_top_and_inside_of_functions(files: Callable[..., Path]) -> None:
    folder = files(
        tool="""
        import beside
        from package.inner import seven
        import package.inner as renamed

        def now():
            return beside.WORD, seven(), renamed.seven()

        def later():
            import late
            from . import beside as same
            return late.WORD, same is beside
        """,
        beside="WORD = 'here'",
        late="import beside\nWORD = beside.WORD + ' late'",
        package__in____init__="",
        package__in__inner="from . import other\ndef seven(): return other.SEVEN",
        package__in__other="SEVEN = 7",
    )
    assert import_function("tool.py:now", base=folder)() == ("here", 7, 7)
    assert import_function("tool.py:later", base=folder)() == ("here late", True)


def test_two_folders_with_equal_names_do_not_meet_and_no_plain_name_is_taken(files: Callable[..., Path]) -> None:
    folder = files(
        one__in__f="import helpers\ndef f(): return helpers.WHERE",
        one__in__helpers="WHERE = 'one'",
        two__in__f="import helpers\ndef f(): return helpers.WHERE",
        two__in__helpers="WHERE = 'two'",
    )
    path = list(sys.path)
    found = [import_function(f"{name}/f.py:f", base=folder)() for name in ("one", "two")]
    assert found == ["one", "two"]
    assert "helpers" not in sys.modules
    assert sys.path == path


def test_a_neighbour_hides_no_standard_module_and_a_file_no_library_of_its_own_name(files: Callable[..., Path]) -> None:
    folder = files(
        f="import json, pydantic_core\ndef f(): return json.loads('1'), hasattr(pydantic_core, 'core_schema')",
        json="raise AssertionError('the standard library comes first')",
        pydantic_core="import pydantic_core as real\ncore_schema = real.core_schema",
        data__in__f="import hypothesis\ndef f(): return hypothesis.__version__",
        data__in__hypothesis__in__rows="",
    )
    assert import_function("f.py:f", base=folder)() == (1, True)
    assert import_function("data/f.py:f", base=folder)()


def test_files_that_import_each_other_are_run_once(files: Callable[..., Path]) -> None:
    folder = files(
        a="import b\nRUNS = []\nRUNS.append(1)\ndef runs(): return len(RUNS), b.word()",
        b="import a\ndef word(): return a.RUNS",
    )
    assert import_function("a.py:runs", base=folder)() == (1, [1])
    assert import_function("b.py:word", base=folder)() == [1]


def test_a_file_with_dots_in_its_name_is_a_file_like_any_other(files: Callable[..., Path]) -> None:
    folder = files(**{"v1.2": "import beside\ndef f(): return beside.X", "beside": "X = 3"})
    assert import_function("v1.2.py:f", base=folder)() == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import sys; sys.exit(0)", "it ends the program while it is imported"),
        ("import argparse; p = argparse.ArgumentParser(); p.add_argument('-n', required=True); p.parse_args([])", "if"),
        ("class E(BaseException): pass\nraise E('odd')", "E: odd"),
        ("class E(Exception):\n  def __str__(self): raise ValueError\nraise E", "cannot be imported: E"),
        ("def f(: pass", "SyntaxError"),
        ("raise RecursionError('x' * 10_000)", "RecursionError: xxx"),
        ("import no_such_neighbour", "No module named 'no_such_neighbour'"),
        ("def __getattr__(name): raise OSError('gone')", "OSError: gone"),
    ],
)
def test_whatever_importing_a_file_does_is_an_error_in_words(
    files: Callable[..., Path], text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"f\.py") as caught:
        import_function("f.py:f", base=files(f=text))
    assert says in str(caught.value)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("name", ["x" * 300 + ".py:f", "a\0b.py:f", "../" * 3000 + "f.py:f", "\ud800.py:f"])
def test_a_name_that_no_file_can_have_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        import_function(name, base=tmp_path)


class _Scores:
    def __call__(self, mine: Any, gold: Any) -> float:
        return 1.0


@pytest.mark.parametrize(
    "function", [lambda mine, gold: 1, lambda *sides: 1, lambda mine, gold, more=0: 1, _Scores(), max]
)
def test_a_function_that_can_be_called_passes(function: Callable[..., Any]) -> None:
    check_positional(function, target="f.py:f", gives=["mine", "gold"])


def test_a_function_that_cannot_be_called_is_told_what_it_is_called_with() -> None:
    says = (
        "'f.py:near' takes 1 parameter \\(x\\), and is called with 2 arguments by position; write def near\\(mine, gold"
    )
    with pytest.raises(UsageError, match=says):
        check_positional(lambda x: x, target="f.py:near", gives=["mine", "gold"])
    for function in (lambda: 1, lambda a, b, c: 1, lambda a, *, gold: 1):
        with pytest.raises(UsageError, match="is called with 2 arguments"):
            check_positional(function, target="f.py:near", gives=["mine", "gold"])


def test_parameters_are_filled_by_name_and_what_nothing_gives_is_said() -> None:
    def takes(task: Any, other: int = 1, *args: Any, seed: int, **more: Any) -> None: ...

    assert named_parameters(takes, key="factory", offered=("seed", "task")) == ("task", "seed")
    with pytest.raises(UsageError, match="factory: nothing gives 'seed'; it may take: task"):
        named_parameters(takes, key="factory", offered=("task",))
    with pytest.raises(UsageError, match="by position only"):
        named_parameters(lambda task, /: None, key="factory", offered=("task",))
    with pytest.raises(UsageError, match="cannot be read"):
        named_parameters(_Unsigned(), key="factory", offered=("task",))


class _Unsigned:
    __signature__ = "none that Python knows"

    def __call__(self) -> None: ...


def test_an_exception_is_one_short_line() -> None:
    assert failure(ValueError("x" * 9_999)).endswith("…")
    assert failure(KeyError()) == "KeyError"


def test_a_transaction_that_a_statement_has_broken_is_no_outage_and_a_connection_that_is_closed_is() -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.execute("BEGIN")
    with pytest.raises(duckdb.ConversionException):
        connection.execute("SELECT 'x'::INT")
    with pytest.raises(duckdb.TransactionException) as broken:
        connection.execute("SELECT 1")
    connection.close()
    with pytest.raises(duckdb.ConnectionException) as closed:
        connection.execute("SELECT 1")
    assert (is_outage(broken.value), is_outage(closed.value)) == (False, True)
