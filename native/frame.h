/* The wire. A frame is a 4-byte big-endian length N, then N bytes, at most
 * BK_FRAME_SIZE_MAX. The first four of them are the header:
 * version << 24 | opcode << 16 | flags. All integers are big-endian.
 *
 * BookKeeper's protocol v2, byte for byte (proto/BookieProtoEncoding.java).
 * Offsets count from the length word.
 *
 *   ADD request        0 N | 4 header | 8 master key 20 | 28 stored entry (digest.h)
 *   ADD response       0 N=24 | 4 header | 8 code 4 | 12 ledger 8 | 20 entry 8
 *   READ request       0 N=20 | 4 header | 8 ledger 8 | 16 entry 8, -1 = the last
 *                      with BK_FLAG_FENCE: N=40, | 24 master key 20
 *   READ response      0 N=24+n | 4 header | 8 code | 12 ledger | 20 entry, both as
 *                      asked | 28 stored entry n, none unless the code is 0
 *   BATCH_READ request 0 N=40 | 4 header | 8 ledger | 16 start entry 8 | 24 request
 *                      id 8 | 32 count_max 4 | 36 size_max 8 [| 44 master key 20]
 *                      with BK_FLAG_FROM_LOG: what the entry logs have, and nothing that
 *                      only the memtable has, or has in a newer copy
 *   BATCH_READ response 0 N | 4 header | 8 code | 12 ledger | 20 start entry |
 *                      28 request id 8 | 36 { size 4, stored entry }...
 *   AUTH               0 N | 4 header | 8 protobuf AuthMessage {1: plugin, 2: payload}
 *
 * Our own, in the same framing:
 *
 *   READ_WAIT request  0 N=48 | 4 header | 8 ledger | 16 start entry 8 | 24 request
 *                      id 8 | 32 count_max 4 | 36 size_max 4 | 40 known LAC 8 |
 *                      48 wait_ms 4
 *                      Answered when the bookie's LAC of the ledger is greater
 *                      than known LAC, the ledger is fenced or deleted, or
 *                      wait_ms passed. count_max 0 = entries not wanted.
 *   READ_WAIT response 0 N | 4 header | 8 code | 12 ledger | 20 start entry | 28
 *                      request id | 36 LAC 8 | 44 fenced 4 (0 or 1) |
 *                      48 { size 4, stored entry }...  none above the LAC
 *   WRITE_LAC request  0 N=48 | 4 header | 8 master key 20 | 28 ledger 8 | 36 request
 *                      id 8 | 44 LAC 8
 *   WRITE_LAC response 0 N=24 | 4 header | 8 code | 12 ledger 8 | 20 request id 8
 *                      Sent when the explicit LAC is in the journal, synced.
 *   INCARNATION        0 N=20 | 4 header | 8 ledger 8 | 16 incarnation 8
 *                      Which ledger is meant by this id from here on, on this
 *                      connection (table.h); 0 takes that back. No answer: when
 *                      the ledger here is another one, the next frames about it
 *                      are answered with OTHER_LEDGER, or with UNKNOWN_STATE while
 *                      it is not known which of the two is the one of today. A
 *                      connection that says nothing means whatever is here, as a
 *                      client of BookKeeper does; what is not here it creates only
 *                      where the cluster knows the ledger (engine.h, rule 4). At most
 *                      BK_STATEMENTS_MAX at a time a connection, and less when all of
 *                      them together say very much (BK_STATEMENT_SLOTS_MAX); one more
 *                      closes it.
 *   CALL request       0 N | 4 header | 8 request id 8 | 16 msgpack (metadata/calls.py)
 *   CALL response      0 N | 4 header | 8 code | 12 request id 8 | 20 msgpack
 *   PULSE request      0 N=4 | 4 header
 *                      The asker takes pulses on this connection from now on.
 *   PULSE response     0 N=4 | 4 header
 *                      Sent unasked, again and again, while the bookie has adds of the
 *                      connection under way, acknowledges none, and yet makes progress:
 *                      its disk moves. One that neither acknowledges nor pulses hangs.
 *
 * Ledger 7 is of incarnation 0x0123456789abcdef from here on:
 *                      00000014 02450000 0000000000000007 0123456789abcdef
 *
 * READ of ledger 1, entry 0:  00000014 02020000 0000000000000001 0000000000000000
 * PULSE:                      00000004 02440000
 * ADD answered with success:  00000018 02010000 00000000 <ledger 8> <entry 8>
 *
 * The largest entry. An entry that is stored must fit every answer that may carry
 * it, else nobody can read it back. A stored entry of E bytes takes, of the
 * BK_FRAME_SIZE_MAX bytes behind the length word:
 *
 *   ADD         24 + E   also when recovery or repair adds it again
 *   READ        24 + E
 *   BATCH_READ  36 + E   32 of the head, 4 of its size
 *   READ_WAIT   48 + E   44 of the head, 4 of its size: the narrowest
 *
 * so E is at most BK_ENTRY_SIZE_MAX = BK_FRAME_SIZE_MAX - 48 = 5242832. An ADD of a
 * larger one is answered with BAD_REQUEST and stores nothing. One that is stored
 * all the same (by an older version) is read by READ; an answer that cannot carry
 * it is BAD_REQUEST. CALL carries no entries.
 *
 * A version above 2 is answered with BAD_VERSION and the connection closed; so
 * is, without an answer, a frame that is too long or too short for its opcode,
 * or an opcode that is not listed. A fencing READ of version 0 or 1 carries no
 * key.
 */
