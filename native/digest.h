/* Checksums. Source of all layouts: BookKeeper's proto/checksum/. */

/* CRC-32C (Castagnoli), as in RFC 3720: crc32c("123456789") = e3069283. Pass 0,
 * or the result of the bytes before, as seed: crc(ab) = crc(crc(0, a), b).
 * Uses the SSE4.2 or ARMv8 instruction where the processor has it. */
uint32_t bk_crc32c(uint32_t seed, const void *data, size_t size);
/* The table fallback, the same values; public so that a test can compare. */
uint32_t bk_crc32c_table(uint32_t seed, const void *data, size_t size);
/* 1 if bk_crc32c runs in hardware here. */
int bk_crc32c_is_hardware(void);
/* CRC-32 as in zlib: crc32("123456789") = cbf43926. */
uint32_t bk_crc32(uint32_t seed, const void *data, size_t size);
void bk_sha1(const void *data, size_t size, uint8_t out[20]);
void bk_hmac_sha1(const void *key, size_t key_size, const void *data, size_t size, uint8_t out[20]);

/* How an entry is protected from end to end. The numbers are BookKeeper's. */
#define BK_DIGEST_CRC32 1  /* 8 bytes: CRC-32, zero-extended, big-endian */
#define BK_DIGEST_HMAC 2   /* 20 bytes: HMAC-SHA1, key SHA1("mac" + password) */
#define BK_DIGEST_CRC32C 3 /* 4 bytes, big-endian */
#define BK_DIGEST_DUMMY 4  /* no bytes */
#define BK_DIGEST_SIZE_MAX 20

/* A stored entry, which is also the body of an entry record:
 *
 *   offset  size  field (big-endian)
 *        0     8  ledger id
 *        8     8  entry id
 *       16     8  last add confirmed when the writer sent it; -1 at first
 *       24     8  length: payload bytes of the ledger up to and with this entry
 *       32     D  digest of the 32 bytes above and of the payload
 *     32+D     n  payload
 *
 * Ledger 1, entry 0, LAC -1, length 5, CRC32C, "hello":
 *   0000000000000001 0000000000000000 ffffffffffffffff 0000000000000005
 *   e3a5f74d 68656c6c6f
 */
typedef struct {
  int32_t kind;            /* BK_DIGEST_... */
  uint8_t hmac_key[20];    /* SHA1("mac" + password); used by BK_DIGEST_HMAC */
  uint8_t master_key[20];  /* SHA1("ledger" + password) */
} bk_digest;

/* Derive both keys from a password. BK_CORRUPT when kind is not one of the four. */
int bk_digest_init(bk_digest *digest, int32_t kind, const void *password, size_t size);
/* Bytes of the digest field, 0 to 20; negative for an unknown kind. */
int32_t bk_digest_size(int32_t kind);
/* Write the digest of header (32 bytes) and payload to out. */
void bk_digest_compute(const bk_digest *digest, const uint8_t *header, const uint8_t *payload,
                       size_t payload_size, uint8_t *out);
/* Check a stored entry: long enough, digest, ledger id, entry id (not when
 * entry_id is negative). BK_OK or BK_CORRUPT. */
int bk_digest_check(const bk_digest *digest, const uint8_t *entry, size_t size, int64_t ledger_id,
                    int64_t entry_id);
