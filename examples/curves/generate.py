"""Writes the data of the toy environments in this folder, the same on every machine.

python examples/curves/generate.py            write examples/curves/data
python examples/curves/generate.py --check    write nothing; exit 1 and name the files that differ

Names are put together of syllables. Every name of a shop, person, town or river belongs to one split, and so does every
database: what `test` asks about was never asked about in `warmup` or `train`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data"
SPLITS = ("warmup", "train", "test")

# fmt: off
HEADS = (
    "Bal", "Bre", "Cal", "Cor", "Dal", "Dro", "Fen", "Gar", "Hal", "Hes", "Jor", "Kel", "Lun", "Mar", "Mor", "Nel",
    "Or", "Pel", "Quil", "Ros", "Sel", "Tam", "Tor", "Ul", "Val", "Ves", "Wil", "Yor", "Zan", "Zel",
)
MIDDLES = ("", "a", "e", "in", "o", "u")
TAILS = (
    "bury", "cott", "dane", "dorf", "fell", "ford", "gard", "ham", "holm", "kirk", "land", "loch", "mere", "mond",
    "moor", "nock", "quay", "rick", "sand", "shaw", "stade", "stow", "thorp", "vick", "wald", "ward", "well", "wick",
    "wold", "worth",
)
GIVEN = (
    "Anselm", "Berit", "Cosima", "Davor", "Edda", "Florian", "Gunnar", "Isaura", "Jorun", "Kasimir", "Leonie",
    "Matthis", "Nerys", "Oswin", "Petra", "Ragna", "Sixten", "Thekla", "Ulric", "Wendel",
)
# fmt: on

SCHEMA = """\
CREATE TABLE shop (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE sale (shop INTEGER, year INTEGER, pieces INTEGER, income INTEGER);
CREATE TABLE staff (shop INTEGER, name TEXT, wage INTEGER);
"""
YEARS = (2020, 2021, 2022, 2023)
# Each question with the query that answers it, up to the shop's number.
QUESTIONS = (
    ("What was the income of {shop} in {year}?", "SELECT income FROM sale WHERE year = {year} AND shop ="),
    ("How many pieces did {shop} sell in {year}?", "SELECT pieces FROM sale WHERE year = {year} AND shop ="),
    ("What is the income of {shop} in all?", "SELECT SUM(income) FROM sale WHERE shop ="),
    ("How many pieces has {shop} sold in all?", "SELECT SUM(pieces) FROM sale WHERE shop ="),
    ("What was the highest income of {shop}?", "SELECT MAX(income) FROM sale WHERE shop ="),
    ("What do the people at {shop} earn together?", "SELECT SUM(wage) FROM staff WHERE shop ="),
    ("What is the highest wage at {shop}?", "SELECT MAX(wage) FROM staff WHERE shop ="),
)
# What is asked of a list of people, the command that does it, and what that prints.
COMMANDS: tuple[tuple[str, str, Callable[[list[str]], list[str]]], ...] = (
    ("the first name", "sed q", lambda people: people[:1]),
    ("the number of names", "wc -l <", lambda people: [str(len(people))]),
    ("the sorted names", "sort", sorted),
    ("the names backwards", "tac", lambda people: people[::-1]),
)
# Functions with their parameters, and how people ask for them.
FUNCTIONS = (
    ("trains.delays", {"town": "string"}, "see how late the trains to {0} are"),
    ("trains.book", {"start": "string", "goal": "string"}, "book a seat from {0} to {1}"),
    ("maps.way", {"start": "string", "goal": "string"}, "show the way from {0} to {1}"),
    ("hotels.rooms", {"town": "string", "nights": "integer"}, "find a room in {0} for {1} nights"),
    ("taxi.call", {"town": "string", "seats": "integer"}, "call a taxi in {0} with {1} seats"),
    ("weather.today", {"town": "string"}, "tell the weather in {0}"),
)


def _names(rng: random.Random, *syllables: Sequence[str]) -> list[str]:
    """Every name that can be put together, in random order."""
    made = ["".join(parts) for parts in itertools.product(*syllables)]
    rng.shuffle(made)
    return made


def _jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _image(database: sqlite3.Connection) -> bytes:
    """The database as a file. Bytes 92 to 99 of the header name the SQLite release that wrote it, and so vary.

    They are set to the smallest release that such a header can name: https://www.sqlite.org/fileformat2.html#1.3
    """
    database.execute("VACUUM")
    image = bytearray(database.serialize())
    image[92:96] = image[24:28]
    image[96:100] = (3_007_000).to_bytes(4, "big")
    return bytes(image)


def nl2sql() -> Iterator[tuple[str, bytes]]:
    """One database a split, with shops of its own; questions that need a shop's number, found by a first query."""
    rng = random.Random(20261121)
    names = _names(rng, HEADS, MIDDLES, TAILS)
    for split, shops, rows in zip(SPLITS, (2000, 200, 200), (2000, 400, 200), strict=True):
        chosen, names = names[:shops], names[shops:]
        numbers = dict(zip(chosen, rng.sample(range(1000, 10000), shops), strict=True))
        database = sqlite3.connect(":memory:")
        database.executescript(SCHEMA)
        for name, number in numbers.items():
            database.execute("INSERT INTO shop VALUES (?, ?)", (number, name))
            for year in YEARS:
                sale = (number, year, rng.randint(100, 999), rng.randint(1000, 9999))
                database.execute("INSERT INTO sale VALUES (?, ?, ?, ?)", sale)
            for given in rng.sample(GIVEN, 2):
                database.execute("INSERT INTO staff VALUES (?, ?, ?)", (number, given, rng.randint(100, 999)))
        database.commit()
        asked: list[dict[str, Any]] = []
        for _ in range(rows):
            question, ask = rng.choice(QUESTIONS)
            shop, year = chosen[len(asked) % shops], rng.choice(YEARS)
            # A shop that comes again is asked something else; no draw is made for it, so that other rows stay.
            if any(row["shop"] == shop and row["ask"] == ask.format(year=year) for row in asked):
                question, ask = QUESTIONS[(QUESTIONS.index((question, ask)) + 1) % len(QUESTIONS)]
            ask = ask.format(year=year)
            asked.append(
                {
                    "db": split,
                    "question": question.format(shop=shop, year=year),
                    "instructions": "",
                    "gold_sqls": [f"{ask} (SELECT id FROM shop WHERE name = '{shop}')"],
                    "shop": shop,
                    "ask": ask,
                }
            )
        yield f"nl2sql/{split}.sqlite", _image(database)
        yield f"nl2sql/{split}.jsonl", _jsonl(asked)
        database.close()


def search_qa() -> Iterator[tuple[str, bytes]]:
    """One corpus; questions about the town where a person lives, so that two passages are needed."""
    rng = random.Random(20261122)
    families = _names(rng, HEADS, MIDDLES[:3], TAILS)
    left = _names(rng, HEADS, MIDDLES[3:], TAILS)
    passages: list[tuple[str, str]] = []
    made: dict[str, bytes] = {}
    for split, people, towns, streams, rows in zip(
        SPLITS, (2000, 200, 200), (1000, 150, 150), (500, 75, 75), (2000, 400, 200), strict=True
    ):
        persons = [f"{rng.choice(GIVEN)} {family}" for family in families[:people]]
        here, waters = left[:towns], left[towns : towns + streams]
        families, left = families[people:], left[towns + streams :]
        home = {person: rng.choice(here) for person in persons}
        river = {town: rng.choice(waters) for town in here}
        year = {town: rng.randint(1000, 1899) for town in here}
        passages += [(person, f"{person} lives in {town}.") for person, town in home.items()]
        passages += [(town, f"{town} lies on the {river[town]} and was founded in {year[town]}.") for town in here]
        asked: list[dict[str, Any]] = []
        for index in range(rows):
            person = persons[index % people]
            town = home[person]
            questions = (
                (f"On which river does {person} live?", river[town]),
                (f"When was the town of {person} founded?", str(year[town])),
            )
            question, answer = rng.choice(questions)
            # Who comes again is asked the other; no draw is made for it, so that other rows stay.
            if index >= people and asked[index - people]["question"] == question:
                question, answer = questions[question == questions[0][0]]
            asked.append({"question": question, "answer": answer, "sup": [person, town]})
        made[f"search-qa/{split}.jsonl"] = _jsonl(asked)
    rng.shuffle(passages)
    corpus = ({"id": f"p{number:04}", "title": title, "text": text} for number, (title, text) in enumerate(passages))
    yield "search-qa/corpus.jsonl", _jsonl(corpus)
    yield from made.items()


def shell() -> Iterator[tuple[str, bytes]]:
    """Three shops a task, each with a town, whose file has its people; two commands answer of one."""
    rng = random.Random(20261124)
    names = _names(rng, HEADS, MIDDLES, TAILS)
    for split, count, rows in zip(SPLITS, (4000, 600, 600), (1500, 400, 200), strict=True):
        chosen, names = names[:count], names[count:]
        asked: list[dict[str, Any]] = []
        for index in range(rows):
            # No two tasks of a split ask about the same shop.
            shop, *others = chosen[index], *rng.sample(chosen[rows:], 5)
            shops = dict(zip([shop, *others[:2]], others[2:], strict=True))
            lists = {town: rng.sample(GIVEN, rng.randint(2, 6)) for town in shops.values()}
            what, does, gives = rng.choice(COMMANDS)
            lines = [f"{name} {town}" for name, town in shops.items()]
            rng.shuffle(lines)
            asked.append(
                {
                    "question": f"Write {what} of {shop} to answer.",
                    "shop": shop,
                    "does": does,
                    "shops": "\n".join(lines),
                    "people": "\n".join(f"{town} {name}" for town, people in lists.items() for name in people),
                    "gives": "\n".join(gives(lists[shops[shop]])),
                }
            )
        yield f"shell/{split}.jsonl", _jsonl(asked)


def function_calls() -> Iterator[tuple[str, bytes]]:
    """Two functions a task, one of which is asked for, with towns of the split's own; in BFCL's form."""
    rng = random.Random(20261128)
    names = _names(rng, HEADS, MIDDLES, TAILS)
    for split, count, rows in zip(SPLITS, (3500, 800, 400), (1500, 400, 200), strict=True):
        towns, names = names[:count], names[count:]
        asked: list[dict[str, Any]] = []
        for index in range(rows):
            offered = rng.sample(FUNCTIONS, 2)
            name, parameters, words = rng.choice(offered)
            own = iter(towns[2 * index : 2 * index + 2])
            given = {key: next(own) if kind == "string" else rng.randint(2, 9) for key, kind in parameters.items()}
            asked.append(
                {
                    "id": f"multiple_{index}",
                    "kind": "multiple",
                    "question": [[{"role": "user", "content": f"Please {words.format(*given.values())}."}]],
                    "function": [_schema(name, parameters) for name, parameters, _ in offered],
                    "ground_truth": [{name: {key: [value] for key, value in given.items()}}],
                    "towns": [value for value in given.values() if isinstance(value, str)],
                }
            )
        yield f"function-calls/{split}.jsonl", _jsonl(asked)


def _schema(name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    return {"name": name, "parameters": {"type": "dict", "properties": properties, "required": list(parameters)}}


def spreadsheets() -> Iterator[tuple[str, bytes]]:
    """A sheet a task, with a number of one of its shops asked for; in TableBench's form."""
    rng = random.Random(20261129)
    names = _names(rng, HEADS, MIDDLES, TAILS)
    columns = ["shop", "income", "stock", "rent"]
    for split, count, rows in zip(SPLITS, (4000, 800, 500), (1500, 400, 200), strict=True):
        chosen, names = names[:count], names[count:]
        asked: list[dict[str, Any]] = []
        for shop in chosen[:rows]:
            shops = rng.sample([shop, *rng.sample(chosen[rows:], size := rng.randint(2, 4))], size + 1)
            data = [[name, *(rng.randint(100, 999) for _ in columns[1:])] for name in shops]
            column, last = rng.randrange(1, 4), len(data) + 1
            area, where = (f"{letter}2:{letter}{last}" for letter in ("ABCD"[column], "A"))
            asked.append(
                {
                    "question": f"What is the {columns[column]} of {shop}?",
                    "table": {"columns": columns, "data": data},
                    "answer": str(data[shops.index(shop)][column]),
                    "calls": [
                        {
                            "name": "compute",
                            "arguments": {"function": "SUM", "area": area, "where": where, "criterion": shop},
                        }
                    ],
                    "shop": shop,
                }
            )
        yield f"spreadsheets/{split}.jsonl", _jsonl(asked)


MADE = (nl2sql, search_qa, shell, function_calls, spreadsheets)


def main() -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description="Write the data of the toy environments.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    files = dict(itertools.chain(*(made() for made in MADE)))
    changed = [path for path, content in files.items() if not _is_same(DATA / path, content)]
    for path in changed:
        if not check:
            (DATA / path).parent.mkdir(parents=True, exist_ok=True)
            (DATA / path).write_bytes(files[path])
        sys.stdout.write(f"{'differs' if check else 'written'}: examples/curves/data/{path}\n")
    sys.stdout.write(f"{len(files)} files, {sum(map(len, files.values())) / 1e6:.2f} MB, {len(changed)} changed\n")
    return 1 if check and changed else 0


def _is_same(path: Path, content: bytes) -> bool:
    if not path.is_file():
        return False
    found = path.read_bytes()
    if path.suffix != ".sqlite" or found == content:
        return found == content
    # Another release of SQLite may lay out the same tables in other pages.
    dumps = []
    for image in (found, content):
        database = sqlite3.connect(":memory:")
        database.deserialize(image)
        dumps.append(list(database.iterdump()))
        database.close()
    return dumps[0] == dumps[1]


if __name__ == "__main__":
    sys.exit(main())
