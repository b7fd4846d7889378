"""What a named producer stored, compared with the input that it is to resume."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from memory_cluster import memory_cluster

from ledger_client.client import Client
from ledger_client.commands.feeds import Messages
from ledger_client.commands.stored_rows import COMPARED_MAX, stored_rows
from ledger_client.topics.producing.producer_options import Access
from metadata.outcome import CommandFailed

TOPIC = "shop/orders"
VALUES = [b"%d" % number for number in range(2 * COMPARED_MAX)]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of a cluster whose topic has one lane, which producers take one after another."""
    async with memory_cluster(3) as cluster, cluster.client() as connected:
        await connected.topics.create(TOPIC, replication=2)
        yield connected


async def send(
    client: Client, *values: bytes, name: str = "loader", access: Access = "exclusive"
) -> None:
    async with client.producer(TOPIC, producer_name=name, access=access) as producer:
        await producer.send_many(values, keys=[b"k"] * len(values))


async def check(client: Client, *pieces: list[bytes], key: bytes = b"k") -> None:
    """Compare an input that comes in *pieces*."""
    async with client.producer(TOPIC, producer_name="loader", access="exclusive") as producer:
        stored = await stored_rows(client, producer)
    first = 0
    for piece in pieces:
        stored.check(first, Messages([*piece], [key] * len(piece)))
        first += len(piece)
    stored.check_end(first)


async def test_the_same_input_resumes_wherever_its_pieces_end(client: Client) -> None:
    await check(client, [])
    await check(client, VALUES)
    await send(client, *VALUES)
    await send(client, b"what others sent", name="other")
    more = [*VALUES, b"more"]
    for cut in (0, 1, 99, 100, 101, 199, 200, 201):
        await check(client, more[:cut], more[cut:])
    await check(client, *([value] for value in VALUES))


async def test_the_same_input_resumes_wherever_its_messages_are(client: Client) -> None:
    """Sharing producers have lanes of their own; an exclusive one goes on from their numbers."""
    await send(client, *VALUES[:150], access="shared")
    await check(client, VALUES)
    await send(client, *VALUES[150:])
    assert {lane.lane for lane in (await client.topics.explain(TOPIC)).lanes} == {0, 1}
    await check(client, VALUES)
    with pytest.raises(CommandFailed, match="its message 101 is something else here"):
        await check(client, [*VALUES[:100], b"other", *VALUES[101:]])


@pytest.mark.parametrize("place", [len(VALUES) - 1, len(VALUES) - COMPARED_MAX])
async def test_an_input_with_another_message_does_not_resume(client: Client, place: int) -> None:
    await send(client, *VALUES)
    other = [*VALUES, b"more"]
    other[place] = b"other"
    for cut in (0, place, place + 1):
        with pytest.raises(CommandFailed, match=f"its message {place + 1} is something else"):
            await check(client, other[:cut], other[cut:])
    with pytest.raises(CommandFailed, match=f"its message {101} is something else"):
        await check(client, VALUES, key=b"another")


async def test_an_input_behind_another_one_of_the_same_name_does_not_resume(
    client: Client,
) -> None:
    """Only its beginning was sent, and it counts from 0."""
    await send(client, b"a", b"b", b"c")
    await send(client, *VALUES[:50])
    with pytest.raises(CommandFailed, match="its message 1 is something else here"):
        await check(client, VALUES)


async def test_an_input_shorter_than_what_is_stored_does_not_resume(client: Client) -> None:
    await send(client, *VALUES)
    with pytest.raises(CommandFailed, match="it has 200 messages, and this input 150"):
        await check(client, VALUES[:150])


async def test_nothing_resumes_behind_messages_that_were_deleted(client: Client) -> None:
    await send(client, b"a", b"b")
    async with client.reader(TOPIC) as reader:
        first, last = [message.id async for message in reader]
    await send(client, b"c", name="other")
    await client.topics.delete_messages(TOPIC, first, last)
    with pytest.raises(CommandFailed, match="that loader stored in shop/orders was removed"):
        await check(client, [b"a", b"b", b"c"])
