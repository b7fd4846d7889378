"""``quire topic why``: where a message is, and why readers get it or not."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.forms import text_or_base64
from ledger_client.commands.options import BytesParam, MomentParam, moment_text
from ledger_client.commands.outcome import finish
from ledger_client.commands.places import NS_PER_MS
from ledger_client.commands.progress import show_messages
from ledger_client.commands.tables import count, moment_of_ms, show, size
from ledger_client.errors import lane_text
from ledger_client.message_id import MessageId
from ledger_client.topics.times import PublishTime
from ledger_client.topics.tracing.key_search import MESSAGES_MAX
from ledger_client.topics.tracing.whereabouts import (
    GroupStanding,
    KeyWhereabouts,
    TracedMessage,
    Whereabouts,
)
from metadata.outcome import Exit

_ELSEWHERE = (
    "it may be in another partition, if partitions were added since or its producer chose one:"
    " --partition searches there"
)


class Base64Param(click.ParamType[bytes]):
    """Parses bytes in base64."""

    name = "base64"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Decode the text."""
        if isinstance(value, bytes):
            return value
        try:
            return base64.b64decode(str(value), validate=True)
        except (binascii.Error, ValueError):
            self.fail(f"{value!r} is not base64", param, ctx)


class MessageIdParam(click.ParamType[MessageId]):
    """Parses the id of a message, as other commands print it."""

    name = "message id"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> MessageId:
        """Parse an id."""
        if isinstance(value, MessageId):
            return value
        try:
            return MessageId.parse(str(value).strip())
        except ValueError as wrong:
            self.fail(f"{wrong}; `quire read --json` prints ids, such as 7:2:-1:0", param, ctx)


@click.command()
@options.topic
@click.argument("message_id", type=MessageIdParam(), metavar="[MESSAGE_ID]", required=False)
@click.option(
    "--key", type=BytesParam(), metavar="TEXT", help="Find the newest messages of this key."
)
@click.option("--key-base64", type=Base64Param(), metavar="TEXT", help="The same, in base64.")
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(-1),
    multiple=True,
    metavar="INDEX",
    show_default="the one to which producers send the key now",
    help="Search this partition for the key; may be repeated.",
)
@click.option(
    "--since",
    type=MomentParam(published=True),
    metavar="TIME",
    help="Search no messages sent before TIME.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=MESSAGES_MAX,
    show_default=True,
    metavar="COUNT",
    help="Read at most so many messages in search of the key.",
)
@options.cluster
@options.as_json
def why(
    *,
    name: str,
    message_id: MessageId | None,
    key: bytes | None,
    key_base64: bytes | None,
    partitions: tuple[int, ...],
    since: int | None,
    limit: int,
    cluster: str,
    as_json: bool,
) -> None:
    """Show where a message is, and why readers do not get it.

    MESSAGE_ID is ledger:entry:partition:batch, as `quire read --json` prints it. With --key, the
    newest message of the key in each lane is shown; lanes are read backward to find it.

    The first line is the verdict:

    \b
    readable         readers get it
    unconfirmed      bookies have it, but it is not confirmed to readers yet
    not written      its ledger is open, and no bookie has it
    not begun        its ledger is only prepared
    beyond the end   its ledger was closed before it: it was never acknowledged
    deleted          somebody deleted it: quire topic truncate, or delete-lane
    removed          its ledger is gone: retention, or quire topic purge
    ledger deleted   somebody deleted its ledger: quire ledger delete
    topic deleted    the topic was deleted with all its messages
    no such message  the id is of another topic or partition, or of nothing
    unreadable       it was acknowledged, and no bookie has a sound copy
    unknown          bookies that may have it do not answer

    Then follow the reason, what a reader waits for, its place, its copies on each bookie, how long
    it is kept, what compacted readers get, and which groups are past it. If its topic has
    timesync, a row says whether readers in the order of timestamps get it, or who holds the tick
    back that they wait for. Nothing is changed: no ledger is fenced or recovered.

    TIME is a date and time (UTC unless it has an offset), nanoseconds since 1970, or a duration
    such as 15min for that long ago.

    Exit code 1 if a verdict is unreadable or unknown, or a lane could not be searched to its end.
    """  # noqa: D301 - the backslash keeps lines
    wanted = key_base64 if key is None else key
    if (key is not None and key_base64 is not None) or (message_id is None) == (wanted is None):
        raise click.UsageError("name one message: a MESSAGE_ID, --key or --key-base64")
    if message_id is not None:
        if partitions or since is not None:
            raise click.UsageError("--partition and --since are for --key; an id has its partition")
        found = trio.run(finish, partial(_why, cluster, name, message_id))
        _print(_fields(found) if as_json else _lines(found))
        is_answered = found.is_answered
    else:
        assert wanted is not None
        search = _Search(wanted, partitions or None, since, limit)
        of_key = trio.run(finish, partial(_why_key, cluster, name, search))
        _print(_fields_of_key(of_key) if as_json else _lines_of_key(of_key))
        is_answered = of_key.is_answered
    if not is_answered:
        raise click.exceptions.Exit(Exit.FAILED)


