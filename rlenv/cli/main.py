"""The `rlenv` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from rlenv._base.bounded import cut_middle
from rlenv.cli.commands import ALIASES, COMMANDS, SHORT, command_at, near_command, parser_named
from rlenv.cli.options import Executes, Options, options_of, parsed, refuse_unknown
from rlenv.cli.terminal import say, show_traceback, write, write_error
from rlenv.errors import RlenvError, RunStopped, SpecError
from rlenv.secrets import logger, redact

_MOST_TOLD = 10_000
"""Characters of an error that are shown."""
_PIPE_CLOSED = 128 + 13
_INTERRUPTED = 128 + 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0 fine, 1 faults found or a bar missed, 2 wrong usage."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except (KeyboardInterrupt, RlenvError) as error:  # while a command's modules are still imported
        code = _tell_error(error)
        assert code is not None
        return code


def _main(argv: list[str]) -> int:
    at = next((place for place, word in enumerate(argv) if not word.startswith("-")), len(argv))
    if at < len(argv) and argv[at] in ALIASES:
        words = ALIASES[argv[at]]
        say(f"rlenv: `rlenv {argv[at]}` is now `rlenv {' '.join(words)}`; the old name goes with the next version")
        argv = [*argv[:at], *words, *argv[at + 1 :]]
    elif at < len(argv) and argv[at] in SHORT:
        argv = [*argv[:at], *SHORT[argv[at]], *argv[at + 1 :]]
    if at < len(argv) and argv[at] not in COMMANDS:
        write_error(f"rlenv: there is no command '{argv[at]}'; {near_command(argv[at])}\n")
        return 2
    parser = _make_parser()
    args, unknown = parser.parse_known_args(argv[:at])
    if unknown:
        refuse_unknown(parser, unknown)
    if args.version:
        from rlenv import __version__

        write(f"rlenv {__version__}\n")
        return 0
    if at == len(argv):
        parser.print_help()
        return 2
    command, words, rest = command_at(argv[at:])
    if not command.place:
        return _no_action(words[0], rest)
    name = " ".join(words)
    if (own := command.main_of(name)) is not None:
        assert callable(own)
        return _run_guarded(lambda: own(rest), may_exit=True)
    record = command.record(name)
    given = vars(parsed(parser_named(name, record), rest))
    return _run_guarded(lambda: cast("Executes", _check_options(record(**given))).execute())


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlenv", description="One YAML file makes a multi-turn tool-use environment.", allow_abbrev=False
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands, each with its own --help")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.summary)
    return parser


def _no_action(name: str, rest: Sequence[str]) -> int:
    """The help of a command that is only a name for several; exit code 2 where nobody asked for it."""
    parser = argparse.ArgumentParser(prog=f"rlenv {name}", description=f"{COMMANDS[name].summary.capitalize()}.")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for word, mode in COMMANDS[name].modes.items():
        actions.add_parser(word, help=mode.summary)
    parser.parse_args(list(rest))  # ends the program: no action is given
    return 2


def _check_options(options: Options) -> Options:
    """The options with bounds and places to write looked at, which each command would have to do for itself.

    Raises UsageError: a number is out of its bounds, or what is written would replace a file of a run.
    """
    from rlenv.runs.folder import check_out

    for one in options_of(type(options)):
        value = getattr(options, one.name)
        one.check(value)
        if one.writes and isinstance(value, (str, Path)) and str(value):
            check_out(value)
    return options


def _run_guarded(run: Callable[[], int], *, may_exit: bool = False) -> int:
    """Runs a command; what it raises on purpose becomes a message and an exit code, out of a task group too.

    Args:
        may_exit: the command reads its own arguments, and ends the program where they are wrong.
    """
    hook, sys.excepthook = sys.excepthook, show_traceback  # for a bug, which leaves this function
    logger("asyncio")  # what nobody waits for is told by it
    try:
        code = run()
        sys.stdout.flush()  # while it can be told that nobody reads
        sys.excepthook = hook
        return code
    except SystemExit as error:
        if may_exit:
            raise
        write_error(f"rlenv: a function of the spec ended the program (SystemExit: {error})\n")
        return 1
    except BaseExceptionGroup as group:
        told = [_tell_error(error) for error in _leaf_errors(group)]
        if None in told:
            raise
        return max(code for code in told if code is not None)
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`); Python would complain once more as it flushes at exit. The code is
        # a shell's for SIGPIPE: what a command would have told by its own is not known to be fine.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except (Exception, KeyboardInterrupt) as error:
        told_code = _tell_error(error)
        if told_code is None:
            raise
        return told_code


def _leaf_errors(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
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


def _tell_error(error: BaseException) -> int | None:
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
