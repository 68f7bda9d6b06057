"""A secret is found however it is written, before anything is cut, and is never read as anything but a text."""

from __future__ import annotations

import asyncio
import base64
import html
import io
import json
import logging
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv import secrets
from rlenv.secrets import redact, redact_value, redact_within, resolve, set_aside
from rlenv.tools.arguments import compile_filling

WORD, LINES = "clé-secrète 日本😀 9", "first-line-abc\nsecond-line-def\n\n    \n    indented"
KEY = "pa/ss&Word\"rd<x>+9='\\s"
PLAIN = "tok-3c9d8e7f6a5b4c3d2e1f"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_TEST_ODD", KEY)
    monkeypatch.setenv("RLENV_TEST_PLAIN", PLAIN)
    resolve("${env:RLENV_TEST_ODD} ${env:RLENV_TEST_PLAIN}")


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04X}" for char in text)


@pytest.mark.parametrize(
    "spelling",
    [
        lambda s: s,
        json.dumps,
        lambda s: json.dumps(json.dumps(s)),
        lambda s: json.dumps(s).replace("/", "\\/"),
        lambda s: json.dumps(s).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003E"),
        escaped,
        lambda s: escaped(s).lower(),
        html.escape,
        lambda s: html.escape(html.escape(s)),
        lambda s: "".join(f"&#{ord(char)};" for char in s),
        lambda s: "".join(f"&#x{ord(char):X};" for char in s),
        lambda s: quote(s, safe=""),
        lambda s: quote(s, safe="").lower() if s == PLAIN else quote(s, safe="").replace("%2F", "%2f"),
        quote,
        quote_plus,
        lambda s: quote(quote(s, safe=""), safe=""),
        lambda s: repr(s.encode()),
        lambda s: s.encode().hex(),
        lambda s: s.encode().hex().upper(),
        lambda s: s.encode().hex(" "),
        lambda s: s.encode().hex(":").upper(),
        lambda s: s.encode().hex(" ", -2),
        lambda s: "0x" + s.encode().hex("x").replace("x", ", 0x"),
        lambda s: s.encode().hex()[:10] + "\n" + s.encode().hex()[10:],
        lambda s: "".join(f"\\{one:03o}" for one in s.encode()),
        lambda s: "'" + s.replace("'", "''") + "'",
        lambda s: f"> Authorization: {s}\r\n",
        lambda s: re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", s),  # Markdown
        lambda s: re.sub(r"([_.-])", r"\\\1", s),
        lambda s: quote(json.dumps(s), safe=""),
        lambda s: quote(html.escape(s), safe=""),
        lambda s: html.escape(json.dumps(s)),
        lambda s: json.dumps(html.escape(s)).replace("&", "\\u0026"),  # as Go writes it
        lambda s: "  ".join(s.encode()[at : at + 8].hex(" ") for at in range(0, len(s), 8)),  # hexdump -C
        lambda s: f"{s[:1].encode().hex()} {s[1:].encode().hex(' ', -2)}",  # xxd, at an odd offset
        lambda s: s.encode().hex("-", 4),
    ],
)
@pytest.mark.parametrize("secret", [KEY, PLAIN])
def test_every_spelling_is_found_whole(spelling: object, secret: str) -> None:
    assert callable(spelling)
    found = redact(f"before {spelling(secret)} after")
    assert "${env:RLENV_TEST_" in found
    left = found.replace("${env:RLENV_TEST_ODD}", "").replace("${env:RLENV_TEST_PLAIN}", "")
    assert re.fullmatch(r"before (>\sAuthorization: |0x)?(&quot;|\\u0026quot;|%5C|%22|[b'\"\\])*\s* after", left)


