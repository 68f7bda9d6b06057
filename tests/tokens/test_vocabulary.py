"""Added tokens that write plain text stay what they are in contents; all others are control tokens."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from rlenv.errors import UnsupportedTemplate, UsageError
from rlenv.messages import Message, Observation
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import load_tokenizer
from rlenv.tokens.vocabulary import ChatTemplate, Keep, Vocabulary, _make_sandbox, encode, knows_no_text
from tests.support import data


def spaced() -> Tokenizer:
    """A tokenizer that spells a space `▁`, with white space of several signs among its added tokens, as Gemma 3."""
    signs = [*map(chr, range(32, 127)), "\n", "▁"]
    made = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(signs)}, merges=[]))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    made.add_tokens([AddedToken(text, special=False, normalized=True) for text in ("▁▁", "▁▁▁▁", "\n\n")])
    made.add_tokens([AddedToken("<b>", special=False, normalized=False)])
    made.add_special_tokens(["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"])
    return made


def test_white_space_among_added_tokens_is_one_id_in_contents_as_in_the_whole() -> None:
    whole = spaced()
    vocabulary = Vocabulary(whole)
    for text in ("a  b", "    x\n\ny", " ", "\n\n\n", "a   b    c"):
        assert encode(vocabulary.plain, text) == whole.encode(text, add_special_tokens=False).ids
    double = whole.token_to_id("▁▁")
    assert double in encode(vocabulary.plain, "a  b")
    assert double not in vocabulary.control_ids
    assert whole.token_to_id("<|im_end|>") not in encode(vocabulary.plain, "a <|im_end|>  b")
    assert whole.token_to_id("<b>") not in encode(vocabulary.plain, "<b>")
    assert vocabulary.leaks() == ()


def test_ids_of_contents_are_kept_for_the_last_texts_that_are_not_long() -> None:
    vocabulary = Vocabulary(spaced())
    texts = ["a" * 8_192, "a" * 8_193, "\ud800", *map(str, range(1_022))]
    for text in texts:
        assert vocabulary.ids(text).tolist() == encode(vocabulary.plain, text)
    kept = [vocabulary.ids(text) is vocabulary.ids(text) for text in texts]
    assert kept == [True, False, *[True] * 1_023]
    newest = vocabulary.ids("7")
    for number in range(1_100, 2_124):
        vocabulary.ids(str(number))
    assert vocabulary.ids("2123") is vocabulary.ids("2123")
    assert vocabulary.ids("7") is not newest


def test_a_prompt_that_is_kept_is_not_changed_by_what_follows_it() -> None:
    encoder = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)
    first, second = (encoder.start([Message("user", "How many?")]) for _ in range(2))
    prompt = second.prompt_ids
    for trajectory in (first, second):
        trajectory.add_sampled([5, encoder.stop_id])
        assert trajectory.add_observation(Observation((Message("user", "Why?"),)))
    assert first.context_ids == second.context_ids
    assert first.prompt_ids == prompt == encoder.start([Message("user", "How many?")]).prompt_ids


def test_results_with_white_space_pieces_are_the_templates_own_ids() -> None:
    encoder = TokenEncoder(spaced(), chat_template=CHAT_TEMPLATE)
    for result in ("a  b\n\n    c", "    ", "\n\n", "x\n\n\n\n  y  "):
        trajectory = encoder.start([Message("user", "Q  ?")])
        trajectory.add_sampled(encoder.encode_text("look<|im_end|>"))
        assert trajectory.add_observation(Observation((Message("tool", result),)))
        text = encoder.decode(trajectory.context_ids)
        assert result in text
        assert trajectory.context_ids == encoder.encode_text(text)


@pytest.mark.parametrize(
    ("config", "ends"),
    [
        ({"eos_token_id": [3, 1]}, (3, 1)),
        ({"eos_token_id": 2}, (2,)),
        ({"eos_token_id": None}, ()),
        ({}, ()),
        ([], ()),
    ],
)
def test_the_models_own_ends_are_read_beside_its_tokenizer(
    tmp_path: Path, config: object, ends: tuple[int, ...]
) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.end_ids == ends
    assert set(ends) <= set(TokenEncoder(loaded, chat_template=CHAT_TEMPLATE).stop_token_ids)


@pytest.mark.parametrize("text", ['{"eos_token_id": "x"}', '{"eos_token_id": [true]}', '{"eos_token_id": [-1]}', "{"])
def test_ends_that_cannot_be_read_are_said(tmp_path: Path, text: str) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="generation_config"):
        load_tokenizer(str(tmp_path))


# Contents cut by tokens

ENCODER = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)


def tokens(text: str) -> int:
    return len(ENCODER.encode_content(text))


@settings(max_examples=150, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.integers(1, 80),
    st.sampled_from(["head", "tail", "head_tail"]),
)
def test_a_cut_text_fits_and_holds_whole_characters(text: str, limit: int, keep: Keep) -> None:
    short = ENCODER.cut(max_tokens=limit, keep=keep)(text)
    assert tokens(short) <= limit
    if tokens(text) <= limit:
        assert short == text
    elif " characters left out …" in short:
        first, _, rest = short.partition("… ")
        left, _, last = rest.partition(" characters left out …")
        first, last = first.removesuffix("\n"), last.removeprefix("\n")
        assert text.startswith(first)
        assert text.endswith(last)
        assert len(first) + int(left) + len(last) == len(text)


@pytest.mark.parametrize(
    ("keep", "first", "last"), [("head", True, False), ("tail", False, True), ("head_tail", True, True)]
)
def test_the_part_that_is_asked_for_is_kept(keep: Keep, first: bool, last: bool) -> None:
    text = "BEGIN " + "世界 🎉 " * 200 + "END"
    short = ENCODER.cut(max_tokens=60, keep=keep)(text)
    assert short.startswith("BEGIN") is first
    assert short.endswith("END") is last
    assert "left out" in short


def test_a_limit_without_room_for_a_note_still_holds() -> None:
    for limit in range(1, 12):
        assert tokens(ENCODER.cut(max_tokens=limit)("the quick brown fox " * 20)) <= limit


def test_no_room_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        ENCODER.cut(max_tokens=0)


# Templates render as transformers renders them, and what cannot be exact is refused when it is bound

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "<b>é & 'q'</b>"}],
    [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}],
    [
        {"role": "user", "content": "Q"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "abcdefgh1", "type": "function", "function": {"name": "look", "arguments": {"x": "é<>"}}}
            ],
        },
        {"role": "tool", "content": "R", "name": "look", "tool_call_id": "abcdefgh1"},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "é <b>", "parameters": {"type": "object"}}}]
EXTRAS = (
    "{% for n in [1, 2, 3] %}\n  {% if n == 2 %}{% continue %}{% endif %}\n{{ n }}\n{% endfor %}",
    "{% generation %}\n{{ messages[0].content }}{% endgeneration %}",
    "{{ strftime_now('%Y') }}{{ tools | tojson(indent=2) }}{{ messages | tojson }}",
    "{{ bos_token }}{{ missing }}|{% set a = namespace(b=1) %}{% set a.b = 2 %}{{ a.b }}",
)


@pytest.mark.parametrize("value", [{"role": "user", "items": 1}, {}, "text", ["text"], ("text",), 1, None], ids=repr)
def test_the_sandbox_gives_and_refuses_what_jinjas_own_does(value: Any) -> None:
    own, ours = ImmutableSandboxedEnvironment(), _make_sandbox()
    names = {*dir(value), "role", "absent", "_absent", "__dict__", "mro", *dir(LoopContext)}
    for source in ("{{ value.%s }}", "{% for one in [value] %}{{ loop.%s }}{% endfor %}"):
        for name in names - {"call", "_iterator", "__init__"}:
            shown = []
            for environment in (own, ours):
                try:
                    shown.append(re.sub("0x[0-9a-f]+", "", environment.from_string(source % name).render(value=value)))
                except Exception as error:
                    shown.append(repr(error))
            assert shown[0] == shown[1], name


def test_rendering_equals_transformers() -> None:
    assert compared_with_transformers([*EXTRAS, CHAT_TEMPLATE]) > 20


@pytest.mark.shared_data
def test_rendering_of_published_templates_equals_transformers() -> None:
    families = [path.read_text("utf8") for path in sorted(data.find("chat_templates").glob("*.jinja"))]
    assert compared_with_transformers(families) >= 30


def compared_with_transformers(sources: Sequence[str]) -> int:
    """How many renderings of templates were the same as those of transformers; one that differs fails."""
    transformers = pytest.importorskip("transformers", reason="transformers is the reference; it is not installed")
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=small_tokenizer(), bos_token="<|endoftext|>", eos_token="<|im_end|>"
    )
    rendered = 0
    for source in sources:
        ours = ChatTemplate(source, name="t", values={"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"})
        for messages in CONVERSATIONS:
            for tools in ([], TOOLS):
                for generate in (True, False):
                    try:
                        expected = reference.apply_chat_template(
                            messages,
                            chat_template=source,
                            tools=tools or None,
                            add_generation_prompt=generate,
                            tokenize=False,
                        )
                    except Exception:  # the reference raises jinja2's and Python's own errors for what it refuses
                        with pytest.raises(UnsupportedTemplate, match="refuses a conversation"):
                            ours.render(messages, tools=tools, add_generation_prompt=generate)
                    else:
                        assert ours.render(messages, tools=tools, add_generation_prompt=generate) == expected
                        rendered += 1
    return rendered


def test_a_transformers_tokenizer_is_taken_as_it_is() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the reference; it is not installed")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=small_tokenizer(), eos_token="<|im_end|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    bound = TokenEncoder(tokenizer)
    expected = tokenizer.apply_chat_template(
        CONVERSATIONS[1], tools=TOOLS, add_generation_prompt=True, return_dict=False
    )
    assert bound.start(CONVERSATIONS[1], tools=TOOLS).prompt_ids == expected


@pytest.mark.slow
def test_importing_the_tokens_imports_no_transformers() -> None:
    import subprocess

    code = "import sys, rlenv.tokens; sys.exit('transformers' in sys.modules or 'tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("message.content + '\\n</tool_response>'", "message.content | replace('e', '3') + '\\n</tool_response>'"),
            "changes the",
        ),
        (("message.content + '\\n</tool_response>'", "'hidden\\n</tool_response>'"), "writes contents"),
        (("+ message.content + '\\n</tool", "+ message.content ~ message.content + '\\n</tool"), "writes contents"),
        (("{%- if add", "{%- bad"), "line"),
    ],
)
def test_a_template_that_cannot_be_exact_is_refused_when_it_is_bound(change: tuple[str, str], said: str) -> None:
    assert change[0] in CHAT_TEMPLATE
    source = CHAT_TEMPLATE.replace(*change)
    with pytest.raises(UnsupportedTemplate, match=said) as caught:
        TokenEncoder(small_tokenizer(), chat_template=source).require(["tool"])
    assert str(caught.value).startswith("chat template of this tokenizer")


@pytest.mark.parametrize("change", ["| trim", "| tojson"])
def test_what_a_template_does_to_content_is_found_and_repeated(change: str) -> None:
    source = CHAT_TEMPLATE.replace("message.content + '\\n</tool", f"(message.content {change}) + '\\n</tool")
    bound = TokenEncoder(small_tokenizer(), chat_template=source)
    for content in ("x", "  a\n", 'q"\\é', ""):
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "A"},
            {"role": "tool", "content": content},
        ]
        ids = bound.encode_messages([Message("tool", content)]).tolist()
        whole = bound.encode_text(bound.template.render(messages))
        assert whole[-len(ids) :] == ids


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(UsageError, match="give one as chat_template"):
        TokenEncoder(small_tokenizer())
    with pytest.raises(UsageError, match="expected a tokenizers"):
        TokenEncoder(object(), chat_template="x")


@pytest.mark.parametrize("model", [models.BPE(), models.WordLevel({"<unk>": 0}, unk_token="<unk>")])
def test_a_tokenizer_that_knows_no_text_is_refused(model: models.Model) -> None:
    """transformers makes one of a folder that has a configuration and no tokenizer.json."""
    empty = Tokenizer(model)
    empty.add_special_tokens(["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"])
    with pytest.raises(UsageError, match=r"is tokenizer\.json missing"):
        TokenEncoder(empty, chat_template=CHAT_TEMPLATE)


def test_a_tokenizer_of_a_few_words_knows_text() -> None:
    assert not knows_no_text(Tokenizer(models.WordLevel({"<unk>": 0, "yes": 1}, unk_token="<unk>")))
