"""The faults of a preset file, each with its place and the nearest fix.

Refuses settings of veRL under which a masked sample would move the policy.

A sample that the failure policy masks has a response mask of zeros. With rlenv's estimators and veRL's own losses the
gradient is then the same as without the sample, to the last bit, for every `loss_agg_mode` and every registered policy
loss but the ones below (tests/trainers/settings/test_masking.py measures all of them).

The three modes that average over sequences divide by the number of samples that the configuration says
(`ppo_mini_batch_size` times `rollout.n`), not by those that are there. So each masked sample, like each missing one,
scales the whole step, policy loss, KL and entropy alike, by valid / all; its direction stays.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlenv.errors import Finding, UsageError, all_known, did_you_mean
from rlenv.language.document import SourceDocument
from rlenv.tokens.encoder import HISTORIES
from rlenv_train.fate import failure_policy
from rlenv_train.samples import stragglers
from rlenv_verl.settings import THREAD_VARIABLES, algorithm_names, mode_names, verl_keys

SECTIONS: Final = ("environment", "run", "verl", "verl_add")
_KEYS: Final = ("extends", "algorithm", "mode", *SECTIONS, "with")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MODES: Final = ("greedy", "sampled")

_SAID: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
OF_THE_RUN: Final[Mapping[str, str]] = _SAID["keys"]
"""Keys that every run sets itself, over any preset, and what to say instead."""

_VARIABLES_OF_THE_RUN: Final[Mapping[str, str]] = _SAID["variables"]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_time(value: Any) -> bool:
    return value is None or (_is_size(value) and value > 0)


def _are_modes(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(mode in _MODES for mode in value)


Check = tuple[str, Callable[[Any], bool]]
RUN_NEEDED: Final[Mapping[str, Check]] = {
    "train_split": ("the name of a split", _is_text),
    "validation_split": ("the name of a split", _is_text),
    "validation_tasks": ("a number of tasks, such as 200", _is_count),
    "validation_modes": (f"a list of {' and '.join(_MODES)}", _are_modes),
    "turn_tokens": (
        "a number of tokens, such as 1024, or null for as many as the response has room for",
        lambda value: value is None or _is_count(value),
    ),
    "max_prompt_length": (
        "a number of tokens, or 'measured' for the longest prompt's",
        lambda value: value == "measured" or _is_count(value),
    ),
    "time_limit_s": ("a number of seconds, or null for none", _is_time),
    "template_kwargs": ("a mapping, such as {enable_thinking: false}", lambda value: isinstance(value, Mapping)),
}
"""Keys of a preset's `run:` that a run cannot do without: what is expected, and whether a value is that."""
RUN_OPTIONAL: Final[Mapping[str, Check]] = {
    "failures": ("a mapping of reason to choice, such as {turns: mask}", lambda value: True),
    "stragglers": ("share and grace_s, such as {share: 0.75, grace_s: 60}", lambda value: True),
    "watch": ("true or false", lambda value: isinstance(value, bool) or value is None),
    "reward_model": ("the name of an endpoint of the specs", lambda value: _is_text(value) or value is None),
    "remote": ("the address of `rlenv serve` with these specs", lambda value: _is_text(value) or value is None),
    "history": (f"one of {', '.join(HISTORIES)}", lambda value: value in HISTORIES),
    "keep_gb": ("a number of gigabytes, such as 5", lambda value: value is None or _is_size(value)),
    "threads": ("a number of threads for each process, such as 2", lambda value: _is_count(value) or value is None),
}
"""Keys that it may leave out."""
SFT_KEYS: Final[Mapping[str, Check]] = {
    "epochs": ("a number of passes over the data, such as 2", _is_count),
    "time_limit_s": RUN_NEEDED["time_limit_s"],
    "threads": RUN_OPTIONAL["threads"],
}
"""Keys of `run:` in a preset of supervised training."""
RUN_KEYS: Final[Mapping[str, Check]] = {**RUN_NEEDED, **RUN_OPTIONAL}


def preset_faults(document: SourceDocument) -> Iterator[Finding]:
    """All faults of one file; whether veRL has the keys is looked at where veRL is installed.

    What the file extends is not looked at, so that each fault stands in the file that has it.
    """
    yield from _odd_keys(document, (), _KEYS, "a preset")
    for key, known in (("algorithm", algorithm_names()), ("mode", mode_names())):
        if document.has((key,)) and document.data[key] not in known:
            given = str(document.data[key])
            yield document.fault((key,), f"no {key} '{given}'", all_known(given, known))
    yield from _check_sections(document, ())
    extra = document.data.get("with")
    if extra is None:
        return
    if not isinstance(extra, Mapping):
        yield document.fault(("with",), "expected a mapping of algorithms and modes", "such as with: {ppo: {verl: …}}")
        return
    for name, part in extra.items():
        place = ("with", name)
        if name not in (known := [*algorithm_names(), *mode_names()]):
            yield document.fault(place, f"no algorithm or mode '{name}'", all_known(name, known), at="key")
        elif isinstance(part, Mapping):
            yield from _odd_keys(document, place, SECTIONS, f"with.{name}")
            yield from _check_sections(document, place)
        else:
            yield document.fault(place, f"expected a mapping with {', '.join(SECTIONS)}")


