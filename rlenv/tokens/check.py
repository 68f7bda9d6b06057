"""Proves that ids, masks and stop marks are right for a tokenizer and its chat template, or says where they cannot be.

Every check compares with the template's own rendering, encoded independently of the encoder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Final, Literal

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message, Observation
from rlenv.tokens.dialogues import TOOLS, Dialogue, generate, hostile, situations
from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.replay import IdDifference, Replay, compare
from rlenv.tokens.rows import TokenRows
from rlenv.tokens.trajectory import TokenTrajectory
from rlenv.tokens.verdict import Played, Verdict, judge
from rlenv.trajectory import Trajectory, Turn

__all__ = ["CheckReport", "Explained", "IdDifference", "Piece", "TokenCheck", "check", "compare", "explain", "general"]

Status = Literal["ok", "refused", "failed", "skipped"]
_PARALLEL = (("tool", "tool"), ("tool", "tool", "tool", "tool"))


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """One check: `ok`, `failed`, `refused` where there is no encoder, or `skipped` where nothing could be compared.

    `cases` were compared and are exact. Of other observations `rewritten` says how many the template writes otherwise
    than they were sampled, where the encoder did what its history promises; `needless` how many it refused or began a
    row for although the template goes on; `refused` how many it cannot encode; `taken_out` how many dialogues the
    template itself does not take.
    """

    name: str
    status: Status
    cases: int = 0
    detail: str = ""
    difference: IdDifference | None = None
    rewritten: int = 0
    needless: int = 0
    refused: int = 0
    taken_out: int = 0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All findings for one tokenizer and template, and the verdict on what is played with it.

    `with_user` is the verdict for environments with a simulated user, None where `verdict` covers them.
    """

    name: str
    verdict: Verdict
    findings: tuple[TokenCheck, ...] = field(default=())
    with_user: Verdict | None = None

    @property
    def will_run(self) -> bool:
        """True where training with this history does not fail for the template's sake."""
        return self.verdict.will_run

    @property
    def is_exact(self) -> bool:
        """True where it will run, every history will be the template's own, and no check failed."""
        return self.verdict.is_exact and not self.failed

    @property
    def failed(self) -> tuple[TokenCheck, ...]:
        """The checks that found ids which are not the template's."""
        return tuple(finding for finding in self.findings if finding.status == "failed")

    @property
    def is_fine(self) -> bool:
        """True where training will run and be exact, or differs as `history="keep"` asks for."""
        return self.will_run and not self.failed and (self.is_exact or self.verdict.history == "keep")

    def as_dict(self) -> dict[str, Any]:
        """The report as `rlenv tokens check --json` writes it."""
        return {
            **self.verdict.as_dict(),
            "name": self.name,
            "will_run": self.will_run,
            "is_exact": self.is_exact,
            "with_user": None if self.with_user is None else self.with_user.as_dict(),
            "findings": [asdict(finding) for finding in self.findings],
        }


def general(*, with_user: bool) -> tuple[Played, ...]:
    """The situations of environments in general: tools, with a system message and without, and a user where they have
    one.
    """
    answers: tuple[tuple[str, ...], ...] = (("tool",), *_PARALLEL)
    if with_user:
        answers = (("user",), *answers)
    prompts = ((Message("system", "You are S."), Message("user", "Q?")), (Message("user", "Q?"),))
    return tuple(Played(prompt, TOOLS, answers=answers) for prompt in prompts)


