/* The latest message of each key: open addressing over keys that stand in blocks. */
#include <errno.h>
#include <stdlib.h>

#include "batch_internal.h"

#define BLOCK_SIZE 65536u
#define UNIT 8u /* what a key's place in its block is counted in */
#define UNIT_BITS 13
#define BLOCKS_MAX (1u << (32 - UNIT_BITS))
#define SLOTS_MIN 4096u
#define AHEAD 8 /* messages whose slots are asked of memory before they are looked at */

_Static_assert(BLOCK_SIZE / UNIT == 1u << UNIT_BITS, "a place has so many bits");

/* What is known of a key; its bytes follow. */
typedef struct {
    int64_t order;
    uint64_t ordinal;
    uint32_t lane;
    uint32_t size : 31;
    uint32_t tombstone : 1;
} known;

typedef struct {
    uint8_t *data;
    uint32_t used, size;
} block;

/* 0 in place: nothing; else one more than where the key stands. */
typedef struct {
    uint32_t hash;
    uint32_t place;
} slot;

struct bk_latest {
    uint64_t memory_max;
    uint32_t slices, slice, partitions, partition;
    slot *slots;
    uint64_t slots_count; /* a power of two */
    block *blocks;
    uint32_t blocks_count, blocks_room;
    int spoilt;
    bk_latest_state state;
};

/* Slots and slices take other bits than partitions did: with the hash of routing as it is, the
 * keys of one partition would crowd in a part of the slots. */
