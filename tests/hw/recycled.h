// Host memory for gcuda that comes back at once: the next allocation of a size gets the address of the last freed one,
// under AddressSanitizer too.
#ifndef HW_RECYCLED_H
#define HW_RECYCLED_H

#include "test.h"

static struct {
    char heap[1 << 22];
    size_t n_bytes, n_free;
    struct {
        void * at;
        size_t size;
    } free[1024];
} recycled;

static void * recycled_alloc(void * user, size_t size, size_t alignment) {
    (void) user;
    for (size_t i = recycled.n_free; i-- > 0;) {
        if (recycled.free[i].size != size) { continue; }
        void * at = recycled.free[i].at;
        memmove(&recycled.free[i], &recycled.free[i + 1], (--recycled.n_free - i) * sizeof recycled.free[0]);
        return at;
    }
    const size_t begin = ((uintptr_t) (recycled.heap + recycled.n_bytes) + 255) / 256 * 256 - (uintptr_t) recycled.heap;
    if (alignment > 256 || begin + size > sizeof recycled.heap) { return NULL; }
    recycled.n_bytes = begin + size;
    return recycled.heap + begin;
}
static void recycled_free(void * user, void * at, size_t size) {
    (void) user;
    CHECK(recycled.n_free < 1024);
    recycled.free[recycled.n_free].at = at;
    recycled.free[recycled.n_free++].size = size;
}

// Until gcuda_shutdown.
static void recycled_begin(void) {
    const struct gcuda_allocator allocator = { recycled_alloc, recycled_free, NULL };
    memset(&recycled, 0, sizeof recycled);
    gcuda_set_allocator(&allocator);
}

#endif
