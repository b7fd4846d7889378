/* CRC-32 and CRC-32C. See digest.h.
 *
 * A table of a CRC is linear: the value of an index is the XOR of the values of
 * its bits. So eight numbers give a table of 256, and the compiler builds all
 * sixteen from the rows below; nothing is computed when the module is loaded. */
#include "internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define BIT(i, bit, value) (((uint32_t)(i) >> (bit)&1u) * (value))
#define CELL(i, a, b, c, d, e, f, g, h)                                             \
    BIT(i, 0, a) ^ BIT(i, 1, b) ^ BIT(i, 2, c) ^ BIT(i, 3, d) ^ BIT(i, 4, e) ^      \
        BIT(i, 5, f) ^ BIT(i, 6, g) ^ BIT(i, 7, h)
#define CELLS4(i, ...)                                                              \
    CELL(i, __VA_ARGS__), CELL((i) + 1, __VA_ARGS__), CELL((i) + 2, __VA_ARGS__),   \
        CELL((i) + 3, __VA_ARGS__)
#define CELLS16(i, ...)                                                             \
    CELLS4(i, __VA_ARGS__), CELLS4((i) + 4, __VA_ARGS__), CELLS4((i) + 8, __VA_ARGS__), \
        CELLS4((i) + 12, __VA_ARGS__)
#define CELLS64(i, ...)                                                             \
    CELLS16(i, __VA_ARGS__), CELLS16((i) + 16, __VA_ARGS__),                        \
        CELLS16((i) + 32, __VA_ARGS__), CELLS16((i) + 48, __VA_ARGS__)
#define TABLE(...)                                                                  \
    {                                                                               \
        CELLS64(0, __VA_ARGS__), CELLS64(64, __VA_ARGS__), CELLS64(128, __VA_ARGS__), \
            CELLS64(192, __VA_ARGS__)                                               \
    }

/* Table k moves a byte past k further bytes ("slicing by eight"). */
typedef uint32_t crc_tables[8][256];

static const crc_tables castagnoli = {
    TABLE(0xf26b8303, 0xe13b70f7, 0xc79a971f, 0x8ad958cf, 0x105ec76f, 0x20bd8ede, 0x417b1dbc, 0x82f63b78),
    TABLE(0x13a29877, 0x274530ee, 0x4e8a61dc, 0x9d14c3b8, 0x3fc5f181, 0x7f8be302, 0xff17c604, 0xfbc3faf9),
    TABLE(0xa541927e, 0x4f6f520d, 0x9edea41a, 0x38513ec5, 0x70a27d8a, 0xe144fb14, 0xc76580d9, 0x8b277743),
    TABLE(0xdd45aab8, 0xbf672381, 0x7b2231f3, 0xf64463e6, 0xe964b13d, 0xd725148b, 0xaba65fe7, 0x52a0c93f),
    TABLE(0x38116fac, 0x7022df58, 0xe045beb0, 0xc5670b91, 0x8f2261d3, 0x1ba8b557, 0x37516aae, 0x6ea2d55c),
    TABLE(0xef306b19, 0xdb8ca0c3, 0xb2f53777, 0x6006181f, 0xc00c303e, 0x85f4168d, 0x0e045beb, 0x1c08b7d6),
    TABLE(0x68032cc8, 0xd0065990, 0xa5e0c5d1, 0x4e2dfd53, 0x9c5bfaa6, 0x3d5b83bd, 0x7ab7077a, 0xf56e0ef4),
    TABLE(0x493c7d27, 0x9278fa4e, 0x211d826d, 0x423b04da, 0x847609b4, 0x0d006599, 0x1a00cb32, 0x34019664),
};

