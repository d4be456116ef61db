/* Loads OpenBLAS. */
#include "kernels/cpu/vendor/openblas.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/library.h"

static mpg_openblas openblas_functions;
static bool openblas_available;
static pthread_once_t openblas_loaded = PTHREAD_ONCE_INIT;

/* Loads the functions for one dtype ('s' or 'd') into the fields of a struct, in order. Returns
 * false if one is missing. */
static bool load_functions(const mpg_library *library, char letter, void *functions) {
  static const char *const formats[] = {
      "scipy_cblas_%cgemm", "scipy_cblas_%ctrmm", "scipy_cblas_%ctrsm", "scipy_cblas_%csyrk",
      "scipy_%cpotrf_",     "scipy_%cpotri_",     "scipy_%cgeqrf_",     "scipy_%corgqr_",
      "scipy_%csyevd_",     "scipy_%cgetrf_",     "scipy_%cgetri_",     "scipy_%cgetrs_",
      "scipy_%cgesdd_",     "scipy_%cgeev_"};
  _Static_assert(sizeof formats / sizeof *formats * sizeof(void *) == sizeof(mpg_openblas_f32),
                 "one name for each function");
  _Static_assert(sizeof(mpg_openblas_f32) == sizeof(mpg_openblas_f64),
                 "the same functions for both dtypes");
  for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
    char name[32];
    snprintf(name, sizeof name, formats[i], letter);
    void *function = mpg_library_symbol(library, name);
    if (!function) return false;
    memcpy((char *)functions + i * sizeof function, &function, sizeof function);
  }
  return true;
}

static void load(void) {
  const mpg_library *library = mpg_library_get(MPG_LIBRARY_OPENBLAS);
  if (!library->handle) return;
  void (*set_num_threads)(int) =
      (void (*)(int))mpg_library_symbol(library, "scipy_openblas_set_num_threads");
  if (!set_num_threads || !load_functions(library, 's', &openblas_functions.f32) ||
      !load_functions(library, 'd', &openblas_functions.f64))
    return;
  set_num_threads(1);
  openblas_available = true;
}

const mpg_openblas *mpg_cpu_openblas(void) {
  pthread_once(&openblas_loaded, load);
  return openblas_available ? &openblas_functions : NULL;
}
