/* All-reduce over ranks: exchange of openings (first messages), then of pieces. */
#include "device/ranks/all_reduce.h"

#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/memory.h"
#include "device/ranks/engine.h"

static mpg_engine *const engine = &mpg_the_engine;

enum {
  WHOLE = 32 << 10, /* maximum bytes of a small array, which is sent to all ranks */
  /* total size in bytes of the pieces, one from each rank, that are summed at a time */
  PIECES = 1 << 20,
  SMALLEST = 16 << 10,
  WINDOW = 4,  /* maximum number of messages in flight per stream */
  LINE = 64,   /* alignment of parts in bytes: a cache line */
  LOOKS = 256, /* number of polls without progress between checks for lost ranks */
};

/* Header of the first message that a rank sends in a sum. A small array or a failure text
 * follows. */
typedef struct opening {
  uint64_t magic, number, count;
  uint32_t item, dtype, failed, line;
  uint64_t names, unused;
  mpg_rank_step step;
} opening;
static const uint64_t MAGIC = 0x6d7067726d737532;
/* Size of the buffer for a first message. It fits the first message of any sum or transfer, because
 * the other rank may run a different call. */
enum { OPENING = MPG_HEADER + MPG_SMALL };
_Static_assert(sizeof(opening) % 16 == 0 && (int)MPG_NOTICE <= (int)WHOLE &&
                   sizeof(opening) + (int)WHOLE <= (int)OPENING && OPENING % 16 == 0,
               "data is aligned, and fits");

static char *take(mpg_room *r, size_t size) {
  if (size <= r->size) return r->memory;
  mpg_free(r->memory);
  *r = (mpg_room){.memory = mpg_malloc(size)};
  if (r->memory) r->size = size;
  return r->memory;
}

/* Sequence of messages of one kind to or from one rank. Messages `done` to `begun` - 1 are in
 * flight. Message k uses requests[k % WINDOW]. */
typedef struct stream {
  size_t begun, done, total;
  mpg_mpi_handle requests[WINDOW];
} stream;

/* The exchange with one other rank. `give` sends input for the partner's part. `take` receives
 * input for this rank's part. `tell` sends this rank's sums. `get` receives the partner's sums. */
typedef struct partner {
  int rank;
  stream give, take, tell, get;
} partner;

typedef struct run {
  const mpg_all_reduce *work;
  size_t piece;      /* maximum number of items per piece */
  size_t added;      /* number of summed pieces of this rank's part */
  partner *partners; /* all other ranks */
  const char **parts;
  int turns;
} run;

static int others(void) { return engine->size - 1; }

/* Returns the index of the first item in the part that `rank` sums. For `rank` == engine->size,
 * returns the number of items. */
static size_t part(const mpg_all_reduce *work, int rank) {
  size_t lines = (work->count * work->item + LINE - 1) / LINE, ranks = (size_t)engine->size;
  size_t each = lines / ranks, more = lines % ranks, r = (size_t)rank;
  size_t begin = (each * r + (r < more ? r : more)) * (LINE / work->item);
  return begin < work->count ? begin : work->count;
}

/* Returns the index of the first item in piece k of a rank's part. Sets *count to the number of
 * items in the piece. */
static size_t piece_of(const run *r, int rank, size_t k, size_t *count) {
  size_t begin = part(r->work, rank) + k * r->piece, end = part(r->work, rank + 1);
  *count = end - begin < r->piece ? end - begin : r->piece;
  return begin;
}
static size_t pieces_of(const run *r, int rank) {
  return (part(r->work, rank + 1) - part(r->work, rank) + r->piece - 1) / r->piece;
}

/* --- Messages --------------------------------------------------------------------------------- */

static int tag_of(uint64_t number) { return 1 + (int)(number % (uint64_t)engine->mpi.largest_tag); }

