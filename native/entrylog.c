/* Entry logs: the header, and the one writer of a log and of its index.
 *
 * Records are gathered in one aligned buffer and written past the page cache:
 * a flush would push out what readers use. The log is synced before the index
 * block that describes it is written, and both before anybody sees the rows. */
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_SIZE (2u << 20)
#define HEADER_SIZE 40 /* before the checksum */
#define MAP_PAIRS_MAX 10000

static const char LOG_MAGIC[8] = {'Q', 'U', 'I', 'R', 'E', 'L', 'O', 'G'};

/* --- the header -------------------------------------------------------------------- */

void bk_log_header_write(uint8_t *block, const bk_log_header *header)
{
    memset(block, 0, BK_BLOCK_SIZE);
    memcpy(block, LOG_MAGIC, sizeof LOG_MAGIC);
    bk_put32le(block + 8, 1);
    bk_put32le(block + 12, header->log_id);
    bk_put32le(block + 16, header->origin);
    bk_put64le(block + 24, header->map_offset);
    bk_put64le(block + 32, header->end);
    bk_put32le(block + HEADER_SIZE, bk_crc32c(0, block, HEADER_SIZE));
}

int bk_log_header_read(const uint8_t *block, bk_log_header *header)
{
    if (memcmp(block, LOG_MAGIC, sizeof LOG_MAGIC) != 0 || bk_get32le(block + 8) != 1 ||
        bk_get32le(block + HEADER_SIZE) != bk_crc32c(0, block, HEADER_SIZE))
        return BK_CORRUPT;
    header->log_id = bk_get32le(block + 12);
    header->origin = bk_get32le(block + 16);
    header->map_offset = bk_get64le(block + 24);
    header->end = bk_get64le(block + 32);
    return BK_OK;
}

int bk_log_header_load(const char *path, bk_log_header *header, uint64_t *file_size)
{
    uint8_t block[HEADER_SIZE + 4];
    struct stat status;
    size_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = fstat(fd, &status) == 0 ? BK_OK : -errno;
    if (result == BK_OK) {
        *file_size = (uint64_t)status.st_size;
        result = bk_io_scan(fd, block, sizeof block, 0, BK_FAULT_LOG_READ, &got);
    }
    close(fd);
    if (result != BK_OK)
        return result;
    return got == sizeof block ? bk_log_header_read(block, header) : BK_CORRUPT;
}

/* --- beginning and ending ---------------------------------------------------------- */

int bk_log_writer_init(bk_log_writer *w, const char *folder)
{
    memset(w, 0, sizeof *w);
    w->folder = folder;
    w->log_fd = w->index_fd = -1;
    w->buffer = bk_io_alloc(BUFFER_SIZE);
    return w->buffer != NULL ? BK_OK : -ENOMEM;
}

void bk_log_writer_drop(bk_log_writer *w)
{
    if (w->log_fd >= 0)
        close(w->log_fd);
    if (w->index_fd >= 0)
        close(w->index_fd);
    w->log_fd = w->index_fd = -1;
    w->used = 0;
    bk_extents_clear(&w->extents);
}

void bk_log_writer_free(bk_log_writer *w)
{
    bk_log_writer_drop(w);
    bk_extents_free(&w->extents);
    free(w->buffer);
    w->buffer = NULL;
}

static int open_writer(bk_log_writer *w, int flags)
{
    char path[BK_PATH_SIZE_MAX];
    bk_log_path(w->folder, w->header.log_id, BK_SUFFIX_LOG, path);
    int result = bk_io_open_direct(path, O_RDWR | flags, &w->log_fd);
    if (result != BK_OK)
        return result;
    bk_log_path(w->folder, w->header.log_id, BK_SUFFIX_INDEX, path);
    w->index_fd = open(path, O_RDWR | O_CLOEXEC | flags, BK_FILE_MODE);
    return w->index_fd >= 0 ? BK_OK : -errno;
}

int bk_log_writer_begin(bk_log_writer *w, uint32_t log_id, uint32_t origin)
{
    w->header = (bk_log_header){.log_id = log_id, .origin = origin};
    int result = open_writer(w, O_CREAT | O_EXCL);
    /* The names are made to last first: an index whose log has no name would be
     * taken for a lost log. */
    if (result == BK_OK)
        result = bk_io_sync_folder(w->folder);
    if (result == BK_OK)
        result = bk_index_write_header(w->index_fd, log_id, origin);
    if (result != BK_OK) {
        bk_log_writer_drop(w);
        return result;
    }
    bk_log_header_write(w->buffer, &w->header);
    w->buffer_offset = 0;
    w->used = BK_BLOCK_SIZE;
    w->log_end = 0;
    w->block_start = BK_BLOCK_SIZE;
    w->index_end = BK_BLOCK_SIZE;
    return BK_OK;
}

