"""What the families' own chat templates write is read back strictly by their rows."""

from __future__ import annotations

import random

import pytest

from rlenv import dialects
from rlenv.messages import ToolCall
from rlenv.testing.dialects import check_reading
from rlenv.tokens.vocabulary import ChatTemplate
from tests.support import real
from tests.support.arguments import KEYS, PLAIN, TOOLS, value, written

# Templates whose calls are JSON, a name and JSON, or whole Python. Those of Llama 3.2 and ToolACE (Python) write texts
# without quotes, and Gemma 3's leaves out the commas: no reading can tell their values apart.
ROWS = {
    "hermes": ("hermes",),
    "qwen2_5": ("qwen2_5", "hermes"),
    "qwen3": ("hermes",),
    "granite_20b_fc": ("granite-20b-fc",),
    "llama3.1_json": ("llama3_json",),
    "llama3.2_json": ("llama3_json",),
    "llama4_json": ("llama4_json", "llama3_json"),
    "xlam_llama": ("xlam",),
    "mistral": ("mistral_v3", "mistral"),
    "mistral_parallel": ("mistral_v3", "mistral"),
    "mistral3": ("mistral_v3", "mistral"),
    "deepseekr1": ("deepseek_v3",),
    "deepseekv3": ("deepseek_v3",),
    "deepseekv31": ("deepseek_v31",),
    "muse_glimmer": ("muse",),
}
CASES = [(family, row) for family, rows in ROWS.items() for row in rows]


@pytest.mark.shared_data
@pytest.mark.parametrize(("family", "row"), CASES)
def test_what_a_template_writes_is_read_strictly(family: str, row: str) -> None:
    source = real.template(family if family.startswith("qwen") else f"tool_chat_template_{family}")
    template = ChatTemplate(source, name=family, values={"bos_token": "<s>", "eos_token": "</s>"})
    rng = random.Random(f"{family} {row}")
    seen = 0
    for _ in range(25):
        many = rng.choice([1, 1, 2, 3])
        calls = [
            (
                rng.choice(["look", "get_it"]),
                {key: value(rng, key, PLAIN) for key in rng.sample(KEYS, rng.randint(0, 4))},
            )
            for _ in range(many)
        ]
        content = rng.choice(["", "I look."])
        text = written(template, calls, content)
        if text is None:
            calls = calls[:1]
            text = written(template, calls, content)
        assert text is not None
        action = check_reading(dialects.get(row), text, TOOLS)
        read = [(call.name, dict(call.arguments)) for call in action.calls if isinstance(call, ToolCall)]
        assert read == calls, text
        assert len(action.calls) == len(calls)
        assert action.content in ("", content), text
        seen += action.content == content
    assert seen
