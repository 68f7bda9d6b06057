"""Warnings of what a prompt promises or asks for, and nothing in the spec or the rows keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rlenv._base.text import strings_in
from rlenv.checks.odd_rows import NO_GOLD, RenderedPrompts, all_golds, asked_of, fixed_text, gold_term, golds_of
from rlenv.checks.subject import Subject
from rlenv.errors import Finding
from rlenv.language.kinds import gold_key
from rlenv.rewards.base import Term

__all__ = ["check_promises"]

Said = tuple[str, str, str]
"""A message, a hint and a code."""

_NUMBER: Final = re.compile(r"[-+]?[$€£]?\d[\d,]*(?:\.\d+)?%?")
_COUNTS: Final = dict(zip("one two three four five six seven eight nine ten eleven twelve".split(), range(1, 13),
                          strict=True)) | {"fifteen": 15, "twenty": 20, "thirty": 30, "fifty": 50}  # fmt: skip
_SUCH: Final = r"(?:such as|like|e\.g\.,?|for (?:example|instance),?|as in|written as|in the form) [\"'`(<]*"
_QUERY: Final = re.compile(r"(?i)\s*(?:select|with|insert|update|delete|create)\b")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d|\d\d?[./]\d\d?[./]\d{4}|\d\d?(?:st|nd|rd|th|\.)? [A-Z][a-z]{2,8}\.? \d{4}")


def _is_between(gold: str) -> bool:
    return bool(_NUMBER.fullmatch(gold)) and 0 < float(re.sub(r"[^\d.]", "", gold)) < 1 and "%" not in gold


_FORMS: Final[Sequence[tuple[str, str, Callable[[str], object]]]] = (
    ("yes or no", r"\b(?:yes or no|yes/no)\b|\"yes\" or \"no\"", lambda gold: gold.lower() in ("yes", "no")),
    ("true or false", r"\btrue or false\b|\btrue/false\b", lambda gold: gold.lower() in ("true", "false")),
    ("one letter", r"\b(?:single|one|the) letter (?:of|alone|between|only)|\bA, B, C,? (?:or|and) D\b",
     lambda gold: len(gold.strip("(). ")) == 1),
    ("one word", r"\b(?:one|a single|in one) word\b", 
     lambda gold: len(gold.split()) == 1 and re.search(r"[^\W\d_]", gold)),
    ("a whole number", r"\b(?:whole number|an? integer)\b|\bin (?:cents|pence|whole \w+)\b",
     lambda gold: re.fullmatch(r"[-+]?[\d,]+(?:\.0*)?", gold)),
    ("a number", r"\bwrite (?:only |just )?(?:the|a) (?:final )?number\b|\b(?:the|a) number (?:alone|only|between)\b",
     lambda gold: re.search(r"\d", gold)),
    ("YYYY-MM-DD", r"\bYYYY-MM-DD\b", re.compile(r"\d{4}-\d\d-\d\d").search),
    ("HH:MM", r"\bHH:MM\b", re.compile(r"\d\d?:\d\d").search),
    ("DD.MM.YYYY", r"\bDD\.MM\.YYYY\b", re.compile(r"\d\d?\.\d\d?\.\d{4}").search),
    ("a date with strokes", rf"\b(?:DD/MM|MM/DD)/YYYY\b|{_SUCH}\d\d?/\d\d?/\d{{4}}",
     lambda gold: re.search(r"\d\d?/\d\d?/\d{4}", gold) or not _DATE.search(gold)),
    ("a date such as 2031-05-30", rf"{_SUCH}\d{{4}}-\d\d-\d\d",
     lambda gold: re.search(r"\d{4}-\d\d-\d\d", gold) or not _DATE.search(gold)),
    ("a time of 12 hours", rf"{_SUCH}\d\d?(?::\d\d)? ?[ap]\.?m\b|(?s:^(?!.*24[- ]hour).*\b12[- ]hour\b)",
     lambda gold: not re.fullmatch(r"\d\d?:\d\d(?::\d\d)?", gold)),
    ("a time of 24 hours", rf"{_SUCH}\d\d?:\d\d\b(?! ?[ap]\.?m)|(?s:^(?!.*12[- ]hour).*\b24[- ]hour\b)",
     lambda gold: not re.search(r"\d ?[apAP]\.?[mM]\b", gold)),
    ("JSON", r"\b(?:answer|reply|respond|write|output)\b[^.\n]{0,30}\b(?:as|in|with|an?|only)\b[^.\n]{0,12}\bJSON\b",
     lambda gold: gold[:1] in tuple('{["')),
    ("a fraction", r"\bas an? (?:\w+ )?fraction\b", re.compile(r"/|frac|^-?\d+$").search),
    ("SQL", r"\bwrite (?:one|a|the) (?:SQL )?query\b|\bSQL query (?:that|which)\b", _QUERY.match),
    ("words", r"\b(?:number|it|amount) (?:out )?in words\b", lambda gold: not re.search(r"\d", gold)),
    ("Roman numerals", r"\b(?:in|as|use) roman numerals?\b", re.compile(r"[IVXLCDM]+").fullmatch),
    ("no unit", r"\bwithout (?:its |the |any |an? )?units?\b", 
     lambda gold: not re.fullmatch(r"-?[\d.,]+ ?[^\W\d]+", gold)),
    *((word, rf"\b(?:answer|reply|respond|write)\b[^.\n]{{0,40}}\bin {word}\b",
       re.compile(rf"[{letters}]|^[^A-Za-z]*$").search) for word, letters in (
        ("Russian", "\u0400-\u04ff"), ("Greek", "\u0370-\u03ff"), ("Chinese", "\u4e00-\u9fff"),
        ("Japanese", "\u3040-\u30ff\u4e00-\u9fff"), ("Arabic", "\u0600-\u06ff"), ("Korean", "\uac00-\ud7af"))),
    ("capital letters", r"\b(?:in|all) (?:capitals|capital letters|upper ?case)\b", lambda gold: gold == gold.upper()),
    ("lower case", r"\bin lower ?case\b|\bin small letters\b", lambda gold: gold == gold.lower()),
    ("a unit", r"\bwith (?:its|the|a) (?:correct |right )?units?\b", re.compile(r"[^\W\d_]|[%$€£°]").search),
    ("a percentage", r"\b(?:what|which|as a|give the|in) (?:percent|percentage)\b", lambda gold: not _is_between(gold)),
)  # fmt: skip
"""What a prompt may ask for, how that is said, and which golds are of that form."""


def check_promises(subject: Subject) -> Iterator[Finding]:
    """Warnings of `prompt` beside limits, tools, columns and golds."""
    asked, warn, said = asked_of(subject), subject.document.warning, fixed_text(subject)
    term = gold_term(subject)
    golds = [golds_of(subject, term, one) if term is not None and term.spec.usual_weight >= 0 else [] for one in asked]
    if asked and asked[0].texts:
        yield from _shots(subject)
        yield from _sizes(subject, asked[0].texts[0])
        promises = (_numbers, _at_once, _session, _packages, _files, _unshown)
        for message, hint, code in (found for rule in promises for found in rule(subject, said, asked)):
            yield warn("prompt", message, hint, code, at="key")
    yield from _images(subject)
    yield from _units(subject, [gold for told in golds for gold in told])
    path = subject.gold_at(term) if term is not None else ""
    path = path if path.count(".") > 1 else "tasks"
    for one, told in zip(asked, golds, strict=True):
        if term is not None and told:
            yield from _forms(subject, path, one, told, term)
    if term is not None:
        yield from _labels(subject, path, term, [gold for told in golds for gold in told])


def _numbers(subject: Subject, said: str, asked: Sequence[RenderedPrompts]) -> Iterator[Said]:
    """Numbers that a prompt or a tool's description promises, each beside the key that keeps it."""
    spec = subject.loaded.spec
    limits, tokens = subject.limits, subject.limits.response_tokens
    questions = "|questions" if spec.user is not None else ""
    nouns: list[tuple[str, str, float]] = []
    if spec.tools or spec.user is not None:
        nouns.append((f"turns|steps|attempts|tries|rounds{questions}", "limits.turns", limits.turns))
    if spec.tools:
        nouns.append((r"(?:tool )?calls|searches|queries|lookups|times", "limits.tool_calls", limits.tool_calls))
    if tokens is not None:
        nouns.append(("words", "limits.response_tokens", tokens / 1.2))
    texts = [(said, nouns)]
    for name, entry in spec.tools.items():
        key, noun = _SHOWS.get(entry.kind, ("", ""))
        kept = [(noun, f"tools.{name}.{key}", getattr(entry, key))] if key else []
        texts.append((str(entry.description), kept))
        if sum(entry.kind == one.kind for one in spec.tools.values()) == 1:
            nouns += kept
    count = rf"(\d{{1,5}}|{'|'.join(_COUNTS)})"
    for text, noun, key, most in ((text, *one) for text, kept in texts for one in kept):
        for found in re.finditer(rf"(?i)\b{count}[ -](?:[a-z]+ ){{0,2}}?(?:{noun})\b", text):
            sentence = re.split(r"[.!?]\s", text[: found.start()])[-1]
            is_call = re.search(r"(?i)\b(?:call|search|use|ask|look|query|run|calculat|try)", sentence)
            number = _COUNTS.get(found[1].lower()) or int(found[1] if found[1].isdigit() else 0)
            is_bound = re.search(r"(?i)\b(?:at most|up to|may|only|no more than)\b[^.]*$", sentence)
            if is_bound and is_call and number < most and key == "limits.tool_calls" and subject.document.has(key):
                yield f"the prompt allows {' '.join(found[0].split())}, and {key} {most}", f"lower {key}", "limits"
                break
            if found[0].lower().endswith("steps") and re.search(r"(?i)\b(?:write|recipe|plan|list|describ)", sentence):
                continue  # those of what is written
            if number > most and (is_call or not found[0].lower().endswith("times")):
                what = "the prompt" if text is said else "the description"
                kept_is = tokens if noun == "words" else most
                message = f"{what} speaks of {' '.join(found[0].split())}, and {key} is {kept_is}"
                yield message, f"raise {key}, or mend it", "limits"
                break


