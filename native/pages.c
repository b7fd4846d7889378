/* Index pages: where an entry's record lies, through a cache of bounded size.
 *
 * One lock guards the cache; a page is read from disk without it, so two readers
 * may read the same page, and the second copy is dropped. */
#include "pages_internal.h"

#include <errno.h>
#include <stdlib.h>

#define BYTES_PER_BUCKET 256
#define BUCKETS_MIN 64
#define NODE_COST 16 /* what malloc adds to a page, about */

struct bk_page {
    bk_page *next; /* in the bucket */
    bk_page *newer, *older;
    uint32_t log_id;
    uint32_t offset; /* in the index file */
    uint32_t size;
    uint8_t bytes[];
};

/* Which page has the entry, and where it stands in it. */
typedef struct {
    uint32_t offset;
    uint32_t size;
    uint32_t slots;
    uint64_t number; /* dense: in the extent */
} page_place;

/* --- the cache --------------------------------------------------------------------- */

int bk_page_cache_init(bk_page_cache *cache, uint64_t size_max)
{
    uint32_t buckets = BUCKETS_MIN;
    while (buckets < size_max / BYTES_PER_BUCKET && buckets < 1u << 24)
        buckets *= 2;
    memset(cache, 0, sizeof *cache);
    pthread_mutex_init(&cache->lock, NULL);
    cache->mask = buckets - 1;
    cache->size_max = size_max;
    cache->buckets = calloc(buckets, sizeof(bk_page *));
    return cache->buckets != NULL ? BK_OK : -ENOMEM;
}

static bk_page **bucket_of(const bk_page_cache *cache, uint32_t log_id, uint32_t offset)
{
    uint64_t hash = ((uint64_t)log_id << 32 | offset) * 0x9e3779b97f4a7c15u;
    return &cache->buckets[(hash >> 32) & cache->mask];
}

static void unlink_page(bk_page_cache *cache, bk_page *page)
{
    *(page->newer != NULL ? &page->newer->older : &cache->newest) = page->older;
    *(page->older != NULL ? &page->older->newer : &cache->oldest) = page->newer;
}

static void link_page(bk_page_cache *cache, bk_page *page)
{
    page->newer = NULL;
    page->older = cache->newest;
    *(cache->newest != NULL ? &cache->newest->newer : &cache->oldest) = page;
    cache->newest = page;
}

static uint64_t page_cost(const bk_page *page)
{
    return sizeof *page + page->size + NODE_COST;
}

static void evict_page(bk_page_cache *cache)
{
    bk_page *page = cache->oldest;
    bk_page **at = bucket_of(cache, page->log_id, page->offset);
    while (*at != page)
        at = &(*at)->next;
    *at = page->next;
    unlink_page(cache, page);
    cache->size -= page_cost(page);
    free(page);
}

static bk_page *find_page(bk_page_cache *cache, uint32_t log_id, uint32_t offset)
{
    bk_page *page = *bucket_of(cache, log_id, offset);
    while (page != NULL && (page->log_id != log_id || page->offset != offset))
        page = page->next;
    if (page != NULL && page != cache->newest) {
        unlink_page(cache, page);
        link_page(cache, page);
    }
    return page;
}

/* Takes the page over. */
static void keep_page(bk_page_cache *cache, bk_page *page)
{
    pthread_mutex_lock(&cache->lock);
    if (page_cost(page) > cache->size_max ||
        find_page(cache, page->log_id, page->offset) != NULL) {
        pthread_mutex_unlock(&cache->lock);
        free(page);
        return;
    }
    while (cache->size + page_cost(page) > cache->size_max)
        evict_page(cache);
    bk_page **bucket = bucket_of(cache, page->log_id, page->offset);
    page->next = *bucket;
    *bucket = page;
    link_page(cache, page);
    cache->size += page_cost(page);
    pthread_mutex_unlock(&cache->lock);
}

void bk_page_cache_free(bk_page_cache *cache)
{
    while (cache->oldest != NULL)
        evict_page(cache);
    free(cache->buckets);
    cache->buckets = NULL;
    pthread_mutex_destroy(&cache->lock);
}

/* --- pages from disk --------------------------------------------------------------- */

