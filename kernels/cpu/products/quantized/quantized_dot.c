/* Products of data with packed weights, and unpacking.
 *
 * A few rows of data (FEW_ROWS) are multiplied without an unpacked weight in memory
 * (quantized_rows.h): each row of the weight is unpacked in registers, or in pieces of UNPACK
 * elements, which are multiplied by all rows of data. The bits of a row do not depend on the number
 * of rows then. For more rows, pieces of the weight are unpacked into the caches
 * (quantized_panels.h), or in float64, panels for the general product. Sums are float32 for 16-bit
 * data, and results are rounded once. */
#include <string.h>

#include "kernels/common/weight_formats.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/products/gemm.h"
#include "op/math/quantized_weight.h"

enum { UNPACK = 256, FEW_ROWS = 8, CHAINS = 4, PANEL_BYTES = 1 << 20 };
_Static_assert((int)UNPACK <= MPG_CPU_BLOCK, "a block buffer must hold the scales of a piece");

static const float mpg_nf4[16] = MPG_NF4_VALUES;

/* A packed weight with its arrays. zeros may be NULL. */
typedef struct packed_weight {
  mpg_quantized_weight weight;
  const uint8_t *packed;
  const void *scales, *zeros;
  mpg_dtype scale_dtype, zero_dtype;
} packed_weight;

/* A product with a few rows. data is in the computing type, padded with zeros. */
typedef struct few {
  packed_weight weight;
  int64_t rows, padded;
  const void *data, *bias;
  const float *totals; /* sums of data (quantized_rows.h), or NULL */
  mpg_dtype dtype;
  void *out;
} few;

/* Rows [first, ...) of a weight, unpacked into `to`. */
typedef struct panel {
  const packed_weight *weight;
  int64_t first;
  mpg_dtype dtype;
  void *to;
} panel;

/* Returns the index of the end of the group of element `i`, at most count. Element 0 is element
 * `at` of a row. */
static inline int64_t group_end(const packed_weight *w, int64_t at, int64_t i, int64_t count) {
  int64_t end = ((at + i) / w->weight.group + 1) * w->weight.group - at;
  return end < count ? end : count;
}

static inline float half_at(const uint8_t *bytes) {
  uint16_t half;
  memcpy(&half, bytes, sizeof half);
  return mpg_half_to_float(half);
}

/* Stores an element of the result, with its bias. */
static void finish_f32(const few *t, int64_t row, int64_t unit, float value) {
  mpg_block_buffer buffer;
  if (t->bias)
    value += *(const float *)mpg_cpu_load(MPG_COMPUTE_F32, t->dtype, t->bias, unit, 1, &buffer);
  mpg_cpu_store(MPG_COMPUTE_F32, t->dtype, t->out, row * t->weight.weight.units + unit, 1, &value);
}
static void finish_f64(const few *t, int64_t row, int64_t unit, double value) {
  if (t->bias) value += ((const double *)t->bias)[unit];
  ((double *)t->out)[row * t->weight.weight.units + unit] = value;
}

#define T float
#define NAME(name) name##_f32
#define COMPUTE MPG_COMPUTE_F32
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/quantized/quantized_unpack.h"
#include "kernels/cpu/products/quantized/quantized_rows.h"
#include "kernels/cpu/products/quantized/quantized_panels.h"
#undef T
#undef NAME
#undef COMPUTE
#define T double
#define NAME(name) name##_f64
#define COMPUTE MPG_COMPUTE_F64
#define LANES_OF_DOUBLE
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/quantized/quantized_unpack.h"
#undef LANES_OF_DOUBLE
#undef T
#undef NAME
#undef COMPUTE

static packed_weight weight_of(const mpg_kernel_call *call) {
  packed_weight w = {.weight = mpg_quantized_weight_of(call->op, call->params)};
  w.packed = call->inputs[w.weight.packed_input].data;
  if (w.weight.scales_input >= 0) {
    const mpg_view *scales = &call->inputs[w.weight.scales_input];
    w.scales = scales->data, w.scale_dtype = scales->desc.dtype;
  }
  if (w.weight.zeros_input >= 0) {
    const mpg_view *zeros = &call->inputs[w.weight.zeros_input];
    w.zeros = zeros->data, w.zero_dtype = zeros->desc.dtype;
  }
  return w;
}

/* Minimum number of rows of the weight that a thread unpacks. */
static int64_t grain(const packed_weight *w) { return 1 + 16384 / w->weight.in_units; }

mpg_status mpg_cpu_dequantize_weight(const mpg_kernel_call *call) {
  packed_weight w = weight_of(call);
  mpg_dtype dtype = call->outputs[0].desc.dtype;
  panel t = {&w, 0, dtype, call->outputs[0].data};
  mpg_cpu_parallel_for(call, w.weight.units, grain(&w),
                       dtype == MPG_FLOAT64 ? unpack_rows_f64 : unpack_rows_f32, &t);
  return MPG_OK;
}

