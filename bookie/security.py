"""TLS and logins of a bookie: the folder ``security`` in its data folder.

    certificate.pem, key.pem   with them the bookie accepts TLS only. The certificate must name
                               the host or the address that clients connect to
    clients.pem                authorities; a caller needs a certificate signed by one of them
    users                      a caller needs one of these names and its password (`bookie user`)
    ca.pem                     authorities that sign bookies' certificates; without this file,
                               those of the system
    login                      user:password with which this bookie logs in at the others

Without the folder anybody may call, unencrypted. If the folder exists but a file it needs is
missing, the bookie does not start: a lost file must not open the door. All bookies of a cluster
need the same setup. Every user may do everything. Files are read at the start; *users* is read
again whenever it changes.
"""

from __future__ import annotations

import logging
import math
import ssl
import time
from pathlib import Path

import msgspec

from bookie.config import BookieConfig
from bookie.durable import replace_file
from bookie.errors import BookieError
from bookie.users import Users
from metadata.access import Access, Login

FOLDER = "security"
CERTIFICATE, KEY, CLIENTS = "certificate.pem", "key.pem", "clients.pem"
USERS, AUTHORITIES, LOGIN = "users", "ca.pem", "login"
FILE_NAME = "secured"
"""In the ledger folder, once the bookie has served with a security folder."""
WARN_S = 30 * 86_400.0
"""A certificate that is over sooner is named in the log."""
_log = logging.getLogger(__name__)


class Security(msgspec.Struct, frozen=True):
    """Content of the folder, ready for use.

    Attributes:
        context: TLS context for callers, or None for plain TCP.
        users: the users who may call, or None if anybody may.
        access: TLS context and login with which this bookie calls the others.
        expires_s: Unix time at which the bookie's certificate is over; infinity without one.
    """

    context: ssl.SSLContext | None = None
    users: Users | None = None
    access: Access = Access()
    expires_s: float = math.inf


def folder_of(config: BookieConfig) -> Path:
    """Return the path of the security folder; the folder need not exist."""
    return Path(config.data_folder) / FOLDER


def scheme_of(folder: Path) -> str:
    """Return the URL scheme for the bookie or cluster with this data folder. Blocks for a stat."""
    return "bookie+tls" if (folder / FOLDER / CERTIFICATE).exists() else "bookie"


def read_security(config: BookieConfig) -> Security:
    """Read the folder, if it is there. Blocks.

    Raises:
        BookieError: a file in it cannot be used; the message names the file.
        OSError: a file cannot be read.
    """
    if not config.data_folder:
        raise BookieError(
            f"data_folder: missing; a bookie looks there for the folder {FOLDER!r}, which says "
            "who may call it"
        )
    folder = folder_of(config)
    if not folder.exists():
        _check_absent(folder, Path(config.ledger_folder))
        return Security()
    _check_links(folder)
    context = _read_context(folder)
    expires_s = math.inf if context is None else _expires_s(folder / CERTIFICATE)
    users = Users(folder / USERS) if (folder / USERS).exists() else None
    login = _read_login(folder / LOGIN)
    _check_complete(folder, context, users, login)
    access = _read_access(folder, tls=context is not None, login=login)
    return Security(context, users, access, expires_s)


def note_secured(config: BookieConfig) -> None:
    """Remember in the ledger folder that there is a security folder. Blocks for two syncs at first.

    Raises OSError.
    """
    path = Path(config.ledger_folder) / FILE_NAME
    if folder_of(config).exists() and not path.exists():
        replace_file(path, b"")


def _check_absent(folder: Path, ledger_folder: Path) -> None:
    """Raise BookieError if the folder is missing because its disk or its link's target is."""
    if folder.is_symlink():
        raise BookieError(f"{folder}: a link to {folder.readlink()}, which is missing")
    if not folder.parent.is_dir():
        raise BookieError(
            f"{folder.parent}: missing; it may hold the folder {FOLDER!r}, which says who may "
            "call. Mount it, or make it to let anybody call"
        )
    if (ledger_folder / FILE_NAME).exists():
        raise BookieError(
            f"{folder}: missing, but this bookie had it before. Mount its disk; or, to let anybody "
            f"call from now on, remove {ledger_folder / FILE_NAME}"
        )


def _check_links(folder: Path) -> None:
    """Raise BookieError if a file is a link whose target is missing.

    Without this check the file would count as left out on purpose, and callers would need no
    password or certificate.
    """
    for name in (CERTIFICATE, KEY, CLIENTS, USERS, AUTHORITIES, LOGIN):
        path = folder / name
        if path.is_symlink() and not path.exists():
            raise BookieError(f"{path}: a link to {path.readlink()}, which is missing")


def _check_complete(
    folder: Path, context: ssl.SSLContext | None, users: Users | None, login: Login | None
) -> None:
    if users is not None and login is None:
        raise BookieError(
            f"{folder / LOGIN}: missing; with users, a bookie needs a line user:password "
            "there to call the others"
        )
    if users is None and login is not None:
        raise BookieError(
            f"{folder / USERS}: missing, though there is {LOGIN}; without it anybody could call. "
            f"Add users with `bookie user add`, or remove {LOGIN}"
        )
    if users is None and context is None:
        raise BookieError(
            f"{folder}: has neither {USERS} nor {CERTIFICATE} and {KEY}, so anybody could call. "
            "Put what is missing there, or remove the folder"
        )


def _read_context(folder: Path) -> ssl.SSLContext | None:
    certificate, key, clients = folder / CERTIFICATE, folder / KEY, folder / CLIENTS
    if not certificate.exists() and not key.exists():
        for useless in (clients, folder / AUTHORITIES):
            if useless.exists():
                raise BookieError(f"{useless}: of no use without {CERTIFICATE} and {KEY}")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if clients.exists():
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as wrong:
        raise BookieError(f"{folder}: {CERTIFICATE}, {KEY} or {CLIENTS}: {wrong}") from wrong
    return context


def _expires_s(path: Path) -> float:
    """Return the Unix time at which a certificate is over, and warn if that is soon.

    The certificate was loaded, so it can be decoded: by what Python's own tests use, as nothing
    else in the library reads one from a file.
    """
    ends_at = ssl._ssl._test_decode_cert(str(path))["notAfter"]  # type: ignore[attr-defined]
    expires_s = float(ssl.cert_time_to_seconds(ends_at))
    if expires_s < time.time():
        _log.warning("%s expired at %s: clients refuse it; renew it and restart", path, ends_at)
    elif expires_s < time.time() + WARN_S:
        _log.warning("%s expires at %s: renew it and restart before", path, ends_at)
    return expires_s


def _read_login(path: Path) -> Login | None:
    if not path.exists():
        return None
    user, colon, password = path.read_text("utf-8", "replace").strip().partition(":")
    if not user or not colon or not password:
        raise BookieError(f"{path}: not one line user:password")
    return Login(user, password)


def _read_access(folder: Path, *, tls: bool, login: Login | None) -> Access:
    if not tls:
        return Access(login=login)
    ca = folder / AUTHORITIES
    return Access(
        tls=True,
        login=login,
        ca=str(ca) if ca.exists() else "",
        certificate=str(folder / CERTIFICATE),
        key=str(folder / KEY),
    )
