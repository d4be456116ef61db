/* Graphs: ops on values, in topological order.
 *
 * A graph is a list of nodes in creation order, which is topological. A node is an input (no op),
 * an op, or an opaque call that only its creator can run and differentiate (a Python function, a
 * compiled call). A value is one output of a node. Its shape, dtype and device are known when it is
 * created, because emitting a node infers its outputs and chooses its device. Node numbers never
 * change: passes only append nodes, rewire inputs, or mark live nodes. A node number and an output
 * index therefore identify a value in every pass, from the trace to the programs.
 *
 * A node with a mutable input ("!", an auxiliary state) has an effect. It is never removed, and
 * keeps its position among the users of that input. A host step also has an effect.
 *
 * Ownership: a graph owns its memory, including params that it copied. Threads: callers hold the
 * host lock.
 */
#ifndef MPG_GRAPH_IR_GRAPH_H
#define MPG_GRAPH_IR_GRAPH_H

#include "base/memory.h"
#include "base/text.h"
#include "op/op.h"

typedef enum mpg_phase { MPG_PHASE_FORWARD, MPG_PHASE_BACKWARD, MPG_PHASE_INVARIANT } mpg_phase;

#define MPG_NO_RANDOM UINT32_MAX

typedef struct mpg_node {
  const mpg_op *op;   /* NULL for an input or an opaque call */
  void *opaque;       /* data of an opaque call, owned by its creator */
  const void *params; /* NULL for ops without params */
  mpg_device_id device;
  uint32_t inputs; /* index of its first input in graph->inputs */
  uint32_t values; /* index of its first output in graph->values */
  uint32_t num_inputs, num_outputs;
  uint32_t scope;            /* block path (mpg_scope_text); 0 means none */
  uint32_t origin;           /* source line in the user's program (mpg_host_origin) */
  uint32_t recompute_region; /* region of nodes recomputed together (recompute.h); 0 means none */
  /* Device that stores the values that the node's gradient reads (offload.h); type 0 means none. */
  mpg_device_id offload;
  /* In graphs from the tape: sequence number of the node's own op, or of the forward op whose
   * gradients it computes (graph_gradient.c). */
  uint64_t family;
  uint32_t duplicate_of; /* 1 + an earlier node with the same values (simplify.c); 0 if none */
  uint32_t random;       /* index of its random call in program order, or MPG_NO_RANDOM */
  mpg_random_part draw;  /* part of the draw, if the node is a part of a divided one */
  uint8_t phase;         /* mpg_phase */
  bool train;
  /* Views only: the user expects a new array. If an output of the graph is this view, or a view of
   * it, the output must share no memory with inputs or other outputs (compile/compile.c). */
  bool separate;
  bool recomputes; /* a copy of a forward node in the backward phase (recompute.h) */
  bool starts;     /* opaque calls only: the call starts a gradient (mpg_node_starts) */
  bool numpy;      /* inputs only: an array of mx.np (mpg_node_is_numpy) */
} mpg_node;

typedef struct mpg_graph_value {
  mpg_desc desc;
  mpg_device_id device;
} mpg_graph_value;

typedef struct mpg_graph {
  /* Interface through which gradient formulas emit nodes. The first field, because it is cast to
   * the graph. */
  mpg_builder builder;
  mpg_node *nodes;
  size_t num_nodes, nodes_capacity;
  mpg_value *inputs; /* inputs of all nodes; only opaque calls may have MPG_NO_VALUE */
  size_t num_inputs, inputs_capacity;
  mpg_graph_value *values;
  size_t num_values, values_capacity;
  /* Storage of `values`. Older blocks stay until the graph is cleared, because gradient formulas
   * hold pointers to descs while they emit. */
  struct mpg_value_block *value_block;
  mpg_value *outputs; /* outputs of the graph */
  size_t num_outputs, outputs_capacity;
  mpg_desc *descs; /* work space for mpg_graph_emit */
  size_t descs_capacity;
  mpg_arena arena; /* holds params */
  uint32_t num_random;
  /* Current settings, copied into each appended node. */
  uint32_t scope, origin, recompute_region;
  mpg_device_id offload;
  uint64_t family;
  uint8_t phase;
  bool train;
  bool has_families;              /* some nodes compute gradients of other nodes (node->family) */
  uint32_t num_recompute_regions; /* regions 1..num_recompute_regions are in use */
  bool borrow_params;             /* params outlive the graph, so they are not copied */
} mpg_graph;

