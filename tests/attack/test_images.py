"""What a tool's picture costs is bounded before it is decoded, whatever its file says."""

from __future__ import annotations

import asyncio
import base64
import io
import random
import resource
import struct
import time
import zlib
from typing import Any

import pytest

from rlenv.calls.executor import Executor
from rlenv.images import MAX_BYTES, MAX_IMAGES, UnreadableImage, bare_image, open_image, within_limits
from rlenv.language.spec import CallsSpec
from rlenv.messages import Image, ToolCall
from rlenv.testing.tools import call, context, fake_tool
from rlenv.tools.base import Tool, ToolOutput

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, *, depth: int = 8, colour: int = 0, extra: bytes = b"", rows: int = 1) -> bytes:
    bits = {0: 1, 2: 3, 6: 4}[colour] * depth
    body = zlib.compress((b"\0" + b"\0" * ((width * bits + 7) // 8)) * rows)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def saved(form: str, size: tuple[int, int] = (40, 30), mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    PIL.new(mode, size, 1 if mode == "1" else "red").save(file, form, **options)
    return file.getvalue()


def exif(entries: int = 1, *, orientation: int = 6) -> bytes:
    body = struct.pack("<HHII", 0x0112, 3, 1, orientation)
    body += b"".join(struct.pack("<HHII", 0x1000 + n, 1, 1_000_000, 8) for n in range(entries - 1))
    return b"II*\0" + struct.pack("<IH", 8, entries) + body + b"\0" * 4


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


HUGE = {
    "many pixels": lambda: png(50_000, 50_000),
    "a little too many": lambda: png(4_001, 4_000, colour=2),
    "one row": lambda: png(64_000_000, 1, depth=1),
    "one column": lambda: png(1, 64_000_000, depth=1),
    "a narrow one": lambda: png(900, 16_385, depth=1),
    "jpeg": lambda: saved("JPEG").replace(struct.pack(">HH", 30, 40), struct.pack(">HH", 65_000, 65_000)),
    "webp": lambda: saved("WEBP", (5_000, 4_000)),
    "gif": lambda: saved("GIF", mode="P").replace(struct.pack("<HH", 40, 30), struct.pack("<HH", 65_000, 65_000)),
}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", sorted(HUGE))
def test_a_picture_too_large_is_refused_without_memory_for_it(name: str) -> None:
    image = Image.of(HUGE[name]())
    before, began = peak_mb(), time.process_time()
    with pytest.raises(UnreadableImage, match="pixels; expected at most 16000000 in all, and 16384 in a row"):
        open_image(image)
    assert peak_mb() - before < 60
    assert time.process_time() - began < 1


ODD = ("BMP", "TIFF", "ICO", "ICNS", "PPM", "TGA", "PCX", "DDS", "PDF", "EPS")


@pytest.mark.parametrize("form", ODD)
def test_no_decoder_but_four_ever_sees_a_file(form: str) -> None:
    with pytest.raises(UnreadableImage, match="PNG, JPEG, WebP or GIF"):
        open_image(Image.of(saved(form, (32, 32))))


def test_what_is_no_picture_is_cut_away_before_a_decoder_sees_it() -> None:
    bomb = b"k\0\0" + zlib.compress(bytes(50_000_000))
    extra = chunk(b"zTXt", bomb) + chunk(b"iCCP", bomb) + chunk(b"eXIf", exif(3000)) + chunk(b"acTL", bytes(8))
    cases = {
        "PNG": png(40, 30, colour=2, rows=30, extra=extra),
        "JPEG": saved("JPEG", exif=b"Exif\0\0" + exif(3000), icc_profile=bytes(200_000), comment=b"x" * 60_000),
        "WEBP": saved("WEBP", exif=exif(3000), icc_profile=bytes(200_000), xmp=b"x" * 60_000),
    }
    for form, data in cases.items():
        bare = bare_image(data)
        assert bare is not None
        assert (bare.form, bare.size, bare.orientation) == (form, (40, 30), 6)
        assert len(bare.data) < 2_000
        assert open_image(Image.of(data)).size == (30, 40)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_their_decoder_would(orientation: int) -> None:
    from PIL import ImageOps

    picture = PIL.new("RGB", (3, 2))
    picture.putdata([(n * 40, 255 - n * 40, n) for n in range(6)])
    made = PIL.Exif()
    made[0x0112] = orientation
    file = io.BytesIO()
    picture.save(file, "PNG", exif=made)
    turned = ImageOps.exif_transpose(PIL.open(io.BytesIO(file.getvalue())))
    assert open_image(Image.of(file.getvalue())).tobytes() == turned.convert("RGB").tobytes()


def test_of_what_moves_the_first_picture_is_shown() -> None:
    frames = [PIL.new("RGB", (20, 20), colour) for colour in ("red", "blue", "green")]
    for form in ("GIF", "WEBP", "PNG"):
        file = io.BytesIO()
        frames[0].save(file, form, save_all=True, append_images=frames[1:], duration=50)
        red, green, blue = open_image(Image.of(file.getvalue())).getpixel((5, 5))
        assert red > 240
        assert max(green, blue) < 15


def test_a_photo_of_a_thousand_passes_is_refused() -> None:
    data = saved("JPEG", progressive=True)
    assert open_image(Image.of(data)).size == (40, 30)
    at = data.rindex(b"\xff\xda")
    with pytest.raises(UnreadableImage):
        open_image(Image.of(data[:-2] + data[at:-2] * 1_000 + b"\xff\xd9"))


def test_cut_and_garbled_files_are_notes_and_never_anything_else() -> None:
    dice = random.Random(4)
    for form in ("PNG", "JPEG", "WEBP", "GIF"):
        whole = saved(form, mode="P" if form == "GIF" else "RGB")
        for _ in range(150):
            data = bytearray(whole[: dice.randrange(len(whole) + 1)] if dice.random() < 0.5 else whole)
            for _ in range(dice.randrange(4)):
                if data:
                    data[dice.randrange(len(data))] = dice.randrange(256)
            try:
                width, height = open_image(Image.of(bytes(data))).size
                assert width * height <= 16_000_000
            except UnreadableImage:
                continue


def test_a_result_keeps_eight_images_and_says_how_many_it_leaves_out() -> None:
    picture = Image.of(saved("PNG"))

    async def show(arguments: Any, context: Any) -> ToolOutput:
        return ToolOutput("here", images=(picture,) * arguments["count"])

    tool = Tool(
        name="show",
        description="d",
        parameters={"type": "object", "properties": {"count": {"type": "integer"}}},
        run=show,
        mode="async",
    )
    few = asyncio.run(call(tool, {"count": MAX_IMAGES}))
    assert (few.text, len(few.images)) == ("here", MAX_IMAGES)
    many = asyncio.run(call(tool, {"count": 500}))
    assert len(many.images) == MAX_IMAGES
    assert "[492 of 500 images are left out: at most 8" in many.text
    large = Image("image/png", base64.b64encode(bytes(9_000_000)).decode())
    kept, note = within_limits([large] * 4)
    assert len(kept) == 2
    assert "2 of 4 images" in note


@pytest.mark.parametrize("mutates", [False, True])
@pytest.mark.parametrize(("size", "kept"), [(100, 16), (5_000_000, 4), (15_000_000, 1)])
def test_all_calls_of_a_turn_show_no_more_bytes_of_images_than_one_may(size: int, kept: int, mutates: bool) -> None:
    image = Image("image/png", "A" * (size * 4 // 3))
    tool = fake_tool("look", lambda _: ToolOutput("here", images=(image,)), mutates=mutates)

    async def work() -> list[tuple[int, str]]:
        executor = Executor({"look": tool}, calls=CallsSpec())
        try:
            made = await executor.run([ToolCall("look", {})] * 16, context())
            again = await executor.run([ToolCall("look", {})], context())
        finally:
            executor.close()
        return [(len(one.images), one.text) for one in (*made, *again)]

    *made, again = asyncio.run(work())
    note = f"here\n[its images are left out: those of a turn may take {MAX_BYTES // 1_000_000} MB together]"
    assert made == [(1, "here")] * kept + [(0, note)] * (16 - kept)
    assert again == (1, "here")
