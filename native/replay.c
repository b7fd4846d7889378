/* What a start finds: ledger table, store, journal. See engine.h. */
#include "engine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    bk_engine *engine;
    bk_recovery *recovery;
    uint64_t *ids;      /* journal files from the mark on */
    uint64_t *ends;     /* of each, as its successor names it; 0: the newest, or not known */
    size_t count;
    pthread_t flusher;
    int flusher_runs;
    bk_half *flushed_half;
    int flush_result;
} bk_replay;

static void note(bk_replay *replay, const char *path, uint64_t offset)
{
    replay->recovery->damages++;
    replay->recovery->limbo = 1;
    bk_store_note(replay->engine->store, path, offset, -1, -1);
}

static int blame(bk_replay *replay, const char *path, int result)
{
    char *failed = replay->recovery->failed;
    if (result == -EIO && failed[0] == '\0')
        snprintf(failed, sizeof replay->recovery->failed, "%s", path);
    return result;
}

/* --- the ledger table ------------------------------------------------------------------ */

static int load_table(bk_replay *replay, const bk_mark *mark)
{
    bk_engine *engine = replay->engine;
    char path[BK_PATH_SIZE_MAX];
    bk_table_scan *scan;
    bk_record record;
    engine->table.id = mark != NULL ? mark->table_id : 1;
    engine->table.end = mark != NULL ? mark->table_end : 0;
    if (engine->table.id == 0)
        engine->table.id = 1;
    if (engine->table.end == 0)
        return 0;
    int result = bk_table_path(engine->ledger_folder, engine->table.id, path);
    if (result != 0)
        return result;
    result = bk_io_settle(path, BK_FAULT_TABLE_SYNC);
    if (result == 0)
        result = blame(replay, path, bk_table_scan_open(path, engine->table.end, &scan));
    if (result == 0) {
        while ((result = bk_table_scan_next(scan, &record)) == BK_OK)
            if ((result = bk_table_apply(&engine->ledgers, &record)) != 0)
                break;
        bk_table_scan_close(scan);
    }
    if (result == BK_CORRUPT || result == -ENOENT) {
        /* Fences are lost: the caller fences every ledger. A new file takes over. */
        note(replay, path, result == BK_CORRUPT ? record.offset : 0);
        engine->table.lost_id = engine->table.id++;
        engine->table.end = 0;
        if (engine->options.searches_logs != 0)
            engine->options.searches_logs = 1; /* it was whole when the rebuild looked at it */
        return BK_CORRUPT;
    }
    return result == BK_END ? 0 : result;
}

/* The disk cannot read whether a log has a later ledger of this id than the table. It may be read
 * at the next start. A rebuild goes on: unless the table is whole, and tells, it is a ledger that
 * nobody knows. Who says which one it means is told nothing, and the bookie is in limbo. */
static int doubt(bk_replay *replay, bk_ledger *ledger, const char *log)
{
    bk_engine *engine = replay->engine;
    if (engine->options.searches_logs == 0)
        return blame(replay, log, -EIO);
    if (engine->options.searches_logs == BK_SEARCH_BESIDE_TABLE && ledger->incarnation != 0)
        return 0;
    note(replay, log, 0);
    int result = bk_store_enter_limbo(engine->store);
    if (result != 0 || (ledger->incarnation == 0 && !ledger->deleted))
        return result;
    bk_ledger_renew(ledger, 0, ledger->first_log);
    return bk_engine_mark_dirty(engine, ledger);
}

/* What logs say of a ledger, if it is newer than what the table does. One whose key the table has
 * and whose incarnation it lacks came to be without; if it was deleted, logs tell of a later one. */
static int look_in_logs(bk_replay *replay, bk_ledger *ledger)
{
    bk_engine *engine = replay->engine;
    int64_t incarnation;
    uint32_t first_log;
    char unread[BK_PATH_SIZE_MAX] = "";
    int result =
        bk_store_find_incarnation(engine->store, ledger->id, &incarnation, &first_log, unread);
    if (result == -EIO)
        return doubt(replay, ledger, unread);
    if (result != BK_OK)
        return result == BK_ABSENT ? 0 : result;
    int is_newer = ledger->incarnation != 0 ? first_log > ledger->first_log : !ledger->key_known || ledger->deleted;
    if (!is_newer)
        return 0;
    if (incarnation == ledger->incarnation)
        ledger->first_log = first_log;
    else
        bk_ledger_renew(ledger, incarnation, first_log);
    return bk_engine_mark_dirty(engine, ledger);
}

