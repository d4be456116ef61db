/* Internals shared by the files of this folder: the engine's state and its messages.
 *
 * Everything here is protected by the engine's lock, which is held only briefly, because MPI calls
 * do not block.
 */
#ifndef MPG_DEVICE_RANKS_ENGINE_H
#define MPG_DEVICE_RANKS_ENGINE_H

#include <pthread.h>

#include "device/internal.h"
#include "device/ranks/ranks.h"

enum {
  MPG_HEADER = 176,     /* bytes before the data of a message */
  MPG_NOTICE = 1024,    /* bytes of a failure text */
  MPG_SMALL = 64 << 10, /* data up to this size is sent with its header in one message */
  MPG_PIECE = 1 << 30,  /* larger data is sent in pieces of this many bytes */
  MPG_CONTROL_TAG = 0,  /* tag of control messages; tags of transfers are 1 and above */
};

typedef struct mpg_message mpg_message;
struct mpg_message {
  mpg_message *next; /* list of messages in flight */
  int rank;          /* the sending or receiving rank */
  bool sends, control, done;
  mpg_status status;               /* valid if done */
  mpg_transfer transfer;           /* expected by a receive */
  char *buffer;                    /* header, then small data or a notice; owned */
  size_t buffer_size, buffer_room; /* bytes in use, and bytes allocated */
  char *data;                      /* large data; owned by a send */
  char *target;                    /* target of a receive */
  bool body;                       /* a receive that has its header and waits for the data */
  int num_requests, num_tested;    /* requests before num_tested are complete */
  mpg_mpi_handle *requests;        /* points to `few`, or owned */
  mpg_mpi_handle few[2];
  char text[MPG_NOTICE]; /* the error if it failed */
};

/* The wait state of a rank, for deadlock detection (deadlock.h). */
typedef struct mpg_rank_state {
  int64_t since_ns;          /* start of the wait, by this process's clock; 0 means not waiting */
  uint64_t waits_for;        /* set of ranks */
  uint64_t serial;           /* progress counter; unchanged while the rank makes no progress */
  char text[MPG_NOTICE / 2]; /* the event it waits for; if it does not wait, its latest block */
} mpg_rank_state;

/* A rank's summary of its whole run, sent to each other rank when its script ends. */
typedef struct mpg_rank_end {
  uint64_t numbers; /* number of transfers queued */
  uint64_t sent;    /* number of messages to the receiving rank */
  mpg_rank_step step;
  bool failures; /* some work has failed, so messages may be missing */
} mpg_rank_end;

typedef struct mpg_peer {
  char lost[MPG_NOTICE]; /* the reason if it is lost, else empty */
  /* The error text if its script has failed, else empty. Messages sent earlier may still arrive. */
  char failed[MPG_NOTICE];
  int64_t heard_ns;        /* time of the last message from it */
  bool awaited;            /* a sum over ranks waits for it */
  mpg_rank_state standing; /* also valid for this rank itself */
  uint64_t steps;          /* number of training steps begun */
  int64_t ended_ns;        /* time when it reported the end of its script; 0 means running */
  uint64_t sent, received; /* number of transfer messages to and from the peer */
  mpg_rank_end end;        /* the peer's summary, valid once its script has ended */
} mpg_peer;

/* Memory that is reused between sums over ranks. */
typedef struct mpg_room {
  char *memory;
  size_t size;
} mpg_room;

/* Every rank periodically reports to all other ranks that it is alive, and finally how it ended. */
typedef enum mpg_news { MPG_NEWS_ALIVE, MPG_NEWS_ENDED, MPG_NEWS_FAILED, MPG_NEWS_STUCK } mpg_news;

