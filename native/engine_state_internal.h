/* The state of the engine: ledgers, memtable, groups, connections. What acts on it stands in
 * engine_internal.h. */
#ifndef BK_ENGINE_STATE_INTERNAL_H
#define BK_ENGINE_STATE_INTERNAL_H

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
bk_slot *bk_runs_find(const bk_runs *runs, int64_t entry_id);
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
    uint8_t was_renewed; /* the table may tell of an earlier ledger of this id */
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

/* The two halves of the memtable. */
typedef struct {
    bk_half halves[2];
    int active;
    uint64_t half_size;
} bk_memtable;

/* Groups: the one that gathers, in the active half, and those on their way to the journal. */
typedef struct {
    int gathering;
    uint64_t start, entries, begun_ns; /* of the group that gathers; start is in the half */
    uint64_t plan_file, plan_offset, plan_number; /* where it will go */
    /* Where the last closed group ends: never in a file that does not exist yet, once that group
     * is synced; so it may stand in a mark. */
    uint64_t end_file, end_offset;
    int unmarked;    /* a new bookie: there must be a mark even if there are no entries */
    uint64_t ticket; /* of the group that gathers, or of the next one */
    bk_group *queue; /* closed groups, oldest first */
    size_t queue_count, queue_room;
    int writing;     /* the oldest one, without the lock */
    uint64_t synced; /* ticket of the last group that is durable */
    uint64_t unsynced_bytes;
} bk_groups;

/* What the event loop has not heard of yet. */
typedef struct {
    uint32_t raised;
    int failed; /* errno of the journal; nothing is acknowledged any more */
    uint64_t notify_ticket;
    bk_connection *waiting; /* connections with unsynced adds */
    uint64_t *ready;        /* tokens of connections with answers to send */
    size_t ready_count, ready_room;
    int64_t *woken; /* ledgers whose LAC moved past what somebody waits for */
    size_t woken_count, woken_room;
} bk_events;

/* Which adds are refused. */
typedef struct {
    int limbo, read_only, priority_allowed, guarded;
} bk_mode;

/* The flush, and the ledgers that the table on disk must hear of. */
typedef struct {
    int under_way;
    int error; /* of the first flush that failed: what every later one returns */
    bk_ledger **dirty;
    size_t dirty_count, dirty_room;
} bk_flushing;

/* The table file. */
typedef struct {
    int fd;
    uint64_t id, end;
    uint64_t lost_id; /* of the one that this start found damaged or could not read; 0: none */
    uint64_t ticket; /* what the table says is in the journal when this is synced */
    uint64_t steps;  /* writes of the table that ended; atomic */
} bk_table_file;

/* Counters by which a connection knows whether what it remembers still holds. */
typedef struct {
    uint64_t removals; /* of ledgers: what a connection remembers may be gone */
    uint64_t renewals; /* of ledgers whose id was used again; atomic for readers */
    uint64_t statement_slots; /* of connections that have more than their own */
} bk_changes;

struct bk_engine {
    /* Set when it opens, and never changed: no lock. */
    bk_engine_options options;
    char journal_folder[BK_PATH_SIZE_MAX];
    char ledger_folder[BK_PATH_SIZE_MAX];
    bk_store *store;     /* has locks of its own */
    bk_journal *journal; /* written by the journal thread alone */
    pthread_t thread;
    int has_thread;
    int replays; /* it is opening: a later record of the journal may begin another ledger */

    pthread_mutex_t lock;
    pthread_cond_t work;        /* for the journal thread */
    pthread_cond_t synced_more; /* a group is durable, or the journal failed */

    /* Under the lock: */
    bk_ledgers ledgers;
    bk_memtable memtable;
    bk_groups groups;
    bk_events events;
    bk_mode mode;
    bk_flushing flush;
    bk_changes changes;
    bk_engine_stats stats;
    int stop;      /* the journal thread shall end */
    int preparing; /* the journal thread fills its file ahead */

    /* Of the flush that is under way, which is one thread; no lock but for steps: */
    bk_table_file table;
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

/* What the metadata say of a ledger that is not here. */
typedef struct {
    int64_t ledger_id, incarnation;
    int32_t code;            /* with which it is refused, or 0 */
    uint8_t told;            /* 0: only ledger_id holds, of which the caller shall find out */
    uint8_t has_key;
    uint8_t key[BK_KEY_SIZE];
} bk_newcomer;

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
    bk_newcomer newcomer;
};

#endif
