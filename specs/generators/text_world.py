"""Houses with a locked room, a key and a thing that belongs elsewhere; and the shortest way to bring it there."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from generators.rows import jsonl

__all__ = ["files"]

ROOMS = ("hall", "kitchen", "attic", "cellar", "study", "garden", "library", "bedroom", "garage", "pantry")
THINGS = ("lamp", "book", "cup", "ball", "clock", "knife", "violin", "map", "coin", "hat")
WAYS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
SIZES = (3, 4, 5)

Exits = Mapping[str, Mapping[str, str]]


def _exits(rng: random.Random, rooms: Sequence[str]) -> dict[str, dict[str, str]]:
    """A tree of rooms on a grid: each is next to one that was placed before it."""
    places = {(0, 0): rooms[0]}
    exits: dict[str, dict[str, str]] = {room: {} for room in rooms}
    back = {"north": "south", "east": "west", "south": "north", "west": "east"}
    for room in rooms[1:]:
        free = [
            (at, way) for at in places for way, step in WAYS.items() if (at[0] + step[0], at[1] + step[1]) not in places
        ]
        at, way = rng.choice(free)
        places[at[0] + WAYS[way][0], at[1] + WAYS[way][1]] = room
        exits[places[at]][way], exits[room][back[way]] = room, places[at]
    return {room: {way: ways[way] for way in WAYS if way in ways} for room, ways in exits.items()}


def _path(exits: Exits, start: str, end: str, came: str = "") -> list[str] | None:
    """The directions from one room to another; there is one way in a tree."""
    if start == end:
        return []
    for way, room in exits[start].items():
        if room != came and (rest := _path(exits, room, end, start)) is not None:
            return [way, *rest]
    return None


def _walk(house: Mapping[str, Any], stops: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The commands that lead from stop to stop, each a room with a command there."""
    room, locked, has_key = house["start"], house["locked"], False
    for at, command in stops:
        for way in _path(house["exits"], room, at) or ():
            room = house["exits"][room][way]
            if room == locked:
                yield f"unlock {way}" if has_key else "no way"
                locked = None
            yield f"go {way}"
        yield command
        has_key = has_key or command == "take key"


def _walkthrough(house: Mapping[str, Any]) -> list[str]:
    """The shortest of the ways in which key and thing are fetched in either order."""
    fetched = [(house["things"][thing], f"take {thing}") for thing in ("key", house["thing"])]
    last = (house["target"], f"drop {house['thing']}")
    ways = [list(_walk(house, [*order, last])) for order in permutations(fetched)]
    return min((way for way in ways if "no way" not in way), key=len)


def _house(rng: random.Random, size: int) -> dict[str, Any] | None:
    """A house in which the locked room is the target or holds the thing; None where none came of it."""
    rooms = rng.sample(ROOMS, size)
    exits = _exits(rng, rooms)
    target, source, keeper = rng.sample(rooms, 3)
    locked, start = rng.choice([target, source]), rng.choice(rooms)
    if start == locked or len(exits[locked]) > 1:  # what lies behind it could not be reached
        return None
    thing, other = rng.sample(THINGS, 2)
    things = {thing: source, "key": keeper, other: rng.choice([room for room in rooms if room != locked])}
    shown = {name: things[name] for name in rng.sample(sorted(things), len(things))}
    return {"exits": exits, "things": shown, "start": start, "locked": locked, "thing": thing, "target": target}


def files() -> dict[str, bytes]:
    """train.jsonl (450 houses) and test.jsonl (90), of three sizes in turn; none stands twice."""
    rng = random.Random(20261124)
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < 540:
        size = SIZES[len(rows) % 3]
        if (house := _house(rng, size)) is not None:
            rows[str(house)] = {"rooms": size, "house": house, "walkthrough": _walkthrough(house)}
    made = list(rows.values())
    return {"train.jsonl": jsonl(made[:450]), "test.jsonl": jsonl(made[450:])}
