"""`rlenv collect`: supervised data out of episodes, as the tokens that RL trains on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rlenv._base.jsonable import plain
from rlenv.cli.console import Console
from rlenv.cli.options import add_set, given, keywords, overrides
from rlenv.cli.policies import OPTIONS, add_policy, check_options, choice_of
from rlenv.cli.spending import add_prices, counting, show_spending
from rlenv.cli.terminal import write_json
from rlenv.collect import Keep, Report, Settings, collect, identity_of
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import Job
from rlenv.errors import UsageError
from rlenv.models import local_model
from rlenv.runs.evaluate import MOST_SAMPLES
from rlenv.tasks.rows import seed_of
from rlenv.tokens.bound import bind
from rlenv.tokens.encoder import HISTORIES
from rlenv.tokens.load import load_tokenizer

__all__ = ["add_arguments", "run"]

_MOST_KINDS = 12

_EPILOG = """The expression of --keep compares success, reward, turns, calls, calls_failed, calls_malformed, chars,
terminated, truncated, answered, cut, invalid and the spec's reward terms: success and turns <= 3."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rlenv collect`."""
    parser.epilog = _EPILOG
    parser.add_argument("spec", help="a YAML file, or the name of a shipped environment")
    parser.add_argument(
        "--model", required=True, help="the model that shall train on the data: ids are its tokenizer's"
    )
    parser.add_argument("-o", "--out", required=True, metavar="DATA", help="a new folder")
    source = parser.add_argument_group("where episodes come from")
    source.add_argument(
        "--from",
        dest="records",
        action="append",
        default=[],
        metavar="RUN",
        help="recorded episodes instead of a policy: a .jsonl, or a folder of eval, collect or train",
    )
    add_policy(parser, of_policy="policy-")
    parser.set_defaults(policy=None)
    source.add_argument("--split", help="which tasks; by default warmup, else train, else the first; all with --from")
    source.add_argument("-n", type=int, metavar="N", help="how many tasks; all by default")
    source.add_argument("-k", type=int, metavar="K", help="samples of each task; 1 by default")
    source.add_argument("--concurrency", type=int, metavar="C", help="episodes at once; 64 by default")
    source.add_argument("--seed", type=int, default=0, help="of the episodes and of what is drawn")
    chosen = parser.add_argument_group("which are kept")
    chosen.add_argument("--keep", default="success", metavar="EXPRESSION", help="by default success")
    chosen.add_argument("--keep-invalid", action="store_true", help="also episodes whose reward is invalid")
    chosen.add_argument("--keep-cut", action="store_true", help="also episodes with a turn that a limit cut")
    chosen.add_argument("--per-task", type=int, metavar="M", help="at most M of each task, drawn by the seed")
    chosen.add_argument(
        "--balance", metavar="COLUMN", help="as many of each value of a column of the rows, or of each `task`"
    )
    tokens = parser.add_argument_group("how they are written")
    tokens.add_argument("--chat-template", metavar="FILE|NAME", help="as for `rlenv sft`; instead of its own")
    tokens.add_argument(
        "--history",
        choices=HISTORIES,
        default="grow",
        help="as run.history of `rlenv train` (docs/training/training.md)",
    )
    tokens.add_argument(
        "--kwarg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a name for the template, as run.template_kwargs",
    )
    parser.add_argument("--json", action="store_true", help="print the manifest as one JSON object")
    add_prices(parser)
    add_set(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 where data was written; 2 where nothing was kept or an option is wrong."""
    for name in ("n", "k", "concurrency", "per_task"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise UsageError(f"{_option(name)} is at least 1, not {value}")
    if args.k is not None and args.k > MOST_SAMPLES:
        raise UsageError(f"-k is at most {MOST_SAMPLES:,}")
    _check_source(args)
    environment = load(args.spec, set=overrides(args.set))
    keep = Keep.of(args.keep, terms=environment.spec.rewards, keeps_invalid=args.keep_invalid, keeps_cut=args.keep_cut)
    kwargs = keywords(args.kwarg)
    tokenizer = load_tokenizer(local_model(args.model, chat_template=args.chat_template))
    encoder = bind(tokenizer, environment, history=args.history, template_kwargs=kwargs)
    settings = Settings(
        folder=Path(args.out),
        model=args.model,
        identity=identity_of(tokenizer, template_kwargs=kwargs),
        source="record" if args.records else str(args.policy),
        keep=keep,
        jobs=() if args.records else _jobs(args, environment),
        samples=args.k,
        records=tuple(args.records),
        set=overrides(args.set),
        template_kwargs=kwargs,
        **given(args, "split", "per_task", "balance", "seed", "concurrency"),
    )
    policy = (
        None if args.records else lambda: choice_of(_of_policy(args)).make(environment, concurrency=args.concurrency)
    )
    with Progress(
        TextColumn("episodes"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        bar = progress.add_task("", total=len(settings.jobs) or None)

        def told(count: int) -> None:
            progress.update(bar, completed=count)

        with counting(args.prices) as so_far:
            report = collect(environment, encoder, settings, policy=policy, on_episode=told)
    spending = so_far()
    if args.json:
        usage = {"usage": plain(spending)} if spending.roles else {}
        write_json({"folder": str(report.folder), **_fields(report), **usage}, indent=2)
    else:
        console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        _show(report, console)
        show_spending(console, spending)
    return 0


def _check_source(args: argparse.Namespace) -> None:
    """Recorded episodes are not played: what says how is refused beside them, and else filled in."""
    if args.records:
        own = ("policy_model" if name == "model" else name for name in OPTIONS)
        named = [
            _option(name) for name in ("policy", "n", "k", "concurrency", *own) if getattr(args, name) not in (None, [])
        ]
        if named:
            raise UsageError("--from reads recorded episodes and plays none", hint=f"leave out {', '.join(named)}")
    args.policy, args.k, args.concurrency = args.policy or "oracle", args.k or 1, args.concurrency or 64
    if args.policy == "openai" and not (args.base_url and args.policy_model):
        raise UsageError("--policy openai needs --base-url and --policy-model; --model is what trains on the data")
    if not args.records:
        check_options(_of_policy(args))


def _of_policy(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments as a policy reads them, whose model is not the one that trains on the data."""
    return argparse.Namespace(**{**vars(args), "model": args.policy_model})


def _option(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def _jobs(args: argparse.Namespace, environment: Environment) -> tuple[Job, ...]:
    splits = list(environment.spec.tasks)
    split = args.split or next((name for name in ("warmup", "train") if name in splits), splits[0])
    tasks = environment.part(split, args.n)
    samples = range(args.k)
    return tuple(Job(split, task, seed_of(args.seed, split, task, sample)) for task in tasks for sample in samples)


def _fields(report: Report) -> dict[str, object]:
    import dataclasses

    return dataclasses.asdict(report.manifest)


def _show(report: Report, console: Console) -> None:
    manifest = report.manifest
    console.print(
        f"kept {manifest.kept} of {manifest.episodes} episodes: {manifest.tasks} tasks of {', '.join(manifest.splits)}",
        markup=False,
    )
    for reason, count in sorted(manifest.rejected.items(), key=lambda one: -one[1]):
        console.print(f"  rejected  {count:>6}  {reason}", markup=False)
    shown = list(manifest.kinds.items())
    for kind, count in shown[:_MOST_KINDS]:
        console.print(f"  taken     {count:>6}  {manifest.balance}={kind}", markup=False)
    if len(shown) > _MOST_KINDS:
        console.print(f"  and {len(shown) - _MOST_KINDS} more values of {manifest.balance}", markup=False)
    console.print(
        f"{manifest.rows} rows, {manifest.tokens:,} tokens, {manifest.tokens_trained:,} of them trained; "
        f"the longest row has {manifest.longest:,}",
        markup=False,
    )
    turns = manifest.turns_recorded + manifest.turns_anew
    console.print(f"ids as sampled in {manifest.turns_recorded} of {turns} turns, else those of the text", markup=False)
    if manifest.differences:
        console.print(f"[red]{manifest.differences} observations after which the template would write otherwise[/red]")
    if "test" in manifest.splits:
        console.print("these are episodes of the split 'test', on which `rlenv train` validates", markup=False)
    console.print(f"rows in {report.folder}", markup=False)
