/* Writing the journal. See journal.h. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "QUIREJNL"
#define VERSION 1
#define HEADER_SIZE 44
#define PREPARE_AHEAD (16u << 20)  /* keep this much zero-filled before the writer */
#define PREPARE_LOW (12u << 20)    /* start again when less is left */
#define PREPARE_PIECE (512u << 10) /* one idle step; an add waits for one at most */
#define WRITE_PIECE (4u << 20)     /* of a group: a slow disk shows that it moves */

struct bk_journal {
    char folder[BK_PATH_SIZE_MAX];
    uint64_t size_max;
    uint32_t spares_max;
    int fd;
    uint64_t file_id;
    uint64_t end;         /* of the last group */
    uint64_t zeroed;      /* the file is filled up to here */
    int preparing;        /* between PREPARE_LOW and PREPARE_AHEAD */
    int failed;           /* the errno that poisoned it, negative */
    uint8_t *zeros;
    uint64_t bytes;       /* of all files; atomic */
    uint64_t steps;       /* atomic */
    pthread_mutex_t lock; /* guards the folder: trim against roll */
};

static int path_of(const char *folder, uint64_t file_id, const char *ending, char *out)
{
    int n = snprintf(out, BK_PATH_SIZE_MAX, "%s/%016llx.%s", folder, (unsigned long long)file_id,
                     ending);
    return n > 0 && n < BK_PATH_SIZE_MAX ? 0 : -ENAMETOOLONG;
}

/* --- the folder ---------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Whether the name is <16 hex digits>.<ending>; *id is what the digits say. */
static int id_of(const char *name, const char *ending, uint64_t *id)
{
    char *rest;
    if (strlen(name) < 18 || name[16] != '.' || strcmp(name + 17, ending) != 0)
        return 0;
    *id = strtoull(name, &rest, 16);
    return rest == name + 16;
}

static int list_ids(DIR *dir, const char *ending, uint64_t **ids, size_t *count)
{
    struct dirent *e;
    size_t room = 0;
    int result;
    while ((result = bk_io_read_folder(dir, &e)) == 0 && e != NULL) {
        uint64_t id;
        if (!id_of(e->d_name, ending, &id))
            continue;
        uint64_t *grown = bk_array_grow(*ids, &room, *count + 1, sizeof *grown);
        if (grown == NULL)
            return -ENOMEM;
        *ids = grown;
        (*ids)[(*count)++] = id;
    }
    return result;
}

int bk_journal_list(const char *folder, const char *ending, uint64_t **ids, size_t *count)
{
    DIR *dir = opendir(folder);
    *ids = NULL;
    *count = 0;
    if (dir == NULL)
        return -errno;
    int result = list_ids(dir, ending, ids, count);
    closedir(dir);
    if (result != 0) {
        free(*ids);
        *ids = NULL;
        *count = 0;
    } else if (*count > 0) {
        qsort(*ids, *count, sizeof **ids, by_id);
    }
    return result;
}

static void count_bytes(bk_journal *journal)
{
    static const char *const endings[] = {"journal", "spare"};
    uint64_t total = 0;
    for (int k = 0; k < 2; k++) {
        uint64_t *ids;
        size_t count;
        if (bk_journal_list(journal->folder, endings[k], &ids, &count) != 0)
            return;
        for (size_t i = 0; i < count; i++) {
            char path[BK_PATH_SIZE_MAX];
            struct stat st;
            if (path_of(journal->folder, ids[i], endings[k], path) == 0 && stat(path, &st) == 0)
                total += (uint64_t)st.st_size;
        }
        free(ids);
    }
    __atomic_store_n(&journal->bytes, total, __ATOMIC_RELAXED);
}

/* Rename, unless there is a file of the new name. Where the file system cannot rename so, it is
 * looked for first: nobody else makes files in this folder. */
static int rename_to_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    if (access(to, F_OK) == 0)
        return -EEXIST;
    return errno == ENOENT && rename(from, to) == 0 ? 0 : -errno;
}

