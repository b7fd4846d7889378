"""The settings of a bookie: one frozen struct, one TOML file, no environment.

Every setting is declared once, here, with its unit, default, bounds and what its edge
values mean. From that declaration come the checks, the messages of ConfigError and
the sample file ``bookie.toml`` (``bookie config`` prints it).

    defaults  ◄─ bookie.toml  ◄─ --set key=value and direct options
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from bookie.errors import BookieError
from bookie.settings import DAY_S, SWITCH, GiB, MiB, Setting, TiB, Value, write_sample

_ID = r"|[A-Za-z0-9][A-Za-z0-9._:\[\]-]{0,127}"
_COMMAND_LINE = "the command line"


class ConfigError(BookieError):
    """A setting is unknown, of the wrong type or out of bounds.

    Attributes:
        source: the file, or "the command line".
        key: the setting, or "" when the file as a whole cannot be read.
    """

    def __init__(self, source: str, key: str, problem: str) -> None:
        super().__init__(f"{source}: {key}: {problem}" if key else f"{source}: {problem}")
        self.source = source
        self.key = key


class BookieConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one bookie. Sizes are bytes, ``_s`` is seconds.

    ``load_config`` checks them and fills in the folders; one that is built directly is
    taken as it is.
    """

    bookie_id: Annotated[
        str,
        Setting(
            "Name of this bookie in ledger records; it never changes, wherever the bookie moves.\n"
            'Empty: the one in the cookie; a new bookie is given "bookie-" and 8 random digits.',
            pattern=(_ID, "up to 128 letters, digits and . _ : - [ ]"),
            section="Who and where",
        ),
    ] = ""
    host: Annotated[str, Setting('Address to listen on. "0.0.0.0" or "::" for all interfaces.')] = (
        "127.0.0.1"
    )
    port: Annotated[int, Setting("TCP port to listen on. 0: any free one.", "port", 0, 65535)] = (
        3181
    )
    advertised_address: Annotated[
        str,
        Setting(
            'The "host:port" that clients are told. Empty: the host and port listened on, which\n'
            "is wrong when the host is a wildcard or behind address translation."
        ),
    ] = ""
    metadata: Annotated[
        str,
        Setting(
            'Where ledger records live: "sqlite:///absolute/path". All bookies of a cluster name\n'
            "the same store. Empty: metadata.db in the data folder, a cluster of one."
        ),
    ] = ""
    data_folder: Annotated[
        str,
        Setting(
            "Folder of this bookie; it may hold the folder security, which says who may call.\n"
            "Must be set. A relative path counts from this file's folder."
        ),
    ] = ""
    journal_folder: Annotated[
        str,
        Setting(
            "Folder of the journal; best on a disk of its own. Empty: journal in the data folder."
        ),
    ] = ""
    ledger_folder: Annotated[
        str,
        Setting("Folder of entry logs, index and mark. Empty: ledgers in the data folder."),
    ] = ""

    memtable_size: Annotated[
        int,
        Setting(
            "Size of one half of the memtable; there are two, so twice this is used. A full half\n"
            "is flushed to the entry log while the other fills.",
            "bytes",
            10 * MiB,
            GiB,
            section="Storage",
        ),
    ] = 64 * MiB
    journal_size_max: Annotated[
        int,
        Setting(
            "Start a new journal file after this many. Rolled between two halves of the\n"
            "memtable, so a file may be larger by one half.",
            "bytes",
            MiB,
            64 * GiB,
        ),
    ] = GiB
    journal_spares: Annotated[
        int,
        Setting(
            "Journal files kept to be written again, which is faster than new ones. 0: none.",
            "files",
            0,
            1000,
        ),
    ] = 2
    log_size_max: Annotated[
        int,
        Setting("Start a new entry log after this many.", "bytes", MiB, 2 * GiB),
    ] = GiB
    index_cache_size: Annotated[
        int,
        Setting("Memory for pages of the index. 0: none are kept.", "bytes", 0, 64 * GiB),
    ] = 32 * MiB
    checkpoint_interval_s: Annotated[
        float,
        Setting(
            "Flush after this long although the memtable is not full; it bounds what a restart\n"
            "replays. 0: only when it is full.",
            "seconds",
            0,
            DAY_S,
        ),
    ] = 60.0

    connections_max: Annotated[
        int,
        Setting(
            "Connections served at a time; more are closed at once. One address has three\n"
            "quarters of them. Those that have not logged in or sent nothing yet do not count;\n"
            "there are a quarter as many places for them beside. With too few file descriptors\n"
            "(ulimit -n) fewer are served, and the log says so.",
            "connections",
            1,
            100_000,
            section="Limits on clients",
        ),
    ] = 1000
    connection_bytes_max: Annotated[
        int,
        Setting(
            "Bytes of one connection that are unsynced or unsent; beyond, nothing is read from it.",
            "bytes",
            MiB,
            4 * GiB,
        ),
    ] = 32 * MiB
    bytes_in_flight_max: Annotated[
        int,
        Setting(
            "The same for all connections together: half for adds, an eighth for frames that are\n"
            "not whole, a quarter for answers not taken, an eighth for those being made. One\n"
            "address has half of each.",
            "bytes",
            MiB,
            64 * GiB,
        ),
    ] = 256 * MiB
    peer_timeout_s: Annotated[
        float,
        Setting(
            "Close a connection that for this long leaves a frame unfinished, or does not take\n"
            "its responses; 5 s while others wait for the memory that it holds. A login has 10 s\n"
            "at most. 0: never, but for those.",
            "seconds",
            0,
            DAY_S,
        ),
    ] = 30.0
    idle_timeout_s: Annotated[
        float,
        Setting(
            "Close a connection on which nothing came for this long. 0: never.",
            "seconds",
            0,
            30 * DAY_S,
        ),
    ] = 0.0
    read_workers: Annotated[
        int, Setting("Threads for reads that need the disk.", "threads", 1, 256)
    ] = 4

    gc_interval_s: Annotated[
        float,
        Setting(
            "How often ledgers deleted from the metadata are looked for, and their space freed.\n"
            "0: only on `bookie gc`.",
            "seconds",
            0,
            30 * DAY_S,
            section="Garbage collection",
        ),
    ] = 900.0
    gc_foreign_ledgers: Annotated[
        str,
        Setting(
            "Ledgers here of which the metadata never knew, written by clients of their own kind:\n"
            '"keep" them, or "delete" them as deleted ones.',
            choices=("keep", "delete"),
        ),
    ] = "keep"
    minor_threshold: Annotated[
        float,
        Setting(
            "Minor compaction rewrites entry logs with less than this share alive. 0: off.",
            "share",
            0,
            1,
        ),
    ] = 0.2
    minor_interval_s: Annotated[
        float, Setting("Time between minor compactions. 0: off.", "seconds", 0, 365 * DAY_S)
    ] = 3600.0
    major_threshold: Annotated[
        float,
        Setting(
            "Major compaction rewrites entry logs with less than this share alive. 0: off.",
            "share",
            0,
            1,
        ),
    ] = 0.8
    major_interval_s: Annotated[
        float, Setting("Time between major compactions. 0: off.", "seconds", 0, 365 * DAY_S)
    ] = 86400.0
    compaction_rate: Annotated[
        int, Setting("How fast compaction copies. 0: no limit.", "bytes a second", 0, TiB)
    ] = 100 * MiB

    disk_full_ratio: Annotated[
        float,
        Setting(
            "Turn read-only when this share of the disk is used. 1: never.",
            "share",
            0.01,
            1,
            section="Full disk",
        ),
    ] = 0.95
    disk_warn_ratio: Annotated[
        float,
        Setting("Warn and put off major compaction from this share on.", "share", 0.01, 1),
    ] = 0.90
    disk_reserve: Annotated[
        int,
        Setting(
            "While read-only, adds of a recovery are still taken with this many bytes free.",
            "bytes",
            0,
            TiB,
        ),
    ] = GiB
    disk_check_s: Annotated[
        float, Setting("Time between looks at the disk.", "seconds", 0.01, 3600)
    ] = 10.0

    autorecovery: Annotated[
        bool,
        Setting(
            "Take part in repair: in turn to lead it, and with others to copy entries of which\n"
            "too few copies are left. Turn it off while several bookies are down on purpose.",
            choices=SWITCH,
            section="Repair",
        ),
    ] = True
    repair_rate_max: Annotated[
        int,
        Setting(
            "How fast this bookie copies entries to others for repair; writes and reads of\n"
            "clients go first. 0: no limit.",
            "bytes a second",
            0,
            TiB,
        ),
    ] = 50 * MiB
    lost_after_s: Annotated[
        float,
        Setting(
            "A bookie that is not registered for this long is lost, and its copies are made\n"
            "anew elsewhere. Longer than a restart takes. 0: as soon as its registration ends.",
            "seconds",
            0,
            30 * DAY_S,
        ),
    ] = 60.0
    open_grace_s: Annotated[
        float,
        Setting(
            "A ledger that is still open and has a lost bookie is closed after this long, which\n"
            "ends its writer; one that lives replaces the bookie by itself before. 0: at once.",
            "seconds",
            0,
            30 * DAY_S,
        ),
    ] = 30.0
    scrub_rate: Annotated[
        int,
        Setting(
            "How fast closed entry logs are read through for damage, once a day at most. 0: never.",
            "bytes a second",
            0,
            TiB,
        ),
    ] = 10 * MiB

    lease_ttl_s: Annotated[
        float,
        Setting(
            "How long the registration of a bookie that died outlives it.",
            "seconds",
            0.1,
            3600,
            section="Running",
        ),
    ] = 10.0
    metrics_port: Annotated[
        int,
        Setting(
            "HTTP port of /metrics, /health, /ready. 0: none. -1: any free one.", "port", -1, 65535
        ),
    ] = 0
    stop_timeout_s: Annotated[
        float,
        Setting(
            "Time for an orderly stop; what is not flushed by then is replayed at the next start.",
            "seconds",
            0,
            3600,
        ),
    ] = 30.0
    log_level: Annotated[
        str,
        Setting(
            "How much is logged to standard error.",
            choices=("debug", "info", "warning", "error"),
        ),
    ] = "info"


