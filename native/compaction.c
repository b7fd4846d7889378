/* Compaction: the live records of a closed log, or of several, go to a log of their own.
 *
 *   extents of the logs, by ledger ─► clusters ─► records, checked ─► new log, new index
 *                       ─► room for its extents ─► switch the extents ─► delete the old logs
 *
 * A cluster is one extent, or several that overlap because an entry was stored
 * twice; of those the newest copy is kept. The new log has the old one's origin,
 * so against other logs its extents are as new as they were. Of several old ones it has the
 * greatest, and no other log's origin lies between theirs. Until its header
 * says "closed", a restart deletes it; from then on, a restart deletes the old one of its
 * origin. A crash may leave others: older copies of what the new log has.
 *
 * A restart loads whatever is left. So an old log stays in the store, without rows and with all
 * of its ledgers among its dead, until its files are gone durably: till then they are remembered. */
#include "store_internal.h"

#include <errno.h>
#include <stdlib.h>

#define SYNC_SIZE (64u << 20)  /* records after which an index block is written */

/* A record of an overlapped extent. */
typedef struct {
    int64_t entry_id;
    bk_log *log;
    uint64_t offset;
    uint32_t size;
} copy_item;

typedef struct {
    bk_name name; /* when it was listed: what the record before the copies says */
    bk_row row;
} source;

typedef struct {
    bk_store *store;
    bk_log *const *from; /* the oldest first */
    uint32_t from_count;
    bk_log *to;
    bk_log_writer writer;
    source *sources; /* by ledger, then by first entry */
    uint32_t count;
    bk_extent *rows; /* of the new log */
    uint32_t row_count;
    bk_walk walk; /* over one of from at a time */
    copy_item *items; /* of a cluster */
    size_t item_count, item_capacity;
    uint64_t copied;
    uint64_t synced; /* of copied */
} compaction;

/* --- what to copy ------------------------------------------------------------------ */

static int is_among(bk_log *const *logs, uint32_t count, const bk_log *log)
{
    for (uint32_t i = 0; i < count; i++)
        if (logs[i] == log)
            return 1;
    return 0;
}

static int add_sources(compaction *c, const bk_ledger_rows *ledger, uint32_t *room)
{
    for (uint32_t i = 0; i < ledger->count; i++) {
        if (!is_among(c->from, c->from_count, ledger->rows[i].log))
            continue;
        source *sources = bk_array_grow32(c->sources, room, c->count + 1, sizeof *sources);
        if (sources == NULL)
            return -ENOMEM;
        c->sources = sources;
        const bk_name name = {ledger->id, ledger->incarnation, ledger->first_log};
        c->sources[c->count++] = (source){name, ledger->rows[i]};
    }
    return BK_OK;
}

static int list_sources(compaction *c)
{
    const bk_directory *d = &c->store->directory;
    uint32_t capacity = 0;
    int result = BK_OK;
    pthread_rwlock_rdlock(&c->store->lock);
    for (uint32_t i = 0; i < d->count && result == BK_OK; i++)
        result = add_sources(c, &d->ledgers[i], &capacity);
    pthread_rwlock_unlock(&c->store->lock);
    return result;
}

static int is_wanted(const compaction *c, int64_t ledger_id)
{
    pthread_rwlock_rdlock(&c->store->lock);
    int wanted = bk_directory_ledger(&c->store->directory, ledger_id) != NULL;
    pthread_rwlock_unlock(&c->store->lock);
    return wanted;
}

/* --- records ----------------------------------------------------------------------- */

static int copy_record(bk_walk *walk, int64_t ledger_id, int64_t entry_id, uint64_t offset,
                       const uint8_t *record, uint32_t record_size)
{
    compaction *c = walk->context;
    (void)offset;
    c->copied += record_size;
    return bk_log_writer_add(&c->writer, ledger_id, entry_id, record, record_size, 0);
}

/* --- entries that are stored twice ------------------------------------------------- */

static int add_item(bk_walk *walk, int64_t ledger_id, int64_t entry_id, uint64_t offset,
                    const uint8_t *record, uint32_t record_size)
{
    compaction *c = walk->context;
    (void)ledger_id;
    (void)record;
    copy_item *items =
        bk_array_grow(c->items, &c->item_capacity, c->item_count + 1, sizeof *items);
    if (items == NULL)
        return -ENOMEM;
    c->items = items;
    c->items[c->item_count++] = (copy_item){entry_id, walk->log, offset, record_size};
    return BK_OK;
}

/* Of one origin are a log and a copy of it, which are both here if the copy was damaged. */
static int is_older(const bk_log *a, const bk_log *b)
{
    return a->origin != b->origin ? a->origin < b->origin : a->id < b->id;
}

