"""A process that validates one text and ends: `python -m rlenv.checks.editor.worker`.

It reads `{"path", "text"}` as JSON from standard input and writes the report as JSON to standard output. It is a
process of its own, since validating imports the author's files: these are read afresh each time, and may hang, print or
end the program.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict

import orjson

from rlenv.checks.validate import validate_text

__all__ = ["main"]


def main() -> int:
    """Answers one request. What the author's files print goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    asked = orjson.loads(sys.stdin.buffer.read())
    report = validate_text(asked["text"], path=asked["path"])
    answer = {"faults": [asdict(fault) for fault in report.faults], "not_checked": report.not_checked}
    with os.fdopen(out, "wb") as file:
        file.write(orjson.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
