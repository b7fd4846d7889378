/* Flushes: a sealed half of the memtable becomes records and extents.
 *
 * Everything is written and synced before anybody sees it. A flush that fails
 * poisons the store for flushes: what lies beyond the last mark in the files is
 * cut off at the next start, and the journal still has it. */
#include "store_internal.h"

#include <errno.h>
#include <stdlib.h>

#define INDEX_SIZE_MAX (2u << 30) /* offsets of pages have 32 bits */

static void free_pending(bk_store *store)
{
    bk_flush *flush = &store->flush;
    for (uint32_t i = 0; i < flush->pending_count; i++) {
        free(flush->pending[i].rows);
        if (flush->pending[i].closed)
            bk_log_unpin(&store->files, flush->pending[i].log);
    }
    free(flush->pending);
    flush->pending = NULL;
    flush->pending_count = 0;
    free(flush->names);
    flush->names = NULL;
    flush->name_count = flush->name_capacity = 0;
}

/* --- one at a time ----------------------------------------------------------------- */

static int enter_flush(bk_flush *flush)
{
    pthread_mutex_lock(&flush->lock);
    while (flush->busy)
        pthread_cond_wait(&flush->idle, &flush->lock);
    int result = flush->error;
    flush->busy = result == BK_OK;
    pthread_mutex_unlock(&flush->lock);
    return result;
}

static int leave_flush(bk_store *store, int result)
{
    bk_flush *flush = &store->flush;
    free_pending(store);
    if (result != BK_OK) {
        bk_log_writer_drop(&flush->writer);
        if (flush->log != NULL)
            bk_log_unpin(&store->files, flush->log);
        flush->log = NULL;
    }
    pthread_mutex_lock(&flush->lock);
    flush->busy = 0;
    flush->error = result;
    pthread_cond_broadcast(&flush->idle);
    pthread_mutex_unlock(&flush->lock);
    return result;
}

/* --- logs -------------------------------------------------------------------------- */

static int begin_log(bk_store *store)
{
    bk_flush *flush = &store->flush;
    uint32_t id = bk_store_next_log_id(store);
    flush->log = bk_log_new(id, id);
    if (flush->log == NULL)
        return -ENOMEM;
    if (flush->writer.buffer == NULL) {
        int result = bk_log_writer_init(&flush->writer, store->folder);
        if (result != BK_OK)
            return result;
        flush->writer.steps = &flush->steps;
    }
    int result = bk_log_writer_begin(&flush->writer, id, id);
    bk_count(&flush->steps, 1);
    return result;
}

/* Sync the log and its index; its rows wait for the end of the flush. */
static int settle_log(bk_store *store)
{
    bk_flush *flush = &store->flush;
    bk_pending *pending =
        bk_array_resize(flush->pending, flush->pending_count + 1, sizeof *pending);
    if (pending == NULL)
        return -ENOMEM;
    flush->pending = pending;
    pending = &flush->pending[flush->pending_count++];
    *pending = (bk_pending){.log = flush->log};
    int result = bk_log_writer_sync(&flush->writer, &pending->rows, &pending->count);
    pending->size = flush->writer.log_end;
    pending->index_size = flush->writer.index_end;
    return result;
}

static int close_log(bk_store *store)
{
    bk_flush *flush = &store->flush;
    int result = settle_log(store);
    if (result != BK_OK)
        return result;
    bk_pending *pending = &flush->pending[flush->pending_count - 1];
    result = bk_log_writer_close(&flush->writer);
    pending->size = flush->writer.log_end;
    pending->closed = 1; /* and its pin goes with it */
    flush->log = NULL;
    return result;
}

/* A log that has room for a record. */
static int log_ready(bk_store *store, uint32_t record_size)
{
    bk_flush *flush = &store->flush;
    if (flush->log != NULL) {
        uint64_t offset = bk_log_writer_offset(&flush->writer);
        if (offset == BK_BLOCK_SIZE || (offset + record_size <= store->log_size_max &&
                                        flush->writer.index_end <= INDEX_SIZE_MAX))
            return BK_OK;
        int result = close_log(store);
        if (result != BK_OK)
            return result;
    }
    return begin_log(store);
}

/* --- begin, ledgers, commit -------------------------------------------------------- */

int bk_store_flush_begin(bk_store *store)
{
    int result = enter_flush(&store->flush);
    store->flush.entries = store->flush.bytes = 0;
    return result;
}

/* Logs from first_log on: where a ledger begins whose id was used before. */
static int leave_log(bk_store *store, uint32_t first_log)
{
    const bk_flush *flush = &store->flush;
    pthread_rwlock_wrlock(&store->lock);
    if (store->next_log_id < first_log)
        store->next_log_id = first_log;
    pthread_rwlock_unlock(&store->lock);
    return flush->log != NULL && flush->log->id < first_log ? close_log(store) : BK_OK;
}

