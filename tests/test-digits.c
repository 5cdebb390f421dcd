// Tests of the code of examples/digits.c: bit-identical training on any number of threads, gradients summed over
// several passes, clipping, damaged weight files. Each host allocation fails once, from model to reloaded file.
#define GCUDA_IMPLEMENTATION
#define main digits_main
#include "../examples/digits.c"
#undef main

#include "test.h"

static struct data test_data;

static const struct data * digits(void) {
    static bool ready;
    if (!ready) { split_data(&test_data); }
    ready = true;
    return &test_data;
}

static gcuda_backend_t cpu_with(int n_threads) {
    gcuda_backend_t cpu = gcuda_backend_cpu_init();
    if (cpu != NULL && gcuda_backend_cpu_set_n_threads(cpu, n_threads) == GCUDA_STATUS_SUCCESS) { return cpu; }
    gcuda_backend_free(cpu);
    return NULL;
}

TEST(data_is_whole) {
    int per_class[N_CLASSES] = { 0 };
    for (int i = 0; i < DIGITS_COUNT; ++i) {
        const char * text = digits_data[i];
        bool good = strlen(text) == 2 + N_PIXELS && text[0] >= '0' && text[0] <= '9' && text[1] == ':';
        for (int k = 2; good && text[k]; ++k) {
            good = (text[k] >= '0' && text[k] <= '9') || (text[k] >= 'A' && text[k] <= 'G');
        }
        CHECK_MSG(good, "digit %d is '%s'", i, text);
        if (good) { per_class[text[0] - '0']++; }
    }
    for (int c = 0; c < N_CLASSES; ++c) {
        CHECK_MSG(per_class[c] > 170 && per_class[c] < 190, "%d of class %d", per_class[c], c);
    }
}

// =====================================================================================================================
// >>training
// =====================================================================================================================
static gcuda_status train_some(
    gcuda_backend_t cpu, struct model * m, struct network * net, int n_steps, double * loss) {
    struct trainer t;
    unsigned long long seed = 5;
    TRY(made(cpu));
    TRY(model_init(m, cpu, GCUDA_TYPE_F32, true));
    TRY(model_randomise(m, &seed));
    TRY(network_init(net, cpu, m, BATCH, true));
    trainer_init(&t, seed, 1);
    shuffle(&t);
    *loss = 0.0;
    for (int i = 0; i < n_steps; ++i) {
        float step_loss;
        TRY(train_step(&t, cpu, net, digits(), t.order + i * BATCH, &step_loss));
        *loss += (double) step_loss;
    }
    return GCUDA_STATUS_SUCCESS;
}

// All learned numbers after some steps.
static bool trained_weights(int n_threads, float * out, size_t n_max, size_t * n_out, double * loss) {
    struct model m;
    struct network net;
    memset(&m, 0, sizeof m);
    memset(&net, 0, sizeof net);
    gcuda_backend_t cpu = cpu_with(n_threads);
    bool ok = test_ok(__FILE__, __LINE__, "train_some", train_some(cpu, &m, &net, 40, loss));
    size_t n = 0;
    for (int i = 0; ok && i < N_PARAMS; ++i) {
        const size_t count = (size_t) gcuda_nelements(m.param[i]);
        ok = n + count <= n_max && CHECK_OK(gcuda_backend_tensor_get(m.param[i], out + n, 0, count * sizeof(float)));
        n += count;
    }
    *n_out = n;
    network_free(&net);
    model_free(&m);
    gcuda_backend_free(cpu);
    return ok;
}

TEST(training_is_the_same_on_any_number_of_threads) {
    enum { N_MAX = 40000 };
    static float one[N_MAX], many[N_MAX];
    size_t n = 0, n_many = 0;
    double loss_one, loss_many;
    REQUIRE(trained_weights(1, one, N_MAX, &n, &loss_one));
    CHECK(isfinite(loss_one) && loss_one > 0.0);
    for (int threads = 1; threads <= 4; ++threads) { // 1 again: a second run gives the same too
        REQUIRE(trained_weights(threads, many, N_MAX, &n_many, &loss_many));
        CHECK_MSG(n == n_many && memcmp(one, many, n * sizeof(float)) == 0, "weights differ with %d threads", threads);
        CHECK_MSG(loss_one == loss_many, "losses %.17g and, with %d threads, %.17g", loss_one, threads, loss_many);
    }
}

