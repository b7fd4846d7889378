/* Ledgers that were deleted: remembered, brought back by recovery, forgotten. See engine.h. */
#include "engine_internal.h"

void bk_tombstone_set(bk_ledger *ledger, int deleted, int64_t deleted_ms)
{
    /* A flush looks at it without the lock. */
    __atomic_store_n(&ledger->deleted, (uint8_t)deleted, __ATOMIC_RELAXED);
    ledger->deleted_ms = deleted_ms;
}

static int delete_known(bk_engine *engine, bk_ledger *ledger, int64_t now_ms)
{
    uint8_t number[8];
    bk_put64be(number, (uint64_t)now_ms);
    int result =
        bk_engine_append_special(engine, ledger->id, BK_RECORD_DELETED, number, sizeof number);
    /* Without room in memory it is in the table alone, at the next flush: a crash before
       that brings the ledger back, and whoever collects garbage deletes it again. */
    if (result == 0 || result == BK_FULL)
        result = bk_engine_mark_dirty(engine, ledger);
    if (result != 0)
        return result;
    ledger->fenced = 1;
    bk_tombstone_set(ledger, 1, now_ms);
    engine->changes.removals++; /* what a connection looked up of it counts no more */
    bk_engine_wake(engine, ledger);
    pthread_cond_signal(&engine->work);
    return BK_OK;
}

int bk_engine_delete_ledger(bk_engine *engine, int64_t ledger_id, int64_t incarnation,
                            int64_t now_ms)
{
    pthread_mutex_lock(&engine->lock);
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    if (ledger != NULL && incarnation >= 0 && ledger->incarnation != incarnation)
        ledger = NULL; /* its id was used again since the caller looked */
    int result = ledger != NULL ? delete_known(engine, ledger, now_ms) : BK_NO_LEDGER;
    /* Under the lock, so that what is added after a revival is not deleted with it. */
    if (result == BK_OK)
        (void)bk_store_delete_ledger(engine->store, ledger_id);
    pthread_mutex_unlock(&engine->lock);
    return result;
}

static void leave_half(bk_half *half, const bk_ledger *ledger)
{
    size_t at = 0;
    while (half->ledgers[at] != ledger)
        at++;
    half->ledgers[at] = half->ledgers[--half->ledger_count];
}

int bk_engine_bury(bk_engine *engine, bk_ledger *ledger)
{
    bk_half *half = &engine->memtable.halves[engine->memtable.active];
    bk_runs *runs = &ledger->halves[engine->memtable.active];
    if (ledger->halves[1 - engine->memtable.active].count > 0)
        return BK_FULL;
    if (runs->count > 0)
        leave_half(half, ledger);
    for (uint32_t i = 0; i < runs->count; i++)
        half->entries -= runs->runs[i].count;
    bk_runs_free(runs);
    ledger->last_entry = -1;
    return BK_OK;
}

int bk_engine_revive(bk_engine *engine, bk_ledger *ledger, const uint8_t *key)
{
    int result = bk_engine_bury(engine, ledger);
    /* The fence first: whatever of the two survives a crash, no writer may go on. */
    if (result == 0)
        result = bk_engine_append_special(engine, ledger->id, BK_RECORD_FENCE, "", 0);
    if (result == 0)
        result = bk_engine_append_special(engine, ledger->id, BK_RECORD_KEY, key, BK_KEY_SIZE);
    if (result == 0)
        result = bk_engine_mark_dirty(engine, ledger);
    if (result != 0)
        return result;
    memcpy(ledger->key, key, BK_KEY_SIZE);
    ledger->key_known = ledger->fenced = 1;
    ledger->fence_ticket = engine->groups.ticket;
    bk_tombstone_set(ledger, 0, 0);
    return BK_OK;
}

void bk_engine_forget_tombstones(bk_engine *engine, int64_t now_ms)
{
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < engine->ledgers.room;) {
        bk_ledger *ledger = engine->ledgers.slots[i];
        if (ledger != NULL && ledger->deleted && !ledger->dirty &&
            ledger->halves[0].count == 0 && ledger->halves[1].count == 0 &&
            now_ms - ledger->deleted_ms > BK_TOMBSTONE_MS &&
            !bk_store_remembers(engine->store, ledger->id)) {
            bk_ledgers_remove(&engine->ledgers, ledger->id);
            engine->changes.removals++;
            continue; /* another one may have moved here */
        }
        i++;
    }
    pthread_mutex_unlock(&engine->lock);
}
