/* Slicing of a loop's data along the first axis, and stacking of its output rows. */
#include "compile/loop_rows.h"

#include <string.h>

#include "autograd/autograd.h"
#include "autograd/tape.h"
#include "autograd/trace.h"
#include "op/invoke.h"

enum { MOST_ARRAYS = 512 }; /* maximum number of outputs or inputs of one op */

/* Slices rows [begin, begin + count) into one array per row. All are results of the same op, so
 * that their gradient is also a single op. */
static mpg_status cut(mpg_array *whole, int64_t begin, int64_t count, mpg_array *slices) {
  mpg_array made = {0}, *input = whole;
  mpg_slice_axis_params part;
  mpg_split_params split;
  mpg_params_defaults(mpg_op_get(MPG_OP_slice_axis)->params, &part);
  mpg_params_defaults(mpg_op_get(MPG_OP_SliceChannel)->params, &split);
  part.axis = 0;
  part.begin = begin;
  part.end = (mpg_opt_int){.value = begin + count, .present = 1};
  split.num_outputs = count;
  split.axis = 0;
  split.squeeze_axis = whole->tensor.desc.shape.ndim > 1 || whole->numpy;
  if (whole->tensor.desc.shape.dims[0] != count) {
    MPG_TRY(mpg_call(mpg_op_get(MPG_OP_slice_axis), &part, &input, 1, &made, 1, NULL));
    input = &made;
  }
  mpg_status status =
      mpg_call(mpg_op_get(MPG_OP_SliceChannel), &split, &input, 1, slices, (int)count, NULL);
  mpg_array_clear(&made);
  return status;
}

mpg_status mpg_loop_slices(mpg_array *whole, int64_t count, mpg_array *slices) {
  bool on_tape = mpg_autograd_recording() && whole->node && !whole->node->consumed;
  memset(slices, 0, (size_t)count * sizeof *slices);
  if (on_tape || mpg_trace_takes(whole)) {
    for (int64_t begin = 0; begin < count; begin += MOST_ARRAYS) {
      int64_t size = count - begin < MOST_ARRAYS ? count - begin : MOST_ARRAYS;
      MPG_TRY(cut(whole, begin, size, slices + begin));
    }
    return MPG_OK;
  }
  mpg_desc row = whole->tensor.desc;
  if (row.shape.ndim > 1 || whole->numpy) { /* rows of a vector have the shape (1,) in mx.nd */
    row.shape.ndim--;
    memmove(row.shape.dims, whole->tensor.desc.shape.dims + 1,
            (size_t)row.shape.ndim * sizeof *row.shape.dims);
  } else {
    row.shape.dims[0] = 1;
  }
  size_t bytes = mpg_desc_bytes(&row);
  for (int64_t i = 0; i < count; i++) {
    slices[i] = (mpg_array){
        .tensor = {whole->tensor.storage, whole->tensor.offset + (size_t)i * bytes, row},
        .numpy = whole->numpy};
    mpg_tensor_retain(&slices[i].tensor);
  }
  return MPG_OK;
}

/* Joins `count` arrays, at most MOST_ARRAYS, with a single op. If `stacks`, stacks them along a new
 * first axis; otherwise concatenates them along their first axis. Consecutive arrays are `stride`
 * structs apart. */
static mpg_status join_few(mpg_array *arrays, size_t stride, size_t count, bool stacks,
                           mpg_array *joined) {
  mpg_array *pointers[MOST_ARRAYS];
  mpg_stack_params stack;
  mpg_concat_params concat;
  mpg_params_defaults(mpg_op_get(MPG_OP_stack)->params, &stack);
  mpg_params_defaults(mpg_op_get(MPG_OP_Concat)->params, &concat);
  concat.dim = 0;
  for (size_t i = 0; i < count; i++) pointers[i] = &arrays[i * stride];
  stack.num_args = concat.num_args = (int64_t)count;
  return mpg_call(mpg_op_get(stacks ? MPG_OP_stack : MPG_OP_Concat),
                  stacks ? (void *)&stack : &concat, pointers, (int)count, joined, 1, NULL);
}

