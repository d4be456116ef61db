/* Opens NCCL and manages the communicators of this process. */
#include "kernels/cuda/vendor/nccl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/vendor/library.h"
#include "kernels/cuda/runtime/runtime.h"

typedef struct communicator {
  struct communicator *next;
  mpg_nccl_clique clique;
  char broken[256]; /* message of the first error; empty if there was no error */
} communicator;

static const char *const names[] = {MPG_NCCL_FUNCTIONS(MPG_CUDA_FUNCTION_NAME)};

/* Process-wide state, guarded by `issuing`. */
static struct {
  mpg_nccl_functions functions;
  bool found;
  communicator *communicators;
  struct {
    cudaStream_t stream;
    cudaEvent_t begins, ended;
  } cards[MPG_NCCL_MAX_CARDS];
} nccl;
static pthread_mutex_t issuing = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(int) made; /* number of communicators ever created */

static mpg_status find(void) {
  if (nccl.found) return MPG_OK;
  _Static_assert(sizeof nccl.functions == sizeof names, "one name for each function");
  MPG_TRY(mpg_cuda_library_functions(MPG_CUDA_NCCL, names, (int)(sizeof names / sizeof *names),
                                     &nccl.functions));
  nccl.found = true;
  return MPG_OK;
}

mpg_status mpg_nccl_find(const mpg_nccl_functions **functions) {
  pthread_mutex_lock(&issuing);
  mpg_status status = find();
  pthread_mutex_unlock(&issuing);
  if (functions) *functions = &nccl.functions;
  return status;
}

mpg_status mpg_nccl_type(mpg_dtype dtype, ncclDataType_t *type) {
  switch (dtype) {
    case MPG_FLOAT32: *type = MPG_ncclFloat32; return MPG_OK;
    case MPG_FLOAT64: *type = MPG_ncclFloat64; return MPG_OK;
    case MPG_FLOAT16: *type = MPG_ncclFloat16; return MPG_OK;
    case MPG_BFLOAT16: *type = MPG_ncclBfloat16; return MPG_OK;
    case MPG_UINT8: *type = MPG_ncclUint8; return MPG_OK;
    case MPG_INT8: *type = MPG_ncclInt8; return MPG_OK;
    case MPG_INT32: *type = MPG_ncclInt32; return MPG_OK;
    case MPG_INT64: *type = MPG_ncclInt64; return MPG_OK;
    default:
      return mpg_fail(MPG_NOT_IMPLEMENTED, "NCCL cannot sum arrays of dtype %s",
                      mpg_dtype_name(dtype));
  }
}

mpg_status mpg_nccl_failed(const mpg_nccl_functions *functions, const char *what,
                           ncclResult_t result) {
  const char *more = functions->ncclGetLastError(NULL);
  return mpg_fail(MPG_ERROR, "%s failed: %s%s%s", what, functions->ncclGetErrorString(result),
                  more && *more ? ": " : "", more ? more : "");
}

static bool has(const mpg_nccl_clique *clique, int card) {
  for (int i = 0; i < clique->count; i++)
    if (clique->cards[i] == card) return true;
  return false;
}

static mpg_status open_card(int card) {
  if (nccl.cards[card].stream) return MPG_OK;
  MPG_CUDA_TRY(cudaSetDevice(card));
  if (!nccl.cards[card].begins)
    MPG_CUDA_TRY(cudaEventCreateWithFlags(&nccl.cards[card].begins, cudaEventDisableTiming));
  if (!nccl.cards[card].ended)
    MPG_CUDA_TRY(cudaEventCreateWithFlags(&nccl.cards[card].ended, cudaEventDisableTiming));
  return mpg_cuda_check(cudaStreamCreateWithFlags(&nccl.cards[card].stream, cudaStreamNonBlocking),
                        "cudaStreamCreateWithFlags");
}

static mpg_status make(const int *cards, int count, communicator **result) {
  communicator *c = mpg_calloc(1, sizeof *c);
  mpg_status status = MPG_OK;
  if (!c) return mpg_out_of_host_memory(sizeof *c);
  c->clique.count = count;
  memcpy(c->clique.cards, cards, (size_t)count * sizeof *cards);
  for (int i = 0; i < count; i++) {
    MPG_GOTO(open_card(cards[i]));
    c->clique.streams[i] = nccl.cards[cards[i]].stream;
    mpg_cuda_services->make_room(cards[i]); /* NCCL itself allocates hundreds of megabytes */
  }
  ncclResult_t made_it = nccl.functions.ncclCommInitAll(c->clique.comms, count, cards);
  if (made_it != MPG_ncclSuccess)
    MPG_GOTO(mpg_nccl_failed(&nccl.functions, "ncclCommInitAll", made_it));
  c->next = nccl.communicators;
  nccl.communicators = *result = c;
  atomic_fetch_add(&made, 1);
  return MPG_OK;
fail:
  cudaGetLastError();
  mpg_free(c);
  return status;
}

