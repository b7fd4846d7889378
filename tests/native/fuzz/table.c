/* Any bytes as records and as a ledger table. */
#include <stdlib.h>

#include "fuzz.h"

#define FILE_NAME "0000000000000001.table"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_make_folders();
    return 0;
}

static void read_records(const uint8_t *data, size_t size, uint32_t salt)
{
    uint32_t record_size;
    while (bk_record_read(data, size, salt, &record_size) == BK_OK) {
        CLAIM(record_size >= BK_RECORD_HEADER_SIZE + 16 && record_size <= size);
        data += record_size;
        size -= record_size;
    }
}

static void scan_all(const char *path, size_t size, uint64_t end)
{
    bk_table_scan *scan;
    bk_record record;
    CLAIM(bk_table_scan_open(path, end, &scan) == BK_OK);
    size_t steps = 0;
    while (bk_table_scan_next(scan, &record) == BK_OK) {
        CLAIM(++steps <= size);
        fuzz_touch(record.body, record.body_size);
    }
    bk_table_scan_close(scan);
}

/* A new engine's journal, and the fuzzed table in place of its own. */
static void open_engine(const uint8_t *file, size_t size)
{
    bk_engine *engine;
    bk_mark mark = {.journal_id = 1,
                    .journal_offset = BK_BLOCK_SIZE,
                    .next_log_id = 1,
                    .table_id = 1,
                    .table_end = size};
    fuzz_clear_folders();
    CLAIM(fuzz_open_engine(NULL, &engine) == BK_OK);
    bk_engine_close(engine);
    fuzz_write(fuzz_path(fuzz_ledger_folder(), FILE_NAME), file, size);
    CLAIM(fuzz_open_engine(&mark, &engine) == BK_OK);
    fuzz_read_engine(engine);
    bk_engine_close(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t mode = data[0], *file = fuzz_copy(data + 1, size - 1);
    if (mode & MODE_REPAIR)
        fuzz_repair_records(file, size - 1, 0, 0);
    read_records(file, size - 1, 0);
    fuzz_write(fuzz_path(fuzz_ledger_folder(), FILE_NAME), file, size - 1);
    scan_all(fuzz_path(fuzz_ledger_folder(), FILE_NAME), size - 1, 0);
    scan_all(fuzz_path(fuzz_ledger_folder(), FILE_NAME), size - 1, (size - 1) / 2);
    if (mode & MODE_OPEN)
        open_engine(file, size - 1);
    free(file);
    fuzz_clear_folders();
    return 0;
}
