"""OpenAI's two wires as an agent speaks them, each in one piece or as events: chat completions, and responses.

A model's server is asked for a whole chat completion; a request for a response becomes one, and the answer is written
back in the wire that was asked. Source: the OpenAI API reference, "Create chat completion", "Create a model response"
and their streaming events (2025).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final, cast

from aiohttp import web

from rlenv.errors import UsageError
from rlenv.hosts.exchanges import Exchange
from rlenv.hosts.http import answer

CHAT_FIELDS: Final = (
    "messages tools tool_choice temperature top_p max_tokens max_completion_tokens stop seed response_format"
    " frequency_penalty presence_penalty parallel_tool_calls reasoning_effort"
).split()
"""What an agent may say of a request; what else servers take (templates, guided decoding) is not an agent's to set."""
_SAME: Final = ("temperature", "top_p", "parallel_tool_calls")
_ROLES: Final = {"developer": "system"}
_BEAT_S: Final = 10.0
_EVENTS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def as_chat(body: Mapping[str, Any], before: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """A request for a response as one for a chat completion; tools that a provider runs itself are left out.

    Args:
        before: the conversation that `previous_response_id` names.

    Raises:
        UsageError: it holds what is no item of a conversation.
    """
    said = body.get("input", [])
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    if not isinstance(items, list):
        raise UsageError(f"input: found a {type(said).__name__}; expected a text or a list of items")
    messages: list[dict[str, Any]] = [dict(one) for one in before]
    if isinstance(instructions := body.get("instructions"), str):
        messages = [one for one in messages if one.get("role") != "system"]
        messages.insert(0, {"role": "system", "content": instructions})
    for index, item in enumerate(items):
        _add_item(messages, item, f"input[{index}]")
    chat: dict[str, Any] = {"messages": messages, **{key: body[key] for key in _SAME if key in body}}
    if tools := _function_tools(body.get("tools")):
        chat["tools"] = tools
        choice = body.get("tool_choice")
        if isinstance(choice, Mapping) and choice.get("type") == "function":
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        chat |= {"tool_choice": choice} if isinstance(choice, str) or choice else {}
    if (most := body.get("max_output_tokens")) is not None:
        chat["max_tokens"] = most
    reasoning, text = body.get("reasoning"), body.get("text")
    if isinstance(reasoning, Mapping) and reasoning.get("effort"):
        chat["reasoning_effort"] = reasoning["effort"]
    form = text.get("format") if isinstance(text, Mapping) else None
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        rest = {key: value for key, value in form.items() if key != "type"}
        chat["response_format"] = {"type": "json_schema", "json_schema": rest}
    return chat


def _function_tools(given: Any) -> list[dict[str, Any]]:
    """The functions among tools; those of a namespace (an MCP server's) by its name and theirs."""
    found: list[dict[str, Any]] = []
    for tool in given if isinstance(given, list) else ():
        if isinstance(tool, Mapping) and tool.get("type") == "function":
            kept = ("name", "description", "parameters", "strict")
            found.append({"type": "function", "function": {key: tool[key] for key in kept if key in tool}})
        elif isinstance(tool, Mapping) and tool.get("type") == "namespace":
            for inner in _function_tools(tool.get("tools")):
                inner["function"]["name"] = f"{tool.get('name')}{_PART}{inner['function'].get('name')}"
                found.append(inner)
    return found


_PART: Final = "__"


def _add_item(messages: list[dict[str, Any]], item: Any, at: str) -> None:
    if not isinstance(item, Mapping):
        raise UsageError(f"{at}: found a {type(item).__name__}; expected an item")
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        content = _chat_content(item.get("content"))
        if role == "assistant" and messages and messages[-1]["role"] == "assistant" and not messages[-1]["content"]:
            messages[-1]["content"] = content  # of one answer, whose items may stand in any order
        else:
            messages.append({"role": _ROLES.get(str(role), role), "content": content})
    elif kind == "function_call":
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        name = f"{item['namespace']}{_PART}{item.get('name')}" if item.get("namespace") else item.get("name")
        function = {"name": name, "arguments": item.get("arguments", "")}
        call = {"type": "function", "id": item.get("call_id"), "function": function}
        messages[-1]["tool_calls"] = [*messages[-1].get("tool_calls", ()), call]  # `before` keeps its own list
    elif kind == "function_call_output":
        output = item.get("output")
        text = output if isinstance(output, str) else _chat_content(output)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
    elif kind != "reasoning":  # thinking is the server's to keep or to leave out
        raise UsageError(f"{at}: items of type '{str(kind)[:40]}' are not taken; expected messages and function calls")


def _chat_content(content: Any) -> Any:
    """The content of an item as chat completions have it: a text, or parts where there are images."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": part["text"]})
        elif isinstance(part, Mapping) and isinstance(part.get("image_url"), str):
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
    has_images = any(part["type"] == "image_url" for part in parts)
    return parts if has_images else "".join(part["text"] for part in parts)


# What is answered


def chat_chunks(answer: Mapping[str, Any], *, with_usage: bool) -> Iterator[str]:
    """The data of the events that stream a chat completion: its text, its calls, its end."""
    head = {key: answer.get(key) for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = answer["choices"][0]
    message = choice["message"]

    def chunk(delta: Mapping[str, Any], reason: str | None = None) -> str:
        return json.dumps({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    yield chunk({"role": "assistant", "content": ""})
    texts = {key: message[key] for key in ("reasoning_content", "reasoning", "content") if message.get(key)}
    for key, text in texts.items():
        yield chunk({key: text})
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield chunk({"tool_calls": [{"index": index, **call}]})
    yield chunk({}, choice.get("finish_reason") or "stop")
    if with_usage:
        yield json.dumps({**head, "choices": [], "usage": answer.get("usage")})
    yield "[DONE]"


def as_response(answer: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion as the response to the request `body`."""
    choice = answer["choices"][0]
    message, usage = choice["message"], answer.get("usage") or {}
    given_tools = body.get("tools")
    tools: list[Any] = given_tools if isinstance(given_tools, list) else []
    spaces = [one.get("name") for one in tools if isinstance(one, Mapping) and one.get("type") == "namespace"]
    output: list[dict[str, Any]] = []
    if text := message.get("content"):
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append(
            {"type": "message", "id": _new_id("msg"), "status": "completed", "role": "assistant", "content": [part]}
        )
    for call in message.get("tool_calls") or ():
        name, told = call["function"]["name"], {}
        space = next((one for one in spaces if name.startswith(f"{one}{_PART}")), None)
        if space is not None:
            name, told = name.removeprefix(f"{space}{_PART}"), {"namespace": space}
        made = {"call_id": call["id"], "name": name, "arguments": call["function"]["arguments"], **told}
        output.append({"type": "function_call", "id": _new_id("fc"), "status": "completed", **made})
    was_cut = choice.get("finish_reason") == "length"
    given, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    return {
        "id": _new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if was_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if was_cut else None,
        "error": None,
        "instructions": body.get("instructions"), "metadata": {}, "model": answer.get("model"), "output": output,
        "parallel_tool_calls": bool(body.get("parallel_tool_calls", True)),
        "tool_choice": body.get("tool_choice", "auto"), "tools": tools,
        "temperature": body.get("temperature"), "top_p": body.get("top_p"),
        "usage": {
            "input_tokens": given, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": given + written,
        },
    }  # fmt: skip


def _new_id(kind: str) -> str:
    return f"{kind}_{token_hex(12)}"


def as_events(response: Mapping[str, Any]) -> Iterator[str]:
    """The data of the events that stream a response."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    number = -1

    def event(kind: str, **said: Any) -> str:
        nonlocal number
        number += 1
        return json.dumps({"type": f"response.{kind}", "sequence_number": number, **said})

    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        at: dict[str, Any] = {"output_index": index}
        own = {"item_id": item["id"], **at}
        if item["type"] == "message":
            part = item["content"][0]
            yield event("output_item.added", item={**item, "content": [], "status": "in_progress"}, **at)
            yield event("content_part.added", content_index=0, part={**part, "text": ""}, **own)
            yield event("output_text.delta", content_index=0, delta=part["text"], logprobs=[], **own)
            yield event("output_text.done", content_index=0, text=part["text"], logprobs=[], **own)
            yield event("content_part.done", content_index=0, part=part, **own)
        else:
            said = {"arguments": item["arguments"]}
            yield event("output_item.added", item={**item, "arguments": "", "status": "in_progress"}, **at)
            yield event("function_call_arguments.delta", delta=item["arguments"], **own)
            yield event("function_call_arguments.done", name=item["name"], **said, **own)
        yield event("output_item.done", item=item, **at)
    yield event("incomplete" if response["status"] == "incomplete" else "completed", response=response)


def problem_of(body: Mapping[str, Any], chat: Mapping[str, Any]) -> str:
    """What is wrong with an agent's request before anybody is asked; "" where nothing is."""
    messages = chat.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, Mapping) for one in messages):
        return "messages: expected a list with at least one message"
    for key in ("tools", "stop"):
        if not isinstance(chat.get(key), list | None if key == "tools" else list | str | None):
            return f"{key}: expected a list"
    if body.get("n") not in (None, 1):
        return f"n: found {body.get('n')!r:.20}; one answer at a time is given"
    return ""


