// test.h: a small test program in one include
//
//   #include "test.h"
//   TEST(sizes_do_not_overflow) { CHECK(f(1) == 2); CHECK_MSG(x == y, "x is %d", x); }
//
// There is a main() in here: a program is one C file, and every function below is static. Options of each program:
//   --list            print the names of the tests
//   --filter TEXT     only tests whose name contains TEXT; 'add/F16/ne=7' also chooses cases inside the test `add`,
//                     '/F16/' chooses such cases in every test
//   --test NAME       only the test that has this name
//   --part I/N        every N-th case, from case I on (0 <= I < N): N parallel programs share the cases. Tests
//                     without cases run in part 0
//   --seed N          random numbers start here (printed; also GCUDA_TEST_SEED)
//   --update-cases    rewrite the committed numbers of cases (tests/cases.txt, see test-ops.h); runs none of them
//   --verbose         print the name of every case
// GCUDA_TEST_FULL=1 in the environment runs the slow cases too. The last line is `N passed, N failed, N skipped` and
// the exit code is 0 only if nothing failed. Nothing that a test leaves in the program may disturb the next one.
#ifndef GCUDA_TEST_H
#define GCUDA_TEST_H

#include "gcuda.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define TEST_UNUSED __attribute__((unused))
#define TEST_PRINTF(a, b) __attribute__((format(printf, a, b)))
#define TEST_AT_START __attribute__((constructor))
#else
#error "the tests register themselves with a constructor function: build them with gcc, clang or mingw"
#endif

// =====================================================================================================================
// >>registration
// =====================================================================================================================
struct test_entry {
    const char * name;
    void (*run)(void);
    struct test_entry * next;
};

struct test_state {
    struct test_entry * first;
    struct test_entry ** last;
    const char *filter, *only; // only: a test's name
    uint64_t seed;
    bool full, verbose, update_cases;
    bool quiet; // failed checks count and are not printed: for tests of the harness itself
    long n_passed, n_failed, n_skipped;
    const char * test;        // the running one
    char case_name[512];      // the running case of it, or empty
    long n_cases;             // cases of the running test
    long n_offered;           // cases that the filter chose, of all tests, whether they are of this part or not
    long part, n_parts;       // every n_parts-th of them runs, from the part-th on; n_parts 0: all
    long n_bad_checks;        // since the running test or case began
    bool skip;                // the running test or case asked to be skipped
    void (*after_all)(void);  // set by a header that has something to compare at the end
    void (*after_test)(void); // called when each test is over
};
static struct test_state test_all;

TEST_UNUSED static void test_register(struct test_entry * e) {
    if (test_all.last == NULL) { test_all.last = &test_all.first; }
    *test_all.last = e;
    test_all.last = &e->next;
}

#define TEST(ident)                                                                               \
    static void test_##ident(void);                                                               \
    static struct test_entry test_entry_##ident = { #ident, test_##ident, NULL };                 \
    TEST_AT_START static void test_register_##ident(void) { test_register(&test_entry_##ident); } \
    static void test_##ident(void)

