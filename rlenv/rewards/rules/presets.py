"""Presets: the scoring of gsm8k, Search-R1, RL-Factory and SkyRL as rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from rlenv.errors import RewardError, UnknownEntry
from rlenv.language.kinds import Kind
from rlenv.language.spec import Float, Int, Text
from rlenv.messages import ToolCall, ToolResult
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.normalise import qa
from rlenv.rewards.outages import Lost, count_against, known_call, lost_calls, may_be_lost, settled, settling
from rlenv.rewards.rows import Table, read_table, row_key
from rlenv.rewards.rule import RuleSpec, compile_accepted, gold_text, where_answer
from rlenv.rewards.rules.text import MAX_CHARS, Expected, check_qa
from rlenv.tools.base import Tool
from rlenv.trajectory import Turn

__all__ = ["GSM8K", "RL_FACTORY_SEARCH", "SEARCH_R1", "SEARCH_R1_FORMAT", "SKYRL_GSM8K", "SKYRL_SYNSQL", "Gsm8kSpec"]
__all__ += ["RlFactorySearchSpec", "SearchR1FormatSpec", "SearchR1Spec", "SkyrlGsm8kSpec", "SkyrlSynsqlSpec"]
__all__ += ["check_qa", "equals", "has_search_r1_form", "read_gsm8k", "read_solution"]

_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"-?[0-9.,]+")


class SearchR1Spec(RuleSpec):
    """Search-R1's exact match: 1 if the answer equals a gold answer after `qa` normalisation, 0 otherwise."""

    rule: Literal["search_r1"]
    expect: Expected = "{{ task.golden_answers }}"
    """The gold answers; a template may give a list."""


class Gsm8kSpec(RuleSpec):
    """GSM8K as verl 0.9.1 scores it: 1 if the last message ends on the gold number, 0 otherwise.

    `answer:` plays no part: the number is read from the last message, outside thinking and calls.
    """

    rule: Literal["gsm8k"]
    expect: Expected = "{{ task.answer }}"
    """The gold number, or a GSM8K solution that ends on `#### number`."""
    method: Literal["strict", "flexible"] = "strict"
    """`strict`: the number after the last `#### `; `flexible`: the last number of any form."""
    max_chars: Annotated[Int, Field(ge=1)] = 300
    """Read only this many characters from the end, as the original does."""


def read_gsm8k(text: str, *, method: Literal["strict", "flexible"], clip_chars: int = 300) -> str | None:
    """The number that a solution ends on, as text, None where there is none.

    Source: `extract_solution` of verl 0.9.1 `reward_score/gsm8k.py`. Thousands commas are dropped by `strict` only,
    and a full stop after the number stays on it, there as here.
    """
    text = text[-clip_chars:]
    if method == "strict":
        found = _STRICT.findall(text)
        return found[-1].replace(",", "") if found else None
    for candidate in reversed(_FLEXIBLE.findall(text)):
        if candidate != ".":
            return str(candidate)
    return None


def _compile_gsm8k(name: str, spec: Gsm8kSpec, context: TermCompileContext) -> Term:
    return _compile_number_rule(name, spec, partial(read_gsm8k, method=spec.method, clip_chars=spec.max_chars))


def _compile_number_rule(name: str, spec: Gsm8kSpec | SkyrlGsm8kSpec, read: Callable[[str], str | None]) -> Term:
    """1 where what `read` finds in the last message is a gold number."""
    accepted = compile_accepted(spec.expect)

    def measure(context: RewardContext) -> Measured:
        golds = [_gold_number(gold_text(value)) for value in accepted(context)]
        found = read(context.final_text)
        return Measured(0.0, "no number") if found is None else Measured(float(found in golds), found)

    return Term(name=name, spec=spec, measure=measure, where=RewardContext.where_final)


def _gold_number(text: str) -> str:
    # The dataset's own column holds the whole solution; its number stands after the last marker.
    return text.rpartition("####")[2].replace(",", "").strip()


def _compile_search_r1(name: str, spec: SearchR1Spec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)

    def measure(context: RewardContext) -> Measured:
        golds = [qa(gold_text(value)) for value in accepted(context)]
        return Measured(float(equals(context.answer, golds)), context.answer or "no answer")

    return Term(name=name, spec=spec, measure=measure, check_gold=check_qa(accepted), where=where_answer)


