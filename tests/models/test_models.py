"""What a model lacks is said with the way out, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.episodes.environment import Environment
from rlenv.models import Looked, first_prompts, lacks, looked_at
from tests.support.model_files import IDS, tensors

pytest.importorskip("transformers", reason="the verl extra is not installed")

Model = Callable[..., Path]
Make = Callable[..., Environment]

_NO_TOOLS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def one(found: list[Looked]) -> Looked:
    assert len(found) == 1, [str(looked) for looked in found]
    return found[0]


def test_nothing_is_lacking_of_a_whole_model(model: Model, make_environment: Make) -> None:
    environment = make_environment()
    looked = looked_at(str(model()), environment, prompts=first_prompts(environment)[0])
    assert [each for each in looked if each.lacks] == []
    assert [each.what for each in looked] == [
        "architecture LlamaForCausalLM",
        "weights",
        "tokenizer",
        "embeddings",
        "chat template",
        "tools in the chat template",
        "end mark",
        "pad token",
        "context length",
    ]


def test_a_model_without_a_template_is_told_how_to_get_one(model: Model) -> None:
    found = one(lacks(str(model(tokenizer={"chat_template": None}))))
    assert found.stops
    assert str(found) == (
        "chat template: the model has none; --chat-template FILE gives one, --chat-template chatml one that ships"
    )


def test_the_shipped_template_gives_what_was_lacking(model: Model, make_environment: Make) -> None:
    folder = str(model(tokenizer={"chat_template": None, "eos_token": "<|im_start|>"}, generation={"eos_token_id": 1}))
    assert lacks(folder, make_environment(), chat_template="chatml") == []


def test_a_template_that_cannot_be_exact_is_said(model: Model) -> None:
    found = one(lacks(str(model(tokenizer={"chat_template": "{% for message in messages %}{{ message.oops.x }}"}))))
    assert found.what == "chat template"
    assert found.stops
    assert "--chat-template" in found.way_out


def test_a_template_that_shows_no_tools_is_said_where_the_spec_has_some(model: Model, make_environment: Make) -> None:
    folder = str(model(tokenizer={"chat_template": _NO_TOOLS}))
    found = one(lacks(folder, make_environment()))
    assert found.what == "tools in the chat template"
    assert found.stops
    assert "(calculate)" in found.lacks
    assert lacks(folder) == []
    told = make_environment(prompt__system="Call calculate with an expression.")
    assert lacks(folder, told, prompts=first_prompts(told)[0]) == []


def test_a_missing_pad_token_is_said_with_one_that_ends_no_turn(model: Model) -> None:
    found = one(lacks(str(model(tokenizer={"pad_token": None}))))
    assert (found.what, found.stops) == ("pad token", False)
    assert found.way_out == 'write "pad_token": "<|endoftext|>" into tokenizer_config.json'


def test_an_end_token_that_begins_a_turn_is_said_with_the_repair(model: Model) -> None:
    folder = model(tokenizer={"eos_token": "<|im_start|>"}, generation={"eos_token_id": 1})
    found = one(lacks(str(folder)))
    assert found.what == "end mark"
    assert found.stops
    assert "<|im_start|> ends a turn by the model's files, and begins the assistant's turn" in found.lacks
    assert found.way_out == (
        'write "eos_token": "<|im_end|>" into tokenizer_config.json and "eos_token_id": [2] into generation_config.json'
    )
    for name, key, value in (("tokenizer", "eos_token", "<|im_end|>"), ("generation", "eos_token_id", [2])):
        path = folder / f"{name}_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert lacks(str(folder)) == []


def test_an_end_mark_that_the_template_never_writes_is_said(model: Model) -> None:
    folder = model(tokenizer={"eos_token": "<|endoftext|>"}, generation={"eos_token_id": 0})
    ends = one(lacks(str(folder)))
    assert (ends.what, ends.stops) == ("end mark", False)
    assert "ends turns with <|im_end|>, and by the model's files <|endoftext|> ends one" in ends.lacks
    assert '"eos_token_id": [2, 0]' in ends.way_out


@pytest.mark.parametrize("is_in_header", [True, False])
def test_fewer_embeddings_than_ids_are_said(model: Model, is_in_header: bool) -> None:
    folder = model(rows=IDS - 6, config={"vocab_size": IDS - 6})
    if not is_in_header:
        (folder / "model.safetensors").write_bytes(tensors(4, name="model.norm.weight"))
    found = one(lacks(str(folder)))
    assert (found.what, found.stops) == ("embeddings", True)
    assert found.lacks == f"they have {IDS - 6} rows, and the tokenizer has ids up to {IDS - 1}"
    assert f"resize_token_embeddings({IDS})" in found.way_out


def test_weights_of_another_size_than_the_configuration_are_said(model: Model) -> None:
    found = one(lacks(str(model(rows=700))))
    assert found.lacks == f"the weights have 700 rows, and config.json says {IDS}"


def test_a_context_that_is_too_short_is_said(model: Model, make_environment: Make) -> None:
    environment = make_environment(limits__response_tokens=4000)
    prompts, _ = first_prompts(environment)
    found = one(lacks(str(model("short", config={"max_position_embeddings": 4050})), environment, prompts=prompts))
    assert (found.what, found.stops) == ("context length", False)
    assert "reads 4,050 tokens" in found.lacks
    assert "a response of 4,000" in found.lacks
    found = one(lacks(str(model("shorter", config={"max_position_embeddings": 20})), environment, prompts=prompts))
    assert found.stops
    longer = {"text_config": {"max_position_embeddings": 9000}, "max_position_embeddings": None}
    assert lacks(str(model("longer", config=longer)), environment, prompts=prompts) == []


@pytest.mark.parametrize(
    ("config", "what", "said"),
    [
        ({"model_type": "zorbformer", "architectures": ["ZorbForCausalLM"]}, "ZorbForCausalLM", "does not know"),
        ({"model_type": "zorb", "auto_map": {"AutoModel": "x.Y"}}, "architecture", "code that a model brings along"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architecture", "is not the language model of 'llama'"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "architecture", "write no text"),
        ({"model_type": None}, "architecture", "names no model_type"),
        ({"dtype": "float8_e4m3fn"}, "dtype", "float8_e4m3fn, which cannot be trained in"),
        ({"quantization_config": {"quant_method": "gptq"}}, "weights", "quantised (gptq)"),
    ],
)
def test_what_transformers_does_not_know_here_is_said(
    model: Model, config: dict[str, Any], what: str, said: str
) -> None:
    found = one(lacks(str(model(config=config))))
    assert what in found.what
    assert said in found.lacks
    assert found.stops
    assert found.way_out


def test_an_adapter_alone_is_told_how_to_be_merged(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')
    (tmp_path / "adapter_model.safetensors").write_bytes(tensors(2))
    found = one(lacks(str(tmp_path)))
    assert "holds an adapter of some/base and no model" in found.lacks
    assert "merge_and_unload" in found.way_out


def test_weights_that_are_not_whole_are_said(model: Model) -> None:
    folder = model()
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for content, said in (
        (whole[:-100], "is cut: it has"),
        (whole[:5], "is cut or no file of safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n" + bytes(60), "git lfs pull"),
    ):
        weights.write_bytes(content)
        found = one(lacks(str(folder)))
        assert (found.what, found.stops) == ("weights", True)
        assert said in found.lacks
    weights.unlink()
    assert "neither model.safetensors nor" in one(lacks(str(folder))).lacks
    assert not one(lacks(str(folder), needs_weights=False)).stops
    weights.symlink_to("blobs/gone")
    assert "is a link to blobs/gone, which is not there" in one(lacks(str(folder))).lacks
    weights.unlink()
    shards = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    (folder / "model-1-of-2.safetensors").write_bytes(whole)
    found = one(lacks(str(folder)))
    assert "model-2-of-2.safetensors of the 2 files in model.safetensors.index.json are not there" in found.lacks
    (folder / "model-2-of-2.safetensors").write_bytes(tensors(2, name="b"))
    assert lacks(str(folder)) == []
    (folder / "model-2-of-2.safetensors").write_bytes(tensors(2, name="b", dtype="F8_E4M3"))
    assert "stored as F8_E4M3" in one(lacks(str(folder))).lacks


def test_a_folder_without_configuration_or_tokenizer_is_said(model: Model) -> None:
    folder = model()
    (folder / "config.json").write_text("{")
    assert "cannot be read" in one(lacks(str(folder))).lacks
    (folder / "config.json").unlink()
    assert "there is no config.json in it" in one(lacks(str(folder))).lacks
    (folder / "tokenizer.json").unlink()
    configuration, tokenizer = lacks(str(folder))
    assert (configuration.what, tokenizer.what) == ("configuration", "tokenizer")
    assert "holds no tokenizer" in tokenizer.lacks


def test_doctor_says_why_no_prompt_could_be_tried(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "lost.yaml"
    spec.write_text(
        "rlenv: 1\nname: lost\ntasks: {train: {rows: [{question: Q, db: gone}]}}\n"
        "prompt: {user: '{{ task.question }}'}\n"
        "resources: {db: {kind: sqlite, path: '{{ task.db }}.sqlite'}}\n"
        "tools: {look: {kind: sql, resource: db}}\n"
        "rewards: {correct: {kind: rule, rule: answered}}\n"
    )
    assert main(["validate", "--machine", "--model", str(model()), str(spec)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "no episode of the spec opens" in said
    assert "gone.sqlite" in said


def test_doctor_lists_a_model_beside_the_machine(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    whole = str(model())
    assert main(["validate", "--machine", "--model", whole, "arithmetic"]) == 0
    assert "requirements are met" in capsys.readouterr().out
    folder = str(model("lacking", tokenizer={"pad_token": None, "chat_template": _NO_TOOLS}))
    assert main(["validate", "--machine", "--model", folder, "arithmetic", "--json"]) == 1
    found = {entry["what"]: entry["lacks"] for entry in json.loads(capsys.readouterr().out)}
    assert 'write "pad_token"' in found["pad token"]
    assert "calculate" in found["tools in the chat template"]
    assert found["weights"] == ""
    assert main(["validate", "--machine", "arithmetic", "--model", folder, "--chat-template", "chatml"]) == 0
    assert main(["validate", "--machine", "arithmetic", "--chat-template", "chatml"]) == 2


@pytest.mark.slow
def test_tokens_check_finds_an_end_token_that_begins_a_turn(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(model(tokenizer={"eos_token": "<|im_start|>"}, generation={"eos_token_id": 1}))
    argv = ["tokens", "check", folder, "--dialogues", "1"]
    assert main(argv) == 1
    said = capsys.readouterr().out
    assert (
        "not exact: end marks: <|im_start|> ends a turn by the model's files, and begins the assistant's turn" in said
    )
    assert 'write "eos_token": "<|im_end|>" into tokenizer_config.json' in said
    assert main([*argv, "--stop", "<|im_end|>"]) == 0
    assert main([*argv, "--template", "chatml"]) == 0
