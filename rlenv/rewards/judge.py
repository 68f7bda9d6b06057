"""The kind `judge`: a model's opinion as a number, or no number at all.

Source: eq. 2 of RL-Factory, R = f_judge(τ, c). A reply that cannot be read is asked for again, with another seed, and
then leaves the term invalid, as a judge that fails does, unless a quorum of several gave a verdict.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal

import jinja2
import orjson
from jinja2 import nodes
from pydantic import Field

from rlenv.concurrency.deadline import left_s
from rlenv.errors import RewardError, UsageError, told_as
from rlenv.language.kinds import Kind
from rlenv.language.spec import Bool, BreakerSpec, Float, Int, Prose, RewardSpec, SamplingSpec, Spec, Text
from rlenv.language.templates import Template, TemplateError, template_of
from rlenv.rewards import judge_panel as panel
from rlenv.rewards.base import GroupContext, Measured, RewardContext, Term, TermCompileContext, where_of_quotes
from rlenv.rewards.judge_asking import SYSTEM, Asker, Failed, Member
from rlenv.rewards.verdict import JudgeVerdict, Material, Question, ReplySchema, transcript
from rlenv.tools.model import endpoint_of
from rlenv.trajectory import Trajectory

_NO_ANSWER = "(no answer was given)"
_MATERIAL = frozenset(("answer", "message", "transcript"))
_SHARE_OF_GROUP = 0.98
_HARMLESS = frozenset(("trim", "default", "d", "string", "safe"))
_Above0 = Annotated[Float, Field(gt=0)]


class JudgeMemberSpec(Spec):
    """One of several judges."""

    endpoint: Text
    """An entry under `endpoints:`."""
    prompt: Prose | None = None
    """A prompt of its own; the term's otherwise."""
    sampling: SamplingSpec | None = None
    """Sampling of its own; the term's otherwise."""
    weight: _Above0 = 1.0
    """What its score counts against the others' in `mean`, `median`, `majority` and `trimmed`."""
    timeout_s: _Above0 | None = None
    """A limit of its own; the term's otherwise."""


