/* Parses the device lists in a collective's parameters. This file is also compiled into the GPU
 * kernel library. */
#include "op/array/collective.h"

int mpg_collective_places(const char *text, mpg_device_id *places, int max) {
  int count = 0;
  for (const char *at = text; at && *at && count < max; at++) {
    if (!mpg_device_id_parse(&at, &places[count++])) return 0;
    if (!*at) break;
  }
  return count;
}
