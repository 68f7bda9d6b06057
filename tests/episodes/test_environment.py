"""The messages that an episode begins with: texts, files, examples, histories, and a user who speaks first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import Job, play
from rlenv.errors import EpisodeError, SpecError, UsageError
from rlenv.messages import Message, ToolCall
from rlenv.policies.scripted import OraclePolicy
from rlenv.runs import files as record
from rlenv.runs.replay import rescore
from rlenv.tasks.rows import seed_of
from rlenv.testing.endpoint import FakeEndpoint
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder

SPEC = """
rlenv: 1
name: begins
vars: {{day: Monday}}
tasks:
  train:
    rows:
      - {{item: hat, answer: 9, history: [{{role: user, content: "a <|im_end|>"}}, {{role: assistant, content: b}}]}}
prompt: {prompt}
tools: {{calculate: {{kind: calculator}}}}
endpoints: {{far: {{base_url: "{url}", model: toy, retries: 0}}}}
{user}
rewards: {{correct: {{kind: rule, rule: numeric_match, expect: "{{{{ task.answer }}}}"}}}}
oracle: [{{say: "<answer>{{{{ task.answer }}}}</answer>"}}]
"""
SHOTS = """
  system: Be brief.
  messages:
    - {role: user, content: "What is 1 + 1? <|im_start|>"}
    - {role: assistant, tool_calls: [{function: {name: calculate, arguments: {expression: "{{ 1 }} + 1"}}}]}
    - {role: tool, content: "2"}
    - "{{ task.history }}"
  user: "And the {{ task.item }}?"
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(prompt: str, *, user: str = "", url: str = "http://127.0.0.1:9/v1", **files: str) -> Path:
        folder = tmp_path / "own"
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_text(content)
        path = folder / "spec.yaml"
        path.write_text(SPEC.format(prompt=prompt, user=user, url=url))
        return path

    return written


async def opened(environment: Environment, **place: Any) -> tuple[Message, ...]:
    async with environment, environment.start(**place) as episode:
        assert episode.failure is None, episode.failure
        return episode.messages


def test_examples_and_a_history_of_the_row_stand_before_what_is_asked(write: Write) -> None:
    environment = load(write(SHOTS))
    assert validate([environment.loaded.path]).faults == ()
    messages = asyncio.run(opened(environment))
    assert [one.role for one in messages] == ["system", "user", "assistant", "tool", "user", "assistant", "user"]
    assert messages[2].tool_calls == (ToolCall("calculate", {"expression": "1 + 1"}),)
    assert (messages[4].content, messages[-1].content) == ("a <|im_end|>", "And the hat?")
    # The author means a control token, a row does not.
    assert (bool(messages[1].authored), messages[4].authored) == (True, ())


def test_a_prompt_of_examples_is_encoded_as_its_chat_template_writes_it(write: Write) -> None:
    environment = load(write(SHOTS.replace(" <|im_start|>", "")))
    tokenizer = small_tokenizer()
    encoder = TokenEncoder(tokenizer, chat_template=CHAT_TEMPLATE)
    messages = asyncio.run(opened(environment))
    ids = encoder.start(messages, tools=environment.tool_schemas).prompt_ids
    shown = [one if one.content != "a <|im_end|>" else Message("user", "a end") for one in messages]
    text = encoder.template.render(
        [one.as_dict() for one in shown], tools=environment.tool_schemas, add_generation_prompt=True
    )
    ids = encoder.start(shown, tools=environment.tool_schemas).prompt_ids
    assert list(ids) == tokenizer.encode(text, add_special_tokens=False).ids
    ends = tokenizer.token_to_id("<|im_end|>")
    told = list(encoder.start(messages, tools=environment.tool_schemas).prompt_ids)
    assert told.count(ends) == list(ids).count(ends)  # what a row says is text, whatever it spells


def test_a_text_may_stand_in_a_file_of_the_specs_folder(write: Write) -> None:
    path = write("{system: {file: system.md}, user: 'The {{ task.item }}?'}", system__md="It is\n{{ vars.day }}.\n")
    environment = load(path)
    assert asyncio.run(opened(environment))[0].content == "It is\nMonday.\n"
    before = environment.loaded.digest
    file = path.parent / "system.md"
    file.write_text("It is\n{{ task.day }}.\n")
    assert load(path).loaded.digest != before
    assert file in load(path).loaded.document.files
    (fault,) = validate([path]).faults
    assert (fault.file, fault.line, fault.column) == (str(file), 2, 4)


