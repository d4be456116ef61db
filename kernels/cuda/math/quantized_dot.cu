/* Products of data with packed weights, and unpacking.
 *
 * A few rows of data (FEW_ROWS) are multiplied by one warp per pair of units. Each thread unpacks
 * EACH adjacent elements of both rows of the weight into registers and multiplies them by all rows
 * of data, so the packed weight is read once. Two units share the data, whose loads would otherwise
 * take more time than the loads of the weight. The bits of a row do not depend on the number of
 * rows. For more rows, the weight is unpacked in panels, in the dtype of data, and multiplied by
 * cuBLASLt. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/math/product.h"
#include "kernels/cuda/neighbours.h"
#include "kernels/cuda/scalar.h"
extern "C" {
#include "kernels/common/weight_formats.h"
#include "op/math/quantized_weight.h"
}

namespace {

enum { EACH = 8, FEW_ROWS = 8, UNITS = 2, WARPS = MPG_CUDA_THREADS / 32 };
enum { PANEL_ELEMENTS = 1 << 25, ANY_FORMAT = -1 };

/* A packed weight in device memory. zeros.data may be NULL. */
struct packed_weight {
  const uint8_t *packed;
  mpg_untyped scales, zeros;
  int64_t units, in_units, group, groups, row_bytes;
  mpg_weight_format format;
  bool words; /* EACH elements of int8, int4 and nf4 can be loaded as aligned words */
};

/* Reads a float16 at any address. */
__device__ __forceinline__ float half_at(const uint8_t *bytes) {
  uint16_t bits = (uint16_t)(bytes[0] | bytes[1] << 8);
  mpg_half half;
  memcpy(&half, &bits, sizeof half);
  return mpg_to<float>(half);
}

/* Fills the table of NF4, which the threads of a block share. Threads with different indices read
 * different banks. */
__device__ __forceinline__ void fill_table(float *table) {
  const float values[16] = MPG_NF4_VALUES;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < 16; i++) table[i] = values[i];
  }
  __syncthreads();
}

/* Scales and zeros of EACH elements of a row of int8, int4 or nf4. */
template <class C, bool ZEROS>
__device__ __forceinline__ void scale(const packed_weight &w, int64_t unit, int64_t at, int live,
                                      C (&to)[EACH]) {
  int64_t first = unit * w.groups;
  if (w.group % EACH == 0 || w.groups == 1) {
    int64_t i = first + at / w.group;
    C factor = w.scales.load<C>(i), zero = 8;
    if (ZEROS && w.zeros.data) zero = w.zeros.load<C>(i);
#pragma unroll
    for (int k = 0; k < EACH; k++) to[k] = (ZEROS ? to[k] - zero : to[k]) * factor;
    return;
  }
  for (int k = 0; k < live; k++) {
    int64_t i = first + (at + k) / w.group;
    C zero = 8;
    if (ZEROS && w.zeros.data) zero = w.zeros.load<C>(i);
    to[k] = (ZEROS ? to[k] - zero : to[k]) * w.scales.load<C>(i);
  }
}

/* Unpacks EACH elements of a row, from element `at` on, which is a multiple of EACH. Only the first
 * `live` exist; the rest are undefined. FORMAT is the format, or ANY_FORMAT to read it from w. */
