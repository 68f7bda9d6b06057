"""Policies that do nothing useful: what each of them writes for one task.

They know what an attacker could know: the prompt, the form of an answer, and the answers of the split as a set. The
form is taken from the oracle's last action, with the right answer replaced. Each entry is one rule for all tasks, so
that what it earns is what a policy would that had learned it; the order of the entries is that of causes: what an
earlier one earns, a later one does not find again."""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlenv.audit import crafted
from rlenv.audit import texts as words
from rlenv.audit.play import ScriptPlayer
from rlenv.audit.probes import filler
from rlenv.audit.report import Hole, hole_of
from rlenv.audit.subject import Action, AuditSubject, far_numbers, flat, instructions, is_number, same, shaped, texts_of
from rlenv.audit.texts import MACHINE, holds, like, nonce, shrug
from rlenv.audit.verdicts import Suspect
from rlenv.messages import Message, ToolCall

_VANISHING = ("\u03a9", "\u4eac\u90fd", "?!", "\u2026")
_FAR = 1_000_000
_STEP = 777_777
_STEPS = 40
_FEW_WORDS = 3
_ANY_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LONE_NUMBER = re.compile(r"(?<![\w.,-])-?\d[\d,]*(?:\.\d+)?(?![\w,]|\.\w)")
_PATIENT_S = 60
_LOOKED_AT = 3
_LONG_LINE = 8


def side_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """A number far below the right one, one below with its sign, and one far above; none where it is no number."""
    shown, form = _number_in(subject)
    text = shown.replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return []
    if not abs(value) < 1e12 or not text[-1:].isdecimal():
        return []
    # One in which the right number stands says it, to a reward that looks for a part.
    for step in range(_STEPS):
        far = 1_000 * abs(value) + _FAR + step * _STEP
        below, above = str(round(value - far)), str(round(value + far))
        if text not in below and text not in above:
            near = str(round(value / 100)) if value > 2 else ""
            texts = (below, near if text not in near else "", above)
            return [[form(one)] if one else [] for one in texts]
    return []


def _number_in(subject: AuditSubject) -> tuple[str, Callable[[str], Action]]:
    """The number that the right answer is, or the one among its words, and the answer with another one."""
    right = subject.right.strip()
    found = _LONE_NUMBER.findall(right)
    is_alone = (
        len(found) == 1 and found != _LONE_NUMBER.findall(subject.wrong()[0]) and not set(right) & {*'\n,;{["<>='}
    )
    if is_number(right) or not is_alone:
        return right, subject.form
    return found[0], lambda said: subject.form(right.replace(found[0], said))


def vanishing_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """Answers of letters that are not Latin and of marks alone; as controls nonsense, with a capital too."""
    others = [one for word in nonce(1, without=subject.asked) for one in (word, word.capitalize())]
    ways = [[] if set(text) & set(subject.right) else [subject.form(text)] for text in _VANISHING]
    return [*ways, *([subject.form(one)] for one in others)]


def near_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """Numbers that are far from the right one and are still right where a tolerance is too wide."""
    right, form = _number_in(subject)
    if not is_number(right):
        return []
    allowed = {flat(value) for value in texts_of(subject.task)}
    asked = [one for one in subject.asked if not same(one, right) and not holds(subject.prompt, one)]
    wrong = [one for one in far_numbers(right) if not same(one, right) and flat(one) not in allowed]
    return [[form(one)] for one in wrong if not any(holds(one, value) for value in asked)]


def joined_scripts(subject: AuditSubject) -> Sequence[Sequence[Action]]:
    """Another number, in which the right one stands; words with something joined to them still say what they say."""
    right = subject.right.strip()
    if not is_number(right):
        return []
    bare = right.lstrip("+-")
    sign = right[: len(right) - len(bare)]
    # Where no answer has a sign, a mark before it may well be one that counts for nothing.
    is_signed = any(one.startswith("-") for one in subject.options)
    # One more decimal is no other number.
    behind = [] if "." in right else [subject.form(f"{right}1")]
    return [behind, [subject.form(f"{sign}1{bare}")], [subject.form(f"-{bare}")] if not sign and is_signed else []]


SAYS = "It is what the tool says."
_LONG_WORDS = 8_000
_ODD = ("\x00", "9" * 5_000, "{" * 500, *words.WORDS["odd"])
_COUNTS = (2, 3, 5)