static int read_page(bk_page_cache *cache, bk_file_pool *pool, bk_log *log,
                     const page_place *place, bk_page **out)
{
    int fd;
    size_t got = 0;
    int result = bk_log_acquire(pool, log, BK_FILE_INDEX, &fd);
    if (result != BK_OK)
        return result;
    bk_page *page = malloc(sizeof *page + place->size);
    result = page == NULL ? -ENOMEM : bk_io_read(fd, page->bytes, place->size, place->offset, &got);
    bk_log_release(pool, log, BK_FILE_INDEX);
    bk_count(&cache->reads, 1);
    if (result == BK_OK &&
        (got < place->size || bk_crc32c(0, page->bytes, place->size - 4) !=
                                  bk_get32le(page->bytes + place->size - 4)))
        result = BK_CORRUPT;
    if (result != BK_OK) {
        free(page);
        return result;
    }
    page->log_id = log->id;
    page->offset = place->offset;
    page->size = place->size;
    *out = page;
    return BK_OK;
}

/* --- spans ------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *bytes;
    uint32_t slots;
    uint32_t stride; /* 4 dense, 12 sparse */
    int64_t first;   /* dense: entry of slot 0 */
} page_view;

static uint32_t view_offset(const page_view *view, uint32_t slot)
{
    return bk_get32le(view->bytes + (size_t)(slot + 1) * view->stride - 4);
}

static int64_t view_entry(const page_view *view, uint32_t slot)
{
    return view->stride == 4 ? view->first + slot
                             : (int64_t)bk_get64le(view->bytes + (size_t)slot * 12);
}

/* Where the record before slot ends: where the next one begins. */
static uint32_t end_view(const page_view *view, uint32_t slot)
{
    while (slot < view->slots && view_offset(view, slot) == BK_NO_OFFSET)
        slot++;
    return slot < view->slots ? view_offset(view, slot)
                              : bk_get32le(view->bytes + (size_t)view->slots * view->stride);
}

static int view_span(const page_view *view, const bk_row *row, uint32_t slot, uint32_t count_max,
                     uint32_t size_max, bk_span *span)
{
    uint32_t start = view_offset(view, slot);
    if (start == BK_NO_OFFSET)
        return BK_ABSENT;
    int64_t entry_id = view_entry(view, slot);
    uint32_t end = end_view(view, ++slot);
    uint32_t count = 1;
    for (; count < count_max && slot < view->slots && view_offset(view, slot) != BK_NO_OFFSET &&
           view_entry(view, slot) == entry_id + count;
         count++) {
        uint32_t longer = end_view(view, ++slot);
        if (longer < end || longer - start > size_max)
            break;
        end = longer;
    }
    if (end <= start || end - start <= BK_RECORD_HEADER_SIZE || end > row->log_size)
        return BK_CORRUPT;
    *span = (bk_span){.offset = (uint64_t)row->log_offset + start, .size = end - start,
                      .count = count};
    return BK_OK;
}

