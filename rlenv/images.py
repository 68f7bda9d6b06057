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
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rlenv._chat import as_image
from rlenv.errors import MissingExtra
from rlenv.messages import Image

__all__ = ["MAX_BYTES", "MAX_PIXELS", "UnreadableImage", "image_of", "listed", "mime_of", "open_image"]

MAX_BYTES: Final = 20_000_000
"""A larger file or base64 text is not read."""
MAX_PIXELS: Final = 64_000_000
"""Width times height; a larger image is not decoded. It would take 192 MB, and every processor makes it small again."""
# Formats whose decoders are Pillow's own and run no other program (EPS would start Ghostscript).
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


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


def open_image(image: Image, *, max_pixels: int = MAX_PIXELS) -> Any:
    """The decoded image as a `PIL.Image.Image` of mode RGB, upright, its transparent parts on white.

    Of an animation it is the first picture.

    Raises:
        UnreadableImage: the bytes are no PNG, JPEG, WebP, GIF or BMP, are cut off, or hold more than `max_pixels`.
        MissingExtra: Pillow is not installed.
    """
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise MissingExtra("images for a policy's processor", extra="images") from error
    if len(image.base64) > MAX_BYTES * 4 // 3 + 4:
        raise UnreadableImage(f"the image has more than {MAX_BYTES} bytes")
    try:
        data = base64.b64decode(image.base64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreadableImage("the image is not base64") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a decoder warns of odd metadata and of sizes, which are checked below
            with PIL.Image.open(io.BytesIO(data), formats=_FORMATS) as opened:
                width, height = opened.size
                if width * height > max_pixels:
                    raise UnreadableImage(
                        f"the image has {width} × {height} pixels; expected at most {max_pixels} in all"
                    )
                opened.load()
                upright = PIL.ImageOps.exif_transpose(opened)
                return _on_white(upright)
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
    ) as error:
        raise UnreadableImage("the bytes are no image that can be read (PNG, JPEG, WebP, GIF or BMP)") from error
    except PIL.Image.DecompressionBombError as error:
        raise UnreadableImage(f"the image is too large; expected at most {max_pixels} pixels") from error


def _on_white(image: Any) -> Any:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        import PIL.Image

        clear = image.convert("RGBA")
        page = PIL.Image.new("RGBA", clear.size, "white")
        page.alpha_composite(clear)
        return page.convert("RGB")
    return image.convert("RGB") if image.mode != "RGB" else image.copy()