// =====================================================================================================================
// >>gradients   of the main job's model, summed over passes and clipped
// =====================================================================================================================
struct gradients {
    gcuda_backend_t cpu;
    struct model m;
    struct network net;
    struct gcuda_context * ctx; // of the accumulators
    gcuda_backend_buffer_t buffer;
    struct gcuda_tensor *acc[N_PARAMS], *grad[N_PARAMS], *norm;
};

static gcuda_status make_accumulators(struct gradients * g) {
    const struct gcuda_init_params params = { 0, NULL, true };
    TRY(made(g->ctx = gcuda_init(params)));
    for (int i = 0; i < N_PARAMS; ++i) { TRY(made(g->acc[i] = gcuda_dup_tensor(g->ctx, g->m.param[i]))); }
    return made(g->buffer = gcuda_backend_alloc_ctx_tensors(g->ctx, g->cpu));
}

static gcuda_status build_gradients(struct gradients * g, bool accumulate, float max_norm) {
    struct gcuda_tensor * accs[64] = { NULL };
    struct network * net = &g->net;
    build_forward(net, &g->m);
    TRY(gcuda_set_loss(net->loss));
    TRY(gcuda_build_forward_expand(net->graph, net->loss));
    const int n_nodes = gcuda_graph_n_nodes(net->graph);
    if (n_nodes > 64) { return fail(GCUDA_STATUS_FAILED, "%d nodes", n_nodes); }
    for (int i = 0; accumulate && i < n_nodes; ++i) {
        for (int k = 0; k < N_PARAMS; ++k) {
            if (gcuda_graph_node(net->graph, i) == g->m.param[k]) { accs[i] = g->acc[k]; }
        }
    }
    TRY(gcuda_build_backward_expand(net->ctx, net->graph, accumulate ? accs : NULL));
    if (max_norm > 0.0f) {
        TRY(gcuda_graph_clip_grads(net->ctx, net->graph, max_norm, &g->norm));
        gcuda_set_output(g->norm);
    }
    for (int k = 0; k < N_PARAMS; ++k) {
        TRY(made(g->grad[k] = gcuda_graph_get_grad(net->graph, g->m.param[k])));
        if (accumulate && gcuda_graph_get_grad_acc(net->graph, g->m.param[k]) != g->acc[k]) {
            return fail(GCUDA_STATUS_FAILED, "parameter %d has another accumulator", k);
        }
        gcuda_set_output(g->grad[k]);
    }
    return GCUDA_STATUS_SUCCESS;
}

static gcuda_status gradients_init(struct gradients * g, int n_images, bool accumulate, float max_norm) {
    unsigned long long seed = 9;
    memset(g, 0, sizeof *g);
    TRY(made(g->cpu = cpu_with(2)));
    TRY(model_init(&g->m, g->cpu, GCUDA_TYPE_F32, true));
    TRY(model_randomise(&g->m, &seed));
    TRY(make_accumulators(g));
    const struct gcuda_init_params params = { 0, NULL, true };
    g->net.n_images = n_images;
    TRY(made(g->net.ctx = gcuda_init(params)));
    TRY(made(g->net.graph = gcuda_new_graph_custom(g->net.ctx, 256, true)));
    TRY(build_gradients(g, accumulate, max_norm));
    TRY(made(g->net.galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(g->cpu))));
    TRY(gcuda_gallocr_alloc_graph(g->net.galloc, g->net.graph));
    return gcuda_graph_reset(g->net.graph);
}

static void gradients_free(struct gradients * g) {
    network_free(&g->net);
    gcuda_backend_buffer_free(g->buffer);
    gcuda_free(g->ctx);
    model_free(&g->m);
    gcuda_backend_free(g->cpu);
}

// One pass over the training digits from `first` on.
static gcuda_status pass(struct gradients * g, int first) {
    int labels[BATCH];
    const size_t row = N_PIXELS * sizeof(float);
    for (int i = 0; i < g->net.n_images; ++i) {
        const struct digit * d = &digits()->train[first + i];
        TRY(gcuda_backend_tensor_set(g->net.images, d->pixel, (size_t) i * row, row));
        labels[i] = d->label;
    }
    TRY(set_labels(&g->net, labels));
    return gcuda_backend_graph_compute(g->cpu, g->net.graph);
}