template <int FORMAT, class C>
__device__ __forceinline__ void unpack(const packed_weight &w, const float *table, int64_t unit,
                                       int64_t at, int live, C (&to)[EACH]) {
  const uint8_t *row = w.packed + unit * w.row_bytes;
  const int format = FORMAT == ANY_FORMAT ? (int)w.format : FORMAT;
  switch (format) {
    case MPG_WEIGHT_INT8: {
      uint32_t words[2] = {};
      if (w.words) {
        uint2 both = *(const uint2 *)(row + at);
        words[0] = both.x, words[1] = both.y;
      } else {
        for (int k = 0; k < live; k++) words[k / 4] |= (uint32_t)row[at + k] << k % 4 * 8;
      }
#pragma unroll
      for (int k = 0; k < EACH; k++) to[k] = (C)(int8_t)(uint8_t)(words[k / 4] >> k % 4 * 8);
      scale<C, false>(w, unit, at, live, to);
      break;
    }
    case MPG_WEIGHT_INT4:
    case MPG_WEIGHT_NF4: {
      uint32_t word = 0;
      if (w.words)
        word = *(const uint32_t *)(row + at / 2);
      else
        for (int k = 0; k < live; k += 2) word |= (uint32_t)row[(at + k) / 2] << k * 4;
      if (format == MPG_WEIGHT_NF4) {
#pragma unroll
        for (int k = 0; k < EACH; k++) to[k] = (C)table[word >> 4 * k & 15];
        scale<C, false>(w, unit, at, live, to);
      } else {
#pragma unroll
        for (int k = 0; k < EACH; k++) to[k] = (C)(int)(word >> 4 * k & 15);
        scale<C, true>(w, unit, at, live, to);
      }
      break;
    }
    case MPG_WEIGHT_Q8_0: {
      const uint8_t *block = row + at / 32 * 34, *q = block + 2 + at % 32;
      C factor = (C)half_at(block);
#pragma unroll
      for (int k = 0; k < EACH; k++) to[k] = (C)(int8_t)q[k] * factor;
      break;
    }
    case MPG_WEIGHT_Q4_0: {
      const uint8_t *block = row + at / 32 * 18, *q = block + 2 + at % 16;
      int shift = at % 32 < 16 ? 0 : 4;
      C factor = (C)half_at(block);
#pragma unroll
      for (int k = 0; k < EACH; k++) to[k] = (C)((q[k] >> shift & 15) - 8) * factor;
      break;
    }
    case MPG_WEIGHT_Q4_K: {
      const uint8_t *block = row + at / 256 * 144;
      int run = (int)(at % 256 / 32), small, minimum;
      const uint8_t *q = block + 16 + run / 2 * 32 + at % 32;
      mpg_q4_k_scales(block + 4, run, &small, &minimum);
      C factor = (C)half_at(block) * (C)small, offset = (C)half_at(block + 2) * (C)minimum;
#pragma unroll
      for (int k = 0; k < EACH; k++) to[k] = factor * (C)(q[k] >> run % 2 * 4 & 15) - offset;
      break;
    }
    case MPG_WEIGHT_Q6_K: {
      const uint8_t *block = row + at / 256 * 210;
      int in = (int)(at % 256), run = in / 32;
      const uint8_t *low = block + run / 4 * 64 + run % 2 * 32 + in % 32,
                    *high = block + 128 + run / 4 * 32 + in % 32;
      C factor = (C)half_at(block + 208) * (C)(int8_t)block[192 + in / 16];
#pragma unroll
      for (int k = 0; k < EACH; k++) {
        int q = (low[k] >> run % 4 / 2 * 4 & 15) | (high[k] >> run % 4 * 2 & 3) << 4;
        to[k] = factor * (C)(q - 32);
      }
      break;
    }
  }
}

/* Unpacks rows [first, first + rows) of the weight. */
template <class T>
__global__ void unpack_kernel(packed_weight w, int64_t first, int64_t rows, T *out) {
  __shared__ float table[16];
  if (w.format == MPG_WEIGHT_NF4) fill_table(table);
  int64_t pieces = (w.in_units + EACH - 1) / EACH;
  for (int64_t i = MPG_CUDA_INDEX; i < rows * pieces; i += MPG_CUDA_STRIDE) {
    int64_t row = i / pieces, at = (i - row * pieces) * EACH, left = w.in_units - at;
    int live = left < EACH ? (int)left : EACH;
    mpg_compute_t<T> values[EACH];
    unpack<ANY_FORMAT>(w, table, first + row, at, live, values);
    for (int k = 0; k < live; k++) out[row * w.in_units + at + k] = mpg_to<T>(values[k]);
  }
}

template <class T>
struct few {
  typedef mpg_compute_t<T> C;
  packed_weight w;
  const T *data, *bias; /* bias may be NULL */
  T *out;
  int rows;
};

