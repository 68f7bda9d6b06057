"""Images and long texts: kept once beside the records, and read as if they stood in them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlenv._base.bounded import plain
from rlenv.messages import Image
from rlenv.runs.blobs import LONG_BYTES, Blobs, blob_of, clear_blobs, put_back
from rlenv.runs.events import Event, Reel, dumped
from rlenv.runs.folder import clear
from rlenv.runs.pack import pack
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts
from rlenv.runs.writer import KeepPolicy, RunWriter, host_name
from rlenv.trajectory import Trajectory
from tests.support.runs import kept, played

PICTURE = b"\x89PNG" + bytes(range(256)) * 8
LONG = 'é "\\ \n' * (LONG_BYTES // 4)


def episodes() -> list[Trajectory]:
    return [played(task=number, images=[Image.of(PICTURE)], result=LONG) for number in range(3)]


def sealed_and_open(run: Path, made: Sequence[Trajectory]) -> list[str]:
    """Two sealed segments and an open one, with an episode each."""
    writer = RunWriter(run, seal_episodes=1)
    return [writer.append(one, Facts()) for one in made]


def blobs(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.glob("blobs/*/*")}


def test_an_image_and_a_long_text_are_kept_once_and_read_as_they_were(tmp_path: Path) -> None:
    made = episodes()
    ids = sealed_and_open(tmp_path, made)
    held = blobs(tmp_path)
    assert set(held.values()) == {PICTURE, LONG.encode()}
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in held.items())
    assert all(blob_of(tmp_path, name).is_file() for name in held)
    for _ in ("as written", "packed"):
        reader = RunReader(tmp_path)
        assert [reader.body(id).trajectory() for id in ids] == made
        assert dict(reader.records()) == {id: reader.body(id).record for id in ids}
        pack(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.glob("journal/*")) < 50_000


@pytest.mark.parametrize("own", [None, {"x": {"rlenv.text": "0" * 64}}])
def test_what_events_hold_is_kept_once_with_what_the_record_holds(tmp_path: Path, own: object) -> None:
    """Images and long texts of an answer stand in the episode's results too, and in answers of no kept episode."""
    answer = Event(name="draw", response={"images": [plain(Image.of(PICTURE))], "text": LONG, "value": own})
    made = played(images=[Image.of(PICTURE)], result=LONG)
    writer = RunWriter(tmp_path, keep=KeepPolicy(keep_gb=(len(PICTURE) + len(LONG.encode())) / 0.5e9))
    ids = [writer.append(made, Facts(events=dumped([answer]))) for _ in range(2)]
    writer.late("", {"events": dumped([answer]).decode()})
    for step in (lambda: None, writer.close, lambda: pack(tmp_path)):
        step()
        reel = Reel.of(tmp_path)
        assert [reel.events(id) for id in (*ids, "")] == [(answer,)] * 3
    if own is None:
        assert set(blobs(tmp_path).values()) == {PICTURE, LONG.encode()}
        assert sum(path.stat().st_size for kind in ("bodies", "late") for path in (tmp_path / kind).iterdir()) < 50_000


def test_messages_name_their_images(tmp_path: Path) -> None:
    shown = replace(played().messages[1], images=(Image.of(PICTURE),), content=LONG)
    kept(tmp_path, [replace(played(), messages=(shown,))])
    [part] = (tmp_path / "bodies").iterdir()
    [[message]] = pq.read_table(part)["messages"].to_pylist()
    assert message["images"] == [hashlib.sha256(PICTURE).hexdigest()]
    assert message["content"] == LONG


@pytest.mark.parametrize("data", [None, b"", b"another"])
def test_a_blob_that_is_missing_or_another_is_told_and_nothing_else_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes | None
) -> None:
    [id] = kept(tmp_path, [played(images=[Image.of(PICTURE)], result=LONG)])
    for path in tmp_path.glob("blobs/*/*"):
        path.unlink() if data is None else path.write_bytes(data)
    found = RunReader(tmp_path).body(id).trajectory()
    result = found.turns[0].results[0]
    assert result.images == (Image("image/png", ""),)
    assert result.text.endswith("is missing]")
    assert found.answer == "Paris"
    assert hashlib.sha256(PICTURE).hexdigest() in caplog.text


