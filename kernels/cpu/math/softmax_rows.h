/* Softmax arithmetic on one contiguous row, for one type. Included by softmax.c with
 *   T (float or double), COMPUTE (its mpg_compute), NAME(x) (spelled x_T here)
 *   EXP, EXP_NONPOSITIVE (for arguments up to 0), LOG, and the macros of row_exponentials.h
 * The order of sums is that of row_exponentials.h.
 */
#include "kernels/cpu/math/row_exponentials.h"

/* Each x_T below is NAME(x), the name of x in this instance. */
#define add_to_lane_T NAME(add_to_lane)
#define backward_columns_T NAME(backward_columns)
#define ce_back_rows_T NAME(ce_back_rows)
#define ce_rows_T NAME(ce_rows)
#define fold_lanes_T NAME(fold_lanes)
#define forward_columns_T NAME(forward_columns)
#define gather_T NAME(gather)
#define load_one_T NAME(load_one)
#define log_softmax_back_row_T NAME(log_softmax_back_row)
#define log_softmax_row_T NAME(log_softmax_row)
#define put_columns_T NAME(put_columns)
#define row_sum_T NAME(row_sum)
#define run_columns_T NAME(run_columns)
#define run_row_T NAME(run_row)
#define run_streams_T NAME(run_streams)
#define run_units_T NAME(run_units)
#define scale_and_max_T NAME(scale_and_max)
#define scatter_T NAME(scatter)
#define softmax_back_row_T NAME(softmax_back_row)
#define softmax_row_T NAME(softmax_row)
#define store_one_T NAME(store_one)
#define stream_T NAME(stream)
#define sum_columns_T NAME(sum_columns)
#define take_columns_T NAME(take_columns)

static T row_sum_T(const T *x, int64_t n) {
  T lane[16] = {0};
  add_lanes_T(x, n, lane);
  return fold_sum_T(lane);
}

static void softmax_row_T(const T *x, T *y, int64_t n) {
  T inverse = 1 / row_exp_T(x, y, n, row_max_T(x, n));
  for (int64_t i = 0; i < n; i++) y[i] *= inverse;
}

static void log_softmax_row_T(const T *x, T *y, int64_t n) {
  T max = row_max_T(x, n), log_sum = LOG(row_exp_T(x, NULL, n, max));
  for (int64_t i = 0; i < n; i++) y[i] = (x[i] - max) - log_sum;
}

static void softmax_back_row_T(const T *grad, const T *y, T *out, int64_t n, T scale) {
  vector_T sums[VECTORS_T] = {{0}};
  T lane[16];
  int64_t at = 0;
  for (; at + 16 <= n; at += 16) EACH_VECTOR sums[k] += VECTOR_AT(grad + at) * VECTOR_AT(y + at);
  memcpy(lane, sums, sizeof lane);
  for (int64_t i = at; i < n; i++) lane[i % 16] += grad[i] * y[i];
  T sum = fold_sum_T(lane);
  MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) out[i] = y[i] * (grad[i] - sum) * scale;
}

static void log_softmax_back_row_T(const T *grad, const T *y, T *out, int64_t n, T scale) {
  T sum = row_sum_T(grad, n);
  MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) out[i] =
      (grad[i] - EXP_NONPOSITIVE(y[i]) * sum) * scale;
}

/* --- Conversion between arrays of any dtype and stride and contiguous rows of T --------------- */

/* Copies columns to contiguous rows: rows[j * n + i] = element start + i * stride + j, for j <
 * columns. */
static void gather_T(const mpg_view *view, int64_t start, int64_t n, int64_t stride,
                     int64_t columns, T *rows) {
  if (stride == 1 && columns == 1) {
    mpg_cpu_load_all(COMPUTE, view->desc.dtype, view->data, start, n, rows);
    return;
  }
#define GATHER(type, convert)                                                                   \
  {                                                                                             \
    const type *from = (const type *)view->data + start;                                        \
    for (int64_t i = 0; i < n; i++)                                                             \
      for (int64_t j = 0; j < columns; j++) rows[j * n + i] = (T)convert(from[i * stride + j]); \
  }
  switch (view->desc.dtype) {
    case MPG_FLOAT32: GATHER(float, ) return;
    case MPG_FLOAT64: GATHER(double, ) return;
    case MPG_FLOAT16: GATHER(uint16_t, mpg_half_to_float) return;
    default: GATHER(uint16_t, mpg_bfloat16_to_float) return;
  }
#undef GATHER
}

