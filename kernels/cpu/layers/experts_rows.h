/* Loops over the rows of a mixture of experts, for a computing type T. Has no include guard, since
 * experts.c includes it once per type. */

/* Computes the probabilities of a token's scores. NaN stays NaN. */
static void NAME(probabilities)(bool sigmoid, const T *scores, int64_t n, T *p) {
  if (sigmoid) {
    for (int64_t e = 0; e < n; e++) p[e] = 1 / (1 + EXP(-scores[e]));
    return;
  }
  T most = scores[0], sum = 0;
  for (int64_t e = 1; e < n; e++) most = scores[e] > most ? scores[e] : most;
  for (int64_t e = 0; e < n; e++) sum += p[e] = EXP(scores[e] - most);
  for (int64_t e = 0; e < n; e++) p[e] /= sum;
}

/* Stores the k experts with the largest keys. Among equal keys, the lower index comes first. NaN is
 * treated as -infinity. */
static void NAME(choose)(const T *keys, int64_t n, int64_t k, int32_t *experts, T *best) {
  int64_t count = 0;
  for (int64_t e = 0; e < n; e++) {
    T key = keys[e] == keys[e] ? keys[e] : -(T)INFINITY;
    if (count == k && !(key > best[k - 1])) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && key > best[at - 1]; at--) {
      best[at] = best[at - 1];
      experts[at] = experts[at - 1];
    }
    best[at] = key;
    experts[at] = (int32_t)e;
  }
}

static void NAME(route_rows)(void *context, int64_t begin, int64_t end) {
  const routing *r = context;
  T *row = (T *)(void *)(r->scratch + (size_t)omp_get_thread_num() * r->scratch_bytes),
    *p = row + r->experts, *keys = p + r->experts, *best = keys + r->experts;
  const mpg_view *scores = &r->call->inputs[0], *bias = r->bias;
  if (bias) mpg_cpu_load_all(r->compute, bias->desc.dtype, bias->data, 0, r->experts, keys);
  for (int64_t t = begin; t < end; t++) {
    T *weights = (T *)r->weights + t * r->k, sum = 0;
    int32_t *experts = r->chosen + t * r->k;
    mpg_cpu_load_all(r->compute, scores->desc.dtype, scores->data, t * r->experts, r->experts, row);
    NAME(probabilities)(r->sigmoid, row, r->experts, p);
    if (bias)
      for (int64_t e = 0; e < r->experts; e++) row[e] = p[e] + keys[e];
    NAME(choose)(bias ? row : p, r->experts, r->k, experts, best);
    for (int64_t i = 0; i < r->k; i++) sum += weights[i] = p[experts[i]];
    if (r->renormalize)
      for (int64_t i = 0; i < r->k; i++) weights[i] = sum == 0 ? 0 : weights[i] / sum;
  }
}

/* A weight of 0 has no gradient: its row is beyond the capacity, or its probability is 0. */
static void NAME(route_back_rows)(void *context, int64_t begin, int64_t end) {
  const routing *r = context;
  T *row = (T *)(void *)(r->scratch + (size_t)omp_get_thread_num() * r->scratch_bytes),
    *p = row + r->experts;
  const mpg_view *scores = &r->call->inputs[1], *out = &r->call->outputs[0];
  for (int64_t t = begin; t < end; t++) {
    const T *grad = (const T *)r->call->inputs[0].data + t * r->k, *w = (T *)r->weights + t * r->k;
    const int32_t *experts = r->chosen + t * r->k;
    mpg_cpu_load_all(r->compute, scores->desc.dtype, scores->data, t * r->experts, r->experts, row);
    NAME(probabilities)(r->sigmoid, row, r->experts, p);
    /* The derivative with respect to a chosen probability is (grad - mean) / sum. */
    T sum = 1, mean = 0, inner = 0;
    if (r->renormalize) {
      sum = 0;
      for (int64_t i = 0; i < r->k; i++) {
        sum += p[CHOSEN(experts[i])];
        if (w[i] != 0) mean += grad[i] * w[i];
      }
    }
    for (int64_t e = 0; e < r->experts; e++) row[e] = 0;
    for (int64_t i = 0; i < r->k; i++) {
      int64_t e = CHOSEN(experts[i]);
      row[e] = sum > 0 ? ((w[i] != 0 ? grad[i] : 0) - mean) / sum : 0;
      inner += row[e] * p[e];
    }
    for (int64_t e = 0; e < r->experts; e++)
      row[e] = r->sigmoid ? row[e] * p[e] * (1 - p[e]) : p[e] * (row[e] - inner);
    mpg_cpu_store(r->compute, out->desc.dtype, out->data, t * r->experts, r->experts, row);
  }
}

