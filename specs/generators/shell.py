"""Tasks in a shell over folders of small files: to find, to count, to edit, and scripts to write."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from generators.rows import jsonl
from generators.words import CITIES, day, full_names

__all__ = ["files"]

FOLDERS, OF_TEST = 12, 4
LEVELS = ("DEBUG", "INFO", "WARN", "ERROR")
PARTS = ("disk", "mail", "cache", "login", "backup", "printer")
SAYS = ("is full", "is slow", "has started", "was restarted", "does not answer")

Files = dict[str, str]


@dataclass(frozen=True, slots=True)
class Task:
    """`shows` are commands whose output is `gives` once it is done; `solution` does it."""

    kind: str
    question: str
    solution: str
    shows: str
    gives: str


def folder(rng: random.Random) -> Files:
    """Logs, tables, settings and notes of an office."""
    made: Files = {}
    for name in ("mail", "store", "web"):
        lines = [
            f"{day(rng, '2026-01-01', '2026-03-31')} {rng.choice(LEVELS)} {rng.choice(PARTS)} {rng.choice(SAYS)}"
            for _ in range(rng.randint(25, 40))
        ]
        made[f"logs/{name}.txt"] = _lines(sorted(lines))
    for name, people in zip(("north", "south", "west"), _thirds(full_names(rng, 36)), strict=True):
        rows = [f"{person},{rng.choice(CITIES)},{rng.randint(10, 999)}" for person in people]
        made[f"orders/{name}.csv"] = _lines(["name,city,amount", *rows])
    for name in rng.sample(("alpha", "beta", "delta", "gamma", "omega", "sigma"), 4):
        keys = {"port": rng.randint(8000, 8999), "host": f"{name}.test", "workers": rng.randint(1, 9)}
        made[f"settings/{name}.conf"] = _lines(f"{key} = {value}" for key, value in keys.items())
    for name in rng.sample(("plan", "talk", "visit", "budget", "moving"), 3):
        text = [f"{rng.choice(PARTS)} {rng.choice(SAYS)}, says {who}" for who in full_names(rng, rng.randint(3, 9))]
        made[f"notes/{name}.txt"] = _lines(text)
    return made


def _thirds(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[:9], names[9:22], names[22:]]


def _lines(lines: Any) -> str:
    return "".join(f"{line}\n" for line in lines)


def _orders(held: Files) -> list[tuple[str, str, str, int]]:
    """All orders: file, name, city and amount."""
    rows = [(path, line.split(",")) for path in _of(held, "orders") for line in held[path].splitlines()[1:]]
    return [(path, name, city, int(amount)) for path, (name, city, amount) in rows]


def _of(held: Files, place: str) -> list[str]:
    return sorted(path for path in held if path.startswith(f"{place}/"))


def _answer(kind: str, question: str, solution: str, gives: object) -> Task:
    return Task(kind, f"{question} Write it to the file answer.", f"{solution} > answer", "cat answer", str(gives))


def finds(held: Files, rng: random.Random) -> Iterator[Task]:
    path, name, _, _ = rng.choice(_orders(held))
    yield _answer("find", f"Which file has the order of {name}?", f"grep -rl '{name},' orders", path)
    sizes = {one: len(held[one]) for one in _of(held, "logs")}
    yield _answer("find", "Which file below logs is the largest one, in bytes?", "ls -S logs/* | head -n 1",
                  max(sizes, key=lambda one: sizes[one]))  # fmt: skip
    port = {held[one].split()[2]: one for one in _of(held, "settings")}
    found = rng.choice(sorted(port))
    yield _answer("find", f"Which file below settings has the port {found}?", f"grep -rl 'port = {found}' settings",
                  port[found])  # fmt: skip
    yield _answer("find", "Who has the order with the largest amount of all files in orders? Give the name alone.",
                  "tail -qn +2 orders/*.csv | sort -t, -k3 -n | tail -n 1 | cut -d, -f1",
                  max(_orders(held), key=lambda one: one[3])[1])  # fmt: skip


def counts(held: Files, rng: random.Random) -> Iterator[Task]:
    path, level, city, part = rng.choice(_of(held, "logs")), rng.choice(LEVELS), rng.choice(CITIES), rng.choice(PARTS)
    yield _answer("count", f"How many lines of {path} have the level {level}?", f"grep -c ' {level} ' {path}",
                  held[path].count(f" {level} "))  # fmt: skip
    rows = [one for one in _orders(held) if one[2] == city]
    yield _answer("count", f"How many orders of all files in orders are from {city}?",
                  f"cat orders/*.csv | grep -c ',{city},'", len(rows))  # fmt: skip
    yield _answer("count", f"What do the amounts of all orders from {city} add up to, over all files in orders?",
                  f"cat orders/*.csv | awk -F, '$2 == \"{city}\" {{s += $3}} END {{print s + 0}}'",
                  sum(one[3] for one in rows))  # fmt: skip
    days = {line.split()[0] for one in _of(held, "logs") for line in held[one].splitlines() if f" {part} " in line}
    yield _answer("count", f"On how many different days do the files in logs speak of {part}?",
                  f"grep -h ' {part} ' logs/* | cut -d' ' -f1 | sort -u | wc -l", len(days))  # fmt: skip


def edits(held: Files, rng: random.Random) -> Iterator[Task]:
    def task(question: str, solution: str, place: str, after: Mapping[str, str]) -> Task:
        shown = _lines(f"{path}:{line}" for path in sorted(after) for line in after[path].splitlines())
        return Task("edit", question, solution, f"grep -r '' {place} | LC_ALL=C sort -s -t: -k1,1", shown.rstrip("\n"))

    path, level, port = rng.choice(_of(held, "logs")), rng.choice(LEVELS[:2]), rng.randint(9000, 9999)
    logs = {one: held[one] for one in _of(held, "logs")}
    kept = _lines(line for line in held[path].splitlines() if f" {level} " not in line)
    yield task(f"Take all lines with the level {level} out of {path}, and leave the other files in logs as they are.",
               f"sed -i '/ {level} /d' {path}", "logs", {**logs, path: kept})  # fmt: skip
    changed = {one: _lines([f"port = {port}", *held[one].splitlines()[1:]]) for one in _of(held, "settings")}
    yield task(f"Set the port to {port} in each file below settings, and change nothing else there.",
               f"sed -i 's/^port = .*/port = {port}/' settings/*.conf", "settings", changed)  # fmt: skip
    notes = {one.replace(".txt", ".md"): held[one] for one in _of(held, "notes")}
    yield task("Give each .txt file below notes the ending .md instead.",
               'for f in notes/*.txt; do mv "$f" "${f%.txt}.md"; done', "notes", notes)  # fmt: skip
    old, new = rng.sample(CITIES, 2)
    orders = {one: held[one].replace(f",{old},", f",{new},") for one in _of(held, "orders")}
    yield task(f"The town {old} is now called {new}. Change it in all files below orders.",
               f"sed -i 's/,{old},/,{new},/' orders/*.csv", "orders", orders)  # fmt: skip


def _script(question: str, solution: str, given: str, gives: object) -> Task:
    return Task("script", f"Write the script run.sh, which reads {question}, when it is run by `bash run.sh`.",
                f"cat > run.sh <<'EOF'\n{solution}\nEOF", f"bash run.sh <<'EOF'\n{given}EOF\n", str(gives))  # fmt: skip


def scripts(held: Files, rng: random.Random) -> Iterator[Task]:
    """The input is of another folder's form, and never seen by the policy."""
    hidden = folder(rng)
    path, least = rng.choice(_of(hidden, "orders")), rng.randint(300, 600)
    rows = [line.split(",") for line in hidden[path].splitlines()[1:]]
    table = f"an order table such as {rng.choice(_of(held, 'orders'))} from its standard input and prints"
    sums = Counter[str]()
    for _, city, amount in rows:
        sums[city] += int(amount)
    yield _script(f"{table} each city with the sum of its amounts (such as `Ashford 120`), sorted by city",
                  "tail -n +2 | awk -F, '{s[$2] += $3} END {for (c in s) print c, s[c]}' | sort", hidden[path],
                  "\n".join(f"{city} {sums[city]}" for city in sorted(sums)))  # fmt: skip
    yield _script(f"{table} the names of those whose amount is above {least}, in the order of the table",
                  f"tail -n +2 | awk -F, '$3 > {least} {{print $1}}'", hidden[path],
                  "\n".join(name for name, _, amount in rows if int(amount) > least))  # fmt: skip
    path, level = rng.choice(_of(hidden, "logs")), rng.choice(LEVELS)
    log = f"a log such as {rng.choice(_of(held, 'logs'))} from its standard input and prints"
    days = Counter(line.split()[0] for line in hidden[path].splitlines() if f" {level} " in line)
    yield _script(f"{log} the number of lines with the level {level}, and then their days, each once and sorted, one a "
                  "line", f"grep ' {level} ' > lines; wc -l < lines; cut -d' ' -f1 lines | sort -u", hidden[path],
                  "\n".join([str(days.total()), *sorted(days)]))  # fmt: skip


KINDS: tuple[Callable[[Files, random.Random], Iterator[Task]], ...] = (finds, counts, edits, scripts)


def files() -> dict[str, bytes]:
    """Twelve folders of files, and train.jsonl and test.jsonl; those of four folders are for the test."""
    rng = random.Random(20261124)
    made: dict[str, bytes] = {}
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for number in range(FOLDERS):
        held, split = folder(rng), "test" if number >= FOLDERS - OF_TEST else "train"
        made |= {f"files/{number}/{path}": text.encode() for path, text in held.items()}
        for kind in KINDS:
            for task in kind(held, rng):
                row = {"id": f"{split}-{len(rows[split])}", "kind": task.kind, "files": str(number)}
                shown = {key: getattr(task, key) for key in ("question", "solution", "shows", "gives")}
                rows[split].append({**row, **shown})
    return {**made, **{f"{split}.jsonl": jsonl(found) for split, found in rows.items()}}
