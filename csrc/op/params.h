/* Typed op parameters.
 *
 * A parameter struct is declared once, as a list macro MPG_PARAMS_<struct>(P) of rows
 *     P(struct, KIND, name, "default", "constraint", "documentation")
 * in op/params.def; from it come the C struct mpg_<struct>_params, the table the registry parses
 * and prints with, Python signatures, docs and stubs. Structs are plain data without pointers to
 * own (strings are interned), zeroed before they are filled, so they can be copied, hashed and
 * compared as bytes.
 *
 * KIND      C field                 text, and what Python may pass
 * BOOL      bool                    True/False/1/0
 * INT       int64_t                 an integer
 * OPT_INT   mpg_opt_int             an integer or None
 * FLOAT     double                  a number
 * OPT_FLOAT mpg_opt_float           a number or None
 * SHAPE     mpg_tuple               an integer or a tuple of integers; None where the default is
 * None (count -1); elements may be None in slices' begin/end/step (MPG_TUPLE_NONE) FLOATS
 * mpg_floats              a number or a tuple of numbers DTYPE     int32_t (mpg_dtype)     a dtype
 * name, NumPy dtype or type; None where the default is None (MPG_DTYPE_NONE) ENUM      int32_t one
 * of the words of the constraint "a|b|c": its position; None where the default is None (-1) STRING
 * const char *            text, interned; None where the default is None (NULL) DEVICE
 * mpg_device_id           a Context or "cpu(0)"; default "None" means the current context (type 0)
 *
 * default: the text form, or "required". constraint: "" or, for INT and FLOAT kinds, "low..high"
 * with either side empty. Defaults are those of MXNet 1.9.1. Any thread may read; parsing happens
 * under the host lock.
 */
#ifndef MPG_OP_PARAMS_H
#define MPG_OP_PARAMS_H

#include "base/text.h"
#include "device/device.h"
#include "tensor/shape.h"

enum { MPG_MAX_FLOATS = 64, MPG_MAX_TUPLE = 2 * MPG_MAX_NDIM + 4 };
#define MPG_TUPLE_NONE INT64_MIN

typedef struct mpg_tuple {
  int32_t count; /* -1: None */
  int64_t values[MPG_MAX_TUPLE];
} mpg_tuple;
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

typedef enum mpg_param_kind {
  MPG_PARAM_BOOL,
  MPG_PARAM_INT,
  MPG_PARAM_OPT_INT,
  MPG_PARAM_FLOAT,
  MPG_PARAM_OPT_FLOAT,
  MPG_PARAM_SHAPE,
  MPG_PARAM_FLOATS,
  MPG_PARAM_DTYPE,
  MPG_PARAM_ENUM,
  MPG_PARAM_STRING,
  MPG_PARAM_DEVICE
} mpg_param_kind;

typedef struct mpg_param {
  const char *name, *default_text, *constraint, *doc;
  mpg_param_kind kind;
  size_t offset;
} mpg_param;

typedef struct mpg_param_table {
  const char *name;
  size_t size; /* of the struct; 0 for ops without parameters */
  int count;
  const mpg_param *params;
} mpg_param_table;

#define MPG_FIELD_BOOL bool
#define MPG_FIELD_INT int64_t
#define MPG_FIELD_OPT_INT mpg_opt_int
#define MPG_FIELD_FLOAT double
#define MPG_FIELD_OPT_FLOAT mpg_opt_float
#define MPG_FIELD_SHAPE mpg_tuple
#define MPG_FIELD_FLOATS mpg_floats
#define MPG_FIELD_DTYPE int32_t
#define MPG_FIELD_ENUM int32_t
#define MPG_FIELD_STRING const char *
#define MPG_FIELD_DEVICE mpg_device_id

#include "op/params.def"

#define MPG_PARAM_FIELD(structure, kind, name, default_text, constraint, doc) MPG_FIELD_##kind name;
#define MPG_PARAM_STRUCT(structure)         \
  typedef struct mpg_##structure##_params { \
    MPG_PARAMS_##structure(MPG_PARAM_FIELD) \
  } mpg_##structure##_params;
MPG_ALL_PARAMS(MPG_PARAM_STRUCT)
MPG_PARAM_STRUCT(none)
#undef MPG_PARAM_STRUCT
#undef MPG_PARAM_FIELD

/* The table of one struct: &mpg_<struct>_table. */
#define MPG_PARAM_TABLE(structure) extern const mpg_param_table mpg_##structure##_table;
MPG_ALL_PARAMS(MPG_PARAM_TABLE)
MPG_PARAM_TABLE(none)
#undef MPG_PARAM_TABLE

/* Fills `params` (table->size bytes) with the defaults; required ones stay zero and are reported by
 * mpg_params_missing. */
void mpg_params_defaults(const mpg_param_table *table, void *params);
int mpg_params_find(const mpg_param_table *table, const char *name); /* index, or -1 */
/* Sets one parameter from its text form, checking the constraint. `op` is for the error text. */
mpg_status mpg_params_set_text(const mpg_param_table *table, const char *op, void *params,
                               int index, const char *text);
/* Checks a value that was stored directly (by a binding) against kind and constraint. */
mpg_status mpg_params_check(const mpg_param_table *table, const char *op, const void *params,
                            int index);
/* Appends the text form, as MXNet writes it into -symbol.json: "True", "(3, 3)", "None", "0.9",
 * "relu". */
void mpg_params_get_text(const mpg_param_table *table, const void *params, int index,
                         mpg_text *text);
bool mpg_param_required(const mpg_param *param);
/* The position of a word in "a|b|c", or -1; and the word at a position (its length in *length). */
int mpg_param_enum_find(const char *constraint, const char *word, size_t length);
const char *mpg_param_enum_word(const char *constraint, int position, size_t *length);

/* The one pooled copy of `text`, which lives as long as the process; NULL when out of memory. */
const char *mpg_intern(const char *text);

#endif
