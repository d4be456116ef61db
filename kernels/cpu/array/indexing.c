/* Gathering and scattering. Indices are first resolved to valid positions (in scratch memory), then
 * whole slices are moved as bytes; only additions depend on the dtype. Additions follow the order
 * of the indices: threads divide the rows or columns of the result, never the indices. */
#include <string.h>

#include "kernels/common/view.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/index.h"
#include "kernels/cpu/array/move.h"

enum { GRAIN_BYTES = 32768 };
enum { MODE_CLIP, MODE_RAISE, MODE_WRAP }; /* modes of take; pick supports clip and wrap */

static int64_t grain_of(int64_t bytes) {
  return bytes >= GRAIN_BYTES ? 1 : GRAIN_BYTES / (bytes > 0 ? bytes : 1);
}
static void zero(const mpg_kernel_call *call, const mpg_view *view) {
  uint64_t nothing = 0;
  mpg_cpu_fill(call, view->data, count_of(view), item_of(view), &nothing);
}
static void copy_all(const mpg_kernel_call *call, const mpg_view *from, const mpg_view *to) {
  mpg_move move = {0};
  mpg_move_add(&move, count_of(from), 1, 1);
  mpg_cpu_move(call, &move, from->data, to->data, item_of(from));
}

static inline void copy_item(char *to, const char *from, size_t bytes) {
  switch (bytes) {
    case 1: memcpy(to, from, 1); return;
    case 2: memcpy(to, from, 2); return;
    case 4: memcpy(to, from, 4); return;
    case 8: memcpy(to, from, 8); return;
    default: memcpy(to, from, bytes);
  }
}

static mpg_status bad_index(const mpg_kernel_call *call, int64_t index, int64_t size, int64_t low) {
  return mpg_fail(
      MPG_INDEX_ERROR,
      "%s: index %lld is out of range for a dimension of size %lld (%lld to %lld are valid)",
      call->op->name, (long long)index, (long long)size, (long long)low, (long long)size - 1);
}

/* Resolves all indices to positions in [0, size), in scratch memory. Also allocates `extra` bytes
 * at *more, 64-byte aligned. */
static mpg_status resolve(const mpg_kernel_call *call, const mpg_view *indices, int64_t size,
                          int mode, size_t extra, int64_t **positions, void **more) {
  int64_t count = count_of(indices);
  size_t bytes = ((size_t)count * sizeof(int64_t) + 63) & ~(size_t)63;
  char *scratch = mpg_device_scratch(call->device, bytes + extra + 1);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  *positions = (int64_t *)(void *)scratch;
  if (more) *more = scratch + bytes;
  for (int64_t i = 0; i < count; i++) {
    int64_t index = mpg_index_at(indices, i);
    if (mode == MODE_RAISE && (index < 0 || index >= size)) return bad_index(call, index, size, 0);
    (*positions)[i] = mode == MODE_WRAP ? mpg_index_wrap(index, size) : mpg_index_clip(index, size);
  }
  return MPG_OK;
}

/* --- Gathering rows --------------------------------------------------------------------------- */

typedef struct rows {
  const char *in;
  char *out;
  const int64_t *positions;
  int64_t count, length; /* number of positions; length of the indexed dimension */
  size_t bytes;          /* bytes per row */
} rows;

static void gather_rows(void *context, int64_t begin, int64_t end) {
  const rows *r = context;
  int64_t outer = begin / r->count, n = begin % r->count;
  for (int64_t i = begin; i < end; i++) {
    copy_item(r->out + (size_t)i * r->bytes,
              r->in + (size_t)(outer * r->length + r->positions[n]) * r->bytes, r->bytes);
    if (++n == r->count) {
      n = 0;
      outer++;
    }
  }
}

