/* One ledger being written: ADD frames out, who acknowledged what. See link.h. */
#include <errno.h>
#include <stdlib.h>

#include "link_internal.h"

#define PENDING_MIN 64  /* slots of the first ring */

/* An entry above the LAC. */
typedef struct {
    uint64_t acknowledged; /* bit i: bookie i has it */
    uint64_t length;       /* payload bytes of the ledger up to and with it */
} pending_entry;

struct bk_writer {
    int64_t ledger_id;
    uint64_t token;
    uint32_t ensemble_size, write_quorum, ack_quorum;
    bk_digest digest;
    int32_t flags;       /* of every frame */
    int32_t held;        /* 1: the LAC stands */
    int64_t first_entry; /* the first that this writer may add */
    bk_writer_state state;
    int64_t since[BK_ENSEMBLE_SIZE_MAX];        /* the first entry of who stands at an index */
    int64_t acknowledged[BK_ENSEMBLE_SIZE_MAX]; /* how many it has from there on */
    pending_entry *pending; /* a ring: entry e is in slot e mod size */
    uint64_t pending_size;  /* a power of two, or 0 */
    bk_attachment *attachments;
};

/* --- who gets what ---------------------------------------------------------------- */

static int all_get_all(const bk_writer *writer)
{
    return writer->write_quorum == writer->ensemble_size;
}

/* Index of the first bookie of the entry's write set. */
static uint32_t first_bookie(const bk_writer *writer, int64_t entry_id)
{
    return (uint32_t)((uint64_t)entry_id % writer->ensemble_size);
}

static int is_in_write_set(const bk_writer *writer, uint32_t bookie, int64_t entry_id)
{
    if (bookie >= writer->ensemble_size)
        return 0;
    if (all_get_all(writer))
        return 1;
    uint32_t first = first_bookie(writer, entry_id);
    uint32_t distance = bookie >= first ? bookie - first : bookie + writer->ensemble_size - first;
    return distance < writer->write_quorum;
}

static pending_entry *pending_at(const bk_writer *writer, int64_t entry_id)
{
    return &writer->pending[(uint64_t)entry_id & (writer->pending_size - 1)];
}

/* How many of the entries from first on, and below end, the bookie gets. */
static int64_t share_of(const bk_writer *writer, uint32_t bookie, int64_t first, int64_t end)
{
    int64_t turns = (end - first) / writer->ensemble_size;
    int64_t count = turns * writer->write_quorum;
    for (int64_t id = first + turns * writer->ensemble_size; id < end; id++)
        count += is_in_write_set(writer, bookie, id);
    return count;
}

/* --- open, close, state --------------------------------------------------------- */

int bk_writer_open(int64_t ledger_id, uint32_t ensemble_size, uint32_t write_quorum,
                   uint32_t ack_quorum, const bk_digest *digest, int32_t flags,
                   int64_t first_entry, uint64_t length, uint64_t token, bk_writer **out)
{
    if (ack_quorum < 1 || ack_quorum > write_quorum || write_quorum > ensemble_size ||
        ensemble_size > BK_ENSEMBLE_SIZE_MAX || ledger_id < 0 || first_entry < 0 ||
        bk_digest_size(digest->kind) < 0)
        return -EINVAL;
    bk_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL)
        return -ENOMEM;
    writer->ledger_id = ledger_id;
    writer->token = token;
    writer->ensemble_size = ensemble_size;
    writer->write_quorum = write_quorum;
    writer->ack_quorum = ack_quorum;
    writer->digest = *digest;
    writer->flags = flags;
    writer->first_entry = first_entry;
    writer->state.lac = first_entry - 1;
    writer->state.next_entry = first_entry;
    writer->state.length = writer->state.confirmed_length = length;
    for (uint32_t i = 0; i < ensemble_size; i++)
        writer->since[i] = first_entry;
    *out = writer;
    return BK_OK;
}

