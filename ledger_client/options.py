"""The options of a client, with units and edge values."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and bounds of a client. Seconds end in ``_s``, sizes are bytes."""

    connect_timeout_s: float = 2.0
    """For reaching a bookie: name lookup and TCP handshake."""
    request_timeout_s: float = 10.0
    """For one answer of one bookie to a read."""
    send_timeout_s: float = 10.0
    """For a bookie to take the next MiB; a peer that stopped reading is dropped."""
    append_timeout_s: float = 30.0
    """From sending an entry to its acknowledgement; then the writer fails."""
    read_timeout_s: float = 10.0
    """For a read while no replica can be reached; then Retryable is raised."""
    close_timeout_s: float = 30.0
    """For closing a ledger: its pending entries, then the metadata."""
    metadata_timeout_s: float = 10.0
    """For one operation of the metadata store."""
    speculative_s: float = 2.0
    """Without an answer for so long, the next replica is asked too; doubles each time."""
    explicit_lac_s: float = 0.01
    """A writer idle for this long sends its last confirmed entry to the bookies; 0: never."""
    poll_s: float = 2.0
    """How long one long poll of a follower is parked at a bookie."""
    slow_bookie_s: float = 2.0
    """A bookie whose queue stays full for so long is given up if the quorum can spare it."""
    bookie_timeout_s: float = 2.0
    """A bookie that acknowledges nothing for so long, although entries wait, is given up."""
    replace_timeout_s: float = 10.0
    """Without an ack quorum and without a bookie to replace one, a writer fails after this."""
    quarantine_s: float = 5.0
    """A bookie that failed is not chosen for so long; doubles each time it fails again soon."""
    quarantine_max_s: float = 60.0
    """The longest quarantine; after as long without a failure, all is forgiven."""
    racks_min: int = 1
    """Copies of an entry must be on so many racks, at most as many as there are copies, or no
    ledger is created and no bookie replaced; 1: they are on as many as possible, without fail."""
    reconnect_delay_s: float = 0.05
    """Before the second attempt to reach a bookie; doubles up to reconnect_delay_max_s."""
    reconnect_delay_max_s: float = 2.0
    """The longest pause between two attempts to reach a bookie."""
    bytes_in_flight_max: int = 16 * 1024 * 1024
    """Payload bytes of one writer sent and not confirmed; append waits above."""
    queue_size_max: int = 32 * 1024 * 1024
    """Bytes not yet sent to one bookie; writers wait above."""
    read_batch_size: int = 2 * 1024 * 1024
    """Payload bytes that one batch read asks for; at most 2 MiB are used."""
    reads_in_flight: int = 4
    """Batches of one sequential read that are asked for ahead of the caller."""


DEFAULT_OPTIONS = Options()
