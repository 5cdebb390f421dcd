// What lives how long: memory that the graph allocator and the scheduler give, and what they refuse since nothing is in
// it. On the CPU; tests/sim/test-checking.c has the same on a device.
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1 // setenv
#endif
#include "test.h"

static void set_variable(const char * value) {
#if defined(_WIN32)
    _putenv_s("GCUDA_CHECK_MEMORY", value != NULL ? value : "");
#else
    (void) (value != NULL ? setenv("GCUDA_CHECK_MEMORY", value, 1) : unsetenv("GCUDA_CHECK_MEMORY"));
#endif
}

#if !defined(CHECKING_DEVICE)
#define CHECKING_DEVICE NULL
#endif

enum { N = 16 };

struct bench {
    gcuda_backend_t cpu, backend; // one, when there is no device
    gcuda_backend_sched_t sched;
    gcuda_gallocr_t galloc;
    struct gcuda_context * ctx;
    struct gcuda_cgraph * graph;
    bool by_sched;
};

static bool begin(struct bench * b, bool by_sched) {
    const char * name = CHECKING_DEVICE;
    const struct gcuda_init_params params = { 0, NULL, true };
    memset(b, 0, sizeof *b);
    b->by_sched = by_sched;
    b->cpu = gcuda_backend_cpu_init();
    b->backend = name != NULL ? gcuda_backend_init_by_name(name, NULL) : b->cpu;
    b->ctx = gcuda_init(params);
    b->graph = gcuda_new_graph(b->ctx);
    if (!b->cpu || !b->backend || !b->graph) { return false; }
    if (by_sched) {
        gcuda_backend_t all[2] = { b->backend, b->cpu };
        struct gcuda_backend_sched_params p;
        memset(&p, 0, sizeof p);
        p.backends = all;
        p.n_backends = b->backend == b->cpu ? 1 : 2;
        b->sched = gcuda_backend_sched_new_params(&p);
    } else {
        b->galloc = gcuda_gallocr_new(gcuda_backend_get_default_buffer_type(b->backend));
    }
    return b->sched || b->galloc;
}

static void end(struct bench * b) {
    gcuda_backend_sched_free(b->sched);
    gcuda_gallocr_free(b->galloc);
    if (b->backend != b->cpu) { gcuda_backend_free(b->backend); }
    gcuda_backend_free(b->cpu);
    gcuda_free(b->ctx);
}

static gcuda_status place(struct bench * b) {
    return b->by_sched ? gcuda_backend_sched_alloc_graph(b->sched, b->graph)
                       : gcuda_gallocr_alloc_graph(b->galloc, b->graph);
}
static gcuda_status compute(struct bench * b) {
    return b->by_sched ? gcuda_backend_sched_graph_compute(b->sched, b->graph)
                       : gcuda_backend_graph_compute(b->backend, b->graph);
}
static struct gcuda_tensor * row(struct gcuda_context * ctx, const char * name) {
    return gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, N), name);
}
static struct gcuda_tensor * input(struct bench * b, const char * name) {
    struct gcuda_tensor * t = row(b->ctx, name);
    gcuda_set_input(t);
    return t;
}
static void fill(struct gcuda_tensor * t, float value) {
    float v[N];
    for (int i = 0; i < N; ++i) { v[i] = value; }
    CHECK_OK(gcuda_backend_tensor_set(t, v, 0, sizeof v));
}
static float first_of(const struct gcuda_tensor * t) {
    float v = -1.0f;
    CHECK_OK(gcuda_backend_tensor_get(t, &v, 0, sizeof v));
    return v;
}
static struct gcuda_tensor * wanted(struct gcuda_tensor * t) {
    gcuda_set_output(t);
    return t;
}

// =====================================================================================================================
// >>lifetimes
// =====================================================================================================================
// Nodes that want much memory.
static struct gcuda_tensor * busy(struct bench * b, struct gcuda_tensor * y) {
    for (int i = 0; i < 6; ++i) { y = gcuda_add(b->ctx, gcuda_cumsum(b->ctx, y), gcuda_scale(b->ctx, y, 3.0f)); }
    return y;
}

static void check_and_end(
    struct bench * b, struct gcuda_tensor * x, float value, struct gcuda_tensor * y, float want, int how) {
    if (CHECK_OK(place(b))) {
        fill(x, value);
        CHECK_OK(compute(b));
        CHECK_MSG(first_of(y) == want, "way %d: %g for %g", how, (double) first_of(y), (double) want);
    }
    end(b);
}

