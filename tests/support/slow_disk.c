/* For LD_PRELOAD: syncs of a bookie's files that take long, or never return.
 *
 * A file X/journal/... or X/ledgers/... obeys the file X/slow: "hang" holds every sync up
 * for as long as it says so, a number delays each by as many milliseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS 20

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* What X/slow says: -1 to hang, else milliseconds. */
static long delay_of(int fd)
{
    char link[64], path[4096], text[32] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 16);
    if (size < 0)
        return 0;
    path[size] = 0;
    char *inside = strstr(path, "/journal");
    if (inside == NULL)
        inside = strstr(path, "/ledgers");
    if (inside == NULL)
        return 0;
    strcpy(inside, "/slow");
    int control = open(path, O_RDONLY | O_CLOEXEC);
    if (control < 0)
        return 0;
    size = read(control, text, sizeof text - 1);
    close(control);
    return strncmp(text, "hang", 4) == 0 ? -1 : size > 0 ? atol(text) : 0;
}

static void wait_for_disk(int fd)
{
    long ms = delay_of(fd);
    while (ms < 0) {
        sleep_ms(POLL_MS);
        ms = delay_of(fd);
    }
    if (ms > 0)
        sleep_ms(ms);
}

int fdatasync(int fd)
{
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk(fd);
    return sync(fd);
}

int fsync(int fd)
{
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_disk(fd);
    return sync(fd);
}
