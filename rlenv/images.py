"""Images: where a spec or a tool may take one from, and what a model's processor is given of it.

Nothing here trusts an image: its bytes are read by the decoders of a few common formats only, its size is looked at
before it is decoded, and what cannot be read is an error that says why.

The files of four image formats, without all that a picture does not need.

Text, colour profiles, previews and Exif data may be bombs of their own, and their readers are the least tried parts of
a decoder. Sources: PNG (W3C, third edition), 5; JPEG (ITU-T T.81), B; WebP container (Google, 2023); GIF89a
(CompuServe, 1990), 17 to 27; Exif 2.32, 4.6.
"""

from __future__ import annotations

import base64
import binascii
import io
import mimetypes
import stat
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rlenv._base.paths import RefusedPath, finder
from rlenv.endpoints.account import as_image
from rlenv.errors import MissingExtra, told_as
from rlenv.messages import Image, ToolResult

__all__ = ["MAX_BYTES", "MAX_IMAGES", "MAX_PIXELS", "MAX_SIDE", "BareImage", "RefusedPath", "UnreadableImage"]
__all__ += ["bare_image", "finder", "image_of", "listed", "mime_of", "open_image", "within_limits", "within_turn"]

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
    """The end of a chain of blocks, each with its length before it; an empty one is the last."""
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


MAX_BYTES: Final = 20_000_000
"""A larger file or base64 text is not read."""
MAX_PIXELS: Final = 16_000_000
"""Width times height; a larger image is not decoded. It would take 64 MB, and every processor makes it small again."""
MAX_SIDE: Final = 16_384
"""Pixels in a row or a column: a decoder needs memory for each row beside its pixels."""
MAX_IMAGES: Final = 8
"""Further images of one result are left out."""
_NO_IMAGE: Final = "the bytes are no image that can be read (PNG, JPEG, WebP or GIF)"
_decoding: Final = threading.BoundedSemaphore(2)
# What an orientation asks for. Source: Exif 2.32, tag 0x0112.
_TURNED = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90".split()
_TURNS: Final = dict(enumerate(_TURNED, start=2))


class UnreadableImage(ValueError):
    """Something given as an image is none, or is too large; the message is short and fit for a model to read."""