/* Checks issued work for errors. After an error, the communicator is not aborted, so work that
 * waits for it stays blocked until the process ends. An abort would make that work appear finished
 * before its devices are known to be lost. */
static mpg_status check(communicator *c) {
  for (int i = 0; i < c->clique.count && !*c->broken; i++) {
    ncclResult_t error = MPG_ncclSuccess,
                 asked = nccl.functions.ncclCommGetAsyncError(c->clique.comms[i], &error);
    if (asked != MPG_ncclSuccess) error = asked;
    if (error == MPG_ncclSuccess || error == MPG_ncclInProgress) continue;
    const char *more = nccl.functions.ncclGetLastError(c->clique.comms[i]);
    snprintf(c->broken, sizeof c->broken, "a collective of NCCL failed: %s%s%s",
             nccl.functions.ncclGetErrorString(error), more && *more ? ": " : "", more ? more : "");
  }
  return *c->broken ? mpg_fail(MPG_ERROR, "%s", c->broken) : MPG_OK;
}

mpg_status mpg_nccl_begin(const int *cards, int count, int home, cudaStream_t stream,
                          const mpg_nccl_functions **functions, mpg_nccl_clique **clique) {
  communicator *c;
  mpg_status status;
  pthread_mutex_lock(&issuing);
  MPG_GOTO(find());
  for (c = nccl.communicators; c; c = c->next)
    if (c->clique.count == count &&
        memcmp(c->clique.cards, cards, (size_t)count * sizeof *cards) == 0)
      break;
  if (!c) MPG_GOTO(make(cards, count, &c));
  MPG_GOTO(check(c));
  MPG_GOTO(open_card(home));
  MPG_GOTO(mpg_cuda_check(cudaSetDevice(home), "cudaSetDevice"));
  MPG_GOTO(mpg_cuda_check(cudaEventRecord(nccl.cards[home].begins, stream), "cudaEventRecord"));
  for (int i = 0; i < count; i++)
    MPG_GOTO(mpg_cuda_check(cudaStreamWaitEvent(c->clique.streams[i], nccl.cards[home].begins, 0),
                            "cudaStreamWaitEvent"));
  *functions = &nccl.functions;
  *clique = &c->clique;
  return MPG_OK;
fail:
  cudaSetDevice(home);
  pthread_mutex_unlock(&issuing);
  return status;
}

mpg_status mpg_nccl_end(mpg_nccl_clique *clique, int home, cudaStream_t stream, mpg_status status) {
  for (int i = 0; i < clique->count && status == MPG_OK; i++) {
    cudaEvent_t ended = nccl.cards[clique->cards[i]].ended;
    MPG_GOTO(mpg_cuda_check(cudaSetDevice(clique->cards[i]), "cudaSetDevice"));
    MPG_GOTO(mpg_cuda_check(cudaEventRecord(ended, clique->streams[i]), "cudaEventRecord"));
    MPG_GOTO(mpg_cuda_check(cudaStreamWaitEvent(stream, ended, 0), "cudaStreamWaitEvent"));
  }
fail:
  cudaSetDevice(home);
  pthread_mutex_unlock(&issuing);
  return status;
}

mpg_status mpg_nccl_check(int card) {
  if (!atomic_load(&made)) return MPG_OK;
  if (pthread_mutex_trylock(&issuing)) return MPG_OK; /* in use, so the next call checks */
  mpg_status status = MPG_OK;
  for (communicator *c = nccl.communicators; c && status == MPG_OK; c = c->next)
    if (has(&c->clique, card)) status = check(c);
  pthread_mutex_unlock(&issuing);
  return status;
}

void mpg_nccl_close(int card) {
  if (!atomic_load(&made)) return;
  pthread_mutex_lock(&issuing);
  for (communicator **at = &nccl.communicators; *at;) {
    communicator *c = *at;
    if (!has(&c->clique, card)) {
      at = &c->next;
      continue;
    }
    *at = c->next;
    bool good = check(c) == MPG_OK;
    for (int i = 0; i < c->clique.count && good; i++) {
      good = cudaSetDevice(c->clique.cards[i]) == cudaSuccess &&
             cudaStreamSynchronize(c->clique.streams[i]) == cudaSuccess;
      cudaGetLastError();
    }
    /* Destroys all ranks in one group, because destroying a rank may wait for the other ranks. */
    if (good) nccl.functions.ncclGroupStart();
    for (int i = 0; i < c->clique.count; i++)
      (good ? nccl.functions.ncclCommDestroy : nccl.functions.ncclCommAbort)(c->clique.comms[i]);
    if (good) nccl.functions.ncclGroupEnd();
    mpg_free(c);
  }
  pthread_mutex_unlock(&issuing);
}
