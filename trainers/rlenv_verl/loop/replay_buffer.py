"""veRL's replay buffers with rlenv's figures, named by `trainer.v1.sampler.custom_sampler`.

`RlenvReplayBuffer` is for `trainer_mode: sync`, `RlenvReplayBufferAsync` for the asynchronous modes. What `sample`
returns beside the batch is merged into the step's metrics and reaches every logger. `MeasuredRows` asks tasks by what
the steps so far have trained on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import transfer_queue as tq  # type: ignore[import-untyped]
import yaml
from verl.trainer.ppo.v1.replay_buffer import FILTER_GROUPS_REWARD_METRIC, ReplayBuffer, ReplayBufferAsync
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tensordict_utils import get_tensordict

from rlenv.errors import InvalidReward, UsageError, all_known
from rlenv.language.loader import load_spec
from rlenv.language.shipped import find
from rlenv.language.templates import as_template
from rlenv.tasks.rows import load_tasks
from rlenv_train.keeping import Keeper
from rlenv_train.progress import Curriculum
from rlenv_train.samples import EpisodeFigures, step_figures, trained_tasks
from rlenv_verl.estimators.rows import ADVANTAGES, RowLabel
from rlenv_verl.loop import LAST_S, Watched, watched_of

if TYPE_CHECKING:
    from transfer_queue import KVBatchMeta


def fit_size(size: int, *, rows: int, prompts: int, n: int, workers: int) -> int:
    """A mini-batch size, in prompts, with which `rows` rows make as many updates as `prompts` times `n` rows do.

    Args:
        size: `ppo_mini_batch_size`, in prompts.
        workers: the size that a mini-batch of `size` times `n` rows is divided by.

    Returns:
        `size` where the rows are no more than that; else the least number for which they suffice, and which the
        workers divide.
    """
    if rows <= prompts * n:
        return size
    updates = max(1, prompts // size)
    step = workers // math.gcd(workers, n)
    return -(-rows // (n * updates * step)) * step


@dataclass(slots=True)
class Updates:
    """The mini-batch sizes of a trainer, fitted to each batch.

    Expected: `ppo_mini_batch_size` counts prompts, and their samples make one update, however many rows an episode is.
    Actual (0.9.1): `PPOTrainer._get_required_batch_multiple` and `_update_actor` take `ppo_mini_batch_size` times
    `rollout.n` rows for an update, so that episodes of three rows make three, the last mostly of padding; and
    `validate_config` refuses a mini-batch that is larger than `train_batch_size`. Both read the sizes for each batch,
    so they are set before. Remove when veRL counts episodes.

    Args:
        config: the trainer's whole configuration; None where there is no trainer, as in a test of the buffer alone.
    """

    config: Any
    actor: int = 0
    critic: int = 0

    @classmethod
    def of(cls, refill_fn: Callable[[int], None] | None) -> Updates:
        """Those of the trainer whose method a replay buffer is handed (`PPOTrainer._build_replay_buffer`)."""
        config = getattr(getattr(refill_fn, "__self__", None), "config", None)
        if config is None:
            return cls(None)
        actor, critic = config.actor_rollout_ref.actor, config.get("critic")
        return cls(config, int(actor.ppo_mini_batch_size), int(critic.ppo_mini_batch_size) if critic else 0)

    def fit(self, *, rows: int, prompts: int) -> None:
        """Sets the sizes for a batch of that many rows; those of the configuration again where they suffice."""
        config = self.config
        if config is None:
            return
        n = int(config.actor_rollout_ref.rollout.n)
        workers = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
        for section, size in ((config.actor_rollout_ref.actor, self.actor), (config.get("critic"), self.critic)):
            if section is None or not size:
                continue
            wanted = fit_size(size, rows=rows, prompts=prompts, n=n, workers=workers)
            if int(section.ppo_mini_batch_size) != wanted:
                section.ppo_mini_batch_size = wanted


_OPTIONS: Mapping[str, Any] = {
    "poll_interval_s": 0.5,
    "trained_file": None,
    "record_dir": None,
    "filter_groups_metric": None,
    "train_batch_size": None,
    "max_inflight_gen_batches": 1,
    "sync_refill_failed_groups": False,
    "most_filtered_batches": 50,
}


def is_without_signal(values: Sequence[float | None]) -> bool:
    """True where a group has nothing to compare: fewer than two valid values, or all of them equal.

    A group of one sample is not judged (False): there never was anything to compare.

    Args:
        values: the metric of each sample of the group; None where the sample is masked.
    """
    return len(values) > 1 and len({value for value in values if value is not None}) < 2


class _Sampling(ReplayBuffer):
    """The additions of both buffers to veRL's: figures, the list of trained tasks, and group filtering without masked
    rows.

    An episode of several rows (`run.history: rows`) is counted once in all of it. Its rows are labelled for rlenv's
    estimators (`rlenv_verl.estimators.rows`), and mini-batches are sized so that a batch makes no more updates
    than one of episodes (`rlenv_verl.loop.replay_buffer`).

    Expected: `ReplayBuffer` reads its poll interval and DAPO's arguments from the configuration. Actual (0.9.1): no
    caller sets the interval (2 s, a third of a tiny policy's step), and a custom sampler is handed no filter arguments.
    So they stand in `trainer.v1.sampler.sampler_kwargs`; remove when veRL passes them.

    Options in `sampler_kwargs`:
        poll_interval_s: how often finished rollouts are looked for, in seconds.
        trained_file: a file to which each step appends the tasks that it trains on, one JSON object a group.
        record_dir: the run's folder, where the agent loops keep the episodes: what becomes of each is kept beside it.
        filter_groups_metric: DAPO's filter, `reward` or a key of `reward_extra_info`; None filters nothing.
            `algorithm.filter_groups.enable` has to be set as well: veRL then fetches prompts one by one.
        train_batch_size, max_inflight_gen_batches: as veRL's own buffer takes them, for the filter in sync mode.
        sync_refill_failed_groups: as `trainer.v1.sampler.sync_refill_failed_groups`.
        most_filtered_batches: at this many batches of filtered groups for one step the run ends with an error; a
            service that is down fails every episode, and filtering would ask for new prompts for ever.
    """

    def __init__(
        self,
        *,
        sampler_kwargs: Any = None,
        refill_fn: Callable[[int], None] | None = None,
        watched: Watched | None = None,
        **own: Any,
    ):
        options = _check_options(sampler_kwargs)
        metric = options["filter_groups_metric"]
        refills = metric is not None or options["sync_refill_failed_groups"]
        taken: dict[str, Any] = {
            "poll_interval": float(options["poll_interval_s"]),
            "filter_groups_metric": metric,
            "sync_refill_failed_groups": bool(options["sync_refill_failed_groups"]),
        }
        if not isinstance(self, ReplayBufferAsync):
            if metric is not None and options["train_batch_size"] is None:
                raise UsageError(
                    "sampler_kwargs.filter_groups_metric needs train_batch_size beside it",
                    hint="give trainer.v1.sampler.sampler_kwargs.train_batch_size the value of data.train_batch_size",
                )
            taken |= {
                "train_batch_size": options["train_batch_size"],
                "gen_batch_size": 1 if refills else options["train_batch_size"],
                "max_inflight_gen_batches": int(options["max_inflight_gen_batches"]),
            }
        super().__init__(sampler_kwargs=sampler_kwargs, refill_fn=refill_fn, **taken, **own)
        self._trained_file = None if options["trained_file"] is None else Path(options["trained_file"])
        self._keeper = None if options["record_dir"] is None else Keeper(Path(options["record_dir"]))
        self._has_own_estimator = _estimator_name(refill_fn).startswith("rlenv_")
        self._evicted: dict[str, str] = {}
        self._lost: Counter[str] = Counter()
        self._most_filtered = int(options["most_filtered_batches"])
        self._filtered = 0
        self._updates = Updates.of(refill_fn)
        self._watched = watched_of(refill_fn) if watched is None else watched
        # Asynchronous trainers look before they sample for the first time.
        self._asked_for = int(options["train_batch_size"] or 64)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """As veRL's, with the figures of the batch's episodes among the metrics of a training step.

        Raises:
            InvalidReward: a term with `on_invalid: raise` could not be measured in one of the batch's episodes.
            LostWorker: a process that plays the episodes died, so that the batch would be waited for in vain.
        """
        self._filtered, self._asked_for = 0, max(1, batch_size)
        try:
            batch, metrics = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        except RuntimeError:
            # Every episode of a server that died fails at once. veRL then complains of a batch of nothing, and the
            # filter, which finds no signal in failed groups either, of too many of them.
            self._watched.look(within_s=LAST_S)
            self._watched.check()
            raise
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        found = _extra_fields(keys, partition_id)
        groups: dict[str, list[EpisodeFigures]] = {}
        for key, fields in zip(keys, found, strict=True):
            if "rlenv" in fields and _is_first(key):
                groups.setdefault(_uid_of(key), []).append(EpisodeFigures.of_fields(fields["rlenv"]))
        if stops := {episode.stops for group in groups.values() for episode in group if episode.stops}:
            raise InvalidReward(f"the run ends: {'; '.join(sorted(stops))}")
        self._lost.update(episode.spec for group in groups.values() for episode in group if episode.is_lost)
        if partition_id == "val":
            return batch, metrics
        if self._keeper is not None:
            self._tell_fates(self._keeper, keys, found, step=global_steps)
        # With labels an estimator of rlenv's can say which episode an advantage is of; others take them for prompts.
        if not all(map(_is_first, keys)) or (self._keeper is not None and self._has_own_estimator):
            _label(keys, found, partition_id)
        self._updates.fit(rows=len(keys), prompts=batch_size)
        figures = step_figures([episode for group in groups.values() for episode in group])
        # Also those of validations and of groups that were filtered since the last step.
        figures |= {f"rlenv/{spec}/not_kept": float(count) for spec, count in self._lost.items()}
        self._lost.clear()
        if self._trained_file is not None and groups:
            entries = trained_tasks(global_steps, groups.values())
            with self._trained_file.open("ab") as file:
                file.write(b"".join(orjson.dumps(entry) + b"\n" for entry in entries))
        return batch, {**metrics, **figures}

    def _tell_fates(
        self, keeper: Keeper, keys: Sequence[str], found: Sequence[Mapping[str, Any]], *, step: int
    ) -> None:
        """Keeps what becomes of the episodes of a batch, and asks the estimator for their advantages."""
        ids: dict[tuple[str, str], str] = {}
        for key, fields in zip(keys, found, strict=True):
            if "rlenv" not in fields or not _is_first(key):
                continue
            episode = EpisodeFigures.of_fields(fields["rlenv"])
            zeroed = f"counted as 0: {episode.zeroed}" if episode.zeroed else ""
            # As veRL's own figure: how many updates lie between the oldest weights that it was sampled with and these.
            oldest = fields.get("min_global_steps")
            keeper.append_late(
                episode.id,
                fate="masked" if episode.masked else "trained",
                why=episode.masked or zeroed,
                staleness=None if oldest is None else step - 1 - oldest,
            )
            if episode.id:
                uid, session, _ = key.rsplit("_", 2)
                ids[uid, session] = episode.id
        ADVANTAGES.ask(ids, lambda id, value: keeper.append_late(id, advantage=value))

    def _evict_terminal_groups(
        self,
        global_steps: int,
        partition_id: str,
        eviction_reasons: tuple[set[str], set[str], set[str], Counter[float]],
    ) -> tuple[set[str], int, int, dict[str, Any]]:
        """As veRL's, which says nowhere else why a group is cleared."""
        stale, filtered, failed, _ = eviction_reasons
        whys = (
            (failed, "a sample of the group failed in the trainer"),
            (filtered, f"the group has no signal in {self.filter_groups_metric}"),
            (stale, "sampled too many updates ago"),
        )
        self._evicted = {uid: why for uids, why in whys for uid in uids}
        try:
            told: tuple[set[str], int, int, dict[str, Any]] = super()._evict_terminal_groups(
                global_steps, partition_id, eviction_reasons
            )
            return told
        finally:
            self._evicted = {}

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """As veRL's; keeps why the groups are not trained on."""
        keeper = self._keeper
        if keeper is not None and uids and partition_id != "val":
            keys = [key for key in self.partitions[partition_id] if _uid_of(key) in uids and _is_first(key)]
            for key, fields in zip(keys, _extra_fields(keys, partition_id), strict=True):
                why = self._evicted.get(_uid_of(key), "the step had enough groups")
                keeper.append_late(fields.get("rlenv", {}).get("id", ""), fate="filtered", why=why)
                self._lost.update([fields["rlenv"]["spec"]] if fields.get("rlenv", {}).get("is_lost") else [])
        super()._clear_groups(partition_id, uids)

    def _sync_metadata_from_transfer_queue(self) -> None:
        """As veRL's, which it calls each time that it looks for finished episodes."""
        self._watched.check()
        super()._sync_metadata_from_transfer_queue()  # type: ignore[no-untyped-call]

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        """Finished groups in which nothing can be learned from the metric, masked samples left out.

        veRL's own reads the placeholder reward of masked samples like any other, so that one failed episode makes a
        group of equal rewards look different.
        """
        if partition_id == "val" or self.filter_groups_metric is None:
            return set(), Counter()
        known = self._dapo_classification_cache[partition_id]
        finished = self.finished_keys[partition_id]
        for uid in known.keys() - finished:
            del known[uid]
        fresh = finished - known.keys()
        keys = [key for key in self.partitions[partition_id] if _uid_of(key) in fresh and _is_first(key)]
        values: dict[str, list[float | None]] = {uid: [] for uid in fresh}
        for key, fields in zip(keys, _extra_fields(keys, partition_id), strict=True):
            values[_uid_of(key)].append(self._metric_of(key, fields))
        for uid, found in values.items():
            if not is_without_signal(found):
                known[uid] = None
                continue
            known[uid] = next((value for value in found if value is not None), math.nan)
            self._filtered += 1
        if self._filtered > self._most_filtered * self._asked_for:
            raise RuntimeError(
                f"{self._filtered} groups were filtered for one step of {self._asked_for}: in none do the valid "
                f"samples differ in '{self.filter_groups_metric}'. Look at rlenv's figures of the last step and at "
                "the run's failed episodes, or raise trainer.v1.sampler.sampler_kwargs.most_filtered_batches"
            )
        filtered = {uid: value for uid, value in known.items() if value is not None}
        return set(filtered), Counter(filtered.values())

    def _metric_of(self, key: str, fields: Mapping[str, Any]) -> float | None:
        episode = fields.get("rlenv")
        if episode is not None and episode["masked"]:
            return None
        if self.filter_groups_metric == FILTER_GROUPS_REWARD_METRIC and episode is not None:
            return float(episode["reward"])
        info = fields.get("reward_extra_info", {})
        if self.filter_groups_metric not in info:
            raise UsageError(
                f"sampler_kwargs.filter_groups_metric: sample {key} has no '{self.filter_groups_metric}'",
                hint=f"there are {FILTER_GROUPS_REWARD_METRIC}, {', '.join(info)}",
            )
        value = info[self.filter_groups_metric]
        return None if value is None else float(value)


class RlenvReplayBuffer(_Sampling):
    """The buffer of synchronous training."""


class RlenvReplayBufferAsync(_Sampling, ReplayBufferAsync):
    """The buffer of asynchronous training, with veRL's own staleness rules."""


def _estimator_name(refill_fn: Callable[[int], None] | None) -> str:
    """The name of the advantage estimator of the trainer whose method a replay buffer is handed; "" without one."""
    config = getattr(getattr(refill_fn, "__self__", None), "config", None)
    algorithm = None if config is None else config.get("algorithm")
    return str((algorithm or {}).get("adv_estimator") or "")


def _uid_of(key: str) -> str:
    """The prompt's id in a sample's key, which veRL writes as `{uid}_{session}_{index}`."""
    return key.split("_")[0]


def _is_first(key: str) -> bool:
    """True if a sample is the first row of its episode; every row has the episode's figures, and one is counted."""
    return key.endswith("_0")


def _label(keys: Sequence[str], found: Sequence[Mapping[str, Any]], partition_id: str) -> None:
    """Writes for each row which episode it is of, where estimators are handed the prompt's uid."""
    labels = []
    for key, fields in zip(keys, found, strict=True):
        uid, session, index = key.rsplit("_", 2)
        labels.append(RowLabel(uid, session, int(index), float(fields.get("rlenv_carried", 0.0))).text)
    tq.kv_batch_put(keys=list(keys), partition_id=partition_id, fields=get_tensordict({"uid": labels}))


def _extra_fields(keys: Sequence[str], partition_id: str) -> list[Mapping[str, Any]]:
    if not keys:
        return []
    found = tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=["extra_fields"])
    return [getattr(fields, "data", fields) or {} for fields in found["extra_fields"]]