@pytest.mark.parametrize(
    "spelling",
    [
        lambda s: s,
        repr,
        ascii,
        json.dumps,
        lambda s: repr(s.encode()),
        lambda s: json.dumps(repr(s.encode())),
        lambda s: quote(s, safe=""),
        lambda s: "".join(chr(one) if 31 < one < 127 else f"\\{one:03o}" for one in s.encode()).replace("\\012", "\n"),
        lambda s: s.encode().decode("latin-1"),
        lambda s: s.replace("\n", "\r\n"),
        lambda s: quote(s.replace("\n", "\r\n"), safe=""),
        lambda s: s.replace("\n", "\n\t    "),
        quote_plus,
        lambda s: s.replace("\n", " "),
    ],
)
@pytest.mark.parametrize("secret", [WORD, LINES])
def test_what_is_not_ascii_or_has_lines_is_found_as_bytes_and_as_lines(
    monkeypatch: pytest.MonkeyPatch, spelling: Callable[[str], str], secret: str
) -> None:
    monkeypatch.setenv("RLENV_TEST_WORDS", secret)
    resolve("${env:RLENV_TEST_WORDS}")
    left = redact(f"before {spelling(secret)} after").replace("${env:RLENV_TEST_WORDS}", "")
    assert re.fullmatch(r"before [b'\"\\]* after", left)
    assert redact_within(f"{spelling(secret)} after", 26) == redact(f"{spelling(secret)} after")[:26]


def test_line_breaks_without_end_are_read_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_TEST_WORDS", LINES)
    resolve("${env:RLENV_TEST_WORDS}")
    breaks = ("\n", "\r\n", "\\n", "\\r\\x0a", "%0a", " ", "\\" * 9 + "n")  # in one of two ways each, it would not end
    text = "".join("first-line-abc" + one * 4_000 for one in breaks)
    assert redact(text) == text


def test_lines_of_spaces_are_one_break(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "{" + "\n " * 12 + "abcdefgh"
    monkeypatch.setenv("RLENV_TEST_WORDS", secret)
    resolve("${env:RLENV_TEST_WORDS}")
    text = "{\n" + " \n" * 4_000 + "abcdefg"  # each a break of its own, it would not end
    assert redact(f"{text}abcdefgh{text}") == f"{text}abcdefgh{text}"
    for spelling in (str, json.dumps, quote, quote_plus):
        assert "abcdefgh" not in redact(spelling(secret))


@pytest.mark.parametrize("before", ["", "u", "us", "user:", "Bearer "])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes])
@pytest.mark.parametrize("secret", [KEY, PLAIN])
def test_base64_is_found_at_every_offset_but_for_its_ends(before: str, encode: object, secret: str) -> None:
    assert callable(encode)
    coded = encode((before * 9 + secret + "!").encode()).decode()
    found = redact(coded)
    assert "${env:RLENV_TEST_" in found
    assert len(found.partition("${env:")[2].partition("}")[2].strip()) <= 8


@pytest.mark.parametrize(
    "spelling",
    [
        lambda s: quote(s, safe=""),
        lambda s: quote(quote(s, safe=""), safe=""),
        lambda s: s.replace("/", "\\/"),
        lambda s: s.replace("/", "\\u002f").replace("+", "\\u002B").replace("=", "\\u003D"),
        lambda s: s.replace("/", "&#47;").replace("+", "&#x2B;").replace("=", "&#61;"),
    ],
)
def test_base64_is_found_where_its_signs_are_escaped(
    monkeypatch: pytest.MonkeyPatch, spelling: Callable[[str], str]
) -> None:
    monkeypatch.setenv("RLENV_TEST_WORDS", "<<???>>>~~~\x7f~~>>??><<~")
    resolve("${env:RLENV_TEST_WORDS}")
    coded = base64.b64encode(os.environ["RLENV_TEST_WORDS"].encode()).decode()
    assert {"/", "+", "="} <= {*coded}
    assert redact(spelling(coded)).startswith("${env:RLENV_TEST_WORDS}")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\\n", "\\r\\n", "\\\\n"])
