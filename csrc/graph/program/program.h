/* Programs: the instructions of each device for one call of a compiled graph.
 *
 * A program is a flat list of instructions: run a kernel, copy into another device's memory,
 * signal, or wait for another device's signal. An operand is a base (an external array or a planned
 * block) and an offset. The addresses of the bases come with each call, in a frame. Signal k of a
 * segment is the tick first_tick + k of its device's timeline.
 *
 * A set is the programs of one phase, one per device. A program is cut into segments, which are
 * queued separately; signals are numbered within their segment. Usually a program is one segment,
 * and all segments of a set are queued together. Their waits follow the single order from which all
 * of them were lowered, so they cannot deadlock. Pipelines queue the segments of many calls in
 * their own order (compile/pipeline/pipeline_run.h). If an instruction fails, its segment ends and
 * its ticks fail, and so does work that waits for one of them. A program also signals when external
 * arrays that it has written are final, once for about every 256 KB of them. Work on other devices
 * that uses these arrays need not wait for the program's end. For example, sums of gradients begin
 * while the backward pass continues.
 *
 * The cost of a call before its first kernel does not grow with the graph. External arrays come in
 * *parts*, runs of consecutive arrays. A part that is the same in every call (parameters, their
 * gradients) is *fixed*. All fixed parts of a call form one binding, and a frame that was last used
 * with the same binding already has their addresses. The set keeps frames and workspace for its
 * next call.
 *
 * Ownership and threads: sets and frames have atomic reference counts and contain only plain
 * memory, so a worker may drop the last reference. The views of a program are filled in by the
 * thread that runs its device's work, one at a time. Everything else needs the host lock.
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
  bool recomputes;  /* recomputes a node of the forward phase */
  bool paces;       /* waits only: a paced copy waits for its receiving device */
  uint32_t peer;    /* slot of the other device, the target of a copy or the source of a wait */
  uint32_t segment; /* waits only: the segment that signals */
  uint32_t tick;    /* number of the signal in its segment */
  const mpg_op *op; /* op of a RUN or COPY; NULL for a fused group */
  mpg_fused *fused; /* fused group of a RUN, or NULL */
  const void *params;
  mpg_kernel_fn kernel;
  /* Index of the first operand, and of its view. Operands are the inputs, then the outputs. */
  uint32_t operands, num_inputs, num_outputs;
  uint32_t random; /* index of its random call in the graph; MPG_NO_RANDOM if it draws nothing */
  mpg_random_part draw;
  uint32_t scope, origin;
  size_t bytes;      /* size of a copy */
  uint32_t transfer; /* copies between ranks only: first transfer number within a call */
} mpg_instruction;

static inline const char *mpg_instruction_name(const mpg_instruction *instruction) {
  if (instruction->op && mpg_op_runs_on_host(instruction->op))
    return ((const mpg_host_step_params *)instruction->params)->code;
  return instruction->fused ? instruction->fused->name
         : instruction->op  ? instruction->op->name
                            : "wait";
}

typedef struct mpg_access { /* use of one base by a segment */
  uint32_t base;
  uint32_t index; /* index within its part, or index of the block */
  uint8_t part;   /* part of the external arrays; MPG_MAX_PARTS for a block */
  bool reads, writes;
  bool pushes; /* the segment copies into the base, which is memory of another device */
  /* 1 + the number of the signal after which the segment no longer uses the base; 0 means the end
   * of the segment. */
  uint32_t done;
} mpg_access;

enum { MPG_MAX_PARTS = 7 };

typedef struct mpg_parts { /* parts of the external arrays, in order */
  uint32_t count;
  uint32_t sizes[MPG_MAX_PARTS];
  bool fixed[MPG_MAX_PARTS];
} mpg_parts;

typedef struct mpg_program_segment {
  uint32_t slot;       /* slot of its program */
  uint32_t begin, end; /* range in the program's instructions */
  uint32_t num_signals;
  uint32_t depth; /* number of device changes on the longest path to the segment */
  uint32_t part;  /* number of the part of its stage (mpg_segment) */
  bool deferred;
  /* Sorted: first the num_checked accesses that every call must check, then fixed arrays that are
   * only written (up to index num_written), then fixed arrays that are only read. */
  mpg_access *accesses;
  uint32_t num_accesses, num_checked, num_written;
  size_t accesses_capacity;
} mpg_program_segment;

typedef struct mpg_program {
  mpg_device *device;
  mpg_instruction *instructions;
  uint32_t count;
  size_t capacity;
  mpg_location *operands;
  mpg_view *views; /* descs are constant; addresses are filled in at each run */
  uint32_t num_operands;
  size_t operands_capacity, views_capacity;
  /* Captures of the program (capture.h); NULL until the first run that can use them. Used only by
   * the thread that runs the program. */
  struct mpg_captures *replays;
  _Atomic(uint64_t) replayed; /* number of replayed captures so far; any thread may read it */
} mpg_program;

typedef struct mpg_call_frame mpg_call_frame;

typedef struct mpg_program_set {
  _Atomic int32_t references;
  const char *name;      /* static string */
  mpg_program *programs; /* one per slot of the plan; empty programs are not queued */
  uint32_t num_programs;
  mpg_program_segment *segments; /* in a valid queuing order */
  uint32_t num_segments;
  size_t segments_capacity;
  uint32_t num_externals, num_blocks;
  uint32_t *block_devices; /* per block: the slot of its device */
  size_t *block_sizes;
  bool *block_lanes;
  /* Blocks before first_block belong to the forward phase; the caller passes their storages. */
  uint32_t first_block;
  uint32_t num_random;
  /* Number of the graph, equal on all ranks (mpg_ranks_note_graph); 0 if it does not span ranks. */
  uint64_t graph;
  uint32_t num_transfers; /* transfer numbers that the copies between ranks use per call */
  /* Per random call: position of the rows of a micro-batch in the draw. Allocated in the arena.
   * NULL means that the positions are derived from shapes. */
  mpg_drawn *drawn;
  uint32_t num_drawn;
  bool small; /* one program that runs faster in the calling thread than on a worker */
  mpg_parts parts;
  mpg_call_frame *frames;             /* list of frames for reuse; guarded by the host lock */
  _Atomic(mpg_call_frame *) returned; /* list of frames that any thread has returned for reuse */
  mpg_arena arena;                    /* holds params */
} mpg_program_set;

