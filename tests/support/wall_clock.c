/* For LD_PRELOAD: a host whose wall clock is wrong.
 *
 * The file that QUIRE_WALL_CLOCK names holds an int64 of nanoseconds, which is added to
 * CLOCK_REALTIME. It is mapped, so a change counts at once for every process of the host. The
 * kernel has no namespace for this clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static int (*real_gettime)(clockid_t, struct timespec *);
static const volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void)
{
    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("QUIRE_WALL_CLOCK");
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        offset = at;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (real_gettime == NULL)
        map_offset();
    int failed = real_gettime(clock, now);
    if (failed || clock != CLOCK_REALTIME || offset == NULL)
        return failed;
    int64_t ns = now->tv_nsec + *offset % SECOND;
    now->tv_sec += *offset / SECOND + (ns < 0 ? -1 : ns / SECOND);
    now->tv_nsec = ns < 0 ? ns + SECOND : ns % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now != NULL)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
