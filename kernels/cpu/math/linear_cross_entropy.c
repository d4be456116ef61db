/* linear_cross_entropy and its gradient, without a matrix of all scores.
 *
 * Scores exist for a block of ROWS rows and CLASSES classes at a time. Forward updates the maximum
 * and the sum of exponentials of its rows block by block (online softmax). Backward computes a
 * block of scores again, turns it into the gradient of the scores, and multiplies it by the weight
 * and by the data. Its outer loop is over classes: a block of the weight's gradient is then
 * complete after one pass over the rows, and only the small gradient of the data is added to in
 * memory.
 *
 * Ignored rows are left out of the products: if there are any, the other rows are copied together
 * first. 16-bit data is multiplied and summed in float32, and each gradient is rounded once. Blocks
 * depend on shapes and labels only, and one thread computes the statistics of a row, so results do
 * not depend on the number of threads beyond those of the products.
 *
 * Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Wijmans et
 * al., "Cut Your Losses in Large-Vocabulary Language Models", 2024. */
#include <math.h>
#include <string.h>

#include "kernels/common/vector_math_double.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/index.h"
#include "kernels/cpu/products/gemm.h"

enum { ROWS = 1024, CLASSES = 4096, STRIP = 64, GRAIN = 16384 };

typedef struct job {
  const mpg_kernel_call *call;
  const mpg_view *label;
  mpg_dtype dtype;
  mpg_compute compute;
  size_t item, wide; /* bytes of an element of the arrays, and of the computing type */
  int64_t rows, units, classes;
  int64_t ignored;
  double z_loss, softcap;
  const void *weight, *bias; /* bias may be NULL */
  /* The rows that are not ignored: their number, their positions, and the rows themselves. */
  int64_t kept;
  int64_t *places;
  const char *data;
  /* The current block. */
  int64_t first_row, block_rows, first_class, block_classes;
  void *scores, *block_bias, *wide_data, *wide_weight;
  /* Statistics of all kept rows, in the computing type: maximum, sum of exponentials (later its
   * logarithm), and the score of the label; backward has the gradient of the loss instead. */
  void *max, *sum, *chosen;
  void *bias_grad; /* of the block of classes, in the computing type */
} job;

#define T float
#define NAME(name) name##_f32
#define EXP_NONPOSITIVE mpg_exp_nonpositive
#define LOG mpg_logf
#define TANH mpg_tanhf
#include "kernels/cpu/math/linear_cross_entropy_rows.h"
#undef T
#undef NAME
#undef EXP_NONPOSITIVE
#undef LOG
#undef TANH
#define T double
#define NAME(name) name##_f64
#define EXP_NONPOSITIVE mpg_exp
#define LOG mpg_log
#define TANH mpg_tanh
#include "kernels/cpu/math/linear_cross_entropy_rows.h"

