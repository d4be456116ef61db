/* Ops of libraries that users compile (mpgluon/include/mpgluon/op.h): rows that are added to the
 * registry, whose functions call the library's.
 *
 * An op has a second row for its gradient, which nobody can find by name. Libraries are never
 * closed once their ops are added: rows point into them, and live as long as the process. Threads:
 * host lock; kernels are called by the thread that runs the device's work.
 */
#ifndef MPG_OP_USER_EXTENSION_H
#define MPG_OP_USER_EXTENSION_H

#include "op/kernel.h"

typedef struct mpg_extension_library mpg_extension_library;

/* Opens a library and checks its table; its ops are not there yet. *library: NULL where its ops
 * were added before. */
mpg_status mpg_extension_open(const char *path, mpg_extension_library **library);
int mpg_extension_count(const mpg_extension_library *library);
const char *mpg_extension_name(const mpg_extension_library *library, int index);
/* Adds all its ops, or none. The library is the registry's then, and else closed. */
mpg_status mpg_extension_add(mpg_extension_library *library);
void mpg_extension_close(mpg_extension_library *library);

/* The kernel of an op that a library has added; NULL: it has none for this device. */
mpg_kernel_fn mpg_extension_kernel(const mpg_device *device, const mpg_op *op);
/* The error then. */
mpg_status mpg_extension_no_kernel(const mpg_device *device, const mpg_op *op);

#endif
