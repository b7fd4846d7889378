/* Any bytes as a batch, taken apart and put together again; and any columns. */
#include <stdlib.h>

#include "fuzz.h"

#define COUNT_MAX 64
#define ENDS_MAX 4

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return 0;
}

/* Every batch that cut() makes can be written, and read again. */
static void write_one(const bk_columns *columns, const void *rows, uint64_t start, uint64_t stop)
{
    bk_batch_header header = {.producer_size = 3}, again;
    bk_batch_layout layout, found;
    int result = bk_batch_plan(columns, rows, start, stop, &header, &layout);
    CLAIM(result == BK_OK || result == BK_CORRUPT);
    if (result != BK_OK)
        return;
    header.flags |= BK_BATCH_BATCHED;
    uint8_t *payload = malloc(header.body_offset + header.body_size);
    CLAIM(payload != NULL);
    bk_batch_write_header(payload, &header, (const uint8_t *)"abc");
    uint8_t *body = payload + header.body_offset;
    bk_batch_write_body(columns, rows, start, stop, &header, &layout, body);
    fuzz_touch(payload, header.body_offset + header.body_size);
    CLAIM(bk_batch_read_header(payload, header.body_offset + header.body_size, &again) == BK_OK);
    CLAIM(memcmp(&header, &again, sizeof header) == 0);
    CLAIM(bk_batch_map(&again, body, &found) == BK_OK);
    CLAIM(memcmp(&layout, &found, sizeof layout) == 0);
    free(payload);
}

static void cut(const bk_columns *columns, const void *rows, uint64_t stop, uint64_t size_max)
{
    uint32_t ends[ENDS_MAX];
    uint64_t start = 0, found, wrong, size;
    while (start < stop) {
        int result = bk_batch_cut(columns, rows, start, stop, 3, size_max, 16, ends, ENDS_MAX,
                                  &found, &wrong, &size);
        CLAIM(result == BK_OK || result == BK_CORRUPT || result == BK_SMALL);
        if (result != BK_OK)
            return;
        CLAIM(found > 0 && found <= ENDS_MAX);
        for (uint64_t i = 0; i < found; start = ends[i++]) {
            CLAIM(ends[i] > start && ends[i] <= stop);
            write_one(columns, rows, start, ends[i]);
        }
    }
}

static void route(const bk_columns *columns)
{
    uint32_t *partition_of = malloc(4 * columns->count + 4), *rows = malloc(4 * columns->count + 4);
    uint64_t starts[4];
    CLAIM(partition_of != NULL && rows != NULL);
    if (columns->keys.offsets != NULL &&
        bk_route(&columns->keys, columns->count, 3, partition_of) == BK_OK) {
        CLAIM(bk_group_rows(partition_of, columns->count, 3, starts, rows) == BK_OK);
        CLAIM(starts[3] <= columns->count);
        cut(columns, rows, starts[3], 256);
    }
    free(partition_of);
    free(rows);
}

static bk_binary strings(const uint8_t *body, int there, uint64_t offsets, uint64_t bytes,
                         uint64_t size)
{
    return there ? (bk_binary){body + offsets, body + bytes, size, NULL}
                 : (bk_binary){NULL, NULL, 0, NULL};
}

/* What was found sound is written again, as it is and by partition. */
static void read_again(const bk_batch_header *header, const uint8_t *body,
                       const bk_batch_layout *at)
{
    uint32_t flags = header->flags;
    int headers = (flags & BK_BATCH_HEADERS) != 0;
    bk_columns columns = {
        .count = header->count,
        .values = strings(body, flags & BK_BATCH_VALUES, at->value_offsets, at->values,
                          at->values_size),
        .keys = strings(body, flags & BK_BATCH_KEYS, at->key_offsets, at->keys, at->keys_size),
        .event_times = flags & BK_BATCH_EVENT_TIMES ? body + at->event_times : NULL,
        .timestamps = flags & BK_BATCH_TIMESTAMPS ? body + at->timestamps : NULL,
        .header_offsets = headers ? body + at->header_offsets : NULL,
        .header_count = at->header_count,
        .names = strings(body, headers, at->name_offsets, at->names, at->names_size),
        .header_values = strings(body, headers, at->header_value_offsets, at->header_values,
                                 at->header_values_size),
    };
    if (flags & BK_BATCH_NULL_VALUES)
        columns.values.validity = body + at->value_validity;
    if (flags & BK_BATCH_NULL_KEYS)
        columns.keys.validity = body + at->key_validity;
    if (flags & BK_BATCH_NULL_EVENT_TIMES)
        columns.event_time_validity = body + at->event_time_validity;
    cut(&columns, NULL, columns.count, 512);
    route(&columns);
}

static void read_batch(const uint8_t *data, size_t size)
{
    bk_batch_header header;
    bk_batch_layout layout;
    if (bk_batch_read_header(data, size, &header) != BK_OK)
        return;
    CLAIM(header.body_offset <= size);
    const uint8_t *rest = data + header.body_offset;
    if (header.compression != BK_BATCH_PLAIN)
        bk_lz4_size(rest, size - header.body_offset);
    else if (bk_batch_map(&header, rest, &layout) == BK_OK)
        read_again(&header, rest, &layout);
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

/* Columns whose every offset and row is anything. */
static void forge(const uint8_t *data, size_t size)
{
    if (size < 2)
        return;
    uint64_t count = data[0] % COUNT_MAX, headers = data[1] % COUNT_MAX;
    size_t rest = size - 2, offsets = 4 * (count + 1), sizes[] = {
        offsets, offsets, 8 * count, 8 * count, (count + 7) / 8, offsets,
        4 * (headers + 1), 4 * (headers + 1), 4 * count};
    const uint8_t *columns[9] = {NULL};
    int whole = 1;
    data += 2;
    for (size_t i = 0; i < 9 && whole; i++)
        whole = (columns[i] = take(&data, &rest, sizes[i])) != NULL || sizes[i] == 0;
    uint8_t *bytes = fuzz_copy(data, rest);
    bk_columns forged = {
        .count = count,
        .values = {columns[0], bytes, rest, columns[4]},
        .keys = {columns[1], bytes, rest, NULL},
        .event_times = columns[2],
        .timestamps = columns[3],
        .header_offsets = columns[5],
        .header_count = headers,
        .names = {columns[6], bytes, rest, NULL},
        .header_values = {columns[7], bytes, rest, NULL},
    };
    if (whole) {
        cut(&forged, NULL, count, 256);
        cut(&forged, columns[8], count, 256);
        write_one(&forged, columns[8], 0, count);
        route(&forged);
    }
    for (size_t i = 0; i < 9; i++)
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
        read_batch(copy, size - 1);
    bk_lz4_size(copy, size - 1);
    free(copy);
    return 0;
}
