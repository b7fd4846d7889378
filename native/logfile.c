/* A log and its index as files: names, shared descriptors, lifetime, deletion.
 *
 * A reader finds an extent under the store's lock and reads without it, so a log
 * may be deleted in between. It pins the log, which keeps the structure and any
 * descriptor that is open; a file not open by then is gone (-ENOENT), and the
 * reader looks the entry up again. */
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void bk_log_path(const char *folder, uint32_t log_id, const char *suffix, char *out)
{
    snprintf(out, BK_PATH_SIZE_MAX, "%s/%08x.%s", folder, log_id, suffix);
}

/* --- the pool of descriptors ------------------------------------------------------- */

void bk_file_pool_init(bk_file_pool *pool, const char *folder, uint32_t open_max)
{
    pthread_mutex_init(&pool->lock, NULL);
    pool->folder = folder;
    pool->open_count = 0;
    pool->open_max = open_max;
    pool->ends.newer = pool->ends.older = &pool->ends;
}

static void link_file(bk_file_pool *pool, bk_file *file)
{
    file->newer = &pool->ends;
    file->older = pool->ends.older;
    file->older->newer = file;
    pool->ends.older = file;
}

static void unlink_file(bk_file *file)
{
    file->newer->older = file->older;
    file->older->newer = file->newer;
}

static void close_file(bk_file_pool *pool, bk_file *file)
{
    unlink_file(file);
    close(file->fd);
    file->fd = -1;
    pool->open_count--;
}

static void trim_pool(bk_file_pool *pool)
{
    bk_file *file = pool->ends.newer;
    while (pool->open_count >= pool->open_max && file != &pool->ends) {
        bk_file *newer = file->newer;
        if (file->users == 0)
            close_file(pool, file);
        file = newer;
    }
}

static int open_file(bk_file_pool *pool, bk_log *log, int which)
{
    char path[BK_PATH_SIZE_MAX];
    bk_log_path(pool->folder, log->id, which == BK_FILE_LOG ? BK_SUFFIX_LOG : BK_SUFFIX_INDEX,
                path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    /* A lookup reads exactly what it needs; runs ask for their read-ahead. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    log->files[which].fd = fd;
    pool->open_count++;
    link_file(pool, &log->files[which]);
    return BK_OK;
}

int bk_log_acquire(bk_file_pool *pool, bk_log *log, int which, int *fd)
{
    bk_file *file = &log->files[which];
    int result = BK_OK;
    pthread_mutex_lock(&pool->lock);
    if (file->fd < 0) {
        trim_pool(pool);
        result = open_file(pool, log, which);
    } else if (file->newer != &pool->ends) {
        unlink_file(file);
        link_file(pool, file);
    }
    if (result == BK_OK) {
        file->users++;
        *fd = file->fd;
    }
    pthread_mutex_unlock(&pool->lock);
    return result;
}

void bk_log_release(bk_file_pool *pool, bk_log *log, int which)
{
    pthread_mutex_lock(&pool->lock);
    log->files[which].users--;
    pthread_mutex_unlock(&pool->lock);
}

/* --- lifetime ---------------------------------------------------------------------- */

bk_log *bk_log_new(uint32_t id, uint32_t origin)
{
    bk_log *log = calloc(1, sizeof *log);
    if (log == NULL)
        return NULL;
    log->id = id;
    log->origin = origin;
    log->pins = 1;
    log->files[BK_FILE_LOG].fd = log->files[BK_FILE_INDEX].fd = -1;
    return log;
}

void bk_log_pin(bk_log *log)
{
    __atomic_fetch_add(&log->pins, 1, __ATOMIC_RELAXED);
}

void bk_log_unpin(bk_file_pool *pool, bk_log *log)
{
    if (__atomic_sub_fetch(&log->pins, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    pthread_mutex_lock(&pool->lock);
    for (int which = 0; which < 2; which++)
        if (log->files[which].fd >= 0)
            close_file(pool, &log->files[which]);
    pthread_mutex_unlock(&pool->lock);
    free(log->dead);
    free(log);
}

static int unlink_if_there(const char *path)
{
    return unlink(path) == 0 || errno == ENOENT ? 0 : -errno;
}

/* --- a damaged index ---------------------------------------------------------------- */

void bk_log_mark_torn(const char *folder, bk_log *log)
{
    char path[BK_PATH_SIZE_MAX];
    if (__atomic_load_n(&log->torn, __ATOMIC_RELAXED))
        return;
    bk_log_path(folder, log->id, BK_SUFFIX_TORN, path);
    if (bk_io_make_file(folder, path) == 0)
        __atomic_store_n(&log->torn, 1, __ATOMIC_RELAXED);
}

int bk_log_forget_torn(const char *folder, uint32_t log_id)
{
    char path[BK_PATH_SIZE_MAX];
    bk_log_path(folder, log_id, BK_SUFFIX_TORN, path);
    return unlink_if_there(path);
}

/* --- deletion ---------------------------------------------------------------------- */

static int sync_names(const char *folder)
{
    int fault = bk_fault_at(BK_FAULT_LOG_ERASE);
    return fault != 0 ? fault : bk_io_sync_folder(folder);
}

int bk_log_erase(const char *folder, uint32_t log_id)
{
    char log[BK_PATH_SIZE_MAX], dead[BK_PATH_SIZE_MAX], index[BK_PATH_SIZE_MAX];
    bk_log_path(folder, log_id, BK_SUFFIX_LOG, log);
    bk_log_path(folder, log_id, BK_SUFFIX_DEAD, dead);
    bk_log_path(folder, log_id, BK_SUFFIX_INDEX, index);
    int result = bk_fault_at(BK_FAULT_LOG_ERASE);
    if (result == 0 && rename(log, dead) != 0 && errno != ENOENT)
        result = -errno;
    if (result == 0)
        result = sync_names(folder);
    if (result == 0)
        result = unlink_if_there(index);
    if (result == 0)
        result = bk_log_forget_torn(folder, log_id);
    /* Or a power cut might leave the index alone, as if the log were lost. */
    if (result == 0)
        result = sync_names(folder);
    if (result == 0)
        result = unlink_if_there(dead);
    return result;
}
