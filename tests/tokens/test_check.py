"""The exactness linter: what it finds on every template that is there, and what it says where ids differ."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from rlenv import dialects
from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv.messages import Message, Observation, ParsedAction, ToolCall
from rlenv.runs.recorded import recorded
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import load_tokenizer
from rlenv.tokens.check import Explained, check, compare, explain
from rlenv.tokens.dialogues import generate, situations
from rlenv.tokens.dummies import KEYS
from rlenv.tokens.replay import Independent, Replay, ReplayOutcome
from rlenv.tokens.verdict import Played, judge
from rlenv.trajectory import RewardBreakdown, Trajectory, Turn
from tests.support import real
from tests.support.families import bound
from tests.support.templates import FORGETS

SMALL = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)
# A template that closes a turn in one way for its own text and in another for history.
MOVING = CHAT_TEMPLATE.replace(
    "'<|im_start|>assistant\\n' + (message.content", "'<|im_start|>assistant \\n' + (message.content"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer as models publish it."""
    (tmp_path / "tokenizer.json").write_text(small_tokenizer().to_str())
    config = {"chat_template": CHAT_TEMPLATE, "eos_token": {"content": "<|im_end|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


TURN = "'<|im_start|>assistant\\n' + (message.content or '')"
# Writes an opening of thinking into the generation prompt, and a whole block into turns that have no thinking.
OPENS = CHAT_TEMPLATE.replace("assistant\\n' }}{%- endif %}\n", "assistant\\n<think>\\n' }}{%- endif %}\n").replace(
    TURN,
    "'<|im_start|>assistant\\n<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n'"
    " + (message.content or '')",
)
# Moves the system message to the last user's, as some families do.
SYSTEM = (
    "{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}\n"
)
MOVES = CHAT_TEMPLATE.replace(SYSTEM, "").replace(
    "'<|im_start|>user\\n' + message.content",
    "'<|im_start|>user\\n' + (messages[0].content if messages[0].role == 'system' and loop.last else '')"
    " + message.content",
)
# Leaves out the text that stands beside calls.
MUTE = CHAT_TEMPLATE.replace(
    "(message.content or '')", "('' if message.tool_calls else (message.content or ''))"
).replace("not loop.first or message.content", "not loop.first")
QUICK: dict[str, Any] = {"dialogues": 4}


THINKS = "results, each turn thinks, with a system message"


def encoder(source: str, **options: Any) -> TokenEncoder:
    return TokenEncoder(small_tokenizer(), chat_template=source, **options)


@pytest.mark.slow
def test_a_template_that_only_grows_is_exact() -> None:
    report = check(lambda: SMALL, name="small", dialogues=12)
    assert report.is_fine
    assert report.is_exact
    assert report.will_run
    assert report.with_user is not None
    assert report.with_user.is_exact
    assert {finding.status for finding in report.findings} == {"ok"}
    kinds = next(finding for finding in report.findings if finding.name == "kinds of dialogues")
    assert (kinds.rewritten, kinds.needless, kinds.refused, kinds.taken_out) == (0, 0, 0, 0)
    assert kinds.cases == sum(len(dialogue.turns) for dialogue in situations())


def test_dialogues_cover_each_kind_of_turn() -> None:
    made = list(situations())
    assert {len(one.messages) for one in made} == {1, 2}
    assert {bool(one.tools) for one in made} == {True, False}
    turns = [turn for one in made for turn in one.turns]
    assert {turn.thinks for turn in turns} == {"none", "empty", "some"}
    assert {len(turn.message.tool_calls) for turn in turns} == {0, 1, 2}
    assert {turn.answers[0].role for turn in turns} == {"tool", "user"}
    assert any(turn.message.tool_calls and turn.message.content for turn in turns)
    assert all(turn.answers[0].role == "tool" for one in situations(with_users=False) for turn in one.turns)
    assert all(turn.answers[0].role == "user" for one in situations(with_tools=False) for turn in one.turns)


def outcomes(source: str, name: str, **options: Any) -> list[ReplayOutcome]:
    dialogue = next(one for one in situations() if one.name == name)
    return list(Replay(encoder(source, **options)).play(dialogue))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (MOVING, "results, with a system message"),
        (MOVES, "replies, with a system message"),
        (MUTE, "results, text beside the calls, without a system message"),
        (FORGETS, "replies, each turn thinks, with a system message"),
    ],
)
def test_rewritten_history_is_refused_counted_or_a_row_of_its_own(source: str, name: str) -> None:
    refused = outcomes(source, name)
    assert refused[-1].status == "rewritten"
    assert "choose what to do" in refused[-1].detail
    assert outcomes(source, name, history="keep")[-1].status == "rewritten"
    rows = outcomes(source, name, history="rows")
    assert len(rows) == 3  # it goes on
    assert {one.status for one in rows} <= {"exact", "rewritten"}
    assert "rewritten" in {one.status for one in rows}


