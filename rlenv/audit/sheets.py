"""Texts that are the same on all tasks and say golds beside what tells one task from the others.

A description may do so, or a table of answers that nobody was to ask for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from rlenv.audit.place_rules import Sure, dealt_anew, holds, is_sure, same
from rlenv.audit.probes import cut, named_by, pieces, ranking, words_in
from rlenv.audit.subject import Subject, texts_of
from rlenv.messages import ToolCall, ToolResult

__all__ = ["Sheet", "beside", "own_words", "said_beside", "sheets"]

_MOST_BESIDE = 300
_TOKEN = re.compile(r"\w+|[-+*/^%<>=]")
_RARE_WORD = 5
_MOST_WORDS = 8
_LEAST_WORDS = 4
_QUESTION = 0.8
"""The share of a question's words that a line has which repeats it."""


def beside(prompts: Sequence[str], subjects: Sequence[Subject], golds: Sequence[str]) -> Iterator[tuple[str, Sure]]:
    """Descriptions, schemas and what all prompts say alike, such as examples: where, and what they give."""
    lines = [prompt.splitlines() for prompt in prompts]
    shared = Counter(line for some in lines for line in set(some))
    alike = [line for line, count in shared.items() if 2 * count > len(prompts)]
    own = own_words(["\n".join(line for line in some if line not in alike) for some in lines])
    tools = subjects[0].environment.parts.tools.values()
    told = {f"{kind} of tool '{tool.name}'": some for tool in tools for kind, some in pieces(tool).items()}
    for where, some in {"prompt, where it is the same on all tasks": cut("\n".join(alike)), **told}.items():
        if sure := said_beside([some] * len(golds), own, golds):
            yield where, sure


def own_words(prompts: Sequence[str]) -> list[set[str]]:
    """The words of each prompt that few others have."""
    words = [set(words_in(prompt)) for prompt in prompts]
    common = Counter(word for some in words for word in some)
    return [{word for word in some if _RARE_WORD * common[word] <= len(words) or common[word] == 1} for some in words]


def said_beside(said: Sequence[Sequence[str]], own: Sequence[Set[str]], golds: Sequence[str]) -> Sure | None:
    """Whether those of the pieces that are said on each task which hold a word of its own give golds away."""
    near = []
    for pieces_of, words, gold in zip(said, own, golds, strict=True):
        others = words - set(words_in(gold))
        near.append("\n".join(piece for piece in pieces_of if others & set(words_in(piece))))
    return _sure(near, golds)


def _sure(near: Sequence[str], golds: Sequence[str]) -> Sure | None:
    fired = [at for at, text in enumerate(near) if text and golds[at]][:_MOST_BESIDE]
    hits = [at for at in fired if holds(near[at], golds[at])]
    if not hits:
        return None
    # A line that names all there is says other tasks' golds as well.
    pairs = [holds(near[at], golds[other]) for at in fired for other in fired if not same(golds[at], golds[other])]
    chance = max(sum(pairs) / max(1, len(pairs)), dealt_anew(["\0"] * len(fired), [golds[at] for at in fired]))
    if not is_sure(len(hits), len(fired), min(len(golds), _MOST_BESIDE), chance=chance, tries=len(golds)):
        return None
    taken = {at: golds[at] for at in hits}
    return Sure("what stands beside the prompt's own words", len(hits), len(fired), chance, taken)


class Sheet:
    """What a listed name gives on all tasks alike, by the words of the prompts.

    Where the oracle does not use the tool, a line has to repeat the question: looking a word up may be the task.
    """

    def __init__(self, where: str, text: str, call: ToolCall, subjects: Sequence[Subject]) -> None:
        self.where = where
        self._call = call
        self._lines = text.splitlines()
        used = sum(any(made.name == call.name for made, _ in one.oracle_calls()) for one in subjects)
        self._least = 0.0 if 2 * used > len(subjects) else _QUESTION
        self._asked = [_asked(one) if self._least else [] for one in subjects]
        self._questions = [set(words_in(one.prompt)) for one in subjects]
        self._words = [set(words_in(_prompt(one))) for one in subjects]

    @property
    def is_blind(self) -> bool:
        """Whether no line could repeat a question, since these have too few words to be known by."""
        return self._least > 0 and not any(self._asked)

    def sure(self, golds: Sequence[str], more: Sequence[str] = ()) -> Sure | None:
        """Whether the lines nearest to each task's prompt, and to what `more` says on it alone, give golds away."""
        near = []
        for at, gold in enumerate(golds):
            lines = [*self._lines, *(more[at].splitlines() if more else ())]
            near.append(self._near(at, lines, set(words_in(gold))))
        return _sure(near, golds)

    def _near(self, at: int, lines: Sequence[str], but: Set[str]) -> str:
        spoken = [(line, set(words_in(line)) - but) for line in lines]
        most = max((len(self._words[at] & said) for _, said in spoken), default=0)
        question = self._questions[at]
        least = max(_LEAST_WORDS, self._least * len(question)) if self._least else 1
        # The whole question in a line is repeated, however short it is.
        if whole := [line for line in lines if any(one in _plain(line) for one in self._asked[at])]:
            return "\n".join(whole)
        kept = [line for line, said in spoken if len(self._words[at] & said) == most]
        return "\n".join(kept) if most and any(len(question & set(words_in(one))) >= least for one in kept) else ""

    def asked(self) -> list[ToolCall] | None:
        """The query for each task's rarest words, since a table is shown cut; None where it is no query."""
        common = Counter(word for some in self._words for word in some)
        rarest = [sorted(some, key=lambda word: (common[word], word))[:_MOST_WORDS] for some in self._words]
        made = [ranking(self._call, self._lines[0], some) for some in rarest] if self._lines else []
        return [one for one in made if one is not None] if made and None not in made else None


def sheets(subjects: Sequence[Subject], told: Sequence[Mapping[str, ToolResult]]) -> Iterator[Sheet]:
    """The texts of listed names that are one on all tasks, but for what is there to be read.

    That is what the oracle asks for on any task, and what a prompt or a tool's description names.
    """
    tools = subjects[0].environment.parts.tools
    calls = [call for one in subjects for call, _ in one.oracle_calls()]
    asked = [str(value) for call in calls for value in call.arguments.values()]
    shown = "\n".join(dict.fromkeys([*map(_prompt, subjects), *asked, *(tool.description for tool in tools.values())]))
    asking = [one for one in told if one]
    for label in dict.fromkeys(label for one in asking for label in one):
        call = named_by(tools, label)
        given = [one[label] for one in asking if label in one]
        texts = {result.text for result in given if not result.is_error}
        if call is None or len(texts) != 1 or 4 * len(given) < 3 * len(asking) or holds(shown, call[1]):
            continue
        yield Sheet(f"result of {label}", texts.pop(), call[0], subjects)


def _prompt(subject: Subject) -> str:
    return "\n\n".join(message.content for message in subject.gold.messages)


def _asked(subject: Subject) -> list[str]:
    """The question as a sheet would hold it: the prompt, and what of the row stands in it as a sentence."""
    shown = _plain(subject.prompt)
    texts = [_plain(text) for text in texts_of(subject.task)]
    return [one for one in (shown, *texts) if len(one.split()) >= _LEAST_WORDS and one in shown]


def _plain(text: str) -> str:
    return f" {' '.join(_TOKEN.findall(text.casefold()))} "
