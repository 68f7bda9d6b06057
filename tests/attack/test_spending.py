"""Every role asks a server that keeps its own books, with all that goes wrong on the way: the sums are the same."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.endpoints.account import merge_usage
from rlenv.runs.folder import open_run
from rlenv.testing.endpoint import FakeEndpoint, Reply, never
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.trajectory import ModelUsage
from tests.support.beside import served

SPEC = """
rlenv: 1
name: by-hand
tasks: {test: {rows: [{q: a}, {q: b}, {q: c}]}}
prompt: {user: "Task {{ task.q }}"}
endpoints:
  one: {base_url: "ADDRESS", model: judge-1}
  two: {base_url: "ADDRESS", model: judge-2}
  helper: {base_url: "ADDRESS", model: tool-1, timeout_s: 2}
  agent: {base_url: "ADDRESS", model: agent-1}
  user: {base_url: "ADDRESS", model: user-1}
tools:
  help: {kind: model, endpoint: helper, parameters: {text: string}, prompt: "{{ args.text }}", timeout_s: 30}
  research: {kind: agent, spec: ./inner.yaml, endpoint: agent, parameters: {question: string}}
user: {kind: model, endpoint: user, prompt: "You want {{ task.q }}."}
answer: {from: tag}
limits: {turns: 6}
rewards:
  good:
    kind: judge
    judges: [{endpoint: one}, {endpoint: two, weight: 2}]
    prompt: "Is it good? {{ message }} of {{ task.q }}"
"""
INNER = """
rlenv: 1
name: inner
tasks: {test: {rows: [{question: x}]}}
prompt: {user: "{{ task.question }}"}
endpoints: {deep: {base_url: "ADDRESS", model: deep-1}}
tools: {look: {kind: model, endpoint: deep, parameters: {text: string}, prompt: "{{ args.text }}"}}
answer: {from: tag}
rewards: {fine: {kind: rule, rule: contains, expect: x}}
"""
PRICES = """
currency: EUR
models:
  policy-1: {input: 3, cached_input: 0.3, output: 15}
  "judge-*": {input: 1, output: 2}
  judge-2: {input: 0.25, cached_input: 0, output: 4}
  agent-1: {input: 2, output: 8}
  deep-1: {input: 0.5, output: 0.5}
  user-1: {input: 0, output: 0}
"""
BY_MODEL = {
    "policy-1": (3, 0.3, 15),
    "judge-1": (1, 1, 2),
    "judge-2": (0.25, 0, 4),
    "agent-1": (2, 2, 8),
    "deep-1": (0.5, 0.5, 0.5),
    "user-1": (0, 0, 0),
}
ROLES = {
    "policy-1": "policy",
    "judge-1": "judge good",
    "judge-2": "judge good",
    "tool-1": "tool help",
    "agent-1": "agent research > policy",
    "deep-1": "agent research > tool look",
    "user-1": "user",
}
FAULTS = {
    "policy-1": {2: "503", 5: "no usage"},
    "judge-1": {1: "garbage", 3: "drop"},
    "judge-2": {2: "no usage", 3: "garbage and no usage"},
    "tool-1": {1: "late", 3: "no choices"},
    "agent-1": {3: "not JSON"},
    "deep-1": {2: "no usage"},
    "user-1": {1: "empty", 3: "503"},
}
"""What goes wrong at which request for a model, from 1 on."""


class Books:
    """Answers as every role's model, and keeps what each was asked for."""

    def __init__(self) -> None:
        self.kept: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def total(self, name: str) -> int:
        return sum(book[name] for book in self.kept.values())

    async def __call__(self, body: Mapping[str, Any]) -> Any:
        model = body["model"]
        book = self.kept[model]
        book["requests"] += 1
        number = book["requests"]
        fault = FAULTS[model].get(number, "")
        if fault in ("503", "drop", "late", "not JSON"):
            book["failed"] += 1
            if fault == "late":
                return await never()
            return Reply(503, "no", {"Retry-After": "0"}) if fault == "503" else Reply(drops=True) \
                if fault == "drop" else Reply(200, "{oops")  # fmt: skip
        usage = self._usage(book, number) if "no usage" not in fault else None
        message = self._message(model, body)
        if fault.startswith("garbage") or fault == "empty":
            message = {"role": "assistant", "content": "" if fault == "empty" else "what?"}
        book["failed"] += fault.startswith("garbage") or fault in ("empty", "no choices")
        book["unknown"] += usage is None
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}] if fault != "no choices" else []
        return Reply(200, {"choices": choices, **({"usage": usage} if usage is not None else {})})

    @staticmethod
    def _usage(book: Counter[str], number: int) -> dict[str, Any]:
        counts = {"prompt_tokens": 1000 + 7 * number, "completion_tokens": 100 + 3 * number}
        more = {"cached_tokens": 300 + number, "reasoning_tokens": 11 * (number % 3)}
        book.update({**counts, **more})
        return {
            **counts,
            "prompt_tokens_details": {"cached_tokens": more["cached_tokens"]},
            "completion_tokens_details": {"reasoning_tokens": more["reasoning_tokens"]},
        }

    @staticmethod
    def _message(model: str, body: Mapping[str, Any]) -> dict[str, Any]:
        said = [one for one in body["messages"] if one["role"] == "assistant"]
        calls: list[tuple[str, dict[str, str]]] = []
        text = "hello"
        if model == "policy-1":
            if not said:
                calls = [("help", {"text": "h"}), ("research", {"question": "r"})]
            elif len(said) > 1:
                text = "<answer>5</answer>"
        elif model == "agent-1":
            calls = [] if said else [("look", {"text": "l"})]
            text = "<answer>x</answer>"
        elif model.startswith("judge"):
            text = json.dumps({"reasoning": "fine", "score": 5})
        made = [
            {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(held)}}
            for at, (name, held) in enumerate(calls)
        ]
        return {"role": "assistant", "content": "" if made else text, **({"tool_calls": made} if made else {})}


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def spec(tmp_path: Path, books: Books) -> Iterator[Path]:
    with served(FakeEndpoint(books)) as server:
        (tmp_path / "spec.yaml").write_text(SPEC.replace("ADDRESS", server.base_url))
        (tmp_path / "inner.yaml").write_text(INNER.replace("ADDRESS", server.base_url))
        (tmp_path / "prices.yaml").write_text(PRICES)
        (tmp_path / "address").write_text(server.base_url)
        yield tmp_path / "spec.yaml"