// sqr(x) is read by one node, and at the end through a view without an operation. In between much wants its memory.
TEST(a_plain_view_keeps_its_owner) {
    for (int how = 0; how < 4; ++how) { // by_sched, and whether a node reads the owner besides
        struct bench b;
        REQUIRE(begin(&b, how % 2 == 1));
        struct gcuda_tensor *x = input(&b, "x"), *kept = gcuda_sqr(b.ctx, x), *v = gcuda_view_tensor(b.ctx, kept);
        struct gcuda_tensor * y = how < 2 ? gcuda_scale(b.ctx, kept, 0.5f) : gcuda_scale(b.ctx, x, 2.0f);
        y = busy(&b, y);
        struct gcuda_tensor * z = wanted(gcuda_add(b.ctx, gcuda_scale(b.ctx, v, 2.0f), gcuda_scale(b.ctx, y, 0.0f)));
        CHECK_OK(gcuda_build_forward_expand(b.graph, kept));
        CHECK_OK(gcuda_build_forward_expand(b.graph, y));
        CHECK_OK(gcuda_build_forward_expand(b.graph, z));
        check_and_end(&b, x, 2.0f, z, 8.0f, how);
    }
}

// A view that nothing reads, and one that is an OUTPUT, are results: their owner is not given away.
TEST(a_plain_view_may_be_the_result) {
    for (int how = 0; how < 4; ++how) {
        struct bench b;
        REQUIRE(begin(&b, how % 2 == 1));
        struct gcuda_tensor *x = input(&b, "x"), *kept = gcuda_sqr(b.ctx, x), *v = gcuda_view_tensor(b.ctx, kept);
        struct gcuda_tensor * y = gcuda_scale(b.ctx, how < 2 ? kept : v, 0.5f);
        if (how >= 2) { gcuda_set_output(v); }
        CHECK_OK(gcuda_build_forward_expand(b.graph, kept));
        CHECK_OK(gcuda_build_forward_expand(b.graph, v));
        y = busy(&b, y);
        CHECK_OK(gcuda_build_forward_expand(b.graph, wanted(y)));
        check_and_end(&b, x, 3.0f, v, 9.0f, how);
    }
}

// `twice` is computed, read, and computed again: at its place nothing else may live in between or after.
TEST(a_node_listed_twice_has_one_place) {
    for (int how = 0; how < 2; ++how) {
        struct bench b;
        REQUIRE(begin(&b, how == 1));
        struct gcuda_tensor *x = input(&b, "x"), *twice = gcuda_sqr(b.ctx, x), *y = gcuda_scale(b.ctx, twice, 0.5f),
                            *all[4];
        CHECK_OK(gcuda_build_forward_expand(b.graph, y));
        for (int i = 0; i < 4; ++i) { // different, and alive to the end
            all[i] = gcuda_scale(b.ctx, x, (float) (10 + i));
            CHECK_OK(gcuda_build_forward_expand(b.graph, all[i]));
        }
        CHECK_OK(gcuda_graph_add_node(b.graph, twice));
        struct gcuda_tensor * sum = y;
        for (int i = 0; i < 4; ++i) { sum = gcuda_add(b.ctx, sum, all[i]); }
        sum = wanted(gcuda_add(b.ctx, sum, twice));
        CHECK_OK(gcuda_build_forward_expand(b.graph, sum));
        REQUIRE(CHECK_OK(place(&b)));
        for (int i = 0; i < 4; ++i) {
            CHECK_MSG(all[i]->data != twice->data, "%d has the place of the node listed twice", i);
        }
        fill(x, 1.0f);
        CHECK_OK(compute(&b));
        CHECK_MSG(first_of(sum) == 0.5f + 46.0f + 1.0f, "way %d: %g", how, (double) first_of(sum));
        end(&b);
    }
}

