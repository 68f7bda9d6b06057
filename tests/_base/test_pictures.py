"""Files of pictures without the rest: what they say of their size is what a decoder will take memory for."""

from __future__ import annotations

import struct
import zlib

import pytest

from rlenv._base.pictures import bare_image

SHOWN = b"\x02\x02L\x01\x00"
"""A least size of codes and one block: the picture of one pixel."""


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(*chunks: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + chunk(b"IEND", b"")


def header(width: int, height: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))


def frame(width: int, height: int) -> bytes:
    return b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + SHOWN


def gif(*blocks: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + b"".join(blocks) + b";"


def webp(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(struct.pack("<4sI", name, len(content)) + content for name, content in chunks)
    return struct.pack("<4sI", b"RIFF", len(body) + 4) + b"WEBP" + body


def size_of(data: bytes) -> tuple[int, int] | None:
    found = bare_image(data)
    return None if found is None else found.size


def test_the_size_of_a_png_is_that_of_its_header_wherever_it_stands() -> None:
    lie = chunk(b"tEXt", struct.pack(">II", 1, 1))
    found = bare_image(png(lie, header(60_000, 60_000), chunk(b"IDAT", b"")))
    assert found is not None
    assert found.size == (60_000, 60_000)
    assert b"tEXt" not in found.data
    assert bare_image(png(lie, chunk(b"IDAT", b""))) is None


def test_a_jpeg_of_two_frames_is_none() -> None:
    def start(height: int, width: int) -> bytes:
        return b"\xff\xc0" + struct.pack(">HBHHB", 8, 8, height, width, 0)

    scan = b"\xff\xda\0\2\xff\xd9"
    assert size_of(b"\xff\xd8" + start(20, 30) + scan) == (30, 20)
    assert bare_image(b"\xff\xd8" + start(60_000, 60_000) + start(1, 1) + scan) is None


def test_the_size_of_a_webp_is_the_larger_one_that_it_names() -> None:
    small = (b"VP8X", b"\0" * 10)
    inner = struct.pack("<6sHH", b"\0\0\0\x9d\x01\x2a", 16_000, 12_000)
    assert size_of(webp(small, (b"VP8 ", inner))) == (16_000, 12_000)
    moved = b"\0" * 6 + (8_999).to_bytes(3, "little") + (6_999).to_bytes(3, "little") + b"\0" * 4
    assert size_of(webp(small, (b"ANMF", moved))) == (9_000, 7_000)


def test_of_a_gif_the_first_picture_is_left() -> None:
    control, note = b"\x21\xf9\x04\x01\x0a\0\0\0", b"\x21\xfe\x04text\0"
    found = bare_image(gif(note, control, frame(1, 1), *[control + frame(1, 1)] * 50, note))
    assert found is not None
    assert found.data == gif(control, frame(1, 1))
    assert size_of(gif(frame(60_000, 50_000))) == (60_000, 50_000)


@pytest.mark.parametrize(
    "data", [gif(), gif(b"\x21\xfe\x04te"), gif(b"\x2c\0"), gif(b"\x21\xfe" + b"\1a" * 1_000_001 + b"\0", frame(1, 1))]
)
def test_a_gif_without_a_picture_is_none(data: bytes) -> None:
    assert bare_image(data) is None
