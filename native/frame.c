/* Frames: where they end, what they say, how they are built. See frame.h. */
#include "internal.h"

#define VERSION 2
#define HEADER_SIZE 8 /* length word and header */
#define ADD_SIZE_MIN (28 + BK_ENTRY_HEADER_SIZE)
#define RESPONSE_SIZE 28
#define CALL_RESPONSE_SIZE 20

_Static_assert(BK_ENTRY_SIZE_MAX + 4 + BK_READ_WAIT_HEADER_SIZE == BK_FRAME_SIZE_MAX + 4 &&
                   BK_READ_WAIT_HEADER_SIZE >= BK_BATCH_HEADER_SIZE &&
                   BK_READ_WAIT_HEADER_SIZE + 4 >= BK_READ_HEADER_SIZE &&
                   BK_READ_WAIT_HEADER_SIZE + 4 >= BK_ADD_HEADER_SIZE,
               "the largest entry fits every frame that may carry it");
_Static_assert(sizeof(((bk_request *)0)->key) == BK_KEY_SIZE, "a key fits its field");

static int64_t get_id(const uint8_t *p) { return (int64_t)bk_get64be(p); }
static int32_t get_number(const uint8_t *p) { return (int32_t)bk_get32be(p); }

int bk_frame_find(const uint8_t *data, size_t size, uint32_t *frame_size)
{
    *frame_size = 0;
    if (size < 4)
        return BK_END;
    uint32_t body_size = bk_get32be(data);
    if (body_size < 4 || body_size > BK_FRAME_SIZE_MAX)
        return BK_CLOSE;
    *frame_size = 4 + body_size;
    return *frame_size <= size ? BK_OK : BK_END;
}

/* The length word says what is there, and the header is. */
static int is_whole(const uint8_t *frame, uint32_t frame_size)
{
    uint32_t found;
    return bk_frame_find(frame, frame_size, &found) == BK_OK && found == frame_size;
}

/* --- requests ------------------------------------------------------------------- */

static void take_key(bk_request *request, const uint8_t *key)
{
    request->has_key = 1;
    memcpy(request->key, key, BK_KEY_SIZE);
}

static int add_parse(const uint8_t *frame, uint32_t size, bk_request *request)
{
    if (size < ADD_SIZE_MIN)
        return BK_CLOSE;
    take_key(request, frame + 8);
    request->ledger_id = get_id(frame + 28);
    request->entry_id = get_id(frame + 36);
    request->body_offset = 28;
    request->body_size = size - 28;
    return BK_OK;
}

/* The key of a fencing read, in the frame's last bytes; at is the frame's size
 * without it. */
static int parse_fence(const uint8_t *frame, uint32_t size, uint32_t at, bk_request *request)
{
    if (!(request->flags & BK_FLAG_FENCE) || frame[4] < VERSION)
        return size == at ? BK_OK : BK_CLOSE;
    if (size != at + BK_KEY_SIZE)
        return BK_CLOSE;
    take_key(request, frame + at);
    return BK_OK;
}

static int read_parse(const uint8_t *frame, uint32_t size, bk_request *request)
{
    if (size < 24)
        return BK_CLOSE;
    request->ledger_id = get_id(frame + 8);
    request->entry_id = get_id(frame + 16);
    return parse_fence(frame, size, 24, request);
}

static int read_parse_batch(const uint8_t *frame, uint32_t size, bk_request *request)
{
    if (size < 44)
        return BK_CLOSE;
    request->ledger_id = get_id(frame + 8);
    request->entry_id = get_id(frame + 16);
    request->request_id = get_id(frame + 24);
    request->count_max = get_number(frame + 32);
    request->size_max = get_id(frame + 36);
    return parse_fence(frame, size, 44, request);
}

static int parse_read_wait(const uint8_t *frame, uint32_t size, bk_request *request)
{
    if (size != 52)
        return BK_CLOSE;
    request->ledger_id = get_id(frame + 8);
    request->entry_id = get_id(frame + 16);
    request->request_id = get_id(frame + 24);
    request->count_max = get_number(frame + 32);
    request->size_max = get_number(frame + 36);
    request->known_lac = get_id(frame + 40);
    request->wait_ms = get_number(frame + 48);
    return BK_OK;
}

static int parse_write_lac(const uint8_t *frame, uint32_t size, bk_request *request)
{
    if (size != 52)
        return BK_CLOSE;
    take_key(request, frame + 8);
    request->ledger_id = get_id(frame + 28);
    request->request_id = get_id(frame + 36);
    request->entry_id = get_id(frame + 44);
    return BK_OK;
}

static int parse_incarnation(const uint8_t *frame, uint32_t size, bk_request *request)
{
    if (size != 24)
        return BK_CLOSE;
    request->ledger_id = get_id(frame + 8);
    request->incarnation = get_id(frame + 16);
    return request->ledger_id < 0 || request->incarnation < 0 ? BK_CLOSE : BK_OK;
}

