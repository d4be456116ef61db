/* Convolutions for prediction: the weight comes in the layout that oneDNN's primitive wants, and
 * what is added behind is done by the primitive. relu is not: as the primitive has it, NaN becomes
 * 0. */
#include <string.h>

#include "kernels/cpu/products/packed_weight.h"
#include "op/layers/convolution.h"

typedef struct building {
  mpg_packing packing;
  const mpg_packed_convolution_params *p;
  mpg_convolution c;
} building;

#ifdef MPG_WITH_ONEDNN

typedef struct shapes {
  int ndim, wdim;
  dnnl_dims_t data, weight, out, bias, stride, dilate, pad;
} shapes;

static shapes shapes_of(const mpg_convolution *c) {
  const mpg_window *w = &c->window;
  int grouped = c->groups > 1;
  shapes s = {.ndim = w->ndim + 2,
              .wdim = w->ndim + 2 + grouped,
              .data = {c->batch, c->channels},
              .out = {c->batch, c->filters},
              .bias = {c->filters}};
  if (grouped) s.weight[0] = c->groups;
  s.weight[grouped] = c->filters / c->groups;
  s.weight[grouped + 1] = c->channels / c->groups;
  for (int i = 0; i < w->ndim; i++) {
    s.data[i + 2] = w->in[i];
    s.weight[s.wdim - w->ndim + i] = w->kernel[i];
    s.out[i + 2] = w->out[i];
    s.stride[i] = w->stride[i];
    s.dilate[i] = w->dilate[i] - 1;
    s.pad[i] = w->pad[i];
  }
  return s;
}

/* Row-major, or with axis 1 behind the others. */
static bool plain_desc(const mpg_onednn *dnnl, dnnl_memory_desc_t *desc, int ndim,
                       const dnnl_dims_t dims, bool last) {
  dnnl_dims_t strides;
  int64_t stride = 1;
  if (last) strides[1] = 1, stride = dims[1];
  for (int i = ndim - 1; i >= 0; i--) {
    if (last && i == 1) continue;
    strides[i] = stride;
    stride *= dims[i];
  }
  return dnnl->memory_desc_create_with_strides(desc, ndim, dims, dnnl_f32, strides) == dnnl_success;
}

typedef struct descs {
  dnnl_memory_desc_t data, weight, out, bias, any_data, any_weight, any_out;
} descs;

static void free_descs(const mpg_onednn *dnnl, descs *d) {
  dnnl_memory_desc_t all[] = {d->data,     d->weight,     d->out,    d->bias,
                              d->any_data, d->any_weight, d->any_out};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) dnnl->memory_desc_destroy(all[i]);
}

static bool make_descs(const mpg_onednn *dnnl, const building *b, const shapes *s, descs *d) {
  bool last = b->p->channels_last;
#define ANY(name, ndim, dims)                                                               \
  dnnl->memory_desc_create_with_tag(&d->name, ndim, dims, dnnl_f32, dnnl_format_tag_any) == \
      dnnl_success
  return plain_desc(dnnl, &d->data, s->ndim, s->data, last) &&
         plain_desc(dnnl, &d->weight, s->wdim, s->weight, false) &&
         plain_desc(dnnl, &d->out, s->ndim, s->out, last) &&
         (b->p->no_bias || plain_desc(dnnl, &d->bias, 1, s->bias, false)) &&
         ANY(any_data, s->ndim, s->data) && ANY(any_weight, s->wdim, s->weight) &&
         ANY(any_out, s->ndim, s->out);
#undef ANY
}

static bool is_reference(const mpg_onednn *dnnl, dnnl_primitive_desc_t desc) {
  const char *name = NULL;
  return dnnl->primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name) ==
             dnnl_success &&
         name && !strncmp(name, "ref", 3);
}

static bool make_attributes(const mpg_onednn *dnnl, const building *b, const descs *d,
                            dnnl_primitive_attr_t *attributes) {
  dnnl_post_ops_t ops = NULL;
  if (dnnl->primitive_attr_create(attributes) != dnnl_success) return false;
  bool good =
      dnnl->primitive_attr_set_scratchpad_mode(*attributes, dnnl_scratchpad_mode_user) ==
          dnnl_success &&
      dnnl->post_ops_create(&ops) == dnnl_success &&
      (!b->p->add || dnnl->post_ops_append_binary(ops, dnnl_binary_add, d->out) == dnnl_success) &&
      dnnl->primitive_attr_set_post_ops(*attributes, ops) == dnnl_success;
  if (ops) dnnl->post_ops_destroy(ops);
  return good;
}

