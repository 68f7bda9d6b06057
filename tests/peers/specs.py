"""Specs that are played in several peers."""

from __future__ import annotations

from pathlib import Path

from tests.peers.places import ROOT

FIRST = ROOT / "examples" / "first" / "env.yaml"
HEAD = "rlenv: 1\nname: made\ntasks: {train: {rows: [{q: '2+3', answer: 5}]}}\nprompt: {user: '{{ task.q }}'}\n"
RIGHT = "right: {kind: rule, rule: exact_match}"
JUDGED = f"""
extends: {FIRST}
rlenv: 1
name: judged
endpoints: {{gone: {{base_url: "http://127.0.0.1:9/v1", model: m, retries: 0, timeout_s: 2}}}}
rewards:
  judged: {{kind: judge, endpoint: gone, prompt: "Is it polite? {{{{ answer }}}}", required: true}}
"""
COMPARED = f"{HEAD}rewards: {{{RIGHT}, best: {{kind: group, of: right, by: rank}}}}\n"
HEARD = f"{HEAD}user: {{kind: scripted, replies: [Go on.]}}\nrewards: {{{RIGHT}}}\n"
SEARCHED = f"{HEAD}dialect: search_r1\nrewards: {{{RIGHT}}}\ntools: {{calculate: {{kind: calculator}}}}\n"


def written(folder: Path, spec: Path | str) -> Path:
    """The file of a spec, which is written into the folder where it is a text."""
    if isinstance(spec, Path):
        return spec
    (folder / "made.yaml").write_text(spec, encoding="utf-8")
    return folder / "made.yaml"