def _at_once(subject: Subject, said: str, asked: Sequence[RenderedPrompts]) -> Iterator[Said]:
    """Calls that are to be made together where one is run."""
    together = r"at once|in parallel|simultaneously|in (?:one|a single|the same) (?:message|turn|step|reply)"
    calls = r"(?:calls?|searches|queries|tools|look\w*)"
    ways = rf"{calls}\b[^.]{{0,60}}\b(?:{together})|(?:{together})\b[^.]{{0,40}}\b{calls}"
    found = re.search(rf"(?i)\b(?:{ways})\b", said)
    if found is not None and subject.limits.calls_per_turn == 1:
        message = f"the prompt says '{found[0][:60]}', and limits.calls_per_turn is 1: the others are not run"
        yield message, "raise limits.calls_per_turn", "limits"


def _session(subject: Subject, said: str, asked: Sequence[RenderedPrompts]) -> Iterator[Said]:
    """Names that are to stay from one piece of code to the next where each begins anew, or the other way round."""
    tools = [one for one in subject.loaded.spec.tools.values() if one.kind == "code"]
    names = r"(?:variables?|names|definitions?|functions?|imports?|state|values?|interpreter|session|kernel|notebook)"
    stays = re.search(rf"(?i)\b{names}\b[^.]{{0,30}}\b(?:stays?|persists?|remembers?|remains?|(?:is|are) kept|keeps?|"
                      rf"carr(?:y|ies|ied) over|stateful|(?:is|are) shared|survives?)\b", said)  # fmt: skip
    anew = re.search(rf"(?i)\b(?:nothing|no {names}|not|never)\b[^.]{{0,20}}\b(?:stays?|persists?|kept|keeps?|carr)|"
                     r"\b(?:starts?|begins?|runs?) (?:anew|afresh|fresh|from scratch)", said)  # fmt: skip
    sessions = {bool(getattr(one, "session", False)) for one in tools}
    if stays is not None and anew is None and sessions == {False}:
        yield f"the prompt says '{stays[0][:60]}', and each call begins anew", "write session: true", "no-session"
    elif anew is not None and stays is None and sessions == {True}:
        yield f"the prompt says '{anew[0][:60]}', and 'session' keeps them", "write session: false", "no-session"


