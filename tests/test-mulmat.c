// Kernels of the matrix products: each instruction set that this machine has, function by function against float64,
// then the operations' own cases (ops-matmul.h) with each set. Contains the implementation, to reach what is private.
#define GCUDA_IMPLEMENTATION
#include "test-ops.h"

#include "ops-matmul.h"

// clang-format off
static const enum gcuda_type weight_types[] = { // all that GCUDA_TYPES calls weights
#define WEIGHT_yes(ID) GCUDA_TYPE_##ID,
#define WEIGHT_no(ID)
#define X(ID, id, lower, name, block, bytes, quantized, read, write, align, imatrix, floats, weights, ...) \
    WEIGHT_##weights(ID)
    GCUDA_TYPES(X)
#undef X
};
// clang-format on
#define N_WEIGHT_TYPES ((int) (sizeof weight_types / sizeof weight_types[0]))

#define FOR_SIMD(simd)                                                     \
    for (int isa = GCUDA_CPU_ISA_SCALAR; isa < GCUDA_CPU_ISA_COUNT; ++isa) \
        for (const struct gcudai_simd * simd = gcudai_simd_of((enum gcuda_cpu_isa) isa); simd != NULL; simd = NULL)

static double random_unit(struct rng * r) { return rng_between(r, -1.0, 1.0); }

// ---------------------------------------------------------------------------------------------------- weights
TEST(codes_of_each_format) { // scale * code + minimum is what dequantizing gives, from any address
    enum { N = 1024 };
    struct rng r = rng_for("codes");
    FOR_SIMD(simd) {
        for (int t = 0; t < N_WEIGHT_TYPES; ++t) {
            const enum gcuda_type type = weight_types[t];
            const struct gcuda_type_traits * traits = gcuda_get_type_traits(type);
            const enum gcudai_q_kind kind = gcudai_q_kind_of(type);
            const int group = gcudai_q_group(kind), n_blocks = N / (int) traits->blck_size;
            const size_t bytes = gcuda_row_size(type, N);
            char *aligned = (char *) malloc(bytes), *odd = (char *) malloc(bytes + 1);
            uint8_t q[N];
            float sc[N / 16], mn[N / 16];
            double want[N];
            memset(mn, 0, sizeof mn);
            for (int i = 0; i < n_blocks; ++i) {
                memcpy(aligned + (size_t) i * traits->type_size, random_block(type, &r), traits->type_size);
            }
            memcpy(odd + 1, aligned, bytes);
            decode_blocks(type, aligned, N, want);
            simd->codes(type)((const uint8_t *) odd + 1, n_blocks, q, sc, mn);
            for (int i = 0; i < N; ++i) {
                const double code = gcudai_q_is_signed(kind) ? (double) (int8_t) q[i] : (double) q[i];
                const double got =
                    (double) sc[i / group] * code + (gcudai_q_is_signed(kind) ? 0.0 : (double) mn[i / group]);
                CHECK_MSG(
                    fabs(got - want[i]) <= 1e-6 * (fabs((double) sc[i / group]) * 64.0 + fabs((double) mn[i / group])),
                    "%s %s element %d: %g, want %g", simd->name, traits->type_name, i, got, want[i]);
                CHECK(gcudai_q_is_signed(kind) || q[i] < 64); // wider ones would overflow the 16-bit sums of AVX2
            }
            free(aligned), free(odd);
        }
    }
}

// ---------------------------------------------------------------------------------------------------- activations
static void check_block(const struct gcudai_simd * simd, const float * x, const char * what) {
    int8_t q[32];
    float d, s32, r32, s16[2], r16[2];
    double exact[2] = { 0.0, 0.0 };
    int sum[2] = { 0, 0 };
    const struct gcudai_q_col col = { q, &d, &s32, &r32, s16, r16 };
    simd->q_blocks(x, 1, &col);
    for (int i = 0; i < 32; ++i) {
        CHECK_MSG(fabs((double) x[i] - (double) d * q[i]) <= 0.5001 * (double) d + 1e-36, "%s %s: %g became %g",
            simd->name, what, (double) x[i], (double) d * q[i]);
        CHECK(q[i] >= -127);
        sum[i / 16] += q[i];
        exact[i / 16] += (double) x[i];
    }
    for (int i = 0; i < 2 && d > 0.0f; ++i) {
        CHECK_NEAR((double) d * sum[i] + (double) r16[i], exact[i], 1e-3 * (double) d);
    }
    if (d > 0.0f) { CHECK_NEAR((double) d * (sum[0] + sum[1]) + (double) r32, exact[0] + exact[1], 2e-3 * (double) d); }
    CHECK(s16[0] == d * (float) sum[0] && s16[1] == d * (float) sum[1] && s32 == d * (float) (sum[0] + sum[1]));
}

