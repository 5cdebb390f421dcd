// Compile-time allocator hooks: all host memory goes through them, and all of it comes back.
#include <stddef.h>

static void * my_malloc(size_t size);
static void my_free(void * ptr);
#define GCUDA_MALLOC(size) my_malloc(size)
#define GCUDA_FREE(ptr) my_free(ptr)
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include "work.h"
#include <stdlib.h>

static int n_live = 0, n_calls = 0;

static void * my_malloc(size_t size) {
    ++n_live;
    ++n_calls;
    return malloc(size);
}

static void my_free(void * ptr) {
    --n_live;
    free(ptr);
}

int main(void) { return work() || n_live != 0 || n_calls == 0; }
