"""Topics and replicated ledgers for Python: write, read and follow them, on trio.

    async with ledger_client.connect("bookie://127.0.0.1:3181") as client:
        await client.create_topic("shop/orders")
        async with client.producer("shop/orders") as producer:
            message_id = await producer.send(b"one", key=b"k")
        async with client.topic_reader("shop/orders") as reader:
            messages = [message async for message in reader]

        async with client.create_ledger() as ledger:
            entry_id = await ledger.append(b"one")
        async with client.open_ledger(ledger.id) as reader:
            entries = await reader.read(0, reader.last_confirmed)

``ledger_client.blocking`` has the same calls for code without trio;
``ledger_client.errors`` says what can go wrong and what to do then.
"""

from ledger_client.connecting import connect
from ledger_client.entries import Entries, Entry, EntryBatch
from ledger_client.errors import LedgerError
from ledger_client.follow import Follower
from ledger_client.listing import LedgerInfo
from ledger_client.options import Options
from ledger_client.reader import BatchReads, LedgerReader
from ledger_client.topics.client import TopicClient as Client
from ledger_client.topics.ledger_description import LedgerDescription
from ledger_client.topics.message_id import MessageId
from ledger_client.topics.message_ids import MessageIds
from ledger_client.topics.messages import Message
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.tickets import Ticket
from ledger_client.topics.reading.places import LanePlace
from ledger_client.topics.reading.reader import TopicReader
from ledger_client.topics.reading.times import EventTime, PublishTime, Timestamp
from ledger_client.writer import LedgerWriter
from metadata.topics import Retention, RollPolicy, Schema

__all__ = [
    "BatchReads",
    "Client",
    "Entries",
    "Entry",
    "EntryBatch",
    "EventTime",
    "Follower",
    "LanePlace",
    "LedgerDescription",
    "LedgerError",
    "LedgerInfo",
    "LedgerReader",
    "LedgerWriter",
    "Message",
    "MessageId",
    "MessageIds",
    "Options",
    "Producer",
    "PublishTime",
    "Retention",
    "RollPolicy",
    "Schema",
    "Ticket",
    "Timestamp",
    "TopicReader",
    "connect",
]
