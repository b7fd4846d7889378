/* Fences. See engine.h. */
#include "engine_internal.h"

/* Or will be when its ticket is synced. A tombstone is only when it was fenced in so many
 * words: its deletion may be forgotten in a crash. */
static int is_fenced_durably(const bk_ledger *ledger)
{
    return ledger->fenced && (ledger->deleted ? ledger->fence_ticket != 0 : ledger->key_known);
}

static int fence(bk_engine *engine, int64_t ledger_id, int64_t incarnation, const uint8_t *key,
                 uint64_t *ticket)
{
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    int result = 0;
    if (ledger != NULL && bk_ledger_is_other(ledger, incarnation))
        return BK_OTHER_LEDGER;
    if (ledger != NULL && ledger->key_known && memcmp(ledger->key, key, BK_KEY_SIZE) != 0)
        return BK_BAD_KEY;
    if (ledger != NULL && is_fenced_durably(ledger)) {
        *ticket = ledger->fence_ticket;
        return BK_OK;
    }
    /* The record of a key would bring a tombstone back. */
    int adopts = ledger == NULL || (!ledger->key_known && !ledger->deleted);
    if (ledger == NULL)
        result = bk_engine_make_ledger(engine, ledger_id, incarnation, &ledger);
    if (result == 0 && adopts)
        result = bk_engine_append_special(engine, ledger_id, BK_RECORD_KEY, key, BK_KEY_SIZE);
    if (result == 0)
        result = bk_engine_append_special(engine, ledger_id, BK_RECORD_FENCE, "", 0);
    if (result != 0)
        return result;
    if (adopts) {
        memcpy(ledger->key, key, BK_KEY_SIZE);
        ledger->key_known = 1;
    }
    ledger->fenced = 1;
    ledger->fence_ticket = *ticket = engine->groups.ticket;
    engine->stats.fences++;
    bk_engine_wake(engine, ledger);
    return bk_engine_mark_dirty(engine, ledger);
}

int bk_engine_fence(bk_engine *engine, int64_t ledger_id, int64_t incarnation, const uint8_t *key,
                    uint64_t *ticket)
{
    if (ledger_id < 0)
        return BK_BAD_KEY; /* a peer may ask for it, and no key is that of no ledger */
    pthread_mutex_lock(&engine->lock);
    int result = fence(engine, ledger_id, incarnation, key, ticket);
    pthread_cond_signal(&engine->work);
    pthread_mutex_unlock(&engine->lock);
    return result;
}

void bk_engine_fence_all(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < engine->ledgers.room; i++) {
        bk_ledger *ledger = engine->ledgers.slots[i];
        if (ledger == NULL)
            continue;
        ledger->fenced = 1;
        (void)bk_engine_mark_dirty(engine, ledger); /* without memory: fenced until the restart */
        bk_engine_wake(engine, ledger);
    }
    pthread_mutex_unlock(&engine->lock);
}
