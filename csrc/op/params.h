/* Typed op parameters.
 *
 * A parameter struct is declared once, as a list macro MPG_PARAMS_<struct>(P) of rows
 *     P(struct, KIND, name, "default", "constraint", "documentation")
 * in op/params.def. The C struct mpg_<struct>_params, the table for parsing and printing, and the
 * Python signatures, docs and stubs are generated from this list. Structs are plain data that own
 * no pointers (strings are interned) and are zeroed before they are filled, so they can be copied,
 * hashed and compared as bytes.
 *
 * MPG_PARAM_KINDS lists the kinds: their C type, text form, and accepted Python values.
 *
 * The default is a text form, or "required". The constraint is "", or "low..high" for INT and FLOAT
 * kinds, where either side may be empty. Defaults are the same as in MXNet 1.9.1. Any thread may
 * read; parsing requires the host lock.
 */
#ifndef MPG_OP_PARAMS_H
#define MPG_OP_PARAMS_H

#include <string.h>

#include "base/text.h"
#include "device/device.h"
#include "tensor/shape.h"

enum { MPG_MAX_FLOATS = 64, MPG_MAX_TUPLE = 2 * MPG_MAX_NDIM + 4 };
#define MPG_TUPLE_NONE INT64_MIN

typedef struct mpg_tuple {
  int32_t count; /* -1 means None */
  int64_t values[MPG_MAX_TUPLE];
} mpg_tuple;
static inline mpg_tuple mpg_shape_tuple(const mpg_shape *shape) {
  mpg_tuple tuple;
  memset(&tuple, 0, sizeof tuple);
  tuple.count = shape->ndim;
  for (int i = 0; i < shape->ndim; i++) tuple.values[i] = shape->dims[i];
  return tuple;
}
typedef struct mpg_floats {
  int32_t count;
  double values[MPG_MAX_FLOATS];
} mpg_floats;
typedef struct mpg_opt_int {
  int64_t value;
  int64_t present; /* 0 or 1 */
} mpg_opt_int;
typedef struct mpg_opt_float {
  double value;
  int64_t present;
} mpg_opt_float;

/* One row per kind: K(KIND, name, C type, noun in docs, noun in errors). The functions of a kind
 * are in tables generated from this list: parse_<name> and print_<name> in op/params.c, from_<name>
 * in python/op/params.c. A missing function is a compile error.
 *
 * BOOL       True, False, 1 or 0. A call that gives the array <name> sets use_<name> if the
 *            constraint of use_<name> is "given".
 * INT        an integer
 * OPT_INT    an integer or None
 * FLOAT      a number
 * OPT_FLOAT  a number or None
 * SHAPE      an integer or a tuple of integers, or None (count -1) if the default is None. Elements
 *            may be None (MPG_TUPLE_NONE) in begin, end and step of slices.
 * FLOATS     a number or a tuple of numbers
 * DTYPE      a dtype's name, NumPy dtype or type, stored as an mpg_dtype, or None (MPG_DTYPE_NONE)
 *            if the default is None
 * ENUM       a name from the constraint "a|b|c", stored as its index, or None (-1) if the default
 *            is None
 * STRING     text, stored interned, or None (NULL) if the default is None
 * DEVICE     a Context or "cpu(0)". The default "None" means the current context (type 0). */
#define MPG_PARAM_KINDS(K)                                                             \
  K(BOOL, bool, bool, "boolean", "a bool")                                             \
  K(INT, int, int64_t, "integer", "an integer")                                        \
  K(OPT_INT, opt_int, mpg_opt_int, "integer or None", "an integer or None")            \
  K(FLOAT, float, double, "number", "a number")                                        \
  K(OPT_FLOAT, opt_float, mpg_opt_float, "number or None", "a number or None")         \
  K(SHAPE, shape, mpg_tuple, "tuple of integers", "an integer or a tuple of integers") \
  K(FLOATS, floats, mpg_floats, "tuple of numbers", "a number or a tuple of numbers")  \
  K(DTYPE, dtype, int32_t, "dtype", "a dtype")                                         \
  K(ENUM, enum, int32_t, "one of", "one of")                                           \
  K(STRING, string, const char *, "string", "text")                                    \
  K(DEVICE, device, mpg_device_id, "Context", "a device such as cpu(0)")

typedef enum mpg_param_kind {
#define MPG_PARAM_KIND(KIND, name, type, noun, expected) MPG_PARAM_##KIND,
  MPG_PARAM_KINDS(MPG_PARAM_KIND)
#undef MPG_PARAM_KIND
} mpg_param_kind;

/* Defines the C types of fields, such as mpg_field_INT. */
#define MPG_PARAM_TYPE(KIND, name, type, noun, expected) typedef type mpg_field_##KIND;
MPG_PARAM_KINDS(MPG_PARAM_TYPE)
#undef MPG_PARAM_TYPE

typedef struct mpg_param {
  const char *name, *default_text, *constraint, *doc;
  mpg_param_kind kind;
  size_t offset;
} mpg_param;

typedef struct mpg_param_table {
  const char *name;
  size_t size; /* size of the struct; 0 for ops without parameters */
  int count;
  const mpg_param *params;
} mpg_param_table;

#include "op/params.def"

#define MPG_PARAM_FIELD(structure, kind, name, default_text, constraint, doc) mpg_field_##kind name;
#define MPG_PARAM_STRUCT(structure)         \
  typedef struct mpg_##structure##_params { \
    MPG_PARAMS_##structure(MPG_PARAM_FIELD) \
  } mpg_##structure##_params;
MPG_ALL_PARAMS(MPG_PARAM_STRUCT)
MPG_PARAM_STRUCT(none)
#undef MPG_PARAM_STRUCT
#undef MPG_PARAM_FIELD

/* Declares the tables of all structs, such as mpg_<struct>_table. */
#define MPG_PARAM_TABLE(structure) extern const mpg_param_table mpg_##structure##_table;
MPG_ALL_PARAMS(MPG_PARAM_TABLE)
MPG_PARAM_TABLE(none)
#undef MPG_PARAM_TABLE

/* Fills `params` (table->size bytes) with the defaults. Required parameters stay zero; the caller
 * must check that they are set. */
void mpg_params_defaults(const mpg_param_table *table, void *params);
int mpg_params_find(const mpg_param_table *table, const char *name); /* index, or -1 */
/* Sets one parameter from its text form and checks the constraint. Errors name `op`. */
mpg_status mpg_params_set_text(const mpg_param_table *table, const char *op, void *params,
                               int index, const char *text);
/* Checks a parameter's value against its kind and constraint, for language bindings that store
 * values directly. */
mpg_status mpg_params_check(const mpg_param_table *table, const char *op, const void *params,
                            int index);
/* Appends the text form that MXNet writes to -symbol.json: "True", "(3, 3)", "None", "0.9",
 * "relu". */
void mpg_params_get_text(const mpg_param_table *table, const void *params, int index,
                         mpg_text *text);
bool mpg_param_required(const mpg_param *param);
/* Returns the index of a name in "a|b|c", or -1. */
int mpg_param_enum_find(const char *constraint, const char *word, size_t length);
/* Returns the name at an index and stores its length. */
const char *mpg_param_enum_word(const char *constraint, int position, size_t *length);

/* Returns the interned copy of `text`, which is never freed; NULL if out of memory. */
const char *mpg_intern(const char *text);

#endif
