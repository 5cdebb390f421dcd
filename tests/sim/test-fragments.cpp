// Device code around wgmma in gcuda_kernels.cu, without its kernels: packed activations, weights in registers, results
// and split-K reduction. The product itself follows the definition of the instruction (PTX ISA).
#define gcuda_has_warp_groups own_has_warp_groups // those of the library are linked too
#define gcuda_path_wgmma own_path
#define gcuda_launch_conv_2d_wg own_conv
#define GCUDA_KERNEL_PART 13
#include "../../gcuda_kernels.cu"

#include "sim-launch.h"

struct product {
    int m, n, k, n_parts;
    double scale;
    gcuda_type b_type;
    int b_pad; // elements between columns
};

static void floats_of(gcuda_type type, const void * from, float * to, int64_t n) {
    if (type == GCUDA_TYPE_F32) {
        memcpy(to, from, (size_t) n * 4);
    } else {
        gcuda_get_type_traits(type)->to_float(from, to, n);
    }
}

static std::vector<char> random_weights(gcuda_type type, int64_t k, int64_t m, rng * r) {
    const size_t size = gcuda_type_size(type);
    const int64_t n = gcuda_blck_size(type);
    std::vector<char> data((size_t) m * gcuda_row_size(type, k));
    for (size_t at = 0; at < data.size(); at += size) {
        for (bool is_good = false; !is_good;) {
            float v[256], big = 0.0f;
            for (size_t i = 0; i < size; ++i) { data[at + i] = (char) rng_u64(r); }
            floats_of(type, &data[at], v, n);
            is_good = true;
            for (int64_t i = 0; i < n; ++i) {
                is_good = is_good && isfinite(v[i]);
                big = fmaxf(big, fabsf(v[i]));
            }
            is_good = is_good && (n == 1 || big >= 0.1f) && big <= 8.0f;
        }
    }
    return data;
}

static float as_float(__half, uint32_t bits) { return __half2float(__ushort_as_half((unsigned short) bits)); }
static float as_float(__nv_bfloat16, uint32_t bits) { return __uint_as_float(bits << 16); }

// Adds the products of a lane's four words for instruction i of a step to its two rows. Word 2 h + r has elements 2 t +
// 8 h and the next of row r. A column is 128 bytes, whose pieces of 16 are swizzled by its number.
template <typename T>
static void multiply_lane(int t, int i, const uint32_t * a, const char * stage, int n, double * sum0, double * sum1) {
    for (int h = 0; h < 2; ++h) {
        for (int e = 0; e < 2; ++e) {
            const int byte = 32 * i + 2 * (2 * t + 8 * h + e);
            const float a0 = as_float(T(), a[2 * h] >> 16 * e & 0xffffu),
                        a1 = as_float(T(), a[2 * h + 1] >> 16 * e & 0xffffu);
            for (int c = 0; c < n; ++c) {
                uint16_t bits;
                memcpy(&bits, stage + 128 * c + 16 * (byte / 16 ^ (c & 7)) + byte % 16, 2);
                sum0[c] += (double) a0 * as_float(T(), bits);
                sum1[c] += (double) a1 * as_float(T(), bits);
            }
        }
    }
}

// For TF32: word 2 h + r has element t + 4 h of row r.
template <>
void multiply_lane<float>(int t, int i, const uint32_t * a, const char * stage, int n, double * sum0, double * sum1) {
    for (int h = 0; h < 2; ++h) {
        const int byte = 32 * i + 4 * (t + 4 * h);
        for (int c = 0; c < n; ++c) {
            float v;
            memcpy(&v, stage + 128 * c + 16 * (byte / 16 ^ (c & 7)) + byte % 16, 4);
            sum0[c] += (double) __uint_as_float(a[2 * h]) * v;
            sum1[c] += (double) __uint_as_float(a[2 * h + 1]) * v;
        }
    }
}

// A slab of 128 rows as the fetching threads leave it.
template <typename A> static std::vector<char> slab_of(const d_wg_job & p, int m0, int s) {
    typedef d_wg_slab<A> slab;
    std::vector<char> to((size_t) d_wg_slab_bytes<slab>, 0);
    for (int row = 0; row < WG_ROWS; ++row) {
        for (int piece = 0; piece < slab::pieces; ++piece) {
            const int64_t byte = ((int64_t) s * slab::bytes & ~(int64_t) 15) + 16 * piece;
            if (m0 + row < p.m && byte < p.row_bytes) {
                memcpy(&to[(size_t) (row * slab::stride + 16 * piece)], p.a + (m0 + row) * p.a_stride + byte, 16);
            }
        }
    }
    return to;
}

template <typename A> static std::vector<typename d_wg_codebook<A>::type> table_of() {
    std::vector<typename d_wg_codebook<A>::type> table;
    if constexpr (d_wg_codebook<A>::n > 0) {
        for (uint32_t i = 0; i < (uint32_t) d_wg_codebook<A>::n; ++i) { table.push_back(A::entry(i)); }
    }
    return table;
}

