"""OpenEnv's wire, both ways: what a served episode is asked and answers, and the card that a client makes of a spec.

A socket carries JSON texts, strictly one request and then its answer, without ids: `reset`, `step`, `state`, `close`,
and of ours `end`, which ends the episode from outside. Source: openenv 0.10.0, `core/env_server/types.py` and
`core/env_client.py`. What is ours stands in `metadata`, since typed clients forbid other keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from rlenv import __version__
from rlenv._base.bounded import fields_of, plain, sendable
from rlenv.endpoints.account import UnreadableAnswer, as_wire, read_chat
from rlenv.episodes.environment import MAX_ACTION, Environment
from rlenv.errors import UsageError
from rlenv.hosts.session import Opened, Session, require_alone
from rlenv.messages import Message, Sampled, ToolResult
from rlenv.trajectory import Step, TermResult, Trajectory, Turn

OURS: Final = "rlenv"
"""The key of `reset`'s data by which a client of ours asks for whole records, and of what it is given in `metadata`."""
RESERVED: Final = frozenset(("reset", "step", "state", "close"))
"""Names that no tool may have: OpenEnv's clients have methods of these names."""
_MOST_CHARS: Final = 256

SCHEMAS: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""The JSON Schemas of an action, an observation and a state."""


def to_json(value: Any) -> str:
    """JSON, whatever a policy or a tool wrote: lone surrogates become U+FFFD, numbers that are not finite null."""
    try:
        return orjson.dumps(value, default=_as_dict).decode()
    except TypeError:
        return json.dumps(sendable(value), separators=(",", ":"))


def _as_dict(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else plain(value)


def action_of(data: Any) -> Sampled:
    """The action of a `step`.

    Raises:
        ValueError: it is none; the text says what was expected.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("message"), str):
        raise ValueError('found no action; expected {"message": TEXT}, with "tool_calls" where there are some')
    if unknown := sorted(map(str, data.keys() - SCHEMAS["action"]["properties"].keys())):
        raise ValueError(f"found '{unknown[0][:_MAX_SHOWN]}' in the action; expected message, tool_calls or metadata")
    more = data.get("metadata")
    if not isinstance(more, Mapping | None):
        raise ValueError("the action's metadata is no object")
    reason, thinking = (text_of(more or {}, key) for key in ("finish_reason", "thinking"))
    calls = data.get("tool_calls")
    if calls in (None, []) and not thinking:
        return Sampled(data["message"], reason)
    said = {"content": data["message"], "tool_calls": calls, "reasoning_content": thinking or None}
    try:
        return Sampled(read_chat({"choices": [{"message": said}]}).message, reason)
    except UnreadableAnswer as error:
        raise ValueError(f"the action's tool_calls cannot be read: {error}") from error


_MAX_SHOWN: Final = 80


def text_of(data: Mapping[str, Any], key: str, *, most: int | None = None) -> str:
    """The text under a key, "" for none; raises ValueError where it is no text of `most` characters at most."""
    value = data.get(key)
    if value is not None and (not isinstance(value, str) or (most is not None and len(value) > most)):
        bound = "" if most is None else f" of at most {most} characters"
        raise ValueError(f"{key} is {value!r:.80}; expected a text{bound}")
    return value or ""


def whole_of(data: Mapping[str, Any], key: str) -> int | None:
    """The whole number under a key, None for none; raises ValueError where it is another type, or has over 64 bits."""
    value = data.get(key)
    if value is not None and (type(value) is not int or abs(value) >= 1 << 63):
        raise ValueError(f"{key} is {value!r:.80}; expected a whole number of 64 bits")
    return value


def action_data(action: str | Message | Sampled) -> dict[str, Any]:
    """An action as `action_of` reads it: as much as is read, and arguments as a text, which has bounds of its own."""
    reason = action.finish_reason if isinstance(action, Sampled) else ""
    said = action.action if isinstance(action, Sampled) else action
    more = {"finish_reason": reason} if reason else {}
    if isinstance(said, str):
        return {"message": said[:MAX_ACTION], **({"metadata": more} if more else {})}
    more |= {"thinking": said.thinking[:MAX_ACTION]} if said.thinking else {}
    calls = {"tool_calls": as_wire(said)["tool_calls"]} if said.tool_calls else {}
    return {"message": said.content[:MAX_ACTION], **calls, **({"metadata": more} if more else {})}


def place_of(data: Any, environment: Environment) -> dict[str, Any]:
    """The arguments of `Session.reset` that a client's `reset` asks for: `split`, `task` (or `index`), `seed`, and
    `episode_id`. A client that gives a seed alone gets the task of that number, over and over.

    Raises:
        ValueError: a value is of another type.
    """
    if not isinstance(data, Mapping):
        raise ValueError("the data of a reset is no object")
    seed, task = whole_of(data, "seed"), whole_of(data, "task" if "task" in data else "index")
    split, id = (text_of(data, key, most=_MOST_CHARS) for key in ("split", "episode_id"))
    split = split or next(iter(environment.spec.tasks))
    if task is None:
        task = (seed or 0) % len(environment.tasks(split))
    return {"split": split, "task": task, "seed": seed, "id": id}


