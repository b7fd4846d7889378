/* An add of an entry that is here already: is it the same? See engine.h, rule 5. */
#include "engine_internal.h"

#include <errno.h>
#include <stdlib.h>

#define LAC_AT 16
#define LENGTH_AT 24

/* Size of the digest in the entry; that of an HMAC cannot be checked without the password, and
 * stands for what is neither of the others. */
static uint32_t digest_size(const uint8_t *entry, uint32_t size)
{
    static const int32_t kinds[] = {BK_DIGEST_CRC32C, BK_DIGEST_CRC32};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        bk_digest digest = {.kind = kinds[i]};
        uint8_t sum[BK_DIGEST_SIZE_MAX];
        uint32_t sum_size = (uint32_t)bk_digest_size(kinds[i]);
        uint32_t payload_at = BK_ENTRY_HEADER_SIZE + sum_size;
        if (size < payload_at)
            continue;
        bk_digest_compute(&digest, entry, entry + payload_at, size - payload_at, sum);
        if (memcmp(sum, entry + BK_ENTRY_HEADER_SIZE, sum_size) == 0)
            return sum_size;
    }
    return BK_DIGEST_SIZE_MAX;
}

static int ends_alike(const uint8_t *a, const uint8_t *b, uint32_t size, uint32_t from)
{
    return size >= from && memcmp(a + from, b + from, size - from) == 0;
}

/* Recovery adds entries again with a LAC from before it, so header and digest may differ. */
int bk_entries_agree(const uint8_t *a, uint32_t a_size, const uint8_t *b, uint32_t b_size)
{
    if (a_size != b_size || a_size < BK_ENTRY_HEADER_SIZE || memcmp(a, b, LAC_AT) != 0 ||
        memcmp(a + LENGTH_AT, b + LENGTH_AT, BK_ENTRY_HEADER_SIZE - LENGTH_AT) != 0)
        return 0;
    if (ends_alike(a, b, a_size, BK_ENTRY_HEADER_SIZE))
        return 1;
    if (memcmp(a + LAC_AT, b + LAC_AT, LENGTH_AT - LAC_AT) == 0)
        return 0;
    uint32_t sum_size = digest_size(b, b_size);
    return digest_size(a, a_size) == sum_size &&
           ends_alike(a, b, a_size, BK_ENTRY_HEADER_SIZE + sum_size);
}

void bk_original_forget(bk_original *original)
{
    free(original->body);
    original->body = NULL;
    original->room = 0;
    original->wanted = 0;
}

int bk_connection_judge(bk_connection *connection, const bk_ledger *ledger, int64_t entry_id,
                        const uint8_t *entry, uint32_t entry_size, int32_t flags)
{
    bk_engine *engine = connection->engine;
    bk_original *original = &connection->original;
    uint32_t size;
    const uint8_t *record = bk_engine_find(engine, ledger, entry_id, &size);
    if (record != NULL)
        return bk_entries_agree(record + BK_RECORD_HEADER_SIZE, size - BK_RECORD_HEADER_SIZE, entry,
                                entry_size)
                   ? BK_END
                   : BK_CORRUPT;
    if ((flags & BK_FLAG_MEND) != 0 || !bk_store_spans(engine->store, ledger->id, entry_id))
        return BK_OK;
    if (original->wanted != 2 || original->ledger_id != ledger->id ||
        original->entry_id != entry_id || original->removals != engine->changes.removals ||
        original->renewals != engine->changes.renewals) {
        original->ledger_id = ledger->id;
        original->entry_id = entry_id;
        original->removals = engine->changes.removals;
        original->renewals = engine->changes.renewals;
        original->wanted = 1;
        return BK_AGAIN;
    }
    int result = original->result;
    if (result == BK_OK)
        result = bk_entries_agree(original->body, original->size, entry, entry_size) ? BK_END
                                                                                    : BK_CORRUPT;
    else if (result > 0) /* a hole, or damaged: then this one takes its place */
        result = BK_OK;
    bk_original_forget(original);
    return result;
}

static int room_for(bk_original *original, uint32_t size)
{
    if (size <= original->room)
        return BK_OK;
    uint8_t *larger = bk_array_resize(original->body, size, 1);
    if (larger == NULL)
        return -ENOMEM;
    original->body = larger;
    original->room = size;
    return BK_OK;
}

int bk_connection_look(bk_connection *connection)
{
    bk_original *original = &connection->original;
    if (original->wanted != 1)
        return BK_END;
    uint32_t size = 4096;
    do {
        original->result = room_for(original, size);
        if (original->result == BK_OK)
            original->result = bk_store_peek(connection->engine->store, original->ledger_id,
                                             original->entry_id, original->body, original->room,
                                             &size);
    } while (original->result == BK_SMALL);
    original->size = size;
    original->wanted = 2;
    return original->result == -ENOMEM ? -ENOMEM : BK_OK;
}
