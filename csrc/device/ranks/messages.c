/* Messages between ranks: headers, data in pieces, failure notices, and reports. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/ranks/engine.h"

typedef struct header {
  uint64_t magic, number, size;
  mpg_device_id from, to;
  uint32_t failed; /* a failure text follows the header instead of data */
  uint32_t unused;
  mpg_rank_call call;
} header;
_Static_assert(sizeof(header) <= MPG_HEADER, "it fits");

static const uint64_t MAGIC = 0x6d7067726d736731;

static mpg_engine *const engine = &mpg_the_engine;

static int tag_of(uint64_t number) { return 1 + (int)(number % (uint64_t)engine->mpi.largest_tag); }

enum { SPARE = sizeof engine->spare / sizeof engine->spare[0] };

static char *take_memory(size_t size) {
  for (int i = 0; i < SPARE; i++) {
    char *memory = engine->spare[i].memory;
    if (!memory || engine->spare[i].size != size) continue;
    engine->spare[i].memory = NULL;
    return memory;
  }
  return mpg_malloc(size);
}

static void give_back(char *memory, size_t size) {
  int place = 0;
  while (place < SPARE && engine->spare[place].memory) place++;
  if (place == SPARE) { /* all slots are in use, so frees the oldest memory */
    mpg_free(engine->spare[0].memory);
    for (int i = 1; i < SPARE; i++) engine->spare[i - 1] = engine->spare[i];
    place = SPARE - 1;
  }
  engine->spare[place].memory = memory;
  engine->spare[place].size = size;
}

enum { UNUSED = 16 }; /* maximum length of the free list */

static void really_free(mpg_message *message) {
  if (message->requests != message->few) mpg_free(message->requests);
  mpg_free(message->buffer);
  mpg_free(message);
}

bool mpg_message_free(mpg_message *message) {
  if (message->sends) engine->bytes_in_flight -= message->buffer_size + message->transfer.size;
  if (message->num_tested < message->num_requests) return false;
  if (message->sends && message->data) give_back(message->data, message->transfer.size);
  if (engine->num_unused == UNUSED) {
    really_free(message);
    return true;
  }
  message->next = engine->unused;
  engine->unused = message;
  engine->num_unused++;
  return true;
}

/* Grows the arrays in engine->looked_at to at least `count` entries. Keeps their contents, because
 * mpg_messages_advance itself may cause this call. */
static mpg_status make_room_to_look(int count) {
  if (count <= engine->looked_at.room) return MPG_OK;
  size_t room = 2 * (size_t)count;
  void *messages = mpg_realloc(engine->looked_at.messages, room * sizeof(mpg_message *));
  if (messages) engine->looked_at.messages = messages;
  void *requests = mpg_realloc(engine->looked_at.requests, room * sizeof(mpg_mpi_handle));
  if (requests) engine->looked_at.requests = requests;
  if (!messages || !requests) return mpg_out_of_host_memory(room * sizeof(mpg_mpi_handle));
  engine->looked_at.room = (int)room;
  return MPG_OK;
}

static mpg_status new_message(int rank, size_t buffer_size, int num_requests,
                              mpg_message **result) {
  MPG_TRY(make_room_to_look(engine->num_in_flight + 1));
  mpg_message *m = engine->unused;
  if (m) {
    engine->unused = m->next;
    engine->num_unused--;
    if (m->requests != m->few) mpg_free(m->requests);
  } else if (!(m = mpg_malloc(sizeof *m))) {
    return mpg_out_of_host_memory(sizeof *m);
  } else {
    m->buffer = NULL;
    m->buffer_room = 0;
  }
  char *buffer = m->buffer;
  size_t room = m->buffer_room;
  memset(m, 0, offsetof(mpg_message, text));
  m->requests = m->few;
  m->text[0] = 0;
  m->rank = rank;
  m->buffer = buffer;
  m->buffer_room = room;
  m->buffer_size = buffer_size;
  if (num_requests > (int)(sizeof m->few / sizeof m->few[0]))
    m->requests = mpg_calloc((size_t)num_requests, sizeof *m->requests);
  if (buffer_size > room) {
    mpg_free(buffer);
    m->buffer = mpg_malloc(buffer_size);
    m->buffer_room = buffer_size;
  }
  if (!m->buffer || !m->requests) {
    really_free(m);
    return mpg_out_of_host_memory(buffer_size);
  }
  *result = m;
  return MPG_OK;
}

