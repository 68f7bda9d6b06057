"""Recorded episodes stepped again through their environment and compared, or scored again with other rewards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlenv._base.bounded import cut_end, grouped, plain
from rlenv.concurrency.lanes import Lane, entered
from rlenv.endpoints.account import as_recorded, merge_usage
from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.episodes.retaken import Retaken, guarded_scorer, reads_state
from rlenv.episodes.rollout import gather_all
from rlenv.episodes.tools import EpisodeReward
from rlenv.errors import CassetteError, EpisodeError, RewardError
from rlenv.messages import Message, Sampled, ToolResult
from rlenv.rewards.base import Measured, RewardContext, Term
from rlenv.rewards.group import score_groups
from rlenv.rewards.scorer import Scorer
from rlenv.runs.summary import is_same, value_of
from rlenv.secrets import redact_value
from rlenv.trajectory import TERMINATIONS, RewardBreakdown, TermResult, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Replayed:
    """One episode played again. `differences` name a place and what was there before and now; empty where nothing is.

    `skipped` says why an episode was not played again, "" where it was. `left_out` names the terms of a group that was
    not replayed as a whole: they are not compared, and neither are the reward and the success that they are part of.
    `files` of machines came out otherwise, which is no difference by itself: a clock makes other files.
    """

    recorded: Trajectory
    again: Trajectory | None
    differences: tuple[str, ...]
    skipped: str = ""
    left_out: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


async def replay(
    environment: Environment,
    trajectories: Sequence[Trajectory],
    *,
    concurrency: int = 64,
    lane: Callable[[int], Lane] | None = None,
    groups: Sequence[Hashable] | None = None,
) -> list[Replayed]:
    """Take the recorded actions once more, one by one, and compare what the environment answers.

    Compared are the prompt, each turn's parsed calls and observation, how the episode ended, the answer and every term
    of the reward; times are not. Tools, judges and services are called again, and an episode that failed is not played:
    its environment was not well.

    Args:
        lane: the lane of an episode on the tape that answers in their place. One that failed is then played too: its
            turns answer as they did, and it fails where it did.
        groups: the group of each episode, None where not all of it is here; by default all of one task are one.
    """
    places = asyncio.Semaphore(concurrency)

    async def replay_one(index: int, recorded: Trajectory) -> Replayed:
        async with places:
            own = lane(index) if lane is not None else None
            with entered(own):
                return await _replay_episode(environment, recorded, is_taped=own is not None)

    found = await gather_all([replay_one(index, trajectory) for index, trajectory in enumerate(trajectories)])
    scorer = environment.parts.scorer
    if scorer.has_group_terms:
        named = groups if groups is not None else [(one.split, one.task_index) for one in trajectories]
        found = await _with_group_terms(environment, found, named, is_taped=lane is not None)
    return [_compare_replay(one) for one in found]


async def _with_group_terms(
    environment: Environment, found: Sequence[Replayed], groups: Sequence[Hashable], *, is_taped: bool
) -> list[Replayed]:
    """The episodes with the group terms of their rewards, where the whole group is among them.

    A tape is of single episodes: it has no answer to what was asked about a group, and nobody else is asked.
    """
    scorer = environment.parts.scorer
    left_out = scorer.asked_names if is_taped else ()
    places = grouped((group, index) for index, group in enumerate(groups))
    measured = [replace(one, left_out=scorer.group_names) if one.again is not None else one for one in found]
    for group, members in places.items():
        if all(_has_waited(found[index], scorer.group_names) for index in members):
            for index in members:
                measured[index] = found[index]
            continue
        if group is None or not all(_is_member(found[index]) for index in members):
            continue
        again = [(index, one) for index in members if (one := found[index].again) is not None]
        played = [one for _, one in again]
        if is_taped:
            scored = score_groups(scorer, played, keeps_asked=True)
        else:
            scored = await environment.score_groups(played)
        for (index, _), one in zip(again, scored, strict=True):
            measured[index] = replace(found[index], again=one, left_out=left_out)
    return measured


def _is_member(one: Replayed) -> bool:
    """True if a group's terms see an episode as they did: played to its end, or left out for having failed."""
    if one.again is None:
        return bool(one.skipped)
    return one.again.failure is None or one.again.failure.reason != CassetteError.reason


def _has_waited(one: Replayed, names: Sequence[str]) -> bool:
    """True if a group's terms were not measured then either: a run was cut off before the group had ended."""
    then, now = one.recorded.reward.terms, one.again.reward.terms if one.again is not None else {}
    return one.again is None or all(then.get(name) == now.get(name) for name in names)


