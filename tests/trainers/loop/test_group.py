"""The samples of one prompt: terms that compare them, and the deadline for those that lag behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import UsageError
from rlenv.runs.cassettes import Recorder
from rlenv.runs.events import Reel
from rlenv.runs.folder import open_run
from tests.trainers.groups import ALONE, BREAKS, RIGHT, SPEC, STUCK, TOOLS, WRONG, figures, info, play_group
from tests.trainers.loops import CALL, Server, hangs, own_process

ASKS = """
from rlenv.concurrency.lanes import Event, here, through


async def asked(context):
    async def ask():
        return 1.0

    if (lane := here()) is None:
        return await ask()
    ways = {"again": lambda event: event.response, "kept": lambda event, value: event.ended("ok", value)}
    known_by = Event(kind="grade", name="station", request={})
    return await through(lane, known_by, ask, **ways, failed=lambda event, error: None)
"""


@pytest.mark.slow
def test_terms_that_compare_the_samples_are_measured_in_training(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    outputs = play_group(tmp_path, tokenizer, [[RIGHT], [CALL, WRONG], [WRONG]], spec=SPEC, files={"tools.py": TOOLS})
    assert [info(output)["term_best"] for output in outputs] == [1.0, 0.25, 0.25]
    assert [output.reward_score for output in outputs] == pytest.approx([1.5, 0.125, 0.125])
    assert [sum(output.as_dict()["rm_scores"].tolist()) for output in outputs] == pytest.approx([1.5, 0.125, 0.125])


def test_failed_samples_are_left_out_of_the_comparison(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    scripts: list[Any] = [[RIGHT], [BREAKS], [WRONG], [ConnectionError("the server is gone")]]
    outputs = play_group(tmp_path, tokenizer, scripts, spec=SPEC, files={"tools.py": TOOLS})
    right, broken, wrong, raised = outputs
    assert [info(output)["term_best"] for output in (right, broken, wrong)] == [1.0, None, 0.0]
    assert (figures(broken)["masked"], figures(broken)["ended"]) == ("resource", "resource")
    assert not any(broken.response_mask)
    assert isinstance(raised, ConnectionError)


def test_samples_that_the_policy_masks_are_left_out_of_the_comparison(
    verl: Any, tmp_path: Path, tokenizer: Any
) -> None:
    scripts = [[RIGHT], [WRONG], [CALL, CALL, CALL]]
    options: dict[str, Any] = {"spec": SPEC, "files": {"tools.py": TOOLS}}
    kept = play_group(tmp_path, tokenizer, scripts, **options)
    assert [info(output)["term_best"] for output in kept] == [1.0, 0.25, 0.25]
    masked = play_group(tmp_path, tokenizer, scripts, failures={"turns": "mask"}, **options)
    assert [info(output)["term_best"] for output in masked] == [1.0, 0.0, None]
    assert figures(masked[2])["masked"] == "turns"


def test_a_single_valid_sample_has_nothing_to_compare_with(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    (output,) = play_group(tmp_path, tokenizer, [[RIGHT]], spec=SPEC, files={"tools.py": TOOLS})
    assert (output.reward_score, info(output)["term_best"]) == (1.0, None)


@pytest.mark.parametrize(("required", "masked"), [("true", ["reward"] * 2), ("false", ["", ""])])
def test_a_comparison_that_fails_is_an_invalid_term_of_all(
    verl: Any, tmp_path: Path, tokenizer: Any, required: str, masked: list[str]
) -> None:
    spec = SPEC.replace("of: correct, by: rank,", f'function: "tools.py:refuses", required: {required},')
    outputs = play_group(tmp_path, tokenizer, [[RIGHT], [WRONG]], spec=spec, files={"tools.py": TOOLS})
    assert [figures(output)["masked"] for output in outputs] == masked


def test_a_comparison_that_must_not_fail_asks_for_the_end_of_the_run(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    spec = SPEC.replace("of: correct, by: rank,", 'function: "tools.py:refuses", on_invalid: raise,')
    outputs = play_group(tmp_path, tokenizer, [[RIGHT], [WRONG]], spec=spec, files={"tools.py": TOOLS})
    assert all("rewards.best could not be measured" in figures(output)["stops"] for output in outputs)
    assert not any(any(output.response_mask) for output in outputs)


def test_a_cancelled_sample_leaves_nobody_waiting(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    async def cancel_last(tasks: list[asyncio.Task[Any]]) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        tasks[-1].cancel()

    outputs = play_group(
        tmp_path, tokenizer, [[RIGHT], [WRONG], [hangs]], spec=SPEC, files={"tools.py": TOOLS}, on_start=cancel_last
    )
    assert [info(output)["term_best"] for output in outputs[:2]] == [1.0, 0.0]
    assert isinstance(outputs[2], asyncio.CancelledError)


@pytest.mark.slow
def test_what_a_cancelled_sample_has_asked_is_forgotten(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    has_asked, recorder = asyncio.Event(), Recorder()

    async def held() -> str:
        has_asked.set()
        return await hangs()

    async def cancel_last(tasks: list[asyncio.Task[Any]]) -> None:
        await has_asked.wait()
        tasks[-1].cancel()

    play_group(
        tmp_path,
        tokenizer,
        [[RIGHT], ['<tool_call>\n{"name": "asked", "arguments": {"context": "it"}}\n</tool_call>', held]],
        spec=ALONE.replace("tools:", 'tools:\n  asked: {kind: python, function: "asks.py:asked"}'),
        files={"tools.py": TOOLS, "asks.py": ASKS.replace("(context):", '(context: str) -> float:\n    """Ask."""')},
        on_start=cancel_last,
        process=own_process(_recorder=recorder),
    )
    assert [row["success"] for row in open_run(tmp_path / "records").rows()] == [True]
    assert recorder.take_rest() == ""


def test_a_sample_cancelled_while_it_waits_for_the_others_leaves_nobody_waiting(
    verl: Any, tmp_path: Path, tokenizer: Any
) -> None:
    let = asyncio.Event()

    async def held() -> str:
        await let.wait()
        return WRONG

    async def cancel_first(tasks: list[asyncio.Task[Any]]) -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        tasks[0].cancel()
        let.set()

    outputs = play_group(
        tmp_path, tokenizer, [[RIGHT], [WRONG], [held]], spec=SPEC, files={"tools.py": TOOLS}, on_start=cancel_first
    )
    assert isinstance(outputs[0], asyncio.CancelledError)
    assert [info(output)["invalid"] for output in outputs[1:]] == [0.0, 0.0]


@pytest.mark.parametrize("spec", [SPEC, ALONE], ids=["group terms", "no group terms"])
def test_stragglers_are_cut_and_keep_what_was_sampled(verl: Any, tmp_path: Path, tokenizer: Any, spec: str) -> None:
    servers: list[Server] = []
    scripts: list[Any] = [[RIGHT], [WRONG], [RIGHT], [CALL, hangs]]
    deadline = {"share": 0.75, "grace_s": 0.05}
    outputs = play_group(
        tmp_path, tokenizer, scripts, spec=spec, files={"tools.py": TOOLS}, stragglers=deadline, servers=servers
    )
    late = outputs[3]
    assert (figures(late)["ended"], figures(late)["masked"]) == ("straggler", "")
    assert servers[3].is_cancelled
    assert late.prompt_ids + late.response_ids == servers[3].requests[1]["prompt_ids"]
    assert 1 in late.response_mask
    assert (info(late)["truncated"], info(late)["success"], info(late)["turns"]) == (1.0, 0.0, 1.0)
    assert [figures(output)["ended"] for output in outputs[:3]] == ["answer"] * 3


def test_what_a_stragglers_reward_asks_is_recorded(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    outputs = play_group(
        tmp_path,
        tokenizer,
        [[RIGHT], [STUCK]],
        spec=ALONE.replace("success:", '  asked: {kind: rule, function: "asks.py:asked"}\nsuccess:'),
        files={"tools.py": TOOLS, "asks.py": ASKS},
        stragglers={"share": 0.5, "grace_s": 0.0},
    )
    assert [figures(output)["ended"] for output in outputs] == ["answer", "straggler"]
    reel = Reel.of(tmp_path / "records")
    held = [[one.name for one in reel.events(id)] for id in reel.ids]
    assert held == [["station"], ["station"]]


def test_a_stragglers_pending_call_is_cancelled_and_its_action_stays(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    scripts = [[RIGHT], [WRONG], [STUCK]]
    outputs = play_group(
        tmp_path,
        tokenizer,
        scripts,
        spec=ALONE,
        files={"tools.py": TOOLS},
        stragglers={"share": 0.5, "grace_s": 0.0},
        failures={"straggler": "zero"},
    )
    late = outputs[2]
    assert (figures(late)["zeroed"], late.reward_score) == ("straggler", 0.0)
    assert set(late.response_mask) == {1}
    assert tokenizer.decode(late.response_ids) == STUCK + "<|im_end|>"
    assert (info(late)["turns"], info(late)["calls"]) == (1.0, 0.0)


def test_a_straggler_that_has_said_nothing_is_masked(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    deadline = {"share": 0.5, "grace_s": 0.0}
    outputs = play_group(
        tmp_path, tokenizer, [[RIGHT], [hangs]], spec=SPEC, files={"tools.py": TOOLS}, stragglers=deadline
    )
    assert (figures(outputs[1])["masked"], outputs[1].response_mask) == ("straggler", [0])


def test_an_episode_whose_reward_is_being_measured_is_not_cut(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    slow = (
        "import asyncio\n\nasync def score(answer):\n    for _ in range(1_000):\n        await asyncio.sleep(0)\n"
        "    return 1.0\n"
    )
    spec = ALONE.replace("success:", '  slow: {kind: rule, function: "slow.py:score"}\nsuccess:')
    outputs = play_group(
        tmp_path,
        tokenizer,
        [[ConnectionError("gone")], [RIGHT]],
        spec=spec,
        files={"tools.py": TOOLS, "slow.py": slow},
        stragglers={"share": 0.5, "grace_s": 0.0},
    )
    assert (figures(outputs[1])["ended"], outputs[1].reward_score) == ("answer", 2.0)


def test_validation_is_never_cut(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    async def later() -> str:
        for _ in range(1_000):  # passes of the loop: a deadline without grace would have come long ago
            await asyncio.sleep(0)
        return RIGHT

    outputs = play_group(
        tmp_path,
        tokenizer,
        [[WRONG], [later]],
        spec=ALONE,
        files={"tools.py": TOOLS},
        stragglers={"share": 0.5, "grace_s": 0.0},
        validation=True,
    )
    assert figures(outputs[1])["ended"] == "answer"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"share": 0.75}, "found share; expected share and grace_s"),
        (60, "found 60; expected share and grace_s"),
        ({"share": 0, "grace_s": 1}, r"stragglers\.share: 0 is not above 0"),
        ({"share": 75, "grace_s": 1}, r"stragglers\.share: 75 is not above 0"),
        ({"share": 0.5, "grace_s": -1}, r"stragglers\.grace_s: -1"),
    ],
)
def test_a_deadline_that_makes_no_sense_is_refused(given: Any, message: str) -> None:
    from rlenv_train.samples import stragglers

    with pytest.raises(UsageError, match=message):
        stragglers(given)
