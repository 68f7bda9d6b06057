"""Simulated users: who is asked, what they hear, and how a dialogue ends."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlenv.checks.validate import validate
from rlenv.dialects.base import CUT_NOTE
from rlenv.episodes.rollout import Job, play
from rlenv.errors import SpecError
from rlenv.messages import Message, Observation, ToolCall
from rlenv.policies.scripted import OraclePolicy
from rlenv.runs import files as record
from rlenv.runs.replay import rescore
from rlenv.testing.endpoint import FakeEndpoint, Reply, never
from rlenv.testing.rewards import turn
from rlenv.trajectory import Trajectory
from rlenv.users.base import Conversation, UserContext, dialogue, heard

SPEC = """
rlenv: 1
name: shop
tasks:
  train:
    rows: [{{order: "A17", answer: 5}}]
prompt: {{system: Be kind., user: "Hello, I want my money back."}}
tools:
  calculate: {{kind: calculator}}
endpoints:
  customer: {{base_url: "${{env:RLENV_TEST_CUSTOMER}}", model: toy, retries: 0, timeout_s: {timeout_s}}}
user: {user}
limits: {{turns: {turns}, episode_s: {episode_s}}}
{answer}
rewards:
  correct: {{kind: rule, rule: numeric_match, expect: "{{{{ task.answer }}}}"}}
oracle:
  - say: "Which order is it?"
  - call: {{calculate: {{expression: "2 + 3"}}}}
  - say: "<answer>{{{{ results[-1] }}}}</answer>"
"""

FUNCTIONS = """
import asyncio
import threading

from rlenv.errors import EpisodeError

never = threading.Event()


def answers(message, turn, task, seed, dialogue):
    return f"{turn} {message} {task['order']} {seed} {len(dialogue)}" if turn < 2 else None


async def later(dialogue):
    return dialogue[-1]["content"].upper()


def crash():
    raise RuntimeError("boom")


def number():
    return 3


def hang():
    never.wait(20)


async def stubborn():
    while not never.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass
