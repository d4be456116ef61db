/* Docstrings of ops, from their rows. */
#include "python/core.h"

#define KIND_NAME(KIND, name, type, noun, expected) [MPG_PARAM_##KIND] = noun,
static const char *const kind_names[] = {MPG_PARAM_KINDS(KIND_NAME)};
#undef KIND_NAME

const char *mpg_py_kind_name(mpg_param_kind kind) { return kind_names[kind]; }

PyObject *mpg_py_take_text(mpg_text *text) {
  PyObject *result = NULL;
  mpg_status status = mpg_text_status(text);
  if (status == MPG_OK)
    result = PyUnicode_FromString(mpg_text_string(text));
  else
    mpg_py_raise(status);
  mpg_text_free(text);
  return result;
}

mpg_py_row_doc mpg_py_split_doc(const mpg_op *op) {
  const char *end = strstr(op->doc, "\n>>> ");
  size_t length = end ? (size_t)(end - op->doc) : strlen(op->doc);
  const char *example = op->doc + length + strspn(op->doc + length, "\n");
  while (length > 0 && op->doc[length - 1] == '\n') length--;
  return (mpg_py_row_doc){op->doc, (int)length, example};
}

PyObject *mpg_py_op_doc(const mpg_op *op, PyObject *names, int num_inputs) {
  mpg_py_row_doc doc = mpg_py_split_doc(op);
  mpg_text text = {0};
  mpg_text_append(&text, "%.*s\n\nParameters\n----------\n", doc.length, doc.text);
  for (int i = 0; i < num_inputs; i++) {
    const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, i));
    bool star = mpg_op_variadic(op) && i == num_inputs - 1;
    mpg_text_append(&text, "%s%s : NDArray%s%s\n", star ? "*" : "", name ? name : "?",
                    mpg_op_input_optional(op, i) ? ", optional" : "",
                    mpg_op_input_mutable(op, i) ? ", also written" : "");
  }
  for (int i = 0; op->params->size > 0 && i < op->params->count; i++) {
    const mpg_param *param = &op->params->params[i];
    mpg_text_append(&text, "%s : %s", param->name, kind_names[param->kind]);
    if (param->constraint[0] && param->kind != MPG_PARAM_BOOL)
      mpg_text_append(&text, " %s", param->constraint);
    if (mpg_param_required(param))
      mpg_text_append(&text, ", required\n    %s\n", param->doc);
    else
      mpg_text_append(&text, ", default %s\n    %s\n", param->default_text, param->doc);
  }
  mpg_text_append(&text,
                  "out : NDArray or list of them, optional\n    Arrays the results are written "
                  "into.\n\nReturns\n-------\n%s\n\nDtypes: ",
                  op->outputs);
  bool first = true;
  for (int i = 0; i < MPG_DTYPE_LIMIT; i++)
    if (op->dtypes >> i & 1) {
      mpg_text_append(&text, "%s%s", first ? "" : ", ", mpg_dtype_name((mpg_dtype)i));
      first = false;
    }
  mpg_text_append(&text, ". MXNetError when shapes, dtypes or devices do not fit.");
  if (*doc.example) mpg_text_append(&text, "\n\nExamples\n--------\n%s", doc.example);
  return mpg_py_take_text(&text);
}