// Listed and read by two nodes only by hand: views that the graph does not list take nothing away from their owner.
TEST(added_nodes_are_computed) {
    for (int how = 0; how < 2; ++how) {
        struct bench b;
        REQUIRE(begin(&b, how == 1));
        struct gcuda_tensor *x = input(&b, "x"), *base = gcuda_sqr(b.ctx, x), *v = gcuda_view_1d(b.ctx, base, N, 0);
        struct gcuda_tensor *y = gcuda_scale(b.ctx, v, 3.0f), *z, *other;
        CHECK_OK(gcuda_build_forward_expand(b.graph, base));
        CHECK_OK(gcuda_graph_add_node(b.graph, y)); // v is no node
        other = gcuda_scale(b.ctx, x, 5.0f);
        CHECK_OK(gcuda_build_forward_expand(b.graph, other));
        z = wanted(gcuda_add(b.ctx, gcuda_add(b.ctx, y, base), other));
        CHECK_OK(gcuda_build_forward_expand(b.graph, z));
        CHECK((y->flags & GCUDA_TENSOR_FLAG_COMPUTE) != 0 && y->name[0] != '\0');
        REQUIRE(CHECK_OK(place(&b)));
        fill(x, 2.0f);
        CHECK_OK(compute(&b));
        CHECK_MSG(first_of(z) == 12.0f + 4.0f + 10.0f, "way %d: %g for 26", how, (double) first_of(z));
        end(&b);
    }
}

// =====================================================================================================================
// >>refusals   memory without contents
// =====================================================================================================================
TEST(weights_without_memory_are_refused) {
    const struct gcuda_init_params params = { 0, NULL, true };
    for (int how = 0; how < 8; ++how) { // by_sched; a view; an input after all
        struct bench b;
        REQUIRE(begin(&b, how % 2 == 1));
        struct gcuda_context * weights = gcuda_init(params);
        struct gcuda_tensor *w = row(weights, "the_weight"), *x = input(&b, "x");
        struct gcuda_tensor * y = wanted(gcuda_add(b.ctx, x, how & 2 ? gcuda_view_1d(b.ctx, w, N, 0) : w));
        CHECK_OK(gcuda_build_forward_expand(b.graph, y));
        if (how & 4) { gcuda_set_input(w); }
        if (!(how & 4)) {
            CHECK(place(&b) == GCUDA_STATUS_INVALID_ARGUMENT);
            CHECK_HAS(gcuda_last_error(), "'the_weight'");
            CHECK_HAS(gcuda_last_error(), "gcuda_set_input");
            CHECK(w->data == NULL && y->data == NULL);
        }
        gcuda_backend_buffer_t buffer = how & 4 ? NULL : gcuda_backend_alloc_ctx_tensors(weights, b.backend);
        REQUIRE(CHECK_OK(place(&b)));
        fill(w, 1.0f);
        fill(x, 2.0f);
        CHECK_OK(compute(&b));
        CHECK_NEAR(first_of(y), 3.0f, 0.0);
        end(&b);
        gcuda_backend_buffer_free(buffer);
        gcuda_free(weights);
    }
}

// The plan of the graph before fits: where the leaf is, is looked at all the same.
TEST(weights_without_memory_are_refused_in_a_graph_built_again) {
    const struct gcuda_init_params params = { 0, NULL, true };
    struct bench b;
    REQUIRE(begin(&b, false));
    struct gcuda_context * weights = gcuda_init(params);
    struct gcuda_tensor *mine = row(b.ctx, "mine"), *other = row(weights, "other");
    CHECK_OK(gcuda_build_forward_expand(b.graph, gcuda_sqr(b.ctx, mine)));
    CHECK_OK(place(&b));
    b.graph = gcuda_new_graph(b.ctx);
    CHECK_OK(gcuda_build_forward_expand(b.graph, gcuda_sqr(b.ctx, other)));
    CHECK(place(&b) == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "'other'");
    gcuda_free(weights);
    end(&b);
}

TEST(what_nothing_computes_is_refused) {
    // by_sched; never computed, computed too late, seen through a view, without a name
    for (int how = 0; how < 8; ++how) {
        struct bench b;
        REQUIRE(begin(&b, how % 2 == 1));
        struct gcuda_tensor *x = input(&b, "x"), *never = gcuda_set_name(gcuda_sqr(b.ctx, x), "never");
        struct gcuda_tensor * src = how / 2 >= 2 ? gcuda_view_tensor(b.ctx, never) : never;
        if (how / 2 == 3) { never->name[0] = '\0'; }
        struct gcuda_tensor * y = gcuda_set_name(wanted(gcuda_scale(b.ctx, src, 3.0f)), "the_reader");
        CHECK_OK(gcuda_build_forward_expand(b.graph, x));
        CHECK_OK(gcuda_graph_add_node(b.graph, y));
        if (how / 2 == 1) { CHECK_OK(gcuda_graph_add_node(b.graph, never)); }
        CHECK(place(&b) == GCUDA_STATUS_INVALID_ARGUMENT);
        CHECK_HAS(gcuda_last_error(), "the_reader");
        CHECK_HAS(gcuda_last_error(), how / 2 == 3 ? "the owner of src0" : "'never'");
        end(&b);
    }
}

