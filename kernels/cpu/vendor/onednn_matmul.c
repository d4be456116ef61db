/* Builds oneDNN's matrix products. */
#include "kernels/cpu/vendor/onednn_matmul.h"

#ifdef MPG_WITH_ONEDNN
typedef struct descs {
  dnnl_memory_desc_t a, b, c, bias;
} descs;

static bool make_descs(const mpg_onednn *dnnl, const mpg_onednn_matmul *s, descs *d) {
  int first = s->batch > 1 ? 0 : 1, ndim = 3 - first;
  dnnl_dims_t a = {s->batch, s->m, s->k}, b = {s->batch, s->k, s->n}, c = {s->batch, s->m, s->n},
              bias = {1, 1, s->n};
  dnnl_dims_t a_strides = {s->m * s->k, s->ta ? 1 : s->k, s->ta ? s->m : 1},
              b_strides = {s->k * s->n, s->tb ? 1 : s->n, s->tb ? s->k : 1},
              c_strides = {s->m * s->ldc, s->ldc, 1}, bias_strides = {s->n, s->n, 1};
#define DESC(x, dtype)                                                                          \
  (dnnl->memory_desc_create_with_strides(&d->x, ndim, x + first, dtype, x##_strides + first) == \
   dnnl_success)
  dnnl_data_type_t b_dtype = s->b_dtype ? s->b_dtype : s->dtype;
  return DESC(a, s->dtype) && DESC(c, s->result) && (!s->bias || DESC(bias, s->dtype)) &&
         (!s->packed ? DESC(b, b_dtype)
                     : dnnl->memory_desc_create_with_tag(&d->b, ndim, b + first, b_dtype,
                                                         dnnl_format_tag_any) == dnnl_success);
#undef DESC
}

static void free_descs(const mpg_onednn *dnnl, const descs *d) {
  dnnl_memory_desc_t all[] = {d->a, d->b, d->c, d->bias};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) dnnl->memory_desc_destroy(all[i]);
}

/* Returns the primitive desc. Returns NULL if oneDNN fails, or if it has only a reference
 * implementation and the dtype is not float32. */
static dnnl_primitive_desc_t describe(const mpg_onednn *dnnl, const mpg_onednn_matmul *s,
                                      const descs *d) {
  dnnl_primitive_attr_t own = s->add ? mpg_cpu_onednn_attributes_to_sum(dnnl) : NULL;
  const_dnnl_primitive_attr_t attributes = s->add ? own : mpg_cpu_onednn_attributes(dnnl);
  dnnl_primitive_desc_t desc = NULL;
  bool good =
      attributes && dnnl->matmul_primitive_desc_create(&desc, dnnl->engine, d->a, d->b, d->bias,
                                                       d->c, attributes) == dnnl_success;
  if (own) dnnl->primitive_attr_destroy(own);
  if (good && (s->dtype == dnnl_f32 || !mpg_cpu_onednn_is_reference(dnnl, desc))) return desc;
  if (good) dnnl->primitive_desc_destroy(desc);
  return NULL;
}

/* Returns the panel width in vectors if `chosen` is a layout of pairs_packing.h, else 0. */
static int panel_width(const mpg_onednn *dnnl, const mpg_onednn_matmul *s,
                       const_dnnl_memory_desc_t chosen) {
  static const dnnl_format_tag_t tags[] = {dnnl_BA16a16b2a, dnnl_BA16a32b2a, dnnl_BA16a48b2a,
                                           dnnl_BA16a64b2a};
  int width = 0;
  MPG_ASSERT(!s->b_dtype);
  for (int i = 0; i < (int)(sizeof tags / sizeof *tags) && !width; i++) {
    dnnl_memory_desc_t tagged;
    if (dnnl->memory_desc_create_with_tag(&tagged, 2, (dnnl_dims_t){s->k, s->n}, s->dtype,
                                          tags[i]) != dnnl_success)
      continue;
    if (dnnl->memory_desc_equal(tagged, chosen)) width = i + 1;
    dnnl->memory_desc_destroy(tagged);
  }
  return width;
}

static bool build(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *context) {
  const mpg_onednn_matmul *s = context;
  descs d = {0};
  int slots[4];
  bool good = make_descs(dnnl, s, &d);
  dnnl_primitive_desc_t desc = good ? describe(dnnl, s, &d) : NULL;
  const_dnnl_memory_desc_t b = d.b;
  if (desc && s->packed) {
    b = dnnl->primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
    int width = b ? panel_width(dnnl, s, b) : 0;
    prepared->offset[1] = (size_t)width;
    good = width > 0;
  }
  good = good && desc && mpg_cpu_onednn_outer(dnnl, prepared, d.a, &slots[0]) &&
         mpg_cpu_onednn_outer(dnnl, prepared, b, &slots[1]) &&
         mpg_cpu_onednn_outer(dnnl, prepared, d.c, &slots[2]) &&
         (!s->bias || mpg_cpu_onednn_outer(dnnl, prepared, d.bias, &slots[3]));
  if (good)
    good = mpg_cpu_onednn_step(dnnl, prepared, desc, s->bias ? 4 : 3,
                               (const int[][2]){{DNNL_ARG_SRC, slots[0]},
                                                {DNNL_ARG_WEIGHTS, slots[1]},
                                                {DNNL_ARG_DST, slots[2]},
                                                {DNNL_ARG_BIAS, slots[3]}});
  else if (desc)
    dnnl->primitive_desc_destroy(desc);
  free_descs(dnnl, &d);
  return good;
}

const mpg_onednn_prepared *mpg_cpu_onednn_matmul_find(const mpg_kernel_call *call,
                                                      const mpg_onednn_matmul *s) {
  mpg_onednn_key key = {.kind = MPG_ONEDNN_MATMUL,
                        .count = 9,
                        .values = {s->batch, s->m, s->n, s->k, s->ldc,
                                   s->ta | s->tb << 1 | s->bias << 2 | s->add << 3 | s->packed << 4,
                                   (int64_t)s->dtype, (int64_t)s->result, (int64_t)s->b_dtype}};
  return mpg_cpu_onednn_find(call, &key, build, (void *)s);
}
#endif
