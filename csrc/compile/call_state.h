/* The state of a call of a compiled function: its frame, and the arrays saved for its backward.
 *
 * A call as a whole (compiled_call.c) has one, a pipeline run has one for each micro-batch
 * (pipeline_run.h). External arrays that the backward reads are saved (tensor/contents.h).
 * Ownership: as said; the owner of the state frees its arrays. Threads: host lock.
 */
#ifndef MPG_COMPILE_CALL_STATE_H
#define MPG_COMPILE_CALL_STATE_H

#include "autograd/tape.h"
#include "compile/compiled_call.h"

typedef struct mpg_call_state {
  mpg_compiled *compiled; /* owned reference */
  mpg_storage **blocks;   /* the frame; owned references */
  mpg_saved *saved;       /* per forward external array: what the backward reads, with its version;
                             owned references */
  uint32_t parameters_begin, parameters_end; /* without these, which a parameter set keeps */
} mpg_call_state;

/* Goes through the forward external arrays but the parameter set: from 0 on, past the last one. */
static inline uint32_t mpg_call_external(const mpg_call_state *state, uint32_t external) {
  return external == state->parameters_begin ? state->parameters_end : external;
}
/* Notes the version of one, and saves its contents where the backward reads them. */
void mpg_call_save(mpg_call_state *state, uint32_t external, const mpg_tensor *tensor);
/* The saved tensors of all external arrays, by number; storage NULL: not saved. Borrowed. MPG_ERROR
 * where contents were overwritten and could not be kept. block: "a hybridized block". */
mpg_status mpg_call_get_saved(const mpg_call_state *state, const char *block,
                              mpg_tensor *externals);
/* Whether one of them is elsewhere by now, as it was written since. */
bool mpg_call_saved_moved(const mpg_call_state *state, const mpg_tensor *externals);
void mpg_call_release_saved(mpg_call_state *state);
/* Where the contents of an external array are that were saved as this version of its storage.
 * Borrowed. MPG_ERROR as above. */
mpg_status mpg_call_find_saved(const mpg_compiled *compiled, uint32_t external,
                               mpg_storage *storage, uint32_t version, const char *block,
                               mpg_storage **found);

void mpg_release_blocks(mpg_storage **blocks, uint32_t begin, uint32_t end); /* NULL afterwards */

#endif
