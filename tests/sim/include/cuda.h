// cuda.h - the part of the driver interface that gcuda looks up at run time (cudaGetDriverEntryPointByVersion), for the
// simulated device (sim.cpp). Types and numbers are NVIDIA's; there is no function to link to.
#ifndef GCUDA_SIM_CUDA_H
#define GCUDA_SIM_CUDA_H

#include "cuda_runtime_api.h"

#define CUDA_VERSION 13000
#define CUDAAPI

typedef unsigned long long CUdeviceptr;
typedef int CUdevice;
typedef struct CUctx_st * CUcontext;
typedef cudaStream_t CUstream;
typedef cudaEvent_t CUevent;
typedef unsigned long long CUmemGenericAllocationHandle;

// name, number, text
#define GCUDA_SIM_RESULTS(X)                                                                                 \
    X(CUDA_SUCCESS, 0, "no error")                                                                           \
    X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                                       \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                                          \
    X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                                                 \
    X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down")                                                   \
    X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                                       \
    X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                                              \
    X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                                             \
    X(CUDA_ERROR_MAP_FAILED, 205, "mapping of buffer object failed")                                         \
    X(CUDA_ERROR_UNMAP_FAILED, 206, "unmapping of buffer object failed")                                     \
    X(CUDA_ERROR_ALREADY_MAPPED, 208, "resource already mapped")                                             \
    X(CUDA_ERROR_NOT_MAPPED, 211, "resource not mapped")                                                     \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error")                                          \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed or operation not supported on this OS")              \
    X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                                             \
    X(CUDA_ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")               \
    X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                                                   \
    X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                                         \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                           \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")                             \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                                          \
    X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                                           \
    X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                                              \
    X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                                              \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")        \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture") \
    X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

typedef enum cudaError_enum {
#define X(name, number, text) name = number,
    GCUDA_SIM_RESULTS(X)
#undef X
        CUDA_ERROR_SIM_LAST = 1000 // so that the list may end in a comma
} CUresult;

// the same numbers as cudaDeviceAttr
typedef enum CUdevice_attribute_enum {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115
} CUdevice_attribute;

typedef enum CUmemAllocationHandleType_enum {
    CU_MEM_HANDLE_TYPE_NONE = 0,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_HANDLE_TYPE_WIN32 = 2
} CUmemAllocationHandleType;
typedef enum CUmemAccess_flags_enum {
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
} CUmemAccess_flags;
typedef enum CUmemLocationType_enum {
    CU_MEM_LOCATION_TYPE_INVALID = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST = 2
} CUmemLocationType;
typedef enum CUmemAllocationType_enum {
    CU_MEM_ALLOCATION_TYPE_INVALID = 0,
    CU_MEM_ALLOCATION_TYPE_PINNED = 1
} CUmemAllocationType;
typedef enum CUmemAllocationGranularity_flags_enum {
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1
} CUmemAllocationGranularity_flags;
typedef struct CUmemLocation_st {
    CUmemLocationType type;
    int id;
} CUmemLocation;
typedef struct CUmemAllocationProp_st {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void * win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;
typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUctxCreateParams_st {
    void * execAffinityParams;
    int numExecAffinityParams;
    void * cigParams;
} CUctxCreateParams;
typedef enum CUctx_flags_enum {
    CU_CTX_SCHED_AUTO = 0,
    CU_CTX_SCHED_SPIN = 1,
    CU_CTX_SCHED_YIELD = 2,
    CU_CTX_SCHED_BLOCKING_SYNC = 4,
    CU_CTX_MAP_HOST = 8
} CUctx_flags;

#endif // GCUDA_SIM_CUDA_H