static void scatter_T(const mpg_view *view, int64_t start, int64_t n, int64_t stride,
                      int64_t columns, const T *rows) {
  if (stride == 1 && columns == 1) {
    mpg_cpu_store(COMPUTE, view->desc.dtype, view->data, start, n, rows);
    return;
  }
#define SCATTER(type, convert)                                                             \
  {                                                                                        \
    type *to = (type *)view->data + start;                                                 \
    for (int64_t i = 0; i < n; i++)                                                        \
      for (int64_t j = 0; j < columns; j++) to[i * stride + j] = convert(rows[j * n + i]); \
  }
  switch (view->desc.dtype) {
    case MPG_FLOAT32: SCATTER(float, (float)) return;
    case MPG_FLOAT64: SCATTER(double, (double)) return;
    case MPG_FLOAT16: SCATTER(uint16_t, mpg_float_to_half) return;
    default: SCATTER(uint16_t, mpg_float_to_bfloat16) return;
  }
#undef SCATTER
}

/* --- Rows of an array ------------------------------------------------------------------------- */

static void run_row_T(const job *p, const T *const *in, T *out, int64_t length) {
  int64_t n = p->n;
  if (p->kind == KIND_SOFTMAX || p->kind == KIND_LOG_SOFTMAX) {
    const T *x = in[0];
    if (p->scale != 1) {
      for (int64_t i = 0; i < length; i++) out[i] = x[i] * (T)p->scale;
      x = out;
    }
    if (p->kind == KIND_LOG_SOFTMAX) {
      log_softmax_row_T(x, out, n);
      return;
    }
    if (length > 0) softmax_row_T(x, out, length);
    for (int64_t i = length; i < n; i++) out[i] = 0;
  } else if (p->kind == KIND_SOFTMAX_BACK) {
    softmax_back_row_T(in[0], in[1], out, n, (T)p->scale);
  } else {
    log_softmax_back_row_T(in[0], in[1], out, n, (T)p->scale);
  }
}

/* Processes work units. A unit is a tile of up to p->tile columns of one outer index. */
static void run_units_T(void *context, int64_t begin, int64_t end) {
  const job *p = context;
  int inputs = p->kind >= KIND_SOFTMAX_BACK ? 2 : 1;
  int64_t tiles = (p->after + p->tile - 1) / p->tile;
  T *buffer = (T *)(void *)(p->buffers + (size_t)omp_get_thread_num() * p->buffer_bytes);
  for (int64_t unit = begin; unit < end; unit++) {
    int64_t outer = unit / tiles, column = unit % tiles * p->tile,
            start = outer * p->n * p->after + column;
    int64_t columns = p->after - column < p->tile ? p->after - column : p->tile;
    const T *source[2] = {NULL, NULL};
    T *target = p->direct_out ? (T *)p->out->data + start : buffer + inputs * p->tile * p->n;
    for (int k = 0; k < inputs; k++) {
      source[k] = p->direct_in[k] ? (const T *)p->in[k]->data + start : buffer + k * p->tile * p->n;
      if (!p->direct_in[k])
        gather_T(p->in[k], start, p->n, p->after, columns, buffer + k * p->tile * p->n);
    }
    for (int64_t j = 0; j < columns; j++) {
      const T *in[2] = {source[0] + j * p->n, inputs > 1 ? source[1] + j * p->n : NULL};
      int64_t length = p->n;
      if (p->length) {
        length = mpg_index_at(p->length, outer * p->after + column + j);
        length = length < 0 ? 0 : length > p->n ? p->n : length;
      }
      run_row_T(p, in, target + j * p->n, length);
    }
    if (!p->direct_out) scatter_T(p->out, start, p->n, p->after, columns, target);
  }
}

