/* oneDNN for CPU kernels: a table of its functions, loaded at run time, and a per-device cache of
 * primitives.
 *
 * A prepared primitive is cached under a key of the op, shapes, parameters and number of threads.
 * Building one takes tens of microseconds, finding one about a hundred nanoseconds. The cache
 * belongs to the device (device->kernel_cache), has a bounded size, and evicts the least recently
 * used entry. Threads: only the thread that runs the device's work, as for all kernels.
 */
#ifndef KERNELS_CPU_VENDOR_ONEDNN_H
#define KERNELS_CPU_VENDOR_ONEDNN_H

#include "kernels/cpu/cpu.h"

#ifdef MPG_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>

/* clang-format off */
#define MPG_ONEDNN_FUNCTIONS(X)                                                                   \
  X(sgemm)                                                                                         \
  X(get_effective_cpu_isa)                                                                         \
  X(engine_create)                                                                                 \
  X(stream_create)                                                                                 \
  X(stream_destroy)                                                                                \
  X(primitive_create)                                                                              \
  X(primitive_execute)                                                                             \
  X(primitive_destroy)                                                                             \
  X(primitive_desc_destroy)                                                                        \
  X(primitive_desc_query)                                                                          \
  X(primitive_desc_query_md)                                                                       \
  X(memory_create)                                                                                 \
  X(memory_destroy)                                                                                \
  X(memory_set_data_handle)                                                                        \
  X(memory_desc_create_with_strides)                                                               \
  X(memory_desc_create_with_tag)                                                                   \
  X(memory_desc_clone)                                                                             \
  X(memory_desc_destroy)                                                                           \
  X(memory_desc_get_size)                                                                          \
  X(memory_desc_equal)                                                                             \
  X(primitive_attr_create)                                                                         \
  X(primitive_attr_destroy)                                                                        \
  X(primitive_attr_set_scratchpad_mode)                                                            \
  X(matmul_primitive_desc_create)                                                                  \
  X(convolution_forward_primitive_desc_create)                                                     \
  X(convolution_backward_data_primitive_desc_create)                                               \
  X(convolution_backward_weights_primitive_desc_create)                                            \
  X(reorder_primitive_desc_create)                                                                 \
  X(post_ops_create)                                                                               \
  X(post_ops_destroy)                                                                              \
  X(post_ops_append_sum)                                                                           \
  X(post_ops_append_binary)                                                                        \
  X(primitive_attr_set_post_ops)
/* clang-format on */

typedef struct mpg_onednn {
#define MPG_ONEDNN_FIELD(name) __typeof__(&dnnl_##name) name;
  MPG_ONEDNN_FUNCTIONS(MPG_ONEDNN_FIELD)
#undef MPG_ONEDNN_FIELD
  dnnl_engine_t engine; /* one per process */
} mpg_onednn;

/* Returns oneDNN's functions, or NULL if the library is missing or disabled by MPGLUON_ONEDNN=0. */
const mpg_onednn *mpg_cpu_onednn(void) MPG_PER_ISA(mpg_cpu_onednn);

/* Returns oneDNN's type for `dtype` if this processor has fast primitives for it: always for
 * float32, and for bfloat16 if the processor can multiply bfloat16 (sums are float32, rounded once
 * at the end). Otherwise returns dnnl_data_type_undef. */
dnnl_data_type_t mpg_cpu_onednn_dtype(mpg_dtype dtype) MPG_PER_ISA(mpg_cpu_onednn_dtype);

/* Cache key of a primitive. Unused fields must be zero, because keys are compared as bytes. */
enum { MPG_ONEDNN_KEY_VALUES = 32 };
typedef struct mpg_onednn_key {
  int32_t kind; /* an mpg_onednn_kind */
  int32_t num_threads;
  int32_t count; /* number of values */
  int32_t unused;
  int64_t values[MPG_ONEDNN_KEY_VALUES];
} mpg_onednn_key;
typedef enum mpg_onednn_kind {
  MPG_ONEDNN_MATMUL = 1,
  MPG_ONEDNN_CONVOLUTION,
  MPG_ONEDNN_CONVOLUTION_DATA,
  MPG_ONEDNN_CONVOLUTION_WEIGHT,
  MPG_ONEDNN_PACK_CONVOLUTION,
  MPG_ONEDNN_PACKED_CONVOLUTION,
  MPG_ONEDNN_PACK_MATMUL,
  MPG_ONEDNN_PACKED_MATMUL,
  MPG_ONEDNN_PACK_PANELS,
  MPG_ONEDNN_PANEL
} mpg_onednn_kind;

/* Maximum numbers of slots and steps of a prepared operation, and of arguments of a step. */
enum { MPG_ONEDNN_SLOTS = 12, MPG_ONEDNN_STEPS = 4, MPG_ONEDNN_ARGS = 6 };

