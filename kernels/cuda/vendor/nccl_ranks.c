/* NCCL communicators between the processes of a program, with one GPU per process.
 *
 * The communicators are nonblocking: a call starts work in NCCL's own threads, and the caller polls
 * its status. Therefore, if a rank is lost, the other ranks do not block. They abort the
 * communicator.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/nccl.h"

struct mpg_gpu_communicator {
  const mpg_nccl_functions *functions;
  ncclComm_t comm; /* NULL if aborted */
  cudaStream_t stream;
  cudaEvent_t event;
  cudaEvent_t arrived; /* recorded after copies from the host to the device */
  int card, rank, count;
  bool recorded; /* true if `event` has been recorded after all issued work */
};
typedef struct mpg_gpu_communicator communicator;

_Static_assert(sizeof(ncclUniqueId) == MPG_GPU_COMMUNICATOR_ID, "an id is NCCL's");

static mpg_status check(const mpg_nccl_functions *functions, const char *what,
                        ncclResult_t result) {
  if (result == MPG_ncclSuccess || result == MPG_ncclInProgress) return MPG_OK;
  return mpg_nccl_failed(functions, what, result);
}
#define CALL(c, name, ...) check((c)->functions, #name, (c)->functions->name(__VA_ARGS__))

static mpg_status card_name(mpg_device_id id, char *name, size_t size) {
  int card;
  cudaEvent_t arrived;
  struct cudaDeviceProp properties;
  MPG_TRY(mpg_nccl_find(NULL));
  MPG_TRY(mpg_cuda_device_card(id, &card, &arrived));
  MPG_CUDA_TRY(cudaGetDeviceProperties(&properties, card));
  for (size_t i = 0; i < sizeof properties.uuid && 2 * i + 2 < size; i++)
    snprintf(name + 2 * i, 3, "%02x", (unsigned char)properties.uuid.bytes[i]);
  return MPG_OK;
}

static mpg_status make_id(char *id) {
  const mpg_nccl_functions *functions;
  ncclUniqueId made;
  MPG_TRY(mpg_nccl_find(&functions));
  MPG_TRY(check(functions, "ncclGetUniqueId", functions->ncclGetUniqueId(&made)));
  memcpy(id, &made, sizeof made);
  return MPG_OK;
}

/* Aborts the communicator, then waits for its stream, because later work in the stream still runs
 * after the aborted work. */
static void leave(communicator *c) {
  if (!c->comm) return;
  (void)c->functions->ncclCommAbort(c->comm);
  c->comm = NULL;
  cudaStreamSynchronize(c->stream);
  cudaGetLastError();
}

static mpg_status open(communicator *c, const char *id) {
  mpg_nccl_config config = MPG_NCCL_CONFIG;
  ncclUniqueId unique;
  memcpy(&unique, id, sizeof unique);
  MPG_TRY(mpg_nccl_find(&c->functions));
  mpg_cuda_services->make_room(c->card); /* NCCL itself allocates hundreds of megabytes */
  MPG_CUDA_TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
  MPG_CUDA_TRY(cudaEventCreateWithFlags(&c->event, cudaEventDisableTiming));
  return CALL(c, ncclCommInitRankConfig, &c->comm, c->count, unique, c->rank,
              (ncclConfig_t *)&config);
}

static mpg_status join(mpg_device_id device, const char *id, int rank, int count,
                       communicator **result) {
  communicator *c = mpg_calloc(1, sizeof *c);
  if (!c) return mpg_out_of_host_memory(sizeof *c);
  mpg_status status = MPG_OK;
  c->rank = rank;
  c->count = count;
  int former;
  MPG_GOTO(mpg_cuda_device_card(device, &c->card, &c->arrived));
  MPG_GOTO(mpg_cuda_enter(c->card, &former)); /* called on a user's thread */
  status = open(c, id);
  mpg_cuda_leave(former);
  if (status != MPG_OK) goto fail;
  *result = c;
  return MPG_OK;
fail:
  cudaGetLastError();
  if (c->event) cudaEventDestroy(c->event);
  if (c->stream) cudaStreamDestroy(c->stream);
  mpg_free(c);
  return status;
}

static mpg_status begin(communicator *c) {
  if (!c->comm)
    return mpg_fail(MPG_ERROR,
                    "sums over ranks of GPUs are disabled in this process, because one failed");
  c->recorded = false;
  MPG_CUDA_TRY(cudaSetDevice(c->card));
  return mpg_cuda_check(cudaStreamWaitEvent(c->stream, c->arrived, 0), "cudaStreamWaitEvent");
}

static void *stream(communicator *c) { return c->stream; }

static mpg_status copy(communicator *c, void *to, const void *from, size_t size) {
  return mpg_cuda_check(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, c->stream),
                        "cudaMemcpyAsync");
}

static mpg_status exchange(communicator *c, const char *from, char *to, size_t size) {
  MPG_TRY(CALL(c, ncclGroupStart));
  mpg_status status = MPG_OK;
  for (int i = 1; i < c->count && status == MPG_OK; i++) {
    int sends = (c->rank + i) % c->count, gets = (c->rank + c->count - i) % c->count;
    status = CALL(c, ncclSend, from + (size_t)sends * size, size, MPG_ncclUint8, sends, c->comm,
                  c->stream);
    if (status == MPG_OK)
      status = CALL(c, ncclRecv, to + (size_t)gets * size, size, MPG_ncclUint8, gets, c->comm,
                    c->stream);
  }
  mpg_status ended = CALL(c, ncclGroupEnd); /* required even if the group failed */
  return status == MPG_OK ? ended : status;
}

static mpg_status gather(communicator *c, char *parts, size_t size) {
  return CALL(c, ncclAllGather, parts + (size_t)c->rank * size, parts, size, MPG_ncclUint8, c->comm,
              c->stream);
}

static mpg_status sum(communicator *c, const void *from, void *to, size_t count, uint32_t dtype) {
  ncclDataType_t type;
  MPG_TRY(mpg_nccl_type((mpg_dtype)dtype, &type));
  return CALL(c, ncclAllReduce, from, to, count, type, MPG_ncclSum, c->comm, c->stream);
}

static mpg_status issued(communicator *c, bool *done) {
  ncclResult_t result = MPG_ncclSuccess;
  if (!c->comm) return begin(c);
  MPG_TRY(CALL(c, ncclCommGetAsyncError, c->comm, &result));
  *done = result == MPG_ncclSuccess;
  return check(c->functions, "NCCL", result);
}

static mpg_status finished(communicator *c, bool *done) {
  *done = false;
  MPG_TRY(issued(c, done));
  if (!*done) return MPG_OK;
  if (!c->recorded) MPG_CUDA_TRY(cudaEventRecord(c->event, c->stream));
  c->recorded = true;
  cudaError_t error = cudaEventQuery(c->event);
  *done = error == cudaSuccess;
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return MPG_OK;
  }
  return mpg_cuda_check(error, "a sum over ranks");
}

const mpg_gpu_communicators mpg_cuda_communicators = {.card = card_name,
                                                      .id = make_id,
                                                      .join = join,
                                                      .leave = leave,
                                                      .begin = begin,
                                                      .stream = stream,
                                                      .copy = copy,
                                                      .exchange = exchange,
                                                      .gather = gather,
                                                      .sum = sum,
                                                      .issued = issued,
                                                      .finished = finished};
