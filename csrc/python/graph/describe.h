/* Descriptions of compiled calls for Python. New references, NULL with an exception; host lock. */
#ifndef MPG_PYTHON_GRAPH_DESCRIBE_H
#define MPG_PYTHON_GRAPH_DESCRIBE_H

#include <Python.h>

#include "compile/call_cache.h"

PyObject *mpg_py_describe_call(const mpg_cache_entry *entry);
/* Appends the fused groups of all programs. */
void mpg_py_dump_groups(const mpg_compiled *compiled, mpg_text *text);

#endif