def _odd_keys(document: SourceDocument, at: tuple[str, ...], known: tuple[str, ...], what: str) -> Iterator[Finding]:
    held = document.get(at) if at else document.data
    for key in held:
        if key in known:
            continue
        hint = did_you_mean(key, known, otherwise=f"it has {', '.join(known)}")
        if key in RUN_KEYS:
            hint = f"it belongs under run: write run: {{{key}: …}}"
        elif key in (verl_keys() or {}):
            hint = f"it is a key of veRL's: write verl: {{{key}: …}}"
        yield document.fault((*at, key), f"{what} has no key '{key}'", hint, at="key")


def _check_sections(document: SourceDocument, at: tuple[str, ...]) -> Iterator[Finding]:
    held = document.get(at) if at else document.data
    for section in SECTIONS:
        if section in held and not isinstance(held[section], Mapping):
            yield document.fault((*at, section), "expected a mapping of keys to values")
    yield from _check_env(document, (*at, "environment"), _mapping_at(held, "environment"), _mapping_at(held, "run"))
    yield from _check_run(document, (*at, "run"), _mapping_at(held, "run"))
    known = verl_keys()
    if known is not None:
        yield from _check_verl(document, (*at, "verl"), _mapping_at(held, "verl"), known, "")
        yield from _check_verl_add(document, (*at, "verl_add"), _mapping_at(held, "verl_add"), known, "")


