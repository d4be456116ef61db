/* Rewrites that change bits: patterns of ops replaced by ops that compute the same function another
 * way.
 *
 * They run on the graph as traced, before the gradient, so that ops that are fused forward are
 * fused backward. Every rule is one sweep: it is shown the nodes in order, matches a pattern by its
 * last op, looking back, and builds the replacement there; all other nodes are taken over as they
 * are, in their order, with their scope, origin, mode and random number. Nodes without readers are
 * removed. Rules run one after the other, each on the result of the one before.
 *
 * The choices of a rule depend on ops, shapes, dtypes and parameters alone, never on devices (a
 * kind of device that has no kernel for what it would put in keeps the ops as they are): a pattern
 * looks through copies between devices, and the replacement runs where the pattern's last op ran,
 * on operands that come there by copies. So the same program has the same bits wherever it is
 * placed. A copy is emitted for an operand exactly where the pattern had one on its way, whether it
 * crosses or not, because gradients are summed along these edges.
 *
 * Ownership: a sweep owns the graph it builds until it takes the source's place. Threads: host
 * lock.
 */
#ifndef MPG_GRAPH_REWRITE_REWRITE_H
#define MPG_GRAPH_REWRITE_REWRITE_H

#include "graph/ir/graph.h"

typedef struct mpg_rewrite mpg_rewrite;

typedef struct mpg_rewrite_rule {
  const char *name;
  /* Shown a live node of the source. True: all outputs of the node that are read have been replaced
   * (mpg_rewrite_replace). Nothing may be taken or emitted before the match is complete. Errors
   * stick to r->status. */
  bool (*apply)(mpg_rewrite *r, uint32_t node);
  bool prediction; /* only where no gradient is recorded */
  bool keeps;      /* only where what depends on parameters alone is kept from call to call
                      (invariant_hoisting.c) */
  uint32_t needs;  /* 1 + an op that the kind of device of the pattern's last op must have a kernel
                      for; 0: none */
} mpg_rewrite_rule;

/* An edge of the source graph, seen from a pattern's last op. */
typedef struct mpg_operand {
  mpg_value value;
  bool moved; /* a copy lies between the value and the last op */
} mpg_operand;

struct mpg_rewrite {
  const mpg_graph *graph; /* the source */
  const bool *parameter;  /* per node of the source: an input that holds a parameter */
  const uint32_t *users;  /* per value of the source: how many inputs that live nodes read, and
                             outputs of the graph, it is */
  const bool *wants; /* per value of the source: it depends on an input whose gradient is wanted */
  const uint32_t *written; /* per value of the source: the last node that writes it (an auxiliary
                              state), or 0 */
  uint32_t node;           /* the one being shown */
  mpg_status status;
  /* The target, built from the first match on. */
  bool started;
  mpg_graph target;
  mpg_value *map; /* per value of the source; MPG_NO_VALUE */
  const bool *live;
  /* fused_attention.c: the last mask that was examined, which many layers share, and the result. */
  mpg_value looked_at;
  bool hides, hides_forever;
};

typedef struct mpg_rewrite_request {
  mpg_graph *graph;  /* rewritten in place */
  mpg_value *inputs; /* of the graph; they become the rewritten graph's. The last num_parameters of
                        them hold parameters */
  size_t num_inputs, num_parameters;
  const bool *wanted; /* per input: its gradient is */
  bool recording;
  bool keeps; /* there is a invariants */
} mpg_rewrite_request;

/* Applies all rules. *changed: whether any did; else the graph is untouched. Inputs and effects are
 * always kept. */
mpg_status mpg_graph_rewrite(const mpg_rewrite_request *request, bool *changed);

/* --- For rules: looking ----------------------------------------------------------------------- */
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
/* The shown node's output, and inputs of the node that makes an operand. */
static inline mpg_operand mpg_rewrite_shown(const mpg_rewrite *r) {
  return (mpg_operand){{r->node, 0}, false};
}
mpg_operand mpg_rewrite_input(const mpg_rewrite *r, mpg_operand operand, uint32_t i);
/* The value behind copies and ops that do nothing (a reshape to the same shape). */
mpg_operand mpg_rewrite_behind(const mpg_rewrite *r, mpg_operand operand);
/* Steps behind copies to an output of `op`. PRIVATE: everything on the way, and the output found,
 * has this one user and is no output of the graph, so that it vanishes with the pattern. What the
 * op found reads must not be written later: the replacement reads it later. */
