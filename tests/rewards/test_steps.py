"""Harbor's folders as a spec of three lines plays them: the oracle, steps, users, and tests of their own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlenv.checks.validate import validate
from rlenv.cli.main import main
from rlenv.episodes.environment import load
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.scripted import OraclePolicy
from rlenv.runs.recorded import recorded_in
from rlenv.runs.replay import rescore
from rlenv.trajectory import Trajectory
from tests.support.machines import reachable  # noqa: F401 - a fixture

pytestmark = pytest.mark.sandbox

QUIET = '[environment]\nnetwork_mode = "no-network"\n'
GIVES = 'echo "$({})" > /logs/verifier/reward.txt\n'


def written(base: Path, toml: str = QUIET, **files: str) -> Path:
    """A spec of three lines over one task folder; `files` are by path."""
    task = base / "tasks" / "one"
    usual = {"task.toml": toml, "instruction.md": "Go.", "tests/test.sh": GIVES.format("cat /app/n")}
    for name, text in {**usual, **files}.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (base / "env.yaml").write_text("rlenv: 1\nname: one\ntasks: {test: {harbor: tasks}}\n", encoding="utf-8")
    return base / "env.yaml"


def played(spec: Path, acts: Sequence[str] | None = None) -> Trajectory:
    """An episode of commands, an empty one for a message without a call; by default the oracle's."""

    async def play() -> Trajectory:
        async with load(spec) as environment:
            if acts is None:
                oracle = OraclePolicy(environment.spec, environment.parts.dialect)
                return (await rollout(environment, oracle, [Job("test", 0, 1)]))[0]
            left = list(acts)
            async with environment.start(task=0, split="test", seed=1) as episode:
                while not episode.is_ended:
                    act = left.pop(0) if left else ""
                    call = json.dumps({"name": "bash", "arguments": {"command": act}})
                    await episode.step(f"<tool_call>\n{call}\n</tool_call>" if act else "Done.")
                return episode.trajectory

    return asyncio.run(play())


def worth(trajectory: Trajectory) -> float:
    assert trajectory.failure is None, trajectory.failure
    assert trajectory.reward is not None
    assert trajectory.reward.total is not None
    return trajectory.reward.total


def test_a_variable_that_is_not_set_is_a_fault_of_a_check(reachable: Path) -> None:  # noqa: F811
    (fault,) = validate([written(reachable, QUIET + 'env = {WORD = "${RLENV_NO_SUCH}"}\n')]).faults
    assert (fault.line, "RLENV_NO_SUCH is not set, or empty" in fault.message) == (3, True)


