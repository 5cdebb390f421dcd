// GGUF files from bytes: opened from memory and through a callback, which have to agree; every value and tensor is
// looked at; what is written again reads back the same. Whatever comes, nothing may crash, leak, or allocate what the
// bytes do not justify. For libFuzzer (`make build/fuzz/fuzz_gguf`, seeds in tests/fuzz/gguf-seeds); tests/test-gguf.c
// runs the same function on damaged files, for compilers without it.
#include "gcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// =====================================================================================================================
// >>helpers
// =====================================================================================================================
// bytes of an allocation: the largest so far, and what a file of this size justifies
static size_t fuzz_largest, fuzz_limit;

static void fuzz_want(bool is_true, const char * what) {
    if (is_true) { return; }
    fprintf(stderr, "fuzz_gguf: %s; the last error: %s\n", what, gcuda_last_error());
    __builtin_trap();
}

static void * fuzz_alloc(void * user, size_t size, size_t alignment) {
    (void) user;
    if (size > fuzz_largest) { fuzz_largest = size; }
    fuzz_want(size <= fuzz_limit, "an allocation that the file's size does not justify");
    void * base = malloc(size + alignment + sizeof(void *));
    if (base == NULL) { return NULL; }
    char * p = (char *) (((uintptr_t) base + sizeof(void *) + alignment - 1) / alignment * alignment);
    memcpy(p - sizeof(void *), &base, sizeof base);
    return p;
}

static void fuzz_free(void * user, void * ptr, size_t size) {
    void * base = NULL;
    (void) user, (void) size;
    memcpy(&base, (char *) ptr - sizeof(void *), sizeof base);
    free(base);
}

struct fuzz_source {
    const uint8_t * data;
    size_t size;
};
static size_t fuzz_read(void * userdata, void * output, uint64_t offset, size_t n_bytes) {
    const struct fuzz_source * s = (const struct fuzz_source *) userdata;
    fuzz_want(offset <= s->size && n_bytes <= s->size - offset, "a read beyond the end");
    memcpy(output, s->data + offset, n_bytes);
    return n_bytes;
}

// =====================================================================================================================
// >>looking   at all that the getters give
// =====================================================================================================================
static uint64_t fuzz_sum;
static void fuzz_touch(const void * data, size_t n) {
    const uint8_t * p = (const uint8_t *) data;
    for (size_t i = 0; i < n; ++i) { fuzz_sum = fuzz_sum * 31 + p[i]; }
}

