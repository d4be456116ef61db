/* Text form of device ids. Also compiled into the library of GPU kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

static const struct {
  const char *name;
  int32_t type;
} types[] = {{"cpu", MPG_CPU},
             {"gpu", MPG_GPU},
             {"cpu_pinned", MPG_CPU_PINNED},
             {"cpu_shared", MPG_CPU_SHARED}};

const char *mpg_device_type_name(int32_t type) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (types[i].type == type) return types[i].name;
  return NULL;
}

mpg_device_id_name mpg_device_id_text(mpg_device_id id) {
  mpg_device_id_name name;
  bool side = id.type == MPG_CPU_SIDE;
  const char *type = mpg_device_type_name(side ? MPG_CPU : id.type);
  char rank[20] = "";
  if (id.rank) snprintf(rank, sizeof rank, ", rank=%d", (int)id.rank - 1);
  snprintf(name.text, sizeof name.text, "%s(%d%s)%s", type ? type : "device", (int)id.index, rank,
           side ? " side" : "");
  return name;
}

bool mpg_device_id_parse(const char **text, mpg_device_id *id) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    size_t length = strlen(types[i].name);
    if (strncmp(*text, types[i].name, length) != 0) continue;
    const char *rest = *text + length;
    char *end = (char *)rest;
    long long index = 0, rank = -1;
    if (*rest == '(') {
      index = strtoll(rest + 1, &end, 10);
      if (end == rest + 1 || index < 0 || index > INT32_MAX) return false;
      if (strncmp(end, ", rank=", 7) == 0) {
        const char *digits = end + 7;
        rank = strtoll(digits, &end, 10);
        if (end == digits || rank < 0 || rank >= INT32_MAX) return false;
      }
      if (*end++ != ')') return false;
    } else if (*rest == '_') {
      continue; /* a prefix of a longer name, such as "cpu" of "cpu_pinned" */
    }
    *text = end;
    *id = (mpg_device_id){types[i].type, (int32_t)index, (int32_t)(rank + 1)};
    return true;
  }
  return false;
}