static mpg_status gather(const mpg_kernel_call *call, const mpg_view *a, const mpg_view *indices,
                         int64_t axis_param, int mode) {
  const mpg_view *out = &call->outputs[0];
  const mpg_shape *shape = &a->desc.shape;
  int axis = axis_of(axis_param, shape->ndim);
  int64_t before = mpg_shape_product(shape, 0, axis),
          after = mpg_shape_product(shape, axis + 1, shape->ndim), *positions;
  if (count_of(indices) == 0) return MPG_OK;
  MPG_TRY(resolve(call, indices, shape->dims[axis], mode, 0, &positions, NULL));
  rows r = {a->data,           out->data,         positions,
            count_of(indices), shape->dims[axis], (size_t)after * item_of(a)};
  if (count_of(out) > 0)
    mpg_cpu_parallel_for(call, before * r.count, grain_of((int64_t)r.bytes), gather_rows, &r);
  return MPG_OK;
}

mpg_status mpg_cpu_take(const mpg_kernel_call *call) {
  const mpg_take_params *params = call->params;
  return gather(call, &call->inputs[0], &call->inputs[1], params->axis, params->mode);
}

mpg_status mpg_cpu_embedding(const mpg_kernel_call *call) {
  return gather(call, &call->inputs[1], &call->inputs[0], 0, MODE_CLIP);
}

/* --- Scatter-add ------------------------------------------------------------------------------ */

typedef struct sums {
  const void *in;
  void *out;
  const int64_t *positions;
  int64_t count, before, length, after;
  mpg_dtype dtype; /* dtype of `in` */
} sums;

/* Adds columns [first, last) of every input row whose position is in [low, high). A column is a
 * pair of indices (before, after). */
#define ADD_ROWS(name, type, sum_type, load)                                                      \
  static void add_##name(const sums *s, int64_t first, int64_t last, int64_t low, int64_t high) { \
    for (int64_t b = first / s->after; b * s->after < last; b++) {                                \
      int64_t from = first > b * s->after ? first - b * s->after : 0;                             \
      int64_t to = last < (b + 1) * s->after ? last - b * s->after : s->after;                    \
      for (int64_t n = 0; n < s->count; n++) {                                                    \
        if (s->positions[n] < low || s->positions[n] >= high) continue;                           \
        const type *source = (const type *)s->in + (b * s->count + n) * s->after;                 \
        sum_type *target = (sum_type *)s->out + (b * s->length + s->positions[n]) * s->after;     \
        for (int64_t c = from; c < to; c++) target[c] += load(source[c]);                         \
      }                                                                                           \
    }                                                                                             \
  }
ADD_ROWS(f32, float, float, )
ADD_ROWS(f64, double, double, )
ADD_ROWS(f16, uint16_t, float, mpg_half_to_float)
ADD_ROWS(bf16, uint16_t, float, mpg_bfloat16_to_float)
ADD_ROWS(i32, uint32_t, uint32_t, )
ADD_ROWS(i64, uint64_t, uint64_t, )
ADD_ROWS(i8, uint8_t, uint8_t, )
#undef ADD_ROWS

static void add_rows(const sums *s, int64_t first, int64_t last, int64_t low, int64_t high) {
  switch (s->dtype) {
    case MPG_FLOAT32: add_f32(s, first, last, low, high); return;
    case MPG_FLOAT64: add_f64(s, first, last, low, high); return;
    case MPG_FLOAT16: add_f16(s, first, last, low, high); return;
    case MPG_BFLOAT16: add_bf16(s, first, last, low, high); return;
    case MPG_INT32: add_i32(s, first, last, low, high); return;
    case MPG_INT64: add_i64(s, first, last, low, high); return;
    default: add_i8(s, first, last, low, high); return;
  }
}
static void add_columns(void *context, int64_t begin, int64_t end) {
  const sums *s = context;
  add_rows(s, begin, end, 0, s->length);
}
static void add_positions(void *context, int64_t begin, int64_t end) {
  const sums *s = context;
  add_rows(s, 0, s->before * s->after, begin, end);
}

/* Scatter-add: fills `out` (before, length, after) with zeros, then adds row i of `in` (before,
 * count, after) to row positions[i] of `out`. Half precision accumulates in `wide`, a float buffer
 * with as many elements as `out`. */
