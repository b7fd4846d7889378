/* A walk over the records of an extent, in the order of the log, past damage.
 *
 * The records say themselves where they end, so no index is needed while they are sound. At one
 * that is not, the index knows which entry it is and where the next one begins; whether that
 * matters depends on whether reads would still come here for the entry. */
#include "store_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define REGION_SIZE (6u << 20)
#define READ_SIZE (1u << 20) /* read in one go, unless a record is larger */
#define RECORD_MIN (BK_RECORD_HEADER_SIZE + 16)
#define RECORD_MAX (BK_RECORD_HEADER_SIZE + BK_RECORD_SIZE_MAX)

_Static_assert(REGION_SIZE > RECORD_MAX, "a region holds a record at least");

/* One extent of a walk. */
typedef struct {
    bk_walk *walk;
    int64_t ledger_id;
    const bk_row *row;
    uint64_t at, end; /* in the log */
    int64_t last;     /* entry of the record before */
    uint32_t entries; /* records met, damaged ones too */
} extent;

int bk_walk_open(bk_walk *walk)
{
    walk->begun_ns = bk_io_now_ns();
    walk->region = malloc(REGION_SIZE);
    return walk->region != NULL ? BK_OK : -ENOMEM;
}

void bk_walk_close(bk_walk *walk)
{
    free(walk->region);
    walk->region = NULL;
}

/* --- pace -------------------------------------------------------------------------- */

static int is_stopped(const bk_walk *walk)
{
    return walk->stop != NULL && *walk->stop != 0;
}

/* Sleep until as many bytes are allowed; BK_END once *stop is set. */
static int keep_pace(const bk_walk *walk)
{
    while (!is_stopped(walk) && walk->bytes_per_s > 0) {
        uint64_t due_ns = (uint64_t)((double)walk->bytes / (double)walk->bytes_per_s * 1e9);
        uint64_t now_ns = bk_io_now_ns() - walk->begun_ns;
        if (now_ns >= due_ns)
            break;
        /* Short naps, so that a stop is seen. */
        uint64_t left = due_ns - now_ns < 50000000 ? due_ns - now_ns : 50000000;
        struct timespec nap = {0, (long)left};
        nanosleep(&nap, NULL);
    }
    return is_stopped(walk) ? BK_END : BK_OK;
}

/* --- sound records ------------------------------------------------------------------ */

static int read_region(bk_walk *walk, uint64_t offset, size_t size, size_t *got)
{
    int fd;
    int result = bk_log_acquire(&walk->store->files, walk->log, BK_FILE_LOG, &fd);
    if (result != BK_OK)
        return result;
    result = bk_io_read(fd, walk->region, size, offset, got);
    bk_log_release(&walk->store->files, walk->log, BK_FILE_LOG);
    return result == -EIO ? BK_CORRUPT : result; /* the disk cannot read somewhere in there */
}

int bk_walk_read(bk_walk *walk, int64_t ledger_id, int64_t entry_id, uint64_t offset,
                 uint32_t record_size)
{
    size_t got = 0;
    int result = record_size > REGION_SIZE ? BK_CORRUPT
                                           : read_region(walk, offset, record_size, &got);
    if (result == BK_OK && got < record_size)
        result = BK_CORRUPT;
    if (result == BK_OK)
        result = bk_entry_check(walk->region, record_size, ledger_id, entry_id);
    walk->bytes += record_size;
    return result == BK_OK ? keep_pace(walk) : result;
}

/* Take the whole records among size bytes at the region's start. BK_SMALL: the next one is not
 * whole; BK_CORRUPT: it is damaged. */
static int take_region(extent *x, size_t size)
{
    bk_walk *walk = x->walk;
    for (size_t used = 0; used < size;) {
        const uint8_t *record = walk->region + used;
        size_t left = size - used;
        uint64_t record_size = left < 4 ? 0 : (uint64_t)bk_get32le(record) + BK_RECORD_HEADER_SIZE;
        if (left >= 4 && (record_size < RECORD_MIN || record_size > RECORD_MAX))
            return BK_CORRUPT;
        if (left < RECORD_MIN || record_size > left)
            return BK_SMALL;
        int64_t entry_id = (int64_t)bk_get64be(record + BK_RECORD_HEADER_SIZE + 8);
        if (entry_id <= x->last || entry_id > x->row->last ||
            bk_entry_check(record, (uint32_t)record_size, x->ledger_id, entry_id) != BK_OK)
            return BK_CORRUPT;
        int result = walk->take(walk, x->ledger_id, entry_id, x->at, record, (uint32_t)record_size);
        if (result != BK_OK)
            return result;
        used += record_size;
        x->at += record_size;
        x->last = entry_id;
        x->entries++;
    }
    return BK_OK;
}

