"""`rlenv audit`: attacks on the reward of a spec, or a judge held to labels."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from rlenv._base.bounded import cut_middle, plain
from rlenv._base.text import figure
from rlenv.audit.agreement import Differing, Disagreement, disagreement
from rlenv.audit.judge import JudgeReport, audit_judge, judge_of, read_anchors
from rlenv.audit.judge_attacks import count_model_requests
from rlenv.audit.report import Attacker, AttackerLimits, AttackerReport, AuditReport, Hole, Thresholds
from rlenv.audit.run import audit
from rlenv.audit.subject import Progress
from rlenv.cli.console import Console, WithPrices, WithReader, counting, endpoint_at, show_spending_line
from rlenv.cli.options import WithSpec, option
from rlenv.cli.terminal import write, write_error
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError, told_as
from rlenv.runs import files
from rlenv.runs.recorded import recorded

_SAY_EVERY_S = 5.0
_MOST_SHOWN = 160
_STRATEGIES = 10


_attacker = partial(option, group="--attacker: let a model try to earn without doing")
_judge = partial(option, group="--judge: hold a judge to labels in place of attacking the reward")


@dataclass
class AuditCommand(WithSpec, WithPrices, WithReader):
    """`rlenv audit`."""

    split: list[str] | None = option("which tasks; all splits by default")
    n: int | None = option("how many tasks of a split the oracle plays; all by default", metavar="N", least=1)
    attacked: int = option("how many tasks of a split are attacked", default=20, metavar="N", least=1)
    max_adversary: float = option("of the oracle's reward", default=0.2, metavar="SHARE")
    max_alike: float = option("of tasks without any signal", default=0.2, metavar="SHARE")
    time_limit: float = option("of the whole audit", default=600.0, metavar="SECONDS", above=0)
    seed: int = option("of what is drawn", default=0)
    judged: int = option("on how many tasks each judge is attacked; 0 for none", default=6, metavar="N", least=0)
    attacker: str | None = _attacker("an entry under endpoints:, or an address ending in /v1", metavar="ENDPOINT")
    attacker_model: str | None = _attacker("the model at that address", metavar="NAME")
    attacker_api_key_env: str | None = _attacker(
        "the variable of that address's key; by default OPENAI_API_KEY", metavar="NAME"
    )
    attacker_rounds: int | None = _attacker("replies that are asked for; 4 by default", metavar="N")
    attacker_tasks: int | None = _attacker("tasks that each strategy plays; 6 by default", metavar="N")
    attacker_requests: int | None = _attacker("the most requests; 100 by default", metavar="N")
    attacker_tokens: int | None = _attacker("the most tokens; 200,000 by default", metavar="N")
    attacker_seconds: float | None = _attacker("the most time; 600 by default", metavar="SECONDS")
    attacker_episode: str | None = _attacker(
        "write the least episode there, as .jsonl to view", metavar="FILE", writes=True
    )
    judge: bool = _judge("agreement, bias and drift of a judge")
    anchors: str | None = _judge(".jsonl of {task, message, label}", metavar="FILE")
    term: str | None = _judge("which judge, where there are several")
    before: str | None = _judge("an earlier report of --judge, to see drift", metavar="FILE")
    run: str | None = _judge("in place of --anchors: a recorded run, judge against verifiers", metavar="RUN")
    against: list[str] | None = _judge("with --run; the verify terms by default", metavar="TERM")
    min_kappa: float = _judge("exit 1 below it", default=0.4, metavar="K")
    json: bool = option("print the report as one JSON object")
    out: str | None = option("write the report as JSON there", "-o", "--out", metavar="FILE", writes=True)

    def execute(self) -> int:
        """Exit code 1 where a fault was found, 0 otherwise."""
        environment = load(self.spec, set=self.overrides)
        if self.judge:
            return judge_labels(self, environment)
        if self.run is not None or self.against is not None:
            raise UsageError("--run and --against go with --judge")
        thresholds = Thresholds(self.max_adversary, self.max_alike)
        attacker, reader = _attacker_of(self, environment), self.reader_of(environment.loaded)

        async def main() -> AuditReport:
            async with environment:
                splits = self.split or list(environment.spec.tasks)
                most = count_model_requests(
                    environment, splits=splits, tasks=self.attacked, played=self.n, judged=self.judged
                )
                if most:
                    write_error(
                        f"rlenv audit: asks models up to about {most} times; fewer by --attacked, -n and --judged\n"
                    )
                return await audit(
                    environment,
                    tasks=self.attacked,
                    oracle_tasks=self.n,
                    splits=self.split,
                    thresholds=thresholds,
                    seed=self.seed,
                    limit_s=self.time_limit,
                    on_progress=said_every(_SAY_EVERY_S),
                    judged=self.judged,
                    attacker=attacker,
                    reader=reader,
                )

        with counting(self.prices) as so_far:
            report = asyncio.run(main())
        spending = so_far()
        if not write_report(self, {**report.as_dict(), "usage": plain(spending)}):
            _show_report(Console(highlight=False), report)
            show_spending_line(Console(highlight=False), spending)
        return 0 if report.passes else 1


_ATTACKER = ("model", "api_key_env", "rounds", "tasks", "requests", "tokens", "seconds", "episode")


def _attacker_of(args: AuditCommand, environment: Environment) -> Attacker | None:
    """The attacker that the options name.

    Raises UsageError: an option of it without `--attacker`, a limit of nothing, or no such endpoint.
    """
    given = {name: value for name in _ATTACKER if (value := getattr(args, f"attacker_{name}")) is not None}
    if args.attacker is None:
        if given:
            option = f"--attacker-{next(iter(given)).replace('_', '-')}"
            raise UsageError(f"{option} is for --attacker ENDPOINT", hint="give --attacker too, or leave it out")
        return None
    if any(given[name] <= 0 for name in ("rounds", "tasks", "requests", "tokens", "seconds") if name in given):
        raise UsageError("the limits of --attacker are above 0")
    key = os.environ.get(given.pop("api_key_env", "OPENAI_API_KEY"))
    entries, model = environment.spec.endpoints, given.pop("model", None)
    endpoint = endpoint_at(args.attacker, entries, option="--attacker", model=model, api_key=key)
    path = given.pop("episode", None)
    record = (lambda episode: files.write(path, [episode])) if path else None
    return Attacker(endpoint, AttackerLimits(**given), record)


def said_every(seconds: float, *, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Writes how far an audit is to standard error, at most once in so many seconds; a quick one says nothing."""
    begun = said = clock()

    def say(what: str, done: int, total: int) -> None:
        nonlocal said
        now = clock()
        if now - said >= seconds:
            said = now
            write_error(f"rlenv audit: {what}, {done} of {total} done ({now - begun:.0f} s)\n")

    return say


