/* Index files: a header, then one block for each flush. See store.h. */
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_HEADER_SIZE 20 /* before the checksum */
#define BLOCK_ALIGNMENT 64

static const char FILE_MAGIC[8] = {'Q', 'U', 'I', 'R', 'E', 'I', 'D', 'X'};
static const char BLOCK_MAGIC[8] = {'Q', 'U', 'I', 'R', 'E', 'X', 'T', 'N'};

/* --- writing ----------------------------------------------------------------------- */

int bk_index_write_header(int fd, uint32_t log_id, uint32_t origin)
{
    uint8_t block[BK_BLOCK_SIZE] = {0};
    memcpy(block, FILE_MAGIC, sizeof FILE_MAGIC);
    bk_put32le(block + 8, 1);
    bk_put32le(block + 12, log_id);
    bk_put32le(block + 16, origin);
    bk_put32le(block + FILE_HEADER_SIZE, bk_crc32c(0, block, FILE_HEADER_SIZE));
    return bk_io_write(fd, block, sizeof block, 0, BK_FAULT_INDEX_WRITE);
}

static void write_block_header(uint8_t *out, uint32_t log_id, const bk_index_block *block,
                               const bk_extent *rows)
{
    memset(out, 0, BK_INDEX_BLOCK_HEADER);
    memcpy(out, BLOCK_MAGIC, sizeof BLOCK_MAGIC);
    bk_put64le(out + 8, block->offset);
    bk_put32le(out + 16, block->rows);
    bk_put32le(out + 20, bk_crc32c(0, rows, (size_t)block->rows * BK_EXTENT_SIZE));
    bk_put64le(out + 24, block->pages_size);
    bk_put64le(out + 32, block->log_start);
    bk_put64le(out + 40, block->log_end);
    bk_put32le(out + 48, log_id);
    bk_put32le(out + 52, block->lost);
    bk_put32le(out + 60, bk_crc32c(0, out, 60));
}

static uint64_t block_pages(const bk_index_block *block)
{
    return block->offset + BK_INDEX_BLOCK_HEADER + (uint64_t)block->rows * BK_EXTENT_SIZE;
}

static uint64_t end_block(const bk_index_block *block)
{
    return bk_align_up(block_pages(block) + block->pages_size, BLOCK_ALIGNMENT);
}

static int assemble_block(const bk_index_block *block, uint32_t log_id, bk_extents *x,
                          uint8_t **out)
{
    size_t size = (size_t)(end_block(block) - block->offset);
    uint8_t *bytes = malloc(size);
    if (bytes == NULL)
        return -ENOMEM;
    size_t directory_size = (size_t)block->rows * BK_EXTENT_SIZE;
    size_t used = BK_INDEX_BLOCK_HEADER + directory_size + x->pages_size;
    for (uint32_t i = 0; i < block->rows; i++)
        x->rows[i].page_offset += block_pages(block);
    write_block_header(bytes, log_id, block, x->rows);
    if (block->rows > 0) { /* a log without a sound entry has none, and no memory for them */
        memcpy(bytes + BK_INDEX_BLOCK_HEADER, x->rows, directory_size);
        memcpy(bytes + BK_INDEX_BLOCK_HEADER + directory_size, x->pages, x->pages_size);
    }
    memset(bytes + used, 0, size - used);
    *out = bytes;
    return BK_OK;
}

int bk_index_write_block(int fd, uint32_t log_id, bk_extents *x, uint64_t log_start,
                         uint64_t log_end, uint64_t *end)
{
    bk_index_block block = {.offset = *end,
                            .rows = x->row_count,
                            .pages_size = x->pages_size,
                            .log_start = log_start,
                            .log_end = log_end,
                            .lost = x->lost};
    uint8_t *bytes;
    int result = assemble_block(&block, log_id, x, &bytes);
    if (result != BK_OK)
        return result;
    result = bk_io_write(fd, bytes, (size_t)(end_block(&block) - block.offset), block.offset,
                         BK_FAULT_INDEX_WRITE);
    free(bytes);
    if (result == BK_OK)
        result = bk_io_sync(fd, BK_FAULT_INDEX_SYNC);
    if (result == BK_OK)
        *end = end_block(&block);
    return result;
}

/* --- reading ----------------------------------------------------------------------- */