/* --- Many short or strided rows: tiles of columns --------------------------------------------- */

static void scale_and_max_T(const job *p, T *x, T *max, int64_t count) {
  if (p->scale != 1)
    for (int64_t j = 0; j < count; j++) x[j] *= (T)p->scale;
  for (int64_t j = 0; j < count; j++) max[j] = x[j] > max[j] ? x[j] : max[j];
}

/* Loads a transposed tile: column j of the tile is row first + j of the array. The tile has `width`
 * columns; those past the first `columns` are filled with zeros. If `max` is not NULL, also scales
 * the elements and computes each column's maximum, in the same pass because a tile may not fit in a
 * core's cache. */
static void take_columns_T(const job *p, const mpg_view *view, int64_t first, int64_t columns,
                           int64_t width, T *tile, T *max) {
  mpg_block_buffer buffer;
  for (int64_t j = 0; max && j < width; j++) max[j] = -(T)INFINITY;
  if (columns < width)
    for (int64_t i = 0; i < p->n; i++)
      memset(tile + i * width + columns, 0, (size_t)(width - columns) * sizeof(T));
  if (p->after == 1) {
    int64_t most = MPG_CPU_BLOCK / p->n;
    for (int64_t done = 0; done < columns; done += most) {
      int64_t count = columns - done < most ? columns - done : most;
      const T *from = mpg_cpu_load(COMPUTE, view->desc.dtype, view->data, (first + done) * p->n,
                                   count * p->n, &buffer);
      for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < p->n; i++) tile[i * width + done + j] = from[j * p->n + i];
    }
    for (int64_t i = 0; max && i < p->n; i++) scale_and_max_T(p, tile + i * width, max, columns);
    return;
  }
  for (int64_t done = 0, count; done < columns; done += count) {
    int64_t outer = (first + done) / p->after, column = (first + done) % p->after;
    count = p->after - column < columns - done ? p->after - column : columns - done;
    for (int64_t i = 0; i < p->n; i++) {
      T *row = tile + i * width + done;
      mpg_cpu_load_all(COMPUTE, view->desc.dtype, view->data,
                       (outer * p->n + i) * p->after + column, count, row);
      if (max) scale_and_max_T(p, row, max + done, count);
    }
  }
}

/* Stores a tile. Multiplies column j by factors[j], unless `factors` is NULL. */
static void put_columns_T(const job *p, int64_t first, int64_t columns, int64_t width,
                          const T *tile, const T *factors) {
  const mpg_view *view = p->out;
  T rows[MPG_CPU_BLOCK];
  _Static_assert((int)MPG_SOFTMAX_TILE <= (int)MPG_CPU_BLOCK, "a row of a tile fits");
  if (p->after == 1) {
    int64_t most = MPG_CPU_BLOCK / p->n;
    for (int64_t done = 0; done < columns; done += most) {
      int64_t count = columns - done < most ? columns - done : most;
      for (int64_t j = 0; j < count; j++)
        for (int64_t i = 0; i < p->n; i++)
          rows[j * p->n + i] = tile[i * width + done + j] * (factors ? factors[done + j] : 1);
      mpg_cpu_store(COMPUTE, view->desc.dtype, view->data, (first + done) * p->n, count * p->n,
                    rows);
    }
    return;
  }
  for (int64_t done = 0, count; done < columns; done += count) {
    int64_t outer = (first + done) / p->after, column = (first + done) % p->after;
    count = p->after - column < columns - done ? p->after - column : columns - done;
    for (int64_t i = 0; i < p->n; i++) {
      const T *row = tile + i * width + done;
      for (int64_t j = 0; factors && j < count; j++) rows[j] = row[j] * factors[done + j];
      mpg_cpu_store(COMPUTE, view->desc.dtype, view->data, (outer * p->n + i) * p->after + column,
                    count, factors ? rows : row);
    }
  }
}

