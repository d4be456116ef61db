/* Arithmetic of reductions for one accumulator type. Included by reduce.c with
 *   T                  accumulator type
 *   U                  type of additions and multiplications
 *   INT                signed integer type of T's size
 *   NAME(x)            name of x in this instance, which is spelled x_T here
 *   LOWEST, HIGHEST, MAGNITUDE(x), IS_NAN(x)
 *   LARGEST(result, x, y), SMALLEST(result, x, y)
 *                      on vectors: x if it is NaN, else y unless x is larger (smaller)
 *   NARROW, NARROW_DTYPE, OF_NARROW(x), LOAD_NARROW(v, from), and the same with NARROW_TOO
 *                      two narrower types that sums read without a conversion buffer
 *   NARROW_EXTREMES    if defined, maximum and minimum also read the narrower types
 *   NO_TRAILING        if defined, no trailing reduction accumulates in T
 *
 * Rows of numbers are combined element by element, in order, in registers. Vectors have the
 * instruction set's width, since compilers split wider vectors and compare them element by element.
 * The order of combinations does not depend on the width.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define LANES_T NAME(LANES)
#define VECTORS_T NAME(VECTORS)
#define add_rest_T NAME(add_rest)
#define arithmetic_T NAME(arithmetic)
#define arithmetic_of_T NAME(arithmetic_of)
#define choose_T NAME(choose)
#define collect_T NAME(collect)
#define columns_T NAME(columns)
#define combine_T NAME(combine)
#define combine_vector_T NAME(combine_vector)
#define end_chunk_T NAME(end_chunk)
#define feed_T NAME(feed)
#define halve_T NAME(halve)
#define identity_T NAME(identity)
#define lines_as_T NAME(lines_as)
#define load_T NAME(load)
#define load_one_T NAME(load_one)
#define mask_T NAME(mask)
#define narrow_T NAME(narrow)
#define prepare_T NAME(prepare)
#define push_T NAME(push)
#define rows_as_T NAME(rows_as)
#define run_items_T NAME(run_items)
#define run_lines_T NAME(run_lines)
#define short_lines_T NAME(short_lines)
#define source_arithmetic_T NAME(source_arithmetic)
#define source_rows_T NAME(source_rows)
#define unsigned_vector_T NAME(unsigned_vector)
#define vector_T NAME(vector)

enum { LANES_T = MPG_VECTOR_BYTES / sizeof(T), VECTORS_T = MPG_WIDE / LANES_T };
typedef T vector_T __attribute__((vector_size(MPG_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
typedef U unsigned_vector_T
    __attribute__((vector_size(MPG_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
typedef INT mask_T __attribute__((vector_size(MPG_VECTOR_BYTES), aligned(sizeof(T)), may_alias));

static T identity_T(mpg_combine how) {
  return how == MPG_ADD ? 0 : how == MPG_MULTIPLY ? 1 : how == MPG_LARGEST ? LOWEST : HIGHEST;
}

INLINE T combine_T(mpg_combine how, T x, T y) {
  switch (how) {
    case MPG_ADD: return (T)((U)x + (U)y);
    case MPG_MULTIPLY: return (T)((U)x * (U)y);
    case MPG_LARGEST: return IS_NAN(x) ? x : x > y ? x : y;
    default: return IS_NAN(x) ? x : x < y ? x : y;
  }
}
INLINE T prepare_T(mpg_prepare how, T x) {
  switch (how) {
    case MPG_MAGNITUDE: return MAGNITUDE(x);
    case MPG_SQUARE: return (T)((U)x * (U)x);
    case MPG_NAN_TO_0: return IS_NAN(x) ? 0 : x;
    case MPG_NAN_TO_1: return IS_NAN(x) ? 1 : x;
    default: return x;
  }
}

/* Vector versions of the functions above. Vectors are passed by address, since their ABI depends on
 * the instruction set. */