static void NAME(dispatch_rows)(void *context, int64_t begin, int64_t end) {
  const rows *r = context;
  mpg_block_buffer in, made;
  for (int64_t i = begin; i < end; i++) {
    int64_t from = mpg_clip_row(r->order[i], r->count);
    T weight = ((const T *)r->weights)[from];
    for (int64_t u = 0; u < r->units; u += MPG_CPU_BLOCK) {
      int64_t n = r->units - u < MPG_CPU_BLOCK ? r->units - u : MPG_CPU_BLOCK;
      const T *x = mpg_cpu_load(r->compute, r->dtype, r->from, from / r->k * r->units + u, n, &in);
      T *y = mpg_cpu_place(r->compute, r->dtype, r->to, i * r->units + u, &made);
      for (int64_t j = 0; j < n; j++) y[j] = weight * x[j];
      mpg_cpu_store(r->compute, r->dtype, r->to, i * r->units + u, n, y);
    }
  }
}

static void NAME(combine_rows)(void *context, int64_t begin, int64_t end) {
  const rows *r = context;
  mpg_block_buffer in, made;
  T *sum = (T *)(void *)&made;
  for (int64_t t = begin; t < end; t++)
    for (int64_t u = 0; u < r->units; u += MPG_CPU_BLOCK) {
      int64_t n = r->units - u < MPG_CPU_BLOCK ? r->units - u : MPG_CPU_BLOCK;
      for (int64_t j = 0; j < n; j++) sum[j] = 0;
      for (int64_t rank = 0; rank < r->k; rank++) {
        int64_t row = r->places[t * r->k + rank];
        if (row < 0) continue;
        T weight = r->weights ? ((const T *)r->weights)[t * r->k + rank] : 1;
        const T *x = mpg_cpu_load(r->compute, r->dtype, r->from, row * r->units + u, n, &in);
        for (int64_t j = 0; j < n; j++) sum[j] += weight * x[j];
      }
      mpg_cpu_store(r->compute, r->dtype, r->to, t * r->units + u, n, sum);
    }
}

/* Adds up products in LANES_OF_SUMS partial sums, which depend on the number of units only. */
static void NAME(dot_rows)(void *context, int64_t begin, int64_t end) {
  const rows *r = context;
  mpg_block_buffer left, right;
  for (int64_t i = begin; i < end; i++) {
    int64_t row = r->places[i];
    T lanes[LANES_OF_SUMS] = {0}, sum = 0;
    for (int64_t u = 0; row >= 0 && u < r->units; u += MPG_CPU_BLOCK) {
      int64_t n = r->units - u < MPG_CPU_BLOCK ? r->units - u : MPG_CPU_BLOCK, j = 0;
      const T *x = mpg_cpu_load(r->compute, r->dtype, r->from, i / r->k * r->units + u, n, &left),
              *y = mpg_cpu_load(r->compute, r->dtype, r->other, row * r->units + u, n, &right);
      for (; j + LANES_OF_SUMS <= n; j += LANES_OF_SUMS)
        for (int l = 0; l < LANES_OF_SUMS; l++) lanes[l] += x[j + l] * y[j + l];
      for (; j < n; j++) lanes[j % LANES_OF_SUMS] += x[j] * y[j];
    }
    for (int l = 0; l < LANES_OF_SUMS; l++) sum += lanes[l];
    ((T *)r->to)[i] = sum;
  }
}
