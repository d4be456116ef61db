/* LRU cache that maps the signatures of one compiled function to its compiled calls. A signature
 * consists of the inputs' shapes, dtypes, devices and kinds, the train and recording modes, and the
 * set of inputs that need gradients. The cache has at most MPG_CACHE_LIMIT entries. Ownership: the
 * cache owns its entries. Threads: callers hold the host lock. */
#ifndef MPG_COMPILE_CALL_CACHE_H
#define MPG_COMPILE_CALL_CACHE_H

#include "compile/compiled.h"

enum { MPG_CACHE_LIMIT = 64 };

typedef struct mpg_signature_input {
  mpg_desc desc;
  mpg_device *device;
  bool wanted, numpy;
} mpg_signature_input;

typedef struct mpg_cache_entry {
  mpg_signature_input *inputs; /* owned */
  uint32_t num_inputs, num_bound;
  bool train, recording;
  uint64_t binding; /* number of a binding whose arrays are known to match the signature */
  uint64_t last_used;
  mpg_compiled *compiled; /* owned reference */
  uint64_t precision;     /* value of mpg_precision_changes() at compilation */
} mpg_cache_entry;

typedef struct mpg_cache {
  mpg_cache_entry entries[MPG_CACHE_LIMIT];
  uint32_t count;
  uint64_t clock;
  uint64_t dropped; /* number of evicted entries */
} mpg_cache;

/* True if an input needs a gradient while autograd is recording. */
static inline bool mpg_cache_wants(const mpg_array *input) { return mpg_tape_wants(input->node); }
/* Finds the compiled call for the signature of these inputs and modes. Returns a borrowed
 * reference, or NULL if the signature is not cached. */
mpg_compiled *mpg_cache_find(mpg_cache *cache, const mpg_inputs *inputs, bool train,
                             bool recording);
/* Adds a compiled call, and evicts the least recently used one if the cache is full. Takes
 * ownership of the reference to `compiled`, even on failure. */
mpg_status mpg_cache_add(mpg_cache *cache, const mpg_inputs *inputs, bool train, bool recording,
                         mpg_compiled *compiled);
/* Replaces a compiled call if it is still in the cache. The cache takes its own reference. */
void mpg_cache_replace(mpg_cache *cache, mpg_compiled *former, mpg_compiled *compiled);
void mpg_cache_clear(mpg_cache *cache);

#endif
