"""The viewer in a real browser: what a reader does, at two widths, by keyboard, on texts that mean harm."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlenv.runs.folder import open_run
from tests.support import shown_runs

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
WAIT_MS = 60_000
pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

if "CI" not in os.environ:
    pytest.importorskip("playwright", reason="playwright is not installed; pip install playwright")
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium here; apt-get install chromium", allow_module_level=True)


class Served:
    """The viewer on a free port, in a thread of its own."""

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        from rlenv.hosts.workers import address_of, listen, serve
        from rlenv.web.app import application
        from rlenv.web.guard import Guard

        self._ready = threading.Event()
        guard = Guard()
        self.token = guard.token

        bound = listen("127.0.0.1", 0)
        self.url = address_of(bound)

        async def main() -> None:
            self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
            app = application([root], guard=guard, read_only=read_only)
            await serve(app, bound, stopped=self._stopped, on_ready=self._ready.set)

        self._thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(30)


@dataclass
class Watched:
    """A page and what went wrong on it: faults of scripts, breaches of the policy, requests to elsewhere."""

    page: Any
    url: str
    wrong: list[str] = field(default_factory=list)

    def go(self, path: str, wait: str = "main") -> Any:
        self.page.goto(self.url + path)
        self.page.wait_for_selector(wait)
        return self.page

    def heard(self, message: Any) -> None:
        # A request that is refused on purpose is told in the console, too.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.wrong.append(f"{message.type}: {message.text[:300]}")

    def asked(self, request: Any) -> None:
        if not request.url.startswith((self.url + "/", "data:", "blob:")):
            self.wrong.append(f"request to {request.url[:200]}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    shown_runs.kept(folder / "a", steps=6).close()
    shown_runs.kept(folder / "b", steps=6, shift=4, policy="qwen-8b").close()
    shown_runs.hostile(folder / "hostile")
    shown_runs.nesting(folder / "nested")
    specs = Path(__file__).parents[2] / "specs"
    for name in ("arithmetic.yaml", "arithmetic_tools.py"):
        shutil.copy(specs / name, folder / name)
    shutil.copytree(specs / "data" / "arithmetic", folder / "data" / "arithmetic")
    return folder


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[Served]:
    server = Served(root)
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield chromium
        chromium.close()


def opened(browser: Any, served: Served, *, width: int = 1280, scheme: str = "light") -> Any:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    context.set_default_timeout(WAIT_MS)
    watched = Watched(context.new_page(), served.url)
    watched.page.on("console", watched.heard)
    watched.page.on("pageerror", lambda error: watched.wrong.append(str(error)[:300]))
    watched.page.on("request", watched.asked)
    watched.page.goto(f"{served.url}/?token={served.token}")
    watched.page.wait_for_selector("table.runs")
    return watched


@pytest.fixture
def watched(browser: Any, served: Served) -> Iterator[Watched]:
    one = opened(browser, served)
    yield one
    one.page.context.close()
    assert one.wrong == []


def ids(watched: Watched, run: str, q: str) -> list[str]:
    asked = f"fetch('/api/runs/{run}/episodes?limit=5&q=' + encodeURIComponent('{q}')).then(r => r.json())"
    return [row["id"] for row in watched.page.evaluate(asked)["rows"]]


def text(page: Any, selector: str) -> str:
    return str(page.locator(selector).first.inner_text())


def faults_of(page: Any) -> list[str]:
    """What of a page is wider than its window, or breaks a rule of access."""
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    found = [f"{wide} pixels too wide"] if wide > 0 else []
    if AXE.is_file():
        page.evaluate(AXE.read_text(encoding="utf-8"))
        told = page.evaluate("axe.run().then(r => r.violations.map(v => v.id + ' ' + v.nodes[0].html))")
        found += [one[:300] for one in told]
    return found


def until(page: Any, expression: str) -> None:
    """Waits until an expression holds. Playwright's own wait evaluates text in the page, which the policy forbids."""
    for _ in range(WAIT_MS // 50):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never became true: {expression}")


# What a reader does


def test_a_run_is_opened_filtered_and_an_episode_with_an_image_and_a_failed_call_is_read(watched: Watched) -> None:
    page = watched.page
    page.click("table.runs a.name >> text=a")
    page.wait_for_selector(".figures")
    page.wait_for_selector(".chart svg path.curve")
    page.click("nav a >> text=episodes")
    page.wait_for_selector(".grid .row:not(.head) .outcome")
    page.click(".facet >> text=timeout")
    until(page, "document.querySelector('.matched').textContent.includes(' of ')")
    assert "outcome:timeout" in page.input_value("#query")
    page.click(".grid .row:not(.head) >> nth=1")
    page.wait_for_selector(".peek .waterfall")
    page.click(".peek .open")
    page.wait_for_selector(".card.turn .call.failed")
    assert "timeout" in text(page, ".call.failed .outcome")
    image = page.wait_for_selector(".pictures img")
    image.scroll_into_view_if_needed()
    until(page, "document.querySelector('.pictures img').naturalWidth === 240")


def test_the_episode_of_an_agent_opens_in_its_call_at_any_depth(watched: Watched) -> None:
    (id, *_) = ids(watched, "nested", "")
    page = watched.go(f"/r/nested/e/{id}", ".card.turn")
    assert page.locator(".nested").count() == 1  # what another tool put in the place of an episode is none
    page.click("#t1c1 > .call-body > .nested > summary")
    page.wait_for_selector("#t1c1-t1 >> text=asks the second")
    page.click("#t1c1-t1c1 .nested > summary")
    page.wait_for_selector("#t1c1-t1c1-t1 >> text=answers")
    image = page.wait_for_selector("#t1c1-t1c1-t1 .pictures img")
    image.scroll_into_view_if_needed()
    until(page, "document.querySelector('#t1c1-t1c1-t1 .pictures img').naturalWidth === 240")
    assert faults_of(page) == []


def test_the_reward_shows_its_evidence_in_the_text(watched: Watched) -> None:
    (id, *_) = ids(watched, "a", "success:true")
    page = watched.go(f"/r/a/e/{id}", ".beside .waterfall")
    page.click(".beside .term .link >> text=correct")
    page.wait_for_selector("mark.evidence.hot")
    assert text(page, "mark.evidence.hot").isdigit()


def test_tokens_tell_what_is_trained_in_text_as_well_as_in_colour(watched: Watched) -> None:
    (id, *_) = ids(watched, "a", "success:true")
    page = watched.go(f"/r/a/e/{id}?tab=tokens", ".tok")
    assert "tokens are trained on" in text(page, ".toolbar .end.num")
    page.focus(".tokens")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".token-at b")
    assert "log-probability" in text(page, ".token-at")
    page.check("text=table")
    page.wait_for_selector(".token-table [role=row]")


