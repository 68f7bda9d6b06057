"""The recipe of Search-R1: official files, the wire, the text a policy sees, and success on seven sets."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.episodes.environment import Environment, load
from rlenv.errors import MissingExtra
from rlenv.tools import search as bm25

pytest.importorskip("pyarrow")
try:
    bm25._import_bm25()
except MissingExtra as error:
    pytest.skip(str(error), allow_module_level=True)

from rlenv.hosts.workers import address_of, listen, serve
from rlenv.retrieval import Bm25Retriever, application
from tests.support import data

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "search_r1"
SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"search_r1_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


toy = _module("toy")


@contextmanager
def server(corpus: Path, index: Path) -> Iterator[str]:
    """The retrieval server in a thread with a loop of its own; gives the address of `/retrieve`."""
    ready = threading.Event()
    bound, at = listen("127.0.0.1", 0), list[Any]()

    async def run() -> None:
        stopped = asyncio.Event()
        at.extend((asyncio.get_running_loop(), stopped))
        await serve(application(Bm25Retriever(corpus, index=index)), bound, stopped=stopped, on_ready=ready.set)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(30)
    loop, stopped = at
    try:
        yield f"{address_of(bound)}/retrieve"
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Toy files and their server, as `--set` takes them."""
    folder = tmp_path_factory.mktemp("search-r1")
    toy.write(folder / "data", train=8, test=4)
    with server(folder / "data" / "corpus.jsonl", folder / "index") as url:
        yield {"vars.data": str(folder / "data"), "vars.retriever": url}


def options(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def opened(settings: dict[str, str], name: str = "env") -> Environment:
    return load(FOLDER / f"{name}.yaml", set=settings)


def test_equal_seeds_write_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        toy.write(tmp_path / name, train=4, test=2)
    for file in ("train.parquet", "test.parquet", "corpus.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_rows_have_the_official_columns(world: dict[str, str]) -> None:
    environment = opened(world)
    row = environment.tasks("train")[0]
    assert list(row) == [
        "id", "question", "golden_answers", "data_source", "prompt", "ability", "reward_model", "extra_info",
    ]  # fmt: skip
    assert row["reward_model"] == {"ground_truth": {"target": row["golden_answers"]}, "style": "rule"}
    assert row["extra_info"] == {"index": 0, "split": "train"}
    assert row["prompt"][0]["content"].endswith(
        f"For example, <answer> Beijing </answer>. Question: {row['question']}\n"
    )
    sources = [row["data_source"] for row in environment.tasks("train")]
    assert {name: sources.count(name) for name in sources} == {"nq": 8, "hotpotqa": 8}
    assert sorted(set(environment.groups("test") or ())) == sorted(SETS)


@pytest.mark.parametrize("name", ["env", "format", "rl_factory"])
def test_the_specs_validate(world: dict[str, str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(FOLDER / f"{name}.yaml"), *options(world)]) == 0, capsys.readouterr()


@pytest.mark.parametrize(("name", "reward"), [("env", 1.0), ("format", 1.0), ("rl_factory", 1.05)])
def test_the_oracle_succeeds_on_all_seven_sets(
    world: dict[str, str], name: str, reward: float, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", str(FOLDER / f"{name}.yaml"), "--policy", "oracle", "-n", "14", "--json", *options(world)]
    assert main(command) == 0
    figures = json.loads(capsys.readouterr().out)
    rates = {group: found["success_rate"] for group, found in figures["groups"].items()}
    assert rates == dict.fromkeys(SETS, 1.0)
    # The oracle's calls have no thinking before them, which v0.3 takes 0.2 off for.
    assert figures["reward_mean"] == pytest.approx(0.8 if name == "format" else reward)
    assert figures["latency"]["search" if name != "rl_factory" else "query_rag"]["calls"] == 14


def test_an_episode_reads_as_the_original_writes_it(world: dict[str, str]) -> None:
    async def play() -> tuple[list[str], Any]:
        async with opened(world) as environment, environment.start(task=0, split="test") as episode:
            town = episode.task["question"].split()[3]
            seen = [episode.messages[0].content]
            for action in (
                "<think> hm </think>",
                f"<think> where </think>\n<search> {town} </search>",
                f"<think> so </think> <answer> {episode.task['golden_answers'][0].upper()} </answer>",
            ):
                seen.append((await episode.step(action)).observation.text)
            return seen, episode.trajectory

    (prompt, invalid, found, last), trajectory = asyncio.run(play())
    assert prompt == trajectory.task["prompt"][0]["content"]
    assert invalid == (
        "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
        "If I want to give the final answer, I should put the answer between <answer> and </answer>. "
        "Let me try again.\n"
    )
    assert found.startswith('\n\n<information>Doc 1(Title: "')
    assert found.endswith("</information>\n\n")
    assert found.count("Doc ") <= 3
    assert last == ""
    assert (trajectory.success, trajectory.reward.total) == (True, 1.0)


def test_four_searches_leave_one_more_action_to_answer_in(world: dict[str, str]) -> None:
    async def play(last: str) -> tuple[bool, str]:
        async with opened(world) as environment, environment.start(task=0, split="test") as episode:
            for _ in range(4):
                assert not (await episode.step("<search> x </search>")).is_last
            await episode.step(last.replace("GOLD", episode.task["golden_answers"][0]))
            return bool(episode.trajectory.success), episode.trajectory.reason

    assert asyncio.run(play("<answer> GOLD </answer>")) == (True, "answer")
    assert asyncio.run(play("<search> again </search>")) == (False, "turns")


@pytest.mark.shared_data
def test_real_questions_in_official_files_work_over_a_real_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow
    import pyarrow.parquet

    def lines(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    nq = [("nq", row["question"], row["answer"]) for row in lines(data.find("nq_open/dev_slice.jsonl"))[:20]]
    hotpot = [
        ("hotpotqa", row["question"], [row["answer"]]) for row in lines(data.find("hotpot_search/questions.jsonl"))[:20]
    ]
    rows = [
        toy.official_row(source, question, answers, split="test", index=index)
        for index, (source, question, answers) in enumerate([*nq, *hotpot])
    ]
    for name in ("train", "test"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        "".join(
            json.dumps({"id": row["id"], "contents": f'"{row["title"]}"\n{row["text"]}'}) + "\n"
            for row in lines(data.find("hotpot_search/corpus.jsonl"))
        ),
        encoding="utf-8",
    )
    with server(corpus, tmp_path / "index") as url:
        settings = options({"vars.data": str(tmp_path), "vars.retriever": url})
        assert main(["validate", str(FOLDER / "env.yaml"), *settings]) == 0
        capsys.readouterr()
        assert main(["eval", str(FOLDER / "env.yaml"), "--policy", "oracle", "--json", *settings]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {name: group["success_rate"] for name, group in figures["groups"].items()} == {"nq": 1.0, "hotpotqa": 1.0}
    assert figures["calls_failed"] == 0
