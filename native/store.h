/* Entry logs and the index: where entries live after the memtable.
 *
 * ENTRY LOG. Files are named <8 hex digits of the log id>.log; ids rise, and are
 * never used twice. The first block is the header:
 *
 *   offset  size  field
 *        0     8  magic "QUIRELOG"
 *        8     4  version, 1
 *       12     4  log id
 *       16     4  origin: the log whose records these are. Its own id, unless it
 *                 came from compaction, which hands the origin on; of several logs
 *                 that were joined, the greatest
 *       20     4  zero
 *       24     8  map offset: 0 while the log is open, or when it was closed
 *                 without a map because it is damaged
 *       32     8  end: size of the log's sound part, 0 while the log is open
 *       40     4  crc32c of the 40 bytes above
 *       44        zeros to 4096
 *
 * Then records (record.h, salt 0), ordered by (ledger, entry) within one flush.
 * Each flush starts on a block boundary. A log that is closed ends with its
 * ledger map: records with ledger id -1, BK_RECORD_MAP and, little-endian,
 * pairs of ledger id 8, bytes 8; at most 10 000 pairs a record.
 *
 * Right before the entries of a ledger whose incarnation is known stands its INCARNATION
 * record (table.h): in every log, of every flush, and in what compaction writes. So a rebuild
 * whose ledger table is lost knows which of two ledgers of one id an entry belongs to. Ledger 7
 * of incarnation 0x0123456789abcdef, whose entries are all in logs from 9 on:
 *   1c 00 00 00 | check 4 | 00..07 | ff ff ff ff ff f8 00 00 | 01 23 45 67 89 ab cd ef |
 *   00 00 00 09 | entry | entry ...
 * Logs that an older version wrote have none, nor has what a replay flushed: it cannot know yet
 * whether a later record of the journal begins another ledger.
 *
 * An open log with id 3 starts 51 55 49 52 45 4c 4f 47 | 01 00 00 00 |
 * 03 00 00 00 | 03 00 00 00 | 00 00 00 00 | map 8 zeros | end 8 zeros | crc32c.
 *
 * INDEX. Beside each log, <same digits>.index: a header block (magic "QUIREIDX",
 * version 4, log id 4, origin 4, crc32c 4 of the 20 bytes above), then one
 * block of bytes for each flush, each starting on a multiple of 64:
 *
 *   offset  size  field
 *        0     8  magic "QUIREXTN"
 *        8     8  offset of this block in the file
 *       16     4  rows in the directory
 *       20     4  crc32c of the directory
 *       24     8  bytes of the pages
 *       32     8  log start: where the records of this block begin in the log
 *       40     8  log end: where they end, and where the next block's begin
 *       48     4  log id
 *       52     4  lost: records that are damaged, and so were left out when the index was
 *                 built anew from the log; 0 in a block that a flush or compaction wrote
 *       56     4  zeros
 *       60     4  crc32c of the 60 bytes above
 *       64  48 n  directory: one row for each extent, ordered by (ledger, entry)
 *                 pages: the offset tables, in pieces of up to 4096 bytes
 *                 zeros to a multiple of 64
 *
 * A block is written after the log was synced up to its log end, so a sound
 * block vouches for the records. The blocks tile the log from 4096 to its map:
 * one that is missing at the end is noticed.
 *
 * An EXTENT is a run of one ledger's entries that lie one after the other in the
 * log. Its row, little-endian: ledger 8, first entry 8, last entry 8, offset of
 * its first page in the index file 8, offset in the log 4 and bytes 4 of the
 * run, entries 4, kind 4. Its table:
 *
 *   dense   pages of up to 1022 slots of 4 bytes, the end 4 and a crc32c 4: slot
 *           i holds the offset, counted from the extent's, of entry first + i,
 *           or ffffffff for an entry that is not there. The end is where the
 *           last record of the page ends. Used while at least one slot in eight
 *           is filled. All pages but the last have 1022 slots.
 *   sparse  one page of up to 340 rows of 12 bytes (entry 8, offset 4), the end
 *           4 and a crc32c 4. Entries with wider gaps make several sparse extents.
 *
 * A start reads the directories alone. When a read or a check meets a page that is damaged, an
 * empty file <same digits>.torn is made beside the index: the next start builds that index anew
 * from the log, and then deletes the file. Where the log is damaged, too, the index stays as it is:
 * the records that it leads to could not all be found without it.
 *
 * So a lookup costs one read of a page (none when the index cache has it) and
 * one of the record, whose size stands in the page. The directory is held in memory,
 * 48 bytes an extent: it grows with ledgers per flush, not with entries, and
 * compaction merges it. An entry that is stored twice is read from the newer
 * extent: the one of greater (origin, log id, offset).
 *
 * THE MARK. A checkpoint is known by where everything ended when it was taken.
 * What lies beyond in the open log and its index is a torn flush and is cut off
 * at start; what lies before must be sound, and is reported when it is not.
 * Another log that is not closed is a leftover, and deleted at start. So is a
 * log of the same origin as a newer one that is closed: a compaction ended after
 * it closed its output and before it deleted its input. Of several inputs, those of a
 * smaller origin stay then: what is in them is older than its copy in the output.
 * The input of the same origin stays, too, at a start that builds the output's index anew, and
 * at every later one if that left records out: the input may be the only log to have them.
 * Meanwhile the two are compacted together, or not at all: a copy of one would be taken for both.
 *
 * What no durable mark vouches for is settled before it is trusted: synced, and read from
 * the disk instead of the page cache, which after a failed sync shows what never reached
 * the disk. That is the log of the mark, and logs that were closed after it or whose
 * deletion was left half done.
 *
 * A log is deleted in three steps: renamed to <same digits>.dead, its index (and .torn)
 * deleted, itself deleted, with the folder synced in between. So an index without a log means that the log is lost.
 *
 * A flush may close the log that was open in the durable mark, and its ledgers may be
 * deleted, before the next mark is durable. A start from the older mark would miss that
 * log, so it is neither compacted nor deleted until bk_store_marked names a newer one.
 *
 * Threads: any number of readers, one flusher, one compactor, at once.
 */