static float * values_of(const struct gcuda_tensor * t) {
    float * v = (float *) malloc(gcuda_nbytes(t));
    if (v != NULL && !CHECK_OK(gcuda_backend_tensor_get(t, v, 0, gcuda_nbytes(t)))) {
        memset(v, 0xFF, gcuda_nbytes(t));
    }
    return v;
}

static void check_scaled(struct gcuda_tensor * const * a, struct gcuda_tensor * const * b, double factor,
    double tolerance, const char * what) {
    for (int i = 0; i < N_PARAMS; ++i) { // a == factor * b, up to tolerance of the largest element
        float *x = values_of(a[i]), *y = values_of(b[i]);
        double worst = 0.0, largest = 0.0;
        for (int64_t k = 0; x && y && k < gcuda_nelements(a[i]); ++k) {
            const double d = fabs((double) x[k] - factor * (double) y[k]);
            worst = d > worst || isnan(d) ? d : worst;
            largest = fmax(largest, fabs(factor * (double) y[k]));
        }
        CHECK_MSG(largest > 0.0 && worst <= tolerance * largest, "%s: parameter %d is off by %g of %g", what, i, worst,
            largest);
        free(x);
        free(y);
    }
}

static double norm_of(struct gcuda_tensor * const * g) {
    double sum = 0.0;
    for (int i = 0; i < N_PARAMS; ++i) {
        float * x = values_of(g[i]);
        for (int64_t k = 0; x && k < gcuda_nelements(g[i]); ++k) { sum += (double) x[k] * (double) x[k]; }
        free(x);
    }
    return sqrt(sum);
}

TEST(gradients_add_up_over_passes) { // the loss is a mean: two halves give twice the gradient of the whole
    struct gradients half, whole;
    CHECK_OK(gradients_init(&half, BATCH / 2, true, 0.0f));
    CHECK_OK(gradients_init(&whole, BATCH, false, 0.0f));
    if (CHECK_OK(pass(&half, 0)) && CHECK_OK(pass(&half, BATCH / 2)) && CHECK_OK(pass(&whole, 0))) {
        check_scaled(half.acc, whole.grad, 2.0, 1e-5, "two halves");
        CHECK_OK(gcuda_graph_reset(half.net.graph)); // begins anew
        CHECK_OK(pass(&half, 0));
        CHECK_OK(pass(&half, 0));
        CHECK_OK(pass(&half, BATCH / 2));
        CHECK_OK(pass(&half, BATCH / 2));
        check_scaled(half.acc, whole.grad, 4.0, 1e-5, "four halves after a reset");
        CHECK_OK(pass(&whole, BATCH)); // without accumulators nothing is left of the pass before
        CHECK_OK(pass(&whole, 0));
        CHECK_OK(gcuda_graph_reset(half.net.graph));
        CHECK_OK(pass(&half, 0));
        CHECK_OK(pass(&half, BATCH / 2));
        check_scaled(half.acc, whole.grad, 2.0, 1e-5, "other data in between");
    }
    gradients_free(&half);
    gradients_free(&whole);
}

static void check_clipped(const struct gradients * plain, double norm, double max_norm) {
    struct gradients g;
    if (CHECK_OK(gradients_init(&g, BATCH, false, (float) max_norm)) && CHECK_OK(pass(&g, 0))) {
        float got = -1.0f;
        const double factor = max_norm < norm ? max_norm / norm : 1.0;
        CHECK_OK(gcuda_backend_tensor_get(g.norm, &got, 0, sizeof got));
        CHECK_NEAR(got, norm, 1e-5 * norm);
        CHECK_NEAR(norm_of(g.grad), factor * norm, 1e-5 * norm);
        check_scaled(g.grad, plain->grad, factor, 1e-5, "clipped");
    }
    gradients_free(&g);
}

