"""A spec as the folder that another host wants.

`openenv`: what `openenv validate FOLDER --level static` accepts (openenv 0.10.0, `cli/_validation.py` and
`validation/manifest.py`), with the oracle's own actions as the probe that its runtime level plays. `nemo-gym`: the rows
and the configuration of NeMo Gym 0.7.0's gymnasium agent. `verifiers`: a package of a taskset.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from rlenv import __version__
from rlenv._base.paths import read_file
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, play
from rlenv.errors import RlenvError, UsageError, told_as
from rlenv.hosts import wire
from rlenv.language.shipped import parts_of, shipped
from rlenv.tasks.rows import seed_of

_MOST_BYTES: Final = 64_000_000
_MOST_FILES: Final = 10_000
_PORT: Final = 8_000
_MARGIN, _MOST_OFF, _MOST_VARIED = 0.1, 0.1, 0.2
"""OpenEnv's validator (severity policy v1): the least gap between an idle policy and the oracle that may be declared,
and the most that the oracle may miss of the best reward and that a judge's reward may vary."""
Files = dict[str, str | bytes]


def openenv_files(environment: Environment) -> Files:
    """The folder of an OpenEnv environment: a server over the spec, its manifest and image.

    Raises:
        UsageError: the spec cannot be served, or its folder is too large to ship.
    """
    wire.card_of(environment)
    name = environment.spec.name
    spec, files = _spec_files(environment)
    actions, earned = asyncio.run(_oracle_actions(environment))
    plan = {"plan_schema_version": "1", "reset": {"episode_id": "oracle", "seed": 0}, "actions": actions}
    return {
        "openenv.yaml": yaml.safe_dump(_make_manifest(environment, earned), sort_keys=False, allow_unicode=True),
        "pyproject.toml": _fill_file(
            "pyproject",
            id=f"openenv-{name}",
            module="server",
            scripts=_SCRIPTS,
            host="openenv>=0.10.0",
            rlenv=f">={__version__}",
            version=environment.spec.version,
        ),
        "uv.lock": _fill_file("lock"),
        "server/__init__.py": "",
        "server/app.py": _fill_file("app", name=name, spec=spec, port=_PORT),
        "server/Dockerfile": _fill_file("docker", rlenv=__version__, port=_PORT),
        "validation/runtime.json": json.dumps(plan, indent=2) + "\n",
        "README.md": _fill_file("openenv", name=name, port=_PORT),
        **{f"spec/{path}": content for path, content in files.items()},
    }


