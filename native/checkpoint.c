/* From the memtable to entry logs, index and ledger table. See engine.h. */
#include "engine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TABLE_REWRITE_MIN (1u << 20)
#define TABLE_BYTES_PER_LEDGER 160 /* about what a ledger's records take */

/* --- the ledger table ----------------------------------------------------------------- */

int bk_engine_open_table(bk_engine *engine)
{
    char path[BK_PATH_SIZE_MAX];
    int result = bk_table_path(engine->ledger_folder, engine->table.id, path);
    if (result != 0)
        return result;
    engine->table.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, BK_FILE_MODE);
    if (engine->table.fd < 0)
        return -errno;
    if (ftruncate(engine->table.fd, (off_t)engine->table.end) != 0)
        return -errno;
    return bk_io_sync_folder(engine->ledger_folder);
}

/* The records of the ledgers that changed, or of all when the file is to be written
 * anew. With the lock held. */
static int collect_table(bk_engine *engine, bk_bytes *bytes, int *anew)
{
    int result = 0;
    uint64_t fair = 2 * TABLE_BYTES_PER_LEDGER * (uint64_t)engine->ledgers.count;
    *anew = engine->table.end > TABLE_REWRITE_MIN && engine->table.end > fair;
    for (size_t i = 0; *anew && i < engine->ledgers.room && result == 0; i++)
        if (engine->ledgers.slots[i] != NULL)
            result = bk_table_describe(bytes, engine->ledgers.slots[i]);
    for (size_t i = 0; i < engine->flush.dirty_count && result == 0; i++) {
        if (!*anew)
            result = bk_table_describe(bytes, engine->flush.dirty[i]);
        engine->flush.dirty[i]->dirty = 0;
    }
    engine->flush.dirty_count = 0;
    return result;
}

static int write_table(bk_engine *engine, const bk_bytes *bytes, int anew)
{
    int result = 0;
    if (anew) {
        close(engine->table.fd);
        engine->table.fd = -1;
        engine->table.id++;
        engine->table.end = 0;
        result = bk_engine_open_table(engine);
        __atomic_add_fetch(&engine->table.steps, 1, __ATOMIC_RELAXED);
    }
    if (result == 0 && bytes->size > 0)
        result = bk_io_write(engine->table.fd, bytes->bytes, bytes->size, engine->table.end,
                             BK_FAULT_TABLE_WRITE);
    if (result == 0 && bytes->size > 0)
        result = bk_io_sync(engine->table.fd, BK_FAULT_TABLE_SYNC);
    __atomic_add_fetch(&engine->table.steps, 1, __ATOMIC_RELAXED);
    if (result == 0)
        engine->table.end += bytes->size;
    return result;
}

/* --- the sealed half --------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    int64_t x = (*(bk_ledger *const *)a)->id, y = (*(bk_ledger *const *)b)->id;
    return x < y ? -1 : x > y;
}

static int write_entries(bk_engine *engine, bk_half *half, int which, bk_mark *mark)
{
    int result = bk_store_flush_begin(engine->store);
    if (half->ledger_count > 0)
        qsort(half->ledgers, half->ledger_count, sizeof *half->ledgers, by_id);
    for (size_t i = 0; i < half->ledger_count && result == 0; i++) {
        bk_ledger *ledger = half->ledgers[i];
        const bk_run *run = &ledger->halves[which].runs[0];
        if (!__atomic_load_n(&ledger->deleted, __ATOMIC_RELAXED))
            result = bk_store_flush_ledger(engine->store, ledger->id,
                                           engine->replays ? 0 : ledger->incarnation,
                                           ledger->first_log, run->slots, run->count,
                                           half->arena, half->salt);
    }
    return result == 0 ? bk_store_flush_commit(engine->store, mark) : result;
}

static void give_back(bk_engine *engine, bk_half *half, int which)
{
    for (size_t i = 0; i < half->ledger_count; i++) {
        bk_ledger *ledger = half->ledgers[i];
        bk_runs_free(&ledger->halves[which]);
        /* Deleted while its entries were on their way to the log. */
        if (ledger->deleted)
            (void)bk_store_delete_ledger(engine->store, ledger->id);
    }
    half->ledger_count = 0;
    half->entries = 0;
    half->used = 0;
    half->state = BK_HALF_FREE;
    bk_engine_raise(engine, BK_EVENT_SPACE);
}

