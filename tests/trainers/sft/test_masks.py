"""Only trained tokens teach: shown by gradients, for the shared loss and for veRL's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlenv.collect import EncodedRow
from rlenv_verl.tiny import batch_of, loss_sum, token_losses

ROWS = (
    # Two turns with a result between them; one turn, and something read behind it.
    EncodedRow((11, 12, 13, 21, 22, 2, 31, 32, 23, 24, 2), (0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1)),
    EncodedRow((14, 15, 25, 2, 33, 34), (0, 0, 1, 1, 0, 0)),
    EncodedRow((16, 17, 18, 19, 26), (0, 0, 0, 0, 1)),
)


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> Any:
    import transformers

    library: Any = transformers
    found = library.AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32, attn_implementation="sdpa")
    return found.eval()


def verl_loss(log_probs: torch.Tensor, rows: tuple[EncodedRow, ...], *, tokens: int = 1) -> torch.Tensor:
    """veRL's own loss over the packed rows of a micro-batch, for a batch of so many trained tokens."""
    from tensordict import NonTensorData, TensorDict
    from verl.workers.utils.losses import sft_loss

    def nested(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    offsets = torch.tensor([0, *torch.tensor([len(row.input_ids) for row in rows]).cumsum(0).tolist()])
    mask = nested([torch.tensor(row.loss_mask) for row in rows])
    data = TensorDict({"loss_mask": mask}, batch_size=[len(rows)])
    data["dp_size"], data["batch_num_tokens"] = NonTensorData(1), NonTensorData(tokens)
    packed = torch.nested.nested_tensor_from_jagged(log_probs, offsets)
    config: Any = None  # is not read
    loss, _ = sft_loss(config, {"log_probs": packed}, data)
    return loss


def packed_losses(model: Any, rows: tuple[EncodedRow, ...], *, tokens: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """veRL's loss over the rows, and the logits that it came of, all of them, in one row after the other."""
    logits = torch.cat([model(input_ids=torch.tensor([row.input_ids])).logits[0] for row in rows])
    logits.retain_grad()
    # As veRL takes them (workers/engine/fsdp/transformer_impl.py): the next id of the packed row, whosever it is.
    following = torch.roll(torch.tensor([number for row in rows for number in row.input_ids]), -1)
    log_probs = torch.log_softmax(logits, dim=-1).gather(1, following.unsqueeze(1)).squeeze(1)
    return verl_loss(log_probs, rows, tokens=tokens), logits


def teaching(rows: tuple[EncodedRow, ...]) -> torch.Tensor:
    """Which places of the packed rows have a trained token behind them."""
    return torch.tensor([flag == 1 for row in rows for flag in (*row.loss_mask[1:], 0)])


@pytest.mark.filterwarnings("ignore")
def test_the_gradient_is_exactly_zero_where_no_trained_token_follows_and_nowhere_else(verl: Any, model: Any) -> None:
    loss, logits = packed_losses(model, ROWS)
    torch.autograd.backward(loss)
    assert logits.grad is not None
    moves = logits.grad.abs().sum(dim=-1)
    assert torch.equal(moves > 0, teaching(ROWS))
    assert torch.equal(moves[~teaching(ROWS)], torch.zeros(int((~teaching(ROWS)).sum())))
    model.zero_grad()


@pytest.mark.filterwarnings("ignore")
def test_the_loss_is_the_mean_over_trained_tokens_however_a_batch_is_parted(verl: Any, model: Any) -> None:
    with torch.no_grad():
        shared = token_losses(model, batch_of(ROWS, pad_id=0))
        plain = []
        for row in ROWS:  # the textbook's: each row by itself, transformers' own loss of all labels but -100
            labels = [number if flag else -100 for number, flag in zip(row.input_ids, row.loss_mask, strict=True)]
            loss = model(input_ids=torch.tensor([row.input_ids]), labels=torch.tensor([labels])).loss
            plain.append(float(loss) * sum(row.loss_mask))
    tokens = len(shared)
    assert tokens == sum(sum(row.loss_mask) for row in ROWS) == 9
    mean = sum(plain) / tokens
    assert float(shared.double().mean()) == pytest.approx(mean, abs=1e-5)
    for parts in ((ROWS,), (ROWS[:1], ROWS[1:]), tuple((row,) for row in ROWS)):
        total = sum(float(packed_losses(model, part, tokens=tokens)[0].detach()) for part in parts)
        assert total == pytest.approx(mean, abs=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_both_losses_have_the_same_gradient_in_every_weight(verl: Any, model: Any) -> None:
    found = []
    for loss in (loss_sum(model, batch_of(ROWS, pad_id=0)), packed_losses(model, ROWS)[0]):
        model.zero_grad()
        torch.autograd.backward(loss)
        found.append({name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None})
    ours, verls = found
    assert ours.keys() == verls.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, verls[name], atol=2e-5, rtol=1e-4, msg=name)
    model.zero_grad()


def test_what_is_read_behind_the_last_trained_token_moves_nothing_and_what_is_read_before_it_does(model: Any) -> None:
    ids = batch_of(ROWS, pad_id=0).ids
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    states = model.base_model(inputs_embeds=embedded).last_hidden_state[:, :-1]
    targets = batch_of(ROWS, pad_id=0).is_trained[:, 1:]
    logits = model.get_output_embeddings()(states[targets])
    torch.autograd.backward(torch.nn.functional.cross_entropy(logits, ids[:, 1:][targets], reduction="sum"))
    assert embedded.grad is not None
    moves = embedded.grad.abs().sum(dim=-1) > 0
    for place, row in enumerate(ROWS):
        last = max(at for at, flag in enumerate(row.loss_mask) if flag)
        assert moves[place].tolist() == [at < last for at in range(ids.shape[1])]
    model.zero_grad()


def test_another_id_at_a_place_that_is_only_read_changes_no_label(model: Any) -> None:
    """The losses of the tokens before it stay to the bit; those behind it read another context."""
    row = ROWS[0]
    changed = EncodedRow((*row.input_ids[:6], 99, *row.input_ids[7:]), row.loss_mask)
    with torch.no_grad():
        before = token_losses(model, batch_of([row], pad_id=0))
        after = token_losses(model, batch_of([changed], pad_id=0))
    assert torch.equal(before[:3], after[:3])
    assert not torch.equal(before[3:], after[3:])
    behind = EncodedRow((*ROWS[1].input_ids[:4], 98, 97), ROWS[1].loss_mask)
    with torch.no_grad():
        assert torch.equal(
            token_losses(model, batch_of([ROWS[1]], pad_id=0)), token_losses(model, batch_of([behind], pad_id=0))
        )


def test_each_trained_token_counts_once(model: Any) -> None:
    with torch.no_grad():
        whole = loss_sum(model, batch_of(ROWS, pad_id=0))
        parts = []
        for row in ROWS:
            for at, flag in enumerate(row.loss_mask):
                if flag:
                    only = tuple(int(place == at) for place in range(len(row.loss_mask)))
                    parts.append(loss_sum(model, batch_of([EncodedRow(row.input_ids, only)], pad_id=0)))
    assert len(parts) == sum(sum(row.loss_mask) for row in ROWS)
    torch.testing.assert_close(whole, torch.stack(parts).sum())
    assert all(part > 0 for part in parts)
