"""The floor on tokens: ids in, decode, parse, call, encode the observation, mask; hand-written."""

from __future__ import annotations

import array
import asyncio
import json
from typing import Any

import orjson

from benchmarks import workload
from benchmarks.sides.tokenizer import tokenizer


async def setup(mode: str, tools: int) -> workload.Episode:
    """Ready to play."""
    made = tokenizer()
    end = made.token_to_id("<|im_end|>")

    def encode(text: str) -> list[int]:
        ids: list[int] = made.encode(text, add_special_tokens=False).ids
        return ids

    names = {"calculator": workload.tool(mode)}
    sampled = [[[*encode(text), end] for text in texts] for texts in workload.TEXTS]
    schemas = "\n".join([json.dumps(workload.SCHEMA)] * tools)
    head = encode(f"<|im_start|>system\n{workload.SYSTEM}\n\n# Tools\n\n<tools>\n{schemas}\n</tools><|im_end|>\n")

    def parse(text: str) -> list[Any]:
        at, found = text.find("<tool_call>"), []
        while at >= 0:
            to = text.find("</tool_call>", at)
            if to < 0:
                found.append((None, "unclosed"))
                break
            try:
                call = orjson.loads(text[at + 11 : to])
                found.append((call["name"], call["arguments"]))
            except (ValueError, KeyError) as error:
                found.append((None, str(error)))
            at = text.find("<tool_call>", to)
        return found

    async def call(name: Any, arguments: Any) -> str:
        function = names.get(name)
        if function is None:
            return f"Error: {arguments}"
        try:
            if mode not in ("async50", "hang"):
                return str(function(**arguments))
            async with asyncio.timeout(workload.TIMEOUT_S):
                return str(await function(**arguments))
        except Exception as error:
            return f"Error: {error!r}"

    async def episode(index: int) -> float:
        ids = array.array("i", head)
        ids.extend(encode(f"<|im_start|>user\n{workload.question(index)}<|im_end|>\n<|im_start|>assistant\n"))
        prompt, mask = len(ids), bytearray()
        for turn in range(10):
            await asyncio.sleep(0)
            new = sampled[index % workload.VARIANTS][turn]
            ids.extend(new)
            mask += b"\x01" * len(new)
            text = made.decode(new)
            calls = parse(text)
            if not calls:
                assert len(mask) == len(ids) - prompt
                return 1.0 if f"<answer>{workload.answer(index)}</answer>" in text else 0.0
            results = [await call(*item) for item in calls]
            shown = "".join(f"\n<tool_response>\n{result}\n</tool_response>" for result in results)
            delta = encode(f"\n<|im_start|>user{shown}<|im_end|>\n<|im_start|>assistant\n")
            ids.extend(delta)
            mask += bytes(len(delta))
        return 0.0

    return episode