typedef struct bk_store bk_store;

typedef struct {
  uint64_t journal_id;     /* replay starts here ... */
  uint64_t journal_offset; /* ... at this offset */
  uint32_t log_id;         /* the open log, 0 for none */
  uint32_t next_log_id;    /* greater than every id ever used */
  uint64_t log_end;        /* bytes of the open log that are synced */
  uint64_t index_end;      /* bytes of its index that are synced */
  uint64_t table_end;      /* bytes of the ledger table that are synced */
  uint64_t table_id;       /* which table file, table.h */
} bk_mark;

/* An entry in a memtable: where its record lies in the arena. */
typedef struct {
  int64_t entry_id;
  uint32_t offset;      /* of the record header */
  uint32_t record_size; /* header and body */
} bk_slot;

/* Entries first to last of a ledger, without a gap. */
typedef struct {
  int64_t first;
  int64_t last;
} bk_entry_run;

/* A thing that is wrong on disk, kept until taken. Up to 1000 are kept. Damaged entries of a
 * ledger that follow one another are one thing. Beyond 1000, the newest one of the same file and
 * ledger is stretched to the entry; what is of another ledger is dropped. */
typedef struct {
  char path[1024];
  uint64_t offset;    /* of the first */
  int64_t ledger_id;  /* -1 when not known */
  int64_t entry_id;   /* -1 when not known */
  int64_t last_entry; /* entry_id, unless there are several */
} bk_damage;

/* [blocks] Open the store in folder, cut off what lies beyond *mark (NULL: an
 * empty folder, or a rebuild: accept what is sound), load the directory; an
 * index file that is missing, damaged or torn is rebuilt from its log and reported
 * as damage. When the log is damaged, too, an empty file "limbo" is made in folder,
 * durably, before that index is in place: after a crash nothing else would show that
 * a record is missing. log_size_max: roll a log at this many bytes (at most 2 GiB).
 * cache_size_max: bytes of the index cache. *failed, BK_PATH_SIZE_MAX bytes: the file that the disk
 * could not read, if the result is -EIO and that is known; or "". */
