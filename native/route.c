/* Before messages become batches: offsets, bits, which partition, and where to cut. */
#include "batch_internal.h"

int bk_offsets(const void *lengths, uint64_t count, void *offsets)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        bk_store_i32(offsets, i, (int32_t)at);
        at += (uint32_t)bk_load_i32(lengths, i);
        if (at > INT32_MAX)
            return BK_SMALL;
    }
    bk_store_i32(offsets, count, (int32_t)at);
    return BK_OK;
}

void bk_bits_pack(const uint8_t *bytes, uint64_t count, uint8_t *bits)
{
    memset(bits, 0, (count + 7) / 8);
    for (uint64_t i = 0; i < count; i++)
        bits[i / 8] |= (uint8_t)((bytes[i] != 0) << i % 8);
}

void bk_bits_copy(const uint8_t *from, uint64_t offset, uint64_t count, uint8_t *bits)
{
    memset(bits, 0, (count + 7) / 8);
    for (uint64_t i = 0; i < count; i++)
        bits[i / 8] |= (uint8_t)(bk_bit(from, offset + i) << i % 8);
}

/* --- partitions ------------------------------------------------------------------ */

static uint32_t rotate(uint32_t word, int by) { return word << by | word >> (32 - by); }
static uint32_t scramble(uint32_t word) { return rotate(word * 0xcc9e2d51u, 15) * 0x1b873593u; }

uint32_t bk_murmur3(const uint8_t *data, size_t size, uint32_t seed)
{
    uint32_t hash = seed, tail = 0;
    size_t at = 0;
    for (; size - at >= 4; at += 4)
        hash = rotate(hash ^ scramble(bk_get32le(data + at)), 13) * 5 + 0xe6546b64u;
    for (size_t i = size; i > at; i--)
        tail = tail << 8 | data[i - 1];
    hash ^= scramble(tail) ^ (uint32_t)size;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

int bk_route(const bk_binary *keys, uint64_t count, uint32_t partitions, uint32_t *partition_of)
{
    for (uint64_t i = 0; i < count; i++) {
        int64_t begin, end;
        partition_of[i] = BK_NO_PARTITION;
        if (!bk_is_valid(keys->validity, i))
            continue;
        if (!bk_span(keys, i, &begin, &end))
            return BK_CORRUPT;
        uint32_t hash = bk_murmur3(keys->data + begin, (size_t)(end - begin), 0);
        partition_of[i] = (hash & INT32_MAX) % partitions;
    }
    return BK_OK;
}

int bk_group_rows(const uint32_t *partition_of, uint64_t count, uint32_t partitions,
                  uint64_t *starts, uint32_t *rows)
{
    memset(starts, 0, (partitions + 1ull) * sizeof *starts);
    for (uint64_t i = 0; i < count; i++) {
        if (partition_of[i] == BK_NO_PARTITION)
            continue;
        if (partition_of[i] >= partitions)
            return BK_CORRUPT;
        starts[partition_of[i] + 1]++;
    }
    for (uint32_t p = 0; p < partitions; p++)
        starts[p + 1] += starts[p];
    /* Filling moves each start to where the next begins; move them back after. */
    for (uint64_t i = 0; i < count; i++)
        if (partition_of[i] != BK_NO_PARTITION)
            rows[starts[partition_of[i]]++] = (uint32_t)i;
    memmove(starts + 1, starts, partitions * sizeof *starts);
    starts[0] = 0;
    return BK_OK;
}

/* --- cutting ------------------------------------------------------------------------ */

/* What a batch of these columns takes at most: so much, and so much for each message. */
typedef struct {
    uint64_t base;
    uint64_t each;
    uint64_t bitmaps; /* of one bit for each message */
} cost;

static cost cost_of(const bk_columns *columns, uint32_t producer_size)
{
    uint64_t strings = 1 + (columns->keys.offsets != NULL), words = 0, bitmaps = 0;
    uint64_t columns_max = 14, headers = columns->header_offsets != NULL;
    words += columns->event_times != NULL;
    words += columns->timestamps != NULL;
    bitmaps += columns->values.validity != NULL;
    bitmaps += columns->keys.validity != NULL;
    bitmaps += columns->event_time_validity != NULL;
    return (cost){
        .base = bk_batch_body_offset(producer_size) + 8 * columns_max + 4 * (strings + 3 * headers),
        .each = 4 * (strings + headers) + 8 * words,
        .bitmaps = bitmaps,
    };
}

static int add_string(const bk_binary *strings, uint64_t row, uint64_t *size)
{
    int64_t begin, end;
    if (strings->offsets == NULL || !bk_is_valid(strings->validity, row))
        return 1;
    if (!bk_span(strings, row, &begin, &end))
        return 0;
    *size += (uint64_t)(end - begin);
    return 1;
}

static int add_headers(const bk_columns *columns, uint64_t row, uint64_t *size)
{
    if (columns->header_offsets == NULL)
        return 1;
    int64_t begin = bk_load_i32(columns->header_offsets, row);
    int64_t end = bk_load_i32(columns->header_offsets, row + 1);
    if (begin < 0 || end < begin || (uint64_t)end > columns->header_count)
        return 0;
    for (uint64_t i = (uint64_t)begin; i < (uint64_t)end; i++) {
        *size += 8; /* its two offsets */
        if (!add_string(&columns->names, i, size) || !add_string(&columns->header_values, i, size))
            return 0;
    }
    return 1;
}

int bk_batch_cut(const bk_columns *columns, const void *rows, uint64_t start, uint64_t stop,
                 uint32_t producer_size, uint64_t size_max, uint64_t count_max, uint32_t *ends,
                 uint64_t room, uint64_t *ends_count, uint64_t *too_large, uint64_t *size)
{
    bk_range range = {rows, start, stop};
    cost price = cost_of(columns, producer_size);
    uint64_t count = 0, bytes = 0, length = stop - start;
    *ends_count = 0;
    for (uint64_t i = 0; i < length; i++) {
        uint64_t row = bk_row(range, i), one = price.each;
        if (row >= columns->count || !add_string(&columns->values, row, &one) ||
            !add_string(&columns->keys, row, &one) || !add_headers(columns, row, &one))
            return BK_CORRUPT;
        if (price.base + one > BK_BATCH_SIZE_MAX) {
            *too_large = start + i;
            *size = price.base + one;
            return BK_SMALL;
        }
        uint64_t bits = (count / 8 + 1) * price.bitmaps;
        if (count > 0 && (count >= count_max || price.base + bits + bytes + one > size_max)) {
            ends[(*ends_count)++] = (uint32_t)(start + i);
            if (*ends_count == room)
                return BK_OK;
            count = bytes = 0;
        }
        count++;
        bytes += one;
    }
    if (length > 0)
        ends[(*ends_count)++] = (uint32_t)stop;
    return BK_OK;
}