#define BK_OP_ADD 1
#define BK_OP_READ 2
#define BK_OP_AUTH 3
#define BK_OP_BATCH_READ 7
#define BK_OP_READ_WAIT 64
#define BK_OP_WRITE_LAC 65
#define BK_OP_CALL 67 /* 66 is kept for chain add */
#define BK_OP_PULSE 68
#define BK_OP_INCARNATION 69

#define BK_FLAG_FENCE 1
#define BK_FLAG_RECOVERY 2
#define BK_FLAG_PRIORITY 4
#define BK_FLAG_MEND 256 /* of ADD: store it although other bytes are here, which are wrong */
#define BK_FLAG_FROM_LOG 512 /* of BATCH_READ: from entry logs; one in the memtable is NO_ENTRY */

/* Codes of responses: BookKeeper's, and from 200 on ours. UNKNOWN_STATE and OTHER_LEDGER go only to
 * a client that said which incarnation it means: BookKeeper's own closes its connection at either.
 * An ADD that repeats an entry with other bytes is a BAD_REQUEST. */
#define BK_CODE_OK 0
#define BK_CODE_NO_LEDGER 1
#define BK_CODE_NO_ENTRY 2
#define BK_CODE_BAD_REQUEST 100
#define BK_CODE_IO_ERROR 101
#define BK_CODE_UNAUTHORIZED 102
#define BK_CODE_BAD_VERSION 103
#define BK_CODE_FENCED 104
#define BK_CODE_READ_ONLY 105
#define BK_CODE_TOO_MANY 106
#define BK_CODE_UNKNOWN_STATE 107 /* say again which ledger is meant, and ask again */
#define BK_CODE_OTHER_LEDGER 200  /* the ledger that was meant is over; its id is another's */

#define BK_ADD_HEADER_SIZE 28         /* of an ADD request before its stored entry */
#define BK_READ_HEADER_SIZE 28        /* of a READ response, with its length word */
#define BK_BATCH_HEADER_SIZE 36       /* of a BATCH_READ response, the same */
#define BK_READ_WAIT_HEADER_SIZE 48   /* of a READ_WAIT response, the same */

/* A request that is not an add, as taken apart by the parser. */
typedef struct {
  int32_t opcode;
  int32_t flags;
  int64_t ledger_id;
  int64_t entry_id;    /* start entry of a batch; LAC of WRITE_LAC */
  int64_t request_id;
  int64_t known_lac;
  int64_t size_max;
  int64_t incarnation; /* of INCARNATION; of others what the connection said, 0 for nothing */
  int32_t count_max;
  int32_t wait_ms;
  int32_t other_code;  /* the answer when the ledger here is of another incarnation */
  int32_t has_key;     /* 1 when key holds the frame's master key */
  uint8_t key[20];
  int32_t in_pieces;   /* 1: body_offset counts in bk_connection_partial() */
  uint64_t body_offset; /* of AUTH's and CALL's body in the bytes fed, or frame parsed */
  uint64_t body_size;
} bk_request;

