"""Folders that are gone when the episode is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import ResourceError, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.resources.base import TEMPDIR as KIND
from rlenv.resources.base import ResourceContext, TempdirResource, TempdirSpec


def compiled(base: Path, **keys: Any) -> TempdirResource:
    made = KIND.factory("work", TempdirSpec(kind="tempdir", **keys), CompileContext(base=base))
    assert isinstance(made, TempdirResource)
    return made


def test_each_episode_has_its_own_folder_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    async def main() -> list[Path]:
        resource = compiled(tmp_path)
        async with resource.open(ResourceContext()) as one, resource.open(ResourceContext()) as other:
            (one.path / "a").write_text("1", encoding="utf-8")
            assert one.path != other.path
            assert list(other.path.iterdir()) == []
            return [one.path, other.path]

    assert not any(path.exists() for path in asyncio.run(main()))


def test_it_starts_with_a_copy_that_may_be_changed(tmp_path: Path) -> None:
    (tmp_path / "a1" / "deep").mkdir(parents=True)
    (tmp_path / "a1" / "deep" / "file").write_text("as it was", encoding="utf-8")

    async def main() -> None:
        resource = compiled(tmp_path, copy_from="{{ task.name }}")
        async with resource.open(ResourceContext({"name": "a1"})) as folder:
            assert (folder.path / "deep" / "file").read_text(encoding="utf-8") == "as it was"
            (folder.path / "deep" / "file").write_text("changed", encoding="utf-8")

    asyncio.run(main())
    assert (tmp_path / "a1" / "deep" / "file").read_text(encoding="utf-8") == "as it was"


def test_it_is_removed_where_the_episode_is_cancelled(tmp_path: Path) -> None:
    async def main() -> Path:
        opened: asyncio.Future[Path] = asyncio.get_running_loop().create_future()

        async def play() -> None:
            async with compiled(tmp_path).open(ResourceContext()) as folder:
                opened.set_result(folder.path)
                await asyncio.Event().wait()

        playing = asyncio.create_task(play())
        place = await opened
        assert place.exists()
        playing.cancel()
        await asyncio.wait((playing,))
        return place

    assert not asyncio.run(main()).exists()


def test_what_it_starts_with_has_to_be_there(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ResourceError, match="cannot be filled"):
            async with compiled(tmp_path, copy_from="gone").open(ResourceContext()):
                pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"copy_from": "{{ tsk.a }}"}, "'tsk' is not known here"),
        ({"copy_from": "{{ task.a }}", "scope": "process"}, "cannot depend on the task"),
        ({"copy_from": "{{ task.a"}, "copy_from"),
    ],
)
def test_an_authors_mistake_says_what_to_change(tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compiled(tmp_path, **keys)