int bk_log_writer_resume(bk_log_writer *w, const bk_log_header *header, uint64_t log_end,
                         uint64_t index_end)
{
    w->header = *header;
    int result = open_writer(w, 0);
    if (result != BK_OK) {
        bk_log_writer_drop(w);
        return result;
    }
    w->buffer_offset = w->log_end = w->block_start = log_end;
    w->used = 0;
    w->index_end = index_end;
    return BK_OK;
}

/* --- records ----------------------------------------------------------------------- */

uint64_t bk_log_writer_offset(const bk_log_writer *w)
{
    return w->buffer_offset + w->used;
}

static void step(const bk_log_writer *w)
{
    if (w->steps != NULL)
        bk_count(w->steps, 1);
}

static int write_buffer(bk_log_writer *w)
{
    int result = bk_io_write(w->log_fd, w->buffer, w->used, w->buffer_offset, BK_FAULT_LOG_WRITE);
    w->buffer_offset += w->used;
    w->used = 0;
    step(w);
    return result;
}

static int put_buffer(bk_log_writer *w, const uint8_t *data, size_t size)
{
    while (size > 0) {
        size_t room = BUFFER_SIZE - w->used;
        size_t piece = size < room ? size : room;
        memcpy(w->buffer + w->used, data, piece);
        w->used += (uint32_t)piece;
        data += piece;
        size -= piece;
        if (w->used == BUFFER_SIZE) {
            int result = write_buffer(w);
            if (result != BK_OK)
                return result;
        }
    }
    return BK_OK;
}

int bk_log_writer_add(bk_log_writer *w, int64_t ledger_id, int64_t entry_id, const uint8_t *record,
                      uint32_t record_size, uint32_t salt)
{
    uint8_t head[BK_RECORD_HEADER_SIZE];
    int result = bk_extents_add(&w->extents, ledger_id, entry_id,
                                (uint32_t)bk_log_writer_offset(w), record_size);
    bk_put32le(head, bk_get32le(record));
    bk_put32le(head + 4, bk_get32le(record + 4) ^ salt);
    if (result == BK_OK)
        result = put_buffer(w, head, sizeof head);
    if (result == BK_OK)
        result = put_buffer(w, record + sizeof head, record_size - sizeof head);
    return result;
}

int bk_log_writer_name(bk_log_writer *w, int64_t ledger_id, int64_t incarnation,
                       uint32_t first_log)
{
    uint8_t record[BK_INCARNATION_RECORD_SIZE];
    return put_buffer(w, record,
                      bk_incarnation_write(record, 0, ledger_id, incarnation, first_log));
}

/* Fill up the block with zeros, write it, sync the log. */
static int sync_log(bk_log_writer *w)
{
    uint32_t end = (uint32_t)bk_align_up(w->used, BK_BLOCK_SIZE);
    memset(w->buffer + w->used, 0, end - w->used);
    w->used = end;
    int result = w->used > 0 ? write_buffer(w) : BK_OK;
    if (result == BK_OK)
        result = bk_io_sync(w->log_fd, BK_FAULT_LOG_SYNC);
    step(w);
    if (result == BK_OK)
        w->log_end = w->buffer_offset;
    return result;
}

static int take_rows(const bk_extents *x, bk_extent **rows, uint32_t *count)
{
    size_t total = (size_t)*count + x->row_count;
    bk_extent *larger = bk_array_resize(*rows, total, sizeof *larger);
    if (larger == NULL)
        return -ENOMEM;
    memcpy(larger + *count, x->rows, x->row_count * sizeof *larger);
    *rows = larger;
    *count = (uint32_t)total;
    return BK_OK;
}

int bk_log_writer_sync(bk_log_writer *w, bk_extent **rows, uint32_t *count)
{
    int result = bk_extents_end(&w->extents);
    if (result != BK_OK || w->extents.row_count == 0)
        return result;
    result = sync_log(w);
    if (result == BK_OK)
        result = bk_index_write_block(w->index_fd, w->header.log_id, &w->extents, w->block_start,
                                      w->log_end, &w->index_end);
    step(w);
    if (result == BK_OK)
        result = take_rows(&w->extents, rows, count);
    w->block_start = w->log_end;
    bk_extents_clear(&w->extents);
    return result;
}

/* --- the map ----------------------------------------------------------------------- */

typedef struct {
    int64_t ledger_id;
    uint64_t size;
} map_pair;