static int pieces_of(size_t size) {
  return size > MPG_SMALL ? (int)((size + MPG_PIECE - 1) / MPG_PIECE) : 0;
}
static int piece_size(size_t size, int piece) {
  size_t left = size - (size_t)piece * MPG_PIECE;
  return (int)(left < MPG_PIECE ? left : MPG_PIECE);
}

static mpg_status isend(mpg_message *m, const void *data, int size, int tag) {
  return mpg_mpi_check(&engine->mpi,
                       engine->mpi.isend(data, size, engine->mpi.byte, m->rank, tag,
                                         engine->mpi.communicator, &m->requests[m->num_requests++]),
                       "MPI_Isend");
}
static mpg_status irecv(mpg_message *m, void *data, int size, int tag) {
  return mpg_mpi_check(&engine->mpi,
                       engine->mpi.irecv(data, size, engine->mpi.byte, m->rank, tag,
                                         engine->mpi.communicator, &m->requests[m->num_requests++]),
                       "MPI_Irecv");
}

typedef struct news {
  uint64_t magic;
  uint32_t kind; /* an mpg_news */
  uint32_t unused;
  uint64_t steps, serial, waits_for;
  int64_t stood_ns;
  mpg_rank_end end;
  char text[MPG_NOTICE];
} news;

static void add_in_flight(mpg_message *message) {
  message->next = engine->in_flight;
  engine->in_flight = message;
  engine->num_in_flight++;
}

/* Tests the requests of a send. Sets *left if all are complete; MPI then no longer needs the
 * data. */
static mpg_status look_whether_left(mpg_message *m, bool *left) {
  for (int done = 1; m->num_tested < m->num_requests; m->num_tested++) {
    _Alignas(16) char status[MPG_MPI_STATUS];
    MPG_TRY(mpg_mpi_check(
        &engine->mpi, engine->mpi.test(&m->requests[m->num_tested], &done, status), "MPI_Test"));
    if (!done) return MPG_OK;
  }
  *left = true;
  return MPG_OK;
}

mpg_status mpg_message_send(const mpg_transfer *transfer, int rank, uint64_t number,
                            const void *data, const char *failure) {
  size_t size = failure ? 0 : transfer->size, small = size <= MPG_SMALL ? size : 0;
  size_t length = failure ? strnlen(failure, MPG_NOTICE - 1) : 0;
  mpg_message *m;
  mpg_status status = MPG_OK;
  bool left = false;
  if (engine->peers[rank].lost[0]) return mpg_fail(MPG_ERROR, "%s", engine->peers[rank].lost);
  MPG_TRY(new_message(rank, MPG_HEADER + (failure ? length + 1 : small), 1 + pieces_of(size), &m));
  m->sends = true;
  m->transfer.size = size - small;
  engine->bytes_in_flight += m->buffer_size + m->transfer.size;
  const header head = {.magic = MAGIC,
                       .number = number,
                       .size = transfer->size,
                       .from = transfer->from,
                       .to = transfer->to,
                       .call = transfer->call,
                       .failed = failure != NULL};
  memset(m->buffer, 0, MPG_HEADER);
  memcpy(m->buffer, &head, sizeof head);
  if (failure) {
    memcpy(m->buffer + MPG_HEADER, failure, length);
    m->buffer[MPG_HEADER + length] = 0;
  } else if (small) {
    memcpy(m->buffer + MPG_HEADER, data, small);
  } else if (size) {
    m->data = take_memory(size);
    if (!m->data) MPG_GOTO(mpg_out_of_host_memory(size));
    memcpy(m->data, data, size);
  }
  MPG_GOTO(isend(m, m->buffer, (int)m->buffer_size, tag_of(number)));
  for (int i = 0; m->data && i < pieces_of(size); i++)
    MPG_GOTO(isend(m, m->data + (size_t)i * MPG_PIECE, piece_size(size, i), tag_of(number)));
  engine->sent++;
  engine->peers[rank].sent++;
  engine->bytes_sent += size;
  MPG_GOTO(look_whether_left(m, &left));
  if (left) /* the usual case for small messages */
    mpg_message_free(m);
  else
    add_in_flight(m);
  return MPG_OK;
fail:
  /* MPI may still read the message. Marks a request as incomplete, so that mpg_message_free does
   * not reuse the memory. */
  if (m->num_requests) m->num_tested = m->num_requests - 1;
  mpg_message_free(m);
  return status;
}