int bk_store_open(const char *folder, const bk_mark *mark, uint64_t log_size_max,
                  uint64_t cache_size_max, char *failed, bk_store **out);
void bk_store_close(bk_store *store);

/* A flush: begin, the ledgers in rising order, commit. Slots are ordered by
 * entry id; no ledger comes twice. Records are copied from the arena and their
 * salt is taken off. first_log: the entries go to logs with this id or a greater one; 0 for
 * any. incarnation: goes to the logs with it, before the entries; 0 when it is not known. Nothing
 * can be seen before commit. [blocks] */
int bk_store_flush_begin(bk_store *store);
int bk_store_flush_ledger(bk_store *store, int64_t ledger_id, int64_t incarnation,
                          uint32_t first_log,
                          const bk_slot *slots, uint32_t count, const uint8_t *arena,
                          uint32_t salt);
/* Sync log, then index; then make the entries visible. Fills in the four fields
 * of *mark that concern logs. After an error nothing of the flush is visible,
 * and every later flush returns the same error. */
int bk_store_flush_commit(bk_store *store, bk_mark *mark);

/* [blocks] Read the body of a record (a stored entry). *size is its size, also
 * with BK_SMALL. BK_ABSENT, BK_NO_LEDGER, BK_CORRUPT (damage was noted). A log
 * that is missing is damage; one that compaction deleted meanwhile is not, and
 * the entry is looked up again. */
int bk_store_read(bk_store *store, int64_t ledger_id, int64_t entry_id, uint8_t *out,
                  size_t out_size, uint32_t *size);
/* [blocks] The same for one who is about to replace what is damaged: it is not noted. */
int bk_store_peek(bk_store *store, int64_t ledger_id, int64_t entry_id, uint8_t *out,
                  size_t out_size, uint32_t *size);
/* [blocks] Let the kernel begin to read an entry that will be read soon; the size of its record,
 * 0 if there is nothing to be read. Damage is left to the read. */
uint32_t bk_store_prepare(bk_store *store, int64_t ledger_id, int64_t entry_id);
/* [blocks] Read entries from start_id on without a gap, to last_id at most, as
 * { size 4 big-endian, stored entry }... into out: as many as fit out_size and
 * count_max. *count and *size say what was written. With nothing written: the
 * verdict on start_id (as above; BK_SMALL when it does not fit); otherwise BK_OK,
 * whatever ended the run. out may be scribbled on beyond *size. */
int bk_store_read_run(bk_store *store, int64_t ledger_id, int64_t start_id, int64_t last_id,
                      uint32_t count_max, uint8_t *out, size_t out_size, uint32_t *count,
                      size_t *size);
/* Greatest entry id of the ledger. BK_OK or BK_NO_LEDGER. */
int bk_store_last(bk_store *store, int64_t ledger_id, int64_t *entry_id);
/* Where an entry lies. [blocks] BK_OK, BK_ABSENT, BK_NO_LEDGER, BK_CORRUPT. */
int bk_store_find(bk_store *store, int64_t ledger_id, int64_t entry_id, uint32_t *log_id,
                  uint64_t *offset, uint32_t *record_size);

/* Ledgers and logs, for garbage collection and inspection. */
typedef struct {
  int64_t ledger_id;
  int64_t first_entry;
  int64_t last_entry;
  uint64_t entries;
  uint64_t bytes;   /* records in entry logs */
  uint32_t extents;
} bk_ledger_usage;
typedef struct {
  uint32_t log_id;
  uint32_t open;     /* 1: the log that flushes go to, or the open log of the durable mark */
  uint64_t size;     /* bytes of the file */
  uint64_t live;     /* bytes of records of ledgers that are still wanted */
  uint32_t damaged;  /* 1: compaction met damage here and leaves it alone */
  uint32_t extents;
  uint32_t origin;
} bk_log_usage;
/* Copy up to out_count rows of ledgers with id > after, in rising order. Returns
 * the rows copied. */
