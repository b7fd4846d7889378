/* The engine: memtable, journal thread, events. See engine.h. */
#include "engine_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- events and counters ---------------------------------------------------------- */

static void histogram_add(bk_histogram *histogram, uint64_t value, uint64_t count)
{
    uint32_t bucket = 0;
    while (bucket < BK_HISTOGRAM_BUCKETS - 1 && value >> bucket != 0)
        bucket++;
    histogram->buckets[bucket] += count;
    histogram->count += count;
}

void bk_histogram_add_ns(bk_histogram *histogram, uint64_t ns, uint64_t count)
{
    histogram_add(histogram, ns / 1000, count);
    histogram->sum_ns += ns * count;
}

void bk_engine_raise(bk_engine *engine, uint32_t events)
{
    uint32_t before = engine->events;
    engine->events |= events;
    if (before == 0 && engine->options.event_fd >= 0)
        (void)eventfd_write(engine->options.event_fd, 1);
}

uint32_t bk_engine_poll(bk_engine *engine, int32_t *error)
{
    pthread_mutex_lock(&engine->lock);
    uint32_t events = engine->events;
    engine->events = 0;
    *error = engine->failed;
    if (engine->failed != 0)
        events |= BK_EVENT_FAILED;
    pthread_mutex_unlock(&engine->lock);
    return events;
}

static int room_for_one(void **items, size_t *room, size_t count, size_t size)
{
    if (count < *room)
        return 0;
    size_t more = *room ? *room * 2 : 16;
    void *grown = realloc(*items, more * size);
    if (grown == NULL)
        return -ENOMEM;
    *items = grown;
    *room = more;
    return 0;
}

int bk_engine_tell_ready(bk_engine *engine, bk_connection *connection)
{
    if (connection->in_ready)
        return 0;
    int result = room_for_one((void **)&engine->ready, &engine->ready_room, engine->ready_count,
                              sizeof *engine->ready);
    if (result != 0)
        return result;
    engine->ready[engine->ready_count++] = connection->token;
    connection->in_ready = 1;
    bk_engine_raise(engine, BK_EVENT_READY);
    return 0;
}

uint32_t bk_engine_ready(bk_engine *engine, uint64_t *out, uint32_t out_count)
{
    pthread_mutex_lock(&engine->lock);
    size_t n = engine->ready_count < out_count ? engine->ready_count : out_count;
    for (size_t i = 0; i < n; i++)
        out[i] = engine->ready[--engine->ready_count];
    pthread_mutex_unlock(&engine->lock);
    return (uint32_t)n;
}

void bk_engine_wake(bk_engine *engine, bk_ledger *ledger)
{
    if (!ledger->watched)
        return;
    if (room_for_one((void **)&engine->woken, &engine->woken_room, engine->woken_count,
                     sizeof *engine->woken) != 0)
        return; /* the waiter's deadline still ends its wait */
    ledger->watched = 0;
    engine->woken[engine->woken_count++] = ledger->id;
    bk_engine_raise(engine, BK_EVENT_WOKEN);
}

uint32_t bk_engine_woken(bk_engine *engine, int64_t *out, uint32_t out_count)
{
    pthread_mutex_lock(&engine->lock);
    size_t n = engine->woken_count < out_count ? engine->woken_count : out_count;
    for (size_t i = 0; i < n; i++)
        out[i] = engine->woken[--engine->woken_count];
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
    if (ticket <= engine->synced)
        bk_engine_raise(engine, BK_EVENT_SYNCED);
    else if (engine->notify_ticket == 0 || ticket < engine->notify_ticket)
        engine->notify_ticket = ticket;
    pthread_mutex_unlock(&engine->lock);
}

uint64_t bk_engine_synced(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    uint64_t synced = engine->synced;
    pthread_mutex_unlock(&engine->lock);
    return synced;
}

uint64_t bk_engine_gathered(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    uint64_t ticket = engine->gathering ? engine->ticket : engine->ticket - 1;
    pthread_mutex_unlock(&engine->lock);
    return ticket;
}

/* --- groups ------------------------------------------------------------------------- */