mpg_status mpg_message_receive(const mpg_transfer *transfer, void *target, mpg_message **message) {
  int rank = mpg_device_rank(transfer->from);
  mpg_message *m;
  if (engine->peers[rank].lost[0]) return mpg_fail(MPG_ERROR, "%s", engine->peers[rank].lost);
  /* The buffer fits any header with small data, because a rank that runs a different program may
   * send more than this rank expects. */
  MPG_TRY(new_message(rank, MPG_HEADER + MPG_SMALL, 1 + pieces_of(transfer->size), &m));
  m->transfer = *transfer;
  /* A broadcast uses one number per receiving rank. */
  if (!transfer->to.rank) m->transfer.number += (uint64_t)engine->rank;
  m->target = target;
  mpg_status status = irecv(m, m->buffer, (int)m->buffer_size, tag_of(m->transfer.number));
  if (status != MPG_OK) {
    mpg_message_free(m);
    return status;
  }
  add_in_flight(m);
  *message = m;
  return MPG_OK;
}

mpg_status mpg_news_listen(int rank) {
  mpg_message *m;
  MPG_TRY(new_message(rank, sizeof(news), 1, &m));
  m->control = true;
  mpg_status status = irecv(m, m->buffer, (int)sizeof(news), MPG_CONTROL_TAG);
  if (status == MPG_OK) add_in_flight(m);
  return status;
}

mpg_status mpg_news_tell(int rank, mpg_news kind, const char *text) {
  mpg_message *m;
  MPG_TRY(new_message(rank, sizeof(news), 1, &m));
  m->control = m->sends = true;
  engine->bytes_in_flight += m->buffer_size;
  const mpg_peer *own = &engine->peers[engine->rank];
  const mpg_rank_state *standing = &own->standing;
  news said = {.magic = MAGIC,
               .kind = kind,
               .steps = own->steps,
               .serial = standing->serial,
               .waits_for = standing->waits_for,
               .stood_ns = standing->since_ns ? mpg_clock_ns() - standing->since_ns : -1};
  if (kind == MPG_NEWS_ENDED) said.end = mpg_rank_end_of(rank);
  if (kind == MPG_NEWS_ALIVE)
    text = standing->since_ns ? standing->text : mpg_scope_text(engine->scope);
  snprintf(said.text, sizeof said.text, "%s", text);
  memcpy(m->buffer, &said, sizeof said);
  mpg_status status = isend(m, m->buffer, (int)sizeof said, MPG_CONTROL_TAG);
  if (status == MPG_OK) add_in_flight(m);
  return status;
}