/* By entry, the newest copy first. */
static int item_order(const void *a, const void *b)
{
    const copy_item *left = a, *right = b;
    if (left->entry_id != right->entry_id)
        return left->entry_id < right->entry_id ? -1 : 1;
    if (left->log != right->log)
        return is_older(right->log, left->log) ? -1 : 1;
    return (left->offset < right->offset) - (left->offset > right->offset);
}

static int item_copy(compaction *c, int64_t ledger_id, const copy_item *item)
{
    bk_walk *walk = &c->walk;
    walk->log = item->log;
    int result = bk_walk_read(walk, ledger_id, item->entry_id, item->offset, item->size);
    if (result == BK_CORRUPT)
        bk_store_note_log(c->store, item->log->id, BK_SUFFIX_LOG, item->offset, ledger_id,
                          item->entry_id);
    if (result != BK_OK)
        return result;
    return copy_record(walk, ledger_id, item->entry_id, item->offset, walk->region, item->size);
}

static int walk_extents(compaction *c, const source *cluster, uint32_t count)
{
    int result = BK_OK;
    c->walk.take = count == 1 ? copy_record : add_item;
    for (uint32_t i = 0; i < count && result == BK_OK; i++) {
        c->walk.log = cluster[i].row.log;
        result = bk_walk_extent(&c->walk, cluster[i].name.ledger_id, &cluster[i].row);
    }
    return result;
}

static int copy_cluster(compaction *c, const source *cluster, uint32_t count)
{
    c->item_count = 0;
    int result = walk_extents(c, cluster, count);
    if (result == BK_OK && c->item_count > 0)
        qsort(c->items, c->item_count, sizeof *c->items, item_order);
    for (size_t i = 0; i < c->item_count && result == BK_OK; i++)
        if (i == 0 || c->items[i].entry_id != c->items[i - 1].entry_id)
            result = item_copy(c, cluster->name.ledger_id, &c->items[i]);
    return result;
}

static uint32_t cluster_size(const compaction *c, uint32_t at)
{
    int64_t last = c->sources[at].row.last;
    uint32_t end = at + 1;
    while (end < c->count &&
           c->sources[end].name.ledger_id == c->sources[at].name.ledger_id &&
           c->sources[end].row.first <= last) {
        if (c->sources[end].row.last > last)
            last = c->sources[end].row.last;
        end++;
    }
    return end - at;
}

static int settle(compaction *c)
{
    c->synced = c->copied;
    return bk_log_writer_sync(&c->writer, &c->rows, &c->row_count);
}

/* The record before the entries of a ledger, once. *named: the ledger that has it. */
static int copy_name(compaction *c, const bk_name *name, int64_t *named)
{
    if (name->incarnation == 0 || *named == name->ledger_id)
        return BK_OK;
    *named = name->ledger_id;
    return bk_log_writer_name(&c->writer, name->ledger_id, name->incarnation, name->first_log);
}

static int copy_all(compaction *c)
{
    int64_t named = -1;
    int result = BK_OK;
    for (uint32_t at = 0, count; at < c->count && result == BK_OK; at += count) {
        count = cluster_size(c, at);
        if (!is_wanted(c, c->sources[at].name.ledger_id))
            continue;
        result = copy_name(c, &c->sources[at].name, &named);
        if (result == BK_OK)
            result = copy_cluster(c, &c->sources[at], count);
        if (result == BK_OK && c->copied - c->synced >= SYNC_SIZE)
            result = settle(c);
    }
    return result == BK_OK ? settle(c) : result;
}

/* --- the switch -------------------------------------------------------------------- */

static int has_sources(const compaction *c, const bk_ledger_rows *ledger)
{
    for (uint32_t i = 0; ledger != NULL && i < ledger->count; i++)
        if (is_among(c->from, c->from_count, ledger->rows[i].log))
            return 1;
    return 0;
}

/* Rows of the new log from the i-th on that are of one ledger. */
static uint32_t rows_of_ledger(const compaction *c, uint32_t i)
{
    uint32_t count = 1;
    while (i + count < c->row_count && c->rows[i + count].ledger_id == c->rows[i].ledger_id)
        count++;
    return count;
}

/* Room for all new rows beside the old ones: from then on, nothing can fail. */
static int reserve_rows(compaction *c)
{
    bk_directory *d = &c->store->directory;
    int result = BK_OK;
    for (uint32_t i = 0, count; i < c->row_count && result == BK_OK; i += count) {
        count = rows_of_ledger(c, i);
        bk_ledger_rows *ledger = bk_directory_ledger(d, c->rows[i].ledger_id);
        if (has_sources(c, ledger))
            result = bk_directory_reserve(d, ledger, count);
    }
    return result;
}

