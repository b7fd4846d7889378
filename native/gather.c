/* Rows of many batches gathered as columns of one. */
#include <errno.h>
#include <stdlib.h>

#include "batch_internal.h"

typedef struct {
    uint8_t *data;
    uint64_t size, room;
} buffer;

typedef struct {
    buffer offsets, data, nulls; /* nulls: a byte for each, 1 where it is there */
    uint64_t count;
    int some, lacks; /* one is there; one is null */
} strings;

struct bk_gather {
    strings values, keys, names, header_values;
    buffer event_times, event_time_nulls, timestamps, header_offsets;
    buffer bits[3]; /* validities of the last view */
    uint64_t count;
    int timed, lacks_time, stamped, headed;
};

static int reserve(buffer *b, uint64_t more)
{
    if (b->size + more <= b->room)
        return BK_OK;
    size_t needed = b->size + more > 4096 ? b->size + more : 4096;
    uint8_t *data = bk_array_grow(b->data, &b->room, needed, 1);
    if (data == NULL)
        return -ENOMEM;
    b->data = data;
    return BK_OK;
}

static void put(buffer *b, const void *bytes, uint64_t size)
{
    if (size)
        memcpy(b->data + b->size, bytes, size);
    b->size += size;
}

static int put_offset(buffer *offsets, uint64_t end)
{
    if (end > INT32_MAX)
        return BK_CORRUPT; /* size_max is far below: the caller asked for too much */
    int result = reserve(offsets, 4);
    if (result == BK_OK) {
        int32_t at = (int32_t)end;
        put(offsets, &at, 4);
    }
    return result;
}

static int add_string(strings *s, const bk_binary *from, uint64_t row)
{
    int64_t begin = 0, end = 0;
    int valid = from->offsets != NULL && bk_is_valid(from->validity, row);
    if (valid && !bk_span(from, row, &begin, &end))
        return BK_CORRUPT;
    if (s->count == 0 && put_offset(&s->offsets, 0) != BK_OK)
        return -ENOMEM;
    int result = reserve(&s->data, (uint64_t)(end - begin));
    if (result == BK_OK)
        result = reserve(&s->nulls, 1);
    if (result != BK_OK)
        return result;
    uint8_t flag = (uint8_t)valid;
    if (end > begin)
        put(&s->data, from->data + begin, (uint64_t)(end - begin));
    put(&s->nulls, &flag, 1);
    s->count++;
    s->some |= valid;
    s->lacks |= !valid;
    return put_offset(&s->offsets, s->data.size);
}

static int add_word(buffer *words, const void *from, uint64_t row)
{
    int64_t word = from == NULL ? 0 : bk_load_i64(from, row);
    int result = reserve(words, 8);
    if (result == BK_OK)
        put(words, &word, 8);
    return result;
}

static int add_times(bk_gather *g, const bk_columns *columns, uint64_t row)
{
    uint8_t there = columns->event_times != NULL && bk_is_valid(columns->event_time_validity, row);
    int result = add_word(&g->event_times, there ? columns->event_times : NULL, row);
    if (result == BK_OK)
        result = reserve(&g->event_time_nulls, 1);
    if (result != BK_OK)
        return result;
    put(&g->event_time_nulls, &there, 1);
    g->timed |= there;
    g->lacks_time |= !there;
    g->stamped |= columns->timestamps != NULL;
    return add_word(&g->timestamps, columns->timestamps, row);
}

static int add_headers(bk_gather *g, const bk_columns *columns, uint64_t row)
{
    int64_t begin = 0, end = 0;
    if (columns->header_offsets != NULL) {
        begin = bk_load_i32(columns->header_offsets, row);
        end = bk_load_i32(columns->header_offsets, row + 1);
        if (begin < 0 || end < begin || (uint64_t)end > columns->header_count)
            return BK_CORRUPT;
    }
    if (g->count == 0 && put_offset(&g->header_offsets, 0) != BK_OK)
        return -ENOMEM;
    for (int64_t i = begin; i < end; i++) {
        int result = add_string(&g->names, &columns->names, (uint64_t)i);
        if (result == BK_OK)
            result = add_string(&g->header_values, &columns->header_values, (uint64_t)i);
        if (result != BK_OK)
            return result;
        g->headed = 1;
    }
    return put_offset(&g->header_offsets, g->names.count);
}

static int add_row(bk_gather *g, const bk_columns *columns, uint64_t row)
{
    if (row >= columns->count)
        return BK_CORRUPT;
    int result = add_string(&g->values, &columns->values, row);
    if (result == BK_OK)
        result = add_string(&g->keys, &columns->keys, row);
    if (result == BK_OK)
        result = add_times(g, columns, row);
    if (result == BK_OK)
        result = add_headers(g, columns, row);
    g->count++;
    return result;
}

/* What a batch of it takes, as if every column were there. */
static uint64_t size_of(const bk_gather *g)
{
    return g->values.data.size + g->keys.data.size + g->names.data.size +
           g->header_values.data.size + 32 * g->count + 8 * g->names.count + 256;
}

