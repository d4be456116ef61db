/* One instance of an implementation for each floating dtype. Included once by a kernel's file, with
 * IMPLEMENTATION defined as the file's name; each of its inclusions has
 *   S           storage type          A         computing type (float or double)
 *   LOAD(x)     S to A                STORE(x)  A to S              NAME(x)  names of this instance
 *   DTYPE       of S                  COMPUTE   of A (convert.h)    LOWEST   the least finite S
 *   LANE_INT    an integer as wide as A
 * Behind it INSTANCE(dtype, function) is the function's instance.
 */
#include <float.h>

#define AS_IS(x) (x)

#define S float
#define A float
#define LANE_INT int32_t
#define LOAD AS_IS
#define STORE AS_IS
#define DTYPE MPG_FLOAT32
#define COMPUTE MPG_COMPUTE_F32
#define NAME(name) name##_f32
#define LOWEST (-FLT_MAX)
#include IMPLEMENTATION
#undef S
#undef LOAD
#undef STORE
#undef DTYPE
#undef NAME
#undef LOWEST

#define S uint16_t
#define LOAD mpg_half_to_float
#define STORE mpg_float_to_half
#define DTYPE MPG_FLOAT16
#define NAME(name) name##_f16
#define LOWEST (-65504.0f)
#include IMPLEMENTATION
#undef LOAD
#undef STORE
#undef DTYPE
#undef NAME
#undef LOWEST

#define LOAD mpg_bfloat16_to_float
#define STORE mpg_float_to_bfloat16
#define DTYPE MPG_BFLOAT16
#define NAME(name) name##_bf16
#define LOWEST (-0x1.fep127f)
#include IMPLEMENTATION
#undef S
#undef A
#undef LANE_INT
#undef LOAD
#undef STORE
#undef DTYPE
#undef COMPUTE
#undef NAME
#undef LOWEST

#define S double
#define A double
#define LANE_INT int64_t
#define LOAD AS_IS
#define STORE AS_IS
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
