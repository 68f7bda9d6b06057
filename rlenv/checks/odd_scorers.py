"""Warnings of what scores and who helps: judges, tests, groups, gold queries, code and agents, beside the prompt."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from rlenv._base.text import strings_in
from rlenv.checks.odd_rows import asked_of
from rlenv.checks.subject import PATTERNS, Subject
from rlenv.errors import Finding
from rlenv.language.kinds import kind_of
from rlenv.language.spec import RewardSpec
from rlenv.language.templates import TemplateError, compile_template, compile_value


def check_scorers(subject: Subject) -> Iterator[Finding]:
    """Warnings of judges that are not told enough or have another scale in each place, and of hidden tests."""
    for name, reward in subject.loaded.spec.rewards.items():
        if reward.kind == "judge":
            yield from _scale(subject, f"rewards.{name}", reward)
            yield from _blind(subject, f"rewards.{name}", reward)
        if reward.kind == "tests":
            yield from _tests(subject, f"rewards.{name}", reward)


def _scale(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Ends of a scale that rubric, prompt or schema say otherwise than `scale`, and a score under another name."""
    document, prompt = subject.document, str(getattr(spec, "prompt", ""))
    low, high = scale = getattr(spec, "scale", (1.0, 5.0))
    key, rubric = getattr(spec, "key", "score"), [text for _, text in strings_in(document.get(f"{path}.rubric"), ())]
    steps = [float(step) for text in rubric for step in PATTERNS.step.findall(text)]
    spans = [(float(a), float(b)) for a, b in PATTERNS.from_to.findall(f"{prompt} {' '.join(rubric)}")]
    is_pair = getattr(spec, "pairwise", None) is not None
    found = (PATTERNS.from_to if is_pair else PATTERNS.yes_or_no).search(prompt)
    if found is not None and (is_pair or not spans) and getattr(spec, "schema_", None) is None:
        yield subject.say("other-scale/form", f"{path}.prompt", found[0])
        return
    value = (getattr(spec, "schema_", None) or {}).get("properties", {}).get(key, {})
    told = [
        ("rubric", (min(steps), max(steps)) if len(steps) > 1 else scale),
        ("prompt", spans[-1] if spans and (low, high) not in spans else scale),
        ("schema", (value.get("minimum", low), value.get("maximum", high)) if isinstance(value, Mapping) else scale),
    ]
    for part, ends in told:
        if ends != (low, high):
            place = f"{path}.{part}" if document.has(f"{path}.{part}") else path
            yield subject.say("other-scale/ends", place, part, *ends, low, high, at="key")
    ends = [text for text in rubric for step in PATTERNS.step.findall(text)[:1] if float(step) in (low, high)]
    worst = [text for text in ends
             if (float(PATTERNS.step.findall(text)[0]) == low) == bool(PATTERNS.fine.search(text))]  # fmt: skip
    is_fine = any(map(PATTERNS.fine.search, ends)) and not any(map(PATTERNS.bad.search, ends))
    if len(ends) > 1 and len(worst) == len(ends) and is_fine:
        yield subject.say("other-scale/upside-down", f"{path}.rubric", worst[0][:60], at="key")
    endpoints = {getattr(spec, "endpoint", None), *(one.endpoint for one in getattr(spec, "judges", ()))}
    for name in sorted(endpoints & {*subject.loaded.spec.endpoints}):
        most = subject.loaded.spec.endpoints[name].sampling.max_tokens
        if most is not None and most < 40 and getattr(spec.sampling, "max_tokens", None) is None:  # type: ignore[attr-defined]
            yield subject.say("odd-sampling/verdict", f"endpoints.{name}.sampling.max_tokens", most)
    keys = re.findall(r"[\"'](\w+)[\"']\s*:(?!\s*[\"']?\s*\{[{%])", prompt)  # and not of material
    if keys and key not in keys:
        yield subject.say("other-scale/key", f"{path}.prompt", keys[-1], key)


