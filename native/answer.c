/* Reads, fences and what is known of ledgers that are here. See engine.h. */
#include "engine_internal.h"

#include <errno.h>
#include <stdlib.h>

#define COPY_MAX (256u << 10) /* bytes copied in one go with the lock held */
#define ANSWER_SIZE_MAX (BK_FRAME_SIZE_MAX + 4)

/* --- one entry -------------------------------------------------------------------- */

/* Copy the stored entry out of the memtable. BK_ABSENT: it is not there. */
static int copy_from_memory(bk_engine *engine, int64_t ledger_id, int64_t entry_id, uint8_t *out,
                            size_t out_size, uint32_t *size)
{
    uint32_t record_size;
    int result = BK_ABSENT;
    pthread_mutex_lock(&engine->lock);
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    const uint8_t *record =
        ledger != NULL ? bk_engine_find(engine, ledger, entry_id, &record_size) : NULL;
    if (record != NULL) {
        *size = record_size - BK_RECORD_HEADER_SIZE;
        result = *size <= out_size ? BK_OK : BK_SMALL;
        if (result == BK_OK)
            memcpy(out, record + BK_RECORD_HEADER_SIZE, *size);
    }
    pthread_mutex_unlock(&engine->lock);
    return result;
}

static void read_count(bk_engine *engine, int from_log, uint64_t entries, uint64_t bytes,
                       uint64_t begun)
{
    uint64_t ns = bk_io_now_ns() - begun;
    pthread_mutex_lock(&engine->lock);
    engine->stats.read_bytes += bytes;
    if (from_log) {
        engine->stats.reads_log += entries;
        bk_histogram_add_ns(&engine->stats.read_log, ns, 1);
    } else {
        engine->stats.reads_memtable += entries;
        bk_histogram_add_ns(&engine->stats.read_memtable, ns, 1);
    }
    pthread_mutex_unlock(&engine->lock);
}

static int read_one(bk_engine *engine, int64_t ledger_id, int64_t entry_id, int use_disk,
                    uint8_t *out, size_t out_size, uint32_t *size)
{
    uint64_t begun = bk_io_now_ns();
    int result = copy_from_memory(engine, ledger_id, entry_id, out, out_size, size);
    int from_log = result == BK_ABSENT;
    if (from_log) {
        if (!use_disk)
            return BK_AGAIN;
        result = bk_store_read(engine->store, ledger_id, entry_id, out, out_size, size);
        if (result == BK_NO_LEDGER)
            result = BK_ABSENT; /* the caller knows the ledger: it has no entry on disk */
    }
    if (result == BK_OK)
        read_count(engine, from_log, 1, *size, begun);
    return result;
}

/* --- a run of entries ---------------------------------------------------------------- */

typedef struct {
    uint8_t *out;
    size_t room, size;
    uint32_t count, count_max;
} bk_gathered;

/* The entry before the next one that is in the memtable, last at most: what is stored there
 * is newer than what an entry log has of it. */
static int64_t absent_until(const bk_ledger *ledger, int64_t next, int64_t last)
{
    for (int half = 0; half < 2 && ledger != NULL; half++) {
        int64_t found = bk_runs_next(&ledger->halves[half], next);
        if (found <= last)
            last = found - 1;
    }
    return last;
}

/* Copy entries from *next on that are in the memtable. BK_ABSENT: those up to *absent are not;
 * BK_SMALL: the next does not fit; BK_END: enough. */
static int gather_memory(bk_engine *engine, int64_t ledger_id, int64_t *next, int64_t last,
                         bk_gathered *got, int64_t *absent)
{
    int result = BK_OK;
    size_t copied = 0;
    pthread_mutex_lock(&engine->lock);
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    while (result == BK_OK && copied < COPY_MAX) {
        uint32_t record_size;
        const uint8_t *record = NULL;
        if (*next > last || got->count == got->count_max)
            result = BK_END;
        else if (ledger == NULL ||
                 (record = bk_engine_find(engine, ledger, *next, &record_size)) == NULL)
            result = BK_ABSENT;
        if (result != BK_OK)
            break;
        uint32_t size = record_size - BK_RECORD_HEADER_SIZE;
        if (got->size + 4 + size > got->room) {
            result = BK_SMALL;
            break;
        }
        bk_put32be(got->out + got->size, size);
        memcpy(got->out + got->size + 4, record + BK_RECORD_HEADER_SIZE, size);
        got->size += 4 + (size_t)size;
        copied += size;
        got->count++;
        (*next)++;
    }
    if (result == BK_ABSENT)
        *absent = absent_until(ledger, *next, last);
    pthread_mutex_unlock(&engine->lock);
    return result;
}