/* The primitive, the same for packing and for the convolution itself. NULL: there is none worth
 * having. */
static dnnl_primitive_desc_t choose(const mpg_onednn *dnnl, const building *b, const shapes *s,
                                    const descs *d) {
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_primitive_desc_t desc = NULL;
  bool good = make_attributes(dnnl, b, d, &attributes);
  for (int attempt = b->p->channels_last ? 0 : 1; good && attempt < 2 && !desc; attempt++) {
    dnnl_memory_desc_t data = attempt ? d->any_data : d->data, out = attempt ? d->any_out : d->out;
    if (dnnl->convolution_forward_primitive_desc_create(
            &desc, dnnl->engine, dnnl_forward_training, dnnl_convolution_direct, data,
            d->any_weight, d->bias, out, s->stride, s->dilate, s->pad, s->pad,
            attributes) != dnnl_success)
      desc = NULL;
    if (desc && is_reference(dnnl, desc)) {
      dnnl->primitive_desc_destroy(desc);
      desc = NULL;
    }
  }
  if (attributes) dnnl->primitive_attr_destroy(attributes);
  return desc;
}

static dnnl_primitive_desc_t choose_to_pack(const mpg_onednn *dnnl, const mpg_packing *packing,
                                            dnnl_memory_desc_t *weight) {
  const building *b = (const building *)packing;
  shapes s = shapes_of(&b->c);
  descs d = {0};
  dnnl_primitive_desc_t desc = make_descs(dnnl, b, &s, &d) ? choose(dnnl, b, &s, &d) : NULL;
  *weight = d.weight;
  d.weight = NULL;
  free_descs(dnnl, &d);
  return desc;
}

/* Slots: data, packed weight, out, bias, what is added. */
static bool build_convolution(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                              void *context) {
  const building *b = context;
  shapes s = shapes_of(&b->c);
  descs d = {0};
  int data = 0, weight = 0, out = 0, bias = 0, added = 0, used_data, used_out;
  dnnl_primitive_desc_t desc = make_descs(dnnl, b, &s, &d) ? choose(dnnl, b, &s, &d) : NULL;
  dnnl_memory_desc_t result = NULL;
  bool good = desc != NULL;
  if (!good) goto done;
  const_dnnl_memory_desc_t their_data = dnnl->primitive_desc_query_md(desc, dnnl_query_src_md, 0);
  const_dnnl_memory_desc_t their_out = dnnl->primitive_desc_query_md(desc, dnnl_query_dst_md, 0);
  good =
      mpg_cpu_onednn_outer(dnnl, prepared, d.data, &data) &&
      mpg_cpu_onednn_outer(
          dnnl, prepared, dnnl->primitive_desc_query_md(desc, dnnl_query_weights_md, 0), &weight) &&
      mpg_cpu_onednn_outer(dnnl, prepared, d.out, &out) &&
      (b->p->no_bias || mpg_cpu_onednn_outer(dnnl, prepared, d.bias, &bias)) &&
      (!b->p->add || mpg_cpu_onednn_outer(dnnl, prepared, d.out, &added));
  used_data = data;
  used_out = out;
  if (good && !dnnl->memory_desc_equal(their_data, d.data))
    good = mpg_cpu_onednn_inner(dnnl, prepared, their_data, &used_data) &&
           mpg_cpu_onednn_reorder(dnnl, prepared, d.data, data, their_data, used_data);
  bool back = good && !dnnl->memory_desc_equal(their_out, d.out);
  if (back)
    good = mpg_cpu_onednn_inner(dnnl, prepared, their_out, &used_out) &&
           dnnl->memory_desc_clone(&result, their_out) == dnnl_success;
  if (!good) {
    dnnl->primitive_desc_destroy(desc);
    goto done;
  }
  int args[5][2] = {{DNNL_ARG_SRC, used_data},
                    {DNNL_ARG_WEIGHTS, weight},
                    {DNNL_ARG_DST, used_out}},
      count = 3;
  if (!b->p->no_bias) args[count][0] = DNNL_ARG_BIAS, args[count++][1] = bias;
  if (b->p->add)
    args[count][0] = DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, args[count++][1] = added;
  good = mpg_cpu_onednn_step(dnnl, prepared, desc, count,
                             (const int (*)[2])args); /* takes desc over */
  if (good && back) good = mpg_cpu_onednn_reorder(dnnl, prepared, result, used_out, d.out, out);
done:
  if (result) dnnl->memory_desc_destroy(result);
  free_descs(dnnl, &d);
  return good;
}