// =====================================================================================================================
// >>checking   gcuda_gallocr_set_check
// =====================================================================================================================
static void set_check(struct bench * b) {
    if (b->by_sched) {
        gcuda_backend_sched_set_check(b->sched, true);
    } else {
        gcuda_gallocr_set_check(b->galloc, true);
    }
}

TEST(an_input_set_once_and_computed_twice_is_named) {
    for (int how = 0; how < 2; ++how) {
        struct bench b;
        REQUIRE(begin(&b, how == 1));
        struct gcuda_tensor *x = input(&b, "the_input"), *y = gcuda_set_name(gcuda_sqr(b.ctx, x), "between");
        struct gcuda_tensor * z = wanted(gcuda_scale(b.ctx, y, 2.0f));
        CHECK_OK(gcuda_build_forward_expand(b.graph, z));
        set_check(&b);
        REQUIRE(CHECK_OK(place(&b)));
        CHECK(compute(&b) == GCUDA_STATUS_INVALID_DATA); // never set
        for (int run = 0; run < 2; ++run) {
            fill(x, 3.0f);
            CHECK_OK(compute(&b));
            CHECK_NEAR(first_of(z), 18.0f, 0.0);
            const float between = first_of(y);
            CHECK_MSG(between != between, "a result without OUTPUT can be read: %g", (double) between);
        }
        CHECK(compute(&b) == GCUDA_STATUS_INVALID_DATA);
        CHECK_HAS(gcuda_last_error(), "between"); // the node that reads it
        CHECK_HAS(gcuda_last_error(), "the_input");
        const float after = first_of(z);
        CHECK_MSG(after != after, "way %d: %g of an input that was not set", how, (double) after);
        end(&b);
    }
}

TEST(a_cache_read_before_it_is_written_is_named) {
    struct bench b;
    REQUIRE(begin(&b, false));
    struct gcuda_tensor *x = input(&b, "x"), *cache = input(&b, "cache"), *seen = gcuda_view_1d(b.ctx, cache, N / 2, 0);
    struct gcuda_tensor * y = wanted(gcuda_set_name(gcuda_scale(b.ctx, seen, 2.0f), "too_early"));
    struct gcuda_tensor * write = gcuda_cpy(b.ctx, x, cache);
    set_check(&b);
    CHECK_OK(gcuda_build_forward_expand(b.graph, y));
    CHECK_OK(gcuda_build_forward_expand(b.graph, write));
    REQUIRE(CHECK_OK(place(&b)));
    fill(x, 1.0f);
    CHECK(compute(&b) == GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "too_early");
    end(&b);
}

TEST(the_environment_turns_checking_on) {
    for (int how = 0; how < 8; ++how) { // by_sched; the value; whether variables mean anything
        struct bench b;
        set_variable(how & 2 ? "1" : "0");
        gcuda_use_environment((how & 4) == 0);
        const bool is_ready = begin(&b, how % 2 == 1);
        gcuda_use_environment(true);
        set_variable(NULL);
        REQUIRE(is_ready);
        struct gcuda_tensor *x = input(&b, "x"), *z = wanted(gcuda_sqr(b.ctx, x));
        CHECK_OK(gcuda_build_forward_expand(b.graph, z));
        REQUIRE(CHECK_OK(place(&b)));
        fill(x, 3.0f);
        CHECK_OK(compute(&b));
        CHECK_NEAR(first_of(z), 9.0f, 0.0);
        const float left = first_of(x);
        CHECK_MSG((left != left) == ((how & 2) != 0 && (how & 4) == 0), "way %d: %g", how, (double) left);
        end(&b);
    }
}

// A destination that holds nothing is no fault: set_rows and cpy write it.
TEST(a_destination_is_not_read) {
    for (int how = 0; how < 2; ++how) {
        struct bench b;
        REQUIRE(begin(&b, false));
        struct gcuda_tensor *x = input(&b, "x"), *cache = input(&b, "cache"),
                            *ids = gcuda_new_tensor_1d(b.ctx, GCUDA_TYPE_I64, 1), *y;
        gcuda_set_input(ids);
        y = how == 0 ? gcuda_set_rows(b.ctx, cache, x, ids) : gcuda_cpy(b.ctx, x, cache);
        set_check(&b);
        CHECK_OK(gcuda_build_forward_expand(b.graph, y));
        REQUIRE(CHECK_OK(place(&b)));
        const int64_t first = 0;
        fill(x, 1.0f);
        if (how == 0) { CHECK_OK(gcuda_backend_tensor_set(ids, &first, 0, sizeof first)); }
        CHECK_OK(compute(&b));
        CHECK_NEAR(first_of(y), 1.0f, 0.0);
        end(&b);
    }
}