def test_every_part_of_an_episode_has_an_address(watched: Watched) -> None:
    (id, *_) = ids(watched, "a", "outcome:malformed")
    page = watched.go(f"/r/a/e/{id}#t3c1", "#t3c1")
    until(page, "document.activeElement.id === 't3c1'")
    for tab in ("tokens", "reward", "timing", "raw", "lock"):
        watched.go(f"/r/a/e/{id}?tab={tab}", f"#tab-{tab}[aria-selected=true]")


def test_samples_of_a_task_stand_side_by_side(watched: Watched) -> None:
    (id, *_) = ids(watched, "a", "sample:1")
    page = watched.go(f"/r/a/e/{id}", ".card.turn")
    page.keyboard.press("g")
    page.wait_for_selector("table.aligned tr.differs")
    assert page.locator("table.aligned thead th").count() == 5


def test_two_runs_are_compared_from_the_list(watched: Watched) -> None:
    page = watched.page
    page.check("[aria-label='Compare a']")
    page.check("[aria-label='Compare b']")
    page.click("button.primary >> text=Compare")
    page.wait_for_selector(".compare .figures")
    page.click("[role=tab] >> text=fixed")
    page.wait_for_selector("#panel .grid .row:not(.head), #panel .empty")


def test_a_comparison_says_its_terms_and_its_tasks_by_how_much_they_changed(watched: Watched) -> None:
    page = watched.go("/compare?a=a&b=b", "[aria-label='Reward terms'] tbody tr")
    assert set(page.locator("[aria-label='Reward terms'] tbody td:first-child").all_inner_texts()) == {
        "correct", "calls", "clear",
    }  # fmt: skip
    page.wait_for_selector("#panel .grid .row:not(.head)")
    assert "How many bridges" in text(page, "#panel .grid .row:not(.head)")
    changes = page.locator("#panel .grid .row:not(.head) [role=gridcell]:first-child").all_inner_texts()
    sizes = [float(one.split()[-1].replace("\u2212", "-")) for one in changes]
    assert sizes == [*sorted(one for one in sizes if one < 0), *sorted((one for one in sizes if one > 0), reverse=True)]
    page.click("#panel .grid .row:not(.head) >> nth=0")
    page.wait_for_selector(".pair .peek .waterfall")


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_runs_are_read_sorted_and_filtered_in_any_window(browser: Any, served: Served, width: int) -> None:
    watched = opened(browser, served, width=width)
    page = watched.page
    names = page.locator("table.runs a.name")
    page.wait_for_selector("table.runs a.name >> text=nested")
    assert names.count() == 4
    page.click("table.runs th >> text=success")
    shown = [one.rstrip(" %") for one in page.locator("table.runs td b").all_inner_texts()]
    known = [float(one) for one in shown if one[0].isdigit()]
    assert known == sorted(known, reverse=True)
    for name in names.all():
        box = name.bounding_box()
        assert box is not None
        assert box["width"] > 6 or len(name.inner_text()) == 1
        assert box["height"] < 60, "a name is not broken letter by letter"
    success = page.locator("table.runs td b").first.bounding_box()
    assert success is not None
    assert success["x"] + success["width"] <= width, "success is on the screen"
    page.fill("#find-run", "qwen-8b")
    until(page, "document.querySelectorAll('table.runs a.name').length === 1")
    assert "qwen-8b" in page.inner_text("table.runs")
    page.context.close()
    assert watched.wrong == []