static void scatter_add(const mpg_kernel_call *call, sums *s, const mpg_view *out, void *wide) {
  int64_t total = count_of(out), columns = s->before * s->after;
  if (total == 0) return;
  bool half = s->dtype == MPG_FLOAT16 || s->dtype == MPG_BFLOAT16;
  uint64_t nothing = 0;
  s->out = half ? wide : out->data;
  mpg_cpu_fill(call, s->out, total, half ? sizeof(float) : item_of(out), &nothing);
  int64_t work = s->count * columns;
  if (work < 8192)
    add_rows(s, 0, columns, 0, s->length);
  else if (columns >= 16 * (int64_t)call->num_threads)
    mpg_cpu_parallel_for(call, columns, 16, add_columns, s);
  else
    mpg_cpu_parallel_for(call, s->length, 1, add_positions, s);
  if (half)
    for (int64_t i = 0; i < total; i += MPG_CPU_BLOCK)
      mpg_cpu_store(MPG_COMPUTE_F32, out->desc.dtype, out->data, i,
                    total - i < MPG_CPU_BLOCK ? total - i : MPG_CPU_BLOCK, (float *)wide + i);
}

static size_t wide_bytes(const mpg_view *out) {
  return item_of(out) == 2 ? (size_t)count_of(out) * sizeof(float) : 0;
}

mpg_status mpg_cpu_take_back(const mpg_kernel_call *call) {
  const mpg_take_back_params *params = call->params;
  const mpg_view *grad = &call->inputs[0], *indices = &call->inputs[1], *out = &call->outputs[0];
  const mpg_shape *shape = &out->desc.shape;
  int axis = axis_of(params->axis, shape->ndim);
  sums s = {.in = grad->data,
            .count = count_of(indices),
            .before = mpg_shape_product(shape, 0, axis),
            .length = shape->dims[axis],
            .after = mpg_shape_product(shape, axis + 1, shape->ndim),
            .dtype = grad->desc.dtype};
  int64_t *positions;
  void *wide;
  MPG_TRY(resolve(call, indices, s.length, params->mode, wide_bytes(out), &positions, &wide));
  s.positions = positions;
  scatter_add(call, &s, out, wide);
  return MPG_OK;
}

/* --- One element per position ----------------------------------------------------------------- */

typedef struct picks {
  char *many, *one; /* the array (before, length, after) and the picked elements (before, after) */
  const mpg_view *index;
  int64_t length, after;
  size_t item;
  bool wrap, put;
} picks;

static void pick_range(void *context, int64_t begin, int64_t end) {
  const picks *p = context;
  for (int64_t i = begin; i < end; i++) {
    int64_t index = mpg_index_at(p->index, i);
    index = p->wrap ? mpg_index_wrap(index, p->length) : mpg_index_clip(index, p->length);
    /* Avoid slow divisions in the common case of the last axis. */
    int64_t row = p->after == 1 ? i : i / p->after, column = p->after == 1 ? 0 : i % p->after;
    char *element = p->many + (size_t)((row * p->length + index) * p->after + column) * p->item;
    char *value = p->one + (size_t)i * p->item;
    copy_item(p->put ? element : value, p->put ? value : element, p->item);
  }
}

static void run_picks(const mpg_kernel_call *call, const mpg_view *many, const mpg_view *one,
                      const mpg_view *index, int64_t axis_param, bool wrap, bool put) {
  const mpg_shape *shape = &many->desc.shape;
  int axis = axis_of(axis_param, shape->ndim);
  picks p = {many->data,
             one->data,
             index,
             shape->dims[axis],
             mpg_shape_product(shape, axis + 1, shape->ndim),
             item_of(many),
             wrap,
             put};
  if (p.length > 0) mpg_cpu_parallel_for(call, count_of(index), 2048, pick_range, &p);
}

mpg_status mpg_cpu_pick(const mpg_kernel_call *call) {
  const mpg_pick_params *params = call->params;
  run_picks(call, &call->inputs[0], &call->outputs[0], &call->inputs[1], params->axis.value,
            params->mode == 1, false);
  return MPG_OK;
}