def equals(answer: str | None, golds: Sequence[str]) -> bool:
    """True if an answer is one of the accepted ones, which are in `qa` form already; a very long one is none."""
    return answer is not None and len(answer) <= MAX_CHARS and qa(answer) in golds


SEARCH_R1 = Kind(SearchR1Spec, _compile_search_r1, gold="expect", several=True, normalise=qa)
GSM8K = Kind(Gsm8kSpec, _compile_gsm8k, gold="expect", several=True, normalise=_gold_number)


_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_NEXT = {
    ("start", "<think>"): "in_think",
    ("information", "<think>"): "in_think",
    ("in_think", "</think>"): "thought",
    ("thought", "<search>"): "in_search",
    ("in_search", "</search>"): "searched",
    ("searched", "<information>"): "in_information",
    ("in_information", "</information>"): "information",
    ("thought", "<answer>"): "in_answer",
    ("in_answer", "</answer>"): "end",
}


class SearchR1FormatSpec(RuleSpec):
    """Search-R1's exact match with its rewards for form (version 0.3).

    Correct: 1, or 1 - s where the form is wrong. Not correct and in form: s, or s + r where a gold answer stands in
    what was retrieved. Wrong answer out of form: f. No answer and out of form: 0.
    """

    rule: Literal["search_r1_format"]
    expect: Expected = "{{ task.golden_answers }}"
    """The gold answers; a template may give a list."""
    structure: Float = 0.2
    """s: what form alone is worth."""
    final: Float = 0.1
    """f: what an answer out of form is worth."""
    retrieval: Float = 0.0
    """r: what is added where a gold answer was retrieved."""


class RlFactorySearchSpec(RuleSpec):
    """The reward of RL-Factory's search environment, on the policy's own text.

    With T = (f if the answer tags alternate, else -f) + (-f if there are more than two calls): correct 1 + T/2, wrong
    T, no answer -f + T/2. The original also reads what tools wrote, so that an answer in a retrieved page earns 1.05
    there; here it earns nothing.
    """

    rule: Literal["rl_factory_search"]
    expect: Expected = "{{ task.golden_answers }}"
    """The gold answers; a template may give a list."""
    structure: Float = 0.1
    """f: 0.1 in training and 0 in validation, there."""


def _read_symbols(turn: Turn) -> Iterator[str]:
    """The tags and texts of one action in order; a call that the dialect read stands as a search."""
    text, position = turn.action, 0
    for call in turn.parsed.calls:
        if call.start < 0:
            continue
        yield from _TAG.split(text[position : call.start])
        yield from ("<search>", "</search>")
        position = call.end
    yield from _TAG.split(text[position:])
    if any(call.start < 0 for call in turn.parsed.calls):
        yield from ("<search>", "</search>")


def has_search_r1_form(turns: tuple[Turn, ...] | list[Turn]) -> bool:
    """True if an episode goes think, search, information, think, …, answer, with nothing but white space between.

    Source: `is_valid_sequence` of Search-R1 `verl/utils/reward_score/qa_em_format.py` (v0.3). Information is what the
    environment answered between two actions; a policy that writes the tag itself is out of form. One action may hold
    several calls, which count as one search.
    """
    state = "start"
    for index, turn in enumerate(turns):
        if index:
            if state != "searched":
                return False
            state = "information"
        for symbol in _read_symbols(turn):
            if not symbol.strip():
                continue
            if symbol in ("<information>", "</information>"):
                return False
            if _TAG.fullmatch(symbol):
                if state == "searched" and symbol == "<search>":
                    state = "thought"
                following = _NEXT.get((state, symbol))
                if following is None:
                    return False
                state = following
            elif not state.startswith("in_"):
                return False
    return state == "end"