void mpg_graph_init(mpg_graph *graph);
void mpg_graph_free(mpg_graph *graph);
void mpg_graph_clear(mpg_graph *graph); /* empties the graph; keeps its memory for reuse */
/* Copies a graph; nodes keep their numbers. `target` must be initialized and empty. */
mpg_status mpg_graph_copy(mpg_graph *target, const mpg_graph *source);

mpg_status mpg_graph_input(mpg_graph *graph, const mpg_desc *desc, mpg_device_id device,
                           mpg_value *value);
/* Appends a node for an op that has already run, so nothing is inferred. `params` is not copied and
 * must outlive the graph. The caller fills in the outputs, graph->values[nodes[*node].values +
 * i]. */
mpg_status mpg_graph_known(mpg_graph *graph, const mpg_op *op, void *opaque, const void *params,
                           const mpg_value *inputs, uint32_t num_inputs, uint32_t num_outputs,
                           mpg_device_id device, uint32_t *node);
/* Infers the outputs of an op, chooses its device, and appends its node. The device of `like` is
 * used if neither inputs nor params determine one; `like` may be MPG_NO_VALUE. `outputs` has one
 * element per output of the op. */
mpg_status mpg_graph_emit(mpg_graph *graph, const mpg_op *op, const void *params,
                          const mpg_value *inputs, int num_inputs, mpg_value like,
                          mpg_value *outputs);
/* Appends a copy of node `number` of another graph, with inputs from this graph. All other fields
 * are kept, such as the random call index. */
mpg_status mpg_graph_append(mpg_graph *graph, const mpg_graph *from, uint32_t number,
                            const mpg_value *inputs, uint32_t *node);
mpg_status mpg_graph_set_outputs(mpg_graph *graph, const mpg_value *values, size_t count);

static inline uint32_t mpg_value_index(const mpg_graph *graph, mpg_value value) {
  return graph->nodes[value.node].values + value.output;
}
static inline mpg_graph_value *mpg_graph_at(const mpg_graph *graph, mpg_value value) {
  return &graph->values[mpg_value_index(graph, value)];
}
static inline const mpg_value *mpg_node_inputs(const mpg_graph *graph, const mpg_node *node) {
  return graph->inputs + node->inputs;
}
static inline bool mpg_node_is_input(const mpg_node *node) { return !node->op && !node->opaque; }
static inline bool mpg_node_flag(const mpg_node *node, mpg_op_flags flag) {
  return node->op && (node->op->flags & flag);
}
/* True if the node's values are arrays of mx.np. */
static inline bool mpg_node_is_numpy(const mpg_node *node) {
  return node->op ? mpg_op_is_numpy(node->op) : node->numpy;
}
/* True if the node starts a gradient: its input gradients can be nonzero even if its output
 * gradients are zero. This holds for losses, and for calls that contain losses or run Python
 * code. */
