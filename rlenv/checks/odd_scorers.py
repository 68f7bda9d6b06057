"""Warnings of what scores and who helps: judges, tests, groups, gold queries, code and agents, beside the prompt."""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlenv._base.text import strings_in
from rlenv.checks.odd_golds import check_relations, number_of
from rlenv.checks.odd_rows import asked_of
from rlenv.checks.subject import PATTERNS, Subject, demands, fixed_text, gold_answer, gold_term, prompt_texts
from rlenv.errors import Finding
from rlenv.language.expressions import compile_expression, open_on
from rlenv.language.kinds import gold_in, kind_of
from rlenv.language.spec import RewardSpec, ToolSpec
from rlenv.language.templates import TemplateError, compile_template, compile_value
from rlenv.rewards.base import Term
from rlenv.rewards.rows import orders_rows
from rlenv.runs.summary import value_of
from rlenv.tools.arguments import ArgumentCheck
from rlenv.trajectory import Trajectory

_TWO_VALUED: Final = frozenset("exact_match numeric_match math_equal contains regex json_schema answered".split())


def check_scorers(subject: Subject) -> Iterator[Finding]:
    """Warnings of terms and helpers that the prompt, the rows or their own entries speak against."""
    spec, fixed = subject.loaded.spec, fixed_text(subject)
    for name, reward in spec.rewards.items():
        path = f"rewards.{name}"
        if reward.kind == "judge":
            yield from _check_scale(subject, path, reward)
            yield from _check_blind(subject, path, reward)
        if reward.kind == "tests":
            yield from _check_tests(subject, path, reward)
            yield from _check_asked_code(subject, path, reward)
        if reward.kind == "group" and getattr(reward, "of", None) in spec.rewards:
            yield from _check_pinned(subject, path, reward)
        if reward.kind == "workspace":
            yield from _check_status(subject, path, reward) if getattr(reward, "by", "") == "status" else ()
            yield from _check_scripts(subject, path, reward)
    for term in subject.terms:
        if hasattr(compare := getattr(term.spec, "compare", None), "order") or compare == "rows":
            yield from _check_queries(subject, term, order=getattr(compare, "order", ""))
        found = re.fullmatch(r"\s*\{\{\s*task\.(\w+)\s*\}\}\s*", str(gold_in(term.spec)))
        is_all = getattr(term.spec, "mode", "") == "all" and not re.search(r"(?i)\b(?:all|each|every)\b", fixed)
        if is_all and found is not None and PATTERNS.aliases.fullmatch(found[1]):
            yield subject.say("odd-gold/all-aliases", f"rewards.{term.name}.mode", found[1])
    for name, entry in spec.tools.items():
        yield from _check_helpers(subject, f"tools.{name}", entry)
    yield from check_relations(subject)
    yield from _check_signs(subject)
    yield from _check_shown_forms(subject)
    yield from _check_shown_calls(subject)
    for place, text in prompt_texts(spec.prompt):
        for column in PATTERNS.asked_if.findall(text):
            values = {str(row[column]).lower() for _, row in subject.each() if isinstance(row.get(column), str)}
            if "false" in values and values <= {"true", "false", ""}:
                yield subject.say("odd-column/truth", place, column)


def _check_signs(subject: Subject) -> Iterator[Finding]:
    """Terms whose sign or name says another thing than what they measure."""
    spec, fixed = subject.loaded.spec, fixed_text(subject)
    for name, reward in spec.rewards.items():
        path, weight, rule = f"rewards.{name}", reward.usual_weight, getattr(reward, "rule", "")
        value, words = str(getattr(reward, "value", "")), name.replace("_", " ")
        measured = spec.rewards.get(getattr(reward, "of", "") if reward.kind == "group" else name)
        is_size = PATTERNS.size.fullmatch(str(getattr(measured, "value", "")))
        if weight > 0 and is_size and (PATTERNS.brief.search(words) or PATTERNS.be_brief.search(fixed)):
            yield subject.say("paid-for-length/size", path, at="key")
        is_over = rule == "length" and PATTERNS.over.search(words) and getattr(reward, "max", None) is None
        if weight > 0 and is_over:
            yield subject.say("wrong-sign/of-name", path, name, at="key")
        is_unbounded = rule == "value" and reward.clip is None and PATTERNS.of_answer.search(value)
        if weight < 0 and is_unbounded and not PATTERNS.bounded.search(value):
            yield subject.say("paid-for-silence/no-clip", path, at="key")


