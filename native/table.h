/* The table of ledgers on disk: what a bookie knows of a ledger beside its
 * entries. Files <16 hex digits>.table in the ledger folder, records (record.h,
 * salt 0) one after the other: INCARNATION, KEY, FENCE, EXPLICIT_LAC, DELETED. Each flush
 * appends the records of the ledgers that changed and syncs them before the mark moves; a
 * later record of the same kind replaces an earlier one. When the file is more
 * than twice the size of what it says, it is written anew under the next id
 * (sync, then the mark names it, then the old one is deleted). So it is if a part of it is damaged
 * or cannot be read; then the old one stays as <name>.unread, and nobody reads it again.
 *
 * A deleted ledger is remembered for BK_TOMBSTONE_MS, so that a late writer
 * finds it fenced, and cannot create it again. Recovery brings it
 * back, fenced (engine.h, rule 6): a KEY after a DELETED ends it. So the records
 * of a tombstone end with DELETED, and those of a ledger that is here have a KEY.
 *
 * An id may be used again: the ledger is deleted and another one made with its id, or the
 * metadata are restored from a backup. So a ledger's record in the metadata has an
 * incarnation, a random number of 63 bits; 0 where it is not known. An INCARNATION record
 * begins a ledger: all records of the id before it are void, and its entries with it.
 * Entry logs do not record to which of the two an entry belongs, so the record also has the
 * first log of the ledger: what lies in logs of a smaller origin (store.h) is of an earlier
 * one. It is 0 when no log had entries of the id. A replay that may have flushed entries of the
 * earlier ledger itself finds it anew.
 *
 * Ledger 7 of incarnation 0x0123456789abcdef that begins in log 9, with salt 0, 36 bytes:
 *   1c 00 00 00 | check 4 | 00..07 | ff ff ff ff ff f8 00 00 | 01 23 45 67 89 ab cd ef |
 *   00 00 00 09
 */
#define BK_TOMBSTONE_MS 604800000 /* 7 days */

typedef struct bk_table_scan bk_table_scan;
/* [blocks] end: scan to here; 0 for all of the file. */
int bk_table_scan_open(const char *path, uint64_t end, bk_table_scan **out);
/* [blocks] BK_OK, BK_END, BK_CORRUPT (damage; the scan is over). */
int bk_table_scan_next(bk_table_scan *scan, bk_record *record);
void bk_table_scan_close(bk_table_scan *scan);

#define BK_INCARNATION_RECORD_SIZE 36
/* Write an INCARNATION record to out; returns its 36 bytes. */
uint32_t bk_incarnation_write(uint8_t *out, uint32_t salt, int64_t ledger_id, int64_t incarnation,
                              uint32_t first_log);
