"""The commands by name: what each is for, where its record stands, and what its forms are called."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from rlenv._base.text import all_known
from rlenv.cli.options import Options, parser_of
from rlenv.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: one line for `--help`, and its record as `module:class`.

    A module that begins with "@" is one of the trainer's adapter. `main` is a function of a module that reads the
    arguments itself. `modes` are other commands under the same name, chosen by a word: by an action where the command
    has no record of its own, else by a flag or a word.
    """

    summary: str
    place: str = ""
    modes: Mapping[str, Entry] = field(default_factory=dict)
    main: str = ""

    def record(self, name: str) -> type[Options]:
        """The record of the options; importing it loads what the command needs.

        Raises:
            MissingExtra: it is the trainer's, which is not installed.
        """
        return cast("type[Options]", _at(self.place, f"rlenv {name}"))

    def main_of(self, name: str) -> object:
        """The function that reads the arguments itself, None where the record does.

        Raises:
            MissingExtra: it is the trainer's, which is not installed.
        """
        return _at(self.main, f"rlenv {name}") if self.main else None


def _at(place: str, wanted_by: str) -> object:
    module, _, name = place.partition(":")
    if module.startswith("@"):
        from rlenv.models import adapter

        return getattr(adapter(module[1:], wanted_by=wanted_by), name)
    return getattr(importlib.import_module(f"rlenv.{module}"), name)


