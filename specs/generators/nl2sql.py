"""Three small databases and questions over them; each gold query is run before its question is kept."""

from __future__ import annotations

import random
import sqlite3
from types import ModuleType
from typing import Any

from generators import clinic, library, shop
from generators.question import Question
from generators.rows import jsonl

__all__ = ["files"]

DATABASES: dict[str, ModuleType] = {"clinic": clinic, "library": library, "shop": shop}


def _database(module: ModuleType, seed: int) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.executescript(module.SCHEMA)
    module.fill(database, random.Random(seed))
    database.commit()
    return database


def _image(database: sqlite3.Connection) -> bytes:
    """The database as a file. Bytes 92 to 99 of the header name the SQLite release that wrote it, and so vary.

    They are set to the smallest release that such a header can name: https://www.sqlite.org/fileformat2.html#1.3
    """
    database.execute("VACUUM")
    image = bytearray(database.serialize())
    image[92:96] = image[24:28]
    image[96:100] = (3_007_000).to_bytes(4, "big")
    return bytes(image)


def _is_kept(question: Question, database: sqlite3.Connection) -> bool:
    results = [database.execute(gold).fetchall() for gold in question.golds]
    # An empty or null result would make many wrong queries right.
    return all(0 < len(rows) <= 20 and any(value not in (None, 0) for row in rows for value in row) for rows in results)


def files() -> dict[str, bytes]:
    """The databases, train.jsonl (150 questions) and test.jsonl (60); 70 questions to a database."""
    rng = random.Random(20240617)
    made: dict[str, bytes] = {}
    train: list[dict[str, Any]] = []
    test: list[dict[str, Any]] = []
    for seed, (name, module) in enumerate(DATABASES.items()):
        database = _database(module, seed)
        rows = [
            {"db": name, "question": question.text, "instructions": question.instructions, "gold_sqls": question.golds}
            for question in module.questions()
            if _is_kept(question, database)
        ]
        rng.shuffle(rows)
        assert len(rows) >= 70, (name, len(rows))
        test += rows[:20]
        train += rows[20:70]
        made[f"databases/{name}.sqlite"] = _image(database)
        database.close()
    rng.shuffle(train)
    rng.shuffle(test)
    return {**made, "test.jsonl": jsonl(test), "train.jsonl": jsonl(train)}