def _packages(subject: Subject, said: str, asked: Sequence[RenderedPrompts]) -> Iterator[Said]:
    """Packages that a sandbox does not have."""
    code = [one for one in subject.loaded.spec.tools.values() if one.kind == "code"]
    named = re.search(rf"(?i)(?<![\w.]){_PACKAGES}(?!\w|\.\w)", said)
    refused = re.search(rf"(?i)\b(?:no|not|without|never|cannot|don't|neither)\b[^.]{{0,40}}{_PACKAGES}", said)
    if named is not None and refused is None and code and all(one.kind in ("code", "calculator") for one in
                                                            subject.loaded.spec.tools.values()):  # fmt: skip
        which = getattr(code[0], "sandbox", "monty")
        what = "few modules of the standard library" if which == "monty" else "the standard library alone"
        yield f"the prompt speaks of {named[0]}, and the sandbox '{which}' has {what}", "take it out", "no-package"


def _files(subject: Subject, said: str, asked: Sequence[RenderedPrompts]) -> Iterator[Said]:
    """Files that nobody puts where the prompt says that they lie."""
    spec = subject.loaded.spec
    folders = [one for one in spec.resources.values() if one.kind == "tempdir"]
    holds = re.search(r"(?i)\b(?:folder|directory|workspace)\b[^.]{0,20}\b(?:holds|contains|has)\b"
                      r"|\b(?:files?|reports?|data)\b[^.]{0,20}\b(?:lies?|is|are) in (?:the|your|a)\b[^.]{0,20}"
                      r"\b(?:folder|directory|workspace)\b", said)  # fmt: skip
    is_empty = folders and all(getattr(one, "copy_from", None) is None for one in folders)
    if holds is not None and is_empty and not any(one.kind == "python" for one in spec.resources.values()):
        yield f"the prompt says '{holds[0][:60]}', and the folder is empty", "name the files: copy_from: …", "no-file"
        return
    named = re.search(r"(?<![\w/.])[\w-]+\.(?:csv|json|jsonl|txt|tsv|xlsx|parquet|pdf|md|db|sqlite|xml|log)\b", said)
    only_code = spec.tools and all(one.kind in ("code", "calculator") for one in spec.tools.values())
    if named is not None and only_code and not any(named[0] in str(row) for one in asked for row in one.split.rows[:5]):
        yield f"the prompt names the file {named[0]}, and code finds no file", "show it in the prompt", "no-file"


