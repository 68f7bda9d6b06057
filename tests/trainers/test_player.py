"""Samples for trainers that take and give ids: as sampled, cut where a turn ends, no number for an outage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.runs.folder import open_run
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv_train.keeping import Keeper
from rlenv_train.player import Address, Player, addresses

pytest.importorskip("tokenizers")

SPEC = """
rlenv: 1
name: sums
tasks: {train: {rows: [{question: "What is 2 + 3?", answer: 5}, {question: "What is 4 + 4?", answer: 8}]}}
prompt: {user: "{{ task.question }}"}
tools: {calculate: {kind: calculator}}
rewards: {correct: {kind: rule, rule: numeric_match}}
"""
COMPARED = "  rank: {kind: group, of: correct, by: rank, weight: 0.5}\n"
DOWN = "  up: {kind: rule, rule: python, function: 'service.py:up'}\n"
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
END = "<|im_end|>"


def ids(text: str) -> list[int]:
    found: list[int] = small_tokenizer().encode(text).ids
    return found


def made(folder: Path, more: str = "", **options: Any) -> Player:
    (folder / "service.py").write_text("def up(context):\n    raise RuntimeError('the service is down')\n")
    (folder / "spec.yaml").write_text(SPEC.replace("rewards: {correct: {kind: rule, rule: numeric_match}}", "rewards:\n"
        "  correct: {kind: rule, rule: numeric_match}\n" + more))  # fmt: skip
    return Player([rlenv.load(folder / "spec.yaml")], small_tokenizer(), chat_template=CHAT_TEMPLATE, **options)


async def fed(player: Player, *turns: list[int]) -> Any:
    sample = player.start(Address("sums", "train", 0))
    await sample.open()
    for turn in turns:
        await sample.feed(turn, [-0.5] * len(turn))
    return sample


def test_an_address_is_read_from_a_mapping_a_text_and_a_prompt(tmp_path: Path) -> None:
    first, second = addresses(made(tmp_path).environments["sums"], "train", seed=3)
    assert second == Address("sums", "train", 1, 3)
    for given in (second.as_dict(), second.as_prompt(), second.as_prompt()[0]["content"]):
        assert Address.of(given) == second
    assert Address.of(first.as_dict()) != second
    for wrong in ("What is 2 + 3?", [], {"task": 1}, 7, [{"role": "user", "content": "[]"}]):
        with pytest.raises(rlenv.UsageError, match="is no address of an episode"):
            Address.of(wrong)


def test_what_is_sampled_is_the_row(tmp_path: Path) -> None:
    async def main() -> Any:
        player = made(tmp_path)
        sample = await fed(player, ids(CALL + END), ids("<answer>5</answer>" + END))
        return (await player.outcomes([sample]))[0]

    outcome, figures = asyncio.run(main())
    (row,) = outcome.rows
    sampled = [token for token, trained in zip(row.response_ids, row.mask, strict=True) if trained]
    assert sampled == ids(CALL + END) + ids("<answer>5</answer>" + END)
    assert "<tool_response>\n5" in small_tokenizer().decode(row.response_ids, skip_special_tokens=False)
    assert [value for value, trained in zip(row.logprobs, row.mask, strict=True) if trained] == [-0.5] * len(sampled)
    assert (figures.reward, figures.success, figures.calls) == (1.0, 1.0, 1)


def test_what_stands_behind_the_end_of_a_turn_is_no_part_of_it(tmp_path: Path) -> None:
    async def main() -> Any:
        player = made(tmp_path, turn_tokens=40)
        ended = await fed(player, ids("<answer>5</answer>" + END + "<answer>6</answer>" + END))
        long = await fed(player, ids("five " * 100))
        return [one.rows[0].response_ids for one, _ in await player.outcomes([ended, long])]

    ended, long = asyncio.run(main())
    assert list(ended) == ids("<answer>5</answer>" + END)
    assert list(long) == ids("five " * 100)[:40]


def test_an_outage_is_masked_and_kept(tmp_path: Path) -> None:
    async def main() -> Any:
        player = made(tmp_path, DOWN, keeper=Keeper(tmp_path / "run"))
        sample = await fed(player, ids("<answer>5</answer>" + END))
        ends = await player.outcomes([sample])
        assert player.keeper is not None
        player.keeper.close()
        return ends[0]

    outcome, figures = asyncio.run(main())
    (row,) = outcome.rows
    assert (figures.reward, figures.masked, figures.is_invalid) == (None, "reward", True)
    assert len(row.response_ids) == len(row.mask) > 0
    assert not any(row.mask)
    assert open_run(tmp_path / "run").table["reward"].to_pylist() == [None]


def test_an_episode_that_never_had_a_prompt_has_one_id(tmp_path: Path) -> None:
    async def main() -> Any:
        player = made(tmp_path, max_prompt_tokens=3)
        sample = player.start(Address("sums", "train", 0))
        await sample.open()
        return (await player.outcomes([sample]))[0]

    outcome, figures = asyncio.run(main())
    assert (figures.reward, figures.ended) == (None, "prompt_tokens")
    assert [len(part) for part in (outcome.rows[0].prompt_ids, outcome.rows[0].response_ids)] == [1, 1]


def test_the_samples_of_a_step_share_a_seed_and_those_of_another_step_do_not(tmp_path: Path) -> None:
    player = made(tmp_path)
    address = Address("sums", "train", 0)
    seeds = [player.start(address, step=step, sample=at).played.episode.seed for step, at in ((1, 0), (1, 1), (2, 0))]
    assert seeds[0] == seeds[1] != seeds[2]
    held_out = [player.start(address, step=step, is_validation=True).played.episode.seed for step in (1, 2)]
    assert held_out[0] == held_out[1]


def test_terms_that_compare_are_measured_over_the_group_without_the_masked(tmp_path: Path) -> None:
    async def main() -> Any:
        player = made(tmp_path, COMPARED)
        right = ids("<answer>5</answer>" + END)
        wrong = ids("<answer>6</answer>" + END)
        group = [await fed(player, turn) for turn in (right, wrong, [])]
        with pytest.raises(rlenv.UsageError, match="compare the answers to one task"):
            await player.play(Address("sums", "train", 0), fed)
        return [figures for _, figures in await player.outcomes(group)]

    first, second, empty = asyncio.run(main())
    assert (first.terms["rank"], second.terms["rank"]) == (1.0, 0.0)
    assert (first.reward, second.reward) == (1.5, 0.0)
    assert (empty.masked != "", empty.reward) == (True, None)


def test_a_history_of_several_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rlenv.UsageError, match="one training row"):
        made(tmp_path, history="rows")


def test_an_unknown_spec_is_named_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(rlenv.UsageError, match=r"no spec of this run is called 'sum'.*sums"):
        made(tmp_path).start(Address("sum", "train", 0))


@pytest.mark.parametrize("words", [0, 1, 6_000])
@pytest.mark.parametrize("behind", ["", "<search>b</search> and more", "</sea"])
def test_a_turn_ends_behind_the_first_text_that_ends_it_however_long_it_is(
    words: int, behind: str, tmp_path: Path
) -> None:
    """Were 30,000 ids read as text with one more at a time, all others would wait for half a minute."""
    spec = SPEC.replace("name: sums", "name: sums\ndialect: search_r1").replace("numeric_match", "search_r1, expect: x")
    (tmp_path / "service.py").write_text('def find(query: str) -> str:\n    """Find."""\n    return "found"\n')
    spec = spec.replace("{calculate: {kind: calculator}}", '{search: {kind: python, function: "service.py:find"}}')
    (tmp_path / "spec.yaml").write_text(spec)
    player = Player([rlenv.load(tmp_path / "spec.yaml")], small_tokenizer(), chat_template=CHAT_TEMPLATE)
    said = f"<think>{'word ' * words}</think><search>a</search>"
    sample = asyncio.run(fed(player, ids(said + behind)))
    assert sample.played.episode.turns[0].action == said
    assert sample.played.episode.turns[0].results[0].text == "found"
