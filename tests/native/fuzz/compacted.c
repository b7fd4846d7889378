/* Any bytes as a compacted entry; and any columns shown to a table of the latest messages. */
#include <stdlib.h>

#include "fuzz.h"

#define COUNT_MAX 64
#define LANES 3
#define SLICES 2

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return 0;
}

/* What each origin has, given to all of its messages: the sanitizer sees every read and write. */
static void spread(const bk_compacted_header *header, const uint8_t *table,
                   const bk_compacted_layout *at)
{
    uint64_t *words = malloc(8ull * header->count);
    uint32_t *indexes = malloc(4ull * header->count);
    CLAIM(words != NULL && indexes != NULL);
    const uint8_t *starts = table + at->starts;
    bk_compacted_spread(table + at->versions, 8, starts, header->origins, words);
    bk_compacted_spread(table + at->producers, 4, starts, header->origins, indexes);
    for (uint32_t i = 0; i < header->count; i++)
        CLAIM(indexes[i] < header->names);
    bk_compacted_spread(NULL, 4, starts, header->origins, indexes);
    CLAIM(indexes[0] == 0 && indexes[header->count - 1] == header->origins - 1);
    for (uint32_t i = 1; i < header->count; i++)
        CLAIM(indexes[i] - indexes[i - 1] <= 1);
    fuzz_touch((uint8_t *)words, 8ull * header->count);
    free(words);
    free(indexes);
}

static void read_entry(const uint8_t *data, size_t size)
{
    bk_compacted_header header;
    bk_compacted_layout at;
    bk_batch_header batch;
    bk_batch_layout columns;
    uint8_t head[BK_COMPACTED_HEAD_SIZE];
    if (bk_compacted_read_header(data, size, &header, &batch) != BK_OK)
        return;
    CLAIM(header.batch_offset + batch.body_offset <= size && batch.count == header.count);
    bk_compacted_write_header(head, &header);
    CLAIM(memcmp(head, data, sizeof head) == 0);
    const uint8_t *table = data + BK_COMPACTED_HEAD_SIZE;
    if (header.compression != BK_BATCH_PLAIN)
        bk_lz4_size(table, header.stored_size);
    else if (bk_compacted_map(&header, table, &at) == BK_OK)
        spread(&header, table, &at);
    if (batch.compression == BK_BATCH_PLAIN)
        bk_batch_map(&batch, data + header.batch_offset + batch.body_offset, &columns);
}

/* The next size bytes, in memory of their own; NULL when there are not so many. */
static const uint8_t *take(const uint8_t **data, size_t *rest, size_t size)
{
    if (*rest < size)
        return NULL;
    const uint8_t *copy = fuzz_copy(*data, size);
    *data += size;
    *rest -= size;
    return copy;
}

/* Show the columns in every lane; whatever is a key's latest is marked once. */
static uint64_t show(const bk_columns *columns, const uint8_t *orders, uint32_t slice)
{
    bk_latest *latest;
    bk_latest_state state;
    uint8_t bits[(COUNT_MAX + 7) / 8];
    uint64_t marked = 0, alive = 0;
    CLAIM(bk_latest_open(BK_LATEST_MEMORY_MIN, SLICES, slice, 3, 1, &latest) == BK_OK);
    int result = BK_OK;
    for (uint32_t lane = 0; lane < LANES && result == BK_OK; lane++)
        result = bk_latest_add(latest, columns, lane == 1 ? NULL : orders, 7, lane, lane);
    CLAIM(result == BK_OK || result == BK_CORRUPT);
    bk_latest_get_state(latest, &state);
    CLAIM(state.memory <= BK_LATEST_MEMORY_MIN && state.foreign <= state.keys);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        memset(bits, 0, sizeof bits);
        alive += bk_latest_mark(latest, lane, lane, columns->count, 0, bits);
        memset(bits, 0, sizeof bits);
        marked += bk_latest_mark(latest, lane, lane, columns->count, 1, bits);
    }
    CLAIM(marked == state.keys && alive == state.keys - state.tombstones);
    bk_latest_close(latest);
    return state.keys;
}

static void rows(const bk_columns *columns)
{
    uint8_t bits[(COUNT_MAX + 7) / 8 + 1] = {0};
    uint32_t found[COUNT_MAX];
    uint64_t set = bk_bits_mark_null_keys(columns, 3, bits);
    CLAIM(bk_bits_rows(bits, 3, columns->count, found) == set);
}

/* Columns whose every offset is anything. */
static void forge(const uint8_t *data, size_t size)
{
    if (size < 1)
        return;
    uint64_t count = data[0] % COUNT_MAX;
    size_t rest = size - 1, sizes[] = {4 * (count + 1), 4 * (count + 1), (count + 7) / 8,
                                       8 * count};
    const uint8_t *columns[4] = {NULL};
    int whole = 1;
    data++;
    for (size_t i = 0; i < 4 && whole; i++)
        whole = (columns[i] = take(&data, &rest, sizes[i])) != NULL || sizes[i] == 0;
    uint8_t *bytes = fuzz_copy(data, rest);
    bk_columns forged = {
        .count = count,
        .values = {columns[0], bytes, rest, columns[2]},
        .keys = {columns[1], bytes, rest, columns[2]},
    };
    if (whole) {
        rows(&forged);
        for (uint32_t slice = 0; slice < SLICES; slice++)
            show(&forged, columns[3], slice);
        forged.keys.validity = NULL;
        show(&forged, columns[3], 0);
    }
    for (size_t i = 0; i < 4; i++)
        free((void *)(uintptr_t)columns[i]);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t *copy = fuzz_copy(data + 1, size - 1);
    if (data[0] & MODE_OPEN)
        forge(copy, size - 1);
    else
        read_entry(copy, size - 1);
    free(copy);
    return 0;
}
