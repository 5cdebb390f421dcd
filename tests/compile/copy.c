// One of two copies in a program: compiled twice, with COPY=a and COPY=b and either GCUDA_STATIC or a GCUDA_PREFIX
// each.
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include "work.h"

#define PASTE2(a, b) a##b
#define PASTE(a, b) PASTE2(a, b)

int PASTE(copy_, COPY)(void);
int PASTE(copy_, COPY)(void) {
    gcuda_clear_last_error();
    const int bad = work();
    gcuda_free(NULL);
    return bad;
}