/* What was copied is there, or dead if its ledger was deleted meanwhile. */
static void add_rows(compaction *c)
{
    bk_directory *d = &c->store->directory;
    for (uint32_t i = 0, count; i < c->row_count; i += count) {
        count = rows_of_ledger(c, i);
        bk_ledger_rows *ledger = bk_directory_place(d, c->rows[i].ledger_id);
        if (has_sources(c, ledger))
            (void)bk_directory_add(d, c->to, c->rows + i, count);
        else if (ledger != NULL)
            bk_directory_note_dead(ledger, c->to);
    }
}

/* Also of a ledger that has nothing in the new log, since all of it was damaged and stored again. */
static void remove_rows(compaction *c)
{
    bk_directory *d = &c->store->directory;
    for (uint32_t i = 0; i < c->count; i++) {
        int64_t ledger_id = c->sources[i].name.ledger_id;
        bk_ledger_rows *ledger = bk_directory_ledger(d, ledger_id);
        if (ledger == NULL || (i > 0 && c->sources[i - 1].name.ledger_id == ledger_id))
            continue;
        for (uint32_t k = 0; k < c->from_count; k++)
            (void)bk_directory_remove(d, ledger, c->from[k]);
    }
}

static int list_copy(compaction *c)
{
    c->to->size = c->writer.log_end;
    c->to->index_size = c->writer.index_end;
    return bk_store_add_log(c->store, c->to);
}

static int publish(compaction *c)
{
    pthread_rwlock_wrlock(&c->store->lock);
    int result = reserve_rows(c);
    if (result == BK_OK)
        result = list_copy(c);
    if (result == BK_OK) {
        add_rows(c);
        remove_rows(c);
        c->store->epoch++;
    }
    pthread_rwlock_unlock(&c->store->lock);
    return result;
}

/* --- one new log -------------------------------------------------------------------- */

static int copy_begin(compaction *c)
{
    uint32_t id = bk_store_next_log_id(c->store), origin = c->from[c->from_count - 1]->origin;
    c->to = bk_log_new(id, origin);
    if (c->to == NULL)
        return -ENOMEM;
    int result = bk_walk_open(&c->walk);
    if (result == BK_OK)
        result = bk_log_writer_init(&c->writer, c->store->folder);
    return result == BK_OK ? bk_log_writer_begin(&c->writer, id, origin) : result;
}

/* A start may load what cannot be erased. So it stays in the store, as a log whose ledgers are
 * all dead. */
static void keep_dead(compaction *c)
{
    pthread_rwlock_wrlock(&c->store->lock);
    int result = list_copy(c);
    for (uint32_t i = 0; i < c->row_count && result == BK_OK; i++) {
        bk_ledger_rows *ledger = bk_directory_place(&c->store->directory, c->rows[i].ledger_id);
        if (ledger != NULL)
            bk_directory_note_dead(ledger, c->to);
    }
    pthread_rwlock_unlock(&c->store->lock);
}

static int copy_logs(compaction *c)
{
    int result = list_sources(c);
    if (result == BK_OK)
        result = copy_begin(c);
    if (result == BK_OK)
        result = copy_all(c);
    if (result == BK_OK)
        result = bk_log_writer_close(&c->writer);
    if (result == BK_OK)
        result = publish(c);
    if (result != BK_OK && c->to != NULL) {
        bk_log_writer_drop(&c->writer);
        if (bk_log_erase(c->store->folder, c->to->id) != BK_OK)
            keep_dead(c);
    }
    return result;
}

static void free_compaction(compaction *c)
{
    bk_log_writer_free(&c->writer);
    if (c->to != NULL)
        bk_log_unpin(&c->store->files, c->to);
    free(c->sources);
    free(c->rows);
    bk_walk_close(&c->walk);
    free(c->items);
}

static void mark_damaged(bk_store *store, bk_log *log)
{
    pthread_rwlock_wrlock(&store->lock);
    log->damaged = 1;
    pthread_rwlock_unlock(&store->lock);
}

/* Pin a log that is closed, also by the durable mark; *live: whether it holds anything. */
static int claim_log(bk_store *store, uint32_t log_id, bk_log **log, uint64_t *live)
{
    int result = BK_OK;
    pthread_rwlock_rdlock(&store->lock);
    *log = bk_store_log(store, log_id);
    if (*log == NULL)
        result = -ENOENT;
    else if (bk_store_is_held(store, *log))
        result = BK_FULL;
    if (result == BK_OK) {
        bk_log_pin(*log);
        *live = (*log)->live;
    }
    pthread_rwlock_unlock(&store->lock);
    return result;
}