/* lower.c: lowers an order to programs. The caller owns the set. */
mpg_status mpg_lower(const mpg_graph *graph, const mpg_order *order, const mpg_plan *plan,
                     const char *name, mpg_program_set **set);

/* Sets the parts of the external arrays. By default they are one part that is not fixed. Called
 * before the first launch. */
void mpg_program_set_arrange(mpg_program_set *set, const mpg_parts *parts);
/* Sets the positions of micro-batch rows in random draws. Copies `drawn`. Called before the first
 * staged call. */
mpg_status mpg_program_set_draw(mpg_program_set *set, const mpg_drawn *drawn, uint32_t count);
void mpg_program_set_retain(mpg_program_set *set);
void mpg_program_set_release(mpg_program_set *set);

/* launch.c: queues one call. All pointers are borrowed. */
typedef struct mpg_launching {
  /* For each part, one tensor per external array. The storage is NULL for arrays that no program
   * uses. parts[i] is NULL if the whole part is unused. */
  const mpg_tensor *parts[MPG_MAX_PARTS];
  /* Identifies the fixed arrays. Equal numbers mean equal arrays, and 0 means that all arrays must
   * be checked. */
  uint64_t binding;
  /* Optional last check by the caller. No other thread holds the host lock between this check and
   * the queueing of the work. Fails if the arrays have changed since the call was prepared. Sets
   * *unread if no other device is reading a fixed array that the call writes. */
  mpg_status (*look)(const void *looking, bool *unread);
  const void *looking;
  /* One storage per block. The launch fills the entries from first_block on with new storages,
   * which the caller releases, possibly at once. */
  mpg_storage **blocks;
  mpg_random_key random;
  uint32_t scope, origin;
  uint64_t steps; /* loop position; see mpg_submission.steps */
} mpg_launching;
mpg_status mpg_launch(mpg_program_set *set, const mpg_launching *call);

/* structure.c: returns a hash of everything in a set except sizes: devices, segments, instructions
 * with their names, waits, and accesses. The sets of one function for two batch sizes usually have
 * the same hash, so they have the same stages. */
uint64_t mpg_program_set_structure(const mpg_program_set *set);

/* The rows of a batch that a call computes. They draw the same random numbers as in a call for the
 * whole batch. If their position in a draw is unknown, an axis `axis` of size `count` is treated
 * as the batch axis. */
typedef struct mpg_rows {
  int32_t axis;
  int64_t begin, count, total; /* total 0 means all rows */
} mpg_rows;

typedef struct mpg_segment_time { /* monotonic clock, ns; 0 if not run yet */
  int64_t begin, end;             /* begin excludes waits before the first kernel */
} mpg_segment_time;

/* A call whose segments are queued separately. Many calls may be in flight. The caller chooses an
 * order in which a segment follows the segments that it waits for, and in which segments of one
 * device keep their order. Missing blocks are allocated when a segment that uses them is queued,
 * and the caller may release a block after the last of these segments. External arrays must exist
 * when a segment that uses them is queued. No part of the external arrays is fixed. Guarded
 * by the host lock. */
typedef struct mpg_staged_call {
  mpg_launching call;    /* borrows its pointers */
  mpg_call_frame *frame; /* owned reference */
} mpg_staged_call;
mpg_status mpg_staged_call_begin(mpg_program_set *set, const mpg_launching *call, mpg_rows rows,
                                 bool timed, mpg_staged_call *staged_call);
/* `stage` and `micro_batch` appear in errors and in the profiler (mpg_submission). */
mpg_status mpg_staged_call_submit(mpg_staged_call *staged_call, uint32_t segment, uint32_t stage,
                                  uint32_t micro_batch);
/* Ends a staged call. Queued work still runs. A zeroed call that did not begin is allowed. */
void mpg_staged_call_end(mpg_staged_call *staged_call);

/* State of one call of a set, shared by the call's segments. */
struct mpg_call_frame {
  _Atomic int32_t references; /* one per queued segment, plus one for a staged call */
  mpg_program_set *set;       /* owned reference while queued */
  mpg_call_frame *next;       /* link in the set's lists */
  uint64_t binding;           /* number of the binding whose addresses are in `bases` */
  mpg_random_key random;
  uint64_t transfers; /* first transfer number of its copies between ranks */
  mpg_rank_step step; /* the latest parameter update before the call was queued */
  uint32_t line;      /* key of the source line that queued the call */
  mpg_rows rows;
  /* Per segment: its times, written while it runs and read afterward; NULL if not requested. Freed
   * with the last reference to the call. */
  mpg_segment_time *times;
  mpg_tick *first_ticks; /* first tick of each segment; 0 if not queued yet */
  void *bases[];         /* addresses of the external arrays, then of the blocks */
};
typedef struct mpg_program_payload {
  mpg_call_frame *frame;  /* owned reference */
  uint32_t segment, next; /* the segment, and its next instruction */
} mpg_program_payload;
/* program.c: runs one segment of a program. For launch.c. */
mpg_status mpg_program_work(mpg_run *run, void *payload);
void mpg_program_discard(void *payload);
void mpg_call_frame_release(mpg_call_frame *frame);

#endif
