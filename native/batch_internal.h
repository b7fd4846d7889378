/* What the files of the batch codec share: loads at any alignment, and the one
 * place that knows in which order the columns lie. */
#ifndef BK_BATCH_INTERNAL_H
#define BK_BATCH_INTERNAL_H

#include "internal.h"

static inline int32_t bk_load_i32(const void *column, uint64_t i)
{
    int32_t v;
    memcpy(&v, (const uint8_t *)column + 4 * i, sizeof v);
    return v;
}
static inline int64_t bk_load_i64(const void *column, uint64_t i)
{
    int64_t v;
    memcpy(&v, (const uint8_t *)column + 8 * i, sizeof v);
    return v;
}
static inline void bk_store_i32(void *column, uint64_t i, int32_t v)
{
    memcpy((uint8_t *)column + 4 * i, &v, sizeof v);
}
static inline int bk_bit(const uint8_t *bits, uint64_t i) { return bits[i / 8] >> i % 8 & 1; }
static inline int bk_is_valid(const uint8_t *validity, uint64_t i)
{
    return validity == NULL || bk_bit(validity, i);
}

/* Which messages: rows[start] to before rows[stop], or these numbers themselves. */
typedef struct {
    const void *rows;
    uint64_t start, stop;
} bk_range;
static inline uint64_t bk_row(bk_range range, uint64_t i)
{
    return range.rows == NULL ? range.start + i
                              : (uint32_t)bk_load_i32(range.rows, range.start + i);
}

/* Where string i of a column begins and ends; 0 when that is out of bounds. */
static inline int bk_span(const bk_binary *strings, uint64_t i, int64_t *begin, int64_t *end)
{
    *begin = bk_load_i32(strings->offsets, i);
    *end = bk_load_i32(strings->offsets, i + 1);
    return *begin >= 0 && *end >= *begin && (uint64_t)*end <= strings->size;
}

int bk_is_utf8(const uint8_t *bytes, uint64_t size);

/* Place the columns with a width up to the header offsets, then those that need
 * layout->header_count, then the bytes, whose sizes stand in layout. Each
 * returns where it ends. */
uint64_t bk_layout_rows(uint32_t flags, uint64_t count, bk_batch_layout *layout);
uint64_t bk_layout_fixed(uint32_t flags, uint64_t count, bk_batch_layout *layout);
uint64_t bk_layout_bytes(bk_batch_layout *layout);

#endif