/* Every ledger that has entries is known, with its last one. */
static int list_store(bk_replay *replay, int searches_logs)
{
    bk_engine *engine = replay->engine;
    bk_ledger_usage rows[256];
    int64_t after = -1, last;
    for (;;) {
        uint32_t n = bk_store_ledgers(engine->store, after, rows, 256);
        for (uint32_t i = 0; i < n; i++) {
            after = rows[i].ledger_id;
            bk_ledger *ledger = bk_ledgers_make(&engine->ledgers, after);
            if (ledger == NULL)
                return -ENOMEM;
            int result = searches_logs ? look_in_logs(replay, ledger) : 0;
            if (result != 0)
                return result;
            if (ledger->deleted)
                (void)bk_store_delete_ledger(engine->store, after);
            else if (ledger->first_log > 0)
                bk_store_forget_before(engine->store, after, ledger->first_log);
            if (bk_store_last(engine->store, after, &last) == BK_OK && last > ledger->last_entry)
                ledger->last_entry = last;
        }
        if (n < 256)
            return 0;
    }
}

/* --- the journal ------------------------------------------------------------------------- */

static int journal_path(bk_replay *replay, size_t i, char *out)
{
    int n = snprintf(out, BK_PATH_SIZE_MAX, "%s/%016llx.journal", replay->engine->journal_folder,
                     (unsigned long long)replay->ids[i]);
    return n > 0 && n < BK_PATH_SIZE_MAX ? 0 : -ENAMETOOLONG;
}

/* The file of the mark held all that the mark promises, once. */
static int check_marked(bk_replay *replay, const bk_mark *mark)
{
    char path[BK_PATH_SIZE_MAX];
    struct stat st;
    int result = journal_path(replay, 0, path);
    if (result == 0 && stat(path, &st) != 0)
        result = -errno;
    if (result == 0 && (uint64_t)st.st_size < mark->journal_offset)
        note(replay, path, (uint64_t)st.st_size);
    return result;
}

/* It names the end of the file before its own. */
static int take_header(bk_replay *replay, size_t i, const char *path, bk_journal_scan *scan)
{
    uint64_t id, previous, end;
    bk_journal_scan_header(scan, &id, &previous, &end);
    bk_journal_scan_close(scan);
    if (i > 0 && previous == replay->ids[i - 1])
        replay->ends[i - 1] = end;
    else if (i > 0)
        note(replay, path, 24); /* a file between these two is missing */
    return 0;
}

/* What a header says that a rebuild cannot read is how the file before it ends: there, too, the
 * end is unknown. */
static int lack_header(bk_replay *replay, const char *path)
{
    if (!replay->engine->options.searches_logs)
        return blame(replay, path, -EIO);
    note(replay, path, 0);
    return bk_store_enter_limbo(replay->engine->store);
}

/* Read the headers: each names the end of the file before it. The newest may be
 * without one, when the crash came while it was begun; it is deleted then. No mark
 * names such a file.
 *
 * What is read here is taken for durable from now on: fences are answered, entries served,
 * and an entry that is sent again is acknowledged at once. So the newest file is settled
 * first; the others were synced, or settled by a start, before their successor was begun. */
static int read_headers(bk_replay *replay)
{
    char path[BK_PATH_SIZE_MAX];
    for (size_t i = 0; i < replay->count; i++) {
        bk_journal_scan *scan;
        int result = journal_path(replay, i, path);
        if (result == 0 && i + 1 == replay->count)
            result = bk_io_settle(path, BK_FAULT_JOURNAL_SYNC);
        if (result != 0)
            return result;
        result = bk_journal_scan_open(path, 0, 0, &scan);
        if (result == BK_END && i > 0 && i + 1 == replay->count) {
            if (unlink(path) != 0)
                return -errno;
            replay->count--;
            return 0;
        }
        if (result == BK_END || result == BK_CORRUPT)
            note(replay, path, 0);
        else if (result == -EIO)
            result = lack_header(replay, path);
        else if (result == 0)
            result = take_header(replay, i, path, scan);
        if (result < 0)
            return result;
    }
    return 0;
}

