#include "autograd/cache.h"

bool mpg_cache_wanted(mpg_array *const *inputs, uint32_t num_inputs, bool *wanted) {
  bool recording = mpg_autograd_recording(), any = false;
  for (uint32_t i = 0; i < num_inputs; i++) {
    const mpg_tape_node *node = inputs[i]->node;
    wanted[i] = recording && node && !node->consumed && !(node->kind == MPG_TAPE_VARIABLE && node->request == MPG_GRAD_NULL);
    any |= wanted[i];
  }
  return any;
}

static bool fits(const mpg_cache_entry *entry, mpg_array *const *inputs, const bool *wanted) {
  for (uint32_t i = 0; i < entry->num_inputs; i++) {
    const mpg_signature_input *input = &entry->inputs[i];
    const mpg_tensor *tensor = &inputs[i]->tensor;
    if (input->wanted != wanted[i] || input->device != mpg_tensor_device(tensor) || input->desc.dtype != tensor->desc.dtype ||
        !mpg_shape_equal(&input->desc.shape, &tensor->desc.shape))
      return false;
  }
  return true;
}

mpg_compiled *mpg_cache_find(mpg_cache *cache, mpg_array *const *inputs, uint32_t num_inputs, const bool *wanted, bool train, bool recording) {
  for (uint32_t i = 0; i < cache->count; i++) {
    mpg_cache_entry *entry = &cache->entries[i];
    if (entry->num_inputs != num_inputs || entry->train != train || entry->recording != recording || !fits(entry, inputs, wanted)) continue;
    entry->last_used = ++cache->clock;
    if (i > 0) { /* what is called again and again is found at once */
      mpg_cache_entry found = *entry;
      *entry = cache->entries[0];
      cache->entries[0] = found;
    }
    return cache->entries[0].compiled;
  }
  cache->misses++;
  return NULL;
}

static void drop(mpg_cache_entry *entry) {
  mpg_free(entry->inputs);
  mpg_compiled_release(entry->compiled);
}

mpg_status mpg_cache_add(mpg_cache *cache, mpg_array *const *inputs, uint32_t num_inputs, const bool *wanted, bool train, bool recording,
                         mpg_compiled *compiled) {
  mpg_signature_input *signature = mpg_malloc((num_inputs + 1) * sizeof *signature);
  if (!signature) {
    mpg_compiled_release(compiled);
    return mpg_out_of_host_memory(num_inputs * sizeof *signature);
  }
  for (uint32_t i = 0; i < num_inputs; i++)
    signature[i] = (mpg_signature_input){inputs[i]->tensor.desc, mpg_tensor_device(&inputs[i]->tensor), wanted[i]};
  uint32_t place = cache->count;
  if (place < MPG_CACHE_LIMIT) {
    cache->count++;
  } else {
    place = 0;
    for (uint32_t i = 1; i < cache->count; i++)
      if (cache->entries[i].last_used < cache->entries[place].last_used) place = i;
    drop(&cache->entries[place]);
  }
  cache->entries[place] = (mpg_cache_entry){signature, num_inputs, train, recording, ++cache->clock, compiled};
  return MPG_OK;
}

void mpg_cache_clear(mpg_cache *cache) {
  uint32_t count = cache->count;
  cache->count = 0;
  for (uint32_t i = 0; i < count; i++) drop(&cache->entries[i]);
}
