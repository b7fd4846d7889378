/* Frames of one connection in, responses of adds out. See engine.h. */
#include "engine_internal.h"

#include <errno.h>
#include <stdlib.h>

#define ADD_HEAD 28 /* length word, header, master key */
#define ADD_RESPONSE_SIZE 28

int bk_connection_open(bk_engine *engine, uint64_t token, bk_connection **out)
{
    bk_connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return -ENOMEM;
    connection->engine = engine;
    connection->token = token;
    pthread_mutex_lock(&engine->lock);
    engine->stats.connections++;
    pthread_mutex_unlock(&engine->lock);
    *out = connection;
    return BK_OK;
}

static void leave_waiting(bk_connection *connection)
{
    if (!connection->in_waiting)
        return;
    if (connection->previous != NULL)
        connection->previous->next = connection->next;
    else
        connection->engine->events.waiting = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    connection->in_waiting = 0;
}

static void enter_waiting(bk_connection *connection)
{
    bk_engine *engine = connection->engine;
    if (connection->in_waiting)
        return;
    connection->previous = NULL;
    connection->next = engine->events.waiting;
    if (engine->events.waiting != NULL)
        engine->events.waiting->previous = connection;
    engine->events.waiting = connection;
    connection->in_waiting = 1;
}

static void drop_partial(bk_connection *connection)
{
    connection->engine->stats.partial_bytes -= connection->partial_room;
    free(connection->partial);
    connection->partial = NULL;
    connection->partial_size = connection->partial_room = connection->partial_need = 0;
    connection->partial_done = 0;
}

void bk_connection_close(bk_connection *connection)
{
    if (connection == NULL)
        return;
    bk_engine *engine = connection->engine;
    pthread_mutex_lock(&engine->lock);
    leave_waiting(connection);
    drop_partial(connection);
    bk_statements_free(&connection->statements, &engine->changes.statement_slots);
    engine->stats.connections--;
    pthread_mutex_unlock(&engine->lock);
    bk_original_forget(&connection->original);
    free(connection->out);
    free(connection->segments);
    free(connection);
}

/* --- responses -------------------------------------------------------------------- */

static uint8_t *reserve_out(bk_connection *connection, size_t size)
{
    if (connection->end + size > connection->out_room) {
        size_t kept = connection->end - connection->taken;
        if (kept + size <= connection->out_room / 2 || connection->taken >= size + kept) {
            memmove(connection->out, connection->out + connection->taken, kept);
        } else {
            size_t room = connection->out_room ? connection->out_room * 2 : 4096;
            uint8_t *grown = malloc(room);
            if (grown == NULL)
                return NULL;
            if (kept > 0)
                memcpy(grown, connection->out + connection->taken, kept);
            free(connection->out);
            connection->out = grown;
            connection->out_room = room;
        }
        for (size_t i = 0; i < connection->segment_count; i++)
            connection->segments[(connection->segment_first + i) % connection->segment_room].end -=
                connection->taken;
        connection->ready_end -= connection->taken;
        connection->end -= connection->taken;
        connection->taken = 0;
    }
    return connection->out + connection->end;
}

static bk_segment *last_segment(bk_connection *connection)
{
    if (connection->segment_count == 0)
        return NULL;
    size_t last = connection->segment_first + connection->segment_count - 1;
    return &connection->segments[last % connection->segment_room];
}

static bk_segment *begin_segment(bk_connection *connection, uint64_t ticket, uint64_t ns)
{
    if (connection->segment_count == connection->segment_room) {
        size_t room = connection->segment_room ? connection->segment_room * 2 : 16;
        bk_segment *grown = malloc(room * sizeof *grown);
        if (grown == NULL)
            return NULL;
        for (size_t i = 0; i < connection->segment_count; i++)
            grown[i] =
                connection->segments[(connection->segment_first + i) % connection->segment_room];
        free(connection->segments);
        connection->segments = grown;
        connection->segment_first = 0;
        connection->segment_room = room;
    }
    connection->segment_count++;
    bk_segment *segment = last_segment(connection);
    *segment = (bk_segment){ticket, connection->end, 0, 0, ns};
    return segment;
}

