/* The batch: the messages of one entry, by columns.
 *
 * A batch is the payload of an entry: a header that can be read alone, the
 * producer's name, and a body, which is compressed as a whole or not at all.
 * The entry's digest (digest.h) protects all of it, so there is no checksum.
 * All integers are little-endian.
 *
 *   offset  size  field
 *   ------  ----  ---------------------------------------------------------
 *        0     2  magic           "QB"
 *        2     1  version         1
 *        3     1  kind            BK_BATCH_MESSAGES and so on
 *        4     1  compression     BK_BATCH_PLAIN and so on, of the body
 *        5     1  0
 *        6     2  flags           which columns there are, below
 *        8     2  producer_size   bytes of the producer's name, in UTF-8
 *       10     2  0
 *       12     4  count           messages, 1 to BK_BATCH_COUNT_MAX; 0 in other kinds
 *       16     4  body_size       bytes of the body, not compressed
 *       20     4  epoch           of the lane, when the batch was made
 *       24     8  created_ms      Unix milliseconds of the producer
 *       32     8  last_timestamp  the greatest of the messages, 0 for none
 *       40     8  event_time_min  nanoseconds; INT64_MIN: no message has one
 *       48     8  event_time_max  the same
 *       56     8  sequence        of the first message, each next one is one
 *                                 more; -1: the producer does not count
 *       64     p  the name, then zeros up to a multiple of 8
 *     64+p'    n  the body, to the end of the payload; BK_BATCH_LZ4 is a block
 *                 without a frame around it
 *
 * The body of other kinds than BK_BATCH_MESSAGES is bytes of theirs. That of
 * messages is a run of columns, as Apache Arrow lays them out. Each begins at
 * a multiple of 8 from the body's start, behind zeros. A column without a flag,
 * and one in which every message has null, takes no bytes. First what has a
 * width, so that it can be moved to aligned memory by itself:
 *
 *   column                  bytes    when
 *   ----------------------  -------  ----------------------------------------
 *   validity of values      n/8      BK_BATCH_NULL_VALUES
 *   value offsets           4(n+1)   BK_BATCH_VALUES
 *   validity of keys        n/8      BK_BATCH_NULL_KEYS
 *   key offsets             4(n+1)   BK_BATCH_KEYS
 *   validity of event times n/8      BK_BATCH_NULL_EVENT_TIMES
 *   event times             8n       BK_BATCH_EVENT_TIMES, signed
 *   timestamps              8n       BK_BATCH_TIMESTAMPS, unsigned, 0 for none
 *   header offsets          4(n+1)   BK_BATCH_HEADERS; the last is h, the
 *                                    number of headers of all messages
 *   header name offsets     4(h+1)   BK_BATCH_HEADERS
 *   header value offsets    4(h+1)   BK_BATCH_HEADERS
 *   key bytes
 *   header name bytes                in UTF-8
 *   header value bytes
 *   value bytes                      to the end of the body
 *
 * With BK_BATCH_CONSECUTIVE there is no column of timestamps: the messages have
 * consecutive ones, of which last_timestamp is that of the last message. So a batch
 * can get its timestamps once it is encoded: they lie in the header alone.
 *
 * Validity is a bit for each message, the lowest of a byte first, 0 for null.
 * Offsets are signed and count from the first byte of their column's bytes:
 * the first is 0, they never fall, the last is where the bytes end.
 *
 * Two messages, "hi" with the key "k" and null with none, by the producer "p"
 * with sequence 7, lane epoch 3, created at 1000, are 130 bytes:
 *
 *   51 42 01 00 00 00 1f 00 | 01 00 00 00 02 00 00 00 | 3a 00 00 00 03 00 00 00
 *   e8 03 00 00 00 00 00 00 | last timestamp: 00 x 8
 *   00 00 00 00 00 00 00 80 | 00 00 00 00 00 00 00 80 | 07 00 00 00 00 00 00 00
 *   70 00 00 00 00 00 00 00   the name
 *   01 00 00 00 00 00 00 00   values: the first is there
 *   00 00 00 00 02 00 00 00 02 00 00 00 00 00 00 00
 *   01 00 00 00 00 00 00 00   keys: the first is there
 *   00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00
 *   6b 00 00 00 00 00 00 00   key bytes
 *   68 69                     value bytes
 *
 * Once these have the timestamps 0x010203040505 and 0x010203040506, the flags at 6
 * are 1f 02, and at 32 lies 06 05 04 03 02 01 00 00.
 *
 * A payload may lie anywhere in memory: what is lent to the functions here needs no
 * alignment. It must not change during a call, nor between the planning of a body and
 * its writing.
 */
