/* Opening: from the files of a folder and a mark to a store.
 *
 *   files ─► headers ─► leftovers deleted ─► open log cut at the mark
 *                                            ─► index checked, or built anew
 *                                               ─► directory, newest log first
 *
 * Newest first, so that a log whose compacted copy is sound and whole is known to be
 * superseded before it is read. */
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* A log as found. */
typedef struct {
    uint32_t id;
    int has_log;
    int has_index;
    int is_dead; /* its deletion was under way */
    int is_torn; /* a page of its index was found damaged */
    int state; /* of the header: BK_OK, BK_CORRUPT, -ENOENT */
    bk_log_header header;
    uint64_t size;
    int superseding; /* loaded, closed, sound and whole: stands for all of its origin */
} found;

typedef struct {
    bk_store *store;
    const bk_mark *mark; /* NULL: accept what is sound */
    found *logs;         /* by id */
    uint32_t count, capacity;
    char *failed;        /* file that the disk could not read; "" */
} opening;

static int is_marked(const opening *o, const found *f)
{
    return o->mark != NULL && o->mark->log_id == f->id;
}

static int is_closed(const found *f)
{
    return f->state == BK_OK && f->header.end != 0;
}

/* Of several files the first one is named. */
static int blame(const opening *o, const found *f, const char *suffix, int result)
{
    if (result == -EIO && o->failed[0] == '\0')
        bk_log_path(o->store->folder, f->id, suffix, o->failed);
    return result;
}

/* --- what is there ----------------------------------------------------------------- */

static found *found_at(opening *o, uint32_t id)
{
    uint32_t at = 0;
    while (at < o->count && o->logs[at].id < id)
        at++;
    if (at < o->count && o->logs[at].id == id)
        return &o->logs[at];
    found *logs = bk_array_grow32(o->logs, &o->capacity, o->count + 1, sizeof *logs);
    if (logs == NULL)
        return NULL;
    o->logs = logs;
    memmove(o->logs + at + 1, o->logs + at, (o->count - at) * sizeof *o->logs);
    o->count++;
    o->logs[at] = (found){.id = id, .state = -ENOENT};
    return &o->logs[at];
}

static void note_next_id(bk_store *store, uint32_t id)
{
    if (store->next_log_id <= id)
        store->next_log_id = id + 1;
}

static int take_name(opening *o, const char *name)
{
    char *dot, path[BK_PATH_SIZE_MAX];
    uint32_t id = (uint32_t)strtoul(name, &dot, 16);
    if (dot != name + 8 || *dot != '.')
        return BK_OK;
    note_next_id(o->store, id);
    if (strcmp(dot + 1, BK_SUFFIX_INDEX ".tmp") == 0) {
        bk_log_path(o->store->folder, id, dot + 1, path);
        return unlink(path) == 0 ? BK_OK : -errno;
    }
    int is_log = strcmp(dot + 1, BK_SUFFIX_LOG) == 0;
    int is_index = strcmp(dot + 1, BK_SUFFIX_INDEX) == 0;
    int is_dead = strcmp(dot + 1, BK_SUFFIX_DEAD) == 0;
    int is_torn = strcmp(dot + 1, BK_SUFFIX_TORN) == 0;
    if (!is_log && !is_index && !is_dead && !is_torn)
        return BK_OK;
    found *f = found_at(o, id);
    if (f == NULL)
        return -ENOMEM;
    f->has_log |= is_log;
    f->has_index |= is_index;
    f->is_dead |= is_dead;
    f->is_torn |= is_torn;
    return BK_OK;
}

static int list_folder(opening *o)
{
    struct dirent *entry;
    DIR *folder = opendir(o->store->folder);
    if (folder == NULL)
        return -errno;
    int result = bk_io_read_folder(folder, &entry);
    while (result == BK_OK && entry != NULL) {
        result = take_name(o, entry->d_name);
        if (result == BK_OK)
            result = bk_io_read_folder(folder, &entry);
    }
    closedir(folder);
    return result;
}

/* Whether a rebuild, which comes first, could not read the header either: it took the log for one
 * that is no copy of another, of which a half would replace the whole. */
static int lacks_header(const opening *o, const found *f)
{
    char path[BK_PATH_SIZE_MAX];
    bk_index_scan *scan;
    uint32_t log_id;
    bk_log_path(o->store->folder, f->id, BK_SUFFIX_INDEX, path);
    if (bk_index_scan_open(path, &scan, &log_id) != BK_OK)
        return 0;
    int result = scan->origin == f->id;
    bk_index_scan_close(scan);
    return result;
}

