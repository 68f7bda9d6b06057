"""A policy small enough to train on two CPU cores, made on the spot for one spec."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import tokenizers  # type: ignore[import-untyped]
import torch

from rlenv.collect.encode import EncodedRow
from rlenv.models import quiet

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (PAD, START, END)
MARKER_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# A word in title case. It stands alone, so that a name is the same tokens wherever it stands and can be copied.
_NAME = "[A-Z][a-z]+"
_PEAK_RATE = 3e-3  # reached after 30 steps; it falls linearly to a tenth from there
_Conversation = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
_CONTROLS = re.compile("|".join(re.escape(token) for token in CONTROL_TOKENS + MARKER_TOKENS))


def chat_template() -> str:
    """The chat template of the tiny policy: Qwen3's layout with a short tools block."""
    return (resources.files(__package__) / "chat_template.jinja").read_text(encoding="utf-8")


def build_tokenizer(conversations: Sequence[_Conversation], folder: Path, *, markers: Sequence[str] = ()) -> Any:
    """Train a tokenizer on `conversations` and save it to `folder`.

    Digits stand alone, so that numbers are copied digit by digit, and so do words in title case, so that names are
    copied by the same tokens everywhere; everything else may merge across words, so that whatever every conversation
    repeats (the tools block, the frame of a call) is a handful of tokens.

    Args:
        conversations: messages and the tool schemas that their prompt shows, as chat templates take them.
        markers: further strings that are one token each, such as an answer tag.

    Returns:
        The tokenizer as transformers loads it from `folder`.
    """
    split = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(_NAME), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return train_tokenizer(
        _plain_texts(conversations, markers),
        folder,
        split=split,
        control=CONTROL_TOKENS,
        others=(*MARKER_TOKENS, *markers),
        template=chat_template(),
        end=END,
        pad=PAD,
        vocab_size=2048,
        # Only what repeats everywhere is worth a token; a merge seen in few episodes would split their numbers'
        # surroundings in ways the rest never shows.
        min_frequency=max(2, len(conversations) // 100),
        length=4096,
    )


def train_tokenizer(
    texts: Sequence[str],
    folder: Path,
    *,
    split: Any,
    control: Sequence[str],
    others: Sequence[str],
    template: str,
    end: str,
    pad: str,
    vocab_size: int,
    length: int,
    min_frequency: int = 0,
) -> Any:
    """Train a byte-level tokenizer on `texts`, save it to `folder`, and load it from there with transformers.

    Args:
        split: the pre-tokenizer: no merge goes over its cuts.
        control: special tokens, `end` and `pad` among them; `others` are tokens of their own as well, and text.
        length: the most tokens that the tokenizer says its model reads.
    """
    import transformers

    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer, bpe.decoder = split, tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(control),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens([tokenizers.AddedToken(text, special=False, normalized=False) for text in others])
    fast: Any = transformers.PreTrainedTokenizerFast
    made = fast(tokenizer_object=bpe, eos_token=end, pad_token=pad, model_max_length=length)
    made.chat_template = template
    folder.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def _plain_texts(conversations: Sequence[_Conversation], markers: Sequence[str]) -> list[str]:
    """The texts of the conversations between the tokens that stand alone."""
    import transformers

    plain: Any = transformers.PreTrainedTokenizerFast
    fast = plain(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), chat_template=chat_template())
    split = re.compile("|".join([_CONTROLS.pattern, *(re.escape(marker) for marker in markers)]))
    texts: list[str] = []
    for messages, tools in conversations:
        rendered = fast.apply_chat_template(
            [dict(message) for message in messages], tools=[dict(tool) for tool in tools] or None, tokenize=False
        )
        texts.extend(piece for piece in split.split(str(rendered)) if piece)
    return texts


def new_model(tokenizer: Any, *, hidden: int = 128, layers: int = 3, heads: int = 4) -> Any:
    """A randomly initialised causal language model for `tokenizer`, in float32.

    The caller seeds torch; the same seed gives the same weights.
    """
    import transformers

    library: Any = transformers  # its classes are partly annotated
    config = library.Qwen3Config(
        # A multiple of 64 keeps the output projection aligned; the ids above len(tokenizer) are never produced.
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=4096,
        # Episodes are about a hundred tokens: a small base resolves neighbouring positions, which copying needs.
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        # transformers' default of 0.02 is meant for wide models; at this width it delays learning to copy.
        initializer_range=0.08,
    )
    model = library.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float()
    model.config.architectures = [type(model).__name__]
    return model


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights, configuration and tokenizer to `folder`, as `from_pretrained` and veRL read them."""
    import transformers

    library: Any = transformers
    with quiet():
        model.save_pretrained(folder)
    generation = library.GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    generation.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right: `ids` int64 and `is_trained` bool, shape (rows, longest).

    Causal attention makes a mask of the padding needless: no token reads what stands behind it.
    """

    ids: torch.Tensor
    is_trained: torch.Tensor

    @property
    def trained(self) -> int:
        """The trained tokens."""
        return int(self.is_trained.sum())


