/* Ops of user libraries (mpgluon/include/mpgluon/op.h). Each op is added to the registry as a row
 * whose functions call the library's functions.
 *
 * An op has a second row for its gradient, which cannot be looked up by name. Libraries are never
 * closed after their ops were added, because the rows point into them and are never removed.
 * Threads: host lock; kernels run on the thread that executes the device's work.
 */
#ifndef MPG_OP_USER_EXTENSION_H
#define MPG_OP_USER_EXTENSION_H

#include "op/kernel.h"

typedef struct mpg_extension_library mpg_extension_library;

/* Opens a library and checks its table, without adding its ops. *library is NULL if its ops are
 * already added. */
mpg_status mpg_extension_open(const char *path, mpg_extension_library **library);
int mpg_extension_count(const mpg_extension_library *library);
const char *mpg_extension_name(const mpg_extension_library *library, int index);
/* Adds all ops of the library, or none. On success the registry owns the library; otherwise the
 * library is closed. */
mpg_status mpg_extension_add(mpg_extension_library *library);
void mpg_extension_close(mpg_extension_library *library);

/* Returns the kernel of an op from a library, or NULL if it has none for this device. */
mpg_kernel_fn mpg_extension_kernel(const mpg_device *device, const mpg_op *op);
/* Fails with an error that names the kernel function that the library lacks. */
mpg_status mpg_extension_no_kernel(const mpg_device *device, const mpg_op *op);

#endif
