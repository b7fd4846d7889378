/* The compacted entry: its header, and a table checked before anyone looks at it. */
#include "batch_internal.h"

#define VERSION 1

static void take_header(const uint8_t *p, bk_compacted_header *header)
{
    header->compression = p[3];
    header->count = bk_get32le(p + 4);
    header->origins = bk_get32le(p + 8);
    header->names = bk_get32le(p + 12);
    header->table_size = bk_get32le(p + 16);
    header->stored_size = bk_get32le(p + 20);
    header->first_number = (int64_t)bk_get64le(p + 24);
    header->first_entry = (int64_t)bk_get64le(p + 32);
    header->last_number = (int64_t)bk_get64le(p + 40);
    header->last_entry = (int64_t)bk_get64le(p + 48);
    header->first_index = (int32_t)bk_get32le(p + 56);
    header->last_index = (int32_t)bk_get32le(p + 60);
    header->batch_offset = BK_COMPACTED_HEAD_SIZE + bk_align_up(header->stored_size, 8);
}

static int sizes_are_sound(const bk_compacted_header *header)
{
    bk_compacted_layout layout;
    if (header->count < 1 || header->count > BK_BATCH_COUNT_MAX || header->origins < 1 ||
        header->origins > header->count || header->names < 1 || header->names > header->origins ||
        header->table_size > BK_COMPACTED_SIZE_MAX)
        return 0;
    if (header->table_size < bk_compacted_place(header, &layout))
        return 0;
    if (header->compression == BK_BATCH_PLAIN)
        return header->stored_size == header->table_size;
    return header->compression <= BK_BATCH_LZ4 && header->stored_size > 0 &&
           header->stored_size < header->table_size;
}

static int is_behind(int64_t number, int64_t entry, int64_t other_number, int64_t other_entry)
{
    return number > other_number || (number == other_number && entry > other_entry);
}

/* The first message lies before the last, or is it. */
static int places_are_sound(const bk_compacted_header *header)
{
    if (header->first_number < 0 || header->first_entry < 0 || header->last_number < 0 ||
        header->last_entry < 0 || header->first_index < -1 || header->last_index < -1)
        return 0;
    if (header->origins > 1)
        return is_behind(header->last_number, header->last_entry, header->first_number,
                         header->first_entry);
    if (header->last_number != header->first_number || header->last_entry != header->first_entry)
        return 0;
    return header->count == 1 ? header->last_index == header->first_index
                              : header->last_index > header->first_index;
}

static int batch_is_sound(const bk_compacted_header *header, const bk_batch_header *batch)
{
    uint64_t table = bk_align_up(header->table_size, 8);
    return batch->kind == BK_BATCH_MESSAGES && batch->count == header->count &&
           batch->flags & BK_BATCH_BATCHED && batch->producer_size == 0 && batch->sequence == -1 &&
           BK_COMPACTED_HEAD_SIZE + table + batch->body_offset + batch->body_size <=
               BK_COMPACTED_SIZE_MAX;
}

int bk_compacted_read_header(const uint8_t *payload, size_t size, bk_compacted_header *header,
                             bk_batch_header *batch)
{
    if (size < BK_COMPACTED_HEAD_SIZE || payload[0] != 'Q' || payload[1] != 'C' ||
        payload[2] != VERSION)
        return BK_CORRUPT;
    take_header(payload, header);
    if (!sizes_are_sound(header) || !places_are_sound(header) || header->batch_offset > size)
        return BK_CORRUPT;
    for (uint64_t i = BK_COMPACTED_HEAD_SIZE + header->stored_size; i < header->batch_offset; i++)
        if (payload[i] != 0)
            return BK_CORRUPT;
    if (bk_batch_read_header(payload + header->batch_offset, size - header->batch_offset, batch))
        return BK_CORRUPT;
    return batch_is_sound(header, batch) ? BK_OK : BK_CORRUPT;
}

void bk_compacted_write_header(uint8_t *out, const bk_compacted_header *header)
{
    out[0] = 'Q';
    out[1] = 'C';
    out[2] = VERSION;
    out[3] = (uint8_t)header->compression;
    bk_put32le(out + 4, header->count);
    bk_put32le(out + 8, header->origins);
    bk_put32le(out + 12, header->names);
    bk_put32le(out + 16, header->table_size);
    bk_put32le(out + 20, header->stored_size);
    bk_put64le(out + 24, (uint64_t)header->first_number);
    bk_put64le(out + 32, (uint64_t)header->first_entry);
    bk_put64le(out + 40, (uint64_t)header->last_number);
    bk_put64le(out + 48, (uint64_t)header->last_entry);
    bk_put32le(out + 56, (uint32_t)header->first_index);
    bk_put32le(out + 60, (uint32_t)header->last_index);
}

/* --- the table -------------------------------------------------------------------- */

static uint64_t column(uint64_t size, uint64_t *end)
{
    uint64_t at = *end;
    *end += size;
    return at;
}

