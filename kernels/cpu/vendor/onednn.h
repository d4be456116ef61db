/* oneDNN as CPU kernels use it: a table of the functions, opened at run time, and a cache of
 * primitives per device.
 *
 * A prepared primitive is found by a key made of the op, shapes, parameters and number of threads;
 * building one costs tens of microseconds, finding one about a hundred nanoseconds. The cache
 * belongs to the device (device->kernel_cache) and holds a bounded number; the least recently used
 * goes first. Threads: whoever runs the device's work, as for kernels.
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
  dnnl_engine_t engine; /* one for the process */
} mpg_onednn;

#define mpg_cpu_onednn MPG_CPU_NAME(onednn)
const mpg_onednn *mpg_cpu_onednn(void); /* NULL: not there, or turned off by MPGLUON_ONEDNN=0 */

/* oneDNN's name of a dtype that its primitives are fast in on this processor: float32, and
 * bfloat16 where the processor multiplies it (sums are float32, rounded once at the end).
 * dnnl_data_type_undef: there is none. */
#define mpg_cpu_onednn_dtype MPG_CPU_NAME(onednn_dtype)
dnnl_data_type_t mpg_cpu_onednn_dtype(mpg_dtype dtype);

/* The key of a primitive in the cache. Unused fields are zero; compared as bytes. */
enum { MPG_ONEDNN_KEY_VALUES = 32 };
typedef struct mpg_onednn_key {
  int32_t kind; /* of mpg_onednn_kind */
  int32_t num_threads;
  int32_t count; /* values used */
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

/* One step of a prepared operation: a primitive, and for each argument which slot of memory it
 * works on. */
enum { MPG_ONEDNN_SLOTS = 12, MPG_ONEDNN_STEPS = 4, MPG_ONEDNN_ARGS = 6 };
typedef struct mpg_onednn_step {
  dnnl_primitive_t primitive; /* owned */
  int num_args;
  dnnl_exec_arg_t args[MPG_ONEDNN_ARGS]; /* memories of the slots, borrowed */
} mpg_onednn_step;

/* A prepared operation. Slots [0, num_outer) get the addresses the caller passes; the rest are
 * pieces of one scratch buffer. */
typedef struct mpg_onednn_prepared {
  mpg_onednn_key key;
  struct mpg_onednn_prepared *newer, *older, *next; /* order of use; chain of the hash table */
  int num_steps, num_outer, num_slots;
  mpg_onednn_step steps[MPG_ONEDNN_STEPS];
  dnnl_memory_t memory[MPG_ONEDNN_SLOTS]; /* owned */
  size_t offset[MPG_ONEDNN_SLOTS];        /* of the inner slots in the scratch buffer; free for the
                                             builder's use of others */
  size_t scratch;                         /* bytes */
} mpg_onednn_prepared;

/* Fills `prepared` (zeroed, key set) with steps; on failure what it made is destroyed by the
 * caller. False: oneDNN has nothing for this, and the plain kernel is to be used (which is
 * remembered). */
typedef bool (*mpg_onednn_build)(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                                 void *context);

/* The prepared operation of the key, built when it is not there. NULL: use the plain kernel. */
#define mpg_cpu_onednn_find MPG_CPU_NAME(onednn_find)
const mpg_onednn_prepared *mpg_cpu_onednn_find(const mpg_kernel_call *call, mpg_onednn_key *key,
                                               mpg_onednn_build build, void *context);
/* Runs it on the outer slots' addresses. `scratch`: prepared->scratch bytes, 64-byte aligned. */
#define mpg_cpu_onednn_run MPG_CPU_NAME(onednn_run)
mpg_status mpg_cpu_onednn_run(const mpg_kernel_call *call, const mpg_onednn_prepared *prepared,
                              void *const *outer, void *scratch);

/* For builders. Each returns false when oneDNN refuses. A slot's desc is copied. */
#define mpg_cpu_onednn_outer MPG_CPU_NAME(onednn_outer)
bool mpg_cpu_onednn_outer(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                          const_dnnl_memory_desc_t desc, int *slot);
#define mpg_cpu_onednn_inner MPG_CPU_NAME(onednn_inner)
bool mpg_cpu_onednn_inner(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                          const_dnnl_memory_desc_t desc, int *slot);
/* A step from a primitive desc (taken over, also on failure): arguments as pairs (DNNL_ARG_*,
 * slot); the scratchpad is added. */
#define mpg_cpu_onednn_step MPG_CPU_NAME(onednn_step)
bool mpg_cpu_onednn_step(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                         dnnl_primitive_desc_t desc, int num_args, const int (*args)[2]);
/* Whether it is a reference implementation, which takes every layout at a hundredth of the speed.
 */
#define mpg_cpu_onednn_is_reference MPG_CPU_NAME(onednn_is_reference)
bool mpg_cpu_onednn_is_reference(const mpg_onednn *dnnl, const_dnnl_primitive_desc_t desc);
/* A step that copies a slot into another layout. */
#define mpg_cpu_onednn_reorder MPG_CPU_NAME(onednn_reorder)
bool mpg_cpu_onednn_reorder(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                            const_dnnl_memory_desc_t from, int from_slot,
                            const_dnnl_memory_desc_t to, int to_slot);
/* Attributes that all primitives here are made with: scratchpad given by the user. NULL when out of
 * memory. */
#define mpg_cpu_onednn_attributes MPG_CPU_NAME(onednn_attributes)
const_dnnl_primitive_attr_t mpg_cpu_onednn_attributes(const mpg_onednn *dnnl);

/* The same, for a primitive that adds to its result; the caller's. NULL: oneDNN refuses. */
#define mpg_cpu_onednn_attributes_to_sum MPG_CPU_NAME(onednn_attributes_to_sum)
dnnl_primitive_attr_t mpg_cpu_onednn_attributes_to_sum(const mpg_onednn *dnnl);
/* The same, for a primitive that adds an array to its result. */
#define mpg_cpu_onednn_attributes_to_add MPG_CPU_NAME(onednn_attributes_to_add)
dnnl_primitive_attr_t mpg_cpu_onednn_attributes_to_add(const mpg_onednn *dnnl,
                                                       const_dnnl_memory_desc_t added);

/* Makes oneDNN use call->num_threads in this thread; returns what to give back to
 * mpg_onednn_threads_end. */
#define mpg_onednn_threads_begin MPG_CPU_NAME(onednn_threads_begin)
int mpg_onednn_threads_begin(const mpg_kernel_call *call);
#define mpg_onednn_threads_end MPG_CPU_NAME(onednn_threads_end)
void mpg_onednn_threads_end(const mpg_kernel_call *call, int before);

#endif
#endif
