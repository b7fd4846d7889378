/* What the files behind store.h share.
 *
 *   logfile.c    a log and its index as files: names, descriptors, lifetime
 *   entrylog.c   the log's header; the writer of a log and its index
 *   logscan.c    reading a log from front to back
 *   extent.c     entries in, directory rows and pages out
 *   index.c      the index file: header, blocks, scan
 *   rebuild.c    an index from a log
 *   pages.c      the cache of index pages; where an entry's record lies
 *   directory.c  every live extent, by ledger
 *   opening.c    from files and a mark to a store
 *   flush.c      begin, ledgers, commit; rolling
 *   lookup.c     one entry, a run of entries
 *   runs.c       which entries there are
 *   name.c       which ledger of an id they are of
 *   walk.c       the records of an extent, past damage
 *   check.c      checking all that a log holds
 *   compaction.c rewriting a log, deleting one
 *   store.c      the list of logs, damage, figures, closing
 */
#ifndef BK_STORE_INTERNAL_H
#define BK_STORE_INTERNAL_H

#include <pthread.h>

#include "pages_internal.h"

#define BK_LOG_OFFSET_MAX 0x80000000u /* a record starts and ends below this */

/* --- extent.c ---------------------------------------------------------------------- */

/* Builds the rows and pages of one block from entries in the order of the log. */
typedef struct {
    bk_extent *rows;
    uint32_t row_count, row_capacity;
    uint8_t *pages;
    size_t pages_size, pages_capacity;
    bk_extent row; /* the extent under way; entries 0: none */
    uint32_t end;  /* of its last record, counted from its start */
    uint32_t lost; /* damaged records among those of the block, which a rebuild left out */
    int state;
    uint32_t slots_used;     /* of the dense page under way */
    uint64_t page_number;    /* in the extent */
    int64_t entries[BK_SPARSE_ROWS];
    uint32_t offsets[BK_SPARSE_ROWS];
    uint32_t slots[BK_DENSE_SLOTS];
} bk_extents;

/* Entries of one ledger in rising order. A new ledger, a gap in the log, or an
 * entry that does not rise begins a new extent. */
int bk_extents_add(bk_extents *x, int64_t ledger_id, int64_t entry_id, uint32_t log_offset,
                   uint32_t record_size);
/* End the extent under way. */
int bk_extents_end(bk_extents *x);
/* Forget rows and pages, keep the memory. */
void bk_extents_clear(bk_extents *x);
void bk_extents_free(bk_extents *x);

/* --- index.c ----------------------------------------------------------------------- */

#define BK_INDEX_BLOCK_HEADER 64

typedef struct {
    uint64_t offset;
    uint32_t rows;
    uint64_t pages_size;
    uint64_t log_start;
    uint64_t log_end;
    uint32_t lost;
} bk_index_block;

struct bk_index_scan {
    int fd;
    uint32_t log_id;
    uint32_t origin;
    uint64_t file_size;
    uint64_t end;     /* of the blocks read so far, padding included */
    uint64_t log_end; /* of the last block; BK_BLOCK_SIZE before the first */
    bk_index_block block;
    bk_extent *rows;
    uint32_t row, row_capacity;
    int result; /* what ended the scan, BK_OK while it goes on */
};

/* Read the next block's directory. BK_OK, BK_END, BK_CORRUPT (at scan->end). */
int bk_index_scan_block(bk_index_scan *scan);
/* Write the file header at 0. */
int bk_index_write_header(int fd, uint32_t log_id, uint32_t origin);
/* Write a block at *end, moving it on. Page offsets of the rows, which count from the
 * first page, become offsets in the file. */
int bk_index_write_block(int fd, uint32_t log_id, bk_extents *x, uint64_t log_start,
                         uint64_t log_end, uint64_t *end);

/* --- entrylog.c -------------------------------------------------------------------- */

typedef struct {
    uint32_t log_id;
    uint32_t origin;
    uint64_t map_offset;
    uint64_t end; /* 0: open */
} bk_log_header;

void bk_log_header_write(uint8_t *block, const bk_log_header *header);
/* BK_OK or BK_CORRUPT. */
int bk_log_header_read(const uint8_t *block, bk_log_header *header);
/* [blocks] From a file: BK_OK, BK_CORRUPT (damaged or cut short), -ENOENT, -EIO (the disk cannot
 * read it; *file_size is known), other errno. */
int bk_log_header_load(const char *path, bk_log_header *header, uint64_t *file_size);

/* The one writer of a log and of its index. */
typedef struct {
    const char *folder;
    bk_log_header header;
    int log_fd, index_fd; /* -1: none */
    uint8_t *buffer;
    uint64_t buffer_offset; /* in the log, of the buffer's first byte */
    uint32_t used;
    uint64_t block_start; /* of the index block under way, in the log */
    uint64_t log_end;     /* synced */
    uint64_t index_end;   /* synced */
    uint64_t *steps;      /* where writes and syncs that ended are counted; NULL: nowhere */
    bk_extents extents;
} bk_log_writer;

