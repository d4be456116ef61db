/* Offload of activations: forward values that the backward phase reads are stored on another device
 * in between.
 *
 * A forward node may name a device (mpg_node.offload), which its gradient nodes inherit. A value is
 * offloaded if all backward nodes that read it name a device. The forward phase copies it there as
 * soon as it is computed. The backward phase copies it back before its first reader, with a paced
 * and prefetched copy, so that its memory is planned there. Views of an offloaded value are not
 * copied; the backward phase creates them again. Copies change no bit.
 *
 * Not offloaded are inputs, values in external arrays (outputs), values that are written in place,
 * values with few elements, and values that are on the device already.
 * Threads: callers hold the host lock.
 */
#ifndef MPG_GRAPH_GRADIENT_OFFLOAD_H
#define MPG_GRAPH_GRADIENT_OFFLOAD_H

#include "graph/gradient/recompute.h"

/* True if one of the first num_forward nodes names a device. */
bool mpg_offload_wanted(const mpg_graph *graph, size_t num_forward);

/* The values that may be offloaded. Both arrays have one element per forward value. */
typedef struct mpg_offload_limits {
  const bool *saved;        /* the backward phase reads the value */
  const uint32_t *external; /* external array of the value; UINT32_MAX if none */
  int64_t elements;         /* the fewest elements of an offloaded value */
} mpg_offload_limits;

/* Chooses the values to offload. The first num_forward nodes of `joint`, which contains its
 * recomputation, are the forward phase, and `roots` are the gradients. `targets` has one element
 * per forward value, initially zero. It receives the device of each value to offload. Views are not
 * offloaded, but the values that they are views of. */
mpg_status mpg_offload_find(const mpg_graph *joint, size_t num_forward, const mpg_value *roots,
                            size_t num_roots, const mpg_offload_limits *limits,
                            mpg_device_id *targets);

/* Copies `joint` to `result`, which is initialized and empty. recalled[v] is the copy of the
 * forward value v, or of the value that v is a view of, on the other device, and MPG_NO_VALUE if v
 * is kept. Backward nodes read copies of these copies instead. Otherwise like mpg_recompute_apply.
 */
mpg_status mpg_offload_apply(const mpg_graph *joint, size_t num_forward, const mpg_value *recalled,
                             const mpg_value_list *lists, int num_lists, mpg_graph *result);

#endif
