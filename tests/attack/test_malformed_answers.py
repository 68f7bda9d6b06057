"""What stands in a call that cannot be read, or beside one, is never paid as an answer: every dialect, every rule."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.episodes.environment import Environment, load
from rlenv.language.spec import AnswerSpec
from rlenv.messages import MalformedCall, Message, ToolCall
from rlenv.rewards.answer import extract
from tests.dialects.written import NAMES, dialect

SPEC: dict[str, Any] = {
    "rlenv": 1,
    "name": "paid",
    "tasks": {"train": {"rows": [{"question": "2 + 3?", "answer": "5"}]}},
    "prompt": {"user": "{{ task.question }}"},
    "tools": {
        "search": {"kind": "python", "function": "t.py:search", "run_in": "loop"},
        "submit": {"kind": "python", "function": "t.py:submit", "run_in": "loop"},
    },
    "limits": {"turns": 3, "invalid_actions": 9},
    "rewards": {"correct": {"kind": "rule", "rule": "exact_match", "expect": "{{ task.answer }}"}},
}
TOOLS = (
    'def search(query: str):\n    """s"""\n    return "r"\n\n\ndef submit(answer: str):\n    """s"""\n    return "r"\n'
)
RULES: dict[str, dict[str, str]] = {
    "tag": {"from": "tag", "tag": "answer"},
    "boxed": {"from": "boxed"},
    "regex": {"from": "regex", "pattern": r"is (\d)\b"},
    "tool": {"from": "tool", "tool": "submit"},
    "last_number": {"from": "last_number"},
    "final_message": {"from": "final_message"},
}
# The answer in the form of each rule.
SAID = {
    "tag": "<answer>5</answer>",
    "boxed": r"\boxed{5}",
    "regex": "it is 5",
    "tool": "5",
    "last_number": "5",
    "final_message": "5",
}


def environment(folder: Path, name: str, rule: str) -> Environment:
    path = folder / "env.yaml"
    path.write_text(yaml.safe_dump({**SPEC, "dialect": name, "answer": RULES[rule]}), encoding="utf-8")
    (folder / "t.py").write_text(TOOLS)
    return load(path)


def cut_texts(name: str, rule: str) -> list[str]:
    """Calls that hold the answer, cut behind it, and ones that stand beside it."""
    reader = dialect(name)
    said = SAID[rule]
    key = "answer" if rule == "tool" else "query"
    tool = "search" if name == "search_r1" or rule != "tool" else "submit"
    text = reader.render_action(Message("assistant", "", (ToolCall(tool, {key: f"QQ {said} ZZ"}, "f.submit:0"),)))
    inside = text.index("QQ")
    places = [text.index("ZZ"), text.index("ZZ") + 1, *range(inside + 1, text.index("ZZ"), 3)]
    texts = [text[:end] for end in places]
    # Behind a whole call, so that a cut takes the second one alone.
    texts += [f"{text}\n{text[: places[0]]}", f"{said}\n{text[: places[0]]}", f"{text[: places[0]]}\n"]
    return texts


@pytest.mark.slow(but=12)
@pytest.mark.parametrize("name", NAMES)
def test_no_rule_finds_an_answer_in_or_beside_a_cut_call(name: str) -> None:
    reader = dialect(name)
    for rule, keys in RULES.items():
        for text in cut_texts(name, rule):
            parsed = reader.parse(text)
            if any(isinstance(call, MalformedCall) for call in parsed.calls):
                assert extract(AnswerSpec.model_validate(keys), parsed) is None, (rule, text, parsed)
            else:  # families that have calls only where a message begins: what stands behind text is text
                assert _starts_only(name), (rule, text, parsed)
                assert text.startswith(SAID[rule]), (rule, text, parsed)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["hermes", "granite", "pythonic", "qwen3_coder", "gemma4", "search_r1", "react"])
def test_an_episode_goes_on_behind_a_cut_call_that_holds_the_answer(name: str, rule: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with environment(tmp_path, name, rule) as made:
            for text in cut_texts(name, rule)[:3]:
                async with made.start(task=0) as episode:
                    step = await episode.step(text)
                    assert not step.is_last, (text, step.reason)
                    assert step.observation.results[-1].outcome == "malformed"

    asyncio.run(main())


def _starts_only(name: str) -> bool:
    spec = dialect(name).spec
    rows = spec.calls if isinstance(spec.calls, tuple) else (spec.calls,)
    return any(row.at_start for row in rows)


@pytest.mark.parametrize("rule", RULES)
def test_an_answer_beside_a_broken_call_of_a_server_earns_nothing(rule: str, tmp_path: Path) -> None:
    broken = MalformedCall('{"answer": "5', "the JSON ends too early", name="submit", id="c1")
    whole = ToolCall("submit", {"answer": "5"}, "c0")

    async def main() -> None:
        async with environment(tmp_path, "hermes", rule) as made:
            for calls in ((broken,), (whole, broken)):
                async with made.start(task=0) as episode:
                    step = await episode.step(Message("assistant", SAID[rule], calls))
                    assert not step.is_last
                    assert [found.outcome for found in step.observation.results][-1] == "malformed"
                    await episode.truncate("tokens")
                    assert episode.trajectory.answer is None
                    assert episode.trajectory.reward.total == 0.0

    asyncio.run(main())


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "tool"])
def test_the_last_turn_pays_nothing_beside_a_broken_call_either(rule: str, tmp_path: Path) -> None:
    text = f'{SAID[rule]}\n<tool_call>\n{{"name": "search", "arguments": {{"query": "x"\n</tool_call>'

    async def main() -> None:
        async with environment(tmp_path, "hermes", rule) as made, made.start(task=0) as episode:
            for _ in range(3):
                step = await episode.step(text)
            assert step.truncated
            assert (step.reason, episode.trajectory.answer, episode.trajectory.reward.total) == ("turns", None, 0.0)

    asyncio.run(main())
