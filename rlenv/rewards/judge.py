"""The kind `judge`: a model's opinion as a number, or no number at all.

Source: eq. 2 of RL-Factory, R = f_judge(τ, c). A reply that cannot be read is asked for again, with another seed, and
then leaves the term invalid. What the policy and its tools wrote reaches the judge only as fenced material.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import jinja2
import orjson
from jinja2 import nodes
from pydantic import Field

from rlenv._base.bounded import cut_middle
from rlenv._base.jsonable import plain
from rlenv.concurrency.lanes import Asked, entered, here
from rlenv.dialects.control_tokens import broken
from rlenv.endpoints import REFUSED, Client, Endpoint
from rlenv.endpoints.account import asking
from rlenv.endpoints.wire import Completion
from rlenv.errors import EndpointError, RewardError, UsageError
from rlenv.language.kinds import Kind
from rlenv.language.spec import Bool, Float, Int, RewardSpec, SamplingSpec, Spec, Text
from rlenv.language.templates import Template, TemplateError, template_of
from rlenv.messages import Message
from rlenv.rewards import places
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.fence import Fence, Material, transcript
from rlenv.rewards.verdict import Combine, ReplySchema, UnreadableReply, Verdict, combine
from rlenv.tools.model import endpoint_of

__all__ = ["KIND", "JudgeMemberSpec", "JudgeSpec"]

_NAMES = frozenset(("task", "vars", "answer", "message", "transcript"))
_MATERIAL = frozenset(("answer", "message", "transcript"))
_SYSTEM = "You are a strict and impartial judge of an assistant's work. {fence}\n{form}"
_CACHED = 65_536
_LIMITS = (65_536, 16_384, 4_096, 1_024)
"""The most characters of one material, and of what is shown to a judge that does not take so many."""
_HARMLESS = frozenset(("trim", "default", "d", "string", "safe"))
_FILTERED = "content_filter"
_MOST_TEXT = 2_000
"""Characters of a text in the reply to a question that is asked again because the last reply was cut."""


class JudgeMemberSpec(Spec):
    """One of several judges."""

    endpoint: Text
    """An entry under `endpoints:`."""
    prompt: Text | None = None
    """A prompt of its own; the term's otherwise."""
    sampling: SamplingSpec | None = None
    """Sampling of its own; the term's otherwise."""


class JudgeSpec(RewardSpec):
    """What a model thinks of the episode, from 0 (the scale's lower end) to 1 (its upper end).

    `prompt` is a template over `task`, `vars`, and the material `answer`, `message` (the last one) and `transcript`
    (the episode without thinking), each of which comes fenced. A prompt that names no material gets the message.
    """

    kind: Literal["judge"]
    endpoint: Text | None = None
    """An entry under `endpoints:`; or give `judges`."""
    prompt: Text
    """What to judge, as a template."""
    rubric: Text | tuple[Text, ...] | None = None
    """What earns which score: a text, or a list of criteria. Not a template."""
    scale: tuple[Float, Float] = (1.0, 5.0)
    """The lowest and the highest score; the term's value is the score's place between them, 0 to 1."""
    schema_: Annotated[Mapping[str, Any] | None, Field(alias="schema")] = None
    """A JSON Schema for the reply, sent as structured output; by default an object with `reasoning` and `score`."""
    value_key: Text = "score"
    """The reply's key that holds the score."""
    judges: tuple[JudgeMemberSpec, ...] = ()
    """Several judges; all have to give a score."""
    combine: Combine = "mean"
    """How several scores become one: `mean`, `median` or `majority` (the lowest of equally frequent ones)."""
    retries: Annotated[Int, Field(ge=0, le=10)] = 2
    """How often a reply that cannot be read is asked for again."""
    cache: Bool = True
    """Ask once for equal prompts in one process."""
    seed: Int = 0
    """Sent to the server; each retry sends the next one."""
    sampling: SamplingSpec = SamplingSpec(temperature=0.0)
    """Of all judges."""


@dataclass(frozen=True, slots=True)
class _Member:
    endpoint: Endpoint
    prompt: Template
    names: frozenset[str]
    sampling: SamplingSpec
    digest: str


