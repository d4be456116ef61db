/* Dense layers for prediction. The weight has the layout of oneDNN's matmul primitive, or its plain
 * layout without oneDNN. The layout is chosen for LAYOUT_ROWS rows of data, whatever the rows of a
 * call, so products with all numbers of rows share one packed weight. */
#include <string.h>

#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/packed_weight.h"

enum { LAYOUT_ROWS = 64 };

typedef struct building {
  mpg_packing packing;
  int64_t m, n, k;
  bool bias;
} building;

#ifdef MPG_WITH_ONEDNN
static bool plain(const mpg_onednn *dnnl, dnnl_memory_desc_t *desc, int64_t rows, int64_t columns,
                  dnnl_format_tag_t tag) {
  return dnnl->memory_desc_create_with_tag(desc, 2, (dnnl_dims_t){rows, columns}, dnnl_f32, tag) ==
         dnnl_success;
}

/* Returns the primitive for `rows` rows of data and a weight in `layout`, or NULL if oneDNN has
 * none. */
static dnnl_primitive_desc_t describe(const mpg_onednn *dnnl, const building *b, int64_t rows,
                                      const_dnnl_memory_desc_t layout) {
  dnnl_primitive_desc_t desc = NULL;
  dnnl_memory_desc_t data = NULL, out = NULL, bias = NULL;
  bool good = plain(dnnl, &data, rows, b->k, dnnl_ab) && plain(dnnl, &out, rows, b->n, dnnl_ab) &&
              (!b->bias || plain(dnnl, &bias, 1, b->n, dnnl_ab)) &&
              dnnl->matmul_primitive_desc_create(&desc, dnnl->engine, data, layout, bias, out,
                                                 mpg_cpu_onednn_attributes(dnnl)) == dnnl_success;
  dnnl_memory_desc_t all[] = {data, out, bias};
  for (int i = 0; i < 3; i++)
    if (all[i]) dnnl->memory_desc_destroy(all[i]);
  return good ? desc : NULL;
}

static dnnl_primitive_desc_t choose(const mpg_onednn *dnnl, const mpg_packing *packing,
                                    dnnl_memory_desc_t *weight) {
  const building *b = (const building *)packing;
  dnnl_memory_desc_t any = NULL;
  dnnl_primitive_desc_t desc =
      plain(dnnl, weight, b->k, b->n, dnnl_ba) && plain(dnnl, &any, b->k, b->n, dnnl_format_tag_any)
          ? describe(dnnl, b, LAYOUT_ROWS, any)
          : NULL;
  if (any) dnnl->memory_desc_destroy(any);
  return desc;
}

/* Builds the product of a weight in `layout`. If no fast primitive reads this layout, each call
 * reorders the weight. The slots are data, packed weight, out and bias. */
static bool build_for(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, const building *b,
                      const_dnnl_memory_desc_t layout) {
  static const dnnl_query_t queries[4] = {dnnl_query_src_md, dnnl_query_weights_md,
                                          dnnl_query_dst_md, dnnl_query_weights_md};
  dnnl_memory_desc_t any = NULL;
  int slots[4], count = b->bias ? 4 : 3, reordered;
  dnnl_primitive_desc_t desc = describe(dnnl, b, b->m, layout);
  if (!desc || mpg_cpu_onednn_is_reference(dnnl, desc)) {
    if (desc) dnnl->primitive_desc_destroy(desc);
    if (!plain(dnnl, &any, b->k, b->n, dnnl_format_tag_any)) return false;
    desc = describe(dnnl, b, b->m, any);
    dnnl->memory_desc_destroy(any);
    if (!desc) return false;
  }
  bool good = true;
  for (int i = 0; i < count && good; i++)
    good = mpg_cpu_onednn_outer(
        dnnl, prepared, i == 1 ? layout : dnnl->primitive_desc_query_md(desc, queries[i], i == 3),
        &slots[i]);
  const_dnnl_memory_desc_t theirs = dnnl->primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
  reordered = slots[1];
  if (good && !dnnl->memory_desc_equal(theirs, layout))
    good = mpg_cpu_onednn_inner(dnnl, prepared, theirs, &reordered) &&
           mpg_cpu_onednn_reorder(dnnl, prepared, layout, slots[1], theirs, reordered);
  if (!good) {
    dnnl->primitive_desc_destroy(desc);
    return false;
  }
  return mpg_cpu_onednn_step(dnnl, prepared, desc, count, /* takes ownership of desc */
                             (const int[][2]){{DNNL_ARG_SRC, slots[0]},
                                              {DNNL_ARG_WEIGHTS, reordered},
                                              {DNNL_ARG_DST, slots[2]},
                                              {DNNL_ARG_BIAS, slots[count - 1]}});
}

static bool build_product(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *context) {
  const building *b = context;
  dnnl_memory_desc_t weight = NULL;
  dnnl_primitive_desc_t chosen = mpg_cpu_packing_choose(dnnl, &b->packing, &weight);
  if (weight) dnnl->memory_desc_destroy(weight);
  if (!chosen) return false;
  bool good =
      build_for(dnnl, prepared, b, dnnl->primitive_desc_query_md(chosen, dnnl_query_weights_md, 0));
  dnnl->primitive_desc_destroy(chosen);
  return good;
}
#endif

static building building_of(int64_t m, int64_t n, int64_t k, bool bias) {
  building b = {.m = m, .n = n, .k = k, .bias = bias};
#ifdef MPG_WITH_ONEDNN
  b.packing = (mpg_packing){.key = {.count = 4, .values = {m, n, k, bias}},
                            .pack = MPG_ONEDNN_PACK_MATMUL,
                            .run = MPG_ONEDNN_PACKED_MATMUL,
                            .choose = choose,
                            .build = build_product};
#endif
  return b;
}

mpg_status mpg_cpu_pack_fully_connected(const mpg_kernel_call *call) {
  const mpg_pack_fully_connected_params *p = call->params;
  const mpg_shape *weight = &call->inputs[0].desc.shape;
  building b = building_of(LAYOUT_ROWS, weight->dims[0], weight->dims[1], !p->no_bias);
  return mpg_cpu_pack(call, mpg_shape_size(weight) ? &b.packing : NULL);
}

mpg_status mpg_cpu_packed_fully_connected(const mpg_kernel_call *call) {
  const mpg_fully_connected_params *p = call->params;
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  const mpg_packed_header *head = call->inputs[1].data;
  int64_t n = p->num_hidden, m = mpg_shape_size(&out->desc.shape) / n;
  if (m == 0) return MPG_OK;
  int64_t k = mpg_shape_size(&data->desc.shape) / m;
  if (!head->packed) { /* runs the plain op's kernel */
    mpg_view inputs[3] = {
        *data,
        {mpg_packed_contents(call->inputs[1].data), {{.ndim = 2, .dims = {n, k}}, MPG_FLOAT32}}};
    if (!p->no_bias) inputs[2] = call->inputs[2];
    mpg_kernel_call plain = *call;
    plain.op = mpg_op_get(MPG_OP_FullyConnected);
    plain.inputs = inputs;
    return mpg_kernel_get(call->device, plain.op)(&plain);
  }
  building b = building_of(m, n, k, !p->no_bias);
#ifdef MPG_WITH_ONEDNN
  if (mpg_gemm_small(m, n, k)) b.packing.num_threads = 1;
#endif
  return mpg_cpu_packed_run(
      call, &b.packing,
      (void *[]){data->data, NULL, out->data, b.bias ? call->inputs[2].data : NULL});
}
