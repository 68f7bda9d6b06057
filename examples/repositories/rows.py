"""Rows in the form of SWE-bench (SWE-Gym, and others of its form) as tasks."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def rows(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl file as they are, with the test files that each one's `test_patch` writes.

    They have `instance_id`, `repo`, `base_commit`, `problem_statement`, `patch` (the gold one), `test_patch`,
    `FAIL_TO_PASS` and `PASS_TO_PASS`.
    """
    text = (Path(__file__).parent / path).read_text(encoding="utf-8")
    for line in text.splitlines():
        row = json.loads(line)
        files = re.findall(r"^\+\+\+ b/(.+)$", row["test_patch"], re.MULTILINE)
        yield {**row, "id": row["instance_id"], "test_files": " ".join(map(shlex.quote, files))}
