/* Records. See record.h. */
#include "internal.h"

uint32_t bk_salt(uint64_t file_id)
{
    uint8_t bytes[8];
    bk_put64le(bytes, file_id);
    return bk_crc32c(0x51554952u, bytes, sizeof bytes);
}

uint32_t bk_record_check(uint32_t salt, const uint8_t *body, uint32_t body_size)
{
    uint8_t bytes[4];
    bk_put32le(bytes, body_size);
    return bk_crc32c(bk_crc32c(0, bytes, sizeof bytes), body, body_size) ^ salt;
}

uint32_t bk_record_write(uint8_t *out, uint32_t salt, const uint8_t *body, uint32_t body_size)
{
    bk_put32le(out, body_size);
    memcpy(out + BK_RECORD_HEADER_SIZE, body, body_size);
    bk_put32le(out + 4, bk_record_check(salt, out + BK_RECORD_HEADER_SIZE, body_size));
    return BK_RECORD_HEADER_SIZE + body_size;
}

int bk_record_read(const uint8_t *data, size_t size, uint32_t salt, uint32_t *record_size)
{
    if (size < 4)
        return BK_END;
    uint32_t body_size = bk_get32le(data);
    if (body_size == 0)
        return BK_END;
    if (body_size < 16 || body_size > BK_RECORD_SIZE_MAX ||
        size < (size_t)body_size + BK_RECORD_HEADER_SIZE)
        return BK_CORRUPT;
    if (bk_record_check(salt, data + BK_RECORD_HEADER_SIZE, body_size) != bk_get32le(data + 4))
        return BK_CORRUPT;
    *record_size = body_size + BK_RECORD_HEADER_SIZE;
    return BK_OK;
}
