/* What the compiler needs around the public headers: includes, guards, and the
 * few declarations that the C files share and nobody else sees. */
#ifndef BK_INTERNAL_H
#define BK_INTERNAL_H

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api.h"
#include "digest.h"
#include "record.h"
#include "io.h"
#include "frame.h"
#include "journal.h"
#include "table.h"
#include "store.h"
#include "engine.h"
#include "link.h"
#include "batch.h"
#include "compacted.h"
#include "latest.h"
#include "gather.h"
#include "checksum.h"

/* Files are for the bookie's user alone: they hold what producers wrote. */
#define BK_FILE_MODE 0600

/* Integers in a given order, at any alignment. */
static inline uint32_t bk_get32le(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v; /* all supported processors are little-endian; asserted in io.c */
}
static inline uint64_t bk_get64le(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void bk_put32le(uint8_t *p, uint32_t v) { memcpy(p, &v, sizeof v); }
static inline void bk_put64le(uint8_t *p, uint64_t v) { memcpy(p, &v, sizeof v); }
static inline uint32_t bk_get32be(const uint8_t *p) { return __builtin_bswap32(bk_get32le(p)); }
static inline uint64_t bk_get64be(const uint8_t *p) { return __builtin_bswap64(bk_get64le(p)); }
static inline void bk_put32be(uint8_t *p, uint32_t v) { bk_put32le(p, __builtin_bswap32(v)); }
static inline void bk_put64be(uint8_t *p, uint64_t v) { bk_put64le(p, __builtin_bswap64(v)); }

static inline uint64_t bk_align_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* Whether these can be an entry's ids. There must be an id after every entry, so the greatest
 * number is none. */
static inline int bk_ids_are_sound(int64_t ledger_id, int64_t entry_id)
{
    return ledger_id >= 0 && entry_id >= 0 && entry_id < INT64_MAX;
}

/* io.c. site: which fault may hit (io.h). All return 0 or a negative errno. */
int bk_io_write(int fd, const void *data, size_t size, uint64_t offset, int32_t site);
int bk_io_sync(int fd, int32_t site);
/* [blocks] Make what can be read of a file what the disk holds: sync it, then drop its clean
 * pages from the page cache. The process before may have died between a write and its sync,
 * or of a sync that failed. After a failed one the kernel counts the pages as clean, so that
 * reads show what never reached the disk, and later syncs succeed. Call this before the first
 * read of a file that the last durable mark does not vouch for. */
int bk_io_settle(const char *path, int32_t site);
int bk_io_sync_folder(const char *folder);
/* [blocks] Make an empty file in folder, durably, if it is not there. */
int bk_io_make_file(const char *folder, const char *path);
/* [blocks] The next name of an open folder; *entry is NULL at its end. readdir alone returns NULL
 * for a failed read, too: names that it did not reach would count as files that are not there. */
int bk_io_read_folder(DIR *folder, struct dirent **entry);
/* Read size bytes at offset; *got is less only at the end of the file. */
int bk_io_read(int fd, void *out, size_t size, uint64_t offset, size_t *got);
/* The same for a file that is read as a whole, with the blocks of site that tests plan. What a
 * disk cannot read is -EIO, also where direct reads say -ENODATA, or -EILSEQ if the disk checks
 * sums of its own (T10, dm-integrity). */
int bk_io_scan(int fd, void *out, size_t size, uint64_t offset, int32_t site, size_t *got);
/* Blocks of one file that the disk cannot read. */
#define BK_LOST_MAX 256
typedef struct {
    uint64_t offsets[BK_LOST_MAX];
    uint32_t count;
} bk_lost;
/* [blocks] The same past blocks that cannot be read, for a scan: these are filled with 0xff, which
 * is no record and no padding, and noted. -EIO when there are more than BK_LOST_MAX of them: the
 * whole disk fails then, and what is on it may be read another time. */
int bk_io_salvage(int fd, void *out, size_t size, uint64_t offset, int32_t site, bk_lost *lost,
                  size_t *got);
/* Whether a block that cannot be read has bytes from start to end. */
int bk_lost_between(const bk_lost *lost, uint64_t start, uint64_t end);
/* Open for direct writes (O_DIRECT) where the file system can, else buffered. */
int bk_io_open_direct(const char *path, int flags, int *fd);
/* Block-aligned memory, NULL when there is none. Release with free. */
void *bk_io_alloc(size_t size);
uint64_t bk_io_now_ns(void);

/* array.c. Change an array's room to so many items. The items, moved perhaps; NULL without memory,
 * and then they stay where they are. */
void *bk_array_resize(void *items, size_t room, size_t item_size);
/* Make room for needed items, and at least twice as many as before where there is not enough. As
 * bk_array_resize; *room changes only on success. */
void *bk_array_grow(void *items, size_t *room, size_t needed, size_t item_size);
/* The same where the room is counted in 32 bits; NULL also beyond 2^31 items. */
void *bk_array_grow32(void *items, uint32_t *room, size_t needed, size_t item_size);

/* opening.c. [blocks] Let the bookie start in limbo, durably, whatever becomes of this start. */
int bk_store_enter_limbo(const bk_store *store);
/* journal.c: the ids of files named <16 hex digits>.<ending>, in rising order; the
 * caller frees *ids. */
int bk_journal_list(const char *folder, const char *ending, uint64_t **ids, size_t *count);

/* ranges.c: ranges of entry ids, first and last both in them. */
typedef struct {
    bk_entry_run *items;
    size_t count, room;
} bk_ranges;
int bk_ranges_add(bk_ranges *ranges, int64_t first, int64_t last); /* 0 or -ENOMEM */
/* Drop what is above last, and order the rest by where it begins. */
void bk_ranges_cut(bk_ranges *ranges, int64_t last);
/* Append a run that begins no earlier than the last one, or join it to that one. BK_FULL: it
 * would be one more than room. */
int bk_run_join(bk_entry_run *runs, uint32_t room, uint32_t *count, bk_entry_run next);
void bk_ranges_free(bk_ranges *ranges);

/* runs.c. [blocks] Add the ranges of the ledger's entries from next on that are in entry logs,
 * overlapping and in any order. *bound is lowered to the entry up to which they are all there, and
 * is next at least. BK_OK, BK_NO_LEDGER, BK_CORRUPT: a page of the index is damaged. */
int bk_store_ranges(bk_store *store, int64_t ledger_id, int64_t next, int64_t *bound,
                    bk_ranges *found);

/* store.c: keep a damage for bk_store_take_damage. */
void bk_store_note(bk_store *store, const char *path, uint64_t offset, int64_t ledger_id,
                   int64_t entry_id);

#endif
