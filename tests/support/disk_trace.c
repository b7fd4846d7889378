/* Records what a process does to files below a folder, so that tests can build what a power
 * cut would have left of them (power_cut.py). Preloaded: QUIRE_DISK_ROOT is the folder,
 * QUIRE_DISK_TRACE the file of records, which any number of processes append to.
 *
 * A record is written after the call and before its caller goes on, so what happened before
 * something else stands before it, in all processes. A sync covers what stands before it; the
 * sync itself is left out, since tests cut no real power. With QUIRE_DISK_KILL=n a process
 * kills itself after its nth record, reads not counted.
 *
 *   offset  size  field, little-endian
 *        0     4  magic
 *        4     4  kind, as below
 *        8     8  inode
 *       16     8  offset, or the new size
 *       24     8  size of what is written or read; of a run of zeros no data follows
 *       32     4  size of the name
 *       36     4  size of the data
 *       40        name (of a rename both, with a 0 between), data */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, ZERO, SIZE, SYNC, RENAME, UNLINK, MKDIR, RMDIR, READ, DROP, LINK };

#define MAGIC 0x4b534944u
#define FDS 65536

static char root[PATH_MAX];
static size_t root_size;
static int trace_fd = -1;
static long left = -1; /* records until the process kills itself */
static uint64_t inodes[FDS]; /* of what is open below the folder */
static unsigned char is_folder[FDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void begin(void)
{
    const char *folder = getenv("QUIRE_DISK_ROOT"), *trace = getenv("QUIRE_DISK_TRACE");
    if (folder == NULL || trace == NULL)
        return;
    if (getenv("QUIRE_DISK_KILL") != NULL)
        left = atol(getenv("QUIRE_DISK_KILL"));
    root_size = strlen(folder);
    memcpy(root, folder, root_size + 1);
    trace_fd = (int)syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC,
                            0600);
    /* Out of the way of tests that count descriptors, and of those that close low ones. */
    int high = (int)syscall(SYS_fcntl, trace_fd, F_DUPFD_CLOEXEC, 900);
    if (high >= 0) {
        syscall(SYS_close, trace_fd);
        trace_fd = high;
    }
}

#define NEXT(name) ({ static __typeof__(&name) real;                                            \
                      if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);      \
                      real; })

static void put(uint32_t kind, uint64_t inode, uint64_t offset, uint64_t size, const char *name,
                size_t name_size, const void *data, size_t data_size)
{
    struct { uint32_t magic, kind; uint64_t inode, offset, size; uint32_t names, datas; } head =
        {MAGIC, kind, inode, offset, size, (uint32_t)name_size, (uint32_t)data_size};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)name, name_size},
                             {(void *)data, data_size}};
    int error = errno;
    ssize_t all = (ssize_t)(sizeof head + name_size + data_size);
    if (syscall(SYS_writev, trace_fd, parts, 3) != all)
        abort(); /* a trace with a hole proves nothing */
    if (kind != READ && left > 0 && __atomic_sub_fetch(&left, 1, __ATOMIC_ACQ_REL) == 0)
        raise(SIGKILL);
    errno = error;
}

/* The path below the folder, or NULL. */
static const char *below(int folder_fd, const char *path, char *room)
{
    pthread_once(&once, begin);
    if (trace_fd < 0 || path == NULL)
        return NULL;
    if (path[0] != '/' && folder_fd != AT_FDCWD) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder_fd);
        ssize_t n = readlink(link, room, PATH_MAX - 1);
        if (n < 0 || (size_t)n + strlen(path) + 2 > PATH_MAX)
            return NULL;
        room[n] = '/';
        strcpy(room + n + 1, path);
        path = room;
    }
    if (strncmp(path, root, root_size) != 0)
        return NULL;
    path += root_size;
    if (*path == '\0')
        return ".";
    if (*path != '/')
        return NULL;
    while (*path == '/')
        path++;
    return path;
}

static uint64_t inode_of(int fd)
{
    return fd >= 0 && fd < FDS ? __atomic_load_n(&inodes[fd], __ATOMIC_ACQUIRE) : 0;
}

