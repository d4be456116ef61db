// Test-only: shared by emulated libraries whose handles have a stream.
#ifndef HOSTCUDA_LIBRARY_H
#define HOSTCUDA_LIBRARY_H

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cuda_runtime.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct hostcuda_handle {
  int device;
  cudaStream_t stream = nullptr;
};

template <class T>
struct columns { // copy of a column-major matrix, in double
  int64_t m, n;
  std::vector<double> values;
  columns(int64_t m_, int64_t n_) : m(m_), n(n_), values((size_t)(m_ * n_)) {}
  columns(const T *a, int64_t m_, int64_t n_, int64_t ld) : columns(m_, n_) {
    for (int64_t c = 0; c < n; c++)
      for (int64_t r = 0; r < m; r++) (*this)(r, c) = (double)a[c * ld + r];
  }
  double &operator()(int64_t r, int64_t c) { return values[(size_t)(c * m + r)]; }
  void write(T *a, int64_t ld) {
    for (int64_t c = 0; c < n; c++)
      for (int64_t r = 0; r < m; r++) a[c * ld + r] = (T)(*this)(r, c);
  }
};

[[noreturn]] inline void hostcuda_wrong(const char *what) {
  fprintf(stderr, "stand-in of a library: %s\n", what);
  abort();
}

// Aborts unless a memory range is on the handle's card.
inline void hostcuda_here(const hostcuda_handle *handle, const void *memory, size_t bytes) {
  if (hostcuda_memory_card(memory, bytes) != handle->device)
    hostcuda_wrong("memory that is not the card's");
}

// Queues work() in the order of the handle's stream.
template <class F>
int hostcuda_queue(const hostcuda_handle *handle, F work) {
  static_assert(std::is_trivially_copyable<F>::value, "");
  if (!handle->stream || hostcuda_stream_card(handle->stream) != handle->device)
    hostcuda_wrong("no stream, or another card's");
  return hostcuda_put(
             handle->stream, [](const void *data) { (*(const F *)data)(); }, &work, sizeof work)
             ? 6
             : 0;
}

// Counts live handles, and reports leaks at process exit.
struct hostcuda_handles {
  const char *name;
  std::atomic<int> alive;
  explicit hostcuda_handles(const char *name_) : name(name_), alive(0) {}
  ~hostcuda_handles() {
    if (getenv("HOSTCUDA_REPORT")) fprintf(stderr, "%s stand-in: %d left\n", name, alive.load());
  }
  template <class H>
  int create(H *handle) {
    int device;
    cudaGetDevice(&device);
    *handle = (H) new hostcuda_handle{device};
    alive++;
    return 0;
  }
  template <class H>
  int destroy(H handle) {
    delete (hostcuda_handle *)handle;
    alive--;
    return 0;
  }
};

#endif
