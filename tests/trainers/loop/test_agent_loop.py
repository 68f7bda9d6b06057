from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlenv.dialects.base import CUT_NOTE
from rlenv.runs.folder import open_run
from rlenv.tasks.rows import seed_of
from rlenv_verl.loop.process import ProcessState
from tests.trainers.conftest import quiet
from tests.trainers.loops import (
    CALL,
    SPEC,
    Server,
    build,
    check_alignment,
    configuration,
    kept,
    own_process,
    sample,
)

BROKEN = SPEC + '  broken: {kind: rule, function: "broken.py:score", required: true}\n'


def run(
    verl: Any,
    tmp_path: Path,
    tokenizer: Any,
    actions: Sequence[str | Exception],
    *,
    spec: str = SPEC,
    response: int = 96,
    prompt: int = 512,
    validation: bool = False,
    greedy: bool = False,
    **server: Any,
) -> tuple[Any, Server]:
    """One sample through the loop, built as veRL builds it."""
    (tmp_path / "spec.yaml").write_text(spec, encoding="utf-8")
    config = configuration(response=response, prompt=prompt)
    fake = Server(tokenizer, actions, **server)
    options: dict[str, Any] = {"record_dir": str(tmp_path / "records"), "turn_tokens": 40, "process": own_process()}

    async def played() -> Any:
        loop = build(config, fake, tokenizer, spec=str(tmp_path / "spec.yaml"), **options)
        return await sample(loop, validation=validation, greedy=greedy)

    return asyncio.run(played()), fake