@pytest.mark.parametrize("width", [60, 64, 76, 77])
@pytest.mark.parametrize("length", [150, 524, 1_700])
def test_base64_of_a_long_secret_is_found_in_lines(
    monkeypatch: pytest.MonkeyPatch, length: int, width: int, end: str
) -> None:
    monkeypatch.setenv("RLENV_TEST_WORDS", secret := random.Random(length).randbytes(length).hex()[:length])
    resolve("${env:RLENV_TEST_WORDS}")
    for before in ("", "u", "user:"):
        coded = base64.b64encode((before + secret).encode()).decode()
        found = redact(end.join(coded[at : at + width] for at in range(0, len(coded), width)))
        assert "${env:RLENV_TEST_WORDS}" in found
        assert len(found) < 40


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60), st.integers(1, 200), st.booleans())
def test_no_cut_leaves_a_part_of_a_secret(before: str, after: str, limit: int, tail: bool) -> None:
    text = before * 30 + PLAIN + after * 30
    found = redact_within(text, limit, tail=tail)
    assert len(found) <= limit
    for size in range(8, len(PLAIN)):
        part = PLAIN[-size:] if tail else PLAIN[:size]
        assert part not in found or part in before * 30 or part in after * 30


HOSTILE = {
    "escapes": ("%73", "\\u0073", "\\x73", "\\163", "&#115;", "&#x73;", "a%73", "%25", "%252525", "&amp;", "&lt;"),
    "halves of escapes": ("\\", "%", "&", "\\u", "\\\\x", "&#0000000", "\\" * 8 + "u", "\\" * 9 + "n", "%5c", "\\r"),
    "one character": (" ", "\n", "\n ", "t", "0", "+", "/", "é", "\0", "\ud83d"),
    "the beginning": (PLAIN[:-1], PLAIN[:8], escaped(PLAIN[:-1]), quote(KEY[:-1], safe=""), html.escape(KEY[:-1])),
    "its bytes": ("73", "73 ", PLAIN[:-1].encode().hex(), PLAIN[:-1].encode().hex("\n"), PLAIN[:-1].encode().hex(" ")),
    "its base64": (base64.b64encode(PLAIN[:-3].encode()).decode(), base64.encodebytes(PLAIN[:-3].encode()).decode()),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_text_takes_more_than_linear_time(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for number, secret in enumerate((WORD, LINES, "a" * 24, "\\" * 16 + "x", "ab" * 40, "%25" * 9 + "x")):
        monkeypatch.setenv(f"RLENV_TEST_{number}", secret)
        resolve(f"${{env:RLENV_TEST_{number}}}")
    # All is looked for by an engine that never goes back, and in a number of steps that grows with the values alone.
    assert {type(one).__module__ for one in secrets._known.patterns} == {"re2"}
    assert sum(one.programsize for one in secrets._known.patterns) < 350 * sum(map(len, secrets._known.names))
    for unit in HOSTILE[kind]:
        text = unit * (1_000_000 // len(unit))
        assert redact(text) is text


def test_many_secrets_are_looked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [random.Random(number).randbytes(20).hex() for number in range(12)]
    for number, secret in enumerate(values):
        monkeypatch.setenv(f"RLENV_TEST_{number}", secret)
        resolve(f"${{env:RLENV_TEST_{number}}}")
    assert len(secrets._known.patterns) <= 2
    assert redact(" ".join(values)) == " ".join(f"${{env:RLENV_TEST_{number}}}" for number in range(12))


@pytest.mark.parametrize("char", ["/", "😀"])
@pytest.mark.parametrize("spelling", [str, lambda s: quote(s, safe=""), lambda s: s.encode().hex()])
def test_a_value_as_long_as_a_file_is_found_in_pieces(
    monkeypatch: pytest.MonkeyPatch, spelling: Callable[[str], str], char: str
) -> None:
    monkeypatch.setenv("RLENV_TEST_WORDS", secret := f"{random.Random(4).randbytes(1_500).hex()}-{char * 500}")
    resolve("${env:RLENV_TEST_WORDS}")
    left = redact(f"<{spelling(secret)}>").replace("${env:RLENV_TEST_WORDS}", "")
    assert left == "<>"


def test_a_text_with_half_of_a_surrogate_pair_is_looked_through() -> None:
    assert redact(f"\ud83d{PLAIN}\ude00") == "\ud83d${env:RLENV_TEST_PLAIN}\ude00"


def test_texts_of_a_value_are_looked_through_each_for_itself() -> None:
    halves = {"a": [PLAIN[:9], PLAIN[9:]], PLAIN[:5]: PLAIN[5:], "\0": ["\0\0", f"\0{PLAIN[:4]}\0{PLAIN[4:]}"]}
    assert redact_value(halves) is halves
    found = redact_value([f"\0a{PLAIN}\0", halves, ("", 3, {(PLAIN, "\0"): None})])
    assert found == ["\0a${env:RLENV_TEST_PLAIN}\0", halves, ("", 3, {("${env:RLENV_TEST_PLAIN}", "\0"): None})]


@pytest.mark.parametrize("depth", [149, 150, 151, 900])
def test_what_is_nested_without_end_is_no_error(depth: int) -> None:
    deep: object = {(PLAIN, ("a",)): PLAIN}
    for _ in range(depth):
        deep = [deep]
    assert PLAIN not in repr(redact_value(deep))


def test_no_record_of_any_logger_holds_a_secret() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    log = logging.getLogger("some.library.of.another")
    log.addHandler(handler)
    log.propagate = False
    try:
        log.error("GET %s", f"https://host/?key={quote(PLAIN)}")
        try:
            raise ValueError(PLAIN)
        except ValueError:
            log.exception("failed")
    finally:
        log.removeHandler(handler)
    assert PLAIN not in stream.getvalue()
    assert "${env:RLENV_TEST_PLAIN}" in stream.getvalue()


def test_a_secret_is_never_read_as_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("abc{{ 7 * 7 }}def", "{% for x in range(9) %}a{% endfor %}", "{{ nothing", "{{ args.x }}-longer"):
        monkeypatch.setenv("RLENV_TEST_BRACES", value)
        fill = compile_filling(
            {"A": "Bearer ${env:RLENV_TEST_BRACES} {{ args.x }}", "B": "${env:RLENV_TEST_BRACES}"},
            key="headers",
            parameters={"properties": {"x": {}}},
            vars={},
        )
        filled = fill(args={"x": "${env:RLENV_TEST_PLAIN}"}, task={})
        assert filled == {"A": f"Bearer {value} ${{env:RLENV_TEST_PLAIN}}", "B": value}


def test_marks_of_secrets_differ_each_time() -> None:
    (first, put), (second, _) = set_aside("${env:RLENV_TEST_PLAIN}"), set_aside("${env:RLENV_TEST_PLAIN}")
    assert first != second
    assert put(first) == PLAIN
    assert put(second) == second


def test_an_answer_that_is_cut_within_a_secret_shows_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", secret := "c0ffee-3c9d8e7f6a5b4c3d2e1f-and-sixteen")  # far longer than what is shown for it
    from rlenv.language.kinds import CompileContext
    from rlenv.testing.tools import call, context, kept
    from rlenv.tools.http import KIND, HttpSpec

    async def echo(request: web.Request) -> web.Response:
        pad = int(request.query["pad"])
        status = int(request.query.get("status", "200"))
        return web.Response(text="A" * pad + request.headers["Authorization"] * 99, status=status)

    async def main() -> list[str]:
        app = web.Application()
        app.router.add_get("/", echo)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = "http://{}:{}/".format(*runner.addresses[0][:2])
            spec = HttpSpec.model_validate(
                {
                    "kind": "http",
                    "url": url,
                    "max_bytes": 1_000,
                    "headers": {"Authorization": "${env:K}"},
                    "query": {"pad": "{{ args.pad }}", "status": "{{ args.status }}"},
                    "parameters": {"pad": "integer", "status": "integer"},
                }
            )
            (tool,) = KIND.factory("echo", spec, CompileContext(base=Path()))
            async with kept(context) as make:
                return [
                    (await call(tool, {"pad": pad, "status": status}, within=make())).text
                    for status in (200, 403)
                    for pad in (*range(600, 660, 3), *range(1_000 - len(secret) - 2, 1_002, 3))
                ]
        finally:
            await runner.cleanup()

    for text in asyncio.run(main()):
        assert secret[:8] not in text