/* Handles a report from another rank. */
static void hear(const mpg_message *m) {
  news heard;
  memcpy(&heard, m->buffer, sizeof heard);
  heard.text[MPG_NOTICE - 1] = 0;
  if (heard.magic != MAGIC) return;
  mpg_peer *peer = &engine->peers[m->rank];
  if (heard.kind == MPG_NEWS_ALIVE) {
    peer->steps = heard.steps;
    peer->standing =
        (mpg_rank_state){.since_ns = heard.stood_ns < 0 ? 0 : mpg_clock_ns() - heard.stood_ns,
                         .waits_for = heard.waits_for,
                         .serial = heard.serial};
    snprintf(peer->standing.text, sizeof peer->standing.text, "%.200s", heard.text);
  }
  if (heard.kind == MPG_NEWS_STUCK)
    for (int i = 0; i < engine->size; i++)
      if (i != engine->rank) mpg_peer_lost(i, heard.text);
  if (heard.kind == MPG_NEWS_ENDED || heard.kind == MPG_NEWS_FAILED)
    peer->ended_ns = mpg_clock_ns();
  if (heard.kind == MPG_NEWS_ENDED) peer->end = heard.end;
  if (heard.kind == MPG_NEWS_FAILED)
    snprintf(engine->peers[m->rank].failed, MPG_NOTICE, "%s",
             heard.text[0] ? heard.text : "an error without a message");
  /* If listening fails, no more reports arrive, so the rank is eventually treated as silent. */
  if (heard.kind == MPG_NEWS_ALIVE || heard.kind == MPG_NEWS_STUCK) (void)mpg_news_listen(m->rank);
}

/* Fails a message because its rank is lost. Cancels a receive, so that its memory can be freed. */
static void give_up(mpg_message *m, const char *text) {
  engine->gave_up = true;
  m->done = true;
  m->status = MPG_ERROR;
  snprintf(m->text, sizeof m->text, "%s", text);
  while (!m->sends && m->num_tested < m->num_requests &&
         mpg_mpi_cancel(&engine->mpi, &m->requests[m->num_tested]))
    m->num_tested++;
}

static bool any_failed(void) {
  for (int i = 0; i < mpg_device_count(); i++)
    if (mpg_device_has_failed(mpg_device_at(i))) return true;
  return false;
}

mpg_rank_end mpg_rank_end_of(int rank) {
  return (mpg_rank_end){.numbers = engine->next_number,
                        .sent = engine->peers[rank].sent,
                        .step = mpg_ranks_step(),
                        .failures = any_failed()};
}

void mpg_peer_lost(int rank, const char *text) {
  mpg_peer *peer = &engine->peers[rank];
  if (peer->lost[0]) return;
  snprintf(peer->lost, MPG_NOTICE, "%s", text);
  for (mpg_message *m = engine->in_flight; m; m = m->next) {
    if (m->rank != rank || m->control || m->done) continue;
    give_up(m, peer->lost);
  }
}

void mpg_peers_lost(const char *text) {
  for (int i = 0; i < engine->size && engine->peers; i++) {
    if (i == engine->rank) continue;
    if (!engine->peers[i].ended_ns && !engine->peers[i].lost[0])
      (void)mpg_news_tell(i, MPG_NEWS_STUCK, text);
    mpg_peer_lost(i, text);
  }
}

static void finish(mpg_message *m, mpg_status status) {
  m->done = true;
  m->status = status;
  if (status != MPG_OK) snprintf(m->text, sizeof m->text, "%s", mpg_error_text());
}

/* Checks that the message is the expected one. If the sender made a different call, aborts all
 * ranks. */
static mpg_status check_header(const mpg_message *m, const header *head) {
  if (head->magic != MAGIC)
    return mpg_fail(MPG_ERROR,
                    "rank %d sent an unknown message; it runs a different version of mpgluon",
                    m->rank);
  const mpg_transfer sent = {head->from, head->to, head->number, (size_t)head->size, head->call};
  mpg_status status = mpg_ranks_compare_calls(&m->transfer, &sent, m->rank);
  if (status != MPG_OK) mpg_peers_lost(mpg_error_text()); /* all later results would be wrong */
  return status;
}

