"""The rows of a member's shares."""

from __future__ import annotations

import trio
from memory_store import MemoryStore
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from ledger_client.groups.holdings import Holdings
from ledger_client.groups.share import Share, State, done_bits
from ledger_client.groups.share_rows import ShareRows
from ledger_client.message_id import MessageId
from ledger_client.topics.messages import NO_HEADERS, Message
from metadata.groups.rows import member_key
from metadata.groups.shares import ShareRecord, decode_share, want_key
from metadata.store import Delete, Versioned

RECORD = ShareRecord(
    topic=1, partition=0, lane=0, number=0, ledger_id=1, entry=0, version=0, counts=[3], done=b"\0"
)

MESSAGE = Message(
    MessageId(1, 0, 0, 0), None, b"x", None, 0, 0, NO_HEADERS, "", -1, 0, "shop/orders", 0
)


async def test_what_a_member_has_lost_is_not_stored_as_done(autojump_clock: MockClock) -> None:
    """Its acknowledgements waited while it was removed from the group; others get the rest."""
    store, holdings = MemoryStore(), Holdings(by_key=False)
    rows = ShareRows(store, "billing", "m", run="r", timeout_s=5)
    share = Share(RECORD, "s", is_blind=True)
    share.messages = [MESSAGE] * 3
    (share.row_version,) = await store.transact([rows.put(share)])
    holdings.add(share)
    holdings.finish(share, 0)
    stored: list[set[Share]] = []

    async def save() -> None:
        stored.append(await rows.save([share]))

    async with trio.open_nursery() as nursery, rows.turn:
        nursery.start_soon(save)
        await wait_all_tasks_blocked()
        holdings.clear()
    assert stored == [{share}]
    key = rows.key(share)
    assert decode_share(key, store.values[key].value).done == b"\0"


async def test_a_share_is_not_adopted_while_its_holder_is_a_member() -> None:
    """The holder came back between the look for what nobody has and the adoption."""
    store = MemoryStore()
    theirs = ShareRows(store, "billing", "theirs", run="r", timeout_s=5)
    await store.transact([theirs.put(Share(RECORD, "s", is_blind=True))])
    mine = ShareRows(store, "billing", "mine", run="q", timeout_s=5)
    (item,) = [each async for each in mine.orphans(())]
    row = member_key("billing", "theirs")
    await store.put(row, b"{}")
    adopted = Share(RECORD, "t", is_blind=False)
    assert not await mine.adopt(item, adopted, None)
    assert [each async for each in mine.orphans(())] == []
    await store.transact([Delete(row)])
    assert await mine.adopt(item, adopted, None)
    assert mine.key(adopted) in store.values
    assert item[0] not in store.values


async def test_a_gift_that_was_made_is_known_though_its_answer_was_lost() -> None:
    store = MemoryStore()
    rows = ShareRows(store, "billing", "m", run="r", timeout_s=5)
    share = Share(RECORD, "s", is_blind=True)
    (share.row_version,) = await store.transact([rows.put(share)])
    await store.put(member_key("billing", "other"), b"{}")
    want = (
        want_key("billing", "other"),
        Versioned(b"{}", await store.put(want_key("billing", "other"), b"{}")),
    )
    before = share.row_version
    assert await rows.give(share, share.part_of([0]), [0], want)
    share.row_version = before  # the call is sent again
    assert await rows.give(share, share.part_of([0]), [0], want)
    assert len([key for key in store.values if key.startswith("shares/billing/other/")]) == 1


async def test_what_was_left_is_known_though_the_answer_was_lost() -> None:
    store = MemoryStore()
    rows = ShareRows(store, "billing", "m", run="r", timeout_s=5)
    share = Share(RECORD, "s", is_blind=True)
    (share.row_version,) = await store.transact([rows.put(share)])
    before = share.row_version
    assert await rows.free({share: [0]}) == {share}
    share.row_version = before  # the call is sent again
    assert await rows.free({share: [0]}) == {share}
    assert len([key for key in store.values if key.startswith("shares/billing/~/")]) == 1


