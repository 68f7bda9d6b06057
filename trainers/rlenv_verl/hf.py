"""A model folder as an rlenv policy: transformers on the CPU, token by token as in training, without veRL."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlenv.episodes.environment import Environment
from rlenv.errors import PolicyError, UnsupportedTemplate, UsageError
from rlenv.messages import Message, Observation, Sampled
from rlenv.policies.base import PolicyContext
from rlenv.tokens import TokenEncoder, TokenRows
from rlenv.tokens.bound import bind, said_of, thinking_of
from rlenv.tokens.encoder import History
from rlenv_verl.cpu import Sampling
from rlenv_verl.cpu.server import CpuServer
from rlenv_verl.export.weights import load_model

_MOST_AT_ONCE: Final = 256
"""The most episodes that generate at once."""


def load_policy(
    folder: str | Path,
    environment: Environment,
    *,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    response_tokens: int | None = None,
    history: History = "rows",
) -> HfPolicy:
    """The policy in a folder of transformers (weights, configuration, tokenizer with a chat template).

    Args:
        environment: what it plays in: its dialect says how a turn reads, and where it thinks.
        temperature: 0, the default, is greedy.
        top_p: mass that sampling keeps; all by default.
        max_tokens: the most tokens of one action; 256 by default.
        response_tokens: the most tokens after the prompt; by default the spec's limit, else 4096. An episode that needs
            more gets an empty action.
        history: what to do where the chat template rewrites earlier turns; by default the policy reads what the
            template writes, as it would when it is served.

    Raises:
        PolicyError: the folder holds no model that transformers can load.
    """
    tokenizer, model = _load_model(folder)
    encoder = bind(tokenizer, environment, history=history, model=str(folder))
    pad = model.config.pad_token_id or 0
    server = CpuServer(model, pad_id=pad, max_batch=_MOST_AT_ONCE, seed=0, has_weights=True, decode=tokenizer.decode)
    given = (256 if max_tokens is None else max_tokens, temperature or 0.0, 1.0 if top_p is None else top_p)
    return HfPolicy(
        name=f"hf:{folder}",
        encoder=encoder,
        server=server,
        sampling=Sampling(*given, stop_ids=encoder.end_ids),
        response_tokens=response_tokens or environment.limits.response_tokens or 4096,
        environment=environment,
    )


def _load_model(folder: str | Path) -> tuple[Any, Any]:
    """The tokenizer and the model of a folder."""
    import torch
    import transformers

    library: Any = transformers  # its classes are partly annotated
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(folder)
        # In float32 from the start: transformers would round to what the configuration names, which beside the
        # weights that veRL saves is bfloat16, whatever they are.
        return tokenizer, load_model(folder, dtype=torch.float32)
    except (OSError, ValueError, UsageError) as error:
        place = folder if Path(folder).is_dir() else f"{folder}, which is no folder here, so that the hub was asked"
        raise PolicyError(f"no model could be loaded from {place}: {error}") from error


@dataclass(slots=True, eq=False)
class HfPolicy:
    """A policy shared by all episodes of one event loop; their actions generate as batches."""

    name: str
    encoder: TokenEncoder
    server: CpuServer
    sampling: Sampling
    response_tokens: int
    environment: Environment
    _is_serving: bool = False

    def start(self, context: PolicyContext) -> _Session:
        """One episode."""
        if not self._is_serving:
            self.server.start()
            self._is_serving = True
        return _Session(self, context)

    async def aclose(self) -> None:
        """Stop generating; may be called twice."""
        self._is_serving = False
        await self.server.aclose()


@dataclass(slots=True, eq=False)
class _Session:
    policy: HfPolicy
    context: PolicyContext
    _tokens: TokenRows | None = None
    _seen: int = field(default=0)
    _over: str | Sampled | None = None
    """What is said from where nothing more can be sampled; the episode is scored as it stands."""

    async def act(self, messages: Sequence[Message]) -> str | Sampled:
        if self._over is not None:
            return self._over
        policy = self.policy
        tokens = self._tokens
        if tokens is None:
            tokens = self._tokens = policy.encoder.start_rows(
                messages, tools=self.context.tools, max_response_tokens=policy.response_tokens
            )
        else:
            own, *observed = messages[self._seen :]
            try:
                fits = tokens.add_observation(Observation(tuple(observed)), said=self._template_turn(own))
            except UnsupportedTemplate:
                # The policy chose the shape of its turn, such as more calls than the template can show results of: it
                # may not make its own reward invalid by that.
                self._over = ""
                return self._over
            if not fits:
                self._over = Sampled("", "length")
                return self._over
        # What the policy says next stands first among what is new then.
        self._seen = len(messages)
        room = tokens.remaining
        if not room:
            self._over = Sampled("", "length")
            return self._over
        sampling = policy.sampling
        most = min(sampling.max_tokens, room)
        sampling = dataclasses.replace(sampling, max_tokens=most, stop_texts=self.context.stops)
        generated, _ = await policy.server.generate(tokens.context_ids, sampling)
        action = tokens.add_sampled(generated.token_ids, generated.logprobs)
        return Sampled(action, generated.finish, generated.token_ids)

    def _template_turn(self, own: Message) -> Message:
        """The policy's last turn as the chat template shall write it."""
        environment = self.policy.environment
        if own.tool_calls:
            return own
        text, parsed = environment.parse(own.content)
        return said_of(text, parsed, thinking=thinking_of(environment))
