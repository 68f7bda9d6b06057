"""veRL's own tools as tools of a spec: called as its tool loop calls them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rlenv

pytest.importorskip("verl.tools.base_tool")
SPEC = """
rlenv: 1
name: theirs
tasks: {train: {rows: [{answer: "9", extra_info: {tools_kwargs: {square: {create_kwargs: {add: 1}}}}}]}}
prompt: {user: Square.}
tools:
  theirs: {kind: verl, config: tool_config.yaml}
  functions: {kind: verl, tools: their_functions.py}
answer: {from: tag}
rewards: {correct: {kind: rule, rule: exact_match}}
"""
CONFIG = """
tools:
  - class_name: their_tools.Square
    config: {type: native, most: 10}
    tool_schema:
      type: function
      function:
        name: square
        description: Squares a number.
        parameters: {type: object, properties: {n: {type: integer, description: a number}}, required: [n]}
"""
TOOLS = """
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

SEEN = []

class Square(BaseTool):
    async def create(self, instance_id=None, **kwargs):
        SEEN.append(("create", kwargs["create_kwargs"]))
        return "one", ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        fields = kwargs["agent_data"].extra_fields
        fields["calls"] = fields.get("calls", 0) + 1
        if parameters["n"] > self.config["most"]:
            raise ValueError("a secret of the author's")
        return ToolResponse(text=f"{parameters['n'] ** 2} ({fields['calls']})"), 0.5, {"calls": fields["calls"]}

    async def release(self, instance_id, **kwargs):
        SEEN.append(("release", instance_id))


def seen():
    return SEEN
"""
FUNCTIONS = """
from verl.tools.function_tool import function_tool

@function_tool("their_double")
def double(n: int) -> str:
    '''Doubles a number.

    Args:
        n: a number.
    '''
    return str(2 * n)
"""


def written(folder: Path) -> Path:
    files = {"spec.yaml": SPEC, "tool_config.yaml": CONFIG, "their_tools.py": TOOLS, "their_functions.py": FUNCTIONS}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "spec.yaml"


def test_a_class_is_created_executed_and_released_for_each_call_and_keeps_what_is_the_episodes(tmp_path: Path) -> None:
    async def main() -> list[Any]:
        async with rlenv.load(written(tmp_path)) as environment:
            assert [one["function"]["name"] for one in environment.tool_schemas] == ["square", "their_double"]
            told: list[Any] = []
            for _ in range(2):
                async with rlenv.ToolSession(environment) as session:
                    calls = [
                        ("square", {"n": 3}),
                        ("square", {"n": 4}),
                        ("square", {"n": 11}),
                        ("their_double", {"n": 2}),
                    ]
                    told.append([await session.call(*call) for call in calls])
            return told

    for results in asyncio.run(main()):
        assert [one.text for one in results[:2]] == ["9 (1)", "16 (2)"]
        assert results[0].value == {"reward": 0.5, "metrics": {"calls": 1}}
        assert (results[2].outcome, "secret" in results[2].text) == ("failed", False)
        assert results[3].text == "4"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("type: native", "type: mcp"), "native tools alone"),
        (("their_tools.Square", "their_tools.Cube"), "Cube"),
        (("their_tools.Square", "Square"), "package.module.Class"),
        (("tools:", "other:"), "found no list of tools"),
    ],
)
def test_what_is_no_configuration_of_verls_is_a_fault(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    path = written(tmp_path)
    (tmp_path / "tool_config.yaml").write_text(CONFIG.replace(*change), encoding="utf-8")
    with pytest.raises(rlenv.SpecError, match=told):
        rlenv.load(path)


@pytest.mark.parametrize("entry", ["{kind: verl}", "{kind: verl, config: a.yaml, tools: b.py}"])
def test_an_entry_names_one_source(tmp_path: Path, entry: str) -> None:
    path = written(tmp_path)
    path.write_text(SPEC.replace("{kind: verl, config: tool_config.yaml}", entry), encoding="utf-8")
    with pytest.raises(rlenv.SpecError, match="expected one of config and tools"):
        rlenv.load(path)