TEST(activation_blocks) {
    static const double sizes[] = { 0.0, 1e-44, 1e-30, 1e-12, 1e-6, 1.0, 1e5, 1e30, 3e38 };
    struct rng r = rng_for("activations");
    float x[32];
    FOR_SIMD(simd) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
            for (int round = 0; round < 20; ++round) {
                char what[32];
                for (int i = 0; i < 32; ++i) { x[i] = (float) (random_unit(&r) * sizes[s]); }
                snprintf(what, sizeof what, "size %g", sizes[s]);
                check_block(simd, x, what);
            }
        }
    }
}

TEST(activation_blocks_not_finite) { // the scale becomes NaN, nothing is converted, the neighbour is not touched
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    FOR_SIMD(simd) {
        for (int k = 0; k < 3; ++k) {
            for (int at = 0; at < 32; at += 5) {
                float x[64], d[2], s32[2], r32[2], s16[4], r16[4];
                int8_t q[64];
                const struct gcudai_q_col col = { q, d, s32, r32, s16, r16 };
                for (int i = 0; i < 64; ++i) { x[i] = (float) i; }
                x[at] = bad[k];
                simd->q_blocks(x, 2, &col);
                CHECK(isnan(d[0]) && isnan(s32[0]) && isnan(s16[0]) && q[at] == 0);
                CHECK(d[1] > 0.0f && q[63] == 127);
            }
        }
    }
}

TEST(activation_blocks_together) { // many blocks at a time give what each gives alone, whatever its neighbours hold
    enum { N = 11 };
    static const float special[] = { NAN, INFINITY, 0.0f, 1e-40f, 3e38f };
    struct rng r = rng_for("together");
    float x[32 * N], f[2][N * 7];
    int8_t q[2][32 * N];
    FOR_SIMD(simd) {
        for (int round = 0; round < 100; ++round) {
            const int odd = (int) rng_below(&r, N);
            for (int i = 0; i < 32 * N; ++i) { x[i] = (float) random_unit(&r); }
            for (int i = 0; i < 32 && round % 6 < 5; ++i) { x[32 * odd + i] = special[round % 6]; }
            memset(f, 0, sizeof f);
            for (int way = 0; way < 2; ++way) {
                const struct gcudai_q_col col = { q[way], f[way], f[way] + N, f[way] + 2 * N, f[way] + 3 * N,
                    f[way] + 5 * N };
                for (int g = 0; g < N; g += way == 0 ? N : 1) {
                    const struct gcudai_q_col at = gcudai_q_col_skip(&col, g);
                    simd->q_blocks(x + 32 * g, way == 0 ? N : 1, &at);
                }
            }
            CHECK_MSG(memcmp(q[0], q[1], sizeof q[0]) == 0 && memcmp(f[0], f[1], sizeof f[0]) == 0, "%s round %d",
                simd->name, round);
        }
    }
}

// ---------------------------------------------------------------------------------------------------- integer products
#define DOT_COLS 9
#define DOT_CENTER 7.5f
struct dot_data {
    uint8_t q[GCUDAI_Q_CHUNK];
    float sc[GCUDAI_Q_CHUNK / 16], mn[GCUDAI_Q_CHUNK / 16];
    char * columns;
    struct gcudai_q_col x[DOT_COLS];
};

