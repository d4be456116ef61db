/* Bindings, and the values kept with them: the results of the invariants program.
 *
 * Ownership: as noted at the functions. Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_INVARIANTS_INVARIANTS_H
#define MPG_COMPILE_INVARIANTS_INVARIANTS_H

#include "compile/compiled.h"

/* Builds the invariants program of a simplified graph if it has values to keep. */
mpg_status mpg_compiled_make_invariants(mpg_compiled *compiled);
/* Returns a new reference to the binding of a call. Creates the binding unless it is the compiled
 * call's current one. */
mpg_status mpg_compiled_bind(mpg_compiled *compiled, const mpg_inputs *inputs,
                             mpg_binding **binding);
/* Builds the program that computes all kept values, compiled->invariants, unless it exists. */
mpg_status mpg_compiled_get_invariants(mpg_compiled *compiled);
/* Computes the kept values that are out of date, unless another compiled call has already computed
 * them. `given` are the unbound inputs, which the program does not read. */
mpg_status mpg_compiled_refresh(mpg_compiled *compiled, mpg_binding *binding,
                                const mpg_tensor *given);
/* Releases the kept values of all compiled calls that aren't running, because a device is out of
 * memory. The next call recomputes them. */
void mpg_compiled_release_kept(void);

#endif
