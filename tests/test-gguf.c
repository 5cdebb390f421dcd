// GGUF files: a table of damaged ones and the message of each, round trips of every type, split files, loading to
// backends, each allocation failing once, files beyond 4 GiB. tests/oracle/gguf_files.py compares with the PyPI package
// gguf.
#include "fuzz/fuzz_gguf.c"

#include "sched-test.h"

#include <errno.h>

// =====================================================================================================================
// >>files   made of words: a table of them says what each is
//   magic   the four letters        u8:N u16:N u32:N u64:N   a number (decimal, 0x..., negative)
//   str:T   length and text T       len:N   a length alone   raw:T   text without a length
//   rep:C*N length and N times the character C               nul:T  the string T with a zero byte after it
//   zero:N  N zero bytes            pad:N   zero bytes up to a multiple of N
// =====================================================================================================================
struct file {
    uint8_t * p;
    size_t n, cap;
};

static void put(struct file * f, const void * data, size_t n) {
    if (f->n + n > f->cap) {
        f->cap = 2 * (f->n + n);
        f->p = (uint8_t *) realloc(f->p, f->cap);
    }
    memcpy(f->p + f->n, data, n);
    f->n += n;
}
static void put_u64(struct file * f, uint64_t v) { put(f, &v, sizeof v); }
static void put_zeros(struct file * f, size_t n) {
    for (size_t i = 0; i < n; ++i) { put(f, "", 1); }
}
static void put_text(struct file * f, const char * text, size_t n) {
    put_u64(f, n);
    put(f, text, n);
}

static bool put_word(struct file * f, const char * w, size_t n) {
    const char *colon = (const char *) memchr(w, ':', n), *v = colon != NULL ? colon + 1 : w + n;
    const size_t n_v = (size_t) (w + n - v), n_name = colon != NULL ? (size_t) (colon - w) : n;
    const uint64_t number = *v == '-' ? (uint64_t) strtoll(v, NULL, 0) : strtoull(v, NULL, 0);
    char name[8] = "";
    memcpy(name, w, n_name < 7 ? n_name : 7);
    // clang-format off
    if (strcmp(name, "magic") == 0) { put(f, "GGUF", 4); return true; }
    if (strcmp(name, "u8") == 0) { put(f, &number, 1); return true; }
    if (strcmp(name, "u16") == 0) { put(f, &number, 2); return true; }
    if (strcmp(name, "u32") == 0) { put(f, &number, 4); return true; }
    if (strcmp(name, "u64") == 0 || strcmp(name, "len") == 0) { put(f, &number, 8); return true; }
    if (strcmp(name, "str") == 0) { put_text(f, v, n_v); return true; }
    if (strcmp(name, "raw") == 0) { put(f, v, n_v); return true; }
    if (strcmp(name, "nul") == 0) { put_u64(f, n_v + 1); put(f, v, n_v); put(f, "", 1); return true; }
    if (strcmp(name, "zero") == 0) { put_zeros(f, (size_t) number); return true; }
    if (strcmp(name, "pad") == 0) { put_zeros(f, (size_t) ((number - f->n % number) % number)); return true; }
    // clang-format on
    if (strcmp(name, "rep") == 0) {
        const size_t times = (size_t) strtoull(v + 2, NULL, 0);
        put_u64(f, times);
        for (size_t i = 0; i < times; ++i) { put(f, v, 1); }
        return true;
    }
    return false;
}

static struct file file_of(const char * words) {
    struct file f = { NULL, 0, 0 };
    while (*words != '\0') {
        const size_t n = strcspn(words, " ");
        if (n > 0) { CHECK_MSG(put_word(&f, words, n), "no such word: %s", words); }
        words += n + (words[n] == ' ');
    }
    if (f.p == NULL) { f.p = (uint8_t *) malloc(1); }
    return f;
}

#define HEAD(n_tensors, n_kv) "magic u32:3 u64:" #n_tensors " u64:" #n_kv " "
#define INFO(name, n_dims, dims, type, offset) "str:" #name " u32:" #n_dims " " dims " u32:" #type " u64:" #offset " "
#define F32_4 INFO(a, 1, "u64:4", 0, 0)

static const struct bad_file {
    const char *words, *message;
} bad_files[] = {
    // the header
    { "", "magic takes 4 bytes, and 0 are left" },
    { "raw:GGU", "magic takes 4 bytes, and 3 are left" },
    { "raw:GGML u32:3 u64:0 u64:0", "magic is 47 47 4d 4c, want 47 47 55 46" },
    { "magic", "version takes 4 bytes, and 0 are left" },
    { "magic u32:0 u64:0 u64:0", "version 0; versions 2 and 3 are read" },
    { "magic u32:1 u32:0 u32:0", "version 1, whose counts have 32 bits" },
    { "magic u32:4 u64:0 u64:0", "version 4; versions 2 and 3 are read" },
    { "magic u32:0xffffffff u64:0 u64:0", "version 4294967295" },
    { "magic u32:0x03000000 u64:0 u64:0", "a big-endian file (version 0x03000000)" },
    { "magic u32:0x02000000 u64:0 u64:0", "a big-endian file" },
    { "magic u32:3 u64:0 u32:0", "number of pairs takes 8 bytes, and 4 are left" },
    { "magic u32:3 u64:0x1000000000000000 u64:0 zero:1000",
        "1152921504606846976 tensors of at least 25 bytes each, and 1000 bytes are left" },
    { "magic u32:3 u64:0 u64:0x1000000000000000 zero:1000",
        "1152921504606846976 pairs of at least 14 bytes each, and 1000 bytes are left" },
    { "magic u32:3 u64:-1 u64:0 zero:100", "18446744073709551615 tensors" },
    { "magic u32:3 u64:0 u64:-1 zero:100", "18446744073709551615 pairs" },
    { "magic u32:3 u64:41 u64:0 zero:1000", "41 tensors of at least 25 bytes each" },
    { "magic u32:3 u64:0x100000000 u64:0 zero:100", "4294967296 tensors" },
    // keys
    { HEAD(0, 1) "len:0x1000000000000000 zero:64", "key of 1152921504606846976 bytes, and 64 are left" },
    { HEAD(0, 1) "len:-1 zero:64", "key of 18446744073709551615 bytes" },
    { HEAD(0, 1) "len:65 zero:64", "key of 65 bytes, and 64 are left" },
    { HEAD(0, 1) "str: u32:4 u32:1", "key is empty" },
    { HEAD(0, 1) "rep:k*65536 u32:4 u32:1", "key of 65536 bytes, at most 65535" },
    { HEAD(0, 1) "nul:key u32:4 u32:1", "key 'key' has a zero byte in it" },
    { HEAD(0, 2) "str:key u32:4 u32:1 str:key u32:5 u32:1", "key 'key' occurs twice (pair 1)" },
    // nothing for a terminal
    { HEAD(0, 2) "str:\033[2Jkey u32:4 u32:1 str:\033[2Jkey u32:5 u32:1", "key '?[2Jkey' occurs twice" },
    { HEAD(0, 1) "str:abcd", "1 pairs of at least 14 bytes each, and 12 bytes are left" },
    { HEAD(0, 1) "str:abcdefgh zero:2", "value type takes 4 bytes, and 2 are left" },
    // values
    { HEAD(0, 1) "str:key u32:13 u64:0", "key 'key': value type 13 does not exist, 0 to 12 do" },
    { HEAD(0, 1) "str:key u32:-1 u64:0", "value type 4294967295 does not exist" },
    { HEAD(0, 1) "str:key u32:10 u32:7", "value takes 8 bytes, and 4 are left" },
    { HEAD(0, 1) "str:key u32:7 u8:2", "key 'key': bool 0 is 2, want 0 or 1" },
    { HEAD(0, 1) "str:key u32:8 len:0x1000000000000000 zero:9",
        "a string of 1152921504606846976 bytes, and 9 are left" },
    { HEAD(0, 1) "str:key u32:8 len:0x80000000 zero:9", "a string of 2147483648 bytes, and 9 are left" },
    { HEAD(0, 1) "str:key u32:8 zero:4", "a string takes 8 bytes, and 4 are left" },
    // arrays
    { HEAD(0, 1) "str:key u32:9 u32:13 u64:1 u64:0", "type of array elements 13 does not exist" },
    { HEAD(0, 1) "str:key u32:9 u32:99 u64:0x1000000000000000 u64:0", "type of array elements 99 does not exist" },
    { HEAD(0, 1) "str:key u32:9 u32:9 u64:1 u32:4 u64:1 u32:5", "key 'key': an array of arrays" },
    { HEAD(0, 1) "str:key u32:9 u32:0 u64:0x1000000000000000 zero:100",
        "1152921504606846976 elements (u8) of the array of key 'key'" },
    { HEAD(0, 1) "str:key u32:9 u32:8 u64:0x1000000000000000 zero:1024",
        "1152921504606846976 elements (str) of the array of key 'key'" },
    { HEAD(0, 1) "str:key u32:9 u32:10 u64:0x2000000000000000 zero:100", "2305843009213693952 elements (u64)" },
    { HEAD(0, 1) "str:key u32:9 u32:11 u64:-1 zero:100", "18446744073709551615 elements (i64)" },
    { HEAD(0, 1) "str:key u32:9 u32:4 u64:26 zero:100",
        "26 elements (u32) of the array of key 'key' of at least 4 bytes each, and 100" },
    { HEAD(0, 1) "str:key u32:9 u32:7 u64:3 u8:0 u8:1 u8:3", "key 'key': bool 2 is 3, want 0 or 1" },
    { HEAD(0, 1) "str:key u32:9 u32:8 u64:2 str:ok len:9 zero:8", "a string of 9 bytes, and 8 are left" },
    { HEAD(0, 1) "str:key u32:9 u32:8 u64:2 len:4 zero:8", "a string takes 8 bytes, and 4 are left" },
    // the alignment
    { HEAD(0, 1) "str:general.alignment u32:4 u32:0", "general.alignment is 0, want a power of two up to 1048576" },
    { HEAD(0, 1) "str:general.alignment u32:4 u32:3", "general.alignment is 3" },
    { HEAD(0, 1) "str:general.alignment u32:4 u32:0x80000000", "general.alignment is 2147483648" },
    { HEAD(0, 1) "str:general.alignment u32:5 u32:32", "general.alignment is of type i32, want u32" },
    { HEAD(0, 1) "str:general.alignment u32:8 str:32", "general.alignment is of type str, want u32" },
    { HEAD(0, 1) "str:general.alignment u32:9 u32:4 u64:1 u32:32", "general.alignment is of type arr, want u32" },
    // tensor infos
    { HEAD(1, 0) "str: u32:1 u64:4 u32:0 u64:0 zero:32", "name of a tensor is empty" },
    { HEAD(1, 0) "rep:t*64 u32:1 u64:4 u32:0 u64:0 zero:64", "name of a tensor of 64 bytes, at most 63" },
    { HEAD(1, 0) "len:0x8000000000000000 zero:64", "name of a tensor of 9223372036854775808 bytes" },
    { HEAD(1, 0) "nul:t u32:1 u64:4 u32:0 u64:0 zero:64", "name of a tensor 't' has a zero byte in it" },
    { HEAD(1, 0) INFO(a, 5, "u64:1 u64:1 u64:1 u64:1 u64:1", 0, 0) "zero:64",
        "tensor 'a' has 5 dimensions, at most 4" },
    { HEAD(1, 0) INFO(a, 0xffffffff, "u64:1", 0, 0) "zero:64", "tensor 'a' has 4294967295 dimensions" },
    { HEAD(1, 0) INFO(a, 1, "u64:-1", 0, 0) "zero:64", "tensor 'a': shape [-1, 1, 1, 1]" },
    { HEAD(1, 0) INFO(a, 1, "u64:0x3fffffffffffffff", 0, 0) "zero:64",
        "tensor 'a': shape [4611686018427387903, 1, 1, 1] of type f32 is negative or too large" },
    { HEAD(1, 0) INFO(a, 1, "u64:0x4000000000000000", 0, 0) "zero:64", "is negative or too large" },
    { HEAD(1, 0) INFO(a, 2, "u64:0x100000000 u64:0x100000000", 0, 0) "zero:64", "is negative or too large" },
    { HEAD(1, 0) INFO(a, 3, "u64:0 u64:0x4000000000000000 u64:16", 0, 0) "zero:64", "is negative or too large" },
    { HEAD(1, 0) INFO(a, 1, "u64:33", 2, 0) "zero:64",
        "tensor 'a': rows of 33 elements are not whole blocks of 32 (q4_0)" },
    { HEAD(1, 0) INFO(a, 1, "u64:32", 4, 0) "zero:64", "type 4 is q4_2, which GGUF has retired" },
    { HEAD(1, 0) INFO(a, 1, "u64:32", 31, 0) "zero:64", "type 31 is q4_0_4_4" },
    { HEAD(1, 0) INFO(a, 1, "u64:256", 34, 0) "zero:64", "type 34 is tq1_0; gcuda has no such type" },
    { HEAD(1, 0) INFO(a, 1, "u64:256", 40, 0) "zero:64", "type 40 is nvfp4; gcuda has no such type" },
    { HEAD(1, 0) INFO(a, 1, "u64:32", 41, 0) "zero:64", "tensor 'a': type 41 does not exist" },
    { HEAD(1, 0) INFO(a, 1, "u64:32", 0xffffffff, 0) "zero:64", "tensor 'a': type 4294967295 does not exist" },
    { HEAD(2, 0) F32_4 INFO(a, 1, "u64:4", 0, 32) "pad:32 zero:48", "tensor 'a' occurs twice (tensor 1)" },
    // offsets and sizes
    { HEAD(1, 0) INFO(a, 1, "u64:4", 0, 1) "zero:96", "tensor 'a' at offset 1 leaves a gap or is not aligned; want 0" },
    { HEAD(1, 0) INFO(a, 1, "u64:4", 0, 0xfffffffffffffff0) "zero:96",
        "tensor 'a' at offset 18446744073709551600 leaves a gap" },
    { HEAD(2, 0) F32_4 INFO(b, 1, "u64:4", 0, 0) "zero:96",
        "tensor 'b' at offset 0 overlaps the tensor before it; want 32" },
    { HEAD(2, 0) F32_4 INFO(b, 1, "u64:4", 0, 16) "zero:96",
        "tensor 'b' at offset 16 leaves a gap or is not aligned; want 32" },
    { HEAD(2, 0) F32_4 INFO(b, 1, "u64:4", 0, 64) "zero:96", "tensor 'b' at offset 64 leaves a gap" },
    { HEAD(1, 0) F32_4 "pad:32 zero:15", "tensor data of 16 bytes begins at byte 64, and the file ends at byte 79" },
    { HEAD(1, 0) F32_4, "tensor data of 16 bytes begins at byte 64, and the file ends at byte 57" },
    { HEAD(1, 0) INFO(a, 1, "u64:0x1000000000", 0, 0) "pad:32 zero:64", "tensor data of 274877906944 bytes" },
    { HEAD(3, 0) INFO(a, 1, "u64:0x7fffffffffffffff", 24, 0)
            INFO(b, 1, "u64:0x7fffffffffffffff", 24, 0x8000000000000000) INFO(c, 1, "u64:4", 0, 0) "zero:64",
        "tensor 'c' of 16 bytes: the sizes of the tensors add up to more than 2^64" },
    { HEAD(2, 0) INFO(a, 1, "u64:0x7fffffffffffffe0", 24, 0)
            INFO(b, 1, "u64:0x7fffffffffffffff", 24, 0x7fffffffffffffe0) "zero:64",
        "tensor data of 18446744073709551583 bytes" },
    { HEAD(1, 1) "str:general.alignment u32:4 u32:1048576 " F32_4 "zero:64",
        "tensor data of 16 bytes begins at byte 1048576" },
    // not all there
    { HEAD(1, 0) "str:abcdefghi u32:1 u32:4", "shape of a tensor takes 8 bytes, and 4 are left" },
    { HEAD(1, 0) "str:abcdefghijk u32:0 u16:4", "type of a tensor takes 4 bytes, and 2 are left" },
    { HEAD(1, 0) "str:abcde u32:0 u32:0 u32:4", "offset of a tensor takes 8 bytes, and 4 are left" },
};

