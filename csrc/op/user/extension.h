/* Ops of user libraries (mpgluon/include/mpgluon/op.h). Each op is added to the registry as a row
 * whose functions call the library's functions.
 *
 * A differentiable op has a second row, for its gradient, which cannot be looked up by name. A
 * library is never closed once its ops have been added, because the rows point into it and are
 * never removed. Threads: callers hold the host lock; kernels run on the thread that executes the
 * device's work.
 */
#ifndef MPG_OP_USER_EXTENSION_H
#define MPG_OP_USER_EXTENSION_H

#include "op/kernel.h"

typedef struct mpg_extension_library mpg_extension_library;

/* Opens a library and checks its op table, without adding the ops. Sets *library to NULL if the ops
 * have already been added. */
mpg_status mpg_extension_open(const char *path, mpg_extension_library **library);
int mpg_extension_count(const mpg_extension_library *library);
const char *mpg_extension_name(const mpg_extension_library *library, int index);
/* Adds all ops of the library, or none. On success the registry owns the library; otherwise the
 * library is closed. */
mpg_status mpg_extension_add(mpg_extension_library *library);
void mpg_extension_close(mpg_extension_library *library);

/* Returns a library op's kernel for this device, or NULL if it has none. */
mpg_kernel_fn mpg_extension_kernel(const mpg_device *device, const mpg_op *op);
/* Fails with an error that names the missing kernel function. */
mpg_status mpg_extension_no_kernel(const mpg_device *device, const mpg_op *op);

#endif
