/* Programs: what each device runs for one call of a compiled graph.
 *
 * A program is a flat list of instructions: run a kernel, copy into another device's memory,
 * signal, wait for another device's signal. An operand is a base (an external array or a planned
 * block) and an offset; where the bases of a call lie comes with the call, in a frame. Signal k of
 * a segment is the tick first_tick + k of its device's timeline.
 *
 * A set is the programs of one phase, one per device. A program is cut into segments, which
 * are queued one by one; signals are numbered within their segment. Mostly a program is
 * one segment, and those of a set are queued together; they wait for each other only in the order
 * of one sequence, so they cannot deadlock. Pipelines queue the segments of many calls in an order
 * of their own (compile/pipeline/pipeline_run.h). When an instruction fails its segment ends and
 * its ticks count as failed; work that waits for one of these fails too. A program also signals,
 * every so many bytes, that external arrays are final which it has written, so that others need not
 * wait for its end: sums of gradients begin while the rest goes on backward.
 *
 * The cost of a call before its first kernel does not grow with the graph. External arrays come in
 * *parts*, runs of consecutive ones. A part that is the same from call to call (parameters, their
 * gradients) is *fixed*: such parts come as one binding, and a frame that served the same binding
 * before knows where they lie. Frames and work space are kept by the set for its next call.
 *
 * Ownership and threads: sets and frames are counted atomically and hold plain memory only, so that
 * a worker may drop the last reference. A program's views are filled in by whoever runs its
 * device's work, which is one at a time. The rest: host lock.
 */
#ifndef MPG_GRAPH_PROGRAM_PROGRAM_H
#define MPG_GRAPH_PROGRAM_PROGRAM_H

#include "device/ranks/ranks.h"
#include "graph/schedule/plan.h"
#include "op/fused.h"
#include "tensor/tensor.h"

typedef enum mpg_instruction_kind { MPG_RUN, MPG_COPY, MPG_SIGNAL, MPG_WAIT } mpg_instruction_kind;

typedef struct mpg_instruction {
  uint8_t kind; /* mpg_instruction_kind */
  bool train, backward;
  bool recomputes;  /* a recomputed node of the forward phase */
  uint32_t peer;    /* slot of the other device: of a copy's target, of a wait's source */
  uint32_t segment; /* of a wait: the segment that signals */
  uint32_t tick;    /* number of the signal in its segment */
  const mpg_op *op; /* RUN, COPY; NULL: a fused group */
  mpg_fused *fused; /* RUN of a group */
  const void *params;
  mpg_kernel_fn kernel;
  uint32_t operands, num_inputs, num_outputs; /* first operand (view); inputs, then outputs */
  uint32_t random;                            /* call number within the graph; MPG_NO_RANDOM */
  uint32_t scope, origin;
  size_t bytes;      /* moved by a copy */
  uint32_t transfer; /* of a copy between ranks: its first number in a call */
} mpg_instruction;

static inline const char *mpg_instruction_name(const mpg_instruction *instruction) {
  return instruction->fused ? instruction->fused->name
         : instruction->op  ? instruction->op->name
                            : "wait";
}

typedef struct mpg_access { /* what a segment does to one base */
  uint32_t base;
  uint32_t index; /* within its part, or of a block */
  uint8_t part;   /* of the external arrays; MPG_MAX_PARTS: a block */
  bool reads, writes;
  bool pushes;   /* it is another device's memory */
  uint32_t done; /* 1 + the signal of the segment behind which it does not touch the base again; 0:
                    at its end */
} mpg_access;

enum { MPG_MAX_PARTS = 7 };

typedef struct mpg_parts { /* of the external arrays, in their order */
  uint32_t count;
  uint32_t sizes[MPG_MAX_PARTS];
  bool fixed[MPG_MAX_PARTS];
} mpg_parts;

typedef struct mpg_program_segment {
  uint32_t slot;       /* of its program */
  uint32_t begin, end; /* instructions */
  uint32_t num_signals;
  uint32_t depth; /* see mpg_segment */
  bool deferred;
  mpg_access *accesses; /* first those that every call must look at, then fixed arrays that are only
                           written, then those that are only read */
  uint32_t num_accesses, num_checked, num_written;
  size_t accesses_capacity;
} mpg_program_segment;

typedef struct mpg_program {
  mpg_device *device;
  mpg_instruction *instructions;
  uint32_t count;
  size_t capacity;
  mpg_location *operands;
  mpg_view *views; /* descs are constant, addresses are filled in when it runs */
  uint32_t num_operands;
  size_t operands_capacity, views_capacity;
  struct mpg_captures
      *replays; /* see capture.h; NULL: not made yet. Used by the thread that runs the program */
  _Atomic(uint64_t) replayed; /* how many captures have run; any thread reads it */
} mpg_program;

typedef struct mpg_call_frame mpg_call_frame;

