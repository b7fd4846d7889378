/* The directory: every live extent in memory, by ledger, then by first entry.
 *
 * Ledgers stand in one array ordered by id, since flushes and index files give
 * them in that order and inspection wants them so. A deleted ledger keeps its place, without
 * rows, until no log has a record of it any more, and the next merge. */
#include "store_internal.h"

#include <errno.h>
#include <stdlib.h>

uint32_t bk_directory_after(const bk_directory *d, int64_t ledger_id)
{
    uint32_t low = 0, high = d->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (d->ledgers[middle].id <= ledger_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bk_ledger_rows *bk_directory_place(const bk_directory *d, int64_t ledger_id)
{
    uint32_t after = bk_directory_after(d, ledger_id);
    return after > 0 && d->ledgers[after - 1].id == ledger_id ? &d->ledgers[after - 1] : NULL;
}

bk_ledger_rows *bk_directory_ledger(const bk_directory *d, int64_t ledger_id)
{
    bk_ledger_rows *ledger = bk_directory_place(d, ledger_id);
    return ledger != NULL && ledger->count > 0 ? ledger : NULL;
}

/* --- rows of one ledger ------------------------------------------------------------ */

/* Position of the first row that begins after entry_id. */
static uint32_t row_after(const bk_ledger_rows *ledger, int64_t entry_id)
{
    uint32_t low = 0, high = ledger->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ledger->rows[middle].first <= entry_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void update_reach(bk_ledger_rows *ledger, uint32_t from)
{
    for (uint32_t i = from; i < ledger->count; i++) {
        bk_row *row = &ledger->rows[i];
        row->reach = i > 0 && row[-1].reach > row->last ? row[-1].reach : row->last;
    }
}

static int resize_rows(bk_directory *d, bk_ledger_rows *ledger, uint32_t capacity)
{
    bk_row *rows = bk_array_resize(ledger->rows, capacity, sizeof *rows);
    if (rows == NULL)
        return -ENOMEM;
    d->row_bytes -= (uint64_t)ledger->capacity * sizeof *rows;
    d->row_bytes += (uint64_t)capacity * sizeof *rows;
    ledger->rows = rows;
    ledger->capacity = capacity;
    return BK_OK;
}

int bk_directory_reserve(bk_directory *d, bk_ledger_rows *ledger, uint32_t count)
{
    uint32_t capacity = ledger->capacity + ledger->capacity / 2 + 1;
    if (ledger->capacity - ledger->count >= count)
        return BK_OK;
    if (capacity - ledger->count < count)
        capacity = ledger->count + count;
    return resize_rows(d, ledger, capacity);
}

static int insert_row(bk_directory *d, bk_ledger_rows *ledger, const bk_row *row)
{
    int result = bk_directory_reserve(d, ledger, 1);
    if (result != BK_OK)
        return result;
    uint32_t at = row_after(ledger, row->first);
    memmove(ledger->rows + at + 1, ledger->rows + at, (ledger->count - at) * sizeof *row);
    ledger->rows[at] = *row;
    ledger->count++;
    update_reach(ledger, at);
    d->extents++;
    row->log->extents++;
    row->log->live += row->log_size;
    row->log->records += row->log_size;
    return BK_OK;
}

static void release_rows(bk_directory *d, bk_ledger_rows *ledger)
{
    d->row_bytes -= (uint64_t)ledger->capacity * sizeof *ledger->rows;
    free(ledger->rows);
    ledger->rows = NULL;
    ledger->capacity = ledger->count = 0;
}

/* Row i goes, or is the kept-th of those that stay. */
static uint32_t keep_row(bk_directory *d, bk_ledger_rows *ledger, uint32_t i, uint32_t kept,
                         int stays)
{
    bk_row *row = &ledger->rows[i];
    if (stays) {
        ledger->rows[kept] = *row;
        return kept + 1;
    }
    row->log->extents--;
    row->log->live -= row->log_size;
    d->extents--;
    return kept;
}

static uint32_t rows_kept(bk_directory *d, bk_ledger_rows *ledger, uint32_t kept)
{
    uint32_t removed = ledger->count - kept;
    ledger->count = kept;
    if (kept == 0)
        release_rows(d, ledger);
    else if (kept < ledger->capacity / 2)
        (void)resize_rows(d, ledger, kept); /* it may stay larger */
    update_reach(ledger, 0);
    return removed;
}

uint32_t bk_directory_remove(bk_directory *d, bk_ledger_rows *ledger, bk_log *log)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < ledger->count; i++) {
        int stays = ledger->rows[i].log != log;
        if (!stays)
            bk_directory_note_dead(ledger, log);
        kept = keep_row(d, ledger, i, kept, stays);
    }
    return rows_kept(d, ledger, kept);
}

uint32_t bk_directory_bury(bk_directory *d, bk_ledger_rows *ledger, uint32_t origin)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < ledger->count; i++) {
        int stays = ledger->rows[i].log->origin >= origin;
        if (!stays)
            bk_directory_note_dead(ledger, ledger->rows[i].log);
        kept = keep_row(d, ledger, i, kept, stays);
    }
    return rows_kept(d, ledger, kept);
}

/* --- the dead -------------------------------------------------------------------- */

#define DEAD_FOR_EVER 0x80000000u /* set without memory to note more: kept until the restart */

void bk_directory_note_dead(bk_ledger_rows *ledger, bk_log *log)
{
    if (log->dead_count > 0 && log->dead[log->dead_count - 1] == ledger->id)
        return; /* several extents of it lie here */
    int64_t *dead =
        bk_array_grow32(log->dead, &log->dead_capacity, log->dead_count + 1, sizeof *dead);
    if (dead == NULL) {
        ledger->dead_logs |= DEAD_FOR_EVER;
        return;
    }
    log->dead = dead;
    log->dead[log->dead_count++] = ledger->id;
    ledger->dead_logs++;
}

