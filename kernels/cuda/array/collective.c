/* Ops for collectives (all-reduce, broadcast, ...). Each op is one NCCL group, which issues the
 * work of all participating GPUs. Each GPU is a rank. */
#include "op/array/collective.h"

#include <string.h>

#include "kernels/cuda/vendor/nccl.h"
#include "kernels/cuda/runtime/runtime.h"
#include "op/kernel.h"

enum { MAX_ARRAYS = MPG_MAX_SPANNED };

/* Ranks of a collective. `cards` and `arrived` are indexed by rank. inputs[i] and outputs[i] are
 * the ranks of the i-th input and output. */
typedef struct ranks {
  int count, cards[MPG_NCCL_MAX_CARDS];
  int inputs[MAX_ARRAYS], outputs[MAX_ARRAYS];
  cudaEvent_t arrived[MPG_NCCL_MAX_CARDS];
} ranks;

static int64_t size_of(const mpg_view *view) { return mpg_shape_size(&view->desc.shape); }
static size_t bytes_of(const mpg_view *view) {
  return (size_t)size_of(view) * mpg_dtype_size(view->desc.dtype);
}

static mpg_status add_rank(ranks *r, mpg_device_id id, int *rank) {
  int card;
  cudaEvent_t arrived;
  MPG_TRY(mpg_cuda_device_card(id, &card, &arrived));
  int at = 0;
  while (at < r->count && r->cards[at] != card) at++;
  if (at == MPG_NCCL_MAX_CARDS)
    return mpg_fail(MPG_ERROR, "a collective can span at most %d GPUs", MPG_NCCL_MAX_CARDS);
  if (at == r->count) {
    r->cards[r->count] = card;
    r->arrived[r->count++] = arrived;
  }
  *rank = at;
  return MPG_OK;
}

/* Assigns a rank to each array's GPU. Ranks are in input order, because reduce-scatter splits sums
 * and all-gather joins arrays in rank order. Fails if two arrays that need separate ranks are on
 * the same GPU. */
static mpg_status find_ranks(const mpg_kernel_call *call, ranks *r) {
  const mpg_collective_params *params = call->params;
  mpg_device_id places[MAX_ARRAYS];
  bool named = mpg_collective_places(params->input_devices, places, MAX_ARRAYS) == call->num_inputs,
       distinct = true;
  r->count = 0;
  for (int i = 0; i < call->num_inputs; i++)
    MPG_TRY(add_rank(r, named ? places[i] : call->device->id, &r->inputs[i]));
  for (int i = 0; i < call->num_inputs && params->kind != MPG_EXCHANGE; i++)
    distinct = distinct && r->inputs[i] == i;
  named = mpg_collective_places(params->output_devices, places, MAX_ARRAYS) == call->num_outputs;
  for (int i = 0; i < call->num_outputs; i++) {
    MPG_TRY(add_rank(r, named ? places[i] : call->device->id, &r->outputs[i]));
    for (int k = 0; k < i && params->kind != MPG_EXCHANGE; k++)
      distinct = distinct && r->outputs[k] != r->outputs[i];
    bool same = params->kind == MPG_SUM_TO_ALL || params->kind == MPG_SUM_TO_PARTS ||
                params->kind == MPG_JOIN_TO_ALL;
    if (same && r->outputs[i] != r->inputs[i]) distinct = false;
  }
  if (distinct) return MPG_OK;
  return mpg_fail(
      MPG_NOT_IMPLEMENTED,
      "NCCL takes one array from each GPU and leaves one there; use transport='local' instead");
}

#define CALL(name, ...)                                                                     \
  do {                                                                                      \
    if (result == MPG_ncclSuccess && (result = nccl->name(__VA_ARGS__)) != MPG_ncclSuccess) \
      what = #name;                                                                         \
  } while (0)

