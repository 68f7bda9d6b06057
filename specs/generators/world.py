"""A made-up world: towns, rivers, people, companies, festivals and buildings that refer to each other."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Building", "Company", "Festival", "Person", "River", "Town", "World", "make_world"]

# fmt: off
_TOWN_HEADS = ("Vel", "Or", "Tam", "Quil", "Bre", "Hes", "Mar", "Lun", "Dro", "Fen")
_TOWN_TAILS = ("mora", "dunne", "vick", "stade", "hollow", "brenn", "tassel", "gard")
_RIVER_HEADS = ("Asp", "Ild", "Nev", "Sor", "Thy", "Wex")
_RIVER_TAILS = ("ara", "enne", "ois", "uth")
_PEAKS = ("Mount", "Peak", "Ridge")
_GIVEN = (
    "Anselm", "Berit", "Cosima", "Davor", "Edda", "Florian", "Gunnhild", "Halvard", "Isaura", "Jorun", "Kasimir",
    "Leonie", "Matthis", "Nerys", "Oswin", "Petra", "Ragna", "Sixten", "Thekla", "Ulric", "Vesna", "Wendel",
)
_FAMILY_HEADS = ("Ard", "Bol", "Cren", "Dall", "Eck", "Fjor", "Gad", "Hurl", "Jass", "Kell", "Lorr", "Munt", "Pret")
_FAMILY_TAILS = ("avik", "bury", "cott", "eroth", "imar", "onde", "quist", "shaw", "uvel", "wane")
_TRADES = ("glassblower", "cartographer", "botanist", "violinist", "engineer", "poet", "weaver", "astronomer")
_GOODS = (
    "sailcloth", "pocket watches", "copper kettles", "fountain pens", "wool blankets", "bicycle bells",
    "telescopes", "church organs", "garden shears", "paper lanterns", "rowing boats", "chess sets",
    "music boxes", "leather boots", "ink", "kites", "stove tiles", "fishing reels",
)
_FIRMS = ("Works", "Brothers", "and Daughters", "Manufactory", "Company")
_FEASTS = ("Lantern", "Salt", "Barley", "Mask", "Kite", "Ember", "Bell", "Apple", "Mirror", "Raft")
_CUSTOMS = (
    "bread is baked in the shape of owls", "boats of bark are set on fire", "children race on stilts",
    "the oldest resident rings every bell", "masks of moss are worn until dawn", "a straw giant is weighed",
    "musicians play on the rooftops", "honey is poured over the steps of the town hall",
)
_HOUSES = ("Library", "Observatory", "Theatre", "Market Hall", "Museum", "Lighthouse", "Baths")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)
# fmt: on


@dataclass(frozen=True, slots=True)
class River:
    name: str
    source: str
    length_km: int


@dataclass(frozen=True, slots=True)
class Town:
    name: str
    river: River
    founded: int
    population: int


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    trade: str
    born: int
    home: Town


@dataclass(frozen=True, slots=True)
class Company:
    name: str
    goods: str
    town: Town
    founder: Person
    founded: int


@dataclass(frozen=True, slots=True)
class Festival:
    name: str
    town: Town
    custom: str
    month: str


@dataclass(frozen=True, slots=True)
class Building:
    name: str
    town: Town
    architect: Person
    opened: int


@dataclass(frozen=True, slots=True)
class World:
    rivers: tuple[River, ...]
    towns: tuple[Town, ...]
    people: tuple[Person, ...]
    companies: tuple[Company, ...]
    festivals: tuple[Festival, ...]
    buildings: tuple[Building, ...]


def make_world(rng: random.Random) -> World:
    """24 rivers, 60 towns, 126 people, 70 companies, 55 festivals and 70 buildings, with names that are unique."""
    river_names = [head + tail for head in _RIVER_HEADS for tail in _RIVER_TAILS]
    peaks = rng.sample([f"{peak} {head}{tail}" for peak in _PEAKS for head in ("Gor", "Zan", "Kor", "Yll")
                        for tail in ("dak", "eth", "ulf")], len(river_names))  # fmt: skip
    lengths = rng.sample(range(41, 640), len(river_names))
    rivers = [River(*row) for row in zip(river_names, peaks, lengths, strict=True)]
    names = rng.sample([head + tail for head in _TOWN_HEADS for tail in _TOWN_TAILS], 60)
    founded = rng.sample(range(1040, 1790), 60)
    sizes = rng.sample(range(2100, 98000), 60)
    towns = [Town(name, rivers[index % 24], founded[index], sizes[index]) for index, name in enumerate(names)]
    families = rng.sample([head + tail for head in _FAMILY_HEADS for tail in _FAMILY_TAILS], 126)
    people = [
        Person(f"{rng.choice(_GIVEN)} {family}", rng.choice(_TRADES), rng.randint(1790, 1960), rng.choice(towns))
        for family in families
    ]
    people_left = rng.sample(people, len(people))
    companies = []
    for index in range(70):
        founder = people_left[index % 60]
        goods = _GOODS[index % len(_GOODS)]
        # Named after a town that is not its seat: a company's name gives away neither hop.
        seat = towns[(index + rng.randint(1, 59)) % 60]
        name = f"{names[index % 60]} {goods.split()[-1].title()} {_FIRMS[index % len(_FIRMS)]}"
        companies.append(Company(name, goods, seat, founder, founder.born + rng.randint(24, 55)))
    festivals = [
        Festival(
            f"{feast} Feast of {town.name}" if index % 2 else f"{town.name} {feast} Days",
            town,
            rng.choice(_CUSTOMS),
            rng.choice(_MONTHS),
        )
        for index, (town, feast) in enumerate(
            (town, _FEASTS[rng.randrange(len(_FEASTS))]) for town in rng.sample(towns, 55)
        )
    ]
    buildings = []
    for index in range(70):
        town, architect = towns[index % 60], people_left[60 + index % 66]
        house = _HOUSES[(index + index // 60) % len(_HOUSES)]
        buildings.append(Building(f"{town.name} {house}", town, architect, architect.born + rng.randint(28, 60)))
    return World(tuple(rivers), tuple(towns), tuple(people), tuple(companies), tuple(festivals), tuple(buildings))