/* Multiplies up to ROWS rows. If FULL, rows of data can be loaded 16 bytes at a time. */
template <int FORMAT, class T, int ROWS, bool FULL>
__global__ void __launch_bounds__(MPG_CUDA_THREADS) few_kernel(few<T> t) {
  typedef mpg_compute_t<T> C;
  __shared__ float table[16];
  if (t.w.format == MPG_WEIGHT_NF4) fill_table(table);
  int lane = threadIdx.x & 31;
  const int64_t k = t.w.in_units, units = t.w.units;
  int64_t unit = ((int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5)) * UNITS;
  if (unit >= units) return;
  int64_t other = unit + 1 < units ? unit + 1 : unit; /* an odd last unit is computed twice */
  C sums[ROWS][UNITS] = {};
  for (int64_t at = lane * EACH; at < k; at += 32 * EACH) {
    int live = k - at < EACH ? (int)(k - at) : EACH;
    C first[EACH], second[EACH];
    unpack<FORMAT>(t.w, table, unit, at, live, first);
    unpack<FORMAT>(t.w, table, other, at, live, second);
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
      if (ROWS > 1 && m >= t.rows) break;
      mpg_neighbours<T, EACH, FULL> x;
      x.load(t.data + m * k + at, live);
#pragma unroll
      for (int i = 0; i < EACH; i++)
        if (FULL || i < live) {
          C value = x.template get<C>(i);
          sums[m][0] = mpg_fma_of(first[i], value, sums[m][0]);
          sums[m][1] = mpg_fma_of(second[i], value, sums[m][1]);
        }
    }
  }
#pragma unroll
  for (int m = 0; m < ROWS; m++) {
    if (ROWS > 1 && m >= t.rows) break;
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
      C sum = mpg_warp_reduce(sums[m][u], mpg_plus());
      if (lane == 0 && unit + u < units) {
        if (t.bias) sum += mpg_to<C>(t.bias[unit + u]);
        t.out[m * units + unit + u] = mpg_to<T>(sum);
      }
    }
  }
}

packed_weight weight_of(const mpg_kernel_call *call, const mpg_quantized_weight &q) {
  packed_weight w = {};
  w.packed = (const uint8_t *)call->inputs[q.packed_input].data;
  if (q.scales_input >= 0) w.scales = mpg_untyped_view(&call->inputs[q.scales_input]);
  if (q.zeros_input >= 0) w.zeros = mpg_untyped_view(&call->inputs[q.zeros_input]);
  w.units = q.units, w.in_units = q.in_units;
  w.group = q.group, w.groups = q.groups;
  w.row_bytes = q.row_bytes, w.format = q.format;
  w.words = q.in_units % EACH == 0 && (uintptr_t)w.packed % EACH == 0;
  return w;
}

template <int FORMAT, class T, int ROWS, bool FULL>
mpg_status launch(const mpg_kernel_call *call, const few<T> &t) {
  return mpg_cuda_launch(call, few_kernel<FORMAT, T, ROWS, FULL>,
                         mpg_cuda_blocks(t.w.units, WARPS * UNITS), MPG_CUDA_THREADS, 0, t);
}

/* Chooses the kernel. Each format has its own, except for float64 and unaligned rows. */
template <class T, int ROWS>
mpg_status launch_few(const mpg_kernel_call *call, const few<T> &t) {
  bool full = t.w.words && mpg_cuda_aligned(t.data) && t.w.in_units * (int64_t)sizeof(T) % 16 == 0;
  if constexpr (sizeof(T) < sizeof(double))
    if (full) switch (t.w.format) {
        case MPG_WEIGHT_INT8: return launch<MPG_WEIGHT_INT8, T, ROWS, true>(call, t);
        case MPG_WEIGHT_INT4: return launch<MPG_WEIGHT_INT4, T, ROWS, true>(call, t);
        case MPG_WEIGHT_NF4: return launch<MPG_WEIGHT_NF4, T, ROWS, true>(call, t);
        case MPG_WEIGHT_Q8_0: return launch<MPG_WEIGHT_Q8_0, T, ROWS, true>(call, t);
        case MPG_WEIGHT_Q4_0: return launch<MPG_WEIGHT_Q4_0, T, ROWS, true>(call, t);
        case MPG_WEIGHT_Q4_K: return launch<MPG_WEIGHT_Q4_K, T, ROWS, true>(call, t);
        case MPG_WEIGHT_Q6_K: return launch<MPG_WEIGHT_Q6_K, T, ROWS, true>(call, t);
      }
  return launch<ANY_FORMAT, T, ROWS, false>(call, t);
}