/* Delete a log that has no rows. After a failure it is still there, to be deleted later. */
static int erase_log(bk_store *store, bk_log *log)
{
    int result = bk_log_erase(store->folder, log->id);
    if (result != BK_OK)
        return result;
    pthread_rwlock_wrlock(&store->lock);
    bk_store_remove_log(store, log);
    pthread_rwlock_unlock(&store->lock);
    return BK_OK;
}

/* Delete all that can be deleted; the first error. */
static int erase_logs(bk_store *store, bk_log *const *logs, uint32_t count)
{
    int result = BK_OK;
    for (uint32_t i = 0; i < count; i++) {
        int erased = erase_log(store, logs[i]);
        if (result == BK_OK)
            result = erased;
    }
    return result;
}

static int compact_logs(bk_store *store, bk_log *const *logs, uint32_t count, uint64_t bytes_per_s,
                        const volatile int32_t *stop, uint64_t *copied)
{
    compaction c = {.store = store, .from = logs, .from_count = count,
                    .writer = {.log_fd = -1, .index_fd = -1}};
    c.walk = (bk_walk){.store = store, .log = logs[0], .context = &c, .bytes_per_s = bytes_per_s,
                       .stop = stop};
    int result = copy_logs(&c);
    if (result == BK_CORRUPT)
        mark_damaged(store, c.walk.log);
    if (result == BK_OK)
        result = erase_logs(store, logs, count);
    *copied = c.copied;
    free_compaction(&c);
    return result;
}

/* Delete a log that has no live bytes. */
static int drop_log(bk_store *store, bk_log *log, uint64_t *freed)
{
    pthread_rwlock_rdlock(&store->lock);
    int is_dead = log->extents == 0 && !bk_store_is_held(store, log);
    uint64_t size = log->size + log->index_size;
    pthread_rwlock_unlock(&store->lock);
    int result = is_dead ? erase_log(store, log) : BK_FULL;
    if (result == BK_OK)
        *freed = size;
    return result;
}

/* Whether each is newer than the one before, and no other log's age is theirs or between. One that
 * only waits to be deleted does not count. */
static int are_neighbours(bk_store *store, bk_log *const *logs, uint32_t count)
{
    int rising = 1, alone = 1;
    for (uint32_t i = 1; i < count; i++)
        rising &= is_older(logs[i - 1], logs[i]);
    pthread_rwlock_rdlock(&store->lock);
    for (uint32_t i = 0; i < store->log_count; i++) {
        const bk_log *log = store->logs[i];
        int is_between =
            log->origin >= logs[0]->origin && log->origin <= logs[count - 1]->origin;
        alone &= !is_between || log->extents == 0 || is_among(logs, count, log);
    }
    pthread_rwlock_unlock(&store->lock);
    return rising && alone;
}

static int rewrite_logs(bk_store *store, bk_log *const *logs, uint32_t count, uint64_t live,
                        uint64_t bytes_per_s, const volatile int32_t *stop, uint64_t *copied)
{
    uint64_t freed;
    if (count == 1 && live == 0)
        return drop_log(store, logs[0], &freed);
    if (!are_neighbours(store, logs, count))
        return -EINVAL;
    return compact_logs(store, logs, count, bytes_per_s, stop, copied);
}

int bk_store_compact(bk_store *store, const uint32_t *log_ids, uint32_t count,
                     uint64_t bytes_per_s, const volatile int32_t *stop, uint64_t *copied)
{
    uint64_t live = 0;
    uint32_t claimed = 0;
    int result = BK_OK;
    *copied = 0;
    if (count == 0)
        return -EINVAL;
    bk_log **logs = calloc(count, sizeof(bk_log *));
    if (logs == NULL)
        return -ENOMEM;
    pthread_mutex_lock(&store->compaction);
    while (claimed < count && result == BK_OK) {
        result = claim_log(store, log_ids[claimed], &logs[claimed], &live);
        claimed += result == BK_OK;
    }
    if (result == BK_OK)
        result = rewrite_logs(store, logs, count, live, bytes_per_s, stop, copied);
    while (claimed > 0)
        bk_log_unpin(&store->files, logs[--claimed]);
    pthread_mutex_unlock(&store->compaction);
    free(logs);
    return result;
}

int bk_store_delete_log(bk_store *store, uint32_t log_id, uint64_t *freed)
{
    bk_log *log;
    uint64_t live;
    *freed = 0;
    pthread_mutex_lock(&store->compaction);
    int result = claim_log(store, log_id, &log, &live);
    if (result == BK_OK) {
        result = drop_log(store, log, freed);
        bk_log_unpin(&store->files, log);
    }
    pthread_mutex_unlock(&store->compaction);
    return result;
}
