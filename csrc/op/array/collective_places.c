/* The devices that a collective's parameters name; also for the library of GPU kernels. */
#include <stdlib.h>
#include <string.h>

#include "op/array/collective.h"

int mpg_collective_places(const char *text, mpg_device_id *places, int max) {
  int count = 0;
  for (const char *at = text; at && *at && count < max; at++) {
    mpg_device_type type = strncmp(at, "gpu(", 4) == 0 ? MPG_GPU : MPG_CPU;
    char *end;
    if (type == MPG_CPU && strncmp(at, "cpu(", 4) != 0) return 0;
    places[count++] = (mpg_device_id){type, (int32_t)strtol(at + 4, &end, 10)};
    if (*end != ')') return 0;
    at = end + 1;
    if (!*at) break;
  }
  return count;
}
