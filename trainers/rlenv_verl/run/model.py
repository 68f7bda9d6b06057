"""The model that a run starts from, where it lies here."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlenv.errors import UsageError
from rlenv.models import lacks, local_model
from rlenv.models.architecture import weights_in
from rlenv_verl.run.runfile import Run

__all__ = ["given_model", "made_again", "made_of"]


def given_model(arguments: argparse.Namespace, folder: Path) -> str:
    """The model that was named, as veRL loads it; with a chat template of its own in the run's folder.

    Raises:
        UsageError: there is no such model, or its folder lacks what a model has.
    """
    path = Path(arguments.model)
    place = local_model(arguments.model)
    if path.is_dir() and Path(place) == path.absolute() and not (path / "config.json").is_file():
        raise UsageError("; ".join(one.said for one in lacks(place) if one.stops))
    if arguments.chat_template is None:
        return place
    return local_model(place, chat_template=arguments.chat_template, keep=folder / "model")


def made_of(given: str | None, model: str) -> str:
    """What a model was made of, so that it can be made again; "" where it was taken as it is."""
    if given in (None, "tiny", model):
        return ""
    path = Path(given).expanduser()
    return str(path.absolute()) if path.exists() else given


def made_again(run: Run) -> None:
    """Make the weights of a run's model again where the cache that they were kept in has been emptied.

    They come to lie where they did: the folder is named after their content, and a template of the run's own only
    links to it.
    """
    if run.given and weights_in(Path(run.model)).fault:
        local_model(run.given)
