"""Every preset with every algorithm and mode, against veRL's real configuration; nothing is started."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.errors import UsageError
from rlenv_verl.settings import algorithm_names, compose, mode_names, preset_names
from rlenv_verl.settings.presets import control_estimator, flatten, load_preset, override

DATA = ["data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=/model"]
# Algorithms and modes set keys of their own, so each is tried beside the usual of the other, and all on one preset.
SOME = [
    (name, algorithm, mode)
    for name, algorithm, mode in product(preset_names(), algorithm_names(), mode_names())
    if algorithm == "grpo" or mode == "sync" or (name == "cpu" and algorithm in ("ppo", "dapo"))
]
# The other presets build on `gpu`: what that takes is tried on them once in `make test`, and whole in `make test-verl`.
TRIED = [
    pytest.param(
        name,
        algorithm,
        mode,
        marks=()
        if name in ("cpu", "gpu") or (algorithm == "grpo" and mode != "colocate_async")
        else pytest.mark.verl_runs,
    )
    for name, algorithm, mode in SOME
]


@cache  # nobody changes what it gives
def composed(name: str, algorithm: str | None = None, mode: str | None = None, *overrides: str) -> dict[str, Any]:
    return compose([*load_preset(name, algorithm=algorithm, mode=mode).overrides(), *DATA, *overrides])


@pytest.mark.slow(but=1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "algorithm", "mode"), TRIED)
def test_every_combination_is_a_configuration_that_verl_accepts(
    verl: Any, tiny_folder: Path, name: str, algorithm: str, mode: str
) -> None:
    from omegaconf import OmegaConf
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.utils.import_utils import load_extern_type

    import rlenv_verl.estimators  # noqa: F401

    config: Any = OmegaConf.create(composed(name, algorithm, mode))
    config.actor_rollout_ref.model.path = config.critic.model.path = str(tiny_folder)
    get_adv_estimator_fn(config.algorithm.adv_estimator)
    assert need_critic(config) == (algorithm == "ppo")
    validate_config(config, need_reference_policy(config), need_critic(config))
    omega_conf_to_dataclass(config.algorithm)
    rollout, sampler = config.actor_rollout_ref.rollout, config.trainer.v1.sampler
    omega_conf_to_dataclass(rollout.checkpoint_engine)
    assert config.trainer.v1.trainer_mode == mode
    buffer = load_extern_type(sampler.custom_sampler.path, sampler.custom_sampler.name)
    assert buffer.__name__ == ("RlenvReplayBuffer" if mode == "sync" else "RlenvReplayBufferAsync")
    # Every batch is whole mini-batches; with a rollout of its own, veRL wants exactly these.
    batch, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    assert batch % mini == 0
    if mode == "separate_async":
        assert batch == config.trainer.v1.separate_async.parameter_sync_step * mini
        assert rollout.nnodes > 0
        assert rollout.n_gpus_per_node > 0
        assert rollout.checkpoint_engine.backend != "naive"
    # Sequences have to fit into what one pass takes, and servers into the GPUs.
    longest = config.data.max_response_length
    for limit in (config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu, rollout.log_prob_max_token_len_per_gpu):
        assert limit >= 2 * longest
    assert config.trainer.n_gpus_per_node % rollout.tensor_model_parallel_size == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("algorithm", "mode"), [("ppo", "separate_async"), ("dapo", "colocate_async")])
def test_values_laid_over_the_configuration_are_what_its_files_give(algorithm: str, mode: str) -> None:
    more = ("hydra.run.dir=/run", "+ray_kwargs.ray_init.address=local", "data.seed=${data.train_batch_size}")
    laid = composed("cpu", algorithm, mode, *more)
    # Who chooses among the files, be it what is chosen anyway, has all of them read.
    assert laid == composed("cpu", algorithm, mode, *more, "model_engine=dp")


@pytest.mark.slow(but=1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gpu", "node", "cluster"])
def test_a_pass_takes_two_of_the_longest_sequences(name: str) -> None:
    preset = load_preset(name)
    config = composed(name)
    longest = preset.run["max_prompt_length"] + config["data"]["max_response_length"]
    assert config["actor_rollout_ref"]["actor"]["ppo_max_token_len_per_gpu"] == 2 * longest
    assert config["actor_rollout_ref"]["rollout"]["max_num_batched_tokens"] >= longest
    assert preset.run["turn_tokens"] * 4 == config["data"]["max_response_length"]


@pytest.mark.filterwarnings("ignore")
def test_the_sampler_gets_the_filter_that_verl_does_not_hand_on() -> None:
    config = composed("gpu", "dapo", None, "data.train_batch_size=48")
    options = config["trainer"]["v1"]["sampler"]["sampler_kwargs"]
    assert options["filter_groups_metric"] == "reward"
    assert options["train_batch_size"] == 48
    assert config["algorithm"]["filter_groups"]["enable"] is True
    actor = config["actor_rollout_ref"]["actor"]
    assert (actor["clip_ratio_low"], actor["clip_ratio_high"], actor["loss_agg_mode"]) == (0.2, 0.28, "token-mean")


@pytest.mark.slow(but=1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("algorithm", "estimator", "loss_kl", "reward_kl"),
    [
        ("grpo", "rlenv_grpo", True, False),
        ("ppo", "gae", False, False),
        ("rloo", "rlenv_rloo", False, True),
        ("reinforce", "rlenv_reinforce_plus_plus_baseline", False, True),
        ("dapo", "rlenv_grpo", False, False),
    ],
)
def test_an_algorithm_decides_estimator_and_kl(algorithm: str, estimator: str, loss_kl: bool, reward_kl: bool) -> None:
    config = composed("gpu", algorithm)
    assert config["algorithm"]["adv_estimator"] == estimator
    assert config["actor_rollout_ref"]["actor"]["use_kl_loss"] is loss_kl
    assert config["algorithm"]["use_kl_in_reward"] is reward_kl


@pytest.mark.filterwarnings("ignore")
def test_the_critic_starts_from_the_policy() -> None:
    config = composed("cpu", "ppo")
    assert config["critic"]["model"]["path"] == "/model"
    assert config["critic"]["ppo_mini_batch_size"] == config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]


@pytest.mark.filterwarnings("ignore")
def test_the_command_line_wins_over_every_layer() -> None:
    config = composed("cluster", "ppo", "separate_async", "trainer.nnodes=3", "critic.optim.lr=7e-6")
    assert config["trainer"]["nnodes"] == 3
    assert config["critic"]["optim"]["lr"] == 7e-6
    # What only the layers below say stays.
    assert config["actor_rollout_ref"]["rollout"]["nnodes"] == 2
    assert config["trainer"]["v1"]["separate_async"]["parameter_sync_step"] == 2


@pytest.mark.slow
def test_an_application_of_hydra_keeps_its_own_configuration() -> None:
    from hydra import compose as theirs
    from hydra import initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        assert compose([*load_preset("cpu").overrides(), *DATA])["data"]["train_files"] == "a"
        assert theirs("ppo_trainer").data.val_files is not None


def test_a_preset_names_its_own_algorithm_and_mode_or_takes_the_usual_ones() -> None:
    assert [(p.algorithm, p.mode) for p in [load_preset("cpu")]] == [("grpo", "sync")]
    chosen = load_preset("cpu", algorithm="rloo", mode="colocate_async")
    assert (chosen.algorithm, chosen.mode) == ("rloo", "colocate_async")


def test_a_preset_that_extends_another_keeps_what_it_does_not_say() -> None:
    gpu, node = dict(flatten(load_preset("gpu").verl)), dict(flatten(load_preset("node").verl))
    changed = {key for key in node if node[key] != gpu.get(key)}
    assert set(gpu) <= set(node)
    assert "trainer.n_gpus_per_node" in changed
    assert "actor_rollout_ref.actor.optim.lr" not in changed


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            {"name": "clutser"},
            r"no preset 'clutser'; did you mean 'cluster'\? there are cluster, cpu, cpu-lm",
        ),
        ({"algorithm": "grp"}, r"no algorithm 'grp'; did you mean 'grpo'\? there are dapo, grpo, ppo"),
        ({"mode": "async"}, r"no mode 'async'; .*there are colocate_async, separate_async, sync"),
    ],
)
def test_unknown_names_are_told_with_the_choices(kind: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_preset(**{"name": "cpu", **kind})


@pytest.mark.parametrize("algorithm", algorithm_names())
def test_a_control_is_registered_or_refused(verl: Any, algorithm: str) -> None:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import rlenv_verl.estimators  # noqa: F401

    preset = load_preset("cpu", algorithm=algorithm)
    if algorithm == "ppo":
        with pytest.raises(UsageError, match="'ppo' has no control run; these have: dapo, grpo, reinforce, rloo"):
            control_estimator(preset)
    else:
        assert control_estimator(preset).endswith("_shuffled")
        get_adv_estimator_fn(control_estimator(preset))


@pytest.mark.filterwarnings("ignore")
def test_an_interpolation_survives_as_an_override() -> None:
    config = compose(
        [*DATA, override("trainer.experiment_name", "${data.train_batch_size}"), "data.train_batch_size=3"]
    )
    assert str(config["trainer"]["experiment_name"]) == "3"


@pytest.mark.parametrize("folder", ["presets", "presets/algorithms", "presets/modes"])
def test_files_hold_known_sections_alone(folder: str) -> None:
    from importlib import resources

    known = {"environment", "run", "verl", "verl_add", "with", "extends", "algorithm", "mode"}
    for entry in (resources.files("rlenv_verl") / folder).iterdir():
        if entry.name.endswith(".yaml"):
            data = yaml.safe_load(entry.read_text(encoding="utf-8"))
            assert set(data) <= known, entry.name
            assert set(data.get("with", {})) <= {*algorithm_names(), *mode_names()}, entry.name
