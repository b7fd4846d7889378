"""The dashboard of bookies: throughput, latency by stage, and storage."""

from __future__ import annotations

from grafana.panels import Dashboard, PanelRow, Variable, graph, quantiles, stat

B = "quire_bookie_"
WHERE = '{bookie=~"$bookie"}'


def _rate(name: str, by: str = "bookie") -> str:
    return f"sum by({by}) (rate({B}{name}{WHERE}[$__rate_interval]))"


def _value(name: str) -> str:
    return f"{B}{name}{WHERE}"


GLANCE = PanelRow(
    "Now",
    (
        stat(
            "Bookies up",
            "Bookies whose metrics pages respond.",
            "none",
            'sum(up{job="quire-bookies"})',
        ),
        stat(
            "Added",
            "Entries acknowledged a second, all copies counted.",
            "ops",
            f"sum({_rate('adds_total')})",
        ),
        stat("Written", "Bytes of these entries.", "Bps", f"sum({_rate('add_bytes_total')})"),
        stat(
            "Sync p99",
            "On the slowest bookie, 99 % of groups were written and synced within this time.",
            "s",
            f"max(histogram_quantile(0.99, {_rate('journal_sync_seconds_bucket', 'le,bookie')}))",
        ),
        stat(
            "Least free disk",
            "Free space of the fullest bookie, which turns read-only at disk_full_ratio.",
            "bytes",
            f"min({_value('disk_free_bytes')})",
        ),
        stat(
            "Not writable",
            "Bookies that are read-only, in limbo or draining.",
            "none",
            f"sum(({_value('read_only')} + {_value('limbo')} + {_value('draining')}) > bool 0)",
        ),
    ),
    across=6,
)

