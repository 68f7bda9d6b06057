"""Words that the generated databases are filled with, and dates."""

from __future__ import annotations

import datetime
import random

__all__ = ["CITIES", "day", "full_names"]

CITIES = ("Ashford", "Brindle", "Corvale", "Dunmere", "Eastwick", "Fernhill")

# fmt: off
_GIVEN = (
    "Ada", "Boris", "Clara", "Dario", "Elin", "Felix", "Gita", "Hugo", "Irma", "Jamal", "Kira", "Luca", "Mina",
    "Nils", "Olga", "Pavel", "Runa", "Stefan", "Talia", "Viktor",
)
_FAMILY = (
    "Abara", "Bergen", "Castell", "Dorn", "Elmore", "Fontaine", "Grieg", "Halloran", "Ibsen", "Jarvis", "Kessler",
    "Lindqvist", "Moreau", "Novak", "Okafor", "Petrov", "Quirke", "Rossi", "Sandoval", "Thorne",
)
# fmt: on


def full_names(rng: random.Random, count: int) -> list[str]:
    """`count` different names of people."""
    return rng.sample([f"{given} {family}" for given in _GIVEN for family in _FAMILY], count)


def day(rng: random.Random, first: str, last: str) -> str:
    """A date from `first` to `last`, all of them ISO 8601."""
    start, end = datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)
    return (start + datetime.timedelta(days=rng.randint(0, (end - start).days))).isoformat()
