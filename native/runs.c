/* Which entries of a ledger are in entry logs, by the index alone.
 *
 * Extents may overlap and have holes, so no order of theirs gives the runs. The ids are gone
 * through in stretches: the next few extents, one page of each that has holes, and the entry up
 * to which all of that together is the truth. */
#include "store_internal.h"

#include <errno.h>
#include <stdlib.h>

#define ROWS_MAX 256 /* extents in a stretch, but for those that begin before it */
#define RESTARTS_MAX 100

typedef struct {
    bk_row *rows; /* by first entry; their logs are pinned */
    uint32_t count, room;
    uint64_t epoch;
} stretch;

static int take_row(stretch *s, const bk_row *row)
{
    bk_row *rows = bk_array_grow32(s->rows, &s->room, s->count + 1, sizeof *rows);
    if (rows == NULL)
        return -ENOMEM;
    s->rows = rows;
    bk_log_pin(row->log);
    s->rows[s->count++] = *row;
    return BK_OK;
}

static int take_rows(stretch *s, const bk_ledger_rows *ledger, int64_t next, int64_t *bound)
{
    int result = BK_OK;
    uint32_t i = bk_directory_reaching(ledger, next);
    for (; i < ledger->count && result == BK_OK; i++) {
        const bk_row *row = &ledger->rows[i];
        if (row->first > *bound)
            break;
        if (row->first > next && s->count >= ROWS_MAX) {
            *bound = row->first - 1;
            break;
        }
        if (row->last >= next)
            result = take_row(s, row);
    }
    return result;
}

static int take_stretch(bk_store *store, int64_t ledger_id, int64_t next, int64_t *bound,
                        stretch *s)
{
    pthread_rwlock_rdlock(&store->lock);
    s->epoch = store->epoch;
    const bk_ledger_rows *ledger = bk_directory_ledger(&store->directory, ledger_id);
    int result = ledger != NULL ? take_rows(s, ledger, next, bound) : BK_NO_LEDGER;
    pthread_rwlock_unlock(&store->lock);
    return result;
}

static void release_stretch(bk_store *store, stretch *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        bk_log_unpin(&store->files, s->rows[i].log);
    free(s->rows);
}

static int has_holes(const bk_row *row)
{
    return (uint64_t)(row->last - row->first) + 1 != row->entries_kind / 2;
}

static int row_ranges(bk_store *store, const stretch *s, const bk_row *row, int64_t ledger_id,
                      int64_t next, int64_t *bound, bk_ranges *found)
{
    int64_t from = row->first > next ? row->first : next, limit;
    uint64_t offset;
    if (!has_holes(row))
        return bk_ranges_add(found, from, row->last);
    int result = bk_page_ranges(&store->pages, &store->files, row, from, found, &limit, &offset);
    if (limit < row->last && limit < *bound)
        *bound = limit;
    return bk_lookup_judge(store, s->epoch, row->log, BK_SUFFIX_INDEX, offset, ledger_id, -1,
                           result);
}

static int ranges_once(bk_store *store, int64_t ledger_id, int64_t next, int64_t *bound,
                       bk_ranges *found)
{
    stretch s = {NULL, 0, 0, 0};
    int result = take_stretch(store, ledger_id, next, bound, &s);
    for (uint32_t i = 0; i < s.count && result == BK_OK && s.rows[i].first <= *bound; i++)
        result = row_ranges(store, &s, &s.rows[i], ledger_id, next, bound, found);
    release_stretch(store, &s);
    return result;
}

int bk_store_ranges(bk_store *store, int64_t ledger_id, int64_t next, int64_t *bound,
                    bk_ranges *found)
{
    size_t before = found->count;
    int64_t asked = *bound;
    int result = -EAGAIN;
    for (int i = 0; i < RESTARTS_MAX && result == -EAGAIN; i++) {
        found->count = before;
        *bound = asked;
        result = ranges_once(store, ledger_id, next, bound, found);
    }
    return result;
}
