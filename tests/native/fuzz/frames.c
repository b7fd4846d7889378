/* Any bytes as frames: the parsers, and a link with a writer attached. */
#include <stdlib.h>

#include "fuzz.h"

#define RESPONSES_MAX 4
#define ENTRIES_MAX 64

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return 0;
}

static void parse_all(const uint8_t *data, size_t size)
{
    uint32_t frame_size;
    while (bk_frame_find(data, size, &frame_size) == BK_OK) {
        CLAIM(frame_size >= 8 && frame_size <= size);
        bk_request request;
        bk_response response;
        if (bk_frame_parse_request(data, frame_size, &request) == BK_OK)
            CLAIM(request.body_offset + request.body_size <= frame_size);
        if (bk_frame_parse_response(data, frame_size, &response) == BK_OK)
            CLAIM(response.body_offset + response.body_size == frame_size);
        data += frame_size;
        size -= frame_size;
    }
}

static void check_entries(const bk_response *response, const uint8_t *body, int32_t kind)
{
    bk_digest digest;
    uint64_t offsets[ENTRIES_MAX], length;
    uint32_t sizes[ENTRIES_MAX], count;
    int64_t lac;
    CLAIM(bk_digest_init(&digest, kind, "", 0) == BK_OK);
    int result = bk_entries_check(&digest, body, response->body_size, response->ledger_id,
                                  response->entry_id, ENTRIES_MAX, offsets, sizes, &count, &lac,
                                  &length);
    CLAIM(result == BK_OK || result == BK_CORRUPT);
    CLAIM(count <= ENTRIES_MAX);
    for (uint32_t i = 0; i < count; i++)
        CLAIM(offsets[i] + sizes[i] <= response->body_size);
}

static void look_at(const bk_link *link, const bk_response *response, const uint8_t *fed)
{
    const uint8_t *body = (response->in_pieces ? bk_link_partial(link) : fed);
    body += response->body_offset;
    fuzz_touch(body, response->body_size);
    if (response->opcode == BK_OP_BATCH_READ || response->opcode == BK_OP_READ_WAIT) {
        check_entries(response, body, BK_DIGEST_DUMMY);
        check_entries(response, body, BK_DIGEST_CRC32C);
    }
}

/* The rest of a large frame is put where it belongs, and a response taken from there. */
static int fill(bk_link *link, uint8_t *room, const uint8_t *data, size_t size)
{
    bk_response response;
    size_t used;
    uint32_t count;
    memcpy(room, data, size);
    int result = bk_link_feed(link, room, size, &used, &response, 1, &count);
    CLAIM(result == BK_OK ? used == size : result == BK_CLOSE);
    if (count == 1) {
        look_at(link, &response, room);
        bk_link_release(bk_link_take(link));
    }
    return result;
}

/* One piece of a stream, in memory of its own. */
static int feed(bk_link *link, const uint8_t *data, size_t size)
{
    size_t room_size;
    uint8_t *room = bk_link_room(link, &room_size);
    if (room != NULL)
        return fill(link, room, data, size < room_size ? size : room_size);
    uint8_t *piece = fuzz_copy(data, size);
    size_t at = 0;
    int result;
    do {
        bk_response responses[RESPONSES_MAX];
        size_t used;
        uint32_t count;
        result =
            bk_link_feed(link, piece + at, size - at, &used, responses, RESPONSES_MAX, &count);
        CLAIM(result == BK_OK || result == BK_CLOSE);
        CLAIM(used <= size - at && count <= RESPONSES_MAX);
        CLAIM(result != BK_OK || used > 0 || count > 0 || size == at);
        for (uint32_t i = 0; i < count; i++)
            look_at(link, &responses[i], piece + at);
        at += used;
    } while (result == BK_OK && at < size);
    free(piece);
    return result;
}

static void feed_link(const uint8_t *data, size_t size, size_t piece_size)
{
    bk_digest digest;
    bk_writer *writer;
    bk_link *link;
    uint64_t token;
    CLAIM(bk_digest_init(&digest, BK_DIGEST_CRC32C, "", 0) == BK_OK);
    CLAIM(bk_writer_open(1, 3, 2, 1, &digest, 0, 0, 0, 7, &writer) == BK_OK);
    CLAIM(bk_link_open(&link) == BK_OK && bk_link_attach(link, writer, 0) == BK_OK);
    for (size_t at = 0; at < size; at += piece_size)
        if (feed(link, data + at, size - at < piece_size ? size - at : piece_size) != BK_OK)
            break;
    CLAIM(bk_link_dirty(link, &token, 1) == 0); /* nothing was added, so nothing changed */
    if (size % 2)
        bk_link_close(link);
    bk_writer_close(writer);
    if (size % 2 == 0)
        bk_link_close(link);
}

/* The body of a batch becomes frames that can be told apart again, or is refused. */
static void readd(const uint8_t *data, size_t size)
{
    static const uint8_t key[BK_KEY_SIZE];
    uint32_t count, found = 0, frame_size;
    uint64_t frames_size;
    uint8_t *body = fuzz_copy(data, size);
    if (bk_readd_plan(body, size, &count, &frames_size) == BK_OK) {
        uint8_t *out = malloc(frames_size + 1);
        CLAIM(out != NULL);
        bk_readd(out, key, BK_FLAG_RECOVERY, body, size);
        for (size_t at = 0; at < frames_size; at += frame_size, found++)
            CLAIM(bk_frame_find(out + at, frames_size - at, &frame_size) == BK_OK);
        CLAIM(found == count);
        free(out);
    }
    free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    readd(data + 1, size - 1);
    parse_all(data + 1, size - 1);
    feed_link(data + 1, size - 1, 1 + (size_t)data[0] * 4);
    return 0;
}
