"""Tiny multimodal processors made on the spot: their tokenizer, their chat template, and pictures to show them.

The video processors of transformers need torchvision; processors for images alone do without.
"""

from __future__ import annotations

import gzip
import io
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rlenv.messages import Image, Message
from tests.support import data

pytest.importorskip("PIL.Image", reason="Pillow is not installed")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="the verl extra is not installed")
    import PIL.Image
    import tokenizers

SPECIAL = "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>".split()
ADDED = "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think>".split()
WORDS = "the page shows a chart of rain in May and June: 12, 34 and 567 mm; zoom in on it, then answer with a number "
# In the manner of Qwen3-VL's: content is a text, or parts of text and images, for users and tools alike.
TEMPLATE = """
{%- macro shown(content) %}
    {%- if content is string %}{{- content }}
    {%- else %}
        {%- for part in content %}
            {%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}{{- part.text }}{%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + shown(message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + shown(message.content) + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + shown(message.content) + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@cache
def tokenizer_json(*, real: bool = False) -> str:
    """A byte-level tokenizer with Qwen's control tokens: a small one, or Qwen3's own where it is there."""
    if real:
        with gzip.open(data.find("tokenizers/qwen3/tokenizer.json.gz"), "rt", encoding="utf-8") as file:
            return file.read()
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([WORDS, "\n\n\n<|image_pad|>user assistant"], trainer)
    made.add_special_tokens(SPECIAL)
    made.add_tokens(ADDED)
    return str(made.to_str())


def tokenizer(*, real: bool = False) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer_json(real=real)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


def _image_only(family: str) -> type[Any]:
    base: type[Any] = getattr(transformers, family)

    def init(self: Any, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        self.video_start_id = self.video_end_id = -1
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    return type(family, (base,), {"__init__": init})


FAMILIES = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor", "Glm4vProcessor")


def processor(family: str = "Qwen2VLProcessor", *, real: bool = False, max_pixels: int = 28 * 28 * 64) -> Any:
    """A processor of `family` for images alone; a patch is 14 or 16 pixels wide, four make a token."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if family == "Glm4vProcessor":
            from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

            images: Any = Glm4vImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": max_pixels})
        else:
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

            patch = 16 if family == "Qwen3VLProcessor" else 14
            images = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=max_pixels, patch_size=patch)
        return _image_only(family)(images, tokenizer(real=real), chat_template=TEMPLATE)


def picture(width: int = 60, height: int = 40, colour: Any = "red") -> Image:
    file = io.BytesIO()
    PIL.Image.new("RGB", (width, height), colour).save(file, "PNG")
    return Image.of(file.getvalue())


def rendered_ids(
    made: Any,
    messages: Sequence[Message],
    images: Sequence[Any],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    generate: bool = False,
) -> list[int]:
    """What the processor itself makes of a whole conversation."""
    conversation = []
    for message in messages:
        one = json.loads(json.dumps(message.as_dict()))
        if message.images:
            one["content"] = message.parts([{"type": "image"}] * len(message.images))
        conversation.append(one)
    text = made.apply_chat_template(
        conversation, tools=list(tools) or None, tokenize=False, add_generation_prompt=generate
    )
    ids: list[int] = made(text=[text], images=list(images) or None)["input_ids"][0]
    return list(ids)


@cache
def model_parts(family: str) -> tuple[Any, Any]:
    """A tiny model of random weights, and its processor with what veRL binds to one (verl.utils.tokenizer)."""
    import types

    import torch

    made = processor(family)
    token = made.tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(made.tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4},
    }
    vision = {
        "Qwen2VLProcessor": {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
        "Qwen2_5_VLProcessor": {
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
        },
        "Qwen3VLProcessor": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
    }[family]
    name = family.removesuffix("Processor")
    config = getattr(transformers, f"{name}Config")(
        text_config=text | ({"head_dim": 16} if name == "Qwen3VL" else {}),
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).float().eval()
    inner = getattr(transformers, f"{name}Model")
    made.config = config
    for method in ("get_rope_index", "get_vision_position_ids"):
        if hasattr(inner, method):
            setattr(made, method, types.MethodType(getattr(inner, method), made))
    return model, made


_PROCESSOR = '''"""A processor for images alone: the video processors of transformers need torchvision."""

import transformers


class {family}(transformers.{family}):
    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
'''


def save_model(folder: Path, family: str = "Qwen3VLProcessor", *, brings_code: bool = True) -> None:
    """A model's folder as veRL loads one, with `trust_remote_code` for the processor.

    Without code in the folder it names no class of a processor: one that is registered for the model's configuration
    is taken.
    """
    model, made = model_parts(family)
    end, pad = made.tokenizer.eos_token_id, made.tokenizer.pad_token_id
    for config in (model.config, model.config.get_text_config(), model.generation_config):
        config.eos_token_id, config.pad_token_id = end, pad
    saved = processor(family)
    saved.tokenizer.chat_template = TEMPLATE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
        saved.tokenizer.save_pretrained(folder)
        saved.save_pretrained(folder)
    file = folder / "processor_config.json"
    entries = json.loads(file.read_text(encoding="utf-8"))
    if not brings_code:
        for place in (file, folder / "tokenizer_config.json"):
            held = json.loads(place.read_text(encoding="utf-8"))
            held.pop("processor_class", None)
            place.write_text(json.dumps(held), encoding="utf-8")
        return
    (folder / "processing_images.py").write_text(_PROCESSOR.format(family=family), encoding="utf-8")
    entries["auto_map"] = {"AutoProcessor": f"processing_images.{family}"}
    file.write_text(json.dumps(entries), encoding="utf-8")
