// Profiling on the simulated device: callbacks, one record per launched node with a time, traces that are JSON, running
// out of memory. Each CUDA call fails once.
#define _GNU_SOURCE 1
#include "sim-test.h"

#include <unistd.h>

enum { N = 300 };

// y = softmax(gelu(x) * x), with a view that is not launched
struct work {
    gcuda_backend_t backend;
    struct place place;
    struct gcuda_tensor * x;
    struct gcuda_cgraph * graph;
};
static const char * const OPS[] = { "GELU", "MUL", "SOFT_MAX" };
enum { N_NODES = 3 };

static bool work_begin(struct work * w, const char * name) {
    w->backend = gcuda_backend_cuda_init(0);
    w->place = place_begin();
    w->x = gcuda_new_tensor_2d(w->place.ctx, GCUDA_TYPE_F32, N, 4);
    gcuda_set_name(w->x, "x");
    struct gcuda_tensor * g = gcuda_set_name(gcuda_gelu(w->place.ctx, w->x), name);
    struct gcuda_tensor * m = gcuda_set_name(gcuda_mul(w->place.ctx, g, w->x), "product");
    struct gcuda_tensor * v = gcuda_reshape_2d(w->place.ctx, m, 2 * N, 2);
    w->graph = gcuda_new_graph(w->place.ctx);
    if (gcuda_build_forward_expand(w->graph, gcuda_soft_max(w->place.ctx, v)) != GCUDA_STATUS_SUCCESS) { return false; }
    if (w->backend == NULL || !place_alloc(&w->place, w->backend)) { return false; }
    return gcuda_backend_tensor_memset(w->x, 0, 0, gcuda_nbytes(w->x)) == GCUDA_STATUS_SUCCESS;
}

static void work_end(struct work * w) {
    place_end(&w->place);
    gcuda_backend_free(w->backend);
}

// =====================================================================================================================
// >>records
// =====================================================================================================================
TEST(a_record_for_each_node_that_was_launched) {
    struct work w;
    const struct gcuda_cuda_profile_record * r = NULL;
    size_t n = 7;
    REQUIRE(work_begin(&w, "activation"));
    CHECK_OK(gcuda_cuda_profile_get(w.backend, &r, &n));
    CHECK(n == 0);
    CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph)); // not yet recording
    CHECK_OK(gcuda_cuda_profile_begin(w.backend));
    for (int i = 0; i < 5; ++i) { CHECK_OK(gcuda_backend_graph_compute_async(w.backend, w.graph)); }
    CHECK_OK(gcuda_cuda_profile_get(w.backend, &r, &n));
    CHECK_EQ_I(n, 5 * N_NODES);
    double end_us = 0.0;
    for (size_t i = 0; i < n && n == 5 * N_NODES; ++i) {
        CHECK(strcmp(r[i].op, OPS[i % N_NODES]) == 0 && r[i].graph == (int) i / N_NODES);
        CHECK(r[i].us > 0.0 && r[i].start_us >= end_us - 1e-3); // one after the other, on one stream
        end_us = r[i].start_us + r[i].us;
        CHECK(i % N_NODES == 0 || r[i].index > r[i - 1].index);
    }
    REQUIRE(n >= N_NODES);
    CHECK(strcmp(r[0].name, "activation") == 0 && strcmp(r[1].name, "product") == 0);
    CHECK(r[1].n_src == 2 && r[1].src_type[1] == GCUDA_TYPE_F32 && r[1].ne[0] == N && r[1].src_ne[1][1] == 4);
    CHECK_EQ_I(r[0].n_bytes, 2 * 4 * N * 4);
    CHECK_EQ_I(r[1].n_bytes, 3 * 4 * N * 4);
    CHECK(r[2].ne[0] == 2 * N && r[2].n_src == 1);
    CHECK_OK(gcuda_cuda_profile_end(w.backend));
    CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph)); // no longer
    CHECK_OK(gcuda_cuda_profile_get(w.backend, &r, &n));
    CHECK_EQ_I(n, 5 * N_NODES);
    CHECK_OK(gcuda_cuda_profile_begin(w.backend)); // afresh
    CHECK_OK(gcuda_cuda_profile_get(w.backend, &r, &n));
    CHECK_EQ_I(n, 0);
    work_end(&w);
    clean();
}

