/* Temporary files for harnesses: in the folder that QUIRE_FUZZ_IN names, which outlives a crash and
 * is removed by whoever made it; else in memory where the system has /dev/shm. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

static char root[64], journal_folder[80], ledger_folder[80], path_of_file[256];

void fuzz_fail(const char *claim, const char *file, int line)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, claim);
    abort();
}

static void clear_folder(const char *folder)
{
    DIR *entries = opendir(folder);
    CLAIM(entries != NULL);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (entry->d_type == DT_REG)
            CLAIM(unlink(fuzz_path(folder, entry->d_name)) == 0);
    closedir(entries);
}

void fuzz_clear_folders(void)
{
    clear_folder(journal_folder);
    clear_folder(ledger_folder);
}

static void remove_folders(void)
{
    fuzz_clear_folders();
    rmdir(journal_folder);
    rmdir(ledger_folder);
    rmdir(root);
}

void fuzz_make_folders(void)
{
    const char *place = getenv("QUIRE_FUZZ_IN");
    if (place == NULL)
        place = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    CLAIM(snprintf(root, sizeof root, "%s/fuzz-XXXXXX", place) < (int)sizeof root);
    CLAIM(mkdtemp(root) != NULL);
    snprintf(journal_folder, sizeof journal_folder, "%s/journal", root);
    snprintf(ledger_folder, sizeof ledger_folder, "%s/ledgers", root);
    CLAIM(mkdir(journal_folder, 0700) == 0 && mkdir(ledger_folder, 0700) == 0);
    atexit(remove_folders);
}

const char *fuzz_journal_folder(void) { return journal_folder; }
const char *fuzz_ledger_folder(void) { return ledger_folder; }

const char *fuzz_path(const char *folder, const char *name)
{
    snprintf(path_of_file, sizeof path_of_file, "%s/%.100s", folder, name);
    return path_of_file;
}

void fuzz_write(const char *path, const uint8_t *data, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CLAIM(fd >= 0);
    CLAIM(write(fd, data, size) == (ssize_t)size);
    close(fd);
}
