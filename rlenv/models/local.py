"""A model as people have it to the folder that transformers, veRL and vLLM load."""

from __future__ import annotations

from pathlib import Path

from rlenv.models.place import found_in_package, gguf_in, is_package
from rlenv.models.templated import retold, template_text, with_template
from rlenv.tokens.load import LoadedTokenizer, load_tokenizer

__all__ = ["local_model", "local_tokenizer"]


def local_model(given: str, *, chat_template: str | Path | None = None, keep: Path | None = None) -> str:
    """What `from_pretrained` takes for a model that is given as people have it.

    A folder is taken as it is (its absolute path, links unresolved), and what is no path is the name of a model on the
    hub, as it is. A `.gguf` file, a folder that holds nothing else, and `package:NAME` (a distribution that is
    installed here and carries one model; `package:NAME/FILE` for one of several) become a folder in the user's cache:
    float32 weights as safetensors, the configuration, and a tokenizer whose end and padding marks are those of the
    file's own metadata and of its chat template. It is made once for a content, by one process, and appears when it
    is whole.

    Args:
        chat_template: a file, or the name of one that ships with rlenv (`chatml`). The result is then a folder of its
            own: the model's files linked, and the template replaced.
        keep: where that folder lies; in the user's cache where None. It is made anew where it is not for this model
            and template. Without `chat_template` nothing is written there.

    Raises:
        UsageError: there is no such file, folder, distribution or template, or the file is no model that can be read.
        MissingExtra: dequantising needs packages that are not installed.
    """
    if is_package(given):
        place = str(found_in_package(given))
        given_as = given
    else:
        place = given_as = given
    file = gguf_in(place, given_as=given_as)
    if file is not None:
        from rlenv.models.dequantised import dequantised

        place = str(dequantised(file))
    elif Path(place).expanduser().is_dir():
        place = str(Path(place).expanduser().absolute())
    if chat_template is None:
        return place
    return str(with_template(place, chat_template, keep))


def local_tokenizer(given: str, *, chat_template: str | Path | None = None) -> LoadedTokenizer:
    """The tokenizer of a model that is given as `local_model` takes it, or of a `tokenizer.json` alone.

    `chat_template` stands in the place of its own, with the end marks that `local_model` would write for it.

    Raises:
        UsageError: as `local_model` does, or there is no tokenizer.
        MissingExtra: packages are not installed that reading it needs.
    """
    is_file = Path(given).is_file() and Path(given).suffix in (".json", ".gz")
    tokenizer = load_tokenizer(given if is_file else local_model(given))
    return tokenizer if chat_template is None else retold(tokenizer, template_text(chat_template))