def evaluated(spec: Path, *more: str) -> list[str]:
    address = (spec.parent / "address").read_text()
    asked = ["--policy", "openai", "--base-url", address, "--model", "policy-1", "--concurrency", "1"]
    return ["eval", str(spec), *asked, "--prices", str(spec.parent / "prices.yaml"), *more]


def cost(model: str, book: Mapping[str, int]) -> Fraction:
    fresh, cached, output = (Fraction(str(price)) for price in BY_MODEL[model])
    prompt = (book["prompt_tokens"] - book["cached_tokens"]) * fresh + book["cached_tokens"] * cached
    return (prompt + book["completion_tokens"] * output) / 1_000_000


COUNTS = ("requests", "failed", "unknown", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


def check(usage: Mapping[str, Any], kept: Mapping[str, Mapping[str, int]]) -> None:
    """The sums of a command are those of the server's books, line by line."""
    assert {(one["role"], one["model"]) for one in usage["roles"]} == {(ROLES[model], model) for model in kept}
    for one in usage["roles"]:
        book = kept[one["model"]]
        assert {name: one[name] for name in COUNTS} == {name: book[name] for name in COUNTS}, one["model"]
        if one["model"] in BY_MODEL:
            assert one["cost"] == pytest.approx(float(cost(one["model"], book)), rel=1e-12)
        else:
            assert one["cost"] is None
    for name in ("requests", "failed", "unknown", "prompt_tokens", "completion_tokens"):
        assert (usage[name] or 0) == sum(book[name] for book in kept.values())
    if not kept:
        assert usage["cost"] is None
        return
    assert usage["cost"] == pytest.approx(float(sum(cost(model, kept[model]) for model in kept if model in BY_MODEL)))
    assert usage["unpriced"] == (["tool-1"] if "tool-1" in kept else [])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_sums_are_those_of_the_server_s_books(
    spec: Path, books: Books, capsys: pytest.CaptureFixture[str], concurrency: int
) -> None:
    run = spec.parent / "run"
    assert main([*evaluated(spec, "-o", str(run), "--json"), "--concurrency", str(concurrency)]) == 0
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert all(max(faults) <= books.kept[model]["requests"] for model, faults in FAULTS.items())
    check(usage, books.kept)
    assert main(["runs", "show", str(run), "--json"]) == 0
    check(json.loads(capsys.readouterr().out)["usage"], books.kept)
    rows = list(open_run(run).rows())
    assert merge_usage(ModelUsage(**one) for row in rows for one in row["usage"]) == spent_in(run)
    for row in rows:
        is_known = not any(one["unknown"] for one in row["usage"])
        for name, count in (("asked_tokens", "prompt_tokens"), ("answered_tokens", "completion_tokens")):
            assert row[name] == (sum(one[count] for one in row["usage"]) if is_known else None)
        assert row["cost"] is None  # tool-1 has no price


def spent_in(run: Path) -> tuple[ModelUsage, ...]:
    reader = open_run(run)
    return merge_usage(one for row in reader.rows() for one in reader.body(row["id"]).trajectory().usage)


def test_a_judge_s_details_are_a_part_of_its_account_and_no_second_one(spec: Path, books: Books) -> None:
    run = spec.parent / "run"
    assert main(evaluated(spec, "-o", str(run))) == 0
    reader = open_run(run)
    seen = 0
    for row in reader.rows():
        episode = reader.body(row["id"]).trajectory()
        account = {one.model: one for one in episode.usage if one.role == "judge good"}
        for judge in episode.reward.terms["good"].details["judges"]:
            if "prompt_tokens" in judge and not account[judge["model"]].unknown:
                seen += 1
                told = (judge["prompt_tokens"], judge["completion_tokens"])
                assert told == (account[judge["model"]].prompt_tokens, account[judge["model"]].completion_tokens)
    assert seen > 2


def test_a_run_that_is_stopped_and_resumed_counts_each_attempt(
    spec: Path, books: Books, capsys: pytest.CaptureFixture[str]
) -> None:
    run = spec.parent / "run"
    assert main(evaluated(spec, "-o", str(run), "--max-cost", "0")) == 130
    said = capsys.readouterr().err
    asked = int(re.search(r"models: (\d+) requests", said)[1])  # type: ignore[index]
    assert asked - books.total("requests") in (0, 1)  # what was given up may not have come to the server
    given_up = books.total("requests") - sum(one.requests for one in spent_in(run))
    assert main(evaluated(spec, "-o", str(run), "--resume", "--json")) == 0
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert usage["requests"] == books.total("requests") - given_up
    assert main(["runs", "show", str(run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["usage"]
    assert (shown["requests"], shown["cost"]) == (usage["requests"], pytest.approx(usage["cost"]))


@pytest.mark.slow
def test_other_commands_count_what_they_ask_and_nothing_recorded(
    spec: Path, books: Books, capsys: pytest.CaptureFixture[str]
) -> None:
    run, prices = str(spec.parent / "run"), str(spec.parent / "prices.yaml")
    assert main(evaluated(spec, "-o", run, "--record")) == 0
    played = {model: Counter(book) for model, book in books.kept.items()}

    def usage(*args: str) -> dict[str, Any]:
        before = {model: Counter(book) for model, book in books.kept.items()}
        capsys.readouterr()
        assert main([*args, "--prices", prices, "--json"]) in (0, 1)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["usage"]
        now = {model: book - before[model] for model, book in books.kept.items() if book != before[model]}
        check({**found, "roles": [one for one in found["roles"] if not one["is_recorded"]]}, now)
        return found

    again = usage("rescore", run, "--spec", str(spec), "-o", str(spec.parent / "again"))
    recorded = {one["model"]: one["requests"] for one in again["roles"] if one["is_recorded"]}
    assert recorded == {model: book["requests"] for model, book in played.items()}
    rows = list(open_run(spec.parent / "again").rows())
    assert sum(row["asked_tokens"] for row in rows) == again["prompt_tokens"]
    assert sum(row["cost"] for row in rows) == pytest.approx(again["cost"])
    assert usage("rescore", "--ablate", run, "--spec", str(spec))["requests"] == again["requests"]
    assert usage("replay", run)["requests"] == 0
    usage("replay", run, "--no-tape")
    address = (spec.parent / "address").read_text()
    usage(
        "eval",
        "--bench",
        str(spec),
        "--policy",
        "openai",
        "--base-url",
        address,
        "--model",
        "policy-1",
        "--episodes",
        "2",
    )


@pytest.mark.slow
def test_collect_and_calls_by_hand_count_too(
    spec: Path, books: Books, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    template = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(template))
    policy = ["--base-url", (tmp_path / "address").read_text(), "--policy-model", "policy-1", "--keep", "turns > 0"]
    shared = ["collect", str(spec), "--model", str(tmp_path), "--policy", "openai", *policy]
    prices = ["--prices", str(tmp_path / "prices.yaml")]
    assert main([*shared, *prices, "-o", str(tmp_path / "data"), "--json"]) == 0
    check(json.loads(capsys.readouterr().out)["usage"], books.kept)
    books.kept.clear()
    assert main([*shared, "--keep", "turns > 99", "-o", str(tmp_path / "none")]) == 2
    assert f"models: {books.total('requests')} requests ({books.total('failed')} failed)" in capsys.readouterr().err
    books.kept.clear()
    main(["tools", str(spec), "call", "research", '{"question": "r"}'])
    assert f"models: {books.total('requests')} requests" in capsys.readouterr().err
    assert set(books.kept) == {"agent-1", "deep-1"}