/* Stacks any number of arrays along a new first axis. If there are more than MOST_ARRAYS, stacks
 * groups of them and concatenates the results. */
static mpg_status stack(mpg_loop_joined *space, mpg_array *arrays, size_t stride, size_t count,
                        mpg_array *joined) {
  if (count <= MOST_ARRAYS) return join_few(arrays, stride, count, true, joined);
  size_t num_parts = (count + MOST_ARRAYS - 1) / MOST_ARRAYS;
  MPG_TRY(mpg_grow((void **)&space->joined, &space->capacity, num_parts, sizeof *space->joined));
  mpg_array *parts = space->joined;
  mpg_status status = MPG_OK;
  size_t made = num_parts;
  memset(parts, 0, num_parts * sizeof *parts);
  for (size_t k = 0; k < num_parts; k++) {
    size_t begin = k * MOST_ARRAYS,
           size = count - begin < MOST_ARRAYS ? count - begin : MOST_ARRAYS;
    MPG_GOTO(join_few(arrays + begin * stride, stride, size, true, &parts[k]));
  }
  for (; num_parts > MOST_ARRAYS; num_parts = (num_parts + MOST_ARRAYS - 1) / MOST_ARRAYS)
    for (size_t k = 0; k * MOST_ARRAYS < num_parts; k++) {
      /* In place: k <= begin, so parts[k] was already read by this or an earlier concatenation. */
      size_t begin = k * MOST_ARRAYS,
             size = num_parts - begin < MOST_ARRAYS ? num_parts - begin : MOST_ARRAYS;
      mpg_array whole = {0};
      MPG_GOTO(join_few(parts + begin, 1, size, false, &whole));
      mpg_array_clear_all(parts + begin, size);
      parts[k] = whole;
    }
  status = join_few(parts, 1, num_parts, false, joined);
fail:
  mpg_array_clear_all(parts, made);
  return status;
}

static mpg_status zeros(const mpg_loop_output *output, int64_t rows, mpg_array *array) {
  const mpg_shape *shape = &output->desc.shape;
  if (shape->ndim + 1 > MPG_MAX_NDIM)
    return mpg_fail(
        MPG_VALUE_ERROR,
        "the outputs of a loop would have more than %d axes, one more than those of its steps",
        MPG_MAX_NDIM);
  mpg_full_params params;
  memset(&params, 0, sizeof params);
  params.shape.count = shape->ndim + 1;
  params.shape.values[0] = rows;
  for (int i = 0; i < shape->ndim; i++) params.shape.values[i + 1] = shape->dims[i];
  params.dtype = output->desc.dtype;
  array->numpy = output->numpy;
  mpg_device *device;
  MPG_TRY(mpg_device_get(output->device, &device));
  mpg_invocation call = {.op = mpg_op_get(MPG_OP__full),
                         .params = &params,
                         .num_outputs = 1,
                         .outputs = &array->tensor,
                         .device = device};
  return mpg_invoke(&call);
}

mpg_status mpg_loop_stack(mpg_array *rows, size_t stride, int64_t count,
                          const mpg_loop_output *output, int64_t limit, mpg_loop_joined *space,
                          mpg_array *joined) {
  if (!count) return zeros(output, limit, joined);
  if (count == limit) return stack(space, rows, stride, (size_t)count, joined);
  mpg_array parts[2] = {{.node = NULL}, {.node = NULL}};
  mpg_status status = stack(space, rows, stride, (size_t)count, &parts[0]);
  if (status == MPG_OK) status = zeros(output, limit - count, &parts[1]);
  if (status == MPG_OK) status = join_few(parts, 1, 2, false, joined);
  mpg_array_clear_all(parts, 2);
  return status;
}
