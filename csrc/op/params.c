/* Typed op parameters: parsing, printing and checks. */
#include "op/params.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* --- Tables from the declarations ------------------------------------------------------------- */
#define PARAM_ROW(structure, param_kind, field, default_value, range, documentation) \
  {.name = #field,                                                                   \
   .default_text = default_value,                                                    \
   .constraint = range,                                                              \
   .doc = documentation,                                                             \
   .kind = MPG_PARAM_##param_kind,                                                   \
   .offset = offsetof(mpg_##structure##_params, field)},
#define PARAM_TABLE(structure)                                                     \
  static const mpg_param structure##_rows[] = {MPG_PARAMS_##structure(PARAM_ROW)}; \
  const mpg_param_table mpg_##structure##_table = {                                \
      #structure, sizeof(mpg_##structure##_params),                                \
      sizeof structure##_rows / sizeof *structure##_rows, structure##_rows};
MPG_ALL_PARAMS(PARAM_TABLE)
const mpg_param_table mpg_none_table = {"none", 0, 0, NULL};

bool mpg_param_required(const mpg_param *param) {
  return strcmp(param->default_text, "required") == 0;
}

int mpg_params_find(const mpg_param_table *table, const char *name) {
  for (int i = 0; i < table->count; i++)
    if (strcmp(table->params[i].name, name) == 0) return i;
  return -1;
}

/* --- Interned text ---------------------------------------------------------------------------- */
typedef struct interned {
  struct interned *next;
  char text[];
} interned;
enum { INTERN_BUCKETS = 1024 };
static interned *intern_table[INTERN_BUCKETS]; /* never freed; guarded by host lock */

const char *mpg_intern(const char *text) {
  uint32_t hash = 2166136261u;
  for (const char *c = text; *c; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
  interned **bucket = &intern_table[hash % INTERN_BUCKETS];
  for (interned *entry = *bucket; entry; entry = entry->next)
    if (strcmp(entry->text, text) == 0) return entry->text;
  size_t size = strlen(text) + 1;
  interned *entry = mpg_malloc(sizeof *entry + size);
  if (!entry) return NULL;
  memcpy(entry->text, text, size);
  entry->next = *bucket;
  *bucket = entry;
  return entry->text;
}

/* --- Parsing ---------------------------------------------------------------------------------- */
static const char *skip_space(const char *text) {
  while (isspace((unsigned char)*text)) text++;
  return text;
}

static bool is_none(const char *text) {
  text = skip_space(text);
  return strncmp(text, "None", 4) == 0 && *skip_space(text + 4) == 0;
}

static bool bool_from(const char *text, bool *value) {
  static const char *const words[] = {"False", "false", "0", "True", "true", "1"};
  for (int i = 0; i < 6; i++)
    if (strcmp(text, words[i]) == 0) {
      *value = i >= 3;
      return true;
    }
  return false;
}

/* Parses one integer at *text and advances *text past it. Accepts "3", and also "3L" and "3.0",
 * which Python 2 and NumPy wrote. */
static bool parse_int_at(const char **text, int64_t *value) {
  char *end;
  errno = 0;
  long long parsed = strtoll(*text, &end, 10);
  if (end == *text || errno == ERANGE) return false;
  if (*end == 'L') end++;
  if (*end == '.') {
    end++;
    while (*end == '0') end++;
    if (isdigit((unsigned char)*end)) return false;
  }
  *value = parsed;
  *text = end;
  return true;
}

static bool int_from(const char *text, int64_t *value) {
  text = skip_space(text);
  bool flag = false;
  if (strcmp(text, "True") == 0 || strcmp(text, "False") == 0) {
    bool_from(text, &flag);
    *value = flag;
    return true;
  }
  return parse_int_at(&text, value) && *skip_space(text) == 0;
}

static bool parse_float_at(const char **text, double *value) {
  char *end;
  *value = strtod(*text, &end);
  if (end == *text) return false;
  *text = end;
  return true;
}

static bool float_from(const char *text, double *value) {
  text = skip_space(text);
  return parse_float_at(&text, value) && *skip_space(text) == 0;
}

/* Parses a sequence "(a, b)" or "[a, b]", or a single element. Calls `element` to parse each
 * element. */
static bool parse_sequence(const char *text, bool (*element)(const char **text, void *into),
                           void *into) {
  text = skip_space(text);
  char close = *text == '(' ? ')' : *text == '[' ? ']' : 0;
  if (!close) return element(&text, into) && *skip_space(text) == 0;
  text = skip_space(text + 1);
  while (*text != close) {
    if (!element(&text, into)) return false;
    text = skip_space(text);
    if (*text == ',')
      text = skip_space(text + 1);
    else if (*text != close)
      return false;
  }
  return *skip_space(text + 1) == 0;
}

static bool tuple_element(const char **text, void *into) {
  mpg_tuple *tuple = into;
  if (tuple->count >= MPG_MAX_TUPLE) return false;
  if (strncmp(*text, "None", 4) == 0) {
    *text += 4;
    tuple->values[tuple->count++] = MPG_TUPLE_NONE;
    return true;
  }
  return parse_int_at(text, &tuple->values[tuple->count]) && ++tuple->count;
}

static bool floats_element(const char **text, void *into) {
  mpg_floats *floats = into;
  return floats->count < MPG_MAX_FLOATS && parse_float_at(text, &floats->values[floats->count]) &&
         ++floats->count;
}

int mpg_param_enum_find(const char *constraint, const char *word, size_t length) {
  int position = 0;
  for (const char *start = constraint;; position++) {
    const char *end = strchr(start, '|');
    size_t size = end ? (size_t)(end - start) : strlen(start);
    if (size == length && memcmp(start, word, length) == 0) return position;
    if (!end) return -1;
    start = end + 1;
  }
}

const char *mpg_param_enum_word(const char *constraint, int position, size_t *length) {
  for (const char *start = constraint;; position--) {
    const char *end = strchr(start, '|');
    if (position == 0) {
      *length = end ? (size_t)(end - start) : strlen(start);
      return start;
    }
    if (!end) return NULL;
    start = end + 1;
  }
}

/* --- Kinds ------------------------------------------------------------------------------------ */
/* Appends the number with the fewest digits that parse to the same double. */
static void append_float(mpg_text *text, double value) {
  char buffer[32];
  for (int precision = 6; precision <= 17; precision++) {
    snprintf(buffer, sizeof buffer, "%.*g", precision, value);
    if (strtod(buffer, NULL) == value || isnan(value)) break;
  }
  mpg_text_append(text, "%s", buffer);
}

static mpg_status check_range(const mpg_param *param, const char *op, double value) {
  const char *dots = strstr(param->constraint, "..");
  if (!dots) return MPG_OK;
  bool has_low = dots != param->constraint, has_high = dots[2] != 0;
  double low = has_low ? strtod(param->constraint, NULL) : 0,
         high = has_high ? strtod(dots + 2, NULL) : 0;
  if ((has_low && !(value >= low)) || (has_high && !(value <= high)))
    return mpg_fail(MPG_VALUE_ERROR, "%s: parameter %s = %g is outside its range %s", op,
                    param->name, value, param->constraint);
  return MPG_OK;
}

/* True if the text is None and the parameter accepts it. */
static bool means_none(const mpg_param *param, const char *text) {
  return strcmp(param->default_text, "None") == 0 && is_none(text);
}

/* Functions for one parameter kind. `field` points to a value of the kind's C type. */
typedef struct param_kind {
  const char *expected; /* for error messages */
  bool (*parse)(const mpg_param *param, void *field, const char *text);
  void (*print)(const mpg_param *param, const void *field, mpg_text *text);
  /* NULL if the kind has no range. */
  mpg_status (*check)(const mpg_param *param, const char *op, const void *field);
} param_kind;

static bool parse_bool(const mpg_param *param, void *field, const char *text) {
  (void)param;
  return bool_from(text, field);
}
static void print_bool(const mpg_param *param, const void *field, mpg_text *text) {
  (void)param;
  mpg_text_append(text, *(const bool *)field ? "True" : "False");
}

static bool parse_int(const mpg_param *param, void *field, const char *text) {
  (void)param;
  return int_from(text, field);
}
static void print_int(const mpg_param *param, const void *field, mpg_text *text) {
  (void)param;
  mpg_text_append(text, "%" PRId64, *(const int64_t *)field);
}
static mpg_status check_int(const mpg_param *param, const char *op, const void *field) {
  return check_range(param, op, (double)*(const int64_t *)field);
}

static bool parse_opt_int(const mpg_param *param, void *field, const char *text) {
  (void)param;
  mpg_opt_int *value = field;
  value->present = !is_none(text);
  if (!value->present) value->value = 0;
  return !value->present || int_from(text, &value->value);
}
static void print_opt_int(const mpg_param *param, const void *field, mpg_text *text) {
  const mpg_opt_int *value = field;
  if (value->present)
    print_int(param, &value->value, text);
  else
    mpg_text_append(text, "None");
}
static mpg_status check_opt_int(const mpg_param *param, const char *op, const void *field) {
  const mpg_opt_int *value = field;
  return value->present ? check_int(param, op, &value->value) : MPG_OK;
}

static bool parse_float(const mpg_param *param, void *field, const char *text) {
  (void)param;
  return float_from(text, field);
}
static void print_float(const mpg_param *param, const void *field, mpg_text *text) {
  (void)param;
  append_float(text, *(const double *)field);
}
static mpg_status check_float(const mpg_param *param, const char *op, const void *field) {
  return check_range(param, op, *(const double *)field);
}

static bool parse_opt_float(const mpg_param *param, void *field, const char *text) {
  (void)param;
  mpg_opt_float *value = field;
  value->present = !is_none(text);
  if (!value->present) value->value = 0;
  return !value->present || float_from(text, &value->value);
}
static void print_opt_float(const mpg_param *param, const void *field, mpg_text *text) {
  const mpg_opt_float *value = field;
  if (value->present)
    print_float(param, &value->value, text);
  else
    mpg_text_append(text, "None");
}
static mpg_status check_opt_float(const mpg_param *param, const char *op, const void *field) {
  const mpg_opt_float *value = field;
  return value->present ? check_float(param, op, &value->value) : MPG_OK;
}

static bool parse_shape(const mpg_param *param, void *field, const char *text) {
  mpg_tuple tuple = {0};
  if (means_none(param, text))
    tuple.count = -1;
  else if (!parse_sequence(text, tuple_element, &tuple))
    return false;
  *(mpg_tuple *)field = tuple;
  return true;
}
static void print_shape(const mpg_param *param, const void *field, mpg_text *text) {
  (void)param;
  const mpg_tuple *tuple = field;
  if (tuple->count < 0) {
    mpg_text_append(text, "None");
    return;
  }
  mpg_text_append(text, "(");
  for (int i = 0; i < tuple->count; i++) {
    if (i) mpg_text_append(text, ", ");
    if (tuple->values[i] == MPG_TUPLE_NONE)
      mpg_text_append(text, "None");
    else
      mpg_text_append(text, "%" PRId64, tuple->values[i]);
  }
  mpg_text_append(text, tuple->count == 1 ? ",)" : ")");
}

static bool parse_floats(const mpg_param *param, void *field, const char *text) {
  mpg_floats floats = {0};
  if (means_none(param, text))
    floats.count = -1;
  else if (!parse_sequence(text, floats_element, &floats))
    return false;
  *(mpg_floats *)field = floats;
  return true;
}
static void print_floats(const mpg_param *param, const void *field, mpg_text *text) {
  (void)param;
  const mpg_floats *floats = field;
  if (floats->count < 0) {
    mpg_text_append(text, "None");
    return;
  }
  mpg_text_append(text, "(");
  for (int i = 0; i < floats->count; i++) {
    if (i) mpg_text_append(text, ", ");
    append_float(text, floats->values[i]);
  }
  mpg_text_append(text, floats->count == 1 ? ",)" : ")");
}

static bool parse_dtype(const mpg_param *param, void *field, const char *text) {
  *(int32_t *)field = mpg_dtype_from_name(text);
  return *(int32_t *)field != MPG_DTYPE_NONE || means_none(param, text);
}
static void print_dtype(const mpg_param *param, const void *field, mpg_text *text) {
  (void)param;
  int32_t dtype = *(const int32_t *)field;
  mpg_text_append(text, "%s", dtype == MPG_DTYPE_NONE ? "None" : mpg_dtype_name((mpg_dtype)dtype));
}

static bool parse_enum(const mpg_param *param, void *field, const char *text) {
  bool none = means_none(param, text);
  const char *word = none ? "None" : text;
  *(int32_t *)field = mpg_param_enum_find(param->constraint, word, strlen(word));
  return *(int32_t *)field >= 0 || none;
}
static void print_enum(const mpg_param *param, const void *field, mpg_text *text) {
  int32_t position = *(const int32_t *)field;
  size_t length = 0;
  const char *word =
      position < 0 ? NULL : mpg_param_enum_word(param->constraint, position, &length);
  mpg_text_append_bytes(text, word ? word : "None", word ? length : 4);
}

static bool parse_string(const mpg_param *param, void *field, const char *text) {
  const char **value = field;
  bool none = means_none(param, text);
  *value = none ? NULL : mpg_intern(text);
  return *value || none;
}
static void print_string(const mpg_param *param, const void *field, mpg_text *text) {
  (void)param;
  const char *value = *(const char *const *)field;
  mpg_text_append(text, "%s", value ? value : "None");
}

static bool parse_device(const mpg_param *param, void *field, const char *text) {
  mpg_device_id *id = field;
  if (!means_none(param, text)) return mpg_device_id_parse(&text, id) && *text == 0;
  *id = (mpg_device_id){0};
  return true;
}
static void print_device(const mpg_param *param, const void *field, mpg_text *text) {
  (void)param;
  const mpg_device_id *id = field;
  mpg_text_append(text, "%s", id->type ? mpg_device_id_text(*id).text : "None");
}

/* `check` functions for kinds without a range. */
#define check_bool NULL
#define check_shape NULL
#define check_floats NULL
#define check_dtype NULL
#define check_enum NULL
#define check_string NULL
#define check_device NULL

#define KIND(KIND, name, type, noun, expected) \
  [MPG_PARAM_##KIND] = {expected, parse_##name, print_##name, check_##name},
static const param_kind kinds[] = {MPG_PARAM_KINDS(KIND)};
#undef KIND

/* --- Parameters ------------------------------------------------------------------------------- */
void mpg_params_defaults(const mpg_param_table *table, void *params) {
  if (!table->size) return;
  memset(params, 0, table->size);
  for (int i = 0; i < table->count; i++) {
    const mpg_param *param = &table->params[i];
    if (!mpg_param_required(param)) {
      bool parsed =
          kinds[param->kind].parse(param, (char *)params + param->offset, param->default_text);
      MPG_ASSERT(parsed); /* every default in a .def file must parse */
    }
  }
}

mpg_status mpg_params_set_text(const mpg_param_table *table, const char *op, void *params,
                               int index, const char *text) {
  const mpg_param *param = &table->params[index];
  bool words = param->kind == MPG_PARAM_ENUM;
  if (!kinds[param->kind].parse(param, (char *)params + param->offset, text))
    return mpg_fail(MPG_VALUE_ERROR, "%s: parameter %s must be %s%s%s, got '%.80s'", op,
                    param->name, kinds[param->kind].expected, words ? " " : "",
                    words ? param->constraint : "", text);
  return mpg_params_check(table, op, params, index);
}

mpg_status mpg_params_check(const mpg_param_table *table, const char *op, const void *params,
                            int index) {
  const mpg_param *param = &table->params[index];
  const param_kind *kind = &kinds[param->kind];
  return kind->check ? kind->check(param, op, (const char *)params + param->offset) : MPG_OK;
}

void mpg_params_get_text(const mpg_param_table *table, const void *params, int index,
                         mpg_text *text) {
  const mpg_param *param = &table->params[index];
  kinds[param->kind].print(param, (const char *)params + param->offset, text);
}
