/* A window over a file that is read once, from front to back. See window.c. */
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
} bk_window;

/* [blocks] 0 or a negative errno; nothing to close then. */
int bk_window_open(bk_window *window, const char *path);
/* [blocks] Make size bytes at offset available; *got says how many there are: fewer only at
 * the end of the file. size: at most a record with its header. The pointer holds
 * until the next look. */
int bk_window_look(bk_window *window, uint64_t offset, size_t size, const uint8_t **data,
                   size_t *got);
void bk_window_close(bk_window *window);

#endif
