/* The engine: memtable, groups, events. See engine.h. */
#include "engine_internal.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

/* --- events and counters ---------------------------------------------------------- */

void bk_histogram_add(bk_histogram *histogram, uint64_t value, uint64_t count)
{
    uint32_t bucket = 0;
    while (bucket < BK_HISTOGRAM_BUCKETS - 1 && value >> bucket != 0)
        bucket++;
    histogram->buckets[bucket] += count;
    histogram->count += count;
}

void bk_histogram_add_ns(bk_histogram *histogram, uint64_t ns, uint64_t count)
{
    bk_histogram_add(histogram, ns / 1000, count);
    histogram->sum_ns += ns * count;
}

void bk_engine_raise(bk_engine *engine, uint32_t events)
{
    uint32_t before = engine->events.raised;
    engine->events.raised |= events;
    if (before == 0 && engine->options.event_fd >= 0)
        (void)eventfd_write(engine->options.event_fd, 1);
}

uint32_t bk_engine_poll(bk_engine *engine, int32_t *error)
{
    pthread_mutex_lock(&engine->lock);
    uint32_t events = engine->events.raised;
    engine->events.raised = 0;
    *error = engine->events.failed;
    if (engine->events.failed != 0)
        events |= BK_EVENT_FAILED;
    pthread_mutex_unlock(&engine->lock);
    return events;
}

int bk_engine_raise_ready(bk_engine *engine, bk_connection *connection)
{
    if (connection->in_ready)
        return 0;
    bk_events *events = &engine->events;
    uint64_t *ready = bk_array_grow(events->ready, &events->ready_room, events->ready_count + 1,
                                    sizeof *ready);
    if (ready == NULL)
        return -ENOMEM;
    events->ready = ready;
    events->ready[events->ready_count++] = connection->token;
    connection->in_ready = 1;
    bk_engine_raise(engine, BK_EVENT_READY);
    return 0;
}

uint32_t bk_engine_take_ready(bk_engine *engine, uint64_t *out, uint32_t out_count)
{
    pthread_mutex_lock(&engine->lock);
    size_t n = engine->events.ready_count < out_count ? engine->events.ready_count : out_count;
    for (size_t i = 0; i < n; i++)
        out[i] = engine->events.ready[--engine->events.ready_count];
    pthread_mutex_unlock(&engine->lock);
    return (uint32_t)n;
}

void bk_engine_wake(bk_engine *engine, bk_ledger *ledger)
{
    if (!ledger->watched)
        return;
    bk_events *events = &engine->events;
    int64_t *woken = bk_array_grow(events->woken, &events->woken_room, events->woken_count + 1,
                                   sizeof *woken);
    if (woken == NULL)
        return; /* the waiter's deadline still ends its wait */
    events->woken = woken;
    ledger->watched = 0;
    events->woken[events->woken_count++] = ledger->id;
    bk_engine_raise(engine, BK_EVENT_WOKEN);
}

uint32_t bk_engine_take_woken(bk_engine *engine, int64_t *out, uint32_t out_count)
{
    pthread_mutex_lock(&engine->lock);
    size_t n = engine->events.woken_count < out_count ? engine->events.woken_count : out_count;
    for (size_t i = 0; i < n; i++)
        out[i] = engine->events.woken[--engine->events.woken_count];
    pthread_mutex_unlock(&engine->lock);
    return (uint32_t)n;
}

int bk_engine_watch(bk_engine *engine, int64_t ledger_id, int64_t known_lac)
{
    pthread_mutex_lock(&engine->lock);
    int result = BK_OK;
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    if (ledger == NULL) {
        result = BK_NO_LEDGER;
    } else if (ledger->fenced || ledger->deleted || ledger->lac > known_lac) {
        result = BK_END;
    } else {
        if (!ledger->watched || known_lac < ledger->watch_lac)
            ledger->watch_lac = known_lac;
        ledger->watched = 1;
    }
    pthread_mutex_unlock(&engine->lock);
    return result;
}

void bk_engine_notify(bk_engine *engine, uint64_t ticket)
{
    pthread_mutex_lock(&engine->lock);
    if (ticket <= engine->groups.synced)
        bk_engine_raise(engine, BK_EVENT_SYNCED);
    else if (engine->events.notify_ticket == 0 || ticket < engine->events.notify_ticket)
        engine->events.notify_ticket = ticket;
    pthread_mutex_unlock(&engine->lock);
}

uint64_t bk_engine_get_synced(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    uint64_t synced = engine->groups.synced;
    pthread_mutex_unlock(&engine->lock);
    return synced;
}

uint64_t bk_engine_get_gathered(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    uint64_t ticket = engine->groups.gathering ? engine->groups.ticket : engine->groups.ticket - 1;
    pthread_mutex_unlock(&engine->lock);
    return ticket;
}

/* --- groups ------------------------------------------------------------------------- */

