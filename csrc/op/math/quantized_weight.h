/* Weights that are packed into 4 to 8 bits an element, as read by all backends.
 *
 * A weight is (units, in_units). Rows are contiguous in every format:
 *   int8  one byte an element; element = q * scale
 *   int4  two elements a byte, the first in the low bits; element = (q - zero) * scale
 *   nf4   as int4; element = table[q] * scale (QLoRA's NormalFloat)
 *   q8_0, q4_0, q4_k, q6_k
 *         blocks of 32 or 256 elements that contain their scales, as in GGUF files
 *
 * Sources: Dettmers et al., "QLoRA", 2023; the reference quantization of ggml. The functions are
 * stateless and may be called from any thread. */
#ifndef MPG_OP_MATH_QUANTIZED_WEIGHT_H
#define MPG_OP_MATH_QUANTIZED_WEIGHT_H

#include "op/op.h"

/* In the order of the parameter `format`. */
typedef enum mpg_weight_format {
  MPG_WEIGHT_INT8,
  MPG_WEIGHT_INT4,
  MPG_WEIGHT_NF4,
  MPG_WEIGHT_Q8_0,
  MPG_WEIGHT_Q4_0,
  MPG_WEIGHT_Q4_K,
  MPG_WEIGHT_Q6_K
} mpg_weight_format;

typedef struct mpg_quantized_weight {
  mpg_weight_format format;
  int64_t units, in_units;
  int64_t group;     /* elements that share a scale; in_units if the whole row does */
  int64_t groups;    /* scales of a row; 0 if the blocks contain them */
  int64_t row_bytes; /* bytes of a packed row */
  /* Indices among the inputs; -1 if missing. */
  int data_input, packed_input, scales_input, zeros_input, bias_input;
} mpg_quantized_weight;

/* Elements and bytes of a block. A block of int8, int4 and nf4 is one byte. */
static inline int64_t mpg_weight_block(mpg_weight_format format) {
  switch (format) {
    case MPG_WEIGHT_INT4:
    case MPG_WEIGHT_NF4: return 2;
    case MPG_WEIGHT_Q8_0:
    case MPG_WEIGHT_Q4_0: return 32;
    case MPG_WEIGHT_Q4_K:
    case MPG_WEIGHT_Q6_K: return 256;
    default: return 1;
  }
}
static inline int64_t mpg_weight_block_bytes(mpg_weight_format format) {
  switch (format) {
    case MPG_WEIGHT_Q8_0: return 34;
    case MPG_WEIGHT_Q4_0: return 18;
    case MPG_WEIGHT_Q4_K: return 144;
    case MPG_WEIGHT_Q6_K: return 210;
    default: return 1;
  }
}
/* True if the format needs the input `scales`. */
static inline bool mpg_weight_has_scales(mpg_weight_format format) {
  return format <= MPG_WEIGHT_NF4;
}

/* Reads the parameters of a call of _contrib_quantized_dot or _contrib_dequantize_weight. */
static inline mpg_quantized_weight mpg_quantized_weight_of(const mpg_op *op, const void *params) {
  mpg_quantized_weight w;
  bool scales, zeros, bias = false, dot = op->id == MPG_OP__contrib_quantized_dot;
#define READ(type)                                \
  do {                                            \
    const type *p = (const type *)params;         \
    w.format = (mpg_weight_format)p->format;      \
    w.units = p->units, w.in_units = p->in_units; \
    w.group = p->group;                           \
    scales = p->use_scales, zeros = p->use_zeros; \
  } while (0)
  if (dot)
    READ(mpg_quantized_dot_params);
  else
    READ(mpg_dequantize_weight_params);
#undef READ
  if (dot) bias = ((const mpg_quantized_dot_params *)params)->use_bias;
  if (w.group == 0) w.group = w.in_units;
  w.groups = mpg_weight_has_scales(w.format) ? w.in_units / w.group : 0;
  /* Inference runs this before it refuses weights that are too large. */
  if (__builtin_mul_overflow(w.in_units / mpg_weight_block(w.format),
                             mpg_weight_block_bytes(w.format), &w.row_bytes))
    w.row_bytes = INT64_MAX;
  int next = dot;
  w.data_input = dot ? 0 : -1;
  w.packed_input = next++;
  w.scales_input = scales ? next++ : -1;
  w.zeros_input = zeros ? next++ : -1;
  w.bias_input = bias ? next : -1;
  return w;
}

#endif