mpg_status mpg_cpu_pick_back(const mpg_kernel_call *call) {
  const mpg_pick_back_params *params = call->params;
  zero(call, &call->outputs[0]);
  run_picks(call, &call->outputs[0], &call->inputs[0], &call->inputs[1], params->axis,
            params->mode == 1, true);
  return MPG_OK;
}

mpg_status mpg_cpu_fill_element(const mpg_kernel_call *call) {
  copy_all(call, &call->inputs[0], &call->outputs[0]);
  run_picks(call, &call->outputs[0], &call->inputs[1], &call->inputs[2], 1, false, true);
  return MPG_OK;
}

static uint64_t element_bits(mpg_dtype dtype, double value) {
  uint64_t bits = 0;
  if (dtype == MPG_FLOAT64)
    memcpy(&bits, &value, sizeof value);
  else
    mpg_cpu_store(MPG_COMPUTE_F64, dtype, &bits, 0, 1, &value);
  return bits;
}

mpg_status mpg_cpu_one_hot(const mpg_kernel_call *call) {
  const mpg_one_hot_params *params = call->params;
  const mpg_view *indices = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = count_of(indices), depth = params->depth;
  uint64_t on = element_bits(out->desc.dtype, params->on_value),
           off = element_bits(out->desc.dtype, params->off_value);
  mpg_cpu_fill(call, out->data, count_of(out), item_of(out), &off);
  for (int64_t i = 0; i < count; i++) {
    int64_t index = mpg_index_at(indices, i);
    if (index >= 0 && index < depth)
      copy_item((char *)out->data + (size_t)(i * depth + index) * item_of(out), (const char *)&on,
                item_of(out));
  }
  return MPG_OK;
}

/* --- where ------------------------------------------------------------------------------------ */

typedef struct choice {
  const mpg_view *condition;
  const char *x, *y;
  char *out;
  size_t item; /* bytes per element or row */
} choice;

enum { MASK_BLOCK = 1024 };

static void make_mask(const mpg_view *view, int64_t index, int64_t count, uint8_t *mask) {
#define MASK(type, test)                                          \
  {                                                               \
    const type *values = (const type *)view->data + index;        \
    for (int64_t i = 0; i < count; i++) mask[i] = values[i] test; \
  }
  switch (view->desc.dtype) {
    case MPG_FLOAT32: MASK(float, != 0) return;
    case MPG_FLOAT64: MASK(double, != 0) return;
    case MPG_FLOAT16:
    case MPG_BFLOAT16: MASK(uint16_t, % 0x8000 != 0) return;
    case MPG_INT32: MASK(int32_t, != 0) return;
    case MPG_INT64: MASK(int64_t, != 0) return;
    default: MASK(uint8_t, != 0) return;
  }
#undef MASK
}

static void choose_elements(void *context, int64_t begin, int64_t end) {
  const choice *c = context;
  uint8_t mask[MASK_BLOCK];
  for (int64_t at = begin; at < end; at += MASK_BLOCK) {
    int64_t count = end - at < MASK_BLOCK ? end - at : MASK_BLOCK;
    make_mask(c->condition, at, count, mask);
#define CHOOSE(type)                                                    \
  {                                                                     \
    const type *x = (const type *)(const void *)c->x + at,              \
               *y = (const type *)(const void *)c->y + at;              \
    type *out = (type *)(void *)c->out + at;                            \
    for (int64_t i = 0; i < count; i++) out[i] = mask[i] ? x[i] : y[i]; \
  }
    switch (c->item) {
      case 1: CHOOSE(uint8_t) break;
      case 2: CHOOSE(uint16_t) break;
      case 4: CHOOSE(uint32_t) break;
      default: CHOOSE(uint64_t) break;
    }
#undef CHOOSE
  }
}

static void choose_rows(void *context, int64_t begin, int64_t end) {
  const choice *c = context;
  uint8_t mask;
  for (int64_t i = begin; i < end; i++) {
    make_mask(c->condition, i, 1, &mask);
    memcpy(c->out + (size_t)i * c->item, (mask ? c->x : c->y) + (size_t)i * c->item, c->item);
  }
}