TEST(off_it_makes_no_events_and_on_only_for_the_first_graph) {
    struct work w;
    REQUIRE(work_begin(&w, "a"));
    const long made = sim_counts("cudaEventCreateWithFlags"), recorded = sim_counts("cudaEventRecord");
    CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph));
    CHECK(sim_counts("cudaEventCreateWithFlags") == made && sim_counts("cudaEventRecord") == recorded);
    CHECK_OK(gcuda_cuda_profile_begin(w.backend));
    CHECK(gcuda_cuda_profile_get(w.backend, NULL, NULL) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph));
    const long after_one = sim_counts("cudaEventCreateWithFlags");
    CHECK_EQ_I(after_one - made, 2 + 2 * N_NODES);
    for (int i = 0; i < 20; ++i) { CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph)); }
    CHECK_EQ_I(sim_counts("cudaEventCreateWithFlags"), after_one);
    work_end(&w);
    clean();
}

TEST(times_and_results_for_every_seed) {
    static float first[4 * N], out[4 * N];
    for (uint64_t seed = 0; seed < (test_full() ? 100u : 10u); ++seed) {
        struct work w;
        const struct gcuda_cuda_profile_record * r = NULL;
        size_t n = 0;
        fresh(1, 64 * MB, seed);
        REQUIRE(work_begin(&w, "a"));
        for (int i = 0; i < 4 * N; ++i) { out[i] = (float) (i % 37) * 0.1f; }
        CHECK_OK(gcuda_backend_tensor_set(w.x, out, 0, sizeof out));
        CHECK_OK(gcuda_cuda_profile_begin(w.backend));
        CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph));
        CHECK_OK(gcuda_backend_tensor_get(gcuda_graph_node(w.graph, -1), out, 0, sizeof out));
        if (seed == 0) { memcpy(first, out, sizeof out); }
        CHECK(memcmp(first, out, sizeof out) == 0);
        CHECK_OK(gcuda_cuda_profile_get(w.backend, &r, &n));
        CHECK_EQ_I(n, N_NODES);
        for (size_t i = 0; i < n; ++i) { CHECK(r[i].us > 0.0); }
        work_end(&w);
    }
    clean();
}