_HINTS: dict[str, Any] = get_type_hints(BookieConfig, include_extras=True)
_SETTINGS: dict[str, Setting] = {key: hint.__metadata__[0] for key, hint in _HINTS.items()}


def sample_file() -> str:
    """The text of bookie.toml: every setting with its default, explained."""
    return write_sample(settings())


def settings() -> Iterator[tuple[str, Setting, Value]]:
    """Every setting in the order of the sample file: key, what it is, default."""
    defaults = BookieConfig()
    for key, setting in _SETTINGS.items():
        yield key, setting, getattr(defaults, key)


def load_config(path: Path | None, overrides: Mapping[str, object] | None = None) -> BookieConfig:
    """Read the settings from the file at *path*, if any, and then from *overrides*.

    Values of overrides may be text, as a command line has them. Folders come out absolute
    and filled in, and so does the metadata's address. Relative ones count from the folder
    of the file, in overrides from the current one.

    Raises:
        ConfigError: in one line, which setting is wrong and what is allowed.
    """
    source = str(path) if path else _COMMAND_LINE
    values: dict[str, Any] = {}
    if path is not None:
        values |= _checked(source, _read(path), path.absolute().parent)
    values |= _checked(_COMMAND_LINE, overrides or {}, Path.cwd())
    config = _with_folders(BookieConfig(**values), source)
    _check_pairs(config, source)
    return config


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise ConfigError(str(path), "", f"not TOML: {cause}") from cause
    except OSError as cause:
        raise ConfigError(str(path), "", f"cannot be read: {cause.strerror}") from cause


