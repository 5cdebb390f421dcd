// The fuzz target (tests/fuzz/fuzz_graph.c) on random bytes, a few thousand of them: for compilers without libFuzzer,
// and under every sanitizer. `--filter graphs/1234` runs input 1234 alone.
#include "fuzz/fuzz_graph.c"

#include "test.h"

TEST(graphs) {
    const long n = test_full() ? 600000 : 40000;
    for (long i = 0; i < n; ++i) {
        char name[48];
        uint8_t bytes[600];
        snprintf(name, sizeof name, "graphs/%ld", i);
        if (!test_case_begin(name)) { continue; }
        struct rng r = rng_for(name);
        const size_t size = 40 + (size_t) rng_below(&r, (int64_t) sizeof bytes - 40);
        for (size_t k = 0; k < size; ++k) { bytes[k] = (uint8_t) rng_u64(&r); }
        CHECK(LLVMFuzzerTestOneInput(bytes, size) == 0);
        test_case_end();
    }
    if (test_all.filter == NULL) {
        int n_ops = 0;
        for (int op = 0; op < GCUDA_OP_COUNT; ++op) {
            n_ops += fuzz_computed[op] > 0;
            if (test_all.verbose) { printf("%8ld %s\n", fuzz_computed[op], gcuda_op_name((enum gcuda_op) op)); }
        }
        CHECK_MSG(n_ops >= 50, "only %d operations were reached", n_ops);
    }
    for (int k = 0; k < 2; ++k) { gcuda_backend_free(fuzz_backend(k)); }
}
