/* Parameter sets: the variables among a call's bound arrays, as one thing on the tape. */
#include "autograd/parameter_set.h"

#include <string.h>

static uint64_t numbers; /* runtime state: leaves made so far */

void mpg_parameter_set_release(mpg_parameter_set *leaves) {
  if (!leaves || --leaves->references) return;
  for (uint32_t i = 0; i < leaves->count; i++) {
    mpg_tensor_release(&leaves->tensors[i]);
    mpg_tape_release(leaves->variables[i]);
  }
  mpg_leaf_versions_release(leaves->latest);
  mpg_free(leaves);
}

mpg_status mpg_parameter_set_make(mpg_array *const *arrays, uint32_t count,
                                  mpg_parameter_set **result) {
  size_t size =
      sizeof(mpg_parameter_set) + count * (2 * sizeof(mpg_tensor) + sizeof(mpg_tape_node *));
  mpg_parameter_set *leaves = mpg_malloc(size);
  if (!leaves) return mpg_out_of_host_memory(size);
  *leaves = (mpg_parameter_set){
      .references = 1, .count = count, .number = ++numbers, .distinct = true, .quiet = UINT64_MAX};
  leaves->gradients = leaves->tensors + count;
  leaves->variables = (mpg_tape_node **)(leaves->gradients + count);
  for (uint32_t i = 0; i < count; i++) {
    mpg_tape_node *variable = arrays[i]->node;
    MPG_ASSERT(!variable || variable->kind == MPG_TAPE_VARIABLE);
    leaves->tensors[i] = arrays[i]->tensor;
    mpg_tensor_retain(&leaves->tensors[i]);
    leaves->tensors[i].storage->watched = true;
    leaves->gradients[i].storage = NULL;
    leaves->variables[i] = NULL;
    if (!variable || variable->request == MPG_GRAD_NULL) continue;
    leaves->variables[i] = mpg_tape_retain(variable);
    leaves->gradients[i] = variable->gradient;
    variable->gradient.storage->tracked = true;
    if (variable->leaves_number == leaves->number) leaves->distinct = false;
    variable->leaves_number = leaves->number;
  }
  *result = leaves;
  return MPG_OK;
}

mpg_status mpg_parameter_set_versions(mpg_parameter_set *leaves, mpg_leaf_versions **result) {
  uint64_t watched = mpg_storage_watched_writes();
  mpg_leaf_versions *versions = leaves->latest;
  if (!versions || versions->watched != watched) {
    if (!versions || versions->references > 1) {
      size_t size = sizeof *versions + leaves->count * sizeof *versions->versions;
      versions = mpg_malloc(size);
      if (!versions) return mpg_out_of_host_memory(size);
      mpg_leaf_versions_release(leaves->latest);
      leaves->latest = versions;
      versions->references = 1;
    }
    versions->watched = watched;
    for (uint32_t i = 0; i < leaves->count; i++)
      versions->versions[i] = leaves->tensors[i].storage->version;
  }
  versions->references++;
  *result = versions;
  return MPG_OK;
}

void mpg_leaf_versions_release(mpg_leaf_versions *versions) {
  if (versions && --versions->references == 0) mpg_free(versions);
}

bool mpg_parameter_set_unread(mpg_parameter_set *leaves) {
  uint64_t reads = mpg_storage_foreign_reads();
  if (leaves->quiet == reads) return true;
  for (uint32_t i = 0; i < leaves->count; i++) {
    const mpg_storage *storage = leaves->gradients[i].storage;
    for (int k = 0; storage && k < storage->block.uses.num_foreign; k++)
      if (!mpg_tick_reached(storage->block.uses.foreign[k].device,
                            storage->block.uses.foreign[k].tick))
        return false;
  }
  leaves->quiet = reads;
  return true;
}

void mpg_parameter_set_set_fresh(mpg_parameter_set *leaves) {
  for (uint32_t i = 0; i < leaves->count; i++)
    if (leaves->variables[i]) leaves->variables[i]->fresh = true;
}
