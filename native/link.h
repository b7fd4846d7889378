/* The client's side of the wire: entries go out as ADD frames, acknowledgements
 * come in. A writer is one ledger being written; a link is one connection. All
 * of it lives in one thread. Closing a writer detaches it from its links, and
 * closing a link from its writers, in any order. */

/* --- writer ------------------------------------------------------------------- */

/* Entry e goes to write_quorum bookies of the ensemble, starting at index
 * e mod ensemble_size (RoundRobinDistributionSchedule.java). It is complete when
 * ack_quorum of them acknowledged it and every smaller entry is complete; the
 * greatest complete one is the last add confirmed (LAC), which later entries
 * carry. With ensemble_size == write_quorum all bookies get the same bytes, which
 * are then built once. */
typedef struct bk_writer bk_writer;

#define BK_ENSEMBLE_SIZE_MAX 64

typedef struct {
  int64_t lac;
  int64_t next_entry;       /* id that the next entry gets */
  uint64_t length;          /* payload bytes of all entries added */
  uint64_t confirmed_length; /* payload bytes up to the LAC */
  uint64_t pending_bytes;   /* payload bytes above the LAC */
  uint64_t refused;         /* bit i: bookie i answered an add with an error */
  int32_t code;             /* the first such error, 0 for none; what ends the writer
                               replaces any other: BK_CODE_FENCED, _UNAUTHORIZED,
                               _OTHER_LEDGER and _BAD_REQUEST */
  int32_t reserved;
} bk_writer_state;

/* first_entry: id of the first entry to come (its LAC is first_entry - 1); length: payload
 * bytes before it; flags: what every ADD frame carries (frame.h), BK_FLAG_RECOVERY for one who
 * recovers the ledger: then all entries carry the LAC first_entry - 1, for nothing that is
 * added again is confirmed before the ledger is closed. -EINVAL: not 1 <= ack <= write <=
 * ensemble <= 64, a negative id, or an unknown kind of digest. */
int bk_writer_open(int64_t ledger_id, uint32_t ensemble_size, uint32_t write_quorum,
                   uint32_t ack_quorum, const bk_digest *digest, int32_t flags,
                   int64_t first_entry, uint64_t length, uint64_t token, bk_writer **out);
/* Links forget it. */
void bk_writer_close(bk_writer *writer);
/* Bytes that bk_writer_add will write for each of the ensemble_size bookies (only sizes[0] is filled
 * in when all get the same). BK_CORRUPT: a payload is too large for a frame, or ids ran out. */
int bk_writer_plan(const bk_writer *writer, const uint32_t *payload_sizes, uint32_t count,
                   uint64_t *sizes);
/* Build the frames of count entries, their payloads one after the other in payloads, into
 * outs[0 .. ensemble_size) (only outs[0] when all get the same), each as large as planned.
 * *first_entry: id of the first. After an error nothing was added. */
int bk_writer_add(bk_writer *writer, const uint8_t *payloads, const uint32_t *payload_sizes,
                  uint32_t count, uint8_t **outs, int64_t *first_entry);
void bk_writer_get_state(const bk_writer *writer, bk_writer_state *out);
/* One acknowledgement; what a link does for each ADD response. An answer of a bookie that is
 * not in the entry's write set, for an entry that was not added, or twice, changes nothing.
 * A refusal counts for an entry up to the LAC too: its copy is missing there. */
void bk_writer_acknowledge(bk_writer *writer, uint32_t bookie, int64_t entry_id, int32_t code);
/* Bit i: the bookie at index i has not acknowledged every entry that it got since it stands
 * there, also of those that are confirmed without it. Who answers twice for an entry that is
 * confirmed already is counted twice: no bookie does. */
uint64_t bk_writer_behind(const bk_writer *writer);

/* Bit i: the bookie at index i has not acknowledged the oldest entry that is not confirmed. 0:
 * everything is confirmed. */
uint64_t bk_writer_owing(const bk_writer *writer);

/* Change of the ensemble, in this order:
 *
 *   hold(1)      the LAC stands from now on; acknowledgements are still counted
 *   replace(i)   for each bookie that is lost
 *   attach       the new one's link, and send it its share of every entry above the LAC
 *   hold(0)      when the new ensemble is in the metadata: what is complete is confirmed
 *
 * So no entry is confirmed by an acknowledgement of a bookie that the metadata does not
 * name for it: entries above the LAC belong to the new ensemble, those up to it to the old. */

