"""The workbench's routes: specs, what an editor asks, and how errors are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.checks.validate import validate
from tests.support.editing import SPEC
from tests.support.served import Asks, served

SMALL = """\
rlenv: 1
name: small
tasks:
  train: {rows: [{question: a, answer: b}]}
prompt: {system: Think., user: "{{ task.question }}"}
tools:
  calculate: {kind: calculator}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "specs"
    root.mkdir()
    (root / "small.yaml").write_text(SMALL, encoding="utf-8")
    (tmp_path / "secret.yaml").write_text("rlenv: 1\n", encoding="utf-8")
    return root


def test_specs_are_listed_read_and_saved(root: Path) -> None:
    async def play(ask: Asks) -> None:
        specs = (await ask.fine("GET", "/api/specs"))["specs"]
        assert specs[0] == {"path": str(root / "small.yaml"), "name": "small", "shipped": False}
        assert {"path": "arithmetic", "name": "arithmetic", "shipped": True} in specs
        assert (await ask.fine("GET", "/api/spec", path="small.yaml"))["text"] == SMALL
        await ask.fine("PUT", "/api/spec", {"text": SPEC}, path="new.yaml")
        assert (root / "new.yaml").read_text(encoding="utf-8") == SPEC

    served((root,), play)


def test_an_edit_of_somebody_else_is_not_lost(root: Path) -> None:
    async def play(ask: Asks) -> None:
        mine = (await ask.fine("GET", "/api/spec", path="small.yaml"))["version"]
        theirs = await ask.fine("PUT", "/api/spec", {"text": "# theirs", "version": mine}, path="small.yaml")
        status, answer = await ask("PUT", "/api/spec", {"text": "# mine", "version": mine}, path="small.yaml")
        assert status == 409
        assert "has changed" in answer["error"]
        assert (root / "small.yaml").read_text(encoding="utf-8") == "# theirs"
        await ask.fine("PUT", "/api/spec", {"text": SMALL, "version": theirs["version"]}, path="small.yaml")
        assert "expected text" in await ask.refused("PUT", "/api/spec", {"text": "", "version": 1}, path="small.yaml")
        for path in ("a" * 300 + ".yaml", "small.yaml/x.yaml"):
            assert await ask.refused("PUT", "/api/spec", {"text": ""}, path=path)
        assert await ask.refused("POST", "/api/play", {"spec": "\ud800.yaml"})
        model = {"spec": "small.yaml", "policy": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
        assert "temperature: expected" in await ask.refused("POST", "/api/play", {**model, "temperature": 10**400})

    served((root,), play)


@pytest.mark.parametrize("path", ["../secret.yaml", "/etc/hosts.yaml", "arithmetic"])
def test_nothing_is_saved_outside_of_the_roots(path: str, root: Path) -> None:
    async def play(ask: Asks) -> None:
        assert await ask.refused("PUT", "/api/spec", {"text": ""}, path=path)
        if path != "arithmetic":
            assert "not below" in await ask.refused("GET", "/api/spec", path=path)
            for route in ("language/diagnose", "language/compile"):
                assert "not below" in await ask.refused("POST", f"/api/{route}", {"path": path, "text": SMALL})
            assert "not below" in await ask.refused("POST", "/api/play", {"spec": path})
            assert "not below" in await ask.refused("POST", "/api/jobs", {"kind": "validate", "spec": path})

    served((root,), play)


def test_without_roots_nothing_but_what_ships_is_served(root: Path) -> None:
    async def play(ask: Asks) -> None:
        assert all(spec["shipped"] for spec in (await ask.fine("GET", "/api/specs"))["specs"])
        assert "none are given" in await ask.refused("GET", "/api/spec", path=str(root / "small.yaml"))

    served((), play)


@pytest.mark.slow
def test_faults_are_those_of_the_command_in_columns_of_the_browser(root: Path) -> None:
    text = SMALL.replace("name: small", 'name: small\nvars: {"😀": 1, }}')

    async def play(ask: Asks) -> None:
        body = {"path": "small.yaml", "text": text, "full": False}
        (fault,) = (await ask.fine("POST", "/api/language/diagnose", body))["faults"]
        assert (fault["line"], fault["column"]) == (3, 18)  # the emoji is two
        body = {"path": "small.yaml", "text": SMALL.replace("task.answer", "task.answr"), "full": True}
        faults = (await ask.fine("POST", "/api/language/diagnose", body))["faults"]
        (root / "small.yaml").write_text(body["text"] if isinstance(body["text"], str) else "", encoding="utf-8")
        expected = [(one.line, one.column, one.message, one.hint) for one in validate([root / "small.yaml"]).faults]
        assert [(one["line"], one["column"], one["message"], one["hint"]) for one in faults] == expected

    served((root,), play)


def test_completions_and_hovers_are_served(root: Path) -> None:
    async def play(ask: Asks) -> None:
        text = SMALL.replace("task.question", "task.qu")
        line = text.splitlines().index('prompt: {system: Think., user: "{{ task.qu }}"}') + 1
        column = text.splitlines()[line - 1].index("task.qu") + len("task.qu") + 1
        at = {"path": "small.yaml", "text": text, "line": line, "column": column}
        found = await ask.fine("POST", "/api/language/complete", at)
        assert [item["insert"] for item in found["items"]] == ["question", "answer"]
        assert found["from"] == {"line": line, "column": column - 2}
        said = await ask.fine("POST", "/api/language/hover", {**at, "line": 2, "column": 2})
        assert "rlenv/NAME" in said["markdown"]
        assert await ask.fine("POST", "/api/language/hover", {**at, "line": 2, "column": 8}) == {}

    served((root,), play)


def test_an_entry_is_changed_in_a_text_that_is_not_saved(root: Path) -> None:
    async def play(ask: Asks) -> None:
        body = {"path": "small.yaml", "text": SMALL, "group": "tools"}
        told = await ask.fine("POST", "/api/language/form", body)
        assert told["entries"] == {"calculate": {"kind": "calculator"}}
        change = {**body, "name": "calculate", "values": {"retries": 2}}
        made = (await ask.fine("POST", "/api/language/edit", change))["text"]
        assert made == SMALL.replace("{kind: calculator}", "{kind: calculator, retries: 2}")
        assert (root / "small.yaml").read_text(encoding="utf-8") == SMALL
        assert "values: expected an object" in await ask.refused("POST", "/api/language/edit", {**change, "values": 1})
        assert await ask.refused("POST", "/api/language/edit", {**change, "text": "a: ["})
        assert "not below" in await ask.refused("POST", "/api/language/edit", {**change, "path": "/etc/hosts.yaml"})

    served((root,), play)


def test_an_entry_is_renamed_and_deleted_in_a_text_that_is_not_saved(root: Path) -> None:
    async def play(ask: Asks) -> None:
        body = {"path": "small.yaml", "text": SMALL, "group": "tools", "name": "calculate"}
        made = await ask.fine("POST", "/api/language/rename", {**body, "to": "sum"})
        assert made == {"text": SMALL.replace("calculate:", "sum:"), "left": made["left"]}
        assert "to: expected text" in await ask.refused("POST", "/api/language/rename", body)
        gone = await ask.fine("POST", "/api/language/delete", body)
        assert "calculate" not in gone["text"]
        assert "no such entry" in await ask.refused("POST", "/api/language/delete", {**body, "name": "none"})
        assert (root / "small.yaml").read_text(encoding="utf-8") == SMALL

    served((root,), play)


@pytest.mark.slow
def test_a_text_is_compiled_without_being_saved(root: Path) -> None:
    async def play(ask: Asks) -> None:
        body = {"path": "unsaved.yaml", "text": SMALL.replace("Think.", "Think\\uD800.")}
        found = await ask.fine("POST", "/api/language/compile", body)
        assert [message["role"] for message in found["prompt"]] == ["system", "user"]
        assert found["splits"] == {"train": 1}
        assert found["tasks"] == [{"index": 0, "row": {"question": "a", "answer": "b"}}]
        assert found["tools"][0]["function"]["name"] == "calculate"
        bad = {**body, "text": SMALL.replace("kind: calculator", "kind: calculater")}
        assert "did you mean 'calculator'?" in await ask.refused("POST", "/api/language/compile", bad)
        assert "tasks 0 to 0" in await ask.refused("POST", "/api/language/compile", {**body, "task": 9})

    served((root,), play)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "not a JSON object"),
        ({}, "path: expected text"),
        ({"path": "a.yaml", "text": 1}, "text: expected text"),
        ({"path": "a.yaml", "text": "", "line": "1", "column": 1}, "line: expected a whole number"),
        ({"path": "a.yaml", "text": "", "line": True, "column": 1}, "line: expected a whole number"),
        ({"path": "a.yaml", "text": "x" * 1_000_001, "line": 1, "column": 1}, "more than 1,000,000 characters"),
    ],
)
def test_a_body_that_does_not_fit_is_told(body: object, said: str, root: Path) -> None:
    async def play(ask: Asks) -> None:
        assert said in await ask.refused("POST", "/api/language/complete", body)

    served((root,), play)


def test_positions_that_are_nowhere_are_taken(root: Path) -> None:
    async def play(ask: Asks) -> None:
        for line, column in ((0, 0), (-5, 10**9), (10**9, -1)):
            body = {"path": "a.yaml", "text": SMALL, "line": line, "column": column}
            assert (await ask.fine("POST", "/api/language/complete", body))["from"]["line"] >= 1
            await ask.fine("POST", "/api/language/hover", body)

    served((root,), play)
