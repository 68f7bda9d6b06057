"""How many queries a second `rlenv serve-search` answers, over a corpus of passages of 100 words.

    python benchmarks/retrieval.py --documents 100000 --clients 64 --batch 1

The corpus is made of words with the frequencies of natural text (Zipf); queries are 8 words of a passage. Client and
server share this machine's processors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

VOCABULARY = 200_000


def write_corpus(path: Path, documents: int, rng: random.Random) -> list[str]:
    """The corpus, and queries taken from it."""
    weights = [1 / (rank + 2.7) for rank in range(VOCABULARY)]
    words = [f"w{rank}x" for rank in range(VOCABULARY)]
    queries: list[str] = []
    with path.open("w", encoding="utf-8") as file:
        drawn: list[str] = []
        for number in range(documents):
            if len(drawn) < 100:
                drawn = rng.choices(words, weights, k=100_000)
            passage, drawn = drawn[:100], drawn[100:]
            file.write(json.dumps({"id": str(number), "contents": f'"{passage[0]}"\n{" ".join(passage)}'}) + "\n")
            if len(queries) < 5_000:
                queries.append(" ".join(rng.sample(passage, 8)))
    return queries


async def measure(url: str, queries: list[str], *, clients: int, batch: int, seconds: float) -> tuple[int, list[float]]:
    """Queries answered within `seconds`, and the time of each request."""
    ends = time.monotonic() + seconds
    times: list[float] = []
    rng = random.Random(0)

    async def client(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < ends:
            body = {"queries": rng.sample(queries, batch), "topk": 3, "return_scores": True}
            begun = time.monotonic()
            async with session.post(url, json=body) as response:
                response.raise_for_status()
                found = await response.json()
            assert len(found["result"]) == batch
            times.append(time.monotonic() - begun)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return len(times) * batch, sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure rlenv serve-search.")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64], help="queries a request")
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        corpus = Path(made) / "corpus.jsonl"
        queries = write_corpus(corpus, given.documents, random.Random(0))
        command = [sys.executable, "-m", "rlenv", "serve-search", str(corpus), "--port", "0", "--index", made]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            print(line.strip())
            url = line.rpartition(" at ")[2].strip()
            asyncio.run(measure(url, queries, clients=4, batch=4, seconds=1))
            for batch in given.batch:
                cpu = _cpu_s(process.pid)
                count, times = asyncio.run(
                    measure(url, queries, clients=given.clients, batch=batch, seconds=given.seconds)
                )
                cost = (_cpu_s(process.pid) - cpu) / count
                p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
                print(
                    f"{given.clients} clients x {batch} queries: {count / given.seconds:,.0f} queries/s, "
                    f"{cost * 1000:.2f} ms of the server's CPU each; request {p50 * 1000:.0f} ms at p50, "
                    f"{p99 * 1000:.0f} ms at p99"
                )
        finally:
            process.terminate()
            process.wait(20)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100  # clock ticks of 10 ms


if __name__ == "__main__":
    main()
