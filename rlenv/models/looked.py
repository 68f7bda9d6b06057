"""One thing of a model that was looked at."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Looked"]


@dataclass(frozen=True, slots=True)
class Looked:
    """One thing that was looked at. `lacks` says what is wrong, "" where all is well; `way_out` what to do.

    `stops`: a run cannot start without it, or would learn nothing; else something works around it.
    """

    what: str
    lacks: str = ""
    way_out: str = ""
    stops: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.said}"

    @property
    def said(self) -> str:
        """What is lacking with the way out, "" where nothing is."""
        return f"{self.lacks}; {self.way_out}" if self.way_out else self.lacks
