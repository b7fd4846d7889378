/* The store as a whole: its list of logs, damage, figures, closing. */
#include "store_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define DAMAGES_MAX 1000

/* --- closing ----------------------------------------------------------------------- */

void bk_store_close(bk_store *store)
{
    if (store == NULL)
        return;
    bk_log_writer_free(&store->flush.writer);
    if (store->flush.log != NULL)
        bk_log_unpin(&store->files, store->flush.log);
    while (store->log_count > 0)
        bk_store_remove_log(store, store->logs[store->log_count - 1]);
    free(store->logs);
    bk_directory_free(&store->directory);
    bk_page_cache_free(&store->pages);
    free(store->damages);
    free(store);
}

/* --- the list of logs -------------------------------------------------------------- */

bk_log *bk_store_log(const bk_store *store, uint32_t log_id)
{
    for (uint32_t i = store->log_count; i > 0; i--)
        if (store->logs[i - 1]->id == log_id)
            return store->logs[i - 1];
    return NULL;
}

int bk_store_add_log(bk_store *store, bk_log *log)
{
    bk_log **logs = bk_array_grow32(store->logs, &store->log_capacity, store->log_count + 1,
                                    sizeof(bk_log *));
    if (logs == NULL)
        return -ENOMEM;
    store->logs = logs;
    uint32_t at = store->log_count++;
    for (; at > 0 && store->logs[at - 1]->id > log->id; at--)
        store->logs[at] = store->logs[at - 1];
    store->logs[at] = log;
    bk_log_pin(log);
    return BK_OK;
}

void bk_store_remove_log(bk_store *store, bk_log *log)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < store->log_count; i++)
        if (store->logs[i] != log)
            store->logs[kept++] = store->logs[i];
    store->log_count = kept;
    store->epoch++;
    bk_directory_forget_dead(&store->directory, log);
    bk_log_unpin(&store->files, log);
}

uint32_t bk_store_is_held(const bk_store *store, const bk_log *log)
{
    return log->open || log->id == store->marked_log_id;
}

void bk_store_marked(bk_store *store, const bk_mark *mark)
{
    pthread_rwlock_wrlock(&store->lock);
    store->marked_log_id = mark->log_id;
    pthread_rwlock_unlock(&store->lock);
}

uint32_t bk_store_next_log_id(bk_store *store)
{
    pthread_rwlock_wrlock(&store->lock);
    uint32_t id = store->next_log_id++;
    pthread_rwlock_unlock(&store->lock);
    return id;
}

/* --- damage ------------------------------------------------------------------------ */

static int is_of(const bk_damage *damage, const char *path, int64_t ledger_id)
{
    return damage->ledger_id == ledger_id && strcmp(damage->path, path) == 0;
}

static int is_within(const bk_damage *damage, const bk_damage *noted)
{
    return damage->entry_id >= 0 && damage->entry_id >= noted->entry_id &&
           damage->entry_id <= noted->last_entry &&
           is_of(noted, damage->path, damage->ledger_id);
}

static int is_noted(const bk_store *store, const bk_damage *damage)
{
    for (uint32_t i = 0; i < store->damage_count; i++) {
        const bk_damage *noted = &store->damages[i];
        if ((noted->offset == damage->offset && strcmp(noted->path, damage->path) == 0) ||
            is_within(damage, noted))
            return 1;
    }
    return 0;
}

/* Let the newest damage go on to the entry that follows. */
static int go_on(bk_store *store, const bk_damage *damage)
{
    bk_damage *newest = store->damage_count > 0 ? &store->damages[store->damage_count - 1] : NULL;
    if (newest == NULL || newest->entry_id < 0 || newest->last_entry + 1 != damage->entry_id ||
        !is_of(newest, damage->path, damage->ledger_id))
        return 0;
    newest->last_entry = damage->entry_id;
    return 1;
}

/* There is no room: let the newest damage of the ledger span the entry, and what lies between. */
static void stretch(bk_store *store, const bk_damage *damage)
{
    for (uint32_t i = store->damage_count; i > 0 && damage->entry_id >= 0; i--) {
        bk_damage *noted = &store->damages[i - 1];
        if (noted->entry_id < 0 || !is_of(noted, damage->path, damage->ledger_id))
            continue;
        if (damage->entry_id < noted->entry_id)
            noted->entry_id = damage->entry_id;
        if (damage->entry_id > noted->last_entry)
            noted->last_entry = damage->entry_id;
        return;
    }
}

