/* Any bytes from a peer: one engine lives through all of them. */
#include <stdlib.h>

#include "fuzz.h"

#define REQUESTS_MAX 4
#define CHECKPOINT_EVERY 4096

static bk_engine *engine;

static void close_engine(void) { bk_engine_close(engine); }

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    fuzz_make_folders();
    CLAIM(fuzz_open_engine(NULL, &engine) == BK_OK);
    atexit(close_engine);
    return 0;
}

static void commit(void)
{
    int result;
    while ((result = bk_engine_commit(engine)) == BK_OK)
        ;
    CLAIM(result == BK_END);
}

static void flush(void)
{
    bk_mark mark;
    commit();
    int result = bk_engine_flush(engine, &mark);
    CLAIM(result == BK_OK || result == BK_END);
    if (result == BK_OK)
        CLAIM(bk_engine_trim(engine, &mark, 0) == BK_OK);
}

/* What the server does with a request that is not for C. */
static void serve(const bk_request *request, const uint8_t *body)
{
    uint64_t ticket;
    fuzz_touch(body, request->body_size);
    if (request->has_key && request->flags & BK_FLAG_FENCE) {
        int result = bk_engine_fence(engine, request->ledger_id, request->incarnation,
                                     request->key, &ticket);
        CLAIM(result == BK_OK || result == BK_BAD_KEY || result == BK_FULL ||
              result == BK_OTHER_LEDGER);
    }
    if (request->opcode == BK_OP_READ_WAIT)
        bk_engine_watch(engine, request->ledger_id, request->known_lac);
    if (request->opcode == BK_OP_READ || request->opcode == BK_OP_BATCH_READ ||
        request->opcode == BK_OP_READ_WAIT)
        fuzz_answer(engine, request);
}

/* The peer means another ledger than the one here: now the one is that of today, now the other. */
static void settle(bk_connection *connection, const bk_request *request)
{
    static uint32_t turns;
    bk_ledger_state here;
    CLAIM(bk_engine_ledger(engine, request->ledger_id, &here) == BK_OK);
    CLAIM(here.incarnation != request->incarnation);
    if (++turns % 3 == 0) {
        bk_connection_refuse(connection, request->ledger_id, request->incarnation);
        return;
    }
    int result = bk_engine_renew_ledger(engine, request->ledger_id, here.incarnation,
                                        request->incarnation);
    /* One of unknown incarnation is not known to be over, so it stays. */
    if (here.incarnation == 0 && !here.deleted)
        CLAIM(result == BK_NO_LEDGER);
    else
        CLAIM(result == BK_OK || result == BK_FULL);
}

/* One piece of a stream, in memory of its own. */
static int feed(bk_connection *connection, const uint8_t *data, size_t size)
{
    uint8_t *piece = fuzz_copy(data, size);
    size_t at = 0;
    int result;
    do {
        bk_request requests[REQUESTS_MAX];
        size_t used;
        uint32_t count;
        result = bk_connection_feed(connection, piece + at, size - at, &used, requests,
                                    REQUESTS_MAX, &count);
        CLAIM(result == BK_OK || result == BK_FULL || result == BK_AGAIN || result == BK_CLOSE);
        CLAIM(used <= size - at && count <= REQUESTS_MAX);
        CLAIM(result != BK_OK || used > 0 || count > 0 || size == at);
        for (uint32_t i = 0; i < count; i++) {
            serve(&requests[i], (requests[i].in_pieces ? bk_connection_partial(connection)
                                                       : piece + at) +
                                    requests[i].body_offset);
            if (requests[i].opcode == BK_OP_INCARNATION) {
                CLAIM(i + 1 == count);
                settle(connection, &requests[i]);
            }
        }
        at += used;
        if (result == BK_AGAIN)
            CLAIM(bk_connection_look(connection) == BK_OK);
        if (result == BK_FULL)
            flush();
    } while (result != BK_CLOSE && at < size);
    free(piece);
    return result;
}

/* Whatever is sent is a run of whole responses. */
static void take(bk_connection *connection)
{
    uint8_t out[4096];
    size_t size = bk_connection_take(connection, out, sizeof out), at = 0;
    CLAIM(size <= sizeof out);
    if (size == sizeof out)
        return; /* there may be more; the last one may be cut */
    while (at < size) {
        bk_response response;
        uint32_t frame_size;
        CLAIM(bk_frame_find(out + at, size - at, &frame_size) == BK_OK);
        if (out[at + 5] == BK_OP_ADD || out[at + 5] == BK_OP_WRITE_LAC)
            CLAIM(bk_frame_parse_response(out + at, frame_size, &response) == BK_OK);
        at += frame_size;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint32_t inputs;
    bk_connection *connection;
    if (size == 0)
        return 0;
    CLAIM(bk_connection_open(engine, 1, &connection) == BK_OK);
    size_t piece_size = 1 + (size_t)data[0] * 4;
    for (size_t at = 1; at < size; at += piece_size)
        if (feed(connection, data + at, size - at < piece_size ? size - at : piece_size) ==
            BK_CLOSE)
            break;
    if (size % 2) { /* the others go with their adds under way */
        commit();
        take(connection);
    }
    bk_connection_close(connection);
    if (++inputs % CHECKPOINT_EVERY == 0 && bk_engine_seal(engine) == BK_OK)
        flush();
    return 0;
}
