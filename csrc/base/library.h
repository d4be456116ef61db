/* Optional libraries: opened when first needed, never required. oneDNN and OpenBLAS make the CPU
 * kernels faster.
 *
 * Each is looked for in the folder its setting names, then in the host's folders, then by its plain
 * name (the rpath of this extension and the system's search path). A setting of "0" turns it off.
 * The result, found or not, is constant afterwards. Ownership: everything here lives as long as the
 * process. Threads: mpg_library_set_folders before the first mpg_library_get, host lock; the rest
 * any thread.
 */
#ifndef MPG_BASE_LIBRARY_H
#define MPG_BASE_LIBRARY_H

#include "base/status.h"

typedef enum mpg_library_id {
  MPG_LIBRARY_ONEDNN,
  MPG_LIBRARY_OPENBLAS,
  MPG_LIBRARY_COUNT
} mpg_library_id;

typedef struct mpg_library {
  const char *name;    /* "oneDNN" */
  const char *setting; /* the environment variable: a folder, or "0" */
  void *handle;        /* NULL: not there; use mpg_library_symbol */
  char version[96];    /* "3.2.0"; "" when not there */
  char path[512];      /* where it was found; "" when not there */
  char reason[256];    /* why it is not there; "" when it is */
} mpg_library;

/* The host's folders, tried in order (its prefix's lib, site-packages). Texts are copied. */
mpg_status mpg_library_set_folders(const char *const *folders, int count);
int mpg_library_folders(const char *const **folders); /* how many; borrowed */
/* Opens the library on the first call. Never NULL; handle tells whether it is there. */
const mpg_library *mpg_library_get(mpg_library_id id);
/* The address of a function, or NULL. */
void *mpg_library_symbol(const mpg_library *library, const char *symbol);

#endif
