"""Prints what token-exact turns cost, against a hand-written loop on the same tokenizer.

Run: python benchmarks/tokens.py. With ../shared/data it takes Qwen3's tokenizer and template, else a small one made
on the spot. The floor keeps ids in one array, encodes each observation's whole text with the tokenizer as it is, and
checks nothing.
"""

from __future__ import annotations

import array
import asyncio
import gzip
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import tokenizers

from rlenv.messages import Message, Observation
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder, TokenTrajectory

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
HEAD, TAIL = "\n<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
SAID = 'I work on it.\n<tool_call>\n{"name": "calculator", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>'
SCHEMA = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Calculate a op b.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}, "op": {"enum": ["add", "sub", "mul"]}},
        },
    },
}
SOURCE = Path(os.__file__).with_name("argparse.py").read_text("utf8")


def load() -> tuple[str, tokenizers.Tokenizer, str]:
    """A name, a tokenizer and a chat template."""
    path = DATA / "tokenizers" / "qwen3" / "tokenizer.json.gz"
    if not path.is_file():
        return "small tokenizer made on the spot", small_tokenizer(), CHAT_TEMPLATE
    with gzip.open(path, "rt", encoding="utf8") as file:
        tokenizer = tokenizers.Tokenizer.from_str(file.read())
    return "Qwen3", tokenizer, (DATA / "chat_templates" / "qwen3.jinja").read_text("utf8")


def ten_times(work: Callable[[], object]) -> None:
    for _ in range(10):
        work()


def interleaved(work: dict[str, Callable[[], object]], repeat: int = 15) -> dict[str, float]:
    """CPU seconds of each, median of interleaved runs."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeat):
        for name, run in work.items():
            start = time.process_time()
            run()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


async def lag(work: Callable[[], object]) -> float:
    """The longest time, in seconds, that the event loop could not run while `work` did."""
    longest, is_done = 0.0, False

    async def watch() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not is_done:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest = max(longest, now - last - 0.001)
            last = now

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0.02)
    result = work()
    if asyncio.iscoroutine(result):
        await result
    is_done = True
    await watcher
    return longest


def main() -> None:
    name, tokenizer, template = load()
    encoder = TokenEncoder(tokenizer, chat_template=template)
    print(
        f"{name}, Python {platform.python_version()}, tokenizers {tokenizers.__version__}, {platform.machine()};"
        " CPU time, medians of interleaved runs\n"
    )

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    user = "Compute the chained expression number 7: start at 7, then add, multiply and subtract as told."
    prompt = [Message("system", "You can use a calculator."), Message("user", user)]
    sampled = encode(SAID)
    print(f"{'an episode of 4 tool turns, µs a turn':44}{'floor':>9}{'ours':>9}{'ratio':>8}")
    for tools in (1, 20):
        schemas = [SCHEMA] * tools
        head = encode(encoder.template.render([prompt[0].as_dict(), {"role": "user", "content": ""}], tools=schemas))
        for size in (5, 400, 4000):
            result = SOURCE[:size]

            def floor(head: list[int] = head, result: str = result) -> None:
                ids = array.array("i", head)
                mask = bytearray()
                ids.extend(encode(user + "<|im_end|>\n<|im_start|>assistant\n"))
                for _ in range(4):
                    ids.extend(sampled)
                    mask += b"\x01" * len(sampled)
                    tokenizer.decode(sampled)
                    delta = encode(HEAD + result + TAIL)
                    ids.extend(delta)
                    mask += bytes(len(delta))

            def ours(schemas: Sequence[Mapping[str, object]] = schemas, result: str = result) -> None:
                trajectory = encoder.start(prompt, tools=schemas)
                for _ in range(4):
                    trajectory.add_sampled(sampled)
                    trajectory.add_observation(Observation((Message("tool", result),)))

            cost = interleaved({"floor": partial(ten_times, floor), "ours": partial(ten_times, ours)})
            low, high = cost["floor"] * 1e6 / 40, cost["ours"] * 1e6 / 40
            print(f"{f'{tools} tools, results of {size} characters':44}{low:9.1f}{high:9.1f}{high / low:8.2f}")

    print(f"\n{'an observation, µs':44}{'raw':>9}{'ours':>9}{'ratio':>8}")
    for size in (5, 400, 4000, 40_000):
        result = SOURCE[:size]
        messages = (Message("tool", result),)
        cost = interleaved(
            {
                "raw": partial(ten_times, partial(encode, HEAD + result + TAIL)),
                "ours": partial(ten_times, partial(encoder.encode_messages, messages)),
            }
        )
        low, high = cost["raw"] * 1e6 / 10, cost["ours"] * 1e6 / 10
        print(f"{f'{size} characters, {len(encode(result))} tokens':44}{low:9.1f}{high:9.1f}{high / low:8.2f}")

    big = Observation((Message("tool", SOURCE[:40_000]),))

    text = HEAD + SOURCE[:40_000] + TAIL
    ways: dict[str, Callable[[TokenTrajectory], object]] = {
        "tokenizer.encode in a thread": lambda _: asyncio.to_thread(encode, text),
        "add_observation": lambda trajectory: trajectory.add_observation(big),
        "add_observation_async": lambda trajectory: trajectory.add_observation_async(big),
    }
    print(f"\n{'event loop held up by a 40 kB result':44}{'ms, median of 9':>17}")
    for way, act in ways.items():
        lags = []
        for _ in range(9):
            trajectory = encoder.start(prompt)
            trajectory.add_sampled(sampled)
            lags.append(asyncio.run(lag(partial(act, trajectory))))
        print(f"{way:44}{statistics.median(lags) * 1e3:17.1f}")


if __name__ == "__main__":
    main()
