/* Products computed panel by panel, with the weight packed once. */
#include "kernels/cpu/products/panels.h"

#include <string.h>

#include "base/memory.h"
#include "device/device.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/packed_weight.h"

#ifdef MPG_WITH_ONEDNN
#include <omp.h>

typedef struct panel_shape {
  mpg_packing packing;
  const mpg_product *product;
  bool bias;
} panel_shape;

typedef struct panel_descs {
  dnnl_memory_desc_t a, b, any, c, bias;
} panel_descs;

static void free_descs(const mpg_onednn *dnnl, panel_descs *d) {
  dnnl_memory_desc_t all[] = {d->a, d->b, d->any, d->c, d->bias};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]) dnnl->memory_desc_destroy(all[i]);
}

/* Describes the product of one panel on one thread, with the weight in the primitive's preferred
 * layout. */
static bool describe(const mpg_onednn *dnnl, const panel_shape *s, panel_descs *d,
                     dnnl_primitive_desc_t *desc) {
  const mpg_product *p = s->product;
  dnnl_dims_t a = {p->panel, p->k}, b = {p->k, p->n}, c = {p->panel, p->n}, bias = {1, p->n};
  dnnl_dims_t a_strides = {p->k, 1},
              b_strides = {p->transposed ? 1 : p->n, p->transposed ? p->k : 1},
              c_strides = {p->n, 1};
  int before = omp_get_max_threads();
  omp_set_num_threads(1);
  bool good =
      dnnl->memory_desc_create_with_strides(&d->a, 2, a, dnnl_f32, a_strides) == dnnl_success &&
      dnnl->memory_desc_create_with_strides(&d->b, 2, b, dnnl_f32, b_strides) == dnnl_success &&
      dnnl->memory_desc_create_with_tag(&d->any, 2, b, dnnl_f32, dnnl_format_tag_any) ==
          dnnl_success &&
      dnnl->memory_desc_create_with_strides(&d->c, 2, c, dnnl_f32, c_strides) == dnnl_success &&
      (!s->bias || dnnl->memory_desc_create_with_strides(&d->bias, 2, bias, dnnl_f32, c_strides) ==
                       dnnl_success) &&
      dnnl->matmul_primitive_desc_create(desc, dnnl->engine, d->a, d->any, d->bias, d->c,
                                         mpg_cpu_onednn_attributes(dnnl)) == dnnl_success;
  omp_set_num_threads(before);
  return good;
}

static dnnl_primitive_desc_t choose(const mpg_onednn *dnnl, const mpg_packing *packing,
                                    dnnl_memory_desc_t *weight) {
  panel_descs d = {0};
  dnnl_primitive_desc_t desc = NULL;
  if (!describe(dnnl, (const panel_shape *)packing, &d, &desc)) desc = NULL;
  *weight = d.b;
  d.b = NULL;
  free_descs(dnnl, &d);
  return desc;
}

