/* Checksums of messages, to see that what was copied is what was there.
 *
 * Each message has a hash of 64 bits, over its key, value, event time and headers: what
 * a copy keeps. Its id, timestamps and producer are not in it. A checksum is
 *
 *   count   how many messages
 *   total   the sum of their hashes, modulo 2^64: the same in whatever order
 *   chain   0, then for each message chain * BK_CHECKSUM_FACTOR + hash: only the same
 *           in the same order. That of two runs in a row is
 *           chain_1 * BK_CHECKSUM_FACTOR ^ count_2 + chain_2
 *
 * It finds accidents, not attacks. A hash begins with BK_CHECKSUM_SEED and takes in
 * words of 64 bits, each by h = (h ^ word) * BK_CHECKSUM_STEP, h = h ^ h >> 29:
 *
 *   the key, the value   0 for null; else its size + 1, then its bytes, 8 a word,
 *                        the lowest first, the last word filled up with zeros
 *   the event time       0 for null; else 1, then the time
 *   the headers          their number, then each one's name and value, as a key
 *
 * and ends with a 0. So the message "hi" with the key "k" and the event time 7, without
 * headers, takes in 2, 'k', 3, 'hi', 1, 7, 0, 0, and its hash is f67e416491b7b086. */
#define BK_CHECKSUM_SEED 0x2545f4914f6cdd1d
#define BK_CHECKSUM_STEP 0x9fb21c651e98df25
#define BK_CHECKSUM_FACTOR 0xd1342543de82ef95

typedef struct {
  uint64_t count, total, chain;
} bk_checksum;

/* Add the messages that rows, start and stop name (batch.h) to *checksum, which is zeros
 * at first. BK_CORRUPT: an offset or a row is out of bounds; *checksum is as it was. */
int bk_checksum_messages(const bk_columns *columns, const void *rows, uint64_t start,
                         uint64_t stop, bk_checksum *checksum);
