"""The front end's files, and what is no path of the viewer."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient

from rlenv.hosts.workers import address_of, listen, serve
from rlenv.web.app import application
from rlenv.web.guard import Guard
from tests.support.runs import kept, played, raw, visited

Client = TestClient[Any, Any]
SOURCES = Path(__file__).parents[2] / "web" / "src"
HTML_WRITERS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "dangerouslySetInnerHTML")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    dist = tmp_path / "dist"
    (dist / "assets").mkdir(parents=True)
    (dist / "index.html").write_text('<meta name="rlenv-nonce" content="__NONCE__">')
    (dist / "app.js").write_text("let a = 1")
    (dist / "assets" / "app.css").write_text("a {}")
    (tmp_path / "secret.txt").write_text("secret")
    kept(tmp_path / "run", [played()])
    return dist


def got(built: Path, path: str) -> tuple[int, Any, str]:
    async def work(client: Client, guard: Guard) -> tuple[int, Any, str]:
        answer = await client.get(path)
        return answer.status, answer.headers, await answer.text()

    return visited(work, built.parent / "run", dist=built)


def test_every_page_has_a_nonce_of_its_own_which_the_policy_names(built: Path) -> None:
    seen = set()
    for path in ("/", "/r/run/e/x", "/compare?a=1", "/w"):
        status, headers, text = got(built, path)
        assert status == 200
        nonce = re.search(r'content="([^"]+)"', text)
        assert nonce is not None
        assert f"'nonce-{nonce[1]}'" in headers["Content-Security-Policy"]
        seen.add(nonce[1])
    assert len(seen) == 4


def test_files_of_the_front_end_have_their_types(built: Path) -> None:
    assert got(built, "/app.js")[1]["Content-Type"] == "text/javascript"
    assert got(built, "/assets/app.css")[1]["Content-Type"] == "text/css"


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/assets/../../secret.txt", "//secret.txt"]
)
def test_no_path_leads_out_of_the_front_end(built: Path, path: str) -> None:
    async def work(client: Client, guard: Guard) -> str:
        return await raw(client, path)

    assert "rlenv-nonce" in visited(work, built.parent / "run", dist=built)


def test_what_the_api_does_not_have_is_told_as_json(built: Path) -> None:
    status, headers, text = got(built, "/api/nothing")
    assert (status, headers["Content-Type"]) == (404, "application/json; charset=utf-8")
    assert "there is no /api/nothing" in text


def test_without_a_built_front_end_the_page_says_so(built: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    async def work(client: Client, guard: Guard) -> str:
        return await (await client.get("/")).text()

    assert "not built" in visited(work, tmp_path / "run", dist=tmp_path / "empty")


@pytest.mark.parametrize("word", HTML_WRITERS)
def test_no_source_hands_a_text_to_a_parser_of_html(word: str) -> None:
    """What a policy or a tool wrote would be code there."""
    files = [path for path in sorted(SOURCES.rglob("*")) if path.suffix in (".ts", ".tsx", ".js", ".html")]
    assert len(files) > 10
    found = [
        f"{path.relative_to(SOURCES)}:{number}: {line.strip()[:80]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(rf"\b{word}\b", line)
    ]
    assert found == []


def test_no_log_names_the_token(built: Path, caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard()
    app = application([built.parent / "run"], guard=guard, dist=built)

    async def work() -> list[int]:
        stopped, ready, bound = asyncio.Event(), asyncio.Event(), listen("127.0.0.1", 0)
        server = asyncio.create_task(serve(app, bound, stopped=stopped, on_ready=ready.set))
        await ready.wait()
        codes = []
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            for path in ("/r/run", "/api/runs/none", "/api/config", "/blob/x"):
                for method in ("GET", "HEAD", "PUT"):
                    async with client.request(method, f"{address_of(bound)}{path}?token={guard.token}") as answer:
                        codes.append(answer.status)
        stopped.set()
        await server
        return codes

    with caplog.at_level(logging.DEBUG):
        codes = asyncio.run(work())
    assert {200, 403, 404} <= set(codes)
    assert guard.token not in caplog.text
