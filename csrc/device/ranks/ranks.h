/* Ranks: processes that are started together and run the same script.
 *
 * A device id may name a rank, as in cpu(0, rank=1). It then means the same device in all
 * processes. The named rank owns the device. In all other processes the device is *remote* and has
 * no memory. Every process submits all work to all devices in the same order. Work on a remote
 * device advances its tick count but computes nothing. A copy between two ranks is a *transfer*:
 * the source's rank sends a message when it runs the copy, and the target's rank receives it. All
 * processes queue transfers in the same order and number them in that order. The number is the
 * message's tag, so messages may arrive in any order. The receiving rank compares number, size and
 * devices, which detects ranks that run different programs. Data on a GPU is staged in host memory,
 * and the GPU's worker blocks until the copy to the host is done.
 *
 * A device whose id names no rank, such as cpu(0), is an *own* device: every process has a device
 * with this id. Arrays on own devices are equal in all processes if the script writes equal values.
 * So a copy from an own device to a rank's device sends nothing: that rank copies from its own
 * device. A copy from a rank's device to an own device is a broadcast to all ranks.
 *
 * A send copies the data into a buffer and returns. A receive is queued as work of the source,
 * which is a remote device. Its tick completes when the data has arrived. The *engine* advances
 * receives in its own thread and in every thread that waits for a remote device. If work fails
 * before it has sent its data, a failure notice is sent instead, and the receive fails with that
 * text.
 *
 * Ownership: the engine owns messages in flight. Threads: stated at each function.
 */
#ifndef MPG_DEVICE_RANKS_RANKS_H
#define MPG_DEVICE_RANKS_RANKS_H

#include "device/device.h"
#include "device/ranks/mpi.h"

/* startup.c: starts a watchdog that exits the process unless mpg_ranks_begun is called within
 * `seconds`, because MPI's initialization cannot be canceled. Called once, from any thread. */
mpg_status mpg_ranks_begin_within(double seconds);
void mpg_ranks_begun(void);
/* Starts a watchdog that exits the process if MPI's finalization exceeds the time limit. Called
 * once, after all ranks have reported that their scripts have ended. */
mpg_status mpg_ranks_end_within_limit(void);

/* Connects the `size` ranks, of which this process is `rank`. A rank that sends no message for
 * `limit` seconds is considered lost. Call once, with the host lock held. */
mpg_status mpg_ranks_begin(const mpg_mpi *mpi, int rank, int size, double limit);
/* Notifies the other ranks that this rank's script has ended. If `failure` is not NULL, the script
 * has failed with this text. Call with the host lock held. */
void mpg_ranks_tell_end(const char *failure);
/* Aborts the program: marks all ranks as lost on all ranks, so that every wait for another rank
 * fails with this text. May be called from any thread. */
void mpg_ranks_give_up(const char *text);
/* Returns the first lost rank and writes the reason to `text`, or returns -1 if no rank is lost.
 * Sets *all_ended if the scripts of all other ranks have ended. May be called from any thread. */
int mpg_ranks_find_lost(char *text, size_t size, bool *all_ended);
/* Compares the summaries of all ranks. Called after all scripts have ended. Returns true and writes
 * the difference to `text` if the ranks have queued different transfers, if a message is missing,
 * or if their parameter updates differ. Returns false if any work has failed, because messages may
 * then be missing. Call with the host lock held. */
bool mpg_ranks_differ(char *text, size_t size);
/* Stops all communication. Pending messages fail, and MPI is not used afterward. Called without the
 * host lock. */
void mpg_ranks_end(void);
/* Returns 1 before mpg_ranks_begin. May be called from any thread. */
int mpg_ranks_count(void);
int mpg_ranks_own(void);        /* this process's rank; 0 before mpg_ranks_begin */
bool mpg_ranks_any_order(void); /* true if sums need not be computed in rank order */

/* Returns the rank of a device, or -1 for an own device. */
static inline int mpg_device_rank(mpg_device_id id) { return id.rank - 1; }

/* This process's part in a copy between two devices. */
typedef enum mpg_transfer_kind {
  MPG_TRANSFER_HERE,    /* copies between two devices of this process; no transfer */
  MPG_TRANSFER_NONE,    /* this process is not involved */
  MPG_TRANSFER_SEND,    /* sends to the target's rank */
  MPG_TRANSFER_SHARE,   /* copies to this rank's own device and sends to all other ranks */
  MPG_TRANSFER_RECEIVE, /* receives from the source's rank */
} mpg_transfer_kind;
mpg_transfer_kind mpg_transfer_of(mpg_device_id from, mpg_device_id to);
/* Returns how many transfer numbers a copy uses. The result is the same in all processes. */
uint64_t mpg_transfer_numbers(mpg_device_id from, mpg_device_id to);
/* Reserves `count` transfer numbers and returns the first. Call with the host lock held. */
uint64_t mpg_transfers_take(uint64_t count);