static mpg_status issue(const mpg_kernel_call *call, const ranks *r, const mpg_nccl_functions *nccl,
                        const mpg_nccl_clique *clique, ncclDataType_t type) {
  const mpg_view *in = call->inputs, *out = call->outputs;
  ncclResult_t result = MPG_ncclSuccess;
  const char *what = "";
  mpg_collective_kind kind =
      (mpg_collective_kind)((const mpg_collective_params *)call->params)->kind;
  /* A root without an input contributes zeros. */
  if (kind == MPG_SUM_TO_ONE && r->outputs[0] >= call->num_inputs)
    MPG_CUDA_TRY(
        cudaMemsetAsync(out[0].data, 0, bytes_of(&out[0]), clique->streams[r->outputs[0]]));
  CALL(ncclGroupStart);
  switch (kind) {
    case MPG_SUM_TO_ALL:
      for (int i = 0; i < call->num_inputs; i++)
        CALL(ncclAllReduce, in[i].data, out[i].data, (size_t)size_of(&in[i]), type, MPG_ncclSum,
             clique->comms[i], clique->streams[i]);
      break;
    case MPG_SUM_TO_ONE:
      for (int i = 0; i < r->count; i++)
        CALL(ncclReduce, i < call->num_inputs ? in[i].data : out[0].data,
             i == r->outputs[0] ? out[0].data : NULL, (size_t)size_of(&out[0]), type, MPG_ncclSum,
             r->outputs[0], clique->comms[i], clique->streams[i]);
      break;
    case MPG_ONE_TO_ALL:
      for (int i = 0; i < r->count; i++) {
        /* Rank 0 is the root. It broadcasts in place unless it has an output. */
        void *to = i == 0 ? in[0].data : NULL;
        for (int k = 0; k < call->num_outputs; k++)
          if (r->outputs[k] == i) to = out[k].data;
        CALL(ncclBroadcast, i == 0 ? in[0].data : to, to, bytes_of(&in[0]), MPG_ncclUint8, 0,
             clique->comms[i], clique->streams[i]);
      }
      break;
    case MPG_SUM_TO_PARTS:
      for (int i = 0; i < call->num_inputs; i++)
        CALL(ncclReduceScatter, in[i].data, out[i].data, (size_t)size_of(&out[i]), type,
             MPG_ncclSum, clique->comms[i], clique->streams[i]);
      break;
    case MPG_JOIN_TO_ALL:
      for (int i = 0; i < call->num_inputs; i++)
        CALL(ncclAllGather, in[i].data, out[i].data, bytes_of(&in[i]), MPG_ncclUint8,
             clique->comms[i], clique->streams[i]);
      break;
    case MPG_EXCHANGE:
      for (int i = 0; i < call->num_inputs; i++) {
        int from = r->inputs[i], to = r->outputs[i];
        if (!bytes_of(&in[i])) continue;
        CALL(ncclSend, in[i].data, bytes_of(&in[i]), MPG_ncclUint8, to, clique->comms[from],
             clique->streams[from]);
        CALL(ncclRecv, out[i].data, bytes_of(&in[i]), MPG_ncclUint8, from, clique->comms[to],
             clique->streams[to]);
      }
      break;
  }
  ncclResult_t ended = nccl->ncclGroupEnd(); /* required even if the group failed */
  if (result == MPG_ncclSuccess && ended == MPG_ncclSuccess) return MPG_OK;
  return mpg_nccl_failed(nccl, result != MPG_ncclSuccess ? what : "ncclGroupEnd",
                         result != MPG_ncclSuccess ? result : ended);
}

mpg_status mpg_cuda_collective(const mpg_kernel_call *call) {
  mpg_collective_kind kind =
      (mpg_collective_kind)((const mpg_collective_params *)call->params)->kind;
  ranks r;
  int home;
  cudaEvent_t arrived;
  ncclDataType_t type = MPG_ncclUint8;
  const mpg_nccl_functions *nccl;
  mpg_nccl_clique *clique;
  int64_t elements = 0;
  MPG_TRY(find_ranks(call, &r));
  MPG_TRY(mpg_cuda_device_card(call->device->id, &home, &arrived));
  if (kind == MPG_SUM_TO_ALL || kind == MPG_SUM_TO_ONE || kind == MPG_SUM_TO_PARTS)
    MPG_TRY(mpg_nccl_type(call->inputs[0].desc.dtype, &type));
  for (int i = 0; i < call->num_outputs; i++) elements += size_of(&call->outputs[i]);
  if (!elements) return MPG_OK;
  MPG_TRY(mpg_nccl_begin(r.cards, r.count, home, call->stream, &nccl, &clique));
  mpg_status status = MPG_OK;
  /* Copies from the host may be in flight on devices that have issued no work since, so wait for
   * them. */
  for (int i = 0; i < r.count; i++)
    MPG_GOTO(mpg_cuda_check(cudaStreamWaitEvent(clique->streams[i], r.arrived[i], 0),
                            "cudaStreamWaitEvent"));
  MPG_GOTO(issue(call, &r, nccl, clique, type));
fail:
  return mpg_nccl_end(clique, home, call->stream, status);
}