typedef enum mpg_match { MPG_SHARED, MPG_PRIVATE } mpg_match;
bool mpg_rewrite_match(const mpg_rewrite *r, mpg_operand from, mpg_op_id op, mpg_match match,
                       mpg_operand *found);
/* The operand is an array filled with one number, known now. */
bool mpg_rewrite_constant(const mpg_rewrite *r, mpg_operand operand, double *value);
/* The elements of an array that depends on shapes and parameters alone (constant_folding.c), as a
 * mask may: new, or NULL where it cannot be told. */
double *mpg_rewrite_evaluate(const mpg_rewrite *r, mpg_operand operand);
/* x * c, c * x, x / c, or x itself with factor 1; by a scalar op. True for all but the last. */
bool mpg_rewrite_scaled(const mpg_rewrite *r, mpg_operand from, mpg_match match, mpg_operand *x,
                        double *factor);
/* The operand is an input of the graph that holds a parameter, maybe copied to another device. */
bool mpg_rewrite_is_parameter(const mpg_rewrite *r, mpg_operand operand);
/* A gradient with respect to the operand is wanted (where one is recorded). */
static inline bool mpg_rewrite_wants(const mpg_rewrite *r, mpg_operand operand) {
  return r->wants[mpg_value_index(r->graph, operand.value)];
}

/* An op that is relu; an addition of two arrays of one shape. */
bool mpg_rewrite_is_relu(const mpg_node *node);
bool mpg_rewrite_is_addition(const mpg_rewrite *r, const mpg_node *node);
/* The operand is a convolution with the channels last that Winograd's algorithm is faster for
 * (op/layers/winograd.c). */
bool mpg_rewrite_winograd_pays(const mpg_rewrite *r, mpg_operand convolution, bool packed);

/* --- For rules: building ---------------------------------------------------------------------- */
/* The operand as a value of the target, on the last op's device. */
mpg_value mpg_rewrite_take(mpg_rewrite *r, mpg_operand operand);
/* Emits an op on values of the target, in the last op's scope and mode; outputs: as many as it has.
 * The first is returned. */
mpg_value mpg_rewrite_emit(mpg_rewrite *r, mpg_op_id op, const void *params,
                           const mpg_value *inputs, int num_inputs, mpg_value *outputs);
/* The same for an op of `like`'s mode that draws the random numbers that `like`, a node of the
 * pattern, drew. */
mpg_value mpg_rewrite_emit_random(mpg_rewrite *r, mpg_operand like, mpg_op_id op,
                                  const void *params, const mpg_value *inputs, int num_inputs,
                                  mpg_value *outputs);
mpg_value mpg_rewrite_reshape(mpg_rewrite *r, mpg_value value,
                              const mpg_shape *shape); /* the value itself when it has the shape */
/* Output i of the shown node becomes `value`, of the same shape, dtype and device. */
void mpg_rewrite_replace(mpg_rewrite *r, uint32_t output, mpg_value value);

/* The rules, one file each. */
extern const mpg_rewrite_rule mpg_rule_transposed_product; /* matrix_products.c */
extern const mpg_rewrite_rule mpg_rule_folded_norm;        /* fold_batch_norm.c */
extern const mpg_rewrite_rule mpg_rule_attention;          /* fused_attention.c */
extern const mpg_rewrite_rule mpg_rule_attention_result;   /* fused_attention.c */
extern const mpg_rewrite_rule mpg_rule_channels_last;      /* channels_last.c */
extern const mpg_rewrite_rule mpg_rule_packed_relu, mpg_rule_packed,
    mpg_rule_packed_dense;                       /* packed_weights.c: after what chooses layouts */
extern const mpg_rewrite_rule mpg_rule_winograd; /* winograd_convolution.c */

#endif