def _unshown(subject: Subject, said: str, asked: Sequence[RenderedPrompts]) -> Iterator[Said]:
    """A passage, a table or a list of which the prompt speaks, in a column that nothing shows."""
    code = subject.code
    entries = [*strings_in(subject.document.data, ())]
    parts = [text for path, text in entries if path[0] not in ("tasks", "prompt", "description", "name")]
    parts += [found for path, text in entries if path[0] == "prompt" for found in re.findall(r"\{[{%].*?[%}]\}", text)]
    read = " ".join(parts)
    code = None if "resources" in f"{subject.loaded.spec.prompt}" else code
    for one in asked if code is not None and subject.loaded.spec.user is None else ():
        for column in one.split.columns:
            rows = [(row.get(column), text) for row, text in zip(one.split.rows[:50], one.texts, strict=False)]
            noun = next((group for group in _SHOWN if str(column) in group.split("|")), re.escape(str(column)))
            near = re.search(rf"(?i)\b(?:following|given|attached)\s(?:\w+\s){{0,2}}?(?:{noun})\b"
                             rf"|\b(?:{noun})\b,?\s(?:\w+\s)?(?:below|above|given)\b", said)  # fmt: skip
            found = near or re.search(rf"(?i)\b(?:the|this|these)\s(?:\w+\s)?(?:{noun})\b", said)
            if found is None or re.search(rf"\b{re.escape(str(column))}\b", f"{read} {code}"):
                continue
            words = [len(str(value).split()) for value, text in rows if isinstance(value, (str, list))]
            hidden = [text for value, text in rows if value and str(value) not in text and not (
                isinstance(value, list) and all(str(part) in text for part in value))]  # fmt: skip
            if len(words) == len(rows) == len(hidden) and (near is not None or min(words, default=0) > 4):
                message = f"it speaks of '{found[0]}', and nothing shows the column '{column}'"
                yield message, f"write {{{{ task.{column} }}}}", "unread-column"
                return
    things = "table|passage|paragraph|article|schema|dialogue|transcript|snippet"
    thing = re.search(rf"(?i)\b({things}) (?:below|above)|\b(?:following|given) ({things})\b", said)
    users = [text for one in asked for text in one.users[:50]]
    if thing is not None and code is not None and users and subject.loaded.spec.user is None:
        marks = r"[|\t\n,;]" if "table" in thing[0].lower() else r"\n|.{140}"
        if not any(re.search(marks, text) for text in users) and not subject.loaded.spec.prompt.images:
            yield f"it speaks of '{thing[0]}', and shows none", "name its column: {{ task.… }}", "unread-column"


