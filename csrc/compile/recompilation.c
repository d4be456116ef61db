/* Detects functions that keep recompiling, and names the axes whose sizes change. */
#include "compile/recompilation.h"

enum { MOST_COMPILATIONS = 16, MOST_AXES = 3, MOST_SIZES = 4 };

bool mpg_recompilation_note(mpg_recompilation *r, const mpg_cache *cache, int64_t begin,
                            int64_t end) {
  uint64_t calls = cache->clock - r->first_call;
  if (!r->compilations || calls > 2 * (uint64_t)r->compilations) { /* most calls did not compile */
    bool reported = r->reported;
    *r = (mpg_recompilation){.first_call = cache->clock - 1, .begin = begin, .reported = reported};
  }
  /* The first call also loads libraries and allocates memory, so time is counted after it. */
  if (++r->compilations == 2) {
    r->begin = begin;
    r->spent = 0;
  }
  r->spent += end - begin;
  if (r->reported || r->compilations < MOST_COMPILATIONS || 4 * r->spent < end - r->begin)
    return false;
  return r->reported = true;
}

void mpg_recompilation_summarize(const mpg_recompilation *r, const mpg_cache *cache, int64_t end,
                                 mpg_text *text) {
  /* Compilations of several threads may overlap. */
  int64_t time = end - r->begin + 1, spent = r->spent < time ? r->spent : time;
  mpg_text_append(
      text, "%u of the last %u calls compiled a new program, which took %d%% of the time",
      r->compilations, (unsigned)(cache->clock - r->first_call), (int)(100 * spent / time));
}

/* The latest entries of the cache, the most recently used one first. */
typedef struct latest {
  const mpg_cache_entry *entries[MOST_COMPILATIONS];
  uint32_t count;
} latest;

static latest find_latest(const mpg_cache *cache) {
  latest found = {0};
  for (uint32_t i = 0; i < cache->count; i++) {
    const mpg_cache_entry *entry = &cache->entries[i];
    uint32_t at = found.count;
    while (at > 0 && found.entries[at - 1]->last_used < entry->last_used) at--;
    if (at == MOST_COMPILATIONS) continue;
    if (found.count < MOST_COMPILATIONS) found.count++;
    for (uint32_t k = found.count - 1; k > at; k--) found.entries[k] = found.entries[k - 1];
    found.entries[at] = entry;
  }
  return found;
}

/* Finds the sizes of an axis, the oldest first and each once, and returns their number. */
static uint32_t find_sizes(const latest *found, uint32_t input, int axis,
                           int64_t sizes[MOST_COMPILATIONS]) {
  uint32_t count = 0;
  for (uint32_t e = found->count; e-- > 0;) {
    const mpg_cache_entry *entry = found->entries[e];
    if (input >= entry->num_inputs - entry->num_bound ||
        axis >= entry->inputs[input].desc.shape.ndim)
      continue;
    int64_t size = entry->inputs[input].desc.shape.dims[axis];
    uint32_t k = 0;
    while (k < count && sizes[k] != size) k++;
    if (k == count) sizes[count++] = size;
  }
  return count;
}

static void append_axis(uint32_t input, int axis, const int64_t *sizes, uint32_t count,
                        const char *name, bool first, mpg_text *text) {
  if (!first) mpg_text_append(text, "; ");
  if (name)
    mpg_text_append(text, "axis %d of input '%s'", axis, name);
  else
    mpg_text_append(text, "axis %d of input %u", axis, input);
  mpg_text_append(text, " was ");
  for (uint32_t i = 0; i < count; i++) {
    if (i + 1 < count && i >= MOST_SIZES - 1) {
      if (i == MOST_SIZES - 1) mpg_text_append(text, "..., ");
      continue;
    }
    mpg_text_append(text, i + 1 < count ? "%lld, " : "%lld", (long long)sizes[i]);
  }
}

void mpg_recompilation_describe(const mpg_cache *cache, const char *const *names,
                                uint32_t num_names, mpg_text *text) {
  latest found = find_latest(cache);
  int64_t sizes[MOST_COMPILATIONS];
  uint32_t most = 1, reported = 0;
  if (!found.count) return;
  const mpg_cache_entry *newest = found.entries[0];
  uint32_t num_inputs = newest->num_inputs - newest->num_bound;
  for (uint32_t i = 0; i < num_inputs; i++)
    for (int axis = 0; axis < newest->inputs[i].desc.shape.ndim; axis++) {
      uint32_t count = find_sizes(&found, i, axis, sizes);
      if (count > most) most = count;
    }
  /* Omits axes that change much less often than others. */
  for (uint32_t i = 0; i < num_inputs && most > 1; i++)
    for (int axis = 0; axis < newest->inputs[i].desc.shape.ndim; axis++) {
      uint32_t count = find_sizes(&found, i, axis, sizes);
      if (2 * count < most || count < 2) continue;
      if (reported < MOST_AXES)
        append_axis(i, axis, sizes, count, i < num_names ? names[i] : NULL, !reported, text);
      reported++;
    }
  if (reported > MOST_AXES) mpg_text_append(text, "; and %u more", reported - MOST_AXES);
}