static int gather_store(bk_engine *engine, int64_t ledger_id, int64_t *next, int64_t last,
                        bk_gathered *got)
{
    uint32_t count = 0;
    size_t size = 0;
    int result =
        bk_store_read_run(engine->store, ledger_id, *next, last, got->count_max - got->count,
                          got->out + got->size, got->room - got->size, &count, &size);
    got->count += count;
    got->size += size;
    *next += count;
    if (result == BK_NO_LEDGER)
        result = BK_ABSENT;
    return result == BK_OK && count == 0 ? BK_ABSENT : result;
}

/* Entries start .. last without a gap, from wherever they are. The verdict is the one
 * on the first entry when nothing was gathered, else BK_OK. */
static int gather(bk_engine *engine, int64_t ledger_id, int64_t start, int64_t last, int use_disk,
                  bk_gathered *got)
{
    int64_t next = start, absent = last;
    int result = BK_OK;
    uint64_t begun = bk_io_now_ns();
    while (result == BK_OK) {
        uint32_t before = got->count;
        size_t before_size = got->size;
        result = gather_memory(engine, ledger_id, &next, last, got, &absent);
        if (got->count > before)
            read_count(engine, 0, got->count - before, got->size - before_size, begun);
        if (result != BK_ABSENT)
            continue;
        if (!use_disk) {
            result = BK_AGAIN;
            break;
        }
        before = got->count;
        before_size = got->size;
        begun = bk_io_now_ns();
        result = gather_store(engine, ledger_id, &next, absent, got);
        if (got->count > before)
            read_count(engine, 1, got->count - before, got->size - before_size, begun);
    }
    if (got->count > 0 || result == BK_END)
        return BK_OK;
    return result;
}

/* The same from the entry logs alone. An entry that the memtable has too ends the run: its copy
 * in a log is not the one that will be read. */
static int gather_logged(bk_engine *engine, int64_t ledger_id, int64_t start, int64_t last,
                         int use_disk, bk_gathered *got)
{
    int64_t next = start;
    uint64_t begun = bk_io_now_ns();
    if (!use_disk)
        return BK_AGAIN;
    pthread_mutex_lock(&engine->lock);
    last = absent_until(bk_ledgers_find(&engine->ledgers, ledger_id), start, last);
    pthread_mutex_unlock(&engine->lock);
    if (last < start)
        return BK_ABSENT;
    int result = gather_store(engine, ledger_id, &next, last, got);
    if (got->count == 0)
        return result;
    read_count(engine, 1, got->count, got->size, begun);
    return BK_OK;
}

/* --- answers ------------------------------------------------------------------------ */

typedef struct {
    int known, fenced, limbo;
    int64_t last_entry, lac;
    int lac_known;
    uint64_t renewals; /* of the engine */
    int32_t code; /* not 0: answer this and nothing else */
} bk_view;

static bk_view look_at(bk_engine *engine, const bk_request *request)
{
    bk_view view = {0, 0, 0, -1, -1, 1, 0, 0};
    pthread_mutex_lock(&engine->lock);
    view.limbo = engine->mode.limbo;
    view.renewals = engine->changes.renewals;
    bk_ledger *ledger =
        request->ledger_id >= 0 ? bk_ledgers_find(&engine->ledgers, request->ledger_id) : NULL;
    if (ledger != NULL && !ledger->deleted) {
        view.known = 1;
        view.fenced = ledger->fenced;
        view.last_entry = ledger->last_entry;
        view.lac = ledger->lac;
        view.lac_known = ledger->lac_known || ledger->last_entry < 0;
    }
    if (request->ledger_id < 0 || request->entry_id < -1)
        view.code = BK_CODE_BAD_REQUEST;
    else if (ledger != NULL && bk_ledger_is_other(ledger, request->incarnation))
        view.code = request->other_code;
    else if (!view.known)
        view.code = view.limbo ? BK_CODE_IO_ERROR : BK_CODE_NO_LEDGER;
    else if ((request->flags & BK_FLAG_FENCE) != 0 &&
             (!request->has_key ||
              (ledger->key_known && memcmp(ledger->key, request->key, BK_KEY_SIZE) != 0)))
        view.code = BK_CODE_UNAUTHORIZED;
    engine->stats.reads_missing += view.code == BK_CODE_NO_LEDGER;
    engine->stats.read_errors += view.code == BK_CODE_IO_ERROR;
    pthread_mutex_unlock(&engine->lock);
    return view;
}