static void dot_data_fill(struct dot_data * d, struct rng * r, enum gcudai_q_kind kind) { // extreme codes included
    static const int extreme[] = { -128, 127, -127, 0 };
    float x[GCUDAI_Q_CHUNK];
    d->columns = (char *) malloc(gcudai_q_col_size(GCUDAI_Q_CHUNK) * DOT_COLS);
    for (int i = 0; i < GCUDAI_Q_CHUNK; ++i) {
        const int e = extreme[rng_below(r, 4)];
        d->q[i] = (uint8_t) (!gcudai_q_is_signed(kind) ? rng_below(r, 64) : i < 512 ? e : rng_below(r, 256));
    }
    for (int i = 0; i < GCUDAI_Q_CHUNK / 16; ++i) {
        d->sc[i] = (float) random_unit(r);
        d->mn[i] = (float) random_unit(r);
    }
    for (int c = 0; c < DOT_COLS; ++c) {
        for (int i = 0; i < GCUDAI_Q_CHUNK; ++i) { x[i] = i < 512 ? (i % 3 ? 1.0f : -1.0f) : (float) random_unit(r); }
        gcudai_q_pack_column(&gcudai_simds[GCUDA_CPU_ISA_SCALAR], GCUDA_TYPE_F32, (const char *) x, 4, GCUDAI_Q_CHUNK,
            d->columns + gcudai_q_col_size(GCUDAI_Q_CHUNK) * (size_t) c);
        d->x[c] = gcudai_q_col_at(d->columns + gcudai_q_col_size(GCUDAI_Q_CHUNK) * (size_t) c, GCUDAI_Q_CHUNK, 0);
    }
}

// the exact sum, and the size of its terms
static double dot_reference(const struct dot_data * d, enum gcudai_q_kind kind, int c, int n, double * size) {
    const int group = gcudai_q_group(kind);
    double sum = 0.0;
    *size = 0.0;
    for (int i = 0; i < n; ++i) {
        const double code = gcudai_q_is_signed(kind) ? (double) (int8_t) d->q[i] : (double) d->q[i];
        const double w =
            (double) d->sc[i / group] * code + (gcudai_q_is_signed(kind) ? 0.0 : (double) d->mn[i / group]);
        const double term = w * (double) d->x[c].d[i / 32] * d->x[c].q[i];
        sum += term;
        if (gcudai_q_has_min(kind) && i % group == 0) {
            sum += ((double) d->mn[i / group] + DOT_CENTER * (double) d->sc[i / group]) *
                   (double) (group == 32 ? d->x[c].r32 : d->x[c].r16)[i / group];
        }
        *size += fabs(term) + fabs((double) d->sc[i / group] * 128.0 * (double) d->x[c].d[i / 32] * d->x[c].q[i]);
    }
    return sum;
}

TEST(integer_products) {
    struct rng r = rng_for("products");
    struct dot_data d;
    for (int kind = 0; kind < GCUDAI_Q_KINDS; ++kind) {
        dot_data_fill(&d, &r, (enum gcudai_q_kind) kind);
        FOR_SIMD(simd) {
            for (int n_cols = 1; n_cols <= DOT_COLS; ++n_cols) {
                for (int n = 256; n <= GCUDAI_Q_CHUNK; n += 256) {
                    float out[DOT_COLS + 1];
                    double size;
                    for (int c = 0; c <= DOT_COLS; ++c) { out[c] = 3.0f; }
                    simd->q_dot(kind, d.q, d.sc, d.mn, DOT_CENTER, d.x, n_cols, n, out);
                    for (int c = 0; c <= DOT_COLS; ++c) {
                        const double want =
                            c < n_cols ? 3.0 + dot_reference(&d, (enum gcudai_q_kind) kind, c, n, &size) : 3.0;
                        CHECK_MSG(fabs((double) out[c] - want) <= (c < n_cols ? 1e-6 * size : 0.0) + 1e-5,
                            "%s kind %d cols %d n %d: column %d is %g, want %g", simd->name, kind, n_cols, n, c,
                            (double) out[c], want);
                    }
                }
            }
        }
        free(d.columns);
    }
}