def test_what_training_left_out_is_a_click_away_with_its_reason(watched: Watched) -> None:
    page = watched.go("/r/a", ".figures")
    page.click(".figures a >> text=masked or filtered")
    page.wait_for_selector(".grid .row:not(.head) .outcome")
    assert "fate:masked,filtered" in page.input_value("#query")
    assert "its reward is invalid" in page.inner_text("aside.facets")


def test_a_fault_of_a_query_names_its_column_and_the_nearest_name(watched: Watched) -> None:
    page = watched.go("/r/a/episodes?q=step%3A1%20succes%3Afalse", "#query-fault .fault")
    assert "did you mean 'success'" in text(page, "#query-fault")
    assert "\n       ^" in text(page, "#query-fault pre")


@pytest.mark.parametrize("page_name", ["tools", "rewards", "files"])
def test_the_figures_of_a_run_have_their_pages(watched: Watched, page_name: str) -> None:
    page = watched.go(f"/r/a/{page_name}", ".panel")
    assert page.locator(".fault").count() == 0


# What a reader asks: at most three clicks from the list of runs, at each width


RUN, COMPARED = ["table.runs a.name >> text=/^a$/"], [
    "[aria-label='Compare a']", "[aria-label='Compare b']", "button.primary >> text=Compare",
]  # fmt: skip
QUESTIONS = {
    "does it learn": (RUN, ".chart svg path.curve"),
    "why did this episode fail": ([*RUN, ".read a >> nth=0"], ".beside .term .lane"),
    "which tasks got worse": (COMPARED, "#panel .grid .row:not(.head)"),
    "which term moved over steps": ([*RUN, ".subnav >> text=rewards"], ".small-charts path.curve"),
    "which term moved between runs": (COMPARED, "[aria-label='Reward terms'] tbody td:nth-child(4)"),
    "which tool is slow": ([*RUN, ".subnav >> text=tools"], "[aria-label='Tools'] tbody td:nth-child(5)"),
    "which call was slow": (
        [*RUN, ".subnav >> text=tools", ".panel:has-text('Slowest calls') .links a >> nth=0"], ".call .outcome",
    ),
    "what was seen as tokens": ([*RUN, ".read a >> nth=0", "#tab-tokens"], ".tok"),
    "what was masked, and why": (
        [*RUN, ".figures a >> text=masked or filtered"], ".grid .row:not(.head) >> text=its reward is invalid",
    ),
    "how do the samples of a group differ": ([*RUN, ".read a >> text=widest group"], "tr.differs td:last-child"),
    "what made the runs differ": (COMPARED, ".differences tbody td:last-child"),
    "can the judge be trusted": ([*RUN, ".subnav >> text=rewards"], ".panel:has-text('Can the judge') p b"),
    "how are tasks spread over the samples": (RUN, "[aria-label^='Tasks by how many'] .meter"),
}  # fmt: skip


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_each_question_of_a_reader_is_answered_within_three_clicks(browser: Any, served: Served, width: int) -> None:
    """The answer stands inside of the window's width, without a click more: no reader scrolls sideways for it."""
    watched = opened(browser, served, width=width)
    for question, (clicks, answer) in QUESTIONS.items():
        page = watched.go("/", "table.runs a.name")
        assert len(clicks) <= 3
        for click in clicks:
            page.click(click)
        page.wait_for_selector(answer)
        shown = page.locator(answer).first
        shown.evaluate("one => one.scrollIntoView({block: 'center', inline: 'nearest'})")
        shown.scroll_into_view_if_needed()
        box = shown.bounding_box()
        assert box is not None, question
        assert box["x"] >= -1, (question, box)
        assert box["x"] + min(box["width"], 40) <= width, (question, box)
        moved = page.evaluate(
            "[...document.querySelectorAll('*')].filter(one => one.scrollLeft > 0).map(one => one.className)"
        )
        assert moved == [], (question, moved)
    page.context.close()
    assert watched.wrong == []