static int load_header(const opening *o, found *f)
{
    char path[BK_PATH_SIZE_MAX];
    bk_log_path(o->store->folder, f->id, BK_SUFFIX_LOG, path);
    f->state = bk_log_header_load(path, &f->header, &f->size);
    if (f->state == BK_OK && f->header.log_id != f->id)
        f->state = BK_CORRUPT;
    if (f->state != -EIO || o->mark != NULL || !lacks_header(o, f))
        return f->state < 0 ? blame(o, f, BK_SUFFIX_LOG, f->state) : BK_OK;
    /* A rebuild goes on without: it is written anew. */
    f->state = BK_CORRUPT;
    return bk_store_enter_limbo(o->store);
}

static int log_settle_files(const opening *o, const found *f)
{
    char path[BK_PATH_SIZE_MAX];
    bk_log_path(o->store->folder, f->id, BK_SUFFIX_INDEX, path);
    int result = bk_io_settle(path, BK_FAULT_INDEX_SYNC);
    if (result != BK_OK && result != -ENOENT)
        return result;
    bk_log_path(o->store->folder, f->id, BK_SUFFIX_LOG, path);
    return bk_io_settle(path, BK_FAULT_LOG_SYNC);
}

/* Whether another log may hold the same records: one of the two will be deleted. */
static int has_sibling(const opening *o, const found *f)
{
    for (const found *g = o->logs; g < o->logs + o->count; g++)
        if (g != f && g->has_log && (g->state != BK_OK || g->header.origin == f->header.origin))
            return 1;
    return 0;
}

/* Whether a header says "closed" and no durable mark came after it: the process may have died
 * before that was synced, or because it could not be. */
static int is_doubtful(const opening *o, const found *f)
{
    return is_closed(f) &&
           (o->mark == NULL || f->id >= o->mark->next_log_id || has_sibling(o, f));
}

static int load_headers(opening *o)
{
    int result = BK_OK;
    for (uint32_t i = 0; i < o->count && result == BK_OK; i++) {
        found *f = &o->logs[i];
        if (f->has_log && is_marked(o, f))
            result = log_settle_files(o, f);
        if (f->has_log && result == BK_OK)
            result = load_header(o, f);
    }
    for (uint32_t i = 0; i < o->count && result == BK_OK; i++) {
        found *f = &o->logs[i];
        if (!f->has_log || is_marked(o, f) || !is_doubtful(o, f))
            continue;
        result = log_settle_files(o, f);
        if (result == BK_OK)
            result = load_header(o, f);
    }
    return result;
}

/* --- the index --------------------------------------------------------------------- */

/* The result of a walk over an index file. */
typedef struct {
    int result; /* BK_END: sound to its end */
    uint32_t origin;
    uint64_t end;
    uint64_t log_end;
    uint64_t rows;
    uint64_t lost; /* records that a rebuild left out */
} index_walk;

/* log NULL: look only; otherwise its rows go to the directory. */
static index_walk read_index(bk_store *store, uint32_t id, bk_log *log)
{
    char path[BK_PATH_SIZE_MAX];
    uint32_t log_id;
    bk_index_scan *scan;
    index_walk walk = {.origin = id, .log_end = BK_BLOCK_SIZE};
    bk_log_path(store->folder, id, BK_SUFFIX_INDEX, path);
    walk.result = bk_index_scan_open(path, &scan, &log_id);
    if (walk.result != BK_OK)
        return walk;
    while (walk.result == BK_OK && (walk.result = bk_index_scan_block(scan)) == BK_OK) {
        walk.rows += scan->block.rows;
        walk.lost += scan->block.lost;
        if (log != NULL)
            walk.result = bk_directory_add(&store->directory, log, scan->rows, scan->block.rows);
    }
    walk.end = scan->end;
    walk.log_end = scan->log_end;
    walk.origin = scan->origin;
    if (log_id != id)
        walk.result = BK_CORRUPT;
    bk_index_scan_close(scan);
    return walk;
}

/* Without a sound header nothing names the end of the records: the file has to
 * end where the index does, or go on with the map. */
