/* Instantiates an implementation for each floating-point dtype. A kernel's file includes this file
 * once, after it defines IMPLEMENTATION as the implementation's file name. The implementation is
 * then included once per dtype, with these macros defined:
 *   S           storage type
 *   A           computing type (float or double)
 *   LOAD(x)     converts x from S to A
 *   STORE(x)    converts x from A to S
 *   LOAD_LINE(target, source), STORE_LINE(target, source)
 *               convert 64 bytes of A values from or to S; the arguments are addresses
 *   DTYPE       dtype of S
 *   COMPUTE     compute type of A (convert.h)
 *   LOWEST      lowest finite value of S
 *   LANE_INT    integer type of A's size
 *   NAME(x)     name of x in this instance
 * The implementation defines x_T as NAME(x) for each of its functions x, and uses x_T throughout.
 * Afterward, INSTANCE(dtype, x) is the instance of x for a dtype.
 */
#include <float.h>
#include <string.h>

#include "kernels/cpu/halves.h"

#define AS_IS(x) (x)
#define COPY_LINE(target, source) memcpy(target, source, 64)

#define S float
#define A float
#define LANE_INT int32_t
#define LOAD AS_IS
#define STORE AS_IS
#define LOAD_LINE COPY_LINE
#define STORE_LINE COPY_LINE
#define DTYPE MPG_FLOAT32
#define COMPUTE MPG_COMPUTE_F32
#define NAME(name) name##_f32
#define LOWEST (-FLT_MAX)
#include IMPLEMENTATION
#undef S
#undef LOAD
#undef STORE
#undef LOAD_LINE
#undef STORE_LINE
#undef DTYPE
#undef NAME
#undef LOWEST

#define S uint16_t
#define LOAD mpg_half_to_float
#define STORE mpg_float_to_half
#define LOAD_LINE(target, source) mpg_load_f16(source, target)
#define STORE_LINE(target, source) mpg_store_f16(source, target)
#define DTYPE MPG_FLOAT16
#define NAME(name) name##_f16
#define LOWEST (-65504.0f)
#include IMPLEMENTATION
#undef LOAD
#undef STORE
#undef LOAD_LINE
#undef STORE_LINE
#undef DTYPE
#undef NAME
#undef LOWEST

#define LOAD mpg_bfloat16_to_float
#define STORE mpg_float_to_bfloat16
#define LOAD_LINE(target, source) mpg_load_bf16(source, target)
#define STORE_LINE(target, source) mpg_store_bf16(source, target)
#define DTYPE MPG_BFLOAT16
#define NAME(name) name##_bf16
#define LOWEST (-0x1.fep127f)
#include IMPLEMENTATION
#undef S
#undef A
#undef LANE_INT
#undef LOAD
#undef STORE
#undef LOAD_LINE
#undef STORE_LINE
#undef DTYPE
#undef COMPUTE
#undef NAME
#undef LOWEST

#define S double
#define A double
#define LANE_INT int64_t
#define LOAD AS_IS
#define STORE AS_IS
#define LOAD_LINE COPY_LINE
#define STORE_LINE COPY_LINE
#define DTYPE MPG_FLOAT64
#define COMPUTE MPG_COMPUTE_F64
#define NAME(name) name##_f64
#define LOWEST (-DBL_MAX)
#include IMPLEMENTATION

#define INSTANCE(dtype, function)            \
  ((dtype) == MPG_FLOAT32   ? function##_f32 \
   : (dtype) == MPG_FLOAT64 ? function##_f64 \
   : (dtype) == MPG_FLOAT16 ? function##_f16 \
                            : function##_bf16)
