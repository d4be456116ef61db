/* Parameter sets: the variables among the arrays bound to compiled calls (a block's parameters), as
 * one unit.
 *
 * While the arrays are unchanged, a recorded call holds one reference to all of them. A backward
 * that reaches them only through one call treats them as one value, so it does not visit or read
 * them before its work is queued. A backward that also reaches one of them in another way, or
 * through another call of the same variables, handles them one by one (collect.c).
 *
 * Ownership: reference-counted; owns the tensors and variables. Threads: host lock.
 */
#ifndef MPG_AUTOGRAD_PARAMETER_SET_H
#define MPG_AUTOGRAD_PARAMETER_SET_H

#include "autograd/tape.h"

/* Versions of the contents at one point in time. Calls that hold a reference save the contents. */
typedef struct mpg_parameter_versions {
  mpg_late_savers savers; /* linked in the list while calls hold a reference, or counted */
  bool counted, *saved;   /* parameters that have a counted saver */
  int32_t references;
  /* borrowed; a holder of these versions also holds a reference to the set */
  mpg_parameter_set *parameters;
  /* mpg_storage_watched_writes at creation; the versions are valid while it is unchanged. */
  uint64_t watched;
  uint32_t versions[];
} mpg_parameter_versions;

struct mpg_parameter_set {
  int32_t references;
  uint32_t count;
  uint64_t number; /* unique */
  uint64_t visit;  /* backward's mark: reached in that pass */
  bool distinct;   /* no variable occurs twice */
  /* mpg_storage_foreign_reads at the last check that no other device reads a gradient; UINT64_MAX
   * if unknown. */
  uint64_t quiet;
  mpg_parameter_versions *latest; /* owned reference, which saves nothing */
  mpg_tape_node **variables;      /* owned references; NULL if no gradient is wanted */
  mpg_tensor *gradients;          /* borrowed from the variables; empty if no gradient is wanted */
  bool *saved;                    /* parameters that the backward of some call reads */
  mpg_tensor tensors[];
};

mpg_status mpg_parameter_set_make(mpg_array *const *arrays, uint32_t count,
                                  mpg_parameter_set **parameters); /* new */
static inline mpg_parameter_set *mpg_parameter_set_retain(mpg_parameter_set *parameters) {
  if (parameters) parameters->references++;
  return parameters;
}

/* Returns a reference to the current versions, which saves the contents of the parameters in
 * `saved`. Allocates only if older versions are still held. */
mpg_status mpg_parameter_set_versions(mpg_parameter_set *parameters,
                                      mpg_parameter_versions **versions);
void mpg_parameter_versions_release(mpg_parameter_versions *versions); /* NULL is allowed */
/* Declares that a call's backward reads these parameters. */
void mpg_parameter_set_save(mpg_parameter_set *parameters, const bool *saved);
/* True if no other device can still be reading a gradient. */
bool mpg_parameter_set_unread(mpg_parameter_set *parameters);
/* Marks the gradients as written by backward. */
void mpg_parameter_set_set_fresh(mpg_parameter_set *parameters);

#endif