static void write_group_header(bk_engine *engine, uint8_t *at, uint64_t size)
{
    uint8_t body[BK_GROUP_HEADER_SIZE - BK_RECORD_HEADER_SIZE];
    bk_put64be(body, UINT64_MAX);
    bk_put64be(body + 8, (uint64_t)(int64_t)BK_RECORD_GROUP);
    bk_put64le(body + 16, engine->groups.plan_file);
    bk_put64le(body + 24, engine->groups.plan_offset);
    bk_put64le(body + 32, engine->groups.plan_number);
    bk_put64le(body + 40, size);
    bk_record_write(at, bk_salt(engine->groups.plan_file), body, sizeof body);
}

/* Finish the group that gathers: header, padding, its place in the journal. */
int bk_engine_close_group(bk_engine *engine)
{
    bk_half *half = &engine->memtable.halves[engine->memtable.active];
    uint64_t size = half->used - engine->groups.start;
    uint64_t padded = bk_align_up(size, BK_BLOCK_SIZE);
    bk_groups *groups = &engine->groups;
    bk_group *queue = bk_array_grow(groups->queue, &groups->queue_room, groups->queue_count + 1,
                                    sizeof *queue);
    if (queue == NULL)
        return -ENOMEM;
    groups->queue = queue;
    memset(half->arena + half->used, 0, padded - size);
    write_group_header(engine, half->arena + groups->start, size);
    groups->queue[groups->queue_count++] = (bk_group){
        .data = half->arena + groups->start,
        .size = padded,
        .file_id = groups->plan_file,
        .offset = groups->plan_offset,
        .ticket = groups->ticket,
        .entries = groups->entries,
        .begun_ns = groups->begun_ns,
    };
    half->used = groups->start + padded;
    half->last_ticket = groups->ticket;
    groups->plan_offset += padded;
    groups->plan_number++;
    groups->end_file = groups->plan_file;
    groups->end_offset = groups->plan_offset;
    groups->ticket++;
    groups->gathering = 0;
    return 0;
}

static void begin_group(bk_engine *engine)
{
    bk_half *half = &engine->memtable.halves[engine->memtable.active];
    engine->groups.start = bk_align_up(half->used, BK_BLOCK_SIZE);
    memset(half->arena + half->used, 0, engine->groups.start - half->used);
    half->used = engine->groups.start + BK_GROUP_HEADER_SIZE;
    engine->groups.entries = 0;
    engine->groups.begun_ns = bk_io_now_ns();
    engine->groups.gathering = 1;
}

void bk_engine_activate(bk_engine *engine, int which)
{
    bk_half *half = &engine->memtable.halves[which];
    if (engine->groups.plan_offset >= engine->options.journal_size_max) {
        engine->groups.plan_file++;
        engine->groups.plan_offset = BK_BLOCK_SIZE;
        engine->groups.plan_number = 0;
    }
    half->state = BK_HALF_ACTIVE;
    half->used = 0;
    half->entries = 0;
    half->last_ticket = 0;
    half->file_id = engine->groups.plan_file;
    half->salt = bk_salt(engine->groups.plan_file);
    engine->memtable.active = which;
}

int bk_engine_swap(bk_engine *engine)
{
    bk_half *half = &engine->memtable.halves[engine->memtable.active];
    int other = 1 - engine->memtable.active;
    if (engine->memtable.halves[other].state != BK_HALF_FREE)
        return BK_FULL;
    if (engine->groups.gathering) {
        int result = bk_engine_close_group(engine);
        if (result != 0)
            return result;
    }
    half->state = BK_HALF_SEALED;
    half->mark_file = engine->groups.end_file;
    half->mark_offset = engine->groups.end_offset;
    bk_engine_activate(engine, other);
    bk_engine_raise(engine, BK_EVENT_FLUSH);
    pthread_cond_signal(&engine->work);
    return 0;
}

int bk_engine_reserve(bk_engine *engine, uint32_t record_size)
{
    if (engine->groups.gathering) {
        bk_half *half = &engine->memtable.halves[engine->memtable.active];
        uint64_t end = half->used + record_size;
        if (end - engine->groups.start <= BK_GROUP_SIZE_MAX &&
            bk_align_up(end, BK_BLOCK_SIZE) <= engine->memtable.half_size)
            return 0;
        int result = bk_engine_close_group(engine);
        if (result != 0)
            return result;
    }
    for (int tries = 0; tries < 2; tries++) {
        bk_half *half = &engine->memtable.halves[engine->memtable.active];
        uint64_t end = bk_align_up(half->used, BK_BLOCK_SIZE) + BK_GROUP_HEADER_SIZE + record_size;
        if (bk_align_up(end, BK_BLOCK_SIZE) <= engine->memtable.half_size) {
            begin_group(engine);
            return 0;
        }
        if (half->used == 0)
            return -EMSGSIZE;
        int result = bk_engine_swap(engine);
        if (result != 0) {
            engine->stats.fulls += result == BK_FULL;
            return result;
        }
    }
    return -EMSGSIZE;
}

