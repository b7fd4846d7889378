/* The cache of index pages, which knows of logs and rows but not of the store. */
#ifndef BK_PAGES_INTERNAL_H
#define BK_PAGES_INTERNAL_H

#include "log_internal.h"

#define BK_EXTENT_SIZE 48
#define BK_DENSE_SLOTS 1022
#define BK_SPARSE_ROWS 340
#define BK_PAGE_TAIL 8 /* end, crc32c */
#define BK_NO_OFFSET 0xffffffffu
#define BK_KIND_DENSE 0
#define BK_KIND_SPARSE 1

typedef struct bk_page bk_page;
typedef struct {
    pthread_mutex_t lock;
    bk_page **buckets;
    uint32_t mask;
    uint64_t size, size_max;
    uint64_t reads, hits;
    bk_page *newest, *oldest;
} bk_page_cache;

/* Records that lie together. */
typedef struct {
    uint64_t offset; /* in the log */
    uint32_t size;   /* of all */
    uint32_t count;
} bk_span;

int bk_page_cache_init(bk_page_cache *cache, uint64_t size_max);
void bk_page_cache_free(bk_page_cache *cache);
/* [blocks] The records of entry_id and those after it without a gap: at most
 * count_max and size_max bytes, but at least the first. BK_OK; BK_ABSENT: the extent has
 * a hole there; BK_CORRUPT: the page is damaged, at *offset of the index. */
int bk_page_span(bk_page_cache *cache, bk_file_pool *pool, const bk_row *row, int64_t entry_id,
                 uint32_t count_max, uint32_t size_max, bk_span *span, uint64_t *offset);
/* [blocks] Add the ranges of entries from entry_id on that stand in the same page as it would.
 * *limit: the last entry that the page could hold. BK_OK; BK_CORRUPT: as above. */
int bk_page_ranges(bk_page_cache *cache, bk_file_pool *pool, const bk_row *row, int64_t entry_id,
                   bk_ranges *found, int64_t *limit, uint64_t *offset);

#endif
