"""What a bookie asks of who calls it: the folder ``security`` in its data folder.

    certificate.pem, key.pem   the bookie speaks TLS, and nothing else. The certificate names the
                               host or the address that clients are told
    clients.pem                who calls needs a certificate that one of these signed
    users                      who calls needs one of these names, and its password (`bookie user`)
    ca.pem                     the authorities that sign bookies' certificates; without it those
                               of the system
    login                      user:password, as which this bookie calls the others

Without the folder anybody may call, unencrypted. With it, a bookie that finds something missing
does not start: a lost file must not open the door. All bookies of a cluster want the same.
Every user may do everything. Files are read at the start, *users* whenever it changes.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from bookie.config import BookieConfig
from bookie.errors import BookieError
from bookie.users import Users
from metadata.access import Access, Login

FOLDER = "security"
CERTIFICATE, KEY, CLIENTS = "certificate.pem", "key.pem", "clients.pem"
USERS, AUTHORITIES, LOGIN = "users", "ca.pem", "login"


class BadSecurity(BookieError):
    """The folder ``security`` lacks a file, or has one that cannot be used."""


class Security(msgspec.Struct, frozen=True):
    """What the folder says.

    Attributes:
        context: of TLS; None: callers are not encrypted.
        users: who may call; None: anybody.
        access: how this bookie calls the others.
    """

    context: ssl.SSLContext | None = None
    users: Users | None = None
    access: Access = Access()


def folder_of(config: BookieConfig) -> Path:
    """Return the folder of a bookie with these settings, there or not."""
    return Path(config.data_folder) / FOLDER


def scheme_of(folder: Path) -> str:
    """Return the scheme of URLs to what runs over *folder*, of a bookie or a cluster."""
    return "bookie+tls" if (folder / FOLDER / CERTIFICATE).exists() else "bookie"


def read_security(config: BookieConfig) -> Security:
    """Read the folder, if it is there. Blocks.

    Raises:
        BadSecurity: what is in it cannot be used; the message names the file.
        BadUsers: the file of users cannot be understood.
        OSError: a file cannot be read.
    """
    if not config.data_folder:
        raise BadSecurity(
            f"data_folder: missing; a bookie looks there for the folder {FOLDER!r}, which says "
            "who may call it"
        )
    folder = folder_of(config)
    if not folder.exists():
        _check_absent(folder)
        return Security()
    _check_links(folder)
    context = _read_context(folder)
    users = Users(folder / USERS) if (folder / USERS).exists() else None
    login = _read_login(folder / LOGIN)
    _check_complete(folder, context, users, login)
    return Security(context, users, _read_access(folder, tls=context is not None, login=login))


def _check_absent(folder: Path) -> None:
    """Raise BadSecurity when the folder is not there because a disk or a link is missing."""
    if folder.is_symlink():
        raise BadSecurity(f"{folder}: a link to {folder.readlink()}, which is missing")
    if not folder.parent.is_dir():
        raise BadSecurity(
            f"{folder.parent}: missing; it may hold the folder {FOLDER!r}, which says who may "
            "call. Mount it, or make it to let anybody call"
        )


def _check_links(folder: Path) -> None:
    """Raise BadSecurity when a file is a link to a disk that is missing: it was meant to be there.

    It would count as one that was left out, so that callers need no password or certificate.
    """
    for name in (CERTIFICATE, KEY, CLIENTS, USERS, AUTHORITIES, LOGIN):
        path = folder / name
        if path.is_symlink() and not path.exists():
            raise BadSecurity(f"{path}: a link to {path.readlink()}, which is missing")


def _check_complete(
    folder: Path, context: ssl.SSLContext | None, users: Users | None, login: Login | None
) -> None:
    if users is not None and login is None:
        raise BadSecurity(
            f"{folder / LOGIN}: missing; with users, a bookie needs a line user:password "
            "there to call the others"
        )
    if users is None and login is not None:
        raise BadSecurity(
            f"{folder / USERS}: missing, though there is {LOGIN}; without it anybody could call. "
            f"Add users with `bookie user add`, or remove {LOGIN}"
        )
    if users is None and context is None:
        raise BadSecurity(
            f"{folder}: has neither {USERS} nor {CERTIFICATE} and {KEY}, so anybody could call. "
            "Put what is missing there, or remove the folder"
        )


def _read_context(folder: Path) -> ssl.SSLContext | None:
    certificate, key, clients = folder / CERTIFICATE, folder / KEY, folder / CLIENTS
    if not certificate.exists() and not key.exists():
        for useless in (clients, folder / AUTHORITIES):
            if useless.exists():
                raise BadSecurity(f"{useless}: of no use without {CERTIFICATE} and {KEY}")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if clients.exists():
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as wrong:
        raise BadSecurity(f"{folder}: {CERTIFICATE}, {KEY} or {CLIENTS}: {wrong}") from wrong
    return context


def _read_login(path: Path) -> Login | None:
    if not path.exists():
        return None
    user, colon, password = path.read_text("utf-8", "replace").strip().partition(":")
    if not user or not colon or not password:
        raise BadSecurity(f"{path}: not one line user:password")
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
