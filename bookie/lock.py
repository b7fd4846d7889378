"""One process at a time: the lock on a bookie's folders.

It is an flock on the file ``lock`` of each folder. The kernel releases it when the process
ends, even after a crash, so a lock never has to be cleaned up. It holds on one host: another one
that has the same disk, or a copy of the folders, is not kept out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from bookie.config import BookieConfig
from bookie.durable import make_folder, open_private
from bookie.errors import BookieError
from metadata.clock_rows import host_boot

FILE_NAME = "lock"


@contextlib.contextmanager
def hold_folders(config: BookieConfig) -> Iterator[None]:
    """Hold the locks of the journal and ledger folders of *config* during the block.

    If both are missing, they are created, so that two processes cannot create one bookie
    twice. If only one is missing, it stays so, and check_cookie refuses it.

    Raises:
        BookieError: another process holds one of them.
        OSError: a folder cannot be created or written.
    """
    folders = [Path(config.journal_folder), Path(config.ledger_folder)]
    if not any(folder.exists() for folder in folders):
        for folder in folders:
            make_folder(folder)
    with contextlib.ExitStack() as held:
        for folder in folders:
            if folder.is_dir():
                held.enter_context(_hold(folder))
        yield


def lock_id(config: BookieConfig) -> str:
    """Return an id of what the locks of *config* hold for: these folders, on this boot of the host.

    Of two processes with the same id only one can hold the locks. Raises OSError.
    """
    stats = [Path(each).stat() for each in (config.journal_folder, config.ledger_folder)]
    parts = [host_boot() or secrets.token_hex(16)]  # without an id of its boot: this process only
    parts += [f"{stat.st_dev}/{stat.st_ino}" for stat in stats]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _hold(folder: Path) -> Iterator[None]:
    with open(folder / FILE_NAME, "a+", opener=open_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            raise BookieError(
                f"{folder}: in use by another process; the bookie may be running already"
            ) from cause
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
