/* Engines under test: opened over the fuzzed folders, and read from. */
#include <stdlib.h>

#include "fuzz.h"

#define ANSWER_SIZE 65536
#define LEDGERS_MAX 64
#define READS_MAX 24

int fuzz_open_engine(const bk_mark *mark, bk_engine **out)
{
    bk_engine_options options = {.journal_folder = fuzz_journal_folder(),
                                 .ledger_folder = fuzz_ledger_folder(),
                                 .memtable_size = 12u << 20,
                                 .journal_size_max = 1u << 20,
                                 .journal_spares = 1,
                                 .log_size_max = 64u << 20,
                                 .index_cache_size = 1u << 20,
                                 .event_fd = -1};
    bk_recovery recovery;
    return bk_engine_open(&options, mark, &recovery, out);
}

static void check_answer(const uint8_t *answer, size_t size)
{
    bk_response response;
    CLAIM(bk_frame_parse_response(answer, (uint32_t)size, &response) == BK_OK);
    CLAIM(response.body_offset + response.body_size == size);
    fuzz_touch(answer, size);
}

void fuzz_answer(bk_engine *engine, const bk_request *request)
{
    uint8_t *answer = malloc(ANSWER_SIZE);
    CLAIM(answer != NULL);
    size_t size = 0;
    int result = bk_engine_answer(engine, request, 1, answer, ANSWER_SIZE, &size);
    CLAIM(result == BK_OK || result == BK_SMALL);
    CLAIM((result == BK_OK) == (size <= ANSWER_SIZE));
    if (result == BK_OK)
        check_answer(answer, size);
    free(answer);
}

/* All of them are answered, or left because a larger buffer is needed. */
static void answer_reads(bk_engine *engine, int64_t ledger_id)
{
    bk_request reads[READS_MAX];
    for (uint32_t i = 0; i < READS_MAX; i++)
        reads[i] = (bk_request){.opcode = BK_OP_READ, .ledger_id = ledger_id, .entry_id = i};
    uint8_t *answers = malloc(ANSWER_SIZE);
    CLAIM(answers != NULL);
    uint32_t left = READS_MAX;
    size_t size = 1;
    while (size > 0) {
        CLAIM(bk_engine_answer_reads(engine, reads, &left, 1, answers, ANSWER_SIZE, &size) == BK_OK);
        CLAIM(size <= ANSWER_SIZE);
        fuzz_touch(answers, size);
    }
    CLAIM(left <= READS_MAX);
    free(answers);
}

static void read_ledger(bk_engine *engine, int64_t ledger_id)
{
    bk_request read = {.opcode = BK_OP_READ, .ledger_id = ledger_id, .entry_id = -1};
    fuzz_answer(engine, &read);
    bk_request batch = {.opcode = BK_OP_BATCH_READ, .ledger_id = ledger_id, .size_max = 65536};
    fuzz_answer(engine, &batch);
    answer_reads(engine, ledger_id);
}

void fuzz_read_engine(bk_engine *engine)
{
    bk_ledger_state states[LEDGERS_MAX];
    uint32_t count = bk_engine_ledgers(engine, -1, states, LEDGERS_MAX);
    CLAIM(count <= LEDGERS_MAX);
    for (uint32_t i = 0; i < count; i++)
        read_ledger(engine, states[i].ledger_id);
}
