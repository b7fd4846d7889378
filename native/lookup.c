/* Lookups: one entry, or a run of entries, from extent to page to record.
 *
 * The extent is found under the store's lock; page and record are read without
 * it, from a pinned log. When a file is gone by then, compaction moved the
 * entry: the epoch shows that, and the lookup starts over. */
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>

#define PIECE_SIZE (256u << 10)      /* read in one go: it stays in the processor's cache */
#define AHEAD_LEAST (64u << 10)      /* a run of fewer bytes needs no read-ahead */
#define AHEAD_SIZE (4u << 20)        /* beyond what is asked for */
#define RESTARTS_MAX 100

typedef struct {
    bk_row row; /* its log is pinned */
    int64_t limit;
    uint64_t epoch;
    bk_span span;
    int quiet; /* damage is returned, and not noted */
} place;

/* --- extent and page --------------------------------------------------------------- */

static int pin_row(bk_store *store, int64_t ledger_id, int64_t entry_id, const bk_row *than,
                   place *out)
{
    int result = BK_NO_LEDGER;
    pthread_rwlock_rdlock(&store->lock);
    out->epoch = store->epoch;
    const bk_ledger_rows *ledger = bk_directory_ledger(&store->directory, ledger_id);
    if (ledger != NULL) {
        const bk_row *row = bk_directory_row(ledger, entry_id, than, &out->limit);
        result = row != NULL ? BK_OK : BK_ABSENT;
        if (row != NULL) {
            out->row = *row;
            bk_log_pin(row->log);
        }
    }
    pthread_rwlock_unlock(&store->lock);
    return result;
}

static void release_place(bk_store *store, const place *p)
{
    bk_log_unpin(&store->files, p->row.log);
}

static int has_moved(bk_store *store, uint64_t epoch)
{
    pthread_rwlock_rdlock(&store->lock);
    int moved = store->epoch != epoch;
    pthread_rwlock_unlock(&store->lock);
    return moved;
}

/* What a failure to read means: -EAGAIN to start over, or damage, noted. A lost
 * file and a sector that cannot be read are damage too; other errors of the system are passed on. */
int bk_lookup_judge(bk_store *store, uint64_t epoch, bk_log *log, const char *suffix,
                    uint64_t offset, int64_t ledger_id, int64_t entry_id, int result)
{
    if (result != -ENOENT && result != -EIO && result != BK_CORRUPT)
        return result;
    if (has_moved(store, epoch))
        return -EAGAIN;
    if (strcmp(suffix, BK_SUFFIX_INDEX) == 0)
        bk_log_mark_torn(store->folder, log);
    bk_store_note_log(store, log->id, suffix, offset, ledger_id, entry_id);
    return BK_CORRUPT;
}

static int judge(bk_store *store, const place *p, const char *suffix, uint64_t offset,
                 int64_t ledger_id, int64_t entry_id, int result)
{
    int failed_reading = result == -ENOENT || result == -EIO || result == BK_CORRUPT;
    if (p->quiet && failed_reading)
        return has_moved(store, p->epoch) ? -EAGAIN : BK_CORRUPT;
    return bk_lookup_judge(store, p->epoch, p->row.log, suffix, offset, ledger_id, entry_id,
                           result);
}

/* The span of the entry in the extent of p. */
static int find_span(bk_store *store, int64_t ledger_id, int64_t entry_id, uint32_t count_max,
                     uint32_t size_max, place *p)
{
    uint64_t offset;
    int64_t entries = p->limit - entry_id + 1;
    if (entries < count_max)
        count_max = (uint32_t)entries;
    int result = bk_page_span(&store->pages, &store->files, &p->row, entry_id, count_max, size_max,
                              &p->span, &offset);
    return judge(store, p, BK_SUFFIX_INDEX, offset, ledger_id, entry_id, result);
}

/* Find the newest extent that has the entry, and its span; the log stays pinned
 * after BK_OK. A hole in an extent may be filled by an older one. */
