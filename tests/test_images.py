from __future__ import annotations

import asyncio
import base64
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from rlenv.episodes.environment import load
from rlenv.images import UnreadableImage, bare_image, image_of, open_image
from rlenv.messages import Image, Message

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

SPEC = """
rlenv: 1
name: pictures
tasks:
  train:
    rows: [{file: dot.png, more: [dot.png, second.png]}]
prompt:
  user: What is this?
  images: ["{{ task.file }}", "{{ task.more }}"]
rewards:
  any: {kind: rule, rule: turn_count, max: 4}
"""


def picture(
    size: tuple[int, int] = (20, 10), colour: Any = "red", *, mode: str = "RGB", form: str = "PNG", **options: Any
) -> bytes:
    file = io.BytesIO()
    PIL.new(mode, size, colour).save(file, form, **options)
    return file.getvalue()


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "dot.png").write_bytes(picture())
    (tmp_path / "second.png").write_bytes(picture(colour="blue"))
    (tmp_path / "env.yaml").write_text(SPEC)
    return tmp_path / "env.yaml"


def prompt_of(path: Path) -> tuple[tuple[Message, ...], Any]:
    async def open_one() -> tuple[tuple[Message, ...], Any]:
        async with load(path).start() as episode:
            return episode.messages, episode.failure

    return asyncio.run(open_one())


def test_a_prompt_has_the_images_that_its_templates_give_before_its_text(spec: Path) -> None:
    (message,), failure = prompt_of(spec)
    assert failure is None
    assert [base64.b64decode(image.base64) for image in message.images] == [
        picture(),
        picture(),
        picture(colour="blue"),
    ]
    assert [part["type"] for part in message.as_dict()["content"]] == ["image_url"] * 3 + ["text"]


def test_a_tool_says_what_it_shows_before_it_shows_it() -> None:
    message = Message("tool", "page 1", images=(Image.of(picture()),))
    assert [part["type"] for part in message.as_dict()["content"]] == ["text", "image_url"]


def test_validation_names_the_row_whose_image_is_missing_and_the_nearest_file(spec: Path) -> None:
    assert validate([spec]).faults == ()
    spec.write_text(SPEC.replace("[dot.png, second.png]", "[dot.png, sekond.png]"))
    (fault,) = validate([spec]).faults
    assert fault.path == "prompt.images.1"
    assert "'sekond.png' is no image (row 1 of split 'train')" in fault.message
    assert fault.hint == "did you mean 'second.png'?"


def test_a_prompt_whose_image_is_gone_makes_the_episode_invalid(spec: Path) -> None:
    (spec.parent / "second.png").unlink()
    _, failure = prompt_of(spec)
    assert failure.reason == "image"
    assert "prompt.images.1" in failure.message


@pytest.mark.parametrize("value", ["no url", 3, None, {"mime": "image/png"}, "data:image/png;base64,"])
def test_what_a_model_wrote_names_no_file(value: Any) -> None:
    with pytest.raises(UnreadableImage, match="data URL"):
        image_of(value, file=None)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_common_formats_are_read_as_upright_rgb(form: str) -> None:
    opened = open_image(Image.of(picture(form=form), "image/whatever"))
    assert (opened.mode, opened.size) == ("RGB", (20, 10))
    assert opened.getpixel((5, 5))[0] > 240


def test_transparent_parts_are_white_and_turned_photos_upright() -> None:
    opened = open_image(Image.of(picture(colour=(0, 0, 0, 0), mode="RGBA")))
    assert opened.getpixel((3, 3)) == (255, 255, 255)
    exif = PIL.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    assert open_image(Image.of(picture(form="JPEG", exif=exif))).size == (10, 20)


BROKEN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"<html>404</html>",
    "cut": lambda: picture((300, 300), form="PNG")[:200],
    "cut jpeg": lambda: picture((300, 300), form="JPEG")[:400],
    "header only": lambda: picture()[:30],
    "bitmap": lambda: picture(form="BMP"),
    "tiff": lambda: picture(form="TIFF"),
    "icon": lambda: picture((32, 32), form="ICO"),
    "postscript": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_broken_bytes_are_an_error_that_says_so(name: str) -> None:
    with pytest.raises(UnreadableImage):
        open_image(Image.of(BROKEN[name]()))


def test_garbled_bytes_never_raise_anything_else() -> None:
    whole = bytearray(picture((40, 40), form="PNG"))
    for place in range(0, len(whole), 3):
        garbled = bytes(whole[:place]) + bytes((whole[place] ^ 0xFF,)) + bytes(whole[place + 1 :])
        try:
            open_image(Image.of(garbled))
        except UnreadableImage:
            continue


@pytest.mark.slow
def test_a_huge_image_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(UnreadableImage, match="9000 × 9000 pixels"):
        open_image(Image.of(picture((9_000, 9_000), colour=0, mode="1")))
    with pytest.raises(UnreadableImage, match="20000 × 20000 pixels"):
        open_image(Image.of(picture((20_000, 20_000), colour=0, mode="1")))
    with pytest.raises(UnreadableImage, match="base64"):
        open_image(Image("image/png", "not base64!"))


# Files of pictures without the rest: what they say of their size is what a decoder will take memory for

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
