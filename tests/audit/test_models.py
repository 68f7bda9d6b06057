"""How much an audit says beforehand that it asks of models."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.audit.judge_attacks import asked_of_models
from rlenv.audit.run import audit
from rlenv.testing.endpoint import FakeEndpoint
from tests.support.planted import capital, plant, rows_of
from tests.support.swayed import material

NOTE = "def note(text: str) -> str:\n    '''Notes.'''\n    return 'noted'\n"
TOOL = "tools: {note: {kind: python, function: 'tools.py:note', mutates: true}}\n"
JUDGE = "{kind: judge, endpoint: writer, prompt: 'Wanted: {{ task.answer }}. Said: {{ %s }}'}"


@pytest.mark.slow
@pytest.mark.parametrize("has_tool", [False, True])
@pytest.mark.parametrize("shown", ["answer", "message"])
def test_an_audit_asks_judges_no_more_than_it_says_beforehand(tmp_path: Path, has_tool: bool, shown: str) -> None:
    def answer(body: Mapping[str, Any]) -> str:
        wanted = re.search(r"Wanted: (\w+)", body["messages"][-1]["content"])
        is_right = wanted is not None and wanted[1] in material(body)
        return json.dumps({"reasoning": "r", "score": 5 if is_right else 1})

    async def main() -> tuple[int, int]:
        async with FakeEndpoint(answer) as server:
            endpoint = f'endpoints: {{writer: {{base_url: "{server.base_url}", model: m, retries: 0}}}}\n'
            path = plant(
                tmp_path,
                {"train": rows_of(6, capital)},
                rule=JUDGE % shown,
                more=endpoint + TOOL * has_tool,
                tools=NOTE,
                call="{note: {text: it}}" if has_tool else "",
            )
            async with rlenv.load(path) as environment:
                most = asked_of_models(environment, splits=["train"], tasks=4, played=None, judged=2)
                await audit(environment, tasks=4, judged=2)
                return len(server.requests), most

    asked, most = asyncio.run(main())
    assert 0 < asked <= most
