// sim-test.h - what the tests on the simulated device share: starting afresh, ending clean, tensors with memory.
#ifndef SIM_TEST_H
#define SIM_TEST_H

#include "gcuda.h"
#include "sim.h"
#include "test.h"

#define MB ((size_t) 1 << 20)

static inline void quiet(enum gcuda_log_level level, const char * text, void * user) {
    (void) level;
    (void) text;
    (void) user;
}

// A process that has just started, with these devices.
static inline void fresh(int n_devices, size_t memory, uint64_t seed) {
    gcuda_shutdown();
    sim_reset(n_devices, memory, seed);
    gcuda_log_set(quiet, GCUDA_LOG_LEVEL_ERROR, NULL);
}

static inline void clean(void) {
    CHECK_EQ_I(sim_leaks(), 0);
    gcuda_shutdown();
    CHECK_EQ_I(sim_retained(), 0);
    CHECK_EQ_I(sim_violations(), 0);
    fresh(1, 256 * MB, 1);
}

// Tensors of a test: a context of descriptions, and memory for them on a backend.
struct place {
    struct gcuda_context * ctx;
    gcuda_backend_buffer_t buffer;
};

static inline struct place place_begin(void) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct place p = { gcuda_init(params), NULL };
    return p;
}
static inline bool place_alloc(struct place * p, gcuda_backend_t backend) {
    return (p->buffer = gcuda_backend_alloc_ctx_tensors(p->ctx, backend)) != NULL;
}
static inline void place_end(struct place * p) {
    gcuda_backend_buffer_free(p->buffer);
    gcuda_free(p->ctx);
}

// The sum of squared differences, as a part of the sum of squares that is wanted.
static inline double error_of(const float * got, const float * want, size_t n) {
    double error = 0.0, size = 1e-30;
    for (size_t i = 0; i < n; ++i) {
        error += ((double) got[i] - (double) want[i]) * ((double) got[i] - (double) want[i]);
        size += (double) want[i] * (double) want[i];
    }
    return error / size;
}

// An allocator that gives memory allocations_left times.
static int allocations_left;
static inline void * some_alloc(void * user, size_t size, size_t alignment) {
    (void) user;
    (void) alignment;
    return allocations_left-- > 0 ? malloc(size) : NULL;
}
static inline void some_free(void * user, void * ptr, size_t size) {
    (void) user;
    (void) size;
    free(ptr);
}

// The driver's version is asked without a device: an error there loses none.
TEST_UNUSED static bool loses_device(const char * api) { return strcmp(api, "cudaDriverGetVersion") != 0; }

#endif