/* Where a frame at data ends. BK_OK: *frame_size counts the length word too and
 * frame_size <= size. BK_END: not whole yet; *frame_size is what it will be, 0
 * while unknown. BK_CLOSE: longer than the limit, or shorter than a header. */
int bk_frame_find(const uint8_t *data, size_t size, uint32_t *frame_size);

/* Take one whole request frame apart. BK_OK: *request is filled, with 0 where the
 * frame says nothing (of an ADD, body is the stored entry, which has 32 bytes at
 * least). BK_CORRUPT: bad version. BK_CLOSE: anything else wrong. */
int bk_frame_parse_request(const uint8_t *frame, uint32_t frame_size, bk_request *request);

/* How many of the requests, from the first one on, are READs that fence nothing. */
uint32_t bk_requests_read(const bk_request *requests, uint32_t count);

/* Builders for requests; each returns the bytes written to out, whose size the
 * caller has made sure of (68 bytes are enough for any of them). key is NULL
 * where none is sent. */
uint32_t bk_frame_read(uint8_t *out, int32_t flags, int64_t ledger_id, int64_t entry_id,
                       const uint8_t *key);
uint32_t bk_frame_batch_read(uint8_t *out, int32_t flags, int64_t ledger_id, int64_t start_id,
                             int64_t request_id, int32_t count_max, int64_t size_max,
                             const uint8_t *key);
uint32_t bk_frame_read_wait(uint8_t *out, int64_t ledger_id, int64_t start_id, int64_t request_id,
                            int32_t count_max, int32_t size_max, int64_t known_lac,
                            int32_t wait_ms);
uint32_t bk_frame_write_lac(uint8_t *out, const uint8_t *key, int64_t ledger_id,
                            int64_t request_id, int64_t lac);
/* Request and response are the same eight bytes. */
uint32_t bk_frame_pulse(uint8_t *out);
uint32_t bk_frame_incarnation(uint8_t *out, int64_t ledger_id, int64_t incarnation);
/* The 16 bytes before a CALL's msgpack of body_size bytes. */
uint32_t bk_frame_call(uint8_t *out, int64_t request_id, uint32_t body_size);

/* Response heads; the same rules. bk_frame_response makes those of ADD, READ and
 * WRITE_LAC: id is the entry id or, for WRITE_LAC, the request id. body_size bytes follow, sent by the caller. */
uint32_t bk_frame_response(uint8_t *out, int32_t opcode, int32_t code, int64_t ledger_id,
                           int64_t id, uint32_t body_size);
uint32_t bk_frame_batch_response(uint8_t *out, int32_t code, int64_t ledger_id, int64_t start_id,
                                 int64_t request_id, uint32_t body_size);
uint32_t bk_frame_read_wait_response(uint8_t *out, int32_t code, int64_t ledger_id,
                                     int64_t start_id, int64_t request_id, int64_t lac,
                                     int32_t fenced, uint32_t body_size);
uint32_t bk_frame_call_response(uint8_t *out, int32_t code, int64_t request_id,
                                uint32_t body_size);

/* A response as taken apart. The body is frame[body_offset .. + body_size). */
typedef struct {
  int32_t opcode;
  int32_t code;
  int64_t ledger_id;
  int64_t entry_id;   /* start entry of a batch */
  int64_t request_id; /* BATCH_READ, READ_WAIT, WRITE_LAC, CALL */
  int64_t lac;        /* READ_WAIT */
  int32_t fenced;     /* READ_WAIT */
  int32_t in_pieces;  /* 1: body_offset counts in bk_link_partial() */
  uint64_t body_offset;
  uint64_t body_size;
} bk_response;
/* BK_OK or BK_CLOSE. */
int bk_frame_parse_response(const uint8_t *frame, uint32_t frame_size, bk_response *response);
