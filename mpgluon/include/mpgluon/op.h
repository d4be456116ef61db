/* Ops of one's own in C, for mpgluon.
 *
 * A shared library lists its ops in one table, with MPGLUON_LIBRARY. It includes this header and
 * links against nothing:
 *
 *     cc -shared -fPIC -O2 -I$(python -c "import mpgluon; print(mpgluon.library.get_include())") \
 *        -o libmine.so mine.c
 *
 * mx.library.load("/path/libmine.so") then makes mx.nd.NAME and mx.sym.NAME of each op. A library
 * stays loaded until the process ends, and all that its table points to has to stay as it is.
 *
 * Functions return 0, or the value of mpgluon_fail, whose text the user reads in an MXNetError:
 *
 *     if (k > size) return mpgluon_fail(call, "k is %d, of %d elements", k, size);
 *
 * What a call gives them is theirs until they return. Structs with a comment that says so grow at
 * their end in later versions; libraries that were built with this header go on working.
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
/* Sets of them: MPGLUON_SET(MPGLUON_FLOAT32) | MPGLUON_SET(MPGLUON_FLOAT64). */
#define MPGLUON_SET(dtype) (UINT32_C(1) << (dtype))

/* An array that a kernel reads or writes: row-major, without gaps. It may have no elements. */
typedef struct mpgluon_array {
  void *data; /* on a GPU: of its memory */
  int32_t dtype, ndim;
  const int64_t *shape;
} mpgluon_array;

static inline int64_t mpgluon_size(const mpgluon_array *array) { /* its number of elements */
  int64_t size = 1;
  for (int32_t i = 0; i < array->ndim; i++) size *= array->shape[i];
  return size;
}

/* Shape and dtype. */
typedef struct mpgluon_desc {
  int32_t dtype;                         /* MPGLUON_UNKNOWN: not known */
  int32_t ndim;                          /* -1: not known */
  int64_t shape[MPGLUON_MAX_DIMENSIONS]; /* -1: not known */
} mpgluon_desc;

/* --- Parameters ------------------------------------------------------------------------------- */

enum {
  MPGLUON_INTEGER = 1, /* value.integer */
  MPGLUON_NUMBER,      /* value.number */
  MPGLUON_BOOLEAN,     /* value.integer, 0 or 1 */
  MPGLUON_CHOICE,      /* value.integer, the place of the word in `range`: "mean|sum" */
  MPGLUON_TEXT         /* value.text, UTF-8; NULL for None, where that is the default */
};

typedef struct mpgluon_param {
  const char *name;
  int32_t kind;
  const char *initial; /* the default, as users would write it: "0.5", "True", "mean"; NULL: none */
  const char *range;   /* of numbers "low..high", either of which may be left out; of a choice its
                          words; else NULL */
  const char *doc;     /* or NULL */
} mpgluon_param;

typedef union mpgluon_value {
  int64_t integer;
  double number;
  const char *text;
} mpgluon_value;

/* --- What functions get ----------------------------------------------------------------------- */

/* Inference: from the inputs' shapes and dtypes to the outputs'. Grows. */
typedef struct mpgluon_infer {
  const struct mpgluon_op *op;
  const mpgluon_value *params; /* in the order of the table */
  int32_t num_inputs, num_outputs;
  /* The first input's shape is known. Others may not be yet, as of weights that are made later:
   * what is written here completes them, and is an error for the user where it contradicts an
   * array. */
  mpgluon_desc *inputs;
  mpgluon_desc *outputs; /* unknown on entry; to be filled */
  int32_t train;         /* whether it is in autograd's train mode */
  char *error;           /* for mpgluon_fail */
  size_t error_size;
} mpgluon_infer;

/* A run of a kernel. Grows. */
typedef struct mpgluon_call {
  const struct mpgluon_op *op;
  const mpgluon_value *params;
  int32_t num_inputs, num_outputs;
  const mpgluon_array *inputs;  /* read only, but for states; backward gets no states: their data is
                                   NULL, and their ndim 0 */
  const mpgluon_array *outputs; /* forward writes all elements. Backward gets their shapes, and
                                   their data where the op has MPGLUON_BACKWARD_READS_OUTPUTS */
  /* Of backward: what arrives at each output (zeros where nothing does), and the gradients to be
   * written, of all inputs but the states. Bit i of `wanted`: somebody reads that of input i. */
  const mpgluon_array *output_gradients, *input_gradients;
  uint32_t wanted;
  int32_t train;
  int32_t num_threads; /* that it may use */
  void *stream; /* on a GPU, which is the current one: the cudaStream_t to queue all work on */
  /* Memory until the function returns (on a GPU: until the work it has queued is done), aligned to
   * 64 bytes; on a GPU it is the GPU's. The next call of it gives the same memory. NULL: there is
   * not enough. */
  void *(*scratch)(const struct mpgluon_call *call, size_t size);
  void *host; /* for scratch */
  char *error;
  size_t error_size;
} mpgluon_call;

/* The text of the error, and what to return then. */
#define MPGLUON_FAILED 1
#define mpgluon_fail(call, ...) \
  (snprintf((call)->error, (call)->error_size, __VA_ARGS__), MPGLUON_FAILED)

/* --- Ops -------------------------------------------------------------------------------------- */

/* Called by one thread at a time. Results depend on what it is given alone. */
typedef int (*mpgluon_infer_function)(mpgluon_infer *call);
/* Called by the thread of a device, by those of several devices at a time, never by Python's. What
 * it writes depends on what it is given alone: calls may be left out, run twice, or (on a GPU) be
 * captured once and replayed. On a GPU it queues work on `stream`, and neither waits nor allocates
 * in other ways than by scratch. */
typedef int (*mpgluon_kernel)(const mpgluon_call *call);

enum { MPGLUON_BACKWARD_READS_OUTPUTS = 1 };

/* An op. Grows; what is not set is 0. */
typedef struct mpgluon_op {
  const char *name;    /* a C identifier */
  const char *doc;     /* for users; lines ">>> ..." at its end are an example. Or NULL */
  const char *inputs;  /* names in order: "data, weight"; one at least. "!calls" is a state, which
                          forward writes, too: an auxiliary state of symbols */
  const char *outputs; /* likewise, without states */
  const mpgluon_param *params;
  int32_t num_params;
  uint32_t dtypes; /* that the first input may have, a set */
  uint32_t flags;
  /* How many of the first inputs have a row for each example of a batch, as all outputs then do;
   * each example's row is computed from its rows, and from the other inputs. Pipelines need to
   * know. 0: it goes across the batch. */
  int32_t num_row_inputs;
  mpgluon_infer_function infer; /* NULL: all arrays are like the first input */
  /* One of them at least. An op without backward cannot be differentiated. */
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

/* The library's ops, an array. Once in a library, at file scope. */
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