static bk_damage *damage_room(bk_store *store)
{
    if (store->damage_count < store->damage_capacity)
        return &store->damages[store->damage_count++];
    if (store->damage_capacity == DAMAGES_MAX)
        return NULL;
    uint32_t capacity = store->damage_capacity * 2 + 8;
    if (capacity > DAMAGES_MAX)
        capacity = DAMAGES_MAX;
    bk_damage *damages = bk_array_resize(store->damages, capacity, sizeof *damages);
    if (damages == NULL)
        return NULL;
    store->damages = damages;
    store->damage_capacity = capacity;
    return &store->damages[store->damage_count++];
}

static void keep(bk_store *store, const bk_damage *damage)
{
    bk_damage *room = damage_room(store);
    if (room != NULL)
        *room = *damage;
    else
        stretch(store, damage);
}

void bk_store_note(bk_store *store, const char *path, uint64_t offset, int64_t ledger_id,
                   int64_t entry_id)
{
    bk_damage damage = {.offset = offset, .ledger_id = ledger_id, .entry_id = entry_id,
                        .last_entry = entry_id};
    snprintf(damage.path, sizeof damage.path, "%s", path);
    pthread_mutex_lock(&store->damage_lock);
    if (!is_noted(store, &damage)) {
        store->damaged++;
        if (!go_on(store, &damage))
            keep(store, &damage);
    }
    pthread_mutex_unlock(&store->damage_lock);
}

int bk_store_is_crowded(bk_store *store)
{
    pthread_mutex_lock(&store->damage_lock);
    int crowded = store->damage_count > DAMAGES_MAX / 2;
    pthread_mutex_unlock(&store->damage_lock);
    return crowded;
}

void bk_store_note_log(bk_store *store, uint32_t log_id, const char *suffix, uint64_t offset,
                       int64_t ledger_id, int64_t entry_id)
{
    char path[BK_PATH_SIZE_MAX];
    bk_log_path(store->folder, log_id, suffix, path);
    bk_store_note(store, path, offset, ledger_id, entry_id);
}

uint32_t bk_store_take_damage(bk_store *store, bk_damage *out, uint32_t out_count)
{
    pthread_mutex_lock(&store->damage_lock);
    uint32_t count = store->damage_count < out_count ? store->damage_count : out_count;
    if (count > 0) {
        memcpy(out, store->damages, count * sizeof *out);
        memmove(store->damages, store->damages + count,
                (store->damage_count - count) * sizeof *out);
    }
    store->damage_count -= count;
    pthread_mutex_unlock(&store->damage_lock);
    return count;
}

/* --- figures ----------------------------------------------------------------------- */

static bk_ledger_usage usage_of(const bk_ledger_rows *ledger)
{
    bk_ledger_usage usage = {.ledger_id = ledger->id,
                             .first_entry = ledger->rows[0].first,
                             .last_entry = ledger->rows[ledger->count - 1].reach,
                             .extents = ledger->count};
    for (uint32_t i = 0; i < ledger->count; i++) {
        usage.entries += ledger->rows[i].entries_kind / 2;
        usage.bytes += ledger->rows[i].log_size;
    }
    return usage;
}

uint32_t bk_store_ledgers(bk_store *store, int64_t after, bk_ledger_usage *out, uint32_t out_count)
{
    uint32_t count = 0;
    pthread_rwlock_rdlock(&store->lock);
    const bk_directory *d = &store->directory;
    for (uint32_t i = bk_directory_after(d, after); i < d->count && count < out_count; i++)
        if (d->ledgers[i].count > 0)
            out[count++] = usage_of(&d->ledgers[i]);
    pthread_rwlock_unlock(&store->lock);
    return count;
}

uint32_t bk_store_logs(bk_store *store, int64_t after, bk_log_usage *out, uint32_t out_count)
{
    uint32_t count = 0;
    pthread_rwlock_rdlock(&store->lock);
    for (uint32_t i = 0; i < store->log_count && count < out_count; i++) {
        const bk_log *log = store->logs[i];
        if ((int64_t)log->id > after)
            out[count++] = (bk_log_usage){.log_id = log->id,
                                          .open = bk_store_is_held(store, log),
                                          .size = log->size,
                                          .live = log->live,
                                          .damaged = log->damaged,
                                          .extents = log->extents,
                                          .origin = log->origin};
    }
    pthread_rwlock_unlock(&store->lock);
    return count;
}

