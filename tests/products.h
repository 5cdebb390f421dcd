// Jobs of matrix products as tests launch them: one line per path, with or without an epilogue, or a group.
#ifndef PRODUCTS_H
#define PRODUCTS_H

#include "gcuda.h"

#include <string.h>

static inline struct gcuda_mul_mat_job product_job(
    enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_args * args) {
    struct gcuda_mul_mat_job job;
    memset(&job, 0, sizeof job);
    job.path = path;
    job.args = args;
    return job;
}
static inline struct gcuda_mul_mat_job experts_job(
    enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_id_args * args) {
    struct gcuda_mul_mat_job job = product_job(path, NULL);
    job.experts = args;
    job.scratch = args->scratch;
    return job;
}
// No product, and more than there may be, are groups too: -1 stands for 0.
static inline struct gcuda_mul_mat_job group_job(
    enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_args * args, int n) {
    struct gcuda_mul_mat_job job = product_job(path, args);
    job.n_args = n == 0 ? -1 : n;
    return job;
}

static inline gcuda_status launch_product(enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_args * args,
    const struct gcuda_mul_mat_epilogue * epilogue, void * scratch, gcuda_stream stream) {
    struct gcuda_mul_mat_job job = product_job(path, args);
    job.epilogue = epilogue;
    job.scratch = scratch;
    return gcuda_launch_mul_mat(&job, stream);
}
static inline gcuda_status launch_group(
    enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_args * args, int n, void * scratch, gcuda_stream stream) {
    struct gcuda_mul_mat_job job = group_job(path, args, n);
    job.scratch = scratch;
    return gcuda_launch_mul_mat(&job, stream);
}
static inline gcuda_status launch_experts(enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_id_args * args,
    const struct gcuda_mul_mat_epilogue * epilogue, gcuda_stream stream) {
    struct gcuda_mul_mat_job job = experts_job(path, args);
    job.epilogue = epilogue;
    return gcuda_launch_mul_mat(&job, stream);
}

// Scratch and layouts as on a device with wgmma: what the operands want.
static const struct gcuda_mul_mat_device on_any_device = { 900, true };

static inline size_t product_scratch(enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_args * args,
    const struct gcuda_mul_mat_epilogue * epilogue) {
    struct gcuda_mul_mat_job job = product_job(path, args);
    job.epilogue = epilogue;
    job.device = &on_any_device;
    return gcuda_mul_mat_scratch_bytes(&job);
}
static inline size_t group_scratch(enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_args * args, int n) {
    struct gcuda_mul_mat_job job = group_job(path, args, n);
    job.device = &on_any_device;
    return gcuda_mul_mat_scratch_bytes(&job);
}
static inline size_t experts_scratch(enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_id_args * args) {
    struct gcuda_mul_mat_job job = experts_job(path, args);
    job.device = &on_any_device;
    return gcuda_mul_mat_scratch_bytes(&job);
}
static inline bool takes_group(enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_args * args, int n) {
    const struct gcuda_mul_mat_job job = group_job(path, args, n);
    return gcuda_mul_mat_takes(&job);
}

// n: 1, one product; else a group.
static inline struct gcuda_activation_layout product_layout(
    enum gcuda_mul_mat_path path, const struct gcuda_mul_mat_args * args, int n) {
    struct gcuda_mul_mat_job job = n == 1 ? product_job(path, args) : group_job(path, args, n);
    job.device = &on_any_device;
    return gcuda_mul_mat_layout(&job);
}

// What VEC says of weights of a type: form and most columns.
static inline struct gcuda_activation_layout vec_layout_of(enum gcuda_type type) {
    const int64_t k = gcuda_blck_size(type) * 32;
    struct gcuda_mul_mat_args p;
    memset(&p, 0, sizeof p);
    struct gcuda_array * arrays[3] = { &p.a, &p.b, &p.y };
    for (int i = 0; i < 3; ++i) {
        struct gcuda_array * t = arrays[i];
        t->type = i == 0 ? type : GCUDA_TYPE_F32;
        t->ne[0] = i == 2 ? 1 : k;
        t->ne[1] = t->ne[2] = t->ne[3] = 1;
        t->nb[0] = gcuda_type_size(t->type);
        t->nb[1] = t->nb[2] = t->nb[3] = gcuda_row_size(t->type, t->ne[0]);
    }
    return product_layout(GCUDA_MUL_MAT_VEC, &p, 1);
}

#endif
