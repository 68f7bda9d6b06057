"""The agent loop and the replay buffer of a rehearsal: rlenv's own, whose policy follows a script.

The rollout server of a rehearsal: answers with the tokens that it is told, and keeps account of the weights.
"""

from __future__ import annotations

import json
import math
import os
import random
import zlib
from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transfer_queue as tq  # type: ignore[import-untyped]
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.workers.rollout.replica import TokenOutput

from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.episodes.rollout import context_of
from rlenv.episodes.token_episode import TokenEpisode
from rlenv.messages import Message
from rlenv.policies.scripted import OracleSession
from rlenv.tokens import TokenEncoder
from rlenv_train.samples import Play
from rlenv_verl.cpu.rollout import CpuReplica, CpuServerActor
from rlenv_verl.loop.agent_loop import RlenvAgentLoop
from rlenv_verl.loop.replay_buffer import RlenvReplayBuffer
from rlenv_verl.rehearse import SCRIPT_KEY, Filler, Kind, kind_of, pad_action

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

FOLDER_VARIABLE = "RLENV_REHEARSAL"
"""The environment variable that names the folder in which a rehearsal's processes keep their accounts."""


def digest(named: Mapping[str, torch.Tensor]) -> str:
    """A checksum of float32 weights that depends on names, shapes and values, and not on their order.

    An output layer that is tied to the embeddings counts once, whether it is among them or not.
    """
    total = 0
    head, table = named.get("lm_head.weight"), named.get("model.embed_tokens.weight")
    is_tied = head is not None and table is not None and torch.equal(head, table)
    for name in sorted(named):
        if is_tied and name == "lm_head.weight":
            continue
        tensor = named[name].detach().to("cpu", torch.float32).contiguous()
        total = zlib.crc32(f"{name}{tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.numpy().tobytes(), total)
    return f"{total:08x}"


class RehearsalServer(CpuServerActor):
    """The rollout server that veRL calls. Answers stand in the sampling parameters (`rlenv_verl.rehearse.loop`).

    A request that a real engine would refuse is refused: no weights yet, an answer beyond `max_tokens`, a sequence
    beyond what the engine holds.
    """

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
        self.config = config
        self.longest = config.max_model_len or config.prompt_length + config.response_length
        self.guess = -math.log(max(2, int(getattr(model_config.hf_config, "vocab_size", 2))))
        self.folder = Path(os.environ[FOLDER_VARIABLE])
        self.replica_rank = replica_rank
        self.version: int | None = None
        self.weights: dict[str, torch.Tensor] = {}
        self.has_weights = False

    async def ready(self) -> bool:
        """True: there is nothing to load."""
        return True

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: dict[str, Any], request_id: str, *_seen: Any, **_other: Any
    ) -> TokenOutput:
        """The scripted answer of one request."""
        if not self.has_weights:
            raise RuntimeError("generation was asked for before the first weights came")
        script = sampling_params.get(SCRIPT_KEY)
        if script is None:
            raise RuntimeError(f"request {request_id} brings no scripted answer: another agent loop asked for it")
        ids = list(script["ids"])
        most = int(sampling_params["max_tokens"])
        if len(ids) > most or len(prompt_ids) + len(ids) > self.longest:
            raise RuntimeError(
                f"an answer of {len(ids)} tokens behind {len(prompt_ids)}: at most {most}, {self.longest} together"
            )
        return TokenOutput(
            token_ids=ids,
            # As of a policy that knows nothing; the tiny network starts near it.
            log_probs=[self.guess] * len(ids) if sampling_params.get("logprobs") else None,
            stop_reason="aborted" if script["aborted"] else "completed",
            num_preempted=0,
            extra_fields={"global_steps": self.version},
        )

    async def update_weights(
        self, named: Sequence[tuple[str, torch.Tensor]], is_last: bool, global_steps: int | None
    ) -> None:
        """A part of the new weights; with the last one their checksum is written down."""
        self.weights.update(named)
        if not is_last:
            return
        self.version, self.has_weights = global_steps, True
        entry = {"version": global_steps, "tensors": len(self.weights), "digest": digest(self.weights)}
        self.weights = {}
        with (self.folder / f"weights.{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    # Nothing runs that could be paused: each request is answered at once.
    abort_all_requests = resume_generation = CpuServerActor._nothing


class RehearsalReplica(CpuReplica):
    """One server of a rehearsal, a Ray actor that needs no GPU."""

    async def launch_servers(self) -> None:
        """Starts the server; veRL calls this once."""
        await self.launch(RehearsalServer)


def checksum(prompt: Sequence[int], response: Sequence[int], mask: Sequence[int]) -> int:
    """One number for the ids and the mask of a training row."""
    total = 0
    for part in (prompt, response, mask):
        total = zlib.crc32(array("q", part).tobytes(), total)
    return total


class RehearsalLoop(RlenvAgentLoop):
    """Plays an episode as rlenv's loop does. Beside each request it sends what the server shall answer.

    Each sample is written down as it is handed to veRL, one line a training row, in `samples.PID.jsonl` of the folder
    that the environment variable names.
    """

    def __init__(self, *args: Any, **own: Any) -> None:
        super().__init__(*args, **own)
        self.kind: Kind = "short"
        self.rng = random.Random(0)
        self.script: _Script | None = None

    async def run(  # type: ignore[override]
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """As rlenv's own, with a kind of episode for each of a prompt's samples."""
        where = row["extra_info"]
        session, task, step = int(row.get("session_id", 0)), int(where["task"]), int(row.get("global_steps", 0))
        held_out = bool(where["is_validation"])
        rollout = self.config.actor_rollout_ref.rollout
        group = int(rollout.val_kwargs.n if held_out else rollout.n)
        self.kind = kind_of(session, group=group, task=task, step=step)
        self.rng = random.Random(f"{self.seed}/{where['split']}/{task}/{step}/{session}")
        if self.kind in ("full", "limit", "malformed"):
            self.turn_tokens = None  # one action may be as long as the response, however few turns the spec has
        output = await super().run(sampling_params, **row)
        rows = output if isinstance(output, list) else [output]
        who = {"step": step, "split": where["split"], "task": task, "session": session, "kind": self.kind}
        _keep([{**who, "validation": held_out, "row": at, **_row_account(one)} for at, one in enumerate(rows)])
        return output

    async def _play(self, played: TokenEpisode, sampling: Mapping[str, Any], play: Play) -> None:
        self.script = _Script(self.environment, played.episode)
        await super()._play(played, sampling, play)

    async def _generate(self, request: str, tokens: Any, params: dict[str, Any]) -> Any:
        assert self.script is not None
        text, is_last = await self.script.next()
        most = int(params["max_tokens"])
        if self.kind == "malformed" and self.script.given == 1 and not is_last:
            text = text[: len(text) * 2 // 3]
            self.script.again()
        # As text of the template's: marks of a dialect are tokens of their own where a policy writes them.
        ids = list(self.encoder.encode_text(text)) if text else []
        if not text.endswith(self.environment.stops or "\0"):
            ids = [*ids, self.encoder.stop_id]
        answer = pad_action(ids, self.kind, most=most, is_last=is_last, filler=_make_filler(self.encoder), rng=self.rng)
        told = {"ids": answer, "aborted": self.kind == "aborted"}
        return await super()._generate(request, tokens, {**params, SCRIPT_KEY: told})


class _Script:
    """The oracle's actions of one episode, as text; a plain answer where there are none (left)."""

    def __init__(self, environment: Environment, episode: Episode) -> None:
        self._episode = episode
        self._session: OracleSession | None = None
        if environment.spec.oracle:
            self._session = environment.oracle().start(context_of(episode))
        self._kept: tuple[str, bool] | None = None
        self._last: tuple[str, bool] = ("", True)
        self.given = 0

    async def next(self) -> tuple[str, bool]:
        """The next action, and whether it is the last."""
        self.given += 1
        if self._kept is not None:
            self._last, self._kept = self._kept, None
            return self._last
        if self._session is None or self._session.is_over:
            return "I do not know.", True
        messages: list[Message] = list(self._episode.messages)
        for turn in self._episode.turns:
            messages += [Message("assistant", turn.action), *(turn.observation.messages if turn.observation else ())]
        text = await self._session.act(messages)
        self._last = (text, self._session.is_over)
        return self._last

    def again(self) -> None:
        """Gives the last action once more."""
        self._kept = self._last


@cache
def _make_filler(encoder: TokenEncoder) -> Filler:
    """The tokens of a vocabulary whose text is lower-case letters behind at most one space."""
    tokenizer: Any = encoder.vocabulary.full
    texts = ((index, tokenizer.decode([index])) for index in range(tokenizer.get_vocab_size()))
    plain = [index for index, text in texts if text.strip().isascii() and text.strip().isalpha() and text.islower()]
    return Filler(tuple(plain))


def _row_account(output: AgentLoopOutput) -> dict[str, Any]:
    extra = output.extra_fields
    mask = output.response_mask
    return {
        "prompt": len(output.prompt_ids),
        "response": len(output.response_ids),
        "trained": sum(mask),
        "masked": bool(extra["rlenv"]["masked"]),
        "ended": extra["rlenv"]["ended"],
        "reward": output.reward_score,
        "calls": extra["rlenv"]["calls"],
        "checksum": checksum(output.prompt_ids, output.response_ids, mask),
    }


def _keep(entries: Sequence[Mapping[str, Any]]) -> None:
    folder = Path(os.environ[FOLDER_VARIABLE])
    with (folder / f"samples.{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries))


_AT_ONCE = 64  # rows that are read back at a time: a batch may be gigabytes


class RehearsalBuffer(RlenvReplayBuffer):
    """Appends each row of a training batch to `arrived.jsonl`, with the checksum of its ids and its mask."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """As rlenv's own."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != "val":
            keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
            path = Path(os.environ[FOLDER_VARIABLE]) / "arrived.jsonl"
            with path.open("a", encoding="utf-8") as file:
                for start in range(0, len(keys), _AT_ONCE):
                    for entry in _read(keys[start : start + _AT_ONCE], partition_id):
                        file.write(json.dumps({"step": global_steps, **entry}) + "\n")
        return batch, metrics


def _read(keys: list[str], partition_id: str) -> list[dict[str, Any]]:
    names = ["prompts", "responses", "response_mask", "input_ids", "position_ids"]
    found = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=names)
    entries = []
    for at, key in enumerate(keys):
        prompt, response, mask, whole, positions = (found[name][at] for name in names)
        joined = [*prompt.tolist(), *response.tolist()]
        entries.append(
            {
                "key": key,
                "prompt": len(prompt),
                "response": len(response),
                "trained": int(mask.sum()),
                "checksum": checksum(prompt.tolist(), response.tolist(), mask.tolist()),
                # What the passes read: prompt and response in one, each token at its place.
                "is_whole": whole.tolist() == joined and positions.tolist() == list(range(len(joined))),
            }
        )
    return entries
