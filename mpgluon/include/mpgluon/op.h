/* C interface for user-defined ops of mpgluon.
 *
 * A shared library lists its ops in one table, with MPGLUON_LIBRARY. It includes this header and
 * links against nothing:
 *
 *     cc -shared -fPIC -O2 -I$(python -c "import mpgluon; print(mpgluon.library.get_include())") \
 *        -o libmine.so mine.c
 *
 * mx.library.load("/path/libmine.so") then defines mx.nd.NAME and mx.sym.NAME for each op. A
 * library stays loaded until the process ends. Everything that its table points to must stay valid
 * and unchanged.
 *
 * Functions return 0 on success. On failure they return the value of mpgluon_fail, and the user
 * gets an MXNetError with its text:
 *
 *     if (k > size) return mpgluon_fail(call, "k is %d, of %d elements", k, size);
 *
 * The arguments of a function are valid until it returns. Later versions may append fields to the
 * structs marked "may grow". Libraries that were built with this header will keep working.
 */
#ifndef MPGLUON_OP_H
#define MPGLUON_OP_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MPGLUON_OP_VERSION 1

enum { MPGLUON_MAX_DIMENSIONS = 10, MPGLUON_MAX_ARRAYS = 16, MPGLUON_MAX_PARAMS = 32 };

/* --- Arrays ----------------------------------------------------------------------------------- */

/* Element types, with MXNet's numbers. */
enum {
  MPGLUON_UNKNOWN = -1,
  MPGLUON_FLOAT32 = 0,
  MPGLUON_FLOAT64 = 1,
  MPGLUON_FLOAT16 = 2,
  MPGLUON_UINT8 = 3,
  MPGLUON_INT32 = 4,
  MPGLUON_INT8 = 5,
  MPGLUON_INT64 = 6,
  MPGLUON_BOOL = 7,
  MPGLUON_BFLOAT16 = 12
};
/* Set that contains one dtype. Combine sets with |, as in MPGLUON_SET(MPGLUON_FLOAT32) |
 * MPGLUON_SET(MPGLUON_FLOAT64). */
#define MPGLUON_SET(dtype) (UINT32_C(1) << (dtype))

/* An array that a kernel reads or writes: row-major and contiguous. It may be empty. */
typedef struct mpgluon_array {
  void *data; /* device memory in GPU kernels */
  int32_t dtype, ndim;
  const int64_t *shape;
} mpgluon_array;

/* Returns the number of elements. */
static inline int64_t mpgluon_size(const mpgluon_array *array) {
  int64_t size = 1;
  for (int32_t i = 0; i < array->ndim; i++) size *= array->shape[i];
  return size;
}

/* Shape and dtype of an array, which may be partly unknown. */
typedef struct mpgluon_desc {
  int32_t dtype;                         /* MPGLUON_UNKNOWN if not known */
  int32_t ndim;                          /* -1 if not known */
  int64_t shape[MPGLUON_MAX_DIMENSIONS]; /* -1 for a size that is not known */
} mpgluon_desc;

/* --- Parameters ------------------------------------------------------------------------------- */

/* Kinds of parameters. The comments name the field of mpgluon_value that holds the value. */
enum {
  MPGLUON_INTEGER = 1, /* value.integer */
  MPGLUON_NUMBER,      /* value.number */
  MPGLUON_BOOLEAN,     /* value.integer, 0 or 1 */
  MPGLUON_CHOICE,      /* value.integer, the index of the choice in `range`, as in "mean|sum" */
  MPGLUON_TEXT         /* value.text, UTF-8; NULL represents None if that is the default */
};

typedef struct mpgluon_param {
  const char *name;
  int32_t kind;
  /* The default as text, such as "0.5", "True" or "mean". NULL if the parameter is required. */
  const char *initial;
  /* Numbers: "low..high", where either bound may be omitted, or NULL. Choices: "a|b|c". NULL for
   * other kinds. */
  const char *range;
  const char *doc; /* or NULL */
} mpgluon_param;

typedef union mpgluon_value {
  int64_t integer;
  double number;
  const char *text;
} mpgluon_value;

/* --- Arguments of functions ------------------------------------------------------------------- */

/* Arguments of `infer`, which computes the outputs' shapes and dtypes from the inputs. May grow. */
typedef struct mpgluon_infer {
  const struct mpgluon_op *op;
  const mpgluon_value *params; /* in the order of the table */
  int32_t num_inputs, num_outputs;
  /* The shape of the first input is known. Later inputs, such as weights with deferred
   * initialization, may have unknown shapes, which the function may fill in. The user gets an
   * error if a shape that was filled in contradicts the given array. */
  mpgluon_desc *inputs;
  mpgluon_desc *outputs; /* unknown on entry; the function sets them */
  int32_t train;         /* 1 in autograd's train mode */
  char *error;           /* for mpgluon_fail */
  size_t error_size;
} mpgluon_infer;