static struct gcuda_gguf_init_params params_of(struct gcuda_context ** ctx, gcuda_status * st) {
    struct gcuda_gguf_init_params p;
    memset(&p, 0, sizeof p);
    p.ctx = ctx;
    p.status = st;
    return p;
}

static char * temp_path(const char * ending) { // freed by the caller; a name that no other run has
    static int n;
    const char * dir = getenv("TMPDIR");
    char * path = (char *) malloc(600);
#if defined(_WIN32)
    if (dir == NULL) { dir = "."; }
#else
    if (dir == NULL) { dir = "/tmp"; }
#endif
    snprintf(path, 600, "%s/gcuda-gguf-%llx-%llx-%d%s", dir, (unsigned long long) gcuda_time_us(),
        (unsigned long long) (uintptr_t) path, n++, ending);
    return path;
}

static bool save(const char * path, const void * data, size_t n) {
    FILE * f = fopen(path, "wb");
    const bool is_ok = f != NULL && fwrite(data, 1, n, f) == n;
    return f != NULL && fclose(f) == 0 && is_ok;
}

enum source { FROM_MEMORY, FROM_CALLBACK, FROM_PATH, FROM_PATH_COPY, FROM_FILE, N_SOURCES };
static const char * const source_names[N_SOURCES] = { "memory", "callback", "mapped", "copied", "FILE" };

struct opened { // what a source needs while it is open
    struct gcuda_gguf_context * g;
    struct gcuda_context * ctx;
    struct fuzz_source source;
    uint8_t * memory; // aligned, in base
    uint8_t * base;
    char * path;
    FILE * file;
    gcuda_status st;
};

static void open_as(struct opened * o, enum source source, const void * data, size_t n, bool no_alloc) {
    memset(o, 0, sizeof *o);
    struct gcuda_gguf_init_params p = params_of(&o->ctx, &o->st);
    p.no_alloc = no_alloc;
    p.copy = source == FROM_PATH_COPY;
    o->base = (uint8_t *) malloc(n + 32);
    o->memory = o->base + (32 - (uintptr_t) o->base % 32) % 32;
    memcpy(o->memory, data, n);
    o->source.data = o->memory;
    o->source.size = n;
    o->path = source >= FROM_PATH ? temp_path("") : NULL;
    if (o->path != NULL) {
        CHECK(save(o->path, source == FROM_FILE ? "before" : "", source == FROM_FILE ? 6 : 0));
        FILE * f = fopen(o->path, "ab");
        CHECK(f != NULL && fwrite(data, 1, n, f) == n && fclose(f) == 0);
    }
    switch (source) {
        case FROM_MEMORY: o->g = gcuda_gguf_init_from_buffer(o->memory, n, p); break;
        case FROM_CALLBACK: o->g = gcuda_gguf_init_from_callback(fuzz_read, &o->source, 7, n, p); break;
        case FROM_FILE:
            o->file = fopen(o->path, "rb");
            CHECK(o->file != NULL && fseek(o->file, 6, SEEK_SET) == 0);
            o->g = gcuda_gguf_init_from_file_ptr(o->file, p);
            break;
        default: o->g = gcuda_gguf_init_from_file(o->path, p); break;
    }
}

static void open_end(struct opened * o) {
    gcuda_free(o->ctx);
    gcuda_gguf_free(o->g);
    if (o->file != NULL) { fclose(o->file); }
    if (o->path != NULL) { remove(o->path); }
    free(o->path);
    free(o->base);
}

// =====================================================================================================================
// >>bad   files
// =====================================================================================================================
TEST(bad_files) {
    const size_t n = sizeof bad_files / sizeof bad_files[0];
    CHECK(n >= 40);
    for (size_t i = 0; i < n; ++i) {
        for (int s = 0; s < N_SOURCES; ++s) {
            char name[64];
            snprintf(name, sizeof name, "bad_files/%d/%s", (int) i, source_names[s]);
            if (!test_case_begin(name)) { continue; }
            struct file f = file_of(bad_files[i].words);
            struct fault fault;
            struct opened o;
            gcuda_clear_last_error();
            fault_begin(&fault, 0);
            open_as(&o, (enum source) s, f.p, f.n, false);
            CHECK(o.g == NULL && o.ctx == NULL);
            CHECK_EQ_I(o.st, GCUDA_STATUS_INVALID_DATA);
            CHECK_HAS(gcuda_last_error(), bad_files[i].message);
            CHECK_MSG(fault.peak_bytes <= 40 * f.n + 80 * 1024, "%llu bytes allocated for a file of %llu",
                (unsigned long long) fault.peak_bytes, (unsigned long long) f.n);
            open_end(&o);
            CHECK_EQ_I(fault.live, 0);
            fault_end(&fault);
            free(f.p);
            test_case_end();
        }
    }
}