async def test_what_is_left_of_many_shares_is_there_in_their_order() -> None:
    """Whoever looks between two changes finds nothing without what comes before it."""
    store = MemoryStore()
    rows = ShareRows(store, "billing", "m", run="r", timeout_s=5)
    shares = [
        Share(replace(RECORD, entry=each), f"{each:x}", is_blind=False) for each in range(250)
    ]
    for share in shares:
        (share.row_version,) = await store.transact([rows.put(share)])
    left, sizes = {share: [0] for share in shares}, list[int]()
    while left:
        given = await rows.free(left)
        assert given == set(list(left)[: len(given)])
        left = {share: at for share, at in left.items() if share not in given}
        free = [key for key in store.values if key.startswith("shares/billing/~/")]
        found = {decode_share(key, store.values[key].value).entry for key in free}
        assert found == set(range(len(found)))
        sizes.append(len(given))
    assert sizes == [100, 100, 50]


async def test_what_is_done_is_not_lost_if_the_rest_of_its_share_is_given_away() -> None:
    store, holdings = MemoryStore(), Holdings(by_key=False)
    rows = ShareRows(store, "billing", "m", run="r", timeout_s=5)
    share = Share(RECORD, "s", is_blind=True)
    share.messages = [MESSAGE] * 3
    (share.row_version,) = await store.transact([rows.put(share)])
    holdings.add(share)
    holdings.finish(share, 0)
    assert await rows.free({share: [1, 2]}) == {share}
    holdings.drop(share)
    assert await rows.save([share]) == set()


async def test_a_gift_whose_answer_was_lost_is_not_taken_back_by_an_acknowledgement() -> None:
    """The acknowledgement of another message of the share finds the row without the gift."""
    store, holdings = MemoryStore(), Holdings(by_key=False)
    rows = ShareRows(store, "billing", "m", run="r", timeout_s=5)
    share = Share(RECORD, "s", is_blind=True)
    share.messages = [MESSAGE] * 3
    (share.row_version,) = await store.transact([rows.put(share)])
    holdings.add(share)
    before = share.row_version
    holdings.wait(share, 1, State.LEAVING)
    assert await rows.free({share: [1]}) == {share}
    share.row_version = before  # its answer was lost
    holdings.finish(share, 0)
    assert await rows.save([share]) == set()
    key = rows.key(share)
    assert decode_share(key, store.values[key].value).done == b"\x03"


async def test_a_process_of_the_same_name_keeps_what_it_took() -> None:
    """The former one, which was paused, wants to give some of it away."""
    store = MemoryStore()
    former = ShareRows(store, "billing", "m", run="r", timeout_s=5)
    share = Share(RECORD, "s", is_blind=True)
    (share.row_version,) = await store.transact([former.put(share)])
    rows = ShareRows(store, "billing", "m", run="q", timeout_s=5)
    (item,) = [each async for each in rows.orphans(())]
    assert await rows.adopt(item, Share(RECORD, "t", is_blind=False), None)
    before = store.values[item[0]]
    await former.free({share: [0]})
    assert await former.save([share]) == {share}
    assert store.values[item[0]] == before


async def test_a_member_that_comes_back_learns_that_a_part_of_its_share_was_taken() -> None:
    """The other part is still in its name; storing its own would bring the taken one back."""
    store = MemoryStore()
    former = ShareRows(store, "billing", "former", run="r", timeout_s=5)
    share = Share(RECORD, "s", is_blind=True)
    share.messages = [MESSAGE] * 3
    (share.row_version,) = await store.transact([former.put(share)])
    rows = ShareRows(store, "billing", "m", run="q", timeout_s=5)
    (item,) = [each async for each in rows.orphans(())]
    rest = decode_share(item[0], item[1].value)
    rest = replace(rest, done=done_bits(3, [2]))
    adopted = Share(RECORD, "t", is_blind=False)
    adopted.states[2] = State.DONE
    assert await rows.adopt(item, adopted, rest)
    before = store.values[item[0]]
    share.finish(0)
    assert await former.save([share]) == {share}
    assert store.values[item[0]] == before


def test_a_delivery_that_was_counted_and_did_not_take_place_is_not_passed_on() -> None:
    share = Share(RECORD, "s", is_blind=False)
    share.note_delivery(0)
    share.note_delivery(1)
    share.ahead.discard(1)
    assert share.part_of([0, 1]).tries == {0: 0, 1: 1}