int bk_store_delete_ledger(bk_store *store, int64_t ledger_id)
{
    pthread_rwlock_wrlock(&store->lock);
    bk_ledger_rows *ledger = bk_directory_ledger(&store->directory, ledger_id);
    if (ledger != NULL) {
        bk_directory_bury(&store->directory, ledger, UINT32_MAX);
        store->epoch++;
    }
    pthread_rwlock_unlock(&store->lock);
    return ledger != NULL ? BK_OK : BK_NO_LEDGER;
}

/* --- ids that were used before ------------------------------------------------------ */

static int is_remembered(const bk_store *store, int64_t ledger_id)
{
    const bk_ledger_rows *ledger = bk_directory_place(&store->directory, ledger_id);
    return ledger != NULL && (ledger->count > 0 || ledger->dead_logs > 0);
}

int bk_store_remembers(bk_store *store, int64_t ledger_id)
{
    pthread_rwlock_rdlock(&store->lock);
    int remembered = is_remembered(store, ledger_id);
    pthread_rwlock_unlock(&store->lock);
    return remembered;
}

void bk_store_forget_before(bk_store *store, int64_t ledger_id, uint32_t first_log)
{
    pthread_rwlock_wrlock(&store->lock);
    bk_ledger_rows *ledger = bk_directory_ledger(&store->directory, ledger_id);
    if (ledger != NULL && bk_directory_bury(&store->directory, ledger, first_log) > 0)
        store->epoch++;
    pthread_rwlock_unlock(&store->lock);
}

uint32_t bk_store_first_log(bk_store *store, int64_t ledger_id)
{
    pthread_rwlock_rdlock(&store->lock);
    uint32_t first_log = is_remembered(store, ledger_id) ? store->next_log_id : 0;
    pthread_rwlock_unlock(&store->lock);
    return first_log;
}

int bk_store_spans(bk_store *store, int64_t ledger_id, int64_t entry_id)
{
    int64_t limit;
    pthread_rwlock_rdlock(&store->lock);
    const bk_ledger_rows *ledger = bk_directory_ledger(&store->directory, ledger_id);
    int spanned = ledger != NULL && bk_directory_row(ledger, entry_id, NULL, &limit) != NULL;
    pthread_rwlock_unlock(&store->lock);
    return spanned;
}

static uint64_t counted(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static void directory_stats(bk_store *store, bk_store_stats *out)
{
    const bk_directory *d = &store->directory;
    pthread_rwlock_rdlock(&store->lock);
    out->directory_bytes = d->capacity * sizeof *d->ledgers + d->row_bytes;
    out->extents = d->extents;
    for (uint32_t i = 0; i < d->count; i++)
        out->ledgers += d->ledgers[i].count > 0;
    out->logs = store->log_count;
    for (uint32_t i = 0; i < store->log_count; i++) {
        out->log_bytes += store->logs[i]->size;
        out->live_bytes += store->logs[i]->live;
        out->dead_bytes += store->logs[i]->records - store->logs[i]->live;
        out->index_bytes += store->logs[i]->index_size;
    }
    pthread_rwlock_unlock(&store->lock);
}

uint64_t bk_store_flush_steps(const bk_store *store)
{
    return __atomic_load_n(&store->flush.steps, __ATOMIC_RELAXED);
}

void bk_store_get_stats(bk_store *store, bk_store_stats *out)
{
    *out = (bk_store_stats){.flushes = counted(&store->flushes),
                            .flushed_entries = counted(&store->flushed_entries),
                            .flushed_bytes = counted(&store->flushed_bytes),
                            .log_reads = counted(&store->log_reads),
                            .index_reads = counted(&store->pages.reads)};
    directory_stats(store, out);
    pthread_mutex_lock(&store->pages.lock);
    out->index_cache_hits = store->pages.hits;
    out->index_cache_bytes = store->pages.size;
    pthread_mutex_unlock(&store->pages.lock);
    pthread_mutex_lock(&store->damage_lock);
    out->damaged = store->damaged;
    pthread_mutex_unlock(&store->damage_lock);
}
