/* Batching rules of products, layers and losses. */
#include "op/batching/batching.h"
#include "op/layers/norm.h"
#include "op/layers/rnn.h"

#define PARAMS(structure) const mpg_##structure##_params *p = b->params

/* --- Products --------------------------------------------------------------------------------- */

mpg_status mpg_batching_dot(mpg_batching *b) {
  PARAMS(dot);
  int input = 0, lhs = mpg_batching_ndim(b, 0), rhs = mpg_batching_ndim(b, 1);
  MPG_TRY(mpg_batching_one(b, &input));
  int own = b->in[input].axis;
  bool first = input ? !p->transpose_b : p->transpose_a; /* the first axis is summed over */
  if (own == (first ? 0 : (input ? rhs : lhs) - 1)) return mpg_batching_fail_along(b, input);
  mpg_batching_set(b, 0, (input ? lhs - 1 : 0) + own - first, input);
  return MPG_OK;
}

/* Rule for products of stacks of matrices, whose rows are along axis `row` and columns along axis
 * `column`. The batch may be the same stack axis in both inputs, or a matrix axis of one input that
 * is not summed over. */
static mpg_status product(mpg_batching *b, int row, int column, bool transpose_a,
                          bool transpose_b) {
  int first = mpg_batching_first(b), own = b->in[first].axis;
  if (own != row && own != column) {
    MPG_TRY(mpg_batching_all_along(b, 2, own));
    mpg_batching_set(b, 0, own, first);
    return MPG_OK;
  }
  MPG_TRY(mpg_batching_one(b, &first));
  bool summed = first ? (own == row) != transpose_b : (own == column) != transpose_a;
  if (summed) return mpg_batching_fail_along(b, first);
  mpg_batching_set(b, 0, first ? column : row, first);
  return MPG_OK;
}

mpg_status mpg_batching_batch_dot(mpg_batching *b) {
  PARAMS(batch_dot);
  int ndim = mpg_batching_ndim(b, 0);
  return product(b, ndim - 2, ndim - 1, p->transpose_a, p->transpose_b);
}

mpg_status mpg_batching_fully_connected(mpg_batching *b) {
  PARAMS(fully_connected);
  MPG_TRY(mpg_batching_data(b));
  int own = b->in[0].axis, ndim = mpg_batching_ndim(b, 0);
  return own == 0 && (p->flatten || ndim > 1) ? MPG_OK
         : p->flatten || own == ndim - 1      ? mpg_batching_fail_along(b, 0)
                                              : MPG_OK;
}

/* Rule for ops on stacks of matrices or vectors. The last `used` axes and axis `extra` (-1 for
 * none) belong to a matrix or vector; the remaining axes form the stack. The batch must be the
 * same stack axis in all inputs. */
static mpg_status stacks(mpg_batching *b, int used, int extra) {
  int first = mpg_batching_first(b), own = b->in[first].axis;
  if (own >= mpg_batching_ndim(b, first) - used || own == extra)
    return mpg_batching_fail_along(b, first);
  MPG_TRY(mpg_batching_all_along(b, b->num_inputs, own));
  for (int k = 0; k < b->num_outputs; k++) mpg_batching_set(b, k, own, first);
  return MPG_OK;
}

mpg_status mpg_batching_matrices(mpg_batching *b) { return stacks(b, 2, -1); }
mpg_status mpg_batching_vectors(mpg_batching *b) { return stacks(b, 1, -1); }
mpg_status mpg_batching_linalg_gemm(mpg_batching *b) {
  PARAMS(linalg_gemm);
  return stacks(b, 1, mpg_batching_axis(p->axis, mpg_batching_ndim(b, 0)));
}
mpg_status mpg_batching_linalg_gemm2(mpg_batching *b) {
  PARAMS(linalg_gemm2);
  int ndim = mpg_batching_ndim(b, 0);
  return product(b, mpg_batching_axis(p->axis, ndim), ndim - 1, p->transpose_a, p->transpose_b);
}

/* --- Layers ----------------------------------------------------------------------------------- */

/* The batch must be the first axis of the data; all rows share the weights. */
mpg_status mpg_batching_weighted(mpg_batching *b) { return mpg_batching_first_axis(b); }

static mpg_status but(mpg_batching *b, int axis) {
  MPG_TRY(mpg_batching_data(b));
  return b->in[0].axis == axis ? mpg_batching_fail_along(b, 0) : MPG_OK;
}

/* Accepts a batch along any axis except the channel axis, although the statistics are then those of
 * the micro-batch. The documentation of Pipeline mentions this. */
mpg_status mpg_batching_batch_norm(mpg_batching *b) {
  PARAMS(batch_norm);
  return but(b, mpg_batching_axis(p->axis, mpg_batching_ndim(b, 0)));
}

mpg_status mpg_batching_layer_norm(mpg_batching *b) {
  PARAMS(layer_norm);
  MPG_TRY(but(b, mpg_batching_axis(p->axis, mpg_batching_ndim(b, 0))));
  for (int k = 1; k < b->num_outputs; k++) mpg_batching_set(b, k, b->in[0].axis, 0);
  return MPG_OK;
}