TEST(rows_of_one_column) { // multiplied while they are unpacked: the very sums of expanded rows, which two columns take
    static const int lengths[] = { 32, 64, 224, 256, 288, 576, 768, 2048, 2080, 2304, 4352 };
    enum { ROWS = 3 };
    struct rng r = rng_for("rows");
    struct gcudai_q_local * local = (struct gcudai_q_local *) malloc(sizeof *local);
    struct gcudai_mm_cols * cols = (struct gcudai_mm_cols *) malloc(sizeof *cols);
    int n_compared = 0;
    for (int t = 0; t < N_WEIGHT_TYPES; ++t) {
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; ++l) {
            const enum gcuda_type type = weight_types[t];
            const int k = lengths[l], block = (int) gcuda_blck_size(type);
            const size_t nb = gcuda_row_size(type, k), size = gcuda_type_size(type);
            if (k % block != 0) { continue; }
            char *w = (char *) malloc(nb * ROWS + 1), *column = (char *) malloc(gcudai_q_col_size(k));
            float *x = (float *) malloc((size_t) k * sizeof(float)), y[3][ROWS];
            for (size_t i = 0; i < nb * ROWS / size; ++i) { memcpy(w + 1 + i * size, random_block(type, &r), size); }
            for (int i = 0; i < k; ++i) { x[i] = (float) random_unit(&r); }
            FOR_SIMD(simd) {
                const struct gcudai_mm_rows rows = { simd, type, w + 1, nb, 0, ROWS, k, NULL };
                gcudai_q_pack_column(simd, GCUDA_TYPE_F32, (const char *) x, 4, k, column);
                for (int c = 0; c < 2; ++c) { cols->x[c] = column, cols->y[c] = y[c + 1]; }
                cols->n = 2;
                gcudai_mm_q_dot_tile(&rows, cols, local);
                cols->n = 1, cols->y[0] = y[0];
                gcudai_mm_q_dot_tile(&rows, cols, local);
                for (int i = 0; i < ROWS; ++i) {
                    CHECK_MSG(memcmp(&y[0][i], &y[1][i], sizeof(float)) == 0, "%s %s k %d row %d: %.9g, expanded %.9g",
                        simd->name, gcuda_type_name(type), k, i, (double) y[0][i], (double) y[1][i]);
                }
                n_compared += simd->q_rows(type) != NULL;
            }
            free(w), free(column), free(x);
        }
    }
    CHECK(n_compared > 0 || gcudai_simd_of(GCUDA_CPU_ISA_AVX2) == NULL);
    free(local), free(cols);
}

TEST(integer_panels) {
    struct rng r = rng_for("panels");
    static struct gcudai_q_panel panel;
    struct dot_data d;
    for (int kind = 0; kind < GCUDAI_Q_KINDS; ++kind) {
        const int group = gcudai_q_group((enum gcudai_q_kind) kind), n = GCUDAI_Q_PANEL_K;
        dot_data_fill(&d, &r, (enum gcudai_q_kind) kind);
        FOR_SIMD(simd) {
            float acc[4 * GCUDAI_Q_PANEL_ROWS];
            if (simd->q_panel == NULL) { continue; }
            for (int i = 0; i < 4 * GCUDAI_Q_PANEL_ROWS; ++i) { acc[i] = 2.0f; }
            // four rows of n codes are consecutive in d.q; every group of four rows gets the same
            for (int row = 0; row < GCUDAI_Q_PANEL_ROWS; row += 4) {
                simd->q_panel_rows((enum gcudai_q_kind) kind, d.q, d.sc, d.mn, DOT_CENTER, n, row, &panel);
            }
            simd->q_panel((enum gcudai_q_kind) kind, &panel, d.x, n, acc);
            for (int c = 0; c < 4; ++c) {
                for (int row = 0; row < GCUDAI_Q_PANEL_ROWS; ++row) {
                    struct dot_data one = d;
                    double size;
                    memmove(one.q, d.q + row % 4 * n, (size_t) n);
                    memmove(one.sc, d.sc + row % 4 * (n / group), (size_t) (n / group) * sizeof(float));
                    memmove(one.mn, d.mn + row % 4 * (n / group), (size_t) (n / group) * sizeof(float));
                    const double want = 2.0 + dot_reference(&one, (enum gcudai_q_kind) kind, c, n, &size),
                                 got = (double) acc[c * GCUDAI_Q_PANEL_ROWS + row];
                    CHECK_MSG(fabs(got - want) <= 1e-6 * size + 1e-5, "%s kind %d column %d row %d: %g, want %g",
                        simd->name, kind, c, row, got, want);
                }
            }
        }
        free(d.columns);
    }
}

