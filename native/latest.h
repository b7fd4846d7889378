/* The latest message of each key, of a set of keys that fits the memory given.
 *
 * The first pass of compaction: messages are shown lane by lane, each with its ordinal, its
 * number among those of its lane as the caller counts; the table remembers for each key which
 * is the latest. Of two messages of one lane the later is the one with the higher ordinal; of
 * different lanes the one with the greater order, and with the same order that of the greater
 * lane. So lanes may be shown in any order, if orders never fall along a lane.
 *
 * A message whose value is null or has no bytes is a tombstone: as the latest of its key it
 * says that nothing is left of it. A message without a key is counted and no more.
 *
 * The table is a ring of slots, a quarter of them free at least, each with a key's hash and
 * where it lies: keys stand, each behind what is known of it, in blocks of memory, so nothing
 * moves but slots when there are more. All of it is counted. When a key would need more than
 * memory_max, adding says BK_FULL; the caller begins anew and takes keys a slice at a time:
 * the same key is in the same slice in every process.
 */
#define BK_LATEST_MEMORY_MIN 262144

typedef struct bk_latest bk_latest;

typedef struct {
  uint64_t keys;       /* in the table, with those of tombstones */
  uint64_t tombstones; /* keys whose latest message is one */
  uint64_t foreign;    /* keys that are not of this partition by their hash (bk_route) */
  uint64_t null_keys;  /* messages without a key, whatever the slice */
  uint64_t memory;     /* bytes */
} bk_latest_state;

/* Make a table for the keys of a slice: those whose hash is slice modulo slices. partitions 0:
 * nobody asks whether keys are foreign to partition. -EINVAL, -ENOMEM. */
int bk_latest_open(uint64_t memory_max, uint32_t slices, uint32_t slice, uint32_t partitions,
                   uint32_t partition, bk_latest **out);
void bk_latest_close(bk_latest *latest);

/* Show messages of a lane: ordinals base, base + 1 and so on. orders has an int64 for each; with
 * orders NULL it is order for all. BK_FULL: no memory is left, and the table is good for nothing
 * more. BK_CORRUPT: an offset is out of bounds; the same. -ENOMEM, the same. */
int bk_latest_add(bk_latest *latest, const bk_columns *columns, const void *orders, int64_t order,
                  uint64_t base, uint32_t lane);

void bk_latest_get_state(const bk_latest *latest, bk_latest_state *state);

/* Set in bits, the lowest of a byte first, those messages of a lane that are the latest of their
 * key: bit 0 is ordinal first, and there are count bits. Tombstones are set where asked for.
 * Returns how many were set that were not. */
uint64_t bk_latest_mark(const bk_latest *latest, uint32_t lane, uint64_t first, uint64_t count,
                        int32_t tombstones, uint8_t *bits);

/* Write the places of set bits among count bits from bit offset on, less offset, as uint32;
 * rows has room for count. Returns how many. */
uint64_t bk_bits_rows(const uint8_t *bits, uint64_t offset, uint64_t count, void *rows);
/* Set a bit from bit offset on for each message without a key. Returns how many were set. */
uint64_t bk_bits_mark_null_keys(const bk_columns *columns, uint64_t offset, uint8_t *bits);
