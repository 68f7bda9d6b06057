"""Specs as a taskset of verifiers 0.4, with the harness that plays them; prime-rl takes them from there.

    vf-eval rlenv_verifiers --env.taskset.spec letters.yaml -m MODEL --env.agent.runtime.type subprocess --no-push
    vf-validate rlenv_verifiers --taskset.spec letters.yaml --runtime.type subprocess

Each task is a row of the spec. The harness plays its episode in this process, against the endpoint that verifiers gives
for the rollout and records at; tools, users and judges are the spec's. A reward that cannot be measured raises: the
trace is not `ok`, its reward and metrics have no number, and prime-rl leaves it out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import verifiers.v1 as vf
from pydantic import Field

import rlenv
from rlenv.hosts.session import require_alone, shown, why_invalid
from rlenv_train.player import environment_of

__all__ = ["RlenvHarness", "RlenvTaskset"]  # verifiers takes what a package plays from its list

_UNFINISHED: Final[Mapping[str, Any]] = {"total": None, "success": None, "failure": None, "terms": {}}


class RlenvData(vf.TaskData):
    """A row of a spec by its address."""

    spec: str
    spec_set: dict[str, Any] = Field(default_factory=dict)
    split: str
    task: int


class RlenvConfig(vf.TasksetConfig):
    """Which rows: `--env.taskset.spec FILE --env.taskset.split train`."""

    spec: str = ""
    """A spec's file, or the name of one that ships with rlenv."""
    spec_set: dict[str, Any] = Field(default_factory=dict)
    """Replaces keys of the spec, by dotted path."""
    split: str | None = None
    """By default the first of the spec."""
    group_terms: Literal["refuse", "drop"] = "refuse"
    """What becomes of reward terms that compare the answers to one task: rollouts are scored one by one here."""


class RlenvTask(vf.Task[RlenvData]):
    """A row, and what its episode has earned: `trace.info["rlenv"]` holds the episode's end."""

    @property
    def key(self) -> str:
        """The row's address: the same from wherever the spec is loaded."""
        return f"{self._environment.id}:{self.data.split}:{self.data.task}"

    @property
    def _environment(self) -> rlenv.Environment:
        return environment_of(self.data.spec, self.data.spec_set)

    @vf.reward(weight=1.0)
    async def rlenv(self, trace: vf.Trace) -> float:
        """The total of the spec's reward; raises TaskError where it is invalid."""
        end = trace.info.get("rlenv")
        if end is None and not trace.nodes:  # vf-validate asks what doing nothing earns
            start = self._environment.start(task=self.data.task, split=self.data.split)
            async with start as episode:
                end = (episode.trajectory if episode.is_ended else await episode.truncate("host")).outcome()
        total = None if end is None else end["total"]
        if total is None:
            raise vf.TaskError(f"the reward could not be measured: {why_invalid(end)}")
        return float(total)

    @vf.metric
    async def terms(self, trace: vf.Trace) -> dict[str, float]:
        """The terms that were measured, and the success; none of an episode whose reward is invalid."""
        end = trace.info.get("rlenv") or _UNFINISHED
        if end["total"] is None:
            return {}
        measured = {f"term/{name}": float(value) for name, value in end["terms"].items() if value is not None}
        return measured | ({} if end["success"] is None else {"success": float(end["success"])})

    async def validate(self, runtime: Any) -> bool | None:
        """Whether the spec's oracle succeeds; None where it has none."""
        environment, data = self._environment, self.data
        if environment.spec.oracle is None:
            return None
        ended = await rlenv.play(environment, environment.oracle(), rlenv.Job(data.split, data.task))
        if ended.failure is not None:
            raise vf.TaskError(f"the oracle's reward could not be measured: {why_invalid(ended.outcome())}")
        return ended.success is True


class RlenvTaskset(vf.Taskset[RlenvTask, RlenvConfig]):
    """The rows of a split of a spec."""

    def __init__(self, config: RlenvConfig) -> None:
        super().__init__(config)
        if not config.spec:
            raise ValueError("no spec; give one with --env.taskset.spec FILE (of vf-validate: --taskset.spec)")
        if config.system_prompt is not None:
            raise ValueError("system_prompt: a spec has its own; replace it with spec_set, under prompt.system")
        self._environment = environment = environment_of(config.spec, config.spec_set)
        self.split = config.split or next(iter(environment.spec.tasks))
        if config.group_terms == "refuse":
            hint = "--env.taskset.group-terms drop leaves them out"
            require_alone(environment, "verifiers scores each rollout", hint)
        self.INFINITE = environment.tasks(self.split).is_endless

    def load(self) -> Iterator[RlenvTask]:
        """A task for each row, in order; without an end where the split has none."""
        config, environment = self.config, self._environment
        count = len(environment.tasks(self.split))
        for index in itertools.count() if self.INFINITE else range(count):
            name, prompt = f"{environment.spec.name}/{self.split}/{index}", shown(environment, self.split, index)
            address = {"spec": config.spec, "spec_set": config.spec_set, "split": self.split, "task": index}
            yield RlenvTask(RlenvData(name=name, prompt=prompt, **address), config.task)


class RlenvHarnessConfig(vf.HarnessConfig):
    """What a program or tools of verifiers' would be given is refused: the episode is played in this process."""


class RlenvHarness(vf.Harness[RlenvHarnessConfig]):
    """Plays the episode of a row against the rollout's endpoint."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    def __init__(self, config: RlenvHarnessConfig) -> None:
        super().__init__(config)
        if given := [
            name for name in ("env", "forward_env", "mcp_header_env", "disabled_tools") if getattr(config, name)
        ]:
            raise ValueError(
                f"{', '.join(given)}: an episode runs no program; tools and their settings stand in the spec"
            )

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: RlenvData,
    ) -> vf.ProgramResult:
        """Plays to the end, and leaves it in the trace's info. A rollout that verifiers stops is scored too."""
        trace.info["rlenv"] = dict(_UNFINISHED)
        ended = await rlenv.play_endpoint(
            environment_of(data.spec, data.spec_set),
            base_url=endpoint,
            model=ctx.model,
            api_key=secret,
            task=data.task,
            split=data.split,
            seed=None,
            is_stopped=lambda: trace.stop_condition is not None,
        )
        end = trace.info["rlenv"] = {**ended.outcome(), "turns": len(ended.turns)}
        # What the endpoint has failed is verifiers' own error, which it raises where the harness has failed too.
        is_lost = ended.failure is not None and ended.failure.reason in ("policy", "refused")
        return vf.ProgramResult(exit_code=int(is_lost), stdout="", stderr=why_invalid(end) if is_lost else "")
