from __future__ import annotations

import msgspec
import pytest
import trio
from memory_store import MemoryStore

from ledger_client.errors import (
    BadTopic,
    MetadataBroken,
    MetadataUnavailable,
    NoSuchTopic,
    TopicExists,
)
from ledger_client.topics.catalogue import Alteration, TopicCatalogue, check_users
from ledger_client.topics.events import pending_events, waiting_namespaces
from metadata.topics import (
    GROWTHS_MAX,
    Retention,
    RollPolicy,
    TopicEvent,
    TopicRecord,
    decode_event,
    topic_key,
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def catalogue(store: MemoryStore) -> TopicCatalogue:
    return TopicCatalogue(store, timeout_s=1.0)


def wanted(name: str = "shop/orders", partitions: int = 0) -> TopicRecord:
    return TopicRecord(name=name, uid=0, partitions=partitions)


async def events(store: MemoryStore, namespace: str = "shop") -> list[TopicEvent]:
    found = await pending_events(store, namespace)
    return [decode_event(event.key, event.value) for event in found]


async def test_a_topic_that_was_made_is_found_and_listed(catalogue: TopicCatalogue) -> None:
    """TB-01, TD-01: a stream is a named set of partitions, defined first."""
    made = await catalogue.create(wanted(partitions=4))
    await catalogue.create(wanted("shop/returns"))
    await catalogue.create(wanted("shopping/lists"))
    assert made.uid > 0
    assert made.created_ms > 0
    assert (await catalogue.get("shop/orders"))[0] == made
    assert list(made.partition_indexes) == [0, 1, 2, 3]
    names = [record.name for record in await catalogue.list("shop")]
    assert names == ["shop/orders", "shop/returns"]
    assert len(await catalogue.list()) == 3
    assert await catalogue.list("none") == []


async def test_a_name_is_given_once(catalogue: TopicCatalogue) -> None:
    made: list[TopicRecord] = []
    refused: list[TopicExists] = []

    async def make() -> None:
        try:
            made.append(await catalogue.create(wanted()))
        except TopicExists as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(make)
    assert len(made) == 1
    assert [error.topic for error in refused] == ["shop/orders"] * 4


async def test_a_topic_that_was_made_again_has_another_uid(
    store: MemoryStore, catalogue: TopicCatalogue
) -> None:
    first = await catalogue.create(wanted())
    await catalogue.forget(await catalogue.mark_deleting("shop/orders"))
    second = await catalogue.create(wanted())
    assert second.uid > first.uid
    await catalogue.forget(first)
    assert (await catalogue.get("shop/orders"))[0] == second


async def test_what_is_being_deleted_is_not_there_and_its_name_is_still_taken(
    catalogue: TopicCatalogue,
) -> None:
    await catalogue.create(wanted())
    await catalogue.mark_deleting("shop/orders")
    with pytest.raises(NoSuchTopic):
        await catalogue.get("shop/orders")
    with pytest.raises(NoSuchTopic):
        await catalogue.mark_deleting("shop/orders")
    with pytest.raises(NoSuchTopic):
        await catalogue.alter("shop/orders", Alteration(partitions=2))
    with pytest.raises(TopicExists):
        await catalogue.create(wanted())
    assert await catalogue.list() == []


@pytest.mark.parametrize("name", ["orders", "a/b/c", "", "a/b c"])
async def test_what_is_no_name_is_refused(catalogue: TopicCatalogue, name: str) -> None:
    with pytest.raises(BadTopic, match="is not namespace/name"):
        await catalogue.get(name)
    with pytest.raises(BadTopic):
        check_users(name)


def test_our_own_names_are_not_for_users() -> None:
    with pytest.raises(BadTopic, match="quire's own"):
        check_users("shop/__events")
    check_users("shop/_events")


# --- alteration -------------------------------------------------------------------------


async def test_what_can_be_altered_is_altered_and_the_rest_stays(
    catalogue: TopicCatalogue,
) -> None:
    """TD-07: how often ledgers roll, and how long they stay, is the user's choice."""
    made = await catalogue.create(wanted(partitions=2))
    change = Alteration(
        partitions=3,
        replication=3,
        compression="zstd",
        roll=RollPolicy(size=5),
        retention=Retention(age_s=1),
        properties={"team": "till"},
    )
    changed = await catalogue.alter("shop/orders", change)
    assert changed == msgspec.structs.replace(
        made,
        partitions=3,
        replication=3,
        ack_quorum=2,
        compression="zstd",
        roll=RollPolicy(size=5),
        retention=Retention(age_s=1),
        properties={"team": "till"},
        grown=changed.grown,
    )
    assert (await catalogue.get("shop/orders"))[0] == changed


async def test_a_topic_knows_when_its_partitions_were_added(catalogue: TopicCatalogue) -> None:
    """The oldest of more than a hundred times count as one, so that nothing seems older."""
    made = await catalogue.create(wanted(partitions=2))
    catalogue.clock.now_ms = lambda: made.created_ms + 5  # type: ignore[method-assign]
    await catalogue.alter("shop/orders", Alteration(partitions=4, properties={"team": "till"}))
    catalogue.clock.now_ms = lambda: made.created_ms + 9  # type: ignore[method-assign]
    found = await catalogue.alter("shop/orders", Alteration(partitions=6))
    since = [found.begun_ms(partition) - made.created_ms for partition in range(6)]
    assert since == [0, 0, 5, 5, 9, 9]
    assert (await catalogue.alter("shop/orders", Alteration(properties={"a": "b"}))).grown == (
        found.grown
    )
    for partitions in range(7, 7 + GROWTHS_MAX):
        found = await catalogue.alter("shop/orders", Alteration(partitions=partitions))
    assert len(found.grown) == GROWTHS_MAX
    assert [found.begun_ms(each) - made.created_ms for each in (0, 1, 5, 105)] == [0, 0, 9, 9]
    assert (await catalogue.get("shop/orders"))[0] == found


@pytest.mark.parametrize(
    ("partitions", "change", "told"),
    [
        (3, Alteration(partitions=2), "it has 3 partitions, which cannot become fewer"),
        (3, Alteration(partitions=0), "cannot become fewer"),
        (0, Alteration(partitions=2), "it is not partitioned, and stays so"),
        (1, Alteration(partitions=10_001), "partitions: expected int <= 10000"),
        (0, Alteration(replication=65), "replication: expected int <= 64"),
        (0, Alteration(ack_quorum=3), "ack quorum <= replication"),
        (0, Alteration(roll=RollPolicy(size=0)), "roll.size: expected int >= 1"),
        (0, Alteration(retention=Retention(age_s=float("inf"))), "retention.age_s: expected float"),
        (0, Alteration(retention=Retention(age_s=float("nan"))), "retention.age_s: expected float"),
        (0, Alteration(retention=Retention(size=1 << 70)), "retention.size|out of range"),
    ],
)
async def test_what_cannot_be_is_refused_by_name_and_changes_nothing(
    store: MemoryStore,
    catalogue: TopicCatalogue,
    partitions: int,
    change: Alteration,
    told: str,
) -> None:
    made = await catalogue.create(wanted(partitions=partitions))
    with pytest.raises(BadTopic, match=told):
        await catalogue.alter("shop/orders", change)
    assert (await catalogue.get("shop/orders"))[0] == made
    assert len(await events(store)) == 1


async def test_two_alterations_at_once_are_both_made(
    store: MemoryStore, catalogue: TopicCatalogue
) -> None:
    await catalogue.create(wanted(partitions=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(catalogue.alter, "shop/orders", Alteration(partitions=5))
        nursery.start_soon(catalogue.alter, "shop/orders", Alteration(compression="lz4"))
    record, _ = await catalogue.get("shop/orders")
    assert (record.partitions, record.compression) == (5, "lz4")
    assert (await events(store))[-1].record == record


# --- events -----------------------------------------------------------------------------


async def test_each_change_leaves_its_event_in_order(
    store: MemoryStore, catalogue: TopicCatalogue
) -> None:
    made = await catalogue.create(wanted())
    changed = await catalogue.alter("shop/orders", Alteration(compression="zstd"))
    await catalogue.alter("shop/orders", Alteration(compression="zstd"))  # it is so already
    await catalogue.mark_deleting("shop/orders")
    await catalogue.create(wanted("other/one"))
    told = [(event.kind, event.record) for event in await events(store)]
    assert told == [("created", made), ("altered", changed), ("deleted", changed)]
    assert await waiting_namespaces(store) == ["other", "shop"]


async def test_numbers_rise_with_the_changes_of_a_namespace(
    store: MemoryStore, catalogue: TopicCatalogue
) -> None:
    """Whoever loses the race for a number takes the next one."""
    names = [f"shop/{number}" for number in range(8)]
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(catalogue.create, wanted(name))
    found = await pending_events(store, "shop")
    assert [int(event.key[-3:]) for event in found] == list(range(1, 9))
    versions = [store.values[topic_key(event.topic)].version for event in await events(store)]
    assert versions == sorted(versions)


async def test_our_own_topics_have_no_events(store: MemoryStore, catalogue: TopicCatalogue) -> None:
    await catalogue.create(wanted("shop/__events"))
    await catalogue.forget(await catalogue.mark_deleting("shop/__events"))
    assert await events(store) == []
    assert not [key for key in store.values if key.startswith("topic")]


async def test_namespaces_that_begin_alike_are_told_apart(
    store: MemoryStore, catalogue: TopicCatalogue
) -> None:
    names = ["a", "a-b", "a.b", "a0", "a_", "aa", "b"]
    for name in names:
        await catalogue.create(wanted(f"{name}/t"))
    found = await waiting_namespaces(store)
    assert sorted(found) == sorted(names)
    assert len(await events(store, "a")) == 1


# --- trouble ----------------------------------------------------------------------------


async def test_errors_are_those_of_a_ledger(store: MemoryStore, catalogue: TopicCatalogue) -> None:
    store.change(topic_key("shop/bad"), b"{")
    with pytest.raises(MetadataBroken, match="topics/shop/bad is not a TopicRecord"):
        await catalogue.get("shop/bad")
    store.available = False
    with pytest.raises(MetadataUnavailable):
        await catalogue.create(wanted())
