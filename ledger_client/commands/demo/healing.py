"""Waiting until every copy of some ledgers is whole, by comparing all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import trio

from ledger_client.client import Client
from ledger_client.commands.errors import NotHealed
from ledger_client.operations.verification import Verification, verify

HEAL_TIMEOUT_S = 60.0
HEAL_POLL_S = 0.1


async def whole_copies(client: Client, ledger_ids: Iterable[int]) -> dict[str, int]:
    """Return how many sound entries each bookie has, once no copy of any ledger lacks one.

    Raises:
        NotHealed: after a minute one still does.
    """
    sound: Counter[str] = Counter()
    with trio.move_on_after(HEAL_TIMEOUT_S):
        for ledger_id in ledger_ids:
            found = await _once_whole(client, ledger_id)
            sound.update({name: copy.sound for name, copy in found.copies.items()})
        return dict(sound)
    raise NotHealed(f"not every copy is whole after {HEAL_TIMEOUT_S:g} s")


async def _once_whole(client: Client, ledger_id: int) -> Verification:
    while True:
        record, _ = await client.catalogue.get(ledger_id)
        found = await verify(client, record)
        if found.whole:
            return found
        await trio.sleep(HEAL_POLL_S)
