/* A batch taken apart: its header, and a body checked before anyone looks at it. */
#include "batch_internal.h"

#define KNOWN_FLAGS 0x3ff
#define VERSION 1

static uint64_t place(int there, uint64_t size, uint64_t *end)
{
    if (!there)
        return 0;
    uint64_t at = bk_align_up(*end, 8);
    *end = at + size;
    return at;
}

uint64_t bk_layout_rows(uint32_t flags, uint64_t count, bk_batch_layout *layout)
{
    uint64_t end = 0, bits = (count + 7) / 8, offsets = 4 * (count + 1);
    layout->value_validity = place(flags & BK_BATCH_NULL_VALUES, bits, &end);
    layout->value_offsets = place(flags & BK_BATCH_VALUES, offsets, &end);
    layout->key_validity = place(flags & BK_BATCH_NULL_KEYS, bits, &end);
    layout->key_offsets = place(flags & BK_BATCH_KEYS, offsets, &end);
    layout->event_time_validity = place(flags & BK_BATCH_NULL_EVENT_TIMES, bits, &end);
    layout->event_times = place(flags & BK_BATCH_EVENT_TIMES, 8 * count, &end);
    layout->timestamps = place(flags & BK_BATCH_TIMESTAMPS, 8 * count, &end);
    layout->header_offsets = place(flags & BK_BATCH_HEADERS, offsets, &end);
    return end;
}

uint64_t bk_layout_fixed(uint32_t flags, uint64_t count, bk_batch_layout *layout)
{
    uint64_t end = bk_layout_rows(flags, count, layout), offsets = 4 * (layout->header_count + 1);
    layout->name_offsets = place(flags & BK_BATCH_HEADERS, offsets, &end);
    layout->header_value_offsets = place(flags & BK_BATCH_HEADERS, offsets, &end);
    return layout->fixed_size = end;
}

uint64_t bk_layout_bytes(bk_batch_layout *layout)
{
    uint64_t end = layout->fixed_size;
    layout->keys = place(layout->keys_size > 0, layout->keys_size, &end);
    layout->names = place(layout->names_size > 0, layout->names_size, &end);
    layout->header_values = place(layout->header_values_size > 0, layout->header_values_size, &end);
    layout->values = place(layout->values_size > 0, layout->values_size, &end);
    return layout->size = end;
}

uint32_t bk_batch_body_offset(uint32_t producer_size)
{
    return BK_BATCH_HEAD_SIZE + (uint32_t)bk_align_up(producer_size, 8);
}

static int flags_are_sound(const bk_batch_header *header)
{
    uint32_t flags = header->flags;
    if (header->kind != BK_BATCH_MESSAGES)
        return flags == 0 && header->count == 0;
    if (header->count < 1 || header->count > BK_BATCH_COUNT_MAX || flags & ~(uint32_t)KNOWN_FLAGS)
        return 0;
    if (!(flags & BK_BATCH_BATCHED) && header->count != 1)
        return 0;
    if (flags & BK_BATCH_CONSECUTIVE &&
        (flags & BK_BATCH_TIMESTAMPS || header->last_timestamp < header->count))
        return 0; /* none is 0 */
    /* Each bit that speaks of nulls is the one above its column's. */
    uint32_t columns = BK_BATCH_VALUES | BK_BATCH_KEYS | BK_BATCH_EVENT_TIMES;
    uint32_t nulls = BK_BATCH_NULL_VALUES | BK_BATCH_NULL_KEYS | BK_BATCH_NULL_EVENT_TIMES;
    return (flags & nulls & ~((flags & columns) << 1)) == 0;
}

static void take_header(const uint8_t *p, bk_batch_header *header)
{
    header->kind = p[3];
    header->compression = p[4];
    header->flags = p[6] | (uint32_t)p[7] << 8;
    header->producer_size = p[8] | (uint32_t)p[9] << 8;
    header->count = bk_get32le(p + 12);
    header->body_size = bk_get32le(p + 16);
    header->epoch = bk_get32le(p + 20);
    header->body_offset = bk_batch_body_offset(header->producer_size);
    header->created_ms = (int64_t)bk_get64le(p + 24);
    header->last_timestamp = bk_get64le(p + 32);
    header->event_time_min = (int64_t)bk_get64le(p + 40);
    header->event_time_max = (int64_t)bk_get64le(p + 48);
    header->sequence = (int64_t)bk_get64le(p + 56);
}