// =====================================================================================================================
// >>checks   a failed check is printed and counted; the test goes on unless it uses REQUIRE
// =====================================================================================================================
TEST_PRINTF(3, 4) static void test_failed(const char * file, int line, const char * fmt, ...) {
    test_all.n_bad_checks++;
    if (test_all.n_bad_checks > 20 || test_all.quiet) { return; } // enough to see what is wrong
    printf("%s:%d: FAILED %s%s%s: ", file, line,
        test_all.case_name[0] ? ""
        : test_all.test       ? test_all.test
                              : "",
        test_all.case_name, test_all.case_name[0] ? " (rerun with --filter and this name)" : "");
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

#define CHECK(cond) ((cond) ? (void) 0 : test_failed(__FILE__, __LINE__, "%s", #cond))
#define CHECK_MSG(cond, ...) ((cond) ? (void) 0 : test_failed(__FILE__, __LINE__, __VA_ARGS__))
#define CHECK_EQ_I(a, b) test_equal_i(__FILE__, __LINE__, #a " == " #b, (long long) (a), (long long) (b))
#define CHECK_NEAR(a, b, tolerance) \
    test_near(__FILE__, __LINE__, #a " ~ " #b, (double) (a), (double) (b), (double) (tolerance))
#define CHECK_HAS(text, part) test_has(__FILE__, __LINE__, (text), (part))
#define CHECK_OK(call) test_ok(__FILE__, __LINE__, #call, (call))
#define REQUIRE(cond)                                     \
    do {                                                  \
        if (!(cond)) {                                    \
            test_failed(__FILE__, __LINE__, "%s", #cond); \
            return;                                       \
        }                                                 \
    } while (0)

TEST_UNUSED static void test_equal_i(const char * file, int line, const char * what, long long a, long long b) {
    if (a != b) { test_failed(file, line, "%s: %lld and %lld", what, a, b); }
}

TEST_UNUSED static void test_near(
    const char * file, int line, const char * what, double a, double b, double tolerance) {
    if (!(fabs(a - b) <= tolerance)) {
        test_failed(file, line, "%s: %.9g and %.9g, tolerance %g", what, a, b, tolerance);
    }
}

TEST_UNUSED static void test_has(const char * file, int line, const char * text, const char * part) {
    if (text == NULL || strstr(text, part) == NULL) {
        test_failed(file, line, "\"%s\" does not contain \"%s\"", text ? text : "(null)", part);
    }
}

TEST_UNUSED static bool test_ok(const char * file, int line, const char * what, gcuda_status st) {
    if (st != GCUDA_STATUS_SUCCESS) {
        test_failed(file, line, "%s: status %d, %s", what, (int) st, gcuda_last_error());
    }
    return st == GCUDA_STATUS_SUCCESS;
}

// The running test (or case) cannot run here; it counts as skipped unless a check fails.
TEST_UNUSED static void test_skip(const char * why) {
    test_all.skip = true;
    if (test_all.verbose) {
        printf("  skipped %s: %s\n", test_all.case_name[0] ? test_all.case_name : test_all.test, why);
    }
}

TEST_UNUSED static bool test_full(void) { return test_all.full; }

// =====================================================================================================================
// >>cases   a test may consist of named cases, each counted and chosen on its own
// =====================================================================================================================
static void test_settle(void) { // counts what just ended, test or case
    if (test_all.n_bad_checks > 0) {
        test_all.n_failed++;
    } else if (test_all.skip) {
        test_all.n_skipped++;
    } else {
        test_all.n_passed++;
    }
    test_all.n_bad_checks = 0;
    test_all.skip = false;
}

// All cases of all tests were asked for.
TEST_UNUSED static bool test_is_whole(void) {
    return test_all.filter == NULL && test_all.only == NULL && test_all.n_parts == 0;
}

// False: the filter leaves this case out. The name begins with the name of the test.
TEST_UNUSED static bool test_case_begin(const char * name) {
    if (test_all.filter != NULL && strstr(name, test_all.filter) == NULL) { return false; }
    if (test_all.update_cases) { // counted, not run
        test_all.n_cases++;
        return false;
    }
    if (test_all.n_parts > 0 && test_all.n_offered++ % test_all.n_parts != test_all.part) { return false; }
    if (test_all.n_bad_checks > 0) { test_settle(); } // what failed before is not this case's
    snprintf(test_all.case_name, sizeof test_all.case_name, "%s", name);
    if (test_all.verbose) { printf("  %s\n", name); }
    test_all.n_cases++;
    return true;
}

TEST_UNUSED static void test_case_end(void) {
    test_settle();
    test_all.case_name[0] = '\0';
}

// =====================================================================================================================
// >>random   small and the same everywhere; each case has its own generator, so it can run alone
// =====================================================================================================================
struct rng {
    uint64_t s;
};

TEST_UNUSED static uint64_t rng_u64(struct rng * r) { // splitmix64
    uint64_t z = (r->s += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

TEST_UNUSED static double rng_unit(struct rng * r) { return (double) (rng_u64(r) >> 11) * 0x1p-53; } // [0, 1)

TEST_UNUSED static double rng_between(struct rng * r, double lo, double hi) { return lo + (hi - lo) * rng_unit(r); }

TEST_UNUSED static int64_t rng_below(struct rng * r, int64_t n) {
    return n <= 0 ? 0 : (int64_t) (rng_u64(r) % (uint64_t) n);
}
// A few large numbers among many small ones, as activations of language models are. F16 cannot hold the largest.
TEST_UNUSED static double rng_outlier(struct rng * r) {
    const double size = rng_below(r, 50) > 0 ? 1.0 : rng_below(r, 4) > 0 ? 1e3 : 1e5;
    return size * rng_between(r, -1.0, 1.0);
}

TEST_UNUSED static struct rng rng_for(const char * name) { // from the seed and a name
    struct rng r = { test_all.seed * UINT64_C(0x2545F4914F6CDD1D) + 1 };
    for (; *name; ++name) { r.s = (r.s ^ (unsigned char) *name) * UINT64_C(0x100000001B3); }
    rng_u64(&r);
    return r;
}

// =====================================================================================================================
// >>fault   an allocator that counts what is alive and lets the k-th allocation fail
//
//   struct fault f;
//   fault_begin(&f, k);                    // k = 0: none fails
//   ... work ...
//   fault_end(&f);                         // the default allocator is back
//   CHECK(f.live == 0);
// =====================================================================================================================
struct fault {
    struct gcuda_allocator allocator;
    long fail_at; // 1 is the first allocation
    long n_calls, live, n_errors;
    size_t live_bytes, peak_bytes;
    bool fired;
    bool lock;
};

struct fault_block { // sits directly below the memory handed out
    void * base;
    size_t size;
    uint64_t magic;
};
#define FAULT_MAGIC UINT64_C(0x6763756461746573)

static void fault_lock(struct fault * f) {
    while (__atomic_test_and_set(&f->lock, __ATOMIC_ACQUIRE)) {}
}
static void fault_unlock(struct fault * f) { __atomic_clear(&f->lock, __ATOMIC_RELEASE); }

static void * fault_alloc(void * user, size_t size, size_t alignment) {
    struct fault * f = (struct fault *) user;
    fault_lock(f);
    const bool fails = ++f->n_calls == f->fail_at;
    f->fired = f->fired || fails;
    fault_unlock(f);
    const size_t extra = sizeof(struct fault_block) + (alignment ? alignment : 16);
    if (fails || size > SIZE_MAX - extra) { return NULL; }
    char * base = (char *) malloc(size + extra);
    if (base == NULL) { return NULL; }
    const uintptr_t mask = (alignment ? alignment : 16) - 1;
    char * p = base + sizeof(struct fault_block);
    p += (mask + 1 - ((uintptr_t) p & mask)) & mask;
    const struct fault_block b = { base, size, FAULT_MAGIC };
    memcpy(p - sizeof b, &b, sizeof b);
    memset(p, 0xA5, size); // what was not initialised shows
    fault_lock(f);
    f->live++;
    f->live_bytes += size;
    if (f->live_bytes > f->peak_bytes) { f->peak_bytes = f->live_bytes; }
    fault_unlock(f);
    return p;
}

static void fault_free(void * user, void * ptr, size_t size) {
    struct fault * f = (struct fault *) user;
    if (ptr == NULL) { return; }
    struct fault_block b;
    memcpy(&b, (char *) ptr - sizeof b, sizeof b);
    fault_lock(f);
    if (b.magic != FAULT_MAGIC || b.size != size) { f->n_errors++; } // not ours, freed twice, or another size
    f->live--;
    f->live_bytes -= b.size;
    fault_unlock(f);
    b.magic = 0;
    memcpy((char *) ptr - sizeof b, &b, sizeof b);
    free(b.base);
}

TEST_UNUSED static void fault_begin(struct fault * f, long k) {
    memset(f, 0, sizeof *f);
    f->fail_at = k;
    f->allocator.alloc = fault_alloc;
    f->allocator.free = fault_free;
    f->allocator.user = f;
    gcuda_set_allocator(&f->allocator);
}

TEST_UNUSED static void fault_end(struct fault * f) {
    gcuda_set_allocator(NULL);
    CHECK_MSG(f->n_errors == 0, "%ld blocks freed twice, or with a size that is not theirs", f->n_errors);
}

// =====================================================================================================================
// >>main
// =====================================================================================================================
static bool test_chosen(const char * name) {
    const char * f = test_all.filter;
    if (test_all.only != NULL && strcmp(name, test_all.only) != 0) { return false; }
    if (f == NULL || strstr(name, f) != NULL) { return true; }
    const char * slash = strchr(f, '/');
    if (slash == NULL) { return false; }
    const size_t n = (size_t) (slash - f), len = strlen(name); // the test's part of a case's name, or the end of it
    return n <= len && memcmp(name + len - n, f, n) == 0;
}

static void test_run_one(const struct test_entry * e) {
    test_all.test = e->name;
    test_all.n_cases = 0;
    test_all.n_bad_checks = 0;
    test_all.skip = false;
    const long n_failed = test_all.n_failed, n_passed = test_all.n_passed, n_offered = test_all.n_offered;
    e->run();
    const bool is_anothers = test_all.part > 0 || test_all.n_offered > n_offered; // without a case here
    if ((test_all.n_cases == 0 && !is_anothers) || test_all.n_bad_checks > 0) { test_settle(); }
    if (test_all.after_test) { test_all.after_test(); }
    if (test_all.verbose || test_all.n_failed > n_failed) {
        printf("%-40s %s (%ld cases, %ld passed)\n", e->name, test_all.n_failed > n_failed ? "FAILED" : "ok",
            test_all.n_cases, test_all.n_passed - n_passed);
    }
}

static void test_crashed(int sig) { // only says where; the default action follows
    fprintf(stderr, "\nsignal %d in %s\n", sig,
        test_all.case_name[0] ? test_all.case_name
        : test_all.test       ? test_all.test
                              : "?");
    signal(sig, SIG_DFL);
    raise(sig);
}

static bool test_exists(const char * name) {
    const struct test_entry * e = test_all.first;
    while (e != NULL && strcmp(e->name, name) != 0) { e = e->next; }
    return e != NULL;
}

static int test_usage(const char * program) {
    fprintf(stderr,
        "usage: %s [--list] [--filter TEXT] [--test NAME] [--part I/N] [--seed N] [--update-cases] [--verbose]\n",
        program);
    return 2;
}

static int test_parse(int argc, char ** argv, bool * list) {
    const char * env_seed = getenv("GCUDA_TEST_SEED");
    const char * env_full = getenv("GCUDA_TEST_FULL");
    test_all.seed = env_seed && *env_seed ? strtoull(env_seed, NULL, 0) : 1;
    test_all.full = env_full && *env_full && strcmp(env_full, "0") != 0;
    for (int i = 1; i < argc; ++i) {
        const bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--list") == 0) {
            *list = true;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            test_all.verbose = true;
        } else if (strcmp(argv[i], "--update-cases") == 0) {
            test_all.update_cases = true;
        } else if (strcmp(argv[i], "--filter") == 0 && has_value) {
            test_all.filter = argv[++i];
        } else if (strcmp(argv[i], "--test") == 0 && has_value) {
            test_all.only = argv[++i];
        } else if (strcmp(argv[i], "--part") == 0 && has_value) {
            char * end = NULL;
            test_all.part = strtol(argv[++i], &end, 10);
            test_all.n_parts = *end == '/' ? strtol(end + 1, NULL, 10) : 0;
            if (test_all.part < 0 || test_all.part >= test_all.n_parts) { return test_usage(argv[0]); }
        } else if (strcmp(argv[i], "--seed") == 0 && has_value) {
            test_all.seed = strtoull(argv[++i], NULL, 0);
        } else {
            return test_usage(argv[0]);
        }
    }
    return 0;
}

int main(int argc, char ** argv) {
    bool list = false;
    const int bad = test_parse(argc, argv, &list);
    if (bad) { return bad; }
    if (test_all.only != NULL && !test_exists(test_all.only)) {
        fprintf(stderr, "%s has no test '%s'. --list prints the names, --filter takes a part of one\n", argv[0],
            test_all.only);
        return 2;
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    signal(SIGSEGV, test_crashed);
    signal(SIGFPE, test_crashed);
    signal(SIGABRT, test_crashed);
#else
    (void) test_crashed;
#endif
    if (!list) { printf("seed %llu%s\n", (unsigned long long) test_all.seed, test_all.full ? ", full" : ""); }
    for (const struct test_entry * e = test_all.first; e; e = e->next) {
        if (list) {
            printf("%s\n", e->name);
        } else if (test_all.update_cases) {
            for (int level = 0; level < 2; ++level) {
                test_all.full = level == 1;
                test_run_one(e);
            }
        } else if (test_chosen(e->name)) {
            test_run_one(e);
        }
    }
    if (list) { return 0; }
    test_all.test = NULL;
    if (test_all.after_all) { test_all.after_all(); }
    printf("%ld passed, %ld failed, %ld skipped\n", test_all.n_passed, test_all.n_failed, test_all.n_skipped);
    return test_all.n_failed == 0 ? 0 : 1;
}

#endif // GCUDA_TEST_H