/* Builds the product of one panel. The slots are a, packed weight, c and bias. */
static bool build_panel(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *context) {
  const panel_shape *s = context;
  panel_descs d = {0};
  dnnl_primitive_desc_t desc = NULL;
  int slots[4];
  bool good = describe(dnnl, s, &d, &desc);
  good = good && mpg_cpu_onednn_outer(dnnl, prepared, d.a, &slots[0]) &&
         mpg_cpu_onednn_outer(dnnl, prepared,
                              dnnl->primitive_desc_query_md(desc, dnnl_query_weights_md, 0),
                              &slots[1]) &&
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

/* Prepares oneDNN's products and packs the weight. Sets *packed to true if oneDNN computes the
 * panels. */
static mpg_status pack(const mpg_kernel_call *call, int threads, mpg_panels *panels, bool *packed) {
  const mpg_product *p = &panels->product;
  panel_shape shape = {{.choose = choose, .room = SIZE_MAX}, p, panels->bias != NULL};
  mpg_kernel_call single = *call;
  single.num_threads = 1;
  *packed = false;
  for (int t = -1; t < threads; t++) {
    mpg_onednn_key key = {.kind = t < 0 ? MPG_ONEDNN_PACK_PANELS : MPG_ONEDNN_PANEL,
                          .count = 6,
                          .values = {p->panel, p->n, p->k, p->transposed, shape.bias, t}};
    const mpg_onednn_prepared *found = mpg_cpu_onednn_find(
        t < 0 ? call : &single, &key, t < 0 ? mpg_cpu_build_pack : build_panel, &shape);
    if (!found) return MPG_OK;
    if (t >= 0) panels->prepared[t] = found;
    if (t >= 0 && found->scratch > panels->scratch_bytes) panels->scratch_bytes = found->scratch;
  }
  panels->scratch_bytes = mpg_align_up(panels->scratch_bytes, 4096);
  mpg_onednn_key key = {.kind = MPG_ONEDNN_PACK_PANELS,
                        .count = 6,
                        .values = {p->panel, p->n, p->k, p->transposed, shape.bias, -1}};
  const mpg_onednn_prepared *packing = mpg_cpu_onednn_find(call, &key, mpg_cpu_build_pack, &shape);
  if (!packing) return MPG_OK;
  size_t inner = mpg_align_up(packing->scratch, 64);
  char *memory = mpg_device_scratch(
      call->device, packing->offset[1] + inner + (size_t)threads * panels->scratch_bytes);
  if (!memory) return MPG_DEVICE_OUT_OF_MEMORY;
  panels->packed = memory;
  panels->scratch = memory + packing->offset[1] + inner;
  *packed = true;
  return mpg_cpu_onednn_run(call, packing, (void *const[]){(void *)panels->b, memory},
                            memory + packing->offset[1]);
}
#endif

mpg_status mpg_cpu_panels_begin(const mpg_kernel_call *call, const mpg_product *product,
                                const mpg_panel_tail *tail, int threads, mpg_panels *panels) {
  *panels = (mpg_panels){.product = *product};
  panels->product.panel = mpg_product_panel(product, call->num_threads);
  panels->count = (product->m + panels->product.panel - 1) / panels->product.panel;
  if (call->op->id == MPG_OP__winograd_convolution)
    return mpg_cpu_winograd_begin(call, tail, threads, panels);
  panels->a = call->inputs[0].data;
  panels->b = call->inputs[1].data;
  panels->bias = call->num_inputs == 3 ? call->inputs[2].data : NULL;
#ifdef MPG_WITH_ONEDNN
  bool packed;
  MPG_TRY(pack(call, threads, panels, &packed));
  if (!packed) memset(panels->prepared, 0, sizeof panels->prepared);
#else
  (void)threads;
#endif
  return MPG_OK;
}

mpg_status mpg_cpu_panel(const mpg_kernel_call *call, const mpg_panels *panels, int thread,
                         int64_t panel, float *out) {
  const mpg_product *p = &panels->product;
  if (call->op->id == MPG_OP__winograd_convolution) {
    mpg_cpu_winograd_panel(panels, thread, panel, out);
    return MPG_OK;
  }
  int64_t first = panel * p->panel, rows = p->m - first < p->panel ? p->m - first : p->panel;
  const float *a = panels->a + first * p->k;
  mpg_kernel_call single = *call;
  single.num_threads = 1;
#ifdef MPG_WITH_ONEDNN
  if (panels->prepared[thread] && rows == p->panel)
    return mpg_cpu_onednn_run(&single, panels->prepared[thread],
                              (void *const[]){(void *)a, panels->packed, out, (void *)panels->bias},
                              panels->scratch + (size_t)thread * panels->scratch_bytes);
#else
  (void)thread;
#endif
  for (int64_t r = 0; panels->bias && r < rows; r++)
    memcpy(out + r * p->n, panels->bias, (size_t)p->n * sizeof *out);
  return mpg_cpu_gemm_any(&single, MPG_FLOAT32, false, p->transposed, rows, p->n, p->k, 1, a, p->k,
                          panels->b, p->transposed ? p->k : p->n, panels->bias ? 1 : 0, out, p->n);
}

typedef struct panel_work {
  const mpg_kernel_call *call;
  const mpg_panels *panels;
  int threads;
  mpg_status status;
} panel_work;

static void make_panels(void *context, int64_t begin, int64_t end) {
  panel_work *w = context;
  const mpg_panels *panels = w->panels;
  for (int64_t t = begin; t < end; t++)
    for (int64_t i = panels->count * t / w->threads; i < panels->count * (t + 1) / w->threads;
         i++) {
      mpg_status status = mpg_cpu_panel(
          w->call, panels, (int)t, i,
          (float *)w->call->outputs[0].data + i * panels->product.panel * panels->product.n);
      if (status != MPG_OK) __atomic_store_n(&w->status, status, __ATOMIC_RELAXED);
    }
}

mpg_status mpg_cpu_panels(const mpg_kernel_call *call, const mpg_product *product) {
  mpg_panels panels;
  panel_work w = {call, &panels, mpg_panel_threads(call, product), MPG_OK};
  MPG_TRY(mpg_cpu_panels_begin(call, product, NULL, w.threads, &panels));
  mpg_cpu_parallel_for(call, w.threads, 1, make_panels, &w);
  return w.status == MPG_OK
             ? MPG_OK
             : mpg_fail(w.status, "%s: a panel of the product failed", call->op->name);
}
