"""Gymnasium's face: environments over text, and the names under which they are registered."""

from __future__ import annotations

import re

from rlenv.language.shipped import shipped

_VERSION = re.compile(r"^version:\s*(\d+)", re.MULTILINE)
_NAME = re.compile(r"^name:\s*['\"]?([a-z0-9_-]+)", re.MULTILINE)


def register_shipped() -> None:
    """Registers every shipped spec as rlenv/NAME-vVERSION; registering twice does nothing."""
    from gymnasium.envs.registration import register, registry

    for path in shipped().values():
        text = path.read_text(encoding="utf-8")
        name, version = _NAME.search(text), _VERSION.search(text)
        if name is None:
            continue
        identity = f"rlenv/{name[1]}-v{version[1] if version else 0}"
        if identity not in registry:
            register(
                identity,
                entry_point="rlenv.gym.envs:TextEnv",
                vector_entry_point="rlenv.gym.envs:TextVectorEnv",
                kwargs={"spec": str(path)},
            )