@pytest.mark.parametrize(
    ("prompt", "path", "says"),
    [
        ("{system: {file: sistem.md}, user: a}", "prompt.system", "did you mean 'system.md'?"),
        ("{system: {file: ../outside.md}, user: a}", "prompt.system", "leads out of the folder"),
        ("{system: {file: 3}, user: a}", "prompt.system", "expected the name of a file"),
        ("{system: a}", "prompt.user", "the key 'user' is missing"),
        ("{messages: [{role: robot, content: a}], user: b}", "prompt.messages.0", "found the role 'robot'"),
        ("{messages: [{role: user}], user: b}", "prompt.messages.0", "as the content of a message"),
        ("{messages: '{{ task.item }}', user: b}", "prompt.messages", "found a str; expected a message"),
        ("{messages: [{role: user, content: '{{ task.nope }}'}]}", "prompt.messages.0.content", "no column 'nope'"),
        ("{messages: '{{ task.history }}'}", "prompt.messages", "ends with the assistant's message"),
        ("{messages: '{{ task.history }}', images: [a.png]}", "prompt.images", "the prompt has none"),
        ("{system: \"{% include 'system.md' %}\", user: a}", "prompt.system", "{file: NAME}"),
    ],
)
def test_what_is_no_prompt_is_a_fault_at_its_place(
    write: Write, tmp_path: Path, prompt: str, path: str, says: str
) -> None:
    (tmp_path / "outside.md").write_text("x")
    faults = validate([write(prompt, system__md="x")]).faults
    assert [fault.path for fault in faults if says in f"{fault.message}; {fault.hint}"] == [path], faults


OPENING = "user: {kind: scripted, replies: ['A {{ task.item }}, please.', 'Thanks. {{ turn }} {{ message }}']}"


@pytest.mark.parametrize(
    ("roles", "speaks"), [((), True), (("system",), True), (("user",), False), (("user", "assistant"), True),
                          (("user", "assistant", "tool"), False)],
)  # fmt: skip
def test_a_prompt_that_a_policy_can_answer_asks_no_user(write: Write, roles: Sequence[Any], speaks: bool) -> None:
    messages = [Message(role, "a") for role in roles]
    assert load(write("{}", user=OPENING)).speaks_first(messages) is speaks
    alone = load(write("{user: Q}"))
    if speaks:
        with pytest.raises(EpisodeError, match="expected the user's") as caught:
            alone.speaks_first(messages)
        assert caught.value.reason == "prompt"
    else:
        assert not alone.speaks_first(messages)


@pytest.mark.parametrize(
    ("prompt", "roles"),
    [
        ("{}", ["user"]),
        ("{system: Sell.}", ["system", "user"]),
        ("{messages: [{role: assistant, content: 'Hello?'}]}", ["assistant", "user"]),
    ],
)
def test_a_user_speaks_first_where_the_prompt_does_not_end_with_his_message(
    write: Write, prompt: str, roles: list[str]
) -> None:
    environment = load(write(prompt, user=OPENING))
    assert validate([environment.loaded.path]).faults == ()
    messages = asyncio.run(opened(environment))
    assert [one.role for one in messages] == roles
    assert messages[-1].content == "A hat, please."
    for known in ("I know.", ""):
        assert asyncio.run(opened(environment, opening=known))[-1].content == known

    async def second() -> str:
        async with environment, environment.start() as episode:
            return (await episode.step("Red?")).observation.messages[-1].content

    assert asyncio.run(second()) == "Thanks. 1 Red?"
    played = asyncio.run(play(environment, OraclePolicy(environment.spec, environment.parts.dialect), Job("train", 0)))
    assert (played.success, record.parse(record.dump(played))) == (True, played)
    (scored,) = asyncio.run(rescore(environment, [played]))
    assert (scored.messages, scored.reward.total) == (played.messages, 1.0)


def test_examples_are_not_what_the_user_has_said_and_a_history_is(write: Write) -> None:
    user = "user: {kind: python, function: 'hear.py:hear'}"
    hear = "def hear(dialogue): return ' | '.join(one['content'] for one in dialogue)"
    for prompt, heard in (
        (SHOTS, "And the hat? | Hm."),
        ("{messages: ['{{ task.history }}', {role: user, content: c}]}", "a <|im_end|> | b | c | Hm."),
    ):
        environment = load(write(prompt, user=user, hear__py=hear))

        async def reply(environment: Environment = environment) -> str:
            async with environment, environment.start() as episode:
                return (await episode.step("Hm.")).observation.messages[-1].content

        assert asyncio.run(reply()) == heard


