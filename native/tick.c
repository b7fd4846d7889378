/* Ticks of a topic: the covers of lanes in an entry's body (batch.h). */
#include "batch_internal.h"

_Static_assert(BK_BATCH_HEAD_SIZE + BK_TICK_HEAD_SIZE +
                       (uint64_t)BK_TICK_COVERS_MAX * BK_TICK_COVER_SIZE <=
                   BK_BATCH_SIZE_MAX,
               "an entry has room for as many covers");

static bk_cover take_cover(const uint8_t *p)
{
    bk_cover cover = {
        .partition = (int32_t)bk_get32le(p),
        .lane = bk_get32le(p + 4),
        .version = bk_get64le(p + 8),
    };
    return cover;
}

static int rises(bk_cover before, bk_cover after)
{
    return before.partition != after.partition ? before.partition < after.partition
                                               : before.lane < after.lane;
}

int bk_tick_check(const bk_batch_header *header, const uint8_t *body, uint64_t size,
                  uint32_t *flags, uint32_t *count)
{
    if (header->kind != BK_BATCH_TICK || header->compression != BK_BATCH_PLAIN ||
        header->last_timestamp == 0 || size < BK_TICK_HEAD_SIZE)
        return BK_CORRUPT;
    *flags = bk_get32le(body);
    *count = bk_get32le(body + 4);
    if (*flags & ~(uint32_t)BK_TICK_WHOLE ||
        size != BK_TICK_HEAD_SIZE + (uint64_t)*count * BK_TICK_COVER_SIZE)
        return BK_CORRUPT;
    bk_cover before = {0};
    for (uint32_t i = 0; i < *count; i++) {
        bk_cover cover = take_cover(body + BK_TICK_HEAD_SIZE + (uint64_t)i * BK_TICK_COVER_SIZE);
        if (cover.partition < -1 || cover.version > INT64_MAX || (i > 0 && !rises(before, cover)))
            return BK_CORRUPT;
        before = cover;
    }
    return BK_OK;
}

void bk_tick_read(const uint8_t *body, uint32_t count, bk_cover *covers)
{
    for (uint32_t i = 0; i < count; i++)
        covers[i] = take_cover(body + BK_TICK_HEAD_SIZE + (uint64_t)i * BK_TICK_COVER_SIZE);
}

void bk_tick_write(const bk_cover *covers, uint32_t count, uint32_t flags, uint8_t *out)
{
    bk_put32le(out, flags);
    bk_put32le(out + 4, count);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *p = out + BK_TICK_HEAD_SIZE + (uint64_t)i * BK_TICK_COVER_SIZE;
        bk_put32le(p, (uint32_t)covers[i].partition);
        bk_put32le(p + 4, covers[i].lane);
        bk_put64le(p + 8, covers[i].version);
    }
}
