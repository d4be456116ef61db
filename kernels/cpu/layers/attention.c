/* Attention without a full matrix of scores (FlashAttention). Multiplies blocks of query rows with
 * blocks of keys and updates the softmax sums block by block (online softmax). Backward recomputes
 * blocks of weights from the final sums.
 *
 * Every element is summed over keys (or rows) in ascending order, block by block, so results do not
 * depend on the number of threads.
 *
 * Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
 * "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", 2022. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/halves.h"
#include "kernels/cpu/philox_words.h"
#include "kernels/cpu/products/pairs.h"
#include "kernels/common/vector_math.h"

#if defined(__AVX512F__)
enum { TILE = 12 }; /* rows of the product held in registers */
#elif defined(__AVX__)
enum { TILE = 6 };
#else
enum { TILE = 4 };
#endif

/* Query rows and keys per block: multiples of every tile size, so that tiles never cross the end of
 * a block. */
enum { BLOCK_ROWS = 48, BLOCK_KEYS = 96, MOST_KEYS = 128 /* maximum over all instances */ };

/* Address and strides, in elements, of an array (batch, head, row, element). */
typedef struct place {
  char *data;
  int64_t by_batch, by_head, by_row;
} place;

typedef struct attention {
  const mpg_kernel_call *call;
  int64_t batch, heads, rows, keys, width, value_width;
  place query, key, value, result, query_grad, key_grad, value_grad, grad, output;
  const char *mask; /* NULL if none */
  int64_t mask_batch, mask_head, mask_row, mask_key;
  void *sums; /* per head: the largest score of each row, then the sums of exponentials */
  double scale;
  bool causal, drops;
  mpg_pairs pairs;
  mpg_random_key draw;
  uint32_t threshold; /* dropout keeps weights whose random word >> 8 is below this */
  double kept_scale;
  /* Backward: true if a work unit is a whole head. Otherwise one pass runs over blocks of keys and
   * a second pass over blocks of rows. */
  bool all_at_once;
  bool for_keys; /* true in the pass over blocks of keys */
  char *scratch;
  size_t scratch_bytes; /* bytes per thread */
} attention;

static int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }
static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Returns the number of keys in the block [key, key + block) that query row `row` attends to. With
 * a causal mask, a row attends only to keys up to its own position. */
static inline int64_t seen(const attention *p, int64_t row, int64_t key, int64_t block) {
  int64_t end = p->causal && row + 1 < p->keys ? row + 1 : p->keys;
  end -= key;
  return end < 0 ? 0 : end < block ? end : block;
}

/* Work unit of the backward pass: a whole head, a block of keys, or a block of rows. */
typedef struct backward_unit {
  int64_t index, row, row_end, key, key_end;
} backward_unit;
static backward_unit backward_unit_of(const attention *p, int64_t unit, int64_t rows,
                                      int64_t keys) {
  int64_t blocks = p->all_at_once ? 1
                   : p->for_keys  ? blocks_of(p->keys, keys)
                                  : blocks_of(p->rows, rows);
  backward_unit u = {.index = unit / blocks, .row_end = p->rows, .key_end = p->keys};
  if (!p->all_at_once && p->for_keys) {
    u.key = unit % blocks * keys;
    u.key_end = u.key + keys < p->keys ? u.key + keys : p->keys;
  } else if (!p->all_at_once) {
    u.row = unit % blocks * rows;
    u.row_end = u.row + rows < p->rows ? u.row + rows : p->rows;
  }
  return u;
}

/* Bump allocator for a thread's scratch memory. Only counts the bytes if `data` is NULL. */
typedef struct scratch_parts {
  char *data;
  size_t taken;
} scratch_parts;
static void *take_part(scratch_parts *parts, size_t bytes) {
  char *at = parts->data ? parts->data + parts->taken : NULL;
  parts->taken += mpg_align_up(bytes, 64);
  return at;
}
#define TAKE(w, name, count) ((w)->name = take_part(&parts, (size_t)(count) * sizeof *(w)->name))

#define T float
#define NAME(name) name##_f32
#define BITS int32_t
#define EXP mpg_expf
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/layers/attention_block.h"
#undef T
#undef NAME
#undef BITS
#undef EXP

#define T double
#define NAME(name) name##_f64
#define BITS int64_t
#define EXP exp
#define LANES_OF_DOUBLE
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/layers/attention_block.h"
#undef LANES_OF_DOUBLE

#ifdef MPG_WITH_PAIRS
#include "kernels/cpu/products/pairs_panel.h"
#include "kernels/cpu/layers/attention_pairs.h"
#endif

