"""What a call that is cut off says of its time."""

from __future__ import annotations

import asyncio

import pytest

from rlenv.concurrency.deadline import Expired, drive, stopped
from rlenv.errors import ToolFailed


@pytest.mark.parametrize("said", [stopped("stalled"), ToolFailed("over", reason="stalled")])
def test_a_coroutine_that_is_stopped_at_its_limit_may_say_what_its_time_went_to(said: BaseException) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise said from error

    async def main() -> None:
        with pytest.raises(Expired) as expired:
            await drive(work(), 0.01)
        assert expired.value.reason == "stalled"

    asyncio.run(main())


def test_one_that_says_nothing_was_late() -> None:
    async def main() -> None:
        with pytest.raises(Expired) as expired:
            await drive(asyncio.Event().wait(), 0.01)
        assert expired.value.reason == "late"

    asyncio.run(main())


async def stalled() -> None:
    """Waits for ever, and says why it was stopped."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError as error:
        raise stopped("stalled") from error


def test_one_that_says_it_where_its_caller_is_cancelled_is_cancelled() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(drive(stalled(), 100))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()

    asyncio.run(main())


def test_a_time_limit_of_asyncio_around_it_is_a_time_limit_still() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await stalled()

    asyncio.run(main())
