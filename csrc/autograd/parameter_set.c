/* Parameter sets: the arrays bound to a compiled call as one unit on the tape. */
#include "autograd/parameter_set.h"

#include <string.h>

static uint64_t numbers; /* runtime state: number of sets created so far */

void mpg_parameter_set_release(mpg_parameter_set *parameters) {
  if (!parameters || --parameters->references) return;
  for (uint32_t i = 0; i < parameters->count; i++) {
    mpg_tensor_release(&parameters->tensors[i]);
    mpg_tape_release(parameters->variables[i]);
  }
  /* No call holds these versions, because a call would also hold a reference to the set. */
  mpg_free(parameters->latest);
  mpg_free(parameters);
}

mpg_status mpg_parameter_set_make(mpg_array *const *arrays, uint32_t count,
                                  mpg_parameter_set **result) {
  size_t size =
      sizeof(mpg_parameter_set) +
      count * (2 * sizeof(mpg_tensor) + sizeof(mpg_tape_node *) + sizeof *(*result)->saved);
  mpg_parameter_set *parameters = mpg_malloc(size);
  if (!parameters) return mpg_out_of_host_memory(size);
  *parameters = (mpg_parameter_set){
      .references = 1, .count = count, .number = ++numbers, .distinct = true, .quiet = UINT64_MAX};
  parameters->gradients = parameters->tensors + count;
  parameters->variables = (mpg_tape_node **)(parameters->gradients + count);
  parameters->saved = (bool *)(parameters->variables + count);
  memset(parameters->saved, 0, count * sizeof *parameters->saved);
  for (uint32_t i = 0; i < count; i++) {
    mpg_tape_node *variable = arrays[i]->node;
    MPG_ASSERT(!variable || variable->kind == MPG_TAPE_VARIABLE);
    parameters->tensors[i] = arrays[i]->tensor;
    mpg_tensor_retain(&parameters->tensors[i]);
    parameters->tensors[i].storage->watched = true;
    parameters->gradients[i].storage = NULL;
    parameters->variables[i] = NULL;
    if (!variable || variable->request == MPG_GRAD_NULL) continue;
    MPG_ASSERT(variable->gradient.storage);
    parameters->variables[i] = mpg_tape_retain(variable);
    parameters->gradients[i] = variable->gradient;
    mpg_contents_track(variable->gradient.storage);
    if (variable->parameter_set_number == parameters->number) parameters->distinct = false;
    variable->parameter_set_number = parameters->number;
  }
  *result = parameters;
  return MPG_OK;
}

/* Adds one saver, which represents all calls that hold these versions, to each saved parameter
 * whose contents still have the recorded version. */
static void count_savers(mpg_late_savers *savers) {
  mpg_parameter_versions *versions = (mpg_parameter_versions *)savers;
  const mpg_parameter_set *parameters = versions->parameters;
  versions->counted = true;
  for (uint32_t i = 0; i < parameters->count; i++) {
    mpg_storage *storage = parameters->tensors[i].storage;
    versions->saved[i] = parameters->saved[i] && storage->version == versions->versions[i];
    if (versions->saved[i]) mpg_contents_add_saver(storage);
  }
}

static void uncount_savers(mpg_parameter_versions *versions) {
  const mpg_parameter_set *parameters = versions->parameters;
  versions->counted = false;
  for (uint32_t i = 0; i < parameters->count; i++)
    if (versions->saved[i])
      mpg_contents_remove_saver(parameters->tensors[i].storage, versions->versions[i]);
}

/* Returns the number of references that calls hold. The reference in the set's `latest` is not
 * counted. */
static int32_t calls_of(const mpg_parameter_versions *versions) {
  return versions->references - (versions->parameters->latest == versions);
}

mpg_status mpg_parameter_set_versions(mpg_parameter_set *parameters,
                                      mpg_parameter_versions **result) {
  uint64_t watched = mpg_storage_watched_writes();
  mpg_parameter_versions *versions = parameters->latest;
  if (!versions || versions->watched != watched) {
    if (!versions || calls_of(versions)) {
      size_t size = sizeof *versions + parameters->count * (sizeof *versions->versions + 1);
      versions = mpg_malloc(size);
      if (!versions) return mpg_out_of_host_memory(size);
      /* Drops the set's reference to the previous versions, which calls still hold. */
      if (parameters->latest) parameters->latest->references--;
      *versions = (mpg_parameter_versions){
          .savers = {.count = count_savers}, .references = 1, .parameters = parameters};
      versions->saved = (bool *)(versions->versions + parameters->count);
      parameters->latest = versions;
    }
    versions->watched = watched;
    for (uint32_t i = 0; i < parameters->count; i++)
      versions->versions[i] = parameters->tensors[i].storage->version;
  }
  if (!versions->counted) mpg_late_savers_add(&versions->savers);
  versions->references++;
  *result = versions;
  return MPG_OK;
}

void mpg_parameter_versions_release(mpg_parameter_versions *versions) {
  if (!versions) return;
  versions->references--;
  if (calls_of(versions)) return;
  mpg_late_savers_remove(&versions->savers);
  if (versions->counted) uncount_savers(versions);
  if (versions->references == 0) mpg_free(versions);
}

void mpg_parameter_set_save(mpg_parameter_set *parameters, const bool *saved) {
  mpg_parameter_versions *latest = parameters->latest;
  bool more = false;
  for (uint32_t i = 0; i < parameters->count; i++) {
    more |= saved[i] && !parameters->saved[i];
    parameters->saved[i] |= saved[i];
  }
  if (!more || !latest || !latest->counted) return;
  uncount_savers(latest); /* the savers are recounted later, with the additional parameters */
  if (calls_of(latest)) mpg_late_savers_add(&latest->savers);
}

bool mpg_parameter_set_unread(mpg_parameter_set *parameters) {
  uint64_t reads = mpg_storage_foreign_reads();
  if (parameters->quiet == reads) return true;
  for (uint32_t i = 0; i < parameters->count; i++) {
    const mpg_storage *storage = parameters->gradients[i].storage;
    for (int k = 0; storage && k < storage->block.uses.num_foreign; k++)
      if (!mpg_tick_reached(storage->block.uses.foreign[k].device,
                            storage->block.uses.foreign[k].tick))
        return false;
  }
  parameters->quiet = reads;
  return true;
}

void mpg_parameter_set_set_fresh(mpg_parameter_set *parameters) {
  for (uint32_t i = 0; i < parameters->count; i++)
    if (parameters->variables[i]) parameters->variables[i]->fresh = true;
}
