"""The `rlenv` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rlenv._base.bounded import cut_middle
from rlenv._base.nearest import all_known
from rlenv.cli.options import refuse_unknown
from rlenv.cli.terminal import show_traceback, write, write_error
from rlenv.errors import RlenvError, RunStopped, SpecError
from rlenv.secrets import logger, redact

__all__ = ["main"]

_MOST_TOLD = 10_000
"""Characters of an error that are shown."""

# name: (module, one line for --help). A module has add_arguments(parser) and run(args) -> exit code; it is imported
# only when its command is given, so that `rlenv validate` does not pay for what `rlenv train` needs.
_COMMANDS = {
    "init": ("rlenv.cli.init", "write a new environment that validates and runs"),
    "validate": ("rlenv.cli.validate", "check specs and list every fault with its place"),
    "tools": ("rlenv.cli.tools", "list the compiled tools with their schemas"),
    "play": ("rlenv.cli.play", "play an episode by hand in the terminal"),
    "eval": ("rlenv.cli.eval", "play many episodes with a policy and report"),
    "bench": ("rlenv.cli.bench", "measure how fast an environment steps on this machine, without a model"),
    "runs": ("rlenv.cli.runs", "list, show, pack, export and remove runs that were kept"),
    "view": ("rlenv.cli.view", "open runs in the browser, or show episodes in the terminal"),
    "compare": ("rlenv.cli.compare", "say what changed from one run to another, and whether it may be chance"),
    "power": ("rlenv.cli.power", "say how many tasks it takes to see a difference of so much"),
    "report": ("rlenv.cli.report", "write runs as one HTML file for papers and reviews"),
    "replay": ("rlenv.cli.replay", "take recorded actions once more and compare what the environment answers"),
    "audit": ("rlenv.cli.audit", "attack the reward of a spec and print a report card"),
    "lock": ("rlenv.cli.lock", "show what made a run's episodes, by content, or what differs between two"),
    "rescore": ("rlenv.cli.rescore", "give recorded episodes the rewards of another spec and show the difference"),
    "ablate": ("rlenv.cli.ablate", "say what each reward term of recorded episodes is worth, alone and together"),
    "preflight": ("rlenv.cli.preflight", "say before a run whether lengths and memory fit, and whether it is exact"),
    "collect": ("rlenv.cli.collect", "make supervised data out of episodes, as the tokens that training reads"),
    "sft": ("rlenv.cli.sft", "start a policy on supervised data, with veRL's own trainer"),
    "train": ("rlenv.cli.train", "train a policy on veRL"),
    "export-policy": ("rlenv.cli.export_policy", "write a trained policy for transformers and vLLM"),
    "serve-search": ("rlenv.cli.serve_search", "serve a corpus to search tools, with the wire of Search-R1"),
    "doctor": ("rlenv.cli.doctor", "say what this machine lacks for a spec"),
    "dialects": ("rlenv.cli.dialects", "list the dialects, or show a conversation in the words of one"),
    "tokens": ("rlenv.cli.tokens", "prove that token ids are exact for a model, or show a trajectory's"),
    "schema": ("rlenv.cli.schema", "write the JSON Schema that editors complete specs with"),
    "lsp": ("rlenv.cli.lsp", "serve editors: faults, completion, hovers and an outline of specs"),
}

_PIPE_CLOSED = 128 + 13
_INTERRUPTED = 128 + 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0 fine, 1 faults found or a bar missed, 2 wrong usage."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt as error:  # while a command's modules are still imported
        code = _tell(error)
        assert code is not None
        return code


def _main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rlenv", description="One YAML file makes a multi-turn tool-use environment.", allow_abbrev=False
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    chosen = next((word for word in argv if not word.startswith("-")), None)
    if chosen is not None and chosen not in _COMMANDS:
        hint = all_known(chosen, _COMMANDS)
        write_error(f"rlenv: there is no command '{chosen}'; {hint}\n")
        return 2
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary.capitalize() + ".", allow_abbrev=False)
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    if chosen in (
        "train",
        "sft",
        "preflight",
    ):  # these read their own arguments: key=value anywhere among them
        own = importlib.import_module(_COMMANDS[chosen][0])
        rest = argv[argv.index(chosen) + 1 :]
        return _guard(lambda: own.run_argv(rest), may_exit=True)
    args, rest = parser.parse_known_args(argv)
    # argparse gives an optional word to the first place where it can stand, and takes none behind an option.
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(args, "spec", rest) is None:
        args.spec = rest.pop()
    if rest:
        refuse_unknown(commands.choices[chosen] if chosen else parser, rest)
    if args.version:
        from rlenv import __version__

        write(f"rlenv {__version__}\n")
        return 0
    if args.command is None:
        parser.print_help()
        return 2
    run = importlib.import_module(_COMMANDS[args.command][0]).run
    return _guard(lambda: run(_checked(args)))


def _checked(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments, whose `-o` is no run's own file: for all commands here, as each would forget it.

    Those that read their own arguments look themselves.
    """
    out = getattr(args, "out", None) or getattr(args, "output", None)
    if isinstance(out, (str, Path)) and str(out):
        from rlenv.runs.folder import check_out

        check_out(out)
    return args


def _guard(run: object, *, may_exit: bool = False) -> int:
    """Runs a command; what it raises on purpose becomes a message and an exit code, out of a task group too.

    Args:
        may_exit: the command reads its own arguments, and ends the program where they are wrong.
    """
    assert callable(run)
    hook, sys.excepthook = sys.excepthook, show_traceback  # for a bug, which leaves this function
    logger("asyncio")  # what nobody waits for is told by it
    try:
        code = int(run())
        sys.stdout.flush()  # while it can be told that nobody reads
        sys.excepthook = hook
        return code
    except SystemExit as error:
        if may_exit:
            raise
        write_error(f"rlenv: a function of the spec ended the program (SystemExit: {error})\n")
        return 1
    except BaseExceptionGroup as group:
        told = [_tell(error) for error in _leaves(group)]
        if None in told:
            raise
        return max(code for code in told if code is not None)
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`); Python would complain once more as it flushes at exit. The code is
        # a shell's for SIGPIPE: what a command would have told by its own is not known to be fine.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except (Exception, KeyboardInterrupt) as error:
        told_code = _tell(error)
        if told_code is None:
            raise
        return told_code


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions in a group, each message once."""
    found: dict[tuple[type[BaseException], str], BaseException] = {}
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        else:
            found.setdefault((type(error), str(error)), error)
    return list(found.values())


def _tell(error: BaseException) -> int | None:
    """The exit code of what is raised on purpose, once it is told; None for a bug."""
    if isinstance(error, SpecError):
        count = len(error.faults)
        write_error(f"{redact(str(error))}\n{count} fault{'s' if count != 1 else ''}\n")
        return 1
    if isinstance(error, RunStopped):
        write_error(f"rlenv: {error}\n")
        return _INTERRUPTED
    if isinstance(error, RlenvError):
        write_error(f"rlenv: {cut_middle(redact(str(error)), _MOST_TOLD)}\n")  # a record may hold any text as an id
        return 2
    if isinstance(error, KeyboardInterrupt):
        write_error("interrupted\n")
        return _INTERRUPTED
    if isinstance(error, OSError) and error.filename is not None:
        write_error(f"rlenv: {cut_middle(str(error.filename), _MOST_TOLD)}: {error.strerror or type(error).__name__}\n")
        return 2
    return None


if __name__ == "__main__":
    sys.exit(main())
