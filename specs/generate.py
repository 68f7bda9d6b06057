"""Writes the data of the environments that ship, byte for byte the same on every machine.

python specs/generate.py            write specs/data
python specs/generate.py --check    write nothing; exit 1 and name the files that differ
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path

from generators import (
    arithmetic,
    code_tests,
    customer_service,
    function_calls,
    function_dialogues,
    games,
    grid_world,
    gsm8k,
    instructions,
    mathematics,
    nl2sql,
    reasoning,
    repository,
    search_qa,
    shell,
    spreadsheets,
    text_world,
    wiki_search,
)

DATA = Path(__file__).resolve().parent / "data"
GENERATORS = {
    "arithmetic": arithmetic.files,
    "customer-service": customer_service.files,
    "code-tests": code_tests.files,
    "function-calls": function_calls.files,
    "function-dialogues": function_dialogues.files,
    "grid-world": grid_world.files,
    "gsm8k": gsm8k.files,
    "instructions": instructions.files,
    "kuhn-poker": games.kuhn_poker,
    "math": mathematics.files,
    "math-code": mathematics.files_with_code,
    "nl2sql": nl2sql.files,
    "reasoning": reasoning.files,
    "repository": repository.files,
    "search-qa": search_qa.files,
    "shell": shell.files,
    "spreadsheets": spreadsheets.files,
    "text-world": text_world.files,
    "tic-tac-toe": games.tic_tac_toe,
    "wiki-search": wiki_search.files,
}


def generated() -> dict[str, bytes]:
    """Every data file by its path below `specs/data`."""
    return {f"{name}/{path}": content for name, files in GENERATORS.items() for path, content in files().items()}


def differing(files: Mapping[str, bytes]) -> list[str]:
    """What would change, sorted: files that are missing, differ, or stand in a generated folder without a source."""
    changed = {path for path, content in files.items() if not _same(DATA / path, content)}
    for name in GENERATORS:
        found = {path.relative_to(DATA).as_posix() for path in (DATA / name).rglob("*") if path.is_file()}
        changed |= found - files.keys()
    return sorted(changed)


def _same(path: Path, content: bytes) -> bool:
    if not path.is_file():
        return False
    found = path.read_bytes()
    if path.suffix == ".sqlite" and found != content:
        # Another release of SQLite may lay out the same tables in other pages.
        return _dump(found) == _dump(content)
    return found == content


def _dump(image: bytes) -> list[str]:
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(image)
        return list(database.iterdump())
    except sqlite3.DatabaseError:
        return []
    finally:
        database.close()


def main() -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description="Write the data of the environments that ship.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    files = generated()
    changed = differing(files)
    if not check:
        for path in changed:
            target = DATA / path
            if path in files:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(files[path])
            else:
                target.unlink()
    for path in changed:
        sys.stdout.write(f"{'differs' if check else 'written'}: specs/data/{path}\n")
    sys.stdout.write(f"{len(files)} files, {sum(map(len, files.values())) / 1e6:.2f} MB, {len(changed)} changed\n")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