def check(
    make: Callable[[], TokenEncoder],
    *,
    name: str,
    dialogues: int = 200,
    seed: int = 0,
    real: Iterable[Dialogue] = (),
    verdict: Verdict | None = None,
    with_tools: bool = True,
    with_users: bool = True,
) -> CheckReport:
    """Runs all checks.

    Args:
        make: builds the encoder; a template or tokenizer that it refuses is a finding.
        real: dialogues of an environment, checked like the generated ones.
        verdict: on what an environment plays; None judges what environments in general play, those with a simulated
            user apart.
        with_tools: whether generated dialogues have results.
        with_users: whether they have replies.
    """
    try:
        encoder = make()
    except UnsupportedTemplate as error:
        refused = verdict or judge(error)
        return CheckReport(name, refused, (TokenCheck("binds", "refused", 0, str(error)),))
    with_user = None
    if verdict is None:
        verdict, with_user = (judge(encoder, *general(with_user=has_user)) for has_user in (False, True))
    ends = ", ".join(f"{encoder.decode([number])} (id {number})" for number in encoder.stop_token_ids)
    findings = [TokenCheck("binds", "ok", 1, f"a turn ends with {ends}")]
    findings.append(_check_ends(encoder))
    if encoder.same_turn is None:
        played = {"kinds of dialogues": situations(with_tools=with_tools, with_users=with_users)}
        if with_tools:
            played["generated dialogues"] = generate(dialogues, seed=seed)
            thinking = generate(max(dialogues // 4, 1), seed=seed, thinks=True, with_users=with_users)
            played["dialogues with thinking"] = thinking
        if given := list(real):
            played["dialogues of the environment"] = iter(given)
        replay = Replay(encoder)
        findings += [_compare_all(replay, kind, made) for kind, made in played.items()]
        if with_tools:
            findings += [_hostile_results(encoder), _check_closing(encoder, "tool")]
        if with_users:
            findings.append(_check_closing(encoder, "user"))
    findings.append(_hostile_prompts(encoder))
    return CheckReport(name, verdict, tuple(findings), with_user)


def _check_ends(encoder: TokenEncoder) -> TokenCheck:
    """A check that a mark that ends turns by the model's files does so in the template."""
    declared, number = encoder.declared_ends, encoder.stop_id
    wrong = [mark for mark in declared if mark in encoder.begins]
    repair = (
        f'write "eos_token": "{encoder.stop}" into tokenizer_config.json and "eos_token_id": [{number}] into'
        f" generation_config.json, or give --stop '{encoder.stop}'"
    )
    if wrong and len(wrong) == len(declared):
        why = "begins the assistant's turn in the template: a server would not stop behind a turn"
        return TokenCheck("end marks", "failed", 0, f"{wrong[0]} ends a turn by the model's files, and {why}; {repair}")
    if encoder.same_turn is None and declared and encoder.stop not in declared:
        why = f"the template ends turns with {encoder.stop}, and the model's files name {', '.join(declared)}"
        return TokenCheck("end marks", "ok", 1, f"{why}: what serves the model would not stop there; {repair}")
    return TokenCheck("end marks", "ok", 1, "a turn ends where the model's files say")


_OTHERS: Final = {
    "rewritten": "rewritten",
    "needless": "refused without need",
    "refused": "refused",
    "taken out": "not taken by the template",
}
"""The outcomes of observations that are not exact, in words."""


def _compare_all(replay: Replay, name: str, dialogues: Iterable[Dialogue]) -> TokenCheck:
    """Prompts, turns and observations are, id for id, the template's rendering of the whole conversation."""
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for dialogue in dialogues:
        for outcome in replay.play(dialogue):
            if outcome.status == "failed":
                where = f"{dialogue.name}, " if dialogue.name else ""
                place = "the prompt" if outcome.turn < 0 else f"turn {outcome.turn + 1}"
                detail = f"{where}{place}: {outcome.detail}"
                return TokenCheck(name, "failed", counts["exact"], detail, outcome.difference)
            counts[outcome.status] += 1
            reasons.setdefault(outcome.status, outcome.detail)
    said = [f"{counts[status]} {words}: {reasons[status]}" for status, words in _OTHERS.items() if counts[status]]
    return TokenCheck(
        name,
        "ok" if counts["exact"] or counts["rewritten"] else "skipped",
        counts["exact"],
        "; ".join(said) or "ids are those of the whole rendering",
        None,
        *(counts[status] for status in _OTHERS),
    )


def _hostile_results(encoder: TokenEncoder) -> TokenCheck:
    """No content becomes a control token, and its text comes back as it was."""

    def encode(content: str) -> list[int]:
        return encoder.encode_messages((Message("tool", content, name="look", tool_call_id="call00000"),)).tolist()

    found = _check_hostile(encoder, "hostile results", "result", encode, ("CONTENT",), [(0,)])
    if found.status != "ok":
        return found
    return replace(found, detail=f"{found.detail} in {encoder.decode(encode('CONTENT')).count('CONTENT')} place")


def _hostile_prompts(encoder: TokenEncoder) -> TokenCheck:
    """No message and no tool's schema becomes a control token of the prompt."""

    def encode(system: str, user: str, tool: str, about: str) -> list[int]:
        properties = {about: {"type": "string", "description": about, "enum": [about]}}
        schema = {"name": tool, "description": about, "parameters": {"type": "object", "properties": properties}}
        messages = [Message("system", system), Message("user", user)]
        return encoder.encode_prompt(messages, tools=[{"type": "function", "function": schema}]).tolist()

    found = _check_hostile(encoder, "hostile prompts", "text", encode, ("S", "U", "look", "x"), [(0,), (1,), (2, 3)])
    return replace(found, detail=f"{found.detail} in messages and schemas") if found.status == "ok" else found


def _check_hostile(
    encoder: TokenEncoder,
    name: str,
    what: Literal["result", "text"],
    encode: Callable[..., list[int]],
    clean: Sequence[str],
    places: Sequence[tuple[int, ...]],
) -> TokenCheck:
    """Texts that spell control tokens make none of them; `places` are those of `clean` that each stands in."""
    cases = 0

    def controls(ids: Sequence[int]) -> list[int]:
        return [number for number in ids if number in encoder.vocabulary.control_ids]

    try:
        wanted = controls(encode(*clean))
    except UnsupportedTemplate as error:
        return TokenCheck(name, "skipped", 0, str(error))
    tokens = [token for token in encoder.vocabulary.added if token.strip()]
    for text, place in product(hostile(tokens), places):
        ids = encode(*(text if index in place else one for index, one in enumerate(clean)))
        told = f"the {what} {text[:60]!r}"
        difference = compare(encoder, wanted, controls(ids))
        if difference is not None:
            return TokenCheck(name, "failed", cases, f"{told} makes control tokens", difference)
        written, own = encoder.decode(ids), text.strip()
        if what == "result" and own not in written and json.dumps(own, ensure_ascii=False)[1:-1] not in written:
            return TokenCheck(name, "failed", cases, f"{told} does not come back as text")
        cases += 1
    return TokenCheck(name, "ok", cases, "0 extra control tokens")


def _check_closing(encoder: TokenEncoder, role: Literal["tool", "user"]) -> TokenCheck:
    """A turn that stopped by its length is closed with mask 0, and reads on as one that was stopped."""
    name = f"turns cut by length, then a {'result' if role == 'tool' else 'reply'}"
    observation = Observation((Message(role, "R", name="look", tool_call_id="call00000"),))
    said = Message("assistant", "a turn without an end")
    ids = encoder.encode_content(said.content)

    def played(sampled: Sequence[int]) -> TokenTrajectory:
        try:
            rows = encoder.start_rows([Message("user", "Q")])
        except UnsupportedTemplate:  # some templates take no conversation without tools
            rows = encoder.start_rows([Message("user", "Q")], tools=TOOLS)
        rows.add_sampled(sampled)
        rows.add_observation(observation, said=said)
        return rows.rows[0]

    try:
        cut = played(ids)
        if cut.closed_turns != [0]:
            return TokenCheck(name, "skipped", 0, "the template begins a new row there")
        end = cut.response_ids[len(ids)]
        whole = played([*ids, end])
    except UnsupportedTemplate as error:
        return TokenCheck(name, "skipped", 0, str(error))
    difference = compare(encoder, whole.context_ids, cut.context_ids)
    # In a history some templates end a turn with another mark than the one that the policy stops with.
    if difference is not None or sum(cut.mask) != len(ids) or end not in encoder.vocabulary.added.values():
        return TokenCheck(name, "failed", 1, "a closed turn differs from a stopped one", difference)
    return TokenCheck(name, "ok", 1, f"closed with {encoder.decode([end])} and mask 0")


Kind = Literal["prompt", "sampled", "assumed", "observed"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids of one kind that stand together.

    `prompt`: what the policy read first. `sampled`: what it wrote (mask 1). `assumed`: an end token that a turn has
    had, as far as its text tells. `observed`: what the environment put behind a turn, a missing end token too (mask 0).
    `turn` counts from 0, -1 in a prompt; `row` is the training row.
    """

    kind: Kind
    ids: tuple[int, ...]
    turn: int = -1
    row: int = 0


@dataclass(frozen=True, slots=True)
class Explained:
    """All pieces in order. `anew` are the turns whose ids the record does not hold, so that they are those of the text.

    `others` are turns whose recorded ids do not read as their text: another tokenizer sampled them. `differences` is
    what the template would have written otherwise (see `TokenTrajectory.differences`).
    """

    pieces: tuple[Piece, ...]
    anew: tuple[int, ...]
    others: tuple[int, ...]
    differences: tuple[str, ...]

    def count(self, *kinds: Kind) -> int:
        """The ids of some kinds."""
        return sum(len(piece.ids) for piece in self.pieces if piece.kind in kinds)


def explain(encoder: TokenEncoder, trajectory: Trajectory, *, tools: Sequence[Mapping[str, Any]] = ()) -> Explained:
    """The tokens of a recorded trajectory.

    Args:
        encoder: of the tokenizer that sampled it; its history is "keep" or "rows".

    Raises:
        UnsupportedTemplate: exact ids cannot be promised for the record's messages.
        EpisodeError: an image of the prompt cannot be read.
    """
    rows = encoder.start_rows(trajectory.messages, tools=tools)
    anew: list[int] = []
    others: list[int] = []
    assumed: set[int] = set()
    for turn in trajectory.turns:
        if sampled := turn.token_ids:
            if rows.add_sampled(sampled) != turn.action:
                others.append(turn.index)
        else:
            anew.append(turn.index)
            has_end = encoder.same_turn is None and _has_ended(turn, trajectory)
            if has_end and not turn.finish_reason:
                assumed.add(turn.index)
            rows.add_sampled([*encoder.encode_text(turn.action), *([encoder.stop_id] if has_end else [])])
        if turn.observation is not None and turn.observation.messages:
            rows.add_observation(turn.observation, said=turn.parsed.said)
    return Explained(tuple(_pieces_of(rows, assumed)), tuple(anew), tuple(others), tuple(rows.differences))


def _has_ended(turn: Turn, trajectory: Trajectory) -> bool:
    """True if a turn ended by an end token: as its sampler says, else as far as its text and its place tell."""
    if reason := turn.finish_reason:
        return reason != "length"
    is_last = turn.index == len(trajectory.turns) - 1
    return not turn.parsed.is_cut and not (is_last and trajectory.truncated)


def _pieces_of(rows: TokenRows, assumed: Collection[int]) -> Iterator[Piece]:
    turn = -1
    for number, row in enumerate(rows.rows):
        yield Piece("prompt", tuple(row.prompt_ids), row=number)
        ids, at = row.response_ids, 0
        for start, end in row.turn_spans:
            if start > at:
                yield Piece("observed", tuple(ids[at:start]), turn, number)
            turn += 1
            stop = end - 1 if turn in assumed else end
            yield Piece("sampled", tuple(ids[start:stop]), turn, number)
            if stop < end:
                yield Piece("assumed", tuple(ids[stop:end]), turn, number)
            at = end
        if at < len(ids):
            yield Piece("observed", tuple(ids[at:]), turn, number)
