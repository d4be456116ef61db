/* Counts the cores that this process may use, considering CPU affinity and cgroup limits. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/internal.h"

int mpg_this_core(void) {
#ifdef __linux__
  return sched_getcpu() + 1;
#else
  return 0;
#endif
}

/* Returns the limit in a cpu.max file (quota and period), rounded up: "200000 100000" gives 2.
 * Returns 0 (unlimited) for "max 100000" or a missing file. */
static int cores_of_cpu_max(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  long long quota, period;
  int cores = 0;
  if (fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0)
    cores = (int)((quota + period - 1) / period);
  fclose(file);
  return cores;
}

static int smaller_limit(int a, int b) { return !a ? b : !b || a < b ? a : b; }

/* Returns the lowest limit of this process's control group (cgroup v2) and its ancestors; 0 means
 * unlimited. */
static int cgroup_cores(void) {
  int cores = cores_of_cpu_max("/sys/fs/cgroup/cpu.max");
  FILE *file = fopen("/proc/self/cgroup", "r");
  if (!file) return cores;
  char line[1024], path[1100];
  while (fgets(line, sizeof line, file)) {
    if (strncmp(line, "0::/", 4) != 0) continue;
    char *group = line + 3;
    group[strcspn(group, "\n")] = 0;
    for (char *end = group + strlen(group); end && end > group; end = strrchr(group, '/')) {
      *end = 0;
      snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
      cores = smaller_limit(cores, cores_of_cpu_max(path));
    }
  }
  fclose(file);
  return cores;
}

int mpg_machine_cores(void) {
  static _Atomic int known; /* a cache; threads may race, but all compute the same value */
  int cores = atomic_load_explicit(&known, memory_order_relaxed);
  if (cores) return cores;
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
#endif
  if (cores < 1) cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
  cores = smaller_limit(cores > 0 ? cores : 1, cgroup_cores());
  atomic_store_explicit(&known, cores, memory_order_relaxed);
  return cores;
}
