/* Ledgers whose id was used before. See table.h and engine.h, rule 7. */
#include "engine_internal.h"

#include <errno.h>

int bk_ledger_is_other(const bk_ledger *ledger, int64_t incarnation)
{
    return incarnation != 0 && ledger->incarnation != incarnation;
}

void bk_ledger_renew(bk_ledger *ledger, int64_t incarnation, uint32_t first_log)
{
    ledger->incarnation = incarnation;
    ledger->first_log = first_log;
    ledger->was_renewed = 1;
    ledger->last_entry = ledger->lac = ledger->explicit_lac = -1;
    ledger->fence_ticket = 0;
    ledger->key_known = ledger->fenced = ledger->lac_known = 0;
    bk_tombstone_set(ledger, 0, 0);
}

static int append_incarnation(bk_engine *engine, int64_t ledger_id, int64_t incarnation,
                              uint32_t first_log)
{
    uint8_t number[12];
    bk_put64be(number, (uint64_t)incarnation);
    bk_put32be(number + 8, first_log);
    return bk_engine_append_special(engine, ledger_id, BK_RECORD_INCARNATION, number,
                                    sizeof number);
}

int bk_engine_make_ledger(bk_engine *engine, int64_t ledger_id, int64_t incarnation,
                          bk_ledger **out)
{
    /* Logs may hold entries of an earlier ledger that nobody remembers otherwise. */
    uint32_t first_log = bk_store_first_log(engine->store, ledger_id);
    int result = BK_OK;
    if (incarnation != 0)
        result = append_incarnation(engine, ledger_id, incarnation, first_log);
    if (result != BK_OK)
        return result;
    bk_ledger *ledger = bk_ledgers_make(&engine->ledgers, ledger_id);
    if (ledger == NULL)
        return -ENOMEM;
    if (incarnation != 0)
        bk_ledger_renew(ledger, incarnation, first_log);
    *out = ledger;
    return bk_engine_mark_dirty(engine, ledger);
}

/* Room for the record first: the entries must not be gone while the old ledger is still here. */
static int renew(bk_engine *engine, bk_ledger *ledger, int64_t incarnation)
{
    int result = bk_engine_reserve(engine, BK_RECORD_HEADER_SIZE + BK_SPECIAL_SIZE_MAX);
    if (result == BK_OK)
        result = bk_engine_mark_dirty(engine, ledger);
    if (result == BK_OK)
        result = bk_engine_bury(engine, ledger);
    if (result != BK_OK)
        return result;
    (void)bk_store_delete_ledger(engine->store, ledger->id);
    uint32_t first_log = bk_store_first_log(engine->store, ledger->id);
    result = append_incarnation(engine, ledger->id, incarnation, first_log);
    if (result != BK_OK)
        return result;
    bk_engine_wake(engine, ledger);
    bk_ledger_renew(ledger, incarnation, first_log);
    engine->changes.removals++; /* connections look again */
    __atomic_store_n(&engine->changes.renewals, engine->changes.renewals + 1, __ATOMIC_RELEASE);
    pthread_cond_signal(&engine->work);
    return BK_OK;
}

int bk_engine_renew_ledger(bk_engine *engine, int64_t ledger_id, int64_t from, int64_t to)
{
    if (from < 0 || to <= 0)
        return BK_NO_LEDGER;
    pthread_mutex_lock(&engine->lock);
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    /* What is not known to be over stays. */
    int is_over = ledger != NULL && ledger->incarnation == from && (from > 0 || ledger->deleted);
    int result = is_over ? renew(engine, ledger, to) : BK_NO_LEDGER;
    pthread_mutex_unlock(&engine->lock);
    return result;
}

void bk_connection_refuse(bk_connection *connection, int64_t ledger_id, int64_t incarnation)
{
    bk_engine *engine = connection->engine;
    pthread_mutex_lock(&engine->lock);
    bk_statement *said = bk_statements_find(&connection->statements, ledger_id);
    if (said != NULL && said->incarnation == incarnation)
        said->code = BK_CODE_OTHER_LEDGER;
    connection->last = NULL;
    pthread_mutex_unlock(&engine->lock);
}