static int read_file_header(bk_index_scan *scan)
{
    uint8_t header[FILE_HEADER_SIZE + 4];
    size_t got;
    int result = bk_io_scan(scan->fd, header, sizeof header, 0, BK_FAULT_INDEX_READ, &got);
    if (result != BK_OK)
        return result;
    if (got < sizeof header || scan->file_size < BK_BLOCK_SIZE ||
        memcmp(header, FILE_MAGIC, sizeof FILE_MAGIC) != 0 || bk_get32le(header + 8) != 1 ||
        bk_get32le(header + FILE_HEADER_SIZE) != bk_crc32c(0, header, FILE_HEADER_SIZE))
        return BK_CORRUPT;
    scan->log_id = bk_get32le(header + 12);
    scan->origin = bk_get32le(header + 16);
    return BK_OK;
}

int bk_index_scan_open(const char *path, bk_index_scan **out, uint32_t *log_id)
{
    struct stat status;
    bk_index_scan *scan = calloc(1, sizeof *scan);
    *out = NULL;
    if (scan == NULL)
        return -ENOMEM;
    scan->fd = open(path, O_RDONLY | O_CLOEXEC);
    int result = scan->fd >= 0 && fstat(scan->fd, &status) == 0 ? BK_OK : -errno;
    if (result == BK_OK) {
        scan->file_size = (uint64_t)status.st_size;
        scan->end = scan->log_end = BK_BLOCK_SIZE;
        result = read_file_header(scan);
    }
    if (result != BK_OK) {
        bk_index_scan_close(scan);
        return result;
    }
    *log_id = scan->log_id;
    *out = scan;
    return BK_OK;
}

static int read_block_header(bk_index_scan *scan, bk_index_block *block, uint32_t *rows_crc)
{
    uint8_t header[BK_INDEX_BLOCK_HEADER];
    size_t got;
    int result =
        bk_io_scan(scan->fd, header, sizeof header, scan->end, BK_FAULT_INDEX_READ, &got);
    if (result != BK_OK)
        return result;
    if (bk_fault_at(BK_FAULT_INDEX_FLIP) != 0)
        header[0] ^= 1;
    if (got < sizeof header || memcmp(header, BLOCK_MAGIC, sizeof BLOCK_MAGIC) != 0 ||
        bk_get32le(header + 60) != bk_crc32c(0, header, 60))
        return BK_CORRUPT;
    *block = (bk_index_block){.offset = bk_get64le(header + 8),
                              .rows = bk_get32le(header + 16),
                              .pages_size = bk_get64le(header + 24),
                              .log_start = bk_get64le(header + 32),
                              .log_end = bk_get64le(header + 40),
                              .lost = bk_get32le(header + 52)};
    *rows_crc = bk_get32le(header + 20);
    if (block->offset != scan->end || bk_get32le(header + 48) != scan->log_id ||
        block->log_start != scan->log_end || block->log_end < block->log_start ||
        block->pages_size > scan->file_size || end_block(block) > scan->file_size)
        return BK_CORRUPT;
    return BK_OK;
}

/* Bytes of a row's pages, or more than the block has. */
static uint64_t pages_size(const bk_extent *row, const bk_index_block *block)
{
    if (row->kind == BK_KIND_SPARSE)
        return row->entries <= BK_SPARSE_ROWS ? row->entries * 12 + BK_PAGE_TAIL : UINT64_MAX;
    uint64_t slots = (uint64_t)(row->last_entry - row->first_entry) + 1;
    if (slots > block->pages_size / 4 || row->entries > slots)
        return UINT64_MAX;
    uint64_t rest = slots % BK_DENSE_SLOTS;
    return slots / BK_DENSE_SLOTS * BK_BLOCK_SIZE + (rest > 0 ? rest * 4 + BK_PAGE_TAIL : 0);
}

/* Lookups walk over the pages of a row and the records of its run: both are in its block. */
static int row_is_sound(const bk_extent *row, const bk_index_block *block)
{
    uint64_t pages = block_pages(block);
    if (row->first_entry < 0 || row->last_entry < row->first_entry ||
        row->last_entry == INT64_MAX || row->entries == 0 || row->kind > BK_KIND_SPARSE)
        return 0;
    return row->page_offset >= pages && row->page_offset <= pages + block->pages_size &&
           pages_size(row, block) <= pages + block->pages_size - row->page_offset &&
           row->log_offset >= block->log_start &&
           (uint64_t)row->log_offset + row->log_size <= block->log_end;
}

