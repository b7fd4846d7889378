/* The engine: what a bookie does to bytes. Frames of a connection go in, entries
 * land in the memtable and the journal, acknowledgements come out when the
 * journal is synced. Whatever is not an add is handed to the caller.
 *
 *   feed ─► frames ─► ledger table ─► arena of the active half ─┬─► journal thread: write, sync
 *                                     (memtable = journal buffer)│        └─► acks, event_fd
 *                                                                └─► full: sealed half ─► flush ─► store
 *
 * One memory for both. A half of the memtable is an arena of records in the
 * layout of the journal, grouped and padded as the journal wants them. The
 * journal thread writes straight from it, so an entry is copied once, from the
 * socket's bytes, and the order of the journal is the order of the memtable.
 * That is what makes the mark exact: when a half is sealed, the end of its last
 * group is the position before which every record is in this half or in an
 * older one.
 *
 * Rules.
 *  1. An add is acknowledged when its record is in the memtable and its group
 *     is synced; never after a failed write or sync.
 *  2. A half is given back only when its flush is synced and visible.
 *  3. A journal file is rolled only between halves, so a half has one salt.
 *  4. The first frame for a ledger that is not known creates it with the
 *     frame's key. A ledger whose key is not known (an index rebuilt without
 *     it) takes the first key that is shown. In a guarded engine that holds only of peers that
 *     say which incarnation they mean. Of others the caller is asked first (BK_ASK), who looks
 *     into the metadata: the id may be one that the cluster has yet to give to a ledger.
 *  5. An entry that is here already is acknowledged (after the sync of the current group)
 *     and not stored again. It must be the same: ids, length and payload; its LAC may be
 *     another, since recovery adds entries again with the LAC from before it, and then the
 *     digest is another too. An HMAC cannot be checked here, so what has neither a sound CRC32C
 *     nor a sound CRC32 counts as having one, and with another LAC its first 20 bytes are not
 *     compared. What differs is refused with BAD_REQUEST, and stays as it was. When the
 *     entry is in an entry log, feed stops with BK_AGAIN until the caller had it looked up. A
 *     copy that is damaged there is replaced: the new one is stored, and read from then on. So is
 *     a sound one by an add with BK_FLAG_MEND, whose sender found it wrong, unless it is still in the
 *     memtable. So of two records of an entry in the journal, the later one counts.
 *  6. A tombstone refuses adds with FENCED; an add with BK_FLAG_RECOVERY brings the ledger
 *     back, fenced and without entries: FENCE and KEY go to the journal before it. What it
 *     had before its deletion counts no longer, so rule 5 never rests on that; the add waits
 *     (BK_FULL) while some of it is in a half that is being flushed. Entry logs that still
 *     hold such entries show them again at the next start, as they do of any ledger that is
 *     not a tombstone: they are entries of the ledger like the others. A tombstone is not
 *     forgotten while a log has such entries.
 *  7. An id may be used again (table.h). A request that says which incarnation it means is not
 *     answered from another one: it gets the code of its connection's statement. The
 *     caller learns of it from feed, finds out which of the two is over, and renews the ledger or
 *     refuses the statement. A renewed ledger has no entries, no key, no fence and no LAC:
 *     those it had are dead, in memory, journal and logs, also after a restart, a rebuilt
 *     index and compaction. When the ledger table is damaged or lost, what logs say of
 *     incarnations counts (store.h). A request of incarnation 0 means whichever is here; a ledger
 *     of incarnation 0 is another than any that a request can name, and stays until it is deleted.
 *
 * Threads: bk_connection_* and bk_engine_poll/ready/woken from the event loop's
 * thread; bk_engine_answer with use_disk from any; one flush at a time; the
 * rest from any. Inside, one mutex guards ledgers, memtable and journal state,
 * held for one chunk at most; the store has locks of its own.
 */
typedef struct bk_engine bk_engine;
typedef struct bk_connection bk_connection;

