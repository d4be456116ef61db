/* Selects the formula in unary.def or binary.def that a call computes, and the formula's constants.
 * Shared by the kernels of ops and of fused groups on all backends. These functions are stateless
 * and may be called from any thread. */
#ifndef KERNELS_COMMON_FORMULA_H
#define KERNELS_COMMON_FORMULA_H

#include <math.h>

#include "op/math/activation.h"
#include "op/op.h"

typedef enum mpg_formula_id {
  MPG_FORMULA_NONE, /* the op has its own kernel */
  MPG_FORMULA_COPY, /* copies elements, with casts and broadcasting */
#define FLOAT_ROWS(name, kind, expression_f, expression_d) MPG_UNARY_##name,
#include "kernels/common/unary.def"
  MPG_UNARY_whole, /* ROUNDING formulas on integers: the identity */
#define FLOAT_ROWS(name, kind, price, expression_f, expression_d) MPG_BINARY_##name,
#include "kernels/common/binary.def"
  MPG_FORMULA_COUNT
} mpg_formula_id;

typedef struct mpg_formula {
  mpg_formula_id id;
  bool swap;      /* the op's scalar is the left operand */
  bool of_itself; /* the op's array is both operands */
} mpg_formula;

static inline bool mpg_formula_is_unary(mpg_formula_id id) {
  return id > MPG_FORMULA_COPY && id < MPG_UNARY_whole;
}
static inline bool mpg_formula_is_binary(mpg_formula_id id) { return id > MPG_UNARY_whole; }

enum { MPG_FORMULA_SWAPPED = 1 << 8 };

/* Returns the formula of an op, or MPG_FORMULA_NONE if it depends on parameters or the op has none.
 * Adds MPG_FORMULA_SWAPPED if the scalar is the left operand. Every case is a constant, so that
 * compilers emit a lookup table. */
static inline int mpg_formula_by_op(mpg_op_id id) {
  switch (id) {
#define UNARY(op, row) \
  case MPG_OP_##op: return MPG_UNARY_##row;
#include "kernels/common/unary.def"
#define BINARY(op, row, swap) \
  case MPG_OP_##op: return MPG_BINARY_##row + (swap ? MPG_FORMULA_SWAPPED : 0);
#include "kernels/common/binary.def"
    default: return MPG_FORMULA_NONE;
  }
}

static inline mpg_formula mpg_formula_of(const mpg_op *op, const void *params) {
  const int number = mpg_formula_by_op(op->id);
  mpg_formula f = {(mpg_formula_id)(number & (MPG_FORMULA_SWAPPED - 1)),
                   number >= MPG_FORMULA_SWAPPED, false};
#define CASE(name, formula, structure, condition, itself)                         \
  if (op->id == MPG_OP_##name) {                                                  \
    const mpg_##structure##_params *p = (const mpg_##structure##_params *)params; \
    if (condition) f.id = MPG_##formula, f.of_itself = itself;                    \
  }
#define BINARY_OF_ITSELF(op, row, structure, condition) \
  CASE(op, BINARY_##row, structure, condition, true)
#define BINARY_CASE(op, row, structure, condition) \
  CASE(op, BINARY_##row, structure, condition, false)
#include "kernels/common/binary.def"
  if (number != MPG_FORMULA_NONE) return f;
  if (op->flags & MPG_OP_SAME_VALUES) f.id = MPG_FORMULA_COPY;
#define UNARY_CASE(op, row, structure, condition) CASE(op, UNARY_##row, structure, condition, false)
#include "kernels/common/unary.def"
#undef CASE
  return f;
}

enum { MPG_UNARY_CONSTANTS = 3 };

/* Sets the constants of the op's formula in unary.def and returns their number. Unused entries are
 * 0. `shape` is the input's shape, or NULL for an op in a fused group, because ops whose constants
 * depend on the shape are not fused. */
static inline int mpg_unary_constants(const mpg_op *op, const void *params, const mpg_shape *shape,
                                      double *constants) {
  for (int i = 0; i < MPG_UNARY_CONSTANTS; i++) constants[i] = 0;
  (void)shape;
  switch (op->id) {
#define CONSTANTS(id, structure, ...)                           \
  case MPG_OP_##id: {                                           \
    __attribute__((unused)) const mpg_##structure##_params *p = \
        (const mpg_##structure##_params *)params;               \
    const double values[] = {__VA_ARGS__};                      \
    enum { COUNT = sizeof values / sizeof *values };            \
    for (int i = 0; i < COUNT; i++) constants[i] = values[i];   \
    return COUNT;                                               \
  }
#include "kernels/common/unary.def"
    default: return 0;
  }
}

#endif