TEST(gradients_are_clipped_to_a_norm) {
    struct gradients plain;
    if (CHECK_OK(gradients_init(&plain, BATCH, false, 0.0f)) && CHECK_OK(pass(&plain, 0))) {
        const double norm = norm_of(plain.grad);
        CHECK(norm > 0.0);
        check_clipped(&plain, norm, 0.25 * norm);
        check_clipped(&plain, norm, 0.999 * norm);
        check_clipped(&plain, norm, 10.0 * norm); // below the limit nothing changes
    }
    gradients_free(&plain);
}

// =====================================================================================================================
// >>files   weights saved and loaded again
// =====================================================================================================================
static gcuda_status test_reloaded(
    const struct model * m, enum gcuda_type type, gcuda_backend_t cpu, struct result * r) {
    struct model again;
    memset(&again, 0, sizeof again);
    FILE * f = tmpfile();
    if (f == NULL) { return fail(GCUDA_STATUS_FAILED, "no temporary file"); }
    gcuda_status st = save_model(f, m, type);
    rewind(f);
    if (st == GCUDA_STATUS_SUCCESS) { st = load_model(f, &again, cpu); }
    if (st == GCUDA_STATUS_SUCCESS) { st = test_model(cpu, &again, digits(), r); }
    CHECK(st != GCUDA_STATUS_SUCCESS || again.type == type);
    model_free(&again);
    fclose(f);
    return st;
}

TEST(reloaded_weights_keep_the_accuracy) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F16, GCUDA_TYPE_Q8_0 };
    struct model m;
    struct network net;
    struct result trained, again;
    double loss;
    memset(&m, 0, sizeof m);
    memset(&net, 0, sizeof net);
    gcuda_backend_t cpu = cpu_with(2);
    if (CHECK_OK(train_some(cpu, &m, &net, 40, &loss)) && CHECK_OK(test_model(cpu, &m, digits(), &trained))) {
        CHECK_MSG(trained.accuracy > 0.7, "%.4f right after 40 steps", trained.accuracy);
        for (int i = 0; i < 2; ++i) {
            if (!CHECK_OK(test_reloaded(&m, types[i], cpu, &again))) { continue; }
            CHECK_MSG(fabs(again.accuracy - trained.accuracy) <= 0.01, "%s: %.4f right, %.4f before",
                gcuda_type_name(types[i]), again.accuracy, trained.accuracy);
        }
    }
    network_free(&net);
    model_free(&m);
    gcuda_backend_free(cpu);
}

// =====================================================================================================================
// >>failures   of allocations and of files
// =====================================================================================================================
static gcuda_status save_and_load(const struct model * m, struct model * again, FILE * f, gcuda_backend_t cpu) {
    struct result r;
    TRY(save_model(f, m, GCUDA_TYPE_Q8_0));
    rewind(f);
    TRY(load_model(f, again, cpu));
    return test_model(cpu, again, digits(), &r);
}

// Backend with threads, model, forward and backward graph, allocation, steps, save, load, inference; then all freed.
static gcuda_status whole_job(FILE * f) {
    struct model m, again;
    struct network net;
    double loss;
    memset(&m, 0, sizeof m);
    memset(&again, 0, sizeof again);
    memset(&net, 0, sizeof net);
    gcuda_backend_t cpu = cpu_with(3);
    gcuda_status st = train_some(cpu, &m, &net, 2, &loss);
    if (st == GCUDA_STATUS_SUCCESS) { st = save_and_load(&m, &again, f, cpu); }
    network_free(&net);
    model_free(&m);
    model_free(&again);
    gcuda_backend_free(cpu);
    gcuda_shutdown();
    return st;
}

TEST(the_main_job_survives_every_failed_allocation) {
    for (int k = 1; k < 5000; ++k) {
        FILE * f = tmpfile();
        if (f == NULL) {
            test_skip("no temporary files here");
            return;
        }
        struct fault fault;
        fault_begin(&fault, k);
        gcuda_clear_last_error();
        const gcuda_status st = whole_job(f);
        fault_end(&fault);
        fclose(f);
        CHECK_MSG(fault.live == 0, "allocation %d failed and left %ld alive", k, fault.live);
        CHECK_MSG(
            (st == GCUDA_STATUS_SUCCESS) == !fault.fired, "allocation %d failed and the status is %d", k, (int) st);
        CHECK_MSG(!fault.fired || gcuda_last_error()[0] != '\0', "allocation %d failed without a message", k);
        if (!fault.fired) {
            CHECK_MSG(k > 20, "%d allocations only", k - 1);
            return;
        }
    }
    CHECK(!"it never runs through");
}

