"""Templates: sandboxed, typed where they are one expression, never silently empty."""

from __future__ import annotations

import copy
import errno
import socket
import sys
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.errors import UnfitTemplate
from rlenv.language.templates import TemplateError, as_template, compile_template, compile_value, template_of


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("plain text\n", "plain text\n"),
        ("{{ task.a }}", "47"),
        ("a {{ task.a }} b {{ task.word }}", "a 47 b x"),
        ("{{ task['a'] + 1 }}", "48"),
        ("{{ task.word | upper }}", "X"),
        (r"{{ '$\\boxed{1}$, so $\\boxed{\\frac{1}{2}}$.' | boxed }}", r"\frac{1}{2}"),
        (r"{{ 'It is $\\boxed 7$' | boxed }}", "7"),
        ("{% for n in task.many %}{{ n }},{% endfor %}", "1,2,"),
        ("{{ resources.db.schema }}", "CREATE"),
        ("{{ task.items }}", "column"),
        ("{{ task.nested.deep }}", "1"),
        ("{{ task.none }}", "None"),
        ("", ""),
    ],
)
def test_text_is_rendered(source: str, expected: str) -> None:
    assert compile_template(source).text(**_values()) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ task.a }}", 47),
        (" {{ task.many }} ", [1, 2]),
        ("{{ task.a * 2 }}", 94),
        ("{{ task.none }}", None),
        ("n {{ task.a }}", "n 47"),
        ("{{ task.a }}{{ task.a }}", "4747"),
        ("{{ resources.db.schema }}", "CREATE"),
    ],
)
def test_one_expression_keeps_its_type(source: str, expected: Any) -> None:
    assert compile_template(source).value(**_values()) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ task.missing }}",
        "{{ nothing }}",
        "{{ task.word | boxed }}",
        "x {{ task.a.b }}",
        "{{ task.nested.missing }}",
        "{{ resources.no.x }}",
    ],
)
def test_an_undefined_name_is_an_error_never_an_empty_text(source: str) -> None:
    with pytest.raises(TemplateError):
        compile_template(source).text(**_values())
    with pytest.raises(TemplateError):
        compile_template(source).value(**_values())


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ task.__class__ }}", "{{ resources.db._private }}"]
)
def test_the_sandbox_refuses_what_leads_out(source: str) -> None:
    with pytest.raises(TemplateError):
        compile_template(source).text(**_values())


def test_a_syntax_error_names_the_line_inside_the_template() -> None:
    with pytest.raises(TemplateError) as caught:
        compile_template("first\n{{ task. }}")
    assert caught.value.line == 2


def test_the_paths_that_a_template_reads_are_known() -> None:
    template = compile_template("{{ task.a }} {{ task['b'].c }} {% if vars.x %}{{ task.d | upper }}{% endif %}")
    assert template.names == {"task", "vars"}
    assert template.paths == {("task", "a"), ("task", "b", "c"), ("vars", "x"), ("task", "d")}


def test_values_are_filled_through_lists_and_mappings() -> None:
    fill = compile_value({"a": "{{ task.a }}", "b": ["{{ task.word }}", 3, None], "c": {"d": "n{{ task.a }}"}})
    assert fill(**_values()) == {"a": 47, "b": ["x", 3, None], "c": {"d": "n47"}}


def test_a_bare_expression_is_compiled() -> None:
    assert as_template("task.many | length").value(**_values()) == 2


@pytest.mark.slow
@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text() | st.integers() | st.none(), min_size=1))
def test_quick_rendering_equals_jinjas_own(row: dict[str, Any]) -> None:
    name = sorted(row)[0]
    quick = compile_template("<{{ task." + name + " }}>").text(task=row)
    whole = compile_template("<{{ task['" + name + "'] }}>").text(task=row)
    assert quick == whole


def _values() -> dict[str, Any]:
    task = {
        "a": 47,
        "word": "x",
        "many": [1, 2],
        "items": "column",
        "nested": {"deep": 1},
        "none": None,
    }
    return {"task": task, "resources": {"db": SimpleNamespace(schema="CREATE", _private=1)}, "vars": {}}


@pytest.mark.parametrize(
    "source",
    ["{{ " + "(" * 4_000 + "1" + ")" * 4_000 + " }}", "{{ " + "[" * 4_000 + "]" * 4_000 + " }}"],
)
def test_a_template_too_deep_to_compile_is_the_authors_mistake(source: str) -> None:
    with pytest.raises(TemplateError, match="too deep"):
        compile_template(source)


def test_a_macro_that_calls_itself_for_ever_is_a_template_that_cannot_be_rendered() -> None:
    template = compile_template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")
    with pytest.raises(TemplateError, match="calls itself without end"):
        template.text()


