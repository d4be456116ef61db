/* Builds oneDNN's convolutions: descs, the choice of a primitive, and the steps that run it. */
#include "kernels/cpu/vendor/onednn_convolution.h"

#ifdef MPG_WITH_ONEDNN
#include <string.h>

enum { DATA, WEIGHT, OUT, BIAS, ADDED, ARRAYS };

/* A convolution's arrays as oneDNN sees them. `ours` has the caller's layouts. `any` lets the
 * primitive choose the layout; the bias has only one. An added array has the result's layout.
 */
typedef struct arrays {
  int ndim[ADDED], channel[ADDED]; /* channel: index of the channel axis in dims */
  bool last[ADDED];                /* channels come after the spatial axes */
  dnnl_dims_t dims[ADDED], stride, dilate, pad;
  dnnl_memory_desc_t ours[ADDED], any[BIAS];
} arrays;

mpg_onednn_key mpg_onednn_convolution_key(const mpg_onednn_convolution *how) {
  const mpg_convolution *c = how->c;
  const mpg_window *w = &c->window;
  const int64_t *const parts[6] = {w->in, w->out, w->kernel, w->stride, w->dilate, w->pad};
  mpg_onednn_key key = {
      .count = 8,
      .values = {c->batch, c->channels, c->filters, c->groups, w->ndim,
                 how->bias | how->add << 1 | (int64_t)how->dtype << 2, (int64_t)c->layout,
                 (int64_t)how->weight_dtype << 8 | (int64_t)how->result}};
  for (int part = 0; part < 6; part++)
    for (int i = 0; i < w->ndim; i++) key.values[key.count++] = parts[part][i];
  return key;
}

static arrays arrays_of(const mpg_convolution *c) {
  const mpg_window *w = &c->window;
  int ndim = (int)w->ndim + 2, grouped = c->groups > 1;
  bool data_last = c->layout != MPG_CHANNELS_FIRST;
  arrays a = {.ndim = {ndim, ndim + grouped, ndim, 1},
              .channel = {1, grouped + 1, 1, 0},
              .last = {data_last, c->layout == MPG_CHANNELS_LAST, data_last, false},
              .dims = {{c->batch, c->channels}, {c->groups}, {c->batch, c->filters}, {c->filters}}};
  int64_t *weight = a.dims[WEIGHT] + grouped; /* dims after the group axis, if any */
  weight[0] = c->filters / c->groups;
  weight[1] = c->channels / c->groups;
  for (int i = 0; i < w->ndim; i++) {
    a.dims[DATA][i + 2] = w->in[i];
    weight[i + 2] = w->kernel[i];
    a.dims[OUT][i + 2] = w->out[i];
    a.stride[i] = w->stride[i];
    a.dilate[i] = w->dilate[i] - 1;
    a.pad[i] = w->pad[i];
  }
  return a;
}

/* Creates the desc of a dense array. If `last`, the channels (axis `channel` of dims) are innermost
 * in memory. */
static bool our_desc(const mpg_onednn *dnnl, dnnl_memory_desc_t *desc, int ndim,
                     dnnl_data_type_t dtype, const dnnl_dims_t dims, bool last, int channel) {
  dnnl_dims_t strides;
  int64_t stride = 1;
  if (last) strides[channel] = stride, stride = dims[channel];
  for (int i = ndim - 1; i >= 0; i--) {
    if (last && i == channel) continue;
    strides[i] = stride;
    stride *= dims[i];
  }
  return dnnl->memory_desc_create_with_strides(desc, ndim, dims, dtype, strides) == dnnl_success;
}

static dnnl_data_type_t dtype_of(const mpg_onednn_convolution *how, int array) {
  dnnl_data_type_t own = array == WEIGHT ? how->weight_dtype : array == OUT ? how->result : 0;
  return own ? own : how->dtype;
}

