"""Chat templates rendered as transformers renders them, without transformers.

The environment follows `transformers.utils.chat_template_utils._compile_jinja_template` (5.10): block trimming, loop
controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now` and the `generation` block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import meta, nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlenv.errors import UnsupportedTemplate, UsageError

__all__ = ["ChatTemplate", "names_read", "template_of"]


_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "strftime_now"})
"""What every rendering is given."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote; rendering passes it through."""

    tags: set[str] = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def names_read(source: str) -> frozenset[str]:
    """The names that a template reads from outside, such as `bos_token`, without those that every rendering has.

    Raises:
        jinja2.TemplateSyntaxError: the text is no template.
    """
    environment = _environment()
    return frozenset(meta.find_undeclared_variables(environment.parse(source)) - environment.globals.keys() - _GIVEN)


def template_of(
    tokenizer: Any, chat_template: str | None, kwargs: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any], str]:
    """The text of a tokenizer's template, or of another one for it, the values that it reads, and the tokenizer's name.

    Raises:
        UsageError: there is no template.
    """
    own = getattr(tokenizer, "chat_template", None)
    if isinstance(own, Mapping):
        own = own.get("tool_use", own.get("default"))
    source = chat_template if chat_template is not None else own
    if source is None:
        raise UsageError("the tokenizer has no chat template", hint="give one as chat_template")
    special = {
        key: str(value)
        for key, value in (getattr(tokenizer, "special_tokens_map", None) or {}).items()
        if isinstance(value, str) or hasattr(value, "content")
    }
    return source, {**special, **(kwargs or {})}, str(getattr(tokenizer, "name_or_path", "") or "of this tokenizer")


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the template's Jinja text.
        name: how errors call it.
        values: names that the template reads beside the conversation, such as `enable_thinking` or `bos_token`.

    Raises:
        UnsupportedTemplate: a syntax error; the message gives its line.
    """

    def __init__(self, source: str, *, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.source = source
        self.values = dict(values)
        self._formats: frozenset[str] = frozenset()
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UnsupportedTemplate(f"chat template {name}, line {error.lineno}: {error.message}") from error
        except jinja2.TemplateError as error:
            raise UnsupportedTemplate(f"chat template {name}: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        now: datetime | None = None,
    ) -> str:
        """The conversation's text.

        Args:
            now: the time for templates that write it; None: the clock's.

        Raises:
            UnsupportedTemplate: the template refuses the conversation, or fails on it.
        """
        moment = now if now is not None else datetime.now()

        def strftime_now(form: str) -> str:
            if form not in self._formats:
                self._formats |= {form}
            return moment.strftime(form)

        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{"strftime_now": strftime_now, **self.values},
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise UnsupportedTemplate(
                f"chat template {self.name} refuses a conversation of {roles}: {type(error).__name__}: {error}"
            ) from error

    def stamp(self, now: datetime) -> tuple[str, ...]:
        """All that the template has written of the time, as it would write it at another; () where it writes none."""
        return tuple(map(now.strftime, sorted(self._formats))) if self._formats else ()