def test_an_expression_may_begin_with_a_sign() -> None:
    assert [as_template(text).value(n=3) for text in ("-n", "+n", "{{ -n }}", "n")] == [-3, 3, -3, 3]


@pytest.mark.parametrize(
    ("source", "is_given"),
    [
        ("{{ 2 ** 100_000 }}", False),
        ("{{ 2 ** 50_000 > 1 }}", True),
        ("{{ 2 ** 50_001 > 1 }}", False),
        ("{{ 2.0 ** 3 }}", True),
        ("{{ 'a' * 10 }}", True),
        ("{{ ('a' * 1000) * 1000 * 1000 }}", False),
        ("{{ 1000 * ([0] * 1000) * 1000 }}", False),
        ("{{ 'a' * -5 }}", True),
    ],
)
def test_products_and_powers_are_bounded(source: str, is_given: bool) -> None:
    with nullcontext() if is_given else pytest.raises(TemplateError, match="too large"):
        compile_template(source).value()


@pytest.mark.parametrize(
    ("source", "is_constant", "folder"),
    [
        ("data/rows.jsonl", True, "data/"),
        ("rows.jsonl", True, ""),
        ("{{ vars.base }}/a/{{ task.name }}/b.sqlite", False, "here/a/"),
        ("data/db-{{ task.name }}.sqlite", False, "data/"),
        ("{{ task.name }}/x", False, ""),
        ("{{ vars.base }}", True, ""),
    ],
)
def test_the_folder_of_a_path_is_what_stands_before_what_a_row_says(
    source: str, is_constant: bool, folder: str
) -> None:
    template = compile_template(source)
    assert (template.is_constant, template.folder(vars={"base": "here"})) == (is_constant, folder)


@pytest.mark.parametrize(
    ("source", "authors"),
    [
        ("plain", ["plain"]),
        ("", []),
        ("a {{ x }} b", ["a ", " b"]),
        ("{{ x }}", []),
        ("{{ x }}{{ x }}!", ["!"]),
        ("{% if x %}yes {{ x }}{% endif %}", ["yes "]),
    ],
)
def test_the_authors_own_parts_of_a_text_are_known(source: str, authors: list[str]) -> None:
    text, spans = compile_template(source).written(x="<X>")
    assert text == compile_template(source).text(x="<X>")
    assert [text[start:end] for start, end in spans] == authors


OF_FILES = "ENOENT EISDIR ENOTDIR ELOOP EACCES EPERM ENAMETOOLONG ENXIO EIO EINVAL ENODEV ESRCH EFBIG EOVERFLOW EBUSY"
OF_MACHINES = "ENOSPC EDQUOT EMFILE ENFILE ENOMEM ESTALE EROFS EPIPE ECONNREFUSED ECONNRESET ETIMEDOUT EHOSTUNREACH"
FAILURES = [OSError("without a number"), socket.gaierror(errno.ENOENT, "no such host"), TimeoutError("late")]
FAILURES += [OSError(getattr(errno, name), "failed") for name in OF_MACHINES.split()]
MISFITS = [MemoryError(), *(OSError(getattr(errno, name), "misfits") for name in OF_FILES.split())]


@pytest.mark.parametrize("cause", [*FAILURES, *MISFITS], ids=repr)
def test_what_a_file_can_fail_by_is_of_what_is_read_and_what_the_machine_or_a_server_fails_by_is_not(
    cause: Exception,
) -> None:
    error = TemplateError("failed")
    error.__cause__ = cause
    assert error.is_unfit == (cause in MISFITS)


_LONG = "a b\n" * 250_000
_TWICE = "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}"
_GROWN = "{% set all = namespace(text='') %}{% for one in range(500) %}{% set all.text = "