static const crc_tables zlib = {
    TABLE(0x77073096, 0xee0e612c, 0x076dc419, 0x0edb8832, 0x1db71064, 0x3b6e20c8, 0x76dc4190, 0xedb88320),
    TABLE(0x191b3141, 0x32366282, 0x646cc504, 0xc8d98a08, 0x4ac21251, 0x958424a2, 0xf0794f05, 0x3b83984b),
    TABLE(0x01c26a37, 0x0384d46e, 0x0709a8dc, 0x0e1351b8, 0x1c26a370, 0x384d46e0, 0x709a8dc0, 0xe1351b80),
    TABLE(0xb8bc6765, 0xaa09c88b, 0x8f629757, 0xc5b428ef, 0x5019579f, 0xa032af3e, 0x9b14583d, 0xed59b63b),
    TABLE(0x3d6029b0, 0x7ac05360, 0xf580a6c0, 0x30704bc1, 0x60e09782, 0xc1c12f04, 0x58f35849, 0xb1e6b092),
    TABLE(0xcb5cd3a5, 0x4dc8a10b, 0x9b914216, 0xec53826d, 0x03d6029b, 0x07ac0536, 0x0f580a6c, 0x1eb014d8),
    TABLE(0xa6770bb4, 0x979f1129, 0xf44f2413, 0x33ef4e67, 0x67de9cce, 0xcfbd399c, 0x440b7579, 0x8816eaf2),
    TABLE(0xccaa009e, 0x4225077d, 0x844a0efa, 0xd3e51bb5, 0x7cbb312b, 0xf9766256, 0x299dc2ed, 0x533b85da),
};

static uint32_t crc_by_table(const crc_tables tables, uint32_t crc, const uint8_t *p, size_t size)
{
    for (; size >= 8; p += 8, size -= 8) {
        uint32_t low = crc ^ bk_get32le(p), high = bk_get32le(p + 4);
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^
              tables[4][low >> 24] ^ tables[3][high & 255] ^ tables[2][high >> 8 & 255] ^
              tables[1][high >> 16 & 255] ^ tables[0][high >> 24];
    }
    for (; size > 0; p++, size--)
        crc = tables[0][(crc ^ *p) & 255] ^ crc >> 8;
    return crc;
}

uint32_t bk_crc32c_table(uint32_t seed, const void *data, size_t size)
{
    return ~crc_by_table(castagnoli, ~seed, data, size);
}

uint32_t bk_crc32(uint32_t seed, const void *data, size_t size)
{
    return ~crc_by_table(zlib, ~seed, data, size);
}

#if defined(__x86_64__)

/* The instruction takes three cycles and one can start in each. So long input is
 * read as three strips side by side, and the sums are joined: STRIP_TWO and
 * STRIP_ONE are x^(8 n - 33) modulo the polynomial, n = two strips and one. */
#define STRIP_SIZE 336
#define STRIP_ONE 0xa60ce07b
#define STRIP_TWO 0xcec3662e

__attribute__((target("sse4.2,pclmul"))) static uint64_t shift_past(uint64_t crc, uint32_t factor)
{
    __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128(factor), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

__attribute__((target("sse4.2,pclmul"))) static uint64_t crc_strips(uint64_t crc, const uint8_t *p)
{
    uint64_t second = 0, third = 0;
    for (const uint8_t *end = p + STRIP_SIZE; p < end; p += 8) {
        crc = _mm_crc32_u64(crc, bk_get64le(p));
        second = _mm_crc32_u64(second, bk_get64le(p + STRIP_SIZE));
        third = _mm_crc32_u64(third, bk_get64le(p + 2 * STRIP_SIZE));
    }
    return shift_past(crc, STRIP_TWO) ^ shift_past(second, STRIP_ONE) ^ third;
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc_in_hardware(uint32_t seed,
                                                                         const uint8_t *p,
                                                                         size_t size)
{
    uint64_t crc = seed;
    for (; size >= 3 * STRIP_SIZE; p += 3 * STRIP_SIZE, size -= 3 * STRIP_SIZE)
        crc = crc_strips(crc, p);
    for (; size >= 8; p += 8, size -= 8)
        crc = _mm_crc32_u64(crc, bk_get64le(p));
    for (; size > 0; p++, size--)
        crc = _mm_crc32_u8((uint32_t)crc, *p);
    return (uint32_t)crc;
}

int bk_crc32c_is_hardware(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#elif defined(__aarch64__) && defined(__linux__)

static uint32_t crc_in_hardware(uint32_t crc, const uint8_t *p, size_t size)
{
    for (; size >= 8; p += 8, size -= 8)
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(bk_get64le(p)));
    for (; size > 0; p++, size--)
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*p));
    return crc;
}

int bk_crc32c_is_hardware(void) { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

#else

static uint32_t crc_in_hardware(uint32_t crc, const uint8_t *p, size_t size)
{
    return crc_by_table(castagnoli, crc, p, size);
}

int bk_crc32c_is_hardware(void) { return 0; }

#endif

uint32_t bk_crc32c(uint32_t seed, const void *data, size_t size)
{
    if (bk_crc32c_is_hardware())
        return ~crc_in_hardware(~seed, data, size);
    return bk_crc32c_table(seed, data, size);
}