// 64 elements of k, half u of a part of a stage, whose rows begin after skew_of(row) bytes.
template <typename A, typename S, int TN, typename F>
static void multiply_step(const std::vector<char> & slab, F skew_of, int n_rows, int part, int u,
    const std::vector<typename d_wg_codebook<A>::type> & table, const char * stage, int n, std::vector<double> & sums) {
    for (int thread = 0; thread < 256; ++thread) {
        const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
        d_wg_weights<A> w;
        uint32_t a[16];
        if (row >= n_rows) { continue; }
        w.template load<S>(slab.data(), skew_of(row), row, lane, part, table.data());
        if (u == 0) {
            w.template fragment<0>(a);
        } else {
            w.template fragment<1>(a);
        }
        for (int i = 0; i < 4; ++i) {
            multiply_lane<typename d_wg_operand<A>::type>(
                lane % 4, i, a + 4 * i, stage, n, &sums[(size_t) row * TN], &sums[(size_t) (row + 8) * TN]);
        }
    }
}

// As the threads that multiply do; m0: the first of the sums' 128 rows.
template <int TN, typename P, typename I>
static void store_sums(const P & p, const I & t, int m0, const std::vector<double> & sums) {
    for (int thread = 0; thread < 256; ++thread) {
        const int lane = thread % 32, row = thread / 32 * 16 + lane / 4;
        float d[TN / 2];
        for (int i = 0; i < TN / 2; ++i) {
            d[i] = (float) sums[(size_t) (row + i % 4 / 2 * 8) * TN + (size_t) (i / 4 * 8 + lane % 4 * 2 + i % 2)];
        }
        d_wg_store<TN>(p, t, m0 + row, lane, d);
    }
}

template <typename A, int TN>
static void multiply_item(const d_wg_job & p, int item, const std::vector<char> & packed_b) {
    typedef d_wg_slab<A> slab;
    const d_wg_item t = d_wg_item_of(p, item, TN);
    const int n = p.n - t.c0 < TN ? p.n - t.c0 : TN;
    const auto table = table_of<A>();
    for (int rank = 0; rank < 2; ++rank) {
        std::vector<double> sums((size_t) WG_ROWS * TN, 0.0);
        for (int s = t.first * d_wg_unit<A>::steps; s < t.end * d_wg_unit<A>::steps; s += 2) { // 128 elements
            for (int u = 0; u < 2; ++u) {
                const int which = (s + u) * WG_K / slab::k, part = s * WG_K % slab::k / 128;
                const int m0 = t.m0 + rank * WG_ROWS;
                const std::vector<char> data = slab_of<A>(p, m0, which);
                const char * stage =
                    &packed_b[((size_t) t.tile * (size_t) (p.n_units * d_wg_unit<A>::steps) + (size_t) (s + u)) * TN *
                              128];
                multiply_step<A, slab, TN>(
                    data, [=](int) { return which * slab::bytes & 15; }, p.m - m0, part, u, table, stage, n, sums);
            }
        }
        store_sums<TN>(p, t, t.m0 + rank * WG_ROWS, sums);
    }
}