/* Rename the oldest spare to path, where no file may be; BK_ABSENT when there is none. */
static int take_spare(bk_journal *journal, const char *path)
{
    uint64_t *ids;
    size_t count;
    char spare[BK_PATH_SIZE_MAX];
    int result = bk_journal_list(journal->folder, "spare", &ids, &count);
    if (result != 0)
        return result;
    if (count == 0)
        result = BK_ABSENT;
    else if ((result = path_of(journal->folder, ids[0], "spare", spare)) == 0)
        result = rename_to_new(spare, path);
    free(ids);
    return result;
}

/* --- files --------------------------------------------------------------------- */

static int write_header(bk_journal *journal, int fd, uint64_t file_id, uint64_t previous_id,
                        uint64_t previous_end)
{
    uint8_t *block = bk_io_alloc(BK_BLOCK_SIZE);
    if (block == NULL)
        return -ENOMEM;
    memset(block, 0, BK_BLOCK_SIZE);
    memcpy(block, MAGIC, 8);
    bk_put32le(block + 8, VERSION);
    bk_put64le(block + 16, file_id);
    bk_put64le(block + 24, previous_id);
    bk_put64le(block + 32, previous_end);
    bk_put32le(block + 40, bk_crc32c(0, block, 40));
    int result = bk_io_write(fd, block, BK_BLOCK_SIZE, 0, BK_FAULT_JOURNAL_WRITE);
    if (result == 0)
        result = bk_io_sync(fd, BK_FAULT_JOURNAL_SYNC);
    if (result == 0)
        result = bk_io_sync_folder(journal->folder);
    free(block);
    return result;
}

/* Begin the file file_id after the current one. */
static int begin_file(bk_journal *journal, uint64_t file_id, uint64_t previous_id,
                      uint64_t previous_end)
{
    char path[BK_PATH_SIZE_MAX];
    struct stat st;
    int fd = -1, is_new = 0;
    int result = path_of(journal->folder, file_id, "journal", path);
    if (result != 0)
        return result;
    pthread_mutex_lock(&journal->lock);
    result = take_spare(journal, path);
    if (result == BK_ABSENT) {
        is_new = 1;
        result = 0;
    }
    if (result == 0)
        result = bk_io_open_direct(path, is_new ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, &fd);
    pthread_mutex_unlock(&journal->lock);
    if (result == 0)
        result = write_header(journal, fd, file_id, previous_id, previous_end);
    if (result == 0 && fstat(fd, &st) != 0)
        result = -errno;
    if (result != 0) {
        if (fd >= 0)
            close(fd);
        return result;
    }
    if (journal->fd >= 0)
        close(journal->fd);
    journal->fd = fd;
    journal->file_id = file_id;
    journal->end = BK_BLOCK_SIZE;
    journal->zeroed = (uint64_t)st.st_size;
    journal->preparing = 1;
    count_bytes(journal);
    return 0;
}

int bk_journal_open(const char *folder, uint64_t last_id, uint64_t last_end, uint64_t size_max,
                    uint32_t spares_max, bk_journal **out)
{
    bk_journal *journal = calloc(1, sizeof *journal);
    if (journal == NULL)
        return -ENOMEM;
    journal->fd = -1;
    journal->size_max = size_max;
    journal->spares_max = spares_max;
    pthread_mutex_init(&journal->lock, NULL);
    int result = strlen(folder) < sizeof journal->folder ? 0 : -ENAMETOOLONG;
    if (result == 0) {
        strcpy(journal->folder, folder);
        journal->zeros = bk_io_alloc(PREPARE_PIECE);
        result = journal->zeros != NULL ? 0 : -ENOMEM;
    }
    if (result == 0) {
        memset(journal->zeros, 0, PREPARE_PIECE);
        result = begin_file(journal, last_id + 1, last_id, last_end);
    }
    if (result != 0) {
        bk_journal_close(journal);
        return result;
    }
    *out = journal;
    return 0;
}

static void step(bk_journal *journal)
{
    __atomic_add_fetch(&journal->steps, 1, __ATOMIC_RELAXED);
}

static int write_group(bk_journal *journal, uint64_t offset, const uint8_t *group, uint64_t size)
{
    int result = 0;
    for (uint64_t done = 0; done < size && result == 0;) {
        uint64_t piece = size - done < WRITE_PIECE ? size - done : WRITE_PIECE;
        result = bk_io_write(journal->fd, group + done, piece, offset + done,
                             BK_FAULT_JOURNAL_WRITE);
        done += piece;
        step(journal);
    }
    if (result == 0)
        result = bk_io_sync(journal->fd, BK_FAULT_JOURNAL_SYNC);
    step(journal);
    return result;
}

