/* State of a call of a compiled function: its frame, and the arrays saved for its backward.
 *
 * A call outside of pipelines (compiled_call.c) has one state. A pipeline run has one per
 * micro-batch (pipeline_run.h). External arrays that the backward reads are saved
 * (tensor/contents.h). Ownership: as noted at the fields; the owner of the state frees its arrays.
 * Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_CALL_STATE_H
#define MPG_COMPILE_CALL_STATE_H

#include "autograd/tape.h"
#include "compile/compiled.h"

typedef struct mpg_call_state {
  mpg_compiled *compiled; /* owned reference */
  mpg_storage **blocks;   /* the frame; owned references */
  /* Per forward external array: the contents that the backward reads, with their version. Owned
   * references. */
  mpg_saved *saved;
  /* Range of external arrays that a parameter set saves, so this state does not. */
  uint32_t parameters_begin, parameters_end;
} mpg_call_state;

/* Returns `external`, or the first external array after the parameter set if `external` is the
 * first one in the set. Loops over the forward external arrays advance with this function. */
static inline uint32_t mpg_call_external(const mpg_call_state *state, uint32_t external) {
  return external == state->parameters_begin ? state->parameters_end : external;
}
/* Records the version of an external array, and saves its contents if the backward reads them. */
void mpg_call_save(mpg_call_state *state, uint32_t external, const mpg_tensor *tensor);
/* Fills `externals` with borrowed copies of the saved tensors, indexed by external array. Arrays
 * that were not saved get a NULL `storage`. Returns MPG_ERROR if contents were overwritten and
 * could not be preserved. `block` describes the caller in errors, for example "a hybridized
 * block". */
mpg_status mpg_call_get_saved(const mpg_call_state *state, const char *block,
                              mpg_tensor *externals);
/* True if the contents of a saved array have moved to another storage since `externals` was filled,
 * because the array was overwritten. */
bool mpg_call_saved_moved(const mpg_call_state *state, const mpg_tensor *externals);
void mpg_call_release_saved(mpg_call_state *state);
/* Sets *found to the storage that holds an external array's contents as of `version`, borrowed.
 * Returns MPG_ERROR if these contents are lost. */
mpg_status mpg_call_find_saved(const mpg_compiled *compiled, uint32_t external,
                               mpg_storage *storage, uint32_t version, const char *block,
                               mpg_storage **found);

/* Releases the storages in [begin, end) and sets the entries to NULL. */
void mpg_release_blocks(mpg_storage **blocks, uint32_t begin, uint32_t end);

#endif