INLINE void choose_T(const mask_T *where, const vector_T *x, vector_T *y) {
  *y = (vector_T)((*where & (mask_T)*x) | (~*where & (mask_T)*y));
}
INLINE void combine_vector_T(mpg_combine how, vector_T *x, const vector_T *y) {
  if (how == MPG_ADD) {
    *x = (vector_T)((unsigned_vector_T)*x + (unsigned_vector_T)*y);
  } else if (how == MPG_MULTIPLY) {
    *x = (vector_T)((unsigned_vector_T)*x * (unsigned_vector_T)*y);
  } else {
    vector_T result;
    if (how == MPG_LARGEST)
      LARGEST(result, *x, *y);
    else
      SMALLEST(result, *x, *y);
    *x = result;
  }
}
/* Loads the vector at element i of `from`, converts it from the type `source` to T, and applies
 * `how`. */
INLINE void load_T(mpg_prepare how, source_kind source, const void *from, int64_t i, vector_T *v) {
  vector_T x = {0}; /* gcc does not see that all lanes are written */
  (void)source;
#ifdef NARROW
  if (source == SOURCE_NARROW)
    LOAD_NARROW(x, (const NARROW *)from + i);
  else if (source == SOURCE_NARROW_TOO)
    LOAD_NARROW_TOO(x, (const NARROW_TOO *)from + i);
  else
#endif
    x = *(const vector_T *)(const void *)((const T *)from + i);
  if (how == MPG_SQUARE) {
    x = (vector_T)((unsigned_vector_T)x * (unsigned_vector_T)x);
  } else if (how == MPG_MAGNITUDE) {
    T values[LANES_T];
    memcpy(values, &x, sizeof x);
    for (int k = 0; k < LANES_T; k++) values[k] = MAGNITUDE(values[k]);
    memcpy(&x, values, sizeof x);
  } else if (how != MPG_PLAIN) {
    mask_T number = ~(mask_T)IS_NAN(x);
    vector_T other = (vector_T){0} + (T)(how == MPG_NAN_TO_1);
    choose_T(&number, &x, &other);
    x = other;
  }
  *v = x;
}
/* Scalar version of load: loads element i of `from`. */
INLINE T load_one_T(mpg_prepare how, source_kind source, const void *from, int64_t i) {
  (void)source;
#ifdef NARROW
  if (source == SOURCE_NARROW) return prepare_T(how, (T)OF_NARROW(((const NARROW *)from)[i]));
  if (source == SOURCE_NARROW_TOO)
    return prepare_T(how, (T)OF_NARROW_TOO(((const NARROW_TOO *)from)[i]));
#endif
  return prepare_T(how, ((const T *)from)[i]);
}

/* Combines n rows into acc, one after the other: acc = ((acc + row) + row) + ... If `first`, the
 * old acc is ignored. Columns that do not fill a vector are computed in a vector that overlaps the
 * previous one. Both vectors give equal results. */
INLINE void rows_as_T(mpg_combine how, mpg_prepare prepare, source_kind source, const void *rows,
                      int64_t stride, int64_t n, T *acc, int64_t width, bool first) {
  enum { LANES = LANES_T };
  vector_T v[4], row;
  int64_t i = 0;
  if (width < LANES) {
    for (; i < width; i++) {
      T x = first ? load_one_T(prepare, source, rows, i) : acc[i];
      for (int64_t r = first; r < n; r++)
        x = combine_T(how, x, load_one_T(prepare, source, rows, r * stride + i));
      acc[i] = x;
    }
    return;
  }
  vector_T last = {0}; /* gcc does not see that this is set before it is read */
  bool ragged = width % LANES;
  if (ragged) {
    int64_t at = width - LANES;
    if (first)
      load_T(prepare, source, rows, at, &last);
    else
      load_T(MPG_PLAIN, SOURCE_T, acc, at, &last);
    for (int64_t r = first; r < n; r++) {
      load_T(prepare, source, rows, at + r * stride, &row);
      combine_vector_T(how, &last, &row);
    }
  }
  for (; i + 4 * LANES <= width; i += 4 * LANES) {
    for (int k = 0; k < 4; k++) {
      if (first)
        load_T(prepare, source, rows, i + k * LANES, &v[k]);
      else
        load_T(MPG_PLAIN, SOURCE_T, acc, i + k * LANES, &v[k]);
    }
    for (int64_t r = first; r < n; r++)
      for (int k = 0; k < 4; k++) {
        load_T(prepare, source, rows, r * stride + i + k * LANES, &row);
        combine_vector_T(how, &v[k], &row);
      }
    for (int k = 0; k < 4; k++) *(vector_T *)(void *)(acc + i + k * LANES) = v[k];
  }
  for (; i + LANES <= width; i += LANES) {
    if (first)
      load_T(prepare, source, rows, i, &v[0]);
    else
      load_T(MPG_PLAIN, SOURCE_T, acc, i, &v[0]);
    for (int64_t r = first; r < n; r++) {
      load_T(prepare, source, rows, r * stride + i, &row);
      combine_vector_T(how, &v[0], &row);
    }
    *(vector_T *)(void *)(acc + i) = v[0];
  }
  if (ragged) *(vector_T *)(void *)(acc + width - LANES) = last;
}