int bk_batch_read_header(const uint8_t *payload, size_t size, bk_batch_header *header)
{
    if (size < BK_BATCH_HEAD_SIZE || size > BK_BATCH_SIZE_MAX || payload[0] != 'Q' ||
        payload[1] != 'B' || payload[2] != VERSION)
        return BK_CORRUPT;
    take_header(payload, header);
    if (payload[5] != 0 || payload[10] != 0 || payload[11] != 0)
        return BK_CORRUPT; /* a later version may mean something by them */
    if (header->kind > BK_BATCH_TICK || header->compression > BK_BATCH_LZ4 ||
        header->sequence < -1 || !flags_are_sound(header))
        return BK_CORRUPT;
    if (header->body_offset > size || header->body_size > BK_BATCH_SIZE_MAX - header->body_offset)
        return BK_CORRUPT;
    size_t rest = size - header->body_offset;
    if (header->compression == BK_BATCH_PLAIN)
        return rest == header->body_size ? BK_OK : BK_CORRUPT;
    return rest > 0 && rest < header->body_size ? BK_OK : BK_CORRUPT;
}

int bk_batch_stamp(uint8_t *payload, size_t size, uint64_t first)
{
    bk_batch_header header;
    int result = bk_batch_read_header(payload, size, &header);
    if (result != BK_OK)
        return result;
    if (header.kind != BK_BATCH_MESSAGES || header.flags & BK_BATCH_TIMESTAMPS || first == 0 ||
        first > UINT64_MAX - (header.count - 1))
        return BK_CORRUPT;
    uint32_t flags = header.flags | BK_BATCH_CONSECUTIVE;
    payload[6] = (uint8_t)flags;
    payload[7] = (uint8_t)(flags >> 8);
    bk_put64le(payload + 32, first + header.count - 1);
    return BK_OK;
}

void bk_batch_timestamps(const bk_batch_header *header, uint64_t *out)
{
    uint64_t first = header->last_timestamp - (header->count - 1);
    for (uint32_t i = 0; i < header->count; i++)
        out[i] = first + i;
}

void bk_batch_write_header(uint8_t *out, const bk_batch_header *header, const uint8_t *producer)
{
    memset(out, 0, header->body_offset);
    out[0] = 'Q';
    out[1] = 'B';
    out[2] = VERSION;
    out[3] = (uint8_t)header->kind;
    out[4] = (uint8_t)header->compression;
    out[6] = (uint8_t)header->flags;
    out[7] = (uint8_t)(header->flags >> 8);
    out[8] = (uint8_t)header->producer_size;
    out[9] = (uint8_t)(header->producer_size >> 8);
    bk_put32le(out + 12, header->count);
    bk_put32le(out + 16, header->body_size);
    bk_put32le(out + 20, header->epoch);
    bk_put64le(out + 24, (uint64_t)header->created_ms);
    bk_put64le(out + 32, header->last_timestamp);
    bk_put64le(out + 40, (uint64_t)header->event_time_min);
    bk_put64le(out + 48, (uint64_t)header->event_time_max);
    bk_put64le(out + 56, (uint64_t)header->sequence);
    if (header->producer_size > 0)
        memcpy(out + BK_BATCH_HEAD_SIZE, producer, header->producer_size);
}

/* Whether count + 1 offsets begin with 0 and never fall; *last is the last one. */
static int offsets_rise(const uint8_t *offsets, uint64_t count, uint64_t *last)
{
    int32_t wrong = bk_load_i32(offsets, 0) != 0;
    for (uint64_t i = 0; i < count; i++)
        wrong |= bk_load_i32(offsets, i + 1) < bk_load_i32(offsets, i);
    *last = (uint64_t)(int64_t)bk_load_i32(offsets, count);
    return !wrong;
}

/* The bytes after the first of a character, 0 to 3; negative for what begins none. */
static int utf8_tail(const uint8_t *p)
{
    if (p[0] < 0x80)
        return 0;
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        return 1;
    if (p[0] >= 0xe0 && p[0] <= 0xef)
        return 2;
    return p[0] >= 0xf0 && p[0] <= 0xf4 ? 3 : -1;
}