// Nodes that are captured have not run: no times, and the capture is not disturbed.
TEST(a_captured_graph_has_no_records) {
    struct work w;
    struct gcuda_cuda_params params;
    const struct gcuda_cuda_profile_record * r = NULL;
    size_t n = 0;
    cudaStream_t stream = NULL;
    cudaGraph_t captured = NULL;
    cudaGraphExec_t ready = NULL;
    static float in[4 * N], wanted[4 * N], out[4 * N];
    for (int i = 0; i < 4 * N; ++i) { in[i] = (float) (i % 11); }
    REQUIRE(work_begin(&w, "a") && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    memset(&params, 0, sizeof params);
    params.stream = stream;
    gcuda_backend_t backend = gcuda_backend_cuda_init_params(&params);
    REQUIRE(backend != NULL);
    CHECK_OK(gcuda_backend_tensor_set(w.x, in, 0, sizeof in));
    CHECK_OK(gcuda_cuda_profile_begin(backend));
    CHECK_OK(gcuda_backend_graph_compute(backend, w.graph));
    CHECK_OK(gcuda_backend_tensor_get(gcuda_graph_node(w.graph, -1), wanted, 0, sizeof wanted));
    CHECK_OK(gcuda_backend_tensor_memset(gcuda_graph_node(w.graph, -1), 0, 0, sizeof out));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK_OK(gcuda_backend_graph_compute_async(backend, w.graph));
    CHECK(gcuda_cuda_profile_begin(backend) == GCUDA_STATUS_UNSUPPORTED);
    CHECK_HAS(gcuda_last_error(), "captured");
    CHECK(cudaStreamEndCapture(stream, &captured) == cudaSuccess);
    CHECK_OK(gcuda_cuda_profile_get(backend, &r, &n));
    CHECK_EQ_I(n, N_NODES);
    CHECK(cudaGraphInstantiate(&ready, captured, 0) == cudaSuccess && cudaGraphLaunch(ready, stream) == cudaSuccess);
    CHECK_OK(gcuda_backend_graph_compute(backend, w.graph));
    CHECK_OK(gcuda_backend_tensor_get(gcuda_graph_node(w.graph, -1), out, 0, sizeof out));
    CHECK(memcmp(out, wanted, sizeof out) == 0);
    CHECK_OK(gcuda_cuda_profile_get(backend, &r, &n));
    CHECK_EQ_I(n, 2 * N_NODES);
    CHECK(cudaGraphExecDestroy(ready) == cudaSuccess && cudaGraphDestroy(captured) == cudaSuccess);
    gcuda_backend_free(backend);
    work_end(&w);
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    clean();
}

// =====================================================================================================================
// >>callbacks
// =====================================================================================================================
struct calls {
    int n, bad;
    int last_index;
    long launches;
};
static void on_node(const struct gcuda_tensor * node, int index, bool is_launched, void * user) {
    struct calls * c = (struct calls *) user;
    const bool is_second = c->n % 2 != 0;
    const long launches = sim_counts("cudaLaunchKernelEx");
    c->bad += is_launched != is_second || strcmp(gcuda_op_desc(node), OPS[c->n / 2 % N_NODES]) != 0;
    c->bad += is_second && (index != c->last_index || launches <= c->launches); // launched between the two
    c->last_index = index;
    c->launches = launches;
    c->n++;
}

TEST(a_callback_before_and_after_each_node) {
    struct work w;
    struct calls c = { 0, 0, 0, 0 };
    REQUIRE(work_begin(&w, "a"));
    CHECK_OK(gcuda_cuda_set_node_callback(w.backend, on_node, &c));
    CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph));
    CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph));
    CHECK(c.n == 4 * N_NODES && c.bad == 0);
    CHECK_OK(gcuda_cuda_profile_begin(w.backend)); // both
    CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph));
    CHECK(c.n == 6 * N_NODES && c.bad == 0);
    sim_fail("cudaLaunchKernelEx", 2, cudaErrorInvalidValue); // of the second node
    CHECK(gcuda_backend_graph_compute(w.backend, w.graph) == GCUDA_STATUS_FAILED);
    CHECK_EQ_I(c.n, 6 * N_NODES + 3);
    CHECK_OK(gcuda_cuda_set_node_callback(w.backend, NULL, NULL));
    CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph));
    CHECK_EQ_I(c.n, 6 * N_NODES + 3);
    const struct gcuda_cuda_profile_record * r = NULL;
    size_t n = 0;
    CHECK_OK(gcuda_cuda_profile_get(w.backend, &r, &n));
    CHECK_EQ_I(n, 2 * N_NODES + 1); // of the failed graph, what ran
    work_end(&w);
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    CHECK(gcuda_cuda_set_node_callback(cpu, on_node, &c) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_profile_begin(cpu) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_profile_end(cpu) == GCUDA_STATUS_INVALID_ARGUMENT &&
          gcuda_cuda_profile_get(cpu, &r, &n) == GCUDA_STATUS_INVALID_ARGUMENT && r == NULL && n == 0 &&
          gcuda_cuda_profile_write_trace(cpu, "x") == GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_backend_free(cpu);
    clean();
}

// =====================================================================================================================
// >>traces
// =====================================================================================================================
// Python reads the trace, checks it and prints the second event's name in its own notation.
static void read_trace(const char * path, char * name, size_t size) {
    static const char script[] =
        "import json,sys\n"
        "e=json.load(open(sys.argv[1],encoding='utf-8'))['traceEvents']\n"
        "assert e[0]['ph']=='M' and e[0]['args']['name']=='CUDA0',e[0]\n"
        "for x in e[1:]:\n"
        " assert x['ph']=='X' and x['dur']>0 and x['ts']>=0 and x['pid']==0 and x['tid']==0,x\n"
        " assert x['args']['bytes']>0 and x['args']['result'].startswith('f32 [') and 'src0' in x['args'],x\n"
        "assert [x['cat'] for x in e[1:]]==['GELU','MUL','SOFT_MAX']*2\n"
        "assert e[3]['args']['result']=='f32 [600, 2, 1, 1]' and e[2]['args']['src1']=='f32 [300, 4, 1, 1]'\n"
        "print(ascii(e[1]['name']))\n";
    char command[256], program[128];
    name[0] = '\0';
    snprintf(program, sizeof program, "%s.py", path);
    FILE * f = fopen(program, "w");
    REQUIRE(f != NULL);
    fputs(script, f);
    fclose(f);
    snprintf(command, sizeof command, "python3 %s %s", program, path);
    FILE * p = popen(command, "r");
    REQUIRE(p != NULL);
    if (fgets(name, (int) size, p) == NULL) { name[0] = '\0'; }
    CHECK_EQ_I(pclose(p), 0);
    name[strcspn(name, "\n")] = '\0';
    remove(program);
}

