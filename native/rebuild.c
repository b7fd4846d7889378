/* An index from a log: its records say all that the index says. */
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK_PAGES_MAX (8u << 20) /* bytes of pages after which a block ends */

typedef struct {
    int fd;
    const bk_log_header *header;
    bk_extents extents;
    uint64_t block_start;
    uint64_t index_end;
    int64_t ledger_id, entry_id; /* of the record before */
    uint64_t entries;
} rebuild;

static int end_block(rebuild *r, uint64_t log_end)
{
    int result = bk_extents_end(&r->extents);
    if (result == BK_OK && log_end > r->block_start)
        result = bk_index_write_block(r->fd, r->header->log_id, &r->extents, r->block_start,
                                      log_end, &r->index_end);
    bk_extents_clear(&r->extents);
    r->block_start = log_end;
    r->ledger_id = r->entry_id = -1;
    return result;
}

static int is_in_order(const rebuild *r, const bk_record *record)
{
    return record->ledger_id > r->ledger_id ||
           (record->ledger_id == r->ledger_id && record->entry_id > r->entry_id);
}

static int add_entry(rebuild *r, const bk_record *record)
{
    int result = BK_OK;
    if (!bk_ids_are_sound(record->ledger_id, record->entry_id) ||
        record->offset >= BK_LOG_OFFSET_MAX)
        return BK_OK;
    if (!is_in_order(r, record) || r->extents.pages_size > BLOCK_PAGES_MAX)
        result = end_block(r, record->offset);
    if (result == BK_OK)
        result = bk_extents_add(&r->extents, record->ledger_id, record->entry_id,
                                (uint32_t)record->offset,
                                record->body_size + BK_RECORD_HEADER_SIZE);
    r->ledger_id = record->ledger_id;
    r->entry_id = record->entry_id;
    r->entries++;
    return result;
}

static int is_map(const bk_record *record)
{
    return record->ledger_id == -1 && record->entry_id == BK_RECORD_MAP;
}

static int read_records(rebuild *r, bk_log_scan *scan, const char *log_path, bk_damage_note note,
                        void *context)
{
    bk_record record;
    for (;;) {
        int result = bk_log_scan_next(scan, &record);
        if (result == BK_CORRUPT) {
            r->extents.lost++;
            result = note(context, log_path, record.offset);
        } else if (result == BK_END || (result == BK_OK && is_map(&record))) {
            return end_block(r, record.offset);
        } else if (result == BK_OK) {
            result = add_entry(r, &record);
        }
        if (result != BK_OK)
            return result;
    }
}

static int rename_durably(const char *from, const char *to)
{
    char folder[BK_PATH_SIZE_MAX];
    if (rename(from, to) != 0)
        return -errno;
    snprintf(folder, sizeof folder, "%s", to);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return bk_io_sync_folder(".");
    slash[slash == folder] = '\0';
    return bk_io_sync_folder(folder);
}

int bk_index_rebuild_from(const char *log_path, const char *index_path, const bk_log_header *header,
                          bk_damage_note note, void *context, uint64_t *entries)
{
    char temporary[BK_PATH_SIZE_MAX + 8];
    bk_log_scan *scan = NULL;
    uint64_t end = header->map_offset != 0 ? header->map_offset : header->end;
    rebuild r = {.header = header, .block_start = BK_BLOCK_SIZE, .index_end = BK_BLOCK_SIZE,
                 .ledger_id = -1, .entry_id = -1};
    snprintf(temporary, sizeof temporary, "%s.tmp", index_path);
    int result = bk_log_scan_open_at(log_path, BK_BLOCK_SIZE, end, &scan);
    if (result != BK_OK)
        return result;
    r.fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, BK_FILE_MODE);
    result = r.fd >= 0 ? bk_index_write_header(r.fd, header->log_id, header->origin) : -errno;
    if (result == BK_OK)
        result = read_records(&r, scan, log_path, note, context);
    if (result == BK_OK)
        result = bk_io_sync(r.fd, BK_FAULT_INDEX_SYNC);
    if (result == BK_OK)
        result = rename_durably(temporary, index_path);
    if (r.fd >= 0)
        close(r.fd);
    if (result != BK_OK)
        unlink(temporary);
    bk_extents_free(&r.extents);
    bk_log_scan_close(scan);
    *entries = r.entries;
    return result;
}

static int count_damage(void *context, const char *path, uint64_t offset)
{
    bk_rebuilt *rebuilt = context;
    (void)path;
    if (rebuilt->damaged++ == 0)
        rebuilt->first_damage = offset;
    return BK_OK;
}

static uint32_t id_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return (uint32_t)strtoul(slash != NULL ? slash + 1 : path, NULL, 16);
}

int bk_index_rebuild(const char *log_path, const char *index_path, bk_rebuilt *rebuilt)
{
    bk_log_header header;
    uint64_t file_size;
    *rebuilt = (bk_rebuilt){0, 0, 0};
    int result = bk_log_header_load(log_path, &header, &file_size);
    if (result == BK_CORRUPT || result == -EIO) {
        header = (bk_log_header){.log_id = id_of(log_path), .origin = id_of(log_path)};
        rebuilt->damaged++;
    } else if (result != BK_OK) {
        return result;
    }
    return bk_index_rebuild_from(log_path, index_path, &header, count_damage, rebuilt,
                                 &rebuilt->entries);
}
