/* Dense layers for prediction: the weight comes in the layout that oneDNN's matmul wants. Without oneDNN, the weight as it was. */
#include <string.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed.h"

#ifdef MPG_WITH_ONEDNN
typedef struct building {
  int64_t m, n, k;
  bool bias;
  size_t room; /* bytes for the packed weight */
} building;

typedef struct descs {
  dnnl_memory_desc_t data, weight, out, bias, any;
} descs;

static void free_descs(const mpg_onednn *dnnl, descs *d) {
  dnnl_memory_desc_t all[] = {d->data, d->weight, d->out, d->bias, d->any};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) dnnl->memory_desc_destroy(all[i]);
}

/* The primitive, the same for packing and for the product itself. NULL: there is none. */
static dnnl_primitive_desc_t choose(const mpg_onednn *dnnl, const building *b, descs *d) {
  dnnl_dims_t data = {b->m, b->k}, weight = {b->k, b->n}, out = {b->m, b->n}, bias = {1, b->n};
  dnnl_primitive_desc_t desc = NULL;
#define PLAIN(name, dims, tag) dnnl->memory_desc_create_with_tag(&d->name, 2, dims, dnnl_f32, tag) == dnnl_success
  bool good = PLAIN(data, data, dnnl_ab) && PLAIN(weight, weight, dnnl_ba) && PLAIN(out, out, dnnl_ab) && (!b->bias || PLAIN(bias, bias, dnnl_ab)) &&
              PLAIN(any, weight, dnnl_format_tag_any);
#undef PLAIN
  if (!good || dnnl->matmul_primitive_desc_create(&desc, dnnl->engine, d->data, d->any, d->bias, d->out, mpg_cpu_onednn_attributes(dnnl)) != dnnl_success)
    return NULL;
  return desc;
}

/* Slots: the plain weight, the packed one. */
static bool build_pack(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *context) {
  const building *b = context;
  descs d = {0};
  int from, to;
  dnnl_primitive_desc_t desc = choose(dnnl, b, &d);
  bool good = desc != NULL;
  if (good) {
    const_dnnl_memory_desc_t theirs = dnnl->primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    good = dnnl->memory_desc_get_size(theirs) <= b->room && mpg_cpu_onednn_outer(dnnl, prepared, d.weight, &from) &&
           mpg_cpu_onednn_outer(dnnl, prepared, theirs, &to) && mpg_cpu_onednn_reorder(dnnl, prepared, d.weight, from, theirs, to);
    dnnl->primitive_desc_destroy(desc);
  }
  free_descs(dnnl, &d);
  return good;
}

/* Slots: data, packed weight, out, bias. */
static bool build_product(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *context) {
  const building *b = context;
  descs d = {0};
  int slots[4];
  dnnl_primitive_desc_t desc = choose(dnnl, b, &d);
  bool good = desc != NULL;
  if (good) {
    good = mpg_cpu_onednn_outer(dnnl, prepared, d.data, &slots[0]) &&
           mpg_cpu_onednn_outer(dnnl, prepared, dnnl->primitive_desc_query_md(desc, dnnl_query_weights_md, 0), &slots[1]) &&
           mpg_cpu_onednn_outer(dnnl, prepared, d.out, &slots[2]) && (!b->bias || mpg_cpu_onednn_outer(dnnl, prepared, d.bias, &slots[3]));
    if (!good) dnnl->primitive_desc_destroy(desc);
  }
  good = good && mpg_cpu_onednn_step(dnnl, prepared, desc, b->bias ? 4 : 3, /* takes desc over */
                                     (const int[][2]){{DNNL_ARG_SRC, slots[0]}, {DNNL_ARG_WEIGHTS, slots[1]}, {DNNL_ARG_DST, slots[2]}, {DNNL_ARG_BIAS, slots[3]}});
  free_descs(dnnl, &d);
  return good;
}

static mpg_onednn_key key_of(const building *b, mpg_onednn_kind kind) {
  return (mpg_onednn_key){.kind = kind, .count = 4, .values = {b->m, b->n, b->k, b->bias}};
}
#endif

MPG_CPU_KERNEL(pack_fully_connected) {
  const mpg_pack_fully_connected_params *p = call->params;
  const mpg_view *weight = &call->inputs[0], *packed = &call->outputs[0];
  mpg_packed_header *head = packed->data;
  void *contents = mpg_packed_contents(packed->data);
  size_t size = (size_t)mpg_shape_size(&packed->desc.shape) * sizeof(float), plain = (size_t)mpg_shape_size(&weight->desc.shape) * sizeof(float);
  memset(packed->data, 0, size);
  head->num_threads = call->num_threads;
#ifdef MPG_WITH_ONEDNN
  building b = {p->rows, weight->desc.shape.dims[0], weight->desc.shape.dims[1], !p->no_bias, size - MPG_PACKED_HEADER * sizeof(float)};
  mpg_onednn_key key = key_of(&b, MPG_ONEDNN_PACK_MATMUL);
  const mpg_onednn_prepared *prepared = plain ? mpg_cpu_onednn_find(call, &key, build_pack, &b) : NULL;
  if (prepared) {
    head->packed = 1;
    return mpg_packed_run(call, prepared, (void *const[]){weight->data, contents});
  }
#else
  (void)p;
#endif
  if (plain) memcpy(contents, weight->data, plain);
  return MPG_OK;
}

MPG_CPU_KERNEL(packed_fully_connected) {
  const mpg_fully_connected_params *p = call->params;
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  const mpg_packed_header *head = call->inputs[1].data;
  void *weight = mpg_packed_contents(call->inputs[1].data);
  int64_t n = p->num_hidden, m = mpg_shape_size(&out->desc.shape) / n;
  if (m == 0) return MPG_OK;
  int64_t k = mpg_shape_size(&data->desc.shape) / m;
  if (!head->packed) { /* by the kernel of the plain op */
    mpg_view inputs[3] = {*data, {weight, {{.ndim = 2, .dims = {n, k}}, MPG_FLOAT32}}};
    if (!p->no_bias) inputs[2] = call->inputs[2];
    mpg_kernel_call plain = *call;
    plain.op = mpg_op_get(MPG_OP_FullyConnected);
    plain.inputs = inputs;
    return mpg_kernel_get(call->device, plain.op)(&plain);
  }
#ifdef MPG_WITH_ONEDNN
  building b = {m, n, k, !p->no_bias, 0};
  mpg_kernel_call as_packed = *call;
  as_packed.num_threads = head->num_threads;
  mpg_onednn_key key = key_of(&b, MPG_ONEDNN_PACKED_MATMUL);
  const mpg_onednn_prepared *prepared = mpg_cpu_onednn_find(&as_packed, &key, build_product, &b);
  if (prepared) return mpg_packed_run(&as_packed, prepared, (void *const[]){data->data, weight, out->data, b.bias ? call->inputs[2].data : NULL});
#endif
  return mpg_fail(MPG_ERROR, "%s: the packed weight does not fit the data", call->op->name);
}
