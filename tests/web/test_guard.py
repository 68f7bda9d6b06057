"""Who may ask the viewer for what."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from rlenv.web.app import application
from rlenv.web.guard import Guard
from tests.support.runs import kept, played, raw, visited

Client = TestClient[Any, Any]
EVERY = ["/", "/api/config", "/api/runs", "/api/runs/run", f"/blob/run/{'0' * 64}", "/r/run", "/app.js"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    kept(folder, [played()])
    return folder


def answer(run: Path, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, **options: Any) -> Any:
    """Status, headers and text of one request; `{own}` in a header stands for the server's own address."""

    async def work(client: Client, guard: Guard) -> tuple[int, Any, str]:
        own = f"{client.host}:{client.port}"
        sent = {name: value.replace("{own}", own) for name, value in (headers or {}).items()}
        got: ClientResponse = await client.request(method, path, headers=sent, allow_redirects=False)
        return got.status, got.headers, await got.text()

    return visited(work, run, **options)


@pytest.mark.parametrize("path", EVERY)
def test_nothing_is_answered_without_the_cookie(run: Path, path: str) -> None:
    status, _, text = answer(run, path, enter=False)
    assert status == 401
    assert "rlenv view" in text


@pytest.mark.parametrize("path", EVERY)
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "[::2]:1", "0x7f.1"])
def test_a_foreign_host_is_refused_even_with_the_cookie(run: Path, path: str, host: str) -> None:
    status, _, text = answer(run, path, headers={"Host": host})
    assert status == 403
    assert "--allow-host" in text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:5", "[::1]:5", "proxy.example"])
def test_names_of_loopback_and_allowed_ones_are_taken(run: Path, host: str) -> None:
    status, *_ = answer(run, "/api/config", headers={"Host": host}, hosts=["proxy.example"])
    assert status == 200


@pytest.mark.parametrize("host", ["127.0.0.1:80@evil.example", "[::1].evil.example", "[::1]:5:5", "localhost:x", ""])
def test_a_host_is_a_name_and_a_port_and_nothing_beside(run: Path, host: str) -> None:
    assert answer(run, "/api/config", headers={"Host": host})[0] == 403


def test_a_foreign_host_gets_no_cookie_for_a_token(run: Path) -> None:
    async def work(client: Client, guard: Guard) -> Any:
        return await client.get(f"/?token={guard.token}", headers={"Host": "evil.example"}, allow_redirects=False)

    got = visited(work, run, enter=False)
    assert got.status == 403
    assert "Set-Cookie" not in got.headers


def test_a_wrong_token_is_refused(run: Path) -> None:
    status, headers, _ = answer(run, "/?token=wrong", enter=False)
    assert status == 403
    assert "Set-Cookie" not in headers


def test_the_printed_link_gives_a_strict_cookie_and_leads_on_without_the_token(run: Path) -> None:
    async def work(client: Client, guard: Guard) -> Any:
        return await client.get(f"/r/run?token={guard.token}&q=a%20b", allow_redirects=False)

    got = visited(work, run, enter=False)
    assert (got.status, got.headers["Location"]) == (303, "/r/run?q=a%20b")
    cookie = got.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_the_way_in_leads_to_no_other_host(run: Path) -> None:
    async def work(client: Client, guard: Guard) -> list[str]:
        return [await raw(client, f"{path}evil.example/?token={guard.token}") for path in ("//", "/\\", "/\\/")]

    for answer in visited(work, run, enter=False):
        assert "\r\nLocation: /evil.example/\r\n" in answer