static void fuzz_value(const struct gcuda_gguf_context * g, int64_t id) {
    static const size_t sizes[GCUDA_GGUF_TYPE_COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    const enum gcuda_gguf_type type = gcuda_gguf_get_kv_type(g, id), element = gcuda_gguf_get_arr_type(g, id);
    const char *key = gcuda_gguf_get_key(g, id), *text = NULL;
    const void * data = NULL;
    uint64_t n = 0;
    size_t size = 0;
    fuzz_want(gcuda_gguf_find_key(g, key) == id, "a key that is not found");
    for (int k = 0; k < GCUDA_GGUF_TYPE_COUNT; ++k) { // of one type at most
        const enum gcuda_gguf_type asked = (enum gcuda_gguf_type) k;
        if (gcuda_gguf_get_val_data(g, id, asked, &data) == GCUDA_STATUS_SUCCESS) {
            fuzz_want(asked == type, "a value of two types");
            fuzz_touch(data, sizes[k]);
        }
        if (gcuda_gguf_get_arr_data(g, id, asked, &data, &n) == GCUDA_STATUS_SUCCESS) {
            fuzz_want(asked == element && n == gcuda_gguf_get_arr_n(g, id), "an array of two types");
            fuzz_touch(data, (size_t) n * sizes[k]);
        }
    }
    if (gcuda_gguf_get_val_str(g, id, &text, &size) == GCUDA_STATUS_SUCCESS) { fuzz_touch(text, size + 1); }
    for (uint64_t i = 0; element == GCUDA_GGUF_TYPE_STRING && i < gcuda_gguf_get_arr_n(g, id); ++i) {
        fuzz_want(gcuda_gguf_get_arr_str(g, id, i, &text, &size) == GCUDA_STATUS_SUCCESS,
            "a string of an array is not there");
        fuzz_touch(text, size + 1);
    }
    int64_t v = 0;
    float f = 0.0f;
    bool b = false;
    (void) gcuda_gguf_get_int(g, key, true, INT64_MIN, INT64_MAX, &v);
    (void) gcuda_gguf_get_int_at(g, key, true, 1, -5, 5, &v);
    (void) gcuda_gguf_get_float(g, key, true, &f);
    (void) gcuda_gguf_get_bool(g, key, true, &b);
    (void) gcuda_gguf_get_str(g, key, true, &text);
}

static void fuzz_tensor(const struct gcuda_gguf_context * g, int64_t id) {
    const size_t size = gcuda_gguf_get_tensor_size(g, id);
    const void * data = gcuda_gguf_get_tensor_data(g, id);
    uint8_t some[64];
    fuzz_want(gcuda_gguf_find_tensor(g, gcuda_gguf_get_tensor_name(g, id)) == id, "a tensor that is not found");
    fuzz_touch(gcuda_gguf_get_tensor_ne(g, id), 4 * sizeof(int64_t));
    if (data != NULL) { fuzz_touch(data, size); }
    const size_t n = size < sizeof some ? size : sizeof some;
    fuzz_want(
        gcuda_gguf_read_tensor(g, id, some, size - n, n) == GCUDA_STATUS_SUCCESS, "a tensor whose end cannot be read");
    fuzz_want(gcuda_gguf_read_tensor(g, id, some, size - n + 1, n) != GCUDA_STATUS_SUCCESS, "a read beyond a tensor");
}

static void fuzz_look(const struct gcuda_gguf_context * g) {
    for (int64_t i = -1; i <= gcuda_gguf_get_n_kv(g); ++i) {
        if (gcuda_gguf_get_key(g, i) != NULL) { fuzz_value(g, i); }
    }
    for (int64_t i = 0; i < gcuda_gguf_get_n_tensors(g); ++i) { fuzz_tensor(g, i); }
}

// =====================================================================================================================
// >>writing
// =====================================================================================================================
static void fuzz_write(struct gcuda_gguf_context * g) {
    struct gcuda_gguf_init_params none;
    memset(&none, 0, sizeof none);
    const size_t size = (size_t) gcuda_gguf_get_write_size(g);
    char *first = (char *) malloc(size + 1), *second = (char *) malloc(size + 1);
    fuzz_want(first != NULL && second != NULL, "the fuzzer has no memory");
    fuzz_want(
        gcuda_gguf_write_to_buffer(g, first, size, false) == GCUDA_STATUS_SUCCESS, "what was read cannot be written");
    struct gcuda_gguf_context * again = gcuda_gguf_init_from_buffer(first, size, none);
    fuzz_want(again != NULL, "what was written cannot be read");
    fuzz_want(gcuda_gguf_get_write_size(again) == size, "the second time is of another size");
    fuzz_want(
        gcuda_gguf_write_to_buffer(again, second, size, false) == GCUDA_STATUS_SUCCESS, "not written a second time");
    fuzz_want(memcmp(first, second, size) == 0, "the second time differs");
    gcuda_gguf_free(again);
    free(first);
    free(second);
}

// =====================================================================================================================
// >>target
// =====================================================================================================================
int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    static const struct gcuda_allocator allocator = { fuzz_alloc, fuzz_free, NULL };
    struct gcuda_context * ctx = NULL;
    gcuda_status st = GCUDA_STATUS_SUCCESS, st_read = GCUDA_STATUS_SUCCESS;
    struct gcuda_gguf_init_params params;
    memset(&params, 0, sizeof params);
    params.ctx = &ctx;
    params.status = &st;
    fuzz_limit = 64 * size + 300 * 1024; // 25 bytes can be a tensor with its description; a context begins with 64 KiB
    gcuda_set_allocator(&allocator);
    // as aligned as tensors want it, and its end is the block's end
    uint8_t *base = (uint8_t *) malloc(size + 32), *copy = base;
    fuzz_want(base != NULL, "the fuzzer has no memory");
    copy += (32 - (uintptr_t) base % 32) % 32;
    if (size > 0) { memcpy(copy, data, size); }
    struct gcuda_gguf_context * g = gcuda_gguf_init_from_buffer(copy, size, params);
    fuzz_want((g != NULL) == (st == GCUDA_STATUS_SUCCESS) && (ctx != NULL) == (g != NULL),
        "status, context and result differ");
    fuzz_want(g != NULL || gcuda_last_error()[0] != '\0', "refused without a message");
    gcuda_free(ctx);
    struct fuzz_source source = { data, size };
    params.status = &st_read;
    struct gcuda_gguf_context * streamed =
        gcuda_gguf_init_from_callback(fuzz_read, &source, 1 + size % 97, size, params);
    fuzz_want(st == st_read, "memory and callback do not agree");
    gcuda_free(ctx);
    if (g != NULL) {
        fuzz_look(g);
        fuzz_look(streamed);
        // an alignment of a MiB makes a large file of a small one
        if (gcuda_gguf_get_write_size(g) <= 4 * size + 4096) { fuzz_write(g); }
    }
    gcuda_gguf_free(g);
    gcuda_gguf_free(streamed);
    free(base);
    gcuda_set_allocator(NULL);
    return 0;
}
