"""Engines over a temporary folder, driven by the test instead of by a thread."""

from __future__ import annotations

from pathlib import Path

from wire import add, add_responses

from native.engine import Connection, Engine, Recovery, Request, Verdict
from native.mark import Mark

MIB = 1 << 20


class Bookie:
    """An engine, its folders and its mark: what survives a crash and what does not."""

    def __init__(
        self,
        folder: Path,
        *,
        memtable_size: int = 12 * MIB,
        journal_size_max: int = 64 * MIB,
        log_size_max: int = 256 * MIB,
        threaded: bool = False,
        mark: Mark | None = None,
    ) -> None:
        self.journal_folder = folder / "journal"
        self.ledger_folder = folder / "ledgers"
        self.journal_folder.mkdir(parents=True, exist_ok=True)
        self.ledger_folder.mkdir(parents=True, exist_ok=True)
        self.memtable_size = memtable_size
        self.journal_size_max = journal_size_max
        self.log_size_max = log_size_max
        self.threaded = threaded
        self.mark = mark
        self.engine, self.recovery = self._open()
        if mark is None:
            self.checkpoint()
        self.connection = self.engine.connect(1)

    def _open(
        self, *, searches_logs: bool = False, table_is_whole: bool = False
    ) -> tuple[Engine, Recovery]:
        return Engine.open(
            journal_folder=self.journal_folder,
            ledger_folder=self.ledger_folder,
            mark=self.mark,
            memtable_size=self.memtable_size,
            journal_size_max=self.journal_size_max,
            journal_spares=1,
            log_size_max=self.log_size_max,
            index_cache_size=MIB,
            threaded=self.threaded,
            searches_logs=searches_logs,
            table_is_whole=table_is_whole,
        )

    def checkpoint(self) -> None:
        """Flush everything, keep the mark, drop old journals."""
        self.flush_sealed()
        if self.engine.seal():
            self.flush_sealed()

    def flush_sealed(self) -> None:
        mark = self.engine.flush()
        if mark is not None:
            self.mark = mark
            self.engine.trim(mark, 0)

    def roll(self) -> None:
        """Close the open entry log, and keep the mark that says so."""
        assert self.mark is not None
        self.mark = self.engine.store.roll(self.mark)
        self.engine.trim(self.mark, 0)

    def drop_dead_logs(self) -> None:
        """Delete the logs without live bytes, the open one too."""
        self.roll()
        for log in self.engine.store.logs():
            if not log.live:
                self.engine.store.delete_log(log.log_id)

    def crash(self, *, searches_logs: bool = False, table_is_whole: bool = False) -> None:
        """Forget all that is not in files, and start again from the mark."""
        self.connection.close()
        self.engine.close()
        self.engine, self.recovery = self._open(
            searches_logs=searches_logs, table_is_whole=table_is_whole
        )
        self.connection = self.engine.connect(1)

    def close(self) -> None:
        self.connection.close()
        self.engine.close()

    def send(self, frames: bytes, connection: Connection | None = None) -> list[Request]:
        """Feed frames, flushing whenever the memtable is full; return the requests."""
        connection = connection or self.connection
        requests: list[Request] = []
        while True:
            fed = connection.feed(frames)
            requests += fed.requests
            frames = frames[fed.used :]
            if fed.verdict is Verdict.FULL:
                self.engine.commit()
                self.flush_sealed()
            elif fed.verdict is Verdict.AGAIN:
                connection.look()
            else:
                assert fed.verdict is Verdict.OK
                if not frames:
                    return requests

    def add(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        """Add one entry and see it acknowledged."""
        self.send(add(ledger_id, entry_id, payload))
        while self.engine.commit():
            pass
        assert add_responses(self.connection.take())[-1][1:] == (0, ledger_id, entry_id)

    def read(self, ledger_id: int, entry_id: int) -> tuple[int, bytes]:
        """Return code and stored entry."""
        frame = self.engine.answer(
            Request(2, ledger_id=ledger_id, entry_id=entry_id), use_disk=True, size_max=1 << 22
        )
        assert frame is not None
        return int.from_bytes(frame[8:12], "big"), frame[28:]

    def payload(self, ledger_id: int, entry_id: int) -> bytes:
        """Return the payload of an entry that must be there."""
        code, entry = self.read(ledger_id, entry_id)
        assert code == 0, (ledger_id, entry_id, code)
        return entry[32:]