static int seek_once(bk_store *store, int64_t ledger_id, int64_t entry_id, uint32_t count_max,
                     uint32_t size_max, place *p)
{
    place older;
    int result = pin_row(store, ledger_id, entry_id, NULL, p);
    if (result != BK_OK)
        return result;
    result = find_span(store, ledger_id, entry_id, count_max, size_max, p);
    while (result == BK_ABSENT) {
        older.quiet = p->quiet;
        result = pin_row(store, ledger_id, entry_id, &p->row, &older);
        int moved = older.epoch != p->epoch;
        release_place(store, p);
        if (result != BK_OK)
            return moved ? -EAGAIN : result;
        *p = older;
        result = moved ? -EAGAIN
                       : find_span(store, ledger_id, entry_id, count_max, size_max, p);
    }
    if (result != BK_OK)
        release_place(store, p);
    return result;
}

static int seek(bk_store *store, int64_t ledger_id, int64_t entry_id, uint32_t count_max,
                uint32_t size_max, place *p)
{
    int result = -EAGAIN;
    for (int i = 0; i < RESTARTS_MAX && result == -EAGAIN; i++)
        result = seek_once(store, ledger_id, entry_id, count_max, size_max, p);
    return result;
}

/* --- one record -------------------------------------------------------------------- */

static int check_head(const uint8_t *head, const uint8_t *body, uint32_t body_size,
                      int64_t ledger_id, int64_t entry_id)
{
    if (body_size < 16 || bk_get32le(head) != body_size ||
        bk_record_check(0, body, body_size) != bk_get32le(head + 4) ||
        (int64_t)bk_get64be(body) != ledger_id || (int64_t)bk_get64be(body + 8) != entry_id)
        return BK_CORRUPT;
    return BK_OK;
}

int bk_entry_check(const uint8_t *record, uint32_t record_size, int64_t ledger_id, int64_t entry_id)
{
    if (record_size <= BK_RECORD_HEADER_SIZE)
        return BK_CORRUPT;
    return check_head(record, record + BK_RECORD_HEADER_SIZE, record_size - BK_RECORD_HEADER_SIZE,
                      ledger_id, entry_id);
}

/* Read header and body to two places at once. */
static int read_record(bk_store *store, const place *p, uint8_t *head, uint8_t *body,
                       uint32_t body_size)
{
    int fd;
    int result = bk_log_acquire(&store->files, p->row.log, BK_FILE_LOG, &fd);
    if (result != BK_OK)
        return result;
    struct iovec parts[2] = {{head, BK_RECORD_HEADER_SIZE}, {body, body_size}};
    ssize_t got = 0;
    result = bk_fault_at(BK_FAULT_ENTRY_READ);
    if (result == 0) {
        do
            got = preadv(fd, parts, 2, (off_t)p->span.offset);
        while (got < 0 && errno == EINTR);
        result = got < 0 ? -errno : got == BK_RECORD_HEADER_SIZE + (ssize_t)body_size ? 0 : BK_CORRUPT;
    }
    bk_log_release(&store->files, p->row.log, BK_FILE_LOG);
    bk_count(&store->log_reads, 1);
    return result;
}

/* The body of the one record of the span. */
static int fetch(bk_store *store, const place *p, int64_t ledger_id, int64_t entry_id, uint8_t *out)
{
    uint8_t head[BK_RECORD_HEADER_SIZE];
    uint32_t body_size = p->span.size - BK_RECORD_HEADER_SIZE;
    int result = read_record(store, p, head, out, body_size);
    if (result == BK_OK)
        result = check_head(head, out, body_size, ledger_id, entry_id);
    return result == BK_OK ? BK_OK
                           : judge(store, p, BK_SUFFIX_LOG, p->span.offset, ledger_id, entry_id,
                                   result);
}

static int read_once(bk_store *store, int64_t ledger_id, int64_t entry_id, int quiet, uint8_t *out,
                     size_t out_size, uint32_t *size)
{
    place p;
    p.quiet = quiet;
    int result = seek(store, ledger_id, entry_id, 1, 0, &p);
    if (result != BK_OK)
        return result;
    *size = p.span.size - BK_RECORD_HEADER_SIZE;
    result = *size > out_size ? BK_SMALL : fetch(store, &p, ledger_id, entry_id, out);
    release_place(store, &p);
    return result;
}

