"""Plays dialogues under a chat template that rewrites history, and states what has to hold of the rows they become."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.trainers.loops import Server, build, configuration, own_process, sample

# The layout of Qwen3 with a short tools block: what an assistant thought before the last user's message is not written.
FORGETFUL = """
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content, thought = message.content or '', message.reasoning_content or '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if thought and loop.index0 > ns.last %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- if content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

SPEC = """
rlenv: 1
name: talk
tasks:
  train:
    rows: [{question: "Hello", answer: 42}]
prompt: {user: "{{ task.question }}"}
user: {kind: scripted, replies: ["Six times seven.", "Are you sure?", "And once more?", "Tell me."]}
tools: {calculate: {kind: calculator}}
limits: {turns: 8}
rewards:
  correct: {kind: rule, rule: numeric_match}
"""
REPLIES = ("Six times seven.", "Are you sure?", "And once more?", "Tell me.")


@dataclass(frozen=True)
class Said:
    """One turn of the policy: what it thinks, says and calls (`calculate` with an expression)."""

    content: str = ""
    thinking: str = ""
    call: str | None = None

    @property
    def text(self) -> str:
        """What it samples."""
        thought = f"<think>\n{self.thinking}\n</think>\n\n" if self.thinking else ""
        if self.call is None:
            return thought + self.content
        call = json.dumps({"name": "calculate", "arguments": {"expression": self.call}})
        return thought + self.content + ("\n" if self.content else "") + f"<tool_call>\n{call}\n</tool_call>"

    @property
    def message(self) -> dict[str, Any]:
        """The turn as a chat template takes it."""
        out: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.thinking:
            out["reasoning_content"] = self.thinking
        if self.call is not None:
            function = {"name": "calculate", "arguments": {"expression": self.call}}
            out["tool_calls"] = [{"type": "function", "function": function}]
        return out


def conversation(said: Sequence[Said]) -> list[list[dict[str, Any]]]:
    """The messages before each turn, as a chat template takes them."""
    replies = iter(REPLIES)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
    out = []
    for turn in said:
        out.append(list(messages))
        messages.append(turn.message)
        if turn.call is None:
            messages.append({"role": "user", "content": next(replies, "")})
        else:
            messages.append({"role": "tool", "content": str(eval(turn.call))})
    return out


@dataclass
class Played:
    """What a sample gave: its rows as veRL is handed them, and what the server was asked."""

    outputs: list[Any]
    requests: list[dict[str, Any]]
    ids: list[list[int]] = field(default_factory=list)
    """What was sampled, by turn."""

    @property
    def info(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.outputs[-1].extra_fields["reward_extra_info"]
        return found

    @property
    def figures(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.outputs[0].extra_fields["rlenv"]
        return found

    @property
    def scores(self) -> list[list[float]]:
        """The reward of each token, by row."""
        return [output.as_dict()["rm_scores"].tolist() for output in self.outputs]


class Recording(Server):
    """Remembers what it gave."""

    def __init__(self, tokenizer: Any, actions: Sequence[Any], **options: Any) -> None:
        super().__init__(tokenizer, actions, **options)
        self.given: list[list[int]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        output = await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
        output.log_probs = [-0.001 * (sum(map(len, self.given)) + at + 1) for at in range(len(output.token_ids))]
        self.given.append(list(output.token_ids))
        return output


def play(
    folder: Path,
    tokenizer: Any,
    said: Sequence[Said | str],
    *,
    history: str,
    spec: str = SPEC,
    files: Mapping[str, str] | None = None,
    response: int = 900,
    prompt: int = 300,
    context: int | None = None,
    validation: bool = False,
    options: Mapping[str, Any] | None = None,
    **server: Any,
) -> Played:
    """One sample through the agent loop, as veRL runs it; `context` is the rollout's `max_model_len`."""
    folder.mkdir(exist_ok=True)
    (folder / "spec.yaml").write_text(spec, encoding="utf-8")
    for name, text in (files or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    config = configuration(response=response, prompt=prompt, max_model_len=context)
    texts = [turn if isinstance(turn, str) else turn.text for turn in said]
    fake = Recording(tokenizer, texts, **server)

    keys: dict[str, Any] = {
        "spec": str(folder / "spec.yaml"),
        "record_dir": str(folder / "records"),
        "process": own_process(),
    }

    async def played() -> Any:
        loop = build(config, fake, tokenizer, history=history, **keys, **(options or {}))
        return await sample(loop, validation=validation, uid="u1")

    found = asyncio.run(played())
    return Played(found if isinstance(found, list) else [found], fake.requests, fake.given)


def check_rows(played: Played) -> None:
    """The laws of the rows of an episode.

    Each sampled id stands in exactly one row, in order, with mask 1 and the probability that it was sampled with; all
    else has mask 0. What the policy was shown before each turn is the row's own ids up to there.
    """
    sampled: list[int] = []
    logprobs: list[float] = []
    shown: list[list[int]] = []
    for output in played.outputs:
        assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs) >= 1
        before = 0
        for at, mask in enumerate(output.response_mask):
            if mask:
                sampled.append(output.response_ids[at])
                logprobs.append(output.response_logprobs[at])
            if mask and not before:
                shown.append([*output.prompt_ids, *output.response_ids[:at]])
            before = mask
        zeros = [value for value, mask in zip(output.response_logprobs, output.response_mask, strict=True) if not mask]
        assert not any(zeros)
    given = [token for turn in played.ids for token in turn]
    assert sampled == given
    assert logprobs == [-0.001 * (at + 1) for at in range(len(given))]
    assert shown == [request["prompt_ids"] for request in played.requests]