// Correct graphs pass the checks: views, a node listed twice, kept results.
TEST(what_gives_a_shape_is_not_read) { // fill's tensor, im2col's kernel: never set
    for (int by_sched = 0; by_sched < 2; ++by_sched) {
        struct bench b;
        REQUIRE(begin(&b, by_sched != 0));
        set_check(&b);
        struct gcuda_tensor * x = gcuda_new_tensor_4d(b.ctx, GCUDA_TYPE_F32, N, N, 1, 1);
        struct gcuda_tensor * kernel = gcuda_new_tensor_4d(b.ctx, GCUDA_TYPE_F32, 3, 3, 1, 1);
        struct gcuda_tensor * ones = wanted(gcuda_fill(b.ctx, row(b.ctx, "like"), 1.0f));
        struct gcuda_tensor * patches = wanted(gcuda_im2col(b.ctx, kernel, x, 1, 1, 0, 0, 1, 1, true, GCUDA_TYPE_F32));
        gcuda_set_input(x);
        CHECK_OK(gcuda_build_forward_expand(b.graph, ones));
        CHECK_OK(gcuda_build_forward_expand(b.graph, patches));
        CHECK_OK(place(&b));
        for (int run = 0; run < 2; ++run) {
            fill(x, 3.0f);
            CHECK_OK(compute(&b));
            CHECK(first_of(ones) == 1.0f && first_of(patches) == 3.0f);
        }
        end(&b);
    }
}

TEST(copies_on_their_way_are_waited_for) { // what a scheduler copies to a backend is not looked at before it has come
    struct bench b;
    REQUIRE(begin(&b, true));
    set_check(&b);
    struct gcuda_tensor *x = input(&b, "x"), *y = x;
    for (int i = 0; i < 12; ++i) {
        y = i % 2 ? gcuda_add(b.ctx, y, x) : gcuda_sub(b.ctx, y, x);
        CHECK_OK(gcuda_backend_sched_set_tensor_backend(b.sched, y, i % 2 ? b.backend : b.cpu));
    }
    CHECK_OK(gcuda_build_forward_expand(b.graph, wanted(y)));
    CHECK_OK(place(&b));
    for (int run = 0; run < 20; ++run) {
        fill(x, (float) run);
        CHECK_OK(compute(&b));
        CHECK(first_of(y) == (float) run);
    }
    end(&b);
}

TEST(checking_changes_no_result) {
    for (int how = 0; how < 4; ++how) {
        struct bench b;
        REQUIRE(begin(&b, how % 2 == 1));
        if (how >= 2) { set_check(&b); }
        struct gcuda_tensor *x = input(&b, "x"), *s = gcuda_sqr(b.ctx, x), *v = gcuda_view_tensor(b.ctx, s);
        struct gcuda_tensor * y =
            gcuda_add(b.ctx, gcuda_reshape_2d(b.ctx, s, N / 2, 2), gcuda_reshape_2d(b.ctx, v, N / 2, 2));
        y = gcuda_add_inplace(b.ctx, y, gcuda_scale_inplace(b.ctx, gcuda_dup(b.ctx, y), 0.5f));
        CHECK_OK(gcuda_build_forward_expand(b.graph, s));
        CHECK_OK(gcuda_build_forward_expand(b.graph, y));
        CHECK_OK(gcuda_graph_add_node(b.graph, s));
        // a result, not OUTPUT
        struct gcuda_tensor * z = gcuda_add(b.ctx, gcuda_cumsum(b.ctx, v), gcuda_reshape_1d(b.ctx, y, N));
        CHECK_OK(gcuda_build_forward_expand(b.graph, z));
        REQUIRE(CHECK_OK(place(&b)));
        for (int run = 0; run < 2; ++run) {
            fill(x, 2.0f);
            CHECK_OK(compute(&b));
            CHECK_MSG(first_of(z) == 16.0f, "way %d: %g for 16", how, (double) first_of(z));
        }
        end(&b);
    }
}
