"""Compares ids with the chat template's own on generated dialogues, and prints the counts.

Run: python benchmarks/dialogues.py [count] [family]. With ../shared/data it takes the real tokenizer of Qwen3, with its
template and that of Qwen2.5.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import load_tokenizer
from rlenv.tokens.check import check

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def families() -> dict[str, TokenEncoder]:
    """Encoders by name."""
    found = {"small": TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)}
    if not (DATA / "tokenizers").is_dir():
        print(f"{DATA} is not there; the real tokenizers are left out")
        return found
    place, templates = str(DATA / "tokenizers" / "qwen3"), DATA / "chat_templates"
    for family in ("qwen3", "qwen2_5"):
        found[family] = TokenEncoder(load_tokenizer(place, template=str(templates / f"{family}.jinja")))
    quiet = load_tokenizer(place, template=str(templates / "qwen3.jinja"))
    found["qwen3, thinking off"] = TokenEncoder(quiet, template_kwargs={"enable_thinking": False})
    return found


def main(count: str = "2000", family: str = "") -> None:
    for name, encoder in families().items():
        if family not in ("", name):
            continue
        start = time.perf_counter()
        report = check(lambda encoder=encoder: encoder, name=name, dialogues=int(count))  # type: ignore[misc]
        taken = time.perf_counter() - start
        for finding in report.findings:
            if finding.cases > 1 or finding.status == "failed":
                print(f"{name:22}{finding.name:26}{finding.status:9}{finding.cases:7}  {finding.detail[:90]}")
                if finding.difference is not None:
                    print(f"{'':22}{finding.difference}")
        print(f"{name:22}{'exact' if report.is_exact else 'NOT EXACT'} in {taken:.0f} s\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
