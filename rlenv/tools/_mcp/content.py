"""What a server answers, as what a tool gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mcp_types as types
import orjson

from rlenv.errors import ToolFailed
from rlenv.messages import Image
from rlenv.tools.base import ToolOutput

__all__ = ["as_output"]

_NO_TEXT = "(no text)"


def as_output(name: str, result: types.CallToolResult) -> ToolOutput:
    """The text is every part that can be read, one below the other; images are kept; the value is what is structured.

    Raises:
        ToolFailed: the server says that the call failed; with its text.
    """
    text = "\n".join(_texts(result))
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
    for part in result.content:
        match part:
            case types.TextContent():
                yield part.text
            case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
                yield resource.text
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                if not _is_image(resource.mime_type):
                    yield f"[{resource.mime_type or 'binary'} resource {resource.uri}]"
            case types.ResourceLink():
                about = f": {part.description}" if part.description else ""
                yield f"[resource {part.name} at {part.uri}{about}]"
            case types.AudioContent():
                yield f"[{part.mime_type}]"


def _images(result: types.CallToolResult) -> Iterator[Image]:
    for part in result.content:
        match part:
            case types.ImageContent():
                yield Image(part.mime_type, part.data)
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                if _is_image(resource.mime_type):
                    yield Image(str(resource.mime_type), resource.blob)


def _is_image(mime: Any) -> bool:
    return isinstance(mime, str) and mime.startswith("image/")
