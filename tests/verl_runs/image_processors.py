"""A processor for images alone, which every process of a run knows by an import and no code in the model's folder.

The video processors of transformers need torchvision, which a CPU build of torch has none of on the package index;
a family's own processor cannot be loaded without one. veRL knows families by the name of the processor's class.
"""

from __future__ import annotations

from typing import Any

import transformers

__all__ = ["Qwen2VLProcessor"]


class Qwen2VLProcessor(transformers.Qwen2VLProcessor):
    """transformers' own, without the video processor."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **_: Any) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


# Found by the model's configuration where the folder names no class.
transformers.AutoProcessor.register(transformers.Qwen2VLConfig, Qwen2VLProcessor, exist_ok=True)
