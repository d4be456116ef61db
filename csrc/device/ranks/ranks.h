/* Ranks: the processes of one program, started together, which run the same script.
 *
 * A device that names a rank is the same device for all processes: one holds it, for the others it
 * is *remote*, a device without memory. Every process submits all work to all devices in the same
 * order. Work on a remote device takes ticks there, but computes nothing. A copy between two ranks
 * is a *transfer*: a message that the one sends when it does the copy and the other receives.
 * Transfers are numbered in the order in which they are queued, which is the same in all processes,
 * and the number is the message's tag; so messages of any devices may overtake each other. Both
 * sides compare number, size and devices, which tells programs that differ. What a GPU sends or
 * gets passes through memory of the host: its worker waits for it to be there.
 *
 * A device without a rank is the process's own: each process has one, with the same values if the
 * script gives them the same. So a copy from an own device to that of a rank moves nothing between
 * processes, and a copy from the device of a rank to own devices goes to all.
 *
 * Who sends copies into a buffer and goes on. Receives are work of the remote device that the data
 * comes from, queued like any other; when the data is there, so is the tick. They advance in the
 * *engine*: by its thread, and by every thread that waits for a remote device. When work fails
 * before it has sent, a notice goes in the data's place, and the receive fails with its text.
 *
 * Ownership: the engine owns messages under way. Threads: as said at each function.
 */
#ifndef MPG_DEVICE_RANKS_RANKS_H
#define MPG_DEVICE_RANKS_RANKS_H

#include "device/device.h"
#include "device/ranks/mpi.h"

/* startup.c: the process ends unless mpg_ranks_begun is called within so many seconds: MPI's own
 * beginning can't be given up. Once; any thread. */
mpg_status mpg_ranks_begin_within(double seconds);
void mpg_ranks_begun(void);
/* Once, when all have told that they end: the process ends by itself, or by then. */
mpg_status mpg_ranks_end_within_limit(void);

/* Begins: from now on there are `size` ranks and this process is `rank`. A rank that is silent for
 * `limit` seconds is lost. Once. Host lock. */
mpg_status mpg_ranks_begin(const mpg_mpi *mpi, int rank, int size, double limit);
/* Notifies the other ranks that this rank's script has ended, or how it failed. Host lock. */
void mpg_ranks_tell_end(const char *failure);
/* There is no going on together: what waits for another rank fails, here and on all others, with
 * that text. Any thread. */
void mpg_ranks_give_up(const char *text);
/* The first rank that is lost, and why; -1: none. *all_ended: no other rank goes on. Any thread. */
int mpg_ranks_find_lost(char *text, size_t size, bool *all_ended);
/* Compares the summaries of all ranks once their scripts have ended. Returns true and describes the
 * difference if another rank has queued or sent other transfers than this one. Returns false also
 * if work has failed. Host lock. */
bool mpg_ranks_differ(char *text, size_t size);
/* Stops all communication: MPI is not called any more, and pending messages fail. Host lock not
 * needed. */
void mpg_ranks_end(void);
int mpg_ranks_count(void);      /* 1: not begun, or only one. Any thread */
int mpg_ranks_own(void);        /* 0 then */
bool mpg_ranks_any_order(void); /* sums need not be in the order of ranks */

/* A device of the process of that rank. */
static inline int mpg_device_rank(mpg_device_id id) { return id.rank - 1; }

/* What a copy between two devices is for this process. */
typedef enum mpg_transfer_kind {
  MPG_TRANSFER_HERE,    /* both are here, nobody else gets it: no transfer */
  MPG_TRANSFER_NONE,    /* others' business, or each has it already */
  MPG_TRANSFER_SEND,    /* to the rank of the target */
  MPG_TRANSFER_SHARE,   /* copied here, and sent to all others */
  MPG_TRANSFER_RECEIVE, /* from the rank of the source */
} mpg_transfer_kind;
mpg_transfer_kind mpg_transfer_of(mpg_device_id from, mpg_device_id to);
/* How many numbers it takes: the same in all processes. */
uint64_t mpg_transfer_numbers(mpg_device_id from, mpg_device_id to);
/* The first of so many new numbers. Host lock. */
uint64_t mpg_transfers_take(uint64_t count);