@pytest.mark.parametrize(
    "source",
    [
        "{% for one in answer %}x{% endfor %}",
        "{% for one in answer.splitlines()[:5000] %}{% if one in answer %}x{% endif %}{% endfor %}",
        "{% for one in range(500) %}{{ answer }}{% endfor %}",
        "{% for one in (1, 2) recursive %}{{ loop(answer) }}{% endfor %}",
        "{% for one in answer.split()[:40000] | map('trim') %}{{ one }}{% endfor %}",
        _TWICE + "{{ twice(answer | length) }}",
        _TWICE + "{{ twice(answer[:40] | length) }}",
        _GROWN + "all.text ~ answer %}{% endfor %}",
        _GROWN + "all.text + answer %}{% endfor %}",
        "{{ answer | trim | upper }}",
        "{{ answer.splitlines()[:9000] | map('list') | list | sum(start=[]) }}",
        "{{ answer.split()[:20000] | reject('in', ['b']) | reject('equalto', '-') | map('trim') | list }}",
        "{{ answer.split()[:20000] | sort(reverse=true, attribute='0') }}",
        "{{ answer | replace('a', answer) }}",
        "{{ answer.replace('a', answer) }}",
        "{{ answer.split(' ')[:900] | join(answer) }}",
        "{{ answer.join(answer[:900].split(' ')) }}",
        "{{ answer.split()[:9000] | select('in', answer) | list }}",
        "{{ 'x'.center(2 * answer | length) }}",
        "{{ 'x' | indent(2 * answer | length, true) }}",
        "{{ '%*d' % (2 * answer | length, 1) }}",
        "{{ '{:>{}}'.format(1, 2 * answer | length) }}",
        "{{ ('%.' ~ (answer | length) ~ '0f') | format(1) }}",
        "{{ ('{:>' ~ (answer | length) ~ '0}').format(1) }}",
        "{% for one in range(9000) %}{{ {'note': answer} }}{% endfor %}",
        "{% for one in range(9000) %}{{ one ~ [answer] }}{% endfor %}",
        "{% for one in range(9000) %}{% if answer[one:] %}x{% endif %}{% endfor %}",
        "{{ answer[:30000] | join(answer[:30000]) }}",
        "{% for one in range(9000) %}{{ loop.changed(answer ~ one) }}{% endfor %}",
        "{% for one in range(9000) %}{{ loop.changed(answer) }}{% endfor %}",
        "{% for one in range(9000) %}{{ [answer] is upper }}{% endfor %}",
        "{{ answer.rfind('a' ~ answer[:500000]) }}",
        "{{ 3.5 | round(answer | length, 'floor') }}",
        "{{ answer[:40000] | wordwrap(1) }}",
        "{{ (([[]] * 90000) | join) ~ answer[0] }}",
        "{% macro m(one) %}{% endmacro %}{% for one in answer[:9000] %}{{ m(one) }}{% endfor %}",
        "{% set all = namespace(n=0) %}{% for one in answer[:20000] %}{% set all.n = all.n + 1 %}{% endfor %}",
        "{{ answer[:40000] | sort(attribute='0') | length }}",
        "{{ answer[:20000] | groupby('0') | length }}",
        "{% set all = answer.split()[:4000] %}{% for one in all %}{{ all.count(one) }}{% endfor %}",
    ],
)
def test_a_rendering_over_what_a_policy_wrote_does_bounded_work(source: str) -> None:
    """Each takes from a tenth of a second to for ever, or gigabytes, where nothing bounds it."""
    with pytest.raises(TemplateError, match=r"longer than|nested too deep") as raised:
        compile_template(source).text(answer=_LONG)
    assert raised.value.is_unfit


_MAPPING: Final = {str(key): {"a": [key]} for key in range(4_000)}
_NESTED: Final = [["a"] * 300] * 300


@pytest.mark.parametrize("values", [_MAPPING, _NESTED], ids=["mapping", "nested"])
@pytest.mark.parametrize("one", ["answer == said", "answer is eq said", "answer in [said]", "answer is in [1, said]"])
def test_a_comparison_is_paid_for_by_all_that_it_reads(values: Any, one: str) -> None:
    again = copy.deepcopy(values)
    assert compile_template(f"{{{{ {one} }}}}").value(answer=values, said=again) is True
    with pytest.raises(TemplateError, match="a comparison: longer than"):
        compile_template(f"{{% for i in range(200) %}}{{{{ {one} }}}}{{% endfor %}}").text(answer=values, said=again)


def test_a_mapping_is_asked_once_by_in() -> None:
    template = compile_template("{% for one in args[:2000] %}{{ one in answer and one is in answer }}{% endfor %}")
    assert template.text(args=[*_MAPPING], answer=_MAPPING) == "True" * 2_000


@pytest.mark.parametrize("kind", [int, Decimal])
def test_large_numbers_of_one_hash_are_paid_for_by_their_pairs(kind: Any) -> None:
    small, large = ([{"n": kind(one * by)} for one in range(9_000)] for by in (1, sys.hash_info.modulus))
    for source in ("map(attribute='n') | unique", "unique(attribute='n')", "map(attribute='n') | list | unique"):
        template = compile_template(f"{{{{ answer | {source} | list | length }}}}")
        assert template.value(answer=small) == 9_000
        with pytest.raises(TemplateError, match="longer than"):
            template.value(answer=large)
    with pytest.raises(TemplateError, match="longer than"):
        compile_template("{{ dict(answer) | length }}").value(answer=[(one["n"], 1) for one in large])