/* What a verdict is on the wire. */
static int32_t code_of(bk_engine *engine, int result)
{
    int32_t code = BK_CODE_IO_ERROR;
    pthread_mutex_lock(&engine->lock);
    if (result == BK_ABSENT && !engine->mode.limbo)
        code = BK_CODE_NO_ENTRY;
    else if (result == BK_NO_LEDGER && !engine->mode.limbo)
        code = BK_CODE_NO_LEDGER;
    if (code == BK_CODE_IO_ERROR)
        engine->stats.read_errors++;
    else
        engine->stats.reads_missing++;
    pthread_mutex_unlock(&engine->lock);
    return code;
}

/* An entry did not fit. BK_SMALL, with *size needed: it does with more room. Otherwise the code
 * to answer: no frame of this kind carries it. */
static int32_t judge_small(size_t out_size, size_t needed, size_t *size)
{
    *size = needed;
    return out_size >= ANSWER_SIZE_MAX || needed > ANSWER_SIZE_MAX ? BK_CODE_BAD_REQUEST : 0;
}

/* What a frame can hold of the memory lent, behind a head. */
static size_t frame_room(size_t out_size, size_t head)
{
    return (out_size < ANSWER_SIZE_MAX ? out_size : ANSWER_SIZE_MAX) - head;
}

static int read_answer(bk_engine *engine, const bk_request *request, int use_disk, uint8_t *out,
                       size_t out_size, size_t *size)
{
    uint32_t body_size = 0;
    bk_view view = look_at(engine, request);
    int64_t entry_id = request->entry_id == -1 ? view.last_entry : request->entry_id;
    int32_t code = view.code;
    if (code == 0) {
        int result = entry_id < 0 || entry_id > view.last_entry
                         ? BK_ABSENT
                         : read_one(engine, request->ledger_id, entry_id, use_disk,
                                    out + BK_READ_HEADER_SIZE,
                                    frame_room(out_size, BK_READ_HEADER_SIZE), &body_size);
        if (result == BK_SMALL)
            code = judge_small(out_size, BK_READ_HEADER_SIZE + (size_t)body_size, size);
        else if (result != BK_OK && result != BK_AGAIN)
            code = code_of(engine, result);
        if ((result == BK_SMALL && code == 0) || result == BK_AGAIN)
            return result;
        if (code != 0)
            body_size = 0;
    }
    *size = bk_frame_response(out, BK_OP_READ, code, request->ledger_id, request->entry_id,
                              body_size) +
            body_size;
    return BK_OK;
}

static size_t body_room(const bk_request *request, size_t out_size, size_t head)
{
    size_t room = frame_room(out_size, head);
    if (request->size_max > 0 && (uint64_t)request->size_max < room + head)
        room = (uint64_t)request->size_max > head ? (size_t)request->size_max - head : 0;
    return room;
}

/* Gather as asked; the first entry goes out even when it is above size_max. */
static int gather_asked(bk_engine *engine, const bk_request *request, int64_t last, int use_disk,
                        uint8_t *out, size_t out_size, size_t head, bk_gathered *got)
{
    *got = (bk_gathered){out + head, body_room(request, out_size, head), 0, 0,
                         request->count_max > 0 ? (uint32_t)request->count_max : UINT32_MAX};
    int (*from)(bk_engine *, int64_t, int64_t, int64_t, int, bk_gathered *) =
        (request->flags & BK_FLAG_FROM_LOG) != 0 ? gather_logged : gather;
    int result = from(engine, request->ledger_id, request->entry_id, last, use_disk, got);
    if (result == BK_SMALL) {
        got->room = frame_room(out_size, head);
        got->count_max = 1;
        result = from(engine, request->ledger_id, request->entry_id, last, use_disk, got);
    }
    return result;
}

