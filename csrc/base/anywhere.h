/* MPG_ANYWHERE: the prefix of inline functions that both host and GPU code call. */
#ifndef MPG_BASE_ANYWHERE_H
#define MPG_BASE_ANYWHERE_H

#ifdef __CUDACC__
#define MPG_ANYWHERE static __host__ __device__ __forceinline__
#else
#define MPG_ANYWHERE static inline
#endif

#endif