def _compare_replay(one: Replayed) -> Replayed:
    if one.again is None:
        return one
    files = {
        path
        for before, now in zip(_changed_files(one.recorded), _changed_files(one.again), strict=False)
        for path, _ in before.items() ^ now.items()
    }
    told = (*one.differences, *_compare(one.recorded, one.again, one.left_out))
    return replace(one, differences=told, files=tuple(sorted(files)))


def _changed_files(one: Trajectory) -> list[Mapping[str, Any]]:
    """By term and path, the kind and digest of each file that an episode changed in machines."""
    terms = [one.reward.terms[name].details.get("changed") or () for name in sorted(one.reward.terms)]
    return [{str(each.get("path")): (each.get("kind"), each.get("sha256")) for each in term} for term in terms]


async def _replay_episode(environment: Environment, recorded: Trajectory, *, is_taped: bool) -> Replayed:
    has_failed = recorded.failure is not None and recorded.failure.reason != "reward"
    if recorded.failure is not None and has_failed and not (is_taped and recorded.turns):
        return Replayed(recorded, None, (), f"it had failed: {recorded.failure.reason}")
    if recorded.split not in environment.spec.tasks:
        return Replayed(recorded, None, (f"split: '{recorded.split}' is not in {environment.id}",))
    rows = environment.tasks(recorded.split)
    index = recorded.task_index
    task: int | Mapping[str, Any] = dict(recorded.task)
    moved = []
    if rows.has(index):
        if plain(redact_value(rows[index])) == plain(recorded.task):
            task = index
        else:
            moved = [f"task: row {index} of split '{recorded.split}' is another one now; the recorded row was played"]
    others = {other.task.get("player"): other for other in recorded.others}

    async def play(other: Episode) -> None:
        async with other:
            if (then := others.get(other.task["player"])) is not None:
                await _take_actions(other, then)

    async with environment.start(task=task, split=recorded.split, seed=recorded.seed, others=play) as episode:
        prompt = episode.messages
        await _take_actions(episode, recorded)
        again = episode.trajectory
    was = plain(recorded.messages[: len(prompt)])
    differences = [*moved, *_difference("prompt", was, plain(prompt))]
    return Replayed(recorded, again, tuple(differences))


async def _take_actions(episode: Episode, recorded: Trajectory) -> None:
    """Takes the recorded actions, and ends the episode as it had ended."""
    for turn in recorded.turns:
        if episode.is_ended:
            break
        told = (turn.finish_reason, turn.token_ids, turn.logprobs, turn.prompt_token_ids)
        await episode.step(Sampled(_recorded_action(episode, turn), *told))
    if not episode.is_ended and recorded.failure is not None and recorded.failure.reason != "reward":
        episode.fail(recorded.failure.reason, recorded.failure.message)  # by the policy, or in the turn that is lost
    if not episode.is_ended:
        await episode.truncate(recorded.cut_by or "left")


def _recorded_action(episode: Episode, turn: Turn) -> str | Message:
    """A recorded action as it was taken: calls that came as data are no calls of the text that stands for them."""
    calls = turn.parsed.calls
    if not calls or any(call.start >= 0 for call in calls):
        return turn.action
    written = episode.environment.parts.dialect.render_action(Message("assistant", "", calls))
    for content in (turn.parsed.content, turn.action.removesuffix(written)):
        message = Message("assistant", content, calls)
        text, parsed = episode.environment.parse(message, episode.toolset)
        if (text, parsed.thinking) == (turn.action, turn.parsed.thinking):
            return message
    return turn.action


def _compare(old: Trajectory, new: Trajectory, left_out: Sequence[str]) -> list[str]:
    found: list[str] = []
    missed = new.failure if new.failure is not None and new.failure.reason == CassetteError.reason else None
    if len(old.turns) != len(new.turns) and missed is None:
        found.append(f"turns: {len(old.turns)} before, {len(new.turns)} now")
    for before, now in zip(old.turns, new.turns, strict=False):
        place = f"turn {before.index + 1}"  # as the viewer counts
        found += _difference(f"{place}, calls", _plain_calls(before), _plain_calls(now))
        found += _passing_outages(before, now)
        found += _difference(f"{place}, observation", _shown_messages(before), _shown_messages(now))
    if missed is not None:  # what follows from it says nothing more
        return [*found, missed.message]
    found += _difference("end", [old.reason, old.truncated], [new.reason, new.truncated])
    found += _difference("answer", old.answer, new.answer)
    for name in dict.fromkeys([*old.reward.terms, *new.reward.terms]):
        if name not in left_out:
            found += _number_difference(f"reward {name}", value_of(old, name), value_of(new, name))
    if left_out:
        return found
    found += _number_difference("reward", old.reward.total, new.reward.total)
    return found + _difference("success", old.success, new.success)


