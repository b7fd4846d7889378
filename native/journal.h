/* The journal: every add, fence, key, explicit LAC and deletion, in the order in
 * which the engine took them, synced before it is acknowledged.
 *
 * Files are named <16 hex digits of the file id>.journal; ids rise by one. The
 * first block (4096 bytes) of a file is its header, the rest are groups.
 *
 *   offset  size  field
 *        0     8  magic "QUIREJNL"
 *        8     4  version, 1
 *       12     4  reserved, 0
 *       16     8  file id
 *       24     8  previous id, 0 when this is the first file
 *       32     8  previous end: where the last group of that file ends, or a block of it
 *                 that could not be read
 *       40     4  crc32c of the 40 bytes above
 *       44        zeros to 4096
 *
 * A group is what gathered while the previous sync ran: one write, one sync. It
 * starts on a block boundary with a group record (record.h), then come records,
 * then zeros up to the next boundary. Body of the group record, 48 bytes:
 * ledger id -1 8, BK_RECORD_GROUP 8 (big-endian, as in all records), then
 * little-endian file id 8, offset 8 of this group in the file, number 8 (0, 1,
 * 2 ... in the file), size 8 of the group without the zeros after it.
 *
 * The torn tail. The blocks of the last group reach the disk in any order, so a
 * crash can leave a hole anywhere in it. None of its entries was
 * acknowledged. So in the newest file the log ends, without error, at the first
 * record that does not fit or fails its check - unless a sound group of the
 * same file with a higher number follows: a group is written only after the one
 * before it was synced, so then this is damage (BK_CORRUPT), not a torn tail.
 * It is damage, too, if the first block of a group, or any of the one under way, cannot be read:
 * what it held may have been acknowledged. A scan fills such blocks with 0xff.
 * An older file is whole up to the previous end that its successor names, and
 * what is wrong before it is damage. A scan reports damage with its offset and
 * goes on at the next sound group.
 *
 * A start syncs the newest file, drops it from the page cache, and only then reads it. The
 * last group may have been written and not synced, or its sync may have failed: then the page
 * cache shows what never reached the disk, and the kernel reports that once only. Older files
 * were synced before their successor was begun.
 *
 * Files are preallocated and zero-filled, since a sync then moves no metadata.
 * A file whose entries are all in entry logs is renamed <id>.spare and written
 * again later; the salt (record.h) and the group record keep its old contents
 * from being taken for new ones.
 *
 * Threads: bk_journal_write and _prepare from one thread (the writer);
 * bk_journal_trim from any one other. A failed write or sync poisons the
 * journal: every later call returns the same error, because the kernel may
 * have dropped the pages that it could not write.
 */
typedef struct bk_journal bk_journal;

/* A group ends before it would outgrow this, so that a scan knows how far to look
 * for the next one. */
#define BK_GROUP_SIZE_MAX 16777216
#define BK_GROUP_HEADER_SIZE 56 /* the group record with its record header */

/* [blocks] Open a journal for writing in folder: a new file after last_id,
 * whose header names last_id and last_end as its predecessor (0, 0 for none).
 * Its id is last_id + 1. size_max: roll after this many bytes. spares_max: keep
 * this many files for reuse. -EEXIST: there is a file of that id, which is left as it is. */
int bk_journal_open(const char *folder, uint64_t last_id, uint64_t last_end, uint64_t size_max,
                    uint32_t spares_max, bk_journal **out);
/* [blocks] Write one group (block-aligned address, offset and size; its group
 * record filled in) at offset of file_id and sync it. file_id is the current file's or
 * one more: then that file is begun first, and names offset's predecessor as its
 * previous end. */
int bk_journal_write(bk_journal *journal, uint64_t file_id, uint64_t offset, const uint8_t *group,
                     uint64_t size);
/* [blocks] For idle moments: zero-fill a piece of the file ahead of the writer. BK_OK:
 * there is more to do; BK_END: enough is prepared. */
int bk_journal_prepare(bk_journal *journal);
/* [blocks] Files with a smaller id than file_id: delete, or keep as spares, all but
 * the newest backups of them. */
int bk_journal_trim(bk_journal *journal, uint64_t file_id, uint32_t backups);
/* How often the disk took something: a piece of a group, a sync, a piece of zeros. While this
 * stands still and a call is under way, the disk does. From any thread. */
uint64_t bk_journal_steps(const bk_journal *journal);
/* Bytes in all journal files of the folder, as allocated by this handle. */
uint64_t bk_journal_bytes(const bk_journal *journal);
/* [blocks] */
void bk_journal_close(bk_journal *journal);

/* Scan one journal file. */
typedef struct bk_journal_scan bk_journal_scan;
/* [blocks] Open path, read its header. start: begin at the group at this offset
 * (0 or BK_BLOCK_SIZE for the first). end: the previous end named by the next
 * file, or 0 for the newest file. BK_END: the header is not whole (a file that
 * was being created, and holds nothing else); BK_CORRUPT: the header is damaged; -EIO: the disk
 * cannot read it. */
int bk_journal_scan_open(const char *path, uint64_t start, uint64_t end, bk_journal_scan **out);
/* [blocks] The same without a look at the header, which the disk cannot read: all groups say what
 * file they are of. */
int bk_journal_scan_open_past(const char *path, uint64_t start, uint64_t end,
                              bk_journal_scan **out);
/* From the header. */
void bk_journal_scan_header(const bk_journal_scan *scan, uint64_t *file_id, uint64_t *previous_id,
                            uint64_t *previous_end);
/* [blocks] The next record, group records included. BK_OK, BK_END (end offset in
 * record->offset), or BK_CORRUPT (damage at record->offset; call again to go on
 * at the next sound group). */
int bk_journal_scan_next(bk_journal_scan *scan, bk_record *record);
void bk_journal_scan_close(bk_journal_scan *scan);
