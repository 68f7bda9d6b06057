"""Events: kept with their episodes, found again by place and content, without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlenv.concurrency.lanes import Event, Lane
from rlenv.errors import CassetteError, UsageError
from rlenv.runs.cassettes import Player, Recorder
from rlenv.runs.events import Reel, canonical_json, content_of, dump_events, is_recorded, parse_events
from rlenv.runs.files import Body
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts
from rlenv.runs.writer import RunWriter
from rlenv.secrets import resolve
from tests.support.kept import episode


def ask(recorder: Recorder, lane: Lane, what: object, answer: object) -> None:
    event = recorder.look(lane, Event(kind="tool", name="ask", request=what))
    assert not event.outcome
    recorder.keep(lane, event.ended("ok", answer))


def again(player: Player, lane: Lane, what: object, *, is_shared: bool = False, is_local: bool = False) -> object:
    asked = Event(kind="tool", name="ask", request=what, is_shared=is_shared, is_local=is_local)
    return player.look(lane, asked).response


def test_equal_values_have_one_canonical_text_whatever_they_hold() -> None:
    assert canonical_json({"b": 1, "a": "é\ud800"}) == '{"a":"\\u00e9\\ud800","b":1}'
    assert content_of("tool", {"a": 1, "b": 2}) == content_of("tool", {"b": 2, "a": 1})
    assert len(content_of("tool", None)) == 64
    assert content_of("tool", 1) != content_of("chat", 1)


def player_of(recorder: Recorder, *lanes: Lane) -> Player:
    """A player of episodes run-0, run-1, …"""
    return Player(
        Reel(None, {f"run-{at}": parse_events(recorder.take_events(one), "run") for at, one in enumerate(lanes)})
    )


def test_events_are_written_as_they_are_read_without_what_is_at_its_default() -> None:
    asked = Event("turn 0 call 0", kind="tool", request={"b": 1, "a": "é\ud800"})
    events = [
        asked.ended("ok", [None, 2**70, {"z": 0, "y": 1}]),
        Event(started=1.5, is_shared=True, ordinal=3, outcome="ok"),
    ]
    text = dump_events(events)
    assert parse_events(text, "here") == events
    assert json.dumps(parse_events(text, "here")[0].response) == json.dumps(
        events[0].response
    )  # in the order that it had
    assert json.loads(text)[1] == {"started": 1.5, "is_shared": True, "ordinal": 3}


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (1j, "1j"),
        ({"a": {1}}, {"a": [1]}),
        ({(1, 2): b"x"}, {"(1, 2)": "b'x'"}),
        pytest.param(10**5_000, "… (an integer of 16610 bits left out) …", id="long"),
    ],
)
def test_an_answer_that_is_no_json_is_kept_as_json_can_hold_it(answer: object, kept: object) -> None:
    recorder = Recorder()
    lane = recorder.lane()
    ask(recorder, lane, "a", answer)
    ask(recorder, lane, "b", ["fine"])
    assert [one.response for one in parse_events(recorder.take_events(lane), "here")] == [kept, ["fine"]]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"a": 1}, "here: these are no events; bring the run back from a copy"),
        ([1], "here: this is no event"),
        ([{"ordinal": "1"}], "here: ordinal is str, not int"),
        ([{"is_shared": 1}], "here: is_shared is int, not bool"),
        ([{"outcome": ""}], "here: this event has no outcome"),
        ([{"depth": 1}], "here: this version knows no depth of an event; read it with the version"),
    ],
)
def test_what_is_no_event_is_named(held: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_events(json.dumps(held).encode(), "here")


def played(run: Path, *, is_sealed: bool) -> RunWriter:
    """A run with an episode that asked something twice, and what was asked before it."""
    recorder = Recorder()
    ask(recorder, Lane(recorder, ""), "tools", ["early"])
    writer = RunWriter(run)
    writer.append_late("", {"events": recorder.take_rest()})
    lane = recorder.lane()
    for number in range(2):
        ask(recorder, lane.at("turn 0 call 0"), "same", number)
    assert writer.append(episode(), Facts(events=recorder.take_events(lane))) == f"{writer.name}-00000-0"
    assert recorder.take_rest() == ""
    if is_sealed:
        writer.close()
    return writer


@pytest.mark.parametrize("is_sealed", [False, True])
def test_the_events_of_a_run_are_read_while_it_is_written_and_once_it_is_sealed(
    tmp_path: Path, is_sealed: bool
) -> None:
    if is_sealed:
        pytest.importorskip("pyarrow")
    writer = played(tmp_path, is_sealed=is_sealed)
    reel = Reel.of(tmp_path)
    writer.close()
    assert reel.ids == ("", f"{writer.name}-00000-0")
    assert [(one.place, one.ordinal, one.response) for one in reel.events(reel.ids[1])] == [
        ("turn 0 call 0", 0, 0),
        ("turn 0 call 0", 1, 1),
    ]
    assert [one.response for one in reel.events_at("", "")] == [["early"]]
    keys = reel.keys_by_content[content_of("tool", "same")]
    assert [reel.event(key).response for key in keys] == [0, 1]


def test_a_run_whose_events_were_not_recorded_has_no_tape(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.append(episode(), Facts())
    with pytest.raises(UsageError, match="has no tape"):
        Reel.of(tmp_path)
    writer.close()


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_run_is_recorded_where_any_of_its_episodes_is(tmp_path: Path, is_sealed: bool) -> None:
    if is_sealed:
        pytest.importorskip("pyarrow")
    writer = RunWriter(tmp_path)
    failed = writer.append(episode(), Facts())
    assert not is_recorded(tmp_path)
    if is_sealed:
        writer.roll()
    recorder = Recorder()
    lane = recorder.lane()
    ask(recorder, lane, "what", "answer")
    kept = writer.append(episode(), Facts(events=recorder.take_events(lane)))
    if is_sealed:
        writer.close()
    player = Player(Reel.of(tmp_path))
    writer.close()
    assert is_recorded(tmp_path)
    assert again(player, player.lane(kept), "what") == "answer"
    with pytest.raises(CassetteError, match=r"nothing of this episode was recorded"):
        again(player, player.lane(failed), "what")


def test_a_run_without_a_tape_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no tape; record one with: rlenv eval SPEC --record"):
        Reel.of(tmp_path)


def test_secrets_are_taken_out_of_requests_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPED_KEY", "hunter2-hunter2")
    assert resolve("${env:TAPED_KEY}") == "hunter2-hunter2"
    recorder = Recorder()
    lane = recorder.lane()
    ask(recorder, lane, {"text": "my key is hunter2-hunter2"}, "so it is hunter2-hunter2")
    events = recorder.take_events(lane)
    assert b"hunter2" not in events
    player = Player(Reel(None, {"run-0": parse_events(events, "run-0")}))
    assert "hunter2" not in str(again(player, player.lane("run-0"), {"text": "my key is hunter2-hunter2"}))


@pytest.fixture
def taped() -> Reel:
    """Two episodes that asked the same once, and one of them something else twice."""
    recorder, events = Recorder(), {}
    for number in range(2):
        lane = recorder.lane()
        ask(recorder, lane.at("turn 0 call 0"), {"q": "same", "k": [1, 2]}, f"answer {number}")
        if number:
            for text in ("first", "second"):
                ask(recorder, lane.at("turn 1 call 0"), {"q": "other"}, text)
        events[f"run-{number}"] = parse_events(recorder.take_events(lane), "run")
    return Reel(None, events)


def test_each_lane_has_its_own_answers_in_their_order_each_once(taped: Reel) -> None:
    player = Player(taped)
    second, first = player.lane("run-1"), player.lane("run-0")
    assert again(player, second.at("turn 0 call 0"), {"k": [1, 2], "q": "same"}) == "answer 1"
    assert again(player, first.at("turn 0 call 0"), {"q": "same", "k": [1, 2]}) == "answer 0"
    assert [again(player, second.at("turn 1 call 0"), {"q": "other"}) for _ in range(2)] == ["first", "second"]
    with pytest.raises(CassetteError, match=r"turn 1 call 0: .*: it was made 2 times, and now 3"):
        again(player, second.at("turn 1 call 0"), {"q": "other"})
    assert player.missed_request("run-0") == ""
    assert player.missed_request("run-1").startswith("turn 1 call 0: ")


def test_what_is_answered_alike_anywhere_is_found_in_another_lane(taped: Reel) -> None:
    player = Player(taped)
    lane = player.lane("run-0").at("turn 1 call 0")
    assert again(player, lane, {"q": "other"}, is_shared=True) == "first"
    assert again(player, lane, {"q": "other"}, is_shared=True) == "second"
    assert again(player, lane, {"q": "other"}, is_shared=True) == "first"
    with pytest.raises(CassetteError):
        again(player, lane, {"q": "same", "k": [1, 2]})


def test_a_miss_names_the_nearest_request_and_the_first_difference(taped: Reel) -> None:
    player = Player(taped)
    lane = player.lane("run-1").at("turn 0 call 0")
    for what, told in (
        ({"q": "same", "k": [1, 3]}, r"differs at \$\.k\[1\]: 2 before, 3 now"),
        ({"q": "same", "k": [1]}, r"differs at \$\.k\[1\]: 2 before, nothing now"),
        ({"q": "x" * 500 + "y", "k": [1, 2]}, r"differs at \$\.q: 'same' before, 'xxx"),
    ):
        with pytest.raises(CassetteError, match=told):
            again(player, lane, what)
    with pytest.raises(CassetteError, match=r"nothing of this episode was recorded"):
        again(player, player.lane("run-7").at("turn 0 call 0"), {})


class Counting(RunReader):
    """A reader that counts the bodies that are read."""

    read = 0

    def body(self, id: str) -> Body:
        self.read += 1
        return super().body(id)


def test_a_miss_reads_its_own_episode_and_the_run_once_at_the_most(tmp_path: Path) -> None:
    writer, recorder, ids = RunWriter(tmp_path), Recorder(), list[str]()
    for number in range(300):  # more than are held at once
        lane = recorder.lane()
        ask(recorder, lane.at("turn 0 call 0"), number, "answer")
        ids.append(writer.append(episode(number), Facts(events=recorder.take_events(lane))))
    reader = Counting(tmp_path)
    reel = Reel(reader, {})
    player = Player(reel)
    for kind in ("tool", "chat"):
        with pytest.raises(CassetteError, match="no answer to this request"):
            player.look(player.lane(ids[7]).at("elsewhere"), Event(kind=kind, name="ask", request="unknown"))
    assert reader.read == 1
    other = Player(reel, by_content=True)
    for number, kind in enumerate(("chat", "judge", "forecast") * 3):
        with pytest.raises(CassetteError, match="nothing of this kind was recorded"):
            other.look(other.lane(), Event(kind=kind, name="writer", request=number))
    assert reader.read == 1 + len(ids)
    writer.close()


@pytest.mark.parametrize(
    "content", [{"tools": "lab", "server": "2"}, {"tools": "lab", "server": "moved"}, {"tools": "lab"}]
)
def test_a_server_has_its_own_listing_and_one_that_has_moved_that_of_its_name(content: object) -> None:
    recorder = Recorder()
    lane = Lane(recorder, "").at("tools of lab")
    for server in ("1", "2"):
        event = recorder.look(lane, Event(kind="list", name="lab", request={"tools": "lab", "server": server}))
        recorder.keep(lane, event.ended("ok", server))
    player = Player(Reel(None, {"": parse_events(recorder.take_rest().encode(), "run")}))
    answer = player.look(Lane(player, "").at("tools of lab"), Event(kind="list", name="lab", request=content))
    assert answer.response == ("2" if content == {"tools": "lab", "server": "2"} else "1")


def test_what_an_author_has_written_out_as_a_key_is_shown_to_nobody(tmp_path: Path) -> None:
    key = "sk-" + "a1B2" * 6
    options = {
        "env": {"KEY": "hunter2"},
        "body": {"token": "hunter2", "q": f"{{{{ args.q }}}} {key}"},
        "method": "POST",
    }
    recorder = Recorder()
    lane = recorder.lane()
    ask(recorder, lane, {"options": options, "arguments": {"token": "a word"}}, "fine")
    (event,) = parse_events(recorder.take_events(lane), "run")
    assert "hunter2" not in str(event)
    assert key not in str(event)
    assert (event.request["arguments"], event.request["options"]["method"]) == ({"token": "a word"}, "POST")


def test_events_are_of_the_lock_that_their_episode_is_of_and_of_no_other_are_any_left() -> None:
    recorder = Recorder()
    recorder.lock = "first"
    lanes = [recorder.lane() for _ in range(4)]
    for lane in lanes:
        ask(recorder, lane, "what", "answer")
    assert [one.lock for one in parse_events(recorder.take_events(lanes[0], lock="own"), "here")] == ["own"]
    assert [one.lock for one in parse_events(recorder.take_events(lanes[1]), "here")] == ["first"]
    recorder.drop_lane(lanes[2])
    ask(recorder, lanes[0], "behind its end", "answer")
    recorder.drop_lane(lanes[0])
    assert [one.content for one in parse_events(recorder.take_rest().encode(), "here")] == [content_of("tool", "what")]
    assert recorder.take_rest() == ""


def test_what_does_not_leave_the_process_is_not_answered_unless_all_is(taped: Reel) -> None:
    what = {"q": "same", "k": [1, 2]}
    player = Player(taped)
    assert again(player, player.lane("run-0").at("turn 0 call 0"), what, is_local=True) is None
    player = Player(taped, all_tools=True)
    assert again(player, player.lane("run-0").at("turn 0 call 0"), what, is_local=True) == "answer 0"


def test_what_is_drawn_for_each_request_is_written_over_in_the_answer() -> None:
    recorder = Recorder()
    lane = recorder.lane()
    asked = Event(kind="judge", name="w", request=1, echo="aaaa")
    recorder.keep(lane, recorder.look(lane, asked).ended("ok", {"text": "nonce aaaa"}))
    player = player_of(recorder, lane)
    answer = player.look(player.lane("run-0"), asked._replace(echo="bbbb"))
    assert (answer.outcome, answer.response) == ("ok", {"text": "nonce bbbb"})


def miss(player: Player, lane: Lane, asked: Event) -> str:
    with pytest.raises(CassetteError) as error:
        player.look(lane, asked)
    return str(error.value)


def test_a_tool_that_is_known_in_another_episode_alone_is_told_how_it_is_shared(taped: Reel) -> None:
    player = Player(taped, by_content=True)
    told = miss(player, player.lane().at("turn 0 call 0"), Event(kind="tool", name="ask", request={"q": "other"}))
    assert told.endswith(
        "has no answer to this request of tool 'ask' but from another place, and the tool counts as depending on the "
        "episode: if it depends on its arguments alone, add 'cache: {key: arguments}' to its entry"
    )


def recorded(*requests: Event) -> tuple[Player, Lane]:
    recorder = Recorder()
    lane = recorder.lane()
    for index, asked in enumerate(requests):
        call = lane.at("turn 0 call 0")
        recorder.keep(call, recorder.look(call, asked).ended("ok", f"answer {index}"))
    player = player_of(recorder, lane)
    return player, player.lane("run-0").at("turn 0 call 0")


def test_a_judge_that_is_asked_more_often_than_it_was_has_no_answer() -> None:
    asked = Event(kind="judge", name="critic", request={"prompt": "say"}, is_shared=True)
    player, lane = recorded(asked, asked)
    assert [player.look(lane, asked).outcome for _ in range(2)] == ["ok", "ok"]
    assert miss(player, lane, asked).endswith("it was made 2 times, and now 3")