static void opened(int fd, int flags, const char *name, int was_there)
{
    struct stat st;
    int error = errno;
    if (fd < 0 || fd >= FDS || fstat(fd, &st) != 0) {
        errno = error;
        return;
    }
    is_folder[fd] = S_ISDIR(st.st_mode);
    if (S_ISREG(st.st_mode) && (flags & O_CREAT) && !was_there)
        put(CREATE, st.st_ino, 0, 0, name, strlen(name), NULL, 0);
    else if (S_ISREG(st.st_mode) && (flags & O_TRUNC))
        put(SIZE, st.st_ino, 0, 0, NULL, 0, NULL, 0);
    if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        __atomic_store_n(&inodes[fd], st.st_ino, __ATOMIC_RELEASE);
    errno = error;
}

static int open_any(int folder_fd, const char *path, int flags, mode_t mode)
{
    char room[PATH_MAX];
    struct stat st;
    const char *name = below(folder_fd, path, room);
    int error = errno;
    int was_there = name != NULL && fstatat(folder_fd, path, &st, 0) == 0;
    errno = error;
    int fd = NEXT(openat)(folder_fd, path, flags, mode);
    if (name != NULL)
        opened(fd, flags, name, was_there);
    else if (fd >= 0 && fd < FDS)
        __atomic_store_n(&inodes[fd], 0, __ATOMIC_RELEASE);
    return fd;
}

#define MODE(last) va_list list; va_start(list, last);                                          \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; va_end(list)

int open(const char *path, int flags, ...) { MODE(flags); return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags); return open_any(AT_FDCWD, path, flags, mode); }
int openat(int fd, const char *path, int flags, ...) { MODE(flags); return open_any(fd, path, flags, mode); }
int openat64(int fd, const char *path, int flags, ...) { MODE(flags); return open_any(fd, path, flags, mode); }
int __open_2(const char *path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }

int close(int fd)
{
    pthread_once(&once, begin);
    if (fd == trace_fd && fd >= 0)
        return 0; /* Python closes all it does not know before it starts another program */
    if (fd >= 0 && fd < FDS)
        __atomic_store_n(&inodes[fd], 0, __ATOMIC_RELEASE);
    return NEXT(close)(fd);
}

static void wrote(int fd, const void *data, ssize_t size, uint64_t offset)
{
    uint64_t inode = inode_of(fd);
    const unsigned char *bytes = data;
    if (inode == 0 || size <= 0)
        return;
    int zeros = bytes[0] == 0 && (size == 1 || memcmp(bytes, bytes + 1, (size_t)size - 1) == 0);
    put(zeros ? ZERO : WRITE, inode, offset, (uint64_t)size, NULL, 0, data, zeros ? 0 : (size_t)size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    ssize_t n = NEXT(pwrite)(fd, data, size, offset);
    wrote(fd, data, n, (uint64_t)offset);
    return n;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    return pwrite(fd, data, size, offset);
}

ssize_t write(int fd, const void *data, size_t size)
{
    ssize_t n = NEXT(write)(fd, data, size);
    if (inode_of(fd) != 0 && n > 0)
        wrote(fd, data, n, (uint64_t)(lseek(fd, 0, SEEK_CUR) - n));
    return n;
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    if (inode_of(fd) == 0)
        return NEXT(writev)(fd, parts, count);
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t n = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (n < 0)
            return total > 0 ? total : n;
        total += n;
        if ((size_t)n < parts[i].iov_len)
            break;
    }
    return total;
}

ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    uint64_t inode = inode_of(fd);
    if (inode != 0)
        put(READ, inode, (uint64_t)offset, size, NULL, 0, NULL, 0);
    return NEXT(pread)(fd, data, size, offset);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    return pread(fd, data, size, offset);
}

ssize_t read(int fd, void *data, size_t size)
{
    uint64_t inode = inode_of(fd);
    if (inode != 0)
        put(READ, inode, (uint64_t)lseek(fd, 0, SEEK_CUR), size, NULL, 0, NULL, 0);
    return NEXT(read)(fd, data, size);
}