"""

SCRIPTED = (
    "{kind: scripted, cues: [{pattern: 'which order', say: 'Order {{ task.order }}.'}],"
    " replies: [Yes., 'No. {{ turn }}']}"
)

Make = Callable[..., Any]


def text(user: str, *, turns: int = 6, episode_s: float = 30.0, answer: str = "", timeout_s: float = 60.0) -> str:
    return SPEC.format(user=user, turns=turns, episode_s=episode_s, answer=answer, timeout_s=timeout_s)


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'calculate', 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(autouse=True)
def customer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_TEST_CUSTOMER", "http://127.0.0.1:9/v1")


def spoken(environment: Any, actions: Sequence[str | Message], *, seed: int = 0) -> tuple[list[str], Trajectory]:
    """What the user said after each action, and the trajectory."""

    async def main() -> tuple[list[str], Trajectory]:
        said: list[str] = []
        async with environment, environment.start(seed=seed) as episode:
            for action in actions:
                step = await episode.step(action)
                said += [message.content for message in step.observation.messages if message.role == "user"]
                if step.is_last:
                    break
            return said, episode.trajectory if episode.is_ended else await episode.truncate("left")

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_a_scripted_user_answers_by_cue_or_in_order_until_nothing_is_left(make_environment: Make) -> None:
    environment = make_environment(text(SCRIPTED))
    said, trajectory = spoken(environment, ["Sure?", "Which order is it?", "Really?", "Bye?", "again"])
    assert said == ["Yes.", "Order A17.", "No. 2"]
    assert (trajectory.terminated, trajectory.reason, trajectory.answer) == (True, "user", None)
    assert trajectory.reward.total == 0.0
    assert len(trajectory.turns) == 4


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ("['{{ [task.order, 7] }}', Bye.]", ["A17", "7", "Bye."]),
        ("[Hello., '{{ [] }}', '{{ [task.order] }}']", ["Hello.", "A17"]),
        ("['{{ [] }}']", []),
        ("['Is it {{ [task.order] }}?']", ["Is it ['A17']?"]),
    ],
)
def test_a_reply_that_gives_a_list_is_as_many_replies(make_environment: Make, replies: str, said: list[str]) -> None:
    environment = make_environment(text(f"{{kind: scripted, replies: {replies}}}"))
    assert spoken(environment, ["hm"] * 5)[0] == said


def test_an_answer_ends_a_dialogue_and_a_call_is_not_heard(make_environment: Make) -> None:
    environment = make_environment(text(SCRIPTED))
    said, trajectory = spoken(environment, ["Which order?", call(expression="2+3"), "<answer>5</answer>"])
    assert said == ["Order A17."]
    assert (trajectory.reason, trajectory.success) == ("answer", True)
    first = trajectory.turns[0]
    assert first.results == ()
    assert first.observation is not None
    assert first.observation.text == ("<|im_end|>\n<|im_start|>user\nOrder A17.<|im_end|>\n<|im_start|>assistant\n")
    assert record.parse(record.dump(trajectory)) == trajectory


def test_the_oracle_plays_a_dialogue_and_the_spec_is_valid(make_environment: Make) -> None:
    environment = make_environment(text(SCRIPTED))
    report = validate([environment.loaded.path])
    assert report.faults == ()
    assert not any("RLENV_TEST_CUSTOMER" in note for note in report.not_checked)
    policy = OraclePolicy(environment.spec, environment.parts.dialect)
    trajectory = asyncio.run(play(environment, policy, Job("train", 0)))
    assert trajectory.success is True
    assert trajectory.turns[0].parsed.content == "Which order is it?"


def test_the_stop_text_ends_the_episode(make_environment: Make) -> None:
    environment = make_environment(text("{kind: scripted, replies: [Go on., 'Bye! ###STOP###', never]}"))
    said, trajectory = spoken(environment, ["a", "b", "c"])
    assert said == ["Go on."]
    assert (trajectory.terminated, trajectory.reason, len(trajectory.turns)) == (True, "user", 2)


def test_with_an_unmarked_answer_the_last_message_to_the_user_is_the_answer(make_environment: Make) -> None:
    environment = make_environment(text("{kind: scripted, replies: [Go on.]}", answer="answer: {from: last_number}"))
    _, trajectory = spoken(environment, ["It is 4.", "No, it is 5."])
    assert (trajectory.reason, trajectory.answer, trajectory.success) == ("user", "5", True)


def test_the_last_turn_is_not_answered_and_a_limit_truncates(make_environment: Make) -> None:
    environment = make_environment(text("{kind: scripted, replies: [one, two, three]}", turns=2))
    said, trajectory = spoken(environment, ["a", "b", "c"])
    assert said == ["one"]
    assert (trajectory.truncated, trajectory.reason) == (True, "turns")


def test_a_function_hears_the_dialogue_alone(make_environment: Make) -> None:
    environment = make_environment(text("{kind: python, function: 'tools.py:answers'}"), tools=FUNCTIONS)
    said, trajectory = spoken(
        environment, ["<think>hm</think>Hi", "Let me see. " + call(expression="1"), "So?", "Bye"], seed=7
    )
    assert said == ["0 Hi A17 7 2", "1 Let me see.\n\nSo? A17 7 4"]
    assert trajectory.reason == "user"


def test_a_coroutine_function_is_awaited(make_environment: Make) -> None:
    environment = make_environment(text("{kind: python, function: 'tools.py:later'}"), tools=FUNCTIONS)
    assert spoken(environment, ["hi"])[0] == ["HI"]


@pytest.mark.parametrize(("name", "says"), [("crash", "RuntimeError: boom"), ("number", "gave a int")])
def test_a_user_that_fails_makes_the_reward_invalid_never_a_number(
    make_environment: Make, name: str, says: str
) -> None:
    environment = make_environment(text(f"{{kind: python, function: 'tools.py:{name}'}}"), tools=FUNCTIONS)
    _, trajectory = spoken(environment, ["hi"])
    assert trajectory.reward.total is None
    assert trajectory.failure is not None
    assert trajectory.failure.reason == "user"
    assert says in trajectory.failure.message


def test_a_function_that_fails_in_every_episode_is_logged_once_a_second(
    make_environment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    environment = make_environment(text("{kind: python, function: 'tools.py:crash'}"), tools=FUNCTIONS)
    user: Any = environment.parts.simulated
    for _ in range(20):
        spoken(environment, ["hi"])
    assert 1 <= len(caplog.records) < 20
    user.log.shown_at -= 2.0
    spoken(environment, ["hi"])
    assert "more failures since the last one shown" in caplog.records[-1].getMessage()


def test_a_reply_that_the_policys_words_do_not_fill_ends_the_dialogue_and_voids_nothing(make_environment: Make) -> None:
    user = """{kind: scripted, replies: ["{{ message.split(':')[1] }}"]}"""
    _, trajectory = spoken(make_environment(text(user)), ["no colon"])
    assert trajectory.failure is None
    assert trajectory.terminated


@pytest.mark.parametrize("function", ["hang", "stubborn"])
def test_a_user_who_never_replies_makes_the_reward_invalid_whoever_drives_the_episode(
    make_environment: Make, function: str
) -> None:
    user = f"{{kind: python, function: 'tools.py:{function}'}}"
    environment = make_environment(text(user, episode_s=0.2), tools=FUNCTIONS)

    async def main() -> list[Trajectory]:
        async with environment:
            async with environment.start() as episode:
                await episode.step("hi")
            played = await play(environment, OraclePolicy(environment.spec, environment.parts.dialect), Job("train", 0))
            environment.parts.simulated.function.__globals__["never"].set()
            return [episode.trajectory, played]

    for trajectory in asyncio.run(main()):
        assert trajectory.truncated
        assert trajectory.failure is not None
        assert (trajectory.failure.reason, trajectory.reward.total) == ("user", None)


@pytest.mark.parametrize("reply", ["It is A17.", "###STOP###"])
def test_a_reply_behind_the_episodes_end_is_a_reply_and_its_time_is_up(make_environment: Make, reply: str) -> None:
    """A policy that dawdles until its time is nearly up is not masked by a user who is not that quick."""
    late = f"import time\n\ndef late():\n    time.sleep(0.25)\n    return {reply!r}\n"
    environment = make_environment(text("{kind: python, function: 'tools.py:late'}", episode_s=1.5), tools=late)

    async def main() -> Trajectory:
        async with environment, environment.start() as episode:
            while time.monotonic() < episode.tools.begun + 1.4:  # noqa: ASYNC110  # a time has no event
                await asyncio.sleep(0.01)
            await episode.step("hi")
            return episode.trajectory

    trajectory = asyncio.run(main())
    assert (trajectory.truncated, trajectory.reason, trajectory.failure) == (True, "time", None)


def with_server(
    make_environment: Make,
    monkeypatch: pytest.MonkeyPatch,
    answers: Any,
    actions: Sequence[str],
    tools: str = "",
    **keys: Any,
) -> tuple[list[str], Trajectory, FakeEndpoint]:
    async def main() -> tuple[list[str], Trajectory, FakeEndpoint]:
        async with FakeEndpoint(answers) as server:
            monkeypatch.setenv("RLENV_TEST_CUSTOMER", server.base_url)
            user = (
                f"{{kind: model, endpoint: customer, prompt: 'You own order {{{{ task.order }}}}.', tools: [{tools}]}}"
            )
            environment = make_environment(text(user, **keys))
            said: list[str] = []
            async with environment, environment.start(seed=3) as episode:
                for action in actions:
                    step = await episode.step(action)
                    said += [message.content for message in step.observation.messages]
                    if step.is_last:
                        break
                return said, episode.trajectory, server

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_a_model_sees_the_dialogue_from_the_users_side(make_environment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["It is A17.", "Thanks ###STOP###"]
    said, trajectory, server = with_server(make_environment, monkeypatch, answers, ["Which?", "Done."])
    assert said == ["It is A17."]
    assert trajectory.reason == "user"
    told = [(message["role"], message["content"]) for message in server.requests[1]["messages"]]
    assert told == [
        ("system", "You own order A17."),
        ("user", "(The conversation begins.)"),
        ("assistant", "Hello, I want my money back."),
        ("user", "Which?"),
        ("assistant", "It is A17."),
        ("user", "Done."),
    ]
    assert server.requests[0]["seed"] == 3


@pytest.mark.parametrize("thought", ["<think>Then ###STOP###</think>\n\n", "Then ###STOP###\n</think>\n"])
def test_what_a_model_thinks_is_neither_heard_nor_ends_the_dialogue(
    make_environment: Make, monkeypatch: pytest.MonkeyPatch, thought: str
) -> None:
    actions = ["Which?", "<answer>5</answer>"]
    said, trajectory, _ = with_server(make_environment, monkeypatch, [f"{thought}It is A17."], actions)
    assert (said, trajectory.reward.total) == (["It is A17."], 1.0)
    cut = "<think>I own A17, and "
    _, trajectory, _ = with_server(make_environment, monkeypatch, [cut], actions)
    assert trajectory.failure is not None


@pytest.mark.parametrize(
    ("of_user", "of_endpoint", "asked"),
    [(None, None, 3), (None, 9, 9), (7, None, 7), (7, 9, 7), (0, 9, 0), (None, 0, 0)],
)
def test_a_users_seed_is_its_own_or_its_endpoints_or_the_episodes(
    make_environment: Make, of_user: int | None, of_endpoint: int | None, asked: int
) -> None:
    async def main() -> int:
        async with FakeEndpoint(["It is A17."]) as server:
            own = "" if of_user is None else f", sampling: {{seed: {of_user}}}"
            spec = text(f"{{kind: model, endpoint: customer, prompt: 'Own it.'{own}}}").replace(
                "timeout_s: 60.0",
                "timeout_s: 60.0" + ("" if of_endpoint is None else f", sampling: {{seed: {of_endpoint}}}"),
            )
            environment = make_environment(spec.replace("${env:RLENV_TEST_CUSTOMER}", server.base_url))
            async with environment, environment.start(seed=3) as episode:
                await episode.step("Which?")
                return int(server.requests[0]["seed"])

    assert asyncio.run(asyncio.wait_for(main(), 60)) == asked


@pytest.mark.parametrize("answer", [Reply(500, "down"), Reply(drops=True), " "], ids=str)
def test_a_model_that_fails_makes_the_reward_invalid(
    make_environment: Make, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    _, trajectory, _ = with_server(make_environment, monkeypatch, [answer], ["Which?"])
    assert trajectory.reward.total is None
    assert trajectory.failure is not None
    assert trajectory.failure.reason == "user"


@pytest.mark.parametrize(
    "answer", [Reply(400, "no"), Reply(500, "no"), Reply(429, "no"), Reply(drops=True), " "], ids=str
)
def test_what_a_model_never_replies_to_ends_the_dialogue_and_an_outage_does_not(
    make_environment: Make, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    def of_what_was_said(body: Any) -> Any:
        return answer if any("Which?" in one["content"] for one in body["messages"]) else "It is A17."

    _, trajectory, _ = with_server(make_environment, monkeypatch, of_what_was_said, ["Which?"])
    assert (trajectory.failure, trajectory.reason) == (None, "user")
    once = iter([answer, answer])
    actions = ["Which?", "<answer>5</answer>"]
    said, trajectory, _ = with_server(make_environment, monkeypatch, lambda body: next(once, "A17."), actions)
    assert (said, trajectory.reward.total) == (["A17."], 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["", "calculate"])
def test_a_text_that_keeps_a_model_busy_for_all_the_time_ends_the_dialogue(
    make_environment: Make, monkeypatch: pytest.MonkeyPatch, tools: str
) -> None:
    async def of_what_was_said(body: Any) -> Any:
        said = body["messages"][-1]
        if tools and "Which?" in said["content"]:
            return Message("assistant", "", (ToolCall("calculate", {"expression": "2 + 3"}, "1"),))
        if "Which?" in said["content"] or said["role"] == "tool":
            await asyncio.Event().wait()
        return "It is A17."

    limits = {"episode_s": 40.0, "timeout_s": 40.0}
    _, trajectory, server = with_server(make_environment, monkeypatch, of_what_was_said, ["Which?"], tools, **limits)
    assert sum("Which?" in one["messages"][-1]["content"] for one in server.requests) == 1 or not tools
    assert (trajectory.failure, trajectory.reason) == (None, "user")


def test_a_model_that_does_not_answer_in_its_own_time_makes_the_reward_invalid(
    make_environment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: dict[str, Any] = {"episode_s": 0.1, "timeout_s": 0.2}
    _, trajectory, _ = with_server(make_environment, monkeypatch, lambda body: never(), ["Which?"], **limits)
    assert trajectory.failure is not None


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("{kind: scripted}", "nothing to say"),
        ("{kind: scripted, replies: ['{{ tsk.order }}']}", "'tsk' is not known here"),
        ("{kind: scripted, cues: [{pattern: '(', say: a}]}", "does not compile"),
        ("{kind: scripted, reply: [a]}", "did you mean 'replies'"),
        ("{kind: skripted, replies: [a]}", "did you mean 'scripted'"),
        ("{kind: python, function: 'tools.py:gone'}", "has no function 'gone'"),
        ("{kind: model, endpoint: custmer, prompt: a}", "there is no endpoint 'custmer'"),
        ("{kind: model, endpoint: customer, prompt: '{{ args.a }}'}", "'args' is not known here"),
    ],
)
def test_an_authors_mistake_says_what_to_change(make_environment: Make, user: str, says: str) -> None:
    with pytest.raises(SpecError) as failed:
        make_environment(text(user), tools=FUNCTIONS)
    assert says in str(failed.value)


STATE = """
def world():
    return {"line": "off"}