TEST(traces_are_json_whatever_the_names) {
    static const char * const names[][2] = {
        { "plain", "'plain'" },
        { "say \"hi\" \\ / \b\f\n\r\t\x01\x7f", "'say \"hi\" \\\\ / \\x08\\x0c\\n\\r\\t\\x01\\x7f'" },
        { "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", "'gr\\xfc\\xdf \\u20ac \\U0001f600'" },
        { "cut \xe2\x82", "'cut \\ufffd\\ufffd'" },
        { "bad \xff\xc0\xaf \xed\xa0\x80 \xf5\x80",
            "'bad \\ufffd\\ufffd\\ufffd \\ufffd\\ufffd\\ufffd \\ufffd\\ufffd'" },
        { "long \xe0\x80\x80 \xf0\x8f\xbf\xbf \xf4\x90\x80\x80",
            "'long \\ufffd\\ufffd\\ufffd \\ufffd\\ufffd\\ufffd\\ufffd \\ufffd\\ufffd\\ufffd\\ufffd'" },
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        struct work w;
        char path[] = "/tmp/gcuda-traceXXXXXX", name[200];
        const int file = mkstemp(path);
        REQUIRE(file >= 0 && work_begin(&w, names[i][0]));
        close(file);
        CHECK_OK(gcuda_cuda_profile_begin(w.backend));
        CHECK_OK(gcuda_backend_graph_compute_async(w.backend, w.graph));
        CHECK_OK(gcuda_backend_graph_compute_async(w.backend, w.graph));
        CHECK_OK(gcuda_cuda_profile_write_trace(w.backend, path));
        read_trace(path, name, sizeof name);
        CHECK_MSG(strcmp(name, names[i][1]) == 0, "%s, wanted %s", name, names[i][1]);
        remove(path);
        work_end(&w);
    }
    clean();
}

// The two examples of README.md, as written there.
static gcuda_status readme_upload(
    gcuda_backend_t backend, struct gcuda_cgraph * graph, struct gcuda_tensor * weights, const void * data) {
    struct gcuda_cuda_uploader * up = gcuda_cuda_uploader_new(NULL);
    gcuda_cuda_ticket ticket;
    gcuda_status st = gcuda_cuda_upload(up, weights, data, 0, gcuda_nbytes(weights), &ticket);
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_cuda_upload_event_wait(up, ticket, backend); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute_async(backend, graph); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_cuda_upload_wait(up, ticket); }
    gcuda_cuda_uploader_free(up);
    return st;
}

static gcuda_status readme_profile(gcuda_backend_t backend, struct gcuda_cgraph * graph) {
    gcuda_status st = gcuda_cuda_profile_begin(backend);
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute(backend, graph); }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_cuda_profile_write_trace(backend, "/dev/null"); }
    return st;
}

TEST(the_examples_of_the_readme) {
    struct work w;
    static float in[4 * N], out[4 * N];
    REQUIRE(work_begin(&w, "a"));
    for (int i = 0; i < 4 * N; ++i) { in[i] = i % (2 * N) == 5 ? 30.0f : 0.0f; }
    CHECK_OK(readme_upload(w.backend, w.graph, w.x, in));
    CHECK_OK(gcuda_backend_synchronize(w.backend));
    CHECK_OK(gcuda_backend_tensor_get(gcuda_graph_node(w.graph, -1), out, 0, sizeof out));
    CHECK_NEAR(out[5], 1.0, 1e-6); // gelu(30) * 30 outweighs all zeros
    CHECK_NEAR(out[2 * N + 5], 1.0, 1e-6);
    CHECK_OK(readme_profile(w.backend, w.graph));
    work_end(&w);
    clean();
}

TEST(a_trace_that_cannot_be_written_is_a_status) {
    struct work w;
    REQUIRE(work_begin(&w, "a"));
    CHECK_OK(gcuda_cuda_profile_begin(w.backend));
    for (int i = 0; i < 30; ++i) { CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph)); }
    CHECK(gcuda_cuda_profile_write_trace(w.backend, "/nonexistent/trace.json") == GCUDA_STATUS_IO);
    CHECK_HAS(gcuda_last_error(), "/nonexistent/trace.json");
    CHECK(gcuda_cuda_profile_write_trace(w.backend, NULL) == GCUDA_STATUS_IO);
    if (access("/dev/full", W_OK) == 0) {
        CHECK(gcuda_cuda_profile_write_trace(w.backend, "/dev/full") == GCUDA_STATUS_IO);
        CHECK_HAS(gcuda_last_error(), "/dev/full");
    }
    work_end(&w);
    clean();
}

