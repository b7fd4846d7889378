/* What the files of the engine share: ledgers, memtable, journal state. */
#ifndef BK_ENGINE_INTERNAL_H
#define BK_ENGINE_INTERNAL_H

#include "internal.h"

#include <pthread.h>

/* --- memtable.c: the memtable ----------------------------------------------------- */

/* Entries of one ledger in one half, ordered by entry id. */
typedef struct {
    bk_slot *slots;
    uint32_t count;
    uint32_t room;
} bk_run;

/* Almost always one run. An entry below the greatest one begins a new run, and a run is
 * merged into the one before it until each is more than twice as long as the next: no order
 * of arrival makes more than a few dozen runs, or costs more than n log n. */
typedef struct {
    bk_run *runs;
    uint32_t count;
    int64_t last;
} bk_runs;

typedef struct bk_ledger bk_ledger;

enum { BK_HALF_FREE, BK_HALF_ACTIVE, BK_HALF_SEALED };

typedef struct {
    int state;
    uint8_t *arena;
    uint64_t used;
    uint64_t file_id; /* of the journal file that its groups go to */
    uint32_t salt;
    uint64_t entries;
    bk_ledger **ledgers; /* those with entries here */
    size_t ledger_count, ledger_room;
    uint64_t last_ticket; /* of its last group; 0 when it has none */
    uint64_t mark_file, mark_offset;
} bk_half;

int bk_runs_add(bk_runs *runs, bk_slot slot); /* BK_FULL: it is there already; -ENOMEM */
const bk_slot *bk_runs_find(const bk_runs *runs, int64_t entry_id);
/* The smallest id that is there and not smaller than entry_id; INT64_MAX for none. */
int64_t bk_runs_next(const bk_runs *runs, int64_t entry_id);
/* The first slot whose entry is not smaller; run->count for none. */
uint32_t bk_run_slot(const bk_run *run, int64_t entry_id);
int bk_runs_merge(bk_runs *runs); /* into one run */
void bk_runs_free(bk_runs *runs);

/* --- ledgers.c: the ledgers in memory ------------------------------------------------ */

struct bk_ledger {
    int64_t id;
    int64_t last_entry;
    int64_t lac;
    int64_t explicit_lac;
    int64_t deleted_ms; /* of a tombstone, else 0 */
    int64_t watch_lac;  /* wake when the LAC is greater; valid while watched */
    uint64_t fence_ticket;
    int64_t incarnation; /* 0: not known */
    uint32_t first_log;  /* entries in logs of a smaller origin are of an earlier ledger */
    bk_runs halves[2];
    uint8_t key[BK_KEY_SIZE];
    uint8_t key_known, fenced, deleted, dirty, watched, lac_known;
    uint8_t replayed; /* of a start: an entry since its last INCARNATION came from the journal */
};

typedef struct {
    bk_ledger **slots; /* open addressing, a power of two */
    size_t room, count;
    bk_ledger **sorted; /* by id; NULL when it must be made anew */
} bk_ledgers;

int bk_ledgers_init(bk_ledgers *ledgers);
void bk_ledgers_free(bk_ledgers *ledgers);
bk_ledger *bk_ledgers_find(const bk_ledgers *ledgers, int64_t id);
/* The ledger, made when there is none; NULL without memory. */
bk_ledger *bk_ledgers_make(bk_ledgers *ledgers, int64_t id);
void bk_ledgers_remove(bk_ledgers *ledgers, int64_t id);
/* All by id; NULL without memory. Valid until the next make or remove. */
bk_ledger **bk_ledgers_sorted(bk_ledgers *ledgers);

/* --- table.c: the ledgers on disk -------------------------------------------------------- */

typedef struct {
    uint8_t *bytes;
    size_t size, room;
} bk_bytes;

/* Append the records that say what is known of a ledger. */
int bk_table_describe(bk_bytes *bytes, const bk_ledger *ledger);
/* A special record's meaning, for replay and load. Unknown ones are passed over. */
int bk_table_apply(bk_ledgers *ledgers, const bk_record *record);
/* A special record as it goes to journal and table; returns its size with header. */
uint32_t bk_special_write(uint8_t *out, uint32_t salt, int64_t ledger_id, int64_t kind,
                          const void *rest, uint32_t rest_size);
#define BK_SPECIAL_SIZE_MAX 64
int bk_table_path(const char *folder, uint64_t table_id, char *out);

