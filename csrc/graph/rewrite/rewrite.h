/* Rewrites: replace patterns of ops with ops that compute the same function in a different way.
 * Results may differ by rounding.
 *
 * Rewrites run on the graph as traced, before the gradient, so that ops that are fused in the
 * forward pass are also fused in the backward pass. Every rule is one sweep over the nodes in
 * order. It matches a pattern backward from its last op, and builds the replacement at that op. All
 * other nodes are copied unchanged, in order, with their scope, origin, mode and random number.
 * Dead nodes are removed. Each rule runs on the result of the previous one.
 *
 * The choices of a rule depend only on ops, shapes, dtypes and parameters, never on devices, with
 * one exception: a device type without a kernel for the replacement keeps the original ops. A
 * pattern looks through copies between devices, and the replacement runs on the device of the
 * pattern's last op, with operands copied to it. A program therefore gives bit-identical results
 * for every placement. A copy is emitted for an operand if and only if the pattern had one on its
 * path, even if it does not cross devices, because gradients are summed along these edges.
 *
 * Ownership: a sweep owns the graph it builds until that graph replaces the source. Threads:
 * callers hold the host lock.
 */
#ifndef MPG_GRAPH_REWRITE_REWRITE_H
#define MPG_GRAPH_REWRITE_REWRITE_H

#include "graph/ir/graph.h"

typedef struct mpg_rewrite mpg_rewrite;

typedef struct mpg_rewrite_rule {
  const char *name;
  /* Called for each live node of the source. Returns true if all used outputs of the node have
   * been replaced (mpg_rewrite_replace). Must not call mpg_rewrite_take or mpg_rewrite_emit
   * before the match is complete, because these start the target graph. Errors are stored in
   * r->status. */
  bool (*apply)(mpg_rewrite *r, uint32_t node);
  bool prediction; /* applies only if no gradient is recorded */
  /* Applies only if results that depend on parameters alone are kept between calls
   * (invariant_hoisting.c). */
  bool keeps;
  /* 1 + the id of an op for which the device type of the pattern's last op must have a kernel; 0
   * means none. */
  uint32_t needs;
} mpg_rewrite_rule;

/* A value of the source graph that the last op of a pattern depends on. */
typedef struct mpg_operand {
  mpg_value value;
  bool moved; /* a copy is on the path from the value to the last op */
} mpg_operand;

struct mpg_rewrite {
  const mpg_graph *graph; /* the source */
  const bool *parameter;  /* per node of the source: true for an input that holds a parameter */
  /* Per value of the source: number of times that live nodes read its contents or the graph
   * outputs it. */
  const uint32_t *users;
  /* Per value of the source: true if it depends on an input whose gradient is needed. */
  const bool *wants;
  /* Per value of the source: the last node that writes it (an auxiliary state), or 0. */
  const uint32_t *written;
  uint32_t node; /* the current node */
  mpg_status status;
  /* Target graph, built from the first match on. */
  bool started;
  mpg_graph target;
  mpg_value *map; /* per value of the source: its value in the target, or MPG_NO_VALUE */
  const bool *live;
  /* fused_attention.c: cached result for the mask examined last, because many layers share a
   * mask. */
  mpg_value looked_at;
  int looked_how; /* 0: added; 1: selects the scores to keep; 2: selects the scores to drop */
  bool hides, hides_forever;
};

typedef struct mpg_rewrite_request {
  mpg_graph *graph; /* rewritten in place */
  /* Inputs of the graph. Replaced by the corresponding inputs of the rewritten graph. The last
   * num_parameters of them hold parameters. */
  mpg_value *inputs;
  size_t num_inputs, num_parameters;
  const bool *wanted; /* per input: true if its gradient is needed */
  bool recording;
  bool keeps; /* results of the invariants phase are kept between calls */
} mpg_rewrite_request;

/* Applies all rules. Sets *changed to false if the graph is unchanged. Inputs and effects are
 * always kept. */
mpg_status mpg_graph_rewrite(const mpg_rewrite_request *request, bool *changed);

/* --- For rules: matching ---------------------------------------------------------------------- */
static inline const mpg_node *mpg_rewrite_node(const mpg_rewrite *r, mpg_operand operand) {
  return &r->graph->nodes[operand.value.node];
}
static inline const mpg_desc *mpg_rewrite_desc(const mpg_rewrite *r, mpg_operand operand) {
  return &mpg_graph_at(r->graph, operand.value)->desc;
}
static inline const void *mpg_rewrite_params(const mpg_rewrite *r, mpg_operand operand) {
  return mpg_rewrite_node(r, operand)->params;
}
static inline uint32_t mpg_rewrite_users(const mpg_rewrite *r, mpg_operand operand) {
  return r->users[mpg_value_index(r->graph, operand.value)];
}
/* mpg_rewrite_shown returns output 0 of the current node. mpg_rewrite_input returns input i of the
 * node that computes an operand. */
