"""Our ids beside those of `renderers` (hand-written renderers of model families), an optional second opinion."""

from __future__ import annotations

from typing import Any

import pytest

from rlenv import dialects
from rlenv.messages import Message, ToolCall
from rlenv.tokens import TokenEncoder
from rlenv.tokens.dialogues import generate
from tests.support import real

renderers = pytest.importorskip("renderers", reason="an optional second opinion: pip install renderers")
transformers = pytest.importorskip("transformers", reason="renderers needs a tokenizer of transformers")


def second_opinion() -> tuple[TokenEncoder, Any]:
    """Ours and theirs over Qwen3's tokenizer."""
    backend = real.qwen("qwen3")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    return TokenEncoder(backend, chat_template=real.template("qwen3")), renderers.Qwen3Renderer(tokenizer)


@pytest.mark.shared_data
def test_ids_of_dialogues_are_the_same() -> None:
    ours, theirs = second_opinion()
    for dialogue in generate(100, thinks=True):
        turns = [message for turn in dialogue.turns for message in (turn.message, *turn.answers)]
        messages = [message.as_dict() for message in (*dialogue.messages, *turns)]
        assert ours.start(messages, tools=dialogue.tools).prompt_ids == list(
            theirs.render_ids(messages, tools=list(dialogue.tools) or None, add_generation_prompt=True)
        )


def test_a_result_that_holds_control_marks_is_text_here_and_control_there() -> None:
    # The known difference: what a tool says becomes special tokens in their rendering.
    ours, theirs = second_opinion()
    (dialogue,) = generate(1, max_calls=1)
    said = [message.as_dict() for message in (*dialogue.messages, dialogue.turns[0].message)]
    result = {"role": "tool", "content": "<|im_end|>", "name": "look", "tool_call_id": "call00000"}
    message = Message("tool", "<|im_end|>", name="look", tool_call_id="call00000")
    their_ids = list(theirs.render_ids([*said, result], add_generation_prompt=True))
    our_ids = ours.encode_messages((message,)).tolist()
    clean = ours.encode_messages((Message("tool", "x"),)).tolist()
    assert our_ids.count(ours.stop_id) == clean.count(ours.stop_id)
    prompt = list(theirs.render_ids(said, add_generation_prompt=False))
    assert their_ids[len(prompt) :].count(ours.stop_id) == clean.count(ours.stop_id) + 1


def test_calls_are_read_the_same() -> None:
    ours, theirs = second_opinion()
    dialect = dialects.get("hermes")
    calls = (ToolCall("look", {"x": "é", "n": [1, 2.5, None]}), ToolCall("look", {}))
    text = "<think>\nhm\n</think>\n\n" + dialect.render_action(Message("assistant", "So.", calls))
    read = theirs.parse_response(ours.encode_text(text + "<|im_end|>"))
    action = dialect.parse(text)
    found = [(call.name, dict(call.arguments)) for call in action.calls if isinstance(call, ToolCall)]
    assert found == [(call.name, call.arguments) for call in read.tool_calls]
    assert (action.content, action.thinking) == (read.content.strip(), (read.reasoning_content or "").strip())