/* A response that may be sent when ticket is synced, after those before it. */
static int respond(bk_connection *connection, int32_t opcode, int32_t code, int64_t ledger_id,
                   int64_t id, uint64_t ticket, uint64_t bytes, uint64_t ns)
{
    bk_engine *engine = connection->engine;
    uint8_t *at = reserve_out(connection, ADD_RESPONSE_SIZE);
    bk_segment *segment = last_segment(connection);
    if (at == NULL)
        return -ENOMEM;
    if (ticket > engine->groups.synced &&
        (segment == NULL || segment->ticket != ticket || segment->ns != ns)) {
        segment = begin_segment(connection, ticket, ns);
        if (segment == NULL)
            return -ENOMEM;
        enter_waiting(connection);
    }
    connection->end += bk_frame_response(at, opcode, code, ledger_id, id, 0);
    if (segment == NULL) {
        connection->ready_end = connection->end;
        return bk_engine_raise_ready(engine, connection);
    }
    segment->end = connection->end;
    if (bytes > 0) {
        segment->entries++;
        segment->bytes += bytes;
        connection->unsynced += bytes;
    }
    return 0;
}

static int refuse(bk_connection *connection, int32_t opcode, int32_t code, int64_t ledger_id,
                  int64_t id)
{
    int slot = code >= 100 && code < 107 ? code - 100 : 7;
    connection->engine->stats.add_errors[slot]++;
    return respond(connection, opcode, code, ledger_id, id, 0, 0, 0);
}

void bk_connection_publish(bk_connection *connection, uint64_t synced, uint64_t now_ns)
{
    bk_engine *engine = connection->engine;
    while (connection->segment_count > 0) {
        bk_segment *segment = &connection->segments[connection->segment_first];
        if (segment->ticket > synced)
            break;
        connection->ready_end = segment->end;
        connection->unsynced -= segment->bytes;
        engine->stats.adds += segment->entries;
        engine->stats.add_bytes += segment->bytes;
        bk_histogram_add_ns(&engine->stats.add, now_ns - segment->ns, segment->entries);
        connection->segment_first = (connection->segment_first + 1) % connection->segment_room;
        connection->segment_count--;
    }
    if (connection->segment_count == 0)
        leave_waiting(connection);
    if (connection->ready_end > connection->taken &&
        bk_engine_raise_ready(engine, connection) != 0) {
        engine->events.failed = ENOMEM; /* acknowledgements that nobody hears of must not pile up */
        bk_engine_raise(engine, BK_EVENT_FAILED);
    }
}

size_t bk_connection_take(bk_connection *connection, uint8_t *out, size_t out_size)
{
    bk_engine *engine = connection->engine;
    pthread_mutex_lock(&engine->lock);
    size_t size = connection->ready_end - connection->taken;
    connection->in_ready = 0;
    if (size > out_size) {
        size = out_size;
        /* What became ready meanwhile must not wait for the next sync. Without memory the
         * peer waits, and closes at its deadline. */
        (void)bk_engine_raise_ready(engine, connection);
    }
    if (size > 0)
        memcpy(out, connection->out + connection->taken, size);
    connection->taken += size;
    if (connection->taken == connection->end) {
        connection->taken = connection->ready_end = connection->end = 0;
        if (connection->out_room > (64u << 10)) { /* an idle connection keeps little */
            free(connection->out);
            connection->out = NULL;
            connection->out_room = 0;
        }
    }
    pthread_mutex_unlock(&engine->lock);
    return size;
}

void bk_connection_backlog(const bk_connection *connection, uint64_t *unsynced, uint64_t *ready,
                           uint64_t *waiting, uint64_t *partial)
{
    bk_engine *engine = connection->engine;
    pthread_mutex_lock(&engine->lock);
    *unsynced = connection->unsynced;
    *ready = connection->ready_end - connection->taken;
    *waiting = connection->end - connection->ready_end;
    *partial = connection->partial_done ? 0 : connection->partial_size;
    pthread_mutex_unlock(&engine->lock);
}

/* --- adds --------------------------------------------------------------------------- */

/* The ledger, and in connection->said what the connection said of it. */
static bk_ledger *find_ledger(bk_connection *connection, int64_t ledger_id)
{
    bk_engine *engine = connection->engine;
    bk_ledger *ledger = connection->last;
    /* The count comes first: after a removal the ledger may be freed, its id with it. */
    if (ledger != NULL && connection->removals == engine->changes.removals &&
        ledger->id == ledger_id)
        return ledger;
    const bk_statement *said = bk_statements_find(&connection->statements, ledger_id);
    connection->said = said != NULL ? *said : (bk_statement){ledger_id, 0, 0};
    ledger = bk_ledgers_find(&engine->ledgers, ledger_id);
    connection->last = ledger;
    connection->removals = engine->changes.removals;
    return ledger;
}