#define BK_STATEMENTS_MAX 65536 /* ledgers of which one connection says the incarnation */
#define BK_STATEMENTS_OWN 1024  /* so many on any connection; for more, all share what follows */
#define BK_STATEMENT_SLOTS_MAX 4194304 /* of 24 bytes, two or four for each statement */
#define BK_SEARCH_BESIDE_TABLE 2
#define BK_MEMTABLE_SIZE_MIN 5246976 /* the largest record in a group of its own */

typedef struct {
  const char *journal_folder;
  const char *ledger_folder;
  uint64_t memtable_size;     /* bytes of one half; there are two. Only what is used is memory */
  uint64_t journal_size_max;  /* roll a journal file after this many bytes */
  uint32_t journal_spares;    /* files kept for reuse */
  uint32_t threaded;          /* 1: own journal thread; 0: bk_engine_commit drives it */
  uint64_t log_size_max;
  uint64_t index_cache_size;
  int32_t event_fd;           /* an eventfd; written when poll has news; -1 for none */
  uint32_t searches_logs;     /* not 0: a rebuild. Look in logs, too, for the incarnations of
                                 ledgers (store.h), as the ledger table may be an old one, or
                                 BK_SEARCH_BESIDE_TABLE: it is that of the last mark */
} bk_engine_options;

/* What opening found. */
typedef struct {
  uint64_t replayed_files;
  uint64_t replayed_records;
  uint64_t replayed_bytes;
  uint64_t damages;        /* damaged places met in journals and tables */
  int32_t limbo;           /* 1: records are missing; see bk_engine_set_limbo */
  int32_t reserved;
  char failed[1024];       /* as of bk_store_open, of the journal and the ledger table, too */
} bk_recovery;

/* [blocks] Open the store and the table at *mark, replay the journal from it,
 * start a new journal file. mark NULL: a new bookie (folders without data).
 * -ENOENT: the journal file that the mark names is missing. -EEXIST: mark is NULL and
 * journals or logs exist, or the new journal file does. */
int bk_engine_open(const bk_engine_options *options, const bk_mark *mark, bk_recovery *recovery,
                   bk_engine **out);
/* [blocks] Stop the thread after the group under way and free everything. What was not
 * flushed stays in the journal. */
void bk_engine_close(bk_engine *engine);

/* --- connections ------------------------------------------------------------ */

/* token: the caller's name for the connection, given back by bk_engine_take_ready. */
int bk_connection_open(bk_engine *engine, uint64_t token, bk_connection **out);
/* Unsynced adds stay in the journal and are never acknowledged. */
void bk_connection_close(bk_connection *connection);
/* Take in bytes from the peer. *used of them were dealt with; the requests that
 * are not for C stand in requests, *count of at most requests_max.
 *   BK_OK     *used == size, or requests_max was reached: call again
 *   BK_FULL   the memtable is full: feed the rest after BK_EVENT_SPACE
 *   BK_AGAIN  call bk_connection_look, then feed the rest
 *   BK_ASK    call bk_connection_tell of the ledger bk_connection_asked, then feed the rest
 *   BK_CLOSE  send what bk_connection_take gives, then close
 * After a request with opcode BK_OP_INCARNATION nothing more is taken: the ledger here is another
 * than its sender means. Renew it or refuse the statement, then feed the rest.
 * A frame that is not whole is kept in a buffer of its own size. */
int bk_connection_feed(bk_connection *connection, const uint8_t *data, size_t size, size_t *used,
                       bk_request *requests, uint32_t requests_max, uint32_t *count);
/* The buffer in which a request that came in pieces was put together; valid until
 * the next feed. bk_request.in_pieces marks it. */
const uint8_t *bk_connection_partial(const bk_connection *connection);
/* [blocks] Read what entry logs hold of the entry that feed met with BK_AGAIN. -ENOMEM. Not
 * while it is fed. */
