"""A rollout server: batches concurrent requests into waves and generates with transformers on the CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rlenv_verl.cpu import Generated, Sampling, generate, generate_seeing

# A wave starts when no request has come for this long. The episodes of a step ask at about the same time, spread by
# their tools; waiting for the stragglers makes few large batches of what would be many small ones.
_GATHER_S = 0.005
_GATHER_ROUNDS = 8

_KNOWN = frozenset(
    "temperature top_p top_k max_tokens max_new_tokens stop stop_token_ids include_stop_str_in_output logprobs"
    " repetition_penalty".split()
)


def read_sampling(
    params: Mapping[str, Any], *, prompt_tokens: int, max_model_len: int, default_tokens: int, stop_ids: Iterable[int]
) -> Sampling:
    """The sampling of one request, from the parameters that veRL sends.

    Args:
        params: as for vLLM; a parameter that this server would ignore is refused.
        default_tokens: the response's limit where the request names none.

    Raises:
        ValueError: an unknown parameter, a repetition penalty, or no room for a single token.
    """
    unknown = sorted(set(params) - _KNOWN)
    if unknown:
        raise ValueError(f"sampling parameters this server does not know: {', '.join(unknown)}")
    if params.get("repetition_penalty", 1.0) != 1.0:
        raise ValueError("this server has no repetition penalty")
    asked = params.get("max_tokens") or params.get("max_new_tokens") or default_tokens
    room = max_model_len - prompt_tokens
    if room < 1:
        raise ValueError(f"a prompt of {prompt_tokens} tokens leaves no room within max_model_len={max_model_len}")
    top_k = params.get("top_k", -1)
    return Sampling(
        max_tokens=max(1, min(asked, room)),
        temperature=params.get("temperature", 1.0),
        top_p=params.get("top_p", 1.0),
        top_k=-1 if top_k is None else top_k,
        stop_ids=frozenset(stop_ids) | frozenset(params.get("stop_token_ids") or ()),
        # As in vLLM the token ids keep the stop text whatever `include_stop_str_in_output` says of the text.
        stop_texts=tuple(params.get("stop") or ()),
    )


@dataclass(slots=True, eq=False)
class _Request:
    prompt: list[int]
    sampling: Sampling
    answer: asyncio.Future[tuple[Generated, int | None]]
    images: Sequence[Any] = ()
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class CpuServer:
    """Generates for concurrent requests with one model.

    Requests gathered within a few milliseconds decode as one batch in a worker thread; those that arrive meanwhile
    make the next. Weights change only between batches, so one batch never mixes two versions.

    Args:
        model: a causal language model of transformers in eval mode, float32.
        seed: of all sampling; requests carry none. Equal requests in equal batches give equal tokens.
        decode: makes text of token ids, special ones included; needed where requests have stop texts.
        processor: of a model that sees, whose requests are then generated one by one.
    """

    model: Any
    pad_id: int
    max_batch: int
    seed: int
    has_weights: bool = False
    """Whether `model` holds weights to serve with; True once `load_weights` saw the last part."""
    weights_version: int | None = None
    decode: Callable[[Sequence[int]], str] | None = None
    processor: Any = None
    _queue: asyncio.Queue[_Request] = field(default_factory=asyncio.Queue)
    _model_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _resumed: asyncio.Event = field(default_factory=asyncio.Event)
    _abort: bool = False
    _rejects: bool = False
    _generator: torch.Generator = field(default_factory=torch.Generator)
    _loop_task: asyncio.Task[None] | None = None
    _loaded: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._generator.manual_seed(self.seed)
        self._resumed.set()

    def start(self) -> None:
        """Begin to serve, in the running event loop."""
        self._loop_task = asyncio.create_task(self._serve_waves())

    async def aclose(self) -> None:
        """Stop serving; returns when the batch that runs has ended. May be called twice."""
        task, self._loop_task = self._loop_task, None
        if task is None:
            return
        self._abort = True
        async with self._model_lock:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        images: Sequence[Any] = (),
        processor_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Generated, int | None]:
        """The model's tokens after `prompt`, and the version of the weights that sampled them.

        While generation is paused, requests wait, or return at once as `aborted` where the pause rejects. A request
        that an abort catches returns what it has as `aborted`, which may be nothing.

        Raises:
            RuntimeError: no weights have been loaded yet.
            ValueError: images for a server without a `processor`.
        """
        if images and self.processor is None:
            raise ValueError("this server generates from text alone; its model has no processor for images")
        while not self._resumed.is_set():
            if self._rejects:
                return Generated((), (), "aborted"), self.weights_version
            await self._resumed.wait()
        if not self.has_weights:
            raise RuntimeError("generation was asked for before the first weights came")
        answer: asyncio.Future[tuple[Generated, int | None]] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Request(list(prompt), sampling, answer, images, processor_kwargs or {}))
        return await answer

    async def load_weights(
        self, named: Sequence[tuple[str, torch.Tensor]], *, is_last: bool, version: int | None
    ) -> None:
        """Copy a part of the weights into the model; with `is_last`, `version` names the new whole.

        Raises:
            KeyError: a name that the model does not have.
            RuntimeError: the last part came and tensors of the model were never sent.
        """
        state = self.model.state_dict()
        async with self._model_lock:
            with torch.no_grad():
                for name, tensor in named:
                    if name not in state:
                        raise KeyError(f"the model has no tensor named {name}")
                    state[name].copy_(tensor)
                    self._loaded.add(name)
            if is_last:
                storage = {state[name].data_ptr() for name in self._loaded}
                # Tied tensors share their storage and are sent once.
                missing = [name for name, tensor in state.items() if tensor.data_ptr() not in storage]
                if missing:
                    raise RuntimeError(f"weights were not sent: {', '.join(missing[:5])}")
                self._loaded.clear()
                self.has_weights = True
                self.weights_version = version

    async def pause(self, *, rejects: bool = False) -> None:
        """Abort what is running and queued; later requests wait for `resume`. Returns when nothing runs any more.

        With `rejects`, later requests are answered at once as `aborted`: a client then asks another server, where a
        request that waits here would wait for as long as this server's device is the trainer's.
        """
        self._resumed.clear()
        self._rejects = rejects
        self._abort = True
        while not self._queue.empty():
            self._set_answer(self._queue.get_nowait(), Generated((), (), "aborted"))
        async with self._model_lock:
            self._abort = False

    def resume(self) -> None:
        """Serve again."""
        self._rejects = False
        self._resumed.set()

    async def _serve_waves(self) -> None:
        while True:
            wave = await self._gather_wave()
            async with self._model_lock:
                if not self._resumed.is_set():  # paused while gathering: nothing of this wave has run
                    outcomes = [Generated((), (), "aborted")] * len(wave)
                else:
                    try:
                        outcomes = await asyncio.to_thread(self._decode, wave)
                    except Exception as error:  # the boundary: every waiting request learns of it, none hangs
                        for request in wave:
                            if not request.answer.done():
                                request.answer.set_exception(error)
                        continue
            for request, outcome in zip(wave, outcomes, strict=True):
                self._set_answer(request, outcome)

    async def _gather_wave(self) -> list[_Request]:
        wave = [await self._queue.get()]
        quiet = 0
        while quiet < _GATHER_ROUNDS and len(wave) < self.max_batch:
            await asyncio.sleep(_GATHER_S)
            quiet += 1
            while not self._queue.empty() and len(wave) < self.max_batch:
                wave.append(self._queue.get_nowait())
                quiet = 0
        return wave

    def _decode(self, wave: Sequence[_Request]) -> list[Generated]:
        if self.processor is not None:
            return [
                generate_seeing(
                    self.model,
                    self.processor,
                    request.prompt,
                    request.images,
                    request.sampling,
                    generator=self._generator,
                    processor_kwargs=dict(request.processor_kwargs),
                    is_aborted=lambda: self._abort,
                    decode=self.decode,
                )
                for request in wave
            ]
        return generate(
            self.model,
            [request.prompt for request in wave],
            [request.sampling for request in wave],
            pad_id=self.pad_id,
            generator=self._generator,
            is_aborted=lambda: self._abort,
            decode=self.decode,
        )

    def _set_answer(self, request: _Request, outcome: Generated) -> None:
        if not request.answer.done():  # a caller that gave up has cancelled it
            request.answer.set_result((outcome, self.weights_version))
