/* Discrete Fourier transforms of rows, as products with matrices of cosines and sines. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

static const double PI = 3.14159265358979323846;

/* Emits 0, 1, ..., n - 1 as a row or a column. */
static mpg_value count_to(mpg_gradient *g, mpg_value like, int64_t n, bool column) {
  mpg_shape shape = {.ndim = 2, .dims = {column ? n : 1, column ? 1 : n}};
  /* In float64 the product of two positions is exact even for large n. */
  return mpg_emit_count(g, like, n, MPG_FLOAT64, &shape);
}

/* Emits the (n, n) matrix of angles 2 pi j k / n, reduced to [0, 2 pi). */
static mpg_value angles(mpg_gradient *g, mpg_value like, int64_t n) {
  mpg_value products = mpg_multiply(g, count_to(g, like, n, true), count_to(g, like, n, false));
  mpg_value turns = mpg_emit_scalar(g, MPG_OP__mod_scalar, products, (double)n);
  return mpg_times(g, turns, 2 * PI / (double)n);
}

/* Reshapes data to a matrix by merging all axes except the last. */
static mpg_value rows_of(mpg_gradient *g, mpg_value data, int64_t *length) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, data)->shape;
  if (shape.ndim < 1 || shape.dims[shape.ndim - 1] < 1) {
    mpg_gradient_fail(g, "data must have at least one element along its last axis");
    return MPG_NO_VALUE;
  }
  *length = shape.dims[shape.ndim - 1];
  mpg_shape rows = {.ndim = 2, .dims = {mpg_shape_product(&shape, 0, shape.ndim - 1), *length}};
  return mpg_emit_reshape(g, mpg_widen(g, data), &rows);
}

static mpg_value product(mpg_gradient *g, mpg_value a, mpg_value b, mpg_dtype dtype) {
  mpg_dot_params params;
  memset(&params, 0, sizeof params);
  params.forward_stype = -1;
  return mpg_emit2(g, MPG_OP_dot, &params, a, mpg_emit_cast(g, b, dtype));
}

void mpg_compose_fft(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  int64_t n = 0;
  mpg_value rows = rows_of(g, inputs[0], &n);
  if (g->status != MPG_OK) return;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype, working = mpg_value_desc(g, rows)->dtype;
  mpg_shape thin = mpg_value_desc(g, rows)->shape;
  thin.dims[thin.ndim++] = 1;
  mpg_value angle = angles(g, rows, n);
  mpg_value real = product(g, rows, mpg_emit1(g, MPG_OP_cos, NULL, angle), working);
  mpg_value sine = mpg_times(g, mpg_emit1(g, MPG_OP_sin, NULL, angle), -1);
  mpg_value parts[] = {mpg_emit_reshape(g, real, &thin),
                       mpg_emit_reshape(g, product(g, rows, sine, working), &thin)};
  shape.dims[shape.ndim - 1] = 2 * n;
  mpg_value joined = mpg_emit_cast(g, mpg_emit_concat(g, parts, 2, 2), dtype);
  outputs[0] = mpg_emit_reshape(g, joined, &shape);
}

void mpg_compose_ifft(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  int64_t length = 0;
  mpg_value rows = rows_of(g, inputs[0], &length);
  if (g->status == MPG_OK && length % 2)
    mpg_gradient_fail(
        g, "the last axis holds real and imaginary parts in turn; its size must be even, not %lld",
        (long long)length);
  if (g->status != MPG_OK) return;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype, working = mpg_value_desc(g, rows)->dtype;
  int64_t n = length / 2;
  mpg_shape flat = {.ndim = 2, .dims = {mpg_value_desc(g, rows)->shape.dims[0], n}},
            pairs = {.ndim = 3, .dims = {flat.dims[0], n, 2}};
  mpg_value paired = mpg_emit_reshape(g, rows, &pairs), angle = angles(g, rows, n);
  mpg_value real = mpg_emit_reshape(g, mpg_emit_slice(g, paired, 2, 0, 1), &flat),
            imaginary = mpg_emit_reshape(g, mpg_emit_slice(g, paired, 2, 1, 2), &flat);
  mpg_value result =
      mpg_subtract(g, product(g, real, mpg_emit1(g, MPG_OP_cos, NULL, angle), working),
                   product(g, imaginary, mpg_emit1(g, MPG_OP_sin, NULL, angle), working));
  shape.dims[shape.ndim - 1] = n;
  outputs[0] = mpg_emit_reshape(g, mpg_emit_cast(g, result, dtype), &shape);
}