static void write_group_header(bk_engine *engine, uint8_t *at, uint64_t size)
{
    uint8_t body[BK_GROUP_HEADER_SIZE - BK_RECORD_HEADER_SIZE];
    bk_put64be(body, UINT64_MAX);
    bk_put64be(body + 8, (uint64_t)(int64_t)BK_RECORD_GROUP);
    bk_put64le(body + 16, engine->plan_file);
    bk_put64le(body + 24, engine->plan_offset);
    bk_put64le(body + 32, engine->plan_number);
    bk_put64le(body + 40, size);
    bk_record_write(at, bk_salt(engine->plan_file), body, sizeof body);
}

/* Finish the group that gathers: header, padding, its place in the journal. */
static int close_group(bk_engine *engine)
{
    bk_half *half = &engine->halves[engine->active];
    uint64_t size = half->used - engine->group_start;
    uint64_t padded = bk_align_up(size, BK_BLOCK_SIZE);
    int result = room_for_one((void **)&engine->queue, &engine->queue_room, engine->queue_count,
                              sizeof *engine->queue);
    if (result != 0)
        return result;
    memset(half->arena + half->used, 0, padded - size);
    write_group_header(engine, half->arena + engine->group_start, size);
    engine->queue[engine->queue_count++] =
        (bk_group){half->arena + engine->group_start, padded,        engine->plan_file,
                   engine->plan_offset,               engine->ticket, engine->group_entries,
                   engine->group_ns};
    half->used = engine->group_start + padded;
    half->last_ticket = engine->ticket;
    engine->plan_offset += padded;
    engine->plan_number++;
    engine->end_file = engine->plan_file;
    engine->end_offset = engine->plan_offset;
    engine->ticket++;
    engine->gathering = 0;
    return 0;
}

static void begin_group(bk_engine *engine)
{
    bk_half *half = &engine->halves[engine->active];
    engine->group_start = bk_align_up(half->used, BK_BLOCK_SIZE);
    memset(half->arena + half->used, 0, engine->group_start - half->used);
    half->used = engine->group_start + BK_GROUP_HEADER_SIZE;
    engine->group_entries = 0;
    engine->group_ns = bk_io_now_ns();
    engine->gathering = 1;
}

void bk_engine_activate(bk_engine *engine, int which)
{
    bk_half *half = &engine->halves[which];
    if (engine->plan_offset >= engine->options.journal_size_max) {
        engine->plan_file++;
        engine->plan_offset = BK_BLOCK_SIZE;
        engine->plan_number = 0;
    }
    half->state = BK_HALF_ACTIVE;
    half->used = 0;
    half->entries = 0;
    half->last_ticket = 0;
    half->file_id = engine->plan_file;
    half->salt = bk_salt(engine->plan_file);
    engine->active = which;
}

int bk_engine_swap(bk_engine *engine)
{
    bk_half *half = &engine->halves[engine->active];
    int other = 1 - engine->active;
    if (engine->halves[other].state != BK_HALF_FREE)
        return BK_FULL;
    if (engine->gathering) {
        int result = close_group(engine);
        if (result != 0)
            return result;
    }
    half->state = BK_HALF_SEALED;
    half->mark_file = engine->end_file;
    half->mark_offset = engine->end_offset;
    bk_engine_activate(engine, other);
    bk_engine_raise(engine, BK_EVENT_FLUSH);
    pthread_cond_signal(&engine->work);
    return 0;
}

