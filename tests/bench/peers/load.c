/* A load generator for bookies, in BookKeeper's v2 frames (BookieProtocol.java, BookieProtoEncoding.java).
 *
 *     load HOST PORT add|read|random|batch LEDGER COUNT SIZE WINDOW
 *
 * One connection, one thread. `add` writes entries 0 to COUNT - 1 of SIZE payload bytes; `read` asks for them
 * one by one in order; `random` asks for one in RANDOM_PART of them, no two near each other; `batch` asks for
 * as many in a row as fit into BATCH_BYTES. At most WINDOW requests are
 * under way. It prints one line of JSON: the entries, their payload bytes, seconds, and microseconds from
 * sending a request to its answer, as p50_us and p99_us. An add that is refused since there are too many is
 * sent again, and counted as refused. Exit code 1 and a line on standard error: the peer failed, or answered
 * something else than what was written.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    ADD = 1,
    READ = 2,
    BATCH_READ = 7,
    KEY_SIZE = 20,
    ADD_HEADER = 8 + KEY_SIZE,   /* length, header, master key */
    ENTRY_HEADER = 32 + 4,       /* ledger, entry, LAC, length; digest */
    ANSWER_HEADER = 28,          /* length, header, code, ledger, entry */
    BATCH_HEADER = ANSWER_HEADER + 8,
    BATCH_BYTES = 1 << 20,
    OUT_SIZE = 1 << 20,
    IN_SIZE = 8 << 20,
    RANDOM_PART = 16,
    STRIDE = 15485863, /* a prime: so far apart, modulo the count, are entries that are read at random */
    SILENT_MS = 60000,
    TOO_MANY_REQUESTS = 106,
};

/* SHA1 of "ledger": the key of a ledger without a password. */
static const uint8_t MASTER_KEY[KEY_SIZE] = {0x85, 0x0b, 0xf1, 0x07, 0x1c, 0x5e, 0x3d, 0x8c, 0x24, 0x23,
                                             0x56, 0x76, 0xf8, 0x81, 0x6a, 0xe0, 0xcb, 0xe2, 0xf1, 0x4f};

typedef struct {
    int socket;
    int op;
    uint64_t ledger;
    uint64_t count;     /* entries in all */
    uint32_t size;      /* payload bytes of each */
    uint64_t window;    /* requests under way at most */
    uint64_t in_batch;  /* entries of one request */
    uint64_t stride, back; /* request n is for entry n * stride modulo count, and back leads back */
    uint64_t requests;  /* in all */
    uint64_t sent, answered, refused;
    uint64_t *again; /* requests to send again, at most the window */
    uint64_t to_send_again;
    uint8_t *payload;
    uint8_t *out;
    size_t out_start, out_end, out_size;
    uint8_t *in;
    size_t in_start, in_end;
    uint64_t *asked_ns; /* for each request */
    uint32_t *took_us;
} load_t;

static void fail(const char *format, ...) {
    va_list words;
    va_start(words, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, words);
    fputc('\n', stderr);
    va_end(words);
    exit(1);
}

static void *memory(size_t size) {
    void *found = malloc(size);
    if (found == NULL) fail("out of memory");
    return found;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void put32(uint8_t *at, uint32_t value) {
    value = htobe32(value);
    memcpy(at, &value, 4);
}

static void put64(uint8_t *at, uint64_t value) {
    value = htobe64(value);
    memcpy(at, &value, 8);
}

static uint32_t get32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return be32toh(value);
}

static uint64_t get64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return be64toh(value);
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t state = crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        state = __builtin_ia32_crc32di(state, word);
    }
    crc = (uint32_t)state;
    for (; size > 0; data++, size--) crc = __builtin_ia32_crc32qi(crc, *data);
    return crc;
}
#else
static uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size) {
    for (; size > 0; data++, size--) {
        crc ^= *data;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
    }
    return crc;
}
#endif

static size_t request_size(const load_t *load) {
    return load->op == ADD ? ADD_HEADER + ENTRY_HEADER + load->size : load->op == READ ? 24 : 44;
}

/* The product of two numbers below 2^63, modulo *modulus*. */
static uint64_t times(uint64_t a, uint64_t b, uint64_t modulus) {
    return (uint64_t)((unsigned __int128)a * b % modulus);
}

