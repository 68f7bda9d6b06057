"""Environments of one python term, audited: what is found where only the reward and the rows differ."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rlenv
from rlenv.audit.report import AuditReport
from rlenv.audit.run import audit

__all__ = ["audited", "holes"]


def audited(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    code: str,
    *,
    rewards: str = '{paid: {kind: rule, function: "code.py:paid"}}',
    prompt: str = "{{ task.question }}",
    more: str = "",
    oracle: str = '- say: "<answer>{{ task.answer }}</answer>"',
    splits: str = "{train: {path: rows.jsonl}}",
) -> AuditReport:
    """The report over an environment whose functions stand in `code`."""
    (folder / "code.py").write_text(code, encoding="utf-8")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = ["rlenv: 1", "name: rewarded", f"tasks: {splits}"]
    lines += [f"prompt: {{user: {json.dumps(prompt)}}}", more, f"rewards: {rewards}", "oracle:"]
    lines += [f"  {line}" for line in oracle.splitlines()]
    (folder / "env.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    async def main() -> AuditReport:
        async with rlenv.load(folder / "env.yaml") as environment:
            return await audit(environment)

    return asyncio.run(main())


def holes(report: AuditReport) -> set[str]:
    """The names of what was found."""
    return {finding.hole for finding in report.findings}
