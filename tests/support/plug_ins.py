"""A distribution with a plug-in, as an installer leaves it."""

from __future__ import annotations

from pathlib import Path


def plug_in(site: Path, group: str, name: str, source: str) -> None:
    """Puts a distribution into `site`, a folder of `sys.path`, that gives the `KIND` of a module's source."""
    info = site / f"{name}_plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rlenv.{group}]\n{name} = {name}_plug_in:KIND\n")
    (site / f"{name}_plug_in.py").write_text(source)


def plug_in_dialect(site: Path, name: str, *, factory: str) -> None:
    """A plug-in's dialect that is made by the code `factory`."""
    source = (
        "from rlenv.dialects import inline\n"
        "from rlenv.language.dialect import DialectSpec\n"
        "from rlenv.language.kinds import Kind\n"
        f"KIND = Kind(DialectSpec, {factory})\n"
    )
    plug_in(site, "dialects", name, source)
