"""`rlenv train --preflight` and `rlenv runs export-policy`: what comes before and after training."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from rlenv.cli.console import Console
from rlenv.cli.options import Options, argument, given, option
from rlenv.cli.spending import counting, show_spending_line
from rlenv.cli.terminal import write, write_json
from rlenv.models.place import adapter
from rlenv.preflight import Preflight, lines_of

__all__ = ["ExportPolicyCommand", "PreflightCommand"]


_EPILOG: Final = """key=value are overrides as `rlenv train` takes them: of the trainer's configuration
(data.max_response_length=8192), or of the preset's own part (run.max_prompt_length=8192)."""


@dataclass
class PreflightCommand(Options):
    """`rlenv train --preflight`."""

    usage: ClassVar[str] = "rlenv train --preflight SPEC [SPEC ...] --model FOLDER [options] [key=value ...]"
    epilog: ClassVar[str] = _EPILOG
    items: list[str] = argument("YAML files, or names of specs that ship", metavar="SPEC | key=value", nargs="*")
    model: str = option("as for `rlenv train`; its tokenizer, config.json and headers are read", required=True)
    chat_template: str | None = option("as for `rlenv train`", metavar="FILE|NAME")
    preset: str | None = option("machine and sizes; cpu by default, as for `rlenv train`", metavar="NAME|FILE")
    algorithm: str | None = option("the preset's own by default")
    mode: str | None = option("the preset's own by default")
    set: list[str] = option("replace a key of every spec; NAME:KEY=VALUE of one", default=[], metavar="KEY=VALUE")
    lora: int | None = option("as for `rlenv train`", metavar="RANK")
    sample: int | None = option("measure at most N tasks of each split (256)", metavar="N")
    device_gb: float | None = option(
        "the memory of one GPU; this machine's own by default, 80 where it has none",
        "--card",
        "--device-gb",
        metavar="GB",
    )
    json: bool = option("write the report as one JSON object")

    def execute(self) -> int:
        """0 where the run can start, 1 where something would make it fail or useless.

        Raises:
            MissingExtra: the adapter or what it stands on is not installed.
        """
        look = adapter("run.preflight_command", wanted_by="rlenv train --preflight").look
        with counting() as so_far:
            report: Preflight = look(
                self.items,
                needs_weights=True,
                **given(self, "model", "preset", "algorithm", "mode", "set", "lora", "chat_template", "device_gb"),
                **({} if self.sample is None else {"sample": self.sample}),
            )
        if self.json:
            write_json(report.as_dict(), indent=2)
            return 0 if report.is_ready else 1
        console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        for line in lines_of(report):
            console.print(line, markup=False)
        show_spending_line(console, so_far())
        console.print(f"[{'green' if report.is_ready else 'red'}]{report.outcome}[/]")
        return 0 if report.is_ready else 1


@dataclass
class ExportPolicyCommand(Options):
    """`rlenv runs export-policy`."""

    run: Path = argument("the folder of a run of `rlenv train`")
    step: int | None = option("the checkpoint's step; the last one by default", metavar="N", one_of="step")
    best: bool = option("the step with the highest held-out success", one_of="step")
    output: Path | None = option("by default RUN/exported/step-N", "-o", "--output", metavar="FOLDER", writes=True)
    dtype: str | None = option("by default the one that was trained in", choices=("float32", "bfloat16", "float16"))
    adapter: bool = option("write the LoRA adapter alone, as a folder of peft")
    check: bool = option("load the folder and compare its logits with the run's")
    json: bool = option("print what was written as one JSON object")

    def execute(self) -> int:
        """Exit code 1 where `--check` finds another policy in the folder, 0 otherwise.

        Raises:
            MissingExtra: the adapter or what it stands on is not installed.
        """
        exporting = adapter("export.command", wanted_by="rlenv runs export-policy")
        options = given(self, "step", "best", "dtype", "adapter", "check")
        report: dict[str, Any] = exporting.export(self.run, self.output, **options)
        if self.json:
            write_json(report)
        else:
            write(exporting.text(report))
        return 1 if report["check"] is not None and not report["check"]["holds"] else 0
