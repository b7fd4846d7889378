/* Group commit: one group to the journal, what it makes durable to the connections. See engine.h. */
#include "engine_internal.h"

#include <errno.h>

static void publish(bk_engine *engine, const bk_group *group, uint64_t sync_ns)
{
    uint64_t now = bk_io_now_ns();
    engine->groups.synced = group->ticket;
    engine->stats.groups++;
    engine->stats.group_bytes += group->size;
    engine->stats.group_entries += group->entries;
    bk_histogram_add_ns(&engine->stats.sync, sync_ns, 1);
    bk_histogram_add_ns(&engine->stats.queue, now - sync_ns - group->begun_ns, 1);
    bk_histogram_add(&engine->stats.group_size, group->entries, 1);
    engine->stats.group_size.sum_ns += group->entries;
    for (bk_connection *c = engine->events.waiting, *next; c != NULL; c = next) {
        next = c->next;
        bk_connection_publish(c, engine->groups.synced, now);
    }
    if (engine->groups.queue_count == 0 && !engine->groups.gathering)
        engine->groups.unsynced_bytes = 0;
    else if (engine->groups.unsynced_bytes > group->size)
        engine->groups.unsynced_bytes -= group->size;
    if (engine->events.notify_ticket != 0 && engine->events.notify_ticket <= engine->groups.synced) {
        engine->events.notify_ticket = 0;
        bk_engine_raise(engine, BK_EVENT_SYNCED);
    }
    pthread_cond_broadcast(&engine->synced_more);
}

/* Nothing is acknowledged from now on. */
static int fail(bk_engine *engine, int result)
{
    engine->events.failed = -result;
    bk_engine_raise(engine, BK_EVENT_FAILED);
    pthread_cond_broadcast(&engine->synced_more);
    return result;
}

/* With the lock held: write the oldest group, publish it. One thread at a time. */
static int commit_one(bk_engine *engine)
{
    while (engine->groups.writing)
        pthread_cond_wait(&engine->synced_more, &engine->lock);
    if (engine->events.failed != 0)
        return -engine->events.failed;
    if (engine->groups.queue_count == 0) {
        int result = engine->groups.gathering ? bk_engine_close_group(engine) : BK_END;
        if (result != 0)
            return result < 0 ? fail(engine, result) : result;
    }
    bk_group group = engine->groups.queue[0];
    engine->groups.writing = 1;
    pthread_mutex_unlock(&engine->lock);
    uint64_t begun = bk_io_now_ns();
    int result = bk_journal_write(engine->journal, group.file_id, group.offset, group.data,
                                  group.size);
    uint64_t took = bk_io_now_ns() - begun;
    pthread_mutex_lock(&engine->lock);
    engine->groups.writing = 0;
    if (result != 0)
        return fail(engine, result);
    engine->groups.queue_count--;
    memmove(engine->groups.queue, engine->groups.queue + 1, engine->groups.queue_count * sizeof *engine->groups.queue);
    publish(engine, &group, took);
    return BK_OK;
}

int bk_engine_commit(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    int result = commit_one(engine);
    pthread_mutex_unlock(&engine->lock);
    return result;
}

void *bk_engine_run(void *argument)
{
    bk_engine *engine = argument;
    int prepared = 0;
    pthread_mutex_lock(&engine->lock);
    while (!engine->stop) {
        if (engine->groups.queue_count > 0 || engine->groups.gathering) {
            if (commit_one(engine) < 0)
                break;
            prepared = 0;
        } else if (!prepared) {
            engine->preparing = 1;
            pthread_mutex_unlock(&engine->lock);
            prepared = bk_journal_prepare(engine->journal) == BK_END;
            pthread_mutex_lock(&engine->lock);
            engine->preparing = 0;
        } else {
            pthread_cond_wait(&engine->work, &engine->lock);
        }
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}
