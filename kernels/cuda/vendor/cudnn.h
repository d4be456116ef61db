/* Declarations of the cuDNN 9 types, constants and functions in use. They belong to cuDNN's stable
 * interface. Convolutions use its graph API (backend descriptors).
 *
 * cuDNN is loaded at run time (kernels/cuda/vendor/library.h), not linked, and the build does not
 * need NVIDIA's headers. If MPG_CUDNN_REAL is defined, the types come from NVIDIA's header, and
 * tests/hostcuda/check_cudnn.c checks all other declarations against it.
 */
#ifndef KERNELS_CUDA_VENDOR_CUDNN_H
#define KERNELS_CUDA_VENDOR_CUDNN_H

#include <stddef.h>
#include <stdint.h>

#ifdef MPG_CUDNN_REAL
#include <cudnn.h>
#else
#include <cuda_runtime_api.h>
typedef struct cudnnContext *cudnnHandle_t;
typedef void *cudnnBackendDescriptor_t;
typedef int cudnnStatus_t, cudnnBackendDescriptorType_t, cudnnBackendAttributeName_t,
    cudnnBackendAttributeType_t;
#endif

/* Constants in use, as X(name, value). Status codes are grouped by thousands: 2000 bad parameter,
 * 3000 not supported, 4000 internal error, 5000 execution failed. */
#define MPG_CUDNN_CONSTANTS(X)                                          \
  X(CUDNN_STATUS_SUCCESS, 0)                                            \
  X(CUDNN_STATUS_BAD_PARAM, 2000)                                       \
  X(CUDNN_STATUS_NOT_SUPPORTED, 3000)                                   \
  X(CUDNN_STATUS_INTERNAL_ERROR, 4000)                                  \
  X(CUDNN_DATA_FLOAT, 0)                                                \
  X(CUDNN_DATA_DOUBLE, 1)                                               \
  X(CUDNN_DATA_HALF, 2)                                                 \
  X(CUDNN_DATA_BFLOAT16, 9)                                             \
  X(CUDNN_CROSS_CORRELATION, 1)                                         \
  X(CUDNN_POINTWISE_ADD, 0)                                             \
  X(CUDNN_TYPE_HANDLE, 0)                                               \
  X(CUDNN_TYPE_DATA_TYPE, 1)                                            \
  X(CUDNN_TYPE_BOOLEAN, 2)                                              \
  X(CUDNN_TYPE_INT64, 3)                                                \
  X(CUDNN_TYPE_FLOAT, 4)                                                \
  X(CUDNN_TYPE_DOUBLE, 5)                                               \
  X(CUDNN_TYPE_VOID_PTR, 6)                                             \
  X(CUDNN_TYPE_CONVOLUTION_MODE, 7)                                     \
  X(CUDNN_TYPE_HEUR_MODE, 8)                                            \
  X(CUDNN_TYPE_NUMERICAL_NOTE, 11)                                      \
  X(CUDNN_TYPE_POINTWISE_MODE, 14)                                      \
  X(CUDNN_TYPE_BACKEND_DESCRIPTOR, 15)                                  \
  X(CUDNN_TYPE_BEHAVIOR_NOTE, 19)                                       \
  X(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, 0)                              \
  X(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, 1)                            \
  X(CUDNN_BACKEND_ENGINE_DESCRIPTOR, 2)                                 \
  X(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 3)                              \
  X(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                             \
  X(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                         \
  X(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 10)         \
  X(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, 11) \
  X(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, 12)   \
  X(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)                   \
  X(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)                        \
  X(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, 16)                          \
  X(CUDNN_BACKEND_TENSOR_DESCRIPTOR, 17)                                \
  X(CUDNN_ATTR_POINTWISE_MODE, 0)                                       \
  X(CUDNN_ATTR_POINTWISE_MATH_PREC, 1)                                  \
  X(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, 100)                              \
  X(CUDNN_ATTR_CONVOLUTION_CONV_MODE, 101)                              \
  X(CUDNN_ATTR_CONVOLUTION_DILATIONS, 102)                              \
  X(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 103)                         \
  X(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 104)                          \
  X(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 105)                           \
  X(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 106)                           \
  X(CUDNN_ATTR_ENGINEHEUR_MODE, 200)                                    \
  X(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)                         \
  X(CUDNN_ATTR_ENGINEHEUR_RESULTS, 202)                                 \
  X(CUDNN_ATTR_ENGINECFG_ENGINE, 300)                                   \
  X(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 400)                              \
  X(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)                       \
  X(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)                      \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 700)                \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 701)                 \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, 702)            \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, 703)                    \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, 704)                    \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, 705)                    \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, 706)               \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, 707)                \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, 708)           \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, 709)                   \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, 710)                  \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, 711)                  \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, 712)             \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, 713)              \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, 714)         \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, 715)                \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, 716)                 \
  X(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, 717)                \
  X(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)                  \
  X(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 751)                          \
  X(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 752)                          \
  X(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 753)                          \
  X(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 754)                         \
  X(CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 755)                         \
  X(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 800)                              \
  X(CUDNN_ATTR_OPERATIONGRAPH_OPS, 801)                                 \
  X(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 900)                              \
  X(CUDNN_ATTR_TENSOR_DATA_TYPE, 901)                                   \
  X(CUDNN_ATTR_TENSOR_DIMENSIONS, 902)                                  \
  X(CUDNN_ATTR_TENSOR_STRIDES, 903)                                     \
  X(CUDNN_ATTR_TENSOR_UNIQUE_ID, 906)                                   \
  X(CUDNN_ATTR_TENSOR_IS_VIRTUAL, 907)                                  \
  X(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                           \
  X(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, 1001)                        \
  X(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1003)                            \
  X(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, 1303)                             \
  X(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, 1305)                              \
  X(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION, 0)                         \
  X(CUDNN_HEUR_MODE_FALLBACK, 2)                                        \
  X(CUDNN_HEUR_MODE_A, 3)                                               \
  X(CUDNN_NUMERICAL_NOTE_TENSOR_CORE, 0)                                \
  X(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, 1)                        \
  X(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, 2)                \
  X(CUDNN_NUMERICAL_NOTE_FFT, 3)                                        \
  X(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, 4)                           \
  X(CUDNN_NUMERICAL_NOTE_WINOGRAD, 5)                                   \
  X(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4, 6)                          \
  X(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, 7)                          \
  X(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13, 8)
#define MPG_CUDNN_CONSTANT_(name, value) MPG_##name = value,
enum { MPG_CUDNN_CONSTANTS(MPG_CUDNN_CONSTANT_) };

/* Functions in use, as X(result, name, parameters). */
#define MPG_CUDNN_FUNCTIONS(X)                                                                    \
  X(size_t, cudnnGetVersion, (void))                                                              \
  X(cudnnStatus_t, cudnnCreate, (cudnnHandle_t *))                                                \
  X(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t))                                                 \
  X(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t, cudaStream_t))                                 \
  X(const char *, cudnnGetErrorString, (cudnnStatus_t))                                           \
  X(void, cudnnGetLastErrorString, (char *, size_t))                                              \
  X(cudnnStatus_t, cudnnBackendCreateDescriptor,                                                  \
    (cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *))                                   \
  X(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t))                     \
  X(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t))                              \
  X(cudnnStatus_t, cudnnBackendSetAttribute,                                                      \
    (cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, \
     const void *))                                                                               \
  X(cudnnStatus_t, cudnnBackendGetAttribute,                                                      \
    (cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, \
     int64_t *, void *))                                                                          \
  X(cudnnStatus_t, cudnnBackendExecute,                                                           \
    (cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t))

#endif
