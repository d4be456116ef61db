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
static interned
    *intern_table[INTERN_BUCKETS]; /* runtime: lives as long as the process; host lock */

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

static bool parse_bool(const char *text, bool *value) {
  static const char *const words[] = {"False", "false", "0", "True", "true", "1"};
  for (int i = 0; i < 6; i++)
    if (strcmp(text, words[i]) == 0) {
      *value = i >= 3;
      return true;
    }
  return false;
}

/* One integer at *text, which moves behind it. Accepts "3", "3L" and "3.0" (Python 2 and NumPy
 * wrote such). */
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

static bool parse_int(const char *text, int64_t *value) {
  text = skip_space(text);
  bool flag = false;
  if (strcmp(text, "True") == 0 || strcmp(text, "False") == 0) {
    parse_bool(text, &flag);
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

/* A sequence "(a, b)", "[a, b]" or a single element; one callback per element. */
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

static bool parse_device(const char *text, mpg_device_id *id) {
  return mpg_device_id_parse(&text, id) && *text == 0;
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

/* Whether None is among what the parameter takes. */
static bool takes_none(const mpg_param *param) {
  return param->kind == MPG_PARAM_OPT_INT || param->kind == MPG_PARAM_OPT_FLOAT ||
         strcmp(param->default_text, "None") == 0;
}

static bool parse_value(const mpg_param *param, void *field, const char *text) {
  if (takes_none(param) && is_none(text)) {
    switch (param->kind) {
      case MPG_PARAM_OPT_INT: *(mpg_opt_int *)field = (mpg_opt_int){0}; return true;
      case MPG_PARAM_OPT_FLOAT: *(mpg_opt_float *)field = (mpg_opt_float){0}; return true;
      case MPG_PARAM_SHAPE:
        memset(field, 0, sizeof(mpg_tuple));
        ((mpg_tuple *)field)->count = -1;
        return true;
      case MPG_PARAM_FLOATS:
        memset(field, 0, sizeof(mpg_floats));
        ((mpg_floats *)field)->count = -1;
        return true;
      case MPG_PARAM_DTYPE: *(int32_t *)field = MPG_DTYPE_NONE; return true;
      case MPG_PARAM_ENUM:
        *(int32_t *)field = mpg_param_enum_find(param->constraint, "None", 4);
        return true;
      case MPG_PARAM_STRING: *(const char **)field = NULL; return true;
      case MPG_PARAM_DEVICE: *(mpg_device_id *)field = (mpg_device_id){0, 0}; return true;
      default: break;
    }
  }
  switch (param->kind) {
    case MPG_PARAM_BOOL: return parse_bool(text, field);
    case MPG_PARAM_INT: return parse_int(text, field);
    case MPG_PARAM_OPT_INT: {
      mpg_opt_int *value = field;
      value->present = 1;
      return parse_int(text, &value->value);
    }
    case MPG_PARAM_FLOAT: {
      text = skip_space(text);
      return parse_float_at(&text, field) && *skip_space(text) == 0;
    }
    case MPG_PARAM_OPT_FLOAT: {
      mpg_opt_float *value = field;
      value->present = 1;
      text = skip_space(text);
      return parse_float_at(&text, &value->value) && *skip_space(text) == 0;
    }
    case MPG_PARAM_SHAPE: {
      mpg_tuple tuple = {0};
      if (!parse_sequence(text, tuple_element, &tuple)) return false;
      *(mpg_tuple *)field = tuple;
      return true;
    }
    case MPG_PARAM_FLOATS: {
      mpg_floats floats = {0};
      if (!parse_sequence(text, floats_element, &floats)) return false;
      *(mpg_floats *)field = floats;
      return true;
    }
    case MPG_PARAM_DTYPE: {
      mpg_dtype dtype = mpg_dtype_from_name(text);
      *(int32_t *)field = dtype;
      return dtype != MPG_DTYPE_NONE;
    }
    case MPG_PARAM_ENUM: {
      int position = mpg_param_enum_find(param->constraint, text, strlen(text));
      *(int32_t *)field = position;
      return position >= 0;
    }
    case MPG_PARAM_STRING: return (*(const char **)field = mpg_intern(text)) != NULL;
    case MPG_PARAM_DEVICE: return parse_device(text, field);
  }
  return false;
}

void mpg_params_defaults(const mpg_param_table *table, void *params) {
  if (!table->size) return;
  memset(params, 0, table->size);
  for (int i = 0; i < table->count; i++) {
    const mpg_param *param = &table->params[i];
    if (!mpg_param_required(param)) {
      bool parsed = parse_value(param, (char *)params + param->offset, param->default_text);
      MPG_ASSERT(parsed); /* a default in a .def file that does not parse */
    }
  }
}

static const char *const kind_texts[] = {
    [MPG_PARAM_BOOL] = "a bool",
    [MPG_PARAM_INT] = "an integer",
    [MPG_PARAM_OPT_INT] = "an integer or None",
    [MPG_PARAM_FLOAT] = "a number",
    [MPG_PARAM_OPT_FLOAT] = "a number or None",
    [MPG_PARAM_SHAPE] = "an integer or a tuple of integers",
    [MPG_PARAM_FLOATS] = "a number or a tuple of numbers",
    [MPG_PARAM_DTYPE] = "a dtype",
    [MPG_PARAM_ENUM] = "one of",
    [MPG_PARAM_STRING] = "text",
    [MPG_PARAM_DEVICE] = "a device such as cpu(0)",
};

mpg_status mpg_params_set_text(const mpg_param_table *table, const char *op, void *params,
                               int index, const char *text) {
  const mpg_param *param = &table->params[index];
  if (!parse_value(param, (char *)params + param->offset, text))
    return mpg_fail(MPG_VALUE_ERROR, "%s: parameter %s takes %s%s%s, not '%.80s'", op, param->name,
                    kind_texts[param->kind], param->kind == MPG_PARAM_ENUM ? " " : "",
                    param->kind == MPG_PARAM_ENUM ? param->constraint : "", text);
  return mpg_params_check(table, op, params, index);
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

mpg_status mpg_params_check(const mpg_param_table *table, const char *op, const void *params,
                            int index) {
  const mpg_param *param = &table->params[index];
  const void *field = (const char *)params + param->offset;
  switch (param->kind) {
    case MPG_PARAM_INT: return check_range(param, op, (double)*(const int64_t *)field);
    case MPG_PARAM_OPT_INT: {
      const mpg_opt_int *value = field;
      return value->present ? check_range(param, op, (double)value->value) : MPG_OK;
    }
    case MPG_PARAM_FLOAT: return check_range(param, op, *(const double *)field);
    case MPG_PARAM_OPT_FLOAT: {
      const mpg_opt_float *value = field;
      return value->present ? check_range(param, op, value->value) : MPG_OK;
    }
    default: return MPG_OK;
  }
}

/* --- Printing --------------------------------------------------------------------------------- */
/* The shortest text that reads back as the same double. */
static void append_float(mpg_text *text, double value) {
  char buffer[32];
  for (int precision = 6; precision <= 17; precision++) {
    snprintf(buffer, sizeof buffer, "%.*g", precision, value);
    if (strtod(buffer, NULL) == value || isnan(value)) break;
  }
  mpg_text_append(text, "%s", buffer);
}

void mpg_params_get_text(const mpg_param_table *table, const void *params, int index,
                         mpg_text *text) {
  const mpg_param *param = &table->params[index];
  const void *field = (const char *)params + param->offset;
  switch (param->kind) {
    case MPG_PARAM_BOOL: mpg_text_append(text, *(const bool *)field ? "True" : "False"); return;
    case MPG_PARAM_INT: mpg_text_append(text, "%" PRId64, *(const int64_t *)field); return;
    case MPG_PARAM_OPT_INT: {
      const mpg_opt_int *value = field;
      if (value->present)
        mpg_text_append(text, "%" PRId64, value->value);
      else
        mpg_text_append(text, "None");
      return;
    }
    case MPG_PARAM_FLOAT: append_float(text, *(const double *)field); return;
    case MPG_PARAM_OPT_FLOAT: {
      const mpg_opt_float *value = field;
      if (value->present)
        append_float(text, value->value);
      else
        mpg_text_append(text, "None");
      return;
    }
    case MPG_PARAM_SHAPE: {
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
      return;
    }
    case MPG_PARAM_FLOATS: {
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
      return;
    }
    case MPG_PARAM_DTYPE: {
      int32_t dtype = *(const int32_t *)field;
      mpg_text_append(text, "%s",
                      dtype == MPG_DTYPE_NONE ? "None" : mpg_dtype_name((mpg_dtype)dtype));
      return;
    }
    case MPG_PARAM_ENUM: {
      int32_t position = *(const int32_t *)field;
      size_t length = 0;
      const char *word =
          position < 0 ? NULL : mpg_param_enum_word(param->constraint, position, &length);
      mpg_text_append_bytes(text, word ? word : "None", word ? length : 4);
      return;
    }
    case MPG_PARAM_STRING: {
      const char *value = *(const char *const *)field;
      mpg_text_append(text, "%s", value ? value : "None");
      return;
    }
    case MPG_PARAM_DEVICE: {
      const mpg_device_id *id = field;
      mpg_text_append(text, "%s", id->type ? mpg_device_id_text(*id).text : "None");
      return;
    }
  }
}
