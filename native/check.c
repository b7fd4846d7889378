/* Checking a log: every record that reads may want, and the index pages that lead there.
 *
 * No lock is held but for a moment at a time, to list the extents of the next few ledgers; so
 * flushes, reads and compaction go on. What compaction takes away meanwhile is passed over. */
#include "store_internal.h"

#include <errno.h>
#include <stdlib.h>

#define LEDGERS_AT_ONCE 256 /* looked at with the lock held */
#define RESTARTS_MAX 100

typedef struct {
    int64_t ledger_id;
    bk_row row;
} checked_row;

typedef struct {
    bk_walk walk;
    int64_t after;   /* the rows of ledgers up to this one were listed */
    int64_t checked; /* ledgers up to this one are done, or this one is under way */
    uint64_t epoch;
    checked_row *rows; /* of the next few ledgers */
    uint32_t count, room;
} check;

static int take_row(check *c, int64_t ledger_id, const bk_row *row)
{
    checked_row *rows = bk_array_grow32(c->rows, &c->room, c->count + 1, sizeof *rows);
    if (rows == NULL)
        return -ENOMEM;
    c->rows = rows;
    c->rows[c->count++] = (checked_row){ledger_id, *row};
    return BK_OK;
}

static int take_ledger(check *c, const bk_ledger_rows *ledger)
{
    int result = BK_OK;
    for (uint32_t i = 0; i < ledger->count && result == BK_OK; i++)
        if (ledger->rows[i].log == c->walk.log)
            result = take_row(c, ledger->id, &ledger->rows[i]);
    return result;
}

/* The extents of the next few ledgers. BK_END: there are no more ledgers. */
static int take_rows(check *c)
{
    bk_store *store = c->walk.store;
    const bk_directory *d = &store->directory;
    int result = BK_OK;
    c->count = 0;
    pthread_rwlock_rdlock(&store->lock);
    c->epoch = store->epoch;
    uint32_t first = bk_directory_after(d, c->after), i = first;
    for (; i < d->count && i - first < LEDGERS_AT_ONCE && result == BK_OK; i++) {
        c->after = d->ledgers[i].id;
        result = take_ledger(c, &d->ledgers[i]);
    }
    pthread_rwlock_unlock(&store->lock);
    return result == BK_OK && i == first ? BK_END : result;
}

static int nothing_more(bk_walk *walk, int64_t ledger_id, int64_t entry_id, uint64_t offset,
                        const uint8_t *record, uint32_t record_size)
{
    (void)walk;
    (void)ledger_id;
    (void)entry_id;
    (void)offset;
    (void)record;
    (void)record_size;
    return BK_OK;
}

static int check_pages(check *c, const checked_row *r)
{
    bk_store *store = c->walk.store;
    bk_ranges found = {NULL, 0, 0};
    int64_t limit = r->row.first - 1;
    uint64_t offset = 0;
    int result = BK_OK;
    while (result == BK_OK && limit < r->row.last) {
        found.count = 0;
        result = bk_page_ranges(&store->pages, &store->files, &r->row, limit + 1, &found, &limit,
                                &offset);
    }
    bk_ranges_free(&found);
    return bk_lookup_judge(store, c->epoch, c->walk.log, BK_SUFFIX_INDEX, offset, r->ledger_id, -1,
                           result);
}

/* Whether reads may still want the extent; if so, as of an epoch that is taken anew. */
static int is_listed(check *c, const checked_row *r)
{
    bk_store *store = c->walk.store;
    int listed = 0;
    pthread_rwlock_rdlock(&store->lock);
    const bk_ledger_rows *ledger = bk_directory_ledger(&store->directory, r->ledger_id);
    for (uint32_t i = 0; ledger != NULL && i < ledger->count && !listed; i++)
        listed = ledger->rows[i].log == r->row.log &&
                 ledger->rows[i].page_offset == r->row.page_offset;
    if (listed)
        c->epoch = store->epoch;
    pthread_rwlock_unlock(&store->lock);
    return listed;
}

/* Extents that moved say nothing about a page, unless this one is among them. */
static int check_listed_pages(check *c, const checked_row *r)
{
    int result = check_pages(c, r);
    for (int i = 0; i < RESTARTS_MAX && result == -EAGAIN && is_listed(c, r); i++)
        result = check_pages(c, r);
    return result;
}

static int check_row(check *c, const checked_row *r)
{
    int pages = check_listed_pages(c, r);
    if (pages < 0 && pages != -EAGAIN)
        return pages;
    int records = bk_walk_extent(&c->walk, r->ledger_id, &r->row);
    return records == BK_OK && pages == BK_CORRUPT ? BK_CORRUPT : records;
}

static int check_all(check *c)
{
    int verdict = BK_OK, result;
    while ((result = take_rows(c)) == BK_OK) {
        for (uint32_t i = 0; i < c->count; i++) {
            if (c->rows[i].ledger_id != c->checked && bk_store_is_crowded(c->walk.store))
                return BK_FULL;
            c->checked = c->rows[i].ledger_id;
            result = check_row(c, &c->rows[i]);
            if (result == BK_CORRUPT)
                verdict = BK_CORRUPT;
            else if (result != BK_OK)
                return result;
        }
    }
    return result == BK_END ? verdict : result;
}

static bk_log *log_pinned(bk_store *store, uint32_t log_id)
{
    pthread_rwlock_rdlock(&store->lock);
    bk_log *log = bk_store_log(store, log_id);
    if (log != NULL)
        bk_log_pin(log);
    pthread_rwlock_unlock(&store->lock);
    return log;
}

/* Whatever was damaged was stored again or deleted since: compaction may have the log. */
static void clear_damaged(bk_store *store, bk_log *log)
{
    pthread_rwlock_wrlock(&store->lock);
    log->damaged = 0;
    pthread_rwlock_unlock(&store->lock);
}

int bk_store_check_log(bk_store *store, uint32_t log_id, uint64_t bytes_per_s,
                       const volatile int32_t *stop, int64_t *after, uint64_t *checked)
{
    int is_whole = *after < 0;
    *checked = 0;
    bk_log *log = log_pinned(store, log_id);
    if (log == NULL)
        return -ENOENT;
    check c = {.after = *after, .checked = *after,
               .walk = {.store = store, .log = log, .take = nothing_more,
                        .bytes_per_s = bytes_per_s, .stop = stop}};
    int result = bk_walk_open(&c.walk);
    if (result == BK_OK)
        result = check_all(&c);
    if (result == BK_OK && is_whole)
        clear_damaged(store, log);
    *after = c.checked;
    *checked = c.walk.bytes;
    bk_walk_close(&c.walk);
    free(c.rows);
    bk_log_unpin(&store->files, log);
    return result;
}