int bk_log_writer_init(bk_log_writer *w, const char *folder);
void bk_log_writer_free(bk_log_writer *w);
/* [blocks] A new log. */
int bk_log_writer_begin(bk_log_writer *w, uint32_t log_id, uint32_t origin);
/* [blocks] Go on with an open log. */
int bk_log_writer_resume(bk_log_writer *w, const bk_log_header *header, uint64_t log_end,
                         uint64_t index_end);
/* Where the next record goes. */
uint64_t bk_log_writer_offset(const bk_log_writer *w);
/* [blocks] Append an INCARNATION record: entries of the ledger follow. */
int bk_log_writer_name(bk_log_writer *w, int64_t ledger_id, int64_t incarnation,
                       uint32_t first_log);
/* [blocks] Append a record whose check is salted. */
int bk_log_writer_add(bk_log_writer *w, int64_t ledger_id, int64_t entry_id, const uint8_t *record,
                      uint32_t record_size, uint32_t salt);
/* [blocks] Sync the log, write and sync the index block. Its rows, with final
 * offsets, are appended to *rows, which the caller frees. */
int bk_log_writer_sync(bk_log_writer *w, bk_extent **rows, uint32_t *count);
/* [blocks] Write map and header, release the files. Only after sync. */
int bk_log_writer_close(bk_log_writer *w);
/* Release the files of a log that is not wanted, or that stays open. */
void bk_log_writer_drop(bk_log_writer *w);
/* [blocks] Write a log's header anew: open (end 0), or closed without a map, when it
 * is damaged and nothing can be appended. A log that is missing stays missing. */
int bk_log_header_save(const char *folder, uint32_t log_id, uint32_t origin, uint64_t end);

/* --- logscan.c --------------------------------------------------------------------- */

/* [blocks] As bk_log_scan_open, without a look at the header. */
int bk_log_scan_open_at(const char *path, uint64_t start, uint64_t end, bk_log_scan **out);

/* --- rebuild.c --------------------------------------------------------------------- */

/* Called with each damage before the new index, which lacks that record, is in place. A result
 * other than 0 ends the rebuild. */
typedef int (*bk_damage_note)(void *context, const char *path, uint64_t offset);
/* [blocks] header: what is known of the log; an end of 0 means the file's end. */
int bk_index_rebuild_from(const char *log_path, const char *index_path, const bk_log_header *header,
                          bk_damage_note note, void *context, uint64_t *entries);

/* --- directory.c ------------------------------------------------------------------- */

typedef struct {
    int64_t id;
    bk_row *rows; /* by first entry; none: the ledger was deleted */
    uint32_t count, capacity;
    uint32_t dead_logs; /* how often it stands among the dead of logs that are not erased */
    uint32_t first_log;
    int64_t incarnation; /* of the ledger that the rows are of; 0: not known */
} bk_ledger_rows;

/* Which of the ledgers that an id stood for. */
typedef struct {
    int64_t ledger_id;
    int64_t incarnation;
    uint32_t first_log;
} bk_name;

typedef struct {
    bk_ledger_rows *ledgers; /* by id */
    uint32_t count, capacity;
    uint64_t extents;
    uint64_t row_bytes;
} bk_directory;

/* Rows of one log, ordered by ledger. -ENOMEM leaves the directory as it was or
 * with a part of the rows. */
int bk_directory_add(bk_directory *d, bk_log *log, const bk_extent *rows, uint32_t count);
/* Make room, so that as many rows more of the ledger can be added without memory, as long as none
 * is removed. -ENOMEM leaves the directory as it was. */
int bk_directory_reserve(bk_directory *d, bk_ledger_rows *ledger, uint32_t count);
/* The ledger, or NULL. */
bk_ledger_rows *bk_directory_ledger(const bk_directory *d, int64_t ledger_id);
/* Position of the first ledger with a greater id. */
uint32_t bk_directory_after(const bk_directory *d, int64_t ledger_id);
/* The same, one that was deleted too while logs still have records of it. */
bk_ledger_rows *bk_directory_place(const bk_directory *d, int64_t ledger_id);
/* Remove the rows of a ledger in one log. Its records there, which are elsewhere by now, are dead.
 * Returns how many. */
uint32_t bk_directory_remove(bk_directory *d, bk_ledger_rows *ledger, bk_log *log);
/* Remove the rows in logs with a smaller origin; their records are dead. Returns how many. */
uint32_t bk_directory_bury(bk_directory *d, bk_ledger_rows *ledger, uint32_t origin);
/* The log has records of the ledger that nobody wants any more. */
void bk_directory_note_dead(bk_ledger_rows *ledger, bk_log *log);
/* The log is gone, durably, and its dead with it. */
void bk_directory_forget_dead(bk_directory *d, bk_log *log);
/* Position of the first row that, or one before which, reaches entry_id or beyond. */
uint32_t bk_directory_reaching(const bk_ledger_rows *ledger, int64_t entry_id);
/* The newest row that spans entry_id and is older than *than (NULL: any).
 * *limit: up to this entry no newer extent than it has a say. NULL: none. */