static bool make_descs(const mpg_onednn *dnnl, const mpg_onednn_convolution *how, arrays *a) {
  for (int i = 0; i < (how->bias ? ADDED : BIAS); i++)
    if (!our_desc(dnnl, &a->ours[i], a->ndim[i], dtype_of(how, i), a->dims[i], a->last[i],
                  a->channel[i]) ||
        (i < BIAS &&
         dnnl->memory_desc_create_with_tag(&a->any[i], a->ndim[i], a->dims[i], dtype_of(how, i),
                                           dnnl_format_tag_any) != dnnl_success))
      return false;
  return true;
}

static void free_descs(const mpg_onednn *dnnl, const arrays *a) {
  for (int i = 0; i < ADDED; i++)
    if (a->ours[i]) dnnl->memory_desc_destroy(a->ours[i]);
  for (int i = 0; i < BIAS; i++)
    if (a->any[i]) dnnl->memory_desc_destroy(a->any[i]);
}

/* --- The primitive ---------------------------------------------------------------------------- */

/* Returns the primitive desc for arrays in these layouts, or NULL if oneDNN has none. */
static dnnl_primitive_desc_t describe(const mpg_onednn *dnnl, const mpg_onednn_convolution *how,
                                      const arrays *a, const const_dnnl_memory_desc_t *descs) {
  const int64_t *stride = a->stride, *dilate = a->dilate, *pad = a->pad;
  dnnl_primitive_attr_t own =
      how->add ? mpg_cpu_onednn_attributes_to_add(dnnl, a->ours[OUT]) : NULL;
  const_dnnl_primitive_attr_t attributes = how->add ? own : mpg_cpu_onednn_attributes(dnnl);
  dnnl_primitive_desc_t desc = NULL;
  dnnl_status_t status;
  if (!attributes) return NULL;
  if (how->direction == MPG_FORWARD)
    status = dnnl->convolution_forward_primitive_desc_create(
        &desc, dnnl->engine, dnnl_forward_training, dnnl_convolution_direct, descs[0], descs[1],
        a->ours[BIAS], descs[2], stride, dilate, pad, pad, attributes);
  else if (how->direction == MPG_BACKWARD_DATA)
    status = dnnl->convolution_backward_data_primitive_desc_create(
        &desc, dnnl->engine, dnnl_convolution_direct, descs[0], descs[1], descs[2], stride, dilate,
        pad, pad, NULL, attributes);
  else
    status = dnnl->convolution_backward_weights_primitive_desc_create(
        &desc, dnnl->engine, dnnl_convolution_direct, descs[0], descs[1], NULL, descs[2], stride,
        dilate, pad, pad, NULL, attributes);
  if (own) dnnl->primitive_attr_destroy(own);
  return status == dnnl_success ? desc : NULL;
}

/* Like `describe`, but returns NULL for a reference implementation. */
static dnnl_primitive_desc_t describe_fast(const mpg_onednn *dnnl,
                                           const mpg_onednn_convolution *how, const arrays *a,
                                           const const_dnnl_memory_desc_t *descs) {
  dnnl_primitive_desc_t desc = describe(dnnl, how, a, descs);
  if (!desc || !mpg_cpu_onednn_is_reference(dnnl, desc)) return desc;
  dnnl->primitive_desc_destroy(desc);
  return NULL;
}

/* Returns the primitive desc. Channels-last data keeps its layout if oneDNN has a fast primitive
 * for it; the primitive chooses all other layouts. If a fast primitive reads a packed weight as it
 * is, it is preferred. Only float32 with a plain weight falls back to a reference implementation.
 */
static dnnl_primitive_desc_t choose(const mpg_onednn *dnnl, const mpg_onednn_convolution *how,
                                    const arrays *a) {
  for (int reorder = how->layout == NULL; reorder < 2; reorder++) {
    const_dnnl_memory_desc_t weight = reorder ? a->any[WEIGHT] : how->layout;
    const_dnnl_memory_desc_t as_it_lies[] = {a->ours[DATA], weight, a->ours[OUT]},
                             any[] = {a->any[DATA], weight, a->any[OUT]};
    dnnl_primitive_desc_t desc = a->last[DATA] ? describe_fast(dnnl, how, a, as_it_lies) : NULL;
    if (!desc)
      desc = how->packed || how->dtype != dnnl_f32 ? describe_fast(dnnl, how, a, any)
                                                   : describe(dnnl, how, a, any);
    if (desc) return desc;
  }
  return NULL;
}

