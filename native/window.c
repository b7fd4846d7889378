/* A moving window over a file that is read once, from front to back.
 *
 * Two buffers: while one is looked through, a thread reads the next piece of a large file
 * into the other, so that the disk and the processor work at the same time. A piece is
 * read to the middle of its buffer; what the caller still needs of the piece before, at
 * most one record, is copied in front of it.
 *
 *   buffer   [ ........ carried | piece of PIECE_SIZE ]
 *                               ^ CARRY_SIZE
 */
#include "window_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_SIZE (1u << 20) /* small, so that a flush meanwhile does not wait for long */
#define CARRY_SIZE (6u << 20)

_Static_assert(CARRY_SIZE >= BK_RECORD_SIZE_MAX + BK_RECORD_HEADER_SIZE + BK_BLOCK_SIZE,
               "what is needed of the pieces before fits in front of a piece");

int bk_window_open(bk_window *window, const char *path)
{
    struct stat st;
    memset(window, 0, sizeof *window);
    window->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (window->fd < 0)
        return -errno;
    int result = fstat(window->fd, &st) == 0 ? 0 : -errno;
    window->file_size = result == 0 ? (uint64_t)st.st_size : 0;
    window->large = window->file_size > PIECE_SIZE;
    if (result == 0 && window->large) {
        close(window->fd); /* read once, by nobody else: past the page cache */
        result = bk_io_open_direct(path, O_RDONLY, &window->fd);
    }
    for (int i = 0; i < 1 + window->large && result == 0; i++) {
        window->buffers[i] = bk_io_alloc(CARRY_SIZE + PIECE_SIZE);
        result = window->buffers[i] != NULL ? 0 : -ENOMEM;
    }
    if (result != 0)
        bk_window_close(window);
    return result;
}

static void *fetch(void *argument)
{
    bk_window *window = argument;
    window->fetch_result =
        bk_io_salvage(window->fd, window->buffers[1 - window->current] + CARRY_SIZE, PIECE_SIZE,
                      window->fetch_start, BK_FAULT_JOURNAL_READ, &window->lost,
                      &window->fetch_size);
    return NULL;
}

static void finish_fetch(bk_window *window)
{
    if (window->fetching)
        pthread_join(window->thread, NULL);
    window->fetching = 0;
}

/* Have the piece at start read meanwhile. Without a thread it is read when it is needed. */
static void begin_fetch(bk_window *window, uint64_t start)
{
    window->fetch_start = start;
    window->fetching = window->large && start < window->file_size &&
                       pthread_create(&window->thread, NULL, fetch, window) == 0;
}

static uint64_t end_of(const bk_window *window) { return window->start + window->size; }

/* Add the piece that follows, keeping what lies from offset on. */
static int slide(bk_window *window, uint64_t offset)
{
    uint64_t end = end_of(window), kept = end - offset;
    const uint8_t *from =
        window->buffers[window->current] + window->data + (offset - window->start);
    int is_fetched = window->fetching && window->fetch_start == end;
    finish_fetch(window);
    window->fetch_start = end;
    if (!is_fetched)
        fetch(window);
    if (window->fetch_result != 0)
        return window->fetch_result;
    window->current = 1 - window->current;
    memcpy(window->buffers[window->current] + CARRY_SIZE - kept, from, kept);
    window->data = CARRY_SIZE - kept;
    window->start = offset;
    window->size = kept + window->fetch_size;
    if (window->fetch_size == 0)
        window->file_size = end; /* cut short meanwhile */
    begin_fetch(window, end + window->fetch_size);
    return 0;
}

/* Read the piece that holds offset, wherever it is. */
static int jump(bk_window *window, uint64_t offset)
{
    finish_fetch(window);
    window->start = offset / BK_BLOCK_SIZE * BK_BLOCK_SIZE;
    window->data = CARRY_SIZE;
    window->size = 0;
    int result = bk_io_salvage(window->fd, window->buffers[window->current] + CARRY_SIZE,
                               PIECE_SIZE, window->start, BK_FAULT_JOURNAL_READ, &window->lost,
                               &window->size);
    if (result == 0 && window->size == PIECE_SIZE)
        begin_fetch(window, window->start + PIECE_SIZE);
    return result;
}

int bk_window_look(bk_window *window, uint64_t offset, size_t size, const uint8_t **data,
                   size_t *got)
{
    int result = 0;
    if (offset < window->start || offset > end_of(window) || window->size == 0)
        result = jump(window, offset);
    /* A record may take several pieces. */
    while (result == 0 && window->large && offset + size > end_of(window) &&
           end_of(window) < window->file_size)
        result = slide(window, offset);
    if (result != 0)
        return result;
    uint64_t end = end_of(window);
    *got = end <= offset ? 0 : end - offset < size ? (size_t)(end - offset) : size;
    *data = window->buffers[window->current] + window->data +
            (*got > 0 ? offset - window->start : 0);
    return 0;
}

int bk_window_has_lost(bk_window *window, uint64_t start, uint64_t end)
{
    finish_fetch(window); /* it may be at the list */
    return bk_lost_between(&window->lost, start, end);
}

void bk_window_close(bk_window *window)
{
    finish_fetch(window);
    if (window->fd >= 0)
        close(window->fd);
    window->fd = -1;
    free(window->buffers[0]);
    free(window->buffers[1]);
    window->buffers[0] = window->buffers[1] = NULL;
}
