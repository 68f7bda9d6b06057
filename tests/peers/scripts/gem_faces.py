"""An oracle's episode by the faces of GEM and skyrl-gym, and one whose judge is down."""

from __future__ import annotations

import json
from pathlib import Path

import gem
import skyrl_gym

import rlenv

SPEC = """
rlenv: 1
name: sums
tasks:
  train: {rows: [{question: "What is 2 + 3?", answer: 5}]}
prompt: {user: "{{ task.question }}"}
tools: {calculate: {kind: calculator}}
rewards:
  correct: {kind: rule, rule: numeric_match}
  format: {kind: rule, rule: valid_calls, weight: 0.5}
"""
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
DOWN = """  up: {kind: rule, rule: python, function: "service.py:up"}
"""

Path("sums.yaml").write_text(SPEC)
Path("down.yaml").write_text(SPEC.replace("name: sums", "name: down") + DOWN)
Path("service.py").write_text("def up(context):\n    raise RuntimeError('the service is down')\n")

gem.register("rlenv", entry_point="rlenv_hosts.gem:RlenvGem")
one = gem.make("rlenv", spec="sums.yaml")
first, _ = one.reset(seed=1)
ends = [one.step(CALL), one.step("<answer>5</answer>")]
down = gem.make("rlenv", spec="down.yaml")
down.reset(seed=1)
lost = down.step("<answer>5</answer>")
many = gem.make_vec(["rlenv"] * 3, vec_kwargs=[{"spec": "sums.yaml"}] * 3, async_mode=False)
many.reset()
several = many.step(["<answer>5</answer>"] * 3)

skyrl_gym.register(id="rlenv", entry_point="rlenv_hosts.skyrl:RlenvTextEnv")
extras = {"rlenv": "sums.yaml", "split": "train", "task": 0, "seed": 0}
text = skyrl_gym.make("rlenv", extras=extras)
prompt, _ = text.init([])
steps = [text.step(CALL), text.step("<answer>5</answer>")]
metrics = text.get_metrics()
text.close()
refused = skyrl_gym.make("rlenv", extras={**extras, "rlenv": "down.yaml"})
refused.init([])
try:
    refused.step("<answer>5</answer>")
    said = ""
except rlenv.UsageError as error:
    said = str(error)
refused.close()

print(
    json.dumps(
        {
            "gem": {
                "prompt": first,
                "rewards": [step[1] for step in ends],
                "ends": [step[2:4] for step in ends],
                "several": [list(map(float, several[1])), list(map(bool, several[2]))],
                "lost": [lost[1] != lost[1], lost[3], lost[4]["failure"]],
            },
            "skyrl": {
                "prompt": prompt,
                "rewards": [step["reward"] for step in steps],
                "done": [step["done"] for step in steps],
                "roles": [message["role"] for message in steps[0]["observations"]],
                "metrics": metrics,
                "refused": said,
            },
        },
        default=str,
    )
)
