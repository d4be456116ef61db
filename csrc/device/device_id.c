/* The text of a device's id; also for the library of GPU kernels. */
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
  snprintf(name.text, sizeof name.text, "%s(%d)%s", type ? type : "device", (int)id.index,
           side ? " side" : "");
  return name;
}

bool mpg_device_id_parse(const char **text, mpg_device_id *id) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    size_t length = strlen(types[i].name);
    if (strncmp(*text, types[i].name, length) != 0) continue;
    const char *rest = *text + length;
    char *end = (char *)rest;
    long long index = 0;
    if (*rest == '(') {
      index = strtoll(rest + 1, &end, 10);
      if (end == rest + 1 || *end++ != ')' || index < 0 || index > INT32_MAX) return false;
    } else if (*rest == '_') {
      continue; /* of a longer name */
    }
    *text = end;
    *id = (mpg_device_id){types[i].type, (int32_t)index};
    return true;
  }
  return false;
}