void bk_writer_close(bk_writer *writer)
{
    if (writer == NULL)
        return;
    while (writer->attachments != NULL)
        bk_link_drop(writer->attachments);
    free(writer->pending);
    free(writer);
}

void bk_writer_get_state(const bk_writer *writer, bk_writer_state *out)
{
    *out = writer->state;
    out->pending_bytes = out->length - out->confirmed_length;
}

uint64_t bk_writer_behind(const bk_writer *writer)
{
    uint64_t behind = 0;
    int64_t end = writer->state.next_entry;
    for (uint32_t i = 0; i < writer->ensemble_size; i++)
        if (writer->acknowledged[i] < share_of(writer, i, writer->since[i], end))
            behind |= UINT64_C(1) << i;
    return behind;
}

uint64_t bk_writer_owing(const bk_writer *writer)
{
    int64_t oldest = writer->state.lac + 1;
    uint64_t owing = 0;
    if (oldest >= writer->state.next_entry)
        return 0;
    for (uint32_t i = 0; i < writer->ensemble_size; i++)
        if (is_in_write_set(writer, i, oldest))
            owing |= UINT64_C(1) << i;
    return owing & ~pending_at(writer, oldest)->acknowledged;
}

int64_t bk_writer_ledger(const bk_writer *writer) { return writer->ledger_id; }
uint64_t bk_writer_token(const bk_writer *writer) { return writer->token; }
uint32_t bk_writer_ensemble_size(const bk_writer *writer) { return writer->ensemble_size; }

void bk_writer_bind(bk_writer *writer, bk_attachment *attachment)
{
    attachment->sibling = writer->attachments;
    writer->attachments = attachment;
}

void bk_writer_unbind(bk_writer *writer, bk_attachment *attachment)
{
    bk_attachment **at = &writer->attachments;
    while (*at != attachment)
        at = &(*at)->sibling;
    *at = attachment->sibling;
}

/* --- adding ------------------------------------------------------------------------ */

uint64_t bk_frame_add_size(const bk_digest *digest, uint64_t payload_size)
{
    return BK_ADD_HEADER_SIZE + BK_ENTRY_HEADER_SIZE + (uint64_t)bk_digest_size(digest->kind) +
           payload_size;
}

void bk_frame_add(uint8_t *out, const bk_digest *digest, int32_t flags, int64_t ledger_id,
                  int64_t entry_id, int64_t lac, uint64_t length, const uint8_t *payload,
                  uint32_t payload_size)
{
    uint8_t *entry = out + BK_ADD_HEADER_SIZE, *sum = entry + BK_ENTRY_HEADER_SIZE;
    bk_put32be(out, (uint32_t)bk_frame_add_size(digest, payload_size) - 4);
    bk_put32be(out + 4, 2u << 24 | BK_OP_ADD << 16 | ((uint32_t)flags & 0xffff));
    memcpy(out + 8, digest->master_key, BK_KEY_SIZE);
    bk_put64be(entry, (uint64_t)ledger_id);
    bk_put64be(entry + 8, (uint64_t)entry_id);
    bk_put64be(entry + 16, (uint64_t)lac);
    bk_put64be(entry + 24, length);
    bk_digest_compute(digest, entry, payload, payload_size, sum);
    if (payload_size > 0)
        memcpy(sum + bk_digest_size(digest->kind), payload, payload_size);
}

/* The bookie after this one in the ring that the ensemble is. */
static uint32_t next_bookie(const bk_writer *writer, uint32_t bookie)
{
    return bookie + 1 == writer->ensemble_size ? 0 : bookie + 1;
}

static int fit_frames(const bk_writer *writer, const uint32_t *payload_sizes, uint32_t count)
{
    if (count > (uint64_t)(INT64_MAX - writer->state.next_entry))
        return 0;
    for (uint32_t i = 0; i < count; i++)
        if (bk_frame_add_size(&writer->digest, payload_sizes[i]) >
            BK_ADD_HEADER_SIZE + BK_ENTRY_SIZE_MAX)
            return 0;
    return 1;
}

