"""The world of text-world.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["World"]

PATIENCE = 5


class World:
    """A house to walk through by commands, with the methods of `gymnasium.Env`.

    The game is lost with the fifth command that cannot be done. A house has `exits` (rooms by room and direction),
    `things` (the room of each), `start`, `locked` (a room that is entered once its door is unlocked), and `thing` and
    `target`: what has to be dropped where.
    """

    def __init__(self, house: Mapping[str, Any]) -> None:
        self.house = house

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """The beginning; nothing is drawn by the seed."""
        self.room, self.locked, self.refused = self.house["start"], self.house["locked"], 0
        self.things = dict(self.house["things"])  # by name: a room, or "you"
        return self.look(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Does what a command says. Pays 1 and ends when the thing is where it belongs."""
        said = "You cannot do that."
        if self._does(action):
            said = self.look()
        else:
            self.refused += 1
        is_won = self.things[self.house["thing"]] == self.house["target"]
        return said, float(is_won), is_won or self.refused == PATIENCE, False, {}

    def _does(self, action: str) -> bool:
        exits = self.house["exits"][self.room]
        match action.lower().split():
            case ["look"]:
                pass
            case ["go", way] if exits.get(way) not in (None, self.locked):
                self.room = exits[way]
            case ["unlock", way] if exits.get(way) == self.locked and self.things["key"] == "you":
                self.locked = None
            case ["take", thing] if self.things.get(thing) == self.room:
                self.things[thing] = "you"
            case ["drop", thing] if self.things.get(thing) == "you":
                self.things[thing] = self.room
            case _:
                return False
        return True

    def look(self) -> str:
        """The room, what lies in it, its exits, and what is carried."""
        exits = self.house["exits"][self.room].items()
        ways = [f"{way} (locked)" if room == self.locked else way for way, room in exits]
        here, held = ([thing for thing, room in self.things.items() if room == at] for at in (self.room, "you"))
        return (
            f"You are in the {self.room}. You see: {', '.join(here) or 'nothing'}. "
            f"Exits: {', '.join(ways)}. You carry: {', '.join(held) or 'nothing'}."
        )

    def close(self) -> None:
        """There is nothing to close."""