def _mapping_at(held: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = held.get(key)
    return found if isinstance(found, Mapping) else {}


def _check_env(
    document: SourceDocument, at: tuple[str, ...], given: Mapping[str, Any], run: Mapping[str, Any]
) -> Iterator[Finding]:
    for name, value in given.items():
        place = (*at, name)
        if not _NAME.fullmatch(name):
            yield document.fault(place, f"'{name}' is no name of an environment variable", at="key")
        elif name in _VARIABLES_OF_THE_RUN:
            message = f"every run sets '{name}' itself"
            yield document.fault(place, message, _VARIABLES_OF_THE_RUN[name], at="key")
        elif not isinstance(value, str) and (isinstance(value, bool) or not isinstance(value, int)):
            yield document.fault(place, "the value of a variable is a text", 'put quotes around it, such as "1"')
        elif name in THREAD_VARIABLES and run.get("threads") is not None:
            message = f"run.threads of the same file sets '{name}' too"
            yield document.fault(place, message, f"leave out one of the two; run.threads is {run['threads']}", at="key")


def _check_run(document: SourceDocument, at: tuple[str, ...], given: Mapping[str, Any]) -> Iterator[Finding]:
    for key, value in given.items():
        place = (*at, key)
        if key not in RUN_KEYS:
            message = f"no key of the preset's own part '{key}'"
            yield document.fault(place, message, all_known(key, sorted(RUN_KEYS)), at="key")
            continue
        expected, fits = RUN_KEYS[key]
        if not fits(value):
            yield document.fault(place, f"expected {expected}, found {value!r:.60}")
        elif key in ("failures", "stragglers"):
            try:
                failure_policy(value) if key == "failures" else stragglers(value)
            except UsageError as error:
                yield document.fault((*at, *error.key.split(".")), error.message, error.hint)
            except (TypeError, ValueError) as error:
                yield document.fault(place, str(error))


def _check_verl(
    document: SourceDocument, at: tuple[str, ...], given: Mapping[str, Any], known: Mapping[str, Any], above: str
) -> Iterator[Finding]:
    """Keys that veRL's configuration lists."""
    for key, value in given.items():
        place, path = (*at, key), f"{above}{key}"
        if key not in known:
            yield document.fault(place, f"veRL's configuration has no key '{path}'", _hint_for(key, known), at="key")
        elif path in OF_THE_RUN:
            yield _run_key_fault(document, place, path)
        elif isinstance(value, Mapping) and not value:
            yield document.fault(place, f"an empty mapping changes nothing of '{path}'", "remove it")
        elif isinstance(value, Mapping) and isinstance(known[key], Mapping):
            yield from _check_verl(document, place, value, known[key], f"{path}.")
        elif isinstance(value, Mapping) and known[key] is not None:
            yield document.fault(place, f"'{path}' is a value in veRL's configuration and has no keys")
        elif isinstance(known[key], Mapping):
            some = ", ".join(list(known[key])[:6])
            yield document.fault(place, f"'{path}' is a mapping in veRL's configuration", f"it has the keys {some}")
        elif expected := _expected_value(known[key], value):
            yield document.fault(place, f"'{path}': expected {expected}, found {value!r:.60}")


def _hint_for(key: str, known: Mapping[str, Any]) -> str:
    if "." in key:
        first, rest = key.split(".", 1)
        return f"keys are nested in a preset: write {first}: {{{rest}: …}}"
    return did_you_mean(key, known, otherwise="a key that veRL reads without listing it stands under verl_add")


def _expected_value(known: Any, value: Any) -> str:
    """The expected value instead of `value`, "" where it may stand there; `known` is the value in veRL's files."""
    if value is None or (isinstance(value, str) and "${" in value):
        return ""
    if isinstance(known, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(known, int | float):
        return "" if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    return ""


def _check_verl_add(
    document: SourceDocument, at: tuple[str, ...], given: Mapping[str, Any], known: Any, above: str
) -> Iterator[Finding]:
    """Keys that veRL reads without listing them."""
    for key, value in given.items():
        place, path = (*at, key), f"{above}{key}"
        listed = isinstance(known, Mapping) and key in known
        if path in OF_THE_RUN:
            yield _run_key_fault(document, place, path)
        elif "." in key and not above.endswith(("env_vars.", "override_config.")):
            yield document.fault(place, f"there is no key '{path}'", _hint_for(key, {}), at="key")
        elif isinstance(value, Mapping) and value:
            yield from _check_verl_add(document, place, value, known[key] if listed else None, f"{path}.")
        elif listed:
            message = f"veRL's configuration has the key '{path}'; verl_add is for keys that it does not list"
            yield document.fault(place, message, "write it under verl", at="key")


def _run_key_fault(document: SourceDocument, at: tuple[str, ...], path: str) -> Finding:
    message = f"every run sets '{path}' itself, so that a preset's is not read"
    return document.fault(at, message, OF_THE_RUN[path], at="key")


# veRL's estimators that count the placeholder reward of a masked sample in what its siblings are compared with, and
# what to take instead. Its `gae`, `reinforce_plus_plus` and `opo` (a mean weighted by length, which is 0 there) count
# none: tests/trainers/estimators/test_baselines.py.
_COUNTING = {
    **dict.fromkeys(("grpo", "grpo_vectorized", "grpo_passk", "gdpo", "gpg"), "rlenv_grpo"),
    **dict.fromkeys(("rloo", "rloo_vectorized"), "rlenv_rloo"),
    "reinforce_plus_plus_baseline": "rlenv_reinforce_plus_plus_baseline",
}


# What counts an episode of several rows once: rlenv's estimators, and those of veRL that look at each token alone.
_KNOWING_ROWS = ("gae", "reinforce_plus_plus")


def check_rows(config: Mapping[str, Any]) -> None:
    """Looks at what in veRL's resolved configuration takes a row for an episode, for a run with `history: rows`.

    Raises:
        UsageError: a setting under which an episode would count more the more rows it has, or be discounted only
            within its rows; the message names one that is right.
    """
    actor = config["actor_rollout_ref"]["actor"]
    algorithm = config["algorithm"]
    estimator = str(algorithm.get("adv_estimator"))
    if estimator not in _KNOWING_ROWS and not estimator.startswith("rlenv_"):
        message = f"algorithm.adv_estimator={estimator} counts each as an episode of its own"
        raise _rows_error(message, f"use {_COUNTING.get(estimator, 'rlenv_grpo')}")
    if estimator in _KNOWING_ROWS and float(algorithm.get("gamma", 1.0)) != 1.0:
        instead = ", or adv_estimator=rlenv_reinforce_plus_plus" if estimator == "reinforce_plus_plus" else ""
        message = f"algorithm.gamma={algorithm['gamma']} would discount within a row alone with veRL's {estimator}"
        raise _rows_error(message, f"set algorithm.gamma=1.0{instead}")
    if estimator in _KNOWING_ROWS and algorithm.get("use_kl_in_reward"):
        late = "the penalty of algorithm.use_kl_in_reward on a later row would be in no return of an earlier one"
        raise _rows_error(f"with veRL's {estimator} {late}", "use actor_rollout_ref.actor.use_kl_loss=true instead")
    sections = [("actor_rollout_ref.actor", actor)]
    if estimator == "gae":
        sections.append(("critic", config["critic"]))
    for name, section in sections:
        mode = str(section.get("loss_agg_mode", "token-mean"))
        if mode.startswith("seq-"):
            more = "averages over rows, so an episode would count more the more it has"
            raise _rows_error(f"{name}.loss_agg_mode={mode} {more}", "use token-mean or token-sum")
        if not section.get("use_dynamic_bsz"):
            differs = (
                "their number differs from batch to batch, which micro-batches of a fixed number of rows do not divide"
            )
            raise _rows_error(differs, f"set {name}.use_dynamic_bsz=true")
    loss = actor.get("policy_loss", {}).get("loss_mode", "vanilla")
    if loss in ("gspo", "sapo", "geo_mean"):
        name = f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}"
        raise _rows_error(f"{name} averages over rows whatever loss_agg_mode says", "use vanilla")
    if (config.get("distillation") or {}).get("enabled"):
        raise _rows_error(
            "veRL asks a teacher about the last of them alone", "set distillation.enabled=false, or take keep"
        )
    sampler = config["trainer"].get("v1", {}).get("sampler", {}).get("custom_sampler") or {}
    if not _labels_rows(str(sampler.get("path") or ""), str(sampler.get("name") or "")):
        own = "leave trainer.v1.sampler.custom_sampler as the presets have it, or name a class that inherits from it"
        raise _rows_error("which rows are one is told by rlenv's sampler", own)


def _rows_error(message: str, hint: str) -> UsageError:
    return UsageError(f"run.history=rows makes several training rows of an episode, and {message}", hint=hint)


def _labels_rows(path: str, name: str) -> bool:
    """True if a custom sampler is rlenv's, or inherits from it."""
    if path.endswith("rlenv_verl.loop.replay_buffer"):
        return True
    if not path or not name:
        return False
    from verl.utils.import_utils import load_extern_type

    from rlenv_verl.loop.replay_buffer import RlenvReplayBuffer, RlenvReplayBufferAsync

    found = load_extern_type(path, name)
    return isinstance(found, type) and issubclass(found, (RlenvReplayBuffer, RlenvReplayBufferAsync))


def check_order(config: Mapping[str, Any]) -> None:
    """Looks at what in veRL's resolved configuration asks tasks ahead of time, for an `order` that reads `measured`.

    Raises:
        UsageError: a step's tasks would be chosen before the step before it is trained, or one by one.
    """
    data, v1 = config["data"], config["trainer"]["v1"]
    filters = bool((config["algorithm"].get("filter_groups") or {}).get("enable"))
    singly = filters or v1["sampler"].get("sync_refill_failed_groups") or data.get("gen_batch_size") is not None
    if v1["trainer_mode"] != "sync" or singly or data["dataloader_num_workers"] != 0:
        raise UsageError(
            "an 'order' that reads 'measured' chooses the tasks of each step once the one before it is trained",
            key="trainer.v1.trainer_mode",
            hint="train with --mode sync and no filter of groups, or order by what `rlenv runs tasks` has measured",
        )


def check_masking(config: Mapping[str, Any]) -> None:
    """Looks at what in veRL's resolved configuration counts masked samples.

    Raises:
        UsageError: a setting under which a masked sample changes the gradient; the message names one that does not.
    """
    actor = config["actor_rollout_ref"]["actor"]
    algorithm = config["algorithm"]
    estimator = algorithm.get("adv_estimator")
    if estimator in _COUNTING:
        raise UsageError(
            f"veRL's {estimator} counts the placeholder reward of failed episodes in the baseline of their siblings",
            key="algorithm.adv_estimator",
            hint=f"use {_COUNTING[estimator]}",
        )
    loss = actor.get("policy_loss", {}).get("loss_mode", "vanilla")
    if loss == "geo_mean":
        raise UsageError(
            "geo_mean averages over all samples of a micro-batch, "
            "masked ones included, so failed episodes would shrink the others' gradient",
            key="actor_rollout_ref.actor.policy_loss.loss_mode",
            hint="use gspo or vanilla",
        )
    if actor.get("loss_agg_mode") == "seq-mean-token-sum-norm" and actor.get("loss_scale_factor") is None:
        raise UsageError(
            "seq-mean-token-sum-norm divides by the longest response of the micro-batch, masked ones included",
            key="actor_rollout_ref.actor.loss_agg_mode",
            hint="set actor_rollout_ref.actor.loss_scale_factor to a constant, such as "
            f"data.max_response_length ({config['data']['max_response_length']})",
        )
    if algorithm.get("use_kl_in_reward") and algorithm.get("kl_ctrl", {}).get("type") == "adaptive":
        raise UsageError(
            "adaptive follows a mean KL in which masked samples count as 0, so failed "
            "episodes would weaken the penalty",
            key="algorithm.kl_ctrl.type",
            hint="use fixed",
        )