def _check_options(given: Any) -> dict[str, Any]:
    taken = dict(given or {})
    for name in taken:
        if name not in _OPTIONS:
            message = "it is not an option of rlenv's sampler"
            hint = all_known(str(name), _OPTIONS, "known:")
            raise UsageError(message, key=f"trainer.v1.sampler.sampler_kwargs.{name}", hint=hint)
    return {**_OPTIONS, **taken}


class MeasuredRows(RLHFDataset):
    """veRL's rows, named by `data.custom_cls`, for specs whose `order` reads `measured`; a validation's as they stand.

    `data.rlenv_run` is the run's folder. veRL's sampler counts places, also after a restart, and the rows of a step are
    asked for together, once the step before is trained (`trainer_mode: sync`, no workers of the data loader).
    """

    def __init__(self, *, config: Any, **own: Any) -> None:
        super().__init__(config=config, **own)
        folder, rows = Path(config.rlenv_run), [row["extra_info"] for row in self.dataframe]
        self._curriculum: Curriculum | None = None
        if rows[0]["is_validation"]:
            return
        loops = yaml.safe_load((folder / "agent_loop.yaml").read_text(encoding="utf-8"))
        keys = dict(_order_of(one["spec"], one["spec_set"], rows[0]["split"]) for one in loops)
        asked = [(row["data_source"].partition("/")[0], row["extra_info"]["task"]) for row in self.dataframe]
        batch = int(config.train_batch_size)
        self._curriculum = Curriculum(asked, keys, folder / "trained.jsonl", batch=batch)

    def __getitems__(self, places: list[int]) -> list[Any]:
        return [self[place] for place in (places if self._curriculum is None else self._curriculum.next(places))]


def _order_of(
    source: str, given: Mapping[str, Any], split: str
) -> tuple[str, Callable[[int, Mapping[str, float]], Any]]:
    """The name of a spec, and what its `order` gives for a task and what was measured of it."""
    loaded = load_spec(find(source), set=given or None)
    tasks, order = load_tasks(loaded, split), as_template(loaded.spec.tasks[split].order or "0")
    return loaded.spec.name, lambda task, measured: order.value(
        task=tasks[task], vars=loaded.spec.vars, measured=measured
    )