def _passing_outages(old: Turn, new: Turn) -> Iterator[str]:
    """Calls that failed for want of the infrastructure once and not twice: no change of the environment's."""
    for index, (before, now) in enumerate(zip(old.results, new.results, strict=False)):
        place = f"turn {old.index + 1}, call {index + 1} of '{before.name}'"
        if _is_outage(before) and not _is_outage(now):
            yield f"{place}: it failed for want of the infrastructure before ({before.reason}) and does not now"
        elif _is_outage(now) and not _is_outage(before):
            yield f"{place}: it fails for want of the infrastructure now ({now.reason}) and did not before"


def _is_outage(result: ToolResult) -> bool:
    return result.whose == "infrastructure" and result.reason != "injected"


def _plain_calls(turn: Turn) -> Any:
    return plain(turn.parsed.calls)


def _shown_messages(turn: Turn) -> Any:
    """The messages that the policy was shown; one message's text where it is nothing but that."""
    messages = turn.observation.messages if turn.observation is not None else ()
    if len(messages) == 1 and not messages[0].images:
        return messages[0].content
    return [plain(message) for message in messages]


def _number_difference(place: str, old: float | None, new: float | None) -> list[str]:
    return [] if is_same(old, new) else _difference(place, old, new)


def _difference(place: str, old: object, new: object) -> list[str]:
    return [] if old == new else [f"{place}: {_short_repr(old)} before, {_short_repr(new)} now"]


def _short_repr(value: object) -> str:
    return cut_end(repr(value), 160)


async def rescore(
    environment: Environment,
    trajectories: Sequence[Trajectory],
    *,
    concurrency: int = 64,
    groups: Sequence[Hashable] | None = None,
    known: Sequence[Mapping[str, TermResult]] = (),
    machines: Callable[[int], Mapping[str, Any]] | None = None,
) -> list[Trajectory]:
    """The trajectories with the rewards of `environment`, in the same order.

    No policy acts: messages, actions and tool results are those that were recorded. Terms that run a tool or ask a
    judge do so again. Where a term may look at state, the recorded calls are taken again first, on resources opened
    for the recorded task; where that cannot make the state that was there, terms that ask for it are invalid and say
    which call stood in the way. `seconds` are those of scoring, and `usage` holds what that asked for beside what the
    recorded episode had, as recorded.

    Args:
        groups: what tells apart, for each trajectory, answers to one task that are of several groups.
        known: for each trajectory, terms that have been measured and are not measured again.
        machines: gives by resource what its machines held at the end of a trajectory, where that was recorded.
    """
    places = asyncio.Semaphore(concurrency)

    async def rescore_one(index: int, recorded: Trajectory) -> Trajectory:
        own = known[index] if known else {}
        async with places:
            task = dict(recorded.task)
            split, seed = recorded.split, recorded.seed
            began = recorded.messages[-1].content if recorded.messages else ""
            async with environment.start(task=task, split=split, seed=seed, opening=began) as episode:
                try:
                    for name, held in machines(index).items() if machines is not None else ():
                        if hasattr(episode.resources.get(name), "put_back"):
                            await episode.resources[name].put_back(held)
                except EpisodeError as error:
                    episode.fail(error.reason, str(error))
                scored = await _rescore_episode(episode, recorded, own)
            usage = merge_usage((*as_recorded(recorded.usage), *scored.usage))
            # A row given itself has no index; the recorded one says which task it was.
            return replace(scored, task_index=recorded.task_index, usage=usage)

    scored = await gather_all([rescore_one(index, trajectory) for index, trajectory in enumerate(trajectories)])
    return await environment.score_groups(scored, groups=groups)