static int parse_auth(uint32_t size, bk_request *request)
{
    request->body_offset = HEADER_SIZE;
    request->body_size = size - HEADER_SIZE;
    return BK_OK;
}

static int parse_call(const uint8_t *frame, uint32_t size, bk_request *request)
{
    if (size < 16)
        return BK_CLOSE;
    request->request_id = get_id(frame + 8);
    request->body_offset = 16;
    request->body_size = size - 16;
    return BK_OK;
}

int bk_frame_parse_request(const uint8_t *frame, uint32_t frame_size, bk_request *request)
{
    memset(request, 0, sizeof *request);
    if (!is_whole(frame, frame_size))
        return BK_CLOSE;
    if (frame[4] > VERSION)
        return BK_CORRUPT;
    request->opcode = frame[5];
    request->flags = get_number(frame + 4) & 0xffff;
    switch (request->opcode) {
    case BK_OP_ADD:
        return add_parse(frame, frame_size, request);
    case BK_OP_READ:
        return read_parse(frame, frame_size, request);
    case BK_OP_AUTH:
        return parse_auth(frame_size, request);
    case BK_OP_BATCH_READ:
        return read_parse_batch(frame, frame_size, request);
    case BK_OP_READ_WAIT:
        return parse_read_wait(frame, frame_size, request);
    case BK_OP_WRITE_LAC:
        return parse_write_lac(frame, frame_size, request);
    case BK_OP_CALL:
        return parse_call(frame, frame_size, request);
    case BK_OP_PULSE:
        return frame_size == HEADER_SIZE ? BK_OK : BK_CLOSE;
    case BK_OP_INCARNATION:
        return parse_incarnation(frame, frame_size, request);
    default:
        return BK_CLOSE;
    }
}

/* --- responses ------------------------------------------------------------------ */

static uint32_t response_head_size(int32_t opcode)
{
    switch (opcode) {
    case BK_OP_ADD:
    case BK_OP_READ:
    case BK_OP_WRITE_LAC:
        return RESPONSE_SIZE;
    case BK_OP_BATCH_READ:
        return BK_BATCH_HEADER_SIZE;
    case BK_OP_READ_WAIT:
        return BK_READ_WAIT_HEADER_SIZE;
    case BK_OP_CALL:
        return CALL_RESPONSE_SIZE;
    case BK_OP_AUTH:
    case BK_OP_PULSE:
        return HEADER_SIZE;
    default:
        return 0;
    }
}

/* What lies between the header and the body; response->opcode says how to read it. */
static void parse_response_head(const uint8_t *frame, bk_response *response)
{
    if (response->opcode == BK_OP_AUTH || response->opcode == BK_OP_PULSE)
        return;
    response->code = get_number(frame + 8);
    if (response->opcode == BK_OP_CALL) {
        response->request_id = get_id(frame + 12);
        return;
    }
    response->ledger_id = get_id(frame + 12);
    if (response->opcode == BK_OP_WRITE_LAC) {
        response->request_id = get_id(frame + 20);
        return;
    }
    response->entry_id = get_id(frame + 20);
    if (response->body_offset >= BK_BATCH_HEADER_SIZE)
        response->request_id = get_id(frame + 28);
    if (response->opcode == BK_OP_READ_WAIT) {
        response->lac = get_id(frame + 36);
        response->fenced = get_number(frame + 44) != 0;
    }
}

int bk_frame_parse_response(const uint8_t *frame, uint32_t frame_size, bk_response *response)
{
    memset(response, 0, sizeof *response);
    if (!is_whole(frame, frame_size) || frame[4] > VERSION)
        return BK_CLOSE;
    uint32_t head_size = response_head_size(frame[5]);
    if (head_size == 0 || frame_size < head_size)
        return BK_CLOSE;
    int has_body =
        frame[5] != BK_OP_ADD && frame[5] != BK_OP_WRITE_LAC && frame[5] != BK_OP_PULSE;
    if (!has_body && frame_size != head_size)
        return BK_CLOSE;
    response->opcode = frame[5];
    response->body_offset = head_size;
    response->body_size = frame_size - head_size;
    parse_response_head(frame, response);
    return BK_OK;
}

/* --- builders --------------------------------------------------------------------- */

static void put_header(uint8_t *out, uint32_t frame_size, int32_t opcode, int32_t flags)
{
    bk_put32be(out, frame_size - 4);
    bk_put32be(out + 4, (uint32_t)VERSION << 24 | ((uint32_t)opcode & 0xff) << 16 |
                            ((uint32_t)flags & 0xffff));
}

static void put_id(uint8_t *out, int64_t id) { bk_put64be(out, (uint64_t)id); }
static void put_number(uint8_t *out, int32_t number) { bk_put32be(out, (uint32_t)number); }

