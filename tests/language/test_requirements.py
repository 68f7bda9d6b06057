"""What an entry needs of the machine is named, and looked at without changing anything."""

from __future__ import annotations

import asyncio

import pytest

from rlenv.language.requirements import address, package, program, variable


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://host", "server http://host:80"),
        ("https://host/v1", "server https://host:443"),
        ("https://host:8000/v1", "server https://host:8000"),
        ("http://host:443", "server http://host:443"),
    ],
)
def test_a_server_is_looked_for_at_its_port_or_its_schemes(url: str, name: str) -> None:
    assert address(url).what == name


def test_a_server_is_there_where_it_takes_connections() -> None:
    async def main() -> tuple[str, str]:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            there = await address(url).probe()
        return there, await address(url).probe()

    there, gone = asyncio.run(main())
    assert there == ""
    assert gone.startswith("cannot be reached: ")


def test_what_is_not_there_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_TEST_SET", "1")
    monkeypatch.setenv("RLENV_TEST_EMPTY", "")

    async def main() -> list[str]:
        asked = [variable("RLENV_TEST_SET"), variable("RLENV_TEST_EMPTY"), variable("RLENV_TEST_NONE")]
        asked += [package("json", extra="x"), package("no_such_module", extra="x"), program("sh")]
        return [await one.probe() for one in asked]

    assert asyncio.run(main()) == [
        "",
        "is not set; export RLENV_TEST_EMPTY=…",
        "is not set; export RLENV_TEST_NONE=…",
        "",
        "is not installed; pip install 'rlenv[x]'",
        "",
    ]
