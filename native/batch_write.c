/* A batch put together: a first pass over the messages finds out which columns they need
 * and how large each will be, a second one writes them where they belong. */
#include "batch_internal.h"

static uint64_t length_of(bk_range range) { return range.stop - range.start; }

/* Count the bytes and the strings of a column that are not null. */
static int plan_strings(const bk_binary *strings, uint64_t count, bk_range range, uint64_t *size,
                        uint64_t *valid)
{
    int64_t begin, end;
    int sound = 1;
    *size = *valid = 0;
    if (strings->offsets == NULL)
        return 1;
    for (uint64_t i = 0; i < length_of(range); i++) {
        uint64_t row = bk_row(range, i);
        if (row >= count)
            return 0;
        if (!bk_is_valid(strings->validity, row))
            continue;
        sound &= bk_span(strings, row, &begin, &end);
        *size += (uint64_t)(end - begin);
        ++*valid;
    }
    return sound;
}

static uint32_t presence(uint64_t valid, uint64_t count, uint32_t column, uint32_t nulls)
{
    return valid == 0 ? 0 : valid < count ? column | nulls : column;
}

static int plan_event_times(const bk_columns *columns, bk_range range, bk_batch_header *header)
{
    uint64_t valid = 0;
    int64_t min = INT64_MAX, max = INT64_MIN;
    header->event_time_min = header->event_time_max = INT64_MIN;
    if (columns->event_times == NULL)
        return 1;
    for (uint64_t i = 0; i < length_of(range); i++) {
        uint64_t row = bk_row(range, i);
        if (row >= columns->count)
            return 0;
        if (!bk_is_valid(columns->event_time_validity, row))
            continue;
        int64_t time = bk_load_i64(columns->event_times, row);
        min = time < min ? time : min;
        max = time > max ? time : max;
        valid++;
    }
    header->flags |=
        presence(valid, header->count, BK_BATCH_EVENT_TIMES, BK_BATCH_NULL_EVENT_TIMES);
    if (valid > 0) {
        header->event_time_min = min;
        header->event_time_max = max;
    }
    return valid == 0 || min != INT64_MIN;
}

static int plan_timestamps(const bk_columns *columns, bk_range range, bk_batch_header *header)
{
    header->last_timestamp = 0;
    if (columns->timestamps == NULL)
        return 1;
    for (uint64_t i = 0; i < length_of(range); i++) {
        uint64_t row = bk_row(range, i);
        if (row >= columns->count)
            return 0;
        uint64_t timestamp = (uint64_t)bk_load_i64(columns->timestamps, row);
        if (timestamp > header->last_timestamp)
            header->last_timestamp = timestamp;
    }
    if (header->last_timestamp > 0)
        header->flags |= BK_BATCH_TIMESTAMPS;
    return 1;
}

/* The headers of one message: a range of names and values. */
static int headers_of(const bk_columns *columns, uint64_t row, bk_range *headers)
{
    if (row >= columns->count)
        return 0;
    int64_t begin = bk_load_i32(columns->header_offsets, row);
    int64_t end = bk_load_i32(columns->header_offsets, row + 1);
    if (begin < 0 || end < begin || (uint64_t)end > columns->header_count)
        return 0;
    *headers = (bk_range){NULL, (uint64_t)begin, (uint64_t)end};
    return 1;
}

/* An entry with names that are not UTF-8 would be one that nobody can read. */
static int names_are_sound(const bk_binary *names, bk_range headers)
{
    for (uint64_t i = headers.start; i < headers.stop; i++) {
        int32_t begin = bk_load_i32(names->offsets, i), end = bk_load_i32(names->offsets, i + 1);
        if (!bk_is_utf8(names->data + begin, (uint64_t)(end - begin)))
            return 0;
    }
    return 1;
}

static int plan_headers(const bk_columns *columns, bk_range range, bk_batch_header *header,
                        bk_batch_layout *layout)
{
    if (columns->header_offsets == NULL)
        return 1;
    const bk_binary *strings = &columns->header_values;
    for (uint64_t i = 0; i < length_of(range); i++) {
        bk_range headers;
        uint64_t names, values, valid;
        if (!headers_of(columns, bk_row(range, i), &headers) ||
            !plan_strings(&columns->names, columns->header_count, headers, &names, &valid) ||
            !plan_strings(strings, columns->header_count, headers, &values, &valid) ||
            !names_are_sound(&columns->names, headers))
            return 0;
        layout->header_count += length_of(headers);
        layout->names_size += names;
        layout->header_values_size += values;
    }
    if (layout->header_count > 0)
        header->flags |= BK_BATCH_HEADERS;
    return 1;
}

int bk_batch_plan(const bk_columns *columns, const void *rows, uint64_t start, uint64_t stop,
                  bk_batch_header *header, bk_batch_layout *layout)
{
    bk_range range = {rows, start, stop};
    uint64_t values, keys, count = length_of(range);
    memset(layout, 0, sizeof *layout);
    if (count > BK_BATCH_COUNT_MAX) {
        layout->size = UINT64_MAX;
        return BK_SMALL;
    }
    if (count == 0)
        return BK_CORRUPT;
    header->count = (uint32_t)count;
    header->flags = 0;
    if (!plan_strings(&columns->values, columns->count, range, &layout->values_size, &values) ||
        !plan_strings(&columns->keys, columns->count, range, &layout->keys_size, &keys) ||
        !plan_event_times(columns, range, header) || !plan_timestamps(columns, range, header) ||
        !plan_headers(columns, range, header, layout))
        return BK_CORRUPT;
    header->flags |= presence(values, count, BK_BATCH_VALUES, BK_BATCH_NULL_VALUES);
    header->flags |= presence(keys, count, BK_BATCH_KEYS, BK_BATCH_NULL_KEYS);
    bk_layout_fixed(header->flags, count, layout);
    bk_layout_bytes(layout);
    header->body_offset = bk_batch_body_offset(header->producer_size);
    if (layout->size > BK_BATCH_SIZE_MAX - header->body_offset)
        return BK_SMALL;
    header->body_size = (uint32_t)layout->size;
    return BK_OK;
}