/* Append the key, if there is one; returns the frame's size with it. */
static uint32_t put_key(uint8_t *out, uint32_t size, const uint8_t *key)
{
    if (key == NULL)
        return size;
    memcpy(out + size, key, BK_KEY_SIZE);
    return size + BK_KEY_SIZE;
}

uint32_t bk_frame_read(uint8_t *out, int32_t flags, int64_t ledger_id, int64_t entry_id,
                       const uint8_t *key)
{
    uint32_t size = put_key(out, 24, key);
    put_header(out, size, BK_OP_READ, flags);
    put_id(out + 8, ledger_id);
    put_id(out + 16, entry_id);
    return size;
}

uint32_t bk_frame_batch_read(uint8_t *out, int32_t flags, int64_t ledger_id, int64_t start_id,
                             int64_t request_id, int32_t count_max, int64_t size_max,
                             const uint8_t *key)
{
    uint32_t size = put_key(out, 44, key);
    put_header(out, size, BK_OP_BATCH_READ, flags);
    put_id(out + 8, ledger_id);
    put_id(out + 16, start_id);
    put_id(out + 24, request_id);
    put_number(out + 32, count_max);
    put_id(out + 36, size_max);
    return size;
}

uint32_t bk_frame_read_wait(uint8_t *out, int64_t ledger_id, int64_t start_id, int64_t request_id,
                            int32_t count_max, int32_t size_max, int64_t known_lac,
                            int32_t wait_ms)
{
    put_header(out, 52, BK_OP_READ_WAIT, 0);
    put_id(out + 8, ledger_id);
    put_id(out + 16, start_id);
    put_id(out + 24, request_id);
    put_number(out + 32, count_max);
    put_number(out + 36, size_max);
    put_id(out + 40, known_lac);
    put_number(out + 48, wait_ms);
    return 52;
}

uint32_t bk_frame_write_lac(uint8_t *out, const uint8_t *key, int64_t ledger_id,
                            int64_t request_id, int64_t lac)
{
    put_header(out, 52, BK_OP_WRITE_LAC, 0);
    put_key(out, 8, key);
    put_id(out + 28, ledger_id);
    put_id(out + 36, request_id);
    put_id(out + 44, lac);
    return 52;
}

uint32_t bk_frame_pulse(uint8_t *out)
{
    put_header(out, HEADER_SIZE, BK_OP_PULSE, 0);
    return HEADER_SIZE;
}

uint32_t bk_frame_incarnation(uint8_t *out, int64_t ledger_id, int64_t incarnation)
{
    put_header(out, 24, BK_OP_INCARNATION, 0);
    put_id(out + 8, ledger_id);
    put_id(out + 16, incarnation);
    return 24;
}

uint32_t bk_frame_call(uint8_t *out, int64_t request_id, uint32_t body_size)
{
    put_header(out, 16 + body_size, BK_OP_CALL, 0);
    put_id(out + 8, request_id);
    return 16;
}

uint32_t bk_frame_response(uint8_t *out, int32_t opcode, int32_t code, int64_t ledger_id,
                           int64_t id, uint32_t body_size)
{
    put_header(out, RESPONSE_SIZE + body_size, opcode, 0);
    put_number(out + 8, code);
    put_id(out + 12, ledger_id);
    put_id(out + 20, id);
    return RESPONSE_SIZE;
}

uint32_t bk_frame_batch_response(uint8_t *out, int32_t code, int64_t ledger_id, int64_t start_id,
                                 int64_t request_id, uint32_t body_size)
{
    bk_frame_response(out, BK_OP_BATCH_READ, code, ledger_id, start_id, 8 + body_size);
    put_id(out + 28, request_id);
    return BK_BATCH_HEADER_SIZE;
}

uint32_t bk_frame_read_wait_response(uint8_t *out, int32_t code, int64_t ledger_id,
                                     int64_t start_id, int64_t request_id, int64_t lac,
                                     int32_t fenced, uint32_t body_size)
{
    bk_frame_response(out, BK_OP_READ_WAIT, code, ledger_id, start_id, 20 + body_size);
    put_id(out + 28, request_id);
    put_id(out + 36, lac);
    put_number(out + 44, fenced != 0);
    return BK_READ_WAIT_HEADER_SIZE;
}

uint32_t bk_frame_call_response(uint8_t *out, int32_t code, int64_t request_id,
                                uint32_t body_size)
{
    put_header(out, CALL_RESPONSE_SIZE + body_size, BK_OP_CALL, 0);
    put_number(out + 8, code);
    put_id(out + 12, request_id);
    return CALL_RESPONSE_SIZE;
}

uint32_t bk_requests_read(const bk_request *requests, uint32_t count)
{
    uint32_t n = 0;
    while (n < count && requests[n].opcode == BK_OP_READ &&
           (requests[n].flags & BK_FLAG_FENCE) == 0)
        n++;
    return n;
}