static mpg_status send(const void *data, size_t size, int rank, uint64_t number,
                       mpg_mpi_handle *request) {
  const mpg_mpi *mpi = &engine->mpi;
  return mpg_mpi_check(
      mpi, mpi->isend(data, (int)size, mpi->byte, rank, tag_of(number), mpi->communicator, request),
      "MPI_Isend");
}
static mpg_status receive(void *data, size_t size, int rank, uint64_t number,
                          mpg_mpi_handle *request) {
  const mpg_mpi *mpi = &engine->mpi;
  return mpg_mpi_check(
      mpi, mpi->irecv(data, (int)size, mpi->byte, rank, tag_of(number), mpi->communicator, request),
      "MPI_Irecv");
}

static mpg_status test(mpg_mpi_handle *request, bool *done) {
  _Alignas(16) char status[MPG_MPI_STATUS];
  int flag = 0;
  mpg_status result =
      mpg_mpi_check(&engine->mpi, engine->mpi.test(request, &flag, status), "MPI_Test");
  *done = flag;
  return result;
}

/* Advances s->done past the oldest messages in flight that are complete. Stops at the first
 * incomplete message. */
static mpg_status look(stream *s, bool *moved) {
  bool done = s->done < s->begun;
  while (done && s->done < s->begun) {
    MPG_TRY(test(&s->requests[s->done % WINDOW], &done));
    s->done += done;
    *moved |= done;
  }
  return MPG_OK;
}
static bool ready(const stream *s, size_t limit) {
  return s->begun < s->total && s->begun < limit && s->begun - s->done < WINDOW;
}

/* Fails if a rank is lost. If `all`, also marks all other ranks as awaited. */
static mpg_status look_for_lost(bool all) {
  char text[MPG_NOTICE] = "";
  pthread_mutex_lock(&engine->lock);
  for (int i = 0; i < engine->size; i++) {
    engine->peers[i].awaited |= all && i != engine->rank;
    if (!text[0]) snprintf(text, sizeof text, "%s", engine->peers[i].lost);
  }
  if (engine->stopping && !text[0]) snprintf(text, sizeof text, "the program has ended");
  pthread_mutex_unlock(&engine->lock);
  return text[0] ? mpg_fail(MPG_ERROR, "%s", text) : MPG_OK;
}

/* Pauses after a poll without progress. From time to time, marks `rank` as awaited and fails if a
 * rank is lost. */
static mpg_status wait(int *turns, int rank) {
  if (*turns % LOOKS == LOOKS - 1) {
    pthread_mutex_lock(&engine->lock);
    engine->peers[rank].awaited = true;
    atomic_store(&engine->summing, mpg_worker_device());
    pthread_mutex_unlock(&engine->lock);
    MPG_TRY(look_for_lost(false));
  }
  mpg_engine_pause(turns, MPG_POLLER_WORK);
  return MPG_OK;
}

static void wait_no_more(void) {
  pthread_mutex_lock(&engine->lock);
  for (int i = 0; i < engine->size; i++) engine->peers[i].awaited = false;
  atomic_store(&engine->summing, NULL);
  engine->turns++;
  pthread_mutex_unlock(&engine->lock);
}

static mpg_status finish(mpg_mpi_handle *request, int rank) {
  bool done = false;
  for (int turns = 0; !done;) {
    MPG_TRY(test(request, &done));
    if (!done) MPG_TRY(wait(&turns, rank));
  }
  return MPG_OK;
}

/* --- Openings --------------------------------------------------------------------------------- */

static const char *at_line(uint32_t key, char *text, size_t size) {
  char line[200] = "";
  uint32_t origin = key ? mpg_host_origin_of_key(key) : 0;
  if (origin) mpg_host_origin_text(origin, line, sizeof line);
  snprintf(text, size, "%s%s", line[0] ? " at " : "", line);
  return text;
}