typedef struct mpg_program_set {
  _Atomic int32_t references;
  const char *name;      /* static */
  mpg_program *programs; /* per slot of the plan; those without instructions are not queued */
  uint32_t num_programs;
  mpg_program_segment *segments; /* in an order in which they may be queued */
  uint32_t num_segments;
  size_t segments_capacity;
  uint32_t num_externals, num_blocks;
  uint32_t *block_devices; /* per block: the slot it lies on */
  size_t *block_sizes;
  bool *block_lanes;
  uint32_t first_block; /* blocks before it come with the frame of the forward phase */
  uint32_t num_random;
  uint64_t graph; /* number in all processes (mpg_ranks_note_graph); 0 if it spans no ranks */
  uint32_t num_transfers; /* numbers that the copies between ranks take in a call */
  mpg_drawn *drawn; /* per random call: where the rows of a micro-batch lie in it; in the arena;
                       NULL: looked for */
  uint32_t num_drawn;
  bool small; /* one program, so short that handing it over would cost more than running it */
  mpg_parts parts;
  mpg_call_frame *frames;             /* for further calls; host lock */
  _Atomic(mpg_call_frame *) returned; /* the same, given back by who finished with them */
  mpg_arena arena;                    /* params */
} mpg_program_set;

/* lower.c */
mpg_status mpg_lower(const mpg_graph *graph, const mpg_order *order, const mpg_plan *plan,
                     const char *name, mpg_program_set **set); /* new */

/* Says in which parts the external arrays come; else they are one, not fixed. Before the first
 * launch. */
void mpg_program_set_arrange(mpg_program_set *set, const mpg_parts *parts);
/* Sets where the rows of micro-batches lie in random draws; copied. Before the first staged call.
 */
mpg_status mpg_program_set_draw(mpg_program_set *set, const mpg_drawn *drawn, uint32_t count);
void mpg_program_set_retain(mpg_program_set *set);
void mpg_program_set_release(mpg_program_set *set);

/* launch.c: queues one call. Borrows everything. */
typedef struct mpg_launching {
  const mpg_tensor *parts[MPG_MAX_PARTS]; /* a tensor per external array of each part (storage NULL
                                             where no program touches it; NULL: none is touched) */
  uint64_t binding; /* names the fixed ones: the same number, the same arrays; 0: look at them */
  /* Optional: the caller's last check; no other thread runs from then until the work is queued.
   * Fails if the arrays have changed since the call was made. *unread: no other device still reads
   * a fixed array that is written. */
  mpg_status (*look)(const void *looking, bool *unread);
  const void *looking;
  mpg_storage **blocks; /* a storage per block; those from first_block on are filled in (new; the
                           caller releases them, at once if it likes) */
  mpg_random_key random;
  uint32_t scope, origin;
  uint64_t steps; /* as of a submission */
} mpg_launching;
mpg_status mpg_launch(mpg_program_set *set, const mpg_launching *call);

/* The rows of a batch that a call works on: they draw the random numbers that they would draw in
 * the whole batch. If their place in a draw is not known, `axis` of an array that has `count` rows
 * there is taken as the batch's axis. */
typedef struct mpg_rows {
  int32_t axis;
  int64_t begin, count, total; /* total 0: all of them */
} mpg_rows;

typedef struct mpg_segment_time { /* monotonic clock, ns; 0: not run yet */
  int64_t begin, end;             /* begin: after the first waits */
} mpg_segment_time;

/* A call whose segments are queued one by one; many may be under way. The order is the caller's: a
 * segment comes after those it waits for, and the segments of one device in their order. Blocks
 * that are missing are made when a segment that touches them is queued, and the caller may release
 * one behind the last such segment. External arrays must be there when a segment that touches them
 * is queued. Nothing is fixed. Host lock. */
typedef struct mpg_staged_call {
  mpg_launching call;    /* its pointers are borrowed */
  mpg_call_frame *frame; /* owned reference */
} mpg_staged_call;
mpg_status mpg_staged_call_begin(mpg_program_set *set, const mpg_launching *call, mpg_rows rows,
                                 bool timed, mpg_staged_call *staged_call);
/* stage, micro_batch: for errors and the profiler, see mpg_submission. */
mpg_status mpg_staged_call_submit(mpg_staged_call *staged_call, uint32_t segment, uint32_t stage,
                                  uint32_t micro_batch);
void mpg_staged_call_end(mpg_staged_call *staged_call); /* also of one that did not begin, zeroed;
                                                           the queued work goes on */

/* program.c: the work of one device; for launch.c. */
struct mpg_call_frame {
  _Atomic int32_t references; /* one per queued segment, one of a staged call */
  mpg_program_set *set;       /* owned reference while queued */
  mpg_call_frame *next;       /* in the set's lists */
  uint64_t binding;           /* whose addresses are among the bases */
  mpg_random_key random;
  uint64_t transfers; /* the first number of its copies between ranks */
  mpg_rank_step step; /* the training step at which it was queued */
  uint32_t line;      /* key of the line that queued it */
  mpg_rows rows;
  mpg_segment_time *times; /* per segment, filled in as they run; read when they have run; NULL: not
                              wanted. Owned while in use */
  mpg_tick *first_ticks;   /* per segment */
  void *bases[];           /* addresses: externals, then blocks */
};
typedef struct mpg_program_payload {
  mpg_call_frame *frame;  /* owned reference */
  uint32_t segment, next; /* next instruction */
} mpg_program_payload;
mpg_status mpg_program_work(mpg_run *run, void *payload);
void mpg_program_discard(void *payload);
void mpg_call_frame_release(mpg_call_frame *frame);

#endif
