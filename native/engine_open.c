/* The engine opens, by replay, and closes. See engine.h. */
#include "engine_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(BK_MEMTABLE_SIZE_MIN >= BK_GROUP_HEADER_SIZE + BK_RECORD_HEADER_SIZE +
                                           BK_RECORD_SIZE_MAX &&
                   BK_MEMTABLE_SIZE_MIN % BK_BLOCK_SIZE == 0,
               "a half takes any record");

static int allocate(bk_engine *engine)
{
    engine->memtable.half_size = bk_align_up(engine->options.memtable_size, BK_BLOCK_SIZE);
    /* Slots hold offsets of 32 bits; the largest record and its group must fit. */
    if (engine->memtable.half_size > UINT32_MAX || engine->memtable.half_size < BK_MEMTABLE_SIZE_MIN)
        return -EINVAL;
    for (int i = 0; i < 2; i++) {
        /* Untouched pages cost nothing, and release_memory gives touched ones back. */
        void *arena = mmap(NULL, engine->memtable.half_size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED)
            return -errno;
        engine->memtable.halves[i].arena = arena;
        engine->memtable.halves[i].state = BK_HALF_FREE;
    }
    return bk_ledgers_init(&engine->ledgers);
}

static int copy_folder(char *out, const char *folder)
{
    if (strlen(folder) >= BK_PATH_SIZE_MAX)
        return -ENAMETOOLONG;
    strcpy(out, folder);
    return 0;
}

static int start(bk_engine *engine, const bk_mark *mark, bk_recovery *recovery)
{
    uint64_t last_id = 0, last_end = 0;
    int result = bk_engine_recover(engine, mark, recovery, &last_id, &last_end);
    if (result == 0)
        result = bk_journal_open(engine->journal_folder, last_id, last_end,
                                 engine->options.journal_size_max, engine->options.journal_spares,
                                 &engine->journal);
    if (result == 0 && engine->options.threaded) {
        result = -pthread_create(&engine->thread, NULL, bk_engine_run, engine);
        engine->has_thread = result == 0;
    }
    return result;
}

int bk_engine_open(const bk_engine_options *options, const bk_mark *mark, bk_recovery *recovery,
                   bk_engine **out)
{
    bk_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL)
        return -ENOMEM;
    memset(recovery, 0, sizeof *recovery);
    engine->options = *options;
    engine->table.fd = -1;
    engine->groups.ticket = 1;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->work, NULL);
    pthread_cond_init(&engine->synced_more, NULL);
    int result = copy_folder(engine->journal_folder, options->journal_folder);
    if (result == 0)
        result = copy_folder(engine->ledger_folder, options->ledger_folder);
    if (result == 0)
        result = allocate(engine);
    if (result == 0)
        result = start(engine, mark, recovery);
    if (result != 0) {
        bk_engine_close(engine);
        return result;
    }
    *out = engine;
    return BK_OK;
}

void bk_engine_close(bk_engine *engine)
{
    if (engine == NULL)
        return;
    if (engine->has_thread) {
        pthread_mutex_lock(&engine->lock);
        engine->stop = 1;
        pthread_cond_signal(&engine->work);
        pthread_mutex_unlock(&engine->lock);
        pthread_join(engine->thread, NULL);
    }
    bk_journal_close(engine->journal);
    if (engine->store != NULL)
        bk_store_close(engine->store);
    if (engine->table.fd >= 0)
        close(engine->table.fd);
    for (int i = 0; i < 2; i++) {
        if (engine->memtable.halves[i].arena != NULL)
            munmap(engine->memtable.halves[i].arena, engine->memtable.half_size);
        free(engine->memtable.halves[i].ledgers);
    }
    bk_ledgers_free(&engine->ledgers);
    free(engine->flush.dirty);
    free(engine->groups.queue);
    free(engine->events.ready);
    free(engine->events.woken);
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->work);
    pthread_cond_destroy(&engine->synced_more);
    free(engine);
}

bk_store *bk_engine_store(bk_engine *engine) { return engine->store; }
