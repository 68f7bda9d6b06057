"""What a server answers, as what a tool gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import mcp_types as types
import orjson

from rlenv.errors import ToolFailed
from rlenv.messages import Image
from rlenv.secrets import redact, redact_ends
from rlenv.tools.base import ToolOutput

__all__ = ["as_output"]

_NO_TEXT = "(no text)"
_MAX_PARTS = 256
_MAX_CHARS = 262_144
_MAX_NAME = 2_000
_IMAGE = re.compile(r"image/[\w.+-]{1,60}")


def as_output(name: str, result: types.CallToolResult) -> ToolOutput:
    """The text is every part that can be read, one below the other; images are kept; the value is what is structured.

    Of a result no more than 256 parts are read, with 262,144 characters; the text says what is left
    out.

    Raises:
        ToolFailed: the server says that the call failed; with its text.
    """
    text = "\n".join(_texts(result))
    if len(text) > _MAX_CHARS:
        text = redact_ends(text, _MAX_CHARS)
    if result.is_error:
        raise ToolFailed(text or f"the tool {name} failed")
    value = result.structured_content
    if not text and value is not None:
        text = orjson.dumps(value).decode()
    images = tuple(_images(result))
    if not text:
        text = f"({len(images)} image{'s' if len(images) != 1 else ''})" if images else _NO_TEXT
    return ToolOutput(text, value, images)


def _texts(result: types.CallToolResult) -> Iterator[str]:
    for part in result.content[:_MAX_PARTS]:
        match part:
            case types.TextContent():
                yield part.text
            case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
                yield resource.text
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                if not _is_image(resource.mime_type):
                    yield f"[{_name(resource.mime_type) or 'binary'} resource {_name(resource.uri)}]"
            case types.ResourceLink():
                about = f": {_name(part.description)}" if part.description else ""
                yield f"[resource {_name(part.name)} at {_name(part.uri)}{about}]"
            case types.ImageContent() if not _is_image(part.mime_type):
                yield f"[{_name(part.mime_type)}]"
            case types.AudioContent():
                yield f"[{_name(part.mime_type)}]"
    if len(result.content) > _MAX_PARTS:
        yield f"[{len(result.content) - _MAX_PARTS} more parts are left out]"


def _name(said: object) -> str:
    return redact(str(said or ""))[:_MAX_NAME]


def _images(result: types.CallToolResult) -> Iterator[Image]:
    for part in result.content[:_MAX_PARTS]:
        match part:
            case types.ImageContent():
                if _is_image(part.mime_type):
                    yield Image(part.mime_type, part.data)
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                if _is_image(resource.mime_type):
                    yield Image(str(resource.mime_type), resource.blob)


def _is_image(mime: Any) -> bool:
    return isinstance(mime, str) and _IMAGE.fullmatch(mime) is not None