static uint32_t sparse_slot(const uint8_t *bytes, uint32_t rows, int64_t entry_id)
{
    uint32_t low = 0, high = rows;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((int64_t)bk_get64le(bytes + (size_t)middle * 12) < entry_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static page_view view_of(const bk_page *page, const bk_row *row, const page_place *place)
{
    page_view view = {.bytes = page->bytes, .slots = place->slots, .stride = 12};
    if ((row->entries_kind & 1) == BK_KIND_DENSE) {
        view.stride = 4;
        view.first = row->first + (int64_t)place->number * BK_DENSE_SLOTS;
    }
    return view;
}

/* The first slot of an entry that is not smaller than entry_id; it may be a hole. */
static uint32_t view_slot(const page_view *view, int64_t entry_id)
{
    if (view->stride == 4)
        return (uint32_t)(entry_id - view->first);
    return sparse_slot(view->bytes, view->slots, entry_id);
}

static page_place place_of(const bk_row *row, int64_t entry_id)
{
    uint32_t entries = row->entries_kind / 2;
    if ((row->entries_kind & 1) == BK_KIND_SPARSE)
        return (page_place){.offset = row->page_offset,
                            .size = entries * 12 + BK_PAGE_TAIL,
                            .slots = entries};
    uint64_t number = (uint64_t)(entry_id - row->first) / BK_DENSE_SLOTS;
    uint64_t left = (uint64_t)(row->last - row->first) + 1 - number * BK_DENSE_SLOTS;
    uint32_t slots = left < BK_DENSE_SLOTS ? (uint32_t)left : BK_DENSE_SLOTS;
    return (page_place){.offset = row->page_offset + (uint32_t)number * BK_BLOCK_SIZE,
                        .size = slots * 4 + BK_PAGE_TAIL,
                        .slots = slots,
                        .number = number};
}

/* What is asked of one page. */
typedef struct {
    const bk_row *row;
    page_place place;
    int64_t entry_id;
    /* for a span */
    uint32_t count_max, size_max;
    bk_span *span;
    /* for ranges */
    bk_ranges *found;
} page_question;

typedef int (*page_answer)(const bk_page *page, const page_question *question);

/* [blocks] Answer from the page in the cache, with its lock held, or from the disk. */
static int ask_page(bk_page_cache *cache, bk_file_pool *pool, const page_question *question,
                    page_answer answer)
{
    bk_log *log = question->row->log;
    pthread_mutex_lock(&cache->lock);
    bk_page *page = find_page(cache, log->id, question->place.offset);
    int result = BK_OK;
    if (page != NULL) {
        cache->hits++;
        result = answer(page, question);
    }
    pthread_mutex_unlock(&cache->lock);
    if (page != NULL)
        return result;
    result = read_page(cache, pool, log, &question->place, &page);
    if (result != BK_OK)
        return result;
    result = answer(page, question);
    keep_page(cache, page);
    return result;
}

static int answer_span(const bk_page *page, const page_question *q)
{
    page_view view = view_of(page, q->row, &q->place);
    uint32_t slot = view_slot(&view, q->entry_id);
    if (slot == view.slots || view_entry(&view, slot) != q->entry_id)
        return BK_ABSENT;
    return view_span(&view, q->row, slot, q->count_max, q->size_max, q->span);
}

int bk_page_span(bk_page_cache *cache, bk_file_pool *pool, const bk_row *row, int64_t entry_id,
                 uint32_t count_max, uint32_t size_max, bk_span *span, uint64_t *offset)
{
    page_question question = {.row = row, .place = place_of(row, entry_id), .entry_id = entry_id,
                              .count_max = count_max, .size_max = size_max, .span = span};
    *offset = question.place.offset;
    return ask_page(cache, pool, &question, answer_span);
}

/* --- ranges ------------------------------------------------------------------------ */

static int answer_ranges(const bk_page *page, const page_question *q)
{
    page_view view = view_of(page, q->row, &q->place);
    int64_t first = 0, last = -1;
    for (uint32_t slot = view_slot(&view, q->entry_id); slot < view.slots; slot++) {
        int64_t entry_id = view_entry(&view, slot);
        if (view_offset(&view, slot) == BK_NO_OFFSET)
            continue;
        if (entry_id < q->entry_id || entry_id <= last || entry_id > q->row->last)
            return BK_CORRUPT; /* a sparse page that is not in order */
        if (last >= first && entry_id == last + 1) {
            last = entry_id;
            continue;
        }
        int result = last >= first ? bk_ranges_add(q->found, first, last) : BK_OK;
        if (result != BK_OK)
            return result;
        first = last = entry_id;
    }
    return last >= first ? bk_ranges_add(q->found, first, last) : BK_OK;
}

int bk_page_ranges(bk_page_cache *cache, bk_file_pool *pool, const bk_row *row, int64_t entry_id,
                   bk_ranges *found, int64_t *limit, uint64_t *offset)
{
    page_question question = {.row = row, .place = place_of(row, entry_id), .entry_id = entry_id,
                              .found = found};
    const page_place *place = &question.place;
    int is_dense = (row->entries_kind & 1) == BK_KIND_DENSE;
    *offset = place->offset;
    *limit = is_dense ? row->first + (int64_t)place->number * BK_DENSE_SLOTS + place->slots - 1
                      : row->last;
    return ask_page(cache, pool, &question, answer_ranges);
}
