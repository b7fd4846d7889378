"""Who may call a bookie: a file with a line for each user, ``name:salt:hash``.

The hash is scrypt's, of the password and the salt, both in hex. The file is read again when it
changes, so that users come and go while the bookie runs; one that becomes unreadable refuses
everybody, and says so in the log.
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
"""Of two processors one is left for entries."""
_log = logging.getLogger(__name__)


class BadUsers(BookieError):
    """The file of users cannot be understood, or a name or password cannot be used."""


def read_users(path: Path) -> dict[str, str]:
    """Return salt and hash ("salt:hash") of each user.

    Raises:
        BadUsers: a line is wrong.
        OSError: the file cannot be read.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, secret = line.partition(":")
        salt, _, hashed = secret.partition(":")
        if not NAME.fullmatch(name) or not _is_hex(salt) or not _is_hex(hashed):
            raise BadUsers(f"{path}: line {number} is not name:salt:hash; use `bookie user`")
        users[name] = secret
    return users


def write_users(path: Path, users: dict[str, str]) -> None:
    """Replace the file, which only its owner may read. Raises OSError."""
    text = "".join(f"{name}:{secret}\n" for name, secret in sorted(users.items()))
    replace_file(path, text.encode(), mode=0o600)


def secret_of(login: Login) -> str:
    """Return the "salt:hash" to keep for a new login.

    Raises:
        BadUsers: the name has other characters, or the password is empty.
    """
    if not NAME.fullmatch(login.user):
        raise BadUsers(f"{login.user!r} is not 1 to 64 letters, digits, '_', '.', '@' or '-'")
    if not login.password or "\0" in login.password:
        raise BadUsers("the password is empty, or has a zero byte in it")
    salt = secrets.token_bytes(_SALT_SIZE)
    return f"{salt.hex()}:{_hash(login.password, salt).hex()}"


class Users:
    """The users of a file, as it is when somebody calls."""

    def __init__(self, path: Path) -> None:
        """Raises BadUsers, OSError: the file cannot be used."""
        self._path = path
        self._users = read_users(path)
        self._stamp = _stamp(path)
        self._checked: dict[bytes, str] = {}
        """what was found right, by a digest of it, and the secret it was checked against: a
        client that connects again costs no 50 ms"""
        self._rate = LoginRate()
        self._workers = trio.CapacityLimiter(_WORKERS_MAX)

    async def admit(self, login: Login, host: str = "") -> bool:
        """Whether the password is the user's. Takes as long when there is no such user.

        Raises:
            TooManyLogins: *host*, or all hosts together, tried too many passwords.
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
        except (BadUsers, OSError) as wrong:
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
