/* Traces: graphs under construction by running a function on arrays that have shape, dtype and
 * device but no contents.
 *
 * While a trace is active, ops become nodes of its graph if they have a traced input, an input that
 * was made before the trace began, no array inputs, or random numbers; arrays with contents that
 * such an op meets become constants, which are read in every call, and so do traced arrays of the
 * traces around it, which the body of a loop captures. Ops on arrays that were made from
 * numbers during the trace run at once. Such an array may be written after it became a constant:
 * earlier uses keep the contents that they saw (copy on write, tensor/contents.h). A value is live
 * while an array refers to it, because code that is yet to be traced can use it. If a program is
 * cut in two, the live values pass from the first part to the second (compile/function.h).
 * Ownership: traced arrays share the trace (reference count); who began it ends it. Threads: host
 * lock; the active trace is per thread.
 */
#ifndef MPG_AUTOGRAD_TRACE_H
#define MPG_AUTOGRAD_TRACE_H

#include "autograd/array.h"
#include "graph/ir/graph.h"
#include "tensor/contents.h"

typedef struct mpg_trace_constant {
  mpg_array array; /* owned */
  mpg_value value;
  mpg_saved saved; /* the contents at its first use; only for arrays made during the trace */
} mpg_trace_constant;

typedef struct mpg_trace_copy { /* of a value on another device, put in between groups
                                   (autograd/groups.h) */
  mpg_value value, copy;
  mpg_device_id device;
} mpg_trace_copy;

struct mpg_trace {
  int32_t references;
  bool closed;        /* ended: no more nodes */
  mpg_device_id only; /* where every node is put, whatever it says; type 0: where it says */
  mpg_graph graph;
  mpg_trace_constant *constants; /* owned */
  size_t num_constants, constants_capacity;
  uint32_t *live; /* per value: arrays that stand for it */
  size_t live_capacity;
  mpg_trace_copy *copies; /* owned */
  size_t num_copies, copies_capacity;
  uint64_t born;    /* storages made before it began */
  bool recording;   /* whether autograd was, when it began: where it is not later on, that is
                       autograd.pause() */
  mpg_trace *outer; /* the one that was active before */
};

mpg_status mpg_trace_begin(mpg_trace **trace); /* new; becomes the active one */
void mpg_trace_end(
    mpg_trace *trace); /* the outer one is active again; the reference stays the caller's */
void mpg_trace_release(mpg_trace *trace);
mpg_trace *mpg_trace_active(void); /* borrowed, or NULL */
mpg_trace *mpg_trace_swap(
    mpg_trace *trace); /* makes it (or NULL) the active one; returns the former */

/* A new input of the graph; *array (empty) becomes it. */
mpg_status mpg_trace_input(mpg_trace *trace, const mpg_desc *desc, mpg_device_id device,
                           mpg_array *array);
/* Another array (empty so far) for a value of the graph. */
mpg_status mpg_trace_array(mpg_trace *trace, mpg_value value, mpg_array *array);
/* The value of any array in the trace: a constant where it has contents. */
mpg_status mpg_trace_value(mpg_trace *trace, const mpg_array *array, const char *op,
                           mpg_value *value);
/* Returns constant i with the contents that its uses saw: a new reference, or a copy if the array
 * has been written since. */
mpg_status mpg_trace_get_constant(const mpg_trace *trace, size_t i, mpg_array *array);
void mpg_trace_clear_constants(mpg_trace *trace); /* releases all of them */
/* Fails if the array may not be written now: values of a trace never may, and a write to an array
 * from outside of the active trace would happen only once, while tracing. */
/* The error for an array that outlived its trace; %s: the attempted use. */
#define MPG_TRACE_OVER                                                                             \
  "%s: the array was made inside a hybridized block (or the body of a loop) while it was traced, " \
  "and kept beyond: it has no value. "                                                             \
  "Return it from the block to use it outside"
mpg_status mpg_trace_check_write(const mpg_array *array, const char *what);
/* Emits an op; outputs: num_visible empty structs. */
mpg_status mpg_trace_call(mpg_trace *trace, const mpg_op *op, const void *params,
                          mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                          int num_visible, bool separate, bool train, uint32_t scope);
/* Under autograd.pause(): whether it is active, and taking a new value off the tape. */
bool mpg_trace_paused(const mpg_trace *trace);
mpg_status mpg_trace_pause_value(mpg_trace *trace, mpg_value *value);
/* Whether ops on the array belong to the active trace: it is traced, or was made before the trace
 * began (what an op makes of it would else be computed once, while the block is traced, and in no
 * call). */
bool mpg_trace_takes(const mpg_array *array);

/* Puts the nodes traced between begin and end into one recompute region
 * (graph/gradient/recompute.h). False, and no region begins, where no trace is active or a region
 * has begun already. */
bool mpg_trace_begin_recompute(void);
void mpg_trace_end_recompute(void);

#endif