def test_a_cookie_of_bytes_that_are_no_text_is_refused(run: Path) -> None:
    async def work(client: Client, guard: Guard) -> bytes:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        head = f"GET /api/runs HTTP/1.1\r\nHost: {client.host}\r\nConnection: close\r\nCookie: "
        name = await entered(client, guard)
        writer.write(f"{head}{name}=".encode() + b"\xff\xfe\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    assert visited(work, run, enter=False).startswith(b"HTTP/1.1 401 ")


async def entered(client: Client, guard: Guard) -> str:
    """The name of the cookie that the printed link gives."""
    answer = await client.get(f"/?token={guard.token}", allow_redirects=False)
    (name,) = answer.cookies
    return name


def test_two_viewers_of_one_machine_do_not_log_each_other_out(run: Path) -> None:
    async def work(client: Client, guard: Guard) -> None:
        other_guard = Guard()
        jar = client.session.cookie_jar  # as a browser's: one for all ports of a host
        server = TestServer(application([run], guard=other_guard))
        async with TestClient(server, cookie_jar=jar) as other:
            assert await entered(client, guard) != await entered(other, other_guard)
            for _ in range(2):
                assert (await client.get("/api/config")).status == 200
                assert (await other.get("/api/config")).status == 200

    visited(work, run, enter=False)


@pytest.mark.parametrize(
    "query", ["token={0}", "a=1&token={0}", "%74oken={0}&a=1", "token={0}&token={0}", "tok%65n={0}"]
)
def test_the_token_is_in_no_address_that_goes_on(run: Path, query: str) -> None:
    async def work(client: Client, guard: Guard) -> tuple[str, str]:
        return guard.token, await raw(client, f"/r/run?{query.format(guard.token)}")

    token, answer = visited(work, run, enter=False)
    assert answer.startswith("HTTP/1.1 303 ")
    assert token not in answer
    assert "\r\nReferrer-Policy: no-referrer\r\n" in answer
    assert "\r\nCache-Control: no-store\r\n" in answer


def test_a_ticket_opens_once(run: Path) -> None:
    async def work(client: Client, guard: Guard) -> list[int]:
        ticket = guard.ticket()
        return [(await client.get(f"/?token={ticket}", allow_redirects=False)).status for _ in range(2)]

    assert visited(work, run, enter=False) == [303, 403]


MEANT = {"Origin": "http://{own}", "X-Rlenv": "1"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (MEANT, 200),
        ({"X-Rlenv": "1"}, 403),
        ({"Origin": "http://{own}"}, 403),
        ({**MEANT, "Origin": "http://evil.example"}, 403),
        ({**MEANT, "Origin": "https://{own}"}, 403),
        ({**MEANT, "Origin": "null"}, 403),
        ({**MEANT, "Origin": "http://127.0.0.1:1"}, 403),
        ({**MEANT, "Host": "evil.example", "Origin": "http://evil.example"}, 403),
    ],
)
def test_a_change_needs_the_viewers_own_page(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    kept(tmp_path / "run", [played()])
    assert answer(tmp_path / "run", "/api/runs/run/stop", method="POST", headers=headers)[0] == status
    assert (tmp_path / "run" / "stop").exists() == (status == 200)


def test_a_read_only_viewer_changes_nothing(tmp_path: Path) -> None:
    kept(tmp_path / "run", [played()])
    got = answer(tmp_path / "run", "/api/runs/run/stop", method="POST", headers=MEANT, read_only=True)
    assert got[0] in (404, 405)
    assert not (tmp_path / "run" / "stop").exists()


@pytest.mark.parametrize("path", [*EVERY, "/api/nothing", "/api/runs/run/events"])
def test_every_answer_has_the_policy(run: Path, path: str) -> None:
    async def work(client: Client, guard: Guard) -> Any:
        async with client.get(path) as got:
            return got.headers  # an endless stream is not read

    headers = visited(work, run)
    policy = headers["Content-Security-Policy"]
    for rule in (
        "default-src 'none'", "script-src 'self'", "img-src 'self'", "connect-src 'self'", "frame-ancestors 'none'",
        "base-uri 'none'", "form-action 'none'",
    ):  # fmt: skip
        assert rule in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Frame-Options"] == "DENY"
