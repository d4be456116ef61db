/* Unpacking of weights of 4 to 8 bits into T. Has no include guard, since it is included once per
 * type: T is float or double, NAME appends the type to a name, COMPUTE is the type's mpg_compute.
 *
 * Formats of GGUF hold their scales in float16. Products of a scale, a small scale and an element
 * are exact in float or rounded once, so all backends have the same bits. */

/* Unpacks int8: count elements of a row, from element `at` on. */
static void NAME(unpack_int8)(const packed_weight *w, const int8_t *packed, const T *scales,
                              int64_t at, int64_t count, T *to) {
  for (int64_t i = 0; i < count;) {
    int64_t end = group_end(w, at, i, count);
    const T scale = *scales++;
    for (; i < end; i++) to[i] = (T)packed[i] * scale;
  }
}

/* Splits bytes into their low and high 4 bits. */
static void NAME(unpack_nibbles)(const uint8_t *packed, int64_t count, T *to) {
  for (int64_t i = 0; i < count / 2; i++) {
    to[2 * i] = (T)(packed[i] & 15);
    to[2 * i + 1] = (T)(packed[i] >> 4);
  }
}

static void NAME(unpack_int4)(const packed_weight *w, const uint8_t *packed, const T *scales,
                              const T *zeros, int64_t at, int64_t count, T *to) {
  NAME(unpack_nibbles)(packed, count, to);
  for (int64_t i = 0; i < count;) {
    int64_t end = group_end(w, at, i, count);
    const T scale = *scales++, zero = zeros ? *zeros++ : (T)8;
    for (; i < end; i++) to[i] = (to[i] - zero) * scale;
  }
}

static void NAME(unpack_nf4)(const packed_weight *w, const uint8_t *packed, const T *scales,
                             int64_t at, int64_t count, T *to) {
  for (int64_t i = 0; i < count / 2; i++) {
    to[2 * i] = (T)mpg_nf4[packed[i] & 15];
    to[2 * i + 1] = (T)mpg_nf4[packed[i] >> 4];
  }
  for (int64_t i = 0; i < count;) {
    int64_t end = group_end(w, at, i, count);
    const T scale = *scales++;
    for (; i < end; i++) to[i] *= scale;
  }
}

/* A block of q8_0 is a scale and 32 int8. */
static void NAME(unpack_q8_0)(const uint8_t *block, int64_t count, T *to) {
  for (int64_t i = 0; i < count; i += 32, block += 34) {
    const T scale = (T)half_at(block);
    const int8_t *q = (const int8_t *)block + 2;
    for (int j = 0; j < 32; j++) to[i + j] = (T)q[j] * scale;
  }
}

/* A block of q4_0 is a scale and 16 bytes, whose high bits are elements 16 to 31. */
static void NAME(unpack_q4_0)(const uint8_t *block, int64_t count, T *to) {
  for (int64_t i = 0; i < count; i += 32, block += 18) {
    const T scale = (T)half_at(block);
    for (int j = 0; j < 16; j++) {
      to[i + j] = (T)((block[2 + j] & 15) - 8) * scale;
      to[i + 16 + j] = (T)((block[2 + j] >> 4) - 8) * scale;
    }
  }
}

/* A block of q4_k is a scale, the scale of the minimums, 8 scales and 8 minimums of 6 bits in 12
 * bytes, and 4 times 32 bytes that hold two runs of 32 elements. */
static void NAME(unpack_q4_k)(const uint8_t *block, int64_t count, T *to) {
  for (int64_t i = 0; i < count; i += 256, block += 144) {
    const T scale = (T)half_at(block), least = (T)half_at(block + 2);
    for (int run = 0; run < 8; run++) {
      int small, minimum;
      mpg_q4_k_scales(block + 4, run, &small, &minimum);
      const T factor = scale * (T)small, offset = least * (T)minimum;
      const uint8_t *q = block + 16 + run / 2 * 32;
      T *out = to + i + run * 32;
      for (int j = 0; j < 32; j++) out[j] = factor * (T)(q[j] >> run % 2 * 4 & 15) - offset;
    }
  }
}

/* A block of q6_k is 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 scales of int8, and their
 * scale. */
static void NAME(unpack_q6_k)(const uint8_t *block, int64_t count, T *to) {
  for (int64_t i = 0; i < count; i += 256, block += 210) {
    const T scale = (T)half_at(block + 208);
    const int8_t *scales = (const int8_t *)block + 192;
    for (int run = 0; run < 8; run++) {
      const uint8_t *low = block + run / 4 * 64 + run % 2 * 32, *high = block + 128 + run / 4 * 32;
      T *out = to + i + run * 32;
      for (int half = 0; half < 2; half++) {
        const T factor = scale * (T)scales[run * 2 + half];
        for (int j = half * 16; j < half * 16 + 16; j++) {
          int q = (low[j] >> run % 4 / 2 * 4 & 15) | (high[j] >> run % 4 * 2 & 3) << 4;
          out[j] = factor * (T)(q - 32);
        }
      }
    }
  }
}