def test_three_lines_play_a_folder(reachable: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("RLENV_WORD", "secret word")
    toml = QUIET + 'env = {WORD = "${RLENV_WORD}"}\n[solution]\nenv = {N = "1"}\n[verifier]\nenv = {ONE = "1"}\n'
    tests = '[ "$(cat /app/n)" = "$ONE" ] && [ "$WORD" = "secret word" ] && n=1\n' + GIVES.format("echo ${n:-0}")
    files = {"tests/test.sh": tests, "solution/solve.sh": '. "$(dirname "$0")/data"', "solution/data": "echo $N > n"}
    spec = written(reachable, toml, **files)
    assert validate([spec]).faults == validate([spec]).warnings == ()
    assert worth(played(spec)) == 1
    nothing = played(spec, [""])
    assert worth(nothing) == 0
    assert "secret word" not in json.dumps(nothing.task)
    assert worth(played(spec, ["echo 2 > n"])) == 0


STEPS = {
    "steps/a/instruction.md": "First.", "steps/b/instruction.md": "Second.", "steps/b/workdir/given": "5",
    "steps/b/workdir/setup.sh": "[ ! -e stop ] && touch made", "tests/lib": "worth() { cat /app/$1 || echo 0; }",
    "steps/a/tests/test.sh": ". /tests/lib\n" + GIVES.format("worth a"),
    "steps/b/tests/test.sh": ". /tests/lib\nprintf '{\"reward\": %s}' $(worth b) > /logs/verifier/reward.json\n",
    "steps/a/solution/solve.sh": "echo 1 > a", "steps/b/solution/solve.sh": "[ -e made ] && [ -e given ] && echo 1 > b",
}  # fmt: skip
TWO = QUIET + '[[steps]]\nname = "a"\nmin_reward = 0.5\n[[steps]]\nname = "b"\n'


SERVES = "cd /srv; echo {} > index; nohup python3 -m http.server 8080 > /dev/null 2>&1 &\n"
SERVES += "until (: > /dev/tcp/localhost/8080) 2> /dev/null; do sleep 0.05; done"
ASKS = "python3 -c \"import urllib.request as r; print(r.urlopen('http://localhost:8080/index').read().decode())\""


def test_shared_tests_ask_a_server_that_the_episode_left_running(reachable: Path) -> None:  # noqa: F811
    files = {"tests/test.sh": GIVES.format(f"{ASKS} || echo 0"), "solution/solve.sh": SERVES.format(1)}
    spec = written(reachable, **files)
    assert validate([spec]).warnings == ()
    assert worth(played(spec)) == 1
    assert worth(played(spec, ["echo 1 > /srv/index"])) == 0
    spec.write_text(spec.read_text() + "resources: {machine: {kind: workspace, sandbox: runc}}\n")
    (warning,) = validate([spec]).warnings
    assert ("only bubblewrap" in warning.message, Path(warning.file).name) == (True, "test.sh")


def test_a_step_begins_without_what_an_earlier_one_left_running(reachable: Path) -> None:  # noqa: F811
    asks = GIVES.format(f"{ASKS} || echo 0")
    files = {**STEPS, "steps/a/tests/test.sh": asks, "steps/b/tests/test.sh": asks}
    spec = written(reachable, TWO, **{**files, "steps/b/workdir/setup.sh": "cp /srv/index first"})
    trajectory = played(spec, [SERVES.format(1), "", SERVES.format("$(cat /app/first)0"), ""])
    assert trajectory.reward is not None
    assert trajectory.reward.terms["solved"].details["steps"] == [1.0, 10.0]


HANGS = {
    "a hook over what was left": ["mkfifo x"],
    "a hook by a function of the shell": ["timeout() { trap '' INT; while :; do :; done; }; export -f timeout"],
    "the next set-up over what was left": ["echo 1 > a; rm -f made; mkfifo made"],
}


@pytest.mark.parametrize("name", HANGS)
def test_no_policy_masks_itself_by_what_hangs_between_its_commands_and_the_tests(reachable: Path, name: str) -> None:  # noqa: F811
    toml = TWO.replace("min_reward = 0.5\n", "") + "[steps.verifier]\ntimeout_sec = 1\n"
    toml += '[agent]\ntimeout_sec = 3\n[verifier]\ntimeout_sec = 1\n[[verifier.collect]]\ncommand = "cat /app/x"\n'
    spec = written(reachable, toml, **{**STEPS, "steps/b/workdir/setup.sh": "timeout 9 touch given; echo > made"})
    limited = spec.read_text() + "limits: {reward_s: 2}\n"
    spec.write_text(limited)
    assert worth(played(spec, HANGS[name])) < 1


def test_a_step_is_a_turn_of_the_users(reachable: Path) -> None:  # noqa: F811
    spec = written(reachable, TWO, **STEPS)
    trajectory = played(spec)
    assert worth(trajectory) == 1
    (solved,) = trajectory.reward.terms.values()
    assert "/app/b" in [one["path"] for one in solved.details["changed"]]  # what the last step made, too
    said = [message.content for turn in trajectory.turns if turn.observation for message in turn.observation.messages]

    async def again() -> Trajectory:
        async with load(spec) as environment:
            return (await rescore(environment, [trajectory]))[0]

    rescored = asyncio.run(again())
    assert rescored.reward is not None
    assert rescored.reward.total is None  # the machine was not recorded, and no other number is given
    assert trajectory.messages[-1].content == "First."
    assert "Second." in said


@pytest.mark.parametrize(
    ("acts", "mean", "final"),
    [
        (["echo 1 > a", "", "echo 0.5 > b", ""], 0.75, 0.5),
        (["echo 0.4 > a", ""], 0.4, 0.4),  # below min_reward: the task ends there
        (["echo 1 > a; touch stop", ""], 0.5, 0),  # what it left stands in the way of the next step
        (["echo 1 > a", "", "exit 3", "cat given && rm -r /bin/* ; echo 1 > b", ""], 1, 1),
    ],
)
@pytest.mark.parametrize("strategy", ["mean", "final"])
def test_steps_are_worth_their_mean_or_the_last(
    reachable: Path,  # noqa: F811
    acts: list[str],
    mean: float,
    final: float,
    strategy: str,
) -> None:
    spec = written(reachable, f'multi_step_reward_strategy = "{strategy}"\n' + TWO, **STEPS)
    assert worth(played(spec, acts)) == pytest.approx(final if strategy == "final" else mean)


@pytest.mark.parametrize(
    ("first", "number"),
    [("echo 1 > a", 1), ("echo 0.4 > a", 0.4), ("echo 1 > a; touch stop", 0.5)],
    ids=["to the end", "below min_reward", "the next one cannot begin"],
)
def test_recorded_steps_are_rescored_to_the_same_number(reachable: Path, first: str, number: float) -> None:  # noqa: F811
    spec = written(reachable, TWO, **{**STEPS, "steps/a/solution/solve.sh": first})
    run, again = str(reachable / "run"), str(reachable / "again")
    assert main(["eval", str(spec), "--policy", "oracle", "--split", "test", "--record", "-o", run]) == 0
    assert main(["rescore", run, "--spec", str(spec), "-o", again]) == 0
    then, now = (next(recorded_in(Path(one))) for one in (run, again))
    assert worth(then) == worth(now) == pytest.approx(number)
    assert then.reward.terms["solved"].details["steps"] == now.reward.terms["solved"].details["steps"]


def test_steps_that_other_tests_measured_are_no_number(reachable: Path) -> None:  # noqa: F811
    spec = written(reachable, TWO, **STEPS)
    run, again = str(reachable / "run"), str(reachable / "again")
    assert main(["eval", str(spec), "--policy", "oracle", "--split", "test", "--record", "-o", run]) == 0
    (reachable / "tasks/one/steps/a/tests/test.sh").write_text(GIVES.format("echo 0"))
    main(["rescore", run, "--spec", str(spec), "-o", again, "--max-invalid", "1"])
    term = next(recorded_in(Path(again))).reward.terms["solved"]
    assert (term.value, "other tests measured step 1" in term.error) == (None, True)


def test_steps_that_were_not_reached_are_worth_nothing(reachable: Path) -> None:  # noqa: F811
    spec = written(reachable, TWO, **STEPS)
    spec.write_text(spec.read_text() + "limits: {turns: 1}\n")
    assert worth(played(spec, ["echo 1 > a"])) == 0.5


def test_separate_tests_see_what_is_published_alone(reachable: Path) -> None:  # noqa: F811
    toml = (
        'artifacts = [{source = "/app/n"}, {source = "/app/d", exclude = ["*.o", "d/d"]}]\n'
        + QUIET
        + ('[verifier]\nenvironment_mode = "separate"\n[[verifier.collect]]\ncommand = "cp /tmp/n /logs/artifacts/n"\n')
    )
    tests = (
        "cat /app/n /logs/artifacts/n; ls /app/d\n[ ! -e /app/other ] && [ ! -e /tmp/n ] && "
        "[ $(ls -A /app/d) = a ] && cmp /app/n /logs/artifacts/n && n=1\n"
    )
    spec = written(reachable, toml, **{"tests/test.sh": tests + GIVES.format("echo ${n:-0}")})
    act = "echo 3 | tee n other /tmp/n; mkdir -p d/d/e /logs/artifacts /logs/verifier; touch d/a d/b.o"
    act += "; echo 9 > /logs/verifier/reward.txt"
    assert worth(played(spec, [act])) == 1
    link = "echo 3 | tee n /tmp/n; rmdir /logs/artifacts; ln -s /tmp /logs/artifacts"
    assert worth(played(spec, [link])) == 0


def test_a_check_that_fails_makes_the_episode_invalid(reachable: Path) -> None:  # noqa: F811
    check = '[environment.healthcheck]\ncommand = "false"\nretries = 2\ninterval_sec = 0.01\n'
    trajectory = played(written(reachable, QUIET + check), [""])
    assert trajectory.failure is not None
    assert "set-up" in trajectory.failure.message


@pytest.mark.skipif(os.geteuid() != 0, reason="users inside need root")
def test_users_are_those_that_the_task_names(reachable: Path) -> None:  # noqa: F811
    hooks = "".join(
        f'[[verifier.collect]]\ncommand = "id -u > /tmp/{who or 0}"\n' + (f'user = "{who}"\n' if who else "")
        for who in ("", "root", "nobody")
    )
    seen = GIVES.format("[ $(cat /tmp/0 /tmp/root /tmp/nobody | tr -d '\\n') = 00$(id -u nobody) ] && echo 1")
    assert worth(played(written(reachable, QUIET + hooks, **{"tests/test.sh": seen}), [""])) == 1
    toml = QUIET + '[agent]\nuser = "nobody"\n[verifier]\nuser = 7\n'
    tests = '[ "$(cat /tmp/who)" = nobody ] && [ "$(id -u)" = 7 ] && n=1\n' + GIVES.format("echo ${n:-0}")
    files = {"tests/test.sh": tests, "solution/solve.sh": "cp /solution/name /tmp/who", "solution/name": "nobody"}
    assert worth(played(written(reachable, toml, **files))) == 1
    assert worth(played(written(reachable, toml, **files), ["id -un > /tmp/who"])) == 1


def test_a_spec_has_its_own_names_and_keys(reachable: Path) -> None:  # noqa: F811
    spec = written(reachable)
    spec.write_text(
        spec.read_text() + "resources: {box: {kind: workspace, cwd: /srv}}\n"
        "tools: {bash: {kind: bash, resource: box}}\n"
        "rewards: {told: {kind: workspace, resource: box, keep: [/srv],"
        " command: 'cp /srv/n /logs/verifier/reward.txt'}}\n"
    )
    assert validate([spec]).faults == ()
    assert worth(played(spec, ["echo 0.5 > n"])) == 0.5


def test_init_writes_the_spec(reachable: Path) -> None:  # noqa: F811
    written(reachable, **{"solution/solve.sh": "echo 1 > n"})
    assert main(["init", str(reachable / "mine"), "--from", str(reachable / "tasks")]) == 0
    spec = reachable / "mine" / "mine.yaml"
    assert validate([spec]).faults == ()
    assert worth(played(spec)) == 1


def test_tests_with_an_image_of_their_own_run_in_it(reachable: Path) -> None:  # noqa: F811
    if not Path("/bin/busybox").exists():
        pytest.skip("busybox-static is not installed")
    (reachable / "image" / "bin").mkdir(parents=True)
    shutil.copy2("/bin/busybox", reachable / "image" / "bin" / "busybox")
    for name in ("sh", "cat", "mkdir"):
        (reachable / "image" / "bin" / name).symlink_to("busybox")
    (reachable / "image" / "tests").mkdir()
    (reachable / "image" / "tests" / "test.sh").write_text(
        "[ ! -e /usr/bin/env ] && [ ! -e /app/other ] && cat /app/n > /logs/verifier/reward.txt\n"
    )
    spec = written(reachable)
    reward = "{kind: workspace, resource: machine, tests: '', keep: [/app/n], command: sh /tests/test.sh}"
    machine = "resources: {machine: {kind: workspace, tests_image: image}}\n"
    spec.write_text(spec.read_text() + machine + f"rewards: {{solved: {reward}}}\n")
    planted = "mkdir -p /tests; echo 'echo 9 > /logs/verifier/reward.txt' > /tests/test.sh"
    assert worth(played(spec, [f"{planted}; echo 0.5 > n; touch other"])) == 0.5


def test_an_image_brings_the_folder_and_the_variables_of_what_runs_over_it(reachable: Path) -> None:  # noqa: F811
    if shutil.which("podman") is None or not Path("/bin/busybox").exists() or os.geteuid() != 0:
        pytest.skip("needs podman and busybox-static, as root")
    links = "RUN " + " && ".join(f"/busybox ln -s /busybox /bin/{name}" for name in ("sh", "chmod", "tail"))
    base = f'FROM scratch\nCOPY busybox /busybox\nCOPY busybox /bin/\nSHELL ["/busybox", "sh", "-c"]\n{links}\n'
    test = '#!/bin/sh\n[ "$PWD $HERE $OWN$ALL" = "/checks tests yes" ] && echo 1 > /logs/verifier/reward.txt\n'
    spec = written(
        reachable, QUIET + "[verifier]\nenvironment_mode = 'separate'\n",
        **{"environment/Dockerfile": f"{base}ENV HERE=agent ALL=no\n", "tests/test.sh": test,
           "tests/Dockerfile": f"{base}COPY test.sh /tests/test.sh\nENV HERE=tests OWN=yes\nWORKDIR /checks\n"},
    )  # fmt: skip
    for folder in ("environment", "tests"):
        shutil.copy2("/bin/busybox", reachable / "tasks" / "one" / folder / "busybox")
    assert main(["images", str(spec)]) == 0
    trajectory = played(spec, ["echo $PWD $HERE"])
    assert [one.text for turn in trajectory.turns for one in turn.results] == ["/ agent"]
    assert worth(trajectory) == 1