static inline mpg_operand mpg_rewrite_shown(const mpg_rewrite *r) {
  return (mpg_operand){{r->node, 0}, false};
}
mpg_operand mpg_rewrite_input(const mpg_rewrite *r, mpg_operand operand, uint32_t i);
/* Skips copies and identity ops (a reshape to the same shape) and returns the value before them. */
mpg_operand mpg_rewrite_skip_copies(const mpg_rewrite *r, mpg_operand operand);
/* Skips copies to find an output of `op`. MPG_PRIVATE requires that every value on the path,
 * including *found, has a single user and is not a graph output, so that it is removed with the
 * pattern. Returns false if no output of `op` is found, or if an input of the op is overwritten
 * later, because the replacement would read the new contents. */
typedef enum mpg_match { MPG_SHARED, MPG_PRIVATE } mpg_match;
bool mpg_rewrite_match(const mpg_rewrite *r, mpg_operand from, mpg_op_id op, mpg_match match,
                       mpg_operand *found);
/* True if the operand is an array filled with one number that is known at compile time. */
bool mpg_rewrite_constant(const mpg_rewrite *r, mpg_operand operand, double *value);
/* Evaluates an array, for instance a mask, that depends only on constants and shapes in the
 * program (constant_folding.c). Returns a new array, or NULL if the elements are unknown. */
double *mpg_rewrite_evaluate(const mpg_rewrite *r, mpg_operand operand);
/* Matches x * c, c * x or x / c with a scalar c, and division by the square root of a dim
 * (_contrib_div_sqrt_dim). Otherwise returns false, with *x = from and *factor = 1. */
bool mpg_rewrite_scaled(const mpg_rewrite *r, mpg_operand from, mpg_match match, mpg_operand *x,
                        double *factor);
/* True if the operand is an input of the graph that holds a parameter, possibly copied to another
 * device. */
bool mpg_rewrite_is_parameter(const mpg_rewrite *r, mpg_operand operand);
/* True if the operand depends on an input whose gradient is needed. */
static inline bool mpg_rewrite_wants(const mpg_rewrite *r, mpg_operand operand) {
  return r->wants[mpg_value_index(r->graph, operand.value)];
}

/* mpg_rewrite_is_relu is true for relu, and mpg_rewrite_is_addition for an addition of two arrays
 * of the same shape. */
bool mpg_rewrite_is_relu(const mpg_node *node);
bool mpg_rewrite_is_addition(const mpg_rewrite *r, const mpg_node *node);
/* True if the operand is a channels-last convolution that is faster with Winograd's algorithm
 * (op/layers/winograd.c). */
bool mpg_rewrite_winograd_pays(const mpg_rewrite *r, mpg_operand convolution, bool packed);

/* --- For sweeps ------------------------------------------------------------------------------- */
/* Starts the target by copying all nodes before the current one. Does nothing if it is started. */
void mpg_rewrite_start(mpg_rewrite *r);
/* Copies a node to the target unchanged. */
mpg_status mpg_rewrite_take_over(mpg_rewrite *r, uint32_t number);

/* --- For rules: building ---------------------------------------------------------------------- */
/* Returns the operand as a value of the target, on the last op's device. */
mpg_value mpg_rewrite_take(mpg_rewrite *r, mpg_operand operand);
/* Emits an op on values of the target, in the last op's scope and mode. `outputs` has one element
 * per output. Returns the first output. */
mpg_value mpg_rewrite_emit(mpg_rewrite *r, mpg_op_id op, const void *params,
                           const mpg_value *inputs, int num_inputs, mpg_value *outputs);
/* Like mpg_rewrite_emit, but with the mode of `like`, a node of the pattern, and the same random
 * numbers. */
mpg_value mpg_rewrite_emit_random(mpg_rewrite *r, mpg_operand like, mpg_op_id op,
                                  const void *params, const mpg_value *inputs, int num_inputs,
                                  mpg_value *outputs);
/* Reshapes a value of the target. Returns the value itself if it already has the shape. */
mpg_value mpg_rewrite_reshape(mpg_rewrite *r, mpg_value value, const mpg_shape *shape);
/* Replaces an output of the current node with `value`, which must have the same shape, dtype and
 * device. */
void mpg_rewrite_replace(mpg_rewrite *r, uint32_t output, mpg_value value);

/* The rules and their files. */
extern const mpg_rewrite_rule mpg_rule_transposed_product; /* matrix_products.c */
extern const mpg_rewrite_rule mpg_rule_folded_norm;        /* fold_batch_norm.c */
extern const mpg_rewrite_rule mpg_rule_attention;          /* fused_attention.c */
extern const mpg_rewrite_rule mpg_rule_attention_result;   /* fused_attention.c */
extern const mpg_rewrite_rule mpg_rule_channels_last;      /* channels_last.c */
/* packed_weights.c; runs after the rules that choose layouts. */
extern const mpg_rewrite_rule mpg_rule_packed_relu, mpg_rule_packed, mpg_rule_packed_dense;
extern const mpg_rewrite_rule mpg_rule_winograd; /* winograd_convolution.c */

#endif
