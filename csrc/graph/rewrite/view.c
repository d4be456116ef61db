/* Traces reshapes, transposes and slices back to the array they are views of. */
#include "graph/rewrite/view.h"

#include <string.h>

#include "op/array/region.h"

bool mpg_view_push(mpg_view_layout *layout, int dim, int64_t size, int64_t stride) {
  if (size == 1) return true;
  mpg_factor *last = layout->count ? &layout->factors[layout->count - 1] : NULL;
  if (last && layout->dims[layout->count - 1] == dim && last->stride == size * stride) {
    last->size *= size;
    last->stride = stride;
    return true;
  }
  if (layout->count == MPG_VIEW_FACTORS) return false;
  layout->factors[layout->count] = (mpg_factor){size, stride};
  layout->dims[layout->count++] = dim;
  return true;
}

bool mpg_view_start(const mpg_shape *shape, mpg_view_layout *layout) {
  int64_t stride = mpg_shape_size(shape);
  *layout = (mpg_view_layout){.ndim = shape->ndim};
  if (stride == 0) return false;
  for (int i = 0; i < shape->ndim; i++) {
    stride /= shape->dims[i];
    if (!mpg_view_push(layout, i, shape->dims[i], stride)) return false;
  }
  return true;
}

bool mpg_view_op(const mpg_node *node) {
  if (!node->op) return false;
  if (mpg_node_is_view(node)) return mpg_node_is_reshape(node);
  switch (node->op->id) {
    case MPG_OP_transpose:
    case MPG_OP_SliceChannel:
    case MPG_OP__split_v2:
    case MPG_OP_slice:
    case MPG_OP_slice_axis: return true;
    default: return false;
  }
}

/* Distributes the layout's factors over the dimensions of another shape. Each dimension takes
 * factors, innermost first, until its size is reached. */
static bool regroup(mpg_view_layout *layout, const mpg_shape *shape) {
  mpg_factor taken[MPG_VIEW_FACTORS];
  int dims[MPG_VIEW_FACTORS], count = 0, from = layout->count - 1;
  mpg_factor rest = from >= 0 ? layout->factors[from] : (mpg_factor){1, 0};
  for (int dim = shape->ndim - 1; dim >= 0; dim--) {
    int64_t need = shape->dims[dim];
    while (need > 1) {
      if (rest.size == 1) {
        if (--from < 0) return false;
        rest = layout->factors[from];
      }
      int64_t part = need % rest.size == 0 ? rest.size : rest.size % need == 0 ? need : 0;
      if (!part || count == MPG_VIEW_FACTORS) return false;
      taken[count] = (mpg_factor){part, rest.stride};
      dims[count++] = dim;
      rest = (mpg_factor){rest.size / part, rest.stride * part};
      need /= part;
    }
  }
  if (rest.size != 1 || from > 0) return false;
  *layout = (mpg_view_layout){.ndim = shape->ndim, .offset = layout->offset};
  while (count-- > 0)
    if (!mpg_view_push(layout, dims[count], taken[count].size, taken[count].stride)) return false;
  return true;
}

static bool permute(mpg_view_layout *layout, const int *axes) {
  mpg_view_layout old = *layout;
  *layout = (mpg_view_layout){.ndim = old.ndim, .offset = old.offset};
  for (int dim = 0; dim < old.ndim; dim++)
    for (int i = 0; i < old.count; i++)
      if (old.dims[i] == axes[dim] &&
          !mpg_view_push(layout, dim, old.factors[i].size, old.factors[i].stride))
        return false;
  return true;
}

/* Keeps [begin, begin + length) of a dimension. */
static bool cut(mpg_view_layout *layout, int dim, int64_t size, int64_t begin, int64_t length) {
  if (length == size) return true;
  if (length < 1) return false;
  mpg_view_layout old = *layout;
  *layout = (mpg_view_layout){.ndim = old.ndim, .offset = old.offset};
  int64_t inner = size;
  bool first = true;
  for (int i = 0; i < old.count; i++) {
    mpg_factor factor = old.factors[i];
    if (old.dims[i] == dim) {
      inner /= factor.size;
      if (first) { /* only the outermost factor is cut */
        if (begin % inner || length % inner) return false;
        layout->offset += begin / inner * factor.stride;
        factor.size = length / inner;
      }
      first = false;
    }
    if (!mpg_view_push(layout, old.dims[i], factor.size, factor.stride)) return false;
  }
  return true;
}