def batch_of(rows: Sequence[EncodedRow], *, pad_id: int) -> Batch:
    """The rows as one batch."""
    return Batch(_pad_rows([row.input_ids for row in rows], pad_id), _pad_rows([row.loss_mask for row in rows], 0) == 1)


def token_losses(model: Any, batch: Batch) -> torch.Tensor:
    """The loss of each trained token, float, in the order of rows and places.

    Args:
        model: a causal language model of transformers; its output layer is applied to the trained tokens alone.
    """
    targets = batch.is_trained[:, 1:]
    states = model.base_model(input_ids=batch.ids).last_hidden_state[:, :-1]
    # Three quarters of the tokens are prompts and results: their logits would cost as much as a layer.
    logits = model.get_output_embeddings()(states[targets])
    return torch.nn.functional.cross_entropy(logits.float(), batch.ids[:, 1:][targets], reduction="none")


def loss_sum(model: Any, batch: Batch) -> torch.Tensor:
    """The sum of `token_losses`."""
    return token_losses(model, batch).sum()


def take_step(
    model: Any, optimiser: torch.optim.Optimizer, batches: Sequence[Batch], *, tokens: float
) -> tuple[float, float]:
    """One step of the optimiser over the sum of all batches' losses, divided by `tokens`.

    Args:
        tokens: what the sum is divided by: the step's trained tokens for a mean over tokens, or a constant.

    Returns:
        The mean loss of a trained token before the step, and the gradient's norm before it was clipped.
    """
    total = 0.0
    for batch in batches:
        loss = loss_sum(model, batch)
        torch.autograd.backward(loss / tokens)
        total += float(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()
    return total / max(1, sum(batch.trained for batch in batches)), float(norm)


def _pad_rows(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """The result of a warm start. `clean_loss` and `mixed_loss` are means per trained token over the last 20 steps of
    their phase.
    """

    steps: int
    seconds: float
    clean_loss: float
    mixed_loss: float


def warm_up(
    model: Any,
    clean: Sequence[EncodedRow],
    mixed: Sequence[EncodedRow],
    *,
    pad_id: int,
    seed: int,
    steps: int = 460,
    clean_share: float = 0.65,
    batch: int = 32,
    progress: Callable[[int, float], None] | None = None,
) -> WarmupReport:
    """Train `model` in place: first on `clean` examples alone, then on the `mixed` ones.

    Copying a result digit by digit is the slow skill; it is learned first, from clean examples, since the majority of
    the mixture never reads a result.

    Args:
        model: a causal language model of transformers, on the CPU in float32.
        clean: gold episodes and drills.
        mixed: the mixture of right and flawed episodes.
        steps: optimiser steps, at least 2.
        clean_share: the share of steps on clean examples alone.
        progress: called with (step, loss) after each step.
    """
    rng = random.Random(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=_PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    started = time.monotonic()
    switch = round(steps * clean_share)
    # A constant, not the tokens of each batch: buckets of short guesses would otherwise weigh more per token than the
    # long right episodes, and the policy would forget to call.
    tokens_a_step = batch * sum(sum(row.loss_mask) for row in clean) / len(clean)
    losses: list[float] = []
    buckets: list[list[EncodedRow]] = []
    model.train()
    for step in range(steps):
        if step == switch:
            buckets = []
        if not buckets:
            buckets = _length_buckets(clean if step < switch else mixed, batch=batch, rng=rng)
        rows = buckets.pop()
        for group in optimiser.param_groups:
            group["lr"] = _PEAK_RATE * min(1.0, (step + 1) / 30) * (1 - 0.9 * step / steps)
        loss, _ = take_step(model, optimiser, [batch_of(rows, pad_id=pad_id)], tokens=tokens_a_step)
        losses.append(loss)
        if progress is not None:
            progress(step + 1, losses[-1])
    model.eval()
    clean_losses, mixed_losses = losses[:switch][-20:], losses[switch:][-20:]
    return WarmupReport(
        steps=steps,
        seconds=time.monotonic() - started,
        clean_loss=sum(clean_losses) / max(1, len(clean_losses)),
        mixed_loss=sum(mixed_losses) / max(1, len(mixed_losses)),
    )


def _length_buckets(examples: Sequence[EncodedRow], *, batch: int, rng: random.Random) -> list[list[EncodedRow]]:
    """Eight batches of examples of about the same length each (a third less padding), in random order."""
    pool = sorted((rng.choice(examples) for _ in range(8 * batch)), key=lambda row: len(row.input_ids))
    buckets = [pool[start : start + batch] for start in range(0, len(pool), batch)]
    rng.shuffle(buckets)
    return buckets