/* Reduces the lanes of a line to one number: combines the upper half with the lower half until one
 * lane is left. Overwrites v. */
INLINE T halve_T(mpg_combine how, vector_T *v, int vectors) {
  mask_T iota;
  for (int j = 0; j < LANES_T; j++) iota[j] = j;
  for (int half = vectors / 2; half; half /= 2)
    for (int k = 0; k < half; k++) combine_vector_T(how, &v[k], &v[k + half]);
  MPG_UNROLL(4)
  for (int half = LANES_T / 2; half; half /= 2) {
#ifdef __clang__
    vector_T other = {0};
    for (int j = 0; j < LANES_T; j++) other[j] = v[0][(iota[j] + half) & (LANES_T - 1)];
#else
    vector_T other = __builtin_shuffle(v[0], (iota + half) & (LANES_T - 1));
#endif
    combine_vector_T(how, &v[0], &other);
  }
  return v[0][0];
}

/* Combines the last `rest` elements of a line with the first `rest` lanes of v. `inside` masks
 * these lanes. */
INLINE void add_rest_T(mpg_combine how, mpg_prepare prepare, const T *behind, int64_t rest,
                       int vectors, const mask_T *inside, vector_T *v) {
  MPG_UNROLL(8)
  for (int k = 0; k < VECTORS_T; k++)
    if (k < vectors && k * LANES_T < rest) {
      vector_T kept = v[k], row;
      load_T(prepare, SOURCE_T, behind, k * LANES_T, &row);
      combine_vector_T(how, &kept, &row);
      choose_T(&inside[k], &kept, &v[k]);
    }
}

/* Reduces lines of `count` contiguous elements to one number each. The first line starts at element
 * `at`. A line is reduced in MPG_WIDE interleaved lanes, or half as many if it has fewer elements
 * (at least 16). `line` points to the elements in the accumulator's type and is readable up to
 * `limit`. It is NULL if the elements need conversion. */
