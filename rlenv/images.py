"""Images: where a spec or a tool may take one from, and what a model's processor is given of it.

Nothing here trusts an image: its bytes are read by the decoders of a few common formats only, its size is looked at
before it is decoded, and what cannot be read is an error that says why.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlenv._base.paths import RefusedPath, finder
from rlenv._base.pictures import bare_image
from rlenv.endpoints.wire import as_image
from rlenv.errors import MissingExtra
from rlenv.messages import Image

__all__ = [
    "MAX_BYTES",
    "MAX_IMAGES",
    "MAX_PIXELS",
    "MAX_SIDE",
    "RefusedPath",
    "UnreadableImage",
    "finder",
    "image_of",
    "listed",
    "mime_of",
    "open_image",
    "within_limits",
]

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
_TURNS: Final = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


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
    try:
        return Image.of(path.read_bytes(), mime)
    except OSError as error:
        raise UnreadableImage("the image is not there") from error


def mime_of(path: Path) -> str:
    """The media type of an image's file, by its name; the file is looked at and not read.

    Raises:
        UnreadableImage: the file is missing, too large or of no image's name.
    """
    mime = mimetypes.guess_type(path.name)[0]
    try:
        state = path.stat()
    except (OSError, ValueError) as error:
        raise UnreadableImage("the image is not there") from error
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
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtra("images for a policy's processor", extra="images") from error
    if len(image.base64) > MAX_BYTES * 4 // 3 + 4:
        raise UnreadableImage(f"the image has more than {MAX_BYTES} bytes")
    try:
        data = base64.b64decode(image.base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreadableImage("the image is not base64") from error
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