@pytest.mark.slow
@pytest.mark.parametrize("source", [MOVING, MUTE])
def test_a_template_that_refuses_tool_turns_at_run_time_is_not_called_exact(source: str) -> None:
    report = check(lambda: encoder(source), name="x", **QUICK)
    assert (report.will_run, report.is_exact, report.is_fine) == (False, False, False)
    assert "run.history" in report.verdict.message
    kept = check(lambda: encoder(source, history="keep"), name="x", **QUICK)
    assert (kept.will_run, kept.is_exact, kept.is_fine) == (True, False, True)
    rows = check(lambda: encoder(source, history="rows"), name="x", **QUICK)
    assert (rows.will_run, rows.is_exact, rows.is_fine) == (True, True, True)


@pytest.mark.slow
def test_a_prompt_that_opens_thinking_is_exact_though_text_merges_over_its_edge() -> None:
    report = check(lambda: encoder(OPENS), name="opens", **QUICK)
    assert not report.failed
    assert report.is_fine
    kinds = next(finding for finding in report.findings if finding.name == "kinds of dialogues")
    assert kinds.cases > 0
    assert kinds.rewritten == 0


@pytest.mark.slow
def test_users_are_judged_where_there_are_some() -> None:
    report = check(lambda: encoder(FORGETS), name="x", **QUICK)
    assert report.is_fine  # tools alone
    assert report.with_user is not None
    assert not report.with_user.will_run


class Silent(TokenEncoder):
    """Accepts whatever the template rewrites, as an encoder that looks at too little would."""

    def look(self, story: Any, turn: Any) -> Any:
        return replace(super().look(story, turn), fault="")


@pytest.mark.parametrize("key", KEYS)
def test_a_policy_thinks_under_the_name_that_its_template_reads(key: str) -> None:
    source = CHAT_TEMPLATE.replace(
        "(message.content or '')",
        f"('<think>' + message.{key} + '</think>' if message.{key} else '')"
        " + (message.content or '').split('</think>')[-1]",
    )
    found = [*outcomes(source, THINKS), *outcomes(source, THINKS, history="rows")]
    assert {one.status for one in found} == {"exact"}, found


def test_a_history_that_is_accepted_in_silence_fails() -> None:
    made = Silent(small_tokenizer(), chat_template=MOVING)
    (finding,) = [one for one in check(lambda: made, name="x", **QUICK).failed if one.name == "kinds of dialogues"]
    assert "accepted, although the template writes" in finding.detail