static int answer_batch(bk_engine *engine, const bk_request *request, int use_disk, uint8_t *out,
                        size_t out_size, size_t *size)
{
    bk_gathered got = {NULL, 0, 0, 0, 0};
    bk_view view = look_at(engine, request);
    int32_t code = view.code;
    if (code == 0) {
        int result = request->entry_id < 0 || request->entry_id > view.last_entry
                         ? BK_ABSENT
                         : gather_asked(engine, request, view.last_entry, use_disk, out, out_size,
                                        BK_BATCH_HEADER_SIZE, &got);
        if (result == BK_SMALL)
            code = judge_small(out_size, ANSWER_SIZE_MAX, size);
        else if (result != BK_OK && result != BK_AGAIN)
            code = code_of(engine, result);
        if ((result == BK_SMALL && code == 0) || result == BK_AGAIN)
            return result;
    }
    *size = bk_frame_batch_response(out, code, request->ledger_id, request->entry_id,
                                    request->request_id, (uint32_t)got.size) +
            got.size;
    return BK_OK;
}

/* The LAC that the last entry carries, for a ledger that was last written before
 * this process began. */
static int learn_lac(bk_engine *engine, int64_t ledger_id, bk_view *view, int use_disk,
                     uint8_t *out, size_t out_size)
{
    uint32_t size = 0;
    int result = read_one(engine, ledger_id, view->last_entry, use_disk, out, out_size, &size);
    if (result != BK_OK)
        return result;
    int64_t lac = size >= BK_ENTRY_HEADER_SIZE ? (int64_t)bk_get64be(out + 16) : -1;
    pthread_mutex_lock(&engine->lock);
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    if (ledger != NULL && engine->changes.renewals == view->renewals) {
        if (lac > ledger->lac && lac < ledger->last_entry)
            ledger->lac = lac;
        ledger->lac_known = 1;
        view->lac = ledger->lac;
    }
    pthread_mutex_unlock(&engine->lock);
    return BK_OK;
}

static int answer_wait(bk_engine *engine, const bk_request *request, int use_disk, uint8_t *out,
                       size_t out_size, size_t *size)
{
    bk_gathered got = {NULL, 0, 0, 0, 0};
    bk_view view = look_at(engine, request);
    int32_t code = view.code;
    int result = BK_OK;
    if (code == 0 && !view.lac_known)
        result = learn_lac(engine, request->ledger_id, &view, use_disk, out, out_size);
    if (result == BK_OK && code == 0 && request->count_max > 0 && request->entry_id >= 0 &&
        request->entry_id <= view.lac && request->entry_id <= view.last_entry) {
        int64_t last = view.lac < view.last_entry ? view.lac : view.last_entry;
        result = gather_asked(engine, request, last, use_disk, out, out_size,
                              BK_READ_WAIT_HEADER_SIZE, &got);
        if (result == BK_ABSENT && !view.limbo) /* a striped ledger: the entry is elsewhere */
            result = BK_OK;
    }
    if (result == BK_SMALL)
        code = judge_small(out_size, ANSWER_SIZE_MAX, size);
    else if (result != BK_OK && result != BK_AGAIN)
        code = code_of(engine, result);
    if ((result == BK_SMALL && code == 0) || result == BK_AGAIN)
        return result;
    *size = bk_frame_read_wait_response(out, code, request->ledger_id, request->entry_id,
                                        request->request_id, view.lac, view.fenced,
                                        (uint32_t)got.size) +
            got.size;
    return BK_OK;
}

static int answer(bk_engine *engine, const bk_request *request, int32_t use_disk, uint8_t *out,
                  size_t out_size, size_t *size)
{
    switch (request->opcode) {
    case BK_OP_READ:
        return read_answer(engine, request, use_disk, out, out_size, size);
    case BK_OP_BATCH_READ:
        return answer_batch(engine, request, use_disk, out, out_size, size);
    case BK_OP_READ_WAIT:
        return answer_wait(engine, request, use_disk, out, out_size, size);
    default:
        return -EINVAL;
    }
}

static uint64_t renewals_of(const bk_engine *engine)
{
    return __atomic_load_n(&engine->changes.renewals, __ATOMIC_ACQUIRE);
}

int bk_engine_answer(bk_engine *engine, const bk_request *request, int32_t use_disk, uint8_t *out,
                     size_t out_size, size_t *size)
{
    uint64_t before;
    int result;
    if (out_size < 4096) {
        *size = 4096;
        return BK_SMALL;
    }
    do { /* an id that is used again must not make one answer of two ledgers */
        before = renewals_of(engine);
        result = answer(engine, request, use_disk, out, out_size, size);
    } while (renewals_of(engine) != before);
    return result;
}

/* --- fences ---------------------------------------------------------------------------- */

