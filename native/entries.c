/* Stored entries as they travel between bookies: { size 4, stored entry }... See link.h. */
#include "internal.h"

int bk_readd_fits(uint64_t entry_size)
{
    return entry_size >= BK_ENTRY_HEADER_SIZE && entry_size <= BK_ENTRY_SIZE_MAX;
}

int bk_readd_plan(const uint8_t *body, size_t body_size, uint32_t *count, uint64_t *size)
{
    *count = 0;
    *size = 0;
    for (size_t at = 0; at < body_size;) {
        if (body_size - at < 4)
            return BK_CORRUPT;
        uint32_t entry_size = bk_get32be(body + at);
        if (!bk_readd_fits(entry_size) || entry_size > body_size - at - 4)
            return BK_CORRUPT;
        *size += BK_ADD_HEADER_SIZE + entry_size;
        ++*count;
        at += 4 + entry_size;
    }
    return BK_OK;
}

void bk_frame_readd(uint8_t *out, const uint8_t *key, int32_t flags, const uint8_t *entry,
                    uint32_t entry_size)
{
    bk_put32be(out, entry_size + BK_ADD_HEADER_SIZE - 4);
    bk_put32be(out + 4, 2u << 24 | BK_OP_ADD << 16 | ((uint32_t)flags & 0xffff));
    memcpy(out + 8, key, BK_KEY_SIZE);
    memcpy(out + BK_ADD_HEADER_SIZE, entry, entry_size);
}

void bk_readd(uint8_t *out, const uint8_t *key, int32_t flags, const uint8_t *body,
              size_t body_size)
{
    for (size_t at = 0; at < body_size;) {
        uint32_t entry_size = bk_get32be(body + at);
        bk_frame_readd(out, key, flags, body + at + 4, entry_size);
        out += BK_ADD_HEADER_SIZE + entry_size;
        at += 4 + entry_size;
    }
}

int bk_entries_check(const bk_digest *digest, const uint8_t *body, size_t size, int64_t ledger_id,
                     int64_t start_id, uint32_t count_max, uint64_t *payload_offsets,
                     uint32_t *payload_sizes, uint32_t *count, int64_t *lac, uint64_t *length)
{
    *count = 0;
    *lac = -1;
    *length = 0;
    size_t at = 0;
    while (at < size && *count < count_max) {
        if (size - at < 4)
            return BK_CORRUPT;
        uint32_t entry_size = bk_get32be(body + at);
        const uint8_t *entry = body + at + 4;
        int64_t entry_id = (int64_t)((uint64_t)start_id + *count);
        if (entry_id < 0 || entry_size > size - at - 4 ||
            bk_digest_check(digest, entry, entry_size, ledger_id, entry_id) != BK_OK)
            return BK_CORRUPT;
        uint32_t head = BK_ENTRY_HEADER_SIZE + (uint32_t)bk_digest_size(digest->kind);
        payload_offsets[*count] = at + 4 + head;
        payload_sizes[*count] = entry_size - head;
        int64_t entry_lac = (int64_t)bk_get64be(entry + 16);
        *lac = entry_lac > *lac ? entry_lac : *lac;
        *length = bk_get64be(entry + 24);
        ++*count;
        at += 4 + entry_size;
    }
    return BK_OK;
}