@pytest.mark.parametrize(
    "made",
    [
        played(images=[Image("image/png", "no base64"), Image("image/png", "YWI"), Image("image/png", "")]),
        played(result="\ud800" + LONG),
        played(details={"x": {"rlenv.base64": hashlib.sha256(PICTURE).hexdigest()}}, images=[Image.of(PICTURE)]),
        played(details={LONG: LONG, "base64": "aGk="}),
        played(result='{"mime":"image/png","base64":"aGk="}', images=[Image('a"\\', "aGk=")]),
    ],
)
def test_whatever_a_record_holds_comes_back_to_the_letter(tmp_path: Path, made: Trajectory) -> None:
    writer = RunWriter(tmp_path)
    id = writer.append(made, Facts())
    for _ in ("open", "sealed"):
        assert RunReader(tmp_path).body(id).trajectory() == made
        writer.close()


def test_names_that_no_body_lists_are_what_somebody_wrote(tmp_path: Path) -> None:
    name = Blobs(tmp_path, "w")._put(PICTURE)
    record = b'{"x":{"rlenv.base64":"%s"}}' % name.encode()
    assert put_back(tmp_path, record, ()) == record
    assert put_back(tmp_path, record, ["0" * 64]) == record


def test_a_blob_is_there_before_the_row_that_names_it(tmp_path: Path) -> None:
    """A disk that refuses it refuses the episode."""
    (tmp_path / "blobs").write_bytes(b"of somebody else")
    writer = RunWriter(tmp_path)
    with pytest.raises(OSError, match="blobs"):
        writer.append(played(images=[Image.of(PICTURE)]), Facts())
    id = writer.append(played(), Facts())
    assert RunReader(tmp_path).table["id"].to_pylist() == [id]


def test_a_half_of_a_blob_is_written_again_and_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    name = hashlib.sha256(PICTURE).hexdigest()
    path = blob_of(tmp_path, name)
    path.parent.mkdir(parents=True)
    path.write_bytes(PICTURE[:10])
    left = [
        path.with_name(f"{name}.{owner}.tmp")
        for owner in (f"{host_name()}-{2**22}-a", f"{host_name()}-{os.getpid()}-a")
    ]
    for one in left:
        one.write_bytes(b"half")
    kept(tmp_path, [played(images=[Image.of(PICTURE)])])
    assert path.read_bytes() == PICTURE
    pack(tmp_path)
    assert [one.exists() for one in left] == [False, True]


def test_a_run_that_is_removed_takes_its_blobs_and_nothing_of_others(tmp_path: Path) -> None:
    kept(tmp_path, episodes())
    clear(tmp_path)
    assert not (tmp_path / "blobs").exists()
    kept(tmp_path, episodes())
    own = [tmp_path / "blobs" / "mine.png", tmp_path / "blobs" / "ab" / "notes"]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    clear(tmp_path)
    assert sorted(path for path in tmp_path.glob("blobs/**/*") if path.is_file()) == sorted(own)
    clear_blobs(tmp_path / "nowhere")


def test_blobs_count_as_what_was_written(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, keep=KeepPolicy(keep_gb=len(PICTURE) / 1e9, share=0.0))
    facts = Facts(mode="train")
    for images in ([Image.of(PICTURE)], []):
        writer.append(played(images=images), facts)
    assert RunReader(tmp_path).table["has_body"].to_pylist() == [True, False]
    other = Image.of(PICTURE[::-1])
    writer.append(played(images=[other]), facts)
    assert len(blobs(tmp_path)) == 1, "of an episode whose body is not kept no blob is"


def test_parts_of_an_older_version_hold_their_images_and_are_packed_with_newer_ones(tmp_path: Path) -> None:
    made = episodes()
    ids = kept(tmp_path, made[:1])
    [part] = (tmp_path / "bodies").iterdir()
    table = pq.read_table(part)
    table = table.set_column(1, "record", [[RunReader(tmp_path).body(ids[0]).record]]).drop_columns(["blobs"])
    kind = table.schema.field("messages").type.value_type
    fields = [field for field in kind if field.name != "images"]
    old = [
        [{field.name: message[field.name] for field in fields} for message in one]
        for one in table["messages"].to_pylist()
    ]
    table = table.set_column(2, "messages", pa.array(old, pa.list_(pa.struct(fields))))
    pq.write_table(table, part, row_group_size=8)
    for name in blobs(tmp_path):
        blob_of(tmp_path, name).unlink()
    assert RunReader(tmp_path).body(ids[0]).trajectory() == made[0]
    ids += kept(tmp_path, made[1:])
    assert pack(tmp_path).merged == 2
    reader = RunReader(tmp_path)
    assert [reader.body(id).trajectory() for id in ids] == made
    assert {id for id, _ in reader.records()} == set(ids)