/* calls.c: descriptions of the calls that cause messages. Each message carries the sender's
 * description, and the receiving rank compares it with its own. If they differ, all ranks raise an
 * error that names both calls. Text is formatted only for the error. Call with the host lock held,
 * except for the comparing functions. */

/* The latest parameter update, which all ranks make together. */
typedef struct mpg_rank_step {
  uint64_t number;
  double scale, learning_rate; /* rescale_grad and the learning rate of the optimizer */
} mpg_rank_step;
void mpg_ranks_note_update(double scale, double learning_rate);
mpg_rank_step mpg_ranks_step(void);

/* Returns a name for a new array on a device that names a rank. The name combines the script line
 * that creates the array, `kind` (MPG_MADE_BY_OP plus the op's number, or another enumerator), and
 * the count of arrays that calls of this kind have created on that line since the last rendezvous
 * of all ranks. Arrays with equal names on different ranks are the same array, unless one rank
 * makes the call more often than another. Returns 0 (no name) if the line is unknown, or if only
 * this rank creates the arrays of this thread. */
enum { MPG_MADE_BY_GRAPH, MPG_MADE_BY_PIPELINE, MPG_MADE_BY_HOST, MPG_MADE_BY_OP };
uint64_t mpg_ranks_name_array(uint32_t origin, uint32_t kind);
/* Turns naming of the arrays that this thread creates on or off. Must be off while only this rank
 * creates them. Returns the previous setting. May be called from any thread. */
bool mpg_ranks_name_arrays(bool named);
/* Resets the counts that are part of array names. Called at each rendezvous of all ranks, so that
 * ranks whose counts differ agree again. */
void mpg_ranks_note_collective(void);
uint64_t mpg_ranks_note_graph(void); /* returns a new number for a graph that all ranks compile */

enum { MPG_CALL_DIMS = 4 };
typedef struct mpg_rank_call {
  uint64_t graph; /* number of the compiled graph that makes the copy; 0 for an eager copy */
  uint32_t copy;  /* the copy's first transfer number, counted from the start of the graph's call */
  /* Key of the script line that makes the call. Not compared, because ranks may reach the same copy
   * by different branches. */
  uint32_t line;
  char dtype[8];
  uint32_t ndim;
  uint32_t unused;
  int64_t dims[MPG_CALL_DIMS]; /* first MPG_CALL_DIMS dimensions; zero beyond ndim */
  /* name of the array (mpg_ranks_name_array), and byte offset of the data in it */
  uint64_t array, offset;
  mpg_rank_step step;
} mpg_rank_call;

typedef struct mpg_transfer {
  mpg_device_id from, to;
  uint64_t number; /* the copy's first transfer number */
  size_t size;
  mpg_rank_call call;
} mpg_transfer;

/* Returns MPG_ERROR if `theirs`, sent by `rank`, differs from `own`. The error text is meant for
 * all ranks. May be called from any thread. */
mpg_status mpg_ranks_compare_calls(const mpg_transfer *own, const mpg_transfer *theirs, int rank);
mpg_status mpg_ranks_compare_steps(const mpg_rank_step *own, const mpg_rank_step *theirs, int rank);

/* For MPG_TRANSFER_SEND and _SHARE: sends `data`, which is memory of `device`, to the target's rank
 * or to all other ranks. Waits while too many bytes are in flight. Called by running work of
 * `device`, by running work of the target if the host can read the data, or under the host lock. */
mpg_status mpg_transfer_send(const mpg_transfer *transfer, mpg_device *device, const void *data);
/* Sends this thread's error text as a failure notice instead of the data. May be called from any
 * thread. */
void mpg_transfer_send_failure(const mpg_transfer *transfer);
/* For MPG_TRANSFER_RECEIVE: receives into memory of `device`. Called by running work of the
 * source's device. If *done is false, the work must return MPG_OK and call this function again when
 * it is resumed. */
mpg_status mpg_transfer_receive(mpg_run *run, const mpg_transfer *transfer, mpg_device *device,
                                void *target, bool *done);

/* Counts a training step. The count is part of this rank's reports to the other ranks. May be
 * called from any thread. */
void mpg_ranks_note_step(void);

/* True if MPI has completed all sends, except those to lost ranks. May be called from any thread.
 */
bool mpg_ranks_flushed(void);
/* Counts of transfer numbers, messages and bytes so far. */
typedef struct mpg_rank_statistics {
  uint64_t numbers, sent, received, bytes_sent, bytes_received;
} mpg_rank_statistics;
mpg_rank_statistics mpg_ranks_statistics(void); /* host lock */

/* Marks a rank as lost. Pending and later messages from and to it fail with this text. May be
 * called from any thread.
 */
void mpg_ranks_lost(int rank, const char *text);

#endif