/* The code with which a write to the ledger is refused, or 0. */
static int32_t verdict_on(const bk_connection *connection, const bk_ledger *ledger,
                          const uint8_t *key, int32_t flags)
{
    const bk_engine *engine = connection->engine;
    if (ledger != NULL && bk_ledger_is_other(ledger, connection->said.incarnation))
        return connection->said.code;
    if (ledger != NULL && ledger->deleted && (flags & BK_FLAG_RECOVERY) == 0)
        return BK_CODE_FENCED;
    if (ledger != NULL && ledger->key_known && memcmp(ledger->key, key, BK_KEY_SIZE) != 0)
        return BK_CODE_UNAUTHORIZED;
    if (ledger != NULL && ledger->fenced && (flags & BK_FLAG_RECOVERY) == 0)
        return BK_CODE_FENCED;
    if (engine->mode.read_only &&
        !(engine->mode.priority_allowed && (flags & BK_FLAG_PRIORITY) != 0))
        return BK_CODE_READ_ONLY;
    return 0;
}

/* Make the ledger known, with the key, in memory and journal. */
static int adopt(bk_connection *connection, int64_t ledger_id, const uint8_t *key,
                 bk_ledger **ledger)
{
    bk_engine *engine = connection->engine;
    if (*ledger != NULL && (*ledger)->deleted)
        return bk_engine_revive(engine, *ledger, key);
    if (*ledger != NULL && (*ledger)->key_known)
        return 0;
    int result = BK_OK;
    if (*ledger == NULL)
        result = bk_engine_make_ledger(engine, ledger_id,
                                       bk_newcomer_incarnation(connection, ledger_id), ledger);
    if (result == BK_OK)
        result = bk_engine_append_special(engine, ledger_id, BK_RECORD_KEY, key, BK_KEY_SIZE);
    if (result != 0)
        return result;
    memcpy((*ledger)->key, key, BK_KEY_SIZE);
    (*ledger)->key_known = 1;
    connection->last = *ledger;
    connection->removals = engine->changes.removals;
    return bk_engine_mark_dirty(engine, *ledger);
}

/* Everything in the journal up to now is synced when this ticket is. */
static uint64_t ticket_now(const bk_engine *engine)
{
    return engine->groups.gathering ? engine->groups.ticket : engine->groups.ticket - 1;
}

static int store_entry(bk_connection *connection, bk_ledger *ledger, int64_t entry_id,
                       const uint8_t *entry, uint32_t entry_size)
{
    bk_engine *engine = connection->engine;
    uint64_t offset;
    uint32_t record_size = entry_size + BK_RECORD_HEADER_SIZE;
    int result = bk_engine_reserve(engine, record_size);
    if (result != 0)
        return result;
    uint8_t *at = bk_engine_append(engine, record_size, &offset);
    bk_record_write(at, engine->memtable.halves[engine->memtable.active].salt, entry, entry_size);
    engine->groups.entries++;
    return bk_engine_put(engine, ledger, entry_id, offset, record_size);
}

static int add(bk_connection *connection, const uint8_t *frame, uint32_t frame_size, uint64_t ns)
{
    bk_engine *engine = connection->engine;
    if (frame_size < ADD_HEAD + BK_ENTRY_HEADER_SIZE)
        return BK_CLOSE;
    const uint8_t *entry = frame + ADD_HEAD;
    uint32_t entry_size = frame_size - ADD_HEAD;
    int32_t flags = (frame[6] << 8) | frame[7];
    int64_t ledger_id = (int64_t)bk_get64be(entry), entry_id = (int64_t)bk_get64be(entry + 8);
    int64_t lac = (int64_t)bk_get64be(entry + 16);
    if (!bk_ids_are_sound(ledger_id, entry_id) || entry_size > BK_ENTRY_SIZE_MAX)
        return refuse(connection, BK_OP_ADD, BK_CODE_BAD_REQUEST, ledger_id, entry_id);
    bk_ledger *ledger = find_ledger(connection, ledger_id);
    int32_t code = verdict_on(connection, ledger, frame + 8, flags);
    int result = code == 0 ? bk_newcomer_judge(connection, ledger, ledger_id, frame + 8, &code) : 0;
    if (code != 0)
        return refuse(connection, BK_OP_ADD, code, ledger_id, entry_id);
    if (result == 0)
        result = adopt(connection, ledger_id, frame + 8, &ledger);
    if (result != 0)
        return result;
    if (entry_id <= ledger->last_entry)
        result =
            bk_connection_judge(connection, ledger, entry_id, entry, entry_size, flags);
    if (result == BK_CORRUPT || (result < 0 && result != -ENOMEM))
        return refuse(connection, BK_OP_ADD,
                      result < 0 ? BK_CODE_IO_ERROR : BK_CODE_BAD_REQUEST, ledger_id, entry_id);
    engine->stats.adds_repeated += result == BK_END;
    if (result == BK_OK)
        result = store_entry(connection, ledger, entry_id, entry, entry_size);
    if (result != BK_OK && result != BK_END)
        return result;
    if (lac > ledger->lac && lac < entry_id) {
        ledger->lac = lac;
        if (ledger->watched && lac > ledger->watch_lac)
            bk_engine_wake(engine, ledger);
    }
    ledger->lac_known = 1;
    return respond(connection, BK_OP_ADD, BK_CODE_OK, ledger_id, entry_id, ticket_now(engine),
                   entry_size, ns);
}

