"""The partitions of a member, as `quire group describe` shows them."""

from __future__ import annotations

import pytest
from group_rig import ORDERS, shop
from trio.testing import MockClock

from ledger_client.commands.group.describe import _run_text, _slots_text
from metadata.groups.rows import PartRun


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        (0, 63, "shop/orders:0-3"),
        (16, 31, "shop/orders:1"),
        (8, 47, "shop/orders:1-2, shop/orders:0 slots 8-15"),
        (0, 20, "shop/orders:0, shop/orders:1 slots 0-4"),
        (10, 20, "shop/orders:0 slots 10-15, shop/orders:1 slots 0-4"),
        (17, 17, "shop/orders:1 slots 1"),
    ],
)
async def test_slots_are_shown_with_the_partitions_that_they_are_of(
    autojump_clock: MockClock, first: int, last: int, text: str
) -> None:
    async with shop() as (_, client):
        topic = await client.topics.info(ORDERS)
        assert _slots_text(PartRun(topic.uid, first, last), topic) == text


async def test_a_topic_without_partitions_is_shown_by_its_name(autojump_clock: MockClock) -> None:
    async with shop() as (_, client):
        await client.topics.create("shop/plain")
        topic = await client.topics.info("shop/plain")
    assert _run_text(PartRun(topic.uid, -1, -1), topic) == "shop/plain"
    assert _slots_text(PartRun(topic.uid, 0, 15), topic) == "shop/plain"
    assert _slots_text(PartRun(topic.uid, 3, 7), topic) == "shop/plain slots 3-7"


def test_a_topic_that_was_deleted_is_shown_by_its_uid() -> None:
    assert _run_text(PartRun(7, 0, 1), None) == "uid 7:0-1"
    assert _run_text(PartRun(7, -1, -1), None) == "uid 7"
    assert _slots_text(PartRun(7, 0, 15), None) == "uid 7:0"