def _show_finding(console: Console, finding: Hole) -> None:
    """A finding with the least episode that shows it, and what to change."""
    console.print(f"[red]{escape(finding.hole)}[/red]: {escape(finding.message)}", soft_wrap=True)
    if (shown := finding.episode) is not None:
        actions = " ⏎ ".join(cut_middle(" ".join(repr(action)[1:-1].split()), _MOST_SHOWN) for action in shown.actions)
        earned = f"{figure(shown.reward)} of {figure(shown.oracle)}"
        console.print(escape(f"  {shown.split}/{shown.task} earned {earned}: {actions}"), soft_wrap=True)
    if finding.also:
        console.print(escape(f"  the same pays {', '.join(finding.also)}"), soft_wrap=True)
    if finding.hint:
        console.print(escape(f"  change: {finding.hint}"), soft_wrap=True)


def _show_attacker(console: Console, attacker: AttackerReport | None) -> None:
    if attacker is None or not attacker.strategies:
        return
    table = Table(f"a strategy of {escape(attacker.model)}", "of the oracle", "without doing")
    best = sorted(attacker.strategies, key=lambda one: math.inf if one.undone is None else -one.undone)
    for strategy in best[:_STRATEGIES]:
        table.add_row(escape(strategy.name), figure(strategy.share), figure(strategy.undone))
    console.print(table)


def _show_report(console: Console, report: AuditReport) -> None:
    tasks = ", ".join(f"{count} of {split}" for split, count in report.tasks.items())
    title = f"{report.environment} · the oracle on {tasks}: {figure(report.oracle_reward)}"
    console.print(escape(title), soft_wrap=True)
    table = Table("a policy that", "reward", "of the oracle", "at most")
    for attack in report.attacks:
        worst = "–" if attack.worst is None else f"{figure(attack.worst)} (task {attack.worst_task})"
        table.add_row(escape(attack.does), figure(attack.reward), figure(attack.share), worst)
    console.print(table)
    _show_attacker(console, report.attacker)
    if report.no_signal is not None:
        console.print(f"all answers alike on {report.no_signal:.0%} of tasks")
    if (faults := report.faults) is not None:
        console.print(
            f"oracle with {faults.share:.0%} of calls failing: reward {figure(faults.reward)}, "
            f"success {figure(faults.success)}, invalid {faults.invalid} of {faults.episodes}"
            + (f", given up {faults.gave_up}" if faults.gave_up else "")
        )
    for note in report.notes:
        console.print(f"[dim]{escape(note)}[/dim]")
    for finding in report.findings:
        _show_finding(console, finding)
    console.print("[green]passes[/green]" if report.passes else f"[red]{len(report.findings)} findings[/red]")


def write_report(args: AuditCommand, report: Mapping[str, Any]) -> bool:
    """Writes the report where it was asked for; True where it went to standard output."""
    text = json.dumps(report, indent=2) + "\n"
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8")
    if args.json:
        write(text)
    return bool(args.json)


