/* Whether the disk moves. See engine.h. */
#include "engine_internal.h"

void bk_engine_get_progress(bk_engine *engine, bk_progress *out)
{
    pthread_mutex_lock(&engine->lock);
    out->journal_work =
        engine->groups.queue_count > 0 || engine->groups.gathering || engine->preparing;
    out->flush_work = engine->memtable.halves[1 - engine->memtable.active].state == BK_HALF_SEALED;
    pthread_mutex_unlock(&engine->lock);
    out->journal_steps = bk_journal_steps(engine->journal);
    out->flush_steps = bk_store_flush_steps(engine->store) +
                       __atomic_load_n(&engine->table.steps, __ATOMIC_RELAXED);
}
