"""``bookie user``: add, remove and list the users who may call a bookie."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from bookie.commands.output import print_json
from bookie.durable import make_folder, replace_file
from bookie.security import FOLDER, LOGIN, USERS
from bookie.users import read_users, secret_of, write_users
from metadata.access import Login
from metadata.outcome import CommandFailed

_folder = click.option(
    "--data",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Folder of a bookie, or of `bookie standalone` for all its bookies.",
)


class Listed(msgspec.Struct, frozen=True):
    """Output of ``list --json``: names only, no hashes."""

    users: list[str]


@click.group()
def user() -> None:
    """Manage the users who may call a bookie.

    They are kept in DIR/security/users.

    Once there is a user, every caller needs a name and a password. Clients give them in the
    cluster's URL, bookie://USER:PASSWORD@HOST:PORT. Bookies, which call each other, read them
    from DIR/security/login. Put certificate.pem and key.pem into the same folder and use
    bookie+tls://; without TLS, passwords cross the network unencrypted. A running bookie
    notices changes to its users, but the first user and the other files need a restart.
    """


@user.command()
@click.argument("name")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--login", "as_login", is_flag=True, help="Bookies call each other as this user.")
@_folder
def add(*, name: str, from_stdin: bool, as_login: bool, folder: Path) -> None:
    """Add the user NAME, or change its password. A running bookie notices a changed user.

    Bookies log in to each other as they did when they started. To change their password without
    an outage, add another user with --login to all bookies, and restart them one by one.
    """
    password = (
        _first_line()
        if from_stdin
        else click.prompt("Password", hide_input=True, confirmation_prompt=True)
    )
    secret = secret_of(Login(name, password))
    security = folder / FOLDER
    make_folder(security)
    users = _read(security)
    caller = _caller(security)
    as_login = as_login or not users or caller in {None, name}
    if caller == name or not users:
        # The login first, which bookies read only when they start: if this command is killed
        # between the two, those that run go on, and the same command finishes it.
        _write_login(security, name, password)
        write_users(security / USERS, users | {name: secret})
    else:
        write_users(security / USERS, users | {name: secret})
        if as_login:
            _write_login(security, name, password)
    if not as_login:
        click.echo(f"{name} may call")
        return
    click.echo(f"{name} may call; bookies call each other as {name}")
    if caller == name:
        click.echo("Restart the bookies: they use the former password until then.", err=True)


@user.command()
@click.argument("name")
@_folder
def remove(*, name: str, folder: Path) -> None:
    """Remove the user NAME. Its open connections stay open."""
    security = folder / FOLDER
    users = _read(security)
    if users.pop(name, None) is None:
        raise CommandFailed(f"there is no user {name}; `bookie user list` shows those there are")
    if _caller(security) == name:
        raise CommandFailed(f"bookies call each other as {name}; `bookie user add --login` another")
    write_users(security / USERS, users)
    click.echo(f"{name} may not call any more")


@user.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@_folder
def list_users(*, as_json: bool, folder: Path) -> None:
    """List the names of the users who may call."""
    names = sorted(_read(folder / FOLDER))
    if as_json:
        print_json(Listed(names))
    elif names:
        click.echo("\n".join(names))
    else:
        is_open = not (folder / FOLDER / USERS).exists()
        click.echo("no users; anybody may call" if is_open else "no users; nobody may call")


def _read(security: Path) -> dict[str, str]:
    path = security / USERS
    return read_users(path) if path.exists() else {}


def _first_line() -> str:
    try:
        return sys.stdin.readline().rstrip("\r\n")
    except UnicodeDecodeError as wrong:
        raise CommandFailed(f"the password on standard input is not {wrong.encoding}") from wrong


def _caller(security: Path) -> str | None:
    """Return the user as whom bookies call each other."""
    login = security / LOGIN
    return login.read_text("utf-8", "replace").partition(":")[0] if login.exists() else None


def _write_login(security: Path, name: str, password: str) -> None:
    path = (security / LOGIN).resolve()  # where it is a link, that stays
    replace_file(path, f"{name}:{password}\n".encode())