class JudgeSpec(RewardSpec):
    """A model's judgement of the episode, from 0 (the scale's lower end) to 1 (its upper end).

    `prompt` is a template over `task`, `vars`, and the material `answer`, `message` (the last one) and `transcript`
    (the episode without thinking), each of which comes fenced. A prompt that names no material gets the message.
    """

    kind: Literal["judge"]
    endpoint: Text | None = None
    """An entry under `endpoints:`; or give `judges`."""
    prompt: Prose
    """What to judge, as a template."""
    rubric: Text | tuple[Text, ...] | None = None
    """What earns which score: a text, or a list of criteria. Not a template."""
    scale: tuple[Float, Float] = (1.0, 5.0)
    """The lowest and the highest score; the term's value is the score's place between them, 0 to 1."""
    schema_: Annotated[Mapping[str, Any] | None, Field(alias="schema")] = None
    """A JSON Schema for the reply, sent as structured output; by default an object with `reasoning` and `score`."""
    key: Text = "score"
    """The reply's key that holds the score."""
    judges: tuple[JudgeMemberSpec, ...] = ()
    """Several judges; all have to give a score, unless there is a `quorum`."""
    quorum: Annotated[Int, Field(ge=1)] | Annotated[Float, Field(gt=0, le=1)] | None = None
    """How many of the judges have to give a score: a number, or a share such as 0.5; others that fail are left out."""
    combine: panel.Combine = "mean"
    """How several scores become one: `mean`, `median`, `majority` (the lowest of equally frequent ones), `min`, `max`
    or `trimmed` (the mean without one lowest and one highest)."""
    timeout_s: _Above0 | None = None
    """Seconds for one judge's verdict, retries included; after them it has failed. By default the endpoint's limits."""
    pairwise: panel.PairwiseSpec | None = None
    """Compare with another answer, in both orders, in place of a score: 1 for a win, 0 for a loss. The prompt's
    material is then `first` and `second`."""
    breaker: BreakerSpec = BreakerSpec()
    """Fails at once for a while where an endpoint keeps failing; `{failures: 0}` always asks."""
    retries: Annotated[Int, Field(ge=0, le=10)] = 2
    """How often a reply that cannot be read is asked for again."""
    cache: Bool = True
    """Ask once for equal prompts in one process."""
    seed: Int = 0
    """Sent to the server; each retry sends the next one."""
    sampling: SamplingSpec = SamplingSpec(temperature=0.0)
    """Of all judges."""

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest score that comes out: of a comparison, a loss and a win."""
        return self.scale if self.pairwise is None else (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class _Judge:
    """A compiled judge term; `other` is the answer to compare with, where it compares with one."""

    name: str
    spec: JudgeSpec
    members: Sequence[Member]
    asker: Asker
    other: Template | None

    @property
    def costs(self) -> bool:
        """True where a high score costs: nobody is to be spared that by what no judge can read."""
        return self.spec.usual_weight < 0

    async def measure(self, context: RewardContext) -> Measured:
        answer = context.answer if context.answer is not None else _NO_ANSWER
        material: dict[str, Material] = {"answer": answer, "message": context.final_text}
        if self.other is None:
            material["transcript"] = transcript(context.turns)
        question = Question(
            task=context.task,
            vars=context.vars,
            material=material,
            parties=(_MATERIAL,),
            scope=context.shared(),
            caller=(context.seed, id(context.turns)),
        )
        ask = self._ask_score
        if self.other is not None and self.spec.pairwise is not None:
            with told_as(RewardError, "pairwise.with:", TemplateError):
                other = self.other.text(task=context.task, vars=context.vars)
            own_text = material[self.spec.pairwise.of]
            question = panel.paired(question, own_text, other, parties=(frozenset(panel.NAMES[:1]),))
            ask = self._ask_pair
        least = panel.needed(self.spec.quorum, len(self.members))
        requests = [ask(index, member, question) for index, member in enumerate(self.members)]
        return self._to_measured(await panel.ask_all(requests, self.members, least=least), context)

    async def measure_group(
        self, trajectories: Sequence[Trajectory], context: GroupContext
    ) -> list[Measured | RewardError]:
        """The win rate of each answer against others of its group."""
        assert self.spec.pairwise is not None
        pairwise, first = self.spec.pairwise, trajectories[0]
        texts = [_compared_text(one, pairwise) for one in trajectories]
        seed = f"{self.spec.seed} {first.split} {first.task_index} {sorted(one.seed for one in trajectories)}"
        # Drawn over the answers in an order of their own: where one stands in its group decides nothing.
        order = sorted(range(len(texts)), key=lambda place: (trajectories[place].seed, texts[place]))
        ranks = panel.drawn(len(texts), opponents=pairwise.limit, seed=seed)
        pairs = [(order[one], order[other]) for one, other in ranks]
        # The whole group is the caller: one text that a server breaks on is in many of its comparisons.
        caller = tuple((one.seed, id(one.turns)) for one in trajectories)
        parties = tuple(frozenset((name,)) for name in panel.NAMES)
        blank = Question(
            task=first.task, vars=context.vars, material={}, parties=parties, scope=context.shared(), caller=caller
        )

        async def compare(one: int, other: int) -> panel.Met:
            question = panel.paired(blank, texts[one], texts[other], parties=parties)
            place = f"{one} against {other}, judge"
            judges = [self._ask_pair(index, member, question, place=place) for index, member in enumerate(self.members)]
            with told_as(RewardError, "the judges gave no answer in time", TimeoutError):
                # Those that nobody can tell anything of end before the group is late, which has the others' verdicts.
                async with asyncio.timeout(None if (left := left_s()) == inf else _SHARE_OF_GROUP * left):
                    found = await panel.ask_all(
                        judges, self.members, least=panel.needed(self.spec.quorum, len(self.members))
                    )
            given = [each for each in found if isinstance(each, panel.Given)]
            share = self._combine(found)
            biased = sum(bool(each.details["position_bias"]) for each in given)
            return panel.Met(share, given[0].reason, biased, self._judge_details(found))

        results = await panel.play(pairs, compare, accounts=context.accounts, role=f"judge {self.name}")
        return panel.won(pairs, results, seeds=[one.seed for one in trajectories], least=pairwise.quorum)

    async def _ask_score(self, index: int, member: Member, question: Question) -> panel.Given | Failed:
        reply, is_cached = await self.asker.ask(f"judge {index}", member, question)
        if isinstance(reply, Failed):
            return reply
        worst = JudgeVerdict(self.spec.scale[self.costs], "the judge's server refuses what was written")
        verdict = reply.verdict or worst
        usage = {} if is_cached or reply.usage is None else reply.usage.as_dict()
        details = {"score": verdict.score, "attempts": reply.attempts, "is_cached": is_cached, **usage}
        return panel.Given(verdict.score, verdict.reason, details)

    async def _ask_pair(
        self, index: int, member: Member, question: Question, *, place: str = "judge"
    ) -> panel.Given | Failed:
        found = await panel.compare(self.asker, f"{place} {index}", member, question, costs=self.costs)
        return found if isinstance(found, Failed) else panel.Given(found.score, found.reason, found.as_details())

    def _combine(self, results: Sequence[panel.Given | Failed]) -> float:
        given = [(one, by) for one, by in zip(results, self.members, strict=True) if isinstance(one, panel.Given)]
        weights = [by.weight for _, by in given]
        return panel.combine([one.score for one, _ in given], how=self.spec.combine, weights=weights)

    def _judge_details(self, results: Sequence[panel.Given | Failed]) -> list[dict[str, Any]]:
        """The details of a term, an entry for each judge."""
        return [
            {
                "endpoint": by.endpoint.name,
                "model": by.endpoint.model,
                "prompt_sha256": by.digest,
                **(one.details if isinstance(one, panel.Given) else {"score": None, "error": one.why}),
            }
            for one, by in zip(results, self.members, strict=True)
        ]

    def _to_measured(self, results: Sequence[panel.Given | Failed], context: RewardContext) -> Measured:
        scale, raw = self.spec.ends, self._combine(results)
        given = [(one, by) for one, by in zip(results, self.members, strict=True) if isinstance(one, panel.Given)]
        details = {"raw": raw, "scale": list(scale), "judges": self._judge_details(results)}
        if self.other is not None:
            details["position_bias"] = sum(bool(one.details["position_bias"]) for one, _ in given)
        first, by = given[0]
        where = where_of_quotes(first.reason, context.messages, context.turns, all_turns="transcript" in by.names)
        low, high = scale
        return Measured((raw - low) / (high - low), first.reason, details, where)


def _compared_text(one: Trajectory, pairwise: panel.PairwiseSpec) -> str:
    """The part of an episode that is compared."""
    if pairwise.of == "message":
        return one.turns[-1].parsed.content if one.turns else ""
    return _NO_ANSWER if one.answer is None else one.answer


def _rubric_text(spec: JudgeSpec) -> str:
    if spec.rubric is None:
        return ""
    lines = spec.rubric if isinstance(spec.rubric, str) else "\n".join(f"- {line}" for line in spec.rubric)
    return f"\n\nRubric:\n{lines}"


def _compile(name: str, spec: JudgeSpec, context: TermCompileContext) -> Term:
    low, high = spec.scale
    if not low < high:
        raise UsageError(f"{list(spec.scale)} is no range", key="scale", hint="the first number is the lower one")
    if (spec.endpoint is None) == (not spec.judges):
        raise UsageError("give either endpoint or judges", hint="name one of them")
    specs = spec.judges or (JudgeMemberSpec(endpoint=spec.endpoint or ""),)
    is_weighted = any("weight" in one.model_fields_set for one in spec.judges)
    panel.check_panel(spec.combine, count=len(specs), is_weighted=is_weighted, quorum=spec.quorum)
    reply, other = _reply_schema(spec), None
    if spec.pairwise is not None:
        _check_pairwise(spec.pairwise)
        if spec.pairwise.with_ != "group":
            other = template_of(spec.pairwise.with_, key="pairwise.with", names=frozenset(("task", "vars")))
    members = [
        _compile_member(member, spec, reply, context, at=f"judges.{index}." if spec.judges else "")
        for index, member in enumerate(specs)
    ]
    asker = Asker(
        reply=reply,
        names=_material_names(spec),
        shown=("message",) if spec.pairwise is None else panel.NAMES,
        says=f"'{spec.key}' goes from {low:g} to {high:g}." if spec.pairwise is None else panel.SAYS,
        ending=_rubric_text(spec),
        retries=spec.retries,
        seed=spec.seed,
        breaker=spec.breaker,
        is_cached=spec.cache,
    )
    judge = _Judge(name, spec, members, asker, other)
    if spec.pairwise is not None and spec.pairwise.with_ == "group":
        return Term(name=name, spec=spec, ask_group=judge.measure_group)
    return Term(name=name, spec=spec, measure_async=judge.measure)


def _check_pairwise(spec: panel.PairwiseSpec) -> None:
    for key in ("limit", "quorum"):
        if spec.with_ != "group" and key in spec.model_fields_set:
            raise UsageError("it is of a comparison among a group", key=f"pairwise.{key}", hint="leave it out")


def _material_names(spec: JudgeSpec) -> frozenset[str]:
    return _MATERIAL if spec.pairwise is None else frozenset(panel.NAMES)


def _reply_schema(spec: JudgeSpec) -> ReplySchema:
    """Raises UsageError: the schema is none, or a comparison is to have a form of its own."""
    if spec.pairwise is None:
        return ReplySchema(spec.schema_, key=spec.key, scale=spec.scale)
    for key, attribute in (("scale", "scale"), ("schema", "schema_"), ("key", "key")):
        if attribute in spec.model_fields_set:
            raise UsageError("a comparison has no use for it", key=key, hint="leave it out, or leave pairwise out")
    return ReplySchema(None, key=panel.KEY, scale=(0.0, 1.0), choices=panel.CHOICES)


def _compile_member(
    member: JudgeMemberSpec, spec: JudgeSpec, reply: ReplySchema, context: TermCompileContext, *, at: str
) -> Member:
    endpoint = endpoint_of(member.endpoint, context, key=f"{at}endpoint")
    source, key = (spec.prompt, "prompt") if member.prompt is None else (member.prompt, f"{at}prompt")
    material = _material_names(spec)
    template = template_of(source, key=key, names=material | {"task", "vars"})
    if spec.pairwise is not None and len(material & template.names) == 1:
        (name,) = material & template.names
        raise UsageError(f"it shows '{name}' alone", key=key, hint="name first and second, or neither: both follow")
    if changed := _find_changed(source, material):
        raise UsageError(
            f"it changes '{changed}', which is material and stands fenced, as JSON",
            key=key,
            hint=f"write {{{{ {changed} }}}} as it is, and say in words what the judge shall look at",
        )
    sampling = member.sampling or spec.sampling
    parts: list[Any] = [
        source,
        _rubric_text(spec),
        reply.schema,
        list(spec.scale),
        reply.key,
        SYSTEM,
        sampling.model_dump(),
    ]
    options = spec.pairwise.model_dump() if spec.pairwise is not None else {}
    known = {"least" if key == "quorum" else key: value for key, value in options.items()} or None  # as tapes know it
    parts += [endpoint.sampling.model_dump(exclude={"seed"}), known, spec.seed]
    digest = hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()
    limit_s = member.timeout_s or spec.timeout_s
    return Member(endpoint, template, frozenset(template.names), sampling, digest, member.weight, limit_s)


def _find_changed(source: str, material: frozenset[str]) -> str:
    """The material that a template does more with than write it, "" where there is none: a filter or an index would
    break its fence, or fail for what a policy wrote."""
    tree = jinja2.Environment().parse(source)
    for node in tree.find_all((nodes.Filter, nodes.Getattr, nodes.Getitem, nodes.Call, nodes.BinExpr, nodes.For)):
        if isinstance(node, (nodes.And, nodes.Or)) or (isinstance(node, nodes.Filter) and node.name in _HARMLESS):
            continue
        for name in node.find_all(nodes.Name):
            if name.name in material:
                return name.name
    return ""


KIND = Kind(JudgeSpec, _compile, values=(0, 1), asks_models=True)
