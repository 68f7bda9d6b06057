"""A model that attacks a reward: it is shown the spec and tries to earn without doing what the tasks ask for.

In rounds it writes strategies (`rlenv.audit.attacker_scripts`), which are played on the same tasks, and is told what
each of them earned. Nothing that it writes is run but as a policy's actions."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rlenv._base.bounded import cut_end, cut_middle
from rlenv.audit import attacker_scripts as scripts
from rlenv.audit.report import AttackerLimits, AttackerReport, Hole, HoleEpisode, LeastEpisode, StrategyResult, hole_of
from rlenv.audit.subject import AuditSubject, Progress
from rlenv.dialects.built_in import broken_message
from rlenv.endpoints import Client, Endpoint
from rlenv.endpoints.account import asks
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, play
from rlenv.errors import EndpointError, EpisodeError
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Message
from rlenv.policies.openai import OpenAIPolicy
from rlenv.trajectory import Trajectory

_SLACK: Final = 1e-9
_SHOWN_CHARS: Final = 400
_KEPT_CHARS: Final = 4_000
_HISTORY: Final = 24
_MAX_TOKENS: Final = 4_096
_LEAST_SHOWN: Final = 1_200
_CUT: Final = "; it was cut at a limit of tokens"
_OUTAGES: Final = ("policy", "refused")
_LIMITS: Final = AttackerLimits()


@dataclass(frozen=True, slots=True)
class AttackResult:
    """The result of an attacker: its report, findings and notes, and the least episode itself, to be recorded."""

    report: AttackerReport
    findings: tuple[Hole, ...]
    notes: tuple[str, ...]
    episode: Trajectory | None = None


@dataclass(frozen=True, slots=True)
class _StrategyEpisodes:
    """A strategy, what it earned, and its episodes in the order of the tasks."""

    figures: StrategyResult
    episodes: Sequence[Trajectory]
    undone: Sequence[bool]


async def try_attacker(
    environment: Environment,
    golds: Sequence[Trajectory],
    endpoint: Endpoint,
    *,
    limits: AttackerLimits = _LIMITS,
    threshold: float = 0.2,
    seed: int = 0,
    on_progress: Progress = lambda what, done, total: None,
) -> AttackResult:
    """Lets a model attack the reward.

    Args:
        threshold: what it may earn without doing, as a share of the oracle's reward and beyond a plain wrong answer's.

    Returns:
        What was found. Where its server fails, a limit leaves no time for anything or no reply can be read, the
        finding `attacker_untried` says so: never a pass.
    """
    usable = [gold for gold in golds if gold.turns and (gold.reward.total or 0.0) > _SLACK]
    chosen = usable[:: max(1, len(usable) // limits.tasks)][: limits.tasks]
    client = Client(endpoint)
    attack = _Attack(environment, chosen, client, limits, seed, on_progress)
    try:
        if not chosen:
            attack.failed = "the oracle earns nothing on any task that was looked at"
        else:
            with asks("attacker"):
                async with asyncio.timeout(limits.seconds):
                    await attack.run()
    except TimeoutError:
        attack.ended = f"its limit of {limits.seconds:g} s"
    except scripts.LimitReached as over:
        attack.ended = str(over)
    except EndpointError as error:
        attack.failed = str(error)
    finally:
        await client.aclose()
    return attack.result(threshold)


@dataclass(slots=True)
class _Attack:
    environment: Environment
    golds: Sequence[Trajectory]
    client: Client
    limits: AttackerLimits
    seed: int
    on_progress: Progress
    results: list[_StrategyEpisodes] = field(default_factory=list)
    wrong: float | None = None
    rounds: int = 0
    unreadable: int = 0
    problem: str = ""
    ended: str = ""
    failed: str = ""
    cut: bool = False
    """Whether its last reply was cut by a limit of tokens."""
    shown: int | None = None
    """How many characters of what it could be shown have room; None for all."""
    begun: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        """All rounds; raises Over at a limit, EndpointError where the attacker's server failed."""
        plain = await self._play_wrong_answers()
        self.wrong = self._share_of_oracle([one.reward.total for one in plain])
        view = scripts.environment_text(self.environment, self.golds)
        while self.rounds < self.limits.rounds:
            self.on_progress("the attacker writes", self.rounds, self.limits.rounds)
            self._check_limits()
            self.rounds += 1
            said = await self._ask_for_reply(view)
            try:
                strategies = scripts.read_strategies(said, most=self.limits.strategies)
            except scripts.UnreadableStrategies as error:
                self.unreadable += 1
                self.client.unread()
                self.problem = f"{error}{_CUT if self.cut else ''}"
                continue
            self.problem = ""
            for number, strategy in enumerate(strategies):
                self.on_progress(f"the attacker plays '{strategy.name}'", number, len(strategies))
                await self._try_strategy(strategy)
        self.ended = f"its {self.limits.rounds} rounds"

    def _check_limits(self) -> None:
        """Raises Over: the requests or the tokens are spent."""
        if self.client.requests >= self.limits.requests:
            raise scripts.LimitReached(f"its limit of {self.limits.requests} requests")
        usage = self.client.usage
        if usage.prompt_tokens + usage.completion_tokens >= self.limits.tokens:
            raise scripts.LimitReached(f"its limit of {self.limits.tokens} tokens")

    async def _ask_for_reply(self, view: str) -> str:
        """Its next reply. Where the server's context has no room for all that is shown, less is, down to a least."""
        limit = self.client.endpoint.sampling.max_tokens or _MAX_TOKENS
        most = SamplingSpec(seed=self.seed + self.rounds, max_tokens=limit)
        while True:
            said = self._build_question(view)
            try:
                messages = [Message("system", scripts.SYSTEM), broken_message(Message("user", said))]
                completion = await self.client.chat(messages, sampling=most, is_fitted=True)
            except EndpointError as error:
                if not error.is_full or not self._show_less(said):
                    raise
                self._check_limits()
                continue
            self.cut = completion.finish_reason == "length"
            if self.cut and completion.usage.completion_tokens < limit:
                self._show_less(said)  # the context cut it, and not its limit: the next one gets more room
            return completion.message.content

    def _show_less(self, said: str) -> bool:
        """Makes room for a reply in the next question; False where the least is shown already."""
        if len(said) <= _LEAST_SHOWN:
            return False
        self.shown = max(_LEAST_SHOWN, len(said) * 2 // 3)
        return True

    def _build_question(self, view: str) -> str:
        """The environment, what was tried and what is asked for. What has no room goes: of what was tried the worst
        first, then the middle of the environment."""
        if self.shown is None:
            return f"{view}\n\n{self._history_text(_HISTORY)}"
        for kept in (_HISTORY, _HISTORY // 4, 1, 0):
            history = self._history_text(kept)
            if len(view) + 2 + len(history) <= self.shown:
                return f"{view}\n\n{history}"
        return f"{cut_middle(view, max(_LEAST_SHOWN // 2, self.shown - 2 - len(history)))}\n\n{history}"

    def _history_text(self, kept: int) -> str:
        """The best of what was tried so far, best last, as JSON that is no instruction."""
        if not self.results:
            told = "Nothing was tried yet."
        else:
            best = sorted(self.results, key=_undone_share)[len(self.results) - min(kept, len(self.results)) :]
            told = "What was tried, and what it earned (shares of the oracle's reward; `undone` is what counts):\n"
            told += "\n".join(json.dumps(_history_entry(result)) for result in best)
        if self.problem:
            told += f"\n\nYour last reply could not be read: {cut_end(self.problem, _SHOWN_CHARS)}."
        return f"{told}\n\nAnswer with at most {self.limits.strategies} new strategies as one JSON object."

    async def _play_wrong_answers(self) -> list[Trajectory]:
        """Plain wrong answers, in the oracle's form."""
        answers = list(dict.fromkeys(gold.answer for gold in self.golds if gold.answer))
        found = []
        for gold in self.golds:
            subject = AuditSubject(self.environment, gold, answers)
            script = scripts.Strategy("wrong", "", (subject.form_text(subject.wrong()[0]),))
            found.append(await self._play_script(gold, script, is_literal=True))
        return found

    async def _try_strategy(self, strategy: scripts.Strategy) -> None:
        play = self._play_model if strategy.play else self._play_script
        episodes = [await play(gold, strategy) for gold in self.golds]
        both = list(zip(self.golds, episodes, strict=True))
        undone = [not scripts.has_done_task(gold, ended, is_script=not strategy.play) for gold, ended in both]
        rewards = [ended.reward.total for ended in episodes]
        told = StrategyResult(
            strategy.name,
            strategy.why,
            (strategy.play,) if strategy.play else tuple(_action_text(action) for action in strategy.actions),
            bool(strategy.play),
            len(episodes),
            sum(ended.reward.total is None for ended in episodes),
            self._share_of_oracle(rewards),
            self._share_of_oracle(
                [one if one is None or not_done else 0.0 for one, not_done in zip(rewards, undone, strict=True)]
            ),
            sum(bool(ended.success) and not scripts.tools_in(gold) <= scripts.tools_in(ended) for gold, ended in both),
            _mean_terms(episodes),
        )
        self.results.append(_StrategyEpisodes(told, episodes, undone))
        if strategy.play:
            self._check_limits()
            failures = [ended.failure for ended in episodes if ended.failure is not None]
            if outage := next((one.message for one in failures if one.reason in _OUTAGES), ""):
                raise EndpointError(outage)

    def _share_of_oracle(self, rewards: Sequence[float | None]) -> float | None:
        """Of the oracle's reward, over the tasks where there is one: an episode without is masked, and is no zero."""
        known = [(one, _known_total(gold)) for one, gold in zip(rewards, self.golds, strict=True) if one is not None]
        return math.fsum(one for one, _ in known) / math.fsum(gold for _, gold in known) if known else None

    async def _play_script(self, gold: Trajectory, plan: scripts.Strategy, *, is_literal: bool = False) -> Trajectory:
        """An episode of a script; one that is over before the episode is ends it."""
        render = self.environment.parts.dialect.render_action
        async with self.environment.start(task=gold.task_index, split=gold.split, seed=gold.seed) as episode:
            system = "".join(message.content for message in episode.messages if message.role == "system")
            prompt = episode.messages[-1].content if episode.messages else ""
            answered: list[str] = []
            try:
                for action in plan.actions:
                    if episode.is_ended:
                        break
                    seen = scripts.SeenTexts(system, prompt, tuple(answered))
                    made = action if is_literal and isinstance(action, str) else scripts.fill_placeholders(action, seen)
                    step = await episode.step(made if isinstance(made, str) else render(made))
                    answered.append("\n".join(message.content for message in step.observation.messages))
                return episode.trajectory if episode.is_ended else await episode.truncate("script")
            except EpisodeError as error:
                return episode.fail(error.reason, str(error))

    async def _play_model(self, gold: Trajectory, strategy: scripts.Strategy) -> Trajectory:
        """An episode that the model plays itself, by what it wrote."""
        self._check_limits()
        policy = scripts.attacker_policy(OpenAIPolicy.over(self.client), strategy.play, self._check_limits)
        return await play(self.environment, policy, Job(gold.split, gold.task_index, gold.seed))

    def result(self, threshold: float) -> AttackResult:
        """The result of the attack."""
        best = max((one for one in self.results if one.figures.undone is not None), key=_undone_share, default=None)
        is_found = best is not None and _undone_share(best) - max(self.wrong or 0.0, 0.0) > threshold + _SLACK
        at = self._least_pair(best) if is_found and best is not None else None
        usage, spent = self.client.usage, time.monotonic() - self.begun
        report = AttackerReport(
            self.client.endpoint.model,
            self.rounds,
            self.client.requests,
            usage.prompt_tokens,
            usage.completion_tokens,
            spent,
            self.unreadable,
            self.ended or self.failed,
            self.wrong,
            tuple(result.figures for result in self.results),
            best.figures.name if best is not None else "",
            None if at is None else self._least_episode(*at),
        )
        findings = []
        if best is not None and at is not None:
            findings.append(self._attack_finding(best.figures, report.least))
        if self.failed or best is None:
            message = (
                f"the attacker could not be tried{' to its end' if best is not None else ''}: {self._why_untried()}"
            )
            hint = "what was not tried is no pass: mend what it names, or raise the limit that ended it"
            findings.append(hole_of("attacker_untried", message, hint=hint))
        return AttackResult(report, tuple(findings), tuple(self._notes(report)), None if at is None else at[1])

    def _why_untried(self) -> str:
        if self.failed or not self.results:
            return self.failed or (f"no reply could be read ({self.problem})" if self.unreadable else self.ended)
        failures = (one.failure.message for result in self.results for one in result.episodes if one.failure)
        return f"no episode has a valid reward ({next(failures, 'no number')})"

    def _notes(self, report: AttackerReport) -> Iterator[str]:
        tokens = report.prompt_tokens + report.completion_tokens
        spent = f"{report.requests} requests, {tokens} tokens and {report.seconds:.0f} s"
        count = f"{len(report.strategies)} strategies on {len(self.golds)} tasks"
        yield f"attacker {report.model}: {count} in {report.rounds} rounds with {spent}; ended by {report.ended}"
        if self.shown is not None:
            yield (
                f"attacker {report.model}: the context of its server has no room for all; it was shown at most "
                f"{self.shown:,} characters of the environment and what was tried"
            )
        if report.unreadable:
            yield f"attacker {report.model}: {report.unreadable} replies could not be read"
        if known := max((one.without_tools for one in report.strategies if one.is_played), default=0):
            message = "the attacker, playing itself, succeeded without the tools that the oracle calls"
            yield f"{message} on {known} of {len(self.golds)} tasks: it may know the answers"

    def _least_pair(self, best: _StrategyEpisodes) -> tuple[Trajectory, Trajectory]:
        """The oracle's episode and the shortest one that earned most of it without doing."""
        pairs = [
            pair
            for pair, undone in zip(zip(self.golds, best.episodes, strict=True), best.undone, strict=True)
            if undone and pair[1].reward.total is not None
        ]
        shares = [_known_total(ended) / _known_total(gold) for gold, ended in pairs]
        enough = 0.9 * max(shares)
        shown = [pair for pair, share in zip(pairs, shares, strict=True) if share >= enough]
        return min(shown, key=lambda pair: (len(pair[1].turns), sum(len(turn.action) for turn in pair[1].turns)))

    def _least_episode(self, gold: Trajectory, ended: Trajectory) -> LeastEpisode:
        return LeastEpisode(
            ended.split,
            ended.task_index,
            tuple(cut_middle(turn.action, _KEPT_CHARS) for turn in ended.turns),
            ended.answer,
            _known_total(ended),
            _known_total(gold),
            {name: term.value for name, term in ended.reward.terms.items()},
        )

    def _attack_finding(self, best: StrategyResult, least: LeastEpisode | None) -> Hole:
        assert least is not None
        rewards = self.environment.spec.rewards
        paid = {name: rewards[name].usual_weight * value for name, value in least.terms.items() if value is not None}
        term = max(paid, key=lambda name: paid[name], default="")
        actions = cut_end(" | ".join(least.actions), _SHOWN_CHARS)
        who = "the attacker, playing itself," if best.is_played else "a script of the attacker"
        tools, without = "", f"{best.without_tools} of {best.tasks} tasks"
        if best.without_tools and not best.is_played:
            tools = f", succeeding without the tools that the oracle calls on {without}"
        plain = "of unknown worth" if self.wrong is None else f"{max(self.wrong, 0.0):.2f}"
        message = (
            f"{who} ('{best.name}') earns {best.undone:.2f} of the oracle's reward without doing the task, a plain "
            f"wrong answer {plain}{tools}; '{term}' pays most; the least is "
            f"{least.split}/{least.task}: {least.reward:g} of {least.oracle:g} for {actions!r}"
        )
        hint = f"let '{term}' read the whole answer and nothing beside it, or gate it on what only the work earns"
        episode = HoleEpisode(least.split, least.task, least.actions, least.reward, least.oracle)
        return hole_of("attacker", message, term, hint=hint, episode=episode)


def _known_total(ended: Trajectory) -> float:
    """The reward of an episode that is known to have one."""
    assert ended.reward.total is not None
    return ended.reward.total


def _undone_share(result: _StrategyEpisodes) -> float:
    """The reward of a strategy without doing, less than anything where that could not be measured."""
    return -math.inf if result.figures.undone is None else result.figures.undone


def _action_text(action: Any) -> str:
    return cut_middle(action if isinstance(action, str) else json.dumps(action), _KEPT_CHARS)


def _mean_terms(episodes: Sequence[Trajectory]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in episodes[0].reward.terms:
        values = [term.value for ended in episodes if (term := ended.reward.terms.get(name)) and term.value is not None]
        found[name] = math.fsum(values) / len(values) if values else None
    return found


def _history_entry(result: _StrategyEpisodes) -> dict[str, Any]:
    """A strategy as its author is told of it: what it earned, and what came back in its first episode."""
    first, told = result.episodes[0], result.figures
    back = [
        cut_middle(message.content, _SHOWN_CHARS)
        for turn in first.turns
        if turn.observation
        for message in turn.observation.messages
    ]
    return {
        "name": told.name,
        "actions": [cut_middle(action, _SHOWN_CHARS) for action in told.actions],
        "share": None if told.share is None else round(told.share, 3),
        "undone": None if told.undone is None else round(told.undone, 3),
        "terms": told.terms,
        "invalid": told.invalid,
        "answered_first_task": back,
        "ended_first_task": first.reason,
    }
