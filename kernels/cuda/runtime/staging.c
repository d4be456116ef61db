/* Copies between a GPU and pageable host memory through ring buffers of pinned memory. */
#include "kernels/cuda/runtime/staging.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"

enum {
  CHUNK = 512 << 10,
  SLOTS = 16,
  SMALL = 64 << 10, /* below this size, always stages: checking for pinned memory costs as much */
};

typedef struct slot {
  cudaEvent_t used; /* completes when the slot's copy is done, so the slot may be reused */
  void *to;         /* for pushes: arguments of put_in_place */
  const void *from;
  size_t size;
} slot;

/* Ring buffer of pinned chunks. The i-th chunk since the start uses slot i % SLOTS. */
typedef struct ring {
  pthread_mutex_t mutex;
  bool tried;
  char *pinned; /* NULL if the allocation failed */
  uint64_t next;
  slot slots[SLOTS];
} ring;

struct mpg_staging {
  ring reads, writes, pushes, pulls; /* separate, because different threads use them */
};

mpg_status mpg_staging_open(mpg_staging **result) {
  mpg_staging *staging = mpg_calloc(1, sizeof *staging);
  if (!staging) return mpg_out_of_host_memory(sizeof *staging);
  ring *const rings[] = {&staging->reads, &staging->writes, &staging->pushes, &staging->pulls};
  for (size_t i = 0; i < sizeof rings / sizeof *rings; i++)
    pthread_mutex_init(&rings[i]->mutex, NULL);
  *result = staging;
  return MPG_OK;
}

/* Allocates the ring's pinned memory on first use. Returns false if the allocation failed. */
static bool ready(ring *r) {
  if (r->tried) return r->pinned != NULL;
  r->tried = true;
  void *pinned = NULL;
  if (cudaMallocHost(&pinned, (size_t)CHUNK * SLOTS) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  for (int i = 0; i < SLOTS; i++) {
    if (cudaEventCreateWithFlags(&r->slots[i].used, cudaEventDisableTiming) == cudaSuccess)
      continue;
    cudaGetLastError();
    while (i--) cudaEventDestroy(r->slots[i].used);
    cudaFreeHost(pinned);
    return false;
  }
  r->pinned = pinned;
  return true;
}

/* True if the memory is page-locked, so that CUDA can copy it directly. False for small sizes,
 * because checking would take as long as staging. */
static bool is_locked(const void *host, size_t size) {
  if (size < SMALL) return false;
  const char *const ends[] = {host, (const char *)host + size - 1};
  for (int i = 0; i < 2; i++) {
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, ends[i]) != cudaSuccess) {
      cudaGetLastError();
      return false;
    }
    if (attributes.type != cudaMemoryTypeHost) return false;
  }
  return true;
}

static size_t chunk_at(size_t offset, size_t size) {
  return size - offset < CHUNK ? size - offset : CHUNK;
}

/* Waits until the next slot's previous copy has completed, then takes the slot. */
static mpg_status take(ring *r, slot **taken, char **pinned) {
  int i = (int)(r->next++ % SLOTS);
  *taken = &r->slots[i];
  *pinned = r->pinned + (size_t)i * CHUNK;
  return mpg_cuda_check(cudaEventSynchronize(r->slots[i].used), "a copy between device and host");
}

static mpg_status read_chunks(ring *r, cudaStream_t stream, char *host, const char *memory,
                              size_t size) {
  size_t asked = 0, got = 0;
  while (got < size) {
    while (asked < size && asked - got <= (size_t)CHUNK * (SLOTS - 1)) {
      slot *s;
      char *pinned;
      size_t chunk = chunk_at(asked, size);
      MPG_TRY(take(r, &s, &pinned));
      MPG_TRY(mpg_cuda_check(
          cudaMemcpyAsync(pinned, memory + asked, chunk, cudaMemcpyDeviceToHost, stream),
          "a copy to the host"));
      MPG_TRY(mpg_cuda_check(cudaEventRecord(s->used, stream), "a copy to the host"));
      asked += chunk;
    }
    size_t behind = (asked - got + CHUNK - 1) / CHUNK; /* number of chunks in flight */
    int i = (int)((r->next - behind) % SLOTS);
    MPG_TRY(mpg_cuda_check(cudaEventSynchronize(r->slots[i].used), "a copy to the host"));
    size_t chunk = chunk_at(got, size);
    memcpy(host + got, r->pinned + (size_t)i * CHUNK, chunk);
    got += chunk;
  }
  return MPG_OK;
}