/* The directory hears of it when it hears of the entries. */
static int keep_name(bk_flush *flush, const bk_name *name)
{
    bk_name *names = bk_array_grow32(flush->names, &flush->name_capacity,
                                     (size_t)flush->name_count + 1, sizeof *names);
    if (names == NULL)
        return -ENOMEM;
    flush->names = names;
    flush->names[flush->name_count++] = *name;
    return BK_OK;
}

/* A log that has room for a record, and says before it whose it is. *named: the log that does. */
static int named_log_ready(bk_store *store, const bk_name *name, uint32_t record_size,
                           uint32_t *named)
{
    const bk_flush *flush = &store->flush;
    if (name->incarnation == 0)
        return log_ready(store, record_size);
    int result = log_ready(store, record_size + BK_INCARNATION_RECORD_SIZE);
    if (result != BK_OK || *named == flush->log->id)
        return result;
    *named = flush->log->id;
    return bk_log_writer_name(&store->flush.writer, name->ledger_id, name->incarnation,
                              name->first_log);
}

int bk_store_flush_ledger(bk_store *store, int64_t ledger_id, int64_t incarnation,
                          uint32_t first_log, const bk_slot *slots, uint32_t count,
                          const uint8_t *arena, uint32_t salt)
{
    bk_flush *flush = &store->flush;
    const bk_name name = {ledger_id, incarnation, first_log};
    uint32_t named = 0;
    if (flush->error != BK_OK)
        return flush->error;
    int left = first_log > 0 ? leave_log(store, first_log) : BK_OK;
    if (left == BK_OK)
        left = keep_name(flush, &name);
    if (left != BK_OK)
        return leave_flush(store, left);
    for (uint32_t i = 0; i < count; i++) {
        const bk_slot *slot = &slots[i];
        int result = named_log_ready(store, &name, slot->record_size, &named);
        if (result == BK_OK)
            result = bk_log_writer_add(&flush->writer, ledger_id, slot->entry_id,
                                       arena + slot->offset, slot->record_size, salt);
        if (result != BK_OK)
            return leave_flush(store, result);
        flush->bytes += slot->record_size;
    }
    flush->entries += count;
    return BK_OK;
}

/* With the store's lock held for writing. */
static int publish_pending(bk_store *store, const bk_pending *pending)
{
    bk_log *log = pending->log;
    int result = bk_store_log(store, log->id) == log ? BK_OK : bk_store_add_log(store, log);
    if (result == BK_OK)
        result = bk_directory_add(&store->directory, log, pending->rows, pending->count);
    log->open = !pending->closed;
    log->size = pending->size;
    log->index_size = pending->index_size;
    return result;
}

static int publish(bk_store *store)
{
    const bk_flush *flush = &store->flush;
    int result = BK_OK;
    pthread_rwlock_wrlock(&store->lock);
    for (uint32_t i = 0; i < flush->pending_count && result == BK_OK; i++)
        result = publish_pending(store, &flush->pending[i]);
    for (uint32_t i = 0; i < flush->name_count; i++)
        bk_store_name(store, &flush->names[i]);
    pthread_rwlock_unlock(&store->lock);
    return result;
}

static void fill_mark(bk_store *store, bk_mark *mark)
{
    const bk_flush *flush = &store->flush;
    const bk_log_writer *w = &flush->writer;
    int is_open = flush->log != NULL;
    mark->log_id = is_open ? flush->log->id : 0;
    mark->log_end = is_open ? w->log_end : 0;
    mark->index_end = is_open ? w->index_end : 0;
    pthread_rwlock_rdlock(&store->lock);
    mark->next_log_id = store->next_log_id;
    pthread_rwlock_unlock(&store->lock);
}

int bk_store_flush_commit(bk_store *store, bk_mark *mark)
{
    bk_flush *flush = &store->flush;
    if (flush->error != BK_OK)
        return flush->error;
    int result = flush->log != NULL ? settle_log(store) : BK_OK;
    if (result == BK_OK)
        result = publish(store);
    if (result == BK_OK) {
        fill_mark(store, mark);
        bk_count(&store->flushes, 1);
        bk_count(&store->flushed_entries, flush->entries);
        bk_count(&store->flushed_bytes, flush->bytes);
    }
    return leave_flush(store, result);
}

int bk_store_roll(bk_store *store, bk_mark *mark)
{
    int result = enter_flush(&store->flush);
    if (result != BK_OK)
        return result;
    if (store->flush.log != NULL)
        result = close_log(store);
    if (result == BK_OK)
        result = publish(store);
    if (result == BK_OK)
        fill_mark(store, mark);
    return leave_flush(store, result);
}
