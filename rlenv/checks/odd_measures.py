"""Warnings of terms that run or ask something (judges, `verify`, hidden tests), and of those of an extended spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rlenv._base.text import strings_in
from rlenv.checks.subject import Subject
from rlenv.errors import Finding
from rlenv.language.kinds import is_own, kind_of
from rlenv.language.spec import RewardSpec
from rlenv.language.templates import TemplateError, compile_template, compile_value


def check_measures(subject: Subject) -> Iterator[Finding]:
    """Warnings of the terms that run or ask something: judges, `verify` and `tests`."""
    for name, spec in subject.loaded.spec.rewards.items():
        path = f"rewards.{name}"
        yield from _unread(subject, path, spec)
        yield from _signs(subject, path, spec)
        if spec.kind == "judge":
            yield from _range_of_judge(subject, path, spec)
            yield from _scale_of_judge(subject, path, spec)
        if spec.kind == "tests":
            yield from _tests(subject, path, spec)
    yield from _judges(subject)
    yield from _panels(subject)


_PENALTY = re.compile(r"(?i)penal|malus|too_(?!few)|banned|forbidden|toxic|wasted?_")
_SHORT = re.compile(r"(?i)terse|short|brief|concis|succinct|frugal|quick|fast|few|cheap|small|sparing|economy|effici")
_NOT = r"(?i)(?<!no )(?<!not )(?<!nothing )(?<!without )(?<!never )(?<!any )\b"
_BAD = re.compile(
    rf"{_NOT}(?:bad|poor|terrible|awful|wrong|useless|incorrect|unreadable|worst|rude|fails?|off topic"
    r"|no \w+ at all|not at all|hardly)\b"
)
_GOOD = re.compile(rf"{_NOT}(?:good|excellent|perfect|great|best|flawless|outstanding|fully correct)\b")
_VERDICT = re.compile(
    r"(?i)\b(?:yes or no|true or false|yes/no|pass or fail|pass/fail|good or bad|a letter grade)\b"
    r"|\b(?:reply|answer|respond) (?:only )?with (?:only |just )?(?:a|the|one) (?:single )?(?:number|digit|letter)\b"
)
_LOWER = re.compile(
    r"(?i)\b(?:lower(?: scores?)? (?:is|are|means?) better"
    r"|(?:0|1|one|zero) (?:(?:is|being|=|means) (?:the )?|\()best)\b"
)
_REFERENCE = re.compile(
    r"(?i)(?:right|correct|gold|reference|expected|true)(?: one| answer| solution| reply)?(?: is| was|:| =)\s*[\"']?"
    r"\{\{-?\s*task\.(\w+)"
)
_TRUTH = re.compile(
    r"(?i)\b(?:(?:is|are|was|be|answer(?:ed)?) \w{0,8} ?(?:right(?!ly? formatted)|correct)(?:ly)?\b|accurate)"
)
_FAILS = re.compile(r"\bassert|\braise\b|\bexit\(|\bunittest\b|\bpytest\b|\bcheck\w*\(|\bimport\b")
_WRITTEN = re.compile(r"\b(?:answer|message|transcript|first|second|state|resources)\b")


def _signs(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Terms whose sign, floor or rank pays for the contrary of what they are there for."""
    warn, rewards = subject.document.warning, subject.loaded.spec.rewards
    of = rewards.get(getattr(spec, "of", "")) if spec.kind == "group" else spec
    counts = of is not None and getattr(of, "rule", "") in ("turn_count", "tool_call_count", "length")
    most, least = getattr(of, "max", None), getattr(of, "min", None)
    if counts and spec.usual_weight < 0 and most is not None and not least:
        message = f"a weight of {spec.usual_weight:g} takes away from what stays within 'max'"
        yield warn(f"{path}.weight", message, f"write min: {most + 1} in its place, or a weight above 0", "wrong-sign")
    name = path.rpartition(".")[2]
    if spec.usual_weight > 0 and spec.kind == "rule" and not is_own(spec) and _PENALTY.search(name):
        message = f"'{name}' adds {spec.usual_weight:g} where it holds"
        yield warn(path, message, "write a weight below 0", "wrong-sign", at="key")
    if spec.clip is not None and spec.usual_weight > 0 and 0 < spec.clip[0] < 1 and kind_of("rewards", spec).gold:
        message = f"what is wrong earns {spec.clip[0]:g} too"
        yield warn(f"{path}.clip", message, f"write clip: [0, {spec.clip[1]:g}]", "paid-for-nothing")
    size = re.compile(r"(?i)\b(?:n_)?(?:words|length|chars|characters|tokens|size|turns|steps|calls|cost)\b")
    measures = counts or size.search(f"{getattr(spec, 'of', '')} {getattr(of, 'function', '')}".replace(":", " "))
    if spec.kind == "group" and spec.usual_weight > 0 and spec.gate is not None and measures and _SHORT.search(name):
        message = f"'{name}' pays who has most of '{getattr(spec, 'of', '')}': a higher value is the better one"
        yield warn(path, message, "let the function give the number below 0", "wrong-sign", at="key")
    if spec.kind == "group" and counts and spec.usual_weight > 0 and spec.gate is None and least and most is None:
        message = "who is longer than the others of the group earns more, be it right or wrong"
        yield warn(path, message, "add a gate: correct >= 1", "paid-for-length", at="key")


