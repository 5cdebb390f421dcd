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
#define GCUDA_SIM_ERRORS(X)                                                                                       \
    X(cudaSuccess, 0, "no error")                                                                                 \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                               \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                                              \
    X(cudaErrorInitializationError, 3, "initialization error")                                                    \
    X(cudaErrorCudartUnloading, 4, "driver shutting down")                                                        \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                         \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                                   \
    X(cudaErrorInsufficientDriver, 35, "driver version is too old for the runtime")                               \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                               \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                      \
    X(cudaErrorDeviceUninitialized, 201, "invalid device context")                                                \
    X(cudaErrorAlreadyMapped, 208, "resource already mapped")                                                     \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image for this device")                                    \
    X(cudaErrorNotMapped, 211, "resource not mapped")                                                             \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable ECC error")                                                  \
    X(cudaErrorPeerAccessUnsupported, 217, "peer access is not supported")                                        \
    X(cudaErrorNvlinkUncorrectable, 220, "uncorrectable NVLink error")                                            \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                             \
    X(cudaErrorIllegalState, 401, "the operation cannot be performed in the present state")                       \
    X(cudaErrorSymbolNotFound, 500, "named symbol not found")                                                     \
    X(cudaErrorNotReady, 600, "device not ready")                                                                 \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                                   \
    X(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                              \
    X(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                                     \
    X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                                   \
    X(cudaErrorPeerAccessNotEnabled, 705, "peer access has not been enabled")                                     \
    X(cudaErrorContextIsDestroyed, 709, "context is destroyed")                                                   \
    X(cudaErrorAssert, 710, "device-side assert triggered")                                                       \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "host memory already registered")                                \
    X(cudaErrorHostMemoryNotRegistered, 713, "host memory is not registered")                                     \
    X(cudaErrorHardwareStackError, 714, "hardware stack error")                                                   \
    X(cudaErrorIllegalInstruction, 715, "an illegal instruction was encountered")                                 \
    X(cudaErrorMisalignedAddress, 716, "misaligned address")                                                      \
    X(cudaErrorInvalidAddressSpace, 717, "operation in the wrong address space")                                  \
    X(cudaErrorInvalidPc, 718, "invalid program counter")                                                         \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                                  \
    X(cudaErrorNotPermitted, 800, "operation not permitted")                                                      \
    X(cudaErrorNotSupported, 801, "operation not supported")                                                      \
    X(cudaErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")                 \
    X(cudaErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture")          \
    X(cudaErrorStreamCaptureMerge, 902, "operation would merge two different captures")                           \
    X(cudaErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it began")               \
    X(cudaErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work")                                  \
    X(cudaErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream")            \
    X(cudaErrorStreamCaptureImplicit, 906, "operation would make the legacy stream depend on a capturing stream") \
    X(cudaErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a capturing stream")     \
    X(cudaErrorStreamCaptureWrongThread, 908, "attempt to terminate a capture from a different thread")           \
    X(cudaErrorTimeout, 909, "timed out")                                                                         \
    X(cudaErrorGraphExecUpdateFailure, 910, "the graph update was not performed")                                 \
    X(cudaErrorInvalidClusterSize, 912, "invalid cluster size")                                                   \
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
typedef struct CUgraph_st * cudaGraph_t;
typedef struct CUgraphNode_st * cudaGraphNode_t;
typedef struct CUgraphExec_st * cudaGraphExec_t;
#define cudaStreamLegacy ((cudaStream_t) 0x1)
#define cudaStreamPerThread ((cudaStream_t) 0x2)
#define cudaStreamDefault 0u
#define cudaStreamNonBlocking 1u
#define cudaEventDefault 0u
#define cudaEventBlockingSync 1u
#define cudaEventDisableTiming 2u
#define cudaEventWaitDefault 0u
#define cudaMemAttachGlobal 1u
#define cudaHostAllocDefault 0u
#define cudaHostAllocPortable 1u
#define cudaHostAllocMapped 2u
#define cudaHostAllocWriteCombined 4u
#define cudaHostRegisterDefault 0u
#define cudaHostRegisterPortable 1u
#define cudaHostRegisterMapped 2u
#define cudaHostRegisterReadOnly 8u

typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;
typedef CUuuid cudaUUID_t;

struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    char luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock, regsPerBlock;
    int pciDomainID, pciBusID, pciDeviceID, integrated, unifiedAddressing, l2CacheSize;
    int maxThreadsDim[3], maxGridSize[3];
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrKernelExecTimeout = 17,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrCanMapHostMemory = 19,
    cudaDevAttrComputeMode = 20,
    cudaDevAttrEccEnabled = 32,
    cudaDevAttrPciBusId = 33,
    cudaDevAttrPciDeviceId = 34,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrAsyncEngineCount = 40,
    cudaDevAttrUnifiedAddressing = 41,
    cudaDevAttrPciDomainId = 50,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrPageableMemoryAccess = 88,
    cudaDevAttrCanUseHostPointerForRegisteredMem = 91,
    cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrHostRegisterSupported = 99,
    cudaDevAttrReservedSharedMemoryPerBlock = 111,
    cudaDevAttrHostRegisterReadOnlySupported = 113,
    cudaDevAttrTimelineSemaphoreInteropSupported = 114,
    cudaDevAttrMemoryPoolsSupported = 115
};

enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};
struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};

struct cudaPitchedPtr {
    void * ptr;
    size_t pitch, xsize, ysize;
};
struct cudaExtent {
    size_t width, height, depth; // width in bytes where no array takes part
};
struct cudaPos {
    size_t x, y, z;
};
typedef struct cudaArray * cudaArray_t; // there are none
struct cudaMemcpy3DPeerParms {
    cudaArray_t srcArray;
    struct cudaPos srcPos;
    struct cudaPitchedPtr srcPtr;
    int srcDevice;
    cudaArray_t dstArray;
    struct cudaPos dstPos;
    struct cudaPitchedPtr dstPtr;
    int dstDevice;
    struct cudaExtent extent;
};
static inline struct cudaPitchedPtr make_cudaPitchedPtr(void * ptr, size_t pitch, size_t width, size_t height) {
    struct cudaPitchedPtr p = { ptr, pitch, width, height };
    return p;
}
static inline struct cudaExtent make_cudaExtent(size_t width, size_t height, size_t depth) {
    struct cudaExtent e = { width, height, depth };
    return e;
}
static inline struct cudaPos make_cudaPos(size_t x, size_t y, size_t z) {
    struct cudaPos p = { x, y, z };
    return p;
}

struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA;
    int maxDynamicSharedSizeBytes, preferredShmemCarveout;
};

enum cudaDriverEntryPointQueryResult {
    cudaDriverEntryPointSuccess = 0,
    cudaDriverEntryPointSymbolNotFound = 1,
    cudaDriverEntryPointVersionNotSufficent = 2 // so spelled
};
#define cudaEnableDefault 0u