def judge_labels(args: AuditCommand, environment: Environment) -> int:
    """Exit code 1 where holding a judge to labels found a fault, 0 otherwise.

    Raises:
        UsageError: the options name neither labels nor a run, or both, or what they name does not fit.
    """
    if args.run is not None and args.anchors is None:
        return _beside_verifiers(args, args.run, environment)
    if args.anchors is None or args.run is not None:
        raise UsageError(
            "--judge needs --anchors FILE, a .jsonl of objects with task, message and label, or --run RUN",
            hint="give one of the two",
        )
    if args.against is not None:
        raise UsageError("--against goes with --run")
    anchors = read_anchors(args.anchors)
    before = None
    if args.before is not None:
        with told_as(UsageError, f"--before {args.before}: not a report:", OSError, ValueError, RecursionError):
            before = json.loads(Path(args.before).read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise UsageError(f"--before {args.before}: not a report: expected an object, as --judge -o writes it")

    async def main() -> JudgeReport:
        async with environment:
            return await audit_judge(
                environment, anchors, term=args.term, before=before, min_kappa=args.min_kappa, seed=args.seed
            )

    try:
        with counting(args.prices) as so_far:
            report = asyncio.run(asyncio.wait_for(main(), args.time_limit))
    except TimeoutError:
        message = f"the judge has not scored all anchors within {args.time_limit:g} s"
        raise UsageError(message, hint="raise --time-limit or give fewer anchors") from None
    spending = so_far()
    if not write_report(args, {**report.as_dict(), "usage": plain(spending)}):
        _show_judge(Console(highlight=False), report)
        show_spending_line(Console(highlight=False), spending)
    return 0 if report.passes else 1


def _show_judge(console: Console, report: JudgeReport) -> None:
    title = f"judge '{report.term}' · {report.anchors} anchors, {report.invalid} invalid"
    console.print(escape(title), soft_wrap=True)
    table = Table("", "value", "95 % interval")
    rows = {"accuracy": report.accuracy, "mean error": report.error, "kappa": report.kappa, "alpha": report.alpha}
    rows |= {"rank correlation": report.spearman}
    rows |= {f"bias by {name}": estimate for name, estimate in report.bias.items()}
    for place, member in enumerate(report.members):
        who = f"judges.{place} ({member.endpoint})"
        rows |= {f"{who}: kappa": member.kappa}
        rows |= {f"{who}: bias by {name}": estimate for name, estimate in member.bias.items()}
    rows |= {"drift": report.drift} if report.drift is not None else {}
    for name, estimate in rows.items():
        interval = f"{figure(estimate.low)} to {figure(estimate.high)}"
        table.add_row(escape(name), figure(estimate.value), interval)
    console.print(table)
    if report.members:
        console.print(f"agreement within the panel (alpha): {figure(report.members_alpha)}")
    curve = Table("scores from", "to", "anchors", "mean score", "mean label")
    for one in report.calibration.bins:
        curve.add_row(*map(figure, (one.low, one.high)), str(one.count), figure(one.score), figure(one.label))
    console.print(curve)
    if (line := report.calibration.line) is not None:
        console.print(f"label = {figure(line[0])} + {figure(line[1])} x score, by least squares; applied nowhere")
    for finding in report.findings:
        console.print(f"[red]{escape(finding)}[/red]")
    console.print("[green]passes[/green]" if report.passes else f"[red]{len(report.findings)} findings[/red]")


def _beside_verifiers(args: AuditCommand, run: str, environment: Environment) -> int:
    judge = judge_of(environment, args.term).name
    rewards = environment.spec.rewards
    against = args.against or [name for name, term in rewards.items() if term.kind == "verify"]
    if not against:
        raise UsageError("there is no verify term to put the judge beside", hint="name a term by --against")
    if unknown := [name for name in against if name not in rewards]:
        raise UsageError(f"no term is called '{unknown[0]}'; there are: {', '.join(rewards)}")
    found = disagreement(recorded(run), judge=judge, against=against)
    if not write_report(args, {"disagreements": files.plain(found)}):
        console = Console(highlight=False)
        for one in found:
            _show_disagreement(console, one)
    return 0


def _show_disagreement(console: Console, found: Disagreement) -> None:
    counted = f"{found.episodes} episodes, {found.unmeasured} more where one of the two has no value"
    console.print(escape(f"judge '{found.judge}' beside '{found.against}' · {counted}"), soft_wrap=True)
    kappa = found.kappa
    console.print(f"kappa {figure(kappa.value)} ({figure(kappa.low)} to {figure(kappa.high)})")
    for what, count, of, listed in (
        (f"high where '{found.against}' fails", found.high, found.failed, found.high_but_failed),
        (f"low where '{found.against}' passes", found.low, found.passed, found.low_but_passed),
    ):
        console.print(escape(f"{what}: {count} of {of}"), soft_wrap=True)
        for one in listed:
            console.print(escape(f"  {_differing_line(one)}"), soft_wrap=True)


def _differing_line(one: Differing) -> str:
    return f"{one.split}/{one.task_index} seed {one.seed}: judge {figure(one.value)}, term {figure(one.verified)}"