mpg_status mpg_batching_rms_norm(mpg_batching *b) {
  MPG_TRY(but(b, mpg_batching_ndim(b, 0) - 1));
  mpg_batching_set(b, 1, b->in[0].axis, 0);
  return MPG_OK;
}

/* data (batch, time, heads, features), or heads before time; positions (time) or (batch, time). */
mpg_status mpg_batching_rotary(mpg_batching *b) {
  PARAMS(rotary);
  enum { BTHD };
  bool given = b->num_inputs > 1;
  int own = b->in[0].axis, time = p->layout == BTHD ? 1 : 2,
      axis = own == time ? (given ? mpg_batching_ndim(b, 1) - 1 : -1)
             : own == 0 && given && mpg_batching_ndim(b, 1) > 1 ? 0
                                                                : -1;
  if (!mpg_batching_divided(b, 0)) return mpg_batching_fail(b, 1, "all rows use this whole input");
  if (own == 3) return mpg_batching_fail_along(b, 0);
  if (own == time && !given)
    return mpg_batching_fail(b, 0, "positions would start at 0 in each part; pass positions");
  if (axis >= 0 ? !mpg_batching_divided(b, 1) || b->in[1].axis != axis ||
                      b->in[1].outer != b->in[0].outer || b->in[1].inner != b->in[0].inner
                : mpg_batching_divided(b, 1))
    return mpg_batching_fail(b, 0, "its positions are divided in another way");
  mpg_batching_set(b, 0, own, 0);
  return MPG_OK;
}

/* Fails if the norm sums over the batch axis, because it would combine several rows. */
mpg_status mpg_batching_l2_normalization(mpg_batching *b) {
  PARAMS(l2_normalization);
  MPG_TRY(mpg_batching_data(b));
  int own = b->in[0].axis;
  if (p->mode == MPG_L2_CHANNEL ? own == 1 : own > (p->mode == MPG_L2_SPATIAL))
    return mpg_batching_fail_along(b, 0);
  mpg_batching_set(b, 1, own, 0);
  return MPG_OK;
}

mpg_status mpg_batching_softmax(mpg_batching *b) {
  PARAMS(softmax);
  int axis = mpg_batching_axis(p->axis, mpg_batching_ndim(b, 0)), own;
  if (b->num_inputs < 2) return but(b, axis);
  /* `length` has the shape of the data without the softmax axis */
  own = mpg_batching_divided(b, 0) ? b->in[0].axis : b->in[1].axis + (axis <= b->in[1].axis);
  if (own == axis) return mpg_batching_fail_along(b, 0);
  for (int i = 0; i < 2; i++)
    if (b->in[i].kind == MPG_BATCH_SAME)
      return mpg_batching_fail(b, mpg_batching_first(b),
                               "its other input is the same for every micro-batch");
  if (mpg_batching_divided(b, 1) && b->in[1].axis != own - (axis < own))
    return mpg_batching_fail_along(b, 1);
  mpg_batching_set(b, 0, own, mpg_batching_first(b));
  return MPG_OK;
}

mpg_status mpg_batching_log_softmax(mpg_batching *b) {
  PARAMS(log_softmax);
  return but(b, mpg_batching_axis(p->axis, mpg_batching_ndim(b, 0)));
}

/* data: (..., classes), label: (...). */
mpg_status mpg_batching_softmax_ce(mpg_batching *b) {
  int first = mpg_batching_first(b), own = b->in[first].axis;
  if (own == mpg_batching_ndim(b, 0) - 1) return mpg_batching_fail_along(b, first);
  MPG_TRY(mpg_batching_all_along(b, 2, own));
  for (int k = 0; k < b->num_outputs; k++) mpg_batching_set(b, k, own, first);
  return MPG_OK;
}

/* All inputs are (requests, ...). */
mpg_status mpg_batching_sample_tokens(mpg_batching *b) {
  MPG_TRY(mpg_batching_all_along(b, b->num_inputs, 0));
  mpg_batching_set(b, 0, 0, mpg_batching_first(b));
  return MPG_OK;
}

mpg_status mpg_batching_softmax_output(mpg_batching *b) {
  PARAMS(softmax_output);
  enum { BATCH, NONE, VALID };
  if (p->normalization != NONE)
    return mpg_batching_fail(b, mpg_batching_first(b),
                             "its gradient is divided by the number of rows");
  return mpg_batching_all_first(b);
}

/* data: (time, batch, classes); labels and lengths: batch first. */
mpg_status mpg_batching_ctc_loss(mpg_batching *b) {
  int first = mpg_batching_first(b);
  for (int i = 0; i < b->num_inputs; i++) {
    if (b->in[i].kind == MPG_BATCH_SAME)
      return mpg_batching_fail(b, first, "its other input is the same for every micro-batch");
    if (mpg_batching_divided(b, i) && b->in[i].axis != (i == 0))
      return mpg_batching_fail_along(b, i);
  }
  mpg_batching_set(b, 0, 0, first);
  return MPG_OK;
}

