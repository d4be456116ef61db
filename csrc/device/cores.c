/* Counts the cores that this process may use, within the limits of its control groups. */
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

/* Parses a cpu.max file: "200000 100000" is 2; "max 100000" or a missing file is 0, no limit. */
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

/* Returns the limit of this process's control group (version 2) and its ancestors. */
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
  static _Atomic int known; /* every thread computes the same value */
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
