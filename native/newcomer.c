/* Ledgers that are not here, and peers that do not say which they mean. See engine.h, rule 4. */
#include "engine_internal.h"

int bk_newcomer_judge(bk_connection *connection, const bk_ledger *ledger, int64_t ledger_id,
                      const uint8_t *key, int32_t *code)
{
    bk_newcomer *newcomer = &connection->newcomer;
    int is_here = ledger != NULL && !ledger->deleted &&
                  (ledger->key_known || ledger->incarnation == 0);
    if (!connection->engine->mode.guarded || is_here || connection->said.incarnation != 0)
        return BK_OK;
    if (!newcomer->told || newcomer->ledger_id != ledger_id) {
        *newcomer = (bk_newcomer){.ledger_id = ledger_id};
        return BK_ASK;
    }
    *code = newcomer->code;
    if (*code == 0 && newcomer->has_key && memcmp(newcomer->key, key, BK_KEY_SIZE) != 0)
        *code = BK_CODE_UNAUTHORIZED;
    else if (*code == 0 && ledger != NULL && ledger->incarnation != newcomer->incarnation)
        *code = BK_CODE_IO_ERROR;
    return BK_OK;
}

int64_t bk_newcomer_incarnation(const bk_connection *connection, int64_t ledger_id)
{
    const bk_newcomer *newcomer = &connection->newcomer;
    if (connection->said.incarnation != 0)
        return connection->said.incarnation;
    return newcomer->told && newcomer->ledger_id == ledger_id ? newcomer->incarnation : 0;
}

int64_t bk_connection_asked(const bk_connection *connection)
{
    return connection->newcomer.ledger_id;
}

void bk_connection_tell(bk_connection *connection, int64_t ledger_id, int32_t code,
                        int64_t incarnation, const uint8_t *key)
{
    bk_newcomer *newcomer = &connection->newcomer;
    *newcomer = (bk_newcomer){.ledger_id = ledger_id, .incarnation = incarnation, .code = code,
                              .told = 1, .has_key = key != NULL};
    if (key != NULL)
        memcpy(newcomer->key, key, BK_KEY_SIZE);
}