def call_of(index: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with all that clients expect of one; a server may leave out its id, or what has no arguments."""
    name, arguments = call["function"].get("name"), call["function"].get("arguments")
    said = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    function = {"name": str(name), "arguments": said}
    return {"id": call.get("id") or f"call_{index}", "type": "function", "function": function}


async def given_in(
    request: web.Request,
    body: Mapping[str, Any],
    asking: Awaitable[Exchange | web.Response],
    whole: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    events: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]],
) -> web.StreamResponse:
    """Answers in one piece, or as events: of a stream nothing but signs of life is sent until the whole is there."""

    def made(one: Exchange) -> Mapping[str, Any]:
        one.is_delivered = request.transport is not None and not request.transport.is_closing()
        return whole({**one.answer, "model": body.get("model") or one.answer["model"]})

    if not body.get("stream"):
        given = await asking
        return given if isinstance(given, web.Response) else answer(made(given))
    asked = asyncio.ensure_future(asking)
    await asyncio.wait([asked], timeout=_BEAT_S)
    if asked.done() and isinstance(asked.result(), web.Response):
        return cast("web.Response", asked.result())
    stream = web.StreamResponse(headers=_EVENTS)
    try:
        await stream.prepare(request)
        while not asked.done():
            await stream.write(b": still here\n\n")
            await asyncio.wait([asked], timeout=_BEAT_S)
        one: Exchange | web.Response = asked.result()
        if isinstance(one, web.Response):
            told = json.loads(one.body or b"{}")  # type: ignore[arg-type]  # ours is bytes
            await stream.write(b"event: error\ndata: " + json.dumps(told).encode() + b"\n\n")
            return stream
        for kind, data in events(made(one)):
            await stream.write((f"event: {kind}\n" if kind else "").encode() + f"data: {data}\n\n".encode())
    except ConnectionError:
        if isinstance(late := await asked, Exchange):
            late.is_delivered = False
    return stream
