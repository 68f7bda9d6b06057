"""The user of kind `scripted`: replies by what the policy said, or in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlenv.errors import EpisodeError, UsageError, under
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Spec, Text, UserSpec
from rlenv.language.templates import Template, TemplateError, template_of
from rlenv.messages import Message
from rlenv.rewards.patterns import SEARCHED_CHARS, Pattern, compile_pattern
from rlenv.users.base import UserContext, spoken

__all__ = ["KIND", "ScriptedUserSpec"]

_NAMES = frozenset(("task", "vars", "message", "turn"))


class CueSpec(Spec):
    """A reply to certain words."""

    when: Text
    """A regular expression, in the language of RE2, that is searched in the policy's message; case does not count."""
    say: Text
    """The reply, a template over `task`, `vars`, `message` and `turn`."""


class ScriptedUserSpec(UserSpec):
    """Says what the spec says: the first cue whose words are in the policy's message, else the next of the replies."""

    kind: Literal["scripted"]
    cues: tuple[CueSpec, ...] = ()
    """Looked at in order, at every message."""
    replies: tuple[Text, ...] = ()
    """Said in order where no cue fits, each once; after the last one the user has nothing left to say."""


@dataclass(frozen=True, slots=True)
class _Scripted:
    stop: str | None
    cues: tuple[tuple[Pattern, Template], ...]
    replies: tuple[Template, ...]

    def start(self, context: UserContext) -> _Session:
        return _Session(self, context)


class _Session:
    def __init__(self, user: _Scripted, context: UserContext) -> None:
        self._user = user
        self._context = context
        self._replies = iter(user.replies)
        self._turn = 0

    async def reply(self, dialogue: Sequence[Message], *, deadline: float) -> str | None:
        message = dialogue[-1].content[-SEARCHED_CHARS:]
        turn, self._turn = self._turn, self._turn + 1
        template = next((say for when, say in self._user.cues if when.search(message)), None)
        if template is None:
            template = next(self._replies, None)
        if template is None:
            return None
        try:
            said = template.text(task=self._context.task, vars=self._context.vars, message=message, turn=turn)
            return spoken(said)
        except TemplateError as error:
            if "message" in template.names:
                return None  # the policy's words may have done it, and must not leave out its own sample
            raise EpisodeError(f"the user's reply cannot be written: {error}", reason="user") from error


def compile_scripted(spec: ScriptedUserSpec, context: CompileContext) -> _Scripted:
    """The user of one spec.

    Raises:
        UsageError: nothing to say, a pattern that is none, or a template that reads an unknown name.
    """
    if not spec.cues and not spec.replies:
        raise UsageError(
            "the user has nothing to say", hint="add 'replies: [TEXT]', or 'cues: [{when: WORDS, say: TEXT}]'"
        )
    cues: list[tuple[Pattern, Template]] = []
    for index, cue in enumerate(spec.cues):
        with under(f"cues.{index}.when"):
            pattern = compile_pattern(cue.when, dot_all=False, ignore_case=True)
        cues.append((pattern, template_of(cue.say, key=f"cues.{index}.say", names=_NAMES)))
    replies = [template_of(text, key=f"replies.{index}", names=_NAMES) for index, text in enumerate(spec.replies)]
    return _Scripted(spec.stop, tuple(cues), tuple(replies))


KIND = Kind(ScriptedUserSpec, compile_scripted)
