/* Resolves MPI's functions. */
#include "device/ranks/mpi.h"

#include <dlfcn.h>
#include <string.h>

static mpg_status find(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  if (!symbol)
    return mpg_fail(MPG_ERROR, "the MPI library does not export %s: %s", name, dlerror());
  memcpy(function, &symbol, sizeof symbol);
  return MPG_OK;
}

mpg_status mpg_mpi_find(mpg_mpi *mpi, const char *path) {
  /* Adds a reference, which is never released. */
  void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (!library) return mpg_fail(MPG_ERROR, "the MPI library cannot be opened: %s", dlerror());
  MPG_TRY(find(library, "MPI_Isend", &mpi->isend));
  MPG_TRY(find(library, "MPI_Irecv", &mpi->irecv));
  MPG_TRY(find(library, "MPI_Test", &mpi->test));
  MPG_TRY(find(library, "MPI_Cancel", &mpi->cancel));
  MPG_TRY(find(library, "MPI_Testany", &mpi->testany));
  MPG_TRY(find(library, "MPI_Iallreduce", &mpi->iallreduce));
  return find(library, "MPI_Error_string", &mpi->error_string);
}

bool mpg_mpi_cancel(const mpg_mpi *mpi, mpg_mpi_handle *request) {
  _Alignas(16) char status[MPG_MPI_STATUS];
  int done = 0;
  return mpi->cancel(request) == 0 && mpi->test(request, &done, status) == 0 && done;
}

mpg_status mpg_mpi_fail(const mpg_mpi *mpi, int code, const char *function) {
  enum { LONGEST = 8192 }; /* MPI_MAX_ERROR_STRING is 256 to 8192 */
  char text[LONGEST + 1] = "";
  int length = 0;
  mpi->error_string(code, text, &length);
  return mpg_fail(MPG_ERROR, "%s failed: %.400s", function, text);
}
