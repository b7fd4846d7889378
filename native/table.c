/* The ledgers on disk. See table.h. */
#include "engine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int add_bytes(bk_bytes *bytes, const void *data, size_t size)
{
    uint8_t *grown = bk_array_grow(bytes->bytes, &bytes->room, bytes->size + size, 1);
    if (grown == NULL)
        return -ENOMEM;
    bytes->bytes = grown;
    memcpy(bytes->bytes + bytes->size, data, size);
    bytes->size += size;
    return 0;
}

uint32_t bk_special_write(uint8_t *out, uint32_t salt, int64_t ledger_id, int64_t kind,
                          const void *rest, uint32_t rest_size)
{
    uint8_t body[BK_SPECIAL_SIZE_MAX];
    bk_put64be(body, (uint64_t)ledger_id);
    bk_put64be(body + 8, (uint64_t)kind);
    memcpy(body + 16, rest, rest_size);
    return bk_record_write(out, salt, body, 16 + rest_size);
}

uint32_t bk_incarnation_write(uint8_t *out, uint32_t salt, int64_t ledger_id, int64_t incarnation,
                              uint32_t first_log)
{
    uint8_t number[12];
    bk_put64be(number, (uint64_t)incarnation);
    bk_put32be(number + 8, first_log);
    return bk_special_write(out, salt, ledger_id, BK_RECORD_INCARNATION, number, sizeof number);
}

static int describe(bk_bytes *bytes, int64_t ledger_id, int64_t kind, const void *rest,
                    uint32_t rest_size)
{
    uint8_t record[BK_SPECIAL_SIZE_MAX + BK_RECORD_HEADER_SIZE];
    return add_bytes(bytes, record,
                     bk_special_write(record, 0, ledger_id, kind, rest, rest_size));
}

int bk_table_describe(bk_bytes *bytes, const bk_ledger *ledger)
{
    uint8_t number[8], record[BK_INCARNATION_RECORD_SIZE];
    int result = 0;
    if (ledger->incarnation != 0 || ledger->was_renewed)
        result = add_bytes(bytes, record,
                           bk_incarnation_write(record, 0, ledger->id, ledger->incarnation,
                                                ledger->first_log));
    if (result == 0 && ledger->key_known)
        result = describe(bytes, ledger->id, BK_RECORD_KEY, ledger->key, BK_KEY_SIZE);
    if (result == 0 && ledger->fenced)
        result = describe(bytes, ledger->id, BK_RECORD_FENCE, "", 0);
    if (result == 0 && ledger->explicit_lac >= 0) {
        bk_put64be(number, (uint64_t)ledger->explicit_lac);
        result = describe(bytes, ledger->id, BK_RECORD_EXPLICIT_LAC, number, 8);
    }
    if (result == 0 && ledger->deleted) {
        bk_put64be(number, (uint64_t)ledger->deleted_ms);
        result = describe(bytes, ledger->id, BK_RECORD_DELETED, number, 8);
    }
    return result;
}

int bk_table_apply(bk_ledgers *ledgers, const bk_record *record)
{
    const uint8_t *rest = record->body + 16;
    uint32_t size = record->body_size - 16;
    if (record->ledger_id < 0)
        return 0;
    bk_ledger *ledger = bk_ledgers_make(ledgers, record->ledger_id);
    if (ledger == NULL)
        return -ENOMEM;
    if (record->entry_id == BK_RECORD_KEY && size == BK_KEY_SIZE) {
        memcpy(ledger->key, rest, BK_KEY_SIZE);
        ledger->key_known = 1;
        bk_tombstone_set(ledger, 0, 0);
    } else if (record->entry_id == BK_RECORD_FENCE) {
        ledger->fenced = 1;
    } else if (record->entry_id == BK_RECORD_EXPLICIT_LAC && size == 8) {
        int64_t lac = (int64_t)bk_get64be(rest);
        if (lac > ledger->explicit_lac)
            ledger->explicit_lac = lac;
        if (lac > ledger->lac)
            ledger->lac = lac;
    } else if (record->entry_id == BK_RECORD_DELETED && size == 8) {
        bk_tombstone_set(ledger, 1, (int64_t)bk_get64be(rest));
    } else if (record->entry_id == BK_RECORD_INCARNATION && size == 12) {
        bk_ledger_renew(ledger, (int64_t)bk_get64be(rest), bk_get32be(rest + 8));
    }
    return 0;
}

int bk_table_path(const char *folder, uint64_t table_id, char *out)
{
    int n = snprintf(out, BK_PATH_SIZE_MAX, "%s/%016llx.table", folder,
                     (unsigned long long)table_id);
    return n > 0 && n < BK_PATH_SIZE_MAX ? 0 : -ENAMETOOLONG;
}

/* --- scan ------------------------------------------------------------------------ */

struct bk_table_scan {
    uint8_t *bytes; /* the whole file: some hundred bytes a ledger */
    size_t size;
    size_t at;
    int damaged;
    bk_lost lost;
};

int bk_table_scan_open(const char *path, uint64_t end, bk_table_scan **out)
{
    struct stat st;
    int result = 0;
    bk_table_scan *scan = calloc(1, sizeof *scan);
    if (scan == NULL)
        return -ENOMEM;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        result = -errno;
    } else {
        size_t size = (size_t)st.st_size;
        if (end != 0 && end < size)
            size = (size_t)end;
        /* What the mark promises and the file lacks is damage, reported at its end. */
        scan->damaged = end != 0 && end > (uint64_t)st.st_size;
        scan->bytes = malloc(size + 1);
        result = scan->bytes != NULL ? bk_io_salvage(fd, scan->bytes, size, 0, BK_FAULT_TABLE_READ,
                                                     &scan->lost, &scan->size)
                                     : -ENOMEM;
    }
    if (fd >= 0)
        close(fd);
    if (result != 0) {
        bk_table_scan_close(scan);
        return result;
    }
    *out = scan;
    return BK_OK;
}

int bk_table_scan_next(bk_table_scan *scan, bk_record *record)
{
    uint32_t size;
    record->offset = scan->at;
    if (scan->at >= scan->size) {
        int damaged = scan->damaged;
        scan->damaged = 0;
        return damaged ? BK_CORRUPT : BK_END;
    }
    const uint8_t *data = scan->bytes + scan->at;
    if (bk_record_read(data, scan->size - scan->at, 0, &size) != BK_OK) {
        scan->at = scan->size;
        scan->damaged = 0;
        return BK_CORRUPT;
    }
    record->body = data + BK_RECORD_HEADER_SIZE;
    record->body_size = size - BK_RECORD_HEADER_SIZE;
    record->ledger_id = (int64_t)bk_get64be(record->body);
    record->entry_id = (int64_t)bk_get64be(record->body + 8);
    scan->at += size;
    return BK_OK;
}

void bk_table_scan_close(bk_table_scan *scan)
{
    if (scan == NULL)
        return;
    free(scan->bytes);
    free(scan);
}