@dataclass(frozen=True, slots=True)
class _Asked:
    verdict: Verdict
    attempts: int
    usage: Mapping[str, int]


class _Cache:
    """Verdicts by prompt. Equal questions at once share one request; a failure is never kept."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, _Asked] = OrderedDict()
        self._running: dict[tuple[bytes, asyncio.AbstractEventLoop], asyncio.Future[_Asked | None]] = {}

    async def get(self, key: bytes, ask: Callable[[], Any]) -> tuple[_Asked, bool]:
        """The verdict and whether it was known or asked for already."""
        place = (key, asyncio.get_running_loop())
        while True:
            if (known := self._known.get(key)) is not None:
                return known, True
            running = self._running.get(place)
            if running is None:
                break
            if (shared := await asyncio.shield(running)) is not None:
                return shared, True
        future: asyncio.Future[_Asked | None] = place[1].create_future()
        self._running[place] = future
        asked: _Asked | None = None
        try:
            asked = await ask()
        finally:
            # None tells those who wait to ask for themselves: one caller's failure is not another's.
            del self._running[place]
            future.set_result(asked)
        assert asked is not None
        self._known[key] = asked
        while len(self._known) > _CACHED:
            self._known.popitem(last=False)
        return asked, False


@dataclass(frozen=True, slots=True)
class _Judge:
    """A compiled judge term."""

    spec: JudgeSpec
    members: Sequence[_Member]
    reply: ReplySchema
    cache: _Cache = field(default_factory=_Cache)

    async def measure(self, context: RewardContext) -> Measured:
        material: dict[str, Material] = {
            "answer": context.answer if context.answer is not None else "(no answer was given)",
            "message": context.final_text,
            "transcript": transcript(context.turns),
        }
        asking = [
            asyncio.ensure_future(self._ask(index, member, context, material))
            for index, member in enumerate(self.members)
        ]
        try:
            found = await asyncio.gather(*asking)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raw = combine([asked.verdict.score for asked, _ in found], how=self.spec.combine)
        low, high = self.spec.scale
        details = {
            "raw": raw,
            "scale": list(self.spec.scale),
            "judges": [
                {
                    "endpoint": member.endpoint.name,
                    "model": member.endpoint.model,
                    "prompt_sha256": member.digest,
                    "score": asked.verdict.score,
                    "attempts": asked.attempts,
                    "is_cached": is_cached,
                    **({} if is_cached else asked.usage),
                }
                for member, (asked, is_cached) in zip(self.members, found, strict=True)
            ],
        }
        reason = found[0][0].verdict.reason
        shown = self.members[0].names
        where = places.of_quotes(reason, context.messages, context.turns, all_turns="transcript" in shown)
        return Measured((raw - low) / (high - low), reason, details, where)

    async def _ask(
        self, index: int, member: _Member, context: RewardContext, material: Mapping[str, Material]
    ) -> tuple[_Asked, bool]:
        named = [name for name in sorted(_MATERIAL) if name in member.names] or ["message"]
        # The fence's mark is new for each request, so the key is made of what stands in it.
        key = hashlib.sha256(
            orjson.dumps(
                [
                    member.digest,
                    member.endpoint.base_url,
                    member.endpoint.model,
                    self._filled(member, context, dict.fromkeys(_MATERIAL, "")),
                    [json.dumps(material[name]) for name in named],
                ]
            )
        ).digest()

        async def ask() -> _Asked:
            lane = here()
            with entered(lane and lane.at(f"judge {index}")):
                return await self._request(member, context, {name: material[name] for name in named})

        found = await self.cache.get(key, ask) if self.spec.cache else (await ask(), False)
        if found[1] and (whose := asking()) is not None:
            whose.known(member.endpoint.model)
        return found

    async def _request(self, member: _Member, context: RewardContext, material: Mapping[str, Material]) -> _Asked:
        client = await member.endpoint.client(context.shared())
        usage = {"prompt_tokens": 0, "completion_tokens": 0}
        problem, attempt, limits, is_filtered = "", 0, list(_LIMITS), True
        most_chars: int | None = None  # of each text in the reply
        bound: int | None = _most_chars(member)
        while attempt <= self.spec.retries:
            nonce = secrets.token_hex(8)
            try:
                completion = await self._chat(
                    client, member, context, material, nonce, limits[0], attempt, most_chars=most_chars
                )
            except EndpointError as error:
                if error.status in REFUSED and most_chars is not None:
                    most_chars = bound = None  # a server that knows no bound in a schema
                    continue
                if error.status not in REFUSED or len(limits) == 1:
                    raise RewardError(f"the judge did not answer: {error}") from error
                limits.pop(0)  # the policy may have written more than the judge takes: it is shown less of it
                continue
            _count(usage, completion)
            attempt += 1
            if completion.finish_reason == "length":
                # A schema holds a model to a form, and a text in it has no end of its own: it is given one.
                most_chars = bound
            is_filtered = is_filtered and completion.finish_reason == _FILTERED
            try:
                verdict = self._read(completion, nonce, material)
            except UnreadableReply as error:
                client.unread(completion)
                problem = str(error)
                continue
            return _Asked(verdict, attempt, usage)
        if is_filtered and await self._judges_nothing(client, member, context, usage):
            return _Asked(Verdict(self.spec.scale[0], "the judge's server refuses what was written"), attempt, usage)
        raise RewardError(
            f"no reply of {member.endpoint.model} could be read in {self.spec.retries + 1} tries: {problem}"
        )

    async def _judges_nothing(
        self, client: Client, member: _Member, context: RewardContext, usage: dict[str, int]
    ) -> bool:
        """Whether the judge gives a verdict where there is no material: then the material is what it refuses."""
        nonce = secrets.token_hex(8)
        nothing = dict.fromkeys(_MATERIAL, "(left out)")
        try:
            completion = await self._chat(client, member, context, nothing, nonce, _LIMITS[-1], 0)
        except EndpointError:
            return False
        _count(usage, completion)
        try:
            self._read(completion, nonce, {})
        except UnreadableReply:
            client.unread(completion)
            return False
        return True

    async def _chat(
        self,
        client: Client,
        member: _Member,
        context: RewardContext,
        material: Mapping[str, Material],
        nonce: str,
        limit: int,
        attempt: int,
        *,
        most_chars: int | None = None,
    ) -> Completion:
        """One reply to the question about `material`, of which at most `limit` characters are shown each.

        `most_chars` bounds each text of the reply.
        """
        fence = Fence(limit)
        fenced = {name: fence(one) for name, one in material.items()}
        prompt = self._filled(member, context, {name: fenced.get(name, "") for name in _MATERIAL})
        if not member.names & _MATERIAL:
            prompt += f"\n\n{fenced['message']}"
        low, high = self.spec.scale
        schema = self.reply.asked(nonce, most_chars=most_chars)
        form = (
            f"Answer with one JSON object that fits this JSON Schema and nothing else: "
            f"{orjson.dumps(schema).decode()}\n'{self.spec.value_key}' goes from {low:g} to {high:g}."
        )
        messages = [
            Message("system", _SYSTEM.format(fence=fence.instructions, form=form)),
            Message("user", f"{prompt}{_rubric(self.spec)}"),
        ]
        sampling = member.sampling.model_copy(
            update={
                "seed": self.spec.seed + attempt,
                "extra": {"response_format": _response_format(schema), **member.sampling.extra},
            }
        )
        asked = None
        if here() is not None:
            from rlenv.endpoints.taped import sampling_of  # only where there is a tape

            # What is new in each request, the mark of the fence and the nonce, is no part of what a tape knows it by.
            known_by = {
                "judge": member.digest,
                "model": member.endpoint.model,
                "prompt": self._filled(member, context, dict.fromkeys(_MATERIAL, "")),
                "material": plain(material),
                "limits": [limit, most_chars],
                "sampling": sampling_of(client.body(member.sampling)),
            }
            asked = Asked("judge", member.endpoint.name, known_by, echo=nonce, is_shared=True)
        return await client.chat(messages, sampling=sampling, asked=asked)

    def _read(self, completion: Completion, nonce: str, material: Mapping[str, Material]) -> Verdict:
        said = [one if isinstance(one, str) else "\n".join(entry["text"] for entry in one) for one in material.values()]
        texts = [cut_middle(text, 2 * _LIMITS[0]) for text in said]  # more of it no judge has seen
        return self.reply.read(
            completion.message.content, finish_reason=completion.finish_reason, nonce=nonce, material=texts
        )

    def _filled(self, member: _Member, context: RewardContext, fenced: Mapping[str, str]) -> str:
        """The prompt; what a row holds spells no control token in it, and material cannot."""
        try:
            return broken(*member.prompt.written(task=context.task, vars=context.vars, **fenced))
        except TemplateError as error:
            raise RewardError(f"prompt: {error}") from error


def _count(usage: dict[str, int], completion: Completion) -> None:
    for name, count in completion.usage.as_dict().items():
        usage[name] = usage.get(name, 0) + count


def _most_chars(member: _Member) -> int:
    """The most characters of a text in a reply that has to end within its limit of tokens: a quarter as many as these,
    since a character may be a token, and the nonce, the keys and the score have to fit too."""
    tokens = member.sampling.max_tokens or member.endpoint.sampling.max_tokens
    return _MOST_TEXT if tokens is None else max(1, min(_MOST_TEXT, tokens // 4))


def _rubric(spec: JudgeSpec) -> str:
    if spec.rubric is None:
        return ""
    lines = spec.rubric if isinstance(spec.rubric, str) else "\n".join(f"- {line}" for line in spec.rubric)
    return f"\n\nRubric:\n{lines}"


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": dict(schema)}}


def _compile(name: str, spec: JudgeSpec, context: TermCompileContext) -> Term:
    low, high = spec.scale
    if not low < high:
        raise UsageError(f"{list(spec.scale)} is no range", key="scale", hint="the first number is the lower one")
    if (spec.endpoint is None) == (not spec.judges):
        raise UsageError("give either endpoint or judges", hint="name one of them")
    listed = spec.judges or (JudgeMemberSpec(endpoint=spec.endpoint or ""),)
    reply = ReplySchema(spec.schema_, key=spec.value_key, scale=spec.scale)
    members = [
        _member(member, spec, reply, context, at=f"judges.{index}." if spec.judges else "")
        for index, member in enumerate(listed)
    ]
    return Term(name=name, spec=spec, measure_async=_Judge(spec, members, reply).measure)


def _member(
    member: JudgeMemberSpec, spec: JudgeSpec, reply: ReplySchema, context: TermCompileContext, *, at: str
) -> _Member:
    endpoint = endpoint_of(member.endpoint, context, key=f"{at}endpoint")
    source, key = (spec.prompt, "prompt") if member.prompt is None else (member.prompt, f"{at}prompt")
    template = template_of(source, key=key, names=_NAMES)
    if changed := _changed_material(source):
        raise UsageError(
            f"it changes '{changed}', which is material and stands fenced, as JSON",
            key=key,
            hint=f"write {{{{ {changed} }}}} as it is, and say in words what the judge shall look at",
        )
    sampling = member.sampling or spec.sampling
    written = [source, _rubric(spec), reply.schema, list(spec.scale), spec.value_key, _SYSTEM, sampling.model_dump()]
    digest = hashlib.sha256(orjson.dumps([*written, spec.seed], option=orjson.OPT_SORT_KEYS)).hexdigest()
    return _Member(endpoint, template, frozenset(template.names), sampling, digest)


def _changed_material(source: str) -> str:
    """The material that a template does more with than write it, "" where there is none: a filter or an index would
    break its fence, or fail for what a policy wrote."""
    tree = jinja2.Environment().parse(source)
    for node in tree.find_all((nodes.Filter, nodes.Getattr, nodes.Getitem, nodes.Call, nodes.BinExpr, nodes.For)):
        if isinstance(node, (nodes.And, nodes.Or)) or (isinstance(node, nodes.Filter) and node.name in _HARMLESS):
            continue
        for name in node.find_all(nodes.Name):
            if name.name in _MATERIAL:
                return name.name
    return ""


KIND = Kind(JudgeSpec, _compile)
