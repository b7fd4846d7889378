/* Reading the journal. See journal.h. */
#include "window_internal.h"

#include <errno.h>
#include <stdlib.h>

#define MAGIC "QUIREJNL"
#define SEARCH_SIZE (2u * (uint64_t)BK_GROUP_SIZE_MAX)

struct bk_journal_scan {
    uint64_t end;    /* named by the successor; 0 for the newest file */
    uint64_t file_id;
    uint64_t previous_id;
    uint64_t previous_end;
    uint32_t salt;
    uint64_t at;        /* offset of the next record or group */
    uint64_t group_end; /* of its last record; 0 before the first group */
    uint64_t number;    /* of the group under way */
    int done;
    bk_window window;
};

static uint64_t id_of(const char *path)
{
    const char *name = strrchr(path, '/');
    return strtoull(name != NULL ? name + 1 : path, NULL, 16);
}

static int read_header(bk_journal_scan *scan, const char *path)
{
    const uint8_t *block;
    size_t got;
    int result = bk_window_look(&scan->window, 0, BK_BLOCK_SIZE, &block, &got);
    if (result != 0)
        return result;
    if (bk_window_has_lost(&scan->window, 0, BK_BLOCK_SIZE))
        return -EIO; /* all groups of the file would be passed over, and it may be read next time */
    if (got < BK_BLOCK_SIZE)
        return BK_END;
    uint64_t named = id_of(path);
    scan->file_id = bk_get64le(block + 16);
    scan->previous_id = bk_get64le(block + 24);
    scan->previous_end = bk_get64le(block + 32);
    if (memcmp(block, MAGIC, 8) != 0 || bk_crc32c(0, block, 40) != bk_get32le(block + 40) ||
        bk_get32le(block + 8) != 1)
        /* Groups come after the header was synced. Where there is none, a power cut may have
         * kept the size of a new file and not its header. */
        return scan->window.file_size > BK_BLOCK_SIZE ? BK_CORRUPT : BK_END;
    /* A spare that was renamed and not yet given its new header. */
    return scan->file_id == named ? BK_OK : BK_END;
}

static int open_scan(const char *path, int has_header, uint64_t start, uint64_t end,
                     bk_journal_scan **out)
{
    bk_journal_scan *scan = calloc(1, sizeof *scan);
    if (scan == NULL)
        return -ENOMEM;
    scan->window.fd = -1;
    int result = bk_window_open(&scan->window, path);
    scan->file_id = id_of(path);
    if (result == 0 && has_header)
        result = read_header(scan, path);
    if (result != 0) {
        bk_journal_scan_close(scan);
        return result;
    }
    scan->end = end;
    scan->salt = bk_salt(scan->file_id);
    scan->at = start < BK_BLOCK_SIZE ? BK_BLOCK_SIZE : start;
    *out = scan;
    return BK_OK;
}

int bk_journal_scan_open(const char *path, uint64_t start, uint64_t end, bk_journal_scan **out)
{
    return open_scan(path, 1, start, end, out);
}

int bk_journal_scan_open_past(const char *path, uint64_t start, uint64_t end,
                              bk_journal_scan **out)
{
    return open_scan(path, 0, start, end, out);
}

void bk_journal_scan_header(const bk_journal_scan *scan, uint64_t *file_id, uint64_t *previous_id,
                            uint64_t *previous_end)
{
    *file_id = scan->file_id;
    *previous_id = scan->previous_id;
    *previous_end = scan->previous_end;
}

/* Is there a sound group at offset, later than the one under way? */
static int group_at(bk_journal_scan *scan, uint64_t offset, uint64_t *group_end, uint64_t *number)
{
    const uint8_t *data;
    size_t got;
    uint32_t record_size;
    int result = bk_window_look(&scan->window, offset, BK_GROUP_HEADER_SIZE, &data, &got);
    if (result != 0)
        return result;
    if (got < BK_GROUP_HEADER_SIZE || bk_get32le(data) != BK_GROUP_HEADER_SIZE - 8 ||
        bk_record_read(data, got, scan->salt, &record_size) != BK_OK)
        return BK_ABSENT;
    const uint8_t *body = data + BK_RECORD_HEADER_SIZE;
    uint64_t size = bk_get64le(body + 40);
    if ((int64_t)bk_get64be(body + 8) != BK_RECORD_GROUP || bk_get64le(body + 16) != scan->file_id ||
        bk_get64le(body + 24) != offset || size < BK_GROUP_HEADER_SIZE ||
        size > (1ull << 40))
        return BK_ABSENT;
    *number = bk_get64le(body + 32);
    if (scan->group_end != 0 && *number <= scan->number)
        return BK_ABSENT;
    *group_end = offset + size;
    return BK_OK;
}