static void *flush_half(void *argument)
{
    bk_replay *replay = argument;
    bk_mark ignored;
    replay->flush_result = bk_engine_write_out(replay->engine, replay->flushed_half, &ignored);
    return NULL;
}

static int join_flusher(bk_replay *replay)
{
    if (!replay->flusher_runs)
        return 0;
    pthread_join(replay->flusher, NULL);
    replay->flusher_runs = 0;
    return replay->flush_result;
}

/* The active half is full: let a thread write it out, go on in the other one. */
static int change_half(bk_replay *replay)
{
    bk_engine *engine = replay->engine;
    int result = join_flusher(replay);
    if (result != 0)
        return result;
    replay->flushed_half = &engine->memtable.halves[engine->memtable.active];
    pthread_mutex_lock(&engine->lock);
    result = bk_engine_swap(engine);
    pthread_mutex_unlock(&engine->lock);
    if (result != 0)
        return result;
    result = -pthread_create(&replay->flusher, NULL, flush_half, replay);
    replay->flusher_runs = result == 0;
    return result;
}

/* Of two records of an entry the later one counts: the journal has a second one only because it
 * was to replace the first (engine.h, rule 5). The record is at the end of the active half. */
static int put_latest(bk_engine *engine, bk_ledger *ledger, int64_t entry_id, uint32_t size)
{
    int active = engine->memtable.active;
    uint64_t offset = engine->memtable.halves[active].used;
    int result = bk_engine_put(engine, ledger, entry_id, offset, size);
    if (result != BK_FULL)
        return result;
    *bk_runs_find(&ledger->halves[active], entry_id) = (bk_slot){entry_id, (uint32_t)offset, size};
    return 0;
}

static int replay_entry(bk_replay *replay, const bk_record *record, uint32_t file_salt)
{
    bk_engine *engine = replay->engine;
    uint32_t size = record->body_size + BK_RECORD_HEADER_SIZE;
    if (!bk_ids_are_sound(record->ledger_id, record->entry_id) ||
        record->body_size < BK_ENTRY_HEADER_SIZE)
        return 0;
    if (engine->memtable.halves[engine->memtable.active].used + size > engine->memtable.half_size) {
        int result = change_half(replay);
        if (result != 0)
            return result;
    }
    pthread_mutex_lock(&engine->lock);
    bk_half *half = &engine->memtable.halves[engine->memtable.active];
    bk_ledger *ledger = bk_ledgers_make(&engine->ledgers, record->ledger_id);
    int result = ledger != NULL ? 0 : -ENOMEM;
    if (result == 0)
        ledger->replayed = 1;
    if (result == 0 && !ledger->deleted) {
        uint8_t *at = half->arena + half->used;
        memcpy(at, record->body - BK_RECORD_HEADER_SIZE, size);
        bk_put32le(at + 4, bk_get32le(at + 4) ^ file_salt ^ half->salt);
        result = put_latest(engine, ledger, record->entry_id, size);
        half->used += result == 0 ? size : 0;
        int64_t lac = (int64_t)bk_get64be(record->body + 16);
        if (lac > ledger->lac && lac < record->entry_id)
            ledger->lac = lac;
        ledger->lac_known = 1;
    }
    pthread_mutex_unlock(&engine->lock);
    return result;
}

/* A tombstone that comes back begins without entries here too, and so does a ledger whose id
 * is used again. Those from before may be on their way to a log; then they go with the end of
 * that flush. */
static int bury(bk_replay *replay, const bk_record *record)
{
    bk_engine *engine = replay->engine;
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, record->ledger_id);
    int renewed = record->entry_id == BK_RECORD_INCARNATION;
    int revived = record->entry_id == BK_RECORD_KEY && ledger != NULL && ledger->deleted;
    if (ledger == NULL || !(renewed || revived))
        return 0;
    int result = join_flusher(replay);
    if (result != 0)
        return result;
    pthread_mutex_lock(&engine->lock);
    result = bk_engine_bury(engine, ledger);
    pthread_mutex_unlock(&engine->lock);
    return result;
}

/* What logs have of the id from first_log on is the new ledger's, and stays: of a rebuild's
 * journal a part may be damaged. But where entries of an earlier ledger came before the record,
 * a replay, this one or one that was cut short, may have flushed them to later logs than the
 * record can know. Then nothing stays; the journal has it all. */