TEST(no_files) {
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    struct gcuda_context * ctx = NULL;
    const struct gcuda_gguf_init_params p = params_of(&ctx, &st);
    char * path = temp_path("");
    CHECK(gcuda_gguf_init_from_file(path, p) == NULL);
    CHECK_EQ_I(st, GCUDA_STATUS_IO);
    CHECK_HAS(gcuda_last_error(), path);
    CHECK(gcuda_gguf_init_from_file(".", p) == NULL);
    CHECK_EQ_I(st, GCUDA_STATUS_IO);
    CHECK(gcuda_gguf_init_from_file(NULL, p) == NULL);
    CHECK_EQ_I(st, GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_gguf_init_from_buffer(NULL, 4, p) == NULL && st == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_gguf_init_from_callback(NULL, NULL, 0, 4, p) == NULL && st == GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_gguf_init_from_file_ptr(NULL, p) == NULL && st == GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_gguf_free(NULL);
    CHECK(save(path, "", 0)); // an empty file
    CHECK(gcuda_gguf_init_from_file(path, p) == NULL);
    CHECK_EQ_I(st, GCUDA_STATUS_INVALID_DATA);
    remove(path);
    free(path);
}

// the source ends after 40 bytes
static size_t read_short(void * userdata, void * output, uint64_t offset, size_t n_bytes) {
    if (offset >= 40) { return 0; }
    const size_t n = offset + n_bytes > 40 ? (size_t) (40 - offset) : n_bytes;
    return fuzz_read(userdata, output, offset, n);
}
static size_t read_too_much(void * userdata, void * output, uint64_t offset, size_t n_bytes) {
    return fuzz_read(userdata, output, offset, n_bytes) + 1;
}

TEST(callbacks) {
    struct file f = file_of(HEAD(1, 1) "str:key u32:4 u32:7 " F32_4 "pad:32 zero:16");
    struct fuzz_source source = { f.p, f.n };
    gcuda_status st = GCUDA_STATUS_SUCCESS;
    struct gcuda_context * ctx = NULL;
    const struct gcuda_gguf_init_params p = params_of(&ctx, &st);
    CHECK(gcuda_gguf_init_from_callback(read_short, &source, 0, f.n, p) == NULL);
    CHECK_EQ_I(st, GCUDA_STATUS_IO);
    CHECK_HAS(gcuda_last_error(), "byte 40: reading");
    CHECK(gcuda_gguf_init_from_callback(read_too_much, &source, 0, f.n, p) == NULL);
    CHECK_EQ_I(st, GCUDA_STATUS_IO);
    struct gcuda_gguf_context * g = gcuda_gguf_init_from_callback(fuzz_read, &source, 1, f.n, p);
    CHECK_OK(st);
    uint32_t v = 0;
    CHECK_OK(gcuda_gguf_get_val_u32(g, 0, &v));
    CHECK_EQ_I(v, 7);
    gcuda_free(ctx);
    gcuda_gguf_free(g);
    free(f.p);
}

// =====================================================================================================================
// >>sample   a file with every value type, arrays of each, tensors of several types and shapes
// =====================================================================================================================
static const char * const sample_texts[4] = { "", "one", "zwei \xc3\xa9", "a longer one, of more than sixteen bytes" };
static const struct sample_tensor {
    const char * name;
    enum gcuda_type type;
    int64_t ne[4];
} sample_tensors[] = {
    { "token_embd.weight", GCUDA_TYPE_Q4_1, { 64, 5, 1, 1 } },
    { "blk.0.attn_q.weight", GCUDA_TYPE_F32, { 3, 5, 1, 1 } },
    { "blk.0.ffn.bias", GCUDA_TYPE_F16, { 7, 1, 1, 1 } },
    { "empty", GCUDA_TYPE_F32, { 0, 3, 1, 1 } },
    { "blk.1.attn_q.weight", GCUDA_TYPE_Q6_K, { 256, 2, 3, 1 } },
    { "blk.1.ffn.bias", GCUDA_TYPE_I8, { 1, 1, 1, 1 } },
    { "output.weight", GCUDA_TYPE_BF16, { 2, 2, 2, 3 } },
};
enum { N_SAMPLE_TENSORS = sizeof sample_tensors / sizeof sample_tensors[0] };

static size_t sample_size(int i) {
    const int64_t * ne = sample_tensors[i].ne;
    return gcuda_row_size(sample_tensors[i].type, ne[0]) * (size_t) (ne[1] * ne[2] * ne[3]);
}
static uint8_t sample_byte(int tensor, size_t at) { return (uint8_t) (37 * (size_t) tensor + 11 * at + at / 251); }
static uint8_t * sample_data(int i) { // freed by the caller
    uint8_t * p = (uint8_t *) malloc(sample_size(i) + 1);
    for (size_t k = 0; k < sample_size(i); ++k) { p[k] = sample_byte(i, k); }
    return p;
}

static gcuda_status sample_pairs(struct gcuda_gguf_context * g) {
    static const uint16_t u16s[3] = { 0, 65535, 77 };
    static const double f64s[2] = { -0.5, 1e300 };
    static const uint8_t bools[3] = { 1, 0, 1 };
    static const int64_t i64s[2] = { INT64_MIN, 5 };
    gcuda_status st[20];
    int n = 0;
    st[n++] = gcuda_gguf_set_val_str(g, "general.architecture", "llama");
    st[n++] = gcuda_gguf_set_val_u8(g, "u8", 255);
    st[n++] = gcuda_gguf_set_val_i8(g, "i8", -128);
    st[n++] = gcuda_gguf_set_val_u16(g, "u16", 65535);
    st[n++] = gcuda_gguf_set_val_i16(g, "i16", -32768);
    st[n++] = gcuda_gguf_set_val_u32(g, "u32", UINT32_MAX);
    st[n++] = gcuda_gguf_set_val_i32(g, "i32", INT32_MIN);
    st[n++] = gcuda_gguf_set_val_f32(g, "f32", 1.5f);
    st[n++] = gcuda_gguf_set_val_u64(g, "u64", UINT64_MAX);
    st[n++] = gcuda_gguf_set_val_i64(g, "i64", INT64_MIN);
    st[n++] = gcuda_gguf_set_val_f64(g, "f64", 1e300);
    st[n++] = gcuda_gguf_set_val_bool(g, "bool", true);
    st[n++] = gcuda_gguf_set_arr_data(g, "u16s", GCUDA_GGUF_TYPE_UINT16, u16s, 3);
    st[n++] = gcuda_gguf_set_arr_data(g, "f64s", GCUDA_GGUF_TYPE_FLOAT64, f64s, 2);
    st[n++] = gcuda_gguf_set_arr_data(g, "bools", GCUDA_GGUF_TYPE_BOOL, bools, 3);
    st[n++] = gcuda_gguf_set_arr_data(g, "i64s", GCUDA_GGUF_TYPE_INT64, i64s, 2);
    st[n++] = gcuda_gguf_set_arr_data(g, "none", GCUDA_GGUF_TYPE_FLOAT32, NULL, 0);
    st[n++] = gcuda_gguf_set_arr_str(g, "texts", sample_texts, 4);
    st[n++] = gcuda_gguf_set_arr_str(g, "no texts", NULL, 0);
    for (int i = 0; i < n; ++i) {
        if (st[i] != GCUDA_STATUS_SUCCESS) { return st[i]; }
    }
    return GCUDA_STATUS_SUCCESS;
}

// All of it in memory, or NULL (an allocation failed). Freed by the caller.
static uint8_t * sample_bytes(uint32_t alignment, size_t * size) {
    const struct gcuda_init_params init = { 0, NULL, true };
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    struct gcuda_context * ctx = g != NULL ? gcuda_init(init) : NULL;
    uint8_t *data[N_SAMPLE_TENSORS], *out = NULL;
    gcuda_status st = ctx != NULL ? sample_pairs(g) : GCUDA_STATUS_ALLOC_FAILED;
    if (st == GCUDA_STATUS_SUCCESS && alignment != 0) {
        st = gcuda_gguf_set_val_u32(g, "general.alignment", alignment);
    }
    for (int i = 0; i < N_SAMPLE_TENSORS; ++i) {
        const struct sample_tensor * s = &sample_tensors[i];
        data[i] = sample_data(i);
        struct gcuda_tensor * t = st == GCUDA_STATUS_SUCCESS
                                      ? gcuda_new_tensor_4d(ctx, s->type, s->ne[0], s->ne[1], s->ne[2], s->ne[3])
                                      : NULL;
        if (t == NULL) { st = GCUDA_STATUS_ALLOC_FAILED; }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_gguf_add_tensor(g, gcuda_set_name(t, s->name)); }
        if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_gguf_set_tensor_data(g, s->name, data[i], sample_size(i)); }
    }
    *size = (size_t) gcuda_gguf_get_write_size(g);
    if (st == GCUDA_STATUS_SUCCESS) {
        out = (uint8_t *) malloc(*size);
        st = gcuda_gguf_write_to_buffer(g, out, *size, false);
    }
    if (st != GCUDA_STATUS_SUCCESS) {
        free(out);
        out = NULL;
    }
    for (int i = 0; i < N_SAMPLE_TENSORS; ++i) { free(data[i]); }
    gcuda_free(ctx);
    gcuda_gguf_free(g);
    return out;
}

static void check_texts(const struct gcuda_gguf_context * g) {
    const char * text = NULL;
    size_t n = 0;
    const int64_t id = gcuda_gguf_find_key(g, "texts");
    CHECK_EQ_I(gcuda_gguf_get_arr_type(g, id), GCUDA_GGUF_TYPE_STRING);
    CHECK_EQ_I(gcuda_gguf_get_arr_n(g, id), 4);
    for (int i = 0; i < 4; ++i) {
        CHECK_OK(gcuda_gguf_get_arr_str(g, id, (uint64_t) i, &text, &n));
        CHECK(n == strlen(sample_texts[i]) && memcmp(text, sample_texts[i], n + 1) == 0);
    }
    CHECK_EQ_I(gcuda_gguf_get_arr_str(g, id, 4, &text, &n), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "string 4 of key 'texts', there are 4");
    CHECK_OK(gcuda_gguf_get_val_str(g, gcuda_gguf_find_key(g, "general.architecture"), &text, &n));
    CHECK(n == 5 && strcmp(text, "llama") == 0);
    CHECK_EQ_I(gcuda_gguf_get_arr_n(g, gcuda_gguf_find_key(g, "no texts")), 0);
    CHECK_EQ_I(gcuda_gguf_get_arr_type(g, gcuda_gguf_find_key(g, "no texts")), GCUDA_GGUF_TYPE_STRING);
}

