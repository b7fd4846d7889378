/* The table of ledgers on disk: what a bookie knows of a ledger beside its
 * entries. Files <16 hex digits>.table in the ledger folder, records (record.h,
 * salt 0) one after the other: KEY, FENCE, EXPLICIT_LAC, DELETED. Each flush appends the
 * records of the ledgers that changed and syncs them before the mark moves; a
 * later record of the same kind replaces an earlier one. When the file is more
 * than twice the size of what it says, it is written anew under the next id
 * (sync, then the mark names it, then the old one is deleted).
 *
 * A deleted ledger is remembered for BK_TOMBSTONE_MS, so that a late writer is
 * told that the ledger is fenced, and cannot create it again. Recovery brings it
 * back, fenced (engine.h, rule 6): a KEY after a DELETED ends it. So the records
 * of a tombstone end with DELETED, and those of a ledger that is here begin with KEY.
 */
#define BK_TOMBSTONE_MS 604800000 /* 7 days */

typedef struct bk_table_scan bk_table_scan;
/* [blocks] end: scan to here; 0 for all of the file. */
int bk_table_scan_open(const char *path, uint64_t end, bk_table_scan **out);
/* [blocks] BK_OK, BK_END, BK_CORRUPT (damage; the scan is over). */
int bk_table_scan_next(bk_table_scan *scan, bk_record *record);
void bk_table_scan_close(bk_table_scan *scan);
