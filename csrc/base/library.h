/* Optional libraries, opened on first use and never required. oneDNN and OpenBLAS speed up the CPU
 * kernels.
 *
 * The search order is the folder in the library's environment variable, the host's folders, and
 * then the plain name (the rpath of this extension and the system's search path). A setting of "0"
 * disables the library. The result is constant afterwards, even if the library is missing.
 * Ownership: everything here lives as long as the process. Threads: mpg_library_set_folders needs
 * the host lock and must precede the first mpg_library_get; all other functions may be called from
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
  void *handle;        /* NULL if missing; use mpg_library_symbol */
  char version[96];    /* "3.2.0"; "" if missing */
  char path[512];      /* path of the loaded file; "" if missing */
  char reason[256];    /* why loading failed; "" if it succeeded */
} mpg_library;

/* Sets the host's folders, which are tried in order (its prefix's lib, site-packages). Copies the
 * texts. */
mpg_status mpg_library_set_folders(const char *const *folders, int count);
/* Returns the number of folders; `folders` is borrowed. */
int mpg_library_folders(const char *const **folders);
/* Opens the library on the first call. Never returns NULL; `handle` is NULL if the library is
 * missing. */
const mpg_library *mpg_library_get(mpg_library_id id);
/* Returns the address of a function, or NULL. */
void *mpg_library_symbol(const mpg_library *library, const char *symbol);

#endif
