"""The files of four image formats, without all that a picture does not need.

Text, colour profiles, previews and Exif data may be bombs of their own, and their readers are the least tried parts of
a decoder. Sources: PNG (W3C, third edition), 5; JPEG (ITU-T T.81), B; WebP container (Google, 2023); GIF89a
(CompuServe, 1990), 17 to 27; Exif 2.32, 4.6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["BareImage", "bare_image"]

_MAX_PARTS: Final = 65_536
_MAX_SCANS: Final = 64
_MAX_BLOCKS: Final = 1_000_000
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_PNG_KEPT: Final = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
_WEBP_KEPT: Final = frozenset((b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF"))
_UNTOLD: Final = 0xFF ^ (0x20 | 0x08 | 0x04)  # no profile, no Exif, no XMP
_JPEG_NO_FRAME: Final = frozenset((0xC4, 0xC8, 0xCC))
_JPEG_KEPT: Final = frozenset((0xE0, 0xEE))  # JFIF, and Adobe's, which names the colours


@dataclass(frozen=True, slots=True)
class BareImage:
    """A file of `form` (Pillow's name) that holds a picture alone, and how it has to be turned (1 to 8; 1: not)."""

    form: str
    data: bytes
    size: tuple[int, int]
    """Its width and height in pixels: what its headers say, the larger where they differ."""
    orientation: int = 1


def bare_image(data: bytes) -> BareImage | None:
    """The picture in a file, None where it is no PNG, JPEG, WebP or GIF, or is not made as one."""
    try:
        if data.startswith(_PNG):
            return _png(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data.startswith((b"GIF87a", b"GIF89a")):
            return _gif(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
    except (struct.error, IndexError, ValueError):
        return None
    return None


def _chunks(data: bytes, at: int, form: str, *, name_first: bool) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and length of each chunk's content."""
    for _ in range(_MAX_PARTS):
        if at + 8 > len(data):
            return
        one, other = struct.unpack_from(form, data, at)
        name, length = (one, other) if name_first else (other, one)
        yield name, at + 8, length
        at += 8 + length + (length % 2 if name_first else 4)
    raise ValueError("too many chunks")


def _png(data: bytes) -> BareImage:
    kept = [_PNG]
    orientation = 1
    for name, at, length in _chunks(data, len(_PNG), ">I4s", name_first=False):
        if name in _PNG_KEPT:
            kept.append(data[at - 8 : at + length + 4])
        elif name == b"eXIf":
            orientation = _orientation(data[at : at + length])
        if name == b"IEND":
            break
    whole = b"".join(kept)
    if whole[12:16] != b"IHDR":  # what stands before it is left out, and its content is no size
        raise ValueError("no header")
    return BareImage("PNG", whole, struct.unpack_from(">II", whole, 16), orientation)


def _jpeg(data: bytes) -> BareImage | None:
    kept = [data[:2]]
    orientation, at, size = 1, 2, (0, 0)
    for _ in range(_MAX_PARTS):
        while data[at] == 0xFF and data[at + 1] == 0xFF:  # fill bytes
            at += 1
        if data[at] != 0xFF:
            return None
        mark = data[at + 1]
        if mark == 0xDA:
            # Each scan is a pass over the whole picture; a photo has about ten.
            if data.count(b"\xff\xda", at) > _MAX_SCANS or size == (0, 0):
                return None
            return BareImage("JPEG", b"".join([*kept, data[at:]]), size, orientation)
        (length,) = struct.unpack_from(">H", data, at + 2)
        end = at + 2 + length
        if mark == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0" and orientation == 1:
            orientation = _orientation(data[at + 10 : end])
        if 0xC0 <= mark <= 0xCF and mark not in _JPEG_NO_FRAME:
            height, width = struct.unpack_from(">HH", data, at + 5)
            if size != (0, 0):
                return None  # two frames: decoders do not agree on which one counts
            size = (width, height)
        is_told = 0xE0 <= mark <= 0xEF or mark == 0xFE
        if not is_told or mark in _JPEG_KEPT:
            kept.append(data[at:end])
        at = end
    return None


def _webp(data: bytes) -> BareImage:
    kept: list[bytes] = []
    orientation, has_frame, size = 1, False, (0, 0)
    for name, at, length in _chunks(data, 12, "<4sI", name_first=True):
        content = data[at : at + length]
        if name == b"VP8X" and length >= 10:
            size = (int.from_bytes(content[4:7], "little") + 1, int.from_bytes(content[7:10], "little") + 1)
            content = bytes((content[0] & _UNTOLD,)) + content[1:]
        elif name == b"EXIF":
            orientation = _orientation(content.removeprefix(b"Exif\0\0"))
            continue
        elif name not in _WEBP_KEPT or (name == b"ANMF" and has_frame):
            continue
        inner = (0, 0)
        if name == b"VP8L":
            bits = int.from_bytes(content[1:5], "little")
            inner = ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        elif name == b"VP8 ":
            width, height = struct.unpack_from("<HH", content, 6)
            inner = (width & 0x3FFF, height & 0x3FFF)
        elif name == b"ANMF":
            inner = (int.from_bytes(content[6:9], "little") + 1, int.from_bytes(content[9:12], "little") + 1)
        size = (max(size[0], inner[0]), max(size[1], inner[1]))
        has_frame = has_frame or name == b"ANMF"
        kept.append(struct.pack("<4sI", name, len(content)) + content + b"\0" * (len(content) % 2))
    body = b"WEBP" + b"".join(kept)
    return BareImage("WEBP", struct.pack("<4sI", b"RIFF", len(body)) + body, size, orientation)


def _gif(data: bytes) -> BareImage:
    """The first picture of a GIF with the control block before it: colours that are clear stand there."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + _colours(flags)
    head, control = data[:at], b""
    for _ in range(_MAX_PARTS):
        if data[at] == 0x21:
            end = _blocks_end(data, at + 2)
            if data[at + 1] == 0xF9:
                control = data[at:end]
            at = end
            continue
        if data[at] != 0x2C:
            break
        left, top, wide, high, flags = struct.unpack_from("<HHHHB", data, at + 1)
        end = _blocks_end(data, at + 10 + _colours(flags) + 1)
        whole = b"".join((head, control, data[at:end], b";"))
        return BareImage("GIF", whole, (max(width, left + wide), max(height, top + high)))
    raise ValueError("no picture")


def _colours(flags: int) -> int:
    """Bytes of the table of colours that some flags announce."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _blocks_end(data: bytes, at: int) -> int:
    """Where a chain of blocks ends, each with its length before it; an empty one is the last."""
    for _ in range(_MAX_BLOCKS):
        length = data[at]
        at += 1 + length
        if not length:
            return at
    raise ValueError("too many blocks")


def _orientation(exif: bytes) -> int:
    """The orientation in Exif data, 1 where there is none."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None or len(exif) < 8:
        return 1
    (at,) = struct.unpack_from(f"{order}I", exif, 4)
    if at + 2 > len(exif):
        return 1
    (count,) = struct.unpack_from(f"{order}H", exif, at)
    for index in range(min(count, (len(exif) - at - 2) // 12, 512)):
        tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, at + 2 + 12 * index)
        if tag == 0x0112 and kind == 3:
            return value if 1 <= value <= 8 else 1
    return 1
