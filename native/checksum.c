/* Checksums of messages: one pass over the columns, a few nanoseconds for each word. */
#include "batch_internal.h"

static uint64_t take_word(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * BK_CHECKSUM_STEP;
    return hash ^ hash >> 29;
}

static uint64_t take_bytes(uint64_t hash, const uint8_t *data, uint64_t size)
{
    uint64_t at = 0, word;
    hash = take_word(hash, size + 1);
    for (; size - at >= 8; at += 8)
        hash = take_word(hash, bk_get64le(data + at));
    if (at < size) {
        word = 0;
        for (uint64_t i = size; i > at; i--)
            word = word << 8 | data[i - 1];
        hash = take_word(hash, word);
    }
    return hash;
}

/* Take in string i of a column; 0 if it is out of bounds. */
static int take_string(const bk_binary *strings, uint64_t i, uint64_t *hash)
{
    int64_t begin, end;
    if (strings->offsets == NULL || !bk_is_valid(strings->validity, i)) {
        *hash = take_word(*hash, 0);
        return 1;
    }
    if (!bk_span(strings, i, &begin, &end))
        return 0;
    *hash = take_bytes(*hash, strings->data + begin, (uint64_t)(end - begin));
    return 1;
}

static int take_headers(const bk_columns *columns, uint64_t row, uint64_t *hash)
{
    int64_t begin = 0, end = 0;
    if (columns->header_offsets != NULL) {
        begin = bk_load_i32(columns->header_offsets, row);
        end = bk_load_i32(columns->header_offsets, row + 1);
    }
    if (begin < 0 || end < begin || (uint64_t)end > columns->header_count)
        return 0;
    *hash = take_word(*hash, (uint64_t)(end - begin));
    for (uint64_t i = (uint64_t)begin; i < (uint64_t)end; i++)
        if (!take_string(&columns->names, i, hash) ||
            !take_string(&columns->header_values, i, hash))
            return 0;
    return 1;
}

static int hash_message(const bk_columns *columns, uint64_t row, uint64_t *out)
{
    uint64_t hash = BK_CHECKSUM_SEED;
    if (row >= columns->count || !take_string(&columns->keys, row, &hash) ||
        !take_string(&columns->values, row, &hash))
        return 0;
    if (columns->event_times != NULL && bk_is_valid(columns->event_time_validity, row))
        hash = take_word(take_word(hash, 1), (uint64_t)bk_load_i64(columns->event_times, row));
    else
        hash = take_word(hash, 0);
    if (!take_headers(columns, row, &hash))
        return 0;
    *out = take_word(hash, 0);
    return 1;
}

int bk_checksum_messages(const bk_columns *columns, const void *rows, uint64_t start,
                         uint64_t stop, bk_checksum *checksum)
{
    bk_range range = {rows, start, stop};
    bk_checksum sum = *checksum;
    for (uint64_t i = 0; i < stop - start; i++) {
        uint64_t hash;
        if (!hash_message(columns, bk_row(range, i), &hash))
            return BK_CORRUPT;
        sum.count++;
        sum.total += hash;
        sum.chain = sum.chain * BK_CHECKSUM_FACTOR + hash;
    }
    *checksum = sum;
    return BK_OK;
}
