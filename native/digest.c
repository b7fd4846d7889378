/* Digests of entries, keys, SHA-1 and HMAC. See digest.h. */
#include "internal.h"

#define SHA1_BLOCK 64
#define SHA1_SIZE 20

/* SHA-1 of bytes that come in pieces. */
typedef struct {
    uint32_t state[5];
    uint64_t size;            /* bytes taken in */
    uint8_t block[SHA1_BLOCK]; /* its first size % 64 bytes are waiting */
} sha1;

static uint32_t rotate(uint32_t x, int by) { return x << by | x >> (32 - by); }

static void sha1_expand(uint32_t w[80], const uint8_t *block)
{
    for (int i = 0; i < 16; i++)
        w[i] = bk_get32be(block + 4 * i);
    for (int i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
}

/* Function and constant of round i, FIPS 180-4 section 6.1. */
static uint32_t sha1_mix(int i, uint32_t b, uint32_t c, uint32_t d)
{
    if (i < 20)
        return (d ^ (b & (c ^ d))) + 0x5a827999;
    if (i < 40)
        return (b ^ c ^ d) + 0x6ed9eba1;
    if (i < 60)
        return ((b & c) | (d & (b | c))) + 0x8f1bbcdc;
    return (b ^ c ^ d) + 0xca62c1d6;
}

static void sha1_block(uint32_t state[5], const uint8_t *block)
{
    uint32_t w[80];
    sha1_expand(w, block);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (int i = 0; i < 80; i++) {
        uint32_t next = rotate(a, 5) + sha1_mix(i, b, c, d) + e + w[i];
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
}

static void start_sha1(sha1 *sum)
{
    static const uint32_t first[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    memcpy(sum->state, first, sizeof first);
    sum->size = 0;
}

static void add_sha1(sha1 *sum, const uint8_t *data, size_t size)
{
    while (size > 0) {
        size_t held = sum->size % SHA1_BLOCK;
        size_t take = size < SHA1_BLOCK - held ? size : SHA1_BLOCK - held;
        memcpy(sum->block + held, data, take);
        sum->size += take;
        data += take;
        size -= take;
        if (held + take == SHA1_BLOCK)
            sha1_block(sum->state, sum->block);
    }
}

static void end_sha1(sha1 *sum, uint8_t out[SHA1_SIZE])
{
    static const uint8_t padding[SHA1_BLOCK] = {0x80};
    uint8_t bits[8];
    bk_put64be(bits, sum->size * 8);
    size_t held = sum->size % SHA1_BLOCK;
    add_sha1(sum, padding, held < 56 ? 56 - held : 120 - held);
    add_sha1(sum, bits, sizeof bits);
    for (int i = 0; i < 5; i++)
        bk_put32be(out + 4 * i, sum->state[i]);
}

static void sha1_of_two(const void *first, size_t first_size, const void *second,
                        size_t second_size, uint8_t out[SHA1_SIZE])
{
    sha1 sum;
    start_sha1(&sum);
    add_sha1(&sum, first, first_size);
    add_sha1(&sum, second, second_size);
    end_sha1(&sum, out);
}

void bk_sha1(const void *data, size_t size, uint8_t out[20])
{
    sha1_of_two(data, size, NULL, 0, out);
}

/* RFC 2104, over header followed by data. */
static void hmac_of_two(const void *key, size_t key_size, const void *header, size_t header_size,
                        const void *data, size_t size, uint8_t out[SHA1_SIZE])
{
    uint8_t inner[SHA1_BLOCK] = {0}, outer[SHA1_BLOCK];
    if (key_size > SHA1_BLOCK)
        bk_sha1(key, key_size, inner);
    else if (key_size > 0)
        memcpy(inner, key, key_size);
    for (int i = 0; i < SHA1_BLOCK; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    sha1 sum;
    start_sha1(&sum);
    add_sha1(&sum, inner, sizeof inner);
    add_sha1(&sum, header, header_size);
    add_sha1(&sum, data, size);
    end_sha1(&sum, out);
    sha1_of_two(outer, sizeof outer, out, SHA1_SIZE, out);
}

void bk_hmac_sha1(const void *key, size_t key_size, const void *data, size_t size, uint8_t out[20])
{
    hmac_of_two(key, key_size, NULL, 0, data, size, out);
}

int bk_digest_init(bk_digest *digest, int32_t kind, const void *password, size_t size)
{
    if (bk_digest_size(kind) < 0)
        return BK_CORRUPT;
    digest->kind = kind;
    sha1_of_two("mac", 3, password, size, digest->hmac_key);
    sha1_of_two("ledger", 6, password, size, digest->master_key);
    return BK_OK;
}

int32_t bk_digest_size(int32_t kind)
{
    switch (kind) {
    case BK_DIGEST_CRC32:
        return 8;
    case BK_DIGEST_HMAC:
        return SHA1_SIZE;
    case BK_DIGEST_CRC32C:
        return 4;
    case BK_DIGEST_DUMMY:
        return 0;
    default:
        return -1;
    }
}

void bk_digest_compute(const bk_digest *digest, const uint8_t *header, const uint8_t *payload,
                       size_t payload_size, uint8_t *out)
{
    const size_t header_size = BK_ENTRY_HEADER_SIZE;
    if (digest->kind == BK_DIGEST_CRC32C)
        bk_put32be(out, bk_crc32c(bk_crc32c(0, header, header_size), payload, payload_size));
    else if (digest->kind == BK_DIGEST_CRC32)
        bk_put64be(out, bk_crc32(bk_crc32(0, header, header_size), payload, payload_size));
    else if (digest->kind == BK_DIGEST_HMAC)
        hmac_of_two(digest->hmac_key, sizeof digest->hmac_key, header, header_size, payload,
                    payload_size, out);
}

int bk_digest_check(const bk_digest *digest, const uint8_t *entry, size_t size, int64_t ledger_id,
                    int64_t entry_id)
{
    int32_t digest_size = bk_digest_size(digest->kind);
    if (digest_size < 0 || size < BK_ENTRY_HEADER_SIZE + (size_t)digest_size)
        return BK_CORRUPT;
    const uint8_t *stored = entry + BK_ENTRY_HEADER_SIZE, *payload = stored + digest_size;
    uint8_t computed[BK_DIGEST_SIZE_MAX];
    bk_digest_compute(digest, entry, payload, size - (size_t)(payload - entry), computed);
    if (memcmp(stored, computed, (size_t)digest_size) != 0)
        return BK_CORRUPT;
    if ((int64_t)bk_get64be(entry) != ledger_id)
        return BK_CORRUPT;
    if (entry_id >= 0 && (int64_t)bk_get64be(entry + 8) != entry_id)
        return BK_CORRUPT;
    return BK_OK;
}