static inline bool mpg_node_starts(const mpg_node *node) {
  return node->op ? mpg_op_starts_gradient(node->op) : node->starts;
}
/* True if the node runs on several devices (op/array/collective.h). */
static inline bool mpg_node_spans(const mpg_node *node) {
  return mpg_node_flag(node, MPG_OP_SPANS);
}
/* Adds a word to a hash. */
static inline uint64_t mpg_hash_word(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}
static inline size_t mpg_desc_bytes(const mpg_desc *desc) {
  return (size_t)mpg_shape_size(&desc->shape) * mpg_dtype_size(desc->dtype);
}
/* True if the node changes state: it writes one of its inputs, or runs user code on the host. */
bool mpg_node_mutates(const mpg_node *node);
static inline bool mpg_node_runs_on_host(const mpg_node *node) {
  return node->op && mpg_op_runs_on_host(node->op);
}
/* True for VIEW ops, whose output 0 may share the memory of input 0 because the bytes are equal. */
static inline bool mpg_node_is_view(const mpg_node *node) {
  return mpg_node_flag(node, MPG_OP_VIEW) && node->num_outputs == 1;
}
/* True for a view whose gradients of all orders are views as well. */
static inline bool mpg_node_is_reshape(const mpg_node *node) {
  return mpg_node_is_view(node) && !mpg_node_flag(node, MPG_OP_GRADIENT_ONLY);
}
/* True for a COPY node whose input is on another device. */
bool mpg_node_crosses(const mpg_graph *graph, const mpg_node *node);
/* True for a crossing copy that waits for the receiving device before it starts. Between ranks,
 * only the receiving rank waits: it does not take the data earlier. */
bool mpg_node_is_paced(const mpg_graph *graph, const mpg_node *node);

/* Position of a batch's rows in a random draw. The draw is viewed as an array of shape (outer,
 * rows, inner). `outer` is 0 if the position is unknown. */
typedef struct mpg_drawn {
  int64_t outer, inner;
  bool rowless; /* the draw has no rows, so all micro-batches draw the same numbers */
} mpg_drawn;

/* Appends a copy of a value on its own device. */
mpg_status mpg_graph_emit_copy(mpg_graph *graph, mpg_value value, mpg_value *copy);
/* Appends a copy of a value to a device. A `paced` copy waits for its target, and its memory is
 * planned there; a `prefetched` one is sent one copy ahead (mpg_order_prefetch). */
mpg_status mpg_graph_emit_move(mpg_graph *graph, mpg_value value, mpg_device_id device, bool paced,
                               bool prefetched, mpg_value *copy);
/* Appends a constant array with the shape, dtype and device of `like`. */
mpg_status mpg_graph_emit_full_like(mpg_graph *graph, mpg_value like, double fill,
                                    mpg_value *result);
/* Returns the value at the root of a chain of views. */
mpg_value mpg_view_root(const mpg_graph *graph, mpg_value value);

/* --- Passes ----------------------------------------------------------------------------------- */

/* cost.c: sets costs[n] to the estimated cost of node n; zero for inputs and opaque calls. */
mpg_status mpg_graph_costs(const mpg_graph *graph, mpg_cost *costs);
/* Estimates the run time of a node in seconds. For a copy to another device, this is the transfer
 * time. */
double mpg_node_seconds(const mpg_graph *graph, const mpg_node *node, mpg_cost cost);

/* graph_gradient.c: appends the gradient of sum(heads[i] * head_grads[i]) with respect to
 * `wanted`. gradients[i] is the gradient of wanted[i], or MPG_NO_VALUE if it is zero. A loss that
 * a head depends on starts its own gradient, even through edges without a gradient (BlockGrad,
 * argmax), but not through detached values. The contributions to a value are added in an order
 * that does not depend on placement, so the result is bit-identical for every placement. */
typedef struct mpg_differentiation {
  const mpg_value *heads, *head_grads;
  size_t num_heads;
  const mpg_value *wanted;
  size_t num_wanted;
  mpg_value *gradients;
  bool train;     /* mode of the appended nodes */
  bool lenient;   /* ops without a gradient are treated as constants instead of failing */
  uint32_t first; /* nodes before this one are treated as constants */
} mpg_differentiation;
mpg_status mpg_graph_gradient(mpg_graph *graph, const mpg_differentiation *request);

/* simplify.c: bypasses identity nodes (algebraic_simplification.c), and nodes that duplicate an
 * earlier node of their phase and recompute region (common_subexpressions.c). Their users and the
 * graph's outputs read the equal value instead. Results stay bit-identical. Effects, random draws,
 * and the order of reads and writes are kept. Outputs that were separate arrays still share no
 * memory with each other or with the user's inputs. */
