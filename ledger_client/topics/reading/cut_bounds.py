"""Cuts as the beginning or end of a read: their names replaced by places, or by their moment."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ledger_client.errors import BadCut
from ledger_client.ledgers.catalogue import translated
from ledger_client.topics.catalogue import TopicCatalogue
from ledger_client.topics.positions import LanePlace, Place, Position
from ledger_client.topics.reading.options import ReadOptions, Start
from ledger_client.topics.times import Timestamp
from metadata.cuts import CutRecord, check_cut, read_cut
from metadata.topics import TopicRecord


async def with_cuts(
    catalogue: TopicCatalogue, options: ReadOptions, topics: Sequence[TopicRecord]
) -> ReadOptions:
    """Return the options with places for the cuts that they name.

    Raises:
        BadCut: there is no such cut, or one of the topics is not in it.
        MetadataUnavailable, MetadataBroken: from the store.
    """
    for end in ("start", "end"):
        name: str = options.starting_cut if end == "start" else options.ending_cut
        if not name:
            continue
        cut = await _read(catalogue, name)
        place = _bound(cut, options, topics)
        if end == "start":
            options = msgspec.structs.replace(
                options, start=place, inclusive=False, starting_cut=""
            )
        else:
            options = msgspec.structs.replace(options, end=place, end_inclusive=True, ending_cut="")
    return options


async def _read(catalogue: TopicCatalogue, name: str) -> CutRecord:
    try:
        check_cut(name)
    except ValueError as wrong:
        raise BadCut(str(wrong), cut=repr(name)) from None
    with translated(catalogue.timeout_s):
        found = await read_cut(catalogue.store, name)
    if found is None:
        raise BadCut.unknown(name)
    return found.record


def _bound(cut: CutRecord, options: ReadOptions, topics: Sequence[TopicRecord]) -> Start:
    """Return the cut as a bound of these topics."""
    for topic in topics:
        there = cut.topic(topic.uid)
        if there is None:
            is_former = any(each.name == topic.name for each in cut.topics)
            what = "has a former topic of the name" if is_former else "does not have topic"
            text = f"{what} {topic.name}; `quire cut describe {cut.name}` shows what it has"
            raise BadCut(text, cut=cut.name)
    if options.order == "timestamp":
        return Timestamp(cut.timestamp)
    uids = {topic.uid for topic in topics}
    return Position(
        LanePlace(
            topic.name,
            topic.uid,
            at.partition,
            at.lane,
            Place(at.number, at.entry, at.skip, at.ledger_id, at.version),
        )
        for topic in cut.topics
        if topic.uid in uids
        for at in topic.lanes
    )