// ---------------------------------------------------------------------------------------------------- float products
static void write_floats(enum gcuda_type type, char * p, const double * x, int n) {
    const size_t size = gcuda_type_size(type);
    for (int i = 0; i < n; ++i) { value_write(type, p + (size_t) i * size, x[i]); }
}

TEST(float_products) { // any length, any address; NaN past the end of the row
    static const int lengths[] = { 0, 1, 3, 7, 8, 9, 15, 17, 31, 32, 33, 63, 129, 257, 1057 };
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    enum { N = 1200, COLS = 6 };
    struct rng r = rng_for("float products");
    static double w[N], x[COLS][N];
    static char wraw[4 * N + 64], xraw[COLS][4 * N + 64];
    FOR_SIMD(simd) {
        for (int t = 0; t < 3; ++t) {
            for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; ++l) {
                const int n = lengths[l], shift = (int) rng_below(&r, 4);
                const char * cols[COLS];
                for (int i = 0; i < N; ++i) { w[i] = i < n ? random_unit(&r) : (double) NAN; }
                write_floats(types[t], wraw + shift, w, N);
                for (int c = 0; c < COLS; ++c) {
                    for (int i = 0; i < N; ++i) { x[c][i] = i < n ? random_unit(&r) : (double) NAN; }
                    write_floats(GCUDA_TYPE_F32, xraw[c] + c, x[c], N);
                    cols[c] = xraw[c] + c;
                }
                for (int n_cols = 1; n_cols <= COLS; ++n_cols) {
                    float out[COLS];
                    simd->dot(types[t], wraw + shift, cols, n_cols, n, out);
                    for (int c = 0; c < n_cols; ++c) {
                        double want = 0.0;
                        for (int i = 0; i < n; ++i) {
                            want += value_read(types[t], wraw + shift + (size_t) i * gcuda_type_size(types[t])) *
                                    value_read(GCUDA_TYPE_F32, cols[c] + 4 * i);
                        }
                        CHECK_MSG(fabs((double) out[c] - want) <= 1e-5 * sqrt((double) n + 1.0),
                            "%s %s n %d column %d of %d: %g, want %g", simd->name, gcuda_type_name(types[t]), n, c,
                            n_cols, (double) out[c], want);
                    }
                }
            }
        }
    }
}

