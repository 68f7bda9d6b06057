from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rlenv.errors import UsageError
from rlenv_verl.export import LATEST, choose, find_checkpoints, success_by_step
from tests.trainers.conftest import quiet
from tests.trainers.runs import add_checkpoint, changed, make_run, shard_over_two_ranks, with_adapter


@pytest.fixture
def run(tmp_path: Path, tiny_folder: Path) -> Path:
    return make_run(tmp_path / "run", base=tiny_folder, success={0: 0.1, 2: 0.7, 4: 0.6, 6: 0.7})


def test_the_last_whole_checkpoint_is_taken(run: Path, tiny_folder: Path) -> None:
    for step in (2, 10, 4):
        add_checkpoint(run, step, changed(tiny_folder, seed=step), base=tiny_folder)
    (run / "checkpoints" / LATEST).write_text("10")
    assert [entry.step for entry in find_checkpoints(run)] == [2, 4, 10]
    assert choose(run).step == 10
    assert choose(run, step=4).step == 4


def test_the_best_is_the_latest_of_those_that_succeed_most_and_were_saved(run: Path, tiny_folder: Path) -> None:
    for step in (2, 4):
        add_checkpoint(run, step, changed(tiny_folder, seed=step), base=tiny_folder)
    assert choose(run, best=True).step == 2
    add_checkpoint(run, 6, changed(tiny_folder, seed=6), base=tiny_folder)
    assert choose(run, best=True).step == 6


def test_a_run_that_has_not_saved_yet_says_when_it_will(run: Path) -> None:
    with pytest.raises(UsageError, match=r"no checkpoint yet.*trainer\.save_freq=5"):
        choose(run)


def test_a_step_that_is_not_there_names_those_that_are(run: Path, tiny_folder: Path) -> None:
    add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    with pytest.raises(UsageError, match=r"no checkpoint of step 3; whole ones: 4"):
        choose(run, step=3)


def test_a_checkpoint_that_is_being_written_is_not_taken(run: Path, tiny_folder: Path) -> None:
    add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    add_checkpoint(run, 8, changed(tiny_folder, seed=8), base=tiny_folder)
    (run / "checkpoints" / LATEST).write_text("4")
    assert choose(run).step == 4
    with pytest.raises(UsageError, match=rf"step 8 is half-written: {LATEST}.* names step 4; whole ones: 4"):
        choose(run, step=8)
    (run / "checkpoints" / LATEST).unlink()
    with pytest.raises(UsageError, match=r"step 4 is half-written.*is not there; step 8"):
        choose(run)


def test_a_checkpoint_without_all_shards_is_not_taken(run: Path, tiny_folder: Path) -> None:
    actor = add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    (actor / "fsdp_config.json").write_text(json.dumps({"world_size": 2}))
    with pytest.raises(UsageError, match="shards of a rank are missing"):
        choose(run, step=4)


def test_best_without_a_step_that_was_saved_and_measured_says_what_to_set(run: Path, tiny_folder: Path) -> None:
    add_checkpoint(run, 5, changed(tiny_folder, seed=4), base=tiny_folder)
    with pytest.raises(UsageError, match=r"saved: 5; measured: 0, 2, 4, 6.*multiple of trainer\.test_freq"):
        choose(run, best=True)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run of `rlenv train`"):
        choose(tmp_path)


def test_success_is_greedy_and_the_mean_over_specs(tmp_path: Path) -> None:
    figures = {
        "val-aux/a/test/greedy/success/mean@1": 0.5,
        "val-aux/b/test/greedy/success/mean@1": 1.0,
        "val-aux/a/test/sampled/success/mean@4": 0.0,
        "val-aux/b/test/greedy/invalid/mean@1": 0.0,
    }
    lines = [{"step": 1, "data": figures}, {"step": 2, "data": {"critic/score/mean": 1.0}}]
    lines.append({"step": 3, "data": {"val-aux/a/test/sampled/success/mean@4": 0.25}})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert success_by_step(tmp_path) == {1: 0.75, 3: 0.25}
    assert success_by_step(tmp_path / "nowhere") == {}


def test_a_shard_that_is_more_than_data_is_not_run(run: Path, tiny_folder: Path) -> None:
    actor = add_checkpoint(run, 4, changed(tiny_folder, seed=4), base=tiny_folder)
    torch.save({"weight": Path}, actor / "model_world_size_1_rank_0.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        choose(run).state()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_shards_of_two_ranks_are_put_together_as_verls_own_merger_does(
    run: Path, tiny_folder: Path, tmp_path: Path, verl: object
) -> None:
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    model = with_adapter(tiny_folder)
    actor = add_checkpoint(run, 4, model, base=tiny_folder)
    shard_over_two_ranks(actor, base=tiny_folder)
    state = choose(run).state()
    original = model.state_dict()
    assert set(state) == set(original)
    assert all(torch.equal(state[name], original[name]) for name in original)

    merged: dict[str, torch.Tensor] = {}

    class Merger(FSDPModelMerger):
        def save_hf_model_and_tokenizer(self, state_dict: dict[str, torch.Tensor]) -> None:
            merged.update(state_dict)

    with quiet():
        config = ModelMergerConfig(
            operation="merge",
            backend="fsdp",
            local_dir=str(actor),
            target_dir=str(tmp_path / "merged"),
            hf_model_config_path=str(actor / "huggingface"),
        )
        Merger(config).merge_and_save()
    assert set(merged) == set(state)
    assert all(torch.equal(merged[name], state[name].bfloat16()) for name in state)