int bk_connection_look(bk_connection *connection);
/* The ledger of the frame that feed met with BK_ASK. */
int64_t bk_connection_asked(const bk_connection *connection);
/* What is true of a ledger that is not here, until the next call: frames of peers that do not say
 * which they mean are refused with code, or with UNAUTHORIZED if they come with another key (NULL:
 * any will do), or else make it with this incarnation. */
void bk_connection_tell(bk_connection *connection, int64_t ledger_id, int32_t code,
                        int64_t incarnation, const uint8_t *key);
/* Requests of this connection for the ledger, of which it said this incarnation, are answered
 * with OTHER_LEDGER from now on, while the ledger here is of another. */
void bk_connection_refuse(bk_connection *connection, int64_t ledger_id, int64_t incarnation);
/* Copy out responses that may be sent; returns the bytes. */
size_t bk_connection_take(bk_connection *connection, uint8_t *out, size_t out_size);
/* Bytes of adds not yet synced, bytes that take would give, bytes of responses that
 * wait for a sync, bytes held for a frame that is not whole. */
void bk_connection_backlog(const bk_connection *connection, uint64_t *unsynced, uint64_t *ready,
                           uint64_t *waiting, uint64_t *partial);

/* --- events ------------------------------------------------------------------- */

#define BK_EVENT_READY 1  /* bk_engine_take_ready has connections */
#define BK_EVENT_FLUSH 2  /* a half is sealed: call bk_engine_flush */
#define BK_EVENT_SPACE 4  /* a half was given back */
#define BK_EVENT_WOKEN 8  /* bk_engine_take_woken has ledgers */
#define BK_EVENT_SYNCED 16 /* the ticket given to bk_engine_notify is synced */
#define BK_EVENT_FAILED 32 /* the journal failed: end the process */

/* Events since the last call; 0 for none. After BK_EVENT_FAILED *error is the
 * errno, and nothing will ever be acknowledged again. */
uint32_t bk_engine_poll(bk_engine *engine, int32_t *error);
/* Tokens of connections that have responses to send; each appears once until it is
 * taken. Returns how many were written; call again when it is out_count. */
uint32_t bk_engine_take_ready(bk_engine *engine, uint64_t *out, uint32_t out_count);
/* Ledgers whose watch came true; the watch is gone then. */
uint32_t bk_engine_take_woken(bk_engine *engine, int64_t *out, uint32_t out_count);
/* Watch a ledger's LAC. BK_OK: watching. BK_END: no need, the LAC is greater than
 * known_lac already, or the ledger is fenced or deleted. BK_NO_LEDGER. */
int bk_engine_watch(bk_engine *engine, int64_t ledger_id, int64_t known_lac);
/* Ask for BK_EVENT_SYNCED once everything up to ticket is synced. */
void bk_engine_notify(bk_engine *engine, uint64_t ticket);
/* Everything up to this ticket is synced. */
uint64_t bk_engine_get_synced(bk_engine *engine);
/* All that the memtable holds now is durable once this ticket is synced. */
uint64_t bk_engine_get_gathered(bk_engine *engine);

/* --- requests ------------------------------------------------------------------- */

/* Fence a ledger, created if it is not known. *ticket: synced when the fence is
 * durable; answer only then. BK_BAD_KEY. BK_FULL: try after BK_EVENT_SPACE. BK_OTHER_LEDGER: the
 * one here is of another incarnation (0: whichever is here). */
int bk_engine_fence(bk_engine *engine, int64_t ledger_id, int64_t incarnation, const uint8_t *key,
                    uint64_t *ticket);
/* Write the whole response frame of a READ, BATCH_READ or READ_WAIT (as if its
 * wait were over) to out; an error is a response too. BK_AGAIN: use_disk is 0
 * and the disk is needed [blocks with use_disk]. BK_SMALL: *size is needed.
 * The key of a fencing read is checked, its fence is not set. */
int bk_engine_answer(bk_engine *engine, const bk_request *request, int32_t use_disk, uint8_t *out,
                     size_t out_size, size_t *size);