static int ends_at(bk_store *store, const found *f, uint64_t log_end)
{
    char path[BK_PATH_SIZE_MAX];
    bk_log_scan *scan;
    bk_record record;
    if (f->size <= log_end)
        return f->size == log_end || f->state == BK_CORRUPT;
    bk_log_path(store->folder, f->id, BK_SUFFIX_LOG, path);
    if (bk_log_scan_open_at(path, log_end, 0, &scan) != BK_OK)
        return 0;
    int is_map = bk_log_scan_next(scan, &record) == BK_OK && record.ledger_id == -1 &&
                 record.entry_id == BK_RECORD_MAP;
    bk_log_scan_close(scan);
    return is_map;
}

/* Where the records of the log must end; 0 when nothing says so. */
static uint64_t end_records(const opening *o, const found *f)
{
    if (is_marked(o, f))
        return o->mark->log_end;
    if (!is_closed(f))
        return 0;
    return f->header.map_offset != 0 ? f->header.map_offset : f->header.end;
}

static int is_whole(const opening *o, const found *f, const index_walk *walk)
{
    uint64_t end = end_records(o, f);
    if (walk->result != BK_END)
        return 0;
    if (end != 0)
        return walk->log_end == end;
    return !f->has_log || ends_at(o->store, f, walk->log_end);
}

/* The index that is about to be built cannot show that a record is missing. */
int bk_store_enter_limbo(const bk_store *store)
{
    char path[BK_PATH_SIZE_MAX + 8];
    snprintf(path, sizeof path, "%s/limbo", store->folder);
    return bk_io_make_file(store->folder, path);
}

static int note_damage(void *context, const char *path, uint64_t offset)
{
    bk_store *store = context;
    bk_store_note(store, path, offset, -1, -1);
    return bk_store_enter_limbo(store);
}

static int refuse_damage(void *context, const char *path, uint64_t offset)
{
    (void)context, (void)path, (void)offset;
    return BK_CORRUPT;
}

static int rebuild_index(opening *o, const found *f, const index_walk *walk, bk_damage_note note)
{
    char log_path[BK_PATH_SIZE_MAX], index_path[BK_PATH_SIZE_MAX];
    uint64_t entries;
    bk_log_header header = {.log_id = f->id, .origin = walk->origin, .end = end_records(o, f)};
    if (f->state == BK_OK)
        header.origin = f->header.origin;
    bk_log_path(o->store->folder, f->id, BK_SUFFIX_LOG, log_path);
    bk_log_path(o->store->folder, f->id, BK_SUFFIX_INDEX, index_path);
    int result = bk_index_rebuild_from(log_path, index_path, &header, note, o->store, &entries);
    /* The new index is durable. If a crash brings this file back, it is built once more. */
    return result == BK_OK ? bk_log_forget_torn(o->store->folder, f->id) : result;
}

/* --- leftovers --------------------------------------------------------------------- */

/* Whether neither log nor index go beyond a header. Compaction's output is like that at
 * first, while marks are written that count its id as used. Of its two names, made one after
 * the other and synced together, a power cut may leave the index alone. */
static int is_bare(const opening *o, const found *f)
{
    char path[BK_PATH_SIZE_MAX];
    struct stat status;
    bk_log_path(o->store->folder, f->id, BK_SUFFIX_INDEX, path);
    return (!f->has_log || f->size <= BK_BLOCK_SIZE) &&
           (stat(path, &status) != 0 ? errno == ENOENT : status.st_size <= BK_BLOCK_SIZE);
}

static int is_leftover(const opening *o, const found *f)
{
    /* A reader met the damage while compaction deleted the log. */
    if (!f->has_log && !f->has_index)
        return 1;
    if (is_marked(o, f) || is_closed(f))
        return 0;
    /* A copy that compaction did not finish: its source is there. Closed here, it
     * would be taken for the whole of it. */
    if (f->state == BK_OK && f->header.origin != f->id)
        return 1;
    if (o->mark == NULL)
        return 0;
    if (f->state == BK_OK || is_bare(o, f))
        return 1;
    /* No sound header: being created, unless its index vouches for records, or cannot be read. */
    index_walk walk = read_index(o->store, f->id, NULL);
    int is_empty = walk.rows == 0 && (walk.result >= 0 || walk.result == -ENOENT);
    return f->id >= o->mark->next_log_id && is_empty;
}

static int is_superseded(const opening *o, const found *f)
{
    uint32_t origin = f->state == BK_OK ? f->header.origin
                                        : read_index(o->store, f->id, NULL).origin;
    for (const found *g = f + 1; g < o->logs + o->count; g++)
        if (g->superseding && g->header.origin == origin)
            return 1;
    return 0;
}