uint8_t *bk_engine_append(bk_engine *engine, uint32_t record_size, uint64_t *offset)
{
    bk_half *half = &engine->memtable.halves[engine->memtable.active];
    *offset = half->used;
    half->used += record_size;
    engine->groups.unsynced_bytes += record_size;
    return half->arena + *offset;
}

int bk_engine_append_special(bk_engine *engine, int64_t ledger_id, int64_t kind, const void *rest,
                             uint32_t rest_size)
{
    uint64_t offset;
    uint32_t size = BK_RECORD_HEADER_SIZE + 16 + rest_size;
    int result = bk_engine_reserve(engine, size);
    if (result != 0)
        return result;
    uint8_t *at = bk_engine_append(engine, size, &offset);
    uint32_t salt = engine->memtable.halves[engine->memtable.active].salt;
    bk_special_write(at, salt, ledger_id, kind, rest, rest_size);
    return 0;
}

int bk_engine_mark_dirty(bk_engine *engine, bk_ledger *ledger)
{
    if (ledger->dirty)
        return 0;
    bk_flushing *flush = &engine->flush;
    bk_ledger **dirty = bk_array_grow(flush->dirty, &flush->dirty_room, flush->dirty_count + 1,
                                      sizeof(bk_ledger *));
    if (dirty == NULL)
        return -ENOMEM;
    flush->dirty = dirty;
    flush->dirty[flush->dirty_count++] = ledger;
    ledger->dirty = 1;
    return 0;
}

int bk_engine_put(bk_engine *engine, bk_ledger *ledger, int64_t entry_id, uint64_t offset,
                  uint32_t record_size)
{
    bk_half *half = &engine->memtable.halves[engine->memtable.active];
    bk_runs *runs = &ledger->halves[engine->memtable.active];
    if (runs->count == 0) {
        bk_ledger **ledgers = bk_array_grow(half->ledgers, &half->ledger_room,
                                            half->ledger_count + 1, sizeof(bk_ledger *));
        if (ledgers == NULL)
            return -ENOMEM;
        half->ledgers = ledgers;
    }
    int first = runs->count == 0;
    int result = bk_runs_add(runs, (bk_slot){entry_id, (uint32_t)offset, record_size});
    if (result != 0)
        return result;
    if (first)
        half->ledgers[half->ledger_count++] = ledger;
    half->entries++;
    if (entry_id > ledger->last_entry)
        ledger->last_entry = entry_id;
    return 0;
}

const uint8_t *bk_engine_find(bk_engine *engine, const bk_ledger *ledger, int64_t entry_id,
                              uint32_t *record_size)
{
    for (int i = 0; i < 2; i++) {
        int which = i == 0 ? engine->memtable.active : 1 - engine->memtable.active;
        const bk_slot *slot = bk_runs_find(&ledger->halves[which], entry_id);
        if (slot != NULL) {
            *record_size = slot->record_size;
            return engine->memtable.halves[which].arena + slot->offset;
        }
    }
    return NULL;
}

/* --- settings, memory, counters -------------------------------------------------------------- */

void bk_engine_set_limbo(bk_engine *engine, int32_t limbo)
{
    pthread_mutex_lock(&engine->lock);
    engine->mode.limbo = limbo;
    pthread_mutex_unlock(&engine->lock);
}

void bk_engine_set_guarded(bk_engine *engine, int32_t guarded)
{
    pthread_mutex_lock(&engine->lock);
    engine->mode.guarded = guarded;
    pthread_mutex_unlock(&engine->lock);
}

void bk_engine_set_read_only(bk_engine *engine, int32_t read_only, int32_t priority_allowed)
{
    pthread_mutex_lock(&engine->lock);
    engine->mode.read_only = read_only;
    engine->mode.priority_allowed = priority_allowed;
    pthread_mutex_unlock(&engine->lock);
}

void bk_engine_release_memory(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    for (int i = 0; i < 2; i++) {
        bk_half *half = &engine->memtable.halves[i];
        if (half->state == BK_HALF_FREE || (half->state == BK_HALF_ACTIVE && half->used == 0))
            madvise(half->arena, engine->memtable.half_size, MADV_DONTNEED);
    }
    pthread_mutex_unlock(&engine->lock);
}

void bk_engine_get_stats(bk_engine *engine, bk_engine_stats *out)
{
    pthread_mutex_lock(&engine->lock);
    *out = engine->stats;
    out->journal_bytes = bk_journal_bytes(engine->journal);
    out->journal_id = engine->groups.plan_file;
    out->journal_offset = engine->groups.plan_offset;
    out->unsynced_bytes = engine->groups.unsynced_bytes;
    out->ledgers = engine->ledgers.count;
    for (int i = 0; i < 2; i++) {
        if (engine->memtable.halves[i].state != BK_HALF_FREE) {
            out->memtable_bytes += engine->memtable.halves[i].used;
            out->memtable_entries += engine->memtable.halves[i].entries;
        }
    }
    pthread_mutex_unlock(&engine->lock);
}