/* Bump allocator for scratch memory. Only counts the bytes if `data` is NULL. */
typedef struct parts {
  char *data;
  size_t taken;
} parts;
static void *take(parts *p, int64_t count, size_t size) {
  char *at = p->data ? p->data + p->taken : NULL;
  p->taken += mpg_align_up((size_t)count * size, 64);
  return at;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static job job_of(const mpg_kernel_call *call, int first) {
  const mpg_view *data = &call->inputs[first], *weight = &call->inputs[first + 1];
  mpg_dtype dtype = data->desc.dtype;
  mpg_compute compute = mpg_compute_of(dtype);
  return (job){.call = call,
               .label = &call->inputs[first + 2],
               .dtype = dtype,
               .compute = compute,
               .item = mpg_dtype_size(dtype),
               .wide = mpg_dtype_size(mpg_compute_dtype(compute)),
               .rows = mpg_shape_product(&data->desc.shape, 0, data->desc.shape.ndim - 1),
               .units = weight->desc.shape.dims[1],
               .classes = weight->desc.shape.dims[0],
               .weight = weight->data,
               .data = data->data};
}

static bool kept(const job *t, int64_t row) { return mpg_index_at(t->label, row) != t->ignored; }

/* Takes the memory that both passes need. */
static void *take_common(job *t, parts *p) {
  int64_t rows = least(ROWS, t->kept), classes = least(CLASSES, t->classes);
  bool narrow = t->item < t->wide;
  t->places = take(p, t->kept, sizeof *t->places);
  t->scores = take(p, rows * classes, t->wide);
  t->max = take(p, t->kept, t->wide);
  t->sum = take(p, t->kept, t->wide);
  t->chosen = take(p, t->kept, t->wide);
  t->block_bias = t->bias ? take(p, classes, t->wide) : NULL;
  t->wide_data = narrow ? take(p, rows * t->units, t->wide) : NULL;
  /* Also holds rows of data, as the right operand of a product. */
  t->wide_weight = t->dtype == MPG_FLOAT16
                       ? take(p, (classes > rows ? classes : rows) * t->units, t->wide)
                       : NULL;
  return t->kept < t->rows ? take(p, t->kept * t->units, t->item) : NULL;
}

typedef struct row_copies {
  const job *t;
  const char *from;
  char *to;
} row_copies;

static void copy_kept(void *context, int64_t begin, int64_t end) {
  const row_copies *c = context;
  size_t bytes = (size_t)c->t->units * c->t->item;
  for (int64_t i = begin; i < end; i++)
    memcpy(c->to + (size_t)i * bytes, c->from + (size_t)c->t->places[i] * bytes, bytes);
}

/* Lists the kept rows, and copies them to `copy` unless all rows are kept. */
static void keep_rows(job *t, void *copy) {
  for (int64_t row = 0, i = 0; row < t->rows; row++)
    if (kept(t, row)) t->places[i++] = row;
  if (!copy) return;
  mpg_cpu_parallel_for(t->call, t->kept, 1 + GRAIN / (t->units + 1), copy_kept,
                       &(row_copies){t, t->data, copy});
  t->data = copy;
}

static const void *offset(const void *array, int64_t elements, size_t size) {
  return (const char *)array + (size_t)elements * size;
}

/* Multiplies a, of the computing type, by `count` dense rows of units elements, of the arrays'
 * dtype: c = op(a) op(b) + beta c. */
static mpg_status multiply(const job *t, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                           int64_t k, const void *a, int64_t lda, const void *b, double beta,
                           void *c, int64_t ldc) {
  if (t->dtype == MPG_BFLOAT16)
    return mpg_cpu_gemm_narrowed(t->call, transpose_a, transpose_b, m, n, k, a, lda, NULL, t->units,
                                 b, (float)beta, c, ldc);
  if (t->dtype == MPG_FLOAT16) {
    mpg_cpu_widen(t->call, t->dtype, b, n * k, t->wide_weight);
    b = t->wide_weight;
  }
  return mpg_cpu_gemm_any(t->call, mpg_compute_dtype(t->compute), transpose_a, transpose_b, m, n, k,
                          1, a, lda, b, t->units, beta, c, ldc);
}

/* Returns the rows of the current block in the computing type. */
static const void *block_data(job *t, bool again) {
  const void *data = offset(t->data, t->first_row * t->units, t->item);
  if (!t->wide_data) return data;
  if (again) mpg_cpu_widen(t->call, t->dtype, data, t->block_rows * t->units, t->wide_data);
  return t->wide_data;
}

static mpg_status block_scores(job *t, const void *data) {
  return multiply(t, false, true, t->block_rows, t->block_classes, t->units, data, t->units,
                  offset(t->weight, t->first_class * t->units, t->item), 0, t->scores,
                  t->block_classes);
}

static void start_classes(job *t, int64_t first) {
  t->first_class = first;
  t->block_classes = least(CLASSES, t->classes - first);
  if (t->bias)
    mpg_cpu_load_all(t->compute, t->dtype, t->bias, first, t->block_classes, t->block_bias);
}

static void start_rows(job *t, int64_t first) {
  t->first_row = first;
  t->block_rows = least(ROWS, t->kept - first);
}

static void each_row(job *t, mpg_range_fn narrow, mpg_range_fn wide) {
  mpg_cpu_parallel_for(t->call, t->block_rows, 1 + GRAIN / t->block_classes,
                       t->compute == MPG_COMPUTE_F64 ? wide : narrow, t);
}

mpg_status mpg_cpu_linear_cross_entropy(const mpg_kernel_call *call) {
  const mpg_linear_cross_entropy_params *p = call->params;
  job t = job_of(call, 0);
  t.bias = call->num_inputs > 3 ? call->inputs[3].data : NULL;
  t.ignored = p->ignore_index, t.z_loss = p->z_loss, t.softcap = p->softcap;
  for (int64_t row = 0; row < t.rows; row++) t.kept += kept(&t, row);
  for (int i = 0; i < call->num_outputs; i++)
    memset(call->outputs[i].data, 0, (size_t)t.rows * t.wide);
  if (t.kept == 0) return MPG_OK;
  parts memory = {0};
  take_common(&t, &memory);
  memory.data = mpg_device_scratch_slot(call->device, MPG_SCRATCH_KERNEL, memory.taken);
  if (!memory.data) return MPG_DEVICE_OUT_OF_MEMORY;
  memory.taken = 0;
  keep_rows(&t, take_common(&t, &memory));
  for (int64_t row = 0; row < t.kept; row += ROWS) {
    start_rows(&t, row);
    const void *data = block_data(&t, true);
    for (int64_t class = 0; class < t.classes; class += CLASSES) {
      start_classes(&t, class);
      MPG_TRY(block_scores(&t, data));
      each_row(&t, forward_rows_f32, forward_rows_f64);
    }
  }
  if (t.compute == MPG_COMPUTE_F64)
    store_losses_f64(&t);
  else
    store_losses_f32(&t);
  return MPG_OK;
}

/* --- Gradient --------------------------------------------------------------------------------- */

typedef struct scattering {
  const job *t;
  const void *from; /* gradients of the kept rows, in the computing type */
  char *to;
} scattering;

static void scatter_kept(void *context, int64_t begin, int64_t end) {
  const scattering *s = context;
  const job *t = s->t;
  for (int64_t i = begin; i < end; i++)
    mpg_cpu_store(t->compute, t->dtype, s->to, t->places[i] * t->units, t->units,
                  offset(s->from, i * t->units, t->wide));
}

mpg_status mpg_cpu_linear_cross_entropy_backward(const mpg_kernel_call *call) {
  const mpg_linear_cross_entropy_backward_params *p = call->params;
  job t = job_of(call, 1);
  t.bias = call->num_inputs > 6 ? call->inputs[6].data : NULL;
  t.ignored = p->ignore_index, t.z_loss = p->z_loss, t.softcap = p->softcap;
  char *grads[3] = {0};
  for (int i = 0, out = 0; i < 3; i++)
    if (p->gradients >> i & 1) grads[i] = call->outputs[out++].data;
  for (int64_t row = 0; row < t.rows; row++) t.kept += kept(&t, row);
  if (grads[0] && t.kept < t.rows) memset(grads[0], 0, (size_t)(t.rows * t.units) * t.item);
  if (t.kept == 0) {
    if (grads[1]) memset(grads[1], 0, (size_t)(t.classes * t.units) * t.item);
    if (grads[2]) memset(grads[2], 0, (size_t)t.classes * t.item);
    return MPG_OK;
  }
  bool narrow = t.item < t.wide;
  parts memory = {0};
  void *copy = NULL, *data_grad = grads[0], *weight_grad = NULL;
  for (int pass = 0; pass < 2; pass++) { /* 0 adds up sizes, 1 sets addresses */
    copy = take_common(&t, &memory);
    if (grads[0] && (narrow || t.kept < t.rows))
      data_grad = take(&memory, t.kept * t.units, t.wide);
    if (grads[1] && narrow)
      weight_grad = take(&memory, least(CLASSES, t.classes) * t.units, t.wide);
    if (grads[2]) t.bias_grad = take(&memory, least(CLASSES, t.classes), t.wide);
    if (pass) break;
    memory.data = mpg_device_scratch_slot(call->device, MPG_SCRATCH_KERNEL, memory.taken);
    if (!memory.data) return MPG_DEVICE_OUT_OF_MEMORY;
    memory.taken = 0;
  }
  keep_rows(&t, copy);
  if (t.compute == MPG_COMPUTE_F64)
    load_statistics_f64(&t, &call->inputs[0], &call->inputs[4], &call->inputs[5]);
  else
    load_statistics_f32(&t, &call->inputs[0], &call->inputs[4], &call->inputs[5]);
  for (int64_t class = 0; class < t.classes; class += CLASSES) {
    start_classes(&t, class);
    int64_t n = t.block_classes;
    const void *weight = offset(t.weight, class * t.units, t.item);
    char *block_grad =
        narrow || !grads[1] ? weight_grad : grads[1] + (size_t)(class * t.units) * t.wide;
    for (int64_t row = 0; row < t.kept; row += ROWS) {
      start_rows(&t, row);
      int64_t m = t.block_rows;
      MPG_TRY(block_scores(&t, block_data(&t, class == 0 || t.kept > ROWS)));
      each_row(&t, backward_rows_f32, backward_rows_f64);
      if (grads[0])
        MPG_TRY(multiply(&t, false, false, m, t.units, n, t.scores, n, weight, class > 0,
                         (char *)data_grad + (size_t)(row * t.units) * t.wide, t.units));
      if (grads[1])
        MPG_TRY(multiply(&t, true, false, n, t.units, m, t.scores, n,
                         offset(t.data, row * t.units, t.item), row > 0, block_grad, t.units));
      if (grads[2])
        mpg_cpu_parallel_for(call, n, 64 + GRAIN / m,
                             t.compute == MPG_COMPUTE_F64 ? add_columns_f64 : add_columns_f32, &t);
    }
    if (grads[1] && narrow)
      mpg_cpu_narrow(call, t.dtype, weight_grad, n * t.units,
                     grads[1] + (size_t)(class * t.units) * t.item);
    if (grads[2]) mpg_cpu_store(t.compute, t.dtype, grads[2], class, n, t.bias_grad);
  }
  if (grads[0] && data_grad != grads[0])
    mpg_cpu_parallel_for(call, t.kept, 1 + GRAIN / (t.units + 1), scatter_kept,
                         &(scattering){&t, data_grad, grads[0]});
  return MPG_OK;
}
