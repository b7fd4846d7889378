"""Workers of a replay as tasks of this process: slow ones, and some that do their part twice."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import trio

from ledger_client import Client
from ledger_client.jobs.replay.parts import PartPlan, PartResult, PartWork, copy_part

Hook = Callable[[], Awaitable[None]]


class TaskWorkers:
    """Does the parts of a round at once, each after a while.

    Attributes:
        rounds: how many parts each round had.
        wrong: how many parts were cut wrongly.
    """

    def __init__(
        self,
        source: Client,
        target: Client | None = None,
        *,
        seed: int = 0,
        at_once: int = 2,
        attempts: int = 1,
        before: Hook | None = None,
    ) -> None:
        self.rounds: list[int] = []
        self.wrong = 0
        self._source = source
        self._target = target or source
        self._chance = random.Random(seed)
        self._at_once = at_once
        self._attempts = attempts
        self._before = before

    async def count(self) -> int:
        return self._at_once

    async def copy(
        self, work: PartWork, parts: Sequence[PartPlan], told: Callable[[float], None]
    ) -> Sequence[PartResult]:
        if self._before is not None:
            await self._before()
        self.rounds.append(len(parts))
        found: dict[int, list[PartResult]] = {}

        async def do(plan: PartPlan, attempt: int) -> None:
            await trio.sleep(self._chance.random() * 5)
            result = await copy_part(
                self._source._context, self._target._context.ledgers, work, plan, attempt=attempt
            )
            found.setdefault(plan.index, []).append(result)
            told(len(found) / len(parts))

        async with trio.open_nursery() as nursery:
            for plan in parts:
                for attempt in range(self._attempts):
                    nursery.start_soon(do, plan, attempt)
        results = [self._chance.choice(found[plan.index]) for plan in parts]
        self.wrong += sum(result.passed is not None for result in results)
        return results
