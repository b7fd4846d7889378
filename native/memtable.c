/* Entries of one ledger in one half of the memtable. See engine_internal.h. */
#include "engine_state_internal.h"

#include <errno.h>
#include <stdlib.h>

static int push(bk_run *run, bk_slot slot)
{
    if (run->count == run->room) {
        /* Not bk_array_grow: a ledger with one entry in the memtable shall not pay for 16. */
        uint32_t room = run->room ? run->room * 2 : 4;
        bk_slot *slots = bk_array_resize(run->slots, room, sizeof *slots);
        if (slots == NULL)
            return -ENOMEM;
        run->slots = slots;
        run->room = room;
    }
    run->slots[run->count++] = slot;
    return 0;
}

static bk_slot *find_in(const bk_run *run, int64_t entry_id)
{
    if (run->count == 0 || entry_id < run->slots[0].entry_id ||
        entry_id > run->slots[run->count - 1].entry_id)
        return NULL;
    uint32_t low = 0, high = run->count - 1;
    /* Runs are mostly without gaps: the guess is right. */
    uint64_t guess = (uint64_t)(entry_id - run->slots[0].entry_id);
    if (guess < run->count && run->slots[guess].entry_id == entry_id)
        return &run->slots[guess];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (run->slots[middle].entry_id < entry_id)
            low = middle + 1;
        else
            high = middle;
    }
    return run->slots[low].entry_id == entry_id ? &run->slots[low] : NULL;
}

bk_slot *bk_runs_find(const bk_runs *runs, int64_t entry_id)
{
    if (runs->count == 0 || entry_id > runs->last)
        return NULL;
    for (uint32_t i = runs->count; i-- > 0;) {
        bk_slot *slot = find_in(&runs->runs[i], entry_id);
        if (slot != NULL)
            return slot;
    }
    return NULL;
}

uint32_t bk_run_slot(const bk_run *run, int64_t entry_id)
{
    uint32_t low = 0, high = run->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (run->slots[middle].entry_id < entry_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t bk_runs_next(const bk_runs *runs, int64_t entry_id)
{
    int64_t next = INT64_MAX;
    for (uint32_t i = 0; i < runs->count; i++) {
        const bk_run *run = &runs->runs[i];
        uint32_t slot = bk_run_slot(run, entry_id);
        if (slot < run->count && run->slots[slot].entry_id < next)
            next = run->slots[slot].entry_id;
    }
    return next;
}

/* Merge the last run into the one before it. */
static int merge_last(bk_runs *runs)
{
    bk_run *a = &runs->runs[runs->count - 2], *b = &runs->runs[runs->count - 1];
    uint32_t count = a->count + b->count, i = 0, j = 0, n = 0;
    bk_slot *slots = malloc(count * sizeof *slots);
    if (slots == NULL)
        return -ENOMEM;
    while (i < a->count && j < b->count)
        slots[n++] = a->slots[i].entry_id < b->slots[j].entry_id ? a->slots[i++] : b->slots[j++];
    while (i < a->count)
        slots[n++] = a->slots[i++];
    while (j < b->count)
        slots[n++] = b->slots[j++];
    free(a->slots);
    free(b->slots);
    *a = (bk_run){slots, count, count};
    runs->count--;
    return 0;
}

static int begin_run(bk_runs *runs, bk_slot slot)
{
    while (runs->count >= 2 &&
           runs->runs[runs->count - 2].count <= 2 * runs->runs[runs->count - 1].count) {
        int result = merge_last(runs);
        if (result != 0)
            return result;
    }
    /* With n below 2^32 there are never more than 33 runs; one is the common case. */
    bk_run *grown = bk_array_resize(runs->runs, runs->count + 1, sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    runs->runs = grown;
    grown[runs->count] = (bk_run){NULL, 0, 0};
    int result = push(&grown[runs->count], slot);
    if (result == 0)
        runs->count++;
    return result;
}

int bk_runs_add(bk_runs *runs, bk_slot slot)
{
    int result;
    if (runs->count > 0 && slot.entry_id > runs->last) {
        result = push(&runs->runs[runs->count - 1], slot);
    } else {
        if (bk_runs_find(runs, slot.entry_id) != NULL)
            return BK_FULL;
        bk_run *newest = runs->count > 0 ? &runs->runs[runs->count - 1] : NULL;
        if (newest != NULL && slot.entry_id > newest->slots[newest->count - 1].entry_id)
            result = push(newest, slot);
        else
            result = begin_run(runs, slot);
    }
    if (result == 0 && (slot.entry_id > runs->last || runs->last < 0))
        runs->last = slot.entry_id;
    return result;
}

int bk_runs_merge(bk_runs *runs)
{
    while (runs->count > 1) {
        int result = merge_last(runs);
        if (result != 0)
            return result;
    }
    return 0;
}

void bk_runs_free(bk_runs *runs)
{
    for (uint32_t i = 0; i < runs->count; i++)
        free(runs->runs[i].slots);
    free(runs->runs);
    *runs = (bk_runs){NULL, 0, -1};
}