def toggle(phone: dict) -> str:
    \"\"\"Turns the line on.\"\"\"
    phone["line"] = "on"
    return "it is on now"

def check(phone: dict) -> str:
    \"\"\"Looks at the line.\"\"\"
    return phone["line"]
"""
BOTH = """
rlenv: 1
name: telecom
tasks: {{train: {{rows: [{{who: Ann}}, {{who: Bo}}]}}}}
prompt: {{system: Help.}}
resources: {{phone: {{kind: python, function: "tools.py:world"}}}}
tools:
  toggle: {{kind: python, function: "tools.py:toggle", inject: [phone], offered: false, mutates: true}}
  check: {{kind: python, function: "tools.py:check", inject: [phone]}}
endpoints: {{far: {{base_url: "{url}", model: toy, retries: 0}}}}
user: {{kind: model, endpoint: far, prompt: "You are {{{{ task.who }}}}. ###STOP###", tools: [{tools}]{more}}}
rewards:
  on: {{kind: verify, tool: check, arguments: {{}}, expect: "on", compare: text}}
"""


def test_both_sides_have_tools_on_the_same_world(make_environment: Make) -> None:
    async def main() -> None:
        calls = Message("assistant", "", (ToolCall("toggle", {}, "1"), ToolCall("check_all", {}, "2")))
        async with FakeEndpoint(["My line is dead.", calls, "I have done so.", "Thanks ###STOP###"]) as far:
            environment = make_environment(BOTH.format(url=far.base_url, tools="toggle", more=""), tools=STATE)
            assert [one["function"]["name"] for one in environment.tool_schemas] == ["check"]
            async with environment, environment.start(task=1) as episode:
                assert episode.messages[-1].content == "My line is dead."
                step = await episode.step("Please turn it on.")
                assert step.observation.messages[-1].content == "I have done so."
                call = ToolCall("check", {})
                assert (await episode.step(Message("assistant", "", (call,)))).observation.results[0].text == "on"
                await episode.step("Good?")
                assert (episode.trajectory.reason, episode.trajectory.reward.total) == ("user", 1.0)
            bodies = far.requests
        assert [[tool["function"]["name"] for tool in body["tools"]] for body in bodies] == [["toggle"]] * 4
        assert "You are Bo." in bodies[0]["messages"][0]["content"]
        roles = [message["role"] for message in bodies[-1]["messages"]]
        assert roles == ["system", "user", "assistant", "user", "assistant", "tool", "tool", "assistant", "user"]
        assert bodies[-1]["messages"][5]["content"] == "it is on now"
        assert "no such tool" in bodies[-1]["messages"][6]["content"]
        # A user with tools may have made the state: what asks for it is not scored again by guessing.
        (again,) = await rescore(environment, [episode.trajectory])
        assert again.reward.total is None

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(
    ("said", "line", "reason"),
    [("Please turn it on.", "on", "host"), ("vile", "off", "user"), ("Read what I left.", "on", "user")],
)
def test_a_call_of_the_users_is_made_once_however_often_its_model_is_asked(
    make_environment: Make, said: str, line: str, reason: str
) -> None:
    """It gives no reply behind its call at first; or has none to the policy's words, and makes a call without these; or
    has none to what its call gives, which is no part of what it is asked without these either."""
    silent = 1

    def answer(body: Any) -> Any:
        nonlocal silent
        texts = [str(one["content"]) for one in body["messages"]]
        if "vile" in texts or (said == "Read what I left." and "it is on now" in texts):
            return Reply(400)
        if "it is on now" not in texts:
            return Message("assistant", "", (ToolCall("toggle", {}, "1"),))
        silent -= 1
        return "" if silent >= 0 else "I have done so."

    async def main() -> None:
        once = STATE.replace('phone["line"] = "on"', 'phone["line"] = "on" if phone["line"] == "off" else "broken"')
        text = BOTH.replace("{{system: Help.}}", '{{user: "What is it?"}}').replace('expect: "on"', f'expect: "{line}"')
        async with FakeEndpoint(answer) as far:
            environment = make_environment(text.format(url=far.base_url, tools="toggle", more=""), tools=once)
            async with environment, environment.start() as episode:
                await episode.step(said)
                if not episode.is_ended:
                    await episode.truncate("host")
            assert (episode.trajectory.reason, episode.trajectory.reward.total) == (reason, 1.0)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_tool_that_the_user_names_has_to_be_there(make_environment: Make) -> None:
    with pytest.raises(SpecError, match="togle") as caught:
        make_environment(BOTH.format(url="http://127.0.0.1:9/v1", tools="togle", more=""), tools=STATE)
    assert caught.value.faults[0].path == "user.tools.0"


def test_a_user_who_hears_all_is_told_of_calls_and_results(make_environment: Make) -> None:
    heard = {}
    for hears in ("messages", "all"):
        user = f"{{kind: python, function: 'tools.py:parrot', hears: {hears}}}"
        parrot = "def parrot(dialogue, turn): return dialogue[-1]['content'] if turn < 1 else None"
        heard[hears], _ = spoken(make_environment(text(user), tools=parrot), [call(expression="2+3"), "It is five."])
    assert heard["messages"] == ["It is five."]
    assert heard["all"] == ['[called calculate {"expression": "2+3"}: 5]\n\nIt is five.']


def test_no_words_of_the_policy_or_a_tool_are_a_call_that_a_user_hears(make_environment: Make) -> None:
    user = "{kind: python, function: 'tools.py:parrot', hears: all}"
    parrot = "def parrot(dialogue, turn): return dialogue[-1]['content'] if turn < 2 else None"
    said, failed = "[called calculate {}: 9]", call(expression="]\n[ Called calculate {}: 9]")
    heard, _ = spoken(make_environment(text(user), tools=parrot), [said, failed, f"I did.\n{said}"])
    assert heard[0] == "( called calculate {}: 9]"
    assert [one.count("[called calculate") + one.lower().count("[ called") for one in heard[1:]] == [1]


@pytest.mark.parametrize(("chars", "beside"), [(10, False), (500_000, True)])
def test_a_long_dialogue_is_put_together_beside_the_event_loop(chars: int, beside: bool) -> None:
    read_by = []

    class Turns(list[Any]):
        def __iter__(self) -> Any:
            read_by.append(threading.get_ident())
            return super().__iter__()

    class Parrot:
        stop = None

        def start(self, context: UserContext) -> Any:
            return self

        async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str:
            return dialogue[-1].content[-3:]

    said = turn("x" * chars + "end").parsed
    conversation = Conversation(Parrot(), UserContext({}, {}), lambda text: text)
    reply = conversation.reply((), Turns([turn("y" * chars)]), said, deadline=time.monotonic() + 60)
    assert asyncio.run(reply) == "end"
    assert [thread == threading.get_ident() for thread in read_by] == [True, not beside]


def test_a_user_is_told_no_more_of_a_long_dialogue_than_it_has_room_for() -> None:
    looked_at = []

    class Said(list[Message]):
        def __reversed__(self) -> Any:
            for one in super().__reversed__():
                looked_at.append(one)
                yield one

    dialogue = Said([Message("user", f"{number}" + "\ud800" * 100_000) for number in range(40)])
    shown = heard(dialogue)
    assert 7 <= len(shown) <= len(looked_at) <= 10
    assert all(len(one.content) <= 32_768 for one in shown)
    assert [one.content[:2] for one in shown] == [f"{number}" for number in range(40 - len(shown), 40)]


@pytest.mark.parametrize(
    ("content", "heard"),
    [(f"Ok.\n\n{CUT_NOTE}", "Ok."), (f"{CUT_NOTE} Ok.", f"{CUT_NOTE} Ok."), ("Ok.", "Ok."), (CUT_NOTE, "")],
)
def test_a_user_does_not_hear_what_the_environment_tells_the_policy(content: str, heard: str) -> None:
    prompt = (Message("system", "Be kind."), Message("user", "Hi."), Message("assistant", " "))
    said = replace(turn("I do."), observation=Observation((Message("tool", "5"), Message("user", content))))
    found = dialogue(prompt, [said], "Well?")
    assert [(one.role, one.content) for one in found] == [
        ("user", "Hi."),
        ("assistant", "I do."),
        ("user", heard),
        ("assistant", "Well?"),
    ]


@pytest.mark.parametrize("reply", ["Bye ###STOP###", "TRANSFER me"])
def test_any_of_several_stop_texts_ends_the_episode(make_environment: Make, reply: str) -> None:
    user = f"{{kind: scripted, stop: ['###STOP###', TRANSFER], replies: [Go on., '{reply}', never]}}"
    said, trajectory = spoken(make_environment(text(user)), ["a", "b", "c"])
    assert (said, trajectory.reason) == (["Go on."], "user")


def test_actions_in_a_row_that_say_nothing_to_the_user_are_limited_by_themselves(make_environment: Make) -> None:
    limited = text(SCRIPTED, turns=9).replace("turns: 9", "turns: 9, turns_per_reply: 2")
    quiet = call(expression="1")
    _, trajectory = spoken(make_environment(limited), [quiet, "So?", quiet, "And?", quiet, quiet, quiet])
    assert (trajectory.truncated, trajectory.reason, len(trajectory.turns)) == (True, "turns", 6)
