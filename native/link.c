/* One connection to a bookie, seen from the client. See link.h. */
#include <errno.h>
#include <stdlib.h>

#include "link_internal.h"

#define ADD_RESPONSE_SIZE 28
#define PARTIAL_KEPT_MAX 65536 /* bytes of the buffer that outlive a frame in pieces */
#define ROOM_LEAST 65536       /* for fewer bytes of a frame a receive of their own does not pay */

struct bk_link {
    bk_attachment **buckets; /* by ledger */
    bk_attachment **dirty;   /* as long as buckets; its first dirty_count are in use */
    uint32_t bucket_count;   /* a power of two, or 0 */
    uint32_t count;          /* attachments */
    uint32_t dirty_count;
    uint64_t answers; /* ADD responses for attachments */
    bk_attachment *recent; /* where the last ADD response belonged */
    uint8_t *partial;      /* a frame that is not whole, or was the last to become so */
    uint32_t partial_size, partial_room;
    uint8_t lent;   /* 1: partial holds a whole frame, which a response points into */
    uint8_t broken; /* 1: the peer broke the protocol */
};

int bk_link_open(bk_link **out)
{
    *out = calloc(1, sizeof **out);
    return *out == NULL ? -ENOMEM : BK_OK;
}

/* --- attachments ------------------------------------------------------------------ */

static bk_attachment **bucket_of(const bk_link *link, int64_t ledger_id)
{
    uint64_t mixed = (uint64_t)ledger_id * UINT64_C(0x9e3779b97f4a7c15);
    return &link->buckets[mixed >> 32 & (link->bucket_count - 1)];
}

static bk_attachment *find_attachment(bk_link *link, int64_t ledger_id)
{
    if (link->recent != NULL && link->recent->ledger_id == ledger_id)
        return link->recent;
    if (link->bucket_count == 0)
        return NULL;
    bk_attachment *found = *bucket_of(link, ledger_id);
    while (found != NULL && found->ledger_id != ledger_id)
        found = found->next;
    if (found != NULL)
        link->recent = found;
    return found;
}

static void rehash(bk_link *link, bk_attachment **old, uint32_t old_count)
{
    for (uint32_t i = 0; i < old_count; i++) {
        while (old[i] != NULL) {
            bk_attachment *moved = old[i], **bucket = bucket_of(link, moved->ledger_id);
            old[i] = moved->next;
            moved->next = *bucket;
            *bucket = moved;
        }
    }
    free(old);
}

/* Keep at least one bucket, and one place in the dirty list, for each attachment. */
static int reserve_bucket(bk_link *link)
{
    if (link->count < link->bucket_count)
        return BK_OK;
    uint32_t count = link->bucket_count != 0 ? 2 * link->bucket_count : 8;
    bk_attachment **dirty = bk_array_resize(link->dirty, count, sizeof *dirty);
    if (dirty == NULL)
        return -ENOMEM;
    link->dirty = dirty;
    bk_attachment **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL)
        return -ENOMEM;
    bk_attachment **old = link->buckets;
    uint32_t old_count = link->bucket_count;
    link->buckets = buckets;
    link->bucket_count = count;
    rehash(link, old, old_count);
    return BK_OK;
}

int bk_link_attach(bk_link *link, bk_writer *writer, uint32_t bookie)
{
    int64_t ledger_id = bk_writer_ledger(writer);
    if (bookie >= bk_writer_ensemble_size(writer))
        return -EINVAL;
    if (find_attachment(link, ledger_id) != NULL)
        return -EEXIST;
    if (reserve_bucket(link) != BK_OK)
        return -ENOMEM;
    bk_attachment *attachment = malloc(sizeof *attachment);
    if (attachment == NULL)
        return -ENOMEM;
    bk_attachment **bucket = bucket_of(link, ledger_id);
    *attachment = (bk_attachment){.writer = writer,
                                  .link = link,
                                  .ledger_id = ledger_id,
                                  .bookie = bookie,
                                  .next = *bucket};
    *bucket = attachment;
    link->count++;
    bk_writer_bind(writer, attachment);
    return BK_OK;
}