def test_two_environments_are_compared_once_the_reader_says_so(watched: Watched) -> None:
    page = watched.go("/compare?a=a&b=hostile", ".fault")
    assert page.locator(".compare .figures").count() == 0
    page.click("button >> text=Compare them anyway")
    page.wait_for_selector(".compare .figures")
    assert "not two runs of the same tasks" in text(page, ".fault")


# What is drawn


def drawn(page: Any, lane: str, bar: str = "i.drawn") -> list[tuple[float, float]]:
    """Of each lane the width of its bars, added up, and how far the first one stands from its beginning, as shares."""
    measured = page.evaluate(
        """([lane, bar]) => [...document.querySelectorAll(lane)].map(one => {
            const all = one.getBoundingClientRect();
            const bars = [...one.querySelectorAll(bar)].map(b => b.getBoundingClientRect());
            const wide = bars.reduce((sum, b) => sum + b.width, 0);
            return [wide / all.width, bars.length ? (Math.min(...bars.map(b => b.left)) - all.left) / all.width : 0];
        })""",
        [lane, bar],
    )
    return [(wide, left) for wide, left in measured]


def is_drawn(found: list[tuple[float, float]], widths: list[float], *, within: float = 0.012) -> bool:
    """Whether bars are as wide as their values: a value of 0 draws nothing, any other a pixel at least."""
    return len(found) == len(widths) and all(
        (wide == 0) if value == 0 else abs(wide - value) <= within
        for (wide, _), value in zip(found, widths, strict=True)
    )


def got(page: Any, path: str) -> Any:
    return page.evaluate(f"fetch({path!r}).then(answer => answer.json())")


