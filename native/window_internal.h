/* A window over a journal file that is read once, from front to back. See window.c. */
#ifndef BK_WINDOW_INTERNAL_H
#define BK_WINDOW_INTERNAL_H

#include "internal.h"

#include <pthread.h>

typedef struct {
    int fd;
    uint64_t file_size;
    int large; /* worth a thread */
    uint8_t *buffers[2];
    int current;
    size_t data; /* where start lies in the current buffer */
    uint64_t start;
    size_t size;
    /* the piece that is read meanwhile, into the other buffer */
    int fetching;
    pthread_t thread;
    uint64_t fetch_start;
    size_t fetch_size;
    int fetch_result;
    bk_lost lost; /* the thread's, while one runs */
} bk_window;

/* [blocks] 0 or a negative errno; nothing to close then. */
int bk_window_open(bk_window *window, const char *path);
/* [blocks] Make size bytes at offset available; *got says how many there are: fewer only at
 * the end of the file. A block that cannot be read is there as 0xff. size: at most a record with its header. The pointer holds
 * until the next look. */
int bk_window_look(bk_window *window, uint64_t offset, size_t size, const uint8_t **data,
                   size_t *got);
/* Whether a block that could not be read has bytes from start to end, which were looked at. */
int bk_window_has_lost(bk_window *window, uint64_t start, uint64_t end);
void bk_window_close(bk_window *window);

#endif