/* --- engine ------------------------------------------------------------------------------ */

/* A group on its way to the journal. */
typedef struct {
    const uint8_t *data;
    uint64_t size;
    uint64_t file_id, offset;
    uint64_t ticket;
    uint64_t entries;
    uint64_t begun_ns;
} bk_group;

struct bk_engine {
    bk_engine_options options;
    char journal_folder[BK_PATH_SIZE_MAX];
    char ledger_folder[BK_PATH_SIZE_MAX];
    bk_store *store;
    bk_journal *journal;
    pthread_mutex_t lock; /* all below, but what is marked */
    pthread_cond_t work;  /* for the journal thread */
    pthread_cond_t synced_more; /* for flush */
    pthread_t thread;
    int has_thread, stop;

    bk_ledgers ledgers;
    bk_ledger **dirty;
    size_t dirty_count, dirty_room;
    bk_half halves[2];
    int active;
    uint64_t half_size;

    /* the group that gathers, in the active half */
    int gathering;
    uint64_t group_start, group_entries, group_ns;
    /* where it will go */
    uint64_t plan_file, plan_offset, plan_number;
    /* where the last closed group ends: never in a file that does not exist yet, once
       that group is synced; so it may stand in a mark */
    uint64_t end_file, end_offset;
    int unmarked; /* a new bookie: there must be a mark even if there are no entries */
    uint64_t ticket; /* of the group that gathers, or of the next one */
    bk_group *queue; /* closed groups, oldest first */
    size_t queue_count, queue_room;
    uint64_t synced;
    uint64_t unsynced_bytes;

    uint32_t events;
    int failed; /* errno */
    uint64_t notify_ticket;
    bk_connection *waiting; /* connections with unsynced adds */
    uint64_t *ready;
    size_t ready_count, ready_room;
    int64_t *woken;
    size_t woken_count, woken_room;

    uint64_t removals; /* of ledgers: what a connection remembers may be gone */
    uint64_t renewals; /* of ledgers whose id was used again; written under the lock, read by any */
    uint64_t statement_slots; /* of connections that have more than their own */
    int limbo, read_only, priority_allowed;
    int flushing;
    int preparing; /* the journal's thread fills its file ahead */
    int flush_error; /* of the first flush that failed: what every later one returns */
    /* of the flusher alone */
    int table_fd;
    uint64_t table_id, table_end;
    uint64_t table_ticket; /* what the table tells is in the journal when this is synced */
    uint64_t table_steps; /* writes of the table that ended; atomic */
    bk_engine_stats stats;
};

/* Responses of adds, in the order of the adds: [taken, ready_end) may be sent,
 * [ready_end, end) waits for syncs. */
typedef struct {
    uint64_t ticket;
    size_t end;
    uint64_t entries, bytes, ns;
} bk_segment;

/* statements.c: what a connection said of ledgers, by ledger. */
typedef struct {
    int64_t ledger_id;
    int64_t incarnation; /* 0: an empty place */
    int32_t code;        /* the answer while the ledger here is another */
} bk_statement;

typedef struct {
    bk_statement *slots; /* open addressing, a power of two */
    size_t room, count;
} bk_statements;

/* The place of a ledger's statement, NULL when there is none. */
bk_statement *bk_statements_find(const bk_statements *statements, int64_t ledger_id);
/* BK_CLOSE: there are BK_STATEMENTS_MAX already, or more than BK_STATEMENTS_OWN and all
 * connections together have no slot left, which *shared counts; -ENOMEM. Incarnation 0 takes it
 * back. A table that grew keeps its slots until it is freed. */
int bk_statements_put(bk_statements *statements, uint64_t *shared, int64_t ledger_id,
                      int64_t incarnation);
void bk_statements_free(bk_statements *statements, uint64_t *shared);

/* What entry logs hold of the entry that an add repeats. */
typedef struct {
    int64_t ledger_id, entry_id;
    uint64_t renewals, removals; /* of the engine when it was asked for */
    int wanted;                  /* 1: look; 2: looked */
    int result;                  /* BK_OK: body has it; else what reading came to */
    uint8_t *body;
    uint32_t size, room;
} bk_original;

