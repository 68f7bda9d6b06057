"""The presets, algorithms and modes that ship, by name."""

from __future__ import annotations

from importlib import resources

__all__ = ["algorithm_names", "mode_names", "names_in", "preset_names"]


def preset_names() -> list[str]:
    """The presets that ship."""
    return names_in("presets")


def algorithm_names() -> list[str]:
    """The algorithms that ship."""
    return names_in("presets/algorithms")


def mode_names() -> list[str]:
    """The modes of veRL's trainer."""
    return names_in("presets/modes")


def names_in(folder: str) -> list[str]:
    """What ships in a folder of settings."""
    entries = (resources.files("rlenv_verl") / folder).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))