def _compile_search_r1_format(name: str, spec: SearchR1FormatSpec, context: TermCompileContext) -> Term:
    accepted, tools = compile_accepted(spec.expect), context.tools

    def parts(context: RewardContext) -> tuple[list[str], bool, bool]:
        golds = [qa(gold_text(value)) for value in accepted(context)]
        return golds, has_search_r1_form(list(context.turns)), equals(context.answer, golds)

    def measured(context: RewardContext, in_form: bool, is_right: bool, retrieved: bool) -> Measured:
        if is_right:
            value = 1.0 if in_form else 1.0 - spec.structure
        elif in_form:
            value = spec.structure + (spec.retrieval if retrieved else 0.0)
        else:
            value = 0.0 if context.answer is None else spec.final
        return Measured(value, context.answer or "no answer", {"in_form": in_form, "correct": is_right})

    if not spec.retrieval:

        def measure(context: RewardContext) -> Measured:
            _, in_form, is_right = parts(context)
            return measured(context, in_form, is_right, False)

        return Term(name=name, spec=spec, measure=measure, check_gold=check_qa(accepted), where=where_answer)

    async def measure_async(context: RewardContext) -> Measured:
        golds, in_form, is_right = parts(context)
        pages = (result for turn in context.turns for result in turn.results)
        retrieved = any(_page_holds(page, golds) for page in pages)
        if in_form and not is_right and not retrieved:
            retrieved = await _is_found_again(context, golds, tools)
        return measured(context, in_form, is_right, retrieved)

    return Term(name=name, spec=spec, measure_async=measure_async, check_gold=check_qa(accepted), where=where_answer)


def _page_holds(page: ToolResult, golds: list[str]) -> bool:
    # The one place that reads what tools wrote: it rewards finding the page, never an answer.
    if page.outcome != "ok":
        return False
    text = qa(page.text)
    return any(gold in text for gold in golds if gold)


async def _is_found_again(context: RewardContext, golds: list[str], tools: Mapping[str, Tool]) -> bool:
    """True if a gold answer stands in a page that a call would have found on another day.

    Raises RewardError: nobody can tell.
    """
    error: RewardError | None = None
    async for page in settling(lost_calls(context, tools), tools, context):
        if isinstance(page, RewardError):
            error = error or page
        elif _page_holds(page, golds):
            return True
    if error is not None:
        raise error
    return False


_ANSWER_TAG = re.compile(r"</?answer>")
_MOST_CALLS = 2


def _compile_rl_factory(name: str, spec: RlFactorySearchSpec, context: TermCompileContext) -> Term:
    accepted, tools = compile_accepted(spec.expect), context.tools
    f = spec.structure

    async def measure(context: RewardContext) -> Measured:
        golds = [qa(gold_text(value)) for value in accepted(context)]
        tags = [tag for turn in context.turns for tag in _ANSWER_TAG.findall(turn.parsed.content)]
        alternate = bool(tags) and all(tag == ("<answer>", "</answer>")[index % 2] for index, tag in enumerate(tags))
        alternate = alternate and len(tags) % 2 == 0
        calls = sum(isinstance(call, ToolCall) for turn in context.turns for call in turn.parsed.calls)
        if calls > _MOST_CALLS:  # those that an outage lost are made again by no fault
            lost = [one for one in lost_calls(context, tools) if one.code is None]
            calls -= len(lost)
            if calls <= _MOST_CALLS:
                calls += await count_against(lost, tools, context, most=_MOST_CALLS + 1 - calls)
        t = (f if alternate else -f) + (-f if calls > _MOST_CALLS else 0.0)
        answer = context.answer
        wrong_or_right = 1 + t / 2 if equals(answer, golds) else t
        value = -f + t / 2 if answer is None else wrong_or_right
        return Measured(value, answer or "no answer", {"calls": calls, "tags_alternate": alternate})

    return Term(name=name, spec=spec, measure_async=measure, check_gold=check_qa(accepted), where=where_answer)


SEARCH_R1_FORMAT = Kind(SearchR1FormatSpec, _compile_search_r1_format, gold="expect", several=True, normalise=qa)
RL_FACTORY_SEARCH = Kind(RlFactorySearchSpec, _compile_rl_factory, gold="expect", several=True, normalise=qa)


_FORBIDDEN = re.compile(r"</?(?:think|sql|observation)\b", re.IGNORECASE)
_OBSERVED = re.compile("</observation>", re.IGNORECASE)
_THINKS_ON = re.compile(r"\s*<think>", re.IGNORECASE)