// Memory and semaphores of other interfaces. The simulated device takes file descriptors only.
typedef struct CUexternalMemory_st * cudaExternalMemory_t;
typedef struct CUexternalSemaphore_st * cudaExternalSemaphore_t;
enum cudaExternalMemoryHandleType {
    cudaExternalMemoryHandleTypeOpaqueFd = 1,
    cudaExternalMemoryHandleTypeOpaqueWin32 = 2,
    cudaExternalMemoryHandleTypeOpaqueWin32Kmt = 3,
    cudaExternalMemoryHandleTypeD3D12Heap = 4,
    cudaExternalMemoryHandleTypeD3D12Resource = 5
};
#define cudaExternalMemoryDedicated 1u
struct cudaExternalMemoryHandleDesc {
    enum cudaExternalMemoryHandleType type;
    union {
        int fd;
        struct {
            void * handle;
            const void * name;
        } win32;
        const void * nvSciBufObject;
    } handle;
    unsigned long long size;
    unsigned flags;
};
struct cudaExternalMemoryBufferDesc {
    unsigned long long offset, size;
    unsigned flags;
};
enum cudaExternalSemaphoreHandleType {
    cudaExternalSemaphoreHandleTypeOpaqueFd = 1,
    cudaExternalSemaphoreHandleTypeOpaqueWin32 = 2,
    cudaExternalSemaphoreHandleTypeOpaqueWin32Kmt = 3,
    cudaExternalSemaphoreHandleTypeD3D12Fence = 4,
    cudaExternalSemaphoreHandleTypeTimelineSemaphoreFd = 9,
    cudaExternalSemaphoreHandleTypeTimelineSemaphoreWin32 = 10
};
struct cudaExternalSemaphoreHandleDesc {
    enum cudaExternalSemaphoreHandleType type;
    union {
        int fd;
        struct {
            void * handle;
            const void * name;
        } win32;
        const void * nvSciSyncObj;
    } handle;
    unsigned flags;
};
struct cudaExternalSemaphoreSignalParams {
    struct {
        struct {
            unsigned long long value;
        } fence;
        union {
            void * fence;
            unsigned long long reserved;
        } nvSciSync;
        struct {
            unsigned long long key;
        } keyedMutex;
        unsigned reserved[12];
    } params;
    unsigned flags;
    unsigned reserved[16];
};
struct cudaExternalSemaphoreWaitParams {
    struct {
        struct {
            unsigned long long value;
        } fence;
        union {
            void * fence;
            unsigned long long reserved;
        } nvSciSync;
        struct {
            unsigned long long key;
            unsigned timeoutMs;
        } keyedMutex;
        unsigned reserved[10];
    } params;
    unsigned flags;
    unsigned reserved[16];
};

enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2
};
enum cudaGraphNodeType {
    cudaGraphNodeTypeKernel = 0,
    cudaGraphNodeTypeMemcpy = 1,
    cudaGraphNodeTypeMemset = 2,
    cudaGraphNodeTypeHost = 3,
    cudaGraphNodeTypeEmpty = 5,
    cudaGraphNodeTypeExtSemaphoreSignal = 8,
    cudaGraphNodeTypeExtSemaphoreWait = 9
};
enum cudaGraphExecUpdateResult {
    cudaGraphExecUpdateSuccess = 0,
    cudaGraphExecUpdateError = 1,
    cudaGraphExecUpdateErrorTopologyChanged = 2,
    cudaGraphExecUpdateErrorNodeTypeChanged = 3,
    cudaGraphExecUpdateErrorFunctionChanged = 4,
    cudaGraphExecUpdateErrorParametersChanged = 5,
    cudaGraphExecUpdateErrorNotSupported = 6
};
typedef struct cudaGraphExecUpdateResultInfo_st {
    enum cudaGraphExecUpdateResult result;
    cudaGraphNode_t errorNode, errorFromNode;
} cudaGraphExecUpdateResultInfo;
typedef struct cudaGraphEdgeData_st {
    unsigned char from_port, to_port, type, reserved[5];
} cudaGraphEdgeData;

#ifdef __cplusplus
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#else
typedef struct dim3 {
    unsigned x, y, z;
} dim3;
#endif
struct cudaKernelNodeParams {
    void * func;
    dim3 gridDim, blockDim;
    unsigned sharedMemBytes;
    void **kernelParams, **extra;
};

cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char * cudaGetErrorString(cudaError_t error);
const char * cudaGetErrorName(cudaError_t error);
cudaError_t cudaDriverGetVersion(int * version);
cudaError_t cudaRuntimeGetVersion(int * version);

cudaError_t cudaGetDriverEntryPoint(
    const char * symbol, void ** function, unsigned long long flags, enum cudaDriverEntryPointQueryResult * result);
cudaError_t cudaGetDriverEntryPointByVersion(const char * symbol, void ** function, unsigned version,
    unsigned long long flags, enum cudaDriverEntryPointQueryResult * result);