class _Search(NamedTuple):
    """A key, and where to search it."""

    key: bytes
    partitions: tuple[int, ...] | None
    since: int | None
    limit: int


async def _why(cluster: str, name: str, message_id: MessageId) -> Whereabouts:
    async with connect(cluster) as client:
        return await client.topics.why(name, message_id)


async def _why_key(cluster: str, name: str, search: _Search) -> KeyWhereabouts:
    since = None if search.since is None else PublishTime(-(-search.since // NS_PER_MS))
    seen = 0
    with show_messages(f"searching {name}") as update:

        def advance(messages: int) -> None:
            nonlocal seen
            seen += messages
            update(seen, seen, search.limit)

        async with connect(cluster) as client:
            return await client.topics.why_key(
                name,
                search.key,
                partitions=search.partitions,
                since=since,
                messages_max=search.limit,
                on_progress=advance,
            )


def _print(output: dict[str, object] | list[str]) -> None:
    if isinstance(output, dict):
        click.echo(msgspec.json.encode(output).decode())
    else:
        show(*output)


# --- JSON -------------------------------------------------------------------------------


def _fields(found: Whereabouts) -> dict[str, object]:
    """Return the fields of --json: ids as text, and the key as `quire read --json` has it."""
    fields: dict[str, object] = msgspec.structs.asdict(found)
    fields["message_id"] = str(found.message_id)
    fields["first_left"] = found.first_left and str(found.first_left)
    if found.compacted is not None:
        newest = found.compacted.newest
        fields["compacted"] = msgspec.structs.asdict(found.compacted) | {
            "newest": newest and str(newest)
        }
    fields["groups"] = [
        msgspec.structs.asdict(each) | {"dead_letter": each.dead_letter and str(each.dead_letter)}
        for each in found.groups
    ]
    if found.message is not None:
        message = msgspec.structs.asdict(found.message)
        del message["key"]
        fields["message"] = text_or_base64("key", found.message.key) | message
    return fields


def _fields_of_key(found: KeyWhereabouts) -> dict[str, object]:
    """Return the fields of --json: the search, and each message as without --key."""
    search = found.search
    fields: dict[str, object] = {"topic": search.topic}
    fields |= text_or_base64("key", search.key)
    fields["partitions"] = search.partitions
    fields["searched"] = search.searched
    fields["newest"] = [str(message_id) for message_id in search.newest]
    fields["complete"] = search.is_complete
    fields["unread"] = search.unread
    fields["messages"] = [_fields(each) for each in found.messages]
    return fields


# --- Text -------------------------------------------------------------------------------


def _lines(found: Whereabouts) -> list[str]:
    lines = [f"{found.message_id}: {found.verdict}", *_rows(("because", found.why))]
    return [
        *lines,
        *_rows(
            ("a reader awaits", found.waits_for),
            ("by timestamp", "" if found.ticks is None else found.ticks.why),
            ("deleted", moment_of_ms(found.deleted_ms) if found.deleted_ms else ""),
            ("place", _place(found)),
            ("ledger", _ledger(found)),
            ("written by", _writer(found)),
            ("message", _message(found.message)),
            ("copies", _copies(found)),
            ("repair", _repair(found)),
            ("kept", _kept(found)),
            ("compacted", "" if found.compacted is None else found.compacted.why),
            *((f"group {each.group}", _standing(each)) for each in found.groups),
            ("reading begins", "" if found.first_left is None else str(found.first_left)),
        ),
    ]


def _lines_of_key(found: KeyWhereabouts) -> list[str]:
    search = found.search
    lanes = "no message"
    if not search.is_complete:
        lanes = "none found, and not all was searched,"
    if search.newest:
        lanes = f"in {count(len(search.newest), 'lane')}"
    lines = [f"{_key(search.key)}: {lanes} of {_partitions(search.partitions)}"]
    lines += _rows(("searched", count(search.searched, "message")))
    for lane in search.unread:
        where = lane_text(lane.partition, lane.lane)
        lines += _rows(("not searched", f"the rest of {where}: {lane.reason}"))
    if search.is_complete and not search.newest and search.partitions != [-1]:
        lines += _rows(("elsewhere", _ELSEWHERE))
    for each in found.messages:
        lines += ["", *_lines(each)]
    if len(search.newest) > len(found.messages):
        rest = " ".join(map(str, search.newest[len(found.messages) :]))
        lines += ["", *_rows(("of other lanes", rest))]
    return lines


def _partitions(partitions: Sequence[int]) -> str:
    if list(partitions) == [-1]:
        return "the topic"
    listed = ", ".join(map(str, partitions))
    return f"partition {listed}" if len(partitions) == 1 else f"partitions {listed}"


def _rows(*rows: tuple[str, str]) -> list[str]:
    return [f"{name:<16} {text}" for name, text in rows if text]


def _place(found: Whereabouts) -> str:
    if found.lane is None:
        return ""
    where = lane_text(found.message_id.partition, found.lane)
    version = f", version {found.version}" if found.version >= 0 else ""
    return f"{where}{version}"


def _ledger(found: Whereabouts) -> str:
    ledger = found.ledger
    if ledger is None:
        return ""
    parts = [f"{ledger.ledger_id}, number {ledger.number} of its lane, {ledger.state}"]
    if ledger.closed_ms:
        parts.append(f"at {moment_of_ms(ledger.closed_ms)}")
    if ledger.confirmed is not None:
        last = f"entry {ledger.confirmed}" if ledger.confirmed >= 0 else "no entry"
        parts.append(f"with {last} as the last one that readers get")
    return " ".join(parts)


def _writer(found: Whereabouts) -> str:
    writer = found.writer
    if writer is None:
        is_open = found.ledger is not None and found.ledger.state in {"open", "in recovery"}
        return "nobody" if is_open else ""
    who = writer.producer or "a producer"
    where = f" on {writer.host}, process {writer.process_id}" if writer.host else ""
    return f"{who}{where}; its lease lasts {writer.lease_s:.0f} s, unless it is renewed"


def _message(message: TracedMessage | None) -> str:
    if message is None:
        return ""
    parts = [_key(message.key)]
    parts.append("null value" if message.size is None else size(message.size))
    parts.append(f"sent {moment_of_ms(message.publish_time)}")
    if message.timestamp:
        parts.append(f"timestamp {message.timestamp}")
    if message.event_time is not None:
        parts.append(f"event time {moment_text(message.event_time)}")
    if message.producer:
        number = f" as number {message.sequence}" if message.sequence >= 0 else ""
        parts.append(f"by {message.producer}{number}")
    return ", ".join(parts)


def _key(key: bytes | None) -> str:
    """Write a key: as text, in base64 if it is none."""
    if key is None:
        return "no key"
    [(name, text)] = text_or_base64("key", key).items()
    if text is None or not text.isprintable():
        return f"key {base64.b64encode(key).decode()} (base64)"
    return f"key {text} (base64)" if name.endswith("_base64") else f"key {text}"


def _copies(found: Whereabouts) -> str:
    return ", ".join(
        f"{copy.bookie_id} {copy.state}" + (f" ({copy.reason})" if copy.reason else "")
        for copy in found.copies
    )


def _repair(found: Whereabouts) -> str:
    repair = found.repair
    if repair is None:
        return ""
    failed = f"; last attempt: {repair.last_failure}" if repair.last_failure else ""
    return (
        f"its ledger waits for one since {moment_of_ms(repair.since_ms)}: {repair.reason}{failed}"
    )


def _standing(group: GroupStanding) -> str:
    if group.state == "held":
        who = f"{group.member} has it" if group.member else "it waits for a member"
        return f"{who}, not acknowledged after {count(group.deliveries, 'delivery')}"
    if group.state == "dead letter":
        return f"it failed too often: its dead letter is {group.dead_letter}"
    return "is past it" if group.state == "passed" else "gets it later"


def _kept(found: Whereabouts) -> str:
    if found.keeping is None:
        return ""
    due_ms = found.keeping.due_ms
    return found.keeping.why + (f", until {moment_of_ms(due_ms)}" if due_ms else "")