/* What a message takes of that; 0 for one that is not sound; adding it fails. */
static uint64_t size_of_row(const bk_columns *columns, uint64_t row)
{
    int64_t begin, end, first = 0, last = 0;
    uint64_t size = 32;
    if (row >= columns->count)
        return 0;
    if (bk_is_valid(columns->values.validity, row) && bk_span(&columns->values, row, &begin, &end))
        size += (uint64_t)(end - begin);
    if (columns->keys.offsets != NULL && bk_is_valid(columns->keys.validity, row) &&
        bk_span(&columns->keys, row, &begin, &end))
        size += (uint64_t)(end - begin);
    if (columns->header_offsets != NULL) {
        first = bk_load_i32(columns->header_offsets, row);
        last = bk_load_i32(columns->header_offsets, row + 1);
        if (first < 0 || last < first || (uint64_t)last > columns->header_count)
            return 0;
    }
    for (int64_t i = first; i < last; i++) {
        if (bk_span(&columns->names, (uint64_t)i, &begin, &end))
            size += (uint64_t)(end - begin) + 8;
        if (bk_span(&columns->header_values, (uint64_t)i, &begin, &end))
            size += (uint64_t)(end - begin);
    }
    return size;
}

static int fits(const bk_gather *g, const bk_columns *columns, uint64_t row, uint64_t size_max)
{
    return g->count == 0 || size_of(g) + size_of_row(columns, row) <= size_max;
}

int bk_gather_open(bk_gather **out)
{
    *out = calloc(1, sizeof **out);
    return *out == NULL ? -ENOMEM : BK_OK;
}

static void release(strings *s)
{
    free(s->offsets.data);
    free(s->data.data);
    free(s->nulls.data);
}

void bk_gather_close(bk_gather *g)
{
    if (g == NULL)
        return;
    release(&g->values);
    release(&g->keys);
    release(&g->names);
    release(&g->header_values);
    free(g->event_times.data);
    free(g->event_time_nulls.data);
    free(g->timestamps.data);
    free(g->header_offsets.data);
    for (int i = 0; i < 3; i++)
        free(g->bits[i].data);
    free(g);
}

static void clear(strings *s)
{
    s->offsets.size = s->data.size = s->nulls.size = s->count = 0;
    s->some = s->lacks = 0;
}

void bk_gather_clear(bk_gather *g)
{
    clear(&g->values);
    clear(&g->keys);
    clear(&g->names);
    clear(&g->header_values);
    g->event_times.size = g->event_time_nulls.size = g->timestamps.size = 0;
    g->header_offsets.size = g->count = 0;
    g->timed = g->lacks_time = g->stamped = g->headed = 0;
    for (int i = 0; i < 3; i++)
        g->bits[i].size = 0;
}

static int reserve_bits(bk_gather *g)
{
    for (int i = 0; i < 3; i++)
        if (reserve(&g->bits[i], (g->count + 7) / 8) != BK_OK)
            return -ENOMEM;
    return BK_OK;
}

int bk_gather_add(bk_gather *g, const bk_columns *columns, const void *rows, uint64_t count,
                  uint64_t size_max, uint64_t *taken)
{
    int result = BK_OK;
    uint64_t at = *taken;
    while (result == BK_OK && at < count) {
        uint32_t row = (uint32_t)bk_load_i32(rows, at);
        if (!fits(g, columns, row, size_max))
            break;
        result = add_row(g, columns, row);
        at++;
    }
    *taken = at;
    return result == BK_OK ? reserve_bits(g) : result;
}

static const uint8_t *bits_of(buffer *bits, const buffer *flags, uint64_t count, int lacks)
{
    if (!lacks)
        return NULL;
    bk_bits_pack(flags->data, count, bits->data);
    return bits->data;
}

void bk_gather_view_columns(bk_gather *g, bk_gather_view *view)
{
    memset(view, 0, sizeof *view);
    view->count = g->count;
    view->size = size_of(g);
    view->header_count = g->names.count;
    view->value_offsets = g->values.offsets.data;
    view->value_data = g->values.data.data;
    view->value_size = g->values.data.size;
    view->value_validity = bits_of(&g->bits[0], &g->values.nulls, g->count, g->values.lacks);
    if (g->keys.some) {
        view->key_offsets = g->keys.offsets.data;
        view->key_data = g->keys.data.data;
        view->key_size = g->keys.data.size;
        view->key_validity = bits_of(&g->bits[1], &g->keys.nulls, g->count, g->keys.lacks);
    }
    if (g->timed) {
        view->event_times = g->event_times.data;
        view->event_time_validity =
            bits_of(&g->bits[2], &g->event_time_nulls, g->count, g->lacks_time);
    }
    if (g->stamped)
        view->timestamps = g->timestamps.data;
    if (g->headed) {
        view->header_offsets = g->header_offsets.data;
        view->name_offsets = g->names.offsets.data;
        view->name_data = g->names.data.data;
        view->name_size = g->names.data.size;
        view->header_value_offsets = g->header_values.offsets.data;
        view->header_value_data = g->header_values.data.data;
        view->header_value_size = g->header_values.data.size;
    }
}
