"""Whoever reads the topic of a simulation: from somewhere, there or back, for a while."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import trio
from history import History
from message_events import MessagesAcknowledged, is_nowhere
from message_witness import Audience

from ledger_client import Client
from ledger_client.errors import EntryLost, LedgerError, MessagesLost, NoSuchEntry
from ledger_client.message_id import MessageId

if TYPE_CHECKING:
    from client_host import ClientHost

PATIENCE_S = 20.0
READ_AHEAD_SIZE = 4000


class Listener:
    """Reads one topic. With *may_lose*, disks may fail to read what is there."""

    def __init__(self, topic: str, history: History, *, may_lose: bool) -> None:
        self._topic = topic
        self._history = history
        self._may_lose = may_lose
        self._runs = count(1)

    async def read(self, host: ClientHost, client: Client) -> None:
        """Read once, from a place and in a way of the host's choice."""
        chance = host.machine.chance
        how: dict[str, Any] = {}
        told: dict[str, Any] = {}
        kind = chance.choice(["all", "all", "follow", "follow", "back", "id", "latest"])
        ids = acknowledged(self._history) if kind == "id" else []
        if ids:
            first, inclusive = chance.choice(ids), chance.random() < 0.5
            where = {"partitions": [first.partition], "inclusive": inclusive}
            how |= {"start": first, "follow": chance.random() < 0.5, **where}
            told |= {"first": first, **where}
        elif kind == "latest":
            how |= {"start": "latest", "follow": True}
            told |= {"latest": True}
        elif kind == "back":
            how |= {"reverse": True}
            told |= {"reverse": True}
        else:
            how |= {"follow": kind == "follow"}
        with trio.move_on_after(chance.uniform(1.0, PATIENCE_S)):
            await self._run(client, host.machine.name, how, told, arrow=chance.random() < 0.3)

    async def read_all(self, client: Client) -> None:
        """Read everything, there and back. Raises LedgerError."""
        await self._read_through(client, {}, arrow=False)
        await self._read_through(client, {"reverse": True}, arrow=True)

    async def _read_through(self, client: Client, how: dict[str, Any], *, arrow: bool) -> None:
        audience = self._audience("audit")
        audience.begun(**how)
        async with client.reader(self._topic, **how) as reader:
            await (audience.read_batches if arrow else audience.read)(reader)

    async def _run(
        self,
        client: Client,
        name: str,
        how: dict[str, Any],
        told: dict[str, Any],
        *,
        arrow: bool,
    ) -> None:
        audience = self._audience(name)
        audience.begun(**told)
        try:
            async with client.reader(self._topic, read_ahead_size=READ_AHEAD_SIZE, **how) as reader:
                await (audience.read_batches if arrow else audience.read)(reader)
        except (EntryLost, MessagesLost, NoSuchEntry) as lost:
            if not self._may_lose:
                audience.lost(lost)
        except LedgerError:
            return

    def _audience(self, name: str) -> Audience:
        return Audience(self._history, self._topic, f"{name} #{next(self._runs)}")


def acknowledged(history: History) -> list[MessageId]:
    """Return the acknowledged places of messages."""
    told = (each for each in history.events if isinstance(each, MessagesAcknowledged))
    return [each for event in told for each in event.ids if not is_nowhere(each)]
