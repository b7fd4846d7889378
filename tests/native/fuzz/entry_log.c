/* Any bytes as an entry log: the scan, and the index built from it. */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"

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

static void repair(uint8_t *file, size_t size)
{
    if (size < BK_BLOCK_SIZE)
        return;
    fuzz_repair_after(file, 40);
    fuzz_repair_records(file, size, BK_BLOCK_SIZE, 0);
}

static void scan_log(size_t size, uint64_t end)
{
    bk_log_scan *scan;
    bk_record record;
    uint32_t log_id, closed;
    if (bk_log_scan_open(log_path, end, &scan, &log_id, &closed) != BK_OK)
        return;
    int result = BK_OK;
    for (size_t steps = 0; result != BK_END; steps++) {
        CLAIM(steps <= size + 2);
        result = bk_log_scan_next(scan, &record);
        CLAIM(result == BK_OK || result == BK_END || result == BK_CORRUPT);
        if (result == BK_OK)
            fuzz_touch(record.body, record.body_size);
    }
    bk_log_scan_close(scan);
}

/* An index that was just built is sound, whatever the log was. */
static void scan_index(uint64_t entries)
{
    bk_index_scan *scan;
    bk_extent extent;
    uint32_t log_id;
    uint64_t offset, found = 0;
    int result;
    CLAIM(bk_index_scan_open(index_path, &scan, &log_id) == BK_OK);
    while ((result = bk_index_scan_next(scan, &extent, &offset)) == BK_OK) {
        CLAIM(extent.ledger_id >= 0 && extent.first_entry <= extent.last_entry);
        found += extent.entries;
    }
    CLAIM(result == BK_END);
    CLAIM(found <= entries);
    bk_index_scan_close(scan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bk_rebuilt rebuilt;
    if (size == 0)
        return 0;
    uint8_t *file = fuzz_copy(data + 1, size - 1);
    if (data[0] & MODE_REPAIR)
        repair(file, size - 1);
    fuzz_write(log_path, file, size - 1);
    free(file);
    scan_log(size - 1, 0);
    scan_log(size - 1, size / 2);
    if (bk_index_rebuild(log_path, index_path, &rebuilt) == BK_OK)
        scan_index(rebuilt.entries);
    fuzz_clear_folders();
    return 0;
}
