/* Values kept for later calls, shared by all compiled calls that compute them in the same way.
 *
 * A kept value is identified by its *recipe*: the ops that compute it, their parameters, and the
 * tensors of the fixed inputs that they read. Packed weights, for example, do not depend on the
 * shape of the data, so the signatures of a function, and all functions with the same parameters,
 * share one copy. The recipe with the versions of the inputs and the numbers of threads identifies
 * the value's *contents*: if it differs from the one at the last computation, the value is
 * recomputed.
 *
 * Ownership: kept values are reference-counted by the bindings that use them. Threads: host lock.
 */
#ifndef MPG_COMPILE_INVARIANTS_KEPT_VALUES_H
#define MPG_COMPILE_INVARIANTS_KEPT_VALUES_H

#include "graph/ir/graph.h"
#include "tensor/tensor.h"

/* 128-bit hash. Equal keys are treated as equal recipes: with a million kept values, the
 * probability of a collision is about 1e-27. */
typedef struct mpg_key {
  uint64_t a, b;
} mpg_key;
static inline bool mpg_key_equal(mpg_key x, mpg_key y) { return x.a == y.a && x.b == y.b; }

typedef struct mpg_kept_value {
  int32_t references;
  bool made;        /* computed; `contents` describes what it was computed from */
  mpg_key identity; /* hash of the recipe */
  mpg_key contents;
  struct mpg_kept_value *next; /* hash chain */
  mpg_tensor tensor;           /* owned */
} mpg_kept_value;

/* Finds the kept value of a recipe, or creates it with undefined contents. Returns a new
 * reference. */
mpg_status mpg_kept_value_get(mpg_key identity, const mpg_graph_value *value,
                              mpg_kept_value **result);
void mpg_kept_value_release(mpg_kept_value *value); /* NULL is allowed */

/* One op of a recipe. */
typedef struct mpg_recipe_step {
  mpg_key own; /* hash of the op, its parameters, device and output shapes */
  uint32_t operands, num_operands;
  mpg_device *device;
} mpg_recipe_step;

/* An operand: output `output` of step `from` - num_fixed, or fixed array `from`. */
typedef struct mpg_recipe_operand {
  uint32_t from, output;
} mpg_recipe_operand;

/* The recipes of all kept values of a graph. */
typedef struct mpg_recipes {
  mpg_recipe_step *steps;
  uint32_t num_steps, num_operands, num_fixed;
  mpg_recipe_operand *operands;
  mpg_recipe_operand *kept; /* per kept value */
  uint32_t num_kept;
  uint32_t *sources; /* indices of the fixed arrays that the steps read */
  uint32_t num_sources;
  mpg_device **devices; /* devices of the steps */
  uint32_t num_devices;
  uint64_t salt; /* differs from that of all other recipes if values must not be shared */
} mpg_recipes;

/* Builds the recipes of the values in `kept`, which nodes of the invariants phase compute from the
 * inputs in `fixed`. Initialize *recipes with {0}; free it even after an error. */
mpg_status mpg_recipes_make(const mpg_graph *graph, const mpg_value *fixed, uint32_t num_fixed,
                            const mpg_value *kept, uint32_t num_kept, bool shared,
                            mpg_recipes *recipes);
void mpg_recipes_free(mpg_recipes *recipes);
/* Sets keys[i] to the identity of kept value i, given the tensors of the fixed inputs. */
mpg_status mpg_recipes_identify(const mpg_recipes *recipes, const mpg_tensor *fixed, mpg_key *keys);
/* Sets keys[i] to the key of the contents that kept value i would have if it were computed now.
 * Sets *exposed if other code may write to a source without notice. */
mpg_status mpg_recipes_describe(const mpg_recipes *recipes, const mpg_tensor *fixed, mpg_key *keys,
                                bool *exposed);

#endif
