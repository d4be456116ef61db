/* Optional libraries, opened on first use and never required. oneDNN and OpenBLAS speed up the CPU
 * kernels.
 *
 * If the library's environment variable names a folder, only that folder is searched; "0" disables
 * the library. Otherwise the host's folders are searched, and then the plain file name is opened,
 * which searches this extension's rpath and the system's library path. The first search is final,
 * even if the library was missing. Ownership: everything here lives as long as the process.
 * Threads: mpg_library_set_folders needs the host lock and must precede the first mpg_library_get;
 * all other functions may be called from any thread.
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
  const char *name;    /* such as "oneDNN" */
  const char *setting; /* name of the environment variable, whose value is a folder or "0" */
  void *handle;        /* NULL if missing; use mpg_library_symbol */
  char version[96];    /* such as "3.2.0"; "" if missing */
  char path[512];      /* path of the loaded file; "" if missing */
  char reason[256];    /* why the library could not be loaded; "" if it is loaded */
} mpg_library;

/* Sets the host's folders (such as the prefix's lib and site-packages), which are searched in
 * order. Copies the strings. */
mpg_status mpg_library_set_folders(const char *const *folders, int count);
/* Sets *folders to the host's folders (borrowed) and returns their number. */
int mpg_library_folders(const char *const **folders);
/* Opens the library on the first call. Never returns NULL; `handle` is NULL if the library is
 * missing. */
const mpg_library *mpg_library_get(mpg_library_id id);
/* Returns the address of a function; NULL if the library or the function is missing. */
void *mpg_library_symbol(const mpg_library *library, const char *symbol);

#endif
