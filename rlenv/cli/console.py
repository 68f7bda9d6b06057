"""The console of the commands, on which no text of a model, a tool, a server, a row or a record acts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import rich.console
from rich.errors import MarkupError
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from rlenv._base.visible import visible

__all__ = ["Console"]

_SEEN: Final = Style(conceal=False, blink=False, blink2=False)


class Console(rich.console.Console):
    """A console on which only its own styles act.

    Control characters are shown as escapes, text that is no markup is shown as it stands, and markup in texts of others
    makes no links and hides nothing.
    """

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of `renderable`; rich's own control segments stay as they are."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control is not None:
                yield segment
                continue
            if style is not None and (style.link or style.conceal or style.blink or style.blink2):
                style = style.update_link(None) + _SEEN
            lines = [visible(line) for line in text.split("\n")]
            yield Segment("\n".join(lines), style, None)

    def on_broken_pipe(self) -> None:
        """The reader went away (`| head`), which `rlenv.cli.main` ends on; rich would end the program by itself."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """`text` with its markup, or as it stands where that is broken."""
        try:
            return super().render_str(text, **options)
        except MarkupError:
            return Text(text)
