"""Messages behind their headers, as they come out of a pipe."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from rlenv.checks.editor.wire import MAX_BYTES, Unreadable, frame, messages


def read(content: bytes) -> list:
    stream = io.BytesIO(content)
    return list(messages(stream.readline, stream.read))


def test_a_message_comes_back_as_it_was_sent() -> None:
    sent: list[dict] = [{"id": 1, "text": "ä😀"}, {"text": "\ud800"}, {}]
    assert read(b"".join(map(frame, sent))) == sent


def test_other_headers_are_passed_over() -> None:
    typed = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\ncontent-length: 2\r\n\r\n{}"
    assert read(typed) == [{}]


def test_what_is_cut_off_ends_the_stream() -> None:
    whole = frame({"id": 1})
    assert read(whole + frame({"id": 2})[:-3]) == [{"id": 1}]
    assert read(whole + b"Content-Len") == [{"id": 1}]


def test_what_is_too_long_is_passed_over() -> None:
    (long, short) = read(b"Content-Length: %d\r\n\r\n%s" % (MAX_BYTES + 1, b"x" * (MAX_BYTES + 1)) + frame({"id": 1}))
    assert isinstance(long, Unreadable)
    assert short == {"id": 1}


def test_a_number_without_end_and_a_depth_without_end_are_told() -> None:
    deep = b"[" * 100_000
    found = read(b"Content-Length: %d\r\n\r\n%s" % (len(deep), deep) + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n")
    assert all(isinstance(one, Unreadable) for one in found)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(content: bytes) -> None:
    assert all(isinstance(one, (dict, Unreadable)) for one in read(content))
