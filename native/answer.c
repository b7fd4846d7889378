/* Reads. See engine.h. */
#include "engine_internal.h"

#include <errno.h>

#define COPY_MAX (256u << 10) /* bytes copied in one go with the lock held */
#define ANSWER_SIZE_MAX (BK_FRAME_SIZE_MAX + 4)
#define ANSWER_SIZE_MIN 4096 /* memory that an answer of any kind needs, without entries */

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

/* counts: in the statistics, if it is refused. */
static bk_view look_at(bk_engine *engine, const bk_request *request, int counts)
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
    engine->stats.reads_missing += counts && view.code == BK_CODE_NO_LEDGER;
    engine->stats.reads_in_limbo += counts && view.code == BK_CODE_IO_ERROR;
    pthread_mutex_unlock(&engine->lock);
    return view;
}

/* What a verdict is on the wire. */
static int32_t code_of(bk_engine *engine, int result)
{
    int absent = result == BK_ABSENT || result == BK_NO_LEDGER;
    int32_t code = BK_CODE_IO_ERROR;
    pthread_mutex_lock(&engine->lock);
    if (!absent)
        engine->stats.read_errors++;
    else if (engine->mode.limbo)
        engine->stats.reads_in_limbo++;
    else {
        engine->stats.reads_missing++;
        code = result == BK_ABSENT ? BK_CODE_NO_ENTRY : BK_CODE_NO_LEDGER;
    }
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
    bk_view view = look_at(engine, request, 1);
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
    bk_view view = look_at(engine, request, 1);
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
    bk_view view = look_at(engine, request, 1);
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
    if (out_size < ANSWER_SIZE_MIN) {
        *size = ANSWER_SIZE_MIN;
        return BK_SMALL;
    }
    do { /* an id that is used again must not make one answer of two ledgers */
        before = renewals_of(engine);
        result = answer(engine, request, use_disk, out, out_size, size);
    } while (renewals_of(engine) != before);
    return result;
}

/* --- many READs ----------------------------------------------------------------------- */

/* What the head of a frame takes more than that of a gathered entry. */
#define HEAD_GROWS (BK_READ_HEADER_SIZE - 4)

/* Shorter rows are answered one by one: reading ahead would read more than they ask for. */
#define ROW_LEAST 8

/* How many of the requests, from the first one on, are for entries in a row of one ledger. */
static uint32_t count_row(const bk_request *requests, uint32_t count)
{
    uint32_t n = 1;
    while (n < count && requests[n].ledger_id == requests->ledger_id &&
           (uint64_t)requests[n].entry_id == (uint64_t)requests->entry_id + n &&
           requests[n].incarnation == requests->incarnation &&
           requests[n].other_code == requests->other_code)
        n++;
    return n;
}

/* Answer READs of entries in a row, *answered of them: those that are there, and fit. The entries
 * are gathered behind the place of their heads, and each is moved to its own while there is still
 * room before it. BK_AGAIN: the first needs the disk. */
static int answer_row(bk_engine *engine, const bk_request *requests, uint32_t count, int use_disk,
                      uint8_t *out, size_t out_size, uint32_t *answered, size_t *size)
{
    size_t heads = (size_t)count * HEAD_GROWS;
    uint64_t before = renewals_of(engine);
    bk_view view = look_at(engine, requests, 0);
    int64_t start = requests->entry_id;
    if (view.code != 0 || start < 0 || start > view.last_entry || heads >= out_size)
        return BK_ABSENT;
    bk_gathered got = {out + heads, out_size - heads, 0, 0, count};
    int64_t last = view.last_entry - start < count ? view.last_entry : start + count - 1;
    int result = gather(engine, requests->ledger_id, start, last, use_disk, &got);
    if (result != BK_OK || got.count == 0 || renewals_of(engine) != before)
        return result == BK_AGAIN ? BK_AGAIN : BK_ABSENT;
    const uint8_t *from = got.out;
    for (uint32_t i = 0; i < got.count; i++) {
        uint32_t entry_size = bk_get32be(from);
        memmove(out + *size + BK_READ_HEADER_SIZE, from + 4, entry_size);
        from += 4 + (size_t)entry_size;
        *size += bk_frame_response(out + *size, BK_OP_READ, BK_CODE_OK, requests->ledger_id,
                                   start + i, entry_size) +
                 entry_size;
    }
    *answered = got.count;
    return BK_OK;
}

/* Let the disk work on all that will be answered one by one, as far as the room goes. */
static void prepare_reads(bk_engine *engine, const bk_request *requests, uint32_t count,
                          size_t room)
{
    size_t size = 0;
    for (uint32_t i = 0; i < count && size < room;) {
        uint32_t row = count_row(requests + i, count - i);
        if (row >= ROW_LEAST) {
            i += row;
            continue;
        }
        if (requests[i].entry_id >= 0)
            size += bk_store_prepare(engine->store, requests[i].ledger_id, requests[i].entry_id);
        i++;
    }
}

/* Answer the first of the requests, and those in a row with it that can be answered alike. *taken:
 * how many the verdict is on. */
static int answer_some(bk_engine *engine, const bk_request *requests, uint32_t count, int use_disk,
                       uint8_t *out, size_t out_size, uint32_t *taken, size_t *size)
{
    uint32_t row = count_row(requests, count);
    if (row >= ROW_LEAST) {
        int result = answer_row(engine, requests, row, use_disk, out, out_size, taken, size);
        if (result == BK_AGAIN)
            *taken = row; /* where the first is, the others are likely to be */
        if (result == BK_OK || result == BK_AGAIN)
            return result;
    }
    *taken = 1;
    return bk_engine_answer(engine, requests, use_disk, out, out_size, size);
}

int bk_engine_answer_reads(bk_engine *engine, bk_request *requests, uint32_t *count,
                           int32_t use_disk, uint8_t *out, size_t out_size, size_t *size)
{
    uint32_t left = 0, i = 0, taken;
    int result = BK_OK;
    *size = 0;
    if (use_disk && *count > 1)
        prepare_reads(engine, requests, *count, out_size);
    for (; i < *count && out_size - *size >= ANSWER_SIZE_MIN; i += taken) {
        size_t more = 0;
        result = answer_some(engine, requests + i, *count - i, use_disk, out + *size,
                             out_size - *size, &taken, &more);
        if (result == BK_OK)
            *size += more;
        else if (result != BK_AGAIN)
            break;
        for (uint32_t n = 0; result == BK_AGAIN && n < taken; n++)
            requests[left++] = requests[i + n];
    }
    memmove(requests + left, requests + i, (*count - i) * sizeof *requests);
    *count = left + *count - i;
    return result < 0 ? result : BK_OK;
}
