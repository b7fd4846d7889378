/* Ranges of entry ids: gathered in any order, put in order, joined. See internal.h. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>

int bk_ranges_add(bk_ranges *ranges, int64_t first, int64_t last)
{
    bk_entry_run *items =
        bk_array_grow(ranges->items, &ranges->room, ranges->count + 1, sizeof *items);
    if (items == NULL)
        return -ENOMEM;
    ranges->items = items;
    ranges->items[ranges->count++] = (bk_entry_run){first, last};
    return BK_OK;
}

static int by_first(const void *a, const void *b)
{
    int64_t x = ((const bk_entry_run *)a)->first, y = ((const bk_entry_run *)b)->first;
    return x < y ? -1 : x > y;
}

void bk_ranges_cut(bk_ranges *ranges, int64_t last)
{
    size_t kept = 0;
    for (size_t i = 0; i < ranges->count; i++) {
        bk_entry_run run = ranges->items[i];
        if (run.first > last)
            continue;
        if (run.last > last)
            run.last = last;
        ranges->items[kept++] = run;
    }
    ranges->count = kept;
    if (kept > 1)
        qsort(ranges->items, kept, sizeof *ranges->items, by_first);
}

int bk_run_join(bk_entry_run *runs, uint32_t room, uint32_t *count, bk_entry_run next)
{
    bk_entry_run *last = *count > 0 ? &runs[*count - 1] : NULL;
    /* No entry has the greatest id, so one more is a number. */
    if (last != NULL && next.first <= last->last + 1) {
        if (next.last > last->last)
            last->last = next.last;
        return BK_OK;
    }
    if (*count == room)
        return BK_FULL;
    runs[(*count)++] = next;
    return BK_OK;
}

void bk_ranges_free(bk_ranges *ranges)
{
    free(ranges->items);
    *ranges = (bk_ranges){NULL, 0, 0};
}
