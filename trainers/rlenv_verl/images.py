"""Images between an episode and veRL: what its loop asks of the model's processor, and what it hands on.

veRL 0.9.1 computes pixels and positions after an episode from what an agent loop gives it: it turns all ids to text,
special tokens left out, and calls the processor with that text and `multi_modal_data["images"]`
(experimental/agent_loop/agent_loop.py, `_compute_multi_modal_inputs`); the k-th run of placeholders in the ids is the
k-th image. So ids and text may hold no placeholder that has no image behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from verl.utils.tokenizer import get_processor_token_id

from rlenv.errors import EpisodeError
from rlenv.tokens import ProcessorImages, TokenTrajectory

__all__ = ["STRAY", "check_places", "generation_fields", "has_stray_place", "image_template", "processor_images"]

STRAY: Final = "image_token"
"""Why an episode failed in which the policy wrote the placeholder of an image."""


def processor_images(processor: Any, kwargs: Mapping[str, Any]) -> ProcessorImages | None:
    """What the model's processor makes of images; None where there is none, or it takes no images.

    Args:
        kwargs: veRL's `data.mm_processor_kwargs`.
    """
    if processor is None or not getattr(processor, "image_token", None):
        return None
    return ProcessorImages(processor, kwargs=kwargs)


def image_template(processor: Any) -> str | None:
    """The processor's chat template, which writes images; a tokenizer's own may not. None where it has none."""
    template = getattr(processor, "chat_template", None)
    return template if isinstance(template, str) and template else None


def has_stray_place(ids: Sequence[int], *, images: ProcessorImages | None, tokenizer: Any) -> bool:
    """True where sampled ids hold a placeholder, or would as text.

    veRL's vLLM server never samples one; other servers may, and any policy can spell it.
    """
    if images is None:
        return False
    forbidden = {get_processor_token_id(images.processor, kind) for kind in ("image", "video")} - {None}
    if not forbidden.isdisjoint(ids):
        return True
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True)
    return any(word in text for word in images.reserved)


def check_places(tokens: TokenTrajectory, *, images: ProcessorImages | None, tokenizer: Any) -> None:
    """Passes where prompt and response have one run of placeholders for each image, in ids and as text.

    Raises:
        EpisodeError: they have not; such a sample would end veRL's whole batch (`reason` is "image_token").
    """
    if images is None:
        return
    place = get_processor_token_id(images.processor, "image")
    runs: list[int] = []
    for token in tokens.context_ids:  # as veRL does: a run becomes one placeholder
        if token != place or not runs or runs[-1] != place:
            runs.append(token)
    count = len(tokens.images)
    found = sum(token == place for token in runs)
    text: str = tokenizer.decode(runs, skip_special_tokens=True)
    in_text = count if tokenizer.decode([place], skip_special_tokens=True) else 0
    if found != count or text.count(images.place) != in_text or any(word in text for word in images.reserved[1:]):
        raise EpisodeError(
            f"{found} placeholders in the ids and {text.count(images.place)} in their text for {count} images;"
            f" expected {count} and {in_text}: a prompt or an action spells {images.place}",
            reason=STRAY,
        )


def generation_fields(images: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What veRL's server client takes beside the ids, whose placeholders stay expanded: its servers fold them."""
    if not images:
        return {}
    return {"image_data": list(images), **({"mm_processor_kwargs": dict(kwargs)} if kwargs else {})}
