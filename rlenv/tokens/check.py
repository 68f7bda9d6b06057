"""Proves that ids, masks and stop marks are right for a tokenizer and its chat template, or says where they cannot be.

Every check compares with the template's own rendering, encoded by the whole tokenizer.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rlenv.errors import UnsupportedTemplate
from rlenv.messages import Message, Observation
from rlenv.tokens.dialogues import TOOLS, Dialogue, generate, hostile
from rlenv.tokens.encoder import TokenEncoder

__all__ = ["CheckReport", "Difference", "Finding", "check", "compare"]

Status = Literal["ok", "split", "refused", "failed", "skipped"]
_AROUND: Final = 4  # ids shown before and behind a difference


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two lists of ids part: the ids around it, and their texts, side by side."""

    at: int
    expected: tuple[tuple[int, str], ...]
    found: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: `ok`; `split` or `refused` where the template makes it impossible; `failed`; or `skipped`."""

    name: str
    status: Status
    cases: int = 0
    detail: str = ""
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All findings for one tokenizer and template."""

    name: str
    findings: tuple[Finding, ...] = field(default=())

    @property
    def is_exact(self) -> bool:
        """True where no check failed and tool results can be encoded exactly."""
        return all(finding.status in ("ok", "split", "skipped") for finding in self.findings if finding.name != "user")

    def as_dict(self) -> dict[str, Any]:
        """The report as `rlenv tokens check --json` writes it."""
        return {
            "name": self.name,
            "is_exact": self.is_exact,
            "findings": [
                {
                    "name": finding.name,
                    "status": finding.status,
                    "cases": finding.cases,
                    "detail": finding.detail,
                    "difference": None
                    if finding.difference is None
                    else {
                        "at": finding.difference.at,
                        "expected": [list(pair) for pair in finding.difference.expected],
                        "found": [list(pair) for pair in finding.difference.found],
                    },
                }
                for finding in self.findings
            ],
        }


def compare(encoder: TokenEncoder, expected: Sequence[int], found: Sequence[int]) -> Difference | None:
    """The first difference of two lists of ids, None where they are equal."""
    if list(expected) == list(found):
        return None
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
    )

    def shown(ids: Sequence[int]) -> tuple[tuple[int, str], ...]:
        return tuple((number, encoder.decode([number])) for number in ids[max(at - _AROUND, 0) : at + _AROUND + 1])

    return Difference(at, shown(expected), shown(found))


