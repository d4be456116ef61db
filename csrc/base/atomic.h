/* C11 atomics in a form that also compiles as C++, because GPU kernels are C++ and use the same
 * structs. In C++, an atomic is a plain object with the same layout, which is accessed only through
 * compiler builtins.
 */
#ifndef MPG_BASE_ATOMIC_H
#define MPG_BASE_ATOMIC_H

#ifndef __cplusplus
#include <stdatomic.h>
#else
#include <atomic>
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
#define _Atomic(type) type
#define _Alignas(bytes) alignas(bytes)
template <class T>
static inline T atomic_load_explicit(const T *object, std::memory_order order) {
  return __atomic_load_n(object, (int)order);
}
template <class T, class U>
static inline void atomic_store_explicit(T *object, U value, std::memory_order order) {
  __atomic_store_n(object, (T)value, (int)order);
}
#endif

#endif