cudaError_t cudaGetDeviceCount(int * count);
cudaError_t cudaDeviceGetAttribute(int * value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char * text, int size, int device);
cudaError_t cudaDeviceGetByPCIBusId(int * device, const char * text);
cudaError_t cudaDeviceGetStreamPriorityRange(int * least, int * greatest);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp * prop, int device);
cudaError_t cudaGetDevice(int * device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize(void);
enum cudaDeviceP2PAttr {
    cudaDevP2PAttrPerformanceRank = 1,
    cudaDevP2PAttrAccessSupported = 2,
    cudaDevP2PAttrNativeAtomicSupported = 3
};
cudaError_t cudaDeviceGetP2PAttribute(int * value, enum cudaDeviceP2PAttr attribute, int device, int peer);
cudaError_t cudaDeviceCanAccessPeer(int * can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
cudaError_t cudaDeviceDisablePeerAccess(int peer);

cudaError_t cudaMemGetInfo(size_t * n_free, size_t * n_total);
cudaError_t cudaMalloc(void ** ptr, size_t size);
cudaError_t cudaMallocManaged(void ** ptr, size_t size, unsigned flags);
cudaError_t cudaFree(void * ptr);
cudaError_t cudaHostAlloc(void ** ptr, size_t size, unsigned flags);
cudaError_t cudaFreeHost(void * ptr);
cudaError_t cudaHostRegister(void * ptr, size_t size, unsigned flags);
cudaError_t cudaHostUnregister(void * ptr);
cudaError_t cudaMemcpy(void * dst, const void * src, size_t size, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void * dst, const void * src, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeerAsync(
    void * dst, int dst_device, const void * src, int src_device, size_t size, cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void * dst, size_t dst_pitch, const void * src, size_t src_pitch, size_t width,
    size_t height, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms * p, cudaStream_t stream);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes * attributes, const void * ptr);
cudaError_t cudaHostGetDevicePointer(void ** device_ptr, void * host_ptr, unsigned flags);
cudaError_t cudaMemsetAsync(void * ptr, int value, size_t size, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t * stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t * stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int * priority);
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned * flags);
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int * device);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*fn)(void *), void * user);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t * graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus * status);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode * mode);
cudaError_t cudaGraphCreate(cudaGraph_t * graph, unsigned flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t * nodes, size_t * n);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType * type);
cudaError_t cudaGraphNodeGetDependencies(
    cudaGraphNode_t node, cudaGraphNode_t * nodes, cudaGraphEdgeData * edges, size_t * n);
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, struct cudaKernelNodeParams * params);
typedef enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore = 0,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6
} cudaLaunchAttributeID;
typedef union cudaLaunchAttributeValue {
    char pad[64];
    struct {
        unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
} cudaLaunchAttributeValue;
cudaError_t cudaGraphInstantiate(cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo * info);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t * event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float * ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes * attributes, const void * kernel);

cudaError_t cudaImportExternalMemory(
    cudaExternalMemory_t * memory, const struct cudaExternalMemoryHandleDesc * description);
cudaError_t cudaExternalMemoryGetMappedBuffer(
    void ** ptr, cudaExternalMemory_t memory, const struct cudaExternalMemoryBufferDesc * description);
cudaError_t cudaDestroyExternalMemory(cudaExternalMemory_t memory);
cudaError_t cudaImportExternalSemaphore(
    cudaExternalSemaphore_t * semaphore, const struct cudaExternalSemaphoreHandleDesc * description);
cudaError_t cudaSignalExternalSemaphoresAsync(const cudaExternalSemaphore_t * semaphores,
    const struct cudaExternalSemaphoreSignalParams * params, unsigned n, cudaStream_t stream);
cudaError_t cudaWaitExternalSemaphoresAsync(const cudaExternalSemaphore_t * semaphores,
    const struct cudaExternalSemaphoreWaitParams * params, unsigned n, cudaStream_t stream);
cudaError_t cudaDestroyExternalSemaphore(cudaExternalSemaphore_t semaphore);

#ifdef __cplusplus
} // extern "C"
#endif
#endif // GCUDA_SIM_CUDA_RUNTIME_API_H