def _unread(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """A judge, a call or hidden tests that are shown nothing of what the policy wrote, whatever that is."""
    key = {"judge": "prompt", "verify": "arguments", "tests": "code"}.get(spec.kind)
    if key is None or (spec.kind == "verify" and not _is_fixed(subject, getattr(spec, "tool", ""))):
        return
    texts = [getattr(spec, key), *(getattr(one, "prompt", None) for one in getattr(spec, "judges", ()))]
    if any(_WRITTEN.search(filled) for text in texts if text for filled in _filled_in(text)):
        return
    name = "{{ message }}" if spec.kind == "judge" else "{{ answer }}"
    message = "it reads nothing that the policy writes: each answer to a task earns the same"
    yield subject.document.warning(f"{path}.{key}", message, f"write {name} where the answer goes", "unread-answer")


def _is_fixed(subject: Subject, name: str) -> bool:
    """True for a tool whose results no episode changes: it reads a database that nobody writes, or nothing at all."""
    tool = subject.tools.get(name)
    return tool is not None and tool.kind in ("sql", "calculator", "search", "code", "command") and not tool.mutates


def _filled_in(value: Any) -> Iterator[str]:
    for _, text in strings_in(value, ()):
        yield from re.findall(r"\{[{%].*?[}%]\}", text, re.DOTALL)


def _scale_of_judge(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Numbers of a rubric or a schema that are not those of the scale, and what a server cannot do with a judge."""
    document, (low, high) = subject.document, getattr(spec, "scale", (1.0, 5.0))
    rubric = document.get(f"{path}.rubric")
    lines = [text for _, text in strings_in(rubric, ())] if rubric else []
    told = [float(found[1]) for text in lines for line in text.splitlines()
            if (found := re.match(r"\W*(-?\d+(?:\.\d+)?)\s*[:=.)–-]", line))]  # fmt: skip
    if len(told) > 1 and (max(told) != high or min(told) != low):
        message = f"the rubric goes from {min(told):g} to {max(told):g}, and the scale from {low:g} to {high:g}"
        yield document.warning(f"{path}.rubric", message, "describe both ends of the scale", "other-scale")
    steps = [re.match(r"\W*(-?\d+(?:\.\d+)?)\s*[:=)–-]+(.*)", line) for text in lines for line in text.splitlines()]
    ends = sorted((float(one[1]), one[2].strip()) for one in steps if one is not None)
    worst, best = (ends[0][1], ends[-1][1]) if len(ends) > 1 else ("", "")
    if (_BAD.search(best) and not _GOOD.search(best)) or (_GOOD.search(worst) and not _BAD.search(worst)):
        message = f"the rubric calls {ends[-1][0]:g} '{best[:40]}', and the highest score earns most"
        yield document.warning(f"{path}.rubric", message, "turn the rubric around", "other-scale")
    said = f"{getattr(spec, 'prompt', '')} {' '.join(lines)}"
    if (lower := _LOWER.search(said)) is not None:
        message = f"the judge is told '{lower[0]}', and the highest score earns most"
        yield document.warning(f"{path}.prompt", message, "let the highest score be the best", "other-scale")
    shown = {one[1] for one in compile_template(subject.loaded.spec.prompt.user).paths if one[0] == "task" and one[1:]}
    for column in _REFERENCE.findall(said):
        if column in shown:
            message = f"the judge is told that task.{column} is right, which is what the prompt asks"
            yield document.warning(f"{path}.prompt", message, "name the column of the right answer", "odd-pair")
    key = getattr(spec, "key", "score")
    keys = re.findall(r"[\"'](\w+)[\"']\s*:", str(getattr(spec, "prompt", "")))
    if keys and key not in keys:
        message = f"the judge is told to write '{keys[-1]}', and the score is read from '{key}'"
        yield document.warning(f"{path}.prompt", message, f"write {key}, or key: {keys[-1]}", "other-scale")
    schema = getattr(spec, "schema_", None) or {}
    of_value = schema.get("properties", {}).get(getattr(spec, "key", "score"), {})
    limits = (
        (of_value.get("minimum", low), of_value.get("maximum", high)) if isinstance(of_value, Mapping) else (low, high)
    )
    if limits != (low, high):
        message = f"the schema asks for {limits[0]:g} to {limits[1]:g}, and the scale is {low:g} to {high:g}"
        yield document.warning(f"{path}.schema", message, "write the same ends in both", "other-scale")
    pairwise = getattr(spec, "pairwise", None)
    other = getattr(pairwise, "with_", None)
    if isinstance(other, str):
        read = {one[:2] for one in compile_template(other).paths if one[0] == "task"}
        asked = {one[:2] for one in compile_template(subject.loaded.spec.prompt.user).paths if one[0] == "task"}
        if not read or read <= asked:
            what = "what the prompt asks" if read else "the same text for every task"
            yield document.warning(f"{path}.pairwise.with", f"the answer is compared with {what}",
                                   "name the column of a good answer", "odd-pair")  # fmt: skip


def _tests(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Hidden tests that no row has, that are those of another task, or that ask for what the oracle does not write."""
    document = subject.document
    key = next((one for one in ("calls", "stdin", "programs") if getattr(spec, one, None) is not None), "calls")
    given = getattr(spec, key, None)
    rows = [(split, index, row) for split in subject.splits.values() for index, row in enumerate(split.rows[:1_000])]
    fixed = not any("task" in text for text in _filled_in(given))
    if fixed and len(rows) > 1 and any("task" in text for text in _filled_in(subject.loaded.spec.prompt.user)):
        yield document.warning(f"{path}.{key}", "every task has the same tests, and the prompt asks each for another "
                               "thing", "name a column: {{ task.tests }}", "constant-gold")  # fmt: skip
    counts: list[int] = []
    lists: list[list[Any]] = []
    for split, index, row in rows:
        try:
            filled = compile_value(given)(task=row, vars=subject.loaded.spec.vars)
        except (TemplateError, TypeError):
            return
        if isinstance(filled, list):
            counts.append(len(filled))
            lists.append(filled)
            if len(filled) > 1 and all(test == filled[0] for test in filled):
                message = f"the tests of row {index + 1} of split '{split.name}' are all the same"
                yield document.warning(f"{path}.{key}", message, "write different ones", "constant-gold")
                break
        if not filled or filled in ("[]", "{}"):
            message = f"row {index + 1} of split '{split.name}' has no tests"
            yield document.warning(f"{path}.{key}", message, "fill the column, or drop such rows", "empty-gold")
            break
    programs = [str(one) for row in lists for one in row] if key == "programs" else []
    if programs and not any(_FAILS.search(one) for one in programs):
        message = "no program can fail: none has an assert, a raise or an exit"
        yield document.warning(f"{path}.programs", message, "write assert f(1) == 2", "any-answer")
    if key != "programs" and counts and max(counts) == 1:
        message = "each task has one hidden test: code that gives its one value passes"
        yield document.warning(f"{path}.{key}", message, "write several, of different values", "constant-gold")
    prompt = f"{subject.loaded.spec.prompt.system} {subject.loaded.spec.prompt.user}"
    other = re.search(r"\b(?:JavaScript|TypeScript|Java|C\+\+|C#|Rust|Golang|Ruby|PHP|Haskell)(?!\w)", prompt)
    if other is not None and "python" not in prompt.lower():
        message = f"the prompt asks for {other[0]}, and the tests run Python"
        yield document.warning(path, message, "ask for Python", "other-rule", at="key")


def _range_of_judge(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    prompt, document = str(getattr(spec, "prompt", "")), subject.document
    if spec.range is not None and (spec.range[1] > 1 or spec.range[0] < 0):
        message = f"a judge gives 0 to 1 (the score's place on its scale), and not {list(spec.range)}"
        yield document.warning(f"{path}.range", message, "take 'range' out, and write scale", "odd-range")
    if (other := _VERDICT.search(prompt)) is not None and getattr(spec, "schema_", None) is None:
        message = f"the judge is told '{other[0]}', and a JSON object with a score is read"
        yield document.warning(f"{path}.prompt", message, "write scale: [0, 1], and ask for a score", "other-scale")
    if "percent" in prompt and getattr(spec, "scale", (0, 100))[1] != 100:
        message = f"the judge is told to give a percentage, and the scale ends at {getattr(spec, 'scale', (0, 0))[1]:g}"
        yield document.warning(f"{path}.prompt", message, "write scale: [0, 100]", "other-scale")
    if getattr(spec, "quorum", None) == 1 and len(getattr(spec, "judges", ())) > 2:
        message = "one judge decides where the others fail"
        yield document.warning(f"{path}.quorum", message, "write 2 at least", "same-judge")


def _judges(subject: Subject) -> Iterator[Finding]:
    document = subject.document
    for name, spec in subject.loaded.spec.rewards.items():
        if spec.kind != "judge":
            continue
        path, prompt = f"rewards.{name}", str(getattr(spec, "prompt", ""))
        other = getattr(getattr(spec, "pairwise", None), "with_", None) or ""
        is_blind = not re.search(r"\b(?:task|transcript|resources|vars)\b", prompt + other)
        of_truth = document.has(f"{path}.prompt") and _TRUTH.search(prompt)
        if is_blind and "transcript" not in prompt and (of_truth or not getattr(spec, "rubric", None)):
            message = "the judge is told neither what was asked nor what is right"
            yield document.warning(f"{path}.prompt", message, "add {{ task.question }}", "blind-judge")
        gold = {
            column for step in subject.loaded.spec.steps for column in re.findall(r"task\.(\w+)", str(step.say or ""))
        }
        shown = set(re.findall(r"\btask\.(\w+)", f"{prompt} {other}"))
        asks = re.search(r"(?i)\b(?:right|correct|accurate|true)\b", re.sub(r"\{\{.*?\}\}", " ", prompt))
        paid = [one for one in subject.loaded.spec.rewards.values() if one.usual_weight > 0]
        alone = all(one.kind == "judge" or kind_of("rewards", one).form == "all" for one in paid)
        if asks and alone and shown and gold and not gold & shown:
            message = (
                f"the judge is to say what is right, and is not told task.{sorted(gold)[0]}, which the oracle gives"
            )
            yield document.warning(f"{path}.prompt", message, f"add {{{{ task.{sorted(gold)[0]} }}}}", "blind-judge")
        rubric = document.get(f"{path}.rubric")
        members = [(member.endpoint, member.prompt) for member in getattr(spec, "judges", ())]
        twice = next((one[0] for one in members if members.count(one) > 1), None)
        if len(members) > 1 and getattr(spec, "combine", "") == "max":
            message = "the most lenient judge decides: one that is fooled is enough"
            yield document.warning(f"{path}.combine", message, "write median or min", "same-judge")
        if twice is not None and getattr(spec, "cache", False):
            message = f"the judge '{twice}' is asked twice"
            yield document.warning(f"{path}.judges", message, "name each once, with a weight", "same-judge")
        low, high = getattr(spec, "scale", (1.0, 5.0))
        told = re.findall(
            r"(?i)(?:from|between|scores?|rate|grade|scale of|\()\s*(\d+)\s*(?:to|and|-|–|\.\.\.?|…)\s*(\d+)",
            f"{prompt} {rubric or ''}",
        )
        if told and (float(told[-1][0]), float(told[-1][1])) != (low, high):
            message = (
                f"the judge is told to score from {told[-1][0]} to {told[-1][1]}, and the scale is {low:g} to {high:g}"
            )
            yield document.warning(
                path, message, f"write scale: [{told[-1][0]}, {told[-1][1]}]", "other-scale", at="key"
            )


def _panels(subject: Subject) -> Iterator[Finding]:
    """Panels of one model under several names, or of too few judges; a time that none answers in."""
    spec, warn = subject.loaded.spec, subject.document.warning
    for name, reward in spec.rewards.items():
        judges = [one for one in getattr(reward, "judges", ()) if one.endpoint in spec.endpoints]
        least = {"trimmed": 3, "majority": 3, "median": 3}.get(getattr(reward, "combine", ""), 1)
        if judges and len(judges) < least:
            message = f"'{reward.combine}' of {len(judges)} judges says nothing of its own"  # type: ignore[attr-defined]
            yield warn(f"rewards.{name}.combine", message, f"ask {least} judges, or write mean", "same-judge")
        if kind_of("rewards", reward).asks_models and subject.limits.reward_s < 3:
            message = f"a judge seldom answers within {subject.limits.reward_s:g} s"
            yield warn("limits.reward_s", message, "write 30 or more", "limits")
