// The declarations come first, by way of some other header; later in the same file the implementation.
#include "gcuda.h"

int early(void);
int early(void) { return gcuda_version(); }

#define GCUDA_IMPLEMENTATION
#include "gcuda.h"
#include "work.h"

int main(void) { return early() != GCUDA_VERSION || work(); }
