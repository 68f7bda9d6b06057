"""The requests that an agent made of its model, as the transcript that is scored and as the rows that are trained.

An agent keeps its own history: it may ask beside it (a title, a summary), ask again, rewrite what was said, and call
tools of its own. What counts is what its model wrote; what the agent says that it wrote is never read.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from rlenv._base.bounded import sendable
from rlenv.endpoints.account import Completion
from rlenv.episodes.tool_session import Pile, asked_by
from rlenv.messages import MalformedCall, Message, ToolCall
from rlenv.runs.schema import Tokens


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and its answer.

    `names` are the environment's tools by the names under which the agent has offered them, None for a tool of the
    agent's own. `is_delivered` is False where the agent was gone when the answer came.
    """

    request: Mapping[str, Any]
    answer: Mapping[str, Any]
    completion: Completion
    names: Mapping[str, str | None] = field(default_factory=dict)
    is_delivered: bool = True
    asked: int = field(init=False)
    prompt: array[int] = field(init=False)

    def __post_init__(self) -> None:
        self.asked, tokens = hash(repr(self.request.get("messages"))), self.completion.tokens
        self.prompt = array("i", tokens.prompt_ids if tokens is not None else ())
        if tokens is not None:
            self.completion = replace(self.completion, tokens=replace(tokens, prompt_ids=()))

    @property
    def message(self) -> Message:
        """The model's message, its calls under the environment's own names and without those of the agent's tools.

        A name that was not offered is the model's mistake, and stays.
        """
        calls = self.completion.message.tool_calls
        kept = tuple(self._rename_call(call) for call in calls if self.names.get(call.name or "", "") is not None)
        return replace(self.completion.message, tool_calls=kept)

    def _rename_call(self, call: ToolCall | MalformedCall) -> ToolCall | MalformedCall:
        name = self.names.get(call.name or "")
        return call if name is None else replace(call, name=name)


def named_by(offered: Any, tools: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """The environment's tools by the names under which an agent offers them to its model.

    Agents put the server's name before a tool's (`mcp__rlenv__search`). A tool of the agent's own may end in the same
    word, so that the arguments must have the same names, too.
    """
    found: dict[str, str | None] = {}
    for tool in offered if isinstance(offered, list) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str):
            assert isinstance(function, Mapping)
            keys = _keys_of(function.get("parameters"))
            meant = [one for one, parameters in tools.items() if _ends_in(name, one) and _keys_of(parameters) == keys]
            found[name] = name if name in tools else max(meant, key=len, default=None)
    return found


def _ends_in(name: str, tool: str) -> bool:
    before = name.removesuffix(tool)
    return name.endswith(tool) and (not before or not before[-1].isalnum())


def _keys_of(parameters: Any) -> set[str]:
    held = parameters.get("properties") if isinstance(parameters, Mapping) else None
    return set(held) if isinstance(held, Mapping) else set()


