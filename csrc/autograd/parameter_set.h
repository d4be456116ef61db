/* Parameter sets: the arrays bound to a compiled call (a block's parameters) and their variables,
 * handled as one unit.
 *
 * While the arrays are unchanged, a recorded call holds a single reference to the set instead of
 * one per array. A backward pass that reaches the variables only through one call treats the set as
 * one value and does not visit the variables one by one before it queues work. A backward pass that
 * also reaches a variable in another way handles the variables one by one (collect.c).
 *
 * Ownership: reference-counted; owns the tensors and variables. Threads: callers hold the host
 * lock.
 */
#ifndef MPG_AUTOGRAD_PARAMETER_SET_H
#define MPG_AUTOGRAD_PARAMETER_SET_H

#include "autograd/tape.h"

/* Versions of the parameters' contents at one point in time. While a recorded call holds a
 * reference, the contents of these versions are preserved for the call's backward pass. */
typedef struct mpg_parameter_versions {
  /* Entry in the list of savers that are counted lazily (tensor/contents.h). It is in the list
   * from the first reference of a call until the savers are counted or no call holds a
   * reference. */
  mpg_late_savers savers;
  /* `counted` is true once savers have been added to the parameters' storages
   * (mpg_contents_add_saver). `saved` marks the parameters whose storage got a saver. */
  bool counted, *saved;
  int32_t references;
  /* Borrowed. A holder of these versions also holds a reference to the set. */
  mpg_parameter_set *parameters;
  /* Value of mpg_storage_watched_writes when the versions were read. The versions are current
   * while that value is unchanged. */
  uint64_t watched;
  uint32_t versions[];
} mpg_parameter_versions;

struct mpg_parameter_set {
  int32_t references;
  uint32_t count;
  uint64_t number; /* unique number of the set */
  uint64_t visit;  /* number of the last backward pass that reached the set */
  bool distinct;   /* true if no variable occurs twice */
  /* Value of mpg_storage_foreign_reads at the last check that found no other device reading a
   * gradient. The check is skipped while that value is unchanged. UINT64_MAX before the first
   * check. */
  uint64_t quiet;
  mpg_parameter_versions *latest; /* owned reference, which alone does not preserve contents */
  mpg_tape_node **variables;      /* owned references; NULL if no gradient is wanted */
  mpg_tensor *gradients;          /* borrowed from the variables; empty if no gradient is wanted */
  bool *saved;                    /* per parameter: true if a call's backward pass reads it */
  mpg_tensor tensors[];
};

/* The gradients that are wanted must have been allocated (mpg_tape_create_gradient). */
mpg_status mpg_parameter_set_make(mpg_array *const *arrays, uint32_t count,
                                  mpg_parameter_set **parameters); /* new reference */
static inline mpg_parameter_set *mpg_parameter_set_retain(mpg_parameter_set *parameters) {
  if (parameters) parameters->references++;
  return parameters;
}

/* Sets *versions to a new reference to the current versions. Until this reference is released, the
 * contents of the parameters marked in the set's `saved` are preserved. Allocates only the first
 * time, or if calls still hold older versions. */
mpg_status mpg_parameter_set_versions(mpg_parameter_set *parameters,
                                      mpg_parameter_versions **versions);
void mpg_parameter_versions_release(mpg_parameter_versions *versions); /* NULL is allowed */
/* Marks additional parameters as read by a call's backward pass. */
void mpg_parameter_set_save(mpg_parameter_set *parameters, const bool *saved);
/* True if no other device can still be reading a gradient. */
bool mpg_parameter_set_unread(mpg_parameter_set *parameters);
/* Marks the gradients as written by backward. */
void mpg_parameter_set_set_fresh(mpg_parameter_set *parameters);

#endif
