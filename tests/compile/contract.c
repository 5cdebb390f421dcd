// The implementation leaves the including file's FP_CONTRACT as it was: off (WANT 0) or on (WANT 1). For clang on a CPU
// with FMA.
#if WANT
#pragma STDC FP_CONTRACT ON
#else
#pragma STDC FP_CONTRACT OFF
#endif
#define GCUDA_IMPLEMENTATION
#include "gcuda.h"

// of the rounding of a * a, if it is one operation with the difference; else 0
static double rest(volatile double * a) {
    const double x = *a, square = x * x;
    return x * x - square;
}

int main(void) {
    volatile double a = 1.0 + 1.0 / 1073741824.0;
    return (rest(&a) != 0.0) == WANT ? 0 : 1;
}