/* The number whose product with *a* is 1 modulo *modulus*, 0 if there is none (Euclid's algorithm). */
static uint64_t inverse(uint64_t a, uint64_t modulus) {
    int64_t r = (int64_t)modulus, next_r = (int64_t)(a % modulus), t = 0, next_t = 1;
    while (next_r != 0) {
        int64_t q = r / next_r, old_r = r, old_t = t;
        r = next_r, next_r = old_r - q * next_r;
        t = next_t, next_t = old_t - q * next_t;
    }
    return r != 1 ? 0 : (uint64_t)(t < 0 ? t + (int64_t)modulus : t);
}

static uint64_t entry_of(const load_t *load, uint64_t number) {
    return load->stride == 1 ? number * load->in_batch : times(number, load->stride, load->count);
}

static uint64_t number_of(const load_t *load, uint64_t entry) {
    return load->stride == 1 ? entry / load->in_batch : times(entry, load->back, load->count);
}

/* Write request *number* at *at*. */
static void write_request(const load_t *load, uint64_t number, uint8_t *at) {
    put32(at, (uint32_t)request_size(load) - 4);
    put32(at + 4, 2u << 24 | (uint32_t)load->op << 16);
    if (load->op != ADD) {
        put64(at + 8, load->ledger);
        put64(at + 16, entry_of(load, number));
        if (load->op == BATCH_READ) {
            uint64_t left = load->count - number * load->in_batch;
            put64(at + 24, number + 1);
            put32(at + 32, (uint32_t)(left < load->in_batch ? left : load->in_batch));
            put64(at + 36, 4 << 20);
        }
        return;
    }
    memcpy(at + 8, MASTER_KEY, KEY_SIZE);
    uint8_t *entry = at + ADD_HEADER;
    put64(entry, load->ledger);
    put64(entry + 8, number);
    put64(entry + 16, load->answered - 1); /* answers come in order, or nearly so: -1 at first */
    put64(entry + 24, (number + 1) * load->size);
    memcpy(entry + ENTRY_HEADER, load->payload, load->size);
    uint32_t crc = crc32c(crc32c(~0u, entry, 32), load->payload, load->size);
    put32(entry + 32, ~crc);
}

/* Fill the buffer with the requests that the window allows. */
static void prepare(load_t *load) {
    size_t size = request_size(load);
    if (load->out_start == load->out_end) load->out_start = load->out_end = 0;
    while (load->to_send_again > 0 && load->out_end + size <= load->out_size) {
        write_request(load, load->again[--load->to_send_again], load->out + load->out_end);
        load->out_end += size;
    }
    while (load->sent < load->requests && load->sent - load->answered < load->window &&
           load->out_end + size <= load->out_size) {
        write_request(load, load->sent, load->out + load->out_end);
        load->out_end += size;
        load->asked_ns[load->sent++] = now_ns();
    }
}

static void check_entry(const load_t *load, uint64_t entry, const uint8_t *stored, size_t size) {
    if (size != ENTRY_HEADER + (size_t)load->size || get64(stored) != load->ledger ||
        get64(stored + 8) != entry || memcmp(stored + ENTRY_HEADER, load->payload, load->size) != 0)
        fail("entry %llu is not what was written", (unsigned long long)entry);
}

/* Take the answer of *size* bytes at *at*. */
static void take_answer(load_t *load, const uint8_t *at, size_t size) {
    uint32_t code = get32(at + 8);
    uint64_t entry = get64(at + 20), number = number_of(load, entry);
    if (code == TOO_MANY_REQUESTS && load->op == ADD && number < load->sent) {
        load->refused++;
        load->again[load->to_send_again++] = number;
        return;
    }
    if (code != 0) fail("entry %llu was answered with code %u", (unsigned long long)entry, code);
    if (at[5] != load->op || get64(at + 12) != load->ledger || number >= load->sent)
        fail("an answer to no request");
    if (load->op == READ) check_entry(load, entry, at + ANSWER_HEADER, size - ANSWER_HEADER);
    if (load->op == BATCH_READ) {
        uint64_t end = entry + load->in_batch < load->count ? entry + load->in_batch : load->count;
        for (const uint8_t *next = at + BATCH_HEADER; next < at + size; entry++) {
            size_t stored = get32(next);
            check_entry(load, entry, next + 4, stored);
            next += 4 + stored;
        }
        if (entry != end) fail("a batch ended before entry %llu", (unsigned long long)end);
    }
    load->took_us[number] = (uint32_t)((now_ns() - load->asked_ns[number]) / 1000);
    load->answered++;
}

