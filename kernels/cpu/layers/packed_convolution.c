/* Convolutions for prediction. The weight has the layout of oneDNN's primitive, which also adds the
 * bias and a residual array. relu stays a separate step because oneDNN's relu turns NaN into 0. */
#include "kernels/cpu/products/packed_weight.h"
#include "kernels/cpu/vendor/onednn_convolution.h"

typedef struct building {
  mpg_packing packing;
  mpg_convolution c;
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_convolution how;
  /* The same convolution of one sample. Its primitive chooses the layout of the packed weight, so
   * batches of all sizes share one packed weight. */
  mpg_convolution single;
#endif
} building;

#ifdef MPG_WITH_ONEDNN
static dnnl_primitive_desc_t choose(const mpg_onednn *dnnl, const mpg_packing *packing,
                                    dnnl_memory_desc_t *weight) {
  const building *b = (const building *)packing;
  mpg_onednn_convolution how = b->how;
  how.c = &b->single;
  return mpg_cpu_onednn_convolution_choose(dnnl, &how, weight);
}
static bool build(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *context) {
  building *b = context;
  dnnl_memory_desc_t weight = NULL;
  dnnl_primitive_desc_t chosen = choose(dnnl, &b->packing, &weight);
  if (weight) dnnl->memory_desc_destroy(weight);
  if (!chosen) return false;
  b->how.layout = dnnl->primitive_desc_query_md(chosen, dnnl_query_weights_md, 0);
  bool good = mpg_cpu_onednn_convolution_build(dnnl, prepared, &b->how);
  b->how.layout = NULL;
  dnnl->primitive_desc_destroy(chosen);
  return good;
}
#endif

static void set_building(building *b, const mpg_packed_convolution_params *p,
                         const mpg_shape *data) {
  *b = (building){0};
  mpg_packed_convolution_set(&b->c, p, data);
#ifdef MPG_WITH_ONEDNN
  b->single = b->c;
  b->single.batch = 1;
  b->how = (mpg_onednn_convolution){.c = &b->c,
                                    .dtype = dnnl_f32,
                                    .direction = MPG_FORWARD,
                                    .bias = !p->no_bias,
                                    .packed = true,
                                    .add = p->add};
  b->packing = (mpg_packing){.key = mpg_onednn_convolution_key(&b->how),
                             .pack = MPG_ONEDNN_PACK_CONVOLUTION,
                             .run = MPG_ONEDNN_PACKED_CONVOLUTION,
                             .choose = choose,
                             .build = build};
#endif
}

mpg_status mpg_cpu_pack_convolution(const mpg_kernel_call *call) {
  const mpg_packed_convolution_params *p = call->params;
  mpg_shape data = {.ndim = p->shape.count};
  for (int i = 0; i < data.ndim; i++) data.dims[i] = p->shape.values[i];
  if (data.dims[0] > 1) data.dims[0] = 1;
  building b;
  set_building(&b, p, &data);
  return mpg_cpu_pack(call, mpg_shape_size(&call->inputs[0].desc.shape) && mpg_shape_size(&data)
                                ? &b.packing
                                : NULL);
}

/* Arguments of `finish`, which runs the elementwise steps after the convolution. */
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

/* Runs the plain op's kernel with the plain weight. */
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

mpg_status mpg_cpu_packed_convolution(const mpg_kernel_call *call) {
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