static mpg_status check(const mpg_all_reduce *work, const char *said, int rank) {
  opening o;
  memcpy(&o, said, sizeof o);
  if (o.magic != MAGIC)
    return mpg_fail(MPG_ERROR,
                    "the ranks run different programs: rank %d sums arrays over ranks, but rank %d "
                    "sends an array",
                    engine->rank, rank);
  if (o.number != work->number || o.count != work->count || o.item != work->item ||
      o.dtype != work->dtype || o.names != work->names) {
    char here[240], there[240];
    return mpg_fail(
        MPG_ERROR,
        "the ranks run different programs: rank %d sums over ranks, as transfer %llu, %zu bytes of "
        "dtype %u%s, but rank %d sums, as transfer %llu, %llu bytes of dtype %u%s",
        engine->rank, (unsigned long long)work->number, work->count * work->item, work->dtype,
        at_line(work->line, here, sizeof here), rank, (unsigned long long)o.number,
        (unsigned long long)(o.count * o.item), o.dtype, at_line(o.line, there, sizeof there));
  }
  MPG_TRY(mpg_ranks_compare_steps(&work->step, &o.step, rank));
  if (o.failed) return mpg_fail(MPG_ERROR, "on rank %d: %.*s", rank, MPG_NOTICE, said + sizeof o);
  return MPG_OK;
}

/* Exchanges openings with all other ranks and checks them. If the array is small, its data follows
 * the opening. Sets *said to the received messages: rank i's message starts at byte i * OPENING. */
static mpg_status open(const mpg_all_reduce *work, const char *failure, char **said) {
  size_t own = (size_t)engine->rank * OPENING, ranks = (size_t)engine->size;
  size_t follows = work->count * work->item <= WHOLE ? work->count * work->item : 0;
  size_t size = ranks * OPENING + 2 * ranks * sizeof(mpg_mpi_handle);
  MPG_TRY(look_for_lost(false)); /* if a rank is lost, MPI may have been finalized */
  char *memory = take(&engine->openings, size);
  if (!memory) return mpg_out_of_host_memory(size);
  *said = memory;
  mpg_mpi_handle *sends = (mpg_mpi_handle *)(memory + ranks * OPENING), *receives = sends + ranks;
  const opening o = {.magic = MAGIC,
                     .number = work->number,
                     .count = work->count,
                     .item = (uint32_t)work->item,
                     .dtype = work->dtype,
                     .line = work->line,
                     .names = work->names,
                     .step = work->step,
                     .failed = failure != NULL};
  memcpy(memory + own, &o, sizeof o);
  if (failure)
    snprintf(memory + own + sizeof o, follows = MPG_NOTICE, "%s", failure);
  else if (follows)
    memcpy(memory + own + sizeof o, work->source, follows);
  mpg_status status = MPG_OK, first = MPG_OK;
  for (int i = 1; i <= others() && status == MPG_OK; i++) {
    int rank = (engine->rank + i) % engine->size;
    status = receive(memory + (size_t)rank * OPENING, OPENING, rank, work->number, &receives[rank]);
    if (status == MPG_OK)
      status = send(memory + own, sizeof o + follows, rank, work->number, &sends[rank]);
  }
  for (int i = 1; i <= others() && status == MPG_OK; i++) {
    int rank = (engine->rank + i) % engine->size;
    status = finish(&receives[rank], rank);
    if (status == MPG_OK) status = finish(&sends[rank], rank);
  }
  if (status != MPG_OK) { /* leaks the memory, because MPI may still use it */
    engine->openings = (mpg_room){0};
    return status;
  }
  for (int i = 0; i <= others() && first == MPG_OK && !failure; i++)
    if (i != engine->rank) first = check(work, memory + (size_t)i * OPENING, i);
  return first;
}

/* --- Pieces ----------------------------------------------------------------------------------- */

static char *place_of(const run *r, const partner *p, size_t k) {
  int index = (p->rank - engine->rank + engine->size) % engine->size - 1;
  return engine->arrived.memory + ((size_t)index * WINDOW + k % WINDOW) * r->piece * r->work->item;
}

