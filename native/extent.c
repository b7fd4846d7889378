/* Extents: entries in the order of the log go in, rows and pages come out.
 *
 * An extent starts short: its entries are kept until it is clear which table
 * suits them. Many close together make a dense one, written page by page from
 * then on; few with wide gaps a sparse one. */
#include "store_internal.h"

#include <errno.h>
#include <stdlib.h>

#define STATE_NONE 0
#define STATE_SHORT 1
#define STATE_DENSE 2
#define STATE_SPARSE 3

#define DENSE_GAP 8      /* one slot in so many is filled */
#define DENSE_LEAST 16   /* a denser run of so many stays dense when a gap ends it */

_Static_assert(sizeof(bk_extent) == BK_EXTENT_SIZE, "rows are written as they are in memory");
_Static_assert(BK_DENSE_SLOTS * 4 + BK_PAGE_TAIL == BK_BLOCK_SIZE, "a full page is a block");

static int page_room(bk_extents *x, size_t size, uint8_t **out)
{
    uint8_t *pages = bk_array_grow(x->pages, &x->pages_capacity, x->pages_size + size, 1);
    if (pages == NULL)
        return -ENOMEM;
    x->pages = pages;
    *out = x->pages + x->pages_size;
    x->pages_size += size;
    return BK_OK;
}

static void finish_page(uint8_t *page, size_t size, uint32_t end)
{
    bk_put32le(page + size, end);
    bk_put32le(page + size + 4, bk_crc32c(0, page, size + 4));
}

/* --- dense ------------------------------------------------------------------------- */

/* end: where the records of the page under way end. */
static int dense_page(bk_extents *x, uint32_t end)
{
    size_t size = (size_t)x->slots_used * 4;
    uint8_t *page;
    int result = page_room(x, size + BK_PAGE_TAIL, &page);
    if (result != BK_OK)
        return result;
    memcpy(page, x->slots, size);
    finish_page(page, size, end);
    memset(x->slots, 0xff, sizeof x->slots);
    x->slots_used = 0;
    x->page_number++;
    return BK_OK;
}

static int put_dense(bk_extents *x, int64_t entry_id, uint32_t offset)
{
    uint64_t index = (uint64_t)(entry_id - x->row.first_entry);
    while (index / BK_DENSE_SLOTS > x->page_number) {
        x->slots_used = BK_DENSE_SLOTS;
        int result = dense_page(x, offset);
        if (result != BK_OK)
            return result;
    }
    uint32_t slot = (uint32_t)(index % BK_DENSE_SLOTS);
    x->slots[slot] = offset;
    x->slots_used = slot + 1;
    return BK_OK;
}

static int become_dense(bk_extents *x)
{
    memset(x->slots, 0xff, sizeof x->slots);
    x->slots_used = 0;
    x->page_number = 0;
    x->state = STATE_DENSE;
    x->row.kind = BK_KIND_DENSE;
    int result = BK_OK;
    for (uint32_t i = 0; i < x->row.entries && result == BK_OK; i++)
        result = put_dense(x, x->entries[i], x->offsets[i]);
    return result;
}

/* --- sparse ------------------------------------------------------------------------ */

static int sparse_page(bk_extents *x)
{
    size_t size = (size_t)x->row.entries * 12;
    uint8_t *page;
    int result = page_room(x, size + BK_PAGE_TAIL, &page);
    if (result != BK_OK)
        return result;
    for (uint32_t i = 0; i < x->row.entries; i++) {
        bk_put64le(page + (size_t)i * 12, (uint64_t)x->entries[i]);
        bk_put32le(page + (size_t)i * 12 + 8, x->offsets[i]);
    }
    finish_page(page, size, x->end);
    x->row.kind = BK_KIND_SPARSE;
    return BK_OK;
}

/* --- the extent under way ---------------------------------------------------------- */

static int append_row(bk_extents *x)
{
    bk_extent *rows =
        bk_array_grow32(x->rows, &x->row_capacity, (size_t)x->row_count + 1, sizeof *rows);
    if (rows == NULL)
        return -ENOMEM;
    x->rows = rows;
    x->row.log_size = x->end;
    x->rows[x->row_count++] = x->row;
    return BK_OK;
}

int bk_extents_end(bk_extents *x)
{
    int result = BK_OK;
    if (x->state == STATE_NONE)
        return BK_OK;
    if (x->state == STATE_SHORT)
        result = become_dense(x);
    if (result == BK_OK)
        result = x->state == STATE_DENSE ? dense_page(x, x->end) : sparse_page(x);
    if (result == BK_OK)
        result = append_row(x);
    x->state = STATE_NONE;
    return result;
}

static void start_extent(bk_extents *x, int64_t ledger_id, int64_t entry_id, uint32_t log_offset)
{
    x->row = (bk_extent){.ledger_id = ledger_id,
                         .first_entry = entry_id,
                         .page_offset = x->pages_size,
                         .log_offset = log_offset};
    x->end = 0;
    x->state = STATE_SHORT;
}

static int is_dense_with(const bk_extents *x, int64_t entry_id)
{
    uint64_t slots = (uint64_t)(entry_id - x->row.first_entry) + 1;
    return slots <= ((uint64_t)x->row.entries + 1) * DENSE_GAP;
}

/* Whether the extent under way can take the entry; a short one may turn sparse. */
static int takes(bk_extents *x, int64_t ledger_id, int64_t entry_id, uint32_t log_offset)
{
    if (x->state == STATE_NONE || x->row.ledger_id != ledger_id ||
        entry_id <= x->row.last_entry || log_offset != x->row.log_offset + x->end)
        return 0;
    if (x->state == STATE_SPARSE)
        return x->row.entries < BK_SPARSE_ROWS;
    if (is_dense_with(x, entry_id))
        return 1;
    if (x->state == STATE_DENSE || x->row.entries >= DENSE_LEAST)
        return 0;
    x->state = STATE_SPARSE;
    return 1;
}

int bk_extents_add(bk_extents *x, int64_t ledger_id, int64_t entry_id, uint32_t log_offset,
                   uint32_t record_size)
{
    int result = BK_OK;
    if (!takes(x, ledger_id, entry_id, log_offset)) {
        result = bk_extents_end(x);
        start_extent(x, ledger_id, entry_id, log_offset);
    }
    if (result == BK_OK && x->state == STATE_SHORT && x->row.entries == BK_SPARSE_ROWS)
        result = become_dense(x);
    if (result == BK_OK && x->state == STATE_DENSE)
        result = put_dense(x, entry_id, x->end);
    if (result != BK_OK)
        return result;
    if (x->state != STATE_DENSE) {
        x->entries[x->row.entries] = entry_id;
        x->offsets[x->row.entries] = x->end;
    }
    x->row.entries++;
    x->row.last_entry = entry_id;
    x->end += record_size;
    return BK_OK;
}

void bk_extents_clear(bk_extents *x)
{
    x->row_count = 0;
    x->pages_size = 0;
    x->lost = 0;
    x->state = STATE_NONE;
}

void bk_extents_free(bk_extents *x)
{
    free(x->rows);
    free(x->pages);
    memset(x, 0, sizeof *x);
}
