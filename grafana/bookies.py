"""The dashboard of bookies: what comes in, what it waits for, and what becomes of it."""

from __future__ import annotations

from grafana.panels import Dashboard, Row, Variable, graph, quantiles, stat

B = "quire_bookie_"
WHERE = '{bookie=~"$bookie"}'


def _rate(name: str, by: str = "bookie") -> str:
    return f"sum by({by}) (rate({B}{name}{WHERE}[$__rate_interval]))"


def _value(name: str) -> str:
    return f"{B}{name}{WHERE}"


GLANCE = Row(
    "Now",
    (
        stat(
            "Bookies up",
            "Bookies whose metrics can be scraped.",
            "none",
            'sum(up{job="quire-bookies"})',
        ),
        stat(
            "Added",
            "Entries acknowledged a second, every copy counted.",
            "ops",
            f"sum({_rate('adds_total')})",
        ),
        stat("Written", "Bytes of these entries.", "Bps", f"sum({_rate('add_bytes_total')})"),
        stat(
            "Sync p99",
            "Of the slowest bookie: 99 of 100 groups were written and synced in this time.",
            "s",
            f"max(histogram_quantile(0.99, {_rate('journal_sync_seconds_bucket', 'le,bookie')}))",
        ),
        stat(
            "Least free disk",
            "Of the fullest bookie. At disk_full_ratio it turns read-only.",
            "bytes",
            f"min({_value('disk_free_bytes')})",
        ),
        stat(
            "Do not take writes",
            "Bookies that are read-only, in limbo or draining.",
            "none",
            f"sum(({_value('read_only')} + {_value('limbo')} + {_value('draining')}) > bool 0)",
        ),
    ),
    across=6,
)