THROUGHPUT = PanelRow(
    "Throughput",
    (
        graph(
            "Entries added",
            "Durable, acknowledged entries a second. A batch of messages is one entry.",
            "ops",
            (_rate("adds_total"), "{{bookie}}"),
        ),
        graph(
            "Bytes added",
            "Bytes of acknowledged entries, including headers.",
            "Bps",
            (_rate("add_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Repeated and refused adds",
            "Repeated: the entry was stored already, as after a lost response or in repair. "
            "Refused: "
            "by protocol code; 104 is a fenced ledger, 105 a read-only bookie.",
            "ops",
            (_rate("adds_repeated_total"), "{{bookie}} repeated"),
            (_rate("add_errors_total", "code"), "refused {{code}}"),
        ),
        graph(
            "Entries read",
            "Entries read a second, from the memtable (recent ones) or from entry logs.",
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
            "Missing: not on this bookie, which is normal for readers that follow. In limbo: not "
            "on this bookie, which may have lost it and is being refilled. Failed: an I/O error, "
            "because the bytes are damaged.",
            "ops",
            (_rate("reads_missing_total"), "{{bookie}} missing"),
            (_rate("reads_in_limbo_total"), "{{bookie}} in limbo"),
            (_rate("read_errors_total"), "{{bookie}} failed"),
        ),
    ),
)

LATENCY = PanelRow(
    "Latency by stage",
    (
        graph(
            "An add, from received to synced",
            "A client's wait apart from the network: queue and sync together.",
            "s",
            *quantiles(B + "add_seconds", WHERE, "bookie"),
        ),
        graph(
            "Queue: until its group is written",
            "While one group is synced, the next one gathers, so this follows the time of a sync.",
            "s",
            *quantiles(B + "journal_queue_seconds", WHERE, "bookie"),
        ),
        graph(
            "Sync: write and fdatasync of a group",
            "The disk itself. Rises when it is busy with other work, or about to fail.",
            "s",
            *quantiles(B + "journal_sync_seconds", WHERE, "bookie"),
        ),
        graph(
            "Flush: half a memtable to log and index",
            "Runs in the background. If it takes longer than the other half takes to fill, adds "
            "wait.",
            "s",
            *quantiles(B + "flush_seconds", WHERE, "bookie"),
        ),
        graph(
            "A read, by source",
            "Time of one read in the bookie, from memory, or from the disk and its cache.",
            "s",
            *quantiles(B + "read_seconds", WHERE, "source"),
        ),
        graph(
            "Adds blocked by a full memtable",
            "Both halves were full: flushing cannot keep up, and clients have to wait.",
            "ops",
            (_rate("add_stalls_total"), "{{bookie}}"),
        ),
    ),
)

JOURNAL = PanelRow(
    "Journal",
    (
        graph(
            "Entries synced together",
            "Mean size of a group. Many clients, or a slow disk, make groups larger.",
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
            "Groups, padded to whole blocks; more than the bytes added.",
            "Bps",
            (_rate("journal_written_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Waiting to be synced",
            "Bytes queued for the journal.",
            "bytes",
            (_value("journal_queue_bytes"), "{{bookie}}"),
        ),
        graph(
            "Journal files",
            "Bytes of all journal files. Those before the last mark are deleted, except for a few "
            "spares.",
            "bytes",
            (_value("journal_bytes"), "{{bookie}}"),
        ),
        graph(
            "Checkpoints",
            "Marks written a second; a restart replays only what comes after the last one.",
            "ops",
            (_rate("checkpoints_total"), "{{bookie}}"),
        ),
    ),
)

MEMTABLE = PanelRow(
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
            "Entries in both halves.",
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
            "Mean number of entries. Timed checkpoints cause small flushes.",
            "short",
            (f"{_rate('flushed_entries_total')} / {_rate('flushes_total')}", "{{bookie}}"),
        ),
        graph(
            "Ledgers known",
            "Ledgers with entries or a fence on the bookie.",
            "short",
            (_value("ledgers"), "{{bookie}}"),
        ),
        graph(
            "Ledgers fenced",
            "Fences set a second, by takeovers and by recovery.",
            "ops",
            (_rate("fences_total"), "{{bookie}}"),
        ),
    ),
)

INDEX = PanelRow(
    "Reads from disk, and the index",
    (
        graph(
            "Index pages found in memory",
            "Fraction of lookups that needed no read of the index.",
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
            "Reads a second of index pages and entry logs; at most two per entry.",
            "ops",
            (_rate("index_reads_total"), "{{bookie}} index"),
            (_rate("log_reads_total"), "{{bookie}} log"),
        ),
        graph(
            "Reads waiting or running",
            "Connections waiting for a thread, busy threads, and reads parked until new entries "
            "arrive.",
            "none",
            (_value("reads_queued"), "{{bookie}} waiting"),
            (_value("read_workers_busy"), "{{bookie}} running"),
            (_value("parked_reads"), "{{bookie}} parked"),
        ),
        graph(
            "Memory of the index",
            "Cached pages, which are bounded, and the directory of extents, which grows with "
            "ledgers but not with entries.",
            "bytes",
            (_value("index_cache_bytes"), "{{bookie}} cache"),
            (_value("index_directory_bytes"), "{{bookie}} directory"),
        ),
        graph(
            "Extents",
            "Runs of entries of one ledger in one entry log.",
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

GARBAGE = PanelRow(
    "Garbage collection",
    (
        graph(
            "Entry logs",
            "Bytes of live entries, and bytes that garbage collection could free.",
            "bytes",
            (_value("log_live_bytes"), "{{bookie}} live"),
            (_value("log_dead_bytes"), "{{bookie}} dead"),
            stacked=True,
        ),
        graph(
            "Logs",
            "Entry log files, each with entries of many ledgers.",
            "none",
            (_value("logs"), "{{bookie}}"),
        ),
        graph(
            "Bytes in entry logs",
            "Live and dead bytes, with headers and ledger maps.",
            "bytes",
            (_value("log_bytes"), "{{bookie}}"),
        ),
        graph(
            "Dead fraction",
            "Dead bytes as a fraction of entry logs. Collections rewrite a log whose live "
            "fraction is "
            "below minor_threshold or major_threshold.",
            "percentunit",
            (f"{_value('log_dead_bytes')} / {_value('log_bytes')}", "{{bookie}}"),
            maximum=1,
        ),
        graph(
            "Freed",
            "Disk space freed.",
            "Bps",
            (_rate("gc_freed_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Copied by collections",
            "Live entries of logs that were rewritten.",
            "Bps",
            (_rate("gc_copied_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Ledgers dropped",
            "Ledgers deleted from metadata, or with all their copies on other bookies.",
            "ops",
            (_rate("gc_ledgers_deleted_total"), "{{bookie}} deleted"),
            (_rate("gc_ledgers_moved_away_total"), "{{bookie}} moved away"),
        ),
        graph(
            "Logs deleted",
            "Logs deleted because they held nothing live, or rewritten because little was.",
            "ops",
            (_rate("gc_logs_deleted_total"), "{{bookie}} empty"),
            (_rate("gc_logs_compacted_total"), "{{bookie}} rewritten"),
        ),
        graph(
            "Collections",
            "Collections by result. One fails if the metadata store is unavailable.",
            "ops",
            (_rate("gc_runs_total", "bookie,result"), "{{bookie}} {{result}}"),
        ),
    ),
)

DISK = PanelRow(
    "Disk, damage and clients",
    (
        graph(
            "Free disk",
            "Free space on the fuller one of the bookie's disks.",
            "bytes",
            (_value("disk_free_bytes"), "{{bookie}}"),
        ),
        graph(
            "Level of the disk",
            "0: fine. 1: warning, major collections are suspended. 2: full, the bookie is "
            "read-only.",
            "none",
            (_value("disk_level"), "{{bookie}}"),
            maximum=2,
        ),
        graph(
            "Damage",
            "Damage found by reads, flushes or scrubbing, and requests for repair. Anything above "
            "0 "
            "means that a disk corrupts data.",
            "none",
            (_value("damages_total"), "{{bookie}} found"),
            (_value("scrub_damages_total"), "{{bookie}} found by scrubbing"),
            (_value("repairs_asked_total"), "{{bookie}} repairs requested"),
        ),
        graph(
            "Scrubbing",
            "Bytes of closed logs checked for damage.",
            "Bps",
            (_rate("scrubbed_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Scrub rounds",
            "How often all closed logs were checked; normally once a day.",
            "none",
            (_value("scrub_rounds_total"), "{{bookie}}"),
        ),
        graph(
            "Connections",
            "Open connections.",
            "none",
            (_value("connections"), "{{bookie}}"),
        ),
        graph(
            "Connections ended by the bookie",
            "Refused because of connections_max, or dropped after an error.",
            "ops",
            (_rate("connections_refused_total"), "{{bookie}} refused"),
            (_rate("connections_replaced_total"), "{{bookie}} idle, closed for another"),
            (_rate("connections_dropped_total"), "{{bookie}} dropped"),
            (_rate("connections_faults_total"), "{{bookie}} ended by a bug"),
        ),
        graph(
            "Bytes held for clients",
            "Unsynced requests and unsent responses, bounded by bytes_in_flight_max.",
            "bytes",
            (_value("held_bytes"), "{{bookie}}"),
        ),
        graph(
            "Bytes of unfinished frames",
            "Requests received in part.",
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