const bk_row *bk_directory_row(const bk_ledger_rows *ledger, int64_t entry_id, const bk_row *than,
                               int64_t *limit);
void bk_directory_free(bk_directory *d);

/* --- the store --------------------------------------------------------------------- */

/* Rows of a flush that nobody sees yet. */
typedef struct {
    bk_log *log;
    bk_extent *rows;
    uint32_t count;
    uint32_t closed;
    uint64_t size;
    uint64_t index_size;
} bk_pending;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t idle;
    int busy;  /* a flush or a roll is under way */
    int error; /* poisoned: what every later flush returns */
    bk_log_writer writer;
    bk_log *log; /* of the writer, pinned */
    bk_pending *pending;
    uint32_t pending_count;
    uint64_t entries, bytes; /* of this flush */
    bk_name *names;          /* of its ledgers, for the directory */
    uint32_t name_count, name_capacity;
    uint64_t steps;          /* of all flushes: writes and syncs that ended; atomic */
} bk_flush;

struct bk_store {
    char folder[BK_PATH_SIZE_MAX];
    uint64_t log_size_max;
    bk_file_pool files;
    bk_page_cache pages;
    pthread_rwlock_t lock; /* directory, logs and the fields down to marked_log_id */
    bk_directory directory;
    bk_log **logs; /* by id, each pinned once */
    uint32_t log_count, log_capacity;
    uint64_t epoch; /* rises when extents move or go */
    uint32_t next_log_id;
    uint32_t marked_log_id; /* the open log of the last durable mark, 0 for none */
    bk_flush flush;
    pthread_mutex_t compaction; /* one at a time */
    pthread_mutex_t damage_lock;
    bk_damage *damages;
    uint32_t damage_count, damage_capacity;
    uint64_t damaged;
    uint64_t flushes, flushed_entries, flushed_bytes, log_reads; /* atomic */
};

/* store.c */
void bk_store_note_log(bk_store *store, uint32_t log_id, const char *suffix, uint64_t offset,
                       int64_t ledger_id, int64_t entry_id);
/* Whether what is noted further may be dropped unless bk_store_take_damage is called. */
int bk_store_is_crowded(bk_store *store);
/* With the store's lock held for writing: */
int bk_store_add_log(bk_store *store, bk_log *log);
/* Its files are gone, durably: until then a start would load it again, and what it holds must be
 * remembered. */
void bk_store_remove_log(bk_store *store, bk_log *log);
bk_log *bk_store_log(const bk_store *store, uint32_t log_id);
/* A log id that was never used. Takes the store's lock. */
uint32_t bk_store_next_log_id(bk_store *store);
/* Whether a log must stay: flushes go to it, or a start from the durable mark would miss it.
 * With the store's lock held. */
uint32_t bk_store_is_held(const bk_store *store, const bk_log *log);

/* lookup.c. [blocks] The place of damage, or of a file that is gone: -EAGAIN when extents moved
 * since epoch, BK_CORRUPT, noted, when they did not; an index is marked as torn. Other errors are
 * handed back. */
int bk_lookup_judge(bk_store *store, uint64_t epoch, bk_log *log, const char *suffix,
                    uint64_t offset, int64_t ledger_id, int64_t entry_id, int result);
/* lookup.c. Check record against its id and size; *body_size is its body's. */
int bk_entry_check(const uint8_t *record, uint32_t record_size, int64_t ledger_id, int64_t entry_id);

/* name.c, with the store's lock held for writing. The rows of this id are of this ledger. */
void bk_store_name(bk_store *store, const bk_name *name);

/* --- walk.c ------------------------------------------------------------------------ */

/* A walk over extents of one log. Fill in all but region and begun_ns, then open. */
typedef struct bk_walk bk_walk;
struct bk_walk {
    bk_store *store;
    bk_log *log; /* pinned by the caller */
    /* What is done with a sound record. Not BK_OK: the walk ends with that. */
    int (*take)(bk_walk *walk, int64_t ledger_id, int64_t entry_id, uint64_t offset,
                const uint8_t *record, uint32_t record_size);
    void *context;
    uint64_t bytes_per_s;         /* 0: as fast as it goes */
    const volatile int32_t *stop; /* may be NULL */
    uint64_t bytes;               /* of records that were walked over */
    uint64_t begun_ns;
    uint8_t *region;
};

int bk_walk_open(bk_walk *walk);
void bk_walk_close(bk_walk *walk);
/* [blocks] Take all sound records of an extent. BK_OK; BK_END: *stop was set, or the log was
 * deleted; BK_CORRUPT: some are damaged that reads would want, each noted with its entry.
 * A damaged one whose entry was stored again is passed over. */
int bk_walk_extent(bk_walk *walk, int64_t ledger_id, const bk_row *row);
/* [blocks] Read one record into walk->region. BK_OK, BK_CORRUPT, or BK_END: *stop was set. */
int bk_walk_read(bk_walk *walk, int64_t ledger_id, int64_t entry_id, uint64_t offset,
                 uint32_t record_size);

#endif