#define BK_BATCH_MESSAGES 0
#define BK_BATCH_LANE_STATE 1 /* what a lane's next writer needs to know */
#define BK_BATCH_TICK 2       /* of a topic's tick ledgers, in no lane; below */

#define BK_BATCH_PLAIN 0
#define BK_BATCH_ZSTD 1
#define BK_BATCH_LZ4 2

#define BK_BATCH_BATCHED 1 /* not set: one message, not a batch; its batch index is -1 */
#define BK_BATCH_VALUES 2
#define BK_BATCH_NULL_VALUES 4
#define BK_BATCH_KEYS 8
#define BK_BATCH_NULL_KEYS 16
#define BK_BATCH_EVENT_TIMES 32
#define BK_BATCH_NULL_EVENT_TIMES 64
#define BK_BATCH_TIMESTAMPS 128
#define BK_BATCH_HEADERS 256
#define BK_BATCH_CONSECUTIVE 512 /* timestamps; never with BK_BATCH_TIMESTAMPS */

#define BK_BATCH_HEAD_SIZE 64
#define BK_BATCH_SIZE_MAX 5242624   /* of a payload, not compressed: any frame takes it */
#define BK_BATCH_COUNT_MAX 1048576  /* messages of one batch */
#define BK_NO_PARTITION 0xffffffff  /* of a message without a key */

/* The header, and what follows from it. */
typedef struct {
  int32_t kind;
  int32_t compression;
  uint32_t flags;
  uint32_t producer_size;
  uint32_t count;
  uint32_t body_size;
  uint32_t epoch;
  uint32_t body_offset; /* in the payload */
  int64_t created_ms;
  uint64_t last_timestamp;
  int64_t event_time_min;
  int64_t event_time_max;
  int64_t sequence;
} bk_batch_header;

/* Where the columns of a body are: positions and sizes in bytes, 0 where a
 * column is not there. */
typedef struct {
  uint64_t value_validity, value_offsets;
  uint64_t key_validity, key_offsets;
  uint64_t event_time_validity, event_times;
  uint64_t timestamps;
  uint64_t header_offsets, header_count, name_offsets, header_value_offsets;
  uint64_t fixed_size; /* everything with a width lies before this */
  uint64_t keys, keys_size;
  uint64_t names, names_size;
  uint64_t header_values, header_values_size;
  uint64_t values, values_size;
  uint64_t size; /* of the body */
} bk_batch_layout;

/* Read a header. BK_CORRUPT: it is none that this version can read, or the size
 * of the payload is not what it says. */
int bk_batch_read_header(const uint8_t *payload, size_t size, bk_batch_header *header);
/* Write header and name to out: header->body_offset bytes, which must be
 * bk_batch_body_offset(header->producer_size). */
void bk_batch_write_header(uint8_t *out, const bk_batch_header *header, const uint8_t *producer);
uint32_t bk_batch_body_offset(uint32_t producer_size);
/* Give the messages of an encoded batch consecutive timestamps from first on; former
 * ones go, if they were consecutive. BK_CORRUPT: the payload has no sound header of
 * messages, a column of timestamps, or first is 0 or too great. */