async def _rescore_episode(episode: Episode, recorded: Trajectory, known: Mapping[str, TermResult]) -> Trajectory:
    """The recorded episode, scored on the resources of `episode`, which is open and takes its turns.

    The answer is read again, by the environment's rule, from the last turn as it was parsed then. What failed for
    another reason than its reward stays failed, and so does what cannot be opened now.
    """
    if episode.is_ended:
        return episode.trajectory
    environment, failure = episode.environment, recorded.failure
    if failure is not None and failure.reason != "reward":
        episode.messages, episode.turns = recorded.messages, list(recorded.turns)
        return episode.fail(failure.reason, failure.message)
    asked, scorer = [term for term in environment.parts.terms if term.name not in known], environment.parts.scorer
    if known:
        scorer = Scorer(_with_known(environment.parts.terms, known), success=environment.spec.success)
    reward = EpisodeReward(environment, episode.tools, scorer if known else scorer.of(episode.task))
    state = Retaken(episode, prompt=recorded.messages) if reads_state(asked) else None
    state = _unless_lost(state, reward, environment, known)
    episode.messages = recorded.messages
    reason = recorded.cut_by or termination(environment, recorded)
    deadline = time.monotonic() + episode.limits.episode_s
    for index, turn in enumerate(recorded.turns, 1):
        is_last = index == len(recorded.turns)
        if state is not None:
            await state.take(turn, is_last=is_last, reason=reason, deadline=deadline)
            state = _unless_lost(state, reward, environment, known)
        episode.turns.append(_with_places(episode, turn))
        if reward.scorer.has_turn_terms and not is_last:
            await reward.score_turn(episode.messages, episode.turns)
    answer, breakdown, success = await reward.score(episode.messages, episode.turns, reason=reason)
    breakdown = _as_measured(breakdown, known)
    record, is_cut = episode.record(answer=answer), bool(recorded.cut_by)
    return Trajectory.ended(record, terminated=not is_cut, reason=reason, reward=breakdown, success=success)


def _with_places(episode: Episode, turn: Turn) -> Turn:
    """The turn with the places of its content, which no record holds, where the action reads as it did."""
    if turn.parsed.content_at:
        return turn
    read = episode.environment.parse(turn.action, episode.toolset)[1]
    if read.content != turn.parsed.content or read.thinking != turn.parsed.thinking:
        return turn
    return replace(turn, parsed=replace(turn.parsed, content_at=read.content_at))


def _unless_lost(
    state: Retaken | None, reward: EpisodeReward, environment: Environment, known: Mapping[str, TermResult]
) -> Retaken | None:
    """`state` as long as it is what was recorded; once it is not, terms that ask for it are invalid."""
    if state is None or not state.lost:
        return state
    reward.scorer = guarded_scorer(environment, _with_known(environment.parts.terms, known), state.lost)
    return None


def _with_known(terms: Sequence[Term], known: Mapping[str, TermResult]) -> list[Term]:
    """The terms, of which those that are known say what they gave when they were measured."""
    return [_recall_term(term, known[term.name]) if term.name in known else term for term in terms]


def _recall_term(term: Term, result: TermResult) -> Term:
    def recall(context: RewardContext) -> Measured:
        value = result.value
        if term.spec.when == "turn":
            place = len(context.turns) - 1
            value = result.turn_values[place] if place < len(result.turn_values) else None
            # Records of earlier versions count from 0.
            error = result.error.removeprefix(f"in turn {place + 1}: ").removeprefix(f"turn {place}: ")
            fails = result.status == "invalid" and error != result.error
        else:
            error, fails = result.error, result.status == "invalid"
        if fails:
            raise RewardError(error)
        return Measured(value, result.evidence, result.details, result.where)

    # The value was shaped when it was measured.
    spec = term.spec.model_copy(update={"range": None, "clip": None})
    return replace(term, spec=spec, measure=recall, measure_async=None, where=None)


def _as_measured(breakdown: RewardBreakdown, known: Mapping[str, TermResult]) -> RewardBreakdown:
    """The breakdown, in which terms that were known took as long as they did when they were measured."""
    if not known:
        return breakdown
    terms = {
        name: replace(one, seconds=known[name].seconds) if name in known else one
        for name, one in breakdown.terms.items()
    }
    return replace(breakdown, terms=terms)


def termination(environment: Environment, recorded: Trajectory) -> str:
    """The end of the task in an episode that no limit had cut; where its reward was invalid a record may not say."""
    if recorded.reason in TERMINATIONS:
        return recorded.reason
    has_answer = recorded.answer is not None
    if environment.parts.simulated is not None and not (has_answer and environment.answer_is_explicit):
        return "user"
    return "answer" if has_answer else "final_message"
