/* Slices, splits and concatenations whose parts are contiguous. */
#include "op/array/parts.h"
#include "op/array/region.h"

static bool find_region(const mpg_op *op, const void *params, const mpg_shape *from,
                        uint32_t output, mpg_region *region) {
  if (op->id == MPG_OP_slice_axis) {
    const mpg_slice_axis_params *p = params;
    return mpg_region_axis(op->name, from, p->axis, p->begin, &p->end, region) == MPG_OK;
  }
  if (op->id != MPG_OP__split_v2) return false;
  const mpg_split_v2_params *p = params;
  int axis;
  int64_t begin = 0, end = 0;
  if (mpg_axis_normalize(p->axis, from->ndim, op->name, &axis) != MPG_OK ||
      mpg_split_part(p, from->dims[axis], (int)output, &begin, &end) != MPG_OK)
    return false;
  mpg_opt_int last = {.value = end, .present = true};
  return mpg_region_axis(op->name, from, axis, begin, &last, region) == MPG_OK;
}

bool mpg_find_part(const mpg_op *op, const void *params, const mpg_desc *input, uint32_t output,
                   size_t *offset) {
  mpg_region region;
  if (!op || !find_region(op, params, &input->shape, output, &region)) return false;
  int64_t at = 0, stride = 1;
  bool partial = false;
  for (int i = input->shape.ndim; i-- > 0;) {
    if (partial && region.shape.dims[i] != 1) return false;
    partial |= region.shape.dims[i] != input->shape.dims[i];
    at += region.start[i] * stride;
    stride *= input->shape.dims[i];
  }
  *offset = (size_t)at * mpg_dtype_size(input->dtype);
  return true;
}

bool mpg_joins_in_order(const mpg_op *op, const void *params, const mpg_shape *output) {
  int axis;
  if (!op || op->id != MPG_OP_Concat ||
      mpg_axis_normalize(((const mpg_concat_params *)params)->dim, output->ndim, op->name, &axis))
    return false;
  return mpg_shape_product(output, 0, axis) == 1;
}