/* --- A few rows ------------------------------------------------------------------------------- */
static mpg_status few_rows(const mpg_kernel_call *call, const packed_weight *w, int64_t rows) {
  const mpg_view *data = &call->inputs[0];
  mpg_dtype dtype = data->desc.dtype;
  mpg_compute compute = mpg_compute_of(dtype);
  size_t wide = mpg_dtype_size(mpg_compute_dtype(compute));
  int64_t k = w->weight.in_units, padded = (k + UNPACK - 1) / UNPACK * UNPACK;
  few t = {.weight = *w,
           .rows = rows,
           .padded = padded,
           .data = data->data,
           .dtype = dtype,
           .out = call->outputs[0].data};
  if (w->weight.bias_input >= 0) t.bias = call->inputs[w->weight.bias_input].data;
  bool fast = compute == MPG_COMPUTE_F32 && has_fast_units(w);
  bool nibbles = w->weight.format == MPG_WEIGHT_INT4 || w->weight.format == MPG_WEIGHT_NF4;
  bool totals = fast && (w->zeros || w->weight.format == MPG_WEIGHT_Q4_K);
  if (padded != k || !mpg_compute_direct(compute, dtype) || (fast && nibbles) || totals) {
    size_t bytes = (size_t)(rows * padded) * wide,
           total_bytes = (size_t)totals_at(w->weight.format, rows * padded) * sizeof(float);
    char *copy = mpg_device_scratch(call->device, bytes + (totals ? total_bytes : 0));
    if (!copy) return MPG_DEVICE_OUT_OF_MEMORY;
    if (totals) t.totals = (const float *)(copy + bytes);
    for (int64_t m = 0; m < rows; m++) {
      char *row = copy + (size_t)(m * padded) * wide;
      mpg_cpu_load_all(compute, dtype, data->data, m * k, k, row);
      memset(row + (size_t)k * wide, 0, (size_t)(padded - k) * wide);
      if (fast) arrange(&t, m, (float *)copy, totals ? (float *)(copy + bytes) : NULL);
    }
    t.data = copy;
  }
  mpg_cpu_parallel_for(call, w->weight.units, grain(w),
                       fast                         ? fast_units
                       : compute == MPG_COMPUTE_F64 ? few_rows_f64
                                                    : few_rows_f32,
                       &t);
  return MPG_OK;
}

/* --- Many rows of float64 --------------------------------------------------------------------- */
/* Unpacks panels of the weight and multiplies them with the general product. */
static mpg_status many_rows_f64(const mpg_kernel_call *call, const packed_weight *w, int64_t rows) {
  const int64_t k = w->weight.in_units, units = w->weight.units;
  const double *bias = w->weight.bias_input >= 0 ? call->inputs[w->weight.bias_input].data : NULL;
  double *out = call->outputs[0].data;
  int64_t width = PANEL_BYTES / (int64_t)sizeof(double) / k / 64 * 64;
  if (width < 64) width = 64;
  if (width > units) width = units;
  double *unpacked = mpg_device_scratch_slot(call->device, MPG_SCRATCH_KERNEL,
                                             (size_t)(width * k) * sizeof *unpacked);
  if (!unpacked) return MPG_DEVICE_OUT_OF_MEMORY;
  if (bias)
    for (int64_t row = 0; row < rows; row++)
      memcpy(out + row * units, bias, (size_t)units * sizeof *out);
  for (int64_t first = 0; first < units; first += width) {
    int64_t columns = units - first < width ? units - first : width;
    panel t = {w, first, MPG_FLOAT64, unpacked};
    mpg_cpu_parallel_for(call, columns, grain(w), unpack_rows_f64, &t);
    MPG_TRY(mpg_cpu_gemm_any(call, MPG_FLOAT64, false, true, rows, columns, k, 1,
                             call->inputs[0].data, k, unpacked, k, bias ? 1 : 0, out + first,
                             units));
  }
  return MPG_OK;
}

mpg_status mpg_cpu_quantized_dot(const mpg_kernel_call *call) {
  packed_weight w = weight_of(call);
  const mpg_shape *data = &call->inputs[0].desc.shape;
  int64_t rows = mpg_shape_product(data, 0, data->ndim - 1);
  if (rows == 0) return MPG_OK;
  if (rows <= FEW_ROWS) return few_rows(call, &w, rows);
  return call->inputs[0].desc.dtype == MPG_FLOAT64 ? many_rows_f64(call, &w, rows)
                                                   : many_rows_f32(call, &w, rows);
}
