"""Reads every record of a store and finds those that break a rule (`bookie metadata check`).

Each record is decoded. What it says about others goes into tables of a private database, which
SQLite keeps in a temporary file, so memory does not grow with the store. Then every rule is one
query:

    Snapshot ──pages──► audit_rows: decode ──► tables ──► audit_rules: queries ──► findings
                          └──► findings about the record itself

The records come in the order of their keys.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Literal

import msgspec

from metadata.audit_rows import KINDS, Tables
from metadata.audit_rules import INDEXES, RULES, TABLES
from metadata.errors import BadRecord, MetadataBroken
from metadata.jobs import JOBS
from metadata.moving import MARK, Snapshot, next_page
from metadata.paged import assembled, paged_value
from metadata.records import INSTANCE
from metadata.store import Page, check_value

Severity = Literal["broken", "leftover", "foreign"]


class Finding(msgspec.Struct, frozen=True):
    """A record that breaks a rule.

    Attributes:
        severity: broken: somebody must look. leftover: the cluster cleans it up by itself.
            foreign: quire does not know such keys.
        key: the record's.
        problem: one line.
    """

    severity: Severity
    key: str
    problem: str


class Audited(msgspec.Struct, frozen=True):
    """How many records were read, and if the store stayed as it was meanwhile."""

    records: int
    consistent: bool


Report = Callable[[Finding], None]


async def audit(
    snapshot: Snapshot, *, on_finding: Report, on_progress: Callable[[int], None]
) -> Audited:
    """Check all that a store holds.

    Args:
        snapshot: of the store.
        on_finding: called with each finding.
        on_progress: called with the number of records so far.

    Raises:
        MetadataError: the store did not answer.
    """
    records = 0
    with closing(_open_tables()) as connection:
        tables = Tables(connection)
        for name in await _lease_names(snapshot):
            tables.add("leases", name)
        page: Page = []
        while page := await next_page(snapshot, page):
            for key, found in page:
                for finding in await _look(snapshot, tables, key, found.value):
                    on_finding(finding)
            records += len(page)
            on_progress(records)
        for name, following in (await snapshot.floors()).counters.items():
            tables.add("counters", name, following)
        consistent = await snapshot.is_consistent()
        for finding in _compare(tables, connection):
            on_finding(finding)
    return Audited(records, consistent)


def _open_tables() -> sqlite3.Connection:
    """Open an empty private database, which lies in a temporary file once it is large."""
    connection = sqlite3.connect("", isolation_level=None)
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({columns})")
    connection.execute("BEGIN")
    return connection


async def _lease_names(snapshot: Snapshot) -> list[str]:
    """Return the names of live leases of jobs."""
    names: list[str] = []
    while page := await snapshot.leases(JOBS, after=names[-1] if names else ""):
        names += [lease.name for lease in page]
    return names


async def _look(snapshot: Snapshot, tables: Tables, key: str, row: bytes) -> list[Finding]:
    """Return what is wrong with a record by itself."""
    if key == MARK:
        return [Finding("broken", key, "the store holds only half of an import")]
    if key == INSTANCE:
        tables.instance = row.decode(errors="replace")
        return []
    kind = key[: key.find("/") + 1]
    if kind not in KINDS:
        return [Finding("foreign", key, "quire keeps nothing under such a key")]
    try:
        check_value(key, row)
        paged = paged_value(key, row)
        if paged is not None:
            tables.add("paged", key, paged.paged)
        KINDS[kind](tables, key, await assembled(snapshot, key, row))
    except (BadRecord, MetadataBroken, ValueError, OverflowError) as wrong:
        return [Finding("broken", key, str(wrong).removeprefix(f"{key}: "))]
    return []


def _compare(tables: Tables, connection: sqlite3.Connection) -> Iterator[Finding]:
    """Yield what is wrong between records."""
    for instance, key in tables.instances.items():  # BookKeeper's cookies may have none
        if not instance:
            continue
        if not tables.instance:
            yield Finding("broken", INSTANCE, f"it is missing: {key} is of cluster {instance}")
            break
        if instance != tables.instance:
            yield Finding("broken", key, f"is of cluster {instance}, not of {tables.instance}")
    for bookie, (count, key) in sorted(tables.unknown.items()):
        more = f"; so do {count - 1:,} other records" if count > 1 else ""
        yield Finding("broken", key, f"names the bookie {bookie}, which has no cookie{more}")
    for number, columns in enumerate(INDEXES):
        connection.execute(f"CREATE INDEX index_{number} ON {columns}")
    for rule in RULES:
        for key, *values in connection.execute(rule.query):
            yield Finding(rule.severity, key, rule.problem.format(*values))