static void set_dirty(bk_link *link, bk_attachment *attachment)
{
    if (attachment->dirty != 0)
        return;
    link->dirty[link->dirty_count++] = attachment;
    attachment->dirty = link->dirty_count;
}

/* The last of the list takes the free place. */
static void clear_dirty(bk_link *link, bk_attachment *attachment)
{
    if (attachment->dirty == 0)
        return;
    bk_attachment *last = link->dirty[--link->dirty_count];
    link->dirty[attachment->dirty - 1] = last;
    last->dirty = attachment->dirty;
    attachment->dirty = 0;
}

void bk_link_drop(bk_attachment *attachment)
{
    bk_link *link = attachment->link;
    bk_attachment **at = bucket_of(link, attachment->ledger_id);
    while (*at != attachment)
        at = &(*at)->next;
    *at = attachment->next;
    link->count--;
    clear_dirty(link, attachment);
    if (link->recent == attachment)
        link->recent = NULL;
    bk_writer_unbind(attachment->writer, attachment);
    free(attachment);
}

void bk_link_detach(bk_link *link, bk_writer *writer)
{
    bk_attachment *found = find_attachment(link, bk_writer_ledger(writer));
    if (found != NULL && found->writer == writer)
        bk_link_drop(found);
}

void bk_link_close(bk_link *link)
{
    if (link == NULL)
        return;
    for (uint32_t i = 0; i < link->bucket_count; i++)
        while (link->buckets[i] != NULL)
            bk_link_drop(link->buckets[i]);
    free(link->buckets);
    free(link->dirty);
    free(link->partial);
    free(link);
}

uint64_t bk_link_answers(const bk_link *link) { return link->answers; }

uint32_t bk_link_dirty(bk_link *link, uint64_t *out, uint32_t out_count)
{
    uint32_t count = 0;
    while (count < out_count && link->dirty_count > 0) {
        bk_attachment *attachment = link->dirty[link->dirty_count - 1];
        clear_dirty(link, attachment);
        out[count++] = bk_writer_token(attachment->writer);
    }
    return count;
}

/* --- bytes from the bookie ------------------------------------------------------------ */

/* Deal with an ADD response of an attached writer; 0 if the frame is not one. */
static int take_add(bk_link *link, const uint8_t *frame, uint32_t frame_size)
{
    if (frame_size != ADD_RESPONSE_SIZE || frame[4] > 2 || frame[5] != BK_OP_ADD)
        return 0;
    bk_attachment *to = find_attachment(link, (int64_t)bk_get64be(frame + 12));
    if (to == NULL)
        return 0;
    int64_t entry_id = (int64_t)bk_get64be(frame + 20);
    link->answers++;
    if (bk_writer_take(to->writer, to->bookie, entry_id, (int32_t)bk_get32be(frame + 8)))
        set_dirty(link, to);
    return 1;
}

/* One whole frame: *count grows by one if it is for the caller. */
static int take_frame(bk_link *link, const uint8_t *frame, uint32_t frame_size,
                      bk_response *responses, uint32_t *count)
{
    if (take_add(link, frame, frame_size))
        return BK_OK;
    int result = bk_frame_parse_response(frame, frame_size, &responses[*count]);
    if (result == BK_OK)
        ++*count;
    return result;
}

static int grow_partial(bk_link *link, uint32_t room)
{
    if (room <= link->partial_room)
        return BK_OK;
    uint8_t *grown = bk_array_resize(link->partial, room, 1);
    if (grown == NULL)
        return -ENOMEM;
    link->partial = grown;
    link->partial_room = room;
    return BK_OK;
}

/* Move bytes into the frame in pieces until it is whole (BK_OK) or there are no
 * more (BK_END). */
