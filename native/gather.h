/* Rows of many batches gathered as columns of one.
 *
 * A gatherer owns growing buffers and copies into them: strings back to back, with offsets
 * from 0 on. A view of it is lent until the next call. Columns that no message had are not
 * there; in a column that some had, the others are null. */
typedef struct bk_gather bk_gather;

typedef struct {
  uint64_t count;
  uint64_t header_count;
  uint64_t size; /* bytes that a batch of all of it takes, nearly and rather too many */
  const uint8_t *value_offsets, *value_data, *value_validity; /* validity NULL: none is null */
  const uint8_t *key_offsets, *key_data, *key_validity;       /* key_offsets NULL: no keys */
  const uint8_t *event_times, *event_time_validity;           /* NULL: none */
  const uint8_t *timestamps;                                  /* NULL: none */
  const uint8_t *header_offsets, *name_offsets, *name_data;   /* NULL: none */
  const uint8_t *header_value_offsets, *header_value_data;
  uint64_t value_size, key_size, name_size, header_value_size;
} bk_gather_view;

int bk_gather_open(bk_gather **out);
void bk_gather_close(bk_gather *gather);
void bk_gather_clear(bk_gather *gather);

/* Copy the messages that rows names, count uint32, from *taken on, while all that was gathered
 * has at most size_max bytes; the first one in any case. *taken becomes the place of the first that was not copied.
 * BK_CORRUPT: an offset or a row is out of bounds. -ENOMEM. What was copied before a failure
 * is unknown: clear it. */
int bk_gather_add(bk_gather *gather, const bk_columns *columns, const void *rows, uint64_t count,
                  uint64_t size_max, uint64_t *taken);
/* The columns so far; valid until the next call. */
void bk_gather_view_columns(bk_gather *gather, bk_gather_view *view);
