"""The users who may call a bookie: a file with one line for each, ``name:salt:hash``.

The hash is scrypt of password and salt; salt and hash are in hex. The file is read again when
it changes, so users can be added and removed while the bookie runs. If the file becomes
unreadable, the bookie refuses every login and logs the reason.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from pathlib import Path

import trio

from bookie.durable import replace_file
from bookie.errors import BookieError
from bookie.login_rate import LoginRate
from metadata.access import Login

NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_SALT_SIZE = 16
_HASH_SIZE = 32
_COST = {"n": 1 << 14, "r": 8, "p": 1}  # 16 MiB and about 50 ms
_CHECKED_MAX = 1000
_WORKERS_MAX = 1
"""On a machine with two processors, one stays free for entries."""
_log = logging.getLogger(__name__)


def read_users(path: Path) -> dict[str, str]:
    """Return the "salt:hash" of each user, by name. Blocks.

    Raises:
        BookieError: a line is malformed.
        OSError: the file cannot be read.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, secret = line.partition(":")
        salt, _, hashed = secret.partition(":")
        if not NAME.fullmatch(name) or not _is_hex(salt) or not _is_hex(hashed):
            raise BookieError(f"{path}: line {number} is not name:salt:hash; use `bookie user`")
        users[name] = secret
    return users


def write_users(path: Path, users: dict[str, str]) -> None:
    """Replace the file durably; only its owner may read it. Blocks. Raises OSError."""
    text = "".join(f"{name}:{secret}\n" for name, secret in sorted(users.items()))
    replace_file(path, text.encode(), mode=0o600)


def secret_of(login: Login) -> str:
    """Return the "salt:hash" to store for a new login. Blocks for about 50 ms.

    Raises:
        BookieError: the name has a character that is not allowed, or the password is empty.
    """
    if not NAME.fullmatch(login.user):
        raise BookieError(f"{login.user!r} is not 1 to 64 letters, digits, '_', '.', '@' or '-'")
    if not login.password or "\0" in login.password:
        raise BookieError("the password is empty, or has a zero byte in it")
    salt = secrets.token_bytes(_SALT_SIZE)
    return f"{salt.hex()}:{_hash(login.password, salt).hex()}"


class Users:
    """The users of a file, which is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        """Read the file. Blocks. Raises BookieError or OSError if it cannot be used."""
        self._path = path
        self._users = read_users(path)
        self._stamp = _stamp(path)
        self._checked: dict[bytes, str] = {}
        """Maps the digest of a correct login to the secret it was checked against, so that a
        client that connects again does not cost 50 ms."""
        self._rate = LoginRate()
        self._workers = trio.CapacityLimiter(_WORKERS_MAX)

    async def admit(self, login: Login, host: str = "") -> bool:
        """Check the password of *login*. Takes as long if the user does not exist.

        Raises:
            PeerAtFault: *host*, or all hosts together, tried too many passwords.
        """
        self._read_again()
        secret = self._users.get(login.user, "")
        digest = hashlib.sha256(f"{login.user}\0{login.password}".encode()).digest()
        if secret and self._checked.get(digest) == secret:
            return True
        await self._rate.wait_turn(host)
        salt, _, hashed = (secret or f"{'00' * _SALT_SIZE}:").partition(":")
        found = await trio.to_thread.run_sync(
            _hash, login.password, bytes.fromhex(salt), limiter=self._workers
        )
        if not secret or not hmac.compare_digest(found, bytes.fromhex(hashed)):
            return False
        if len(self._checked) >= _CHECKED_MAX:
            self._checked.clear()
        self._checked[digest] = secret
        return True

    def _read_again(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._users = read_users(self._path)
        except (BookieError, OSError) as wrong:
            self._users = {}
            _log.error("nobody is admitted: %s", wrong)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, dklen=_HASH_SIZE, **_COST)


def _is_hex(text: str) -> bool:
    return len(text) >= 2 and len(text) % 2 == 0 and all(c in "0123456789abcdef" for c in text)
