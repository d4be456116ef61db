/* Rows of a block of scores, for one type. Included by linear_cross_entropy.c with
 *   T (float or double), NAME(x) (spelled x_T here)
 *   EXP_NONPOSITIVE (for arguments up to 0), LOG, TANH
 */
#include "kernels/cpu/math/row_exponentials.h"

/* Each x_T below is NAME(x), the name of x in this instance. */
#define add_columns_T NAME(add_columns)
#define backward_rows_T NAME(backward_rows)
#define bounded_T NAME(bounded)
#define forward_rows_T NAME(forward_rows)
#define label_of_T NAME(label_of)
#define load_statistics_T NAME(load_statistics)
#define store_losses_T NAME(store_losses)

/* Returns the label's index in the current block of classes, or -1 if it is in another block. */
static inline int64_t label_of_T(const job *t, int64_t i) {
  int64_t label = mpg_index_clip(mpg_index_at(t->label, t->places[i]), t->classes);
  label -= t->first_class;
  return label >= 0 && label < t->block_classes ? label : -1;
}

/* Adds the bias, and bounds the scores by the softcap. */
static void bounded_T(const job *t, T *x) {
  const T *bias = t->block_bias;
  int64_t n = t->block_classes;
  if (bias) {
    MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) x[i] += bias[i];
  }
  if (t->softcap != 0) {
    T cap = (T)t->softcap, inverse = (T)(1 / t->softcap);
    MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) x[i] = cap * TANH(x[i] * inverse);
  }
}

static void forward_rows_T(void *context, int64_t begin, int64_t end) {
  const job *t = context;
  int64_t n = t->block_classes;
  for (int64_t row = begin; row < end; row++) {
    int64_t i = t->first_row + row, label = label_of_T(t, i);
    T *x = (T *)t->scores + row * n, *max = (T *)t->max + i, *sum = (T *)t->sum + i;
    bounded_T(t, x);
    if (label >= 0) ((T *)t->chosen)[i] = x[label];
    T own = row_max_T(x, n);
    if (t->first_class == 0) *max = own, *sum = 0;
    T largest = own > *max ? own : *max;
    /* While all scores are -inf, their exponentials are 0 relative to any other maximum. */
    T base = largest == -(T)INFINITY ? 0 : largest;
    if (t->first_class > 0) *sum *= EXP_NONPOSITIVE(*max - base);
    *sum += row_exp_T(x, NULL, n, base);
    *max = largest;
  }
}

static void store_losses_T(const job *t) {
  const mpg_view *outputs = t->call->outputs;
  for (int64_t i = 0; i < t->kept; i++) {
    T max = ((T *)t->max)[i], log_sum = LOG(((T *)t->sum)[i]), total = max + log_sum;
    T loss = log_sum - (((T *)t->chosen)[i] - max);
    if (t->z_loss != 0) loss += (T)t->z_loss * total * total;
    ((T *)outputs[0].data)[t->places[i]] = loss;
    ((T *)outputs[1].data)[t->places[i]] = max;
    ((T *)outputs[2].data)[t->places[i]] = log_sum;
  }
}

static void load_statistics_T(job *t, const mpg_view *grad, const mpg_view *max,
                              const mpg_view *log_sum) {
  for (int64_t i = 0; i < t->kept; i++) {
    ((T *)t->chosen)[i] = ((const T *)grad->data)[t->places[i]];
    ((T *)t->max)[i] = ((const T *)max->data)[t->places[i]];
    ((T *)t->sum)[i] = ((const T *)log_sum->data)[t->places[i]];
  }
}

/* Replaces the scores s by their gradient: g (p (1 + 2 z (max + log_sum)) - [label]), with p =
 * exp(s - max - log_sum), times the slope 1 - (s / softcap)^2 of the softcap. */
static void backward_rows_T(void *context, int64_t begin, int64_t end) {
  const job *t = context;
  int64_t n = t->block_classes;
  T inverse = t->softcap != 0 ? (T)(1 / t->softcap) : 0;
  for (int64_t row = begin; row < end; row++) {
    int64_t i = t->first_row + row, label = label_of_T(t, i);
    T *x = (T *)t->scores + row * n;
    T grad = ((T *)t->chosen)[i], max = ((T *)t->max)[i], log_sum = ((T *)t->sum)[i];
    T factor = grad * (1 + 2 * (T)t->z_loss * (max + log_sum));
    bounded_T(t, x);
    T slope = 1;
    if (label >= 0 && inverse != 0) slope -= x[label] * inverse * (x[label] * inverse);
    if (inverse == 0) {
      MPG_INDEPENDENT for (int64_t k = 0; k < n; k++) x[k] =
          EXP_NONPOSITIVE((x[k] - max) - log_sum) * factor;
    } else {
      MPG_INDEPENDENT for (int64_t k = 0; k < n; k++) x[k] =
          EXP_NONPOSITIVE((x[k] - max) - log_sum) * factor *
          (1 - x[k] * inverse * (x[k] * inverse));
    }
    if (label >= 0) x[label] -= grad * slope;
  }
}

/* Adds the rows of the block to the gradient of the bias, for columns [begin, end). */
static void add_columns_T(void *context, int64_t begin, int64_t end) {
  const job *t = context;
  const T *x = t->scores;
  T sum[CLASSES];
  memset(sum + begin, 0, (size_t)(end - begin) * sizeof(T));
  for (int64_t row = 0; row < t->block_rows; row++)
    MPG_INDEPENDENT for (int64_t k = begin; k < end; k++) sum[k] += x[row * t->block_classes + k];
  for (int64_t k = begin; k < end; k++)
    ((T *)t->bias_grad)[k] = (t->first_row > 0 ? ((T *)t->bias_grad)[k] : 0) + sum[k];
}

#undef EACH_VECTOR
#undef VECTOR_AT