int bk_batch_stamp(uint8_t *payload, size_t size, uint64_t first);
/* Write the timestamps of a batch with BK_BATCH_CONSECUTIVE, 8 bytes each, aligned. */
void bk_batch_timestamps(const bk_batch_header *header, uint64_t *out);

/* Check the body of messages, not compressed, of header->body_size bytes, and
 * find its columns. BK_OK: every offset lies where it may, header names are
 * UTF-8. BK_CORRUPT. */
int bk_batch_map(const bk_batch_header *header, const uint8_t *body, bk_batch_layout *layout);

/* Byte strings as a column: count + 1 offsets into size bytes at data, of which
 * the first need not be 0. offsets NULL: there is no such column. validity NULL:
 * none is null. */
typedef struct {
  const void *offsets;
  const uint8_t *data;
  uint64_t size;
  const uint8_t *validity;
} bk_binary;

/* Messages to be encoded. A pointer to a column that is not there is NULL. */
typedef struct {
  uint64_t count;
  bk_binary values;
  bk_binary keys;
  const void *event_times;
  const uint8_t *event_time_validity;
  const void *timestamps;
  const void *header_offsets;
  uint64_t header_count; /* strings in names and in header_values */
  bk_binary names;
  bk_binary header_values;
} bk_columns;

/* Which of them is said by rows, start and stop. Where rows is NULL it is those from
 * start to before stop; else rows is a list of uint32, and the two are places in it. */

/* See what a batch of these messages will be: fills flags (without
 * BK_BATCH_BATCHED), count, body_offset, body_size and the times of header, and the
 * layout. Sizes are checked here for the writing too. BK_CORRUPT: no message, an
 * offset or a row out of bounds, a header's name that is not UTF-8, or an event time
 * that is INT64_MIN. BK_SMALL: more than BK_BATCH_COUNT_MAX messages or, with a name
 * of header->producer_size bytes, more than BK_BATCH_SIZE_MAX bytes; layout->size
 * has the size. */
int bk_batch_plan(const bk_columns *columns, const void *rows, uint64_t start, uint64_t stop,
                  bk_batch_header *header, bk_batch_layout *layout);
/* Write the body that was planned, layout->size bytes. */
void bk_batch_write_body(const bk_columns *columns, const void *rows, uint64_t start,
                         uint64_t stop, const bk_batch_header *header,
                         const bk_batch_layout *layout, uint8_t *out);

/* Cut messages into batches of at most count_max messages and about size_max
 * bytes, never more, but for a message that is larger by itself. Writes up to
 * room places of the ends of batches, rising; the last is stop when all is
 * cut, else go on from there. BK_SMALL: the message at *too_large fits no
 * batch, *size is what it would take. BK_CORRUPT: as above. */
int bk_batch_cut(const bk_columns *columns, const void *rows, uint64_t start, uint64_t stop,
                 uint32_t producer_size, uint64_t size_max, uint64_t count_max, uint32_t *ends,
                 uint64_t room, uint64_t *ends_count, uint64_t *too_large, uint64_t *size);

/* The bytes that an LZ4 block decompresses to; UINT64_MAX for what is no block. Not
 * every decompressor tells when there are fewer of them than it was given room for. */
uint64_t bk_lz4_size(const uint8_t *block, size_t size);

/* Write count + 1 offsets of strings that have these lengths (count uint32, but
 * below 2^31). BK_SMALL: they end beyond 2^31 - 1. */
int bk_offsets(const void *lengths, uint64_t count, void *offsets);
/* Pack bytes that are 0 or not into bits, the lowest first; pad with 0. */
void bk_bits_pack(const uint8_t *bytes, uint64_t count, uint8_t *bits);
/* Copy count bits from bit offset on. */
void bk_bits_copy(const uint8_t *from, uint64_t offset, uint64_t count, uint8_t *bits);

