/* Ranks: the processes of one program, started together, which run the same script.
 *
 * A device that names a rank is the same device for all processes. One process owns it. For all
 * other processes it is *remote*, a device without memory. Every process submits all work to all
 * devices in the same order. Work on a remote device takes ticks there but computes nothing. A copy
 * between two ranks is a *transfer*: the source's rank sends a message when it runs the copy, and
 * the target's rank receives it. All processes queue transfers in the same order and number them in
 * that order. The number is the message's tag, so messages may overtake each other. The receiving
 * rank compares number, size and devices, which detects ranks that run different programs. GPU data
 * passes through host memory, and the GPU's worker waits for it to arrive there.
 *
 * A device without a rank is an *own* device. Each process has one, with equal contents if the
 * script writes equal values. So a copy from an own device to a rank's device sends nothing, and a
 * copy from a rank's device to own devices is sent to all ranks (broadcast).
 *
 * A send copies the data into a buffer and returns. A receive is work of the remote device that is
 * the source of the data. It is queued like any other work, and its tick completes when the data
 * has arrived. The *engine* advances receives in its own thread and in every thread that waits for
 * a remote device. If work fails before it has sent its data, a failure notice is sent instead, and
 * the receive fails with that text.
 *
 * Ownership: the engine owns messages in flight. Threads: stated at each function.
 */
#ifndef MPG_DEVICE_RANKS_RANKS_H
#define MPG_DEVICE_RANKS_RANKS_H

#include "device/device.h"
#include "device/ranks/mpi.h"

/* startup.c: starts a watchdog that exits the process unless mpg_ranks_begun is called within this
 * time, as MPI's initialization cannot be canceled. Called once. Any thread. */
mpg_status mpg_ranks_begin_within(double seconds);
void mpg_ranks_begun(void);
/* Starts a watchdog that exits the process if MPI's finalization exceeds the time limit. Called
 * once, after all ranks have reported their end. */
mpg_status mpg_ranks_end_within_limit(void);

/* Connects the `size` ranks, of which this process is `rank`. A rank that is silent for `limit`
 * seconds is lost. Called once. Host lock. */
mpg_status mpg_ranks_begin(const mpg_mpi *mpi, int rank, int size, double limit);
/* Notifies the other ranks that this rank's script has ended, or how it failed. Host lock. */
void mpg_ranks_tell_end(const char *failure);
/* Aborts: on all ranks, everything that waits for another rank fails with this text. Any thread. */
void mpg_ranks_give_up(const char *text);
/* Returns the first lost rank and writes the reason to `text`, or returns -1 if no rank is lost.
 * Sets *all_ended if the scripts of all other ranks have ended. Any thread. */
int mpg_ranks_find_lost(char *text, size_t size, bool *all_ended);
/* Compares the summaries of all ranks once their scripts have ended. Returns true and describes the
 * difference if another rank has queued or sent other transfers than this one. Returns false also
 * if work has failed. Host lock. */
bool mpg_ranks_differ(char *text, size_t size);
/* Stops all communication: no later call uses MPI, and pending messages fail. Called without the
 * host lock. */
void mpg_ranks_end(void);
int mpg_ranks_count(void);      /* 1 before mpg_ranks_begin, or for a single rank. Any thread */
int mpg_ranks_own(void);        /* this process's rank; 0 before mpg_ranks_begin */
bool mpg_ranks_any_order(void); /* true if sums may use another order than rank order */

/* Returns the rank of a device, or -1 for an own device. */
static inline int mpg_device_rank(mpg_device_id id) { return id.rank - 1; }

