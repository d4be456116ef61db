/* Sharding rules of matrix products, dense layers, packed weights and mixtures of experts. */
#include "op/sharding/sharding.h"

#define PARAMS(structure) const mpg_##structure##_params *p = s->params

mpg_status mpg_sharding_dot(mpg_sharding *s) {
  PARAMS(dot);
  int lhs = mpg_sharding_ndim(s, 0), rhs = mpg_sharding_ndim(s, 1);
  int left = p->transpose_a ? 0 : lhs - 1, right = p->transpose_b ? rhs - 1 : 0;
  for (int i = 0; i < lhs; i++)
    if (i != left)
      MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_out_axis(s, 0, i - (left < i))));
  for (int i = 0; i < rhs; i++)
    if (i != right)
      MPG_TRY(
          MPG_FACTOR(s, PASS, mpg_in_axis(1, i), mpg_out_axis(s, 0, lhs - 1 + i - (right < i))));
  return MPG_FACTOR(s, SUM, mpg_in_axis(0, left), mpg_in_axis(1, right));
}

/* Rule for products of stacks of matrices, whose rows are along axis `row` and columns along the
 * last axis. If there is a third input, it is added to the result. */
static mpg_status product(mpg_sharding *s, int row, bool transpose_a, bool transpose_b) {
  int last = mpg_sharding_ndim(s, 0) - 1;
  bool added = s->num_inputs > 2;
  for (int i = 0; i < last; i++)
    if (i != row)
      MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_in_axis(1, i),
                         mpg_place_if(added, mpg_in_axis(2, i)), mpg_out_axis(s, 0, i)));
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, transpose_a ? last : row),
                     mpg_place_if(added, mpg_in_axis(2, row)), mpg_out_axis(s, 0, row)));
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(1, transpose_b ? row : last),
                     mpg_place_if(added, mpg_in_axis(2, last)), mpg_out_axis(s, 0, last)));
  MPG_TRY(MPG_FACTOR(s, SUM, mpg_in_axis(0, transpose_a ? row : last),
                     mpg_in_axis(1, transpose_b ? last : row)));
  if (added) mpg_sharding_set_once(s, 2);
  return MPG_OK;
}

mpg_status mpg_sharding_batch_dot(mpg_sharding *s) {
  PARAMS(batch_dot);
  return product(s, mpg_sharding_ndim(s, 0) - 2, p->transpose_a, p->transpose_b);
}

mpg_status mpg_sharding_linalg_gemm(mpg_sharding *s) {
  PARAMS(linalg_gemm);
  return product(s, mpg_sharding_axis(p->axis, mpg_sharding_ndim(s, 0)), p->transpose_a,
                 p->transpose_b);
}

mpg_status mpg_sharding_linalg_gemm2(mpg_sharding *s) {
  PARAMS(linalg_gemm2);
  return product(s, mpg_sharding_axis(p->axis, mpg_sharding_ndim(s, 0)), p->transpose_a,
                 p->transpose_b);
}

/* alpha A A^T, or alpha A^T A. Every element needs two rows of A, so rows are not a factor. */
mpg_status mpg_sharding_linalg_syrk(mpg_sharding *s) {
  PARAMS(linalg_syrk);
  int last = mpg_sharding_ndim(s, 0) - 1;
  for (int i = 0; i < last - 1; i++)
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_out_axis(s, 0, i)));
  return MPG_FACTOR(s, SUM, mpg_in_axis(0, last - p->transpose));
}

/* Products and solutions with square matrices A and matrices B. The vectors of B that A multiplies
 * are along axis `column`. */
static mpg_status with_square(mpg_sharding *s, int column) {
  for (int i = 0; i < mpg_sharding_ndim(s, 0) - 2; i++)
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_in_axis(1, i), mpg_out_axis(s, 0, i)));
  return MPG_FACTOR(s, PASS, mpg_in_axis(1, column), mpg_out_axis(s, 0, column));
}

mpg_status mpg_sharding_linalg_triangular(mpg_sharding *s) {
  PARAMS(linalg_triangular);
  return with_square(s, mpg_sharding_ndim(s, 1) - 1 - p->rightside);
}

/* B may have vectors instead of matrices. */
mpg_status mpg_sharding_solve(mpg_sharding *s) {
  int ndim = mpg_sharding_ndim(s, 1);
  return with_square(s, ndim == mpg_sharding_ndim(s, 0) ? ndim - 1 : -1);
}