int bk_writer_plan(const bk_writer *writer, const uint32_t *payload_sizes, uint32_t count,
                   uint64_t *sizes)
{
    if (!fit_frames(writer, payload_sizes, count))
        return BK_CORRUPT;
    int shared = all_get_all(writer);
    uint32_t copies = shared ? 1 : writer->write_quorum;
    memset(sizes, 0, (shared ? 1 : writer->ensemble_size) * sizeof *sizes);
    uint32_t first = shared ? 0 : first_bookie(writer, writer->state.next_entry);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size = bk_frame_add_size(&writer->digest, payload_sizes[i]);
        uint32_t bookie = first;
        for (uint32_t copy = 0; copy < copies; copy++, bookie = next_bookie(writer, bookie))
            sizes[bookie] += size;
        if (!shared)
            first = next_bookie(writer, first);
    }
    return BK_OK;
}

/* Make room for count entries more. The old ring is left alone until the new one stands. */
static int reserve_pending(bk_writer *writer, uint32_t count)
{
    const bk_writer_state *state = &writer->state;
    uint64_t need = (uint64_t)(state->next_entry - state->lac - 1) + count;
    if (need <= writer->pending_size)
        return BK_OK;
    uint64_t size = writer->pending_size != 0 ? writer->pending_size : PENDING_MIN;
    while (size < need)
        size *= 2;
    pending_entry *grown = malloc(size * sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    for (int64_t id = state->lac + 1; id < state->next_entry; id++)
        grown[(uint64_t)id & (size - 1)] = *pending_at(writer, id);
    free(writer->pending);
    writer->pending = grown;
    writer->pending_size = size;
    return BK_OK;
}

/* Give the frame at outs[first] to the other bookies of the write set too, and
 * move the ends of all of them past it. */
static void share_frame(const bk_writer *writer, uint32_t first, uint64_t size, uint8_t **outs)
{
    const uint8_t *frame = outs[first];
    outs[first] += size;
    uint32_t bookie = next_bookie(writer, first);
    for (uint32_t copy = 1; copy < writer->write_quorum; copy++) {
        memcpy(outs[bookie], frame, size);
        outs[bookie] += size;
        bookie = next_bookie(writer, bookie);
    }
}

/* The LAC that entries carry. What one recoverer adds again another may have found absent, so
 * it is confirmed by the end that metadata records, and readers must not hear of it before. */
static int64_t told_lac(const bk_writer *writer)
{
    int is_recovery = (writer->flags & BK_FLAG_RECOVERY) != 0;
    return is_recovery ? writer->first_entry - 1 : writer->state.lac;
}

/* Build one entry's frame where the next of its first bookie goes. */
static void add_entry(bk_writer *writer, const uint8_t *payload, uint32_t size, uint8_t *out)
{
    bk_writer_state *state = &writer->state;
    state->length += size;
    *pending_at(writer, state->next_entry) = (pending_entry){0, state->length};
    bk_frame_add(out, &writer->digest, writer->flags, writer->ledger_id, state->next_entry,
                 told_lac(writer), state->length, payload, size);
    state->next_entry++;
}

int bk_writer_add(bk_writer *writer, const uint8_t *payloads, const uint32_t *payload_sizes,
                  uint32_t count, uint8_t **outs, int64_t *first_entry)
{
    if (!fit_frames(writer, payload_sizes, count))
        return BK_CORRUPT;
    int result = reserve_pending(writer, count);
    if (result != BK_OK)
        return result;
    uint8_t *ends[BK_ENSEMBLE_SIZE_MAX];
    int shared = all_get_all(writer);
    memcpy(ends, outs, (shared ? 1 : writer->ensemble_size) * sizeof *outs);
    *first_entry = writer->state.next_entry;
    uint32_t first = shared ? 0 : first_bookie(writer, *first_entry);
    for (uint32_t i = 0; i < count; payloads += payload_sizes[i++]) {
        uint64_t size = bk_frame_add_size(&writer->digest, payload_sizes[i]);
        add_entry(writer, payloads, payload_sizes[i], ends[first]);
        if (shared) {
            ends[0] += size;
        } else {
            share_frame(writer, first, size, ends);
            first = next_bookie(writer, first);
        }
    }
    return BK_OK;
}

/* --- acknowledgements ------------------------------------------------------------------ */

static int is_final(int32_t code)
{
    return code == BK_CODE_FENCED || code == BK_CODE_UNAUTHORIZED ||
           code == BK_CODE_OTHER_LEDGER || code == BK_CODE_BAD_REQUEST;
}

static int take_refusal(bk_writer *writer, uint32_t bookie, int32_t code)
{
    bk_writer_state *state = &writer->state;
    uint64_t refused = state->refused | UINT64_C(1) << bookie;
    int32_t first = state->code == 0 || (is_final(code) && !is_final(state->code)) ? code
                                                                                   : state->code;
    int changed = refused != state->refused || first != state->code;
    state->refused = refused;
    state->code = first;
    return changed;
}

static int is_complete(const bk_writer *writer, const pending_entry *entry)
{
    return (uint32_t)__builtin_popcountll(entry->acknowledged) >= writer->ack_quorum;
}

/* Move the LAC over every entry that is complete. */
static void confirm(bk_writer *writer)
{
    bk_writer_state *state = &writer->state;
    while (!writer->held && state->lac + 1 < state->next_entry) {
        const pending_entry *entry = pending_at(writer, state->lac + 1);
        if (!is_complete(writer, entry))
            return;
        state->confirmed_length = entry->length;
        state->lac++;
    }
}

int bk_writer_take(bk_writer *writer, uint32_t bookie, int64_t entry_id, int32_t code)
{
    const bk_writer_state *state = &writer->state;
    if (entry_id < writer->first_entry || entry_id >= state->next_entry ||
        !is_in_write_set(writer, bookie, entry_id))
        return 0;
    int is_pending = entry_id > state->lac;
    uint64_t bit = UINT64_C(1) << bookie;
    if (is_pending && (pending_at(writer, entry_id)->acknowledged & bit))
        return 0;
    if (code != BK_CODE_OK)
        return take_refusal(writer, bookie, code);
    if (entry_id >= writer->since[bookie])
        writer->acknowledged[bookie]++;
    if (!is_pending)
        return 0;
    pending_at(writer, entry_id)->acknowledged |= bit;
    if (entry_id != state->lac + 1)
        return 0;
    confirm(writer);
    return entry_id <= state->lac;
}

void bk_writer_acknowledge(bk_writer *writer, uint32_t bookie, int64_t entry_id, int32_t code)
{
    bk_writer_take(writer, bookie, entry_id, code);
}

/* --- another bookie ---------------------------------------------------------------------- */

void bk_writer_hold(bk_writer *writer, int32_t on)
{
    writer->held = on;
    confirm(writer);
}

/* A late answer of the bookie that was lost must not count for the one that took its place. */
static void unbind_bookie(bk_writer *writer, uint32_t bookie)
{
    bk_attachment *next;
    for (bk_attachment *at = writer->attachments; at != NULL; at = next) {
        next = at->sibling;
        if (at->bookie == bookie)
            bk_link_drop(at);
    }
}

int bk_writer_replace(bk_writer *writer, uint32_t bookie)
{
    bk_writer_state *state = &writer->state;
    if (bookie >= writer->ensemble_size || !writer->held)
        return -EINVAL;
    unbind_bookie(writer, bookie);
    uint64_t bit = UINT64_C(1) << bookie;
    for (int64_t id = state->lac + 1; id < state->next_entry; id++)
        pending_at(writer, id)->acknowledged &= ~bit;
    writer->since[bookie] = state->lac + 1;
    writer->acknowledged[bookie] = 0;
    state->refused &= ~bit;
    if (!is_final(state->code))
        state->code = 0;
    return BK_OK;
}