static int fill_partial(bk_link *link, const uint8_t *data, size_t size, size_t *used)
{
    for (;;) {
        uint32_t need;
        int found = bk_frame_find(link->partial, link->partial_size, &need);
        if (found != BK_END)
            return found;
        if (*used == size)
            return BK_END;
        if (need == 0)
            need = 4; /* the length word */
        int result = grow_partial(link, need);
        if (result != BK_OK)
            return result;
        size_t take = need - link->partial_size;
        if (take > size - *used)
            take = size - *used;
        uint8_t *to = link->partial + link->partial_size;
        if (to != data + *used) /* else they were received in bk_link_room() */
            memcpy(to, data + *used, take);
        link->partial_size += (uint32_t)take;
        *used += take;
    }
}

/* Forget the whole frame that stood in the buffer. */
static void end_partial(bk_link *link)
{
    link->lent = 0;
    link->partial_size = 0;
    if (link->partial_room > PARTIAL_KEPT_MAX) {
        free(link->partial);
        link->partial = NULL;
        link->partial_room = 0;
    }
}

/* The frame in pieces. A response that points into it keeps the buffer until the
 * next feed. */
static int feed_partial(bk_link *link, const uint8_t *data, size_t size, size_t *used,
                        bk_response *responses, uint32_t *count)
{
    int result = fill_partial(link, data, size, used);
    if (result != BK_OK)
        return result;
    uint32_t before = *count;
    result = take_frame(link, link->partial, link->partial_size, responses, count);
    if (result == BK_OK && *count > before) {
        responses[before].in_pieces = 1;
        link->lent = 1;
    } else {
        end_partial(link);
    }
    return result;
}

/* Frames that are whole in data. BK_END: the rest is not. */
static int feed_whole(bk_link *link, const uint8_t *data, size_t size, size_t *used,
                      bk_response *responses, uint32_t responses_max, uint32_t *count)
{
    while (*used < size && *count < responses_max) {
        const uint8_t *frame = data + *used;
        uint32_t frame_size, before = *count;
        int result = bk_frame_find(frame, size - *used, &frame_size);
        if (result == BK_OK)
            result = take_frame(link, frame, frame_size, responses, count);
        if (result != BK_OK)
            return result;
        if (*count > before)
            responses[before].body_offset += *used;
        *used += frame_size;
    }
    return BK_OK;
}

static int feed_all(bk_link *link, const uint8_t *data, size_t size, size_t *used,
                    bk_response *responses, uint32_t responses_max, uint32_t *count)
{
    int result = BK_OK;
    if (link->partial_size > 0)
        result = feed_partial(link, data, size, used, responses, count);
    if (result == BK_OK)
        result = feed_whole(link, data, size, used, responses, responses_max, count);
    if (result != BK_END)
        return result;
    if (link->lent)
        return BK_OK; /* the buffer is lent out: the rest comes again */
    result = fill_partial(link, data, size, used);
    return result == BK_END ? BK_OK : result;
}

int bk_link_feed(bk_link *link, const uint8_t *data, size_t size, size_t *used,
                 bk_response *responses, uint32_t responses_max, uint32_t *count)
{
    *used = 0;
    *count = 0;
    if (responses_max == 0)
        return -EINVAL;
    if (link->broken)
        return BK_CLOSE;
    if (link->lent)
        end_partial(link);
    int result = feed_all(link, data, size, used, responses, responses_max, count);
    link->broken = result == BK_CLOSE;
    return result;
}

const uint8_t *bk_link_partial(const bk_link *link) { return link->partial; }

uint8_t *bk_link_take(bk_link *link)
{
    uint8_t *taken = link->partial;
    link->partial = NULL;
    link->partial_room = 0;
    end_partial(link);
    return taken;
}

void bk_link_release(void *taken) { free(taken); }

uint8_t *bk_link_room(bk_link *link, size_t *size)
{
    uint32_t need;
    if (link->lent)
        end_partial(link);
    if (bk_frame_find(link->partial, link->partial_size, &need) != BK_END ||
        need < link->partial_size + ROOM_LEAST || grow_partial(link, need) != BK_OK)
        return NULL;
    *size = need - link->partial_size;
    return link->partial + link->partial_size;
}
