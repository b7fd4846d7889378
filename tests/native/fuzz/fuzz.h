/* What the harnesses share: temporary files, repaired checksums, claims.
 *
 * An input's first byte holds modes, the rest is what a peer or a disk gave.
 * With MODE_REPAIR the checksums of a file are made right first: chance alone
 * would never find a damaged structure behind a sound checksum. */
#ifndef FUZZ_H
#define FUZZ_H

#include "internal.h"

#define MODE_REPAIR 1
#define MODE_OPEN 2 /* open an engine or a store over the file too */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* End with a crash, and so a report, unless the claim holds. */
#define CLAIM(claim)                                                               \
    do {                                                                           \
        if (!(claim))                                                              \
            fuzz_fail(#claim, __FILE__, __LINE__);                                 \
    } while (0)
_Noreturn void fuzz_fail(const char *claim, const char *file, int line);

/* Make a folder for this process, removed at exit, with these two in it. */
void fuzz_make_folders(void);
const char *fuzz_journal_folder(void);
const char *fuzz_ledger_folder(void);
/* Delete the files in both. */
void fuzz_clear_folders(void);
/* Path of a file in folder; valid until the next call. */
const char *fuzz_path(const char *folder, const char *name);
void fuzz_write(const char *path, const uint8_t *data, size_t size);
/* A copy with nothing readable behind it. Release with free. */
uint8_t *fuzz_copy(const uint8_t *data, size_t size);
/* Read every byte, so that a sanitizer sees all of them. */
void fuzz_touch(const uint8_t *data, size_t size);

/* Put right the crc32c of the size bytes at data, in the 4 bytes after them. */
void fuzz_repair_after(uint8_t *data, size_t size);
/* Put right the check of every record from at on; what is none ends its block. */
void fuzz_repair_records(uint8_t *data, size_t size, size_t at, uint32_t salt);

/* [blocks] Open an engine over the two folders. mark NULL: they are empty. */
int fuzz_open_engine(const bk_mark *mark, bk_engine **out);
/* [blocks] Read what the engine has of its ledgers: every answer is a response. */
void fuzz_read_engine(bk_engine *engine);
/* [blocks] Answer one request; NULL when it is for later. */
void fuzz_answer(bk_engine *engine, const bk_request *request);

#endif
