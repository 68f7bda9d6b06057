"""A spec in which two players count up in turn, the Python file of its world, and an action."""

from __future__ import annotations

from rlenv.trajectory import Trajectory

COUNTING = """
rlenv: 1
name: counting
tasks: {train: {rows: [{end: 4}]}}
prompt: {user: "You are {{ task.player }}."}
resources: {world: {kind: python, function: "world.py:world", run_in: loop}}
tools: {add: {kind: python, function: "world.py:add", inject: [world, task], run_in: loop, mutates: true}}
user: {kind: players, roles: {a: {}, b: {}}, next: "{{ resources.world.next }}", sees: "It is {{ resources.world.n }}."}
limits: {turns: 5, episode_s: 60}
rewards: {mine: {kind: rule, function: "world.py:mine"}}
"""
ADD = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
WORLD = '''
class World:
    def __init__(self, end):
        self.n, self.end, self.by = 0, end, []

    @property
    def next(self):
        return "" if self.n >= self.end else "ab"[self.n % 2]


def world(task):
    return World(task["end"])


def add(world, task) -> str:
    """Adds one."""
    world.n += 1
    world.by.append(task["player"])
    return str(world.n)


def mine(context):
    return float(context.resources["world"].by.count(context.task["player"]))
'''


def all_of(trajectory: Trajectory) -> dict[str, Trajectory]:
    """The records of all players, by their names."""
    return {one.task["player"]: one for one in (trajectory, *trajectory.others)}