/* --- writing -------------------------------------------------------------------- */

static void write_validity(const uint8_t *validity, bk_range range, uint8_t *out)
{
    for (uint64_t i = 0; i < length_of(range); i++)
        out[i / 8] |= (uint8_t)(bk_bit(validity, bk_row(range, i)) << i % 8);
}

/* Strings in a row, none of them null: one copy. */
static int32_t write_run(const bk_binary *strings, bk_range range, int32_t at, uint8_t *offsets,
                         uint8_t *bytes)
{
    uint64_t count = length_of(range);
    int32_t begin = bk_load_i32(strings->offsets, range.start);
    int32_t end = bk_load_i32(strings->offsets, range.stop);
    for (uint64_t i = 0; i < count; i++)
        bk_store_i32(offsets, i, at + bk_load_i32(strings->offsets, range.start + i) - begin);
    if (end > begin)
        memcpy(bytes + at, strings->data + begin, (size_t)(end - begin));
    return at + end - begin;
}

static int32_t write_each(const bk_binary *strings, bk_range range, uint8_t *offsets,
                          uint8_t *bytes)
{
    int32_t at = 0;
    for (uint64_t i = 0; i < length_of(range); i++) {
        uint64_t row = bk_row(range, i);
        bk_store_i32(offsets, i, at);
        if (!bk_is_valid(strings->validity, row))
            continue;
        int32_t begin = bk_load_i32(strings->offsets, row);
        int32_t size = bk_load_i32(strings->offsets, row + 1) - begin;
        if (size > 0)
            memcpy(bytes + at, strings->data + begin, (size_t)size);
        at += size;
    }
    return at;
}

static void write_strings(const bk_binary *strings, bk_range range, uint8_t *offsets,
                          uint8_t *bytes)
{
    int32_t end = range.rows == NULL && strings->validity == NULL
                      ? write_run(strings, range, 0, offsets, bytes)
                      : write_each(strings, range, offsets, bytes);
    bk_store_i32(offsets, length_of(range), end);
}

static void write_words(const void *words, bk_range range, uint8_t *out)
{
    for (uint64_t i = 0; i < length_of(range); i++) {
        int64_t word = bk_load_i64(words, bk_row(range, i));
        memcpy(out + 8 * i, &word, sizeof word);
    }
}

static void write_headers(const bk_columns *columns, bk_range range, const bk_batch_layout *layout,
                          uint8_t *out)
{
    int32_t count = 0, names_end = 0, values_end = 0;
    for (uint64_t i = 0; i < length_of(range); i++) {
        bk_range headers = {NULL, 0, 0};
        headers_of(columns, bk_row(range, i), &headers);
        uint64_t done = 4 * (uint64_t)count;
        bk_store_i32(out + layout->header_offsets, i, count);
        names_end = write_run(&columns->names, headers, names_end,
                              out + layout->name_offsets + done, out + layout->names);
        values_end =
            write_run(&columns->header_values, headers, values_end,
                      out + layout->header_value_offsets + done, out + layout->header_values);
        count += (int32_t)length_of(headers);
    }
    bk_store_i32(out + layout->header_offsets, length_of(range), count);
    bk_store_i32(out + layout->name_offsets, (uint64_t)count, names_end);
    bk_store_i32(out + layout->header_value_offsets, (uint64_t)count, values_end);
}

void bk_batch_write_body(const bk_columns *columns, const void *rows, uint64_t start,
                         uint64_t stop, const bk_batch_header *header,
                         const bk_batch_layout *layout, uint8_t *out)
{
    bk_range range = {rows, start, stop};
    uint32_t flags = header->flags;
    /* Gaps are zeros, and so are bitmaps before their bits are set. */
    memset(out, 0, layout->values_size > 0 ? layout->values : layout->size);
    if (flags & BK_BATCH_NULL_VALUES)
        write_validity(columns->values.validity, range, out + layout->value_validity);
    if (flags & BK_BATCH_VALUES)
        write_strings(&columns->values, range, out + layout->value_offsets, out + layout->values);
    if (flags & BK_BATCH_NULL_KEYS)
        write_validity(columns->keys.validity, range, out + layout->key_validity);
    if (flags & BK_BATCH_KEYS)
        write_strings(&columns->keys, range, out + layout->key_offsets, out + layout->keys);
    if (flags & BK_BATCH_NULL_EVENT_TIMES)
        write_validity(columns->event_time_validity, range, out + layout->event_time_validity);
    if (flags & BK_BATCH_EVENT_TIMES)
        write_words(columns->event_times, range, out + layout->event_times);
    if (flags & BK_BATCH_TIMESTAMPS)
        write_words(columns->timestamps, range, out + layout->timestamps);
    if (flags & BK_BATCH_HEADERS)
        write_headers(columns, range, layout, out);
}