int bk_engine_write_out(bk_engine *engine, bk_half *half, bk_mark *mark)
{
    bk_bytes bytes = {NULL, 0, 0};
    int which = half == &engine->memtable.halves[1], anew = 0, result = 0;
    uint64_t begun = bk_io_now_ns();
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < half->ledger_count && result == 0; i++)
        result = bk_runs_merge(&half->ledgers[i]->halves[which]);
    if (result == 0)
        result = collect_table(engine, &bytes, &anew);
    engine->table.ticket = engine->groups.ticket - (engine->groups.gathering ? 0 : 1);
    pthread_mutex_unlock(&engine->lock);
    if (result == 0)
        result = write_entries(engine, half, which, mark);
    if (result == 0)
        result = write_table(engine, &bytes, anew);
    free(bytes.bytes);
    if (result != 0)
        return result;
    mark->journal_id = half->mark_file;
    mark->journal_offset = half->mark_offset;
    mark->table_id = engine->table.id;
    mark->table_end = engine->table.end;
    pthread_mutex_lock(&engine->lock);
    give_back(engine, half, which);
    bk_histogram_add_ns(&engine->stats.flush, bk_io_now_ns() - begun, 1);
    pthread_mutex_unlock(&engine->lock);
    return BK_OK;
}

/* Wait until all of the half is in the journal. With the lock held. */
static int wait_synced(bk_engine *engine, uint64_t ticket)
{
    while (engine->groups.synced < ticket) {
        if (engine->events.failed != 0)
            return -engine->events.failed;
        if (engine->stop)
            return -ECANCELED;
        if (engine->has_thread) {
            pthread_cond_wait(&engine->synced_more, &engine->lock);
        } else {
            pthread_mutex_unlock(&engine->lock);
            int result = bk_engine_commit(engine);
            pthread_mutex_lock(&engine->lock);
            if (result < 0)
                return result;
        }
    }
    return BK_OK;
}

int bk_engine_flush(bk_engine *engine, bk_mark *mark)
{
    bk_half *half = NULL;
    memset(mark, 0, sizeof *mark);
    pthread_mutex_lock(&engine->lock);
    for (int i = 0; i < 2; i++)
        if (engine->memtable.halves[i].state == BK_HALF_SEALED)
            half = &engine->memtable.halves[i];
    int result = engine->flush.error;
    if (result == BK_OK)
        result = half == NULL || engine->flush.under_way ? BK_END
                                                  : wait_synced(engine, half->last_ticket);
    if (result == BK_OK)
        engine->flush.under_way = 1;
    pthread_mutex_unlock(&engine->lock);
    if (result != BK_OK)
        return result;
    result = bk_engine_write_out(engine, half, mark);
    pthread_mutex_lock(&engine->lock);
    /* The table holds ledgers that began a moment ago. Were their beginning not in the journal,
     * a start from this mark would give them the entries of earlier ledgers, which are. */
    if (result == BK_OK)
        result = wait_synced(engine, engine->table.ticket);
    engine->flush.under_way = 0;
    /* What it had taken from the table's ledgers, a second try would not write. */
    engine->flush.error = result;
    pthread_mutex_unlock(&engine->lock);
    return result;
}

int bk_engine_seal(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bk_half *half = &engine->memtable.halves[engine->memtable.active];
    int idle = half->used == 0 && engine->flush.dirty_count == 0 && !engine->groups.unmarked;
    int result = idle ? BK_END : bk_engine_swap(engine);
    if (result == BK_OK)
        engine->groups.unmarked = 0;
    pthread_mutex_unlock(&engine->lock);
    return result;
}

/* --- after the mark is durable --------------------------------------------------------------- */

/* What the disk could not read may be read another time. */
static int keep_table(const char *path)
{
    char kept[BK_PATH_SIZE_MAX + 8];
    snprintf(kept, sizeof kept, "%s.unread", path);
    return rename(path, kept) == 0 ? 0 : -errno;
}

static int delete_old_tables(const char *folder, uint64_t table_id, uint64_t lost_id)
{
    uint64_t *ids;
    size_t count;
    int result = bk_journal_list(folder, "table", &ids, &count);
    for (size_t i = 0; result == 0 && i < count && ids[i] < table_id; i++) {
        char path[BK_PATH_SIZE_MAX];
        result = bk_table_path(folder, ids[i], path);
        if (result == 0 && ids[i] == lost_id)
            result = keep_table(path);
        else if (result == 0 && unlink(path) != 0)
            result = -errno;
    }
    free(ids);
    return result;
}

int bk_engine_trim(bk_engine *engine, const bk_mark *mark, uint32_t backups)
{
    bk_store_marked(engine->store, mark);
    int result = bk_journal_trim(engine->journal, mark->journal_id, backups);
    return result != 0 ? result : delete_old_tables(engine->ledger_folder, mark->table_id,
                                                     engine->table.lost_id);
}