mpg_status mpg_cpu_where(const mpg_kernel_call *call) {
  const mpg_view *condition = &call->inputs[0], *x = &call->inputs[1], *out = &call->outputs[0];
  choice c = {condition, x->data, call->inputs[2].data, out->data, item_of(x)};
  int64_t total = count_of(x), conditions = count_of(condition);
  if (total == 0) return MPG_OK;
  if (conditions == total) {
    mpg_cpu_parallel_for(call, total, GRAIN_BYTES / (int64_t)c.item, choose_elements, &c);
  } else {
    c.item *= (size_t)(total / conditions);
    mpg_cpu_parallel_for(call, conditions, grain_of((int64_t)c.item), choose_rows, &c);
  }
  return MPG_OK;
}

/* --- gather_nd and scatter_nd ----------------------------------------------------------------- */

/* Resolves each column of `indices`, which indexes the leading dimensions of `shape`, to a row
 * index. Sets *inner to the number of elements per row. */
static mpg_status resolve_nd(const mpg_kernel_call *call, const mpg_view *indices,
                             const mpg_shape *shape, size_t extra, int64_t **positions,
                             int64_t *count, int64_t *inner, void **more) {
  int depth = (int)indices->desc.shape.dims[0];
  *count = mpg_shape_product(&indices->desc.shape, 1, indices->desc.shape.ndim);
  *inner = mpg_shape_product(shape, depth, shape->ndim);
  size_t bytes = ((size_t)*count * sizeof(int64_t) + 63) & ~(size_t)63;
  char *scratch = mpg_device_scratch(call->device, bytes + extra + 1);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  *positions = (int64_t *)(void *)scratch;
  if (more) *more = scratch + bytes;
  memset(*positions, 0, (size_t)*count * sizeof(int64_t));
  for (int d = 0; d < depth; d++) {
    int64_t size = shape->dims[d];
    for (int64_t i = 0; i < *count; i++) {
      int64_t index = mpg_index_at(indices, d * *count + i);
      if (index < -size || index >= size) return bad_index(call, index, size, -size);
      (*positions)[i] = (*positions)[i] * size + (index < 0 ? index + size : index);
    }
  }
  return MPG_OK;
}

mpg_status mpg_cpu_gather_nd(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  int64_t *positions, count, inner;
  MPG_TRY(
      resolve_nd(call, &call->inputs[1], &data->desc.shape, 0, &positions, &count, &inner, NULL));
  rows r = {data->data, out->data, positions, count, 0, (size_t)inner * item_of(data)};
  if (count_of(out) > 0)
    mpg_cpu_parallel_for(call, count, grain_of((int64_t)r.bytes), gather_rows, &r);
  return MPG_OK;
}

/* Writes rows in index order, so that the last of equal indices wins. */
static mpg_status scatter_rows(const mpg_kernel_call *call, const mpg_view *values,
                               const mpg_view *indices) {
  const mpg_view *out = &call->outputs[0];
  int64_t *positions, count, inner;
  MPG_TRY(resolve_nd(call, indices, &out->desc.shape, 0, &positions, &count, &inner, NULL));
  size_t bytes = (size_t)inner * item_of(out);
  for (int64_t i = 0; i < count; i++)
    copy_item((char *)out->data + (size_t)positions[i] * bytes,
              (const char *)values->data + (size_t)i * bytes, bytes);
  return MPG_OK;
}

mpg_status mpg_cpu_scatter_nd(const mpg_kernel_call *call) {
  zero(call, &call->outputs[0]);
  return scatter_rows(call, &call->inputs[0], &call->inputs[1]);
}

mpg_status mpg_cpu_scatter_set_nd(const mpg_kernel_call *call) {
  if (call->inputs[0].data != call->outputs[0].data)
    copy_all(call, &call->inputs[0], &call->outputs[0]);
  return scatter_rows(call, &call->inputs[1], &call->inputs[2]);
}