class SkyrlGsm8kSpec(RuleSpec):
    """GSM8K as skyrl-gym 0.4.0 scores it: 1 if the first number after `#### ` is the gold one, 0 otherwise.

    It reads all of the last message and its first marker, where verl reads the last one of the last 300 characters.
    """

    rule: Literal["skyrl_gsm8k"]
    expect: Expected = "{{ task.answer }}"
    """The gold number, or a GSM8K solution that ends on `#### number`."""


class SkyrlSynsqlSpec(RuleSpec):
    """Text-to-SQL as skyrl-gym 0.4.0 scores it: -1 out of form, 1 if the rows are the gold query's as a set, else 0.

    In form is one `<solution>` after some thinking, with thinking after each observation. The order of rows and how
    often each stands do not count, and both queries are run by the tool.
    """

    rule: Literal["skyrl_synsql"]
    tool: Text
    """The tool that runs a query."""
    argument: Text = "sql"
    """Its argument that takes the query."""
    expect: Text = "{{ task.gold_sql }}"
    """The gold query."""


def _compile_skyrl_gsm8k(name: str, spec: SkyrlGsm8kSpec, context: TermCompileContext) -> Term:
    def first(text: str) -> str | None:
        match = _STRICT.search(text)
        return None if match is None else match[1].replace(",", "")

    return _compile_number_rule(name, spec, first)


def read_solution(text: str) -> str | None:
    """The query of a text in form, None where it is not.

    Source: `verify_format_and_extract` of skyrl-gym 0.4.0 `envs/sql/utils.py`.
    """
    if text.count("<solution>") != 1:
        return None
    before, _, after = text.partition("<solution>")
    if after.count("</solution>") != 1:
        return None
    query = after.partition("</solution>")[0]
    opened = text.find("<think>")
    if _FORBIDDEN.search(query) or opened < 0 or "</think>" not in text[opened:]:
        return None
    for match in _OBSERVED.finditer(before):
        if _THINKS_ON.match(before, match.end()) is None:
            return None
    return query.strip()


def _compile_skyrl_synsql(name: str, spec: SkyrlSynsqlSpec, context: TermCompileContext) -> Term:
    if spec.tool not in context.tools:
        raise UnknownEntry("tools", spec.tool, context.tools, key="tool")
    accepted, tools = compile_accepted(spec.expect), context.tools
    tool = tools[spec.tool]

    async def measure(context: RewardContext) -> Measured:
        # The policy's own actions; what stood between them is marked and never read.
        text = "<observation></observation>".join(turn.action for turn in context.turns)
        query = read_solution(text)
        if query is None:
            return Measured(-1.0, "out of form")
        (gold,) = accepted(context)
        target = await _gold_rows(context, gold_text(gold))
        mine = await context.call(spec.tool, {spec.argument: query})
        known = {spec.argument: gold_text(gold)}
        if may_be_lost(mine, tools, known=known):
            mine = await settled(Lost(spec.tool, {spec.argument: query}, mine), tool, context, known=known)
        if mine.outcome != "ok":
            return Measured(0.0, mine.text, {"outcome": mine.outcome})
        table = read_table(mine.value)
        if table is None or table.is_cut:
            # The gold result is whole under the same limits, so that one which had to be cut is another.
            return Measured(0.0, "cut at the tool's limit" if table is not None else "no rows")
        try:
            return Measured(float(_as_set(table) == target), query)
        except (TypeError, ValueError, RecursionError) as error:
            return Measured(0.0, f"cells that cannot be compared: {type(error).__name__}")

    async def _gold_rows(context: RewardContext, query: str) -> frozenset[tuple[Any, ...]]:
        result = await known_call(tool, {spec.argument: query}, context)
        if result.outcome != "ok":
            raise RewardError(f"the gold query ended as {result.outcome}: {result.text:.200}")
        table = read_table(result.value)
        if table is None or table.is_cut:
            raise RewardError("the rows of the gold query are not all there; raise the tool's row limit")
        return _as_set(table)

    return Term(name=name, spec=spec, measure_async=measure, where=RewardContext.where_final)


def _as_set(table: Table) -> frozenset[tuple[Any, ...]]:
    return frozenset(map(row_key, table.rows))


SKYRL_GSM8K = Kind(SkyrlGsm8kSpec, _compile_skyrl_gsm8k, gold="expect")
SKYRL_SYNSQL = Kind(SkyrlSynsqlSpec, _compile_skyrl_synsql, gold="expect")
