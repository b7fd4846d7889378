"""Where BookKeeper's nodes lie, and what stands in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing

import msgspec
import pytest

from metadata.errors import BadRecord, MetadataBroken
from metadata.records import (
    BookieRecord,
    CookieRecord,
    Fragment,
    LedgerRecord,
    LedgerState,
    bookie_lease,
    cookie_key,
    decode_cookie,
    decode_ledger,
    encode_record,
    ledger_key,
)
from metadata.zookeeper.layout import Layout

CLASS = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
LONG_CLASS = "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory"
RECORD = LedgerRecord(5, 1, 1, 1, LedgerState.OPEN, [Fragment(0, ["b"])], created_ms=9)
BOOKIE = BookieRecord("bookie-1", "127.0.0.1:3181", capacity=1, free=1)


# --- the LAYOUT node ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [CLASS, LONG_CLASS])
def test_a_layout_is_read_and_written_as_bookkeeper_does(name: str) -> None:
    data = f"2\n{name}:1".encode()
    assert Layout.parse(data).nodes()["LAYOUT"] == data


def test_a_new_cluster_has_bookkeepers_default_layout() -> None:
    assert Layout().nodes()["LAYOUT"] == f"2\n{CLASS}:1".encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1\nhierarchical:1",
        f"2\n{CLASS}:2".encode(),
        f"3\n{CLASS}:1".encode(),
        b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1",
        b"\xff\n" * 400,
    ],
)
def test_a_foreign_layout_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(MetadataBroken, match="nothing was changed") as wrong:
        Layout.parse(data)
    assert "\n" not in str(wrong.value)
    assert len(str(wrong.value)) < 700


# --- paths -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "00/0000/L0000"),
        (1, "00/0000/L0001"),
        (1234567890, "12/3456/L7890"),
        ((1 << 31) - 2, "21/4748/L3646"),
        ((1 << 31) - 1, "000/0000/0021/4748/L3647"),
        ((1 << 63) - 1, "922/3372/0368/5477/L5807"),
    ],
)
def test_a_ledger_lies_where_bookkeeper_looks_for_it(ledger_id: int, path: str) -> None:
    assert Layout().path(ledger_key(ledger_id)) == path


def test_in_the_long_layout_every_ledger_has_five_levels() -> None:
    assert Layout(long=True).path(ledger_key(12345)) == "000/0000/0000/0001/L2345"


@pytest.mark.parametrize(
    "key",
    [
        "topics/a",
        "ledgers/1",
        "ledgers/",
        f"ledgers/{1 << 63:020d}",
        "cookies/",
        "cookies/a/b",
        "cookies/readonly",
        "cookies/..",
        "instances",
        "available/b",
    ],
)
def test_a_key_that_is_ours_alone_has_no_node_there(key: str) -> None:
    assert Layout().path(key) is None


# --- values ------------------------------------------------------------------------------


def test_a_ledger_passes_through_its_node() -> None:
    key = ledger_key(5)
    data = Layout().encode(key, encode_record(RECORD))
    assert data.startswith(b"BookieMetadataFormatVersion\t3\n")
    assert decode_ledger(key, Layout().decode(key, data, created_ms=1)) == RECORD


def test_a_cookie_and_the_instance_pass_through_their_nodes() -> None:
    cookie = CookieRecord("b", "i", "/j", "/l", "c")
    data = Layout().encode(cookie_key("b"), encode_record(cookie))
    value = Layout().decode(cookie_key("b"), data, created_ms=1)
    assert decode_cookie(cookie_key("b"), value) == cookie
    assert Layout().path("instance") == "INSTANCEID"
    assert Layout().encode("instance", b"x") == Layout().decode("instance", b"x", created_ms=1)


def test_a_node_that_cannot_be_read_says_why_when_it_is_decoded() -> None:
    key = ledger_key(5)
    value = Layout().decode(key, b"BookieMetadataFormatVersion\t4\nnew", created_ms=1)
    with pytest.raises(BadRecord, match=f"^{key}: metadata format version 4, newer"):
        decode_ledger(key, value)
    with pytest.raises(BadRecord):
        Layout().encode(key, value)


@pytest.mark.parametrize("value", [b"", b"{}", encode_record(RECORD)])
def test_what_is_no_record_of_the_key_is_not_written(value: bytes) -> None:
    with pytest.raises(BadRecord):
        Layout().encode(ledger_key(6), value)
    with pytest.raises(BadRecord):
        Layout().encode(cookie_key("b"), value)


# --- registrations -----------------------------------------------------------------------


def registered(record: BookieRecord) -> list[str]:
    return list(Layout().registration(bookie_lease(record.bookie_id), encode_record(record)))


def test_a_serving_bookie_is_available() -> None:
    assert registered(BOOKIE) == ["available/bookie-1"]
    assert Layout().registrations("bookies/bookie-1") == (
        "available/bookie-1",
        "available/readonly/bookie-1",
    )


@pytest.mark.parametrize("why", ["read_only", "draining", "stalled", "limbo"])
def test_a_bookie_that_takes_no_entries_is_read_only(why: str) -> None:
    record = msgspec.convert({**msgspec.structs.asdict(BOOKIE), why: True}, BookieRecord)
    assert registered(record) == ["available/readonly/bookie-1"]


@pytest.mark.parametrize("name", ["readonly", "a/b", ".."])
def test_a_bookie_whose_name_bookkeeper_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(BadRecord, match="allows no bookie"):
        registered(msgspec.structs.replace(BOOKIE, bookie_id=name))
    assert Layout().registrations(f"bookies/{name}") == ()


def test_other_leases_have_no_node_there() -> None:
    assert Layout().registration("coordinator", b"") == {}
    assert Layout().registration("bookies/b", b"no bookie") == {}
    assert Layout().registrations("repairs/1") == ()


# --- listing -----------------------------------------------------------------------------


class Tree:
    """The folders above some nodes; counts what was listed."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.names: dict[str, set[str]] = {}
        self.listed: list[str] = []
        for path in paths:
            parts = path.split("/")
            for depth, name in enumerate(parts):
                self.names.setdefault("/".join(parts[:depth]), set()).add(name)

    async def children(self, folder: str) -> Iterable[str]:
        self.listed.append(folder)
        return self.names.get(folder, set())