def test_an_episode_comes_back_token_by_token(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    output, server = run(verl, tmp_path, tokenizer, [CALL, "<answer>42</answer>"])
    check_alignment(output)
    assert output.reward_score == 1.0
    info = output.extra_fields["reward_extra_info"]
    assert (info["success"], info["invalid"], info["turns"], info["calls"]) == (1.0, 0.0, 2.0, 1.0)
    # What the policy was shown the second time is exactly what it is trained on.
    second = server.requests[1]["prompt_ids"]
    assert output.prompt_ids + output.response_ids[: len(second) - len(output.prompt_ids)] == second
    written = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert tokenizer.decode(written) == CALL + "<|im_end|>" + "<answer>42</answer>" + "<|im_end|>"
    assert output.extra_fields["min_global_steps"] == output.extra_fields["max_global_steps"] == 4


def test_a_policy_that_samples_an_id_beyond_its_tokenizer_ends_nothing(
    verl: Any, tmp_path: Path, tokenizer: Any
) -> None:
    beyond = len(tokenizer) + 7  # the padding of the model's embeddings
    output, _ = run(verl, tmp_path, tokenizer, [CALL, "<answer>42</answer>"], before=[beyond])
    check_alignment(output)
    assert (output.reward_score, output.response_ids.count(beyond)) == (1.0, 2)


def test_a_turn_that_its_limit_cut_is_told_so_and_recorded_with_its_ids(
    verl: Any, tmp_path: Path, tokenizer: Any
) -> None:
    long = CALL.replace("6*7", "+".join(["6*7"] * 60))
    output, _ = run(verl, tmp_path, tokenizer, [long, "<answer>42</answer>"], response=300, validation=True)
    ((_, trajectory),) = kept(tmp_path / "records")
    assert [turn.was_cut for turn in trajectory.turns] == [True, False]
    observation = trajectory.turns[0].observation
    assert observation is not None
    assert CUT_NOTE in observation.messages[-1].content
    sampled = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert [token for turn in trajectory.turns for token in turn.token_ids] == sampled
    assert len(trajectory.turns[0].token_ids) == 40


def test_the_whole_conversation_is_the_templates_own(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    from rlenv.episodes.environment import load

    output, _ = run(verl, tmp_path, tokenizer, [CALL, "<answer>42</answer>"])
    tools = [dict(schema) for schema in load(tmp_path / "spec.yaml").tool_schemas]
    conversation = [
        {"role": "user", "content": "What is 6 * 7?"},
        {"role": "assistant", "content": CALL},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "<answer>42</answer>"},
    ]
    text = tokenizer.apply_chat_template(conversation, tools=tools, tokenize=False)
    assert tokenizer.decode(output.prompt_ids + output.response_ids) == text.removesuffix("\n")


ONE_TEXT = SPEC.replace("  calculate: {kind: calculator}", "  search: {kind: calculator}\ndialect: search_r1")


def test_an_episode_in_one_turn_is_one_text_with_the_results_masked(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    actions = ["<think> hm </think><search>6*7</search>", "<answer> 42 </answer>"]
    output, server = run(verl, tmp_path, tokenizer, actions, spec=ONE_TEXT, ends=False)
    check_alignment(output)
    assert output.reward_score == 1.0
    assert tokenizer.decode(output.response_ids) == (actions[0] + "\n\n<information>42</information>\n\n" + actions[1])
    written = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert tokenizer.decode(written) == "".join(actions)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 6 * 7?"}], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(output.prompt_ids) == prompt  # the template says nothing of tools
    for request in server.requests:
        assert request["stop"] == ["</search>", "</answer>"]
        assert request["include_stop_str_in_output"] is True


def test_validation_rows_may_ask_for_greedy_and_are_recorded(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    _, server = run(verl, tmp_path, tokenizer, ["<answer>41</answer>"], validation=True, greedy=True)
    assert server.requests[0]["temperature"] == 0.0
    ((row, trajectory),) = kept(tmp_path / "records")
    assert (row["step"], row["mode"], trajectory.success) == (5, "greedy", False)


def test_training_rows_keep_their_sampling_and_are_recorded_with_their_tokens(
    verl: Any, tmp_path: Path, tokenizer: Any
) -> None:
    output, server = run(verl, tmp_path, tokenizer, [CALL, "<answer>41</answer>"])
    assert server.requests[0]["temperature"] == 1.0
    ((row, trajectory),) = kept(tmp_path / "records")
    assert (row["mode"], row["step"], row["reward"], row["turns"]) == ("train", 5, 0.0, 2)
    assert row["id"] == output.extra_fields["rlenv"]["id"]
    assert [turn.action for turn in trajectory.turns] == [CALL, "<answer>41</answer>"]
    (tokens,) = open_run(tmp_path / "records").body(row["id"]).tokens
    assert list(tokens.prompt_ids) == output.prompt_ids
    assert list(tokens.ids) == output.response_ids
    assert list(tokens.mask) == output.response_mask
    assert list(tokens.logprobs) == output.response_logprobs
    assert [list(tokens.ids[start:end]) for start, end in tokens.turns] == [
        list(turn.token_ids) for turn in trajectory.turns
    ]
    assert row["trained_tokens"] == sum(output.response_mask)
    assert row["respelled"] == output.extra_fields["rlenv"]["respelled"]


def test_a_folder_that_cannot_be_written_ends_no_episode(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "records").write_text("a file is in the way")
    output, _ = run(verl, tmp_path, tokenizer, ["<answer>42</answer>"])
    assert output.reward_score == 1.0
    told = output.extra_fields["rlenv"]
    assert (told["id"], told["is_lost"]) == ("", True)


def test_rewards_of_turns_stand_on_their_own_turns_in_what_verl_trains_on(
    verl: Any, tmp_path: Path, tokenizer: Any
) -> None:
    spec = SPEC.replace("rewards:\n", "rewards:\n  form: {kind: rule, rule: valid_calls, weight: 0.5, when: turn}\n")
    assert spec != SPEC
    output, _ = run(verl, tmp_path, tokenizer, [CALL, "<answer>42</answer>"], spec=spec)
    scores = output.as_dict()["rm_scores"].tolist()
    first_end = output.response_mask.index(0) - 1
    assert scores[first_end] == pytest.approx(0.5)
    assert scores[-1] == pytest.approx(output.reward_score - 0.5)
    assert sum(scores) == pytest.approx(output.reward_score)
    assert [score for at, score in enumerate(scores) if at not in (first_end, len(scores) - 1)] == [0.0] * (
        len(scores) - 2
    )


def test_an_observation_that_does_not_fit_is_left_out_whole(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    full, _ = run(verl, tmp_path, tokenizer, [CALL, "<answer>42</answer>"])
    first = full.response_mask.index(0)
    output, server = run(verl, tmp_path, tokenizer, [CALL], response=first + 3)
    check_alignment(output)
    assert output.response_ids == full.response_ids[:first]
    assert set(output.response_mask) == {1}
    assert output.extra_fields["reward_extra_info"]["truncated"] == 1.0
    assert len(server.requests) == 1


def test_actions_never_exceed_what_is_left(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    output, server = run(verl, tmp_path, tokenizer, ["word " * 200] * 3, response=17)
    assert server.requests[0]["max_tokens"] == 17
    assert len(output.response_ids) <= 17


@pytest.mark.parametrize("fault", ["reward", "tool", "prompt_tokens", "aborted"])
def test_a_fault_of_the_environment_is_a_masked_sample(verl: Any, tmp_path: Path, tokenizer: Any, fault: str) -> None:
    good, _ = run(verl, tmp_path, tokenizer, ["<answer>42</answer>"])
    bad = tmp_path / "bad"
    bad.mkdir()
    options: dict[str, Any] = {}
    if fault == "reward":
        (bad / "broken.py").write_text("def score(context):\n    raise RuntimeError('no')\n")
        options["spec"] = BROKEN
    elif fault == "tool":
        options["spec"] = SPEC.replace("name: toy", "name: toy\nresources:\n  db: {kind: sqlite, path: missing.sqlite}")
    elif fault == "prompt_tokens":
        options["prompt"] = 3
    else:
        options["stop_reason"] = "aborted"
    output, _ = run(verl, bad, tokenizer, ["<answer>42</answer>"], **options)
    check_alignment(output)
    assert not any(output.response_mask)
    assert output.reward_score == 0.0
    info = output.extra_fields["reward_extra_info"]
    assert info["invalid"] == 1.0
    assert info["success"] is None
    assert set(info) - {"term_broken"} == set(good.extra_fields["reward_extra_info"])
    assert isinstance(output.extra_fields["min_global_steps"], int)
    ((row, trajectory),) = kept(bad / "records")
    assert row["task"] == 0
    assert trajectory.failure is not None
    assert row["failure"] == trajectory.failure.reason == output.extra_fields["rlenv"]["ended"]
    assert trajectory.failure.message
    # What veRL does with every output of a batch.
    assert output.as_dict()["rm_scores"].sum() == 0.0


def test_a_fault_of_the_rollout_server_is_raised(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(ConnectionError, match="server is gone"):
        run(verl, tmp_path, tokenizer, [ConnectionError("server is gone")])


def test_a_group_shares_its_seed_and_steps_and_tasks_differ(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    spec = str(tmp_path / "spec.yaml")

    async def seeds() -> list[int]:
        with quiet():
            loop = build(configuration(response=96, prompt=512), Server(tokenizer, []), tokenizer, spec=spec, seed=2)
            from rlenv_train.samples import SampleTask

        def of(task: int, step: int, sample: int, *, validates: bool = False) -> int:
            asked = SampleTask("train", task, step, is_validation=validates, is_greedy=False, sample=sample, group="")
            found: int = loop._seed_of(asked)
            return found

        return [of(3, 5, 0), of(3, 5, 1), of(3, 6, 0), of(4, 5, 0), *(of(3, at, 0, validates=True) for at in (5, 6))]

    one, sibling, later, other, held_out, again = asyncio.run(seeds())
    assert one == sibling == seed_of(2, "train", 3, 5)
    assert held_out == again == seed_of(2, "train", 3, -1)
    assert len({one, later, other, held_out}) == 4


def test_verls_own_parts_are_made_once_for_the_same_configuration(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    spec = str(tmp_path / "spec.yaml")
    process = ProcessState()

    def made(config: Any, server: Server, process: ProcessState = process) -> Any:
        return build(config, server, tokenizer, spec=spec, process=process)

    async def several() -> None:
        first, second = Server(tokenizer, []), Server(tokenizer, [])
        config = configuration()
        loops = [made(config, first) for _ in range(3)]
        assert vars(loops[2]).keys() >= vars(loops[0]).keys()
        assert all(loop.server_manager is first and loop.config is config for loop in loops)
        # What veRL's constructor makes anew for each object is the same one.
        assert loops[0].continuous_token_builder is loops[2].continuous_token_builder
        assert made(config, first, ProcessState()).continuous_token_builder is not loops[0].continuous_token_builder
        assert made(config, second).server_manager is second
        assert made(configuration(response=64), second).settings.response_length == 64

    asyncio.run(several())


def test_the_loops_of_one_process_share_what_is_slow_to_make(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    config, server, process = configuration(), Server(tokenizer, []), ProcessState()

    async def made(process: ProcessState, **spec_set: Any) -> Any:
        spec = str(tmp_path / "spec.yaml")
        return build(config, server, tokenizer, spec=spec, spec_set=spec_set, process=process)

    async def four() -> list[Any]:
        return [await made(process), await made(process), await made(process, version=3), await made(ProcessState())]

    one, two, changed, other = asyncio.run(four())
    assert two.environment is one.environment
    assert two.encoder is changed.encoder is one.encoder
    assert two.settings is one.settings
    assert changed.environment.spec.version == 3
    assert other.environment is not one.environment
    assert other.encoder is not one.encoder
