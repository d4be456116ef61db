/* Replay of a compiled call as ops on the tape, for gradients of gradients.
 *
 * Ownership: the caller owns `outputs`. Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_REPLAY_H
#define MPG_COMPILE_REPLAY_H

#include "compile/compiled.h"

/* Replays the function as ops that are run and recorded one by one, so that `outputs` are on the
 * tape. `versions` are the inputs' versions at the call, `random` is the call's key, and `sequence`
 * is the tape's sequence number of the graph's first node. */
mpg_status mpg_compiled_replay(mpg_compiled *compiled, const mpg_array *inputs,
                               const uint32_t *versions, mpg_random_key random, uint64_t sequence,
                               mpg_array *outputs);

#endif
