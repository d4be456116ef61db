/* The variables among the arrays that are bound to compiled calls (a block's parameters), as one.
 *
 * While they stay the same arrays, a recorded call holds one reference to all of them, and a
 * backward that reaches them through one call only takes them as one value: it neither passes over
 * them nor looks at them before its work is queued. A backward that reaches one of them in another
 * way too, or another call of the same ones, takes them one by one (collect.c).
 *
 * Ownership: counted; it owns the tensors and variables. Threads: host lock.
 */
#ifndef MPG_AUTOGRAD_PARAMETER_SET_H
#define MPG_AUTOGRAD_PARAMETER_SET_H

#include "autograd/tape.h"

/* Versions of the contents at one time. Calls that hold them save the contents. */
typedef struct mpg_parameter_versions {
  mpg_late_savers savers; /* in the list while calls hold them, or counted */
  bool counted, *saved;   /* which parameters these count for */
  int32_t references;
  mpg_parameter_set *parameters; /* borrowed: who has a reference to these has one to them, too */
  uint64_t watched; /* mpg_storage_watched_writes then: while it is the same, so are the versions */
  uint32_t versions[];
} mpg_parameter_versions;

struct mpg_parameter_set {
  int32_t references;
  uint32_t count;
  uint64_t number; /* never used twice */
  uint64_t visit;  /* backward's mark: reached in that pass */
  bool distinct;   /* no variable is there twice */
  uint64_t quiet;  /* mpg_storage_foreign_reads when no other device was reading a gradient;
                      UINT64_MAX: not known */
  mpg_parameter_versions *latest; /* owned reference, which saves nothing */
  mpg_tape_node **variables;      /* owned references; NULL: no gradient is wanted */
  mpg_tensor *gradients;          /* borrowed from the variables; empty where there are none */
  bool *saved;                    /* which ones some call's backward reads */
  mpg_tensor tensors[];
};

mpg_status mpg_parameter_set_make(mpg_array *const *arrays, uint32_t count,
                                  mpg_parameter_set **parameters); /* new */
static inline mpg_parameter_set *mpg_parameter_set_retain(mpg_parameter_set *parameters) {
  if (parameters) parameters->references++;
  return parameters;
}

/* The versions of the contents now, with a reference, which saves the contents of those that are
 * `saved`. Allocates only where an older one is still held. */
mpg_status mpg_parameter_set_versions(mpg_parameter_set *parameters,
                                      mpg_parameter_versions **versions);
void mpg_parameter_versions_release(mpg_parameter_versions *versions); /* NULL is allowed */
/* A call's backward reads these, from now on. */
void mpg_parameter_set_save(mpg_parameter_set *parameters, const bool *saved);
/* True when no other device may still be reading a gradient. */
bool mpg_parameter_set_unread(mpg_parameter_set *parameters);
/* Backward has written the gradients. */
void mpg_parameter_set_set_fresh(mpg_parameter_set *parameters);

#endif
