/* Merging of attention for one dtype, an implementation for float_instances.h. */

#define merge_rows_T NAME(merge_rows)
#define describe_rows_T NAME(describe_rows)

static void merge_rows_T(void *context, int64_t begin, int64_t end) {
  const merging *m = context;
  const mpg_view *in = m->call->inputs, *out = m->call->outputs;
  for (int64_t i = begin; i < end; i++) {
    int64_t at = row_at(m, i), sums = sums_at(m, i);
    const A *left = (const A *)in[1].data + sums, *right = (const A *)in[3].data + sums;
    A *merged = (A *)out[1].data + sums, max = left[0] > right[0] ? left[0] : right[0],
      shift = max == -(A)INFINITY ? 0 : max;
    A by_left = left[m->rows] * (A)exp((double)(left[0] - shift)),
      by_right = right[m->rows] * (A)exp((double)(right[0] - shift)), total = by_left + by_right;
    merged[0] = max;
    merged[m->rows] = total;
    if (total != 0) by_left /= total, by_right /= total;
    const S *x = (const S *)in[0].data + at, *y = (const S *)in[2].data + at;
    S *result = (S *)out[0].data + at;
    for (int64_t e = 0; e < m->width; e++)
      result[e] = STORE(by_left * LOAD(x[e]) + by_right * LOAD(y[e]));
  }
}

static void describe_rows_T(void *context, int64_t begin, int64_t end) {
  const merging *m = context;
  const mpg_view *in = m->call->inputs;
  for (int64_t i = begin; i < end; i++) {
    int64_t at = row_at(m, i), sums = sums_at(m, i);
    const A *from = (const A *)in[2].data + sums;
    A *statistics = (A *)m->call->outputs[0].data + sums, total = from[m->rows], inner = 0;
    const S *grad = (const S *)in[0].data + at, *output = (const S *)in[1].data + at;
    for (int64_t e = 0; e < m->width; e++) inner += LOAD(grad[e]) * LOAD(output[e]);
    statistics[0] = total == 0 ? (A)INFINITY : from[0] + (A)log((double)total);
    statistics[m->rows] = inner;
  }
}