TEST(float_panels) { // packing and micro-kernel together: rows of any type, stride and number, edges of every size
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_BF16 };
    static const int sizes[][3] = { { 1, 1, 1 }, { 7, 3, 5 }, { 8, 4, 8 }, { 24, 12, 16 }, { 33, 13, 31 },
        { 96, 24, 255 }, { 95, 11, 257 }, { 97, 37, 600 } };
    struct rng r = rng_for("float panels");
    FOR_SIMD(simd) {
        for (int t = 0; t < 3; ++t) {
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
                const int m = sizes[s][0], n = sizes[s][1], k = sizes[s][2], pad = (int) rng_below(&r, 3);
                const size_t size = gcuda_type_size(types[t]), nb = (size_t) (k + pad) * size;
                char * a = (char *) malloc((size_t) m * nb);
                float *b = (float *) malloc((size_t) (n + 3) / 4 * 4 * (size_t) k * sizeof(float)),
                      *c = (float *) malloc((size_t) m * (size_t) n * sizeof(float));
                float * x = (float *) malloc((size_t) n * (size_t) k * sizeof(float));
                struct gcudai_gemm_local * local = (struct gcudai_gemm_local *) malloc(sizeof *local);
                struct gcudai_gemm g;
                for (int i = 0; i < m * (k + pad); ++i) {
                    value_write(types[t], a + (size_t) i * size, random_unit(&r));
                }
                for (int i = 0; i < n * k; ++i) { x[i] = (float) random_unit(&r); }
                for (int j = 0; j < n; j += 4) {
                    gcudai_pack_quad(
                        GCUDA_TYPE_F32, (const char *) (x + j * k), 4, (size_t) k * 4, n - j, k, b + j * k);
                }
                memset(&g, 0, sizeof g);
                g.type = types[t], g.a = a, g.a_nb = nb, g.a_nb0 = size, g.b = b, g.c = c, g.ldc = m, g.m = m, g.n = n,
                g.k = k;
                for (int m0 = 0; m0 < m; m0 += GCUDAI_GEMM_MT) {
                    for (int n0 = 0; n0 < n; n0 += 24) {
                        gcudai_gemm_tile(
                            simd, &g, m0, GCUDAI_MIN(m0 + GCUDAI_GEMM_MT, m), n0, GCUDAI_MIN(n0 + 24, n), local);
                    }
                }
                for (int i = 0; i < m; ++i) {
                    for (int j = 0; j < n; ++j) {
                        double want = 0.0;
                        for (int l = 0; l < k; ++l) {
                            want +=
                                value_read(types[t], a + (size_t) i * nb + (size_t) l * size) * (double) x[j * k + l];
                        }
                        CHECK_MSG(fabs((double) c[j * m + i] - want) <= 1e-5 * sqrt((double) k),
                            "%s %s [%d %d %d] at %d %d: %g, want %g", simd->name, gcuda_type_name(types[t]), m, n, k, i,
                            j, (double) c[j * m + i], want);
                    }
                }
                free(a), free(b), free(c), free(x), free(local);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------- operations
TEST(each_instruction_set) { // the operations' own tests, with every set but the best, which they have by themselves
    const enum gcuda_cpu_isa best = gcuda_cpu_get_isa();
    FOR_SIMD(simd) {
        if (isa == (int) best || gcuda_cpu_set_isa((enum gcuda_cpu_isa) isa) != GCUDA_STATUS_SUCCESS) { continue; }
        CHECK_EQ_I(gcuda_cpu_get_isa(), isa);
        test_mul_mat_float();
        test_mul_mat_quantized();
        test_mul_mat_blocks_of_32();
        test_mul_mat_range_of_activations();
        test_mul_mat_id();
        test_out_prod();
    }
    CHECK_OK(gcuda_cpu_set_isa(GCUDA_CPU_ISA_AUTO));
    CHECK_EQ_I(gcuda_cpu_get_isa(), best);
    CHECK_EQ_I(gcuda_cpu_set_isa((enum gcuda_cpu_isa) 99), GCUDA_STATUS_UNSUPPORTED);
}

TEST(long_rows) { // pieces of GCUDAI_Q_CHUNK and GCUDAI_Q_PANEL_K with every kind of remainder, few and many columns
    char types[2048];
    FOR_SIMD(simd) {
        CHECK_OK(gcuda_cpu_set_isa((enum gcuda_cpu_isa) isa));
        snprintf(types, sizeof types, "%s", op_types_with(WEIGHT_TYPES, ",F32>F32"));
        mul_mat_cases(types, "2304,17|2304,3 4352,33|4352,19", 0);
        snprintf(types, sizeof types, "%s", op_types_with("Q4_0 Q4_1 Q5_0 Q8_0 IQ4_NL MXFP4", ",F32>F32"));
        mul_mat_cases(types, "2080,18|2080,2 2336,16|2336,49 544,31|544,50 4128,16|4128,5", 0);
    }
    CHECK_OK(gcuda_cpu_set_isa(GCUDA_CPU_ISA_AUTO));
}

TEST(block_activations) { // b in the block type that belongs to a
    FOR_SIMD(simd) {
        CHECK_OK(gcuda_cpu_set_isa((enum gcuda_cpu_isa) isa));
        mul_mat_cases(
            "Q4_0,Q8_0>F32 Q8_0,Q8_0>F32 MXFP4,Q8_0>F32 Q4_1,Q8_1>F32 Q5_1,Q8_1>F32 Q4_K,Q8_K>F32 IQ3_S,Q8_K>F32",
            "512,18|512,3 512,18|512,50 256,17,2|256,2,4", LAYOUT_ROWS);
    }
    CHECK_OK(gcuda_cpu_set_isa(GCUDA_CPU_ISA_AUTO));
}

TEST(half_activations) { // F16 and BF16 against every kind of weight
    mul_mat_cases("F32,F16>F32 F32,BF16>F32 F16,BF16>F32 BF16,F16>F32 Q4_0,F16>F32 Q6_K,BF16>F32",
        "256,17|256,3 256,33|256,21 256,3|256,3", LAYOUT_ROWS);
}

// y = a x, in memory of the context.
struct product {
    struct gcuda_context * ctx;
    struct gcuda_tensor *a, *x, *y;
    struct gcuda_cgraph * graph;
};
static bool product_begin(struct product * q, enum gcuda_type type, int64_t k, int64_t m, int64_t n) {
    const struct gcuda_init_params params = { 0, NULL, false };
    q->ctx = gcuda_init(params);
    q->a = gcuda_new_tensor_2d(q->ctx, type, k, m);
    q->x = gcuda_new_tensor_2d(q->ctx, GCUDA_TYPE_F32, k, n);
    q->y = gcuda_mul_mat(q->ctx, q->a, q->x);
    q->graph = gcuda_new_graph(q->ctx);
    return CHECK_OK(gcuda_build_forward_expand(q->graph, q->y));
}

// Activations near the lower end of F32 count: y of x 2^-p is y of x, 2^-p times as large, as far as F32 holds it.
TEST(tiny_activations) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q5_1, GCUDA_TYPE_Q8_0, GCUDA_TYPE_Q6_K,
        GCUDA_TYPE_Q2_K, GCUDA_TYPE_IQ4_XS };
    static const int powers[] = { 118, 121, 124, 130 };
    enum { K = 512, M = 32, MAX_N = 40 };
    static float first[M * MAX_N];
    FOR_SIMD(simd) {
        CHECK_OK(gcuda_cpu_set_isa((enum gcuda_cpu_isa) isa));
        for (int t = 0; t < 6; ++t) {
            for (int n = 2; n <= MAX_N; n += MAX_N - 2) {
                struct product q;
                if (!product_begin(&q, types[t], K, M, n)) { continue; }
                struct rng r = rng_for("tiny activations");
                static float w[K * M], usual[K * MAX_N];
                for (int i = 0; i < K * M; ++i) { w[i] = 50.0f * (float) random_unit(&r); }
                for (int i = 0; i < K * n; ++i) { usual[i] = (float) random_unit(&r); }
                CHECK_OK(gcuda_quantize_rows(types[t], w, q.a->data, M, K, NULL, 1));
                memcpy(q.x->data, usual, gcuda_nbytes(q.x));
                CHECK_OK(gcuda_graph_compute_with_ctx(q.ctx, q.graph, 1));
                memcpy(first, q.y->data, gcuda_nbytes(q.y));
                for (int p = 0; p < 4; ++p) {
                    double error = 0.0, all = 0.0;
                    for (int i = 0; i < K * n; ++i) { ((float *) q.x->data)[i] = ldexpf(usual[i], -powers[p]); }
                    CHECK_OK(gcuda_graph_compute_with_ctx(q.ctx, q.graph, 1));
                    for (int i = 0; i < M * n; ++i) {
                        const double want = first[i], got = ldexp((double) ((float *) q.y->data)[i], powers[p]);
                        error += (got - want) * (got - want), all += want * want;
                    }
                    CHECK_MSG(error <= 1e-6 * all, "%s %s, %d columns, 2^-%d: %g", simd->name,
                        gcuda_type_name(types[t]), n, powers[p], error / all);
                }
                gcuda_free(q.ctx);
            }
        }
    }
    CHECK_OK(gcuda_cpu_set_isa(GCUDA_CPU_ISA_AUTO));
}

