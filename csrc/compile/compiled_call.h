/* Calls of compiled functions, and their nodes on the tape.
 *
 * A call of a recording function is one node. Its state keeps the frame and the inputs until the
 * backward, which compiles its programs on first use. Ownership: a recorded call holds a reference
 * to the compiled call. Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_COMPILED_CALL_H
#define MPG_COMPILE_COMPILED_CALL_H

#include "compile/compiled.h"

/* Calls the function. `inputs` must have the shapes, dtypes and devices of the traced inputs.
 * `outputs` are empty structs, which receive the results. */
mpg_status mpg_compiled_call(mpg_compiled *compiled, const mpg_inputs *inputs, mpg_array *outputs);

#endif