/* This process's part in a copy between two devices. */
typedef enum mpg_transfer_kind {
  MPG_TRANSFER_HERE,    /* copies between two devices of this process; no transfer */
  MPG_TRANSFER_NONE,    /* not involved */
  MPG_TRANSFER_SEND,    /* sends to the target's rank */
  MPG_TRANSFER_SHARE,   /* copies to its own device and sends to all other ranks */
  MPG_TRANSFER_RECEIVE, /* receives from the source's rank */
} mpg_transfer_kind;
mpg_transfer_kind mpg_transfer_of(mpg_device_id from, mpg_device_id to);
/* Returns the count of transfer numbers that a copy uses, which is the same in all processes. */
uint64_t mpg_transfer_numbers(mpg_device_id from, mpg_device_id to);
/* Reserves `count` transfer numbers and returns the first. Host lock. */
uint64_t mpg_transfers_take(uint64_t count);

/* calls.c: descriptions of calls. Each message carries the sender's description, and the receiving
 * rank compares it with its own. A difference raises an error on all ranks that names both calls.
 * Text is formatted only for the error. Host lock, except for the comparing functions. */

/* The latest update of parameters, in which all ranks take part. */
typedef struct mpg_rank_step {
  uint64_t number;
  double scale, learning_rate; /* the optimizer's */
} mpg_rank_step;
void mpg_ranks_note_update(double scale, double learning_rate);
mpg_rank_step mpg_ranks_step(void);

/* Returns a name for a new array on a device that names a rank. The name combines the script line
 * that creates the array, the kind of call (an op's number plus MPG_MADE_BY_OP, or another
 * enumerator), and the count of arrays that calls of this kind have created on that line since the
 * last rendezvous. Arrays with equal names on different ranks are the same array, unless one rank
 * makes the call more often than another. Returns 0 if the line is unknown, or if only this rank
 * creates the arrays of this thread. */
enum { MPG_MADE_BY_GRAPH, MPG_MADE_BY_PIPELINE, MPG_MADE_BY_HOST, MPG_MADE_BY_OP };
uint64_t mpg_ranks_name_array(uint32_t origin, uint32_t kind);
/* Sets whether arrays that this thread creates get names and are counted: false if only this rank
 * creates them. Returns the previous setting. Any thread. */
bool mpg_ranks_name_arrays(bool named);
/* Resets the counts in names. Called at each rendezvous of all ranks. */
void mpg_ranks_note_collective(void);
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
  uint64_t number; /* the copy's first transfer number */
  size_t size;
  mpg_rank_call call;
} mpg_transfer;

/* Returns MPG_ERROR if `theirs`, sent by `rank`, differs from `own`. The error text is meant for
 * all ranks. Any thread. */
mpg_status mpg_ranks_compare_calls(const mpg_transfer *own, const mpg_transfer *theirs, int rank);
mpg_status mpg_ranks_compare_steps(const mpg_rank_step *own, const mpg_rank_step *theirs, int rank);

/* SEND and SHARE: sends `data`, which is memory of `device`, to the target's rank or to all other
 * ranks. Waits while too many bytes are in flight. Called by running work of `device`, or of the
 * target if the host can read the data, or under the host lock. */
mpg_status mpg_transfer_send(const mpg_transfer *transfer, mpg_device *device, const void *data);
/* Sends a failure notice with this thread's error text instead of the data. Any thread. */
void mpg_transfer_send_failure(const mpg_transfer *transfer);
/* RECEIVE: receives into memory of `device`. Called by running work of the source's device. While
 * *done is false, the work returns MPG_OK and calls this again on its next run. */
mpg_status mpg_transfer_receive(mpg_run *run, const mpg_transfer *transfer, mpg_device *device,
                                void *target, bool *done);

/* Records the start of a training step, which this rank reports to the other ranks. Any thread. */
void mpg_ranks_note_step(void);

/* True if all sent messages have left. Any thread. */
bool mpg_ranks_flushed(void);
/* Counts of transfers, messages and bytes so far. */
typedef struct mpg_rank_statistics {
  uint64_t numbers, sent, received, bytes_sent, bytes_received;
} mpg_rank_statistics;
mpg_rank_statistics mpg_ranks_statistics(void); /* host lock */

/* Marks a rank as lost. Pending and later messages from and to it fail with this text. Any thread.
 */
void mpg_ranks_lost(int rank, const char *text);

#endif