int bk_engine_room(bk_engine *engine, uint32_t record_size)
{
    if (engine->gathering) {
        bk_half *half = &engine->halves[engine->active];
        uint64_t end = half->used + record_size;
        if (end - engine->group_start <= BK_GROUP_SIZE_MAX &&
            bk_align_up(end, BK_BLOCK_SIZE) <= engine->half_size)
            return 0;
        int result = close_group(engine);
        if (result != 0)
            return result;
    }
    for (int tries = 0; tries < 2; tries++) {
        bk_half *half = &engine->halves[engine->active];
        uint64_t end = bk_align_up(half->used, BK_BLOCK_SIZE) + BK_GROUP_HEADER_SIZE + record_size;
        if (bk_align_up(end, BK_BLOCK_SIZE) <= engine->half_size) {
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
    bk_half *half = &engine->halves[engine->active];
    *offset = half->used;
    half->used += record_size;
    engine->unsynced_bytes += record_size;
    return half->arena + *offset;
}

int bk_engine_append_special(bk_engine *engine, int64_t ledger_id, int64_t kind, const void *rest,
                             uint32_t rest_size)
{
    uint64_t offset;
    uint32_t size = BK_RECORD_HEADER_SIZE + 16 + rest_size;
    int result = bk_engine_room(engine, size);
    if (result != 0)
        return result;
    uint8_t *at = bk_engine_append(engine, size, &offset);
    bk_special_write(at, engine->halves[engine->active].salt, ledger_id, kind, rest, rest_size);
    return 0;
}

int bk_engine_dirty(bk_engine *engine, bk_ledger *ledger)
{
    if (ledger->dirty)
        return 0;
    int result = room_for_one((void **)&engine->dirty, &engine->dirty_room, engine->dirty_count,
                              sizeof(bk_ledger *));
    if (result != 0)
        return result;
    engine->dirty[engine->dirty_count++] = ledger;
    ledger->dirty = 1;
    return 0;
}

int bk_engine_put(bk_engine *engine, bk_ledger *ledger, int64_t entry_id, uint64_t offset,
                  uint32_t record_size)
{
    bk_half *half = &engine->halves[engine->active];
    bk_runs *runs = &ledger->halves[engine->active];
    if (runs->count == 0) {
        int result = room_for_one((void **)&half->ledgers, &half->ledger_room, half->ledger_count,
                                  sizeof(bk_ledger *));
        if (result != 0)
            return result;
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
        int which = i == 0 ? engine->active : 1 - engine->active;
        const bk_slot *slot = bk_runs_find(&ledger->halves[which], entry_id);
        if (slot != NULL) {
            *record_size = slot->record_size;
            return engine->halves[which].arena + slot->offset;
        }
    }
    return NULL;
}

/* --- the journal ------------------------------------------------------------------------ */

static void publish(bk_engine *engine, const bk_group *group, uint64_t sync_ns)
{
    uint64_t now = bk_io_now_ns();
    engine->synced = group->ticket;
    engine->stats.groups++;
    engine->stats.group_bytes += group->size;
    engine->stats.group_entries += group->entries;
    bk_histogram_add_ns(&engine->stats.sync, sync_ns, 1);
    bk_histogram_add_ns(&engine->stats.queue, now - sync_ns - group->begun_ns, 1);
    histogram_add(&engine->stats.group_size, group->entries, 1);
    engine->stats.group_size.sum_ns += group->entries;
    for (bk_connection *c = engine->waiting, *next; c != NULL; c = next) {
        next = c->next;
        bk_connection_publish(c, engine->synced, now);
    }
    if (engine->queue_count == 0 && !engine->gathering)
        engine->unsynced_bytes = 0;
    else if (engine->unsynced_bytes > group->size)
        engine->unsynced_bytes -= group->size;
    if (engine->notify_ticket != 0 && engine->notify_ticket <= engine->synced) {
        engine->notify_ticket = 0;
        bk_engine_raise(engine, BK_EVENT_SYNCED);
    }
    pthread_cond_broadcast(&engine->synced_more);
}

/* Nothing is acknowledged from now on. */
static int fail(bk_engine *engine, int result)
{
    engine->failed = -result;
    bk_engine_raise(engine, BK_EVENT_FAILED);
    pthread_cond_broadcast(&engine->synced_more);
    return result;
}

/* With the lock held: write the oldest group, publish it. */
static int commit_one(bk_engine *engine)
{
    if (engine->failed != 0)
        return -engine->failed;
    if (engine->queue_count == 0) {
        int result = engine->gathering ? close_group(engine) : BK_END;
        if (result != 0)
            return result < 0 ? fail(engine, result) : result;
    }
    bk_group group = engine->queue[0];
    pthread_mutex_unlock(&engine->lock);
    uint64_t begun = bk_io_now_ns();
    int result = bk_journal_write(engine->journal, group.file_id, group.offset, group.data,
                                  group.size);
    uint64_t took = bk_io_now_ns() - begun;
    pthread_mutex_lock(&engine->lock);
    if (result != 0)
        return fail(engine, result);
    engine->queue_count--;
    memmove(engine->queue, engine->queue + 1, engine->queue_count * sizeof *engine->queue);
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

static void *journal_thread(void *argument)
{
    bk_engine *engine = argument;
    int prepared = 0;
    pthread_mutex_lock(&engine->lock);
    while (!engine->stop) {
        if (engine->queue_count > 0 || engine->gathering) {
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

/* --- opening and closing ------------------------------------------------------------------ */

_Static_assert(BK_MEMTABLE_SIZE_MIN >= BK_GROUP_HEADER_SIZE + BK_RECORD_HEADER_SIZE +
                                           BK_RECORD_SIZE_MAX &&
                   BK_MEMTABLE_SIZE_MIN % BK_BLOCK_SIZE == 0,
               "a half takes any record");

static int allocate(bk_engine *engine)
{
    engine->half_size = bk_align_up(engine->options.memtable_size, BK_BLOCK_SIZE);
    /* Slots hold offsets of 32 bits; the largest record and its group must fit. */
    if (engine->half_size > UINT32_MAX || engine->half_size < BK_MEMTABLE_SIZE_MIN)
        return -EINVAL;
    for (int i = 0; i < 2; i++) {
        /* Untouched pages cost nothing, and release_memory gives touched ones back. */
        void *arena = mmap(NULL, engine->half_size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED)
            return -errno;
        engine->halves[i].arena = arena;
        engine->halves[i].state = BK_HALF_FREE;
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
        result = -pthread_create(&engine->thread, NULL, journal_thread, engine);
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
    engine->table_fd = -1;
    engine->ticket = 1;
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
    if (engine->table_fd >= 0)
        close(engine->table_fd);
    for (int i = 0; i < 2; i++) {
        if (engine->halves[i].arena != NULL)
            munmap(engine->halves[i].arena, engine->half_size);
        free(engine->halves[i].ledgers);
    }
    bk_ledgers_free(&engine->ledgers);
    free(engine->dirty);
    free(engine->queue);
    free(engine->ready);
    free(engine->woken);
    pthread_mutex_destroy(&engine->lock);
    pthread_cond_destroy(&engine->work);
    pthread_cond_destroy(&engine->synced_more);
    free(engine);
}

bk_store *bk_engine_store(bk_engine *engine) { return engine->store; }

/* --- settings, memory, counters -------------------------------------------------------------- */

void bk_engine_set_limbo(bk_engine *engine, int32_t limbo)
{
    pthread_mutex_lock(&engine->lock);
    engine->limbo = limbo;
    pthread_mutex_unlock(&engine->lock);
}

void bk_engine_set_read_only(bk_engine *engine, int32_t read_only, int32_t priority_allowed)
{
    pthread_mutex_lock(&engine->lock);
    engine->read_only = read_only;
    engine->priority_allowed = priority_allowed;
    pthread_mutex_unlock(&engine->lock);
}

void bk_engine_release_memory(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    for (int i = 0; i < 2; i++) {
        bk_half *half = &engine->halves[i];
        if (half->state == BK_HALF_FREE || (half->state == BK_HALF_ACTIVE && half->used == 0))
            madvise(half->arena, engine->half_size, MADV_DONTNEED);
    }
    pthread_mutex_unlock(&engine->lock);
}

void bk_engine_get_stats(bk_engine *engine, bk_engine_stats *out)
{
    pthread_mutex_lock(&engine->lock);
    *out = engine->stats;
    out->journal_bytes = bk_journal_bytes(engine->journal);
    out->journal_id = engine->plan_file;
    out->journal_offset = engine->plan_offset;
    out->unsynced_bytes = engine->unsynced_bytes;
    out->ledgers = engine->ledgers.count;
    for (int i = 0; i < 2; i++) {
        if (engine->halves[i].state != BK_HALF_FREE) {
            out->memtable_bytes += engine->halves[i].used;
            out->memtable_entries += engine->halves[i].entries;
        }
    }
    pthread_mutex_unlock(&engine->lock);
}
