/* MPG_HOST_DEVICE: the prefix of inline functions that both host and GPU code call. */
#ifndef MPG_BASE_HOST_DEVICE_H
#define MPG_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define MPG_HOST_DEVICE static __host__ __device__ __forceinline__
#else
#define MPG_HOST_DEVICE static inline
#endif

#endif