/* Sums each column in the same order as row_sum: element i is added to lane i % 16, then the lanes
 * are folded. Lanes without elements are skipped. If `max` is not NULL, sums exp(element - maximum
 * of its column) and stores the exponentials in `exps`. */
static void sum_columns_T(const T *tile, const T *max, T *exps, int64_t n, int64_t width, T *sums) {
  enum { COLUMNS = 64 };
  T lane[16][COLUMNS];
  int lanes = n < 16 ? (int)n : 16;
  for (int64_t c = 0; c < width; c += COLUMNS) {
    int64_t count = width - c < COLUMNS ? width - c : COLUMNS;
    for (int64_t i = 0; i < n; i++) {
      const T *row = tile + i * width + c;
      T *sum = lane[i % 16];
      if (max) {
        const T *top = max + c;
        T *exp = exps + i * width + c;
        MPG_INDEPENDENT for (int64_t j = 0; j < count; j++) exp[j] =
            EXP_NONPOSITIVE(row[j] - top[j]);
        row = exp;
      }
      if (i < 16) /* adding 0 turns -0 into 0, as the later additions do */
        for (int64_t j = 0; j < count; j++) sum[j] = row[j] + 0;
      else
        for (int64_t j = 0; j < count; j++) sum[j] += row[j];
    }
    for (int half = 8; half >= 1; half /= 2)
      for (int i = 0; i < half && i + half < lanes; i++)
        for (int64_t j = 0; j < count; j++) lane[i][j] += lane[i + half][j];
    memcpy(sums + c, lane[0], (size_t)count * sizeof(T));
  }
}

/* Computes the forward pass of each column. Results are bit-identical to those of softmax_row and
 * log_softmax_row. Returns true if the columns must still be multiplied by `factors`. */
static bool forward_columns_T(const job *p, T *tile, const T *max, int64_t n, int64_t width,
                              T *factors) {
  if (p->kind == KIND_SOFTMAX) {
    sum_columns_T(tile, max, tile, n, width, factors);
    for (int64_t j = 0; j < width; j++) factors[j] = 1 / factors[j];
    return true;
  }
  T sums[MPG_SOFTMAX_TILE];
  sum_columns_T(tile, max, tile + n * width, n, width, sums);
  for (int64_t j = 0; j < width; j++) sums[j] = LOG(sums[j]);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < width; j++)
      tile[i * width + j] = (tile[i * width + j] - max[j]) - sums[j];
  return false;
}

/* Computes the backward pass of each column. The result overwrites grad. `products` is scratch. */
static void backward_columns_T(const job *p, T *grad, const T *y, T *products, int64_t n,
                               int64_t width) {
  T sums[MPG_SOFTMAX_TILE], scale = (T)p->scale;
  if (p->kind == KIND_SOFTMAX_BACK) {
    for (int64_t i = 0; i < n * width; i++) products[i] = grad[i] * y[i];
    sum_columns_T(products, NULL, NULL, n, width, sums);
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < width; j++)
        grad[i * width + j] = y[i * width + j] * (grad[i * width + j] - sums[j]) * scale;
    return;
  }
  sum_columns_T(grad, NULL, NULL, n, width, sums);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < width; j++)
      grad[i * width + j] =
          (grad[i * width + j] - EXP_NONPOSITIVE(y[i * width + j]) * sums[j]) * scale;
}

/* Processes work units. A unit is a tile of up to p->tile columns, which may have different outer
 * indices. */
static void run_columns_T(void *context, int64_t begin, int64_t end) {
  const job *p = context;
  int64_t all = p->before * p->after;
  T *tile = (T *)(void *)(p->buffers + (size_t)omp_get_thread_num() * p->buffer_bytes),
    *second = tile + p->n * p->tile, *third = second + p->n * p->tile;
  for (int64_t unit = begin; unit < end; unit++) {
    int64_t first = unit * p->tile, columns = all - first < p->tile ? all - first : p->tile,
            width = (columns + 15) / 16 * 16;
    T max[MPG_SOFTMAX_TILE], factors[MPG_SOFTMAX_TILE];
    bool forward = p->kind < KIND_SOFTMAX_BACK, scaled = false;
    take_columns_T(p, p->in[0], first, columns, width, tile, forward ? max : NULL);
    if (forward) {
      for (int64_t j = columns; j < width; j++) max[j] = 0; /* defined values for the padding */
      scaled = forward_columns_T(p, tile, max, p->n, width, factors);
    } else {
      take_columns_T(p, p->in[1], first, columns, width, second, NULL);
      backward_columns_T(p, tile, second, third, p->n, width);
    }
    put_columns_T(p, first, columns, width, tile, scaled ? factors : NULL);
  }
}

