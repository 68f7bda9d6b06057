"""The reward `workspace`: tests over what an episode left in its machine, run in a machine of their own.

A number is given wherever the tests can be run. Where they write none over what the episode left, they are run over
the image alone: if they write one there, what the policy left is what broke them, and it earns 0; if not, the task or
the machine is at fault, and the term is invalid. So a failure is found by a run, and never guessed from how a process
ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rlenv._base.paths import RefusedPath
from rlenv._base.strict_json import read_json
from rlenv.concurrency.deadline import bounded_by_itself
from rlenv.errors import RewardError, UsageError
from rlenv.language.kinds import Kind
from rlenv.language.spec import Float, RewardSpec, Text
from rlenv.language.templates import TemplateError, template_of
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.tools.workspace.bash import workspace_of
from rlenv.tools.workspace.machine import MachineFailed
from rlenv.tools.workspace.resource import RESULTS, Verified, Workspace

__all__ = ["KIND", "WorkspaceTestsSpec", "value_of"]

_MOST_LOST: Final = 4
_KEPT_CHARS: Final = 500
_MOST_CHARS: Final = 100


class WorkspaceTestsSpec(RewardSpec):
    """The number that tests give in a machine of their own, over what the episode left in its machine.

    They write it to `/logs/verifier/reward.json` (a number, or an object whose `reward` it is and whose other numbers
    are kept beside it) or `/logs/verifier/reward.txt`.
    """

    kind: Literal["workspace"]
    resource: Text
    """The machine: the name of a resource of kind workspace."""
    run: Text = "bash /tests/test.sh"
    """The command, as a template over `task` and `vars`; it starts in the machine's `workdir`."""
    collect: Text | None = None
    """A command that runs first, over what the episode left and in a machine without the tests; they see what it leaves
    in `keep`, without links that lead elsewhere. The place to run programs of the policy's: none is there when the
    tests run."""
    tests: Text | None = None
    """A folder whose content stands in `/tests` while they run, relative to the spec; a template over `task` and
    `vars`. The episode never sees it."""
    keep: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Paths that the tests see as the episode left them; all else is the image's. By default `workdir`; `/` for all,
    where programs that the policy has changed take part in the verdict."""
    by: Literal["file", "status"] = "file"
    """`status`: the command's exit status is the number: 1.0 for 0, else 0.0; 126 and 127 say that it was not run."""
    time_s: Annotated[Float, Field(gt=0, le=86_400)] = 600.0
    """Seconds that the tests may take."""


def value_of(verified: Verified, by: str) -> tuple[float | None, Mapping[str, float]]:
    """The number that tests gave, None for none, and the numbers beside it."""
    if by == "status":
        code = verified.ran.code
        # Those two say that the command itself was not there, or could not be run.
        return None if code is None or code in (126, 127) else float(code == 0), {}
    name = next((name for name in RESULTS if name in verified.files), "")
    try:
        if name.endswith(".txt"):
            found: Any = float(verified.files[name][:_MOST_CHARS])
        else:
            found = read_json(verified.files.get(name, b""), max_bytes=1_000_000)
    except ValueError:
        return None, {}
    numbers = {str(key): one for key, one in found.items()} if isinstance(found, dict) else {"reward": found}
    if not all(type(one) in (int, float) and math.isfinite(one) for one in numbers.values()):
        return None, {}
    if "reward" not in numbers:
        return None, {}
    return float(numbers.pop("reward")), {key: float(one) for key, one in numbers.items()}


@dataclass(frozen=True, slots=True)
class _Tests:
    """A compiled term."""

    spec: WorkspaceTestsSpec
    keep: tuple[str, ...]
    command: Callable[[RewardContext], str]
    collect: Callable[[RewardContext], str]
    folder: Callable[[RewardContext], Path | None]

    async def measure(self, context: RewardContext) -> Measured:
        workspace: Workspace = context.resources[self.spec.resource]
        try:
            command, collect, folder = self.command(context), self.collect(context), self.folder(context)
        except (TemplateError, RefusedPath) as error:
            raise RewardError(str(error)) from error
        if folder is not None and not folder.is_dir():
            raise RewardError(f"there is no folder of tests '{folder.name}'")
        with bounded_by_itself():
            value, beside, said = await self._number(workspace, command, collect, folder, over_layer=True)
            if workspace.is_cut:
                raise RewardError("a command of the episode was ended from outside, and what it did is lost")
            details: dict[str, Any] = {"commands": len(workspace.log), "boots": workspace.boots, "numbers": beside}
            if value is not None:
                return Measured(value, said, details)
            known, _, why = await self._number(workspace, command, collect, folder, over_layer=False)
        if known is None:
            raise RewardError(f"the tests give no number, not even over the untouched image: {why}")
        return Measured(0.0, f"the tests give no number over what the episode left: {said}", details)

    async def _number(
        self, workspace: Workspace, command: str, collect: str, folder: Path | None, *, over_layer: bool
    ) -> tuple[float | None, Mapping[str, float], str]:
        """The number and what the tests said; asked twice where there is none, since what the machine did is not done
        again, and what the policy left is.

        Raises RewardError: their machine was ended from outside, again and again.
        """
        lost, asked, said = 0, 0, ""
        while asked < 2:
            try:
                # In a shell of its own: one that ends gives a status all the same.
                tested = await workspace.tested(
                    f"(\n{command}\n)", tests=folder, keep=self.keep, time_s=self.spec.time_s, collect=collect,
                    over_layer=over_layer,
                )  # fmt: skip
            except MachineFailed as error:
                lost += 1
                said = str(error)
                if error.is_cut and lost < _MOST_LOST:
                    continue
                if error.is_cut:
                    raise RewardError(f"the tests could not be run: {error}") from error
            else:
                value, beside = value_of(tested, self.spec.by)
                said = tested.ran.output.decode(errors="replace").strip()[-_KEPT_CHARS:]
                if tested.ran.why:
                    said = f"their command did not end by itself ({tested.ran.why}) {said}".strip()
                if value is not None:
                    return value, beside, said
            asked += 1
        return None, {}, said


def _compile(name: str, spec: WorkspaceTestsSpec, context: TermCompileContext) -> Term:
    found = workspace_of(spec.resource, context)
    for index, path in enumerate(spec.keep or ()):
        if not path.startswith("/") or ".." in path.split("/"):
            raise UsageError(f"'{path}' is no absolute path", key=f"keep.{index}", hint=f"write /{path.strip('./')}")
    if spec.collect and "/" in (one.rstrip("/") or "/" for one in spec.keep or ()):
        raise UsageError("what is collected is a part of the files", key="keep", hint="name the paths that `run` reads")
    run = template_of(spec.run, key="run", names=("task", "vars"))
    collect = template_of(spec.collect or "", key="collect", names=("task", "vars"))
    tests = None if spec.tests is None else template_of(spec.tests, key="tests", names=("task", "vars"))

    def folder(one: RewardContext) -> Path | None:
        if tests is None:
            return None
        return context.finder("tests", tests, vars=one.vars)(tests.text(task=one.task, vars=one.vars))

    term = _Tests(
        spec=spec,
        keep=tuple(spec.keep or (found.spec.workdir,)),
        command=lambda one: run.text(task=one.task, vars=one.vars),
        collect=lambda one: collect.text(task=one.task, vars=one.vars),
        folder=folder,
    )
    return Term(name=name, spec=spec, measure_async=term.measure)


KIND = Kind(WorkspaceTestsSpec, _compile)
