// sim.h - what tests ask of the simulated device. Environment, read once before the first call:
//   GCUDA_SIM_DEVICES    1 to 8 devices (0: none), default 1
//   GCUDA_SIM_MEMORY_MB  memory of each, default 1024
//   GCUDA_SIM_SEED       order of threads, streams and asynchronous copies, default 1; 0 is the natural order
//   GCUDA_SIM_WARP_GROUPS  1: kernels count as compiled for 9.0a (sim_warp_groups), default 0
#ifndef GCUDA_SIM_H
#define GCUDA_SIM_H

#include "cuda_runtime_api.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// As if the process had just started with these settings: errors, faults and counters are gone. Live allocations and
// objects stay.
void sim_reset(int n_devices, size_t memory_bytes, uint64_t seed);

// The k-th call from now on (1 is the next) of an API function returns the error; k = 0 takes the wish back. Sticky
// errors stay with the current device. Functions that release something release it all the same. "kernel" stands for
// the k-th kernel that runs: it does nothing, and the error appears where CUDA would show it, later. For cublas
// functions the error is cuBLAS's number.
void sim_fail(const char * api, int k, cudaError_t error);
// from the k-th that runs from now on kernels and cuBLAS's products do nothing; 0 takes the wish back
void sim_skip(int k);
int sim_failed(void);              // faults that have come true since sim_reset
long sim_counts(const char * api); // calls since sim_reset
long sim_overlapped(void);         // kernels that were allowed to start before the one ahead of them had ended, ever

// Every function with a counter, in order of first use; NULL after the last.
const char * sim_api(int index);

// Properties that the device reports until sim_reset: any attribute of cudaDeviceGetAttribute or cuDeviceGetAttribute
// (for example 97: shared memory per block, 102: virtual memory management), and its identity. NULL: unchanged.
void sim_attribute(int device, int attribute, int value);
void sim_identity(int device, const char uuid[16], const char luid[8], unsigned luid_mask);
void sim_pci(int device, int domain, int bus, int number);

// Whether kernels have code for 9.0a, until sim_reset: gcuda_has_warp_groups then says so. Below 9.0 they never have.
void sim_warp_groups(int has);

// Access of a device to another one's memory. 0: none; 1: works (default); 2: is reported, but copies between the two
// are wrong once access is enabled; 3: copies to the peer are always wrong; 4: works, by NVLink, with atomics.
void sim_peer(int device, int peer, int how);

int sim_gemm_compute(void); // the compute type of cuBLAS's last product; 0: none since sim_reset

int sim_has_context(int device); // 1: something has made the primary context of the device since sim_reset

// The simulated clock, which events with timing read: how long a kernel takes (default 2 us; cuBLAS the same), and how
// fast copies are (default 10000 bytes a us, and 1 us each). Work of different streams overlaps.
void sim_time_per_launch(uint64_t ns);
void sim_copy_speed(uint64_t bytes_per_us);
uint64_t sim_time(void); // ns: when everything that has run was done

// Called before each kernel runs, by the thread that made it run, with the simulator's lock: no CUDA calls.
void sim_each_kernel(void (*fn)(void * user), void * user);

// The other interface's side of external memory and semaphores: files that cudaImportExternal... take over (so dup()
// them first). Memory is mmap'ed by the test; a semaphore's value is read and raised by these.
int sim_memory_fd(size_t size);
int sim_semaphore_fd(uint64_t value);
void sim_semaphore_signal(int fd, uint64_t value);
uint64_t sim_semaphore_value(int fd);

long sim_retained(void); // primary contexts held by cuDevicePrimaryCtxRetain; a library may hold them until it ends
long sim_leaks(void);    // objects alive: device and host memory, registrations, streams, events, handles; printed
// of those, the ones that sim_leaks calls by that name, for example "events"; -1: unknown
long sim_alive(const char * what);
long sim_violations(void); // wrong use found since sim_reset (divergent barriers, dead handles); printed when found
const char * sim_last_violation(void); // its text, or ""

#ifdef __cplusplus
} // extern "C"
#endif
#endif // GCUDA_SIM_H