/* MurmurHash3_x86_32: of no bytes with seed 0 it is 0, of "hello" 248bfa47. */
uint32_t bk_murmur3(const uint8_t *data, size_t size, uint32_t seed);
/* The partition of each of count keys, as Pulsar's clients find it: the hash with
 * seed 0, without its highest bit, modulo partitions (1 or more). A null key
 * gets BK_NO_PARTITION. BK_CORRUPT: an offset is out of bounds. */
int bk_route(const bk_binary *keys, uint64_t count, uint32_t partitions, uint32_t *partition_of);
/* Sort the rows 0 to count - 1 by partition, keeping their order: those of
 * partition p are rows[starts[p]] up to before rows[starts[p + 1]]. Rows of
 * BK_NO_PARTITION are left out. starts has partitions + 1 places. BK_CORRUPT:
 * another number that is no partition. */
int bk_group_rows(const uint32_t *partition_of, uint64_t count, uint32_t partitions,
                  uint64_t *starts, uint32_t *rows);

/* Ticks. A tick with the timestamp T says of each lane of a topic where it ends at T: all
 * messages with timestamps <= T are durable and lie before the version that covers the
 * lane, and a lane that is not covered has none of them. An entry of the kind BK_BATCH_TICK
 * keeps one tick. T is its last_timestamp; its body, which is not compressed, says the covers:
 *
 *   offset  size  field
 *   ------  ----  ---------------------------------------------------------
 *        0     4  flags  BK_TICK_WHOLE: all covers are here. Else only those
 *                        that differ from the previous tick of this ledger
 *        4     4  count  of covers
 *        8   16n  covers, rising by partition and lane, which are unique:
 *                 4  partition  signed; -1 is the only one of a topic without partitions
 *                 4  lane
 *                 8  version    below 2^63
 *
 * Each entry whose id is a multiple of BK_TICK_WHOLE_EVERY is whole, so a reader begins there.
 * Timestamps of a ledger's ticks rise, and versions of a lane never fall.
 *
 * The tick 0x010203040506 with all covers, lane 0 of partition -1 before version 7 and lane 2
 * of partition 1 before version 9, made at 1000, is 104 bytes:
 *
 *   51 42 01 02 00 00 00 00 | 00 00 00 00 00 00 00 00 | 28 00 00 00 00 00 00 00
 *   e8 03 00 00 00 00 00 00 | 06 05 04 03 02 01 00 00
 *   00 00 00 00 00 00 00 80 | 00 00 00 00 00 00 00 80 | ff ff ff ff ff ff ff ff
 *   01 00 00 00 02 00 00 00
 *   ff ff ff ff 00 00 00 00 07 00 00 00 00 00 00 00
 *   01 00 00 00 02 00 00 00 09 00 00 00 00 00 00 00
 */
#define BK_TICK_WHOLE 1
#define BK_TICK_WHOLE_EVERY 100
#define BK_TICK_HEAD_SIZE 8
#define BK_TICK_COVER_SIZE 16
#define BK_TICK_COVERS_MAX 327659 /* of one entry */

typedef struct {
  int32_t partition;
  uint32_t lane;
  uint64_t version;
} bk_cover;

/* Check the body of a tick, and find how many covers it has. BK_CORRUPT: the header is not that
 * of a tick, or its timestamp is 0; a flag is unknown; the body has another size than its count
 * says; covers do not rise; a partition or a version is out of bounds. */
int bk_tick_check(const bk_batch_header *header, const uint8_t *body, uint64_t size,
                  uint32_t *flags, uint32_t *count);
/* Take count covers out of a body that was checked. */
void bk_tick_read(const uint8_t *body, uint32_t count, bk_cover *covers);
/* Write the body of a tick, BK_TICK_HEAD_SIZE + count * BK_TICK_COVER_SIZE bytes. */
void bk_tick_write(const bk_cover *covers, uint32_t count, uint32_t flags, uint8_t *out);