static mpg_status localize_fully_connected(const mpg_part_call *call, void *params) {
  ((mpg_fully_connected_params *)params)->num_hidden = call->inputs[1].shape.dims[0];
  return MPG_OK;
}

/* data (batch, ...) or (..., features), weight (units, features), bias (units). With `flatten`, the
 * features are all axes except the first. */
mpg_status mpg_sharding_fully_connected(mpg_sharding *s) {
  PARAMS(fully_connected);
  bool bias = s->num_inputs > 2;
  const mpg_shape *data = &s->inputs[0].shape;
  int features = p->flatten ? 1 : data->ndim - 1;
  s->localize = localize_fully_connected;
  for (int i = 0; i < features; i++)
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_out_axis(s, 0, i)));
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(1, 0), mpg_place_if(bias, mpg_in_axis(2, 0)),
                     mpg_out_axis(s, 0, s->outputs[0].shape.ndim - 1)));
  for (int i = features; i < data->ndim; i++) {
    MPG_TRY(MPG_FACTOR(s, SUM, mpg_in_axis(0, i),
                       mpg_in_digit(1, 1, mpg_shape_product(data, features, i),
                                    mpg_shape_product(data, i + 1, data->ndim))));
    if (bias) mpg_sharding_set_once(s, 2);
  }
  return MPG_OK;
}

static mpg_status localize_quantized_dot(const mpg_part_call *call, void *params) {
  ((mpg_quantized_dot_params *)params)->units = call->inputs[1].shape.dims[0];
  return MPG_OK;
}

/* data (..., features); the other inputs have the units along their first axis. The features are
 * packed, so they have no factor. */
mpg_status mpg_sharding_quantized_dot(mpg_sharding *s) {
  int last = mpg_sharding_ndim(s, 0) - 1;
  s->localize = localize_quantized_dot;
  for (int i = 0; i < last; i++)
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_out_axis(s, 0, i)));
  mpg_place units[6] = {mpg_out_axis(s, 0, last)};
  for (int i = 1; i < s->num_inputs; i++) units[i] = mpg_in_axis(i, 0);
  return mpg_sharding_places(s, MPG_FACTOR_PASS, s->num_inputs, units);
}

static mpg_status localize_dequantize_weight(const mpg_part_call *call, void *params) {
  ((mpg_dequantize_weight_params *)params)->units = call->inputs[0].shape.dims[0];
  return MPG_OK;
}

mpg_status mpg_sharding_dequantize_weight(mpg_sharding *s) {
  mpg_place units[4] = {mpg_out_axis(s, 0, 0)};
  s->localize = localize_dequantize_weight;
  for (int i = 0; i < s->num_inputs; i++) units[1 + i] = mpg_in_axis(i, 0);
  return mpg_sharding_places(s, MPG_FACTOR_PASS, 1 + s->num_inputs, units);
}

/* The tokens of a mixture of experts, whose units are along the last axis. The order of tokens
 * depends on all of them. */
mpg_status mpg_sharding_token_units(mpg_sharding *s) {
  return MPG_FACTOR(s, PASS, mpg_in_axis(0, mpg_sharding_ndim(s, 0) - 1),
                    mpg_out_axis(s, 0, s->outputs[0].shape.ndim - 1));
}

static mpg_status localize_grouped_dot(const mpg_part_call *call, void *params) {
  mpg_grouped_dot_params *p = params;
  int64_t first, groups = call->inputs[1].shape.dims[0];
  if (groups == call->whole_inputs[1].shape.dims[0]) return MPG_OK;
  MPG_TRY(mpg_part_first(call, 1, 0, &first));
  p->first += first;
  p->groups = groups;
  return MPG_OK;
}

/* data (rows, K), weight (groups, N, K) or (groups, K, N), counts (groups). Rows have no factor,
 * because the contents of `counts` say to which groups they belong. A part of the groups gives the
 * rows of these groups, and zeros elsewhere. */
mpg_status mpg_sharding_grouped_dot(mpg_sharding *s) {
  PARAMS(grouped_dot);
  s->localize = localize_grouped_dot;
  MPG_TRY(MPG_FACTOR(s, SUM, mpg_in_axis(1, 0)));
  int units = p->transpose_b ? 1 : 2;
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(1, units), mpg_out_axis(s, 0, 1)));
  return MPG_FACTOR(s, SUM, mpg_in_axis(0, 1), mpg_in_axis(1, 3 - units));
}