static mpg_status advance(run *r, partner *p, bool *moved) {
  const mpg_all_reduce *work = r->work;
  size_t item = work->item, count;
  bool apart = work->source != work->target;
  MPG_TRY(look(&p->give, moved));
  MPG_TRY(look(&p->take, moved));
  MPG_TRY(look(&p->tell, moved));
  MPG_TRY(look(&p->get, moved));
  for (stream *s = &p->take; ready(s, r->added + WINDOW); s->begun++, *moved = true) {
    piece_of(r, engine->rank, s->begun, &count);
    MPG_TRY(receive(place_of(r, p, s->begun), count * item, p->rank, work->number,
                    &s->requests[s->begun % WINDOW]));
  }
  for (stream *s = &p->give; ready(s, s->total); s->begun++, *moved = true) {
    size_t begin = piece_of(r, p->rank, s->begun, &count);
    MPG_TRY(send(work->source + begin * item, count * item, p->rank, work->number,
                 &s->requests[s->begun % WINDOW]));
  }
  for (stream *s = &p->tell; ready(s, r->added); s->begun++, *moved = true) {
    size_t begin = piece_of(r, engine->rank, s->begun, &count);
    MPG_TRY(send(work->target + begin * item, count * item, p->rank, work->number + 1,
                 &s->requests[s->begun % WINDOW]));
  }
  for (stream *s = &p->get; ready(s, apart ? s->total : p->give.done); s->begun++, *moved = true) {
    size_t begin = piece_of(r, p->rank, s->begun, &count);
    MPG_TRY(receive(work->target + begin * item, count * item, p->rank, work->number + 1,
                    &s->requests[s->begun % WINDOW]));
  }
  return MPG_OK;
}

/* Sums the next piece of this rank's part if it has arrived from all ranks. */
static mpg_status add(run *r, bool *moved) {
  const mpg_all_reduce *work = r->work;
  size_t count, begin = piece_of(r, engine->rank, r->added, &count);
  for (int i = 0; i < others(); i++)
    if (r->partners[i].take.done <= r->added) return MPG_OK;
  for (int i = 0; i < others(); i++)
    r->parts[r->partners[i].rank] = place_of(r, &r->partners[i], r->added);
  r->parts[engine->rank] = work->source + begin * work->item;
  MPG_TRY(work->add(work->state, r->parts, work->target + begin * work->item, count));
  r->added++;
  *moved = true;
  return MPG_OK;
}

static bool over(const partner *p) {
  return p->give.done == p->give.total && p->take.done == p->take.total &&
         p->tell.done == p->tell.total && p->get.done == p->get.total;
}

static mpg_status sum_pieces(run *r) {
  size_t own = pieces_of(r, engine->rank);
  for (int i = 0; i < others(); i++) {
    partner *p = &r->partners[i];
    p->rank = (engine->rank + 1 + i) % engine->size;
    p->give.total = p->get.total = pieces_of(r, p->rank);
    p->take.total = p->tell.total = own;
  }
  for (int left = others(), turns = 0; left;) {
    bool moved = false;
    for (int i = 0; i < others(); i++) MPG_TRY(advance(r, &r->partners[i], &moved));
    if (r->added < own) MPG_TRY(add(r, &moved));
    while (left && over(&r->partners[left - 1])) left--;
    if (moved)
      turns = 0;
    else if (left)
      MPG_TRY(wait(&turns, r->partners[left - 1].rank));
  }
  return MPG_OK;
}

/* Cancels the stream's receives in flight. Returns true if MPI will no longer write to their
 * memory. */
static bool cancel(stream *s) {
  bool all = true;
  for (; s->done < s->begun; s->done++)
    all &= mpg_mpi_cancel(&engine->mpi, &s->requests[s->done % WINDOW]);
  return all;
}

