/* Element types. The numbers are MXNet's (mshadow's type flags). Files contain them, so they must
 * never change. */
#ifndef MPG_TENSOR_DTYPE_H
#define MPG_TENSOR_DTYPE_H

#include "base/status.h"

typedef enum mpg_dtype {
  MPG_DTYPE_NONE = -1, /* unknown; as an op parameter, the input's dtype */
  MPG_FLOAT32 = 0,
  MPG_FLOAT64 = 1,
  MPG_FLOAT16 = 2,
  MPG_UINT8 = 3,
  MPG_INT32 = 4,
  MPG_INT8 = 5,
  MPG_INT64 = 6,
  MPG_BOOL = 7,
  MPG_BFLOAT16 = 12,
  MPG_DTYPE_LIMIT = 13 /* one more than the largest number */
} mpg_dtype;

/* Bit sets of dtypes, as in the rows of ops.def. */
typedef uint32_t mpg_dtype_set;
#define MPG_DTYPE_BIT(dtype) (1u << (dtype))
#define MPG_DTYPES_FLOAT                                                                  \
  (MPG_DTYPE_BIT(MPG_FLOAT32) | MPG_DTYPE_BIT(MPG_FLOAT64) | MPG_DTYPE_BIT(MPG_FLOAT16) | \
   MPG_DTYPE_BIT(MPG_BFLOAT16))
#define MPG_DTYPES_INTEGER                                                         \
  (MPG_DTYPE_BIT(MPG_UINT8) | MPG_DTYPE_BIT(MPG_INT8) | MPG_DTYPE_BIT(MPG_INT32) | \
   MPG_DTYPE_BIT(MPG_INT64))
#define MPG_DTYPES_NUMERIC (MPG_DTYPES_FLOAT | MPG_DTYPES_INTEGER)
#define MPG_DTYPES_ALL (MPG_DTYPES_NUMERIC | MPG_DTYPE_BIT(MPG_BOOL))

bool mpg_dtype_valid(int dtype);
size_t mpg_dtype_size(mpg_dtype dtype); /* bytes per element */
/* Returns the dtype in which sums and statistics of this dtype are accumulated. */
static inline mpg_dtype mpg_dtype_of_sums(mpg_dtype dtype) {
  return dtype == MPG_FLOAT16 || dtype == MPG_BFLOAT16 ? MPG_FLOAT32 : dtype;
}
/* Rounds `number` to the nearest value of a float dtype, ties to even. For 16-bit dtypes, rounds to
 * float32 first, as kernels do. */
double mpg_dtype_rounded(mpg_dtype dtype, double number);
const char *mpg_dtype_name(mpg_dtype dtype);
/* Returns MPG_DTYPE_NONE if no dtype has this name. */
mpg_dtype mpg_dtype_from_name(const char *name);
static inline bool mpg_dtype_is_float(mpg_dtype dtype) {
  return dtype >= 0 && (MPG_DTYPES_FLOAT >> dtype & 1);
}
/* True if element i of an array is nonzero. NaN is nonzero; -0.0 is zero. Assumes little-endian
 * elements. */
static inline bool mpg_dtype_nonzero(mpg_dtype dtype, const void *values, int64_t i) {
  size_t size = mpg_dtype_size(dtype);
  const unsigned char *item = (const unsigned char *)values + (size_t)i * size;
  unsigned bits = mpg_dtype_is_float(dtype) ? item[size - 1] & 0x7f : item[size - 1];
  for (size_t k = 0; k + 1 < size; k++) bits |= item[k];
  return bits != 0;
}
static inline bool mpg_dtype_is_integer(mpg_dtype dtype) {
  return dtype >= 0 && (MPG_DTYPES_INTEGER >> dtype & 1);
}

#endif
