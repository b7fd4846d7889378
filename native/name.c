/* Which ledger entries in logs are of, where an id was used again. See store.h. */
#include "store_internal.h"

#include <errno.h>
#include <stdlib.h>

void bk_store_name(bk_store *store, const bk_name *name)
{
    bk_ledger_rows *ledger = bk_directory_place(&store->directory, name->ledger_id);
    if (ledger == NULL)
        return;
    ledger->incarnation = name->incarnation;
    ledger->first_log = name->first_log;
}

void bk_store_set_incarnation(bk_store *store, int64_t ledger_id, int64_t incarnation,
                              uint32_t first_log)
{
    const bk_name name = {ledger_id, incarnation, first_log};
    pthread_rwlock_wrlock(&store->lock);
    bk_store_name(store, &name);
    pthread_rwlock_unlock(&store->lock);
}

/* --- what logs say ----------------------------------------------------------------- */

/* The logs' places where entries of the ledger begin; each log is pinned. */
static int take_rows(bk_store *store, int64_t ledger_id, bk_row **rows, uint32_t *count)
{
    int result = BK_OK;
    pthread_rwlock_rdlock(&store->lock);
    const bk_ledger_rows *ledger = bk_directory_ledger(&store->directory, ledger_id);
    if (ledger != NULL) {
        *rows = bk_array_resize(NULL, ledger->count, sizeof **rows);
        result = *rows != NULL ? BK_OK : -ENOMEM;
    }
    for (; result == BK_OK && ledger != NULL && *count < ledger->count; ++*count) {
        (*rows)[*count] = ledger->rows[*count];
        bk_log_pin((*rows)[*count].log);
    }
    pthread_rwlock_unlock(&store->lock);
    return result;
}

/* Newest first. The entries of a later ledger of the id are in later logs (first_log). */
static int row_order(const void *a, const void *b)
{
    const bk_row *left = a, *right = b;
    if (left->log->origin != right->log->origin)
        return left->log->origin < right->log->origin ? 1 : -1;
    if (left->log->id != right->log->id)
        return left->log->id < right->log->id ? 1 : -1;
    return (left->log_offset < right->log_offset) - (left->log_offset > right->log_offset);
}

/* The record before an extent. BK_ABSENT: it is another one, or damaged. -EIO: the disk cannot
 * read it now. */
static int read_name(bk_store *store, const bk_row *row, bk_name *name)
{
    uint8_t record[BK_INCARNATION_RECORD_SIZE];
    const uint8_t *body = record + BK_RECORD_HEADER_SIZE;
    uint32_t size;
    size_t got;
    int fd;
    if (row->log_offset < BK_BLOCK_SIZE + sizeof record)
        return BK_ABSENT;
    int result = bk_log_acquire(&store->files, row->log, BK_FILE_LOG, &fd);
    if (result == -ENOENT)
        return BK_ABSENT; /* a log that is missing is noted elsewhere */
    if (result != BK_OK)
        return result;
    result = bk_io_scan(fd, record, sizeof record, row->log_offset - sizeof record,
                        BK_FAULT_LOG_READ, &got);
    bk_log_release(&store->files, row->log, BK_FILE_LOG);
    if (result != BK_OK)
        return result;
    if (bk_record_read(record, got, 0, &size) != BK_OK || size != sizeof record ||
        (int64_t)bk_get64be(body) != name->ledger_id ||
        (int64_t)bk_get64be(body + 8) != BK_RECORD_INCARNATION)
        return BK_ABSENT;
    name->incarnation = (int64_t)bk_get64be(body + 16);
    name->first_log = bk_get32be(body + 24);
    return BK_OK;
}

/* Of the newest row that has one. A log has entries of one ledger of the id, so a name that cannot
 * be read matters unless that log has another. */
static int newest_name(bk_store *store, const bk_row *rows, uint32_t count, bk_name *name,
                       char *unread)
{
    const bk_row *unreadable = NULL;
    for (uint32_t i = 0; i < count; i++) {
        int result = read_name(store, &rows[i], name);
        if (result == BK_OK && (unreadable == NULL || unreadable->log == rows[i].log))
            return BK_OK;
        if (result == BK_OK)
            break;
        if (result == -EIO && unreadable == NULL)
            unreadable = &rows[i];
        else if (result < 0 && result != -EIO)
            return result;
    }
    if (unreadable == NULL)
        return BK_ABSENT;
    bk_log_path(store->folder, unreadable->log->id, BK_SUFFIX_LOG, unread);
    return -EIO;
}

int bk_store_find_incarnation(bk_store *store, int64_t ledger_id, int64_t *incarnation,
                              uint32_t *first_log, char *unread)
{
    bk_row *rows = NULL;
    uint32_t count = 0;
    bk_name name = {ledger_id, 0, 0};
    int result = take_rows(store, ledger_id, &rows, &count);
    if (result == BK_OK && count > 0) {
        qsort(rows, count, sizeof *rows, row_order);
        result = newest_name(store, rows, count, &name, unread);
    }
    for (uint32_t i = 0; i < count; i++)
        bk_log_unpin(&store->files, rows[i].log);
    free(rows);
    if (result != BK_OK)
        return result;
    *incarnation = name.incarnation;
    *first_log = name.first_log;
    return name.incarnation != 0 ? BK_OK : BK_ABSENT;
}