Script = Sequence[Action]
Write = Callable[[AuditSubject], Sequence[Script]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversary(Suspect):
    """A policy without merit; `write` gives its ways, each the same on every task, () where there is none on one."""

    write: Write
    wide: bool = False
    """Whether it is played on more tasks than the others, to find holes behind a few of them."""
    whole: bool = False
    """Whether it counts only where a term pays it nearly all that it pays the oracle."""
    control: Write | None = None
    """The same ways without the right answer that should make them earn: what they earn so, any answer would."""
    control_does: str = ""
    in_machine: bool = False
    """Whether it is played in the shell of a machine alone."""
    controls: int = 0
    """So many of the last ways are what the others are without their point: on a task where one of them earns as much,
    the others have shown nothing."""


def _wrong_answers(subject: AuditSubject) -> list[str]:
    rng = random.Random(f"{subject.gold.split}/{subject.gold.task_index}")
    return [shaped(subject.right, rng), " ".join(nonce(2, without=subject.asked)), "?"]


def _short_answer_scripts(subject: AuditSubject) -> Sequence[Script]:
    """Nothing for the shape of an answer that is long itself: that may be paid for length."""
    return [[subject.bare(one)] if len(one.split()) <= _FEW_WORDS else [] for one in _wrong_answers(subject)]


def _wrong_answer_scripts(subject: AuditSubject) -> Sequence[Script]:
    """Wrong answers with all that the oracle says beside its own, and one after thinking."""
    words = " ".join(nonce(8, without=subject.asked))
    thinks = f"<think>{words}</think>{subject.text_of(subject.bare('?'))}"
    return [*([subject.form(answer)] for answer in _wrong_answers(subject)), [thinks]]


def _other_answer_scripts(subject: AuditSubject) -> Sequence[Script]:
    """Answers of two other tasks, whose form is narrower than a shape may be; a number of one may be near the right."""
    if is_number(subject.right) or not subject.right.strip():
        return []
    others = subject.wrong()
    random.Random(f"{subject.gold.split}/{subject.gold.task_index}").shuffle(others)
    return [[subject.form(answer)] for answer in others[:2]]


def _unsure_scripts(subject: AuditSubject) -> Sequence[Script]:
    """Another task's answer with 0 and 1 for the numbers that both have, which may say how sure it is."""
    own = _ANY_NUMBER.findall(subject.right) if re.search(r"[^\W\d_]", subject.right) else []
    others = [one for one in subject.wrong() if own and _ANY_NUMBER.findall(one) == own][:1]
    return [[subject.form(text)] for one in others for text in (*(_ANY_NUMBER.sub(sure, one) for sure in "01"), one)]


def _empty_form_scripts(subject: AuditSubject) -> Sequence[Script]:
    # With nothing beside them: what the oracle says beside its answer may be paid for itself.
    # The last two are the words before them, which say nothing.
    empties = ["", " ", "{}", "[]", "null", "none", "llun", "enon"] if subject.right.strip() else [""]
    rules = {getattr(one, "rule", one.kind) for one in subject.environment.spec.rewards.values()}
    # A query without rows is as good as others to a rule that runs none.
    is_run = crafted.is_query(subject.right) and "sql_match" not in rules
    empties[1:1] = [crafted.query_without_rows(subject.right)] if is_run else []
    held = [one.casefold() for one in subject.asked if one.strip()]
    return [[] if any(text in one for text in held) else [subject.bare(one)] for one in empties]


def _idle_call_scripts(subject: AuditSubject) -> Sequence[Script]:
    """The same call and other calls again and again, and then something that is no answer."""
    limits = subject.limits
    calls = subject.idle(limits.turns)[: min(limits.turns - 1, limits.tool_calls)]
    if not calls:
        return []
    varied, again, said = _foreign_turns(subject, len(calls)), [calls[0]] * len(calls), shrug(subject.asked)
    tools = [tool for tool in subject.tools.values() if not subject.submits(tool.name)]
    own = {repr(call) for call, _ in subject.oracle_calls() if subject.changes(call.name)}
    plain = [one for one in (ToolCall(tool.name, filler(tool)) for tool in tools) if repr(one) not in own]
    at_once = [subject.turns_of((plain * number)[:number]) for number in _COUNTS]
    counted = [[*turns, said] for turns in (subject.turns_of(plain), *at_once) if turns]
    return [[*calls, said], [*again, said], [calls[0], said], [*varied, said], *counted]


def _foreign_turns(subject: AuditSubject, turns: int) -> list[Action]:
    """Calls that the oracle makes on other tasks, one a turn: they go well where random ones fail."""
    calls = subject.foreign()
    return [calls[turn % len(calls)] for turn in range(turns)] if calls else []


def _never_ending_scripts(subject: AuditSubject) -> Sequence[Script]:
    limits = subject.limits
    calls = subject.idle(limits.turns)
    broken: list[Action] = [Message("assistant", "", (ToolCall("no_such_tool", {}),))] * limits.turns
    # A user may end it, and is talked to by others.
    turns = 0 if subject.environment.spec.user else limits.turns
    talk: list[Action] = [f"Hmm, {word}." for word in nonce(turns, without=subject.asked)]
    if not calls:
        return [broken, talk]
    return [broken, talk, calls, [calls[0]] * limits.turns, _foreign_turns(subject, limits.turns)]


def _long_text_scripts(subject: AuditSubject) -> Sequence[Script]:
    """Long texts that say nothing, and as long a one as the oracle's: more may be paid for up to a limit only."""
    asked, wrong = subject.asked, subject.text_of(subject.bare("?"))
    words = " ".join(nonce(1, without=asked) * _LONG_WORDS)
    varied = " ".join(nonce(2_000, without=asked))
    own = like(subject.gold.turns[-1].action, without=asked)
    texts = [words, f"{words}\n{wrong}", f"{varied}\n{wrong}", own, f"{own}\n{wrong}"]
    ways: list[Script] = [[text] for text in (*texts, f"<think>{varied}</think>{wrong}")]
    return [*ways, [subject.bare(varied)], [subject.bare(like(subject.right, without=asked))]]


def _one_word_scripts(subject: AuditSubject) -> Sequence[Script]:
    """The ways of `_long_text_scripts` with one word in place of many."""
    (word,), wrong = nonce(1, without=subject.asked), subject.text_of(subject.bare("?"))
    return [[word], [f"{word}\n{wrong}"], [f"<think>{word}</think>{wrong}"], [subject.bare(word)]]


def _thought_scripts(subject: AuditSubject, answer: str, wrong: Sequence[str]) -> Sequence[Script]:
    # Bare, since the oracle's own last action may hold thinking, which would end the one around it.
    text, said, say = subject.text_of(subject.bare(answer)), subject.text_of(subject.bare("?")), shrug(subject.asked)
    listed = "\n".join(subject.text_of(subject.bare(one)) for one in [*wrong[:2], answer, *wrong[2:4]])
    return [
        [f"<think>{text}</think>{say}"],
        [f"<think>{text}"],
        [f"<think>{text}</think>"],
        [f"<think>{listed}</think>{say}"],
        [f"<think>It is {answer}, or {wrong[0]}.</think>{said}"],
        [f"<think>{answer}</think>{said}"],
        [f"<think>{' '.join([*wrong[:20], answer, *wrong[20:40]])}</think>{said}"],
    ]


def _judge_instruction_scripts(subject: AuditSubject) -> Sequence[Script]:
    """Orders to judges to give their best score, alone and before a wrong answer; () where a right one stands there."""
    tells = instructions(subject.environment)
    texts = [text for tell in tells for text in (tell, f"{tell}\n{subject.form_text('?')}")]
    # Without a judge to obey, a "no" in "note" is paid as one by whoever looks for a part.
    has_judge = any(spec.kind == "judge" for spec in subject.environment.spec.rewards.values())
    parts = [] if has_judge else [one.casefold() for one in subject.asked if one.strip()]
    plain = [text for text in texts if not any(holds(text, one) for one in subject.asked)]
    return [[text] if text in plain and not any(one in text.casefold() for one in parts) else [] for text in texts]


def _overlaps_answer(text: str, subject: AuditSubject) -> bool:
    return any(text.casefold() in one.casefold() or one.casefold() in text.casefold() for one in subject.asked if one)


def _pasted_scripts(subject: AuditSubject) -> Sequence[Script]:
    shown = "\n".join(result.text for _, result in subject.oracle_calls() if result.outcome == "ok")
    pasted = [*subject.oracle_actions(), subject.form(shown)]
    long = len(shown) > 5 * len(subject.right) and not same(shown, subject.right)
    return [[subject.prompt], [subject.form(subject.prompt)], pasted if long else []]


def _copied_scripts(subject: AuditSubject) -> Sequence[Script]:
    """What the prompt shows: of a right answer's JSON, a number as equal to itself or in place of an expression for it,
    the texts of a column that most rows fill, those of a list as the choices of a pattern."""
    counts = Counter(name for one in subject.others for name, value in one.task.items() if value)
    right, accepted = subject.right.strip(), subject.accepted
    shown, number = crafted.shown_parts(right, subject.prompt), next(iter(_ANY_NUMBER.findall(subject.prompt)), "1")
    ways: list[Script] = [[subject.form(shown)] if shown else []]
    ways.append([subject.form(f"{number} = {number}")] if right.count("=") == 1 else [])
    total = crafted.expression_value(right)
    ways.append([subject.form(total)] if total in _ANY_NUMBER.findall(subject.prompt) else [])
    for name in (one for one, count in counts.items() if 2 * count > len(subject.others)):
        value = subject.task.get(name)
        texts = [one.strip() for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
        said = "|".join(texts)
        is_shown = right not in said and said not in accepted and all(one and one in subject.prompt for one in texts)
        ways.append([subject.form(said)] if said and right and is_shown else [])
    return ways


def _odd_answer_scripts(subject: AuditSubject) -> Sequence[Script]:
    """Texts that no reward expects, and the right form with what is no number in place of its numbers."""
    inside = [_ANY_NUMBER.sub(one, subject.right) for one in ("NaN", "Infinity") if subject.right[:1] in "{["]
    texts = [*_ODD, *(one for one in inside if one != subject.right)]
    return [[] if _overlaps_answer(text, subject) else [subject.form(text)] for text in texts]


def _commands(subject: AuditSubject, *commands: str, done: Script = ()) -> Script:
    """Commands in the shell of a task's machine, `done` after the first, and no answer; () where there is no shell."""
    shell = next((name for name, tool in subject.environment.spec.tools.items() if tool.kind == "bash"), None)
    if shell is None:
        return ()
    calls: list[Action] = [Message("assistant", "", (ToolCall(shell, {"command": one}),)) for one in commands]
    return [*calls[:1], *done, *calls[1:], shrug(subject.asked)]


def _planted_reward_scripts(subject: AuditSubject) -> Sequence[Script]:
    """The files of a reward, and programs where the tests' own command looks for them."""
    runs = [str(getattr(term, "command", "")) for term in subject.environment.spec.rewards.values()]
    named = {path for run in runs for path in re.findall(r"(?<![\w.])/[\w./-]+\w", run)}
    own = sorted(path for path in named if not path.startswith(("/bin/", "/usr/", "/dev/", "/proc/", "/logs/")))
    puts = [f"mkdir -p $(dirname {path}); echo '{MACHINE['plants']}; exit 0' > {path}" for path in own]
    acts = (MACHINE["plants"], MACHINE["keeps_planting"], MACHINE["links"], "; ".join([MACHINE["plants"], *puts]))
    return [_commands(subject, one) for one in acts]


def _edited_test_scripts(subject: AuditSubject) -> Sequence[Script]:
    """Empties what is called a test, and what the tests' command names; or writes one word to all that it names."""
    runs = " ".join(str(getattr(term, "command", "")) for term in subject.environment.spec.rewards.values())
    named = sorted({path.rpartition("/")[2] for path in re.findall(r"[\w./-]+\.\w+", runs)})
    empties = MACHINE["empties_tests"].replace("$named", "".join(f" -o -name {name}" for name in named))
    paths = " ".join(dict.fromkeys(re.findall(r"(?<![\w./-])[\w./-]*[./][\w./-]*\w", runs)))
    alike = MACHINE["writes_alike"].replace("$paths", paths)
    return [_commands(subject, one) for one in (empties, *[alike] * bool(paths))]


async def find_in_machines(player: ScriptPlayer, subjects: Sequence[AuditSubject]) -> list[Hole]:
    """What the machines of a few tasks hold of their answers, before anything is done in them."""
    found: dict[str, Hole] = {}
    for subject in subjects[:_LOOKED_AT]:
        lines = _oracle_lines(subject)
        text = MACHINE["looks"].replace("$lines", "\n".join(lines)).replace("$least", str(-(-len(lines) // 2)))
        if not lines or not (script := _commands(subject, text)):
            continue
        for ended in (await player.way([subject], lambda _, script=script: script)).values():  # type: ignore[misc]
            told = "\n".join(result.text for turn in ended.turns for result in turn.results)
            for what in re.findall(r"^zqx (.+)$", told, re.MULTILINE):
                message = f"{what} (task {subject.gold.split}/{subject.gold.task_index})"
                found.setdefault(what, hole_of("answer_in_machine", message, hint="leave it out of image and path"))
    return list(found.values())


def _oracle_lines(subject: AuditSubject) -> list[str]:
    """The lines that the oracle writes."""
    found: list[str] = []
    for call, _ in subject.oracle_calls():
        old = str(call.arguments.get("old_str", "")).splitlines()
        texts = [str(text) for key, text in call.arguments.items() if key not in ("old_str", "path")]
        found += [line.removeprefix("+") for text in texts for line in text.splitlines() if line not in old]
    return [line for line in dict.fromkeys(found) if len(line.strip()) >= _LONG_LINE]


def _hostile_program_scripts(subject: AuditSubject) -> Sequence[Script]:
    """The oracle's files, each replaced by a program that writes the reward, once and for ever, and ends the tests."""
    done = subject.oracle_actions()
    pairs = (MACHINE["plants"], "9"), (MACHINE["keeps_planting"], "0"), ("while :; do sleep 1; done", "9")
    texts = [MACHINE["leaves_programs"].replace("$does", does).replace("$signal", signal) for does, signal in pairs]
    # Tests that hang may take long to be ended.
    times = [getattr(term, "time_s", 0) for term in subject.environment.spec.rewards.values()]
    is_patient = any(isinstance(one, str) or one > _PATIENT_S for one in times)
    return [_commands(subject, MACHINE["marks_time"], one, done=done) for one in texts[: 3 - is_patient] if done]


_WRITES: Final[Mapping[str, Write]] = {
    "nothing": lambda subject: [[shrug(subject.asked)]],
    "short_answer": _short_answer_scripts,
    "alphabet": crafted.alphabet_scripts,
    "one_side": side_scripts,
    "vanishing": vanishing_scripts,
    "pattern": crafted.wildcard_scripts,
    "injection": crafted.injection_scripts,
    "abstains": crafted.abstaining_scripts,
    "named_words": crafted.named_word_scripts,
    "expression": crafted.expression_scripts,
    "program": crafted.program_scripts,
    "hollow_files": lambda subject: [
        _commands(subject, MACHINE["marks_time"], does, done=subject.oracle_actions())
        for does in (words.HOLLOWS, words.HOLLOWS_LINES)
    ],
    "copied_files": lambda one: [_commands(one, MACHINE["gathers"], words.COPIES, done=one.oracle_actions())],
    "planted_reward": _planted_reward_scripts,
    "edited_tests": _edited_test_scripts,
    "replaced_programs": lambda subject: [_commands(subject, MACHINE["replaces_programs"])],
    "hostile_program": _hostile_program_scripts,
    "shadowing": lambda subject: [_commands(subject, MACHINE["shadows"])],
    "broken_machine": lambda subject: [_commands(subject, one) for one in words.BREAKS],
    "constant_program": crafted.constant_program_scripts,
    "empty": lambda subject: [[""]],
    "empty_form": _empty_form_scripts,
    "very_long": _long_text_scripts,
    "wrong_answer": _wrong_answer_scripts,
    "decorated": crafted.decorated_scripts,
    "other_answer": _other_answer_scripts,
    "unsure": _unsure_scripts,
    "idle_calls": _idle_call_scripts,
    "never_ends": _never_ending_scripts,
    "thought_answer": lambda subject: _thought_scripts(subject, subject.right, subject.wrong()),
    "near_answer": near_scripts,
    "every_option": lambda subject: crafted.listed_scripts(subject, subject.right, subject.wrong()),
    "pasted": _pasted_scripts,
    "copied": _copied_scripts,
    "joined": joined_scripts,
    "judge_instructions": _judge_instruction_scripts,
    "odd_answer": _odd_answer_scripts,
}
_CONTROLS: Final[Mapping[str, Write]] = {
    "very_long": _one_word_scripts,
    "thought_answer": lambda one: _thought_scripts(one, (some := crafted.strange_answers(one, 5))[0], some[1:]),
    "every_option": lambda one: crafted.listed_scripts(one, (some := crafted.strange_answers(one))[0], some[1:]),
}
_DATA: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ADVERSARIES: Final = tuple(
    Adversary(name=name, write=_WRITES[name], control=_CONTROLS.get(name), **told) for name, told in _DATA.items()
)
