"""A way to the store that is cut at one of its calls: the process is gone from then on."""

from __future__ import annotations

from typing import Any

from lane_process import Line
from memory_cluster import MemoryCluster

from metadata.errors import MetadataUnavailable


class Cut(Line):
    """A way to the store that is cut at one of its calls, before or after that is done."""

    def __init__(self, cluster: MemoryCluster, at: int, *, is_done: bool) -> None:
        super().__init__(cluster, 0.0)
        self.calls = 0
        self._at = at
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a store has
        found = getattr(self._store, name)
        return found if name in {"watch", "watches"} else self._counted(found)

    async def transact(self, *args: Any) -> Any:  # noqa: ANN401
        return await self._counted(self._store.transact)(*args)

    def _counted(self, found: Any) -> Any:  # noqa: ANN401
        async def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            self._pass()
            self.calls += 1
            if self.calls != self._at:
                return await found(*args, **options)
            if self._is_done:
                await found(*args, **options)
            self.is_cut = True
            raise MetadataUnavailable("killed", outcome_unknown=True)

        return call
