"""Topics and replicated ledgers for Python: write, read and follow them, on trio.

    async with ledger_client.connect("bookie://127.0.0.1:3181") as client:
        await client.topics.create("shop/orders")
        async with client.producer("shop/orders") as producer:
            message_id = await producer.send(b"one", key=b"k")
        async with client.reader("shop/orders") as reader:
            messages = [message async for message in reader]

        async with client.ledgers.create() as ledger:
            entry_id = await ledger.append(b"one")
        async with client.ledgers.open(ledger.id) as reader:
            entries = await reader.read(0, reader.last_confirmed)

``ledger_client.blocking`` has the same calls for code without trio, ``ledger_client.aio`` for
asyncio; ``ledger_client.errors`` lists every error and the remedy for it.
"""

from ledger_client.client import Client, connect
from ledger_client.errors import (
    AccessDenied,
    AckQuorumLost,
    BadAddress,
    BadCut,
    BadGroup,
    BadSchema,
    BadTopic,
    BadValue,
    BookieUnavailable,
    BufferFull,
    Busy,
    ClientClosed,
    CommitRefused,
    DrainRefused,
    EntryLost,
    EventTimeBack,
    Gap,
    JobLost,
    LedgerClosed,
    LedgerError,
    LedgerExists,
    LedgerFenced,
    MemberRemoved,
    MessagesLost,
    MetadataBroken,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchTopic,
    NotEnoughBookies,
    NotOpen,
    NotSent,
    OutcomeUnknown,
    PayloadTooLarge,
    ProducerBusy,
    ProducerClosed,
    ProducerFailed,
    ProducerFenced,
    ReaderClosed,
    ReplayConflict,
    ReplicasUnavailable,
    Retryable,
    SendUnknown,
    SequenceBack,
    SparkError,
    SparkMissing,
    TimeRefused,
    TopicBusy,
    TopicError,
    TopicExists,
    WriterFailed,
    WritersSilent,
    WrongPassword,
)
from ledger_client.groups.consumer import GroupConsumer
from ledger_client.groups.options import TopicPartition
from ledger_client.groups.turns import TopicEvent
from ledger_client.jobs.compaction.job import Compaction
from ledger_client.ledgers.catalogue import LedgerInfo
from ledger_client.ledgers.entries import Entries, Entry, EntryBatch
from ledger_client.ledgers.reader import BatchReads, Follower, LedgerReader
from ledger_client.ledgers.writer import LedgerWriter
from ledger_client.message_id import MessageId, MessageIds
from ledger_client.options import Options
from ledger_client.topics.catalogue import TopicInfo
from ledger_client.topics.messages import Message
from ledger_client.topics.positions import LanePlace, Position, Version
from ledger_client.topics.producing.partition_writer import Ticket
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.reading.reader import TopicReader
from ledger_client.topics.reading.remaining import LaneLag
from ledger_client.topics.reading.state import TopicState
from ledger_client.topics.retention.explanation import LedgerDescription
from ledger_client.topics.rolls import Rolled
from ledger_client.topics.times import EventTime, PublishTime, Timestamp
from ledger_client.topics.timestamps import Timestamps
from metadata.time.timestamps import TimestampRange
from metadata.topics import Retention, RollPolicy, Schema

__all__ = [
    "AccessDenied",
    "AckQuorumLost",
    "BadAddress",
    "BadCut",
    "BadGroup",
    "BadSchema",
    "BadTopic",
    "BadValue",
    "BatchReads",
    "BookieUnavailable",
    "BufferFull",
    "Busy",
    "Client",
    "ClientClosed",
    "CommitRefused",
    "Compaction",
    "DrainRefused",
    "Entries",
    "Entry",
    "EntryBatch",
    "EntryLost",
    "EventTime",
    "EventTimeBack",
    "Follower",
    "Gap",
    "GroupConsumer",
    "JobLost",
    "LaneLag",
    "LanePlace",
    "LedgerClosed",
    "LedgerDescription",
    "LedgerError",
    "LedgerExists",
    "LedgerFenced",
    "LedgerInfo",
    "LedgerReader",
    "LedgerWriter",
    "MemberRemoved",
    "Message",
    "MessageId",
    "MessageIds",
    "MessagesLost",
    "MetadataBroken",
    "MetadataUnavailable",
    "NoSuchEntry",
    "NoSuchLedger",
    "NoSuchTopic",
    "NotEnoughBookies",
    "NotOpen",
    "NotSent",
    "Options",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "Position",
    "Producer",
    "ProducerBusy",
    "ProducerClosed",
    "ProducerFailed",
    "ProducerFenced",
    "PublishTime",
    "ReaderClosed",
    "ReplayConflict",
    "ReplicasUnavailable",
    "Retention",
    "Retryable",
    "RollPolicy",
    "Rolled",
    "Schema",
    "SendUnknown",
    "SequenceBack",
    "SparkError",
    "SparkMissing",
    "Ticket",
    "TimeRefused",
    "Timestamp",
    "TimestampRange",
    "Timestamps",
    "TopicBusy",
    "TopicError",
    "TopicEvent",
    "TopicExists",
    "TopicInfo",
    "TopicPartition",
    "TopicReader",
    "TopicState",
    "Version",
    "WriterFailed",
    "WritersSilent",
    "WrongPassword",
    "connect",
]
