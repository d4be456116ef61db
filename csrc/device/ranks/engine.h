/* Internals shared by the files of this folder: the engine's state and its messages.
 *
 * Everything here is under the engine's lock, which is held for moments: MPI calls do not block.
 */
#ifndef MPG_DEVICE_RANKS_ENGINE_H
#define MPG_DEVICE_RANKS_ENGINE_H

#include <pthread.h>

#include "device/internal.h"
#include "device/ranks/ranks.h"

enum {
  MPG_HEADER = 176,     /* bytes in front of the data of a message */
  MPG_NOTICE = 1024,    /* bytes of the text of a failure */
  MPG_SMALL = 64 << 10, /* data up to here comes with its header in one message */
  MPG_PIECE = 1 << 30,  /* larger data comes in pieces of so many bytes */
  MPG_CONTROL_TAG = 0,  /* tag of control messages; those of transfers are 1 and more */
};

typedef struct mpg_message mpg_message;
struct mpg_message {
  mpg_message *next; /* of those under way */
  int rank;          /* to or from */
  bool sends, control, done;
  mpg_status status;               /* of one that is done */
  mpg_transfer transfer;           /* of a receive */
  char *buffer;                    /* header, then small data or a notice; owned */
  size_t buffer_size, buffer_room; /* used, and there is */
  char *data;                      /* large data; owned if it is sent */
  char *target;                    /* of a receive */
  bool body;                       /* a receive of large data has its header */
  int num_requests, num_tested;    /* those before num_tested are done */
  mpg_mpi_handle *requests;        /* `few`, or owned */
  mpg_mpi_handle few[2];
  char text[MPG_NOTICE]; /* why it failed */
};

/* How a rank stands still (standstill.h). */
typedef struct mpg_standing {
  int64_t since_ns;          /* by this process's clock; 0: it does not */
  uint64_t waits_for;        /* a set of ranks */
  uint64_t serial;           /* of its progress: while it is the same, nothing has moved */
  char text[MPG_NOTICE / 2]; /* what it waits for; of others that do not: their latest block */
} mpg_standing;

/* A rank's summary of its whole run, sent to each other rank when its script ends. */
typedef struct mpg_rank_end {
  uint64_t numbers; /* number of transfers queued */
  uint64_t sent;    /* number of messages to the receiving rank */
  mpg_rank_step step;
  bool failures; /* some work has failed, so messages may be missing */
} mpg_rank_end;

typedef struct mpg_peer {
  char lost[MPG_NOTICE];   /* why nothing comes from it any more; empty: it may */
  char failed[MPG_NOTICE]; /* how its script failed; empty: it has not. What it had sent may still
                              be on its way */
  int64_t heard_ns;        /* when something came last */
  bool awaited;            /* a sum over ranks waits for it */
  mpg_standing standing;   /* this rank's own, too */
  uint64_t steps;          /* of training, that it has begun */
  int64_t ended_ns;        /* when it has said that its script has ended; 0: it has not */
  uint64_t sent, received; /* number of transfer messages to and from the peer */
  mpg_rank_end end;        /* the peer's summary, valid once its script has ended */
} mpg_peer;

/* Memory that is kept from one sum over ranks to the next. */
typedef struct mpg_room {
  char *memory;
  size_t size;
} mpg_room;

/* Every rank tells every other one now and then that it is there, and how it ended. */
typedef enum mpg_news { MPG_NEWS_ALIVE, MPG_NEWS_ENDED, MPG_NEWS_FAILED, MPG_NEWS_STUCK } mpg_news;

typedef struct mpg_engine {
  mpg_mpi mpi;
  int rank, size;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* there is something to do */
  pthread_t thread;
  pthread_t watch; /* ends the process if MPI has not begun, or ended, in time */
  bool beginning;
  pthread_cond_t begun;
  bool started, stopping, forked, asleep; /* asleep: the thread waits for `changed` */
  _Atomic(int) workers, hosts; /* threads that wait for remote devices, and look meanwhile */
  mpg_message *under_way;
  int num_under_way;
  mpg_message *unused; /* with their buffers, for the next ones */
  int num_unused;
  struct {
    mpg_message **messages; /* whose next requests, as MPI has them in an array, are `requests` */
    void *requests;
    int room;
  } looked_at;
  size_t bytes_under_way; /* copied and not sent yet */
  struct {
    char *memory;
    size_t size;
  } spare[4]; /* memory of large data that has been sent; what is new is slow to fill */
  mpg_room openings, arrived, joined; /* of sums, their queue's thread's alone: no lock */
  uint64_t sent, received, bytes_sent, bytes_received;
  mpg_peer *peers;               /* by rank */
  _Atomic(int) sums_running;     /* number of active calls of mpg_all_reduce_run, which call MPI */
  _Atomic(mpg_device *) summing; /* whose work is a sum over ranks that waits for others */
  uint64_t turns, knot;          /* pieces of sums; ranks that seem to wait for one another */
  int64_t knot_ns;               /* since when */
  int64_t limit_ns, told_ns;     /* how long a rank may be silent; when others were told last */
  bool ended, gave_up; /* gave_up: messages have been since mpg_messages_advance began to look */
  uint32_t scope;      /* the block whose work sent last; 0 if no block did */
} mpg_engine;
extern mpg_engine mpg_the_engine; /* runtime state */

/* messages.c */
mpg_status mpg_message_send(const mpg_transfer *transfer, int rank, uint64_t number,
                            const void *data, const char *failure);
mpg_status mpg_message_receive(const mpg_transfer *transfer, void *target, mpg_message **message);
bool mpg_message_free(mpg_message *message); /* false: it is kept, since MPI has it still */
/* Its rank is lost: it has failed. What is to come is not waited for any more. */
void mpg_message_give_up(mpg_message *message, const char *text);
void mpg_standing_judge(int64_t now); /* standstill.c: whether any of it ever ends */
bool mpg_messages_advance(void);      /* true: something was done */
mpg_status mpg_news_listen(int rank); /* to the next one */
mpg_status mpg_news_tell(int rank, mpg_news news, const char *text);
mpg_rank_end mpg_rank_end_of(int rank); /* this rank's summary for `rank`; engine.c; host lock */
void mpg_peer_lost(int rank, const char *text); /* engine.c */
void mpg_peers_lost(const char *text);          /* all, and they are told so */

/* remote.c: lets the work of remote devices go on. True: something was done; *left: is queued. */
bool mpg_remote_advance(bool *left);

/* engine.c: all of it once. True: something was done; *left: something is under way. */
bool mpg_engine_advance(bool *left);
mpg_status mpg_engine_start(void); /* the thread, if it does not run */
void mpg_engine_stop(void);
void mpg_engine_fork_prepare(void);
void mpg_engine_fork_done(bool child); /* which takes no part in transfers */
/* Who looks for messages: the more there is to lose by coming late, the more often. */
typedef enum mpg_looker {
  MPG_LOOKER_WORK,   /* running work waits for one: spins, then gives its core away */
  MPG_LOOKER_HOST,   /* the host does: spins, then sleeps, the longer the longer it has waited */
  MPG_LOOKER_BESIDE, /* nobody does, or somebody looks already: sleeps */
} mpg_looker;
/* Between two looks. *turns: looks so far, since something was found. */
void mpg_engine_pause(int *turns, mpg_looker looker);
void mpg_engine_wake(void); /* its thread, if it sleeps */

extern const mpg_backend mpg_remote_backend;

#endif