/* Checks the header of a receive, copies small data, and starts to receive large data. */
static mpg_status begin_body(mpg_message *m) {
  header head;
  memcpy(&head, m->buffer, sizeof head);
  MPG_TRY(check_header(m, &head));
  if (head.failed) {
    m->buffer[m->buffer_size - 1] = 0;
    return mpg_fail(MPG_ERROR, "on rank %d: %s", m->rank, m->buffer + MPG_HEADER);
  }
  size_t size = m->transfer.size;
  m->body = true;
  if (size && size <= MPG_SMALL) memcpy(m->target, m->buffer + MPG_HEADER, size);
  for (int i = 0; i < pieces_of(size); i++)
    MPG_TRY(irecv(m, m->target + (size_t)i * MPG_PIECE, piece_size(size, i),
                  tag_of(m->transfer.number)));
  return MPG_OK;
}

/* Handles the completion or failure of the message's next request. After the last request, finishes
 * the message. */
static void pass(mpg_message *m, mpg_status result) {
  if (m->done) { /* the message was abandoned, because its rank is lost */
    m->num_tested += result == MPG_OK;
    return;
  }
  if (result == MPG_OK) {
    m->num_tested++;
    /* Only a receive shows that the rank is alive. A send may complete without the receiver,
     * because MPICH copies data into shared memory. */
    if (!m->sends) engine->peers[m->rank].heard_ns = mpg_clock_ns();
    if (!m->sends && !m->body && !m->control) {
      engine->peers[m->rank].received++;
      result = begin_body(m);
    }
  }
  if (result == MPG_OK && m->num_tested < m->num_requests) return;
  if (result == MPG_OK && m->control && !m->sends) hear(m);
  if (result == MPG_OK && !m->sends && !m->control) {
    engine->received++;
    engine->bytes_received += m->transfer.size;
  }
  finish(m, result);
}

/* --- Polling ---------------------------------------------------------------------------------- */

/* Removes finished messages from the list and frees them, except receives, which the waiting work
 * frees. */
static void drop_done(void) {
  for (mpg_message **link = &engine->in_flight; *link;) {
    mpg_message *m = *link;
    if (!m->done) {
      link = &m->next;
      continue;
    }
    *link = m->next;
    engine->num_in_flight--;
    if (m->sends || m->control) mpg_message_free(m);
  }
}

static void put_request(int place, const mpg_message *m) {
  char *requests = engine->looked_at.requests;
  size_t size = (size_t)engine->mpi.handle_size;
  /* Handles are stored in little-endian order, so the first `size` bytes are the handle. */
  memcpy(requests + (size_t)place * size, &m->requests[m->num_tested], size);
}

/* Tests the requests of all messages by MPI_Testany rather than one by one, because each MPI call
 * polls the network, which takes microseconds. */
bool mpg_messages_advance(void) {
  int count = 0;
  bool moved = false;
  drop_done();
  if (!engine->in_flight || engine->stopping) return false; /* MPI may have been finalized */
  engine->gave_up = false;
  for (mpg_message *m = engine->in_flight; m; m = m->next) {
    engine->looked_at.messages[count] = m;
    put_request(count++, m);
  }
  for (;;) {
    _Alignas(16) char status[MPG_MPI_STATUS];
    int done = 0, index = -1;
    mpg_status result = mpg_mpi_check(
        &engine->mpi, engine->mpi.testany(count, engine->looked_at.requests, &index, &done, status),
        "MPI_Testany");
    if (result == MPG_OK && (!done || index < 0)) break;
    mpg_message *m = engine->looked_at.messages[index < 0 ? 0 : index];
    pass(m, result);
    moved = true;
    /* Stops after requests were canceled, because the array still contains them. */
    if (result != MPG_OK || engine->gave_up) break;
    if (!m->done) put_request(index, m); /* otherwise MPI has set the entry to MPI_REQUEST_NULL */
  }
  drop_done();
  return moved;
}