/* Implementation for one computing type. `rows` and `keys` are its block sizes. */
typedef struct instance {
  int64_t rows, keys;
  size_t (*forward_bytes)(const attention *), (*backward_bytes)(const attention *);
  mpg_range_fn forward, backward;
} instance;
static const instance in_float = {BLOCK_ROWS,
                                  BLOCK_KEYS,
                                  attention_forward_bytes_f32,
                                  attention_backward_bytes_f32,
                                  attention_forward_f32,
                                  attention_backward_f32},
                      in_double = {BLOCK_ROWS,
                                   BLOCK_KEYS,
                                   attention_forward_bytes_f64,
                                   attention_backward_bytes_f64,
                                   attention_forward_f64,
                                   attention_backward_f64};
#ifdef MPG_WITH_PAIRS
static const instance in_pairs = {PAIR_ROWS,
                                  PAIR_KEYS,
                                  attention_forward_bytes_pairs,
                                  attention_backward_bytes_pairs,
                                  attention_forward_pairs,
                                  attention_backward_pairs};
#endif

static const instance *instance_of(mpg_dtype dtype) {
#ifdef MPG_WITH_PAIRS
  if (dtype == MPG_BFLOAT16) return &in_pairs;
#endif
  return dtype == MPG_FLOAT64 ? &in_double : &in_float;
}

static place place_of(const mpg_view *view, const mpg_tuple *at) {
  return (place){(char *)view->data + (size_t)at->values[0] * mpg_dtype_size(view->desc.dtype),
                 at->values[1], at->values[2], at->values[3]};
}

static attention attention_of(const mpg_kernel_call *call, const mpg_view *inputs,
                              const mpg_view *mask) {
  const mpg_attention_params *p = call->params;
  const int64_t *s = p->sizes.values, *m = p->mask_at.values;
  attention a = {.call = call,
                 .batch = s[0],
                 .heads = s[1],
                 .rows = s[2],
                 .keys = s[3],
                 .width = s[4],
                 .value_width = s[5],
                 .query = place_of(&inputs[0], &p->query_at),
                 .key = place_of(&inputs[1], &p->key_at),
                 .value = place_of(&inputs[2], &p->value_at),
                 .scale = p->scale,
                 .causal = p->causal,
                 .drops = p->p > 0,
                 .pairs = inputs[0].desc.dtype == MPG_BFLOAT16 ? mpg_cpu_pairs() : MPG_NO_PAIRS};
  if (p->mask_at.count == 4) {
    a.mask = mask->data;
    a.mask_batch = m[0], a.mask_head = m[1], a.mask_row = m[2], a.mask_key = m[3];
  }
  double keep = 1 - p->p;
  a.threshold = (uint32_t)(keep * 0x1p24 + 0.5);
  a.kept_scale = keep > 0 ? 1 / keep : 0;
  return a;
}

static mpg_status get_scratch(attention *a, size_t bytes) {
  a->scratch_bytes = mpg_cpu_buffer_step(bytes);
  a->scratch = mpg_device_scratch(a->call->device, a->scratch_bytes * (size_t)a->call->num_threads);
  return a->scratch ? MPG_OK : MPG_DEVICE_OUT_OF_MEMORY;
}

static mpg_status forward(const mpg_kernel_call *call) {
  const mpg_attention_params *p = call->params;
  const instance *in = instance_of(call->inputs[0].desc.dtype);
  attention a = attention_of(call, call->inputs, &call->inputs[3]);
  a.result = place_of(&call->outputs[0], &p->result_at);
  a.sums = call->outputs[1].data;
  if (call->num_outputs > 2) {
    uint64_t *draw = call->outputs[2].data;
    a.draw = call->random;
    draw[0] = a.draw.seed, draw[1] = a.draw.call, draw[2] = a.draw.position, draw[3] = a.draw.run,
    draw[4] = a.draw.stride;
  }
  MPG_TRY(get_scratch(&a, in->forward_bytes(&a)));
  mpg_cpu_parallel_for(call, a.batch * a.heads * blocks_of(a.rows, in->rows), 1, in->forward, &a);
  return MPG_OK;
}