# A module is imported only when its command is given, so that `rlenv validate` does not pay for what others need.
COMMANDS: Final[Mapping[str, Entry]] = {
    "list": Entry(
        "list the environments that ship",
        "cli.tools:ListCommand",
        {
            "dialects": Entry(
                "list the dialects, or show a conversation in the words of one", "cli.tools:DialectsCommand"
            )
        },
    ),
    "init": Entry(
        "write a new environment that validates and runs",
        "cli.init:InitCommand",
        {"--export": Entry("write a spec as the folder that another host wants", "cli.serve:HostExportCommand")},
    ),
    "validate": Entry(
        "check specs and list every fault with its place",
        "cli.validate:ValidateCommand",
        {
            "--machine": Entry("say what this machine, and a model, lack for a spec", "cli.validate:MachineCommand"),
            "--images": Entry("pull, build and try the images of a spec's machines", "cli.servers:ImagesCommand"),
        },
    ),
    "tools": Entry("list the compiled tools with their schemas", "cli.tools:ToolsCommand"),
    "play": Entry("play an episode by hand in the terminal", "cli.play:PlayCommand"),
    "eval": Entry(
        "play many episodes with a policy and report",
        "cli.eval:EvalCommand",
        {"--bench": Entry("measure how fast an environment steps on this machine", "cli.eval:BenchCommand")},
    ),
    "audit": Entry("attack the reward of a spec and print a report card", "cli.audit:AuditCommand"),
    "runs": Entry(
        "list, show, lock, report, pack, export and remove runs that were kept",
        modes={
            "list": Entry("list the runs in and below folders", "cli.runs:RunsCommand"),
            "show": Entry("say what a run is and what it holds", "cli.runs:ShowCommand"),
            "lock": Entry(
                "show what made a run's episodes, by content, or what differs between two", "cli.runs:LockCommand"
            ),
            "report": Entry("write runs as one HTML file for papers and reviews", "cli.compare:ReportCommand"),
            "pack": Entry("seal journals that nobody writes, and merge parts", "cli.runs:PackCommand"),
            "export": Entry("write the episodes as one .jsonl file", "cli.runs:ExportCommand"),
            "tasks": Entry("write a run's tasks with how often each succeeded", "cli.scored:TasksCommand"),
            "export-policy": Entry(
                "write a trained policy for transformers and vLLM", "cli.training:ExportPolicyCommand"
            ),
            "rm": Entry("remove runs from their folders", "cli.runs:RemoveCommand"),
        },
    ),
    "view": Entry("open runs in the browser, or show episodes in the terminal", "web.command:ViewCommand"),
    "compare": Entry(
        "say what changed from one run to another, and whether it may be chance",
        "cli.compare:CompareCommand",
        {"--plan": Entry("say how many tasks it takes to see a difference of so much", "cli.compare:PlanCommand")},
    ),
    "replay": Entry(
        "take recorded actions once more and compare what the environment answers", "cli.replay:ReplayCommand"
    ),
    "rescore": Entry(
        "give recorded episodes the rewards of another spec and show the difference",
        "cli.replay:RescoreCommand",
        {
            "--ablate": Entry(
                "say what each reward term of recorded episodes is worth, alone and together",
                "cli.scored:AblateCommand",
            )
        },
    ),
    "collect": Entry(
        "make supervised data out of episodes, as the tokens that training reads", "cli.training:CollectCommand"
    ),
    "sft": Entry(
        "start a policy on supervised data, with veRL's own trainer", "@run.inputs:SftCommand", main="@sft.command:main"
    ),
    "train": Entry(
        "train a policy on veRL",
        "@run.inputs:TrainCommand",
        {
            "--preflight": Entry(
                "say before a run whether lengths and memory fit, and whether it is exact",
                "cli.training:PreflightCommand",
            )
        },
        main="@run.train:main",
    ),
    "serve": Entry(
        "serve environments to trainers and agents elsewhere",
        "cli.serve:ServeCommand",
        {
            "--search": Entry(
                "serve a corpus to search tools, with the wire of Search-R1", "cli.servers:ServeSearchCommand"
            ),
            "--mcp": Entry("give a spec's tools, task and reward to clients of MCP", "cli.agents:McpCommand"),
            "--gateway": Entry("let finished agents play, before an endpoint of OpenAI's", "cli.agents:GatewayCommand"),
        },
    ),
    "tokens": Entry(
        "prove that token ids are exact for a model, or show a trajectory's",
        modes={
            "check": Entry(
                "prove that ids, masks and stop marks are right for a model", "cli.validate:TokensCheckCommand"
            ),
            "explain": Entry("show a trajectory's tokens by mask and turn", "cli.validate:TokensExplainCommand"),
        },
    ),
    "editor": Entry(
        "what editors need: the JSON Schema of specs, and a language server",
        modes={
            "schema": Entry("write the JSON Schema that editors complete specs with", "cli.servers:SchemaCommand"),
            "lsp": Entry("serve editors: faults, completion, hovers and an outline of specs", "cli.servers:LspCommand"),
        },
    ),
}

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "dialects": ("list", "dialects"),
    "doctor": ("validate", "--machine"),
    "bench": ("eval", "--bench"),
    "lock": ("runs", "lock"),
    "report": ("runs", "report"),
    "export-policy": ("runs", "export-policy"),
    "power": ("compare", "--plan"),
    "ablate": ("rescore", "--ablate"),
    "preflight": ("train", "--preflight"),
    "schema": ("editor", "schema"),
    "lsp": ("editor", "lsp"),
}
"""Names of the version before, with what they are called now. They go with the next version."""
SHORT: Final[Mapping[str, tuple[str, ...]]] = {
    "images": ("validate", "--images"),
    "export": ("init", "--export"),
    "serve-search": ("serve", "--search"),
    "mcp": ("serve", "--mcp"),
    "gateway": ("serve", "--gateway"),
}
"""Short names, which stay."""


def command_at(argv: Sequence[str]) -> tuple[Entry, tuple[str, ...], list[str]]:
    """The command that `argv` begins with, the words that name it, and the other words.

    Raises:
        UsageError: there is no such command.
    """
    name, *rest = argv
    if name not in COMMANDS:
        raise UsageError(f"there is no command '{name}'", hint=all_known(name, COMMANDS))
    command = COMMANDS[name]
    if command.place:
        mode = next((word for word in rest if word in command.modes), None)
    else:
        mode = rest[0] if rest and not rest[0].startswith("-") else None
        if mode is not None and mode not in command.modes:
            raise UsageError(f"`rlenv {name}` has no '{mode}'", hint=all_known(mode, command.modes))
    if mode is None:
        return command, (name,), rest
    rest.remove(mode)
    return command.modes[mode], (name, mode), rest


def parser_named(name: str, record: type[Options]) -> argparse.ArgumentParser:
    """The parser of a command by its name, such as `train` or `runs list`."""
    words = name.split()
    entry = COMMANDS[words[0]]
    for word in words[1:]:
        entry = entry.modes[word]
    modes = {word: mode.summary for word, mode in entry.modes.items()}
    return parser_of(record, ("rlenv", *words), summary=entry.summary, modes=modes)
