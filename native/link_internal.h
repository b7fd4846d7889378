/* What writer.c and link.c share: how the two hold on to each other.
 *
 * An attachment is the bond of one writer with one link. Both list it, and
 * whichever is closed first takes it out of the other's list, so neither ever
 * follows a pointer to what is gone. */
#ifndef BK_LINK_INTERNAL_H
#define BK_LINK_INTERNAL_H

#include "internal.h"

typedef struct bk_attachment {
    bk_writer *writer;
    bk_link *link;
    int64_t ledger_id;
    uint32_t bookie;
    uint32_t dirty;                /* 1 + its place in the link's dirty list; 0: not there */
    struct bk_attachment *sibling; /* next of the same writer */
    struct bk_attachment *next;    /* next in the same bucket of the link */
} bk_attachment;

/* Take in an acknowledgement; 1 if the LAC or the error changed. */
int bk_writer_take(bk_writer *writer, uint32_t bookie, int64_t entry_id, int32_t code);
int64_t bk_writer_ledger(const bk_writer *writer);
uint64_t bk_writer_token(const bk_writer *writer);
uint32_t bk_writer_ensemble_size(const bk_writer *writer);
/* Put an attachment into the writer's list, or take it out. */
void bk_writer_bind(bk_writer *writer, bk_attachment *attachment);
void bk_writer_unbind(bk_writer *writer, bk_attachment *attachment);
/* The writer goes: take the attachment out of its link and free it. */
void bk_link_drop(bk_attachment *attachment);

#endif