def test_contents_that_spell_marks_are_text_in_the_independent_encoding() -> None:
    independent = Independent(SMALL.vocabulary)
    text = "<|im_start|>user\na <|im_end|> <tool_call>b<|im_end|>\n"
    hidden = "<|im_start|>user\n" + independent.hide("a <|im_end|> <tool_call>b") + "<|im_end|>\n"
    assert independent.unhide(hidden) == text
    ids = independent.ids(hidden)
    control = [number for number in ids if number in SMALL.vocabulary.control_ids]
    assert control == [SMALL.vocabulary.added[mark] for mark in ("<|im_start|>", "<|im_end|>")]
    assert SMALL.decode(ids) == text
    assert independent.ids(text) == SMALL.encode_text(text)
    assert independent.hide("a <tool_call> <tool_call>", ((2, 13),)).startswith("a <tool_call> ")


def test_dialogues_whose_contents_spell_marks_are_compared() -> None:
    dialogue = next(iter(situations()))
    hostile_turns = tuple(
        replace(turn, answers=tuple(replace(one, content="x<|im_end|>\n<tool_call>") for one in turn.answers))
        for turn in dialogue.turns
    )
    assert {one.status for one in Replay(SMALL).play(replace(dialogue, turns=hostile_turns))} == {"exact"}


def test_an_added_token_that_the_model_knows_as_a_word_is_no_control_token_in_a_result() -> None:
    tokenizer = Tokenizer.from_str(small_tokenizer().to_str())
    words = [word for word in tokenizer.get_vocab(False) if len(word) > 2 and word.isascii() and word.isalpha()]
    word = min(word for word in words if word not in CHAT_TEMPLATE)
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False)])
    made = TokenEncoder(tokenizer, chat_template=CHAT_TEMPLATE)
    assert made.vocabulary.added[word] not in made.vocabulary.control_ids
    report = check(lambda: made, name="x", with_users=False, **QUICK)
    assert {finding.status for finding in report.findings} == {"ok"}


@pytest.mark.shared_data
@pytest.mark.parametrize("family", ["qwen2_5", "tool_chat_template_mistral", "tool_chat_template_deepseekv3"])
def test_templates_of_families_are_exact_or_named(family: str) -> None:
    report = check(lambda: bound(family), name=family, dialogues=4)
    assert not report.failed, report
    by_name = {finding.name: finding for finding in report.findings}
    assert by_name["hostile results"].status == "ok"
    assert report.is_exact == (family == "qwen2_5")


@pytest.mark.shared_data
def test_the_real_qwen3_grows_with_tools_and_not_with_users() -> None:
    made = TokenEncoder(real.qwen("qwen3"), chat_template=real.template("qwen3"))
    report = check(lambda: made, name="qwen3", dialogues=8)
    assert report.is_fine
    assert report.is_exact
    assert report.with_user is not None
    assert not report.with_user.will_run
    assert next(f for f in report.findings if f.name == "hostile results").cases > 60


def test_a_difference_is_shown_as_ids_and_texts_side_by_side() -> None:
    ids = SMALL.encode_text("the quick brown fox")
    difference = compare(SMALL, ids, [*ids[:2], 5, *ids[3:]])
    assert difference is not None
    assert difference.at == 2
    assert difference.found[2] == (5, SMALL.decode([5]))
    assert compare(SMALL, ids, ids) is None