static mpg_status sum_large(const mpg_all_reduce *work) {
  size_t ranks = (size_t)engine->size, bytes = PIECES / ranks;
  if (bytes < SMALLEST) bytes = SMALLEST;
  run r = {.work = work, .piece = bytes / LINE * (LINE / work->item)};
  size_t size = (ranks - 1) * WINDOW * r.piece * work->item;
  if (!take(&engine->arrived, size)) return mpg_out_of_host_memory(size);
  r.partners = mpg_calloc(ranks, sizeof *r.partners);
  r.parts = mpg_calloc(ranks, sizeof *r.parts);
  mpg_status status = r.partners && r.parts ? sum_pieces(&r) : mpg_out_of_host_memory(ranks);
  bool kept = false; /* MPI may still use some of the buffers, which are then leaked */
  for (int i = 0; status != MPG_OK && r.partners && i < others(); i++) {
    kept |= !cancel(&r.partners[i].take);
    kept |= !cancel(&r.partners[i].get);
    kept |= r.partners[i].tell.done < r.partners[i].tell.begun;
    kept |= r.partners[i].give.done < r.partners[i].give.begun;
  }
  if (kept) engine->arrived = engine->joined = (mpg_room){0};
  mpg_free(r.partners);
  mpg_free(r.parts);
  return status;
}

static mpg_status sum_small(const mpg_all_reduce *work, const char *said) {
  const char **parts = mpg_calloc((size_t)engine->size, sizeof *parts);
  if (!parts) return mpg_out_of_host_memory((size_t)engine->size * sizeof *parts);
  for (int i = 0; i < engine->size; i++) parts[i] = said + (size_t)i * OPENING + sizeof(opening);
  mpg_status status = work->add(work->state, parts, work->target, work->count);
  mpg_free(parts);
  return status;
}

/* Returns MPI's handle for the dtype. Returns 0 if sums must be in rank order or if MPI cannot sum
 * the dtype. */
static mpg_mpi_handle type_of(const mpg_all_reduce *work) {
  const mpg_mpi *mpi = &engine->mpi;
  size_t count = sizeof mpi->types / sizeof *mpi->types;
  return mpi->any_order && work->dtype < count ? mpi->types[work->dtype] : 0;
}

static mpg_status sum_by_mpi(const mpg_all_reduce *work) {
  const mpg_mpi *mpi = &engine->mpi;
  for (size_t begin = 0, count; begin < work->count; begin += count) {
    mpg_mpi_handle request;
    count = work->count - begin < MPG_PIECE ? work->count - begin : MPG_PIECE;
    const void *source =
        work->source == work->target ? mpi->in_place : work->source + begin * work->item;
    MPG_TRY(mpg_mpi_check(mpi,
                          mpi->iallreduce(source, work->target + begin * work->item, (int)count,
                                          type_of(work), mpi->sum, mpi->communicator, &request),
                          "MPI_Iallreduce"));
    MPG_TRY(finish(&request, (engine->rank + 1) % engine->size));
  }
  return MPG_OK;
}

mpg_status mpg_all_reduce_run(const mpg_all_reduce *work) {
  char *said;
  atomic_fetch_add(&engine->sums_running, 1);
  mpg_status status = open(work, NULL, &said);
  if (status == MPG_OK)
    status = work->count * work->item <= WHOLE ? sum_small(work, said)
             : type_of(work)                   ? sum_by_mpi(work)
                                               : sum_large(work);
  wait_no_more();
  atomic_fetch_sub(&engine->sums_running, 1);
  return status;
}

mpg_status mpg_all_reduce_until(mpg_status (*look)(void *state, bool *done), void *state) {
  bool done = false;
  mpg_status status = MPG_OK;
  for (int turns = 0; !done && status == MPG_OK;) {
    status = look(state, &done);
    if (done || status != MPG_OK) break;
    if (turns % LOOKS == LOOKS - 1) status = look_for_lost(true);
    mpg_engine_pause(&turns, MPG_POLLER_WORK);
  }
  wait_no_more();
  return status;
}

char *mpg_all_reduce_room(size_t size) { return take(&engine->joined, size); }

void mpg_all_reduce_fail(const mpg_all_reduce *work) {
  char text[MPG_NOTICE], *said;
  snprintf(text, sizeof text, "%s", mpg_error_text());
  atomic_fetch_add(&engine->sums_running, 1);
  (void)open(work, text, &said); /* may fail for lost ranks, which need no notification */
  wait_no_more();
  atomic_fetch_sub(&engine->sums_running, 1);
}