uint32_t bk_store_ledgers(bk_store *store, int64_t after, bk_ledger_usage *out, uint32_t out_count);
uint32_t bk_store_logs(bk_store *store, int64_t after, bk_log_usage *out, uint32_t out_count);
/* Forget a ledger: its bytes become dead. BK_OK or BK_NO_LEDGER. The files do not
 * record this: until its logs are gone, the next start finds the ledger again, and the
 * caller, which remembers the deletion, deletes it once more. */
int bk_store_delete_ledger(bk_store *store, int64_t ledger_id);
/* Whether any log has entries of the ledger, forgotten and copied ones too: the next start would
 * find these again. That is over once the log's files are gone, durably. */
int bk_store_remembers(bk_store *store, int64_t ledger_id);
/* Forget what logs with a smaller origin than first_log hold of a ledger. */
void bk_store_forget_before(bk_store *store, int64_t ledger_id, uint32_t first_log);
/* What compaction writes before entries of the ledger, as bk_store_flush_ledger does. */
void bk_store_set_incarnation(bk_store *store, int64_t ledger_id, int64_t incarnation,
                              uint32_t first_log);
/* [blocks] What the INCARNATION records before the entries of a ledger say: the newest of them.
 * Costs a read for each extent. BK_OK; BK_ABSENT: there is none; -EIO: the newest may be one that
 * the disk cannot read, in the file *unread (BK_PATH_SIZE_MAX bytes); other -errno. A damaged one
 * counts as none. */
int bk_store_find_incarnation(bk_store *store, int64_t ledger_id, int64_t *incarnation,
                              uint32_t *first_log, char *unread);
/* A number that is greater than the origin of every log that holds entries of the ledger,
 * forgotten ones too; 0 when there is none. */
uint32_t bk_store_first_log(bk_store *store, int64_t ledger_id);
/* Whether an extent spans the entry; it may have a hole there. Reads nothing. */
int bk_store_spans(bk_store *store, int64_t ledger_id, int64_t entry_id);
/* [blocks] Delete a log that has no live bytes and is not open (bk_log_usage). *freed: bytes.
 * BK_FULL when the log is not empty or is open; -ENOENT when there is none. After any other
 * error the log is still listed: call again. */
int bk_store_delete_log(bk_store *store, uint32_t log_id, uint64_t *freed);
/* [blocks] Rewrite a closed log: copy its live records to a new log of the
 * compactor's own, sync that, sync its index, switch the extents, delete the old log.
 * Or several closed logs, as one: log_ids by rising (origin, log id), and no other log's origin
 * between theirs (-EINVAL), so that what was newer stays newer. Of all of them holds what is said
 * of one. -EINVAL, too, when another log has the origin of one of them.
 * bytes_per_s: throttle, 0 = none. *stop != 0 ends it early, without loss
 * (BK_END); it may be NULL. *copied: bytes. A damaged record whose entry was stored
 * again is left out; any other is noted, the old log is kept and marked damaged
 * (BK_CORRUPT), and the check below takes that mark away. After any failure the old log is as it
 * was, or, when it could not be deleted, is listed without live bytes: its entries are in the new
 * one, and bk_store_delete_log deletes it. A ledger deleted meanwhile stays deleted. BK_FULL: the
 * log is open. */
int bk_store_compact(bk_store *store, const uint32_t *log_ids, uint32_t count,
                     uint64_t bytes_per_s, const volatile int32_t *stop, uint64_t *copied);
/* [blocks] Check every record of a log that reads may want, and the index pages that lead there;
 * of the open log, what flushes have shown. Damage is noted with ledger and entry where they
 * are known; a damaged record whose entry was stored again, or whose ledger was deleted, is none.
 * No lock is held while the disk is read. *checked: bytes of records. bytes_per_s and stop as
 * for compaction. *after: ledgers up to this one are passed over, -1 for none. BK_OK: all is sound,
 * and a log of which nothing was passed over, and which compaction left alone as damaged, is open to
 * it again. BK_CORRUPT: damage was noted. BK_FULL: the list of damage is half full. Take it, and
 * call again with the *after that was returned; a ledger's damage would be dropped otherwise.
 * BK_END: stopped early, or the log was deleted meanwhile. -ENOENT: there is no such log. */
