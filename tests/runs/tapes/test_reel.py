"""A tape that is damaged, or of a newer version, is told with its file and place."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.concurrency.lanes import Asked
from rlenv.errors import CassetteError, UsageError
from rlenv.runs.tapes.cassettes import Player
from rlenv.runs.tapes.reel import Reel
from rlenv.runs.tapes.tape import Entry, TapeWriter, content_of

Row = dict[str, Any]


def row(**values: Any) -> Row:
    return {name: getattr(Entry("e", content="c"), name) for name in Entry.__slots__} | values


def journal(run: Path, *lines: bytes) -> Path:
    path = run / "tape" / "journal" / "0-0.rows.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(lines))
    return path


def line(held: Any) -> bytes:
    return json.dumps(held).encode() + b"\n"


def lacking(name: str) -> Row:
    return {key: value for key, value in row().items() if key != name}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (b"{torn\n", r"0-0\.rows\.jsonl:2: this line is no entry of a tape; without the line, the others can be read"),
        (line([1]), r"rows\.jsonl:2: this line is no entry"),
        (line(lacking("content")), r"rows\.jsonl:2: an entry has no content; bring the tape back"),
        (line(row(ordinal="1")), r"rows\.jsonl:2: ordinal is str, not int32"),
        (line(row(is_shared=None)), r"rows\.jsonl:2: is_shared is NoneType, not bool"),
        (line(row(depth=1)), r"rows\.jsonl:2: this version knows no depth of an entry; read it with the version of"),
    ],
)
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, second: bytes, message: str) -> None:
    journal(tmp_path, line(row()), second, line(row()))
    with pytest.raises(UsageError, match=message):
        Reel.of(tmp_path)


def test_a_line_that_was_cut_off_costs_its_entry_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal(tmp_path, line(row()), line(row(ordinal=1)), line(row(ordinal=2))[:-5])
    with caplog.at_level(logging.WARNING):
        found = Reel.of(tmp_path).contents["c"]
    assert [key.ordinal for key in found] == [0, 1]
    (told,) = caplog.messages
    assert told.endswith("0-0.rows.jsonl:3: the last line is cut off: its entry is left out")


def sealed(run: Path, change: Callable[[Any], Any]) -> Path:
    """A part with one entry, as `change` makes its table another."""
    import pyarrow.parquet as pq

    writer = TapeWriter(run)
    writer.put(Entry("e", content="c"))
    writer.close()
    (path,) = (run / "tape").glob("*.parquet")
    pq.write_table(change(pq.read_table(path)), path)
    return path


def without_episodes(table: Any) -> Any:
    import pyarrow as pa

    return table.set_column(0, "episode", pa.nulls(len(table), pa.string()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["content"]), "an entry has no content; bring the tape back from a copy"),
        (lambda table: table.append_column("depth", table["ordinal"]), "this version knows no depth of an entry"),
        (
            lambda table: table.set_column(2, "ordinal", table["ordinal"].cast("int64")),
            "the column ordinal is int64, not int32",
        ),
        (
            without_episodes,
            "cannot be read as a part: an entry of row group 0 has no episode",
        ),
    ],
)
def test_a_part_that_holds_no_entries_is_named(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    pytest.importorskip("pyarrow")
    path = sealed(tmp_path, change)
    with pytest.raises(UsageError, match=rf"{path}.*{message}"):
        Reel.of(tmp_path)


@pytest.mark.parametrize("left", [0, 3, 300])
def test_a_part_that_is_cut_off_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], left: int) -> None:
    pytest.importorskip("pyarrow")
    assert main(["eval", "arithmetic", "-n", "1", "--record", "-o", str(tmp_path / "run"), "--json"]) == 0
    (path,) = (tmp_path / "run" / "tape").glob("*.parquet")
    os.truncate(path, left)
    assert main(["replay", str(tmp_path / "run")]) == 2
    assert f"{path} cannot be read as a part: " in capsys.readouterr().err


def test_an_answer_that_cannot_be_read_is_a_miss_that_names_its_line(tmp_path: Path) -> None:
    asked = Asked("tool", "ask", 1)
    path = journal(tmp_path, line(row(content=content_of("tool", 1), place="turn 0 call 0", response="{torn")))
    player = Player(Reel.of(tmp_path))
    with pytest.raises(CassetteError, match=r"turn 0 call 0: the tape cannot be read: "):
        player.look(player.lane("e").at("turn 0 call 0"), asked)
    assert player.missed("e")
    player = Player(Reel.of(tmp_path))
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(CassetteError, match=rf"the tape cannot be read: {path}, byte 0: this line is no entry"):
        player.look(player.lane("e").at("turn 0 call 0"), asked)


def test_a_segment_that_cannot_be_sealed_stays_a_journal_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pyarrow")
    writer = TapeWriter(tmp_path)
    writer.put(Entry("e", content="c", ordinal=2**40))
    writer.close()
    assert [told for told in caplog.messages if "stays a journal" in told]
    assert [key.ordinal for key in Reel.of(tmp_path).contents["c"]] == [2**40]
