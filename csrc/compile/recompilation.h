/* Detection of functions that keep recompiling, because a size of their inputs changes from call to
 * call. Plain values. Threads: host lock. */
#ifndef MPG_COMPILE_RECOMPILATION_H
#define MPG_COMPILE_RECOMPILATION_H

#include "base/text.h"
#include "compile/call_cache.h"

typedef struct mpg_recompilation {
  uint64_t first_call; /* the cache's clock before the first compilation that is counted */
  uint32_t compilations;
  int64_t begin, spent; /* ns: begin of the second compilation; sum of durations since then */
  bool reported;
} mpg_recompilation;

/* Notes a compilation that took from `begin` to `end` (mpg_clock_ns). Returns true once: if most
 * calls compile, for 16 compilations or more, and a quarter of the time is spent on it. */
bool mpg_recompilation_note(mpg_recompilation *r, const mpg_cache *cache, int64_t begin,
                            int64_t end);
/* Appends how many of the latest calls compiled, and the share of the time until `end` that this
 * took, after mpg_recompilation_note returned true. */
void mpg_recompilation_summarize(const mpg_recompilation *r, const mpg_cache *cache, int64_t end,
                                 mpg_text *text);
/* Appends a text that says which axes of which inputs differ between the latest signatures.
 * names[i] is the name of input i; NULL for numbers. Appends nothing if no size differs. */
void mpg_recompilation_describe(const mpg_cache *cache, const char *const *names,
                                uint32_t num_names, mpg_text *text);

#endif