def _forms(subject: Subject, path: str, one: RenderedPrompts, golds: Sequence[str], term: Term) -> Iterator[Finding]:
    """Golds that are not of the form that their own prompt asks for."""
    warn, where = subject.document.warning, f"of split '{one.split.name}'"
    rule = getattr(term.spec, "rule", "")
    if rule in ("json_match", "json_schema", "sql_match") or term.spec.kind != "rule":
        return
    for index, (text, gold) in enumerate(zip(one.texts, golds, strict=False)):
        row = f"row {index + 1} {where}"
        # Of a form and another ("one word or number") one is enough.
        asked = [(w, fits) for w, said, fits in _FORMS if re.search(rf"(?:{said})(?!,? or\b)", text, re.IGNORECASE)]
        loose = ["capital letters", "lower case"] if getattr(term.spec, "normalise", "case") != "none" else []
        loose += ["a unit"] if rule in ("math_equal", "f1", "contains") else []
        loose += ["a fraction"] if rule in ("math_equal", "numeric_match") else []
        loose += ["a whole number"] if getattr(term.spec, "tolerance", 0) >= 0.5 else []
        # Of kinds that are listed ("a time (HH:MM), a number, yes or no") one is enough.
        if re.search(r"(?i),\s(?:or\s)?(?:an? (?:whole )?number,? (?:or )?)?(?:yes or no|true or false)\b", text):
            asked = []
        if word := next((word for word, fits in asked if word not in loose and not fits(gold)), ""):
            message = f"{row} asks for {word}, and its gold value is {gold[:40]!r}"
            yield warn(path, message, "ask for what is right, or mend the row", "gold-form")
            return
        if rule == "math_equal" and _SIGNED.search(text) and re.fullmatch(r"-?[\d.]+", gold):
            message = f"{row} asks for per cent, where 30% is 0.3 (a hundredth), and its gold value is {gold}"
            yield warn(path, message, f"write {gold}% as its gold value", "gold-form")
            return
        found = re.search(r"\b(\d|one|two|three|four) decimal(?:s| places?)\b", text, re.IGNORECASE)
        places = 0 if found is None else _COUNTS.get(found[1].lower()) or int(found[1])
        if found is not None and getattr(term.spec, "tolerance", 0) >= 10 * 0.1**places:
            message = f"{row} asks for {found[0]}, and the tolerance is {term.spec.tolerance:g}"  # type: ignore[attr-defined]
            yield warn(f"rewards.{term.name}.tolerance", message, "make it smaller", "any-answer")
            return
        comma = re.fullmatch(r"-?\d+,(\d{1,3})", gold) if rule == "numeric_match" else None
        if comma is not None and len(comma[1]) in (1, 2, places):
            message = f"the comma of {gold!r} is read as one of thousands, and decimals are asked for ({row})"
            yield warn(path, message, "write the gold values with a decimal point", "gold-form")
            return
        if found is not None and re.fullmatch(r"-?\d+\.\d+", gold):
            most = max(
                getattr(term.spec, "tolerance", 0), abs(float(gold)) * getattr(term.spec, "relative_tolerance", 0)
            )
            if abs(float(gold) - round(float(gold), places)) > most + 1e-12:
                message = f"{row} asks for {found[0]}, and its gold value is {gold}"
                yield warn(path, message, "round the gold value, or allow a tolerance", "gold-form")
                return
        found = re.search(r"(?:at most|no more than|up to|fewer than|under) (\d+|\w+) words\b", text, re.IGNORECASE)
        most_words = None if found is None else _COUNTS.get(found[1].lower()) or (found[1].isdigit() and int(found[1]))
        if found is not None and most_words and len(gold.split()) > most_words:
            message = f"{row} asks for {found[0]}, and its gold value has {len(gold.split())}"
            yield warn(path, message, "shorten the gold value", "gold-form")
            return