/* The same for many at once: response frames one behind the other, as many as fit, *size bytes.
 * The requests that are not answered yet are moved to the front, *count of them: without use_disk
 * those that need the disk, and those for which there is no room. */
int bk_engine_answer_reads(bk_engine *engine, bk_request *requests, uint32_t *count,
                           int32_t use_disk, uint8_t *out, size_t out_size, size_t *size);
/* Reading adds nothing that was damaged or lost: in limbo, "no entry" and "no
 * ledger" are answered with I/O error, since the entry may have been here. */
void bk_engine_set_limbo(bk_engine *engine, int32_t limbo);
/* Rule 4: peers that do not say which ledger they mean create none unasked. */
void bk_engine_set_guarded(bk_engine *engine, int32_t guarded);
/* Refuse adds with READ_ONLY; those with BK_FLAG_PRIORITY too unless
 * priority_allowed. WRITE_LAC counts as an add. Fences are always taken. */
void bk_engine_set_read_only(bk_engine *engine, int32_t read_only, int32_t priority_allowed);

/* --- ledgers ---------------------------------------------------------------------- */

typedef struct {
  int64_t ledger_id;
  int64_t last_entry;   /* -1: none */
  int64_t lac;          /* greatest LAC seen, piggybacked or explicit; -1: none, or
                           not known until the last entry is read */
  int64_t explicit_lac; /* -1: none */
  int32_t fenced;
  int32_t deleted;      /* 1: a tombstone */
  int32_t key_known;
  int32_t reserved;
  int64_t incarnation;  /* 0: not known */
  uint8_t key[20];
} bk_ledger_state;
/* BK_OK or BK_NO_LEDGER. */
int bk_engine_ledger(bk_engine *engine, int64_t ledger_id, bk_ledger_state *out);
/* Ledgers with id > after, in rising order, tombstones left out. */
uint32_t bk_engine_ledgers(bk_engine *engine, int64_t after, bk_ledger_state *out,
                           uint32_t out_count);
/* [blocks] Which entries of a ledger are here, in memtable and entry logs: up to out_count runs
 * with ids > after, rising and maximal (the next entry after each is not here), so to go on ask
 * with the last one's end. It costs a read of the index for each page with holes, none for
 * extents without; no record is read, so a damaged one counts as here. Entries added or deleted
 * meanwhile may be missing or not, and one may be here that is not synced: see
 * bk_engine_get_gathered. BK_OK; BK_NO_LEDGER: unknown or a tombstone; BK_CORRUPT: the
 * index is damaged. */
int bk_engine_runs(bk_engine *engine, int64_t ledger_id, int64_t after, bk_entry_run *out,
                   uint32_t out_count, uint32_t *count);
/* Turn a ledger into a tombstone, its entries into dead bytes. now_ms: the metadata store's
 * time. It lasts from the next sync or flush on; a crash before that brings the ledger back as it was. BK_NO_LEDGER:
 * it is not known, or of another incarnation (-1: whichever is here). */
int bk_engine_delete_ledger(bk_engine *engine, int64_t ledger_id, int64_t incarnation,
                            int64_t now_ms);
/* The ledger that is here, of incarnation from, is over; to begins, with nothing. A crash before
 * the next sync brings the old one back. BK_FULL: try after BK_EVENT_SPACE. BK_NO_LEDGER: there is
 * none of incarnation from, or it is 0 and no tombstone. */
int bk_engine_renew_ledger(bk_engine *engine, int64_t ledger_id, int64_t from, int64_t to);
/* Drop tombstones older than BK_TOMBSTONE_MS of which no log has entries. */
void bk_engine_forget_tombstones(bk_engine *engine, int64_t now_ms);
/* Mark every ledger fenced, at the next flush durably (after a rebuild). */
void bk_engine_fence_all(bk_engine *engine);
/* The store below, for garbage collection and inspection. */
bk_store *bk_engine_store(bk_engine *engine);

/* --- journal and flush -------------------------------------------------------------- */