static int write_lac(bk_connection *connection, const bk_request *request, uint64_t ns)
{
    bk_engine *engine = connection->engine;
    int64_t ledger_id = request->ledger_id, lac = request->entry_id;
    uint8_t number[8];
    if (ledger_id < 0 || lac < 0)
        return refuse(connection, BK_OP_WRITE_LAC, BK_CODE_BAD_REQUEST, ledger_id,
                      request->request_id);
    bk_ledger *ledger = find_ledger(connection, ledger_id);
    /* Entries bring a ledger back, a LAC does not. */
    int32_t flags = ledger != NULL && ledger->deleted ? 0 : request->flags;
    int32_t code = verdict_on(connection, ledger, request->key, flags);
    int result =
        code == 0 ? bk_newcomer_judge(connection, ledger, ledger_id, request->key, &code) : 0;
    if (code != 0)
        return refuse(connection, BK_OP_WRITE_LAC, code, ledger_id, request->request_id);
    if (result == 0)
        result = adopt(connection, ledger_id, request->key, &ledger);
    bk_put64be(number, (uint64_t)lac);
    if (result == 0)
        result = bk_engine_append_special(engine, ledger_id, BK_RECORD_EXPLICIT_LAC, number, 8);
    if (result == 0)
        result = bk_engine_mark_dirty(engine, ledger);
    if (result != 0)
        return result;
    if (lac > ledger->explicit_lac)
        ledger->explicit_lac = lac;
    if (lac > ledger->lac) {
        ledger->lac = lac;
        if (ledger->watched && lac > ledger->watch_lac)
            bk_engine_wake(engine, ledger);
    }
    return respond(connection, BK_OP_WRITE_LAC, BK_CODE_OK, ledger_id, request->request_id,
                   ticket_now(engine), 0, ns);
}

/* --- frames ----------------------------------------------------------------------------- */

typedef struct {
    bk_request *requests;
    uint32_t max, count;
    uint64_t ns;
    int stopped; /* what comes next waits until the caller dealt with the last request */
} bk_feed;

/* Which ledger is meant from here on. When the one here is another, the caller finds out which
 * of them is over, before the next frame. */
static int take_statement(bk_connection *connection, const bk_request *request, bk_feed *feed)
{
    connection->last = NULL;
    const bk_ledger *ledger = bk_ledgers_find(&connection->engine->ledgers, request->ledger_id);
    int result = bk_statements_put(&connection->statements,
                                   &connection->engine->changes.statement_slots,
                                   request->ledger_id, request->incarnation);
    if (result == BK_OK && ledger != NULL && bk_ledger_is_other(ledger, request->incarnation)) {
        feed->count++;
        feed->stopped = 1;
    }
    return result;
}

/* What the connection said of the ledger goes with a request that is answered later. */
static void take_said(bk_connection *connection, bk_request *request)
{
    (void)find_ledger(connection, request->ledger_id);
    request->incarnation = connection->said.incarnation;
    request->other_code = connection->said.code;
}