// GCUDA_PREC_F32: activations meet quantized weights as they are, of one matrix and of experts.
TEST(exact_products) {
    enum { K = 512, M = 48, MAX_N = 60 };
    static double w[K * M];
    for (int t = 0; t < N_WEIGHT_TYPES; ++t) {
        for (int n = 1; n <= MAX_N; n = n == 1 ? 3 : n * 4) { // 1, 3, 12, 48
            struct product q;
            double error = 0.0, all = 0.0;
            struct rng r = rng_for("exact products");
            if (!product_begin(&q, weight_types[t], K, M, n)) { continue; }
            struct gcuda_tensor * ids = gcuda_new_tensor_2d(q.ctx, GCUDA_TYPE_I32, 1, n);
            struct gcuda_tensor * z = gcuda_mul_mat_id(q.ctx, q.a, gcuda_reshape_3d(q.ctx, q.x, K, 1, n), ids);
            CHECK_OK(gcuda_mul_mat_set_prec(q.y, GCUDA_PREC_F32));
            CHECK_OK(gcuda_mul_mat_set_prec(z, GCUDA_PREC_F32));
            CHECK_OK(gcuda_build_forward_expand(q.graph, z));
            memset(ids->data, 0, gcuda_nbytes(ids));
            for (int i = 0; i < K * M; i += (int) gcuda_blck_size(weight_types[t])) {
                memcpy((char *) q.a->data + gcuda_row_size(weight_types[t], i), random_block(weight_types[t], &r),
                    gcuda_type_size(weight_types[t]));
            }
            decode_blocks(weight_types[t], q.a->data, K * M, w);
            // 8 bits lose the others
            for (int i = 0; i < K * n; ++i) {
                ((float *) q.x->data)[i] = (float) random_unit(&r) * (i % 32 == 5 ? 100.0f : 1.0f);
            }
            CHECK_OK(gcuda_graph_compute_with_ctx(q.ctx, q.graph, 1));
            for (int i = 0; i < M * n; ++i) {
                double want = 0.0;
                for (int k = 0; k < K; ++k) {
                    want += w[i % M * K + k] * (double) ((float *) q.x->data)[i / M * K + k];
                }
                const double y = (double) ((float *) q.y->data)[i], of_expert = (double) ((float *) z->data)[i];
                error += (y - want) * (y - want) + (of_expert - want) * (of_expert - want), all += 2.0 * want * want;
            }
            CHECK_MSG(error <= 1e-11 * all, "%s, %d columns: %g", gcuda_type_name(weight_types[t]), n, error / all);
            gcuda_free(q.ctx);
        }
    }
}

