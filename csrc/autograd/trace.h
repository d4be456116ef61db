/* Traces: graphs built by running a function on arrays that have shape, dtype and device but no
 * contents.
 *
 * While a trace is active, an op becomes a node of its graph if it has a traced input or an input
 * that was created before the trace began, has no array inputs, or draws random numbers. Inputs
 * that have contents become constants of the graph, which every call reads. Traced arrays of
 * enclosing traces, which the body of a loop captures, also become constants. All other ops run at
 * once; their inputs were created from host data during the trace. Arrays that were created during
 * the trace may be written later: a constant keeps the contents that its ops read (copy on write,
 * tensor/contents.h). A value is live while an array refers to it, because code that is traced
 * later can use it. If a trace is cut into two functions, the live values pass from the first
 * function to the second (compile/function.h).
 *
 * Ownership: traced arrays share the trace (reference count); the code that began a trace ends it.
 * Threads: callers hold the host lock; the active trace is per thread.
 */
#ifndef MPG_AUTOGRAD_TRACE_H
#define MPG_AUTOGRAD_TRACE_H

#include "autograd/array.h"
#include "graph/ir/graph.h"
#include "tensor/contents.h"

typedef struct mpg_trace_constant {
  mpg_array array; /* owned */
  mpg_value value;
  mpg_saved saved; /* contents at the array's first use; only for arrays created during the trace */
} mpg_trace_constant;

/* A cached copy of a value on another device, made for a device group (autograd/groups.h). */
typedef struct mpg_trace_copy {
  mpg_value value, copy;
  mpg_device_id device;
} mpg_trace_copy;

struct mpg_trace {
  int32_t references;
  bool closed;        /* the trace has ended and accepts no more nodes */
  mpg_device_id only; /* if its type is not 0, replaces the device that an op names */
  mpg_graph graph;
  mpg_trace_constant *constants; /* owned */
  size_t num_constants, constants_capacity;
  uint32_t *live; /* per value: number of arrays that refer to it */
  size_t live_capacity;
  mpg_trace_copy *copies; /* owned */
  size_t num_copies, copies_capacity;
  uint64_t born; /* number of storages created before the trace began */
  /* True if slices of traced arrays become ops with the given bounds, even if these are beyond the
   * size, so that the ops are correct for other sizes. */
  bool keeps_bounds;
  /* True if autograd was recording when the trace began. If it no longer is, autograd.pause() is
   * active. */
  bool recording;
  mpg_trace *outer; /* the previously active trace */
};

mpg_status mpg_trace_begin(mpg_trace **trace); /* creates a trace and makes it the active one */
/* Ends the trace and reactivates the outer trace. The caller keeps its reference. */
void mpg_trace_end(mpg_trace *trace);
void mpg_trace_release(mpg_trace *trace);
mpg_trace *mpg_trace_active(void); /* borrowed, or NULL */
/* Makes `trace` (or NULL) the active one and returns the previous one. */
mpg_trace *mpg_trace_swap(mpg_trace *trace);

/* Adds an input to the graph and fills *array (empty) with a traced array for it, which is one of
 * mx.np if `numpy`. */
mpg_status mpg_trace_input(mpg_trace *trace, const mpg_desc *desc, mpg_device_id device, bool numpy,
                           mpg_array *array);
/* Fills *array (empty) with a new traced array for a value of the graph. */
mpg_status mpg_trace_array(mpg_trace *trace, mpg_value value, mpg_array *array);
/* Returns the value of an array in the trace. An array that is not a value of this trace becomes a
 * constant. Error messages name `op`. */
mpg_status mpg_trace_value(mpg_trace *trace, const mpg_array *array, const char *op,
                           mpg_value *value);
/* Sets *array to constant i with the contents that the trace's ops read: a new reference to the
 * constant's array, or a copy of the earlier contents if the array has been written since. */
mpg_status mpg_trace_get_constant(const mpg_trace *trace, size_t i, mpg_array *array);
void mpg_trace_clear_constants(mpg_trace *trace); /* releases all constants */
/* Format of the error for an array that has outlived its trace. %s is the operation that was
 * attempted. */
#define MPG_TRACE_OVER                                                                          \
  "%s: the array was created inside a hybridized block (or the body of a loop) during tracing " \
  "and kept afterwards, so it has no value. Return it from the block to use it outside"
/* Fails if the array may not be written. Values of a trace are immutable. Writing an array that
 * was created outside the active trace would take effect only once, during tracing, and not in
 * later calls. */
mpg_status mpg_trace_check_write(const mpg_array *array, const char *what);
/* Emits an op into the trace's graph. `outputs` has num_visible empty structs to fill. */
mpg_status mpg_trace_call(mpg_trace *trace, const mpg_op *op, const void *params,
                          mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                          int num_visible, bool separate, bool train, uint32_t scope);
/* Support for autograd.pause(). mpg_trace_paused returns true while recording is paused.
 * mpg_trace_pause_value then replaces a new value with a detached one, so that no gradient flows
 * through it. */
bool mpg_trace_paused(const mpg_trace *trace);
mpg_status mpg_trace_pause_value(mpg_trace *trace, mpg_value *value);
/* True if ops on the array belong to the active trace, because the array is traced or was created
 * before the trace began. If an op on this array ran at once, its result would be computed only
 * during tracing and not in later calls. */
bool mpg_trace_takes(const mpg_array *array);

/* Begin and end a recompute region, which contains the nodes traced in between
 * (graph/gradient/recompute.h). Begin returns false and does nothing if no trace is active or a
 * region is already open. */
bool mpg_trace_begin_recompute(void);
void mpg_trace_end_recompute(void);
/* Sets the device that stores the values that the gradients of the nodes traced from now on read
 * (graph/gradient/offload.h). Type 0 means none. Returns the previous device. Does nothing if no
 * trace is active. */
mpg_device_id mpg_trace_set_offload(mpg_device_id device);

#endif