/* One whole frame. BK_FULL, BK_AGAIN and BK_ASK: nothing was done, try it again later. */
static int take_frame(bk_connection *connection, const uint8_t *frame, uint32_t frame_size,
                      bk_feed *feed)
{
    bk_request *request = &feed->requests[feed->count];
    if (frame_size >= 8 && frame[4] <= 2 && frame[5] == BK_OP_ADD)
        return add(connection, frame, frame_size, feed->ns);
    memset(request, 0, sizeof *request);
    int result = bk_frame_parse_request(frame, frame_size, request);
    if (result == BK_CORRUPT) {
        result = refuse(connection, frame[5], BK_CODE_BAD_VERSION, request->ledger_id,
                        request->entry_id);
        return result != 0 ? result : BK_CLOSE;
    }
    if (result != BK_OK)
        return result;
    if (request->opcode == BK_OP_WRITE_LAC)
        return write_lac(connection, request, feed->ns);
    if (request->opcode == BK_OP_INCARNATION)
        return take_statement(connection, request, feed);
    if (connection->statements.count > 0 && request->opcode != BK_OP_CALL)
        take_said(connection, request);
    feed->count++;
    return BK_OK;
}

static int grow_partial(bk_connection *connection, size_t room)
{
    uint8_t *grown = bk_array_resize(connection->partial, room, 1);
    if (grown == NULL)
        return -ENOMEM;
    connection->engine->stats.partial_bytes += room - connection->partial_room;
    connection->partial = grown;
    connection->partial_room = room;
    return 0;
}

/* Add bytes to the frame in pieces, until it is whole or they are used up. */
static int fill_partial(bk_connection *connection, const uint8_t *data, size_t size, size_t *used)
{
    *used = 0;
    for (;;) {
        size_t need = connection->partial_need != 0 ? connection->partial_need : 8;
        if (connection->partial_room < need) {
            int result = grow_partial(connection, need);
            if (result != 0)
                return result;
        }
        size_t n = need - connection->partial_size;
        if (n > size - *used)
            n = size - *used;
        memcpy(connection->partial + connection->partial_size, data + *used, n);
        connection->partial_size += n;
        *used += n;
        if (connection->partial_need != 0 || connection->partial_size < 8)
            return BK_OK;
        uint32_t frame_size = 0;
        if (bk_frame_find(connection->partial, connection->partial_size, &frame_size) == BK_CLOSE ||
            frame_size < 8)
            return BK_CLOSE;
        connection->partial_need = frame_size;
    }
}

static int finish_partial(bk_connection *connection, bk_feed *feed)
{
    uint32_t before = feed->count;
    int result =
        take_frame(connection, connection->partial, (uint32_t)connection->partial_need, feed);
    if (result != BK_OK)
        return result;
    if (feed->count > before) {
        feed->requests[before].in_pieces = 1;
        connection->partial_done = 1;
    } else {
        drop_partial(connection);
    }
    return BK_OK;
}

static int feed_all(bk_connection *connection, const uint8_t *data, size_t size, size_t *used,
                    bk_feed *feed)
{
    size_t at = 0, n = 0;
    int result = BK_OK;
    while (result == BK_OK && feed->count < feed->max && !feed->stopped) {
        uint32_t frame_size = 0;
        if (connection->partial != NULL) {
            if (connection->partial_done)
                break; /* its buffer is lent out */
            result = fill_partial(connection, data + at, size - at, &n);
            *used = at += n;
            if (result != BK_OK || connection->partial_need == 0 ||
                connection->partial_size < connection->partial_need)
                break;
            result = finish_partial(connection, feed);
            continue;
        }
        if (at == size)
            break;
        int found = bk_frame_find(data + at, size - at, &frame_size);
        if (found == BK_CLOSE)
            return BK_CLOSE;
        if (found == BK_END) {
            result = grow_partial(connection, 8);
            continue;
        }
        uint32_t before = feed->count;
        result = take_frame(connection, data + at, frame_size, feed);
        if (result == BK_OK) {
            if (feed->count > before)
                feed->requests[before].body_offset += at;
            *used = at += frame_size;
        }
    }
    return result;
}

int bk_connection_feed(bk_connection *connection, const uint8_t *data, size_t size, size_t *used,
                       bk_request *requests, uint32_t requests_max, uint32_t *count)
{
    bk_engine *engine = connection->engine;
    bk_feed feed = {requests, requests_max, 0, bk_io_now_ns(), 0};
    *used = 0;
    pthread_mutex_lock(&engine->lock);
    if (connection->partial_done)
        drop_partial(connection);
    int result = feed_all(connection, data, size, used, &feed);
    if (engine->groups.gathering || engine->groups.queue_count > 0)
        pthread_cond_signal(&engine->work);
    pthread_mutex_unlock(&engine->lock);
    *count = feed.count;
    return result;
}

const uint8_t *bk_connection_partial(const bk_connection *connection)
{
    return connection->partial;
}