template <class T>
mpg_status unpack_rows(const mpg_kernel_call *call, const packed_weight &w, int64_t first,
                       int64_t rows, void *out) {
  int64_t pieces = (w.in_units + EACH - 1) / EACH;
  return mpg_cuda_launch(call, unpack_kernel<T>, mpg_cuda_blocks(rows * pieces), MPG_CUDA_THREADS,
                         0, w, first, rows, (T *)out);
}

template <class T>
mpg_status few_rows(const mpg_kernel_call *call, const mpg_quantized_weight &q, int64_t rows) {
  few<T> t = {};
  t.w = weight_of(call, q);
  t.data = (const T *)call->inputs[0].data;
  if (q.bias_input >= 0) t.bias = (const T *)call->inputs[q.bias_input].data;
  t.out = (T *)call->outputs[0].data;
  t.rows = (int)rows;
  return rows == 1 ? launch_few<T, 1>(call, t) : launch_few<T, FEW_ROWS>(call, t);
}

template <class T>
mpg_status many_rows(const mpg_kernel_call *call, const mpg_quantized_weight &q, int64_t rows) {
  packed_weight w = weight_of(call, q);
  int64_t panel = PANEL_ELEMENTS / w.in_units;
  if (panel < 1) panel = 1;
  if (panel > w.units) panel = w.units;
  T *weight = (T *)mpg_device_scratch_slot(call->device, MPG_SCRATCH_KERNEL,
                                           (size_t)(panel * w.in_units) * sizeof(T));
  if (!weight) return MPG_DEVICE_OUT_OF_MEMORY;
  for (int64_t first = 0; first < w.units; first += panel) {
    mpg_cuda_product p = {};
    p.dtype = call->inputs[0].desc.dtype;
    p.transpose_b = true;
    p.m = rows;
    p.n = w.units - first < panel ? w.units - first : panel;
    p.k = p.lda = p.ldb = w.in_units;
    p.ldc = w.units;
    p.count = 1;
    p.alpha = 1;
    p.a = call->inputs[0].data;
    p.b = weight;
    if (q.bias_input >= 0) p.bias = (const T *)call->inputs[q.bias_input].data + first;
    p.c = (T *)call->outputs[0].data + first;
    MPG_TRY(unpack_rows<T>(call, w, first, p.n, weight));
    MPG_TRY(mpg_cuda_multiply(call, &p));
  }
  return MPG_OK;
}

} // namespace

mpg_status mpg_cuda_dequantize_weight(const mpg_kernel_call *call) {
  packed_weight w = weight_of(call, mpg_quantized_weight_of(call->op, call->params));
  MPG_CUDA_FLOAT_DTYPE(call->outputs[0].desc.dtype, T,
                       return unpack_rows<T>(call, w, 0, w.units, call->outputs[0].data));
  return MPG_OK;
}

mpg_status mpg_cuda_quantized_dot(const mpg_kernel_call *call) {
  const mpg_shape *data = &call->inputs[0].desc.shape;
  mpg_quantized_weight q = mpg_quantized_weight_of(call->op, call->params);
  int64_t rows = mpg_shape_product(data, 0, data->ndim - 1);
  if (rows == 0) return MPG_OK;
  MPG_CUDA_FLOAT_DTYPE(
      call->inputs[0].desc.dtype, T,
      return rows <= FEW_ROWS ? few_rows<T>(call, q, rows) : many_rows<T>(call, q, rows));
  return MPG_OK;
}