// =====================================================================================================================
// >>faults
// =====================================================================================================================
// The k-th allocation fails: of begin or of a graph, which then has not run; the next try works.
TEST(out_of_host_memory_is_a_status) {
    const struct gcuda_allocator allocator = { some_alloc, some_free, NULL };
    bool is_through = false;
    for (int k = 0; k < 10 && !is_through; ++k) {
        struct work w;
        const struct gcuda_cuda_profile_record * r = NULL;
        size_t n = 0;
        REQUIRE(work_begin(&w, "a"));
        gcuda_set_allocator(&allocator);
        allocations_left = k;
        gcuda_status st = gcuda_cuda_profile_begin(w.backend);
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_backend_graph_compute(w.backend, w.graph); }
        is_through = st == GCUDA_STATUS_SUCCESS;
        CHECK(is_through || (st == GCUDA_STATUS_ALLOC_FAILED && sim_counts("cudaLaunchKernelEx") == 0));
        allocations_left = 1000;
        CHECK_OK(gcuda_cuda_profile_begin(w.backend));
        CHECK_OK(gcuda_backend_graph_compute(w.backend, w.graph));
        CHECK_OK(gcuda_cuda_profile_get(w.backend, &r, &n));
        CHECK_EQ_I(n, N_NODES);
        gcuda_set_allocator(NULL);
        work_end(&w);
        clean();
    }
    CHECK(is_through);
}

static gcuda_status profile_some(struct work * w, size_t * n_records) {
    const struct gcuda_cuda_profile_record * r = NULL;
    gcuda_status st = gcuda_cuda_profile_begin(w->backend);
    for (int i = 0; i < 3 && st == GCUDA_STATUS_SUCCESS; ++i) {
        st = gcuda_backend_graph_compute(w->backend, w->graph);
    }
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_cuda_profile_get(w->backend, &r, n_records); }
    for (size_t i = 0; i < *n_records; ++i) { CHECK(r[i].us > 0.0); }
    const gcuda_status end = gcuda_cuda_profile_end(w->backend);
    return st != GCUDA_STATUS_SUCCESS ? st : end;
}

static bool profile_fault(const char * api, int k, cudaError_t error, bool is_sticky) {
    struct work w;
    size_t n = 0;
    fresh(1, 64 * MB, 1);
    const long alive = sim_leaks();
    if (!work_begin(&w, "a")) { return false; }
    sim_fail(api, k, error);
    const gcuda_status st = profile_some(&w, &n);
    const bool came = sim_failed() > 0;
    // asked only to put the caller's device back; without an answer the context that was pushed is popped all the same
    const bool is_harmless = strcmp(api, "cudaGetDevice") == 0;
    CHECK_MSG(came == (st != GCUDA_STATUS_SUCCESS) || is_harmless, "%s %d with error %d: status %d", api, k,
        (int) error, (int) st);
    CHECK_MSG(st != GCUDA_STATUS_SUCCESS || n == 3 * N_NODES, "%s %d with error %d: records are missing", api, k,
        (int) error);
    sim_fail(api, 0, cudaSuccess);
    n = 0;
    const gcuda_status again = profile_some(&w, &n);
    if (is_sticky && came) {
        CHECK_MSG(again == GCUDA_STATUS_DEVICE_LOST, "%s %d: a lost device, status %d", api, k, (int) again);
    } else {
        CHECK_MSG(again == GCUDA_STATUS_SUCCESS && n == 3 * N_NODES, "%s %d with error %d: not usable again: %s", api,
            k, (int) error, gcuda_last_error());
    }
    work_end(&w);
    CHECK_MSG(
        sim_leaks() == alive && sim_violations() == 0, "%s %d with error %d: leaks or wrong use", api, k, (int) error);
    return came;
}

TEST(every_cuda_call_of_a_profile_fails_in_turn) {
    static const char * const apis[] = { "cudaGetDevice", "cudaEventCreateWithFlags", "cudaEventRecord",
        "cudaEventSynchronize", "cudaEventElapsedTime" };
    for (size_t i = 0; i < sizeof apis / sizeof apis[0]; ++i) {
        bool came = true;
        for (int k = 1; came; ++k) {
            came = profile_fault(apis[i], k, cudaErrorInvalidValue, false);
            came = profile_fault(apis[i], k, cudaErrorIllegalAddress, true) && came;
            CHECK_MSG(k > 1 || came, "%s is never called", apis[i]);
        }
    }
    clean();
}
