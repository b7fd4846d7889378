/* Reading an entry log from front to back, past damage. */
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define WINDOW_SIZE (1u << 20)

struct bk_log_scan {
    int fd;
    uint64_t position;
    uint64_t end;
    uint64_t file_size;
    uint8_t *window;
    size_t capacity;
    uint64_t window_offset; /* in the log */
    size_t window_size;
    bk_lost lost;
};

/* Make size bytes at offset readable at *out; *got is less at the end. */
static int move_window(bk_log_scan *scan, uint64_t offset, size_t size, const uint8_t **out,
                       size_t *got)
{
    uint64_t left = offset < scan->end ? scan->end - offset : 0;
    if (size > left)
        size = (size_t)left;
    if (offset < scan->window_offset ||
        offset + size > scan->window_offset + scan->window_size) {
        if (size > scan->capacity) {
            uint8_t *larger = bk_array_resize(scan->window, size, 1);
            if (larger == NULL)
                return -ENOMEM;
            scan->window = larger;
            scan->capacity = size;
        }
        size_t wanted = left < scan->capacity ? (size_t)left : scan->capacity;
        int result = bk_io_salvage(scan->fd, scan->window, wanted, offset, BK_FAULT_LOG_READ,
                                   &scan->lost, &scan->window_size);
        if (result != BK_OK) {
            scan->window_size = 0;
            return result;
        }
        scan->window_offset = offset;
    }
    uint64_t behind = offset - scan->window_offset;
    *out = scan->window + behind;
    *got = behind + size <= scan->window_size ? size
           : behind < scan->window_size       ? (size_t)(scan->window_size - behind)
                                              : 0;
    return BK_OK;
}

static uint64_t next_block(uint64_t offset)
{
    return bk_align_up(offset + 1, BK_BLOCK_SIZE);
}

static int is_zero(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (data[i] != 0)
            return 0;
    return 1;
}

/* Whether the block of offset is empty from there on. */
static int look_padding(bk_log_scan *scan, uint64_t offset)
{
    const uint8_t *data;
    size_t got;
    int result = move_window(scan, offset, next_block(offset) - offset, &data, &got);
    return result != BK_OK ? result : is_zero(data, got) ? BK_END : BK_CORRUPT;
}

static int look_record(bk_log_scan *scan, uint64_t offset, const uint8_t **data,
                       uint32_t *record_size)
{
    size_t got;
    int result = move_window(scan, offset, 4, data, &got);
    if (result != BK_OK)
        return result;
    uint32_t body_size = got == 4 ? bk_get32le(*data) : UINT32_MAX;
    if (body_size > BK_RECORD_SIZE_MAX)
        return BK_CORRUPT;
    result = move_window(scan, offset, (size_t)body_size + BK_RECORD_HEADER_SIZE, data, &got);
    return result != BK_OK ? result : bk_record_read(*data, got, 0, record_size);
}

/* What lies at offset. BK_OK: a record. BK_END: padding up to the next block.
 * A size of 0 with something behind it is damage: a lost size, not padding. Where
 * a block has fewer than four bytes left, a size may begin as well as padding. */
static int look(bk_log_scan *scan, uint64_t offset, const uint8_t **data, uint32_t *record_size)
{
    int result = look_record(scan, offset, data, record_size);
    if (result == BK_END || (result == BK_CORRUPT && next_block(offset) - offset < 4))
        return look_padding(scan, offset);
    return result;
}

/* Where to go on after the damage at offset: behind the damaged record when its
 * size leads to something sound, else at the next block that starts with a record. */
static int resume(bk_log_scan *scan, uint64_t offset)
{
    const uint8_t *data;
    uint32_t record_size;
    size_t got;
    int result = move_window(scan, offset, 4, &data, &got);
    if (result == BK_OK && got == 4 && bk_get32le(data) <= BK_RECORD_SIZE_MAX) {
        uint64_t behind = offset + BK_RECORD_HEADER_SIZE + bk_get32le(data);
        result = look(scan, behind, &data, &record_size);
        if (behind == scan->end || result == BK_OK || result == BK_END) {
            scan->position = behind;
            return BK_OK;
        }
    }
    uint64_t last = scan->end < scan->file_size ? scan->end : scan->file_size;
    for (offset = next_block(offset); offset < last; offset = next_block(offset)) {
        result = look(scan, offset, &data, &record_size);
        if (result < 0)
            return result;
        if (result == BK_OK)
            break;
    }
    scan->position = offset < last ? offset : scan->end;
    return BK_OK;
}

static void fill_record(bk_record *record, const uint8_t *data, uint32_t record_size)
{
    record->body = data + BK_RECORD_HEADER_SIZE;
    record->body_size = record_size - BK_RECORD_HEADER_SIZE;
    record->ledger_id = (int64_t)bk_get64be(record->body);
    record->entry_id = (int64_t)bk_get64be(record->body + 8);
}

int bk_log_scan_next(bk_log_scan *scan, bk_record *record)
{
    for (;;) {
        const uint8_t *data;
        uint32_t record_size = 0;
        *record = (bk_record){.offset = scan->position, .ledger_id = -1, .entry_id = -1};
        if (scan->position >= scan->end)
            return BK_END;
        int result = look(scan, scan->position, &data, &record_size);
        if (result == BK_OK) {
            fill_record(record, data, record_size);
            scan->position += record_size;
            return BK_OK;
        }
        if (result == BK_CORRUPT) {
            result = resume(scan, scan->position);
            return result < 0 ? result : BK_CORRUPT;
        }
        if (result != BK_END)
            return result;
        scan->position = next_block(scan->position);
    }
}

int bk_log_scan_open_at(const char *path, uint64_t start, uint64_t end, bk_log_scan **out)
{
    struct stat status;
    bk_log_scan *scan = calloc(1, sizeof *scan);
    *out = NULL;
    if (scan == NULL)
        return -ENOMEM;
    scan->window = malloc(WINDOW_SIZE);
    scan->capacity = WINDOW_SIZE;
    scan->fd = open(path, O_RDONLY | O_CLOEXEC);
    int result = scan->window == NULL ? -ENOMEM : BK_OK;
    if (result == BK_OK && (scan->fd < 0 || fstat(scan->fd, &status) != 0))
        result = -errno;
    if (result != BK_OK) {
        bk_log_scan_close(scan);
        return result;
    }
    scan->file_size = (uint64_t)status.st_size;
    scan->position = start;
    scan->end = end != 0 ? end : scan->file_size;
    posix_fadvise(scan->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    *out = scan;
    return BK_OK;
}

int bk_log_scan_open(const char *path, uint64_t end, bk_log_scan **out, uint32_t *log_id,
                     uint32_t *closed)
{
    bk_log_header header;
    uint64_t file_size;
    *out = NULL;
    int result = bk_log_header_load(path, &header, &file_size);
    if (result != BK_OK)
        return result;
    *log_id = header.log_id;
    *closed = header.end != 0;
    return bk_log_scan_open_at(path, BK_BLOCK_SIZE, end != 0 ? end : header.end, out);
}

void bk_log_scan_close(bk_log_scan *scan)
{
    if (scan == NULL)
        return;
    if (scan->fd >= 0)
        close(scan->fd);
    free(scan->window);
    free(scan);
}