typedef struct mpg_engine {
  mpg_mpi mpi;
  int rank, size;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* the thread has work */
  pthread_t thread;
  pthread_t watch; /* ends the process if MPI does not begin or end in time */
  bool beginning;
  pthread_cond_t begun;
  bool started, stopping, forked, asleep; /* asleep: the thread waits for `changed` */
  _Atomic(int) workers, hosts; /* threads that wait for remote devices and poll meanwhile */
  mpg_message *in_flight;
  int num_in_flight;
  mpg_message *unused; /* freed messages with their buffers, for reuse */
  int num_unused;
  struct {
    mpg_message **messages; /* `requests` has the next request of each, in MPI's array layout */
    void *requests;
    int room;
  } looked_at;
  size_t bytes_in_flight; /* copied and not sent yet */
  struct {
    char *memory;
    size_t size;
  } spare[4]; /* memory of sent large data, reused because fresh memory is slow to fill */
  /* Buffers of sums. Only the thread of the sums' queue uses them, without the lock. */
  mpg_room openings, arrived, joined;
  uint64_t next_number; /* of transfers; host lock */
  uint64_t sent, received, bytes_sent, bytes_received;
  mpg_peer *peers;               /* by rank */
  _Atomic(int) sums_running;     /* number of active calls of mpg_all_reduce_run, which call MPI */
  _Atomic(mpg_device *) summing; /* the device whose work is a sum that waits for other ranks */
  /* Progress counter of sums, and checksum of the ranks that seem to be in a deadlock. */
  uint64_t turns, waits_checksum;
  int64_t waits_changed_ns; /* time when that checksum last changed */
  /* How long a rank may be silent, and the time of the last report to the other ranks. */
  int64_t limit_ns, told_ns;
  /* gave_up: messages were abandoned since mpg_messages_advance started to poll. */
  bool ended, gave_up;
  uint32_t scope; /* the block whose work sent last; 0 means none */
} mpg_engine;
extern mpg_engine mpg_the_engine; /* runtime state (state.c) */

/* messages.c */
mpg_status mpg_message_send(const mpg_transfer *transfer, int rank, uint64_t number,
                            const void *data, const char *failure);
mpg_status mpg_message_receive(const mpg_transfer *transfer, void *target, mpg_message **message);
/* Returns false if the message is kept because MPI still uses it. */
bool mpg_message_free(mpg_message *message);
bool mpg_messages_advance(void);      /* returns true if a message advanced */
mpg_status mpg_news_listen(int rank); /* for the next report */
mpg_status mpg_news_tell(int rank, mpg_news news, const char *text);
/* Returns this rank's summary for `rank`. Host lock. */
mpg_rank_end mpg_rank_end_of(int rank);
void mpg_peer_lost(int rank, const char *text);
/* Marks all ranks as lost and notifies them. */
void mpg_peers_lost(const char *text);

void mpg_deadlock_check(int64_t now); /* deadlock.c: deadlock detection */
/* True if this rank's host has waited for `rank` without progress since before since_ns. */
bool mpg_rank_awaits(int rank, int64_t since_ns);

/* remote.c: advances the work of remote devices. Returns true if any advanced. Sets *left if work
 * is still queued. */
bool mpg_remote_advance(bool *left);

/* engine.c: one pass over everything. Returns true if anything advanced. Sets *left if anything is
 * in flight. */
bool mpg_engine_advance(bool *left);
mpg_status mpg_engine_start(void); /* starts the thread if it is not running */
void mpg_engine_stop(void);
void mpg_engine_fork_prepare(void);
void mpg_engine_fork_done(bool child); /* the child takes no part in transfers */
/* Polling policy by caller: the more latency matters, the more often it polls. */
typedef enum mpg_poller {
  MPG_POLLER_WORK, /* running work waits: spins, then yields its core */
  MPG_POLLER_HOST, /* the host waits: spins, then sleeps with growing pauses */
  MPG_POLLER_IDLE, /* no thread waits, or another thread polls already: sleeps */
} mpg_poller;
/* Pauses between two polls. *turns counts polls since the last progress. */
void mpg_engine_pause(int *turns, mpg_poller poller);
void mpg_engine_wake(void); /* wakes the thread if it sleeps */

extern const mpg_backend mpg_remote_backend;

#endif
