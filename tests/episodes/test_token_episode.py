"""A rollout function for another trainer, as its page has it: rows are the ids of the whole conversation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import pytest

import rlenv
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from tests.support.token_episodes import ANSWER, BY_ROW_LIMITED, CALL, CUT, LIMITED, SITUATIONS, SPEC, WORDS, Sampler

PAGE = Path(__file__).parents[2] / "docs" / "training" / "tokens.md"


def the_pages_functions(**names: Any) -> dict[str, Any]:
    """The functions that the page shows, which know rlenv's public names alone."""
    found = re.findall(r"^(?:async )?def rollout\w*\(.*?(?=\n\n\n)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code = "\n\n\n".join(found)
    assert len(code.splitlines()) < 60
    assert set(re.findall(r"\brlenv\.(\w+)", code)) <= set(rlenv.__all__)
    assert not re.findall(r"\bimport\b", code)
    names |= {"rlenv": rlenv, "asyncio": asyncio}
    exec(code, names)
    return names


def played(
    folder: Path, spec: str, texts: Sequence[str], **limits: Any
) -> tuple[dict[str, Any], Sampler, rlenv.Environment, rlenv.Trajectory]:
    """The one row of an episode by the page's function, what was sampled, and the record."""
    (folder / "words.py").write_text(WORDS)
    (folder / "spec.yaml").write_text(spec)
    environment, sampler = rlenv.load(folder / "spec.yaml"), Sampler(texts)
    encoder = rlenv.bind(small_tokenizer(), environment, chat_template=CHAT_TEMPLATE)

    async def run() -> tuple[list[dict[str, Any]], rlenv.Trajectory]:
        async with environment:
            rollout = the_pages_functions()["rollout"]
            given = {"task": 0, "split": "train", "max_response_tokens": 8192, **limits}
            found: tuple[list[dict[str, Any]], rlenv.Trajectory] = await rollout(environment, encoder, sampler, **given)
            return found

    (row,), trajectory = asyncio.run(run())
    return row, sampler, environment, trajectory


def rendered(environment: rlenv.Environment, trajectory: rlenv.Trajectory) -> str:
    """The text of the whole conversation: the template's own, by jinja alone; in a dialect of one growing turn the
    dialect's behind the prompt."""
    template = jinja2.Environment().from_string(CHAT_TEMPLATE)
    template.environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    messages = [message.as_dict() for message in trajectory.messages]
    if environment.same_turn is not None:
        text = template.render(messages=messages, add_generation_prompt=True)
        for turn in trajectory.turns:
            text += turn.action
            if turn.observation is not None:
                text += environment.parts.dialect.render_observation(turn.observation.messages)
        return text
    for turn in trajectory.turns:
        messages.append({"role": "assistant", "content": turn.action})
        if turn.observation is not None:
            messages += [{"role": one.role, "content": one.content} for one in turn.observation.messages]
    tools = list(environment.toolsets.of(trajectory.task).schemas)
    return template.render(messages=messages, tools=tools, add_generation_prompt=not trajectory.answer)


def check(row: Mapping[str, Any], sampler: Sampler, whole: str) -> None:
    """What was sampled is trained, all of it and nothing else, and the ids are those of the whole text."""
    ids = [*row["prompt_ids"], *row["completion_ids"]]
    assert len(row["completion_ids"]) == len(row["mask"]) == len(row["logprobs"])
    trained = [
        (token, value)
        for token, value, one in zip(*(row[key] for key in ("completion_ids", "logprobs", "mask")), strict=True)
        if one
    ]
    assert trained == [(token, -0.5) for turn in sampler.sampled for token in turn]
    assert whole.startswith(small_tokenizer().decode(ids, skip_special_tokens=False))
    sampled_at = [False] * len(row["prompt_ids"]) + [bool(one) for one in row["mask"]]
    for is_sampled, run in groupby(zip(sampled_at, ids, strict=True), key=lambda pair: pair[0]):
        of_the_environment = [token for _, token in run]
        text = small_tokenizer().decode(of_the_environment, skip_special_tokens=False)
        # What quotes a mark is text, and stays text: that is no mark's token.
        assert is_sampled or "tool_call>" in text or small_tokenizer().encode(text).ids == of_the_environment


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_pages_rows_are_the_whole_conversation(situation: str, tmp_path: Path) -> None:
    spec, texts, limits, reason = SITUATIONS[situation]
    row, sampler, environment, trajectory = played(tmp_path, spec, texts, **limits)
    check(row, sampler, rendered(environment, trajectory))
    assert trajectory.reason == reason
    assert trajectory.reward.total == (1.0 if reason == "answer" else 0.0)
    if spec is CUT:
        turn = trajectory.turns[0]
        assert turn.observation is not None
        assert "left out" in turn.observation.messages[0].content
    if "turn_tokens" in limits:
        assert trajectory.turns[0].was_cut
    if spec in (LIMITED, BY_ROW_LIMITED):
        assert len(row["mask"]) <= 80


@pytest.mark.parametrize("situation", [*SITUATIONS, "a prompt that does not fit", "a reward that is invalid"])
def test_the_pages_function_for_trl_gives_a_row_of_the_same_ids_for_each_prompt(situation: str, tmp_path: Path) -> None:
    spec, texts, limits, _ = SITUATIONS.get(situation, SITUATIONS["plain"])
    if situation == "a prompt that does not fit":
        limits = {"max_prompt_tokens": 3}
    if situation == "a reward that is invalid":
        spec = SPEC.replace("kind: rule, rule: exact_match", "kind: rule, rule: python, function: 'words.py:down'")
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "spec.yaml").write_text(spec)
    environment = rlenv.load(tmp_path / "spec.yaml")
    encoder = rlenv.bind(small_tokenizer(), environment, chat_template=CHAT_TEMPLATE)
    rows = []
    for _ in range(2):
        limits = {"max_response_tokens": 8192, **limits}
        known = {"environment": environment, "encoder": encoder, "limits": limits, "sample": Sampler(texts)}
        got = the_pages_functions(**known)["rollout_func"](["0"], None)
        assert {name: len(column) for name, column in got.items()} == dict.fromkeys(got, 1)
        rows.append({name: column[0] for name, column in got.items()})
    rlenv.run_sync(environment.aclose)
    row = rows[0]
    assert rows[1] == row
    if situation not in SITUATIONS:
        assert (row["reward"], set(row["env_mask"])) == (None, {0})
        return
    alone, _, _, trajectory = played(tmp_path, spec, texts, **limits)
    alone["env_mask"], alone["reward"] = alone.pop("mask"), trajectory.reward.total
    assert row == alone