/* Arguments of a kernel. May grow. */
typedef struct mpgluon_call {
  const struct mpgluon_op *op;
  const mpgluon_value *params;
  int32_t num_inputs, num_outputs;
  /* Read-only except for states. In backward, states have data NULL and ndim 0. */
  const mpgluon_array *inputs;
  /* Forward must write all elements. Backward gets the outputs' shapes. `data` is NULL in backward
   * unless the op has the flag MPGLUON_BACKWARD_READS_OUTPUTS. */
  const mpgluon_array *outputs;
  /* Backward only. output_gradients[i] is zero if output i has no gradient. The kernel writes
   * input_gradients of all inputs except states. It may skip input i if bit i of `wanted` is 0. */
  const mpgluon_array *output_gradients, *input_gradients;
  uint32_t wanted;
  int32_t train;       /* 1 in autograd's train mode */
  int32_t num_threads; /* number of threads that the kernel may use */
  void *stream; /* the cudaStream_t to queue all work on; its GPU is current. NULL on a CPU */
  /* Returns temporary memory on the kernel's device, aligned to 64 bytes, or NULL if memory is
   * exhausted. The memory is valid until the kernel function returns or, on a GPU, until the queued
   * work is done. The next call of `scratch` reuses the memory. */
  void *(*scratch)(const struct mpgluon_call *call, size_t size);
  void *host; /* private to `scratch` */
  char *error;
  size_t error_size;
} mpgluon_call;

/* Sets the error text from a printf format and evaluates to MPGLUON_FAILED, which the function must
 * return. */
#define MPGLUON_FAILED 1
#define mpgluon_fail(call, ...) \
  (snprintf((call)->error, (call)->error_size, __VA_ARGS__), MPGLUON_FAILED)

/* --- Ops -------------------------------------------------------------------------------------- */

/* Called by one thread at a time. The results must depend only on the arguments. */
typedef int (*mpgluon_infer_function)(mpgluon_infer *call);
/* Called by the worker thread of a device, without the GIL. Several devices may call it at the same
 * time. The results must depend only on the arguments, because calls may be skipped, repeated, or
 * captured once and replayed on a GPU. A GPU kernel queues its work on `stream`. It must not wait,
 * and may allocate only with `scratch`. */
typedef int (*mpgluon_kernel)(const mpgluon_call *call);

enum { MPGLUON_BACKWARD_READS_OUTPUTS = 1 };

/* An op. May grow. Fields that are not set must be 0. */
typedef struct mpgluon_op {
  const char *name; /* a C identifier */
  const char *doc;  /* for users, or NULL; lines ">>> ..." at its end are an example */
  /* Names of the inputs in order (at least one), such as "data, weight, !calls". "!" marks a state,
   * an input that forward also writes. In a symbol, a state becomes an auxiliary state. */
  const char *inputs;
  const char *outputs; /* names of the outputs, without states */
  const mpgluon_param *params;
  int32_t num_params;
  uint32_t dtypes; /* set of dtypes that the first input may have */
  uint32_t flags;
  /* Number of leading inputs that have one row per example of a batch. All outputs must then have
   * one row per example, computed only from that example's rows and the remaining inputs.
   * Pipelines rely on this. 0 means that the op combines examples. */
  int32_t num_row_inputs;
  mpgluon_infer_function infer; /* NULL if all arrays have the first input's shape and dtype */
  /* At least one of the forward functions is set. An op without backward is not differentiable. */
  mpgluon_kernel forward, backward;
  mpgluon_kernel cuda_forward, cuda_backward;
} mpgluon_op;

/* --- The table -------------------------------------------------------------------------------- */

typedef struct mpgluon_table {
  uint32_t version, op_size;
  const mpgluon_op *ops;
  int32_t num_ops;
} mpgluon_table;

#if defined(_WIN32)
#define MPGLUON_EXPORT __declspec(dllexport)
#else
#define MPGLUON_EXPORT __attribute__((visibility("default")))
#endif

/* Defines the library's table from an array of ops. Use it once per library, at file scope. */
#ifdef __cplusplus
#define MPGLUON_LIBRARY_ extern "C" MPGLUON_EXPORT const mpgluon_table mpgluon_library
#else
#define MPGLUON_LIBRARY_                                     \
  extern MPGLUON_EXPORT const mpgluon_table mpgluon_library; \
  const mpgluon_table mpgluon_library
#endif
#define MPGLUON_LIBRARY(ops)                                       \
  MPGLUON_LIBRARY_ = {MPGLUON_OP_VERSION, sizeof(mpgluon_op), ops, \
                      (int32_t)(sizeof(ops) / sizeof *(ops))}

#ifdef __cplusplus
}
#endif
#endif
