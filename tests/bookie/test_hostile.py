"""Hostile peers: whatever one of them sends, the bookie serves the others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import trio
import v2
from rig import serving, settings
from running import connected, known, page, running

from bookie.daemon import Ready
from bookie.foreign import FREE_FROM
from bookie.outbox import CallRoom
from metadata import calls, inspections
from metadata.groups.calls import GroupRequest
from metadata.urls import open_store

ENTRY_SIZE_MAX = (5 << 20) - 48

SOUND_FRAMES = [
    v2.ADD_HELLO,
    v2.add(1, 1, bytes(300), flags=v2.RECOVERY),
    v2.READ_HELLO,
    v2.read(1, -1),
    v2.FENCE_HELLO,
    v2.batch_read(1, 0),
    v2.read_wait(1, 0, known_lac=-1, wait_ms=50),
    v2.write_lac(1, 0),
    v2.frame(v2.AUTH, b"\x0a\x01x\x12\x00"),
    v2.call(calls.encode_request(calls.BookieInfo())),
    v2.call(calls.encode_request(calls.LedgerStates())),
]
EXTREMES = [
    bytes(8),
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
    b"\x80" + bytes(7),
    v2.int64(1 << 32),
    v2.int64(5 << 20),
]


def mutated(chance: random.Random) -> bytes:
    """A sound frame with some of its bytes, or one of its fields, replaced."""
    data = bytearray(chance.choice(SOUND_FRAMES))
    if chance.random() < 0.5:
        at = chance.randrange(8, len(data))
        data[at : at + 8] = chance.choice(EXTREMES)[: len(data) - at]
    else:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
    if chance.random() < 0.1:
        data[:4] = chance.randbytes(4)
    return bytes(data)


async def send_and_see_it_dealt_with(address: str, data: bytes) -> None:
    """Send *data* and a sound read; return at its answer, or when the bookie hangs up."""
    async with connected(address) as peer:
        assert isinstance(peer.stream, trio.SocketStream)
        try:
            await peer.stream.send_all(data + v2.read(424242, 0))
            await peer.stream.send_eof()
            received = b""
            while v2.int64(424242) not in received:
                chunk = await peer.stream.receive_some(65536)
                if not chunk:
                    return
                received = received[-8:] + chunk
        except trio.BrokenResourceError:
            return


async def serves_others(ready: Ready) -> None:
    """A client that did nothing wrong is served, and no bug came to light."""
    async with connected(ready.address) as peer:
        assert (await peer.ask(v2.add(FREE_FROM, 0))).code == 0
        assert (await peer.ask(v2.read(FREE_FROM, 0))).body == v2.entry(FREE_FROM, 0)
    status, text = await page(ready.metrics_port, "/metrics")
    assert (status, b"quire_bookie_connections_faults_total 0.0" in text) == (200, True)


async def test_mutated_frames_of_every_opcode_end_no_more_than_their_connection(
    tmp_path: Path,
) -> None:
    chance = random.Random(11)
    config = settings(tmp_path, metrics_port=-1)
    async with open_store(config.metadata) as store, running(config, store) as ready:
        with trio.fail_after(120):
            for _ in range(60):
                async with trio.open_nursery() as nursery:
                    for _ in range(10):
                        nursery.start_soon(
                            send_and_see_it_dealt_with, ready.address, mutated(chance)
                        )
            await serves_others(ready)


HOSTILE: list[Any] = [
    None,
    True,
    -1,
    (1 << 63) - 1,
    (1 << 64) - 1,
    -(1 << 63),
    float("nan"),
    float("inf"),
    -1e308,
    "",
    "\0",
    "\U0010ffff" * 600,
    b"\xff" * 70_000,
    [],
    [[]] * 2000,
    {},
    {"type": "Put"},
    msgspec.msgpack.Ext(7, b"x" * 9),
]
SESSION = {"type": "StoreSession", "owner": "o", "epoch": 1, "ttl_s": 1.0}
LEASE = {
    "type": "Lease",
    "name": "l",
    "owner": "o",
    "epoch": 1,
    "value": b"",
    "expires_in_s": 1.0,
    "session": 1,
}
RECORD = {"epoch": 0, "run": "r", "wanted": {"topics": ["shop/a"], "patterns": []}, "parts": []}
BEAT = ["hostile", "m", "r", 0, 0.0]
SOUND_FIELDS: dict[str, Any] = {
    "key": "hostile/key",
    "reports": [[1, -1, 0, 2, 3, 4]],
    "uid": 1,
    "value": b"v",
    "expected": 0,
    "prefix": "hostile/",
    "add": ["hostile/"],
    "drop": [],
    "known_lac": 0,
    "since": None,
    "after": "",
    "counter": "hostile",
    "name": "hostile",
    "owner": "peer",
    "epoch": 1,
    "ttl_s": 1.0,
    "lease": LEASE,
    "session": SESSION,
    "ledger_id": 1,
    "entry_id": 0,
    "limit": 10,
    "count": 10,
    "revision": None,
    "wait_ms": 0,
    "major": False,
    "file_id": 1,
    "group": 0,
    "skip": 0,
    "groups": False,
    "log_id": 1,
    "member": "m",
    "run": "r",
    "record": RECORD,
    "mode": "exclusive",
    "beats": [BEAT],
    "force": False,
    "dry_run": False,
    "in_vain": False,
    "stays": False,
    "keep": True,
    "to_ms": 1,
    "incarnation": 0,
    "ops": [{"type": "Put", "key": "hostile/op", "value": b"v", "expected": None}],
}


_BY_NUMBER = (
    calls.LedgerStates,
    calls.Logs,
    calls.LedgerRuns,
    inspections.Indexes,
    inspections.IndexExtents,
)


NO_REQUESTS = (
    b"",
    b"\x91" * 100_000,  # nested deeper than any stack
    b"\x81\xa4type" + b"\x81\xa1x" * 50_000 + b"\xc0",
    b"\xdf\xff\xff\xff\xff",  # a map that claims four billion keys
    b"\xc6\xff\xff\xff\xff",  # bytes that claim four gigabytes
    b"\x81\xa4type\xd9\xff",
    b"\xc1" * 1000,
    b"\x81\xa4type\xa3\xff\xfe\xfd",  # no UTF-8
)


def hostile_calls() -> Iterator[bytes]:
    """Each request with each of its fields replaced, and bodies that are no request."""
    yield from requests_with_hostile_fields()
    yield from requests_with_hostile_parts()
    yield from NO_REQUESTS


def requests_with_hostile_fields() -> Iterator[bytes]:
    for kind in get_args(calls.Request):
        fields = [field.name for field in msgspec.structs.fields(kind)]
        sound = {name: SOUND_FIELDS[name] for name in fields}
        if kind in _BY_NUMBER:
            sound["after"] = -1
        if kind in get_args(GroupRequest):
            sound["group"] = "hostile"
        for name in fields:
            for value in HOSTILE:
                yield msgspec.msgpack.encode({"type": kind.__name__, **sound, name: value})


def requests_with_hostile_parts() -> Iterator[bytes]:
    for kind_name, field, whole in (
        ("Update", "lease", LEASE),
        ("KeepSession", "session", SESSION),
        ("JoinGroup", "record", RECORD),
        ("Transact", "ops", SOUND_FIELDS["ops"][0]),
    ):
        for name in whole:
            for value in HOSTILE:
                broken = {**whole, name: value}
                nested = [broken] if field == "ops" else broken
                others = {"value": b"v", "group": "hostile", "member": "m"}
                yield msgspec.msgpack.encode({"type": kind_name, **others, field: nested})
    for index in range(len(BEAT)):
        for value in HOSTILE:
            beat = [*BEAT[:index], value, *BEAT[index + 1 :]]
            yield msgspec.msgpack.encode({"type": "ReportIn", "beats": [beat]})


async def test_a_call_with_any_fields_gets_a_reply(tmp_path: Path) -> None:
    config = settings(tmp_path, metrics_port=-1)
    async with open_store(config.metadata) as store, running(config, store) as ready:
        async with connected(ready.address) as peer:
            await known(store, 1)
            await peer.ask(v2.ADD_HELLO)
            with trio.fail_after(240):
                for body in hostile_calls():
                    answer = await peer.ask(v2.call(body))
                    assert (answer.opcode, answer.code) == (v2.CALL, 0)
                    calls.decode_reply(answer.rest[8:])
        await serves_others(ready)


async def test_an_entry_that_fits_no_answer_is_refused_and_the_largest_is_read_back(
    tmp_path: Path,
) -> None:
    """One such entry ended the bookie at each read, after every restart anew."""
    config = settings(tmp_path, metrics_port=-1)
    largest = bytes(ENTRY_SIZE_MAX - 32)
    async with open_store(config.metadata) as store:
        async with running(config, store) as ready, connected(ready.address) as peer:
            await known(store, 1)
            for more in (1, 12, 24):
                assert (await peer.ask(v2.add(1, 0, largest + bytes(more)))).code == 100
            assert (await peer.ask(v2.add(1, 0, largest))).code == 0
            assert (await peer.ask(v2.write_lac(1, 0))).code == 0
        async with running(config, store) as ready, connected(ready.address) as peer:
            entry = v2.entry(1, 0, largest)
            assert (await peer.ask(v2.batch_read(1, 0))).entries == [entry]
            waited = await peer.ask(v2.read_wait(1, 0, known_lac=-1, wait_ms=0))
            assert waited.entries == [entry]
            await serves_others(ready)


async def test_a_bug_met_while_serving_one_peer_ends_that_connection_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(body: bytes, _: CallRoom) -> bytes:
        raise ZeroDivisionError(f"{len(body)} bytes too many")

    async with serving(settings(tmp_path)) as rig:
        rig.server.answer_call = broken
        other, peer = rig.connect(), rig.connect()
        await other.ask(v2.ADD_HELLO)
        await peer.stream.send_all(v2.call(b"any"))
        assert await peer.closed()
        assert (await other.ask(v2.READ_HELLO)).code == 0
        assert (rig.server.faults, rig.server.budget.held) == (1, 0)
    assert "report the traceback" in caplog.text


async def test_a_failure_of_the_disk_met_in_a_conversation_ends_the_bookie(tmp_path: Path) -> None:
    async def failing(_: bytes, __: CallRoom) -> bytes:
        raise OSError(5, "flushing failed")

    with pytest.RaisesGroup(
        pytest.RaisesExc(OSError, match="flushing failed"), flatten_subgroups=True
    ):
        async with serving(settings(tmp_path)) as rig:
            rig.server.answer_call = failing
            peer = rig.connect()
            await peer.stream.send_all(v2.call(b"flush"))
            with trio.fail_after(10):
                await trio.sleep_forever()