/* The directory in memory is searched by halves, so order is part of soundness. */
static int rows_are_sound(const bk_extent *rows, const bk_index_block *block)
{
    int64_t ledger_id = 0;
    for (uint32_t i = 0; i < block->rows; i++) {
        if (rows[i].ledger_id < ledger_id || !row_is_sound(&rows[i], block))
            return 0;
        ledger_id = rows[i].ledger_id;
    }
    return 1;
}

static int read_rows(bk_index_scan *scan, const bk_index_block *block, uint32_t crc)
{
    size_t size = (size_t)block->rows * BK_EXTENT_SIZE;
    size_t got;
    if (block->rows > scan->row_capacity) {
        bk_extent *larger = bk_array_resize(scan->rows, block->rows, sizeof *larger);
        if (larger == NULL)
            return -ENOMEM;
        scan->rows = larger;
        scan->row_capacity = block->rows;
    }
    int result = bk_io_scan(scan->fd, scan->rows, size, block->offset + BK_INDEX_BLOCK_HEADER,
                            BK_FAULT_INDEX_READ, &got);
    if (result != BK_OK)
        return result;
    if (got < size || bk_crc32c(0, scan->rows, size) != crc)
        return BK_CORRUPT;
    return rows_are_sound(scan->rows, block) ? BK_OK : BK_CORRUPT;
}

int bk_index_scan_block(bk_index_scan *scan)
{
    bk_index_block block = {0};
    uint32_t crc = 0;
    if (scan->result == BK_OK && scan->end >= scan->file_size)
        scan->result = BK_END;
    if (scan->result == BK_OK)
        scan->result = read_block_header(scan, &block, &crc);
    if (scan->result == BK_OK)
        scan->result = read_rows(scan, &block, crc);
    if (scan->result != BK_OK)
        return scan->result;
    scan->block = block;
    scan->row = 0;
    scan->end = end_block(&block);
    scan->log_end = block.log_end;
    return BK_OK;
}

int bk_index_scan_next(bk_index_scan *scan, bk_extent *extent, uint64_t *offset)
{
    while (scan->row >= scan->block.rows) {
        int ended = scan->result;
        int result = bk_index_scan_block(scan);
        *offset = scan->end;
        if (result != BK_OK)
            return ended == BK_OK ? result : BK_END;
    }
    *extent = scan->rows[scan->row];
    *offset = scan->block.offset + BK_INDEX_BLOCK_HEADER + (uint64_t)scan->row * BK_EXTENT_SIZE;
    scan->row++;
    return BK_OK;
}

static int check_page(const bk_index_scan *scan, uint64_t offset, size_t size)
{
    uint8_t page[BK_BLOCK_SIZE];
    size_t got;
    int result = bk_io_scan(scan->fd, page, size, offset, BK_FAULT_INDEX_READ, &got);
    if (result != BK_OK)
        return result;
    int sound = got == size && bk_crc32c(0, page, size - 4) == bk_get32le(page + size - 4);
    return sound ? BK_OK : BK_CORRUPT;
}

int bk_index_scan_pages(const bk_index_scan *scan, const bk_extent *extent, uint64_t *offset)
{
    *offset = extent->page_offset;
    if (extent->kind == BK_KIND_SPARSE)
        return extent->entries > BK_SPARSE_ROWS
                   ? BK_CORRUPT
                   : check_page(scan, *offset, extent->entries * 12 + BK_PAGE_TAIL);
    uint64_t left = (uint64_t)(extent->last_entry - extent->first_entry) + 1;
    while (left > 0) {
        uint32_t slots = left < BK_DENSE_SLOTS ? (uint32_t)left : BK_DENSE_SLOTS;
        int result = check_page(scan, *offset, slots * 4 + BK_PAGE_TAIL);
        if (result != BK_OK)
            return result;
        left -= slots;
        *offset += BK_BLOCK_SIZE;
    }
    return BK_OK;
}

void bk_index_scan_close(bk_index_scan *scan)
{
    if (scan == NULL)
        return;
    if (scan->fd >= 0)
        close(scan->fd);
    free(scan->rows);
    free(scan);
}
