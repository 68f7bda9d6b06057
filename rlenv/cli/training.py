"""The commands before and after training: `rlenv collect`, `train --preflight` and `runs export-policy`."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rlenv._base.bounded import plain
from rlenv.cli.console import Console, WithPrices, counting, show_spending, show_spending_line
from rlenv.cli.options import Options, WithSpec, argument, given, keywords, option, options_of
from rlenv.cli.play import WithPolicy
from rlenv.cli.terminal import write, write_json
from rlenv.collect import CollectReport, Keep, Settings, collect, identity_of
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import Job
from rlenv.errors import UsageError
from rlenv.models import adapter, local_model
from rlenv.preflight import Preflight, lines_of
from rlenv.runs.evaluate import MOST_SAMPLES
from rlenv.runs.stage import NAMES
from rlenv.tasks.rows import seed_of
from rlenv.tokens.bound import bind, load_tokenizer
from rlenv.tokens.encoder import History

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
        look = adapter("run.preflight", wanted_by="rlenv train --preflight").look
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
        console.say(*lines_of(report))
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
        exporting = adapter("export.export", wanted_by="rlenv runs export-policy")
        options = given(self, "step", "best", "dtype", "adapter", "check")
        report: dict[str, Any] = exporting.export(self.run, self.output, **options)
        if self.json:
            write_json(report)
        else:
            write(exporting.text(report))
        return 1 if report["check"] is not None and not report["check"]["holds"] else 0


_MOST_KINDS = 12

_KEEP_EPILOG = """The expression of --keep compares success, reward, turns, calls, calls_failed, calls_malformed, chars,
terminated, truncated, answered, cut, invalid and the spec's reward terms: success and turns <= 3."""


_source = partial(option, group="where episodes come from")
_chosen = partial(option, group="which are kept")
_written = partial(option, group="how they are written")