def test_files_that_a_policy_left_are_paid_for_as_they_are_read(tmp_path: Path) -> None:
    for number in range(8):
        with (tmp_path / str(number)).open("wb") as file:
            file.truncate(9_900_000)
    source = "{% for one in resources.iterdir() %}{{ one.read_bytes() | length }}{% endfor %}"
    with pytest.raises(TemplateError, match="a call: longer than"):
        compile_template(source).text(resources=tmp_path)


@pytest.mark.parametrize("source", ["{{ lipsum() }}", "{{ [1, 2] | random }}", "{{ answer | random }}"])
def test_a_template_gives_the_same_each_time(source: str) -> None:
    with pytest.raises(UnfitTemplate, match="gives the same each time"):
        template_of(source, key="user", names=("answer",))


@pytest.mark.parametrize(
    "source",
    ["{{ answer | int }}", "{{ '%d' % answer }}", "{{ '{:.2f}'.format(answer) }}", "{{ answer | round }}",
     "{{ answer.as_integer_ratio() }}", "{{ '%.2f' | format(answer) }}"],
)  # fmt: skip
def test_a_number_of_a_few_characters_writes_no_million_digits(source: str) -> None:
    """A tool that keeps money as `Decimal(amount)` took `1e200000000`, and a template 400 MB."""
    with pytest.raises(TemplateError, match="longer than"):
        compile_template(source).text(answer=Decimal("1e200000"))
    assert compile_template(source).text(answer=Decimal("1e20"))


_TREE = "{% for one in ['c', answer[:1]] | sort recursive %}{{ one }}{% if one == 'c' %}{{ loop('d') }}{% endif %}"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ answer | length }} {{ answer.count('a') }} {{ answer[:3] | upper }}", "1000000 250000 A B"),
        ("{{ answer.split() | length }}", "500000"),
        ("{{ 'b' in answer and answer == answer and answer is string }}", "True"),
        ("{% for one in answer.split()[:2] %}{{ loop.index }}/{{ loop.length }}{{ one }} {% endfor %}", "1/2a 2/2b "),
        (_TREE + "{% endfor %}", "acd"),
        ("{{ '%s of %d' % (answer[:1], 3) }} {{ '{:.2f}'.format(2) }}", "a of 3 2.00"),
        ("{{ answer[:1] ~ 1 }} {{ answer[:1] + 'b' }} {{ 2 + 3 * 2 ** 2 % 7 }}", "a1 ab 7"),
        ("{{ answer[:7].splitlines() | map('replace', 'a', 'x') | join(', ') }}", "x b, x b"),
        ("{% filter upper %}{{ answer[:1] }}{% endfilter %}{{ answer[:1] | d('z') | tojson }}", 'A"a"'),
    ],
)
def test_bounded_work_changes_nothing_that_a_template_writes(source: str, text: str) -> None:
    assert compile_template(source).text(answer=_LONG) == text
    assert compile_template(source.replace("answer", "task")).text(task=_LONG) == text


class Lengthless:
    """As a stream of rows that are counted nowhere."""

    def __len__(self) -> int:
        raise TypeError("no length")

    def __iter__(self) -> Any:
        return iter("ab")


def test_a_loop_takes_what_has_no_length() -> None:
    rows = {"rows": Lengthless(), "tree": [{"name": "a", "below": [{"name": "b", "below": []}]}]}
    assert compile_template("{% for one in resources.rows %}{{ one }}{% endfor %}").text(resources=rows) == "ab"
    tree = "{% for one in resources.tree recursive %}{{ one.name }}{{ loop(iterable=one.below) }}{% endfor %}"
    assert compile_template(tree).text(resources=rows) == "ab"


def test_the_values_of_a_mapping_are_paid_for_as_a_list_is() -> None:
    template = compile_template("{{ resources.values() | sort | length }}")
    assert template.value(resources=dict.fromkeys(range(60_000), 1)) == 60_000
    with pytest.raises(TemplateError, match="sort: longer"):
        template.value(resources=dict.fromkeys(range(70_000), 1))


def test_a_table_and_a_long_text_that_is_indented_fit() -> None:
    table = "{% for row in result %}{% for one in row %}{{ one.ljust(20) }}{{ '%-12.3f' % 2 }}|{% endfor %}{% endfor %}"
    assert compile_template(table).text(result=[["x"] * 10] * 400).count("|") == 4_000
    assert len(compile_template("{{ result | indent(4) }}").text(result="x" * 60 + "\nabc" * 15_000)) == 120_060


def test_each_rendering_has_its_own_work() -> None:
    template = compile_template("{{ answer | title | length }}")
    assert [template.value(answer="x" * 60_000) for _ in range(3)] == [60_000] * 3