#endif

static void set_building(building *b, const mpg_packed_convolution_params *p,
                         const mpg_shape *data) {
  *b = (building){.p = p};
  mpg_packed_convolution_set(&b->c, p, data);
#ifdef MPG_WITH_ONEDNN
  const mpg_convolution *c = &b->c;
  const mpg_window *w = &c->window;
  const int64_t *const parts[6] = {w->in, w->out, w->kernel, w->stride, w->dilate, w->pad};
  mpg_onednn_key *key = &b->packing.key;
  b->packing =
      (mpg_packing){.key = {.count = 6,
                            .values = {c->batch, c->channels, c->filters, c->groups, w->ndim,
                                       p->no_bias | p->add << 1 | p->channels_last << 2}},
                    .pack = MPG_ONEDNN_PACK_CONVOLUTION,
                    .run = MPG_ONEDNN_PACKED_CONVOLUTION,
                    .choose = choose_to_pack,
                    .build = build_convolution};
  for (int part = 0; part < 6; part++)
    for (int i = 0; i < w->ndim; i++) key->values[key->count++] = parts[part][i];
#endif
}

MPG_CPU_KERNEL(pack_convolution) {
  const mpg_packed_convolution_params *p = call->params;
  mpg_shape data = {.ndim = p->shape.count};
  for (int i = 0; i < data.ndim; i++) data.dims[i] = p->shape.values[i];
  building b;
  set_building(&b, p, &data);
  return mpg_cpu_pack(call, mpg_shape_size(&call->inputs[0].desc.shape) && mpg_shape_size(&data)
                                ? &b.packing
                                : NULL);
}

typedef struct behind {
  float *out;
  const float *added;
  bool relu;
} behind;

static void finish(void *context, int64_t begin, int64_t end) {
  const behind *t = context;
  for (int64_t i = begin; i < end; i++) {
    float y = t->added ? t->out[i] + t->added[i] : t->out[i];
    t->out[i] = t->relu && y < 0 ? 0 : y;
  }
}

/* With the plain weight, by the kernel of the plain op. */
static mpg_status run_plain(const mpg_kernel_call *call, void *weight) {
  const mpg_packed_convolution_params *p = call->params;
  const mpg_op *op =
      mpg_op_get(p->channels_last ? MPG_OP__convolution_channels_last : MPG_OP_Convolution);
  mpg_convolution_params params;
  mpg_packed_params_to(p, &params);
  mpg_convolution c;
  mpg_packed_convolution_set(&c, p, &call->inputs[0].desc.shape);
  mpg_view inputs[3] = {call->inputs[0],
                        {weight, {mpg_packed_weight_shape(p, c.channels), MPG_FLOAT32}}};
  if (!p->no_bias) inputs[2] = call->inputs[2];
  mpg_kernel_call plain = *call;
  plain.op = op;
  plain.params = &params;
  plain.inputs = inputs;
  plain.num_inputs = p->no_bias ? 2 : 3;
  return mpg_kernel_get(call->device, op)(&plain);
}

MPG_CPU_KERNEL(packed_convolution) {
  const mpg_packed_convolution_params *p = call->params;
  const mpg_packed_header *head = call->inputs[1].data;
  int64_t size = mpg_shape_size(&call->outputs[0].desc.shape);
  behind t = {.out = call->outputs[0].data, .relu = p->relu};
  if (size == 0) return MPG_OK;
  if (head->packed) {
    building b;
    set_building(&b, p, &call->inputs[0].desc.shape);
    void *outer[5] = {call->inputs[0].data, NULL, call->outputs[0].data};
    for (int i = 2; i < call->num_inputs; i++) outer[i + 1] = call->inputs[i].data;
    MPG_TRY(mpg_cpu_packed_run(call, &b.packing, outer));
  } else {
    MPG_TRY(run_plain(call, mpg_packed_contents(call->inputs[1].data)));
    if (p->add) t.added = call->inputs[call->num_inputs - 1].data;
  }
  if (t.added || t.relu) mpg_cpu_parallel_for(call, size, 16384, finish, &t);
  return MPG_OK;
}