def opened_data(opened: Opened, session: Session, *, is_ours: bool) -> dict[str, Any]:
    """The answer to a `reset`. Nothing of the row but its prompt is sent."""
    episode = session.episode
    assert episode is not None
    meta: dict[str, Any] = {"task": episode.task_index, "split": episode.split, "seed": episode.seed}
    observation: dict[str, Any] = {} if is_ours else opened.as_dict()
    if is_ours:
        ours = {"prompt": plain(opened.messages), "text": opened.text, "tools": list(opened.tools)}
        meta[OURS] = {**ours, "limits": plain(episode.limits), "digest": episode.environment.loaded.digest}
    if opened.is_ended:
        _add_end(meta, session, is_ours=is_ours)
    return {"observation": {**observation, "metadata": {}}, "reward": None, "done": opened.is_ended, "metadata": meta}


def step_data(step: Step, session: Session, *, is_ours: bool) -> dict[str, Any]:
    """The answer to a `step`. The rewards of all steps sum to the episode's total; null is no number."""
    held = step.as_dict()
    meta: dict[str, Any] = {key: held[key] for key in ("terminated", "truncated", "reason")}
    observation = {} if is_ours else {"text": held["text"], "messages": held["messages"], "tools": []}
    if is_ours:
        meta[OURS] = {"turn": _last_turn(session), "text": held["text"]}
    if step.is_last:
        _add_end(meta, session, is_ours=is_ours)
    observation["metadata"] = {} if is_ours else meta
    return {"observation": observation, "reward": step.reward, "done": step.is_last, "metadata": meta}


def _last_turn(session: Session) -> dict[str, Any] | None:
    """The last turn, without what only a reward reads: values and details may hold what the policy must not see."""
    episode = session.episode
    if episode is None or not episode.turns:
        return None
    turn: Turn = episode.turns[-1]
    results = tuple(replace(result, value=None, details=None) for result in turn.results)
    observation = turn.observation and replace(turn.observation, results=())
    held: dict[str, Any] = plain(replace(turn, results=results, observation=observation))
    return held


def _add_end(meta: dict[str, Any], session: Session, *, is_ours: bool) -> None:
    trajectory = session.trajectory
    meta |= public_outcome(trajectory, session.id)
    if is_ours:
        reward = fields_of(trajectory.reward)
        reward["terms"] = {name: plain(_public_term(term)) for name, term in trajectory.reward.terms.items()}
        end = {"reward": reward, "answer": trajectory.answer}
        end |= {key: getattr(trajectory, key) for key in ("terminated", "truncated")}
        meta[OURS] = {**meta.get(OURS, {}), "end": end}


def public_outcome(trajectory: Trajectory, id: str) -> dict[str, Any]:
    """The end as a client may know it: a failure's own words may name our judges, servers and files."""
    outcome = trajectory.outcome()
    if outcome["failure"] is not None:
        outcome["failure"] = {**outcome["failure"], "message": f"see the server's log, session {id}"}
    return outcome


def _public_term(term: TermResult) -> TermResult:
    """A term without the texts that it was read from, which may hold the gold answer."""
    error = "see the server's log" if term.error else ""
    return replace(term, evidence="", error=error, details={}, where=())


def card_of(environment: Environment) -> dict[str, Any]:
    """Everything about a spec that whoever plays it elsewhere needs: no row, no gold, no oracle, no address.

    Raises:
        UsageError: the spec has what cannot be served: terms that compare siblings, or several players.
    """
    spec, parts = environment.spec, environment.parts
    require_alone(environment, "a server scores each episode", "take them out of the rewards")
    if environment.players is not None:
        raise UsageError(f"{spec.name} has several players, and a served episode has one")
    if taken := sorted(RESERVED & parts.tools.keys()):
        raise UsageError(f"a tool of {spec.name} is called '{taken[0]}', as a method of OpenEnv's clients is")
    written = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    kept = {key: written[key] for key in ("name", "version", "description", "dialect", "answer") if key in written}
    if isinstance(kept.get("dialect"), dict):
        kept["dialect"].pop("chat_template", None)
    shown = {key: value for key, value in written.get("observation", {}).items() if key not in ("template", "format")}
    weights = parts.scorer.weights
    rewards = {name: {"weight": weights[name], "required": term.required} for name, term in spec.rewards.items()}
    limits = {key: value for key, value in plain(environment.limits).items() if value is not None}
    return {
        "rlenv": __version__,
        "spec": {**kept, "observation": shown, "limits": limits},
        "rewards": rewards,
        "splits": {split: _split(environment, split) for split in spec.tasks},
        "digest": environment.loaded.digest,
        "tools": list(environment.tool_schemas),
    }


def _split(environment: Environment, split: str) -> dict[str, Any]:
    rows = environment.tasks(split)
    return {"size": len(rows), "is_endless": rows.is_endless}


# JSON-RPC 2.0, by which tools are asked for


def tools_answer(body: Any, tools: Any) -> dict[str, Any]:
    """The answer to a JSON-RPC request that asks for the tools, and to any other that it is not known."""
    id, method = (body.get("id"), body.get("method")) if isinstance(body, Mapping) else (None, None)
    if method != "tools/list":
        return rpc_fault(id, -32601, f"the method {json.dumps(str(method))[:80]} is not known here")
    return rpc_result(id, {"tools": [tool_of(one["function"]) for one in tools]})


def tool_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as MCP shows it."""
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], "description": function.get("description", ""), "inputSchema": parameters}


def mcp_result(result: ToolResult) -> dict[str, Any]:
    """The result of a call as MCP shows it."""
    images = [{"type": "image", "data": one.base64, "mimeType": one.mime} for one in result.images]
    return {"content": [{"type": "text", "text": result.text}, *images], "isError": result.is_error}


def rpc_result(id: Any, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": dict(result)}


def rpc_fault(id: Any, code: int, message: str, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, **more}}
