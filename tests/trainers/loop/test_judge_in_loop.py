"""Judges while veRL's episodes are played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers

from rlenv.cli.main import main
from rlenv.testing.endpoint import FakeEndpoint, Reply
from tests.trainers.loops import build, configuration, own_process, sample

SPEC = """
rlenv: 1
name: judged
tasks:
  train: {{rows: [{{question: "What is 6 * 7?", answer: 42}}]}}
prompt: {{user: "{{{{ task.question }}}}"}}
endpoints:
  writer: {{base_url: "{base_url}", model: judge, concurrency: {at_once}, retries: 0}}
limits: {{turns: 2}}
rewards:
  correct: {{kind: rule, rule: numeric_match}}
  clarity: {{kind: judge, endpoint: writer, prompt: "Clear? {{{{ message }}}}", weight: 0.5, cache: false}}
"""
GOOD = json.dumps({"reasoning": "fine", "score": 5})


class Server:
    """Stands in for veRL's client of the rollout servers; counts what it generated."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.generated = tokenizer, 0
        self.has_generated = asyncio.Condition()

    async def generate(self, request_id: str, **_request: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        async with self.has_generated:
            self.generated += 1
            self.has_generated.notify_all()
        ids = [*self.tokenizer("<answer>42</answer>", add_special_tokens=False)["input_ids"]]
        ids.append(self.tokenizer.eos_token_id)
        extra = {"global_steps": 1, "min_global_steps": 1, "max_global_steps": 1}
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields=extra)


async def play(
    folder: Path, tiny_folder: Path, endpoint: FakeEndpoint, server: Server, *, at_once: int, **options: Any
) -> Any:
    """A function that plays one sample, as veRL does: with a loop of its own."""
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(base_url=endpoint.base_url, at_once=at_once))
    config, process = configuration(response=64, prompt=256), own_process()

    async def played() -> Any:
        return await sample(build(config, server, server.tokenizer, spec=str(path), process=process, **options), step=1)

    return played


def test_others_generate_while_a_judge_thinks(verl: Any, tmp_path: Path, tiny_folder: Path) -> None:
    async def scenario() -> None:
        server = Server(transformers.AutoTokenizer.from_pretrained(tiny_folder))

        async def verdict(body: Mapping[str, Any]) -> str:
            # The first verdict comes only once another episode has generated: with a loop held up, it never would.
            async with server.has_generated:
                await server.has_generated.wait_for(lambda: server.generated == 2)
            return GOOD

        async with FakeEndpoint(verdict) as endpoint:
            sample = await play(tmp_path, tiny_folder, endpoint, server, at_once=4)
            first = asyncio.create_task(sample())
            async with server.has_generated:
                await server.has_generated.wait_for(lambda: server.generated == 1)
            outputs = [await sample(), await first]
        assert [output.reward_score for output in outputs] == [1.5, 1.5]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_the_limit_of_an_endpoint_holds_over_all_episodes_of_a_process(
    verl: Any, tmp_path: Path, tiny_folder: Path
) -> None:
    async def scenario() -> None:
        server = Server(transformers.AutoTokenizer.from_pretrained(tiny_folder))
        are_two, waiting = asyncio.Event(), []

        async def verdict(body: Mapping[str, Any]) -> str:
            waiting.append(body)
            if len(waiting) == 2:
                are_two.set()
            await are_two.wait()
            return GOOD

        async with FakeEndpoint(verdict) as endpoint:
            sample = await play(tmp_path, tiny_folder, endpoint, server, at_once=2)
            outputs = await asyncio.gather(*(sample() for _ in range(8)))
            assert endpoint.most_at_once == 2
        assert [output.reward_score for output in outputs] == [1.5] * 8

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_judge_that_fails_masks_its_samples_and_no_others(
    verl: Any, tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        server = Server(transformers.AutoTokenizer.from_pretrained(tiny_folder))
        verdicts: list[Any] = [GOOD, Reply(500, "down")]
        async with FakeEndpoint(lambda body: verdicts[len(endpoint.requests) - 1]) as endpoint:
            kept = str(tmp_path / "run")
            sample = await play(tmp_path, tiny_folder, endpoint, server, at_once=1, record_dir=kept)
            good, failed = await sample(), await sample()
        assert good.reward_score == 1.5
        assert sum(good.response_mask) > 0
        assert sum(failed.response_mask) == 0
        assert failed.extra_fields["reward_extra_info"]["invalid"] == 1.0
        assert failed.extra_fields["reward_extra_info"]["term_clarity"] is None

    asyncio.run(asyncio.wait_for(scenario(), 60))
    # What was kept holds what the judge said: nobody has to be asked again.
    argv = ["replay", str(tmp_path / "run"), "--spec", str(tmp_path / "spec.yaml"), "--json"]
    assert main(argv) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["same"], said["different"]) == (2, [])


def test_a_panel_in_training_goes_on_without_a_judge_that_is_down(verl: Any, tmp_path: Path, tiny_folder: Path) -> None:
    async def scenario() -> None:
        server = Server(transformers.AutoTokenizer.from_pretrained(tiny_folder))
        down: list[Mapping[str, Any]] = []

        def verdict(body: Mapping[str, Any]) -> str | Reply:
            if "As a critic" not in str(body["messages"]):
                return GOOD
            down.append(body)
            return Reply(status=503)

        async with FakeEndpoint(verdict) as endpoint:
            play_one = await play(tmp_path, tiny_folder, endpoint, server, at_once=4)
            path = tmp_path / "spec.yaml"
            judges = 'judges: [{endpoint: writer}, {endpoint: writer, prompt: "As a critic"}], quorum: 1'
            path.write_text(path.read_text().replace("kind: judge, endpoint: writer", f"kind: judge, {judges}"))
            output = await play_one()
            assert output.reward_score == 1.5
        # In up to ten rounds, with the material and without: nobody can know whose failure it was before.
        assert 1 <= len(down) <= 24

    asyncio.run(asyncio.wait_for(scenario(), 60))