// y = a x with one column spoilt: that column is NaN, the others are as without it
TEST(not_finite_activations) {
    static const enum gcuda_type types[] = { GCUDA_TYPE_F32, GCUDA_TYPE_F16, GCUDA_TYPE_Q4_0, GCUDA_TYPE_Q6_K,
        GCUDA_TYPE_IQ2_XS };
    enum { K = 512, M = 32 };
    FOR_SIMD(simd) {
        CHECK_OK(gcuda_cpu_set_isa((enum gcuda_cpu_isa) isa));
        for (int t = 0; t < 5; ++t) {
            for (int n = 2; n <= 66; n += 64) {
                struct product q;
                if (!product_begin(&q, types[t], K, M, n)) { continue; }
                struct rng r = rng_for("not finite");
                for (int i = 0; i < K * M; i += (int) gcuda_blck_size(types[t])) {
                    char * p = (char *) q.a->data + gcuda_row_size(types[t], i);
                    if (gcuda_is_quantized(types[t])) {
                        memcpy(p, random_block(types[t], &r), gcuda_type_size(types[t]));
                    } else {
                        value_write(types[t], p, random_unit(&r));
                    }
                }
                for (int i = 0; i < K * n; ++i) { ((float *) q.x->data)[i] = (float) random_unit(&r); }
                ((float *) q.x->data)[K + 77] = NAN;
                CHECK_OK(gcuda_graph_compute_with_ctx(q.ctx, q.graph, 1));
                for (int i = 0; i < M * n; ++i) {
                    const float v = ((float *) q.y->data)[i];
                    CHECK_MSG(i / M == 1 ? isnan(v) : isfinite(v), "%s %s: column %d is %g", simd->name,
                        gcuda_type_name(types[t]), i / M, (double) v);
                }
                gcuda_free(q.ctx);
            }
        }
    }
    CHECK_OK(gcuda_cpu_set_isa(GCUDA_CPU_ISA_AUTO));
}
