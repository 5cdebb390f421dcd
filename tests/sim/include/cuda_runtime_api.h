// cuda_runtime_api.h - what gcuda's host side uses of the CUDA runtime, declared for the simulated device (sim.cpp).
// For tests only, and for no more of CUDA than gcuda needs. C99 and C++.
#ifndef GCUDA_SIM_CUDA_RUNTIME_API_H
#define GCUDA_SIM_CUDA_RUNTIME_API_H

#include <stddef.h>

#ifndef GCUDA_SIM_CC
#define GCUDA_SIM_CC 900 // compute capability of the simulated devices: 100 * major + 10 * minor
#endif
#define GCUDAI_SIM 1
#define CUDART_VERSION 13000

#ifdef __cplusplus
extern "C" {
#endif

// name, number, text
#define GCUDA_SIM_ERRORS(X)                                                                                            \
    X(cudaSuccess, 0, "no error")                                                                                      \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                                    \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                                                   \
    X(cudaErrorInitializationError, 3, "initialization error")                                                         \
    X(cudaErrorCudartUnloading, 4, "driver shutting down")                                                             \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                              \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                                        \
    X(cudaErrorInsufficientDriver, 35, "driver version is too old for the runtime")                                    \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                                    \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                           \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image for this device")                                         \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error")                                                       \
    X(cudaErrorPeerAccessUnsupported, 217, "peer access is not supported")                                             \
    X(cudaErrorNvlinkUncorrectable, 220, "uncorrectable NVLink error")                                                 \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                                  \
    X(cudaErrorSymbolNotFound, 500, "named symbol not found")                                                          \
    X(cudaErrorNotReady, 600, "device not ready")                                                                      \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                                        \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                                   \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                                          \
    X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                                        \
    X(cudaErrorPeerAccessNotEnabled, 705, "peer access has not been enabled")                                          \
    X(cudaErrorAssert, 710, "device-side assert triggered")                                                            \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "host memory already registered")                                     \
    X(cudaErrorHostMemoryNotRegistered, 713, "host memory is not registered")                                          \
    X(cudaErrorHardwareStackError, 714, "hardware stack error")                                                        \
    X(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered")                                      \
    X(cudaErrorMisalignedAddress, 716, "misaligned address")                                                           \
    X(cudaErrorInvalidAddressSpace, 717, "operation in the wrong address space")                                       \
    X(cudaErrorInvalidPc, 718, "invalid program counter")                                                              \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                                       \
    X(cudaErrorNotSupported, 801, "operation not supported")                                                           \
    X(cudaErrorUnknown, 999, "unknown error")

enum cudaError {
#define X(name, number, text) name = number,
    GCUDA_SIM_ERRORS(X)
#undef X
        cudaErrorSimLast = 1000 // so that the list may end in a comma
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

typedef struct CUstream_st * cudaStream_t;
typedef struct CUevent_st * cudaEvent_t;
#define cudaStreamLegacy ((cudaStream_t) 0x1)
#define cudaStreamPerThread ((cudaStream_t) 0x2)
#define cudaStreamDefault 0u
#define cudaStreamNonBlocking 1u
#define cudaEventDefault 0u
#define cudaEventBlockingSync 1u
#define cudaEventDisableTiming 2u
#define cudaHostAllocDefault 0u
#define cudaHostAllocPortable 1u
#define cudaHostAllocMapped 2u
#define cudaHostAllocWriteCombined 4u
#define cudaHostRegisterDefault 0u
#define cudaHostRegisterPortable 1u
#define cudaHostRegisterMapped 2u
#define cudaHostRegisterReadOnly 8u

struct cudaDeviceProp {
    char name[256];
    struct {
        char bytes[16];
    } uuid;
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock, regsPerBlock;
    int pciDomainID, pciBusID, pciDeviceID, integrated, unifiedAddressing, l2CacheSize;
    int maxThreadsDim[3], maxGridSize[3];
};

enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1,
    cudaDriverEntryPointVersionNotSufficent = 2 // so spelled
};
#define cudaEnableDefault 0u

cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char * cudaGetErrorString(cudaError_t error);
const char * cudaGetErrorName(cudaError_t error);
cudaError_t cudaDriverGetVersion(int * version);
cudaError_t cudaRuntimeGetVersion(int * version);

cudaError_t cudaGetDriverEntryPointByVersion(const char * symbol, void ** function, unsigned version,
    unsigned long long flags, enum cudaDriverEntryPointQueryResult * result);

cudaError_t cudaGetDeviceCount(int * count);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp * prop, int device);
cudaError_t cudaGetDevice(int * device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceCanAccessPeer(int * can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDeviceDisablePeerAccess(int peer);

cudaError_t cudaMemGetInfo(size_t * n_free, size_t * n_total);
cudaError_t cudaMalloc(void ** ptr, size_t size);
cudaError_t cudaFree(void * ptr);
cudaError_t cudaHostAlloc(void ** ptr, size_t size, unsigned flags);
cudaError_t cudaFreeHost(void * ptr);
cudaError_t cudaHostRegister(void * ptr, size_t size, unsigned flags);
cudaError_t cudaHostUnregister(void * ptr);
cudaError_t cudaMemcpy(void * dst, const void * src, size_t size, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void * dst, const void * src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(
    void * dst, int dst_device, const void * src, int src_device, size_t size, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void * ptr, int value, size_t size, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t * stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t * stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*fn)(void *), void * user);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t * event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);

#ifdef __cplusplus
} // extern "C"
#endif
#endif // GCUDA_SIM_CUDA_RUNTIME_API_H
