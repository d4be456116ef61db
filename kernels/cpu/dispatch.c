/* Selects the build of the CPU kernels for this processor. */
#include "kernels/cpu/dispatch.h"

#include <stdlib.h>
#include <string.h>

#ifdef MPG_ISA_BASE
extern const mpg_kernel_fn mpg_cpu_table_base[];
mpg_status mpg_cpu_fused_base(const mpg_kernel_call *call);
#endif
#ifdef MPG_ISA_V3
extern const mpg_kernel_fn mpg_cpu_table_v3[];
mpg_status mpg_cpu_fused_v3(const mpg_kernel_call *call);
static bool has_v3(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
#endif
#ifdef MPG_ISA_V4
extern const mpg_kernel_fn mpg_cpu_table_v4[];
mpg_status mpg_cpu_fused_v4(const mpg_kernel_call *call);
static bool has_v4(void) {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512cd");
}
#endif

static bool always(void) { return true; }

static const struct {
  const char *name;
  const mpg_kernel_fn *table;
  mpg_kernel_fn fused;
  bool (*available)(void);
} choices[] = {/* best first */
#ifdef MPG_ISA_V4
               {"v4", mpg_cpu_table_v4, mpg_cpu_fused_v4, has_v4},
#endif
#ifdef MPG_ISA_V3
               {"v3", mpg_cpu_table_v3, mpg_cpu_fused_v3, has_v3},
#endif
#ifdef MPG_ISA_BASE
               {"base", mpg_cpu_table_base, mpg_cpu_fused_base, always},
#endif
               {NULL, NULL, NULL, always}};

static size_t choice(void) {
  const char *wanted = getenv("MPGLUON_ISA_RUN");
  bool skip = wanted && *wanted;
  for (size_t i = 0;; i++) {
    if (!choices[i].name) { /* no match: retry without MPGLUON_ISA_RUN, then use the last build */
      if (!skip) return i ? i - 1 : 0;
      skip = false;
      i = (size_t)-1;
      continue;
    }
    if (skip && strcmp(choices[i].name, wanted) != 0) continue;
    if (choices[i].available()) return i;
  }
}

const mpg_kernel_fn *mpg_cpu_kernel_table(void) { return choices[choice()].table; }
mpg_kernel_fn mpg_cpu_fused_kernel(void) { return choices[choice()].fused; }
const char *mpg_cpu_isa_name(void) { return choices[choice()].name; }