def told_of(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """The transcript, in the order in which the model spoke: each message with calls, and the last of the conversation.

    Left out are answers that nobody was there to read, those to a request that was made again, and messages without
    calls behind which the agent went on. The conversation is that of the requests that offer tools, where any does: an
    agent asks for titles and summaries without. One whose last message has calls of the agent's own has no end.
    """
    asked: dict[int, int] = {}
    read = [one for one in exchanges if one.is_delivered]
    for index, one in enumerate(read):
        asked[one.asked] = index
    read = [read[index] for index in sorted(asked.values())]
    main = [one for one in read if one.names] or read
    said = [one for one in read if one.message.tool_calls and one is not (main[-1] if main else None)]
    if main and (main[-1].message.tool_calls or not main[-1].completion.message.tool_calls):
        said.append(main[-1])
    return said


def match_ids(transcript: Iterable[Message], made: Sequence[ToolCall]) -> list[Message]:
    """The transcript with the ids of the calls that were made: of the same call, or else of one of the same tool, as
    agents fill in what a model leaves out."""
    said = list(transcript)
    pile = Pile((asked_by(call), call.name) for call in made)
    taken: dict[tuple[int, int], str | None] = {}
    places = [(at, index, call) for at, one in enumerate(said) for index, call in enumerate(one.tool_calls)]
    for is_exact in (True, False):
        for at, index, call in places:
            if (at, index) not in taken and isinstance(call, ToolCall):
                found = pile.take(asked_by(call) if is_exact else call.name)
                if found is not None:
                    taken[at, index] = made[found].id
    for at, one in enumerate(said):
        calls = (replace(call, id=taken.get((at, index), call.id)) for index, call in enumerate(one.tool_calls))
        said[at] = replace(one, tool_calls=tuple(calls))
    return said


def rows_of(exchanges: Iterable[Exchange]) -> list[Tokens]:
    """The training rows: each sampled id stands in one of them, behind the very ids that it was sampled behind.

    A request whose prompt goes on behind what a row holds goes on with that row; what lies between is the agent's and
    the environment's, with mask 0. Where the agent, or the chat template, has written the history otherwise, a new row
    begins. Answers without ids are in none; `logprobs` of a row are () where a server gave none for some answer in it.
    """
    rows: list[_Row] = []
    for one in exchanges:
        tokens = one.completion.tokens if one.is_delivered else None
        prompt = one.prompt
        if tokens is None or not tokens.ids or not prompt:
            continue
        begun = [row for row in rows if prompt[: len(row.whole)] == row.whole]
        row = max(begun, key=lambda row: len(row.whole), default=None)
        if row is None:
            rows.append(row := _Row(len(prompt), prompt[:]))
        row.add(prompt, tokens.ids, tokens.logprobs)
    return [row.done() for row in rows]


def as_json(row: Tokens, *, is_valid: bool) -> dict[str, Any]:
    """A training row as JSON; nothing of an episode without a reward is trained."""
    mask = list(row.mask) if is_valid else [0] * len(row.mask)
    ids, turns = list(row.ids), [list(turn) for turn in row.turns]
    logprobs = list(row.logprobs) or None
    return {"prompt_ids": list(row.prompt_ids), "ids": ids, "mask": mask, "logprobs": logprobs, "turns": turns}


@dataclass(slots=True)
class _Row:
    start: int
    whole: array[int]
    mask: array[int] = field(default_factory=lambda: array("b"))
    logprobs: array[float] | None = field(default_factory=lambda: array("d"))
    turns: list[tuple[int, int]] = field(default_factory=list)

    def add(self, prompt: array[int], ids: Sequence[int], logprobs: Sequence[float]) -> None:
        between = prompt[len(self.whole) :]
        self.whole.extend([*between, *ids])
        begun = len(self.mask) + len(between)
        self.mask.extend([0] * len(between) + [1] * len(ids))
        self.turns.append((begun, len(self.mask)))
        if len(logprobs) != len(ids):
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs.extend([0.0] * len(between) + list(logprobs))

    def done(self) -> Tokens:
        # Arrays: a server holds the rows of an episode for as long as its driver may ask again.
        prompt, ids = self.whole[: self.start], self.whole[self.start :]
        return Tokens(prompt, ids, self.mask, self.logprobs or (), self.turns)


def write(file: Path, exchanges: Sequence[Exchange]) -> None:
    """Writes a line for each exchange. What stands in front of its messages and ids is as many as it says of the line
    before: each request has all of those before it once more."""
    with suppress(OSError):  # a full disk has been told of by the run
        file.parent.mkdir(exist_ok=True)
        with file.open("w", encoding="utf-8") as out:
            said, ids = list[Any](), array("i")
            for one in exchanges:
                messages, prompt, tokens = one.request["messages"], one.prompt, one.completion.tokens
                pairs = takewhile(lambda pair: pair[0] == pair[1], zip(said, messages, strict=False))
                first = {"messages": sum(1 for _ in pairs), "prompt_ids": len(ids) if prompt[: len(ids)] == ids else 0}
                request = {**one.request, "messages": messages[first["messages"] :]}
                tokens = tokens and replace(tokens, prompt_ids=tuple(prompt[first["prompt_ids"] :]))
                kept = {"before": first, "request": request, "answer": one.answer, "tokens": tokens}
                out.write(json.dumps(sendable(kept)) + "\n")
                said, ids = messages, prompt
