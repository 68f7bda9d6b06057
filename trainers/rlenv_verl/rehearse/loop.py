"""The agent loop and the replay buffer of a rehearsal: rlenv's own, whose policy follows a script."""

from __future__ import annotations

import json
import os
import random
import zlib
from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transfer_queue as tq  # type: ignore[import-untyped]
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.episodes.rollout import context_of
from rlenv.episodes.token_episode import TokenEpisode
from rlenv.messages import Message
from rlenv.policies.scripted import OraclePolicy, OracleSession
from rlenv.tokens import TokenEncoder
from rlenv_train.samples import Play
from rlenv_verl.loop.agent_loop import RlenvAgentLoop
from rlenv_verl.loop.replay_buffer import RlenvReplayBuffer
from rlenv_verl.rehearse.checks import SCRIPT_KEY, Filler, Kind, kind_of, padded
from rlenv_verl.rehearse.server import FOLDER_VARIABLE

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta

__all__ = ["RehearsalBuffer", "RehearsalLoop", "checksum"]


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
        _keep([{**who, "validation": held_out, "row": at, **_account(one)} for at, one in enumerate(rows)])
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
        answer = padded(ids, self.kind, most=most, is_last=is_last, filler=_filler(self.encoder), rng=self.rng)
        told = {"ids": answer, "aborted": self.kind == "aborted"}
        return await super()._generate(request, tokens, {**params, SCRIPT_KEY: told})


class _Script:
    """The oracle's actions of one episode, as text; a plain answer where there are none (left)."""

    def __init__(self, environment: Environment, episode: Episode) -> None:
        self._episode = episode
        self._session: OracleSession | None = None
        if environment.spec.oracle:
            self._session = OraclePolicy(environment.spec, environment.parts.dialect).start(context_of(episode))
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
def _filler(encoder: TokenEncoder) -> Filler:
    """The tokens of a vocabulary whose text is lower-case letters behind at most one space."""
    tokenizer: Any = encoder.vocabulary.full
    texts = ((index, tokenizer.decode([index])) for index in range(tokenizer.get_vocab_size()))
    plain = [index for index, text in texts if text.strip().isascii() and text.strip().isalpha() and text.islower()]
    return Filler(tuple(plain))


def _account(output: AgentLoopOutput) -> dict[str, Any]:
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