/* BK_OK: at the extent's end. BK_CORRUPT: the record at x->at is damaged. */
static int take_sound(extent *x)
{
    size_t wanted = READ_SIZE;
    while (x->at < x->end) {
        uint64_t before = x->at;
        size_t got = 0, size = x->end - x->at < wanted ? (size_t)(x->end - x->at) : wanted;
        int result = read_region(x->walk, x->at, size, &got);
        if (result == BK_OK)
            result = take_region(x, got);
        if (result != BK_OK && result != BK_SMALL)
            return result;
        int moved = x->at > before;
        if (!moved && (got < size || wanted == REGION_SIZE))
            return BK_CORRUPT; /* it ends beyond the extent, or the file does */
        wanted = moved ? READ_SIZE : REGION_SIZE;
        x->walk->bytes += x->at - before;
        result = keep_pace(x->walk);
        if (result != BK_OK)
            return result;
    }
    return BK_OK;
}

/* --- damaged ones ------------------------------------------------------------------- */

/* The first entry after x->last that the extent has, and its record. */
static int next_entry(extent *x, int64_t *entry_id, bk_span *span)
{
    bk_store *store = x->walk->store;
    bk_ranges found = {NULL, 0, 0};
    int64_t limit = x->last;
    uint64_t offset = 0;
    int result = BK_OK;
    while (result == BK_OK && found.count == 0 && limit < x->row->last)
        result = bk_page_ranges(&store->pages, &store->files, x->row, limit + 1, &found, &limit,
                                &offset);
    if (result == BK_OK && found.count == 0)
        result = BK_CORRUPT; /* there is a record that the index does not know */
    if (result == BK_OK) {
        *entry_id = found.items[0].first;
        result = bk_page_span(&store->pages, &store->files, x->row, *entry_id, 1, 0, span, &offset);
    }
    bk_ranges_free(&found);
    return result;
}

/* Whether reads go elsewhere for the entry: it was stored again, or its ledger was deleted. */
static int is_superseded(const bk_walk *walk, int64_t ledger_id, int64_t entry_id, uint64_t offset)
{
    uint32_t log_id, record_size;
    uint64_t place;
    int result = bk_store_find(walk->store, ledger_id, entry_id, &log_id, &place, &record_size);
    if (result == BK_NO_LEDGER || result == BK_ABSENT)
        return 1;
    return result == BK_OK && (log_id != walk->log->id || place != offset);
}

/* Whether the log is still one of the store's, and not about to be deleted. */
static int is_here(const bk_walk *walk)
{
    pthread_rwlock_rdlock(&walk->store->lock);
    int here = bk_store_log(walk->store, walk->log->id) == walk->log && walk->log->extents > 0;
    pthread_rwlock_unlock(&walk->store->lock);
    return here;
}

static int damaged(const extent *x, int64_t entry_id)
{
    if (!is_here(x->walk))
        return BK_END;
    bk_store_note_log(x->walk->store, x->walk->log->id, BK_SUFFIX_LOG, x->at, x->ledger_id,
                      entry_id);
    return BK_CORRUPT;
}

/* Neither log nor index knows what comes next. */
static int give_up(extent *x)
{
    int result = damaged(x, -1);
    x->at = x->end;
    x->entries = x->row->entries_kind / 2;
    return result;
}

/* Pass over the record at x->at, which cannot be read or has a neighbour that cannot. BK_OK: it
 * is sound and was taken, or nobody misses it. BK_CORRUPT: somebody does; it is noted. */
static int pass_damaged(extent *x)
{
    bk_walk *walk = x->walk;
    int64_t entry_id = -1;
    bk_span span = {0, 0, 0};
    int result = next_entry(x, &entry_id, &span);
    if (result < 0 && result != -ENOENT)
        return result;
    if (result != BK_OK || span.offset != x->at)
        return give_up(x);
    result = bk_walk_read(walk, x->ledger_id, entry_id, x->at, span.size);
    if (result == BK_OK)
        result = walk->take(walk, x->ledger_id, entry_id, x->at, walk->region, span.size);
    else if (result == BK_CORRUPT)
        result = is_superseded(walk, x->ledger_id, entry_id, x->at) ? BK_OK : damaged(x, entry_id);
    x->at += span.size;
    x->last = entry_id;
    x->entries++;
    return result;
}

int bk_walk_extent(bk_walk *walk, int64_t ledger_id, const bk_row *row)
{
    extent x = {.walk = walk, .ledger_id = ledger_id, .row = row, .at = row->log_offset,
                .end = (uint64_t)row->log_offset + row->log_size, .last = row->first - 1};
    int verdict = BK_OK;
    while (x.at < x.end) {
        int result = take_sound(&x);
        if (result == BK_CORRUPT)
            result = pass_damaged(&x);
        else if (result == -ENOENT) /* the file is gone, and perhaps the log with it */
            result = give_up(&x);
        if (result == BK_CORRUPT)
            verdict = BK_CORRUPT;
        else if (result != BK_OK)
            return result;
    }
    if (x.entries == row->entries_kind / 2)
        return verdict;
    x.at = row->log_offset;
    return damaged(&x, -1);
}