def nemo_gym(environment: Environment) -> Files:
    """Rows and configuration for NeMo Gym's gymnasium agent over `rlenv serve`: a JSON line a task, with its prompt.

    Raises:
        UsageError: the spec cannot be served, or a prompt has images, which that agent is shown none of.
    """
    wire.card_of(environment)
    name = environment.spec.name
    rows = {f"{split}.jsonl": asyncio.run(_rows(environment, split)) for split in environment.spec.tasks}
    server = {"resources_servers": {"rlenv": {"entrypoint": "app.py", "domain": "agent", "verified": False}}}
    agent = {
        "entrypoint": "app.py",
        "max_steps": environment.limits.turns,
        "resources_server": {"type": "resources_servers", "name": f"rlenv_{name}"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "datasets": [{"name": path.removesuffix(".jsonl"), "type": "train", "jsonl_fpath": path} for path in rows],
    }
    agents = {"responses_api_agents": {"gymnasium_agent": agent}}
    settings = {f"rlenv_{name}": server, f"rlenv_{name}_gymnasium_agent": agents}
    return {"config.yaml": yaml.safe_dump(settings, sort_keys=False), **rows}


def verifiers_files(environment: Environment) -> Files:
    """A package that verifiers 0.4 loads by its name: the spec, with the taskset and harness of `rlenv_verifiers`.

    Raises:
        UsageError: the spec's folder is too large to ship.
    """
    module = "rlenv_" + re.sub(r"\W", "_", environment.spec.name).lower()
    spec, files = _spec_files(environment)
    about = {"module": module, "id": module.replace("_", "-"), "version": environment.spec.version}
    about["rlenv"] = f"=={__version__}"
    return {
        "pyproject.toml": _fill_file("pyproject", **about, scripts="", host="verifiers>=0.4,<0.5"),
        "README.md": _fill_file("about-verifiers", **about),
        f"{module}/__init__.py": _fill_file("verifiers", **about, spec=spec),
        **{f"{module}/spec/{path}": content for path, content in files.items()},
    }


FORMS: Final[Mapping[str, Callable[[Environment], Files]]] = {
    "openenv": openenv_files, "nemo-gym": nemo_gym, "verifiers": verifiers_files
}  # fmt: skip
"""The function that makes each host's folder."""


def _make_manifest(environment: Environment, earned: float | None) -> dict[str, Any]:
    spec = environment.spec
    weights = environment.parts.scorer.weights.values()
    low, high = sum(min(0.0, one) for one in weights), sum(max(0.0, one) for one in weights)
    high = high if high > low else low + 1.0
    tolerance = max(0.0, high - (earned if earned is not None else low))
    judges = [term for term in spec.rewards.values() if term.kind == "judge"]
    reward = {"range": [low, high], "oracle_tolerance": round(min(tolerance, _MOST_OFF), 6), "floor_margin": _MARGIN}
    capabilities: dict[str, Any] = {
        "verifier": {"kind": "reward_channel"},
        "task_api": True,
        "declared_tools": sorted(environment.parts.tools),
        "declared_task_count": {split: len(environment.tasks(split)) for split in spec.tasks},
    }
    more: dict[str, Any] = {}
    if judges:
        model = next((one.model for one in spec.endpoints.values()), "unknown")
        capabilities["llm_judged"] = True
        more["judge"] = {"model": model, "version": str(spec.version)}
        reward["variance_tolerance"] = min(high - low, _MOST_VARIED)
    seconds = min(3600.0, environment.limits.episode_s + environment.limits.reward_s)
    return {
        "spec_version": 1, "name": spec.name, "version": f"0.{spec.version}.0",
        "type": "space", "runtime": "fastapi", "app": "server.app:app", "port": _PORT,
        "validation": {
            "reward": reward,
            "resources": {"cpu": 1.0, "memory_mb": 1024, "disk_mb": 2048, "episode_timeout_s": seconds},
            "capabilities": capabilities,
            "types": {"tags": ["tool-use"]},
            "execution": {
                "kind": "openenv_ws", "probe_path": "validation/runtime.json", "dockerfile": "server/Dockerfile",
                "context": ".", "agent_boundary": "api",
            },
            **more,
        },
    }  # fmt: skip


async def _oracle_actions(environment: Environment) -> tuple[list[dict[str, str]], float | None]:
    """The oracle's actions on the first task and what they earn; an empty message where there is no oracle."""
    split = next(iter(environment.spec.tasks))
    if environment.spec.oracle is None:
        return [{"message": ""}], None
    with told_as(UsageError, f"the oracle of {environment.spec.name} cannot be played:", RlenvError):
        async with environment:
            played = await play(environment, environment.oracle(), Job(split, 0, 0))
    actions = [{"message": turn.action} for turn in played.turns[:100]] or [{"message": ""}]
    return actions, played.reward.total


async def _rows(environment: Environment, split: str) -> str:
    lines = []
    for task in range(len(environment.tasks(split))):
        seed = seed_of(0, split, task)
        async with environment.start(task=task, split=split, seed=seed) as episode:
            if any(one.images for one in episode.messages):
                raise UsageError(f"task {task} of '{split}' shows images, and NeMo Gym's agent is shown none")
            said = [{"role": one.role, "content": one.content} for one in episode.messages]
            shown = [{"type": "function", **schema["function"], "strict": False} for schema in episode.tool_schemas]
        asked = {"input": said, "tools": shown}
        row = {"split": split, "task": task, "seed": seed}
        lines.append(json.dumps({"responses_create_params": asked, "rlenv": row}, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def _spec_files(environment: Environment) -> tuple[str, Files]:
    """The spec's path in its folder, and the files of it: what ships with rlenv by what it names, else all there is."""
    path = environment.loaded.path.resolve()
    known = next((name for name, place in shipped().items() if place.resolve() == path), None)
    if known is not None:
        found = [part for place in parts_of(known) for part in _files_within(place)]
    else:
        found = list(_files_within(path.parent))
    files: Files = {}
    size = 0
    for place in found:
        size += place.stat().st_size
        if size > _MOST_BYTES or len(files) >= _MOST_FILES:
            hint = "move the spec and what it names into a folder of their own"
            raise UsageError(
                f"{path.parent} holds more than {_MOST_BYTES / 1e6:g} MB or {_MOST_FILES:,} files", hint=hint
            )
        files[place.relative_to(path.parent).as_posix()] = read_file(place)
    return f"spec/{path.name}", files


def _files_within(place: Path) -> Iterator[Path]:
    """A file, or those below a folder; hidden ones and caches left out."""
    if place.is_file():
        yield place
        return
    for path in sorted(place.rglob("*")):
        inner = path.relative_to(place).parts
        if path.is_file() and not path.is_symlink() and not any(one.startswith((".", "__pycache__")) for one in inner):
            yield path


def _fill_file(which: str, /, **values: Any) -> str:
    """A file of a folder, from its text with holes."""
    return (Path(__file__).parent / "folders" / f"{which}.txt").read_text(encoding="utf-8").format(**values)


_SCRIPTS: Final = '[project.scripts]\nserver = "server.app:main"\n\n'