static uint64_t mix(uint32_t hash)
{
    uint64_t mixed = (hash + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    return (mixed ^ mixed >> 29) * 0x94d049bb133111ebull;
}

static int is_mine(const bk_latest *latest, uint32_t hash)
{
    return latest->slices == 1 || (mix(hash) & UINT32_MAX) % latest->slices == latest->slice;
}

static uint64_t home_of(const bk_latest *latest, uint32_t hash)
{
    return mix(hash) >> 20 & (latest->slots_count - 1);
}

static known *known_at(const bk_latest *latest, uint32_t place)
{
    uint32_t at = place - 1;
    uint8_t *data = latest->blocks[at >> UNIT_BITS].data;
    return (known *)(void *)(data + (uint64_t)(at & (BLOCK_SIZE / UNIT - 1)) * UNIT);
}

/* --- memory --------------------------------------------------------------------- */

static int reserve(bk_latest *latest, uint64_t size)
{
    if (size > latest->memory_max - latest->state.memory)
        return BK_FULL;
    latest->state.memory += size;
    return BK_OK;
}

int bk_latest_open(uint64_t memory_max, uint32_t slices, uint32_t slice, uint32_t partitions,
                   uint32_t partition, bk_latest **out)
{
    if (memory_max < BK_LATEST_MEMORY_MIN || slices < 1 || slice >= slices ||
        (partitions > 0 && partition >= partitions))
        return -EINVAL;
    bk_latest *latest = calloc(1, sizeof *latest);
    if (latest == NULL)
        return -ENOMEM;
    latest->slots = calloc(SLOTS_MIN, sizeof *latest->slots);
    if (latest->slots == NULL) {
        free(latest);
        return -ENOMEM;
    }
    latest->memory_max = memory_max;
    latest->slices = slices;
    latest->slice = slice;
    latest->partitions = partitions;
    latest->partition = partition;
    latest->slots_count = SLOTS_MIN;
    latest->state.memory = sizeof *latest + SLOTS_MIN * sizeof *latest->slots;
    *out = latest;
    return BK_OK;
}

void bk_latest_close(bk_latest *latest)
{
    if (latest == NULL)
        return;
    for (uint32_t i = 0; i < latest->blocks_count; i++)
        free(latest->blocks[i].data);
    free(latest->blocks);
    free(latest->slots);
    free(latest);
}

/* Slots are moved by their hashes alone; the keys are not looked at. */
static int grow_slots(bk_latest *latest)
{
    uint64_t before = latest->slots_count, size = before * sizeof(slot);
    int result = reserve(latest, 2 * size);
    if (result != BK_OK)
        return result;
    slot *grown = calloc(2 * before, sizeof *grown), *old = latest->slots;
    if (grown == NULL)
        return -ENOMEM;
    latest->slots = grown;
    latest->slots_count = 2 * before;
    for (uint64_t i = 0; i < before; i++) {
        if (old[i].place == 0)
            continue;
        uint64_t at = home_of(latest, old[i].hash);
        while (grown[at].place != 0)
            at = (at + 1) & (latest->slots_count - 1);
        grown[at] = old[i];
    }
    free(old);
    latest->state.memory -= size;
    return BK_OK;
}

static int grow_blocks(bk_latest *latest)
{
    uint32_t room = latest->blocks_room == 0 ? 16 : 2 * latest->blocks_room;
    int result = reserve(latest, (room - latest->blocks_room) * sizeof(block));
    if (result != BK_OK)
        return result;
    block *grown = bk_array_resize(latest->blocks, room, sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    latest->blocks = grown;
    latest->blocks_room = room;
    return BK_OK;
}

/* Begin a block with room for size bytes; one key that is larger has a block alone. */
static int add_block(bk_latest *latest, uint64_t size)
{
    uint64_t whole = size > BLOCK_SIZE ? size : BLOCK_SIZE;
    if (latest->blocks_count == BLOCKS_MAX)
        return BK_FULL;
    int result = BK_OK;
    if (latest->blocks_count == latest->blocks_room)
        result = grow_blocks(latest);
    if (result == BK_OK)
        result = reserve(latest, whole);
    if (result != BK_OK)
        return result;
    uint8_t *data = malloc(whole);
    if (data == NULL)
        return -ENOMEM;
    latest->blocks[latest->blocks_count++] = (block){data, 0, (uint32_t)whole};
    return BK_OK;
}

static int keep_key(bk_latest *latest, const uint8_t *key, uint32_t size, uint32_t *place)
{
    uint64_t whole = bk_align_up(sizeof(known) + size, UNIT);
    block *last = latest->blocks_count == 0 ? NULL : &latest->blocks[latest->blocks_count - 1];
    if (last == NULL || whole > last->size - last->used) {
        int result = add_block(latest, whole);
        if (result != BK_OK)
            return result;
        last = &latest->blocks[latest->blocks_count - 1];
    }
    /* The last place of all would be one more than 32 bits hold. */
    uint64_t at = (uint64_t)(latest->blocks_count - 1) << UNIT_BITS | last->used / UNIT;
    if (at >= UINT32_MAX)
        return BK_FULL;
    known *kept = (known *)(void *)(last->data + last->used);
    last->used += (uint32_t)whole;
    kept->size = size & INT32_MAX;
    kept->tombstone = 0;
    if (size > 0)
        memcpy(kept + 1, key, size);
    *place = (uint32_t)at + 1;
    return BK_OK;
}

/* --- messages ------------------------------------------------------------------- */

typedef struct {
    const uint8_t *key;
    uint32_t size;
    uint32_t hash;
    uint32_t lane;
    uint32_t tombstone;
    uint64_t ordinal;
    int64_t order;
} message;

static int is_later(const message *one, const known *other)
{
    if (one->lane == other->lane)
        return one->ordinal >= other->ordinal;
    return one->order > other->order || (one->order == other->order && one->lane > other->lane);
}

static void note(bk_latest *latest, const message *one, known *kept)
{
    latest->state.tombstones += one->tombstone;
    latest->state.tombstones -= kept->tombstone;
    kept->order = one->order;
    kept->ordinal = one->ordinal;
    kept->lane = one->lane;
    kept->tombstone = one->tombstone & 1;
}

static int add_key(bk_latest *latest, const message *one, slot *free_slot)
{
    uint32_t place;
    int result = keep_key(latest, one->key, one->size, &place);
    if (result != BK_OK)
        return result;
    *free_slot = (slot){one->hash, place};
    note(latest, one, known_at(latest, place));
    latest->state.keys++;
    if (latest->partitions > 0 && (one->hash & INT32_MAX) % latest->partitions != latest->partition)
        latest->state.foreign++;
    return 4 * latest->state.keys > 3 * latest->slots_count ? grow_slots(latest) : BK_OK;
}

static int add_message(bk_latest *latest, const message *one)
{
    uint64_t at = home_of(latest, one->hash);
    for (; latest->slots[at].place != 0; at = (at + 1) & (latest->slots_count - 1)) {
        if (latest->slots[at].hash != one->hash)
            continue;
        known *kept = known_at(latest, latest->slots[at].place);
        if (kept->size != one->size || (one->size > 0 && memcmp(kept + 1, one->key, one->size) != 0))
            continue;
        if (is_later(one, kept))
            note(latest, one, kept);
        return BK_OK;
    }
    return add_key(latest, one, &latest->slots[at]);
}

static int value_is_empty(const bk_binary *values, uint64_t i, uint32_t *empty)
{
    int64_t begin = 0, end = 0;
    if (values->offsets != NULL && bk_is_valid(values->validity, i) &&
        !bk_span(values, i, &begin, &end))
        return 0;
    *empty = begin == end;
    return 1;
}

/* Messages on their way, from their key's hash to the table: so memory has time to come. */
typedef struct {
    message items[AHEAD];
    uint64_t count;
} queue;

static int flush(bk_latest *latest, queue *ahead)
{
    int result = BK_OK;
    for (uint64_t i = 0; i < ahead->count && result == BK_OK; i++)
        result = add_message(latest, &ahead->items[i]);
    ahead->count = 0;
    return result;
}

static int take_message(bk_latest *latest, const bk_columns *columns, uint64_t i, message one,
                        queue *ahead)
{
    int64_t begin, end;
    if (!bk_span(&columns->keys, i, &begin, &end) ||
        !value_is_empty(&columns->values, i, &one.tombstone))
        return BK_CORRUPT;
    one.key = columns->keys.data + begin;
    one.size = (uint32_t)(end - begin);
    one.hash = bk_murmur3(one.key, one.size, 0);
    if (!is_mine(latest, one.hash))
        return BK_OK;
    __builtin_prefetch(&latest->slots[home_of(latest, one.hash)]);
    ahead->items[ahead->count++] = one;
    return ahead->count == AHEAD ? flush(latest, ahead) : BK_OK;
}

int bk_latest_add(bk_latest *latest, const bk_columns *columns, const void *orders, int64_t order,
                  uint64_t base, uint32_t lane)
{
    queue ahead = {.count = 0};
    int result = latest->spoilt ? BK_FULL : BK_OK;
    const bk_binary *keys = &columns->keys;
    for (uint64_t i = 0; i < columns->count && result == BK_OK; i++) {
        if (keys->offsets == NULL || !bk_is_valid(keys->validity, i)) {
            latest->state.null_keys++;
            continue;
        }
        message one = {.lane = lane,
                       .ordinal = base + i,
                       .order = orders != NULL ? bk_load_i64(orders, i) : order};
        result = take_message(latest, columns, i, one, &ahead);
    }
    if (result == BK_OK)
        result = flush(latest, &ahead);
    latest->spoilt |= result != BK_OK;
    return result;
}

void bk_latest_get_state(const bk_latest *latest, bk_latest_state *state) { *state = latest->state; }

/* --- survivors ------------------------------------------------------------------ */

static uint64_t set_bit(uint8_t *bits, uint64_t at)
{
    uint8_t bit = (uint8_t)(1u << at % 8);
    uint64_t is_new = (bits[at / 8] & bit) == 0;
    bits[at / 8] |= bit;
    return is_new;
}

uint64_t bk_latest_mark(const bk_latest *latest, uint32_t lane, uint64_t first, uint64_t count,
                        int32_t tombstones, uint8_t *bits)
{
    uint64_t set = 0;
    for (uint32_t i = 0; i < latest->blocks_count; i++) {
        const block *from = &latest->blocks[i];
        for (uint64_t at = 0; at < from->used;) {
            const known *kept = (const known *)(const void *)(from->data + at);
            at += bk_align_up(sizeof *kept + kept->size, UNIT);
            if (kept->lane == lane && (tombstones || !kept->tombstone) &&
                kept->ordinal >= first && kept->ordinal - first < count)
                set += set_bit(bits, kept->ordinal - first);
        }
    }
    return set;
}

uint64_t bk_bits_rows(const uint8_t *bits, uint64_t offset, uint64_t count, void *rows)
{
    uint64_t found = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = offset + i;
        if (at % 8 == 0 && count - i >= 8 && bits[at / 8] == 0) {
            i += 7; /* few are left where much was written again */
            continue;
        }
        if (bk_bit(bits, at))
            bk_store_i32(rows, found++, (int32_t)i);
    }
    return found;
}

uint64_t bk_bits_mark_null_keys(const bk_columns *columns, uint64_t offset, uint8_t *bits)
{
    uint64_t set = 0;
    for (uint64_t i = 0; i < columns->count; i++)
        if (columns->keys.offsets == NULL || !bk_is_valid(columns->keys.validity, i))
            set += set_bit(bits, offset + i);
    return set;
}
