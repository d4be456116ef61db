/* The kernel interface: what an op's implementation on a backend sees.
 *
 * A kernel is one function. It gets resolved addresses, shapes and parameters, computes, and
 * returns. It does not allocate (mpg_device_scratch is there for work space), lock, or wait, but
 * for ops that meet others (MPG_OP_MEETS). It may use call->num_threads threads. The bits it
 * produces depend on shapes, dtypes, parameters, inputs and call->num_threads alone, and where it
 * can on the first four alone (reductions in chunks of fixed size). Zero-size arrays are valid. A
 * backend's kernels are listed in a table made from ops.def: a promised kernel that is missing is a
 * link error.
 */
#ifndef MPG_OP_KERNEL_H
#define MPG_OP_KERNEL_H

#include "base/philox.h"
#include "op/op.h"

typedef struct mpg_view { /* contiguous */
  void *data;
  mpg_desc desc;
} mpg_view;

typedef struct mpg_kernel_call {
  const mpg_op *op;   /* NULL: a fused group */
  const void *params; /* mpg_fused of a fused group */
  mpg_device *device;
  void *stream; /* the backend's; NULL on CPU */
  int num_threads;
  int num_inputs, num_outputs;
  const mpg_view *inputs;  /* mutable inputs ("!") are written through here too */
  const mpg_view *outputs; /* never overlap inputs, except exactly (same address) where the op is
                              INPLACE or a mutable input */
  mpg_random_key random;   /* RANDOM ops */
  const mpg_random_key *random_at; /* while work is captured: where on the device it is whenever the
                                      work runs, with `first` 0 (a fused group's: one for each of
                                      its draws); NULL: it is `random` */
  bool train;                      /* TRAIN ops */
  void *scratch; /* given to members of a fused group, which share the device's; NULL: the device's
                    is free */
  size_t scratch_size;
} mpg_kernel_call;

typedef mpg_status (*mpg_kernel_fn)(const mpg_kernel_call *call);

/* The kernels of a device type: a table indexed by mpg_op_id, set once when the backend's library
 * is loaded. */
void mpg_kernels_set(mpg_device_type type, const mpg_kernel_fn *table,
                     mpg_kernel_fn fused); /* borrowed, must outlive the process */
mpg_kernel_fn mpg_kernel_get(const mpg_device *device,
                             const mpg_op *op); /* NULL: the device type has none for this op */
mpg_status mpg_kernel_find(const mpg_device *device, const mpg_op *op,
                           mpg_kernel_fn *kernel); /* MPG_NOT_IMPLEMENTED then */
uint64_t mpg_kernel_stamp(void); /* names this interface: its ops and structs; a library of kernels
                                    must have been built for the same */
mpg_kernel_fn mpg_kernel_get_fused(
    const mpg_device *device); /* runs a group of op/fused.h; NULL: the backend has none */

#endif
