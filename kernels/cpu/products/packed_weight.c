/* Packs weights for oneDNN's primitives, and runs ops with packed weights. */
#include "kernels/cpu/products/packed_weight.h"

#ifdef MPG_WITH_ONEDNN
#include <omp.h>
#endif
#include <string.h>

#include "base/memory.h"
#include "device/device.h"

#ifdef MPG_WITH_ONEDNN
enum { MOST_THREADS = 4096 }; /* maximum number of threads per device that the settings allow */

dnnl_primitive_desc_t mpg_cpu_packing_choose(const mpg_onednn *dnnl, const mpg_packing *packing,
                                             dnnl_memory_desc_t *plain) {
  int before = omp_get_max_threads();
  if (packing->layout_threads) omp_set_num_threads(packing->layout_threads);
  dnnl_primitive_desc_t desc = packing->choose(dnnl, packing, plain);
  omp_set_num_threads(before);
  return desc;
}

bool mpg_cpu_build_pack(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *context) {
  const mpg_packing *packing = context;
  dnnl_memory_desc_t plain = NULL;
  int from, to;
  dnnl_primitive_desc_t desc = mpg_cpu_packing_choose(dnnl, packing, &plain);
  const_dnnl_memory_desc_t theirs =
      desc ? dnnl->primitive_desc_query_md(desc, dnnl_query_weights_md, 0) : NULL;
  bool good = theirs && dnnl->memory_desc_get_size(theirs) <= packing->room &&
              mpg_cpu_onednn_outer(dnnl, prepared, plain, &from) &&
              mpg_cpu_onednn_outer(dnnl, prepared, theirs, &to) &&
              mpg_cpu_onednn_reorder(dnnl, prepared, plain, from, theirs, to);
  if (good) prepared->offset[1] = mpg_align_up(dnnl->memory_desc_get_size(theirs), 64);
  if (desc) dnnl->primitive_desc_destroy(desc);
  if (plain) dnnl->memory_desc_destroy(plain);
  return good;
}

/* Builds the operation packing->run. Fails if the array is smaller than the primitive's layout of
 * the weight, since the primitive would read past its end. */
static bool build_run(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *context) {
  const mpg_packing *packing = context;
  dnnl_memory_desc_t plain = NULL;
  dnnl_primitive_desc_t desc = mpg_cpu_packing_choose(dnnl, packing, &plain);
  const_dnnl_memory_desc_t theirs =
      desc ? dnnl->primitive_desc_query_md(desc, dnnl_query_weights_md, 0) : NULL;
  bool fits = theirs && dnnl->memory_desc_get_size(theirs) <= packing->room;
  if (desc) dnnl->primitive_desc_destroy(desc);
  if (plain) dnnl->memory_desc_destroy(plain);
  return fits && packing->build(dnnl, prepared, context);
}

static mpg_status run(const mpg_kernel_call *call, const mpg_onednn_prepared *prepared,
                      void *const *outer) {
  void *scratch = NULL;
  if (prepared->scratch && !(scratch = mpg_device_scratch(call->device, prepared->scratch)))
    return MPG_DEVICE_OUT_OF_MEMORY;
  return mpg_cpu_onednn_run(call, prepared, outer, scratch);
}
#endif

mpg_status mpg_cpu_pack(const mpg_kernel_call *call, mpg_packing *packing) {
  const mpg_view *weight = &call->inputs[0], *packed = &call->outputs[0];
  mpg_packed_header *head = packed->data;
  void *contents = mpg_packed_contents(packed->data);
  size_t size = (size_t)mpg_shape_size(&packed->desc.shape) * sizeof(float);
  memset(packed->data, 0, size);
  head->num_threads = call->num_threads;
#ifdef MPG_WITH_ONEDNN
  if (packing) {
    packing->room = size - MPG_PACKED_HEADER * sizeof(float);
    packing->key.kind = packing->pack;
    const mpg_onednn_prepared *prepared =
        mpg_cpu_onednn_find(call, &packing->key, mpg_cpu_build_pack, packing);
    if (prepared) {
      head->packed = 1;
      return run(call, prepared, (void *const[]){weight->data, contents});
    }
  }
#else
  (void)packing;
#endif
  memcpy(contents, weight->data, (size_t)mpg_shape_size(&weight->desc.shape) * sizeof(float));
  return MPG_OK;
}

mpg_status mpg_cpu_packed_run(const mpg_kernel_call *call, mpg_packing *packing, void **outer) {
#ifdef MPG_WITH_ONEDNN
  const mpg_packed_header *head = call->inputs[1].data;
  mpg_kernel_call as_packed = *call;
  as_packed.num_threads = head->num_threads;
  if (packing->num_threads && packing->num_threads < head->num_threads) {
    as_packed.num_threads = packing->num_threads;
    packing->layout_threads = head->num_threads;
    packing->key.values[packing->key.count++] = head->num_threads;
  }
  packing->key.kind = packing->run;
  packing->room = (size_t)mpg_shape_size(&call->inputs[1].desc.shape) * sizeof(float) -
                  MPG_PACKED_HEADER * sizeof(float);
  outer[1] = mpg_packed_contents(call->inputs[1].data);
  bool sound = head->packed == 1 && head->num_threads >= 1 && head->num_threads <= MOST_THREADS;
  const mpg_onednn_prepared *prepared =
      sound ? mpg_cpu_onednn_find(&as_packed, &packing->key, build_run, packing) : NULL;
  if (prepared) return run(&as_packed, prepared, outer);
#else
  (void)packing;
  (void)outer;
#endif
  return mpg_fail(MPG_ERROR, "%s: the packed weight does not fit the data", call->op->name);
}
