/* The kernel interface: the arguments of an op's implementation on a backend.
 *
 * A kernel is one function. It receives resolved addresses, shapes and parameters, computes, and
 * returns. It does not lock or allocate memory (mpg_device_scratch provides scratch memory), and
 * waits only if its op is a rendezvous (MPG_OP_RENDEZVOUS). It may use call->num_threads threads.
 * Its results are bit-for-bit reproducible: they depend only on shapes, dtypes, parameters, inputs
 * and call->num_threads. If possible, they don't depend on num_threads either (reductions use
 * chunks of fixed size). Zero-size arrays are valid. A table generated from ops.def lists the
 * kernels of a backend, so a missing kernel is a link error.
 */
#ifndef MPG_OP_KERNEL_H
#define MPG_OP_KERNEL_H

#include "base/philox.h"
#include "op/op.h"

typedef struct mpg_view { /* contiguous array */
  void *data;
  mpg_desc desc;
} mpg_view;

typedef struct mpg_kernel_call {
  const mpg_op *op;   /* NULL for a fused group */
  const void *params; /* mpg_fused for a fused group */
  mpg_device *device;
  void *stream; /* the backend's stream; NULL on CPU devices */
  int num_threads;
  int num_inputs, num_outputs;
  const mpg_view *inputs; /* mutable inputs ("!") are also written through these views */
  /* Outputs never overlap inputs, except at exactly the same address if the op is INPLACE or the
   * input is mutable. */
  const mpg_view *outputs;
  mpg_random_key random; /* RANDOM ops */
  /* Device address of the random key, for work that is captured once and replayed. Each replay
   * reads the current key, whose `first` is 0, from this address. A fused group has one key per
   * draw. If NULL, `random` is used. */
  const mpg_random_key *random_at;
  bool train; /* TRAIN ops */
  /* Scratch memory for a member of a fused group, because members share the device's scratch
   * memory. NULL if the kernel may use the device's scratch memory itself. */
  void *scratch;
  size_t scratch_size;
} mpg_kernel_call;

typedef mpg_status (*mpg_kernel_fn)(const mpg_kernel_call *call);

/* Sets the kernels of a device type: a table indexed by mpg_op_id, set once when the backend's
 * library is loaded. `table` is borrowed and must never be freed. */
void mpg_kernels_set(mpg_device_type type, const mpg_kernel_fn *table, mpg_kernel_fn fused);
/* Returns NULL if the device type has no kernel for this op. */
mpg_kernel_fn mpg_kernel_get(const mpg_device *device, const mpg_op *op);
/* Fails with MPG_NOT_IMPLEMENTED if the device type has no kernel for this op. */
mpg_status mpg_kernel_find(const mpg_device *device, const mpg_op *op, mpg_kernel_fn *kernel);
/* Returns the ABI stamp, a hash of this interface, the ops and their structs. A kernel library must
 * have the same stamp as the core. */
uint64_t mpg_kernel_stamp(void);
/* Returns the kernel that runs fused groups (op/fused.h), or NULL if the backend has none. */
mpg_kernel_fn mpg_kernel_get_fused(const mpg_device *device);

#endif