/* data: (time, batch, features); state: (layers, batch, features). */
static mpg_status recurrent(mpg_batching *b, int first_state, const mpg_rnn_params *p) {
  int num_states = p->mode == MPG_RNN_LSTM ? 2 : 1,
      lengths = p->use_sequence_length ? b->num_inputs - 1 : -1;
  if (mpg_batching_divided(b, 0) && b->in[0].axis == 0 && b->along_time) {
    if (lengths >= 0)
      return mpg_batching_fail(b, 0, "the sequence lengths refer to the whole sequence");
    if (p->bidirectional)
      return mpg_batching_fail(b, 0, "it also runs from the end of the sequence");
    for (int i = 0; i < num_states; i++)
      if (b->in[first_state + i].kind != MPG_BATCH_STATE)
        return mpg_batching_fail(b, 0,
                                 "its initial state does not come from the previous piece (pass "
                                 "the states as a carried argument and return the new ones)");
    mpg_batching_set(b, 0, 0, 0);
    for (int k = 1; k < b->num_outputs; k++) b->out[k] = (mpg_batch){.kind = MPG_BATCH_STATE};
    return MPG_OK;
  }
  int source = mpg_batching_first(b);
  for (int i = 0; i < b->num_inputs; i++) {
    bool rows = i == 0 || i == lengths || (i >= first_state && i < first_state + num_states);
    if (!rows && mpg_batching_divided(b, i))
      return mpg_batching_fail(b, i, "all rows use this whole input");
    if (rows && mpg_batching_divided(b, i) &&
        (b->in[i].axis != (i == lengths ? 0 : 1) || b->in[i].outer != b->in[source].outer ||
         b->in[i].inner != b->in[source].inner))
      return mpg_batching_fail_along(b, i);
    if (rows && b->in[i].kind == MPG_BATCH_SAME)
      return mpg_batching_fail(b, source, "its %s is the same for every micro-batch",
                               !i             ? "data"
                               : i == lengths ? "sequence_length"
                                              : "state");
  }
  for (int k = 0; k < b->num_outputs; k++) mpg_batching_set(b, k, 1, source);
  return MPG_OK;
}

mpg_status mpg_batching_rnn(mpg_batching *b) {
  PARAMS(rnn);
  return recurrent(b, 2, p);
}

mpg_status mpg_batching_rnn_separate(mpg_batching *b) {
  PARAMS(rnn);
  return recurrent(b, 1, p);
}

/* --- Boxes ------------------------------------------------------------------------------------ */

/* The anchors are the same for every sample, so the output remains SAME. */
mpg_status mpg_batching_multibox_prior(mpg_batching *b) {
  return b->in[0].axis > 1 ? mpg_batching_fail_along(b, 0) : MPG_OK;
}

/* Requires that the first axis of all inputs is the batch, except for input `anchor`, which all
 * samples share. */
static mpg_status samples(mpg_batching *b, int anchor) {
  int first = mpg_batching_first(b);
  for (int i = 0; i < b->num_inputs; i++) {
    if (i == anchor && mpg_batching_divided(b, i))
      return mpg_batching_fail(b, i, "all samples share the anchors");
    if (i == anchor) continue;
    if (b->in[i].kind == MPG_BATCH_SAME)
      return mpg_batching_fail(b, first, "its other input is the same for every micro-batch");
    if (mpg_batching_divided(b, i) && b->in[i].axis != 0) return mpg_batching_fail_along(b, i);
  }
  for (int k = 0; k < b->num_outputs; k++) mpg_batching_set(b, k, 0, first);
  return MPG_OK;
}

mpg_status mpg_batching_multibox_target(mpg_batching *b) { return samples(b, 0); }
mpg_status mpg_batching_multibox_detection(mpg_batching *b) { return samples(b, 2); }

/* The rows are the regions (input 1). A region may refer to any image of input 0, so input 0 must
 * not be divided. */
mpg_status mpg_batching_regions(mpg_batching *b) {
  if (mpg_batching_divided(b, 0))
    return mpg_batching_fail(b, 0, "the regions may refer to any image of the batch");
  if (b->in[1].axis != 0) return mpg_batching_fail_along(b, 1);
  mpg_batching_set(b, 0, 0, 1);
  return MPG_OK;
}

/* The op compares each box of one input with each box of the other, so only one input may be
 * divided. */
mpg_status mpg_batching_box_iou(mpg_batching *b) {
  int input;
  MPG_TRY(mpg_batching_one(b, &input));
  if (b->in[input].axis == mpg_batching_ndim(b, input) - 1)
    return mpg_batching_fail_along(b, input);
  mpg_batching_set(b, 0, b->in[input].axis + (input ? mpg_batching_ndim(b, 0) - 1 : 0), input);
  return MPG_OK;
}
