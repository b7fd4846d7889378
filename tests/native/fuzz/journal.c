/* Any bytes as a journal file: the scan, and an engine that replays it. */
#include <stdlib.h>

#include "fuzz.h"

#define FILE_ID 1
#define FILE_NAME "0000000000000001.journal"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_make_folders();
    return 0;
}

static void repair(uint8_t *file, size_t size)
{
    if (size < BK_BLOCK_SIZE)
        return;
    fuzz_repair_after(file, 40);
    fuzz_repair_records(file, size, BK_BLOCK_SIZE, bk_salt(bk_get64le(file + 16)));
}

/* Every call moves on, so a scan ends after a step for each byte at most. */
static void scan_all(const char *path, size_t size, uint64_t end)
{
    bk_journal_scan *scan;
    bk_record record;
    uint64_t at = 0;
    if (bk_journal_scan_open(path, 0, end, &scan) != BK_OK)
        return;
    int result = BK_OK;
    for (size_t steps = 0; result != BK_END; steps++) {
        CLAIM(steps <= size + 2);
        result = bk_journal_scan_next(scan, &record);
        CLAIM(result == BK_OK || result == BK_END || result == BK_CORRUPT);
        CLAIM(record.offset >= at || result != BK_OK);
        at = record.offset;
        if (result == BK_OK)
            fuzz_touch(record.body, record.body_size);
    }
    bk_journal_scan_close(scan);
}

static void flush(bk_engine *engine)
{
    bk_mark mark;
    int result;
    while ((result = bk_engine_commit(engine)) == BK_OK)
        ;
    if (bk_engine_seal(engine) == BK_OK)
        CLAIM(bk_engine_flush(engine, &mark) == BK_OK);
}

static void replay(void)
{
    bk_mark mark = {.journal_id = FILE_ID,
                    .journal_offset = BK_BLOCK_SIZE,
                    .next_log_id = 1,
                    .table_id = 1};
    bk_engine *engine;
    int result = fuzz_open_engine(&mark, &engine);
    CLAIM(result == BK_OK);
    fuzz_read_engine(engine);
    flush(engine);
    fuzz_read_engine(engine);
    bk_engine_close(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t mode = data[0], *file = fuzz_copy(data + 1, size - 1);
    if (mode & MODE_REPAIR)
        repair(file, size - 1);
    fuzz_write(fuzz_path(fuzz_journal_folder(), FILE_NAME), file, size - 1);
    free(file);
    scan_all(fuzz_path(fuzz_journal_folder(), FILE_NAME), size - 1, 0);
    scan_all(fuzz_path(fuzz_journal_folder(), FILE_NAME), size - 1, size - 1);
    if (mode & MODE_OPEN)
        replay();
    fuzz_clear_folders();
    return 0;
}
