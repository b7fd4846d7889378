/* Which entries of a ledger a bookie has, wherever they are. See engine.h. */
#include "engine_internal.h"

#define STRETCHES_MAX 128 /* of each run of slots, with the lock held */

/* The last slot up to which entry ids rise by one from that of slot from on. */
static uint32_t end_stretch(const bk_run *run, uint32_t from)
{
    uint32_t low = from, high = run->count - 1;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        if (run->slots[middle].entry_id - run->slots[from].entry_id == middle - from)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Entries from next on. *bound is lowered to where they were not looked at any more. */
static int slot_ranges(const bk_run *run, int64_t next, int64_t *bound, bk_ranges *found)
{
    uint32_t slot = bk_run_slot(run, next);
    for (int i = 0; i < STRETCHES_MAX && slot < run->count; i++) {
        uint32_t end = end_stretch(run, slot);
        int result = bk_ranges_add(found, run->slots[slot].entry_id, run->slots[end].entry_id);
        if (result != BK_OK)
            return result;
        slot = end + 1;
    }
    if (slot < run->count && run->slots[slot].entry_id - 1 < *bound)
        *bound = run->slots[slot].entry_id - 1;
    return BK_OK;
}

static int memory_ranges(bk_engine *engine, int64_t ledger_id, int64_t next, int64_t *bound,
                         bk_ranges *found)
{
    pthread_mutex_lock(&engine->lock);
    const bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    int result = ledger != NULL && !ledger->deleted ? BK_OK : BK_NO_LEDGER;
    for (int half = 0; half < 2 && result == BK_OK; half++) {
        const bk_runs *runs = &ledger->halves[half];
        for (uint32_t i = 0; i < runs->count && result == BK_OK; i++)
            result = slot_ranges(&runs->runs[i], next, bound, found);
    }
    pthread_mutex_unlock(&engine->lock);
    return result;
}

/* All there is of next to *bound, which is at least next. Memory comes first: what a flush
 * gives back meanwhile is in the store by then. */
static int gather(bk_engine *engine, int64_t ledger_id, int64_t next, int64_t *bound,
                  bk_ranges *found)
{
    found->count = 0;
    *bound = INT64_MAX;
    int result = memory_ranges(engine, ledger_id, next, bound, found);
    if (result != BK_OK)
        return result;
    result = bk_store_ranges(engine->store, ledger_id, next, bound, found);
    bk_ranges_cut(found, *bound);
    return result == BK_NO_LEDGER ? BK_OK : result;
}

int bk_engine_runs(bk_engine *engine, int64_t ledger_id, int64_t after, bk_entry_run *out,
                   uint32_t out_count, uint32_t *count)
{
    bk_ranges found = {NULL, 0, 0};
    int64_t bound = after < -1 ? -1 : after;
    int result = ledger_id < 0 ? BK_NO_LEDGER : BK_OK;
    *count = 0;
    do {
        if (result == BK_OK && bound < INT64_MAX)
            result = gather(engine, ledger_id, bound + 1, &bound, &found);
        for (size_t i = 0; i < found.count && result == BK_OK; i++)
            result = bk_run_join(out, out_count, count, found.items[i]);
    } while (result == BK_OK && bound < INT64_MAX);
    bk_ranges_free(&found);
    return result == BK_FULL ? BK_OK : result;
}