@pytest.mark.parametrize("width", [1280, 390])
def test_every_bar_is_as_wide_as_its_value(browser: Any, served: Served, width: int) -> None:
    watched = opened(browser, served, width=width)
    for q in ("success:true", "success:false sample:3", "term.clear:invalid"):
        (id, *_) = ids(watched, "a", q)
        page = watched.go(f"/r/a/e/{id}?tab=reward", "#panel .waterfall")
        terms = got(page, f"/api/runs/a/e/{id}")["record"]["reward"]["terms"].values()
        shares = [term["value"] * term["weight"] if term["status"] == "valid" else 0.0 for term in terms]
        ends = [0.0, *(sum(shares[: at + 1]) for at in range(len(shares)))]
        span = max(ends) - min(ends)
        found = drawn(page, "#panel .term:not(.total) .lane", "i.share:not(.invalid, .skipped)")
        assert is_drawn(found, [abs(share) / span for share in shares]), (found, shares)
        starts = [(min(ends[at : at + 2]) - min(ends)) / span for at in range(len(shares))]
        assert all(
            abs(left - start) <= 0.012 for (_, left), start, share in zip(found, starts, shares, strict=True) if share
        )
        turns = got(page, f"/api/runs/a/e/{id}")["record"]["reward"]["turn_rewards"]
        most = max(abs(one) for one in turns) or 1.0
        assert is_drawn(drawn(page, ".turn-rewards .meter"), [abs(one) / most for one in turns])
        page = watched.go(f"/r/a/e/{id}?tab=timing", ".timed .lane")
        calls = got(page, f"/api/runs/a/e/{id}")["calls"]
        began = [one["started"] or 0.0 for one in calls]
        whole = max(at + one["seconds"] for at, one in zip(began, calls, strict=True)) - min(began)
        assert is_drawn(drawn(page, ".timed .lane"), [one["seconds"] / whole for one in calls])
    page = watched.go("/r/a", "[aria-label='How episodes ended'] .meter")
    counts = list(got(page, "/api/runs/a")["reasons"].values())
    found = drawn(page, "[aria-label='How episodes ended'] .meter")
    assert is_drawn(found, [n / max(counts) for n in counts])
    stands = page.evaluate(
        """() => [...document.querySelectorAll('.histogram > div')].map(one => [
            Number(one.title.split(': ')[1].split(' ')[0]),
            [...one.querySelectorAll('i')].reduce((sum, bar) => sum + bar.getBoundingClientRect().height, 0)
                / one.querySelector('.stand').getBoundingClientRect().height,
        ])"""
    )
    assert sum(n for n, _ in stands) == 96 - got(page, "/api/runs/a")["invalid"]
    most = max(n for n, _ in stands)
    assert is_drawn([(high, 0.0) for _, high in stands], [n / most for n, _ in stands], within=0.02)
    page.context.close()
    assert watched.wrong == []


# Live


def test_a_live_list_does_not_jump_and_keeps_the_focus(browser: Any, tmp_path: Path) -> None:
    run = shown_runs.kept(tmp_path / "live", steps=3)
    server = Served(tmp_path)
    try:
        watched = opened(browser, server)
        page = watched.go("/r/live/episodes", ".grid .row:not(.head) .outcome")
        page.focus(".grid .row[tabindex='0']")
        page.keyboard.press("j")
        page.wait_for_selector(".row.selected")
        before = text(page, ".row.selected")
        shown_runs.append_group(run, 1, 3)
        page.wait_for_selector(".fresh")
        assert "4 new" in text(page, ".fresh")
        assert text(page, ".row.selected") == before
        assert page.evaluate("document.activeElement.classList.contains('row')")
        page.click(".fresh")
        until(page, "document.querySelector('.matched').textContent === '52 episodes'")
        page = watched.go("/r/live", ".live.on")
        shown_runs.append_group(run, 2, 4)
        until(page, "[...document.querySelectorAll('.figures b')].some(b => b.textContent === '56')")
        page.context.close()
        assert watched.wrong == []
    finally:
        server.close()
        run.close()


# The workbench


def test_a_spec_is_edited_into_a_fault_and_out_of_it(watched: Watched) -> None:
    page = watched.go("/w", ".cm-content")
    page.wait_for_selector(".faults-state >> text=no fault")
    page.click(".cm-content")
    page.keyboard.press("Control+End")
    page.keyboard.type("\nrewardz: 1\n")
    page.wait_for_selector(".faults-state .bad")
    page.wait_for_selector(".cm-lint-marker-error, .cm-lintRange-error")
    assert "unknown key" in text(page, ".faults")
    for _ in range(3):
        page.keyboard.press("Control+z")
    page.wait_for_selector(".faults-state >> text=no fault")


def test_an_episode_of_the_spec_is_played_by_the_oracle_and_by_hand(watched: Watched) -> None:
    page = watched.go("/w", ".cm-content")
    page.click("#tab-play")
    page.select_option(".play select", "oracle")
    page.click("role=button[name=Start]")
    page.click("role=button[name=Step]")
    page.wait_for_selector(".play .turn .call")
    page.click("role=button[name=Step]")
    page.wait_for_selector(".play .ending >> text=success")
    page.select_option(".play select", "you")
    page.click("role=button[name='Start again']")
    page.fill(".say textarea", "<answer>1</answer>")
    page.click("role=button[name=Step]")
    page.wait_for_selector(".play .ending >> text=no success")


def test_a_run_is_started_and_its_log_read(watched: Watched) -> None:
    page = watched.go("/w", ".cm-content")
    page.click("#tab-checks")
    page.click("role=button[name=Validate]")
    page.wait_for_selector(".log .outcome >> text=ended", timeout=60_000)
    watched.go("/jobs", "table.jobs .outcome")
    assert "validate" in text(page, "table.jobs")


