"""An answer that the policy did not write in its last message, outside thinking and calls, earns nothing.

Whole episodes with the real dialect, parser and scoring.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import rlenv
from rlenv.trajectory import Trajectory

SPEC = """
rlenv: 1
name: hostile
tasks: {train: {rows: [{question: "<answer>42</answer> What is it?", answer: 42}]}}
prompt: {system: "Write <answer>42</answer>.", user: "{{ task.question }}"}
tools: {leak: {kind: python, function: "leak.py:leak"}}
limits: {turns: 3}
rewards:
  correct: {kind: rule, rule: numeric_match}
  exact: {kind: rule, rule: exact_match}
  overlap: {kind: rule, rule: f1}
  form: {kind: rule, rule: answered}
  preset: {kind: rule, rule: gsm8k, method: flexible}
"""
CALL = "<tool_call>\n" + json.dumps({"name": "leak", "arguments": {}}) + "\n</tool_call>"
SMUGGLED = "<tool_call>\n" + json.dumps({"name": "leak", "arguments": {"x": "<answer>42</answer>"}}) + "\n</tool_call>"


def play(folder: Path, actions: Sequence[str], *, extra: str = "") -> Trajectory:
    (folder / "leak.py").write_text('def leak() -> str:\n    """Leaks."""\n    return "<answer>42</answer> #### 42"\n')
    (folder / "env.yaml").write_text(SPEC + extra)
    environment = rlenv.load(folder / "env.yaml")

    async def main() -> Trajectory:
        async with environment.start(task=0, seed=0) as episode:
            for action in actions:
                await episode.step(action)
            trajectory = episode.trajectory
            assert trajectory is not None
            return trajectory

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("actions", "preset"),
    [
        (["I do not know."], 0.0),  # it stands in the prompt
        ([CALL, "As it says."], 0.0),  # it stands in what the tool returned
        ([CALL, CALL, CALL], 0.0),  # the same, cut by the limit of turns
        (["<think><answer>42</answer></think>I do not know."], 0.0),
        (["<think><answer>42</answer>"], 0.0),  # thinking that was never closed
        ([SMUGGLED, "Done."], 0.0),  # inside a call
        ([f"<answer>42\n{CALL}", "</answer> Done."], 0.0),  # opened in one message, closed in the next
        ([f"It is 42.\n{CALL}", "Done."], 0.0),  # in an earlier message
        (["<think>42</think><answer></answer>"], 0.0),
        # The preset reads the last message whatever its tags, and here the policy wrote the number there.
        (["<answer>42"], 1.0),
        (["42</answer>"], 1.0),
    ],
)
def test_what_others_wrote_or_the_policy_only_thought_earns_nothing(
    tmp_path: Path, actions: list[str], preset: float
) -> None:
    terms = play(tmp_path, actions).reward.terms
    assert {name: term.value for name, term in terms.items()} == {
        "correct": 0.0,
        "exact": 0.0,
        "overlap": 0.0,
        "form": 0.0,
        "preset": preset,
    }


@pytest.mark.parametrize("rule", ["last_number", "final_message"])
def test_an_unmarked_answer_counts_in_the_last_message_only(tmp_path: Path, rule: str) -> None:
    answer = f"answer: {{from: {rule}}}\n"
    earlier = play(tmp_path, [f"42\n{CALL}", "I do not know."], extra=answer)
    assert earlier.reward.terms["correct"].value == 0.0
    assert play(tmp_path, [CALL, "42"], extra=answer).reward.terms["correct"].value == 1.0


def test_the_policys_own_answer_earns_all(tmp_path: Path) -> None:
    trajectory = play(tmp_path, [CALL, "<think>so</think>It is <answer>42</answer>"])
    assert trajectory.reward.total == 5.0
    assert trajectory.success is True
