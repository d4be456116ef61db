/* Arithmetic of reductions for one accumulator type. Included by reduce.c with
 *   T, U (type of additions and multiplications), INT (a signed integer of its size), NAME(x)
 *   LOWEST, HIGHEST, MAGNITUDE(x), IS_NAN(x)
 *   LARGEST(result, x, y), SMALLEST: on vectors, x if it is NaN, else the larger (smaller), y if
 *       they are equal
 *   NARROW, NARROW_DTYPE, OF_NARROW(x), LOAD_NARROW(v, from), and the same with NARROW_TOO:
 *       two types that sums read directly. NARROW_EXTREMES: maximum and minimum read them as well.
 *       Without these, elements are converted first.
 *   NO_TRAILING: no trailing reduction accumulates in T
 *
 * Rows of numbers are combined element by element, in order, in registers. Vectors have the
 * instruction set's width (compilers split wider ones, and comparisons into single elements). The
 * order of combinations does not depend on the width.
 */
enum { NAME(LANES) = MPG_VECTOR_BYTES / sizeof(T), NAME(VECTORS) = MPG_WIDE / NAME(LANES) };
typedef T NAME(vector)
    __attribute__((vector_size(MPG_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
typedef U NAME(unsigned_vector)
    __attribute__((vector_size(MPG_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
typedef INT NAME(mask)
    __attribute__((vector_size(MPG_VECTOR_BYTES), aligned(sizeof(T)), may_alias));

static T NAME(identity)(mpg_combine how) {
  return how == MPG_ADD ? 0 : how == MPG_MULTIPLY ? 1 : how == MPG_LARGEST ? LOWEST : HIGHEST;
}

INLINE T NAME(combine)(mpg_combine how, T x, T y) {
  switch (how) {
    case MPG_ADD: return (T)((U)x + (U)y);
    case MPG_MULTIPLY: return (T)((U)x * (U)y);
    case MPG_LARGEST: return IS_NAN(x) ? x : x > y ? x : y;
    default: return IS_NAN(x) ? x : x < y ? x : y;
  }
}
INLINE T NAME(prepare)(mpg_prepare how, T x) {
  switch (how) {
    case MPG_MAGNITUDE: return MAGNITUDE(x);
    case MPG_SQUARE: return (T)((U)x * (U)x);
    case MPG_NAN_TO_0: return IS_NAN(x) ? 0 : x;
    case MPG_NAN_TO_1: return IS_NAN(x) ? 1 : x;
    default: return x;
  }
}

/* Vector versions. By address, since the ABI for vector arguments depends on the instruction
 * set. */
INLINE void NAME(choose)(const NAME(mask) * where, const NAME(vector) * x, NAME(vector) * y) {
  *y = (NAME(vector))((*where & (NAME(mask)) * x) | (~*where & (NAME(mask)) * y));
}
INLINE void NAME(combine_vector)(mpg_combine how, NAME(vector) * x, const NAME(vector) * y) {
  if (how == MPG_ADD) {
    *x = (NAME(vector))((NAME(unsigned_vector)) * x + (NAME(unsigned_vector)) * y);
  } else if (how == MPG_MULTIPLY) {
    *x = (NAME(vector))((NAME(unsigned_vector)) * x * (NAME(unsigned_vector)) * y);
  } else {
    NAME(vector) result;
    if (how == MPG_LARGEST)
      LARGEST(result, *x, *y);
    else
      SMALLEST(result, *x, *y);
    *x = result;
  }
}
/* Loads the vector at element i of `from`, whose type is T or as `source` says. */
INLINE void NAME(load)(mpg_prepare how, source_kind source, const void *from, int64_t i,
                       NAME(vector) * v) {
  NAME(vector) x = {0}; /* gcc does not see that all lanes are written */
  (void)source;
#ifdef NARROW
  if (source == SOURCE_NARROW)
    LOAD_NARROW(x, (const NARROW *)from + i);
  else if (source == SOURCE_NARROW_TOO)
    LOAD_NARROW_TOO(x, (const NARROW_TOO *)from + i);
  else
#endif
    x = *(const NAME(vector) *)(const void *)((const T *)from + i);
  if (how == MPG_SQUARE) {
    x = (NAME(vector))((NAME(unsigned_vector))x * (NAME(unsigned_vector))x);
  } else if (how == MPG_MAGNITUDE) {
    T values[NAME(LANES)];
    memcpy(values, &x, sizeof x);
    for (int k = 0; k < NAME(LANES); k++) values[k] = MAGNITUDE(values[k]);
    memcpy(&x, values, sizeof x);
  } else if (how != MPG_PLAIN) {
    NAME(mask) number = ~(NAME(mask))IS_NAN(x);
    NAME(vector) other = (NAME(vector)){0} + (T)(how == MPG_NAN_TO_1);
    NAME(choose)(&number, &x, &other);
    x = other;
  }
  *v = x;
}
/* Loads one element of `from`. */
INLINE T NAME(load_one)(mpg_prepare how, source_kind source, const void *from, int64_t i) {
  (void)source;
#ifdef NARROW
  if (source == SOURCE_NARROW) return NAME(prepare)(how, (T)OF_NARROW(((const NARROW *)from)[i]));
  if (source == SOURCE_NARROW_TOO)
    return NAME(prepare)(how, (T)OF_NARROW_TOO(((const NARROW_TOO *)from)[i]));
#endif
  return NAME(prepare)(how, ((const T *)from)[i]);
}

/* acc = ((acc + row) + row) + ...; `first` ignores the old acc. Columns that do not fill a vector
 * are covered by two overlapping vectors, which compute equal results. */
INLINE void NAME(rows_as)(mpg_combine how, mpg_prepare prepare, source_kind source,
                          const void *rows, int64_t stride, int64_t n, T *acc, int64_t width,
                          bool first) {
  enum { LANES = NAME(LANES) };
  NAME(vector) v[4], row;
  int64_t i = 0;
  if (width < LANES) {
    for (; i < width; i++) {
      T x = first ? NAME(load_one)(prepare, source, rows, i) : acc[i];
      for (int64_t r = first; r < n; r++)
        x = NAME(combine)(how, x, NAME(load_one)(prepare, source, rows, r * stride + i));
      acc[i] = x;
    }
    return;
  }
  NAME(vector) last = {0}; /* gcc does not see that this is set before it is read */
  bool ragged = width % LANES;
  if (ragged) {
    int64_t at = width - LANES;
    if (first)
      NAME(load)(prepare, source, rows, at, &last);
    else
      NAME(load)(MPG_PLAIN, SOURCE_T, acc, at, &last);
    for (int64_t r = first; r < n; r++) {
      NAME(load)(prepare, source, rows, at + r * stride, &row);
      NAME(combine_vector)(how, &last, &row);
    }
  }
  for (; i + 4 * LANES <= width; i += 4 * LANES) {
    for (int k = 0; k < 4; k++) {
      if (first)
        NAME(load)(prepare, source, rows, i + k * LANES, &v[k]);
      else
        NAME(load)(MPG_PLAIN, SOURCE_T, acc, i + k * LANES, &v[k]);
    }
    for (int64_t r = first; r < n; r++)
      for (int k = 0; k < 4; k++) {
        NAME(load)(prepare, source, rows, r * stride + i + k * LANES, &row);
        NAME(combine_vector)(how, &v[k], &row);
      }
    for (int k = 0; k < 4; k++) *(NAME(vector) *)(void *)(acc + i + k * LANES) = v[k];
  }
  for (; i + LANES <= width; i += LANES) {
    if (first)
      NAME(load)(prepare, source, rows, i, &v[0]);
    else
      NAME(load)(MPG_PLAIN, SOURCE_T, acc, i, &v[0]);
    for (int64_t r = first; r < n; r++) {
      NAME(load)(prepare, source, rows, r * stride + i, &row);
      NAME(combine_vector)(how, &v[0], &row);
    }
    *(NAME(vector) *)(void *)(acc + i) = v[0];
  }
  if (ragged) *(NAME(vector) *)(void *)(acc + width - LANES) = last;
}

/* Reduces the lanes of a line by halves, in place. */
INLINE T NAME(halve)(mpg_combine how, NAME(vector) * v, int vectors) {
  NAME(mask) iota;
  for (int j = 0; j < NAME(LANES); j++) iota[j] = j;
  for (int half = vectors / 2; half; half /= 2)
    for (int k = 0; k < half; k++) NAME(combine_vector)(how, &v[k], &v[k + half]);
  MPG_UNROLL(4)
  for (int half = NAME(LANES) / 2; half; half /= 2) {
#ifdef __clang__
    NAME(vector) other = {0};
    for (int j = 0; j < NAME(LANES); j++) other[j] = v[0][(iota[j] + half) & (NAME(LANES) - 1)];
#else
    NAME(vector) other = __builtin_shuffle(v[0], (iota + half) & (NAME(LANES) - 1));
#endif
    NAME(combine_vector)(how, &v[0], &other);
  }
  return v[0][0];
}

/* Combines v with the remaining `rest` elements, lane by lane. */
INLINE void NAME(add_rest)(mpg_combine how, mpg_prepare prepare, const T *behind, int64_t rest,
                           int vectors, const NAME(mask) * inside, NAME(vector) * v) {
  MPG_UNROLL(8)
  for (int k = 0; k < NAME(VECTORS); k++)
    if (k < vectors && k * NAME(LANES) < rest) {
      NAME(vector) kept = v[k], row;
      NAME(load)(prepare, SOURCE_T, behind, k * NAME(LANES), &row);
      NAME(combine_vector)(how, &kept, &row);
      NAME(choose)(&inside[k], &kept, &v[k]);
    }
}

/* Reduces lines of `count` contiguous elements from element `at` on, each to one number, in
 * MPG_WIDE interleaved lanes, or half as many if a line has fewer elements (at least 16). `line`
 * points to them in the accumulator's type, readable up to `limit`; NULL if they need
 * conversion. */
INLINE void NAME(lines_as)(mpg_combine how, mpg_prepare prepare, source_kind source, const pass *p,
                           int64_t at, const T *line, int64_t count, int64_t lines, const T *limit,
                           T *out) {
  enum { LANES = NAME(LANES), VECTORS = NAME(VECTORS), PIECE = MPG_ROWS * MPG_WIDE };
  NAME(mask) iota[VECTORS], inside[VECTORS];
  for (int k = 0; k < VECTORS; k++)
    for (int j = 0; j < LANES; j++) iota[k][j] = k * LANES + j;
  const int wide = count >= MPG_WIDE ? MPG_WIDE : MPG_WIDE / 2, vectors = wide / LANES;
  int64_t whole = count / wide * wide, rest = count - whole;
  for (int k = 0; k < VECTORS; k++) inside[k] = iota[k] < (NAME(mask)){0} + (INT)rest;
  mpg_block_buffer buffer;
  NAME(vector) levels[LEVELS][VECTORS], v[VECTORS] = {{0}}, row;
  if (line && whole == MPG_WIDE) /* fast path of the loop below, which is slow for few elements */
    for (; lines > 1; lines--, line += count) {
      MPG_UNROLL(8)
      for (int k = 0; k < VECTORS; k++) NAME(load)(prepare, SOURCE_T, line, k * LANES, &v[k]);
      if (line + whole + MPG_WIDE > limit) break;
      NAME(add_rest)(how, prepare, line + whole, rest, VECTORS, inside, v);
      *out++ = NAME(halve)(how, v, VECTORS);
      at += count;
    }
  for (int64_t r = 0; r < lines; r++, at += count, line = line ? line + count : NULL) {
    uint64_t pieces = 0;
    for (int64_t done = 0;;) {
      int64_t n = whole - done < PIECE ? whole - done : PIECE;
      const void *piece =
          source != SOURCE_T
              ? (const char *)p->source + (at + done) * (int64_t)mpg_dtype_size(p->dtype)
          : line ? line + done
                 : mpg_cpu_load(p->compute, p->dtype, p->source, at + done, n, &buffer);
      if (vectors == VECTORS) {
        for (int k = 0; k < VECTORS; k++) NAME(load)(prepare, source, piece, k * LANES, &v[k]);
        for (int64_t i = MPG_WIDE; i < n; i += MPG_WIDE)
          for (int k = 0; k < VECTORS; k++) {
            NAME(load)(prepare, source, piece, i + k * LANES, &row);
            NAME(combine_vector)(how, &v[k], &row);
          }
      } else {
        for (int k = 0; k < VECTORS / 2; k++) NAME(load)(prepare, source, piece, k * LANES, &v[k]);
      }
      done += n;
      if (done == whole) break;
      int level = 0;
      for (; pieces >> level & 1; level++)
        for (int k = 0; k < VECTORS; k++) {
          NAME(combine_vector)(how, &levels[level][k], &v[k]);
          v[k] = levels[level][k];
        }
      for (int k = 0; k < VECTORS; k++) levels[level][k] = v[k];
      pieces++;
    }
    /* The last piece is in v and acts as level 0's. */
    for (int level = 0; pieces >> level; level++) {
      if (!(pieces >> level & 1)) continue;
      for (int k = 0; k < VECTORS; k++) {
        NAME(combine_vector)(how, &levels[level][k], &v[k]);
        v[k] = levels[level][k];
      }
    }
    if (rest) {
      const T *behind = line ? line + whole
                             : (const T *)mpg_cpu_load(p->compute, p->dtype, p->source, at + whole,
                                                       rest, &buffer);
      if (line && behind + wide > limit) behind = memcpy(&buffer, behind, (size_t)rest * sizeof(T));
      NAME(add_rest)(how, prepare, behind, rest, vectors, inside, v);
    }
    out[r] = vectors == VECTORS ? NAME(halve)(how, v, VECTORS) : NAME(halve)(how, v, VECTORS / 2);
  }
}

typedef struct NAME(arithmetic) {
  void (*rows)(const void *rows, int64_t stride, int64_t n, T *acc, int64_t width, bool first);
  void (*lines)(const pass *p, int64_t at, const T *line, int64_t count, int64_t lines,
                const T *limit, T *out);
} NAME(arithmetic);

#define ARITHMETIC(name, how, prepare, source)                                            \
  static void NAME(name##_rows)(const void *rows, int64_t stride, int64_t n, T *acc,      \
                                int64_t width, bool first) {                              \
    NAME(rows_as)(how, prepare, source, rows, stride, n, acc, width, first);              \
  }                                                                                       \
  static void NAME(name##_lines)(const pass *p, int64_t at, const T *line, int64_t count, \
                                 int64_t lines, const T *limit, T *out) {                 \
    NAME(lines_as)(how, prepare, source, p, at, line, count, lines, limit, out);          \
  }
ARITHMETIC(sum, MPG_ADD, MPG_PLAIN, SOURCE_T)
ARITHMETIC(magnitudes, MPG_ADD, MPG_MAGNITUDE, SOURCE_T)
ARITHMETIC(squares, MPG_ADD, MPG_SQUARE, SOURCE_T)
ARITHMETIC(nansum, MPG_ADD, MPG_NAN_TO_0, SOURCE_T)
ARITHMETIC(product, MPG_MULTIPLY, MPG_PLAIN, SOURCE_T)
ARITHMETIC(nanproduct, MPG_MULTIPLY, MPG_NAN_TO_1, SOURCE_T)
ARITHMETIC(largest, MPG_LARGEST, MPG_PLAIN, SOURCE_T)
ARITHMETIC(smallest, MPG_SMALLEST, MPG_PLAIN, SOURCE_T)
#ifdef NARROW
ARITHMETIC(sum_narrow, MPG_ADD, MPG_PLAIN, SOURCE_NARROW)
ARITHMETIC(sum_narrow_too, MPG_ADD, MPG_PLAIN, SOURCE_NARROW_TOO)
#endif
#ifdef NARROW_EXTREMES
ARITHMETIC(largest_narrow, MPG_LARGEST, MPG_PLAIN, SOURCE_NARROW)
ARITHMETIC(largest_narrow_too, MPG_LARGEST, MPG_PLAIN, SOURCE_NARROW_TOO)
ARITHMETIC(smallest_narrow, MPG_SMALLEST, MPG_PLAIN, SOURCE_NARROW)
ARITHMETIC(smallest_narrow_too, MPG_SMALLEST, MPG_PLAIN, SOURCE_NARROW_TOO)
#endif

#define CHOICE(name) ((NAME(arithmetic)){NAME(name##_rows), NAME(name##_lines)})
static NAME(arithmetic) NAME(arithmetic_of)(mpg_combine how, mpg_prepare prepare) {
  if (how == MPG_LARGEST) return CHOICE(largest);
  if (how == MPG_SMALLEST) return CHOICE(smallest);
  if (how == MPG_MULTIPLY) return prepare == MPG_NAN_TO_1 ? CHOICE(nanproduct) : CHOICE(product);
  return prepare == MPG_MAGNITUDE  ? CHOICE(magnitudes)
         : prepare == MPG_SQUARE   ? CHOICE(squares)
         : prepare == MPG_NAN_TO_0 ? CHOICE(nansum)
                                   : CHOICE(sum);
}
/* Returns the arithmetic on the source's own type, or zeros if elements are converted first. */
static NAME(arithmetic) NAME(source_arithmetic)(const pass *p) {
  if (mpg_compute_direct(p->compute, p->dtype)) return NAME(arithmetic_of)(p->how, p->prepare);
#ifdef NARROW
  if (p->how == MPG_ADD && p->prepare == MPG_PLAIN && p->dtype == NARROW_DTYPE)
    return CHOICE(sum_narrow);
  if (p->how == MPG_ADD && p->prepare == MPG_PLAIN && p->dtype == NARROW_TOO_DTYPE)
    return CHOICE(sum_narrow_too);
#endif
#ifdef NARROW_EXTREMES
  if (p->how == MPG_LARGEST && p->dtype == NARROW_DTYPE) return CHOICE(largest_narrow);
  if (p->how == MPG_LARGEST && p->dtype == NARROW_TOO_DTYPE) return CHOICE(largest_narrow_too);
  if (p->how == MPG_SMALLEST && p->dtype == NARROW_DTYPE) return CHOICE(smallest_narrow);
  if (p->how == MPG_SMALLEST && p->dtype == NARROW_TOO_DTYPE) return CHOICE(smallest_narrow_too);
#endif
  return (NAME(arithmetic)){NULL, NULL};
}

/* --- Pairwise summation ----------------------------------------------------------------------- */

/* Pairwise combination of pieces, like a binary counter: level k, `width` wide, holds the result of
 * 2^k pieces. `acc` is the next piece and is overwritten. */
static void NAME(push)(const NAME(arithmetic) * plain, T *levels, int64_t level_stride,
                       uint64_t pieces, T *acc, int64_t width) {
  int level = 0;
  for (; pieces >> level & 1; level++) {
    T *held = levels + level * level_stride;
    plain->rows(acc, width, 1, held, width, false);
    memcpy(acc, held, (size_t)width * sizeof(T));
  }
  memcpy(levels + level * level_stride, acc, (size_t)width * sizeof(T));
}
static void NAME(collect)(const NAME(arithmetic) * plain, T *levels, int64_t level_stride,
                          uint64_t pieces, T *result, int64_t width) {
  bool first = true;
  for (int level = 0; pieces >> level; level++) {
    if (!(pieces >> level & 1)) continue;
    T *held = levels + level * level_stride;
    if (!first) plain->rows(result, width, 1, held, width, false);
    memcpy(result, held, (size_t)width * sizeof(T));
    first = false;
  }
}

/* Reduces a wide row to one row of `inner`, in place, including the `rest` rows after it. */
static void NAME(narrow)(const NAME(arithmetic) * f, const NAME(arithmetic) * plain, T *wide,
                         int64_t group, int64_t inner, const T *behind, int64_t rest) {
  if (rest) f->rows(behind, 0, 1, wide, rest * inner, false);
  for (int64_t half = group / 2; half; half /= 2)
    plain->rows(wide + half * inner, 0, 1, wide, half * inner, false);
}

/* --- A pass ----------------------------------------------------------------------------------- */

/* Combines `n` rows of `width` from the source, converted to the accumulator's type, into acc. */
static void NAME(source_rows)(const pass *p, const NAME(arithmetic) * f, int64_t at, int64_t stride,
                              int64_t n, T *acc, int64_t width) {
  NAME(arithmetic) direct = NAME(source_arithmetic)(p);
  if (direct.rows) {
    direct.rows((const char *)p->source + at * (int64_t)mpg_dtype_size(p->dtype), stride, n, acc,
                width, true);
    return;
  }
  mpg_block_buffer buffer;
  int64_t most = stride == width ? MPG_CPU_BLOCK / width : 1;
  for (int64_t done = 0; done < n; done += most) {
    int64_t rows = n - done < most ? n - done : most;
    f->rows(
        mpg_cpu_load(p->compute, p->dtype, p->source, at + done * stride, rows * width, &buffer),
        width, rows, acc, width, done == 0);
  }
}

/* Reduces columns [column, column + width) of rows [row, row + count) of one outer index, in groups
 * of adjacent rows or one by one. */
static void NAME(columns)(const pass *p, const NAME(arithmetic) * f, const NAME(arithmetic) * plain,
                          int64_t at, int64_t count, int64_t width, T *result) {
  T levels[LEVELS * MPG_COLUMNS], acc[MPG_COLUMNS];
  int64_t group = group_of(p->inner, count), rows = count / group, wide = group * width,
          stride = group * p->inner;
  uint64_t pieces = 0;
  if (count == 0) {
    for (int64_t i = 0; i < width; i++) result[i] = NAME(identity)(p->how);
    return;
  }
  if (rows <= MPG_ROWS && group == 1) {
    NAME(source_rows)(p, f, at, stride, rows, result, width);
    return;
  }
  for (int64_t done = 0; done < rows; done += MPG_ROWS) {
    NAME(source_rows)(p, f, at + done * stride, stride,
                      rows - done < MPG_ROWS ? rows - done : MPG_ROWS, acc, wide);
    NAME(push)(plain, levels, MPG_COLUMNS, pieces++, acc, wide);
  }
  NAME(collect)(plain, levels, MPG_COLUMNS, pieces, acc, wide);
  if (group > 1) {
    mpg_block_buffer buffer;
    const T *behind = mpg_cpu_load(p->compute, p->dtype, p->source, at + rows * stride,
                                   count % group * width, &buffer);
    NAME(narrow)(f, plain, acc, group, width, behind, count % group);
  }
  memcpy(result, acc, (size_t)width * sizeof(T));
}

/* Reduces lines shorter than those of lines_as: transposes them to columns. */
static void NAME(short_lines)(const NAME(arithmetic) * f, const T *line, int64_t count,
                              int64_t lines, T *out) {
  enum { TILE = 64 };
  T turned[TILE * (MPG_WIDE / 2)];
  for (int64_t done = 0; done < lines; done += TILE) {
    int64_t n = lines - done < TILE ? lines - done : TILE;
#define TURN(length)                                                     \
  for (int64_t r = 0; r < n; r++, line += length)                        \
    for (int64_t k = 0; k < length; k++) turned[k * TILE + r] = line[k]; \
  break;
    switch (count) {
      case 2: TURN(2)
      case 3: TURN(3)
      case 4: TURN(4)
      default: TURN(count)
    }
#undef TURN
    f->rows(turned, TILE, count, out + done, n, true);
  }
}

/* Reduces lines of `count` from element `at` on, as many at a time as fit into a block. */
static void NAME(run_lines)(const pass *p, const NAME(arithmetic) * f, int64_t at, int64_t count,
                            int64_t lines, T *out) {
  mpg_block_buffer buffer;
  bool direct = mpg_compute_direct(p->compute, p->dtype);
  int64_t most = direct ? lines : MPG_CPU_BLOCK / count;
  NAME(arithmetic) stored = NAME(source_arithmetic)(p);
  if (most == 0 || (!direct && stored.lines && count >= MPG_WIDE / 2)) {
    (stored.lines ? stored.lines : f->lines)(p, at, NULL, count, lines, NULL, out);
    return;
  }
  for (int64_t done = 0; done < lines; done += most) {
    int64_t n = lines - done < most ? lines - done : most, from = at + done * count;
    const T *values = mpg_cpu_load(p->compute, p->dtype, p->source, from, n * count, &buffer);
    const T *limit = direct ? (const T *)p->source + p->outer * p->count : values + n * count;
    if (count < MPG_WIDE / 2)
      NAME(short_lines)(f, values, count, n, out + done);
    else
      f->lines(p, from, values, count, n, limit, out + done);
  }
}

static void NAME(run_items)(const pass *p, int64_t begin, int64_t end) {
  NAME(arithmetic)
  f = NAME(arithmetic_of)(p->how, p->prepare), plain = NAME(arithmetic_of)(p->how, MPG_PLAIN);
  if (p->inner == 1 && p->count > 0 && p->chunks == 1) {
    NAME(run_lines)(p, &f, begin * p->count, p->count, end - begin, (T *)p->target + begin);
    return;
  }
  int64_t tiles, width = tile_of(p->inner, &tiles);
  for (int64_t item = begin; item < end; item++) {
    int64_t column = item % tiles * width, chunk = item / tiles % p->chunks,
            outer = item / tiles / p->chunks, first = chunk * p->chunk;
    int64_t n = p->count - first < p->chunk ? p->count - first : p->chunk;
    if (p->inner == 1 && n > 0)
      NAME(run_lines)(p, &f, outer * p->count + first, n, 1, (T *)p->target + item);
    else
      NAME(columns)(p, &f, &plain, (outer * p->count + first) * p->inner + column, n,
                    p->inner - column < width ? p->inner - column : width,
                    (T *)p->target + (outer * p->chunks + chunk) * p->inner + column);
  }
}

/* --- Trailing reductions: rows supplied incrementally ----------------------------------------- */

#ifndef NO_TRAILING
static void NAME(end_chunk)(const mpg_trailing_reduction *trailing, const NAME(arithmetic) * f,
                            const NAME(arithmetic) * plain, trailing_state *state, int64_t group,
                            T *piece, T *acc, T *levels, T *result) {
  int64_t inner = trailing->inner, wide = group * inner, rows = state->held / group;
  if (group == 1 && state->held) {
    NAME(push)(plain, levels, trailing->wide, state->pieces++, piece, inner);
  } else if (rows) {
    f->rows(piece, wide, rows, acc, wide, true);
    NAME(push)(plain, levels, trailing->wide, state->pieces++, acc, wide);
  }
  NAME(collect)(plain, levels, trailing->wide, state->pieces, acc, wide);
  if (group > 1)
    NAME(narrow)(f, plain, acc, group, inner, piece + rows * wide, state->held % group);
  memcpy(result, acc, (size_t)inner * sizeof(T));
  state->pieces = 0;
  state->held = 0;
}

static void NAME(feed)(const mpg_trailing_reduction *trailing, char *memory, T *partials,
                       const void *values, int64_t row, int64_t rows) {
  mpg_reduction reduction = mpg_reduction_of(trailing->op, trailing->params);
  NAME(arithmetic)
  f = NAME(arithmetic_of)(reduction.how, reduction.prepare),
  plain = NAME(arithmetic_of)(reduction.how, MPG_PLAIN);
  mpg_compute compute = accumulator_of(trailing->dtype);
  bool direct = mpg_compute_direct(compute, trailing->dtype);
  trailing_state *state = (trailing_state *)(void *)memory;
  int64_t inner = trailing->inner;
  T *piece = (T *)(void *)(memory + 64), *acc = (T *)(void *)(memory + trailing->acc_at),
    *levels = (T *)(void *)(memory + trailing->levels_at);
  for (int64_t done = 0; done < rows;) {
    int64_t at = row + done, chunk = at / trailing->chunk, first = chunk * trailing->chunk,
            end = first + trailing->chunk < trailing->count ? first + trailing->chunk
                                                            : trailing->count;
    int64_t group = group_of(inner, end - first), wide = group * inner, full = MPG_ROWS * group,
            n = full - state->held; /* rows that complete the piece */
    if (n > end - at) n = end - at;
    if (n > rows - done) n = rows - done;
    if (group > 1 && direct && n == full) { /* without a copy */
      f.rows((const T *)values + done * inner, wide, MPG_ROWS, acc, wide, true);
      NAME(push)(&plain, levels, trailing->wide, state->pieces++, acc, wide);
    } else if (group > 1) {
      mpg_block_buffer loaded;
      for (int64_t i = 0; i < n * inner; i += MPG_CPU_BLOCK) {
        int64_t some = n * inner - i < MPG_CPU_BLOCK ? n * inner - i : MPG_CPU_BLOCK;
        memcpy(piece + state->held * inner + i,
               mpg_cpu_load(compute, trailing->dtype, values, done * inner + i, some, &loaded),
               (size_t)some * sizeof(T));
      }
      state->held += n;
      if (state->held == full) {
        f.rows(piece, wide, MPG_ROWS, acc, wide, true);
        NAME(push)(&plain, levels, trailing->wide, state->pieces++, acc, wide);
        state->held = 0;
      }
    } else {
      mpg_block_buffer loaded;
      if (direct)
        f.rows((const T *)values + done * inner, inner, n, piece, inner, state->held == 0);
      for (int64_t r = 0; r < n && !direct; r++)
        for (int64_t column = 0; column < inner; column += MPG_CPU_BLOCK) {
          int64_t width = inner - column < MPG_CPU_BLOCK ? inner - column : MPG_CPU_BLOCK;
          f.rows(mpg_cpu_load(compute, trailing->dtype, values, (done + r) * inner + column, width,
                              &loaded),
                 width, 1, piece + column, width, state->held + r == 0);
        }
      state->held += n;
      if (state->held == full) {
        NAME(push)(&plain, levels, trailing->wide, state->pieces++, piece, inner);
        state->held = 0;
      }
    }
    done += n;
    if (at + n == end)
      NAME(end_chunk)(trailing, &f, &plain, state, group, piece, acc, levels,
                      partials + chunk * inner);
  }
}
#endif

#undef CHOICE
#undef ARITHMETIC
#undef T
#undef U
#undef INT
#undef NAME
#undef LOWEST
#undef HIGHEST
#undef MAGNITUDE
#undef IS_NAN
#undef LARGEST
#undef SMALLEST
#undef NO_TRAILING
#undef NARROW
#undef NARROW_DTYPE
#undef OF_NARROW
#undef LOAD_NARROW
#undef NARROW_TOO
#undef NARROW_TOO_DTYPE
#undef OF_NARROW_TOO
#undef LOAD_NARROW_TOO
#undef NARROW_EXTREMES
