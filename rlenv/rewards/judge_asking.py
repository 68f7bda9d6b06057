"""Asking one judge about fenced material: its verdict, asked for again until one can be read, or why there is none."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final

import orjson

from rlenv._base.bounded import cut_middle, plain
from rlenv.concurrency.deadline import Countdown, pause, share_of_time
from rlenv.concurrency.lanes import Event, Kept, entered, here
from rlenv.dialects.built_in import broken
from rlenv.endpoints import REFUSED, Client, Endpoint
from rlenv.endpoints.account import Completion, Usage, asking
from rlenv.endpoints.raw_text import sampling_of
from rlenv.errors import EndpointError, RewardError
from rlenv.language.spec import BreakerSpec, SamplingSpec
from rlenv.language.templates import Template, TemplateError
from rlenv.messages import Message
from rlenv.rewards.asking_again import Answered, HeldUp, InLine, Refused, Unread, Untold, waits_s
from rlenv.rewards.asking_models import Felling, Pace, at_once, failed, if_felled, if_unread, in_time, line_of
from rlenv.rewards.verdict import (
    Fence,
    Health,
    JudgeVerdict,
    Legibility,
    Material,
    Question,
    ReplySchema,
    UnreadableReply,
)

__all__ = ["SYSTEM", "Asker", "Failed", "JudgeReply", "Member"]

SYSTEM: Final = "You are a strict and impartial judge of an assistant's work. {fence}\n{form}"
_CACHED = 65_536
_LIMITS = (65_536, 16_384, 4_096, 1_024)
"""The most characters of one material, and of what is shown to a judge that does not take so many."""
_MOST_TEXT = 2_000
"""Characters of a text in the reply to a question that is asked again because the last reply was cut."""
_ROUNDS: Final = 10
"""How often a judge gives no verdict about a text, and one without it, before the text is worth the lowest score."""
_SHARE: Final = 0.9
"""Of the time for a verdict, for all that is asked again: it ends before the verdict is late."""
_SHARE_OF_TWO: Final = 0.75
"""The same where two have written something: then there has to be time to see whose it was."""
_LARGER_ROUNDS: Final = 3
"""The same before it is shown less of a long text."""
_FILLER = "(left out)" + " -" * 500
"""As long as what was shown last: a judge that has no room for it would refuse an honest answer too."""
_AWAY_S: Final = 0.25
_WHO: Final = "the judge did not answer"


@dataclass(frozen=True, slots=True)
class Member:
    """One judge. `names` are those that its prompt reads, `digest` a hash of all that makes it another judge."""

    endpoint: Endpoint
    prompt: Template
    names: frozenset[str]
    sampling: SamplingSpec
    digest: str
    weight: float = 1.0
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """A verdict. Where `blamed` names parties, the judge's server refuses what these wrote, and there is no verdict.

    `usage` is None where a reply does not say its tokens.
    """

    verdict: JudgeVerdict | None
    attempts: int
    usage: Usage | None
    blamed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """No verdict, and not for what the judge was shown, as far as anybody can tell."""

    why: str


@dataclass(frozen=True, slots=True)
class Asker:
    """The questions of one term.

    Args:
        names: the material that a prompt may name.
        shown: what of it a prompt gets that names none, in order.
        says: the last line of what the reply has to be.
        ending: what follows the prompt, such as a rubric.
    """

    reply: ReplySchema
    names: frozenset[str]
    shown: tuple[str, ...]
    says: str
    ending: str
    retries: int
    seed: int
    breaker: BreakerSpec
    is_cached: bool
    cache: Kept[bytes, JudgeReply | Failed] = field(
        default_factory=lambda: Kept(_CACHED, is_good=lambda found: isinstance(found, JudgeReply))
    )

    async def ask(self, place: str, member: Member, question: Question) -> tuple[JudgeReply | Failed, bool]:
        """A judge's verdict, and whether it was known or asked for already; within `member.limit_s` seconds.

        `place` is what a tape calls the request. Raises RewardError: the prompt cannot be filled in.
        """
        named = [name for name in sorted(self.names) if name in member.names] or list(self.shown)
        # The fence's mark is new for each request, so the key is made of what stands in it.
        whom = [member.digest, member.endpoint.base_url, member.endpoint.model, self._filled(member, question, {})]
        key = await question.key([*whom, *("".join(sorted(party)) for party in question.parties)], named)
        one = _Asking(self, member, question, tuple(named))
        try:
            async with asyncio.timeout(member.limit_s):
                one.limit = share_of_time(1.0, most_s=member.limit_s or inf)
                with entered(place):
                    found = await self.cache.get(key, one.verdict) if self.is_cached else (await one.verdict(), False)
        except TimeoutError:
            return Failed(f"no verdict within {member.limit_s} s"), False
        if found[1] and (whose := asking()) is not None:
            whose.known(member.endpoint.model)
        return found

    def _filled(self, member: Member, question: Question, fenced: Mapping[str, str]) -> str:
        """The prompt; what a row holds spells no control token in it, and material cannot."""
        shown = dict.fromkeys(self.names, "") | dict(fenced)
        try:
            return broken(*member.prompt.written(task=question.task, vars=question.vars, **shown))
        except TemplateError as error:
            raise RewardError(f"prompt: {error}") from error


_Request = Callable[..., Awaitable[Completion]]


@dataclass(slots=True)
class _Asking:
    """One judge being asked one question."""

    by: Asker
    member: Member
    question: Question
    named: tuple[str, ...]
    usage: Usage | None = field(default_factory=Usage)
    attempts: int = 0
    """Replies to the question."""
    tries: int = 0
    limit: Countdown = field(default_factory=lambda: Countdown(inf))
    most_chars: int | None = None
    """Of each text in the reply, once one was cut."""
    bound: int | None = None
    unread: int = 0
    """Replies in a row about harmless characters that could not be read."""
    why: str = ""
    """The fault of the last reply that could not be read."""
    is_again: bool = False
    """Whether each try is one request: it is made again, in turn with a harmless one."""
    turn: Felling | None = None
    """Held where the server fell over the question again."""

    async def verdict(self) -> JudgeReply | Failed:
        """The verdict, after as many tries as it takes; where there is none, why."""
        try:
            return await self._found()
        finally:
            if self.turn is not None:
                self.turn.alone.release()

    async def _found(self) -> JudgeReply | Failed:
        self.bound = _most_chars(self.member)
        client = await self.member.endpoint.client(self.question.scope)
        material = {name: self.question.material[name] for name in self.named}
        sizes = _sizes(material)
        for limit in sizes:  # the policy may have written more than the judge takes: it is shown less of it
            most = _ROUNDS if limit == sizes[-1] else _LARGER_ROUNDS
            if not isinstance(found := await self._tried(client, material, limit, most=most), Refused):
                return found
            if isinstance(found, HeldUp):
                break
        if blamed := await self._blamed(client, is_held=isinstance(found, HeldUp)):
            if self.turn is not None:
                self.turn.material |= self._material_of(blamed)
            return JudgeReply(None, self.attempts, self.usage, blamed)
        return Failed("the judge gave no answer in time")

    async def _tried(
        self, client: Client, material: Mapping[str, Material], limit: int, *, most: int
    ) -> JudgeReply | Failed | Refused:
        """The verdict about so much of the material; refused where a judge that is well gives none, asked in turn."""
        self.tries = 0
        found = await self._asked(client, material, limit)
        while isinstance(found, Unread) and self.tries <= self.by.retries:
            found = await self._asked(client, material, limit)
        if isinstance(found, Answered):
            return found.value
        if isinstance(found, Untold):
            return Failed(found.why)
        if isinstance(found, HeldUp):
            return found

        async def again() -> Answered[Any] | Refused | Untold:
            tried = await self._asked(client, material, limit)
            return Answered(tried) if isinstance(tried, HeldUp) else tried

        known, line = partial(self._without, client, self._everyone), line_of(client, self.question.scope)
        self.is_again = True
        try:
            turns = InLine(known, again, line, is_behind=not isinstance(found, Unread))
            given = await turns.given(lambda: _SHARE * self.limit.left_s, most=most)
        except RewardError:
            return Failed(found.why)
        finally:
            self.is_again = False
        return found if given is None else given

    async def _asked(
        self, client: Client, material: Mapping[str, Material], limit: int
    ) -> Answered[JudgeReply] | Refused | Untold:
        """One reply to the question: a verdict, none that may be for what was shown, or none for another reason."""
        nonce = secrets.token_hex(8)
        self.tries += 1
        try:
            around, shown = partial(self._in_time, client, nonce, material), self.most_chars
            completion = await self._chat(client, material, nonce, limit, self.tries - 1, around, most_chars=shown)
        except EndpointError as error:
            if error.status in REFUSED and self.most_chars is not None:
                self.most_chars = self.bound = None  # a server that knows no bound in a schema
                return await self._asked(client, material, limit)
            return failed(_WHO, error)
        self.attempts += 1
        if completion.finish_reason == "length":  # a text in a schema has no end of its own: it is given one
            self.most_chars = self.bound
        answered, model = self._answered(client, completion, nonce, material), self.member.endpoint.model
        return answered or Unread(f"no reply of {model} could be read in {self.attempts} tries: {self.why}")

    @property
    def _everyone(self) -> tuple[int, ...]:
        return tuple(range(len(self.question.parties)))

    async def _blamed(self, client: Client, *, is_held: bool) -> tuple[int, ...]:
        """Whose material a judge refuses that is well without anybody's: nobody may make the own reward invalid so.

        Nobody's where it is held, and there is no time left to see whose does it.
        """
        everyone = self._everyone
        if len(everyone) == 1:
            return everyone
        blamed = []
        limit_s = _SHARE * self.limit.left_s / len(everyone) if is_held else None
        for index in everyone:
            for _ in range(1 if is_held else _LARGER_ROUNDS):
                with suppress(TimeoutError):
                    async with asyncio.timeout(limit_s):
                        for wait in waits_s() if self.turn is not None else ():  # until the server is back
                            if isinstance(await self._without(client, everyone, is_at_once=True), Answered):
                                break
                            await pause(wait)
                        while isinstance(found := await self._without(client, (index,)), Untold) and is_held:
                            await pause(_AWAY_S)  # another one's material may have felled the server
                    if isinstance(found, Answered):
                        blamed.append(index)
                        break
        return tuple(blamed) or (() if is_held else everyone)  # each is enough to be refused

    async def _without(
        self, client: Client, parties: tuple[int, ...], *, is_at_once: bool = False
    ) -> Answered[JudgeReply] | Refused | Untold:
        """The verdict with as many harmless characters in place of some parties' material; `is_at_once`: or a failure
        that counts for nobody, where the server is away."""
        nonce = secrets.token_hex(8)
        given = self.question.without(parties, filler=_FILLER)
        material = {name: given[name] for name in self.named}
        is_known = parties == self._everyone
        try:
            around = partial(self._around, is_known=is_known, is_at_once=is_at_once)
            completion = await self._chat(client, material, nonce, _LIMITS[-1], self.unread, around)
        except EndpointError as error:
            return failed(_WHO, error, is_harmless=is_known)
        if (answered := self._answered(client, completion, nonce, {})) is not None:
            return answered
        if is_known:
            self.unread += 1
            self._legibility.told(is_read=False)
        return Unread(self.why)

    async def _chat(
        self,
        client: Client,
        material: Mapping[str, Material],
        nonce: str,
        limit: int,
        attempt: int,
        around: Callable[[_Request], Awaitable[Completion]],
        *,
        most_chars: int | None = None,
    ) -> Completion:
        """One reply to the question about `material`, of which at most `limit` characters are shown each; `most_chars`
        bounds each text of the reply, and `around` makes the request."""
        fence, by, member = Fence(limit), self.by, self.member
        fenced = {name: fence(one) for name, one in material.items()}
        prompt = by._filled(member, self.question, fenced)
        if not member.names & by.names:
            titles = {name: f"{name}: " if len(by.shown) > 1 else "" for name in by.shown}
            prompt += "".join(f"\n\n{title}{fenced[name]}" for name, title in titles.items())
        schema = by.reply.asked(nonce, most_chars=most_chars)
        form = "Answer with one JSON object that fits this JSON Schema and nothing else"
        system = SYSTEM.format(fence=fence.instructions, form=f"{form}: {orjson.dumps(schema).decode()}\n{by.says}")
        messages = [Message("system", system), Message("user", f"{prompt}{by.ending}")]
        held = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}
        extra = {"response_format": held, **member.sampling.extra}
        sampling = member.sampling.model_copy(update={"seed": by.seed + attempt, "extra": extra})
        asked = None
        if here() is not None:
            # What is new in each request, the mark of the fence and the nonce, is no part of what a tape knows it by.
            known_by = {
                "judge": member.digest,
                "model": member.endpoint.model,
                "prompt": by._filled(member, self.question, {}),
                "material": plain(material),
                "limits": [limit, most_chars],
                "sampling": sampling_of(client.body(member.sampling)),
            }
            name = member.endpoint.name
            asked = Event(kind="judge", name=name, request=known_by, echo=nonce, is_shared=True)
        return await client.chat(messages, sampling=sampling, asked=asked, around=around)

    @property
    def _legibility(self) -> Legibility:
        key = ("judge legibility", self.member.digest, self.member.endpoint, self.by.breaker.reset_s)
        return self.question.scope.keep(key, lambda: Legibility(self.by.breaker.reset_s))

    async def _in_time(
        self, client: Client, nonce: str, material: Mapping[str, Material], request: _Request
    ) -> Completion:
        """The answer to the question itself, in the time that there is; a tape keeps what all its tries came to."""
        scope, begun = self.question.scope, self.limit.clock_s
        share = _SHARE if len(self._everyone) == 1 else _SHARE_OF_TWO
        ask = partial(self._around, request, is_known=False)
        known = partial(self._without, client, self._everyone)
        if self.limit.left_s == inf:
            asked = ask()
        else:
            pace = Pace.of(scope, (self.member.digest, self.member.endpoint))
            asked = in_time(known, ask, most=_ROUNDS, within_s=share * self.limit.left_s, pace=pace)
        try:
            found = await asked
        except EndpointError as error:
            if self.is_again:
                raise
            known, within_s = partial(known, is_at_once=True), share * self.limit.left_s
            felled = partial(if_felled, known, request, error, client, scope, is_known=self._is_known_to_fell)
            return await felled(most=_ROUNDS, within_s=within_s)
        if self.tries > max(2, self.by.retries + 1) or (found.finish_reason == "length" and self.most_chars is None):
            return found

        async def again() -> Completion:
            self.tries += 1
            return await self._around(partial(request, seed=self.by.seed + self.tries - 1), is_known=False)

        def is_read(completion: Completion) -> bool:
            with suppress(UnreadableReply):
                return self._read(completion, nonce, material) is not None
            return False

        took_s, within_s = self.limit.clock_s - begun, share * self.limit.left_s
        return await if_unread(known, again, found, is_read, most=_ROUNDS, took_s=took_s, within_s=within_s)

    async def _is_known_to_fell(self) -> bool:
        """True where another question has told that some of this one's material fells the server."""
        felling = self.question.felling.setdefault(self.member.endpoint.base_url, Felling())
        if self.turn is None:
            await felling.alone.acquire()
            self.turn = felling
        return not felling.material.isdisjoint(self._material_of(self._everyone))

    def _material_of(self, parties: tuple[int, ...]) -> set[int]:
        return {id(self.question.material[name]) for index in parties for name in self.question.parties[index]}

    async def _around(self, request: _Request, *, is_known: bool, is_at_once: bool = False) -> Completion:
        """One request, unless asking again is no use; a tape keeps that, since a replay does not know of the others."""
        endpoint, question, legibility = self.member.endpoint, self.question, self._legibility
        if self.why and (legibility.is_lost or self.unread >= legibility.most):
            raise EndpointError(f"nothing of endpoint '{endpoint.name}' can be read, whatever it is shown: {self.why}")
        health = Health.of(endpoint, self.by.breaker, question.scope, self.member.digest, self.member.limit_s)
        request = partial(at_once, request) if is_at_once or self.is_again else request
        if is_at_once and health is not None:
            return await health.told(request)
        return await (request() if health is None else health.ask(request, caller=question.caller, is_known=is_known))

    def _answered(
        self, client: Client, completion: Completion, nonce: str, material: Mapping[str, Material]
    ) -> Answered[JudgeReply] | None:
        """The verdict in a reply; None where there is none that can be read, and `why` says so."""
        if self.usage is not None:
            self.usage = self.usage + completion.usage if completion.usage.is_known else None
        try:
            verdict = self._read(completion, nonce, material)
        except UnreadableReply:
            client.unread(completion)
            return None
        self.unread = 0
        self._legibility.told(is_read=True)
        return Answered(JudgeReply(verdict, self.attempts, self.usage))

    def _read(self, completion: Completion, nonce: str, material: Mapping[str, Material]) -> JudgeVerdict:
        """Raises UnreadableReply: there is none that can be read; `why` says so."""
        said = [one if isinstance(one, str) else "\n".join(entry["text"] for entry in one) for one in material.values()]
        texts = [cut_middle(text, 2 * _LIMITS[0]) for text in said]  # more of it no judge has seen
        text, reason = completion.message.content, completion.finish_reason
        try:
            return self.by.reply.read(text, finish_reason=reason, nonce=nonce, material=texts)
        except UnreadableReply as error:
            self.why = str(error)
            raise


def _sizes(material: Mapping[str, Material]) -> list[int]:
    """The numbers of characters to show of each material, from the most down: less only where it shows less."""
    longest = max((len(one) if isinstance(one, str) else _LIMITS[0] for one in material.values()), default=0)
    return [_LIMITS[0], *(limit for limit in _LIMITS[1:] if limit < longest)]


def _most_chars(member: Member) -> int:
    """The most characters of a text in a reply that has to end within its limit of tokens: a quarter as many as these,
    since a character may be a token, and the nonce, the keys and the score have to fit too."""
    tokens = member.sampling.max_tokens or member.endpoint.sampling.max_tokens
    return _MOST_TEXT if tokens is None else max(1, min(_MOST_TEXT, tokens // 4))