_IMAGE: Final = re.compile(
    r"\b(?:look at|see|in|from|describe|read|given|attached|this)\s+(?:the |this |an? )?(?:attached |following )?"
    r"(?:image|picture|photo|photograph|screenshot)s?\b",
    re.IGNORECASE,
)
_PACKAGES: Final = (
    r"(?:numpy|pandas|scipy|sympy|matplotlib|sklearn|scikit-learn|torch|pytorch|tensorflow|requests|statsmodels|networkx"
    r"|seaborn|polars|opencv|cv2|nltk|spacy|bs4|beautifulsoup)"
)
_SHOWS: Final = {
    "search": ("top_k", "hits|results|documents|passages|snippets|articles"),
    "sql": ("max_rows", "rows"),
}
"""The keys by which tools show so many of something, and its names."""
_SHOWN: Final = (
    "passage|context|text|article|paragraph|document|story|excerpt|body",
    "options|choices|alternatives|candidates",
    "hint|clue|tip",
    "table|data",
    "dialogue|conversation|transcript",
    "code|snippet|program",
    "words|list|items|numbers",
)
"""Names of columns, by what a prompt may call them."""
_UNITS: Final = (
    (r"celsius|metric|°C", r"fahrenheit|imperial|°F"),
    (r"kilomet(?:re|er)s?|km", r"miles?"),
    (r"kilograms?|kg", r"pounds?|lbs?"),
    (r"euros?|EUR", r"dollars?|USD"),
    (r"met(?:re|er)s", r"feet|inches"),
)
"""Units of which a prompt names one, and an entry another."""


def _images(subject: Subject) -> Iterator[Finding]:
    """A prompt that speaks of an image where nothing shows one, and one image for every task."""
    prompt = subject.loaded.spec.prompt
    if prompt.images and not any("task" in text or "resources" in text for text in prompt.images):
        message = "every task shows the same images"
        yield subject.document.warning("prompt.images", message, "name a column of the row", "same-prompt", at="key")
    may_show = any(tool.kind in ("python", "mcp", "model") for tool in subject.tools.values())
    for key in ("system", "user"):
        found = _IMAGE.search(getattr(prompt, key) or "")
        if found is not None and not prompt.images and not may_show:
            message = f"'{found[0]}' is spoken of, and no image is shown"
            yield subject.document.warning(f"prompt.{key}", message, "add 'images:'", "no-image", find=found[0])


def _units(subject: Subject, golds: Sequence[str]) -> Iterator[Finding]:
    said, told = fixed_text(subject), " ".join(golds)
    for pair in _UNITS:
        for mine, other in (pair, pair[::-1]):
            here, strange, own = (re.search(rf"(?i)(?<![a-z])(?:{one})\b", text)
                                  for one, text in ((mine, said), (other, told), (mine, told)))  # fmt: skip
            if here and strange and not own and not re.search(rf"(?i)\b(?:{other})\b", said):
                message = f"the prompt speaks of {here[0]}, and gold values of {strange[0]}"
                yield subject.document.warning("prompt", message, "take one unit", "other-unit", at="key")
                return


_SIGNED: Final = re.compile(
    r"(?i)(?:such as|like|e\.g\.,?|for example)[^.\n]{0,20}?\d ?%|\bper ?cent\b[^.\n]{0,60}\bwith (?:the|a|its) sign"
)
_WORDS: Final = re.compile(
    r"\b(at most|no more than|up to|under|at least|no fewer than|more than) (\d+) (words|characters)\b"
)


def _shots(subject: Subject) -> Iterator[Finding]:
    """Examples in the prompt: those that are rows, and answers of another form than the golds."""
    spec, said = subject.loaded.spec, fixed_text(subject)
    if spec.prompt.system is not None and spec.prompt.system.strip() == spec.prompt.user.strip():
        message = "it says what the system message says"
        yield subject.document.warning("prompt.user", message, "say it once", "same-prompt")
    rows = [(split.name, index, value) for split in subject.splits.values() for index, row in enumerate(split.rows)
            for value in row.values() if isinstance(value, str) and len(value) > 20]  # fmt: skip
    shown = next(((name, index) for name, index, value in rows if value in said), None)
    if shown is not None:
        message = f"the prompt says to every task what row {shown[1] + 1} of split '{shown[0]}' holds"
        yield subject.document.warning("prompt", message, "take another example", "one-row", at="key")
    tag, term = re.escape(spec.answer.tag), next((one for one in subject.terms if gold_key(one.spec)), None)
    example = re.search(rf"<{tag}>(?!\s*(?:and|or|to)\b)\s*([^<>{{}}]+?)\s*</{tag}>", said)
    golds = (
        [gold or "" for split in subject.splits.values() for gold in all_golds(subject, term, split)] if term else []
    )
    if example is None or not golds or not all(golds):
        return
    are_numbers = {re.fullmatch(r"[-+$€£]?\d[\d,.]*%?", gold) is not None for gold in golds}
    is_number = re.fullmatch(r"[-+$€£]?\d[\d,.]*%?", example[1]) is not None
    with_unit = re.fullmatch(r"[-+]?\d[\d,.]*\s?[A-Za-z]+", example[1]) is not None
    if are_numbers == {not is_number} and (is_number or with_unit):
        message = f"the prompt's example answers {example[1][:40]!r}, and a gold value is {golds[0][:40]!r}"
        yield subject.document.warning("prompt", message, "show one of the golds' form", "gold-form", at="key")


