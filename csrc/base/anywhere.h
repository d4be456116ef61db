/* Functions in headers that code for a GPU calls too. */
#ifndef MPG_BASE_ANYWHERE_H
#define MPG_BASE_ANYWHERE_H

#ifdef __CUDACC__
#define MPG_ANYWHERE static __host__ __device__ __forceinline__
#else
#define MPG_ANYWHERE static inline
#endif

#endif