static int axis_of(int64_t axis, int ndim) { return (int)(axis < 0 ? axis + ndim : axis); }

bool mpg_view_apply(const mpg_graph *graph, const mpg_node *node, uint32_t output,
                    mpg_view_layout *layout) {
  const mpg_shape *from = &mpg_graph_at(graph, mpg_node_inputs(graph, node)[0])->desc.shape;
  const mpg_shape *to = &graph->values[node->values + output].desc.shape;
  int axes[MPG_MAX_NDIM];
  if (mpg_node_is_view(node)) return regroup(layout, to);
  switch (node->op->id) {
    case MPG_OP_transpose: {
      const mpg_tuple *given = &((const mpg_transpose_params *)node->params)->axes;
      for (int i = 0; i < from->ndim; i++)
        axes[i] = given->count > 0 ? axis_of(given->values[i], from->ndim) : from->ndim - 1 - i;
      return permute(layout, axes);
    }
    case MPG_OP_SliceChannel: {
      const mpg_split_params *p = node->params;
      int axis = axis_of(p->axis, from->ndim);
      int64_t length = from->dims[axis] / p->num_outputs;
      return cut(layout, axis, from->dims[axis], length * output, length) && regroup(layout, to);
    }
    case MPG_OP__split_v2: {
      const mpg_split_v2_params *p = node->params;
      int axis = axis_of(p->axis, from->ndim);
      int64_t begin = 0, end = 0;
      if (mpg_split_part(p, from->dims[axis], (int)output, &begin, &end) != MPG_OK) return false;
      return cut(layout, axis, from->dims[axis], begin, end - begin) && regroup(layout, to);
    }
    case MPG_OP_slice:
    case MPG_OP_slice_axis: {
      mpg_region region;
      if (node->op->id == MPG_OP_slice) {
        const mpg_slice_params *p = node->params;
        if (mpg_region_make("slice", from, &p->begin, &p->end, &p->step, &region) != MPG_OK)
          return false;
      } else {
        const mpg_slice_axis_params *p = node->params;
        if (mpg_region_axis("slice_axis", from, p->axis, p->begin, &p->end, &region) != MPG_OK)
          return false;
      }
      for (int i = 0; i < from->ndim; i++)
        if (region.step[i] != 1 ||
            !cut(layout, i, from->dims[i], region.start[i], region.shape.dims[i]))
          return false;
      return true;
    }
    default: return false;
  }
}

bool mpg_view_single(const mpg_view_layout *layout, int dim, mpg_factor *factor) {
  int found = 0;
  *factor = (mpg_factor){1, 1};
  for (int i = 0; i < layout->count; i++)
    if (layout->dims[i] == dim && !found++) *factor = layout->factors[i];
  return found <= 1;
}

bool mpg_view_lead(const mpg_view_layout *layout, int ndim, mpg_lead *lead) {
  mpg_view_layout one = {.ndim = 1};
  for (int i = 0; i < layout->count && layout->dims[i] < ndim; i++)
    if (!mpg_view_push(&one, 0, layout->factors[i].size, layout->factors[i].stride)) return false;
  *lead = (mpg_lead){{1, 1}, {0, 0}};
  for (int i = 0; i < one.count && i < 2; i++) {
    lead->size[i] = one.factors[i].size;
    lead->stride[i] = one.factors[i].stride;
  }
  return one.count <= 2;
}

bool mpg_lead_agree(mpg_lead *leads, int count) {
  int64_t total = mpg_lead_size(&leads[0]), heads = 1;
  for (int i = 0; i < count; i++) {
    if (mpg_lead_size(&leads[i]) != total) return false;
    if (leads[i].size[1] == 1) continue;
    if (heads != 1 && heads != leads[i].size[1]) return false;
    heads = leads[i].size[1];
  }
  for (int i = 0; i < count; i++)
    if (leads[i].size[1] != heads)
      leads[i] =
          (mpg_lead){{total / heads, heads}, {leads[i].stride[0] * heads, leads[i].stride[0]}};
  return true;
}