uint64_t bk_compacted_place(const bk_compacted_header *header, bk_compacted_layout *layout)
{
    uint64_t end = 0, origins = header->origins, words = 8 * origins;
    layout->ledger_ids = column(words, &end);
    layout->numbers = column(words, &end);
    layout->entry_ids = column(words, &end);
    layout->versions = column(words, &end);
    layout->created = column(words, &end);
    layout->sequences = column(words, &end);
    layout->orders = column(words, &end);
    layout->starts = column(4 * (origins + 1), &end);
    layout->producers = column(4 * origins, &end);
    layout->batch_indexes = column(4ull * header->count, &end);
    layout->name_offsets = column(4 * (header->names + 1ull), &end);
    return layout->name_bytes = end;
}

/* What lies where, and who made it. */
static int origins_are_sound(const bk_compacted_header *header, const uint8_t *table,
                             const bk_compacted_layout *at)
{
    int64_t id = -1, number = -1, entry = -1;
    for (uint64_t i = 0; i < header->origins; i++) {
        int64_t next_id = bk_load_i64(table + at->ledger_ids, i);
        int64_t next_number = bk_load_i64(table + at->numbers, i);
        int64_t next_entry = bk_load_i64(table + at->entry_ids, i);
        if (next_id < 0 || next_number < 0 || next_entry < 0 || next_entry == INT64_MAX ||
            !is_behind(next_number, next_entry, number, entry))
            return 0;
        if (next_number == number ? next_id != id : next_id <= id)
            return 0;
        if (bk_load_i64(table + at->versions, i) < -1 ||
            bk_load_i64(table + at->sequences, i) < -1 ||
            (uint32_t)bk_load_i32(table + at->producers, i) >= header->names)
            return 0;
        id = next_id;
        number = next_number;
        entry = next_entry;
    }
    return 1;
}

/* Which messages are whose, and where they were in their batches. */
static int messages_are_sound(const bk_compacted_header *header, const uint8_t *table,
                              const bk_compacted_layout *at)
{
    int64_t start = bk_load_i32(table + at->starts, 0);
    if (start != 0)
        return 0;
    for (uint64_t i = 0; i < header->origins; i++) {
        int64_t stop = bk_load_i32(table + at->starts, i + 1);
        if (stop <= start || stop > header->count)
            return 0;
        int32_t index = bk_load_i32(table + at->batch_indexes, (uint64_t)start);
        if (index < -1 || (index == -1 && stop - start > 1))
            return 0;
        for (int64_t m = start + 1; m < stop; m++) {
            int32_t next = bk_load_i32(table + at->batch_indexes, (uint64_t)m);
            if (next <= index)
                return 0;
            index = next;
        }
        if (index >= BK_BATCH_COUNT_MAX)
            return 0;
        start = stop;
    }
    return start == header->count;
}

static int names_are_sound(const bk_compacted_header *header, const uint8_t *table,
                           const bk_compacted_layout *at)
{
    uint64_t size = header->table_size - at->name_bytes;
    int64_t begin = bk_load_i32(table + at->name_offsets, 0);
    if (begin != 0)
        return 0;
    for (uint64_t i = 0; i < header->names; i++) {
        int64_t end = bk_load_i32(table + at->name_offsets, i + 1);
        if (end < begin || (uint64_t)end > size ||
            !bk_is_utf8(table + at->name_bytes + begin, (uint64_t)(end - begin)))
            return 0;
        begin = end;
    }
    return (uint64_t)begin == size;
}

int bk_compacted_map(const bk_compacted_header *header, const uint8_t *table,
                     bk_compacted_layout *layout)
{
    bk_compacted_header noted = *header;
    if (bk_compacted_place(header, layout) > header->table_size ||
        !origins_are_sound(header, table, layout) || !messages_are_sound(header, table, layout) ||
        !names_are_sound(header, table, layout))
        return BK_CORRUPT;
    bk_compacted_note(&noted, table);
    int same = noted.first_number == header->first_number &&
               noted.first_entry == header->first_entry &&
               noted.last_number == header->last_number &&
               noted.last_entry == header->last_entry &&
               noted.first_index == header->first_index && noted.last_index == header->last_index;
    return same ? BK_OK : BK_CORRUPT;
}

void bk_compacted_note(bk_compacted_header *header, const uint8_t *table)
{
    bk_compacted_layout at;
    bk_compacted_place(header, &at);
    uint64_t last = header->origins - 1ull;
    header->first_number = bk_load_i64(table + at.numbers, 0);
    header->first_entry = bk_load_i64(table + at.entry_ids, 0);
    header->last_number = bk_load_i64(table + at.numbers, last);
    header->last_entry = bk_load_i64(table + at.entry_ids, last);
    header->first_index = bk_load_i32(table + at.batch_indexes, 0);
    header->last_index = bk_load_i32(table + at.batch_indexes, header->count - 1ull);
}

void bk_compacted_spread(const void *words, uint32_t width, const void *starts, uint32_t origins,
                         void *out)
{
    for (uint64_t i = 0; i < origins; i++) {
        uint64_t m = (uint64_t)bk_load_i32(starts, i), stop = (uint64_t)bk_load_i32(starts, i + 1);
        if (width == 8)
            for (int64_t word = bk_load_i64(words, i); m < stop; m++)
                memcpy((uint8_t *)out + 8 * m, &word, sizeof word);
        else
            for (int32_t word = words ? bk_load_i32(words, i) : (int32_t)i; m < stop; m++)
                bk_store_i32(out, m, word);
    }
}