#define CHECK_VALUE(name, ctype, want)                                             \
    do {                                                                           \
        ctype v = 0;                                                               \
        CHECK_OK(gcuda_gguf_get_val_##name(g, gcuda_gguf_find_key(g, #name), &v)); \
        CHECK(v == (want));                                                        \
    } while (0)

static void check_values(const struct gcuda_gguf_context * g) {
    CHECK_VALUE(u8, uint8_t, 255);
    CHECK_VALUE(i8, int8_t, -128);
    CHECK_VALUE(u16, uint16_t, 65535);
    CHECK_VALUE(i16, int16_t, -32768);
    CHECK_VALUE(u32, uint32_t, UINT32_MAX);
    CHECK_VALUE(i32, int32_t, INT32_MIN);
    CHECK_VALUE(f32, float, 1.5f);
    CHECK_VALUE(u64, uint64_t, UINT64_MAX);
    CHECK_VALUE(i64, int64_t, INT64_MIN);
    CHECK_VALUE(f64, double, 1e300);
    CHECK_VALUE(bool, bool, true);
    const void * data = NULL;
    uint64_t n = 0;
    CHECK_OK(gcuda_gguf_get_arr_data(g, gcuda_gguf_find_key(g, "u16s"), GCUDA_GGUF_TYPE_UINT16, &data, &n));
    CHECK(n == 3 && ((const uint16_t *) data)[1] == 65535 && ((const uint16_t *) data)[2] == 77);
    CHECK_OK(gcuda_gguf_get_arr_data(g, gcuda_gguf_find_key(g, "f64s"), GCUDA_GGUF_TYPE_FLOAT64, &data, &n));
    CHECK(n == 2 && ((const double *) data)[0] == -0.5 && ((const double *) data)[1] == 1e300);
    CHECK_OK(gcuda_gguf_get_arr_data(g, gcuda_gguf_find_key(g, "bools"), GCUDA_GGUF_TYPE_BOOL, &data, &n));
    CHECK(n == 3 && memcmp(data, "\1\0\1", 3) == 0);
    CHECK_OK(gcuda_gguf_get_arr_data(g, gcuda_gguf_find_key(g, "none"), GCUDA_GGUF_TYPE_FLOAT32, &data, NULL));
    check_texts(g);
}

static void check_tensors(const struct opened * o) {
    CHECK_EQ_I(gcuda_gguf_get_n_tensors(o->g), N_SAMPLE_TENSORS);
    uint64_t total = 0;
    for (int i = 0; i < N_SAMPLE_TENSORS; ++i) {
        const struct sample_tensor * s = &sample_tensors[i];
        const int64_t id = gcuda_gguf_find_tensor(o->g, s->name);
        const size_t size = sample_size(i);
        uint8_t *want = sample_data(i), *got = (uint8_t *) malloc(size + 1);
        CHECK_EQ_I(id, i);
        CHECK_EQ_I(gcuda_gguf_get_tensor_type(o->g, id), s->type);
        CHECK_EQ_I(gcuda_gguf_get_tensor_size(o->g, id), size);
        CHECK_EQ_I(gcuda_gguf_get_tensor_offset(o->g, id) % gcuda_gguf_get_alignment(o->g), 0);
        CHECK(memcmp(gcuda_gguf_get_tensor_ne(o->g, id), s->ne, sizeof s->ne) == 0);
        CHECK_OK(gcuda_gguf_read_tensor(o->g, id, got, 0, size));
        CHECK(memcmp(want, got, size) == 0);
        const struct gcuda_tensor * t = gcuda_get_tensor(o->ctx, s->name);
        CHECK(t != NULL && t->type == s->type && memcmp(t->ne, s->ne, sizeof s->ne) == 0);
        if (t != NULL && t->data != NULL) {
            CHECK(memcmp(t->data, want, size) == 0);
            CHECK(size == 0 || t->data == gcuda_gguf_get_tensor_data(o->g, id));
            CHECK_EQ_I(gcuda_backend_buffer_get_usage(t->buffer), GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
        }
        total += size;
        free(want);
        free(got);
    }
    CHECK_EQ_I(gcuda_gguf_get_data_size(o->g), total);
}

TEST(round_trips) {
    static const uint32_t alignments[] = { 0, 1, 8, 32, 64, 4096 };
    for (size_t a = 0; a < sizeof alignments / sizeof alignments[0]; ++a) {
        for (int s = 0; s < N_SOURCES; ++s) {
            char name[64];
            snprintf(name, sizeof name, "round_trips/%u/%s", (unsigned) alignments[a], source_names[s]);
            if (!test_case_begin(name)) { continue; }
            size_t size = 0;
            uint8_t * bytes = sample_bytes(alignments[a], &size);
            struct opened o;
            CHECK(bytes != NULL);
            open_as(&o, (enum source) s, bytes, size, false);
            if (CHECK_OK(o.st)) {
                CHECK_EQ_I(gcuda_gguf_get_version(o.g), 3);
                CHECK_EQ_I(gcuda_gguf_get_alignment(o.g), alignments[a] ? alignments[a] : 32);
                CHECK_EQ_I(gcuda_gguf_get_n_kv(o.g), 19 + (alignments[a] != 0));
                CHECK_EQ_I(gcuda_gguf_get_n_parts(o.g), 1);
                check_values(o.g);
                check_tensors(&o);
                uint8_t * again = (uint8_t *) malloc(size);
                CHECK_EQ_I(gcuda_gguf_get_write_size(o.g), size);
                CHECK_OK(gcuda_gguf_write_to_buffer(o.g, again, size, false));
                CHECK(memcmp(bytes, again, size) == 0);
                free(again);
            }
            open_end(&o);
            free(bytes);
            test_case_end();
        }
    }
}

TEST(versions) { // a version 2 file has the same layout
    size_t size = 0;
    uint8_t * bytes = sample_bytes(0, &size);
    struct opened o;
    REQUIRE(bytes != NULL);
    bytes[4] = 2;
    open_as(&o, FROM_MEMORY, bytes, size, false);
    CHECK_OK(o.st);
    CHECK_EQ_I(gcuda_gguf_get_version(o.g), 2);
    check_values(o.g);
    open_end(&o);
    free(bytes);
}

// Cut anywhere, the file is refused; the padding after the last tensor may be missing.
TEST(cut_files) {
    size_t size = 0;
    uint8_t * bytes = sample_bytes(0, &size);
    REQUIRE(bytes != NULL);
    const size_t end = size - (32 - sample_size(N_SAMPLE_TENSORS - 1) % 32) % 32;
    for (size_t n = 0; n <= size; ++n) {
        struct opened o;
        open_as(&o, FROM_MEMORY, bytes, n, false);
        CHECK_MSG((o.g != NULL) == (n >= end), "%llu of %llu bytes: %s", (unsigned long long) n,
            (unsigned long long) size, gcuda_last_error());
        open_end(&o);
    }
    free(bytes);
}

// Each byte changed: whatever comes, the fuzzer's questions have their answers.
TEST(damaged_files) {
    static const uint8_t changes[] = { 0x00, 0xff, 0x01, 0x80, 0x7f };
    size_t size = 0;
    uint8_t * bytes = sample_bytes(0, &size);
    REQUIRE(bytes != NULL);
    for (size_t at = 0; at < size; ++at) {
        const uint8_t before = bytes[at];
        for (size_t k = 0; k < sizeof changes; ++k) {
            bytes[at] = (uint8_t) (k < 2 ? changes[k] : before ^ changes[k]);
            CHECK_EQ_I(LLVMFuzzerTestOneInput(bytes, size), 0);
        }
        bytes[at] = before;
    }
    struct rng r = rng_for("damaged_files");
    for (long i = 0; i < (test_full() ? 200000 : 2000); ++i) { // several numbers at once
        struct file f = { NULL, 0, 0 };
        put(&f, bytes, size);
        for (int k = 0; k < 4; ++k) {
            const uint64_t v = rng_u64(&r) >> rng_below(&r, 64);
            memcpy(f.p + rng_below(&r, (int64_t) size - 8), &v, (size_t) 1 << rng_below(&r, 4));
        }
        CHECK_EQ_I(LLVMFuzzerTestOneInput(f.p, size - (size_t) rng_below(&r, 64)), 0);
        free(f.p);
    }
    free(bytes);
}

// =====================================================================================================================
// >>values   getters of the wrong type, by key, changes
// =====================================================================================================================
static struct gcuda_gguf_context * sample_values(void) {
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    CHECK(g != NULL);
    CHECK_OK(sample_pairs(g));
    return g;
}

TEST(wrong_types) {
    struct gcuda_gguf_context * g = sample_values();
    const int64_t u8 = gcuda_gguf_find_key(g, "u8"), texts = gcuda_gguf_find_key(g, "texts"),
                  u16s = gcuda_gguf_find_key(g, "u16s");
    uint32_t v = 77;
    const char * text = "untouched";
    const void * data = NULL;
    CHECK_EQ_I(gcuda_gguf_get_val_u32(g, u8, &v), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "key 'u8' is u8, asked for as u32");
    CHECK_EQ_I(v, 77);
    CHECK_EQ_I(gcuda_gguf_get_val_u32(g, 99, &v), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "key 99, there are 19");
    CHECK_EQ_I(gcuda_gguf_get_val_u32(g, -1, &v), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_get_val_u32(NULL, 0, &v), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_get_val_u8(g, u8, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_get_val_str(g, texts, &text, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "key 'texts' is an array of str, asked for as str");
    CHECK(strcmp(text, "untouched") == 0);
    CHECK_EQ_I(gcuda_gguf_get_arr_data(g, u16s, GCUDA_GGUF_TYPE_INT32, &data, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "key 'u16s' is an array of u16, asked for as an array of i32");
    CHECK_EQ_I(gcuda_gguf_get_arr_data(g, u8, GCUDA_GGUF_TYPE_UINT8, &data, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_get_arr_data(g, texts, GCUDA_GGUF_TYPE_STRING, &data, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_get_val_data(g, u8, GCUDA_GGUF_TYPE_COUNT, &data), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_get_arr_str(g, u16s, 0, &text, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(data == NULL && gcuda_gguf_get_key(g, 19) == NULL && gcuda_gguf_find_key(g, "absent") == -1 &&
          gcuda_gguf_find_key(g, NULL) == -1);
    CHECK_EQ_I(gcuda_gguf_get_kv_type(g, 19), GCUDA_GGUF_TYPE_COUNT);
    CHECK_EQ_I(gcuda_gguf_get_arr_type(g, u8), GCUDA_GGUF_TYPE_COUNT);
    CHECK(strcmp(gcuda_gguf_type_name(GCUDA_GGUF_TYPE_FLOAT64), "f64") == 0 &&
          strcmp(gcuda_gguf_type_name((enum gcuda_gguf_type) 77), "invalid") == 0);
    CHECK(gcuda_gguf_get_n_kv(NULL) == 0 && gcuda_gguf_get_n_tensors(NULL) == 0 &&
          gcuda_gguf_find_tensor(NULL, "a") == -1);
    CHECK(gcuda_gguf_get_tensor_name(g, 0) == NULL && gcuda_gguf_get_tensor_type(g, 0) == GCUDA_TYPE_COUNT &&
          gcuda_gguf_get_tensor_part(g, 0) == -1);
    gcuda_gguf_free(g);
}

TEST(values_by_key) {
    struct gcuda_gguf_context * g = sample_values();
    int64_t v = 5;
    float f = 0.25f;
    bool b = false;
    const char * text = "default";
    CHECK_OK(gcuda_gguf_get_int(g, "i16", true, -40000, 0, &v));
    CHECK_EQ_I(v, -32768);
    CHECK_OK(gcuda_gguf_get_int(g, "u32", true, 0, UINT32_MAX, &v));
    CHECK_EQ_I(v, UINT32_MAX);
    CHECK_EQ_I(gcuda_gguf_get_int(g, "u64", true, INT64_MIN, INT64_MAX, &v), GCUDA_STATUS_INVALID_DATA); // 2^64 - 1
    CHECK_EQ_I(gcuda_gguf_get_int(g, "u16", true, 0, 65534, &v), GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "key 'u16' is 65535, want 0 to 65534");
    CHECK_EQ_I(gcuda_gguf_get_int(g, "f32", true, 0, 9, &v), GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "key 'f32' is f32, want an integer");
    CHECK_EQ_I(gcuda_gguf_get_int(g, "bool", true, 0, 9, &v), GCUDA_STATUS_INVALID_DATA);
    CHECK_EQ_I(gcuda_gguf_get_int(g, "general.architecture", true, 0, 9, &v), GCUDA_STATUS_INVALID_DATA);
    CHECK_EQ_I(gcuda_gguf_get_int(g, "u16s", true, 0, 9, &v), GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "key 'u16s' is an array of u16, want an integer");
    CHECK_EQ_I(gcuda_gguf_get_int(g, "llama.block_count", true, 0, 9, &v), GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "key 'llama.block_count' is missing");
    CHECK_EQ_I(v, UINT32_MAX); // as it was
    CHECK_OK(gcuda_gguf_get_int(g, "llama.block_count", false, 0, 9, &v));
    CHECK_EQ_I(v, UINT32_MAX);
    CHECK_OK(gcuda_gguf_get_int_at(g, "u16s", true, 2, 0, 100, &v));
    CHECK_EQ_I(v, 77);
    CHECK_OK(gcuda_gguf_get_int_at(g, "u8", true, 2, 0, 255, &v));
    CHECK_EQ_I(v, 255);
    CHECK_EQ_I(gcuda_gguf_get_int_at(g, "u16s", false, 3, 0, 100, &v), GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "key 'u16s' has 3 elements, element 3 is wanted");
    CHECK_EQ_I(gcuda_gguf_get_int_at(g, "texts", true, 0, 0, 100, &v), GCUDA_STATUS_INVALID_DATA);
    CHECK_OK(gcuda_gguf_get_float(g, "f32", true, &f));
    CHECK(f == 1.5f);
    CHECK_EQ_I(gcuda_gguf_get_float(g, "f64", true, &f), GCUDA_STATUS_INVALID_DATA); // 1e300
    CHECK_EQ_I(gcuda_gguf_get_float(g, "u8", true, &f), GCUDA_STATUS_INVALID_DATA);
    CHECK_OK(gcuda_gguf_set_val_f32(g, "nan", (float) NAN));
    CHECK_EQ_I(gcuda_gguf_get_float(g, "nan", true, &f), GCUDA_STATUS_INVALID_DATA);
    CHECK(f == 1.5f);
    CHECK_OK(gcuda_gguf_get_bool(g, "bool", true, &b));
    CHECK(b);
    CHECK_EQ_I(gcuda_gguf_get_bool(g, "u8", true, &b), GCUDA_STATUS_INVALID_DATA);
    CHECK_OK(gcuda_gguf_get_str(g, "absent", false, &text));
    CHECK(strcmp(text, "default") == 0);
    CHECK_OK(gcuda_gguf_get_str(g, "general.architecture", true, &text));
    CHECK(strcmp(text, "llama") == 0);
    CHECK_EQ_I(gcuda_gguf_get_str(g, "texts", true, &text), GCUDA_STATUS_INVALID_DATA);
    CHECK_EQ_I(gcuda_gguf_get_str(NULL, "texts", true, &text), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_get_str(g, NULL, true, &text), GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_gguf_free(g);
}

TEST(zero_bytes_in_strings) { // kept, and refused where a C string is wanted
    struct file f = file_of(HEAD(0, 1) "str:key u32:8 nul:ab");
    struct opened o;
    const char * text = NULL;
    size_t n = 0;
    open_as(&o, FROM_MEMORY, f.p, f.n, false);
    CHECK_OK(o.st);
    CHECK_OK(gcuda_gguf_get_val_str(o.g, 0, &text, &n));
    CHECK(n == 3 && memcmp(text, "ab\0", 4) == 0);
    CHECK_EQ_I(gcuda_gguf_get_str(o.g, "key", true, &text), GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "has a zero byte in its string of 3 bytes");
    struct gcuda_gguf_context * copy = gcuda_gguf_init_empty();
    CHECK_OK(gcuda_gguf_set_kv(copy, o.g));
    CHECK_OK(gcuda_gguf_get_val_str(copy, 0, &text, &n));
    CHECK(n == 3 && memcmp(text, "ab\0", 4) == 0);
    gcuda_gguf_free(copy);
    open_end(&o);
    free(f.p);
}

TEST(changes) {
    struct gcuda_gguf_context *g = sample_values(), *h = gcuda_gguf_init_empty();
    int64_t id = -2;
    uint32_t v = 0;
    static const uint8_t bools[2] = { 1, 2 };
    char * long_key = (char *) malloc(65537);
    memset(long_key, 'k', 65536);
    long_key[65536] = '\0';
    CHECK_OK(gcuda_gguf_set_val_u32(g, "u8", 70000)); // another type
    CHECK_EQ_I(gcuda_gguf_get_n_kv(g), 19);
    CHECK_OK(gcuda_gguf_get_val_u32(g, gcuda_gguf_find_key(g, "u8"), &v));
    CHECK_EQ_I(v, 70000);
    CHECK_OK(gcuda_gguf_remove_key(g, "i8", &id));
    CHECK_EQ_I(id, 2);
    CHECK_EQ_I(gcuda_gguf_find_key(g, "i8"), -1);
    CHECK_EQ_I(gcuda_gguf_find_key(g, "u16"), 2);
    CHECK_OK(gcuda_gguf_remove_key(g, "i8", &id));
    CHECK_EQ_I(id, -1);
    CHECK_OK(gcuda_gguf_set_val_u32(g, "general.alignment", 64));
    CHECK_EQ_I(gcuda_gguf_get_alignment(g), 64);
    CHECK_EQ_I(gcuda_gguf_set_val_u32(g, "general.alignment", 48), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_set_val_u64(g, "general.alignment", 32), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "general.alignment of type u64");
    CHECK_EQ_I(gcuda_gguf_get_alignment(g), 64);
    CHECK_OK(gcuda_gguf_set_kv(h, g));
    CHECK(gcuda_gguf_get_n_kv(h) == gcuda_gguf_get_n_kv(g) && gcuda_gguf_get_alignment(h) == 64);
    check_texts(h);
    CHECK_OK(gcuda_gguf_set_kv(h, g)); // again: nothing occurs twice
    CHECK_EQ_I(gcuda_gguf_get_n_kv(h), gcuda_gguf_get_n_kv(g));
    CHECK_OK(gcuda_gguf_set_kv(h, h));
    CHECK_OK(gcuda_gguf_remove_key(g, "general.alignment", NULL));
    CHECK_EQ_I(gcuda_gguf_get_alignment(g), 32);
    CHECK_EQ_I(gcuda_gguf_set_val_u8(g, "", 1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_set_val_u8(g, NULL, 1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_set_val_u8(g, long_key, 1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_set_val_u8(NULL, "a", 1), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_set_val_str(g, "a", NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_set_arr_data(g, "a", GCUDA_GGUF_TYPE_BOOL, bools, 2), GCUDA_STATUS_INVALID_DATA);
    CHECK_EQ_I(gcuda_gguf_set_arr_data(g, "a", GCUDA_GGUF_TYPE_STRING, bools, 2), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_set_arr_data(g, "a", GCUDA_GGUF_TYPE_UINT64, bools, UINT64_C(1) << 61),
        GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_set_arr_data(g, "a", GCUDA_GGUF_TYPE_UINT8, NULL, 2), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_find_key(g, "a"), -1);
    long_key[65535] = '\0';
    CHECK_OK(gcuda_gguf_set_val_u8(g, long_key, 1));
    gcuda_gguf_free(g);
    gcuda_gguf_free(h);
    free(long_key);
}

TEST(many_keys) { // found, ordered and removed, whatever order they come in
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    char key[32];
    for (unsigned i = 0; i < 3000; ++i) {
        snprintf(key, sizeof key, "key.%u", i * 1237 % 3001);
        CHECK_OK(gcuda_gguf_set_val_u32(g, key, i));
    }
    const size_t size = (size_t) gcuda_gguf_get_write_size(g);
    char * bytes = (char *) malloc(size);
    CHECK_OK(gcuda_gguf_write_to_buffer(g, bytes, size, false));
    struct opened o;
    open_as(&o, FROM_MEMORY, bytes, size, false);
    CHECK_OK(o.st);
    for (unsigned i = 0; i < 3000; ++i) {
        snprintf(key, sizeof key, "key.%u", i * 1237 % 3001);
        CHECK(gcuda_gguf_find_key(g, key) == i && gcuda_gguf_find_key(o.g, key) == i);
    }
    CHECK_EQ_I(gcuda_gguf_find_key(o.g, "key"), -1);
    open_end(&o);
    free(bytes);
    gcuda_gguf_free(g);
}

// =====================================================================================================================
// >>writing
// =====================================================================================================================
TEST(tensors_to_write) {
    const struct gcuda_init_params init = { 0, NULL, false }, no_data = { 0, NULL, true };
    struct gcuda_context *ctx = gcuda_init(init), *placed = gcuda_init(no_data);
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    struct gcuda_tensor * a = gcuda_set_name(gcuda_new_tensor_2d(ctx, GCUDA_TYPE_F32, 3, 2), "a");
    struct gcuda_tensor * b = gcuda_set_name(gcuda_new_tensor_1d(placed, GCUDA_TYPE_I32, 5), "b");
    struct gcuda_tensor * bare = gcuda_set_name(gcuda_new_tensor_1d(placed, GCUDA_TYPE_F32, 64), "bare");
    gcuda_backend_t toy = toy_backend(0);
    static const int32_t numbers[5] = { 1, -2, 3, -4, 5 };
    float values[6] = { 1, 2, 3, 4, 5, 6 }, more[64];
    char name[70];
    memcpy(a->data, values, sizeof values);
    CHECK_OK(gcuda_gguf_add_tensor(g, bare));                                     // before it has a place
    gcuda_backend_buffer_t buffer = gcuda_backend_alloc_ctx_tensors(placed, toy); // memory that only the toy can read
    CHECK_OK(gcuda_backend_tensor_set(b, numbers, 0, sizeof numbers));
    CHECK_OK(gcuda_gguf_add_tensor(g, a));
    CHECK_OK(gcuda_gguf_add_tensor(g, b));
    CHECK_EQ_I(gcuda_gguf_get_tensor_offset(g, 2), 256 + 32);
    CHECK_EQ_I(gcuda_gguf_add_tensor(g, b), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "there is a tensor 'b' already");
    struct gcuda_tensor * unnamed = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, 1);
    CHECK_EQ_I(gcuda_gguf_add_tensor(g, unnamed), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_add_tensor(g, gcuda_set_name(gcuda_transpose(ctx, a), "t")), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "'t' is not contiguous");
    CHECK_EQ_I(gcuda_gguf_add_tensor(g, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    const size_t size = (size_t) gcuda_gguf_get_write_size(g);
    char * bytes = (char *) malloc(size);
    CHECK_EQ_I(gcuda_gguf_write_to_buffer(g, bytes, size, false), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "tensor 'bare' has no data");
    for (int i = 0; i < 64; ++i) { more[i] = (float) i; }
    CHECK_EQ_I(gcuda_gguf_set_tensor_data(g, "bare", more, 255), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_set_tensor_data(g, "absent", more, 256), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_OK(gcuda_gguf_set_tensor_data(g, "bare", more, 256));
    CHECK_EQ_I(gcuda_gguf_write_to_buffer(g, bytes, size - 1, false), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "a buffer of");
    CHECK_OK(gcuda_gguf_write_to_buffer(g, bytes, size, false));
    struct opened o;
    open_as(&o, FROM_MEMORY, bytes, size, false);
    CHECK_OK(o.st);
    CHECK(memcmp(gcuda_get_data(gcuda_get_tensor(o.ctx, "a")), values, sizeof values) == 0);
    CHECK(memcmp(gcuda_get_data(gcuda_get_tensor(o.ctx, "b")), numbers, sizeof numbers) == 0);
    CHECK(memcmp(gcuda_get_data(gcuda_get_tensor(o.ctx, "bare")), more, sizeof more) == 0);
    CHECK_OK(gcuda_gguf_set_tensor_type(g, "bare", GCUDA_TYPE_Q8_0));
    CHECK_EQ_I(gcuda_gguf_get_tensor_size(g, 0), 68);
    CHECK_EQ_I(gcuda_gguf_get_tensor_offset(g, 1), 96);
    CHECK_EQ_I(gcuda_gguf_set_tensor_type(g, "b", GCUDA_TYPE_Q8_0), GCUDA_STATUS_INVALID_ARGUMENT); // 5 elements
    CHECK_EQ_I(gcuda_gguf_write_to_buffer(g, bytes, size, false), GCUDA_STATUS_INVALID_ARGUMENT);
    const size_t n_meta = (size_t) gcuda_gguf_get_meta_size(g);
    CHECK_OK(gcuda_gguf_get_meta_data(g, bytes, n_meta)); // needs no data
    CHECK_EQ_I(gcuda_gguf_get_meta_data(g, bytes, n_meta - 1), GCUDA_STATUS_INVALID_ARGUMENT);
    memset(name, 'n', sizeof name);
    name[69] = '\0';
    CHECK_EQ_I(gcuda_gguf_find_tensor(g, name), -1);
    open_end(&o);
    free(bytes);
    gcuda_gguf_free(g);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    gcuda_free(placed);
}

static bool write_until(void * userdata, const void * data, size_t n_bytes) { // takes *userdata bytes
    size_t * left = (size_t *) userdata;
    (void) data;
    if (n_bytes > *left) { return false; }
    *left -= n_bytes;
    return true;
}
static bool write_file(void * userdata, const void * data, size_t n_bytes) {
    put((struct file *) userdata, data, n_bytes);
    return true;
}

TEST(write_ways) { // all give the same bytes
    size_t size = 0;
    uint8_t * bytes = sample_bytes(64, &size);
    struct opened o;
    struct file f = { NULL, 0, 0 };
    REQUIRE(bytes != NULL);
    open_as(&o, FROM_PATH, bytes, size, false);
    CHECK_OK(o.st);
    CHECK_OK(gcuda_gguf_write_to_callback(o.g, write_file, &f, false));
    CHECK(f.n == size && memcmp(f.p, bytes, size) == 0);
    const size_t n_meta = (size_t) gcuda_gguf_get_meta_size(o.g);
    CHECK_EQ_I(n_meta, gcuda_gguf_get_data_offset(o.g));
    f.n = 0;
    CHECK_OK(gcuda_gguf_write_to_callback(o.g, write_file, &f, true));
    CHECK(f.n == n_meta && memcmp(f.p, bytes, n_meta) == 0);
    for (size_t left = 0; left < size; left += 97) {
        size_t n = left;
        CHECK_EQ_I(gcuda_gguf_write_to_callback(o.g, write_until, &n, false), GCUDA_STATUS_IO);
    }
#if defined(_WIN32) // does not replace a file that is mapped
    CHECK_EQ_I(gcuda_gguf_write_to_file(o.g, o.path, false), GCUDA_STATUS_IO);
#else
    CHECK_OK(gcuda_gguf_write_to_file(o.g, o.path, false));
#endif
    check_values(o.g);
    check_tensors(&o);
    struct gcuda_gguf_init_params none;
    memset(&none, 0, sizeof none);
    struct gcuda_gguf_context * again = gcuda_gguf_init_from_file(o.path, none);
    CHECK(again != NULL && gcuda_gguf_get_write_size(again) == size);
    gcuda_gguf_free(again);
    CHECK_EQ_I(gcuda_gguf_write_to_file(o.g, "/no such folder/file.gguf", false), GCUDA_STATUS_IO);
    CHECK_HAS(gcuda_last_error(), "/no such folder/file.gguf.part cannot be made");
    CHECK_EQ_I(gcuda_gguf_write_to_file(o.g, NULL, false), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_write_to_file_ptr(o.g, NULL, false), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_write_to_callback(o.g, NULL, NULL, false), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK(gcuda_gguf_get_write_size(NULL) == 0 && gcuda_gguf_get_meta_size(NULL) == 0);
    open_end(&o);
    free(f.p);
    free(bytes);
}

TEST(mapped_tensors_are_copies) { // writing into one leaves the file alone
    size_t size = 0;
    uint8_t *bytes = sample_bytes(0, &size), *again = (uint8_t *) malloc(size);
    struct opened o;
    REQUIRE(bytes != NULL);
    open_as(&o, FROM_PATH, bytes, size, false);
    CHECK_OK(o.st);
    CHECK_OK(gcuda_set_f32(gcuda_get_tensor(o.ctx, "blk.0.attn_q.weight"), 3.0f));
    CHECK(gcuda_get_f32_1d(gcuda_get_tensor(o.ctx, "blk.0.attn_q.weight"), 7) == 3.0f);
    FILE * f = fopen(o.path, "rb");
    CHECK(f != NULL && fread(again, 1, size, f) == size && fclose(f) == 0);
    CHECK(memcmp(bytes, again, size) == 0);
    open_end(&o);
    free(again);
    free(bytes);
}

// =====================================================================================================================
// >>loading
// =====================================================================================================================
struct progress { // of one call of gcuda_gguf_load
    uint64_t last, total;
    long n_calls, stop_at; // 0: never
    bool is_orderly;
};
static bool count_progress(uint64_t done, uint64_t total, void * user_data) {
    struct progress * p = (struct progress *) user_data;
    p->is_orderly = (p->n_calls == 0 ? done == 0 : done >= p->last && total == p->total) && done <= total;
    p->last = done;
    p->total = total;
    return ++p->n_calls != p->stop_at;
}

// Does the tensor of the sample hold its bytes?
static bool holds_sample(const struct gcuda_context * ctx, int i) {
    const size_t size = sample_size(i);
    uint8_t *want = sample_data(i), *got = (uint8_t *) malloc(size + 1);
    const bool is_same =
        gcuda_backend_tensor_get(gcuda_get_tensor(ctx, sample_tensors[i].name), got, 0, size) == GCUDA_STATUS_SUCCESS &&
        memcmp(want, got, size) == 0;
    free(want);
    free(got);
    return is_same;
}

static void check_unplaced(const struct gcuda_context * ctx) {
    for (struct gcuda_tensor * t = gcuda_get_first_tensor(ctx); t != NULL; t = gcuda_get_next_tensor(ctx, t)) {
        CHECK(t->data == NULL && t->buffer == NULL);
    }
}

TEST(load_one_backend) {
    size_t size = 0;
    uint8_t * bytes = sample_bytes(0, &size);
    gcuda_backend_t cpu = gcuda_backend_cpu_init(), toy = toy_backend(0);
    REQUIRE(bytes != NULL && cpu != NULL);
    for (int s = 0; s < N_SOURCES; ++s) {
        for (int way = 0; way < 4; ++way) { // none, the CPU, the CPU with copies, a third party's
            char name[64];
            snprintf(name, sizeof name, "load_one_backend/%s/%d", source_names[s], way);
            if (!test_case_begin(name)) { continue; }
            struct opened o;
            struct progress progress = { 0, 0, 0, 0, true };
            struct gcuda_gguf_load_params p;
            gcuda_backend_buffer_t buffer = NULL;
            memset(&p, 0, sizeof p);
            p.backend = way == 3 ? toy : way > 0 ? cpu : NULL;
            p.copy_host = way == 2;
            p.progress = count_progress;
            p.progress_data = &progress;
            open_as(&o, (enum source) s, bytes, size, true);
            CHECK_OK(o.st);
            check_unplaced(o.ctx);
            struct gcuda_tensor * view = gcuda_view_1d(o.ctx, gcuda_get_tensor(o.ctx, "blk.0.attn_q.weight"), 3, 12);
            if (CHECK_OK(gcuda_gguf_load(o.g, o.ctx, &p, &buffer))) {
                for (int i = 0; i < N_SAMPLE_TENSORS; ++i) { CHECK(holds_sample(o.ctx, i)); }
                CHECK(buffer != NULL && gcuda_backend_buffer_get_usage(buffer) == GCUDA_BACKEND_BUFFER_USAGE_WEIGHTS);
                const struct gcuda_tensor * t = gcuda_get_tensor(o.ctx, "output.weight");
                const bool points = t->data == gcuda_gguf_get_tensor_data(o.g, gcuda_gguf_find_tensor(o.g, t->name));
                CHECK(points == (way < 2 && (s == FROM_MEMORY || s == FROM_PATH)) || s == FROM_PATH_COPY);
                CHECK(progress.is_orderly && progress.last == gcuda_gguf_get_data_size(o.g) &&
                      progress.total == progress.last);
                CHECK(view->data == (char *) gcuda_get_tensor(o.ctx, "blk.0.attn_q.weight")->data + 12);
            }
            gcuda_backend_buffer_free(buffer);
            open_end(&o);
            test_case_end();
        }
    }
    CHECK_EQ_I(toy_calls.n_buffers, 0);
    gcuda_backend_free(cpu);
    free(bytes);
}

TEST(load_refused) {
    const struct gcuda_init_params init = { 0, NULL, true }, with_data = { 0, NULL, false };
    size_t size = 0;
    uint8_t * bytes = sample_bytes(0, &size);
    struct opened o;
    gcuda_backend_buffer_t buffer = NULL;
    REQUIRE(bytes != NULL);
    open_as(&o, FROM_CALLBACK, bytes, size, true);
    struct gcuda_context *ctx = gcuda_init(init), *full = gcuda_init(with_data);
    gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F16, 7), "blk.0.ffn.bias");
    CHECK_OK(gcuda_gguf_load(o.g, ctx, NULL, &buffer)); // some of the file's
    CHECK(holds_sample(ctx, 2));
    gcuda_backend_buffer_free(buffer);
    gcuda_reset(ctx);
    gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F16, 8), "blk.0.ffn.bias");
    CHECK_EQ_I(gcuda_gguf_load(o.g, ctx, NULL, &buffer), GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "tensor 'blk.0.ffn.bias' is f16 [7, 1, 1, 1], want f16 [8, 1, 1, 1]");
    CHECK(buffer == NULL);
    check_unplaced(ctx);
    gcuda_reset(ctx);
    gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F16, 8), "blk.9.ffn.bias");
    CHECK_EQ_I(gcuda_gguf_load(o.g, ctx, NULL, &buffer), GCUDA_STATUS_INVALID_DATA);
    CHECK_HAS(gcuda_last_error(), "tensor 'blk.9.ffn.bias' is missing");
    gcuda_reset(ctx);
    gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F16, 7), "blk.0.ffn.bias");
    gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F16, 7), "blk.0.ffn.bias");
    CHECK_EQ_I(gcuda_gguf_load(o.g, ctx, NULL, &buffer), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_HAS(gcuda_last_error(), "two tensors 'blk.0.ffn.bias'");
    CHECK_EQ_I(gcuda_gguf_load(o.g, full, NULL, &buffer), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_load(NULL, ctx, NULL, &buffer), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_load(o.g, NULL, NULL, &buffer), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_load(o.g, ctx, NULL, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    gcuda_reset(ctx);
    CHECK_OK(gcuda_gguf_load(o.g, ctx, NULL, &buffer)); // nothing
    CHECK(buffer != NULL);
    gcuda_backend_buffer_free(buffer);
    gcuda_free(ctx);
    gcuda_free(full);
    open_end(&o);
    free(bytes);
}

TEST(load_stopped) { // by the callback at every call, by a device at every call
    size_t size = 0;
    uint8_t * bytes = sample_bytes(0, &size);
    gcuda_backend_t toy = toy_backend(0);
    struct opened o;
    struct gcuda_gguf_load_params p;
    gcuda_backend_buffer_t buffer = NULL;
    REQUIRE(bytes != NULL);
    memset(&p, 0, sizeof p);
    p.backend = toy;
    open_as(&o, FROM_CALLBACK, bytes, size, true);
    long n_stopped = 0, n_failed = 0;
    for (long k = 1; k < 100; ++k) {
        struct progress progress = { 0, 0, 0, k, true };
        p.progress = count_progress;
        p.progress_data = &progress;
        const gcuda_status st = gcuda_gguf_load(o.g, o.ctx, &p, &buffer);
        if (st == GCUDA_STATUS_SUCCESS) { break; }
        CHECK_EQ_I(st, GCUDA_STATUS_ABORTED);
        CHECK(buffer == NULL && toy_calls.n_buffers == 0);
        check_unplaced(o.ctx);
        n_stopped++;
    }
    CHECK_EQ_I(n_stopped, 1 + N_SAMPLE_TENSORS - 1); // at first, and after each tensor that is not empty
    gcuda_backend_buffer_free(buffer);
    open_end(&o);
    open_as(&o, FROM_CALLBACK, bytes, size, true);
    p.progress = NULL;
    for (long k = 1; k < 100; ++k) {
        toy_calls.fail_at = toy_calls.n_calls + k;
        const gcuda_status st = gcuda_gguf_load(o.g, o.ctx, &p, &buffer);
        toy_calls.fail_at = 0;
        if (st == GCUDA_STATUS_SUCCESS) { break; }
        CHECK(st == GCUDA_STATUS_FAILED || st == GCUDA_STATUS_ALLOC_FAILED);
        CHECK(buffer == NULL && toy_calls.n_buffers == 0);
        check_unplaced(o.ctx);
        n_failed++;
    }
    CHECK_EQ_I(n_failed, 1 + N_SAMPLE_TENSORS - 1); // the buffer, and each that is not empty
    gcuda_backend_buffer_free(buffer);
    open_end(&o);
    free(bytes);
}

// Of n_blocks blocks of two tensors each, 1 KiB a block, between an embedding and an output of 4 KiB each. In memory,
// freed by the caller.
static uint8_t * layers_bytes(int n_blocks, size_t * size) {
    const struct gcuda_init_params init = { 0, NULL, false };
    struct gcuda_context * ctx = gcuda_init(init);
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    for (int i = -1; i <= n_blocks; ++i) {
        const bool is_block = i >= 0 && i < n_blocks;
        for (int k = 0; k < (is_block ? 2 : 1); ++k) {
            struct gcuda_tensor * t = gcuda_new_tensor_1d(ctx, GCUDA_TYPE_F32, is_block ? 128 : 1024);
            if (is_block) {
                gcuda_format_name(t, "blk.%d.%s", i, k ? "up" : "down");
            } else {
                gcuda_set_name(t, i < 0 ? "token_embd" : "output");
            }
            gcuda_set_f32(t, (float) (10 * i + k));
            CHECK_OK(gcuda_gguf_add_tensor(g, t));
        }
    }
    *size = (size_t) gcuda_gguf_get_write_size(g);
    uint8_t * bytes = (uint8_t *) malloc(*size);
    CHECK_OK(gcuda_gguf_write_to_buffer(g, bytes, *size, false));
    gcuda_gguf_free(g);
    gcuda_free(ctx);
    return bytes;
}

// Number of the backend whose memory the tensor is in.
static int place_of(const struct gcuda_context * ctx, const char * name, const gcuda_backend_t * backends, int n) {
    const struct gcuda_tensor * t = gcuda_get_tensor(ctx, name);
    for (int i = 0; i < n && t != NULL && t->buffer != NULL; ++i) {
        if (t->buffer->buft == gcuda_backend_get_default_buffer_type(backends[i])) { return i; }
    }
    return -1;
}

static gcuda_backend_buffer_type_t choose_output(const struct gcuda_tensor * tensor, void * user_data) {
    return strcmp(tensor->name, "output") == 0 ? gcuda_backend_get_default_buffer_type((gcuda_backend_t) user_data)
                                               : NULL;
}

TEST(load_over_backends) {
    gcuda_backend_t backends[3] = { toy_backend(0), toy_backend(1), gcuda_backend_cpu_init() };
    gcuda_backend_sched_t sched = gcuda_backend_sched_new(backends, NULL, 3, 64, false, true);
    REQUIRE(sched != NULL);
    // toys have 1 MiB each: what the reserve leaves of it, in KiB, and the blocks that are expected with each
    static const struct {
        int left, n_blocks, on_cpu, on_first, on_second;
        bool is_chosen;
    } cases[] = {
        // 4 KiB of embedding, 16 of blocks, 4 of output: all of it; just; without the embedding; without four blocks
        // too; none
        { 800, 16, 0, 8, 8, false },
        { 12, 16, 0, 8, 8, false },
        { 10, 16, 0, 10, 6, false },
        { 8, 16, 4, 8, 4, false },
        { 1, 6, 6, 0, 0, false },
        { 0, 3, 3, 0, 0, false },
        { 800, 16, 0, 6, 10, true },
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; ++c) {
        size_t size = 0;
        uint8_t * bytes = layers_bytes(cases[c].n_blocks, &size);
        struct opened o;
        struct gcuda_gguf_load_params p;
        gcuda_backend_buffer_t buffer = NULL;
        int n_at[3] = { 0, 0, 0 }, last = 2;
        memset(&p, 0, sizeof p);
        p.sched = sched;
        p.reserve_bytes = (size_t) (1024 - cases[c].left) * 1024;
        p.choose = cases[c].is_chosen ? choose_output : NULL;
        p.choose_data = backends[0];
        open_as(&o, FROM_MEMORY, bytes, size, true);
        CHECK_OK(gcuda_gguf_load(o.g, o.ctx, &p, &buffer));
        for (int i = 0; i < cases[c].n_blocks; ++i) {
            char down[32], up[32];
            snprintf(down, sizeof down, "blk.%d.down", i);
            snprintf(up, sizeof up, "blk.%d.up", i);
            const int at = place_of(o.ctx, down, backends, 3);
            CHECK_EQ_I(at, place_of(o.ctx, up, backends, 3));              // a block is not divided
            CHECK(at == last || (last == 2 && at >= 0) || at == last + 1); // in order: the CPU, then each device
            last = at;
            n_at[at >= 0 ? at : 0]++;
            float value = 0.0f;
            CHECK_OK(gcuda_backend_tensor_get(gcuda_get_tensor(o.ctx, up), &value, 508, 4));
            CHECK(value == (float) (10 * i + 1));
        }
        if (test_all.verbose) { printf("  case %d: %d %d %d\n", (int) c, n_at[2], n_at[0], n_at[1]); }
        CHECK_MSG(n_at[2] == cases[c].on_cpu && n_at[0] == cases[c].on_first && n_at[1] == cases[c].on_second,
            "case %d: %d blocks on the CPU, %d and %d on devices", (int) c, n_at[2], n_at[0], n_at[1]);
        CHECK(!cases[c].is_chosen || place_of(o.ctx, "output", backends, 3) == 0);
        gcuda_backend_buffer_free(buffer);
        open_end(&o);
        free(bytes);
    }
    gcuda_backend_sched_free(sched);
    gcuda_backend_free(backends[2]);
    CHECK_EQ_I(toy_calls.n_buffers, 0);
}

// =====================================================================================================================
// >>parts   of split files
// =====================================================================================================================
static void remove_parts(const char * prefix, int count) {
    char path[700];
    for (int no = 0; no < count; ++no) {
        CHECK(gcuda_gguf_split_path(path, sizeof path, prefix, no, count) < sizeof path);
        remove(path);
    }
}

TEST(split_names) {
    char text[64];
    CHECK_EQ_I(gcuda_gguf_split_path(text, sizeof text, "dir/model", 1, 12), 9 + 20);
    CHECK(strcmp(text, "dir/model-00002-of-00012.gguf") == 0);
    CHECK_EQ_I(gcuda_gguf_split_path(NULL, 0, "m", 0, 1), 21);
    CHECK_EQ_I(gcuda_gguf_split_path(text, 5, "model", 0, 3), 25); // cut
    CHECK(strcmp(text, "mode") == 0);
    CHECK(gcuda_gguf_split_path(text, sizeof text, "m", 3, 3) == 0 &&
          gcuda_gguf_split_path(text, sizeof text, "m", -1, 3) == 0);
    CHECK(gcuda_gguf_split_path(text, sizeof text, NULL, 0, 3) == 0 &&
          gcuda_gguf_split_path(text, sizeof text, "m", 0, 70000) == 0);
    CHECK_EQ_I(gcuda_gguf_split_prefix(text, sizeof text, "dir/model-00002-of-00012.gguf", 1, 12), 9);
    CHECK(strcmp(text, "dir/model") == 0);
    CHECK_EQ_I(gcuda_gguf_split_prefix(text, 4, "dir/model-00002-of-00012.gguf", 1, 12), 9);
    CHECK(strcmp(text, "dir") == 0);
    CHECK_EQ_I(gcuda_gguf_split_prefix(text, sizeof text, "dir/model-00002-of-00012.gguf", 2, 12), 0);
    CHECK_EQ_I(gcuda_gguf_split_prefix(text, sizeof text, "-00002-of-00012.gguf", 1, 12), 0);
    CHECK_EQ_I(gcuda_gguf_split_prefix(text, sizeof text, NULL, 1, 12), 0);
}

TEST(split_files) {
    size_t size = 0;
    uint8_t * bytes = sample_bytes(64, &size);
    char *prefix = temp_path(""), path[700];
    struct opened o, parts;
    int count = 0;
    REQUIRE(bytes != NULL);
    open_as(&o, FROM_MEMORY, bytes, size, false);
    CHECK_OK(o.st);
    CHECK_OK(gcuda_gguf_write_split(o.g, prefix, 400, &count));
    CHECK_EQ_I(count, 3); // bytes: 200 60 14 0, 1260, 1 48
    CHECK(gcuda_gguf_split_path(path, sizeof path, prefix, 0, count) < sizeof path);
    for (int copy = 0; copy < 2; ++copy) {
        memset(&parts, 0, sizeof parts);
        struct gcuda_gguf_init_params p = params_of(&parts.ctx, &parts.st);
        p.copy = copy != 0;
        parts.g = gcuda_gguf_init_from_file(path, p);
        if (CHECK_OK(parts.st)) {
            CHECK_EQ_I(gcuda_gguf_get_n_parts(parts.g), count);
            CHECK_EQ_I(gcuda_gguf_get_alignment(parts.g), 64);
            CHECK_EQ_I(gcuda_gguf_get_tensor_part(parts.g, N_SAMPLE_TENSORS - 1), count - 1);
            check_values(parts.g);
            check_tensors(&parts);
            int n_again = 0; // joined, and divided again
            char * other = temp_path("");
            CHECK_OK(gcuda_gguf_write_split(parts.g, other, UINT64_MAX, &n_again));
            CHECK_EQ_I(n_again, 1);
            remove_parts(other, 1);
            free(other);
        }
        gcuda_free(parts.ctx);
        gcuda_gguf_free(parts.g);
    }
    struct gcuda_gguf_init_params alone;
    memset(&alone, 0, sizeof alone);
    alone.one_part = true;
    struct gcuda_gguf_context * first = gcuda_gguf_init_from_file(path, alone);
    CHECK(first != NULL && gcuda_gguf_get_n_tensors(first) == 4 && gcuda_gguf_get_n_parts(first) == 1);
    gcuda_gguf_free(first);
    CHECK_EQ_I(gcuda_gguf_write_split(NULL, prefix, 1, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_write_split(o.g, NULL, 1, NULL), GCUDA_STATUS_INVALID_ARGUMENT);
    CHECK_EQ_I(gcuda_gguf_write_split(o.g, "/no such folder/m", 1, NULL), GCUDA_STATUS_IO);
    remove_parts(prefix, count);
    open_end(&o);
    free(prefix);
    free(bytes);
}

static const struct bad_split {
    const char *parts[3], *message;
    int opened;
    gcuda_status st;
} bad_splits[] = {
#define SPLIT(n_t, no, count) HEAD(n_t, 2) "str:split.no u32:2 u16:" #no " str:split.count u32:2 u16:" #count " "
#define TENSOR(name) INFO(name, 1, "u64:4", 0, 0) "pad:32 zero:16"
    { { SPLIT(1, 0, 3) TENSOR(a), SPLIT(1, 1, 3) TENSOR(b), NULL }, "-00003-of-00003.gguf cannot be opened", 0,
        GCUDA_STATUS_IO },
    { { SPLIT(1, 0, 3) TENSOR(a), SPLIT(1, 1, 3) TENSOR(b), SPLIT(1, 2, 3) TENSOR(a) },
        "tensor 'a' occurs twice (tensor 2)", 0, GCUDA_STATUS_INVALID_DATA },
    { { SPLIT(1, 0, 3) TENSOR(a), SPLIT(1, 2, 3) TENSOR(b), SPLIT(1, 2, 3) TENSOR(c) },
        "says that it is part 2 of 3, counted from 0; want part 1 of 3", 0, GCUDA_STATUS_INVALID_DATA },
    { { SPLIT(1, 0, 3) TENSOR(a), SPLIT(1, 1, 4) TENSOR(b), SPLIT(1, 2, 3) TENSOR(c) }, "part 1 of 4", 0,
        GCUDA_STATUS_INVALID_DATA },
    { { SPLIT(1, 0, 3) TENSOR(a), HEAD(1, 0) TENSOR(b), SPLIT(1, 2, 3) TENSOR(c) }, "key 'split.no' is missing", 0,
        GCUDA_STATUS_INVALID_DATA },
    { { SPLIT(1, 0, 3) TENSOR(a), SPLIT(1, 1, 3) TENSOR(b), SPLIT(1, 2, 3) "zero:9" },
        "1 tensors of at least 25 bytes each, and 9", 0, GCUDA_STATUS_INVALID_DATA },
    { { SPLIT(1, 0, 3) TENSOR(a), SPLIT(1, 1, 3) TENSOR(b), SPLIT(1, 2, 3) TENSOR(c) },
        "is part 1 of 3, counted from 0: open the first one", 1, GCUDA_STATUS_INVALID_DATA },
    { { HEAD(1, 1) "str:split.count u32:2 u16:3 " TENSOR(a), SPLIT(1, 1, 3) TENSOR(b), NULL },
        "key 'split.no' is missing", 0, GCUDA_STATUS_INVALID_DATA },
    { { HEAD(1, 1) "str:split.count u32:8 str:3 " TENSOR(a), NULL, NULL }, "key 'split.count' is str, want an integer",
        0, GCUDA_STATUS_INVALID_DATA },
    { { SPLIT(1, 0, 4) TENSOR(a), NULL, NULL }, "whose name has to end in -00001-of-00004.gguf", 0,
        GCUDA_STATUS_INVALID_DATA },
    { { HEAD(1, 3) "str:split.no u32:2 u16:0 str:split.count u32:2 u16:3 str:split.tensors.count u32:5 u32:4 " TENSOR(
            a),
          SPLIT(1, 1, 3) TENSOR(b), SPLIT(1, 2, 3) TENSOR(c) },
        "split.tensors.count is 4, and its 3 parts have 3 tensors", 0, GCUDA_STATUS_INVALID_DATA },
};

TEST(bad_splits) {
    for (size_t i = 0; i < sizeof bad_splits / sizeof bad_splits[0]; ++i) {
        for (int copy = 0; copy < 2; ++copy) {
            char *prefix = temp_path(""), path[700];
            gcuda_status st = GCUDA_STATUS_SUCCESS;
            struct gcuda_context * ctx = NULL;
            struct fault fault;
            for (int no = 0; no < 3; ++no) {
                (void) gcuda_gguf_split_path(path, sizeof path, prefix, no, 3);
                struct file f = file_of(bad_splits[i].parts[no] ? bad_splits[i].parts[no] : "");
                CHECK(bad_splits[i].parts[no] == NULL || save(path, f.p, f.n));
                free(f.p);
            }
            (void) gcuda_gguf_split_path(path, sizeof path, prefix, bad_splits[i].opened, 3);
            struct gcuda_gguf_init_params p = params_of(&ctx, &st);
            p.copy = copy != 0;
            fault_begin(&fault, 0);
            CHECK(gcuda_gguf_init_from_file(path, p) == NULL && ctx == NULL);
            CHECK_EQ_I(st, bad_splits[i].st);
            CHECK_HAS(gcuda_last_error(), bad_splits[i].message);
            CHECK_EQ_I(fault.live, 0);
            fault_end(&fault);
            remove_parts(prefix, 3);
            free(prefix);
        }
    }
}

// =====================================================================================================================
// >>memory   each allocation fails once
// =====================================================================================================================
static gcuda_status read_all(enum source s, const void * bytes, size_t size) {
    struct opened o;
    struct gcuda_gguf_load_params p;
    gcuda_backend_buffer_t buffer = NULL;
    memset(&p, 0, sizeof p);
    p.copy_host = true;
    open_as(&o, s, bytes, size, s != FROM_FILE);
    gcuda_status st = o.st;
    CHECK((st == GCUDA_STATUS_SUCCESS) == (o.g != NULL) && (o.g != NULL) == (o.ctx != NULL));
    if (st == GCUDA_STATUS_SUCCESS) {
        st = gcuda_gguf_load(o.g, o.ctx, &p, &buffer);
        CHECK(s == FROM_FILE || st == GCUDA_STATUS_SUCCESS || gcuda_get_tensor(o.ctx, "output.weight")->data == NULL);
    }
    if (st == GCUDA_STATUS_SUCCESS) { CHECK(holds_sample(o.ctx, N_SAMPLE_TENSORS - 1)); }
    gcuda_backend_buffer_free(buffer);
    open_end(&o);
    return st;
}

static gcuda_status write_all(const void * bytes, size_t size) { // changes, split files
    struct opened o;
    char *prefix = temp_path(""), path[700];
    int count = 0;
    open_as(&o, FROM_CALLBACK, bytes, size, true);
    gcuda_status st = o.st;
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_gguf_write_to_file(o.g, prefix, false); }
    remove(prefix);
    if (st == GCUDA_STATUS_SUCCESS) { st = gcuda_gguf_write_split(o.g, prefix, 400, &count); }
    if (st == GCUDA_STATUS_SUCCESS) {
        gcuda_status opened = GCUDA_STATUS_SUCCESS;
        (void) gcuda_gguf_split_path(path, sizeof path, prefix, 0, count);
        struct gcuda_gguf_context * g = gcuda_gguf_init_from_file(path, params_of(NULL, &opened));
        CHECK((g != NULL) == (opened == GCUDA_STATUS_SUCCESS));
        st = opened;
        gcuda_gguf_free(g);
    }
    remove_parts(prefix, 3); // as many as were written before a failure
    open_end(&o);
    free(prefix);
    return st;
}

static gcuda_status make_all(void) {
    size_t size = 0;
    uint8_t * bytes = sample_bytes(64, &size);
    const bool is_ok = bytes != NULL;
    free(bytes);
    return is_ok ? GCUDA_STATUS_SUCCESS : GCUDA_STATUS_ALLOC_FAILED;
}

TEST(allocations_fail) {
    size_t size = 0;
    uint8_t * bytes = sample_bytes(0, &size);
    REQUIRE(bytes != NULL);
    for (int way = 0; way < N_SOURCES + 2; ++way) {
        long k = 1;
        for (; k < 2000; ++k) {
            struct fault f;
            fault_begin(&f, k);
            gcuda_clear_last_error();
            const gcuda_status st = way < N_SOURCES    ? read_all((enum source) way, bytes, size)
                                    : way == N_SOURCES ? write_all(bytes, size)
                                                       : make_all();
            CHECK_EQ_I(f.live, 0);
            fault_end(&f);
            CHECK_MSG((st == GCUDA_STATUS_SUCCESS) == !f.fired, "way %d, allocation %ld: status %d, %s", way, k,
                (int) st, gcuda_last_error());
            CHECK(st == GCUDA_STATUS_SUCCESS || st == GCUDA_STATUS_ALLOC_FAILED);
            if (!f.fired) { break; }
            CHECK_HAS(gcuda_last_error(), "out of memory");
        }
        CHECK_MSG(k > 20 && k < 2000, "way %d: %ld allocations", way, k);
    }
    free(bytes);
}

// =====================================================================================================================
// >>large   files: tensors beyond 4 GiB, in a file with holes
// =====================================================================================================================
TEST(beyond_4_gib) {
#if defined(_WIN32) || UINTPTR_MAX < 0xffffffffffffffff
    test_skip("needs files with holes and 64-bit addresses");
#else
    const int64_t n_large = (INT64_C(1) << 32) + (INT64_C(1) << 20) + 3;
    const struct gcuda_init_params init = { 0, NULL, true };
    struct gcuda_context * ctx = gcuda_init(init);
    struct gcuda_gguf_context * g = gcuda_gguf_init_empty();
    CHECK_OK(gcuda_gguf_add_tensor(g, gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I8, n_large), "large")));
    CHECK_OK(gcuda_gguf_add_tensor(g, gcuda_set_name(gcuda_new_tensor_1d(ctx, GCUDA_TYPE_I32, 2), "after")));
    char * path = temp_path("");
    const int32_t numbers[2] = { 1234567, -7 };
    CHECK_OK(gcuda_gguf_write_to_file(g, path, true));
    const uint64_t at = gcuda_gguf_get_meta_size(g) + gcuda_gguf_get_tensor_offset(g, 1);
    CHECK(at > UINT64_C(1) << 32);
    FILE * f = fopen(path, "r+b");
    const bool is_written =
        f != NULL && fseek(f, (long) at, SEEK_SET) == 0 && fwrite(numbers, sizeof numbers, 1, f) == 1;
    if (f == NULL || fclose(f) != 0 || !is_written) {
        test_skip("the file system has no such files");
    } else {
        for (int k = 0; k < 2; ++k) { // the map, and a FILE whose large tensor is not read
            struct gcuda_context * tensors = NULL;
            gcuda_status st = GCUDA_STATUS_SUCCESS;
            struct gcuda_gguf_init_params p = params_of(&tensors, &st);
            FILE * file = k == 1 ? fopen(path, "rb") : NULL;
            int32_t got[2] = { 0, 0 };
            p.no_alloc = k == 1;
            struct gcuda_gguf_context * r =
                k == 0 ? gcuda_gguf_init_from_file(path, p) : gcuda_gguf_init_from_file_ptr(file, p);
            if (CHECK_OK(st)) {
                CHECK_OK(gcuda_gguf_read_tensor(r, 1, got, 0, sizeof got));
                CHECK(got[0] == numbers[0] && got[1] == numbers[1]);
                const struct gcuda_tensor * t = gcuda_get_tensor(tensors, "after");
                CHECK(k == 1 || gcuda_get_i32_1d(t, 1) == -7);
                CHECK(k == 1 ||
                      (const char *) t->data - (const char *) gcuda_get_tensor(tensors, "large")->data == n_large + 29);
            }
            gcuda_free(tensors);
            gcuda_gguf_free(r);
            if (file != NULL) { fclose(file); }
        }
    }
    remove(path);
    free(path);
    gcuda_gguf_free(g);
    gcuda_free(ctx);
#endif
}