INLINE void lines_as_T(mpg_combine how, mpg_prepare prepare, source_kind source, const pass *p,
                       int64_t at, const T *line, int64_t count, int64_t lines, const T *limit,
                       T *out) {
  enum { LANES = LANES_T, VECTORS = VECTORS_T, PIECE = MPG_ROWS * MPG_WIDE };
  mask_T iota[VECTORS], inside[VECTORS];
  for (int k = 0; k < VECTORS; k++)
    for (int j = 0; j < LANES; j++) iota[k][j] = k * LANES + j;
  const int wide = count >= MPG_WIDE ? MPG_WIDE : MPG_WIDE / 2, vectors = wide / LANES;
  int64_t whole = count / wide * wide, rest = count - whole;
  for (int k = 0; k < VECTORS; k++) inside[k] = iota[k] < (mask_T){0} + (INT)rest;
  mpg_block_buffer buffer;
  vector_T levels[LEVELS][VECTORS], v[VECTORS] = {{0}}, row;
  if (line && whole == MPG_WIDE) /* fast path of the loop below, which is slow for few elements */
    for (; lines > 1; lines--, line += count) {
      MPG_UNROLL(8)
      for (int k = 0; k < VECTORS; k++) load_T(prepare, SOURCE_T, line, k * LANES, &v[k]);
      if (line + whole + MPG_WIDE > limit) break;
      add_rest_T(how, prepare, line + whole, rest, VECTORS, inside, v);
      *out++ = halve_T(how, v, VECTORS);
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
        for (int k = 0; k < VECTORS; k++) load_T(prepare, source, piece, k * LANES, &v[k]);
        for (int64_t i = MPG_WIDE; i < n; i += MPG_WIDE)
          for (int k = 0; k < VECTORS; k++) {
            load_T(prepare, source, piece, i + k * LANES, &row);
            combine_vector_T(how, &v[k], &row);
          }
      } else {
        for (int k = 0; k < VECTORS / 2; k++) load_T(prepare, source, piece, k * LANES, &v[k]);
      }
      done += n;
      if (done == whole) break;
      int level = 0;
      for (; pieces >> level & 1; level++)
        for (int k = 0; k < VECTORS; k++) {
          combine_vector_T(how, &levels[level][k], &v[k]);
          v[k] = levels[level][k];
        }
      for (int k = 0; k < VECTORS; k++) levels[level][k] = v[k];
      pieces++;
    }
    /* The last piece is in v. Combine it with the results of all levels. */
    for (int level = 0; pieces >> level; level++) {
      if (!(pieces >> level & 1)) continue;
      for (int k = 0; k < VECTORS; k++) {
        combine_vector_T(how, &levels[level][k], &v[k]);
        v[k] = levels[level][k];
      }
    }
    if (rest) {
      const T *behind = line ? line + whole
                             : (const T *)mpg_cpu_load(p->compute, p->dtype, p->source, at + whole,
                                                       rest, &buffer);
      if (line && behind + wide > limit) behind = memcpy(&buffer, behind, (size_t)rest * sizeof(T));
      add_rest_T(how, prepare, behind, rest, vectors, inside, v);
    }
    out[r] = vectors == VECTORS ? halve_T(how, v, VECTORS) : halve_T(how, v, VECTORS / 2);
  }
}

typedef struct arithmetic_T {
  void (*rows)(const void *rows, int64_t stride, int64_t n, T *acc, int64_t width, bool first);
  void (*lines)(const pass *p, int64_t at, const T *line, int64_t count, int64_t lines,
                const T *limit, T *out);
} arithmetic_T;