def test_a_budget_that_is_used_up_ends_the_episode_as_it_stands(tmp_path: Path) -> None:
    row, *_ = played(tmp_path, SPEC, (CALL, ANSWER))
    answered = len(row["mask"]) - row["mask"][::-1].index(0)
    row, sampler, environment, trajectory = played(tmp_path, SPEC, (CALL,), max_response_tokens=answered)
    check(row, sampler, rendered(environment, trajectory))
    assert (len(row["mask"]), trajectory.reason) == (answered, "response_tokens")
    assert trajectory.reward.total == 0.0


def test_a_prompt_that_does_not_fit_has_no_rows_and_no_reward(tmp_path: Path) -> None:
    environment = rlenv.load("arithmetic")
    encoder = rlenv.bind(small_tokenizer(), environment, chat_template=CHAT_TEMPLATE)

    async def play() -> rlenv.TokenEpisode:
        async with environment, rlenv.TokenEpisode(environment, encoder, max_prompt_tokens=3) as one:
            return one

    one = asyncio.run(play())
    assert (one.rows, one.is_ended, one.trajectory.reward.total) == ([], True, None)
    with pytest.raises(rlenv.UsageError):
        _ = one.context_ids


def token_episode(folder: Path, work: Any, *, spec: str = SPEC, **limits: Any) -> Any:
    """What `work` gives of an open token episode."""
    (folder / "words.py").write_text(WORDS)
    (folder / "spec.yaml").write_text(spec)
    environment = rlenv.load(folder / "spec.yaml")
    encoder = rlenv.bind(small_tokenizer(), environment, chat_template=CHAT_TEMPLATE)

    async def main() -> Any:
        async with environment, rlenv.TokenEpisode(environment, encoder, **limits) as one:
            return await work(one)

    return asyncio.run(asyncio.wait_for(main(), 60))