enum { FILE_MAX = 1 << 18 };

// The file of a fresh model, in memory. 0: no temporary files here.
static size_t make_file(gcuda_backend_t cpu, enum gcuda_type type, unsigned char * bytes) {
    struct model m;
    unsigned long long seed = 3;
    FILE * f = tmpfile();
    size_t n = 0;
    memset(&m, 0, sizeof m);
    if (f != NULL && CHECK_OK(model_init(&m, cpu, GCUDA_TYPE_F32, true)) && CHECK_OK(model_randomise(&m, &seed)) &&
        CHECK_OK(save_model(f, &m, type))) {
        rewind(f);
        n = fread(bytes, 1, FILE_MAX, f);
    }
    if (f != NULL) { fclose(f); }
    model_free(&m);
    return n;
}

static gcuda_status load_bytes(gcuda_backend_t cpu, const unsigned char * bytes, size_t n) {
    struct model m;
    FILE * f = tmpfile();
    memset(&m, 0, sizeof m);
    if (f == NULL || fwrite(bytes, 1, n, f) != n) { return GCUDA_STATUS_ABORTED; } // of no use to any check below
    rewind(f);
    gcuda_clear_last_error();
    const gcuda_status st = load_model(f, &m, cpu);
    CHECK(st == GCUDA_STATUS_SUCCESS || gcuda_last_error()[0] != '\0');
    model_free(&m);
    fclose(f);
    return st;
}

static void check_damage(gcuda_backend_t cpu, unsigned char * bytes, size_t n, size_t first_tensor) {
    struct rng r = rng_for("damage");
    for (size_t cut = 0; cut < n; cut = cut < first_tensor ? cut + 1 : cut + 997) {
        CHECK_MSG(load_bytes(cpu, bytes, cut) < 0, "cut after %zu of %zu bytes", cut, n);
    }
    for (size_t i = 0; i < first_tensor; ++i) { // every byte of the description matters
        bytes[i] ^= (unsigned char) (1u << (i % 8));
        CHECK_MSG(load_bytes(cpu, bytes, n) < 0, "byte %zu changed", i);
        bytes[i] ^= (unsigned char) (1u << (i % 8));
    }
    for (int i = 0; i < 50; ++i) { // numbers may be anything finite
        const size_t at = first_tensor + (size_t) rng_below(&r, (int64_t) (n - first_tensor));
        const unsigned char old = bytes[at];
        bytes[at] = (unsigned char) rng_below(&r, 256);
        const gcuda_status st = load_bytes(cpu, bytes, n);
        CHECK_MSG(st == GCUDA_STATUS_SUCCESS || st == GCUDA_STATUS_INVALID_DATA, "byte %zu: status %d", at, (int) st);
        bytes[at] = old;
    }
}

TEST(damaged_weight_files_are_refused) {
    static unsigned char bytes[FILE_MAX];
    static const enum gcuda_type types[] = { GCUDA_TYPE_F16, GCUDA_TYPE_Q8_0 };
    gcuda_backend_t cpu = cpu_with(1);
    for (int i = 0; i < 2; ++i) {
        const size_t n = make_file(cpu, types[i], bytes), first_tensor = HEADER_BYTES + RECORD_BYTES;
        if (n == 0) {
            test_skip("no temporary files here");
            break;
        }
        CHECK_OK(load_bytes(cpu, bytes, n));
        check_damage(cpu, bytes, n, first_tensor);
        CHECK(n < FILE_MAX && load_bytes(cpu, bytes, n + 1) == GCUDA_STATUS_INVALID_DATA); // a byte too many
        bytes[first_tensor] = 0x00; // an F16 infinity: a weight, or the scale of a block
        bytes[first_tensor + 1] = 0x7C;
        CHECK(load_bytes(cpu, bytes, n) == GCUDA_STATUS_INVALID_DATA);
    }
    gcuda_backend_free(cpu);
}