FOREIGN = [
    "LAYOUT",
    "INSTANCEID",
    "available/readonly/b",
    "idgen/ID-0000000001",
    "idgen-long/HOB-0000000001",
    "underreplication/ledgers/0000/0000/0000/0001/urL0000000001",
    "disableHealthCheck",
    "quire/keys/topics",
    "00/0000/X0001",
    "00/0000/L001",
    "00/00/L0001",
    "0/0000/L0001",
    "99/0000/L0001",
    "999/0000/0000/0000/L0001",
    "00/0000/٣٣٣٣",
    "cookies/a b",
]
IDS = (0, 1, 9999, 10000, 99999999, 100000000, (1 << 31) - 2, (1 << 31) - 1, 1 << 40, (1 << 63) - 1)


def tree(layout: Layout, ids: Sequence[int] = IDS) -> Tree:
    keys = [ledger_key(each) for each in ids] + ["cookies/b-1", "cookies/b-2"]
    return Tree([*FOREIGN, *(layout.path(key) or "" for key in keys)])


async def keys(layout: Layout, nodes: Tree, prefix: str, after: str = "") -> list[str]:
    found = [found async for found in layout.listing(prefix, after, nodes.children)]
    assert all(layout.path(key) == path for key, path in found)
    return [key for key, _ in found]


async def test_all_keys_are_listed_in_order_and_nothing_foreign() -> None:
    for layout in (Layout(), Layout(long=True)):
        expected = ["cookies/b-1", "cookies/b-2", "instance", *map(ledger_key, IDS)]
        assert await keys(layout, tree(layout), "") == expected


async def test_a_node_of_the_other_layout_is_foreign() -> None:
    nodes = tree(Layout())
    assert await keys(Layout(long=True), nodes, "ledgers/") == [
        ledger_key(each) for each in IDS[-3:]
    ]


@pytest.mark.parametrize("long", [False, True])
async def test_a_listing_goes_on_behind_a_key(long: bool) -> None:
    layout = Layout(long=long)
    ids = sorted({*IDS, *(each + 1 for each in IDS[:-1]), *range(9990, 10010, 3)})
    nodes = tree(layout, ids)
    there = ["cookies/b-1", "cookies/b-2", "instance", *map(ledger_key, ids)]
    between = ["cookies/", "cookies/b", "cookies/b-10", "j", ledger_key(5), ledger_key(9995)]
    for after in [*there, *between]:
        assert await keys(layout, nodes, "", after) == [key for key in there if key > after], after


async def test_a_page_does_not_look_again_at_what_came_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each page lists the folder, which holds 10 000 ledgers, but decides on its own part alone."""
    layout, looked = Layout(), list[str]()
    step = Layout._step

    def counted(self: Layout, folder: str, name: str) -> object:
        looked.append(name)
        return step(self, folder, name)

    monkeypatch.setattr(Layout, "_step", counted)
    nodes = tree(layout, range(1000))
    async with aclosing(layout.listing("ledgers/", ledger_key(499), nodes.children)) as listing:
        assert [(await anext(listing))[0] for _ in range(10)] == [
            ledger_key(each) for each in range(500, 510)
        ]
    assert sum(name.startswith("L0") for name in looked) <= 10 + len(["L0499", "L001"])


async def test_a_prefix_reads_only_the_folders_on_its_way() -> None:
    nodes = tree(Layout())
    assert await keys(Layout(), nodes, ledger_key(10000)) == [ledger_key(10000)]
    assert nodes.listed == ["", "00", "00/0001"]
    assert await keys(Layout(), nodes, "topics/") == []
    assert await keys(Layout(), nodes, "cookies/b-2") == ["cookies/b-2"]
    assert await keys(Layout(), nodes, "ins") == ["instance"]
    assert nodes.listed == ["", "00", "00/0001", "cookies"]
