/* The record: the unit of the journal, of entry logs and of the ledger table.
 *
 *   offset  size  field
 *        0     4  body_size  16 to BK_RECORD_SIZE_MAX; 0 means padding: the
 *                 rest of this 4096-byte block of the file is empty
 *        4     4  check      crc32c(body_size as stored, body) XOR salt
 *        8     n  body       a stored entry (digest.h), or a special record:
 *                            ledger id 8, a negative number 8 (both big-endian
 *                            like an entry's ids), then what the number says
 *
 * The salt is 0 in entry logs and the ledger table. In a journal it is
 * bk_salt(file id): a journal file is overwritten in place after its time, and
 * a record of its former life must never pass for one of the new.
 *
 * Entry 0 of ledger 1 of digest.h, as a record with salt 0, is 49 bytes:
 *   29 00 00 00 | check 4 | 00..01 00..00 ff..ff 00..05 e3a5f74d 68656c6c6f
 *
 * Special records, by the number in place of the entry id. The first three and
 * their numbers are BookKeeper's.
 */
#define BK_RECORD_KEY -0x1000          /* master key 20: the ledger came to be, or
                                          came back: a DELETED before it is over */
#define BK_RECORD_FENCE -0x2000        /* empty: the ledger is fenced */
#define BK_RECORD_EXPLICIT_LAC -0x8000 /* lac 8, big-endian */
#define BK_RECORD_GROUP -0x10000       /* journal.h; ledger id is -1 */
#define BK_RECORD_DELETED -0x20000     /* unix ms 8, big-endian: gone, remembered */
#define BK_RECORD_MAP -0x40000         /* store.h; ledger id is -1 */
#define BK_RECORD_INCARNATION -0x80000 /* incarnation 8, first log 4, both big-endian: a
                                          ledger begins, and what the records before this
                                          one say of its id is of another (table.h) */

#define BK_RECORD_HEADER_SIZE 8

uint32_t bk_salt(uint64_t file_id);
/* The check field of a record. */
uint32_t bk_record_check(uint32_t salt, const uint8_t *body, uint32_t body_size);
/* Write header and body to out; returns the bytes written (8 + body_size). */
uint32_t bk_record_write(uint8_t *out, uint32_t salt, const uint8_t *body, uint32_t body_size);
/* Look at the record at data, of which size bytes are there. BK_OK: *record_size
 * is 8 + body_size. BK_END: padding, or fewer than 4 bytes. BK_CORRUPT: anything
 * else, a record cut short too. */
int bk_record_read(const uint8_t *data, size_t size, uint32_t salt, uint32_t *record_size);

/* What a scan of any of the files yields. */
typedef struct {
  uint64_t offset;     /* of the record header in the file */
  int64_t ledger_id;
  int64_t entry_id;    /* negative for special records */
  uint32_t body_size;
  const uint8_t *body; /* valid until the next call on the scan */
} bk_record;
