"""Images as tokens: what a multimodal processor writes in the place of each, found by asking the processor itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rlenv._base.bounded import drop_oldest
from rlenv.errors import EpisodeError, UnsupportedTemplate
from rlenv.images import MAX_PIXELS, UnreadableImage, open_image
from rlenv.messages import Image, Message

_KEPT: Final = 4096  # sizes of images whose tokens are remembered


@dataclass(frozen=True, slots=True)
class Shown:
    """Messages as a policy sees them: `images` are decoded, one for each that the messages hold, in order.

    `places` is the text that the processor writes for each of `images`.
    """

    messages: tuple[Message, ...]
    images: tuple[Any, ...] = ()
    places: tuple[str, ...] = ()


class ProcessorImages:
    """Images as a processor of transformers encodes them; one for each `TokenEncoder`.

    A chat template writes one placeholder token for an image (`<|image_pad|>`), and the processor puts as many there as
    the image has patches. That text is asked of the processor, once for each size of image.

    Args:
        processor: has `image_token`, `tokenizer` and is called with `text`, `images`; as those of Qwen2-VL, Qwen2.5-VL,
            Qwen3-VL and GLM-4V.
        kwargs: what it is called with beside them, such as `min_pixels` and `max_pixels`.
        max_pixels: larger images are not decoded; smaller ones are resized as the processor does.

    Raises:
        UnsupportedTemplate: the processor names no placeholder that is one token.
    """

    def __init__(
        self, processor: Any, *, kwargs: Mapping[str, Any] | None = None, max_pixels: int = MAX_PIXELS
    ) -> None:
        self.processor = processor
        self.max_pixels = max_pixels
        self._kwargs = dict(kwargs or {})
        name = type(processor).__name__
        place = getattr(processor, "image_token", None)
        if not isinstance(place, str) or not place:
            raise UnsupportedTemplate(f"the processor {name} names no image_token; its images cannot be placed")
        self.place = place
        """The text of the placeholder token."""
        others = (getattr(processor, f"{kind}_token", None) for kind in ("video", "audio"))
        self.reserved = (place, *(text for text in others if isinstance(text, str) and text))
        """Texts that no content may hold: whoever tokenizes a text anew would find an image, a video or a sound."""
        self._texts: dict[tuple[int, int], str] = {}

    def open(self, image: Image) -> Any:
        """The decoded image.

        Raises:
            UnreadableImage: it cannot be read, is too large, or the processor does not take its form.
        """
        opened = open_image(image, max_pixels=self.max_pixels)
        self.text_of(opened)
        return opened

    def text_of(self, opened: Any) -> str:
        """The text that the processor writes for an image; it depends on the image's size alone.

        Raises:
            UnreadableImage: the processor refuses its form, as Qwen's do one 200 times as wide as high.
        """
        text = self._texts.get(opened.size)
        if text is None:
            text = self._ask(opened)
            self._texts[opened.size] = text
            drop_oldest(self._texts, most=_KEPT)
        return text

    def _ask(self, opened: Any) -> str:
        try:
            # With a leading letter, since some processors strip the text.
            made = self.processor(text=[f"x{self.place}"], images=[opened], **self._kwargs)
        except (ValueError, TypeError, ZeroDivisionError) as error:
            width, height = opened.size
            raise UnreadableImage(f"an image of {width} × {height} pixels cannot be shown: {error}") from error
        ids = made["input_ids"][0]
        ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        tokenizer = self.processor.tokenizer
        before = len(tokenizer("x", add_special_tokens=False)["input_ids"])
        text: str = tokenizer.decode(ids[before:], skip_special_tokens=False)
        return text

    def plain(self, text: str) -> str:
        """`text` with a space in every word that is reserved, so that it stays text wherever it is tokenized."""
        for word in self.reserved:
            if word in text:
                text = text.replace(word, f"{word[0]} {word[1:]}")
        return text

    def show(self, messages: Sequence[Message]) -> Shown:
        """Messages of the environment with their images opened; one that cannot be is a note in its message.

        Contents are plain (see `plain`).
        """
        shown: list[Message] = []
        opened: list[Any] = []
        for message in messages:
            notes: list[str] = []
            kept: list[Image] = []
            for number, image in enumerate(message.images, 1):
                try:
                    opened.append(self.open(image))
                    kept.append(image)
                except UnreadableImage as error:
                    notes.append(f"[image {number} is not shown: {error}]")
            content = "\n".join((*((message.content,) if message.content else ()), *notes))
            shown.append(replace(message, content=self.plain(content), images=tuple(kept)))
        return Shown(tuple(shown), tuple(opened), tuple(map(self.text_of, opened)))

    def show_prompt(self, messages: Sequence[Message | Mapping[str, Any]]) -> Shown:
        """Messages of a prompt with their images opened.

        Raises:
            EpisodeError: an image cannot be read (`reason` is "image").
        """
        opened: list[Any] = []
        for index, message in enumerate(messages):
            for number, image in enumerate(message.images if isinstance(message, Message) else (), 1):
                try:
                    opened.append(self.open(image))
                except UnreadableImage as error:
                    raise EpisodeError(f"image {number} of message {index + 1}: {error}", reason="image") from error
        return Shown((), tuple(opened), tuple(map(self.text_of, opened)))


class NoImages:
    """Images for a policy that reads text alone: each is refused or left out.

    Args:
        name: how errors call its chat template.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def show(self, messages: Sequence[Message]) -> Shown:
        """Messages of the environment, with a note for the images of each: what a tool answers may end nobody's run."""
        return Shown(tuple(_told_of_images(message) if message.images else message for message in messages))

    def show_prompt(self, messages: Sequence[Message | Mapping[str, Any]]) -> Shown:
        """Messages of a prompt.

        Raises:
            UnsupportedTemplate: one of them has images.
        """
        for index, message in enumerate(messages):
            if isinstance(message, Message) and message.images:
                who = f"{message.role} {message.name}" if message.name else message.role
                raise UnsupportedTemplate(
                    f"message {index + 1} ({who}) has {len(message.images)} images, and the policy of chat template"
                    f" {self._name} reads text alone; leave out prompt.images, or train a model whose processor"
                    " takes images (TokenEncoder(images=ProcessorImages(processor)))"
                )
        return Shown(())


def _told_of_images(message: Message) -> Message:
    count = len(message.images)
    note = "1 image is not shown: it" if count == 1 else f"{count} images are not shown: they"
    note = f"[{note} cannot be seen here]"
    return replace(message, content=f"{message.content}\n{note}" if message.content else note, images=())


def as_template_reads(message: Message | Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates take it: images as parts of type image, thinking as reasoning_content."""
    if not isinstance(message, Message):
        return dict(message)
    out = (replace(message, images=()) if message.images else message).as_dict()
    if message.images:
        out["content"] = message.parts([{"type": "image"}] * len(message.images))
    if message.thinking:
        out["reasoning_content"] = message.thinking
    return out


def fill_places(text: str, *, place: str, places: Sequence[str]) -> str:
    """`text`, a prompt's, with its placeholders replaced in order.

    Raises:
        EpisodeError: it has more or fewer than there are images (`reason` is "image").
    """
    pieces = text.split(place)
    if len(pieces) != len(places) + 1:
        raise EpisodeError(
            f"the prompt has {len(pieces) - 1} times {place} for {len(places)} images; expected one for each: a text"
            " may not hold it, and the chat template must write it",
            reason="image",
        )
    return "".join(piece + filled for piece, filled in zip(pieces, (*places, ""), strict=True))
