/* What the files of the engine do with its state. */
#ifndef BK_ENGINE_INTERNAL_H
#define BK_ENGINE_INTERNAL_H

#include "engine_state_internal.h"

/* engine.c; all with the lock held */
/* Finish the group that gathers: header, padding, its place in the journal. */
int bk_engine_close_group(bk_engine *engine);
int bk_engine_reserve(bk_engine *engine, uint32_t record_size); /* 0, BK_FULL, -errno */
uint8_t *bk_engine_append(bk_engine *engine, uint32_t record_size, uint64_t *offset);
int bk_engine_append_special(bk_engine *engine, int64_t ledger_id, int64_t kind, const void *rest,
                             uint32_t rest_size);
int bk_engine_mark_dirty(bk_engine *engine, bk_ledger *ledger);
void bk_engine_raise(bk_engine *engine, uint32_t events);
void bk_engine_wake(bk_engine *engine, bk_ledger *ledger);
int bk_engine_raise_ready(bk_engine *engine, bk_connection *connection);
int bk_engine_put(bk_engine *engine, bk_ledger *ledger, int64_t entry_id, uint64_t offset,
                  uint32_t record_size);
/* The record in memory, or NULL. */
const uint8_t *bk_engine_find(bk_engine *engine, const bk_ledger *ledger, int64_t entry_id,
                              uint32_t *record_size);
void bk_histogram_add(bk_histogram *histogram, uint64_t value, uint64_t count);
void bk_histogram_add_ns(bk_histogram *histogram, uint64_t ns, uint64_t count);
/* Close the active half and begin the other. BK_FULL: that one is not free. */
int bk_engine_swap(bk_engine *engine);
void bk_engine_activate(bk_engine *engine, int half);
/* commit.c: the journal thread; argument is the engine. */
void *bk_engine_run(void *argument);
/* incarnation.c, with the lock held. Whether a request for a ledger of this incarnation is about
 * another ledger than the one that is here. */
int bk_ledger_is_other(const bk_ledger *ledger, int64_t incarnation);
/* Make the ledger known; INCARNATION goes to the journal when one is given. BK_FULL; -errno. */
int bk_engine_make_ledger(bk_engine *engine, int64_t ledger_id, int64_t incarnation,
                          bk_ledger **out);
/* What BK_RECORD_INCARNATION says, of a ledger without entries in memory. */
void bk_ledger_renew(bk_ledger *ledger, int64_t incarnation, uint32_t first_log);
/* newcomer.c. Whether a frame from a peer that does not say which ledger it means may make that
 * one, or give it its key. BK_ASK; otherwise *code is 0, or that with which it is refused. */
int bk_newcomer_judge(bk_connection *connection, const bk_ledger *ledger, int64_t ledger_id,
                      const uint8_t *key, int32_t *code);
/* The incarnation of the ledger that a frame of this connection makes. */
int64_t bk_newcomer_incarnation(const bk_connection *connection, int64_t ledger_id);
/* duplicate.c. Whether two stored entries with the same ids are the same entry. */
int bk_entries_agree(const uint8_t *a, uint32_t a_size, const uint8_t *b, uint32_t b_size);
/* What to do with an entry that may be here already. BK_OK: store it; BK_END: it is here, and
 * the same; BK_CORRUPT: another one is here; BK_AGAIN: it must be read from the disk. */
int bk_connection_judge(bk_connection *connection, const bk_ledger *ledger, int64_t entry_id,
                        const uint8_t *entry, uint32_t entry_size, int32_t flags);
/* Give its memory back; what was looked up counts no more. */
void bk_original_forget(bk_original *original);
/* tombstone.c, with the lock held. */
void bk_tombstone_set(bk_ledger *ledger, int deleted, int64_t deleted_ms);
/* Forget the entries that a ledger, deleted or replaced by another, still has in memory:
 * what is added from now on is stored, though the same entry is there. BK_FULL: some are in a
 * sealed half; the flush takes them away. */
int bk_engine_bury(bk_engine *engine, bk_ledger *ledger);
/* Bring a deleted ledger back, without entries and fenced. BK_FULL: try again later. */
int bk_engine_revive(bk_engine *engine, bk_ledger *ledger, const uint8_t *key);
/* checkpoint.c; without the lock. Write the sealed half out and give it back. */
int bk_engine_write_out(bk_engine *engine, bk_half *half, bk_mark *mark);
/* Open the table file for appending, cut off at table_end. */
int bk_engine_open_table(bk_engine *engine);
/* replay.c: load the table, list the store's ledgers, replay the journal. */
int bk_engine_recover(bk_engine *engine, const bk_mark *mark, bk_recovery *recovery,
                      uint64_t *last_id, uint64_t *last_end);
/* connection.c: what a sync made ready. */
void bk_connection_publish(bk_connection *connection, uint64_t synced, uint64_t now_ns);

#endif
