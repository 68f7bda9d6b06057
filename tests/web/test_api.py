"""The routes over runs, episodes and their records."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from rlenv.messages import Image
from rlenv.runs import files
from rlenv.runs.folder import open_run
from rlenv.runs.locks.lock import Lock
from rlenv.runs.schema import Facts, Tokens
from rlenv.runs.usage import Prices, PriceSpec
from rlenv.runs.writer import RunWriter
from rlenv.trajectory import ModelUsage
from rlenv.web.guard import SHELF, Guard
from rlenv.web.shelf import Shelf
from tests.support.runs import asked, kept, played, raw, visited

Client = TestClient[Any, Any]
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)

HUGE = b"\0\0\xea\x60" * 2
"""60,000 wide and high, in a file of 70 bytes."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    episodes = []
    for number in range(12):
        reward = None if number == 11 else number % 4 / 4
        success = None if reward is None else reward > 0.5
        calls = (("search", "ok", 0.1), ("sql", "timeout", 2.0)) if number % 2 else ()
        episode = played(task=number // 4, seed=number, reward=reward, success=success, calls=calls)
        episodes.append((episode, Facts(number // 4, number % 4, "train", f"g{number // 4}")))
    kept(folder, episodes, kind="train", spec="toy", facts={"split": "train"})
    return folder


def ids(run: Path) -> list[str]:
    found: list[str] = open_run(run).table["id"].to_pylist()
    return found


def test_the_list_of_runs_says_how_each_is(run: Path) -> None:
    (one,) = asked("/api/runs", run.parent)["runs"]
    assert (one["key"], one["kind"], one["spec"], one["state"]) == ("run", "train", "toy", "ended")
    assert (one["episodes"], one["step"], one["invalid"]) == (12, 2, 1)
    assert one["success_low"] < one["success"] < one["success_high"]
    assert len(one["spark"]) == 3


def test_a_run_says_what_can_be_asked_of_it(run: Path) -> None:
    found = asked("/api/runs/run", run)
    assert (found["terms"], found["tools"], found["splits"]) == (["correct"], ["search", "sql"], ["train"])
    assert found["failures"] == {"reward": 1}
    assert {"name": "reward", "type": "float64"} in found["columns"]
    assert {one["why"] for one in found["read"]} >= {"worst", "best", "failure", "widest group"}


def test_episodes_come_in_pages(run: Path) -> None:
    found = asked("/api/runs/run/episodes?q=success:false&sort=-reward&offset=1&limit=2", run)
    assert (found["total"], found["matched"], len(found["rows"])) == (12, 9, 2)
    assert [row["reward"] for row in found["rows"]] == [0.5, 0.5]
    assert found["rows"][0]["terms"][0]["name"] == "correct"
    assert "ending" not in found["rows"][0]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("episodes?q=tol:search", 400, "did you mean 'tool'?"),
        ("episodes?sort=-rewrd", 400, "did you mean 'reward'?"),
        ("episodes?limit=501", 400, "limit is a number from 0 to 500"),
        ("episodes?offset=-1", 400, "offset is a number"),
        ("facets?q=tol:search", 400, "did you mean 'tool'?"),
        ("series?since=x", 400, "since is a number"),
        (f"episodes?offset={'0' * 20}{'9' * 5_000}", 400, "offset is a number"),
        ("e/nothing-1", 404, "is no episode"),
        ("g/1/nothing", 404, "no episode of step 1"),
        ("g/x/g1", 404, "no step"),
        ("search?q=a", 404, "2 characters"),
        (f"episodes?sort={'reward,' * 100}", 400, "no more than 16 columns"),
        ("search?q=abc&where=tol:x", 400, "did you mean 'tool'?"),
    ],
)
def test_what_cannot_be_answered_is_told_with_the_fix(run: Path, path: str, status: int, message: str) -> None:
    found = asked(f"/api/runs/run/{path}", run, status=status)
    assert message in found["error"]
    assert ("column" in found) == ("did you mean" in message or "columns" in message)


def test_a_run_that_there_is_not_is_told(run: Path) -> None:
    for path in ("", "/series", "/episodes", "/events", "/files"):
        assert "there is no run" in asked(f"/api/runs/other{path}", run, status=404)["error"]


def test_an_episode_has_its_record_and_what_is_beside_it(run: Path) -> None:
    all_ids = ids(run)
    found = asked(f"/api/runs/run/e/{all_ids[5]}", run)
    assert found["row"]["id"] == all_ids[5]
    assert found["neighbours"] == {"prev": all_ids[4], "next": all_ids[6]}
    assert set(found["group"]["ids"]) == set(all_ids[4:8])
    assert found["group"]["samples"] == 4
    assert [call["tool"] for call in found["calls"]] == ["search", "sql"]
    assert found["record"]["turns"][1]["action"] == "<answer>Paris</answer>"
    (first, *_) = found["where"]["correct"]
    said = ["Use the tools.", "What is the capital?", "call", *["Paris is the capital."] * 2, "<answer>Paris</answer>"]
    assert said[first["message"]][first["start"] : first["end"]] == "Paris"
    assert [one["message"] for one in found["where"]["correct"]] == [5, 4, 3]


def test_neighbours_follow_the_list(run: Path) -> None:
    all_ids = ids(run)
    found = asked(f"/api/runs/run/e/{all_ids[7]}?q=success:true&sort=-seed", run)
    assert found["neighbours"] == {"prev": None, "next": all_ids[3]}


def test_series_and_groups(run: Path) -> None:
    found = asked("/api/runs/run/series", run)
    assert found["steps"] == [0, 1, 2]
    assert found["series"]["train/success"]["mean"] == [0.25, 0.25, 0.0]
    group = asked("/api/runs/run/g/0/g0", run)
    assert [one["row"]["reward"] for one in group["episodes"]] == [0.75, 0.5, 0.25, 0.0]
    assert group["mean"] == 0.375
    assert group["episodes"][0]["turns"][0]["results"][1]["outcome"] == "timeout"


def test_of_a_large_group_each_episode_has_its_neighbours(tmp_path: Path) -> None:
    run = tmp_path / "run"
    of_group = [(played(seed=at, reward=float(at)), Facts(0, at, "train", "g")) for at in range(150)]
    all_ids = kept(run, of_group)
    group = asked("/api/runs/run/g/0/g", run)
    assert (group["samples"], len(group["episodes"]), group["mean"]) == (150, 64, 74.5)
    assert [group["episodes"][at]["row"]["reward"] for at in (0, -1)] == [149.0, 0.0]
    for at in (0, 75, 149):
        beside = asked(f"/api/runs/run/e/{all_ids[at]}", run)["group"]
        place = beside["ids"].index(all_ids[at])
        assert beside["samples"] == 150
        assert beside["ids"][place + 1 : place + 2] == all_ids[at - 1 : at]


def test_figures_are_of_the_query(run: Path) -> None:
    assert [one["calls"] for one in asked("/api/runs/run/tools?q=step:0", run)["tools"]] == [2, 2]
    rewards = asked("/api/runs/run/rewards?q=step:0", run)
    assert (rewards["terms"][0]["valid"], rewards["terms_more"]) == (4, 0)
    assert asked("/api/runs/run/facets?q=step:0", run)["facets"]["split"] == [{"value": "train", "count": 4}]


def test_a_run_compared_with_itself_is_the_same(run: Path) -> None:
    found = asked("/api/compare?a=run&b=run", run)
    assert (found["pairs"], found["success"]["p"], found["lock"]) == (12, 1.0, [])
    assert {one["kind"] for one in found["by_task"]} == {"same"}
    assert "there is no run" in asked("/api/compare?a=run&b=x", run, status=404)["error"]


def test_runs_of_two_environments_are_compared_for_whoever_means_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        kept(tmp_path / name, [(replace(played(), environment=f"{name}-v0"), Facts())])
    assert "not two runs of the same tasks" in asked("/api/compare?a=a&b=b", tmp_path, status=409)["error"]
    assert asked("/api/compare?a=a&b=b&anyway=1", tmp_path)["unlike"]


def test_an_old_file_is_a_run(tmp_path: Path) -> None:
    files.write(tmp_path / "old" / "trajectories.jsonl", [played(), played(seed=1, reward=0.0, success=False)])
    (one,) = asked("/api/runs", tmp_path)["runs"]
    assert (one["key"], one["episodes"], one["success"]) == ("old", 2, 0.5)
    assert asked("/api/runs/old/e/line-2", tmp_path)["record"]["reward"]["total"] == 0.0


def test_hits_of_a_search_come_as_lines(run: Path) -> None:
    async def work(client: Client, guard: Guard) -> list[Any]:
        answer = await client.get("/api/runs/run/search?q=paris+is&where=seed:1..3")
        return [json.loads(line) for line in (await answer.text()).splitlines()]

    *hits, end = visited(work, run)
    assert [(one["id"], one["where"]) for one in hits] == [
        (id, f"turns.0.results.{index}.text") for id in (ids(run)[1], ids(run)[3]) for index in range(2)
    ]
    assert end == {"done": True, "episodes": 3, "hits": 4, "whole": True}


def test_searches_that_wait_keep_nothing_else_waiting(tmp_path: Path) -> None:
    for name in ("run", "other"):
        kept(tmp_path / name, [played()])

    async def work(client: Client, guard: Guard) -> tuple[list[int], list[str]]:
        run = client.app[SHELF].open("run")
        with run.lock:  # all searches wait for it, in more threads than any pool of all has
            searches = [asyncio.create_task(client.get("/api/runs/run/search?q=paris")) for _ in range(80)]
            await asyncio.sleep(0)
            codes = []
            async with asyncio.timeout(60):
                for path in ("/api/config", "/api/runs/other/episodes", "/api/runs/other"):
                    for _ in range(20):
                        codes.append((await client.get(path)).status)
        return codes, [await (await one).text() for one in searches]

    codes, found = visited(work, tmp_path)
    assert set(codes) == {200}
    assert all('"done":true' in one for one in found)


def test_what_utf_8_cannot_hold_is_replaced(tmp_path: Path) -> None:
    (id,) = kept(tmp_path / "run", [played(result="lone \ud800 surrogate", action="\udfff")])
    found = asked(f"/api/runs/run/e/{id}", tmp_path)
    assert found["record"]["turns"][0]["results"][0]["text"] == "lone \ufffd surrogate"


def test_long_texts_are_cut_and_given_in_full(tmp_path: Path) -> None:
    (id,) = kept(tmp_path / "run", [played(result="x" * 30_000)])
    found = asked(f"/api/runs/run/e/{id}", tmp_path)
    path = "turns.0.results.0.text"
    assert found["cuts"][path] == 10_000
    assert found["record"]["turns"][0]["results"][0]["text"] == "x" * 20_000 + "…"
    assert asked(f"/api/runs/run/e/{id}/text?path={path}", tmp_path) == {"text": "x" * 30_000}
    assert len(asked(f"/api/runs/run/e/{id}/raw", tmp_path)["turns"][0]["results"][0]["text"]) == 30_000
    assert "nothing at" in asked(f"/api/runs/run/e/{id}/text?path=turns.9.action", tmp_path, status=404)["error"]
    assert "is no text" in asked(f"/api/runs/run/e/{id}/text?path=turns", tmp_path, status=404)["error"]


def test_images_are_named_and_given_as_what_they_are(tmp_path: Path) -> None:
    page = Image.of(b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>", "image/png")
    (id,) = kept(tmp_path / "run", [played(images=[Image.of(PNG, "text/html"), page])])

    async def work(client: Client, guard: Guard) -> list[Any]:
        before = await client.get(f"/blob/run/{'0' * 64}")
        record = (await (await client.get(f"/api/runs/run/e/{id}")).json())["record"]
        picture, text = record["turns"][0]["results"][0]["images"]
        assert set(picture) == {"mime", "sha"}
        shown, refused = [await client.get(f"/blob/run/{one['sha']}") for one in (picture, text)]
        body = await shown.read()
        return [before.status, shown.status, shown.headers, body, refused.status]

    before, status, headers, body, refused = visited(work, tmp_path)
    assert (before, status, refused) == (404, 200, 404)
    assert headers["Content-Type"] == "image/png"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in headers["Content-Security-Policy"]
    assert body == PNG


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no PNG"),
        (b"\xef\xbb\xbf<?xml version='1.0'?><svg/>", "no PNG"),
        (b"<!doctype html><script>1</script>", "no PNG"),
        (b"%PDF-1.7", "no PNG"),
        (b"BM" + bytes(60), "no PNG"),
        (b"", "no PNG"),
        (PNG[:16] + HUGE + PNG[24:], "are not shown"),
        (PNG[:8] + b"\0\0\0\x08tEXt\0\0\0\1\0\0\0\1\0\0\0\0" + PNG[8:16] + HUGE + PNG[24:], "are not shown"),
    ],
)
def test_what_is_no_picture_or_too_large_is_not_given(data: bytes, said: str, tmp_path: Path) -> None:
    (id,) = kept(tmp_path / "run", [played(images=[Image.of(data, "image/svg+xml")])])

    async def work(client: Client, guard: Guard) -> tuple[int, str, str]:
        record = (await (await client.get(f"/api/runs/run/e/{id}")).json())["record"]
        (picture,) = record["turns"][0]["results"][0]["images"]
        answer = await client.get(f"/blob/run/{picture['sha']}")
        return answer.status, answer.headers["Content-Type"], await answer.text()

    status, kind, text = visited(work, tmp_path)
    assert (status, kind) == (404, "application/json; charset=utf-8")
    assert said in text


def test_tokens_are_told_by_where_they_come_from(tmp_path: Path) -> None:
    tokens = Tokens([1, 2], [3, 4, 5, 6, 7], [1, 1, 0, 0, 1], [-0.1, -0.2, 0.0, 0.0, -0.5], [(0, 2), (4, 5)])
    (id,) = kept(tmp_path / "run", [(played(), Facts(tokens=(tokens,)))])
    found = asked(f"/api/runs/run/e/{id}/tokens", tmp_path)
    (row,) = found["rows"]
    assert [(one["start"], one["end"], one["kind"]) for one in row["runs"]] == [
        (0, 2, "prompt"), (2, 4, "sampled"), (4, 6, "observation"), (6, 7, "sampled"),
    ]  # fmt: skip
    assert (row["mask"], row["pieces"], found["tokenizer"]) == ("0011001", list("1234567"), False)
    assert row["logprobs"][:2] == [None, None]
    assert len(row["logprobs"]) == row["n"] == 7


def test_a_run_that_is_written_is_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    writer = RunWriter(tmp_path / "run")
    writer.append(played(), Facts())

    async def work(client: Client, guard: Guard) -> list[Any]:
        states = []
        async with client.get("/api/runs/run/events") as events:
            for number in range(2):
                line = await events.content.readline()
                assert await events.content.readline() == b"\n"
                states.append(line.removeprefix(b"data: "))
                if not number:
                    writer.append(played(seed=1), Facts(step=3))
        return states

    first, second = visited(work, tmp_path)
    writer.close()
    assert b'"rows":1,"step":0,"state":"ended","waits":[]' in first
    assert b'"rows":2,"step":3' in second


def test_what_a_run_waits_for_is_read_of_files_alone(tmp_path: Path) -> None:
    """A pipe would be waited for, with the run's lock held, and no page of the run would open."""
    kept(tmp_path / "run", [played()])
    (tmp_path / "run" / "watch").mkdir()
    os.mkfifo(tmp_path / "run" / "watch" / "pipe.json")
    (tmp_path / "run" / "watch" / "deep.json").write_text("[" * 100_000)
    (tmp_path / "run" / "watch" / "whole.json").write_text('{"waits": [{"for": "a judge"}]}')

    async def work(client: Client, guard: Guard) -> bytes:
        async with client.get("/api/runs/run/events") as events:
            return await events.content.readline()

    assert b'"waits":[{"for":"a judge"}]' in visited(work, tmp_path)


def test_what_was_asked_of_models_is_said_of_runs_queries_and_episodes(tmp_path: Path) -> None:
    usage = (ModelUsage("judge x", "m", 2, 1, prompt_tokens=1_000_000, completion_tokens=10, seconds=1.0),)
    made = [replace(played(task=number), usage=usage) for number in range(3)]
    prices = {"currency": "EUR", "models": {"m": {"input": 2, "output": 0}}}
    names = kept(tmp_path / "run", made, facts={"prices": prices})
    kept(tmp_path / "none", [played()])
    runs = {one["key"]: one for one in asked("/api/runs", tmp_path)["runs"]}
    assert [runs["run"][name] for name in ("asked", "cost", "currency")] == [3_000_030, 6.0, "EUR"]
    assert (runs["none"]["asked"], runs["none"]["cost"]) == (None, None)
    found = asked("/api/runs/run/spending?q=task>0", tmp_path)
    assert (found["requests"], found["cost"], found["roles"][0]["role"]) == (4, 4.0, "judge x")
    assert found["said"].startswith("models: 4 requests (2 failed), 2,000,000 prompt")
    assert asked("/api/runs/none/spending", tmp_path)["roles"] == []
    assert asked(f"/api/runs/run/e/{names[0]}", tmp_path)["spending"]["cost"] == 2.0


def test_prices_of_the_viewer_go_before_those_of_a_run(tmp_path: Path) -> None:
    usage = (ModelUsage("policy", "m", 1, prompt_tokens=1_000_000),)
    held = {"currency": "EUR", "models": {"m": {"input": 2, "output": 0}}}
    kept(tmp_path / "run", [replace(played(), usage=usage)], facts={"prices": held})
    of_run, given = Shelf([tmp_path]), Shelf([tmp_path], prices=Prices("USD", {"m": PriceSpec(input=5, output=0)}))
    assert [(shelf.summary("run")["cost"], shelf.summary("run")["currency"]) for shelf in (of_run, given)] == [
        (2.0, "EUR"),
        (5.0, "USD"),
    ]


# A run's own files


@pytest.fixture
def figures_run(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    figures_run = tmp_path / "runs" / "run"
    kept(figures_run, [played()], attempts=[{"lock": "abc"}])
    (figures_run / "logs").mkdir()
    (figures_run / "logs" / "out.txt").write_text("a" * 100_000 + "the end")
    (figures_run / "link.txt").symlink_to(tmp_path / "secret.txt")
    (figures_run / "away").symlink_to(tmp_path)
    (figures_run / "locks").mkdir()
    (figures_run / "locks" / "abc.json").write_text(json.dumps({"spec": {"digest": "1"}}))
    (figures_run / "locks" / "torn.json").write_text("{")
    (figures_run / "locks" / "link.json").symlink_to(tmp_path / "secret.txt")
    return figures_run


def test_files_are_listed_without_parts_and_links(figures_run: Path) -> None:
    names = {one["name"]: one["size"] for one in asked("/api/runs/run/files", figures_run)["files"]}
    assert names["logs/out.txt"] == 100_007
    assert set(names) == {"run.json", "logs/out.txt", "locks/abc.json", "locks/torn.json"}


def test_the_tail_of_a_file_is_given(figures_run: Path) -> None:
    found = asked("/api/runs/run/file?name=logs/out.txt", figures_run)
    assert found["size"] == 100_007
    assert found["text"].endswith("the end")
    assert len(found["text"]) == 64_000


@pytest.mark.parametrize(
    "name",
    [
        "../../secret.txt", "/etc/passwd", "logs/../../../secret.txt", "link.txt", "away/secret.txt", "", ".", "logs",
        "journal/../run.json", "run.json%00", "./run.json",
    ],
)  # fmt: skip
def test_no_name_leads_out_of_the_run(figures_run: Path, name: str) -> None:
    found = asked(f"/api/runs/run/file?name={name}", figures_run, status=404)
    assert "the run has no file" in found["error"]


@pytest.mark.parametrize("key", ["..", "%2e%2e", "..%2f..%2fsecret.txt", "%2Fetc", "run%2F..", "run%00", "~"])
def test_no_key_leads_out_of_the_roots(figures_run: Path, key: str) -> None:
    paths = (f"/api/runs/{key}/files", f"/api/runs/{key}/file?name=secret.txt", f"/blob/{key}/{'0' * 64}")

    async def work(client: TestClient[Any, Any], guard: Guard) -> list[str]:
        return [await raw(client, path) for path in paths]

    for answer in visited(work, figures_run.parent):
        assert answer.startswith("HTTP/1.1 404 ")
        assert "there is no" in answer


def test_locks_are_given_by_their_hashes(figures_run: Path) -> None:
    found = asked("/api/runs/run/lock", figures_run)
    assert found["current"] == "abc"
    assert found["locks"]["abc"] == {"spec": {"digest": "1"}}
    assert "is no JSON" in found["locks"]["torn"]["error"]
    assert "link" not in found["locks"]


def test_a_lock_that_is_nested_too_deeply_is_told(figures_run: Path) -> None:
    (figures_run / "locks" / "deep.json").write_text("[" * 100_000)
    assert "is no JSON" in asked("/api/runs/run/lock", figures_run)["locks"]["deep"]["error"]


def with_lock(figures_run: Path, lock: Lock) -> None:
    kept(figures_run, [played()], attempts=[{"lock": lock.hash12}])
    (figures_run / "locks").mkdir()
    (figures_run / "locks" / f"{lock.hash12}.json").write_text(json.dumps(lock.as_dict()))


def test_locks_that_differ_are_told_by_section(tmp_path: Path) -> None:
    with_lock(tmp_path / "a", Lock(spec={"digest": "1"}, started=1.0))
    with_lock(tmp_path / "b", Lock(spec={"digest": "2"}, play={"seed": 3}))
    with_lock(tmp_path / "c", Lock(spec={"digest": "1"}, started=2.0))
    assert asked("/api/compare?a=a&b=b", tmp_path)["lock"] == [
        {"section": "spec", "key": "digest", "a": "1", "b": "2"},
        {"section": "play", "key": "seed", "a": None, "b": 3},
    ]
    assert asked("/api/compare?a=a&b=c", tmp_path)["lock"] == []


def test_a_lock_that_is_not_there_is_told(tmp_path: Path) -> None:
    with_lock(tmp_path / "a", Lock(spec={"digest": "1"}))
    kept(tmp_path / "b", [played()])
    (one,) = asked("/api/compare?a=a&b=b", tmp_path)["lock"]
    assert (one["section"], one["b"]) == ("lock", "")
    assert "there is no lock" in one["key"]