void bk_directory_forget_dead(bk_directory *d, bk_log *log)
{
    for (uint32_t i = 0; i < log->dead_count; i++) {
        bk_ledger_rows *ledger = bk_directory_place(d, log->dead[i]);
        if (ledger != NULL && (ledger->dead_logs & ~DEAD_FOR_EVER) > 0)
            ledger->dead_logs--;
    }
    log->dead_count = 0;
}

/* --- adding what a flush or an index file holds ------------------------------------ */

static uint32_t count_new(const bk_directory *d, const bk_extent *rows, uint32_t count)
{
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < count; i++)
        if (i == 0 || rows[i].ledger_id != rows[i - 1].ledger_id)
            fresh += bk_directory_place(d, rows[i].ledger_id) == NULL;
    return fresh;
}

static void drop_deleted(bk_directory *d)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < d->count; i++)
        if (d->ledgers[i].count > 0 || d->ledgers[i].dead_logs > 0)
            d->ledgers[kept++] = d->ledgers[i];
    d->count = kept;
}

/* Make places for the ledgers of rows that have none, in one pass from the back. */
static int merge_ledgers(bk_directory *d, const bk_extent *rows, uint32_t count)
{
    uint32_t fresh = count_new(d, rows, count);
    if (fresh == 0)
        return BK_OK;
    drop_deleted(d);
    fresh = count_new(d, rows, count);
    if (d->count + fresh > d->capacity) {
        uint32_t capacity = (d->count + fresh) / 4 * 5 + 16;
        bk_ledger_rows *ledgers = bk_array_resize(d->ledgers, capacity, sizeof *ledgers);
        if (ledgers == NULL)
            return -ENOMEM;
        d->ledgers = ledgers;
        d->capacity = capacity;
    }
    uint32_t to = d->count + fresh, from = d->count, row = count;
    d->count = to;
    while (to > from) {
        int64_t id = rows[row - 1].ledger_id;
        if (from > 0 && d->ledgers[from - 1].id >= id) {
            if (d->ledgers[from - 1].id == id)
                while (row > 0 && rows[row - 1].ledger_id == id)
                    row--;
            d->ledgers[--to] = d->ledgers[--from];
        } else {
            d->ledgers[--to] = (bk_ledger_rows){.id = id};
            while (row > 0 && rows[row - 1].ledger_id == id)
                row--;
        }
    }
    return BK_OK;
}

static bk_row row_of(bk_log *log, const bk_extent *extent)
{
    return (bk_row){.first = extent->first_entry,
                    .last = extent->last_entry,
                    .log = log,
                    .page_offset = (uint32_t)extent->page_offset,
                    .log_offset = extent->log_offset,
                    .log_size = extent->log_size,
                    .entries_kind = extent->entries * 2 + extent->kind};
}

int bk_directory_add(bk_directory *d, bk_log *log, const bk_extent *rows, uint32_t count)
{
    int result = merge_ledgers(d, rows, count);
    uint32_t at = count > 0 ? bk_directory_after(d, rows[0].ledger_id) : 0;
    for (uint32_t i = 0; i < count && result == BK_OK; i++) {
        /* Both are in the same order; a jump is worth a search. */
        if (d->ledgers[at - 1].id != rows[i].ledger_id)
            at++;
        if (at > d->count || d->ledgers[at - 1].id != rows[i].ledger_id)
            at = bk_directory_after(d, rows[i].ledger_id);
        bk_row row = row_of(log, &rows[i]);
        result = insert_row(d, &d->ledgers[at - 1], &row);
    }
    return result;
}

uint32_t bk_directory_reaching(const bk_ledger_rows *ledger, int64_t entry_id)
{
    uint32_t low = 0, high = ledger->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ledger->rows[middle].reach < entry_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* --- finding ----------------------------------------------------------------------- */

static int is_newer(const bk_row *a, const bk_row *b)
{
    if (a->log->origin != b->log->origin)
        return a->log->origin > b->log->origin;
    if (a->log->id != b->log->id)
        return a->log->id > b->log->id;
    return a->log_offset > b->log_offset;
}

/* The last entry of row before a newer extent begins; from: the rows after it. */
static int64_t sole_until(const bk_ledger_rows *ledger, const bk_row *row, uint32_t from)
{
    for (uint32_t i = from; i < ledger->count && ledger->rows[i].first <= row->last; i++)
        if (is_newer(&ledger->rows[i], row))
            return ledger->rows[i].first - 1;
    return row->last;
}

const bk_row *bk_directory_row(const bk_ledger_rows *ledger, int64_t entry_id, const bk_row *than,
                               int64_t *limit)
{
    const bk_row *newest = NULL;
    uint32_t after = row_after(ledger, entry_id);
    for (uint32_t i = after; i > 0 && ledger->rows[i - 1].reach >= entry_id; i--) {
        const bk_row *row = &ledger->rows[i - 1];
        if (row->last >= entry_id && (than == NULL || is_newer(than, row)) &&
            (newest == NULL || is_newer(row, newest)))
            newest = row;
    }
    if (newest != NULL)
        *limit = than == NULL ? sole_until(ledger, newest, after) : entry_id;
    return newest;
}

void bk_directory_free(bk_directory *d)
{
    for (uint32_t i = 0; i < d->count; i++)
        free(d->ledgers[i].rows);
    free(d->ledgers);
    memset(d, 0, sizeof *d);
}
