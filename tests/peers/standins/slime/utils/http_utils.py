"""The router of slime: `POST /generate`, whose answer a function gives here."""

from __future__ import annotations

from typing import Any

answer: Any = None


async def post(url: str, payload: dict[str, Any], headers: Any = None) -> dict[str, Any]:
    assert url == "http://127.0.0.1:3000/generate"
    return await answer(payload)
