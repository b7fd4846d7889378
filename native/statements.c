/* What a connection said of ledgers: a hash table by id. See engine_internal.h. */
#include "engine_state_internal.h"

#include <errno.h>
#include <stdlib.h>

static size_t place(const bk_statement *slots, size_t room, int64_t ledger_id)
{
    uint64_t mixed = (uint64_t)ledger_id * UINT64_C(0x9e3779b97f4a7c15);
    size_t i = (size_t)(mixed >> 32) & (room - 1);
    while (slots[i].incarnation != 0 && slots[i].ledger_id != ledger_id)
        i = (i + 1) & (room - 1);
    return i;
}

bk_statement *bk_statements_find(const bk_statements *statements, int64_t ledger_id)
{
    if (statements->count == 0)
        return NULL;
    bk_statement *found =
        &statements->slots[place(statements->slots, statements->room, ledger_id)];
    return found->incarnation != 0 ? found : NULL;
}

/* Slots of a table that are not its connection's own. */
static uint64_t shared_of(size_t room)
{
    return room > 2 * BK_STATEMENTS_OWN ? room : 0;
}

static int grow(bk_statements *statements, uint64_t *shared)
{
    size_t room = statements->room ? statements->room * 2 : 16;
    uint64_t shared_after = *shared - shared_of(statements->room) + shared_of(room);
    if (shared_of(room) > 0 && shared_after > BK_STATEMENT_SLOTS_MAX)
        return BK_CLOSE;
    bk_statement *slots = calloc(room, sizeof *slots);
    if (slots == NULL)
        return -ENOMEM;
    *shared = shared_after;
    for (size_t i = 0; i < statements->room; i++)
        if (statements->slots[i].incarnation != 0)
            slots[place(slots, room, statements->slots[i].ledger_id)] = statements->slots[i];
    free(statements->slots);
    statements->slots = slots;
    statements->room = room;
    return BK_OK;
}

static void take_back(bk_statements *statements, int64_t ledger_id)
{
    bk_statement *slots = statements->slots;
    bk_statement *found = bk_statements_find(statements, ledger_id);
    if (found == NULL)
        return;
    found->incarnation = 0;
    statements->count--;
    /* Those after the hole may have been pushed on by the one that is gone. */
    size_t mask = statements->room - 1;
    for (size_t i = ((size_t)(found - slots) + 1) & mask; slots[i].incarnation != 0;
         i = (i + 1) & mask) {
        bk_statement moved = slots[i];
        slots[i].incarnation = 0;
        slots[place(slots, statements->room, moved.ledger_id)] = moved;
    }
}

int bk_statements_put(bk_statements *statements, uint64_t *shared, int64_t ledger_id,
                      int64_t incarnation)
{
    if (incarnation == 0) {
        take_back(statements, ledger_id);
        return BK_OK;
    }
    bk_statement *found = bk_statements_find(statements, ledger_id);
    if (found == NULL) {
        if (statements->count == BK_STATEMENTS_MAX)
            return BK_CLOSE;
        int result = statements->count * 2 >= statements->room ? grow(statements, shared) : BK_OK;
        if (result != BK_OK)
            return result;
        found = &statements->slots[place(statements->slots, statements->room, ledger_id)];
        statements->count++;
    }
    *found = (bk_statement){ledger_id, incarnation, BK_CODE_UNKNOWN_STATE};
    return BK_OK;
}

void bk_statements_free(bk_statements *statements, uint64_t *shared)
{
    *shared -= shared_of(statements->room);
    free(statements->slots);
    *statements = (bk_statements){NULL, 0, 0};
}
