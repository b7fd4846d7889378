/* Files and faults. See io.h. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "layouts are read in place");

/* --- the fault plan ---------------------------------------------------------- */

#ifdef BK_FAULTS
static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static int32_t fault_site = BK_FAULT_NONE;
static uint32_t fault_skip;
static uint32_t fault_left;
static int32_t fault_errno;

int bk_fault_plan(int32_t site, uint32_t nth, int32_t error_number, uint32_t count)
{
    pthread_mutex_lock(&fault_lock);
    fault_site = site;
    fault_skip = nth > 0 ? nth - 1 : 0;
    fault_left = count > 0 ? count : 1;
    fault_errno = error_number;
    pthread_mutex_unlock(&fault_lock);
    return 0;
}

int bk_fault_at(int32_t site)
{
    int result = 0;
    if (site == BK_FAULT_NONE || __atomic_load_n(&fault_site, __ATOMIC_RELAXED) != site)
        return 0;
    pthread_mutex_lock(&fault_lock);
    if (fault_site == site) {
        if (fault_skip > 0) {
            fault_skip--;
        } else if (fault_left > 0) {
            result = -fault_errno;
            if (--fault_left == 0)
                fault_site = BK_FAULT_NONE;
        }
    }
    pthread_mutex_unlock(&fault_lock);
    return result;
}

int bk_fault_in(int32_t site, uint64_t offset, size_t size)
{
    int result = 0;
    if (__atomic_load_n(&fault_site, __ATOMIC_RELAXED) != site)
        return 0;
    pthread_mutex_lock(&fault_lock);
    uint64_t bad = (uint64_t)fault_skip * BK_BLOCK_SIZE;
    if (fault_site == site && bad < offset + size &&
        bad + (uint64_t)fault_left * BK_BLOCK_SIZE > offset)
        result = -fault_errno;
    pthread_mutex_unlock(&fault_lock);
    return result;
}

static void (*sync_heard)(int fd);

int bk_io_on_sync(void (*heard)(int fd))
{
    sync_heard = heard;
    return 0;
}

static void sync_note(int fd)
{
    if (sync_heard != NULL)
        sync_heard(fd);
}
#else
int bk_fault_plan(int32_t site, uint32_t nth, int32_t error_number, uint32_t count)
{
    (void)site, (void)nth, (void)error_number, (void)count;
    return -ENOSYS;
}

int bk_fault_at(int32_t site)
{
    (void)site;
    return 0;
}

int bk_fault_in(int32_t site, uint64_t offset, size_t size)
{
    (void)site, (void)offset, (void)size;
    return 0;
}

int bk_io_on_sync(void (*heard)(int fd))
{
    (void)heard;
    return -ENOSYS;
}

static void sync_note(int fd) { (void)fd; }
#endif

static int synced(int fd, int result)
{
    if (result != 0)
        return -errno;
    sync_note(fd);
    return 0;
}

/* --- files ------------------------------------------------------------------- */

int bk_io_write(int fd, const void *data, size_t size, uint64_t offset, int32_t site)
{
    const uint8_t *at = data;
    int fault = bk_fault_at(site);
    if (fault != 0)
        return fault;
    while (size > 0) {
        ssize_t n = pwrite(fd, at, size, (off_t)offset);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        if (n == 0)
            return -EIO;
        at += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
    }
    return 0;
}

int bk_io_sync(int fd, int32_t site)
{
    int fault = bk_fault_at(site);
    if (fault != 0)
        return fault;
    return synced(fd, fdatasync(fd));
}

int bk_io_settle(const char *path, int32_t site)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = bk_io_sync(fd, site);
    if (result == 0)
        result = -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return result;
}

int bk_io_sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int result = synced(fd, fsync(fd));
    close(fd);
    return result;
}

int bk_io_make_file(const char *folder, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, BK_FILE_MODE);
    if (fd < 0)
        return -errno;
    int result = bk_io_sync(fd, BK_FAULT_NONE);
    if (result == 0)
        result = bk_io_sync_folder(folder);
    close(fd);
    return result;
}