@dataclass
class CollectCommand(WithSpec, WithPolicy, WithPrices):
    """`rlenv collect`."""

    epilog: ClassVar[str] = _KEEP_EPILOG
    model: str = option("the model that shall train on the data: ids are its tokenizer's", required=True)
    out: str = option("a new folder", "-o", "--out", metavar="DATA", required=True, writes=True)
    records: list[str] = _source(
        "recorded episodes instead of a policy: a .jsonl, or a folder of eval, collect or train",
        "--from",
        default=[],
        metavar="RUN",
    )
    policy: str = option(f"{NAMES}; oracle by default", default="")
    policy_model: str | None = option("the model's name at the server", group="--policy openai")
    policy_chat_template: str | None = option(
        "instead of the model's own: a file, or chatml", metavar="FILE|NAME", group="--policy hf:MODEL"
    )
    split: str | None = _source("which tasks; by default warmup, else train, else the first; all with --from")
    n: int | None = _source("how many tasks; all by default", metavar="N", least=1)
    k: int | None = _source("samples of each task; 1 by default", metavar="K", least=1)
    concurrency: int | None = _source("episodes at once; 64 by default", metavar="C", least=1)
    seed: int = _source("of the episodes and of what is drawn", default=0)
    keep: str = _chosen("by default success", default="success", metavar="EXPRESSION")
    keep_invalid: bool = _chosen("also episodes whose reward is invalid")
    keep_cut: bool = _chosen("also episodes with a turn that a limit cut")
    per_task: int | None = _chosen("at most M of each task, drawn by the seed", metavar="M", least=1)
    balance: str | None = _chosen("as many of each value of a column of the rows, or of each `task`", metavar="COLUMN")
    chat_template: str | None = _written("as for `rlenv sft`; instead of its own", metavar="FILE|NAME")
    history: History = _written("as run.history of `rlenv train` (docs/training/training.md)", default="grow")
    kwarg: list[str] = _written("a name for the template, as run.template_kwargs", default=[], metavar="KEY=VALUE")
    json: bool = option("print the manifest as one JSON object")

    def execute(self) -> int:
        """Exit code 0 where data was written; 2 where nothing was kept or an option is wrong."""
        if self.k is not None and self.k > MOST_SAMPLES:
            raise UsageError(f"-k is at most {MOST_SAMPLES:,}")
        _check_source(self)
        environment = load(self.spec, set=self.overrides)
        terms = environment.spec.rewards
        keep = Keep.of(self.keep, terms=terms, keeps_invalid=self.keep_invalid, keeps_cut=self.keep_cut)
        kwargs = keywords(self.kwarg)
        tokenizer = load_tokenizer(local_model(self.model, chat_template=self.chat_template))
        encoder = bind(tokenizer, environment, history=self.history, template_kwargs=kwargs)
        concurrency = self.concurrency or 64
        settings = Settings(
            folder=Path(self.out),
            model=self.model,
            identity=identity_of(tokenizer, template_kwargs=kwargs),
            source="record" if self.records else self.policy,
            keep=keep,
            jobs=() if self.records else _make_jobs(self, environment),
            samples=self.k or 1,
            concurrency=concurrency,
            records=tuple(self.records),
            set=self.overrides,
            template_kwargs=kwargs,
            **given(self, "split", "per_task", "balance", "seed"),
        )
        policy = None if self.records else lambda: self.choice.make(environment, concurrency=concurrency)
        with Progress(
            TextColumn("episodes"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as progress:
            bar = progress.add_task("", total=len(settings.jobs) or None)

            def on_progress(count: int) -> None:
                progress.update(bar, completed=count)

            with counting(self.prices) as so_far:
                report = collect(environment, encoder, settings, policy=policy, on_episode=on_progress)
        spending = so_far()
        if self.json:
            usage = {"usage": plain(spending)} if spending.roles else {}
            write_json({"folder": str(report.folder), **asdict(report.manifest), **usage}, indent=2)
        else:
            console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
            _show_report(report, console)
            show_spending(console, spending)
        return 0


def _check_source(args: CollectCommand) -> None:
    """Recorded episodes are not played: what says how is refused beside them, and else filled in."""
    if args.records:
        own = [one for one in options_of(type(args)) if one.name in ("policy", "n", "k", "concurrency")]
        own = [one for one in own if getattr(args, one.name) not in (None, "")]
        if named := [one.flag for one in (*own, *args.given_to_policy())]:
            raise UsageError("--from reads recorded episodes and plays none", hint=f"leave out {', '.join(named)}")
        return
    args.policy = args.policy or "oracle"
    if args.policy == "openai" and not (args.base_url and args.policy_model):
        raise UsageError("--policy openai needs --base-url and --policy-model; --model is what trains on the data")
    args.check_policy()


def _make_jobs(args: CollectCommand, environment: Environment) -> tuple[Job, ...]:
    splits = list(environment.spec.tasks)
    split = args.split or next((name for name in ("warmup", "train") if name in splits), splits[0])
    tasks = environment.part(split, args.n)
    samples = range(args.k or 1)
    return tuple(Job(split, task, seed_of(args.seed, split, task, sample)) for task in tasks for sample in samples)


def _show_report(report: CollectReport, console: Console) -> None:
    manifest = report.manifest
    console.say(
        f"kept {manifest.kept} of {manifest.episodes} episodes: {manifest.tasks} tasks of {', '.join(manifest.splits)}"
    )
    for reason, count in sorted(manifest.rejected.items(), key=lambda one: -one[1]):
        console.say(f"  rejected  {count:>6}  {reason}")
    shown = list(manifest.kinds.items())
    for kind, count in shown[:_MOST_KINDS]:
        console.say(f"  taken     {count:>6}  {manifest.balance}={kind}")
    if len(shown) > _MOST_KINDS:
        console.say(f"  and {len(shown) - _MOST_KINDS} more values of {manifest.balance}")
    console.say(
        f"{manifest.rows} rows, {manifest.tokens:,} tokens, {manifest.tokens_trained:,} of them trained; "
        f"the longest row has {manifest.longest:,}"
    )
    turns = manifest.turns_recorded + manifest.turns_anew
    console.say(f"ids as sampled in {manifest.turns_recorded} of {turns} turns, else those of the text")
    if manifest.differences:
        console.print(f"[red]{manifest.differences} observations after which the template would write otherwise[/red]")
    if "test" in manifest.splits:
        console.say("these are episodes of the split 'test', on which `rlenv train` validates")
    console.say(f"rows in {report.folder}")