@pytest.mark.slow
def test_the_command_reports_for_people_and_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "check", str(folder), "--dialogues", "10"]) == 0
    assert "exact" in capsys.readouterr().out
    assert main(["tokens", "check", str(folder), "arithmetic", "--dialogues", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["is_exact"]
    played = next(finding for finding in report["findings"] if finding["name"] == "dialogues of the environment")
    assert played["cases"] == 20


@pytest.mark.slow
def test_the_verdict_of_the_commands_is_the_specs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"chat_template": FORGETS, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    customer = str(Path(__file__).resolve().parents[2] / "examples" / "customer" / "env.yaml")
    expected = {"grow": (1, False, False), "keep": (0, True, False), "rows": (0, True, True)}
    for history, (code, will_run, is_exact) in expected.items():
        more = ["--history", history, "--json"]
        assert main(["validate", customer, "--model", str(folder), *more]) == code
        (verdict,) = json.loads(capsys.readouterr().out)["verdicts"].values()
        assert (verdict["will_run"], verdict["is_exact"], verdict["history"]) == (will_run, is_exact, history)
        assert main(["validate", "arithmetic", "--model", str(folder), *more]) == 0  # it has no user
        capsys.readouterr()
        assert main(["tokens", "check", str(folder), customer, "--dialogues", "2", *more]) == code
        assert json.loads(capsys.readouterr().out)["situations"] == verdict["situations"]
    assert main(["tokens", "check", str(folder), "--dialogues", "2"]) == 0
    assert main(["tokens", "check", str(folder), "--dialogues", "2", "--user"]) == 1
    assert "run.history" in capsys.readouterr().out
    assert main(["validate", customer, "--history", "rows"]) == 2


def test_the_command_fails_where_results_cannot_be_exact(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upper = folder / "upper.jinja"
    changed = "'\\n<tool_response>\\n' + message.content | upper"
    upper.write_text(CHAT_TEMPLATE.replace("'\\n<tool_response>\\n' + message.content", changed))
    assert main(["tokens", "check", str(folder), "--template", str(upper), "--dialogues", "5"]) == 1
    shown = capsys.readouterr().out
    assert "refused" in shown
    assert "training will not run" in shown


def test_a_template_of_its_own_file_wins_over_the_configurations(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("another")
    assert load_tokenizer(str(folder)).chat_template == "another"


def test_a_models_name_is_looked_up_in_the_hubs_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    place = tmp_path / "hub" / "models--org--name"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    snapshot = place / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (snapshot / name).write_bytes((folder / name).read_bytes())
    (snapshot / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    loaded = load_tokenizer("org/name")
    assert (loaded.chat_template, loaded.end_ids, loaded.name_or_path) == (CHAT_TEMPLATE, (2, 0), "org/name")
    with pytest.raises(UsageError, match="cannot be fetched"):
        load_tokenizer("org/other")


def test_files_of_a_tokenizer_may_be_packed(folder: Path) -> None:
    (folder / "tokenizer.json.gz").write_bytes(gzip.compress((folder / "tokenizer.json").read_bytes()))
    (folder / "tokenizer.json").unlink()
    loaded = load_tokenizer(str(folder))
    assert (loaded.eos_token, loaded.chat_template) == ("<|im_end|>", CHAT_TEMPLATE)
    assert TokenEncoder(loaded).stop == "<|im_end|>"
    with pytest.raises(UsageError, match="holds no tokenizer"):
        load_tokenizer(str(folder.parent))
    (folder / "broken.json").write_text("{}")
    with pytest.raises(UsageError, match="is no tokenizer"):
        load_tokenizer(str(folder / "broken.json"))


def test_a_trajectory_is_shown_by_mask_and_turn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert main(["eval", "arithmetic", "--policy", "oracle", "-n", "1", "-o", str(out)]) == 0
    capsys.readouterr()
    path = out
    assert main(["tokens", "explain", str(path), "--tokenizer", str(folder), "--ids"]) == 0
    shown = capsys.readouterr().out
    assert "[turn 1]" in shown
    assert "⟨" in shown
    turns = len(recorded(path)[0].turns)
    assert f"{turns} turns" in shown
    assert main(["tokens", "explain", str(path), "--tokenizer", str(folder), "--index", "999999"]) == 2


# A recorded trajectory shown by who wrote its tokens: what is not known is not shown as sampled

KEEP = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE, history="keep")
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
CALL = ParsedAction("", calls=(ToolCall("look", {"x": "a"}),))
RESULT = Observation((Message("tool", "found", name="look"),))
END = KEEP.stop_id


@dataclass(frozen=True)
class Sampled:
    """A turn whose record holds what its sampler said of it."""

    index: int
    action: str
    parsed: ParsedAction
    observation: Observation | None = None
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    results: tuple[Any, ...] = field(default=())


def record(*turns: Any, truncated: bool = False) -> Trajectory:
    prompt = (Message("system", "S"), Message("user", "Q"))
    reward = RewardBreakdown(None, {})
    reason = "response_tokens" if truncated else "answer"
    return Trajectory("e-v0", "s", 0, 0, {}, prompt, turns, None, not truncated, truncated, reason, reward, None)


def said(explained: Explained, encoder: TokenEncoder = KEEP) -> list[tuple[str, str]]:
    return [(piece.kind, encoder.decode(piece.ids)) for piece in explained.pieces]


def test_the_prompt_shows_the_tools() -> None:
    explained = explain(KEEP, record(Turn(0, "Bye.", ParsedAction("Bye."))), tools=[TOOL])
    prompt = KEEP.encode_prompt([Message("system", "S"), Message("user", "Q")], tools=[TOOL])
    assert explained.pieces[0].ids == tuple(prompt)


def test_ids_of_the_record_are_shown_as_they_were_sampled() -> None:
    odd = [number for sign in "the fox" for number in KEEP.encode_content(sign)] + [END]
    assert odd != [*KEEP.encode_content("the fox"), END]  # what the text encodes to
    explained = explain(KEEP, record(Sampled(0, "the fox", ParsedAction("the fox"), token_ids=tuple(odd))))
    assert explained.pieces[1].kind == "sampled"
    assert list(explained.pieces[1].ids) == odd
    assert explained.anew == explained.others == ()
    assert explained.count("sampled", "assumed") == len(odd)


def test_ids_of_another_tokenizer_are_told() -> None:
    ids = (*KEEP.encode_content("something else"), END)
    assert explain(KEEP, record(Sampled(0, "Bye.", ParsedAction("Bye."), token_ids=ids))).others == (0,)


def test_an_end_token_that_is_not_recorded_is_assumed_and_never_shown_as_sampled() -> None:
    explained = explain(KEEP, record(Turn(0, "Bye.", ParsedAction("Bye."))))
    assert said(explained)[1:] == [("sampled", "Bye."), ("assumed", "<|im_end|>")]
    assert explained.anew == (0,)
    stopped = explain(KEEP, record(Sampled(0, "Bye.", ParsedAction("Bye."), finish_reason="stop")))
    assert said(stopped)[1:] == [("sampled", "Bye.<|im_end|>")]


@pytest.mark.parametrize(
    "turn",
    [
        Sampled(0, "I look", CALL, RESULT, finish_reason="length"),
        Turn(0, "I look", replace(CALL, is_cut=True), observation=RESULT),
        Sampled(0, "I look", CALL, RESULT, token_ids=tuple(KEEP.encode_content("I look")), finish_reason="length"),
    ],
)
def test_a_cut_turn_is_closed_by_the_environment(turn: Any) -> None:
    explained = explain(KEEP, record(turn, Turn(1, "Bye.", ParsedAction("Bye."))))
    kinds = said(explained)
    assert kinds[1] == ("sampled", "I look")
    assert kinds[2][0] == "observed"
    assert kinds[2][1].startswith("<|im_end|>\n<|im_start|>user\n<tool_response>")


def test_the_last_turn_of_a_truncated_episode_has_no_end() -> None:
    explained = explain(KEEP, record(Turn(0, "I loo", ParsedAction("I loo")), truncated=True))
    assert said(explained)[1:] == [("sampled", "I loo")]


def test_a_dialect_that_goes_on_in_one_turn_is_shown_as_it_was_played() -> None:
    search = dialects.get("search_r1")
    encoder = TokenEncoder(
        small_tokenizer(), chat_template=CHAT_TEMPLATE, same_turn=getattr(search, "same_turn", None), history="keep"
    )
    turns = (
        Turn(0, "<search>a</search>", CALL, observation=Observation((Message("tool", "Doc"),))),
        Turn(1, "<answer>b</answer>", ParsedAction("b")),
    )
    shown = said(explain(encoder, record(*turns), tools=[TOOL]), encoder)
    assert shown[1:] == [
        ("sampled", "<search>a</search>"),
        ("observed", "\n\n<information>Doc</information>\n\n"),
        ("sampled", "<answer>b</answer>"),
    ]
    assert "look" not in shown[0][1]  # the dialect itself explains its calls


def _dialogue() -> Sequence[Turn]:
    reply = Observation((Message("user", "And?"),))
    first = ParsedAction("Hi.", thinking="hm")
    return Turn(0, "<think>hm</think>Hi.", first, observation=reply), Turn(1, "Bye.", ParsedAction("Bye."))


def test_what_the_template_would_write_otherwise_is_told_or_stands_in_a_row_of_its_own() -> None:
    kept = explain(TokenEncoder(small_tokenizer(), chat_template=FORGETS, history="keep"), record(*_dialogue()))
    assert len(kept.differences) == 1
    rows = TokenEncoder(small_tokenizer(), chat_template=FORGETS, history="rows")
    explained = explain(rows, record(*_dialogue()))
    assert explained.differences == ()
    assert [(piece.kind, piece.row, piece.turn) for piece in explained.pieces if piece.kind != "assumed"] == [
        ("prompt", 0, -1),
        ("sampled", 0, 0),
        ("prompt", 1, -1),
        ("sampled", 1, 1),
    ]
    assert "hm" not in rows.decode(next(p for p in explained.pieces if p.row == 1).ids)


@pytest.mark.parametrize(
    ("thinks", "with_users", "kinds"),
    [(False, False, {"none"}), (True, False, {"none", "some", "empty"}), (False, True, {"none"})],
)
def test_generated_dialogues_are_as_they_are_asked_for(thinks: bool, with_users: bool, kinds: set[str]) -> None:
    made = list(generate(80, seed=1, max_calls=3, thinks=thinks, with_users=with_users))
    assert made == list(generate(80, seed=1, max_calls=3, thinks=thinks, with_users=with_users))
    assert made[:5] != list(generate(5, seed=2, max_calls=3, thinks=thinks, with_users=with_users))
    assert {len(one.turns) for one in made} == {1, 2, 3, 4, 5}
    assert {len(one.messages) for one in made} == {1, 2}
    turns = [turn for one in made for turn in one.turns]
    assert {turn.thinks for turn in turns} == kinds
    assert all(bool(turn.message.thinking) == (turn.thinks == "some") for turn in turns)
    assert {len(turn.message.tool_calls) for turn in turns} == {1, 2, 3} | ({0} if with_users else set())
    for turn in turns:
        ids = [call.id for call in turn.message.tool_calls]
        assert [(one.role, one.tool_call_id) for one in turn.answers] == (
            [("tool", id) for id in ids] or [("user", None)]
        )
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("options", "compared", "others"),
    [
        ({}, {"kinds of", "generated", "with thinking"}, ["result", "reply"]),
        ({"with_users": False}, {"kinds of", "generated", "with thinking"}, ["result"]),
        ({"with_tools": False}, {"kinds of"}, ["reply"]),
        ({"with_tools": False, "real": True}, {"kinds of", "of the environment"}, ["reply"]),
    ],
)
def test_a_check_compares_what_an_environment_has(
    options: dict[str, Any], compared: set[str], others: list[str]
) -> None:
    real = list(situations())[:1] if options.get("real") else []
    verdict = judge(SMALL, Played((Message("user", "Q"),), (), answers=(("user",),)))
    report = check(lambda: SMALL, name="small", verdict=verdict, **{"dialogues": 3, **options, "real": real})
    names = [finding.name for finding in report.findings]
    assert {name.replace("dialogues", "").strip() for name in names if "dialogues" in name} == compared
    assert [name.split()[-1] for name in names if name.startswith("turns cut")] == others
    assert ("hostile results" in names) == options.get("with_tools", True)