/* Or will be when its ticket is synced. A tombstone is only when it was fenced in so many
 * words: its deletion may be forgotten in a crash. */
static int is_fenced_durably(const bk_ledger *ledger)
{
    return ledger->fenced && (ledger->deleted ? ledger->fence_ticket != 0 : ledger->key_known);
}

static int fence(bk_engine *engine, int64_t ledger_id, int64_t incarnation, const uint8_t *key,
                 uint64_t *ticket)
{
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    int result = 0;
    if (ledger != NULL && bk_ledger_is_other(ledger, incarnation))
        return BK_OTHER_LEDGER;
    if (ledger != NULL && ledger->key_known && memcmp(ledger->key, key, BK_KEY_SIZE) != 0)
        return BK_BAD_KEY;
    if (ledger != NULL && is_fenced_durably(ledger)) {
        *ticket = ledger->fence_ticket;
        return BK_OK;
    }
    /* The record of a key would bring a tombstone back. */
    int adopts = ledger == NULL || (!ledger->key_known && !ledger->deleted);
    if (ledger == NULL)
        result = bk_engine_make_ledger(engine, ledger_id, incarnation, &ledger);
    if (result == 0 && adopts)
        result = bk_engine_append_special(engine, ledger_id, BK_RECORD_KEY, key, BK_KEY_SIZE);
    if (result == 0)
        result = bk_engine_append_special(engine, ledger_id, BK_RECORD_FENCE, "", 0);
    if (result != 0)
        return result;
    if (adopts) {
        memcpy(ledger->key, key, BK_KEY_SIZE);
        ledger->key_known = 1;
    }
    ledger->fenced = 1;
    ledger->fence_ticket = *ticket = engine->groups.ticket;
    engine->stats.fences++;
    bk_engine_wake(engine, ledger);
    return bk_engine_mark_dirty(engine, ledger);
}

int bk_engine_fence(bk_engine *engine, int64_t ledger_id, int64_t incarnation, const uint8_t *key,
                    uint64_t *ticket)
{
    if (ledger_id < 0)
        return BK_BAD_KEY; /* a peer may ask for it, and no key is that of no ledger */
    pthread_mutex_lock(&engine->lock);
    int result = fence(engine, ledger_id, incarnation, key, ticket);
    pthread_cond_signal(&engine->work);
    pthread_mutex_unlock(&engine->lock);
    return result;
}

void bk_engine_fence_all(bk_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < engine->ledgers.room; i++) {
        bk_ledger *ledger = engine->ledgers.slots[i];
        if (ledger == NULL)
            continue;
        ledger->fenced = 1;
        (void)bk_engine_mark_dirty(engine, ledger); /* without memory: fenced until the restart */
        bk_engine_wake(engine, ledger);
    }
    pthread_mutex_unlock(&engine->lock);
}

/* --- ledgers ------------------------------------------------------------------------------ */

static void describe(const bk_ledger *ledger, bk_ledger_state *out)
{
    memset(out, 0, sizeof *out);
    out->ledger_id = ledger->id;
    out->last_entry = ledger->last_entry;
    out->lac = ledger->lac;
    out->explicit_lac = ledger->explicit_lac;
    out->fenced = ledger->fenced;
    out->deleted = ledger->deleted;
    out->key_known = ledger->key_known;
    out->incarnation = ledger->incarnation;
    memcpy(out->key, ledger->key, BK_KEY_SIZE);
}

int bk_engine_ledger(bk_engine *engine, int64_t ledger_id, bk_ledger_state *out)
{
    pthread_mutex_lock(&engine->lock);
    bk_ledger *ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    if (ledger != NULL)
        describe(ledger, out);
    pthread_mutex_unlock(&engine->lock);
    return ledger != NULL ? BK_OK : BK_NO_LEDGER;
}

uint32_t bk_engine_ledgers(bk_engine *engine, int64_t after, bk_ledger_state *out,
                           uint32_t out_count)
{
    uint32_t n = 0;
    pthread_mutex_lock(&engine->lock);
    bk_ledger **sorted = bk_ledgers_sorted(&engine->ledgers);
    size_t low = 0, high = sorted != NULL ? engine->ledgers.count : 0;
    size_t count = high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sorted[middle]->id <= after)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < count && n < out_count; i++)
        if (!sorted[i]->deleted)
            describe(sorted[i], &out[n++]);
    pthread_mutex_unlock(&engine->lock);
    return n;
}