static mpg_status backward(const mpg_kernel_call *call) {
  const mpg_attention_params *p = call->params;
  const instance *in = instance_of(call->inputs[0].desc.dtype);
  bool drops = p->p > 0;
  attention a = attention_of(call, call->inputs + 1, &call->inputs[6 + drops]);
  a.grad = place_of(&call->inputs[0], &p->result_at);
  a.output = place_of(&call->inputs[4], &p->result_at);
  a.sums = call->inputs[5].data;
  a.query_grad = place_of(&call->outputs[0], &p->query_at);
  a.key_grad = place_of(&call->outputs[p->packed ? 0 : 1], &p->key_at);
  a.value_grad = place_of(&call->outputs[p->packed ? 0 : 2], &p->value_at);
  if (drops) {
    const uint64_t *draw = call->inputs[6].data;
    a.draw = (mpg_random_key){
        .seed = draw[0], .call = draw[1], .position = draw[2], .run = draw[3], .stride = draw[4]};
  }
  MPG_TRY(get_scratch(&a, in->backward_bytes(&a)));
  int64_t heads = a.batch * a.heads;
  a.all_at_once = heads >= call->num_threads;
  if (a.all_at_once) {
    mpg_cpu_parallel_for(call, heads, 1, in->backward, &a);
    return MPG_OK;
  }
  a.for_keys = true;
  mpg_cpu_parallel_for(call, heads * blocks_of(a.keys, in->keys), 1, in->backward, &a);
  a.for_keys = false;
  mpg_cpu_parallel_for(call, heads * blocks_of(a.rows, in->rows), 1, in->backward, &a);
  return MPG_OK;
}

/* --- Half precision, computed in float32 ------------------------------------------------------ */
/* Runs a half-precision call in float32: widens the inputs, computes, and narrows the outputs. If
 * the processor multiplies bfloat16, only the mask of a bfloat16 call is widened. `mask` is the
 * index of the mask among the inputs. */
enum { MOST_INPUTS = 8, MOST_OUTPUTS = 3 };

static mpg_status run_wide(const mpg_kernel_call *call, int mask,
                           mpg_status (*run)(const mpg_kernel_call *)) {
  mpg_dtype dtype = call->inputs[0].desc.dtype;
  bool pairs = dtype == MPG_BFLOAT16 && mpg_cpu_pairs();
  if (dtype == MPG_FLOAT32 || dtype == MPG_FLOAT64 || (pairs && mask >= call->num_inputs))
    return run(call);
  mpg_view inputs[MOST_INPUTS], outputs[MOST_OUTPUTS];
  const mpg_view *views[2] = {call->inputs, call->outputs};
  mpg_view *wide[2] = {inputs, outputs};
  int counts[2] = {call->num_inputs, call->num_outputs};
  size_t total = 0;
  char *next = NULL;
  for (int pass = 0; pass < 2; pass++) { /* 0 adds up sizes, 1 sets addresses and converts */
    for (int side = 0; side < 2; side++)
      for (int i = 0; i < counts[side]; i++) {
        const mpg_view *view = &views[side][i];
        wide[side][i] = *view;
        if (view->desc.dtype != dtype || (pairs && (side == 1 || i != mask))) continue;
        /* True if the input is the same array as the previous input, which is then widened only
         * once. */
        bool again = side == 0 && i > 0 && !pairs && view->data == views[0][i - 1].data;
        int64_t count = mpg_shape_size(&view->desc.shape);
        wide[side][i].desc.dtype = MPG_FLOAT32;
        if (pass) wide[side][i].data = again ? wide[side][i - 1].data : next;
        if (again) continue;
        if (pass == 0) total += mpg_align_up((size_t)count * sizeof(float), 64);
        if (pass) next += mpg_align_up((size_t)count * sizeof(float), 64);
        if (pass && side == 0) mpg_cpu_widen(call, dtype, view->data, count, wide[side][i].data);
      }
    if (pass == 0 && !(next = mpg_device_scratch_slot(call->device, MPG_SCRATCH_WIDENED, total)))
      return MPG_DEVICE_OUT_OF_MEMORY;
  }
  mpg_kernel_call widened = *call;
  widened.inputs = inputs;
  widened.outputs = outputs;
  MPG_TRY(run(&widened));
  for (int i = 0; i < call->num_outputs; i++) {
    const mpg_view *out = &call->outputs[i];
    if (outputs[i].data != out->data)
      mpg_cpu_narrow(call, dtype, outputs[i].data, mpg_shape_size(&out->desc.shape), out->data);
  }
  return MPG_OK;
}

mpg_status mpg_cpu_attention(const mpg_kernel_call *call) { return run_wide(call, 3, forward); }
mpg_status mpg_cpu_attention_backward(const mpg_kernel_call *call) {
  return run_wide(call, 6 + (((const mpg_attention_params *)call->params)->p > 0), backward);
}
