/* The signature cache of a compiled function. */
#include "compile/call_cache.h"

#include "op/precision/precision.h"

static bool input_fits(const mpg_signature_input *input, const mpg_array *array, bool recording) {
  const mpg_tensor *tensor = &array->tensor;
  return input->wanted == (recording && mpg_cache_wants(array)) && input->numpy == array->numpy &&
         input->device == mpg_tensor_device(tensor) && input->desc.dtype == tensor->desc.dtype &&
         mpg_shape_equal(&input->desc.shape, &tensor->desc.shape);
}

static bool fits(mpg_cache_entry *entry, const mpg_inputs *inputs, bool train, bool recording) {
  if (entry->num_inputs != mpg_inputs_count(inputs) || entry->num_bound != inputs->num_bound ||
      entry->train != train || entry->recording != recording ||
      entry->precision != mpg_precision_changes())
    return false;
  for (uint32_t i = 0; i < inputs->num_given; i++)
    if (!input_fits(&entry->inputs[i], inputs->given[i], recording)) return false;
  if (inputs->binding && entry->binding == inputs->binding) return true;
  for (uint32_t i = 0; i < inputs->num_bound; i++)
    if (!input_fits(&entry->inputs[inputs->num_given + i], inputs->bound[i], recording))
      return false;
  entry->binding = inputs->binding;
  return true;
}

mpg_compiled *mpg_cache_find(mpg_cache *cache, const mpg_inputs *inputs, bool train,
                             bool recording) {
  for (uint32_t i = 0; i < cache->count; i++) {
    mpg_cache_entry *entry = &cache->entries[i];
    if (!fits(entry, inputs, train, recording)) continue;
    entry->last_used = ++cache->clock;
    /* Swaps the entry with the first one, so that repeated calls find it immediately. */
    if (i > 0) {
      mpg_cache_entry found = *entry;
      *entry = cache->entries[0];
      cache->entries[0] = found;
    }
    return cache->entries[0].compiled;
  }
  return NULL;
}

static void drop(mpg_cache_entry *entry) {
  mpg_free(entry->inputs);
  mpg_compiled_release(entry->compiled);
}

mpg_status mpg_cache_add(mpg_cache *cache, const mpg_inputs *inputs, bool train, bool recording,
                         mpg_compiled *compiled) {
  uint32_t num_inputs = mpg_inputs_count(inputs);
  mpg_signature_input *signature = mpg_malloc((num_inputs + 1) * sizeof *signature);
  if (!signature) {
    mpg_compiled_release(compiled);
    return mpg_out_of_host_memory(num_inputs * sizeof *signature);
  }
  for (uint32_t i = 0; i < num_inputs; i++) {
    const mpg_array *input = mpg_inputs_at(inputs, i);
    signature[i] = (mpg_signature_input){input->tensor.desc, mpg_tensor_device(&input->tensor),
                                         recording && mpg_cache_wants(input), input->numpy};
  }
  uint32_t place = cache->count;
  if (place < MPG_CACHE_LIMIT) {
    cache->count++;
  } else {
    place = 0;
    for (uint32_t i = 1; i < cache->count; i++)
      if (cache->entries[i].last_used < cache->entries[place].last_used) place = i;
    drop(&cache->entries[place]);
    cache->dropped++;
  }
  compiled->family = cache;
  cache->entries[place] = (mpg_cache_entry){signature,      num_inputs, inputs->num_bound,
                                            train,          recording,  inputs->binding,
                                            ++cache->clock, compiled,   mpg_precision_changes()};
  return MPG_OK;
}

void mpg_cache_replace(mpg_cache *cache, mpg_compiled *former, mpg_compiled *compiled) {
  for (uint32_t i = 0; i < cache->count; i++) {
    if (cache->entries[i].compiled != former) continue;
    compiled->family = cache;
    compiled->references++;
    cache->entries[i].compiled = compiled;
    mpg_compiled_release(former);
    return;
  }
}

void mpg_cache_clear(mpg_cache *cache) {
  uint32_t count = cache->count;
  cache->count = 0;
  for (uint32_t i = 0; i < count; i++) drop(&cache->entries[i]);
}