#define ARITHMETIC(name, how, prepare, source)                                            \
  static void NAME(name##_rows)(const void *rows, int64_t stride, int64_t n, T *acc,      \
                                int64_t width, bool first) {                              \
    rows_as_T(how, prepare, source, rows, stride, n, acc, width, first);                  \
  }                                                                                       \
  static void NAME(name##_lines)(const pass *p, int64_t at, const T *line, int64_t count, \
                                 int64_t lines, const T *limit, T *out) {                 \
    lines_as_T(how, prepare, source, p, at, line, count, lines, limit, out);              \
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

#define CHOICE(name) ((arithmetic_T){NAME(name##_rows), NAME(name##_lines)})
static arithmetic_T arithmetic_of_T(mpg_combine how, mpg_prepare prepare) {
  if (how == MPG_LARGEST) return CHOICE(largest);
  if (how == MPG_SMALLEST) return CHOICE(smallest);
  if (how == MPG_MULTIPLY) return prepare == MPG_NAN_TO_1 ? CHOICE(nanproduct) : CHOICE(product);
  return prepare == MPG_MAGNITUDE  ? CHOICE(magnitudes)
         : prepare == MPG_SQUARE   ? CHOICE(squares)
         : prepare == MPG_NAN_TO_0 ? CHOICE(nansum)
                                   : CHOICE(sum);
}
/* Returns the functions that read the source's own type, or NULLs if elements must be converted
 * first. */
static arithmetic_T source_arithmetic_T(const pass *p) {
  if (mpg_compute_direct(p->compute, p->dtype)) return arithmetic_of_T(p->how, p->prepare);
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
  return (arithmetic_T){NULL, NULL};
}

/* --- Pairwise summation ----------------------------------------------------------------------- */

/* Adds the next piece, `acc`, to a pairwise summation. The levels work like a binary counter: level
 * k holds the combined result of 2^k pieces, in `width` columns. Overwrites `acc`. */
static void push_T(const arithmetic_T *plain, T *levels, int64_t level_stride, uint64_t pieces,
                   T *acc, int64_t width) {
  int level = 0;
  for (; pieces >> level & 1; level++) {
    T *held = levels + level * level_stride;
    plain->rows(acc, width, 1, held, width, false);
    memcpy(acc, held, (size_t)width * sizeof(T));
  }
  memcpy(levels + level * level_stride, acc, (size_t)width * sizeof(T));
}
static void collect_T(const arithmetic_T *plain, T *levels, int64_t level_stride, uint64_t pieces,
                      T *result, int64_t width) {
  bool first = true;
  for (int level = 0; pieces >> level; level++) {
    if (!(pieces >> level & 1)) continue;
    T *held = levels + level * level_stride;
    if (!first) plain->rows(result, width, 1, held, width, false);
    memcpy(result, held, (size_t)width * sizeof(T));
    first = false;
  }
}

/* Reduces a wide row to one row of `inner` elements, in place. First combines it with the remaining
 * `rest` rows, which do not fill a wide row. */
static void narrow_T(const arithmetic_T *f, const arithmetic_T *plain, T *wide, int64_t group,
                     int64_t inner, const T *behind, int64_t rest) {
  if (rest) f->rows(behind, 0, 1, wide, rest * inner, false);
  for (int64_t half = group / 2; half; half /= 2)
    plain->rows(wide + half * inner, 0, 1, wide, half * inner, false);
}

/* --- A pass ----------------------------------------------------------------------------------- */

/* Sets acc to the combination of `n` rows of `width` elements. The first row starts at element `at`
 * of the source. */
static void source_rows_T(const pass *p, const arithmetic_T *f, int64_t at, int64_t stride,
                          int64_t n, T *acc, int64_t width) {
  arithmetic_T direct = source_arithmetic_T(p);
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

/* Reduces `count` rows of `width` columns, starting at element `at`. Processes group_of() adjacent
 * rows at a time, as one wide row. */
static void columns_T(const pass *p, const arithmetic_T *f, const arithmetic_T *plain, int64_t at,
                      int64_t count, int64_t width, T *result) {
  T levels[LEVELS * MPG_COLUMNS], acc[MPG_COLUMNS];
  int64_t group = group_of(p->inner, count), rows = count / group, wide = group * width,
          stride = group * p->inner;
  uint64_t pieces = 0;
  if (count == 0) {
    for (int64_t i = 0; i < width; i++) result[i] = identity_T(p->how);
    return;
  }
  if (rows <= MPG_ROWS && group == 1) {
    source_rows_T(p, f, at, stride, rows, result, width);
    return;
  }
  for (int64_t done = 0; done < rows; done += MPG_ROWS) {
    source_rows_T(p, f, at + done * stride, stride, rows - done < MPG_ROWS ? rows - done : MPG_ROWS,
                  acc, wide);
    push_T(plain, levels, MPG_COLUMNS, pieces++, acc, wide);
  }
  collect_T(plain, levels, MPG_COLUMNS, pieces, acc, wide);
  if (group > 1) {
    mpg_block_buffer buffer;
    const T *behind = mpg_cpu_load(p->compute, p->dtype, p->source, at + rows * stride,
                                   count % group * width, &buffer);
    narrow_T(f, plain, acc, group, width, behind, count % group);
  }
  memcpy(result, acc, (size_t)width * sizeof(T));
}

/* Reduces lines that are too short for lines_as, by transposing them to columns. */
static void short_lines_T(const arithmetic_T *f, const T *line, int64_t count, int64_t lines,
                          T *out) {
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

/* Reduces lines of `count` elements, starting at element `at`. Converts as many lines at a time as
 * fit into a block. */
static void run_lines_T(const pass *p, const arithmetic_T *f, int64_t at, int64_t count,
                        int64_t lines, T *out) {
  mpg_block_buffer buffer;
  bool direct = mpg_compute_direct(p->compute, p->dtype);
  int64_t most = direct ? lines : MPG_CPU_BLOCK / count;
  arithmetic_T stored = source_arithmetic_T(p);
  if (most == 0 || (!direct && stored.lines && count >= MPG_WIDE / 2)) {
    (stored.lines ? stored.lines : f->lines)(p, at, NULL, count, lines, NULL, out);
    return;
  }
  for (int64_t done = 0; done < lines; done += most) {
    int64_t n = lines - done < most ? lines - done : most, from = at + done * count;
    const T *values = mpg_cpu_load(p->compute, p->dtype, p->source, from, n * count, &buffer);
    const T *limit = direct ? (const T *)p->source + p->outer * p->count : values + n * count;
    if (count < MPG_WIDE / 2)
      short_lines_T(f, values, count, n, out + done);
    else
      f->lines(p, from, values, count, n, limit, out + done);
  }
}

static void run_items_T(const pass *p, int64_t begin, int64_t end) {
  arithmetic_T f = arithmetic_of_T(p->how, p->prepare), plain = arithmetic_of_T(p->how, MPG_PLAIN);
  if (p->inner == 1 && p->count > 0 && p->chunks == 1) {
    run_lines_T(p, &f, begin * p->count, p->count, end - begin, (T *)p->target + begin);
    return;
  }
  int64_t tiles, width = tile_of(p->inner, &tiles);
  for (int64_t item = begin; item < end; item++) {
    int64_t column = item % tiles * width, chunk = item / tiles % p->chunks,
            outer = item / tiles / p->chunks, first = chunk * p->chunk;
    int64_t n = p->count - first < p->chunk ? p->count - first : p->chunk;
    if (p->inner == 1 && n > 0)
      run_lines_T(p, &f, outer * p->count + first, n, 1, (T *)p->target + item);
    else
      columns_T(p, &f, &plain, (outer * p->count + first) * p->inner + column, n,
                p->inner - column < width ? p->inner - column : width,
                (T *)p->target + (outer * p->chunks + chunk) * p->inner + column);
  }
}

/* --- Trailing reductions: rows supplied incrementally ----------------------------------------- */

#ifndef NO_TRAILING
static void end_chunk_T(const mpg_trailing_reduction *trailing, const arithmetic_T *f,
                        const arithmetic_T *plain, trailing_state *state, int64_t group, T *piece,
                        T *acc, T *levels, T *result) {
  int64_t inner = trailing->inner, wide = group * inner, rows = state->held / group;
  if (group == 1 && state->held) {
    push_T(plain, levels, trailing->wide, state->pieces++, piece, inner);
  } else if (rows) {
    f->rows(piece, wide, rows, acc, wide, true);
    push_T(plain, levels, trailing->wide, state->pieces++, acc, wide);
  }
  collect_T(plain, levels, trailing->wide, state->pieces, acc, wide);
  if (group > 1) narrow_T(f, plain, acc, group, inner, piece + rows * wide, state->held % group);
  memcpy(result, acc, (size_t)inner * sizeof(T));
  state->pieces = 0;
  state->held = 0;
}

static void feed_T(const mpg_trailing_reduction *trailing, char *memory, T *partials,
                   const void *values, int64_t row, int64_t rows) {
  mpg_reduction reduction = mpg_reduction_of(trailing->op, trailing->params);
  arithmetic_T f = arithmetic_of_T(reduction.how, reduction.prepare),
               plain = arithmetic_of_T(reduction.how, MPG_PLAIN);
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
    if (group > 1 && direct && n == full) { /* read in place */
      f.rows((const T *)values + done * inner, wide, MPG_ROWS, acc, wide, true);
      push_T(&plain, levels, trailing->wide, state->pieces++, acc, wide);
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
        push_T(&plain, levels, trailing->wide, state->pieces++, acc, wide);
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
        push_T(&plain, levels, trailing->wide, state->pieces++, piece, inner);
        state->held = 0;
      }
    }
    done += n;
    if (at + n == end)
      end_chunk_T(trailing, &f, &plain, state, group, piece, acc, levels, partials + chunk * inner);
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
