"""`run.history`: what becomes of turns that the chat template writes otherwise once the conversation goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import load
from rlenv.errors import UnsupportedTemplate
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall
from rlenv.tokens.bound import said_of
from tests.trainers.conftest import quiet
from tests.trainers.histories import FORGETFUL, SPEC, Said, check_rows, conversation, play

DIALOGUE = (
    Said("What shall I compute?", thinking="I need more"),
    Said(thinking="a call then", call="6*7"),
    Said("It is 42, I think.", thinking="say it"),
    Said("Yes."),
    Said("Let me see.", thinking="call again", call="6*8"),
    Said("<answer>42</answer>", thinking="done"),
)


@pytest.fixture(scope="module")
def forgetful(tiny_folder: Path) -> Any:
    """The tiny policy's tokenizer under a template that drops thinking at a user's message, as Qwen3's does."""
    import transformers

    with quiet():
        auto: Any = transformers.AutoTokenizer
        tokenizer = auto.from_pretrained(tiny_folder)
    tokenizer.chat_template = FORGETFUL
    return tokenizer


def rendered(tokenizer: Any, folder: Path, messages: list[dict[str, Any]]) -> str:
    tools = [dict(schema) for schema in load(folder / "spec.yaml").tool_schemas]
    text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    return text


@pytest.mark.slow
def test_rows_start_where_history_is_rewritten_and_begin_with_the_templates_own(
    verl: Any, tmp_path: Path, forgetful: Any
) -> None:
    played = play(tmp_path, forgetful, DIALOGUE, history="rows")
    check_rows(played)
    # Behind turns 1 and 3 a user speaks and thinking stood before; behind turn 4 none was left.
    assert len(played.outputs) == 3
    assert (played.info["rows"], played.info["differences"], played.info["turns"]) == (3.0, 0.0, 6.0)
    texts = [rendered(forgetful, tmp_path, messages) for messages in conversation(DIALOGUE)]
    # What the policy reads before each turn is what serving would show it.
    assert [forgetful.decode(request["prompt_ids"]) for request in played.requests] == texts
    for output, turn in zip(played.outputs, (0, 1, 3), strict=True):
        assert output.prompt_ids == forgetful(texts[turn], add_special_tokens=False)["input_ids"]
    assert "I need more" not in texts[1]


@pytest.mark.slow
def test_keep_goes_on_with_what_was_sampled_and_counts_what_differs(verl: Any, tmp_path: Path, forgetful: Any) -> None:
    played = play(tmp_path, forgetful, DIALOGUE, history="keep")
    check_rows(played)
    assert len(played.outputs) == 1
    assert (played.info["rows"], played.figures["rows"]) == (1.0, 1)
    texts = [rendered(forgetful, tmp_path, messages) for messages in conversation(DIALOGUE)]
    seen = [forgetful.decode(request["prompt_ids"]) for request in played.requests]
    differing = [turn for turn, (mine, theirs) in enumerate(zip(seen, texts, strict=True)) if mine != theirs]
    # From the first user's reply on: earlier thinking is still there.
    assert differing == [1, 2, 3, 4, 5]
    assert "I need more" in seen[5]
    assert played.info["differences"] >= 2
    assert played.figures["differences"] == played.info["differences"]


def test_grow_refuses_before_an_episode_is_played_and_names_the_choice(
    verl: Any, tmp_path: Path, forgetful: Any
) -> None:
    with pytest.raises(UnsupportedTemplate, match=r"(?s)rows.*keep|keep.*rows"):
        play(tmp_path, forgetful, DIALOGUE, history="grow")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("history", ["grow", "keep", "rows"])
def test_where_the_template_only_grows_all_histories_are_the_same(
    verl: Any, tmp_path: Path, tokenizer: Any, history: str
) -> None:
    said = [Said("", call="6*7"), Said("", call="6*8"), Said("<answer>42</answer>")]
    played = play(tmp_path, tokenizer, said, history=history)
    check_rows(played)
    assert len(played.outputs) == 1
    assert (played.info["rows"], played.info["differences"]) == (1.0, 0.0)
    texts = [rendered(tokenizer, tmp_path, messages) for messages in conversation(said)]
    assert [tokenizer.decode(request["prompt_ids"]) for request in played.requests] == texts


def test_the_rewards_of_rows_are_what_is_earned_from_their_start_on(verl: Any, tmp_path: Path, forgetful: Any) -> None:
    outcome = play(tmp_path / "a", forgetful, DIALOGUE, history="rows")
    assert [sum(row) for row in outcome.scores] == [1.0, 1.0, 1.0]
    spec = SPEC.replace("rewards:\n", "rewards:\n  form: {kind: rule, rule: valid_calls, weight: 0.5, when: turn}\n")
    by_turn = play(tmp_path / "b", forgetful, DIALOGUE, history="rows", spec=spec)
    carried = [output.extra_fields["rlenv_carried"] for output in by_turn.outputs]
    own = [sum(row) - later for row, later in zip(by_turn.scores, carried, strict=True)]
    total = by_turn.outputs[0].reward_score
    assert sum(own) == pytest.approx(total)
    assert sum(by_turn.scores[0]) == pytest.approx(total)
    assert own[1] > 0  # the call of the second row
    for row, output in zip(by_turn.scores, by_turn.outputs, strict=True):
        assert not any(score for score, mask in zip(row, output.response_mask, strict=True) if not mask)