def test_a_tool_is_added_and_changed_by_a_form_and_the_comments_stay(watched: Watched) -> None:
    page = watched.go("/w", ".cm-content")
    page.click("#tab-tools")
    page.click(".forms >> role=button[name='Add a tool']")
    page.fill("#form-name", "lookup")
    page.select_option("#form-kind", "search")
    page.fill(".forms label >> text=path", "data/arithmetic/train.jsonl")
    page.fill(".forms label >> text=top_k", "3")
    page.click(".forms >> role=button[name=Add]")
    page.wait_for_selector(".cm-content >> text=lookup: {kind: search, path: data/arithmetic/train.jsonl, top_k: 3}")
    page.click(".forms >> role=button[name=clock]")
    page.click(".forms summary")
    assert faults_of(page) == []
    page.fill(".forms label >> text=description", "Tells: the time")
    page.click(".forms >> role=button[name=Change]")
    page.wait_for_selector('.cm-content >> text=run_in: loop, description: "Tells: the time"}')
    page.wait_for_selector(".cm-content >> text=# A tool that never helps")
    page.click(".forms >> role=button[name=lookup]")
    page.fill(".forms [aria-label='New name']", "find")
    page.click(".forms >> role=button[name=Rename]")
    page.wait_for_selector(".cm-content >> text=find: {kind: search, path")
    page.click(".forms >> role=button[name=Delete]")
    until(page, "!document.querySelector('.cm-content').textContent.includes('find: {kind')")
    page.click(".cm-content")
    for _ in range(4):
        page.keyboard.press("Control+z")
    until(page, "!document.querySelector('.cm-content').textContent.includes('lookup')")


# By keyboard alone


def test_an_episode_is_found_and_read_by_keyboard_alone(watched: Watched) -> None:
    page, press = watched.page, watched.page.keyboard.press
    while page.evaluate("document.activeElement.textContent") != "a":  # the newest run comes first
        press("j")
    press("Enter")
    page.wait_for_selector(".figures")
    page.focus("nav.subnav a >> nth=2")
    press("Enter")
    page.wait_for_selector(".grid .row:not(.head) .outcome")
    press("/")
    page.keyboard.type("outcome:timeout")
    press("Enter")
    until(page, "document.querySelector('.matched').textContent.includes(' of ')")
    press("Escape")
    press("j")
    press("j")
    page.wait_for_selector(".row.selected")
    press("Enter")
    page.wait_for_selector(".card.turn")
    press("j")
    until(page, "document.activeElement.id === 't1'")
    press("]")
    until(page, "document.activeElement.id === 't2'")
    press("e")
    until(page, "document.activeElement.classList.contains('failed')")
    for key, tab in (("t", "tokens"), ("r", "reward"), ("w", "timing"), ("v", "conversation")):
        press(key)
        page.wait_for_selector(f"#tab-{tab}[aria-selected=true]")
    press("c")
    page.wait_for_selector(".call .fold[aria-expanded=false]")
    press("c")
    press("m")
    page.wait_for_selector("text=★ Marked")
    press("m")
    before = page.url
    press("n")
    page.wait_for_timeout(200)
    if page.url == before:  # it was the last sample
        press("p")
    until(page, f"location.href !== {before!r}")
    press("f")
    page.keyboard.type("census")
    press("Enter")
    page.wait_for_selector("mark.found.here")
    press("Escape")
    press("Escape")
    press("?")
    page.wait_for_selector("dialog[open]")
    press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    press("u")
    page.wait_for_selector(".grid")


def test_what_is_looked_for_before_an_episode_has_come_is_found_when_it_comes(watched: Watched) -> None:
    page = watched.page
    first, second, *_ = ids(watched, "a", "census")
    held: list[Any] = []
    page.route(
        f"**/e/{second}", lambda route: held.append(route) if "/api/" in route.request.url else route.continue_()
    )
    watched.go(f"/r/a/e/{first}", wait=".card.turn")
    page.evaluate(
        "place => { history.pushState(null, '', place); dispatchEvent(new Event('popstate')) }", f"/r/a/e/{second}"
    )
    # In one go of the page's thread, as by a reader who is quicker than the machine draws.
    for key in "fcensus":
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    until(page, "document.activeElement.value === 'census'")
    assert page.url.endswith(second)
    assert len(held) == 1
    held[0].continue_()
    page.wait_for_selector("mark.found.here")