/* Unpacks `count` elements of a row, from element `at` on, which is a multiple of UNPACK. count is
 * at most UNPACK. */
static void NAME(unpack)(const packed_weight *w, int64_t row, int64_t at, int64_t count, T *to) {
  const mpg_quantized_weight *q = &w->weight;
  const uint8_t *packed = w->packed + row * q->row_bytes +
                          at / mpg_weight_block(q->format) * mpg_weight_block_bytes(q->format);
  mpg_block_buffer scale_buffer, zero_buffer;
  const T *scales = NULL, *zeros = NULL;
  if (q->groups) {
    int64_t first = at / q->group, groups = (at + count - 1) / q->group - first + 1;
    first += row * q->groups;
    scales = mpg_cpu_load(COMPUTE, w->scale_dtype, w->scales, first, groups, &scale_buffer);
    if (w->zeros)
      zeros = mpg_cpu_load(COMPUTE, w->zero_dtype, w->zeros, first, groups, &zero_buffer);
  }
  switch (q->format) {
    case MPG_WEIGHT_INT8:
      NAME(unpack_int8)(w, (const int8_t *)packed, scales, at, count, to);
      break;
    case MPG_WEIGHT_INT4: NAME(unpack_int4)(w, packed, scales, zeros, at, count, to); break;
    case MPG_WEIGHT_NF4: NAME(unpack_nf4)(w, packed, scales, at, count, to); break;
    case MPG_WEIGHT_Q8_0: NAME(unpack_q8_0)(packed, count, to); break;
    case MPG_WEIGHT_Q4_0: NAME(unpack_q4_0)(packed, count, to); break;
    case MPG_WEIGHT_Q4_K: NAME(unpack_q4_k)(packed, count, to); break;
    case MPG_WEIGHT_Q6_K: NAME(unpack_q6_k)(packed, count, to); break;
  }
}

/* Computes one unit of the results of a few rows: the dot products of a row of the weight with each
 * row of data. Each element of `data` is T; rows have t->padded elements. */
static void NAME(few_rows)(void *context, int64_t begin, int64_t end) {
  const few *t = context;
  const int64_t k = t->weight.weight.in_units;
  T buffer[UNPACK] __attribute__((aligned(64)));
  _Static_assert(UNPACK % (CHAINS * LANES) == 0, "the buffer must consist of whole vectors");
  for (int64_t unit = begin; unit < end; unit++) {
    V sums[FEW_ROWS][CHAINS];
    for (int64_t m = 0; m < t->rows; m++)
      for (int c = 0; c < CHAINS; c++) sums[m][c] = V_SET(0);
    for (int64_t at = 0; at < k; at += UNPACK) {
      int64_t count = k - at < UNPACK ? k - at : UNPACK;
      int64_t whole = (count + CHAINS * LANES - 1) / (CHAINS * LANES) * (CHAINS * LANES);
      NAME(unpack)(&t->weight, unit, at, count, buffer);
      memset(buffer + count, 0, (size_t)(whole - count) * sizeof *buffer);
      for (int64_t m = 0; m < t->rows; m++) {
        const T *x = (const T *)t->data + m * t->padded + at;
        for (int64_t i = 0; i < whole; i += CHAINS * LANES)
          for (int c = 0; c < CHAINS; c++)
            sums[m][c] =
                V_FMA(V_LOAD(buffer + i + c * LANES), V_LOAD(x + i + c * LANES), sums[m][c]);
      }
    }
    for (int64_t m = 0; m < t->rows; m++) {
      T lanes[CHAINS * LANES];
      for (int c = 0; c < CHAINS; c++) V_STORE(lanes + c * LANES, sums[m][c]);
      for (int width = CHAINS * LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
      NAME(finish)(t, m, unit, lanes[0]);
    }
  }
}

/* Unpacks rows of the weight into a panel of T. */
static void NAME(unpack_rows)(void *context, int64_t begin, int64_t end) {
  const panel *t = context;
  const int64_t k = t->weight->weight.in_units;
  T buffer[UNPACK] __attribute__((aligned(64)));
  for (int64_t row = begin; row < end; row++)
    for (int64_t at = 0; at < k; at += UNPACK) {
      int64_t count = k - at < UNPACK ? k - at : UNPACK;
      bool direct = mpg_compute_direct(COMPUTE, t->dtype);
      T *to = direct ? (T *)t->to + row * k + at : buffer;
      NAME(unpack)(t->weight, t->first + row, at, count, to);
      if (!direct) mpg_cpu_store(COMPUTE, t->dtype, t->to, row * k + at, count, to);
    }
}
