"""``quire group list`` and ``describe``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.group.names import group_name
from ledger_client.commands.outcome import finish
from ledger_client.commands.tables import count, show, table
from ledger_client.groups.consumers import ConsumerInfo, Subscription, consumers_of
from ledger_client.topics.catalogue import TopicInfo
from metadata.groups.calls import GroupState, MemberState
from metadata.groups.rows import SLOTS, Mode, PartRun, Wanted


class GroupDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `group describe --json`, and of `group list --json` without subscriptions."""

    group: str
    mode: str
    keep: bool
    """it holds back retention"""
    state: str
    epoch: int
    rebalances: int
    consumers: list[ConsumerInfo]
    subscriptions: Sequence[Subscription] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(
        cls, found: GroupState, subscriptions: Sequence[Subscription] | None = None
    ) -> GroupDetails:
        """Return what is printed of a group."""
        return cls(
            group=found.group,
            mode=found.mode,
            keep=found.keep,
            state=found.state,
            epoch=found.epoch,
            rebalances=found.rebalances,
            consumers=consumers_of([found]),
            subscriptions=msgspec.UNSET if subscriptions is None else subscriptions,
        )


@click.command("list")
@options.cluster
@options.as_json
def list_(*, cluster: str, as_json: bool) -> None:
    """List all groups."""
    found = trio.run(finish, partial(_list, cluster))
    if as_json:
        click.echo(msgspec.json.encode([GroupDetails.of(each) for each in found]).decode())
        return
    right = ("members", "rebalances")
    rows = table("group", "mode", "state", *right, "holds retention", right=right)
    for group in found:
        counts = (str(len(group.members)), str(group.rebalances))
        rows.add_row(group.group, group.mode, group.state, *counts, "yes" if group.keep else "no")
    show(rows)


async def _list(cluster: str) -> list[GroupState]:
    async with connect(cluster) as client:
        return await client.groups.list()


@click.command()
@group_name
@options.cluster
@options.as_json
def describe(*, name: str, cluster: str, as_json: bool) -> None:
    """Show a group's members, and the partitions that each of them has.

    A member is rebalancing until it has its partitions, and while it gives some up. "silent" is
    the time since it reported in, "idle" the time for which it had not asked for messages then.
    A member of a key-shared group has slots of partitions, 0 to 15 of each: shop/orders:0-1 are all
    slots of two partitions, "shop/orders:2 slots 0-7" is half of another. A key is in one slot.
    With --json, also the lanes that the group consumes: who has them, and how far it came.
    """
    if as_json:
        details = trio.run(finish, partial(_details, cluster, name))
        click.echo(msgspec.json.encode(details).decode())
        return
    found, topics = trio.run(finish, partial(_describe, cluster, name))
    members = count(len(found.members), "member")
    keeps = ", holds back retention" if found.keep else ""
    show(f"{found.group}: {found.state}, {members}, mode {found.mode}, epoch {found.epoch}{keeps}")
    rows = table("member", "state", "partitions", "wants", "silent", "idle", "host", "process")
    for member in found.members:
        rows.add_row(*_cells(member, found.mode, topics))
    if found.members:
        show(rows)


async def _details(cluster: str, name: str) -> GroupDetails:
    async with connect(cluster) as client:
        found = await client.groups.describe(name)
        return GroupDetails.of(found, await client.groups.subscriptions(name))


async def _describe(cluster: str, name: str) -> tuple[GroupState, Mapping[int, TopicInfo]]:
    """Return the group, and the topics by uid."""
    async with connect(cluster) as client:
        found = await client.groups.describe(name)
        return found, {each.uid: each for each in await client.topics.list(own=True)}


def _cells(member: MemberState, mode: Mode, topics: Mapping[int, TopicInfo]) -> list[str]:
    record = member.record
    of_run = _slots_text if mode == "key-shared" else _run_text
    return [
        member.member,
        member.state,
        ", ".join(of_run(run, topics.get(run.topic)) for run in record.parts) or "-",
        _wanted_text(record.wanted),
        f"{member.silent_s:.1f} s",
        f"{member.polled_s:.1f} s",
        record.host,
        str(record.process_id),
    ]


def _run_text(run: PartRun, topic: TopicInfo | None) -> str:
    """Return the topic and the partitions of a run, as shop/orders:0-3."""
    if topic is None:  # it was deleted meanwhile
        return f"uid {run.topic}" + (f":{_span(run.first, run.last)}" if run.first >= 0 else "")
    return f"{topic.name}:{_span(run.first, run.last)}" if topic.partitions else topic.name


def _slots_text(run: PartRun, topic: TopicInfo | None) -> str:
    """Return the partitions of a run of slots: whole ones, and others with their slots."""
    touched = range(run.first // SLOTS, run.last // SLOTS + 1)
    whole = [
        each for each in touched if run.first <= each * SLOTS and (each + 1) * SLOTS - 1 <= run.last
    ]
    texts = [_run_text(PartRun(run.topic, whole[0], whole[-1]), topic)] if whole else []
    for each in touched:
        if each not in whole:
            first = max(run.first - each * SLOTS, 0)
            last = min(run.last - each * SLOTS, SLOTS - 1)
            where = _run_text(PartRun(run.topic, each, each), topic)
            texts.append(f"{where} slots {_span(first, last)}")
    return ", ".join(texts)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _wanted_text(wanted: Wanted) -> str:
    return ", ".join([*wanted.topics, *wanted.patterns])
