"""Writes the corpus and the tasks of this example: invented papers, each with one number that can be asked for."""

from __future__ import annotations

import json
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAKES = ("Orn", "Vell", "Tamsa", "Hirta", "Quoll", "Brede", "Sunna", "Ivar", "Moss", "Kettle", "Anka", "Drown")
AUTHORS = ("Vesterby", "Okafor", "Lindqvist", "Moreau", "Tanaka", "Abara", "Petrov", "Ruiz", "Haddad", "Kowalski")
STUDIES = (
    (
        "Sediment cores of Lake {lake}",
        "how deep do the sediment cores of Lake {lake} reach",
        "m",
        (12, 90),
        "The cores reach {value} m and were taken at three sites.",
    ),
    (
        "Trout of Lake {lake}",
        "how many trout were tagged in Lake {lake}",
        "trout",
        (110, 980),
        "In two summers {value} trout were tagged and set free.",
    ),
    (
        "Ice on Lake {lake}",
        "for how many days did ice cover Lake {lake}",
        "days",
        (31, 160),
        "In the coldest winter ice covered the lake for {value} days.",
    ),
)
REMARKS = (
    "The shore is wooded on the north side.",
    "Earlier surveys disagree about the inflow.",
    "Weather records were kept by the village school.",
    "The boat was lent by the fishing club.",
)


def papers() -> list[dict[str, str | int]]:
    """All papers, the same in every run."""
    rng = random.Random(7)
    made: list[dict[str, str | int]] = []
    for lake in LAKES:
        for title, asked, unit, (low, high), finding in STUDIES:
            value = rng.randint(low, high)
            year = rng.randint(1961, 2019)
            words = [rng.choice(REMARKS), finding.format(value=value), rng.choice(REMARKS)]
            made.append(
                {
                    "id": f"P{len(made) + 1:02d}",
                    "title": f"{title.format(lake=lake)} ({rng.choice(AUTHORS)} {year})",
                    "text": " ".join(words),
                    "question": f"According to the literature, {asked.format(lake=lake)}?",
                    "answer": f"{value} {unit}",
                }
            )
    return made


def main() -> None:
    made = papers()
    data = HERE / "data"
    data.mkdir(exist_ok=True)
    corpus = [{key: paper[key] for key in ("id", "title", "text")} for paper in made]
    tasks = [{"question": paper["question"], "answer": paper["answer"], "source": paper["id"]} for paper in made[::4]]
    for name, rows in (("corpus", corpus), ("tasks", tasks)):
        lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
        (data / f"{name}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
