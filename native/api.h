/* The storage core of quire, in C11: bytes and files, no policy.
 *
 * This page and its sisters are the manual. Each header is read twice: by the
 * C compiler (through internal.h) and by cffi, so a declaration exists once.
 * They hold declarations, integer #defines and comments, nothing else.
 *
 *   api.h      the rules below, result codes, limits
 *   digest.h   checksums: of our records, of entries, the master key
 *   record.h   the record, the unit of journal, entry log and ledger table
 *   frame.h    the wire: every frame of protocol v2 and our own opcodes
 *   io.h       writing and syncing files, with faults injected by tests
 *   journal.h  the journal: files, groups, writer, scan
 *   table.h    the table of ledgers: key, fence, explicit LAC, tombstone
 *   store.h    entry logs and the index: flush, lookup, scan, compaction
 *   engine.h   the bookie's heart: frames in, memtable and journal, acks out
 *   link.h     the client's side: add frames out, acknowledgements in
 *   batch.h    the messages of one entry, by columns
 *   compacted.h  what compaction kept of many entries, in one
 *   latest.h   which message is the latest of its key
 *   gather.h   rows of many batches as columns of one
 *   checksum.h a checksum that is equal for equal messages
 *
 * result     0 on success; a negative errno when the operating system failed;
 *            a positive BK_ verdict when the bytes or the request are at fault.
 * ownership  a pointer argument is borrowed for the length of the call. The
 *            core copies what it keeps and never frees what it was lent.
 *            A handle from bk_x_open() is released once, by bk_x_close().
 * threads    one handle, one thread at a time, unless its header says more;
 *            the core has no mutable globals but what io.h has for tests.
 * blocking   only functions marked [blocks] touch the disk or wait.
 * integers   our own layouts are little-endian; what comes from BookKeeper's
 *            protocol (frames, stored entries) is big-endian. Ids are int64
 *            on the wire; a negative ledger id in a frame is a bad request.
 */

/* Verdicts. */
#define BK_OK 0
#define BK_CORRUPT 1    /* checksum or structure is wrong: damage, never absence */
#define BK_END 2        /* nothing more to scan; the end is a clean one */
#define BK_FULL 3       /* no room now; try again after the event that says so */
#define BK_ABSENT 4     /* the ledger is known and does not hold the entry */
#define BK_NO_LEDGER 5  /* the ledger is not known here */
#define BK_FENCED 6     /* the ledger is fenced; only recovery may add */
#define BK_BAD_KEY 7    /* the master key is not the ledger's */
#define BK_CLOSE 8      /* the peer broke the protocol: send what is left, close */
#define BK_AGAIN 9      /* needs the disk, and the caller forbade that */
#define BK_SMALL 10     /* the buffer lent is too small; the needed size is returned */
#define BK_READ_ONLY 11 /* the bookie takes no adds at present */
#define BK_OTHER_LEDGER 12 /* the id is that of another ledger here (table.h, INCARNATION) */
#define BK_ASK 13       /* whether there is such a ledger decides; the caller finds out */

/* Limits. */
#define BK_FRAME_SIZE_MAX 5242880   /* bytes after the length word of a frame */
#define BK_ENTRY_SIZE_MAX 5242832   /* bytes of a stored entry: frame.h says why */
#define BK_RECORD_SIZE_MAX 5242880  /* bytes in the body of a record */
#define BK_BLOCK_SIZE 4096          /* alignment of all direct writes, in bytes */
#define BK_KEY_SIZE 20              /* a master key, in bytes */
#define BK_ENTRY_HEADER_SIZE 32     /* ledger, entry, LAC, length: 8 bytes each */
#define BK_PATH_SIZE_MAX 1024       /* bytes of a path, with its NUL */