/* --- Long strided rows: streams of columns ---------------------------------------------------- */

/* Returns `count` elements of row i as T, starting at `column`. Uses `buffer` if they need
 * conversion. */
static const T *stream_T(const job *p, const mpg_view *view, int64_t outer, int64_t i,
                         int64_t column, int64_t count, mpg_block_buffer *buffer) {
  return mpg_cpu_load(COMPUTE, view->desc.dtype, view->data, (outer * p->n + i) * p->after + column,
                      count, buffer);
}

/* Adds the values of row i to lane i % 16, in the order of sum_columns. */
static void add_to_lane_T(T *lanes, int64_t i, int64_t width, const T *values, int64_t count) {
  T *lane = lanes + i % 16 * width;
  if (i < 16)
    for (int64_t j = 0; j < count; j++) lane[j] = values[j] + 0;
  else
    for (int64_t j = 0; j < count; j++) lane[j] += values[j];
}
static void fold_lanes_T(T *lanes, int64_t n, int64_t width, int64_t count) {
  for (int half = 8; half >= 1; half /= 2)
    for (int k = 0; k < half && k + half < n; k++)
      for (int64_t j = 0; j < count; j++) lanes[k * width + j] += lanes[(k + half) * width + j];
}

/* Processes work units. A unit is p->tile columns of one outer index. The columns are too long for
 * the cache, so each pass rereads them. Exponentials are computed twice, which is faster than
 * storing them. Results are bit-identical to those of the row functions.
 */
static void run_streams_T(void *context, int64_t begin, int64_t end) {
  const job *p = context;
  int64_t pieces = (p->after + p->tile - 1) / p->tile;
  T *lanes = (T *)(void *)(p->buffers + (size_t)omp_get_thread_num() * p->buffer_bytes);
  mpg_block_buffer first, second, result;
  T max[MPG_SOFTMAX_TILE], values[MPG_SOFTMAX_TILE], *sums = lanes, scale = (T)p->scale;
  bool forward = p->kind < KIND_SOFTMAX_BACK;
  for (int64_t unit = begin; unit < end; unit++) {
    int64_t outer = unit / pieces, column = unit % pieces * p->tile,
            count = p->after - column < p->tile ? p->after - column : p->tile;
    for (int64_t j = 0; j < count; j++) max[j] = -(T)INFINITY;
    for (int64_t i = 0; forward && i < p->n; i++) {
      const T *x = stream_T(p, p->in[0], outer, i, column, count, &first);
      for (int64_t j = 0; j < count; j++) {
        T scaled = x[j] * scale;
        max[j] = scaled > max[j] ? scaled : max[j];
      }
    }
    for (int64_t i = 0; i < p->n; i++) {
      const T *x = stream_T(p, p->in[0], outer, i, column, count, &first);
      if (forward) {
        MPG_INDEPENDENT for (int64_t j = 0; j < count; j++) values[j] =
            EXP_NONPOSITIVE(x[j] * scale - max[j]);
        x = values;
      } else if (p->kind == KIND_SOFTMAX_BACK) {
        const T *y = stream_T(p, p->in[1], outer, i, column, count, &second);
        for (int64_t j = 0; j < count; j++) values[j] = x[j] * y[j];
        x = values;
      }
      add_to_lane_T(lanes, i, p->tile, x, count);
    }
    fold_lanes_T(lanes, p->n, p->tile, count);
    if (p->kind == KIND_SOFTMAX)
      for (int64_t j = 0; j < count; j++) sums[j] = 1 / sums[j];
    if (p->kind == KIND_LOG_SOFTMAX)
      for (int64_t j = 0; j < count; j++) sums[j] = LOG(sums[j]);
    for (int64_t i = 0; i < p->n; i++) {
      int64_t at = (outer * p->n + i) * p->after + column;
      const T *x = stream_T(p, p->in[0], outer, i, column, count, &first),
              *y = forward ? NULL : stream_T(p, p->in[1], outer, i, column, count, &second);
      T *to = mpg_cpu_place(COMPUTE, p->out->desc.dtype, p->out->data, at, &result);
      switch (p->kind) {
        case KIND_SOFTMAX:
          MPG_INDEPENDENT for (int64_t j = 0; j < count; j++) to[j] =
              EXP_NONPOSITIVE(x[j] * scale - max[j]) * sums[j];
          break;
        case KIND_LOG_SOFTMAX:
          MPG_INDEPENDENT for (int64_t j = 0; j < count; j++) to[j] =
              (x[j] * scale - max[j]) - sums[j];
          break;
        case KIND_SOFTMAX_BACK:
          MPG_INDEPENDENT for (int64_t j = 0; j < count; j++) to[j] =
              y[j] * (x[j] - sums[j]) * scale;
          break;
        default:
          MPG_INDEPENDENT for (int64_t j = 0; j < count; j++) to[j] =
              (x[j] - EXP_NONPOSITIVE(y[j]) * sums[j]) * scale;
      }
      mpg_cpu_store(COMPUTE, p->out->desc.dtype, p->out->data, at, count, to);
    }
  }
}