mpg_status mpg_graph_simplify(mpg_graph *graph);

/* invariant_hoisting.c: moves nodes that depend only on `fixed` inputs (parameters) and constants
 * to the invariants phase, which runs only after a fixed input has been written, not in every call.
 * *kept lists the values of that phase that nodes of other phases read. The caller frees *kept even
 * after an error. Only for graphs that are not differentiated. */
mpg_status mpg_graph_hoist_invariants(mpg_graph *graph, const mpg_value *fixed, size_t num_fixed,
                                      mpg_value **kept, size_t *num_kept);

/* order.c: computes an execution order of the live nodes of `phase`. A node is live if `roots`
 * depend on it or, in the forward phase, if it has an effect or an effect depends on it. A copy to
 * another device directly follows the node that computes the copied value. */
typedef struct mpg_segment { /* consecutive nodes of one device that are queued as one task */
  mpg_device_id device;
  uint32_t depth; /* number of device changes on the longest path to it (stages.c) */
  uint32_t part;  /* number of the part of its stage, in order; odd for host steps */
  bool deferred;  /* no other device waits for the segment (weight gradients) */
} mpg_segment;
typedef struct mpg_order {
  uint32_t *nodes; /* owned */
  size_t count;
  uint32_t *segment_of;  /* segment per position, owned; NULL means one segment per device */
  mpg_segment *segments; /* owned */
  uint32_t num_segments;
  struct mpg_fusion *fusion; /* groups that run as one kernel (fuse.h), owned; NULL means none */
} mpg_order;
mpg_status mpg_graph_order(const mpg_graph *graph, mpg_phase phase, const mpg_value *roots,
                           size_t num_roots, mpg_order *order);
/* Moves each node with a number >= `first` (a sum of gradients) to directly after the last of its
 * inputs. The inputs are then still in the cache, and their memory can be reused for the next
 * gradient. */
mpg_status mpg_order_follow(const mpg_graph *graph, uint32_t first, mpg_order *order);
/* Moves each prefetched copy to the position of the preceding prefetched copy between the same
 * devices. The device then receives a stored parameter while it computes with the preceding one. */
mpg_status mpg_order_prefetch(const mpg_graph *graph, mpg_order *order);
void mpg_order_free(mpg_order *order);
/* Returns the device whose program contains the node. A copy to another device runs on the source
 * device. */
static inline mpg_device_id mpg_node_runs_on(const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_crosses(graph, node)
             ? mpg_graph_at(graph, mpg_node_inputs(graph, node)[0])->device
             : node->device;
}

/* stages.c: reorders the nodes by stage and cuts them into segments that can be queued separately
 * (pipelines). A stage is the part of a network that one device runs between two changes of device.
 * Host steps, which the submitting thread runs, are separate segments and divide a stage into
 * parts. With `defer`, nodes that neither another device nor a value in `urgent` depends on come
 * last on each device, in separate segments. Results stay bit-identical: a node moves neither
 * before a node that it depends on, nor past a node that shares a state with it. */
mpg_status mpg_graph_stages(const mpg_graph *graph, mpg_order *order, const mpg_value *urgent,
                            size_t num_urgent, bool defer);

/* True if a value is on a device that names a rank. All ranks then trace and compile the graph. */
bool mpg_graph_spans_ranks(const mpg_graph *graph);
/* dump.c: appends the graph to the text, one line per node. Tests depend on the format. */
void mpg_graph_dump(const mpg_graph *graph, mpg_text *text);
/* verify.c: returns MPG_ERROR with a text that names the first broken invariant. Debug builds call
 * it between passes. */
mpg_status mpg_graph_verify(const mpg_graph *graph);
#ifdef MPG_DEBUG
#define MPG_VERIFY(graph) MPG_ASSERT(mpg_graph_verify(graph) == MPG_OK)
#else
#define MPG_VERIFY(graph) ((void)0)
#endif

#endif
