/* Arrays that grow: the only caller of realloc. See internal.h. */
#include "internal.h"

#include <stdlib.h>

#define LEAST_ROOM 16

void *bk_array_resize(void *items, size_t room, size_t item_size)
{
    size_t size;
    if (__builtin_mul_overflow(room, item_size, &size) || bk_fault_at(BK_FAULT_ARRAY) != 0)
        return NULL;
    return realloc(items, size > 0 ? size : 1);
}

void *bk_array_grow(void *items, size_t *room, size_t needed, size_t item_size)
{
    if (needed <= *room && items != NULL)
        return items;
    size_t more = *room < LEAST_ROOM / 2 ? LEAST_ROOM : *room * 2;
    if (more < needed)
        more = needed;
    void *grown = bk_array_resize(items, more, item_size);
    if (grown != NULL)
        *room = more;
    return grown;
}

void *bk_array_grow32(void *items, uint32_t *room, size_t needed, size_t item_size)
{
    size_t wide = *room;
    if (needed > UINT32_MAX / 2)
        return NULL;
    void *grown = bk_array_grow(items, &wide, needed, item_size);
    *room = (uint32_t)wide;
    return grown;
}