def check(
    make: Callable[[], TokenEncoder],
    *,
    name: str,
    dialogues: int = 200,
    seed: int = 0,
    real: Iterable[Dialogue] = (),
) -> CheckReport:
    """Runs all checks.

    Args:
        make: builds the encoder; a template or tokenizer that it refuses is a finding.
        dialogues: how many dialogues are generated.
        real: dialogues of an environment, checked like the generated ones.
    """
    try:
        encoder = make()
    except UnsupportedTemplate as error:
        return CheckReport(name, (Finding("binds", "refused", 0, str(error)),))
    kinds = tuple(_append_only(encoder))
    findings = [Finding("binds", "ok", 1, f"a turn ends with {encoder.stop} (id {encoder.stop_id})"), *kinds]
    if any(finding.name == "results" and finding.status == "refused" for finding in kinds):
        return CheckReport(name, tuple(findings))
    most = 1 if next(f for f in kinds if f.name == "parallel results").status == "skipped" else 4
    findings.append(_identity(encoder, "generated dialogues", generate(dialogues, seed=seed, max_calls=most)))
    thinking = generate(max(dialogues // 4, 1), seed=seed, max_calls=most, thinks=True)
    findings.append(_identity(encoder, "dialogues with thinking", thinking))
    given = list(real)
    if given:
        findings.append(_identity(encoder, "dialogues of the environment", given))
    findings += [_hostile(encoder), _hostile_prompts(encoder), _closing(encoder)]
    return CheckReport(name, tuple(findings))


def _append_only(encoder: TokenEncoder) -> Iterator[Finding]:
    cases: tuple[tuple[str, tuple[str, ...], bool], ...] = (
        ("results", ("tool",), False),
        ("results after thinking", ("tool",), True),
        ("parallel results", ("tool", "tool"), False),
        ("user", ("user",), False),
        ("user after thinking", ("user",), True),
    )
    for name, roles, after_thinking in cases:
        try:
            fault = encoder.rewrites(roles, after_thinking=after_thinking)
        except UnsupportedTemplate as error:
            yield Finding(name, "refused" if name == "results" else "skipped", 1, str(error))
            continue
        yield Finding(name, "split" if fault else "ok", 1, fault or "the conversation only grows")


def _forms(said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The ways of writing an assistant's message that templates take."""
    for as_text in (False, True):
        calls = []
        for call in said["tool_calls"]:
            function = dict(call["function"])
            if as_text:
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
            calls.append({**call, "function": function})
        for content in (said["content"], None, ""):
            yield {**said, "tool_calls": calls, "content": content}


def _sign(function: Mapping[str, Any]) -> str:
    """What shows that a template has written a call."""
    value = function["arguments"].get("x")
    return value[:3] if isinstance(value, str) else str(function["name"])


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _identity(encoder: TokenEncoder, name: str, dialogues: Iterable[Dialogue]) -> Finding:
    """Prompt, turns and observations are, id for id, the template's rendering of the whole conversation."""
    compared = refused = 0
    reason = ""
    for dialogue in dialogues:
        outcome = _one(encoder, dialogue)
        if isinstance(outcome, str):
            refused += 1
            reason = reason or outcome
        elif isinstance(outcome, Finding):
            return Finding(name, "failed", compared, outcome.detail, outcome.difference)
        else:
            compared += 1
    if not compared:
        return Finding(name, "skipped", 0, f"the template takes none of these dialogues: {reason}")
    detail = "ids are those of the whole rendering"
    return Finding(name, "ok", compared, detail + (f"; {refused} left out: {reason}" if refused else ""))


def _one(encoder: TokenEncoder, dialogue: Dialogue) -> Finding | str | None:
    """None where a dialogue is exact, a finding where not, and a text where the template refuses it."""
    template = encoder.template
    conversation: list[dict[str, Any]] = list(dialogue.messages)
    try:
        text = template.render(conversation, tools=dialogue.tools)
        trajectory = encoder.start(dialogue.given or conversation, tools=dialogue.tools)
    except UnsupportedTemplate as error:
        return str(error)
    difference = compare(encoder, encoder.encode_text(text), trajectory.prompt_ids)
    if difference is not None:
        if _spelled(encoder, [*conversation, *dialogue.tools]):
            return "a text of its prompt spells a control token, which stays text"
        return Finding("", "failed", 0, "the prompt's ids are not the rendering's", difference)
    for said, results in dialogue.turns:
        messages = tuple(
            Message(result["role"], result["content"], name=result.get("name"), tool_call_id=result.get("tool_call_id"))
            for result in results
        )
        outcome: tuple[list[dict[str, Any]], str, str] | str = "no form of the assistant's message is taken"
        for form in _forms(said):
            longer = [*conversation, form, *results]
            try:
                after = template.render(longer, tools=dialogue.tools)
            except UnsupportedTemplate as error:
                outcome = str(error) if isinstance(outcome, str) else outcome
                continue
            wanted = [_sign(call["function"]) for call in said["tool_calls"]]
            if all(part in after for part in wanted):
                outcome = (longer, after, wanted[-1] if wanted else "")
                break
        if isinstance(outcome, str):
            return outcome
        conversation, after, last = outcome
        place = after.find(encoder.stop, len(text) if after.startswith(text) else after.rindex(last))
        if place < 0:
            return "no stop mark behind the calls"
        stop = place + len(encoder.stop)
        whole = encoder.encode_text(after)
        head = encoder.encode_text(after[:stop])
        observed = encoder.encode_messages(messages).tolist()
        difference = compare(encoder, whole, [*head, *observed])
        if difference is not None:
            return Finding("", "failed", 0, "the observation's ids are not the rendering's", difference)
        if not after.startswith(text):
            return None  # rewritten history: a new row starts here, and the observation alone is compared
        begin = len(trajectory.context_ids)
        sampled = whole[begin : whole.index(encoder.stop_id, begin) + 1]
        if whole[:begin] != trajectory.context_ids:
            return Finding("", "failed", 0, "the context's ids are not the rendering's",
                           compare(encoder, whole[:begin], trajectory.context_ids))  # fmt: skip
        spoken = trajectory.add_sampled(sampled, [-0.5] * len(sampled))
        if len(head) == begin + len(sampled) and _composed(spoken + encoder.stop) != _composed(after[len(text) : stop]):
            return Finding("", "failed", 0, f"the text of the sampled turn differs: {spoken[:80]!r}")
        if trajectory.difference(Observation(messages)):
            return None
        trajectory.add_observation(Observation(messages))
        difference = compare(encoder, whole, trajectory.context_ids)
        if difference is not None:
            return Finding("", "failed", 0, "the trajectory's ids are not the rendering's", difference)
        mask, spans = trajectory.mask, trajectory.turn_spans
        if not len(mask) == len(trajectory.response_ids) == len(trajectory.logprobs):
            return Finding("", "failed", 0, "mask, ids and log-probabilities differ in length")
        if sum(mask) != sum(end - start for start, end in spans):
            return Finding("", "failed", 0, "the mask covers more or less than the sampled turns")
        text = after
    return None


def _hostile(encoder: TokenEncoder) -> Finding:
    """No content becomes a control token, and its text comes back as it was."""
    control = set(encoder.vocabulary.added.values())
    clean = encoder.encode_messages((Message("tool", "CONTENT", name="look", tool_call_id="call00000"),)).tolist()
    wanted = [number for number in clean if number in control]
    shown = encoder.decode(clean)
    tokens = [token for token in encoder.vocabulary.added if token.strip()]
    blank = {number for token, number in encoder.vocabulary.added.items() if not token.strip()}
    cases = 0
    for content in hostile(tokens):
        ids = encoder.encode_messages((Message("tool", content, name="look", tool_call_id="call00000"),)).tolist()
        found = [number for number in ids if number in control and number not in blank]
        if found != [number for number in wanted if number not in blank]:
            return Finding("hostile results", "failed", cases, f"the result {content[:60]!r} makes control tokens",
                           compare(encoder, wanted, found))  # fmt: skip
        text = encoder.decode(ids)
        if content.strip() not in text and json.dumps(content.strip(), ensure_ascii=False)[1:-1] not in text:
            return Finding(
                "hostile results", "failed", cases, f"the result {content[:60]!r} does not come back as text"
            )
        cases += 1
    return Finding("hostile results", "ok", cases, f"0 extra control tokens in {shown.count('CONTENT')} place")


def _spelled(encoder: TokenEncoder, value: Any) -> bool:
    """Whether a text in a JSON-like value spells an added token."""
    if isinstance(value, str):
        return len(encoder.vocabulary.split(value)) > 1
    if isinstance(value, Mapping):
        return any(_spelled(encoder, key) or _spelled(encoder, item) for key, item in value.items())
    return isinstance(value, (list, tuple)) and any(_spelled(encoder, item) for item in value)


def _hostile_prompts(encoder: TokenEncoder) -> Finding:
    """No message and no tool's schema becomes a control token of the prompt."""
    name = "hostile prompts"

    def controls(system: str, user: str, tool: str, about: str) -> list[int]:
        properties = {about: {"type": "string", "description": about, "enum": [about]}}
        schema = {"name": tool, "description": about, "parameters": {"type": "object", "properties": properties}}
        ids = encoder.encode_prompt(
            [Message("system", system), Message("user", user)], tools=[{"type": "function", "function": schema}]
        )
        return [number for number in ids if number in encoder.vocabulary.control_ids]

    try:
        wanted = controls("S", "U", "look", "x")
    except UnsupportedTemplate as error:
        return Finding(name, "skipped", 0, str(error))
    cases = 0
    for text in hostile([token for token in encoder.vocabulary.added if token.strip()]):
        for texts in ((text, "U", "look", "x"), ("S", text, "look", "x"), ("S", "U", text, text)):
            found = controls(*texts)
            if found != wanted:
                return Finding(name, "failed", cases, f"the text {text[:60]!r} makes control tokens",
                               compare(encoder, wanted, found))  # fmt: skip
            cases += 1
    return Finding(name, "ok", cases, "0 extra control tokens in messages and schemas")


def _closing(encoder: TokenEncoder) -> Finding:
    """A turn that stopped by its length is closed with mask 0, and reads on as one that was stopped."""
    try:
        cut, whole = (encoder.start([Message("user", "Q")]) for _ in range(2))
    except UnsupportedTemplate:  # some templates take no conversation without tools
        cut, whole = (encoder.start([Message("user", "Q")], tools=TOOLS) for _ in range(2))
    ids = encoder.encode_content("a turn without an end")
    cut.add_sampled(ids)
    whole.add_sampled([*ids, encoder.stop_id])
    role: Literal["tool", "user"] = "tool"
    observation = Observation((Message(role, "R", name="look", tool_call_id="call00000"),))
    try:
        cut.add_observation(observation)
        whole.add_observation(observation)
    except UnsupportedTemplate as error:
        return Finding("turns cut by length", "split", 1, str(error))
    difference = compare(encoder, whole.context_ids, cut.context_ids)
    if difference is not None or sum(cut.mask) != len(ids):
        return Finding("turns cut by length", "failed", 1, "a closed turn differs from a stopped one", difference)
    return Finding("turns cut by length", "ok", 1, "closed with mask 0")
