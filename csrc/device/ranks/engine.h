/* Internals shared by the files in this directory: messages, and the state of the engine, which
 * moves data between ranks (ranks.h).
 *
 * The engine's lock protects everything here. It is held only briefly, because the engine makes
 * only nonblocking MPI calls.
 */
#ifndef MPG_DEVICE_RANKS_ENGINE_H
#define MPG_DEVICE_RANKS_ENGINE_H

#include <pthread.h>

#include "device/internal.h"
#include "device/ranks/ranks.h"

enum {
  MPG_HEADER = 176,     /* size of a message's header in bytes */
  MPG_NOTICE = 1024,    /* maximum size of a failure text in bytes */
  MPG_SMALL = 64 << 10, /* data of at most this many bytes is sent with its header in one message */
  MPG_PIECE = 1 << 30,  /* larger data is sent in pieces of this many bytes */
  MPG_CONTROL_TAG = 0,  /* tag of control messages; tags of transfers are 1 and above */
};

typedef struct mpg_message mpg_message;
struct mpg_message {
  mpg_message *next; /* link of `in_flight` or `unused` in mpg_engine */
  int rank;          /* the peer: receiver of a send, sender of a receive */
  /* sends: a send, not a receive. control: a report (mpg_news), not part of a transfer. */
  bool sends, control, done;
  mpg_status status; /* result, valid if done */
  /* receives: the expected transfer; sends: only `size` is set, to the size of `data` */
  mpg_transfer transfer;
  char *buffer;                    /* header, followed by small data or a failure text; owned */
  size_t buffer_size, buffer_room; /* bytes in use, and bytes allocated */
  char *data;                      /* large data of a send; owned */
  char *target;                    /* memory that a receive writes to */
  bool body; /* receives: the header has arrived, and `requests` includes those for large data */
  int num_requests, num_tested; /* requests before index num_tested are complete */
  mpg_mpi_handle *requests;     /* points to `few`, or to owned memory */
  mpg_mpi_handle few[2];
  char text[MPG_NOTICE]; /* error text if the message has failed */
};

/* The wait state of a rank, for deadlock detection (deadlock.h). */
typedef struct mpg_rank_state {
  /* start of the wait without progress, by this process's clock; 0 if not waiting */
  int64_t since_ns;
  uint64_t waits_for; /* bit set of ranks (see bit_of in deadlock.c) */
  uint64_t serial;    /* progress counter; unchanged while the rank makes no progress */
  /* Description of the event that the rank waits for. If the rank is not waiting: path of the block
   * that last sent data. */
  char text[MPG_NOTICE / 2];
} mpg_rank_state;

/* A rank's summary of its whole run, sent to each other rank when its script ends. */
typedef struct mpg_rank_end {
  uint64_t numbers; /* number of transfers queued */
  uint64_t sent;    /* number of messages sent to the rank that gets this summary */
  mpg_rank_step step;
  bool failures; /* some work has failed, so messages may be missing */
} mpg_rank_end;

typedef struct mpg_peer {
  char lost[MPG_NOTICE]; /* reason why the rank is lost; empty if it is not lost */
  /* Error text if the rank's script has failed; otherwise empty. Messages that the rank sent before
   * may still arrive. */
  char failed[MPG_NOTICE];
  int64_t heard_ns;        /* time of the last message from the rank */
  bool awaited;            /* a sum over ranks on this rank waits for the peer */
  mpg_rank_state standing; /* the rank's wait state; peers[engine.rank] holds this rank's own */
  uint64_t steps;          /* number of training steps begun */
  int64_t ended_ns;        /* time when the rank reported the end of its script; 0 while it runs */
  uint64_t sent, received; /* number of transfer messages to and from the peer */
  mpg_rank_end end;        /* the peer's summary, valid once its script has ended */
} mpg_peer;

/* Buffer for sums over ranks. Reused by the next sum. */
typedef struct mpg_room {
  char *memory;
  size_t size;
} mpg_room;

/* Kinds of reports to other ranks. Every rank reports periodically that it is alive, and finally
 * that its script has ended or failed. STUCK aborts the program: the receiving rank marks all ranks
 * as lost. */
typedef enum mpg_news { MPG_NEWS_ALIVE, MPG_NEWS_ENDED, MPG_NEWS_FAILED, MPG_NEWS_STUCK } mpg_news;

