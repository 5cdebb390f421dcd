// GCUDA_NVTX: each launched node is a range with operation and name, closed again when the launch fails.
#define GCUDA_NVTX
#define GCUDA_IMPLEMENTATION
#include "sim-test.h"

static char texts[16][160];
static int n_texts, depth, deepest;

int nvtxRangePushA(const char * text) {
    if (n_texts < 16) { snprintf(texts[n_texts], sizeof texts[0], "%s", text); }
    n_texts++;
    depth++;
    deepest = GCUDAI_MAX(deepest, depth);
    return depth - 1;
}
int nvtxRangePop(void) { return --depth; }

TEST(a_range_for_each_launched_node) {
    struct gcuda_cuda_params params;
    memset(&params, 0, sizeof params);
    params.graphs = GCUDA_CUDA_OFF; // or the second run is one launch
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    struct place p = place_begin();
    struct gcuda_tensor * x = gcuda_new_tensor_2d(p.ctx, GCUDA_TYPE_F32, 8, 4);
    struct gcuda_tensor * g = gcuda_set_name(gcuda_gelu(p.ctx, x), "activation");
    struct gcuda_cgraph * graph = gcuda_new_graph(p.ctx);
    struct gcuda_tensor * y = gcuda_mul(p.ctx, gcuda_reshape_1d(p.ctx, g, 32), gcuda_reshape_1d(p.ctx, x, 32));
    CHECK_OK(gcuda_build_forward_expand(graph, gcuda_set_name(y, "last")));
    REQUIRE(backend != NULL && place_alloc(&p, backend));
    CHECK_OK(gcuda_backend_tensor_memset(x, 0, 0, gcuda_nbytes(x)));
    CHECK_OK(gcuda_backend_graph_compute(backend, graph));
    CHECK(n_texts == 2 && depth == 0 && deepest == 1);
    CHECK(strcmp(texts[0], "GELU activation") == 0 && strcmp(texts[1], "MUL last") == 0);
    sim_fail("cudaLaunchKernelEx", 1, cudaErrorInvalidValue);
    CHECK(gcuda_backend_graph_compute(backend, graph) == GCUDA_STATUS_FAILED);
    CHECK_EQ_I(n_texts, 3);
    CHECK_EQ_I(depth, 0);
    place_end(&p);
    gcuda_backend_free(backend);
    clean();
}
