"""Writes a small made-up world in the formats of Search-R1: train.parquet, test.parquet and corpus.jsonl.

    python examples/search_r1/toy.py data

The columns are those of scripts/data_process/qa_search_train_merge.py and qa_search_test_merge.py, and the corpus is
written as wiki-18.jsonl is (github.com/PeterGriffinJin/Search-R1): official files take their places without a change.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
TRAIN_SETS = ("nq", "hotpotqa")

# Table 1 of arXiv:2503.09516, as the scripts above write it: a policy that was trained on it expects it to the letter.
PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query "
    "</search> and it will return the top searched results between <information> and </information>. You can search as "
    "many times as your want. If you find no further external knowledge needed, you can directly provide the answer "
    "inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: "
    "{question}\n"
)

_STARTS = "bar cor del fen gar hol jor kel lor mar nor pel ros sar tor vel wen yar zan dor".split()
_ENDS = "ana eth ick ona ulf esk iva ond are yme olt una isk erra omi".split()
_CRAFTS = "pottery lace clocks cheese boats glass saddles bells violins paper honey rugs".split()
_TRADES = "potter weaver baker sailor painter teacher smith miller farmer singer".split()


@dataclass(frozen=True, slots=True)
class World:
    """Towns by rivers, people who were born in them, and books that they wrote."""

    towns: Sequence[Mapping[str, str]]
    people: Sequence[Mapping[str, Any]]
    books: Sequence[Mapping[str, Any]]

    def passages(self) -> list[dict[str, str]]:
        """One passage for each town, person and book: `{"id", "contents"}` with the title in quotes on a line."""
        shown = [
            (
                town["name"],
                f"{town['name']} is a town on the river {town['river']}. It is famous for its {town['craft']}.",
            )
            for town in self.towns
        ]
        shown += [
            (who["name"], f"{who['name']} is a {who['trade']} who was born in {who['town']['name']}.")
            for who in self.people
        ]
        shown += [
            (book["name"], f"{book['name']} is a novel that {book['author']['name']} wrote.") for book in self.books
        ]
        return [{"id": str(number), "contents": f'"{title}"\n{text}'} for number, (title, text) in enumerate(shown)]


def make_world(rng: random.Random, *, towns: int = 60, people: int = 100, books: int = 80) -> World:
    """A world in which no two things share a name."""
    names = [(start + end).capitalize() for start in _STARTS for end in _ENDS]
    rng.shuffle(names)
    made = [
        {"name": names.pop(), "river": names.pop(), "craft": rng.choice(_CRAFTS)}
        for _ in range(min(towns, len(names) // 4))
    ]
    folk = [{"name": names.pop(), "trade": rng.choice(_TRADES), "town": rng.choice(made)} for _ in range(people)]
    works = [{"name": f"The {names.pop()}", "author": rng.choice(folk)} for _ in range(min(books, len(names)))]
    return World(made, folk, works)


def _river(name: str) -> list[str]:
    return [name, f"the river {name}", f"River {name}"]


# A question and its accepted answers, in the style of each set: one hop for the first three, two or three for the rest.
_ASK: Mapping[str, Callable[[World, random.Random], tuple[str, list[str]]]] = {
    "nq": lambda world, rng: _about_town(rng.choice(world.towns)),
    "triviaqa": lambda world, rng: _about_craft(rng.choice(world.towns)),
    "popqa": lambda world, rng: _about_trade(rng.choice(world.people)),
    "hotpotqa": lambda world, rng: _river_of_birth(rng.choice(world.people)),
    "2wikimultihopqa": lambda world, rng: _birth_of_author(rng.choice(world.books)),
    "musique": lambda world, rng: _craft_of_author(rng.choice(world.books)),
    "bamboogle": lambda world, rng: _river_of_author(rng.choice(world.books)),
}


def _about_town(town: Mapping[str, str]) -> tuple[str, list[str]]:
    return f"which river is {town['name']} on", _river(town["river"])


def _about_craft(town: Mapping[str, str]) -> tuple[str, list[str]]:
    return f"What is the town of {town['name']} famous for?", [town["craft"]]


def _about_trade(who: Mapping[str, Any]) -> tuple[str, list[str]]:
    return f"What is {who['name']}'s occupation?", [who["trade"]]


def _river_of_birth(who: Mapping[str, Any]) -> tuple[str, list[str]]:
    return f"Which river flows through the town where {who['name']} was born?", _river(who["town"]["river"])


def _birth_of_author(book: Mapping[str, Any]) -> tuple[str, list[str]]:
    return f"Where was the author of {book['name']} born?", [book["author"]["town"]["name"]]


def _craft_of_author(book: Mapping[str, Any]) -> tuple[str, list[str]]:
    return f"What is the birthplace of the author of {book['name']} famous for?", [book["author"]["town"]["craft"]]


def _river_of_author(book: Mapping[str, Any]) -> tuple[str, list[str]]:
    return f"Which river runs through the birthplace of the author of {book['name']}?", _river(
        book["author"]["town"]["river"]
    )


def official_row(data_source: str, question: str, answers: Sequence[str], *, split: str, index: int) -> dict[str, Any]:
    """One row as the official scripts write it: a question gets its question mark, and the prompt holds it."""
    question = question.strip()
    question += "" if question.endswith("?") else "?"
    return {
        "id": f"{split}_{index}",
        "question": question,
        "golden_answers": list(answers),
        "data_source": data_source,
        "prompt": [{"role": "user", "content": PROMPT.replace("{question}", question)}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": list(answers)}},
        "extra_info": {"split": split, "index": index},
    }


def rows_of(world: World, sets: Sequence[str], count: int, *, split: str, rng: random.Random) -> list[dict[str, Any]]:
    """`count` rows of each set, one set after the other, numbered within their set as the official ones are."""
    rows = []
    for name in sets:
        for index in range(count):
            question, answers = _ASK[name](world, rng)
            rows.append(official_row(name, question, answers, split=split, index=index))
    return rows


def write(folder: Path, *, seed: int = 0, train: int = 64, test: int = 16) -> None:
    """train.parquet, test.parquet and corpus.jsonl in `folder`; equal arguments give equal files.

    Questions of the two files are about things of their own. The corpus holds both.

    Args:
        train: rows of each of NQ and HotpotQA.
        test: rows of each of the seven sets.
    """
    import pyarrow
    import pyarrow.parquet

    rng = random.Random(seed)
    world = make_world(rng)
    seen = World(world.towns[::2], world.people[::2], world.books[::2])
    held_out = World(world.towns[1::2], world.people[1::2], world.books[1::2])
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "train": rows_of(seen, TRAIN_SETS, train, split="train", rng=rng),
        "test": rows_of(held_out, SETS, test, split="test", rng=rng),
    }
    for name, rows in files.items():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
    lines = [json.dumps(passage, ensure_ascii=False) + "\n" for passage in world.passages()]
    (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a small made-up world in the formats of Search-R1.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=64, help="rows of each of NQ and HotpotQA")
    parser.add_argument("--test", type=int, default=16, help="rows of each of the seven sets")
    given = parser.parse_args()
    write(given.folder, seed=given.seed, train=given.train, test=given.test)