int bk_io_read_folder(DIR *folder, struct dirent **entry)
{
    errno = -bk_fault_at(BK_FAULT_FOLDER_READ);
    *entry = errno == 0 ? readdir(folder) : NULL;
    return *entry != NULL ? 0 : -errno;
}

int bk_io_read(int fd, void *out, size_t size, uint64_t offset, size_t *got)
{
    uint8_t *at = out;
    *got = 0;
    while (size > 0) {
        ssize_t n = pread(fd, at, size, (off_t)offset);
        if (n < 0) {
            struct stat st;
            if (errno == EINTR)
                continue;
            /* A direct read that met the end of the file cannot go on from there. */
            if (errno == EINVAL && *got > 0 && fstat(fd, &st) == 0 && (uint64_t)st.st_size <= offset)
                break;
            return -errno;
        }
        if (n == 0)
            break;
        at += n;
        offset += (uint64_t)n;
        size -= (size_t)n;
        *got += (size_t)n;
    }
    return 0;
}

int bk_lost_between(const bk_lost *lost, uint64_t start, uint64_t end)
{
    for (uint32_t i = 0; i < lost->count; i++)
        if (lost->offsets[i] < end && lost->offsets[i] + BK_BLOCK_SIZE > start)
            return 1;
    return 0;
}

static int note_lost(bk_lost *lost, uint64_t offset)
{
    if (bk_lost_between(lost, offset, offset + 1))
        return 0;
    if (lost->count == BK_LOST_MAX)
        return -EIO;
    lost->offsets[lost->count++] = offset / BK_BLOCK_SIZE * BK_BLOCK_SIZE;
    return 0;
}

int bk_io_scan(int fd, void *out, size_t size, uint64_t offset, int32_t site, size_t *got)
{
    int fault = bk_fault_in(site, offset, size);
    *got = 0;
    int result = fault != 0 ? fault : bk_io_read(fd, out, size, offset, got);
    return result == -ENODATA || result == -EILSEQ ? -EIO : result;
}

/* A part of one block. */
static int salvage_block(int fd, uint8_t *out, size_t size, uint64_t offset, int32_t site,
                         bk_lost *lost, size_t *got)
{
    struct stat st;
    int result = bk_io_scan(fd, out, size, offset, site, got);
    if (result != -EIO)
        return result;
    if (fstat(fd, &st) != 0)
        return -errno;
    uint64_t left = (uint64_t)st.st_size > offset ? (uint64_t)st.st_size - offset : 0;
    *got = left < size ? (size_t)left : size;
    memset(out, 0xff, *got);
    return *got > 0 ? note_lost(lost, offset) : 0;
}

int bk_io_salvage(int fd, void *out, size_t size, uint64_t offset, int32_t site, bk_lost *lost,
                  size_t *got)
{
    uint8_t *at = out;
    int result = bk_io_scan(fd, out, size, offset, site, got);
    if (result != -EIO)
        return result;
    result = 0;
    *got = 0;
    while (size > 0 && result == 0) {
        size_t n, piece = BK_BLOCK_SIZE - (size_t)(offset % BK_BLOCK_SIZE);
        if (piece > size)
            piece = size;
        result = salvage_block(fd, at, piece, offset, site, lost, &n);
        *got += n;
        if (n < piece)
            break;
        at += n;
        offset += n;
        size -= n;
    }
    return result;
}

int bk_io_open_direct(const char *path, int flags, int *fd)
{
    *fd = open(path, flags | O_DIRECT | O_CLOEXEC, BK_FILE_MODE);
    if (*fd < 0 && errno == EINVAL)
        /* The first attempt may have created the file. */
        *fd = open(path, (flags & ~O_EXCL) | O_CLOEXEC, BK_FILE_MODE);
    return *fd < 0 ? -errno : 0;
}

void *bk_io_alloc(size_t size)
{
    void *memory = NULL;
    return posix_memalign(&memory, BK_BLOCK_SIZE, size) == 0 ? memory : NULL;
}

uint64_t bk_io_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
