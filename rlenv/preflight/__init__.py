"""The problems of a run before it starts: lengths against limits, tokens of a step, memory, and exactness."""

from rlenv.errors import Finding
from rlenv.preflight.lengths import Lengths, Limits, SplitLengths, TaskLengths, chosen_tasks, measure
from rlenv.preflight.memory import Machine, Memory, Model, Pass, known_model, memory_of, model_of
from rlenv.preflight.report import Names, Preflight, Step, judge_lengths, judge_memory, lines_of
from rlenv.preflight.run import Plan, Split, Subject, preflight

__all__ = [
    "Finding",
    "Lengths",
    "Limits",
    "Machine",
    "Memory",
    "Model",
    "Names",
    "Pass",
    "Plan",
    "Preflight",
    "Split",
    "SplitLengths",
    "Step",
    "Subject",
    "TaskLengths",
    "chosen_tasks",
    "judge_lengths",
    "judge_memory",
    "known_model",
    "lines_of",
    "measure",
    "memory_of",
    "model_of",
    "preflight",
]