// Columns and sums of parts are made by kernels; the product itself by the host.
template <typename A, int TN> static void run(gcuda_type a_type, const product & x) {
    typedef typename d_wg_operand<A>::type T;
    rng r = rng_for(gcuda_type_name(a_type));
    const bool is_f16 = a_type == GCUDA_TYPE_F16;
    const size_t b_size = gcuda_type_size(x.b_type), ld = (size_t) (x.k + x.b_pad);
    std::vector<char> a = random_weights(a_type, x.k, x.m, &r), b(ld * (size_t) x.n * b_size, (char) 0xff);
    for (size_t i = 0; i < ld * (size_t) x.n; ++i) {
        const float v = (float) (x.scale * rng_between(&r, -1.0, 1.0));
        if (i % ld >= (size_t) x.k) { continue; }
        if (x.b_type == GCUDA_TYPE_F32) {
            memcpy(&b[i * 4], &v, 4);
        } else {
            gcuda_get_type_traits(x.b_type)->from_float_ref(&v, &b[i * b_size], 1);
        }
    }
    d_wg_job p = {};
    p.a = a.data();
    p.a_stride = p.row_bytes = (int64_t) gcuda_row_size(a_type, x.k);
    p.m = x.m, p.n = x.n, p.n_parts = x.n_parts;
    p.m_tiles = (x.m + 2 * WG_ROWS - 1) / (2 * WG_ROWS);
    p.n_tiles = (x.n + TN - 1) / TN;
    const int halves = a_type == GCUDA_TYPE_F32 ? 2 * x.k : x.k; // or elements of what has 2 bytes or less
    p.n_units = (halves + d_wg_unit<A>::k - 1) / d_wg_unit<A>::k;
    p.n_items = (int64_t) p.m_tiles * p.n_tiles * p.n_parts;
    const size_t packed_b_bytes = (size_t) p.n_tiles * TN * (size_t) p.n_units * d_wg_unit<A>::k * 2;
    char *packed_b = on_device<char>(packed_b_bytes), *columns = on_device<char>(b.size());
    float * factor = on_device<float>((size_t) x.n);
    CHECK(cudaMemcpy(columns, b.data(), b.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    d_wg_columns_job c = {};
    c.x.type = x.b_type, c.x.data = columns;
    c.x.ne[0] = x.k, c.x.ne[1] = x.n, c.x.ne[2] = c.x.ne[3] = 1;
    c.x.nb[0] = b_size, c.x.nb[1] = c.x.nb[2] = c.x.nb[3] = b_size * ld;
    c.packed_b = packed_b, c.factor = is_f16 ? factor : nullptr;
    c.k_padded = (int64_t) p.n_units * d_wg_unit<A>::k;
    c.tn = TN, c.n_padded = p.n_tiles * TN;
    c.is_for_floats = gcuda_is_quantized(a_type) ? 0 : 1;
    CHECK_OK(launch_wg_columns<T>(c, nullptr));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    const std::vector<float> factors = fetched(factor, (size_t) x.n);
    p.factor = is_f16 ? factors.data() : nullptr;
    const size_t y_ld = (size_t) x.m + 3, count = (size_t) x.m * (size_t) x.n;
    std::vector<float> y(y_ld * (size_t) x.n, -1.0f), parts(count * (size_t) x.n_parts, -1.0f);
    p.y = x.n_parts > 1 ? parts.data() : y.data();
    p.y_stride = x.n_parts > 1 ? x.m : (int64_t) y_ld;
    p.part_stride = (int64_t) count;
    const std::vector<char> packed_b_here = fetched(packed_b, packed_b_bytes);
    for (int i = 0; i < (int) p.n_items; ++i) { multiply_item<A, TN>(p, i, packed_b_here); }
    if (x.n_parts > 1) {
        float *on = on_device<float>(parts.size()), *to = on_device<float>(y.size());
        CHECK(cudaMemcpy(on, parts.data(), parts.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess);
        CHECK(cudaMemcpy(to, y.data(), y.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess);
        p.y = to, p.y_stride = (int64_t) y_ld;
        p.a = nullptr, p.factor = nullptr; // the host's
        CHECK_OK(launch(k_wg_reduce, 2, 256, nullptr, p, (const float *) on));
        y = fetched(to, y.size());
        CHECK(cudaFree(on) == cudaSuccess && cudaFree(to) == cudaSuccess);
    }
    std::vector<float> w((size_t) x.k), v((size_t) x.k);
    double errors = 0.0, results = 0.0;
    for (int n = 0; n < x.n; ++n) {
        if (x.b_type == GCUDA_TYPE_F32) {
            memcpy(v.data(), &b[(size_t) n * ld * 4], (size_t) x.k * 4);
        } else {
            gcuda_get_type_traits(x.b_type)->to_float(&b[(size_t) n * ld * b_size], v.data(), x.k);
        }
        for (int m = 0; m < x.m; ++m) {
            double sum = 0.0;
            floats_of(a_type, &a[(size_t) m * (size_t) p.row_bytes], w.data(), x.k);
            for (int k = 0; k < x.k; ++k) {
                const double term = (double) w[(size_t) k] * v[(size_t) k];
                sum += term;
                results += term * term; // the mean square of a sum of k signs
            }
            const double error = y[(size_t) n * y_ld + (size_t) m] - sum;
            errors += error * error;
        }
        for (size_t m = (size_t) x.m; m < y_ld; ++m) { CHECK(y[(size_t) n * y_ld + m] == -1.0f); } // not the result's
    }
    CHECK_MSG(errors <= (is_f16 || a_type == GCUDA_TYPE_F32 ? 1e-6 : 4e-5) * results, "%s, %d x %d x %d: NMSE %g",
        gcuda_type_name(a_type), x.m, x.n, x.k, errors / results);
    CHECK(cudaFree(packed_b) == cudaSuccess && cudaFree(columns) == cudaSuccess && cudaFree(factor) == cudaSuccess);
}

TEST(weights_of_every_type) {
#define X(ID)                                                              \
    {                                                                      \
        int64_t k = 256; /* rows are multiples of 16 bytes */              \
        while (gcuda_row_size(GCUDA_TYPE_##ID, k) % 16 != 0) { k += 256; } \
        const product x = { 19, 5, (int) k, 1, 1.0, GCUDA_TYPE_F32, 0 };   \
        run<d_format<GCUDA_TYPE_##ID>, 128>(GCUDA_TYPE_##ID, x);           \
    }
    D_WEIGHT_TYPES(X)
#undef X
    const product x = { 19, 5, 264, 1, 1.0, GCUDA_TYPE_F32, 0 };
    run<__half, 128>(GCUDA_TYPE_F16, x);
    run<__nv_bfloat16, 128>(GCUDA_TYPE_BF16, x);
    run<float, 128>(GCUDA_TYPE_F32, x);
    clean();
}

TEST(edges_and_parts) {
    typedef d_format<GCUDA_TYPE_Q4_1> Q4_1; // rows of odd numbers of blocks
    const product p[] = { { 1, 1, 128, 1, 1.0, GCUDA_TYPE_F32, 1 }, { 129, 9, 384, 2, 1.0, GCUDA_TYPE_F16, 0 },
        { 260, 2, 640, 3, 1.0, GCUDA_TYPE_BF16, 3 }, { 4, 130, 256, 1, 1.0, GCUDA_TYPE_F32, 0 } };
    for (const product & x : p) {
        run<Q4_1, 128>(GCUDA_TYPE_Q4_1, x);
        run<__half, 128>(GCUDA_TYPE_F16, x);
        run<float, 128>(GCUDA_TYPE_F32, x);
    }
    for (const product & x : p) { run<Q4_1, WG_FEW>(GCUDA_TYPE_Q4_1, x); }
    run<Q4_1, 256>(GCUDA_TYPE_Q4_1, p[1]);
    run<__nv_bfloat16, 256>(GCUDA_TYPE_BF16, p[3]);
    clean();
}

TEST(columns_of_any_length_and_size) { // held in registers, and read again
    const int ks[] = { 8, 4104, 8200, 16400 };
    for (int k : ks) {
        const product plain = { 3, 2, k, 1, 1.0, GCUDA_TYPE_F32, 0 }, odd = { 3, 2, k, 1, 1e30, GCUDA_TYPE_F32, 1 };
        const product tiny = { 3, 2, k, 1, 1e-30, GCUDA_TYPE_BF16, 0 };
        run<__half, 128>(GCUDA_TYPE_F16, plain);
        run<__half, 128>(GCUDA_TYPE_F16, odd);
        run<__half, 128>(GCUDA_TYPE_F16, tiny);
        run<__nv_bfloat16, 128>(GCUDA_TYPE_BF16, odd);
    }
    clean();
}

// ---- columns that norms and gates round ----
static gcuda_array rows_of(float * data, int64_t k, int64_t n, int64_t ld) {
    gcuda_array a = {};
    a.data = data, a.type = GCUDA_TYPE_F32;
    a.ne[0] = k, a.ne[1] = n, a.ne[2] = a.ne[3] = 1;
    a.nb[0] = 4, a.nb[1] = a.nb[2] = a.nb[3] = 4 * (size_t) ld;
    return a;
}

struct rounding { // of k x n, from rows ld apart
    int64_t k, n, ld;
    int form;
    size_t size;
    float *x, *g, *y;
    char * packed_b;
};

static size_t own_form_bytes(int form, int64_t k, int64_t n) {
    return n > 0 && is_wg_form(form, k, n) ? (size_t) (d_wg_padded(n, form) * k * 2) : 0;
}

static rounding rounding_of(int64_t k, int64_t n, int form) {
    rounding o = { k, n, k + 4, form, own_form_bytes(form, k, n), nullptr, nullptr, nullptr, nullptr };
    const size_t count = (size_t) (o.ld * n);
    rng r = rng_for("columns");
    std::vector<float> v(count);
    float ** all[2] = { &o.x, &o.g };
    for (float ** to : all) {
        for (float & f : v) { f = (float) rng_between(&r, -3.0, 3.0); }
        *to = on_device<float>(count);
        CHECK(cudaMemcpy(*to, v.data(), count * 4, cudaMemcpyHostToDevice) == cudaSuccess);
    }
    o.y = on_device<float>(count);
    o.packed_b = on_device<char>(o.size);
    CHECK(o.size == (size_t) ((n + form - 1) / form * form * k * 2));
    CHECK(cudaMemsetAsync(o.packed_b, 0xff, o.size, nullptr) == cudaSuccess);
    return o;
}

// packed_b contains the bytes that packing the float columns of y gives.
static void check_rounded(const rounding & o, const char * what, int which) {
    char * want = on_device<char>(o.size);
    d_wg_columns_job c = {};
    c.x = rows_of(o.y, o.k, o.n, o.ld);
    c.packed_b = want, c.k_padded = o.k, c.tn = o.form, c.n_padded = (o.n + o.form - 1) / o.form * o.form;
    CHECK_OK(launch_wg_columns<__nv_bfloat16>(c, nullptr));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK_MSG(fetched(want, o.size) == fetched((const char *) o.packed_b, o.size), "%s %d: %d x %d, form %d", what,
        which, (int) o.k, (int) o.n, o.form);
    CHECK(cudaFree(want) == cudaSuccess && cudaFree(o.x) == cudaSuccess && cudaFree(o.g) == cudaSuccess &&
          cudaFree(o.y) == cudaSuccess && cudaFree(o.packed_b) == cudaSuccess);
}

static void round_gate(int64_t k, int64_t n, int form, int op) {
    rounding o = rounding_of(k, n, form);
    gcuda_glu_args p = {};
    p.x = rows_of(o.x, k, n, o.ld), p.g = rows_of(o.g, k, n, o.ld), p.y = rows_of(o.y, k, n, o.ld);
    p.op = (gcuda_glu_op) op, p.alpha = 1.7f, p.limit = 2.0f;
    CHECK_OK(gcuda_launch_glu(&p, nullptr));
    p.form = form, p.y.data = o.packed_b;
    CHECK(gcuda_glu_takes_form(&p));
    CHECK_OK(gcuda_launch_glu(&p, nullptr));
    check_rounded(o, "glu", op);
}

TEST(gates_round_as_columns_are) {
    static const int64_t ks[] = { 256, 512, 768, 2304, 4352, 16384 }; // a row of a warp, of two, ... of 512 threads
    for (int i = 0; i < 6; ++i) {
        round_gate(ks[i], i < 4 ? 130 : 5, i % 2 ? 128 : 256, i);
        round_gate(ks[i], 3, i % 2 ? 128 : 64, GCUDA_GLU_OP_SWIGLU);
    }
    clean();
}

// Each condition by itself. Nothing is launched, and nothing is read.
TEST(forms_that_do_not_fit_are_refused) {
    alignas(16) float data[8];
    gcuda_glu_args g = {};
    g.x = g.g = g.y = rows_of(data, 512, 64, 512);
    g.op = GCUDA_GLU_OP_SWIGLU, g.form = 128;
    const gcuda_glu_args good = g;
    CHECK(gcuda_glu_takes_form(&g));
    for (int i = 0; i < 11; ++i) {
        g = good;
        switch (i) {
            case 0: g.form = 1; break;
            case 1: g.form = 32; break;
            case 2: g.x.ne[0] = g.g.ne[0] = g.y.ne[0] = 384; break;
            case 3: g.y.ne[1] = 32, g.y.ne[2] = 2; break;
            case 4: g.x.type = GCUDA_TYPE_F16; break;
            case 5: g.x.data = data + 1; break;
            case 6: g.g.nb[1] += 4; break;
            case 7: g.y.data = data + 2; break;
            case 8: g.x.nb[0] = 8; break;
            case 9: g.y.ne[1] = (int64_t) 1 << 31; break;
            default: g.form = -128; break;
        }
        CHECK_MSG(!gcuda_glu_takes_form(&g) && gcuda_launch_glu(&g, nullptr) == GCUDA_STATUS_UNSUPPORTED, "gate %d", i);
    }
    CHECK(own_form_bytes(128, 512, 129) == 512 * 256 * 2 && own_form_bytes(32, 512, 1) == 0 &&
          own_form_bytes(128, 500, 1) == 0 && own_form_bytes(256, 512, 0) == 0);
}

// The form of one product, or of a group.
static int own_form(const gcuda_mul_mat_args * args, int n_args) {
    static const gcuda_mul_mat_device device = { 900, true };
    gcuda_mul_mat_job job = {};
    job.path = GCUDA_MUL_MAT_WGMMA;
    job.args = args;
    job.n_args = n_args == 1 ? 0 : n_args;
    job.device = &device;
    return own_path.takes(job) ? own_path.layout(job).form : 0;
}

TEST(forms_of_products) {
    alignas(16) char data[32];
    gcuda_mul_mat_args p[GCUDA_MUL_MAT_GROUP + 1] = {};
    for (gcuda_mul_mat_args & q : p) {
        q.a.type = GCUDA_TYPE_Q4_0, q.a.data = data;
        q.a.ne[0] = 1024, q.a.ne[1] = 300, q.a.ne[2] = q.a.ne[3] = 1;
        q.a.nb[0] = 18, q.a.nb[1] = q.a.nb[2] = q.a.nb[3] = 1024 / 32 * 18;
        q.b = rows_of((float *) data, 1024, 70, 1024), q.y = rows_of((float *) data, 300, 70, 300);
    }
    CHECK(own_form(p, 1) == wg_plan_of(p[0]).tn && own_form(p, 3) == wg_plan_of_group(p, 3).tn);
    const gcuda_mul_mat_args good = p[1];
    for (int i = 0; i < 6; ++i) {
        gcuda_mul_mat_args & q = p[1] = good;
        switch (i) {
            // no whole 256
            case 0: q.a.type = GCUDA_TYPE_Q5_1, q.a.ne[0] = q.b.ne[0] = 1024 + 64, q.a.nb[1] = 34 * 24; break;
            case 1: q.a.type = GCUDA_TYPE_F16, q.a.nb[0] = 2, q.a.nb[1] = 2048; break;
            case 2: q.a.data = data + 2; break;
            case 3: q.b.type = GCUDA_TYPE_I32; break;
            case 4: q.y.ne[1] = 0; break;
            default: q.y.type = GCUDA_TYPE_F16; break;
        }
        CHECK_MSG(own_form(&q, 1) == 0 && own_form(p, 2) == 0, "product %d", i);
    }
    p[1] = good;
    p[1].b.data = data + 16; // other columns
    CHECK(own_form(p, 2) == 0);
    p[1] = good;
    p[0].is_prequantized = true;
    CHECK(wg_takes_columns(p[0]) && !products_are_alike(p[0], p[1]));
    p[0].b.data = data + 8;
    CHECK(!wg_takes_columns(p[0]));
    p[0] = good, p[0].is_prequantized = true, p[0].a.type = GCUDA_TYPE_F16;
    CHECK(!wg_takes_columns(p[0]));
}

// ---- epilogues ----
enum { BIAS = 1, FACTOR = 2, SCALE = 4, RESIDUAL = 8, OF_COLUMNS = 16, ACROSS = 32 };

// Bias and factor repeat rows or columns, the residual is whole, along rows or across them.
struct operands {
    std::vector<float> row, column, whole, y;
    d_wg_job p;
    gcuda_mul_mat_epilogue e;
};

static gcuda_array array_of(float * data, int64_t ne0, int64_t ne1, int64_t nb0, int64_t nb1) {
    gcuda_array a = {};
    a.data = data, a.type = GCUDA_TYPE_F32;
    a.ne[0] = ne0, a.ne[1] = ne1, a.ne[2] = a.ne[3] = 1;
    a.nb[0] = 4 * (size_t) nb0, a.nb[1] = 4 * (size_t) nb1, a.nb[2] = a.nb[3] = 4 * (size_t) (ne0 * ne1);
    return a;
}

static std::vector<float> random_floats(size_t n, rng * r) {
    std::vector<float> v(n);
    for (float & x : v) { x = (float) rng_between(r, -2.0, 2.0); }
    return v;
}

static void fill(operands * o, int m, int n, int flags, bool is_activated, gcuda_glu_op glu, rng * r) {
    gcuda_mul_mat_epilogue e = {};
    o->row = random_floats((size_t) m, r), o->column = random_floats((size_t) n, r);
    o->whole = random_floats((size_t) m * (size_t) n, r), o->y.assign((size_t) (m + 3) * (size_t) n, -1.0f);
    const gcuda_array row = array_of(o->row.data(), m, 1, 1, m), column = array_of(o->column.data(), 1, n, 1, 1);
    if (flags & BIAS) { e.bias = (flags & OF_COLUMNS) != 0 ? column : row; }
    if (flags & FACTOR) { e.factor = (flags & OF_COLUMNS) != 0 ? row : column; }
    if (flags & RESIDUAL) {
        e.residual =
            (flags & ACROSS) != 0 ? array_of(o->whole.data(), m, n, n, 1) : array_of(o->whole.data(), m, n, 1, m);
    }
    e.is_scaled = (flags & SCALE) != 0, e.scale = -0.75f;
    e.is_activated = is_activated, e.glu = glu, e.alpha = 1.702f, e.limit = 1.5f;
    o->e = wg_broadcast(e);
    o->p = {};
    o->p.m = m, o->p.n = n, o->p.n_parts = 1, o->p.part_stride = (int64_t) m * n;
    o->p.y = o->y.data(), o->p.y_stride = m + 3;
}

// In F32, rounded as separate nodes would; the activation in float64.
static double wanted(const operands & o, float v, int m, int c, int flags, bool is_activated, gcuda_glu_op glu) {
    if (flags & BIAS) { v = v + ((flags & OF_COLUMNS) != 0 ? o.column[(size_t) c] : o.row[(size_t) m]); }
    double x = v;
    const double limit = 1.5, a = x < limit ? x : limit;
    if (is_activated) {
        switch (glu) {
            case GCUDA_GLU_OP_REGLU: x = x > 0.0 ? x : 0.0; break;
            case GCUDA_GLU_OP_GEGLU:
                x = 0.5 * x * (1.0 + tanh(0.79788456080286535588 * x * (1.0 + 0.044715 * x * x)));
                break;
            case GCUDA_GLU_OP_SWIGLU: x = x / (1.0 + exp(-x)); break;
            case GCUDA_GLU_OP_GEGLU_QUICK: x = x / (1.0 + exp(-1.702 * x)); break;
            case GCUDA_GLU_OP_SWIGLU_OAI: x = a / (1.0 + exp(-(double) 1.702f * a)) * 2.0; break; // 1 + 1
            default: x = 0.5 * x * erfc(-0.70710678118654752440 * x); break;
        }
    }
    if (flags & FACTOR) { x *= (flags & OF_COLUMNS) != 0 ? o.row[(size_t) m] : o.column[(size_t) c]; }
    if (flags & SCALE) { x *= -0.75; }
    if (flags & RESIDUAL) {
        x += (flags & ACROSS) != 0 ? o.whole[(size_t) m * (size_t) o.p.n + (size_t) c]
                                   : o.whole[(size_t) c * (size_t) o.p.m + (size_t) m];
    }
    return x;
}

static void compare(const operands & o, const std::vector<float> & y, const std::vector<float> & sums, int flags,
    bool is_activated, gcuda_glu_op glu) {
    const size_t m = (size_t) o.p.m, n = (size_t) o.p.n;
    for (size_t c = 0; c < n; ++c) {
        for (size_t row = 0; row < m + 3; ++row) {
            const float got = y[c * (m + 3) + row];
            // past the end: not the result's
            const double want =
                row < m ? wanted(o, sums[c * m + row], (int) row, (int) c, flags, is_activated, glu) : -1.0;
            CHECK_MSG(fabs(got - want) <= (row < m ? 2e-6 * (1.0 + fabs(want)) : 0.0),
                "steps %d, op %d, row %d, column %d: %g, wanted %g", flags, (int) glu, (int) row, (int) c, (double) got,
                want);
        }
    }
}

static float * to_device(const std::vector<float> & v) {
    float * p = on_device<float>(v.size());
    CHECK(cudaMemcpy(p, v.data(), v.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess);
    return p;
}

// Sums in one part or several, which a kernel takes through the steps.
static void behind(int m, int n, int n_parts, int flags, bool is_activated, gcuda_glu_op glu) {
    rng r = rng_for("behind");
    operands o;
    fill(&o, m, n, flags, is_activated, glu, &r);
    const std::vector<float> parts = random_floats((size_t) m * (size_t) n * (size_t) n_parts, &r);
    std::vector<float> sums(parts.begin(), parts.begin() + (size_t) m * (size_t) n);
    for (size_t i = sums.size(); i < parts.size(); ++i) { sums[i % sums.size()] += parts[i]; }
    const bool is_of_columns = (flags & OF_COLUMNS) != 0;
    float *row = to_device(o.row), *column = to_device(o.column), *whole = to_device(o.whole), *y = to_device(o.y),
          *from = to_device(parts);
    d_wg_job p = o.p;
    gcuda_mul_mat_epilogue e = o.e;
    p.n_parts = n_parts, p.y = y;
    if (e.bias.data != nullptr) { e.bias.data = is_of_columns ? column : row; }
    if (e.factor.data != nullptr) { e.factor.data = is_of_columns ? row : column; }
    if (e.residual.data != nullptr) { e.residual.data = whole; }
    CHECK_OK(launch(k_wg_epilogue, 2, 256, nullptr, p, e, (const float *) from));
    compare(o, fetched(y, o.y.size()), sums, flags, is_activated, glu);
    for (float * q : { row, column, whole, y, from }) { CHECK(cudaFree(q) == cudaSuccess); }
}

TEST(steps_behind_parts) {
    const int flags[] = { BIAS, RESIDUAL, BIAS | FACTOR | SCALE | RESIDUAL, BIAS | FACTOR | OF_COLUMNS,
        SCALE | RESIDUAL | ACROSS };
    int k = 0;
    for (int f : flags) {
        for (int glu = 0; glu < GCUDA_GLU_OP_COUNT; ++glu, ++k) {
            behind(k % 2 == 0 ? 36 : 37 + k % 3, 5, 1 + k % 3, f, k % 4 != 0, (gcuda_glu_op) glu);
        }
    }
    clean();
}

// ---- experts ----
struct experts {
    int m, k, n_experts, used, n_b, tokens; // n_b: columns of a token, 1 or used
    int y_pad;                              // elements between columns of the result
    // of ids: 0 random, 1 all the same, 2 bad ones among them, 3 only a few experts
    int kind;
};

// A stage of 128 rows of an expert. Each row begins after as many bytes as its address exceeds a multiple of 16; zeros
// past its end.
template <typename A> static std::vector<char> id_slab_of(const d_wg_id_job & p, const d_wg_id_item & t, int s) {
    typedef d_wg_id_slab<A> slab;
    std::vector<char> to((size_t) d_wg_slab_bytes<slab>, 0);
    const int64_t left = p.row_bytes - (int64_t) s * slab::bytes;
    for (int row = 0; row < WG_ROWS && t.m0 + row < p.m; ++row) {
        const char * from = d_wg_id_row(p, t, row) + (int64_t) s * slab::bytes;
        const int skew = (int) ((uintptr_t) from & 15);
        CHECK(skew <= slab::skew && skew + slab::bytes <= 16 * slab::pieces);
        memcpy(&to[(size_t) (row * slab::stride + skew)], from, (size_t) (left < slab::bytes ? left : slab::bytes));
    }
    return to;
}

template <typename A> static void multiply_expert(const d_wg_id_job & p, int item) {
    typedef d_wg_id_slab<A> slab;
    constexpr int TN = WG_FEW, steps = d_wg_unit<A>::steps;
    const d_wg_id_item t = d_wg_item_of(p, item, TN);
    const auto table = table_of<A>();
    const int padded = d_wg_id_padded(t.n);
    std::vector<double> sums((size_t) WG_ROWS * TN, 0.0);
    CHECK(t.n > 0 && t.n <= TN);
    for (int s = t.first * steps; s < t.end * steps; ++s) {
        const int which = s * WG_K / slab::k, part = s * WG_K % slab::k / 128;
        const std::vector<char> data = id_slab_of<A>(p, t, which);
        const char * stage = p.packed_b + ((int64_t) t.place * p.n_units * steps + (int64_t) s * padded) * (WG_K * 2);
        multiply_step<A, slab, TN>(
            data, [&](int row) { return d_wg_skew(p, t, row, which * slab::bytes); }, p.m - t.m0, part, s % 2, table,
            stage, t.n, sums);
    }
    store_sums<TN>(p, t, t.m0, sums);
}

static int32_t id_of(const experts & x, int slot, rng * r) {
    const int32_t any = (int32_t) rng_below(r, x.n_experts);
    return x.kind == 1                    ? x.n_experts - 1
           : x.kind == 2 && slot % 5 == 0 ? (slot % 2 == 0 ? -1 : x.n_experts)
           : x.kind == 3                  ? any % 2
                                          : any;
}

// Lists and columns are made by kernels; the product itself by the host.
template <typename A> static void run_experts(gcuda_type type, const experts & x, gcuda_type b_type) {
    rng r = rng_for(gcuda_type_name(type));
    const int n_slots = x.used * x.tokens, n_columns = x.n_b * x.tokens;
    const size_t row = gcuda_row_size(type, x.k), b_size = gcuda_type_size(b_type), y_ld = (size_t) (x.m + x.y_pad);
    const std::vector<char> random = random_weights(type, x.k, (int64_t) x.m * x.n_experts, &r);
    std::vector<char> room(random.size() + 16), b((size_t) (x.k * n_columns) * b_size);
    char * a = room.data() + (16 - (uintptr_t) room.data() % 16) % 16;
    memcpy(a, random.data(), random.size());
    for (size_t i = 0; i < (size_t) (x.k * n_columns); ++i) {
        const float v = (float) rng_between(&r, -1.0, 1.0);
        if (b_type == GCUDA_TYPE_F32) {
            memcpy(&b[i * 4], &v, 4);
        } else {
            gcuda_get_type_traits(b_type)->from_float_ref(&v, &b[i * b_size], 1);
        }
    }
    std::vector<int32_t> ids((size_t) n_slots);
    for (int i = 0; i < n_slots; ++i) { ids[(size_t) i] = id_of(x, i, &r); }
    gcuda_mul_mat_id_args p = {};
    char * b_there = on_device<char>(b.size());
    int32_t *ids_there = on_device<int32_t>(ids.size()), *bad = on_device<int32_t>(1);
    const int32_t none = 0;
    CHECK(cudaMemcpy(b_there, b.data(), b.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(ids_there, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(bad, &none, 4, cudaMemcpyHostToDevice) == cudaSuccess);
    p.as = packed_array(type, b_there, x.k, x.m, x.n_experts, 1);   // not read by kernels here
    p.as.nb[1] = row, p.as.nb[2] = p.as.nb[3] = row * (size_t) x.m; // packed_array is of floats
    p.b = packed_array(b_type, b_there, x.k, x.n_b, x.tokens, 1);
    p.ids = packed_array(GCUDA_TYPE_I32, ids_there, x.used, x.tokens, 1, 1);
    p.y = packed_array(GCUDA_TYPE_F32, b_there, (int64_t) y_ld, x.used, x.tokens, 1);
    p.y.ne[0] = x.m;
    p.bad_index = bad;
    CHECK(wg_id_takes(p));
    d_id_lists l = {};
    const size_t n_bytes = wg_id_plan_of(p, &l).bytes;
    char * scratch = on_device<char>(n_bytes);
    p.scratch = scratch;
    wg_id_plan plan = wg_id_plan_of(p, &l);
    CHECK_OK(wg_id_prepare(p, plan, l, nullptr));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    std::vector<char> here = fetched(scratch, n_bytes);
    std::vector<float> y(y_ld * (size_t) n_slots, -1.0f);
    p.as.data = a, p.scratch = here.data(), p.y.data = y.data(); // the host's
    plan = wg_id_plan_of(p, &l);
    const d_wg_id_job job = wg_id_job_of(p, plan, l);
    CHECK(*l.n_tiles <= plan.max_tiles);
    for (int i = 0; i < d_wg_items(job); ++i) { multiply_expert<A>(job, i); }
    CHECK(fetched(bad, 1)[0] == (x.kind == 2 ? 1 : 0));
    std::vector<float> w((size_t) x.k), v((size_t) x.k);
    double errors = 0.0, results = 0.0;
    for (int slot = 0; slot < n_slots; ++slot) {
        const int32_t id = ids[(size_t) slot];
        const bool is_bad = id < 0 || id >= x.n_experts;
        const size_t column = (size_t) (slot / x.used * x.n_b + slot % x.used % x.n_b);
        floats_of(b_type, &b[column * (size_t) x.k * b_size], v.data(), x.k);
        for (int m = 0; m < x.m + x.y_pad; ++m) {
            const float got = y[(size_t) slot * y_ld + (size_t) m];
            double want = m >= x.m ? -1.0 : 0.0;
            if (m < x.m && !is_bad) {
                floats_of(type, a + ((size_t) id * (size_t) x.m + (size_t) m) * row, w.data(), x.k);
                for (int k = 0; k < x.k; ++k) { want += (double) w[(size_t) k] * v[(size_t) k]; }
                errors += (got - want) * (got - want);
                results += want * want;
            } else {
                CHECK_MSG(got == (float) want, "slot %d, row %d: %g", slot, m, got);
            }
        }
    }
    CHECK_MSG(errors <= 4e-5 * results, "NMSE %g", errors / results);
    CHECK(cudaFree(b_there) == cudaSuccess && cudaFree(ids_there) == cudaSuccess && cudaFree(bad) == cudaSuccess &&
          cudaFree(scratch) == cudaSuccess);
}

TEST(experts_on_warp_groups) {
    static const experts shapes[] = { { 130, 288, 4, 2, 1, 9, 0, 0 }, { 40, 2080, 6, 3, 3, 5, 4, 2 },
        { 129, 64, 3, 1, 1, 70, 0, 1 }, { 20, 320, 40, 4, 2, 6, 1, 3 } };
    for (int i = 0; i < 4; ++i) {
        run_experts<d_format<GCUDA_TYPE_Q8_0>>(GCUDA_TYPE_Q8_0, shapes[i], GCUDA_TYPE_F32);
        run_experts<d_format<GCUDA_TYPE_Q4_0>>(GCUDA_TYPE_Q4_0, shapes[i], GCUDA_TYPE_F16);
        // even rows
        if (shapes[i].k % 64 == 0) {
            run_experts<d_format<GCUDA_TYPE_MXFP4>>(GCUDA_TYPE_MXFP4, shapes[i], GCUDA_TYPE_F32);
        }
    }
    experts x = { 130, 512, 4, 2, 1, 9, 0, 2 };
    run_experts<d_format<GCUDA_TYPE_Q4_K>>(GCUDA_TYPE_Q4_K, x, GCUDA_TYPE_F32);
    x.k = 2048; // rows at multiples of 16 bytes
    run_experts<d_format<GCUDA_TYPE_Q6_K>>(GCUDA_TYPE_Q6_K, x, GCUDA_TYPE_BF16);
    run_experts<d_format<GCUDA_TYPE_IQ2_XS>>(GCUDA_TYPE_IQ2_XS, x, GCUDA_TYPE_F32);
    run_experts<d_format<GCUDA_TYPE_IQ1_M>>(GCUDA_TYPE_IQ1_M, x, GCUDA_TYPE_F32);
}