# At two widths, dark and light


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (768, "dark"), (1280, "dark"), (768, "light")])
def test_no_page_breaks_a_rule_of_access_or_is_wider_than_the_window(
    browser: Any, served: Served, width: int, scheme: str
) -> None:
    watched = opened(browser, served, width=width, scheme=scheme)
    (id, *_) = ids(watched, "a", "outcome:malformed")
    episode = f"/r/a/e/{id}"
    paths = ["/", "/r/a", f"/r/a/episodes?id={id}", episode, *(f"{episode}?tab={tab}" for tab in ("tokens", "reward"))]
    paths += [f"{episode}?tab=timing", "/r/a/g/0/g1", "/r/a/tools", "/r/a/rewards", "/r/a/files", "/compare?a=a&b=b"]
    paths += ["/w", "/jobs"]
    broken = []
    for path in paths:
        page = watched.go(path)
        page.wait_for_load_state("networkidle" if path in ("/", "/w", "/jobs") else "load")
        page.wait_for_selector(":is(.panel, .grid, .card, table, .stack, .editor, .empty) >> visible=true")
        broken += [f"{path}: {one}" for one in faults_of(page)]
    page.context.close()
    assert broken == []
    assert watched.wrong == []


# Texts that mean harm


def test_hostile_texts_change_nothing(watched: Watched) -> None:
    for id in ids(watched, "hostile", "") + ids(watched, "hostile", "errors>0"):
        page = watched.go(f"/r/hostile/e/{id}", ".card.turn")
        for tab in ("reward", "raw", "conversation"):
            page.click(f"#tab-{tab}")
            page.wait_for_selector(f"#tab-{tab}[aria-selected=true]")
        assert page.evaluate("document.title").endswith("rlenv")
        assert (
            page.evaluate("document.querySelectorAll('#app script, #app style, #app [onerror], #app [onload]').length")
            == 0
        )
        assert page.evaluate("getComputedStyle(document.querySelector('main')).display") != "none"
    page = watched.go("/r/hostile/episodes?sort=id", ".grid .hidden-char")
    assert "RLO" in page.locator(".hidden-char").all_inner_texts()
    watched.go("/r/hostile", ".panel")


def test_a_text_of_a_megabyte_is_cut_and_shown_whole_on_demand(watched: Watched) -> None:
    (id, *_) = ids(watched, "hostile", "title:xxxx*")
    page = watched.go(f"/r/hostile/e/{id}", ".card.turn")
    page.click(".card.user .more")
    until(page, "document.querySelector('.card.user .text').textContent.length > 1000000")


def test_only_the_printed_link_lets_in(browser: Any, served: Served) -> None:
    context = browser.new_context()
    answer = context.new_page().goto(served.url + "/")
    assert answer.status == 401
    context.close()


def test_a_viewer_that_only_reads_offers_no_workbench(browser: Any, root: Path) -> None:
    server = Served(root, read_only=True)
    watched = opened(browser, server)
    assert "Workbench" not in text(watched.page, "header.topbar")
    watched.page.context.close()
    server.close()


def test_what_was_asked_of_models_stands_in_lists_overview_and_episode(watched: Watched, root: Path) -> None:
    page = watched.go("/", "table.runs")
    asked = len(open_run(root / "a").table)
    assert f"{1_050 * asked:,}" in page.inner_text("table.runs")
    page = watched.go("/r/a", "[aria-label='Asked of models']")
    cells = page.locator("[aria-label='Asked of models'] tbody td").all_inner_texts()
    assert cells[:6] == ["judge clear", "judge-small", *(f"{n * asked:,}" for n in (2, 1, 1_000, 50))]
    assert cells[7] == f"{asked * (1_000 * 2 + 50 * 100) / 1e6:.3f}"
    id = open_run(root / "a").table["id"][0].as_py()
    page = watched.go(f"/r/a/e/{id}?tab=timing", "[aria-label='Asked of models']")
    assert "models: 2 requests (1 failed), 1,000 prompt and 50 completion tokens" in page.inner_text("main")