/* Not too long for what it says, no half of a pair, not above 10ffff. */
static int utf8_second_is_sound(uint8_t first, uint8_t second)
{
    switch (first) {
    case 0xe0:
        return second >= 0xa0;
    case 0xed:
        return second <= 0x9f;
    case 0xf0:
        return second >= 0x90;
    case 0xf4:
        return second <= 0x8f;
    default:
        return 1;
    }
}

int bk_is_utf8(const uint8_t *p, uint64_t size)
{
    for (uint64_t at = 0; at < size;) {
        int tail = utf8_tail(p + at);
        if (tail < 0 || (uint64_t)tail >= size - at)
            return 0;
        for (int i = 1; i <= tail; i++)
            if ((p[at + (uint64_t)i] & 0xc0) != 0x80)
                return 0;
        if (tail > 0 && !utf8_second_is_sound(p[at], p[at + 1]))
            return 0;
        at += 1 + (uint64_t)tail;
    }
    return 1;
}

static int names_are_sound(const uint8_t *body, const bk_batch_layout *layout)
{
    const uint8_t *offsets = body + layout->name_offsets;
    for (uint64_t i = 0; i < layout->header_count; i++) {
        int32_t begin = bk_load_i32(offsets, i), end = bk_load_i32(offsets, i + 1);
        if (!bk_is_utf8(body + layout->names + begin, (uint64_t)(end - begin)))
            return 0;
    }
    return 1;
}

static int take_strings(const uint8_t *body, int there, uint64_t offsets, uint64_t count,
                        uint64_t *size)
{
    *size = 0;
    return !there || offsets_rise(body + offsets, count, size);
}

int bk_batch_map(const bk_batch_header *header, const uint8_t *body, bk_batch_layout *layout)
{
    uint32_t flags = header->flags;
    uint64_t count = header->count, body_size = header->body_size;
    int headers = (flags & BK_BATCH_HEADERS) != 0;
    memset(layout, 0, sizeof *layout);
    if (header->kind != BK_BATCH_MESSAGES || bk_layout_rows(flags, count, layout) > body_size)
        return BK_CORRUPT;
    /* The offsets of headers say how many headers there are, so how long the next columns are. */
    if (!take_strings(body, headers, layout->header_offsets, count, &layout->header_count) ||
        layout->header_count > body_size || bk_layout_fixed(flags, count, layout) > body_size)
        return BK_CORRUPT;
    if (!take_strings(body, flags & BK_BATCH_VALUES, layout->value_offsets, count,
                      &layout->values_size) ||
        !take_strings(body, flags & BK_BATCH_KEYS, layout->key_offsets, count,
                      &layout->keys_size) ||
        !take_strings(body, headers, layout->name_offsets, layout->header_count,
                      &layout->names_size) ||
        !take_strings(body, headers, layout->header_value_offsets, layout->header_count,
                      &layout->header_values_size))
        return BK_CORRUPT;
    /* Each size is below 2^31, so their sum cannot wrap. */
    if (bk_layout_bytes(layout) != body_size)
        return BK_CORRUPT;
    return names_are_sound(body, layout) ? BK_OK : BK_CORRUPT;
}

/* --- LZ4 ---------------------------------------------------------------------- */

/* A length whose first four bits are in a token: 15 goes on in the bytes after it. */
static int take_length(uint32_t first, const uint8_t *block, size_t size, size_t *at,
                       uint64_t *length)
{
    *length = first;
    for (uint8_t more = 255; first == 15 && more == 255; *length += more) {
        if (*at == size)
            return 0;
        more = block[(*at)++];
    }
    return 1;
}

/* Sequences of a token, literals, the distance of a match and its length; the last one ends
 * with its literals. */
uint64_t bk_lz4_size(const uint8_t *block, size_t size)
{
    uint64_t total = 0, length;
    for (size_t at = 0; at < size;) {
        uint32_t token = block[at++];
        if (!take_length(token >> 4, block, size, &at, &length) || length > size - at)
            return UINT64_MAX;
        total += length;
        at += (size_t)length;
        if (at == size)
            return total;
        if (size - at < 2)
            return UINT64_MAX;
        at += 2;
        if (!take_length(token & 15, block, size, &at, &length))
            return UINT64_MAX;
        total += length + 4;
    }
    return UINT64_MAX;
}
