"""Where the rows of a split may come from beside files and functions: datasets of the hub, and generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from rlenv.language.dialect import Int, Spec, Text


class DatasetSpec(Spec):
    """A dataset in the layout of the Hugging Face hub: on the hub, in its cache, or in a folder."""

    path: Text
    """`organisation/name` on the hub, or a folder relative to the spec."""
    name: Text | None = None
    """One of the dataset's configurations (subsets); needed where it has several and none is called `default`."""
    split: Text | None = None
    """One of its splits; the one that is called like this split of the spec otherwise."""
    revision: Text | None = None
    """A branch, tag or commit on the hub; a commit makes sure that the rows stay the same."""
    columns: Mapping[str, Text] = {}
    """Columns by the name that templates read, such as `{question: problem}`; all under their own names otherwise."""


class ReasoningGymSpec(Spec):
    """Tasks of the library reasoning-gym (extra `reasoning-gym`): equal ones for an equal seed, on every machine."""

    name: Text | tuple[Text, ...]
    """A generator such as `chain_sum`, or several, whose tasks then take turns."""
    limit: Annotated[Int, Field(ge=1, le=1_000_000)] = 500
    """The number of tasks, of all generators together."""
    seed: Int = 0
    """The seed of every generator; another split has another one."""
    config: Mapping[str, Any] = {}
    """The generator's own settings, such as `{min_terms: 3}`; with several by their names."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every generator."""
        return (self.name,) if isinstance(self.name, str) else self.name