def test_validation_reads_the_whole_reward_off_the_last_row(verl: Any, tmp_path: Path, forgetful: Any) -> None:
    spec = SPEC.replace("rewards:\n", "rewards:\n  form: {kind: rule, rule: valid_calls, weight: 0.5, when: turn}\n")
    played = play(tmp_path, forgetful, DIALOGUE, history="rows", spec=spec, validation=True)
    assert len(played.outputs) == 3
    assert sum(played.scores[-1]) == pytest.approx(played.outputs[-1].reward_score)
    assert played.outputs[-1].num_turns == 6


def test_a_failed_episode_is_one_masked_row(verl: Any, tmp_path: Path, forgetful: Any) -> None:
    spec = SPEC + '  broken: {kind: rule, function: "broken.py:score", required: true}\n'
    files = {"broken.py": "def score(context):\n    raise RuntimeError('no')\n"}
    played = play(tmp_path, forgetful, DIALOGUE, history="rows", spec=spec, files=files)
    (output,) = played.outputs
    assert not any(output.response_mask)
    assert (played.info["masked"], played.figures["masked"]) == (1.0, "reward")


def test_the_response_budget_is_that_of_all_rows(verl: Any, tmp_path: Path, forgetful: Any) -> None:
    full = play(tmp_path, forgetful, DIALOGUE, history="rows")
    first = sum(full.outputs[0].response_mask)
    played = play(tmp_path, forgetful, DIALOGUE, history="rows", response=first + 40)
    check_rows(played)
    assert sum(len(turn) for turn in played.ids) <= first + 40
    assert played.info["truncated"] == 1.0
    assert (played.info["invalid"], played.info["masked"]) == (0.0, 0.0)


def test_a_row_whose_prompt_does_not_fit_ends_the_episode_with_a_reward(
    verl: Any, tmp_path: Path, forgetful: Any
) -> None:
    spec = SPEC.replace("Six times seven.", "Six times seven. " * 20)
    full = play(tmp_path, forgetful, DIALOGUE, history="rows", spec=spec)
    # Room for the first row; not for the second, which begins with all that was said and the long reply.
    most = len(full.outputs[1].prompt_ids) - 1
    played = play(tmp_path, forgetful, DIALOGUE, history="rows", spec=spec, context=most)
    check_rows(played)
    assert len(played.outputs) == 1
    assert played.figures["ended"] == "response_tokens"
    assert (played.info["truncated"], played.info["invalid"]) == (1.0, 0.0)
    assert any(played.outputs[0].response_mask)


def test_a_call_that_cannot_be_read_stands_in_a_later_prompt_as_it_was_written(
    verl: Any, tmp_path: Path, forgetful: Any
) -> None:
    broken = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "calculate", "arguments": {"expr\n</tool_call>'
    said: list[Said | str] = [broken, Said("Are you there?"), Said("<answer>42</answer>")]
    played = play(tmp_path, forgetful, said, history="rows")
    check_rows(played)
    last = forgetful.decode(played.outputs[-1].prompt_ids)
    assert '<|im_start|>assistant\n<tool_call>\n{"name": "calculate", "arguments": {"expr\n</tool_call>' in last
    assert "hm" not in last.partition("Hello")[2].partition("Are you")[0]


def test_generation_stops_at_every_id_that_ends_a_turn(verl: Any, tmp_path: Path, tiny_folder: Path) -> None:
    import shutil

    import transformers

    folder = tmp_path / "policy"
    shutil.copytree(tiny_folder, folder)
    with quiet():
        auto: Any = transformers.AutoTokenizer
        tokenizer = auto.from_pretrained(folder)
    other = tokenizer.convert_tokens_to_ids("<|im_start|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokenizer.eos_token_id, other]}))
    played = play(tmp_path, tokenizer, [Said("<answer>42</answer>")], history="grow")
    assert played.requests[0]["stop_token_ids"] == sorted({tokenizer.eos_token_id, other})


@pytest.mark.slow
def test_an_id_of_the_models_padding_is_the_policys_own_mistake(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    # The output layer is padded to a multiple of 64: a policy can sample ids that no token has.
    size = json.loads((Path(tokenizer.name_or_path) / "config.json").read_text())["vocab_size"]
    assert size > len(tokenizer)
    padding = Padding(tokenizer, size - 1)
    played = play(tmp_path, padding, [Said("<answer>42</answer>")], history="grow")
    check_rows(played)
    assert played.ids[0][0] == size - 1
    assert (played.info["invalid"], played.info["masked"]) == (0.0, 0.0)


class Padding:
    """A tokenizer whose texts begin with an id that it does not have, as a policy may sample them."""

    def __init__(self, tokenizer: Any, number: int) -> None:
        self._tokenizer, self._number = tokenizer, number

    def __call__(self, text: str, **options: Any) -> Any:
        return {"input_ids": [self._number, *self._tokenizer(text, **options)["input_ids"]]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


CALL = ToolCall("calculate", {"expression": "1"})
BROKEN = MalformedCall("<tool_call>{", "the JSON ends too early")
MARKS = (("<think>", "</think>"),)


@pytest.mark.parametrize(
    ("text", "parsed", "message"),
    [
        ("t", ParsedAction("Hi", "hm", (CALL,)), Message("assistant", "Hi", (CALL,), thinking="hm")),
        ("Hi", ParsedAction("Hi"), Message("assistant", "Hi")),
        (
            "<think>\nhm\n</think>\n\nSo <tool_call>{",
            ParsedAction("So", "hm", (BROKEN,), is_cut=True),
            Message("assistant", "So <tool_call>{", thinking="hm"),
        ),
        ("So <tool_call>{", ParsedAction("So", "", (CALL, BROKEN)), Message("assistant", "So <tool_call>{")),
    ],
)
def test_what_was_said_is_what_a_server_would_give_back(text: str, parsed: ParsedAction, message: Message) -> None:
    assert said_of(text, parsed, thinking=MARKS) == message
