/* A log as files, and the rows of the directory that point into it. */
#ifndef BK_LOG_INTERNAL_H
#define BK_LOG_INTERNAL_H

#include <pthread.h>

#include "internal.h"

static inline void bk_count(uint64_t *counter, uint64_t n)
{
    __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* --- logfile.c --------------------------------------------------------------------- */

#define BK_SUFFIX_LOG "log"
#define BK_SUFFIX_INDEX "index"
#define BK_SUFFIX_DEAD "dead"
#define BK_SUFFIX_TORN "torn"
#define BK_FILE_LOG 0
#define BK_FILE_INDEX 1

/* A file that readers share. It stays open while somebody uses it; the pool
 * closes the one that was not used for longest when too many are open. */
typedef struct bk_file {
    int fd; /* -1: not open at present */
    uint32_t users;
    struct bk_file *newer, *older;
} bk_file;

typedef struct {
    pthread_mutex_t lock;
    const char *folder;
    uint32_t open_count;
    uint32_t open_max;
    bk_file ends; /* .newer is the oldest, .older the newest */
} bk_file_pool;

/* A log that holds or held extents. Alive while the store or a reader pins it. */
typedef struct {
    uint32_t id;
    uint32_t origin;
    uint32_t pins; /* atomic */
    uint32_t torn; /* the file that says so is there; atomic */
    /* Under the store's lock: */
    uint32_t open;
    uint32_t damaged;
    uint32_t extents;
    uint64_t size;
    uint64_t index_size;
    uint64_t live;
    uint64_t records; /* bytes of all records in the index, dead ones too */
    int64_t *dead;    /* ledgers with records here that are not wanted; one may come twice */
    uint32_t dead_count, dead_capacity;
    /* Under the pool's lock: */
    bk_file files[2];
} bk_log;

/* Where a file of the log lies. out has BK_PATH_SIZE_MAX bytes. */
void bk_log_path(const char *folder, uint32_t log_id, const char *suffix, char *out);
bk_log *bk_log_new(uint32_t id, uint32_t origin);
void bk_log_pin(bk_log *log);
void bk_log_unpin(bk_file_pool *pool, bk_log *log);
void bk_file_pool_init(bk_file_pool *pool, const char *folder, uint32_t open_max);
/* [blocks] A descriptor for reading, until released. */
int bk_log_acquire(bk_file_pool *pool, bk_log *log, int which, int *fd);
void bk_log_release(bk_file_pool *pool, bk_log *log, int which);
/* [blocks] A page of the index is damaged: let the next start build the index anew. Where that
 * cannot be written, the next one who meets the damage tries again. */
void bk_log_mark_torn(const char *folder, bk_log *log);
/* [blocks] The index was built anew. */
int bk_log_forget_torn(const char *folder, uint32_t log_id);
/* [blocks] Delete the files of a log, in the order that a crash leaves clear. */
int bk_log_erase(const char *folder, uint32_t log_id);

/* --- rows ---------------------------------------------------------------------------- */

/* An extent in memory. */
typedef struct {
    int64_t first;
    int64_t last;
    int64_t reach; /* greatest last of this row and of those before it */
    bk_log *log;
    uint32_t page_offset;
    uint32_t log_offset;
    uint32_t log_size;
    uint32_t entries_kind; /* entries * 2 + kind */
} bk_row;

#endif
