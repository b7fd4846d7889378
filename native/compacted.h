/* The compacted entry: messages that compaction kept, and where each was written.
 *
 * Survivors of many entries of one lane, in the order of the lane, are one entry of an
 * ordinary ledger: a header that can be read alone, a table that says of which entry each
 * message was (its origin), and a batch (batch.h) with what the messages hold. The entry's
 * digest protects all of it. All integers are little-endian.
 *
 *   offset  size  field
 *   ------  ----  ---------------------------------------------------------
 *        0     2  magic           "QC"
 *        2     1  version         1
 *        3     1  compression     BK_BATCH_PLAIN and so on, of the table
 *        4     4  count           messages, 1 to BK_BATCH_COUNT_MAX
 *        8     4  origins         1 to count
 *       12     4  names           of producers, 1 to origins
 *       16     4  table_size      bytes of the table, not compressed
 *       20     4  stored_size     bytes of the table, as it follows
 *       24     8  first_number    of the first origin: its ledger in the lane
 *       32     8  first_entry     of the first origin
 *       40     8  last_number     of the last origin
 *       48     8  last_entry      of the last origin
 *       56     4  first_index     in its batch, of the first message
 *       60     4  last_index      in its batch, of the last message
 *       64     s  the table, then zeros up to a multiple of 8
 *     64+s'    n  the batch, to the end of the payload
 *
 * The batch is one of messages: batched, of count messages, without a producer or sequence
 * numbers, for those are the origins'. created_ms is the greatest of the origins'. It may be
 * compressed by itself. Without compression the payload has BK_COMPACTED_SIZE_MAX bytes at
 * most, which is enough for any message that fits a batch.
 *
 * The table is a run of columns without gaps, n origins, m messages, p names:
 *
 *   column         bytes   of each origin
 *   -------------  ------  --------------------------------------------------
 *   ledger ids     8n      where it was written; the same for the same number
 *   numbers        8n      of the ledger in the lane
 *   entry ids      8n
 *   versions       8n      -1: not known
 *   created        8n      Unix milliseconds of the producer
 *   sequences      8n      of the first message that the entry had; -1: not counted
 *   orders         8n      which message of a key is later, between lanes
 *   starts         4(n+1)  its first message; the last start is m
 *   producers      4n      which name
 *   batch indexes  4m      of each message in the entry it was in; -1: it was no batch
 *   name offsets   4(p+1)  as in batch.h
 *   names                  in UTF-8, to the end of the table
 *
 * Origins rise strictly by (number, entry id), so ledger ids never fall; starts rise
 * strictly; so do the batch indexes of one origin, and -1 is alone in its own. An entry whose
 * messages were divided goes on in the next compacted entry, with higher batch indexes.
 *
 * "hi" with the key "k", once message 2 of entry 5 of ledger 9, which is the lane's ledger 1
 * with base version 100, made at 1000 by "p" with sequence number 7 and on; order 1000:
 *
 *   51 43 01 00 01 00 00 00 | 01 00 00 00 01 00 00 00 | 51 00 00 00 51 00 00 00
 *   first: 01 x1 00 x7 | 05 x1 00 x7 | last: 01 x1 00 x7 | 05 x1 00 x7
 *   02 00 00 00 02 00 00 00
 *   09 x1 00 x7 | 01 x1 00 x7 | 05 x1 00 x7 | 69 x1 00 x7   ledger, number, entry, version 105
 *   e8 03 00 x6 | 05 x1 00 x7 | e8 03 00 x6                 created, sequence 5, order
 *   00 00 00 00 01 00 00 00 | 00 00 00 00 | 02 00 00 00     starts, producer, batch index
 *   00 00 00 00 01 00 00 00 | 70 | 00 x7                    the name, and zeros
 *   and a batch of 90 bytes with "hi" and "k", made at 1000
 */
#define BK_COMPACTED_HEAD_SIZE 64
#define BK_COMPACTED_SIZE_MAX 5242768 /* of a payload, not compressed: any frame takes it */

/* The header, and where the batch is. */
typedef struct {
  int32_t compression;
  uint32_t count;
  uint32_t origins;
  uint32_t names;
  uint32_t table_size;
  uint32_t stored_size;
  int64_t first_number, first_entry;
  int64_t last_number, last_entry;
  int32_t first_index, last_index;
  uint64_t batch_offset; /* in the payload */
} bk_compacted_header;

/* Where the columns of a table begin. */
typedef struct {
  uint64_t ledger_ids, numbers, entry_ids, versions, created, sequences, orders;
  uint64_t starts, producers, batch_indexes, name_offsets;
  uint64_t name_bytes;
} bk_compacted_layout;

/* Read the header of an entry, and that of its batch. BK_CORRUPT: it is none that this version
 * can read, or the parts do not agree. The batch's body and the table are not looked at. */
int bk_compacted_read_header(const uint8_t *payload, size_t size, bk_compacted_header *header,
                             bk_batch_header *batch);
/* Write the header: BK_COMPACTED_HEAD_SIZE bytes. */
void bk_compacted_write_header(uint8_t *out, const bk_compacted_header *header);

/* Place the columns of a table of header->count, origins and names; returns the bytes of
 * a table without the bytes of names. */
uint64_t bk_compacted_place(const bk_compacted_header *header, bk_compacted_layout *layout);
/* Check a table, not compressed, of header->table_size bytes, and find its columns. BK_CORRUPT:
 * a rule above is broken, or the places in the header are others. */
int bk_compacted_map(const bk_compacted_header *header, const uint8_t *table,
                     bk_compacted_layout *layout);
/* Take the places of the header from a table that is laid out, without a check of it. */
void bk_compacted_note(bk_compacted_header *header, const uint8_t *table);

/* Give each message what its origin has: out gets words[i], of width 4 or 8 bytes, for each
 * message from starts[i] to before starts[i + 1]; words NULL: i itself, 4 bytes wide. starts
 * must be those of a table that was found sound, of so many origins. */
void bk_compacted_spread(const void *words, uint32_t width, const void *starts, uint32_t origins,
                         void *out);
