"""Small environments of one tool, what a model says in them, and how their episodes end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlenv.testing.tokens import small_tokenizer

__all__ = ["ANSWER", "BY_ROW_LIMITED", "CALL", "CUT", "LIMITED", "SITUATIONS", "SPEC", "WORDS", "Sampler"]

pytest.importorskip("tokenizers")
END = "<|im_end|>"
SPEC = """
rlenv: 1
name: words
tasks: {train: {rows: [{question: "Look up plum", answer: "stone"}]}}
prompt: {user: "{{ task.question }}"}
tools: {look: {kind: python, function: "words.py:look"}}
answer: {from: tag}
rewards: {correct: {kind: rule, rule: exact_match}}
"""
GROWING = SPEC + "dialect: search_r1\n"
CUT = SPEC + "observation: {max_tokens: 60, keep: head}\n"
BY_ROW = SPEC.replace(
    "tools: {look: {", 'tools: {other: {kind: calculator, offered: "{{ task.hard }}"}, look: {'
).replace("rows: [{", "rows: [{hard: false, ")
ENDING = SPEC.replace('"words.py:look"}', '"words.py:look", ends: true}')
LIMITED = SPEC + "limits: {response_tokens: 80}\n"
BY_ROW_LIMITED = (
    BY_ROW.replace("hard: false", "hard: false, most: 80") + "limits: {response_tokens: '{{ task.most }}'}\n"
)
WORDS = """
def look(word: str) -> str:
    '''Looks a word up.

    Args:
        word: the word.
    '''
    return " ".join([f"a {word} is a fruit with a stone"] * 20)


def down(context):
    raise RuntimeError("the service is down")
"""
CALL = '<tool_call>\n{"name": "look", "arguments": {"word": "plum"}}\n</tool_call>'
ANSWER = "<answer>stone</answer>"


@dataclass
class Sampler:
    """Says given texts, ends them as a policy would, and stops where it is told to."""

    texts: Sequence[str]
    sampled: list[list[int]] = field(default_factory=list)

    async def __call__(
        self, prompt_ids: Sequence[int], *, max_tokens: int, stop_token_ids: Sequence[int], stop: Any = (), **_: Any
    ) -> tuple[list[int], list[float]]:
        assert max_tokens > 0
        text = self.texts[len(self.sampled)]
        ids = small_tokenizer().encode(text).ids
        if not text.endswith(tuple(stop) or "\0"):
            ids = [*ids, small_tokenizer().token_to_id(END)]
            assert ids[-1] in stop_token_ids
        self.sampled.append(ids[:max_tokens])
        return self.sampled[-1], [-0.5] * len(self.sampled[-1])


def length(text: str) -> int:
    """The tokens of a turn with its end."""
    return len(small_tokenizer().encode(text).ids) + 1


SITUATIONS: dict[str, tuple[str, tuple[str, ...], dict[str, Any], str]] = {
    "plain": (SPEC, (CALL, ANSWER), {}, "answer"),
    "a cut result": (CUT, (CALL, ANSWER), {}, "answer"),
    "tools of the row": (BY_ROW, (CALL, ANSWER), {}, "answer"),
    "a call that ends": (ENDING, (CALL,), {}, "tool"),
    "a limit of the spec's": (LIMITED, (CALL, ANSWER), {}, "response_tokens"),
    "a limit of the row's": (BY_ROW_LIMITED, (CALL, ANSWER), {}, "response_tokens"),
    "one growing turn": (GROWING, ("<search> plum </search>", ANSWER), {}, "answer"),
    "a cut action": (SPEC, (CALL, ANSWER), {"turn_tokens": length(ANSWER)}, "answer"),
    "a cut action at the end": (SPEC, (CALL,), {"max_response_tokens": 9}, "response_tokens"),
}
