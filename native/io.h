/* Files. Every write and sync of the core goes through here, so that a test can
 * make any of them fail; arrays that grow can, too. A short write is completed or
 * reported, EINTR retried. */

/* Which call a fault hits. */
#define BK_FAULT_NONE 0
#define BK_FAULT_JOURNAL_WRITE 1
#define BK_FAULT_JOURNAL_SYNC 2
#define BK_FAULT_LOG_WRITE 3
#define BK_FAULT_LOG_SYNC 4
#define BK_FAULT_INDEX_WRITE 5
#define BK_FAULT_INDEX_SYNC 6
#define BK_FAULT_TABLE_WRITE 7
#define BK_FAULT_TABLE_SYNC 8
#define BK_FAULT_ENTRY_READ 9 /* of entries from a log, whatever they are read for */
#define BK_FAULT_LOG_ERASE 10 /* deleting a log: before its renaming, and at each of two syncs */
#define BK_FAULT_ARRAY 11 /* growing an array in memory; whatever the error, it is ENOMEM */
#define BK_FAULT_FOLDER_READ 12 /* of one name from a folder */
/* Of files that are read from front to back. No calls fail, but the nth block of any such file and
 * the count - 1 behind it cannot be read, until the plan is cleared. */
#define BK_FAULT_JOURNAL_READ 13
#define BK_FAULT_LOG_READ 14
#define BK_FAULT_TABLE_READ 15
#define BK_FAULT_INDEX_READ 16
#define BK_FAULT_INDEX_FLIP 17 /* of a block's header in an index: it reads with a wrong bit */

/* Faults are there only in a build with BK_FAULTS defined, as an editable one is; without it
 * planning one returns -ENOSYS, and bk_fault_at is always 0. */

/* For tests: the nth call (1 is the next) of that site from now on fails with
 * error_number (positive errno), and so do count - 1 after it. BK_FAULT_NONE
 * clears the plan. 0 or -ENOSYS. Safe to call from any thread. */
int bk_fault_plan(int32_t site, uint32_t nth, int32_t error_number, uint32_t count);
/* 0, or the negative errno that the plan has for this call of the site. */
int bk_fault_at(int32_t site);
/* The same for a read of size bytes at offset of a file, where the plan names a block. */
int bk_fault_in(int32_t site, uint64_t offset, size_t size);
/* For tests: heard(fd) is called behind each sync of a file or folder that succeeded, before
 * anything is done by it. NULL ends that. 0 or -ENOSYS. Not while an engine or a store is in
 * use. */
int bk_io_on_sync(void (*heard)(int fd));
