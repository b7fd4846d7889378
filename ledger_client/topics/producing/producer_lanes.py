"""How a producer's lanes are opened, and opened anew after a failure."""

from __future__ import annotations

import uuid
from contextlib import AbstractAsyncContextManager

from ledger_client.client import Client
from ledger_client.topics.lanes.lane import LaneWriter, open_lane
from ledger_client.topics.producing.producer_options import ProducerOptions
from metadata.topics import TopicRecord


class ProducerLanes:
    """Opens the lanes of a producer.

    Attributes:
        topic: as it is now; it may get more partitions.
    """

    def __init__(self, client: Client, topic: TopicRecord, options: ProducerOptions) -> None:
        self.topic = topic
        self._client = client
        self._options = options
        self._access = options.access_to(topic)
        self._owner = f"{options.producer_name or 'producer'}-{uuid.uuid4().hex}"

    def open(self, partition: int, number: int | None) -> AbstractAsyncContextManager[LaneWriter]:
        """Open a lane of a partition; with *number* that one, anew."""
        # Anew, after a failure: the same lane, and not from somebody who took it meanwhile.
        is_anew = number is not None
        is_shared = self._access == "shared"
        return open_lane(
            self._client,
            self.topic,
            partition,
            access="exclusive" if is_anew and not is_shared else self._access,
            producer=self._options.producer_name,
            lane=number if is_shared else None,
            lane_name=self._options.lane_name,
            owner=self._owner,
            is_back=is_anew,
        )
