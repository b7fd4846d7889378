/* Any bytes as an entry log and its index: the index scan, and a store over both.
 *
 * After the modes come 4 bytes, little-endian: the size of the log; then the log,
 * then the index. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"

#define LEDGERS_MAX 16
#define ENTRIES_MAX 64
#define ROW_SIZE 48
#define SLOTS_MAX 1022

static char log_path[256], index_path[256];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_make_folders();
    snprintf(log_path, sizeof log_path, "%s", fuzz_path(fuzz_ledger_folder(), "00000001.log"));
    snprintf(index_path, sizeof index_path, "%s",
             fuzz_path(fuzz_ledger_folder(), "00000001.index"));
    return 0;
}

/* --- repair, by the layouts of store.h ---------------------------------------------- */

static void repair_page(uint8_t *file, size_t size, uint64_t at, uint64_t page_size)
{
    if (at < size && page_size + 4 <= size - at)
        fuzz_repair_after(file + at, page_size);
}

static void repair_pages(uint8_t *file, size_t size, const uint8_t *row)
{
    uint64_t first = bk_get64le(row + 8), last = bk_get64le(row + 16);
    uint64_t at = bk_get64le(row + 24), left = last - first + 1;
    if (bk_get32le(row + 44) != 0) {
        repair_page(file, size, at, (uint64_t)bk_get32le(row + 40) * 12 + 4);
        return;
    }
    for (; left > 0 && at < size; left -= left < SLOTS_MAX ? left : SLOTS_MAX) {
        uint64_t page_size = (left < SLOTS_MAX ? left : SLOTS_MAX) * 4 + 4;
        repair_page(file, size, at, page_size);
        at += page_size + 4;
    }
}

static void repair_index(uint8_t *file, size_t size)
{
    if (size >= 24)
        fuzz_repair_after(file, 20);
    for (size_t at = BK_BLOCK_SIZE; at < size && size - at >= 64; at += 64) {
        uint8_t *block = file + at;
        if (memcmp(block, "QUIREXTN", 8) != 0)
            continue;
        uint64_t rows_size = (uint64_t)bk_get32le(block + 16) * ROW_SIZE;
        if (rows_size <= size - at - 64) {
            bk_put32le(block + 20, bk_crc32c(0, block + 64, rows_size));
            for (uint64_t i = 0; i < rows_size; i += ROW_SIZE)
                repair_pages(file, size, block + 64 + i);
        }
        fuzz_repair_after(block, 60);
    }
}

static void repair_log(uint8_t *file, size_t size)
{
    if (size < BK_BLOCK_SIZE)
        return;
    fuzz_repair_after(file, 40);
    fuzz_repair_records(file, size, BK_BLOCK_SIZE, 0);
}

/* --- reading -------------------------------------------------------------------------- */

static void scan_index(void)
{
    bk_index_scan *scan;
    bk_extent extent;
    uint32_t log_id;
    uint64_t offset;
    if (bk_index_scan_open(index_path, &scan, &log_id) != BK_OK)
        return;
    while (bk_index_scan_next(scan, &extent, &offset) == BK_OK)
        ;
    bk_index_scan_close(scan);
}

static void read_entry(bk_store *store, int64_t ledger_id, int64_t entry_id)
{
    uint8_t *out = malloc(8192);
    uint32_t size;
    int result = bk_store_read(store, ledger_id, entry_id, out, 8192, &size);
    CLAIM(result == BK_OK || result == BK_SMALL || result == BK_ABSENT || result == BK_CORRUPT);
    if (result == BK_OK) {
        fuzz_touch(out, size);
        CLAIM((int64_t)bk_get64be(out) == ledger_id);
        CLAIM((int64_t)bk_get64be(out + 8) == entry_id);
    }
    free(out);
}

static void read_ledger(bk_store *store, const bk_ledger_usage *ledger)
{
    uint8_t *out = malloc(65536);
    uint32_t count;
    size_t size;
    int result = bk_store_read_run(store, ledger->ledger_id, ledger->first_entry,
                                   ledger->last_entry, ENTRIES_MAX, out, 65536, &count, &size);
    CLAIM(result >= 0 && size <= 65536 && count <= ENTRIES_MAX);
    if (result == BK_OK)
        fuzz_touch(out, size);
    free(out);
    read_entry(store, ledger->ledger_id, ledger->last_entry);
    for (int64_t id = ledger->first_entry; id < ledger->last_entry; id++) {
        if (id - ledger->first_entry >= ENTRIES_MAX)
            break;
        read_entry(store, ledger->ledger_id, id);
    }
}

/* The runs of a ledger, in stretches that move on. */
static void list_runs(bk_store *store, int64_t ledger_id)
{
    bk_ranges found = {NULL, 0, 0};
    int64_t bound = -1;
    for (int result = BK_OK; result == BK_OK && bound < INT64_MAX;) {
        int64_t next = bound + 1;
        found.count = 0;
        bound = INT64_MAX;
        result = bk_store_ranges(store, ledger_id, next, &bound, &found);
        CLAIM(result >= 0 && (result != BK_OK || bound >= next));
        for (size_t i = 0; i < found.count && result == BK_OK; i++)
            CLAIM(found.items[i].first >= next && found.items[i].first <= found.items[i].last);
    }
    bk_ranges_free(&found);
}

static void check_log(bk_store *store)
{
    static bk_damage taken[64];
    uint64_t checked;
    int64_t after = -1;
    int result;
    while ((result = bk_store_check_log(store, 1, 0, NULL, &after, &checked)) == BK_FULL)
        while (bk_store_take_damage(store, taken, 64) > 0)
            continue;
    CLAIM(result == BK_OK || result == BK_CORRUPT || result == -ENOENT);
}

static void read_store(uint8_t mode)
{
    bk_store *store;
    bk_ledger_usage ledgers[LEDGERS_MAX];
    char failed[BK_PATH_SIZE_MAX];
    int result = bk_store_open(fuzz_ledger_folder(), NULL, 64u << 20, 1u << 20, failed, &store);
    CLAIM(result >= 0);
    if (result != BK_OK)
        return;
    uint32_t count = bk_store_ledgers(store, -1, ledgers, LEDGERS_MAX);
    CLAIM(count <= LEDGERS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        read_ledger(store, &ledgers[i]);
        list_runs(store, ledgers[i].ledger_id);
    }
    check_log(store);
    if (mode & MODE_OPEN) {
        const volatile int32_t stop = 0;
        const uint32_t first = 1;
        uint64_t copied;
        result = bk_store_compact(store, &first, 1, 0, &stop, &copied);
        CLAIM(result >= 0 || result == -ENOENT); /* the store may have refused the log */
        count = bk_store_ledgers(store, -1, ledgers, LEDGERS_MAX);
        for (uint32_t i = 0; i < count; i++)
            read_ledger(store, &ledgers[i]);
    }
    bk_store_close(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 5)
        return 0;
    size_t rest = size - 5, log_size = bk_get32le(data + 1);
    if (log_size > rest)
        log_size = rest;
    uint8_t *log = fuzz_copy(data + 5, log_size);
    uint8_t *index = fuzz_copy(data + 5 + log_size, rest - log_size);
    if (data[0] & MODE_REPAIR) {
        repair_log(log, log_size);
        repair_index(index, rest - log_size);
    }
    fuzz_write(log_path, log, log_size);
    fuzz_write(index_path, index, rest - log_size);
    free(log);
    free(index);
    scan_index();
    read_store(data[0]);
    fuzz_clear_folders();
    return 0;
}