def _blind(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Judges that are not told what was asked or what is right, or that compare with what was asked."""
    document, prompt = subject.document, str(getattr(spec, "prompt", ""))
    rewards, other = subject.loaded.spec.rewards, getattr(getattr(spec, "pairwise", None), "with_", None)
    bare = re.sub(r"\{\{.*?\}\}", " ", prompt)
    asks_truth = PATTERNS.truth.search(bare) is not None
    is_blind = not re.search(r"\b(?:task|transcript|resources|vars)\b", f"{prompt} {other or ''}")
    if is_blind and (not getattr(spec, "rubric", None) or (document.has(f"{path}.prompt") and asks_truth)):
        yield subject.say("blind-judge/of-task", f"{path}.prompt")
    gold = {name for step in subject.loaded.spec.steps for name in re.findall(r"task\.(\w+)", str(step.say or ""))}
    shown = set(re.findall(r"\btask\.(\w+)", f"{prompt} {other or ''}"))
    paid = [one for one in rewards.values() if one.usual_weight > 0]
    is_alone = all(one.kind == "judge" or kind_of("rewards", one).form == "all" for one in paid)
    # What is long, such as a summary, may be held against what it is made of.
    gold = {name for name in gold if all(len(str(row.get(name))) <= 60 for _, row in subject.each())}
    if asks_truth and is_alone and shown and gold and not gold & shown:
        yield subject.say("blind-judge/of-gold", f"{path}.prompt", min(gold))
    asked = {one[1] for one in compile_template(subject.loaded.spec.prompt.user).paths if one[0] == "task" and one[1:]}
    for column in PATTERNS.reference.findall(f"{prompt} {document.get(f'{path}.rubric') or ''}"):
        if column in asked:
            yield subject.say("odd-pair/question-as-gold", f"{path}.prompt", column)
    if isinstance(other, str):
        read = {one[1] for one in compile_template(other).paths if one[0] == "task" and one[1:]}
        if read <= asked:
            what = "what the prompt asks" if read else "the same text for every task"
            yield subject.say("odd-pair/pairwise", f"{path}.pairwise.with", what)


def _tests(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Hidden tests that no row has, that are those of another task, or that nothing fails."""
    prompt = subject.loaded.spec.prompt
    key = next((one for one in ("calls", "stdin", "programs") if getattr(spec, one, None) is not None), "calls")
    given = getattr(spec, key, None)
    rows, fill = list(subject.each(1_000)), compile_value(given)
    if not PATTERNS.reads_task.search(str(given)) and len(rows) > 1 and PATTERNS.reads_task.search(prompt.user):
        yield subject.say("constant-gold/tests", f"{path}.{key}")
    programs, shown = list[str](), list[bool]()
    texts = [text for one in asked_of(subject) for text in one.texts[:1_000]]
    for (where, row), text in itertools.zip_longest(rows, texts if len(texts) == len(rows) else ()):
        try:
            filled = fill(task=row, vars=subject.loaded.spec.vars)
        except (TemplateError, TypeError):
            return
        if not filled or filled in ("[]", "{}"):
            yield subject.say("empty-gold/tests", f"{path}.{key}", where)
            break
        programs += map(str, filled) if key == "programs" and isinstance(filled, list) else ()
        lines = PATTERNS.asserts.findall("\n".join(text for _, text in strings_in(filled, ())))
        shown.append(bool(lines) and all(line in (text or "") for line in lines))
    if shown and all(shown):
        yield subject.say("gold-in-prompt/tests", "prompt", at="key")
    if programs and not any(PATTERNS.fails.search(one) for one in programs):
        yield subject.say("any-answer/no-assert", f"{path}.programs")
    entry = compile_template(getattr(spec, "entry", None) or "")
    for one in asked_of(subject) if entry.source and not subject.tools else ():
        for index, text in enumerate(one.texts):
            filled = entry.text(task=one.split.rows[index], vars=subject.loaded.spec.vars)
            name = re.split(r"\W+", filled.rstrip("() "))[-1]
            if not re.search(rf"\b{re.escape(name)}\b", text):
                yield subject.say("untold-name/entry", f"{path}.entry", name, index + 1, one.split.name)
                return