static void enter_group(bk_journal_scan *scan, uint64_t offset, uint64_t group_end, uint64_t number)
{
    scan->at = offset;
    scan->group_end = group_end;
    scan->number = number;
}

/* Nothing sound follows in the newest file. A group was acknowledged only if its first block was
 * there, so the log ends here, unless that block, or one of the group under way, cannot be read.
 * Then the end that the next file will name lies behind it: each start finds the damage. */
static int judge_tail(bk_journal_scan *scan)
{
    uint64_t end = scan->group_end > scan->at ? scan->group_end : scan->at + 1;
    end = bk_align_up(end, BK_BLOCK_SIZE);
    if (!bk_window_has_lost(&scan->window, scan->at, end))
        return BK_END;
    scan->at = end;
    return BK_CORRUPT;
}

/* Something at scan->at is not sound: the torn tail, or damage? Goes to the next
 * sound group if there is one. BK_CORRUPT for damage, BK_END for the tail. */
static int judge(bk_journal_scan *scan, bk_record *record)
{
    uint64_t bad = scan->at, limit = scan->end;
    record->offset = bad;
    if (limit == 0) {
        limit = (scan->group_end > bad ? scan->group_end : bad) + SEARCH_SIZE;
        if (limit > scan->window.file_size)
            limit = scan->window.file_size;
    }
    for (uint64_t at = bad / BK_BLOCK_SIZE * BK_BLOCK_SIZE + BK_BLOCK_SIZE; at < limit;
         at += BK_BLOCK_SIZE) {
        uint64_t group_end, number;
        int result = group_at(scan, at, &group_end, &number);
        if (result < 0)
            return result;
        if (result == BK_OK) {
            enter_group(scan, at, group_end, number);
            scan->group_end = at; /* so that the next call reads its group record */
            scan->number = number - 1;
            return BK_CORRUPT;
        }
    }
    scan->done = 1;
    if (scan->end == 0)
        return judge_tail(scan);
    scan->at = scan->end;
    return BK_CORRUPT;
}

static int next_group(bk_journal_scan *scan, bk_record *record)
{
    uint64_t group_end, number;
    int result = group_at(scan, scan->at, &group_end, &number);
    if (result < 0)
        return result;
    if (result != BK_OK)
        return judge(scan, record);
    enter_group(scan, scan->at, group_end, number);
    return BK_OK;
}

static int take_record(bk_journal_scan *scan, bk_record *record)
{
    const uint8_t *data;
    size_t got, most = (size_t)BK_RECORD_SIZE_MAX + BK_RECORD_HEADER_SIZE;
    uint32_t record_size;
    if (scan->group_end - scan->at < most)
        most = (size_t)(scan->group_end - scan->at);
    int result = bk_window_look(&scan->window, scan->at, BK_RECORD_HEADER_SIZE, &data, &got);
    if (result != 0)
        return result;
    if (got == BK_RECORD_HEADER_SIZE) {
        size_t need = (size_t)bk_get32le(data) + BK_RECORD_HEADER_SIZE;
        if (need <= most && (result = bk_window_look(&scan->window, scan->at, need, &data, &got)) != 0)
            return result;
    }
    if (bk_record_read(data, got, scan->salt, &record_size) != BK_OK || record_size > most)
        return judge(scan, record);
    record->offset = scan->at;
    record->body = data + BK_RECORD_HEADER_SIZE;
    record->body_size = record_size - BK_RECORD_HEADER_SIZE;
    record->ledger_id = (int64_t)bk_get64be(record->body);
    record->entry_id = (int64_t)bk_get64be(record->body + 8);
    scan->at += record_size;
    return BK_OK;
}

int bk_journal_scan_next(bk_journal_scan *scan, bk_record *record)
{
    if (scan->group_end != 0 && scan->at >= scan->group_end)
        scan->at = bk_align_up(scan->at, BK_BLOCK_SIZE);
    record->offset = scan->at;
    if (scan->done || (scan->end != 0 && scan->at >= scan->end))
        return BK_END;
    if (scan->group_end == 0 || scan->at >= scan->group_end) {
        int result = next_group(scan, record);
        if (result != BK_OK)
            return result;
    }
    return take_record(scan, record);
}

void bk_journal_scan_close(bk_journal_scan *scan)
{
    if (scan == NULL)
        return;
    bk_window_close(&scan->window);
    free(scan);
}