typedef struct mpg_engine {
  mpg_mpi mpi;
  int rank, size;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* signaled when the engine's thread has work */
  pthread_t thread;
  pthread_t watch; /* watchdog: exits the process if MPI does not begin or end in time */
  bool beginning;
  pthread_cond_t begun;
  bool started, stopping, forked, asleep; /* asleep: the engine's thread waits for `changed` */
  /* Number of device workers and of host threads that poll while they wait for remote devices. */
  _Atomic(int) workers, hosts;
  mpg_message *in_flight;
  int num_in_flight;
  mpg_message *unused; /* free list of messages with their buffers */
  int num_unused;
  struct {
    /* Arguments of MPI_Testany. `requests` is an array of MPI_Request with the next request of each
     * message. */
    mpg_message **messages;
    void *requests;
    int room;
  } looked_at;
  size_t bytes_in_flight; /* bytes buffered by sends that MPI has not completed */
  struct {
    char *memory;
    size_t size;
    /* Buffers of large sends that have completed. They are reused, because writing to newly mapped
     * memory is slow. */
  } spare[4];
  /* Buffers of sums. The lock does not guard these buffers, because only the thread that runs the
   * sums uses them. */
  mpg_room openings, arrived, joined;
  uint64_t next_number; /* next transfer number; guarded by the host lock */
  uint64_t sent, received, bytes_sent, bytes_received;
  mpg_peer *peers; /* indexed by rank */
  /* Number of sums that may be calling MPI; mpg_ranks_end waits for 0. */
  _Atomic(int) sums_running;
  /* The device whose running sum waits for other ranks; NULL if none. */
  _Atomic(mpg_device *) summing;
  /* turns: number of sums that have ended, used as a progress counter. waits_checksum: checksum of
   * the ranks that seem deadlocked and of their progress; a change shows that there was no
   * deadlock. */
  uint64_t turns, waits_checksum;
  int64_t waits_changed_ns; /* time when waits_checksum last changed */
  /* limit_ns: a rank that is silent for longer is lost. told_ns: time of the last report to the
   * other ranks. */
  int64_t limit_ns, told_ns;
  /* ended: this rank has reported the end of its script. gave_up: messages were abandoned since
   * mpg_messages_advance began to poll. */
  bool ended, gave_up;
  uint32_t scope; /* path (mpg_scope_text) of the block that last sent data; 0 means none */
} mpg_engine;
extern mpg_engine mpg_the_engine; /* runtime state (state.c) */

/* messages.c. Sends a transfer's data to a rank, or the text `failure` if it is not NULL. Copies
 * the data. `number` is the transfer number. */
mpg_status mpg_message_send(const mpg_transfer *transfer, int rank, uint64_t number,
                            const void *data, const char *failure);
/* Starts to receive a transfer into `target`. The caller frees *message once it is done. */
mpg_status mpg_message_receive(const mpg_transfer *transfer, void *target, mpg_message **message);
/* Frees a message, or adds it to the free list. Returns false if MPI may still use its memory,
 * which is then leaked. */
bool mpg_message_free(mpg_message *message);
bool mpg_messages_advance(void);      /* polls MPI; returns true if a message has advanced */
mpg_status mpg_news_listen(int rank); /* receives the next report of the rank */
mpg_status mpg_news_tell(int rank, mpg_news news, const char *text);
/* Returns this rank's summary to be sent to `rank`. Call with the host lock held. */
mpg_rank_end mpg_rank_end_of(int rank);
void mpg_peer_lost(int rank, const char *text);
/* Marks all other ranks as lost and notifies them, so that they do the same. */
void mpg_peers_lost(const char *text);

void mpg_deadlock_check(int64_t now); /* deadlock.c: deadlock detection */
/* True if this rank's host has been waiting for `rank` without progress since before since_ns. */
bool mpg_rank_awaits(int rank, int64_t since_ns);

/* remote.c: runs the ready work of remote devices. Returns true if any work ran. Sets *left if work
 * is still queued. */
bool mpg_remote_advance(bool *left);

/* engine.c: polls messages once and runs the ready work of remote devices. Returns true if any
 * message or work made progress. Sets *left if a transfer or work is pending. */
bool mpg_engine_advance(bool *left);
mpg_status mpg_engine_start(void); /* starts the engine's thread unless it is running */
void mpg_engine_stop(void);
void mpg_engine_fork_prepare(void);
void mpg_engine_fork_done(bool child); /* a forked child cannot take part in transfers */
/* Polling policy by caller: the more latency matters, the more often the caller polls. */
typedef enum mpg_poller {
  MPG_POLLER_WORK, /* running work waits: spins, then yields its core */
  MPG_POLLER_HOST, /* the host waits: spins, then sleeps with growing pauses */
  MPG_POLLER_IDLE, /* no thread waits, or another thread already polls: sleeps */
} mpg_poller;
/* Pauses between two polls and increments *turns, the number of polls since the last progress. The
 * pause grows with *turns. */
void mpg_engine_pause(int *turns, mpg_poller poller);
void mpg_engine_wake(void); /* wakes the engine's thread if it sleeps */

extern const mpg_backend mpg_remote_backend;

#endif
