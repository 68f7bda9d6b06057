"""`rlenv runs report RUN… -o FILE`: runs as one HTML file for papers and reviews."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from rlenv.cli.options import argument, option
from rlenv.cli.spending import WithPrices
from rlenv.cli.terminal import write
from rlenv.errors import UsageError
from rlenv.runs.folder import is_run
from rlenv.runs.prices import as_prices

__all__ = ["ReportCommand"]


@dataclass
class ReportCommand(WithPrices):
    """`rlenv runs report`."""

    runs: list[str] = argument("run folders; the others are compared with the first", metavar="RUN")
    out: str = option("the file, such as report.html", "-o", "--out", metavar="FILE", required=True, writes=True)
    title: str = option("its title", default="Runs")
    episodes: int = option("episodes of each run to show (6)", default=6, metavar="N", least=0)
    overwrite: bool = option("replace the file if it is there")

    def execute(self) -> int:
        """Writes the file; exit code 0."""
        from rlenv.runs.figures.report import report

        prices = as_prices(self.prices)
        for name in self.runs:
            if not is_run(name):
                raise UsageError(f"there is no run at {name}", hint="`rlenv runs list` shows those below this folder")
        out = Path(self.out)
        if out.is_symlink() and not out.exists():  # it would be written through, to wherever it leads
            raise UsageError(f"{out} is a link that leads nowhere", hint="name another file, or remove the link")
        if out.exists() and not self.overwrite:
            raise UsageError(f"{out} exists already", hint="name another file, or add --overwrite")
        if out.exists() and not out.is_file():  # a device, say, whose name a file would take
            raise UsageError(f"{out} is no file", hint="name another")
        text = report([Path(name) for name in self.runs], title=self.title, episodes=self.episodes, prices=prices)
        place = out.resolve()  # a link stays what it is
        beside = place.with_name(f"{place.name}.{os.getpid()}.part")
        try:  # the old one stays whole until the new one is
            beside.write_text(text, encoding="utf-8", errors="replace")
            os.replace(beside, place)
        except OSError as error:
            raise UsageError(f"{error.filename or out} cannot be written: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
        write(f"{out}: {len(self.runs)} runs, {len(text) / 1e3:.0f} kB\n")
        return 0
