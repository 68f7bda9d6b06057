"""What is sent as strict JSON."""

from __future__ import annotations

import math

import orjson

from rlenv._base.jsonable import sendable


def test_what_is_sendable_is_taken_by_a_strict_writer() -> None:
    held = {"\ud800": ["a\udfff", 2**70, -(2**63), math.nan, {1: b"x"}], "ok": True}
    read = orjson.loads(orjson.dumps(sendable(held)))
    assert read == {"\ufffd": ["a\ufffd", str(2**70), -(2**63), None, {"1": "b'x'"}], "ok": True}