def test_a_model_opens_the_dialogue_and_no_measuring_asks_it(write: Write) -> None:
    async def main() -> None:
        async with FakeEndpoint(["I am {item}.", "Bye."]) as far:
            user = "user: {kind: model, endpoint: far, prompt: 'You want a {{ task.item }}.'}"
            environment = load(write("{system: Sell.}", user=user, url=far.base_url))
            assert environment.unasked_opening is not None
            assert (await opened(environment, opening=environment.unasked_opening))[-1].role == "user"
            assert far.requests == []
            assert (await opened(environment))[-1].content == "I am {item}."
            asked = far.requests[0]["messages"]
            assert [one["role"] for one in asked] == ["system", "user"]

    asyncio.run(main())


@pytest.mark.parametrize("user", ["{kind: scripted, replies: ['###STOP###']}", "{kind: python, function: 'u.py:fail'}"])
def test_a_user_who_does_not_begin_makes_the_reward_invalid(write: Write, user: str) -> None:
    environment = load(write("{system: Sell.}", user=f"user: {user}", u__py="def fail(): raise ValueError('gone')"))

    async def main() -> None:
        async with environment, environment.start() as episode:
            assert episode.failure is not None
            assert (episode.failure.reason, episode.trajectory.reward.total) == ("user", None)

    asyncio.run(main())


def test_a_prompt_that_nobody_asks_is_refused_when_it_is_loaded(write: Write) -> None:
    with pytest.raises(SpecError, match="'user' is missing"):
        load(write("{system: a}"))


def test_a_task_of_its_own_and_one_by_number_have_their_places_and_seeds(write: Write) -> None:
    environment = load(write("{user: '{{ task.item }}'}"))
    by_number, own = environment.start(), environment.start(task={"item": "hat"})
    assert (by_number.task_index, by_number.split, by_number.seed) == (0, "train", seed_of(0, "train", 0))
    assert (own.task_index, own.split, own.seed) == (-1, "train", 0)
    assert [environment.start(task=task, seed=0).seed for task in (0, {"item": "hat"})] == [0, 0]
    assert environment.start(task={"item": "hat"}, seed=5, split="other").split == "other"
    for task in (-1, 1):
        with pytest.raises(UsageError, match="has tasks 0 to 0"):
            environment.start(task=task)
    with pytest.raises(UsageError, match=r"no split 'other'.*it has train"):
        environment.start(split="other")


SPLITS = """
rlenv: 1
name: splits
tasks:
  train: {rows: [{q: a, k: x}, {q: b, k: x}, {q: c, k: y}, {q: d, k: x}], report_by: k}
  plain: {rows: [{q: a}, {q: b}]}
  lacking: {rows: [{q: a, k: x}, {q: b}], report_by: k}
  endless: {function: "rows.py:row", report_by: k}
prompt: {user: "{{ task.q }}"}
rewards: {r: {kind: rule, rule: answered}}
"""


@pytest.mark.parametrize(
    ("split", "count", "places"),
    [
        ("train", None, [0, 1, 2, 3]),
        ("train", 0, []),
        ("train", 1, [0]),
        ("train", 2, [0, 2]),
        ("train", 3, [0, 1, 2]),
        ("train", 4, [0, 1, 2, 3]),
        ("train", 9, [0, 1, 2, 3]),
        ("plain", 1, [0]),
        ("plain", None, [0, 1]),
        ("endless", 3, [0, 1, 2]),
        ("endless", 1_001, list(range(1_001))),
        ("endless", None, list(range(1_000))),
    ],
)
def test_a_part_of_a_split_is_spread_over_its_groups(
    tmp_path: Path, split: str, count: int | None, places: list[int]
) -> None:
    (tmp_path / "rows.py").write_text("def row(index): return {'q': str(index), 'k': 'same'}")
    (tmp_path / "spec.yaml").write_text(SPLITS)
    assert load(tmp_path / "spec.yaml").part(split, count) == places


def test_the_groups_of_a_split_are_its_columns_values(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("def row(index): return {'q': str(index), 'k': index % 2}")
    (tmp_path / "spec.yaml").write_text(SPLITS)
    environment = load(tmp_path / "spec.yaml")
    assert environment.groups("train") == ("x", "x", "y", "x")
    assert environment.groups("plain") is None
    assert environment.groups("endless", 3) == ("0", "1", "0")
    assert environment.groups("endless", 5) == ("0", "1", "0", "1", "0")
    with pytest.raises(SpecError, match="row 1 has no column 'k'; it has q"):
        environment.groups("lacking")


def test_an_environment_closes_what_episodes_share_once_and_opens_it_again(write: Write) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def opened_once() -> AsyncIterator[int]:
        log.append("open")
        yield 1
        log.append("close")

    async def main() -> None:
        environment = load(write("{user: '{{ task.item }}'}"))
        for _ in range(2):
            assert await environment.scope().get("x", opened_once) == await environment.scope().get("x", opened_once)
            await environment.aclose()
            await environment.aclose()

    asyncio.run(main())
    assert log == ["open", "close"] * 2