static int read_entry(bk_store *store, int64_t ledger_id, int64_t entry_id, int quiet, uint8_t *out,
                      size_t out_size, uint32_t *size)
{
    int result = -EAGAIN;
    for (int i = 0; i < RESTARTS_MAX && result == -EAGAIN; i++)
        result = read_once(store, ledger_id, entry_id, quiet, out, out_size, size);
    return result;
}

int bk_store_read(bk_store *store, int64_t ledger_id, int64_t entry_id, uint8_t *out,
                  size_t out_size, uint32_t *size)
{
    return read_entry(store, ledger_id, entry_id, 0, out, out_size, size);
}

int bk_store_peek(bk_store *store, int64_t ledger_id, int64_t entry_id, uint8_t *out,
                  size_t out_size, uint32_t *size)
{
    return read_entry(store, ledger_id, entry_id, 1, out, out_size, size);
}

uint32_t bk_store_prepare(bk_store *store, int64_t ledger_id, int64_t entry_id)
{
    place p;
    int fd;
    uint32_t size = 0;
    p.quiet = 1;
    if (seek(store, ledger_id, entry_id, 1, 0, &p) != BK_OK)
        return 0;
    if (bk_log_acquire(&store->files, p.row.log, BK_FILE_LOG, &fd) == BK_OK) {
        size = p.span.size;
        posix_fadvise(fd, (off_t)p.span.offset, (off_t)size, POSIX_FADV_WILLNEED);
        bk_log_release(&store->files, p.row.log, BK_FILE_LOG);
    }
    release_place(store, &p);
    return size;
}

int bk_store_find(bk_store *store, int64_t ledger_id, int64_t entry_id, uint32_t *log_id,
                  uint64_t *offset, uint32_t *record_size)
{
    place p;
    p.quiet = 0;
    int result = seek(store, ledger_id, entry_id, 1, 0, &p);
    if (result != BK_OK)
        return result;
    *log_id = p.row.log->id;
    *offset = p.span.offset;
    *record_size = p.span.size;
    release_place(store, &p);
    return BK_OK;
}

/* --- a run of records -------------------------------------------------------------- */

typedef struct {
    bk_store *store;
    int64_t ledger_id;
    int64_t next;
    int64_t last;
    uint32_t count, count_max;
    uint8_t *out;
    size_t used, out_size;
    const bk_log *ahead_log; /* what was asked of the kernel ahead of reading */
    uint64_t ahead_end;
} run;

/* Ask for the rest of this call and the start of the next one. */
static void read_ahead(run *r, const place *p, int fd)
{
    uint64_t extent_end = (uint64_t)p->row.log_offset + p->row.log_size;
    uint64_t wanted = r->out_size - r->used;
    if (wanted < AHEAD_LEAST || (r->ahead_log == p->row.log && p->span.offset < r->ahead_end))
        return;
    uint64_t end = p->span.offset + wanted + AHEAD_SIZE;
    if (end > extent_end)
        end = extent_end;
    if (end - p->span.offset > AHEAD_LEAST)
        posix_fadvise(fd, (off_t)p->span.offset, (off_t)(end - p->span.offset),
                      POSIX_FADV_WILLNEED);
    r->ahead_log = p->row.log;
    r->ahead_end = end;
}

static int more_follow(const run *r, const place *p)
{
    return r->count_max - r->count > p->span.count && r->last - r->next >= p->span.count;
}

static int read_piece(run *r, const place *p, size_t *got)
{
    int fd;
    int result = bk_log_acquire(&r->store->files, p->row.log, BK_FILE_LOG, &fd);
    if (result != BK_OK)
        return result;
    if (more_follow(r, p))
        read_ahead(r, p, fd);
    result = bk_fault_at(BK_FAULT_ENTRY_READ);
    if (result == 0)
        result = bk_io_read(fd, r->out + r->used, p->span.size, p->span.offset, got);
    bk_log_release(&r->store->files, p->row.log, BK_FILE_LOG);
    bk_count(&r->store->log_reads, 1);
    return result;
}

/* Turn records at r->out + r->used into { size, entry }, in place: each shrinks
 * by four bytes. *offset: of the record that is damaged, from the first. */
