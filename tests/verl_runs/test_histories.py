"""Dialogues over Qwen3's own tokenizer and template, trained under `rows` and under `keep`, thinking on and off.

A shop's customer (examples/customer) and a dialogue of ten turns in one run. What the trainer was handed is compared
with what was sampled and with the template's own rendering by transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import Environment, load
from rlenv.messages import Message
from rlenv.tokens.bound import said_of
from rlenv.trajectory import Trajectory, Turn
from rlenv_verl.estimators.rows import RowLabel
from tests.support.kept import held_out
from tests.verl_runs.driving import ROOT, SMALL, lines, make_policy, train
from tests.verl_runs.qwen3 import make_qwen3_policy

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(1500)]

CUSTOMER = ROOT / "examples/customer/env.yaml"
TEN = Path(__file__).with_name("ten_turns.yaml")
MARKS = (("<think>", "</think>"),)


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy with Qwen3's tokenizer, made once."""
    folder = make_qwen3_policy(tmp_path_factory.mktemp("qwen3"), [str(CUSTOMER), str(TEN)])
    if folder is None:
        pytest.skip("Qwen3's tokenizer is not there: set RLENV_DATA to the folder that has tokenizers/qwen3")
    return folder


def run(out: Path, policy: Path, *, history: str, thinks: bool, more: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A step on both specs; every row that the trainer was handed.

    A small one: the update computes 151,936 probabilities for each of some 8,000 tokens.
    """
    arguments = [str(CUSTOMER), str(TEN), "--model", str(policy), "--steps", "1", "--time-limit", "900", "-o", str(out)]
    arguments += ["--validation-tasks", "2", "run.validation_split=train", "run.turn_tokens=48"]
    arguments += [f"run.history={history}", f"run.template_kwargs={{enable_thinking: {str(thinks).lower()}}}"]
    arguments += ["trainer.v1.sampler.custom_sampler.path=pkg://recording_sampler"]
    arguments += ["trainer.v1.sampler.custom_sampler.name=RecordingBuffer", "trainer.test_freq=-1"]
    arguments += [f"+trainer.v1.sampler.sampler_kwargs.trained_file={out / 'trained.jsonl'}"]
    arguments += ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "data.shuffle=false"]
    arguments += ["actor_rollout_ref.rollout.n=2", "data.max_response_length=600"]
    # The trainer computes probabilities of its own, so that veRL compares them with the rollout's.
    arguments += ["algorithm.rollout_correction.bypass_mode=false", *more]
    log = out.with_suffix(".log")
    assert train(arguments, log, seconds=1000) == 0, log.read_text()[-3000:]
    return lines(out / "rows.jsonl")


def by_episode(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], list[Mapping[str, Any]]]:
    """The rows of each episode, in their order."""
    found: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: int(row["key"].rsplit("_", 1)[1])):
        found.setdefault((row["step"], row["key"].rsplit("_", 1)[0]), []).append(row)
    return found


def turns_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, list[int], list[int]]]:
    """Of each sampled turn: the row it is in, all ids before it, and its own."""
    for at, row in enumerate(rows):
        edges = [0, *row["response_mask"], 0]
        changes = [place for place, (before, here) in enumerate(pairwise(edges)) if before != here]
        for start, end in zip(changes[::2], changes[1::2], strict=True):
            yield at, [*row["prompts"], *row["responses"][:start]], row["responses"][start:end]


def check_row(row: Mapping[str, Any]) -> None:
    """Ids, mask, probabilities and rewards of a row stand side by side."""
    assert len(row["responses"]) == len(row["response_mask"]) == len(row["rm_scores"]) == len(row["rollout_log_probs"])
    for mask, logprob, score in zip(row["response_mask"], row["rollout_log_probs"], row["rm_scores"], strict=True):
        assert logprob <= 0.0 if mask else logprob == 0.0 and score == 0.0


def check_label(row: Mapping[str, Any], episode: Sequence[Mapping[str, Any]]) -> None:
    """An estimator can tell which episode a row is of, and what of its reward is earned later."""
    uid, session, index = row["key"].rsplit("_", 2)
    label = RowLabel.of(row["uid"], row=0)
    if row["uid"] == uid:  # no episode of the batch has several rows
        assert (len(episode), row["carried"]) == (1, 0.0)
        return
    assert (label.uid, label.session, label.index, label.carried) == (uid, session, int(index), row["carried"])
    own = [sum(one["rm_scores"]) - one["carried"] for one in episode]
    assert sum(own) == pytest.approx(sum(episode[0]["rm_scores"]), abs=1e-5)
    assert row["carried"] == pytest.approx(sum(own[int(index) + 1 :]), abs=1e-5)


def shown(environment: Environment, trajectory: Trajectory, tokenizer: Any, kwargs: Mapping[str, Any]) -> list[str]:
    """What the template writes before each turn of an episode, by transformers."""
    messages = [message.as_dict() for message in trajectory.messages]
    tools = [dict(schema) for schema in environment.tool_schemas]
    texts = []
    for turn in trajectory.turns:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True, **kwargs
        )
        texts.append(text)
        said = said_of(turn.action, turn.parsed, thinking=MARKS)
        message = said.as_dict()
        if said.thinking:
            message["reasoning_content"] = said.thinking
        messages.append(message)
        messages += [observed.as_dict() for observed in seen_after(turn)]
    return texts


def seen_after(turn: Turn) -> Sequence[Message]:
    """What the environment says after a turn."""
    return turn.observation.messages if turn.observation is not None else ()


def by_actions(run: Path) -> dict[tuple[str, ...], Trajectory]:
    """The recorded validation episodes by spec, task and what the policy said."""
    found: dict[tuple[str, ...], Trajectory] = {}
    for trajectory in held_out(run):
        spec = trajectory.environment.rpartition("-v")[0]
        found[spec, str(trajectory.task_index), *(turn.action for turn in trajectory.turns)] = trajectory
    return found


@pytest.mark.parametrize("history", ["rows", "keep"])
@pytest.mark.parametrize("thinks", [True, False], ids=["thinking", "without"])
def test_a_dialogue_is_trained_as_it_was_sampled(tmp_path: Path, qwen3: Path, history: str, thinks: bool) -> None:
    import transformers

    out = tmp_path / "run"
    rows = run(out, qwen3, history=history, thinks=thinks)
    episodes = by_episode([row for row in rows if row["partition"] == "train"])
    assert len(episodes) == 4
    for episode in episodes.values():
        assert len(episode) == max(1, episode[0]["rlenv"]["rows"])
        assert not episode[0]["rlenv"]["is_invalid"]
        for row in episode:
            check_row(row)
            check_label(row, episode)
        assert sum(sum(row["response_mask"]) for row in episode) == episode[0]["rlenv"]["tokens"]
    several = [episode for episode in episodes.values() if len(episode) > 1]
    different = [episode for episode in episodes.values() if episode[0]["rlenv"]["differences"]]
    assert (bool(several), bool(different)) == ((True, False) if history == "rows" else (False, True))

    # The trainer's own probabilities of what was sampled are the rollout's: the ids before each token are the same.
    figures = {entry["step"]: entry["data"] for entry in lines(out / "metrics.jsonl")}
    assert figures[1]["training/rollout_probs_diff_max"] < 1e-3
    assert (figures[1]["rlenv/customer/episodes"], figures[1]["rlenv/ten/episodes"]) == (2, 2)
    assert math.isfinite(figures[1]["actor/grad_norm"])
    assert [entry["episodes"] for entry in lines(out / "trained.jsonl")] == [2, 2]

    # Every validation episode is recorded, so the template can render all of it.
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(qwen3)
    known = {environment.spec.name: environment for environment in map(load, (CUSTOMER, TEN))}
    recorded = by_actions(out)
    compared = rewritten = identical = 0
    kwargs = {"enable_thinking": thinks}
    for episode in by_episode([row for row in rows if row["partition"] == "val"]).values():
        turns = list(turns_of(episode))
        ends = {tokenizer.eos_token_id, tokenizer.pad_token_id}
        actions = [tokenizer.decode(ids[:-1] if ids[-1] in ends else ids) for _, _, ids in turns]
        name = episode[0]["rlenv"]["spec"]
        trajectory = recorded[name, str(episode[0]["rlenv"]["task"]), *actions]
        texts = shown(known[name], trajectory, tokenizer, kwargs)
        for place, (at, before, _) in enumerate(turns):
            text = tokenizer.decode(before)
            compared += 1
            if history == "rows":
                assert text == texts[place]
                if place == 0 or turns[place - 1][0] != at:
                    before_it = trajectory.turns[:place]
                    told = [message.content for turn in before_it for message in seen_after(turn)]
                    told += [said_of(turn.action, turn.parsed, thinking=MARKS).content for turn in before_it]
                    # Words of a conversation are text in a new prompt; the tokenizer makes marks of what they spell.
                    if not any(mark in content for mark in ("tool_call>", "think>") for content in told):
                        assert before == tokenizer(text, add_special_tokens=False)["input_ids"]
                        identical += 1
                    rewritten += place > 0
            elif text != texts[place]:
                rewritten += 1
        if history == "keep":
            assert len(episode) == 1
            differs = any(tokenizer.decode(before) != texts[at] for at, (_, before, _) in enumerate(turns))
            assert bool(episode[0]["rlenv"]["differences"]) == differs
    assert compared >= 20
    assert identical >= 8 or history == "keep"
    assert rewritten >= 8
    assert json.loads((out / "run.json").read_text())["history"] == history


TALK = """
rlenv: 1
name: talk
tasks:
  train:
    rows:
      - {question: Hello, answer: 1}
      - {question: Say one, answer: 1}
      - {question: Say two, answer: 2}
      - {question: Say six, answer: 6}
prompt: {user: "{{ task.question }}"}
user: {kind: scripted, replies: ["Which one?", "Are you sure?", "Say it."]}
tools: {number: {kind: calculator}}
answer: {from: tag, tag: answer}
limits: {turns: 3}
rewards:
  right: {kind: rule, rule: numeric_match}
  brief: {kind: rule, rule: answered, weight: 0.5}
oracle:
  - say: "I think of it."
  - call: {number: {expression: "{{ task.answer }}"}}
  - say: "<answer>{{ task.answer }}</answer>"
"""
# A generation prompt that is not part of the history, as Qwen3's with thinking off: every turn is a row.
GENERATES = "{{- '<|im_start|>assistant\\n' }}"
FORGETS = "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}"


def test_a_critic_and_its_policy_are_updated_once_for_a_batch_of_rows(tmp_path: Path) -> None:
    spec, out = tmp_path / "talk.yaml", tmp_path / "run"
    spec.write_text(TALK)
    policy = make_policy(tmp_path / "policy", str(spec))
    template = (policy / "chat_template.jinja").read_text()
    assert template.count(GENERATES) == 1
    (policy / "chat_template.jinja").write_text(template.replace(GENERATES, FORGETS))
    arguments = [str(spec), "--model", str(policy), "--steps", "2", "--time-limit", "500", "-o", str(out), *SMALL]
    arguments += ["--algorithm", "ppo", "run.history=rows", "run.validation_split=train", "trainer.test_freq=-1"]
    log = out.with_suffix(".log")
    assert train(arguments, log, seconds=600) == 0, log.read_text()[-3000:]
    figures = {entry["step"]: entry["data"] for entry in lines(out / "metrics.jsonl")}
    for step in (1, 2):
        data = figures[step]
        assert data["rlenv/talk/episodes"] == 16
        assert data["rlenv/talk/rows"] == pytest.approx(data["rlenv/talk/turns"])
        assert data["rlenv/talk/rows"] > 1.5
        assert all(math.isfinite(value) for value in data.values() if isinstance(value, float))
        assert data["critic/vf_loss"] > 0.0
        assert data["critic/grad_norm"] > 0.0
        # Whitened over the batch's sampled tokens, each of them once.
        assert data["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-3)
        # One update of all rows: nothing has changed before it.
        assert data["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-3)
        assert data["actor/pg_clipfrac"] == 0.0
    assert figures[1]["actor/grad_norm"] > 0.0
    assert "critic" in {path.name for path in (out / "checkpoints/global_step_2").iterdir()}
