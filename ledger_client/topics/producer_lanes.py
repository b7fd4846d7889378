"""How a producer's lanes are opened, and opened anew after a failure."""

from __future__ import annotations

import uuid
from contextlib import AbstractAsyncContextManager

from ledger_client.client import Client
from ledger_client.topics.keeper import OpenLane
from ledger_client.topics.lane import LaneWriter, open_lane
from ledger_client.topics.producer_options import ProducerOptions
from metadata.topics import TopicRecord


def lanes_of(client: Client, topic: TopicRecord, options: ProducerOptions) -> OpenLane:
    """Return what opens the lanes of a partition for a producer with these options."""
    access = options.access_to(topic)
    owner = f"{options.producer_name or 'producer'}-{uuid.uuid4().hex}"

    def open_one(partition: int, number: int | None) -> AbstractAsyncContextManager[LaneWriter]:
        # Anew, after a failure: the same lane, and not from somebody who took it meanwhile.
        is_anew = number is not None
        return open_lane(
            client,
            topic,
            partition,
            access="exclusive" if is_anew and access != "shared" else access,
            producer=options.producer_name,
            lane=number if access == "shared" else None,
            owner=owner,
            is_back=is_anew,
        )

    return open_one