def _sizes(subject: Subject, text: str) -> Iterator[Finding]:
    """A length that the prompt allows and a term does not pay."""
    between = re.search(r"\b(\d+) (?:to|and|-|–) (\d+) (word|char)(?:s|acters)\b", text)
    for name, reward in subject.loaded.spec.rewards.items() if between is not None else ():
        least, most = getattr(reward, "min", None) or 0, getattr(reward, "max", None) or 10**9
        ends = (int(between[1]), int(between[2])) if between is not None else (0, 0)
        is_same = between is not None and getattr(reward, "unit", "") == f"{between[3]}s"
        if getattr(reward, "rule", "") == "length" and (not is_same or least > ends[0] or most < ends[1]):
            message = f"the prompt asks for {between and between[0]}, and '{name}' pays for others"
            yield subject.document.warning("prompt", message, "ask for what is paid", "limits", at="key")
    for found in _WORDS.finditer(text):
        size = int(found[2])
        for name, reward in subject.loaded.spec.rewards.items():
            if getattr(reward, "rule", "") != "length":
                continue
            least, most = getattr(reward, "min", None), getattr(reward, "max", None)
            if getattr(reward, "unit", "") != found[3].replace("aracter", "ar"):
                if size in (least, most):
                    message = f"the prompt speaks of {size} {found[3]}, and '{name}' counts {reward.unit}"  # type: ignore[attr-defined]
                    yield subject.document.warning(
                        f"rewards.{name}", message, f"write unit: {found[3]}", "limits", at="key"
                    )
                continue
            is_most = found[1] in ("at most", "no more than", "up to", "under")
            if (is_most and least and least > size) or (not is_most and most and most < size):
                message = f"the prompt asks for {found[0]}, and '{name}' pays for {least or 0} to {most or 'any'}"
                yield subject.document.warning("prompt", message, "ask for what is paid", "limits", at="key")
                return


def _labels(subject: Subject, path: str, term: Term, golds: Sequence[str]) -> Iterator[Finding]:
    """Labels of which the prompt names some and not others, or all with other capitals than the golds have."""
    told = fixed_text(subject)
    said, labels = told.lower(), sorted({gold.strip() for gold in golds if not NO_GOLD.fullmatch(gold)})
    written = [(label, re.search(rf"(?i)(?<!\w){re.escape(label)}(?!\w)", told)) for label in labels[:13]]
    is_exact = getattr(term.spec, "rule", "") == "exact_match" and getattr(term.spec, "normalise", "") == "none"
    if is_exact and 2 <= len(labels) <= 12 and len(golds) >= 4 and all(found for _, found in written):
        odd = next((found[0] for label, found in written if found is not None and label not in told), "")
        if odd:
            message = f"the prompt writes '{odd}', which the gold values have with other capitals: it earns nothing"
            yield subject.document.warning(path, message, "write normalise: case", "gold-form")
    if (
        not 3 <= len(labels) <= 12
        or len(golds) < 4
        or any(_NUMBER.fullmatch(label) or len(label) < 2 for label in labels)
    ):
        return
    named = [label for label in labels if re.search(rf"(?<!\w){re.escape(label.lower())}(?!\w)", said)]
    if 2 <= len(named) < len(labels) and 2 * len(named) >= len(labels):
        lost = next(label for label in labels if label not in named)
        message = f"the prompt names {', '.join(named[:4])}, and not '{lost[:40]}', which is a gold value too"
        yield subject.document.warning("prompt", message, "name all of them, or mend the rows", "odd-gold", at="key")