static void begin_anew(bk_engine *engine, bk_ledger *ledger, uint32_t known_first_log)
{
    if (ledger->replayed) {
        (void)bk_store_delete_ledger(engine->store, ledger->id);
        ledger->first_log = bk_store_first_log(engine->store, ledger->id);
    } else {
        if (ledger->first_log < known_first_log)
            ledger->first_log = known_first_log;
        bk_store_forget_before(engine->store, ledger->id, ledger->first_log);
        (void)bk_store_last(engine->store, ledger->id, &ledger->last_entry);
    }
    ledger->replayed = 0;
}

/* The first log that the table names, if it is newer than the record. */
static uint32_t known_first_log(const bk_engine *engine, const bk_record *record)
{
    const bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, record->ledger_id);
    int is_same = ledger != NULL && record->body_size == 28 &&
                  (uint64_t)ledger->incarnation == bk_get64be(record->body + 16);
    return is_same ? ledger->first_log : 0;
}

static int replay_special(bk_replay *replay, const bk_record *record)
{
    bk_engine *engine = replay->engine;
    bk_ledger *ledger = NULL;
    int renewed = record->entry_id == BK_RECORD_INCARNATION;
    int result = bury(replay, record);
    if (result != 0)
        return result;
    pthread_mutex_lock(&engine->lock);
    uint32_t known = renewed ? known_first_log(engine, record) : 0;
    result = bk_table_apply(&engine->ledgers, record);
    if (record->ledger_id >= 0)
        ledger = bk_ledgers_find(&engine->ledgers, record->ledger_id);
    if (result == 0 && ledger != NULL && renewed)
        begin_anew(engine, ledger, known);
    if (result == 0 && ledger != NULL)
        result = bk_engine_mark_dirty(engine, ledger);
    int deleted = ledger != NULL && ledger->deleted;
    pthread_mutex_unlock(&engine->lock);
    if (result == 0 && deleted)
        (void)bk_store_delete_ledger(engine->store, record->ledger_id);
    return result;
}

static int replay_record(bk_replay *replay, const bk_record *record, uint32_t file_salt)
{
    replay->recovery->replayed_records++;
    replay->recovery->replayed_bytes += record->body_size + BK_RECORD_HEADER_SIZE;
    return record->entry_id >= 0 ? replay_entry(replay, record, file_salt)
                                 : replay_special(replay, record);
}

static int replay_file(bk_replay *replay, size_t i, uint64_t start, uint64_t *end)
{
    char path[BK_PATH_SIZE_MAX];
    bk_journal_scan *scan;
    bk_record record;
    *end = replay->ends[i];
    int result = journal_path(replay, i, path);
    if (result == 0)
        result = bk_journal_scan_open(path, start, replay->ends[i], &scan);
    if (result == -EIO && replay->engine->options.searches_logs)
        result = bk_journal_scan_open_past(path, start, replay->ends[i], &scan);
    if (result == BK_END || result == BK_CORRUPT)
        return 0; /* its header is damaged; noted already */
    if (result != 0)
        return blame(replay, path, result);
    uint32_t salt = bk_salt(replay->ids[i]);
    replay->recovery->replayed_files++;
    while ((result = blame(replay, path, bk_journal_scan_next(scan, &record))) != BK_END) {
        if (result == BK_CORRUPT)
            note(replay, path, record.offset);
        else if (result != BK_OK || (record.entry_id != BK_RECORD_GROUP &&
                                     (result = replay_record(replay, &record, salt)) != 0))
            break;
    }
    *end = record.offset;
    bk_journal_scan_close(scan);
    return result == BK_END ? 0 : result;
}

/* A first start that was cut short leaves a journal file without records. */
static int delete_unused_journal(bk_replay *replay)
{
    for (; replay->count > 0; replay->count--) {
        char path[BK_PATH_SIZE_MAX];
        bk_journal_scan *scan = NULL;
        bk_record record;
        int result = journal_path(replay, replay->count - 1, path);
        if (result == 0)
            result = bk_journal_scan_open(path, 0, 0, &scan);
        if (result == BK_OK)
            result = bk_journal_scan_next(scan, &record);
        bk_journal_scan_close(scan);
        if (result != BK_END)
            return result < 0 ? blame(replay, path, result) : -EEXIST;
        if (unlink(path) != 0)
            return -errno;
    }
    return 0;
}