mpg_status mpg_staging_read(mpg_staging *staging, cudaStream_t stream, void *host,
                            const void *memory, size_t size) {
  ring *r = &staging->reads;
  pthread_mutex_lock(&r->mutex);
  bool staged = !is_locked(host, size) && ready(r);
  mpg_status status =
      staged ? read_chunks(r, stream, host, memory, size)
             : mpg_cuda_check(cudaMemcpyAsync(host, memory, size, cudaMemcpyDeviceToHost, stream),
                              "a copy to the host");
  pthread_mutex_unlock(&r->mutex);
  if (status == MPG_OK && !staged)
    status = mpg_cuda_check(cudaStreamSynchronize(stream), "a copy to the host");
  return status;
}

static mpg_status write_chunks(ring *r, cudaStream_t stream, char *memory, const char *host,
                               size_t size) {
  for (size_t at = 0; at < size; at += CHUNK) {
    slot *s;
    char *pinned;
    size_t chunk = chunk_at(at, size);
    MPG_TRY(take(r, &s, &pinned));
    memcpy(pinned, host + at, chunk);
    MPG_TRY(
        mpg_cuda_check(cudaMemcpyAsync(memory + at, pinned, chunk, cudaMemcpyHostToDevice, stream),
                       "a copy from the host"));
    MPG_TRY(mpg_cuda_check(cudaEventRecord(s->used, stream), "a copy from the host"));
  }
  return MPG_OK;
}

static mpg_status write_through(ring *r, cudaStream_t stream, void *memory, const void *host,
                                size_t size) {
  pthread_mutex_lock(&r->mutex);
  bool staged = !is_locked(host, size) && ready(r);
  mpg_status status =
      staged ? write_chunks(r, stream, memory, host, size)
             : mpg_cuda_check(cudaMemcpyAsync(memory, host, size, cudaMemcpyHostToDevice, stream),
                              "a copy from the host");
  pthread_mutex_unlock(&r->mutex);
  if (status == MPG_OK && !staged)
    status = mpg_cuda_check(cudaStreamSynchronize(stream), "a copy from the host");
  return status;
}

mpg_status mpg_staging_write(mpg_staging *staging, cudaStream_t stream, void *memory,
                             const void *host, size_t size) {
  return write_through(&staging->writes, stream, memory, host, size);
}

mpg_status mpg_staging_pull(mpg_staging *staging, cudaStream_t stream, void *memory,
                            const void *host, size_t size) {
  if (is_locked(host, size))
    return mpg_cuda_check(cudaMemcpyAsync(memory, host, size, cudaMemcpyHostToDevice, stream),
                          "a copy from the host");
  return write_through(&staging->pulls, stream, memory, host, size);
}

static void put_in_place(void *data) {
  slot *s = data;
  memcpy(s->to, s->from, s->size);
}

mpg_status mpg_staging_push(mpg_staging *staging, cudaStream_t stream, void *host,
                            const void *memory, size_t size) {
  ring *r = &staging->pushes;
  if (is_locked(host, size) || !ready(r))
    return mpg_cuda_check(cudaMemcpyAsync(host, memory, size, cudaMemcpyDeviceToHost, stream),
                          "a copy to the host");
  for (size_t at = 0; at < size; at += CHUNK) {
    slot *s;
    char *pinned;
    MPG_TRY(take(r, &s, &pinned));
    s->to = (char *)host + at;
    s->from = pinned;
    s->size = chunk_at(at, size);
    MPG_TRY(mpg_cuda_check(
        cudaMemcpyAsync(pinned, (const char *)memory + at, s->size, cudaMemcpyDeviceToHost, stream),
        "a copy to the host"));
    MPG_TRY(mpg_cuda_check(cudaLaunchHostFunc(stream, put_in_place, s), "a copy to the host"));
    MPG_TRY(mpg_cuda_check(cudaEventRecord(s->used, stream), "a copy to the host"));
  }
  return MPG_OK;
}