/* One step of a prepared operation: a primitive, and the memory slot of each argument. */
typedef struct mpg_onednn_step {
  dnnl_primitive_t primitive; /* owned */
  int num_args;
  dnnl_exec_arg_t args[MPG_ONEDNN_ARGS]; /* borrow the memory of their slots */
} mpg_onednn_step;

/* A prepared operation. The caller passes the addresses of slots [0, num_outer); the rest are parts
 * of one scratch buffer. */
typedef struct mpg_onednn_prepared {
  mpg_onednn_key key;
  struct mpg_onednn_prepared *newer, *older, *next; /* LRU list; hash chain */
  int num_steps, num_outer, num_slots;
  mpg_onednn_step steps[MPG_ONEDNN_STEPS];
  dnnl_memory_t memory[MPG_ONEDNN_SLOTS]; /* owned */
  /* Offsets of inner slots in the scratch buffer. Builders may use the entries of outer slots. */
  size_t offset[MPG_ONEDNN_SLOTS];
  size_t scratch; /* bytes */
} mpg_onednn_prepared;

/* Builder: adds slots and steps to `prepared`, which is zeroed except for its key. Returns false if
 * oneDNN has no implementation. The caller then destroys the parts that were built and caches the
 * failure, and the plain kernel runs. */
typedef bool (*mpg_onednn_build)(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                                 void *context);

/* Returns the prepared operation for the key, building it if necessary. Returns NULL if the caller
 * must use the plain kernel. */
const mpg_onednn_prepared *mpg_cpu_onednn_find(const mpg_kernel_call *call, mpg_onednn_key *key,
                                               mpg_onednn_build build, void *context)
    MPG_PER_ISA(mpg_cpu_onednn_find);
/* Runs a prepared operation on the outer slots' addresses. `scratch` has prepared->scratch bytes,
 * 64-byte aligned. */
mpg_status mpg_cpu_onednn_run(const mpg_kernel_call *call, const mpg_onednn_prepared *prepared,
                              void *const *outer, void *scratch) MPG_PER_ISA(mpg_cpu_onednn_run);

/* Functions for builders. Each returns false if oneDNN fails. The first two add a slot with a copy
 * of `desc` and store its index in *slot: an outer slot for the caller's memory, or an inner slot
 * for a part of the scratch buffer. */
bool mpg_cpu_onednn_outer(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                          const_dnnl_memory_desc_t desc, int *slot)
    MPG_PER_ISA(mpg_cpu_onednn_outer);
bool mpg_cpu_onednn_inner(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                          const_dnnl_memory_desc_t desc, int *slot)
    MPG_PER_ISA(mpg_cpu_onednn_inner);
/* Adds a step that runs the primitive of `desc`. Takes ownership of `desc`, even on failure.
 * Arguments are pairs (DNNL_ARG_*, slot). The scratchpad is added automatically. */
bool mpg_cpu_onednn_step(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                         dnnl_primitive_desc_t desc, int num_args, const int (*args)[2])
    MPG_PER_ISA(mpg_cpu_onednn_step);
/* True if the primitive is oneDNN's reference implementation, which accepts every layout but is
 * about 100 times slower. */
bool mpg_cpu_onednn_is_reference(const mpg_onednn *dnnl, const_dnnl_primitive_desc_t desc)
    MPG_PER_ISA(mpg_cpu_onednn_is_reference);
/* Adds a step that copies a slot into a different layout. */
bool mpg_cpu_onednn_reorder(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                            const_dnnl_memory_desc_t from, int from_slot,
                            const_dnnl_memory_desc_t to, int to_slot)
    MPG_PER_ISA(mpg_cpu_onednn_reorder);
/* Returns the attributes that all primitives share, under which the caller provides the
 * scratchpad. */
const_dnnl_primitive_attr_t mpg_cpu_onednn_attributes(const mpg_onednn *dnnl)
    MPG_PER_ISA(mpg_cpu_onednn_attributes);

/* Like mpg_cpu_onednn_attributes, for a primitive that accumulates into its result. The caller owns
 * the attributes. Returns NULL if oneDNN fails. */
dnnl_primitive_attr_t mpg_cpu_onednn_attributes_to_sum(const mpg_onednn *dnnl)
    MPG_PER_ISA(mpg_cpu_onednn_attributes_to_sum);
/* Like mpg_cpu_onednn_attributes, for a primitive that adds an array to its result. */
dnnl_primitive_attr_t mpg_cpu_onednn_attributes_to_add(const mpg_onednn *dnnl,
                                                       const_dnnl_memory_desc_t added)
    MPG_PER_ISA(mpg_cpu_onednn_attributes_to_add);

/* Sets oneDNN's thread count to call->num_threads on this thread. Returns the previous count, for
 * mpg_onednn_threads_end. */
int mpg_onednn_threads_begin(const mpg_kernel_call *call) MPG_PER_ISA(mpg_onednn_threads_begin);
void mpg_onednn_threads_end(const mpg_kernel_call *call, int before)
    MPG_PER_ISA(mpg_onednn_threads_end);

#endif
#endif