int bk_journal_write(bk_journal *journal, uint64_t file_id, uint64_t offset, const uint8_t *group,
                     uint64_t size)
{
    if (journal->failed != 0)
        return journal->failed;
    int result = 0;
    if (file_id != journal->file_id) {
        result = begin_file(journal, file_id, journal->file_id, journal->end);
        step(journal);
    }
    if (result == 0)
        result = write_group(journal, offset, group, size);
    if (result != 0) {
        journal->failed = result;
        return result;
    }
    journal->end = offset + size;
    if (journal->zeroed < journal->end) {
        __atomic_add_fetch(&journal->bytes, journal->end - journal->zeroed, __ATOMIC_RELAXED);
        journal->zeroed = journal->end;
    }
    if (journal->zeroed - journal->end < PREPARE_LOW)
        journal->preparing = 1;
    return 0;
}

int bk_journal_prepare(bk_journal *journal)
{
    uint64_t limit = journal->end + PREPARE_AHEAD;
    if (limit > journal->size_max)
        limit = bk_align_up(journal->size_max, BK_BLOCK_SIZE);
    if (journal->failed != 0 || !journal->preparing || journal->zeroed >= limit) {
        journal->preparing = 0;
        return BK_END;
    }
    uint64_t at = bk_align_up(journal->zeroed, BK_BLOCK_SIZE);
    uint64_t size = limit - at < PREPARE_PIECE ? limit - at : PREPARE_PIECE;
    if (size == 0) {
        journal->preparing = 0;
        return BK_END;
    }
    /* A full disk is no failure of the journal yet: the next write fails, if it must grow. */
    if (pwrite(journal->fd, journal->zeros, size, (off_t)at) != (ssize_t)size) {
        journal->preparing = 0;
        return BK_END;
    }
    /* A failed sync is: the kernel reports it once, so the next one could falsely succeed. */
    int result = bk_io_sync(journal->fd, BK_FAULT_NONE);
    if (result != 0) {
        journal->failed = result;
        journal->preparing = 0;
        return BK_END;
    }
    step(journal);
    journal->zeroed = at + size;
    __atomic_add_fetch(&journal->bytes, size, __ATOMIC_RELAXED);
    return BK_OK;
}

int bk_journal_trim(bk_journal *journal, uint64_t file_id, uint32_t backups)
{
    uint64_t *ids = NULL, *spares = NULL;
    size_t count, spare_count, old = 0;
    pthread_mutex_lock(&journal->lock);
    int result = bk_journal_list(journal->folder, "journal", &ids, &count);
    if (result == 0)
        result = bk_journal_list(journal->folder, "spare", &spares, &spare_count);
    if (result == 0) {
        while (old < count && ids[old] < file_id)
            old++;
        for (size_t i = 0; i + backups < old && result == 0; i++) {
            char path[BK_PATH_SIZE_MAX], spare[BK_PATH_SIZE_MAX];
            result = path_of(journal->folder, ids[i], "journal", path);
            if (result == 0)
                result = path_of(journal->folder, ids[i], "spare", spare);
            if (result != 0)
                break;
            if (spare_count < journal->spares_max) {
                result = rename(path, spare) == 0 ? 0 : -errno;
                spare_count++;
            } else {
                result = unlink(path) == 0 ? 0 : -errno;
            }
        }
    }
    pthread_mutex_unlock(&journal->lock);
    free(ids);
    free(spares);
    count_bytes(journal);
    return result;
}

uint64_t bk_journal_steps(const bk_journal *journal)
{
    return __atomic_load_n(&journal->steps, __ATOMIC_RELAXED);
}

uint64_t bk_journal_bytes(const bk_journal *journal)
{
    return __atomic_load_n(&journal->bytes, __ATOMIC_RELAXED);
}

void bk_journal_close(bk_journal *journal)
{
    if (journal == NULL)
        return;
    if (journal->fd >= 0)
        close(journal->fd);
    pthread_mutex_destroy(&journal->lock);
    free(journal->zeros);
    free(journal);
}
