/* Lending bytes under watch, and making checksums right. */
#include <stdlib.h>

#include "fuzz.h"

uint8_t *fuzz_copy(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size);
    CLAIM(copy != NULL || size == 0);
    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

void fuzz_touch(const uint8_t *data, size_t size)
{
    uint8_t all = 0;
    for (size_t i = 0; i < size; i++)
        all |= data[i];
    __asm__ volatile("" : : "r"(all));
}

void fuzz_repair_after(uint8_t *data, size_t size)
{
    bk_put32le(data + size, bk_crc32c(0, data, size));
}

void fuzz_repair_records(uint8_t *data, size_t size, size_t at, uint32_t salt)
{
    while (at < size && size - at >= BK_RECORD_HEADER_SIZE) {
        uint32_t body_size = bk_get32le(data + at);
        uint8_t *body = data + at + BK_RECORD_HEADER_SIZE;
        if (body_size >= 16 && body_size <= size - at - BK_RECORD_HEADER_SIZE) {
            bk_put32le(data + at + 4, bk_record_check(salt, body, body_size));
            at += BK_RECORD_HEADER_SIZE + body_size;
        } else {
            at = bk_align_up(at + 1, BK_BLOCK_SIZE);
        }
    }
}