def _checked(source: str, values: Mapping[str, object], folder: Path) -> dict[str, Value]:
    checked = {}
    for key, value in values.items():
        if key not in _SETTINGS:
            raise ConfigError(source, key, f"no such setting{_nearest(key)}")
        setting = _SETTINGS[key]
        parsed = setting.parse(_HINTS[key].__origin__, value)
        if parsed is None:
            raise ConfigError(source, key, f"{value!r} is not allowed; allowed: {setting.allowed}")
        if key.endswith("_folder") and isinstance(parsed, str) and parsed:
            parsed = str(folder / Path(parsed).expanduser())
        checked[key] = parsed
    return checked


def _nearest(key: str) -> str:
    near = difflib.get_close_matches(key, _SETTINGS, n=1, cutoff=0.5)
    return f'; did you mean "{near[0]}"?' if near else "; `bookie config` lists them all"


def _with_folders(config: BookieConfig, source: str) -> BookieConfig:
    data = config.data_folder
    if not data:
        raise ConfigError(source, "data_folder", "missing; name the bookie's folder (--data DIR)")
    return msgspec.structs.replace(
        config,
        journal_folder=config.journal_folder or str(Path(data, "journal")),
        ledger_folder=config.ledger_folder or str(Path(data, "ledgers")),
        metadata=config.metadata or f"sqlite://{Path(data, 'metadata.db')}",
    )


def _check_pairs(config: BookieConfig, source: str) -> None:
    if config.disk_warn_ratio > config.disk_full_ratio:
        raise ConfigError(source, "disk_warn_ratio", "greater than disk_full_ratio")
    if config.minor_threshold > config.major_threshold > 0:
        raise ConfigError(source, "minor_threshold", "greater than major_threshold")
    if config.connection_bytes_max > config.bytes_in_flight_max:
        raise ConfigError(source, "connection_bytes_max", "greater than bytes_in_flight_max")
    if config.journal_folder == config.ledger_folder:
        raise ConfigError(source, "journal_folder", "the same as ledger_folder")
