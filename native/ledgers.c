/* The ledgers in memory: a hash table by id. See engine_internal.h. */
#include "engine_state_internal.h"

#include <errno.h>
#include <stdlib.h>

static size_t spread(int64_t id)
{
    uint64_t x = (uint64_t)id * 0x9e3779b97f4a7c15u;
    return (size_t)(x ^ (x >> 32));
}

int bk_ledgers_init(bk_ledgers *ledgers)
{
    *ledgers = (bk_ledgers){NULL, 64, 0, NULL};
    ledgers->slots = calloc(ledgers->room, sizeof *ledgers->slots);
    return ledgers->slots != NULL ? 0 : -ENOMEM;
}

static void free_ledger(bk_ledger *ledger)
{
    bk_runs_free(&ledger->halves[0]);
    bk_runs_free(&ledger->halves[1]);
    free(ledger);
}

void bk_ledgers_free(bk_ledgers *ledgers)
{
    for (size_t i = 0; ledgers->slots != NULL && i < ledgers->room; i++)
        if (ledgers->slots[i] != NULL)
            free_ledger(ledgers->slots[i]);
    free(ledgers->slots);
    free(ledgers->sorted);
    *ledgers = (bk_ledgers){NULL, 0, 0, NULL};
}

static size_t place(bk_ledger *const *slots, size_t room, int64_t id)
{
    size_t i = spread(id) & (room - 1);
    while (slots[i] != NULL && slots[i]->id != id)
        i = (i + 1) & (room - 1);
    return i;
}

bk_ledger *bk_ledgers_find(const bk_ledgers *ledgers, int64_t id)
{
    return ledgers->slots[place(ledgers->slots, ledgers->room, id)];
}

static int grow(bk_ledgers *ledgers)
{
    size_t room = ledgers->room * 2;
    bk_ledger **slots = calloc(room, sizeof *slots);
    if (slots == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < ledgers->room; i++)
        if (ledgers->slots[i] != NULL)
            slots[place(slots, room, ledgers->slots[i]->id)] = ledgers->slots[i];
    free(ledgers->slots);
    ledgers->slots = slots;
    ledgers->room = room;
    return 0;
}

bk_ledger *bk_ledgers_make(bk_ledgers *ledgers, int64_t id)
{
    bk_ledger *ledger = bk_ledgers_find(ledgers, id);
    if (ledger != NULL)
        return ledger;
    if (ledgers->count * 2 >= ledgers->room && grow(ledgers) != 0)
        return NULL;
    ledger = calloc(1, sizeof *ledger);
    if (ledger == NULL)
        return NULL;
    ledger->id = id;
    ledger->last_entry = ledger->lac = ledger->explicit_lac = -1;
    ledger->halves[0].last = ledger->halves[1].last = -1;
    ledgers->slots[place(ledgers->slots, ledgers->room, id)] = ledger;
    ledgers->count++;
    free(ledgers->sorted);
    ledgers->sorted = NULL;
    return ledger;
}

void bk_ledgers_remove(bk_ledgers *ledgers, int64_t id)
{
    size_t hole = place(ledgers->slots, ledgers->room, id);
    if (ledgers->slots[hole] == NULL)
        return;
    free_ledger(ledgers->slots[hole]);
    ledgers->slots[hole] = NULL;
    ledgers->count--;
    free(ledgers->sorted);
    ledgers->sorted = NULL;
    /* Those after the hole may have been pushed on by the one that is gone. */
    for (size_t i = (hole + 1) & (ledgers->room - 1); ledgers->slots[i] != NULL;
         i = (i + 1) & (ledgers->room - 1)) {
        bk_ledger *moved = ledgers->slots[i];
        ledgers->slots[i] = NULL;
        ledgers->slots[place(ledgers->slots, ledgers->room, moved->id)] = moved;
    }
}

static int by_id(const void *a, const void *b)
{
    int64_t x = (*(bk_ledger *const *)a)->id, y = (*(bk_ledger *const *)b)->id;
    return x < y ? -1 : x > y;
}

bk_ledger **bk_ledgers_sorted(bk_ledgers *ledgers)
{
    if (ledgers->sorted != NULL)
        return ledgers->sorted;
    size_t n = 0;
    bk_ledger **sorted = malloc((ledgers->count + 1) * sizeof *sorted);
    if (sorted == NULL)
        return NULL;
    for (size_t i = 0; i < ledgers->room; i++)
        if (ledgers->slots[i] != NULL)
            sorted[n++] = ledgers->slots[i];
    qsort(sorted, n, sizeof *sorted, by_id);
    return ledgers->sorted = sorted;
}

/* --- what is known of ledgers that are here --------------------------------------------- */

static void describe(const bk_ledger *ledger, bk_ledger_state *out)
{
    memset(out, 0, sizeof *out);
    out->ledger_id = ledger->id;
    out->last_entry = ledger->last_entry;
    out->lac = ledger->lac;
    out->explicit_lac = ledger->explicit_lac;
    out->fenced = ledger->fenced;
    out->deleted = ledger->deleted;
    out->key_known = ledger->key_known;
    out->incarnation = ledger->incarnation;
    memcpy(out->key, ledger->key, BK_KEY_SIZE);
}

int bk_engine_ledger(bk_engine *engine, int64_t ledger_id, bk_ledger_state *out)
{
    pthread_mutex_lock(&engine->lock);
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    if (ledger != NULL)
        describe(ledger, out);
    pthread_mutex_unlock(&engine->lock);
    return ledger != NULL ? BK_OK : BK_NO_LEDGER;
}

uint32_t bk_engine_ledgers(bk_engine *engine, int64_t after, bk_ledger_state *out,
                           uint32_t out_count)
{
    uint32_t n = 0;
    pthread_mutex_lock(&engine->lock);
    bk_ledger **sorted = bk_ledgers_sorted(&engine->ledgers);
    size_t low = 0, high = sorted != NULL ? engine->ledgers.count : 0;
    size_t count = high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sorted[middle]->id <= after)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < count && n < out_count; i++)
        if (!sorted[i]->deleted)
            describe(sorted[i], &out[n++]);
    pthread_mutex_unlock(&engine->lock);
    return n;
}