static int convert_piece(run *r, const place *p, size_t got, uint64_t *offset)
{
    const uint8_t *from = r->out + r->used, *end = from + got, *start = from;
    for (uint32_t i = 0; i < p->span.count; i++) {
        *offset = (uint64_t)(from - start);
        size_t left = (size_t)(end - from);
        uint32_t body_size = left >= BK_RECORD_HEADER_SIZE ? bk_get32le(from) : 0;
        if (body_size < 16 || body_size > left - BK_RECORD_HEADER_SIZE)
            return BK_CORRUPT;
        const uint8_t *body = from + BK_RECORD_HEADER_SIZE;
        if (check_head(from, body, body_size, r->ledger_id, r->next) != BK_OK)
            return BK_CORRUPT;
        from = body + body_size;
        uint8_t *to = r->out + r->used;
        bk_put32be(to, body_size);
        memmove(to + 4, body, body_size);
        r->used += 4 + (size_t)body_size;
        r->next++;
        r->count++;
    }
    return BK_OK;
}

static int run_piece(run *r, const place *p)
{
    size_t got = 0;
    uint64_t offset = 0;
    int result = read_piece(r, p, &got);
    if (result == BK_OK)
        result = convert_piece(r, p, got, &offset);
    return result == BK_OK ? BK_OK
                           : judge(r->store, p, BK_SUFFIX_LOG, p->span.offset + offset,
                                   r->ledger_id, r->next, result);
}

/* A record by itself, read to where it belongs. It may fit only without its header, which is
 * longer than its size. */
static int run_record(run *r, const place *p)
{
    uint32_t body_size = p->span.size - BK_RECORD_HEADER_SIZE;
    uint8_t *to = r->out + r->used;
    int fd, result = BK_OK;
    if (more_follow(r, p) &&
        (result = bk_log_acquire(&r->store->files, p->row.log, BK_FILE_LOG, &fd)) == BK_OK) {
        read_ahead(r, p, fd);
        bk_log_release(&r->store->files, p->row.log, BK_FILE_LOG);
    }
    if (result == BK_OK)
        result = fetch(r->store, p, r->ledger_id, r->next, to + 4);
    if (result != BK_OK)
        return result;
    bk_put32be(to, body_size);
    r->used += 4 + (size_t)body_size;
    r->next++;
    r->count++;
    return BK_OK;
}

static int run_step(run *r)
{
    place p;
    p.quiet = 0;
    size_t room = r->out_size - r->used;
    uint64_t more = (uint64_t)r->last - (uint64_t)r->next;
    uint32_t count_max = r->count_max - r->count;
    int result = seek(r->store, r->ledger_id, r->next,
                      more < count_max - 1 ? (uint32_t)more + 1 : count_max,
                      room < PIECE_SIZE ? (uint32_t)room : PIECE_SIZE, &p);
    if (result != BK_OK)
        return result;
    if (p.span.count == 1 && p.span.size - 4 <= room)
        result = run_record(r, &p);
    else if (p.span.size <= room)
        result = run_piece(r, &p);
    else
        result = BK_SMALL;
    release_place(r->store, &p);
    return result;
}

int bk_store_read_run(bk_store *store, int64_t ledger_id, int64_t start_id, int64_t last_id,
                      uint32_t count_max, uint8_t *out, size_t out_size, uint32_t *count,
                      size_t *size)
{
    run r = {.store = store, .ledger_id = ledger_id, .next = start_id, .last = last_id,
             .count_max = count_max, .out = out, .out_size = out_size};
    int result = last_id < start_id || count_max == 0 ? BK_ABSENT : BK_OK;
    int restarts = 0;
    while ((result == BK_OK || (result == -EAGAIN && restarts++ < RESTARTS_MAX)) &&
           r.next <= last_id && r.count < count_max)
        result = run_step(&r);
    *count = r.count;
    *size = r.used;
    return r.count > 0 ? BK_OK : result;
}

int bk_store_last(bk_store *store, int64_t ledger_id, int64_t *entry_id)
{
    pthread_rwlock_rdlock(&store->lock);
    const bk_ledger_rows *ledger = bk_directory_ledger(&store->directory, ledger_id);
    if (ledger != NULL)
        *entry_id = ledger->rows[ledger->count - 1].reach;
    pthread_rwlock_unlock(&store->lock);
    return ledger != NULL ? BK_OK : BK_NO_LEDGER;
}
