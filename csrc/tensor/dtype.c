/* Element types: names, sizes and kinds. */
#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

static const struct {
  const char *name;
  size_t size;
} dtypes[MPG_DTYPE_LIMIT] = {
    [MPG_FLOAT32] = {"float32", 4},   [MPG_FLOAT64] = {"float64", 8},
    [MPG_FLOAT16] = {"float16", 2},   [MPG_UINT8] = {"uint8", 1},
    [MPG_INT32] = {"int32", 4},       [MPG_INT8] = {"int8", 1},
    [MPG_INT64] = {"int64", 8},       [MPG_BOOL] = {"bool", 1},
    [MPG_BFLOAT16] = {"bfloat16", 2},
};

bool mpg_dtype_valid(int dtype) {
  return dtype >= 0 && dtype < MPG_DTYPE_LIMIT && dtypes[dtype].size;
}

size_t mpg_dtype_size(mpg_dtype dtype) { return mpg_dtype_valid(dtype) ? dtypes[dtype].size : 0; }

double mpg_dtype_rounded(mpg_dtype dtype, double number) {
  MPG_ASSERT(mpg_dtype_is_float(dtype));
  if (dtype == MPG_FLOAT64) return number;
  number = (float)number;
  if (dtype == MPG_FLOAT32 || number == 0 || !isfinite(number)) return number;
  int exponent, bits = dtype == MPG_FLOAT16 ? 11 : 8, largest = dtype == MPG_FLOAT16 ? 16 : 128;
  frexp(number, &exponent);
  /* Subnormal numbers have the spacing of the smallest normal ones. */
  if (exponent < 3 - largest) exponent = 3 - largest;
  double unit = ldexp(1, exponent - bits), rounded = nearbyint(number / unit) * unit;
  return fabs(rounded) >= ldexp(1, largest) ? copysign(INFINITY, number) : rounded;
}

const char *mpg_dtype_name(mpg_dtype dtype) {
  return mpg_dtype_valid(dtype) ? dtypes[dtype].name : "unknown";
}

mpg_dtype mpg_dtype_from_name(const char *name) {
  for (int i = 0; i < MPG_DTYPE_LIMIT; i++)
    if (dtypes[i].name && strcmp(dtypes[i].name, name) == 0) return (mpg_dtype)i;
  return MPG_DTYPE_NONE;
}
