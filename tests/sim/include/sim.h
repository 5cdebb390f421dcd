// sim.h - what tests ask of the simulated device. Environment, read once before the first call:
//   GCUDA_SIM_DEVICES    1 to 8 devices (0: none), default 1
//   GCUDA_SIM_MEMORY_MB  memory of each, default 1024
//   GCUDA_SIM_SEED       order of threads and streams, default 1; 0 is the natural order
#ifndef GCUDA_SIM_H
#define GCUDA_SIM_H

#include "cuda_runtime_api.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// As if the process had just started with these settings: errors, faults and counters are gone. What is alive stays.
void sim_reset(int n_devices, size_t memory_bytes, uint64_t seed);

// The k-th call from now on (1 is the next) of an API function returns the error; k = 0 takes the wish back. Sticky
// errors stay with the current device. Functions that release something release it all the same. "kernel" stands for
// the k-th kernel that runs: it does nothing, and the error appears where CUDA would show it, later. For cublas
// functions the error is cuBLAS's number.
void sim_fail(const char * api, int k, cudaError_t error);
int sim_failed(void);              // faults that have come true since sim_reset
long sim_counts(const char * api); // calls since sim_reset

// Every function with a counter, in order of first use; NULL behind the last.
const char * sim_api(int index);

long sim_leaks(void);      // objects alive: device and host memory, registrations, streams, events, handles; printed
long sim_violations(void); // wrong use found since sim_reset (divergent barriers, dead handles); printed when found

#ifdef __cplusplus
} // extern "C"
#endif
#endif // GCUDA_SIM_H