dnnl_primitive_desc_t mpg_cpu_onednn_convolution_choose(const mpg_onednn *dnnl,
                                                        const mpg_onednn_convolution *how,
                                                        dnnl_memory_desc_t *weight) {
  arrays a = arrays_of(how->c);
  dnnl_primitive_desc_t desc = make_descs(dnnl, how, &a) ? choose(dnnl, how, &a) : NULL;
  *weight = a.ours[WEIGHT];
  a.ours[WEIGHT] = NULL;
  free_descs(dnnl, &a);
  return desc;
}

/* --- Steps ------------------------------------------------------------------------------------ */

/* Adds the step that runs the primitive, and takes ownership of `desc`. If the primitive's layouts
 * differ from the slots', also adds reorders before and after the step. */
static bool add_steps(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                      const mpg_onednn_convolution *how, const arrays *a,
                      dnnl_primitive_desc_t desc) {
  static const dnnl_query_t queries[3][3] = {
      {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
      {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
      {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
  static const int names[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                  {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                  {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
  int result = how->direction == MPG_FORWARD         ? OUT
               : how->direction == MPG_BACKWARD_DATA ? DATA
                                                     : WEIGHT;
  int args[ARRAYS][2], count = BIAS, slots[BIAS];
  const_dnnl_memory_desc_t theirs[BIAS], given[BIAS];
  bool good = true;
  for (int i = 0; i < BIAS && good; i++) {
    theirs[i] = dnnl->primitive_desc_query_md(desc, queries[how->direction][i], 0);
    given[i] = !how->packed || i != WEIGHT ? a->ours[i] : how->layout ? how->layout : theirs[i];
    good = mpg_cpu_onednn_outer(dnnl, prepared, given[i], &slots[i]);
  }
  if (good && how->bias) {
    args[count][0] = DNNL_ARG_BIAS;
    good = mpg_cpu_onednn_outer(dnnl, prepared, a->ours[BIAS], &args[count++][1]);
  }
  if (good && how->add) {
    args[count][0] = DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1;
    good = mpg_cpu_onednn_outer(dnnl, prepared, a->ours[OUT], &args[count++][1]);
  }
  for (int i = 0; i < BIAS && good; i++) {
    args[i][0] = names[how->direction][i];
    args[i][1] = slots[i];
    if (dnnl->memory_desc_equal(theirs[i], given[i])) continue;
    good = mpg_cpu_onednn_inner(dnnl, prepared, theirs[i], &args[i][1]);
    if (good && i != result)
      good = mpg_cpu_onednn_reorder(dnnl, prepared, given[i], slots[i], theirs[i], args[i][1]);
  }
  /* mpg_cpu_onednn_step destroys the primitive desc and with it the queried descs, so reordering
   * the result back needs a copy of its desc. */
  dnnl_memory_desc_t result_desc = NULL;
  bool reorder_back = good && args[result][1] != slots[result];
  if (reorder_back) good = dnnl->memory_desc_clone(&result_desc, theirs[result]) == dnnl_success;
  if (good)
    good = mpg_cpu_onednn_step(dnnl, prepared, desc, count, (const int (*)[2])args);
  else
    dnnl->primitive_desc_destroy(desc);
  if (good && reorder_back)
    good = mpg_cpu_onednn_reorder(dnnl, prepared, result_desc, args[result][1], given[result],
                                  slots[result]);
  if (result_desc) dnnl->memory_desc_destroy(result_desc);
  return good;
}

bool mpg_cpu_onednn_convolution_build(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                                      void *context) {
  const mpg_onednn_convolution *how = context;
  arrays a = arrays_of(how->c);
  dnnl_primitive_desc_t desc = make_descs(dnnl, how, &a) ? choose(dnnl, how, &a) : NULL;
  bool good = desc && add_steps(dnnl, prepared, how, &a, desc);
  free_descs(dnnl, &a);
  return good;
}

#endif