def ids_of(text: str, *, ends: bool) -> list[int]:
    ids = small_tokenizer().encode(text).ids
    return [*ids, small_tokenizer().token_to_id("<|im_end|>")] if ends else ids


@pytest.mark.parametrize(
    ("text", "ends", "spare", "given", "reason"),
    [
        ("so it is", False, 0, None, "length"),
        ("so it is", True, 0, None, ""),
        ("so it is", False, 1, None, ""),
        ("so it is", False, 1, "length", "length"),
        ("so it is", False, 0, "stop", "stop"),
        ("", False, 0, None, ""),
    ],
)
def test_a_turn_of_all_tokens_without_an_end_was_cut_unless_the_sampler_says_otherwise(
    tmp_path: Path, text: str, ends: bool, spare: int, given: str | None, reason: str
) -> None:
    ids = ids_of(text, ends=ends)

    async def work(one: rlenv.TokenEpisode) -> None:
        assert one.max_tokens == max(len(ids) + spare, 1)
        sampled = one.take(ids, finish_reason=given)
        assert (sampled.finish_reason, sampled.token_ids, sampled.action) == (reason, tuple(ids), text)

    token_episode(tmp_path, work, turn_tokens=max(len(ids) + spare, 1))


@pytest.mark.parametrize(
    ("spec", "limits", "most"),
    [
        (SPEC, {}, None),
        (SPEC, {"turn_tokens": 7}, 7),
        (SPEC, {"max_response_tokens": 5, "turn_tokens": 7}, 5),
        (SPEC, {"max_response_tokens": 9, "turn_tokens": 7}, 7),
        (LIMITED, {"max_response_tokens": 90}, 80),
        (LIMITED, {"max_response_tokens": 70}, 70),
        (BY_ROW_LIMITED, {}, 80),
    ],
)
def test_a_turn_has_the_least_of_all_rooms(tmp_path: Path, spec: str, limits: dict[str, int], most: int | None) -> None:
    async def work(one: rlenv.TokenEpisode) -> None:
        assert (one.max_tokens, one.sampling["max_tokens"]) == (most, most)

    token_episode(tmp_path, work, spec=spec, **limits)


def test_a_turn_whose_step_was_interrupted_is_the_last_of_the_record(tmp_path: Path) -> None:
    async def work(one: rlenv.TokenEpisode) -> None:
        await one.step(ids_of(CALL, ends=True))
        one.take(ids_of("and then", ends=True))
        trajectory = await one.truncate("straggler")
        assert [turn.action for turn in trajectory.turns] == [CALL, "and then"]
        assert (trajectory.reason, one.is_ended, one.trajectory) == ("straggler", True, trajectory)
        assert one.step_s > 0

    token_episode(tmp_path, work)


def test_an_episode_that_is_left_before_a_turn_records_none(tmp_path: Path) -> None:
    async def work(one: rlenv.TokenEpisode) -> None:
        await one.step(ids_of(CALL, ends=True))
        assert len((await one.truncate("left")).turns) == 1

    token_episode(tmp_path, work)


CLOSING = """
from contextlib import contextmanager

closed = []


@contextmanager
def world():
    yield 1
    closed.append(1)


def look(word: str) -> str:
    '''Looks.'''
    return str(len(closed))
"""


def test_what_an_episode_has_open_is_closed_with_it(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text(CLOSING)
    (tmp_path / "spec.yaml").write_text(SPEC + "resources: {world: {kind: python, function: 'words.py:world'}}\n")
    environment = rlenv.load(tmp_path / "spec.yaml")
    encoder = rlenv.bind(small_tokenizer(), environment, chat_template=CHAT_TEMPLATE)

    async def main() -> list[str]:
        seen = []
        for _ in range(2):
            async with rlenv.TokenEpisode(environment, encoder) as one:
                await one.step(ids_of(CALL, ends=True))
                seen.append(one.episode.turns[0].results[0].text)
        return seen

    assert asyncio.run(main()) == ["0", "1"]