static int pair_order(const void *a, const void *b)
{
    const map_pair *left = a, *right = b;
    return (left->ledger_id > right->ledger_id) - (left->ledger_id < right->ledger_id);
}

static uint32_t merge_pairs(map_pair *pairs, uint32_t count)
{
    uint32_t kept = 0;
    qsort(pairs, count, sizeof *pairs, pair_order);
    for (uint32_t i = 0; i < count; i++) {
        if (kept > 0 && pairs[kept - 1].ledger_id == pairs[i].ledger_id)
            pairs[kept - 1].size += pairs[i].size;
        else
            pairs[kept++] = pairs[i];
    }
    return kept;
}

static int append_pairs(map_pair **pairs, uint32_t *count, const bk_extent *rows, uint32_t more)
{
    map_pair *larger = bk_array_resize(*pairs, (size_t)*count + more, sizeof *larger);
    if (larger == NULL)
        return -ENOMEM;
    *pairs = larger;
    for (uint32_t i = 0; i < more; i++)
        larger[*count + i] = (map_pair){rows[i].ledger_id, rows[i].log_size};
    *count = merge_pairs(larger, *count + more);
    return BK_OK;
}

/* What the log holds, read back from its index. BK_CORRUPT: the index is damaged, or the disk cannot
 * read it now; of a copy that is -EIO, and its sources stay. */
static int load_pairs(const bk_log_writer *w, map_pair **pairs, uint32_t *count)
{
    char path[BK_PATH_SIZE_MAX];
    bk_index_scan *scan = NULL;
    uint32_t log_id;
    bk_log_path(w->folder, w->header.log_id, BK_SUFFIX_INDEX, path);
    int result = bk_index_scan_open(path, &scan, &log_id);
    while (result == BK_OK && (result = bk_index_scan_block(scan)) == BK_OK)
        result = append_pairs(pairs, count, scan->rows, scan->block.rows);
    bk_index_scan_close(scan);
    if (result == -EIO && w->header.origin == w->header.log_id)
        return BK_CORRUPT;
    return result == BK_END ? BK_OK : result;
}

static int put_map(bk_log_writer *w, const map_pair *pairs, uint32_t count)
{
    uint32_t body_size = 16 + count * (uint32_t)sizeof *pairs;
    uint8_t *record = malloc(2 * ((size_t)body_size + BK_RECORD_HEADER_SIZE));
    if (record == NULL)
        return -ENOMEM;
    uint8_t *body = record + BK_RECORD_HEADER_SIZE + body_size;
    bk_put64be(body, (uint64_t)-1);
    bk_put64be(body + 8, (uint64_t)(int64_t)BK_RECORD_MAP);
    memcpy(body + 16, pairs, count * sizeof *pairs);
    int result = put_buffer(w, record, bk_record_write(record, 0, body, body_size));
    free(record);
    return result;
}

static int write_map(bk_log_writer *w)
{
    map_pair *pairs = NULL;
    uint32_t count = 0, done = 0;
    int result = load_pairs(w, &pairs, &count);
    while (result == BK_OK && done < count) {
        uint32_t piece = count - done < MAP_PAIRS_MAX ? count - done : MAP_PAIRS_MAX;
        result = put_map(w, pairs + done, piece);
        done += piece;
    }
    free(pairs);
    return result == BK_OK ? sync_log(w) : result;
}

/* --- closing ----------------------------------------------------------------------- */

static int patch_header(int fd, const bk_log_header *header, uint8_t *block)
{
    bk_log_header_write(block, header);
    int result = bk_io_write(fd, block, BK_BLOCK_SIZE, 0, BK_FAULT_LOG_WRITE);
    return result == BK_OK ? bk_io_sync(fd, BK_FAULT_LOG_SYNC) : result;
}

int bk_log_writer_close(bk_log_writer *w)
{
    w->header.map_offset = w->log_end;
    int result = write_map(w);
    if (result == BK_CORRUPT) {
        w->header.map_offset = 0;
        result = BK_OK;
    }
    w->header.end = w->log_end;
    /* A header that says "closed" vouches for all before it, so it comes last. */
    if (result == BK_OK)
        result = patch_header(w->log_fd, &w->header, w->buffer);
    bk_log_writer_drop(w);
    return result;
}

int bk_log_header_save(const char *folder, uint32_t log_id, uint32_t origin, uint64_t end)
{
    char path[BK_PATH_SIZE_MAX];
    bk_log_header header = {.log_id = log_id, .origin = origin, .end = end};
    bk_log_path(folder, log_id, BK_SUFFIX_LOG, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? BK_OK : -errno;
    uint8_t block[BK_BLOCK_SIZE];
    int result = patch_header(fd, &header, block);
    close(fd);
    return result;
}
