/* Descriptions of compiled calls for Python. Functions that return an object return a new
 * reference, or NULL with an exception set on failure. Threads: callers hold the host lock. */
#ifndef MPG_PYTHON_GRAPH_DESCRIBE_H
#define MPG_PYTHON_GRAPH_DESCRIBE_H

#include <Python.h>

#include "compile/call_cache.h"

PyObject *mpg_py_describe_call(const mpg_cache_entry *entry);
/* Returns the parameters of a node that differ from their defaults, as a dict of strings. */
PyObject *mpg_py_node_params(const mpg_node *node);
/* Appends the text form of the fused groups in the forward and backward programs. */
void mpg_py_dump_groups(const mpg_compiled *compiled, mpg_text *text);

#endif