/* on 0: confirm what is complete; the links report nothing of it, so look at the state. */
void bk_writer_hold(bk_writer *writer, int32_t on);
/* Another bookie stands at this index from now on: the links that counted for the old one are
 * detached, its acknowledgements of all entries above the LAC and its refusals are forgotten.
 * The state's code becomes 0 unless it ends the writer. -EINVAL: no such
 * index, or the LAC is not held. */
int bk_writer_replace(bk_writer *writer, uint32_t bookie);

/* --- link ---------------------------------------------------------------------- */

typedef struct bk_link bk_link;
int bk_link_open(bk_link **out);
void bk_link_close(bk_link *link);
/* ADD responses of the writer's ledger on this link count for this bookie of its ensemble. One
 * writer a ledger and link: -EEXIST. */
int bk_link_attach(bk_link *link, bk_writer *writer, uint32_t bookie);
void bk_link_detach(bk_link *link, bk_writer *writer);
/* Take in bytes from the bookie. ADD responses for attached writers are dealt with; the others
 * stand in responses, *count of at most responses_max, which is 1 at least. *used < size:
 * there was no room for more, call again with the rest. BK_OK; or BK_CLOSE, with the responses
 * before the fault, and for ever after. */
int bk_link_feed(bk_link *link, const uint8_t *data, size_t size, size_t *used,
                 bk_response *responses, uint32_t responses_max, uint32_t *count);
/* The buffer in which a response that came in pieces was put together, valid until the next
 * feed or room. bk_response.in_pieces marks it; a feed has one at most. */
const uint8_t *bk_link_partial(const bk_link *link);
/* The same buffer, now the caller's: what is large need not be copied. Give it back with
 * bk_link_release. */
uint8_t *bk_link_take(bk_link *link);
void bk_link_release(void *taken);
/* Where the rest of a large frame belongs, *size bytes; NULL when none is under way, or there is
 * no memory. Bytes that were received there are fed from there, and not copied; valid until the
 * next feed. */
uint8_t *bk_link_room(bk_link *link, size_t *size);
/* Tokens of writers whose LAC or error this link changed since the last call. Returns
 * how many were written; call again when it is out_count. */
uint32_t bk_link_dirty(bk_link *link, uint64_t *out, uint32_t out_count);
/* How many ADD responses came for writers that were attached. */
uint64_t bk_link_answers(const bk_link *link);

/* --- single frames and entries --------------------------------------------------- */

/* The size of an ADD frame for a payload. */
uint64_t bk_frame_add_size(const bk_digest *digest, uint64_t payload_size);
/* One ADD frame; out has bk_frame_add_size bytes. */
void bk_frame_add(uint8_t *out, const bk_digest *digest, int32_t flags, int64_t ledger_id,
                  int64_t entry_id, int64_t lac, uint64_t length, const uint8_t *payload,
                  uint32_t payload_size);

/* Check the entries in the body of a BATCH_READ or READ_WAIT response:
 * { size 4, stored entry }... of the ledger, ids rising by one from start_id. For entry i,
 * payload_offsets[i] and payload_sizes[i] say where its payload lies in body. *count: sound entries, at
 * most count_max; *lac: the greatest LAC they carry; *length: the length field of the last.
 * BK_OK, or BK_CORRUPT when what follows the sound entries is damaged. */
int bk_entries_check(const bk_digest *digest, const uint8_t *body, size_t size, int64_t ledger_id,
                     int64_t start_id, uint32_t count_max, uint64_t *payload_offsets,
                     uint32_t *payload_sizes, uint32_t *count, int64_t *lac, uint64_t *length);

/* Entries put back where they are missing: stored entries, as a bookie gave them, become ADD
 * frames. Not a byte of them changes (LAC, length and digest are the writer's), so every
 * replica of an entry is the same. Digests are not looked at: check the entries first. */

/* Whether a body as above is made of whole entries that fit ADD frames: *count of them, and
 * *size, the bytes of their frames. BK_CORRUPT: it is not. */
int bk_readd_plan(const uint8_t *body, size_t body_size, uint32_t *count, uint64_t *size);
/* The frames of a body that was planned, into out. */
void bk_readd(uint8_t *out, const uint8_t *key, int32_t flags, const uint8_t *body,
              size_t body_size);
/* The frame of one stored entry, as in the body of a READ response. Its size is entry_size +
 * BK_ADD_HEADER_SIZE. */
void bk_frame_readd(uint8_t *out, const uint8_t *key, int32_t flags, const uint8_t *entry,
                    uint32_t entry_size);
/* Whether a stored entry of this size fits an ADD frame: 1 or 0. */
int bk_readd_fits(uint64_t entry_size);