def _check_pinned(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """A group that compares a term of two values behind a gate that only one of them opens."""
    of = getattr(spec, "of", "")
    gate = compile_expression(spec.gate or "1 > 0", names=subject.loaded.spec.rewards, by_row=True)
    is_plain = getattr(subject.loaded.spec.rewards[of], "rule", "") in _TWO_VALUED and not gate.columns
    opened = [value for value in (0.0, 1.0) if is_plain and [*gate.names] == [of] and gate({of: value})]
    if len(opened) == 1:
        yield subject.say("constant-term/pinned", f"{path}.gate", spec.gate, of, opened[0])


def _check_queries(subject: Subject, term: Term, *, order: str) -> Iterator[Finding]:
    """Gold queries that take some rows of many by chance, or that sort as the prompt asks where no order counts."""
    found = next((match for one in demands(subject) if (match := PATTERNS.in_order.search(one))), None)
    for split in subject.splits.values():
        golds = [gold_answer(subject, term, split, index) or "" for index in range(min(len(split.rows), 200))]
        users = next((one.users for one in asked_of(subject) if one.split is split), ())
        ways = [match[0] for text in users[:200] if (match := PATTERNS.asks_order.search(text))]
        said = found[1] if found is not None else ways[0] if 2 * len(ways) > len(golds) else ""
        if said and order == "never" and golds and all(map(orders_rows, golds)):
            yield subject.say("other-rule/unordered", f"rewards.{term.name}.compare", said, at="key")
            return
        if order == "always" and golds and not any(map(orders_rows, golds)):
            yield subject.say("odd-gold/no-order", f"rewards.{term.name}.compare", at="key")
            return
        tops = [(index + 1, split.name, *PATTERNS.top.findall(text), *PATTERNS.limit.findall(gold))
                for index, (text, gold) in enumerate(zip(users, golds, strict=False))]  # fmt: skip
        tops = [one for one in tops if len(one) == 4 and number_of(str(one[2])) != int(one[3])]
        if tops and 2 * len(tops) <= len(golds):
            yield subject.say("odd-gold/other-limit", f"rewards.{term.name}", *tops[0], at="key")
            return
        for index, gold in enumerate(golds):
            if (some := PATTERNS.some_rows.search(gold)) is not None and not PATTERNS.certain_rows.search(gold):
                place = f"rewards.{term.name}"
                yield subject.say("odd-gold/some-rows", place, index + 1, split.name, some[0], at="key")
                return


def _check_status(subject: Subject, path: str, spec: Any) -> Iterator[Finding]:
    """Tests of a machine whose last command ends well whatever they find."""
    text, folder = str(spec.command), subject.loaded.base_of(f"{path}.tests") / str(spec.tests or "?")
    script = PATTERNS.script.search(text)
    if script is not None:
        file = folder / script[1]
        if not file.is_file():
            return
        text = file.read_text(encoding="utf-8", errors="replace")
    whole = re.sub(r"(\\|&&|\|)\s*\n", r"\1 ", text)
    lines = [line.strip() for line in whole.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    ends = [*(one for one, after in itertools.pairwise(lines) if re.match(r"(?:el(?:se|if)|fi)\b", after)), *lines[-1:]]
    leaves = ends[:-1] if lines and lines[-1] == "fi" else lines[-1:]
    if leaves and not PATTERNS.may_fail.search(text) and all(map(PATTERNS.well.match, leaves)):
        yield subject.say("any-answer/status", f"{path}.command", script[1] if script else "the command", at="key")


def _check_scripts(subject: Subject, path: str, spec: Any) -> Iterator[Finding]:
    """Folders of tests without the script that is run or that never write what is read."""
    base, script, fill = subject.loaded.base_of(f"{path}.tests"), PATTERNS.script.search(spec.command), spec.tests or ""
    tests, vars = compile_template(fill), subject.loaded.spec.vars
    told = {tests.text(task=row, vars=vars): where for where, row in subject.each(50)}
    image = getattr(subject.loaded.spec.resources.get(spec.resource), "tests_image", None)
    for folder, where in told.items() if fill and script is not None and image is None else ():
        files = [file for file in itertools.islice((base / folder).rglob("*"), 50) if file.is_file()]
        texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
        if files and script is not None and not (base / folder / script[1]).is_file():
            yield subject.say("no-file/of-tests", f"{path}.tests", script[1], folder, where)
            return
        is_read = spec.by == "file" and spec.log is None and 0 < len(files) < 50
        if script is not None and is_read and not any(PATTERNS.number_file.search(one) for one in texts):
            yield subject.say("odd-file/no-number-of", path, script[1], at="key")
            return


def _check_helpers(subject: Subject, path: str, entry: ToolSpec) -> Iterator[Finding]:
    """An agent of one turn whose spec has tools, and functions that the prompt promises to code that has them not."""
    if entry.kind == "agent" and getattr(entry, "turns", None) == 1:
        file = subject.loaded.base_of(f"{path}.spec") / str(getattr(entry, "spec", "?"))
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        if re.search(r"(?m)^tools:(?!\s*\{\s*\})", text) and not re.search(r"\bfrom[\"']?:\s*[\"']?tool\b", text):
            yield subject.say("limits/agent", f"{path}.turns")
    spec, called = subject.loaded.spec, getattr(entry, "tools", ())
    codes = [one for one in spec.tools.values() if one.kind == "code"]
    if entry.kind != "code" or len(codes) > 1 or getattr(entry, "sandbox", "monty") != "monty":
        return
    said = [one for one in _sentences(subject) if PATTERNS.in_code.search(one)]
    for one in [one for one in said if not PATTERNS.forbids.search(one)]:
        lost = [name for name in spec.tools if name not in called and re.search(rf"\b{re.escape(name)}\(", one)]
        if lost and spec.tools[lost[0]] is not entry:
            yield subject.say("no-way/code-calls", f"{path}.tools", lost[0], at="key")
            return


def _sentences(subject: Subject) -> list[str]:
    """The sentences of the fixed text, also those that forbid something, and those of several lines."""
    return re.split(r"(?<=[.!?])\s+|\n\s*\n", re.sub(r"\n(?=\S)", " ", fixed_text(subject)))


def _check_shown_forms(subject: Subject) -> Iterator[Finding]:
    """An answer that the prompt shows inside of marks of thinking, or in capitals other than its pattern's."""
    answer, fixed, parts = subject.loaded.spec.answer, fixed_text(subject), subject.compiled.parts
    form, end = {"tag": (f"<{answer.tag}>", f"</{answer.tag}>"), "boxed": ("\\boxed", "}")}.get(answer.from_, ("", ""))
    thoughts = re.findall(r"(?s)<think>((?:(?!<think>).)*?)</think>", fixed) if form else []
    is_read = parts is not None and parts.dialect.parse("<think>zq</think>x", parts.tools).thinking
    shown = [one for one in thoughts if end in one.partition(form)[2]]  # a mark that nothing ends may be spoken of
    if is_read and shown and form not in re.sub(r"(?s)<think>.*?</think>", "", fixed):
        yield subject.say("answer-form/in-thinking", "prompt", form, at="key")
    pattern = answer.pattern or ""
    if answer.from_ == "regex" and not re.search(r"\(\?[a-z]*i|\|", pattern):
        bare = re.sub(r"\\[A-Za-z]|\(\?[^)]*\)|\[[^\]]*\]", " ", pattern)
        for word in re.findall(r"[^\W\d_]{3,}", bare):
            if word not in fixed and (told := re.search(rf"(?i)\b{word}\b", fixed)) is not None:
                yield subject.say("answer-form/capitals", "answer.pattern", told[0], word)
                return


def _check_shown_calls(subject: Subject) -> Iterator[Finding]:
    """A call that the prompt shows as an example, and that its tool does not take."""
    fixed = fixed_text(subject)
    for found in PATTERNS.call_in_json.finditer(fixed):
        name, before = found[1], re.split(r"[.!?]\s|\n", fixed[: found.start()])[-1]
        try:
            given = json.loads(found[2])
        except ValueError:
            continue
        if PATTERNS.as_bad.search(before + fixed[found.end() : found.end() + 40]):
            continue
        tool = subject.tools.get(name)
        is_hole = any(re.search(r"[<\ufffc…|]|\.\.\.|^[A-Z_]{3,}$|\bor\b", str(value)) for value in given.values())
        if tool is not None and not is_hole and not (check := ArgumentCheck(tool.parameters, tool=name)).fits(given):
            yield subject.say("odd-example/in-prompt", "prompt", name, check.explain(given)[:160], at="key")
            return


def _check_asked_code(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """A program that is asked for and not tested, and a signature that the tests do not call."""
    is_program = getattr(spec, "stdin", None) is not None
    asked = PATTERNS.no_printing if is_program else PATTERNS.prints
    # Tests of one gate's rows, or of another form beside these, are not all that the prompt speaks of.
    others = [one for one in subject.loaded.spec.rewards.values() if one.kind == "tests" and one is not spec]
    said = [one for one in _sentences(subject) if is_program or not PATTERNS.forbids.search(one)]
    found = next((match for one in said if (match := asked.search(one))), None)
    # Who asks for a program may forbid to print more.
    is_told = is_program and any(PATTERNS.of_programs.search(asked.sub("", one)) for one in said)
    is_alone = not others and spec.gate is None and "task" not in str(getattr(spec, "entry", ""))
    if found is not None and not is_told and is_alone:
        key = "answer-form/no-program" if is_program else "answer-form/no-function"
        yield subject.say(key, path, found[0][:60], at="key")
    if getattr(spec, "calls", None) is None or not getattr(spec, "entry", None):
        return
    entry, fill = compile_template(getattr(spec, "entry", "")), compile_value(getattr(spec, "calls", None))
    is_open = open_on(spec.gate)
    for one in asked_of(subject):
        for index, text in enumerate(one.texts[:1_000]):
            values = {"task": one.split.rows[index], "vars": subject.loaded.spec.vars}
            if not is_open(one.split.rows[index]):
                continue
            name = re.split(r"\W+", entry.text(**values).rstrip("() "))[-1]
            takes = _parameter_range(text, name) if name else None
            tests = fill(**values) if takes is not None else None
            counts = [len(test["args"]) + len(test.get("kwargs") or ()) for test in tests if isinstance(test, Mapping)
                      and isinstance(test.get("args"), list)] if isinstance(tests, list) else []  # fmt: skip
            if takes is not None and (odd := [count for count in counts if not takes[0] <= count <= takes[1]]):
                where = f"row {index + 1} of split '{one.split.name}'"
                told = f"{takes[0]}" if takes[0] == takes[1] else f"{takes[0]} to {takes[1]:g}"
                yield subject.say("gold-calls/signature", f"{path}.calls", where, name, odd[0], told)
                return


def _parameter_range(text: str, name: str) -> tuple[int, float] | None:
    """The fewest and the most values that the only signature of `name` in a text takes; None where it has none."""
    signature = rf"{re.escape(name)}(\([^()]*(?:\([^()]*\)[^()]*)*\))"
    found = set(re.findall(rf"\bdef {signature}", text) or re.findall(rf"`{signature}`", text))
    if len(found) != 1:
        return None
    try:
        node = ast.parse(f"def f{found.pop()}: 0").body[0]
    except (SyntaxError, ValueError, RecursionError):
        return None
    given = getattr(node, "args", ast.arguments([], [], None, [], [], None, []))
    every = [one for one in (*given.posonlyargs, *given.args, *given.kwonlyargs) if one.arg not in ("self", "cls")]
    usual = len(given.defaults) + sum(one is not None for one in given.kw_defaults)
    return len(every) - usual, math.inf if given.vararg or given.kwarg else len(every)


def _check_scale(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
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
    ill = [text for text in ends if PATTERNS.ill.match(text)]
    is_ill = spec.usual_weight > 0 and [float(PATTERNS.step.findall(text)[0]) for text in ill] == [high]
    if len(ends) > 1 and ((len(worst) == len(ends) and is_fine) or is_ill):
        worst = ill if is_ill else worst
        yield subject.say("other-scale/upside-down", f"{path}.rubric", worst[0][:60], at="key")
    endpoints = {getattr(spec, "endpoint", None), *(one.endpoint for one in getattr(spec, "judges", ()))}
    for name in sorted(endpoints & {*subject.loaded.spec.endpoints}):
        most = subject.loaded.spec.endpoints[name].sampling.max_tokens
        if most is not None and most < 40 and getattr(spec.sampling, "max_tokens", None) is None:  # type: ignore[attr-defined]
            yield subject.say("odd-sampling/verdict", f"endpoints.{name}.sampling.max_tokens", most)
    keys = re.findall(r"[\"'](\w+)[\"']\s*:(?!\s*[\"']?\s*\{[{%])", prompt)  # and not of material
    if keys and key not in keys:
        yield subject.say("other-scale/key", f"{path}.prompt", keys[-1], key)


def _check_blind(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
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
    if isinstance(other, str) and other != "group":
        read = {one[1] for one in compile_template(other).paths if one[0] == "task" and one[1:]}
        if read <= asked:
            what = "what the prompt asks" if read else "the same text for every task"
            yield subject.say("odd-pair/pairwise", f"{path}.pairwise.with", what)


def _check_tests(subject: Subject, path: str, spec: RewardSpec) -> Iterator[Finding]:
    """Hidden tests that no row has, that are those of another task, or that nothing fails."""
    prompt = subject.loaded.spec.prompt
    key = next((one for one in ("calls", "stdin", "programs") if getattr(spec, one, None) is not None), "calls")
    given = getattr(spec, key, None)
    rows, fill = list(subject.each(1_000)), compile_value(given)
    if not PATTERNS.reads_task.search(str(given)) and len(rows) > 1 and PATTERNS.reads_task.search(prompt.user):
        yield subject.say("constant-gold/tests", f"{path}.{key}")
    programs, shown, cases = list[str](), list[bool](), list[Mapping[str, Any]]()
    texts = [text for one in asked_of(subject) for text in one.texts[:1_000]]
    for (where, row), text in itertools.zip_longest(rows, texts if len(texts) == len(rows) else ()):
        try:
            filled = fill(task=row, vars=subject.loaded.spec.vars)
        except (TemplateError, TypeError):
            return
        if not filled or filled in ("[]", "{}"):
            yield subject.say("empty-gold/tests", f"{path}.{key}", where)
            break
        cases += [one for one in filled if isinstance(one, Mapping)] if isinstance(filled, list) else ()
        programs += map(str, filled) if key == "programs" and isinstance(filled, list) else ()
        lines = PATTERNS.asserts.findall("\n".join(text for _, text in strings_in(filled, ())))
        shown.append(bool(lines) and all(line in (text or "") for line in lines))
    if shown and all(shown):
        yield subject.say("gold-in-prompt/tests", "prompt", at="key")
    held = {one["expected"] for one in cases if isinstance(one.get("expected"), str)}
    is_list = len(cases) > 1 and len(held) > 1 and all(PATTERNS.text_of_list.fullmatch(one) for one in held)
    is_told = any(PATTERNS.as_text.search(one) for one in [fixed_text(subject), *texts])
    if is_list and all("expected" in one for one in cases) and not is_told:
        yield subject.say("odd-gold/text-of-list", f"{path}.calls", min(held)[:40], at="key")
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


def check_undone_calls(subject: Subject, silent: Mapping[tuple[str, int], Trajectory]) -> Iterator[Finding]:
    """Gold calls that are to change something and leave all as it was, so that silence is right."""
    for (split, index), got in silent.items():
        for name, spec in subject.loaded.spec.rewards.items() if got.reward.terms else ():
            if spec.kind != "state" or spec.usual_weight <= 0 or value_of(got, name) != 1:
                continue
            gold = str(compile_value(gold_in(spec))(task=got.task, vars=subject.loaded.spec.vars))
            if any(tool.mutates and re.search(rf"\b{re.escape(tool.name)}\b", gold) for tool in subject.tools.values()):
                yield subject.say("gold-calls/no-change", f"rewards.{name}", index + 1, split, at="key")
                return


def unearned(subject: Subject, oracle: Mapping[tuple[str, int], Trajectory]) -> Iterator[Finding]:
    """The first row whose own gold value, given as the answer, does not earn what it should."""
    term = gold_term(subject)
    for (split, index), got in oracle.items():
        value = value_of(got, term.name) if term is not None else None
        measured = got.reward.terms.get(term.name) if term is not None else None
        if term is not None and measured is not None and measured.status == "invalid" and term.spec.kind == "verify":
            given = (index + 1, split, measured.error[:160])
            yield subject.say("gold-not-earned/invalid", f"rewards.{term.name}.expect", *given)
            return
        if term is not None and value is not None and value < 1 and term.spec.range is None:
            at, read = subject.gold_at(term), got.answer and got.answer[:60]
            key = "value" if at.count(".") > 1 else "key"
            yield subject.say("gold-not-earned/of-row", at, index + 1, split, value, read, at=key)
            return
        if term is not None and value == 1 and got.success is False and subject.asked == [term.name]:
            yield subject.say("wrong-success/of-gold", "success", index + 1, split)
            return
    whole = term is not None and getattr(term.spec, "rule", "") in ("exact_match", "f1", "json_match", "numeric_match")
    for name, spec in subject.loaded.spec.rewards.items() if whole and len(oracle) > 1 else ():
        values = {value_of(got, name) for got in oracle.values()}
        if getattr(spec, "of", "") == "answer" and spec.usual_weight > 0 and values == {0.0}:
            yield subject.say("gold-not-earned/of-term", f"rewards.{name}", name, len(oracle), at="key")