/* calls.c: descriptions of calls. Each message carries the sender's description, and the receiving
 * rank compares it with its own. A difference is an error on all ranks that names both calls. Text
 * is formatted only then. Host lock, except for the comparing functions. */

/* The latest update of parameters, in which all ranks take part. */
typedef struct mpg_rank_step {
  uint64_t number;
  double scale, learning_rate; /* the optimizer's */
} mpg_rank_step;
void mpg_ranks_note_update(double scale, double learning_rate);
mpg_rank_step mpg_ranks_step(void);

/* Returns a name for a new array on a device that names a rank. It combines the line that makes the
 * array, the kind of call (an op's number plus MPG_MADE_BY_OP, or another enumerator), and the
 * count of arrays that such calls on that line have made since the last rendezvous. Equal names in
 * all processes mean the same array, unless a rank makes the call more often than another one.
 * Returns 0 if the line is unknown, or if this thread makes arrays that the other ranks do not
 * make. */
enum { MPG_MADE_BY_GRAPH, MPG_MADE_BY_PIPELINE, MPG_MADE_BY_HOST, MPG_MADE_BY_OP };
uint64_t mpg_ranks_name_array(uint32_t origin, uint32_t kind);
/* Sets whether arrays that this thread makes get names and are counted. False if this rank alone
 * makes them. Returns the previous setting. Any thread. */
bool mpg_ranks_name_arrays(bool named);
void mpg_ranks_note_collective(
    void); /* at a rendezvous of all ranks: restarts the counts of names */
uint64_t mpg_ranks_note_graph(void); /* returns the number of a graph that all ranks agreed on */

enum { MPG_CALL_DIMS = 4 };
typedef struct mpg_rank_call {
  uint64_t graph; /* number of the compiled graph; 0 if an eager call makes the copy */
  uint32_t copy;  /* index among the graph's copies */
  uint32_t line;  /* key of the line that makes the call; not compared, as ranks may branch */
  char dtype[8];
  uint32_t ndim;
  uint32_t unused;
  int64_t dims[MPG_CALL_DIMS]; /* the first dimensions; zero beyond ndim */
  uint64_t array, offset;      /* name of the array; offset of the data in bytes */
  mpg_rank_step step;
} mpg_rank_call;

typedef struct mpg_transfer {
  mpg_device_id from, to;
  uint64_t number; /* the first of the copy's */
  size_t size;
  mpg_rank_call call;
} mpg_transfer;

/* MPG_ERROR with a text for all ranks if `theirs`, sent by `rank`, differs from `own`. Any thread.
 */
mpg_status mpg_ranks_compare_calls(const mpg_transfer *own, const mpg_transfer *theirs, int rank);
mpg_status mpg_ranks_compare_steps(const mpg_rank_step *own, const mpg_rank_step *theirs, int rank);

/* SEND and SHARE: sends what is at `data`, memory of `device`, to whoever gets it. Waits while very
 * much is under way. Running work of `device`, or of the target's where the host can read it; or
 * host lock. */
mpg_status mpg_transfer_send(const mpg_transfer *transfer, mpg_device *device, const void *data);
/* Instead: that it failed, with this thread's error text. Any thread. */
void mpg_transfer_send_failure(const mpg_transfer *transfer);
/* RECEIVE into memory of `device`, by running work of the source's. *done false: return MPG_OK, and
 * call it again when called again. */
mpg_status mpg_transfer_receive(mpg_run *run, const mpg_transfer *transfer, mpg_device *device,
                                void *target, bool *done);

/* One more step of training begins: what others are told of this rank. Any thread. */
void mpg_ranks_note_step(void);

/* Whether all that was sent has left (any thread); how much has been sent and received so far
 * (host lock). */
bool mpg_ranks_flushed(void);
typedef struct mpg_rank_statistics {
  uint64_t numbers, sent, received, bytes_sent, bytes_received;
} mpg_rank_statistics;
mpg_rank_statistics mpg_ranks_statistics(void);

/* All receives from that rank fail from now on, with this text, and so does what is sent to it. Any
 * thread. */
void mpg_ranks_lost(int rank, const char *text);

#endif
