"""What the adapter stands on in veRL: a release that changes it fails here first, and says what to look at."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

import rlenv_verl
from rlenv.errors import UsageError
from rlenv_verl import VERL_RANGE
from rlenv_verl.settings import compose, preset_names
from rlenv_verl.settings.presets import load_preset
from tests.support import verl_contract
from tests.support.verl_contract import CLAUSES, Clause, breach, verl_version

ADAPTER = Path(rlenv_verl.__file__).parent


def test_installed_verl_is_within_the_covered_range() -> None:
    installed = importlib.metadata.version("verl")
    if installed not in SpecifierSet(VERL_RANGE):
        pytest.fail(f"veRL {installed} is outside of {VERL_RANGE}", pytrace=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: f"{clause.id} {clause.kind}")
def test_verl_has_what_the_adapter_uses(clause: Clause) -> None:
    lacking = breach(clause)
    if lacking is not None:
        pytest.fail(lacking, pytrace=False)


@pytest.mark.parametrize(
    ("clause", "says"),
    [
        (Clause("json", "dumps", "parameters", ("obj", "speed"), "x.py", "9"), "json.dumps takes no speed"),
        (Clause("json", "loads", "coroutine", ("s",), "x.py", "9"), "json.loads is no coroutine function"),
        (Clause("json", "JSONDecoder", "members", ("decode", "encode"), "x.py", "9"), "JSONDecoder has no encode"),
        (Clause("json.tool", "", "says", ("argparse", "no such text"), "x.py", "9"), "does not mention no such text"),
        (Clause("json.tool", "", "source", ("argparse", "no such text"), "x.py", "9"), "does not mention no such text"),
        (Clause("json.gone", "", "source", (), "x.py", "9"), "json.gone is gone: there is no file gone.py"),
        (Clause("json", "gone.away", "members", (), "x.py", "9"), "json.gone.away is gone"),
        (Clause("json.gone", "name", "members", (), "x.py", "9"), "is gone: there is no module json.gone"),
        (
            Clause("tests.support.verl_contract", "Clause", "fields", ("kind", "colour"), "x.py", "9"),
            "has no field colour",
        ),
    ],
)
def test_a_breach_names_what_is_gone_who_uses_it_and_which_release_has_it(clause: Clause, says: str) -> None:
    found = breach(clause)
    assert found is not None
    assert says in found
    assert found.endswith(f"Used by rlenv_verl/x.py; there since veRL 9, rlenv covers {VERL_RANGE}")
    assert "\n" not in found


def test_every_import_from_verl_in_the_adapter_is_in_the_contract() -> None:
    covered = {(clause.module, clause.name.partition(".")[0]) for clause in CLAUSES}
    covered |= {(clause.module, need) for clause in CLAUSES if not clause.name for need in clause.needs}
    pattern = re.compile(r"^ *from (verl[\w.]*|transfer_queue) import (.+)$", re.MULTILINE)
    for path in ADAPTER.rglob("*.py"):
        for module, names in pattern.findall(path.read_text(encoding="utf-8")):
            for name in (part.split()[0] for part in names.split("#")[0].split(",")):
                known = (module, name) in covered or (f"{module}.{name}", "") in covered
                assert known, f"{path.name} imports {name} from {module}; add a clause to verl_contract.py"


def test_every_file_that_a_clause_names_is_there() -> None:
    for clause in CLAUSES:
        for name in re.findall(r"[\w/]+\.py", clause.used_by):
            assert (ADAPTER / name).is_file(), f"{clause.id} names {name}"


@pytest.mark.slow
def test_a_release_that_lacks_something_is_told_in_lines_and_not_in_tracebacks(tmp_path: Path) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").write_text("")
    command = [sys.executable, str(verl_contract.__file__), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert all(re.match(r"- \w+ .+: .+\. Used by rlenv_verl/.+; there since veRL ", line) for line in lines[:-1])
    assert "Traceback" not in done.stdout + done.stderr
    assert re.fullmatch(r"veRL .* has \d+ of the \d+ things that rlenv_verl stands on", lines[-1])


def test_rollout_replica_calls_only_what_the_cpu_server_has(verl: Any) -> None:
    from verl.workers.rollout.replica import RolloutReplica

    from rlenv_verl.cpu.rollout import CpuServerActor

    called = set(re.findall(r"\.(\w+)\.remote\(", inspect.getsource(RolloutReplica)))
    has = {name for name in dir(CpuServerActor) if not name.startswith("_")}
    assert called, "RolloutReplica calls nothing by .remote any more; adapt rlenv_verl/cpu/rollout.py"
    assert called <= has, f"RolloutReplica calls {sorted(called - has)}, which rlenv_verl/cpu/rollout.py lacks"


def test_registries_know_the_cpu_backend_and_the_advantages(verl: Any) -> None:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    from rlenv_verl.cpu.registries import ROLLOUT_NAME
    from rlenv_verl.cpu.rollout import CpuReplica, CpuServerAdapter
    from rlenv_verl.estimators import GRPO, GRPO_SHUFFLED

    assert get_rollout_replica_class(ROLLOUT_NAME) is CpuReplica
    assert get_rollout_class(ROLLOUT_NAME) is CpuServerAdapter
    assert get_adv_estimator_fn(GRPO) is not get_adv_estimator_fn(GRPO_SHUFFLED)


@pytest.mark.slow(but=1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", preset_names())
def test_preset_resolves_in_verls_configuration(name: str) -> None:
    preset = load_preset(name)
    try:
        config = compose([*preset.overrides(), "data.train_files=a", "data.val_files=b"])
    except UsageError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        pytest.fail(f"presets/{name}.yaml does not fit veRL {verl_version()}: {refused}", pytrace=False)
    assert "file" in config["trainer"]["logger"]