def listed(value: Any) -> list[Any]:
    """The images that one template gives: each item of a list, or the value alone."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def image_of(value: Any, *, file: Callable[[str], Path] | None) -> Image:
    """The image that a template's value names.

    Args:
        value: an Image, a mapping with `base64` (and `mime`), a data URL, or the path of a file.
        file: makes the path of a file's name; None where files may not be named, as where a model wrote the value.

    Raises:
        UnreadableImage: it is none of these, or the file is missing, too large or of no image's name.
    """
    if isinstance(value, Image):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("base64"), str):
        return Image(str(value.get("mime", "image/png")), value["base64"])
    image = as_image(value) if isinstance(value, str) else None
    if image is not None:
        return image
    if file is None or not isinstance(value, str):
        raise UnreadableImage("an image is given as a data URL: data:image/png;base64,…")
    path = file(value)
    mime = mime_of(path)
    with told_as(UnreadableImage, "the image is not there", OSError):
        return Image.of(path.read_bytes(), mime)


def mime_of(path: Path) -> str:
    """The media type of an image's file, by its name; the file is looked at and not read.

    Raises:
        UnreadableImage: the file is missing, too large or of no image's name.
    """
    mime = mimetypes.guess_type(path.name)[0]
    with told_as(UnreadableImage, "the image is not there", OSError, ValueError):
        state = path.stat()
    if mime is None or not mime.startswith("image/") or state.st_size > MAX_BYTES:
        raise UnreadableImage("the image is of no kind that can be sent, or too large")
    if not stat.S_ISREG(state.st_mode):  # a pipe or a device would be read for ever
        raise UnreadableImage("the image is no regular file")
    return mime


def within_limits(images: Sequence[Image]) -> tuple[tuple[Image, ...], str]:
    """The images of one result that are kept, and a note of what is left out ("" where nothing is)."""
    kept: list[Image] = []
    size = 0
    for image in images[:MAX_IMAGES]:
        size += len(image.base64) * 3 // 4
        if size > MAX_BYTES:
            break
        kept.append(image)
    if len(kept) == len(images):
        return tuple(kept), ""
    left_out = len(images) - len(kept)
    most = f"at most {MAX_IMAGES}, of {MAX_BYTES // 1_000_000} MB together, are shown of a result"
    return tuple(kept), f"[{left_out} of {len(images)} images are left out: {most}]"


def open_image(image: Image, *, max_pixels: int = MAX_PIXELS) -> Any:
    """The decoded image as a `PIL.Image.Image` of mode RGB, upright, its transparent parts on white.

    Of an animation it is the first picture. What is not needed for the picture (text, profiles, previews) is cut away
    before a decoder sees it, and the size is looked at before there is memory for it. At most two images are decoded
    at once in a process.

    Raises:
        UnreadableImage: the bytes are no PNG, JPEG, WebP or GIF, are cut off, hold more than `max_pixels`, or are more
            than `MAX_SIDE` wide or high.
        MissingExtra: Pillow is not installed.
    """
    with told_as(MissingExtra, "images for a policy's processor", ImportError, extra="images"):
        import PIL.Image
    if len(image.base64) > MAX_BYTES * 4 // 3 + 4:
        raise UnreadableImage(f"the image has more than {MAX_BYTES} bytes")
    with told_as(UnreadableImage, "the image is not base64", binascii.Error, ValueError):
        data = base64.b64decode(image.base64, validate=True)
    found = bare_image(data)
    if found is None:
        raise UnreadableImage(_NO_IMAGE)
    _check_size(found.size, max_pixels)
    try:
        with _decoding:
            with PIL.Image.open(io.BytesIO(found.data), formats=(found.form,)) as opened:
                _check_size(opened.size, max_pixels)  # a picture may be larger than its file's header says
                opened.load()
                page = _on_white(opened)
            turn = _TURNS.get(found.orientation)
            return page if turn is None else page.transpose(getattr(PIL.Image.Transpose, turn))
    except UnreadableImage:
        raise
    # A decoder meets whatever the bytes say, and Pillow's raise what they meet: these kinds were seen on cut and
    # garbled files. MemoryError is not among them: it is the machine's.
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        LookupError,
        TypeError,
        ArithmeticError,
        AttributeError,
        RuntimeError,
        struct.error,
        zlib.error,
        Warning,
    ) as error:
        raise UnreadableImage(_NO_IMAGE) from error
    except PIL.Image.DecompressionBombError as error:
        raise UnreadableImage(f"the image is too large; expected at most {max_pixels} pixels") from error


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels or max(width, height) > MAX_SIDE:
        raise UnreadableImage(
            f"the image has {width} × {height} pixels; expected at most {max_pixels} in all, and {MAX_SIDE} in a row"
        )


def _on_white(image: Any) -> Any:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        import PIL.Image

        clear = image.convert("RGBA")
        page = PIL.Image.new("RGBA", clear.size, "white")
        page.alpha_composite(clear)
        return page.convert("RGB")
    return image.convert("RGB") if image.mode != "RGB" else image.copy()


def within_turn(results: tuple[ToolResult, ...]) -> tuple[ToolResult, ...]:
    """The results of one turn: where their images take more together than those of one may, later ones lose theirs."""
    left, kept = MAX_BYTES, list[ToolResult]()
    for result in results:
        took = sum(len(image.base64) * 3 // 4 for image in result.images)
        if took > left:
            note = f"[its images are left out: those of a turn may take {MAX_BYTES // 1_000_000} MB together]"
            result = replace(result, images=(), text=f"{result.text}\n{note}" if result.text else note)
        else:
            left -= took
        kept.append(result)
    return tuple(kept)