THROUGHPUT = Row(
    "Throughput",
    (
        graph(
            "Entries added",
            "Entries made durable and acknowledged. A batch of a topic is one entry.",
            "ops",
            (_rate("adds_total"), "{{bookie}}"),
        ),
        graph(
            "Bytes added",
            "Bytes of entries acknowledged, with their headers.",
            "Bps",
            (_rate("add_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Adds that were not new",
            "Repeated: the entry was there already, as after a lost answer or in repair. Refused: "
            "by code of the protocol; 104 is a fenced ledger, 105 a read-only bookie.",
            "ops",
            (_rate("adds_repeated_total"), "{{bookie}} repeated"),
            (_rate("add_errors_total", "code"), "refused {{code}}"),
        ),
        graph(
            "Entries read",
            "From the memtable, where fresh entries are, or from the entry logs.",
            "ops",
            (_rate("reads_total", "bookie,source"), "{{bookie}} {{source}}"),
        ),
        graph(
            "Bytes read",
            "Bytes of entries sent to readers.",
            "Bps",
            (_rate("read_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Reads without an entry",
            "Missing: not on this bookie, which readers that follow ask for all the time. Failed: "
            "answered with an I/O error, because the bytes are damaged.",
            "ops",
            (_rate("reads_missing_total"), "{{bookie}} missing"),
            (_rate("read_errors_total"), "{{bookie}} failed"),
        ),
    ),
)

LATENCY = Row(
    "Latency by stage",
    (
        graph(
            "An add, from received to synced",
            "What a client waits for, without the network. It is queue and sync together.",
            "s",
            *quantiles(B + "add_seconds", WHERE, "bookie"),
        ),
        graph(
            "Queue: until its group is written",
            "While one group is synced the next gathers, so this follows the time of a sync.",
            "s",
            *quantiles(B + "journal_queue_seconds", WHERE, "bookie"),
        ),
        graph(
            "Sync: write and fdatasync of a group",
            "The disk itself. Rises when it is busy with something else, or about to fail.",
            "s",
            *quantiles(B + "journal_sync_seconds", WHERE, "bookie"),
        ),
        graph(
            "Flush: half a memtable to log and index",
            "In the background. When it takes longer than the other half takes to fill, adds wait.",
            "s",
            *quantiles(B + "flush_seconds", WHERE, "bookie"),
        ),
        graph(
            "A read, by source",
            "Time of one read in the bookie: memory, or a disk and its cache.",
            "s",
            *quantiles(B + "read_seconds", WHERE, "source"),
        ),
        graph(
            "Times that adds met a full memtable",
            "Both halves were full: flushing cannot keep up, and clients are held back.",
            "ops",
            (_rate("add_stalls_total"), "{{bookie}}"),
        ),
    ),
)

JOURNAL = Row(
    "Journal",
    (
        graph(
            "Entries synced together",
            "The mean size of a group. Many clients, or a slow disk, make groups larger.",
            "none",
            (
                f"{_rate('journal_group_entries_sum')} / {_rate('journal_groups_total')}",
                "{{bookie}}",
            ),
        ),
        graph(
            "Groups synced",
            "Calls of fdatasync a second.",
            "ops",
            (_rate("journal_groups_total"), "{{bookie}}"),
        ),
        graph(
            "Bytes written to the journal",
            "Groups with their padding to whole blocks; more than the bytes added.",
            "Bps",
            (_rate("journal_written_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Gathered and not synced",
            "Bytes that wait for the journal.",
            "bytes",
            (_value("journal_queue_bytes"), "{{bookie}}"),
        ),
        graph(
            "Journal files",
            "Bytes of all of them; those before the last mark go, but for a few spares.",
            "bytes",
            (_value("journal_bytes"), "{{bookie}}"),
        ),
        graph(
            "Checkpoints",
            "Marks written: what is before them need not be replayed.",
            "ops",
            (_rate("checkpoints_total"), "{{bookie}}"),
        ),
    ),
)

MEMTABLE = Row(
    "Memtable and flush",
    (
        graph(
            "Memtable",
            "Bytes in both halves. It swings between empty and one half, and rises to two when "
            "flushing falls behind.",
            "bytes",
            (_value("memtable_bytes"), "{{bookie}}"),
        ),
        graph(
            "Entries in the memtable",
            "In both halves.",
            "short",
            (_value("memtable_entries"), "{{bookie}}"),
        ),
        graph(
            "Flushed",
            "Bytes written to entry logs, sorted by ledger.",
            "Bps",
            (_rate("flushed_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Entries in a flush",
            "The mean. Small ones come from checkpoints by time.",
            "short",
            (f"{_rate('flushed_entries_total')} / {_rate('flushes_total')}", "{{bookie}}"),
        ),
        graph(
            "Ledgers known",
            "Ledgers with entries or fences on the bookie.",
            "short",
            (_value("ledgers"), "{{bookie}}"),
        ),
        graph(
            "Ledgers fenced",
            "By who takes over from their writer, and by recovery.",
            "ops",
            (_rate("fences_total"), "{{bookie}}"),
        ),
    ),
)

INDEX = Row(
    "Reads from disk, and the index",
    (
        graph(
            "Index pages found in memory",
            "Share of lookups that needed no read of the index.",
            "percentunit",
            (
                f"{_rate('index_cache_hits_total')} / ({_rate('index_cache_hits_total')} + "
                f"{_rate('index_reads_total')})",
                "{{bookie}}",
            ),
            maximum=1,
        ),
        graph(
            "Reads of the disk",
            "Of index pages and of entry logs; at most two for any entry.",
            "ops",
            (_rate("index_reads_total"), "{{bookie}} index"),
            (_rate("log_reads_total"), "{{bookie}} log"),
        ),
        graph(
            "Reads that wait or work",
            "Connections that wait for a thread, threads at work, and reads parked until there "
            "is something to read.",
            "none",
            (_value("reads_queued"), "{{bookie}} wait"),
            (_value("read_workers_busy"), "{{bookie}} at work"),
            (_value("parked_reads"), "{{bookie}} parked"),
        ),
        graph(
            "Memory of the index",
            "Cached pages, which are bounded, and the directory of extents, which grows with "
            "ledgers and not with entries.",
            "bytes",
            (_value("index_cache_bytes"), "{{bookie}} cache"),
            (_value("index_directory_bytes"), "{{bookie}} directory"),
        ),
        graph(
            "Extents",
            "Runs of entries of one ledger in one log.",
            "short",
            (_value("index_extents"), "{{bookie}}"),
        ),
        graph(
            "Index on disk",
            "Bytes of all index files.",
            "bytes",
            (_value("index_bytes"), "{{bookie}}"),
        ),
    ),
)

GARBAGE = Row(
    "Garbage collection",
    (
        graph(
            "Entry logs",
            "Bytes of entries that are wanted, and of those that compaction could free.",
            "bytes",
            (_value("log_live_bytes"), "{{bookie}} live"),
            (_value("log_dead_bytes"), "{{bookie}} dead"),
            stacked=True,
        ),
        graph(
            "Logs",
            "Files of entries of many ledgers.",
            "none",
            (_value("logs"), "{{bookie}}"),
        ),
        graph(
            "Bytes in entry logs",
            "Live and dead, with headers and maps.",
            "bytes",
            (_value("log_bytes"), "{{bookie}}"),
        ),
        graph(
            "Share that is dead",
            "Of the bytes in entry logs. Logs with more than that are rewritten: minor_threshold "
            "and major_threshold are the shares alive.",
            "percentunit",
            (f"{_value('log_dead_bytes')} / {_value('log_bytes')}", "{{bookie}}"),
            maximum=1,
        ),
        graph(
            "Freed",
            "Space that came back.",
            "Bps",
            (_rate("gc_freed_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Copied to free it",
            "Entries still wanted, of logs that were rewritten.",
            "Bps",
            (_rate("gc_copied_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Ledgers taken away",
            "Deleted from the metadata, or with all their copies elsewhere by now.",
            "ops",
            (_rate("gc_ledgers_deleted_total"), "{{bookie}} deleted"),
            (_rate("gc_ledgers_moved_away_total"), "{{bookie}} moved away"),
        ),
        graph(
            "Logs taken away",
            "Because nothing in them was wanted, or rewritten because little was.",
            "ops",
            (_rate("gc_logs_deleted_total"), "{{bookie}} empty"),
            (_rate("gc_logs_compacted_total"), "{{bookie}} rewritten"),
        ),
        graph(
            "Collections",
            "By how they ended. One fails when the metadata cannot be asked.",
            "ops",
            (_rate("gc_runs_total", "bookie,result"), "{{bookie}} {{result}}"),
        ),
    ),
)

DISK = Row(
    "Disk, damage and clients",
    (
        graph(
            "Free disk",
            "Of the fuller of the bookie's disks.",
            "bytes",
            (_value("disk_free_bytes"), "{{bookie}}"),
        ),
        graph(
            "Level of the disk",
            "0 is well, 1 a warning: major compaction waits, 2 full: the bookie is read-only.",
            "none",
            (_value("disk_level"), "{{bookie}}"),
            maximum=2,
        ),
        graph(
            "Damage",
            "Damaged places that reads, flushes or scrubbing met, and entries for which repair was "
            "asked. Anything above 0 means that a disk changes bytes.",
            "none",
            (_value("damages_total"), "{{bookie}} met"),
            (_value("scrub_damages_total"), "{{bookie}} met by scrubbing"),
            (_value("repairs_asked_total"), "{{bookie}} repairs asked for"),
        ),
        graph(
            "Scrubbing",
            "Bytes of closed logs read through for damage.",
            "Bps",
            (_rate("scrubbed_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Scrub rounds",
            "How often all closed logs were read through; one a day is the pace.",
            "none",
            (_value("scrub_rounds_total"), "{{bookie}}"),
        ),
        graph(
            "Connections",
            "Served now.",
            "none",
            (_value("connections"), "{{bookie}}"),
        ),
        graph(
            "Connections ended by the bookie",
            "Refused because of connections_max, or dropped because of a fault.",
            "ops",
            (_rate("connections_refused_total"), "{{bookie}} refused"),
            (_rate("connections_dropped_total"), "{{bookie}} dropped"),
            (_rate("connections_faults_total"), "{{bookie}} ended by a bug"),
        ),
        graph(
            "Bytes held for clients",
            "Requests not synced and answers not sent, bounded by bytes_in_flight_max.",
            "bytes",
            (_value("held_bytes"), "{{bookie}}"),
        ),
        graph(
            "Bytes of unfinished frames",
            "Requests that have come in part.",
            "bytes",
            (_value("unfinished_bytes"), "{{bookie}}"),
        ),
    ),
)

BOOKIES = Dashboard(
    "bookies",
    "quire / Bookies",
    "Throughput, latency by stage, journal, memtable, garbage collection and disk of each bookie.",
    (GLANCE, THROUGHPUT, LATENCY, JOURNAL, MEMTABLE, INDEX, GARBAGE, DISK),
    (Variable("bookie", "Bookie", B + "ledgers"),),
)