int ftruncate(int fd, off_t size)
{
    int result = NEXT(ftruncate)(fd, size);
    if (result == 0 && inode_of(fd) != 0)
        put(SIZE, inode_of(fd), (uint64_t)size, 0, NULL, 0, NULL, 0);
    return result;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t size)
{
    struct stat st;
    int result = NEXT(posix_fallocate)(fd, offset, size);
    if (result == 0 && inode_of(fd) != 0 && fstat(fd, &st) == 0)
        put(SIZE, inode_of(fd), (uint64_t)st.st_size, 0, NULL, 0, NULL, 0);
    return result;
}

int posix_fallocate64(int fd, off64_t offset, off64_t size)
{
    return posix_fallocate(fd, offset, size);
}

static int sync_any(int fd, int (*real)(int))
{
    uint64_t inode = inode_of(fd);
    char link[64], path[PATH_MAX];
    if (inode == 0)
        return real(fd);
    if (!is_folder[fd]) {
        put(SYNC, inode, 0, 0, NULL, 0, NULL, 0);
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    const char *name = (size_t)n == root_size ? "." : path + root_size + 1;
    put(SYNC, inode, 0, 0, name, strlen(name), NULL, 0);
    return 0;
}

int fsync(int fd) { return sync_any(fd, NEXT(fsync)); }
int fdatasync(int fd) { return sync_any(fd, NEXT(fdatasync)); }

int posix_fadvise(int fd, off_t offset, off_t size, int advice)
{
    if (inode_of(fd) != 0 && advice == POSIX_FADV_DONTNEED)
        put(DROP, inode_of(fd), (uint64_t)offset, (uint64_t)size, NULL, 0, NULL, 0);
    return NEXT(posix_fadvise)(fd, offset, size, advice);
}

int posix_fadvise64(int fd, off64_t offset, off64_t size, int advice)
{
    return posix_fadvise(fd, offset, size, advice);
}

static int two_names(int result, uint32_t kind, int from_fd, const char *from, int to_fd,
                     const char *to)
{
    char rooms[2][PATH_MAX], both[2 * PATH_MAX];
    const char *old = below(from_fd, from, rooms[0]), *fresh = below(to_fd, to, rooms[1]);
    if (result == 0 && old != NULL && fresh != NULL) {
        size_t size = (size_t)snprintf(both, sizeof both, "%s%c%s", old, 0, fresh);
        put(kind, 0, 0, 0, both, size, NULL, 0);
    }
    return result;
}

static int rename_any(int from_fd, const char *from, int to_fd, const char *to)
{
    return two_names(NEXT(renameat)(from_fd, from, to_fd, to), RENAME, from_fd, from, to_fd, to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    return two_names(NEXT(linkat)(from_fd, from, to_fd, to, flags), LINK, from_fd, from, to_fd, to);
}

int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int rename(const char *from, const char *to) { return rename_any(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return rename_any(from_fd, from, to_fd, to);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return two_names(NEXT(renameat2)(from_fd, from, to_fd, to, flags), RENAME, from_fd, from, to_fd,
                     to);
}

static int one_name(int result, uint32_t kind, int fd, const char *path)
{
    char room[PATH_MAX];
    const char *name = result == 0 ? below(fd, path, room) : NULL;
    if (name != NULL)
        put(kind, 0, 0, 0, name, strlen(name), NULL, 0);
    return result;
}

int unlink(const char *path)
{
    return one_name(NEXT(unlink)(path), UNLINK, AT_FDCWD, path);
}

int unlinkat(int fd, const char *path, int flags)
{
    return one_name(NEXT(unlinkat)(fd, path, flags), flags & AT_REMOVEDIR ? RMDIR : UNLINK, fd, path);
}

int mkdir(const char *path, mode_t mode)
{
    return one_name(NEXT(mkdir)(path, mode), MKDIR, AT_FDCWD, path);
}

int mkdirat(int fd, const char *path, mode_t mode)
{
    return one_name(NEXT(mkdirat)(fd, path, mode), MKDIR, fd, path);
}

int rmdir(const char *path)
{
    return one_name(NEXT(rmdir)(path), RMDIR, AT_FDCWD, path);
}
