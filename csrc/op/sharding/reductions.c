/* Sharding rules of reductions and of losses that add up a batch. */
#include "op/math/reduce.h"
#include "op/sharding/sharding.h"

/* Returns true if the results of parts of a reduced axis can be combined, and sets *kind. */
static bool combines(const mpg_sharding *s, mpg_factor_kind *kind) {
  switch ((int)s->op->id) {
    case MPG_OP_sum:
    case MPG_OP_nansum: *kind = MPG_FACTOR_SUM; return s->outputs[0].dtype != MPG_BOOL;
    case MPG_OP_max: *kind = MPG_FACTOR_MAX; return true;
    case MPG_OP_min: *kind = MPG_FACTOR_MIN; return true;
  }
  return false;
}

/* The mean of a part is not a partial mean, so only kept axes of mean have factors. The same holds
 * for norm; products have no kind. */
mpg_status mpg_sharding_reduce(mpg_sharding *s) {
  const mpg_shape *in = &s->inputs[0].shape;
  bool reduced[MPG_MAX_NDIM];
  mpg_factor_kind kind;
  mpg_reduced_axes(s->op, s->params, in->ndim, reduced);
  bool combined = combines(s, &kind),
       keepdims = s->op->id == MPG_OP_norm ? ((const mpg_reduce_norm_params *)s->params)->keepdims
                                           : ((const mpg_reduce_params *)s->params)->keepdims;
  for (int i = 0, out = 0; i < in->ndim; i++) {
    mpg_place places[] = {mpg_in_axis(0, i), mpg_out_axis(s, 0, out)};
    if (!reduced[i])
      MPG_TRY(mpg_sharding_places(s, MPG_FACTOR_PASS, 2, places));
    else if (combined)
      MPG_TRY(mpg_sharding_places(s, kind, 1, places));
    out += !reduced[i] || keepdims;
  }
  return MPG_OK;
}

/* data (batch, classes), label (batch); the result is one sum. */
mpg_status mpg_sharding_sum_of_batch(mpg_sharding *s) {
  return MPG_FACTOR(s, SUM, mpg_in_axis(0, 0), mpg_in_axis(1, 0));
}