int bk_store_check_log(bk_store *store, uint32_t log_id, uint64_t bytes_per_s,
                       const volatile int32_t *stop, int64_t *after, uint64_t *checked);
/* [blocks] Close the open log (map, header), so that compaction may take it. Waits
 * for a flush under way. Fills in *mark as a commit does; persist it before the log
 * is compacted or deleted. */
int bk_store_roll(bk_store *store, bk_mark *mark);
/* Call when *mark is durable; bk_engine_trim does. */
void bk_store_marked(bk_store *store, const bk_mark *mark);

/* Up to out_count damages, oldest first, removed from the list. */
uint32_t bk_store_take_damage(bk_store *store, bk_damage *out, uint32_t out_count);

/* Counters since open. */
typedef struct {
  uint64_t flushes;
  uint64_t flushed_entries;
  uint64_t flushed_bytes;
  uint64_t log_reads;          /* preads of entry logs */
  uint64_t index_reads;        /* preads of index pages */
  uint64_t index_cache_hits;
  uint64_t index_cache_bytes;
  uint64_t directory_bytes;    /* memory of the directory of extents */
  uint64_t extents;
  uint64_t ledgers;
  uint64_t logs;
  uint64_t log_bytes;          /* of all log files */
  uint64_t live_bytes;
  uint64_t index_bytes;        /* of all index files */
  uint64_t damaged;            /* damages met, also those taken */
  uint64_t dead_bytes;         /* records of forgotten ledgers, in logs that are not rewritten yet */
} bk_store_stats;
void bk_store_get_stats(bk_store *store, bk_store_stats *out);
/* How often the disk took something from a flush. From any thread. */
uint64_t bk_store_flush_steps(const bk_store *store);

/* Scan an entry log's records in file order, the map included. */
typedef struct bk_log_scan bk_log_scan;
/* [blocks] BK_CORRUPT when the header is damaged. *closed: the header
 * says that the log is closed. end: scan to here, 0 = to the end named in the header
 * or, in an open log, to the end of the file. */
int bk_log_scan_open(const char *path, uint64_t end, bk_log_scan **out, uint32_t *log_id,
                     uint32_t *closed);
/* [blocks] As bk_journal_scan_next; after BK_CORRUPT it goes on behind the damaged
 * record when its size leads to something sound, else at the next block that starts
 * with a sound record. A block that cannot be read counts as damaged. */
int bk_log_scan_next(bk_log_scan *scan, bk_record *record);
void bk_log_scan_close(bk_log_scan *scan);

/* Scan an index file's directory. */
typedef struct {
  int64_t ledger_id;
  int64_t first_entry;
  int64_t last_entry;
  uint64_t page_offset;
  uint32_t log_offset;
  uint32_t log_size;
  uint32_t entries;
  uint32_t kind;       /* 0 dense, 1 sparse */
} bk_extent;
typedef struct bk_index_scan bk_index_scan;
/* [blocks] BK_CORRUPT when the header is damaged. */
int bk_index_scan_open(const char *path, bk_index_scan **out, uint32_t *log_id);
/* [blocks] The next row; *offset: where it stands. BK_END, or BK_CORRUPT: the block
 * at *offset is damaged, and the scan is over. */
int bk_index_scan_next(bk_index_scan *scan, bk_extent *extent, uint64_t *offset);
/* [blocks] Check the pages of a row that the scan gave. BK_CORRUPT: the page at *offset is
 * damaged; the rows behind it may be sound. */
int bk_index_scan_pages(const bk_index_scan *scan, const bk_extent *extent, uint64_t *offset);
void bk_index_scan_close(bk_index_scan *scan);

typedef struct {
  uint64_t entries;
  uint64_t damaged;      /* places, which were passed over */
  uint64_t first_damage; /* offset of the first one */
} bk_rebuilt;
/* [blocks] Write the index of one log anew from its records (temporary file, sync, rename). */
int bk_index_rebuild(const char *log_path, const char *index_path, bk_rebuilt *rebuilt);