mpg_status mpg_cpu_scatter_add_nd(const mpg_kernel_call *call) {
  const mpg_view *values = &call->inputs[0], *out = &call->outputs[0];
  int64_t *positions, count, inner;
  void *wide;
  MPG_TRY(resolve_nd(call, &call->inputs[1], &out->desc.shape, wide_bytes(out), &positions, &count,
                     &inner, &wide));
  sums s = {.in = values->data,
            .positions = positions,
            .count = count,
            .before = 1,
            .length = inner > 0 ? count_of(out) / inner : 0,
            .after = inner,
            .dtype = values->desc.dtype};
  scatter_add(call, &s, out, wide);
  return MPG_OK;
}

mpg_status mpg_cpu_ravel(const mpg_kernel_call *call) {
  const mpg_tuple *shape = &((const mpg_index_shape_params *)call->params)->shape;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = count_of(out);
  for (int64_t i = 0; i < count; i++) {
    /* unsigned: wraps around instead of overflowing if indices are outside the shape */
    uint64_t position = 0;
    for (int d = 0; d < shape->count; d++)
      position = position * (uint64_t)shape->values[d] + (uint64_t)mpg_index_at(in, d * count + i);
    mpg_index_store(out, i, (int64_t)position);
  }
  return MPG_OK;
}

mpg_status mpg_cpu_unravel(const mpg_kernel_call *call) {
  const mpg_tuple *shape = &((const mpg_index_shape_params *)call->params)->shape;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = count_of(in);
  for (int64_t i = 0; i < count; i++) {
    int64_t position = mpg_index_at(in, i);
    for (int d = shape->count - 1; d > 0; d--) {
      mpg_index_store(out, d * count + i, position % shape->values[d]);
      position /= shape->values[d];
    }
    mpg_index_store(out, i, position);
  }
  return MPG_OK;
}

/* --- Sequences -------------------------------------------------------------------------------- */

typedef struct sequences {
  const char *in;
  char *out;
  const mpg_view *lengths; /* NULL if all sequences have the full length */
  int64_t times, batch;
  bool time_first;
  size_t bytes; /* bytes per time step of one sequence */
} sequences;

static sequences sequences_of(const mpg_kernel_call *call, const mpg_view *data, int64_t axis) {
  const mpg_shape *shape = &data->desc.shape;
  return (sequences){.in = call->inputs[0].data,
                     .out = call->outputs[0].data,
                     .lengths = call->num_inputs > 1 ? &call->inputs[1] : NULL,
                     .times = shape->dims[axis],
                     .batch = shape->dims[1 - axis],
                     .time_first = axis == 0,
                     .bytes = (size_t)mpg_shape_product(shape, 2, shape->ndim) * item_of(data)};
}
static int64_t length_of(const sequences *s, int64_t b) {
  int64_t length = s->lengths ? mpg_index_at(s->lengths, b) : s->times;
  return length < 0 ? 0 : length > s->times ? s->times : length;
}
static size_t step_at(const sequences *s, int64_t t, int64_t b) {
  return (size_t)(s->time_first ? t * s->batch + b : b * s->times + t) * s->bytes;
}

static void reverse_steps(void *context, int64_t begin, int64_t end) {
  const sequences *s = context;
  for (int64_t i = begin; i < end; i++) {
    int64_t t = i / s->batch, b = i % s->batch, length = length_of(s, b);
    copy_item(s->out + (size_t)i * s->bytes, s->in + step_at(s, t < length ? length - 1 - t : t, b),
              s->bytes);
  }
}

mpg_status mpg_cpu_sequence_reverse(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0];
  if (count_of(data) == 0) return MPG_OK;
  sequences s = sequences_of(call, data, 0);
  mpg_cpu_parallel_for(call, s.times * s.batch, grain_of((int64_t)s.bytes), reverse_steps, &s);
  return MPG_OK;
}

/* Returns the offset of a sequence's last step, or of its first step if the length is 0. */
static size_t last_step(const sequences *s, int64_t b) {
  int64_t length = length_of(s, b);
  return step_at(s, length > 0 ? length - 1 : 0, b);
}

mpg_status mpg_cpu_sequence_last(const mpg_kernel_call *call) {
  const mpg_sequence_params *params = call->params;
  if (count_of(&call->outputs[0]) == 0) return MPG_OK;
  sequences s = sequences_of(call, &call->inputs[0], params->axis);
  for (int64_t b = 0; b < s.batch; b++)
    copy_item(s.out + (size_t)b * s.bytes, s.in + last_step(&s, b), s.bytes);
  return MPG_OK;
}

