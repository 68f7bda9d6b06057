"""What the README and the docs show works as it stands there; see tests/support/pages.py for how a block is run."""

from __future__ import annotations

import pkgutil
import re
import sys
from datetime import date
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, blocks_of, check_words, needs_of, prose_of, run_page, runner_of

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
_COMMAND = re.compile(r"`((?:rlenv|make) [^`]*)`")
_OBJECT = re.compile(r"^::: (\S+)$", re.MULTILINE)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    slugs: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE):
        text = re.sub(r"[^\w\s-]", "", heading.lower())
        slugs.add(re.sub(r"[\s-]+", "-", text.strip()))
    return slugs


def without_verl(left: list[str]) -> None:
    """The rest of a page was looked at; what was not is named."""
    if left:
        pytest.skip(f"veRL is not installed: {', '.join(dict.fromkeys(left))}")


def _suites_of(page: Path) -> list[pytest.MarkDecorator]:
    """A newcomer's first pages are played with every change, the others with what takes long."""
    is_first = page.name == "README.md" or page.parent.name == "start"
    return [pytest.mark.sandbox] * ("bwrap" in needs_of(page)) + [pytest.mark.slow] * (not is_first)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=_suites_of(page)) for page in PAGES],
    ids=_name,
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in set(needs_of(page)) - {"bwrap"}:
        pytest.importorskip(module)
    if (runner := runner_of(page)) is not None:
        assert page.name in (ROOT / runner).read_text(encoding="utf-8")
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = set(sys.modules)
    try:
        left = run_page(page)
    finally:  # files of other pages have the same names
        for name in sys.modules.keys() - loaded:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
                del sys.modules[name]
    without_verl(left)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("```\nrlenv schema\n```", "a block says its language"),
        ("```json\n{}\n```", "needs a marker"),
        ("```sh\nls\n```", "only rlenv's own commands are run"),
        ("```sh\nrlenv validate nowhere.yaml\n```", "ended with 1"),
        ('```python\nassert not 1, "no"\n```', "no"),
        ("```yaml\nname: nothing\n```", "the key 'rlenv' is missing"),
        ("<!-- not run: -->\n```sh\nls\n```", "why is it not run?"),
        ("<!-- not run: needs a GPU -->\n```sh\nrlenv eval arithmetic --nope\n```", "no option --nope"),
        ("<!-- not run: needs a GPU -->\n```sh\nmake nope\n```", "no target"),
        ("- a list\n\n  ```sh\n  ls\n  ```", "at the beginning of its lines"),
    ],
)
def test_a_block_that_does_not_run_and_does_not_say_why_fails(
    block: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{block}\n", encoding="utf-8")
    with pytest.raises(AssertionError) as caught:
        run_page(page)
    assert said in str(caught.value)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_in_the_text_have_the_options_that_it_names(page: Path) -> None:
    said = _COMMAND.findall(prose_of(page))
    without_verl([left for one in said for left in check_words(f"{_name(page)}: `{one}`", one)])


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_in_the_docs_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(prose_of(page)):
        if re.match(r"\w+:", target):
            continue
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), f"{_name(page)} links to {target}"
        if anchor:
            assert anchor in _slugs(place), f"{_name(page)} links to {target}#{anchor}; there are {_slugs(place)}"
        if ROOT / "docs" in page.parents:
            assert ROOT / "docs" in place.parents, f"{_name(page)}: {target} is no page of the site"


def test_the_readme_names_the_two_commands_first() -> None:
    first = next(block for block in blocks_of(ROOT / "README.md") if block.language == "sh")
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == ["make demo", "make test"]


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if ROOT / "docs" in page.parents}
    assert named == pages


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "api"], ids=_name)
def test_what_the_reference_names_exists(page: Path) -> None:
    for path in _OBJECT.findall(page.read_text(encoding="utf-8")):
        pkgutil.resolve_name(path)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_a_number_a_date_a_status_and_what_was_not_done(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(rf"# {page.name[:4]}\. \S.*", lines[0])
    assert date.fromisoformat(lines[2].removeprefix("- Date: "))
    assert lines[3].removeprefix("- Status: ").split()[0] in ("accepted", "replaced", "withdrawn")
    assert [line for line in lines if line.startswith("#")][1:] == ["## Context", "## Decision", "## Alternatives"]
    assert lines[-1].strip()


def test_the_architecture_lists_the_decisions_in_order() -> None:
    listed = re.findall(
        r"^- \[(.+)\]\(\.\./decisions/(.+)\)$", (ROOT / "docs" / "extend" / "architecture.md").read_text(), re.MULTILINE
    )
    titles = [page.read_text(encoding="utf-8").splitlines()[0].split(". ", 1)[1] for page in DECISIONS]
    assert listed == [(title, page.name) for title, page in zip(titles, DECISIONS, strict=True)]
    assert [page.name[:4] for page in DECISIONS] == [f"{number:04d}" for number in range(1, len(DECISIONS) + 1)]
