"""`rlenv replay` takes the spec that the run was made of, from wherever it is called, or says what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.cli.main import main

_SPEC = """
rlenv: 1
name: {name}
tasks: {{test: {{rows: [{{q: a, answer: "5"}}]}}}}
prompt: {{user: "{{{{ task.q }}}}"}}
oracle: [{{say: "<answer>{{{{ task.answer }}}}</answer>"}}]
rewards: {{correct: {{kind: rule, rule: exact_match}}}}
"""


def test_a_run_finds_its_spec_again_and_says_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder, name in ((here, "one"), (elsewhere, "other")):
        folder.mkdir()
        (folder / "t.yaml").write_text(_SPEC.format(name=name))
    monkeypatch.chdir(here)
    assert main(["eval", "t.yaml", "-o", "RUN", "--json", "--set", "limits.turns=3"]) == 0
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    assert main(["replay", "../here/RUN"]) == 0
    assert capsys.readouterr().err == ""
    spec = here / "t.yaml"
    spec.write_text(spec.read_text() + "limits: {turns: 5}\n")
    assert main(["replay", "../here/RUN", "--set", "limits.turns=4"]) == 0
    assert "is not what the run was made of: rlenv runs lock diff" in capsys.readouterr().err
    spec.unlink()
    assert main(["replay", "../here/RUN"]) == 2
    assert "t.yaml, which the run names, is not there" in capsys.readouterr().err