struct bk_connection {
    bk_engine *engine;
    uint64_t token;
    bk_connection *next, *previous; /* in engine->waiting */
    int in_waiting, in_ready;
    uint8_t *out;
    size_t taken, ready_end, end, out_room;
    bk_segment *segments;
    size_t segment_first, segment_count, segment_room; /* a ring */
    uint64_t unsynced;
    uint8_t *partial; /* a frame that is not whole */
    size_t partial_size, partial_room, partial_need;
    int partial_done; /* its frame was handed out; free it at the next feed */
    bk_ledger *last; /* of the frame before, while removals is the engine's */
    uint64_t removals;
    bk_statements statements;
    bk_statement said; /* of the ledger of the frame before, while last and removals hold */
    bk_original original;
};

/* engine.c; all with the lock held */
int bk_engine_room(bk_engine *engine, uint32_t record_size); /* 0, BK_FULL, -errno */
uint8_t *bk_engine_append(bk_engine *engine, uint32_t record_size, uint64_t *offset);
int bk_engine_append_special(bk_engine *engine, int64_t ledger_id, int64_t kind, const void *rest,
                             uint32_t rest_size);
int bk_engine_dirty(bk_engine *engine, bk_ledger *ledger);
void bk_engine_raise(bk_engine *engine, uint32_t events);
void bk_engine_wake(bk_engine *engine, bk_ledger *ledger);
int bk_engine_tell_ready(bk_engine *engine, bk_connection *connection);
int bk_engine_put(bk_engine *engine, bk_ledger *ledger, int64_t entry_id, uint64_t offset,
                  uint32_t record_size);
/* The record in memory, or NULL. */
const uint8_t *bk_engine_find(bk_engine *engine, const bk_ledger *ledger, int64_t entry_id,
                              uint32_t *record_size);
void bk_histogram_add_ns(bk_histogram *histogram, uint64_t ns, uint64_t count);
/* Close the active half and begin the other. BK_FULL: that one is not free. */
int bk_engine_swap(bk_engine *engine);
void bk_engine_activate(bk_engine *engine, int half);
/* incarnation.c, with the lock held. Whether a request for a ledger of this incarnation is about
 * another ledger than the one that is here. */
int bk_is_other(const bk_ledger *ledger, int64_t incarnation);
/* Make the ledger known; INCARNATION goes to the journal when one is given. BK_FULL; -errno. */
int bk_engine_make_ledger(bk_engine *engine, int64_t ledger_id, int64_t incarnation,
                          bk_ledger **out);
/* What BK_RECORD_INCARNATION says, of a ledger without entries in memory. */
void bk_ledger_renew(bk_ledger *ledger, int64_t incarnation, uint32_t first_log);
/* duplicate.c. Whether two stored entries with the same ids are the same entry. */
int bk_entries_agree(const uint8_t *a, uint32_t a_size, const uint8_t *b, uint32_t b_size);
/* What to do with an entry that may be here already. BK_OK: store it; BK_END: it is here, and
 * the same; BK_CORRUPT: another one is here; BK_AGAIN: the disk must tell. */
int bk_connection_judge(bk_connection *connection, const bk_ledger *ledger, int64_t entry_id,
                        const uint8_t *entry, uint32_t entry_size, int32_t flags);
/* Give its memory back; what was looked up counts no more. */
void bk_original_forget(bk_original *original);
/* tombstone.c, with the lock held. */
void bk_tombstone_set(bk_ledger *ledger, int deleted, int64_t deleted_ms);
/* Forget the entries that a ledger, deleted or replaced by another, still has in memory:
 * what is added from now on is stored, though the same entry is there. BK_FULL: some are in a
 * sealed half; the flush takes them away. */
int bk_engine_bury(bk_engine *engine, bk_ledger *ledger);
/* Bring a deleted ledger back, without entries and fenced. BK_FULL: try again later. */
int bk_engine_revive(bk_engine *engine, bk_ledger *ledger, const uint8_t *key);
/* checkpoint.c; without the lock. Write the sealed half out and give it back. */
int bk_engine_write_out(bk_engine *engine, bk_half *half, bk_mark *mark);
/* Open the table file for appending, cut off at table_end. */
int bk_engine_open_table(bk_engine *engine);
/* replay.c: load the table, list the store's ledgers, replay the journal. */
int bk_engine_recover(bk_engine *engine, const bk_mark *mark, bk_recovery *recovery,
                      uint64_t *last_id, uint64_t *last_end);
/* connection.c: what a sync made ready. */
void bk_connection_publish(bk_connection *connection, uint64_t synced, uint64_t now_ns);

#endif