/* --- Cross-entropy ---------------------------------------------------------------------------- */

static void store_one_T(const mpg_view *view, int64_t i, T value) {
  scatter_T(view, i, 1, 1, 1, &value);
}
static T load_one_T(const mpg_view *view, int64_t i) {
  T value;
  gather_T(view, i, 1, 1, 1, &value);
  return value;
}

static void ce_rows_T(void *context, int64_t begin, int64_t end) {
  const ce *p = context;
  T *buffer = (T *)(void *)(p->buffers + (size_t)omp_get_thread_num() * p->buffer_bytes);
  for (int64_t row = begin; row < end; row++) {
    const T *x = p->direct ? (const T *)p->data->data + row * p->n : buffer;
    if (!p->direct) gather_T(p->data, row * p->n, p->n, 1, 1, buffer);
    T max = row_max_T(x, p->n), log_sum = LOG(row_exp_T(x, NULL, p->n, max));
    T loss = -((x[mpg_index_clip(mpg_index_at(p->label, row), p->n)] - max) - log_sum);
    if (p->losses) {
      ((T *)p->losses)[row] = loss;
      continue;
    }
    store_one_T(p->loss, row, loss);
    store_one_T(p->max, row, max);
    store_one_T(p->log_sum, row, log_sum);
  }
}

static void ce_back_rows_T(void *context, int64_t begin, int64_t end) {
  const ce *p = context;
  T *buffer = (T *)(void *)(p->buffers + (size_t)omp_get_thread_num() * p->buffer_bytes);
  for (int64_t row = begin; row < end; row++) {
    const T *x = p->direct ? (const T *)p->data->data + row * p->n : buffer;
    T *out = p->direct ? (T *)p->out->data + row * p->n : buffer;
    if (!p->direct) gather_T(p->data, row * p->n, p->n, 1, 1, buffer);
    T max = load_one_T(p->max, row), log_sum = load_one_T(p->log_sum, row),
      grad = load_one_T(p->loss, row);
    int64_t label = mpg_index_clip(mpg_index_at(p->label, row), p->n);
    for (int64_t i = 0; i < p->n; i++) out[i] = EXP((x[i] - max) - log_sum) * grad;
    out[label] = -grad + out[label];
    if (!p->direct) scatter_T(p->out, row * p->n, p->n, 1, 1, out);
  }
}

#undef EACH_VECTOR
#undef VECTOR_AT