static void take_input(load_t *load) {
    if (load->in_start > 0 && IN_SIZE - load->in_end < IN_SIZE / 2) {
        memmove(load->in, load->in + load->in_start, load->in_end - load->in_start);
        load->in_end -= load->in_start;
        load->in_start = 0;
    }
    ssize_t got = recv(load->socket, load->in + load->in_end, IN_SIZE - load->in_end, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) fail("the connection was lost: %s", got ? strerror(errno) : "closed");
    load->in_end += (size_t)got;
    while (load->in_end - load->in_start >= ANSWER_HEADER) {
        const uint8_t *at = load->in + load->in_start;
        size_t size = 4 + (size_t)get32(at);
        if (size > IN_SIZE / 2) fail("an answer of %zu bytes", size);
        if (load->in_end - load->in_start < size) break;
        take_answer(load, at, size);
        load->in_start += size;
    }
    if (load->in_start == load->in_end) load->in_start = load->in_end = 0;
}

static void run(load_t *load) {
    while (load->answered < load->requests) {
        prepare(load);
        struct pollfd wanted = {.fd = load->socket, .events = POLLIN};
        if (load->out_end > load->out_start) {
            ssize_t put = send(load->socket, load->out + load->out_start,
                               load->out_end - load->out_start, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (put < 0 && errno != EAGAIN && errno != EINTR) fail("cannot send: %s", strerror(errno));
            if (put > 0) load->out_start += (size_t)put;
            if (load->out_end > load->out_start) wanted.events |= POLLOUT;
        }
        if (poll(&wanted, 1, SILENT_MS) == 0) fail("no answer in %d s", SILENT_MS / 1000);
        if (wanted.revents & ~POLLOUT) take_input(load);
    }
}

static int by_size(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static int connect_to(const char *host, const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int found = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("%s is no IPv4 address", host);
    if (connect(found, (struct sockaddr *)&address, sizeof address) != 0)
        fail("%s:%s: %s", host, port, strerror(errno));
    setsockopt(found, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return found;
}

int main(int count, char **words) {
    if (count != 8) fail("usage: load HOST PORT add|read|random|batch LEDGER COUNT SIZE WINDOW");
    load_t load = {.ledger = strtoull(words[4], NULL, 10),
                   .count = strtoull(words[5], NULL, 10),
                   .size = (uint32_t)strtoul(words[6], NULL, 10),
                   .window = strtoull(words[7], NULL, 10),
                   .in_batch = 1,
                   .stride = 1};
    int is_random = !strcmp(words[3], "random");
    load.op = !strcmp(words[3], "add") ? ADD : is_random || !strcmp(words[3], "read") ? READ : BATCH_READ;
    if (load.count == 0 || load.window == 0 || load.size > 1 << 20) fail("nothing to do, or too large");
    if (load.op == BATCH_READ) {
        load.in_batch = BATCH_BYTES / (ENTRY_HEADER + 4 + load.size);
        if (load.in_batch == 0) load.in_batch = 1;
    }
    load.requests = (load.count + load.in_batch - 1) / load.in_batch;
    if (is_random) {
        load.stride = STRIDE;
        load.back = inverse(STRIDE, load.count);
        if (load.back == 0 || load.count >> 62) fail("no COUNT to read at random");
        load.requests = load.requests / RANDOM_PART + 1;
    }
    load.out_size = OUT_SIZE > request_size(&load) ? OUT_SIZE : request_size(&load);
    load.out = memory(load.out_size);
    load.in = memory(IN_SIZE);
    load.payload = memory(load.size + 1);
    for (uint32_t place = 0; place < load.size; place++)
        load.payload[place] = (uint8_t)(place * 2654435761u >> 13);
    load.asked_ns = memory(load.requests * sizeof *load.asked_ns);
    load.again = memory(load.window * sizeof *load.again);
    load.took_us = memory(load.requests * sizeof *load.took_us);
    load.socket = connect_to(words[1], words[2]);
    uint64_t begun = now_ns();
    run(&load);
    double seconds = (double)(now_ns() - begun) / 1e9;
    qsort(load.took_us, load.requests, sizeof *load.took_us, by_size);
    uint64_t entries = load.requests * load.in_batch < load.count ? load.requests * load.in_batch : load.count;
    printf("{\"entries\": %llu, \"bytes\": %llu, \"seconds\": %.6f, \"p50_us\": %u, \"p99_us\": %u, \"refused\": %llu}\n",
           (unsigned long long)entries, (unsigned long long)(entries * load.size), seconds,
           load.took_us[load.requests / 2], load.took_us[load.requests * 99 / 100], (unsigned long long)load.refused);
    return 0;
}