static int file_cut(const char *folder, uint32_t id, const char *suffix, uint64_t end)
{
    char path[BK_PATH_SIZE_MAX];
    struct stat status;
    bk_log_path(folder, id, suffix, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? BK_OK : -errno;
    int result = fstat(fd, &status) == 0 ? BK_OK : -errno;
    if (result == BK_OK && (uint64_t)status.st_size > end)
        result = ftruncate(fd, (off_t)end) == 0 ? bk_io_sync(fd, BK_FAULT_NONE) : -errno;
    close(fd);
    return result;
}

static int cut_at_mark(opening *o, found *f)
{
    int result = file_cut(o->store->folder, f->id, BK_SUFFIX_LOG, o->mark->log_end);
    if (result == BK_OK)
        result = file_cut(o->store->folder, f->id, BK_SUFFIX_INDEX, o->mark->index_end);
    if (f->size > o->mark->log_end)
        f->size = o->mark->log_end;
    return result;
}

/* --- one log ----------------------------------------------------------------------- */

/* Check the log's own file; what it should hold is in its index. */
static int check_log(opening *o, const found *f, uint64_t log_end)
{
    uint64_t end = is_closed(f) && !is_marked(o, f) ? f->header.end : log_end;
    if (f->state == BK_OK && f->size >= end)
        return BK_OK;
    bk_store_note_log(o->store, f->id, BK_SUFFIX_LOG, f->state == BK_OK ? f->size : 0, -1, -1);
    return BK_CORRUPT;
}

/* Go on writing where the mark says. */
static int resume_log(opening *o, bk_log *log, uint64_t index_end)
{
    bk_flush *flush = &o->store->flush;
    bk_log_header header = {.log_id = log->id, .origin = log->origin};
    int result = bk_log_writer_init(&flush->writer, o->store->folder);
    flush->writer.steps = &flush->steps;
    /* A flush that was not checkpointed may have closed it. */
    if (result == BK_OK)
        result = bk_log_header_save(o->store->folder, log->id, log->origin, 0);
    if (result == BK_OK)
        result = bk_log_writer_resume(&flush->writer, &header, o->mark->log_end, index_end);
    if (result != BK_OK)
        return result;
    bk_log_pin(log);
    flush->log = log;
    log->open = 1;
    return BK_OK;
}

/* Decide what becomes of a log that was open when the mark was taken, or about
 * which no mark says anything. */
static int settle_log(opening *o, found *f, bk_log *log, const index_walk *walk, int sound)
{
    if (is_marked(o, f) && sound == BK_OK && o->mark->log_end % BK_BLOCK_SIZE == 0)
        return resume_log(o, log, walk->end);
    if (is_marked(o, f))
        return bk_log_header_save(o->store->folder, f->id, log->origin, o->mark->log_end);
    if (o->mark == NULL && !is_closed(f))
        return bk_log_header_save(o->store->folder, f->id, log->origin, walk->log_end);
    return BK_OK;
}

/* A torn index lacks no more than the entries of a page. It stays where its log is damaged, too,
 * or no other can be written, and the next start tries again. */
static int mend_index(opening *o, const found *f, const index_walk *walk, int is_only_torn)
{
    /* What the disk does not read now may be sound, and read another time. */
    int is_doubtful = walk->result == -EIO;
    if (walk->result < 0 && walk->result != -ENOENT && !is_doubtful)
        return walk->result;
    bk_store_note_log(o->store, f->id, BK_SUFFIX_INDEX, walk->end, -1, -1);
    if (!f->has_log)
        return bk_store_enter_limbo(o->store); /* of what is lost, it tells a part at most */
    if (is_doubtful && f->state != BK_OK)
        return blame(o, f, BK_SUFFIX_INDEX, -EIO); /* it alone may know the log's origin */
    if (!is_only_torn) {
        int result = rebuild_index(o, f, walk, is_doubtful ? refuse_damage : note_damage);
        return is_doubtful && result == BK_CORRUPT ? blame(o, f, BK_SUFFIX_INDEX, -EIO) : result;
    }
    (void)rebuild_index(o, f, walk, refuse_damage);
    return BK_OK;
}

static int load_log(opening *o, found *f, bk_log *log)
{
    bk_store *store = o->store;
    index_walk walk = read_index(store, f->id, NULL);
    int whole = is_whole(o, f, &walk);
    int clean = whole && !(f->is_torn && f->has_log);
    if (!clean) {
        int result = mend_index(o, f, &walk, whole);
        if (result != BK_OK)
            return result;
    }
    log->origin = f->state == BK_OK ? f->header.origin : walk.origin;
    index_walk before = walk;
    walk = read_index(store, f->id, log);
    int is_lost = !f->has_log && !whole;
    if (walk.result < 0 && walk.result != -ENOENT && !(is_lost && walk.result == -EIO))
        return blame(o, f, BK_SUFFIX_INDEX, walk.result);
    /* Sound a moment ago, or built anew: the disk reads it otherwise now, without some rows. */
    if (!is_lost && (walk.result != BK_END || (clean && walk.end != before.end)))
        return blame(o, f, BK_SUFFIX_INDEX, -EIO);
    int sound = check_log(o, f, walk.log_end);
    log->damaged = sound != BK_OK && (f->state != BK_CORRUPT || f->size < walk.log_end);
    log->size = f->size;
    log->index_size = walk.end;
    f->superseding = clean && walk.lost == 0 && sound == BK_OK && is_closed(f);
    return settle_log(o, f, log, &walk, sound);
}

static int take_log(opening *o, found *f)
{
    int result = BK_OK;
    if (f->is_dead || is_leftover(o, f) || is_superseded(o, f))
        return bk_log_erase(o->store->folder, f->id);
    if (is_marked(o, f))
        result = cut_at_mark(o, f);
    if (result != BK_OK)
        return result;
    bk_log *log = bk_log_new(f->id, f->id);
    if (log == NULL)
        return -ENOMEM;
    result = bk_store_add_log(o->store, log);
    if (result == BK_OK)
        result = load_log(o, f, log);
    bk_log_unpin(&o->store->files, log);
    return result;
}

/* --- all of them ------------------------------------------------------------------- */

/* The log of the mark is lost, unless compaction put another in its place. */
static void check_marked(opening *o)
{
    uint32_t id = o->mark != NULL ? o->mark->log_id : 0;
    if (id == 0)
        return;
    for (uint32_t i = 0; i < o->store->log_count; i++)
        if (o->store->logs[i]->id == id || o->store->logs[i]->origin == id)
            return;
    bk_store_note_log(o->store, id, BK_SUFFIX_LOG, 0, -1, -1);
}

static int load(bk_store *store, const bk_mark *mark, char *failed)
{
    opening o = {.store = store, .mark = mark, .failed = failed};
    store->next_log_id = mark != NULL && mark->next_log_id > 0 ? mark->next_log_id : 1;
    store->marked_log_id = mark != NULL ? mark->log_id : 0;
    int result = list_folder(&o);
    if (result == BK_OK)
        result = load_headers(&o);
    for (uint32_t i = o.count; i > 0 && result == BK_OK; i--)
        result = take_log(&o, &o.logs[i - 1]);
    if (result == BK_OK)
        check_marked(&o);
    free(o.logs);
    return result;
}

/* --- the store --------------------------------------------------------------------- */

#define FILES_OPEN_MAX 256

static void init_locks(bk_store *store)
{
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    /* Readers come without end; a flush must not starve behind them. */
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&store->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
    pthread_mutex_init(&store->flush.lock, NULL);
    pthread_cond_init(&store->flush.idle, NULL);
    pthread_mutex_init(&store->compaction, NULL);
    pthread_mutex_init(&store->damage_lock, NULL);
}

int bk_store_open(const char *folder, const bk_mark *mark, uint64_t log_size_max,
                  uint64_t cache_size_max, char *failed, bk_store **out)
{
    *out = NULL;
    failed[0] = '\0';
    if (strlen(folder) > BK_PATH_SIZE_MAX - 32)
        return -ENAMETOOLONG;
    bk_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return -ENOMEM;
    snprintf(store->folder, sizeof store->folder, "%s", folder);
    store->log_size_max = log_size_max < BK_LOG_OFFSET_MAX ? log_size_max : BK_LOG_OFFSET_MAX;
    store->flush.writer.log_fd = store->flush.writer.index_fd = -1;
    init_locks(store);
    bk_file_pool_init(&store->files, store->folder, FILES_OPEN_MAX);
    int result = bk_page_cache_init(&store->pages, cache_size_max);
    if (result == BK_OK)
        result = load(store, mark, failed);
    if (result != BK_OK) {
        bk_store_close(store);
        return result;
    }
    *out = store;
    return BK_OK;
}
