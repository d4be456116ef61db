#include "kernels/cpu/openblas.h"

#include <pthread.h>

#include "base/library.h"

static mpg_openblas openblas_functions;
static bool openblas_available;
static pthread_once_t openblas_loaded = PTHREAD_ONCE_INIT;

static void load(void) {
  const mpg_library *library = mpg_library_get(MPG_LIBRARY_OPENBLAS);
  if (!library->handle) return;
  void (*set_num_threads)(int) = (void (*)(int))mpg_library_symbol(library, "scipy_openblas_set_num_threads");
  *(void **)&openblas_functions.sgemm = mpg_library_symbol(library, "scipy_cblas_sgemm");
  *(void **)&openblas_functions.dgemm = mpg_library_symbol(library, "scipy_cblas_dgemm");
  if (!set_num_threads || !openblas_functions.sgemm || !openblas_functions.dgemm) return;
  set_num_threads(1);
  openblas_available = true;
}

const mpg_openblas *mpg_cpu_openblas(void) {
  pthread_once(&openblas_loaded, load);
  return openblas_available ? &openblas_functions : NULL;
}