/* Without a mark there must be no entries; a log of a single block holds none. */
static int check_no_logs(const char *folder)
{
    struct stat st;
    struct dirent *e;
    int result;
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return -errno;
    while ((result = bk_io_read_folder(dir, &e)) == 0 && e != NULL) {
        size_t size = strlen(e->d_name);
        if (size > 4 && strcmp(e->d_name + size - 4, ".log") == 0 &&
            fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && st.st_size > BK_BLOCK_SIZE) {
            result = -EEXIST;
            break;
        }
    }
    closedir(dir);
    return result;
}

static int list_journal(bk_replay *replay, const bk_mark *mark)
{
    int result = bk_journal_list(replay->engine->journal_folder, "journal", &replay->ids,
                                 &replay->count);
    if (result != 0)
        return result;
    if (mark == NULL) {
        result = check_no_logs(replay->engine->ledger_folder);
        return result != 0 ? result : delete_unused_journal(replay);
    }
    size_t first = 0;
    while (first < replay->count && replay->ids[first] < mark->journal_id)
        first++;
    if (first == replay->count || replay->ids[first] != mark->journal_id)
        return -ENOENT;
    replay->count -= first;
    memmove(replay->ids, replay->ids + first, replay->count * sizeof *replay->ids);
    replay->ends = calloc(replay->count, sizeof *replay->ends);
    return replay->ends != NULL ? 0 : -ENOMEM;
}

static int replay_journal(bk_replay *replay, const bk_mark *mark, uint64_t *last_id,
                          uint64_t *last_end)
{
    bk_engine *engine = replay->engine;
    int result = mark != NULL ? check_marked(replay, mark) : 0;
    if (result == 0)
        result = read_headers(replay);
    if (result != 0)
        return result;
    *last_id = replay->count > 0 ? replay->ids[replay->count - 1] : 0;
    engine->groups.plan_file = *last_id + 1;
    engine->groups.plan_offset = BK_BLOCK_SIZE;
    engine->groups.end_file = engine->groups.plan_file;
    engine->groups.end_offset = engine->groups.plan_offset;
    engine->groups.unmarked = mark == NULL;
    pthread_mutex_lock(&engine->lock);
    bk_engine_activate(engine, 0);
    pthread_mutex_unlock(&engine->lock);
    for (size_t i = 0; i < replay->count && result == 0; i++)
        result = replay_file(replay, i, i == 0 ? mark->journal_offset : 0, last_end);
    int flushed = join_flusher(replay);
    return result != 0 ? result : flushed;
}

/* For compaction, which does not know the table. */
static void name_ledgers(bk_engine *engine)
{
    for (size_t i = 0; i < engine->ledgers.room; i++) {
        const bk_ledger *ledger = engine->ledgers.slots[i];
        if (ledger != NULL)
            bk_store_set_incarnation(engine->store, ledger->id, ledger->incarnation,
                                     ledger->first_log);
    }
}

int bk_engine_recover(bk_engine *engine, const bk_mark *mark, bk_recovery *recovery,
                      uint64_t *last_id, uint64_t *last_end)
{
    bk_replay replay = {.engine = engine, .recovery = recovery};
    int fences_lost = 0;
    int result = list_journal(&replay, mark);
    if (result == 0)
        result = bk_store_open(engine->ledger_folder, mark, engine->options.log_size_max,
                               engine->options.index_cache_size, recovery->failed, &engine->store);
    if (result == 0) {
        result = load_table(&replay, mark);
        fences_lost = result == BK_CORRUPT;
        if (fences_lost)
            result = 0;
    }
    if (result == 0)
        result = bk_engine_open_table(engine); /* replay may flush */
    if (result == 0)
        result = list_store(&replay, fences_lost || engine->options.searches_logs);
    engine->replays = 1;
    if (result == 0)
        result = replay_journal(&replay, mark, last_id, last_end);
    engine->replays = 0;
    if (result == 0)
        name_ledgers(engine);
    if (result == 0 && fences_lost)
        bk_engine_fence_all(engine);
    free(replay.ids);
    free(replay.ends);
    return result;
}