mpg_status mpg_cpu_sequence_last_back(const mpg_kernel_call *call) {
  const mpg_sequence_last_back_params *params = call->params;
  zero(call, &call->outputs[0]);
  if (count_of(&call->outputs[0]) == 0) return MPG_OK;
  sequences s = sequences_of(call, &call->outputs[0], params->axis);
  for (int64_t b = 0; b < s.batch; b++)
    copy_item(s.out + last_step(&s, b), s.in + (size_t)b * s.bytes, s.bytes);
  return MPG_OK;
}

/* --- Masks ------------------------------------------------------------------------------------ */

mpg_status mpg_cpu_boolean_mask(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0], *index = &call->inputs[1], *out = &call->outputs[0];
  size_t bytes =
      (size_t)mpg_shape_product(&data->desc.shape, 1, data->desc.shape.ndim) * item_of(data);
  int64_t length = count_of(index), count = out->desc.shape.dims[0], found = 0;
  if (!bytes) return MPG_OK;
  for (int64_t i = 0; i < length && found < count; i++)
    if (mpg_dtype_nonzero(index->desc.dtype, index->data, i))
      memcpy((char *)out->data + (size_t)found++ * bytes,
             (const char *)data->data + (size_t)i * bytes, bytes);
  if (found < count)
    memset((char *)out->data + (size_t)found * bytes, 0, (size_t)(count - found) * bytes);
  return MPG_OK;
}

mpg_status mpg_cpu_boolean_mask_back(const mpg_kernel_call *call) {
  const mpg_view *grad = &call->inputs[0], *index = &call->inputs[1], *out = &call->outputs[0];
  size_t bytes =
      (size_t)mpg_shape_product(&grad->desc.shape, 1, grad->desc.shape.ndim) * item_of(grad);
  int64_t length = count_of(index), count = grad->desc.shape.dims[0], found = 0;
  if (!bytes) return MPG_OK;
  for (int64_t i = 0; i < length; i++) {
    char *row = (char *)out->data + (size_t)i * bytes;
    if (found < count && mpg_dtype_nonzero(index->desc.dtype, index->data, i))
      memcpy(row, (const char *)grad->data + (size_t)found++ * bytes, bytes);
    else
      memset(row, 0, bytes);
  }
  return MPG_OK;
}

/* Writes the index of each nonzero element of a row to the next row of `out`. The last dimension
 * changes, and `index` has the rest. Returns the number of rows of `out` that are filled. */
static int64_t write_nonzero(const mpg_view *data, int64_t begin, int64_t n, const int64_t *index,
                             int ndim, int64_t *out, int64_t found, int64_t count) {
  for (int64_t i = 0; i < n && found < count; i++) {
    if (!mpg_dtype_nonzero(data->desc.dtype, data->data, begin + i)) continue;
    int64_t *row = out + found++ * ndim;
    for (int d = 0; d < ndim - 1; d++) row[d] = index[d];
    row[ndim - 1] = i;
  }
  return found;
}

mpg_status mpg_cpu_nonzero(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  mpg_shape shape = data->desc.shape;
  if (shape.ndim == 0) shape = (mpg_shape){.ndim = 1, .dims = {1}};
  int64_t n = shape.dims[shape.ndim - 1], rows = mpg_shape_product(&shape, 0, shape.ndim - 1),
          count = out->desc.shape.dims[0], found = 0, index[MPG_MAX_NDIM] = {0}, *to = out->data;
  for (int64_t row = 0; row < rows && found < count; row++) {
    found = write_nonzero(data, row * n, n, index, shape.ndim, to, found, count);
    for (int d = shape.ndim - 2; d >= 0 && ++index[d] == shape.dims[d]; d--) index[d] = 0;
  }
  if (found < count)
    memset(to + found * shape.ndim, 0, (size_t)((count - found) * shape.ndim) * sizeof *to);
  return MPG_OK;
}
