"""Opening the lanes of a producer, and opening them anew after a failure."""

from __future__ import annotations

import uuid
from contextlib import AbstractAsyncContextManager

from ledger_client.ledgers.ledgers import Ledgers
from ledger_client.topics.lanes.lane import open_lane
from ledger_client.topics.lanes.lane_writer import LaneWriter
from ledger_client.topics.producing.partition_watch import PartitionWatch
from ledger_client.topics.producing.producer_options import ProducerOptions


class ProducerLanes:
    """Opens the lanes of a producer, on the topic as *watch* has seen it last."""

    def __init__(self, ledgers: Ledgers, watch: PartitionWatch, options: ProducerOptions) -> None:
        self._ledgers = ledgers
        self._watch = watch
        self._options = options
        self._access = options.access_to(watch.topic)
        self._owner = f"{options.producer_name or 'producer'}-{uuid.uuid4().hex}"

    def open(self, partition: int, number: int | None) -> AbstractAsyncContextManager[LaneWriter]:
        """Open a lane of a partition; with *number* that lane, anew after a failure."""
        # A lane opened anew must not be taken from a producer that took it meanwhile.
        is_anew = number is not None
        is_shared = self._access == "shared"
        return open_lane(
            self._ledgers,
            self._watch.topic,
            partition,
            access="exclusive" if is_anew and not is_shared else self._access,
            producer=self._options.producer_name,
            lane=number if is_shared else None,
            lane_name=self._options.lane_name,
            owner=self._owner,
            is_back=is_anew,
        )