/* [blocks] Without a thread of its own: write and sync what gathered, publish.
 * BK_END: nothing had gathered. */
int bk_engine_commit(bk_engine *engine);
/* Seal the active half although it is not full. BK_END: it is empty and nothing
 * else changed. BK_FULL: the other half is still being flushed. */
int bk_engine_seal(bk_engine *engine);
/* [blocks] Flush the sealed half: wait for its groups to be synced, write and sync
 * log, index and table, make it visible, give the half back. BK_OK: persist *mark, then
 * call bk_engine_trim. BK_END: no half is sealed. An error is final: the journal keeps
 * everything, end the process. */
int bk_engine_flush(bk_engine *engine, bk_mark *mark);
/* [blocks] Call when *mark is durable: journal files before it are deleted or kept as
 * spares, all but backups of them; the ledger table before it is deleted, or renamed to
 * <name>.unread if the start could not read all of it; and the log that was
 * open in the mark before may be compacted and deleted (bk_store_marked). */
int bk_engine_trim(bk_engine *engine, const bk_mark *mark, uint32_t backups);
/* Give the memory of unused arenas back to the system. */
void bk_engine_release_memory(bk_engine *engine);

/* --- whether the disk moves ------------------------------------------------------------ */

/* A disk that hangs fails no call: the thread that writes or syncs just never comes back. So
 * look from time to time: where there is work and its steps stand still, the disk does. A step
 * is 4 MiB of a write at most, or one sync. */
typedef struct {
  uint64_t journal_steps;
  uint64_t flush_steps;
  int32_t journal_work; /* 1: entries wait for their sync, or the journal is being prepared */
  int32_t flush_work;   /* 1: a half is sealed and not given back yet */
} bk_progress;
/* Never waits for the disk. */
void bk_engine_get_progress(bk_engine *engine, bk_progress *out);

/* --- counters ------------------------------------------------------------------------- */

/* Bucket i counts what took less than 2^i microseconds and not less than half of that; the
 * last takes the rest. */
#define BK_HISTOGRAM_BUCKETS 26
typedef struct {
  uint64_t count;
  uint64_t sum_ns;
  uint64_t buckets[26];
} bk_histogram;
typedef struct {
  uint64_t adds;            /* entries acknowledged */
  uint64_t add_bytes;       /* of their stored form */
  uint64_t adds_repeated;   /* rule 5 */
  uint64_t add_errors[8];   /* by code: 100 .. 106, the last for others */
  uint64_t reads_memtable;  /* entries */
  uint64_t reads_log;
  uint64_t read_bytes;
  uint64_t reads_missing;   /* answered NO_ENTRY or NO_LEDGER */
  uint64_t reads_in_limbo;  /* of what is not here, answered IO_ERROR as it may be lost */
  uint64_t read_errors;     /* answered IO_ERROR for any other reason */
  uint64_t fences;
  uint64_t groups;          /* journal syncs */
  uint64_t group_bytes;     /* with padding */
  uint64_t group_entries;
  uint64_t journal_bytes;   /* of all journal files */
  uint64_t journal_id;
  uint64_t journal_offset;
  uint64_t unsynced_bytes;  /* queue depth: gathered, not yet synced */
  uint64_t memtable_bytes;  /* used in both halves */
  uint64_t memtable_entries;
  uint64_t ledgers;
  uint64_t fulls;           /* times that a feed met a full memtable */
  uint64_t connections;
  uint64_t partial_bytes;   /* of frames that are not whole, all connections */
  bk_histogram add;         /* fed to synced */
  bk_histogram queue;       /* group: first record to write begun */
  bk_histogram sync;        /* group: write and sync */
  bk_histogram group_size;  /* entries a group; unit: entries, not microseconds */
  bk_histogram flush;
  bk_histogram read_memtable;
  bk_histogram read_log;
} bk_engine_stats;
void bk_engine_get_stats(bk_engine *engine, bk_engine_stats *out);
